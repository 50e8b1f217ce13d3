/* Hooks that replace the sum of gradients over the ranks: compression, gossip, a sum elsewhere.
 *
 * wf_multi_node_opts.reduce is called for every bucket of every step in place of the sum, once the bucket's last
 * gradient is complete, while backward goes on. It adds to the background stream of the bucket's communicator
 * (comm/background_author.h) what is to be done, functions and sums in their order, and returns without waiting. When
 * all of it is over, the buffer must hold what counts as the sum over the ranks; the bits must be equal on all ranks,
 * or their parameters diverge. On a mesh a bucket holds parameters of one sharding: ranks along the axes that do not
 * shard them have equal buckets, and must come to equal sums, as a function of the gradients does. The library sums the
 * loss and the weights of the average separately and exactly. An error of the hook, or of a function that it added, is
 * an error of the step on all ranks.
 *
 * On entry the buffer holds the gradient of this rank's loss; the gradient of a local mean is multiplied by the
 * number of its samples, and the update divides by the samples of all ranks. */
#ifndef WF_OPTIM_REDUCE_AUTHOR_H
#define WF_OPTIM_REDUCE_AUTHOR_H

#include "comm/background_author.h"
#include "core/param_author.h"

/* Stays as it is until the sums of the step are over. */
typedef struct wf_grad_bucket {
    wf_comm *comm; /* of the ranks to sum over */
    wf_ctx *ctx;
    int64_t index;  /* of the bucket, in the order in which buckets start; the same on all ranks */
    int64_t plan;   /* changes when gradients are laid out anew, because what is trainable changed; state that the hook
                       kept for the buckets is then invalid */
    void *flat;     /* in device memory, in place */
    wf_dtype dtype; /* WF_F32 or WF_F64 */
    int64_t count;  /* elements, with zeros between segments, each of which begins at a line of 64 bytes */
    int64_t segments;
    const int64_t *offset;  /* segments + 1 entries: segment i begins at element offset[i] */
    wf_param *const *param; /* of each segment: shape, and order in memory */
} wf_grad_bucket;

#endif
