/* Recurrent layers: what the layer asks of a level in one direction. */
#ifndef WF_LAYERS_SERIAL_RECURRENT_IMPL_H
#define WF_LAYERS_SERIAL_RECURRENT_IMPL_H

#include "core/gates_author.h"
#include "layers/layer_author.h"

typedef struct wf_recurrent_pass {
    wf_cell cell;
    bool backward; /* from the last step to the first */
    bool states;   /* the final states follow the outputs */
} wf_recurrent_pass;

typedef struct wf_recurrent_params {
    wf_var *w, *u;  /* of wf_compute_var: weights of the input [G H,E] and of the state [G H,H] */
    wf_var *b, *ub; /* [G H]; NULL: none */
    wf_var *h, *c;  /* [1,N,H]: initial states; NULL: 0. A GRU has no c */
} wf_recurrent_params;

/* x [T,N,E] gives [T,N,H]; with states [T + 1,N,H] (GRU) or [T + 2,N,H] (LSTM): outputs, final h, final c. lengths: i32
 * [N], or NULL. */
wf_var *wf_recurrent_run(const wf_recurrent_pass *of, wf_var *x, const wf_recurrent_params *params,
                         const wf_tensor *lengths);

#endif
