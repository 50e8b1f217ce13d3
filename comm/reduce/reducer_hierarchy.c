#include "comm/reduce/reduce_impl.h"

/* The reducers that know of nodes: they differ in how many ranks of a node speak with the other nodes, which was
 * settled when they connected. */
static wf_status reduce(wf_comm *comm, const wf_reduce_job *job)
{
    if (job->segments == 0)
        return wf_comm_alive(comm);
    char *first = (char *)job->flat + (size_t)job->offset[0] * wf_dtype_size(job->dtype);
    return wf_hierarchy_sum(comm, first, job->offset[job->segments] - job->offset[0], job->dtype);
}

const wf_reducer wf_reducer_single_node = {.name = "single_node", .reduce = reduce};
const wf_reducer wf_reducer_hierarchical = {.name = "hierarchical", .reduce = reduce};
const wf_reducer wf_reducer_two_dimensional = {.name = "two_dimensional", .reduce = reduce};
const wf_reducer wf_reducer_non_cuda_aware = {.name = "non_cuda_aware", .reduce = reduce};
