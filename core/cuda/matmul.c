/* Products of matrices through cuBLASLt, which counts by columns: the row-major c [m,n] is its [n,m], so that it is
 * given b first and a second, each as stored, and the bias belongs to its rows. */
#include "core/cuda/dnn_impl.h"

#include "core/config_author.h"

#include <stdlib.h>
#include <string.h>

enum { ALGORITHMS = 8 };

static const size_t most_workspace = (size_t)32 << 20;

/* Zero it as a whole before filling it: it is compared as bytes. */
typedef struct product_key {
    int32_t dtype, a_transposed, b_transposed, accumulate;
    int32_t align_a, align_b, align_c;
    int32_t biased;         /* a bias is fused */
    int32_t result, unused; /* result: the type of c */
    int64_t m, n, k;
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

/* Frees the product that was not used for the longest time: what it launched needs it no more. */
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

/* A stored matrix of rows by columns, as the library counts. */
static wf_status layout_of(int32_t dtype, bool transposed, int64_t rows, int64_t columns, cublasLtMatrixLayout_t *out)
{
    const int64_t down = transposed ? rows : columns, distributed = transposed ? columns : rows;
    TRY_BLAS(cublasLtMatrixLayoutCreate(out, cublas_type(dtype), (uint64_t)down, (uint64_t)distributed, down));
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
    return layout_of(key->result, false, key->m, key->n, &p->c);
}

/* Sums over parts of k are made in the type of the arithmetic and in a fixed order. */
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
    p->key = *key;
    p->used = ++dnn->uses;
    dnn->products++;
    own->ctx->plans++;
    p->next = *head;
    *head = *out = p;
    WF_TRY(describe(p, bias));
    return choose(own, p);
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
    memset(&key, 0, sizeof key);
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
