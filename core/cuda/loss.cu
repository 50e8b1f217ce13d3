/* Sums, and losses that are sums. */
#include "core/cuda/map_impl.h"
#include "core/cuda/reduce_impl.h"

template <class W> struct sum_term {
    double scale;
    any_output y;
    __device__ double operator()(const W *v) const
    {
        return v[0];
    }
    __device__ void finish(double sum) const
    {
        y.put(0, scale * sum);
    }
};

wf_status wf_cuda_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y)
{
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        return reduce<T, 1>(ctx, {x}, sum_term<wide<T>>{scale, output_of(y)});
    });
}

template <class W> struct square_term {
    double *out;
    bool accumulate;
    __device__ double operator()(const W *v) const
    {
        return (double)v[0] * (double)v[0];
    }
    __device__ void finish(double sum) const
    {
        *out = accumulate ? *out + sum : sum;
    }
};

wf_status wf_cuda_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate)
{
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        return reduce<T, 1>(ctx, {x}, square_term<wide<T>>{out_of<double>(out), accumulate});
    });
}

template <class W> __device__ inline W loss_value(wf_loss_kind kind, W x, W t)
{
    if (kind == WF_LOSS_BCE_LOGITS)
        return (x < 0 ? 0 : x) - x * t + log1p(exp(-fabs(x)));
    return kind == WF_LOSS_MSE ? (x - t) * (x - t) : fabs(x - t);
}

template <class W> __device__ inline W loss_derivative(wf_loss_kind kind, W x, W t)
{
    if (kind == WF_LOSS_BCE_LOGITS)
        return 1 / (1 + exp(-x)) - t;
    if (kind == WF_LOSS_MSE)
        return 2 * (x - t);
    return x > t ? 1 : x < t ? -1 : x - t;
}

/* v: x, and the target where there is one. */
template <class W> struct loss_term {
    wf_loss_kind kind;
    bool target;
    W value;
    double scale;
    any_output loss;
    __device__ double operator()(const W *v) const
    {
        return loss_value(kind, v[0], target ? v[1] : value);
    }
    __device__ void finish(double sum) const
    {
        loss.put(0, scale * sum);
    }
};

wf_status wf_cuda_loss_forward(wf_ctx *ctx, const wf_loss_args *args)
{
    const wf_array *const x = args->x, *const target = args->target;
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        const loss_term<wide<T>> f = {args->kind, target != nullptr, (wide<T>)args->value, args->scale,
                                      output_of(args->loss)};
        return target ? reduce<T, 2>(ctx, {x, target}, f) : reduce<T, 1>(ctx, {x}, f);
    });
}

template <class W> struct loss_backward_map {
    struct state {
        W factor;
    };
    wf_loss_kind kind;
    bool target;
    W value;
    double scale;
    any_float dloss;
    __device__ void begin(state *s) const
    {
        s->factor = (W)(dloss.at(0, 0) * scale);
    }
    __device__ W operator()(state *s, int64_t, const W *v) const
    {
        return s->factor * loss_derivative(kind, v[0], target ? v[1] : value);
    }
};

wf_status wf_cuda_loss_backward(wf_ctx *ctx, const wf_loss_args *args)
{
    const wf_array *const target = args->target, *const dx = args->dx;
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        const loss_backward_map<wide<T>> f = {args->kind, target != nullptr, (wide<T>)args->value, args->scale,
                                              any_of(args->dloss)};
        return target ? map<T, 2>(ctx, {args->x, target}, dx, f) : map<T, 1>(ctx, {args->x}, dx, f);
    });
}
