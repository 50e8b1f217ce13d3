#include "comm/reduce/reduce_impl.h"

#include "core/log.h"

#include <stdlib.h>

struct wf_hierarchy {
    wf_shm *shm;      /* NULL: everything goes by messages */
    wf_comm *between; /* this shard's rank of every node; NULL where there is one node or this rank has no shard */
    int shards;
};

bool wf_hierarchy_shared(const wf_comm *comm)
{
    return comm->hierarchy && comm->hierarchy->shm;
}

wf_shm *wf_hierarchy_memory(const wf_comm *comm)
{
    return comm->hierarchy && comm->inter_size == 1 ? comm->hierarchy->shm : NULL;
}

static wf_status connect_nodes(wf_comm *comm, wf_hierarchy *l, wf_hierarchy_form form)
{
    int64_t smallest = comm->intra_size;
    l->shards = 1;
    if (comm->inter_size == 1)
        return WF_OK;
    WF_TRY(wf_allreduce_i64(comm, &smallest, 1, WF_MIN));
    if (form == WF_HIERARCHY_SHARDS)
        l->shards = (int)smallest;
    const int shard = comm->intra_rank < l->shards ? comm->intra_rank : -1;
    l->between = wf_comm_split(comm, shard, comm->inter_rank);
    if (l->between)
        l->between->nested = true;
    return shard < 0 || l->between ? WF_OK : wf_error_code();
}

static wf_status open_hierarchy(wf_comm *comm, wf_hierarchy_form form)
{
    char why[WF_FAILURE_TEXT];
    WF_TRY(wf_comm_alive(comm));
    comm->hierarchy = wf_calloc(comm->shared->ctx, 1, sizeof *comm->hierarchy);
    WF_CHECK(comm->hierarchy, WF_ERR_MEMORY, "no memory for a communicator");
    WF_TRY(wf_barrier(comm)); /* MPI waits for all without end */
    WF_TRY(wf_shm_open(comm, &comm->hierarchy->shm, why));
    if (comm->hierarchy->shm)
        return connect_nodes(comm, comm->hierarchy, form);
    if (comm->rank == 0)
        wf_log(WF_LOG_WARN, "no memory is shared, gradients go by messages: %.300s", why);
    return WF_OK;
}

wf_status wf_hierarchy_open(wf_comm *comm, wf_hierarchy_form form)
{
    return wf_guard_end(comm, "set-up", open_hierarchy(comm, form));
}

void wf_hierarchy_close(wf_comm *comm)
{
    wf_hierarchy *l = comm->hierarchy;
    if (!l)
        return;
    comm->hierarchy = NULL;
    if (wf_comm_close(l->between) != WF_OK)
        wf_log(WF_LOG_ERROR, "%s", wf_error_message());
    wf_shm_close(l->shm);
    free(l);
}

static wf_status all_reduce(wf_comm *comm, void *data, int64_t count, wf_dtype dtype)
{
    const wf_call_record record = wf_call_record_values("reduce", dtype, count, (int)WF_SUM, -1);
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_reduce(comm, data, data, count, dtype, WF_SUM, -1));
    return wf_guard_settle(comm);
}

/* What it sends counts as sent by the communicator of all. */
static wf_status sum_between(wf_comm *comm, wf_comm *between, void *data, int64_t count, wf_dtype dtype)
{
    const wf_traffic before = between->traffic;
    const wf_status status = wf_guard_end(between, "reduce between nodes", all_reduce(between, data, count, dtype));
    comm->traffic.bytes_sent += between->traffic.bytes_sent - before.bytes_sent;
    comm->traffic.messages += between->traffic.messages - before.messages;
    comm->traffic.bytes_copied += between->traffic.bytes_copied - before.bytes_copied;
    return status;
}

/* Each shard is summed into one rank of the node, by that rank with its like in the other nodes, and goes back. */
static wf_status sum_shards(wf_comm *comm, char *data, int64_t count, wf_dtype dtype)
{
    const wf_hierarchy *l = comm->hierarchy;
    const size_t size = wf_dtype_size(dtype);
    int64_t lo, hi;
    for (int s = 0; s < l->shards; s++) {
        wf_block(count, l->shards, s, &lo, &hi);
        char *shard = data + (size_t)lo * size;
        WF_TRY(wf_shm_reduce(comm, l->shm, shard, shard, hi - lo, dtype, WF_SUM, s));
    }
    if (l->between) {
        wf_block(count, l->shards, comm->intra_rank, &lo, &hi);
        WF_TRY(sum_between(comm, l->between, data + (size_t)lo * size, hi - lo, dtype));
    }
    for (int s = 0; s < l->shards; s++) {
        wf_block(count, l->shards, s, &lo, &hi);
        WF_TRY(wf_shm_bcast(comm, l->shm, data + (size_t)lo * size, (size_t)(hi - lo) * size, s));
    }
    return WF_OK;
}

static wf_status sum_host(wf_comm *comm, void *data, int64_t count, wf_dtype dtype)
{
    const wf_hierarchy *l = comm->hierarchy;
    if (!l->shm)
        return wf_coll_reduce(comm, data, data, count, dtype, WF_SUM, -1);
    if (comm->inter_size == 1)
        return wf_shm_reduce(comm, l->shm, data, data, count, dtype, WF_SUM, -1);
    return sum_shards(comm, data, count, dtype);
}

static wf_status sum_device(wf_comm *comm, void *data, int64_t count, wf_dtype dtype)
{
    wf_ctx *ctx = comm->shared->ctx;
    const size_t bytes = (size_t)count * wf_dtype_size(dtype);
    void *host;
    wf_status status;
    if (ctx->k->host || bytes == 0)
        return sum_host(comm, data, count, dtype);
    WF_TRY(wf_host_take(comm, bytes, &host));
    comm->traffic.bytes_copied += 2 * bytes;
    WF_TRY_OUT(wf_ctx_read(ctx, host, data, bytes));
    WF_TRY_OUT(sum_host(comm, host, count, dtype));
    WF_TRY_OUT(ctx->k->to_device(ctx, data, host, bytes));
out:
    wf_host_give(comm, host, bytes);
    return status;
}

static wf_status sum(wf_comm *comm, void *data, int64_t count, wf_dtype dtype)
{
    const wf_call_record record = wf_call_record_values(comm->name, dtype, count, (int)WF_SUM, -1);
    WF_TRY(wf_comm_alive(comm));
    WF_CHECK(count == 0 || data, WF_ERR_ARGUMENT, "the buffer is NULL, and count is %lld", (long long)count);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(sum_device(comm, data, count, dtype));
    return wf_guard_settle(comm);
}

wf_status wf_hierarchy_sum(wf_comm *comm, void *data, int64_t count, wf_dtype dtype)
{
    WF_NEED(comm);
    if (comm->size == 1)
        return wf_comm_alive(comm);
    WF_TRY(wf_reducer_connect(comm));
    return wf_guard_end(comm, comm->name, sum(comm, data, count, dtype));
}
