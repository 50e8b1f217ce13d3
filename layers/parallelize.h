/* Swaps of a whole model: its layers become parallel ones in place.
 *
 * The layers are the same objects afterwards: pointers to them, names, values, running statistics and the random
 * numbers that they draw stay. Pointers to parameters stay valid under wf_to_sync_batchnorm only, so wf_parallelize
 * comes before the optimizer is made.
 */
#ifndef WF_LAYERS_PARALLELIZE_H
#define WF_LAYERS_PARALLELIZE_H

#include "comm/mesh.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every wf_batchnorm of the model, also the model itself, becomes a wf_sync_batchnorm over `comm`; those that are one
 * already stay. `comm` is borrowed and must outlive the model. WF_ERR_ARGUMENT if the model belongs to another context.
 * Local. */
wf_status wf_to_sync_batchnorm(wf_layer *model, wf_comm *comm) WF_NODISCARD;

/* How wf_parallelize splits the work beyond samples: any sum of these. */
typedef enum wf_parallel {
    WF_PARALLEL_DATA = 0,    /* samples alone: nothing is swapped */
    WF_PARALLEL_CHANNEL = 1, /* convolutions and linear layers by channels: layers/channel.h */
    WF_PARALLEL_SPATIAL = 2, /* convolutions, pooling, upsampling by pixels: layers/spatial.h */
    WF_PARALLEL_SYNC_BN =
        4, /* normalisation with the statistics of all samples, not of those along one place of data */
} wf_parallel;

/* The model's layers become those of layers/channel.h or layers/spatial.h, or, split by channels and pixels at once, of
 * layers/mesh_conv.h beside the others, with the options that they were made with.
 * What comes in is redistributed where a layer needs it: images that are whole are cut before the first spatial layer,
 * what is cut is gathered before wf_lambda(ctx, wf_flatten) and before wf_linear (by channels: its pixels).
 * Normalisation shares the statistics of the pixels that it is sharded along, always. The output of a channel-parallel
 * layer stays sharded unless its options say `replicate`. A module's own functions must take what is cut, or gather it
 * (wf_unshard).
 *
 * WF_ERR_ARGUMENT: another context, or a layer has fewer channels than ranks. After an error the model may be swapped
 * in part and is to be freed. Train with wf_mesh_multi_node. The mesh is borrowed and must outlive the model. Local,
 * but every rank of the mesh swaps and applies the same model. */
wf_status wf_parallelize(wf_layer *model, const wf_mesh *mesh, unsigned how) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
