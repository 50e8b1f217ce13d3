/* The fully connected layer. Local. */
#ifndef WF_LAYERS_LINEAR_H
#define WF_LAYERS_LINEAR_H

#include "layers/form.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_linear_opts {
    int64_t in, out; /* required; out at least 1 */
    bool no_bias;
    wf_init w_init; /* default: LeCun normal, fan_in = in */
    wf_init b_init; /* default: 0 */
    wf_form form;   /* channel-parallel layers (layers/channel.h); others ignore it and the next */
    bool replicate; /* channel-parallel layers: the output whole on every rank, not sharded over channels */
} wf_linear_opts;

/* y = x W^T + b: [N,in] or [N,...] with `in` elements a sample (flattened in logical order) -> [N,out]. Parameters W
 * [out,in], b [out]. x may be sharded along samples; y has its layout then. Errors: WF_ERR_ARGUMENT for options,
 * WF_ERR_SHAPE for another shape or sharding, WF_ERR_DTYPE for a type that the context does not compute in and mixed
 * precision does not cast. */
wf_layer *wf_linear(wf_ctx *ctx, wf_linear_opts opts);

#ifdef __cplusplus
}
#endif
#endif
