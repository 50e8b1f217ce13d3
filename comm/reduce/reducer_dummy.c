#include "comm/reduce/reduce_impl.h"

/* Sends nothing, so that what is left of a step's time is not communication. Every rank keeps its own sums. */
static wf_status reduce(wf_comm *comm, const wf_reduce_job *job)
{
    return wf_comm_alive(comm);
}

const wf_reducer wf_reducer_dummy = {.name = "dummy", .reduce = reduce};
