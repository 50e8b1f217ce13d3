/* Makes the layers of a whole model parallel, in place.
 *
 * The layers stay the same objects: pointers to them, their names, values, running statistics and random numbers do not
 * change. Pointers to parameters stay valid under wf_to_sync_batchnorm only, so call wf_parallelize before the
 * optimizer is made.
 */
#ifndef WF_LAYERS_PARALLELIZE_H
#define WF_LAYERS_PARALLELIZE_H

#include "comm/mesh.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every wf_batchnorm of the model, also the model itself, becomes a wf_sync_batchnorm over `comm`; layers that are
 * one already stay. `comm` is borrowed and must outlive the model. WF_ERR_ARGUMENT if the model belongs to another
 * context. Local. */
wf_status wf_to_sync_batchnorm(wf_layer *model, wf_comm *comm) WF_NODISCARD;

/* How wf_parallelize splits the work beyond samples: any sum of these. */
typedef enum wf_parallel {
    WF_PARALLEL_DATA = 0,    /* samples alone: nothing is swapped */
    WF_PARALLEL_CHANNEL = 1, /* convolutions and linear layers by channels: layers/channel.h */
    WF_PARALLEL_SPATIAL = 2, /* convolutions, pooling, upsampling, resizing by pixels: layers/spatial.h; attention in
                                windows and neighbourhoods */
    WF_PARALLEL_SYNC_BN =
        4, /* normalisation with the statistics of all samples, not only of those with the same place along data */
} wf_parallel;

/* The model's layers become those of layers/channel.h or layers/spatial.h, or, split by channels and pixels at once, of
 * layers/mesh_conv.h, with the options of the serial layers. Inputs are redistributed where a layer needs another
 * layout: whole images are sharded before the first spatial layer, and sharded values are gathered before
 * wf_lambda(ctx, wf_flatten) and before wf_linear (with channel-parallel layers: only their pixels). Normalisation
 * always shares statistics over the axes along which its pixels are sharded; layer, RMS, group and instance
 * normalisation become those of layers/mesh_norm.h. The output of a channel-parallel layer
 * stays sharded unless its options say `replicate`. A module's own functions must take sharded values, or gather them
 * (wf_unshard).
 *
 * WF_ERR_ARGUMENT: another context, or a layer has fewer channels than ranks. After an error the model may be
 * changed in part; free it. Train with wf_mesh_multi_node. The mesh is borrowed and must outlive the model. Local,
 * but every rank of the mesh swaps and applies the same model. */
wf_status wf_parallelize(wf_layer *model, const wf_mesh *mesh, unsigned how) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
