/* What the tests of wf_multi_node share: a communicator of a name and a type, a small network with and without a mesh,
 * and its batches. */
#ifndef WF_TESTS_OPTIM_NETS_H
#define WF_TESTS_OPTIM_NETS_H

#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"
#include "tests/world.h"

enum { BATCH = 3, SIDE = 6, CLASSES = 5 };

static const char *const reducers[] = {"flat", "naive", "hierarchical", "two_dimensional", "auto"};

#define COUNT(list) (int)(sizeof(list) / sizeof *(list))

static inline void open_comm(const char *name, const char *device, wf_dtype dtype)
{
    comm = test_comm_open(name, (wf_ctx_opts){.device = test_device(device), .dtype = dtype, .threads = 1});
    WF_EXPECT(comm, "no communicator %s: %s", name, wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static inline void close_comm(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

static inline wf_layer *net_new(const wf_mesh *mesh)
{
    const wf_conv_opts first = {.in = 3, .out = 7, .kernel = 3, .pad = 1},
                       next = {.in = 7, .out = 5, .kernel = 3, .pad = 1};
    const wf_linear_opts last = {.in = 5 * SIDE * SIDE, .out = CLASSES, .replicate = true};
    if (mesh)
        return wf_sequential(ctx, WF_LAYERS(wf_channel_conv2d(mesh, first), wf_lambda(ctx, wf_relu),
                                            wf_channel_conv2d(mesh, next), wf_lambda(ctx, wf_flatten),
                                            wf_channel_linear(mesh, last)));
    return wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, first), wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 7}),
                                        wf_lambda(ctx, wf_relu), wf_conv2d(ctx, next), wf_lambda(ctx, wf_flatten),
                                        wf_linear(ctx, last)));
}

/* Models that are made one after the other start with different values. A parameter's values depend on its place alone,
 * so that replicated ones are equal also where ranks hold shards of different sizes. */
static inline void start_alike(wf_layer *net)
{
    double values[5 * SIDE * SIDE * CLASSES];
    for (int64_t i = 0; param_of(net, i); i++) {
        test_rng rng = {(uint64_t)(99 + i)};
        const int64_t n = wf_tensor_count(wf_param_value(param_of(net, i)));
        for (int64_t e = 0; e < n; e++)
            values[e] = test_uniform(&rng, 0, 0.2);
        values_set(wf_param_value(param_of(net, i)), values);
    }
}

/* All parameters, freed by the caller. */
static inline double *values_of(wf_layer *net, int64_t *count)
{
    *count = 0;
    for (int64_t i = 0; param_of(net, i); i++)
        *count += wf_tensor_count(wf_param_value(param_of(net, i)));
    double *values = calloc((size_t)*count, sizeof *values);
    int64_t at = 0;
    for (int64_t i = 0; values && param_of(net, i); i++) {
        values_get(wf_param_value(param_of(net, i)), values + at);
        at += wf_tensor_count(wf_param_value(param_of(net, i)));
    }
    return values;
}

/* x and labels for net_loss. */
typedef struct net_batch {
    wf_tensor *x, *labels;
} net_batch;

static inline net_batch net_batch_new(void)
{
    return (net_batch){wf_tensor_new(ctx, wf_ctx_dtype(ctx), WF_SHAPE(BATCH, 3, SIDE, SIDE)),
                       wf_tensor_new(ctx, WF_I64, WF_SHAPE(BATCH))};
}

static inline void net_batch_free(net_batch b)
{
    wf_tensor_free(b.x);
    wf_tensor_free(b.labels);
}

/* The loss of batch number t, another on every rank; on a mesh one for all ranks at a place along data. */
static inline wf_var *net_loss(const wf_mesh *mesh, wf_layer *net, wf_tape *tape, net_batch b, int t)
{
    const int part = mesh ? wf_mesh_rank(mesh, WF_AXIS_DATA) : wf_comm_rank(comm);
    test_rng rng = {(uint64_t)(100 * t + part + 1)};
    double x[BATCH * 3 * SIDE * SIDE];
    int64_t label[BATCH];
    for (int i = 0; i < COUNT(x); i++)
        x[i] = test_uniform(&rng, -1, 1);
    for (int i = 0; i < BATCH; i++)
        label[i] = test_int(&rng, 0, CLASSES - 1);
    values_set(b.x, x);
    WF_EXPECT_OK(wf_tensor_import(b.labels, label, sizeof label));
    if (mesh) {
        const int64_t all = BATCH * wf_mesh_size(mesh, WF_AXIS_DATA), lo = BATCH * part;
        WF_EXPECT_OK(wf_tensor_set_layout(b.x, wf_layout_batch(mesh, WF_SHAPE(all, 3, SIDE, SIDE), lo, lo + BATCH)));
        WF_EXPECT_OK(wf_tensor_set_layout(b.labels, wf_layout_batch(mesh, WF_SHAPE(all), lo, lo + BATCH)));
    }
    return wf_softmax_cross_entropy(wf_apply(net, wf_input(tape, b.x)), b.labels, (wf_label_opts){0});
}

#endif
