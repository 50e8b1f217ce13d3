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

/* Stacks of products. Each thread computes whole matrices of c where there are enough of them, else all threads compute
 * one product after another. */

typedef struct stack_ctx {
    const wf_matmul_stack_args *args;
    wf_product_stack results, sums;
    int64_t count, terms; /* matrices of c, and products that are summed into each */
} stack_ctx;

/* Matrix number i of c, by the calling thread's sgemm. */
static dnnl_status_t stack_result(const stack_ctx *s, int64_t i)
{
    const wf_matmul_stack_args *const args = s->args;
    const int64_t m = s->results.m, n = s->results.n, k = s->results.k;
    float *const c = (float *)args->c->data + wf_stack_matrix(&s->results, WF_STACK_C, i) * m * n;
    const float *const a = (const float *)args->a->data + wf_stack_matrix(&s->results, WF_STACK_A, i) * m * k;
    const float *const b = (const float *)args->b->data + wf_stack_matrix(&s->results, WF_STACK_B, i) * k * n;
    dnnl_status_t status = dnnl_success;
    for (int64_t term = 0; term < s->terms && status == dnnl_success; term++)
        status = dnnl_sgemm(args->a_transposed ? 'T' : 'N', args->b_transposed ? 'T' : 'N', m, n, k, 1.0F,
                            a + wf_stack_matrix(&s->sums, WF_STACK_A, term) * m * k, args->a_transposed ? m : k,
                            b + wf_stack_matrix(&s->sums, WF_STACK_B, term) * k * n, args->b_transposed ? k : n,
                            args->accumulate || term > 0 ? 1.0F : 0.0F, c, n);
    return status;
}

static wf_status stack_results(wf_ctx *ctx, const stack_ctx *s, int64_t lo, int64_t hi)
{
    dnnl_status_t status = dnnl_success;
    if (hi - lo < ctx->threads || ctx->threads < 2) {
        const int before = omp_get_max_threads();
        omp_set_num_threads(ctx->threads);
        for (int64_t i = lo; i < hi && status == dnnl_success; i++)
            status = stack_result(s, i);
        omp_set_num_threads(before);
        TRY_DNN(status);
        return WF_OK;
    }
#pragma omp parallel for num_threads(ctx->threads) schedule(static)
    for (int64_t i = lo; i < hi; i++) {
        const dnnl_status_t one = stack_result(s, i);
        if (one != dnnl_success) {
#pragma omp atomic write
            status = one;
        }
    }
    TRY_DNN(status);
    return WF_OK;
}

static wf_status stack_f32(wf_ctx *ctx, const stack_ctx *s)
{
    /* A turn is about a million multiplications for each thread. */
    const int64_t work = s->results.m * s->results.n * s->results.k * s->terms;
    const int64_t pieces = s->count * work >> 20, turns = pieces / wf_cpu_turn(ctx, pieces < 1 ? 1 : pieces);
    const int64_t few = turns < 2 ? s->count : (s->count + turns - 1) / turns;
    for (int64_t lo = 0; lo < s->count; lo += few) {
        WF_TRY(stack_results(ctx, s, lo, wf_cpu_min(lo + few, s->count)));
        wf_ctx_progress(ctx);
    }
    return WF_OK;
}

static wf_array stack_matrix(const stack_ctx *s, const wf_array *x, wf_stack_factor factor, int64_t i, int64_t rows,
                             int64_t columns)
{
    const int64_t at = wf_stack_matrix(&s->results, factor, i) * rows * columns;
    wf_array one = *x;
    one.shape = WF_SHAPE(rows, columns);
    one.forms = NULL;
    one.data = (char *)x->data + at * (int64_t)wf_dtype_size(x->dtype);
    return one;
}

/* One product after another, each by the slot of one product. */
static wf_status stack_each(wf_ctx *ctx, const stack_ctx *s)
{
    const wf_matmul_stack_args *const args = s->args;
    const int64_t m = s->results.m, n = s->results.n, k = s->results.k;
    for (int64_t i = 0; i < s->count; i++) {
        const bool ta = args->a_transposed, tb = args->b_transposed;
        const wf_array a = stack_matrix(s, args->a, WF_STACK_A, i, ta ? k : m, ta ? m : k);
        const wf_array b = stack_matrix(s, args->b, WF_STACK_B, i, tb ? n : k, tb ? k : n);
        const wf_array c = stack_matrix(s, args->c, WF_STACK_C, i, m, n);
        WF_TRY(wf_cpu_matmul(
            ctx,
            &(wf_matmul_args){
                .a = &a, .b = &b, .c = &c, .a_transposed = ta, .b_transposed = tb, .accumulate = args->accumulate}));
    }
    return WF_OK;
}

wf_status wf_cpu_matmul_stack(wf_ctx *ctx, const wf_matmul_stack_args *args)
{
    const wf_product_stack *const stack = args->stack;
    const wf_dtype dtype = args->a->dtype;
    stack_ctx s = {.args = args};
    wf_stack_split(stack, &s.results, &s.sums);
    s.count = wf_stack_count(&s.results);
    s.terms = wf_stack_count(&s.sums);
    const bool one = args->b->dtype == dtype && args->c->dtype == dtype;
    if (!one || s.count * s.terms * stack->m * stack->n * stack->k == 0)
        return wf_wide_matmul_stack(ctx, args);
    if (dtype == WF_F32)
        return stack_f32(ctx, &s);
    /* Sums of several products are made in f32 and rounded once. */
    return dtype == WF_BF16 && s.terms == 1 && wf_dnn_takes_bf16() ? stack_each(ctx, &s)
                                                                   : wf_wide_matmul_stack(ctx, args);
}
