/* The largest elements of rows, and rows by their numbers, in plain loops: the oracle. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* The first of several largest elements wins, and a NaN counts as largest. */
wf_status wf_ref_row_most(wf_ctx *ctx, const wf_array *x, const wf_array *y, const wf_array *index)
{
    const int64_t rows = x->shape.dim[0], n = x->shape.dim[1];
    int64_t *const place = index->data;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, x);
    double *const yv = wf_ref_out(&frame, y, false);
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        const double *const row = xv + r * n;
        int64_t best = 0;
        for (int64_t j = 1; j < n; j++)
            if (row[j] > row[best] || (isnan(row[j]) && !isnan(row[best])))
                best = j;
        place[r] = best;
        if (yv)
            yv[r] = row[best];
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_row_most_backward(wf_ctx *ctx, const wf_array *index, const wf_array *dy, const wf_array *dx)
{
    const int64_t rows = dx->shape.dim[0], n = dx->shape.dim[1], *const place = index->data;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const dyv = wf_ref_in(&frame, dy);
    double *const dxv = wf_ref_out(&frame, dx, false);
    if (frame.status == WF_OK && rows * n > 0)
        memset(dxv, 0, (size_t)(rows * n) * sizeof *dxv);
    /* Each row has one element that counts, so nothing is added here. */
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++)
        dxv[r * n + place[r]] = dyv[r];
    return wf_ref_end(&frame);
}

/* The row of the table that number i of the index names; -1: it has none. A rank may hold rows [first, ...) of the
 * whole table; numbers of other ranks' rows are valid and give zeros here. */
static wf_status find_row(const wf_take_args *a, int64_t i, int64_t *row)
{
    int64_t number;
    WF_TRY(wf_ref_integer("indices", a->index, i, &number));
    WF_CHECK(wf_is_ignored(number, a->ignored) || (number >= 0 && number < a->whole), WF_ERR_ARGUMENT,
             "index %lld in place %lld is outside [0, %lld)", (long long)number, (long long)i, (long long)a->whole);
    const int64_t here = number - a->first;
    *row = number != a->ignored && here >= 0 && here < a->table->shape.dim[0] ? here : -1;
    return WF_OK;
}

wf_status wf_ref_take_forward(wf_ctx *ctx, const wf_take_args *a)
{
    const int64_t n = wf_array_count(a->index), width = a->table->shape.dim[1];
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const table = wf_ref_in(&frame, a->table);
    double *const y = wf_ref_out(&frame, a->y, false);
    for (int64_t i = 0; i < n && frame.status == WF_OK; i++) {
        int64_t row = -1;
        frame.status = find_row(a, i, &row);
        for (int64_t j = 0; j < width && frame.status == WF_OK; j++)
            y[i * width + j] = row >= 0 ? table[row * width + j] : 0;
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_take_backward(wf_ctx *ctx, const wf_take_args *a)
{
    const int64_t n = wf_array_count(a->index), width = a->table->shape.dim[1];
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const y = wf_ref_in(&frame, a->y);
    double *const table = wf_ref_out(&frame, a->table, a->accumulate);
    /* Several numbers may name one row, so rows are added to, from 0 unless old gradients stay. */
    for (int64_t i = 0; i < wf_array_count(a->table) && frame.status == WF_OK && !a->accumulate; i++)
        table[i] = 0;
    for (int64_t i = 0; i < n && frame.status == WF_OK; i++) {
        int64_t row = -1;
        frame.status = find_row(a, i, &row);
        for (int64_t j = 0; j < width && frame.status == WF_OK && row >= 0; j++)
            table[row * width + j] += y[i * width + j];
    }
    return wf_ref_end(&frame);
}
