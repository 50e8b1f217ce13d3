/* Collectives on host memory: bytes, numbers, and the status of a step. Set-up, data sets, checkpoints and agreement of
 * ranks use them; tensors go by collective.c and ragged.c. */
#include "comm/collective/collective_impl.h"

#include <stdlib.h>
#include <string.h>

static wf_status check_bcast_bytes(const wf_comm *comm, const void *data, size_t bytes, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    WF_CHECK(data || bytes == 0, WF_ERR_ARGUMENT, "data is NULL, and bytes is %zu", bytes);
    return WF_OK;
}

wf_status wf_bcast_bytes(wf_comm *comm, void *data, size_t bytes, int root)
{
    WF_NEED(comm);
    const wf_call call = {.operation = WF_CALL_BCAST,
                          .name = "bcast_bytes",
                          .dtype = WF_U8,
                          .count = (int64_t)bytes,
                          .root = root,
                          .out = data};
    return wf_comm_run(comm, check_bcast_bytes(comm, data, bytes, root), &call);
}

wf_status wf_check_gathered(const void *mine, size_t bytes, const void *all)
{
    WF_CHECK((mine && all) || bytes == 0, WF_ERR_ARGUMENT, "mine or all is NULL, and bytes is %zu", bytes);
    return WF_OK;
}

wf_status wf_allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_NEED(comm);
    const wf_call call = {.operation = WF_CALL_ALLGATHER,
                          .name = "allgather_bytes",
                          .dtype = WF_U8,
                          .count = (int64_t)bytes,
                          .in = mine,
                          .out = all};
    return wf_comm_run(comm, wf_check_gathered(mine, bytes, all), &call);
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

wf_status wf_scatter_bytes(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes, int root)
{
    WF_NEED(comm);
    const wf_status checked = check_scatter(comm, x, bytes, y, y_bytes, root);
    const wf_call call = {.operation = WF_CALL_LISTS,
                          .name = "scatter_bytes",
                          .root = root,
                          .peers = wf_peer_call_begin(comm, WF_WAY_BYTES)};
    if (checked == WF_OK)
        wf_peer_call_scatter(call.peers, x, bytes, y, y_bytes, root);
    return wf_comm_run(comm, checked, &call);
}

static wf_status check_values(const void *values, int64_t count, wf_reduce_op op)
{
    WF_TRY(wf_check_op(op));
    WF_CHECK(count >= 0, WF_ERR_ARGUMENT, "count %lld is negative", (long long)count);
    WF_CHECK(values || count == 0, WF_ERR_ARGUMENT, "values is NULL, and count is %lld", (long long)count);
    return WF_OK;
}

static wf_status allreduce_values(wf_comm *comm, const char *name, void *values, int64_t count, wf_dtype dtype,
                                  wf_reduce_op op)
{
    const wf_call call = {.operation = WF_CALL_ALLREDUCE,
                          .name = name,
                          .op = op,
                          .dtype = dtype,
                          .count = count,
                          .in = values,
                          .out = values};
    return wf_comm_run(comm, check_values(values, count, op), &call);
}

wf_status wf_allreduce_f64(wf_comm *comm, double *values, int64_t count, wf_reduce_op op)
{
    WF_NEED(comm);
    return allreduce_values(comm, "allreduce_f64", values, count, WF_F64, op);
}

wf_status wf_allreduce_i64(wf_comm *comm, int64_t *values, int64_t count, wf_reduce_op op)
{
    WF_NEED(comm);
    return allreduce_values(comm, "allreduce_i64", values, count, WF_I64, op);
}

/* Fixed length, so that the message needs no length ahead of it. */
typedef struct status_message {
    int32_t status;
    char message[1020];
} status_message;

wf_status wf_bcast_status(wf_comm *comm, wf_status status, int root)
{
    wf_status code;
    status_message *news;
    WF_NEED(comm);
    /* From the heap: after a failure a message may still arrive in it. */
    news = wf_calloc(comm->shared->ctx, 1, sizeof *news);
    if (!news)
        return wf_guard_end(comm, "bcast_status", WF_ERR_MEMORY);
    news->status = (int32_t)status;
    if (status != WF_OK)
        wf_error_save(&code, news->message, sizeof news->message);
    const wf_call call = {.operation = WF_CALL_BCAST,
                          .name = "bcast_status",
                          .dtype = WF_U8,
                          .count = sizeof *news,
                          .root = root,
                          .out = news};
    const wf_status shared = wf_comm_run(comm, wf_check_rank(comm, "root", root), &call);
    const status_message heard = *news;
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
