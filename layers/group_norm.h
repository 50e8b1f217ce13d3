/* Normalisation of each sample by itself: over its last dimensions or its channels (layer and RMS normalisation), over
 * groups of channels and all pixels (group normalisation), or over the pixels of one channel (instance normalisation).
 *
 * All compute y = (x - mean) / sqrt(variance + eps) gamma + beta with the biased variance of the group, in training and
 * in evaluation. Nothing is kept from batch to batch. Statistics are of f32 at least (f64 for f64).
 *
 * x is of a float type (WF_ERR_DTYPE); y has its shape, type and layout. x may be sharded in any way that leaves groups
 * whole on a rank, also along channels: a rank then uses its part of gamma and beta, which all ranks have whole. A cut
 * through a group is WF_ERR_SHAPE; layers/mesh_norm.h takes it. Gradients of gamma and beta are summed by
 * wf_mesh_multi_node over the axes along which x is sharded. Options out of their range are WF_ERR_ARGUMENT. Local. */
#ifndef WF_LAYERS_GROUP_NORM_H
#define WF_LAYERS_GROUP_NORM_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exactly one of `shape` and `channels` is required. */
typedef struct wf_layernorm_opts {
    wf_shape shape;   /* of the last dimensions of x, over which it is normalised: WF_SHAPE(512) for tokens [N,T,512] */
    int64_t channels; /* or: over dimension 1 of x [N,C] or [N,C,...], each pixel by itself */
    double eps;       /* default 1e-5, WF_ZERO: 0 */
    bool no_gamma, no_beta;
    wf_init gamma_init; /* default: 1 */
    wf_init beta_init;  /* default: 0 */
} wf_layernorm_opts;

/* Layer normalisation. Parameters gamma and beta of `shape`, or [C]. With `shape` x is of any rank, and y is row-major;
 * with `channels` of rank 2 to 5, and y channels-last from rank 3 on. */
wf_layer *wf_layernorm(wf_ctx *ctx, wf_layernorm_opts opts);

typedef struct wf_rmsnorm_opts {
    wf_shape shape; /* as in wf_layernorm_opts */
    int64_t channels;
    double eps; /* default 1e-6, WF_ZERO: 0; PyTorch's default is the epsilon of the type */
    bool no_gamma;
    wf_init gamma_init; /* default: 1 */
} wf_rmsnorm_opts;

/* y = x / sqrt(mean of x^2 + eps) gamma, over the same elements as wf_layernorm. Parameter: gamma. */
wf_layer *wf_rmsnorm(wf_ctx *ctx, wf_rmsnorm_opts opts);

typedef struct wf_groupnorm_opts {
    int64_t channels; /* required */
    int64_t groups;   /* required: a divisor of channels */
    double eps;       /* default 1e-5, WF_ZERO: 0 */
    bool no_gamma, no_beta;
    wf_init gamma_init; /* default: 1 */
    wf_init beta_init;  /* default: 0 */
} wf_groupnorm_opts;

/* Group normalisation of x [N,C] or [N,C,...], rank 2 to 5: groups of channels / groups neighbouring channels, with all
 * their pixels. Parameters: gamma, beta [C]. */
wf_layer *wf_groupnorm(wf_ctx *ctx, wf_groupnorm_opts opts);

typedef struct wf_instancenorm_opts {
    int64_t channels;       /* required */
    double eps;             /* default 1e-5, WF_ZERO: 0 */
    bool no_gamma, no_beta; /* PyTorch's default has neither */
    wf_init gamma_init;     /* default: 1 */
    wf_init beta_init;      /* default: 0 */
} wf_instancenorm_opts;

/* Group normalisation with a group for each channel. Without running statistics. */
wf_layer *wf_instancenorm(wf_ctx *ctx, wf_instancenorm_opts opts);

#ifdef __cplusplus
}
#endif
#endif
