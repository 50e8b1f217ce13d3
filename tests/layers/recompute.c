/* Recomputation: steps of a model with recomputed segments are, bit for bit, those of the model that keeps everything,
 * on ranks and with parallel layers, dropout, noise, shared layers and values from outside; gradients are complete in
 * the same order and as early; memory falls as predicted; what cannot be recomputed is an error. */
#include "core/tape_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2, SAMPLES = 4, SIDE = 8, WIDTH = 4, MOST = 20000 };

static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
    wf_mesh *mesh;
    wf_dtype dtype;
} run;

static void open_run(const char *device, wf_dtype dtype)
{
    run.comm = test_comm_open(test_communicator("flat"),
                              (wf_ctx_opts){.device = test_device(device), .dtype = dtype, .threads = 1, .seed = 7});
    run.ctx = wf_comm_ctx(run.comm);
    run.tape = wf_tape_new(run.ctx);
    run.dtype = dtype;
    const int size = wf_comm_size(run.comm);
    run.mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.data = size == 4 ? 2 : 1, .height = size == 4 ? 2 : size});
    WF_EXPECT(run.tape && run.mesh, "%s", wf_error_trail());
}

static void close_run(void)
{
    wf_mesh_close(run.mesh);
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static wf_layer *conv(int64_t in, int64_t out)
{
    return wf_conv2d(run.ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 3, .pad = 1, .noise = 0.1});
}

static wf_layer *bn(void)
{
    return wf_batchnorm(run.ctx, (wf_batchnorm_opts){.channels = WIDTH, .act = WF_ACT_RELU, .noise = 0.05});
}

static wf_var *drop(wf_var *x)
{
    return wf_dropout(x, 0.3);
}

/* What a model keeps between its parts. */
typedef struct between {
    wf_var *skip;
} between;

/* `user`: a value from outside, added to the residual; NULL: none. A second input is added, too. */
static wf_var *block_forward(wf_layer *self, void *user, wf_var *const *x, int n)
{
    wf_var *y = wf_apply(wf_layer_child(self, "path"), x[0]);
    wf_var *residual = n > 1 ? wf_add(x[0], wf_tanh(x[1])) : x[0];
    return wf_apply_residual(wf_layer_child(self, "norm"), y,
                             user ? wf_add(((between *)user)->skip, residual) : residual);
}

static wf_layer *block(between *from)
{
    wf_layer *self = wf_module_n(run.ctx, 1, 2, block_forward, from);
    wf_module_add(
        self, "path",
        wf_sequential(run.ctx, WF_LAYERS(conv(WIDTH, WIDTH), bn(), wf_lambda(run.ctx, drop), conv(WIDTH, WIDTH))));
    wf_module_add(self, "norm", bn());
    return self;
}

/* The second block is applied twice, once to two inputs; the third adds what came out of the first layer. */
static wf_var *net_forward(wf_layer *self, void *user, wf_var *x)
{
    between *b = user;
    b->skip = wf_apply(wf_layer_child(self, "first"), x);
    wf_var *y = wf_apply(wf_layer_child(self, "a"), b->skip);
    y = wf_apply(wf_layer_child(self, "b"), y);
    y = wf_apply_n(wf_layer_child(self, "b"), WF_INPUTS(wf_tanh(y), b->skip));
    y = wf_apply(wf_layer_child(self, "c"), y);
    return wf_apply(wf_layer_child(self, "last"), wf_dropout(y, 0.1));
}

typedef enum marks { KEEPS, BLOCKS, WHOLE, NESTED, CHAINS, MODEL, MARKS } marks;
static const char *const mark_name[] = {"kept", "blocks", "whole", "nested", "chains", "model"};

static void mark(wf_layer *net, marks how)
{
    static const char *const blocks[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        wf_layer *one = wf_layer_child(net, blocks[i]);
        if (how == BLOCKS || how == NESTED)
            WF_EXPECT(wf_recompute(one) == one, "another layer");
        if (how == CHAINS || how == NESTED)
            WF_EXPECT(wf_recompute_chain(wf_layer_child(one, "path"), 3), "%s", wf_error_message());
    }
    if (how == WHOLE || how == NESTED)
        WF_EXPECT(wf_recompute(net) == net, "another layer");
    if (how == MODEL)
        WF_EXPECT(wf_recompute_model(net) == net, "another layer");
}

static wf_layer *net_new(between *b, marks how, bool spatial)
{
    wf_layer *net = wf_layer_named(wf_module(run.ctx, net_forward, b), "net");
    wf_module_add(net, "first", conv(2, WIDTH));
    wf_module_add(net, "a", block(NULL));
    wf_module_add(net, "b", block(NULL));
    wf_module_add(net, "c", block(b));
    wf_module_add(net, "last", conv(WIDTH, 1));
    mark(net, how);
    if (spatial)
        WF_EXPECT_OK(wf_parallelize(net, run.mesh, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN));
    else
        WF_EXPECT_OK(wf_to_sync_batchnorm(net, run.comm));
    return net;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static wf_tensor *image(int64_t channels, uint64_t seed)
{
    const int64_t n = SAMPLES * channels * SIDE * SIDE;
    double *host = malloc((size_t)n * sizeof *host);
    test_rng rng = {.state = seed};
    for (int64_t i = 0; i < n; i++)
        host[i] = channels == 1 ? (double)test_int(&rng, 0, 1) : test_uniform(&rng, -1, 1);
    wf_tensor *wide = wf_tensor_from_host(run.ctx, WF_F64, WF_SHAPE(SAMPLES, channels, SIDE, SIDE), host);
    wf_tensor *t = wf_tensor_copy(wide, run.dtype, WF_CHANNELS_LAST);
    wf_tensor_free(wide);
    free(host);
    return t;
}

/* This rank's part of it on the mesh; without one, all of it. */
static wf_tensor *local(wf_tensor *whole, bool spatial)
{
    wf_layout layout;
    if (!spatial)
        return whole;
    WF_EXPECT_OK(wf_mesh_layout_activation(run.mesh, wf_tensor_shape(whole), &layout));
    wf_tensor *view = wf_tensor_view(whole, layout.box);
    wf_tensor *part = wf_tensor_copy(view, run.dtype, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    wf_tensor_free(whole);
    return part;
}

/* Bits of all that a training leaves: losses, and after each step gradients, parameters, running statistics. */
typedef struct bits {
    unsigned char *at;
    size_t n, room;
} bits;

static void bits_add(bits *b, const void *more, size_t bytes)
{
    if (b->n + bytes > b->room) {
        b->room = 2 * (b->n + bytes);
        b->at = realloc(b->at, b->room);
    }
    memcpy(b->at + b->n, more, bytes);
    b->n += bytes;
}

static void bits_tensor(bits *b, const wf_tensor *t)
{
    const size_t bytes = t ? wf_tensor_bytes(t) : 0;
    void *host = malloc(bytes + 1);
    if (t)
        WF_EXPECT_OK(wf_tensor_export(t, host, bytes));
    bits_add(b, host, bytes);
    free(host);
}

static void bits_model(bits *b, wf_layer *net)
{
    int64_t n = 0;
    wf_param *const *params;
    WF_EXPECT_OK(wf_layer_params(net, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        bits_tensor(b, wf_param_value(params[i]));
        bits_tensor(b, wf_param_grad(params[i]));
    }
}

typedef struct training {
    bool spatial, buffers, parts;
    wf_dtype grad_dtype;
} training;

static wf_optim *optim_new(const training *t, wf_layer *net)
{
    const wf_multi_node_opts opts = {.bucket_bytes = 1500,
                                     .first_bucket_bytes = 400,
                                     .double_buffering = t->buffers,
                                     .grad_dtype = t->grad_dtype,
                                     .compare_every = 1};
    wf_optim *sgd = wf_sgd(net, (wf_sgd_opts){.lr = 0.05, .momentum = 0.9});
    sgd = t->spatial ? wf_mesh_multi_node(run.mesh, sgd, opts) : wf_multi_node(run.comm, sgd, opts);
    WF_EXPECT(sgd, "%s", wf_error_trail());
    return sgd;
}

static bits train(const training *t, marks how)
{
    bits b = {0};
    between links = {0};
    wf_layer *net = net_new(&links, how, t->spatial);
    wf_optim *optim = optim_new(t, net);
    WF_EXPECT_OK(wf_tape_set_iteration(run.tape, 0));
    for (int i = 0; i < STEPS * (t->parts ? 2 : 1); i++) {
        const uint64_t own = t->spatial ? 0 : (uint64_t)wf_comm_rank(run.comm);
        wf_tensor *x = local(image(2, 10 * (uint64_t)i + own), t->spatial);
        wf_tensor *mask = local(image(1, 1000 + 10 * (uint64_t)i + own), t->spatial);
        wf_var *loss = wf_bce_logits(wf_apply(net, wf_input(run.tape, x)), mask);
        WF_EXPECT_OK(t->parts && i % 2 == 0 ? wf_optim_accumulate(optim, loss) : wf_optim_step(optim, loss));
        const double value = wf_item(loss);
        bits_add(&b, &value, sizeof value);
        bits_model(&b, net);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_tensor_free(x);
        wf_tensor_free(mask);
    }
    wf_optim_free(optim);
    wf_layer_free(net);
    return b;
}

/* compute: as wf_ctx_set_compute has it, where f32 stands for the context's own type. */
static void equal_steps(const char *device, wf_dtype dtype, wf_dtype compute)
{
    static const training all[] = {{.spatial = true}, {0}, {.buffers = true}, {.parts = true}, {.grad_dtype = WF_BF16}};
    open_run(device, dtype);
    WF_EXPECT_OK(wf_ctx_set_compute(run.ctx, compute));
    for (size_t t = 0; t < sizeof all / sizeof *all; t++) {
        if (dtype == WF_F64 && all[t].grad_dtype)
            continue;
        bits kept = train(&all[t], KEEPS);
        for (marks how = BLOCKS; how < MARKS; how++) {
            bits b = train(&all[t], how);
            size_t at = 0;
            while (at < b.n && at < kept.n && b.at[at] == kept.at[at])
                at++;
            WF_EXPECT(b.n == kept.n && at == b.n && b.n > 0, "training %zu on %s, %s: byte %zu of %zu differs", t,
                      device, mark_name[how], at, kept.n);
            free(b.at);
        }
        free(kept.at);
    }
    close_run();
}

static void f64_ref(void)
{
    equal_steps("ref", WF_F64, WF_F32);
}

static void f32_cpu(void)
{
    equal_steps("cpu", WF_F32, WF_F32);
}

static void bf16_cpu(void)
{
    equal_steps("cpu", WF_F32, WF_BF16);
}

/* --- the order of gradients --------------------------------------------------------------------------------------- */

typedef struct order {
    char planned[MOST], came[MOST];
} order;

static order *listens;

static void append(char *text, const char *more)
{
    const size_t used = strlen(text);
    snprintf(text + used, MOST - used, "%s ", more);
}

static wf_status plan(void *user, int64_t n, wf_param *const *params)
{
    for (int64_t i = 0; i < n; i++)
        append(((order *)user)->planned, wf_param_path(params[i]));
    return WF_OK;
}

static wf_status ready(void *user, wf_param *param)
{
    append(((order *)user)->came, wf_param_path(param));
    return WF_OK;
}

/* Says when backward passes it. */
static wf_status mark_backward(wf_node *node)
{
    append(listens->came, "|");
    return wf_node_give(node, 0, wf_tensor_alias(wf_node_dy(node)), true);
}

static wf_var *mark_place(wf_var *x)
{
    static const wf_op op = {.name = "place", .backward = mark_backward};
    return wf_tape_record(wf_var_tape(x), &(wf_node_spec){.op = &op, .n_in = 1, .in = &x}, wf_keep(x));
}

static void ordered(void)
{
    static order o[MARKS];
    memset(o, 0, sizeof o);
    open_run("ref", WF_F64);
    for (marks how = KEEPS; how < MARKS; how++) {
        between b = {0};
        wf_layer *net = net_new(&b, how, false), *path = wf_layer_child(wf_layer_child(net, "b"), "path");
        WF_EXPECT(wf_module_add(path, "place", wf_lambda(run.ctx, mark_place)), "%s", wf_error_message());
        wf_tensor *x = image(2, 1);
        wf_var *loss = wf_sum(wf_apply(net, wf_input(run.tape, x)));
        listens = &o[how];
        WF_EXPECT_OK(wf_backward_run(loss, NULL, &(wf_backward_opts){.plan = plan, .ready = ready, .user = listens}));
        WF_EXPECT(strcmp(o[how].planned, o[KEEPS].planned) == 0, "%s: planned %s, should be %s", mark_name[how],
                  o[how].planned, o[KEEPS].planned);
        WF_EXPECT(strcmp(o[how].came, o[KEEPS].came) == 0, "%s: came %s, should be %s", mark_name[how], o[how].came,
                  o[KEEPS].came);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_tensor_free(x);
        wf_layer_free(net);
    }
    WF_EXPECT(strchr(o[KEEPS].came, '|'), "the place was not passed");
    close_run();
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 36, CHANNELS = 8, BIG = 64 };

static wf_layer *deep(int segments)
{
    wf_layer *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = wf_conv2d(run.ctx, (wf_conv_opts){.in = CHANNELS, .out = CHANNELS, .kernel = 3, .pad = 1});
    return wf_recompute_chain(wf_sequential(run.ctx, LAYERS, layers), segments);
}

/* The most that a step has in use beyond what was in use before, in outputs of a layer. A context of its own, since a
 * peak stays. */
static double peak(int segments)
{
    open_run("cpu", WF_F32);
    const int64_t n = (int64_t)2 * CHANNELS * BIG * BIG;
    wf_layer *model = deep(segments);
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(2, CHANNELS, BIG, BIG));
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    const size_t before = wf_ctx_memory(run.ctx).bytes_in_use;
    WF_EXPECT_OK(wf_backward(wf_sum(wf_apply(model, wf_input(run.tape, x)))));
    const double most = (double)(wf_ctx_memory(run.ctx).bytes_peak - before) / (double)(n * 4);
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_layer_free(model);
    close_run();
    return most;
}

static void memory(void)
{
    /* 36 outputs, and of 6 segments 5 outputs, and all 6 of one of them; both with few gradients and workspaces. */
    const double kept = peak(1), six = peak(0), twelve = peak(12);
    WF_EXPECT(kept >= LAYERS && kept <= LAYERS + 6, "36 layers keep %.2f outputs", kept);
    WF_EXPECT(six >= 6 + 5 && six <= 6 + 5 + 6, "6 segments of 6 layers keep %.2f outputs", six);
    WF_EXPECT(twelve >= 3 + 11 && twelve <= 3 + 11 + 6, "12 segments of 3 layers keep %.2f outputs", twelve);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

static int times;

static wf_var *drops_once(wf_var *x)
{
    return times++ == 0 ? wf_dropout(x, 0.5) : x;
}

static wf_var *other_shape(wf_var *x)
{
    return times++ == 0 ? x : wf_reshape(x, WF_SHAPE(2, 2));
}

static wf_var *shifted(wf_var *x)
{
    return wf_add(x, wf_leaf(wf_var_tape(x), wf_value(x)));
}

static wf_var *to_the_next(wf_var *x)
{
    return wf_send_var(run.comm, x, (wf_comm_rank(run.comm) + 1) % wf_comm_size(run.comm), 3);
}

static void expect_failure(wf_layer *segment, bool forward, wf_status code, const char *word)
{
    times = 0;
    wf_tensor *x = wf_tensor_new(run.ctx, run.dtype, WF_SHAPE(4));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_var *y = wf_apply(wf_recompute(segment), wf_leaf(run.tape, x));
    WF_EXPECT(!y == forward, "%s: in forward, it is %d", word, !y);
    const wf_status status = wf_backward(wf_sum(y));
    WF_EXPECT(status == code && strstr(wf_error_message(), word), "%s: %s: %s", word, wf_status_name(status),
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_layer_free(segment);
}

static void changed_parameter(void)
{
    wf_layer *layer = wf_recompute(wf_linear(run.ctx, (wf_linear_opts){.in = 4, .out = 1}));
    wf_tensor *x = wf_tensor_new(run.ctx, run.dtype, WF_SHAPE(1, 4));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_var *y = wf_apply(layer, wf_input(run.tape, x));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(wf_layer_param(layer, "W")), 2));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(wf_sum(y)));
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

static wf_var *left_inside;

static wf_var *leaves_one(wf_var *x)
{
    left_inside = wf_tanh(x);
    return wf_tanh(left_inside);
}

static void only_the_output_leaves(void)
{
    wf_layer *layer = wf_recompute(wf_lambda(run.ctx, leaves_one));
    wf_tensor *x = wf_tensor_new(run.ctx, run.dtype, WF_SHAPE(4));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT(wf_value(wf_apply(layer, wf_leaf(run.tape, x))), "%s", wf_error_message());
    WF_EXPECT(!wf_value(left_inside) && wf_error_code() == WF_ERR_STATE, "what was left inside is there");
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_set_mode(run.tape, WF_EVAL));
    WF_EXPECT(wf_apply(layer, wf_input(run.tape, x)) && wf_value(left_inside), "in evaluation: %s", wf_error_message());
    WF_EXPECT_OK(wf_tape_set_mode(run.tape, WF_TRAIN));
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

static void errors(void)
{
    open_run("ref", WF_F64);
    expect_failure(wf_lambda(run.ctx, drops_once), false, WF_ERR_STATE, "drew random numbers 1 times");
    expect_failure(wf_sequential(run.ctx, WF_LAYERS(wf_lambda(run.ctx, wf_tanh), wf_lambda(run.ctx, other_shape))),
                   false, WF_ERR_STATE, "[2,2]");
    expect_failure(wf_lambda(run.ctx, shifted), true, WF_ERR_UNSUPPORTED, "wf_leaf");
    changed_parameter();
    only_the_output_leaves();
    WF_EXPECT(!wf_recompute_chain(wf_lambda(run.ctx, wf_tanh), 2) && wf_error_code() == WF_ERR_ARGUMENT, "a chain");
    wf_error_clear();
    WF_EXPECT(!wf_recompute_chain(wf_sequential(run.ctx, 0, NULL), -1) && wf_error_code() == WF_ERR_ARGUMENT, "-1");
    wf_error_clear();
    WF_EXPECT(!wf_recompute(NULL) && !wf_recompute_chain(NULL, 2) && !wf_recompute_model(NULL), "NULL does not pass");
    close_run();
}

/* MPI's own barrier: a rank that is still in a call of Weft's when another one fails would get that failure there. */
static void await_all(void)
{
    MPI_Comm mpi;
    WF_EXPECT_OK(wf_comm_mpi(run.comm, &mpi));
    MPI_Barrier(mpi);
    MPI_Comm_free(&mpi);
}

/* Ranks whose models differ in their segments are found before a step; and a message inside of a segment. Both end the
 * communicator. */
static void ranks_differ(void)
{
    open_run("ref", WF_F64);
    between b = {0};
    wf_layer *net = net_new(&b, wf_comm_rank(run.comm) == 0 ? BLOCKS : CHAINS, false);
    wf_optim *optim = wf_multi_node(run.comm, wf_sgd(net, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    const bool alone = wf_comm_size(run.comm) == 1;
    WF_EXPECT(alone ? optim != NULL : !optim && strstr(wf_error_message(), "recomputed in"), "%s", wf_error_message());
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(net);
    close_run();
    if (alone)
        return;
    open_run("ref", WF_F64);
    await_all();
    const int64_t before = wf_comm_traffic(run.comm).messages;
    expect_failure(wf_lambda(run.ctx, to_the_next), true, WF_ERR_UNSUPPORTED, "the other rank would not");
    const int64_t sent = wf_comm_traffic(run.comm).messages - before;
    WF_EXPECT(sent == 0, "%lld messages were sent before the refusal", (long long)sent);
    close_run();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"f64_ref", f64_ref},
                                   {"f32_cpu", f32_cpu},
                                   {"bf16_cpu", bf16_cpu},
                                   {"ordered", ordered},
                                   {"memory", memory},
                                   {"errors", errors},
                                   {"ranks_differ", ranks_differ},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
