/* The largest elements of rows, in plain loops: the oracle. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

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
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++)
        dxv[r * n + place[r]] = dyv[r];
    return wf_ref_end(&frame);
}
