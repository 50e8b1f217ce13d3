#include "examples/models/seq2seq.h"

static wf_layer *bytes_layer(wf_ctx *ctx, const seq2seq_opts *o)
{
    return wf_embedding(ctx, (wf_embedding_opts){.count = SEQ2SEQ_SYMBOLS, .features = o->features ? o->features : 64});
}

static wf_layer *lstm_layer(wf_ctx *ctx, const seq2seq_opts *o)
{
    return wf_lstm(ctx, (wf_recurrent_opts){.in = o->features ? o->features : 64,
                                            .hidden = o->hidden ? o->hidden : 256,
                                            .levels = o->levels ? o->levels : 2,
                                            .dropout = o->dropout});
}

static wf_var *encode(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *last, *bytes = wf_apply(wf_layer_child(self, "bytes"), x[0]);
    wf_recurrent(wf_layer_child(self, "lstm"), (wf_var *[]){bytes, x[1]}, n, &last);
    return last;
}

wf_layer *seq2seq_encoder(wf_ctx *ctx, seq2seq_opts o)
{
    wf_layer *encoder = wf_module_n(ctx, 2, 2, encode, NULL);
    wf_module_add(encoder, "bytes", bytes_layer(ctx, &o));
    wf_module_add(encoder, "lstm", lstm_layer(ctx, &o));
    return encoder;
}

wf_var *seq2seq_go_on(wf_layer *decoder, wf_var *bytes, wf_var **state)
{
    wf_var *x = wf_apply(wf_layer_child(decoder, "bytes"), bytes);
    wf_var *y = wf_recurrent(wf_layer_child(decoder, "lstm"), (wf_var *[]){x, *state}, 2, state);
    wf_var *scores = wf_apply(wf_layer_child(decoder, "scores"), y);
    return scores ? wf_reshape(scores, WF_SHAPE(-1, SEQ2SEQ_SYMBOLS)) : NULL;
}

static wf_var *decode(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *state = x[1];
    return seq2seq_go_on(self, x[0], &state);
}

wf_layer *seq2seq_decoder(wf_ctx *ctx, seq2seq_opts o)
{
    wf_layer *decoder = wf_module_n(ctx, 2, 2, decode, NULL);
    wf_module_add(decoder, "bytes", bytes_layer(ctx, &o));
    wf_module_add(decoder, "lstm", lstm_layer(ctx, &o));
    wf_module_add(
        decoder, "scores",
        wf_token_linear(ctx, (wf_token_linear_opts){.in = o.hidden ? o.hidden : 256, .out = SEQ2SEQ_SYMBOLS}));
    return decoder;
}

static wf_var *encode_and_decode(wf_layer *self, void *unused, wf_var *const *x, int n)
{
    wf_var *state = wf_apply_n(wf_layer_child(self, "encoder"), x, 2);
    return wf_apply_n(wf_layer_child(self, "decoder"), (wf_var *[]){x[2], state}, 2);
}

wf_layer *seq2seq(wf_ctx *ctx, seq2seq_opts o)
{
    wf_layer *model = wf_module_n(ctx, 3, 3, encode_and_decode, NULL);
    wf_module_add(model, "encoder", seq2seq_encoder(ctx, o));
    wf_module_add(model, "decoder", seq2seq_decoder(ctx, o));
    return model;
}
