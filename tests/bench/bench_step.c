/* A training step of a model on random numbers, or with --eval its output alone, in WF_EVAL: prints images per second
 * over all ranks, which share the batch's images as data, and with --memory the most memory, in MiB, that rank 0's
 * process held, and the seconds of preparing steps (wf_setup_seconds).
 *
 *     bench_step --model unet2 --width 64 --size 512 --batch 8 --iterations 20
 *
 * With --captured the step is replayed as a whole, where the device can; with --profile a table, with --timeline a
 * file, says where the time of the timed steps goes. bench_torch.py has the same models and steps in PyTorch.
 */
#include "examples/common.h"
#include "examples/models/classifier.h"
#include "examples/models/convnext.h"
#include "examples/models/gpt.h"
#include "examples/models/mnist.h"
#include "examples/models/resnet.h"
#include "examples/models/unet.h"
#include "examples/models/vgg.h"
#include "tests/bench/bench.h"

#include <string.h>
#include <unistd.h>

typedef struct settings {
    const char *model, *compute, *timeline, *norm;
    int64_t batch, width, size, iterations, warmup;
    bool captured, memory, profile, eval;
} settings;

typedef struct trainee {
    wf_layer *model;
    wf_optim *optim;
    wf_tensor *x, *target;
    wf_var *(*loss)(const struct trainee *t, wf_var *y);
    bool eval;
    wf_tape *tape;
} trainee;

#define MODELS                                                                                                         \
    "vgg (32 x 32 pixels), resnet18, resnet50, convnext_t, unet2, unet3, mlp, cnn, basicnet, gpt (1024 tokens), lstm " \
    "(2 levels of 512, 64 steps), or one of classify's"

static settings read_settings(int argc, char **argv)
{
    settings s = {
        .model = "vgg", .batch = 64, .width = 64, .size = 128, .iterations = 20, .warmup = 5, .norm = "batch"};
    const example_option table[] = {
        {"model", "NAME", MODELS, .text = &s.model},
        {"batch", "N", "images or volumes per rank", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"width", "N", "channels of the first group or level", .number = &s.width, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"size", "N", "sides of a U-Net's, a ResNet's or a ConvNeXt's input, a multiple of 16", .number = &s.size,
         .most = EXAMPLE_MOST_SIZE, .least = 16},
        {"norm", "NAME", "batch or group (of eight groups): a U-Net's", .text = &s.norm},
        {"iterations", "N", "steps that are timed", .number = &s.iterations, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"warmup", "N", "steps before", .number = &s.warmup, .most = EXAMPLE_MOST_COUNT},
        {"eval", NULL, "evaluate the model; else train it", .flag = &s.eval},
        {"captured", NULL, "replay the step", .flag = &s.captured},
        {"memory", NULL, "print the most memory, too", .flag = &s.memory},
        {"profile", NULL, "a table of where the time went, by kernel and by layer", .flag = &s.profile},
        {"timeline", "FILE", "the same over time", .text = &s.timeline},
        EXAMPLE_COMPUTE(&s.compute),
        {0}};
    example_options(argc, argv, "Images per second of a training step, or of evaluation.", table);
    if (strcmp(s.norm, "batch") != 0 && strcmp(s.norm, "group") != 0)
        example_abort("--norm %s: should be batch or group", s.norm);
    if (s.size % 16 != 0)
        example_abort("--size %lld: should be a multiple of 16", (long long)s.size);
    return s;
}

static wf_tensor *noise(wf_tape *tape, wf_shape shape, bool mask)
{
    wf_var *x = wf_rand_uniform(tape, shape, -1, 1, NULL);
    if (mask)
        x = wf_sigmoid(wf_scale(x, 100));
    WF_MUST(wf_check(x));
    return wf_keep(x);
}

static wf_var *loss_of_classes(const trainee *t, wf_var *y)
{
    return wf_softmax_cross_entropy(y, t->target, (wf_label_opts){0});
}

static wf_var *loss_of_tokens(const trainee *t, wf_var *y)
{
    return wf_token_cross_entropy(y, t->target, (wf_label_opts){0});
}

static wf_var *loss_of_likelihood(const trainee *t, wf_var *y)
{
    return wf_nll(y, t->target, (wf_label_opts){0});
}

static wf_var *loss_of_mask(const trainee *t, wf_var *y)
{
    return wf_bce_logits(y, t->target);
}

static wf_var *loss_of_values(const trainee *t, wf_var *y)
{
    return wf_mse(y, wf_input(t->tape, t->target));
}

/* The rates are so small that nothing is learned: a sure network's gradients are subnormal numbers, which are slow. */
static trainee classes(wf_comm *comm, wf_tape *tape, wf_layer *model, wf_optim *optim, wf_shape images)
{
    trainee t = {.model = model, .loss = loss_of_classes};
    t.optim = wf_multi_node(comm, example_scaled(optim), (wf_multi_node_opts){0});
    t.x = noise(tape, images, false);
    t.target = wf_tensor_new(wf_comm_ctx(comm), WF_I32, WF_SHAPE(images.dim[0]));
    WF_MUST(wf_check(t.target));
    WF_MUST(wf_tensor_fill(t.target, 3));
    return t;
}

static trainee with_sgd(wf_comm *comm, wf_tape *tape, wf_layer *model, wf_shape images)
{
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 1e-6, .momentum = 0.9, .weight_decay = 5e-4});
    return classes(comm, tape, model, optim, images);
}

static trainee with_adam(wf_comm *comm, wf_tape *tape, wf_layer *model, wf_shape images)
{
    return classes(comm, tape, model, wf_adam(model, (wf_adam_opts){.lr = 1e-6}), images);
}

static trainee basicnet_new(wf_comm *comm, wf_tape *tape, wf_shape images)
{
    wf_layer *model = mnist_basic(wf_comm_ctx(comm), true);
    wf_optim *optim = wf_adamw(model, (wf_adam_opts){.lr = 1e-6, .weight_decay = 0.01});
    trainee t = classes(comm, tape, model, optim, images);
    t.loss = loss_of_likelihood;
    return t;
}

static trainee unet_new(wf_comm *comm, wf_tape *tape, const settings *s, int dims)
{
    const unet_opts opts = {.dims = dims,
                            .in = 1,
                            .classes = 1,
                            .width = s->width,
                            .levels = dims == 2 ? 4 : 3,
                            .norm = strcmp(s->norm, "group") == 0 ? UNET_GROUP : UNET_BATCH};
    const wf_shape shape =
        dims == 2 ? WF_SHAPE(s->batch, 1, s->size, s->size) : WF_SHAPE(s->batch, 1, s->size, s->size, s->size);
    trainee t = {.model = unet(wf_comm_ctx(comm), opts), .loss = loss_of_mask};
    t.optim =
        wf_multi_node(comm, example_scaled(wf_adam(t.model, (wf_adam_opts){.lr = 1e-4})), (wf_multi_node_opts){0});
    t.x = noise(tape, shape, false);
    t.target = noise(tape, shape, true);
    return t;
}

static trainee gpt_new(wf_comm *comm, const settings *s)
{
    enum { TOKENS = 1024, SYMBOLS = 256 };
    wf_ctx *ctx = wf_comm_ctx(comm);
    int32_t *tokens = malloc((size_t)s->batch * TOKENS * sizeof *tokens);
    if (!tokens)
        example_abort("no memory for %lld texts", (long long)s->batch);
    for (int64_t i = 0; i < s->batch * TOKENS; i++)
        tokens[i] = (int32_t)(i * 7919 % SYMBOLS);
    trainee t = {.model = gpt(ctx, (gpt_opts){.size = GPT_MEDIUM}), .loss = loss_of_tokens};
    t.optim =
        wf_multi_node(comm, example_scaled(wf_adam(t.model, (wf_adam_opts){.lr = 1e-6})), (wf_multi_node_opts){0});
    t.x = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(s->batch, TOKENS), tokens);
    t.target = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(s->batch, TOKENS), tokens);
    free(tokens);
    return t;
}

static trainee lstm_new(wf_comm *comm, wf_tape *tape, const settings *s)
{
    const wf_shape steps = WF_SHAPE(s->batch, 64, 512);
    const wf_recurrent_opts opts = {.in = 512, .hidden = 512, .levels = 2};
    trainee t = {.model = wf_lstm(wf_comm_ctx(comm), opts), .loss = loss_of_values};
    t.optim =
        wf_multi_node(comm, example_scaled(wf_adam(t.model, (wf_adam_opts){.lr = 1e-6})), (wf_multi_node_opts){0});
    t.x = noise(tape, steps, false);
    t.target = noise(tape, steps, false);
    return t;
}

static trainee trainee_new(wf_comm *comm, wf_tape *tape, const settings *s)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const wf_shape small = WF_SHAPE(s->batch, 3, 32, 32), digits = WF_SHAPE(s->batch, 1, 28, 28);
    const wf_shape large = WF_SHAPE(s->batch, 3, s->size, s->size);
    const resnet_opts residual = {.width = s->width, .classes = 1000, .large = true};
    const resnet_opts deep = {.depth = RESNET_50, .width = s->width, .classes = 1000, .large = true};
    if (strcmp(s->model, "vgg") == 0)
        return with_sgd(comm, tape, vgg16(ctx, (vgg_opts){.width = s->width}), small);
    if (strcmp(s->model, "resnet18") == 0)
        return with_sgd(comm, tape, resnet(ctx, residual), large);
    if (strcmp(s->model, "resnet50") == 0)
        return with_sgd(comm, tape, resnet(ctx, deep), large);
    if (strcmp(s->model, "convnext_t") == 0)
        return with_adam(comm, tape, convnext(ctx, (convnext_opts){.width = s->width, .classes = 1000}), large);
    if (strcmp(s->model, "mlp") == 0)
        return with_adam(comm, tape, mnist_mlp(ctx), digits);
    if (strcmp(s->model, "cnn") == 0)
        return with_adam(comm, tape, mnist_cnn(ctx), digits);
    if (strcmp(s->model, "basicnet") == 0)
        return basicnet_new(comm, tape, digits);
    if (strcmp(s->model, "unet2") == 0 || strcmp(s->model, "unet3") == 0)
        return unet_new(comm, tape, s, s->model[4] - '0');
    if (strcmp(s->model, "gpt") == 0)
        return gpt_new(comm, s);
    if (strcmp(s->model, "lstm") == 0)
        return lstm_new(comm, tape, s);
    const classifier *named = classifier_find(s->model);
    const classifier_opts opts = {.size = s->size, .classes = 1000};
    if (named && !classifier_complaint(named, &opts))
        return with_adam(comm, tape, classifier_new(ctx, named, opts), large);
    example_abort("--model is " MODELS ", not \"%s\"", s->model);
}

static void trainee_free(trainee *t)
{
    wf_optim_free(t->optim);
    wf_layer_free(t->model);
    wf_tensor_free(t->x);
    wf_tensor_free(t->target);
}

static wf_status step(void *arg)
{
    trainee *t = arg;
    wf_var *scores = wf_apply(t->model, wf_input(t->tape, t->x));
    if (t->eval) {
        WF_MUST(wf_check(scores));
        return wf_tape_reset(t->tape);
    }
    WF_MUST(wf_optim_step(t->optim, t->loss(t, scores)));
    return wf_tape_reset(t->tape);
}

static double seconds_of(wf_comm *comm, trainee *t, const settings *s)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_captured *captured = s->captured ? wf_capture(ctx, step, t) : NULL;
    wf_profiler *profiler = NULL;
    double start = 0;
    for (int64_t i = -s->warmup; i < s->iterations; i++) {
        if (i == 0) {
            bench_finish(ctx);
            WF_MUST(wf_barrier(comm));
            if (s->profile || s->timeline)
                profiler = wf_profiler_open(
                    comm, (wf_profiler_opts){.table = s->profile ? STDOUT_FILENO : 0, .timeline = s->timeline});
            start = example_seconds();
        }
        WF_MUST(captured ? wf_captured_run(captured) : step(t));
    }
    bench_finish(ctx);
    WF_MUST(wf_barrier(comm));
    const double seconds = example_seconds() - start;
    if (profiler)
        WF_MUST(wf_profiler_close(profiler));
    wf_captured_free(captured);
    return seconds;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    example_compute(comm, s.compute);
    wf_tape *tape = wf_tape_new(wf_comm_ctx(comm));
    trainee t = trainee_new(comm, tape, &s);
    WF_MUST(wf_check(t.optim));
    WF_MUST(wf_tape_reset(tape));
    t.tape = tape;
    t.eval = s.eval;
    WF_MUST(wf_tape_set_mode(tape, s.eval ? WF_EVAL : WF_TRAIN));
    const double seconds = seconds_of(comm, &t, &s);
    if (wf_comm_rank(comm) == 0)
        bench_report((double)(s.batch * s.iterations * wf_comm_size(comm)), seconds,
                     s.memory ? wf_comm_ctx(comm) : NULL);
    trainee_free(&t);
    wf_tape_free(tape);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
