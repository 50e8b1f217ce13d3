#include "examples/models/gpt.h"

#include <stdio.h>

static const gpt_opts sizes[GPT_SIZES] = {
    [GPT_TINY] = {.symbols = 256, .tokens = 128, .features = 128, .heads = 4, .blocks = 4},
    [GPT_MEDIUM] = {.symbols = 256, .tokens = 1024, .features = 640, .heads = 10, .blocks = 6},
    [GPT_SMALL] = {.symbols = 50257, .tokens = 1024, .features = 768, .heads = 12, .blocks = 12},
};

static const wf_init initial = {WF_INIT_NORMAL, 0, 0.02};

gpt_opts gpt_with_defaults(gpt_opts o)
{
    const gpt_opts *usual = &sizes[o.size];
    o.symbols = o.symbols ? o.symbols : usual->symbols;
    o.tokens = o.tokens ? o.tokens : usual->tokens;
    o.features = o.features ? o.features : usual->features;
    o.heads = o.heads ? o.heads : usual->heads;
    o.blocks = o.blocks ? o.blocks : usual->blocks;
    return o;
}

static wf_layer *table(wf_ctx *ctx, const gpt_opts *o)
{
    const wf_embedding_opts opts = {.count = o->symbols, .features = o->features, .w_init = initial};
    return o->mesh ? wf_channel_embedding(o->mesh, opts) : wf_embedding(ctx, opts);
}

static bool add_blocks(wf_layer *model, const gpt_opts *o)
{
    char name[32];
    bool good = true;
    const wf_transformer_block_opts block = {.features = o->features,
                                             .heads = o->heads,
                                             .causal = true,
                                             .dropout = o->dropout,
                                             .rotary = o->rotary ? o->tokens : 0,
                                             .w_init = initial,
                                             .mesh = o->mesh,
                                             .cut = o->cut};
    for (int i = 0; i < o->blocks; i++) {
        snprintf(name, sizeof name, "block%d", i);
        good = wf_module_add(model, name, wf_transformer_block(wf_layer_ctx(model), block)) && good;
    }
    return good;
}

wf_layer *gpt(wf_ctx *ctx, gpt_opts opts)
{
    const gpt_opts o = gpt_with_defaults(opts);
    const wf_positions_opts places = {.length = o.tokens, .features = o.features};
    const wf_layernorm_opts norm = {.shape = WF_SHAPE(o.features)};
    const wf_token_linear_opts head = {
        .in = o.features, .out = o.symbols, .no_bias = true, .mesh = o.mesh, .form = WF_FORM_FILTER};
    wf_layer *model = wf_sequential(ctx, 0, NULL);
    bool good = wf_module_add(model, "table", table(ctx, &o));
    good = (o.rotary || wf_module_add(model, "positions", wf_positions(ctx, places))) && good;
    good = add_blocks(model, &o) && good;
    good = wf_module_add(model, "norm", wf_layernorm(ctx, norm)) && good;
    good = wf_module_add(model, "head", wf_token_linear(ctx, head)) && good;
    if (good && wf_layer_tie(model, "head/W", "table/W") == WF_OK)
        return model;
    wf_layer_free(model);
    return NULL;
}
