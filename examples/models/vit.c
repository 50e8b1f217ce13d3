/* Patches are a convolution, whose pixels are the tokens; scores come from the token in front of them. */
#include "examples/models/vit.h"

#include <stdio.h>

static const struct {
    int64_t features, heads;
} sizes[VIT_SIZES] = {[VIT_TINY] = {192, 3}, [VIT_SMALL] = {384, 6}, [VIT_BASE] = {768, 12}};

static const wf_init initial = {WF_INIT_TRUNC_NORMAL, 0, 0.02};

/* [N,E,H,W] -> [N,H W,E] */
static wf_var *tokens_of(wf_var *x)
{
    if (!x)
        return NULL;
    const wf_shape s = wf_var_shape(x);
    return wf_transpose(wf_reshape(x, WF_SHAPE(s.dim[0], s.dim[1], s.dim[2] * s.dim[3])), (int[]){0, 2, 1});
}

static wf_var *first_token(wf_var *x)
{
    if (!x)
        return NULL;
    const wf_shape s = wf_var_shape(x);
    return wf_flatten(wf_slice(x, (wf_box){.rank = 3, .hi = {s.dim[0], 1, s.dim[2]}}));
}

wf_layer *vit(wf_ctx *ctx, vit_opts o)
{
    const int64_t features = o.features ? o.features : sizes[o.size].features;
    const int64_t patch = o.patch ? o.patch : 16, side = (o.image ? o.image : 224) / patch;
    const wf_conv_opts patches = {.in = o.channels ? o.channels : 3, .out = features, .kernel = patch, .stride = patch};
    const wf_transformer_block_opts block = {.features = features,
                                             .heads = o.heads ? o.heads : sizes[o.size].heads,
                                             .dropout = o.dropout,
                                             .eps = 1e-6,
                                             .w_init = initial,
                                             .mesh = o.mesh};
    wf_layer *model = wf_sequential(
        ctx, WF_LAYERS(wf_conv2d(ctx, patches), wf_lambda(ctx, tokens_of),
                       wf_class_token(ctx, (wf_class_token_opts){.features = features}),
                       wf_positions(ctx, (wf_positions_opts){.length = side * side + 1, .features = features})));
    char name[32];
    bool good = model;
    for (int i = 0; i < (o.blocks ? o.blocks : 12); i++) {
        snprintf(name, sizeof name, "block%d", i);
        good = wf_module_add(model, name, wf_transformer_block(ctx, block)) && good;
    }
    const wf_layernorm_opts norm = {.shape = WF_SHAPE(features), .eps = 1e-6};
    const wf_linear_opts scores = {.in = features, .out = o.classes ? o.classes : 10, .w_init = initial};
    good = wf_module_add(model, "norm", wf_layernorm(ctx, norm)) && good;
    good = wf_module_add(model, "first", wf_lambda(ctx, first_token)) && good;
    good = wf_module_add(model, "head", wf_linear(ctx, scores)) && good;
    if (good)
        return model;
    wf_layer_free(model);
    return NULL;
}
