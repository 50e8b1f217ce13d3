/* What layers compute beside their gradients: initial values, output shapes, running statistics, noise, modes,
 * archives, and the same on every device. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

static wf_ctx *ctx; /* f64 on ref */
static wf_tape *tape;

static double *fetch(const wf_tensor *t)
{
    double *host = calloc((size_t)wf_tensor_count(t) + 1, sizeof *host);
    wf_tensor *copy = wf_tensor_copy(t, WF_F64, WF_ROW_MAJOR);
    WF_EXPECT(copy, "%s", wf_error_message());
    if (copy)
        WF_EXPECT_OK(wf_tensor_export(copy, host, wf_tensor_bytes(copy)));
    wf_tensor_free(copy);
    return host;
}

static double *initial(wf_layer *layer, const char *path)
{
    return fetch(wf_param_value(wf_layer_param(layer, path)));
}

static wf_tensor *tensor_of(wf_ctx *c, wf_shape shape, uint64_t seed)
{
    test_rng rng = {seed};
    wf_tensor *wide = wf_tensor_new(c, WF_F64, shape);
    const int64_t n = wf_shape_count(shape);
    double *host = malloc((size_t)(n + 1) * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = test_uniform(&rng, -1, 1);
    WF_EXPECT_OK(wf_tensor_import(wide, host, wf_tensor_bytes(wide)));
    free(host);
    wf_tensor *t = wf_tensor_copy(wide, wf_ctx_dtype(c), wf_order_default(shape.rank));
    wf_tensor_free(wide);
    return t;
}

/* Mean, standard deviation and largest magnitude of n numbers. */
static void moments(int64_t n, const double *x, double *mean, double *deviation, double *most)
{
    double sum = 0, squares = 0;
    *most = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
        *most = fmax(*most, fabs(x[i]));
    }
    *mean = sum / (double)n;
    *deviation = sqrt(squares / (double)n - *mean * *mean);
}

/* Each initialiser on a filter of 20000 elements with fan_in 100 and fan_out 200: its moments within 4 of their own
 * standard deviations. */
static void initialisers(void)
{
    const struct {
        wf_init init;
        double mean, deviation, most; /* 0: not bounded */
    } cases[] = {
        {{WF_INIT_DEFAULT, 0, 0}, 0, 0.1, 0},
        {{WF_INIT_CONSTANT, 0.75, 0}, 0.75, 0, 0.75},
        {{WF_INIT_NORMAL, 0.5, 0.02}, 0.5, 0.02, 0},
        {{WF_INIT_UNIFORM, -0.5, 1.5}, 0.5, 2 / sqrt(12), 1.5},
        {{WF_INIT_LECUN_NORMAL, 2, 0}, 0, 0.2, 0},
        {{WF_INIT_LECUN_UNIFORM, 0, 0}, 0, 0.1, sqrt(0.03)},
        {{WF_INIT_GLOROT_NORMAL, 0, 0}, 0, sqrt(2.0 / 300), 0},
        {{WF_INIT_GLOROT_UNIFORM, 0, 0}, 0, sqrt(2.0 / 300), sqrt(6.0 / 300)},
        {{WF_INIT_HE_NORMAL, 0, 0}, 0, sqrt(0.02), 0},
        {{WF_INIT_HE_UNIFORM, 0.5, 0}, 0, 0.5 * sqrt(0.02), 0.5 * sqrt(0.06)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_layer *layer =
            wf_conv2d(ctx, (wf_conv_opts){.in = 4, .out = 200, .kernel = 5, .stride = 5, .w_init = cases[i].init});
        double *w = initial(layer, "W"), mean, deviation, most;
        moments(20000, w, &mean, &deviation, &most);
        const double error = cases[i].deviation / sqrt(20000);
        WF_EXPECT(fabs(mean - cases[i].mean) <= 4 * error + 1e-12, "initialiser %zu has mean %g", i, mean);
        WF_EXPECT(fabs(deviation - cases[i].deviation) <= 4 * error + 1e-7, "initialiser %zu has deviation %g", i,
                  deviation);
        WF_EXPECT(cases[i].most == 0 || (most <= cases[i].most && most >= 0.99 * cases[i].most),
                  "initialiser %zu goes to %g, should go to %g", i, most, cases[i].most);
        free(w);
        double *b = initial(layer, "b");
        moments(200, b, &mean, &deviation, &most);
        WF_EXPECT(most == 0, "a bias starts at %g", most);
        free(b);
        wf_layer_free(layer);
    }
}

/* One output of a transposed convolution sums over in/groups k.../stride... products. */
static void initial_spread_transposed(void)
{
    wf_layer *layer =
        wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 50, .out = 40, .kernel = 4, .stride = 2, .groups = 2});
    double *w = initial(layer, "W"), mean, deviation, most;
    moments(16000, w, &mean, &deviation, &most);
    WF_EXPECT(fabs(deviation - 0.1) < 0.003, "deviation %g, should be 1/sqrt(25 16 / 4)", deviation);
    free(w);
    wf_layer_free(layer);
}

/* W W^T (or W^T W where there are more rows than columns) is the square of the scale times the identity. */
static void orthogonal(void)
{
    const int64_t sizes[][2] = {{6, 10}, {10, 6}, {7, 7}, {1, 5}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int64_t out = sizes[s][0], in = sizes[s][1], few = out < in ? out : in, many = out < in ? in : out;
        wf_layer *layer =
            wf_linear(ctx, (wf_linear_opts){.in = in, .out = out, .w_init = {WF_INIT_ORTHOGONAL, 1.5, 0}});
        double *w = initial(layer, "W");
        for (int64_t i = 0; i < few; i++)
            for (int64_t j = 0; j < few; j++) {
                double dot = 0;
                for (int64_t k = 0; k < many; k++)
                    dot += out < in ? w[i * in + k] * w[j * in + k] : w[k * in + i] * w[k * in + j];
                WF_EXPECT(fabs(dot - (i == j ? 2.25 : 0)) < 1e-12, "[%lld,%lld]: %lld . %lld is %g", (long long)out,
                          (long long)in, (long long)i, (long long)j, dot);
            }
        free(w);
        wf_layer_free(layer);
    }
}

static wf_layer *two(wf_ctx *c)
{
    const wf_conv_opts o = {.in = 3, .out = 3, .kernel = 3};
    wf_layer *first = wf_conv2d(c, o), *second = wf_conv2d(c, o);
    return wf_sequential(c, WF_LAYERS(first, second));
}

static bool differ(int64_t n, const double *a, const double *b)
{
    return test_distance(n, a, b) > 0;
}

/* Values are those of the path and the seed, not of the order of first use; no two layers share them. */
static void keyed_by_path(void)
{
    wf_ctx *c[3];
    wf_layer *m[3], *reference;
    double *w[3][2];
    for (int i = 0; i < 3; i++) {
        c[i] = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = i < 2 ? 5 : 6});
        m[i] = two(c[i]);
        for (int k = 0; k < 2; k++) {
            const int at = i == 1 ? 1 - k : k; /* the second context asks in the other order */
            w[i][at] = initial(m[i], at ? "1/W" : "0/W");
        }
    }
    reference = two(c[0]);
    double *other = initial(reference, "0/W");
    WF_EXPECT(!differ(81, w[0][0], w[1][0]) && !differ(81, w[0][1], w[1][1]), "values depend on the order of use");
    WF_EXPECT(differ(81, w[0][0], w[0][1]), "two layers start equal");
    WF_EXPECT(differ(81, w[0][0], w[2][0]), "two seeds start equal");
    WF_EXPECT(differ(81, w[0][0], other), "two models start equal");
    free(other);
    wf_layer_free(reference);
    for (int i = 0; i < 3; i++) {
        free(w[i][0]);
        free(w[i][1]);
        wf_layer_free(m[i]);
        WF_EXPECT_OK(wf_ctx_free(c[i]));
    }
}

/* A parameter that is part of a larger one starts as the slice of it. */
static void part_of_whole(void)
{
    const wf_init_kind kinds[] = {WF_INIT_LECUN_NORMAL, WF_INIT_UNIFORM, WF_INIT_ORTHOGONAL};
    for (size_t k = 0; k < 3; k++) {
        wf_layer *whole = wf_conv2d(ctx, (wf_conv_opts){.in = 5, .out = 6, .kernel = 3, .w_init = {kinds[k], 1, 2}});
        wf_layer *part = wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 4, .kernel = 3, .w_init = {kinds[k], 1, 2}});
        wf_param *p = wf_layer_param(part, "W");
        WF_EXPECT(wf_layer_named(part, "m") && wf_layer_named(whole, "m"), "%s", wf_error_message());
        p->global = WF_SHAPE(6, 5, 3, 3);
        p->box = (wf_box){.rank = 4, .lo = {1, 2, 0, 0}, .hi = {5, 5, 3, 3}};
        p->fan_in = 45;
        double *all = initial(whole, "W"), *some = initial(part, "W");
        for (int64_t f = 0; f < 4; f++)
            for (int64_t i = 0; i < 27; i++)
                WF_EXPECT(some[f * 27 + i] == all[(f + 1) * 45 + 18 + i], "initialiser %zu: [%lld,%lld] is no slice", k,
                          (long long)f, (long long)i);
        free(all);
        free(some);
        wf_layer_free(whole);
        wf_layer_free(part);
    }
}

/* Frees the layer. */
static void expect_shape(wf_layer *layer, wf_shape in, wf_shape out)
{
    char text[2][WF_SHAPE_TEXT];
    wf_tensor *x = tensor_of(ctx, in, 1);
    wf_var *y = wf_apply(layer, wf_input(tape, x));
    WF_EXPECT(y && wf_shape_equal(wf_var_shape(y), out), "%s: gives %s, should give %s %s", layer->kind->name,
              wf_shape_text(wf_var_shape(y), text[0]), wf_shape_text(out, text[1]), y ? "" : wf_error_message());
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

static void shapes(void)
{
    const wf_conv_opts k4 = {.in = 3, .out = 5, .kernel = 4, .stride = 2, .pad = 1};
    const wf_conv_opts asymmetric = {.in = 3, .out = 5, .kernel = 3, .dilation = 2, .pad_lo_nd = {1, 0}};
    const wf_conv_opts longer = {.in = 3, .out = 5, .kernel = 3, .stride = 2, .pad = 1, .output_pad_nd = {1, 0}};
    expect_shape(wf_conv2d(ctx, k4), WF_SHAPE(2, 3, 9, 8), WF_SHAPE(2, 5, 4, 4));
    expect_shape(wf_conv2d(ctx, k4), WF_SHAPE(0, 3, 9, 8), WF_SHAPE(0, 5, 4, 4));
    expect_shape(wf_conv2d(ctx, asymmetric), WF_SHAPE(2, 3, 6, 6), WF_SHAPE(2, 5, 3, 2));
    expect_shape(wf_conv1d(ctx, k4), WF_SHAPE(2, 3, 10), WF_SHAPE(2, 5, 5));
    expect_shape(wf_conv3d(ctx, k4), WF_SHAPE(1, 3, 4, 6, 8), WF_SHAPE(1, 5, 2, 3, 4));
    expect_shape(wf_conv_transpose2d(ctx, k4), WF_SHAPE(2, 3, 4, 1), WF_SHAPE(2, 5, 8, 2));
    expect_shape(wf_conv_transpose2d(ctx, longer), WF_SHAPE(2, 3, 4, 4), WF_SHAPE(2, 5, 8, 7));
    expect_shape(wf_linear(ctx, (wf_linear_opts){.in = 12, .out = 7}), WF_SHAPE(2, 3, 2, 2), WF_SHAPE(2, 7));
    const wf_pool_opts floor = {.kernel = 3, .stride = 2}, ceil = {.kernel = 3, .stride = 2, .ceil_mode = true};
    const wf_pool_opts dropped = {.kernel = 2, .stride = 3, .pad = 1, .ceil_mode = true}, plain = {.kernel = 2};
    expect_shape(wf_max_pool2d(ctx, floor), WF_SHAPE(2, 3, 6, 7), WF_SHAPE(2, 3, 2, 3));
    expect_shape(wf_max_pool2d(ctx, ceil), WF_SHAPE(2, 3, 6, 7), WF_SHAPE(2, 3, 3, 3));
    expect_shape(wf_avg_pool1d(ctx, dropped), WF_SHAPE(2, 3, 2), WF_SHAPE(2, 3, 1));
    expect_shape(wf_avg_pool3d(ctx, plain), WF_SHAPE(2, 3, 4, 6, 5), WF_SHAPE(2, 3, 2, 3, 2));
    expect_shape(wf_global_max_pool(ctx), WF_SHAPE(2, 3, 4, 6), WF_SHAPE(2, 3, 1, 1));
}

static void expect_near(const char *what, double seen, double right)
{
    WF_EXPECT(fabs(seen - right) < 1e-12 * (1 + fabs(right)), "%s is %.15g, should be %.15g", what, seen, right);
}

/* The mean of 4 and 6, one of three places being padding. */
static void padding_of_averages(void)
{
    for (int padded = 0; padded < 2; padded++) {
        wf_layer *layer =
            wf_avg_pool1d(ctx, (wf_pool_opts){.kernel = 3, .stride = 2, .pad = 1, .count_include_pad = padded});
        wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 3), (const double[]){4, 6, 2});
        double *y = fetch(wf_value(wf_apply(layer, wf_input(tape, x))));
        expect_near("the first average", y[0], padded ? 10.0 / 3 : 5);
        free(y);
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(x);
        wf_layer_free(layer);
    }
}

/* Channel 0 of the batch is 1, 2, 3, 6: mean 3, biased variance 3.5, unbiased 14/3. */
static void running_statistics(void)
{
    const double host[] = {1, 10, 2, 10, 3, 10, 6, 10};
    wf_layer *layer = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 2, .decay = 0.75, .eps = 0.5});
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(4, 2), host);
    wf_tensor *none = wf_tensor_new(ctx, WF_F64, WF_SHAPE(0, 2)), *one = wf_tensor_view(x, (wf_box){2, {3, 0}, {4, 2}});
    double *y = fetch(wf_value(wf_apply(layer, wf_input(tape, x))));
    expect_near("y in training", y[6], 3 / sqrt(4));
    expect_near("y of a constant channel", y[7], 0);
    free(y);
    WF_EXPECT(wf_apply(layer, wf_input(tape, none)), "%s", wf_error_message()); /* changes nothing */
    double *mean = initial(layer, "avg_mean"), *var = initial(layer, "avg_var");
    expect_near("avg_mean", mean[0], 0.25 * 3);
    expect_near("avg_mean of a constant", mean[1], 2.5);
    expect_near("avg_var", var[0], 0.75 + 0.25 * 14 / 3);
    expect_near("avg_var of a constant", var[1], 0.75);
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    wf_var *out = wf_apply(layer, wf_input(tape, one));
    y = fetch(wf_value(out));
    expect_near("y in evaluation", y[0], (6 - mean[0]) / sqrt(var[0] + 0.5));
    WF_EXPECT(!out->needs_grad, "evaluation records");
    double *after = initial(layer, "avg_mean");
    WF_EXPECT(!differ(2, after, mean), "evaluation changes the running mean");
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT(!wf_param_trainable(wf_layer_param(layer, "avg_var")), "avg_var is trainable");
    free(y);
    free(mean);
    free(var);
    free(after);
    wf_tensor_free(one);
    wf_tensor_free(none);
    wf_tensor_free(x);
    wf_layer_free(layer);
}

/* y of the formula for x [N,C,H,W]: element i is normalised over all j of which same(i, j) is true. */
typedef bool (*same_group)(const int64_t i[4], const int64_t j[4]);

static bool same_pixel(const int64_t i[4], const int64_t j[4])
{
    return i[0] == j[0] && i[2] == j[2] && i[3] == j[3];
}

static bool same_sample(const int64_t i[4], const int64_t j[4])
{
    return i[0] == j[0];
}

static bool same_channel(const int64_t i[4], const int64_t j[4])
{
    return i[0] == j[0] && i[1] == j[1];
}

static bool same_row(const int64_t i[4], const int64_t j[4])
{
    return same_channel(i, j) && i[2] == j[2];
}

static bool same_pair(const int64_t i[4], const int64_t j[4])
{
    return i[0] == j[0] && i[1] / 2 == j[1] / 2;
}

enum { NORM_N = 2, NORM_C = 4, NORM_H = 3, NORM_W = 5, NORM_ALL = NORM_N * NORM_C * NORM_H * NORM_W };
static const int64_t dim[4] = {NORM_N, NORM_C, NORM_H, NORM_W};

static void place_of(int64_t at, int64_t i[4])
{
    for (int d = 3; d >= 0; d--) {
        i[d] = at % dim[d];
        at /= dim[d];
    }
}

static double normalised(const double *x, int64_t at, same_group same, bool about_zero, double eps)
{
    int64_t i[4], j[4], n = 0;
    double sum = 0, squares = 0;
    place_of(at, i);
    for (int64_t other = 0; other < NORM_ALL; other++) {
        place_of(other, j);
        if (!same(i, j))
            continue;
        n++;
        sum += x[other];
        squares += x[other] * x[other];
    }
    const double mean = about_zero ? 0 : sum / (double)n;
    return (x[at] - mean) / sqrt(squares / (double)n - mean * mean + eps);
}

static void group_norms(void)
{
    const struct {
        wf_layer *layer;
        same_group same;
        double eps;
        bool about_zero;
    } all[] = {
        {wf_layernorm(ctx, (wf_layernorm_opts){.channels = NORM_C}), same_pixel, 1e-5, false},
        {wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(NORM_C, NORM_H, NORM_W)}), same_sample, 1e-5, false},
        {wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(NORM_W), .eps = 0.5}), same_row, 0.5, false},
        {wf_rmsnorm(ctx, (wf_rmsnorm_opts){.shape = WF_SHAPE(NORM_W), .eps = WF_ZERO}), same_row, 0, true},
        {wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = NORM_C, .groups = 2}), same_pair, 1e-5, false},
        {wf_instancenorm(ctx, (wf_instancenorm_opts){.channels = NORM_C}), same_channel, 1e-5, false},
    };
    wf_tensor *x = tensor_of(ctx, WF_SHAPE(NORM_N, NORM_C, NORM_H, NORM_W), 31);
    double *numbers = fetch(x);
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        WF_EXPECT_OK(wf_tape_set_mode(tape, a % 2 ? WF_EVAL : WF_TRAIN));
        double *y = fetch(wf_value(wf_apply(all[a].layer, wf_input(tape, x))));
        for (int64_t i = 0; i < NORM_ALL; i++)
            expect_near("normalised", y[i], normalised(numbers, i, all[a].same, all[a].about_zero, all[a].eps));
        free(y);
        WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_layer_free(all[a].layer);
    }
    free(numbers);
    wf_tensor_free(x);
}

/* The output of a layer in a fresh step of this iteration, after `skip` other applications. */
static double *noisy(wf_layer *layer, const wf_tensor *x, wf_mode mode, int64_t iteration, int skip)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, iteration));
    WF_EXPECT_OK(wf_tape_set_mode(tape, mode));
    wf_var *in = wf_input(tape, x), *y = wf_apply(layer, in);
    for (; skip > 0; skip--)
        y = wf_apply(layer, in);
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    return fetch(wf_value(y));
}

static void noise(void)
{
    const int64_t n = 2 * 4 * 16 * 16;
    wf_layer *layer = wf_conv2d(
        ctx, (wf_conv_opts){.in = 1, .out = 4, .kernel = 1, .noise = 0.5, .w_init = {WF_INIT_CONSTANT, 0, 0}});
    wf_tensor *x = tensor_of(ctx, WF_SHAPE(2, 1, 16, 16), 3);
    double *a = noisy(layer, x, WF_TRAIN, 3, 0), *again = noisy(layer, x, WF_TRAIN, 3, 0);
    double *next = noisy(layer, x, WF_TRAIN, 4, 0), *second = noisy(layer, x, WF_TRAIN, 3, 1);
    double *quiet = noisy(layer, x, WF_EVAL, 3, 0), mean, deviation, most;
    moments(n, a, &mean, &deviation, &most);
    WF_EXPECT(fabs(mean) < 0.05 && fabs(deviation - 0.5) < 0.05, "noise of mean %g, deviation %g", mean, deviation);
    WF_EXPECT(!differ(n, a, again), "noise is not repeatable");
    WF_EXPECT(differ(n, a, next), "two iterations have one noise");
    WF_EXPECT(differ(n, a, second), "two applications have one noise");
    moments(n, quiet, &mean, &deviation, &most);
    WF_EXPECT(most == 0, "evaluation has noise up to %g", most);
    double *all[] = {a, again, next, second, quiet};
    for (int i = 0; i < 5; i++)
        free(all[i]);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

static wf_layer *model(wf_ctx *c)
{
    wf_layer *conv = wf_conv2d(c, (wf_conv_opts){.in = 2, .out = 4, .kernel = 3, .groups = 2});
    wf_layer *norm = wf_batchnorm(c, (wf_batchnorm_opts){.channels = 4});
    wf_layer *up = wf_conv_transpose2d(c, (wf_conv_opts){.in = 4, .out = 3, .kernel = 2, .stride = 2});
    return wf_sequential(c, WF_LAYERS(conv, norm, up));
}

/* What is saved from one model and loaded into another makes them equal, running statistics included. */
static void archives(void)
{
    wf_layer *from = model(ctx), *to = model(ctx), *other = two(ctx);
    wf_tensor *x = tensor_of(ctx, WF_SHAPE(3, 2, 6, 5), 9);
    WF_EXPECT(wf_apply(from, wf_input(tape, x)), "%s", wf_error_message());
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(wf_layer_archive(from, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_layer_archive(to, archive));
    const char *paths[] = {"0/W", "0/b", "1/gamma", "1/beta", "1/avg_mean", "1/avg_var", "2/W", "2/b"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        double *a = initial(from, paths[i]), *b = initial(to, paths[i]);
        WF_EXPECT(!differ(wf_shape_count(wf_param_shape(wf_layer_param(from, paths[i]))), a, b), "%s differs",
                  paths[i]);
        free(a);
        free(b);
    }
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_layer_archive(other, archive));
    wf_archive_free(archive);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_layer_free(from);
    wf_layer_free(to);
    wf_layer_free(other);
}

/* A tied parameter is counted and saved once, and comes back to both. */
static void tied_archives(void)
{
    wf_layer *model[2];
    for (int i = 0; i < 2; i++) {
        model[i] = wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 3}),
                                                wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 3})));
        WF_EXPECT_OK(wf_layer_tie(model[i], "1/W", "0/W"));
    }
    WF_EXPECT(wf_layer_param_count(model[0]) == 9 + 3 + 3, "%lld elements", (long long)wf_layer_param_count(model[0]));
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(wf_layer_archive(model[0], archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_layer_archive(model[1], archive));
    wf_archive_free(archive);
    double *a = initial(model[0], "0/W"), *b = initial(model[1], "0/W");
    WF_EXPECT(!differ(9, a, b), "0/W differs");
    WF_EXPECT(wf_param_value(model[1]->children[1]->params[0]) == wf_param_value(model[1]->children[0]->params[0]),
              "1/W is not 0/W");
    free(a);
    free(b);
    /* The other layer goes on with the value. */
    wf_param *heir = model[0]->children[1]->params[0];
    const wf_tensor *value = wf_param_value(heir);
    wf_layer_free(model[0]->children[0]);
    model[0]->children[0] = model[0]->children[1];
    model[0]->n_children = 1;
    WF_EXPECT(!heir->tied && wf_param_value(heir) == value, "the value went with the first layer");
    wf_layer_free(model[0]);
    wf_layer_free(model[1]);
}

/* Each list is tied in this order, and the first or the last one then stands for all four. */
static void chained_ties(void)
{
    static const struct {
        const char *tie[3][2], *stands;
    } cases[] = {{{{"1/W", "0/W"}, {"2/W", "1/W"}, {"3/W", "2/W"}}, "0/W"},
                 {{{"0/W", "1/W"}, {"1/W", "2/W"}, {"2/W", "3/W"}}, "3/W"},
                 {{{"0/W", "1/W"}, {"2/W", "3/W"}, {"1/W", "2/W"}}, "3/W"}};
    for (int i = 0; i < 3; i++) {
        wf_layer *part[4];
        for (int k = 0; k < 4; k++)
            part[k] = wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 3});
        wf_layer *model = wf_sequential(ctx, 4, part);
        for (int k = 0; k < 3; k++)
            WF_EXPECT_OK(wf_layer_tie(model, cases[i].tie[k][0], cases[i].tie[k][1]));
        wf_param *stands = wf_layer_param(model, cases[i].stands);
        WF_EXPECT(stands && !stands->tied, "case %d: %s does not stand for the others", i, cases[i].stands);
        for (int k = 0; k < 4; k++)
            WF_EXPECT(wf_param_of(part[k]->params[0]) == stands &&
                          wf_param_value(part[k]->params[0]) == wf_param_value(stands),
                      "case %d: %d/W is another parameter", i, k);
        WF_EXPECT(wf_layer_param_count(model) == 9 + 4 * 3, "case %d: %lld elements", i,
                  (long long)wf_layer_param_count(model));
        wf_layer_free(model);
    }
}

/* wf_input gets no gradient, nor does a frozen parameter. */
static void unwanted(void)
{
    wf_layer *layer = wf_conv2d(ctx, (wf_conv_opts){.in = 2, .out = 3, .kernel = 3});
    wf_tensor *t = tensor_of(ctx, WF_SHAPE(2, 2, 4, 4), 4);
    WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(layer, "W"), false));
    wf_var *x = wf_input(tape, t), *loss = wf_sum(wf_apply(layer, x));
    WF_EXPECT_OK(wf_backward(loss));
    WF_EXPECT(!wf_grad(x) && !wf_param_grad(wf_layer_param(layer, "W")), "a gradient that was not asked for");
    double *db = fetch(wf_param_grad(wf_layer_param(layer, "b")));
    for (int i = 0; i < 3; i++)
        expect_near("db", db[i], 8);
    free(db);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(t);
    wf_layer_free(layer);
}

/* y, dx and dw of a layer on a device, in f32; the caller frees them. */
typedef struct outcome {
    int64_t n[3];
    double *v[3];
} outcome;

static outcome on_device(const char *device, int which, wf_shape shape)
{
    wf_ctx *c = wf_ctx_new((wf_ctx_opts){.device = device, .seed = 11});
    wf_layer *layer =
        which == 0 ? wf_conv_transpose2d(
                         c, (wf_conv_opts){.in = 8, .out = 16, .kernel = 3, .dilation = 3, .pad = 1, .output_pad = 2})
        : which == 1 ? wf_conv_transpose2d(
                           c, (wf_conv_opts){.in = 8, .out = 16, .kernel = 4, .stride = 3, .output_pad_nd = {2, 1}})
        : which == 2
            ? wf_conv1d(c, (wf_conv_opts){.in = 8, .out = 16, .kernel = 3, .act = WF_ACT_RELU, .noise = 0.3})
            : wf_conv2d(c, (wf_conv_opts){.in = 8, .out = 16, .kernel = 3, .pad_lo_nd = {2}, .pad_hi_nd = {-1}});
    wf_tape *t = wf_tape_new(c);
    wf_tensor *host = tensor_of(c, shape, 12);
    wf_var *x = wf_leaf(t, host), *y = wf_apply(layer, x), *square = wf_mul(y, y), *loss = wf_sum(square);
    WF_EXPECT(loss, "%s: %s", device, wf_error_message());
    outcome o = {.n = {wf_shape_count(wf_var_shape(y)), wf_shape_count(shape),
                       wf_shape_count(wf_param_shape(wf_layer_param(layer, "W")))}};
    o.v[0] = fetch(wf_value(y));
    WF_EXPECT_OK(wf_backward(loss));
    o.v[1] = fetch(wf_grad(x));
    o.v[2] = fetch(wf_param_grad(wf_layer_param(layer, "W")));
    wf_tensor_free(host);
    wf_tape_free(t);
    wf_layer_free(layer);
    WF_EXPECT_OK(wf_ctx_free(c));
    return o;
}

static void devices_agree(void)
{
    static const char *const names[] = {"y", "dx", "dw"};
    for (int which = 0; which < 4; which++) {
        const wf_shape shape = which == 2 ? WF_SHAPE(2, 8, 9) : WF_SHAPE(2, 8, 5, 6);
        outcome a = on_device("ref", which, shape), b = on_device(test_device("cpu"), which, shape);
        for (int i = 0; i < 3; i++) {
            WF_EXPECT(a.n[i] == b.n[i] && test_distance(a.n[i], b.v[i], a.v[i]) < 1e-4, "case %d: %s is off by %g",
                      which, names[i], test_distance(a.n[i], b.v[i], a.v[i]));
            free(a.v[i]);
            free(b.v[i]);
        }
    }
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = 1});
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"initialisers", initialisers},
                                               {"initial_spread_transposed", initial_spread_transposed},
                                               {"orthogonal", orthogonal},
                                               {"keyed_by_path", keyed_by_path},
                                               {"part_of_whole", part_of_whole},
                                               {"shapes", shapes},
                                               {"padding_of_averages", padding_of_averages},
                                               {"running_statistics", running_statistics},
                                               {"group_norms", group_norms},
                                               {"noise", noise},
                                               {"archives", archives},
                                               {"tied_archives", tied_archives},
                                               {"chained_ties", chained_ties},
                                               {"unwanted", unwanted},
                                               {"devices_agree", devices_agree},
                                               {0}});
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
