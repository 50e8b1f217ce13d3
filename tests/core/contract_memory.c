/* Copying between strided arrays of any types, filling, random numbers. */
#include "tests/core/contract.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy_case {
    wf_dtype from, to;
    wf_shape big_from, big_to; /* the dense arrays in which the views lie */
    wf_order order_from, order_to;
    wf_shape part;
    int64_t at_from[WF_MAX_RANK], at_to[WF_MAX_RANK];
    int permute[WF_MAX_RANK]; /* order in which the dimensions are listed */
    int broadcast;            /* this dimension of the source repeats; -1: none */
    unsigned backwards;       /* of the source, a bit a dimension */
    bool accumulate;
} copy_case;

static wf_dtype run_type(const run *r, wf_dtype asked)
{
    return asked == WF_BF16 ? r->dtype : asked;
}

static wf_dtype run_type_round(const run *r, wf_dtype asked)
{
    return asked == WF_BF16 ? r->round : asked;
}

static wf_strided part_of(const wf_array *a, const copy_case *t, const int64_t *at, int broadcast, unsigned backwards)
{
    const wf_strided whole = wf_array_strided(a);
    wf_strided view = {.dtype = a->dtype, .rank = t->part.rank};
    int64_t offset = 0;
    for (int d = 0; d < view.rank; d++) {
        const int from = t->permute[d];
        view.dim[d] = t->part.dim[from];
        view.stride[d] = from == broadcast ? 0 : whole.stride[from];
        offset += at[from] * whole.stride[from];
        if (backwards >> from & 1u) {
            offset += (t->part.dim[from] - 1) * view.stride[d];
            view.stride[d] = -view.stride[d];
        }
    }
    view.data = a->data ? (char *)a->data + offset * (int64_t)wf_dtype_size(a->dtype) : NULL;
    return view;
}

static void copy_body(run *r)
{
    const copy_case *const t = r->args;
    char text[2][WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note, "%s to %s, part %s of %s, broadcast %d backwards %x accumulate %d",
             wf_dtype_name(t->from), wf_dtype_name(t->to), wf_shape_text(t->part, text[0]),
             wf_shape_text(t->big_from, text[1]), t->broadcast, t->backwards, t->accumulate);
    const bool narrow = t->from == WF_U8 || t->to == WF_U8;
    const wf_array x = run_in_of(r, run_type(r, t->from), run_type_round(r, t->from), t->big_from, t->order_from,
                                 narrow ? 0 : -100, 100);
    const wf_array y =
        run_in_of(r, run_type(r, t->to), run_type_round(r, t->to), t->big_to, t->order_to, narrow ? 0 : -50, 50);
    run_mutable(r);
    const wf_strided src = part_of(&x, t, t->at_from, t->broadcast, t->backwards);
    const wf_strided dst = part_of(&y, t, t->at_to, -1, 0);
    run_call(r, r->k->copy(r->ctx, &src, &dst, t->accumulate));
    run_result(r, &y, t->accumulate || wf_dtype_is_float(t->to) ? 1 : 0);
}

/* WF_BF16 in a case stands for the type of the run. */
static copy_case random_copy(test_rng *rng)
{
    static const wf_dtype types[] = {WF_BF16, WF_BF16, WF_BF16, WF_F32, WF_F64, WF_I32, WF_I64, WF_U8};
    copy_case t = {.from = types[test_int(rng, 0, 7)], .to = types[test_int(rng, 0, 7)], .broadcast = -1};
    const int rank = (int)test_int(rng, 0, 6);
    t.part.rank = t.big_from.rank = t.big_to.rank = rank;
    t.order_from = rank >= 3 && test_int(rng, 0, 1) ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    t.order_to = rank >= 3 && test_int(rng, 0, 1) ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    for (int d = 0; d < rank; d++) {
        const bool long_one = rank <= 3 && d == rank - 1 && test_int(rng, 0, 1);
        t.part.dim[d] = long_one ? 700 : test_int(rng, test_int(rng, 0, 9) ? 1 : 0, 5);
        t.at_from[d] = test_int(rng, 0, 1);
        t.at_to[d] = test_int(rng, 0, 2);
        t.big_from.dim[d] = t.part.dim[d] + t.at_from[d] + test_int(rng, 0, 1);
        t.big_to.dim[d] = t.part.dim[d] + t.at_to[d];
        t.permute[d] = d;
    }
    for (int d = rank - 1; d > 0; d--) {
        const int other = (int)test_int(rng, 0, d), mine = t.permute[d];
        t.permute[d] = t.permute[other];
        t.permute[other] = mine;
    }
    if (rank > 0 && test_int(rng, 0, 2) == 0)
        t.broadcast = (int)test_int(rng, 0, rank - 1);
    if (wf_shape_count(t.part) > 0 && test_int(rng, 0, 1))
        t.backwards = (unsigned)test_int(rng, 0, 63);
    t.accumulate = test_int(rng, 0, 2) == 0;
    return t;
}

static void copy_random(void)
{
    for (uint64_t i = 0; i < 250; i++) {
        test_rng rng = {contract_seed() * 3000 + i};
        const copy_case t = random_copy(&rng);
        contract_check("copy", copy_body, &t, rng.state);
    }
}

/* Whole arrays, as cast and change of order ask for them. */
static void copy_whole(void)
{
    const wf_shape shape[] = {WF_SHAPE(2, 3, 5, 7), WF_SHAPE(1, 64, 4, 4),   WF_SHAPE(3, 2, 3, 4, 5),
                              WF_SHAPE(1000),       WF_SHAPE(4, 65, 17, 19), WF_SHAPE(301, 127)};
    for (int s = 0; s < 6; s++)
        for (int v = 0; v < 8; v++) {
            copy_case t = {.from = v & 4 ? WF_F32 : WF_BF16, .to = WF_BF16, .broadcast = -1};
            t.part = t.big_from = t.big_to = shape[s];
            t.order_from = v & 1 && shape[s].rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
            t.order_to = v & 2 && shape[s].rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
            for (int d = 0; d < WF_MAX_RANK; d++)
                t.permute[d] = d;
            contract_check("copy", copy_body, &t, contract_seed());
        }
}

static void fill_body(run *r)
{
    const copy_case *const t = r->args;
    const wf_array y = run_out_of(r, run_type(r, t->to), run_type_round(r, t->to), t->part, WF_ROW_MAJOR, false);
    snprintf(r->note, sizeof r->note, "%s, %lld elements", wf_dtype_name(t->to), (long long)wf_array_count(&y));
    run_call(r, r->k->fill(r->ctx, &y, 3));
    run_result(r, &y, 0);
}

static void fill(void)
{
    static const wf_dtype types[] = {WF_BF16, WF_F32, WF_I32, WF_I64, WF_U8};
    static const int64_t counts[] = {0, 1, 33, 70001};
    for (int k = 0; k < 5; k++)
        for (int c = 0; c < 4; c++) {
            const copy_case t = {.to = types[k], .part = WF_SHAPE(counts[c])};
            contract_check("fill", fill_body, &t, contract_seed());
        }
}

static void random_body(run *r)
{
    const copy_case *const t = r->args;
    static const char *const names[] = {"uniform", "normal", "truncated"};
    const wf_distribution dist = t->to == WF_F64 ? WF_TRUNCATED : t->accumulate ? WF_NORMAL : WF_UNIFORM;
    char text[WF_SHAPE_TEXT];
    const wf_array y = run_out(r, t->part, t->order_to, false);
    const wf_random random = run_random(r, t->part);
    snprintf(r->note, sizeof r->note, "%s %s order %d", names[dist], wf_shape_text(t->part, text), (int)t->order_to);
    run_call(r, r->k->random(r->ctx, dist, &random, -0.5, 2, &y));
    run_result(r, &y, 1);
}

static void random_fill(void)
{
    const wf_shape shape[] = {wf_shape_scalar(),       WF_SHAPE(1),
                              WF_SHAPE(1001),          WF_SHAPE(5, 3),
                              WF_SHAPE(4, 3, 5),       WF_SHAPE(2, 3, 4, 5),
                              WF_SHAPE(2, 3, 2, 3, 4), WF_SHAPE(2, 2, 3, 2, 3, 2),
                              WF_SHAPE(0, 3, 4, 5),    WF_SHAPE(3, 33, 25, 23)};
    for (int s = 0; s < 10; s++)
        for (int v = 0; v < 12; v++) {
            const copy_case t = {.part = shape[s],
                                 .order_to = v % 2 && shape[s].rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR,
                                 .accumulate = v / 2 % 2,
                                 .to = v % 3 == 2 ? WF_F64 : WF_F32};
            contract_check("random", random_body, &t, contract_seed() + (uint64_t)v);
        }
}

static void fetch(wf_ctx *ctx, const wf_array *a, float *out)
{
    WF_EXPECT_OK(ctx->k->to_host(ctx, out, a->data, (size_t)wf_array_count(a) * sizeof *out));
}

/* A fill of a box is the slice of the fill of the whole, bit for bit, in both orders. */
static void box_is_slice(wf_ctx *ctx, wf_distribution dist, wf_order order, test_rng *rng)
{
    const wf_shape shape = WF_SHAPE(3, 5, 4, 7);
    wf_random random = {.seed = 5, .stream = 6, .global = shape, .box = wf_box_of_shape(shape)};
    wf_array whole = {.dtype = WF_F32, .order = order, .shape = shape}, part = whole;
    float all[420], some[420];
    WF_EXPECT_OK(wf_pool_take(ctx, sizeof all, &whole.data));
    WF_EXPECT_OK(wf_pool_take(ctx, sizeof all, &part.data));
    WF_EXPECT_OK(ctx->k->random(ctx, dist, &random, 0, 1, &whole));
    fetch(ctx, &whole, all);
    for (int d = 0; d < 4; d++) {
        random.box.lo[d] = test_int(rng, 0, shape.dim[d] - 1);
        random.box.hi[d] = test_int(rng, random.box.lo[d] + 1, shape.dim[d]);
        if (test_int(rng, 0, 2) == 0)
            random.box.lo[d] = 0, random.box.hi[d] = shape.dim[d];
    }
    part.shape = wf_box_shape(random.box);
    WF_EXPECT_OK(ctx->k->random(ctx, dist, &random, 0, 1, &part));
    fetch(ctx, &part, some);
    const wf_strided in = wf_array_strided(&whole), out = wf_array_strided(&part);
    int64_t wrong = 0;
    for (int64_t i = 0; i < wf_shape_count(part.shape); i++) {
        int64_t rest = i, a = 0, b = 0;
        for (int d = 3; d >= 0; d--) {
            const int64_t x = rest % part.shape.dim[d];
            rest /= part.shape.dim[d];
            a += (x + random.box.lo[d]) * in.stride[d];
            b += x * out.stride[d];
        }
        wrong += memcmp(&all[a], &some[b], sizeof all[a]) != 0;
    }
    WF_EXPECT(wrong == 0, "%s: %lld elements of a part differ, distribution %d order %d", ctx->k->name,
              (long long)wrong, (int)dist, (int)order);
    wf_pool_give(ctx, whole.data, sizeof all);
    wf_pool_give(ctx, part.data, sizeof all);
}

static void partition_independence(void)
{
    test_rng rng = {contract_seed()};
    wf_ctx *const both[2] = {contract_ref(), contract_device()};
    for (int i = 0; i < 120; i++)
        box_is_slice(both[i % 2], (wf_distribution)(i / 2 % 3), i / 6 % 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR, &rng);
}

static void moments_of(wf_ctx *ctx, wf_distribution dist, double mean, double variance, double fourth)
{
    enum { N = 200000 };
    const wf_shape shape = WF_SHAPE(N);
    const wf_random random = {.seed = 1, .stream = 2, .global = shape, .box = wf_box_of_shape(shape)};
    wf_array y = {.dtype = WF_F32, .shape = shape};
    float *const v = malloc(N * sizeof *v);
    double sum[5] = {0};
    WF_EXPECT_OK(wf_pool_take(ctx, N * sizeof *v, &y.data));
    WF_EXPECT_OK(ctx->k->random(ctx, dist, &random, dist == WF_UNIFORM ? -1 : 1, dist == WF_UNIFORM ? 3 : 2, &y));
    fetch(ctx, &y, v);
    for (int i = 0; i < N; i++) {
        const double d = v[i] - mean;
        sum[0] += d;
        sum[1] += d * d;
        sum[2] += d * d * d;
        sum[3] += d * d * d * d;
        sum[4] += i > 0 ? d * (v[i - 1] - mean) : 0;
    }
    const double error = 6 * sqrt(1.0 / N), sd = sqrt(variance);
    WF_EXPECT(fabs(sum[0] / N) < error * sd, "mean is off by %g", sum[0] / N);
    WF_EXPECT(fabs(sum[1] / N / variance - 1) < 2 * error, "variance is %g", sum[1] / N);
    WF_EXPECT(fabs(sum[2] / N / pow(sd, 3)) < 4 * error, "third moment is %g", sum[2] / N);
    WF_EXPECT(fabs(sum[3] / N / fourth - 1) < 4 * error, "fourth moment is %g", sum[3] / N);
    WF_EXPECT(fabs(sum[4] / N / variance) < error, "neighbours correlate: %g", sum[4] / N);
    wf_pool_give(ctx, y.data, N * sizeof *v);
    free(v);
}

static void moments(void)
{
    wf_ctx *const both[2] = {contract_ref(), contract_device()};
    for (int i = 0; i < 2; i++) {
        moments_of(both[i], WF_NORMAL, 1, 4, 3 * 16);
        moments_of(both[i], WF_UNIFORM, 1, 16.0 / 12, 256.0 / 80);
        /* 1 - 2 d and 3 - 14 d of the standard normal one, d = 2 phi(2) / (1 - 2 Phi(-2)) */
        moments_of(both[i], WF_TRUNCATED, 1, 4 * 0.77374129, 16 * 1.41618904);
    }
}

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"copy_random", copy_random},
                                       {"copy_whole", copy_whole},
                                       {"fill", fill},
                                       {"random_fill", random_fill},
                                       {"partition_independence", partition_independence},
                                       {"moments", moments},
                                       {0}});
}
