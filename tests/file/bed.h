/* A model whose values tell the step, and its checkpoint. */
#ifndef WF_TESTS_FILE_BED_H
#define WF_TESTS_FILE_BED_H

#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "tests/file/disk.h"
#include "tests/file/folder.h"

typedef struct bed {
    wf_layer *model;
    wf_checkpoint *saves;
    double number;
} bed;

static int64_t bed_side = 700, bed_layers = 1; /* of its linear layers */

static inline wf_var *bed_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static inline void bed_open_at(bed *b, const char *path, wf_checkpoint_opts opts)
{
    b->model = wf_module(ctx, bed_forward, NULL);
    for (int64_t i = 0; i < bed_layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc%lld", (long long)i);
        wf_module_add(b->model, name, wf_linear(ctx, (wf_linear_opts){.in = bed_side, .out = bed_side}));
    }
    wf_module_add(b->model, "bn", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 7}));
    b->saves = wf_checkpoint_open(comm, path, opts);
    b->number = 0;
    WF_EXPECT(b->saves, "%s", wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(b->saves, "model", b->model));
    WF_EXPECT_OK(wf_checkpoint_add_f64(b->saves, "number", &b->number));
}

static inline void bed_open(bed *b, const char *name, wf_checkpoint_opts opts)
{
    bed_open_at(b, in_folder(name), opts);
}

static inline void bed_close(bed *b)
{
    WF_EXPECT_OK(wf_checkpoint_close(b->saves));
    wf_layer_free(b->model);
}

/* All values of a step: every parameter is `step`, running statistics have the rank in them. */
static inline void bed_fill(bed *b, int64_t step)
{
    wf_param *const *params;
    int64_t n;
    WF_EXPECT_OK(wf_layer_params(b->model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT_OK(wf_tensor_fill(wf_param_value(params[i]),
                                    (double)step + (wf_param_trainable(params[i]) ? 0 : 0.25 * rank)));
    b->number = (double)step;
}

static inline void bed_check(bed *b, int64_t step)
{
    wf_param *const *params;
    int64_t n;
    WF_EXPECT_OK(wf_layer_params(b->model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        const wf_tensor *value = wf_param_value(params[i]);
        const double expected = (double)step + (wf_param_trainable(params[i]) ? 0 : 0.25 * rank);
        float *host = malloc(wf_tensor_bytes(value));
        int64_t wrong = 0;
        WF_EXPECT_OK(wf_tensor_export(value, host, wf_tensor_bytes(value)));
        for (int64_t k = 0; k < wf_tensor_count(value); k++)
            wrong += host[k] != (float)expected;
        WF_EXPECT(wrong == 0, "step %lld: %lld elements of %s are wrong", (long long)step, (long long)wrong,
                  wf_param_path(params[i]));
        free(host);
    }
    WF_EXPECT(b->number == (double)step, "the number is %g, was %lld", b->number, (long long)step);
}

static inline void bed_save(bed *b, int64_t step)
{
    bed_fill(b, step);
    WF_EXPECT_OK(wf_checkpoint_save(b->saves, step));
}

/* What its checkpoint finds is this step. */
static inline void bed_expect_found(bed *b, const char *what, int64_t expected)
{
    int64_t step = -1;
    bed_fill(b, 99);
    const wf_status status = wf_checkpoint_load_latest(b->saves, &step);
    WF_EXPECT(status == WF_OK, "%s: %s", what, wf_error_message());
    WF_EXPECT(step == expected, "%s: found step %lld, expected %lld", what, (long long)step, (long long)expected);
    bed_check(b, step);
}

/* On rank 0, between barriers; `pages` stay free, or all if negative. */
static inline void leave_room(const char *junk, int64_t pages)
{
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0 && pages >= 0)
        fill_disk(junk, pages);
    else if (rank == 0)
        unlink(junk);
    WF_EXPECT_OK(wf_barrier(comm));
}

#endif
