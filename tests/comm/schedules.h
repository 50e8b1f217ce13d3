/* What tests of schedules stand on: an agreed configuration of so many ranks on uneven nodes, the schedules of all
 * ranks, and what every rank must have in the end, computed here by plain loops in rank order. */
#ifndef WF_TESTS_COMM_SCHEDULES_H
#define WF_TESTS_COMM_SCHEDULES_H

#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"
#include "comm/reducer_author.h"
#include "tests/comm/values.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    wf_agreed agreed;
    wf_status *ended; /* of each rank, in the last simulation */
} fixture;

enum { FIXTURE_FORMS = 6, FIXTURE_WIDE = 4, FIXTURE_UNSHARED = 5 };

/* Nodes as given; memory is shared; limits are small, so that a few elements go in pieces, chunks and slots. */
static inline void fixture_nodes(wf_ctx *ctx, fixture *f, int ranks, const int32_t *node)
{
    WF_EXPECT_OK(wf_agreed_make(ctx, ranks, node, &f->agreed));
    f->ended = calloc((size_t)ranks, sizeof *f->ended);
    f->agreed.shared = true;
    f->agreed.ring_slot_bytes = 512;
    f->agreed.ring_short_bytes = 256;
    f->agreed.chunk_bytes = 200;
    f->agreed.prompt_bytes = 96;
    f->agreed.small_bytes = 64;
    f->agreed.bcast_piece_bytes = 128;
    f->agreed.piece_bytes = 256;
    f->agreed.least_block = 4;
}

static inline void fixture_real_limits(fixture *f)
{
    wf_agreed real;
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int32_t node = 0;
    WF_EXPECT_OK(wf_agreed_make(ctx, 1, &node, &real));
    f->agreed.ring_slot_bytes = real.ring_slot_bytes;
    f->agreed.ring_short_bytes = real.ring_short_bytes;
    f->agreed.chunk_bytes = real.chunk_bytes;
    f->agreed.prompt_bytes = real.prompt_bytes;
    f->agreed.small_bytes = real.small_bytes;
    f->agreed.bcast_piece_bytes = real.bcast_piece_bytes;
    f->agreed.piece_bytes = real.piece_bytes;
    f->agreed.least_block = real.least_block;
    wf_agreed_clear(&real);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* form 0: one node; 1: nodes of 1, 2, 3, ... ranks; 2: two nodes that take turns, of which one has a third; 3: three
 * nodes that take turns; 4: nodes of 7, 8 and 9 ranks, and what remains; 5: one node that shares no memory. On few
 * ranks FIXTURE_WIDE is like another one. */
static inline void fixture_open(wf_ctx *ctx, fixture *f, int ranks, int form)
{
    int32_t *node = calloc((size_t)ranks, sizeof *node);
    for (int r = 0, n = 0, left = form == 1 ? 1 : 7; r < ranks && form % 3 == 1; r++) {
        node[r] = n;
        if (--left == 0) {
            n++;
            left = form == 1 ? n + 1 : 7 + n % 3;
        }
    }
    for (int r = 0; r < ranks && (form == 2 || form == 3); r++)
        node[r] = form == 2 ? r % 3 == 1 : r % 3;
    fixture_nodes(ctx, f, ranks, node);
    f->agreed.shared = form != FIXTURE_UNSHARED;
    free(node);
}

static inline void fixture_close(fixture *f)
{
    wf_agreed_clear(&f->agreed);
    free(f->ended);
}

static inline const char *fixture_text(const fixture *f, const wf_call *call, char text[200])
{
    snprintf(text, 200, "%s %s of %lld %s, %d ranks on %d nodes", wf_call_name(call->operation),
             call->operation == WF_CALL_SUM ? call->reducer : "", (long long)call->count, wf_dtype_name(call->dtype),
             f->agreed.ranks, f->agreed.nodes);
    return text;
}

/* Uneven lengths of parts, some of them 0; ends of uneven shards. */
static inline void fixture_parts(wf_call *call, int ranks, int64_t *part)
{
    const bool shards = call->operation == WF_CALL_SUM_SHARDS || call->operation == WF_CALL_GATHER_SHARDS;
    int64_t end = 0;
    for (int r = 0; r < ranks; r++) {
        const int64_t length = (call->count * (r % 4)) / 2 + (r == 1);
        part[r] = shards ? end : length;
        end += length;
    }
    if (shards)
        part[ranks] = end;
}

/* Messages of the root of a tree over so many ranks. */
static inline uint64_t sent_by_tree(int ranks)
{
    uint64_t rounds = 0;
    for (int known = 1; known < ranks; known *= 2)
        rounds++;
    return rounds;
}

static inline void fixture_free(wf_schedule **all, int ranks)
{
    for (int r = 0; r < ranks; r++)
        wf_schedule_free(all[r]);
    free(all);
}

/* --- calls ----------------------------------------------------------------------------------------------------------
 */

enum { FIXTURE_RANKS = 64, FIXTURE_PARTS = 2 * FIXTURE_RANKS + 2 };

/* Patterns of messages in lists, of which each rank knows only its own part, the `parts` of the call. */
enum { LISTS_GATHER, LISTS_SCATTER, LISTS_ALL, LISTS_ONE, LISTS_SOME, LISTS };

/* Uneven lengths, some 0, and -1 where nothing passes. */
static inline int64_t fixture_passes(const fixture *f, const wf_call *call, int from, int to)
{
    const int root = call->root, other = (root + 1) % f->agreed.ranks;
    const bool passes[LISTS] = {to == root, from == root, true, from == root && to == other,
                                (from + 2 * to + root) % 5 > 0};
    return from == to || !passes[call->parts] ? -1 : call->count * ((7 * from + 3 * to) % 4) / 2 + (to == 1);
}

/* Each rank's frames are full of its number. */
static inline wf_status fixture_check_frame(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    const char *expected = own, *frame = from;
    (void)to;
    (void)to_bytes;
    for (size_t i = 0; i < from_bytes; i++)
        WF_CHECK(frame[i] == *expected, WF_ERR_COMM, "a frame is looked at before it has come");
    return WF_OK;
}

static inline void fixture_checks(wf_call *call)
{
    static char expected[FIXTURE_RANKS];
    for (int r = 0; r < FIXTURE_RANKS; r++)
        expected[r] = (char)(r + 1);
    call->check = fixture_check_frame;
    call->expected = expected;
    call->expected_bytes = 1;
}

/* How many kinds of call there are: operations, other lists, and the reducers by name. */
static inline int fixture_calls(void)
{
    int reducers = 0;
    while (wf_reducer_at(reducers))
        reducers++;
    return WF_CALLS + LISTS - 1 + reducers;
}

static inline bool fixture_sum(int64_t count, int which, uint64_t seed, wf_call *call, int64_t *part)
{
    const wf_reducer *reducer = wf_reducer_at(which);
    *call = (wf_call){.operation = WF_CALL_SUM,
                      .reducer = reducer->name,
                      .dtype = seed % 2 ? WF_F32 : WF_BF16,
                      .count = count,
                      .part = part,
                      .parts = 3};
    part[0] = 0;
    part[1] = part[2] = count / 3;
    part[3] = count;
    return reducer->build != NULL;
}

/* Call number `which`, whose root, operation and, where it has any, checks of frames follow from the seed. False where
 * there is none on so many ranks. */
static inline bool fixture_call(const fixture *f, int which, int64_t count, uint64_t seed, wf_call *call,
                                int64_t part[FIXTURE_PARTS])
{
    const int ranks = f->agreed.ranks;
    const int lists = which - WF_CALLS + 1; /* from 1 on */
    if (lists >= LISTS)
        return fixture_sum(count, lists - LISTS, seed, call, part);
    if (lists > 0)
        which = WF_CALL_LISTS;
    *call = (wf_call){.operation = (wf_operation)which, .dtype = WF_F32, .count = count, .part = part};
    if (which == WF_CALL_REDUCE || which == WF_CALL_ALLREDUCE || which == WF_CALL_REDUCE_SCATTER)
        call->op = (wf_reduce_op)(seed % 4);
    call->root = (int)(seed % (uint64_t)ranks);
    if (which == WF_CALL_LISTS || which == WF_CALL_RECEIVE)
        call->dtype = WF_U8;
    if (which == WF_CALL_LISTS)
        call->parts = lists > 0 ? lists : 0;
    for (int r = 0; r < ranks && which == WF_CALL_MEET; r++)
        if (r == call->root || (r + (int)(seed % 3)) % 3 > 0)
            part[call->parts++] = r;
    if (which != WF_CALL_MEET && which != WF_CALL_LISTS)
        fixture_parts(call, ranks, part);
    if (seed / 4 % 2)
        fixture_checks(call);
    return which != WF_CALL_SUM && (ranks > 1 || which != WF_CALL_RECEIVE);
}

/* Short and long forms of everything, in some number of elements that divides by nothing, and by the ranks. */
static inline void fixture_each_call(const fixture *f, uint64_t seed,
                                     void (*what)(const fixture *f, const wf_call *call, uint64_t seed))
{
    static const int64_t counts[] = {7, 333, 1, 64};
    int64_t part[FIXTURE_PARTS];
    wf_call call;
    for (int which = 0; which < fixture_calls(); which++)
        for (uint64_t i = 0; i < (f->agreed.ranks < 20 ? 4 : 2); i++)
            if (fixture_call(f, which, counts[i], 5 * seed + i + (uint64_t)which, &call, part))
                what(f, &call, seed);
}

/* A rank that has no part in a call, or sends what another one receives by itself. */
static inline wf_status fixture_without(wf_ctx *ctx, const fixture *f, const wf_call *call, int rank, wf_schedule **one)
{
    wf_builder *b = wf_builder_new(ctx, &f->agreed, rank);
    if (call->operation == WF_CALL_RECEIVE && rank == call->root)
        wf_add_send(b, wf_builder_operand(b, WF_OPERAND_INPUT, 0, (size_t)call->count), (size_t)call->count,
                    (call->root + 1) % f->agreed.ranks);
    return wf_builder_end(b, one);
}

static inline wf_status fixture_schedule(wf_ctx *ctx, const fixture *f, const wf_call *call, int rank,
                                         wf_schedule **one)
{
    const int ranks = f->agreed.ranks;
    int64_t part[FIXTURE_PARTS];
    wf_call own = *call;
    bool takes_part = call->operation != WF_CALL_RECEIVE || rank == (call->root + 1) % ranks;
    for (int i = 0; i < call->parts && call->operation == WF_CALL_MEET; i++)
        takes_part = i == 0 ? call->part[i] == rank : takes_part || call->part[i] == rank;
    if (!takes_part)
        return fixture_without(ctx, f, call, rank, one);
    for (int r = 0; r < ranks && call->operation == WF_CALL_LISTS; r++) {
        part[r] = fixture_passes(f, call, rank, r);
        part[ranks + r] = fixture_passes(f, call, r, rank);
        own.part = part;
    }
    return wf_call_schedule(ctx, &f->agreed, rank, &own, one);
}

static inline wf_schedule **fixture_schedules(wf_ctx *ctx, const fixture *f, const wf_call *call)
{
    wf_schedule **all = calloc((size_t)f->agreed.ranks, sizeof *all);
    for (int r = 0; r < f->agreed.ranks; r++)
        WF_EXPECT_OK(fixture_schedule(ctx, f, call, r, &all[r]));
    return all;
}

/* --- what every rank has, and should have ------------------------------------------------------------------------- */

wf_status wf_combine(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, void *y,
                     int64_t count);

/* The sum, in their order, of what the ranks `member` have in operand `index`. */
static inline void sum_of(wf_ctx *ctx, const wf_call *call, const int32_t *member, int members, int index, int64_t from,
                          int64_t count, void *to)
{
    const size_t bytes = (size_t)count * wf_dtype_size(call->dtype);
    const void **in = malloc((size_t)members * sizeof *in);
    for (int m = 0; m < members; m++) {
        void *one = malloc(bytes + 1);
        values_of(member ? member[m] : m, index, call->dtype, from, count, one);
        in[m] = one;
    }
    WF_EXPECT_OK(wf_combine(ctx, call->op, call->dtype, members, in, to, count));
    for (int m = 0; m < members; m++)
        free((void *)in[m]);
    free(in);
}

/* By nodes first, then over the nodes. */
static inline void sum_by_nodes(wf_ctx *ctx, const fixture *f, const wf_call *call, void *to)
{
    const wf_agreed *a = &f->agreed;
    const size_t bytes = (size_t)call->count * wf_dtype_size(call->dtype);
    const void **in = malloc((size_t)a->nodes * sizeof *in);
    for (int n = 0; n < a->nodes; n++) {
        void *one = malloc(bytes + 1);
        sum_of(ctx, call, a->member + a->first[n], (int)(a->first[n + 1] - a->first[n]), 0, 0, call->count, one);
        in[n] = one;
    }
    WF_EXPECT_OK(wf_combine(ctx, WF_SUM, call->dtype, a->nodes, in, to, call->count));
    for (int n = 0; n < a->nodes; n++)
        free((void *)in[n]);
    free(in);
}

static inline void sum_by_reducer(wf_ctx *ctx, const fixture *f, const wf_call *call, int rank, void *to)
{
    const bool nodes = strcmp(call->reducer, "flat") != 0 && strcmp(call->reducer, "naive") != 0;
    if (!strcmp(call->reducer, "dummy"))
        values_of(rank, 0, call->dtype, 0, call->count, to);
    else if (nodes && f->agreed.shared)
        sum_by_nodes(ctx, f, call, to);
    else
        sum_of(ctx, call, NULL, f->agreed.ranks, 0, 0, call->count, to);
}

static inline void shards_of(wf_ctx *ctx, const fixture *f, const wf_call *call, int rank, char *to)
{
    const size_t size = wf_dtype_size(call->dtype);
    const bool gathers = call->operation == WF_CALL_GATHER_SHARDS;
    for (int r = 0; r < f->agreed.ranks; r++) {
        const int64_t at = call->part[r], count = call->part[r + 1] - at;
        if (gathers || r != rank)
            values_of(gathers ? r : rank, 0, call->dtype, at, count, to + (size_t)at * size);
        else
            sum_of(ctx, call, NULL, f->agreed.ranks, 0, at, count, to + (size_t)at * size);
    }
}

/* What operand `index` of a rank has in the end. */
static inline void expected(wf_ctx *ctx, const fixture *f, const wf_call *call, int rank, int index, int64_t count,
                            char *to)
{
    const int ranks = f->agreed.ranks;
    switch (call->operation) {
    case WF_CALL_BCAST:
    case WF_CALL_RECEIVE:
        values_of(call->root, 0, call->dtype, 0, count, to);
        break;
    case WF_CALL_REDUCE:
    case WF_CALL_ALLREDUCE:
        sum_of(ctx, call, NULL, ranks, 0, 0, count, to);
        break;
    case WF_CALL_ALLGATHER:
        for (int r = 0; r < ranks; r++)
            values_of(r, 0, call->dtype, 0, call->count, to + (size_t)(r * call->count) * wf_dtype_size(call->dtype));
        break;
    case WF_CALL_LISTS:
        values_of(index, rank, call->dtype, 0, count, to);
        break;
    case WF_CALL_REDUCE_SCATTER:
        sum_of(ctx, call, NULL, ranks, rank, 0, count, to);
        break;
    case WF_CALL_SUM:
        sum_by_reducer(ctx, f, call, rank, to);
        break;
    case WF_CALL_SUM_SHARDS:
    case WF_CALL_GATHER_SHARDS:
        shards_of(ctx, f, call, rank, to);
        break;
    /* Without a default the compiler names an operation that is missing. These have no operand that is read back. */
    case WF_CALL_BARRIER:
    case WF_CALL_MEET:
    case WF_CALL_EXCHANGE:
    case WF_CALL_FUNCTION:
        WF_EXPECT(false, "operand %d of %s", index, wf_call_name(call->operation));
        break;
    }
}

/* --- simulation -----------------------------------------------------------------------------------------------------
 */

typedef struct judge {
    wf_ctx *ctx;
    const fixture *f;
    const wf_call *call;
    int wrong;
} judge;

static inline void judge_fill(void *own, int rank, const wf_operand *operand, void *data)
{
    const judge *j = own;
    const size_t size = wf_dtype_size(j->call->dtype);
    if (operand->index < j->f->agreed.ranks)
        values_of(rank, operand->index, j->call->dtype, 0, (int64_t)(operand->bytes / size), data);
    else /* frames */
        memset(data, rank + 1, operand->bytes);
}

static inline void judge_check(void *own, int rank, const wf_operand *operand, const void *data)
{
    judge *j = own;
    const int64_t count = (int64_t)(operand->bytes / wf_dtype_size(j->call->dtype));
    if (operand->index >= j->f->agreed.ranks)
        return;
    char *should = malloc(operand->bytes + 1);
    expected(j->ctx, j->f, j->call, rank, operand->index, count, should);
    j->wrong += memcmp(should, data, operand->bytes) != 0;
    free(should);
}

static inline wf_status simulate(judge *j, const wf_schedule *const *all, uint64_t seed, bool in_place,
                                 int failing_rank, int32_t failing_step)
{
    const wf_simulation s = {.seed = seed,
                             .silently = seed % 2 == 0,
                             .most_delay = (int)(seed % 9),
                             .in_place = in_place,
                             .in_line = seed % 3 == 0,
                             .failing_rank = failing_rank,
                             .failing_step = failing_step,
                             .fill = judge_fill,
                             .check = judge_check,
                             .own = j,
                             .ended = j->f->ended};
    return wf_schedule_simulate(j->ctx, all, j->f->agreed.ranks, &s);
}

/* Comes to an end, and gives every rank what it should have, bit for bit (where it fails: those that came to their
 * end).
 */
static inline wf_status fixture_simulate(wf_ctx *ctx, const fixture *f, const wf_call *call,
                                         const wf_schedule *const *all, uint64_t seed, bool in_place, int failing_rank,
                                         int32_t failing_step)
{
    judge j = {.ctx = ctx, .f = f, .call = call};
    const wf_status status = simulate(&j, all, seed, in_place, failing_rank, failing_step);
    char text[200];
    WF_EXPECT(j.wrong == 0, "%s, seed %d: %d operands are wrong", fixture_text(f, call, text), (int)seed, j.wrong);
    return status;
}

/* --- a rank that does nothing ---------------------------------------------------------------------------------------
 */

typedef struct halt {
    bool *never; /* of each event */
    bool happens;
} halt;

static inline void halt_release(void *own, int64_t event)
{
    halt *h = own;
    h->never[event] = h->never[event] || !h->happens;
}

/* Counts ranks that end well though a step of theirs waits, directly or not, for a failing rank that never begins. */
static inline int wrong_ends(wf_ctx *ctx, const wf_schedule *const *all, int ranks, int failing, const wf_status *ended)
{
    wf_schedule_graph g;
    int wrong = all[failing]->steps > 0 && ended[failing] == WF_OK;
    WF_EXPECT_OK(wf_graph_make(ctx, all, ranks, &g));
    halt h = {.never = calloc(2 * (size_t)g.first[ranks] + 1, sizeof *h.never)};
    for (int64_t e = 2 * g.first[failing]; e < 2 * g.first[failing + 1]; e++)
        h.never[e] = true;
    for (int64_t i = 0; i < 2 * g.first[ranks]; i++) {
        h.happens = !h.never[g.order[i]];
        wf_graph_happen(&g, g.order[i], halt_release, &h);
    }
    for (int r = 0; r < ranks; r++)
        for (int64_t e = 2 * g.first[r]; e < 2 * g.first[r + 1]; e++)
            if (h.never[e] && ended[r] == WF_OK) {
                wrong++;
                break;
            }
    free(h.never);
    wf_graph_clear(&g);
    return wrong;
}

static inline bool fixture_right(wf_ctx *ctx, const fixture *f, const wf_call *call, const wf_schedule *const *all,
                                 uint64_t seed)
{
    judge j = {.ctx = ctx, .f = f, .call = call};
    return simulate(&j, all, seed, true, -1, 0) == WF_OK && j.wrong == 0;
}

#endif
