/* PyTorch's own samples (tests/outside/torch_samples.py writes them) through Weft's public API: outputs, gradients of
 * inputs and of parameters, and steps of optimizers, in f64 to 1e-9. torch_samples FILE. */
#include "core/core.h"
#include "layers/layers.h"
#include "optim/optim.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ENTRIES = 24 };

typedef struct entry {
    char kind, key[16];
    wf_shape shape; /* of a tensor; of numbers their count */
    double *value;
} entry;

typedef struct sample {
    char op[64];
    long number;
    int entries;
    entry of[MOST_ENTRIES];
} sample;

static const char *path;
static wf_ctx *ctx;
static wf_tape *tape;

/* --- reading
 * -----------------------------------------------------------------------------------------------------------
 */

static void read_entry(sample *s, char *line)
{
    entry *e = &s->of[s->entries++];
    int used = 0;
    *e = (entry){.kind = line[0]};
    char *at = line;
    if (sscanf(line, "%*c %15s%n", e->key, &used) == 1)
        at += used;
    if (e->kind == 't') {
        e->shape.rank = (int)strtol(at, &at, 10);
        for (int d = 0; d < e->shape.rank; d++)
            e->shape.dim[d] = strtoll(at, &at, 10);
    } else {
        int64_t n = 0;
        for (const char *c = at; *c; c++)
            n += *c == ' ';
        e->shape = WF_SHAPE(n);
    }
    const int64_t n = wf_shape_count(e->shape);
    e->value = calloc((size_t)n + 1, sizeof *e->value);
    for (int64_t i = 0; i < n; i++)
        e->value[i] = strtod(at, &at);
}

/* The next case; false at the end. */
static bool read_sample(FILE *file, sample *s)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    while (getline(&line, &room, file) > 0 && strncmp(line, "end", 3) != 0) {
        if (sscanf(line, "case %63s %ld", s->op, &s->number) == 2) {
            s->entries = 0;
            found = true;
        } else if (found && s->entries < MOST_ENTRIES) {
            read_entry(s, line);
        }
    }
    free(line);
    return found;
}

static void free_sample(sample *s)
{
    for (int i = 0; i < s->entries; i++)
        free(s->of[i].value);
}

static const entry *find_entry(const sample *s, const char *key)
{
    for (int i = 0; i < s->entries; i++)
        if (strcmp(s->of[i].key, key) == 0)
            return &s->of[i];
    return NULL;
}

static double option(const sample *s, const char *key, double otherwise)
{
    const entry *e = find_entry(s, key);
    return e && wf_shape_count(e->shape) > 0 ? e->value[0] : otherwise;
}

static void options(const sample *s, const char *key, int64_t *list)
{
    const entry *e = find_entry(s, key);
    for (int64_t i = 0; e && i < wf_shape_count(e->shape) && i < 3; i++)
        list[i] = (int64_t)e->value[i];
}

static wf_tensor *tensor_for(const sample *s, const char *key, wf_dtype dtype)
{
    const entry *e = find_entry(s, key);
    if (!e)
        return NULL;
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, e->shape, e->value);
    wf_tensor *tensor = wf_tensor_copy(wide, dtype, wf_order_default(e->shape.rank));
    wf_tensor_free(wide);
    return tensor;
}

/* --- comparing
 * ---------------------------------------------------------------------------------------------------------
 */

static void expect_values(const sample *s, const char *key, const wf_tensor *seen)
{
    const entry *e = find_entry(s, key);
    if (!e)
        return;
    const int64_t n = wf_shape_count(e->shape);
    char text[WF_SHAPE_TEXT];
    if (!seen || wf_tensor_count(seen) != n) {
        /* A gradient that nothing reaches is none. */
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += e->value[i] * e->value[i];
        WF_EXPECT(!seen && sum == 0, "%s %ld: %s is %s, should be %s (%s)", s->op, s->number, key,
                  seen ? "of another shape" : "missing", wf_shape_text(e->shape, text), wf_error_message());
        return;
    }
    double *value = calloc((size_t)n + 1, sizeof *value);
    WF_EXPECT_OK(wf_tensor_export(seen, value, wf_tensor_bytes(seen)));
    const double off = test_distance(n, value, e->value);
    WF_EXPECT(off < 1e-9, "%s %ld: %s is off by %g", s->op, s->number, key, off);
    free(value);
}

/* Differentiates y, and compares it and the gradients of x and of the parameters. */
static void compare_sample(const sample *s, wf_layer *layer, wf_var *x, wf_var *y)
{
    static const char *const param[][2] = {{"dw", "W"}, {"db", "b"}, {"dgamma", "gamma"}, {"dbeta", "beta"}};
    wf_tensor *dy = tensor_for(s, "dy", WF_F64);
    WF_EXPECT(y, "%s %ld: %s", s->op, s->number, wf_error_message());
    expect_values(s, "y", wf_value(y));
    if (y && wf_tensor_count(wf_value(y)) == wf_tensor_count(dy)) {
        wf_tensor *shaped = wf_tensor_new_ordered(ctx, WF_F64, wf_var_shape(y), wf_tensor_order(wf_value(y)));
        WF_EXPECT_OK(wf_tensor_import(shaped, find_entry(s, "dy")->value, wf_tensor_bytes(shaped)));
        WF_EXPECT_OK(wf_backward_from(y, shaped));
        expect_values(s, "dx", wf_grad(x));
        for (int i = 0; layer && i < 4; i++) {
            wf_param *p = wf_layer_param(layer, param[i][1]);
            if (p)
                expect_values(s, param[i][0], wf_param_grad(p));
        }
        wf_tensor_free(shaped);
    }
    wf_error_clear();
    wf_tensor_free(dy);
}

static void fill_param(const sample *s, wf_layer *layer, const char *key, const char *name)
{
    const entry *e = find_entry(s, key);
    wf_param *param = wf_layer_param(layer, name);
    WF_EXPECT(!e || param, "%s %ld: no parameter %s", s->op, s->number, name);
    if (e && param) {
        wf_tensor *value = wf_param_value(param);
        WF_EXPECT(wf_tensor_count(value) == wf_shape_count(e->shape), "%s %ld: %s has another shape", s->op, s->number,
                  name);
        WF_EXPECT_OK(wf_tensor_import(value, e->value, wf_tensor_bytes(value)));
    }
    wf_error_clear();
}

/* With places, if they are asked for. */
static wf_var *apply_sample(const sample *s, wf_layer *layer, wf_var *x)
{
    if (option(s, "places", 0) == 0)
        return wf_apply(layer, x);
    wf_var *places, *y = wf_max_pool_with_places(layer, x, &places);
    expect_values(s, "p", wf_value(wf_cast(places, WF_F64)));
    return y;
}

static void run_layer(const sample *s, wf_layer *layer, const char *weight)
{
    wf_tensor *x = tensor_for(s, "x", WF_F64);
    wf_var *leaf = wf_leaf(tape, x);
    WF_EXPECT(layer, "%s %ld: %s", s->op, s->number, wf_error_message());
    if (layer) {
        fill_param(s, layer, "w", weight);
        fill_param(s, layer, "b", "b");
        fill_param(s, layer, "gamma", "gamma");
        fill_param(s, layer, "beta", "beta");
        compare_sample(s, layer, leaf, apply_sample(s, layer, leaf));
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(layer);
    wf_tensor_free(x);
}

/* --- operations
 * --------------------------------------------------------------------------------------------------------
 */

/* The number before the "d" at the end of a name. */
static int dimensions_of(const sample *s)
{
    return s->op[strlen(s->op) - 2] - '0';
}

static void run_convolution(const sample *s, bool transposed)
{
    const wf_shape w = find_entry(s, "w")->shape;
    const int64_t groups = (int64_t)option(s, "groups", 1);
    wf_conv_opts opts = {.nd = dimensions_of(s),
                         .in = transposed ? w.dim[0] : w.dim[1] * groups,
                         .out = transposed ? w.dim[1] * groups : w.dim[0],
                         .groups = groups,
                         .no_bias = !find_entry(s, "b")};
    options(s, "kernel", opts.kernel_nd);
    options(s, "stride", opts.stride_nd);
    options(s, "dilation", opts.dilation_nd);
    options(s, "lo", opts.pad_lo_nd);
    options(s, "hi", opts.pad_hi_nd);
    options(s, "more", opts.output_pad_nd);
    run_layer(s, transposed ? wf_conv_transpose(ctx, opts) : wf_conv(ctx, opts), "W");
}

static wf_pool_opts pool_options(const sample *s)
{
    wf_pool_opts opts = {.nd = dimensions_of(s),
                         .ceil_mode = option(s, "ceil", 0) != 0,
                         .count_include_pad = option(s, "include", 0) != 0};
    options(s, "kernel", opts.kernel_nd);
    options(s, "stride", opts.stride_nd);
    options(s, "dilation", opts.dilation_nd);
    options(s, "lo", opts.pad_lo_nd);
    options(s, "hi", opts.pad_hi_nd);
    return opts;
}

static void run_pooling(const sample *s, bool average)
{
    run_layer(s, average ? wf_avg_pool(ctx, pool_options(s)) : wf_max_pool(ctx, pool_options(s)), "W");
}

static wf_shape size_of(const sample *s)
{
    wf_shape size = {.rank = dimensions_of(s)};
    options(s, "size", size.dim);
    return size;
}

static void run_adaptive(const sample *s, bool average)
{
    run_layer(s, average ? wf_adaptive_avg_pool(ctx, size_of(s)) : wf_adaptive_max_pool(ctx, size_of(s)), "W");
}

static void run_unpool(const sample *s, bool unused)
{
    (void)unused;
    wf_tensor *x = tensor_for(s, "x", WF_F64), *at = tensor_for(s, "at", WF_I64);
    wf_var *leaf = wf_leaf(tape, x);
    compare_sample(s, NULL, leaf, wf_max_unpool(leaf, wf_input(tape, at), pool_options(s), size_of(s)));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(at);
}

static wf_layer *row_norm(const sample *s, bool rms, double eps, bool no_gamma, bool no_beta)
{
    const entry *e = find_entry(s, "shape");
    wf_shape shape = {.rank = (int)wf_shape_count(e->shape)};
    for (int d = 0; d < shape.rank; d++)
        shape.dim[d] = (int64_t)e->value[d];
    if (rms)
        return wf_rmsnorm(ctx, (wf_rmsnorm_opts){.shape = shape, .eps = eps, .no_gamma = no_gamma});
    return wf_layernorm(ctx, (wf_layernorm_opts){.shape = shape, .eps = eps, .no_gamma = no_gamma, .no_beta = no_beta});
}

static void run_normalisation(const sample *s, bool unused)
{
    (void)unused;
    const bool no_gamma = !find_entry(s, "gamma"), no_beta = !find_entry(s, "beta");
    const double said = option(s, "eps", 0), eps = said == 0 ? WF_ZERO : said;
    const int64_t channels = find_entry(s, "x")->shape.dim[1];
    wf_layer *layer;
    if (strcmp(s->op, "batch_norm") == 0)
        layer = wf_batchnorm(
            ctx, (wf_batchnorm_opts){.channels = channels, .eps = eps, .no_gamma = no_gamma, .no_beta = no_beta});
    else if (strcmp(s->op, "group_norm") == 0)
        layer = wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = channels,
                                                      .groups = (int64_t)option(s, "groups", 1),
                                                      .eps = eps,
                                                      .no_gamma = no_gamma,
                                                      .no_beta = no_beta});
    else if (strcmp(s->op, "instance_norm") == 0)
        layer = wf_instancenorm(
            ctx, (wf_instancenorm_opts){.channels = channels, .eps = eps, .no_gamma = no_gamma, .no_beta = no_beta});
    else
        layer = row_norm(s, s->op[0] == 'r', eps, no_gamma, no_beta);
    run_layer(s, layer, "W");
}

static void run_prelu(const sample *s, bool unused)
{
    (void)unused;
    const int64_t n = wf_shape_count(find_entry(s, "w")->shape);
    run_layer(s, wf_prelu(ctx, (wf_prelu_opts){.channels = n > 1 ? n : 0}), "W");
}

static wf_var *activated(const sample *s, wf_var *x)
{
    static const struct {
        const char *name;
        wf_var *(*function)(wf_var *);
    } plain[] = {{"relu", wf_relu}, {"silu", wf_silu},       {"hardswish", wf_hard_swish}, {"selu", wf_selu},
                 {"tanh", wf_tanh}, {"sigmoid", wf_sigmoid}, {"softplus", wf_softplus}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(s->op, plain[i].name) == 0)
            return plain[i].function(x);
    if (strcmp(s->op, "leaky_relu") == 0)
        return wf_leaky_relu(x, option(s, "slope", 0.01));
    if (strcmp(s->op, "elu") == 0)
        return wf_elu(x, option(s, "slope", 1));
    if (strcmp(s->op, "gelu") == 0)
        return option(s, "tanh", 0) != 0 ? wf_gelu_tanh(x) : wf_gelu(x);
    const wf_dims dims = WF_DIMS((int)option(s, "dim", -1));
    return strcmp(s->op, "softmax") == 0 ? wf_softmax_over(x, dims) : wf_log_softmax_over(x, dims);
}

static void run_activation(const sample *s, bool unused)
{
    (void)unused;
    wf_tensor *x = tensor_for(s, "x", WF_F64);
    wf_var *leaf = wf_leaf(tape, x);
    compare_sample(s, NULL, leaf, activated(s, leaf));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
}

static void run_loss(const sample *s, bool labels)
{
    wf_tensor *x = tensor_for(s, "x", WF_F64), *t = tensor_for(s, "t", labels ? WF_I64 : WF_F64);
    wf_var *leaf = wf_leaf(tape, x), *y, *target = labels ? NULL : wf_leaf(tape, t);
    const wf_label_opts opts = {.ignores = true, .ignored = (int64_t)option(s, "ignored", -100)};
    if (labels)
        y = s->op[0] == 'n' ? wf_nll(leaf, t, opts) : wf_softmax_cross_entropy(leaf, t, opts);
    else if (s->op[0] == 'b')
        y = wf_bce_logits(leaf, t);
    else
        y = s->op[0] == 'm' ? wf_mse(leaf, target) : wf_l1(leaf, target);
    compare_sample(s, NULL, leaf, y);
    if (target && s->op[0] != 'b')
        expect_values(s, "dt", wf_grad(target));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(t);
}

/* --- optimizers
 * --------------------------------------------------------------------------------------------------------
 */

static wf_var *apply_nothing(wf_layer *self, void *user, wf_var *x)
{
    (void)self, (void)user;
    return x;
}

static double or_zero(const sample *s, const char *key, double otherwise)
{
    const double said = option(s, key, otherwise);
    return said == 0 ? WF_ZERO : said;
}

static wf_optim *optimizer_of(const sample *s, wf_layer *model)
{
    const entry *betas = find_entry(s, "betas");
    const bool decoupled = strcmp(s->op, "AdamW") == 0;
    if (strcmp(s->op, "SGD") == 0)
        return wf_sgd(model, (wf_sgd_opts){.lr = option(s, "lr", 1e-3),
                                           .momentum = option(s, "momentum", 0),
                                           .weight_decay = option(s, "weight_decay", 0),
                                           .nesterov = option(s, "nesterov", 0) != 0});
    if (strcmp(s->op, "RMSprop") == 0)
        return wf_rmsprop(model, (wf_rmsprop_opts){.lr = option(s, "lr", 1e-2),
                                                   .alpha = or_zero(s, "alpha", 0.99),
                                                   .eps = option(s, "eps", 1e-8),
                                                   .weight_decay = option(s, "weight_decay", 0)});
    const wf_adam_opts opts = {.lr = option(s, "lr", 1e-3),
                               .beta1 = betas ? betas->value[0] : 0,
                               .beta2 = betas ? betas->value[1] : 0,
                               .eps = option(s, "eps", 0),
                               .weight_decay = option(s, "weight_decay", 0)};
    return decoupled ? wf_adamw(model, opts) : wf_adam(model, opts);
}

/* The parameter is the weight of a linear layer, whose gradient is dy for the input 1. */
static void run_optimizer(const sample *s, bool unused)
{
    (void)unused;
    enum { ROWS = 3, COLUMNS = 5 };
    wf_layer *model = wf_module(ctx, apply_nothing, NULL);
    wf_layer *linear =
        wf_module_add(model, "l", wf_linear(ctx, (wf_linear_opts){.in = COLUMNS, .out = ROWS, .no_bias = true}));
    fill_param(s, linear, "x", "W");
    wf_optim *optim = optimizer_of(s, model);
    const entry *steps = find_entry(s, "g");
    double identity[COLUMNS * COLUMNS] = {0};
    for (int i = 0; i < COLUMNS; i++)
        identity[i * COLUMNS + i] = 1;
    for (int64_t step = 0; step < steps->shape.dim[0]; step++) {
        double turned[COLUMNS * ROWS];
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLUMNS; c++)
                turned[c * ROWS + r] = steps->value[(step * ROWS + r) * COLUMNS + c];
        wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(COLUMNS, COLUMNS), identity);
        wf_tensor *g = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(COLUMNS, ROWS), turned);
        wf_var *y = wf_apply(linear, wf_input(tape, x));
        WF_EXPECT_OK(wf_optim_step(optim, wf_sum(wf_mul(y, wf_input(tape, g)))));
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(x);
        wf_tensor_free(g);
    }
    expect_values(s, "y", wf_param_value(wf_layer_param(linear, "W")));
    wf_optim_free(optim);
    wf_layer_free(model);
}

static const struct {
    const char *name; /* or how it begins, up to '*' */
    void (*run)(const sample *s, bool which);
    bool which;
} operations[] = {{"conv_transpose*", run_convolution, true},
                  {"conv*", run_convolution, false},
                  {"max_pool*", run_pooling, false},
                  {"avg_pool*", run_pooling, true},
                  {"max_unpool*", run_unpool, false},
                  {"adaptive_max_pool*", run_adaptive, false},
                  {"adaptive_avg_pool*", run_adaptive, true},
                  {"batch_norm", run_normalisation, false},
                  {"layer_norm", run_normalisation, false},
                  {"rms_norm", run_normalisation, false},
                  {"group_norm", run_normalisation, false},
                  {"instance_norm", run_normalisation, false},
                  {"prelu", run_prelu, false},
                  {"mse_loss", run_loss, false},
                  {"l1_loss", run_loss, false},
                  {"binary_cross_entropy_with_logits", run_loss, false},
                  {"cross_entropy", run_loss, true},
                  {"nll_loss", run_loss, true},
                  {"SGD", run_optimizer, false},
                  {"Adam*", run_optimizer, false},
                  {"RMSprop", run_optimizer, false},
                  {"*", run_activation, false}};

static void run_sample(const sample *s)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const size_t length = strcspn(operations[i].name, "*");
        const bool begins = operations[i].name[length] == '*';
        if (strncmp(s->op, operations[i].name, length) == 0 && (begins || s->op[length] == '\0')) {
            operations[i].run(s, operations[i].which);
            return;
        }
    }
}

static void samples(void)
{
    int64_t ran = 0, wrong = 0;
    FILE *file = fopen(path, "r");
    WF_EXPECT(file, "no file %s", path);
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu"), .dtype = WF_F64, .threads = 1});
    tape = wf_tape_new(ctx);
    static sample s;
    while (file && read_sample(file, &s)) {
        const int64_t before = test_failures();
        run_sample(&s);
        ran++;
        wrong += test_failures() > before;
        free_sample(&s);
    }
    if (file)
        fclose(file);
    printf("  %lld samples, %lld of them wrong\n", (long long)ran, (long long)wrong);
    WF_EXPECT(ran > 0, "no samples in %s", path);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "torch_samples FILE\n");
        return 1;
    }
    path = argv[1];
    return test_main(1, argv, (test_case[]){{"samples", samples}, {0}});
}
