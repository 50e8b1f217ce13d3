/* Calls of NCCL: each waits on its stream for the context's, and holds that up where its result is needed. */
#include "comm/collective/nccl_impl.h"

#include "core/captured_author.h"

static ncclDataType_t type_of(wf_dtype dtype)
{
    static const ncclDataType_t types[WF_DTYPES] = {
        [WF_F32] = ncclFloat32, [WF_F64] = ncclFloat64, [WF_BF16] = ncclBfloat16, [WF_F16] = ncclFloat16,
        [WF_I32] = ncclInt32,   [WF_I64] = ncclInt64,   [WF_U8] = ncclUint8};
    return types[dtype];
}

static ncclRedOp_t op_of(wf_reduce_op op)
{
    static const ncclRedOp_t ops[] = {[WF_SUM] = ncclSum, [WF_MAX] = ncclMax, [WF_MIN] = ncclMin, [WF_PROD] = ncclProd};
    return ops[op];
}

wf_status wf_nccl_poll(wf_comm *comm)
{
    ncclResult_t code = ncclSuccess;
    if (!comm->nccl || !comm->nccl->nccl)
        return WF_OK;
    TRY_NCCL(comm, ncclCommGetAsyncError(comm->nccl->nccl, &code));
    if (code == ncclSuccess || code == ncclInProgress)
        return WF_OK;
    return wf_nccl_raise(comm, code, "NCCL", __FILE__, __LINE__);
}

static cudaStream_t stream_of(const wf_comm *comm)
{
    return (cudaStream_t)(void *)comm->nccl->stream->stream;
}

/* Before a captured step runs: on a GPU it would wait for a rank that is gone. */
static wf_status alive(void *of)
{
    const wf_nccl *own = of;
    WF_TRY(wf_comm_alive(own->comm));
    WF_TRY(wf_comm_post_failure(own->comm, wf_nccl_poll(own->comm)));
    WF_CHECK(own->nccl, WF_ERR_STATE, "NCCL's communicator was given up");
    return WF_OK;
}

/* NCCL's stream goes behind the context's. Calls of a group do that together. */
static wf_status behind(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    wf_nccl *own = comm->nccl;
    WF_CHECK(own->streams, WF_ERR_STATE, "the communicator that this one was split from is closed");
    if (!own->grouped) {
        WF_TRY(wf_nccl_poll(comm));
        WF_TRY(wf_ctx_capture_uses(ctx, alive, own));
        WF_TRY(ctx->k->event_record(ctx, own->stream->ready, NULL));
        WF_TRY(ctx->k->event_wait(ctx, own->stream->ready, own->stream->stream));
    }
    WF_TRY(comm->dead ? wf_comm_alive(comm) : WF_OK);
    WF_CHECK(own->nccl, WF_ERR_STATE, "NCCL's communicator was given up");
    return WF_OK;
}

/* What is captured leaves no event to ask for: behind a launch, one on the context's stream says when it is over. */
static wf_status launched(void *of)
{
    wf_nccl_stream *l = of;
    l->pending = true;
    return l->ctx->k->event_record(l->ctx, l->done, NULL);
}

/* The context's stream goes behind NCCL's at wf_nccl_join. */
static wf_status mark_unjoined(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    wf_nccl_stream *l = comm->nccl->stream;
    l->pending = l->owed = true;
    WF_TRY(wf_ctx_after_capture(ctx, launched, l));
    return ctx->k->event_record(ctx, l->done, l->stream);
}

/* At once, if nobody leaves that for later. */
static wf_status ahead(wf_comm *comm)
{
    if (comm->nccl->grouped)
        return WF_OK;
    WF_TRY(mark_unjoined(comm));
    return wf_background_within(comm) ? WF_OK : wf_nccl_join(comm);
}

static wf_status join_stream(wf_nccl_stream *l)
{
    if (!l->owed)
        return WF_OK;
    l->owed = false;
    return l->ctx->k->event_wait(l->ctx, l->done, NULL);
}

wf_status wf_nccl_join(wf_comm *comm)
{
    return comm && comm->nccl && comm->nccl->streams ? join_stream(comm->nccl->stream) : WF_OK;
}

wf_status wf_nccl_join_sums(wf_comm *comm)
{
    wf_nccl_streams *s = comm->nccl ? comm->nccl->streams : NULL;
    return s ? join_stream(&s->stream[s->count - 1]) : WF_OK;
}

/* What a ring sends, as NCCL's documentation counts it; NCCL itself tells nothing. */
static void count_sent(wf_comm *comm, size_t bytes)
{
    comm->traffic.bytes_sent += bytes;
    comm->traffic.messages += bytes > 0;
}

static size_t share_of_others(const wf_comm *comm, size_t bytes)
{
    return bytes * (size_t)(comm->size - 1) / (size_t)comm->size;
}

/* In a group a reduction to a root is a part of a reduce-scatter, whose root sends nothing. */
static size_t sent_by_reduction(const wf_comm *comm, size_t bytes, int root)
{
    if (root < 0)
        return share_of_others(comm, 2 * bytes);
    return comm->rank != root ? bytes : comm->nccl->grouped ? 0 : share_of_others(comm, bytes);
}

wf_status wf_nccl_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root)
{
    const ncclDataType_t type = type_of(dtype);
    const size_t n = (size_t)count;
    if (count == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    if (root < 0)
        TRY_NCCL(comm, ncclAllReduce(x, y, n, type, op_of(op), comm->nccl->nccl, stream_of(comm)));
    else
        TRY_NCCL(comm, ncclReduce(x, y, n, type, op_of(op), root, comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, sent_by_reduction(comm, n * wf_dtype_size(dtype), root));
    return ahead(comm);
}

wf_status wf_nccl_reduce_scatter(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    if (count == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm,
             ncclReduceScatter(x, y, (size_t)count, type_of(dtype), op_of(op), comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, (size_t)count * wf_dtype_size(dtype) * (size_t)(comm->size - 1));
    return ahead(comm);
}

wf_status wf_nccl_bcast(wf_comm *comm, void *data, size_t bytes, int root)
{
    if (bytes == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclBroadcast(data, data, bytes, ncclUint8, root, comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, comm->rank == root ? bytes * (size_t)(comm->size - 1) : 0);
    return ahead(comm);
}

wf_status wf_nccl_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    if (bytes == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclAllGather(mine, all, bytes, ncclUint8, comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, bytes * (size_t)(comm->size - 1));
    return ahead(comm);
}

wf_status wf_nccl_begin(wf_comm *comm)
{
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclGroupStart());
    comm->nccl->grouped = true;
    return WF_OK;
}

wf_status wf_nccl_send(wf_comm *comm, const void *data, size_t bytes, int to)
{
    TRY_NCCL(comm, ncclSend(data, bytes, ncclUint8, to, comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, bytes);
    return WF_OK;
}

wf_status wf_nccl_recv(wf_comm *comm, void *data, size_t bytes, int from)
{
    TRY_NCCL(comm, ncclRecv(data, bytes, ncclUint8, from, comm->nccl->nccl, stream_of(comm)));
    return WF_OK;
}

static wf_status end_group(wf_comm *comm)
{
    comm->nccl->grouped = false;
    TRY_NCCL(comm, ncclGroupEnd());
    return WF_OK;
}

wf_status wf_nccl_end(wf_comm *comm)
{
    WF_TRY(end_group(comm));
    return ahead(comm);
}

wf_status wf_nccl_end_no_join(wf_comm *comm)
{
    WF_TRY(end_group(comm));
    return mark_unjoined(comm);
}

wf_status wf_nccl_record(wf_comm *comm, wf_event *event)
{
    WF_CHECK(comm->nccl->streams, WF_ERR_STATE, "the communicator that this one was split from is closed");
    return comm->shared->ctx->k->event_record(comm->shared->ctx, event, comm->nccl->stream->stream);
}
