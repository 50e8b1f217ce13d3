/* Waits for what a native transport has on its way, with the communicator's deadline. */
#include "comm/guard/guard_impl.h"

#include "core/log.h"

#define AT_ONCE_NS 50000 /* in which a wait does not offer the processor to others */
#define LATER      1000  /* polls */

static wf_status wait_done(wf_comm *comm)
{
    wf_deadline deadline = wf_deadline_new();
    bool done;
    WF_TRY(wf_transport_native.test(comm, &done));
    while (!done) {
        WF_TRY(wf_deadline_poll(comm, &deadline));
        WF_TRY(wf_transport_native.test(comm, &done));
    }
    return WF_OK;
}

/* What the host reads may come from another rank that never sends it. The rank of a communicator that died on the way
 * hears of it here. */
static wf_status await(void *of)
{
    wf_comm *comm = of;
    wf_status status = WF_OK;
    if (!comm->native)
        return WF_OK;
    if (comm->inside) {
        status = wait_done(comm);
    } else if (wf_transport_native.pending(comm)) {
        const char *before = wf_watch_swap("wait for a GPU");
        status = wf_guard_end(comm, "wait for a GPU", wait_done(comm));
        wf_watch_swap(before);
    }
    const wf_comm *spoilt = wf_transport_native.forget(comm);
    WF_TRY(status);
    return spoilt ? WF_RAISE(spoilt->dead, "%s", spoilt->death) : WF_OK;
}

/* The context calls it in its own waits for the device. Short waits, which are the usual ones, keep the processor;
 * longer ones offer it to others. */
static wf_status waiting(void *of, int64_t *since)
{
    wf_comm *comm = of;
    wf_deadline deadline = wf_deadline_new();
    if (!comm->native || comm->dead)
        return WF_OK;
    if (*since == 0)
        *since = deadline.start_ns;
    deadline.polls = deadline.start_ns - *since < AT_ONCE_NS ? 0 : LATER;
    deadline.start_ns = *since;
    wf_status status = wf_transport_native.poll(comm, true);
    if (status == WF_OK)
        status = wf_deadline_poll(comm, &deadline);
    return status == WF_OK || comm->inside ? status : wf_guard_end(comm, "wait for a GPU", status);
}

wf_status wf_native_open(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    WF_TRY(wf_transport_native.open(comm));
    if (!comm->native || ctx->await)
        return WF_OK;
    ctx->comm = comm;
    ctx->await = await;
    ctx->waiting = waiting;
    return WF_OK;
}

void wf_native_close(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    if (!comm->native)
        return;
    const char *before = wf_watch_swap("wait for a GPU");
    const wf_status status = comm->dead ? WF_OK : wait_done(comm);
    if (status != WF_OK)
        wf_log(WF_LOG_ERROR, "a communicator closes with calls on their way: %s", wf_error_message());
    if (comm->dead || status != WF_OK)
        wf_transport_native.give_up(comm);
    wf_transport_native.close(comm);
    wf_watch_swap(before);
    if (ctx->comm != comm)
        return;
    ctx->await = NULL;
    ctx->waiting = NULL;
}
