/* What the tests of pipelines share: where they run, models and batches. */
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

enum { IN = 5, CLASSES = 4, MOST = 9 };

/* What a test runs on. */
static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_mesh *mesh;
    int rank;
} on;

static inline int world_size(void)
{
    wf_comm *comm = test_comm_open("naive", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return size;
}

static inline bool open_on(const char *device, wf_dtype dtype, int stages)
{
    on.comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device(device), .dtype = dtype, .seed = 3});
    WF_EXPECT(on.comm, "%s", wf_error_trail());
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){.stage = stages});
    WF_EXPECT(on.mesh, "%s", wf_error_trail());
    return on.mesh;
}

static inline void close_on(void)
{
    wf_mesh_close(on.mesh);
    WF_EXPECT_OK(wf_comm_close(on.comm));
}

/* A stage for each rank; returns how many there are. */
static inline int open_stages(wf_dtype dtype)
{
    on.comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = dtype, .threads = 1, .seed = 3});
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){.stage = wf_comm_size(on.comm)});
    WF_EXPECT(on.mesh, "%s", wf_error_trail());
    return wf_comm_size(on.comm);
}

/* Closes them, also after an error, which the communicator then repeats. */
static inline void close_stages(void)
{
    wf_error_clear();
    wf_mesh_close(on.mesh);
    wf_comm_close(on.comm);
    wf_error_clear();
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

#endif
