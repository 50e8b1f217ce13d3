/* Pooling by a norm: (sum of |x|^p over a window)^(1/p). Without parameters. Local; wf_parallelize cuts its windows. */
#ifndef WF_LAYERS_LP_POOL_H
#define WF_LAYERS_LP_POOL_H

#include "layers/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options and shapes of the average pools, and p at least 1. Padding counts as zeros, or as .boundary says
 * (count_include_pad has no meaning); in ceil mode a last window that goes beyond the padding counts as its mean times
 * the window's size, as in PyTorch. The gradient is 0 where all elements of a window are. Powers are of x's type, in
 * which a large p may overflow or vanish, and of f16 a small one. A chain of three layers. */
wf_layer *wf_lp_pool(wf_ctx *ctx, double p, wf_pool_opts opts);

/* wf_lp_pool of one, two and three dimensions. */
static inline wf_layer *wf_lp_pool1d(wf_ctx *ctx, double p, wf_pool_opts opts)
{
    opts.nd = 1;
    return wf_lp_pool(ctx, p, opts);
}
static inline wf_layer *wf_lp_pool2d(wf_ctx *ctx, double p, wf_pool_opts opts)
{
    opts.nd = 2;
    return wf_lp_pool(ctx, p, opts);
}
static inline wf_layer *wf_lp_pool3d(wf_ctx *ctx, double p, wf_pool_opts opts)
{
    opts.nd = 3;
    return wf_lp_pool(ctx, p, opts);
}

#ifdef __cplusplus
}
#endif
#endif
