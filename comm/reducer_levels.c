#include "comm/comm_impl.h"

/* The reducers that know of nodes: they differ in how many ranks of a node speak with the other nodes. */
static wf_status reduce(wf_comm *comm, const wf_reduce_job *job, wf_levels_form form)
{
    if (job->segments == 0)
        return wf_comm_alive(comm);
    char *first = (char *)job->flat + (size_t)job->offset[0] * wf_dtype_size(job->dtype);
    return wf_levels_sum(comm, form, first, job->offset[job->segments] - job->offset[0], job->dtype);
}

static wf_status in_one_node(wf_comm *comm, const wf_reduce_job *job)
{
    return reduce(comm, job, WF_LEVELS_NODE);
}

static wf_status by_leaders(wf_comm *comm, const wf_reduce_job *job)
{
    return reduce(comm, job, WF_LEVELS_LEADERS);
}

static wf_status by_shards(wf_comm *comm, const wf_reduce_job *job)
{
    return reduce(comm, job, WF_LEVELS_SHARDS);
}

const wf_reducer wf_reducer_single_node = {.name = "single_node", .reduce = in_one_node};
const wf_reducer wf_reducer_hierarchical = {.name = "hierarchical", .reduce = by_leaders};
const wf_reducer wf_reducer_two_dimensional = {.name = "two_dimensional", .reduce = by_shards};
const wf_reducer wf_reducer_non_cuda_aware = {.name = "non_cuda_aware", .reduce = by_leaders};
