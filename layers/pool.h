/* Pooling over one to three spatial dimensions. Layers without parameters. Local. */
#ifndef WF_LAYERS_POOL_H
#define WF_LAYERS_POOL_H

#include "core/boundary.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero is the default of every field; *_nd entries that are not 0 replace the field above them in their dimension. */
typedef struct wf_pool_opts {
    int nd;           /* spatial dimensions, 1 to 3; default 2; wf_max_unpool has those of its input */
    int64_t kernel;   /* required, here or in kernel_nd */
    int64_t stride;   /* default: kernel */
    int64_t pad;      /* on both sides, at most half the window's extent */
    int64_t dilation; /* default 1 */
    int64_t kernel_nd[3], stride_nd[3], dilation_nd[3];
    int64_t pad_lo_nd[3], pad_hi_nd[3]; /* if any of these six is not 0, they are the pads and `pad` must be 0 */
    bool ceil_mode;         /* round the number of outputs up; a last window that would start in the right padding is
                               dropped */
    bool count_include_pad; /* average over the padded window, not over the elements that are there */
    /* What is beyond the edges of the image, of dimensions 2 and up (WF_ERR_ARGUMENT for others): by default nothing.
     * Other edges make elements of the padding that averages count, and whose maxima send their gradients to where they
     * come from (docs/boundaries.md). The list of channels is copied; the layer outlives what is differentiated through
     * it. */
    wf_boundary boundary;
} wf_pool_opts;

/* [N,C,L] -> [N,C,O], O = floor((L + pads - dilation (kernel - 1) - 1) / stride) + 1. Maximum: padding is minus
 * infinity, the gradient goes to the first of equals. */
wf_layer *wf_max_pool(wf_ctx *ctx, wf_pool_opts opts);
wf_layer *wf_avg_pool(wf_ctx *ctx, wf_pool_opts opts);

/* [N,C,...] -> [N,C,1,...]: one window over everything. */
wf_layer *wf_global_max_pool(wf_ctx *ctx);
wf_layer *wf_global_avg_pool(wf_ctx *ctx);

/* [N,C,L...] -> [N,C,size...]: output o of O along a dimension is the largest of the inputs [floor(o L / O),
 * ceil((o + 1) L / O)). `size` has an entry for each spatial dimension; 0: it stays. The average: layers/resize.h. */
wf_layer *wf_adaptive_max_pool(wf_ctx *ctx, wf_shape size);

/* wf_apply(pool, x) of a layer of maxima, any of the above or its spatial form, and in *places where they were: i64, of
 * the result's shape and layout, without a gradient. A place is the number of the pixel within its sample and channel,
 * counted row-major over the whole image without padding, of which this rank may have a part; -1 where a window lies in
 * the padding alone, as a dilated one may. *places is NULL after a failure. WF_ERR_ARGUMENT for another layer,
 * WF_ERR_UNSUPPORTED for one with a boundary. Collective as the layer. */
wf_var *wf_max_pool_with_places(wf_layer *pool, wf_var *x, wf_var **places);
/* The other way: [N,C,O...] -> [N,C,L...], x's elements at their places (u8, i32 or i64, of x's shape and layout),
 * zeros elsewhere; an element of place -1 is left out. L is `size`, with an entry for each spatial dimension; where
 * that is 0, or without a size (rank 0), the shortest input of the pool with these options: (O - 1) stride - pads +
 * dilation (kernel - 1) + 1. Beside a whole size the options may all be 0. WF_ERR_UNSUPPORTED for a boundary. Of
 * several elements with one place the last one, counted row-major, is there, and has the gradient. Samples and channels
 * may be cut, pixels not: places are of the whole image. Another place outside it is WF_ERR_ARGUMENT: of this call, or
 * on a device that computes later of the next one that reads a number. */
wf_var *wf_max_unpool(wf_var *x, const wf_var *places, wf_pool_opts opts, wf_shape size);

/* wf_max_pool and wf_avg_pool of one, two and three dimensions. */
static inline wf_layer *wf_max_pool1d(wf_ctx *ctx, wf_pool_opts opts)
{
    opts.nd = 1;
    return wf_max_pool(ctx, opts);
}
static inline wf_layer *wf_max_pool2d(wf_ctx *ctx, wf_pool_opts opts)
{
    opts.nd = 2;
    return wf_max_pool(ctx, opts);
}
static inline wf_layer *wf_max_pool3d(wf_ctx *ctx, wf_pool_opts opts)
{
    opts.nd = 3;
    return wf_max_pool(ctx, opts);
}

static inline wf_layer *wf_avg_pool1d(wf_ctx *ctx, wf_pool_opts opts)
{
    opts.nd = 1;
    return wf_avg_pool(ctx, opts);
}
static inline wf_layer *wf_avg_pool2d(wf_ctx *ctx, wf_pool_opts opts)
{
    opts.nd = 2;
    return wf_avg_pool(ctx, opts);
}
static inline wf_layer *wf_avg_pool3d(wf_ctx *ctx, wf_pool_opts opts)
{
    opts.nd = 3;
    return wf_avg_pool(ctx, opts);
}

#ifdef __cplusplus
}
#endif
#endif
