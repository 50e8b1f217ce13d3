/* Activations and epilogues. Comparisons are written so that NaN comes through. The team shares chunks that fit the
 * first-level cache; f16 is widened and narrowed there, bf16 in registers. f64 goes to `ref`. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>

WF_CPU_INLINE float relu(float x, float slope)
{
    return x < 0.0F ? slope * x : x;
}

WF_CPU_INLINE float elu(float x, float slope)
{
    return x < 0.0F ? slope * vm_expm1(x) : x;
}

/* Its own function, since the product with a slope of 0 would give -0 for negative inputs. */
WF_CPU_INLINE float clipped(float x)
{
    return x < 0.0F ? 0.0F : x;
}

/* `value` is of v, which is element i of x. */
#define EACH(value)                                                                                                    \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                            \
        {                                                                                                              \
            const float v = wf_cpu_at(x, bf16, i);                                                                     \
            wf_cpu_set(y, bf16, i, (value));                                                                           \
        }                                                                                                              \
    } while (0)

WF_CPU_INLINE float hard_swish(float x)
{
    /* Both bounds are written so that NaN takes the last branch. */
    return x < -3.0F ? 0.0F : x > 3.0F ? x : x * (x + 3.0F) * (1.0F / 6.0F);
}

WF_CPU_INLINE float selu(float x)
{
    return x < 0.0F ? (float)WF_SELU_ALPHA * vm_expm1(x) : (float)WF_SELU_SCALE * x;
}

/* powf is no loop of vectors: exponents that are often used have forms of their own. */
#define POWERS(LOOP, p, factor)                                                                                        \
    do {                                                                                                               \
        if ((p) == 1.0F)                                                                                               \
            LOOP((factor)*v);                                                                                          \
        else if ((p) == 2.0F)                                                                                          \
            LOOP((factor)*v *v);                                                                                       \
        else if ((p) == -1.0F)                                                                                         \
            LOOP((factor) / v);                                                                                        \
        else                                                                                                           \
            LOOP((factor)*powf(v, p));                                                                                 \
    } while (0)

#define CASE(act, value)                                                                                               \
    case act:                                                                                                          \
        EACH(value);                                                                                                   \
        break;

WF_CPU_INLINE void forward(bool bf16, wf_act act, float slope, int64_t n, const void *x, void *y)
{
    switch (act) {
        CASE(WF_ACT_RELU, clipped(v))
        CASE(WF_ACT_LEAKY_RELU, relu(v, slope))
        CASE(WF_ACT_ELU, elu(v, slope))
        CASE(WF_ACT_GELU, vm_gelu(v))
        CASE(WF_ACT_SIGMOID, vm_sigmoid(v))
        CASE(WF_ACT_TANH, vm_tanh(v))
        CASE(WF_ACT_SOFTPLUS, vm_softplus(v))
        CASE(WF_ACT_SILU, vm_silu(v))
        CASE(WF_ACT_GELU_TANH, vm_gelu_tanh(v))
        CASE(WF_ACT_HARD_SWISH, hard_swish(v))
        CASE(WF_ACT_SELU, selu(v))
        CASE(WF_ACT_EXP, vm_exp(v))
        CASE(WF_ACT_LOG, vm_log(v))
        CASE(WF_ACT_SQRT, sqrtf(v))
        CASE(WF_ACT_ABS, vm_abs(v))
    case WF_ACT_POW:
        POWERS(EACH, slope, 1.0F);
        break;
    case WF_ACT_NONE:
    case WF_ACTS:
        EACH(v);
        break;
    }
}

static void forward_all(const wf_ctx *ctx, wf_act act, float slope, const wf_array *x, const wf_array *y)
{
    const int64_t total = wf_array_count(y);
    const bool bf16 = x->dtype == WF_BF16 && y->dtype == WF_BF16;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t at = 0; at < total; at += WF_CPU_CHUNK) {
        float in[WF_CPU_CHUNK], out[WF_CPU_CHUNK];
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, total - at);
        if (bf16) {
            forward(true, act, slope, n, (const uint16_t *)x->data + at, (uint16_t *)y->data + at);
            continue;
        }
        float *const to = wf_cpu_place(y, at, n, false, out);
        forward(false, act, slope, n, wf_cpu_read(x, at, n, in), to);
        wf_cpu_put(y, at, n, to);
    }
}

wf_status wf_cpu_act_forward(wf_ctx *ctx, const wf_act_args *args)
{
    if (!wf_cpu_is_float(args->x) || !wf_cpu_is_float(args->y))
        return REF->act_forward(ctx, args);
    forward_all(ctx, args->act, (float)args->slope, args->x, args->y);
    return WF_OK;
}

/* `derivative` is of v, element i of x or y, whichever it is known by. */
#define EACH_BACK(derivative)                                                                                          \
    do {                                                                                                               \
        if (accumulate) {                                                                                              \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                        \
            {                                                                                                          \
                const float v = wf_cpu_at(from, bf16, i), g = wf_cpu_at(dy, bf16, i);                                  \
                wf_cpu_set(dx, bf16, i, wf_cpu_at(dx, bf16, i) + g * (derivative));                                    \
            }                                                                                                          \
        } else {                                                                                                       \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                        \
            {                                                                                                          \
                const float v = wf_cpu_at(from, bf16, i), g = wf_cpu_at(dy, bf16, i);                                  \
                wf_cpu_set(dx, bf16, i, g *(derivative));                                                              \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

WF_CPU_INLINE float hard_swish_slope(float x)
{
    return x <= -3.0F ? 0.0F : x >= 3.0F ? 1.0F : (2.0F * x + 3.0F) * (1.0F / 6.0F);
}

#define CASE_BACK(act, derivative)                                                                                     \
    case act:                                                                                                          \
        EACH_BACK(derivative);                                                                                         \
        break;

WF_CPU_INLINE void power_backward(bool bf16, float slope, bool accumulate, int64_t n, const void *from, const void *dy,
                                  void *dx)
{
    /* Powers 0 and 1 have constant slopes; by the formula 0 to the power -1 would be infinite, and times 0 a NaN. */
    if (slope == 0.0F || slope == 1.0F)
        EACH_BACK(((void)v, slope));
    else
        POWERS(EACH_BACK, slope - 1.0F, slope);
}

/* SiLU to SELU, and functions of one number. */
WF_CPU_INLINE void newer_backward(bool bf16, wf_act act, bool accumulate, int64_t n, const void *from, const void *dy,
                                  void *dx)
{
    switch (act) {
        CASE_BACK(WF_ACT_SILU, vm_silu_slope(v))
        CASE_BACK(WF_ACT_GELU_TANH, vm_gelu_tanh_slope(v))
        CASE_BACK(WF_ACT_HARD_SWISH, hard_swish_slope(v))
        CASE_BACK(WF_ACT_SELU, v <= 0.0F ? v + (float)WF_SELU_ALPHA : (float)WF_SELU_SCALE)
        CASE_BACK(WF_ACT_EXP, v)
        CASE_BACK(WF_ACT_LOG, 1.0F / v)
        CASE_BACK(WF_ACT_SQRT, 0.5F / v)
        CASE_BACK(WF_ACT_ABS, v > 0.0F ? 1.0F : v < 0.0F ? -1.0F : v)
    default:
        break;
    }
}

/* v is y for the activations whose slope follows from y (ReLU to tanh, exp, sqrt, SELU), so that x need not be kept,
 * and x for the others: wf_act_by_x tells. ELU below 0, for example, has the slope exp(x) times its own, y + slope. */
WF_CPU_INLINE void backward(bool bf16, wf_act act, float slope, bool accumulate, int64_t n, const void *from,
                            const void *dy, void *dx)
{
    switch (act) {
        CASE_BACK(WF_ACT_RELU, v <= 0.0F ? 0.0F : 1.0F)
        CASE_BACK(WF_ACT_LEAKY_RELU, v <= 0.0F ? slope : 1.0F)
        CASE_BACK(WF_ACT_ELU, v <= 0.0F ? v + slope : 1.0F)
        CASE_BACK(WF_ACT_GELU, vm_gelu_slope(v))
        CASE_BACK(WF_ACT_SIGMOID, v * (1.0F - v))
        CASE_BACK(WF_ACT_TANH, 1.0F - v * v)
        CASE_BACK(WF_ACT_SOFTPLUS, vm_sigmoid(v))
    case WF_ACT_POW:
        power_backward(bf16, slope, accumulate, n, from, dy, dx);
        break;
    case WF_ACT_NONE:
        EACH_BACK(((void)v, 1.0F));
        break;
    default:
        newer_backward(bf16, act, accumulate, n, from, dy, dx);
        break;
    }
}

/* `from`: x or y, or NULL where the derivative is 1. */
static void backward_all(const wf_ctx *ctx, wf_act act, float slope, bool accumulate, const wf_array *from,
                         const wf_array *dy, const wf_array *dx)
{
    const int64_t total = wf_array_count(dx);
    const bool bf16 = wf_cpu_is(from, WF_BF16) && dy->dtype == WF_BF16 && dx->dtype == WF_BF16;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t at = 0; at < total; at += WF_CPU_CHUNK) {
        float known[WF_CPU_CHUNK], up[WF_CPU_CHUNK], out[WF_CPU_CHUNK];
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, total - at);
        /* Any readable memory serves as `from` where the derivative is 1. */
        if (bf16) {
            const uint16_t *const g = (const uint16_t *)dy->data + at;
            backward(true, act, slope, accumulate, n, wf_cpu_data(from) ? (const uint16_t *)from->data + at : g, g,
                     (uint16_t *)dx->data + at);
            continue;
        }
        const float *const g = wf_cpu_read(dy, at, n, up), *const v = wf_cpu_read(from, at, n, known);
        float *const to = wf_cpu_place(dx, at, n, accumulate, out);
        backward(false, act, slope, accumulate, n, v ? v : g, g, to);
        wf_cpu_put(dx, at, n, to);
    }
}

wf_status wf_cpu_act_backward(wf_ctx *ctx, const wf_act_args *args)
{
    const bool by_x = wf_act_by_x(args->act);
    const wf_array *const from = by_x ? args->x : args->y;
    /* f64 is for proofs alone, so it goes to the oracle; so does everything that no fast loop takes. */
    if (!wf_cpu_is_float(from) || !wf_cpu_is_float(args->dx) || !wf_cpu_is_float(args->dy))
        return REF->act_backward(ctx, args);
    backward_all(ctx, args->act, (float)args->slope, args->accumulate, from, args->dy, args->dx);
    return WF_OK;
}

/* Only activations whose sign of y is that of their input may be in an epilogue, since backward has y only: ReLU and
 * leaky ReLU. */
static void act_chunk(const wf_epilogue *epilogue, int64_t n, const float *x, float *y)
{
    const float slope = wf_epilogue_slope(epilogue);
    if (epilogue->act == WF_ACT_RELU)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = clipped(x[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = relu(x[i], slope);
}

void wf_epilogue_apply(const wf_epilogue *epilogue, wf_order order, int64_t lo, int64_t count, const float *x, float *y)
{
    float noisy[WF_CPU_CHUNK];
    const float sd = (float)epilogue->noise;
    if (epilogue->noise == 0) {
        act_chunk(epilogue, count, x, y);
        return;
    }
    for (int64_t at = 0; at < count; at += WF_CPU_CHUNK) {
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, count - at);
        /* Noise is drawn for a chunk at a time and used while it is in the first-level cache; it never exists as an
         * array. */
        wf_cpu_normals(&epilogue->random, order, lo + at, n, noisy);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            noisy[i] = wf_fma(sd, noisy[i], x[at + i]);
        act_chunk(epilogue, n, noisy, y + at);
    }
}

wf_status wf_cpu_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y)
{
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y))
        return REF->epilogue_forward(ctx, epilogue, x, y);
    if (wf_epilogue_is_plain(epilogue)) {
        forward_all(ctx, WF_ACT_NONE, 0, x, y);
        return WF_OK;
    }
    const int64_t total = wf_array_count(y);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t at = 0; at < total; at += WF_CPU_CHUNK) {
        float in[WF_CPU_CHUNK], out[WF_CPU_CHUNK];
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, total - at);
        float *const to = wf_cpu_place(y, at, n, false, out);
        wf_epilogue_apply(epilogue, y->order, at, n, wf_cpu_read(x, at, n, in), to);
        wf_cpu_put(y, at, n, to);
    }
    return WF_OK;
}

wf_status wf_cpu_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                   const wf_array *dv)
{
    if (!wf_cpu_is_float(y) || !wf_cpu_is_float(dy) || !wf_cpu_is_float(dv))
        return REF->epilogue_backward(ctx, epilogue, y, dy, dv);
    /* Without y there was no activation, and dy passes unchanged. */
    const wf_act act = epilogue && wf_cpu_data(y) ? epilogue->act : WF_ACT_NONE;
    backward_all(ctx, act, wf_epilogue_slope(epilogue), false, act == WF_ACT_NONE ? NULL : y, dy, dv);
    return WF_OK;
}
