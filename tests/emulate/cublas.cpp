/* cuBLASLt as core/cuda uses it: products of matrices counted by columns, by plain loops on the emulated device. What
 * the real one answers with INVALID_VALUE ends the program. */
#include "tests/emulate/graph.hpp"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdlib.h>

struct cublasLtContext {
    int nothing;
};
struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t first, second;
    cublasLtEpilogue_t epilogue;
    const void *bias;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    int64_t rows, columns, ld;
    int32_t batch;
    int64_t stride;
};
struct cublasLtMatmulPreferenceOpaque_t {
    size_t workspace;
    uint32_t align[4], scheme;
};

float dnn_tf32(float v)
{
    const uint32_t u = __float_as_uint(v);
    return __uint_as_float((u + 0x1000) & ~0x1fffu);
}

static const size_t most_workspace = 512;
static const uint64_t first_algorithm = 7;

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "a status of the emulated cuBLASLt";
}

template <class T> static cublasStatus_t create(T *out)
{
    *out = static_cast<T>(calloc(1, sizeof **out));
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t destroy(T what)
{
    free(what);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return create(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    create(desc);
    **desc = {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    if ((compute == CUBLAS_COMPUTE_64F) != (scale == CUDA_R_64F))
        emulated_fail("a product of computation %d with factors of type %d", (int)compute, (int)scale);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

template <class T> static void take(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof *to || !value)
        emulated_fail("an attribute of %zu bytes is given as %zu", sizeof *to, bytes);
    memcpy(to, value, bytes);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        take(&desc->first, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        take(&desc->second, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        take(&desc->epilogue, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        take(&desc->bias, value, bytes);
        break;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    create(layout);
    **layout = {type, (int64_t)rows, (int64_t)columns, ld, 1, 0};
    if (rows < 1 || columns < 1 || ld < (int64_t)rows)
        emulated_fail("a matrix of %lld by %lld with columns %lld apart", (long long)rows, (long long)columns,
                      (long long)ld);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
                                                const void *value, size_t bytes)
{
    if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        take(&layout->batch, value, bytes);
    else
        take(&layout->stride, value, bytes);
    if (layout->batch < 1 || layout->stride < 0)
        emulated_fail("%d matrices that are %lld elements apart", layout->batch, (long long)layout->stride);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    create(preference);
    **preference = {0, {256, 256, 256, 256}, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes)
{
    if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        take(&preference->workspace, value, bytes);
    else if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        take(&preference->scheme, value, bytes);
    else
        take(&preference->align[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* The algorithm carries what it was promised, to be held against the addresses of the call. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t *result, int *count)
{
    const bool wide = desc->compute == CUBLAS_COMPUTE_64F, biased = desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
    *count = 0;
    const bool narrow = a->type == CUDA_R_16F || a->type == CUDA_R_16BF;
    if (wide != (a->type == CUDA_R_64F) || a->type != b->type || c->type != d->type ||
        (a->type != c->type && !(narrow && c->type == CUDA_R_32F)))
        emulated_fail("a product of matrices of different types");
    if (biased && !desc->bias)
        emulated_fail("a product with a bias that is nowhere");
    if (wide && biased && !(emulated_present() & EMULATED_BIAS))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* The first one fails when it runs. */
    for (int i = emulated_present() & EMULATED_BROKEN ? 0 : 1; i < 2 && *count < wanted; i++) {
        cublasLtMatmulHeuristicResult_t r = {};
        r.algo.data[0] = first_algorithm + (uint64_t)i;
        for (int k = 0; k < 4; k++)
            r.algo.data[1 + k] = preference->align[k];
        r.workspaceSize = preference->workspace < most_workspace ? preference->workspace : most_workspace;
        result[(*count)++] = r;
    }
    return CUBLAS_STATUS_SUCCESS;
}

struct product : emulated_work {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t la, lb, lc;
    const void *a, *b;
    void *c, *workspace;
    double alpha, beta;

    static double get(const void *data, cudaDataType_t type, int64_t i)
    {
        return type == CUDA_R_32F   ? static_cast<const float *>(data)[i]
               : type == CUDA_R_64F ? static_cast<const double *>(data)[i]
               : type == CUDA_R_16F ? __half2float(static_cast<const __half *>(data)[i])
                                    : __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[i]);
    }

    void put(int64_t i, double v) const
    {
        if (lc.type == CUDA_R_32F)
            static_cast<float *>(c)[i] = (float)v;
        else if (lc.type == CUDA_R_64F)
            static_cast<double *>(c)[i] = v;
        else if (lc.type == CUDA_R_16F)
            static_cast<__half *>(c)[i] = __float2half_rn((float)v);
        else
            static_cast<__nv_bfloat16 *>(c)[i] = __float2bfloat16_rn((float)v);
    }

    double factor(const cublasLtMatrixLayoutOpaque_t &l, const void *data, cublasOperation_t op, int64_t i, int64_t j,
                  int64_t of) const
    {
        const double v = get(data, l.type, of * l.stride + (op == CUBLAS_OP_N ? j * l.ld + i : i * l.ld + j));
        return desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? dnn_tf32((float)v) : v;
    }

    void thread() const override
    {
        const int64_t depth = desc.first == CUBLAS_OP_N ? la.columns : la.rows;
        memset(workspace, 0xee, most_workspace);
        for (int64_t of = 0; of < lc.batch; of++)
            for (int64_t j = 0; j < lc.columns; j++)
                for (int64_t i = 0; i < lc.rows; i++)
                    element(of, i, j, depth);
    }

    void element(int64_t of, int64_t i, int64_t j, int64_t depth) const
    {
        const int64_t at = of * lc.stride + j * lc.ld + i;
        double sum = 0;
        for (int64_t k = 0; k < depth; k++)
            sum += factor(la, a, desc.first, i, k, of) * factor(lb, b, desc.second, k, j, of);
        sum = alpha * sum + (beta != 0 ? beta * get(c, lc.type, at) : 0);
        put(at, sum + (desc.epilogue == CUBLASLT_EPILOGUE_BIAS ? get(desc.bias, lc.type, i) : 0));
    }
};

static void check(const cublasLtMatmulDescOpaque_t &desc, const cublasLtMatrixLayoutOpaque_t &a,
                  const cublasLtMatrixLayoutOpaque_t &b, const cublasLtMatrixLayoutOpaque_t &c)
{
    const bool first = desc.first == CUBLAS_OP_N, second = desc.second == CUBLAS_OP_N;
    if ((first ? a.rows : a.columns) != c.rows || (second ? b.columns : b.rows) != c.columns ||
        (first ? a.columns : a.rows) != (second ? b.rows : b.columns))
        emulated_fail("matrices of %lld,%lld and %lld,%lld do not make one of %lld,%lld", (long long)a.rows,
                      (long long)a.columns, (long long)b.rows, (long long)b.columns, (long long)c.rows,
                      (long long)c.columns);
    if (a.batch != c.batch || b.batch != c.batch || (c.batch > 1 && c.stride < c.columns * c.ld))
        emulated_fail("%d and %d matrices make %d that are %lld elements apart", a.batch, b.batch, c.batch,
                      (long long)c.stride);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const void *const data[] = {a, b, c, d};
    if (c != d || c_layout != d_layout || !workspace || workspace_bytes != most_workspace)
        emulated_fail("a product with another result than its third matrix, or without its workspace");
    for (int k = 0; k < 4; k++) {
        if (!data[k] || reinterpret_cast<uintptr_t>(data[k]) % algo->data[1 + k] != 0)
            emulated_fail("matrix %d of a product is at %p", k, data[k]);
        emulated_check_argument(&data[k], sizeof data[k]);
    }
    /* No preference states the alignment of a bias, so any kernel may load it by 16 bytes. */
    if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS && reinterpret_cast<uintptr_t>(desc->bias) % 16 != 0)
        emulated_fail("the bias of a product is at %p, which is not aligned to 16 bytes", desc->bias);
    if (algo->data[0] == first_algorithm)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool wide = desc->scale == CUDA_R_64F;
    product *const work = new product;
    work->desc = *desc;
    work->la = *a_layout;
    work->lb = *b_layout;
    work->lc = *c_layout;
    work->a = a;
    work->b = b;
    work->c = d;
    work->workspace = workspace;
    work->alpha = wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
    work->beta = wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
    check(work->desc, work->la, work->lb, work->lc);
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    emulated_launch(config, work);
    return CUBLAS_STATUS_SUCCESS;
}
