/* Sequence to sequence (Sutskever et al. 2014) over bytes: an encoder whose final state begins a decoder. */
#ifndef EXAMPLES_MODELS_SEQ2SEQ_H
#define EXAMPLES_MODELS_SEQ2SEQ_H

#include <weft/weft.h>

#define SEQ2SEQ_SYMBOLS 256 /* bytes; 0 begins and ends a sentence */

typedef struct seq2seq_opts {
    int64_t features, hidden; /* of a byte, and of the state; 64 and 256 */
    int levels;               /* of either LSTM; 2 */
    double dropout;           /* between levels */
} seq2seq_opts;

/* Takes bytes u8 [N,S] and lengths i32 [N], gives the final state. */
wf_layer *seq2seq_encoder(wf_ctx *ctx, seq2seq_opts opts);
/* Takes the bytes before those that are to be told, u8 [N,T], and the encoder's state, gives scores
 * [N T,SEQ2SEQ_SYMBOLS]. */
wf_layer *seq2seq_decoder(wf_ctx *ctx, seq2seq_opts opts);
/* Both: takes bytes, lengths, and bytes before. Children encoder and decoder. */
wf_layer *seq2seq(wf_ctx *ctx, seq2seq_opts opts);

/* The decoder's scores; *state is that before the bytes, and becomes that after them. */
wf_var *seq2seq_go_on(wf_layer *decoder, wf_var *bytes, wf_var **state);

#endif
