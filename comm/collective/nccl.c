/* The life of NCCL's communicators: their streams behind the context's, waits that notice when a rank has died, and the
 * end. A build without NCCL has no_nccl.c in place of this file and nccl_calls.c. */
#include "comm/collective/nccl_impl.h"

#include "core/captured_author.h"
#include "core/config_author.h"
#include "core/log.h"

#include <stdlib.h>

#define AT_ONCE_NS 50000 /* in which a wait does not offer the processor to others */
#define LATER      1000  /* polls */

#define ORDERED    22600 /* the first NCCL that lets communicators overlap in the order of their calls */
#define SHARING    23000 /* the first that takes several ranks on one GPU */

wf_status wf_nccl_raise(const wf_comm *comm, ncclResult_t code, const char *call, const char *file, int line)
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

/* --- waits -------------------------------------------------------------------------------------------------------- */

/* A member of the shared state that failed by itself tells the first of it, whose death is that of all. */
static wf_status look_at_members(const wf_nccl_streams *s)
{
    for (wf_nccl *member = s->members; member; member = member->next)
        WF_TRY(wf_nccl_poll(member->comm));
    return WF_OK;
}

static wf_status wait_stream(wf_comm *comm, const wf_nccl_streams *s, wf_nccl_stream *l, wf_deadline *deadline)
{
    /* Polled, not waited for: a wait in CUDA cannot be interrupted when a rank dies. */
    for (bool done = !l->pending; !done;) {
        WF_TRY(s->ctx->k->event_done(s->ctx, l->done, &done));
        if (!done)
            WF_TRY(look_at_members(s));
        if (!done)
            WF_TRY(wf_deadline_poll(comm, deadline));
    }
    l->pending = false;
    return WF_OK;
}

/* The host waits for the last call of every stream, and no longer than the communicator's time-out. */
static wf_status wait_done(wf_comm *comm, wf_nccl_streams *s)
{
    wf_deadline deadline = wf_deadline_new();
    for (int i = 0; i < s->count; i++)
        WF_TRY(wait_stream(comm, s, &s->stream[i], &deadline));
    return WF_OK;
}

static bool is_pending(const wf_nccl_streams *s)
{
    bool pending = false;
    for (int i = 0; i < s->count; i++)
        pending = pending || s->stream[i].pending;
    return pending;
}

/* What the host reads may come from another rank that never sends it. The rank of a communicator that died on the way
 * hears of it here, once: nobody knows what the calls on their way have left in memory. */
static wf_status await(void *of)
{
    wf_comm *comm = of;
    wf_nccl_streams *s = comm->nccl ? comm->nccl->streams : NULL;
    if (!s)
        return WF_OK;
    wf_status status = WF_OK;
    if (is_pending(s) && comm->inside)
        status = wait_done(comm, s);
    else if (is_pending(s)) {
        const char *before = wf_watch_swap("wait for a GPU");
        status = wf_guard_end(comm, "wait for a GPU", wait_done(comm, s));
        wf_watch_swap(before);
    }
    const wf_comm *spoilt = s->spoilt;
    s->spoilt = NULL;
    for (int i = 0; i < s->count; i++)
        s->stream[i].pending = s->stream[i].pending && status == WF_OK;
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
    wf_status status = look_at_members(comm->nccl->streams);
    if (status == WF_OK)
        status = wf_deadline_poll(comm, &deadline);
    return status == WF_OK || comm->inside ? status : wf_guard_end(comm, "wait for a GPU", status);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static bool is_least(int least)
{
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess && version >= least;
}

bool wf_nccl_wanted(const wf_comm *comm)
{
    return comm->size > 1 || wf_config_get()->nccl_one_rank;
}

bool wf_nccl_shares_gpu(void)
{
    return wf_config_get()->nccl_shares_gpu && is_least(SHARING);
}

static const wf_native_link native_link = {.poll = wf_nccl_poll, .give_up = wf_nccl_abort, .join = wf_nccl_join_sums};

/* NCCL calls of communicators that were split from one another share a stream: in the order in which the program makes
 * them, on every rank the same, they cannot wait for each other in a circle. Sums behind backward have a second stream,
 * so that a halo does not wait for them, where NCCL itself keeps the order of all launches. */
static wf_status streams_open(wf_comm *comm, wf_nccl *own)
{
    wf_ctx *ctx = comm->shared->ctx;
    wf_nccl_streams *s = own->streams = wf_calloc(ctx, 1, sizeof *s);
    if (!s)
        return wf_error_code();
    own->owner = true;
    s->ctx = ctx;
    s->count = wf_config_order_nccl() && is_least(ORDERED) ? WF_NCCL_STREAMS : 1;
    for (int i = 0; i < s->count; i++) {
        s->stream[i].ctx = ctx;
        WF_TRY(ctx->k->stream_new(ctx, &s->stream[i].stream));
        WF_TRY(ctx->k->event_new(ctx, &s->stream[i].ready));
        WF_TRY(ctx->k->event_new(ctx, &s->stream[i].done));
    }
    ctx->comm = comm;
    ctx->await = await;
    ctx->waiting = waiting;
    comm->shared->in_order = true;
    comm->shared->native = &native_link;
    return WF_OK;
}

static wf_status furnish(wf_comm *comm)
{
    wf_nccl *own = comm->nccl = wf_calloc(comm->shared->ctx, 1, sizeof *own);
    if (!own)
        return wf_error_code();
    own->comm = comm;
    if (comm->parent && comm->parent->nccl)
        own->streams = comm->parent->nccl->streams;
    else
        WF_TRY(streams_open(comm, own));
    WF_CHECK(own->streams, WF_ERR_STATE, "the communicator that this one is split from is closed");
    own->stream = &own->streams->stream[comm->nested ? own->streams->count - 1 : 0];
    own->next = own->streams->members;
    own->streams->members = own;
    return WF_OK;
}

/* NCCL blocks until all ranks have come and looks at no clock: the watchdog does. */
wf_status wf_nccl_open(wf_comm *comm)
{
    ncclUniqueId id = {0};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    wf_status status = furnish(comm);
    if (status == WF_OK && comm->rank == 0 && ncclGetUniqueId(&id) != ncclSuccess)
        status = WF_RAISE(WF_ERR_COMM, "ncclGetUniqueId: %.200s", ncclGetLastError(NULL));
    WF_TRY(wf_comm_post_failure(comm, status));
    WF_TRY(wf_bcast_bytes(comm, &id, sizeof id, 0));
    wf_nccl *own = comm->nccl;
    own->family = ++own->streams->families;
    config.splitShare = 1;
    const char *before = wf_watch_swap("ncclCommInitRankConfig");
    const ncclResult_t code = ncclCommInitRankConfig(&own->nccl, comm->size, id, comm->rank, &config);
    wf_watch_swap(before);
    return code == ncclSuccess ? WF_OK : wf_nccl_raise(comm, code, "ncclCommInitRankConfig", __FILE__, __LINE__);
}

wf_status wf_nccl_split(wf_comm *comm, int color, int key, wf_comm *child)
{
    const bool takes = color >= 0 && wf_nccl_wanted(child);
    ncclComm_t made = NULL;
    /* Kernels of communicators that share resources do not overlap. */
    if (child->nested)
        return takes ? wf_nccl_open(child) : WF_OK;
    wf_status status = takes ? furnish(child) : WF_OK;
    if (status == WF_OK && !comm->nccl->nccl)
        status = WF_RAISE(WF_ERR_STATE, "NCCL's communicator was given up");
    /* A rank that failed does not come to NCCL's call, which all others would wait in. */
    WF_TRY(wf_comm_post_failure(comm, status));
    WF_TRY(wf_barrier(comm));
    const char *before = wf_watch_swap("ncclCommSplit");
    const ncclResult_t code = ncclCommSplit(comm->nccl->nccl, takes ? color : NCCL_SPLIT_NOCOLOR, key, &made, NULL);
    wf_watch_swap(before);
    if (code != ncclSuccess)
        return wf_nccl_raise(comm, code, "ncclCommSplit", __FILE__, __LINE__);
    if (takes) {
        child->nccl->nccl = made;
        child->nccl->family = comm->nccl->family;
    }
    return WF_OK;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static bool is_split_from(const wf_comm *comm, const wf_comm *above)
{
    while (comm && comm != above)
        comm = comm->parent;
    return comm != NULL;
}

static void mark_family(const wf_nccl_streams *s, int family)
{
    for (wf_nccl *member = s->members; member; member = member->next)
        member->marked = member->marked || member->family == family;
}

/* NCCL's end of a communicator waits until no graph holds it. */
static void end_graphs(const wf_nccl *member, wf_ctx *ctx, const wf_comm *dead)
{
    wf_ctx_end_captures(ctx, member, dead ? dead->dead : WF_ERR_STATE,
                        dead ? dead->death : "a captured step runs after a communicator that it uses was closed");
}

/* As one group: one after the other they would wait for each other's kernels, which the stream has in a row. */
static void abort_marked(wf_nccl_streams *s, const wf_comm *dead)
{
    const char *before = wf_watch_swap("ncclCommAbort");
    for (wf_nccl *member = s->members; member; member = member->next) {
        if (!member->marked)
            continue;
        /* Else NCCL would keep the following calls of this thread in the group for ever. */
        if (member->grouped)
            ncclGroupEnd();
        member->grouped = false;
        end_graphs(member, s->ctx, dead);
    }
    ncclGroupStart();
    for (wf_nccl *member = s->members; member; member = member->next) {
        if (member->marked && member->nccl)
            ncclCommAbort(member->nccl);
        if (member->marked)
            member->nccl = NULL;
        member->marked = false;
    }
    ncclGroupEnd();
    wf_watch_swap(before);
}

static wf_status abort_now(void *of)
{
    wf_nccl_streams *s = of;
    if (s->dead)
        abort_marked(s, s->dead);
    s->dead = NULL;
    return WF_OK;
}

void wf_nccl_abort(wf_comm *comm)
{
    wf_nccl_streams *s = comm->nccl ? comm->nccl->streams : NULL;
    if (!s)
        return;
    bool any = false;
    for (wf_nccl *member = s->members; member; member = member->next) {
        if (!member->nccl || !is_split_from(member->comm, comm))
            continue;
        mark_family(s, member->family);
        any = true;
    }
    if (!any)
        return;
    if (is_pending(s))
        s->spoilt = comm;
    s->dead = comm;
    /* What is captured holds them until the capture has ended. */
    if (!wf_ctx_capturing(s->ctx))
        (void)abort_now(s);
    else if (wf_ctx_after_capture(s->ctx, abort_now, s) != WF_OK)
        wf_log(WF_LOG_ERROR, "NCCL is not ended: %s", wf_error_message());
}

/* Communicators that are still open when the first one closes cannot call any more. */
static void streams_free(wf_nccl_streams *s)
{
    wf_ctx *ctx = s->ctx;
    for (wf_nccl *member = s->members; member; member = member->next)
        member->marked = true;
    abort_marked(s, NULL);
    for (int i = 0; i < s->count; i++) {
        ctx->k->event_free(ctx, s->stream[i].ready);
        ctx->k->event_free(ctx, s->stream[i].done);
        ctx->k->stream_free(ctx, s->stream[i].stream);
    }
    for (wf_nccl *member = s->members; member; member = member->next)
        member->streams = NULL;
    ctx->await = NULL;
    ctx->waiting = NULL;
    free(s);
}

static void settle(wf_comm *comm, wf_nccl *own)
{
    const bool waits = !comm->dead && own->nccl && is_pending(own->streams);
    const wf_status status = waits ? wait_done(comm, own->streams) : WF_OK;
    if (status != WF_OK)
        wf_log(WF_LOG_ERROR, "a communicator closes with calls on their way: %s", wf_error_message());
    if (comm->dead || status != WF_OK)
        wf_nccl_abort(comm);
    end_graphs(own, own->streams->ctx, comm->dead ? comm : NULL);
    const char *before = wf_watch_swap("ncclCommDestroy");
    if (own->nccl)
        ncclCommDestroy(own->nccl);
    wf_watch_swap(before);
    own->nccl = NULL;
}

static void leave(wf_comm *comm, wf_nccl *own)
{
    wf_nccl_streams *s = own->streams;
    settle(comm, own);
    wf_nccl **at = &s->members;
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
void wf_nccl_close(wf_comm *comm)
{
    wf_nccl *own = comm->nccl;
    if (!own)
        return;
    const char *before = wf_watch_swap("the end of NCCL");
    if (own->streams)
        leave(comm, own);
    wf_watch_swap(before);
    free(own);
    comm->nccl = NULL;
}
