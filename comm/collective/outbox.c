/* Messages whose sender goes on: each has a set of transfers of its own, beside that of the communicator's call. They
 * are looked at when something is sent, in the outbox's wait, and wherever the context's long operations advance what
 * is in flight. */
#include "comm/outbox_author.h"

#include "comm/collective/collective_impl.h"

#include <stdlib.h>

_Static_assert(WF_OUTBOX_TAG == WF_TAGS - 1, "the last of the users' tags");

typedef struct message {
    struct message *next;
    wf_requests requests;
    wf_status status; /* of progress */
    wf_tensor *x;
    wf_buffer buffer;
    wf_frame frame;
} message;

struct wf_outbox {
    wf_comm *comm;
    message *first, **last; /* on their way, in order */
    message *spare;         /* so that a steady loop allocates nothing */
};

static void recycle(wf_outbox *outbox, message *m)
{
    wf_buffer_free(&m->buffer);
    wf_tensor_free(m->x);
    m->x = NULL;
    m->next = outbox->spare;
    outbox->spare = m;
}

/* Frees those in front that are gone. */
static wf_status sweep(wf_outbox *outbox)
{
    while (outbox->first) {
        message *m = outbox->first;
        bool done;
        WF_CHECK(m->status == WF_OK, m->status, "a message that was on its way to another rank failed");
        WF_TRY(wf_requests_look(&m->requests, 0, m->requests.count, &done));
        if (!done)
            return WF_OK;
        outbox->first = m->next;
        if (!outbox->first)
            outbox->last = &outbox->first;
        recycle(outbox, m);
    }
    return WF_OK;
}

/* Nobody takes an error here; the next send or the wait returns it. */
static void progress(void *own)
{
    const wf_outbox *outbox = own;
    for (message *m = outbox->first; m && m->status == WF_OK; m = m->next)
        m->status = wf_requests_poll(&m->requests);
}

static void follow(wf_outbox *outbox)
{
    wf_ctx *ctx = outbox->comm->shared->ctx;
    if (outbox->first && !ctx->progress) {
        ctx->progress = progress;
        ctx->progress_state = outbox;
    } else if (!outbox->first && ctx->progress_state == outbox) {
        ctx->progress = NULL;
        ctx->progress_state = NULL;
    }
}

wf_outbox *wf_outbox_new(wf_comm *comm)
{
    WF_NEED_NULL(comm);
    wf_outbox *outbox = wf_calloc(comm->shared->ctx, 1, sizeof *outbox);
    if (!outbox)
        return wf_error_null();
    outbox->comm = comm;
    outbox->last = &outbox->first;
    return outbox;
}

void wf_outbox_free(wf_outbox *outbox)
{
    if (!outbox)
        return;
    while (outbox->first) {
        message *m = outbox->first;
        outbox->first = m->next;
        /* Memory that is still read by the transport stays, with its communicator. */
        if (!wf_requests_cancel(&m->requests))
            outbox->comm->lost = true;
        recycle(outbox, m);
    }
    follow(outbox);
    while (outbox->spare) {
        message *m = outbox->spare;
        outbox->spare = m->next;
        wf_comm_release(outbox->comm, m->requests.transfer);
        wf_comm_release(outbox->comm, m);
    }
    free(outbox);
}

static message *message_new(wf_outbox *outbox)
{
    message *m = outbox->spare;
    if (m)
        outbox->spare = m->next;
    else
        m = wf_calloc(outbox->comm->shared->ctx, 1, sizeof *m);
    if (m) {
        m->next = NULL;
        m->requests.comm = outbox->comm;
        m->status = WF_OK;
    }
    return m;
}

/* Type and shape first, as in every message of a tensor; they are not counted as payload. */
static wf_status post(wf_outbox *outbox, message *m, const wf_tensor *x, int to)
{
    wf_comm *comm = outbox->comm;
    const wf_traffic before = comm->traffic;
    m->frame = wf_frame_of(x);
    m->x = wf_tensor_alias(x);
    WF_NEED(m->x);
    WF_TRY(wf_buffer_read(comm, m->x, false, &m->buffer));
    wf_requests_start(&m->requests, WF_OUTBOX_TAG);
    WF_TRY(wf_requests_send(&m->requests, &m->frame, sizeof m->frame, to));
    comm->traffic = before;
    return wf_requests_send(&m->requests, m->buffer.data, m->buffer.bytes, to);
}

static wf_status send(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_TRY(wf_comm_alive(outbox->comm));
    WF_NEED(x);
    WF_TRY(wf_guard_point(outbox->comm, "send", to, WF_OUTBOX_TAG));
    WF_TRY(sweep(outbox));
    message *m = message_new(outbox);
    if (!m)
        return wf_error_code();
    *outbox->last = m;
    outbox->last = &m->next;
    WF_TRY(post(outbox, m, x, to));
    follow(outbox);
    return sweep(outbox);
}

wf_status wf_outbox_send(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_NEED(outbox);
    return wf_guard_end(outbox->comm, "send", send(outbox, x, to));
}

static wf_status wait(wf_outbox *outbox)
{
    WF_TRY(wf_comm_alive(outbox->comm));
    for (message *m = outbox->first; m; m = m->next)
        WF_TRY(wf_requests_wait_all(&m->requests));
    WF_TRY(sweep(outbox));
    follow(outbox);
    return WF_OK;
}

wf_status wf_outbox_wait(wf_outbox *outbox)
{
    WF_NEED(outbox);
    return wf_guard_end(outbox->comm, "send", wait(outbox));
}

static wf_status receive(wf_comm *comm, int from, wf_tensor **y)
{
    wf_dtype dtype;
    wf_shape shape;
    wf_buffer buffer = {0};
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_point(comm, "recv", from, WF_OUTBOX_TAG));
    WF_TRY(wf_peer_slots_look(comm, from, &dtype, &shape));
    *y = wf_tensor_new(comm->shared->ctx, dtype, shape);
    WF_NEED(*y);
    WF_TRY(wf_buffer_room(comm, *y, false, &buffer));
    const wf_call call = {.operation = WF_CALL_RECEIVE, .dtype = WF_U8, .count = (int64_t)buffer.bytes, .root = from};
    wf_status status = wf_engine_run(comm, &call, NULL, buffer.data);
    if (status == WF_OK)
        status = wf_buffer_store(&buffer);
    wf_buffer_free(&buffer);
    return status;
}

wf_tensor *wf_outbox_receive(wf_comm *comm, int from)
{
    wf_tensor *y = NULL;
    WF_NEED_NULL(comm);
    if (wf_guard_end(comm, "recv", receive(comm, from, &y)) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}
