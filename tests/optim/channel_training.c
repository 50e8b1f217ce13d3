/* Training with channel-parallel layers and wf_mesh_multi_node: steps on a mesh of data x channel give the loss and the
 * parameters of the same steps on one rank with the whole batch. */
#include "comm/comm_author.h"
#include "layers/loss.h"
#include "layers/spatial.h"
#include "optim/multi_node.h"
#include "tests/layers/channel_fixture.h"
#include "tests/world.h"

#include <string.h>

enum { STEPS = 5, N = 6, IN = 3, SIDE = 6, CLASSES = 5, PIXELS = IN * SIDE * SIDE };

typedef enum task { LABELS = 0, SQUARES, TASKS } task;

typedef struct trainer {
    fixture b;
    task task;
    wf_layer *mine, *serial;
    wf_optim *optim, *reference;
    int64_t lo, hi; /* samples here */
    double *x;
    int64_t label[N];
} trainer;

static const wf_conv_opts first = {.in = IN, .out = 10, .kernel = 3, .pad = 1, .form = WF_FORM_FILTER, .no_bias = true};
static const wf_batchnorm_opts norm = {.channels = 10, .act = WF_ACT_RELU};
static const wf_conv_opts second = {
    .in = 10, .out = 7, .kernel = 2, .stride = 2, .form = WF_FORM_CHANNEL, .b_init = {WF_INIT_UNIFORM, -1, 1}};
static const wf_linear_opts last = {.in = 7 * 9, .out = CLASSES, .form = WF_FORM_CHANNEL, .replicate = true};

static wf_layer *parallel_new(const fixture *b, task what)
{
    wf_layer *one = wf_channel_conv2d(b->mesh, first), *two = wf_channel_sync_batchnorm(b->mesh, norm);
    wf_layer *three = wf_channel_conv2d(b->mesh, second);
    if (what == SQUARES)
        return wf_sequential(b->ctx, WF_LAYERS(one, two, three));
    return wf_sequential(b->ctx,
                         WF_LAYERS(one, two, three, wf_lambda(b->ctx, wf_tanh), wf_channel_linear(b->mesh, last)));
}

static wf_layer *serial_new(const fixture *b, task what)
{
    wf_layer *one = wf_conv2d(b->ctx, first), *two = wf_batchnorm(b->ctx, norm), *three = wf_conv2d(b->ctx, second);
    if (what == SQUARES)
        return wf_sequential(b->ctx, WF_LAYERS(one, two, three));
    return wf_sequential(b->ctx, WF_LAYERS(one, two, three, wf_lambda(b->ctx, wf_tanh), wf_linear(b->ctx, last)));
}

static void trainer_open(trainer *t, const char *device, wf_dtype dtype, wf_mesh_opts opts, task what, bool lamb)
{
    const wf_lamb_opts layerwise = {.lr = 0.02};
    const wf_sgd_opts sgd = {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01};
    test_rng rng = {11};
    *t = (trainer){.b = fixture_open(device, dtype, opts), .task = what};
    t->b.tolerance = dtype == WF_F64 ? 1e-10 : 1e-4;
    t->mine = parallel_new(&t->b, what);
    t->serial = serial_new(&t->b, what);
    WF_EXPECT(t->mine && t->serial, "no model: %s", wf_error_message());
    same_name(t->mine, t->serial);
    t->optim = wf_mesh_multi_node(t->b.mesh, lamb ? wf_lamb(t->mine, layerwise) : wf_sgd(t->mine, sgd),
                                  (wf_multi_node_opts){0});
    t->reference = lamb ? wf_lamb(t->serial, layerwise) : wf_sgd(t->serial, sgd);
    WF_EXPECT(t->optim, "no optimizer: %s", wf_error_message());
    wf_block(N, wf_mesh_size(t->b.mesh, WF_AXIS_DATA), wf_mesh_rank(t->b.mesh, WF_AXIS_DATA), &t->lo, &t->hi);
    t->x = numbers(N * PIXELS, 21);
    for (int i = 0; i < N; i++)
        t->label[i] = test_int(&rng, 0, CLASSES - 1);
}

static void trainer_close(trainer *t)
{
    wf_optim_free(t->optim);
    wf_optim_free(t->reference);
    wf_layer_free(t->mine);
    wf_layer_free(t->serial);
    free(t->x);
    fixture_close(&t->b);
    wf_error_clear();
}

static wf_var *loss_of(const trainer *t, wf_layer *model, int64_t lo, int64_t hi, bool spread, wf_tensor **labels)
{
    wf_tensor *x = wf_tensor_new(t->b.ctx, t->b.dtype, WF_SHAPE(hi - lo, IN, SIDE, SIDE));
    values_set(x, t->x + lo * PIXELS);
    *labels = wf_tensor_from_host(t->b.ctx, WF_I64, WF_SHAPE(hi - lo), t->label + lo);
    if (spread) {
        WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(t->b.mesh, WF_SHAPE(N, IN, SIDE, SIDE), lo, hi)));
        WF_EXPECT_OK(wf_tensor_set_layout(*labels, wf_layout_batch(t->b.mesh, WF_SHAPE(N), lo, hi)));
    }
    wf_var *y = wf_apply(model, wf_input(t->b.tape, x));
    wf_tensor_free(x);
    return t->task == LABELS ? wf_softmax_cross_entropy(y, *labels, (wf_label_opts){0}) : wf_mean(wf_mul(y, y));
}

static void step_both(trainer *t, const char *what)
{
    wf_tensor *mine, *all;
    wf_var *loss = loss_of(t, t->mine, t->lo, t->hi, true, &mine);
    WF_EXPECT_OK(wf_optim_step(t->optim, loss));
    wf_var *whole = loss_of(t, t->serial, 0, N, false, &all);
    WF_EXPECT_OK(wf_optim_step(t->reference, whole));
    WF_EXPECT(fabs(wf_item(loss) - wf_item(whole)) <= t->b.tolerance * (1 + fabs(wf_item(whole))),
              "%s: the loss is %.12g, should be %.12g", what, wf_item(loss), wf_item(whole));
    WF_EXPECT_OK(wf_tape_reset(t->b.tape));
    wf_tensor_free(mine);
    wf_tensor_free(all);
}

static void train(const char *device, wf_dtype dtype, wf_mesh_opts opts, task what, bool lamb, double clip)
{
    trainer t;
    char name[96];
    trainer_open(&t, device, dtype, opts, what, lamb);
    snprintf(name, sizeof name, "%s%s%s, clip %g", wf_mesh_text(t.b.mesh), what == SQUARES ? ", squares" : "",
             lamb ? ", LAMB" : "", clip);
    WF_EXPECT_OK(wf_optim_clip_norm(t.optim, clip));
    WF_EXPECT_OK(wf_optim_clip_norm(t.reference, clip));
    for (int i = 0; i < STEPS; i++)
        step_both(&t, name);
    expect_params(&t.b, name, t.serial, t.mine, false);
    trainer_close(&t);
}

static int ranks(void)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return size;
}

static void train_on(const char *device, wf_dtype dtype)
{
    const int size = ranks();
    for (int channel = 1; channel <= size; channel++)
        for (int what = 0; size % channel == 0 && what < TASKS; what++) {
            train(device, dtype, (wf_mesh_opts){.channel = channel}, (task)what, false, 0);
            train(device, dtype, (wf_mesh_opts){.channel = channel}, (task)what, false, 0.05);
            if (dtype == WF_F64)
                train(device, dtype, (wf_mesh_opts){.channel = channel}, (task)what, true, 0.05);
        }
}

static void steps_f64(void)
{
    train_on("ref", WF_F64);
}

static void steps_f32(void)
{
    train_on("cpu", WF_F32);
}

/* Over which axes the gradients of a normalisation are summed shows in the first forward: here along the height, for
 * which the optimizer had no reason to connect anybody when it was made. */
static void axes_of_the_first_step(void)
{
    const wf_shape shape = WF_SHAPE(2, 4, 6, 5);
    const wf_linear_opts fully = {.in = 4, .out = 3, .form = WF_FORM_CHANNEL, .replicate = true};
    wf_layout layout;
    if (ranks() != 4)
        return;
    fixture b = fixture_open("cpu", WF_F32, (wf_mesh_opts){.channel = 2, .height = 2});
    double *whole = numbers(2 * 4 * 6 * 5, 9);
    wf_layer *mine =
        wf_sequential(b.ctx, WF_LAYERS(wf_channel_sync_batchnorm(b.mesh, (wf_batchnorm_opts){.channels = 4}),
                                       wf_spatial_global_avg_pool(b.mesh), wf_channel_linear(b.mesh, fully)));
    wf_layer *serial = wf_sequential(b.ctx, WF_LAYERS(wf_batchnorm(b.ctx, (wf_batchnorm_opts){.channels = 4}),
                                                      wf_global_avg_pool(b.ctx), wf_linear(b.ctx, fully)));
    WF_EXPECT(mine && serial, "no model: %s", wf_error_message());
    same_name(mine, serial);
    wf_optim *optim = wf_mesh_multi_node(b.mesh, wf_sgd(mine, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    wf_optim *reference = wf_sgd(serial, (wf_sgd_opts){.lr = 0.1});
    WF_EXPECT_OK(wf_mesh_layout_activation(b.mesh, shape, &layout));
    wf_tensor *x = tensor_of(&b, whole, layout), *all = wf_tensor_new(b.ctx, WF_F32, shape);
    values_set(all, whole);
    for (int i = 0; i < 3; i++) {
        wf_var *y = wf_apply(mine, wf_input(b.tape, x)), *loss = wf_mean(wf_mul(y, y));
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        wf_var *z = wf_apply(serial, wf_input(b.tape, all)), *should = wf_mean(wf_mul(z, z));
        WF_EXPECT_OK(wf_optim_step(reference, should));
        WF_EXPECT(fabs(wf_item(loss) - wf_item(should)) < 1e-4, "step %d: the loss is %.9g, should be %.9g", i,
                  wf_item(loss), wf_item(should));
        WF_EXPECT_OK(wf_tape_reset(b.tape));
    }
    wf_tensor_free(x);
    wf_tensor_free(all);
    wf_optim_free(optim);
    wf_optim_free(reference);
    wf_layer_free(mine);
    wf_layer_free(serial);
    free(whole);
    fixture_close(&b);
    wf_error_clear();
}

/* Gradients move between the ranks that hold the same part, and no others; the numbers that ride along to all. */
static void traffic(void)
{
    trainer t;
    const int channel = ranks() % 2 == 0 ? 2 : 1;
    wf_tensor *labels;
    trainer_open(&t, "ref", WF_F64, (wf_mesh_opts){.channel = channel}, LABELS, false);
    wf_comm *data = wf_mesh_comm(t.b.mesh, WF_AXIS_BIT(WF_AXIS_DATA));
    const bool summed = data != wf_mesh_world(t.b.mesh) && wf_comm_size(data) > 1;
    for (int i = 0; i < 2; i++) {
        wf_var *loss = loss_of(&t, t.mine, t.lo, t.hi, true, &labels);
        const uint64_t before = wf_comm_traffic(data).collectives;
        WF_EXPECT_OK(wf_optim_step(t.optim, loss));
        const int64_t reductions = (int64_t)(wf_comm_traffic(data).collectives - before);
        /* One for the gradients of shards, one for those of whole parameters, and one message of the normalisation,
         * which is over samples too. The first step compares replicas besides. */
        WF_EXPECT(!summed || i == 0 || reductions == 3, "%lld collectives over data in a step", (long long)reductions);
        WF_EXPECT_OK(wf_tape_reset(t.b.tape));
        wf_tensor_free(labels);
    }
    trainer_close(&t);
}

static void needs_the_mesh(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    WF_EXPECT_OK(wf_barrier(b.comm)); /* else the failure below may end a rank that still opens its mesh */
    wf_layer *model = wf_channel_linear(b.mesh, (wf_linear_opts){.in = 6, .out = 6});
    wf_optim *optim = wf_multi_node(b.comm, wf_sgd(model, (wf_sgd_opts){0}), (wf_multi_node_opts){0});
    if (b.size > 1)
        WF_EXPECT(!optim && wf_error_code() == WF_ERR_UNSUPPORTED && strstr(wf_error_message(), "wf_mesh_multi_node"),
                  "wf_multi_node takes parts of parameters: %s", wf_error_message());
    else
        WF_EXPECT(optim, "on one rank: %s", wf_error_message());
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(model);
    fixture_close(&b);
}

/* Ranks along the channel axis that started with different models have one model afterwards. */
static void broadcast(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    wf_layer *whole = wf_linear(b.ctx, (wf_linear_opts){.in = 6, .out = 6});
    wf_layer *cut = wf_channel_linear(b.mesh, (wf_linear_opts){.in = 6, .out = 6});
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(wf_layer_param(whole, "W")), b.rank + 1));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(wf_layer_param(cut, "W")), b.rank + 1));
    wf_layer *model = wf_sequential(b.ctx, WF_LAYERS(whole, cut));
    wf_optim *optim = wf_mesh_multi_node(b.mesh, wf_sgd(model, (wf_sgd_opts){0}), (wf_multi_node_opts){0});
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    double value[36];
    values_get(wf_param_value(wf_layer_param(whole, "W")), value);
    WF_EXPECT(value[7] == 1, "the whole parameter is %g on rank %d", value[7], b.rank);
    values_get(wf_param_value(wf_layer_param(cut, "W")), value);
    WF_EXPECT(value[3] == b.rank + 1, "the part of rank %d is %g", b.rank, value[3]);
    wf_optim_free(optim);
    wf_layer_free(model);
    fixture_close(&b);
}

/* A rank without a loss takes all others out of the step. */
static void one_fails(void)
{
    trainer t;
    wf_tensor *labels = NULL;
    const int size = ranks(), channel = size % 2 == 0 ? 2 : size;
    trainer_open(&t, "ref", WF_F64, (wf_mesh_opts){.channel = channel}, LABELS, false);
    wf_comm *world = wf_mesh_world(t.b.mesh);
    const bool fails = wf_comm_rank(world) == size - 1;
    (void)!wf_barrier(world); /* all ranks have their optimizers; the failure may reach a rank in here */
    wf_error_clear();
    wf_var *loss = fails ? NULL : loss_of(&t, t.mine, t.lo, t.hi, true, &labels);
    if (fails)
        WF_RAISE(WF_ERR_IO, "no batch"), (void)wf_error_null();
    const wf_status status = loss || fails ? wf_optim_step(t.optim, loss) : wf_check(loss);
    WF_EXPECT(status == WF_ERR_IO, "rank %d of %d: %s, %s", wf_comm_rank(world), size, wf_status_name(status),
              wf_error_message());
    wf_error_clear();
    (void)!wf_tape_reset(t.b.tape);
    wf_tensor_free(labels);
    wf_optim_free(t.optim);
    wf_optim_free(t.reference);
    wf_layer_free(t.mine);
    wf_layer_free(t.serial);
    free(t.x);
    wf_tape_free(t.b.tape);
    wf_mesh_close(t.b.mesh);
    (void)!wf_comm_close(t.b.comm);
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"steps_f64", steps_f64},
                                   {"steps_f32", steps_f32},
                                   {"axes_of_the_first_step", axes_of_the_first_step},
                                   {"traffic", traffic},
                                   {"broadcast", broadcast},
                                   {"needs_the_mesh", needs_the_mesh},
                                   {"one_fails", one_fails},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
