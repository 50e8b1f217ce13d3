/* Upsampling: known numbers, the adjoint, and `cpu` against `ref` on poisoned outputs. */
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

/* Both directions on the device of the context, of f32 arrays in host memory. */
static void resample(wf_ctx *ctx, const wf_resample_geom *g, wf_shape x, const float *in, float *dx, wf_shape y,
                     const float *dy, float *out)
{
    const wf_shape shape[4] = {x, y, y, x};
    const float *const from[4] = {in, out, dy, dx};
    wf_array a[4];
    for (int i = 0; i < 4; i++) {
        const size_t bytes = (size_t)wf_shape_count(shape[i]) * sizeof(float);
        a[i] = (wf_array){.dtype = WF_F32, .order = WF_CHANNELS_LAST, .shape = shape[i]};
        WF_EXPECT_OK(wf_pool_take(ctx, bytes, &a[i].data));
        WF_EXPECT_OK(ctx->k->to_device(ctx, a[i].data, from[i], bytes));
    }
    WF_EXPECT_OK(ctx->k->resample_forward(ctx, g, &a[0], &a[1]));
    WF_EXPECT_OK(ctx->k->resample_backward(ctx, g, &a[2], &a[3]));
    WF_EXPECT_OK(ctx->k->to_host(ctx, out, a[1].data, (size_t)wf_shape_count(y) * sizeof *out));
    WF_EXPECT_OK(ctx->k->to_host(ctx, dx, a[3].data, (size_t)wf_shape_count(x) * sizeof *dx));
    for (int i = 0; i < 4; i++)
        wf_pool_give(ctx, a[i].data, 0);
}

static double product(int64_t n, const float *a, const float *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static double distance(int64_t n, const float *a, const float *b)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabs((double)a[i] - (double)b[i]) <= most ? most : fabs((double)a[i] - (double)b[i]);
    for (int64_t i = 0; i < n; i++)
        most = isnan(a[i]) || isnan(b[i]) ? INFINITY : most;
    return most;
}

static void slots(wf_ctx *ctx, wf_ctx *ref, const wf_resample_geom *g, wf_shape x, wf_shape y, test_rng *rng)
{
    const int64_t n_x = wf_shape_count(x), n_y = wf_shape_count(y);
    float *const memory = malloc((size_t)(3 * (n_x + n_y) + 1) * sizeof *memory);
    float *in = memory, *dx = in + n_x, *dx_ref = dx + n_x, *out = dx_ref + n_x, *out_ref = out + n_y,
          *dy = out_ref + n_y;
    for (int64_t i = 0; i < 3 * (n_x + n_y); i++)
        memory[i] = NAN;
    for (int64_t i = 0; i < n_x; i++)
        in[i] = (float)test_uniform(rng, -1, 1);
    for (int64_t i = 0; i < n_y; i++)
        dy[i] = (float)test_uniform(rng, -1, 1);
    resample(ctx, g, x, in, dx, y, dy, out);
    resample(ref, g, x, in, dx_ref, y, dy, out_ref);
    WF_EXPECT(distance(n_y, out, out_ref) < 1e-5, "forward is off by %g", distance(n_y, out, out_ref));
    WF_EXPECT(distance(n_x, dx, dx_ref) < 1e-4, "backward is off by %g", distance(n_x, dx, dx_ref));
    const double left = product(n_y, out, dy), right = product(n_x, in, dx);
    WF_EXPECT(fabs(left - right) < 1e-3, "<F x, y> is %g, <x, F* y> %g", left, right);
    free(memory);
}

static void cpu_and_ref(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu")});
    wf_ctx *ref = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    test_rng rng = {.state = 3};
    for (int i = 0; i < 200; i++) {
        wf_resample_geom g = {.nd = (int)test_int(&rng, 1, 3), .linear = test_int(&rng, 0, 1)};
        g.align_corners = g.linear && test_int(&rng, 0, 1);
        wf_shape x = {.rank = g.nd + 2, .dim = {test_int(&rng, 0, 3), test_int(&rng, 1, 17)}}, y = x;
        for (int d = 0; d < g.nd; d++) {
            g.scale[d] = test_int(&rng, 1, 4);
            g.in[d] = x.dim[2 + d] = test_int(&rng, 1, 6);
            y.dim[2 + d] = x.dim[2 + d] * g.scale[d];
        }
        slots(ctx, ref, &g, x, y, &rng);
    }
    WF_EXPECT_OK(wf_ctx_free(ctx));
    WF_EXPECT_OK(wf_ctx_free(ref));
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
                                   {"cpu_and_ref", cpu_and_ref},
                                   {"gradients", gradients},
                                   {"errors", errors},
                                   {0}});
}
