/* NCCL: one stream behind the context's, calls, and waits that notice when a rank has died. Only comm/ calls it,
 * through comm/nccl_author.h; a build without NCCL has no_nccl.c in its place. */
#include "comm/collective/collective_impl.h"
#include "comm/nccl_author.h"

#include "core/captured_author.h"
#include "core/log.h"

#include <nccl.h>
#include <stdlib.h>

#define AT_ONCE_NS 50000 /* in which a wait does not offer the processor to others */
#define LATER      1000  /* polls */

/* What a communicator and those split from it share. */
typedef struct nccl_stream {
    wf_stream *stream;
    wf_event *ready, *done; /* the context's stream had so much; the last call is over */
    bool pending;           /* since the host last waited */
    wf_ctx *ctx;
    bool owed;       /* the context's stream is not behind the last call */
    wf_comm *spoilt; /* died with calls on their way, and the host has not read since */
    wf_nccl *members;
} nccl_stream;

struct wf_nccl {
    ncclComm_t nccl; /* NULL once it was given up */
    wf_comm *comm;
    nccl_stream *stream;
    bool owner; /* of the stream: the communicator that opened it */
    bool grouped;
    wf_nccl *next; /* of the stream */
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
    /* NCCL's own text often names the interface or the rank, which the code does not. */
    const char *more = comm->nccl ? ncclGetLastError(comm->nccl->nccl) : "";
    return wf_error_set(WF_ERR_COMM, file, line, "%.*s on device \"%s\": %s%s%.300s", name, call,
                        wf_ctx_device(comm->shared->ctx), ncclGetErrorString(code), more && *more ? ": " : "",
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

/* A member of the shared state that failed by itself tells the first of it, whose death is that of all. */
static wf_status look_at_members(wf_comm *comm)
{
    for (wf_nccl *member = comm->nccl->stream->members; member; member = member->next)
        WF_TRY(wf_nccl_poll(member->comm));
    return WF_OK;
}

/* The host waits for the last call, and no longer than the communicator's time-out. */
static wf_status wait_done(wf_comm *comm, nccl_stream *l)
{
    wf_ctx *ctx = comm->shared->ctx;
    bool done = !l->pending;
    /* Polled, not waited for: a wait in CUDA cannot be interrupted when a rank dies. */
    for (wf_deadline deadline = wf_deadline_new(); !done;) {
        WF_TRY(ctx->k->event_done(ctx, l->done, &done));
        if (!done)
            WF_TRY(look_at_members(comm));
        if (!done)
            WF_TRY(wf_deadline_poll(comm, &deadline, NULL));
    }
    l->pending = false;
    return WF_OK;
}

/* What the host reads may come from another rank that never sends it. The rank of a communicator that died on the way
 * hears of it here, once: nobody knows what the calls on their way have left in memory. */
static wf_status await(void *of)
{
    wf_comm *comm = of;
    nccl_stream *l = comm->nccl ? comm->nccl->stream : NULL;
    if (!l)
        return WF_OK;
    wf_status status = WF_OK;
    if (l->pending && comm->inside)
        status = wait_done(comm, l);
    else if (l->pending) {
        const char *before = wf_watch_swap("wait for a GPU");
        status = wf_guard_end(comm, "wait for a GPU", wait_done(comm, l));
        wf_watch_swap(before);
    }
    const wf_comm *spoilt = l->spoilt;
    l->spoilt = NULL;
    l->pending = l->pending && status == WF_OK;
    if (status != WF_OK || !spoilt)
        return status;
    return WF_RAISE(spoilt->dead, "%s", spoilt->death);
}

/* The context calls it in its own waits for the device. Short waits, which are the usual ones, keep the processor;
 * longer ones offer it to others. */
static wf_status waiting(void *of, int64_t *since)
{
    wf_comm *comm = of;
    wf_deadline deadline = wf_deadline_new();
    if (!comm->nccl || comm->dead)
        return WF_OK;
    if (*since == 0)
        *since = deadline.start_ns;
    deadline.polls = deadline.start_ns - *since < AT_ONCE_NS ? 0 : LATER;
    deadline.start_ns = *since;
    wf_status status = look_at_members(comm);
    if (status == WF_OK)
        status = wf_deadline_poll(comm, &deadline, NULL);
    return status == WF_OK || comm->inside ? status : wf_guard_end(comm, "wait for a GPU", status);
}

static wf_status stream_open(wf_comm *comm, wf_nccl *own)
{
    wf_ctx *ctx = comm->shared->ctx;
    own->stream = wf_calloc(ctx, 1, sizeof *own->stream);
    if (!own->stream)
        return wf_error_code();
    /* NCCL calls of communicators that were split from one another share one stream: in the order in which the program
     * makes them, on every rank the same, they cannot wait for each other in a circle. */
    own->owner = true;
    own->stream->ctx = ctx;
    WF_TRY(ctx->k->stream_new(ctx, &own->stream->stream));
    WF_TRY(ctx->k->event_new(ctx, &own->stream->ready));
    WF_TRY(ctx->k->event_new(ctx, &own->stream->done));
    ctx->comm = comm;
    ctx->await = await;
    ctx->waiting = waiting;
    comm->shared->in_order = true;
    return WF_OK;
}

static wf_status furnish(wf_comm *comm, wf_nccl *own)
{
    own->comm = comm;
    if (comm->parent && comm->parent->nccl)
        own->stream = comm->parent->nccl->stream;
    else
        WF_TRY(stream_open(comm, own));
    own->next = own->stream->members;
    own->stream->members = own;
    return WF_OK;
}

wf_status wf_nccl_open(wf_comm *comm)
{
    ncclUniqueId id = {0};
    wf_status status = WF_OK;
    wf_nccl *own = wf_calloc(comm->shared->ctx, 1, sizeof *own);
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

static bool split_from(const wf_comm *comm, const wf_comm *above)
{
    while (comm && comm != above)
        comm = comm->parent;
    return comm != NULL;
}

void wf_nccl_abort(wf_comm *comm)
{
    nccl_stream *l = comm->nccl ? comm->nccl->stream : NULL;
    for (wf_nccl *member = l ? l->members : NULL; member; member = member->next) {
        if (!member->nccl || !split_from(member->comm, comm))
            continue;
        /* Else NCCL would keep the following calls of this thread in the group for ever. */
        if (member->grouped)
            ncclGroupEnd();
        member->grouped = false;
        ncclCommAbort(member->nccl);
        member->nccl = NULL;
        if (l->pending)
            l->spoilt = comm;
    }
}

/* Communicators that are still open when the first one closes cannot call any more. */
static void stream_free(wf_ctx *ctx, nccl_stream *l)
{
    for (wf_nccl *member = l->members; member; member = member->next) {
        if (member->nccl)
            ncclCommAbort(member->nccl);
        member->nccl = NULL;
        member->stream = NULL;
    }
    ctx->await = NULL;
    ctx->waiting = NULL;
    ctx->k->event_free(ctx, l->ready);
    ctx->k->event_free(ctx, l->done);
    ctx->k->stream_free(ctx, l->stream);
    free(l);
}

/* NCCL's own end waits for its kernels without looking at the clock. */
static void settle(wf_comm *comm, const wf_nccl *own)
{
    const bool waits = !comm->dead && own->nccl && own->stream->pending;
    const wf_status status = waits ? wait_done(comm, own->stream) : WF_OK;
    if (status != WF_OK)
        wf_log(WF_LOG_ERROR, "a communicator closes with calls on their way: %s", wf_error_message());
    if (comm->dead || status != WF_OK)
        wf_nccl_abort(comm);
    else if (own->nccl)
        ncclCommDestroy(own->nccl);
}

void wf_nccl_close(wf_comm *comm)
{
    wf_nccl *own = comm->nccl;
    if (!own)
        return;
    if (own->stream) {
        settle(comm, own);
        wf_nccl **at = &own->stream->members;
        while (*at && *at != own)
            at = &(*at)->next;
        if (*at)
            *at = own->next;
        if (own->stream->spoilt == comm)
            own->stream->spoilt = NULL;
        if (own->owner)
            stream_free(comm->shared->ctx, own->stream);
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
    return (cudaStream_t)(void *)comm->nccl->stream->stream;
}

/* NCCL's stream goes behind the context's. Calls of a group do that together. */
static wf_status behind(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    const nccl_stream *l = comm->nccl->stream;
    WF_CHECK(l, WF_ERR_STATE, "the communicator that this one was split from is closed");
    if (!comm->nccl->grouped) {
        WF_TRY(wf_nccl_poll(comm));
        WF_TRY(ctx->k->event_record(ctx, l->ready, NULL));
        WF_TRY(ctx->k->event_wait(ctx, l->ready, l->stream));
    }
    WF_TRY(comm->dead ? wf_comm_alive(comm) : WF_OK);
    WF_CHECK(comm->nccl->nccl, WF_ERR_STATE, "NCCL's communicator was given up");
    return WF_OK;
}

/* What is captured leaves no event to ask for: behind a launch, one on the context's stream says when it is over. */
static wf_status launched(void *of)
{
    nccl_stream *l = of;
    l->pending = true;
    return l->ctx->k->event_record(l->ctx, l->done, NULL);
}

/* The context's stream goes behind NCCL's at wf_nccl_join. */
static wf_status mark_unjoined(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    nccl_stream *l = comm->nccl->stream;
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

wf_status wf_nccl_join(wf_comm *comm)
{
    nccl_stream *l = comm && comm->nccl ? comm->nccl->stream : NULL;
    if (!l || !l->owed)
        return WF_OK;
    l->owed = false;
    return comm->shared->ctx->k->event_wait(comm->shared->ctx, l->done, NULL);
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

wf_status wf_nccl_allreduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    if (count == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclAllReduce(x, y, (size_t)count, type_of(dtype), op_of(op), comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, share_of_others(comm, 2 * (size_t)count * wf_dtype_size(dtype)));
    return ahead(comm);
}

/* In a group it is a part of a reduce-scatter, whose root sends nothing. */
wf_status wf_nccl_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root)
{
    const size_t bytes = (size_t)count * wf_dtype_size(dtype);
    if (count == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclReduce(x, y, (size_t)count, type_of(dtype), op_of(op), root, comm->nccl->nccl, stream_of(comm)));
    count_sent(comm, comm->rank != root ? bytes : comm->nccl->grouped ? 0 : share_of_others(comm, bytes));
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
