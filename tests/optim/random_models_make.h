/* The models of random_models.c: the same layers in both programs, of which the serial one has no mesh. */
#ifndef WF_TESTS_RANDOM_MODELS_MAKE_H
#define WF_TESTS_RANDOM_MODELS_MAKE_H

#include "tests/optim/random_models_plan.h"

/* --- models ------------------------------------------------------------------------------------------------------- */

static inline wf_var *tanh_of(wf_var *x)
{
    return wf_tanh(x);
}

static inline wf_var *leaky(wf_var *x)
{
    return wf_activate(x, WF_ACT_LEAKY_RELU, 0.1, 0);
}

static inline wf_var *dropped(wf_var *x)
{
    return wf_dropout(x, 0.3);
}

static inline wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.1);
}

static inline wf_var *apply_twice(wf_layer *self, void *user, wf_var *x)
{
    wf_layer *child = wf_layer_child(self, "shared");
    wf_var *once = wf_apply(child, x);
    return wf_apply_n(wf_layer_child(self, "joined"), WF_INPUTS(x, once));
}

/* A module of two inputs: the layer that two modules share is applied again. */
static inline wf_var *join_inputs(wf_layer *self, void *user, wf_var *const *x, int n)
{
    wf_var *twice = wf_apply(wf_layer_child(self->parent, "shared"), x[1]);
    return n == 2 ? wf_add(twice, wf_scale(x[0], 0.5)) : NULL;
}

/* Whole along the dimensions that these axes shard. */
static inline wf_var *whole_along(wf_var *y, unsigned axes)
{
    const wf_layout was = y ? wf_tensor_layout(wf_value(y)) : wf_layout_none();
    wf_layout_opts opts = {0};
    bool cut = false;
    wf_layout target;
    for (int a = 0; a < WF_AXES && was.known; a++)
        if (was.placement[a] == WF_SHARDED && (axes >> a & 1))
            cut = true;
        else if (was.placement[a] == WF_SHARDED) {
            opts.dim[a] = WF_DIM(was.dim[a]);
            opts.bounds[a] = was.bounds[a];
        }
    if (!cut)
        return y;
    return wf_mesh_layout(was.mesh, was.global, opts, &target) == WF_OK ? wf_redistribute(y, target) : NULL;
}

/* Attention over the pixels of an image, row by row, or over the tokens of a text. Ranks share tokens along height. */
static inline wf_var *attend(wf_layer *self, void *user, wf_var *x)
{
    const part *l = user;
    wf_layer *of = wf_layer_child(self, "of");
    const wf_layout was = x ? wf_tensor_layout(wf_value(x)) : wf_layout_none();
    wf_var *tokens = l->text ? x : whole_along(x, 1u << WF_AXIS_CHANNEL | 1u << WF_AXIS_WIDTH);
    if (!tokens)
        return NULL;
    const wf_shape shape = wf_var_shape(tokens);
    if (!l->text)
        tokens = wf_tokens(tokens);
    wf_var *other = l->kind == MULTIHEAD && l->other ? wf_tanh(tokens) : NULL;
    wf_var *y = other ? wf_apply_n(of, WF_INPUTS(tokens, other)) : wf_apply(of, tokens);
    if (l->text)
        return y;
    wf_var *image = wf_image(y, WF_SHAPE(shape.dim[2], shape.dim[3]));
    return was.known && image ? wf_redistribute(image, was) : image;
}

static inline wf_layer *make_attention(wf_ctx *ctx, const wf_mesh *mesh, const part *l)
{
    wf_transformer_block_opts o = l->attention;
    wf_layer *module = wf_module(ctx, attend, (void *)l);
    o.mesh = l->cut_heads ? mesh : NULL;
    const wf_multihead_opts heads = {.features = o.features,
                                     .heads = o.heads,
                                     .causal = o.causal,
                                     .dropout = o.dropout,
                                     .relative = o.relative,
                                     .rotary = o.rotary,
                                     .mesh = o.mesh,
                                     .cut = o.cut,
                                     .paired = o.paired};
    wf_module_add(module, "of", l->kind == BLOCK ? wf_transformer_block(ctx, o) : wf_multihead(ctx, heads));
    return module;
}

static inline wf_layer *make_near(wf_ctx *ctx, const wf_mesh *mesh, const part *l)
{
    wf_window_attention_opts windows = l->windows;
    wf_neighbourhood_attention_opts neighbours = l->neighbours;
    windows.mesh = neighbours.mesh = l->cut_heads ? mesh : NULL;
    return l->kind == WINDOWS ? wf_window_attention(ctx, windows) : wf_neighbourhood_attention(ctx, neighbours);
}

/* To another layout, a function there, and back. */
static inline wf_var *go_and_return(wf_layer *self, void *user, wf_var *x)
{
    const move *how = user;
    const wf_layout was = x && wf_value(x) ? wf_tensor_layout(wf_value(x)) : wf_layout_none();
    const wf_layout_opts channels_over_data = {.dim = {[WF_AXIS_DATA] = WF_DIM(1)}};
    wf_layout there;
    if (!was.known)
        return wf_tanh(x);
    if (*how == MOVE_CHANNELS && wf_mesh_layout(was.mesh, was.global, channels_over_data, &there) != WF_OK)
        return NULL;
    wf_var *moved = *how == MOVE_GATHER  ? wf_unshard(x)
                    : *how == MOVE_SHARD ? wf_shard(x, was.mesh)
                                         : wf_redistribute(x, there);
    return wf_redistribute(wf_tanh(moved), was);
}

/* Makes the same layers in both programs: in the serial one, which has no mesh, a chain. */
static inline wf_layer *linked(wf_ctx *ctx, const wf_mesh *mesh, const part *l)
{
    const wf_spatial_chain_opts opts[COSTS] = {
        {.depth = 2}, {.message_seconds = 1e-5, .byte_seconds = 3e-10, .work_seconds = 1.5e-11}, {0}};
    wf_layer *link[LINKS];
    for (int i = 0; i < LINKS; i++)
        link[i] = mesh ? wf_spatial_conv2d(mesh, l->conv) : wf_conv2d(ctx, l->conv);
    return mesh ? wf_spatial_chain(mesh, opts[l->costs], LINKS, link) : wf_sequential(ctx, LINKS, link);
}

static inline wf_layer *make_grouped(wf_ctx *ctx, const part *l)
{
    const wf_groupnorm_opts *g = &l->groups;
    switch (l->grouped) {
    case BY_PIXEL:
        return wf_layernorm(ctx, (wf_layernorm_opts){.channels = g->channels, .eps = g->eps, .no_gamma = g->no_gamma});
    case BY_PIXEL_RMS:
        return wf_rmsnorm(ctx, (wf_rmsnorm_opts){.channels = g->channels, .eps = g->eps, .no_gamma = g->no_gamma});
    case BY_GROUP:
        return wf_groupnorm(ctx, *g);
    case BY_INSTANCE:
        return wf_instancenorm(ctx,
                               (wf_instancenorm_opts){.channels = g->channels, .eps = g->eps, .no_gamma = g->no_gamma});
    case BY_PLANE:
        return wf_layernorm(ctx, (wf_layernorm_opts){.shape = l->plane, .eps = g->eps, .no_gamma = g->no_gamma});
    case BY_FACTOR:
        return wf_layerscale(
            ctx, (wf_layerscale_opts){.channels = g->channels, .gamma_init = {WF_INIT_TRUNC_NORMAL, 1, 0.25}});
    case GROUPEDS:
        break;
    }
    return NULL;
}

/* Normalisation of each token. */
static inline wf_layer *make_token_norm(wf_ctx *ctx, const part *l)
{
    const wf_groupnorm_opts *g = &l->groups;
    const wf_shape shape = WF_SHAPE(g->channels);
    if (l->grouped == BY_PIXEL)
        return wf_layernorm(ctx, (wf_layernorm_opts){.shape = shape, .eps = g->eps, .no_gamma = g->no_gamma});
    return wf_rmsnorm(ctx, (wf_rmsnorm_opts){.shape = shape, .eps = g->eps, .no_gamma = g->no_gamma});
}

static inline wf_layer *make_layer(wf_ctx *ctx, const wf_mesh *mesh, const part *l)
{
    static const move hows[MOVES] = {MOVE_GATHER, MOVE_CHANNELS, MOVE_SHARD};
    static wf_var *(*const functions[])(wf_var *) = {wf_relu, tanh_of, leaky};
    wf_layer *module;
    switch (l->kind) {
    case CONV:
        return wf_conv2d(ctx, l->conv);
    case TRANSPOSED:
        return wf_conv_transpose2d(ctx, l->conv);
    case NORM:
        return wf_batchnorm(ctx, l->norm);
    case GROUPED:
        return l->text ? make_token_norm(ctx, l) : make_grouped(ctx, l);
    case MAX_POOL:
        return l->resize.size[0] ? wf_adaptive_max_pool(ctx, WF_SHAPE(l->resize.size[0], l->resize.size[1]))
                                 : wf_max_pool2d(ctx, l->pool);
    case AVG_POOL:
        return wf_avg_pool2d(ctx, l->pool);
    case UPSAMPLE:
        return l->resize.size[0] ? wf_resize(ctx, l->resize) : wf_upsample2d(ctx, l->upsample);
    case TWICE:
        module = wf_module(ctx, apply_twice, NULL);
        wf_module_add(module, "shared",
                      l->text ? wf_token_linear(ctx, (wf_token_linear_opts){.in = l->conv.in, .out = l->conv.out})
                              : wf_conv2d(ctx, l->conv));
        wf_module_add(module, "joined", wf_module_n(ctx, 2, 2, join_inputs, NULL));
        return module;
    case FUNCTION:
        return wf_lambda(ctx, functions[l->function]);
    case RANDOM:
        return l->function == 2 ? wf_stochastic_depth(ctx, 0.3) : wf_lambda(ctx, l->function ? dropped : noisy);
    case LINKED:
        return linked(ctx, mesh, l);
    case MOVE:
        return wf_module(ctx, go_and_return, (void *)&hows[l->move]);
    case MULTIHEAD:
    case BLOCK:
        return make_attention(ctx, mesh, l);
    case WINDOWS:
    case NEIGHBOURS:
        return make_near(ctx, mesh, l);
    case KINDS:
        break;
    }
    return NULL;
}

static inline wf_layer *make_part(wf_ctx *ctx, const wf_mesh *mesh, const part *l)
{
    wf_layer *layer = make_layer(ctx, mesh, l);
    return l->segment ? wf_recompute(layer) : layer;
}

/* A first layer with parameters of its own, since a model may be drawn that has none. */
static inline wf_layer *make_first(wf_ctx *ctx, const plan *p)
{
    const int64_t features = p->image.dim[1];
    if (p->words > 0)
        return wf_embedding(ctx, (wf_embedding_opts){.count = p->words, .features = features});
    return wf_conv2d(ctx, (wf_conv_opts){.in = features, .out = features, .kernel = 1});
}

static inline wf_layer *make_model(wf_ctx *ctx, const wf_mesh *mesh, const plan *p)
{
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(make_first(ctx, p)));
    char name[16];
    if (p->positions)
        wf_module_add(model, "positions",
                      wf_positions(ctx, (wf_positions_opts){.length = p->image.dim[2], .features = p->image.dim[1]}));
    for (int i = 0; i < p->joins; i++) {
        snprintf(name, sizeof name, "part%d", i);
        wf_module_add(model, name, make_part(ctx, mesh, &p->part[i]));
    }
    if (p->head)
        wf_module_add(model, "pool", wf_global_avg_pool(ctx));
    if (p->words > 0 && p->labels)
        wf_module_add(model, "scores",
                      wf_token_linear(ctx, (wf_token_linear_opts){.in = p->image.dim[1],
                                                                  .out = p->words,
                                                                  .no_bias = p->tied,
                                                                  .mesh = p->cut_classes ? mesh : NULL,
                                                                  .form = WF_FORM_FILTER}));
    /* Weights that are tied are frozen together, afterwards. */
    if (p->frozen && !(p->labels && p->tied) && wf_param_set_trainable(wf_layer_param(model, "0/W"), false) != WF_OK)
        return NULL;
    return p->named ? wf_layer_named(model, "m") : model;
}

#endif
