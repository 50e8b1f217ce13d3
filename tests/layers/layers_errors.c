/* What layers refuse, and how: the code, and a message that names the value. Also names, ownership and NULL. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <string.h>

static wf_ctx *ctx;
static wf_tape *tape;

/* The last call gave NULL, with this code and this text in its message, which the verb at the end of a chain reports.
 */
static void refused(const void *result, wf_status code, const char *text)
{
    WF_EXPECT(!result, "is not refused; should be: %s", text);
    WF_EXPECT(wf_check(result) == code, "is %s, should be %s: %s", wf_status_name(wf_error_code()),
              wf_status_name(code), wf_error_message());
    WF_EXPECT(strstr(wf_error_message(), text), "\"%s\" does not say \"%s\"", wf_error_message(), text);
    WF_EXPECT(!strchr(wf_error_message(), '\n'), "\"%s\" is more than a line", wf_error_message());
    wf_error_clear();
}

static void conv_options(void)
{
    const struct {
        wf_conv_opts o;
        bool transposed;
        const char *text;
    } bad[] = {
        {{.in = 0, .out = 4, .kernel = 3}, false, "in is 0"},
        {{.in = 3, .out = -4, .kernel = 3}, false, "out is -4"},
        {{.in = INT64_C(1) << 40, .out = 1, .kernel = 1}, false, "in is 1099511627776"},
        {{.in = 3, .out = 4}, false, "kernel 0"},
        {{.in = 3, .out = 4, .kernel = 3, .stride = -2}, false, "stride -2"},
        {{.in = 3, .out = 4, .kernel = 3, .dilation = -1}, false, "dilation -1"},
        {{.in = 3, .out = 4, .kernel_nd = {3, 0}}, false, "kernel 0, stride 1, dilation 1 in spatial dimension 1"},
        {{.in = 3, .out = 4, .kernel = INT64_C(1) << 40}, false, "kernel 1099511627776"},
        {{.in = 1 << 20, .out = 1 << 20, .kernel = 1 << 20}, false, "[1048576,1048576,1048576,1048576]"},
        {{.in = 3, .out = 4, .kernel = 3, .pad = INT64_MAX}, false, "pads 9223372036854775807"},
        {{.in = 3, .out = 4, .kernel = 3, .pad = 1, .pad_lo_nd = {0, 2}}, false, "pad is 1 beside"},
        {{.in = 4, .out = 6, .kernel = 3, .groups = 4}, false, "groups is 4, should divide in 4 and out 6"},
        {{.in = 4, .out = 6, .kernel = 3, .groups = -1}, false, "groups is -1"},
        {{.in = 4, .out = 6, .kernel = 3, .output_pad = 1}, false, "output_pad"},
        {{.in = 4, .out = 6, .kernel = 3, .stride = 2, .output_pad = 2}, true, "output_pad is 2"},
        {{.in = 4, .out = 6, .kernel = 3, .act = WF_ACT_TANH}, false, "act is 6"},
        {{.in = 4, .out = 6, .kernel = 3, .noise = -0.5}, true, "noise is -0.5"},
        {{.in = 4, .out = 6, .kernel = 3, .slope = -0.25}, false, "slope is -0.25"},
        {{.in = 4, .out = 6, .kernel = 3, .boundary.lo[0] = WF_EDGE_CIRCULAR},
         false,
         "conv2d: dimension 0 has an edge circular, should have none: edges are of dimensions 2 to 3"},
        {{.in = 4, .out = 6, .kernel = 3, .boundary.hi[4] = WF_EDGE_REFLECT}, true, "dimension 4 has an edge reflect"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused((bad[i].transposed ? wf_conv_transpose2d : wf_conv2d)(ctx, bad[i].o), WF_ERR_ARGUMENT, bad[i].text);
}

/* The number of spatial dimensions: 2 by default. */
static void dimensions(void)
{
    wf_layer *conv = wf_conv(ctx, (wf_conv_opts){.in = 1, .out = 1, .kernel = 3});
    WF_EXPECT(conv && wf_param_shape(wf_layer_param(conv, "W")).rank == 4, "a filter of another rank");
    wf_layer_free(conv);
    refused(wf_conv(ctx, (wf_conv_opts){.nd = 4, .in = 1, .out = 1, .kernel = 3}), WF_ERR_ARGUMENT,
            "conv: nd is 4, should be 1 to 3");
    refused(wf_conv_transpose(ctx, (wf_conv_opts){.nd = -1, .in = 1, .out = 1, .kernel = 3}), WF_ERR_ARGUMENT,
            "conv_transpose: nd is -1, should be 1 to 3");
    refused(wf_max_pool(ctx, (wf_pool_opts){.nd = 4, .kernel = 2}), WF_ERR_ARGUMENT, "max_pool: nd is 4");
    refused(wf_avg_pool(ctx, (wf_pool_opts){.nd = 4, .kernel = 2}), WF_ERR_ARGUMENT, "avg_pool: nd is 4");
    refused(wf_lp_pool(ctx, 2, (wf_pool_opts){.nd = 4, .kernel = 2}), WF_ERR_ARGUMENT, "lp_pool: nd is 4");
    refused(wf_upsample(ctx, (wf_upsample_opts){.nd = 4}), WF_ERR_ARGUMENT, "upsample: nd is 4");
}

static void other_options(void)
{
    refused(wf_linear(ctx, (wf_linear_opts){.in = 3}), WF_ERR_ARGUMENT, "out is 0");
    refused(wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .boundary.lo[1] = WF_EDGE_CIRCULAR}), WF_ERR_ARGUMENT,
            "max_pool2d: dimension 1 has an edge circular");
    refused(wf_linear(ctx, (wf_linear_opts){.in = -3, .out = 1}), WF_ERR_ARGUMENT, "in is -3");
    refused(wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 0}), WF_ERR_ARGUMENT, "channels is 0");
    refused(wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 2, .decay = 1.5}), WF_ERR_ARGUMENT, "decay is 1.5");
    refused(wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 2, .eps = -1}), WF_ERR_ARGUMENT, "eps is -1");
    refused(wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 2, .noise = -1}), WF_ERR_ARGUMENT, "noise is -1");
    refused(wf_layernorm(ctx, (wf_layernorm_opts){0}), WF_ERR_ARGUMENT, "channels is 0");
    refused(wf_layerscale(ctx, (wf_layerscale_opts){0}), WF_ERR_ARGUMENT, "channels is 0 and features is 0");
    refused(wf_layerscale(ctx, (wf_layerscale_opts){.channels = 2, .features = 3}), WF_ERR_ARGUMENT, "give one");
    refused(wf_positions(ctx, (wf_positions_opts){.length = 2}), WF_ERR_ARGUMENT, "features is 0");
    refused(wf_positions(ctx, (wf_positions_opts){.length = 2, .features = 3, .kind = WF_POSITIONS_SINE}),
            WF_ERR_ARGUMENT, "features is 3, should be even");
    refused(wf_embedding(ctx, (wf_embedding_opts){.count = 2}), WF_ERR_ARGUMENT, "features is 0");
    refused(wf_embedding(ctx, (wf_embedding_opts){.count = 2, .features = 2, .ignores = true, .ignored = INT64_MIN}),
            WF_ERR_ARGUMENT, "embedding: ignored is -9223372036854775808, should be");
    refused(wf_patch_embed(ctx, (wf_patch_embed_opts){.in = 1, .out = 1}), WF_ERR_ARGUMENT, "dimension 0 is 0");
    refused(wf_patch_embed(ctx, (wf_patch_embed_opts){.in = 1, .out = 1, .nd = 4, .patch = 2}), WF_ERR_ARGUMENT,
            "nd is 4");
    refused(wf_patch_merging(ctx, (wf_patch_merging_opts){.out = 2}), WF_ERR_ARGUMENT, "channels is 0");
    refused(wf_stochastic_depth(ctx, 1), WF_ERR_ARGUMENT, "rate 1 is not in [0, 1)");
    refused(wf_stochastic_depth(ctx, -0.5), WF_ERR_ARGUMENT, "rate -0.5");
    refused(wf_layernorm(ctx, (wf_layernorm_opts){.channels = 3, .eps = -1}), WF_ERR_ARGUMENT, "eps is -1");
    refused(wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(4, 0)}), WF_ERR_ARGUMENT, "[4,0]");
    refused(wf_prelu(ctx, (wf_prelu_opts){.channels = -2}), WF_ERR_ARGUMENT, "channels is -2");
    refused(wf_rmsnorm(ctx, (wf_rmsnorm_opts){.channels = 3, .shape = WF_SHAPE(4)}), WF_ERR_ARGUMENT, "give one of");
    refused(wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = 6}), WF_ERR_ARGUMENT, "groups is 0");
    refused(wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = 6, .groups = 4}), WF_ERR_ARGUMENT,
            "groups is 4, should divide the 6 channels");
    refused(wf_instancenorm(ctx, (wf_instancenorm_opts){.channels = -2}), WF_ERR_ARGUMENT, "channels is -2");
    refused(wf_max_pool2d(ctx, (wf_pool_opts){.stride = 2}), WF_ERR_ARGUMENT, "kernel 0");
    refused(wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 3, .pad = 2}), WF_ERR_ARGUMENT, "pads 2 and 2");
    refused(wf_avg_pool1d(ctx, (wf_pool_opts){.kernel = 3, .pad = -1}), WF_ERR_ARGUMENT, "pads -1 and -1");
    refused(wf_avg_pool3d(ctx, (wf_pool_opts){.kernel = 3, .pad = 1, .pad_hi_nd = {1}}), WF_ERR_ARGUMENT, "pad is 1");
    refused(wf_lambda(ctx, NULL), WF_ERR_ARGUMENT, "wf_lambda");
    refused(wf_module(ctx, NULL, NULL), WF_ERR_ARGUMENT, "wf_module");
}

/* Pooling with places of zeros, by a layer that it frees. */
static void places_refused(wf_layer *layer, wf_status code, const char *text)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 3, 8, 8));
    WF_EXPECT_OK(wf_tensor_fill(x, 0));
    wf_var *const in = wf_input(tape, x), *places = in;
    wf_var *y = wf_max_pool_with_places(layer, in, &places);
    WF_EXPECT(!places, "there are places");
    refused(y, code, text);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

/* A smaller image whose pixels i32 cannot number; of no sample, so that it needs no memory. */
static void unpool_of_many(void)
{
    const wf_shape shape = WF_SHAPE(0, 3, 1 << 16, 1 << 16);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, shape), *at = wf_tensor_new(ctx, WF_U8, shape);
    refused(wf_max_unpool(wf_input(tape, x), wf_input(tape, at), (wf_pool_opts){0}, WF_SHAPE(8, 8)), WF_ERR_UNSUPPORTED,
            "max_unpool of [0,3,65536,65536], should be at most 2147483647 pixels");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(at);
}

/* Zeros [2,3,4,4] by places of another type and shape, which are all `place`. */
static void unpool_refused(wf_dtype dtype, wf_shape shape, double place, wf_pool_opts opts, wf_shape size,
                           wf_status code, const char *text)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 3, 4, 4)), *at = wf_tensor_new(ctx, dtype, shape);
    WF_EXPECT_OK(wf_tensor_fill(x, 0));
    WF_EXPECT_OK(wf_tensor_fill(at, place));
    refused(wf_max_unpool(wf_input(tape, x), wf_input(tape, at), opts, size), code, text);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(at);
}

static void places(void)
{
    const wf_pool_opts k2 = {.kernel = 2}, round = {.kernel = 3, .pad = 1, .boundary = {.edge = WF_EDGE_CIRCULAR}};
    const wf_shape same = WF_SHAPE(2, 3, 4, 4), none = {0};
    refused(wf_adaptive_max_pool(ctx, WF_SHAPE(1, 2, 3, 4)), WF_ERR_ARGUMENT, "should have 1 to 3 dimensions");
    refused(wf_adaptive_max_pool(ctx, WF_SHAPE(1, -2)), WF_ERR_ARGUMENT, "size is -2 in spatial dimension 1");
    places_refused(wf_avg_pool2d(ctx, k2), WF_ERR_ARGUMENT, "an average has no places");
    places_refused(wf_max_pool2d(ctx, round), WF_ERR_UNSUPPORTED, "beyond the edges");
    places_refused(wf_lambda(ctx, wf_relu), WF_ERR_ARGUMENT, "should be a layer of maximum pooling");
    places_refused(wf_max_pool1d(ctx, k2), WF_ERR_SHAPE, "1 spatial");
    unpool_refused(WF_F32, same, 0, k2, none, WF_ERR_DTYPE, "u8, i32 or i64, not f32");
    unpool_refused(WF_I64, WF_SHAPE(2, 3, 4, 5), 0, k2, none, WF_ERR_SHAPE, "by places [2,3,4,5]");
    unpool_refused(WF_I64, same, 0, (wf_pool_opts){0}, none, WF_ERR_ARGUMENT, "max_unpool: kernel 0");
    unpool_refused(WF_I64, same, 0, (wf_pool_opts){0}, WF_SHAPE(8, 0), WF_ERR_ARGUMENT, "max_unpool: kernel 0");
    unpool_refused(WF_I64, same, 0, k2, WF_SHAPE(8), WF_ERR_SHAPE, "size [8], should have 2 dimensions");
    unpool_refused(WF_I64, same, 0, k2, WF_SHAPE(8, -1), WF_ERR_SHAPE, "to -1 pixels in spatial dimension 1");
    unpool_refused(WF_I64, same, 0, k2, WF_SHAPE(1 << 16, 1 << 16), WF_ERR_UNSUPPORTED, "at most 2147483647 pixels");
    unpool_of_many();
    unpool_refused(WF_I64, same, 64, k2, none, WF_ERR_ARGUMENT, "place 64 of element 0 is outside [0, 64)");
    unpool_refused(WF_I64, same, -2, k2, none, WF_ERR_ARGUMENT, "place -2 of element 0 is outside [0, 64)");
    unpool_refused(WF_I64, same, 0, round, none, WF_ERR_UNSUPPORTED, "max_unpool: with a boundary");
    unpool_refused(WF_I64, same, 0, round, WF_SHAPE(8, 8), WF_ERR_UNSUPPORTED, "max_unpool: with a boundary");
    unpool_refused(WF_I64, same, 0, (wf_pool_opts){.kernel = -2}, WF_SHAPE(8, 8), WF_ERR_ARGUMENT,
                   "max_unpool: kernel -2");
    unpool_refused(WF_I64, same, 0, (wf_pool_opts){.pad_hi_nd = {0, 1}}, WF_SHAPE(8, 8), WF_ERR_ARGUMENT,
                   "max_unpool: kernel 0");
}

/* Applies a layer, which it frees, to zeros of this shape. */
static void apply_refused(wf_layer *layer, wf_dtype dtype, wf_shape shape, wf_status code, const char *text)
{
    wf_tensor *x = wf_tensor_new(ctx, dtype, shape);
    WF_EXPECT(layer && x, "%s", wf_error_message());
    WF_EXPECT_OK(wf_tensor_fill(x, 0));
    wf_var *y = wf_apply(layer, wf_input(tape, x));
    refused(y, code, text);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

static void inputs(void)
{
    const wf_conv_opts k3 = {.in = 3, .out = 4, .kernel = 3};
    const wf_conv_opts ring = {.in = 3, .out = 4, .kernel = 11, .pad = 5, .boundary.edge = WF_EDGE_CIRCULAR};
    const wf_pool_opts k4 = {.kernel = 4};
    const wf_batchnorm_opts c3 = {.channels = 3};
    apply_refused(wf_conv2d(ctx, k3), WF_F32, WF_SHAPE(2, 4, 8, 8), WF_ERR_SHAPE, "input [2,4,8,8], should be [N,3]");
    apply_refused(wf_conv2d(ctx, k3), WF_F32, WF_SHAPE(2, 3, 8), WF_ERR_SHAPE, "input [2,3,8]");
    apply_refused(wf_conv2d(ctx, k3), WF_F32, WF_SHAPE(2, 3, 8, 2), WF_ERR_SHAPE, "no output in spatial dimension 1");
    apply_refused(wf_conv2d(ctx, k3), WF_F64, WF_SHAPE(2, 3, 8, 8), WF_ERR_DTYPE, "f64, should be f32");
    apply_refused(
        wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 3, .out = 4, .kernel = 2, .pad_lo_nd = {3}, .pad_hi_nd = {3}}),
        WF_F32, WF_SHAPE(2, 3, 5, 5), WF_ERR_SHAPE, "pads 3 and 3 has no output in spatial dimension 0");
    apply_refused(wf_max_pool2d(ctx, k4), WF_F32, WF_SHAPE(2, 3, 8, 3), WF_ERR_SHAPE, "no window of 4");
    apply_refused(wf_max_pool2d(ctx, k4), WF_F32, WF_SHAPE(2, 3, 8), WF_ERR_SHAPE, "[N,C] and 2 spatial");
    apply_refused(wf_max_pool2d(ctx, k4), WF_I32, WF_SHAPE(2, 3, 8, 8), WF_ERR_DTYPE, "i32");
    apply_refused(wf_max_pool2d(ctx, k4), WF_F32, WF_SHAPE(0, 3, 1 << 16, 1 << 15), WF_ERR_UNSUPPORTED,
                  "[0,3,65536,32768] has more than 2147483647 pixels");
    apply_refused(wf_global_avg_pool(ctx), WF_F32, WF_SHAPE(2, 3), WF_ERR_SHAPE, "1 to 3 spatial");
    apply_refused(wf_conv2d(ctx, ring), WF_F32, WF_SHAPE(1, 3, 4, 4), WF_ERR_SHAPE, "5 elements beyond the lower edge");
    apply_refused(wf_global_avg_pool(ctx), WF_F32, WF_SHAPE(2, 3, 0), WF_ERR_SHAPE, "[2,3,0]");
    apply_refused(wf_batchnorm(ctx, c3), WF_F32, WF_SHAPE(2, 4), WF_ERR_SHAPE, "[2,4], should be [N,3]");
    apply_refused(wf_batchnorm(ctx, c3), WF_F32, WF_SHAPE(3), WF_ERR_SHAPE, "[3]");
    apply_refused(wf_batchnorm(ctx, c3), WF_F64, WF_SHAPE(2, 3), WF_ERR_DTYPE, "f64");
    apply_refused(wf_layerscale(ctx, (wf_layerscale_opts){.channels = 3}), WF_F32, WF_SHAPE(2, 4), WF_ERR_SHAPE,
                  "input [2,4], should be [N,3]");
    apply_refused(wf_layerscale(ctx, (wf_layerscale_opts){.features = 3}), WF_F32, WF_SHAPE(2, 3, 4), WF_ERR_SHAPE,
                  "should be [...,3]");
    apply_refused(wf_layerscale(ctx, (wf_layerscale_opts){.channels = 3}), WF_F64, WF_SHAPE(2, 3), WF_ERR_DTYPE,
                  "f64, should be f32");
    apply_refused(wf_positions(ctx, (wf_positions_opts){.length = 2, .features = 4}), WF_F32, WF_SHAPE(1, 3, 4),
                  WF_ERR_SHAPE, "at most 2 tokens");
    apply_refused(wf_embedding(ctx, (wf_embedding_opts){.count = 2, .features = 4}), WF_F32, WF_SHAPE(3), WF_ERR_DTYPE,
                  "embedding takes indices of type u8, i32 or i64, not f32");
    apply_refused(wf_patch_merging(ctx, (wf_patch_merging_opts){.channels = 1}), WF_F32, WF_SHAPE(1, 1, 4, 3),
                  WF_ERR_SHAPE, "whole blocks of 2, not [1,1,4,3]");
    apply_refused(wf_stochastic_depth(ctx, 0.5), WF_F32, wf_shape_scalar(), WF_ERR_SHAPE, "samples are dimension 0");
    apply_refused(wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = 4, .groups = 2}), WF_F32, WF_SHAPE(2, 6, 3),
                  WF_ERR_SHAPE, "groupnorm \"\": input [2,6,3], should be [N,4]");
    apply_refused(wf_prelu(ctx, (wf_prelu_opts){.channels = 3}), WF_F32, WF_SHAPE(2, 4), WF_ERR_SHAPE,
                  "[2,4], should be [N,3,...]");
    apply_refused(wf_prelu(ctx, (wf_prelu_opts){0}), WF_F64, WF_SHAPE(2, 4), WF_ERR_DTYPE, "f64, should be f32");
    apply_refused(wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(3, 4)}), WF_F32, WF_SHAPE(2, 4, 4),
                  WF_ERR_SHAPE, "input [2,4,4], its last dimensions should be [3,4]");
    apply_refused(wf_rmsnorm(ctx, (wf_rmsnorm_opts){.shape = WF_SHAPE(3, 4)}), WF_F32, WF_SHAPE(4), WF_ERR_SHAPE,
                  "[4]");
    apply_refused(wf_instancenorm(ctx, (wf_instancenorm_opts){.channels = 3}), WF_F64, WF_SHAPE(2, 3), WF_ERR_DTYPE,
                  "f64, should be f32");
    apply_refused(wf_linear(ctx, (wf_linear_opts){.in = 6, .out = 1}), WF_F32, WF_SHAPE(2, 7), WF_ERR_SHAPE, "[2,7]");
    apply_refused(wf_linear(ctx, (wf_linear_opts){.in = 6, .out = 1}), WF_F32, WF_SHAPE(6), WF_ERR_SHAPE, "[6]");
    apply_refused(wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 1}), WF_I64, WF_SHAPE(1, 2), WF_ERR_DTYPE, "i64");
}

/* Each leaves the first error, whatever the layer. */
static void residuals(void)
{
    wf_tape *other = wf_tape_new(ctx);
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .act = WF_ACT_RELU});
    wf_layer *linear = wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 3});
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 3)), *wide = wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 3));
    wf_tensor *longer = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4, 3));
    wf_var *x = wf_input(tape, t);
    refused(wf_apply_residual(norm, x, wf_input(tape, longer)), WF_ERR_SHAPE, "[2,3] and [4,3]");
    refused(wf_apply_residual(norm, x, wf_input(tape, wide)), WF_ERR_DTYPE, "f32 and f64");
    refused(wf_apply_residual(norm, x, wf_input(other, t)), WF_ERR_ARGUMENT, "two tapes");
    refused(wf_apply_residual(norm, x, wf_no_loss(tape)), WF_ERR_STATE, "wf_no_loss");
    refused(wf_apply_residual(linear, x, x), WF_ERR_ARGUMENT, "takes a batch normalisation");
    refused(wf_apply_n(norm, WF_INPUTS(x, x, x)), WF_ERR_ARGUMENT, "takes 1 to 2 inputs, not 3");
    WF_EXPECT(!wf_apply_residual(norm, NULL, x) && !wf_apply_residual(norm, x, NULL), "NULL gives a variable");
    WF_EXPECT(wf_error_pending() == WF_OK, "NULL passed on is an error: %s", wf_error_message());
    refused(wf_apply_residual(NULL, x, x), WF_ERR_ARGUMENT, "NULL");
    wf_tensor_free(t);
    wf_tensor_free(wide);
    wf_tensor_free(longer);
    wf_layer_free(norm);
    wf_layer_free(linear);
    wf_tape_free(other);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* A batch sharded over data is taken; what is cut otherwise is refused by layers that would need the rest. */
static void layouts(void)
{
    const struct {
        int dim;
        bool conv, norm;
    } cases[] = {{0, true, true}, {1, false, false}, {2, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_layout layout = wf_layout_batch(NULL, WF_SHAPE(4, 3, 8, 8), 0, 4);
        layout.dim[WF_AXIS_DATA] = (uint8_t)cases[i].dim;
        layout.global.dim[cases[i].dim] *= 2;
        wf_tensor *t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4, 3, 8, 8));
        WF_EXPECT_OK(wf_tensor_fill(t, 0));
        WF_EXPECT_OK(wf_tensor_set_layout(t, layout));
        wf_layer *conv = wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 4, .kernel = 3});
        wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3});
        wf_var *x = wf_input(tape, t), *y = wf_apply(conv, x);
        if (cases[i].conv)
            WF_EXPECT(y && wf_tensor_layout(wf_value(y)).global.dim[0] == 8, "conv: %s", wf_error_message());
        else
            refused(y, WF_ERR_SHAPE, "wf_redistribute");
        y = wf_apply(norm, x);
        if (cases[i].norm)
            WF_EXPECT(y && wf_tensor_layout(wf_value(y)).global.dim[0] == 8, "batchnorm: %s", wf_error_message());
        else
            refused(y, WF_ERR_SHAPE, "wf_redistribute");
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_layer_free(conv);
        wf_layer_free(norm);
        wf_tensor_free(t);
    }
}

static wf_layer *small(void)
{
    return wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 3});
}

static wf_var *first_child(wf_layer *self, void *user, wf_var *x)
{
    return wf_apply(wf_layer_child(self, user), x);
}

static void null_passes(void)
{
    wf_layer *layer = small();
    wf_error_clear();
    WF_EXPECT(!wf_apply(layer, NULL), "NULL is applied");
    WF_EXPECT(!wf_layer_child(NULL, "a") && !wf_layer_param(NULL, "W") && !wf_layer_ctx(NULL), "parts of NULL");
    WF_EXPECT(wf_error_code() == WF_OK, "NULL is passed on with a new error: %s", wf_error_message());
    WF_EXPECT(!wf_apply(NULL, NULL), "NULL applies");
    refused(NULL, WF_ERR_ARGUMENT, "wf_apply: layer is NULL");
    WF_EXPECT(!wf_conv2d(NULL, (wf_conv_opts){0}) && !wf_linear(NULL, (wf_linear_opts){0}) &&
                  !wf_batchnorm(NULL, (wf_batchnorm_opts){0}) && !wf_max_pool2d(NULL, (wf_pool_opts){0}) &&
                  !wf_global_max_pool(NULL) && !wf_module(NULL, first_child, NULL) && !wf_lambda(NULL, wf_relu),
              "a layer without a context");
    refused(NULL, WF_ERR_ARGUMENT, "wf_conv: ctx is NULL");
    WF_EXPECT(strcmp(wf_layer_path(NULL), "") == 0 && wf_layer_param_count(NULL) == 0, "NULL has a path or elements");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_layer_archive(NULL, NULL));
    WF_EXPECT(!wf_module_add(NULL, "a", layer), "a child of NULL"); /* frees it */
    wf_layer *module = wf_module(ctx, first_child, "a");
    WF_EXPECT(!wf_module_add(module, "a", NULL), "NULL is a child");
    wf_layer_free(module);
    wf_layer_free(NULL);
    /* The reason why a part is NULL is what the verb at the end reports. */
    wf_layer *broken = wf_sequential(
        ctx, WF_LAYERS(small(), wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = -7, .kernel = 1}), small()));
    wf_error_clear();
    WF_EXPECT(!broken, "a sequence with a hole");
}

static void names(void)
{
    wf_layer *gen = wf_module(ctx, first_child, "up"), *root = wf_module(ctx, first_child, "gen");
    wf_layer *up = wf_module_add(gen, "up", wf_sequential(ctx, WF_LAYERS(small(), small())));
    WF_EXPECT(strcmp(wf_layer_path(gen), "") == 0, "a root has path \"%s\"", wf_layer_path(gen));
    WF_EXPECT(strcmp(wf_layer_path(up), "up") == 0, "path is \"%s\"", wf_layer_path(up));
    wf_param *w = wf_layer_param(gen, "up/1/W");
    WF_EXPECT(wf_layer_param_count(root) == 0, "an empty module has %lld elements",
              (long long)wf_layer_param_count(root));
    WF_EXPECT(w && strcmp(wf_param_path(w), "up/1/W") == 0, "path is \"%s\"", wf_param_path(w));
    WF_EXPECT(wf_module_add(root, "gen", gen) == gen, "%s", wf_error_message());
    WF_EXPECT(strcmp(wf_param_path(w), "gen/up/1/W") == 0, "after a move it is \"%s\"", wf_param_path(w));
    WF_EXPECT(strcmp(wf_param_name(w), "W") == 0, "name is \"%s\"", wf_param_name(w));
    WF_EXPECT(wf_layer_param(root, "gen/up/1/W") == w && wf_layer_param(gen, "up/1/W") == w, "not found by path");
    refused(wf_layer_param(root, "up/1/W"), WF_ERR_ARGUMENT, "\"up/1/W\"");
    refused(wf_layer_child(root, "dis"), WF_ERR_ARGUMENT, "\"dis\"");
    WF_EXPECT(wf_layer_params(root, NULL, NULL) == WF_ERR_ARGUMENT, "nowhere to put the parameters");
    wf_error_clear();
    WF_EXPECT(wf_layer_param_count(root) == 18, "%lld elements", (long long)wf_layer_param_count(root));
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(root, &n, &params));
    const char *order[] = {"gen/up/0/W", "gen/up/0/b", "gen/up/1/W", "gen/up/1/b"};
    WF_EXPECT(n == 4, "%lld parameters", (long long)n);
    for (int64_t i = 0; i < n && i < 4; i++)
        WF_EXPECT(strcmp(wf_param_path(params[i]), order[i]) == 0, "parameter %lld is %s", (long long)i,
                  wf_param_path(params[i]));
    WF_EXPECT_OK(wf_param_set_trainable(w, false));
    WF_EXPECT(wf_layer_param_count(root) == 12, "a frozen parameter counts");
    wf_layer_free(root);
}

static void adding(void)
{
    wf_layer *module = wf_module(ctx, first_child, "a"), *inner = wf_module(ctx, first_child, "a"), *a = small();
    WF_EXPECT(wf_module_add(module, "a", a) == a, "%s", wf_error_message());
    WF_EXPECT(wf_module_add(module, "inner", inner) == inner, "%s", wf_error_message());
    refused(wf_module_add(module, "a", small()), WF_ERR_ARGUMENT, "\"a\"");
    refused(wf_module_add(module, "b/c", small()), WF_ERR_ARGUMENT, "\"b/c\"");
    refused(wf_module_add(module, "", small()), WF_ERR_ARGUMENT, "\"\"");
    refused(wf_module_add(module, "again", a), WF_ERR_STATE, "\"again\" has a parent");
    refused(wf_module_add(module, "self", module), WF_ERR_STATE, "\"self\"");
    refused(wf_module_add(inner, "loop", module), WF_ERR_STATE, "\"loop\"");
    WF_EXPECT(wf_layer_child(module, "a") == a, "the child that was refused twice is gone");
    wf_ctx *other = wf_ctx_new((wf_ctx_opts){.device = test_device("ref")});
    refused(wf_module_add(module, "far", wf_linear(other, (wf_linear_opts){.in = 1, .out = 1})), WF_ERR_ARGUMENT,
            "another context");
    wf_tape *far = wf_tape_new(other);
    wf_tensor *t = wf_tensor_new(other, WF_F32, WF_SHAPE(1, 2));
    WF_EXPECT_OK(wf_tensor_fill(t, 0));
    refused(wf_apply(a, wf_input(far, t)), WF_ERR_ARGUMENT, "another context");
    wf_tensor_free(t);
    wf_tape_free(far);
    WF_EXPECT_OK(wf_ctx_free(other));
    wf_layer_free(module);
}

/* One layer twice in a sequence, with a hole after it: everything is freed once. */
static void sequence_frees_once(void)
{
    wf_layer *a = small();
    wf_layer *const parts[] = {a, NULL, a, small()};
    WF_EXPECT(!wf_sequential(ctx, 4, parts), "a sequence with a hole");
    wf_layer *b = small(), *c = small();
    WF_EXPECT(!wf_sequential(ctx, WF_LAYERS(b, b)), "one layer in two places");
    WF_EXPECT(!wf_sequential(ctx, WF_LAYERS(NULL, c, c)), "the same behind a hole");
    wf_error_clear();
    refused(wf_sequential(ctx, 2, NULL), WF_ERR_ARGUMENT, "NULL");
    refused(wf_sequential(ctx, -2, NULL), WF_ERR_ARGUMENT, "-2");
}

static void skips(void)
{
    wf_layer *missing = wf_sequential(ctx, WF_LAYERS(small(), wf_skip_pop(ctx, "a", NULL)));
    wf_layer *twice =
        wf_sequential(ctx, WF_LAYERS(wf_skip_stash(ctx, "a"), wf_skip_stash(ctx, "a"), wf_skip_pop(ctx, "a", NULL)));
    wf_layer *late = wf_sequential(ctx, WF_LAYERS(wf_skip_pop(ctx, "a", NULL), wf_skip_stash(ctx, "a")));
    wf_layer *relu[3];
    for (int i = 0; i < 3; i++)
        relu[i] = wf_lambda(ctx, wf_relu);
    wf_layer *cut = wf_sequential(
        ctx, WF_LAYERS(small(), wf_skip_stash(ctx, "a"), relu[0], relu[1], wf_skip_pop(ctx, "a", NULL), relu[2]));
    refused(wf_skip_stash(ctx, ""), WF_ERR_ARGUMENT, "skip_stash without a name");
    refused(wf_skip_pop(NULL, "a", NULL), WF_ERR_ARGUMENT, "ctx is NULL");
    apply_refused(missing, WF_F32, WF_SHAPE(4, 2), WF_ERR_STATE, "no layer of its chains is a wf_skip_stash of \"a\"");
    apply_refused(twice, WF_F32, WF_SHAPE(4, 2), WF_ERR_STATE, "several stashes or pops");
    apply_refused(late, WF_F32, WF_SHAPE(4, 2), WF_ERR_STATE, "nothing is kept under \"a\"");
    apply_refused(wf_recompute_chain(cut, 2), WF_F32, WF_SHAPE(4, 2), WF_ERR_STATE, "in the same segment");
}

static void ties(void)
{
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(small(), small(), small()));
    WF_EXPECT_OK(wf_layer_tie(model, "1/W", "0/W"));
    WF_EXPECT(wf_param_value(model->children[1]->params[0]) == wf_param_value(wf_layer_param(model, "0/W")),
              "a tied parameter has a value of its own");
    WF_EXPECT(wf_layer_param(model, "1/W") == wf_layer_param(model, "0/W") &&
                  wf_layer_param(model->children[1], "W") == wf_layer_param(model, "0/W"),
              "a tied parameter is not found under its own path");
    refused(wf_layer_param(model, "3/W"), WF_ERR_ARGUMENT, "no parameter \"3/W\"");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_layer_tie(model, "2/W", "2/b"));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_layer_tie(model, "2/W", "2/W"));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_layer_tie(model, "1/W", "0/W"));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_layer_tie(model, "1/W", "2/W"));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_layer_tie(model, "0/W", "1/W"));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_layer_tie(model, "2/W", "3/W"));
    wf_layer_free(model);
}

static void passed_value(void)
{
    wf_layer *layer = small();
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4, 2));
    WF_EXPECT_OK(wf_tensor_fill(t, 1));
    wf_var *x = wf_leaf(tape, t), *h = wf_relu(x), *loss = wf_sum(wf_apply(layer, h));
    WF_EXPECT_OK(wf_backward(loss));
    refused(wf_apply(layer, h), WF_ERR_STATE, "the backward that passed it");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(t);
    wf_layer_free(layer);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref")});
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"conv_options", conv_options},
                                               {"dimensions", dimensions},
                                               {"other_options", other_options},
                                               {"places", places},
                                               {"inputs", inputs},
                                               {"residuals", residuals},
                                               {"layouts", layouts},
                                               {"null_passes", null_passes},
                                               {"names", names},
                                               {"adding", adding},
                                               {"sequence_frees_once", sequence_frees_once},
                                               {"skips", skips},
                                               {"ties", ties},
                                               {"passed_value", passed_value},
                                               {0}});
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx)); /* nothing is left */
    return failed || test_failures() > 0;
}
