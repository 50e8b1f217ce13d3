/* Moves what an exchange was planned for, forward or in reverse: one schedule of the engine (build_exchange.c), made at
 * the first call of its direction and strides. The caller may compute between begin and end. Halos, redistribution and
 * channel layers run through it. */
#include "comm/mesh/mesh_impl.h"

#include <stdlib.h>
#include <string.h>

/* --- schedules ---------------------------------------------------------------------------------------------------- */

/* What a schedule depends on, as the parts of its call. Where the need is in slabs, its strides are 0. */
enum {
    REVERSED = 0,
    OWN,
    IN_SLABS,
    FROM_STRIDE,
    TO_STRIDE = FROM_STRIDE + WF_MAX_RANK,
    WORDS = TO_STRIDE + WF_MAX_RANK
};

static void write_words(const wf_exchange *exchange, bool own, int64_t word[WORDS])
{
    const size_t bytes = sizeof *word * (size_t)exchange->have.rank;
    memset(word, 0, WORDS * sizeof *word);
    word[REVERSED] = exchange->reversed;
    word[OWN] = own;
    word[IN_SLABS] = exchange->in_slabs;
    if (!exchange->in_slabs || !exchange->reversed)
        memcpy(word + FROM_STRIDE, exchange->from->stride, bytes);
    if (!exchange->in_slabs || exchange->reversed)
        memcpy(word + TO_STRIDE, exchange->to->stride, bytes);
}

static wf_status make_schedule(const wf_exchange *exchange, const int64_t word[WORDS], wf_schedule **schedule)
{
    const wf_comm *comm = exchange->comm;
    const wf_agreed *agreed = wf_engine_agreed(comm);
    const wf_group all = wf_group_all(agreed, comm->rank);
    const wf_exchange_shape shape = {.plan = exchange->plan,
                                     .have = exchange->have,
                                     .need = exchange->need,
                                     .dtype = exchange->dtype,
                                     .order = exchange->order,
                                     .reversed = exchange->reversed,
                                     .own = word[OWN],
                                     .slabs = exchange->in_slabs ? &exchange->slabs : NULL,
                                     .from_stride = word + FROM_STRIDE,
                                     .to_stride = word + TO_STRIDE,
                                     .dense_send = exchange->dense,
                                     .dense_recv = exchange->dense + exchange->plan->n_send};
    wf_builder *b = wf_builder_new(comm->shared->ctx, agreed, comm->rank);
    if (!b)
        return wf_error_code();
    wf_build_exchange(b, &all, &shape);
    return wf_builder_end(b, schedule);
}

static wf_status find_entry(wf_exchange *exchange, bool own, wf_engine_entry **entry)
{
    int64_t word[WORDS];
    wf_schedule *schedule;
    wf_call call = exchange->call;
    write_words(exchange, own, word);
    call.part = word;
    call.parts = WORDS;
    *entry = wf_engine_find(exchange->comm, &exchange->store, &call);
    if (*entry)
        return WF_OK;
    WF_TRY(make_schedule(exchange, word, &schedule));
    *entry = wf_engine_keep(exchange->comm, &exchange->store, &call, schedule);
    return *entry ? WF_OK : wf_error_code();
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

/* Checks the array of the have-box, or of the need. */
static wf_status check_tensor(const wf_exchange *exchange, const char *name, const wf_tensor *x, bool needs)
{
    char is[WF_SHAPE_TEXT], should[WF_SHAPE_TEXT];
    const bool in_slabs = needs && exchange->in_slabs;
    const wf_box box = needs ? exchange->need : exchange->have;
    const wf_shape shape = in_slabs ? WF_SHAPE(exchange->slabs.elements) : wf_box_shape(box);
    WF_CHECK(x->dtype == exchange->dtype, WF_ERR_DTYPE, "%s of an exchange of %s is %s", name,
             wf_dtype_name(exchange->dtype), wf_dtype_name(x->dtype));
    WF_CHECK(wf_shape_equal(x->shape, shape) || (wf_box_empty(box) && wf_tensor_count(x) == 0), WF_ERR_SHAPE,
             "%s of an exchange is %s, and its %s %s", name, wf_shape_text(x->shape, is), in_slabs ? "slabs" : "box",
             wf_shape_text(shape, should));
    return WF_OK;
}

/* Begins the schedule and does what can be done at once. */
static wf_status start_flight(wf_exchange *exchange, bool own)
{
    wf_comm *comm = exchange->comm;
    bool moved = false;
    WF_TRY(find_entry(exchange, own, &exchange->flight));
    const void *const in[] = {exchange->from->data};
    void *const out[] = {exchange->to->data};
    WF_TRY(wf_engine_post(comm, exchange->flight, in, out));
    return wf_run_advance(exchange->flight->run, &moved);
}

static wf_status enter_and_start(wf_exchange *exchange, bool own)
{
    wf_comm *comm = exchange->comm;
    WF_TRY(wf_guard_enter(comm, &exchange->call));
    /* At the first exchange: a communicator without one never takes the memory. */
    WF_TRY(wf_exchange_open_way(comm));
    return start_flight(exchange, own);
}

static wf_status check_and_begin(wf_exchange *exchange, const wf_tensor *from, wf_tensor *to, bool own)
{
    const bool reversed = exchange->reversed;
    if (wf_exchange_moves(exchange))
        WF_TRY(wf_comm_alive(exchange->comm));
    WF_NEED(from);
    WF_NEED(to);
    WF_TRY(check_tensor(exchange, reversed ? "dy" : "x", from, reversed));
    WF_TRY(check_tensor(exchange, reversed ? "dx" : "y", to, !reversed));
    exchange->from = from;
    exchange->to = to;
    if (wf_exchange_moves(exchange)) {
        WF_TRY(enter_and_start(exchange, own));
    } else if (own || exchange->plan->rewrites) {
        /* Nothing but copies of this rank's own, which are over at once, but for those that wait for the end. */
        WF_TRY(start_flight(exchange, own));
        if (wf_run_done(exchange->flight->run))
            wf_engine_end(exchange->comm, &exchange->flight, WF_OK);
    }
    wf_tensor_touch(to);
    return WF_OK;
}

/* Ends a call that has succeeded or failed. An unfinished message is cancelled before its memory is released. */
static wf_status end_call(wf_exchange *exchange, wf_status status)
{
    wf_engine_end(exchange->comm, &exchange->flight, status);
    exchange->from = exchange->to = NULL;
    return wf_guard_end(exchange->comm, exchange->call.name, status);
}

static void count_time(const wf_exchange *exchange, int64_t start_ns)
{
    exchange->comm->traffic.exchange_ns += (uint64_t)(wf_now_ns() - start_ns);
}

/* The part of the need that an exchange moves, and how the need's tensor holds it. */
typedef enum need_part {
    WHOLE = 0, /* all of it, in the need-box */
    HALO,      /* all but the own part, which is left alone, in a tensor of the need-box's shape */
    SLABS,     /* all but the own part, in slabs */
} need_part;

static wf_status begin_direction(wf_exchange *exchange, const wf_tensor *from, wf_tensor *to, bool reversed,
                                 need_part part)
{
    WF_NEED(exchange);
    const int64_t start_ns = wf_now_ns();
    if (exchange->flight)
        return end_call(exchange, WF_RAISE(WF_ERR_STATE, "an exchange begins again before its end"));
    exchange->reversed = reversed;
    exchange->call.name = reversed ? "exchange_reverse" : "exchange";
    exchange->in_slabs = part == SLABS;
    const wf_status status = check_and_begin(exchange, from, to, part == WHOLE);
    count_time(exchange, start_ns);
    if (status == WF_OK)
        wf_watch_end(); /* what the caller computes meanwhile may take its time */
    return status == WF_OK ? WF_OK : end_call(exchange, status);
}

wf_status wf_exchange_begin(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y)
{
    return begin_direction(exchange, x, y, false, WHOLE);
}

wf_status wf_exchange_begin_halo(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y)
{
    return begin_direction(exchange, x, y, false, HALO);
}

wf_status wf_exchange_reverse_begin(wf_exchange *exchange, const wf_tensor *dy, wf_tensor *dx)
{
    return begin_direction(exchange, dy, dx, true, WHOLE);
}

wf_status wf_exchange_reverse_begin_halo(wf_exchange *exchange, const wf_tensor *dy, wf_tensor *dx)
{
    return begin_direction(exchange, dy, dx, true, HALO);
}

wf_status wf_exchange_begin_slabs(wf_exchange *exchange, const wf_tensor *x, wf_tensor *slabs)
{
    return begin_direction(exchange, x, slabs, false, SLABS);
}

wf_status wf_exchange_reverse_begin_slabs(wf_exchange *exchange, const wf_tensor *slabs, wf_tensor *dx)
{
    return begin_direction(exchange, slabs, dx, true, SLABS);
}

static wf_status poll(wf_exchange *exchange)
{
    bool moved = false;
    WF_TRY(wf_control_poll(exchange->comm, true));
    WF_TRY(wf_native_poll(exchange->comm));
    return wf_run_advance(exchange->flight->run, &moved);
}

wf_status wf_exchange_poll(wf_exchange *exchange)
{
    WF_NEED(exchange);
    if (!exchange->flight || !wf_exchange_moves(exchange))
        return WF_OK;
    const int64_t start_ns = wf_now_ns();
    wf_watch_begin("exchange");
    const wf_status status = poll(exchange);
    wf_watch_end();
    count_time(exchange, start_ns);
    return status == WF_OK ? WF_OK : end_call(exchange, status);
}

/* Runs the copies within this rank that waited for the end. */
static wf_status end_local(wf_exchange *exchange)
{
    wf_run *run = exchange->flight->run;
    bool moved = false;
    wf_run_wait(run);
    while (!wf_run_done(run))
        WF_TRY(wf_run_advance(run, &moved));
    wf_tensor_touch(exchange->to);
    wf_engine_end(exchange->comm, &exchange->flight, WF_OK);
    return WF_OK;
}

static wf_status end(wf_exchange *exchange)
{
    wf_comm *comm = exchange->comm;
    if (comm->death.status)
        return wf_comm_alive(comm);
    WF_TRY(wf_engine_wait(comm, exchange->flight));
    wf_tensor_touch(exchange->to);
    return wf_guard_settle(comm);
}

wf_status wf_exchange_end(wf_exchange *exchange)
{
    WF_NEED(exchange);
    if (exchange->flight && !wf_exchange_moves(exchange)) {
        const wf_status status = end_local(exchange);
        return status == WF_OK ? WF_OK : end_call(exchange, status);
    }
    if (exchange->flight) {
        const int64_t start_ns = wf_now_ns();
        wf_watch_begin("exchange");
        const wf_status status = end_call(exchange, end(exchange));
        count_time(exchange, start_ns);
        return status;
    }
    return wf_exchange_moves(exchange) ? wf_comm_alive(exchange->comm) : WF_OK;
}
