/* Products of matrices through cuBLASLt, which counts by columns: the row-major c [m,n] is its [n,m], so that it is
 * given b first and a second, each as stored, and the bias belongs to its rows. */
#include "core/cuda/dnn_impl.h"

#include "core/config_author.h"
#include "core/profile_author.h"

#include <stdlib.h>
#include <string.h>

/* Algorithms that are asked for: the first that runs is kept. */
enum { ALGORITHMS = 8 };

/* Bytes that an algorithm may use besides the matrices. */
static const size_t most_workspace = (size_t)32 << 20;

/* Zero it as a whole before filling it: it is compared as bytes. */
typedef struct product_key {
    int32_t dtype, a_transposed, b_transposed, accumulate;
    int32_t align_a, align_b, align_c;
    int32_t biased;         /* a bias is fused */
    int32_t result, unused; /* result: the type of c */
    int64_t m, n, k;
    int64_t batch;                     /* products that are computed together, at least 1 */
    int64_t apart_a, apart_b, apart_c; /* their distances in elements: 0 repeats a or b */
} product_key;

struct cuda_product {
    cuda_product *next;
    product_key key;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c; /* a: the library's second */
    cublasLtMatmulHeuristicResult_t algorithm[ALGORITHMS];
    int count, chosen; /* count 0: none takes it */
    bool ran;
    uint64_t used; /* when it was last found */
};

wf_status wf_cuda_blas_error(cublasStatus_t status, const char *call, const char *file, int line)
{
    return wf_error_set(WF_ERR_STATE, file, line, "%s: %s", call, cublasLtGetStatusString(status));
}

static void product_free(wf_cuda *own, cuda_product *p)
{
    own->dnn->products--;
    own->ctx->plans--;
    if (p->what)
        cublasLtMatmulDescDestroy(p->what);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

/* Frees the product that was not used for the longest time. Kernels that were launched with it have copied what they
 * need. */
static void drop_oldest(wf_cuda *own)
{
    cuda_product **oldest = NULL;
    if (own->dnn->products < WF_PLANS_MOST)
        return;
    for (int b = 0; b < CUDA_BUCKETS; b++)
        for (cuda_product **at = &own->dnn->product[b]; *at; at = &(*at)->next)
            if (!oldest || (*at)->used < (*oldest)->used)
                oldest = at;
    cuda_product *const p = *oldest;
    *oldest = p->next;
    product_free(own, p);
}

void wf_cuda_products_free(wf_cuda *own)
{
    wf_cuda_dnn *const dnn = own->dnn;
    for (int i = 0; i < CUDA_BUCKETS; i++)
        while (dnn->product[i]) {
            cuda_product *const p = dnn->product[i];
            dnn->product[i] = p->next;
            product_free(own, p);
        }
}

static cudaDataType_t cublas_type(int32_t dtype)
{
    switch (dtype) {
    case WF_F32:
        return CUDA_R_32F;
    case WF_F64:
        return CUDA_R_64F;
    case WF_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_16F;
    }
}

static cublasComputeType_t compute_of(int32_t dtype)
{
    if (dtype == WF_F64)
        return CUBLAS_COMPUTE_64F;
    /* TF32 rounds inputs to 10 bits of mantissa; WEFT_TF32=0 turns it off. */
    return dtype == WF_F32 && wf_config_get()->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* A stored matrix of rows by columns, as the library counts: its leading dimension is the length of our rows. */
static wf_status layout_of(int32_t dtype, bool transposed, int64_t rows, int64_t columns, cublasLtMatrixLayout_t *out)
{
    const int64_t down = transposed ? rows : columns, distributed = transposed ? columns : rows;
    TRY_BLAS(cublasLtMatrixLayoutCreate(out, cublas_type(dtype), (uint64_t)down, (uint64_t)distributed, down));
    return WF_OK;
}

static wf_status repeat_layout(cublasLtMatrixLayout_t layout, int64_t batch, int64_t stride)
{
    const int32_t count = (int32_t)batch;
    TRY_BLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    TRY_BLAS(
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    return WF_OK;
}

static wf_status describe(cuda_product *p, const void *bias)
{
    const product_key *const key = &p->key;
    const cublasOperation_t first = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    TRY_BLAS(
        cublasLtMatmulDescCreate(&p->what, compute_of(key->dtype), key->dtype == WF_F64 ? CUDA_R_64F : CUDA_R_32F));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    if (bias) {
        TRY_BLAS(cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        TRY_BLAS(cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    WF_TRY(layout_of(key->dtype, key->a_transposed, key->m, key->k, &p->a));
    WF_TRY(layout_of(key->dtype, key->b_transposed, key->k, key->n, &p->b));
    WF_TRY(layout_of(key->result, false, key->m, key->n, &p->c));
    if (key->batch == 1)
        return WF_OK;
    WF_TRY(repeat_layout(p->a, key->batch, key->apart_a));
    WF_TRY(repeat_layout(p->b, key->batch, key->apart_b));
    return repeat_layout(p->c, key->batch, key->apart_c);
}

/* Sums over parts of k are made in the type of the arithmetic and in a fixed order. The library's A is our b, so their
 * alignments change places. */
static wf_status prefer(const product_key *key, cublasLtMatmulPreference_t preference)
{
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        int32_t bytes;
    } align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->align_b},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->align_a},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->align_c},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->align_c}};
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most_workspace,
                                                  sizeof most_workspace));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
                                                  sizeof scheme));
    for (size_t i = 0; i < sizeof align / sizeof *align; i++) {
        const uint32_t bytes = (uint32_t)align[i].bytes;
        TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, align[i].name, &bytes, sizeof bytes));
    }
    return WF_OK;
}

static wf_status choose(wf_cuda *own, cuda_product *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    TRY_BLAS(cublasLtMatmulPreferenceCreate(&preference));
    const wf_status status = prefer(&p->key, preference);
    /* A refusal is no error: there is a way without the bias. */
    if (status == WF_OK && cublasLtMatmulAlgoGetHeuristic(own->dnn->blas, p->what, p->b, p->a, p->c, p->c, preference,
                                                          ALGORITHMS, p->algorithm, &p->count) != CUBLAS_STATUS_SUCCESS)
        p->count = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

/* Finds a product's plan or makes it. One that cannot be made stays in the list with no algorithm, so it is not tried
 * at every call. */
static wf_status product_find(wf_cuda *own, const product_key *key, const void *bias, cuda_product **out)
{
    wf_cuda_dnn *dnn = NULL;
    WF_TRY(wf_cuda_dnn_here(own, &dnn));
    cuda_product **const head = &dnn->product[wf_cuda_hash(key, sizeof *key) % CUDA_BUCKETS];
    cuda_product *p = *head;
    while (p && memcmp(&p->key, key, sizeof *key) != 0)
        p = p->next;
    *out = p;
    if (p) {
        p->used = ++dnn->uses;
        return WF_OK;
    }
    drop_oldest(own);
    p = wf_calloc(own->ctx, 1, sizeof *p);
    if (!p)
        return wf_error_take("plan of a product", __FILE__, __LINE__);
    const int64_t start = wf_profile_clock();
    p->key = *key;
    p->used = ++dnn->uses;
    dnn->products++;
    own->ctx->plans++;
    p->next = *head;
    *head = *out = p;
    wf_status status = describe(p, bias);
    if (status == WF_OK)
        status = choose(own, p);
    own->ctx->planning_ns += wf_profile_clock() - start;
    return status;
}

static cublasStatus_t put(wf_cuda *own, const cuda_product *p, const wf_array *a, const wf_array *b, const wf_array *c,
                          void *workspace)
{
    const bool wide = p->key.dtype == WF_F64, more = p->key.accumulate != 0;
    const float one = 1, kept = more ? 1 : 0;
    const double wide_one = 1, wide_kept = more ? 1 : 0;
    const cublasLtMatmulHeuristicResult_t *const with = &p->algorithm[p->chosen];
    return cublasLtMatmul(own->dnn->blas, p->what, wide ? (const void *)&wide_one : &one, b->data, p->b, a->data, p->a,
                          wide ? (const void *)&wide_kept : &kept, c->data, p->c, c->data, p->c, &with->algo, workspace,
                          with->workspaceSize, own->stream);
}

/* The algorithms in turn, until one runs. */
static wf_status product_run(wf_cuda *own, cuda_product *p, const wf_array *a, const wf_array *b, const void *bias,
                             const wf_array *c, bool *done)
{
    *done = false;
    /* The plan is shared by all addresses of a bias, so the address is set at each run. */
    if (bias && p->count > 0)
        TRY_BLAS(cublasLtMatmulDescSetAttribute(p->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    while (!*done && p->chosen < p->count) {
        void *workspace = NULL;
        if (p->algorithm[p->chosen].state != CUBLAS_STATUS_SUCCESS) {
            p->chosen++;
            continue;
        }
        WF_TRY(wf_cuda_workspace(own, p->algorithm[p->chosen].workspaceSize, &workspace));
        const cublasStatus_t status = put(own, p, a, b, c, workspace);
        *done = status == CUBLAS_STATUS_SUCCESS;
        /* An algorithm that ran before does not become wrong by itself: its failure is a real error and is not covered
         * up by the next one. */
        if (!*done && p->ran)
            TRY_BLAS(status);
        p->ran = *done;
        p->chosen += !*done;
    }
    return WF_OK;
}

static wf_status product(wf_cuda *own, const product_key *plain, const wf_array *a, const wf_array *b, const void *bias,
                         const wf_array *c, bool *done)
{
    cuda_product *p = NULL;
    product_key key = *plain;
    key.biased = bias != NULL;
    WF_TRY(product_find(own, &key, bias, &p));
    return product_run(own, p, a, b, bias, c, done);
}

/* Nothing is summed: the bias alone. */
static wf_status empty_sum(wf_ctx *ctx, const wf_array *bias, const wf_array *c, bool accumulate)
{
    if (!accumulate)
        WF_TRY(wf_cuda_fill(ctx, c, 0));
    return bias ? wf_cuda_bias_epilogue(ctx, bias, NULL, c) : WF_OK;
}

wf_status wf_cuda_matmul(wf_ctx *ctx, const wf_matmul_args *args)
{
    const wf_array *const a = args->a, *const b = args->b, *const bias = args->bias, *const c = args->c;
    wf_cuda *own;
    product_key key;
    bool done = false;
    WF_CHECK(wf_dtype_is_float(c->dtype), WF_ERR_UNSUPPORTED, "device \"cuda\" multiplies float types, not %s",
             wf_dtype_name(c->dtype));
    WF_TRY(wf_cuda_here(ctx, &own));
    if (wf_array_count(c) == 0)
        return WF_OK;
    /* Bytes of padding are compared too, hence zero. */
    memset(&key, 0, sizeof key);
    key.batch = 1;
    key.dtype = (int32_t)a->dtype;
    key.result = (int32_t)c->dtype;
    key.a_transposed = args->a_transposed;
    key.b_transposed = args->b_transposed;
    key.accumulate = args->accumulate;
    key.align_a = wf_cuda_alignment(a->data);
    key.align_b = wf_cuda_alignment(b->data);
    key.align_c = wf_cuda_alignment(c->data);
    key.m = c->shape.dim[0];
    key.n = c->shape.dim[1];
    key.k = a->shape.dim[args->a_transposed ? 0 : 1];
    if (key.k == 0)
        return empty_sum(ctx, bias, c, args->accumulate);
    /* cuBLASLt adds a bias of the result's type only. It is told the alignment of the matrices but not that of a bias,
     * which its kernels may load by 16 bytes: at another address they fault, and CUDA forgets no fault. */
    if (bias && bias->dtype == c->dtype && wf_cuda_alignment(bias->data) == 16)
        WF_TRY(product(own, &key, a, b, bias->data, c, &done));
    if (done)
        return WF_OK;
    WF_TRY(product(own, &key, a, b, NULL, c, &done));
    WF_CHECK(done, WF_ERR_UNSUPPORTED, "cuBLASLt multiplies no %s matrices of [%lld,%lld] by [%lld,%lld]",
             wf_dtype_name(c->dtype), (long long)key.m, (long long)key.k, (long long)key.k, (long long)key.n);
    return bias ? wf_cuda_bias_epilogue(ctx, bias, NULL, c) : WF_OK;
}

/* Stacks: one dimension is a batch of the library, over all others the host goes. */

/* Makes one dimension of two neighbours that every factor passes in equal steps. From the outer dimension to the inner
 * one: two are one if the outer step is the inner one times its length, for every factor. */
static wf_product_stack merged(const wf_product_stack *stack)
{
    wf_product_stack to = {.m = stack->m, .n = stack->n, .k = stack->k};
    for (int d = 0; d < stack->rank; d++) {
        bool same = to.rank > 0;
        for (int f = 0; f < WF_STACK_FACTORS && same; f++)
            same = to.step[f][to.rank - 1] == stack->step[f][d] * stack->dim[d];
        if (!same)
            to.rank++;
        to.dim[to.rank - 1] = same ? to.dim[to.rank - 1] * stack->dim[d] : stack->dim[d];
        for (int f = 0; f < WF_STACK_FACTORS; f++)
            to.step[f][to.rank - 1] = stack->step[f][d];
    }
    return to;
}

/* Takes the longest dimension whose products have matrices of their own out of the stack. -1: none has. */
static int longest_batch(const wf_product_stack *stack)
{
    int longest = -1;
    for (int d = 0; d < stack->rank; d++)
        if (stack->step[WF_STACK_C][d] != 0 && stack->dim[d] <= INT32_MAX &&
            (longest < 0 || stack->dim[d] > stack->dim[longest]))
            longest = d;
    return longest;
}

/* The alignment of every matrix of a batch. */
static int32_t alignment_apart(const void *data, int64_t bytes)
{
    return wf_cuda_alignment((const void *)((uintptr_t)data | (uintptr_t)bytes));
}

static wf_status stack_batch(wf_cuda *own, const wf_matmul_stack_args *args, product_key key, void *const data[3])
{
    const int64_t size = (int64_t)wf_dtype_size(args->c->dtype);
    const wf_array a = {.data = data[0]}, b = {.data = data[1]}, c = {.data = data[2]};
    bool done = false;
    key.align_a = alignment_apart(a.data, key.apart_a * size);
    key.align_b = alignment_apart(b.data, key.apart_b * size);
    key.align_c = alignment_apart(c.data, key.apart_c * size);
    WF_TRY(product(own, &key, &a, &b, NULL, &c, &done));
    WF_CHECK(done, WF_ERR_UNSUPPORTED, "cuBLASLt multiplies no %lld %s matrices of [%lld,%lld] by [%lld,%lld]",
             (long long)key.batch, wf_dtype_name(args->c->dtype), (long long)key.m, (long long)key.k, (long long)key.k,
             (long long)key.n);
    return WF_OK;
}

wf_status wf_cuda_matmul_stack(wf_ctx *ctx, const wf_matmul_stack_args *args)
{
    const wf_array *const of[WF_STACK_FACTORS] = {args->a, args->b, args->c};
    wf_product_stack s = merged(args->stack);
    const int64_t size[WF_STACK_FACTORS] = {s.m * s.k, s.k * s.n, s.m * s.n},
                  bytes = (int64_t)wf_dtype_size(of[2]->dtype);
    wf_cuda *own;
    product_key key;
    WF_CHECK(wf_dtype_is_float(args->c->dtype), WF_ERR_UNSUPPORTED, "device \"cuda\" multiplies float types, not %s",
             wf_dtype_name(args->c->dtype));
    WF_TRY(wf_cuda_here(ctx, &own));
    if (wf_array_count(args->c) == 0)
        return WF_OK;
    if (wf_stack_count(&s) == 0 || s.k == 0)
        return args->accumulate ? WF_OK : wf_cuda_fill(ctx, args->c, 0);
    memset(&key, 0, sizeof key);
    key.dtype = key.result = (int32_t)args->c->dtype;
    key.a_transposed = args->a_transposed;
    key.b_transposed = args->b_transposed;
    key.m = s.m, key.n = s.n, key.k = s.k;
    key.batch = 1;
    const int along = longest_batch(&s);
    if (along >= 0 && s.dim[along] > 1) {
        key.batch = s.dim[along];
        key.apart_a = s.step[WF_STACK_A][along] * size[0];
        key.apart_b = s.step[WF_STACK_B][along] * size[1];
        key.apart_c = s.step[WF_STACK_C][along] * size[2];
        s.dim[along] = 1;
    }
    wf_product_stack results, sums;
    wf_stack_split(&s, &results, &sums);
    const int64_t terms = wf_stack_count(&sums), count = wf_stack_count(&results);
    for (int64_t i = 0; i < count * terms; i++) {
        void *data[WF_STACK_FACTORS];
        for (int f = 0; f < WF_STACK_FACTORS; f++)
            data[f] = (char *)of[f]->data + bytes * size[f] *
                                                (wf_stack_matrix(&results, (wf_stack_factor)f, i / terms) +
                                                 wf_stack_matrix(&sums, (wf_stack_factor)f, i % terms));
        key.accumulate = args->accumulate || i % terms > 0;
        WF_TRY(stack_batch(own, args, key, data));
    }
    return WF_OK;
}
