/* Matrix products: f32 by oneDNN's sgemm, bf16 by a cached primitive where the processor multiplies it, all else
 * through f32. */
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

static wf_status product_find(wf_ctx *ctx, product p, const wf_matmul_args *args, const wf_dnn_op **op)
{
    wf_dnn_key key;
    memset(&key, 0, sizeof key);
    key.kind = WF_DNN_MATMUL;
    key.dtype = WF_BF16;
    key.threads = ctx->threads;
    key.flags = (args->a_transposed ? WF_DNN_A_TRANSPOSED : 0) | (args->b_transposed ? WF_DNN_B_TRANSPOSED : 0) |
                (wf_cpu_data(args->bias) ? WF_DNN_BIAS : 0) | (args->accumulate ? WF_DNN_ACCUMULATE : 0) |
                (args->c->dtype == WF_F32 ? WF_DNN_WIDE : 0);
    key.n = p.m;
    key.c = p.k;
    key.f = p.n;
    return wf_dnn_find(ctx, &key, op);
}

wf_status wf_cpu_matmul(wf_ctx *ctx, const wf_matmul_args *args)
{
    const wf_array *const a = args->a, *const b = args->b, *const bias = args->bias, *const c = args->c;
    const product p = {c->shape.dim[0], c->shape.dim[1], a->shape.dim[args->a_transposed ? 0 : 1]};
    const bool any = p.m > 0 && p.n > 0 && p.k > 0, same = a->dtype == b->dtype && wf_cpu_is(bias, a->dtype);
    if (any && same && a->dtype == WF_F32 && c->dtype == WF_F32)
        return product_f32(ctx, p, args);
    const wf_dnn_op *op = NULL;
    if (any && same && a->dtype == WF_BF16 && (c->dtype == WF_BF16 || c->dtype == WF_F32) && wf_dnn_takes_bf16())
        WF_TRY(product_find(ctx, p, args, &op));
    if (!op)
        return wf_wide_matmul(ctx, args);
    void *const data[WF_DNN_ROLES] = {
        [WF_DNN_X] = a->data, [WF_DNN_W] = b->data, [WF_DNN_B] = wf_cpu_data(bias), [WF_DNN_Y] = c->data};
    return wf_dnn_run(ctx, op, data);
}
