/* Sets of messages in flight: cut into chunks, started, looked at, awaited, cancelled. Between the collectives and a
 * transport. It counts what is sent and knows no collective. */
#include "comm/guard/guard_impl.h"

#include <sched.h>
#include <stdlib.h>

#define CANCEL_NS 100000000
#define LOOKS     8 /* at unfinished transfers in a row: at each of them MPI moves all */

void wf_requests_start(wf_requests *requests, int tag)
{
    requests->count = requests->head = 0;
    requests->tag = tag;
    requests->most_bytes = 0;
}

static wf_status make_room(wf_requests *requests)
{
    if (requests->count < requests->capacity)
        return WF_OK;
    const int capacity = requests->capacity ? 2 * requests->capacity : 64;
    wf_transfer *grown =
        wf_realloc(requests->comm->shared->ctx, requests->transfer, (size_t)capacity * sizeof *requests->transfer);
    if (!grown)
        return wf_error_code();
    requests->transfer = grown;
    requests->capacity = capacity;
    return WF_OK;
}

static wf_status post_chunks(wf_requests *requests, void *data, size_t bytes, int peer, bool sending)
{
    wf_comm *comm = requests->comm;
    /* Both sides cut by the same rule, so piece i of one meets piece i of the other. */
    const bool cut = requests->most_bytes > 0 && requests->most_bytes < comm->chunk_bytes;
    const size_t most = cut ? requests->most_bytes : comm->chunk_bytes;
    for (size_t at = 0; at < bytes; at += most) {
        const size_t part = bytes - at < most ? bytes - at : most;
        WF_TRY(make_room(requests));
        wf_transfer *t = &requests->transfer[requests->count];
        *t = (wf_transfer){
            .data = (char *)data + at, .bytes = part, .peer = peer, .tag = requests->tag, .sending = sending};
        WF_TRY(comm->transport->start(comm, t));
        requests->count++;
    }
    return WF_OK;
}

wf_status wf_requests_send(wf_requests *requests, const void *data, size_t bytes, int to)
{
    const int before = requests->count;
    WF_TRY(post_chunks(requests, (void *)data, bytes, to, true));
    /* Counted here alone, below all collectives: this is the number that tests hold against the formulas. */
    requests->comm->traffic.bytes_sent += bytes;
    requests->comm->traffic.messages += (uint64_t)(requests->count - before);
    return WF_OK;
}

wf_status wf_requests_recv(wf_requests *requests, void *data, size_t bytes, int from)
{
    return post_chunks(requests, data, bytes, from, false);
}

wf_status wf_requests_collective(wf_requests *requests)
{
    requests->count = requests->head = 0;
    WF_TRY(make_room(requests));
    requests->transfer[0] = (wf_transfer){.peer = -1};
    requests->count = 1;
    return WF_OK;
}

/* At [first, last). */
static wf_status test_range(wf_requests *requests, int first, int last, bool *moved)
{
    int unfinished = 0;
    for (int i = first > requests->head ? first : requests->head; i < last && unfinished < LOOKS; i++) {
        wf_transfer *t = &requests->transfer[i];
        if (t->done)
            continue;
        WF_TRY(requests->comm->transport->test(requests->comm, t));
        *moved |= t->done;
        unfinished += !t->done;
        if (t->done && t->status != WF_OK)
            return t->status;
    }
    return WF_OK;
}

/* At those that somebody waits for, and at the oldest. */
static wf_status advance(wf_requests *requests, int first, int last, bool *moved)
{
    WF_TRY(test_range(requests, first, last, moved));
    WF_TRY(test_range(requests, requests->head, requests->count, moved));
    while (requests->head < requests->count && requests->transfer[requests->head].done)
        requests->head++;
    return WF_OK;
}

static bool finished(const wf_requests *requests, int first, int last)
{
    for (int i = first > requests->head ? first : requests->head; i < last; i++)
        if (!requests->transfer[i].done)
            return false;
    return true;
}

static wf_status check_sizes(const wf_requests *requests, int first, int last)
{
    for (int i = first; i < last; i++) {
        const wf_transfer *t = &requests->transfer[i];
        if (t->sending || t->peer < 0 || t->arrived == t->bytes)
            continue;
        WF_CHECK(t->arrived != SIZE_MAX, WF_ERR_COMM, "rank %d sent more than the %zu bytes that are expected", t->peer,
                 t->bytes);
        WF_FAIL(WF_ERR_COMM, "rank %d sent %zu bytes where %zu are expected", t->peer, t->arrived, t->bytes);
    }
    return WF_OK;
}

wf_status wf_requests_wait(wf_requests *requests, int first, int last)
{
    wf_deadline deadline = wf_deadline_new();
    for (;;) {
        bool moved = false;
        WF_TRY(advance(requests, first, last, &moved));
        if (finished(requests, first, last))
            return check_sizes(requests, first, last);
        /* Progress of any transfer shows that the others live, so the time-out begins anew. */
        if (moved)
            deadline = wf_deadline_new();
        WF_TRY(wf_deadline_poll(requests->comm, &deadline, requests));
    }
}

wf_status wf_requests_poll(wf_requests *requests)
{
    bool moved = false;
    return advance(requests, 0, 0, &moved);
}

wf_status wf_requests_look(wf_requests *requests, int first, int last, bool *done)
{
    bool moved = false;
    *done = false;
    WF_TRY(advance(requests, first, last, &moved));
    if (!finished(requests, first, last))
        return WF_OK;
    *done = true;
    return check_sizes(requests, first, last);
}

wf_status wf_requests_wait_all(wf_requests *requests)
{
    return wf_requests_wait(requests, 0, requests->count);
}

/* A receive that has begun to arrive cannot be called back, but is usually over soon. */
bool wf_requests_cancel(wf_requests *requests)
{
    const int64_t end = wf_now_ns() + CANCEL_NS;
    bool left = false;
    for (int i = requests->head; i < requests->count; i++)
        if (!requests->transfer[i].done)
            requests->comm->transport->cancel(requests->comm, &requests->transfer[i]);
    do {
        left = false;
        for (int i = requests->head; i < requests->count; i++) {
            wf_transfer *t = &requests->transfer[i];
            if (!t->done && requests->comm->transport->test(requests->comm, t) != WF_OK)
                t->done = true;
            left |= !t->done;
        }
        sched_yield();
    } while (left && wf_now_ns() < end);
    for (int i = requests->head; i < requests->count; i++)
        if (!requests->transfer[i].done)
            wf_pool_hold(requests->comm->shared->ctx, requests->transfer[i].data);
    requests->count = requests->head = 0;
    return !left;
}

void wf_comm_release(const wf_comm *comm, void *data)
{
    /* Kept in sight, so that a leak checker does not take it for forgotten. */
    static void **kept;
    static size_t count;
    if (!comm->lost || !data) {
        free(data);
        return;
    }
    void **more = realloc(kept, (count + 1) * sizeof *more);
    /* Better a leak than memory that a late message writes into. */
    if (!more)
        return;
    kept = more;
    kept[count++] = data;
}
