/* Matrix products: f32 by oneDNN's sgemm, or by a cached primitive where that is faster; bf16 by a primitive where the
 * processor multiplies it; all else through f32. Which form is taken depends on the shapes, the number of threads and
 * what the caller says of b, never on calls before: equal inputs give equal bits. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/dnn_impl.h"

#include <omp.h>
#include <string.h>

typedef struct product {
    int64_t m, n, k;
} product;

/* Every row of c becomes the bias, or has it added. */
static void rows_start(const wf_ctx *ctx, product p, const float *bias, float *c, bool accumulate)
{
#pragma omp parallel for num_threads(wf_cpu_team(ctx, p.m *p.n)) schedule(static)
    for (int64_t i = 0; i < p.m; i++) {
        float *const row = c + i * p.n;
        for (int64_t j = 0; j < p.n; j++)
            row[j] = accumulate ? row[j] + bias[j] : bias[j];
    }
}

static wf_status product_f32(wf_ctx *ctx, product p, const wf_matmul_args *args)
{
    const wf_array *const bias = args->bias, *const c = args->c;
    const bool add = wf_cpu_data(bias) || args->accumulate;
    if (wf_cpu_data(bias))
        rows_start(ctx, p, bias->data, c->data, args->accumulate);
    const int before = omp_get_max_threads(); /* the program's own, which stays */
    omp_set_num_threads(ctx->threads);
    const dnnl_status_t status = dnnl_sgemm(args->a_transposed ? 'T' : 'N', args->b_transposed ? 'T' : 'N', p.m, p.n,
                                            p.k, 1.0F, args->a->data, args->a_transposed ? p.m : p.k, args->b->data,
                                            args->b_transposed ? p.k : p.n, add ? 1.0F : 0.0F, c->data, p.n);
    omp_set_num_threads(before);
    TRY_DNN(status);
    return WF_OK;
}

/* A packed copy of b pays where it serves several products: measured at K and N of 320 to 4,096, on one thread and on
 * two, with oneDNN 2.6 and 3.2, it multiplies 1.1 to 3 times as fast from 4 rows to 256 in f32, and no faster above.
 * Packing takes as long as the product of 20 to 60 rows, so it does not pay for a single one. Where b has no place for
 * a copy (a value in the flat buffer of a sharded optimizer) it is packed for each call: the bits are to be the same.
 */
static bool packs(product p, const wf_matmul_args *args)
{
    enum { ROWS_LEAST = 4, ROWS_MOST = 256, SIDE_LEAST = 64, COUNT_MOST = 1 << 24 };
    return args->b_reused && !args->a_transposed && p.m >= ROWS_LEAST && p.m <= ROWS_MOST && p.n >= SIDE_LEAST &&
           p.k >= SIDE_LEAST && p.k * p.n <= COUNT_MOST;
}

/* sgemm transposes b slowly, the matmul primitive does not: 1.1 to 2 times as fast from 16 rows to 512 on two threads,
 * 1.1 to 1.3 times on one where b is large. Other forms are faster by sgemm. */
static bool transposes_slowly(const wf_ctx *ctx, product p, const wf_matmul_args *args)
{
    enum { ROWS_LEAST = 16, ROWS_MOST = 512, COUNT_LEAST = 1 << 20 };
    return args->b_transposed && !args->a_transposed && p.m >= ROWS_LEAST && p.m <= ROWS_MOST &&
           (ctx->threads > 1 || p.k * p.n >= COUNT_LEAST);
}

static wf_status product_find(wf_ctx *ctx, product p, const wf_matmul_args *args, const wf_dnn_op **op)
{
    wf_dnn_key key;
    memset(&key, 0, sizeof key);
    key.kind = WF_DNN_MATMUL;
    key.dtype = args->a->dtype;
    key.threads = ctx->threads;
    key.flags = (args->a_transposed ? WF_DNN_A_TRANSPOSED : 0) | (args->b_transposed ? WF_DNN_B_TRANSPOSED : 0) |
                (wf_cpu_data(args->bias) ? WF_DNN_BIAS : 0) | (args->accumulate ? WF_DNN_ACCUMULATE : 0) |
                (args->c->dtype != args->a->dtype ? WF_DNN_WIDE : 0) | (packs(p, args) ? WF_DNN_PACKED : 0);
    key.n = p.m;
    key.c = p.k;
    key.f = p.n;
    return wf_dnn_find(ctx, &key, op);
}

static wf_status product_dnn(wf_ctx *ctx, const wf_matmul_args *args, const wf_dnn_op *op)
{
    wf_filter_form form = {.data = args->b->data};
    WF_TRY(wf_dnn_form_take(ctx, op, args->b, &form));
    void *const data[WF_DNN_ROLES] = {[WF_DNN_X] = args->a->data,
                                      [WF_DNN_W] = form.data,
                                      [WF_DNN_B] = wf_cpu_data(args->bias),
                                      [WF_DNN_Y] = args->c->data};
    const wf_status status = wf_dnn_run(ctx, op, data);
    wf_filter_form_give(ctx, &form);
    return status;
}

wf_status wf_cpu_matmul(wf_ctx *ctx, const wf_matmul_args *args)
{
    const wf_array *const a = args->a, *const b = args->b, *const c = args->c;
    const product p = {c->shape.dim[0], c->shape.dim[1], a->shape.dim[args->a_transposed ? 0 : 1]};
    const bool any = p.m > 0 && p.n > 0 && p.k > 0, same = a->dtype == b->dtype && wf_cpu_is(args->bias, a->dtype);
    const bool f32 = any && same && a->dtype == WF_F32 && c->dtype == WF_F32;
    const bool bf16 =
        any && same && a->dtype == WF_BF16 && (c->dtype == WF_BF16 || c->dtype == WF_F32) && wf_dnn_takes_bf16();
    const wf_dnn_op *op = NULL;
    if (bf16 || (f32 && (packs(p, args) || transposes_slowly(ctx, p, args))))
        WF_TRY(product_find(ctx, p, args, &op));
    if (op)
        return product_dnn(ctx, args, op);
    return f32 ? product_f32(ctx, p, args) : wf_wide_matmul(ctx, args);
}
