/* Reductions of buffers of the host, in the order of their inputs. */
#include "comm/engine/engine_impl.h"
#include "core/boundary_author.h"
#include "core/processor_author.h"

#include <string.h>

#define TILE 2048 /* elements: accumulators stay in the first-level cache */

/* Sums and products of integers wrap, which C promises for unsigned types alone. */
#define LOOP(expression)                                                                                               \
    for (int64_t i = 0; i < n; i++)                                                                                    \
    y[i] = (expression)
#define COMBINE(name, type, wrapping)                                                                                  \
    WF_LEVELS static void combine_##name(wf_reduce_op op, const type *a, const type *b, type *y, int64_t n)            \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case WF_SUM:                                                                                                   \
            LOOP((type)((wrapping)a[i] + (wrapping)b[i]));                                                             \
            break;                                                                                                     \
        case WF_PROD:                                                                                                  \
            LOOP((type)((wrapping)a[i] * (wrapping)b[i]));                                                             \
            break;                                                                                                     \
        case WF_MAX:                                                                                                   \
            LOOP(a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]);                                                           \
            break;                                                                                                     \
        case WF_MIN:                                                                                                   \
            LOOP(a[i] < b[i] || a[i] != a[i] ? a[i] : b[i]);                                                           \
            break;                                                                                                     \
        }                                                                                                              \
    }
COMBINE(f32, float, float)
COMBINE(f64, double, double)
COMBINE(i32, int32_t, uint32_t)
COMBINE(i64, int64_t, uint64_t)
COMBINE(u8, uint8_t, uint32_t)

static void combine_two(wf_reduce_op op, wf_dtype dtype, const void *a, const void *b, void *y, int64_t n)
{
    switch (dtype) {
    case WF_F32:
        combine_f32(op, a, b, y, n);
        break;
    case WF_F64:
        combine_f64(op, a, b, y, n);
        break;
    case WF_I32:
        combine_i32(op, a, b, y, n);
        break;
    case WF_I64:
        combine_i64(op, a, b, y, n);
        break;
    default:
        combine_u8(op, a, b, y, n);
        break;
    }
}

/* y may be an input: all but the last have been read where y is written. */
static void combine_tile(wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, size_t at, void *y,
                         int64_t n)
{
    double accumulator[TILE];
    const void *so_far = (const char *)in[0] + at;
    for (int p = 1; p < inputs; p++) {
        void *to = p == inputs - 1 ? (char *)y + at : (void *)accumulator;
        combine_two(op, dtype, so_far, (const char *)in[p] + at, to, n);
        so_far = to;
    }
}

static wf_status convert(wf_ctx *ctx, wf_dtype from, const void *x, wf_dtype to, void *y, int64_t n)
{
    const wf_kernels *k = ctx->k->host ? ctx->k : wf_kernels_ref();
    const wf_strided src = wf_strided_row(x, from, n), dst = wf_strided_row(y, to, n);
    return k->copy(ctx, &src, &dst, false);
}

static wf_status combine_half(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in,
                              size_t at, void *y, int64_t n)
{
    float accumulator[TILE], next[TILE];
    WF_TRY(convert(ctx, dtype, (const char *)in[0] + at, WF_F32, accumulator, n));
    for (int p = 1; p < inputs; p++) {
        WF_TRY(convert(ctx, dtype, (const char *)in[p] + at, WF_F32, next, n));
        combine_f32(op, accumulator, next, accumulator, n);
    }
    return convert(ctx, WF_F32, accumulator, dtype, (char *)y + at, n);
}

wf_status wf_combine(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, void *y,
                     int64_t count)
{
    const size_t size = wf_dtype_size(dtype);
    const bool half = dtype == WF_BF16 || dtype == WF_F16;
    if (inputs == 1 && count > 0 && y != in[0])
        memcpy(y, in[0], (size_t)count * size);
    if (inputs == 1)
        return WF_OK;
    for (int64_t i = 0; i < count; i += TILE) {
        const int64_t n = count - i < TILE ? count - i : TILE;
        if (half)
            WF_TRY(combine_half(ctx, op, dtype, inputs, in, (size_t)i * size, y, n));
        else
            combine_tile(op, dtype, inputs, in, (size_t)i * size, y, n);
    }
    return WF_OK;
}
