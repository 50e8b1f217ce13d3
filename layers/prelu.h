/* Parametric ReLU: a leaky ReLU whose slopes are learned. */
#ifndef WF_LAYERS_PRELU_H
#define WF_LAYERS_PRELU_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_prelu_opts {
    int64_t channels; /* a slope for each entry of dimension 1; 0: one slope for all */
    double slope;     /* at first; default 0.25, WF_ZERO: 0 */
} wf_prelu_opts;

/* y = x, or slope x where x < 0. Parameter: W [channels], or [1]. x is of rank 2 or more with `channels`, else of any
 * rank, and may be sharded in any way, also along channels: a rank then uses its part of W, which all ranks have whole.
 * y has the shape, type, order and layout of x. Errors: WF_ERR_SHAPE for another number of channels, WF_ERR_DTYPE.
 * Local. */
wf_layer *wf_prelu(wf_ctx *ctx, wf_prelu_opts opts);

#ifdef __cplusplus
}
#endif

#endif
