/* Prices by representatives: the schedules of one node stand for those of all, and the price is that of all schedules
 * together; what is not the same on every node is refused. */
#include "tests/test.h"

#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static wf_ctx *ctx;

static void agreed_open(wf_agreed *agreed, int nodes, int each)
{
    const int ranks = nodes * each;
    int32_t *node = calloc((size_t)ranks, sizeof *node);
    for (int r = 0; r < ranks; r++)
        node[r] = r / each;
    WF_EXPECT_OK(wf_agreed_make(ctx, ranks, node, agreed));
    agreed->shared = true;
    free(node);
}

static wf_price price_all(const wf_agreed *agreed, const wf_call *call, const wf_price_model *model)
{
    wf_schedule **all = calloc((size_t)agreed->ranks, sizeof(*all));
    wf_price price = {0};
    for (int r = 0; r < agreed->ranks; r++)
        WF_EXPECT_OK(wf_call_schedule(ctx, agreed, r, call, &all[r]));
    WF_EXPECT_OK(wf_schedule_price(ctx, agreed, (const wf_schedule *const *)all, model, &price));
    for (int r = 0; r < agreed->ranks; r++)
        wf_schedule_free(all[r]);
    free(all);
    return price;
}

static wf_call sum_of(const char *reducer, const int64_t *ends, int64_t count)
{
    return (wf_call){
        .operation = WF_CALL_SUM, .reducer = reducer, .dtype = WF_F32, .count = count, .part = ends, .parts = 1};
}

static void expect_same(int nodes, int each, const wf_call *call, double tolerance)
{
    const wf_price_model model = wf_price_model_default();
    wf_agreed agreed;
    wf_price price;
    agreed_open(&agreed, nodes, each);
    const wf_price all = price_all(&agreed, call, &model);
    WF_EXPECT_OK(wf_call_price(ctx, &agreed, call, &model, &price));
    const char *name = call->reducer ? call->reducer : wf_call_name(call->operation);
    WF_EXPECT(fabs(price.seconds - all.seconds) <= tolerance * all.seconds,
              "%s of %lld elements on %d x %d ranks: %.9g s by representatives, %.9g s by all", name,
              (long long)call->count, nodes, each, price.seconds, all.seconds);
    WF_EXPECT(fabs((double)price.bytes - (double)all.bytes) <= tolerance * (double)all.bytes &&
                  fabs((double)price.between_bytes - (double)all.between_bytes) <=
                      tolerance * (double)all.between_bytes &&
                  price.messages == all.messages,
              "%s of %lld elements on %d x %d ranks: %llu bytes in %llu messages by representatives, %llu in %llu",
              name, (long long)call->count, nodes, each, (unsigned long long)price.bytes,
              (unsigned long long)price.messages, (unsigned long long)all.bytes, (unsigned long long)all.messages);
    wf_agreed_clear(&agreed);
}

/* Counts that divide among nodes and ranks, long and short ones; the price is the same but for rounding. */
static void representatives_stand_for_all(void)
{
    static const char *const reducers[] = {"flat", "hierarchical", "two_dimensional"};
    static const int64_t counts[] = {512, 1 << 20};
    for (int nodes = 1; nodes <= 64; nodes *= 8)
        for (int each = 1; each <= 8; each *= 8)
            for (int i = 0; i < 2; i++) {
                const int64_t ends[] = {0, counts[i]};
                for (size_t r = 0; r < sizeof reducers / sizeof *reducers; r++) {
                    const wf_call sum = sum_of(reducers[r], ends, counts[i]);
                    if (nodes * each < 512 || counts[i] == 512 || r == 2) /* the others take seconds */
                        expect_same(nodes, each, &sum, 1e-9);
                }
                const wf_call gather = {.operation = WF_CALL_ALLGATHER, .dtype = WF_F32, .count = counts[i] / 512};
                expect_same(nodes, each, &gather, 1e-9);
            }
    const wf_call barrier = {.operation = WF_CALL_BARRIER};
    expect_same(8, 8, &barrier, 1e-9);
}

static wf_call shards_of(wf_operation operation, int ranks, int64_t each, int64_t *part)
{
    for (int r = 0; r <= ranks; r++)
        part[r] = r * each;
    return (wf_call){.operation = operation, .dtype = WF_F32, .count = ranks * each, .part = part};
}

static void representatives_of_shards(void)
{
    int64_t part[65];
    for (int nodes = 1; nodes <= 8; nodes *= 2)
        for (int each = 1; each <= 8; each *= 8)
            for (int64_t count = 3; count < 200000; count *= 2000) {
                const wf_call sum = shards_of(WF_CALL_SUM_SHARDS, nodes * each, count, part);
                expect_same(nodes, each, &sum, 1e-9);
                const wf_call gather = shards_of(WF_CALL_GATHER_SHARDS, nodes * each, count, part);
                expect_same(nodes, each, &gather, 1e-9);
            }
}

/* Between nodes no message of a shard waits for an answer. */
static void shards_are_prompt(void)
{
    enum { RANKS = 3, EACH = 100000 };
    static const wf_operation operations[] = {WF_CALL_SUM_SHARDS, WF_CALL_GATHER_SHARDS};
    int64_t part[RANKS + 1];
    wf_agreed agreed;
    agreed_open(&agreed, RANKS, 1);
    for (int i = 0; i < 2; i++) {
        const wf_call call = shards_of(operations[i], RANKS, EACH, part);
        wf_schedule *made;
        uint64_t sent = 0;
        WF_EXPECT_OK(wf_call_schedule(ctx, &agreed, 1, &call, &made));
        for (int32_t n = 0; made && n < made->steps; n++) {
            const wf_step *step = &made->step[n];
            sent += step->kind == WF_STEP_SEND ? step->bytes : 0;
            WF_EXPECT(step->kind != WF_STEP_SEND || step->bytes <= agreed.prompt_bytes, "%s sends %lld bytes at once",
                      wf_call_name(operations[i]), (long long)step->bytes);
        }
        WF_EXPECT(sent == (RANKS - 1) * EACH * sizeof(float), "%s sends %llu bytes", wf_call_name(operations[i]),
                  (unsigned long long)sent);
        wf_schedule_free(made);
    }
    wf_agreed_clear(&agreed);
}

/* Checks uneven blocks: if they differ by an element, every node counts as the first one, which has the longer
 * blocks. */
static void uneven_lengths_are_close(void)
{
    const int64_t ends[] = {0, 1000003};
    const wf_call hierarchical = sum_of("hierarchical", ends, ends[1]), two = sum_of("two_dimensional", ends, ends[1]);
    expect_same(8, 8, &hierarchical, 0.01);
    expect_same(8, 8, &two, 0.01);
}

static void many_ranks(void)
{
    const wf_price_model model = wf_price_model_default();
    const int64_t ends[] = {0, 1 << 24};
    const wf_call call = sum_of("two_dimensional", ends, ends[1]);
    double before = 0;
    for (int nodes = 512; nodes <= 12500; nodes = nodes == 512 ? 12500 : 12501) {
        wf_agreed agreed;
        wf_price price;
        agreed_open(&agreed, nodes, 8);
        WF_EXPECT_OK(wf_call_price(ctx, &agreed, &call, &model, &price));
        /* For each shard, every node sends all blocks except its own, and gets them back. */
        const double moved = 2.0 * 4 * (1 << 24) * (nodes - 1);
        WF_EXPECT(fabs((double)price.between_bytes - moved) <= 0.01 * moved, "%d nodes: %llu bytes between nodes",
                  nodes, (unsigned long long)price.between_bytes);
        WF_EXPECT(price.seconds > before, "%d nodes: %g s", nodes, price.seconds);
        before = price.seconds;
        wf_agreed_clear(&agreed);
    }
}

static void what_has_a_root_is_refused(void)
{
    const wf_price_model model = wf_price_model_default();
    wf_agreed agreed;
    wf_price price;
    agreed_open(&agreed, 8, 2);
    const wf_call bcast = {.operation = WF_CALL_BCAST, .dtype = WF_F32, .count = 100};
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_call_price(ctx, &agreed, &bcast, &model, &price));
    wf_agreed_clear(&agreed);

    static const int32_t uneven[] = {0, 0, 1};
    const wf_call barrier = {.operation = WF_CALL_BARRIER};
    WF_EXPECT_OK(wf_agreed_make(ctx, 3, uneven, &agreed));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_call_price(ctx, &agreed, &barrier, &model, &price));
    wf_agreed_clear(&agreed);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"representatives_stand_for_all", representatives_stand_for_all},
                                               {"representatives_of_shards", representatives_of_shards},
                                               {"shards_are_prompt", shards_are_prompt},
                                               {"uneven_lengths_are_close", uneven_lengths_are_close},
                                               {"many_ranks", many_ranks},
                                               {"what_has_a_root_is_refused", what_has_a_root_is_refused},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
