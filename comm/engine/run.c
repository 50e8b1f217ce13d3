/* A run: one schedule in progress on this rank. It is advanced by polling, so that one thread can serve it between
 * pieces of other work.
 *
 * Actors. The owner (the engine's wait, an exchange, the background stream, a simulation) binds operands to memory and
 * calls wf_run_advance until wf_run_done; between two advances it looks at failures and deadlines. The link starts and
 * tests messages. The other ranks of the node raise flags in shared memory. The device reaches fences.
 * A step passes through these states; left[step] counts what it waits for:
 *
 *     left > 0 ---> ready ---> local step: runs at once ---------------> done: releases its followers
 *         |           ^  |---> message: in flight, until the link says -->|
 *         |           |  |---> await: awaiting, until the flag is up ---->|
 *         v           |  '---> fence: fencing, until its event is done -->'
 *       late ---------'        (a step AT_WAIT, until the owner calls wf_run_wait)
 *
 * A message releases the next one of its pair when it has begun: links deliver the messages of a pair in order. On the
 * host a fence is done at once. A run in_line has no states: `done` is the next step of the list.
 * Guarantees. A step runs once, after all that it waits for. An advance waits for no message or flag, and allocates
 * nothing. Ready steps run as they became ready, or as added with a ring or if in_order; simulations shuffle them.
 * What may race: only flags and slots, with other processes. A notify stores its flag with release, an await loads it
 * with acquire. Flags of a ring only grow, so the last value is kept in `seen`, which spares a look. The flag of a slot
 * is compared for equality, since it also holds the tag: a rank in a call with another tag never sees it up.
 * Failure. An error of an advance ends the run, and the owner calls wf_run_cancel: it waits for a device with fences,
 * and cancels messages. Memory of a message that does not end is held back: the transport may write to it. */
#include "comm/engine/engine_impl.h"
#include "core/boundary_author.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define CANCEL_NS 100000000
#define LOOKS     8                 /* at unfinished messages in a row: at each of them MPI moves all */
#define TILE      ((size_t)8 << 10) /* bytes: a result is copied on while it is in the first-level cache */

/* A device has events; what a host was given is done. */
static bool has_events(const wf_run *run)
{
    return !run->ctx->k->host && run->schedule->fences > 0;
}

static wf_status make_events(wf_run *run)
{
    for (int32_t i = 0; i < run->schedule->fences && has_events(run); i++)
        WF_TRY(run->ctx->k->event_new(run->ctx, &run->event[i]));
    return WF_OK;
}

wf_run *wf_run_new(wf_ctx *ctx, const wf_schedule *s)
{
    int32_t messages = 0, awaits = 0, inputs = 0, late = 0;
    for (int32_t i = 0; i < s->steps; i++) {
        messages += wf_step_is_message(&s->step[i]);
        awaits += s->step[i].kind == WF_STEP_AWAIT;
        inputs = s->step[i].inputs > inputs ? s->step[i].inputs : inputs;
        late += (s->step[i].flags & WF_STEP_AT_WAIT) != 0;
    }
    const size_t steps = (size_t)s->steps, fences = (size_t)s->fences;
    /* One block: a run that is kept and started again allocates nothing. */
    const size_t bytes = sizeof(wf_run) + (size_t)messages * sizeof(wf_transfer) +
                         ((size_t)s->operands + (size_t)inputs + fences) * sizeof(void *) +
                         (2 * steps + (size_t)awaits + (size_t)late + fences) * sizeof(int32_t);
    wf_run *run = wf_calloc(ctx, 1, bytes);
    if (!run)
        return wf_error_null();
    run->ctx = ctx;
    run->schedule = s;
    run->message = (wf_transfer *)(void *)(run + 1);
    run->data = (void **)(void *)(run->message + messages);
    run->in = (const void **)(run->data + s->operands);
    run->event = (wf_event **)(void *)(run->in + inputs);
    run->left = (int32_t *)(void *)(run->event + fences);
    run->ready = run->left + steps;
    run->awaiting = run->ready + steps;
    run->late = run->awaiting + awaits;
    run->fencing = run->late + late;
    run->done = s->steps;
    if (make_events(run) == WF_OK)
        return run;
    wf_run_free(run);
    return wf_error_null();
}

void wf_run_free(wf_run *run)
{
    for (int32_t i = 0; run && i < run->schedule->fences && has_events(run); i++)
        if (run->event[i])
            run->ctx->k->event_free(run->ctx, run->event[i]);
    free(run);
}

/* It waits for no other step. */
static void make_ready(wf_run *run, int32_t step)
{
    if (run->schedule->step[step].flags & WF_STEP_AT_WAIT && !run->waiting)
        run->late[run->lates++] = step;
    else
        run->ready[run->tail++] = step;
}

void wf_run_wait(wf_run *run)
{
    run->waiting = true;
    for (int32_t i = 0; i < run->lates; i++)
        run->ready[run->tail++] = run->late[i];
    run->lates = 0;
}

void wf_run_begin(wf_run *run, bool in_line)
{
    const wf_schedule *s = run->schedule;
    run->head = run->tail = run->awaits = run->messages = run->landed = run->cursor = run->done = 0;
    run->lates = run->fences = 0;
    run->waiting = false;
    run->in_line = in_line && s->in_line;
    for (int32_t i = 0; i < s->steps && !run->in_line; i++) {
        run->left[i] = s->step[i].waits + (s->step[i].before >= 0);
        if (run->left[i] == 0)
            make_ready(run, i);
    }
}

static void release(wf_run *run, int32_t step)
{
    if (--run->left[step] == 0)
        make_ready(run, step);
}

static void finish(wf_run *run, int32_t step)
{
    const wf_schedule *s = run->schedule;
    run->done++;
    for (int32_t f = s->first_follower[step]; f < s->first_follower[step + 1]; f++)
        release(run, s->follower[f]);
}

/* --- local steps -------------------------------------------------------------------------------------------------- */

static void *data_at(const wf_run *run, wf_address address)
{
    char *data = address.operand < 0 ? NULL : run->data[address.operand];
    return data ? data + address.at : NULL;
}

static wf_status combine_step(wf_run *run, const wf_step *step)
{
    const wf_schedule *s = run->schedule;
    const wf_dtype dtype = (wf_dtype)step->dtype;
    char *to = data_at(run, step->to), *also = data_at(run, step->also);
    /* Combined and copied tile by tile, so that the second store reads from the cache. */
    const size_t most = also ? TILE : step->bytes, size = wf_dtype_size(dtype);
    for (size_t at = 0; at < step->bytes; at += most) {
        const size_t bytes = step->bytes - at < most ? step->bytes - at : most;
        for (int i = 0; i < step->inputs; i++)
            run->in[i] = (const char *)data_at(run, s->input[step->list + i]) + at;
        WF_TRY(wf_combine(run->ctx, (wf_reduce_op)step->op, dtype, step->inputs, run->in, to + at,
                          (int64_t)(bytes / size)));
        if (also)
            memcpy(also + at, to + at, bytes);
    }
    return WF_OK;
}

/* The box in the array that holds `held`. */
static wf_strided strided_of(const wf_step *step, const wf_step_box *box, void *data)
{
    const wf_shape shape = wf_box_shape(box->box);
    wf_strided view = {.data = data, .dtype = (wf_dtype)step->dtype, .rank = shape.rank};
    int64_t at = 0;
    memcpy(view.dim, shape.dim, sizeof view.dim);
    memcpy(view.stride, box->stride, sizeof view.stride);
    for (int d = 0; d < shape.rank; d++)
        at += (box->box.lo[d] - box->held.lo[d]) * view.stride[d];
    view.data = (char *)data + at * (int64_t)wf_dtype_size(view.dtype);
    return view;
}

/* The dense elements that a box is packed into, or unpacked from. */
static wf_strided packed_of(const wf_step *step, const wf_step_box *box, void *data)
{
    const wf_shape shape = wf_step_box_source(box);
    wf_strided view = {.data = data, .dtype = (wf_dtype)step->dtype, .rank = shape.rank};
    memcpy(view.dim, shape.dim, sizeof view.dim);
    wf_order_strides(shape, box->order, view.stride);
    return view;
}

static wf_status pack_step(wf_run *run, const wf_step *step, const wf_step_box *box)
{
    const wf_strided from = strided_of(step, box, data_at(run, step->from));
    const wf_strided to = packed_of(step, box, data_at(run, step->to));
    WF_TRY(wf_strided_gather(run->ctx, &from, &to, box->step, false));
    if (step->flags & WF_STEP_NEGATES)
        WF_TRY(wf_negate(run->ctx, to.dtype, to.data, (int64_t)(step->bytes / wf_dtype_size(to.dtype))));
    return WF_OK;
}

static wf_status copy_box_step(wf_run *run, const wf_step *step, const wf_step_box *out, const wf_step_box *in)
{
    const wf_strided from = strided_of(step, out, data_at(run, step->from));
    const wf_strided to = strided_of(step, in, data_at(run, step->to));
    const bool adds = step->flags & WF_STEP_ADDS;
    /* One end is a source, in which steps are 1. */
    for (int d = 0; d < from.rank; d++)
        if (out->step[d] != 1)
            return wf_strided_gather(run->ctx, &from, &to, out->step, adds);
    return wf_strided_spread(run->ctx, &from, &to, in->step, adds);
}

static wf_status box_step(wf_run *run, const wf_step *step)
{
    const wf_step_box *box = &run->schedule->box[step->list];
    if (step->kind == WF_STEP_PACK)
        return pack_step(run, step, box);
    if (step->kind == WF_STEP_COPY)
        return copy_box_step(run, step, box, box + 1);
    const wf_strided to = strided_of(step, box, data_at(run, step->to));
    if (step->kind == WF_STEP_FILL) {
        double value;
        memcpy(&value, &step->value, sizeof value);
        return wf_strided_fill(run->ctx, &to, value);
    }
    const wf_strided from = packed_of(step, box, data_at(run, step->from));
    return wf_strided_spread(run->ctx, &from, &to, box->step, step->flags & WF_STEP_ADDS);
}

static wf_status copy_step(wf_run *run, const wf_step *step)
{
    const void *from = data_at(run, step->from);
    void *to = data_at(run, step->to);
    if (step->list >= 0)
        return box_step(run, step);
    if (from != to)
        memmove(to, from, step->bytes);
    return WF_OK;
}

static wf_status stage_step(wf_run *run, const wf_step *step)
{
    const wf_kernels *k = run->ctx->k;
    void *to = data_at(run, step->to);
    const void *from = data_at(run, step->from);
    const bool begins = step->flags & WF_STEP_BEGUN;
    if (step->flags & WF_STEP_TO_HOST)
        return begins ? k->to_host_begin(run->ctx, to, from, step->bytes, NULL)
                      : wf_ctx_read(run->ctx, to, from, step->bytes);
    return begins ? k->to_device_begin(run->ctx, to, from, step->bytes, NULL)
                  : k->to_device(run->ctx, to, from, step->bytes);
}

static wf_ring_flag *flag_of(const wf_run *run, const wf_step *step)
{
    if (step->to.operand >= 0)
        return (wf_ring_flag *)data_at(run, step->to) - 1;
    char *flags = step->ring > 0 ? run->pair_flags[step->peer] : run->flags[step->peer];
    const int flag = step->ring > 0 ? step->flag - WF_FLAGS : step->flag;
    return (wf_ring_flag *)(void *)(flags + (size_t)flag * WF_FLAG_LINE);
}

/* Returns the value of a flag that this step raises or awaits. Ring flags count the pieces since the ring was opened. A
 * slot flag has the count in its upper half and the tag of the call in its lower; the count wraps, which is safe
 * because the value before it is only a few pieces older. */
static int64_t value_of(const wf_run *run, const wf_step *step)
{
    if (step->to.operand >= 0)
        return (int64_t)((uint64_t)(run->ring_pieces + step->value) << 32 | (uint32_t)run->tag);
    if (step->ring == 0)
        return run->ring_pieces + step->value;
    return run->pieces ? run->pieces[step->ring] + step->value : step->value;
}

static wf_status call_step(wf_run *run, const wf_step *step)
{
    const wf_step_call *call = &run->schedule->call[step->list];
    return call->run
               ? call->run(call->own, data_at(run, step->from), call->from_bytes, data_at(run, step->to), step->bytes)
               : WF_OK;
}

/* A simulation has no native transport: messages of a group go by its link, and where the group begins and ends does
 * not matter to them. */
static wf_status native_step(const wf_run *run, const wf_step *step)
{
    const wf_native_kind kind = (wf_native_kind)step->list;
    const wf_strided x = wf_strided_row(data_at(run, step->from), (wf_dtype)step->dtype, step->value);
    const wf_strided y = wf_strided_row(data_at(run, step->to), (wf_dtype)step->to_dtype, step->value);
    WF_CHECK(run->launch || kind > WF_NATIVE_COPY, WF_ERR_STATE, "a native step runs without a native transport");
    return run->launch ? run->launch(run->launch_own, kind, (wf_reduce_op)step->op, step->peer, &x, &y) : WF_OK;
}

static wf_status local_step(wf_run *run, const wf_step *step)
{
    switch (step->kind) {
    case WF_STEP_NATIVE:
        return native_step(run, step);
    case WF_STEP_COMBINE:
        return combine_step(run, step);
    case WF_STEP_COPY:
        return copy_step(run, step);
    case WF_STEP_PACK:
    case WF_STEP_UNPACK:
    case WF_STEP_FILL:
        return box_step(run, step);
    case WF_STEP_STAGE:
        return stage_step(run, step);
    case WF_STEP_NOTIFY:
        /* Release: who sees the flag sees the data that were written before it. */
        atomic_store_explicit(flag_of(run, step), value_of(run, step), memory_order_release);
        return WF_OK;
    default:
        return call_step(run, step);
    }
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static wf_status begin_message(wf_run *run, int32_t i)
{
    const wf_schedule *s = run->schedule;
    const wf_step *step = &s->step[i];
    const bool receives = step->kind == WF_STEP_RECV;
    void *data = data_at(run, receives ? step->to : step->from);
    if (step->flags & WF_STEP_GROUPED && run->launch) {
        const wf_strided row = wf_strided_row(data, WF_U8, (int64_t)step->bytes);
        const wf_native_kind kind = receives ? WF_NATIVE_RECV : WF_NATIVE_SEND;
        WF_TRY(run->launch(run->launch_own, kind, WF_SUM, step->peer, &row, &row));
        finish(run, i);
    } else {
        wf_transfer *message = &run->message[run->messages];
        *message = (wf_transfer){
            .data = data, .bytes = step->bytes, .peer = step->peer, .tag = run->tag, .step = i, .sending = !receives};
        WF_TRY(run->link->start(run->link->own, message));
        run->messages++;
    }
    /* Begun is enough for the next message of the pair to follow; the end is looked for later. */
    if (s->next[i] >= 0)
        release(run, s->next[i]);
    return WF_OK;
}

static wf_status wrong_size(const wf_run *run, const wf_transfer *t)
{
    const char *peer = WF_RANK_LISTED(run->world_rank, t->peer);
    WF_CHECK(t->arrived != SIZE_MAX, WF_ERR_COMM, "rank %s sent more than the %zu bytes that are expected", peer,
             t->bytes);
    WF_FAIL(WF_ERR_COMM, "rank %s sent %zu bytes where %zu are expected", peer, t->arrived, t->bytes);
}

static wf_status run_ready(wf_run *run, bool *moved);

/* Reports a message of another length than is expected, by the check of its frame, which came before it, if it can. */
static wf_status report_length(wf_run *run, int32_t number, bool *moved)
{
    const wf_transfer *wrong = &run->message[number];
    for (int32_t i = run->landed; i < number; i++) {
        wf_transfer *t = &run->message[i];
        if (t->done || t->sending || t->peer != wrong->peer)
            continue;
        WF_TRY(run->link->test(run->link->own, t));
        if (t->done && t->status == WF_OK && t->arrived == t->bytes)
            finish(run, t->step);
    }
    WF_TRY(run_ready(run, moved));
    return wrong_size(run, wrong);
}

/* At some unfinished messages from `first` on; returns where it stopped. */
static wf_status look(wf_run *run, int32_t *first, bool *moved)
{
    int unfinished = 0;
    int32_t i = *first;
    for (; i < run->messages && unfinished < LOOKS; i++) {
        wf_transfer *t = &run->message[i];
        if (t->done)
            continue;
        WF_TRY(run->link->test(run->link->own, t));
        if (!t->done) {
            unfinished++;
            continue;
        }
        if (t->status != WF_OK)
            return t->status;
        if (!t->sending && t->arrived != t->bytes)
            return report_length(run, i, moved);
        *moved = true;
        finish(run, t->step);
    }
    *first = i;
    return WF_OK;
}

/* At the oldest, and at others in turn, so that none is forgotten behind many old ones. */
static wf_status look_at_messages(wf_run *run, bool *moved)
{
    int32_t at = run->landed;
    WF_TRY(look(run, &at, moved));
    if (at < run->messages) {
        run->cursor = run->cursor < at || run->cursor >= run->messages ? at : run->cursor;
        WF_TRY(look(run, &run->cursor, moved));
    }
    /* Old messages that are done are not looked at again. */
    while (run->landed < run->messages && run->message[run->landed].done)
        run->landed++;
    return WF_OK;
}

/* Flags only grow, so what was seen of one may do, and its cache line stays with its owner. */
static bool flag_is_up(const wf_run *run, const wf_step *step)
{
    const int64_t value = value_of(run, step);
    if (step->to.operand >= 0)
        return atomic_load_explicit(flag_of(run, step), memory_order_acquire) == value;
    int64_t *seen = run->seen && step->ring == 0 ? &run->seen[step->peer * WF_FLAGS + step->flag] : NULL;
    if (seen && *seen >= value)
        return true;
    const int64_t is = atomic_load_explicit(flag_of(run, step), memory_order_acquire);
    if (seen)
        *seen = is;
    return is >= value;
}

static void look_at_flags(wf_run *run, bool *moved)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < run->awaits; i++) {
        const int32_t step = run->awaiting[i];
        if (flag_is_up(run, &run->schedule->step[step])) {
            finish(run, step);
            *moved = true;
        } else {
            run->awaiting[kept++] = step;
        }
    }
    run->awaits = kept;
}

/* The device reaches them in the order of their begin. */
static wf_status look_at_fences(wf_run *run, bool *moved)
{
    int32_t reached = 0;
    for (bool over = true; over && reached < run->fences; reached += over) {
        const int32_t step = run->fencing[reached];
        WF_TRY(run->ctx->k->event_done(run->ctx, run->event[run->schedule->step[step].list], &over));
        if (over)
            finish(run, step);
    }
    *moved = *moved || reached > 0;
    run->fences -= reached;
    memmove(run->fencing, run->fencing + reached, (size_t)run->fences * sizeof *run->fencing);
    return WF_OK;
}

static wf_status begin_fence(wf_run *run, int32_t i)
{
    if (!has_events(run)) {
        finish(run, i);
        return WF_OK;
    }
    run->fencing[run->fences++] = i;
    return run->ctx->k->event_record(run->ctx, run->event[run->schedule->step[i].list], NULL);
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

/* Any of the ready steps. */
static int32_t any(wf_run *run)
{
    run->shuffle = run->shuffle * 6364136223846793005u + 1442695040888963407u;
    return run->head + (int32_t)((run->shuffle >> 33) % (uint64_t)(run->tail - run->head));
}

/* In the ring, a piece that has begun goes before the next one: its data are in the caches, and others wait for its
 * slot. */
static int32_t oldest(const wf_run *run)
{
    int32_t pick = run->head;
    for (int32_t i = run->head + 1; i < run->tail; i++)
        pick = run->ready[i] < run->ready[pick] ? i : pick;
    return pick;
}

static wf_status run_ready(wf_run *run, bool *moved)
{
    const bool ring = run->schedule->ring_pieces > 0, flags = ring || run->schedule->rings > 0;
    for (int32_t local = 0; run->head < run->tail;) {
        const int32_t pick = run->shuffle ? any(run) : ring || run->schedule->in_order ? oldest(run) : run->head;
        const int32_t i = run->ready[pick];
        run->ready[pick] = run->ready[run->head];
        run->ready[run->head] = i;
        const wf_step *step = &run->schedule->step[i];
        if (wf_step_is_message(step)) {
            run->head++;
            WF_TRY(begin_message(run, i));
        } else if (step->kind == WF_STEP_AWAIT) {
            run->head++;
            if (flag_is_up(run, step))
                finish(run, i);
            else
                run->awaiting[run->awaits++] = i;
        } else if (step->kind == WF_STEP_FENCE) {
            run->head++;
            WF_TRY(begin_fence(run, i));
        } else {
            /* The caller computes between calls and must not wait long for one. */
            if (run->steps_at_once > 0 && local++ == run->steps_at_once)
                return WF_OK;
            run->head++;
            WF_TRY(local_step(run, step));
            finish(run, i);
            if (flags && step->kind != WF_STEP_NOTIFY) /* which takes no time, while a look may wait for a cache line */
                look_at_flags(run, moved);
        }
        *moved = true;
    }
    return WF_OK;
}

/* Without lists of what is ready: for short calls these take longer than the steps. */
static wf_status advance_in_line(wf_run *run, bool *moved)
{
    const wf_schedule *s = run->schedule;
    for (int32_t local = 0; run->done < s->steps; run->done++) {
        const wf_step *step = &s->step[run->done];
        if (step->kind == WF_STEP_AWAIT && !flag_is_up(run, step))
            return WF_OK;
        if (step->kind != WF_STEP_AWAIT) {
            if (run->steps_at_once > 0 && local++ == run->steps_at_once)
                return WF_OK;
            WF_TRY(local_step(run, step));
        }
        *moved = true;
    }
    return WF_OK;
}

wf_status wf_run_advance(wf_run *run, bool *moved)
{
    if (run->in_line)
        return advance_in_line(run, moved);
    WF_TRY(run_ready(run, moved));
    WF_TRY(look_at_messages(run, moved));
    if (run->awaits > 0)
        look_at_flags(run, moved);
    if (run->fences > 0)
        WF_TRY(look_at_fences(run, moved));
    return run->head < run->tail && run->steps_at_once == 0 ? run_ready(run, moved) : WF_OK;
}

int wf_run_awaited(const wf_run *run)
{
    int peer = -1;
    if (run->in_line)
        return wf_run_done(run) ? -1 : run->schedule->step[run->done].peer;
    for (int32_t i = run->landed; i < run->messages; i++) {
        const wf_transfer *t = &run->message[i];
        if (t->done)
            continue;
        if (!t->sending)
            return t->peer;
        peer = peer < 0 ? t->peer : peer;
    }
    return peer < 0 && run->awaits > 0 ? run->schedule->step[run->awaiting[0]].peer : peer;
}

/* A receive that has begun to arrive cannot be called back, but is usually over soon. */
bool wf_run_cancel(wf_run *run)
{
    const wf_link *link = run->link;
    const int64_t end = wf_now_ns() + CANCEL_NS;
    bool left = false;
    /* The device may still read or write memory of steps that have begun. */
    if (has_events(run))
        (void)run->ctx->k->stream_finish(run->ctx, NULL);
    for (int32_t i = run->landed; i < run->messages; i++)
        if (!run->message[i].done)
            link->cancel(link->own, &run->message[i]);
    do {
        left = false;
        for (int32_t i = run->landed; i < run->messages; i++) {
            wf_transfer *t = &run->message[i];
            if (!t->done && link->test(link->own, t) != WF_OK)
                t->done = true;
            left |= !t->done;
        }
        if (left)
            sched_yield();
    } while (left && wf_now_ns() < end);
    for (int32_t i = run->landed; i < run->messages; i++)
        if (!run->message[i].done)
            /* Its memory may still be written to and is never used again. */
            wf_pool_hold(run->ctx, run->message[i].data);
    run->messages = run->landed = run->awaits = run->lates = run->fences = 0;
    run->head = run->tail;
    run->done = run->schedule->steps;
    return !left;
}
