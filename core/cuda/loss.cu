/* Sums of arrays, and losses that are sums: of all elements, or one for each element. Sums are made in f64 and in a
 * fixed order (reduce_impl.h). The formulas are those of core/ref/loss.c. */
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

/* Norms of gradients are made of these: f64 holds the square of every f32, so neither overflows nor vanishes. */
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

/* A loss of one element: see core/ref/loss.c. */
template <class W> struct element_loss {
    wf_loss_kind kind;
    W delta, gamma, alpha;

    /* log(1 + e^x) - x t, written so that exp never gets a positive argument: it cannot overflow. */
    __device__ static W bce(W x, W t)
    {
        return (x < 0 ? 0 : x) - x * t + log1p(exp(-fabs(x)));
    }
    /* alpha below 0: classes are not weighed. */
    __device__ W weight(W t) const
    {
        return alpha < 0 ? 1 : alpha * t + (1 - alpha) * (1 - t);
    }
    /* 1 - p of the right class, made of two sigmoids: 1 - sigmoid(x) itself would be 0 for a large x. */
    __device__ static W miss(W x, W t)
    {
        return (1 - t) / (1 + exp(-x)) + t / (1 + exp(x));
    }
    __device__ W value(W x, W t) const
    {
        const W d = fabs(x - t);
        if (kind == WF_LOSS_BCE_LOGITS)
            return bce(x, t);
        if (kind == WF_LOSS_HUBER)
            return d <= delta ? d * d / 2 : delta * (d - delta / 2);
        /* The limit of t log(t) at 0 is 0, where the product would be NaN. */
        if (kind == WF_LOSS_KL)
            return t == 0 ? 0 : t * (log(t) - x);
        if (kind == WF_LOSS_FOCAL)
            return weight(t) * pow(miss(x, t), gamma) * bce(x, t);
        return kind == WF_LOSS_MSE ? d * d : d;
    }
    /* Focal loss of Lin et al. (2017), w m^gamma bce, by the rule of products: dm/dx = (1 - 2 t) p q, for which q = 1 -
     * p is made without the subtraction. */
    __device__ W focal_slope(W x, W t) const
    {
        const W p = 1 / (1 + exp(-x)), q = 1 / (1 + exp(x)), m = miss(x, t), power = pow(m, gamma);
        /* m = 0 would be divided by; p q is 0 there, and so is the product that this would have been. */
        const W rise = m > 0 ? gamma * power / m * (1 - 2 * t) * p * q : 0;
        return weight(t) * ((t < (W)0.5 ? p - t : 1 - t - q) * power + bce(x, t) * rise);
    }
    __device__ W slope(W x, W t) const
    {
        const W d = x - t;
        if (kind == WF_LOSS_BCE_LOGITS)
            return 1 / (1 + exp(-x)) - t;
        if (kind == WF_LOSS_MSE)
            return 2 * d;
        if (kind == WF_LOSS_HUBER)
            return d > delta ? delta : d < -delta ? -delta : d;
        if (kind == WF_LOSS_KL)
            return -t;
        if (kind == WF_LOSS_FOCAL)
            return focal_slope(x, t);
        /* Absolute differences: 0 at the corner, and NaN where d is one. */
        return x > t ? 1 : x < t ? -1 : d;
    }
};

template <class W> element_loss<W> element_of(const wf_loss_args *args)
{
    return element_loss<W>{args->kind, (W)args->delta, (W)args->gamma, (W)args->alpha};
}

/* v: x, and the target where there is one. */
template <class W> struct loss_term {
    element_loss<W> element;
    bool target;
    W value;
    double scale;
    any_output loss;
    __device__ double operator()(const W *v) const
    {
        return element.value(v[0], target ? v[1] : value);
    }
    __device__ void finish(double sum) const
    {
        loss.put(0, scale * sum);
    }
};

/* Each element's loss. `reduction none`: the caller asks for it by an array of losses of x's shape. */
template <class W> struct loss_map {
    struct state {
    };
    element_loss<W> element;
    bool target;
    W value, scale;
    __device__ void begin(state *) const
    {
    }
    __device__ W operator()(state *, int64_t, const W *v) const
    {
        return scale * element.value(v[0], target ? v[1] : value);
    }
};

wf_status wf_cuda_loss_forward(wf_ctx *ctx, const wf_loss_args *args)
{
    const wf_array *const x = args->x, *const target = args->target;
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        /* A scalar loss has rank 0. */
        if (args->loss->shape.rank > 0) {
            const loss_map<wide<T>> g = {element_of<wide<T>>(args), target != nullptr, (wide<T>)args->value,
                                         (wide<T>)args->scale};
            return target ? map<T, 2>(ctx, {x, target}, args->loss, g) : map<T, 1>(ctx, {x}, args->loss, g);
        }
        const loss_term<wide<T>> f = {element_of<wide<T>>(args), target != nullptr, (wide<T>)args->value, args->scale,
                                      output_of(args->loss)};
        return target ? reduce<T, 2>(ctx, {x, target}, f) : reduce<T, 1>(ctx, {x}, f);
    });
}

/* dloss is read on the device: reading it here would make the host wait for all kernels before. */
template <class W> struct loss_backward_map {
    struct state {
        W factor;
    };
    element_loss<W> element;
    bool target;
    W value;
    double scale;
    any_float dloss;
    bool each; /* dloss has a number for each element */
    __device__ void begin(state *s) const
    {
        s->factor = (W)(each ? scale : dloss.at(0, 0) * scale);
    }
    __device__ W operator()(state *s, int64_t i, const W *v) const
    {
        const W factor = each ? s->factor * (W)dloss.at(i, 0) : s->factor;
        return factor * element.slope(v[0], target ? v[1] : value);
    }
};

wf_status wf_cuda_loss_backward(wf_ctx *ctx, const wf_loss_args *args)
{
    const wf_array *const target = args->target, *const dx = args->dx;
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        const loss_backward_map<wide<T>> f = {element_of<wide<T>>(args), target != nullptr,
                                              (wide<T>)args->value,      args->scale,
                                              any_of(args->dloss),       args->dloss->shape.rank > 0};
        return target ? map<T, 2>(ctx, {args->x, target}, dx, f) : map<T, 1>(ctx, {args->x}, dx, f);
    });
}
