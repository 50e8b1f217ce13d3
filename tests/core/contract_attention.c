/* Attention: every filling against the plain loops in f64, and numbers known beforehand. */
#include "tests/core/contract_bodies.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct attention_case {
    int64_t n, heads, t, s, d, e;
    int64_t rows; /* of a bias; 0: none */
    int64_t first_query, first_key;
    bool index, mask, lengths, regions, causal;
    bool shared;        /* one mask for all samples and heads */
    unsigned without;   /* bits of dq, dk and dv that are not wanted */
    int64_t first_part; /* so many keys first, then the others; 0: all in one call. n is 1 */
    bool adds;          /* to gradients that are there; with parts */
    bool wide;          /* y, and gradients */
    double dropout, spread;
    wf_attention_grid grid;
    int64_t first_sample;
} attention_case;

static wf_array whole_numbers(run *r, wf_shape shape, int64_t lo, int64_t hi)
{
    const int64_t count = wf_shape_count(shape);
    int32_t *const v = malloc((size_t)count * sizeof *v + 1);
    for (int64_t i = 0; i < count; i++)
        v[i] = (int32_t)test_int(&r->rng, lo, hi);
    wf_array a = {.dtype = WF_I32, .order = ROW, .shape = shape};
    a.data = run_bytes(r, v, (size_t)count * sizeof *v);
    free(v);
    return a;
}

static wf_array wide_in(run *r, wf_shape shape, double lo, double hi)
{
    return run_in_of(r, run_wide(r), run_wide_round(r), shape, ROW, lo, hi);
}

static wf_array wide_out(run *r, wf_shape shape, bool keep)
{
    return run_out_of(r, run_wide(r), run_wide_round(r), shape, ROW, keep);
}

static wf_array gradient_out(run *r, const attention_case *t, wf_shape shape)
{
    return t->wide ? wide_out(r, shape, t->adds) : run_out(r, shape, ROW, t->adds);
}

/* A mask that hides some keys and adds to the others. */
static wf_array mask_of(run *r, const attention_case *t, wf_strided *view)
{
    const wf_shape shape = t->shared ? WF_SHAPE(1, 1, t->t, t->s) : WF_SHAPE(t->n, t->heads, t->t, t->s);
    const int64_t count = wf_shape_count(shape);
    double *const v = malloc((size_t)count * sizeof *v + 1);
    for (int64_t i = 0; i < count; i++) {
        v[i] = test_int(&r->rng, 0, 3) == 0 ? -INFINITY : (double)test_int(&r->rng, -8, 8) / 8;
    }
    const wf_array a = run_array(r, run_wide(r), shape, ROW, v);
    free(v);
    *view = (wf_strided){.data = a.data, .dtype = a.dtype, .rank = 4, .dim = {t->n, t->heads, t->t, t->s}};
    view->stride[3] = 1;
    view->stride[2] = t->s;
    view->stride[1] = t->shared ? 0 : t->t * t->s;
    view->stride[0] = t->shared ? 0 : t->heads * t->t * t->s;
    return a;
}

/* Keys [from, from + count) of those of `args`. */
typedef struct key_part {
    wf_attention_args args;
    wf_array k, v, dk, dv;
    wf_strided mask;
    wf_random random;
} key_part;

static wf_array key_rows(const wf_array *a, int64_t from, int64_t count)
{
    wf_array part = *a;
    part.shape.dim[1] = count;
    part.data = (char *)a->data + from * a->shape.dim[2] * (int64_t)wf_dtype_size(a->dtype);
    return part;
}

static void take_part(const wf_attention_args *args, int64_t from, int64_t count, key_part *p)
{
    p->args = *args;
    p->k = key_rows(args->k, from, count);
    p->v = key_rows(args->v, from, count);
    p->args.k = &p->k;
    p->args.v = &p->v;
    p->args.first_key += from;
    if (args->dk) {
        p->dk = key_rows(args->dk, from, count);
        p->dv = key_rows(args->dv, from, count);
        p->args.dk = &p->dk;
        p->args.dv = &p->dv;
    }
    if (args->mask) {
        p->mask = *args->mask;
        p->mask.dim[3] = count;
        p->mask.data = (char *)p->mask.data + from * p->mask.stride[3] * (int64_t)wf_dtype_size(p->mask.dtype);
        p->args.mask = &p->mask;
    }
    if (args->random) {
        p->random = *args->random;
        p->random.box.lo[3] += from;
        p->args.random = &p->random;
    }
}

/* The slot for all keys, or, but for the oracle in f64, for two parts of them whose results are joined. */
static void call_parts(run *r, const attention_case *t, const wf_attention_args *args, bool backward)
{
    key_part p;
    const int64_t all = t->first_part > 0 && (r->dtype != WF_F64 || strcmp(r->k->name, "ref") != 0) ? t->first_part : 0;
    for (int i = 0; i < (all > 0 ? 2 : 1); i++) {
        if (all > 0)
            take_part(args, i == 0 ? 0 : all, i == 0 ? all : t->s - all, &p);
        else
            p.args = *args;
        p.args.joins = i == 1 && !backward;
        run_call(r, backward ? r->k->attention_backward(r->ctx, &p.args) : r->k->attention_forward(r->ctx, &p.args));
    }
}

static void note_attention(run *r, const attention_case *t)
{
    snprintf(
        r->note, sizeof r->note,
        "n %lld heads %lld t %lld s %lld d %lld e %lld rows %lld from %lld,%lld index %d mask %d shared %d lengths "
        "%d regions %d causal %d dropout %g spread %g grid %lld,%lld",
        (long long)t->n, (long long)t->heads, (long long)t->t, (long long)t->s, (long long)t->d, (long long)t->e,
        (long long)t->rows, (long long)t->first_query, (long long)t->first_key, t->index, t->mask, t->shared,
        t->lengths, t->regions, t->causal, t->dropout, t->spread, (long long)t->grid.rows, (long long)t->grid.columns);
}

static void compare_gradients(run *r, const attention_case *t, const wf_attention_args *args, double spread)
{
    const double sums = (double)(t->t > 64 ? t->t : 64) / 16 * spread;
    const wf_array *const grad[] = {args->dq, args->dk, args->dv};
    for (int i = 0; i < 3; i++)
        if (grad[i])
            run_result(r, grad[i], sums);
    if (args->dbias)
        run_result(r, args->dbias, 16 * sums);
}

static void attention_body(run *r)
{
    const attention_case *const t = r->args;
    note_attention(r, t);
    const wf_shape qs = WF_SHAPE(t->n, t->t, t->heads * t->d), ks = WF_SHAPE(t->n, t->s, t->heads * t->d);
    const wf_shape vs = WF_SHAPE(t->n, t->s, t->heads * t->e), ys = WF_SHAPE(t->n, t->t, t->heads * t->e);
    const wf_shape table = WF_SHAPE(t->rows, t->heads), scores = WF_SHAPE(t->n, t->heads, t->t, t->s);
    const double spread = t->spread > 0 ? t->spread : 1;
    const wf_array q = run_in(r, qs, ROW, -spread, spread), k = run_in(r, ks, ROW, -1, 1);
    const wf_array v = run_in(r, vs, ROW, -1, 1), dy = run_in(r, ys, ROW, -1, 1);
    const wf_array bias = wide_in(r, table, -1, 1), dbias = wide_out(r, table, t->adds);
    const wf_array y = t->wide ? wide_out(r, ys, false) : run_out(r, ys, ROW, false),
                   lse = wide_out(r, WF_SHAPE(t->n, t->heads, t->t), false);
    const wf_array dq = gradient_out(r, t, qs), dk = gradient_out(r, t, ks), dv = gradient_out(r, t, vs);
    const wf_array known = run_in(r, ys, ROW, -1, 1); /* any y serves for the gradients */
    const wf_array index = whole_numbers(r, WF_SHAPE(t->t, t->s), 0, t->rows > 0 ? t->rows - 1 : 0);
    const wf_array lengths = whole_numbers(r, WF_SHAPE(t->n), 0, t->first_key + t->s + 2);
    const int64_t groups = t->grid.rows > 0 ? t->grid.all_rows * t->grid.all_columns : 2;
    const wf_array near = whole_numbers(r, WF_SHAPE(groups, t->t), 0, 2),
                   far = whole_numbers(r, WF_SHAPE(groups, t->s), 0, 2);
    const wf_random random = run_random(r, scores);
    wf_strided view;
    mask_of(r, t, &view);
    wf_attention_args args = {.heads = t->heads,
                              .scale = 1 / sqrt((double)t->d),
                              .q = &q,
                              .k = &k,
                              .v = &v,
                              .y = &y,
                              .lse = &lse,
                              .bias = t->rows > 0 ? &bias : NULL,
                              .index = t->index ? &index : NULL,
                              .mask = t->mask ? &view : NULL,
                              .lengths = t->lengths ? &lengths : NULL,
                              .q_region = t->regions ? &near : NULL,
                              .k_region = t->regions ? &far : NULL,
                              .causal = t->causal,
                              .first_query = t->first_query,
                              .first_key = t->first_key,
                              .first_sample = t->first_sample,
                              .grid = t->grid,
                              .dropout = t->dropout,
                              .random = t->dropout > 0 ? &random : NULL};
    call_parts(r, t, &args, false);
    run_result(r, &y, 4);
    run_result(r, &lse, 4);
    args.y = t->wide ? &known : &y;
    args.adds = t->adds;
    args.dy = &dy;
    args.dq = t->without & 1u ? NULL : &dq;
    args.dk = t->without & 2u ? NULL : &dk;
    args.dv = t->without & 4u ? NULL : &dv;
    args.dbias = t->rows > 0 ? &dbias : NULL;
    call_parts(r, t, &args, true);
    compare_gradients(r, t, &args, spread);
}

static const attention_case attention_cases[] = {
    {.n = 1, .heads = 1, .t = 1, .s = 1, .d = 1, .e = 1},
    {.n = 2, .heads = 3, .t = 5, .s = 7, .d = 4, .e = 3},
    {.n = 2, .heads = 1, .t = 49, .s = 49, .d = 32, .e = 32, .rows = 169, .index = true, .regions = true},
    {.n = 3, .heads = 2, .t = 9, .s = 10, .d = 17, .e = 20, .dropout = 0.3},
    {.n = 1, .heads = 1, .t = 130, .s = 130, .d = 3, .e = 2, .causal = true, .rows = 31},
    {.n = 1, .heads = 2, .t = 70, .s = 90, .d = 2, .e = 1, .causal = true, .first_query = 40, .first_key = 60},
    {.n = 4, .heads = 2, .t = 3, .s = 66, .d = 5, .e = 9, .lengths = true},
    {.n = 4, .heads = 1, .t = 9, .s = 20, .d = 5, .e = 9, .lengths = true, .first_key = 7, .causal = true},
    {.n = 2, .heads = 3, .t = 20, .s = 3, .d = 8, .e = 8, .mask = true},
    {.n = 2,
     .heads = 3,
     .t = 20,
     .s = 70,
     .d = 2,
     .e = 3,
     .mask = true,
     .shared = true,
     .dropout = 0.5,
     .causal = true},
    {.n = 2,
     .heads = 2,
     .t = 20,
     .s = 21,
     .d = 4,
     .e = 4,
     .rows = 5,
     .first_query = 3,
     .lengths = true,
     .regions = true,
     .mask = true,
     .dropout = 0.1},
    {.n = 12,
     .heads = 2,
     .t = 6,
     .s = 6,
     .d = 4,
     .e = 4,
     .rows = 11,
     .index = true,
     .regions = true,
     .dropout = 0.3,
     .first_sample = 1,
     .grid = {.first_row = 1, .rows = 2, .all_rows = 5, .first_column = 2, .columns = 3, .all_columns = 6}},
    /* A bias that is gathered once, and gradients of it that several samples share. */
    {.n = 67, .heads = 3, .t = 7, .s = 5, .d = 3, .e = 2, .rows = 13, .index = true},
    {.n = 5, .heads = 3, .t = 7, .s = 5, .d = 3, .e = 2, .rows = 13, .adds = true, .without = 1},
    {.n = 33, .heads = 4, .t = 70, .s = 66, .d = 2, .e = 3, .rows = 31, .regions = true, .dropout = 0.1},
    {.n = 5, .heads = 2, .t = 65, .s = 130, .d = 6, .e = 7, .rows = 31, .causal = true, .lengths = true},
    {.n = 1, .heads = 1, .t = 4, .s = 200, .d = 64, .e = 64, .spread = 30},
    {.n = 1, .heads = 2, .t = 197, .s = 197, .d = 64, .e = 32},
    /* Three threads share the keys of one head or two, and have a head each. */
    {.n = 1, .heads = 1, .t = 140, .s = 600, .d = 8, .e = 16},
    {.n = 1, .heads = 2, .t = 130, .s = 330, .d = 5, .e = 9, .causal = true, .first_query = 150},
    {.n = 3, .heads = 1, .t = 70, .s = 330, .d = 5, .e = 9, .lengths = true},
    {.n = 1, .heads = 2, .t = 66, .s = 300, .d = 3, .e = 5, .without = 1},
    {.n = 1, .heads = 2, .t = 66, .s = 70, .d = 3, .e = 5, .without = 1},
    {.n = 1, .heads = 2, .t = 66, .s = 70, .d = 3, .e = 5, .without = 2 | 4, .rows = 3},
    {.n = 1, .heads = 2, .t = 6, .s = 7, .d = 3, .e = 5, .without = 1 | 4},
    {.n = 1, .heads = 2, .t = 9, .s = 11, .d = 3, .e = 5, .adds = true, .rows = 3},
    {.n = 1, .heads = 2, .t = 9, .s = 11, .d = 3, .e = 5, .adds = true, .first_part = 4, .mask = true, .rows = 3},
    {.n = 1, .heads = 1, .t = 70, .s = 90, .d = 8, .e = 33, .adds = true, .first_part = 70, .wide = true},
    {.n = 1,
     .heads = 2,
     .t = 70,
     .s = 80,
     .d = 2,
     .e = 3,
     .adds = true,
     .first_part = 30,
     .wide = true,
     .causal = true,
     .first_key = 5,
     .dropout = 0.3},
    {.n = 1, .heads = 2, .t = 9, .s = 8, .d = 2, .e = 3, .adds = true, .first_part = 7, .wide = true, .lengths = true},
    {.n = 0, .heads = 2, .t = 5, .s = 7, .d = 4, .e = 4, .rows = 3},
    {.n = 2, .heads = 2, .t = 0, .s = 7, .d = 4, .e = 4, .rows = 3},
    {.n = 2, .heads = 2, .t = 5, .s = 0, .d = 4, .e = 4, .rows = 3},
};

static void attention(void)
{
    for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++)
        contract_check("attention", attention_body, &attention_cases[i], contract_seed() + i);
}

/* Two keys of scores 0 and ln 3, the third hidden: the weights are 1/4 and 3/4; a query that sees nothing. */
static void weights(run *r)
{
    const wf_array q = run_array(r, r->dtype, WF_SHAPE(1, 2, 1), ROW, LIST(2, 5));
    const wf_array k = run_array(r, r->dtype, WF_SHAPE(1, 3, 1), ROW, LIST(0, log(3), 9));
    const wf_array v = run_array(r, r->dtype, WF_SHAPE(1, 3, 2), ROW, LIST(4, 8, 12, 0, 100, 100));
    const wf_array y = run_out(r, WF_SHAPE(1, 2, 2), ROW, false), lse = run_out(r, WF_SHAPE(1, 1, 2), ROW, false);
    const double none = -INFINITY;
    const wf_array hidden = run_array(r, r->dtype, WF_SHAPE(1, 1, 2, 3), ROW, LIST(0, 0, none, none, none, none));
    const wf_strided mask = wf_array_strided(&hidden);
    const wf_attention_args args = {
        .heads = 1, .scale = 0.5, .q = &q, .k = &k, .v = &v, .y = &y, .lse = &lse, .mask = &mask};
    run_call(r, r->k->attention_forward(r->ctx, &args));
    expect(r, "y", &y, LIST(10, 2, 0, 0));
    const double *const got = values(r, &lse);
    WF_EXPECT(fabs(got[0] - log(4)) < 1e-6, "lse is %g, should be ln 4", got[0]);
    WF_EXPECT(got[1] == -INFINITY, "lse of a query that sees nothing is %g, should be -infinity", got[1]);
}
BOTH(weights)

/* --- neighbourhoods -------------------------------------------------------------------------------------------------
 */

typedef struct neighbour_case {
    int64_t n, heads, d, e;
    int64_t length[3], kernel[3], dilation[3];
    int64_t lo[3], hi[3]; /* the queries; hi 0: all */
    bool bias, more;      /* more keys than they see */
    unsigned without;     /* bits of dq, dk and dv that are not wanted */
} neighbour_case;

static void note_neighbours(run *r, const neighbour_case *t)
{
    snprintf(r->note, sizeof r->note, "n %lld heads %lld d %lld e %lld, %lld,%lld,%lld by %lld,%lld,%lld, bias %d",
             (long long)t->n, (long long)t->heads, (long long)t->d, (long long)t->e, (long long)t->length[0],
             (long long)t->length[1], (long long)t->length[2], (long long)t->kernel[0], (long long)t->kernel[1],
             (long long)t->kernel[2], t->bias);
}

/* The parts of the image that the arrays of queries and keys hold. */
static wf_neighbourhood parts_of(const neighbour_case *t, int64_t p[3], int64_t s[3])
{
    wf_neighbourhood g = {0};
    for (int d = 0; d < 3; d++) {
        g.length[d] = t->length[d] > 0 ? t->length[d] : 1;
        g.kernel[d] = t->kernel[d] > 0 ? t->kernel[d] : 1;
        g.dilation[d] = t->dilation[d] > 0 ? t->dilation[d] : 1;
        const int64_t lo = t->lo[d], hi = t->hi[d] > 0 ? t->hi[d] : g.length[d];
        int64_t first = g.length[d], end = 0;
        for (int64_t i = lo; i < hi; i++) {
            const wf_neighbours seen = wf_neighbourhood_keys(&g, d, i);
            const int64_t last = seen.first + (seen.count - 1) * seen.step;
            first = seen.first < first ? seen.first : first;
            end = last + 1 > end ? last + 1 : end;
        }
        first -= t->more && first > 0;
        end += t->more && end < g.length[d];
        g.first_query[d] = lo;
        g.first_key[d] = first;
        p[d] = hi - lo;
        s[d] = end > first ? end - first : 0;
    }
    return g;
}

static void neighbours_body(run *r)
{
    const neighbour_case *const t = r->args;
    int64_t p[3], s[3];
    const wf_neighbourhood g = parts_of(t, p, s);
    note_neighbours(r, t);
    const wf_shape qs = WF_SHAPE(t->n, p[0], p[1], p[2], t->heads * t->d);
    const wf_shape ks = WF_SHAPE(t->n, s[0], s[1], s[2], t->heads * t->d);
    const wf_shape vs = WF_SHAPE(t->n, s[0], s[1], s[2], t->heads * t->e);
    const wf_shape ys = WF_SHAPE(t->n, p[0], p[1], p[2], t->heads * t->e);
    const wf_shape table = WF_SHAPE(t->heads, (2 * g.kernel[0] - 1) * (2 * g.kernel[1] - 1) * (2 * g.kernel[2] - 1));
    const wf_array q = run_in(r, qs, ROW, -1, 1), k = run_in(r, ks, ROW, -1, 1), v = run_in(r, vs, ROW, -1, 1);
    const wf_array dy = run_in(r, ys, ROW, -1, 1), y = run_out(r, ys, ROW, false);
    const wf_array bias = wide_in(r, table, -1, 1), dbias = wide_out(r, table, false);
    const wf_array lse = wide_out(r, WF_SHAPE(t->n, t->heads, p[0] * p[1] * p[2]), false);
    const wf_array dq = run_out(r, qs, ROW, false), dk = run_out(r, ks, ROW, false), dv = run_out(r, vs, ROW, false);
    wf_neighbourhood_args args = {.around = g,
                                  .heads = t->heads,
                                  .scale = 1 / sqrt((double)t->d),
                                  .q = &q,
                                  .k = &k,
                                  .v = &v,
                                  .y = &y,
                                  .lse = &lse,
                                  .bias = t->bias ? &bias : NULL};
    run_call(r, r->k->neighbourhood_forward(r->ctx, &args));
    run_result(r, &y, 4);
    run_result(r, &lse, 4);
    args.dy = &dy;
    args.dq = t->without & 1u ? NULL : &dq;
    args.dk = t->without & 2u ? NULL : &dk;
    args.dv = t->without & 4u ? NULL : &dv;
    args.dbias = t->bias ? &dbias : NULL;
    run_call(r, r->k->neighbourhood_backward(r->ctx, &args));
    const wf_array *const grad[] = {args.dq, args.dk, args.dv};
    for (int i = 0; i < 3; i++)
        if (grad[i])
            run_result(r, grad[i], 8);
    if (args.dbias)
        run_result(r, &dbias, 64);
}

static const neighbour_case neighbour_cases[] = {
    {.n = 1, .heads = 1, .d = 1, .e = 1},
    {.n = 2, .heads = 2, .d = 3, .e = 5, .length = {1, 1, 11}, .kernel = {1, 1, 4}, .bias = true},
    {.n = 2, .heads = 2, .d = 20, .e = 9, .length = {1, 9, 8}, .kernel = {1, 5, 3}, .bias = true},
    {.n = 1, .heads = 1, .d = 70, .e = 33, .length = {1, 7, 9}, .kernel = {1, 7, 7}},
    {.n = 1,
     .heads = 2,
     .d = 4,
     .e = 8,
     .length = {1, 11, 13},
     .kernel = {1, 3, 4},
     .dilation = {0, 3, 2},
     .bias = true},
    {.n = 1, .heads = 1, .d = 5, .e = 2, .length = {4, 5, 6}, .kernel = {2, 3, 4}, .dilation = {2, 1, 1}, .bias = true},
    {.n = 2,
     .heads = 1,
     .d = 8,
     .e = 8,
     .length = {1, 12, 10},
     .kernel = {1, 4, 5},
     .lo = {0, 3, 0},
     .hi = {0, 5, 2},
     .bias = true},
    {.n = 1,
     .heads = 2,
     .d = 6,
     .e = 7,
     .length = {1, 12, 13},
     .kernel = {1, 3, 4},
     .dilation = {1, 2, 3},
     .lo = {0, 7, 11},
     .hi = {0, 8, 13},
     .bias = true,
     .more = true},
    {.n = 1, .heads = 1, .d = 4, .e = 4, .length = {1, 4, 40}, .kernel = {1, 3, 9}, .without = 1},
    /* A device adds up a number of the table in three parts, and in more of them than a warp has lanes. */
    {.n = 2, .heads = 2, .d = 2, .e = 3, .length = {1, 1, 1060}, .kernel = {1, 1, 3}, .bias = true},
    {.n = 1, .heads = 1, .d = 1, .e = 1, .length = {1, 1, 33000}, .kernel = {1, 1, 3}, .without = 7, .bias = true},
    {.n = 1, .heads = 1, .d = 4, .e = 4, .length = {1, 4, 6}, .kernel = {1, 3, 3}, .without = 2, .bias = true},
    {.n = 1, .heads = 1, .d = 4, .e = 4, .length = {1, 4, 6}, .kernel = {1, 2, 3}, .without = 1 | 4},
    {.n = 0, .heads = 2, .d = 4, .e = 4, .length = {1, 4, 6}, .kernel = {1, 3, 3}, .bias = true},
    {.n = 2,
     .heads = 2,
     .d = 4,
     .e = 4,
     .length = {1, 4, 6},
     .kernel = {1, 3, 3},
     .lo = {0, 2, 0},
     .hi = {0, 2, 6},
     .bias = true},
};

static void neighbours(void)
{
    for (size_t i = 0; i < sizeof neighbour_cases / sizeof *neighbour_cases; i++)
        contract_check("neighbours", neighbours_body, &neighbour_cases[i], contract_seed() + i);
}

/* Pixels 0 to 4 of value 10^place and equal scores: those that each sees have equal weights. */
static void borders(run *r)
{
    const wf_array q = run_array(r, r->dtype, WF_SHAPE(1, 1, 1, 5, 1), ROW, LIST(0, 0, 0, 0, 0));
    const wf_array v = run_array(r, r->dtype, WF_SHAPE(1, 1, 1, 5, 1), ROW, LIST(1, 10, 100, 1000, 10000));
    const wf_array bias = run_array(r, r->dtype, WF_SHAPE(1, 7), ROW, LIST(0, 0, 0, 0, 0, 0, 0));
    const wf_array y = run_out(r, WF_SHAPE(1, 1, 1, 5, 1), ROW, false);
    const wf_array lse = run_out(r, WF_SHAPE(1, 1, 5), ROW, false);
    wf_neighbourhood_args args = {.around = {{1, 1, 5}, {1, 1, 3}, {1, 1, 1}, {0}, {0}},
                                  .heads = 1,
                                  .scale = 1,
                                  .q = &q,
                                  .k = &q,
                                  .v = &v,
                                  .y = &y,
                                  .lse = &lse};
    run_call(r, r->k->neighbourhood_forward(r->ctx, &args));
    expect(r, "y of 3", &y, LIST(37, 37, 370, 3700, 3700));
    args.around.kernel[2] = 4;
    args.bias = &bias;
    run_call(r, r->k->neighbourhood_forward(r->ctx, &args));
    expect(r, "y of 4", &y, LIST(277.75, 277.75, 277.75, 2777.5, 2777.5));
    args.around.kernel[2] = args.around.dilation[2] = 2;
    args.bias = NULL;
    run_call(r, r->k->neighbourhood_forward(r->ctx, &args));
    expect(r, "y of 2, dilated", &y, LIST(50.5, 505, 50.5, 505, 5050));
}
BOTH(borders)

/* `place`: of a pair (query 0 and one of three keys) with an index that is wrong. */
static void refuse_index(wf_ctx *of, int32_t bad, int place, bool causal)
{
    char says[64];
    float host[2];
    int32_t row[3] = {0, 1, 0};
    run r = run_on(of, WF_F32);
    const wf_array q = run_array(&r, WF_F32, WF_SHAPE(1, 1, 2), ROW, LIST(1, 2));
    const wf_array k = run_array(&r, WF_F32, WF_SHAPE(1, 3, 2), ROW, LIST(1, 2, 3, 4, 5, 6));
    const wf_array y = run_array(&r, WF_F32, WF_SHAPE(1, 1, 2), ROW, LIST(0, 0));
    const wf_array lse = run_array(&r, WF_F32, WF_SHAPE(1, 1, 1), ROW, LIST(0));
    const wf_array bias = run_array(&r, WF_F32, WF_SHAPE(2, 1), ROW, LIST(0.5, 1));
    wf_array index = {.dtype = WF_I32, .order = ROW, .shape = WF_SHAPE(1, 3)};
    row[place] = bad;
    index.data = run_bytes(&r, row, sizeof row);
    snprintf(says, sizeof says, "index %d in place %d is outside [0, 2)", (int)bad, place);
    const wf_attention_args args = {.heads = 1,
                                    .scale = 1,
                                    .q = &q,
                                    .k = &k,
                                    .v = &k,
                                    .y = &y,
                                    .lse = &lse,
                                    .bias = &bias,
                                    .index = &index,
                                    .causal = causal};
    wf_status status = r.k->attention_forward(r.ctx, &args);
    if (status == WF_OK)
        status = r.k->to_host(r.ctx, host, y.data, sizeof host);
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), says), "%s: is \"%s\", should say \"%s\"",
              r.k->name, wf_error_message(), says);
    wf_error_clear();
    WF_EXPECT_OK(r.k->to_host(r.ctx, host, y.data, sizeof host));
    run_free(&r);
}

/* Also an index that no query sees. */
static void wrong_index(void)
{
    wf_ctx *const contexts[] = {contract_ref(), contract_device()};
    for (int i = 0; i < 2; i++) {
        refuse_index(contexts[i], -3, 1, false);
        refuse_index(contexts[i], INT32_MIN, 2, false);
        refuse_index(contexts[i], 2, 0, false);
        refuse_index(contexts[i], -3, 2, true);
    }
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"attention", attention},     {"weights", weights_both},
                                      {"neighbours", neighbours},   {"borders", borders_both},
                                      {"wrong_index", wrong_index}, {NULL, NULL}};
    return contract_main(argc, argv, cases);
}
