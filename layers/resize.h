/* Images of any other size over one to three spatial dimensions. A layer without parameters. Local.
 *
 * Each dimension is resampled by itself: an output is a weighted sum of neighbouring inputs, whose weights are made
 * once for each pair of lengths; the layer outlives what is differentiated through it. Beyond the edges the last
 * element goes on. layers/upsample.h is the faster way to lengthen by whole factors.
 */
#ifndef WF_LAYERS_RESIZE_H
#define WF_LAYERS_RESIZE_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_resize_mode {
    WF_RESIZE_NEAREST = 0,
    WF_RESIZE_LINEAR,
    WF_RESIZE_CUBIC,
    WF_RESIZE_AREA, /* the mean of inputs [floor(o L / O), ceil((o + 1) L / O)): adaptive average pooling */
} wf_resize_mode;

/* The place of output o among inputs, with L inputs, O outputs and s = L / O, or s = 1 / scale. */
typedef enum wf_resize_places {
    WF_PLACES_DEFAULT = 0, /* left for nearest, else centres */
    WF_PLACES_LEFT,        /* s o */
    WF_PLACES_CENTRES,     /* s (o + 1/2) - 1/2 */
    WF_PLACES_ALIGNED,     /* o (L - 1) / (O - 1): the centres of the first and last elements coincide */
} wf_resize_places;

/* To which input a place between two of them is rounded. */
typedef enum wf_resize_rounding {
    WF_ROUND_DOWN = 0,
    WF_ROUND_UP,
    WF_ROUND_HALF_DOWN, /* to the nearer one, and the lower one in the middle */
    WF_ROUND_HALF_UP,
} wf_resize_rounding;

typedef struct wf_resize_opts {
    int64_t size[3]; /* of the outputs; 0: by scale */
    double scale[3]; /* O = floor(scale L), and the places are by scale; 0, and size 0: the dimension stays */
    wf_resize_mode mode;
    wf_resize_places places;     /* area: the default alone */
    wf_resize_rounding rounding; /* nearest alone */
    double cubic;                /* cubic alone: the coefficient a of Keys (1981); default -0.75, antialiased -0.5 */
    /* Linear and cubic at centres: where outputs are fewer, the kernel is as much wider, and weights sum to 1. */
    bool antialias;
} wf_resize_opts;

/* [N,C,L...] -> [N,C,O...]. */
wf_layer *wf_resize(wf_ctx *ctx, wf_resize_opts opts);
/* [N,C,L...] -> [N,C,size...]: windows of about equal length, which overlap where L is not a multiple. `size` has an
 * entry for each spatial dimension; 0: it stays. */
wf_layer *wf_adaptive_avg_pool(wf_ctx *ctx, wf_shape size);

#ifdef __cplusplus
}
#endif
#endif
