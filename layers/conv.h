/* Convolution and transposed convolution over one to three spatial dimensions. Local. */
#ifndef WF_LAYERS_CONV_H
#define WF_LAYERS_CONV_H

#include "core/act.h"
#include "core/boundary.h"
#include "layers/form.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero is the default of every field. kernel, stride, pad, dilation and output_pad hold for all spatial dimensions; an
 * entry of a *_nd field that is not 0 replaces them in its dimension (depth, height, width: the last `nd` entries of
 * the shape, in that order). */
typedef struct wf_conv_opts {
    int nd;             /* spatial dimensions, 1 to 3 (else WF_ERR_ARGUMENT); default 2 */
    int64_t in, out;    /* channels; required */
    int64_t kernel;     /* required, here or in kernel_nd */
    int64_t stride;     /* default 1 */
    int64_t pad;        /* on both sides; negative crops */
    int64_t dilation;   /* default 1 */
    int64_t groups;     /* default 1; divides in and out */
    int64_t output_pad; /* transposed only: more outputs at the end, less than stride or dilation */
    int64_t kernel_nd[3], stride_nd[3], dilation_nd[3], output_pad_nd[3];
    int64_t pad_lo_nd[3], pad_hi_nd[3]; /* if any of these six is not 0, they are the pads and `pad` must be 0 */
    /* What is beyond the edges of the image, of dimensions 2 and up (WF_ERR_ARGUMENT for others): by default zeros.
     * Other edges make elements of the padding that count like those of the image (docs/boundaries.md). The list of
     * channels is copied; the layer outlives what is differentiated through it. */
    wf_boundary boundary;
    bool no_bias;
    wf_act act;     /* in the same pass: WF_ACT_NONE, WF_ACT_RELU or WF_ACT_LEAKY_RELU */
    double slope;   /* of leaky ReLU, > 0; default 0.01 */
    double noise;   /* in training, standard deviation of normal noise added before act */
    wf_init w_init; /* default: LeCun normal */
    wf_init b_init; /* default: 0 */
    wf_form form;   /* channel-parallel layers (layers/channel.h); others ignore it and the next */
    bool replicate; /* channel-parallel layers: the output whole on every rank, not sharded over channels */
} wf_conv_opts;

/* [N,in,L] -> [N,out,O], O = floor((L + pads - dilation (kernel - 1) - 1) / stride) + 1. Parameters W
 * [out,in/groups,k...] (fan_in = in/groups k...), b [out]. */
wf_layer *wf_conv(wf_ctx *ctx, wf_conv_opts opts);

/* With a boundary, the input goes on beyond an edge as far as windows of the outputs reach, and is convolved like the
 * inside; along a circular dimension O must be stride L.
 * O = (L - 1) stride - pads + dilation (kernel - 1) + 1 + output_pad. Parameters W [in,out/groups,k...] (fan_in = what
 * one output sums over: in/groups k.../stride..., at least 1), b [out]. */
wf_layer *wf_conv_transpose(wf_ctx *ctx, wf_conv_opts opts);

/* wf_conv and wf_conv_transpose of one, two and three dimensions. */
static inline wf_layer *wf_conv1d(wf_ctx *ctx, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_conv(ctx, opts);
}
static inline wf_layer *wf_conv2d(wf_ctx *ctx, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_conv(ctx, opts);
}
static inline wf_layer *wf_conv3d(wf_ctx *ctx, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_conv(ctx, opts);
}

static inline wf_layer *wf_conv_transpose1d(wf_ctx *ctx, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_conv_transpose(ctx, opts);
}
static inline wf_layer *wf_conv_transpose2d(wf_ctx *ctx, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_conv_transpose(ctx, opts);
}
static inline wf_layer *wf_conv_transpose3d(wf_ctx *ctx, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_conv_transpose(ctx, opts);
}

#ifdef __cplusplus
}
#endif
#endif
