/* Sequence to sequence over pieces of words (examples/pieces.h), in two forms:
 *
 * - LSTMs (Sutskever et al. 2014): the encoder's final state, of both directions, begins the decoder, whose every
 * output attends to the encoder's (Luong et al. 2015).
 * - A transformer (Vaswani et al. 2017), with the normalisations before attention and linear layers.
 *
 * Both end in the same way. Every place of the decoder attends to the source once more and adds what it finds there,
 * the decoder's own embeddings of the source's pieces, times a gate, to its features h. As scores are products of h and
 * these embeddings (tied weights), that raises the scores of pieces of the source: names and formats are copied, rare
 * ones too. */
#ifndef EXAMPLES_MODELS_SEQ2SEQ_H
#define EXAMPLES_MODELS_SEQ2SEQ_H

#include <weft/weft.h>

typedef struct seq2seq_opts {
    bool transformer;
    int64_t symbols;  /* pieces */
    int64_t features; /* of a piece and of every level; even; heads of 64 features if it is a multiple */
    int levels;       /* of the encoder, and of the decoder */
    int64_t most;     /* pieces of the longest sentence, with the one at its end */
} seq2seq_opts;

/* Takes the source's pieces i32 [N,S] and lengths i32 [N]. Gives what the decoder reads of it, [N,S,features]; LSTMs'
 * final states follow, [N,S + 2 levels,features]. */
wf_layer *seq2seq_encoder(wf_ctx *ctx, seq2seq_opts opts);
/* Takes the pieces before those that are to be told, i32 [N,T], the source's pieces and lengths, and what the encoder
 * gave. Gives scores [N T,symbols]. */
wf_layer *seq2seq_decoder(wf_ctx *ctx, seq2seq_opts opts);
/* Both: takes the source's pieces, lengths, and pieces before. Children encoder and decoder. */
wf_layer *seq2seq(wf_ctx *ctx, seq2seq_opts opts);

#endif
