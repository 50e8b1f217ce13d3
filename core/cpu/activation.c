/* Activations and epilogues. Comparisons are written so that NaN comes through. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/vmath_impl.h"
#include "core/cpu/wide_impl.h"

static float relu(float x, float slope)
{
    return x < 0.0F ? slope * x : x;
}

static float elu(float x, float slope)
{
    return x < 0.0F ? slope * vm_expm1(x) : x;
}

static float clipped(float x)
{
    return x < 0.0F ? 0.0F : x;
}

/* One loop of the team over the elements; `value` is of x[i]. */
#define EACH(value)                                                                                                    \
    do {                                                                                                               \
        _Pragma("omp parallel for simd num_threads(team) schedule(static)") for (int64_t i = 0; i < n; i++)            \
        {                                                                                                              \
            const float v = x[i];                                                                                      \
            y[i] = (value);                                                                                            \
        }                                                                                                              \
    } while (0)

static void forward(wf_act act, float slope, int team, int64_t n, const float *x, float *y)
{
    switch (act) {
    case WF_ACT_RELU:
        EACH(clipped(v));
        break;
    case WF_ACT_LEAKY_RELU:
        EACH(relu(v, slope));
        break;
    case WF_ACT_ELU:
        EACH(elu(v, slope));
        break;
    case WF_ACT_GELU:
        EACH(vm_gelu(v));
        break;
    case WF_ACT_SIGMOID:
        EACH(vm_sigmoid(v));
        break;
    case WF_ACT_TANH:
        EACH(vm_tanh(v));
        break;
    case WF_ACT_SOFTPLUS:
        EACH(vm_softplus(v));
        break;
    case WF_ACT_NONE:
    case WF_ACTS:
        EACH(v);
        break;
    }
}

wf_status wf_cpu_act_forward(wf_ctx *ctx, const wf_act_args *args)
{
    const wf_array *const y = args->y;
    if (args->x->dtype != WF_F32 || y->dtype != WF_F32)
        return wf_wide_act_forward(ctx, args);
    const int64_t n = wf_array_count(y);
    forward(args->act, (float)args->slope, wf_cpu_team(ctx, n), n, args->x->data, y->data);
    return WF_OK;
}

/* `from` is x or y, whichever the derivative is known by. */
#define EACH_BACK(derivative)                                                                                          \
    do {                                                                                                               \
        if (accumulate) {                                                                                              \
            _Pragma("omp parallel for simd num_threads(team) schedule(static)") for (int64_t i = 0; i < n; i++)        \
            {                                                                                                          \
                const float v = from[i];                                                                               \
                dx[i] += dy[i] * (derivative);                                                                         \
            }                                                                                                          \
        } else {                                                                                                       \
            _Pragma("omp parallel for simd num_threads(team) schedule(static)") for (int64_t i = 0; i < n; i++)        \
            {                                                                                                          \
                const float v = from[i];                                                                               \
                dx[i] = dy[i] * (derivative);                                                                          \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

static void backward(wf_act act, float slope, bool accumulate, int team, int64_t n, const float *from, const float *dy,
                     float *dx)
{
    switch (act) {
    case WF_ACT_RELU:
        EACH_BACK(v <= 0.0F ? 0.0F : 1.0F);
        break;
    case WF_ACT_LEAKY_RELU:
        EACH_BACK(v <= 0.0F ? slope : 1.0F);
        break;
    case WF_ACT_ELU:
        EACH_BACK(v <= 0.0F ? v + slope : 1.0F);
        break;
    case WF_ACT_GELU:
        EACH_BACK(vm_gelu_slope(v));
        break;
    case WF_ACT_SIGMOID:
        EACH_BACK(v * (1.0F - v));
        break;
    case WF_ACT_TANH:
        EACH_BACK(1.0F - v * v);
        break;
    case WF_ACT_SOFTPLUS:
        EACH_BACK(vm_sigmoid(v));
        break;
    case WF_ACT_NONE:
    case WF_ACTS:
        EACH_BACK(((void)v, 1.0F));
        break;
    }
}

wf_status wf_cpu_act_backward(wf_ctx *ctx, const wf_act_args *args)
{
    const wf_array *const dy = args->dy, *const dx = args->dx;
    if (dx->dtype != WF_F32 || dy->dtype != WF_F32)
        return wf_wide_act_backward(ctx, args);
    const int64_t n = wf_array_count(dx);
    const bool by_x = args->act == WF_ACT_GELU || args->act == WF_ACT_SOFTPLUS;
    const float *from = wf_cpu_data(by_x ? args->x : args->y);
    backward(args->act, (float)args->slope, args->accumulate, wf_cpu_team(ctx, n), n, from ? from : dy->data, dy->data,
             dx->data);
    return WF_OK;
}

static void act_chunk(const wf_epilogue *epilogue, int64_t n, const float *x, float *y)
{
    const float slope = wf_epilogue_slope(epilogue);
    if (epilogue->act == WF_ACT_RELU)
        for (int64_t i = 0; i < n; i++)
            y[i] = clipped(x[i]);
    else
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
        wf_cpu_normals(&epilogue->random, order, lo + at, n, noisy);
        for (int64_t i = 0; i < n; i++)
            noisy[i] = vm_fma(sd, noisy[i], x[at + i]);
        act_chunk(epilogue, n, noisy, y + at);
    }
}

wf_status wf_cpu_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y)
{
    if (x->dtype != WF_F32 || y->dtype != WF_F32)
        return wf_wide_epilogue_forward(ctx, epilogue, x, y);
    const int64_t n = wf_array_count(y);
    const int team = wf_cpu_team(ctx, n);
    if (wf_epilogue_is_plain(epilogue)) {
        forward(WF_ACT_NONE, 0, team, n, x->data, y->data);
        return WF_OK;
    }
    const float *const in = x->data;
    float *const out = y->data;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t at = 0; at < n; at += WF_CPU_CHUNK)
        wf_epilogue_apply(epilogue, y->order, at, wf_cpu_min(WF_CPU_CHUNK, n - at), in + at, out + at);
    return WF_OK;
}

wf_status wf_cpu_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                   const wf_array *dv)
{
    if (dy->dtype != WF_F32 || dv->dtype != WF_F32)
        return wf_wide_epilogue_backward(ctx, epilogue, y, dy, dv);
    const int64_t n = wf_array_count(dv);
    const wf_act act = epilogue && wf_cpu_data(y) ? epilogue->act : WF_ACT_NONE;
    backward(act, wf_epilogue_slope(epilogue), false, wf_cpu_team(ctx, n), n, act == WF_ACT_NONE ? dy->data : y->data,
             dy->data, dv->data);
    return WF_OK;
}
