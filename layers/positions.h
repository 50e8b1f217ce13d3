/* Positions of tokens. Local. */
#ifndef WF_LAYERS_POSITIONS_H
#define WF_LAYERS_POSITIONS_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_positions_kind {
    WF_POSITIONS_LEARNED = 0, /* a parameter W [length,features] */
    WF_POSITIONS_SINE, /* p[t,2i] = sin(t / base^(2i/features)), p[t,2i+1] = cos(t / base^(2i/features)), of Vaswani et
                          al. 2017; no parameter */
} wf_positions_kind;

typedef struct wf_positions_opts {
    int64_t length, features; /* required; features are even for WF_POSITIONS_SINE */
    wf_positions_kind kind;
    double base;    /* of WF_POSITIONS_SINE; default 10000 */
    wf_init w_init; /* of WF_POSITIONS_LEARNED; default a truncated normal distribution of deviation 0.02 */
} wf_positions_opts;

/* y[n,t,:] = x[n,t,:] + p[t,:] for tokens x [N,T,features] of a float type, T at most `length` (WF_ERR_SHAPE). y has
 * x's type, row-major memory and layout. x may be sharded along every dimension: a rank adds the positions of its part,
 * of a parameter that all ranks have whole, and wf_mesh_multi_node sums gradients over the axes along which x is
 * sharded.
 */
wf_layer *wf_positions(wf_ctx *ctx, wf_positions_opts opts);

#ifdef __cplusplus
}
#endif
#endif
