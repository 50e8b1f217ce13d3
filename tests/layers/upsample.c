/* Upsampling: known numbers and gradients; contract_kernels has the slots. */
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
    return test_main(
        argc, argv, (test_case[]){{"known_numbers", known_numbers}, {"gradients", gradients}, {"errors", errors}, {0}});
}
