#include "comm/reduce/reduce_impl.h"

/* One all-reduce of everything. */
static wf_status reduce(wf_comm *comm, const wf_reduce_job *job)
{
    if (job->segments == 0)
        return WF_OK;
    char *first = (char *)job->flat + (size_t)job->offset[0] * wf_dtype_size(job->dtype);
    return wf_allreduce_raw(comm, first, first, job->offset[job->segments] - job->offset[0], job->dtype, WF_SUM);
}

const wf_reducer wf_reducer_flat = {.name = "flat", .reduce = reduce};
