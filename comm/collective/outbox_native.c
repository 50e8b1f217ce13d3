/* The tensors of an outbox that move natively. Each message, or each group of them, is one launch on a stream, which
 * computations do not wait for; a computation that needs one waits for the event behind it. What is sent is kept until
 * the context's stream is behind the launch: only then may the pool give its memory to later work. */
#include "comm/collective/outbox_impl.h"

typedef wf_outbox_message transfer;

bool wf_outbox_connects(const wf_outbox *outbox)
{
    return outbox && outbox->comm->native;
}

static transfer *transfer_of(wf_outbox *outbox, const wf_tensor *x, int peer, bool sends)
{
    transfer *t = wf_outbox_take(outbox, &outbox->unused);
    if (!t)
        return NULL;
    t->peer = peer;
    t->sends = sends;
    t->x = wf_tensor_alias(x);
    if (t->x)
        return t;
    wf_outbox_recycle(t, &outbox->unused);
    return NULL;
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static wf_status mark_event(wf_outbox *outbox, transfer *t)
{
    wf_ctx *ctx = outbox->comm->shared->ctx;
    if (t->sends || t->buffer.bytes == 0)
        return WF_OK;
    if (!t->event)
        WF_TRY(ctx->k->event_new(ctx, &t->event));
    return wf_transport_native.record(outbox->comm, t->event);
}

/* Gives the group to the transport as one launch; the other rank of a message may have it in any other group. */
static wf_status launch(wf_outbox *outbox)
{
    wf_comm *comm = outbox->comm;
    bool any = false;
    for (const transfer *t = outbox->group; t; t = t->next)
        any = any || t->buffer.bytes > 0;
    if (any) {
        WF_TRY(wf_native_begin(comm));
        for (const transfer *t = outbox->group; t; t = t->next)
            WF_TRY(wf_native_pass(comm, t->sends ? WF_NATIVE_SEND : WF_NATIVE_RECV, &t->buffer, t->peer));
        WF_TRY(wf_transport_native.end(comm, false));
    }
    outbox->launches++;
    for (transfer *t; (t = outbox->group);) {
        WF_TRY(mark_event(outbox, t));
        t->launch = outbox->launches;
        outbox->group = t->next;
        t->next = outbox->under_way;
        outbox->under_way = t;
    }
    return WF_OK;
}

static wf_status add_transfer(wf_outbox *outbox, const wf_tensor *x, int peer, bool sends)
{
    transfer **at = &outbox->group, *t = transfer_of(outbox, x, peer, sends);
    WF_NEED(t);
    const wf_status status = (sends ? wf_buffer_read : wf_buffer_room)(outbox->comm, t->x, true, &t->buffer);
    if (status != WF_OK) {
        wf_outbox_recycle(t, &outbox->unused);
        return status;
    }
    while (*at)
        at = &(*at)->next;
    t->next = NULL;
    *at = t;
    return outbox->grouping ? WF_OK : launch(outbox);
}

void wf_outbox_group_begin(wf_outbox *outbox)
{
    outbox->grouping = true;
}

static wf_status group_end(wf_outbox *outbox)
{
    WF_TRY(wf_comm_alive(outbox->comm));
    return outbox->group ? launch(outbox) : WF_OK;
}

wf_status wf_outbox_group_end(wf_outbox *outbox)
{
    outbox->grouping = false;
    return wf_guard_end(outbox->comm, "send", group_end(outbox));
}

/* --- the two ends ------------------------------------------------------------------------------------------------- */

static wf_status post_tensor(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_TRY(wf_outbox_send_frame(outbox, x, to));
    return add_transfer(outbox, x, to, true);
}

wf_status wf_outbox_post(wf_outbox *outbox, const wf_tensor *x, int to)
{
    WF_NEED(outbox);
    if (!wf_outbox_connects(outbox))
        return wf_outbox_send(outbox, x, to);
    return wf_guard_end(outbox->comm, "send", post_tensor(outbox, x, to));
}

static wf_status expect(wf_outbox *outbox, int from, wf_tensor **y)
{
    wf_comm *comm = outbox->comm;
    WF_TRY(wf_guard_point(comm, "recv", from, WF_OUTBOX_TAG));
    WF_TRY(wf_lists_look_new(comm, from, y));
    return add_transfer(outbox, *y, from, false);
}

wf_tensor *wf_outbox_expect(wf_outbox *outbox, int from)
{
    wf_tensor *y = NULL;
    WF_NEED_NULL(outbox);
    if (!wf_outbox_connects(outbox))
        return wf_outbox_receive(outbox->comm, from);
    if (wf_guard_end(outbox->comm, "recv", expect(outbox, from, &y)) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

/* --- their ends on the device ------------------------------------------------------------------------------------- */

static wf_status arrive(wf_outbox *outbox, transfer *t)
{
    wf_ctx *ctx = outbox->comm->shared->ctx;
    if (t->buffer.bytes > 0)
        WF_TRY(ctx->k->event_wait(ctx, t->event, NULL));
    return wf_buffer_store(&t->buffer);
}

/* Tensors sent until then have left their memory for all later work of the context's stream. */
static void drop_sent(wf_outbox *outbox, uint64_t launch)
{
    for (transfer **at = &outbox->under_way; *at;) {
        transfer *t = *at;
        if (!t->sends || t->launch > launch) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        wf_outbox_recycle(t, &outbox->unused);
    }
}

wf_status wf_outbox_await(wf_outbox *outbox, const wf_tensor *x)
{
    WF_NEED(outbox);
    WF_NEED(x);
    for (transfer **at = &outbox->under_way; *at; at = &(*at)->next) {
        transfer *t = *at;
        if (t->sends || t->x->storage != x->storage)
            continue;
        WF_TRY(arrive(outbox, t));
        /* An empty tensor has no event, so it tells nothing about earlier launches. */
        const uint64_t launch = t->buffer.bytes > 0 ? t->launch : 0;
        *at = t->next;
        wf_outbox_recycle(t, &outbox->unused);
        drop_sent(outbox, launch);
        return WF_OK;
    }
    return WF_OK;
}

wf_status wf_outbox_join(wf_outbox *outbox)
{
    if (wf_outbox_connects(outbox))
        WF_TRY(wf_transport_native.join(outbox->comm));
    for (transfer *t; (t = outbox->under_way);) {
        if (!t->sends)
            WF_TRY(wf_buffer_store(&t->buffer));
        outbox->under_way = t->next;
        wf_outbox_recycle(t, &outbox->unused);
    }
    return WF_OK;
}
