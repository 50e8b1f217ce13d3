/* Matrix products in plain loops, summed in double: the oracle. */
#include "core/ref/ref_impl.h"

#include <string.h>

/* [rows, columns] into [columns, rows]. */
static const double *transposed(wf_ref_frame *frame, const double *v, int64_t rows, int64_t columns)
{
    double *const t = wf_ref_work(frame, rows * columns);
    if (t)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                t[j * rows + i] = v[i * columns + j];
    return t;
}

wf_status wf_ref_matmul(wf_ctx *ctx, const wf_matmul_args *args)
{
    const wf_array *const c = args->c;
    const bool accumulate = args->accumulate;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t m = c->shape.dim[0], n = c->shape.dim[1], depth = args->a->shape.dim[args->a_transposed ? 0 : 1];
    const double *av = wf_ref_in(&frame, args->a), *bv = wf_ref_in(&frame, args->b);
    const double *const biasv = wf_ref_in(&frame, args->bias);
    double *const cv = wf_ref_out(&frame, c, accumulate), *const sum = wf_ref_work(&frame, n);
    if (frame.status == WF_OK && args->a_transposed)
        av = transposed(&frame, av, depth, m);
    if (frame.status == WF_OK && args->b_transposed)
        bv = transposed(&frame, bv, n, depth);
    if (frame.status != WF_OK || n == 0)
        return wf_ref_end(&frame);
    for (int64_t i = 0; i < m; i++) {
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += av[i * depth + k] * bv[k * n + j];
        for (int64_t j = 0; j < n; j++)
            cv[i * n + j] = (accumulate ? cv[i * n + j] : 0) + sum[j] + (biasv ? biasv[j] : 0);
    }
    return wf_ref_end(&frame);
}
