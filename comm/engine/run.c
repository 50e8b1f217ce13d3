/* Runs of schedules: steps whose waits are over run at once where they are local, and are begun where they are
 * messages; what ends releases its followers. */
#include "comm/engine/engine_impl.h"
#include "comm/engine/proof_author.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define CANCEL_NS 100000000
#define LOOKS     8                 /* at unfinished messages in a row: at each of them MPI moves all */
#define TILE      ((size_t)8 << 10) /* bytes: a result is copied on while it is in the first-level cache */

static bool is_message(const wf_step *step)
{
    return step->kind == WF_STEP_SEND || step->kind == WF_STEP_RECV;
}

wf_run *wf_run_new(wf_ctx *ctx, const wf_schedule *s)
{
    int32_t messages = 0, awaits = 0, inputs = 0;
    for (int32_t i = 0; i < s->steps; i++) {
        messages += is_message(&s->step[i]);
        awaits += s->step[i].kind == WF_STEP_AWAIT;
        inputs = s->step[i].inputs > inputs ? s->step[i].inputs : inputs;
    }
    const size_t steps = (size_t)s->steps;
    /* One block: a run that is kept and started again allocates nothing. */
    const size_t bytes = sizeof(wf_run) + (size_t)messages * sizeof(wf_flight) + (size_t)inputs * sizeof(void *) +
                         (2 * steps + (size_t)awaits) * sizeof(int32_t);
    wf_run *run = wf_calloc(ctx, 1, bytes);
    if (!run)
        return wf_error_null();
    run->ctx = ctx;
    run->schedule = s;
    run->flight = (wf_flight *)(void *)(run + 1);
    run->in = (const void **)(void *)(run->flight + messages);
    run->left = (int32_t *)(void *)(run->in + inputs);
    run->ready = run->left + steps;
    run->awaiting = run->ready + steps;
    run->done = s->steps;
    return run;
}

void wf_run_free(wf_run *run)
{
    free(run);
}

void wf_run_begin(wf_run *run, wf_binding binding)
{
    const wf_schedule *s = run->schedule;
    run->on = binding;
    run->head = run->tail = run->awaits = run->flights = run->landed = run->cursor = run->done = 0;
    for (int32_t i = 0; i < s->steps; i++) {
        run->left[i] = s->step[i].waits + (s->step[i].before >= 0);
        if (run->left[i] == 0)
            run->ready[run->tail++] = i;
    }
}

static void release(wf_run *run, int32_t step)
{
    if (--run->left[step] == 0)
        run->ready[run->tail++] = step;
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
    char *data = address.operand < 0 ? NULL : run->on.data[address.operand];
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

/* The box in the array that holds `held`, or packed. */
static wf_strided strided_of(const wf_step *step, const wf_step_box *box, void *data, bool packed)
{
    const wf_shape shape = wf_box_shape(box->box);
    wf_strided view = {.data = data, .dtype = (wf_dtype)step->dtype, .rank = shape.rank};
    int64_t at = 0;
    memcpy(view.dim, shape.dim, sizeof view.dim);
    wf_order_strides(packed ? shape : wf_box_shape(box->held), box->order, view.stride);
    for (int d = 0; d < shape.rank && !packed; d++)
        at += (box->box.lo[d] - box->held.lo[d]) * view.stride[d];
    view.data = (char *)data + (size_t)at * wf_dtype_size(view.dtype);
    return view;
}

static wf_status box_step(wf_run *run, const wf_step *step)
{
    const wf_step_box *box = &run->schedule->box[step->list];
    const bool copies = step->kind == WF_STEP_COPY;
    const wf_strided from = strided_of(step, box, data_at(run, step->from), step->kind == WF_STEP_UNPACK);
    const wf_strided to = strided_of(step, copies ? box + 1 : box, data_at(run, step->to), step->kind == WF_STEP_PACK);
    return run->ctx->k->copy(run->ctx, &from, &to, step->flags & WF_STEP_ADDS);
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
    void *to = data_at(run, step->to);
    const void *from = data_at(run, step->from);
    if (step->flags & WF_STEP_TO_HOST)
        return wf_ctx_read(run->ctx, to, from, step->bytes);
    return run->ctx->k->to_device(run->ctx, to, from, step->bytes);
}

static wf_ring_flag *flag_of(const wf_run *run, const wf_step *step)
{
    return (wf_ring_flag *)(void *)(run->on.flags[step->peer] + (size_t)step->flag * WF_FLAG_LINE);
}

static wf_status call_step(wf_run *run, const wf_step *step)
{
    const wf_step_call *call = &run->schedule->call[step->list];
    return call->run
               ? call->run(call->own, data_at(run, step->from), call->from_bytes, data_at(run, step->to), step->bytes)
               : WF_OK;
}

static wf_status local_step(wf_run *run, const wf_step *step)
{
    switch (step->kind) {
    case WF_STEP_COMBINE:
        return combine_step(run, step);
    case WF_STEP_COPY:
        return copy_step(run, step);
    case WF_STEP_PACK:
    case WF_STEP_UNPACK:
        return box_step(run, step);
    case WF_STEP_STAGE:
        return stage_step(run, step);
    case WF_STEP_NOTIFY:
        /* Release: who sees the flag sees the data that were written before it. */
        atomic_store_explicit(flag_of(run, step), run->on.ring_pieces + step->value, memory_order_release);
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
    const bool sends = step->kind == WF_STEP_SEND;
    wf_flight *flight = &run->flight[run->flights];
    flight->step = i;
    flight->transfer = (wf_transfer){.data = data_at(run, sends ? step->from : step->to),
                                     .bytes = step->bytes,
                                     .peer = step->peer,
                                     .tag = run->on.tag,
                                     .sending = sends};
    /* Begun is enough for the next message of the pair to follow; the end is looked for later. */
    WF_TRY(run->on.link->start(run->on.link->own, &flight->transfer));
    run->flights++;
    if (s->next[i] >= 0)
        release(run, s->next[i]);
    return WF_OK;
}

static wf_status wrong_size(const wf_transfer *t)
{
    WF_CHECK(t->arrived != SIZE_MAX, WF_ERR_COMM, "rank %d sent more than the %zu bytes that are expected", t->peer,
             t->bytes);
    WF_FAIL(WF_ERR_COMM, "rank %d sent %zu bytes where %zu are expected", t->peer, t->arrived, t->bytes);
}

static wf_status run_ready(wf_run *run, bool *moved);

/* A message of another length than is expected: its frame, which came before it, says more about it. */
static wf_status disagree(wf_run *run, int32_t flight, bool *moved)
{
    const wf_transfer *wrong = &run->flight[flight].transfer;
    for (int32_t i = run->landed; i < flight; i++) {
        wf_transfer *t = &run->flight[i].transfer;
        if (t->done || t->sending || t->peer != wrong->peer)
            continue;
        WF_TRY(run->on.link->test(run->on.link->own, t));
        if (t->done && t->status == WF_OK && t->arrived == t->bytes)
            finish(run, run->flight[i].step);
    }
    WF_TRY(run_ready(run, moved));
    return wrong_size(wrong);
}

/* At some unfinished messages from `first` on; returns where it stopped. */
static wf_status look(wf_run *run, int32_t *first, bool *moved)
{
    int unfinished = 0;
    int32_t i = *first;
    for (; i < run->flights && unfinished < LOOKS; i++) {
        wf_transfer *t = &run->flight[i].transfer;
        if (t->done)
            continue;
        WF_TRY(run->on.link->test(run->on.link->own, t));
        if (!t->done) {
            unfinished++;
            continue;
        }
        if (t->status != WF_OK)
            return t->status;
        if (!t->sending && t->arrived != t->bytes)
            return disagree(run, i, moved);
        *moved = true;
        finish(run, run->flight[i].step);
    }
    *first = i;
    return WF_OK;
}

/* At the oldest, and at others in turn, so that none is forgotten behind many old ones. */
static wf_status look_at_messages(wf_run *run, bool *moved)
{
    int32_t at = run->landed;
    WF_TRY(look(run, &at, moved));
    if (at < run->flights) {
        run->cursor = run->cursor < at || run->cursor >= run->flights ? at : run->cursor;
        WF_TRY(look(run, &run->cursor, moved));
    }
    /* Old messages that are done are not looked at again. */
    while (run->landed < run->flights && run->flight[run->landed].transfer.done)
        run->landed++;
    return WF_OK;
}

static bool flag_is_up(const wf_run *run, const wf_step *step)
{
    return atomic_load_explicit(flag_of(run, step), memory_order_acquire) >= run->on.ring_pieces + step->value;
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

/* --- progress ----------------------------------------------------------------------------------------------------- */

/* Another one of the ready steps comes first. */
static void shuffle(wf_run *run)
{
    run->on.shuffle = run->on.shuffle * 6364136223846793005u + 1442695040888963407u;
    const int32_t pick = run->head + (int32_t)((run->on.shuffle >> 33) % (uint64_t)(run->tail - run->head));
    const int32_t step = run->ready[pick];
    run->ready[pick] = run->ready[run->head];
    run->ready[run->head] = step;
}

/* In the ring, a piece that has begun goes before the next one: its data are in the caches, and others wait for its
 * slot. */
static void oldest_first(wf_run *run)
{
    int32_t pick = run->head;
    for (int32_t i = run->head + 1; i < run->tail; i++)
        pick = run->ready[i] < run->ready[pick] ? i : pick;
    const int32_t step = run->ready[pick];
    run->ready[pick] = run->ready[run->head];
    run->ready[run->head] = step;
}

static wf_status run_ready(wf_run *run, bool *moved)
{
    const bool ring = run->schedule->ring_pieces > 0;
    for (int32_t local = 0; run->head < run->tail;) {
        if (run->on.shuffle)
            shuffle(run);
        else if (ring)
            oldest_first(run);
        const int32_t i = run->ready[run->head];
        const wf_step *step = &run->schedule->step[i];
        if (is_message(step)) {
            run->head++;
            WF_TRY(begin_message(run, i));
        } else if (step->kind == WF_STEP_AWAIT) {
            run->head++;
            if (flag_is_up(run, step))
                finish(run, i);
            else
                run->awaiting[run->awaits++] = i;
        } else {
            /* The caller computes between calls and must not wait long for one. */
            if (run->on.steps_at_once > 0 && local++ == run->on.steps_at_once)
                return WF_OK;
            run->head++;
            WF_TRY(local_step(run, step));
            finish(run, i);
            if (ring && step->kind != WF_STEP_NOTIFY) /* which takes no time, while a look may wait for a cache line */
                look_at_flags(run, moved);
        }
        *moved = true;
    }
    return WF_OK;
}

wf_status wf_run_advance(wf_run *run, bool *moved)
{
    WF_TRY(run_ready(run, moved));
    WF_TRY(look_at_messages(run, moved));
    if (run->awaits > 0)
        look_at_flags(run, moved);
    return run->head < run->tail && run->on.steps_at_once == 0 ? run_ready(run, moved) : WF_OK;
}

int wf_run_awaited(const wf_run *run)
{
    int peer = -1;
    for (int32_t i = run->landed; i < run->flights; i++) {
        const wf_transfer *t = &run->flight[i].transfer;
        if (t->done)
            continue;
        if (!t->sending)
            return t->peer;
        peer = peer < 0 ? t->peer : peer;
    }
    return peer < 0 && run->awaits > 0 ? run->schedule->step[run->awaiting[0]].peer : peer;
}

const char *wf_run_text(const wf_run *run, char text[WF_FAILURE_TEXT])
{
    int32_t step = -1;
    for (int32_t i = run->landed; i < run->flights && step < 0; i++)
        step = run->flight[i].transfer.done ? -1 : run->flight[i].step;
    if (step < 0 && run->awaits > 0)
        step = run->awaiting[0];
    if (step < 0 && run->head < run->tail)
        step = run->ready[run->head];
    if (step < 0)
        strcpy(text, "nothing");
    else
        wf_step_text(run->schedule, step, text);
    return text;
}

/* A receive that has begun to arrive cannot be called back, but is usually over soon. */
bool wf_run_cancel(wf_run *run)
{
    const wf_link *link = run->on.link;
    const int64_t end = wf_now_ns() + CANCEL_NS;
    bool left = false;
    for (int32_t i = run->landed; i < run->flights; i++)
        if (!run->flight[i].transfer.done)
            link->cancel(link->own, &run->flight[i].transfer);
    do {
        left = false;
        for (int32_t i = run->landed; i < run->flights; i++) {
            wf_transfer *t = &run->flight[i].transfer;
            if (!t->done && link->test(link->own, t) != WF_OK)
                t->done = true;
            left |= !t->done;
        }
        if (left)
            sched_yield();
    } while (left && wf_now_ns() < end);
    for (int32_t i = run->landed; i < run->flights; i++)
        if (!run->flight[i].transfer.done)
            /* Its memory may still be written to and is never used again. */
            wf_pool_hold(run->ctx, run->flight[i].transfer.data);
    run->flights = run->landed = run->awaits = 0;
    run->head = run->tail;
    run->done = run->schedule->steps;
    return !left;
}
