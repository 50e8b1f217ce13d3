/* Known values of small layers: layerscale, stochastic depth, positions, embedding; of padding on one side and places
 * of maxima; and truncated normal initial values. */
#include "layers/layers.h"
#include "tests/optim/optim_model.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

static wf_ctx *ctx; /* f64 on ref */
static wf_tape *tape;

/* The elements in logical order; the caller frees them. */
static double *fetch(const wf_tensor *t)
{
    double *host = calloc((size_t)wf_tensor_count(t) + 1, sizeof *host);
    wf_tensor *wide = wf_tensor_copy(t, WF_F64, WF_ROW_MAJOR);
    values_get(wide, host);
    wf_tensor_free(wide);
    return host;
}

static wf_tensor *numbers(wf_shape shape, uint64_t seed)
{
    double host[64];
    test_rng rng = {seed};
    for (int i = 0; i < 64; i++)
        host[i] = test_uniform(&rng, -1, 1);
    wf_tensor *t = wf_tensor_new_ordered(ctx, WF_F64, shape, wf_order_default(shape.rank));
    values_set(t, host);
    return t;
}

/* Samples are left out as a whole, the same ones on every device and in every type; the others are divided by what is
 * kept. */
static void whole_samples(void)
{
    enum { N = 2000, EACH = 6 };
    static const char *const device[] = {"ref", "cpu", "cpu"};
    static const wf_dtype types[] = {WF_F64, WF_F32, WF_BF16};
    static bool kept[3][N];
    for (int i = 0; i < 3; i++) {
        wf_ctx *c = wf_ctx_new(
            (wf_ctx_opts){.device = test_device(device[i]), .dtype = types[i] == WF_F64 ? WF_F64 : WF_F32, .seed = 11});
        wf_tape *t = wf_tape_new(c);
        wf_layer *layer = wf_layer_named(wf_stochastic_depth(c, 0.2), "depth");
        wf_tensor *ones = wf_tensor_new_ordered(c, types[i], WF_SHAPE(N, 3, 2, 1), WF_CHANNELS_LAST);
        WF_EXPECT_OK(wf_tensor_fill(ones, 1));
        wf_var *y = wf_apply(layer, wf_input(t, ones));
        double *v = fetch(wf_value(y));
        int left = 0;
        for (int n = 0; n < N; n++) {
            kept[i][n] = v[n * EACH] != 0;
            left += !kept[i][n];
            for (int k = 0; k < EACH; k++)
                WF_EXPECT(fabs(v[n * EACH + k] - (kept[i][n] ? 1.25 : 0)) < 1e-6, "sample %d, element %d is %g", n, k,
                          v[n * EACH + k]);
            WF_EXPECT(kept[i][n] == kept[0][n], "sample %d is left out on one device alone", n);
        }
        WF_EXPECT(abs(left - N / 5) < 80, "%d of %d samples are left out", left, N);
        free(v);
        WF_EXPECT_OK(wf_tape_set_mode(t, WF_EVAL));
        wf_var *x = wf_input(t, ones);
        WF_EXPECT(wf_apply(layer, x) == x, "evaluation leaves samples out");
        WF_EXPECT_OK(wf_tape_reset(t));
        wf_tensor_free(ones);
        wf_layer_free(layer);
        wf_tape_free(t);
        WF_EXPECT_OK(wf_ctx_free(c));
    }
}

static void factors_of_channels(void)
{
    wf_layer *image = wf_layerscale(ctx, (wf_layerscale_opts){.channels = 3}), *tokens = NULL;
    double *gamma = fetch(wf_param_value(wf_layer_param(image, "gamma")));
    WF_EXPECT(gamma[0] == 1e-6 && gamma[2] == 1e-6, "factors begin at %g", gamma[0]);
    free(gamma);
    const double factor[] = {2, -1, 0.5};
    tokens = wf_layerscale(ctx, (wf_layerscale_opts){.features = 3, .gamma_init = {WF_INIT_CONSTANT, 3, 0}});
    WF_EXPECT_OK(wf_tensor_import(wf_param_value(wf_layer_param(image, "gamma")), factor, sizeof factor));
    wf_tensor *x = numbers(WF_SHAPE(2, 3, 2, 2), 3), *t = numbers(WF_SHAPE(2, 4, 3), 4);
    double *from = fetch(x), *to = fetch(wf_value(wf_apply(image, wf_input(tape, x))));
    for (int i = 0; i < 24; i++)
        WF_EXPECT(to[i] == from[i] * factor[i / 4 % 3], "element %d is %g", i, to[i]);
    free(from);
    free(to);
    from = fetch(t);
    to = fetch(wf_value(wf_apply(tokens, wf_input(tape, t))));
    for (int i = 0; i < 24; i++)
        WF_EXPECT(to[i] == 3 * from[i], "element %d of tokens is %g", i, to[i]);
    free(from);
    free(to);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(t);
    wf_layer_free(image);
    wf_layer_free(tokens);
}

static void sines(void)
{
    wf_layer *layer =
        wf_positions(ctx, (wf_positions_opts){.length = 6, .features = 4, .kind = WF_POSITIONS_SINE, .base = 100});
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 5, 4));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    double *y = fetch(wf_value(wf_apply(layer, wf_input(tape, x))));
    for (int i = 0; i < 40; i++) {
        const double angle = i / 4 % 5 / (i % 4 < 2 ? 1.0 : 10.0);
        const double should = 1 + (i % 2 ? cos(angle) : sin(angle));
        WF_EXPECT(fabs(y[i] - should) < 1e-14, "element %d is %.17g, should be %.17g", i, y[i], should);
    }
    free(y);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

/* Rows come out by their numbers, in any shape; initial values are standard normal. */
static void rows_of_tables(void)
{
    const int64_t host[] = {3, 0, 7, 3};
    wf_layer *layer =
        wf_embedding(ctx, (wf_embedding_opts){.count = 4, .features = 500, .ignores = true, .ignored = 7});
    wf_tensor *index = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(2, 1, 2), host);
    double *w = fetch(wf_param_value(wf_layer_param(layer, "W"))), squares = 0;
    wf_var *y = wf_apply(layer, wf_input(tape, index));
    WF_EXPECT(y && wf_shape_equal(wf_var_shape(y), WF_SHAPE(2, 1, 2, 500)), "%s", wf_error_message());
    double *v = fetch(wf_value(y));
    for (int i = 0; i < 2000; i++) {
        const double should = host[i / 500] == 7 ? 0 : w[host[i / 500] * 500 + i % 500];
        WF_EXPECT(v[i] == should, "element %d is %g, should be %g", i, v[i], should);
        squares += w[i] * w[i];
    }
    WF_EXPECT(fabs(squares / 2000 - 1) < 0.15, "the variance of the table is %g", squares / 2000);
    free(v);
    free(w);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(index);
    wf_layer_free(layer);
}

/* Mean, deviation and largest distance from the mean of 20000 numbers. */
static void truncated(void)
{
    enum { N = 20000 };
    const wf_init init = {WF_INIT_TRUNC_NORMAL, 0.5, 0.02};
    wf_layer *layer = wf_linear(ctx, (wf_linear_opts){.in = 200, .out = 100, .w_init = init});
    double *w = fetch(wf_param_value(wf_layer_param(layer, "W"))), sum = 0, squares = 0, most = 0;
    for (int i = 0; i < N; i++) {
        sum += w[i] - 0.5;
        squares += (w[i] - 0.5) * (w[i] - 0.5);
        most = fmax(most, fabs(w[i] - 0.5));
    }
    const double error = 0.02 / sqrt(N), deviation = sqrt(squares / N);
    WF_EXPECT(fabs(sum / N) < 4 * error, "the mean is off by %g", sum / N);
    WF_EXPECT(fabs(deviation - 0.02 * sqrt(0.77374129)) < 4 * error, "the deviation is %g", deviation);
    WF_EXPECT(most < 0.04 && most > 0.0396, "numbers lie up to %g from the mean, should be up to 0.04", most);
    free(w);
    wf_layer_free(layer);
}

/* y = layer(1, 2, 3), with these weights. */
static void expect_row(wf_layer *layer, const double *w, int64_t n, const double *should)
{
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 3), (double[]){1, 2, 3});
    if (w)
        values_set(wf_param_value(wf_layer_param(layer, "W")), w);
    wf_var *y = wf_apply(layer, wf_input(tape, x));
    WF_EXPECT(y && wf_shape_equal(wf_var_shape(y), WF_SHAPE(1, 1, n)), "no row of %d: %s", (int)n, wf_error_message());
    double *seen = y ? fetch(wf_value(y)) : NULL;
    for (int i = 0; seen && i < n; i++)
        WF_EXPECT(seen[i] == should[i], "%g stands at %d, should be %g", seen[i], i, should[i]);
    free(seen);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(layer);
    wf_tensor_free(x);
}

/* Padding of the lower side alone, and of the upper one. */
static void sides_of_padding(void)
{
    const double w[] = {1, 10};
    const wf_conv_opts conv = {.in = 1, .out = 1, .kernel = 2, .no_bias = true};
    wf_conv_opts lower = conv, upper = conv, cropped = conv;
    lower.pad_lo_nd[0] = upper.pad_hi_nd[0] = 2;
    cropped.pad_lo_nd[0] = 1;
    expect_row(wf_conv1d(ctx, lower), w, 4, (double[]){0, 10, 21, 32});
    expect_row(wf_conv1d(ctx, upper), w, 4, (double[]){21, 32, 3, 0});
    expect_row(wf_conv_transpose1d(ctx, cropped), w, 3, (double[]){12, 23, 30});
    const wf_pool_opts before = {.kernel = 2, .stride = 1, .pad_lo_nd = {1}},
                       after = {.kernel = 2, .stride = 1, .pad_hi_nd = {1}};
    expect_row(wf_max_pool1d(ctx, before), NULL, 3, (double[]){1, 2, 3});
    expect_row(wf_max_pool1d(ctx, after), NULL, 3, (double[]){2, 3, 3});
    expect_row(wf_avg_pool1d(ctx, before), NULL, 3, (double[]){1, 1.5, 2.5});
    expect_row(wf_avg_pool1d(ctx, after), NULL, 3, (double[]){1.5, 2.5, 3});
}

/* y and places of a layer of maxima, and y put back into an image of x's size; both kinds of tape. Frees the layer. */
static void expect_places(const char *what, wf_layer *pool, wf_shape shape, const double *x, const double *y,
                          const double *place)
{
    wf_tensor *t = wf_tensor_from_host(ctx, WF_F64, shape, x);
    wf_shape size = {.rank = shape.rank - 2};
    const int64_t planes = shape.dim[0] * shape.dim[1], pixels = wf_shape_count(shape) / planes;
    for (int d = 0; d < size.rank; d++)
        size.dim[d] = shape.dim[2 + d];
    for (int training = 0; training < 2; training++) {
        wf_var *places, *out;
        WF_EXPECT_OK(wf_tape_set_mode(tape, training ? WF_TRAIN : WF_EVAL));
        out = wf_max_pool_with_places(pool, wf_input(tape, t), &places);
        wf_var *back = wf_max_unpool(out, places, (wf_pool_opts){0}, size);
        WF_EXPECT(back && wf_tensor_dtype(wf_value(places)) == WF_I64, "%s: %s", what, wf_error_message());
        double *v = fetch(wf_value(out)), *p = fetch(wf_value(places)), *b = fetch(wf_value(back));
        const int64_t n = wf_tensor_count(wf_value(out)), each = n / planes;
        for (int64_t i = 0; i < n; i++) {
            WF_EXPECT(v[i] == y[i] && p[i] == place[i], "%s: y[%d] is %g from %g, should be %g from %g", what, (int)i,
                      v[i], p[i], y[i], place[i]);
            b[i / each * pixels + (int64_t)place[i]] -= b[i / each * pixels + (int64_t)place[i]] == y[i] ? y[i] : 0;
        }
        for (int64_t i = 0; i < planes * pixels; i++)
            WF_EXPECT(b[i] == 0, "%s: element %d of the other way has %g too much", what, (int)i, b[i]);
        free(v);
        free(p);
        free(b);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    wf_tensor_free(t);
    wf_layer_free(pool);
}

/* The numbers of PyTorch 2.15's max_pool and adaptive_max_pool with return_indices. */
static void places_as_torch(void)
{
    const double x[] = {1, 8, 2, 7, 3, 6, 4, 9, 9, -1, 5, 9, 0, 2, 8};
    const wf_shape one = WF_SHAPE(1, 1, 3, 5), volume = WF_SHAPE(1, 2, 4, 3, 2);
    double deep[48];
    for (int i = 0; i < 48; i++)
        deep[i] = i * 7 % 11;
    expect_places("plain", wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2}), one, x, (double[]){8, 9}, (double[]){1, 7});
    expect_places("padded", wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 3, .stride = 2, .pad = 1}), one, x,
                  (double[]){8, 9, 9, 9, 9, 9}, (double[]){1, 7, 8, 11, 7, 8});
    expect_places("ceil", wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .ceil_mode = true}), one, x,
                  (double[]){8, 9, 3, 9, 2, 8}, (double[]){1, 7, 4, 11, 13, 14});
    expect_places("dilated", wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 1, .dilation = 2}), one, x,
                  (double[]){5, 9, 8}, (double[]){10, 11, 14});
    expect_places("global", wf_global_max_pool(ctx), one, x, (double[]){9}, (double[]){7});
    expect_places("adaptive", wf_adaptive_max_pool(ctx, WF_SHAPE(2, 3)), one, x, (double[]){8, 9, 9, 9, 9, 9},
                  (double[]){1, 7, 8, 11, 7, 8});
    expect_places("adaptive, as many rows", wf_adaptive_max_pool(ctx, WF_SHAPE(0, 2)), one, x,
                  (double[]){8, 7, 9, 9, 9, 8}, (double[]){1, 3, 7, 7, 11, 14});
    expect_places(
        "adaptive, more", wf_adaptive_max_pool(ctx, WF_SHAPE(4, 7)), one, x,
        (double[]){1, 8, 8, 2, 7, 7, 3, 6, 8, 9, 9, 9, 9, 3, 6, 9, 9, 9, 9, 9, 8, 5, 9, 9, 0, 2, 8, 8},
        (double[]){0, 1, 1, 2, 3, 3, 4, 5, 1, 7, 7, 7, 8, 4, 5, 11, 7, 7, 7, 8, 14, 10, 11, 11, 12, 13, 14, 14});
    expect_places("volume", wf_max_pool3d(ctx, (wf_pool_opts){.kernel = 2, .stride_nd = {2, 1, 2}}), volume, deep,
                  (double[]){10, 10, 10, 10, 10, 9, 10, 10}, (double[]){3, 3, 14, 14, 1, 4, 12, 23});
    expect_places("adaptive volume", wf_adaptive_max_pool(ctx, WF_SHAPE(3, 2, 1)), volume, deep,
                  (double[]){10, 10, 10, 10, 10, 10, 10, 9, 10, 9, 10, 10},
                  (double[]){3, 3, 14, 14, 14, 14, 1, 4, 12, 15, 12, 23});
}

/* 3 and 4 at their places, and the gradient of a sum with weights 1, 2, ... size 0: that of the options, 3. */
static void expect_unpooled(const double place[2], int64_t size, const double *y, const double dx[2])
{
    double weight[8];
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 2), (const double[]){3, 4});
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 2), place);
    wf_tensor *at = wf_tensor_copy(wide, WF_I32, WF_ROW_MAJOR);
    wf_var *leaf = wf_leaf(tape, x);
    wf_var *out = wf_max_unpool(leaf, wf_input(tape, at), (wf_pool_opts){.kernel = 3, .stride = 2, .pad = 1},
                                size > 0 ? WF_SHAPE(size) : (wf_shape){0});
    const int64_t n = out ? wf_tensor_count(wf_value(out)) : 0;
    WF_EXPECT(n == (size > 0 ? size : 3), "%d elements: %s", (int)n, wf_error_message());
    for (int64_t i = 0; i < n; i++)
        weight[i] = (double)(i + 1);
    wf_tensor *w = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, n), weight);
    double *v = fetch(wf_value(out));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT(v[i] == y[i], "y[%d] is %g, should be %g", (int)i, v[i], y[i]);
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(out, wf_input(tape, w)))));
    double *g = fetch(wf_grad(leaf));
    WF_EXPECT(g[0] == dx[0] && g[1] == dx[1], "dx is %g and %g, should be %g and %g", g[0], g[1], dx[0], dx[1]);
    free(v);
    free(g);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(wide);
    wf_tensor_free(at);
    wf_tensor_free(w);
}

static void unpooled(void)
{
    expect_unpooled((double[]){0, 2}, 0, (double[]){3, 0, 4}, (double[]){1, 3});
    expect_unpooled((double[]){4, 1}, 5, (double[]){0, 4, 0, 0, 3}, (double[]){5, 2});
    /* The last of two elements with one place is there, as in ONNX, and has the gradient. */
    expect_unpooled((double[]){1, 1}, 5, (double[]){0, 4, 0, 0, 0}, (double[]){0, 2});
    /* Place -1 is none. */
    expect_unpooled((double[]){-1, 1}, 5, (double[]){0, 4, 0, 0, 0}, (double[]){0, 2});
    expect_unpooled((double[]){2, -1}, 0, (double[]){0, 0, 3}, (double[]){3, 0});
}

/* A dilated window whose elements all lie in the padding: its maximum is nowhere, and unpooling leaves it out. */
static void maximum_nowhere(void)
{
    const wf_pool_opts opts = {.kernel = 2, .stride = 1, .dilation = 4, .pad = 1};
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 3), (const double[]){1, 2, 3});
    wf_layer *pool = wf_max_pool1d(ctx, opts);
    wf_var *places, *y = wf_max_pool_with_places(pool, wf_input(tape, x), &places);
    double *v = fetch(wf_value(y)), *place = fetch(wf_value(places));
    WF_EXPECT(v[0] == -INFINITY && place[0] == -1, "%g at %g, should be -inf at -1", v[0], place[0]);
    wf_var *back = wf_max_unpool(y, places, opts, (wf_shape){0});
    WF_EXPECT(back && wf_tensor_count(wf_value(back)) == 3, "unpooled: %s", wf_error_message());
    double *b = fetch(wf_value(back));
    WF_EXPECT(b[0] == 0 && b[1] == 0 && b[2] == 0, "unpooled: %g %g %g", b[0], b[1], b[2]);
    free(v);
    free(place);
    free(b);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(pool);
    wf_tensor_free(x);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = 1});
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"whole_samples", whole_samples},
                                               {"factors_of_channels", factors_of_channels},
                                               {"sines", sines},
                                               {"rows_of_tables", rows_of_tables},
                                               {"truncated", truncated},
                                               {"sides_of_padding", sides_of_padding},
                                               {"places_as_torch", places_as_torch},
                                               {"unpooled", unpooled},
                                               {"maximum_nowhere", maximum_nowhere},
                                               {0}});
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
