#include "core/cuda/act_impl.h"
#include "core/cuda/map_impl.h"

template <class W> struct act_map {
    using state = nothing;
    wf_act act;
    W slope;
    __device__ void begin(nothing *) const
    {
    }
    __device__ W operator()(nothing *, int64_t, const W *v) const
    {
        return act_value(act, slope, v[0]);
    }
};

wf_status wf_cuda_act_forward(wf_ctx *ctx, const wf_act_args *args)
{
    return of_float(args->y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return map<T, 1>(ctx, {args->x}, args->y, act_map<wide<T>>{args->act, (wide<T>)args->slope});
    });
}

/* v: x or y, dy, and what dx held where the result is added to it. */
template <class W> struct act_backward_map {
    using state = nothing;
    wf_act act;
    W slope;
    bool accumulate;
    __device__ void begin(nothing *) const
    {
    }
    __device__ W operator()(nothing *, int64_t, const W *v) const
    {
        const W d = v[1] * act_derivative(act, slope, v[0]);
        return accumulate ? v[2] + d : d;
    }
};

/* A third input that is not wanted is the second once more: it comes from the cache. */
static wf_status back(wf_ctx *ctx, wf_act act, double slope, const wf_array *by, const wf_array *dy, const wf_array *dx,
                      bool accumulate)
{
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        const act_backward_map<wide<T>> f = {act, (wide<T>)slope, accumulate};
        return accumulate ? map<T, 3>(ctx, {by, dy, dx}, dx, f) : map<T, 2>(ctx, {by, dy}, dx, f);
    });
}

wf_status wf_cuda_act_backward(wf_ctx *ctx, const wf_act_args *args)
{
    const wf_act act = args->act;
    const wf_array *const by = act == WF_ACT_NONE ? args->dy : wf_act_by_x(act) ? args->x : args->y;
    return back(ctx, act, args->slope, by, args->dy, args->dx, args->accumulate);
}

wf_status wf_cuda_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                    const wf_array *dv)
{
    const wf_act act = epilogue && y ? epilogue->act : WF_ACT_NONE;
    return back(ctx, act, act == WF_ACT_NONE ? 0 : epilogue->slope, act == WF_ACT_NONE ? dy : y, dy, dv, false);
}

template <class W, bool NOISY> struct epilogue_map {
    using state = typename epilogue<W, NOISY>::state;
    epilogue<W, NOISY> e;
    __device__ void begin(state *s) const
    {
        e.begin(s);
    }
    __device__ W operator()(state *s, int64_t i, const W *v) const
    {
        return e.of(s, i, v[0]);
    }
};

wf_status wf_cuda_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y)
{
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return of_noise(epilogue, [&](auto noisy) {
            constexpr bool N = decltype(noisy)::value;
            return map<T, 1>(ctx, {x}, y, epilogue_map<wide<T>, N>{epilogue_of<wide<T>, N>(epilogue, y->order)});
        });
    });
}

/* v: a, then b and what y held, where they are wanted. */
template <class W> struct binary_map {
    using state = nothing;
    bool product, second, accumulate;
    W alpha, beta;
    __device__ void begin(nothing *) const
    {
    }
    __device__ W operator()(nothing *, int64_t, const W *v) const
    {
        W r = alpha * v[0];
        if (second)
            r = product ? r * v[1] : r + beta * v[1];
        return accumulate ? r + v[second ? 2 : 1] : r;
    }
};

wf_status wf_cuda_binary(wf_ctx *ctx, const wf_binary_args *args)
{
    const wf_array *const a = args->a, *const b = args->b, *const y = args->y;
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        const binary_map<wide<T>> f = {args->op == WF_BINARY_MUL, b != nullptr, args->accumulate, (wide<T>)args->alpha,
                                       (wide<T>)args->beta};
        if (b && args->accumulate)
            return map<T, 3>(ctx, {a, b, y}, y, f);
        return b || args->accumulate ? map<T, 2>(ctx, {a, b ? b : y}, y, f) : map<T, 1>(ctx, {a}, y, f);
    });
}
