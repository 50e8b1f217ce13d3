/* Normalisation of groups in plain loops: the oracle. Variance comes from squared deviations from the mean. All sums
 * are in f64 and in the order of memory. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* The group of a channel: groups are counted from channel 0 of the whole, of which `first` is the one here. */
static int64_t column(const wf_group_norm_args *a, int64_t row, int64_t channel)
{
    return row * a->groups + (a->first + channel) / a->size;
}

/* Count, mean and squared deviations of the elements that are here, K of each. */
static void gather_group(const wf_group_norm_args *a, const double *x, double *count, double *mean, double *squares)
{
    const int64_t k = a->rows * a->groups, block = a->places * a->channels;
    memset(count, 0, (size_t)k * sizeof *count);
    memset(mean, 0, (size_t)k * sizeof *mean);
    memset(squares, 0, (size_t)k * sizeof *squares);
    /* count is a double, as the part that is sent is. */
    for (int64_t i = 0; i < a->rows * block; i++) {
        const int64_t g = column(a, i / block, i % a->channels);
        count[g]++;
        mean[g] += x[i];
    }
    for (int64_t g = 0; g < k; g++)
        mean[g] = a->about_zero || count[g] == 0 ? 0 : mean[g] / count[g];
    for (int64_t i = 0; i < a->rows * block; i++) {
        const int64_t g = column(a, i / block, i % a->channels);
        squares[g] += (x[i] - mean[g]) * (x[i] - mean[g]);
    }
}

wf_status wf_ref_group_norm_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    const int64_t k = args->rows * args->groups;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x);
    double *const sums = wf_ref_out(&frame, args->sums, false);
    if (frame.status == WF_OK && k > 0)
        gather_group(args, xv, sums, sums + k, sums + 2 * k);
    return wf_ref_end(&frame);
}

/* Reads and writes f64 arrays directly: no frame converts them. */
wf_status wf_ref_group_norm_merge(wf_ctx *ctx, const wf_array *parts, const wf_array *sums)
{
    const int64_t k = parts->shape.dim[2];
    const double *const part = parts->data;
    double *const mean = sums->data;
    for (int64_t g = 0; g < k; g++) {
        double total = 0, middle = 0, squares = 0;
        for (int64_t p = 0; p < parts->shape.dim[0]; p++) {
            const double *const from = part + 3 * p * k + g;
            /* An empty part has no mean; it must not divide by the total, which may be 0 as well. */
            if (!(from[0] > 0))
                continue;
            /* Chan, Golub and LeVeque 1979, as in norm_merge. */
            const double share = from[0] / (total + from[0]), weight = total * share, d = from[k] - middle;
            middle += d * share;
            squares += from[2 * k] + d * d * weight;
            total += from[0];
        }
        mean[g] = middle;
        mean[k + g] = squares;
    }
    return WF_OK;
}

wf_status wf_ref_group_norm_forward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    const int64_t k = args->rows * args->groups, block = args->places * args->channels;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const gv = wf_ref_in(&frame, args->gamma);
    const double *const bv = wf_ref_in(&frame, args->beta);
    const double *const given = args->sums ? wf_ref_in(&frame, args->sums) : NULL;
    double *const own = wf_ref_work(&frame, 3 * k);
    double *const yv = wf_ref_out(&frame, args->y, false), *const mean = wf_ref_out(&frame, args->stats, false);
    if (frame.status != WF_OK || k == 0)
        return wf_ref_end(&frame);
    if (!given)
        gather_group(args, xv, own, own + k, own + 2 * k);
    const double *const from = given ? given : own + k;
    for (int64_t g = 0; g < k; g++) {
        mean[g] = from[g];
        mean[k + g] = args->count > 0 ? 1 / sqrt(from[k + g] / args->count + args->eps) : 0;
    }
    for (int64_t i = 0; i < args->rows * block; i++) {
        const int64_t c = i % args->channels, g = column(args, i / block, c);
        const double xhat = (xv[i] - mean[g]) * mean[k + g];
        yv[i] = (gv ? xhat * gv[c] : xhat) + (bv ? bv[c] : 0);
    }
    return wf_ref_end(&frame);
}

/* Arrays that the loops of backward read and write. */
typedef struct operands {
    const double *x, *dy, *gamma, *mean, *invstd;
    double *sums;           /* [2,K]; NULL: not wanted */
    double *dgamma, *dbeta; /* NULL: not wanted */
} operands;

/* Each sum of backward in one walk. */
static void add_up(const wf_group_norm_args *a, const operands *o)
{
    const int64_t k = a->rows * a->groups, block = a->places * a->channels;
    if (o->sums)
        memset(o->sums, 0, (size_t)(2 * k) * sizeof *o->sums);
    if (o->dgamma)
        memset(o->dgamma, 0, (size_t)a->channels * sizeof *o->dgamma);
    if (o->dbeta)
        memset(o->dbeta, 0, (size_t)a->channels * sizeof *o->dbeta);
    for (int64_t i = 0; i < a->rows * block; i++) {
        const int64_t c = i % a->channels, g = column(a, i / block, c);
        const double xhat = (o->x[i] - o->mean[g]) * o->invstd[g], scaled = (o->gamma ? o->gamma[c] : 1) * o->dy[i];
        if (o->sums) {
            o->sums[g] += scaled;
            o->sums[k + g] += scaled * xhat;
        }
        if (o->dgamma)
            o->dgamma[c] += o->dy[i] * xhat;
        if (o->dbeta)
            o->dbeta[c] += o->dy[i];
    }
}

static operands operands_of(wf_ref_frame *frame, const wf_group_norm_args *args)
{
    operands o = {.x = wf_ref_in(frame, args->x), .dy = wf_ref_in(frame, args->dy)};
    o.gamma = wf_ref_in(frame, args->gamma);
    o.mean = wf_ref_in(frame, args->stats);
    o.invstd = o.mean ? o.mean + args->rows * args->groups : NULL;
    return o;
}

wf_status wf_ref_group_norm_backward_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    operands o = operands_of(&frame, args);
    o.sums = args->sums ? wf_ref_out(&frame, args->sums, false) : NULL;
    o.dgamma = wf_ref_out(&frame, args->dgamma, false);
    o.dbeta = wf_ref_out(&frame, args->dbeta, false);
    if (frame.status == WF_OK)
        add_up(args, &o);
    return wf_ref_end(&frame);
}

wf_status wf_ref_group_norm_backward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    const int64_t k = args->rows * args->groups, block = args->places * args->channels;
    wf_ref_frame frame = wf_ref_begin(ctx);
    operands o = operands_of(&frame, args);
    const double *const given = args->sums ? wf_ref_in(&frame, args->sums) : NULL;
    const double *sums = given;
    /* dx may be dy: the frame writes it back at the end, when dy was read. */
    double *const dx = wf_ref_out(&frame, args->dx, false);
    if (!given) {
        o.sums = wf_ref_work(&frame, 2 * k);
        o.dgamma = wf_ref_out(&frame, args->dgamma, false);
        o.dbeta = wf_ref_out(&frame, args->dbeta, false);
        sums = o.sums;
    }
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    if (!given)
        add_up(args, &o);
    for (int64_t i = 0; i < args->rows * block; i++) {
        const int64_t c = i % args->channels, g = column(args, i / block, c);
        const double xhat = (o.x[i] - o.mean[g]) * o.invstd[g];
        /* Mean and variance depend on every element of the group: their share of the gradient is taken off. */
        const double back = (args->about_zero ? 0 : sums[g]) + xhat * sums[k + g];
        dx[i] = o.invstd[g] * ((o.gamma ? o.gamma[c] : 1) * o.dy[i] - back / args->count);
    }
    return wf_ref_end(&frame);
}
