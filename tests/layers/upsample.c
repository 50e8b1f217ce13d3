/* Upsampling and resampling to any size: known numbers and gradients; contract_kernels has the slots. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wf_layer *layer_of(wf_ctx *ctx, int nd, wf_upsample_opts o)
{
    return nd == 1 ? wf_upsample1d(ctx, o) : nd == 2 ? wf_upsample2d(ctx, o) : wf_upsample3d(ctx, o);
}

static void expect_line(wf_ctx *ctx, wf_upsample_opts o, const double *should, int64_t n)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = wf_upsample1d(ctx, o);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 3), (const double[]){1, 2, 4});
    double seen[16] = {0};
    wf_var *y = wf_apply(layer, wf_input(tape, x));
    WF_EXPECT(wf_tensor_count(wf_value(y)) == n, "%lld outputs", (long long)wf_tensor_count(wf_value(y)));
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), seen, (size_t)n * sizeof *seen));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT(fabs(seen[i] - should[i]) < 1e-15, "y[%d] is %.17g, should be %.17g", (int)i, seen[i], should[i]);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(layer);
}

static void known_numbers(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    expect_line(ctx, (wf_upsample_opts){0}, (const double[]){1, 1, 2, 2, 4, 4}, 6);
    expect_line(ctx, (wf_upsample_opts){.scale = 3}, (const double[]){1, 1, 1, 2, 2, 2, 4, 4, 4}, 9);
    expect_line(ctx, (wf_upsample_opts){.mode = WF_UPSAMPLE_LINEAR}, (const double[]){1, 1.25, 1.75, 2.5, 3.5, 4}, 6);
    expect_line(ctx, (wf_upsample_opts){.mode = WF_UPSAMPLE_LINEAR, .align_corners = true},
                (const double[]){1, 1.4, 1.8, 2.4, 3.2, 4}, 6);
    expect_line(ctx, (wf_upsample_opts){.mode = WF_UPSAMPLE_LINEAR, .scale = 1}, (const double[]){1, 2, 4}, 3);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* A linear function: any step gives the derivative. */
static void gradients(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    for (int form = 0; form < 9; form++) {
        const int nd = 1 + form % 3;
        const wf_upsample_opts o = {.scale_nd = {2, 3, 1},
                                    .mode = form < 3 ? WF_UPSAMPLE_NEAREST : WF_UPSAMPLE_LINEAR,
                                    .align_corners = form > 5};
        const wf_shape shape = {.rank = nd + 2, .dim = {2, 2, 3, nd > 1 ? 2 : 0, nd > 2 ? 3 : 0}};
        const int64_t n = wf_shape_count(shape);
        wf_tape *tape = wf_tape_new(ctx);
        wf_layer *layer = layer_of(ctx, nd, o);
        double host[128] = {0}, grad[128] = {0};
        wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, shape, host);
        wf_var *leaf = wf_leaf(tape, x), *y = wf_apply(layer, leaf);
        WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, wf_randn(tape, wf_var_shape(y), y)))));
        WF_EXPECT_OK(wf_tensor_export(wf_grad(leaf), grad, (size_t)n * sizeof *grad));
        for (int64_t i = 0; i < n; i++) {
            WF_EXPECT_OK(wf_tape_reset(tape));
            WF_EXPECT_OK(wf_tape_set_iteration(tape, 0));
            host[i] = 1;
            WF_EXPECT_OK(wf_tensor_import(x, host, wf_tensor_bytes(x)));
            host[i] = 0;
            y = wf_apply(layer, wf_leaf(tape, x));
            const double step = wf_item(wf_sum(wf_mul(y, wf_randn(tape, wf_var_shape(y), y))));
            WF_EXPECT(fabs(step - grad[i]) < 1e-12, "form %d: d/dx[%d] is %g, should be %g", form, (int)i, grad[i],
                      step);
        }
        wf_tensor_free(x);
        wf_tape_free(tape);
        wf_layer_free(layer);
    }
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* --- any size ----------------------------------------------------------------------------------------------------- */

static void expect_resized(wf_ctx *ctx, const char *what, wf_layer *layer, int64_t n, const double *should)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 5), (const double[]){1, 2, 4, 3, 7});
    double seen[16] = {0};
    wf_var *y = wf_apply(layer, wf_input(tape, x));
    WF_EXPECT(y && wf_tensor_count(wf_value(y)) == n, "%s: %s", what, wf_error_message());
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), seen, (size_t)n * sizeof *seen));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT(fabs(seen[i] - should[i]) < 1e-13, "%s: y[%d] is %.17g, should be %.17g", what, (int)i, seen[i],
                  should[i]);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(layer);
}

#define RESIZED(should, ...)                                                                                           \
    expect_resized(ctx, #__VA_ARGS__, wf_resize(ctx, (wf_resize_opts){__VA_ARGS__}),                                   \
                   (int64_t)(sizeof(should) / sizeof *(should)), should)
#define LIST(...) ((const double[]){__VA_ARGS__})

/* The numbers of PyTorch 2's interpolate and adaptive_avg_pool1d. */
static void resized_as_torch(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    RESIZED(LIST(1, 1, 2, 4, 4, 3, 7), .size = {7});
    RESIZED(LIST(1, 2, 2, 4, 3, 3, 7), .size = {7}, .places = WF_PLACES_CENTRES, .rounding = WF_ROUND_HALF_UP);
    RESIZED(LIST(1, 4, 7), .size = {3}, .places = WF_PLACES_CENTRES, .rounding = WF_ROUND_HALF_UP);
    RESIZED(LIST(1, 11. / 7, 18. / 7, 4, 23. / 7, 33. / 7, 7), .size = {7}, .mode = WF_RESIZE_LINEAR);
    RESIZED(LIST(1, 5. / 3, 8. / 3, 4, 10. / 3, 13. / 3, 7), .size = {7}, .mode = WF_RESIZE_LINEAR,
            .places = WF_PLACES_ALIGNED);
    RESIZED(LIST(4. / 3, 4, 17. / 3), .size = {3}, .mode = WF_RESIZE_LINEAR);
    RESIZED(LIST(0.92128279883382, 1.37026239067055, 2.68075801749271, 4, 2.91399416909621, 4.57434402332362,
                 7.31486880466473),
            .size = {7}, .mode = WF_RESIZE_CUBIC);
    RESIZED(LIST(10. / 7, 10. / 3, 37. / 7), .size = {3}, .mode = WF_RESIZE_LINEAR, .antialias = true);
    RESIZED(LIST(2.0044690359651, 4.66120451159821), .size = {2}, .mode = WF_RESIZE_CUBIC, .antialias = true);
    RESIZED(LIST(0.941747572815534, 1.42659279778393, 2.58600583090379, 4, 3.00874635568513, 4.69529085872576,
                 7.23300970873786),
            .size = {7}, .mode = WF_RESIZE_CUBIC, .antialias = true);
    RESIZED(LIST(1, 43. / 26, 37. / 13, 99. / 26, 79. / 26, 77. / 13), .scale = {1.3}, .mode = WF_RESIZE_LINEAR);
    RESIZED(LIST(1, 2, 4), .scale = {0.7});
    RESIZED(LIST(1, 2, 4, 3, 7), .mode = WF_RESIZE_CUBIC);
    expect_resized(ctx, "adaptive", wf_adaptive_avg_pool(ctx, WF_SHAPE(3)), 3, LIST(1.5, 3, 5));
    expect_resized(ctx, "adaptive, more", wf_adaptive_avg_pool(ctx, WF_SHAPE(7)), 7, LIST(1, 1.5, 3, 4, 3.5, 5, 7));
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void expect_refused(wf_layer *layer, const char *words)
{
    WF_EXPECT(!layer && strstr(wf_error_message(), words), "\"%s\" should say \"%s\"", wf_error_message(), words);
    wf_layer_free(layer);
    wf_error_clear();
}

/* The gradient of 65536 times the sum of norms of 0 0, 0 0 and 0 last: 0, and of the last element the sign, or 0. */
static void expect_slopes(wf_ctx *ctx, double p, double last)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = wf_lp_pool1d(ctx, p, (wf_pool_opts){.kernel = 2, .stride = 1});
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1, 1, 4), (const double[]){0, 0, 0, 3 * last});
    double dx[4];
    wf_var *leaf = wf_leaf(tape, x);
    WF_EXPECT_OK(wf_backward(wf_scale(wf_sum(wf_apply(layer, leaf)), 65536)));
    WF_EXPECT_OK(wf_tensor_export(wf_grad(leaf), dx, sizeof dx));
    for (int i = 0; i < 4; i++)
        WF_EXPECT(fabs(dx[i] - (i == 3 ? 65536 * last : 0)) < 1e-12, "p %g: dx[%d] is %g", p, i, dx[i]);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(layer);
}

/* Roots of sums of powers of neighbours of 1 2 4 3 7; the last window of ceil mode has one element of two. */
static void lp_pools(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    const wf_pool_opts each = {.kernel = 2, .stride = 1};
    expect_resized(ctx, "p 2", wf_lp_pool1d(ctx, 2, each), 4, LIST(sqrt(5), sqrt(20), 5, sqrt(58)));
    expect_resized(ctx, "p 1", wf_lp_pool1d(ctx, 1, each), 4, LIST(3, 6, 7, 10));
    expect_resized(ctx, "p 3", wf_lp_pool1d(ctx, 3, (wf_pool_opts){.kernel = 5}), 1, LIST(cbrt(1 + 8 + 64 + 27 + 343)));
    expect_resized(ctx, "padded", wf_lp_pool1d(ctx, 2, (wf_pool_opts){.kernel = 3, .pad = 1}), 2,
                   LIST(sqrt(5), sqrt(16 + 9 + 49)));
    const wf_boundary edge = {.edge = WF_EDGE_CONSTANT, .value = -3};
    expect_resized(ctx, "constant edge", wf_lp_pool1d(ctx, 2, (wf_pool_opts){.kernel = 3, .pad = 1, .boundary = edge}),
                   2, LIST(sqrt(9 + 5), sqrt(16 + 9 + 49)));
    expect_resized(ctx, "ceil", wf_lp_pool1d(ctx, 2, (wf_pool_opts){.kernel = 2, .ceil_mode = true}), 3,
                   LIST(sqrt(5), 5, sqrt(2 * 49)));
    expect_slopes(ctx, 2, -1);
    /* Slopes of the root beside 0 leave the range of numbers. */
    expect_slopes(ctx, 1000, 0);
    expect_refused(wf_lp_pool2d(ctx, 0.5, each), "p is 0.5, should be at least 1");
    expect_refused(wf_lp_pool2d(ctx, 2, (wf_pool_opts){0}), "kernel 0");
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* The share of input i in output o, by the definitions: a kernel around the place of o, of which inputs beyond an edge
 * belong to the last one; or, antialiased, of the inputs that are there, divided by their sum. */
static double cubic_kernel(double a, double x)
{
    return x < 1 ? (a + 2) * x * x * x - (a + 3) * x * x + 1 : x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0;
}

static double kernel_of(const wf_resize_opts *o, double x)
{
    const double a = o->cubic != 0 ? o->cubic : o->antialias ? -0.5 : -0.75;
    return o->mode == WF_RESIZE_CUBIC ? cubic_kernel(a, fabs(x)) : fmax(0, 1 - fabs(x));
}

static double share_of(const wf_resize_opts *o, int64_t length, int64_t outputs, int64_t at, int64_t i)
{
    const double l = (double)length, n = (double)outputs, p = (double)at;
    if (o->mode == WF_RESIZE_AREA) {
        const double lo = floor(p * l / n), hi = ceil((p + 1) * l / n);
        return (double)i >= lo && (double)i < hi ? 1 / (hi - lo) : 0;
    }
    const bool centres = o->places == WF_PLACES_CENTRES || (o->places == 0 && o->mode != WF_RESIZE_NEAREST);
    const double place = o->places == WF_PLACES_ALIGNED ? (n > 1 ? p * (l - 1) / (n - 1) : 0)
                         : centres                      ? ((2 * p + 1) * l - n) / (2 * n)
                                                        : p * l / n;
    double sum = 0, own = 0;
    if (o->antialias) {
        const double wide = fmax(1, l / n);
        for (int64_t j = 0; j < length; j++) {
            const double w = kernel_of(o, ((double)j - place) / wide);
            sum += w;
            own = j == i ? w : own;
        }
        return own / sum;
    }
    if (o->mode == WF_RESIZE_NEAREST) {
        const double down = ceil(place - 0.5), up = floor(place + 0.5), list[] = {floor(place), ceil(place), down, up};
        return fmin(l - 1, fmax(0, list[o->rounding])) == (double)i;
    }
    for (int64_t j = (int64_t)floor(place) - 2; j <= (int64_t)floor(place) + 3; j++)
        if ((j < 0 ? 0 : j >= length ? length - 1 : j) == i)
            own += kernel_of(o, (double)j - place);
    return own;
}

static wf_resize_opts draw_resize(test_rng *rng)
{
    wf_resize_opts o = {.mode = (wf_resize_mode)test_int(rng, 0, 3)};
    o.antialias = (o.mode == WF_RESIZE_LINEAR || o.mode == WF_RESIZE_CUBIC) && test_int(rng, 0, 1);
    if (o.mode != WF_RESIZE_AREA && !o.antialias)
        o.places = (wf_resize_places)test_int(rng, 0, 3);
    if (o.mode == WF_RESIZE_NEAREST)
        o.rounding = (wf_resize_rounding)test_int(rng, 0, 3);
    o.cubic = o.mode == WF_RESIZE_CUBIC && test_int(rng, 0, 1) ? -0.3 : 0;
    return o;
}

enum { MOST_PIXELS = 343 };

/* Every output of an image of ones at one pixel each, and the gradient, whose elements are those outputs. */
static void check_resize(wf_ctx *ctx, wf_resize_opts o, int nd, const int64_t *in, const int64_t *out, double tolerance)
{
    wf_shape xs = {.rank = nd + 2, .dim = {1, 1}}, ys = xs;
    for (int d = 0; d < nd; d++) {
        xs.dim[2 + d] = in[d];
        ys.dim[2 + d] = out[d];
        o.size[d] = out[d] == in[d] && o.mode == WF_RESIZE_LINEAR ? 0 : out[d];
    }
    const int64_t inputs = wf_shape_count(xs), outputs = wf_shape_count(ys);
    wf_layer *layer = wf_resize(ctx, o);
    wf_tape *tape = wf_tape_new(ctx);
    double x[MOST_PIXELS], dy[MOST_PIXELS], seen[MOST_PIXELS], dx[MOST_PIXELS], y[MOST_PIXELS] = {0},
                                                                                gradient[MOST_PIXELS] = {0};
    test_rng rng = {(uint64_t)(inputs * 1000 + outputs)};
    for (int64_t i = 0; i < MOST_PIXELS; i++) {
        x[i] = test_uniform(&rng, -1, 1);
        dy[i] = test_uniform(&rng, -1, 1);
    }
    for (int64_t q = 0; q < outputs; q++)
        for (int64_t p = 0; p < inputs; p++) {
            double w = 1;
            for (int64_t d = nd - 1, a = p, b = q; d >= 0; a /= in[d], b /= out[d], d--)
                w *= share_of(&o, in[d], out[d], b % out[d], a % in[d]);
            y[q] += w * x[p];
            gradient[p] += w * dy[q];
        }
    wf_tensor *xt = wf_tensor_from_host(ctx, WF_F64, xs, x), *dyt = wf_tensor_from_host(ctx, WF_F64, ys, dy);
    wf_var *leaf = wf_leaf(tape, xt), *made = wf_apply(layer, leaf);
    WF_EXPECT(made && wf_shape_equal(wf_var_shape(made), ys), "%s", wf_error_message());
    WF_EXPECT_OK(wf_tensor_export(wf_value(made), seen, (size_t)outputs * sizeof *seen));
    WF_EXPECT_OK(wf_backward_from(made, dyt));
    WF_EXPECT_OK(wf_tensor_export(wf_grad(leaf), dx, (size_t)inputs * sizeof *dx));
    for (int64_t q = 0; q < outputs; q++)
        WF_EXPECT(fabs(seen[q] - y[q]) <= tolerance,
                  "mode %d places %d rounding %d antialias %d, %d-d: y[%d] %g, not %g", (int)o.mode, (int)o.places,
                  (int)o.rounding, o.antialias, nd, (int)q, seen[q], y[q]);
    for (int64_t p = 0; p < inputs; p++)
        WF_EXPECT(fabs(dx[p] - gradient[p]) <= tolerance, "mode %d antialias %d, %d-d: dx[%d] is %g, should be %g",
                  (int)o.mode, o.antialias, nd, (int)p, dx[p], gradient[p]);
    wf_tensor_free(xt);
    wf_tensor_free(dyt);
    wf_tape_free(tape);
    wf_layer_free(layer);
}

static void resized_by_definition(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    test_rng rng = {30};
    for (int i = 0; i < 150; i++) {
        const int nd = 1 + i % 3, most = nd == 1 ? 40 : nd == 2 ? 10 : 5;
        int64_t in[3], out[3];
        for (int d = 0; d < nd; d++) {
            in[d] = test_int(&rng, 1, most);
            out[d] = test_int(&rng, 0, 4) == 0 ? in[d] : test_int(&rng, 1, most);
        }
        check_resize(ctx, draw_resize(&rng), nd, in, out, 1e-12);
    }
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void resize_errors(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    expect_refused(wf_resize(ctx, (wf_resize_opts){.mode = (wf_resize_mode)9}), "mode is 9");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.size = {0, -3}}), "size is -3 in spatial dimension 1");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.scale = {-1}}), "scale is -1");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.size = {2}, .scale = {2}}), "should be one of them");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.antialias = true}), "antialias is for linear and cubic");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.mode = WF_RESIZE_LINEAR, .rounding = WF_ROUND_UP}), "rounding is");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.mode = WF_RESIZE_LINEAR, .cubic = -0.5}), "cubic is -0.5");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.mode = WF_RESIZE_AREA, .places = WF_PLACES_LEFT}), "no places");
    expect_refused(wf_resize(ctx, (wf_resize_opts){.mode = WF_RESIZE_AREA, .scale = {2}}), "go by size");
    expect_refused(wf_adaptive_avg_pool(ctx, WF_SHAPE(1, 2, 3, 4)), "should have 1 to 3 dimensions");
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *pool = wf_adaptive_avg_pool(ctx, WF_SHAPE(2, 2)),
             *small = wf_resize(ctx, (wf_resize_opts){.scale = {0.1}});
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1, 1, 4));
    WF_EXPECT(!wf_apply(pool, wf_input(tape, x)) && strstr(wf_error_message(), "2 spatial dimensions"), "%s",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT(!wf_apply(small, wf_input(tape, x)) && strstr(wf_error_message(), "[1,1,4] times 0.1"), "%s",
              wf_error_message());
    wf_error_clear();
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(pool);
    wf_layer_free(small);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void errors(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    WF_EXPECT(!wf_upsample2d(ctx, (wf_upsample_opts){.scale = -1}), "a negative scale");
    WF_EXPECT(!wf_upsample2d(ctx, (wf_upsample_opts){.align_corners = true}), "aligned corners of nearest");
    WF_EXPECT(!wf_upsample2d(ctx, (wf_upsample_opts){.mode = (wf_upsample_mode)7}), "a mode that is none");
    WF_EXPECT(!wf_upsample2d(NULL, (wf_upsample_opts){0}), "NULL");
    wf_error_clear();
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"known_numbers", known_numbers},
                                   {"gradients", gradients},
                                   {"errors", errors},
                                   {"resized_as_torch", resized_as_torch},
                                   {"resized_by_definition", resized_by_definition},
                                   {"resize_errors", resize_errors},
                                   {"lp_pools", lp_pools},
                                   {0}});
}
