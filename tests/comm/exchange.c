/* Exchanges between random boxes: every rank gets the elements that it needs, the reverse gives every gradient back to
 * where its element came from, the bytes are those of the plan, and nothing is allocated once they have run. */
#include "comm/comm_author.h"
#include "comm/exchange_author.h"
#include "tests/boxes.h"
#include "tests/comm/slabs.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, MOST_ELEMENTS = 4096, MARGIN = 77 };

typedef struct problem {
    wf_shape global;
    wf_box have[MOST], need[MOST];
    wf_dtype dtype;
    wf_order order;
    bool replicas;
} problem;

/* Small integers, which every type holds and adds exactly. */
static double value_at(uint64_t salt, const int64_t *at, int dims)
{
    test_rng rng = {.state = salt};
    for (int d = 0; d < dims; d++)
        rng.state = test_u64(&rng) + (uint64_t)at[d];
    return (double)test_int(&rng, 0, 9);
}

static int64_t fill(wf_box box, uint64_t salt, double *values)
{
    int64_t at[WF_MAX_RANK], n = 0;
    memcpy(at, box.lo, sizeof at);
    if (wf_box_empty(box))
        return 0;
    do
        values[n++] = value_at(salt, at, box.rank);
    while (box_next(box, at));
    return n;
}

/* A tensor of the box's shape, inside a larger one where margins are given. */
typedef struct place {
    wf_tensor *base, *part;
    wf_box inner;
} place;

static place place_new(test_rng *rng, wf_dtype dtype, wf_shape shape)
{
    place p = {.inner = wf_box_of_shape(shape)};
    wf_shape outer = shape;
    const bool strided = test_int(rng, 0, 1);
    for (int d = 0; d < shape.rank; d++) {
        const int64_t before = strided ? test_int(rng, 0, 2) : 0, after = strided ? test_int(rng, 0, 1) : 0;
        p.inner.lo[d] += before;
        p.inner.hi[d] += before;
        outer.dim[d] += before + after;
    }
    p.base = wf_tensor_new_ordered(ctx, dtype, outer, (wf_order)test_int(rng, 0, 1));
    WF_EXPECT_OK(wf_tensor_fill(p.base, MARGIN));
    p.part = wf_tensor_view(p.base, p.inner);
    return p;
}

static void place_free(place p)
{
    wf_tensor_free(p.part);
    wf_tensor_free(p.base);
}

static void put(wf_tensor *part, const double *values)
{
    wf_tensor *host = wf_tensor_from_host(ctx, WF_F64, wf_tensor_shape(part), values);
    WF_EXPECT_OK(wf_tensor_assign(part, host));
    wf_tensor_free(host);
}

static void get(const wf_tensor *part, double *values)
{
    wf_tensor *host = wf_tensor_copy(part, WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_export(host, values, wf_tensor_bytes(host)));
    wf_tensor_free(host);
}

/* What lies around the part is as it was. */
static void check_margin(const place *p)
{
    static double all[64 * MOST_ELEMENTS];
    const wf_box outer = wf_box_of_shape(wf_tensor_shape(p->base));
    int64_t at[WF_MAX_RANK] = {0}, i = 0;
    if (wf_box_empty(outer))
        return;
    get(p->base, all);
    do {
        bool inside = true;
        for (int d = 0; d < outer.rank; d++)
            inside = inside && at[d] >= p->inner.lo[d] && at[d] < p->inner.hi[d];
        WF_EXPECT(inside || all[i] == MARGIN, "an element outside of the box became %g", all[i]);
        i++;
    } while (box_next(outer, at));
}

/* Boxes that cover the array, cut at random points: one rank after the other along one dimension, or two halves of it
 * in one dimension that are cut in another. */
static void random_haves(test_rng *rng, problem *p)
{
    const int dims = p->global.rank;
    for (int r = 0; r < size; r++)
        p->have[r] = wf_box_of_shape(p->global);
    const int d = (int)test_int(rng, 0, dims - 1), halves = size % 2 == 0 && dims > 1 ? (int)test_int(rng, 1, 2) : 1;
    const int other = (d + 1) % dims;
    const int64_t middle = test_int(rng, 0, p->global.dim[other]);
    for (int h = 0; h < halves; h++) {
        const int parts = size / halves;
        int64_t cut = 0;
        for (int i = 0; i < parts; i++) {
            wf_box *box = &p->have[h * parts + i];
            box->lo[d] = cut;
            cut = i + 1 < parts ? test_int(rng, cut, p->global.dim[d]) : p->global.dim[d];
            box->hi[d] = cut;
            if (halves == 2 && h == 0)
                box->hi[other] = middle;
            else if (halves == 2)
                box->lo[other] = middle;
        }
    }
    for (int r = 0; p->replicas && r < size; r++)
        p->have[r].hi[d] = test_int(rng, p->have[r].hi[d], p->global.dim[d]);
}

static problem random_problem(test_rng *rng)
{
    static const int64_t side[6] = {0, 40, 24, 9, 5, 4};
    problem p = {.dtype = (wf_dtype)test_int(rng, 0, WF_DTYPES - 1), .order = (wf_order)test_int(rng, 0, 1)};
    p.replicas = test_int(rng, 0, 3) == 0;
    p.global.rank = (int)test_int(rng, 1, 5);
    for (int d = 0; d < p.global.rank; d++)
        p.global.dim[d] = test_int(rng, 1, side[p.global.rank]);
    random_haves(rng, &p);
    for (int r = 0; r < size; r++)
        p.need[r] = box_random(rng, p.global);
    return p;
}

static void check_forward(const problem *p, wf_exchange *exchange, const place *x, place *y, bool halo, bool in_slabs)
{
    static double want[MOST_ELEMENTS], got[MOST_ELEMENTS];
    const wf_traffic before = wf_comm_traffic(comm);
    wf_tensor *slabs = in_slabs ? slabs_of(exchange, p->order, y->part) : NULL;
    WF_EXPECT_OK(slabs  ? wf_exchange_begin_slabs(exchange, x->part, slabs)
                 : halo ? wf_exchange_begin_halo(exchange, x->part, y->part)
                        : wf_exchange_begin(exchange, x->part, y->part));
    WF_EXPECT_OK(wf_exchange_poll(exchange));
    WF_EXPECT_OK(wf_exchange_end(exchange));
    if (slabs)
        slabs_put(exchange, p->order, slabs, y->part);
    const wf_traffic after = wf_comm_traffic(comm);
    WF_EXPECT((int64_t)(after.bytes_sent - before.bytes_sent) == wf_exchange_bytes(exchange), "%lld bytes, not %lld",
              (long long)(after.bytes_sent - before.bytes_sent), (long long)wf_exchange_bytes(exchange));
    WF_EXPECT(after.collectives - before.collectives == (wf_exchange_moves(exchange) ? 1u : 0u), "%d collectives",
              (int)(after.collectives - before.collectives));
    fill(p->need[rank], 1, want);
    const wf_box box = p->need[rank];
    int64_t at[WF_MAX_RANK], i = 0;
    memcpy(at, box.lo, sizeof at);
    get(y->part, got);
    if (!wf_box_empty(box))
        do {
            bool own = halo;
            for (int d = 0; d < box.rank; d++)
                own = own && at[d] >= p->have[rank].lo[d] && at[d] < p->have[rank].hi[d];
            WF_EXPECT(got[i] == (own ? MARGIN : want[i]), "element %lld is %g, not %g", (long long)i, got[i], want[i]);
            i++;
        } while (box_next(box, at));
    check_margin(y);
}

/* Without replicas every element has one owner, which gets the sum over all that needed it. */
static void check_reverse(const problem *p, wf_exchange *exchange, place *dx, const place *dy, bool halo, bool in_slabs)
{
    static double want[MOST_ELEMENTS], got[MOST_ELEMENTS], given[MOST_ELEMENTS];
    const wf_box box = p->have[rank];
    int64_t at[WF_MAX_RANK], i = 0;
    fill(p->need[rank], 100 + (uint64_t)rank, given);
    put(dy->part, given);
    fill(box, 2, want);
    put(dx->part, want);
    wf_tensor *slabs = in_slabs ? slabs_of(exchange, p->order, dy->part) : NULL;
    WF_EXPECT_OK(slabs  ? wf_exchange_reverse_begin_slabs(exchange, slabs, dx->part)
                 : halo ? wf_exchange_reverse_begin_halo(exchange, dy->part, dx->part)
                        : wf_exchange_reverse_begin(exchange, dy->part, dx->part));
    WF_EXPECT_OK(wf_exchange_end(exchange));
    wf_tensor_free(slabs);
    check_margin(dx);
    if (p->replicas || wf_box_empty(box))
        return;
    get(dx->part, got);
    memcpy(at, box.lo, sizeof at);
    do {
        double sum = want[i];
        for (int q = 0; q < size; q++) {
            bool needed = !halo || q != rank;
            for (int d = 0; d < box.rank; d++)
                needed = needed && at[d] >= p->need[q].lo[d] && at[d] < p->need[q].hi[d];
            sum += needed ? value_at(100 + (uint64_t)q, at, box.rank) : 0;
        }
        WF_EXPECT(got[i] == sum, "gradient %lld is %g, not %g", (long long)i, got[i], sum);
        i++;
    } while (box_next(box, at));
}

static void check_problem(test_rng *rng, const problem *p)
{
    static double values[MOST_ELEMENTS];
    wf_exchange *exchange = wf_exchange_new(comm, p->dtype, p->order, p->have, p->need);
    WF_EXPECT(exchange, "%s", wf_error_message());
    if (!exchange)
        return;
    place x = place_new(rng, p->dtype, wf_box_shape(p->have[rank])),
          y = place_new(rng, p->dtype, wf_box_shape(p->need[rank]));
    fill(p->have[rank], 1, values);
    put(x.part, values);
    const bool halo = test_int(rng, 0, 1), in_slabs = halo && test_int(rng, 0, 1);
    check_forward(p, exchange, &x, &y, halo, in_slabs);
    check_reverse(p, exchange, &x, &y, halo, in_slabs);
    place_free(x);
    place_free(y);
    wf_exchange_free(exchange);
}

static void random_boxes(void)
{
    const uint64_t seed = 20261122;
    if (rank == 0)
        printf("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < (size > 4 ? 60 : 250); i++) {
        test_rng shared = {.state = seed + 1000 * i}, own = {.state = seed + 1000 * i + 1 + (uint64_t)rank};
        const problem p = random_problem(&shared);
        check_problem(&own, &p);
    }
}

/* Rank 0 has everything, the others the middle: they need two pieces of rank 0, each of them dense. */
static void several_pieces_of_a_peer(void)
{
    for (uint64_t i = 0; i < 4; i++) {
        test_rng own = {.state = 300 + 10 * i + (uint64_t)rank};
        problem p = {.global = WF_SHAPE(12), .dtype = i % 2 ? WF_F64 : WF_F32, .replicas = true};
        for (int r = 0; r < size; r++) {
            p.have[r] = p.need[r] = wf_box_of_shape(p.global);
            p.have[r].lo[0] = r > 0 ? 4 : 0;
            p.have[r].hi[0] = r > 0 ? 8 : 12;
        }
        check_problem(&own, &p);
    }
}

/* Plans that are a uniform all-gather (of channels, as layers need it) or all-to-all, of every type. */
static void uniform(void)
{
    for (uint64_t i = 0; i < 60; i++) {
        test_rng shared = {.state = 500 + i}, own = {.state = 9000 + 10 * i + (uint64_t)rank};
        problem p = {.dtype = (wf_dtype)test_int(&shared, 0, WF_DTYPES - 1),
                     .order = (wf_order)test_int(&shared, 0, 1)};
        const int64_t each = test_int(&shared, 1, 3), d = test_int(&shared, 0, 2), other = (d + 1) % 3;
        const bool gather = i % 2;
        p.global = WF_SHAPE(2, 3, 4);
        p.global.dim[d] = each * size;
        p.global.dim[other] = size;
        for (int r = 0; r < size; r++) {
            p.have[r] = p.need[r] = wf_box_of_shape(p.global);
            p.have[r].lo[d] = r * each;
            p.have[r].hi[d] = (r + 1) * each;
            if (!gather) {
                p.need[r].lo[other] = r;
                p.need[r].hi[other] = r + 1;
            }
        }
        const uint64_t before = wf_comm_traffic(comm).messages;
        check_problem(&own, &p);
        WF_EXPECT(wf_comm_traffic(comm).messages - before == 2 * (uint64_t)(size - 1), "%d messages",
                  (int)(wf_comm_traffic(comm).messages - before));
    }
}

/* <F x, y> = <x, F* y> over all ranks. */
static void adjoint(void)
{
    static double x[MOST_ELEMENTS], y[MOST_ELEMENTS], fx[MOST_ELEMENTS], fy[MOST_ELEMENTS];
    for (uint64_t i = 0; i < 40; i++) {
        test_rng shared = {.state = 7000 + i}, own = {.state = 90000 + 100 * i + (uint64_t)rank};
        problem p = random_problem(&shared);
        p.dtype = WF_F64;
        wf_exchange *exchange = wf_exchange_new(comm, p.dtype, p.order, p.have, p.need);
        const wf_shape has = wf_box_shape(p.have[rank]), needs = wf_box_shape(p.need[rank]);
        wf_tensor *tx = wf_tensor_new(ctx, WF_F64, has), *ty = wf_tensor_new(ctx, WF_F64, needs);
        wf_tensor *tfx = wf_tensor_new(ctx, WF_F64, needs), *tfy = wf_tensor_new(ctx, WF_F64, has);
        const int64_t nx = wf_shape_count(has), ny = wf_shape_count(needs);
        for (int64_t j = 0; j < nx; j++)
            x[j] = test_uniform(&own, -1, 1);
        for (int64_t j = 0; j < ny; j++)
            y[j] = test_uniform(&own, -1, 1);
        put(tx, x);
        put(ty, y);
        WF_EXPECT_OK(wf_tensor_fill(tfy, 0));
        WF_EXPECT_OK(wf_exchange_begin(exchange, tx, tfx));
        WF_EXPECT_OK(wf_exchange_end(exchange));
        WF_EXPECT_OK(wf_exchange_reverse_begin(exchange, ty, tfy));
        WF_EXPECT_OK(wf_exchange_end(exchange));
        get(tfx, fx);
        get(tfy, fy);
        double products[2] = {0, 0};
        for (int64_t j = 0; j < ny; j++)
            products[0] += fx[j] * y[j];
        for (int64_t j = 0; j < nx; j++)
            products[1] += x[j] * fy[j];
        WF_EXPECT_OK(wf_allreduce_f64(comm, products, 2, WF_SUM));
        WF_EXPECT(fabs(products[0] - products[1]) <= 1e-11 * (1 + fabs(products[0])), "<Fx,y> = %.17g, <x,F*y> = %.17g",
                  products[0], products[1]);
        wf_tensor_free(tx);
        wf_tensor_free(ty);
        wf_tensor_free(tfx);
        wf_tensor_free(tfy);
        wf_exchange_free(exchange);
    }
}

/* Rows of an [N,C,H,W] image with two rows of the neighbours, the own part a view inside y. */
static void rows_with_halo(wf_box *have, wf_box *need)
{
    const wf_shape global = WF_SHAPE(1, 3, 4 * size, 5);
    for (int r = 0; r < size; r++) {
        have[r] = need[r] = wf_box_of_shape(global);
        have[r].lo[2] = 4 * r;
        have[r].hi[2] = 4 * r + 4;
        need[r].lo[2] = r > 0 ? 4 * r - 2 : 0;
        need[r].hi[2] = r + 1 < size ? 4 * r + 6 : 4 * r + 4;
    }
}

static void inside_one_buffer(void)
{
    static double values[MOST_ELEMENTS], want[MOST_ELEMENTS], got[MOST_ELEMENTS];
    wf_box have[MOST], need[MOST];
    rows_with_halo(have, need);
    wf_exchange *exchange = wf_exchange_new(comm, WF_F32, WF_CHANNELS_LAST, have, need);
    wf_tensor *y = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[rank]));
    wf_tensor *x = wf_tensor_view(y, wf_box_relative(have[rank], need[rank]));
    fill(have[rank], 1, values);
    put(x, values);
    WF_EXPECT_OK(wf_exchange_begin_halo(exchange, x, y));
    WF_EXPECT_OK(wf_exchange_end(exchange));
    const int64_t n = fill(need[rank], 1, want);
    get(y, got);
    WF_EXPECT(test_distance(n, got, want) == 0, "the halo around the own rows is wrong");
    const int64_t peers = (rank > 0) + (rank + 1 < size);
    WF_EXPECT(wf_exchange_bytes(exchange) == peers * 2 * 5 * 3 * 4, "%lld bytes",
              (long long)wf_exchange_bytes(exchange));
    WF_EXPECT_OK(wf_exchange_reverse_begin_halo(exchange, y, x));
    WF_EXPECT_OK(wf_exchange_end(exchange));
    get(x, got);
    fill(have[rank], 1, want);
    for (int64_t i = 0; i < wf_tensor_count(x); i++) {
        const int64_t row = i / 5 % 4;
        const bool shared = (rank > 0 && row < 2) || (rank + 1 < size && row >= 2);
        WF_EXPECT(got[i] == want[i] * (shared ? 2 : 1), "gradient %lld is %g, not %g times %d", (long long)i, got[i],
                  want[i], shared ? 2 : 1);
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
}

static void other_communicators_between(void)
{
    static double values[MOST_ELEMENTS], got[MOST_ELEMENTS];
    wf_box have[MOST], need[MOST];
    wf_comm *second = wf_comm_split(comm, 0, -rank);
    rows_with_halo(have, need);
    wf_exchange *a = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
    wf_exchange *b = wf_exchange_new(second, WF_F32, WF_ROW_MAJOR, have, need);
    const int other = size - 1 - rank; /* this rank's place in `second` */
    wf_tensor *xa = wf_tensor_new(ctx, WF_F32, wf_box_shape(have[rank])),
              *ya = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[rank])),
              *xb = wf_tensor_new(ctx, WF_F32, wf_box_shape(have[other])),
              *yb = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[other]));
    fill(have[rank], 1, values);
    put(xa, values);
    fill(have[other], 3, values);
    put(xb, values);
    double one = 1;
    for (int i = 0; i < 20; i++) {
        WF_EXPECT_OK(wf_exchange_begin(a, xa, ya));
        WF_EXPECT_OK(wf_exchange_begin(b, xb, yb));
        one = 1;
        WF_EXPECT_OK(wf_exchange_poll(a));
        WF_EXPECT_OK(wf_exchange_end(b));
        WF_EXPECT_OK(wf_allreduce_f64(second, &one, 1, WF_SUM));
        WF_EXPECT(one == size, "%g ranks", one);
        WF_EXPECT_OK(wf_exchange_end(a));
    }
    int64_t n = fill(need[rank], 1, values);
    get(ya, got);
    WF_EXPECT(test_distance(n, got, values) == 0, "the first exchange went wrong");
    n = fill(need[other], 3, values);
    get(yb, got);
    WF_EXPECT(test_distance(n, got, values) == 0, "the second exchange went wrong");
    wf_tensor_free(xa);
    wf_tensor_free(ya);
    wf_tensor_free(xb);
    wf_tensor_free(yb);
    wf_exchange_free(a);
    wf_exchange_free(b);
    WF_EXPECT_OK(wf_comm_close(second));
}

static void no_allocations(void)
{
    int64_t warm = 0;
    wf_box have[MOST], need[MOST];
    rows_with_halo(have, need);
    wf_exchange *exchange = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, wf_box_shape(have[rank])),
              *y = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[rank]));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_fill(y, 0));
    for (int i = 0; i < 10; i++) {
        if (i == 2)
            warm = wf_ctx_memory(ctx).system_allocations;
        WF_EXPECT_OK(wf_exchange_begin(exchange, x, y));
        WF_EXPECT_OK(wf_exchange_end(exchange));
        WF_EXPECT_OK(wf_exchange_reverse_begin(exchange, y, x));
        WF_EXPECT_OK(wf_exchange_end(exchange));
    }
    const int64_t more = wf_ctx_memory(ctx).system_allocations - warm;
    WF_EXPECT(more == 0, "%lld allocations in a loop", (long long)more);
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
}

/* A communicator that may die: errors of `comm` itself would end the program's other cases. */
static wf_comm *victim_new(void)
{
    return wf_comm_split(comm, 0, rank);
}

/* One rank takes another place for the begin of what the last rank needs or has, or for the end of what the first one
 * needs, which the extent of all needs does not show. between: a call on which all agree comes between begin and end.
 */
static void different_plan(int kind, bool between)
{
    wf_box have[MOST], need[MOST];
    wf_comm *victim = victim_new();
    rows_with_halo(have, need);
    if (rank == 0)
        *(kind == 0 ? &need[size - 1].lo[2] : kind == 1 ? &need[0].hi[2] : &have[size - 1].lo[2]) -= 1;
    wf_exchange *exchange = wf_exchange_new(victim, WF_F32, WF_ROW_MAJOR, have, need);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, wf_box_shape(have[rank])),
              *y = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[rank]));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_status status = wf_exchange_begin(exchange, x, y);
    if (status == WF_OK && between)
        status = wf_barrier(victim);
    if (status == WF_OK)
        status = wf_exchange_end(exchange);
    if (status == WF_OK)
        status = wf_barrier(victim);
    WF_EXPECT(status == WF_ERR_COMM && strstr(wf_error_message(), "ranks disagree in collective"), "%s",
              wf_error_message());
    WF_EXPECT(strstr(wf_error_message(), "exchange(f32") && strstr(wf_error_message(), "plan "), "%s",
              wf_error_message());
    WF_EXPECT_ERROR(WF_ERR_COMM, wf_exchange_begin(exchange, x, y));
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
    WF_EXPECT_OK(wf_comm_close(victim));
}

static void different_plans(void)
{
    for (int kind = 0; size > 1 && kind < 3; kind++)
        for (int between = 0; between < 2; between++)
            different_plan(kind, between);
}

/* An error of one rank is an error of all. */
static void one_rank_is_wrong(void)
{
    static const wf_status want[3] = {WF_ERR_SHAPE, WF_ERR_DTYPE, WF_ERR_ARGUMENT};
    if (size == 1)
        return;
    for (int kind = 0; kind < 3; kind++) {
        wf_box have[MOST], need[MOST];
        wf_comm *victim = victim_new();
        rows_with_halo(have, need);
        wf_exchange *exchange = wf_exchange_new(victim, WF_F32, WF_ROW_MAJOR, have, need);
        const bool wrong = rank == size - 1;
        wf_tensor *x = wf_tensor_new(ctx, wrong && kind == 1 ? WF_F64 : WF_F32, wf_box_shape(have[rank])),
                  *y = wf_tensor_new(ctx, WF_F32, wrong && kind == 0 ? WF_SHAPE(1, 3, 1, 5) : wf_box_shape(need[rank]));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        wf_status status = wf_exchange_begin(exchange, x, wrong && kind == 2 ? NULL : y);
        if (status == WF_OK)
            status = wf_exchange_end(exchange);
        if (status == WF_OK)
            status = wf_barrier(victim);
        WF_EXPECT(status == want[kind], "kind %d: %s", kind, wf_error_message());
        wf_tensor_free(x);
        wf_tensor_free(y);
        wf_exchange_free(exchange);
        WF_EXPECT_OK(wf_comm_close(victim));
        wf_error_clear();
    }
}

static void misuse(void)
{
    wf_box have[MOST], need[MOST];
    rows_with_halo(have, need);
    need[0].hi[2] = 4 * size + 1;
    WF_EXPECT(!wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need) && wf_error_code() == WF_ERR_SHAPE, "%s",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT(!wf_exchange_new(NULL, WF_F32, WF_ROW_MAJOR, have, need), "no communicator");
    wf_exchange_free(NULL);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_exchange_end(NULL));
    if (size == 1)
        return;
    wf_comm *victim = victim_new();
    rows_with_halo(have, need);
    wf_exchange *exchange = wf_exchange_new(victim, WF_F32, WF_ROW_MAJOR, have, need);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, wf_box_shape(have[rank])),
              *y = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[rank]));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_status status = wf_exchange_begin(exchange, x, y); /* another rank may be further */
    if (status == WF_OK)
        status = wf_barrier(victim);
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), "barrier starts while exchange"), "%s",
              wf_error_message());
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_exchange_end(exchange));
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
    WF_EXPECT_OK(wf_comm_close(victim));
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("naive"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"random_boxes", random_boxes},
                                               {"several_pieces_of_a_peer", several_pieces_of_a_peer},
                                               {"uniform", uniform},
                                               {"adjoint", adjoint},
                                               {"inside_one_buffer", inside_one_buffer},
                                               {"other_communicators_between", other_communicators_between},
                                               {"no_allocations", no_allocations},
                                               {"different_plans", different_plans},
                                               {"one_rank_is_wrong", one_rank_is_wrong},
                                               {"misuse", misuse},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
