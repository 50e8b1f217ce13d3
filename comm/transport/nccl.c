/* The native transport by NCCL: the life of its communicators, and their calls on streams of their own, behind the
 * context's. A build without NCCL has no_nccl.c in place of this file. */
#include "comm/safety/safety_impl.h"

#include "core/captured_author.h"
#include "core/config_author.h"
#include "core/log.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST   22200 /* the first NCCL that aborts several communicators as one group */
#define ORDERED 22600 /* the first NCCL that lets communicators overlap in the order of their calls */
#define SHARING 23000 /* the first that takes several ranks on one GPU */

#define STREAMS 2 /* of the program's calls; of sums behind backward */

typedef struct wf_native native;

typedef struct nccl_stream {
    wf_ctx *ctx;
    wf_stream *stream;
    wf_event *ready, *done; /* the context's stream had so much; the last call is over */
    bool pending;           /* since the host last waited */
    bool owed;              /* the context's stream is not behind the last call */
} nccl_stream;

/* What a communicator and those split from it share. */
typedef struct nccl_streams {
    wf_ctx *ctx;
    nccl_stream stream[STREAMS];
    int count;
    wf_comm *spoilt; /* died with calls on their way, and the host has not read since */
    wf_comm *dead;   /* its members are to be aborted when the capture has ended */
    native *members;
} nccl_streams;

struct wf_native {
    ncclComm_t nccl; /* NULL once it was given up */
    wf_comm *comm;
    nccl_streams *streams; /* NULL: closed by their owner */
    nccl_stream *stream;   /* of these */
    bool owner;            /* of the streams: the communicator that opened them */
    bool grouped;
    bool marked; /* to be aborted */
    wf_status (*wait)(wf_comm *comm);
    native *next;
};

#define TRY_NCCL(comm, call)                                                                                           \
    do {                                                                                                               \
        const ncclResult_t try_nccl_code_ = (call);                                                                    \
        if (try_nccl_code_ != ncclSuccess && try_nccl_code_ != ncclInProgress)                                         \
            return raise_error((comm), try_nccl_code_, #call, __FILE__, __LINE__);                                     \
    } while (0)

static wf_status raise_error(const wf_comm *comm, ncclResult_t code, const char *call, const char *file, int line)
{
    int name = 0;
    while (call[name] && call[name] != '(')
        name++;
    /* NCCL's own text often names the interface or the rank, which the code does not. */
    const char *more = comm->native ? ncclGetLastError(comm->native->nccl) : "";
    return wf_error_set(WF_ERR_COMM, file, line, "%.*s on device \"%s\": %s%s%.300s", name, call,
                        wf_ctx_device(comm->shared->ctx), ncclGetErrorString(code), more && *more ? ": " : "",
                        more ? more : "");
}

/* --- what is on its way ------------------------------------------------------------------------------------------- */

static wf_status poll_one(const wf_comm *comm)
{
    ncclResult_t code = ncclSuccess;
    if (!comm->native->nccl)
        return WF_OK;
    TRY_NCCL(comm, ncclCommGetAsyncError(comm->native->nccl, &code));
    if (code == ncclSuccess || code == ncclInProgress)
        return WF_OK;
    return raise_error(comm, code, "NCCL", __FILE__, __LINE__);
}

/* A communicator does not block: threads of NCCL connect its ranks, also at the first call between two of them, and put
 * calls on the stream. Until they have, nothing else is called on it, and no event is recorded behind it. */
static wf_status ready(wf_comm *comm, bool *is_ready)
{
    ncclResult_t code = ncclSuccess;
    *is_ready = false;
    WF_CHECK(comm->native->nccl, WF_ERR_STATE, "NCCL's communicator was given up");
    TRY_NCCL(comm, ncclCommGetAsyncError(comm->native->nccl, &code));
    *is_ready = code == ncclSuccess;
    if (code == ncclSuccess || code == ncclInProgress)
        return WF_OK;
    return raise_error(comm, code, "NCCL", __FILE__, __LINE__);
}

/* A member of the shared state that failed by itself tells the first of it, whose death is that of all. */
static wf_status poll_async(wf_comm *comm, bool all)
{
    const nccl_streams *s = comm->native->streams;
    if (!all)
        return poll_one(comm);
    for (const native *member = s ? s->members : NULL; member; member = member->next)
        WF_TRY(poll_one(member->comm));
    return WF_OK;
}

static bool pending(const wf_comm *comm)
{
    const nccl_streams *s = comm->native->streams;
    bool any = false;
    for (int i = 0; s && i < s->count; i++)
        any = any || s->stream[i].pending;
    return any;
}

/* An event is asked for, not waited for: a wait in CUDA cannot be interrupted when a rank dies. */
static wf_status test(wf_comm *comm, bool *done)
{
    nccl_streams *s = comm->native->streams;
    *done = true;
    for (int i = 0; s && i < s->count && *done; i++) {
        if (s->stream[i].pending)
            WF_TRY(s->ctx->k->event_done(s->ctx, s->stream[i].done, done));
        s->stream[i].pending = !*done;
    }
    return *done ? WF_OK : poll_async(comm, true);
}

static const wf_comm *forget(wf_comm *comm)
{
    nccl_streams *s = comm->native->streams;
    const wf_comm *spoilt = s ? s->spoilt : NULL;
    for (int i = 0; s && i < s->count; i++)
        s->stream[i].pending = false;
    if (s)
        s->spoilt = NULL;
    return spoilt;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static bool is_least(int least)
{
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess && version >= least;
}

static void find_unfit(char why[WF_NATIVE_WHY])
{
    int version = 0;
    why[0] = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version < LEAST)
        snprintf(why, WF_NATIVE_WHY, "NCCL %d.%d.%d, and %d.%d is the least", version / 10000, version / 100 % 100,
                 version % 100, LEAST / 10000, LEAST / 100 % 100);
}

/* True if NCCL_MULTI_RANK_GPU_ENABLE is 1 and NCCL is new enough to read it. */
static bool shares_gpu(void)
{
    return wf_config_get()->nccl_shares_gpu && is_least(SHARING);
}

/* NCCL calls of communicators that were split from one another share a stream: in the order in which the program makes
 * them, on every rank the same, they cannot wait for each other in a circle. Sums behind backward have a second stream,
 * so that a halo does not wait for them, where NCCL itself keeps the order of all launches. */
static wf_status streams_open(wf_comm *comm, native *own)
{
    wf_ctx *ctx = comm->shared->ctx;
    nccl_streams *s = own->streams = wf_calloc(ctx, 1, sizeof *s);
    if (!s)
        return wf_error_code();
    own->owner = true;
    s->ctx = ctx;
    s->count = wf_config_order_nccl() && is_least(ORDERED) ? STREAMS : 1;
    for (int i = 0; i < s->count; i++) {
        s->stream[i].ctx = ctx;
        WF_TRY(ctx->k->stream_new(ctx, &s->stream[i].stream));
        WF_TRY(ctx->k->event_new(ctx, &s->stream[i].ready));
        WF_TRY(ctx->k->event_new(ctx, &s->stream[i].done));
    }
    comm->shared->in_order = true;
    return WF_OK;
}

static wf_status furnish(wf_comm *comm)
{
    native *own = comm->native = wf_calloc(comm->shared->ctx, 1, sizeof *own);
    if (!own)
        return wf_error_code();
    own->comm = comm;
    if (comm->parent && comm->parent->native)
        own->streams = comm->parent->native->streams;
    else
        WF_TRY(streams_open(comm, own));
    WF_CHECK(own->streams, WF_ERR_STATE, "the communicator that this one is split from is closed");
    own->stream = &own->streams->stream[comm->nested ? own->streams->count - 1 : 0];
    own->next = own->streams->members;
    own->streams->members = own;
    return WF_OK;
}

_Static_assert(sizeof(ncclUniqueId) <= sizeof(wf_native_id), "NCCL's id must fit into the transport's");

static wf_status prepare(wf_comm *comm, wf_native_id *id)
{
    ncclUniqueId own;
    WF_TRY(furnish(comm));
    if (comm->rank > 0)
        return WF_OK;
    WF_CHECK(ncclGetUniqueId(&own) == ncclSuccess, WF_ERR_COMM, "ncclGetUniqueId: %.200s", ncclGetLastError(NULL));
    memcpy(id, &own, sizeof own);
    return WF_OK;
}

static wf_status connect(wf_comm *comm, const wf_native_id *id, wf_status (*wait)(wf_comm *comm))
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId own;
    memcpy(&own, id, sizeof own);
    /* NCCL takes the thread's current device, and the program may have chosen another one meanwhile. */
    WF_TRY(comm->shared->ctx->k->stream_use(comm->shared->ctx, NULL));
    config.blocking = 0;
    /* No ncclCommSplit with splitShare = 1, which would save set-up and buffers: NCCL aborts communicators that share
     * resources together, and comm.h promises that one which dies leaves that from which it was split alive. */
    comm->native->wait = wait;
    TRY_NCCL(comm, ncclCommInitRankConfig(&comm->native->nccl, comm->size, own, comm->rank, &config));
    return wait(comm);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static bool is_split_from(const wf_comm *comm, const wf_comm *above)
{
    while (comm && comm != above)
        comm = comm->parent;
    return comm != NULL;
}

/* NCCL's end of a communicator waits until no graph holds it. */
static void end_graphs(const native *member, wf_ctx *ctx, const wf_comm *dead)
{
    wf_ctx_end_captures(ctx, member->comm, dead ? dead->death.status : WF_ERR_STATE,
                        dead ? dead->death.text : "a captured step runs after a communicator that it uses was closed");
}

/* As one group: one after the other they would wait for each other's kernels, which the stream has in a row. */
static void abort_marked(nccl_streams *s, const wf_comm *dead)
{
    const char *before = wf_watch_swap("ncclCommAbort");
    for (native *member = s->members; member; member = member->next) {
        if (!member->marked)
            continue;
        /* Ends the open group, or NCCL would keep the following calls of this thread in it for ever. */
        if (member->grouped)
            ncclGroupEnd();
        member->grouped = false;
        end_graphs(member, s->ctx, dead);
    }
    ncclGroupStart();
    for (native *member = s->members; member; member = member->next) {
        if (member->marked && member->nccl)
            ncclCommAbort(member->nccl);
        if (member->marked)
            member->nccl = NULL;
        member->marked = false;
    }
    const ncclResult_t code = ncclGroupEnd();
    if (code != ncclSuccess)
        wf_log_write(WF_LOG_ERROR, "NCCL does not end what waits on the GPU: %s", ncclGetErrorString(code));
    wf_watch_swap(before);
}

static wf_status abort_now(void *of)
{
    nccl_streams *s = of;
    if (s->dead)
        abort_marked(s, s->dead);
    s->dead = NULL;
    return WF_OK;
}

static void give_up(wf_comm *comm)
{
    nccl_streams *s = comm->native->streams;
    bool any = false, done = false;
    for (native *member = s ? s->members : NULL; member; member = member->next)
        if (member->nccl && is_split_from(member->comm, comm))
            any = member->marked = true;
    if (!any)
        return;
    /* A call that fails sets NCCL's error before its event passes, so errors are asked for after events. */
    if (pending(comm) && (s->spoilt || wf_ctx_capturing(s->ctx) || test(comm, &done) != WF_OK || !done ||
                          poll_async(comm, true) != WF_OK))
        s->spoilt = comm;
    s->dead = comm;
    /* What is captured holds them until the capture has ended. */
    if (!wf_ctx_capturing(s->ctx))
        (void)abort_now(s);
    else if (wf_ctx_after_capture(s->ctx, abort_now, s) != WF_OK)
        wf_log_write(WF_LOG_ERROR, "NCCL is not ended: %s", wf_error_message());
}

/* Communicators that are still open when the first one closes cannot call any more. */
static void streams_free(nccl_streams *s)
{
    wf_ctx *ctx = s->ctx;
    for (native *member = s->members; member; member = member->next)
        member->marked = true;
    abort_marked(s, NULL);
    for (int i = 0; i < s->count; i++) {
        ctx->k->event_free(ctx, s->stream[i].ready);
        ctx->k->event_free(ctx, s->stream[i].done);
        ctx->k->stream_free(ctx, s->stream[i].stream);
    }
    for (native *member = s->members; member; member = member->next)
        member->streams = NULL;
    free(s);
}

static void leave(wf_comm *comm, native *own)
{
    nccl_streams *s = own->streams;
    end_graphs(own, s->ctx, comm->death.status ? comm : NULL);
    if (own->nccl)
        ncclCommDestroy(own->nccl);
    own->nccl = NULL; /* the wait for the end of its streams asks for its errors */
    native **at = &s->members;
    while (*at && *at != own)
        at = &(*at)->next;
    if (*at)
        *at = own->next;
    if (s->spoilt == comm)
        s->spoilt = NULL;
    if (own->owner)
        streams_free(s);
}

/* NCCL's own end waits for its kernels without looking at the clock, as CUDA's of a stream does: the watchdog looks. */
static void close_ranks(wf_comm *comm)
{
    const char *before = wf_watch_swap("ncclCommDestroy");
    if (comm->native->streams)
        leave(comm, comm->native);
    wf_watch_swap(before);
    free(comm->native);
    comm->native = NULL;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

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

/* NCCL's stream goes behind the context's. Calls of a group do that together. */
static wf_status behind(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    native *own = comm->native;
    WF_CHECK(own->streams, WF_ERR_STATE, "the communicator that this one was split from is closed");
    if (!own->grouped) {
        WF_TRY(poll_one(comm));
        WF_TRY(ctx->k->event_record(ctx, own->stream->ready, NULL));
        WF_TRY(ctx->k->event_wait(ctx, own->stream->ready, own->stream->stream));
    }
    if (comm->death.status)
        return WF_RAISE(comm->death.status, "%s", comm->death.text);
    WF_CHECK(own->nccl, WF_ERR_STATE, "NCCL's communicator was given up");
    return WF_OK;
}

/* What is captured leaves no event to ask for: behind a launch, one on the context's stream says when it is over. */
static wf_status launched(void *of)
{
    nccl_stream *l = of;
    l->pending = true;
    return l->ctx->k->event_record(l->ctx, l->done, NULL);
}

/* The context's stream goes behind NCCL's at `join`. */
static wf_status mark_unjoined(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    nccl_stream *l = comm->native->stream;
    l->pending = l->owed = true;
    WF_TRY(wf_ctx_after_capture(ctx, launched, l));
    return ctx->k->event_record(ctx, l->done, l->stream);
}

static wf_status join_stream(nccl_stream *l)
{
    if (!l->owed)
        return WF_OK;
    l->owed = false;
    return l->ctx->k->event_wait(l->ctx, l->done, NULL);
}

/* At once, unless the caller leaves that for later. */
static wf_status ahead(wf_comm *comm)
{
    if (comm->native->grouped)
        return WF_OK;
    WF_TRY(mark_unjoined(comm));
    return comm->shared->background_runs ? WF_OK : join_stream(comm->native->stream);
}

static wf_status join(wf_comm *comm)
{
    return comm->native->streams ? join_stream(comm->native->stream) : WF_OK;
}

static wf_status join_sums(wf_comm *comm)
{
    nccl_streams *s = comm->native->streams;
    return s ? join_stream(&s->stream[s->count - 1]) : WF_OK;
}

/* What a ring sends, as NCCL's documentation counts it; NCCL itself tells nothing. */
static size_t sent_by(const wf_comm *comm, wf_native_kind kind, int peer, size_t bytes)
{
    const size_t size = (size_t)comm->size, others = size - 1;
    switch (kind) {
    case WF_NATIVE_RECV:
        return 0;
    case WF_NATIVE_SEND:
        return bytes;
    case WF_NATIVE_BCAST:
        return comm->rank == peer ? bytes * others : 0;
    case WF_NATIVE_REDUCE:
        if (peer < 0)
            return 2 * bytes * others / size;
        /* In a group it is a part of a reduce-scatter, whose root sends nothing. */
        return comm->rank != peer ? bytes : comm->native->grouped ? 0 : bytes * others / size;
    default:
        return bytes * others;
    }
}

static wf_status launch(const wf_comm *comm, wf_native_kind kind, wf_reduce_op op, int peer, const wf_strided *from,
                        const wf_strided *to)
{
    const void *x = from->data;
    void *y = to->data;
    const size_t n = (size_t)from->dim[0];
    const ncclDataType_t type = type_of(from->dtype);
    const ncclComm_t own = comm->native->nccl;
    const cudaStream_t stream = (cudaStream_t)(void *)comm->native->stream->stream;
    switch (kind) {
    case WF_NATIVE_SEND:
        TRY_NCCL(comm, ncclSend(x, n, type, peer, own, stream));
        break;
    case WF_NATIVE_RECV:
        TRY_NCCL(comm, ncclRecv(y, n, type, peer, own, stream));
        break;
    case WF_NATIVE_BCAST:
        TRY_NCCL(comm, ncclBroadcast(y, y, n, type, peer, own, stream));
        break;
    case WF_NATIVE_ALLGATHER:
        TRY_NCCL(comm, ncclAllGather(x, y, n, type, own, stream));
        break;
    case WF_NATIVE_REDUCE:
        if (peer < 0)
            TRY_NCCL(comm, ncclAllReduce(x, y, n, type, op_of(op), own, stream));
        else
            TRY_NCCL(comm, ncclReduce(x, y, n, type, op_of(op), peer, own, stream));
        break;
    case WF_NATIVE_REDUCE_SCATTER:
        TRY_NCCL(comm, ncclReduceScatter(x, y, n, type, op_of(op), own, stream));
        break;
    default:
        WF_FAIL(WF_ERR_STATE, "%d is no call of NCCL", (int)kind);
    }
    return WF_OK;
}

static wf_status call(wf_comm *comm, wf_native_kind kind, wf_reduce_op op, int peer, const wf_strided *x,
                      const wf_strided *y)
{
    if (x->dim[0] == 0)
        return WF_OK;
    WF_TRY(behind(comm));
    WF_TRY(launch(comm, kind, op, peer, x, y));
    if (!comm->native->grouped)
        WF_TRY(comm->native->wait(comm));
    const size_t sent = sent_by(comm, kind, peer, (size_t)x->dim[0] * wf_dtype_size(x->dtype));
    comm->traffic.bytes_sent += sent;
    comm->traffic.messages += sent > 0;
    return ahead(comm);
}

static wf_status begin(wf_comm *comm)
{
    WF_TRY(behind(comm));
    TRY_NCCL(comm, ncclGroupStart());
    comm->native->grouped = true;
    return WF_OK;
}

static wf_status end(wf_comm *comm, bool joins)
{
    comm->native->grouped = false;
    TRY_NCCL(comm, ncclGroupEnd());
    WF_TRY(comm->native->wait(comm));
    return joins ? ahead(comm) : mark_unjoined(comm);
}

static wf_status record(wf_comm *comm, wf_event *event)
{
    WF_CHECK(comm->native->streams, WF_ERR_STATE, "the communicator that this one was split from is closed");
    return comm->shared->ctx->k->event_record(comm->shared->ctx, event, comm->native->stream->stream);
}

const wf_native_transport wf_transport_native = {.name = "NCCL",
                                                 .find_unfit = find_unfit,
                                                 .shares_gpu = shares_gpu,
                                                 .prepare = prepare,
                                                 .connect = connect,
                                                 .ready = ready,
                                                 .close = close_ranks,
                                                 .give_up = give_up,
                                                 .poll = poll_async,
                                                 .pending = pending,
                                                 .test = test,
                                                 .forget = forget,
                                                 .call = call,
                                                 .begin = begin,
                                                 .end = end,
                                                 .join = join,
                                                 .join_sums = join_sums,
                                                 .record = record};
