#include "comm/reduce/reduce_impl.h"

/* One all-reduce per segment. */
static wf_status reduce(wf_comm *comm, const wf_reduce_job *job)
{
    const size_t size = wf_dtype_size(job->dtype);
    for (int64_t i = 0; i < job->segments; i++) {
        char *segment = (char *)job->flat + (size_t)job->offset[i] * size;
        WF_TRY(wf_allreduce_raw(comm, segment, segment, job->offset[i + 1] - job->offset[i], job->dtype, WF_SUM));
    }
    return WF_OK;
}

const wf_reducer wf_reducer_naive = {.name = "naive", .reduce = reduce};
