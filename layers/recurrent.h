/* Recurrent layers over sequences [N,T,E]: LSTM and GRU of several levels, in one direction or both. Local; samples may
 * be sharded. */
#ifndef WF_LAYERS_RECURRENT_H
#define WF_LAYERS_RECURRENT_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero means the default. */
typedef struct wf_recurrent_opts {
    int64_t in, hidden; /* required */
    int levels;         /* 1; each reads the outputs of the one below it */
    bool both;          /* a second direction, from the last step to the first; outputs side by side */
    bool no_bias;
    double dropout; /* the rate in [0, 1) at which outputs of every level but the last become 0 in training */
    wf_init init;   /* of all parameters; default: uniform within 1 / sqrt(hidden) */
} wf_recurrent_opts;

/* y of x [N,T,in]: [N,T,D hidden], D directions, row-major. With the logistic function s, and a = W_ih x + b_ih and
 * b = W_hh h' + b_hh of the step, where h' and c' are the states before it:
 *     LSTM: i, f, o = s(a + b), g = tanh(a + b); c = f c' + i g, h = o tanh(c)
 *     GRU: r, z = s(a + b), n = tanh(a + r b); h = (1 - z) n + z h'
 * Parameters have PyTorch's names, shapes and order of gates (i, f, g, o and r, z, n): weight_ih_l0 [G hidden, in],
 * weight_hh_l0 [G hidden, hidden], bias_ih_l0 and bias_hh_l0 [G hidden], then those of weight_ih_l0_reverse, ..., and
 * of the next level. Two more inputs may follow x, both or one:
 * - the initial state [N,S,hidden], of a float type: h of level 0 forward, level 0 backward, level 1 forward, ...,
 * then, of an LSTM, c in that order, so S is levels D for a GRU and twice that for an LSTM. Without it states begin as
 * 0.
 * - lengths [N], i32: a sample ends after its first lengths[n] steps (at most T; a number below 0 counts as 0). Its
 *   states stop there, outputs after it are 0 (x must be finite there), and the backward direction begins at it.
 * bf16 and f16 are summed in f32, and c is f32 between steps. Local. */
wf_layer *wf_lstm(wf_ctx *ctx, wf_recurrent_opts opts);
wf_layer *wf_gru(wf_ctx *ctx, wf_recurrent_opts opts);

/* wf_apply_n, and the final state in *last, of the shape of the initial one and of x's type. WF_ERR_ARGUMENT where the
 * layer is neither of the two. On failure both are NULL. */
wf_var *wf_recurrent(wf_layer *layer, wf_var *const *inputs, int n, wf_var **last);

#ifdef __cplusplus
}
#endif

#endif
