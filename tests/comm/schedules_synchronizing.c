/* Schedules that no rank ends before all have begun them: the guard asks for no record of those calls. Which they are,
 * and that the verifier finds one that only says so. */
#include "comm/proof/proof_author.h"
#include "tests/comm/schedules.h"

#include <string.h>

static wf_ctx *ctx;

enum { RANKS = 9 };

typedef struct expectation {
    wf_call call;
    bool synchronizes;
} expectation;

static void check(int form, const expectation *list, size_t count)
{
    fixture f;
    fixture_open(ctx, &f, RANKS, form);
    for (size_t i = 0; i < count; i++) {
        const expectation *e = &list[i];
        wf_schedule **all = fixture_schedules(ctx, &f, &e->call);
        const wf_schedule *const *known = (const wf_schedule *const *)all;
        char text[200];
        for (int r = 0; r < RANKS; r++)
            WF_EXPECT(all[r]->synchronizes == e->synchronizes, "rank %d, %s: %d", r, fixture_text(&f, &e->call, text),
                      all[r]->synchronizes);
        WF_EXPECT_OK(wf_schedule_verify(ctx, known, RANKS));
        for (int r = 0; r < RANKS; r++)
            all[r]->synchronizes = true;
        const wf_status status = wf_schedule_verify(ctx, known, RANKS);
        WF_EXPECT(e->synchronizes ? status == WF_OK : status != WF_OK && strstr(wf_error_message(), "may end before"),
                  "%s: %s", fixture_text(&f, &e->call, text), status == WF_OK ? "not found" : wf_error_message());
        wf_error_clear();
        fixture_free(all, RANKS);
    }
    fixture_close(&f);
}

/* Short and long, of lengths that leave ranks without a part; on nodes of 1, 2 and 3 ranks. */
static void calls(void)
{
    const expectation list[] = {
        {{.operation = WF_CALL_BARRIER}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 1}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 3}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 333}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32}, false},
        {{.operation = WF_CALL_ALLGATHER, .dtype = WF_U8, .count = 1}, true},
        {{.operation = WF_CALL_ALLGATHER, .dtype = WF_U8, .count = 100}, true},
        {{.operation = WF_CALL_SUM, .reducer = "flat", .dtype = WF_F32, .count = 5}, true},
        {{.operation = WF_CALL_SUM, .reducer = "naive", .dtype = WF_F32, .count = 50}, true},
        {{.operation = WF_CALL_SUM, .reducer = "hierarchical", .dtype = WF_F32, .count = 50}, true},
        {{.operation = WF_CALL_SUM, .reducer = "two_dimensional", .dtype = WF_F32, .count = 1}, true},
        {{.operation = WF_CALL_SUM, .reducer = "two_dimensional", .dtype = WF_F32, .count = 1000}, true},
        {{.operation = WF_CALL_SUM, .reducer = "two_dimensional", .dtype = WF_F32}, false},
        {{.operation = WF_CALL_REDUCE, .dtype = WF_F32, .count = 1}, false},
        {{.operation = WF_CALL_BCAST, .dtype = WF_U8, .count = 50}, false}};
    check(1, list, sizeof list / sizeof *list);
}

/* Flags of slots say of which call they are, those of ranks do not. */
static void calls_in_a_node(void)
{
    int64_t shard[RANKS + 1];
    for (int r = 0; r <= RANKS; r++)
        shard[r] = 3 * (r / 2);
    const expectation list[] = {
        {{.operation = WF_CALL_SUM, .reducer = "single_node", .dtype = WF_F32, .count = 1}, true},
        {{.operation = WF_CALL_SUM, .reducer = "single_node", .dtype = WF_F32, .count = 64}, true},
        {{.operation = WF_CALL_SUM, .reducer = "single_node", .dtype = WF_F32, .count = 1000}, true},
        {{.operation = WF_CALL_SUM, .reducer = "single_node", .dtype = WF_F32}, false},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F64, .op = WF_MAX, .count = 1}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 64}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_BF16, .count = 1000}, true},
        {{.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32}, false},
        {{.operation = WF_CALL_REDUCE, .dtype = WF_F32, .count = 64}, false},
        {{.operation = WF_CALL_SUM_SHARDS, .dtype = WF_F32, .part = shard}, false}};
    check(0, list, sizeof list / sizeof *list);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed =
        test_main(argc, argv, (test_case[]){{"calls", calls}, {"calls_in_a_node", calls_in_a_node}, {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
