/* He et al. 2016, ResNet-18 with the first convolution for small images. A block is a wf_module, since its shortcut is
 * no chain. */
#include "examples/models/resnet.h"

static wf_layer *conv(wf_ctx *ctx, int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in,
                                         .out = out,
                                         .kernel = kernel,
                                         .stride = stride,
                                         .pad = kernel / 2,
                                         .no_bias = true,
                                         .w_init = {WF_INIT_HE_NORMAL, 0, 0}});
}

static wf_layer *bn(wf_ctx *ctx, int64_t channels, wf_act act)
{
    return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = channels, .act = act});
}

/* The sum of a path of two convolutions and a way round it. `user`: whether that is a layer of its own. */
static wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "path"), x);
    wf_var *round = user ? wf_apply(wf_layer_child(self, "round"), x) : x;
    return wf_relu(wf_add(y, round));
}

static wf_layer *block(wf_ctx *ctx, int64_t in, int64_t out, int64_t stride)
{
    static char with_layer;
    const bool changes = in != out || stride != 1;
    wf_layer *self = wf_module(ctx, block_forward, changes ? &with_layer : NULL);
    wf_layer *path = wf_sequential(ctx, WF_LAYERS(conv(ctx, in, out, 3, stride), bn(ctx, out, WF_ACT_RELU),
                                                  conv(ctx, out, out, 3, 1), bn(ctx, out, WF_ACT_NONE)));
    bool good = wf_module_add(self, "path", path);
    if (changes) {
        wf_layer *round = wf_sequential(ctx, WF_LAYERS(conv(ctx, in, out, 1, stride), bn(ctx, out, WF_ACT_NONE)));
        good = wf_module_add(self, "round", round) && good;
    }
    if (good)
        return self;
    wf_layer_free(self);
    return NULL;
}

static wf_layer *stage(wf_ctx *ctx, int64_t in, int64_t out, int64_t stride)
{
    wf_layer *first = block(ctx, in, out, stride);
    return wf_sequential(ctx, WF_LAYERS(first, block(ctx, out, out, 1)));
}

wf_layer *resnet18(wf_ctx *ctx, int64_t width, int64_t classes)
{
    const int64_t w = width ? width : 64;
    wf_layer *begin = wf_sequential(ctx, WF_LAYERS(conv(ctx, 3, w, 3, 1), bn(ctx, w, WF_ACT_RELU)));
    wf_layer *one = stage(ctx, w, w, 1), *two = stage(ctx, w, 2 * w, 2);
    wf_layer *three = stage(ctx, 2 * w, 4 * w, 2), *four = stage(ctx, 4 * w, 8 * w, 2);
    wf_layer *scores = wf_linear(ctx, (wf_linear_opts){.in = 8 * w, .out = classes ? classes : 10, .replicate = true});
    return wf_sequential(ctx, WF_LAYERS(begin, one, two, three, four, wf_global_avg_pool(ctx), scores));
}
