/* Messages whose sender goes on: each is a call of the engine, beside that of the communicator. They are looked at
 * when something is sent, in the outbox's wait, and wherever the context's long operations advance what is in
 * flight. */
#include "comm/collective/outbox_impl.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(WF_OUTBOX_TAG == WF_TAGS - 1, "the last of the users' tags");

typedef wf_outbox_message message;

message *wf_outbox_take(wf_outbox *outbox, message **spare)
{
    message *m = *spare;
    if (!m)
        return wf_calloc(outbox->comm->shared->ctx, 1, sizeof *m);
    *spare = m->next;
    return m;
}

void wf_outbox_recycle(message *m, message **spare)
{
    wf_buffer_free(&m->buffer);
    wf_tensor_free(m->x);
    m->x = NULL;
    m->next = *spare;
    *spare = m;
}

/* Frees the oldest messages, as far as they have been sent. */
static wf_status sweep(wf_outbox *outbox)
{
    while (outbox->first) {
        message *m = outbox->first;
        bool moved = false;
        WF_CHECK(m->status == WF_OK, m->status, "a message that was on its way to another rank failed");
        WF_TRY(wf_run_advance(m->flight->run, &moved));
        if (!wf_run_done(m->flight->run))
            return WF_OK;
        wf_engine_end(outbox->comm, &m->flight, WF_OK);
        outbox->first = m->next;
        if (!outbox->first)
            outbox->last = &outbox->first;
        wf_outbox_recycle(m, &outbox->spare);
    }
    return WF_OK;
}

/* Keeps an error in its message: the next send or the wait returns it. */
static void progress(void *own)
{
    const wf_outbox *outbox = own;
    bool moved = false;
    for (message *m = outbox->first; m && m->status == WF_OK; m = m->next)
        m->status = wf_run_advance(m->flight->run, &moved);
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

/* Frees a list of messages, of which those on their way are given up. */
static void free_list(const wf_outbox *outbox, message **list)
{
    const wf_kernels *k = outbox->comm->shared->ctx->k;
    while (*list) {
        message *m = *list;
        *list = m->next;
        wf_engine_end(outbox->comm, &m->flight, WF_ERR_STATE);
        wf_buffer_free(&m->buffer);
        wf_tensor_free(m->x);
        if (m->event)
            k->event_free(outbox->comm->shared->ctx, m->event);
        wf_comm_release(outbox->comm, m); /* whose frame may be on its way */
    }
}

void wf_outbox_free(wf_outbox *outbox)
{
    if (!outbox)
        return;
    free_list(outbox, &outbox->first);
    free_list(outbox, &outbox->group);
    free_list(outbox, &outbox->under_way);
    free_list(outbox, &outbox->spare);
    free_list(outbox, &outbox->unused);
    follow(outbox);
    free(outbox);
}

/* The contents of a message: a frame, and a tensor or bytes of the host, or nothing. */
typedef struct contents {
    wf_frame frame;
    const wf_tensor *x;
    const void *told;
    size_t bytes;
} contents;

static wf_status prepare(wf_outbox *outbox, message *m, const contents *c)
{
    m->frame = c->frame;
    if (c->told) {
        m->buffer = (wf_buffer){.comm = outbox->comm, .bytes = c->bytes};
        WF_TRY(wf_pool_take_host(outbox->comm->shared->ctx, c->bytes, &m->buffer.staged));
        m->buffer.data = memcpy(m->buffer.staged, c->told, c->bytes);
    }
    if (!c->x)
        return WF_OK;
    m->x = wf_tensor_alias(c->x);
    WF_NEED(m->x);
    return wf_buffer_read(outbox->comm, m->x, false, &m->buffer);
}

static wf_status post_message(wf_outbox *outbox, const contents *c, int to)
{
    wf_comm *comm = outbox->comm;
    bool moved = false;
    message *m = wf_outbox_take(outbox, &outbox->spare);
    WF_NEED(m);
    const wf_status ready = prepare(outbox, m, c);
    if (ready != WF_OK) {
        wf_outbox_recycle(m, &outbox->spare);
        return ready;
    }
    const wf_traffic before = comm->traffic;
    const wf_status posted = wf_lists_post(comm, &m->frame, m->buffer.data, c->bytes, to, &m->flight);
    if (posted != WF_OK) {
        wf_engine_end(comm, &m->flight, posted);
        wf_outbox_recycle(m, &outbox->spare);
        return posted;
    }
    m->next = NULL;
    m->status = WF_OK;
    *outbox->last = m;
    outbox->last = &m->next;
    if (c->told)
        comm->traffic = before; /* it is no payload */
    return wf_run_advance(m->flight->run, &moved);
}

static wf_status send(wf_outbox *outbox, const contents *c, int to)
{
    WF_TRY(wf_guard_point(outbox->comm, "send", to, WF_OUTBOX_TAG));
    WF_TRY(sweep(outbox));
    WF_TRY(post_message(outbox, c, to));
    follow(outbox);
    return sweep(outbox);
}

static wf_status send_tensor(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_NEED(x);
    return send(outbox, &(contents){.frame = wf_frame_of(x), .x = x, .bytes = wf_tensor_bytes(x)}, to);
}

wf_status wf_outbox_send(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_NEED(outbox);
    return wf_guard_end(outbox->comm, "send", send_tensor(outbox, x, to));
}

wf_status wf_outbox_send_frame(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_NEED(x);
    return send(outbox, &(contents){.frame = wf_frame_of(x)}, to);
}

wf_status wf_outbox_send_bytes(wf_outbox *outbox, const void *data, size_t bytes, int to)
{
    WF_NEED(outbox);
    WF_NEED(data);
    const contents c = {.frame = {.dtype = WF_U8, .rank = 1, .dim = {(int64_t)bytes}}, .told = data, .bytes = bytes};
    return wf_guard_end(outbox->comm, "send", send(outbox, &c, to));
}

static wf_status wait(wf_outbox *outbox)
{
    WF_TRY(wf_comm_alive(outbox->comm));
    for (message *m = outbox->first; m && m->status == WF_OK; m = m->next)
        WF_TRY(wf_engine_wait(outbox->comm, m->flight));
    WF_TRY(sweep(outbox));
    follow(outbox);
    return wf_outbox_connects(outbox) ? wf_outbox_join(outbox) : WF_OK;
}

wf_status wf_outbox_wait(wf_outbox *outbox)
{
    WF_NEED(outbox);
    return wf_guard_end(outbox->comm, "send", wait(outbox));
}

wf_tensor *wf_outbox_receive(wf_comm *comm, int from)
{
    WF_NEED_NULL(comm);
    return wf_coll_recv_new(comm, from, WF_OUTBOX_TAG, SIZE_MAX);
}

static wf_status hear(wf_comm *comm, void *data, size_t bytes, int from)
{
    size_t sent;
    WF_TRY(wf_guard_point(comm, "recv", from, WF_OUTBOX_TAG));
    WF_TRY(wf_lists_look_bytes(comm, from, &sent));
    WF_CHECK(sent == bytes, WF_ERR_COMM, "rank %s sent %zu bytes where %zu are expected", WF_RANK(comm, from), sent,
             bytes);
    return wf_coll_receive(comm, data, bytes, from);
}

wf_status wf_outbox_receive_bytes(wf_comm *comm, void *data, size_t bytes, int from)
{
    WF_NEED(comm);
    WF_NEED(data);
    return wf_guard_end(comm, "recv", hear(comm, data, bytes, from));
}
