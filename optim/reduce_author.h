/* Another way than a sum to bring gradients together: compression, gossip, a sum in another place.
 *
 * wf_multi_node_opts.reduce is called for every bucket of every step in place of the sum, once its last gradient is
 * complete, while backward goes on: as a task of the queue (comm/queue_author.h), so it communicates by the functions
 * that are named beside and by nothing else. It leaves in the buffer what counts as the sum over the ranks of the
 * bucket's communicator, the same bits on all of them, or their parameters drift apart. The loss and the weights of the
 * average are summed apart from it, exactly. An error is one of the step, on all ranks.
 *
 * What comes in is the gradient of this rank's loss: of a local mean, times its samples, and the update divides by the
 * samples of all ranks. */
#ifndef WF_OPTIM_REDUCE_AUTHOR_H
#define WF_OPTIM_REDUCE_AUTHOR_H

#include "comm/queue_author.h"
#include "core/param_author.h"

typedef struct wf_grad_bucket {
    wf_comm *comm; /* of the ranks to sum over */
    wf_ctx *ctx;
    int64_t index;  /* of the bucket, in the order in which they start, the same on all ranks */
    int64_t plan;   /* another one when gradients are laid out anew (what is trainable changed): then what was kept for
                       the buckets is of no use */
    void *flat;     /* in device memory, in place */
    wf_dtype dtype; /* WF_F32 or WF_F64 */
    int64_t count;  /* elements, with zeros between segments, each of which begins at a line of 64 bytes */
    int64_t segments;
    const int64_t *offset;  /* segments + 1 entries: segment i begins at element offset[i] */
    wf_param *const *param; /* of each segment: shape, and order in memory */
} wf_grad_bucket;

#endif
