/* The background stream: a queue of calls that runs between the calls of the main program, on its thread.
 *
 * Actors. The program adds calls (sums, gathers, functions) and waits for all of them in wf_background_wait. Long
 * kernels, backward and waits for messages call ctx->progress, which advances the first call and returns. The guard of
 * `async`, a second communicator of the same ranks, compares the calls of the stream: its messages cannot meet those of
 * the program.
 *
 *     QUEUED ---begin---> RUNNING ---run done---> SETTLING ---left neighbour is in the same call---> over
 *        '--- a function, or nothing to send: over at once --------------------------------------->'
 *
 * Only the first call is in progress, so calls of a rank are over in the order in which they were added, and one state
 * serves for all. All ranks must add the calls of a communicator in the same order. A collective stays QUEUED while the
 * guard cannot keep another record, since announcing it would block.
 *
 * Who owns what. The list owns calls; a turn may add to it, through a function, so a pointer into it holds only until
 * then. Memory that a call reads and writes is the caller's until wf_background_wait returns. Nothing here runs inside
 * itself: background_runs is set while calls are advanced, and progress returns at once then.
 *
 * Native transport. If ranks are connected natively (in_order), calls match by the order in which ranks launch them, so
 * each runs to its end as soon as it is added. It is over when it is enqueued; wf_native_join_sums makes the context's
 * stream wait for it.
 *
 * Failure. The first error is kept with its text until wf_background_wait; calls that have not begun are left out. The
 * stream has errors of its own (wf_errors_swap), so it does not touch the program's last error. A communicator and its
 * `async` fail together, as ranks may wait in either. A rank that does not come is noticed in a wait alone, by the
 * deadline of the call; outside of one only notices of failures are read, every POLL_EVERY advances. */
#include "comm/background_author.h"
#include "comm/open_impl.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

#define SPINS      64 /* advances that find nothing, before a wait looks at the clock */
#define POLL_EVERY 8  /* advances, from one look at notices of failure to the next */

typedef enum call_state { QUEUED = 0, RUNNING, SETTLING } call_state;

struct wf_background {
    wf_comm_shared *shared;
    wf_call *list; /* [first, last) wait, of which the first is in progress */
    int first, last;
    int64_t room;
    /* How the first one stands. */
    call_state state;
    wf_engine_entry *flight;
    wf_traffic before; /* of `async`, when it began */
    bool noted;        /* the flight recorder knows what it waits for */
    int advances;
    wf_errors *errors;
    wf_status status;
    char message[WF_FAILURE_TEXT];
};

static wf_comm *connection_of(const wf_call *call)
{
    return call->comm->async ? call->comm->async : call->comm;
}

/* --- one call ----------------------------------------------------------------------------------------------------- */

/* Runs a call that is over when it returns: a function, or what needs no peer. */
static wf_status run_at_once(const wf_call *call)
{
    wf_comm *comm = connection_of(call);
    if (call->operation == WF_CALL_FUNCTION) {
        WF_TRY(wf_native_join_sums(comm)); /* it may read what came before */
        return call->run(call->out);
    }
    if (call->operation == WF_CALL_ALLGATHER && call->count > 0)
        memcpy(call->out, call->in, (size_t)call->count);
    return wf_comm_alive(comm);
}

/* Sets *over if the call completed immediately. If the neighbour's records are full, a collective stays QUEUED, since
 * announcing it would block. */
static wf_status begin_first(struct wf_background *b, bool *moved, bool *over)
{
    const wf_call *call = &b->list[b->first];
    wf_comm *comm = connection_of(call);
    b->before = comm->traffic;
    *over = call->operation == WF_CALL_FUNCTION || !wf_call_moves(call->comm, call);
    if (*over)
        return run_at_once(call);
    WF_TRY(wf_comm_alive(comm));
    if (!wf_control_has_room(comm))
        return WF_OK;
    *moved = true;
    b->state = RUNNING;
    WF_TRY(wf_guard_enter(comm, call));
    return wf_engine_begin(comm, call, &call->in, &call->out, &b->flight);
}

/* What `async` sent counts as sent by comm. */
static void count(wf_comm *comm, const wf_traffic *before, const wf_traffic *now)
{
    comm->traffic.bytes_sent += now->bytes_sent - before->bytes_sent;
    comm->traffic.messages += now->messages - before->messages;
    comm->traffic.collectives += now->collectives - before->collectives;
    comm->traffic.bytes_copied += now->bytes_copied - before->bytes_copied;
}

/* An error on the background communicator also fails `comm`, so that ranks blocked in the main program see it. */
static wf_status fail_together(wf_comm *comm, const wf_comm *async)
{
    if (comm->control)
        wf_control_tell(comm, async->death.status, async->death.text, false);
    return wf_failure_inherit(comm, async);
}

static wf_status end_call(struct wf_background *b, const wf_call *call, wf_status status)
{
    wf_comm *comm = call->comm, *async = connection_of(call);
    if (b->state == RUNNING && status != WF_OK)
        wf_engine_end(async, &b->flight, status);
    if (b->state != QUEUED)
        status = wf_guard_end(async, call->name, status);
    if (async == comm)
        return status;
    count(comm, &b->before, &async->traffic);
    return status != WF_OK && async->death.status && !comm->death.status ? fail_together(comm, async) : status;
}

/* --- turns -------------------------------------------------------------------------------------------------------- */

static bool is_empty(const struct wf_background *b)
{
    return b->first == b->last;
}

/* The first call is over, or is left out. The first error is kept for wf_background_wait. */
static void leave_first(struct wf_background *b, wf_status status)
{
    const wf_call first = b->list[b->first++];
    if (b->status != WF_OK && b->state == QUEUED)
        return;
    status = end_call(b, &first, status);
    b->state = QUEUED;
    b->noted = false;
    if (status != WF_OK && b->status == WF_OK) {
        wf_error_save(&b->status, b->message, sizeof b->message);
        b->status = status;
    }
    wf_error_clear();
}

/* Advances the first call a little; returns true if anything moved. After an error, which may be that of adding a call,
 * those that have not begun are left out. */
static bool advance_first(struct wf_background *b)
{
    wf_comm *comm = connection_of(&b->list[b->first]);
    bool moved = false, over = false;
    wf_status status = b->state == QUEUED ? b->status : WF_OK;
    if (status == WF_OK && b->state == QUEUED)
        status = begin_first(b, &moved, &over);
    else if (status == WF_OK && ++b->advances % POLL_EVERY == 0)
        status = wf_comm_alive(comm);
    if (status == WF_OK && b->state == RUNNING)
        status = wf_run_advance(b->flight->run, &moved);
    if (status == WF_OK && b->state == RUNNING && wf_run_done(b->flight->run)) {
        wf_engine_end(comm, &b->flight, WF_OK);
        b->state = SETTLING;
        moved = true;
    }
    if (status == WF_OK && b->state == SETTLING)
        status = wf_guard_try_settle(comm, &over);
    if (status == WF_OK && !over)
        return moved;
    leave_first(b, status);
    return true;
}

/* Detaches the queue from the context once it is empty. */
static void detach_if_idle(struct wf_background *b)
{
    if (!is_empty(b))
        return;
    b->first = b->last = 0;
    wf_ctx *ctx = b->shared->ctx;
    if (ctx->progress_state == b) {
        ctx->progress = NULL;
        ctx->progress_state = NULL;
    }
}

/* Looks at failures and the deadline, between two advances of the first call, in a wait for the stream. */
static void poll(struct wf_background *b, wf_deadline *deadline)
{
    wf_comm *comm = connection_of(&b->list[b->first]);
    if (deadline->polls < 0)
        *deadline = wf_deadline_new();
    deadline->peer = b->state == RUNNING ? wf_run_awaited(b->flight->run) : -1;
    if (b->state == RUNNING && deadline->noted == 1)
        wf_engine_note(comm, b->flight->run);
    const wf_status status = wf_deadline_poll(comm, deadline);
    if (status != WF_OK)
        leave_first(b, status);
}

/* Advances calls one after the other, as far as they get, or to the end; returns true if anything moved. */
static bool run_queue(struct wf_background *b, bool waits)
{
    wf_deadline deadline = {.polls = -1};
    bool any = false;
    if (b->shared->background_runs || is_empty(b))
        return false;
    b->shared->background_runs = true;
    wf_errors_swap(b->errors);
    for (int idle = 0; !is_empty(b) && (waits || idle == 0); idle++) {
        bool moved = false;
        const char *watched = wf_watch_swap(NULL);
        while (!is_empty(b) && advance_first(b))
            moved = true;
        (void)wf_watch_swap(watched);
        if (moved) {
            any = true;
            idle = 0;
            deadline.polls = -1;
        } else if (waits && (idle >= SPINS || wf_deadline_crowded(connection_of(&b->list[b->first])))) {
            poll(b, &deadline);
        }
    }
    wf_errors_swap(b->errors);
    b->shared->background_runs = false;
    detach_if_idle(b);
    return any;
}

/* Advances the stream without waiting. If the main program waits for something else, its rank may never come here to
 * wait: the flight recorder is to know what this stream waits for, too. */
static void progress(void *background)
{
    struct wf_background *b = background;
    if (b->shared->background_runs || run_queue(b, false) || !b->shared->waits)
        return;
    if (b->noted || b->state != RUNNING)
        return;
    b->noted = true;
    wf_engine_note(connection_of(&b->list[b->first]), b->flight->run);
}

/* --- the stream --------------------------------------------------------------------------------------------------- */

static struct wf_background *background_new(wf_comm_shared *shared)
{
    struct wf_background *b = wf_calloc(shared->ctx, 1, sizeof *b);
    if (!b)
        return NULL;
    b->shared = shared;
    b->errors = wf_errors_new();
    if (b->errors)
        return b;
    wf_background_free(b);
    WF_FAIL_NULL(WF_ERR_MEMORY, "no memory for the background stream");
}

void wf_background_free(struct wf_background *b)
{
    if (!b)
        return;
    wf_errors_free(b->errors);
    free(b->list);
    free(b);
}

static void keep_error(struct wf_background *b)
{
    if (b->status == WF_OK)
        wf_error_save(&b->status, b->message, sizeof b->message);
}

static bool grow(struct wf_background *b)
{
    if (b->first > 0 && b->last == b->room) {
        memmove(b->list, b->list + b->first, (size_t)(b->last - b->first) * sizeof *b->list);
        b->last -= b->first;
        b->first = 0;
    }
    wf_call *list = wf_grow(b->shared->ctx, b->list, &b->room, b->last + 1, sizeof *list);
    if (!list)
        return false;
    b->list = list;
    return true;
}

static void queue_call(wf_comm *comm, wf_call call)
{
    struct wf_background *b = comm ? comm->shared->background : NULL;
    if (!b)
        return;
    if (!comm->async && comm->size > 1) {
        WF_RAISE(WF_ERR_STATE, "the communicator was not opened for the background stream");
        keep_error(b);
        return;
    }
    if (!grow(b)) {
        keep_error(b);
        return;
    }
    call.comm = comm;
    b->list[b->last++] = call;
    b->shared->ctx->progress = progress;
    b->shared->ctx->progress_state = b;
    if (comm->shared->in_order)
        (void)run_queue(b, true);
}

void wf_background_call(wf_comm *comm, wf_background_function run, void *own)
{
    queue_call(comm, (wf_call){.operation = WF_CALL_FUNCTION, .run = run, .out = own});
}

void wf_background_sum(wf_comm *comm, const wf_call *sum)
{
    if (comm)
        queue_call(comm, wf_reducer_call(comm->reducer, sum));
}

static void queue_shards(wf_operation which, const char *name, wf_comm *comm, void *data, const int64_t *shard,
                         wf_dtype dtype)
{
    if (!comm)
        return;
    queue_call(comm, (wf_call){.operation = which,
                               .name = name,
                               .dtype = dtype,
                               .count = shard[comm->size],
                               .part = shard,
                               .out = data,
                               .device = true});
}

void wf_background_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    queue_shards(WF_CALL_SUM_SHARDS, "sum of shards", comm, data, shard, dtype);
}

void wf_background_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    queue_shards(WF_CALL_GATHER_SHARDS, "gather of shards", comm, data, shard, dtype);
}

void wf_background_allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    queue_call(comm, wf_call_of_bytes(WF_CALL_ALLGATHER, "allgather_bytes", mine, all, bytes, 0));
}

wf_status wf_background_status(const wf_comm *comm)
{
    const struct wf_background *b = comm->shared->background;
    return b && b->status != WF_OK ? WF_RAISE(b->status, "%s", b->message) : WF_OK;
}

wf_status wf_background_wait(wf_comm *comm)
{
    struct wf_background *b = comm->shared->background;
    if (!b)
        return WF_OK;
    (void)run_queue(b, true);
    const wf_status status = wf_background_status(comm);
    b->status = WF_OK;
    return status == WF_OK ? wf_native_join_sums(comm) : status;
}

void wf_background_end(wf_comm *comm)
{
    struct wf_background *b = comm && !comm->closed ? comm->shared->background : NULL;
    if (!b)
        return;
    (void)run_queue(b, true);
    b->status = WF_OK;
    if (wf_native_join_sums(comm) != WF_OK)
        wf_log_write(WF_LOG_ERROR, "%s", wf_error_message());
}

void wf_background_count_copied(wf_comm *comm, size_t bytes)
{
    comm->traffic.bytes_copied += bytes;
}

/* --- its communicators -------------------------------------------------------------------------------------------- */

static wf_status connect_again(wf_comm *comm)
{
    if (!comm->shared->background)
        comm->shared->background = background_new(comm->shared);
    WF_NEED(comm->shared->background);
    if (wf_agreed_alone(wf_engine_agreed(comm)))
        return WF_OK;
    WF_TRY(wf_barrier(comm)); /* finds a rank that makes another call; wf_comm_again has no number */
    wf_comm *async = wf_comm_again(comm);
    WF_NEED(async);
    comm->async = async;
    return wf_reducer_connect(async);
}

wf_status wf_background_open(wf_comm *comm)
{
    WF_NEED(comm);
    if (comm->async || (comm->size == 1 && comm->shared->background))
        return WF_OK;
    return wf_guard_end(comm, "set-up", connect_again(comm));
}

wf_comm *wf_background_comm(const wf_comm *comm)
{
    return comm->async;
}

/* Gives up the calls of a communicator that closes: their results have no owner any more. */
static void abandon(struct wf_background *b, const wf_comm *comm)
{
    int kept = b->first;
    if (!is_empty(b) && b->list[b->first].comm == comm) {
        if (b->state == RUNNING)
            wf_engine_end(connection_of(&b->list[b->first]), &b->flight, WF_ERR_STATE);
        b->state = QUEUED;
        b->noted = false;
    }
    for (int i = b->first; i < b->last; i++)
        if (b->list[i].comm != comm)
            b->list[kept++] = b->list[i];
    b->last = kept;
    detach_if_idle(b);
}

void wf_background_close(wf_comm *comm)
{
    wf_comm *async = comm->async;
    if (comm->shared->background)
        abandon(comm->shared->background, comm);
    comm->async = NULL;
    if (wf_comm_close(async) != WF_OK)
        wf_log_write(WF_LOG_ERROR, "%s", wf_error_message());
}
