/* Fill, binary operations, and sums over all elements. Results do not depend on the number of threads. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/narrow_impl.h"

#include <string.h>

/* From one element, which stands for all: rounding is then the oracle's. */
static wf_status fill_narrow(wf_ctx *ctx, const wf_array *y, double value)
{
    const int64_t n = wf_array_count(y);
    uint16_t bits = 0;
    /* Rounded once, by the oracle's rule, and then copied with a stride of 0. */
    const wf_strided exact = {.data = &value, .dtype = WF_F64, .rank = 1, .dim = {1}, .stride = {1}};
    const wf_strided one = {.data = &bits, .dtype = y->dtype, .rank = 1, .dim = {1}, .stride = {1}};
    const wf_strided every = {.data = &bits, .dtype = y->dtype, .rank = 1, .dim = {n}, .stride = {0}};
    const wf_strided to = {.data = y->data, .dtype = y->dtype, .rank = 1, .dim = {n}, .stride = {1}};
    WF_TRY(REF->copy(ctx, &exact, &one, false));
    return wf_cpu_copy(ctx, &every, &to, false);
}

wf_status wf_cpu_fill(wf_ctx *ctx, const wf_array *y, double value)
{
    const int64_t n = wf_array_count(y);
    if (y->dtype == WF_BF16 || y->dtype == WF_F16)
        return fill_narrow(ctx, y, value);
    if (y->dtype != WF_F32)
        return REF->fill(ctx, y, value);
    const float v = (float)value;
    float *const out = y->data;
#pragma omp parallel for simd num_threads(wf_cpu_team(ctx, n)) schedule(static)
    for (int64_t i = 0; i < n; i++)
        out[i] = v;
    return WF_OK;
}

typedef struct combination {
    wf_binary op;
    float alpha, beta;
    bool accumulate;
} combination;

/* Two loops, so the look at `accumulate` is outside of them. */
#define EACH(value, added)                                                                                             \
    do {                                                                                                               \
        if (k->accumulate)                                                                                             \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++) wf_cpu_set(y, bf16, i, (added));                       \
        else                                                                                                           \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++) wf_cpu_set(y, bf16, i, (value));                       \
    } while (0)

#define A wf_cpu_at(a, bf16, i)
#define B wf_cpu_at(b, bf16, i)
#define Y wf_cpu_at(y, bf16, i)

/* Called with bf16 as a constant, so that each type has loops of its own. */
WF_CPU_INLINE void combine(bool bf16, const combination *k, int64_t n, const void *a, const void *b, void *y)
{
    const float alpha = k->alpha, beta = k->beta;
    if (!b)
        EACH(alpha * A, wf_fma(alpha, A, Y));
    else if (k->op == WF_BINARY_MUL)
        EACH(alpha * A * B, wf_fma(alpha * A, B, Y));
    else
        EACH(wf_fma(alpha, A, beta * B), Y + wf_fma(alpha, A, beta * B));
}

wf_status wf_cpu_binary(wf_ctx *ctx, const wf_binary_args *args)
{
    const wf_array *const a = args->a, *const b = args->b, *const y = args->y;
    if (!wf_cpu_is_float(a) || !wf_cpu_is_float(b) || !wf_cpu_is_float(y))
        return REF->binary(ctx, args);
    const combination k = {args->op, (float)args->alpha, (float)args->beta, args->accumulate};
    const int64_t total = wf_array_count(y);
    /* All three as bf16 need no buffers; mixed types go through float in chunks. */
    const bool bf16 = a->dtype == WF_BF16 && wf_cpu_is(b, WF_BF16) && y->dtype == WF_BF16;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t at = 0; at < total; at += WF_CPU_CHUNK) {
        float left[WF_CPU_CHUNK], right[WF_CPU_CHUNK], out[WF_CPU_CHUNK];
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, total - at);
        if (bf16) {
            combine(true, &k, n, (const uint16_t *)a->data + at, wf_cpu_data(b) ? (const uint16_t *)b->data + at : NULL,
                    (uint16_t *)y->data + at);
            continue;
        }
        float *const to = wf_cpu_place(y, at, n, args->accumulate, out);
        combine(false, &k, n, wf_cpu_read(a, at, n, left), wf_cpu_read(b, at, n, right), to);
        wf_cpu_put(y, at, n, to);
    }
    return WF_OK;
}

/* Sums are made in parts whose bounds depend on n alone, and the parts are added in order: the number of threads does
 * not show in the result. */
enum { PARTS = 64, STRIDE = 64 };

/* Returns the sum of n elements, or of their squares, in double: f32 would lose the small ones of a long array. */
static double part_sum(const float *x, int64_t n, bool squares)
{
    /* 64 sums side by side keep vectors of double busy, and their number is fixed: the order of additions is the same
     * on every machine. */
    double lane[STRIDE] = {0}, total = 0;
    int64_t at = 0;
    for (; at + STRIDE <= n; at += STRIDE)
        for (int l = 0; l < STRIDE; l++) {
            const double v = x[at + l];
            lane[l] += squares ? v * v : v;
        }
    /* The rest goes to the lanes in order, as if the array went on. */
    for (; at < n; at++)
        lane[at % STRIDE] += squares ? (double)x[at] * (double)x[at] : (double)x[at];
    for (int l = 0; l < STRIDE; l++)
        total += lane[l];
    return total;
}

static double array_sum(const wf_ctx *ctx, const wf_array *x, bool squares)
{
    const int64_t n = wf_array_count(x);
    const float *const in = x->data;
    double part[PARTS], total = 0;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, n)) schedule(static)
    for (int p = 0; p < PARTS; p++) {
        int64_t lo, hi;
        wf_block(n, PARTS, p, &lo, &hi);
        part[p] = hi > lo ? part_sum(in + lo, hi - lo, squares) : 0;
    }
    for (int p = 0; p < PARTS; p++)
        total += part[p];
    return total;
}

wf_status wf_cpu_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y)
{
    if (x->dtype != WF_F32 || y->dtype != WF_F32)
        return wf_wide_sum(ctx, x, scale, y);
    *(float *)y->data = (float)(scale * array_sum(ctx, x, false));
    return WF_OK;
}

wf_status wf_cpu_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate)
{
    if (x->dtype != WF_F32 || out->dtype != WF_F64)
        return wf_wide_sum_squares(ctx, x, out, accumulate);
    double *const total = out->data;
    const double sum = array_sum(ctx, x, true);
    *total = accumulate ? *total + sum : sum;
    return WF_OK;
}
