/* Parts of calls that have been entered: steps of set-up, the end of a message, and the memory that the ranks of a node
 * share for sums, which is opened at their first one. */
#include "comm/collective/collective_impl.h"

#include "core/log.h"

#include <string.h>

bool wf_call_moves(const wf_comm *comm, const wf_call *call)
{
    if (call->device && strcmp(comm->name, "dummy") == 0)
        return false;
    if (call->operation == WF_CALL_SUM && call->parts == 0)
        return false;
    return comm->size > 1 || wf_call_stays(wf_engine_agreed(comm), call);
}

wf_status wf_coll_share(wf_comm *comm)
{
    char why[WF_FAILURE_TEXT] = "";
    if (comm->size == 1 || !comm->reducer->shares || comm->engine->share_asked)
        return WF_OK;
    const wf_traffic before = comm->traffic;
    /* Records of later calls lie in this memory; that of this call is known to be the same on all ranks before. */
    WF_TRY(wf_coll_barrier(comm));
    WF_TRY(wf_guard_settle(comm));
    WF_TRY(wf_engine_share(comm, why));
    comm->traffic = before; /* setting up is no traffic of the program */
    if (!wf_engine_agreed(comm)->shared && comm->rank == 0)
        wf_log_write(WF_LOG_WARN, "no memory is shared, sums go by messages: %.300s", why);
    return WF_OK;
}

wf_status wf_coll_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    const wf_call call = {.operation = WF_CALL_ALLGATHER, .dtype = WF_U8, .count = (int64_t)bytes};
    return wf_engine_run(comm, &call, mine, all);
}

wf_status wf_coll_receive(wf_comm *comm, void *data, size_t bytes, int from)
{
    const wf_call call = {.operation = WF_CALL_RECEIVE, .dtype = WF_U8, .count = (int64_t)bytes, .root = from};
    return wf_engine_run(comm, &call, NULL, data);
}

wf_status wf_coll_barrier(wf_comm *comm)
{
    const wf_call call = {.operation = WF_CALL_BARRIER};
    return wf_engine_run(comm, &call, NULL, NULL);
}
