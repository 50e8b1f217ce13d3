/* Layers on images (or volumes, or sequences) of which every rank holds a part. Same options, parameters, initial
 * values and results as the serial layers of layers/conv.h, layers/pool.h and layers/upsample.h: only the constructor
 * changes.
 *
 * The input is sharded over the mesh along spatial dimensions, with shard bounds (wf_shard, wf_redistribute and these
 * layers give such tensors), and possibly along samples; parts may be uneven and empty. Outputs lie where the centre of
 * what they read lies, so that halos stay narrow. A halo may span several ranks. Gradients of parameters are sums over
 * this rank's outputs: the optimizer adds up the ranks. Pooling and upsampling also take channels that are cut, and
 * leave them where they are. An input that is local, replicated where the mesh is split or sharded along channels
 * (convolution: layers/mesh_conv.h takes such channels), or of another mesh is an error that says what to do.
 *
 * The same run gives the same bits: what is added back is added in the order of ranks, and how the work is cut depends
 * on shapes alone. What may change with the machine is how deep a chain goes whose costs are measured. With
 * WEFT_DETERMINISTIC=1 that is fixed too, and no input gradient of a convolution is a sum of parts from several ranks,
 * whichever way would move fewer bytes: on `ref` it is then the serial one bit for bit, as outputs always are.
 *
 * All compute their inside while halos travel, forward and backward; of gradients that go back to their owners, those
 * are computed first. Global pools and deep halos, which have no inside, wait.
 *
 * Forward and backward are collective over the mesh; a failure of one rank reaches the others. The mesh is borrowed.
 */
#ifndef WF_LAYERS_SPATIAL_H
#define WF_LAYERS_SPATIAL_H

#include "comm/mesh.h"
#include "layers/conv.h"
#include "layers/pool.h"
#include "layers/upsample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The input's gradient is recomputed from halos of the output's gradient, or added back from this rank's outputs,
 * whichever moves fewer bytes; always recomputed where WEFT_DETERMINISTIC is set. */
wf_layer *wf_spatial_conv1d(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_spatial_conv2d(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_spatial_conv3d(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_spatial_conv_transpose1d(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_spatial_conv_transpose2d(const wf_mesh *mesh, wf_conv_opts opts);
wf_layer *wf_spatial_conv_transpose3d(const wf_mesh *mesh, wf_conv_opts opts);

wf_layer *wf_spatial_max_pool1d(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_max_pool2d(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_max_pool3d(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_avg_pool1d(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_avg_pool2d(const wf_mesh *mesh, wf_pool_opts opts);
wf_layer *wf_spatial_avg_pool3d(const wf_mesh *mesh, wf_pool_opts opts);
/* The output is replicated over the axes that cut the image. An average is a sum over the ranks of their parts of it;
 * for a maximum every rank gathers the whole input, which is meant to be small by then. */
wf_layer *wf_spatial_global_max_pool(const wf_mesh *mesh);
wf_layer *wf_spatial_global_avg_pool(const wf_mesh *mesh);

wf_layer *wf_spatial_upsample1d(const wf_mesh *mesh, wf_upsample_opts opts);
wf_layer *wf_spatial_upsample2d(const wf_mesh *mesh, wf_upsample_opts opts);
wf_layer *wf_spatial_upsample3d(const wf_mesh *mesh, wf_upsample_opts opts);

typedef struct wf_spatial_chain_opts {
    int depth; /* layers for each exchange; default: the cheapest cut of the chain by the costs below */
    /* Seconds of an exchange, of a byte that a rank sends, and of a multiplication with addition. Default of each: it
     * is measured at the first input, the slowest rank's for all, once for a chain; where WEFT_DETERMINISTIC is set
     * 1e-5, 3e-10 and 1.5e-11, which were measured between two cores of one node, so that the choice is that of every
     * run. */
    double message_seconds, byte_seconds, work_seconds;
} wf_spatial_chain_opts;

/* Spatial convolutions and transposed convolutions in turn, named "0", "1", ... as in wf_sequential, with deep halos:
 * the input of several layers is exchanged once, wide enough for all of them, and the rims of what lies between are
 * computed by each rank that needs them. Results are those of the same layers one by one, in fewer messages. Owns the
 * layers, also when it fails. */
wf_layer *wf_spatial_chain(const wf_mesh *mesh, wf_spatial_chain_opts opts, int count, wf_layer *const *layers);

#ifdef __cplusplus
}
#endif
#endif
