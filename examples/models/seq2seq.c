#include "examples/models/seq2seq.h"

#include <math.h>
#include <stdio.h>

enum { HEAD = 64 };

static int64_t length_of(const wf_var *x, int dim)
{
    return wf_tensor_shape(wf_value(x)).dim[dim];
}

static wf_layer *linear(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_token_linear(ctx, (wf_token_linear_opts){.in = in, .out = out});
}

static wf_layer *norm(wf_ctx *ctx, const seq2seq_opts *o)
{
    return wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(o->features)});
}

/* Rows of length 1, since the decoder's are multiplied with its features as well. */
static wf_layer *embedding(wf_ctx *ctx, const seq2seq_opts *o)
{
    return wf_embedding(ctx, (wf_embedding_opts){.count = o->symbols,
                                                 .features = o->features,
                                                 .w_init = {WF_INIT_NORMAL, 0, 1 / sqrt((double)o->features)}});
}

static wf_var *embed(wf_layer *self, wf_var *pieces)
{
    wf_var *x = wf_apply(wf_layer_child(self, "pieces"), pieces);
    return x ? wf_scale(x, sqrt((double)length_of(x, 2))) : NULL;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Tokens x[0] attend to tokens x[1]: to those before, or, if x[2] has lengths, to so many of each sample. */
static wf_var *attend(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *q = wf_apply(wf_layer_child(self, "query"), x[0]);
    wf_var *k = wf_apply(wf_layer_child(self, "key"), x[1]);
    wf_var *v = wf_apply(wf_layer_child(self, "value"), x[1]);
    if (!q || !k || !v)
        return NULL;
    const int64_t features = length_of(q, 2);
    const wf_attention_opts o = {.heads = features % HEAD == 0 ? features / HEAD : 1,
                                 .causal = n == 2,
                                 .lengths = n > 2 ? wf_value(x[2]) : NULL};
    return wf_apply(wf_layer_child(self, "out"), wf_attention(q, k, v, o));
}

static wf_layer *attention(wf_ctx *ctx, const seq2seq_opts *o)
{
    static const char *const names[] = {"query", "key", "value", "out"};
    wf_layer *layer = wf_module_n(ctx, 2, 3, attend, NULL);
    for (int i = 0; i < 4; i++)
        wf_module_add(layer, names[i], linear(ctx, o->features, o->features));
    return layer;
}

/* --- transformer -------------------------------------------------------------------------------------------------- */

static wf_layer *add_block(wf_layer *module, const seq2seq_opts *o, int level, wf_forward_n forward)
{
    wf_ctx *ctx = wf_layer_ctx(module);
    char name[16];
    snprintf(name, sizeof name, "%d", level);
    wf_layer *block = wf_module_n(ctx, 2, 3, forward, NULL);
    wf_module_add(block, "norm", norm(ctx, o));
    wf_module_add(block, "attention", attention(ctx, o));
    wf_module_add(block, "norm_linear", norm(ctx, o));
    wf_module_add(block, "up", linear(ctx, o->features, 4 * o->features));
    wf_module_add(block, "down", linear(ctx, 4 * o->features, o->features));
    return wf_module_add(module, name, block);
}

/* The block of a level, or NULL: there are no more. */
static wf_layer *block_of(wf_layer *self, int level)
{
    char name[16];
    snprintf(name, sizeof name, "%d", level);
    return wf_layer_child(self, name);
}

static wf_var *add_linear(wf_layer *block, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(block, "norm_linear"), x);
    y = wf_apply(wf_layer_child(block, "up"), y);
    return wf_add(x, wf_apply(wf_layer_child(block, "down"), wf_gelu(y)));
}

/* Tokens, and their lengths. */
static wf_var *encoder_block(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *y = wf_apply(wf_layer_child(self, "norm"), x[0]);
    y = wf_apply_n(wf_layer_child(self, "attention"), WF_INPUTS(y, y, x[1]));
    return add_linear(self, wf_add(x[0], y));
}

/* Tokens, the encoder's tokens, and the lengths of these. */
static wf_var *decoder_block(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *y = wf_apply(wf_layer_child(self, "norm"), x[0]);
    wf_var *h = wf_add(x[0], wf_apply_n(wf_layer_child(self, "attention"), WF_INPUTS(y, y)));
    y = wf_apply(wf_layer_child(self, "norm_source"), h);
    y = wf_apply_n(wf_layer_child(self, "source"), WF_INPUTS(y, x[1], x[2]));
    return add_linear(self, wf_add(h, y));
}

static wf_var *encode_tokens(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *y = wf_apply(wf_layer_child(self, "positions"), embed(self, x[0]));
    for (int i = 0; block_of(self, i); i++)
        y = wf_apply_n(block_of(self, i), WF_INPUTS(y, x[1]));
    return wf_apply(wf_layer_child(self, "norm"), y);
}

static wf_var *decode_tokens(wf_layer *self, wf_var *const *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "positions"), embed(self, x[0]));
    for (int i = 0; block_of(self, i); i++)
        y = wf_apply_n(block_of(self, i), WF_INPUTS(y, x[3], x[2]));
    return wf_apply(wf_layer_child(self, "norm"), y);
}

static void add_tokens(wf_layer *module, const seq2seq_opts *o, bool decodes)
{
    wf_ctx *ctx = wf_layer_ctx(module);
    const wf_positions_opts places = {.length = o->most, .features = o->features, .kind = WF_POSITIONS_SINE};
    wf_module_add(module, "positions", wf_positions(ctx, places));
    for (int i = 0; i < o->levels; i++) {
        wf_layer *block = add_block(module, o, i, decodes ? decoder_block : encoder_block);
        if (decodes) {
            wf_module_add(block, "norm_source", norm(ctx, o));
            wf_module_add(block, "source", attention(ctx, o));
        }
    }
    wf_module_add(module, "norm", norm(ctx, o));
}

/* --- LSTMs -------------------------------------------------------------------------------------------------------- */

/* Both directions have half of the features, so their states side by side are one of the decoder's level. */
static wf_var *encode_steps(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *last, *y = wf_recurrent(wf_layer_child(self, "lstm"), WF_INPUTS(embed(self, x[0]), x[1]), &last);
    if (!y)
        return NULL;
    last = wf_reshape(last, WF_SHAPE(length_of(y, 0), length_of(last, 1) / 2, length_of(y, 2)));
    return wf_concat(2, (wf_var *[]){y, last}, 1);
}

static wf_var *decode_steps(wf_layer *self, wf_var *const *x, wf_var *state)
{
    wf_var *last, *y = wf_recurrent(wf_layer_child(self, "lstm"), WF_INPUTS(embed(self, x[0]), state), &last);
    wf_var *found = wf_apply_n(wf_layer_child(self, "attention"), WF_INPUTS(y, x[3], x[2]));
    wf_var *both = wf_concat(2, (wf_var *[]){y, found}, 2);
    return wf_tanh(wf_apply(wf_layer_child(self, "mix"), both));
}

static void add_steps(wf_layer *module, const seq2seq_opts *o, bool decodes)
{
    wf_ctx *ctx = wf_layer_ctx(module);
    wf_module_add(module, "lstm",
                  wf_lstm(ctx, (wf_recurrent_opts){.in = o->features,
                                                   .hidden = decodes ? o->features : o->features / 2,
                                                   .levels = o->levels,
                                                   .both = !decodes}));
    if (!decodes)
        return;
    wf_module_add(module, "attention", attention(ctx, o));
    wf_module_add(module, "mix", linear(ctx, 2 * o->features, o->features));
}

/* --- both --------------------------------------------------------------------------------------------------------- */

wf_layer *seq2seq_encoder(wf_ctx *ctx, seq2seq_opts o)
{
    wf_layer *encoder = wf_module_n(ctx, 2, 2, o.transformer ? encode_tokens : encode_steps, NULL);
    wf_module_add(encoder, "pieces", embedding(ctx, &o));
    (o.transformer ? add_tokens : add_steps)(encoder, &o, false);
    return encoder;
}

/* Features h of every place, and the gated embeddings of the source's pieces that it attends to. */
static wf_var *add_copied(wf_layer *self, wf_var *h, wf_var *const *x)
{
    wf_var *q = wf_apply(wf_layer_child(self, "copy_query"), h);
    wf_var *k = wf_apply(wf_layer_child(self, "copy_key"), x[3]);
    wf_var *v = wf_apply(wf_layer_child(self, "pieces"), x[1]);
    wf_var *found = wf_attention(q, k, v, (wf_attention_opts){.lengths = wf_value(x[2])});
    wf_var *gate = wf_softplus(wf_apply(wf_layer_child(self, "copy_gate"), h));
    return wf_add(h, wf_mul(found, gate));
}

static wf_var *decode(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    const wf_shape given = wf_tensor_shape(wf_value(x[3]));
    const int64_t n_source = length_of(x[1], 1), n_pieces = wf_tensor_shape(wf_value(x[0])).dim[1];
    wf_var *part[2], *of[4] = {x[0], x[1], x[2], x[3]};
    const bool states = given.dim[1] > n_source;
    if (states && !wf_split(x[3], 1, 2, (const int64_t[]){n_source, given.dim[1] - n_source}, part))
        return NULL;
    of[3] = states ? part[0] : x[3];
    wf_var *h = states ? decode_steps(self, of, part[1]) : decode_tokens(self, of);
    wf_var *scores = wf_apply(wf_layer_child(self, "scores"), add_copied(self, h, of));
    return scores ? wf_reshape(scores, WF_SHAPE(given.dim[0] * n_pieces, length_of(scores, 2))) : NULL;
}

wf_layer *seq2seq_decoder(wf_ctx *ctx, seq2seq_opts o)
{
    wf_layer *decoder = wf_module_n(ctx, 4, 4, decode, NULL);
    wf_module_add(decoder, "pieces", embedding(ctx, &o));
    (o.transformer ? add_tokens : add_steps)(decoder, &o, true);
    wf_module_add(decoder, "copy_query", linear(ctx, o.features, o.features));
    wf_module_add(decoder, "copy_key", linear(ctx, o.features, o.features));
    wf_module_add(decoder, "copy_gate", linear(ctx, o.features, 1));
    wf_module_add(decoder, "scores", linear(ctx, o.features, o.symbols));
    if (wf_layer_tie(decoder, "scores/W", "pieces/W") == WF_OK)
        return decoder;
    wf_layer_free(decoder);
    return NULL;
}

static wf_var *encode_and_decode(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *source = wf_apply_n(wf_layer_child(self, "encoder"), x, 2);
    return wf_apply_n(wf_layer_child(self, "decoder"), WF_INPUTS(x[2], x[0], x[1], source));
}

wf_layer *seq2seq(wf_ctx *ctx, seq2seq_opts o)
{
    wf_layer *model = wf_module_n(ctx, 3, 3, encode_and_decode, NULL);
    wf_module_add(model, "encoder", seq2seq_encoder(ctx, o));
    wf_module_add(model, "decoder", seq2seq_decoder(ctx, o));
    return model;
}
