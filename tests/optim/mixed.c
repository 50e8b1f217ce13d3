/* Mixed precision on one rank: which type every layer and function takes and gives, the rounded copies of parameters,
 * gradients in f32, and training beside f32. */
#include "layers/layers.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"

#include <math.h>
#include <stdio.h>

static const wf_dtype narrow[2] = {WF_BF16, WF_F16};

static wf_ctx *mixed_ctx(const char *device, wf_dtype compute)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device(device), .compute = compute, .seed = 3, .threads = 2});
    WF_EXPECT(ctx, "no context on %s: %s", device, wf_error_message());
    return ctx;
}

static wf_tensor *random_tensor(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, uint64_t seed)
{
    const int64_t n = wf_shape_count(shape);
    test_rng rng = {seed};
    float *host = malloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = (float)test_int(&rng, -64, 64) / 64;
    wf_tensor *full = wf_tensor_from_host(ctx, WF_F32, shape, host);
    wf_tensor *t = wf_tensor_copy(full, dtype, wf_tensor_order(full));
    wf_tensor_free(full);
    free(host);
    return t;
}

static void expect_type(const char *what, const wf_var *var, wf_dtype dtype)
{
    WF_EXPECT(var, "%s: %s", what, wf_error_trail());
    WF_EXPECT(!var || wf_tensor_dtype(wf_value(var)) == dtype, "%s is %s, should be %s", what,
              wf_dtype_name(wf_tensor_dtype(wf_value(var))), wf_dtype_name(dtype));
}

/* What computes. A layer is applied to `x` and freed by the caller, in `layers`. */
static void types_of_layers(wf_ctx *ctx, wf_dtype type, wf_tape *tape, const wf_tensor *image)
{
    wf_layer *conv = wf_conv2d(ctx, (wf_conv_opts){.in = 4, .out = 6, .kernel = 3, .pad = 1, .act = WF_ACT_RELU});
    wf_layer *up = wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 6, .out = 3, .kernel = 4, .stride = 2, .pad = 1});
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 6});
    wf_layer *pool = wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2}),
             *wider = wf_upsample2d(ctx, (wf_upsample_opts){0});
    wf_layer *linear = wf_linear(ctx, (wf_linear_opts){.in = 96, .out = 5});
    wf_var *x = wf_leaf(tape, image), *h = wf_apply(conv, x);
    expect_type("conv", h, type);
    expect_type("conv of 16 bits", wf_apply(conv, wf_cast(x, type)), type);
    expect_type("batchnorm of f32", wf_apply(norm, wf_cast(h, WF_F32)), WF_F32);
    h = wf_apply(norm, h);
    expect_type("batchnorm", h, type);
    WF_EXPECT(wf_tensor_dtype(wf_param_value(wf_layer_param(norm, "avg_var"))) == WF_F32, "running values");
    expect_type("conv_transpose", wf_apply(up, h), type);
    h = wf_apply(pool, h);
    expect_type("max pool", h, type);
    expect_type("upsample", wf_apply(wider, h), type);
    h = wf_dropout(wf_gelu(h), 0.5);
    expect_type("gelu and dropout", h, type);
    h = wf_apply(linear, h);
    expect_type("linear", h, type);
    wf_layer *const all[] = {conv, up, norm, pool, wider, linear};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        wf_layer_free(all[i]);
}

static void types_of_functions(wf_dtype type, wf_tape *tape, const wf_tensor *scores, const wf_tensor *labels)
{
    wf_var *full = wf_leaf(tape, scores), *x = wf_cast(full, type);
    expect_type("cast", x, type);
    expect_type("add", wf_add(x, x), type);
    expect_type("add of two types", wf_add(x, full), WF_F32);
    expect_type("sub of two types", wf_sub(full, x), WF_F32);
    expect_type("mul of two types", wf_mul(x, full), WF_F32);
    expect_type("concat", wf_concat(2, (wf_var *[]){x, x}, 1), type);
    expect_type("concat of two types", wf_concat(2, (wf_var *[]){x, full}, 1), WF_F32);
    expect_type("reshape", wf_reshape(x, WF_SHAPE(2, 2, -1)), type);
    expect_type("softmax", wf_softmax(x), WF_F32);
    expect_type("sum", wf_sum(x), WF_F32);
    expect_type("mean", wf_mean(x), WF_F32);
    expect_type("cross entropy", wf_softmax_cross_entropy(x, labels, (wf_label_opts){0}), WF_F32);
    expect_type("bce", wf_bce_logits_constant(x, 1), WF_F32);
    expect_type("mse", wf_mse(x, full), WF_F32);
    WF_EXPECT(wf_count_correct(x, labels, (wf_label_opts){0}) >= 0, "count_correct of %s", wf_dtype_name(type));
    WF_EXPECT(isfinite(wf_item(wf_mean(x))), "item of a mean");
}

static void types_on(const char *device)
{
    for (int t = 0; t < 2; t++) {
        wf_ctx *ctx = mixed_ctx(device, narrow[t]);
        wf_tape *tape = wf_tape_new(ctx);
        wf_tensor *image = random_tensor(ctx, WF_F32, WF_SHAPE(3, 4, 8, 8), 1);
        wf_tensor *scores = random_tensor(ctx, WF_F32, WF_SHAPE(4, 6), 2);
        wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(4), (int64_t[]){0, 5, 2, 3});
        types_of_layers(ctx, narrow[t], tape, image);
        types_of_functions(narrow[t], tape, scores, labels);
        wf_tape_free(tape);
        wf_tensor_free(image);
        wf_tensor_free(scores);
        wf_tensor_free(labels);
        WF_EXPECT_OK(wf_ctx_free(ctx));
    }
}

static void types(void)
{
    types_on("ref");
    types_on("cpu");
}

/* The gradient of a cast is cast back, and has the type of its value. */
static void cast(void)
{
    wf_ctx *ctx = mixed_ctx("cpu", WF_F32);
    wf_tape *tape = wf_tape_new(ctx);
    double seen[3];
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(3), (float[]){1, 1.00390625F, -3});
    wf_var *leaf = wf_leaf(tape, x), *half = wf_cast(leaf, WF_BF16), *back = wf_cast(half, WF_F32);
    wf_var *none = wf_cast(leaf, WF_F32);
    WF_EXPECT(none == leaf, "a cast to the type that it has is another variable");
    values_get(wf_value(back), seen);
    WF_EXPECT(seen[0] == 1 && seen[1] == 1 && seen[2] == -3, "rounded to %g, %g, %g", seen[0], seen[1], seen[2]);
    wf_tensor *dy = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(3), (float[]){1, 1.01171875F, 5});
    WF_EXPECT_OK(wf_backward_from(back, dy));
    WF_EXPECT(wf_tensor_dtype(wf_grad(leaf)) == WF_F32, "the gradient of f32 is %s",
              wf_dtype_name(wf_tensor_dtype(wf_grad(leaf))));
    values_get(wf_grad(leaf), seen);
    WF_EXPECT(seen[0] == 1 && seen[1] == 1.015625 && seen[2] == 5, "gradient %g, %g, %g", seen[0], seen[1], seen[2]);
    WF_EXPECT(!wf_cast(leaf, WF_DTYPES), "cast to a type that is none");
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_error_code());
    wf_tensor_free(dy);
    wf_tensor_free(x);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* Contexts that cannot, and layers that are given what they do not take. */
static void refused(void)
{
    WF_EXPECT(!wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64, .compute = WF_BF16}), "f64 in bf16");
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_error_code());
    WF_EXPECT(!wf_ctx_new((wf_ctx_opts){.device = "ref", .compute = WF_I32}), "computing in i32");
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_error_code());
    wf_ctx *ctx = mixed_ctx("ref", WF_F32);
    WF_EXPECT(wf_ctx_compute(ctx) == WF_F32, "computes in %s", wf_dtype_name(wf_ctx_compute(ctx)));
    WF_EXPECT_OK(wf_ctx_set_compute(ctx, WF_F16));
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_ctx_set_dtype(ctx, WF_F64));
    WF_EXPECT_OK(wf_ctx_set_compute(ctx, WF_F32));
    WF_EXPECT_OK(wf_ctx_set_dtype(ctx, WF_F64));
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_ctx_set_compute(ctx, WF_BF16));
    WF_EXPECT_OK(wf_ctx_free(ctx));
    ctx = mixed_ctx("cpu", WF_F32);
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *linear = wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 2});
    wf_tensor *x = random_tensor(ctx, WF_BF16, WF_SHAPE(2, 3), 1);
    WF_EXPECT(!wf_apply(linear, wf_input(tape, x)), "a layer of f32 took bf16");
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_error_code());
    wf_tensor_free(x);
    wf_layer_free(linear);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* Output of a linear layer of one weight for the input 1. */
static double output(wf_layer *layer, wf_tape *tape, const wf_tensor *one)
{
    wf_var *y = wf_apply(layer, wf_input(tape, one));
    WF_EXPECT(y, "%s", wf_error_trail());
    const double value = wf_item(wf_sum(y));
    return value;
}

/* A table that counts copies from one array. */
static wf_kernels watching;
static wf_copy_fn *copy_of_device;
static const void *watched;
static int copied;

static wf_status copy_watched(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate)
{
    copied += src->data == watched;
    return copy_of_device(ctx, src, dst, accumulate);
}

static void watch(wf_ctx *ctx, const void *from)
{
    watching = *ctx->k;
    copy_of_device = watching.copy;
    watching.copy = copy_watched;
    ctx->k = &watching;
    watched = from;
    copied = 0;
}

/* A copy is made once for every value of its parameter: after an import, an update, in evaluation, in another type. */
static void copies(void)
{
    wf_ctx *ctx = mixed_ctx("cpu", WF_BF16);
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = wf_linear(ctx, (wf_linear_opts){.in = 1, .out = 1, .no_bias = true});
    wf_param *w = wf_layer_param(layer, "W");
    wf_tensor *one = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(1, 1), (float[]){1});
    wf_optim *optim = wf_sgd(layer, (wf_sgd_opts){.lr = 1});
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(w), 1.00390625)); /* 1 + 2^-8: halfway to the next bf16 */
    watch(ctx, wf_param_value(w)->data);
    double y = output(layer, tape, one);
    WF_EXPECT(y == 1, "%.9g with the first value, should be 1", y);
    y = output(layer, tape, one);
    WF_EXPECT(y == 1 && copied == 1, "%.9g and %d copies of one value in two uses", y, copied);
    const wf_tensor *copy = w->rounded;
    const void *memory = copy ? copy->data : NULL;
    WF_EXPECT(copy && copy->dtype == WF_BF16, "there is no rounded copy");
    WF_EXPECT_OK(wf_optim_step(optim, wf_mean(wf_apply(layer, wf_input(tape, one)))));
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    y = output(layer, tape, one);
    WF_EXPECT(y == 0.00390625, "%.9g after an update, should be %.9g", y, 0.00390625);
    y = output(layer, tape, one);
    WF_EXPECT(y == 0.00390625 && copied == 2, "%.9g and %d copies of two values", y, copied);
    WF_EXPECT(w->rounded == copy && copy->data == memory, "the copy went to other memory");
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(w), 3));
    y = output(layer, tape, one);
    WF_EXPECT(y == 3, "%.9g after a fill, should be 3", y);
    WF_EXPECT_OK(wf_ctx_set_compute(ctx, WF_F16));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(w), 1.00390625));
    y = output(layer, tape, one);
    WF_EXPECT(y == 1.00390625, "%.9g in f16, should be 1.00390625", y);
    WF_EXPECT_OK(wf_ctx_set_compute(ctx, WF_F32));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(w), 1.0001));
    y = output(layer, tape, one);
    WF_EXPECT(y == (double)1.0001F, "%.9g in f32, should be 1.0001", y);
    wf_tensor_free(one);
    wf_optim_free(optim);
    wf_layer_free(layer);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* A parameter that changes between forward and backward is an error in bf16 as in f32. */
static void changed(void)
{
    for (int compute = 0; compute < 2; compute++) {
        wf_ctx *ctx = mixed_ctx("cpu", compute ? WF_BF16 : WF_F32);
        wf_tape *tape = wf_tape_new(ctx);
        wf_layer *layer = wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 1});
        wf_tensor *x = random_tensor(ctx, WF_F32, WF_SHAPE(3, 2), 1);
        wf_var *loss = wf_mean(wf_apply(layer, wf_leaf(tape, x)));
        WF_EXPECT_OK(wf_tensor_fill(wf_param_value(wf_layer_param(layer, "W")), 2));
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(loss));
        wf_tensor_free(x);
        wf_layer_free(layer);
        wf_tape_free(tape);
        WF_EXPECT_OK(wf_ctx_free(ctx));
    }
}

/* Sums of 4096 contributions of 1, on top of 4096 backwards' worth that is there already: bf16 stops at 256. */
static void small_contributions_on(const char *device, wf_dtype compute)
{
    enum { ROWS = 4096 };
    wf_ctx *ctx = mixed_ctx(device, compute);
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *linear = wf_linear(ctx, (wf_linear_opts){.in = 1, .out = 1});
    wf_layer *conv = wf_conv1d(ctx, (wf_conv_opts){.in = 1, .out = 1, .kernel = 1});
    wf_tensor *column = wf_tensor_new(ctx, WF_F32, WF_SHAPE(ROWS, 1)),
              *line = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1, 1, ROWS));
    WF_EXPECT_OK(wf_tensor_fill(column, 1));
    WF_EXPECT_OK(wf_tensor_fill(line, 1));
    /* Twice on one tape: gradients of the second use are added to those of the first. */
    wf_var *a = wf_sum(wf_apply(linear, wf_input(tape, column))), *b = wf_sum(wf_apply(linear, wf_input(tape, column)));
    wf_var *c = wf_sum(wf_apply(conv, wf_input(tape, line))), *d = wf_sum(wf_apply(conv, wf_input(tape, line)));
    WF_EXPECT_OK(wf_backward(wf_add(wf_add(a, b), wf_add(c, d))));
    for (int i = 0; i < 4; i++) {
        wf_param *p = param_of(i < 2 ? linear : conv, i % 2);
        const wf_tensor *grad = wf_param_grad(p);
        WF_EXPECT(grad && wf_tensor_dtype(grad) == WF_F32, "%s: the gradient of %s is not f32", device,
                  wf_param_path(p));
        const double seen = grad ? wf_tensor_item(grad) : 0;
        WF_EXPECT(seen == 2 * ROWS, "%s, %s: gradient of %s is %.9g, should be %d", device, wf_dtype_name(compute),
                  wf_param_path(p), seen, 2 * ROWS);
    }
    wf_tensor_free(column);
    wf_tensor_free(line);
    wf_layer_free(linear);
    wf_layer_free(conv);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void small_contributions(void)
{
    for (int t = 0; t < 2; t++) {
        small_contributions_on("ref", narrow[t]);
        small_contributions_on("cpu", narrow[t]);
    }
}

/* Bytes that the activations of a deep net take between forward and backward. */
static size_t held_by_tape(wf_dtype compute)
{
    wf_ctx *ctx = mixed_ctx("cpu", compute);
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer[6];
    wf_tensor *image = random_tensor(ctx, WF_F32, WF_SHAPE(4, 8, 64, 64), 1);
    wf_var *h = wf_input(tape, image);
    for (int i = 0; i < 6; i++) {
        layer[i] = i % 2 ? wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8})
                         : wf_conv2d(ctx, (wf_conv_opts){.in = 8, .out = 8, .kernel = 3, .pad = 1, .act = WF_ACT_RELU});
        h = wf_apply(layer[i], h);
    }
    wf_tensor *out = wf_keep(h);
    WF_EXPECT(h && out, "%s", wf_error_trail());
    const size_t before = wf_ctx_memory(ctx).bytes_in_use;
    WF_EXPECT_OK(wf_tape_reset(tape));
    const size_t held = before - wf_ctx_memory(ctx).bytes_in_use;
    wf_tensor_free(out);
    wf_tensor_free(image);
    for (int i = 0; i < 6; i++)
        wf_layer_free(layer[i]);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return held;
}

static void half_the_memory(void)
{
    const size_t full = held_by_tape(WF_F32), half = held_by_tape(WF_BF16);
    printf("activations of a tape: %zu bytes in f32, %zu in bf16\n", full, half);
    /* The picture itself is rounded too, which f32 does not need: one of six. */
    WF_EXPECT(full > 0 && (double)half < 0.62 * (double)full, "%zu bytes in bf16, %zu in f32", half, full);
}

enum { STEPS = 60, BATCH = 16 };

/* A small net of everything on random pictures of four kinds. */
static wf_layer *net_new(wf_ctx *ctx)
{
    wf_layer *in = wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 16, .kernel = 3, .pad = 1});
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 16, .act = WF_ACT_RELU});
    wf_layer *down = wf_conv2d(ctx, (wf_conv_opts){.in = 16, .out = 16, .kernel = 4, .stride = 2, .pad = 1});
    wf_layer *up = wf_conv_transpose2d(
        ctx, (wf_conv_opts){.in = 16, .out = 8, .kernel = 4, .stride = 2, .pad = 1, .act = WF_ACT_LEAKY_RELU});
    wf_layer *pool = wf_avg_pool2d(ctx, (wf_pool_opts){.kernel = 2});
    wf_layer *last = wf_linear(ctx, (wf_linear_opts){.in = 8 * 16, .out = 4});
    return wf_sequential(ctx, WF_LAYERS(in, norm, down, up, pool, last));
}

static void draw(test_rng *rng, float *x, int64_t *label)
{
    for (int i = 0; i < BATCH; i++) {
        label[i] = test_int(rng, 0, 3);
        for (int j = 0; j < 192; j++)
            x[192 * i + j] = (float)(test_uniform(rng, -1, 1) + 0.5 * sin(0.1 * (double)(label[i] + 1) * j));
    }
}

static void train(const char *device, bool lamb, wf_dtype compute, double loss[STEPS])
{
    static float x[BATCH * 192];
    int64_t label[BATCH];
    test_rng rng = {11};
    wf_ctx *ctx = mixed_ctx(device, compute);
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *net = net_new(ctx);
    wf_optim *optim =
        lamb ? wf_lamb(net, (wf_lamb_opts){.lr = 0.01}) : wf_sgd(net, (wf_sgd_opts){.lr = 0.05, .momentum = 0.9});
    wf_tensor *batch = wf_tensor_new(ctx, WF_F32, WF_SHAPE(BATCH, 3, 8, 8));
    wf_tensor *labels = wf_tensor_new(ctx, WF_I64, WF_SHAPE(BATCH));
    if (compute == WF_F16)
        WF_EXPECT_OK(wf_optim_scale_loss(optim, (wf_loss_scale_opts){0}));
    for (int step = 0; step < STEPS; step++) {
        draw(&rng, x, label);
        WF_EXPECT_OK(wf_tensor_import(batch, x, sizeof x));
        WF_EXPECT_OK(wf_tensor_import(labels, label, sizeof label));
        wf_var *scores = wf_apply(net, wf_input(tape, batch)),
               *cost = wf_softmax_cross_entropy(scores, labels, (wf_label_opts){0});
        WF_EXPECT(cost, "%s", wf_error_trail());
        loss[step] = wf_item(cost);
        WF_EXPECT_OK(wf_optim_step(optim, cost));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor_free(batch);
    wf_tensor_free(labels);
    wf_optim_free(optim);
    wf_layer_free(net);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static double mean_of(const double *loss, int from, int to)
{
    double sum = 0;
    for (int i = from; i < to; i++)
        sum += loss[i];
    return sum / (to - from);
}

/* The loss falls as in f32: the first step's by the rounding of one forward, then on average. */
static void training_on(const char *device, bool lamb)
{
    double full[STEPS], half[STEPS];
    train(device, lamb, WF_F32, full);
    for (int t = 0; t < 2; t++) {
        const double tolerance = narrow[t] == WF_BF16 ? 1e-2 : 2e-3;
        train(device, lamb, narrow[t], half);
        const double start = mean_of(full, 0, 10), end = mean_of(full, STEPS - 10, STEPS);
        const double half_end = mean_of(half, STEPS - 10, STEPS);
        printf("%s, %s: loss %.5f (f32 %.5f) at first, %.5f (%.5f) after ten steps, %.5f (%.5f) at last\n", device,
               wf_dtype_name(narrow[t]), half[0], full[0], half[10], full[10], half_end, end);
        WF_EXPECT(half[0] != full[0], "%s: %s computes the same as f32", device, wf_dtype_name(narrow[t]));
        WF_EXPECT(fabs(half[0] - full[0]) < tolerance * full[0], "%s, %s: first loss %g, of f32 %g", device,
                  wf_dtype_name(narrow[t]), half[0], full[0]);
        WF_EXPECT(end < 0.6 * start && half_end < 0.6 * start, "%s, %s: the loss went from %g to %g, in f32 to %g",
                  device, wf_dtype_name(narrow[t]), start, half_end, end);
        double off = 0;
        for (int i = 0; i < 20; i++)
            off = fmax(off, fabs(half[i] - full[i]));
        WF_EXPECT(off < 5 * tolerance * start, "%s, %s: losses of the first steps are off by %g of %g", device,
                  wf_dtype_name(narrow[t]), off, start);
    }
}

static void training(void)
{
    training_on("ref", false);
    training_on("cpu", false);
    training_on("cpu", true);
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"types", types},
                                   {"cast", cast},
                                   {"refused", refused},
                                   {"copies", copies},
                                   {"changed", changed},
                                   {"small_contributions", small_contributions},
                                   {"half_the_memory", half_the_memory},
                                   {"training", training},
                                   {0}});
}
