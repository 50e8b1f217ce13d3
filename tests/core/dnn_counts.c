/* The linker passes oneDNN's calls of the library through here. */
#include "tests/core/dnn_counts.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dnn_counts *into;

dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                            const dnnl_exec_arg_t *arguments);
dnnl_status_t __real_dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                            const dnnl_exec_arg_t *arguments);
dnnl_status_t __wrap_dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c,
                                dnnl_dim_t ldc);
dnnl_status_t __real_dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c,
                                dnnl_dim_t ldc);

void dnn_counts_into(dnn_counts *counts)
{
    into = counts;
}

static void count_run(const char *name)
{
    int i = 0;
    while (into && i < into->used && strcmp(into->of[i].name, name) != 0)
        i++;
    if (!into || i == DNN_NAMES)
        return;
    if (i == into->used) {
        snprintf(into->of[i].name, DNN_NAME, "%s", name);
        into->used++;
    }
    into->of[i].runs++;
}

static const char *work_of(const_dnnl_primitive_desc_t pd)
{
    dnnl_primitive_kind_t kind = dnnl_undefined_primitive;
    dnnl_prop_kind_t direction = dnnl_prop_kind_undef;
    dnnl_primitive_desc_query(pd, dnnl_query_primitive_kind, 0, &kind);
    if (kind == dnnl_reorder)
        return "reorder";
    if (kind == dnnl_matmul)
        return "product";
    dnnl_primitive_desc_query(pd, dnnl_query_prop_kind, 0, &direction);
    return direction == dnnl_backward_data      ? "convolution, gradient of the data"
           : direction == dnnl_backward_weights ? "convolution, gradient of the filter"
                                                : "convolution, forward";
}

dnnl_status_t __wrap_dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                            const dnnl_exec_arg_t *arguments)
{
    const_dnnl_primitive_desc_t pd = NULL;
    const char *implementation = "?";
    char name[DNN_NAME];
    if (dnnl_primitive_get_primitive_desc(primitive, &pd) == dnnl_success) {
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &implementation);
        snprintf(name, sizeof name, "%s: %s", work_of(pd), implementation);
        count_run(name);
    }
    return __real_dnnl_primitive_execute(primitive, stream, count, arguments);
}

dnnl_status_t __wrap_dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c,
                                dnnl_dim_t ldc)
{
    count_run("product: sgemm");
    return __real_dnnl_sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

int64_t dnn_counts_runs(const dnn_counts *counts)
{
    int64_t runs = 0;
    for (int i = 0; i < counts->used; i++)
        runs += counts->of[i].runs;
    return runs;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b); /* the name comes first */
}

void dnn_counts_print(dnn_counts *counts)
{
    qsort(counts->of, (size_t)counts->used, sizeof *counts->of, by_name);
    for (int i = 0; i < counts->used; i++)
        printf("  %8lld  %s\n", (long long)counts->of[i].runs, counts->of[i].name);
}
