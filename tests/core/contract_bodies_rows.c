/* Normalisation and softmax of one shape. */
#include "tests/core/contract_bodies.h"

#include <math.h>
#include <stdio.h>

static void norm_note(run *r, const norm_case *t)
{
    char text[WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note,
             "%s gamma %d beta %d wide %d epilogue %d act %d noise %g residual %d in place %d over %d of x %d batch %d",
             wf_shape_text(t->shape, text), t->gamma, t->beta, t->wide, t->epilogue, (int)t->act, t->noise, t->residual,
             t->in_place, t->over, t->of_x, t->batch);
}

wf_array statistic(run *r, int64_t c, double lo, double hi)
{
    return run_in_of(r, run_wide(r), run_wide_round(r), WF_SHAPE(c), WF_ROW_MAJOR, lo, hi);
}

static wf_array factor(run *r, const norm_case *t, double lo, double hi)
{
    const int64_t c = t->shape.dim[1];
    return t->wide ? statistic(r, c, lo, hi) : run_in(r, WF_SHAPE(c), WF_ROW_MAJOR, lo, hi);
}

wf_array statistic_out(run *r, int64_t c, bool keep)
{
    return run_out_of(r, run_wide(r), run_wide_round(r), WF_SHAPE(c), WF_ROW_MAJOR, keep);
}

/* Statistics are not rounded to a narrow type: their tolerance is that of f32 unless the inputs' sums are large. */
double statistic_weight(const run *r)
{
    return r->dtype == WF_BF16 ? 0.01 : r->dtype == WF_F16 ? 0.05 : 2;
}

void norm_stats_body(run *r)
{
    const norm_case *const t = r->args;
    norm_note(r, t);
    const wf_array x = run_in(r, t->shape, run_order(t->shape), t->offset - 1, t->offset + 1);
    const wf_array mean = statistic_out(r, t->shape.dim[1], false), m2 = statistic_out(r, t->shape.dim[1], false);
    run_call(r, r->k->norm_stats(r->ctx, &(wf_norm_args){.x = &x, .mean = &mean, .m2 = &m2}));
    run_result(r, &mean, statistic_weight(r));
    run_result(r, &m2, statistic_weight(r));
    /* Once more with what follows, which is norm_finish of these statistics. */
    const wf_array invstd = statistic_out(r, t->shape.dim[1], false), again = statistic_out(r, t->shape.dim[1], false);
    const wf_array rm = statistic_out(r, t->shape.dim[1], true), rv = statistic_out(r, t->shape.dim[1], true);
    wf_norm_args args = {.x = &x, .mean = &mean, .m2 = &again, .invstd = &invstd, .eps = 1e-5, .decay = 0.9};
    args.count.value = t->shape.dim[1] > 0 ? (double)(wf_shape_count(t->shape) / t->shape.dim[1]) : 0;
    args.running_mean = t->batch ? &rm : NULL;
    args.running_var = t->batch ? &rv : NULL;
    run_call(r, r->k->norm_stats(r->ctx, &args));
    run_result(r, &again, statistic_weight(r));
    run_result(r, &invstd, statistic_weight(r));
    run_result(r, &rm, statistic_weight(r));
    run_result(r, &rv, statistic_weight(r));
}

void norm_forward_body(run *r)
{
    const norm_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const int64_t c = t->shape.dim[1];
    norm_note(r, t);
    const wf_array mean = statistic(r, c, -1, 1), invstd = statistic(r, c, 0.5, 2);
    const wf_array gamma = factor(r, t, -2, 2), beta = factor(r, t, -1, 1);
    const wf_epilogue e = {.act = t->act, .slope = 0.2, .noise = t->noise, .random = run_random(r, t->shape)};
    const wf_array residual = run_in(r, t->shape, order, -1, 1);
    const wf_array y = run_out(r, t->shape, order, false), x = run_in(r, t->shape, order, -1, 1);
    if (t->in_place)
        run_mutable(r);
    const wf_norm_args args = {.x = &x,
                               .residual = t->residual ? &residual : NULL,
                               .mean = &mean,
                               .invstd = &invstd,
                               .gamma = t->gamma ? &gamma : NULL,
                               .beta = t->beta ? &beta : NULL,
                               .epilogue = t->epilogue ? &e : NULL,
                               .y = t->in_place ? &x : &y};
    run_call(r, r->k->norm_forward(r->ctx, &args));
    run_result(r, t->in_place ? &x : &y, 2);
}

/* A count that the device alone knows. */
wf_count count_in_memory(run *r, double count)
{
    const wf_array a = run_array(r, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR, &count);
    return (wf_count){.value = NAN, .device = a.data};
}

void norm_backward_body(run *r)
{
    const norm_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    const int64_t c = t->shape.dim[1];
    norm_note(r, t);
    r->grid = 0.125;
    const wf_array x = run_in(r, t->shape, order, -1, 1), y = run_in(r, t->shape, order, -1, 1);
    const wf_array dy = run_in(r, t->shape, order, -1, 1), gamma = factor(r, t, -2, 2);
    const wf_array mean = statistic(r, c, -1, 1), invstd = statistic(r, c, 0.5, 2);
    const wf_array sg = statistic_out(r, c, false), sgx = statistic_out(r, c, false);
    const wf_array given_sg = statistic(r, c, -2, 2), given_sgx = statistic(r, c, -2, 2);
    const wf_array made = run_out(r, t->shape, order, false), beta = factor(r, t, -1, 1);
    const wf_array dx = run_out(r, t->shape, order, false), g = run_out(r, t->shape, order, false);
    const wf_array over_g = run_in(r, t->shape, order, -1, 1);
    run_mutable(r);
    const wf_array over_dx = run_in(r, t->shape, order, -1, 1);
    run_mutable(r);
    const wf_array *const kept = t->over ? &over_g : &g;
    const wf_epilogue e = {.act = t->act, .slope = 0.2};
    wf_norm_args args = {.x = &x,
                         .mean = &mean,
                         .invstd = &invstd,
                         .epilogue = t->epilogue ? &e : NULL,
                         .gamma = t->gamma ? &gamma : NULL,
                         .beta = t->beta ? &beta : NULL,
                         .y = t->epilogue ? &y : NULL,
                         .dy = t->over && t->residual ? kept : &dy,
                         .g = t->residual ? kept : NULL,
                         .sum_g = &sg,
                         .sum_gx = &sgx};
    if (t->of_x && t->epilogue) {
        args.y_of_x = true;
        args.y = &made;
        run_call(r, r->k->norm_forward(r->ctx, &args));
    }
    run_call(r, r->k->norm_backward_stats(r->ctx, &args));
    args.g = NULL;
    args.sum_g = &given_sg;
    args.sum_gx = &given_sgx;
    args.dy = &dy;
    args.dx = &dx;
    args.count.value = t->batch ? 23 : 0;
    run_call(r, r->k->norm_backward(r->ctx, &args));
    run_result(r, &dx, 2);
    args.count = count_in_memory(r, t->batch ? 23 : 0);
    if (t->over)
        args.dy = args.dx = &over_dx;
    run_call(r, r->k->norm_backward(r->ctx, &args));
    run_result(r, &sg, statistic_weight(r));
    run_result(r, &sgx, statistic_weight(r));
    run_result(r, args.dx, 2);
    if (t->residual)
        run_result(r, kept, 1);
}

void row_note(run *r, const row_case *t)
{
    char text[WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note,
             "%s log %d target %d spread %g kind %d labels %s weighted %d each %d smoothing %g",
             wf_shape_text(t->shape, text), t->logarithm, t->target, t->spread, (int)t->kind, wf_dtype_name(t->labels),
             t->weighted, t->each, t->smoothing);
}

void softmax_body(run *r)
{
    const row_case *const t = r->args;
    const wf_order order = run_order(t->shape);
    row_note(r, t);
    const wf_array x = run_in(r, t->shape, order, -t->spread, t->spread), y = run_out(r, t->shape, order, false);
    const wf_array made = run_in(r, t->shape, order, t->logarithm ? -2 : 0, t->logarithm ? 0 : 0.5);
    const wf_array dy = run_in(r, t->shape, order, -1, 1), dx = run_out(r, t->shape, order, false);
    run_call(r, r->k->softmax_forward(r->ctx, t->logarithm, &x, &y));
    run_call(r, r->k->softmax_backward(r->ctx, t->logarithm, &made, &dy, &dx));
    run_result(r, &y, 1);
    run_result(r, &dx, 2);
}
