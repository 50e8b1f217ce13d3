#include "comm/guard/guard_impl.h"

#include <sched.h>

#define CANCEL_NS 100000000
#define LOOKS     8 /* at unfinished transfers in a row: at each of them MPI moves all */

void wf_batch_start(wf_batch *batch, int tag)
{
    batch->count = batch->head = 0;
    batch->tag = tag;
    batch->most_bytes = 0;
}

static wf_status room(wf_batch *batch)
{
    if (batch->count < batch->capacity)
        return WF_OK;
    const int capacity = batch->capacity ? 2 * batch->capacity : 64;
    wf_transfer *grown =
        wf_realloc(batch->comm->family->ctx, batch->transfer, (size_t)capacity * sizeof *batch->transfer);
    if (!grown)
        return wf_error_code();
    batch->transfer = grown;
    batch->capacity = capacity;
    return WF_OK;
}

static wf_status post(wf_batch *batch, void *data, size_t bytes, int peer, bool sending)
{
    wf_comm *comm = batch->comm;
    const bool cut = batch->most_bytes > 0 && batch->most_bytes < comm->chunk_bytes;
    const size_t most = cut ? batch->most_bytes : comm->chunk_bytes;
    for (size_t at = 0; at < bytes; at += most) {
        const size_t part = bytes - at < most ? bytes - at : most;
        WF_TRY(room(batch));
        wf_transfer *t = &batch->transfer[batch->count];
        *t = (wf_transfer){
            .data = (char *)data + at, .bytes = part, .peer = peer, .tag = batch->tag, .sending = sending};
        WF_TRY(comm->transport->start(comm, t));
        batch->count++;
    }
    return WF_OK;
}

wf_status wf_batch_send(wf_batch *batch, const void *data, size_t bytes, int to)
{
    const int before = batch->count;
    WF_TRY(post(batch, (void *)data, bytes, to, true));
    batch->comm->traffic.bytes_sent += bytes;
    batch->comm->traffic.messages += (uint64_t)(batch->count - before);
    return WF_OK;
}

wf_status wf_batch_recv(wf_batch *batch, void *data, size_t bytes, int from)
{
    return post(batch, data, bytes, from, false);
}

wf_status wf_batch_send_frame(wf_batch *batch, const wf_frame *frame, int to)
{
    return post(batch, (void *)frame, sizeof *frame, to, true);
}

wf_status wf_batch_recv_frame(wf_batch *batch, wf_frame *frame, int from)
{
    return post(batch, frame, sizeof *frame, from, false);
}

wf_status wf_batch_collective(wf_batch *batch)
{
    batch->count = batch->head = 0;
    WF_TRY(room(batch));
    batch->transfer[0] = (wf_transfer){.peer = -1};
    batch->count = 1;
    return WF_OK;
}

/* At [first, last). */
static wf_status look(wf_batch *batch, int first, int last, bool *moved)
{
    int unfinished = 0;
    for (int i = first > batch->head ? first : batch->head; i < last && unfinished < LOOKS; i++) {
        wf_transfer *t = &batch->transfer[i];
        if (t->done)
            continue;
        WF_TRY(batch->comm->transport->test(batch->comm, t));
        *moved |= t->done;
        unfinished += !t->done;
        if (t->done && t->status != WF_OK)
            return t->status;
    }
    return WF_OK;
}

/* At those that somebody waits for, and at the oldest. */
static wf_status advance(wf_batch *batch, int first, int last, bool *moved)
{
    WF_TRY(look(batch, first, last, moved));
    WF_TRY(look(batch, batch->head, batch->count, moved));
    while (batch->head < batch->count && batch->transfer[batch->head].done)
        batch->head++;
    return WF_OK;
}

static bool finished(const wf_batch *batch, int first, int last)
{
    for (int i = first > batch->head ? first : batch->head; i < last; i++)
        if (!batch->transfer[i].done)
            return false;
    return true;
}

static wf_status check_sizes(const wf_batch *batch, int first, int last)
{
    for (int i = first; i < last; i++) {
        const wf_transfer *t = &batch->transfer[i];
        if (t->sending || t->peer < 0 || t->arrived == t->bytes)
            continue;
        WF_CHECK(t->arrived != SIZE_MAX, WF_ERR_COMM, "rank %d sent more than the %zu bytes that are expected", t->peer,
                 t->bytes);
        WF_FAIL(WF_ERR_COMM, "rank %d sent %zu bytes where %zu are expected", t->peer, t->arrived, t->bytes);
    }
    return WF_OK;
}

wf_status wf_batch_wait(wf_batch *batch, int first, int last)
{
    wf_patience patience = wf_patience_new();
    for (;;) {
        bool moved = false;
        WF_TRY(advance(batch, first, last, &moved));
        if (finished(batch, first, last))
            return check_sizes(batch, first, last);
        if (moved)
            patience = wf_patience_new();
        WF_TRY(wf_patience_poll(batch->comm, &patience, batch));
    }
}

wf_status wf_batch_poll(wf_batch *batch)
{
    bool moved = false;
    return advance(batch, 0, 0, &moved);
}

wf_status wf_batch_look(wf_batch *batch, int first, int last, bool *done)
{
    bool moved = false;
    *done = false;
    WF_TRY(advance(batch, first, last, &moved));
    if (!finished(batch, first, last))
        return WF_OK;
    *done = true;
    return check_sizes(batch, first, last);
}

wf_status wf_batch_wait_all(wf_batch *batch)
{
    return wf_batch_wait(batch, 0, batch->count);
}

/* A receive that has begun to arrive cannot be called back, but is usually over soon. */
bool wf_batch_cancel(wf_batch *batch)
{
    const int64_t end = wf_now_ns() + CANCEL_NS;
    bool left = false;
    for (int i = batch->head; i < batch->count; i++)
        if (!batch->transfer[i].done)
            batch->comm->transport->cancel(batch->comm, &batch->transfer[i]);
    do {
        left = false;
        for (int i = batch->head; i < batch->count; i++) {
            wf_transfer *t = &batch->transfer[i];
            if (!t->done && batch->comm->transport->test(batch->comm, t) != WF_OK)
                t->done = true;
            left |= !t->done;
        }
        sched_yield();
    } while (left && wf_now_ns() < end);
    for (int i = batch->head; i < batch->count; i++)
        if (!batch->transfer[i].done)
            wf_pool_hold(batch->comm->family->ctx, batch->transfer[i].data);
    batch->count = batch->head = 0;
    return !left;
}
