/* Exchanges of all ranks as schedules, as comm/mesh/exchange.c has them made: between random blocks of an array, and
 * halos and new layouts of meshes of up to 4,096 ranks; forward and in reverse, of strided arrays, with and without
 * what a rank has itself; by messages, in parts through rings of two ranks, staged for a device, as one group of
 * NCCL's. They are proved, and run in this process under seeded delays, with a rank that fails at each of its steps;
 * planted mistakes are found. */
#include "comm/plan_author.h"
#include "tests/boxes.h"
#include "tests/comm/schedules.h"

enum { SIDE = 12, FORMS = 4 };

typedef struct trade {
    int ranks;
    wf_shape global;
    wf_box *have, *need;
    bool reversed, own, parts, staged, native;
    int64_t (*stride)[2][WF_MAX_RANK]; /* of what each rank reads, and writes */
    wf_agreed agreed;
    wf_plan **plan;
    wf_schedule **all;
    wf_status *ended;
    int wrong;
} trade;

static wf_ctx *ctx;
static int sample; /* the number of the trade that is made */

static float element_of(const trade *t, int rank, const int64_t at[])
{
    int64_t index = 0;
    for (int d = 0; d < t->global.rank; d++)
        index = index * t->global.dim[d] + at[d];
    return (float)(rank * 1000 + index % 1000);
}

static wf_box box_of(const trade *t, int rank, bool reads)
{
    return reads != t->reversed ? t->have[rank] : t->need[rank];
}

/* Calls with the place in memory of each element of the box. */
static int each_element(const trade *t, int rank, bool reads, void *data,
                        bool (*call)(const trade *t, int rank, bool reads, const int64_t at[], float *element))
{
    const wf_box box = box_of(t, rank, reads);
    const int64_t *stride = t->stride[rank][!reads], count = wf_shape_count(wf_box_shape(box));
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[WF_MAX_RANK], rest = i, offset = 0;
        for (int d = box.rank - 1; d >= 0; d--) {
            const int64_t length = box.hi[d] - box.lo[d];
            at[d] = box.lo[d] + rest % length;
            offset += rest % length * stride[d];
            rest /= length;
        }
        wrong += !call(t, rank, reads, at, (float *)data + offset);
    }
    return wrong;
}

/* What is added to is other numbers than what comes. */
static bool fill_element(const trade *t, int rank, bool reads, const int64_t at[], float *element)
{
    *element = element_of(t, !reads ? 100 + rank : t->reversed ? rank : 0, at);
    return true;
}

static bool check_element(const trade *t, int rank, bool reads, const int64_t at[], float *element)
{
    (void)reads;
    if (!t->reversed)
        return *element == element_of(t, t->own || !box_has(t->have[rank], at) ? 0 : 100 + rank, at);
    float sum = element_of(t, 100 + rank, at);
    if (t->own && box_has(t->need[rank], at))
        sum += element_of(t, rank, at);
    for (int q = 0; q < t->ranks; q++)
        if (q != rank && box_has(t->need[q], at))
            sum += element_of(t, q, at);
    return *element == sum;
}

static void fill(void *own, int rank, const wf_operand *operand, void *data)
{
    each_element(own, rank, operand->kind == WF_OPERAND_INPUT, data, fill_element);
}

static void check(void *own, int rank, const wf_operand *operand, const void *data)
{
    trade *t = own;
    t->wrong += each_element(t, rank, false, (void *)data, check_element);
}

/* --- trades ---------------------------------------------------------------------------------------------------------
 */

static void make_room(trade *t, int ranks)
{
    const size_t n = (size_t)ranks;
    t->ranks = ranks;
    t->have = calloc(n, sizeof *t->have);
    t->need = calloc(n, sizeof *t->need);
    t->stride = calloc(n, sizeof *t->stride);
    t->plan = calloc(n, sizeof(*t->plan));
    t->all = calloc(n, sizeof(*t->all));
    t->ended = calloc(n, sizeof *t->ended);
}

/* Blocks of rows by columns that cover the array; needs of any kind, also none. */
static void random_boxes(trade *t, test_rng *rng)
{
    const int rows = (int)test_int(rng, 1, 3), columns = (int)test_int(rng, 1, 3);
    int64_t cut[2][4] = {{0}};
    make_room(t, rows * columns);
    t->global = WF_SHAPE(SIDE, SIDE);
    for (int d = 0; d < 2; d++)
        for (int i = 1, n = d ? columns : rows; i <= n; i++)
            cut[d][i] = i == n ? SIDE : test_int(rng, cut[d][i - 1], SIDE);
    for (int r = 0; r < t->ranks; r++) {
        wf_box *have = &t->have[r], *need = &t->need[r];
        have->rank = need->rank = 2;
        for (int d = 0; d < 2; d++) {
            const int at = d ? r % columns : r / columns;
            const int64_t a = test_int(rng, 0, SIDE), b = test_int(rng, 0, SIDE);
            have->lo[d] = cut[d][at];
            have->hi[d] = cut[d][at + 1];
            need->lo[d] = a < b ? a : b;
            need->hi[d] = a < b ? b : a;
        }
    }
}

/* Equal rows, of which every rank needs all, or equal columns. */
static void uniform_boxes(trade *t, test_rng *rng)
{
    static const int counts[] = {3, 4, 6};
    const bool gathers = test_int(rng, 0, 1);
    make_room(t, counts[test_int(rng, 0, 2)]);
    t->global = WF_SHAPE(SIDE, SIDE);
    for (int r = 0; r < t->ranks; r++) {
        t->have[r] = t->need[r] = (wf_box){.rank = 2, .hi = {SIDE, SIDE}};
        t->have[r].lo[0] = r * SIDE / t->ranks;
        t->have[r].hi[0] = (r + 1) * SIDE / t->ranks;
        if (gathers)
            continue;
        t->need[r].lo[1] = r * SIDE / t->ranks;
        t->need[r].hi[1] = (r + 1) * SIDE / t->ranks;
    }
}

/* Widens the part of one place by halos, cut at the ends of the whole. */
static void widen(wf_box *box, int d, int64_t halo, int64_t length)
{
    box->lo[d] = box->lo[d] > halo ? box->lo[d] - halo : 0;
    box->hi[d] = box->hi[d] + halo < length ? box->hi[d] + halo : length;
}

/* The ranks of a mesh that differ along the axes that cut an activation [N,C,H,W]: dimension d in part[d] balanced
 * blocks, some of them empty, the last dimension changing fastest with the rank, as comm/mesh.h says. They need halos
 * in height and width, wider than a block at times; or the layout in which other axes cut dimensions 1 and 3. */
static void boxes_of_mesh(trade *t, test_rng *rng, const int part[4])
{
    const bool moves = test_int(rng, 0, 2) == 0;
    const int64_t halo[4] = {0, 0, test_int(rng, 0, 4), test_int(rng, 1, 3)};
    make_room(t, part[0] * part[1] * part[2] * part[3]);
    for (int r = 0; r < t->ranks; r++) {
        t->have[r] = t->need[r] = wf_box_of_shape(t->global);
        for (int d = 3, rest = r; d >= 0; rest /= part[d], d--) {
            const int to = moves && d % 2 ? 4 - d : d;
            const int64_t place = rest % part[d];
            wf_block(t->global.dim[d], part[d], place, &t->have[r].lo[d], &t->have[r].hi[d]);
            wf_block(t->global.dim[to], part[d], place, &t->need[r].lo[to], &t->need[r].hi[to]);
        }
        for (int d = 0; d < 4 && !moves; d++)
            if (t->have[r].lo[d] < t->have[r].hi[d])
                widen(&t->need[r], d, halo[d], t->global.dim[d]);
    }
}

/* Every number of ranks up to 64 in turn, its factors along any dimensions. */
static void mesh_boxes(trade *t, test_rng *rng)
{
    int part[4] = {1, 1, 1, 1}, left = 1 + sample % 64;
    for (int factor = 2; left > 1; factor++)
        for (; left % factor == 0; left /= factor)
            part[test_int(rng, 0, 3)] *= factor;
    t->global.rank = 4;
    for (int d = 0; d < 4; d++)
        t->global.dim[d] = test_int(rng, 1, part[d] > 4 ? 2 * part[d] : d < 2 ? 5 : 9);
    boxes_of_mesh(t, rng, part);
}

/* Up to 4,096 ranks, and more than half as many, where all samples are taken; of one to two elements along a dimension.
 */
static void many_boxes(trade *t, test_rng *rng)
{
    const int most = test_samples(4096);
    int part[4], ranks;
    t->global.rank = 4;
    do {
        ranks = 1;
        for (int d = 0; d < 4; d++) {
            part[d] = (int)test_int(rng, 1, d < 2 ? 8 : 32);
            ranks *= part[d];
            t->global.dim[d] = test_int(rng, part[d], 2 * part[d]);
        }
    } while (ranks > most || 2 * ranks <= most);
    boxes_of_mesh(t, rng, part);
}

/* One node; nodes of 1, 2, 3, ... ranks; two nodes that take turns; nodes of 2 to 8 ranks. Limits are small. */
static void agree(trade *t, int form)
{
    int32_t *node = calloc((size_t)t->ranks, sizeof *node);
    for (int r = 0, n = 0, left = form == 3 ? 2 : 1; r < t->ranks && form > 0; r++) {
        node[r] = form == 2 ? r % 3 == 1 : n;
        if (--left == 0) {
            n++;
            left = form == 3 ? 2 + 3 * n % 7 : n + 1;
        }
    }
    WF_EXPECT_OK(wf_agreed_make(ctx, t->ranks, node, &t->agreed));
    free(node);
    t->agreed.chunk_bytes = 200;
    t->agreed.prompt_bytes = 96;
    t->agreed.pairs = t->parts;
    t->agreed.staged = t->staged;
    t->agreed.native = t->native; /* messages of its group go by the link of the simulation */
    t->agreed.pair_slot_bytes = 20;
    t->agreed.pair_short_bytes = 100;
}

/* Returns true if a box is contiguous in a dense array of `world`. */
static bool dense_in(wf_box box, wf_box world)
{
    bool outside = false;
    for (int d = box.rank - 1; d >= 0; d--) {
        if (outside && box.hi[d] - box.lo[d] > 1)
            return false;
        outside = outside || box.hi[d] - box.lo[d] < world.hi[d] - world.lo[d];
    }
    return true;
}

/* As exchange_make.c has it: in the boxes of both ranks. */
static void find_dense(const trade *t, const wf_plan *plan, bool *dense)
{
    for (int64_t i = 0; i < plan->n_send + plan->n_recv; i++) {
        const bool sends = i < plan->n_send;
        const wf_piece *p = sends ? &plan->send[i] : &plan->recv[i - plan->n_send];
        dense[i] = dense_in(p->box, t->have[sends ? plan->rank : p->peer]) &&
                   dense_in(p->box, t->need[sends ? p->peer : plan->rank]);
    }
}

/* Dense arrays, arrays with room behind their rows, and every second element. */
static void choose_strides(trade *t, test_rng *rng, int r)
{
    for (int k = 0; k < 2; k++) {
        const wf_box box = box_of(t, r, k == 0);
        int64_t *stride = t->stride[r][k];
        stride[box.rank - 1] = 1 + (test_int(rng, 0, 3) == 0);
        for (int d = box.rank - 2; d >= 0; d--)
            stride[d] =
                (box.hi[d + 1] - box.lo[d + 1] + (test_int(rng, 0, 2) ? 0 : test_int(rng, 1, 3))) * stride[d + 1];
    }
}

static void build(trade *t, test_rng *rng, int r)
{
    const wf_group g = wf_group_all(&t->agreed, r);
    WF_EXPECT_OK(wf_plan_make(ctx, r, t->ranks, NULL, t->have, t->need, NULL, &t->plan[r]));
    bool *dense = calloc((size_t)(t->plan[r]->n_send + t->plan[r]->n_recv) + 1, sizeof *dense);
    find_dense(t, t->plan[r], dense);
    choose_strides(t, rng, r);
    const wf_exchange_shape shape = {.plan = t->plan[r],
                                     .have = t->have[r],
                                     .need = t->need[r],
                                     .dtype = WF_F32,
                                     .order = WF_ROW_MAJOR,
                                     .reversed = t->reversed,
                                     .own = t->own,
                                     .from_stride = t->stride[r][0],
                                     .to_stride = t->stride[r][1],
                                     .dense_send = dense,
                                     .dense_recv = dense + t->plan[r]->n_send};
    wf_builder *b = wf_builder_new(ctx, &t->agreed, r);
    wf_build_exchange(b, &g, &shape);
    WF_EXPECT_OK(wf_builder_end(b, &t->all[r]));
    free(dense);
    const int64_t bytes = t->native ? 0 : 4 * (t->reversed ? t->plan[r]->elements_received : t->plan[r]->elements_sent);
    WF_EXPECT((int64_t)t->all[r]->bytes_sent == bytes, "rank %d sends %d bytes, not %d", r, (int)t->all[r]->bytes_sent,
              (int)bytes);
}

static void trade_open(trade *t, test_rng *rng, void (*boxes)(trade *t, test_rng *rng))
{
    *t = (trade){.reversed = test_int(rng, 0, 1), .own = test_int(rng, 0, 2) > 0, .parts = test_int(rng, 0, 3) > 0};
    t->staged = test_int(rng, 0, 4) == 0;
    t->native = test_int(rng, 0, 4) == 0;
    boxes(t, rng);
    agree(t, (int)test_int(rng, 0, FORMS - 1));
    for (int r = 0; r < t->ranks; r++)
        build(t, rng, r);
}

static void trade_close(trade *t)
{
    for (int r = 0; r < t->ranks; r++) {
        wf_schedule_free(t->all[r]);
        wf_plan_free(t->plan[r]);
    }
    wf_agreed_clear(&t->agreed);
    free(t->have);
    free(t->need);
    free(t->stride);
    free(t->plan);
    free(t->all);
    free(t->ended);
}

/* failing_rank -1: none fails. */
static wf_status simulate_trade(trade *t, uint64_t seed, int failing_rank, int32_t failing_step)
{
    const wf_simulation s = {.seed = seed,
                             .silently = seed % 2 == 0,
                             .most_delay = 7,
                             .failing_rank = failing_rank,
                             .failing_step = failing_step,
                             .fill = fill,
                             .check = check,
                             .own = t,
                             .ended = t->ended};
    t->wrong = 0;
    return wf_schedule_simulate(ctx, (const wf_schedule *const *)t->all, t->ranks, &s);
}

static int64_t steps_of(const trade *t, wf_step_kind kind)
{
    int64_t n = 0;
    for (int r = 0; r < t->ranks; r++)
        for (int32_t i = 0; i < t->all[r]->steps; i++)
            n += t->all[r]->step[i].kind == kind;
    return n;
}

/* All ranks come to the right result; where a rank fails, told or killed, to that or to an error. */
static void run_trade(trade *t, uint64_t seed, int failing, int32_t step)
{
    const wf_schedule *const *all = (const wf_schedule *const *)t->all;
    const char *kind = t->reversed ? "a reversed" : "an";
    WF_EXPECT_OK(simulate_trade(t, seed, failing, step));
    WF_EXPECT(t->wrong == 0, "%d elements of %s exchange between %d ranks are wrong; rank %d fails at step %d",
              t->wrong, kind, t->ranks, failing, (int)step);
    const int wrong = failing < 0 || step > 0 ? 0 : wrong_ends(ctx, all, t->ranks, failing, t->ended);
    WF_EXPECT(wrong == 0, "%s exchange, rank %d of %d never begins: %d ranks end well", kind, failing, t->ranks, wrong);
}

/* What is staged needs a device to run; its proof does not. */
static void prove_trade(trade *t, test_rng *rng)
{
    const int failing = (int)test_int(rng, 0, t->ranks - 1);
    const int32_t step = (int32_t)test_int(rng, 0, t->all[failing]->steps);
    const uint64_t seed = test_u64(rng);
    WF_EXPECT_OK(wf_schedule_verify(ctx, (const wf_schedule *const *)t->all, t->ranks));
    if (t->staged)
        return;
    run_trade(t, seed | 1, -1, 0);
    run_trade(t, (seed >> 1) + 1, failing, step);
}

static void prove_all(int samples, uint64_t seed, void (*boxes)(trade *t, test_rng *rng))
{
    test_rng rng = {seed};
    int64_t parts = 0, messages = 0, fences = 0, groups = 0;
    for (sample = 0; sample < samples; sample++) {
        trade t;
        trade_open(&t, &rng, boxes);
        prove_trade(&t, &rng);
        parts += steps_of(&t, WF_STEP_AWAIT);
        messages += steps_of(&t, WF_STEP_SEND);
        fences += steps_of(&t, WF_STEP_FENCE);
        groups += steps_of(&t, WF_STEP_NATIVE);
        trade_close(&t);
    }
    WF_EXPECT(samples < 10 || (parts > 0 && messages > 0 && fences > 0 && groups > 0),
              "%d parts, %d messages, %d fences, %d groups", (int)parts, (int)messages, (int)fences, (int)groups);
}

static void exchanges(void)
{
    prove_all(test_samples(1000), 20, random_boxes);
}

static void meshes(void)
{
    prove_all(test_samples(2000), 23, mesh_boxes);
}

/* Blocks of equal size between any two ranks. */
static void uniform(void)
{
    prove_all(test_samples(300), 21, uniform_boxes);
}

static void thousands(void)
{
    prove_all(test_samples(20), 24, many_boxes);
}

/* A rank fails after each of its steps, for every rank: every step, or some that are drawn. */
static void fail_in(trade *t, test_rng *rng)
{
    for (int rank = 0; rank < t->ranks && !t->staged; rank++)
        for (int32_t step = 0; step <= t->all[rank]->steps; step++) {
            const uint64_t drawn = test_u64(rng);
            if (drawn % 1000 < (uint64_t)test_samples(1000))
                run_trade(t, (drawn >> 12) + 1, rank, step);
        }
}

static void a_rank_fails(void)
{
    static void (*const boxes[])(trade * t, test_rng * rng) = {random_boxes, uniform_boxes, mesh_boxes};
    test_rng rng = {25};
    for (sample = 0; sample < 60; sample++) {
        trade t;
        trade_open(&t, &rng, boxes[sample % 3]);
        if (t.ranks <= 12)
            fail_in(&t, &rng);
        trade_close(&t);
    }
}

/* --- what is found --------------------------------------------------------------------------------------------------
 */

/* Steps of this kind, of the last rank, wait for nothing. */
static void hurry(const trade *t, wf_step_kind kind)
{
    wf_schedule *s = t->all[t->ranks - 1];
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == kind)
            s->step[i].waits = 0;
    WF_EXPECT_OK(wf_schedule_link(ctx, s));
}

/* Every rank has rows and needs columns: every two ranks exchange several parts. */
static void transposed(trade *t, test_rng *rng)
{
    make_room(t, 3);
    t->global = WF_SHAPE(SIDE, SIDE);
    t->staged = t->native = false;
    t->parts = true;
    t->own = t->reversed = false;
    for (int r = 0; r < t->ranks; r++) {
        t->have[r] = t->need[r] = (wf_box){.rank = 2, .hi = {SIDE, SIDE}};
        t->have[r].lo[0] = t->need[r].lo[1] = r * SIDE / 3;
        t->have[r].hi[0] = t->need[r].hi[1] = (r + 1) * SIDE / 3;
    }
}

/* A part that is packed before its slot is free, unpacked before it has come, or given back while it is read. */
static void planted_mistakes(void)
{
    static const wf_step_kind kinds[] = {WF_STEP_PACK, WF_STEP_UNPACK, WF_STEP_NOTIFY};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        test_rng rng = {22};
        trade t;
        int caught = 0;
        do { /* one node, where all goes in parts */
            trade_open(&t, &rng, transposed);
            if (t.agreed.nodes == 1)
                break;
            trade_close(&t);
        } while (true);
        hurry(&t, kinds[k]);
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_schedule_verify(ctx, (const wf_schedule *const *)t.all, t.ranks));
        for (uint64_t seed = 1; seed <= 40; seed++)
            caught += simulate_trade(&t, seed, -1, 0) != WF_OK || t.wrong > 0;
        WF_EXPECT(caught > 0, "mistake %d: the simulation finds nothing wrong", (int)k);
        wf_error_clear();
        trade_close(&t);
    }
}

/* A trade of this form, whatever the nodes: all in one of them, or not. */
static void open_form(trade *t, bool one_node, bool staged, bool parts, void (*boxes)(trade *t, test_rng *rng))
{
    for (test_rng rng = {29};;) {
        trade_open(t, &rng, boxes);
        if (t->ranks > 2 && (t->agreed.nodes == 1) == one_node && t->staged == staged && t->parts == parts &&
            !t->native)
            return;
        trade_close(t);
    }
}

static void expect_found(const trade *t, const char *text)
{
    const wf_status status = wf_schedule_verify(ctx, (const wf_schedule *const *)t->all, t->ranks);
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), text), "not found: %s", text);
    wf_error_clear();
}

static void drop_fences(wf_schedule *s)
{
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == WF_STEP_FENCE) {
            s->step[i].kind = WF_STEP_STAGE; /* of nothing */
            s->step[i].list = -1;
        }
}

/* Everything leaves a device, or is told of, before the device has done it. */
static void no_fences(void)
{
    for (int one_node = 0; one_node < 2; one_node++) {
        trade t;
        open_form(&t, one_node, true, one_node, random_boxes);
        for (int r = 0; r < t.ranks; r++)
            drop_fences(t.all[r]);
        expect_found(&t, "may run together");
        trade_close(&t);
    }
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"exchanges", exchanges},
                                               {"meshes", meshes},
                                               {"uniform", uniform},
                                               {"thousands", thousands},
                                               {"a_rank_fails", a_rank_fails},
                                               {"planted_mistakes", planted_mistakes},
                                               {"no_fences", no_fences},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
