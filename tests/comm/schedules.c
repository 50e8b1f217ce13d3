/* Schedules of all ranks, made, proved, counted and simulated in this process: every collective and every reducer by
 * name, on 1 to 64 ranks of uneven nodes and on the communicators of meshes; what they send is what comm/comm.h says;
 * planted mistakes are found. */
#include "tests/comm/schedules.h"
#include "comm/comm_author.h"
#include "comm/engine/collectives_author.h"
#include "comm/engine/proof_author.h"
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

/* Short and long forms of everything, in some number of elements that divides by nothing, and by the ranks. */
static void each_call(const fixture *f, uint64_t seed,
                      void (*what)(const fixture *f, const wf_call *call, uint64_t seed))
{
    static const int64_t counts[] = {7, 333, 1, 64};
    const size_t n = f->agreed.ranks < 20 ? 4 : 2;
    int64_t part[65];
    for (int operation = 0; operation < WF_CALL_SUM; operation++)
        for (size_t i = 0; i < n; i++) {
            wf_call call = {.operation = (wf_operation)operation, .dtype = WF_F32, .count = counts[i], .part = part};
            call.root = (int)(seed + i) % f->agreed.ranks;
            call.other = (call.root + 1) % f->agreed.ranks;
            if (operation == WF_CALL_SEND && call.root == call.other)
                continue;
            fixture_parts(&call, f->agreed.ranks, part);
            what(f, &call, seed);
        }
    for (int r = 0; wf_reducer_at(r); r++)
        for (size_t i = 0; i < n && wf_reducer_at(r)->build; i++) {
            const int64_t segments[] = {0, counts[i] / 3, counts[i] / 3, counts[i]};
            const wf_call call = {.operation = WF_CALL_SUM,
                                  .reducer = wf_reducer_at(r)->name,
                                  .dtype = i % 2 ? WF_F32 : WF_BF16,
                                  .count = counts[i],
                                  .part = segments,
                                  .parts = 3};
            what(f, &call, seed);
        }
}

/* Nodes of one kind, of 1, 2, 3, ... ranks and what remains. */
static void all_calls(void)
{
    static const int more[] = {16, 17, 29, 64};
    for (int i = 1; i <= 16; i++) {
        const int ranks = i <= 12 ? i : more[i - 13];
        fixture f;
        fixture_open(ctx, &f, ranks, ranks % 3);
        each_call(&f, (uint64_t)ranks, prove_and_run);
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
    for (int i = 0; i < 60; i++) {
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
        each_call(&f, (uint64_t)i + 1, prove_and_run);
        fixture_close(&f);
    }
}

/* With the limits that programs have, where messages are cut and pieces are many. */
static void real_limits(void)
{
    static const int sizes[] = {2, 3, 8, 13};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int nodes = 0; nodes < 2; nodes++) {
            fixture f;
            fixture_open(ctx, &f, sizes[i], nodes);
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

/* Samples of many ranks. */
static void thousands(void)
{
    static const wf_call calls[] = {{.operation = WF_CALL_BCAST, .dtype = WF_F32, .count = 2, .root = 77},
                                    {.operation = WF_CALL_BARRIER},
                                    {.operation = WF_CALL_REDUCE, .dtype = WF_F32, .count = 2, .root = 4000}};
    fixture f;
    fixture_open(ctx, &f, 4096, 1);
    f.agreed.small_bytes = (size_t)1 << 20;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        prove(&f, &calls[i]);
    fixture_close(&f);
    fixture_open(ctx, &f, 256, 2);
    const wf_call gather = {.operation = WF_CALL_ALLGATHER, .dtype = WF_F32, .count = 300};
    prove(&f, &gather);
    f.agreed.small_bytes = (size_t)1 << 20;
    const wf_call sum = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 3};
    prove(&f, &sum);
    fixture_close(&f);
    fixture_open(ctx, &f, 500, 1);
    const wf_call reducer = {.operation = WF_CALL_SUM, .reducer = "hierarchical", .dtype = WF_F32, .count = 50};
    prove(&f, &reducer);
    fixture_close(&f);
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

/* The table of comm/comm.h. */
static void formulas_of(int ranks)
{
    const uint64_t p = (uint64_t)ranks, elements = 65536 * p, n = 4 * elements, small = 4 * 100;
    int64_t part[65];
    fixture f;
    fixture_open(ctx, &f, ranks, 0);
    fixture_real_limits(&f);
    wf_call call = {.dtype = WF_F32, .count = (int64_t)elements, .root = ranks / 2, .other = ranks - 1, .part = part};
    call.operation = WF_CALL_ALLREDUCE;
    expect_sent(&f, &call, 2 * n * (p - 1), 2 * n * (p - 1) / p);
    call.operation = WF_CALL_REDUCE;
    expect_sent(&f, &call, n * (p - 1) / p + (p - 1) * n, n * (p - 1) / p);
    call.operation = WF_CALL_ALLGATHER;
    expect_sent(&f, &call, n * (p - 1) * p, n * (p - 1));
    call.operation = WF_CALL_ALLTOALL;
    expect_sent(&f, &call, n * (p - 1) * p, n * (p - 1));
    call.operation = WF_CALL_BCAST;
    expect_sent(&f, &call, n * (p - 1), p == 1 ? 0 : n);
    call.count = 100;
    expect_sent(&f, &call, small * (p - 1), sent_by_tree(ranks) * small);
    call.operation = WF_CALL_ALLREDUCE;
    expect_sent(&f, &call, small * (p - 1) * p, small * (p - 1));
    call.operation = WF_CALL_REDUCE;
    expect_sent(&f, &call, small * (p - 1), 0);
    call.operation = WF_CALL_GATHER;
    fixture_parts(&call, ranks, part);
    expect_sent(&f, &call, 4 * fixture_others(part, ranks, call.root), 0);
    call.operation = WF_CALL_SCATTER;
    expect_sent(&f, &call, 4 * fixture_others(part, ranks, call.root), 4 * fixture_others(part, ranks, call.root));
    call.operation = WF_CALL_BARRIER;
    expect_sent(&f, &call, p * sent_by_tree(ranks), sent_by_tree(ranks));
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

/* Of what can be reckoned by hand: rounds of alpha, and bytes of beta. */
static void prices(void)
{
    const wf_price_model alpha = {.alpha_s = {1, 100}}, beta = {.beta_s = {1, 10}}, gamma = {.gamma_s = 1};
    fixture f;
    fixture_open(ctx, &f, 8, 0);
    const wf_call barrier = {.operation = WF_CALL_BARRIER};
    WF_EXPECT(price_of(&f, &barrier, &alpha) == 3, "a barrier of 8: %g alpha", price_of(&f, &barrier, &alpha));
    const wf_call send = {.operation = WF_CALL_SEND, .dtype = WF_U8, .count = 1000, .other = 1};
    WF_EXPECT(price_of(&f, &send, &beta) == 1056, "a send: %g beta", price_of(&f, &send, &beta));
    const wf_call sum = {.operation = WF_CALL_REDUCE, .dtype = WF_F32, .count = 2};
    WF_EXPECT(price_of(&f, &sum, &gamma) == 8 * 8, "8 inputs of 8 bytes: %g gamma", price_of(&f, &sum, &gamma));
    fixture_close(&f);
    fixture_open(ctx, &f, 8, 1);
    WF_EXPECT(price_of(&f, &barrier, &alpha) >= 100, "between nodes: %g", price_of(&f, &barrier, &alpha));
    for (int from = 0; from < 2; from++) { /* node 0 is rank 0, node 1 ranks 1 and 2 */
        const wf_call next = {
            .operation = WF_CALL_SEND, .dtype = WF_U8, .count = 1000, .root = from, .other = from + 1};
        const wf_price price = whole_price(&f, &next, &alpha);
        WF_EXPECT(price.bytes == 1000 && price.between_bytes == (from == 0 ? 1000 : 0), "%d of %d bytes between nodes",
                  (int)price.between_bytes, (int)price.bytes);
    }
    fixture_close(&f);
}

/* --- failures
 * --------------------------------------------------------------------------------------------------------- */

/* One rank fails at every one of its steps: the others end. */
static void a_rank_fails(void)
{
    static const char *const reducers[] = {"flat", "hierarchical", "two_dimensional"};
    char text[200];
    fixture f;
    fixture_open(ctx, &f, 5, 1);
    for (int i = 0; i < 3; i++) {
        const wf_call call = {.operation = WF_CALL_SUM, .reducer = reducers[i], .dtype = WF_F32, .count = 333};
        wf_schedule **all = fixture_schedules(ctx, &f, &call);
        for (int rank = 0; rank < 5; rank++)
            for (int32_t step = 0; step < all[rank]->steps; step += 1 + all[rank]->steps / 16) {
                const wf_status status = fixture_simulate(ctx, &f, &call, (const wf_schedule *const *)all,
                                                          (uint64_t)step + 1, true, rank, step);
                WF_EXPECT(status == WF_OK, "%s, rank %d fails at step %d: %s", fixture_text(&f, &call, text), rank,
                          (int)step, wf_error_message());
            }
        fixture_free(all, 5);
    }
    fixture_close(&f);
}

/* A rank that never comes is no circle of waits, but nobody can go on: that is said, with the rank and its step. */
static void nobody_comes(void)
{
    fixture f;
    fixture_open(ctx, &f, 3, 0);
    const wf_call call = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 333};
    wf_schedule **all = fixture_schedules(ctx, &f, &call);
    all[1]->steps = 0;
    const wf_status status = fixture_simulate(ctx, &f, &call, (const wf_schedule *const *)all, 1, true, -1, 0);
    WF_EXPECT(status == WF_ERR_TIMEOUT && strstr(wf_error_message(), "rank 0 waits for: receive"), "%s",
              wf_error_message());
    wf_error_clear();
    fixture_free(all, 3);
    fixture_close(&f);
}

/* --- what is found --------------------------------------------------------------------------------------------------
 */

/* The step number `which` of a kind. */
static wf_step *step_of(const wf_schedule *s, wf_step_kind kind, int which)
{
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == kind && which-- == 0)
            return &s->step[i];
    WF_EXPECT(false, "no such step");
    return s->step;
}

/* It does nothing any more, but keeps its place. */
static void drop(wf_step *step)
{
    step->kind = WF_STEP_STAGE;
    step->from = step->to = step->also = WF_NOWHERE;
}

/* The last one to its rank, so that the others still meet. */
static void drop_send(wf_schedule *const *all)
{
    wf_step *last = NULL;
    for (int32_t i = 0; i < all[2]->steps; i++)
        last = all[2]->step[i].kind == WF_STEP_SEND && all[2]->step[i].peer == 3 ? &all[2]->step[i] : last;
    drop(last);
}

static void skip_last_receive(wf_schedule *const *all)
{
    wf_step *last = NULL;
    for (int32_t i = 0; i < all[1]->steps; i++)
        last = all[1]->step[i].kind == WF_STEP_RECV ? &all[1]->step[i] : last;
    drop(last);
}

static void swap_order(wf_schedule *const *all)
{
    wf_step *a = step_of(all[1], WF_STEP_SEND, 0), *b = NULL;
    for (int32_t i = 0; i < all[1]->steps; i++)
        if (all[1]->step[i].kind == WF_STEP_SEND && all[1]->step[i].peer == a->peer &&
            all[1]->step[i].bytes != a->bytes)
            b = &all[1]->step[i];
    WF_EXPECT(b, "messages of one length only");
    const wf_step kept = *a;
    a->from = b->from;
    a->bytes = b->bytes;
    b->from = kept.from;
    b->bytes = kept.bytes;
}

static void wrong_bytes(wf_schedule *const *all)
{
    step_of(all[0], WF_STEP_SEND, 1)->bytes -= 4;
}

static void more_bytes(wf_schedule *const *all)
{
    step_of(all[0], WF_STEP_SEND, 1)->bytes += 4;
}

static void wrong_peer(wf_schedule *const *all)
{
    wf_step *step = step_of(all[0], WF_STEP_RECV, 0);
    step->peer = step->peer == 1 ? 2 : 1;
}

/* Everybody's first send waits for its first result, which waits for everybody's first sends. */
static void circle(wf_schedule *const *all)
{
    for (int r = 0; r < 4; r++) {
        wf_step *combine = step_of(all[r], WF_STEP_COMBINE, 0);
        for (int i = 0; i < 3; i++) {
            wf_step *send = step_of(all[r], WF_STEP_SEND, i);
            send->wait = all[r]->step[all[r]->steps - 1].wait; /* a list of one entry, of the last collecting send */
            send->waits = 1;
            all[r]->wait[send->wait] = (int32_t)(combine - all[r]->step);
        }
    }
}

/* The second result is written where the first one is sent from. */
static void overlap(wf_schedule *const *all)
{
    step_of(all[3], WF_STEP_COMBINE, 1)->to = step_of(all[3], WF_STEP_COMBINE, 0)->to;
}

static void no_wait(wf_schedule *const *all)
{
    wf_step *combine = step_of(all[2], WF_STEP_COMBINE, 0);
    combine->wait++;
    combine->waits--;
}

/* The result of others arrives in the place of what has not been sent yet. */
static void collect_early(wf_schedule *const *all)
{
    wf_schedule *s = all[1];
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == WF_STEP_RECV && s->operand[s->step[i].to.operand].kind == WF_OPERAND_OUTPUT)
            s->step[i].waits = 0;
}

static void beyond_the_end(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[0]->operands; i++)
        all[0]->operand[i].bytes -= all[0]->operand[i].kind == WF_OPERAND_OUTPUT;
}

static void never_written(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[0]->operands; i++)
        all[0]->operand[i].bytes += all[0]->operand[i].kind == WF_OPERAND_OUTPUT ? 4 : 0;
}

static void reads_what_is_not_there(wf_schedule *const *all)
{
    wf_step *combine = step_of(all[0], WF_STEP_COMBINE, 0);
    const wf_address more = {.operand = all[0]->operands - 1, .at = all[0]->operand[all[0]->operands - 1].bytes};
    all[0]->operand[more.operand].bytes += combine->bytes;
    all[0]->input[combine->list + 2] = more;
}

static void no_flag(wf_schedule *const *all)
{
    wf_schedule *s = all[1];
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == WF_STEP_NOTIFY)
            s->step[i].value -= 1;
}

/* Reads the others' copies before they say that they are there. */
static void no_await(wf_schedule *const *all)
{
    wf_step *combine = step_of(all[0], WF_STEP_COMBINE, 0);
    combine->waits = 0;
}

/* Writes into a slot that others still read. */
static void no_room(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[0]->steps; i++)
        if (all[0]->step[i].kind == WF_STEP_COPY &&
            all[0]->operand[all[0]->step[i].to.operand].kind == WF_OPERAND_SHARED)
            all[0]->step[i].waits = 0;
}

/* Says that a copy is there in the list before it is made: right for who waits as told, but not one by one. */
static void notify_in_front(wf_schedule *const *all)
{
    wf_schedule *s = all[0];
    wf_step *notify = step_of(s, WF_STEP_NOTIFY, 0), *last = &s->step[s->steps - 1], kept = *notify;
    const int32_t at = (int32_t)(notify - s->step);
    *notify = notify[-1];
    notify[-1] = kept;
    for (int32_t w = 0; w < last->wait + last->waits; w++)
        s->wait[w] = s->wait[w] == at || s->wait[w] == at - 1 ? 2 * at - 1 - s->wait[w] : s->wait[w];
}

typedef struct mistake {
    const char *name;
    void (*make)(wf_schedule *const *all);
    const char *text; /* in the verifier's words */
    bool ring, races; /* races: the simulation finds it too */
} mistake;

static const mistake mistakes[] = {
    {"a dropped send", drop_send, "a receive without a send", false, false},
    {"a rank that skips its last step", skip_last_receive, "a send without a receive", false, false},
    {"swapped order", swap_order, "a send meets a receive of other bytes", false, false},
    {"wrong bytes", wrong_bytes, "a send meets a receive of other bytes", false, false},
    {"more bytes", more_bytes, "a send meets a receive of other bytes", false, false},
    {"another peer", wrong_peer, "a send ", false, false},
    {"a circle", circle, "in a circle", false, false},
    {"an overlap", overlap, "may run together", false, true},
    {"a sum that does not wait", no_wait, "may run together", false, true},
    {"a result that comes too early", collect_early, "may run together", false, true},
    {"beyond the end", beyond_the_end, "beyond the end", false, false},
    {"an output that is not written", never_written, "is never written", false, false},
    {"scratch that is not written", reads_what_is_not_there, "read before it is written", false, true},
    {"a flag that is not raised", no_flag, "never raised", true, false},
    {"a flag that is raised too early in line", notify_in_front, "in a circle", true, false},
    {"a flag that is not awaited", no_await, "may run together", true, true},
    {"a slot that is not free", no_room, "may run together", true, true},
};

static void found(const mistake *m)
{
    fixture f;
    fixture_open(ctx, &f, 4, 0);
    f.agreed.pieces_ahead = 2;
    wf_call call = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 333};
    if (m->ring)
        call = (wf_call){.operation = WF_CALL_SUM, .reducer = "single_node", .dtype = WF_F32, .count = 4000};
    wf_schedule **all = fixture_schedules(ctx, &f, &call);
    m->make(all);
    for (int r = 0; r < 4; r++)
        WF_EXPECT_OK(wf_schedule_link(ctx, all[r]));
    const wf_status status = wf_schedule_verify(ctx, (const wf_schedule *const *)all, 4);
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), m->text), "%s: %s", m->name,
              status == WF_OK ? "not found" : wf_error_message());
    wf_error_clear();
    int caught = 0;
    for (uint64_t seed = 1; seed <= 40 && m->races; seed++)
        caught += !fixture_right(ctx, &f, &call, (const wf_schedule *const *)all, seed);
    WF_EXPECT(!m->races || caught > 0, "%s: the simulation finds nothing wrong", m->name);
    wf_error_clear();
    fixture_free(all, 4);
    fixture_close(&f);
}

static void planted_mistakes(void)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        found(&mistakes[i]);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"all_calls", all_calls},
                                               {"meshes", meshes},
                                               {"real_limits", real_limits},
                                               {"thousands", thousands},
                                               {"own_steps", own_steps},
                                               {"formulas", formulas},
                                               {"reducers_between_nodes", reducers_between_nodes},
                                               {"prices", prices},
                                               {"a_rank_fails", a_rank_fails},
                                               {"nobody_comes", nobody_comes},
                                               {"planted_mistakes", planted_mistakes},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
