/* What the tests of pipelines share: what a sample is, models, batches, and the steps of the serial program. */
#ifndef WF_TESTS_PIPELINE_FIXTURE_H
#define WF_TESTS_PIPELINE_FIXTURE_H

#include "core/core.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "layers/pipeline_author.h"
#include "optim/multi_node.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 5, CLASSES = 4, STEPS = 5, MOST = 9 };

typedef struct sample {
    wf_dtype dtype;
    const char *device;
    wf_pipeline_kind kind;
    int stages, data, parts, chunks, samples[2]; /* of each place along data */
    bool draws, momentum;
    wf_pipeline_recompute recompute;
    double tolerance;
} sample;

/* What a sample runs on. */
static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_mesh *mesh;
    int rank;
} on;

static inline const char *text_of(const sample *s)
{
    static char text[160];
    snprintf(text, sizeof text,
             "%s %s, kind %d, %d stages x data %d, %d parts, %d chunks of %d and %d samples%s, recompute %d", s->device,
             wf_dtype_name(s->dtype), (int)s->kind, s->stages, s->data, s->parts, s->chunks, s->samples[0],
             s->samples[1], s->draws ? ", draws" : "", (int)s->recompute);
    return text;
}

static inline wf_var *drop(wf_var *x)
{
    return wf_dropout(x, 0.3);
}

static inline wf_var *noise(wf_var *x)
{
    return wf_add(x, wf_scale(wf_randn(x->tape, wf_var_shape(x), x), 0.1));
}

static inline wf_layer *dense(int64_t in, int64_t out)
{
    return wf_linear(on.ctx, (wf_linear_opts){.in = in, .out = out});
}

/* A dense layer and a function behind it. */
static inline wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *(**function)(wf_var *) = user;
    return (*function)(wf_apply(wf_layer_child(self, "dense"), x));
}

static inline wf_layer *block(int64_t in, int64_t out, wf_var *(**function)(wf_var *))
{
    wf_layer *layer = wf_module(on.ctx, block_forward, (void *)function);
    WF_EXPECT(wf_module_add(layer, "dense", dense(in, out)), "%s", wf_error_trail());
    return layer;
}

/* A large eps, so that chunks of one or two samples magnify no rounding. */
static inline wf_layer *norm(int64_t channels)
{
    return wf_batchnorm(on.ctx, (wf_batchnorm_opts){.channels = channels, .eps = 0.5, .decay = 0.7});
}

/* Nine layers, some of them in a chain of their own. Every stage has parameters, however they are cut. */
static inline wf_layer *model_new(bool draws, bool norms)
{
    static wf_var *(*functions[])(wf_var *) = {wf_tanh, wf_sigmoid, drop, noise};
    wf_layer *inner = wf_sequential(on.ctx, WF_LAYERS(block(7, 7, &functions[draws ? 2 : 0]), dense(7, 6)));
    return wf_layer_named(
        wf_sequential(on.ctx, WF_LAYERS(dense(IN, 8), norms ? norm(8) : wf_lambda(on.ctx, wf_relu), dense(8, 7), inner,
                                        dense(6, 6), block(6, 6, &functions[draws ? 3 : 1]),
                                        norms ? norm(6) : dense(6, 6), dense(6, CLASSES))),
        "net");
}

static inline wf_optim *optim_new(wf_layer *model, const sample *s)
{
    return wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = s->momentum ? 0.9 : 0});
}

/* --- data -----------------------------------------------------------------------------------------------------------
 */

typedef struct batch {
    int n;
    double x[2 * MOST * IN];
    int64_t label[2 * MOST];
} batch;

static inline batch batch_of(test_rng *rng, int n)
{
    batch b = {.n = n};
    for (int i = 0; i < n * IN; i++)
        b.x[i] = test_uniform(rng, -1, 1);
    for (int i = 0; i < n; i++)
        b.label[i] = test_int(rng, 0, CLASSES - 1);
    return b;
}

/* Samples [lo, hi). */
static inline wf_tensor *x_of(const batch *b, wf_dtype dtype, int64_t lo, int64_t hi)
{
    wf_tensor *wide = wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(hi - lo, IN), b->x + lo * IN);
    wf_tensor *x = wf_tensor_copy(wide, dtype, WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return x;
}

static inline wf_tensor *labels_of(const batch *b, int64_t lo, int64_t hi)
{
    return wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(hi - lo), b->label + lo);
}

/* --- the serial program ---------------------------------------------------------------------------------------------
 */

static inline wf_var *serial_loss(wf_layer *model, wf_tape *tape, const batch *b, wf_dtype dtype, int64_t lo,
                                  int64_t hi)
{
    wf_tensor *x = x_of(b, dtype, lo, hi), *labels = labels_of(b, lo, hi);
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, x)), labels);
    WF_EXPECT(loss, "%s", wf_error_trail());
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return loss;
}

/* One step: of all samples at once, or of the chunks of each place along data. */
static inline double serial_step(wf_optim *optim, wf_tape *const *tape, const batch *b, const sample *s, bool whole)
{
    wf_layer *model = wf_optim_model(optim);
    wf_var *loss = NULL;
    const int chunks = whole ? 1 : s->chunks, places = whole ? 1 : s->data;
    int64_t first = 0;
    for (int r = 0; r < places; r++) {
        const int64_t n = whole ? b->n : s->samples[r];
        for (int c = 0; c < chunks; c++) {
            int64_t lo, hi;
            wf_block(n, chunks, c, &lo, &hi);
            loss = serial_loss(model, tape[r], b, s->dtype, first + lo, first + hi);
            if (r == places - 1 && c == chunks - 1)
                WF_EXPECT_OK(wf_optim_step(optim, loss));
            else
                WF_EXPECT_OK(wf_optim_accumulate(optim, loss));
        }
        first += n;
    }
    const double value = wf_item(loss);
    for (int r = 0; r < 2; r++)
        WF_EXPECT_OK(wf_tape_reset(tape[r]));
    return value;
}

#endif
