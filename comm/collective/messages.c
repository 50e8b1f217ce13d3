/* Collectives on buffers, and the end of a message, from messages: each is one call of the engine. */
#include "comm/collective/collective_impl.h"

wf_status wf_coll_bcast(wf_comm *comm, void *data, size_t bytes, int root)
{
    const wf_call call = {.operation = WF_CALL_BCAST, .dtype = WF_U8, .count = (int64_t)bytes, .root = root};
    return wf_engine_run(comm, &call, NULL, data);
}

wf_status wf_coll_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root)
{
    const wf_call call = {.operation = root < 0 ? WF_CALL_ALLREDUCE : WF_CALL_REDUCE,
                          .dtype = dtype,
                          .op = op,
                          .count = count,
                          .root = root < 0 ? 0 : root};
    return wf_engine_run(comm, &call, x, y);
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
