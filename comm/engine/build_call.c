/* Whole calls as schedules: which operands a call has, and which algorithm it goes by. */
#include "comm/engine/collectives_author.h"
#include "comm/reducer_author.h"

int64_t wf_call_entries(const wf_call *call, int ranks)
{
    switch (call->operation) {
    case WF_CALL_SUM:
        return call->parts + 1;
    case WF_CALL_MEET:
    case WF_CALL_EXCHANGE:
        return call->parts;
    case WF_CALL_LISTS:
        return 2 * (int64_t)ranks;
    case WF_CALL_SUM_SHARDS:
    case WF_CALL_GATHER_SHARDS:
        return ranks + 1;
    default:
        return ranks;
    }
}

/* What a builder of one call needs at hand. */
typedef struct making {
    wf_builder *b;
    const wf_call *call;
    wf_group g;
    size_t size; /* of an element */
    int rank;
} making;

/* Operands are numbered as the caller's lists are: the run binds memory to them by kind and number. */
static wf_address input(const making *m, int index, int64_t count)
{
    return wf_builder_operand(m->b, WF_OPERAND_INPUT, index, (size_t)count * m->size);
}

static wf_address output(const making *m, int index, int64_t count)
{
    return wf_builder_operand(m->b, WF_OPERAND_OUTPUT, index, (size_t)count * m->size);
}

static wf_address both(const making *m, int64_t count)
{
    return wf_builder_operand(m->b, WF_OPERAND_BOTH, 0, (size_t)count * m->size);
}

static wf_address at_element(const making *m, wf_address base, int64_t element)
{
    return wf_address_add(base, (size_t)element * m->size);
}

/* Returns true if all ranks share the memory of one node. A sum over several nodes uses messages instead: summed
 * first in each node and then over nodes, it would have another order of additions, and 16-bit types would be
 * rounded twice. */
static bool in_one_ring(const making *m)
{
    const wf_agreed *agreed = wf_builder_agreed(m->b);
    return agreed->shared && agreed->nodes == 1;
}

static void make_reduce(const making *m, int root)
{
    const int64_t count = m->call->count;
    const bool wanted = root < 0 || root == m->rank;
    const wf_address x = input(m, 0, count), y = wanted ? output(m, 0, count) : WF_NOWHERE;
    /* The caller may give the same memory for x and y; the schedule is made so that this is right. */
    wf_builder_in_place(m->b);
    if (in_one_ring(m)) /* where a rank's place is its number */
        wf_build_node_reduce(m->b, x, y, count, m->call->dtype, m->call->op, root);
    else
        wf_build_reduce(m->b, &m->g, x, y, count, m->call->dtype, m->call->op, root);
}

static void make_allgather(const making *m, size_t bytes)
{
    const wf_address mine = input(m, 0, m->call->count), all = output(m, 0, m->g.size * m->call->count);
    wf_build_allgather(m->b, &m->g, mine, bytes, all);
}

/* --- lists of tensors --------------------------------------------------------------------------------------------- */

/* -1: nothing passes between these two; 0 is an empty tensor, whose frame still travels. */
static int64_t part_of(const making *m, int from, int to)
{
    if (m->call->operation == WF_CALL_REDUCE_SCATTER)
        return m->call->part[to];
    return from == m->rank ? m->call->part[to] : m->call->part[m->g.size + from];
}

/* The ranks that this one sends to, or receives from, in turn: not all ranks begin with the same one. */
static int other_at(const making *m, bool out, int step)
{
    return (m->rank + (out ? step : m->g.size - step)) % m->g.size;
}

static int64_t count_with(const making *m, bool out, int other)
{
    return out ? part_of(m, m->rank, other) : part_of(m, other, m->rank);
}

/* Looks at a frame as soon as it has come; its data are on their way meanwhile. */
static void check_frame(const making *m, wf_address frame, int from, wf_steps came)
{
    const wf_call *call = m->call;
    if (!call->check)
        return;
    /* What the frame of this rank is compared with. */
    void *expected = (char *)call->expected + (size_t)from * call->expected_bytes;
    wf_after(m->b, came);
    wf_add_call(m->b, (wf_step_call){.run = call->check, .own = expected, .from_bytes = WF_FRAME_BYTES}, frame,
                WF_NOWHERE, 0);
}

static void add_frames(const making *m, bool out)
{
    size_t at = 0;
    for (int step = 1; step < m->g.size; step++) {
        const int other = other_at(m, out, step);
        if (count_with(m, out, other) < 0)
            continue;
        const wf_operand_kind kind = out ? WF_OPERAND_INPUT : WF_OPERAND_OUTPUT;
        const wf_address all = wf_builder_operand(m->b, kind, m->g.size, at + WF_FRAME_BYTES);
        const wf_address frame = wf_address_add(all, at);
        if (out)
            wf_add_send_frame(m->b, frame, WF_FRAME_BYTES, other);
        else
            check_frame(m, frame, other, wf_add_recv(m->b, frame, WF_FRAME_BYTES, other));
        at += WF_FRAME_BYTES;
    }
}

static void send_parts(const making *m)
{
    for (int step = 1; step < m->g.size; step++) {
        const int to = other_at(m, true, step);
        const int64_t count = count_with(m, true, to);
        if (count >= 0)
            wf_add_send(m->b, input(m, to, count), (size_t)count * m->size, to);
    }
}

/* The tensors of a sum arrive in scratch: in[r] that of rank r. */
static void receive_parts(const making *m, wf_address *in)
{
    for (int step = 1; step < m->g.size; step++) {
        const int from = other_at(m, false, step);
        const int64_t count = count_with(m, false, from);
        const size_t bytes = (size_t)count * m->size;
        if (count < 0)
            continue;
        in[from] =
            m->call->operation == WF_CALL_REDUCE_SCATTER ? wf_builder_scratch(m->b, bytes) : output(m, from, count);
        wf_add_recv(m->b, in[from], bytes, from);
    }
}

static void make_parts(const making *m)
{
    wf_address *in = wf_builder_room(m->b, (size_t)m->g.size * sizeof *in);
    if (!in)
        return;
    add_frames(m, false);
    add_frames(m, true);
    receive_parts(m, in);
    send_parts(m);
    if (m->call->operation != WF_CALL_REDUCE_SCATTER)
        return;
    const int64_t count = m->call->part[m->rank];
    /* In the order of ranks, this one's at its place: the sum has the same bits as every other sum of these parts. */
    in[m->rank] = input(m, m->rank, count);
    wf_builder_phase(m->b);
    wf_add_combine(m->b, m->call->op, m->call->dtype, m->g.size, in, output(m, 0, count), WF_NOWHERE, count);
}

/* --- all ---------------------------------------------------------------------------------------------------------- */

/* Elements [first, last) of a buffer, of which a sum knows whatever it needs. A buffer in device memory goes through
 * the host's, where the transport needs that. */
static void make_in_host(const making *m, wf_address flat, int64_t first, int64_t last,
                         void (*add)(const making *m, wf_address host))
{
    const size_t bytes = (size_t)(last - first) * m->size;
    if (!wf_builder_agreed(m->b)->staged) {
        add(m, flat);
        return;
    }
    const wf_address host = wf_builder_scratch(m->b, (size_t)last * m->size);
    /* The whole buffer before the sum and after it; pieces of it would not overlap with messages of the same run. */
    wf_add_stage(m->b, at_element(m, flat, first), at_element(m, host, first), bytes, true);
    wf_builder_phase(m->b);
    add(m, host);
    wf_builder_phase(m->b);
    wf_add_stage(m->b, at_element(m, host, first), at_element(m, flat, first), bytes, false);
}

static void add_sum(const making *m, wf_address flat)
{
    const int64_t whole[2] = {0, m->call->count};
    const bool parts = m->call->parts > 0;
    wf_reducer_find(m->call->reducer)
        ->build(m->b, flat, parts ? m->call->part : whole, parts ? m->call->parts : 1, m->call->exact, m->call->dtype);
}

static wf_status make_sum(const making *m)
{
    const wf_call *call = m->call;
    const wf_reducer *reducer = wf_reducer_find(call->reducer);
    WF_CHECK(reducer && reducer->build, WF_ERR_ARGUMENT, "there is no reducer \"%.40s\" whose schedule can be made",
             call->reducer);
    const int64_t first = call->parts > 0 ? call->part[0] : 0;
    const int64_t last = call->parts > 0 ? call->part[call->parts] : call->count;
    make_in_host(m, both(m, last), first, last, add_sum);
    return WF_OK;
}

/* In the ring each part is reduced into its rank, or spread from there. */
static void add_shards(const making *m, wf_address data)
{
    const wf_call *call = m->call;
    const bool sums = call->operation == WF_CALL_SUM_SHARDS, ring = in_one_ring(m);
    if (!ring && sums)
        wf_build_sum_shards(m->b, &m->g, data, call->part, call->dtype);
    if (!ring && !sums)
        wf_build_gather_shards(m->b, &m->g, data, call->part, m->size);
    for (int r = 0; r < m->g.size && ring; r++) {
        const wf_address part = at_element(m, data, call->part[r]);
        const int64_t count = call->part[r + 1] - call->part[r];
        if (sums)
            wf_build_node_reduce(m->b, part, part, count, call->dtype, WF_SUM, r);
        else
            wf_build_node_bcast(m->b, part, (size_t)count * m->size, r);
    }
}

static void make_shards(const making *m)
{
    const int64_t count = m->call->part[m->g.size];
    make_in_host(m, both(m, count), 0, count, add_shards);
}

static void make_meeting(const making *m)
{
    const wf_call *call = m->call;
    int32_t *list = wf_builder_room(m->b, (size_t)call->parts * sizeof *list);
    wf_group g = {.size = call->parts, .place = -1, .list = list};
    for (int i = 0; list && i < call->parts; i++) {
        list[i] = (int32_t)call->part[i];
        /* The members of the meeting are a group of their own, numbered anew. */
        g.place = list[i] == m->rank ? i : g.place;
    }
    if (list)
        wf_build_barrier(m->b, &g);
}

_Static_assert(WF_CALLS == 12, "a new operation: add its case here and in wf_call_entries");
static wf_status make(const making *m)
{
    const wf_call *call = m->call;
    const size_t bytes = (size_t)call->count * m->size;
    /* Lists tell each other their lengths first, by messages; what moves natively follows. */
    if (call->operation != WF_CALL_LISTS && call->operation != WF_CALL_REDUCE_SCATTER &&
        wf_call_stays(wf_builder_agreed(m->b), call)) {
        wf_build_native(m->b, call);
        return WF_OK;
    }
    switch (call->operation) {
    case WF_CALL_BCAST:
        wf_build_bcast(m->b, &m->g, both(m, call->count), bytes, call->root);
        return WF_OK;
    case WF_CALL_REDUCE:
    case WF_CALL_ALLREDUCE:
        make_reduce(m, call->operation == WF_CALL_REDUCE ? call->root : -1);
        return WF_OK;
    case WF_CALL_ALLGATHER:
        make_allgather(m, bytes);
        return WF_OK;
    case WF_CALL_BARRIER:
        wf_builder_synchronizes(m->b, &m->g);
        wf_build_barrier(m->b, &m->g);
        return WF_OK;
    case WF_CALL_SUM_SHARDS:
    case WF_CALL_GATHER_SHARDS:
        make_shards(m);
        return WF_OK;
    case WF_CALL_SUM:
        return make_sum(m);
    case WF_CALL_MEET:
        make_meeting(m);
        return WF_OK;
    case WF_CALL_RECEIVE:
        wf_add_recv(m->b, output(m, 0, call->count), bytes, call->root);
        return WF_OK;
    default: /* WF_CALL_LISTS, WF_CALL_REDUCE_SCATTER */
        make_parts(m);
        return WF_OK;
    }
}

wf_status wf_call_schedule(wf_ctx *ctx, const wf_agreed *agreed, int rank, const wf_call *call, wf_schedule **schedule)
{
    *schedule = NULL;
    WF_CHECK(rank >= 0 && rank < agreed->ranks, WF_ERR_ARGUMENT, "rank %d of %d", rank, agreed->ranks);
    WF_CHECK(call->operation >= 0 && call->operation < WF_CALLS, WF_ERR_ARGUMENT, "%d is no call",
             (int)call->operation);
    WF_CHECK(call->root < agreed->ranks, WF_ERR_ARGUMENT, "root %d of %d ranks", call->root, agreed->ranks);
    making m = {.call = call, .rank = rank, .g = wf_group_all(agreed, rank), .size = wf_dtype_size(call->dtype)};
    m.b = wf_builder_new(ctx, agreed, rank);
    if (!m.b)
        return wf_error_code();
    const wf_status made = make(&m), ended = wf_builder_end(m.b, schedule);
    if (made == WF_OK)
        return ended;
    wf_schedule_free(*schedule);
    *schedule = NULL;
    return made;
}
