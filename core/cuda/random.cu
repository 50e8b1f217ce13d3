/* Random fills and dropout. Element i of an array gets the number that belongs to its global index, so the values are
 * the same on any number of ranks and on any device; noise_impl.h says how. Nothing is stored between calls: the state
 * is a counter that the caller passes. */
#include "core/cuda/map_impl.h"
#include "core/cuda/noise_impl.h"

/* 24 bits, since f32 holds each of their multiples of 2^-24 exactly. */
template <class W> struct uniform_map {
    using state = noise_block;
    W low, width, top;
    noise_source source;
    __device__ void begin(state *s) const
    {
        s->begin(source);
    }
    __device__ W operator()(state *s, int64_t i, const W *) const
    {
        const W v = low + width * ((W)noise_bits(source, s, i) * (W)0x1p-24);
        /* Rounding may reach the upper end, which does not belong to [a, b). */
        return v < top ? v : top;
    }
};

template <class W> struct normal_map {
    using state = normal_block<W>;
    W mean, deviation;
    noise_source source;
    __device__ void begin(state *s) const
    {
        s->begin(source);
    }
    __device__ W operator()(state *s, int64_t i, const W *) const
    {
        return mean + deviation * s->at(source, i);
    }
};

/* Initial values alone are drawn like this, so it is computed in double, as elsewhere. */
template <class W> struct truncated_map {
    using state = noise_block;
    double mean, deviation;
    noise_source source;
    __device__ void begin(state *s) const
    {
        s->begin(source);
    }
    __device__ W operator()(state *s, int64_t i, const W *) const
    {
        return (W)(mean + deviation * wf_random_truncated((double)noise_bits(source, s, i) * 0x1p-24));
    }
};

wf_status wf_cuda_random(wf_ctx *ctx, wf_distribution dist, const wf_random *random, double a, double b,
                         const wf_array *y)
{
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide<T>;
        if (dist == WF_NORMAL)
            return map<T, 0>(ctx, {nullptr}, y, normal_map<W>{(W)a, (W)b, noise_of(random, y->order)});
        if (dist == WF_TRUNCATED)
            return map<T, 0>(ctx, {nullptr}, y, truncated_map<W>{a, b, noise_of(random, y->order)});
        return map<T, 0>(
            ctx, {nullptr}, y,
            uniform_map<W>{(W)a, (W)(b - a), (W)wf_random_top(a, b, y->dtype), noise_of(random, y->order)});
    });
}

/* Kept where word >= threshold, which is u >= rate for the 24 bits of u. The mask is never kept: the backward pass
 * draws the same numbers for the same global indices and multiplies dy. */
template <class W> struct dropout_map {
    using state = noise_block;
    uint32_t threshold;
    W scale;
    noise_source source;
    __device__ void begin(state *s) const
    {
        s->begin(source);
    }
    __device__ W operator()(state *s, int64_t i, const W *v) const
    {
        return noise_bits(source, s, i) < threshold ? 0 : v[0] * scale;
    }
};

wf_status wf_cuda_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y)
{
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide<T>;
        return map<T, 1>(
            ctx, {x}, y,
            dropout_map<W>{(uint32_t)ceil(rate * 0x1p24), (W)(1 / (1 - rate)), noise_of(random, y->order)});
    });
}
