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
    const double sums = (double)(t->t > 64 ? t->t : 64) / 16 * spread;
    const wf_array *const grad[] = {args.dq, args.dk, args.dv};
    for (int i = 0; i < 3; i++)
        if (grad[i])
            run_result(r, grad[i], sums);
    if (args.dbias)
        run_result(r, &dbias, 16 * sums);
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
    {.n = 1, .heads = 1, .t = 4, .s = 200, .d = 64, .e = 64, .spread = 30},
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

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"attention", attention}, {"weights", weights_both}, {NULL, NULL}};
    return contract_main(argc, argv, cases);
}
