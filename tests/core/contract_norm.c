/* Normalisation and what works on rows: softmax, losses, labels. */
#include "tests/core/contract_bodies.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const wf_shape *shapes(int *count)
{
    static wf_shape list[16];
    int n = 0;
    list[n++] = WF_SHAPE(4, 3);
    list[n++] = WF_SHAPE(1, 17);
    list[n++] = WF_SHAPE(37, 64);
    list[n++] = WF_SHAPE(2, 5, 7);
    list[n++] = WF_SHAPE(3, 16, 4, 4);
    list[n++] = WF_SHAPE(2, 3, 9, 5);
    list[n++] = WF_SHAPE(2, 33, 2, 3, 4);
    list[n++] = WF_SHAPE(0, 6, 4, 4);
    list[n++] = WF_SHAPE(0, 5);
    list[n++] = WF_SHAPE(2, 3, 0, 4);
    list[n++] = WF_SHAPE(1, 1, 1, 1);
    list[n++] = WF_SHAPE(65, 1, 3, 3);
    list[n++] = WF_SHAPE(2, 37, 17, 15); /* large enough for several threads */
    list[n++] = WF_SHAPE(3, 5, 31, 33);  /* as many rows, in parts */
    list[n++] = WF_SHAPE(257, 65);
    *count = n;
    return list;
}

static void norm(void)
{
    int count;
    const wf_shape *const list = shapes(&count);
    static const wf_act acts[] = {WF_ACT_NONE, WF_ACT_RELU, WF_ACT_LEAKY_RELU};
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 24; v++) {
            const norm_case t = {.shape = list[i],
                                 .gamma = v & 1,
                                 .beta = v & 2,
                                 .batch = v & 4,
                                 .wide = v % 3 > 0,
                                 .in_place = v & 4,
                                 .residual = v % 5 > 2,
                                 .over = v & 1,
                                 .of_x = v % 5 < 2,
                                 .epilogue = v >= 8 || (v & 3) == 3,
                                 .act = acts[v / 8],
                                 .noise = v & 1 ? 0.2 : 0,
                                 .offset = v == 1   ? 100
                                           : v == 2 ? -1
                                                    : 0};
            contract_check("norm_forward", norm_forward_body, &t, contract_seed() + (uint64_t)v);
            contract_check("norm_backward", norm_backward_body, &t, contract_seed() + (uint64_t)v);
            if (v < 3)
                contract_check("norm_stats", norm_stats_body, &t, contract_seed() + (uint64_t)v);
        }
}

typedef struct finish_case {
    int64_t c;
    double count;
    bool running, in_memory;
} finish_case;

static void finish_body(run *r)
{
    const finish_case *const t = r->args;
    snprintf(r->note, sizeof r->note, "c %lld count %g running %d in memory %d", (long long)t->c, t->count, t->running,
             t->in_memory);
    const wf_array mean = statistic(r, t->c, -1, 1), m2 = statistic(r, t->c, 0, 9);
    const wf_array invstd = statistic_out(r, t->c, false);
    const wf_array rm = statistic_out(r, t->c, true), rv = statistic_out(r, t->c, true);
    const wf_count count = t->in_memory ? count_in_memory(r, t->count) : (wf_count){.value = t->count};
    const wf_norm_args args = {.mean = &mean,
                               .m2 = &m2,
                               .count = count,
                               .eps = 1e-5,
                               .decay = 0.9,
                               .invstd = &invstd,
                               .running_mean = t->running ? &rm : NULL,
                               .running_var = t->running ? &rv : NULL};
    run_call(r, r->k->norm_finish(r->ctx, &args));
    run_result(r, &invstd, 1);
    run_result(r, &rm, 1);
    run_result(r, &rv, 1);
}

static void norm_finish(void)
{
    static const int64_t channels[] = {0, 1, 5, 64, 67};
    static const double counts[] = {0, 1, 2, 1000};
    for (int c = 0; c < 5; c++)
        for (int k = 0; k < 4; k++)
            for (int v = 0; v < 4; v++) {
                const finish_case t = {channels[c], counts[k], v & 1, v & 2};
                contract_check("norm_finish", finish_body, &t, contract_seed());
            }
}

typedef struct merge_case {
    int64_t c, parts;
    int heads, empty; /* every so many parts has no elements; 0: none */
} merge_case;

static void merge_body(run *r)
{
    const merge_case *const t = r->args;
    const int64_t n = t->heads + 2 * t->c;
    double *const v = malloc((size_t)(t->parts * n) * sizeof *v);
    snprintf(r->note, sizeof r->note, "c %lld parts %lld heads %d empty %d", (long long)t->c, (long long)t->parts,
             t->heads, t->empty);
    for (int64_t i = 0; i < t->parts * n; i++)
        v[i] = test_uniform(&r->rng, 0, 2);
    for (int64_t p = 0; p < t->parts; p++)
        v[p * n] = t->empty && p % t->empty == 0 ? 0 : (double)test_int(&r->rng, 1, 50);
    const wf_array parts = run_array(r, WF_F64, WF_SHAPE(t->parts, n), WF_ROW_MAJOR, v);
    const wf_array mean = statistic_out(r, t->c, false), m2 = statistic_out(r, t->c, false);
    const wf_array count = run_out_of(r, WF_F64, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR, false);
    free(v);
    run_call(r, r->k->norm_merge(r->ctx, &parts, &mean, &m2, &count));
    run_result(r, &mean, 1);
    run_result(r, &m2, 1);
    run_result(r, &count, 0);
}

static void part_body(run *r)
{
    const merge_case *const t = r->args;
    wf_norm_head head = {.n = t->heads};
    snprintf(r->note, sizeof r->note, "c %lld heads %d", (long long)t->c, t->heads);
    for (int i = 0; i < t->heads; i++)
        head.value[i] = (double)test_int(&r->rng, 0, 1 << 20);
    const wf_array mean = statistic(r, t->c, -1, 1), m2 = statistic(r, t->c, 0, 9);
    const wf_array part = run_out_of(r, WF_F64, WF_F64, WF_SHAPE(t->heads + 2 * t->c), WF_ROW_MAJOR, false);
    run_call(r, r->k->norm_part(r->ctx, &head, &mean, &m2, &part));
    run_result(r, &part, 0);
}

static void norm_merge(void)
{
    static const int64_t channels[] = {0, 1, 5, 64, 300}, parts[] = {1, 2, 3, 8};
    static const int heads[] = {1, 6, WF_NORM_HEADS};
    for (int c = 0; c < 5; c++)
        for (int h = 0; h < 3; h++) {
            contract_check("norm_part", part_body, &(merge_case){channels[c], 1, heads[h], 0}, contract_seed());
            for (int p = 0; p < 4; p++)
                for (int empty = 0; empty < 3; empty++) {
                    const merge_case t = {channels[c], parts[p], heads[h], empty};
                    contract_check("norm_merge", merge_body, &t, contract_seed());
                }
        }
}

/* Checks that the statistics of two parts of one array, merged, are those of the whole array, which are known. */
static void joined(run *r)
{
    const wf_array parts = run_array(r, WF_F64, WF_SHAPE(3, 6), WF_ROW_MAJOR,
                                     LIST(2, 99, 1, 10, 2, 0,   /* 0 and 2, 10 and 10 */
                                          0, 99, 7, 7, 7, 7,    /* nothing */
                                          4, 99, 4, 10, 4, 8)); /* 3, 3, 5, 5, and 8, 10, 10, 12 */
    const wf_array mean = statistic_out(r, 2, false), m2 = statistic_out(r, 2, false);
    const wf_array count = run_out_of(r, WF_F64, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR, false);
    run_call(r, r->k->norm_merge(r->ctx, &parts, &mean, &m2, &count));
    expect(r, "mean", &mean, LIST(3, 10));
    expect(r, "m2", &m2, LIST(18, 8));
    expect(r, "count", &count, LIST(6));
}
BOTH(joined)

static void softmax(void)
{
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 4; v++) {
            const row_case t = {.shape = list[i], .logarithm = v & 1, .spread = v & 2 ? 500 : 2};
            contract_check("softmax", softmax_body, &t, contract_seed());
        }
}

static void loss_body(run *r)
{
    const row_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const double scale = 1.0 / (1 + (double)wf_shape_count(t->shape));
    row_note(r, t);
    r->grid = t->spread < 10 ? 0.125 : 0;
    const wf_array x = run_in(r, t->shape, order, -t->spread, t->spread), target = run_in(r, t->shape, order, 0, 1);
    const wf_shape result = t->each ? t->shape : wf_shape_scalar();
    const wf_order laid = t->each ? order : WF_ROW_MAJOR;
    const wf_array loss = run_out(r, result, laid, false), dx = run_out(r, t->shape, order, false);
    const wf_array up = run_in(r, result, laid, 1, 3);
    const wf_array *const given = t->target ? &target : NULL;
    const wf_loss_args args = {.kind = t->kind,
                               .x = &x,
                               .target = given,
                               .value = 0.25,
                               .delta = 0.75,
                               .gamma = t->target ? 2 : 0.5,
                               .alpha = t->target ? 0.25 : -1};
    wf_loss_args forward = args, backward = args;
    forward.scale = scale;
    forward.loss = &loss;
    backward.dloss = &up;
    backward.scale = 0.5;
    backward.dx = &dx;
    run_call(r, r->k->loss_forward(r->ctx, &forward));
    run_call(r, r->k->loss_backward(r->ctx, &backward));
    run_result(r, &loss, 2);
    run_result(r, &dx, 2);
}

static void loss(void)
{
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 24; v++) {
            const row_case t = {.shape = list[i],
                                .kind = (wf_loss_kind)(v % 6),
                                .target = v >= 12,
                                .spread = v / 6 % 2 ? 60 : 2,
                                .each = (i + v) % 3 == 0};
            contract_check("loss", loss_body, &t, contract_seed());
        }
}

static wf_array labels_of(run *r, const row_case *t)
{
    int64_t dim[WF_MAX_RANK], rank = 0;
    for (int d = 0; d < t->shape.rank; d++)
        if (d != 1)
            dim[rank++] = t->shape.dim[d];
    const wf_shape shape = wf_shape_make((int)rank, dim);
    const int64_t n = wf_shape_count(shape);
    double *const v = malloc(((size_t)n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (double)test_int(&r->rng, 0, t->shape.dim[1] - 1);
    const wf_array a = run_array(r, t->labels, shape, WF_ROW_MAJOR, v);
    free(v);
    return a;
}

static void nll_body(run *r)
{
    const row_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const double scale = 1.0 / (1 + (double)wf_shape_count(t->shape));
    row_note(r, t);
    r->grid = 0.5;
    const wf_array logp = run_in(r, t->shape, order, -4, 0), labels = labels_of(r, t);
    const wf_array loss = run_out(r, wf_shape_scalar(), WF_ROW_MAJOR, false), dx = run_out(r, t->shape, order, false);
    const wf_array up = run_in(r, wf_shape_scalar(), WF_ROW_MAJOR, 1, 3);
    const wf_array correct = run_out_of(r, WF_I64, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR, false);
    const wf_array counted = run_out_of(r, WF_I64, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR, false);
    run_call(r, r->k->nll_forward(r->ctx, &logp, &labels, t->ignored, scale, &loss));
    run_call(r, r->k->nll_backward(r->ctx, &labels, t->ignored, &up, scale, &dx));
    const wf_array among = run_out_of(r, WF_I64, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR, false);
    run_call(r, r->k->count_correct(r->ctx, &logp, &labels, t->ignored, 1, &correct));
    run_call(r, r->k->count_correct(r->ctx, &logp, &labels, t->ignored, 3, &among));
    run_call(r, r->k->count_labels(r->ctx, &labels, t->ignored, &counted));
    run_result(r, &loss, 2);
    run_result(r, &dx, 1);
    run_result(r, &correct, 0);
    run_result(r, &among, 0);
    run_result(r, &counted, 0);
}

static void nll(void)
{
    static const wf_dtype types[] = {WF_U8, WF_I32, WF_I64};
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 6; k++) {
            const row_case t = {.shape = list[i], .labels = types[k % 3], .ignored = k < 3 ? WF_NONE_IGNORED : 1};
            contract_check("nll", nll_body, &t, contract_seed());
        }
}

/* Classes [first, first + C) of some more: the scores of labels, and the classes before some given ones. */
static void label_place_body(run *r)
{
    const row_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const wf_dtype wide = run_wide(r);
    const int64_t first = t->each ? 0 : 2;
    row_case all = *t;
    all.shape.dim[1] = first + t->shape.dim[1] + 3;
    row_note(r, t);
    r->grid = 0.5;
    const wf_array x = run_in(r, t->shape, order, -2, 2), labels = labels_of(r, &all);
    const wf_array at = run_out_of(r, wide, r->round, labels.shape, WF_ROW_MAJOR, false);
    const wf_array given = run_in_of(r, wide, r->round, labels.shape, WF_ROW_MAJOR, -2, 2);
    const wf_array before = run_out_of(r, WF_I64, WF_I64, labels.shape, WF_ROW_MAJOR, false);
    wf_label_place_args args = {
        .x = &x, .labels = &labels, .ignored = t->ignored, .first = first, .whole = all.shape.dim[1], .at = &at};
    run_call(r, r->k->label_place(r->ctx, &args));
    args.at = &given;
    args.before = &before;
    run_call(r, r->k->label_place(r->ctx, &args));
    run_result(r, &at, 0);
    run_result(r, &before, 0);
}

static void label_places(void)
{
    static const wf_dtype types[] = {WF_U8, WF_I32, WF_I64};
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 6; k++) {
            const row_case t = {
                .shape = list[i], .labels = types[k % 3], .ignored = k < 3 ? WF_NONE_IGNORED : 1, .each = k % 2 == 1};
            contract_check("label_place", label_place_body, &t, contract_seed());
        }
}

/* What is not of x's type is not rounded to it. */
static void entropy_body(run *r)
{
    const row_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const wf_dtype wide = run_wide(r), round = run_wide_round(r);
    const double scale = 1.0 / (1 + (double)wf_shape_count(t->shape));
    row_note(r, t);
    const wf_array x = run_in(r, t->shape, order, -t->spread, t->spread), labels = labels_of(r, t);
    const wf_array log_sum = run_out_of(r, wide, round, labels.shape, WF_ROW_MAJOR, false);
    const wf_array given = run_in_of(r, wide, round, labels.shape, WF_ROW_MAJOR, 0, 3);
    const wf_shape result = t->each ? labels.shape : wf_shape_scalar();
    const wf_array loss = run_out_of(r, wide, round, result, WF_ROW_MAJOR, false);
    const wf_array up = run_in_of(r, wide, round, result, WF_ROW_MAJOR, 1, 3);
    const wf_array dx = run_out(r, t->shape, order, false);
    const wf_array weight = run_in_of(r, wide, round, WF_SHAPE(t->shape.dim[1]), WF_ROW_MAJOR, 0, 2);
    const wf_entropy_args args = {.x = &x,
                                  .labels = &labels,
                                  .ignored = t->ignored,
                                  .scale = scale,
                                  .weight = t->weighted ? &weight : NULL,
                                  .smoothing = t->smoothing};
    wf_entropy_args forward = args, backward = args;
    forward.log_sum = &log_sum;
    forward.loss = &loss;
    backward.log_sum = &given;
    backward.dloss = &up;
    backward.scale = 0.5;
    backward.dx = &dx;
    run_call(r, r->k->entropy_forward(r->ctx, &forward));
    run_call(r, r->k->entropy_backward(r->ctx, &backward));
    run_result(r, &log_sum, statistic_weight(r));
    run_result(r, &loss, statistic_weight(r));
    run_result(r, &dx, 2);
}

/* Classes [first, first + C) of some more: both calls of forward, and backward. */
static void entropy_part_body(run *r)
{
    enum { BEFORE = 2, AFTER = 3 };
    const row_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const wf_dtype wide = run_wide(r), round = run_wide_round(r);
    const int64_t whole = BEFORE + t->shape.dim[1] + AFTER;
    row_case all = *t;
    all.shape.dim[1] = whole;
    row_note(r, t);
    const wf_array x = run_in(r, t->shape, order, -t->spread, t->spread), labels = labels_of(r, &all);
    const wf_array sums = run_out_of(r, wide, round, labels.shape, WF_ROW_MAJOR, false);
    const wf_array most = run_out_of(r, wide, round, labels.shape, WF_ROW_MAJOR, false);
    const wf_array given = run_in_of(r, wide, round, labels.shape, WF_ROW_MAJOR, 0, 3);
    const wf_array high = run_in_of(r, wide, round, labels.shape, WF_ROW_MAJOR, t->spread, t->spread + 1);
    const wf_shape result = t->each ? labels.shape : wf_shape_scalar();
    const wf_array loss = run_out_of(r, wide, round, result, WF_ROW_MAJOR, false);
    const wf_array up = run_in_of(r, wide, round, result, WF_ROW_MAJOR, 1, 3);
    const wf_array dx = run_out(r, t->shape, order, false);
    const wf_array weight = run_in_of(r, wide, round, WF_SHAPE(whole), WF_ROW_MAJOR, 0, 2);
    wf_entropy_args args = {.x = &x,
                            .labels = &labels,
                            .ignored = t->ignored,
                            .scale = 1.0 / (1 + (double)wf_shape_count(t->shape)),
                            .weight = t->weighted ? &weight : NULL,
                            .smoothing = t->smoothing,
                            .log_sum = &sums,
                            .most = &most,
                            .first = BEFORE,
                            .whole = whole};
    run_call(r, r->k->entropy_forward(r->ctx, &args));
    args.log_sum = &given;
    args.most = &high;
    args.loss = &loss;
    run_call(r, r->k->entropy_forward(r->ctx, &args));
    args.loss = NULL;
    args.dloss = &up;
    args.dx = &dx;
    run_call(r, r->k->entropy_backward(r->ctx, &args));
    run_result(r, &sums, statistic_weight(r));
    run_result(r, &most, statistic_weight(r));
    run_result(r, &loss, statistic_weight(r));
    run_result(r, &dx, 2);
}

static void entropy(void)
{
    static const wf_dtype types[] = {WF_U8, WF_I32, WF_I64};
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 12; k++) {
            const row_case t = {.shape = list[i],
                                .labels = types[k % 3],
                                .ignored = k / 3 % 2 ? 1 : WF_NONE_IGNORED,
                                .spread = k < 6 ? 2 : 500,
                                .weighted = (k + i) % 4 > 1,
                                .smoothing = (k + i) % 2 ? 0 : 0.125,
                                .each = k % 5 == 2};
            contract_check("entropy", entropy_body, &t, contract_seed());
            if (k % 4 == i % 4)
                contract_check("entropy of a part", entropy_part_body, &t, contract_seed());
        }
}

/* Rows with NaN and infinities, one of them ignored, or all. */
static void entropy_specials_body(run *r)
{
    enum { ROWS = 6 };
    static const double first[ROWS] = {NAN, INFINITY, -INFINITY, 0, NAN, 1}, others[ROWS] = {0, 0, -INFINITY, 0, 0, 2};
    const row_case *const t = r->args;
    const int64_t c = t->shape.dim[1];
    const wf_dtype wide = run_wide(r), round = run_wide_round(r);
    double *const v = malloc((size_t)(ROWS * c) * sizeof *v), label[ROWS];
    row_note(r, t);
    for (int64_t i = 0; i < ROWS * c; i++)
        v[i] = i % c == 0 ? first[i / c] : others[i / c];
    v[3 * c + 1] = -INFINITY; /* at its label */
    for (int i = 0; i < ROWS; i++)
        label[i] = i == 4 || t->ignored == 1 ? 0 : 1;
    const wf_array x = run_array(r, r->dtype, t->shape, WF_ROW_MAJOR, v);
    const wf_array labels = run_array(r, WF_I32, WF_SHAPE(ROWS), WF_ROW_MAJOR, label);
    const wf_array log_sum = run_out_of(r, wide, round, WF_SHAPE(ROWS), WF_ROW_MAJOR, false);
    const wf_array loss = run_out_of(r, wide, round, wf_shape_scalar(), WF_ROW_MAJOR, false);
    const wf_array up = run_in_of(r, wide, round, wf_shape_scalar(), WF_ROW_MAJOR, 1, 3);
    const wf_array dx = run_out(r, t->shape, WF_ROW_MAJOR, false);
    const wf_entropy_args args = {.x = &x,
                                  .labels = &labels,
                                  .ignored = 0,
                                  .scale = 0.5,
                                  .log_sum = &log_sum,
                                  .loss = &loss,
                                  .dloss = &up,
                                  .dx = &dx};
    free(v);
    run_call(r, r->k->entropy_forward(r->ctx, &args));
    run_call(r, r->k->entropy_backward(r->ctx, &args));
    run_result(r, &log_sum, statistic_weight(r));
    run_result(r, &loss, statistic_weight(r));
    run_result(r, &dx, 2);
}

static void entropy_specials(void)
{
    static const int64_t classes[] = {2, 3, 64, 65, 200};
    for (int i = 0; i < 10; i++) {
        const row_case t = {.shape = WF_SHAPE(6, classes[i / 2]), .ignored = i % 2};
        contract_check("entropy of NaN and infinities", entropy_specials_body, &t, contract_seed());
    }
}

static void bad_label(wf_ctx *ctx, wf_dtype dtype, double bad, bool fused)
{
    run r = {.ctx = ctx, .k = ctx->k, .dtype = WF_F32, .round = WF_F32, .rng = {1}};
    const double v[3] = {0, 1, bad};
    const wf_array logp = run_in(&r, WF_SHAPE(3, 4), WF_ROW_MAJOR, -1, 0);
    const wf_array labels = run_array(&r, dtype, WF_SHAPE(3), WF_ROW_MAJOR, v);
    const wf_array out = run_out(&r, wf_shape_scalar(), WF_ROW_MAJOR, false);
    float loss;
    const wf_array sums = run_out(&r, WF_SHAPE(3), WF_ROW_MAJOR, false);
    const wf_entropy_args args = {
        .x = &logp, .labels = &labels, .ignored = 1, .scale = 1, .log_sum = &sums, .loss = &out};
    wf_status status = fused ? r.k->entropy_forward(ctx, &args) : r.k->nll_forward(ctx, &logp, &labels, 1, 1, &out);
    if (status == WF_OK && !r.k->host)
        status = r.k->to_host(ctx, &loss, out.data, sizeof loss);
    WF_EXPECT(status == WF_ERR_ARGUMENT, "%s took label %g", r.k->name, bad);
    char want[64];
    snprintf(want, sizeof want, "%d", (int)bad);
    const char *const text = wf_error_message();
    WF_EXPECT(strstr(text, want) && strchr(text, '2') && strchr(text, '4'), "label, row and C are not in: %s", text);
    wf_error_clear();
    run_free(&r);
}

static void labels_out_of_range(void)
{
    wf_ctx *const both[2] = {contract_ref(), contract_device()};
    for (int i = 0; i < 4; i++) {
        bad_label(both[i / 2], WF_I64, 19, i % 2);
        bad_label(both[i / 2], WF_I32, -7, i % 2);
        bad_label(both[i / 2], WF_U8, 200, i % 2);
    }
}

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"norm", norm},
                                       {"norm_finish", norm_finish},
                                       {"norm_merge", norm_merge},
                                       {"joined", joined_both},
                                       {"softmax", softmax},
                                       {"loss", loss},
                                       {"nll", nll},
                                       {"label_places", label_places},
                                       {"entropy", entropy},
                                       {"entropy_specials", entropy_specials},
                                       {"labels_out_of_range", labels_out_of_range},
                                       {0}});
}
