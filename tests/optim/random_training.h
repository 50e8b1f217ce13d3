/* What random samples of training share: a sum of the program's own, the serial program of double buffering, and going
 * on from a file in memory. */
#ifndef WF_TESTS_RANDOM_TRAINING_H
#define WF_TESTS_RANDOM_TRAINING_H

#include "layers/layers.h"
#include "optim/multi_node.h"
#include "optim/reduce_author.h"
#include "tests/optim/optim_model.h"

#include <string.h>

/* A sum of the program's own: what is sent are half the gradients, which loses no bit. */
typedef struct halves {
    const wf_grad_bucket *bucket;
    double factor;
} halves;

static inline wf_status multiply_bucket(void *own)
{
    const halves *h = own;
    const wf_grad_bucket *b = h->bucket;
    for (int64_t i = 0; i < b->count; i++) {
        if (b->dtype == WF_F64)
            ((double *)b->flat)[i] *= h->factor;
        else
            ((float *)b->flat)[i] *= (float)h->factor;
    }
    return WF_OK;
}

/* What is added keeps its place until the step is over: a step has fewer buckets than there are places. */
static inline wf_status sum_halves(void *user, const wf_grad_bucket *b)
{
    enum { KEPT = 4096 };
    static halves kept[KEPT];
    static int at;
    int64_t *sums = user;
    halves *down = &kept[at++ % KEPT], *up = &kept[at++ % KEPT];
    *down = (halves){b, 0.5};
    *up = (halves){b, 2};
    ++*sums;
    wf_background_call(b->comm, multiply_bucket, down);
    wf_background_sum(b->comm,
                      &(wf_call){.out = b->flat, .dtype = b->dtype, .parts = (int)b->segments, .part = b->offset});
    wf_background_call(b->comm, multiply_bucket, up);
    return WF_OK;
}

/* --- double buffering -----------------------------------------------------------------------------------------------
 */

enum { GRADS = 128, ELEMENTS = 4096 };

/* Gradients of the serial program whose update waits. */
typedef struct late_update {
    bool waits;
    double grad[GRADS][ELEMENTS], next[GRADS][ELEMENTS];
} late_update;

/* Makes the update that waits. */
static inline void late_flush(late_update *late, wf_layer *model, wf_optim *optim)
{
    wf_param *const *params;
    int64_t n = 0;
    if (!late->waits)
        return;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        if (wf_param_trainable(params[i]))
            grad_set(params[i], late->grad[i]);
    WF_EXPECT_OK(wf_optim_update(optim));
    late->waits = false;
}

/* After wf_optim_gradients: the update with the gradients of the step before; those of this one wait. */
static inline void late_step(late_update *late, wf_layer *model, wf_optim *optim)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        if (wf_param_trainable(params[i]))
            values_get(wf_param_grad(params[i]), late->next[i]);
    late_flush(late, model, optim);
    memcpy(late->grad, late->next, sizeof late->grad);
    late->waits = true;
}

/* --- files in memory ------------------------------------------------------------------------------------------------
 */

typedef struct saved_run {
    wf_archive *values, *state;
} saved_run;

/* Saves both; then the values are lost and the optimizer is freed. */
static inline saved_run save_run(wf_ctx *ctx, wf_layer *model, wf_optim *optim)
{
    static const double lost[ELEMENTS];
    const saved_run s = {wf_archive_memory(ctx), wf_archive_memory(ctx)};
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_archive(model, s.values));
    WF_EXPECT_OK(wf_optim_archive(optim, s.state));
    wf_optim_free(optim);
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        values_set(wf_param_value(params[i]), lost);
    return s;
}

/* Into a new optimizer. */
static inline void load_run(saved_run s, wf_layer *model, wf_optim *optim)
{
    WF_EXPECT_OK(wf_archive_memory_rewind(s.values));
    WF_EXPECT_OK(wf_archive_memory_rewind(s.state));
    WF_EXPECT_OK(wf_layer_archive(model, s.values));
    WF_EXPECT_OK(wf_optim_archive(optim, s.state));
    wf_archive_free(s.values);
    wf_archive_free(s.state);
}

#endif
