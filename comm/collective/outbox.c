/* Messages whose sender goes on: each is a schedule of its own, beside that of the communicator's call. They are looked
 * at when something is sent, in the outbox's wait, and wherever the context's long operations advance what is in
 * flight. */
#include "comm/outbox_author.h"

#include "comm/collective/collective_impl.h"

#include <stdlib.h>

_Static_assert(WF_OUTBOX_TAG == WF_TAGS - 1, "the last of the users' tags");

enum { MOST_SPARE = 64 };

typedef struct message {
    struct message *next;
    struct wf_engine_entry *entry; /* sends so many bytes there */
    int to;
    size_t bytes;
    wf_engine_call flight;
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
        bool moved = false, done;
        WF_CHECK(m->status == WF_OK, m->status, "a message that was on its way to another rank failed");
        WF_TRY(wf_engine_advance(&m->flight, &moved, &done));
        if (!done)
            return WF_OK;
        wf_engine_end(outbox->comm, &m->flight, WF_OK);
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
    bool moved = false, done;
    for (message *m = outbox->first; m && m->status == WF_OK; m = m->next)
        m->status = wf_engine_advance(&m->flight, &moved, &done);
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
        wf_engine_end(outbox->comm, &m->flight, WF_ERR_STATE);
        recycle(outbox, m);
    }
    follow(outbox);
    while (outbox->spare) {
        message *m = outbox->spare;
        outbox->spare = m->next;
        wf_engine_entry_free(m->entry);
        wf_comm_release(outbox->comm, m); /* its frame may be on its way */
    }
    free(outbox);
}

/* Type and shape first, as in every message of a tensor; they are not counted as payload. */
static wf_status make_entry(wf_outbox *outbox, message *m, int to, size_t bytes)
{
    wf_comm *comm = outbox->comm;
    wf_schedule *schedule;
    wf_builder *b = wf_builder_new(comm->shared->ctx, wf_engine_agreed(comm), comm->rank);
    wf_add_send_frame(b, wf_builder_operand(b, WF_OPERAND_INPUT, 0, sizeof m->frame), sizeof m->frame, to);
    wf_add_send(b, wf_builder_operand(b, WF_OPERAND_INPUT, 1, bytes), bytes, to);
    WF_TRY(wf_builder_end(b, &schedule));
    wf_engine_entry_free(m->entry);
    m->entry = wf_engine_entry_new(comm, schedule);
    WF_NEED(m->entry);
    m->to = to;
    m->bytes = bytes;
    return WF_OK;
}

/* The spare message that has the schedule already, else a new one; with many of them the one that was spare longest, so
 * that messages of ever new lengths take no more memory. */
static message *message_of(wf_outbox *outbox, int to, size_t bytes)
{
    message **at = &outbox->spare, **oldest = at;
    int spares = 0;
    for (; *at && !((*at)->to == to && (*at)->bytes == bytes); at = &(*at)->next, spares++)
        oldest = at;
    if (!*at && spares >= MOST_SPARE)
        at = oldest;
    message *m = *at;
    if (m)
        *at = m->next;
    else
        m = wf_calloc(outbox->comm->shared->ctx, 1, sizeof *m);
    return m;
}

static wf_status prepare(wf_outbox *outbox, message *m, const wf_tensor *x, int to)
{
    m->frame = wf_frame_of(x);
    m->x = wf_tensor_alias(x);
    WF_NEED(m->x);
    WF_TRY(wf_buffer_read(outbox->comm, m->x, false, &m->buffer));
    return m->entry && m->to == to && m->bytes == m->buffer.bytes ? WF_OK : make_entry(outbox, m, to, m->buffer.bytes);
}

static wf_status post(wf_outbox *outbox, const wf_tensor *x, int to)
{
    bool moved = false, done;
    message *m = message_of(outbox, to, wf_tensor_bytes(x));
    WF_NEED(m);
    const wf_status ready = prepare(outbox, m, x, to);
    if (ready != WF_OK) {
        recycle(outbox, m);
        return ready;
    }
    m->next = NULL;
    m->status = WF_OK;
    *outbox->last = m;
    outbox->last = &m->next;
    const void *const in[] = {&m->frame, m->buffer.data};
    WF_TRY(wf_engine_post(outbox->comm, m->entry, NULL, in, NULL, &m->flight));
    return wf_engine_advance(&m->flight, &moved, &done);
}

static wf_status send(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_TRY(wf_comm_alive(outbox->comm));
    WF_NEED(x);
    WF_TRY(wf_guard_point(outbox->comm, "send", to, WF_OUTBOX_TAG));
    WF_TRY(sweep(outbox));
    WF_TRY(post(outbox, x, to));
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
    for (message *m = outbox->first; m && m->status == WF_OK; m = m->next)
        WF_TRY(wf_engine_wait(outbox->comm, &m->flight));
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
