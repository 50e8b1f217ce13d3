/* Softmax over rows of contiguous channels. Sums are f32 within a row, in the order of the vector lanes: a row belongs
 * to one thread. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/side_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>

/* Inlined with a constant `logarithm`: a loop that asks for it is no loop of vectors. */
WF_CPU_INLINE void forward_row(bool logarithm, int64_t c, const float *x, float *y)
{
    /* NaN is no maximum, but makes the sum NaN, and that all of the row. */
    float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < c; j++)
        most = x[j] > most ? x[j] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < c; j++) {
        const float e = vm_exp(x[j] - most);
        sum += e;
        /* The logarithm is not taken of e, which may have underflowed to 0. */
        y[j] = logarithm ? x[j] - most : e;
    }
    const float scale = 1.0F / sum, log_sum = logf(sum);
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        y[j] = logarithm ? y[j] - log_sum : y[j] * scale;
}

/* n <= SIDE rows of few channels, side by side. */
WF_CPU_INLINE void forward_side(bool logarithm, int64_t n, int64_t c, const float *x, float *y)
{
    _Alignas(64) float v[SHORT_ROW * SIDE], most[SIDE], sum[SIDE] = {0};
    side_take(n, c, x, v);
    for (int64_t r = 0; r < SIDE; r++)
        most[r] = -INFINITY;
    for (int64_t j = 0; j < c; j++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            most[r] = v[j * SIDE + r] > most[r] ? v[j * SIDE + r] : most[r];
    }
    for (int64_t j = 0; j < c; j++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++) {
            const float below = v[j * SIDE + r] - most[r], e = vm_exp(below);
            sum[r] += e;
            v[j * SIDE + r] = logarithm ? below : e;
        }
    }
#pragma omp simd
    for (int64_t r = 0; r < SIDE; r++)
        sum[r] = logarithm ? vm_log(sum[r]) : 1.0F / sum[r];
    for (int64_t j = 0; j < c; j++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            v[j * SIDE + r] = logarithm ? v[j * SIDE + r] - sum[r] : v[j * SIDE + r] * sum[r];
    }
    side_put(n, c, v, y);
}

/* dx = y (dy - sum dy y) for softmax, dy - exp(y) sum dy for its logarithm. Both need y only, so x is not kept. */
static void backward_row(bool logarithm, int64_t c, const float *y, const float *dy, float *dx)
{
    float sum = 0;
    if (logarithm) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < c; j++)
            sum += dy[j];
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            dx[j] = dy[j] - vm_exp(y[j]) * sum;
        return;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < c; j++)
        sum += dy[j] * y[j];
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        dx[j] = y[j] * (dy[j] - sum);
}

wf_status wf_cpu_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y)
{
    int64_t c = 0;
    const int64_t rows = wf_cpu_rows(x, &c);
    if (x->dtype != WF_F32 || y->dtype != WF_F32)
        return wf_wide_softmax_forward(ctx, logarithm, x, y);
    const float *const in = x->data;
    float *const out = y->data;
    const int64_t step = c <= SHORT_ROW ? SIDE : 1;
    if (c == 0)
        return WF_OK;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 4 * rows * c)) schedule(static)
    for (int64_t r = 0; r < rows; r += step)
        if (step > 1 && logarithm)
            forward_side(true, wf_cpu_min(SIDE, rows - r), c, in + r * c, out + r * c);
        else if (step > 1)
            forward_side(false, wf_cpu_min(SIDE, rows - r), c, in + r * c, out + r * c);
        else if (logarithm)
            forward_row(true, c, in + r * c, out + r * c);
        else
            forward_row(false, c, in + r * c, out + r * c);
    return WF_OK;
}

wf_status wf_cpu_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                  const wf_array *dx)
{
    int64_t c = 0;
    const int64_t rows = wf_cpu_rows(y, &c);
    if (y->dtype != WF_F32 || dy->dtype != WF_F32 || dx->dtype != WF_F32)
        return wf_wide_softmax_backward(ctx, logarithm, y, dy, dx);
    const float *const yv = y->data, *const dyv = dy->data;
    float *const out = dx->data;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 4 * rows * c)) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        backward_row(logarithm, c, yv + r * c, dyv + r * c, out + r * c);
    return WF_OK;
}
