/* He et al. 2016, with the stride of a bottleneck on its 3x3 convolution, as torchvision has it. A block is a
 * wf_module, since its shortcut is no chain. */
#include "examples/models/resnet.h"

enum { MOST_BLOCKS = 36 }; /* of a stage */

static const struct {
    bool bottlenecks;
    int blocks[4];
} depths[RESNET_DEPTHS] = {
    [RESNET_18] = {false, {2, 2, 2, 2}},  [RESNET_34] = {false, {3, 4, 6, 3}},  [RESNET_50] = {true, {3, 4, 6, 3}},
    [RESNET_101] = {true, {3, 4, 23, 3}}, [RESNET_152] = {true, {3, 8, 36, 3}},
};

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
    return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = channels, .eps = 1e-5, .act = act});
}

/* The sum of a path of convolutions and a way round it, and its ReLU, in the pass of the last normalisation. `user`:
 * whether the way round is a layer of its own. */
static wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "path"), x);
    wf_var *round = user ? wf_apply(wf_layer_child(self, "round"), x) : x;
    return wf_apply_residual(wf_layer_child(self, "norm"), y, round);
}

static wf_layer *path_two(wf_ctx *ctx, int64_t in, int64_t out, int64_t stride)
{
    return wf_sequential(
        ctx, WF_LAYERS(conv(ctx, in, out, 3, stride), bn(ctx, out, WF_ACT_RELU), conv(ctx, out, out, 3, 1)));
}

static wf_layer *path_bottleneck(wf_ctx *ctx, int64_t in, int64_t out, int64_t stride)
{
    const int64_t w = out / 4;
    return wf_sequential(ctx, WF_LAYERS(conv(ctx, in, w, 1, 1), bn(ctx, w, WF_ACT_RELU), conv(ctx, w, w, 3, stride),
                                        bn(ctx, w, WF_ACT_RELU), conv(ctx, w, out, 1, 1)));
}

static wf_layer *block(wf_ctx *ctx, bool bottleneck, int64_t in, int64_t out, int64_t stride)
{
    static char with_layer;
    const bool changes = in != out || stride != 1;
    wf_layer *self = wf_module(ctx, block_forward, changes ? &with_layer : NULL);
    bool good = wf_module_add(self, "path", (bottleneck ? path_bottleneck : path_two)(ctx, in, out, stride));
    good = wf_module_add(self, "norm", bn(ctx, out, WF_ACT_RELU)) && good;
    if (changes) {
        wf_layer *round = wf_sequential(ctx, WF_LAYERS(conv(ctx, in, out, 1, stride), bn(ctx, out, WF_ACT_NONE)));
        good = wf_module_add(self, "round", round) && good;
    }
    if (good)
        return self;
    wf_layer_free(self);
    return NULL;
}

static wf_layer *stage(wf_ctx *ctx, bool bottlenecks, int blocks, int64_t in, int64_t out, int64_t stride)
{
    wf_layer *layers[MOST_BLOCKS];
    for (int i = 0; i < blocks; i++)
        layers[i] = block(ctx, bottlenecks, i ? out : in, out, i ? 1 : stride);
    return wf_sequential(ctx, blocks, layers);
}

static wf_layer *begin(wf_ctx *ctx, bool large, int64_t w)
{
    if (!large)
        return wf_sequential(ctx, WF_LAYERS(conv(ctx, 3, w, 3, 1), bn(ctx, w, WF_ACT_RELU)));
    const wf_pool_opts pool = {.kernel = 3, .stride = 2, .pad = 1};
    return wf_sequential(ctx, WF_LAYERS(conv(ctx, 3, w, 7, 2), bn(ctx, w, WF_ACT_RELU), wf_max_pool2d(ctx, pool)));
}

wf_layer *resnet(wf_ctx *ctx, resnet_opts opts)
{
    const bool bottlenecks = depths[opts.depth].bottlenecks;
    const int64_t w = opts.width ? opts.width : 64;
    wf_layer *layers[7] = {begin(ctx, opts.large, w)};
    int64_t in = w;
    for (int i = 0; i < 4; i++) {
        const int64_t out = (w << i) * (bottlenecks ? 4 : 1);
        layers[1 + i] = stage(ctx, bottlenecks, depths[opts.depth].blocks[i], in, out, i ? 2 : 1);
        in = out;
    }
    const wf_linear_opts scores = {.in = in, .out = opts.classes ? opts.classes : 10, .replicate = true};
    layers[5] = wf_global_avg_pool(ctx);
    layers[6] = wf_linear(ctx, scores);
    return wf_sequential(ctx, 7, layers);
}
