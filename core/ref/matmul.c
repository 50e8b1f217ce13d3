/* Matrix products in plain loops, summed in double: the oracle. */
#include "core/ref/ref_impl.h"

#include <string.h>

/* [rows, columns] into [columns, rows], so that the innermost loop below runs over neighbours. */
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
        /* The bias is added once, whatever c held before. */
        for (int64_t j = 0; j < n; j++)
            cv[i * n + j] = (accumulate ? cv[i * n + j] : 0) + sum[j] + (biasv ? biasv[j] : 0);
    }
    return wf_ref_end(&frame);
}

/* c += a b of one product; a and b are read with the strides of their transposes. */
static void add_product(const wf_matmul_stack_args *args, const double *a, const double *b, double *c)
{
    const wf_product_stack *const s = args->stack;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < s->k; k++)
                sum += a[args->a_transposed ? k * s->m + i : i * s->k + k] *
                       b[args->b_transposed ? j * s->k + k : k * s->n + j];
            c[i * s->n + j] += sum;
        }
}

wf_status wf_ref_matmul_stack(wf_ctx *ctx, const wf_matmul_stack_args *args)
{
    const wf_product_stack *const s = args->stack;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const a = wf_ref_in(&frame, args->a), *const b = wf_ref_in(&frame, args->b);
    double *const c = wf_ref_out(&frame, args->c, args->accumulate);
    const int64_t size = wf_array_count(args->c), count = wf_stack_count(s);
    if (frame.status != WF_OK || size == 0)
        return wf_ref_end(&frame);
    if (!args->accumulate)
        memset(c, 0, (size_t)size * sizeof *c);
    for (int64_t i = 0; i < count && s->k > 0; i++)
        add_product(args, a + wf_stack_matrix(s, WF_STACK_A, i) * s->m * s->k,
                    b + wf_stack_matrix(s, WF_STACK_B, i) * s->k * s->n,
                    c + wf_stack_matrix(s, WF_STACK_C, i) * s->m * s->n);
    return wf_ref_end(&frame);
}
