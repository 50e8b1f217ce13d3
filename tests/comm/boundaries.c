/* Boundaries without ranks: pieces of a need hold every element that the formula says, each once; plans of them have
 * what their peers have, and send what the formula counts; schedules are proved, and run in this process, forward and
 * in reverse, by messages, in parts and as a group; a boundary that is none, or reaches too far, is an error. */
#include "comm/plan_author.h"
#include "tests/boxes.h"
#include "tests/comm/boundary_formula.h"
#include "tests/comm/schedules.h"

enum { MOST = 8, MOST_ELEMENTS = 1 << 13 };

static wf_ctx *ctx;

static wf_shape random_shape(test_rng *rng, int64_t most)
{
    wf_shape shape = {.rank = (int)test_int(rng, 1, 3)};
    for (int d = 0; d < shape.rank; d++)
        shape.dim[d] = test_int(rng, 1, most);
    return shape;
}

/* A box that goes as far beyond the edges as it may, or ends inside, or lies outside altogether. */
static wf_box random_need(test_rng *rng, wf_shape whole, const wf_boundary *b)
{
    wf_box need = {.rank = whole.rank};
    for (int d = 0; d < whole.rank; d++) {
        const int64_t length = whole.dim[d];
        const bool keeps = formula_keeps(b, d);
        const int64_t lowest = keeps ? 0 : -formula_most(b, d, false, length, 4);
        const int64_t highest = length + (keeps ? 0 : formula_most(b, d, true, length, 4));
        const int64_t one = test_int(rng, lowest, highest), other = test_int(rng, lowest, highest);
        need.lo[d] = one < other ? one : other;
        need.hi[d] = one < other ? other : one;
    }
    return need;
}

/* --- pieces ---------------------------------------------------------------------------------------------------------
 */

typedef struct look {
    wf_shape whole;
    const wf_boundary *b;
    wf_box need;
    unsigned char seen[MOST_ELEMENTS];
    int wrong;
} look;

/* The element of the source from which the piece takes the one at `at`. */
static void source_of(const wf_piece *p, const int64_t *at, int64_t *source)
{
    for (int d = 0; d < p->at.rank; d++) {
        const int64_t up = p->box.lo[d] + at[d] - p->at.lo[d], down = p->box.hi[d] - 1 - (at[d] - p->at.lo[d]);
        source[d] = p->step[d] > 0 ? up : p->step[d] < 0 ? down : p->box.lo[d];
    }
}

static wf_status look_at(void *own, const wf_piece *p, bool fills)
{
    look *l = own;
    int64_t at[WF_MAX_RANK], is[WF_MAX_RANK], should[WF_MAX_RANK];
    memcpy(at, p->at.lo, sizeof at);
    l->wrong += p->peer != 5 || wf_box_empty(p->at) || !wf_box_contains(l->need, p->at);
    do {
        const int sign = formula_source(l->whole, l->b, at, should);
        l->seen[box_index(l->need, at)]++;
        l->wrong += fills != (sign == 0);
        if (fills || sign == 0)
            continue;
        source_of(p, at, is);
        l->wrong += (sign < 0) != p->negate || !wf_box_contains(wf_box_of_shape(l->whole), p->box);
        for (int d = 0; d < l->whole.rank; d++)
            l->wrong += is[d] != should[d];
    } while (box_next(p->at, at));
    return WF_OK;
}

static void pieces(void)
{
    static look l;
    test_rng rng = {.state = 41};
    for (int i = 0; i < 1500; i++) {
        wf_shape whole = random_shape(&rng, 5);
        const wf_boundary b = formula_random(&rng, &whole, true);
        l = (look){.whole = whole, .b = &b, .need = random_need(&rng, whole, &b)};
        const int64_t count = wf_shape_count(wf_box_shape(l.need));
        int64_t once = 0;
        WF_EXPECT_OK(wf_boundary_pieces(whole, &b, l.need, 5, look_at, &l));
        for (int64_t k = 0; k < count; k++)
            once += l.seen[k] == 1;
        WF_EXPECT(once == count && l.wrong == 0, "boundary %d: of %d elements %d come once, %d are wrong", i,
                  (int)count, (int)once, l.wrong);
    }
}

/* --- schedules ------------------------------------------------------------------------------------------------------
 */

/* Blocks of an array along its dimensions, and needs of all ranks; data in rows without gaps, or every second element.
 */
typedef struct trade {
    int ranks;
    wf_shape whole;
    wf_boundary b;
    wf_box have[MOST], need[MOST];
    bool reversed, own, native, staged;
    int64_t gap;
    wf_agreed agreed;
    wf_plan *plan[MOST];
    wf_schedule *all[MOST];
    wf_status ended[MOST];
    int wrong;
} trade;

static float number_at(const trade *t, int rank, const int64_t *at)
{
    int64_t index = 7;
    for (int d = 0; d < t->whole.rank; d++)
        index = index * 31 + at[d];
    return (float)(rank * 100 + (index % 89 + 89) % 89);
}

static wf_box box_of(const trade *t, int rank, bool reads)
{
    return reads != t->reversed ? t->have[rank] : t->need[rank];
}

static void fill(void *own, int rank, const wf_operand *operand, void *data)
{
    const trade *t = own;
    const bool reads = operand->kind == WF_OPERAND_INPUT;
    const wf_box box = box_of(t, rank, reads);
    int64_t at[WF_MAX_RANK], i = 0;
    memcpy(at, box.lo, sizeof at);
    if (!wf_box_empty(box))
        do
            ((float *)data)[t->gap * i++] = number_at(t, reads ? (t->reversed ? rank : 0) : 40 + rank, at);
        while (box_next(box, at));
}

static bool same_place(const trade *t, const int64_t *at, const int64_t *source)
{
    return memcmp(at, source, sizeof *at * (size_t)t->whole.rank) == 0;
}

static float forward_at(const trade *t, int rank, const int64_t *at)
{
    int64_t source[WF_MAX_RANK];
    const int sign = formula_source(t->whole, &t->b, at, source);
    if (sign == 0)
        return (float)t->b.value;
    if (!t->own && same_place(t, at, source) && box_has(t->have[rank], at))
        return number_at(t, 40 + rank, at);
    return (float)sign * number_at(t, 0, source);
}

/* Adds the gradients that all ranks give back for the elements of this one, in whole numbers, whose order does not
 * matter. */
static void reverse_all(const trade *t, int rank, float *sum)
{
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK];
    for (int q = 0; q < t->ranks; q++) {
        memcpy(at, t->need[q].lo, sizeof at);
        if (wf_box_empty(t->need[q]))
            continue;
        do {
            const int sign = formula_source(t->whole, &t->b, at, source);
            const bool stays = q == rank && !t->own && sign != 0 && same_place(t, at, source);
            if (sign != 0 && !stays && box_has(t->have[rank], source))
                sum[box_index(t->have[rank], source)] += (float)sign * number_at(t, q, at);
        } while (box_next(t->need[q], at));
    }
}

static void check(void *own, int rank, const wf_operand *operand, const void *data)
{
    static float sum[MOST_ELEMENTS];
    trade *t = own;
    const wf_box box = box_of(t, rank, false);
    int64_t at[WF_MAX_RANK], i = 0;
    (void)operand;
    memcpy(at, box.lo, sizeof at);
    if (wf_box_empty(box))
        return;
    do
        sum[i++] = t->reversed ? number_at(t, 40 + rank, at) : forward_at(t, rank, at);
    while (box_next(box, at));
    if (t->reversed)
        reverse_all(t, rank, sum);
    for (int64_t k = 0; k < i; k++)
        t->wrong += ((const float *)data)[t->gap * k] != sum[k];
}

/* Elements that a rank sends: what each of the others lacks, once. */
static int64_t formula_sent(const trade *t, int rank)
{
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], sent = 0;
    for (int q = 0; q < t->ranks; q++) {
        memcpy(at, t->need[q].lo, sizeof at);
        if (q == rank || wf_box_empty(t->need[q]))
            continue;
        bool *seen = formula_none_seen(t->whole);
        do
            sent += formula_source(t->whole, &t->b, at, source) != 0 && box_has(t->have[rank], source) &&
                    formula_notes(t->whole, source, seen);
        while (box_next(t->need[q], at));
        free(seen);
    }
    return sent;
}

/* Parts of the first and the last dimension, some of them empty. */
static void cut(trade *t, test_rng *rng)
{
    const int last = t->whole.rank - 1, rows = (int)test_int(rng, 1, 3),
              columns = last > 0 ? (int)test_int(rng, 1, 2) : 1;
    int64_t row[4] = {0}, column[3] = {0};
    t->ranks = rows * columns;
    for (int i = 1; i <= rows; i++)
        row[i] = i == rows ? t->whole.dim[0] : test_int(rng, row[i - 1], t->whole.dim[0]);
    for (int i = 1; i <= columns && last > 0; i++)
        column[i] = i == columns ? t->whole.dim[last] : test_int(rng, column[i - 1], t->whole.dim[last]);
    for (int r = 0; r < t->ranks; r++) {
        wf_box *have = &t->have[r];
        *have = wf_box_of_shape(t->whole);
        have->lo[0] = row[r / columns];
        have->hi[0] = row[r / columns + 1];
        if (last > 0) {
            have->lo[last] = column[r % columns];
            have->hi[last] = column[r % columns + 1];
        }
        t->need[r] = random_need(rng, t->whole, &t->b);
    }
}

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

static void strides_of(const trade *t, int rank, bool reads, int64_t stride[WF_MAX_RANK])
{
    wf_order_strides(wf_box_shape(box_of(t, rank, reads)), WF_ROW_MAJOR, stride);
    for (int d = 0; d < t->whole.rank; d++)
        stride[d] *= t->gap;
}

static void build(trade *t, int r)
{
    const wf_beyond beyond = {.global = t->whole, .boundary = &t->b};
    const wf_group g = wf_group_all(&t->agreed, r);
    int64_t stride[2][WF_MAX_RANK];
    bool dense[2048] = {0};
    WF_EXPECT_OK(wf_plan_make(ctx, r, t->ranks, NULL, t->have, t->need, &beyond, &t->plan[r]));
    wf_plan *plan = t->plan[r];
    for (int64_t i = 0; i < plan->n_send + plan->n_recv && i < 2048; i++) {
        const bool sends = i < plan->n_send;
        const wf_piece *p = sends ? &plan->send[i] : &plan->recv[i - plan->n_send];
        dense[i] = wf_piece_plain(p) && dense_in(p->box, t->have[sends ? r : p->peer]) &&
                   dense_in(p->at, t->need[sends ? p->peer : r]);
    }
    strides_of(t, r, true, stride[0]);
    strides_of(t, r, false, stride[1]);
    const wf_exchange_shape shape = {.plan = plan,
                                     .have = t->have[r],
                                     .need = t->need[r],
                                     .dtype = WF_F32,
                                     .reversed = t->reversed,
                                     .own = t->own,
                                     .from_stride = stride[0],
                                     .to_stride = t->gap == 1 && !t->reversed && t->own ? NULL : stride[1],
                                     .dense_send = dense,
                                     .dense_recv = dense + plan->n_send};
    wf_builder *b = wf_builder_new(ctx, &t->agreed, r);
    wf_build_exchange(b, &g, &shape);
    WF_EXPECT_OK(wf_builder_end(b, &t->all[r]));
    WF_EXPECT(plan->elements_sent == formula_sent(t, r), "rank %d sends %d elements, the formula %d", r,
              (int)plan->elements_sent, (int)formula_sent(t, r));
    const int64_t bytes = t->native ? 0 : 4 * (t->reversed ? plan->elements_received : plan->elements_sent);
    WF_EXPECT((int64_t)t->all[r]->bytes_sent == bytes, "rank %d sends %d bytes, not %d", r, (int)t->all[r]->bytes_sent,
              (int)bytes);
}

/* The pieces that a sends to b are those that b receives from a. */
static void check_pair(const wf_plan *a, const wf_plan *b)
{
    int64_t i = 0, j = 0;
    for (;; i++, j++) {
        while (i < a->n_send && a->send[i].peer != b->rank)
            i++;
        while (j < b->n_recv && b->recv[j].peer != a->rank)
            j++;
        if (i == a->n_send || j == b->n_recv)
            break;
        const wf_piece *s = &a->send[i], *r = &b->recv[j];
        WF_EXPECT(wf_box_equal(s->box, r->box) && wf_box_equal(s->at, r->at) && s->negate == r->negate &&
                      !memcmp(s->step, r->step, sizeof s->step),
                  "piece %d of rank %d to %d differs", (int)i, a->rank, b->rank);
    }
    WF_EXPECT(i == a->n_send && j == b->n_recv, "rank %d sends more or less than %d receives", a->rank, b->rank);
}

static void trade_open(trade *t, test_rng *rng)
{
    int32_t node[MOST];
    *t = (trade){.reversed = test_int(rng, 0, 1), .own = test_int(rng, 0, 2) > 0, .gap = test_int(rng, 1, 2)};
    t->native = test_int(rng, 0, 5) == 0;
    t->staged = test_int(rng, 0, 5) == 0;
    t->whole = random_shape(rng, 5);
    t->b = formula_random(rng, &t->whole, true);
    cut(t, rng);
    const int nodes = (int)test_int(rng, 1, 2);
    for (int r = 0; r < t->ranks; r++)
        node[r] = nodes * r / t->ranks;
    WF_EXPECT_OK(wf_agreed_make(ctx, t->ranks, node, &t->agreed));
    t->agreed.chunk_bytes = 200;
    t->agreed.prompt_bytes = 96;
    t->agreed.pairs = test_int(rng, 0, 2) > 0;
    t->agreed.staged = t->staged;
    t->agreed.native = t->native; /* messages of its group go by the link of the simulation */
    t->agreed.pair_slot_bytes = 20;
    t->agreed.pair_short_bytes = 40;
    for (int r = 0; r < t->ranks; r++)
        build(t, r);
    for (int a = 0; a < t->ranks; a++)
        for (int b = 0; b < t->ranks; b++)
            check_pair(t->plan[a], t->plan[b]);
}

static void trade_close(trade *t)
{
    for (int r = 0; r < t->ranks; r++) {
        wf_schedule_free(t->all[r]);
        wf_plan_free(t->plan[r]);
    }
    wf_agreed_clear(&t->agreed);
}

static void schedules(void)
{
    static trade t;
    test_rng rng = {.state = 43};
    int negated = 0, repeated = 0, filled = 0;
    for (int i = 0; i < test_samples(3000); i++) {
        trade_open(&t, &rng);
        const wf_schedule *const *all = (const wf_schedule *const *)t.all;
        const wf_simulation s = {.seed = test_u64(&rng),
                                 .most_delay = 5,
                                 .failing_rank = -1,
                                 .fill = fill,
                                 .check = check,
                                 .own = &t,
                                 .ended = t.ended};
        WF_EXPECT_OK(wf_schedule_verify(ctx, all, t.ranks));
        /* A staged schedule needs a device to run; its proof does not. */
        if (!t.staged)
            WF_EXPECT_OK(wf_schedule_simulate(ctx, all, t.ranks, &s));
        WF_EXPECT(t.wrong == 0, "trade %d, %s%s between %d ranks: %d elements are wrong", i,
                  t.reversed ? "reversed" : "forward", t.own ? "" : " without its own", t.ranks, t.wrong);
        for (int r = 0; r < t.ranks; r++) {
            filled += t.plan[r]->n_fill > 0;
            for (int64_t k = 0; k < t.plan[r]->n_send; k++) {
                negated += t.plan[r]->send[k].negate;
                repeated += t.plan[r]->send[k].step[0] == 0;
            }
        }
        trade_close(&t);
    }
    WF_EXPECT(negated > 0 && repeated > 0 && filled > 0, "%d pieces are negated, %d repeated, %d plans fill", negated,
              repeated, filled);
}

/* --- errors ---------------------------------------------------------------------------------------------------------
 */

static wf_status pass(void *own, const wf_piece *piece, bool fills)
{
    return WF_OK;
}

static void expect_error(wf_status code, const char *text, wf_boundary b, wf_box need)
{
    const wf_status status = wf_boundary_pieces(WF_SHAPE(4, 3, 5), &b, need, 0, pass, NULL);
    WF_EXPECT(status == code && strstr(wf_error_message(), text), "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
}

static void errors(void)
{
    const wf_box five = {.rank = 3, .lo = {-5, 0, 0}, .hi = {4, 3, 5}},
                 four = {.rank = 3, .lo = {0, 0, 0}, .hi = {8, 3, 5}};
    const int64_t channel[] = {3};
    WF_EXPECT_OK(wf_boundary_pieces(WF_SHAPE(4, 3, 5), &(wf_boundary){.edge = WF_EDGE_CIRCULAR}, four, 0, pass, NULL));
    WF_EXPECT_OK(wf_boundary_pieces(WF_SHAPE(4, 3, 5), &(wf_boundary){.edge = WF_EDGE_REPLICATE}, five, 0, pass, NULL));
    expect_error(WF_ERR_SHAPE,
                 "5 elements beyond the lower edge of dimension 0, which is circular and of length 4; should be 4",
                 (wf_boundary){.edge = WF_EDGE_CIRCULAR}, five);
    expect_error(WF_ERR_SHAPE, "which is symmetric and of length 4; should be 4",
                 (wf_boundary){.edge = WF_EDGE_SYMMETRIC}, five);
    expect_error(WF_ERR_SHAPE,
                 "4 elements beyond the upper edge of dimension 0, which is reflect and of length 4; should be 3",
                 (wf_boundary){.edge = WF_EDGE_REFLECT}, four);
    expect_error(WF_ERR_ARGUMENT, "edges of dimension 1 are 77", (wf_boundary){.lo = {0, (wf_edge)77}}, four);
    expect_error(WF_ERR_ARGUMENT, "3 dimensions with a pole", (wf_boundary){.edge = WF_EDGE_POLE}, four);
    expect_error(WF_ERR_SHAPE, "a pole turns dimension 2 of 5 elements, whose edges are circular and circular",
                 (wf_boundary){.edge = WF_EDGE_CIRCULAR, .hi = {WF_EDGE_POLE}}, four);
    expect_error(WF_ERR_ARGUMENT, "turns dimension 0 of 3", (wf_boundary){.hi = {WF_EDGE_POLE}, .turned = WF_DIM(0)},
                 four);
    expect_error(WF_ERR_ARGUMENT, "1 channels that change their sign, listed nowhere", (wf_boundary){.n_negated = 1},
                 four);
    const wf_boundary pole = {.edge = WF_EDGE_CIRCULAR, .hi = {WF_EDGE_POLE}, .n_negated = 1, .negated = channel};
    const wf_box high = {.rank = 3, .lo = {0, 0, 0}, .hi = {8, 3, 4}};
    WF_EXPECT(wf_boundary_pieces(WF_SHAPE(4, 3, 4), &pole, high, 0, pass, NULL) == WF_ERR_ARGUMENT &&
                  strstr(wf_error_message(), "channel 3 of 3"),
              "%s", wf_error_message());
    wf_error_clear();
}

/* Nothing changes for needs inside the array: one piece a rank, as without a boundary. */
static void inside_is_one_piece(void)
{
    const wf_box have[2] = {{.rank = 2, .hi = {2, 4}}, {.rank = 2, .lo = {2, 0}, .hi = {5, 4}}};
    const wf_box need[2] = {{.rank = 2, .hi = {3, 4}}, {.rank = 2, .lo = {1, 1}, .hi = {5, 3}}};
    const wf_boundary b = {.edge = WF_EDGE_CIRCULAR};
    const wf_beyond beyond = {.global = WF_SHAPE(5, 4), .boundary = &b};
    for (int r = 0; r < 2; r++) {
        wf_plan *plain = NULL, *bounded = NULL;
        WF_EXPECT_OK(wf_plan_make(ctx, r, 2, NULL, have, need, NULL, &plain));
        WF_EXPECT_OK(wf_plan_make(ctx, r, 2, NULL, have, need, &beyond, &bounded));
        WF_EXPECT(plain->n_recv == 2 && bounded->n_recv == 2 && plain->n_send == 2 && bounded->n_send == 2 &&
                      !plain->rewrites && !bounded->rewrites && plain->n_fill + bounded->n_fill == 0 &&
                      !memcmp(plain->recv, bounded->recv, 2 * sizeof *plain->recv) &&
                      !memcmp(plain->send, bounded->send, 2 * sizeof *plain->send),
                  "rank %d: the plans differ", r);
        wf_plan_free(plain);
        wf_plan_free(bounded);
    }
}

/* Two ranks have four rows of six columns each. Of the ring of rows each lacks two; the corners beyond the columns,
 * which no rank cuts, are made of these. Where one rank has one row, it is needed twice and comes once. */
static void corners_are_made_here(void)
{
    static const struct {
        wf_edge edge;
        int64_t rows, elements, pieces, echoes;
    } cases[] = {{WF_EDGE_CIRCULAR, 4, 12, 2, 4},
                 {WF_EDGE_REFLECT, 4, 6, 1, 2},
                 {WF_EDGE_REPLICATE, 4, 6, 1, 2},
                 {WF_EDGE_CONSTANT, 4, 6, 1, 0},
                 {WF_EDGE_CIRCULAR, 7, 6, 1, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t rows = cases[i].rows;
        const wf_box have[2] = {{.rank = 2, .hi = {rows, 6}}, {.rank = 2, .lo = {rows, 0}, .hi = {8, 6}}};
        const wf_box need[2] = {{.rank = 2, .lo = {-1, -1}, .hi = {rows + 1, 7}},
                                {.rank = 2, .lo = {rows - 1, -1}, .hi = {9, 7}}};
        const wf_boundary b = {.edge = cases[i].edge};
        const wf_beyond beyond = {.global = WF_SHAPE(8, 6), .boundary = &b};
        wf_plan *plan = NULL;
        WF_EXPECT_OK(wf_plan_make(ctx, 0, 2, NULL, have, need, &beyond, &plan));
        WF_EXPECT(plan && plan->elements_received == cases[i].elements && plan->n_echo == cases[i].echoes,
                  "%s: %d elements come with %d echoes", wf_edge_name(b.edge), (int)plan->elements_received,
                  (int)plan->n_echo);
        int64_t pieces = 0;
        for (int64_t k = 0; k < plan->n_recv; k++)
            pieces += plan->recv[k].peer == 1;
        WF_EXPECT(pieces == cases[i].pieces, "%s: in %d pieces", wf_edge_name(b.edge), (int)pieces);
        wf_plan_free(plan);
    }
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"pieces", pieces},
                                               {"schedules", schedules},
                                               {"errors", errors},
                                               {"inside_is_one_piece", inside_is_one_piece},
                                               {"corners_are_made_here", corners_are_made_here},
                                               {0}});
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
