/* Layers work on images, whose linear layers are convolutions of 1x1, so that images may be cut by rows and columns. */
#include "examples/models/swin.h"

#include <stdio.h>

static const struct {
    int64_t width, heads;
    int blocks[4];
    double drop_path;
} sizes[SWIN_SIZES] = {
    [SWIN_TINY] = {96, 3, {2, 2, 6, 2}, 0.2},
    [SWIN_SMALL] = {96, 3, {2, 2, 18, 2}, 0.3},
    [SWIN_BASE] = {128, 4, {2, 2, 18, 2}, 0.5},
};

static const wf_init initial = {WF_INIT_TRUNC_NORMAL, 0, 0.02};

static wf_layer *linear(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 1, .w_init = initial});
}

static wf_layer *norm(wf_ctx *ctx, int64_t channels)
{
    return wf_layernorm(ctx, (wf_layernorm_opts){.channels = channels, .eps = 1e-5});
}

static wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "attention"), x);
    x = wf_add(x, y);
    y = wf_apply(wf_layer_child(self, "mlp"), x);
    return wf_add(x, y);
}

/* Every second block of a stage shifts its windows by half of their length. */
static wf_layer *block(wf_ctx *ctx, const swin_opts *o, int64_t width, int64_t heads, int number, double rate)
{
    const int64_t window = o->window ? o->window : 7;
    const wf_window_attention_opts attention = {.features = width,
                                                .heads = heads,
                                                .window = window,
                                                .shift = number % 2 ? window / 2 : 0,
                                                .dropout = o->dropout,
                                                .w_init = initial};
    wf_layer *self = wf_module(ctx, block_forward, NULL);
    wf_layer *first = wf_sequential(
        ctx, WF_LAYERS(norm(ctx, width), wf_window_attention(ctx, attention), wf_stochastic_depth(ctx, rate)));
    wf_layer *second =
        wf_sequential(ctx, WF_LAYERS(norm(ctx, width), linear(ctx, width, 4 * width), wf_lambda(ctx, wf_gelu),
                                     linear(ctx, 4 * width, width), wf_stochastic_depth(ctx, rate)));
    const bool good = wf_module_add(self, "attention", first) != NULL;
    if (wf_module_add(self, "mlp", second) && good)
        return self;
    wf_layer_free(self);
    return NULL;
}

/* A row and a column of zeros where the image has an odd number. */
static wf_var *pad_odd(wf_var *x)
{
    if (!x)
        return NULL;
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    const wf_shape s = layout.known ? layout.global : wf_var_shape(x);
    return wf_pad(x, (int64_t[4]){0}, (int64_t[4]){[2] = s.dim[2] % 2, [3] = s.dim[3] % 2}, (wf_boundary){0});
}

static wf_layer *merging(wf_ctx *ctx, int64_t channels)
{
    return wf_sequential(
        ctx, WF_LAYERS(wf_lambda(ctx, pad_odd), wf_patch_merging(ctx, (wf_patch_merging_opts){.channels = channels})));
}

static wf_layer *stem(wf_ctx *ctx, const swin_opts *o, int64_t width)
{
    const int64_t patch = o->patch ? o->patch : 4;
    const wf_conv_opts patches = {
        .in = o->channels ? o->channels : 3, .out = width, .kernel = patch, .stride = patch, .w_init = initial};
    return wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, patches), norm(ctx, width)));
}

static bool add_stages(wf_layer *model, wf_ctx *ctx, const swin_opts *o, int64_t width)
{
    const int *blocks = o->blocks[0] ? o->blocks : sizes[o->size].blocks;
    const int64_t heads = o->heads ? o->heads : sizes[o->size].heads;
    const double rate = o->drop_path == WF_ZERO ? 0 : o->drop_path > 0 ? o->drop_path : sizes[o->size].drop_path;
    const int last = blocks[0] + blocks[1] + blocks[2] + blocks[3] - 1;
    char name[32];
    bool good = true;
    int deep = 0; /* blocks so far: the deeper it lies, the more often a block leaves out its paths */
    for (int i = 0; i < 4; i++) {
        wf_layer *stage = wf_sequential(ctx, 0, NULL);
        snprintf(name, sizeof name, "down%d", i);
        if (i > 0)
            good = wf_module_add(model, name, merging(ctx, width << (i - 1))) && good;
        for (int k = 0; k < blocks[i]; k++, deep++) {
            const double share = last > 0 ? rate * deep / last : 0;
            snprintf(name, sizeof name, "%d", k);
            good = wf_module_add(stage, name, block(ctx, o, width << i, heads << i, k, share)) && good;
        }
        snprintf(name, sizeof name, "stage%d", i);
        good = wf_module_add(model, name, stage) && good;
    }
    return good;
}

wf_layer *swin(wf_ctx *ctx, swin_opts o)
{
    const int64_t width = o.width ? o.width : sizes[o.size].width;
    const wf_linear_opts scores = {
        .in = 8 * width, .out = o.classes ? o.classes : 10, .w_init = initial, .replicate = true};
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(stem(ctx, &o, width)));
    bool good = model && add_stages(model, ctx, &o, width);
    good = good && wf_module_add(model, "norm", norm(ctx, 8 * width));
    good = good && wf_module_add(model, "pool", wf_global_avg_pool(ctx));
    good = good && wf_module_add(model, "head", wf_linear(ctx, scores));
    if (good)
        return model;
    wf_layer_free(model);
    return NULL;
}
