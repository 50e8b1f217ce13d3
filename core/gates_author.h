/* One step of a recurrent cell, as kernels see it: what follows the two products. */
#ifndef WF_CORE_GATES_AUTHOR_H
#define WF_CORE_GATES_AUTHOR_H

#include "core/array_author.h"

/* Sizes: N samples, H features of the state. Columns of [N,G H] are G blocks of H. With a = input + bias and
 * b = recurrent + recurrent_bias, s the logistic function, and h' and c' the states before the step: */
typedef enum wf_cell {
    WF_CELL_LSTM = 0, /* G = 4: i = s(a + b), f = s(a + b), g = tanh(a + b), o = s(a + b);
                         c = f c' + i g, h = o tanh(c) */
    WF_CELL_GRU,      /* G = 3: r = s(a + b), z = s(a + b), n = tanh(a + r b); h = (1 - z) n + z h' */
} wf_cell;

/* All arrays are row-major. "Wide" is f32, and f64 where h is. A sample n takes part in the step if lengths is NULL or
 * step < lengths[n]; the state of any other stays as it is, and the gradients dh and dcell pass. */
typedef struct wf_gates_args {
    wf_cell cell;
    int64_t step;
    const wf_array *lengths;               /* i32 [N]; NULL: every sample takes part */
    const wf_array *input, *recurrent;     /* wide [N,G H]: products with x and with h' */
    const wf_array *bias, *recurrent_bias; /* [G H], of h's type or wide; NULL: 0 */
    const wf_array *gates;                 /* [N,G H]: what the names above stand for */
    const wf_array *kept;                  /* wide [N,H]: LSTM c, GRU the last block of b */
    const wf_array *cell_before;           /* wide [N,H]: c'. LSTM alone */
    const wf_array *before, *h;            /* [N,H]: h' and h */
    const wf_array *y;                     /* [N,H]: h; 0 where the sample takes no part */
    const wf_array *dy;                    /* [N,H]: gradient of y */
    const wf_array *dh;                    /* wide [N,H]: what later steps give */
    const wf_array *dcell;                 /* wide [N,H]: gradient of c. LSTM alone */
    const wf_array *dinput, *drecurrent;   /* [N,G H]; drecurrent: GRU alone, an LSTM's is dinput */
} wf_gates_args;

static inline int64_t wf_cell_gates(wf_cell cell)
{
    return cell == WF_CELL_LSTM ? 4 : 3;
}

#endif
