/* Layers on images (or volumes, or sequences) of which every rank holds a part. Same options, parameters, initial
 * values and results as the serial layers of layers/conv.h, layers/pool.h, layers/upsample.h and layers/resize.h: only
 * the constructor changes.
 *
 * The input is sharded over the mesh along spatial dimensions, with shard bounds (wf_shard, wf_redistribute and these
 * layers give such tensors), and possibly along samples; parts may be uneven and empty. A rank holds the outputs whose
 * window is centred in its part, or whose place lies there, so that halos stay narrow; these shard bounds may be others
 * than those of wf_shard, so bring targets to the output's layout (wf_redistribute). A halo may span several ranks.
 * Gradients of parameters are sums over this rank's outputs: the optimizer adds up the ranks. Pooling and upsampling
 * also take inputs that are sharded along channels, and keep that sharding. It is WF_ERR_SHAPE, which says what to do,
 * if the input is local or belongs to another mesh; and for convolutions, whose parameters' gradients are summed over
 * the mesh, if it is replicated over an axis that the mesh splits, or is sharded along channels (layers/mesh_conv.h
 * takes such inputs). Pooling and upsampling have no such sums and take an input that is replicated over some axes as
 * it is.
 *
 * Normalisation has no form of its own here: wf_parallelize lets it share statistics over the ranks that hold the
 * pixels of its samples, and wf_sync_batchnorm takes those ranks as wf_mesh_comm gives them.
 *
 * A halo moves once in each direction. A rank that reads h pixels of others, of C channels and N samples, receives N C
 * h elements in forward; backward of pooling and upsampling returns as many, that of a convolution N F h' (halos of dy,
 * where its input gradient is recomputed) or N C h (where it is added back). For a kernel of k rows, stride 1 and a
 * mesh that splits height, h is (k - 1) W for a rank with two neighbours. wf_spatial_global_max_pool moves the whole
 * input to every rank.
 *
 * Equal runs give equal bits: gradients from other ranks are added in the order of ranks, and the division of the work
 * depends on shapes alone. Only the depth of a chain whose costs are measured may vary with the machine. With
 * WEFT_DETERMINISTIC=1 the depth is fixed too, and the input gradient of a convolution is never a sum of parts from
 * several ranks, even where that would move fewer bytes; on `ref` it then equals the serial gradient bit for bit, as
 * outputs always do.
 *
 * Forward computes the interior while the halo is in flight. Backward of pooling and upsampling computes the gradients
 * that go back to other ranks first, and the interior while they travel. Backward of a convolution computes the
 * gradients of its parameters while messages are in flight: where the input's gradient is recomputed from halos of dy,
 * the interior too; where it is added back, all of it is computed before the messages leave. Global pools and deep
 * halos have no interior and wait.
 *
 * Forward and backward are collective over the mesh; a failure of one rank reaches the others. The mesh is borrowed.
 */
#ifndef WF_LAYERS_SPATIAL_H
#define WF_LAYERS_SPATIAL_H

#include "comm/mesh.h"
#include "layers/conv.h"
#include "layers/pool.h"
#include "layers/resize.h"
#include "layers/upsample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The input's gradient is recomputed from halos of the output's gradient, or added back from this rank's outputs,
 * whichever moves fewer bytes; always recomputed where WEFT_DETERMINISTIC is set. */
wf_layer *wf_spatial_conv(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_spatial_conv_transpose(const wf_mesh *mesh, wf_conv_opts opts);

wf_layer *wf_spatial_max_pool(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_avg_pool(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_adaptive_max_pool(const wf_mesh *mesh, wf_shape size);
/* The output is replicated over the spatial axes. An average is summed over the ranks; for a maximum every rank
 * gathers the whole input, which should be small at this point of a model. */
wf_layer *wf_spatial_global_max_pool(const wf_mesh *mesh);
wf_layer *wf_spatial_global_avg_pool(const wf_mesh *mesh);

wf_layer *wf_spatial_upsample(const wf_mesh *mesh, wf_upsample_opts opts);

wf_layer *wf_spatial_resize(const wf_mesh *mesh, wf_resize_opts opts);
wf_layer *wf_spatial_adaptive_avg_pool(const wf_mesh *mesh, wf_shape size);

typedef struct wf_spatial_chain_opts {
    int depth; /* layers for each exchange; default: the division of the chain that is cheapest by the costs below */
    /* Seconds of an exchange, of a byte that a rank sends, and of a multiplication with addition. Default: each is
     * measured once for a chain, at the first input, and the slowest rank's value counts (of a pipeline: of the stage).
     * Where WEFT_DETERMINISTIC is set the defaults are 1e-5, 3e-10 and 1.5e-11 (measured between two cores of one
     * node), so that every run makes the same choice. */
    double message_seconds, byte_seconds, work_seconds;
} wf_spatial_chain_opts;

/* A chain of spatial convolutions and transposed convolutions, named "0", "1", ... as in wf_sequential, with deep
 * halos: one exchange serves several layers. The halo is wide enough for all of them, and every rank computes the
 * boundary values between the layers that it needs, also those that another rank computes. Results are those of the
 * layers one by one, with fewer messages. Inputs that go on beyond their edges (wf_conv_opts.boundary): circular ones
 * get all of it with the halo, reflected, symmetric and repeated ones are made again by each rank of its own. A layer
 * with a pole has an exchange of its own, and so have layers of a circular dimension that do not come round together: a
 * stride that does not divide it, noise between the layers, another kind of edge, or a halo of more than one round.
 * Owns the layers, also when it fails. */
wf_layer *wf_spatial_chain(const wf_mesh *mesh, wf_spatial_chain_opts opts, int count, wf_layer *const *layers);

/* Convolutions, pools and upsampling of one, two and three dimensions. */
static inline wf_layer *wf_spatial_conv1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_spatial_conv(mesh, opts);
}
static inline wf_layer *wf_spatial_conv2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_spatial_conv(mesh, opts);
}
static inline wf_layer *wf_spatial_conv3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_spatial_conv(mesh, opts);
}

static inline wf_layer *wf_spatial_conv_transpose1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 1;
    return wf_spatial_conv_transpose(mesh, opts);
}
static inline wf_layer *wf_spatial_conv_transpose2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 2;
    return wf_spatial_conv_transpose(mesh, opts);
}
static inline wf_layer *wf_spatial_conv_transpose3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    opts.nd = 3;
    return wf_spatial_conv_transpose(mesh, opts);
}

static inline wf_layer *wf_spatial_max_pool1d(const wf_mesh *mesh, wf_pool_opts opts)
{
    opts.nd = 1;
    return wf_spatial_max_pool(mesh, opts);
}
static inline wf_layer *wf_spatial_max_pool2d(const wf_mesh *mesh, wf_pool_opts opts)
{
    opts.nd = 2;
    return wf_spatial_max_pool(mesh, opts);
}
static inline wf_layer *wf_spatial_max_pool3d(const wf_mesh *mesh, wf_pool_opts opts)
{
    opts.nd = 3;
    return wf_spatial_max_pool(mesh, opts);
}

static inline wf_layer *wf_spatial_avg_pool1d(const wf_mesh *mesh, wf_pool_opts opts)
{
    opts.nd = 1;
    return wf_spatial_avg_pool(mesh, opts);
}
static inline wf_layer *wf_spatial_avg_pool2d(const wf_mesh *mesh, wf_pool_opts opts)
{
    opts.nd = 2;
    return wf_spatial_avg_pool(mesh, opts);
}
static inline wf_layer *wf_spatial_avg_pool3d(const wf_mesh *mesh, wf_pool_opts opts)
{
    opts.nd = 3;
    return wf_spatial_avg_pool(mesh, opts);
}

static inline wf_layer *wf_spatial_upsample1d(const wf_mesh *mesh, wf_upsample_opts opts)
{
    opts.nd = 1;
    return wf_spatial_upsample(mesh, opts);
}
static inline wf_layer *wf_spatial_upsample2d(const wf_mesh *mesh, wf_upsample_opts opts)
{
    opts.nd = 2;
    return wf_spatial_upsample(mesh, opts);
}
static inline wf_layer *wf_spatial_upsample3d(const wf_mesh *mesh, wf_upsample_opts opts)
{
    opts.nd = 3;
    return wf_spatial_upsample(mesh, opts);
}

#ifdef __cplusplus
}
#endif
#endif
