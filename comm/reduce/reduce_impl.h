/* What sums gradients, by name, and the node hierarchy. For comm/reduce and the files of comm itself. */
#ifndef WF_COMM_REDUCE_IMPL_H
#define WF_COMM_REDUCE_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/reducer_author.h"

/* --- hierarchy.c --- */

typedef enum wf_hierarchy_form {
    WF_HIERARCHY_NODE = 0, /* one node */
    WF_HIERARCHY_LEADERS,  /* one rank of each node speaks for it */
    WF_HIERARCHY_SHARDS    /* as many as the smallest node has ranks */
} wf_hierarchy_form;
typedef struct wf_hierarchy wf_hierarchy;
/* Connects the ranks of each node, and the nodes. Where a node has no memory to share, says so in one line and leaves
 * all-reduces to messages. Collective. */
wf_status wf_hierarchy_open(wf_comm *comm, wf_hierarchy_form form) WF_NODISCARD;
void wf_hierarchy_close(wf_comm *comm);
/* Whether memory is shared. */
bool wf_hierarchy_shared(const wf_comm *comm);
/* Sums in place, in device memory. Collective. */
wf_status wf_hierarchy_sum(wf_comm *comm, void *data, int64_t count, wf_dtype dtype) WF_NODISCARD;

/* --- shards.c --- */

/* As the two of messages.c, in device memory: by NCCL, else by shared memory where all ranks share some. Collective. */
wf_status wf_shards_sum(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_shards_gather(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;

/* --- reducers --- */

extern const wf_reducer wf_reducer_naive;
extern const wf_reducer wf_reducer_flat;
extern const wf_reducer wf_reducer_dummy;
extern const wf_reducer wf_reducer_single_node;
extern const wf_reducer wf_reducer_hierarchical;
extern const wf_reducer wf_reducer_two_dimensional;
extern const wf_reducer wf_reducer_non_cuda_aware;
extern const wf_reducer wf_reducer_pure_nccl;

#endif
