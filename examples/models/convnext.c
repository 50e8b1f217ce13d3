/* A block is a wf_module, since its residual is no chain. Linear layers of channels are convolutions of 1x1, so that
 * images need no transposition and may be cut. */
#include "examples/models/convnext.h"

#include <stdio.h>

static const struct {
    int64_t width;
    int blocks[4];
    double drop_path;
} sizes[CONVNEXT_SIZES] = {
    [CONVNEXT_TINY] = {96, {3, 3, 9, 3}, 0.1},
    [CONVNEXT_SMALL] = {96, {3, 3, 27, 3}, 0.4},
    [CONVNEXT_BASE] = {128, {3, 3, 27, 3}, 0.5},
    [CONVNEXT_LARGE] = {192, {3, 3, 27, 3}, 0.5},
};

static const wf_init initial = {WF_INIT_TRUNC_NORMAL, 0, 0.02};

static wf_layer *conv(wf_ctx *ctx, int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = kernel, .stride = stride, .w_init = initial});
}

static wf_layer *norm(wf_ctx *ctx, int64_t channels)
{
    return wf_layernorm(ctx, (wf_layernorm_opts){.channels = channels, .eps = 1e-6});
}

static wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "path"), x);
    return wf_add(x, y);
}

static wf_layer *block(wf_ctx *ctx, int64_t width, double scale, double rate)
{
    const wf_conv_opts depthwise = {
        .in = width, .out = width, .kernel = 7, .pad = 3, .groups = width, .w_init = initial};
    const wf_layerscale_opts factors = {.channels = width, .gamma_init = {WF_INIT_CONSTANT, scale, 0}};
    wf_layer *self = wf_module(ctx, block_forward, NULL);
    wf_layer *path =
        wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, depthwise), norm(ctx, width), conv(ctx, width, 4 * width, 1, 1),
                                     wf_lambda(ctx, wf_gelu), conv(ctx, 4 * width, width, 1, 1),
                                     wf_layerscale(ctx, factors), wf_stochastic_depth(ctx, rate)));
    if (wf_module_add(self, "path", path))
        return self;
    wf_layer_free(self);
    return NULL;
}

static wf_layer *stem(wf_ctx *ctx, const convnext_opts *o, int64_t width)
{
    const int64_t patch = o->patch ? o->patch : 4;
    return wf_sequential(ctx,
                         WF_LAYERS(conv(ctx, o->channels ? o->channels : 3, width, patch, patch), norm(ctx, width)));
}

wf_layer *convnext(wf_ctx *ctx, convnext_opts o)
{
    const int *blocks = o.blocks[0] ? o.blocks : sizes[o.size].blocks;
    const int64_t width = o.width ? o.width : sizes[o.size].width;
    const double rate = o.drop_path == WF_ZERO ? 0 : o.drop_path > 0 ? o.drop_path : sizes[o.size].drop_path;
    const double scale = o.layerscale > 0 ? o.layerscale : 1e-6;
    const int last = blocks[0] + blocks[1] + blocks[2] + blocks[3] - 1;
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(stem(ctx, &o, width)));
    char name[32];
    bool good = model;
    int deep = 0; /* blocks so far: the deeper it lies, the more often a block leaves out its path */
    for (int i = 0; i < 4; i++) {
        const int64_t w = width << i;
        wf_layer *stage = wf_sequential(ctx, 0, NULL);
        snprintf(name, sizeof name, "down%d", i);
        if (i > 0)
            good = wf_module_add(model, name,
                                 wf_sequential(ctx, WF_LAYERS(norm(ctx, w / 2), conv(ctx, w / 2, w, 2, 2)))) &&
                   good;
        for (int k = 0; k < blocks[i]; k++, deep++) {
            snprintf(name, sizeof name, "%d", k);
            good = wf_module_add(stage, name, block(ctx, w, scale, last > 0 ? rate * deep / last : 0)) && good;
        }
        snprintf(name, sizeof name, "stage%d", i);
        good = wf_module_add(model, name, stage) && good;
    }
    const wf_linear_opts scores = {
        .in = 8 * width, .out = o.classes ? o.classes : 10, .w_init = initial, .replicate = true};
    good = wf_module_add(model, "pool", wf_global_avg_pool(ctx)) && good;
    good = wf_module_add(model, "norm", norm(ctx, 8 * width)) && good;
    good = wf_module_add(model, "head", wf_linear(ctx, scores)) && good;
    if (good)
        return model;
    wf_layer_free(model);
    return NULL;
}
