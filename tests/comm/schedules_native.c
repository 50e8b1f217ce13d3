/* Schedules of calls that the native transport moves: one call or one group each, no message, and copies around sums of
 * 16-bit types; verified for all ranks, equal and uneven shards included. */
#include "comm/proof/proof_author.h"
#include "tests/comm/schedules.h"

enum { MOST = 5, COUNT = 60 };

static wf_ctx *ctx;

/* Counts the native calls, the copies and the ends of groups of a schedule; whatever else it has must be a join. A call
 * of a schedule with a group must be inside it. */
static void count_steps(const wf_schedule *s, const char *name, int *calls, int *copies, int *marks)
{
    int outside = 0;
    *calls = *copies = *marks = 0;
    for (int32_t i = 0; i < s->steps; i++) {
        const wf_step *step = &s->step[i];
        const bool joins = step->kind == WF_STEP_CALL && !s->call[step->list].run;
        WF_EXPECT(joins || step->kind == WF_STEP_NATIVE, "%s has a step of kind %d", name, step->kind);
        if (step->kind != WF_STEP_NATIVE)
            continue;
        const wf_native_kind kind = (wf_native_kind)step->list;
        WF_EXPECT(kind <= WF_NATIVE_COPY || kind == (*marks == 0 ? WF_NATIVE_GROUP : WF_NATIVE_LAUNCH),
                  "%s has mark %d of kind %d", name, *marks, kind);
        *copies += kind == WF_NATIVE_COPY;
        *calls += kind < WF_NATIVE_COPY;
        *marks += kind > WF_NATIVE_COPY;
        outside += kind < WF_NATIVE_COPY && *marks != 1;
    }
    WF_EXPECT(*marks == 0 || outside == 0, "%s has %d calls outside of its group", name, outside);
}

/* All ranks' schedules of the call, which is `calls` times `parts` native calls; several parts are a group. */
static void check(int ranks, bool connected, const wf_call *call, int calls, int copies, int parts)
{
    wf_schedule *all[MOST] = {0};
    wf_agreed agreed;
    const int32_t node[MOST] = {0};
    const int marks = parts > 1 ? 2 : 0; /* begin and end of a group */
    WF_EXPECT_OK(wf_agreed_make(ctx, ranks, node, &agreed));
    agreed.staged = true;
    agreed.native = connected;
    WF_EXPECT(wf_call_stays(&agreed, call), "%s of %d ranks leaves the device", wf_call_name(call->operation), ranks);
    for (int r = 0; r < ranks; r++) {
        const char *name = wf_call_name(call->operation);
        int made, copied, marked;
        WF_EXPECT_OK(wf_call_schedule(ctx, &agreed, r, call, &all[r]));
        if (!all[r])
            continue;
        count_steps(all[r], name, &made, &copied, &marked);
        const bool rounds = call->operation != WF_CALL_REDUCE || r == call->root;
        WF_EXPECT(made == calls * parts, "%s on rank %d of %d: %d native calls", name, r, ranks, made);
        WF_EXPECT(marked == marks, "%s on rank %d of %d: %d ends of groups", name, r, ranks, marked);
        WF_EXPECT(copied == (rounds || copies == 0 ? copies : copies - 1), "%s on rank %d of %d: %d copies", name, r,
                  ranks, copied);
    }
    WF_EXPECT_OK(wf_schedule_verify(ctx, (const wf_schedule *const *)all, ranks));
    for (int r = 0; r < ranks; r++)
        wf_schedule_free(all[r]);
    wf_agreed_clear(&agreed);
}

static const wf_call plain = {.dtype = WF_F32, .count = COUNT, .device = true};

static void vectors(void)
{
    const int64_t ends[3] = {10, 20, COUNT};
    for (int ranks = 2; ranks <= MOST; ranks++) {
        wf_call call = plain;
        call.root = ranks - 1;
        call.operation = WF_CALL_BCAST;
        check(ranks, true, &call, 1, 0, 1);
        call.operation = WF_CALL_ALLGATHER;
        check(ranks, true, &call, 1, 0, 1);
        for (int narrow = 0; narrow < 2; narrow++) {
            call.dtype = narrow ? WF_BF16 : WF_F32;
            call.operation = WF_CALL_REDUCE;
            check(ranks, true, &call, 1, narrow ? 2 : 0, 1);
            call.operation = WF_CALL_ALLREDUCE;
            check(ranks, true, &call, 1, narrow ? 2 : 0, 1);
            /* Gradients travel in the type of their buffer. */
            wf_call sum = {.operation = WF_CALL_SUM,
                           .reducer = "pure_nccl",
                           .dtype = call.dtype,
                           .count = COUNT,
                           .part = ends,
                           .parts = 2,
                           .device = true};
            check(ranks, true, &sum, 1, 0, 1);
        }
    }
}

static void shards(void)
{
    for (int ranks = 2; ranks <= MOST; ranks++)
        for (int uneven = 0; uneven < 2; uneven++) {
            int64_t shard[MOST + 1];
            for (int r = 0; r <= ranks; r++)
                shard[r] = COUNT / ranks * r + (uneven && r > 0 && r < ranks ? 3 : 0);
            wf_call call = plain;
            call.part = shard;
            call.count = shard[ranks];
            call.operation = WF_CALL_GATHER_SHARDS;
            check(ranks, true, &call, 1, 0, uneven ? ranks : 1);
            call.operation = WF_CALL_SUM_SHARDS;
            check(ranks, true, &call, 1, 0, uneven ? ranks : 1);
            call.dtype = WF_F16;
            check(ranks, true, &call, 1, 2, uneven ? ranks : 1);
        }
}

/* One rank that is not connected has nothing but copies. */
static void one_rank(void)
{
    wf_call call = plain;
    call.operation = WF_CALL_BCAST;
    check(1, false, &call, 0, 0, 0);
    call.operation = WF_CALL_ALLGATHER;
    check(1, false, &call, 0, 1, 0);
    call.operation = WF_CALL_ALLREDUCE;
    call.op = WF_MAX;
    call.dtype = WF_BF16;
    check(1, false, &call, 0, 1, 0);
}

/* What may lose a NaN, or is in the host's memory, does not stay; nor does anything without a connection. */
static void does_not_stay(void)
{
    const int32_t node[2] = {0};
    wf_agreed agreed;
    wf_call call = plain;
    call.operation = WF_CALL_ALLREDUCE;
    WF_EXPECT_OK(wf_agreed_make(ctx, 2, node, &agreed));
    agreed.staged = true;
    WF_EXPECT(!wf_call_stays(&agreed, &call), "a call stays without a connection");
    agreed.native = true;
    WF_EXPECT(wf_call_stays(&agreed, &call), "a sum of floats does not stay");
    call.op = WF_MAX;
    WF_EXPECT(!wf_call_stays(&agreed, &call), "a maximum of floats stays");
    call.dtype = WF_I64;
    WF_EXPECT(wf_call_stays(&agreed, &call), "a maximum of integers does not stay");
    call.device = false;
    WF_EXPECT(!wf_call_stays(&agreed, &call), "host memory stays on the device");
    wf_agreed_clear(&agreed);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed = test_main(
        argc, argv,
        (test_case[]){
            {"vectors", vectors}, {"shards", shards}, {"one_rank", one_rank}, {"does_not_stay", does_not_stay}, {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
