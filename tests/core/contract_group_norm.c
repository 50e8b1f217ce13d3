/* Normalisation of groups: every filling against the plain loops in f64; parts of groups, and numbers known beforehand.
 */
#include "tests/core/contract_bodies.h"

#include <stdio.h>

/* f64 sums that a slot writes. */
static wf_array doubles_out(run *r, wf_shape shape)
{
    return run_out_of(r, WF_F64, WF_F64, shape, WF_ROW_MAJOR, false);
}

static void groups(void)
{
    static const group_case list[] = {
        {.rows = 3, .places = 1, .channels = 5, .size = 5},
        {.rows = 37, .places = 1, .channels = 64, .size = 64},
        {.rows = 4, .places = 1, .channels = 257, .size = 257},
        {.rows = 70, .places = 1, .channels = 130, .size = 130},
        {.rows = 2, .places = 1, .channels = 9001, .size = 9001}, /* a row in several blocks */
        {.rows = 5, .places = 1, .channels = 48, .size = 8},      /* groups of one place */
        {.rows = 2, .places = 12, .channels = 6, .size = 3},
        {.rows = 3, .places = 35, .channels = 32, .size = 2},
        {.rows = 2, .places = 49, .channels = 17, .size = 1}, /* instances */
        {.rows = 9, .places = 4, .channels = 128, .size = 32},
        {.rows = 2, .places = 7, .channels = 33, .size = 33},
        {.rows = 2, .places = 301, .channels = 96, .size = 3}, /* large enough for several threads */
        {.rows = 67, .places = 5, .channels = 40, .size = 10},
        {.rows = 2, .places = 9, .channels = 7, .size = 4, .first = 3}, /* parts of two, and a whole one */
        {.rows = 2, .places = 1, .channels = 10, .size = 4, .first = 6},
        {.rows = 3, .places = 5, .channels = 2, .size = 8, .first = 10},
        {.rows = 3, .places = 1, .channels = 2, .size = 8, .first = 10},
        {.rows = 0, .places = 4, .channels = 6, .size = 3},
        {.rows = 2, .places = 0, .channels = 6, .size = 3},
        {.rows = 2, .places = 3, .channels = 0, .size = 3, .first = 4},
        {.rows = 1, .places = 1, .channels = 1, .size = 1},
    };
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++)
        /* Large ones have three variants. */
        for (int v = 0; v<8; v += list[i].rows * list[i].places * list[i].channels> 10000 ? 3 : 1) {
            group_case t = list[i];
            t.gamma = v & 1;
            t.beta = v & 2;
            t.wide = v % 3 > 0;
            t.about_zero = v % 4 == 2;
            t.given = v & 4 || !is_whole_groups(&t);
            t.over = v % 5 == 1;
            t.offset = v == 1 ? 100 : v == 2 ? -1 : 0;
            contract_check("group_norm_stats", group_stats_body, &t, contract_seed() + (uint64_t)v);
            t.offset = t.given ? t.offset : t.offset / 20;
            contract_check("group_norm_forward", group_forward_body, &t, contract_seed() + (uint64_t)v);
            contract_check("group_norm_backward", group_backward_body, &t, contract_seed() + (uint64_t)v);
        }
}

typedef struct merge_case {
    int64_t columns, parts;
    int empty; /* every n-th part of a column has no elements; 0: none */
} merge_case;

static void merge_body(run *r)
{
    const merge_case *const t = r->args;
    enum { MOST = 8 * 3 * 300 };
    static double v[MOST];
    snprintf(r->note, sizeof r->note, "columns %lld parts %lld empty %d", (long long)t->columns, (long long)t->parts,
             t->empty);
    for (int64_t i = 0; i < t->parts * 3 * t->columns; i++) {
        const int64_t part = i / (3 * t->columns), g = i % t->columns;
        const bool counts = i / t->columns % 3 == 0;
        v[i] = counts ? (double)test_int(&r->rng, 1, 50) : test_uniform(&r->rng, 0, 2);
        if (counts && t->empty && (part + g) % t->empty == 0)
            v[i] = 0;
    }
    const wf_array parts = run_array(r, WF_F64, WF_SHAPE(t->parts, 3, t->columns), WF_ROW_MAJOR, v);
    const wf_array sums = doubles_out(r, WF_SHAPE(2, t->columns));
    run_call(r, r->k->group_norm_merge(r->ctx, &parts, &sums));
    run_result(r, &sums, 0);
}

static void merge(void)
{
    static const int64_t columns[] = {0, 1, 5, 300}, parts[] = {1, 2, 3, 8};
    for (int c = 0; c < 4; c++)
        for (int p = 0; p < 4; p++)
            for (int empty = 0; empty < 3; empty++)
                contract_check("group_norm_merge", merge_body, &(merge_case){columns[c], parts[p], empty},
                               contract_seed());
}

/* The statistics of two unequal parts of a group, joined, are those of the whole. */
static void joined_body(run *r)
{
    const double whole[] = {1, 2, 3, 4, 10, 6}, mine[] = {1, 2}, others[] = {3, 4, 10, 6};
    wf_group_norm_args args = {.rows = 1, .places = 1, .groups = 1, .size = 6};
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 6), WF_ROW_MAJOR, whole);
    const wf_array a = run_array(r, r->dtype, WF_SHAPE(1, 2), WF_ROW_MAJOR, mine);
    const wf_array b = run_array(r, r->dtype, WF_SHAPE(1, 4), WF_ROW_MAJOR, others);
    const wf_array all = doubles_out(r, WF_SHAPE(3, 1)), parts = doubles_out(r, WF_SHAPE(2, 3, 1));
    const wf_array first = {.data = parts.data, .dtype = WF_F64, .shape = WF_SHAPE(3, 1)};
    const wf_array second = {.data = (double *)parts.data + 3, .dtype = WF_F64, .shape = WF_SHAPE(3, 1)};
    const wf_array sums = doubles_out(r, WF_SHAPE(2, 1));
    args.channels = 6;
    args.x = &x;
    args.sums = &all;
    run_call(r, r->k->group_norm_stats(r->ctx, &args));
    args.channels = 2;
    args.x = &a;
    args.sums = &first;
    run_call(r, r->k->group_norm_stats(r->ctx, &args));
    args.channels = 4;
    args.first = 2;
    args.x = &b;
    args.sums = &second;
    run_call(r, r->k->group_norm_stats(r->ctx, &args));
    run_call(r, r->k->group_norm_merge(r->ctx, &parts, &sums));
    expect(r, "of the whole", &all, LIST(6, 26.0 / 6, 166 - 26.0 * 26 / 6));
    expect(r, "of the parts", &sums, LIST(26.0 / 6, 166 - 26.0 * 26 / 6));
}
BOTH(joined_body)

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"groups", groups}, {"merge", merge}, {"joined", joined_body_both}, {0}});
}
