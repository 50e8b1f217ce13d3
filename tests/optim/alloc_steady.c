/* A training loop of fixed shape: after its second step the library asks the system for no memory. Its own counter says
 * so, and so do the calls of malloc, calloc and realloc, which the linker diverts to this file (--wrap). */
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <stdio.h>

enum { BATCH = 6, STEPS = 8 };

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t bytes);

static int64_t calls;

void *__wrap_malloc(size_t bytes)
{
    calls++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t size)
{
    calls++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    calls++;
    return __real_realloc(old, bytes);
}

/* The largest of four pixels, where it was; of images that ranks share all of them. */
static wf_var *keep_largest(wf_layer *self, void *user, wf_var *x)
{
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    if (wf_layout_is_sharded(&layout, 2) || wf_layout_is_sharded(&layout, 3))
        return x;
    wf_var *places, *y = wf_max_pool_with_places(wf_layer_child(self, "pool"), x, &places);
    (void)user;
    return wf_max_unpool(y, places, (wf_pool_opts){.kernel = 2}, (wf_shape){0});
}

static wf_layer *largest(wf_ctx *ctx)
{
    wf_layer *module = wf_module(ctx, keep_largest, NULL);
    wf_module_add(module, "pool", wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2}));
    return module;
}

static wf_layer *net_new(wf_ctx *ctx)
{
    wf_layer *conv = wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 8, .kernel = 3, .pad = 1});
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8});
    wf_layer *down = wf_conv2d(ctx, (wf_conv_opts){.in = 8, .out = 16, .kernel = 4, .stride = 2, .pad = 1});
    wf_layer *last = wf_linear(ctx, (wf_linear_opts){.in = 16 * 16, .out = 5, .replicate = true});
    return wf_sequential(ctx, WF_LAYERS(conv, norm, wf_lambda(ctx, wf_relu), down, wf_lambda(ctx, wf_tanh),
                                        largest(ctx), wf_lambda(ctx, wf_flatten), last));
}

/* Every step imports a new batch, as a program does that reads data. */
static void loop(const char *what, wf_ctx *ctx, wf_layer *net, wf_optim *optim)
{
    test_rng rng = {7};
    static float x[BATCH * 3 * 8 * 8];
    int64_t label[BATCH], after[STEPS], called[STEPS];
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *batch = wf_tensor_new(ctx, WF_F32, WF_SHAPE(BATCH, 3, 8, 8));
    wf_tensor *labels = wf_tensor_new(ctx, WF_I64, WF_SHAPE(BATCH));
    for (int step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < sizeof x / sizeof *x; i++)
            x[i] = (float)test_uniform(&rng, -1, 1);
        for (int i = 0; i < BATCH; i++)
            label[i] = test_int(&rng, 0, 4);
        WF_EXPECT_OK(wf_tensor_import(batch, x, sizeof x));
        WF_EXPECT_OK(wf_tensor_import(labels, label, sizeof label));
        wf_var *scores = wf_apply(net, wf_input(tape, batch));
        WF_EXPECT_OK(wf_optim_step(optim, wf_softmax_cross_entropy(scores, labels, (wf_label_opts){0})));
        WF_EXPECT_OK(wf_tape_reset(tape));
        after[step] = wf_ctx_memory(ctx).system_allocations;
        called[step] = calls;
    }
    printf("%s: system allocations after each step (and calls of malloc since the first):", what);
    for (int step = 0; step < STEPS; step++)
        printf(" %lld (%lld)", (long long)after[step], (long long)(called[step] - called[0]));
    printf("\n");
    WF_EXPECT(after[STEPS - 1] == after[1], "%s: %lld allocations after the second step", what,
              (long long)(after[STEPS - 1] - after[1]));
    WF_EXPECT(called[STEPS - 1] == called[1], "%s: %lld calls of malloc after the second step", what,
              (long long)(called[STEPS - 1] - called[1]));
    wf_tensor_free(batch);
    wf_tensor_free(labels);
    wf_tape_free(tape);
}

static void local_on(const char *device)
{
    wf_ctx *ctx = ctx_of(device, WF_F32);
    wf_layer *net = net_new(ctx);
    wf_optim *optim = wf_adam(net, (wf_adam_opts){0});
    WF_EXPECT_OK(wf_optim_clip_norm(optim, 1));
    optim = wf_lr_schedule(optim, (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = STEPS, .warmup = 2});
    loop(device, ctx, net, optim);
    wf_optim_free(optim);
    wf_layer_free(net);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void local_cpu(void)
{
    local_on("cpu");
}

static void local_ref(void)
{
    local_on("ref");
}

static void multi_node_with(const char *what, bool sync, wf_multi_node_opts opts)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_layer *net = net_new(ctx);
    if (sync)
        WF_EXPECT_OK(wf_to_sync_batchnorm(net, comm));
    wf_optim *optim = wf_multi_node(comm, wf_adam(net, (wf_adam_opts){0}), opts);
    loop(what, ctx, net, optim);
    wf_optim_free(optim);
    wf_layer_free(net);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void multi_node(void)
{
    multi_node_with("multi-node", false, (wf_multi_node_opts){0});
}

static void buckets(void)
{
    const wf_multi_node_opts opts = {.bucket_bytes = 1000, .first_bucket_bytes = 1, .grad_dtype = WF_BF16};
    multi_node_with("buckets in bf16", false, opts);
}

static void cut_over_ranks(void)
{
    multi_node_with("sharded optimizer", false, (wf_multi_node_opts){.bucket_bytes = 1000, .shard_optimizer = true});
}

static void double_buffering(void)
{
    multi_node_with("double buffering", false, (wf_multi_node_opts){.bucket_bytes = 1000, .double_buffering = true});
}

static void sync_bn(void)
{
    multi_node_with("synchronised batch normalisation", true, (wf_multi_node_opts){.bucket_bytes = 1});
}

static void channel_parallel(void)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = wf_comm_size(comm)});
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_layer *conv = wf_channel_conv2d(mesh, (wf_conv_opts){.in = 3, .out = 8, .kernel = 3, .pad = 1});
    wf_layer *norm = wf_channel_batchnorm(mesh, (wf_batchnorm_opts){.channels = 8});
    wf_layer *groups = wf_channel_conv2d(mesh, (wf_conv_opts){.in = 8, .out = 6, .kernel = 3, .pad = 1, .groups = 2});
    wf_layer *down = wf_channel_conv2d(
        mesh, (wf_conv_opts){.in = 6, .out = 16, .kernel = 4, .stride = 2, .pad = 1, .form = WF_FORM_CHANNEL});
    wf_layer *last = wf_channel_linear(mesh, (wf_linear_opts){.in = 16 * 16, .out = 5, .replicate = true});
    wf_layer *net = wf_sequential(
        ctx, WF_LAYERS(conv, norm, wf_lambda(ctx, wf_relu), groups, down, wf_lambda(ctx, wf_flatten), last));
    wf_optim *optim = wf_mesh_multi_node(mesh, wf_lamb(net, (wf_lamb_opts){0}), (wf_multi_node_opts){0});
    WF_EXPECT_OK(wf_optim_clip_norm(optim, 1));
    loop("channel-parallel", ctx, net, optim);
    wf_optim_free(optim);
    wf_layer_free(net);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void steady_on_mesh(const char *what, wf_ctx_opts opts)
{
    wf_comm *comm = test_comm_open("flat", opts);
    const int size = wf_comm_size(comm);
    wf_mesh *mesh =
        wf_mesh_open(comm, (wf_mesh_opts){.channel = size > 2 ? 2 : 1, .height = size > 2 ? size / 2 : size});
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_layer *net = net_new(ctx);
    WF_EXPECT_OK(wf_parallelize(net, mesh, WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL));
    wf_optim *optim = wf_mesh_multi_node(mesh, wf_adam(net, (wf_adam_opts){0}), (wf_multi_node_opts){0});
    if (opts.compute)
        WF_EXPECT_OK(wf_optim_scale_loss(optim, (wf_loss_scale_opts){.interval = 2}));
    loop(what, ctx, net, optim);
    wf_optim_free(optim);
    wf_layer_free(net);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void mesh_parallel(void)
{
    steady_on_mesh("by channels and pixels", (wf_ctx_opts){.device = "cpu", .threads = 1});
}

/* Rounded copies, casts and the scale of the loss cost no memory from the third step on; parallel layers too. */
static void mixed_precision(void)
{
    const char *device = test_device("cpu");
    steady_on_mesh("bf16", (wf_ctx_opts){.device = device, .threads = 1, .compute = WF_BF16});
    steady_on_mesh("f16", (wf_ctx_opts){.device = device, .threads = 1, .compute = WF_F16});
}

/* Both cells, two levels, lengths and a state that is handed on. */
static wf_var *recurrent_net(wf_layer *self, void *user, wf_var *x)
{
    const int32_t length[BATCH] = {3, 17, 1, 24, 0, 6};
    const wf_shape shape = wf_var_shape(x);
    wf_tensor *lengths = wf_tensor_from_host(wf_layer_ctx(self), WF_I32, WF_SHAPE(shape.dim[0]), length);
    wf_var *last;
    x = wf_reshape(x, WF_SHAPE(shape.dim[0], shape.dim[1] * shape.dim[2], shape.dim[3]));
    x = wf_recurrent(wf_layer_child(self, "lstm"), (wf_var *[]){x, wf_input(wf_var_tape(x), lengths)}, 2, &last);
    wf_tensor_free(lengths);
    x = wf_apply_n(wf_layer_child(self, "gru"), (wf_var *[]){x, last}, 2);
    return wf_apply(wf_layer_child(self, "last"), x);
}

static void recurrent(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    wf_layer *net = wf_module(ctx, recurrent_net, NULL);
    wf_module_add(net, "lstm", wf_lstm(ctx, (wf_recurrent_opts){.in = 8, .hidden = 5}));
    wf_module_add(net, "gru", wf_gru(ctx, (wf_recurrent_opts){.in = 5, .hidden = 5, .levels = 2, .dropout = 0.3}));
    wf_module_add(net, "last", wf_linear(ctx, (wf_linear_opts){.in = 24 * 5, .out = 5}));
    wf_optim *optim = wf_adam(net, (wf_adam_opts){0});
    loop("recurrent", ctx, net, optim);
    wf_optim_free(optim);
    wf_layer_free(net);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"local_cpu", local_cpu},
                                   {"local_ref", local_ref},
                                   {"recurrent", recurrent},
                                   {"multi_node", multi_node},
                                   {"buckets", buckets},
                                   {"cut_over_ranks", cut_over_ranks},
                                   {"double_buffering", double_buffering},
                                   {"sync_bn", sync_bn},
                                   {"channel_parallel", channel_parallel},
                                   {"mesh_parallel", mesh_parallel},
                                   {"mixed_precision", mixed_precision},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
