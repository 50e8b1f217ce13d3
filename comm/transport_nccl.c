#include "comm/nccl_author.h"

#include "comm/comm_impl.h"
#include "core/captured_author.h"

#include <nccl.h>
#include <stdlib.h>

struct wf_nccl {
    ncclComm_t nccl; /* NULL once it was given up */
    wf_stream *stream;
    bool owner;             /* of the stream: the first of the family */
    wf_event *ready, *done; /* the context's stream had so much; the last call is over */
    bool pending;           /* since the host last waited */
    wf_nccl *first;         /* of the family */
    wf_ctx *ctx;
};

#define TRY_NCCL(comm, call)                                                                                           \
    do {                                                                                                               \
        const ncclResult_t try_nccl_code_ = (call);                                                                    \
        if (try_nccl_code_ != ncclSuccess)                                                                             \
            return raise((comm), try_nccl_code_, #call, __FILE__, __LINE__);                                           \
    } while (0)

static wf_status raise(const wf_comm *comm, ncclResult_t code, const char *call, const char *file, int line)
{
    int name = 0;
    while (call[name] && call[name] != '(')
        name++;
    const char *more = comm->nccl ? ncclGetLastError(comm->nccl->nccl) : "";
    return wf_error_set(WF_ERR_COMM, file, line, "%.*s on device \"%s\": %s%s%.300s", name, call,
                        wf_ctx_device(comm->family->ctx), ncclGetErrorString(code), more && *more ? ": " : "",
                        more ? more : "");
}

bool wf_nccl_built(void)
{
    return true;
}

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

/* What the host reads may come from another rank that never sends it. */
static wf_status await(void *of)
{
    wf_comm *comm = of;
    wf_nccl *own = comm->nccl;
    wf_ctx *ctx = comm->family->ctx;
    bool done = !own || !own->first->pending;
    for (wf_patience patience = wf_patience_new(); !done;) {
        WF_TRY(ctx->k->event_done(ctx, own->first->done, &done));
        if (!done)
            WF_TRY(wf_call_end(comm, "wait for a GPU", wf_patience_poll(comm, &patience, NULL)));
    }
    if (own)
        own->first->pending = false;
    return WF_OK;
}

static wf_status furnish(wf_comm *comm, wf_nccl *own)
{
    wf_ctx *ctx = comm->family->ctx;
    const wf_nccl *above = comm->parent ? comm->parent->nccl : NULL;
    own->first = above ? above->first : own;
    own->ctx = ctx;
    if (above) {
        own->stream = above->stream;
        own->ready = above->ready;
        own->done = above->done;
        return WF_OK;
    }
    own->owner = true;
    WF_TRY(ctx->k->stream_new(ctx, &own->stream));
    WF_TRY(ctx->k->event_new(ctx, &own->ready));
    WF_TRY(ctx->k->event_new(ctx, &own->done));
    ctx->comm = comm;
    ctx->await = await;
    return WF_OK;
}

wf_status wf_nccl_open(wf_comm *comm)
{
    ncclUniqueId id = {0};
    wf_status status = WF_OK;
    wf_nccl *own = wf_calloc(comm->family->ctx, 1, sizeof *own);
    if (own) {
        comm->nccl = own;
        status = furnish(comm, own);
    } else {
        status = wf_error_code();
    }
    if (status == WF_OK && comm->rank == 0 && ncclGetUniqueId(&id) != ncclSuccess)
        status = WF_RAISE(WF_ERR_COMM, "ncclGetUniqueId: %.200s", ncclGetLastError(NULL));
    WF_TRY(wf_comm_post_failure(comm, status));
    WF_TRY(wf_bcast_bytes(comm, &id, sizeof id, 0));
    TRY_NCCL(comm, ncclCommInitRank(&own->nccl, comm->size, id, comm->rank));
    return WF_OK;
}

void wf_nccl_abort(wf_comm *comm)
{
    wf_nccl *own = comm->nccl;
    if (own && own->nccl)
        ncclCommAbort(own->nccl);
    if (own)
        own->nccl = NULL;
}

void wf_nccl_close(wf_comm *comm)
{
    wf_nccl *own = comm->nccl;
    wf_ctx *ctx = comm->family->ctx;
    if (!own)
        return;
    if (comm->dead)
        wf_nccl_abort(comm);
    else if (own->nccl)
        ncclCommDestroy(own->nccl);
    if (own->owner) {
        ctx->await = NULL;
        ctx->k->event_free(ctx, own->ready);
        ctx->k->event_free(ctx, own->done);
        ctx->k->stream_free(ctx, own->stream);
    }
    free(own);
    comm->nccl = NULL;
}

wf_status wf_nccl_poll(wf_comm *comm)
{
    ncclResult_t code = ncclSuccess;
    if (!comm->nccl || !comm->nccl->nccl)
        return WF_OK;
    TRY_NCCL(comm, ncclCommGetAsyncError(comm->nccl->nccl, &code));
    if (code == ncclSuccess || code == ncclInProgress)
        return WF_OK;
    return raise(comm, code, "NCCL", __FILE__, __LINE__);
}

static cudaStream_t stream_of(const wf_comm *comm)
{
    return (cudaStream_t)(void *)comm->nccl->stream;
}

/* NCCL's stream goes behind the context's. */
static wf_status behind(wf_comm *comm)
{
    wf_ctx *ctx = comm->family->ctx;
    WF_CHECK(comm->nccl->nccl, WF_ERR_STATE, "NCCL's communicator was given up");
    WF_TRY(wf_nccl_poll(comm));
    WF_TRY(ctx->k->event_record(ctx, comm->nccl->ready, NULL));
    return ctx->k->event_wait(ctx, comm->nccl->ready, comm->nccl->stream);
}

/* What is captured leaves no event to ask for: behind a launch, one on the context's stream says when it is over. */
static wf_status launched(void *of)
{
    wf_nccl *first = of;
    first->pending = true;
    return first->ctx->k->event_record(first->ctx, first->done, NULL);
}

/* The context's stream goes behind NCCL's. */
static wf_status ahead(wf_comm *comm)
{
    wf_ctx *ctx = comm->family->ctx;
    comm->nccl->first->pending = true;
    WF_TRY(wf_ctx_behind(ctx, launched, comm->nccl->first));
    WF_TRY(ctx->k->event_record(ctx, comm->nccl->done, comm->nccl->stream));
    return ctx->k->event_wait(ctx, comm->nccl->done, NULL);
}

wf_status wf_nccl_allreduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    if (count == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclAllReduce(x, y, (size_t)count, type_of(dtype), op_of(op), comm->nccl->nccl, stream_of(comm)));
    comm->traffic.bytes_sent +=
        2 * (size_t)count * wf_dtype_size(dtype) * (size_t)(comm->size - 1) / (size_t)comm->size;
    comm->traffic.messages++;
    return ahead(comm);
}

wf_status wf_nccl_bcast(wf_comm *comm, void *data, size_t bytes, int root)
{
    if (bytes == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclBroadcast(data, data, bytes, ncclUint8, root, comm->nccl->nccl, stream_of(comm)));
    comm->traffic.bytes_sent += comm->rank == root ? bytes * (size_t)(comm->size - 1) : 0;
    comm->traffic.messages += comm->rank == root;
    return ahead(comm);
}

wf_status wf_nccl_begin(wf_comm *comm)
{
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclGroupStart());
    return WF_OK;
}

wf_status wf_nccl_send(wf_comm *comm, const void *data, size_t bytes, int to)
{
    TRY_NCCL(comm, ncclSend(data, bytes, ncclUint8, to, comm->nccl->nccl, stream_of(comm)));
    comm->traffic.bytes_sent += bytes;
    comm->traffic.messages++;
    return WF_OK;
}

wf_status wf_nccl_recv(wf_comm *comm, void *data, size_t bytes, int from)
{
    TRY_NCCL(comm, ncclRecv(data, bytes, ncclUint8, from, comm->nccl->nccl, stream_of(comm)));
    return WF_OK;
}

wf_status wf_nccl_end(wf_comm *comm)
{
    TRY_NCCL(comm, ncclGroupEnd());
    return ahead(comm);
}
