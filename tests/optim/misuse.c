/* Models and inputs that do not fit a mesh: the same error on all ranks, before anything hangs, that says what to do.
 */
#include "comm/mesh_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <string.h>

static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
    int rank, size;
} run;

static void open_run(void)
{
    run.comm = test_comm_open("flat", (wf_ctx_opts){.device = "ref", .threads = 1});
    WF_EXPECT(run.comm, "%s", wf_error_trail());
    run.ctx = wf_comm_ctx(run.comm);
    run.tape = wf_tape_new(run.ctx);
    run.rank = wf_comm_rank(run.comm);
    run.size = wf_comm_size(run.comm);
}

/* The communicator may have died of the misuse. */
static void close_run(void)
{
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
    wf_error_clear();
}

/* NULL, this code, one line with these two texts. */
static void refused(const char *what, const void *made, wf_status code, const char *first, const char *second)
{
    const char *says = wf_error_message();
    WF_EXPECT(!made && wf_error_code() == code, "%s on rank %d: %s, %s; should be %s", what, run.rank,
              made ? "works" : wf_status_name(wf_error_code()), says, wf_status_name(code));
    WF_EXPECT(strstr(says, first) && strstr(says, second) && !strchr(says, '\n'),
              "%s on rank %d: \"%s\" does not say \"%s\" and \"%s\"", what, run.rank, says, first, second);
    wf_error_clear();
}

/* The last rank makes its layers with other options than the rest. */

typedef wf_layer *(*maker)(const wf_mesh *mesh, bool other);

static wf_layer *strides(const wf_mesh *mesh, bool other)
{
    return wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 4, .out = 4, .kernel = 3, .stride = other ? 2 : 1});
}

static wf_layer *pads(const wf_mesh *mesh, bool other)
{
    return wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 4, .out = 4, .kernel = 3, .pad = other ? 2 : 1});
}

static wf_layer *dilations(const wf_mesh *mesh, bool other)
{
    return wf_spatial_conv_transpose3d(mesh, (wf_conv_opts){.in = 2, .out = 2, .kernel = 3, .dilation = 1 + other});
}

static wf_layer *activations(const wf_mesh *mesh, bool other)
{
    return wf_conv2d(wf_comm_ctx(wf_mesh_world(mesh)),
                     (wf_conv_opts){.in = 4, .out = 4, .kernel = 3, .act = other ? WF_ACT_RELU : WF_ACT_NONE});
}

static wf_layer *kernels(const wf_mesh *mesh, bool other)
{
    return wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 4, .out = 4, .kernel = other ? 5 : 3});
}

static wf_layer *windows(const wf_mesh *mesh, bool other)
{
    return wf_spatial_max_pool2d(mesh, (wf_pool_opts){.kernel = other ? 3 : 2});
}

static wf_layer *scales(const wf_mesh *mesh, bool other)
{
    return wf_spatial_upsample2d(mesh, (wf_upsample_opts){.scale = other ? 3 : 2});
}

static wf_layer *sizes(const wf_mesh *mesh, bool other)
{
    return wf_spatial_resize(mesh, (wf_resize_opts){.size = {other ? 5 : 4, 4}});
}

static wf_layer *replicates(const wf_mesh *mesh, bool other)
{
    return wf_channel_linear(mesh, (wf_linear_opts){.in = 8, .out = 8, .replicate = other});
}

static wf_layer *forms(const wf_mesh *mesh, bool other)
{
    return wf_channel_conv2d(mesh, (wf_conv_opts){.in = 8,
                                                  .out = 8,
                                                  .kernel = 1,
                                                  .no_bias = true,
                                                  .groups = 8,
                                                  .form = other ? WF_FORM_FILTER : WF_FORM_AUTO});
}

static wf_layer *strides_on_meshes(const wf_mesh *mesh, bool other)
{
    return wf_mesh_conv2d(mesh, (wf_conv_opts){.in = 8, .out = 8, .kernel = 3, .stride = other ? 2 : 1});
}

static wf_layer *depths(const wf_mesh *mesh, bool other)
{
    wf_layer *conv = wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 4, .out = 4, .kernel = 3});
    return wf_spatial_chain(mesh, (wf_spatial_chain_opts){.depth = other}, 1, &conv);
}

static wf_layer *decays(const wf_mesh *mesh, bool other)
{
    return wf_sync_batchnorm(wf_mesh_world(mesh), (wf_batchnorm_opts){.channels = 4, .decay = other ? 0.5 : 0});
}

static wf_layer *biases(const wf_mesh *mesh, bool other)
{
    return wf_linear(wf_comm_ctx(wf_mesh_world(mesh)), (wf_linear_opts){.in = 4, .out = 4, .no_bias = other});
}

static wf_layer *kinds(const wf_mesh *mesh, bool other)
{
    return wf_lambda(wf_comm_ctx(wf_mesh_world(mesh)), other ? wf_relu : wf_tanh);
}

static void other_options(void)
{
    static const struct {
        const char *what;
        maker make;
        bool channel;
        const char *first, *second;
    } cases[] = {
        {"strides", strides, false, "stride 1", "stride 2"},
        {"pads", pads, false, "pads 1 and 1", "pads 2 and 2"},
        {"dilations", dilations, false, "dilation 1", "dilation 2"},
        {"activations", activations, false, "act 0", "act 1"},
        {"kernels", kernels, false, "[4,4,3,3]", "[4,4,5,5]"},
        {"windows", windows, false, "kernel 2", "kernel 3"},
        {"scales", scales, false, "by 2, 2", "by 3, 3"},
        {"sizes", sizes, false, "4 or 0", "5 or 0"},
        {"replicates", replicates, true, "replicate 0", "replicate 1"},
        {"forms", forms, true, "form 0", "form 1"},
        {"strides on meshes", strides_on_meshes, true, "stride 1", "stride 2"},
        {"depths", depths, false, "depth 0", "depth 1"},
        {"decays", decays, false, "decay 0.9", "decay 0.5"},
        {"biases", biases, false, "0/b [4]", "on rank 0"},
    };
    open_run();
    wf_mesh *rows = wf_mesh_open(run.comm, (wf_mesh_opts){.height = run.size});
    wf_mesh *channels = wf_mesh_open(run.comm, (wf_mesh_opts){.channel = run.size});
    for (size_t i = 0; i < sizeof cases / sizeof *cases && run.size > 1; i++) {
        const wf_mesh *mesh = cases[i].channel ? channels : rows;
        wf_layer *layer = cases[i].make(mesh, run.rank == run.size - 1);
        wf_layer *model = wf_sequential(run.ctx, WF_LAYERS(layer, kinds(mesh, false)));
        WF_EXPECT(model, "%s: %s", cases[i].what, wf_error_message());
        wf_optim *optim = wf_mesh_multi_node(mesh, wf_sgd(model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0});
        refused(cases[i].what, optim, WF_ERR_COMM, cases[i].first, cases[i].second);
        wf_layer_free(model);
        WF_EXPECT_OK(wf_barrier(run.comm)); /* it lives on */
    }
    wf_mesh_close(rows);
    wf_mesh_close(channels);
    close_run();
}

/* The axes over which a gradient is summed have names. */
static void readable(void)
{
    open_run();
    wf_mesh *mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.height = run.size});
    const wf_conv_opts o = {.in = 2, .out = 2, .kernel = 3};
    wf_layer *layer = run.rank == 0 ? wf_spatial_conv2d(mesh, o) : wf_conv2d(run.ctx, o);
    layer->options[0] = '\0';
    wf_optim *optim = wf_mesh_multi_node(mesh, wf_sgd(layer, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0});
    if (run.size > 1)
        refused("axes", optim, WF_ERR_COMM, "spatial_conv", "the same options on all ranks");
    wf_optim_free(optim);
    wf_layer_free(layer);
    wf_mesh_close(mesh);
    close_run();
}

/* An input that is cut where a serial layer needs the whole. */

static wf_layer *serial_conv(wf_ctx *ctx)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = 8, .out = 2, .kernel = 3, .pad = 1});
}

static wf_layer *serial_transposed(wf_ctx *ctx)
{
    return wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 8, .out = 2, .kernel = 2, .stride = 2});
}

static wf_layer *serial_pool(wf_ctx *ctx)
{
    return wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 3, .stride = 1, .pad = 1});
}

static wf_layer *serial_adaptive(wf_ctx *ctx)
{
    return wf_adaptive_max_pool(ctx, WF_SHAPE(3, 3));
}

static wf_var *unpool_zeros(wf_var *x)
{
    return wf_max_unpool(x, wf_cast(wf_scale(x, 0), WF_I64), (wf_pool_opts){.kernel = 2}, (wf_shape){0});
}

static wf_layer *unpool(wf_ctx *ctx)
{
    return wf_lambda(ctx, unpool_zeros);
}

static wf_layer *serial_average(wf_ctx *ctx)
{
    return wf_global_avg_pool(ctx);
}

static wf_layer *serial_upsample(wf_ctx *ctx)
{
    return wf_upsample2d(ctx, (wf_upsample_opts){.mode = WF_UPSAMPLE_LINEAR});
}

static wf_layer *serial_resize(wf_ctx *ctx)
{
    return wf_resize(ctx, (wf_resize_opts){.size = {5, 11}, .mode = WF_RESIZE_CUBIC});
}

static wf_layer *serial_linear(wf_ctx *ctx)
{
    return wf_linear(ctx, (wf_linear_opts){.in = 8 * 8 * 8, .out = 2});
}

static wf_layer *serial_norm(wf_ctx *ctx)
{
    return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8});
}

static wf_layer *flatten(wf_ctx *ctx)
{
    return wf_lambda(ctx, wf_flatten);
}

static wf_layer *softmax(wf_ctx *ctx)
{
    return wf_lambda(ctx, wf_softmax);
}

static wf_var *with_itself(wf_var *x)
{
    return wf_concat(2, (wf_var *[]){x, x}, 1);
}

static wf_layer *concat(wf_ctx *ctx)
{
    return wf_lambda(ctx, with_itself);
}

enum { ROWS = 1, CHANNELS = 2 };

static void cut_inputs(void)
{
    static const struct {
        const char *what;
        wf_layer *(*make)(wf_ctx *ctx);
        int refuses; /* inputs cut like this */
    } cases[] = {
        {"conv", serial_conv, ROWS | CHANNELS},
        {"conv_transpose", serial_transposed, ROWS | CHANNELS},
        {"max_pool", serial_pool, ROWS},
        {"adaptive_max_pool", serial_adaptive, ROWS},
        {"max_unpool", unpool, ROWS},
        {"global_avg_pool", serial_average, ROWS},
        {"upsample", serial_upsample, ROWS},
        {"resize", serial_resize, ROWS},
        {"linear", serial_linear, ROWS | CHANNELS},
        {"batchnorm", serial_norm, ROWS | CHANNELS},
        {"flatten", flatten, ROWS},
        {"softmax", softmax, CHANNELS},
        {"concat", concat, CHANNELS},
    };
    open_run();
    for (int how = ROWS; how <= CHANNELS && run.size > 1; how++) {
        wf_mesh *mesh = wf_mesh_open(run.comm, how == ROWS ? (wf_mesh_opts){.height = run.size}
                                                           : (wf_mesh_opts){.channel = run.size});
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (!(cases[i].refuses & how))
                continue;
            wf_layer *layer = cases[i].make(run.ctx);
            wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(2, 8, 8, 8));
            WF_EXPECT_OK(wf_tensor_fill(x, 1));
            wf_var *cut = wf_shard(wf_input(run.tape, x), mesh);
            WF_EXPECT(cut, "%s", wf_error_message());
            refused(cases[i].what, wf_apply(layer, cut), WF_ERR_SHAPE, cases[i].what, "wf_");
            WF_EXPECT_OK(wf_tape_reset(run.tape));
            wf_tensor_free(x);
            wf_layer_free(layer);
        }
        wf_mesh_close(mesh);
    }
    close_run();
}

/* One rank gives a layer that shares channels an input that does not fit: no rank waits for it. */
static void one_wrong_input(void)
{
    open_run();
    for (int what = 0; what < 2; what++) {
        wf_comm *comm = wf_comm_split(run.comm, 0, 0);
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = run.size});
        wf_layer *layer =
            what ? wf_channel_linear(mesh, (wf_linear_opts){.in = 8, .out = 8, .form = WF_FORM_CHANNEL})
                 : wf_channel_conv2d(mesh, (wf_conv_opts){.in = 8, .out = 8, .kernel = 1, .form = WF_FORM_CHANNEL});
        const int64_t features = run.rank == run.size - 1 ? 7 : 8;
        wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, what ? WF_SHAPE(2, features) : WF_SHAPE(2, features, 3, 3));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        refused(what ? "linear" : "conv", wf_apply(layer, wf_input(run.tape, x)), WF_ERR_SHAPE, "[2,7", "8]");
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_tensor_free(x);
        wf_layer_free(layer);
        wf_mesh_close(mesh);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
    close_run();
}

static void chain_of_nothing(void)
{
    open_run();
    refused("chain", wf_spatial_chain(wf_comm_mesh(run.comm), (wf_spatial_chain_opts){0}, 1, NULL), WF_ERR_ARGUMENT,
            "wf_spatial_chain", "1 at NULL");
    close_run();
}

/* More ranks than channels. */
static void few_channels(void)
{
    open_run();
    wf_mesh *mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.channel = run.size});
    wf_layer *model =
        wf_sequential(run.ctx, WF_LAYERS(wf_conv2d(run.ctx, (wf_conv_opts){.in = 1, .out = 1, .kernel = 3, .pad = 1})));
    const wf_status status = wf_parallelize(model, mesh, WF_PARALLEL_CHANNEL);
    if (run.size > 1)
        refused("channels", status == WF_OK ? model : NULL, WF_ERR_ARGUMENT, "1", "ranks");
    wf_layer_free(model);
    wf_mesh_close(mesh);
    close_run();
}

/* Numbers for the samples of a variable, of which the last rank has all, under a shape that is right there alone. */
static void wrong_length(void)
{
    open_run();
    const int64_t lo = run.rank == run.size - 1 ? 0 : 3;
    const wf_shape global = WF_SHAPE(3, 2);
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(run.rank == run.size - 1 ? 3 : 0, 2));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(
        wf_tensor_set_layout(x, wf_layout_batch(wf_comm_mesh(run.comm), global, run.rank == run.size - 1 ? lo : 0,
                                                run.rank == run.size - 1 ? 3 : 0)));
    wf_var *like = wf_input(run.tape, x);
    wf_var *noise = wf_randn(run.tape, WF_SHAPE(3, 5), like);
    if (run.size == 1) {
        WF_EXPECT(noise, "%s", wf_error_message());
    } else {
        /* The last rank learns of it in its next collective at the latest. */
        const wf_status status = noise ? wf_barrier(run.comm) : wf_error_code();
        WF_EXPECT(status == WF_ERR_SHAPE && strstr(wf_error_message(), "the 0 samples that this rank has"),
                  "rank %d: %s", run.rank, wf_error_message());
    }
    wf_error_clear();
    wf_tensor_free(x);
    close_run();
}

/* What no layer can start from. */
static void initialisers(void)
{
    const wf_init bad = {(wf_init_kind)99, 0, 0};
    open_run();
    wf_mesh *mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.channel = run.size});
    refused("conv", wf_conv2d(run.ctx, (wf_conv_opts){.in = 1, .out = 1, .kernel = 1, .w_init = bad}), WF_ERR_ARGUMENT,
            "99", "\"W\"");
    refused("linear", wf_linear(run.ctx, (wf_linear_opts){.in = 1, .out = 1, .b_init = bad}), WF_ERR_ARGUMENT, "99",
            "\"b\"");
    refused("batchnorm", wf_batchnorm(run.ctx, (wf_batchnorm_opts){.channels = 1, .gamma_init = bad}), WF_ERR_ARGUMENT,
            "99", "\"gamma\"");
    refused("channel_conv", wf_channel_conv2d(mesh, (wf_conv_opts){.in = 8, .out = 8, .kernel = 1, .w_init = bad}),
            WF_ERR_ARGUMENT, "99", "wf_init_kind");
    refused("channel_linear", wf_channel_linear(mesh, (wf_linear_opts){.in = 8, .out = 8, .b_init = bad}),
            WF_ERR_ARGUMENT, "99", "wf_init_kind");
    wf_mesh_close(mesh);
    close_run();
}

/* Children of layers that would never apply them. */
static void leaves(void)
{
    open_run();
    wf_layer *leaf = wf_linear(run.ctx, (wf_linear_opts){.in = 2, .out = 2});
    refused("linear", wf_module_add(leaf, "inner", wf_lambda(run.ctx, wf_relu)), WF_ERR_ARGUMENT, "linear",
            "wf_sequential");
    wf_layer *chain = wf_sequential(run.ctx, WF_LAYERS(leaf));
    WF_EXPECT(wf_module_add(chain, "more", wf_lambda(run.ctx, wf_relu)), "%s", wf_error_message());
    wf_layer_free(chain);
    close_run();
}

/* The last rank makes batches one sample larger, as if the others did too. */
static void other_batches(void)
{
    open_run();
    const bool last = run.rank == run.size - 1;
    const int64_t own = 2 + last, lo = run.rank * own, global = run.size * own;
    wf_layer *layer = wf_linear(run.ctx, (wf_linear_opts){.in = 4, .out = 2});
    wf_optim *optim = wf_multi_node(run.comm, wf_sgd(layer, (wf_sgd_opts){0}), (wf_multi_node_opts){0});
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(own, 4));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(wf_comm_mesh(run.comm), WF_SHAPE(global, 4), lo, lo + own)));
    const wf_status status = wf_optim_step(optim, wf_mean(wf_apply(layer, wf_input(run.tape, x))));
    WF_EXPECT(status == (run.size == 1 ? WF_OK : WF_ERR_COMM), "%s: %s", wf_status_name(status), wf_error_message());
    WF_EXPECT(run.size == 1 || strstr(wf_error_message(), "different numbers of samples"), "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_optim_free(optim);
    wf_layer_free(layer);
    close_run();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"other_options", other_options},
                                   {"readable", readable},
                                   {"cut_inputs", cut_inputs},
                                   {"one_wrong_input", one_wrong_input},
                                   {"chain_of_nothing", chain_of_nothing},
                                   {"few_channels", few_channels},
                                   {"wrong_length", wrong_length},
                                   {"initialisers", initialisers},
                                   {"leaves", leaves},
                                   {"other_batches", other_batches},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
