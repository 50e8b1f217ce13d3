/* Sums of gradients, as the communicator's name says: one call of the engine, or of the native transport. And vectors
 * of which every rank keeps a part: sums that stay with their rank, and parts brought together. */
#include "comm/reduce/reduce_impl.h"

#include "core/log.h"

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
    char why[WF_FAILURE_TEXT];
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_barrier(comm)); /* MPI waits for all without end */
    WF_TRY(wf_engine_share(comm, why));
    comm->shares_asked = true;
    if (!wf_engine_shares(comm) && comm->rank == 0)
        wf_log(WF_LOG_WARN, "no memory is shared, gradients go by messages: %.300s", why);
    return WF_OK;
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

static wf_status run_sum(wf_comm *comm, const wf_reducer *reducer, const wf_reduce_job *job)
{
    const wf_call call = wf_reducer_call(reducer, job);
    const int64_t count = call.count - job->offset[0];
    const wf_call_record record = wf_call_record_values(reducer->name, job->dtype, count, (int)WF_SUM, -1);
    WF_CHECK(count == 0 || job->flat, WF_ERR_ARGUMENT, "the buffer is NULL, and count is %lld", (long long)count);
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

static wf_status sum_natively(wf_comm *comm, const wf_reduce_job *job)
{
    const int64_t count = job->segments > 0 ? job->offset[job->segments] - job->offset[0] : 0;
    const wf_call_record record = wf_call_record_values(comm->name, job->dtype, count, (int)WF_SUM, -1);
    WF_TRY(wf_guard_enter(comm, &record));
    if (count > 0) {
        char *first = (char *)job->flat + (size_t)job->offset[0] * wf_dtype_size(job->dtype);
        const bool narrow = comm->grad_dtype_set && comm->grad_dtype != job->dtype;
        const int64_t rounded = narrow ? job->offset[job->segments - job->exact] - job->offset[0] : 0;
        char *rest = first + (size_t)rounded * wf_dtype_size(job->dtype);
        /* In grad_dtype: half the bytes, and sums that are rounded at every step. */
        if (rounded > 0)
            WF_TRY(wf_native_reduce_as(comm, first, first, rounded, job->dtype, comm->grad_dtype, WF_SUM, -1));
        WF_TRY(wf_native_reduce_as(comm, rest, rest, count - rounded, job->dtype, job->dtype, WF_SUM, -1));
    }
    return wf_guard_settle(comm);
}

wf_status wf_reducer_sum(wf_comm *comm, const wf_reduce_job *job)
{
    WF_NEED(comm);
    /* One rank has its sum already. */
    if (!comm->reducer->build)
        return comm->native ? wf_guard_end(comm, comm->name, sum_natively(comm, job)) : wf_comm_alive(comm);
    WF_TRY(wf_reducer_connect(comm));
    return wf_reducer_sum_by(comm, comm->reducer, job);
}

/* --- shards, natively --------------------------------------------------------------------------------------------- */

static wf_status run(wf_comm *comm, const char *operation, void *data, const int64_t *shard, wf_dtype dtype,
                     wf_status (*native)(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype))
{
    const wf_call_record record = wf_call_record_values(operation, dtype, shard[comm->size], (int)WF_SUM, -1);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(native(comm, data, shard, dtype));
    return wf_guard_settle(comm);
}

wf_status wf_shards_sum(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    return wf_guard_end(comm, "sum of shards", run(comm, "sum of shards", data, shard, dtype, wf_native_sum_shards));
}

wf_status wf_shards_gather(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    return wf_guard_end(comm, "gather of shards",
                        run(comm, "gather of shards", data, shard, dtype, wf_native_gather_shards));
}
