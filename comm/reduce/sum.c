/* Sums of gradients, as the communicator's name says, and what their reducers need to be connected. */
#include "comm/reduce/reduce_impl.h"

#include <stdatomic.h>

/* --- what a reducer needs ----------------------------------------------------------------------------------------- */

static wf_status share_memory(wf_comm *comm)
{
    const wf_call call = {.operation = WF_CALL_BARRIER, .name = "set-up"};
    WF_TRY(wf_guard_enter(comm, &call));
    WF_TRY(wf_coll_share(comm));
    return wf_guard_settle(comm);
}

wf_status wf_reducer_connect(wf_comm *comm)
{
    WF_NEED(comm);
    if (!comm->reducer->build)
        return wf_comm_connect_native(comm);
    if (comm->size == 1 || !comm->reducer->shares || comm->engine->share_asked)
        return WF_OK;
    return wf_guard_end(comm, "set-up", share_memory(comm));
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

uint64_t wf_reduce_buffer_new(void)
{
    static atomic_uint_least64_t made;
    return atomic_fetch_add(&made, 1) + 1;
}

wf_call wf_reducer_call(const wf_reducer *reducer, const wf_call *sum)
{
    wf_call call = *sum;
    call.operation = WF_CALL_SUM;
    call.name = call.reducer = reducer->name;
    call.count = sum->parts > 0 ? sum->part[sum->parts] : 0;
    call.buffer = reducer->keeps ? sum->buffer : 0;
    call.device = true;
    return call;
}

static wf_status check_sum(const wf_call *sum)
{
    const int64_t count = sum->count - sum->part[0];
    WF_CHECK(count == 0 || sum->out, WF_ERR_ARGUMENT, "the buffer is NULL, and count is %lld", (long long)count);
    return WF_OK;
}

wf_status wf_reducer_sum_by(wf_comm *comm, const wf_reducer *reducer, const wf_call *sum)
{
    const wf_call call = wf_reducer_call(reducer, sum);
    return wf_call_moves(comm, &call) ? wf_comm_run(comm, check_sum(&call), &call) : wf_comm_alive(comm);
}

wf_status wf_reducer_sum(wf_comm *comm, const wf_call *sum)
{
    WF_NEED(comm);
    if (comm->reducer->build)
        WF_TRY(wf_reducer_connect(comm));
    return wf_reducer_sum_by(comm, comm->reducer, sum);
}
