/* Activations and their derivatives, written so that NaN comes through, and the epilogue of a layer. */
#ifndef WF_CORE_CUDA_ACT_IMPL_H
#define WF_CORE_CUDA_ACT_IMPL_H

#include "core/cuda/noise_impl.h"

/* The curved ones are calls: they cost more than a call, and kernels stay small. */
template <class W> __device__ __noinline__ W act_curve(wf_act act, W slope, W x)
{
    switch (act) {
    case WF_ACT_ELU:
        return x < 0 ? slope * expm1(x) : x;
    case WF_ACT_GELU:
        return (W)0.5 * x * (1 + erf(x * (W)0.70710678118654752440));
    case WF_ACT_SIGMOID:
        return 1 / (1 + exp(-x));
    case WF_ACT_TANH:
        return tanh(x);
    case WF_ACT_SILU:
        return x / (1 + exp(-x));
    case WF_ACT_GELU_TANH:
        return (W)0.5 * x * (1 + tanh((W)WF_GELU_SCALE * (x + (W)WF_GELU_CUBE * x * x * x)));
    case WF_ACT_HARD_SWISH:
        return x < -3 ? 0 : x > 3 ? x : x * (x + 3) / 6;
    case WF_ACT_SELU:
        return x < 0 ? (W)WF_SELU_ALPHA * expm1(x) : (W)WF_SELU_SCALE * x;
    case WF_ACT_EXP:
        return exp(x);
    case WF_ACT_LOG:
        return log(x);
    case WF_ACT_SQRT:
        return sqrt(x);
    case WF_ACT_POW:
        return pow(x, slope);
    case WF_ACT_ABS:
        return fabs(x);
    default: /* softplus */
        return log1p(exp(-fabs(x))) + (x < 0 ? 0 : x);
    }
}

template <class W> __device__ inline W act_value(wf_act act, W slope, W x)
{
    if (act == WF_ACT_NONE)
        return x;
    if (act == WF_ACT_RELU || act == WF_ACT_LEAKY_RELU)
        return x < 0 ? (act == WF_ACT_RELU ? 0 : slope * x) : x;
    return act_curve(act, slope, x);
}

template <class W> __device__ inline W gelu_tanh_derivative(W x)
{
    const W t = tanh((W)WF_GELU_SCALE * (x + (W)WF_GELU_CUBE * x * x * x));
    return (W)0.5 * (1 + t) + (W)0.5 * x * (1 - t * t) * (W)WF_GELU_SCALE * (1 + 3 * (W)WF_GELU_CUBE * x * x);
}

template <class W> __device__ inline W silu_derivative(W x)
{
    const W s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
}

/* From x or y, as wf_act_by_x says. */
template <class W> __device__ __noinline__ W curve_derivative(wf_act act, W slope, W v)
{
    switch (act) {
    case WF_ACT_ELU:
        return v <= 0 ? v + slope : 1;
    case WF_ACT_GELU:
        return (W)0.5 * (1 + erf(v * (W)0.70710678118654752440)) + v * (W)0.39894228040143267794 * exp((W)-0.5 * v * v);
    case WF_ACT_SIGMOID:
        return v * (1 - v);
    case WF_ACT_TANH:
        return 1 - v * v;
    case WF_ACT_SILU:
        return silu_derivative(v);
    case WF_ACT_GELU_TANH:
        return gelu_tanh_derivative(v);
    case WF_ACT_HARD_SWISH:
        return v <= -3 ? 0 : v >= 3 ? 1 : (2 * v + 3) / 6;
    case WF_ACT_SELU:
        return v <= 0 ? v + (W)WF_SELU_ALPHA : (W)WF_SELU_SCALE;
    case WF_ACT_EXP:
        return v;
    case WF_ACT_LOG:
        return 1 / v;
    case WF_ACT_SQRT:
        return (W)0.5 / v;
    case WF_ACT_POW:
        return slope == 0 ? 0 : slope * pow(v, slope - 1);
    case WF_ACT_ABS:
        return v > 0 ? 1 : v < 0 ? -1 : v;
    default: /* softplus */
        return 1 / (1 + exp(-v));
    }
}

template <class W> __device__ inline W act_derivative(wf_act act, W slope, W v)
{
    if (act == WF_ACT_NONE)
        return 1;
    if (act == WF_ACT_RELU || act == WF_ACT_LEAKY_RELU)
        return v <= 0 ? (act == WF_ACT_RELU ? 0 : slope) : 1;
    return curve_derivative(act, slope, v);
}

/* The activation of an epilogue: none, ReLU or leaky ReLU (wf_epilogue), so that one comparison decides and no kernel
 * branches. Below zero ReLU gives 0 and not 0 x, which would be NaN for -inf. */
template <class W> struct edge {
    bool relu;
    W slope; /* of negative numbers: 0 for ReLU, 1 for none */

    __device__ W value(W x) const
    {
        const W low = relu ? 0 : slope * x;
        return x < 0 ? low : x;
    }

    /* The derivative where y is at most `zero`: 0, or what rounds to it. NaN counts as above. */
    __device__ W derivative(W y, W zero) const
    {
        return y <= zero ? slope : 1;
    }
};

template <class W> edge<W> edge_of(const wf_epilogue *e)
{
    if (!e || e->act == WF_ACT_NONE)
        return edge<W>{false, 1};
    return e->act == WF_ACT_RELU ? edge<W>{true, 0} : edge<W>{false, (W)e->slope};
}

/* y = act(v + noise n) for element i; a thread keeps `state`. */
template <class W, bool NOISY> struct epilogue {
    using state = nothing;
    edge<W> act;

    __device__ void begin(state *) const
    {
    }

    __device__ W of(state *, int64_t, W v) const
    {
        return act.value(v);
    }
};

template <class W> struct epilogue<W, true> {
    using state = normal_block<W>;
    edge<W> act;
    W deviation;
    noise_source source;

    __device__ void begin(state *s) const
    {
        s->begin(source);
    }

    __device__ W of(state *s, int64_t i, W v) const
    {
        return act.value(v + deviation * s->at(source, i));
    }
};

/* NULL: nothing is to be done. */
template <class W, bool NOISY> epilogue<W, NOISY> epilogue_of(const wf_epilogue *e, wf_order order)
{
    epilogue<W, NOISY> out = {};
    out.act = edge_of<W>(e);
    if constexpr (NOISY) {
        out.deviation = (W)e->noise;
        out.source = noise_of(&e->random, order);
    }
    return out;
}

template <bool B> struct flag {
    static constexpr bool value = B;
};

/* f(flag), whose value tells whether the epilogue has noise: kernels without it are a fraction of the size. */
template <class F> wf_status of_noise(const wf_epilogue *e, F f)
{
    return e && e->noise != 0 ? f(flag<true>()) : f(flag<false>());
}

#endif
