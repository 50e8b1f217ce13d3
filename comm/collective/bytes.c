/* Collectives on memory: bytes and numbers of the host, the status of a step, and sums of vectors on a device. Set-up,
 * data sets, checkpoints and agreement of ranks use them; tensors go by collective.c and ragged.c. */
#include "comm/collective/collective_impl.h"

#include <stdlib.h>
#include <string.h>

wf_call wf_call_of_bytes(wf_operation operation, const char *name, const void *in, void *out, size_t bytes, int root)
{
    const int64_t count = (int64_t)bytes;
    return (wf_call){
        .operation = operation, .name = name, .dtype = WF_U8, .count = count, .root = root, .in = in, .out = out};
}

static wf_status check_rooted(const wf_comm *comm, const void *data, size_t bytes, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    WF_CHECK(data || bytes == 0, WF_ERR_ARGUMENT, "data is NULL, and bytes is %zu", bytes);
    return WF_OK;
}

wf_status wf_bcast_bytes(wf_comm *comm, void *data, size_t bytes, int root)
{
    WF_NEED(comm);
    const wf_call call = wf_call_of_bytes(WF_CALL_BCAST, "bcast_bytes", NULL, data, bytes, root);
    return wf_comm_run(comm, check_rooted(comm, data, bytes, root), &call);
}

wf_status wf_check_gathered(const void *mine, size_t bytes, const void *all)
{
    WF_CHECK((mine && all) || bytes == 0, WF_ERR_ARGUMENT, "mine or all is NULL, and bytes is %zu", bytes);
    return WF_OK;
}

wf_status wf_allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_NEED(comm);
    const wf_call call = wf_call_of_bytes(WF_CALL_ALLGATHER, "allgather_bytes", mine, all, bytes, 0);
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

static wf_call describe_parts(wf_comm *comm, const char *name, int root)
{
    wf_lists_begin(comm);
    return (wf_call){.operation = WF_CALL_LISTS, .name = name, .root = root};
}

wf_status wf_scatter_bytes(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes, int root)
{
    WF_NEED(comm);
    const wf_status checked = check_scatter(comm, x, bytes, y, y_bytes, root);
    const wf_call call = describe_parts(comm, "scatter_bytes", root);
    const bool gives = comm->rank == root;
    for (int r = 0; checked == WF_OK && r < comm->size; r++)
        wf_lists_set_bytes(comm, r, gives ? x[r] : NULL, gives ? (int64_t)bytes[r] : -1, y,
                           r == root ? (int64_t)y_bytes : -1);
    return wf_comm_run(comm, checked, &call);
}

wf_status wf_gather_bytes(wf_comm *comm, const void *mine, size_t bytes, size_t *lengths, void **all, int root)
{
    WF_NEED(comm);
    const bool takes = comm->rank == root;
    wf_status status = check_rooted(comm, mine, bytes, root);
    if (status == WF_OK && (!lengths || (takes && !all)))
        status = wf_error_need(__func__, lengths ? "all" : "lengths", __FILE__, __LINE__);
    wf_call call = wf_call_of_bytes(WF_CALL_ALLGATHER, "gather_bytes", &bytes, lengths, sizeof bytes, root);
    WF_TRY(wf_comm_run(comm, status, &call));
    size_t at = 0;
    for (int r = 0; r < comm->size; r++)
        at += lengths[r];
    char *to = takes ? wf_calloc(comm->shared->ctx, at + 1, 1) : NULL;
    call = describe_parts(comm, "gather_bytes", root);
    for (int r = comm->size - 1; r >= 0; r--) {
        at -= lengths[r];
        wf_lists_set_bytes(comm, r, mine, r == root ? (int64_t)bytes : -1, to ? to + at : NULL,
                           to ? (int64_t)lengths[r] : -1);
    }
    status = wf_comm_run(comm, takes && !to ? WF_ERR_MEMORY : WF_OK, &call);
    if (status != WF_OK)
        wf_comm_release(comm, to);
    else if (takes)
        *all = to;
    return status;
}

static wf_status check_values(const wf_call *call)
{
    const long long count = call->count;
    WF_TRY(wf_check_op(call->op));
    WF_CHECK(wf_dtype_size(call->dtype) > 0, WF_ERR_DTYPE, "%d is no type", (int)call->dtype);
    WF_CHECK(count >= 0, WF_ERR_ARGUMENT, "count %lld is negative", count);
    WF_CHECK(count == 0 || (call->in && call->out), WF_ERR_ARGUMENT, "a vector is NULL, and count is %lld", count);
    return WF_OK;
}

static wf_status allreduce_values(wf_comm *comm, wf_call call)
{
    call.operation = WF_CALL_ALLREDUCE;
    return wf_comm_run(comm, check_values(&call), &call);
}

wf_status wf_allreduce_f64(wf_comm *comm, double *values, int64_t count, wf_reduce_op op)
{
    WF_NEED(comm);
    return allreduce_values(
        comm,
        (wf_call){.name = "allreduce_f64", .op = op, .dtype = WF_F64, .count = count, .in = values, .out = values});
}

wf_status wf_allreduce_i64(wf_comm *comm, int64_t *values, int64_t count, wf_reduce_op op)
{
    WF_NEED(comm);
    return allreduce_values(
        comm,
        (wf_call){.name = "allreduce_i64", .op = op, .dtype = WF_I64, .count = count, .in = values, .out = values});
}

wf_status wf_allreduce_raw(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    WF_NEED(comm);
    return allreduce_values(
        comm,
        (wf_call){
            .name = "allreduce_raw", .op = op, .dtype = dtype, .count = count, .in = x, .out = y, .device = true});
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
    const wf_call call = wf_call_of_bytes(WF_CALL_BCAST, "bcast_status", NULL, news, sizeof *news, root);
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
