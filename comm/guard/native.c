/* Calls of a native transport, and waits for what it has on its way, with the communicator's deadline. */
#include "comm/guard/guard_impl.h"

#include "core/captured_author.h"
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

/* Waits for a connection. Background operations would call the transport in the midst of its own call, so none runs. */
static wf_status wait_ready(wf_comm *comm)
{
    wf_comm_shared *const shared = comm->shared;
    const bool runs = shared->background_runs;
    wf_deadline deadline = wf_deadline_new();
    bool ready = false;
    shared->background_runs = true;
    wf_status status = wf_transport_native.ready(comm, &ready);
    while (status == WF_OK && !ready) {
        status = wf_deadline_poll(comm, &deadline);
        if (status == WF_OK)
            status = wf_transport_native.ready(comm, &ready);
    }
    shared->background_runs = runs;
    return status;
}

wf_status wf_native_connect(wf_comm *comm, const wf_native_id *id)
{
    comm->call.record = wf_call_record_plain("connect", -1);
    return wf_transport_native.connect(comm, id, wait_ready);
}

/* Waits before the host reads a value, which may come from a rank that never sends it. A rank whose communicator died
 * in the meantime learns it here. */
static wf_status await_values(void *of)
{
    wf_comm *comm = of;
    wf_status status = WF_OK;
    if (!comm->native)
        return WF_OK;
    if (comm->call.entered) {
        status = wait_done(comm);
    } else if (wf_transport_native.pending(comm)) {
        const char *before = wf_watch_swap("wait for a GPU");
        status = wf_guard_end(comm, "wait for a GPU", wait_done(comm));
        wf_watch_swap(before);
    }
    const wf_comm *spoilt = wf_transport_native.forget(comm);
    WF_TRY(status);
    return spoilt ? WF_RAISE(spoilt->death.status, "%s", spoilt->death.text) : WF_OK;
}

/* Looks at the communicator while the context waits for the device. Short waits, which are the usual ones, keep the
 * processor; longer ones yield it. */
static wf_status poll_in_wait(void *of, wf_wait *wait)
{
    wf_comm *comm = of;
    if (!comm->native || comm->death.status)
        return WF_OK;
    const bool at_once = wf_wait_ns(wait) < AT_ONCE_NS;
    wf_deadline deadline = {.wait = *wait, .polls = at_once ? 0 : LATER, .peer = -1};
    wf_status status = wf_transport_native.poll(comm, true);
    if (status == WF_OK)
        status = wf_deadline_poll(comm, &deadline);
    *wait = deadline.wait;
    return status == WF_OK || comm->call.entered ? status : wf_guard_end(comm, "wait for a GPU", status);
}

void wf_native_watch(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    if (!comm->native || ctx->await)
        return;
    ctx->comm = comm;
    ctx->await = await_values;
    ctx->waiting = poll_in_wait;
}

/* Checks the communicator before a captured step runs: on a GPU the step would wait for a rank that is gone. */
static wf_status check_alive(void *of)
{
    wf_comm *comm = of;
    WF_TRY(wf_comm_alive(comm));
    return wf_comm_post_failure(comm, wf_transport_native.poll(comm, false));
}

wf_status wf_native_begin(wf_comm *comm)
{
    WF_TRY(wf_ctx_capture_uses(comm->shared->ctx, check_alive, comm));
    return wf_transport_native.begin(comm);
}

static wf_status copy(wf_comm *comm, const wf_strided *x, const wf_strided *y)
{
    wf_ctx *ctx = comm->shared->ctx;
    if (x->data == y->data || x->dim[0] == 0)
        return WF_OK;
    /* The context's stream waits for what has come; the transport waits for that stream by itself. */
    if (comm->native)
        WF_TRY(wf_transport_native.join(comm));
    if (y->dtype != x->dtype)
        comm->traffic.bytes_copied += (size_t)x->dim[0] * wf_dtype_size(x->dtype);
    return ctx->k->copy(ctx, x, y, false);
}

wf_status wf_native_run(void *own, wf_native_kind kind, wf_reduce_op op, int peer, const wf_strided *x,
                        const wf_strided *y)
{
    wf_comm *comm = own;
    switch (kind) {
    case WF_NATIVE_COPY:
        return copy(comm, x, y);
    case WF_NATIVE_GROUP:
        return wf_native_begin(comm);
    case WF_NATIVE_LAUNCH:
    case WF_NATIVE_LEAVE:
        return wf_transport_native.end(comm, kind == WF_NATIVE_LAUNCH);
    case WF_NATIVE_JOIN:
        return wf_transport_native.join(comm);
    default:
        if (x->dim[0] > 0)
            WF_TRY(wf_ctx_capture_uses(comm->shared->ctx, check_alive, comm));
        return wf_transport_native.call(comm, kind, op, peer, x, y);
    }
}

void wf_native_close(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    if (!comm->native)
        return;
    const char *before = wf_watch_swap("wait for a GPU");
    const wf_status status = comm->death.status ? WF_OK : wait_done(comm);
    if (status != WF_OK)
        wf_log_write(WF_LOG_ERROR, "a communicator closes with calls on their way: %s", wf_error_message());
    if (comm->death.status || status != WF_OK)
        wf_transport_native.give_up(comm);
    wf_transport_native.close(comm);
    wf_watch_swap(before);
    if (ctx->comm != comm)
        return;
    ctx->await = NULL;
    ctx->waiting = NULL;
}

wf_status wf_comm_forbid_capture(wf_comm *comm, const char *what)
{
    return wf_ctx_forbid_capture(comm->shared->ctx, what, "let NCCL move device memory (communicator \"pure_nccl\")");
}
