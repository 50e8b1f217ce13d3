/* Data parallelism: one step over all ranks of a communicator. */
#ifndef WF_OPTIM_MULTI_NODE_H
#define WF_OPTIM_MULTI_NODE_H

#include "comm/mesh.h"
#include "core/site.h"
#include "optim/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A hook that replaces the sum of a bucket's gradients over the ranks: optim/reduce_author.h. */
struct wf_grad_bucket;
typedef wf_status (*wf_bucket_reduce)(void *user, const struct wf_grad_bucket *bucket);

/* How gradients are summed. All ranks must give the same options. */
typedef struct wf_multi_node_opts {
    /* Gradients are summed in buckets, each of which starts when its last gradient is complete and goes on while
     * backward does. A bucket is full with this many bytes; default 1 MiB. A gradient is in one bucket. */
    int64_t bucket_bytes;
    int64_t first_bucket_bytes; /* of the first bucket, so that the first sum begins early; default 256 KiB */
    /* The type in which gradients are sent: WF_F32 (default) is their own type, WF_BF16 and WF_F16 take half the
     * bytes. 16-bit gradients are rounded before they are sent, summed in f32, and rounded once more for each level
     * of the sum; the loss and the weights of the average keep their type. f16 ends at 65504, and what is sent is
     * the gradient times the samples of the rank's mean: where it overflows, or a gradient is not finite, the step
     * is WF_ERR_NUMERIC on all ranks, before any update; with a scaled loss (wf_optim_scale_loss) the update is
     * skipped instead. */
    wf_dtype grad_dtype;
    bool no_overlap; /* sums begin after backward: the same result, for comparison */
    /* Every rank keeps the optimizer's state of its part of each bucket (ZeRO stage 1), so that the bytes of state
     * (wf_optim_state_bytes) fall by the number of ranks over which a gradient is summed, whatever that and the
     * number of parameters are; parts are whole lines of 64 bytes, so up to one line a bucket more. Each sum is sent
     * only to the rank that needs it, and the updated parameters are sent to all: as many bytes as without this
     * option. From the first step on the parameters lie in one flat buffer, so nothing is copied. Bits are those of
     * the unsharded optimizer where ranks are on one node, or under naive and flat, but for clipping by norm, which
     * adds squares in another order. wf_param_grad shows sums of the own part alone. State that is loaded stays
     * whole until the first step after. */
    bool shard_optimizer;
    /* A step updates with the mean gradient of the step before, while its own gradient is summed during the next
     * forward and backward. There are two flat buffers. The first step updates nothing, and its wf_item(loss) stays
     * this rank's; after the others it is that of the step before; wf_optim_flush makes the last update. Not with
     * shard_optimizer or a grad_dtype of WF_F16. */
    bool double_buffering;
    /* The ranks that hold the same part of a parameter compare its bits after the first step and then after every so
     * many (default 100; negative: never; not in captured steps): they are equal unless a program changes a parameter
     * on one rank alone, or ranks that compute the same have other hardware or numbers of threads. Where they are not,
     * wf_optim_step is WF_ERR_COMM on all ranks and names rank, parameter and element. Reads every parameter once. */
    int64_t compare_every;
    wf_bucket_reduce
        reduce;        /* in place of the sum; not with `grad_dtype` or shard_optimizer. Default: the communicator's */
    void *reduce_user; /* given to it */
} wf_multi_node_opts;

/* Makes a local optimizer a multi-node one and returns it, so that calls nest; frees it on failure. Checks that all
 * ranks have the same model and optimizer (WF_ERR_COMM names the first difference) and broadcasts model and optimizer
 * from rank 0 once. Then each wf_optim_step sums gradients over the ranks, in place in one flat buffer. Collective.
 *
 * Semantics are those of the serial program on the global batch, except that wf_batchnorm takes the statistics of each
 * rank's samples, until wf_to_sync_batchnorm makes it take those of all. A loss on batches that are sharded over the
 * communicator's mesh (scattered data sets) is a part of a global mean: gradients are summed. A loss without a layout
 * is a mean over n_r local samples: gradients are averaged with weights n_r, which are summed in the same buffer; the
 * update divides by the sum of all n_r, and wf_param_grad shows the gradient before this division. wf_no_loss counts
 * n_r = 0. A scalar that is no mean has no weight: WF_ERR_STATE on more than one rank. Ranks whose losses differ in
 * kind are WF_ERR_COMM on all ranks, before any update.
 *
 * What is drawn does not depend on the rank: seed and models without a name are rank 0's from here on, and in every
 * step those ranks whose losses belong together (means over a sharded batch; on a mesh that splits more than data, also
 * means without a layout) compare the iterations of their tapes, what they drew, and the samples of the whole batch.
 * Where these differ the step is WF_ERR_COMM on all ranks, before any update, and names rank and layer.
 *
 * The model may change between two steps (wf_module_add, wf_parallelize, wf_param_set_trainable), on all ranks alike:
 * the next step says so in its sums. Parameters that are equal on all ranks (for example of a layer not used yet) are
 * kept, as in the serial program. If they differ, every rank has those of rank 0 after that step, which updates
 * nothing. If only some ranks change their model, or ranks change it in different ways, that step is WF_ERR_COMM on all
 * ranks and names the first difference.
 *
 * The loss is summed in the same buffer, so after the step wf_item(loss) is the global loss on every rank. If a step
 * fails on one rank, the others return the same error, from this step or from their next call; of a rank that dies,
 * docs/running.md says what the others get. On a GPU, where the update is queued before the host knows the sums, a rank
 * that still waits for a step when another fails in the next one may return that error from a step that its GPU has
 * made, which is not counted. The communicator must outlive the optimizer's last step.
 * WF_ERR_ARGUMENT if an option is out of its range; WF_ERR_COMM if the ranks have different ones. */
WF_PLACED wf_optim *wf_multi_node(wf_comm *comm, wf_optim *optim, wf_multi_node_opts opts);

/* Like wf_multi_node, for all ranks of a mesh and models with parallel layers. Each gradient is summed over those mesh
 * axes over which its layer leaves a sum to be made (data, and the spatial ones for spatial layers), so a parameter of
 * which every rank of the channel axis has a part is reduced only among the ranks that hold the same part; the model is
 * broadcast in the same groups. Clipping by norm counts every part once, those of all stages too, and a step that
 * overflows on one stage (wf_optim_scale_loss) is left out on all. The loss may be a part of a sum over any axis, and
 * must be a part of a sum over data where the mesh splits data. A mean without a layout is a local mean over samples;
 * the ranks along the other axes must hold equal values of it. Ranks along `stage` have models of their own. Collective
 * over the mesh, which is borrowed and must outlive the optimizer's last step. */
WF_PLACED wf_optim *wf_mesh_multi_node(const wf_mesh *mesh, wf_optim *optim, wf_multi_node_opts opts);

#ifdef __cplusplus
}
#endif

#endif
