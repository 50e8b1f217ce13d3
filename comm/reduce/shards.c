#include "comm/reduce/reduce_impl.h"

/* Vectors of which every rank keeps a part: sums that stay with their rank, and parts brought together. */

typedef wf_status (*shards_move)(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype);

static wf_status sum_host(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    wf_shm *shm = wf_hierarchy_memory(comm);
    if (!shm)
        return wf_coll_sum_shards(comm, data, shard, dtype);
    for (int r = 0; r < comm->size; r++) {
        char *part = (char *)data + (size_t)shard[r] * wf_dtype_size(dtype);
        WF_TRY(wf_shm_reduce(comm, shm, part, part, shard[r + 1] - shard[r], dtype, WF_SUM, r));
    }
    return WF_OK;
}

static wf_status gather_host(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    wf_shm *shm = wf_hierarchy_memory(comm);
    const size_t size = wf_dtype_size(dtype);
    if (!shm)
        return wf_coll_gather_shards(comm, data, shard, dtype);
    for (int r = 0; r < comm->size; r++)
        WF_TRY(wf_shm_bcast(comm, shm, (char *)data + (size_t)shard[r] * size, (size_t)(shard[r + 1] - shard[r]) * size,
                            r));
    return WF_OK;
}

/* Device memory goes through host memory. */
static wf_status staged(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype, shards_move move)
{
    wf_ctx *ctx = comm->shared->ctx;
    const size_t bytes = (size_t)shard[comm->size] * wf_dtype_size(dtype);
    void *host;
    wf_status status;
    if (ctx->k->host || bytes == 0)
        return move(comm, data, shard, dtype);
    WF_TRY(wf_host_take(comm, bytes, &host));
    comm->traffic.bytes_copied += 2 * bytes;
    WF_TRY_OUT(wf_ctx_read(ctx, host, data, bytes));
    WF_TRY_OUT(move(comm, host, shard, dtype));
    WF_TRY_OUT(ctx->k->to_device(ctx, data, host, bytes));
out:
    wf_host_give(comm, host, bytes);
    return status;
}

/* By NCCL, or by memory and messages of the host. */
static wf_status run(wf_comm *comm, const char *operation, void *data, const int64_t *shard, wf_dtype dtype,
                     shards_move native, shards_move host)
{
    const wf_call_record record = wf_call_record_values(operation, dtype, shard[comm->size], (int)WF_SUM, -1);
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(comm->nccl ? native(comm, data, shard, dtype) : staged(comm, data, shard, dtype, host));
    return wf_guard_settle(comm);
}

/* The dummy's ranks keep what they have. */
static bool moves(const wf_comm *comm)
{
    return comm->size > 1 && comm->reducer != &wf_reducer_dummy;
}

wf_status wf_shards_sum(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    if (!moves(comm))
        return wf_comm_alive(comm);
    return wf_guard_end(comm, "sum of shards",
                        run(comm, "sum of shards", data, shard, dtype, wf_native_sum_shards, sum_host));
}

wf_status wf_shards_gather(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    if (!moves(comm))
        return wf_comm_alive(comm);
    return wf_guard_end(comm, "gather of shards",
                        run(comm, "gather of shards", data, shard, dtype, wf_native_gather_shards, gather_host));
}
