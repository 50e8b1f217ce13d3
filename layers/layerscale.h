/* The end of a residual block: a factor of each channel, and the whole path left out now and then. Local. */
#ifndef WF_LAYERS_LAYERSCALE_H
#define WF_LAYERS_LAYERSCALE_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exactly one of `channels` and `features` is required. */
typedef struct wf_layerscale_opts {
    int64_t channels;   /* of dimension 1 of x [N,C] or [N,C,...], rank 2 to 5 */
    int64_t features;   /* or: of the last dimension of x, of any rank, as of tokens [N,T,E] */
    wf_init gamma_init; /* default: 1e-6 everywhere */
} wf_layerscale_opts;

/* y = x gamma, with a factor of each channel (Touvron et al., "Going deeper with image transformers", 2021). Parameter:
 * gamma [C]. x is of a float type (WF_ERR_DTYPE); y has its shape, type and layout. x may be sharded in any way: a rank
 * uses its part of gamma, which all ranks have whole, and wf_mesh_multi_node sums gradients over the axes along which x
 * is sharded. */
wf_layer *wf_layerscale(wf_ctx *ctx, wf_layerscale_opts opts);

/* In training each sample is 0 with this probability, in [0, 1), else x / (1 - rate): stochastic depth, for the path of
 * a residual block (Huang et al. 2016; torchvision's StochasticDepth of mode "row", timm's DropPath). In evaluation x.
 * Samples are dimension 0; which are left out is keyed by their place in the global batch, so it does not depend on the
 * partition, and ranks that have parts of one sample agree. x is of a float type and has a dimension. */
wf_var *wf_drop_path(wf_var *x, double rate);
/* wf_drop_path as a layer without parameters, for chains. */
wf_layer *wf_stochastic_depth(wf_ctx *ctx, double rate);

#ifdef __cplusplus
}
#endif
#endif
