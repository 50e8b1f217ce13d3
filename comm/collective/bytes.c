/* Collectives on host memory: bytes, numbers, and the status of a step. Set-up, data sets, checkpoints and agreement of
 * ranks use them; tensors go by collective.c and ragged.c. */
#include "comm/collective/collective_impl.h"

#include <stdlib.h>
#include <string.h>

/* The pattern of all calls here: arguments, a record of the call that the ranks compare, the work, settle.
 * wf_guard_end tells the others of a failure on the way. */
static wf_status bcast_bytes(wf_comm *comm, void *data, size_t bytes, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    WF_CHECK(data || bytes == 0, WF_ERR_ARGUMENT, "data is NULL, and bytes is %zu", bytes);
    const wf_call_record record = wf_call_record_values("bcast_bytes", WF_U8, (int64_t)bytes, -1, root);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_bcast(comm, data, bytes, root));
    return wf_guard_settle(comm);
}

wf_status wf_bcast_bytes(wf_comm *comm, void *data, size_t bytes, int root)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "bcast_bytes", bcast_bytes(comm, data, bytes, root));
}

static wf_status allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_CHECK((mine && all) || bytes == 0, WF_ERR_ARGUMENT, "mine or all is NULL, and bytes is %zu", bytes);
    const wf_call_record record = wf_call_record_values("allgather_bytes", WF_U8, (int64_t)bytes, -1, -1);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_allgather(comm, mine, bytes, all));
    return wf_guard_settle(comm);
}

wf_status wf_allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allgather_bytes", allgather_bytes(comm, mine, bytes, all));
}

static wf_status check_scatter(const wf_comm *comm, const void *const *x, const size_t *bytes, const void *y,
                               size_t y_bytes, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    WF_CHECK(y || y_bytes == 0, WF_ERR_ARGUMENT, "y is NULL, and y_bytes is %zu", y_bytes);
    if (comm->rank != root)
        return WF_OK;
    WF_CHECK(x && bytes && bytes[root] == y_bytes, WF_ERR_ARGUMENT, "the root's own part is not of %zu bytes", y_bytes);
    for (int r = 0; r < comm->size; r++)
        WF_CHECK(x[r] || bytes[r] == 0, WF_ERR_ARGUMENT, "x[%d] is NULL, and bytes[%d] is %zu", r, r, bytes[r]);
    return WF_OK;
}

static wf_status scatter_bytes(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes,
                               int root)
{
    WF_TRY(check_scatter(comm, x, bytes, y, y_bytes, root));
    const wf_call_record record = wf_call_record_plain("scatter_bytes", root);
    WF_TRY(wf_guard_enter(comm, &record));
    if (comm->rank == root && y_bytes > 0)
        /* The root sends itself no message. */
        memcpy(y, x[root], y_bytes);
    WF_TRY(wf_peer_slots_scatter(comm, x, bytes, y, y_bytes, root));
    return wf_guard_settle(comm);
}

wf_status wf_scatter_bytes(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes, int root)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "scatter_bytes", scatter_bytes(comm, x, bytes, y, y_bytes, root));
}

static wf_status allreduce_values(wf_comm *comm, const char *operation, void *values, int64_t count, wf_dtype dtype,
                                  wf_reduce_op op)
{
    WF_TRY(wf_check_op(op));
    WF_CHECK(count >= 0, WF_ERR_ARGUMENT, "count %lld is negative", (long long)count);
    WF_CHECK(values || count == 0, WF_ERR_ARGUMENT, "values is NULL, and count is %lld", (long long)count);
    const wf_call_record record = wf_call_record_values(operation, dtype, count, (int)op, -1);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_reduce(comm, values, values, count, dtype, op, -1));
    return wf_guard_settle(comm);
}

wf_status wf_allreduce_f64(wf_comm *comm, double *values, int64_t count, wf_reduce_op op)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allreduce_f64", allreduce_values(comm, "allreduce_f64", values, count, WF_F64, op));
}

wf_status wf_allreduce_i64(wf_comm *comm, int64_t *values, int64_t count, wf_reduce_op op)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allreduce_i64", allreduce_values(comm, "allreduce_i64", values, count, WF_I64, op));
}

/* Fixed length, so that the message needs no length ahead of it. */
typedef struct spread {
    int32_t status;
    char message[1020];
} spread;

static wf_status share(wf_comm *comm, spread *news, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    const wf_call_record record = wf_call_record_plain("bcast_status", root);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_bcast(comm, news, sizeof *news, root));
    return wf_guard_settle(comm);
}

wf_status wf_bcast_status(wf_comm *comm, wf_status status, int root)
{
    wf_status code;
    spread *news;
    WF_NEED(comm);
    /* From the heap: after a failure a message may still arrive in it. */
    news = wf_calloc(comm->shared->ctx, 1, sizeof *news);
    if (!news)
        return wf_guard_end(comm, "bcast_status", WF_ERR_MEMORY);
    news->status = (int32_t)status;
    if (status != WF_OK)
        wf_error_save(&code, news->message, sizeof news->message);
    const wf_status shared = wf_guard_end(comm, "bcast_status", share(comm, news, root));
    const spread heard = *news;
    wf_comm_release(comm, news);
    if (shared != WF_OK)
        return shared;
    if (heard.status == WF_OK || comm->rank == root)
        return (wf_status)heard.status;
    return WF_RAISE((wf_status)heard.status, "%s", heard.message);
}

wf_status wf_agree_status(wf_comm *comm, wf_status status)
{
    WF_NEED(comm);
    /* The lowest rank that failed speaks for all, so every rank reports the same error. Costs one number where all is
     * well. */
    int64_t first = status == WF_OK ? comm->size : comm->rank;
    WF_TRY(wf_allreduce_i64(comm, &first, 1, WF_MIN));
    return first < comm->size ? wf_bcast_status(comm, status, (int)first) : WF_OK;
}
