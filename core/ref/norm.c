/* Statistics and normalisation in plain loops: the oracle. Variance comes from squared deviations, never from a
 * difference of two large sums. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

wf_status wf_ref_norm_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    int64_t rows, channels;
    wf_ref_rows(args->x, &rows, &channels);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x);
    double *const average = wf_ref_out(&frame, args->mean, false), *const squares = wf_ref_out(&frame, args->m2, false);
    if (frame.status != WF_OK || channels == 0)
        return wf_ref_end(&frame);
    memset(average, 0, (size_t)channels * sizeof *average);
    memset(squares, 0, (size_t)channels * sizeof *squares);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++)
            average[c] += xv[r * channels + c];
    for (int64_t c = 0; c < channels && rows > 0; c++)
        average[c] /= (double)rows;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++) {
            const double d = xv[r * channels + c] - average[c];
            squares[c] += d * d;
        }
    WF_TRY(wf_ref_end(&frame));
    return args->invstd ? wf_ref_norm_finish(ctx, args) : WF_OK;
}

wf_status wf_ref_norm_forward(wf_ctx *ctx, const wf_norm_args *args)
{
    int64_t rows, channels;
    wf_ref_rows(args->x, &rows, &channels);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const mv = wf_ref_in(&frame, args->mean),
                        *const iv = wf_ref_in(&frame, args->invstd);
    const double *const gv = wf_ref_in(&frame, args->gamma), *const bv = wf_ref_in(&frame, args->beta);
    const double *const rv = wf_ref_in(&frame, args->residual);
    double *const yv = wf_ref_out(&frame, args->y, false);
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++) {
            const double xhat = (xv[r * channels + c] - mv[c]) * iv[c];
            yv[r * channels + c] = (gv ? xhat * gv[c] : xhat) + (bv ? bv[c] : 0) + (rv ? rv[r * channels + c] : 0);
        }
    wf_ref_epilogue(&frame, args->epilogue, args->y->order, rows * channels, yv);
    return wf_ref_end(&frame);
}

/* dy through the epilogue backwards, if there is one. */
static const double *gradient(wf_ref_frame *frame, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy)
{
    const double *const dyv = wf_ref_in(frame, dy), *const yv = epilogue ? wf_ref_in(frame, y) : NULL;
    if (!yv)
        return dyv;
    const int64_t n = wf_array_count(dy);
    double *const g = wf_ref_work(frame, n);
    if (g)
        for (int64_t i = 0; i < n; i++)
            g[i] = dyv[i] * wf_ref_epilogue_slope(epilogue, yv[i]);
    return g;
}

wf_status wf_ref_norm_backward_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    int64_t rows, channels;
    wf_ref_rows(args->x, &rows, &channels);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const mv = wf_ref_in(&frame, args->mean),
                        *const iv = wf_ref_in(&frame, args->invstd);
    const double *const g = gradient(&frame, args->epilogue, args->y, args->dy);
    double *const sg = wf_ref_out(&frame, args->sum_g, false), *const sgx = wf_ref_out(&frame, args->sum_gx, false);
    double *const kept = wf_ref_out(&frame, args->g, false);
    if (frame.status != WF_OK || channels == 0)
        return wf_ref_end(&frame);
    for (int64_t i = 0; kept && i < rows * channels; i++)
        kept[i] = g[i];
    memset(sg, 0, (size_t)channels * sizeof *sg);
    memset(sgx, 0, (size_t)channels * sizeof *sgx);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++) {
            sg[c] += g[r * channels + c];
            sgx[c] += g[r * channels + c] * (xv[r * channels + c] - mv[c]) * iv[c];
        }
    return wf_ref_end(&frame);
}

wf_status wf_ref_norm_backward(wf_ctx *ctx, const wf_norm_args *args)
{
    const double count = wf_ref_count(args->count);
    int64_t rows, channels;
    wf_ref_rows(args->dy, &rows, &channels);
    const bool batch = count > 0;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = batch ? wf_ref_in(&frame, args->x) : NULL;
    /* Reads nothing that the caller need not give. */
    const double *const mv = batch ? wf_ref_in(&frame, args->mean) : NULL;
    const double *const iv = wf_ref_in(&frame, args->invstd), *const gv = wf_ref_in(&frame, args->gamma);
    const double *const sg = batch ? wf_ref_in(&frame, args->sum_g) : NULL;
    const double *const sgx = batch ? wf_ref_in(&frame, args->sum_gx) : NULL;
    const double *const g = gradient(&frame, args->epilogue, args->y, args->dy);
    double *const out = wf_ref_out(&frame, args->dx, false);
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++) {
            const int64_t i = r * channels + c;
            /* The batch's mean and variance depend on every x: their share of the gradient is taken off. With running
             * statistics they are constants. */
            const double back = batch ? sg[c] / count + (xv[i] - mv[c]) * iv[c] * sgx[c] / count : 0;
            out[i] = (gv ? gv[c] : 1) * iv[c] * (g[i] - back);
        }
    return wf_ref_end(&frame);
}

wf_status wf_ref_norm_part(wf_ctx *ctx, const wf_norm_head *head, const wf_array *mean, const wf_array *m2,
                           const wf_array *part)
{
    const int64_t channels = wf_array_count(mean);
    double *const out = part->data;
    /* Head, mean and m2 in one run of f64, so that they travel as one message. */
    memcpy(out, head->value, (size_t)head->n * sizeof *out);
    wf_ref_load(mean->dtype, mean->data, 1, channels, out + head->n);
    wf_ref_load(m2->dtype, m2->data, 1, channels, out + head->n + channels);
    return WF_OK;
}

/* The parts seen so far, of `total` elements, joined with the next one. */
static void join(const double *more, int64_t head, int64_t channels, double *total, double *mean, double *m2)
{
    const double *const its_mean = more + head, *const its_m2 = its_mean + channels;
    /* An empty part has no mean; it must not divide by the total, which may be 0 as well. */
    if (!(more[0] > 0))
        return;
    /* Chan, Golub and LeVeque 1979: mean and m2 of two parts joined without going back to the elements. */
    const double share = more[0] / (*total + more[0]), weight = *total * share;
    for (int64_t c = 0; c < channels; c++) {
        const double d = its_mean[c] - mean[c];
        mean[c] += d * share;
        m2[c] += its_m2[c] + d * d * weight;
    }
    *total += more[0];
}

wf_status wf_ref_norm_merge(wf_ctx *ctx, const wf_array *parts, const wf_array *mean, const wf_array *m2,
                            const wf_array *count)
{
    const int64_t channels = wf_array_count(mean), length = parts->shape.dim[1], head = length - 2 * channels;
    const double *const part = parts->data;
    double total = 0;
    wf_ref_frame frame = wf_ref_begin(ctx);
    double *const mv = wf_ref_out(&frame, mean, false), *const squares = wf_ref_out(&frame, m2, false);
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    for (int64_t c = 0; c < channels; c++)
        mv[c] = squares[c] = 0;
    for (int64_t p = 0; p < parts->shape.dim[0]; p++)
        join(part + p * length, head, channels, &total, mv, squares);
    memcpy(count->data, &total, sizeof total);
    return wf_ref_end(&frame);
}

wf_status wf_ref_norm_finish(wf_ctx *ctx, const wf_norm_args *args)
{
    const double count = wf_ref_count(args->count), eps = args->eps, decay = args->decay;
    const int64_t channels = wf_array_count(args->m2);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const mv = wf_ref_in(&frame, args->mean), *const squares = wf_ref_in(&frame, args->m2);
    double *const iv = wf_ref_out(&frame, args->invstd, false);
    double *const rm = wf_ref_out(&frame, args->running_mean, true), *const rv =
                                                                         wf_ref_out(&frame, args->running_var, true);
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    for (int64_t c = 0; c < channels; c++) {
        /* The biased variance normalises: it is that of the batch itself. */
        iv[c] = count > 0 ? 1 / sqrt(squares[c] / count + eps) : 0;
        if (rm && count > 0)
            rm[c] += (1 - decay) * (mv[c] - rm[c]);
        if (rv && count > 0)
            /* Running variance is the unbiased one, as in Chainer; a single element has none, so it is divided by 1. */
            rv[c] += (1 - decay) * (squares[c] / (count > 1 ? count - 1 : count) - rv[c]);
    }
    return wf_ref_end(&frame);
}
