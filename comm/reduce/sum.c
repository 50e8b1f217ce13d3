/* Sums of gradients, as the communicator's name says: one call of the engine, or of the native transport. And vectors
 * of which every rank keeps a part: sums that stay with their rank, and parts brought together. */
#include "comm/reduce/reduce_impl.h"

#include <stdatomic.h>
#include <string.h>

/* The dummy's ranks keep what they have. */
static bool moves(const wf_comm *comm)
{
    return comm->size > 1 && strcmp(comm->name, "dummy") != 0;
}

/* --- what a reducer needs ----------------------------------------------------------------------------------------- */

static wf_status share(wf_comm *comm)
{
    const wf_call_record record = wf_call_record_plain("set-up", -1);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_share(comm));
    return wf_guard_settle(comm);
}

wf_status wf_reducer_connect(wf_comm *comm)
{
    WF_NEED(comm);
    if (!comm->reducer->build)
        return comm->native ? WF_OK : wf_comm_connect_native(comm);
    if (comm->size == 1 || !comm->reducer->shares || comm->shares_asked)
        return WF_OK;
    return wf_guard_end(comm, "set-up", share(comm));
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

uint64_t wf_reduce_buffer_new(void)
{
    static atomic_uint_least64_t made;
    return atomic_fetch_add(&made, 1) + 1;
}

wf_call wf_reducer_call(const wf_reducer *reducer, const wf_reduce_job *job)
{
    return (wf_call){.operation = WF_CALL_SUM,
                     .reducer = reducer->name,
                     .dtype = job->dtype,
                     .count = job->segments > 0 ? job->offset[job->segments] : 0,
                     .part = job->offset,
                     .parts = (int)job->segments,
                     .exact = (int)job->exact,
                     .buffer = reducer->keeps ? job->buffer : 0};
}

wf_call_record wf_reducer_record(const char *name, const wf_call *call)
{
    const int64_t first = call->operation == WF_CALL_SUM && call->parts > 0 ? call->part[0] : 0;
    const int op = call->operation == WF_CALL_ALLGATHER ? -1 : (int)WF_SUM;
    return wf_call_record_values(name, call->dtype, call->count - first, op, -1);
}

static wf_status run_sum(wf_comm *comm, const wf_reducer *reducer, const wf_reduce_job *job)
{
    const wf_call call = wf_reducer_call(reducer, job);
    const wf_call_record record = wf_reducer_record(reducer->name, &call);
    WF_CHECK(record.dim[0] == 0 || job->flat, WF_ERR_ARGUMENT, "the buffer is NULL, and count is %lld",
             (long long)record.dim[0]);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_engine_run(comm, &call, NULL, job->flat));
    return wf_guard_settle(comm);
}

wf_status wf_reducer_sum_by(wf_comm *comm, const wf_reducer *reducer, const wf_reduce_job *job)
{
    if (!moves(comm) || job->segments == 0)
        return wf_comm_alive(comm);
    return wf_guard_end(comm, reducer->name, run_sum(comm, reducer, job));
}

/* Sent in the type of the buffer, also 16 bits, which is what wf_multi_node_opts.grad_dtype asks for. */
static wf_status sum_natively(wf_comm *comm, const wf_call *call, void *flat)
{
    void *first = (char *)flat + (size_t)call->part[0] * wf_dtype_size(call->dtype);
    return wf_native_sum(comm, first, call->count - call->part[0], call->dtype);
}

static wf_status run_natively(wf_comm *comm, const char *name, const wf_call *call, void *data)
{
    const wf_call_record record = wf_reducer_record(name, call);
    WF_TRY(wf_guard_enter(comm, &record));
    if (call->operation == WF_CALL_SUM_SHARDS)
        WF_TRY(wf_native_reduce_shards(comm, data, call->part, call->dtype, WF_SUM));
    else if (call->operation == WF_CALL_GATHER_SHARDS)
        WF_TRY(wf_native_gather_shards(comm, data, call->part, call->dtype));
    else if (call->parts > 0)
        WF_TRY(sum_natively(comm, call, data));
    return wf_guard_settle(comm);
}

wf_status wf_reducer_run_natively(wf_comm *comm, const char *name, const wf_call *call, void *data)
{
    return wf_guard_end(comm, name, run_natively(comm, name, call, data));
}

wf_status wf_reducer_sum(wf_comm *comm, const wf_reduce_job *job)
{
    WF_NEED(comm);
    if (!comm->reducer->build) {
        const wf_call call = wf_reducer_call(comm->reducer, job);
        /* One rank has its sum already. */
        return comm->native ? wf_reducer_run_natively(comm, comm->name, &call, job->flat) : wf_comm_alive(comm);
    }
    WF_TRY(wf_reducer_connect(comm));
    return wf_reducer_sum_by(comm, comm->reducer, job);
}
