/* Upsampling over one to three spatial dimensions by whole factors. Layers without parameters. Local. */
#ifndef WF_LAYERS_UPSAMPLE_H
#define WF_LAYERS_UPSAMPLE_H

#include "core/boundary.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_upsample_mode {
    WF_UPSAMPLE_NEAREST = 0, /* y[o] = x[floor(o / scale)] */
    WF_UPSAMPLE_LINEAR,      /* between the two nearest elements; bilinear, trilinear */
} wf_upsample_mode;

typedef struct wf_upsample_opts {
    int nd;              /* spatial dimensions, 1 to 3; default 2 */
    int64_t scale;       /* default 2 */
    int64_t scale_nd[3]; /* an entry that is not 0 replaces scale in its dimension */
    wf_upsample_mode mode;
    bool align_corners; /* linear only: the centres of the first and last elements of input and output coincide, instead
                           of the outer edges */
    /* Linear without align_corners only: what the outputs at an edge are interpolated with, of dimensions 2 and up
     * (WF_ERR_ARGUMENT for others); by default nothing, they take the last element. The list of channels is copied; the
     * layer outlives what is differentiated through it. */
    wf_boundary boundary;
} wf_upsample_opts;

/* [N,C,L] -> [N,C,scale L]. */
wf_layer *wf_upsample(wf_ctx *ctx, wf_upsample_opts opts);

/* wf_upsample of one, two and three dimensions. */
static inline wf_layer *wf_upsample1d(wf_ctx *ctx, wf_upsample_opts opts)
{
    opts.nd = 1;
    return wf_upsample(ctx, opts);
}
static inline wf_layer *wf_upsample2d(wf_ctx *ctx, wf_upsample_opts opts)
{
    opts.nd = 2;
    return wf_upsample(ctx, opts);
}
static inline wf_layer *wf_upsample3d(wf_ctx *ctx, wf_upsample_opts opts)
{
    opts.nd = 3;
    return wf_upsample(ctx, opts);
}

#ifdef __cplusplus
}
#endif
#endif
