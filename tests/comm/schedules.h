/* What tests of schedules stand on: an agreed configuration of so many ranks on uneven nodes, the schedules of all
 * ranks, and what every rank must have in the end, computed here by plain loops in rank order. */
#ifndef WF_TESTS_COMM_SCHEDULES_H
#define WF_TESTS_COMM_SCHEDULES_H

#include "comm/engine/collectives_author.h"
#include "comm/engine/proof_author.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    wf_agreed agreed;
} fixture;

/* Nodes as given; memory is shared; limits are small, so that a few elements go in pieces, chunks and slots. */
static inline void fixture_nodes(wf_ctx *ctx, fixture *f, int ranks, const int32_t *node)
{
    WF_EXPECT_OK(wf_agreed_make(ctx, ranks, node, &f->agreed));
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

/* form 0: one node; 1: nodes of 1, 2, 3, ... ranks; 2: two nodes that take turns, of which one has a third. */
static inline void fixture_open(wf_ctx *ctx, fixture *f, int ranks, int form)
{
    int32_t *node = calloc((size_t)ranks, sizeof *node);
    for (int r = 0, n = 0, left = 1; r < ranks && form == 1; r++) {
        node[r] = n;
        if (--left == 0)
            left = ++n + 1;
    }
    for (int r = 0; r < ranks && form == 2; r++)
        node[r] = r % 3 == 1;
    fixture_nodes(ctx, f, ranks, node);
    free(node);
}

static inline void fixture_close(fixture *f)
{
    wf_agreed_clear(&f->agreed);
}

static inline const char *fixture_text(const fixture *f, const wf_call *call, char text[200])
{
    snprintf(text, 200, "%s %s of %lld %s, %d ranks on %d nodes", wf_call_name(call->operation),
             call->operation == WF_CALL_SUM ? call->reducer : "", (long long)call->count, wf_dtype_name(call->dtype),
             f->agreed.ranks, f->agreed.nodes);
    return text;
}

/* Uneven lengths of lists of tensors, some of them 0; ends of uneven shards. */
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

static inline uint64_t fixture_others(const int64_t *part, int ranks, int root)
{
    uint64_t sum = 0;
    for (int r = 0; r < ranks; r++)
        sum += r == root ? 0 : (uint64_t)part[r];
    return sum;
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

static inline wf_schedule **fixture_schedules(wf_ctx *ctx, const fixture *f, const wf_call *call)
{
    wf_schedule **all = calloc((size_t)f->agreed.ranks, sizeof *all);
    for (int r = 0; r < f->agreed.ranks; r++)
        WF_EXPECT_OK(wf_call_schedule(ctx, &f->agreed, r, call, &all[r]));
    return all;
}

/* --- what everybody has, and should have
 * ------------------------------------------------------------------------------ */

/* Numbers of many magnitudes, so that sums in another order have other bits. */
static inline void values_of(int rank, int index, wf_dtype dtype, int64_t from, int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t h = ((uint64_t)(from + i) * 131 + (uint64_t)index) * 8209 + (uint64_t)rank + 1;
        h *= 0x9e3779b97f4a7c15u;
        h ^= h >> 31;
        const float value = (float)((int)(h % 2001) - 1000) * (float)(1 << (h >> 20) % 12);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == WF_F32)
            ((float *)to)[i] = value;
        else if (dtype == WF_BF16)
            ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
        else
            ((uint8_t *)to)[i] = (uint8_t)h;
    }
}

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
    case WF_CALL_SEND:
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
    case WF_CALL_GATHER:
        values_of(index, 0, call->dtype, 0, count, to);
        break;
    case WF_CALL_SCATTER:
        values_of(call->root, rank, call->dtype, 0, count, to);
        break;
    case WF_CALL_ALLTOALL:
        values_of(index, rank, call->dtype, 0, count, to);
        break;
    case WF_CALL_REDUCE_SCATTER:
        sum_of(ctx, call, NULL, ranks, rank, 0, count, to);
        break;
    case WF_CALL_SUM:
        sum_by_reducer(ctx, f, call, rank, to);
        break;
    default:
        shards_of(ctx, f, call, rank, to);
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
    else
        memset(data, 0, operand->bytes);
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
                             .most_delay = (int)(seed % 9),
                             .in_place = in_place,
                             .in_line = seed % 3 == 0,
                             .failing_rank = failing_rank,
                             .failing_step = failing_step,
                             .fill = judge_fill,
                             .check = judge_check,
                             .own = j};
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

static inline bool fixture_right(wf_ctx *ctx, const fixture *f, const wf_call *call, const wf_schedule *const *all,
                                 uint64_t seed)
{
    judge j = {.ctx = ctx, .f = f, .call = call};
    return simulate(&j, all, seed, true, -1, 0) == WF_OK && j.wrong == 0;
}

#endif
