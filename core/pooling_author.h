/* Pooling of images, and the places of its maxima: what the slots of the kernel table are given. */
#ifndef WF_CORE_POOLING_AUTHOR_H
#define WF_CORE_POOLING_AUTHOR_H

#include "core/array_author.h"
#include "core/window.h"

typedef enum wf_pool_kind {
    WF_POOL_MAX = 0,
    WF_POOL_AVG,        /* divides by the number of elements that are not padding */
    WF_POOL_AVG_PADDED, /* divides by the size of the window, cut to the padded input */
} wf_pool_kind;

/* Entries [0, nd) are those of the spatial dimensions, as in wf_conv_geom; the output's shape is the caller's (floor or
 * ceil). */
typedef struct wf_pool_geom {
    wf_pool_kind kind;
    int nd;
    int64_t kernel[WF_MAX_SPATIAL], stride[WF_MAX_SPATIAL], dilation[WF_MAX_SPATIAL];
    int64_t pad_lo[WF_MAX_SPATIAL], pad_hi[WF_MAX_SPATIAL];
    /* Windows of different lengths: window o of `outputs` over `inputs` of the whole is [floor(o inputs / outputs),
     * ceil((o + 1) inputs / outputs)). x begins at in_lo of them, y at out_lo, as in wf_resample_geom. No window is
     * longer than kernel; strides and dilations are 1, pads 0. */
    bool adaptive;
    int64_t inputs[WF_MAX_SPATIAL], outputs[WF_MAX_SPATIAL];
    int64_t in_lo[WF_MAX_SPATIAL], out_lo[WF_MAX_SPATIAL];
} wf_pool_geom;

/* The elements of x under window o of y, of an adaptive pool. */
static inline wf_range wf_pool_adaptive(const wf_pool_geom *g, int d, int64_t o)
{
    const int64_t at = (o + g->out_lo[d]) * g->inputs[d], end = at + g->inputs[d] + g->outputs[d] - 1;
    const wf_range r = {at / g->outputs[d] - g->in_lo[d], end / g->outputs[d] - g->in_lo[d]};
    return r;
}

/* Places in images. A place is the number of a pixel among those of one sample and channel, counted row-major. Arrays
 * are channels-last; places of a smaller image in a larger one are of i32, -1: none. */
typedef struct wf_places_args {
    int nd;
    const wf_array *index; /* i32: places in a box of an image */
    const wf_array *y;     /* i64, of index' shape */
    /* The box's lengths, where it begins, and the lengths of the image. */
    int64_t length[WF_MAX_SPATIAL], lo[WF_MAX_SPATIAL], whole[WF_MAX_SPATIAL];
} wf_places_args;

typedef struct wf_unpool_args {
    const wf_array *places; /* u8, i32 or i64 [N,C,smaller]; -1: none */
    const wf_array *index;  /* i32 [N,C,smaller]: the places, but -1 where a later pixel has the same one */
    const wf_array *taken;  /* i32 [N,C,larger]: the pixel of the smaller image that has this place */
} wf_unpool_args;

#endif
