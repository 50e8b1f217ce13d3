/* What training leaves, as a number that tells every bit: tests/optim/same_bits.sh compares that of two runs. f32 on
 * `cpu`. Ranks take naps at random, so that what several of them add to one place comes in another order each time. */
#include "examples/models/unet.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/optim.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 4, CHAIN = 4, CHANNELS = 8, NAP_US = 200 };

static wf_comm *comm;
static wf_ctx *ctx;

/* --- naps ----------------------------------------------------------------------------------------------------------
 */

static const wf_kernels *awake;
static test_rng naps;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000 * test_int(&naps, 0, NAP_US)}, NULL);
}

static wf_status conv_forward(wf_ctx *c, const wf_conv_args *args)
{
    nap();
    return awake->conv_forward(c, args);
}

static wf_status conv_backward_data(wf_ctx *c, const wf_conv_args *args)
{
    nap();
    return awake->conv_backward_data(c, args);
}

static wf_status conv_backward_filter(wf_ctx *c, const wf_conv_args *args)
{
    nap();
    return awake->conv_backward_filter(c, args);
}

/* --- models --------------------------------------------------------------------------------------------------------
 */

static void add_bits(uint64_t *hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        *hash = (*hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
}

/* Prints a hash of all parameters of all ranks. */
static void print_bits(const char *name, wf_layer *model)
{
    uint64_t mine = 0xcbf29ce484222325, all[64];
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        const wf_tensor *value = wf_param_value(params[i]);
        const size_t bytes = wf_tensor_bytes(value);
        void *host = malloc(bytes + 1);
        WF_EXPECT_OK(wf_tensor_export(value, host, bytes));
        add_bits(&mine, host, bytes);
        free(host);
    }
    WF_EXPECT_OK(wf_allgather_bytes(comm, &mine, sizeof mine, all));
    mine = 0xcbf29ce484222325;
    add_bits(&mine, all, (size_t)wf_comm_size(comm) * sizeof *all);
    if (wf_comm_rank(comm) == 0)
        printf("%s %016llx\n", name, (unsigned long long)mine);
}

/* Takes the model. */
static void train(const char *name, const wf_mesh *mesh, wf_layer *model, wf_shape shape)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_optim *optim =
        wf_mesh_multi_node(mesh, wf_sgd(model, (wf_sgd_opts){.lr = 0.05, .momentum = 0.9}), (wf_multi_node_opts){0});
    for (int i = 0; i < STEPS; i++) {
        wf_var *x = wf_rand_uniform(tape, shape, -1, 1, NULL);
        x = wf_shard(x, mesh);
        wf_var *y = wf_apply(model, x);
        y = wf_dropout(y, 0.25);
        WF_EXPECT_OK(wf_optim_step(optim, wf_mean(wf_mul(y, y))));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    print_bits(name, model);
    wf_optim_free(optim);
    wf_tape_free(tape);
    wf_layer_free(model);
}

static void whole_model(const char *name, wf_mesh_opts grid)
{
    wf_mesh *mesh = wf_mesh_open(comm, grid);
    wf_layer *model = unet(ctx, (unet_opts){.width = CHANNELS, .levels = 2, .classes = 3});
    WF_EXPECT_OK(wf_parallelize(model, mesh, WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN));
    train(name, mesh, model, WF_SHAPE(3, 3, 32, 36));
    wf_mesh_close(mesh);
}

/* How deep it goes is not measured. */
static void chain(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = wf_comm_size(comm)});
    wf_layer *layers[CHAIN];
    for (int i = 0; i < CHAIN; i++)
        layers[i] = wf_spatial_conv2d(
            mesh,
            (wf_conv_opts){.in = i ? CHANNELS : 3, .out = CHANNELS, .kernel = 3, .pad = 1, .act = WF_ACT_LEAKY_RELU});
    train("chain", mesh, wf_spatial_chain(mesh, (wf_spatial_chain_opts){0}, CHAIN, layers), WF_SHAPE(2, 3, 32, 28));
    wf_mesh_close(mesh);
}

static void every(void)
{
    comm = wf_comm_open(NULL, NULL, "auto", (wf_ctx_opts){.device = "cpu", .seed = 7});
    WF_EXPECT(comm, "no communicator: %s", wf_error_message());
    ctx = wf_comm_ctx(comm);
    const wf_kernels *const own = ctx->k;
    const int size = wf_comm_size(comm);
    wf_kernels tired = *own;
    naps.state = (uint64_t)getpid() ^ (uint64_t)time(NULL) << 24;
    awake = own;
    tired.conv_forward = conv_forward;
    tired.conv_backward_data = conv_backward_data;
    tired.conv_backward_filter = conv_backward_filter;
    ctx->k = &tired;
    whole_model("U-Net", (wf_mesh_opts){.channel = size > 1 ? 2 : 1, .height = size > 3 ? 2 : 1});
    whole_model("channels", (wf_mesh_opts){.channel = size});
    chain();
    ctx->k = own;
    WF_EXPECT_OK(wf_comm_close(comm));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"every", every}, {0}});
}
