/* Calls of the slots that normalise groups: contract_bodies.h. */
#include "tests/core/contract_bodies.h"

#include <math.h>
#include <stdio.h>

static int64_t groups_of(const group_case *t)
{
    return (t->first + t->channels + t->size - 1) / t->size;
}

bool is_whole_groups(const group_case *t)
{
    return t->first == 0 && t->channels % t->size == 0;
}

static wf_group_norm_args args_of(run *r, const group_case *t)
{
    snprintf(r->note, sizeof r->note,
             "rows %lld places %lld channels %lld size %lld first %lld gamma %d beta %d wide %d about zero %d given %d "
             "over %d offset %g",
             (long long)t->rows, (long long)t->places, (long long)t->channels, (long long)t->size, (long long)t->first,
             t->gamma, t->beta, t->wide, t->about_zero, t->given, t->over, t->offset);
    return (wf_group_norm_args){.rows = t->rows,
                                .places = t->places,
                                .channels = t->channels,
                                .groups = groups_of(t),
                                .size = t->size,
                                .first = t->first,
                                .count = (double)(t->places * t->size) * (t->given ? 3 : 1),
                                .eps = 1e-3,
                                .about_zero = t->about_zero};
}

static wf_shape block_of(const group_case *t)
{
    return WF_SHAPE(t->rows, t->places * t->channels);
}

static wf_array factor(run *r, const group_case *t, double lo, double hi)
{
    return t->wide ? statistic(r, t->channels, lo, hi) : run_in(r, WF_SHAPE(t->channels), WF_ROW_MAJOR, lo, hi);
}

/* f64 arrays of numbers that fit the type under test. */
static wf_array doubles(run *r, wf_shape shape, double lo, double hi)
{
    return run_in_of(r, WF_F64, run_wide_round(r), shape, WF_ROW_MAJOR, lo, hi);
}

static wf_array doubles_out(run *r, wf_shape shape)
{
    return run_out_of(r, WF_F64, WF_F64, shape, WF_ROW_MAJOR, false);
}

void group_stats_body(run *r)
{
    const group_case *const t = r->args;
    wf_group_norm_args args = args_of(r, t);
    const wf_array x = run_in(r, block_of(t), WF_ROW_MAJOR, t->offset - 1, t->offset + 1);
    const wf_array sums = doubles_out(r, WF_SHAPE(3, t->rows * args.groups));
    args.x = &x;
    args.sums = &sums;
    run_call(r, r->k->group_norm_stats(r->ctx, &args));
    run_result(r, &sums, statistic_weight(r));
}

void group_forward_body(run *r)
{
    const group_case *const t = r->args;
    wf_group_norm_args args = args_of(r, t);
    const int64_t k = t->rows * args.groups;
    const wf_array sums = doubles(r, WF_SHAPE(2, k), 0.5, 1);
    const wf_array x = run_in(r, block_of(t), WF_ROW_MAJOR, t->offset - 1, t->offset + 1);
    const wf_array gamma = factor(r, t, -2, 2), beta = factor(r, t, -1, 1);
    const wf_array y = run_out(r, block_of(t), WF_ROW_MAJOR, false);
    const wf_array stats = run_out_of(r, run_wide(r), run_wide_round(r), WF_SHAPE(2, k), WF_ROW_MAJOR, false);
    args.x = &x;
    args.y = &y;
    args.gamma = t->gamma ? &gamma : NULL;
    args.beta = t->beta ? &beta : NULL;
    args.sums = t->given ? &sums : NULL;
    args.count = t->given ? 2 : args.count;
    args.stats = &stats;
    run_call(r, r->k->group_norm_forward(r->ctx, &args));
    run_result(r, &y, 4);
    run_result(r, &stats, statistic_weight(r));
}

void group_backward_body(run *r)
{
    const group_case *const t = r->args;
    wf_group_norm_args args = args_of(r, t);
    const int64_t k = t->rows * args.groups;
    const wf_array x = run_in(r, block_of(t), WF_ROW_MAJOR, -1, 1), dy = run_in(r, block_of(t), WF_ROW_MAJOR, -1, 1);
    const wf_array gamma = factor(r, t, -2, 2);
    const wf_array stats = run_in_of(r, run_wide(r), run_wide_round(r), WF_SHAPE(2, k), WF_ROW_MAJOR, 0.5, 2);
    const wf_array given = doubles(r, WF_SHAPE(2, k), -2 * sqrt(args.count), 2 * sqrt(args.count));
    const wf_array sums = doubles_out(r, WF_SHAPE(2, k)), dx = run_out(r, block_of(t), WF_ROW_MAJOR, false);
    const wf_array dgamma = statistic_out(r, t->channels, false), dbeta = statistic_out(r, t->channels, false);
    const wf_array again_dgamma = statistic_out(r, t->channels, false);
    const wf_array again_dbeta = statistic_out(r, t->channels, false);
    const wf_array over = run_in(r, block_of(t), WF_ROW_MAJOR, -1, 1);
    run_mutable(r);
    args.x = &x;
    args.dy = &dy;
    args.gamma = t->gamma ? &gamma : NULL;
    args.stats = &stats;
    args.sums = &sums;
    args.dgamma = t->gamma ? &dgamma : NULL;
    args.dbeta = t->beta ? &dbeta : NULL;
    run_call(r, r->k->group_norm_backward_stats(r->ctx, &args));
    run_result(r, &sums, statistic_weight(r));
    if (args.dgamma)
        run_result(r, &dgamma, statistic_weight(r));
    if (args.dbeta)
        run_result(r, &dbeta, statistic_weight(r));
    if (t->over)
        args.dy = &over;
    args.dx = t->over ? &over : &dx;
    args.sums = t->given ? &given : NULL;
    args.dgamma = t->gamma && !t->given ? &again_dgamma : NULL;
    args.dbeta = t->beta && !t->given ? &again_dbeta : NULL;
    run_call(r, r->k->group_norm_backward(r->ctx, &args));
    run_result(r, args.dx, 4);
    if (args.dgamma)
        run_result(r, &again_dgamma, statistic_weight(r));
    if (args.dbeta)
        run_result(r, &again_dbeta, statistic_weight(r));
}
