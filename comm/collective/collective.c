/* Collectives on a tensor of equal shape on all ranks: broadcast, sums, barrier. It checks and records the call and
 * brings the data into a form that travels; the engine or the native transport does the rest. */
#include "comm/collective/collective_impl.h"

#include <string.h>

static wf_status bcast(wf_comm *comm, wf_tensor *x, int root)
{
    wf_buffer b = {0};
    wf_status status;
    WF_NEED(x);
    WF_TRY(wf_check_rank(comm, "root", root));
    const wf_call_record record = wf_call_record_tensor("bcast", x, -1, root);
    WF_TRY(wf_guard_enter(comm, &record));
    if (comm->rank == root)
        WF_TRY_OUT(wf_buffer_read(comm, x, wf_native(comm), &b));
    else
        WF_TRY_OUT(wf_buffer_room(comm, x, wf_native(comm), &b));
    /* Native: on device memory. All ranks of a communicator take the same way, since both need all of them. */
    WF_TRY_OUT((wf_native(comm) ? wf_native_bcast : wf_coll_bcast)(comm, b.data, b.bytes, root));
    if (comm->rank != root)
        WF_TRY_OUT(wf_buffer_store(&b));
    WF_TRY_OUT(wf_guard_settle(comm));
out:
    wf_buffer_free(&b);
    return status;
}

wf_status wf_bcast(wf_comm *comm, wf_tensor *x, int root)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "bcast", bcast(comm, x, root));
}

static wf_status check_pair(const wf_tensor *x, const wf_tensor *y)
{
    char a[WF_SHAPE_TEXT], b[WF_SHAPE_TEXT];
    WF_CHECK(x->dtype == y->dtype, WF_ERR_DTYPE, "x is %s and y is %s", wf_dtype_name(x->dtype),
             wf_dtype_name(y->dtype));
    WF_CHECK(wf_shape_equal(x->shape, y->shape), WF_ERR_SHAPE, "x is %s and y is %s", wf_shape_text(x->shape, a),
             wf_shape_text(y->shape, b));
    return WF_OK;
}

/* A reduction of tensors opens the memory that it goes through; numbers (bytes.c) use it once it is open, so that a
 * communicator on which ranks only agree takes none. */
static wf_status reduce_host(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                             int root)
{
    if (comm->inter_size == 1)
        WF_TRY(wf_coll_share(comm));
    return wf_coll_reduce(comm, x, y, count, dtype, op, root);
}

/* root -1: everywhere. */
static wf_status reduce(wf_comm *comm, const char *operation, const wf_tensor *x, wf_tensor *y, wf_reduce_op op,
                        int root)
{
    /* Other ranks than the root may give NULL for y. */
    const bool wanted = root < 0 || root == comm->rank;
    bool native;
    wf_buffer from = {0}, to = {0};
    wf_status status;
    WF_NEED(x);
    WF_TRY(wf_check_op(op));
    if (wanted) {
        WF_NEED(y);
        WF_TRY(check_pair(x, y));
    }
    const wf_call_record record = wf_call_record_tensor(operation, x, (int)op, root);
    WF_TRY(wf_guard_enter(comm, &record));
    native = wf_native_reduces(comm, x->dtype, op);
    WF_TRY_OUT(wf_buffer_read(comm, x, native, &from));
    WF_TRY_OUT(wf_buffer_room(comm, wanted ? y : NULL, native, &to));
    WF_TRY_OUT(
        (native ? wf_native_reduce : reduce_host)(comm, from.data, to.data, wf_tensor_count(x), x->dtype, op, root));
    WF_TRY_OUT(wf_buffer_store(&to));
    WF_TRY_OUT(wf_guard_settle(comm));
out:
    wf_buffer_free(&to);
    wf_buffer_free(&from);
    return status;
}

wf_status wf_allreduce(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allreduce", reduce(comm, "allreduce", x, y, op, -1));
}

/* The root is checked here, where -1 is no root; below it means everywhere. */
static wf_status reduce_to(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    return reduce(comm, "reduce", x, y, op, root);
}

wf_status wf_reduce(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op, int root)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "reduce", reduce_to(comm, x, y, op, root));
}

/* Device memory that the transport cannot read goes through host memory. */
static wf_status allreduce_staged(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    wf_ctx *ctx = comm->shared->ctx;
    const size_t bytes = (size_t)count * wf_dtype_size(dtype);
    void *host;
    wf_status status;
    WF_TRY(wf_host_take(comm, bytes, &host));
    comm->traffic.bytes_copied += 2 * bytes;
    if (bytes > 0)
        WF_TRY_OUT(wf_ctx_read(ctx, host, x, bytes));
    /* In place: the combination of all replaces this rank's part. */
    WF_TRY_OUT(reduce_host(comm, host, host, count, dtype, op, -1));
    if (bytes > 0)
        WF_TRY_OUT(ctx->k->to_device(ctx, y, host, bytes));
out:
    wf_host_give(comm, host, bytes);
    return status;
}

static wf_status allreduce_raw(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    WF_TRY(wf_check_op(op));
    WF_CHECK(wf_dtype_size(dtype) > 0, WF_ERR_DTYPE, "%d is no type", (int)dtype);
    WF_CHECK(count >= 0, WF_ERR_ARGUMENT, "count %lld is negative", (long long)count);
    WF_CHECK(count == 0 || (x && y), WF_ERR_ARGUMENT, "x or y is NULL, and count is %lld", (long long)count);
    const wf_call_record record = wf_call_record_values("allreduce_raw", dtype, count, (int)op, -1);
    WF_TRY(wf_guard_enter(comm, &record));
    if (wf_native_reduces(comm, dtype, op))
        WF_TRY(wf_native_reduce(comm, x, y, count, dtype, op, -1));
    else if (comm->shared->ctx->k->host)
        WF_TRY(reduce_host(comm, x, y, count, dtype, op, -1));
    else
        WF_TRY(allreduce_staged(comm, x, y, count, dtype, op));
    return wf_guard_settle(comm);
}

wf_status wf_allreduce_raw(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allreduce_raw", allreduce_raw(comm, x, y, count, dtype, op));
}

/* One block for both: own part behind the whole. */
static wf_status allgather_staged(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    wf_ctx *ctx = comm->shared->ctx;
    const size_t every = (size_t)comm->size * bytes;
    void *host;
    wf_status status;
    WF_TRY(wf_host_take(comm, every + bytes, &host));
    char *own = (char *)host + every;
    WF_TRY_OUT(wf_ctx_read(ctx, own, mine, bytes));
    WF_TRY_OUT(wf_coll_allgather(comm, own, bytes, host));
    WF_TRY_OUT(ctx->k->to_device(ctx, all, host, every));
out:
    wf_host_give(comm, host, every + bytes);
    return status;
}

static wf_status allgather_raw(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_CHECK((mine && all) || bytes == 0, WF_ERR_ARGUMENT, "mine or all is NULL, and bytes is %zu", bytes);
    const wf_call_record record = wf_call_record_values("allgather_raw", WF_U8, (int64_t)bytes, -1, -1);
    WF_TRY(wf_guard_enter(comm, &record));
    if (wf_native(comm))
        WF_TRY(wf_native_allgather(comm, mine, bytes, all));
    else if (comm->shared->ctx->k->host)
        WF_TRY(wf_coll_allgather(comm, mine, bytes, all));
    else if (bytes > 0)
        WF_TRY(allgather_staged(comm, mine, bytes, all));
    return wf_guard_settle(comm);
}

wf_status wf_allgather_raw(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allgather_raw", allgather_raw(comm, mine, bytes, all));
}

static wf_status barrier(wf_comm *comm)
{
    const wf_call_record record = wf_call_record_plain("barrier", -1);
    WF_TRY(wf_guard_enter(comm, &record));
    WF_TRY(wf_coll_barrier(comm));
    return wf_guard_settle(comm);
}

wf_status wf_barrier(wf_comm *comm)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "barrier", barrier(comm));
}
