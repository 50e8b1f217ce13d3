/* Ronneberger, Fischer and Brox 2015, in two or three dimensions. A level contains the next one, which makes the skip
 * connections local variables of one function. */
#include "examples/models/unet.h"

static wf_layer *conv(wf_ctx *ctx, const unet_opts *o, int64_t in, int64_t out, int64_t kernel)
{
    const wf_conv_opts opts = {.in = in,
                               .out = out,
                               .kernel = kernel,
                               .pad = kernel / 2,
                               .no_bias = kernel > 1 && o->norm != UNET_NO_NORM,
                               .replicate = kernel == 1, /* the scores */
                               .w_init = {WF_INIT_HE_NORMAL, 0, 0}};
    return o->dims == 3 ? wf_conv3d(ctx, opts) : wf_conv2d(ctx, opts);
}

static wf_var *as_it_is(wf_var *x)
{
    return x;
}

/* ReLU is in the pass of a batch normalisation, and a layer of its own after the others. */
static wf_layer *norm(wf_ctx *ctx, const unet_opts *o, int64_t channels)
{
    const int64_t width = o->width ? o->width : 32, groups = o->groups ? o->groups : width < 8 ? width : 8;
    switch (o->norm) {
    case UNET_GROUP:
        return wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = channels, .groups = groups});
    case UNET_INSTANCE:
        return wf_instancenorm(ctx, (wf_instancenorm_opts){.channels = channels});
    case UNET_LAYER:
        return wf_layernorm(ctx, (wf_layernorm_opts){.channels = channels});
    case UNET_NO_NORM:
        return wf_lambda(ctx, as_it_is);
    default:
        return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = channels, .act = WF_ACT_RELU});
    }
}

static wf_layer *twice(wf_ctx *ctx, const unet_opts *o, int64_t in, int64_t out)
{
    if (o->norm == UNET_BATCH)
        return wf_sequential(
            ctx, WF_LAYERS(conv(ctx, o, in, out, 3), norm(ctx, o, out), conv(ctx, o, out, out, 3), norm(ctx, o, out)));
    return wf_sequential(ctx, WF_LAYERS(conv(ctx, o, in, out, 3), norm(ctx, o, out), wf_lambda(ctx, wf_relu),
                                        conv(ctx, o, out, out, 3), norm(ctx, o, out), wf_lambda(ctx, wf_relu)));
}

static wf_layer *down(wf_ctx *ctx, const unet_opts *o)
{
    const wf_pool_opts half = {.kernel = 2, .stride = 2};
    return o->dims == 3 ? wf_max_pool3d(ctx, half) : wf_max_pool2d(ctx, half);
}

static wf_layer *up(wf_ctx *ctx, const unet_opts *o, int64_t in, int64_t out)
{
    const wf_conv_opts transposed = {.in = in, .out = out, .kernel = 2, .stride = 2};
    const wf_upsample_opts nearest = {.scale = 2};
    if (!o->upsample)
        return o->dims == 3 ? wf_conv_transpose3d(ctx, transposed) : wf_conv_transpose2d(ctx, transposed);
    wf_layer *larger = o->dims == 3 ? wf_upsample3d(ctx, nearest) : wf_upsample2d(ctx, nearest);
    return wf_sequential(ctx, WF_LAYERS(larger, conv(ctx, o, in, out, 3)));
}

/* Gathers all channels, which a concatenation needs, if layers are split by channels. */
static wf_var *all_channels(wf_var *x)
{
    wf_layout layout = wf_tensor_layout(wf_value(x));
    if (!layout.known || layout.placement[WF_AXIS_CHANNEL] != WF_SHARDED)
        return x;
    layout.placement[WF_AXIS_CHANNEL] = WF_REPLICATED;
    layout.dim[WF_AXIS_CHANNEL] = 0;
    layout.bounds[WF_AXIS_CHANNEL] = NULL;
    layout.box.lo[1] = 0;
    layout.box.hi[1] = layout.global.dim[1];
    return wf_redistribute(x, layout);
}

/* What is seen here, beside what is seen from further off. */
static wf_var *level_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *here = wf_apply(wf_layer_child(self, "before"), x);
    wf_var *below = wf_apply(wf_layer_child(self, "down"), here);
    below = wf_apply(wf_layer_child(self, "below"), below);
    below = wf_apply(wf_layer_child(self, "up"), below);
    if (!below)
        return NULL;
    return wf_apply(wf_layer_child(self, "after"),
                    wf_concat(2, (wf_var *[]){all_channels(here), all_channels(below)}, 1));
}

/* [N,in,...] -> [N,width,...] */
static wf_layer *level(wf_ctx *ctx, const unet_opts *o, int64_t in, int64_t width, int levels)
{
    if (levels == 0)
        return twice(ctx, o, in, width);
    wf_layer *self = wf_module(ctx, level_forward, NULL);
    bool good = wf_module_add(self, "before", twice(ctx, o, in, width));
    good = wf_module_add(self, "down", down(ctx, o)) && good;
    good = wf_module_add(self, "below", level(ctx, o, width, 2 * width, levels - 1)) && good;
    good = wf_module_add(self, "up", up(ctx, o, 2 * width, width)) && good;
    good = wf_module_add(self, "after", twice(ctx, o, 2 * width, width)) && good;
    if (good)
        return self;
    wf_layer_free(self);
    return NULL;
}

wf_layer *unet(wf_ctx *ctx, unet_opts o)
{
    const int64_t width = o.width ? o.width : 32;
    wf_layer *body = level(ctx, &o, o.in ? o.in : 3, width, o.levels ? o.levels : 3);
    return wf_sequential(ctx, WF_LAYERS(body, conv(ctx, &o, width, o.classes ? o.classes : 2, 1)));
}
