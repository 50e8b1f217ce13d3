/* Convolutions whose channels, pixels and samples are split at once, on a mesh with any of the axes data, channel,
 * depth, height and width. Same options, parameters, initial values and results as the serial layers.
 *
 * They are the channel-parallel layers of layers/channel.h on images that are cut as those of layers/spatial.h are: the
 * input may be sharded along dimension 1 over the channel axis, at any shard bounds, or replicated over it, and is
 * sharded along samples and pixels over every other axis that the mesh splits (wf_shard gives such tensors). An input
 * without a layout is taken as replicated where the mesh splits only channels. The output is sharded over channels in
 * balanced blocks, or replicated over the channel axis where the options say `replicate`; pixels lie as
 * layers/spatial.h says. A parameter holds this rank's channels alone. layers/spatial.h has pooling and upsampling,
 * layers/channel.h normalisation (wf_channel_sync_batchnorm) for such tensors.
 *
 * Channels and halos travel in one exchange: every rank gets the pixels that its outputs read, of the channels that it
 * computes with. With p ranks in the channel group, C channels and F outputs, a rank that has X of the pixels of the
 * input and Y of those of the output, and reads h_x more of the input (backward: h_y more of dy, recomputed, or what
 * was read added back, whichever is less in all), the words sent for each sample are, summed over the channel group:
 *
 *                  forward                        backward
 *   filter form    (p-1) C X + p C h_x            (p-1) C X + (F h_y, or p C h_x)
 *   channel form   C h_x + (p-1) F Y              (p-1) F Y + (p F h_y, or C h_x)
 *
 * X does not count pixels that no output reads, and x and y are sharded over channels; the table of layers/channel.h
 * says what changes where they are replicated. wf_batchnorm and others become ready for such tensors by wf_parallelize
 * (layers/parallelize.h).
 *
 * Forward and backward are collective over the mesh; a failure of one rank reaches the others. The mesh is borrowed. */
#ifndef WF_LAYERS_MESH_CONV_H
#define WF_LAYERS_MESH_CONV_H

#include "comm/mesh.h"
#include "layers/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

wf_layer *wf_mesh_conv(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_mesh_conv_transpose(const wf_mesh *mesh, wf_conv_opts opts);

/* wf_mesh_conv and wf_mesh_conv_transpose of one, two and three dimensions. */
static inline wf_layer *wf_mesh_conv1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_mesh_conv(mesh, opts);
}
static inline wf_layer *wf_mesh_conv2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_mesh_conv(mesh, opts);
}
static inline wf_layer *wf_mesh_conv3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_mesh_conv(mesh, opts);
}

static inline wf_layer *wf_mesh_conv_transpose1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_mesh_conv_transpose(mesh, opts);
}
static inline wf_layer *wf_mesh_conv_transpose2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_mesh_conv_transpose(mesh, opts);
}
static inline wf_layer *wf_mesh_conv_transpose3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_mesh_conv_transpose(mesh, opts);
}

#ifdef __cplusplus
}
#endif
#endif
