/* Schedules of all ranks, made, proved, counted and simulated in this process: every collective and every reducer by
 * name, on 1 to 64 ranks of uneven nodes and on the communicators of meshes; what they send is what comm/comm.h says.
 * What fails, and mistakes that are planted: schedules_faults.c. */
#include "tests/comm/schedules.h"
#include "comm/comm_author.h"
#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"
#include "comm/reducer_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;

/* --- what is proved
 * --------------------------------------------------------------------------------------------------- */

static void prove(const fixture *f, const wf_call *call)
{
    char text[200];
    wf_schedule **all = fixture_schedules(ctx, f, call);
    const wf_status status = wf_schedule_verify(ctx, (const wf_schedule *const *)all, f->agreed.ranks);
    WF_EXPECT(status == WF_OK, "%s: %s", fixture_text(f, call, text), wf_error_message());
    wf_error_clear();
    fixture_free(all, f->agreed.ranks);
}

static void prove_and_run(const fixture *f, const wf_call *call, uint64_t seed)
{
    char text[200];
    wf_schedule **all = fixture_schedules(ctx, f, call);
    const wf_schedule *const *made = (const wf_schedule *const *)all;
    wf_status status = wf_schedule_verify(ctx, made, f->agreed.ranks);
    WF_EXPECT(status == WF_OK, "%s: %s", fixture_text(f, call, text), wf_error_message());
    for (int in_place = 0; in_place <= made[0]->in_place && status == WF_OK; in_place++) {
        status = fixture_simulate(ctx, f, call, made, seed + (uint64_t)in_place, in_place, -1, 0);
        WF_EXPECT(status == WF_OK, "%s, seed %d: %s", fixture_text(f, call, text), (int)seed, wf_error_message());
    }
    wf_error_clear();
    fixture_free(all, f->agreed.ranks);
}

/* Every call on every number of ranks, on each form of nodes, short and long: all of them where TEST_SAMPLES is 1, and
 * always those of few ranks, on nodes of one form. */
static void all_ranks(void)
{
    static const int64_t counts[] = {7, 333, 1, 64};
    const uint64_t chance = (uint64_t)(test_samples(1000) * test_samples(1000) / 1000);
    test_rng rng = {37};
    int64_t part[FIXTURE_PARTS], proved = 0;
    for (int i = 0; i < FIXTURE_RANKS * FIXTURE_FORMS; i++) {
        const int ranks = 1 + i / FIXTURE_FORMS, form = i % FIXTURE_FORMS;
        fixture f;
        wf_call call;
        fixture_open(ctx, &f, ranks, form);
        for (int which = 0; which < fixture_calls(); which++)
            for (int k = 0; k < 4; k++) {
                const uint64_t drawn = test_u64(&rng);
                const bool always = ranks <= 12 && form == ranks % FIXTURE_FORMS;
                if (!always && drawn % 1000 >= chance)
                    continue;
                if (!fixture_call(&f, which, counts[k], drawn >> 12, &call, part))
                    continue;
                prove_and_run(&f, &call, (drawn >> 32) | 1);
                proved++;
            }
        fixture_close(&f);
    }
    printf("%d calls were proved\n", (int)proved);
}

/* Sums of device memory pass through the host's. */
static void staged(void)
{
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int form = 0; form < 3; form++) {
            fixture f;
            wf_call call;
            int64_t part[FIXTURE_PARTS];
            fixture_open(ctx, &f, ranks, form);
            f.agreed.staged = true;
            for (int which = WF_CALL_SUM_SHARDS; which < fixture_calls(); which++)
                if (fixture_call(&f, which, 333, (uint64_t)ranks + (uint64_t)form, &call, part))
                    prove_and_run(&f, &call, (uint64_t)ranks);
            fixture_close(&f);
        }
}

/* Node numbers of the ranks that differ from rank 0 along these axes alone, in the order of nodes' first ranks. */
static int members_of(const int size[4], unsigned axes, const int32_t *world, int ranks, int32_t *node)
{
    int members = 0, nodes = 0;
    int32_t known[64];
    for (int r = 0; r < ranks; r++) {
        bool differs = false;
        for (int a = 3, rest = r; a >= 0; rest /= size[a], a--)
            differs = differs || (!(axes >> a & 1u) && rest % size[a] > 0);
        if (differs)
            continue;
        int n = 0;
        while (n < nodes && known[n] != world[r])
            n++;
        known[n] = world[r];
        nodes = n == nodes ? n + 1 : nodes;
        node[members++] = n;
    }
    return members;
}

/* The communicators of meshes: every step along an axis is some ranks of a node further, so nodes hold few of their
 * ranks, or come back after others. */
static void meshes(void)
{
    test_rng rng = {31};
    for (int i = 0; i < test_samples(200); i++) {
        int32_t world[64], node[64];
        int size[4], ranks = 1;
        fixture f;
        for (int a = 0; a < 4; a++) {
            size[a] = (int)test_int(&rng, 1, a ? 3 : 2);
            ranks *= size[a];
        }
        for (int r = 0, left = 1, n = 0; r < ranks; r++) {
            world[r] = n;
            if (--left == 0) {
                left = (int)test_int(&rng, 1, 5);
                n++;
            }
        }
        const unsigned axes = (unsigned)test_int(&rng, 1, 15);
        const int members = members_of(size, axes, world, ranks, node);
        fixture_nodes(ctx, &f, members, node);
        fixture_each_call(&f, (uint64_t)i + 1, prove_and_run);
        fixture_close(&f);
    }
}

/* With the limits that programs have, where messages are cut and pieces are many. */
static void real_limits(void)
{
    static const int sizes[] = {2, 3, 8, 13}, forms[] = {0, 1, FIXTURE_UNSHARED};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
            fixture f;
            fixture_open(ctx, &f, sizes[i], forms[form]);
            fixture_real_limits(&f);
            const wf_call sum = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 1500001};
            prove(&f, &sum);
            const wf_call bcast = {.operation = WF_CALL_BCAST, .dtype = WF_U8, .count = 1500001, .root = 1};
            prove(&f, &bcast);
            const wf_call reducer = {
                .operation = WF_CALL_SUM, .reducer = "two_dimensional", .dtype = WF_F32, .count = 1500001};
            prove(&f, &reducer);
            fixture_close(&f);
        }
}

static void prove_many(int ranks, int form, size_t small_bytes, const wf_call *call)
{
    fixture f;
    fixture_open(ctx, &f, ranks, form);
    f.agreed.small_bytes = small_bytes;
    prove(&f, call);
    fixture_close(&f);
}

/* Samples of many ranks. A short vector goes round all of them, or all nodes, in rounds of twice the distance; a long
 * one from each to each. */
static void thousands(void)
{
    static const size_t short_bytes = (size_t)1 << 20, long_bytes = 64;
    static const char *const reducers[] = {"hierarchical", "two_dimensional"};
    const int most = test_samples(4096);
    const wf_call bcast = {.operation = WF_CALL_BCAST, .dtype = WF_F32, .count = 2, .root = 77};
    const wf_call barrier = {.operation = WF_CALL_BARRIER};
    const wf_call reduce = {.operation = WF_CALL_REDUCE, .dtype = WF_F32, .count = 2, .root = 400};
    const wf_call gather = {.operation = WF_CALL_ALLGATHER, .dtype = WF_F32, .count = 20};
    const wf_call sum = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 3};
    prove_many(4096, 1, short_bytes, &bcast);
    prove_many(4096, 4, short_bytes, &barrier);
    prove_many(most, 1, short_bytes, &reduce);
    prove_many(test_samples(1280), 2, long_bytes, &gather);
    prove_many(test_samples(1280), 3, short_bytes, &sum);
    for (int i = 0; i < 2; i++) {
        wf_call reducer = {.operation = WF_CALL_SUM, .reducer = reducers[i], .dtype = WF_F32, .count = 50};
        prove_many(most, 4, short_bytes, &reducer);
        prove_many(most, 1, short_bytes, &reducer);
        reducer.count = 128;
        prove_many(test_samples(1024), 4, long_bytes, &reducer);
    }
}

/* A schedule costs no more than its own steps: those of a tree are as many on 4,096 ranks as twelve rounds need. */
static void own_steps(void)
{
    fixture f;
    wf_schedule *s;
    fixture_open(ctx, &f, 4096, 1);
    const wf_call call = {.operation = WF_CALL_BARRIER};
    WF_EXPECT_OK(wf_call_schedule(ctx, &f.agreed, 4095, &call, &s));
    WF_EXPECT(s->steps == 24 && s->operands == 13, "%d steps, %d operands", (int)s->steps, (int)s->operands);
    wf_schedule_free(s);
    fixture_close(&f);
}

/* --- what is sent
 * ----------------------------------------------------------------------------------------------------- */

static uint64_t sent_by_all(const fixture *f, const wf_call *call, uint64_t *by_root)
{
    uint64_t bytes = 0;
    wf_schedule **all = fixture_schedules(ctx, f, call);
    for (int r = 0; r < f->agreed.ranks; r++)
        bytes += all[r]->bytes_sent;
    *by_root = all[call->root]->bytes_sent;
    fixture_free(all, f->agreed.ranks);
    return bytes;
}

static void expect_sent(const fixture *f, const wf_call *call, uint64_t all, uint64_t root)
{
    char text[200];
    uint64_t by_root;
    const uint64_t bytes = sent_by_all(f, call, &by_root);
    WF_EXPECT(bytes == all, "%s: %llu bytes, should be %llu", fixture_text(f, call, text), (unsigned long long)bytes,
              (unsigned long long)all);
    WF_EXPECT(by_root == root, "%s: the root sends %llu bytes, should be %llu", fixture_text(f, call, text),
              (unsigned long long)by_root, (unsigned long long)root);
}

static uint64_t listed(const fixture *f, const wf_call *call, int from)
{
    uint64_t sum = 0;
    for (int to = 0; to < f->agreed.ranks; to++) {
        const int64_t bytes = fixture_passes(f, call, from, to);
        sum += bytes > 0 ? (uint64_t)bytes : 0;
    }
    return sum;
}

/* Checks that nothing is sent if the ranks of one node share memory. */
static void sends_nothing_in_a_node(int ranks, int64_t count)
{
    fixture f;
    fixture_open(ctx, &f, ranks, 0);
    fixture_real_limits(&f);
    wf_call call = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = count, .root = ranks / 2};
    expect_sent(&f, &call, 0, 0);
    call.operation = WF_CALL_REDUCE;
    expect_sent(&f, &call, 0, 0);
    fixture_close(&f);
}

/* The table of comm/comm.h. */
static void formulas_of(int ranks)
{
    const uint64_t p = (uint64_t)ranks, elements = 65536 * p, n = 4 * elements, small = 4 * 100;
    fixture f;
    sends_nothing_in_a_node(ranks, 100);
    sends_nothing_in_a_node(ranks, (int64_t)elements);
    fixture_open(ctx, &f, ranks, FIXTURE_UNSHARED);
    fixture_real_limits(&f);
    wf_call call = {.dtype = WF_F32, .count = (int64_t)elements, .root = ranks / 2};
    call.operation = WF_CALL_ALLREDUCE;
    expect_sent(&f, &call, 2 * n * (p - 1), 2 * n * (p - 1) / p);
    call.operation = WF_CALL_REDUCE;
    expect_sent(&f, &call, n * (p - 1) / p + (p - 1) * n, n * (p - 1) / p);
    call.operation = WF_CALL_ALLGATHER;
    expect_sent(&f, &call, n * (p - 1) * p, n * (p - 1));
    call.operation = WF_CALL_BCAST;
    expect_sent(&f, &call, n * (p - 1), p == 1 ? 0 : n);
    call.count = 100;
    expect_sent(&f, &call, small * (p - 1), sent_by_tree(ranks) * small);
    call.operation = WF_CALL_ALLREDUCE;
    expect_sent(&f, &call, small * (p - 1) * p, small * (p - 1));
    call.operation = WF_CALL_REDUCE;
    expect_sent(&f, &call, small * (p - 1), 0);
    call.operation = WF_CALL_BARRIER;
    expect_sent(&f, &call, p * sent_by_tree(ranks), sent_by_tree(ranks));
    call.operation = WF_CALL_LISTS;
    call.dtype = WF_U8;
    for (call.parts = 0; call.parts < LISTS; call.parts++) {
        uint64_t all = 0;
        for (int r = 0; r < ranks; r++)
            all += listed(&f, &call, r);
        expect_sent(&f, &call, all, listed(&f, &call, call.root));
    }
    fixture_close(&f);
}

static void formulas(void)
{
    static const int sizes[] = {1, 2, 3, 4, 7, 16, 33};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        formulas_of(sizes[i]);
}

/* Between nodes, as all-reduce of so many ranks: by one rank a node, or by each of S ranks of its share. */
static void reducers_between_nodes(void)
{
    static const int32_t node[] = {0, 0, 0, 0, 1, 1, 1, 2, 2};
    const uint64_t elements = 3 * 2 * 3 * 4096, n = 4 * elements;
    fixture f;
    uint64_t by_root;
    fixture_nodes(ctx, &f, 9, node);
    fixture_real_limits(&f);
    wf_call call = {.operation = WF_CALL_SUM, .reducer = "hierarchical", .dtype = WF_F32, .count = (int64_t)elements};
    expect_sent(&f, &call, 2 * n * 2, 2 * n * 2 / 3);
    call.reducer = "two_dimensional";
    expect_sent(&f, &call, 2 * n * 2, 2 * n / 2 * 2 / 3);
    f.agreed.shared = false;
    call.reducer = "hierarchical";
    WF_EXPECT(sent_by_all(&f, &call, &by_root) == 2 * n * 8, "without shared memory: as flat");
    call.reducer = "dummy";
    WF_EXPECT(sent_by_all(&f, &call, &by_root) == 0, "dummy sends");
    fixture_close(&f);
}

/* --- prices
 * ----------------------------------------------------------------------------------------------------------- */

static wf_price whole_price(const fixture *f, const wf_call *call, const wf_price_model *model)
{
    wf_price price;
    wf_schedule **all = fixture_schedules(ctx, f, call);
    WF_EXPECT_OK(wf_schedule_price(ctx, &f->agreed, (const wf_schedule *const *)all, model, &price));
    fixture_free(all, f->agreed.ranks);
    return price;
}

static double price_of(const fixture *f, const wf_call *call, const wf_price_model *model)
{
    return whole_price(f, call, model).seconds;
}

/* Checks prices that can be computed by hand: rounds of alpha, and bytes of beta. */
static void prices(void)
{
    const wf_price_model alpha = {.alpha_s = {1, 100}}, beta = {.beta_s = {1, 10}}, gamma = {.gamma_s = 1};
    fixture f;
    fixture_open(ctx, &f, 8, FIXTURE_UNSHARED);
    const wf_call barrier = {.operation = WF_CALL_BARRIER};
    WF_EXPECT(price_of(&f, &barrier, &alpha) == 3, "a barrier of 8: %g alpha", price_of(&f, &barrier, &alpha));
    /* rank 0 sends 3 / 2 of it, and a byte */
    const wf_call send = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .count = 666, .parts = LISTS_ONE};
    WF_EXPECT(price_of(&f, &send, &beta) == 1056, "a send: %g beta", price_of(&f, &send, &beta));
    const wf_call sum = {.operation = WF_CALL_REDUCE, .dtype = WF_F32, .count = 2};
    WF_EXPECT(price_of(&f, &sum, &gamma) == 8 * 8, "8 inputs of 8 bytes: %g gamma", price_of(&f, &sum, &gamma));
    fixture_close(&f);
    fixture_open(ctx, &f, 8, 1);
    WF_EXPECT(price_of(&f, &barrier, &alpha) >= 100, "between nodes: %g", price_of(&f, &barrier, &alpha));
    for (int from = 0; from < 2; from++) { /* node 0 is rank 0, node 1 ranks 1 and 2 */
        const wf_call next = {
            .operation = WF_CALL_LISTS, .dtype = WF_U8, .count = 666, .root = from, .parts = LISTS_ONE};
        const wf_price price = whole_price(&f, &next, &alpha);
        const uint64_t bytes = listed(&f, &next, from);
        WF_EXPECT(price.bytes == bytes && price.between_bytes == (from == 0 ? bytes : 0),
                  "%d of %d bytes between nodes", (int)price.between_bytes, (int)price.bytes);
    }
    fixture_close(&f);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"all_ranks", all_ranks},
                                               {"staged", staged},
                                               {"meshes", meshes},
                                               {"real_limits", real_limits},
                                               {"thousands", thousands},
                                               {"own_steps", own_steps},
                                               {"formulas", formulas},
                                               {"reducers_between_nodes", reducers_between_nodes},
                                               {"prices", prices},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
