/* Copy, fill and cast of strided arrays in plain loops: the oracle of pack, unpack, transpose and change of order. */
#include "core/ref/ref_impl.h"

#include <stdlib.h>
#include <string.h>

wf_status wf_ref_alloc(wf_ctx *ctx, size_t bytes, void **data)
{
    (void)ctx;
    /* 64 bytes: a cache line and the widest vector. */
    if (posix_memalign(data, 64, bytes ? bytes : 1) != 0) {
        *data = NULL;
        WF_FAIL(WF_ERR_MEMORY, "no memory for a block of %zu bytes", bytes);
    }
    return WF_OK;
}

void wf_ref_release(wf_ctx *ctx, void *data, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(data);
}

wf_status wf_ref_transfer(wf_ctx *ctx, void *to, const void *from, size_t bytes)
{
    (void)ctx;
    if (bytes > 0 && to != from)
        memcpy(to, from, bytes);
    return WF_OK;
}

void wf_ref_shutdown(wf_ctx *ctx)
{
    (void)ctx;
}

/* Rows are converted through a buffer of this many numbers. */
enum { CHUNK = 512 };

static bool is_integer(wf_dtype dtype)
{
    return !wf_dtype_is_float(dtype);
}

static int64_t integer_at(wf_dtype dtype, const void *data, int64_t i)
{
    if (dtype == WF_U8)
        return ((const uint8_t *)data)[i];
    return dtype == WF_I32 ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
}

/* Conversions saturate, as the instructions of all fillings do. */
static int64_t clamp(int64_t v, int64_t lowest, int64_t highest)
{
    return v < lowest ? lowest : v > highest ? highest : v;
}

static int64_t saturating_sum(int64_t a, int64_t b)
{
    if (b > 0 && a > INT64_MAX - b)
        return INT64_MAX;
    return b < 0 && a < INT64_MIN - b ? INT64_MIN : a + b;
}

/* Not through double, which has too few bits for i64. */
static void integer_row(wf_dtype from, const void *src, int64_t src_stride, wf_dtype to, void *dst, int64_t dst_stride,
                        int64_t n, bool accumulate)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t v = integer_at(from, src, i * src_stride);
        if (accumulate)
            v = saturating_sum(v, integer_at(to, dst, i * dst_stride));
        if (to == WF_U8)
            ((uint8_t *)dst)[i * dst_stride] = (uint8_t)clamp(v, 0, UINT8_MAX);
        else if (to == WF_I32)
            ((int32_t *)dst)[i * dst_stride] = (int32_t)clamp(v, INT32_MIN, INT32_MAX);
        else
            ((int64_t *)dst)[i * dst_stride] = v;
    }
}

static void plain_row(size_t size, const void *src, int64_t src_stride, void *dst, int64_t dst_stride, int64_t n)
{
    if (src_stride == 1 && dst_stride == 1) {
        memcpy(dst, src, (size_t)n * size);
        return;
    }
    const int64_t step = (int64_t)size;
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)dst + i * dst_stride * step, (const char *)src + i * src_stride * step, size);
}

/* Through double, whatever the pair of types: exact for all but i64, and one rounding at the end. */
static void double_row(wf_dtype from, const void *src, int64_t src_stride, wf_dtype to, void *dst, int64_t dst_stride,
                       int64_t n, bool accumulate)
{
    double value[CHUNK], old[CHUNK];
    const int64_t src_step = src_stride * (int64_t)wf_dtype_size(from),
                  dst_step = dst_stride * (int64_t)wf_dtype_size(to);
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t count = n - at < CHUNK ? n - at : CHUNK;
        char *const target = (char *)dst + at * dst_step;
        wf_ref_load(from, (const char *)src + at * src_step, src_stride, count, value);
        if (accumulate) {
            wf_ref_load(to, target, dst_stride, count, old);
            for (int64_t i = 0; i < count; i++)
                value[i] += old[i];
        }
        wf_ref_store(to, target, dst_stride, count, value);
    }
}

static void copy_row(const wf_strided *src, int64_t src_at, const wf_strided *dst, int64_t dst_at, int inner,
                     bool accumulate)
{
    const size_t from_size = wf_dtype_size(src->dtype), to_size = wf_dtype_size(dst->dtype);
    const void *const from = (const char *)src->data + src_at * (int64_t)from_size;
    void *const to = (char *)dst->data + dst_at * (int64_t)to_size;
    const int64_t n = dst->dim[inner], from_stride = src->stride[inner], to_stride = dst->stride[inner];
    /* Bytes are moved as they are: a NaN keeps its payload and an integer all its bits. */
    if (src->dtype == dst->dtype && !accumulate)
        plain_row(to_size, from, from_stride, to, to_stride, n);
    else if (is_integer(src->dtype) && is_integer(dst->dtype))
        integer_row(src->dtype, from, from_stride, dst->dtype, to, to_stride, n, accumulate);
    else
        double_row(src->dtype, from, from_stride, dst->dtype, to, to_stride, n, accumulate);
}

/* The dimension along which rows run: the longest of those with the smallest step in dst. */
static int inner_dimension(const wf_strided *dst)
{
    int inner = 0;
    for (int d = 1; d < dst->rank; d++)
        if (dst->dim[inner] == 1 || (dst->dim[d] > 1 && llabs(dst->stride[d]) < llabs(dst->stride[inner])))
            inner = d;
    return inner;
}

wf_status wf_ref_copy(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate)
{
    (void)ctx;
    wf_strided from = *src, to = *dst;
    if (to.rank == 0) {
        from.rank = to.rank = 1;
        from.dim[0] = to.dim[0] = from.stride[0] = to.stride[0] = 1;
    }
    const int inner = inner_dimension(&to);
    int64_t rows = 1;
    for (int d = 0; d < to.rank; d++)
        /* An empty inner dimension leaves no rows. */
        rows *= d == inner ? to.dim[d] > 0 : to.dim[d];
    for (int64_t row = 0; row < rows; row++) {
        int64_t rest = row, src_at = 0, dst_at = 0;
        for (int d = to.rank - 1; d >= 0; d--) {
            if (d == inner)
                continue;
            /* The number of the row, split into indices of the other dimensions. */
            src_at += rest % to.dim[d] * from.stride[d];
            dst_at += rest % to.dim[d] * to.stride[d];
            rest /= to.dim[d];
        }
        copy_row(&from, src_at, &to, dst_at, inner, accumulate);
    }
    return WF_OK;
}

wf_status wf_ref_fill(wf_ctx *ctx, const wf_array *y, double value)
{
    (void)ctx;
    const int64_t n = wf_array_count(y), size = (int64_t)wf_dtype_size(y->dtype);
    /* The value is converted once and copied from there. */
    double chunk[CHUNK];
    for (int64_t i = 0; i < CHUNK; i++)
        chunk[i] = value;
    for (int64_t at = 0; at < n; at += CHUNK)
        wf_ref_store(y->dtype, (char *)y->data + at * size, 1, n - at < CHUNK ? n - at : CHUNK, chunk);
    return WF_OK;
}
