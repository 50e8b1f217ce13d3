/* Channel-parallel layers: each rank of a mesh's channel axis holds a part of the weights. They compute what the serial
 * layers of the same options compute. Collective over the channel axis, in forward and in backward.
 *
 * The input may be replicated over the channel axis, or sharded over it along dimension 1 at any shard bounds. It may
 * be sharded over data; an input without a layout is taken as replicated where the mesh splits only channels. The
 * output is sharded along dimension 1 in balanced blocks, so that activations stay sharded between layers, or
 * replicated where the options say so (`replicate`). Gradients have the layout of their values.
 *
 * With p ranks in the group, N samples here, C channels of H W pixels in and F of H' W' out, the ranks of a group send
 * (words each, on average):
 *
 *                         forward                          backward
 *   filter, x sharded     (p-1)/p N C H W  (gather of x)   (p-1)/p N C H W  (sum of dx, scattered)
 *   filter, x replicated  -                                2 (p-1)/p N C H W  (all-reduce of dx)
 *   channel, y sharded    (p-1)/p N F H'W' (sum, scatter)  (p-1)/p N F H'W' (gather of dy)
 *   channel, y replicated 2 (p-1)/p N F H'W' (all-reduce)  -
 *   both, p = a b         (a-1)/p N C H W and at most b/p N F H'W', and the same backward: in ascending blocks, not
 *                         every rank's outputs can lie among those that it adds to
 *
 * (an all-reduce of little sends what comm.h says). In addition, an x that is replicated in the channel form costs
 * (p-1)/p N C H W in backward (gather of dx), a y that is replicated in the filter form (p-1)/p N F H'W' in forward
 * (gather of y); and x at other shard bounds than balanced blocks moves to those first. WF_FORM_AUTO takes the channel
 * form where F H'W' < C H W, judged by channels and strides. WF_FORM_BOTH needs a number of ranks that is not a prime;
 * otherwise it acts as WF_FORM_AUTO. In the paired form, a filter form, then normalisation and activation (per channel,
 * nothing moves), then a channel form, there is one sum per pair and direction.
 *
 * For layers that also split pixels see layers/mesh_conv.h.
 *
 * Grouped convolutions are split along their groups' own dimension (WF_FORM_FILTER, transposed ones WF_FORM_CHANNEL;
 * WF_FORM_AUTO picks it, others are WF_ERR_UNSUPPORTED): nothing moves where shards end at groups, else what the groups
 * that are cut need.
 *
 * A parameter holds this rank's part alone; its initial value is the part of the serial one. The dimension of the
 * weights that is split must have at least as many entries as there are ranks (WF_ERR_ARGUMENT on all ranks). Models
 * with such layers train with wf_mesh_multi_node (optim/multi_node.h). */
#ifndef WF_LAYERS_CHANNEL_H
#define WF_LAYERS_CHANNEL_H

#include "comm/mesh.h"
#include "layers/conv.h"
#include "layers/embedding.h"
#include "layers/linear.h"
#include "layers/norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The mesh is borrowed and must outlive the layer. */
wf_layer *wf_channel_conv(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_channel_conv_transpose(const wf_mesh *mesh, wf_conv_opts opts);
/* Input [N,in], or [N,C,...] of `in` elements a sample, also sharded along dimension 1. */
wf_layer *wf_channel_linear(const wf_mesh *mesh, wf_linear_opts opts);

/* Rows of the table in balanced blocks. Indices are not sharded over the channel axis, and neither is the output: one
 * all-reduce of its N features words forward, nothing backward. */
wf_layer *wf_channel_embedding(const wf_mesh *mesh, wf_embedding_opts opts);

/* Batch normalisation of an input that is sharded over the channel axis along dimension 1, in balanced blocks: the
 * parameters are sharded in the same blocks, and nothing is sent. Statistics are those of the samples that this rank
 * holds. */
wf_layer *wf_channel_batchnorm(const wf_mesh *mesh, wf_batchnorm_opts opts);
/* Like wf_channel_batchnorm, with the statistics of all samples and pixels of the mesh, as wf_sync_batchnorm has them;
 * pixels may be sharded too. */
wf_layer *wf_channel_sync_batchnorm(const wf_mesh *mesh, wf_batchnorm_opts opts);

/* wf_channel_conv and wf_channel_conv_transpose of one, two and three dimensions. */
static inline wf_layer *wf_channel_conv1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_channel_conv(mesh, opts);
}
static inline wf_layer *wf_channel_conv2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_channel_conv(mesh, opts);
}
static inline wf_layer *wf_channel_conv3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_channel_conv(mesh, opts);
}

static inline wf_layer *wf_channel_conv_transpose1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_channel_conv_transpose(mesh, opts);
}
static inline wf_layer *wf_channel_conv_transpose2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_channel_conv_transpose(mesh, opts);
}
static inline wf_layer *wf_channel_conv_transpose3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_channel_conv_transpose(mesh, opts);
}

#ifdef __cplusplus
}
#endif
#endif
