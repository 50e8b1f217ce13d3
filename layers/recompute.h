/* Recomputation: less memory for more time. Forward of a segment of the model keeps its output alone; backward computes
 * the segment again when it needs what is inside. Local, unless layers inside communicate.
 *
 * Gradients, parameters and running statistics are, bit for bit, those of the model that keeps everything: random
 * numbers (dropout, noise) are drawn again, running statistics are updated once, and gradients are complete, and sent,
 * in the same order. Layers keep their paths, so files and checkpoints of a model with and without recomputation are
 * the same.
 *
 *     wf_layer *model = wf_recompute_model(resnet(ctx, (resnet_opts){.depth = RESNET_50}));
 *
 * A chain of L layers whose outputs take A bytes each holds about L A at the end of forward; cut into S segments, S A,
 * and L A / S more while a segment runs backward. It costs one more forward, a third of a step. Without effect in
 * WF_EVAL.
 *
 * - Only its output leaves a segment. The value of another variable that a module's function stored is gone when the
 *   segment ends (WF_ERR_STATE); variables from outside may be used inside, and get their gradients.
 * - A module's function is called twice for each application, and must compute the same: a parameter or an input that
 *   changed before backward is WF_ERR_STATE, as is another number of draws or another shape.
 * - What communicates inside does so once more in backward. All ranks of it mark the same segments; wf_multi_node and
 *   wf_mesh_multi_node compare. Point-to-point messages (wf_send_var, wf_recv_var) and wf_leaf inside are
 *   WF_ERR_UNSUPPORTED.
 * - A segment inside of a segment saves more and is computed three times.
 * - Steps with segments can be captured (core/captured.h).
 *
 * These functions only mark layers (layers/sequential.c); wf_apply and chains make the segments,
 * core/autograd/segment.c keeps and repeats them.
 */
#ifndef WF_LAYERS_RECOMPUTE_H
#define WF_LAYERS_RECOMPUTE_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the layer, with all that is in it, a segment, from its next application on. Returns it; NULL, with the error,
 * for one that could not be made. Not for a layer that its chain applies in its own way (those of wf_spatial_chain):
 * recompute the chain. */
wf_layer *wf_recompute(wf_layer *segment);

/* Cuts a wf_sequential into so many segments of about equally many layers; 0: the root of their number. The last one is
 * kept, since backward would recompute it at once; so one segment is no recomputation. Returns the chain. NULL on
 * failure: WF_ERR_ARGUMENT if it is no wf_sequential, or for a negative number (the layer is then freed, unless it is
 * part of another). */
wf_layer *wf_recompute_chain(wf_layer *chain, int segments);

/* A whole model: every innermost module or chain becomes a segment, one that has no modules or chains inside, as a
 * block of a residual network. A model that is one flat chain is cut by wf_recompute_chain. Before or after
 * wf_parallelize and wf_to_sync_batchnorm. Returns the model; NULL as wf_recompute. */
wf_layer *wf_recompute_model(wf_layer *model);

#ifdef __cplusplus
}
#endif

#endif
