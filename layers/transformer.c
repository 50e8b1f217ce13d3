/* Multi-head attention and transformer blocks, made of other layers. Where heads are cut, queries, keys and values
 * share one sum of the gradient of what they are made of. */
#include "layers/transformer.h"

#include "core/log.h"
#include "core/opts.h"
#include "layers/attention.h"
#include "layers/functions.h"
#include "layers/group_norm.h"
#include "layers/layerscale.h"
#include "layers/parallel/parallel_impl.h"
#include "layers/parallelize_author.h"

/* --- attention ---------------------------------------------------------------------------------------------------- */

typedef struct multihead_state {
    int64_t heads;
    bool causal;
    double dropout;
    int64_t length; /* of rotary positions */
    const wf_mesh *mesh;
    wf_attention_cut cut;
    bool paired;
    wf_attention_choice told; /* the latest one, in the log */
    wf_projections of;
    wf_layer *rotary;   /* a child; may be NULL */
    wf_param *relative; /* NULL: none */
} multihead_state;

static const char *const cut_word[] = {[WF_ATTENTION_CHEAPER] = "the cheaper way",
                                       [WF_ATTENTION_BY_HEADS] = "by heads",
                                       [WF_ATTENTION_RING] = "as a ring"};

/* Once for each choice, which all ranks make alike. The layer's text stays as it is: ranks compare it, and measured
 * times are kept by it. */
static void tell_choice(wf_layer *layer, const wf_var *q, const wf_var *k, const wf_attention_opts *o)
{
    multihead_state *s = layer->state;
    const wf_attention_choice c = wf_attention_choose(q, k, o);
    if (c.cut == WF_ATTENTION_CHEAPER || (c.cut == s->told.cut && c.by_heads == s->told.by_heads))
        return;
    s->told = c;
    wf_log_write(WF_LOG_DEBUG,
                 "multihead \"%s\": shared tokens %s (%.0f bytes a rank and step by heads, %.0f as a ring)",
                 wf_layer_path(layer), cut_word[c.cut], c.by_heads, c.by_ring);
}

static wf_var *forward_multihead(wf_layer *layer, wf_var *const *x, int n)
{
    const multihead_state *s = layer->state;
    /* With heads cut over ranks, the input is copied to all ranks once; queries, keys and values then share the one sum
     * of its gradient in backward. */
    wf_var *own = wf_channel_copied(s->mesh, x[0]);
    wf_var *other = n > 1 ? wf_channel_copied(s->mesh, x[1]) : own;
    wf_var *q = wf_project(s->of.query, own);
    wf_var *k = wf_project(s->of.key, other);
    wf_var *v = wf_project(s->of.value, other);
    if (s->rotary) {
        q = wf_apply(s->rotary, q);
        k = wf_apply(s->rotary, k);
    }
    /* Failures pass through as NULL: the layers called with NULL return NULL. */
    wf_var *bias = s->relative && q ? wf_param_var(wf_var_tape(q), s->relative) : NULL;
    if (s->relative && !bias)
        return NULL;
    const wf_attention_opts opts = {.heads = s->heads,
                                    .causal = s->causal,
                                    .dropout = s->dropout,
                                    .bias = bias,
                                    .cut = s->cut,
                                    .paired = s->paired};
    tell_choice(layer, q, k, &opts);
    return wf_apply(s->of.out, wf_attention_tokens(q, k, v, opts));
}

static void describe_multihead(const wf_layer *layer, wf_part_info *info)
{
    const multihead_state *s = layer->state;
    *info = (wf_part_info){.kind = WF_PART_ATTENTION, .heads = s->heads};
}

static const wf_layer_kind multihead_kind = {
    .name = "multihead", .forward_n = forward_multihead, .describe = describe_multihead};

static wf_status check_multihead(const wf_multihead_opts *o)
{
    WF_CHECK(o->features >= 1 && o->heads >= 1 && o->features % o->heads == 0, WF_ERR_ARGUMENT,
             "multihead: %lld features of %lld heads, should be a multiple", (long long)o->features,
             (long long)o->heads);
    WF_CHECK(o->dropout >= 0 && o->dropout < 1, WF_ERR_ARGUMENT, "multihead: dropout rate %g is not in [0, 1)",
             o->dropout);
    WF_CHECK(o->relative == 0 || (o->relative > 0 && o->relative % 2 == 1), WF_ERR_ARGUMENT,
             "multihead: %lld relative positions, should be an odd number", (long long)o->relative);
    WF_CHECK(o->cut >= WF_ATTENTION_CHEAPER && o->cut <= WF_ATTENTION_RING, WF_ERR_ARGUMENT,
             "multihead: cut is %d, should be WF_ATTENTION_CHEAPER, _BY_HEADS or _RING", (int)o->cut);
    WF_CHECK(o->rotary >= 0, WF_ERR_ARGUMENT, "multihead: rotary positions of %lld tokens, should be at least 1",
             (long long)o->rotary);
    return WF_OK;
}

static bool add_projections(wf_layer *layer, const wf_multihead_opts *o)
{
    multihead_state *s = layer->state;
    wf_ctx *ctx = layer->ctx;
    /* The unit is a head: a cut over ranks never divides one. */
    const wf_token_linear_opts each = {
        .in = o->features, .no_bias = o->no_bias, .w_init = o->w_init, .mesh = o->mesh, .unit = o->features / o->heads};
    const bool added = wf_projections_add(layer, each, !o->no_bias, &s->of);
    if (o->rotary > 0)
        s->rotary = wf_module_add(
            layer, "rotary",
            wf_rotary(ctx,
                      (wf_rotary_opts){.length = o->rotary, .heads = o->heads, .features = o->features / o->heads}));
    if (o->relative > 0)
        s->relative = wf_layer_add_param(layer, "relative",
                                         (wf_param_opts){.dtype = ctx->dtype,
                                                         .shape = WF_SHAPE(o->relative, o->heads),
                                                         .init = {WF_INIT_TRUNC_NORMAL, 0, 0.02}});
    return added && (s->rotary || o->rotary == 0) && (s->relative || o->relative == 0);
}

wf_layer *wf_multihead(wf_ctx *ctx, wf_multihead_opts o)
{
    WF_NEED_NULL(ctx);
    WF_TRY_NULL(check_multihead(&o));
    wf_layer *layer = wf_layer_new(ctx, &multihead_kind, sizeof(multihead_state));
    if (!layer)
        return NULL;
    multihead_state *s = layer->state;
    *s = (multihead_state){.heads = o.heads,
                           .causal = o.causal,
                           .dropout = o.dropout,
                           .length = o.rotary,
                           .mesh = o.mesh,
                           .cut = o.cut,
                           .paired = o.paired};
    /* Two inputs at most: self-attention has one input, cross-attention takes keys and values from a second. */
    layer->most = 2;
    layer->takes_children = true;
    if (o.mesh)
        layer->comm = wf_mesh_world(o.mesh);
    wf_layer_note(layer, "multihead of %lld heads, causal %d, dropout %g, rotary %lld; shared tokens %s%s",
                  (long long)o.heads, o.causal, o.dropout, (long long)o.rotary, cut_word[o.cut],
                  o.paired ? ", paired" : "");
    if (add_projections(layer, &o))
        return layer;
    wf_layer_free(layer);
    return NULL;
}

/* --- block -------------------------------------------------------------------------------------------------------- */

typedef struct block_state {
    double dropout, drop_path;
    wf_layer *norm1, *attention, *norm2, *up, *down;
} block_state;

/* A residual branch; drop_path drops it for whole samples. */
static wf_var *add_branch(const block_state *s, wf_var *x, wf_var *branch)
{
    return wf_add(x, wf_drop_path(wf_dropout(branch, s->dropout), s->drop_path));
}

/* The order of GPT-2 and ViT: each norm stands inside its branch, so the path of x has none. */
static wf_var *forward_block(wf_layer *layer, wf_var *x)
{
    const block_state *s = layer->state;
    wf_var *branch = wf_apply(s->norm1, x);
    branch = wf_apply(s->attention, branch);
    x = add_branch(s, x, branch);
    branch = wf_apply(s->norm2, x);
    branch = wf_apply(s->up, branch);
    branch = wf_apply(s->down, wf_gelu(branch));
    return add_branch(s, x, branch);
}

static const wf_layer_kind block_kind = {.name = "transformer_block", .forward = forward_block};

static bool add_branches(wf_layer *layer, const wf_transformer_block_opts *o)
{
    block_state *s = layer->state;
    wf_ctx *ctx = layer->ctx;
    const int64_t hidden = o->hidden ? o->hidden : 4 * o->features;
    const wf_layernorm_opts norm = {.shape = WF_SHAPE(o->features), .eps = o->eps};
    const wf_multihead_opts attention = {.features = o->features,
                                         .heads = o->heads,
                                         .causal = o->causal,
                                         .dropout = o->dropout,
                                         .relative = o->relative,
                                         .rotary = o->rotary,
                                         .w_init = o->w_init,
                                         .mesh = o->mesh,
                                         .cut = o->cut,
                                         .paired = o->paired};
    /* The first product is cut by outputs and the second by inputs, so that hidden features stay on their rank and one
     * sum is enough (Megatron-LM). */
    wf_token_linear_opts linear = {
        .in = o->features, .out = hidden, .w_init = o->w_init, .mesh = o->mesh, .form = WF_FORM_FILTER};
    s->norm1 = wf_module_add(layer, "norm1", wf_layernorm(ctx, norm));
    s->attention = wf_module_add(layer, "attention", wf_multihead(ctx, attention));
    s->norm2 = wf_module_add(layer, "norm2", wf_layernorm(ctx, norm));
    s->up = wf_module_add(layer, "up", wf_token_linear(ctx, linear));
    linear.in = hidden;
    linear.out = o->features;
    linear.form = WF_FORM_CHANNEL;
    s->down = wf_module_add(layer, "down", wf_token_linear(ctx, linear));
    return s->norm1 && s->attention && s->norm2 && s->up && s->down;
}

wf_layer *wf_transformer_block(wf_ctx *ctx, wf_transformer_block_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.dropout >= 0 && o.dropout < 1 && o.drop_path >= 0 && o.drop_path < 1, WF_ERR_ARGUMENT,
                  "transformer_block: dropout %g and drop_path %g, should be in [0, 1)", o.dropout, o.drop_path);
    wf_layer *layer = wf_layer_new(ctx, &block_kind, sizeof(block_state));
    if (!layer)
        return NULL;
    block_state *s = layer->state;
    *s = (block_state){.dropout = o.dropout, .drop_path = o.drop_path};
    layer->takes_children = true;
    if (o.mesh)
        layer->comm = wf_mesh_world(o.mesh);
    wf_layer_note(layer, "transformer_block of dropout %g, drop_path %g", o.dropout, o.drop_path);
    if (add_branches(layer, &o))
        return layer;
    wf_layer_free(layer);
    return NULL;
}
