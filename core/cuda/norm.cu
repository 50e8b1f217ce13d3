/* Normalisation over all dimensions but 1, and the gradient of a bias. */
#include "core/cuda/act_impl.h"
#include "core/cuda/columns_impl.h"

template <class T, int V> struct bias_sums {
    using number = wide<T>;
    using state = nothing;
    static constexpr int sums = 1;
    const T *dy;
    any_float before;
    any_output db;
    bool accumulate;
    __device__ void start(state *, int64_t) const
    {
    }
    __device__ void add(const state &, int64_t i, wide<T> (*sum)[V]) const
    {
        wide<T> v[V];
        load<V>(dy, i, v);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[0][k] += v[k];
    }
    __device__ void finish(int64_t c, const double *sum) const
    {
        db.put(c, accumulate ? before.at(c, 0) + sum[0] : sum[0]);
    }
};

wf_status wf_cuda_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate)
{
    return of_float(dy->dtype, [&](auto zero) {
        using T = decltype(zero);
        columns a = columns_of(dy);
        a.vector = aligned(dy->data);
        return column_sums<T>(ctx, a, [&](auto w) {
            return bias_sums<T, decltype(w)::value>{in_of<T>(dy), any_of(db), output_of(db), accumulate};
        });
    });
}

/* Sums of the distance from the first row, which is of the size of the deviation, and of its square: the mean may be
 * large. */
template <class T, int V> struct moment_sums {
    using number = wide<T>;
    static constexpr int sums = 2;
    struct state {
        wide<T> origin[V];
    };
    const T *x;
    int64_t rows;
    any_output mean, m2;
    __device__ void start(state *s, int64_t c) const
    {
        if (rows > 0)
            load<V>(x, c, s->origin);
    }
    __device__ void add(const state &s, int64_t i, wide<T> (*sum)[V]) const
    {
        wide<T> v[V];
        load<V>(x, i, v);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const wide<T> d = v[k] - s.origin[k];
            sum[0][k] += d;
            sum[1][k] += d * d;
        }
    }
    __device__ void finish(int64_t c, const double *sum) const
    {
        const double n = (double)rows, left = rows > 0 ? sum[1] - sum[0] * (sum[0] / n) : 0;
        mean.put(c, rows > 0 ? (double)widen(x[c]) + sum[0] / n : 0);
        m2.put(c, left < 0 ? 0 : left);
    }
};

wf_status wf_cuda_norm_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x;
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        columns a = columns_of(x);
        a.vector = aligned(x->data);
        return column_sums<T>(ctx, a, [&](auto w) {
            return moment_sums<T, decltype(w)::value>{in_of<T>(x), a.rows, output_of(args->mean), output_of(args->m2)};
        });
    });
}

template <class T, int V, bool NOISY> struct norm_forward_run {
    struct state {
        typename epilogue<wide<T>, NOISY>::state e;
        wide<T> middle[V], scale[V], shift[V];
    };
    const T *x, *residual; /* residual NULL: none */
    T *y;
    any_float mean, invstd, gamma, beta;
    epilogue<wide<T>, NOISY> e;
    __device__ void start(state *s, int64_t c) const
    {
        e.begin(&s->e);
#pragma unroll
        for (int k = 0; k < V; k++) {
            s->middle[k] = (wide<T>)mean.at(c + k, 0);
            s->scale[k] = (wide<T>)(invstd.at(c + k, 0) * gamma.at(c + k, 1));
            s->shift[k] = (wide<T>)beta.at(c + k, 0);
        }
    }
    __device__ void run(state *s, int64_t i) const
    {
        wide<T> v[V], r[V] = {};
        load<V>(x, i, v);
        if (residual)
            load<V>(residual, i, r);
#pragma unroll
        for (int k = 0; k < V; k++)
            v[k] = e.of(&s->e, i + k, (v[k] - s->middle[k]) * s->scale[k] + s->shift[k] + r[k]);
        store<V>(v, y, i);
    }
};

template <class T, bool NOISY> static wf_status norm_forward(wf_ctx *ctx, const wf_norm_args *args)
{
    columns a = columns_of(args->x);
    a.vector = aligned(args->x->data) && aligned(args->y->data) && (!args->residual || aligned(args->residual->data));
    return column_map<T>(ctx, a, [&](auto w) {
        norm_forward_run<T, decltype(w)::value, NOISY> f = {};
        f.x = in_of<T>(args->x);
        f.residual = args->residual ? in_of<T>(args->residual) : nullptr;
        f.y = out_of<T>(args->y);
        f.mean = any_of(args->mean);
        f.invstd = any_of(args->invstd);
        f.gamma = any_of(args->gamma);
        f.beta = any_of(args->beta);
        f.e = epilogue_of<wide<T>, NOISY>(args->epilogue, args->y->order);
        return f;
    });
}

wf_status wf_cuda_norm_forward(wf_ctx *ctx, const wf_norm_args *args)
{
    return of_float(args->y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return of_noise(args->epilogue, [&](auto noisy) { return norm_forward<T, decltype(noisy)::value>(ctx, args); });
    });
}

/* dy through the epilogue backwards. y NULL: there is none. */
template <class T, int V> struct upstream {
    const T *y, *dy;
    wf_act act;
    wide<T> slope;
    __device__ void take(int64_t i, wide<T> *g) const
    {
        load<V>(dy, i, g);
        if (!y)
            return;
        wide<T> v[V];
        load<V>(y, i, v);
#pragma unroll
        for (int k = 0; k < V; k++)
            g[k] *= act_derivative(act, slope, v[k]);
    }
};

template <class T, int V> upstream<T, V> upstream_of(const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy)
{
    const bool curved = epilogue && y && epilogue->act != WF_ACT_NONE;
    return upstream<T, V>{curved ? in_of<T>(y) : nullptr, in_of<T>(dy), curved ? epilogue->act : WF_ACT_NONE,
                          (wide<T>)(curved ? epilogue->slope : 0)};
}

template <class T, int V> struct gradient_sums {
    using number = wide<T>;
    static constexpr int sums = 2;
    struct state {
        wide<T> middle[V], scale[V];
    };
    const T *x;
    T *kept; /* takes g; NULL: it is not kept */
    upstream<T, V> up;
    any_float mean, invstd;
    any_output sum_g, sum_gx;
    __device__ void start(state *s, int64_t c) const
    {
#pragma unroll
        for (int k = 0; k < V; k++) {
            s->middle[k] = (wide<T>)mean.at(c + k, 0);
            s->scale[k] = (wide<T>)invstd.at(c + k, 0);
        }
    }
    __device__ void add(const state &s, int64_t i, wide<T> (*sum)[V]) const
    {
        wide<T> v[V], g[V];
        load<V>(x, i, v);
        up.take(i, g);
        if (kept)
            store<V>(g, kept, i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            sum[0][k] += g[k];
            sum[1][k] += g[k] * ((v[k] - s.middle[k]) * s.scale[k]);
        }
    }
    __device__ void finish(int64_t c, const double *sum) const
    {
        sum_g.put(c, sum[0]);
        sum_gx.put(c, sum[1]);
    }
};

wf_status wf_cuda_norm_backward_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x, *const y = args->y, *const g = args->g;
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        columns a = columns_of(x);
        a.vector = aligned(x->data) && aligned(args->dy->data) && (!y || aligned(y->data)) && (!g || aligned(g->data));
        return column_sums<T>(ctx, a, [&](auto w) {
            constexpr int V = decltype(w)::value;
            gradient_sums<T, V> f = {};
            f.x = in_of<T>(x);
            f.kept = g ? out_of<T>(g) : nullptr;
            f.up = upstream_of<T, V>(args->epilogue, y, args->dy);
            f.mean = any_of(args->mean);
            f.invstd = any_of(args->invstd);
            f.sum_g = output_of(args->sum_g);
            f.sum_gx = output_of(args->sum_gx);
            return f;
        });
    });
}

/* A number of elements that the host or the device knows. */
struct any_count {
    double value;
    const double *device;

    __device__ double read() const
    {
        return device ? *device : value;
    }
};

inline any_count any_of(wf_count count)
{
    return any_count{count.value, count.device};
}

/* dx = scale (g - back - xhat slope), where the last two are absent for statistics that are not the batch's. */
template <class T, int V> struct norm_backward_run {
    struct state {
        double share; /* 1 / count; 0: not the batch's statistics */
        wide<T> middle[V], scale[V], back[V], slope[V];
    };
    const T *x;
    T *dx;
    upstream<T, V> up;
    any_float mean, invstd, gamma, sum_g, sum_gx;
    any_count count;
    __device__ void start(state *s, int64_t c) const
    {
        s->share = count.read() > 0 ? 1 / count.read() : 0;
#pragma unroll
        for (int k = 0; k < V; k++) {
            const double deviation = invstd.at(c + k, 0);
            s->scale[k] = (wide<T>)(deviation * gamma.at(c + k, 1));
            if (s->share == 0)
                continue;
            s->middle[k] = (wide<T>)mean.at(c + k, 0);
            s->back[k] = (wide<T>)(sum_g.at(c + k, 0) * s->share);
            s->slope[k] = (wide<T>)(deviation * sum_gx.at(c + k, 0) * s->share);
        }
    }
    __device__ void run(state *s, int64_t i) const
    {
        wide<T> v[V], g[V];
        up.take(i, g);
        if (s->share != 0) {
            load<V>(x, i, v);
#pragma unroll
            for (int k = 0; k < V; k++)
                g[k] -= s->back[k] + (v[k] - s->middle[k]) * s->slope[k];
        }
#pragma unroll
        for (int k = 0; k < V; k++)
            g[k] *= s->scale[k];
        store<V>(g, dx, i);
    }
};

wf_status wf_cuda_norm_backward(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const y = args->y, *const dy = args->dy, *const dx = args->dx;
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        columns a = columns_of(dy);
        const bool batch = args->count.device || args->count.value > 0;
        a.vector =
            aligned(dx->data) && aligned(dy->data) && (!y || aligned(y->data)) && (!batch || aligned(args->x->data));
        return column_map<T>(ctx, a, [&](auto w) {
            constexpr int V = decltype(w)::value;
            norm_backward_run<T, V> f = {};
            f.dx = out_of<T>(dx);
            f.up = upstream_of<T, V>(args->epilogue, y, dy);
            f.invstd = any_of(args->invstd);
            f.gamma = any_of(args->gamma);
            f.count = any_of(args->count);
            f.x = batch ? in_of<T>(args->x) : nullptr;
            f.mean = any_of(batch ? args->mean : nullptr);
            f.sum_g = any_of(batch ? args->sum_g : nullptr);
            f.sum_gx = any_of(batch ? args->sum_gx : nullptr);
            return f;
        });
    });
}

struct norm_part_arrays {
    int64_t channels;
    wf_norm_head head;
    any_float mean, m2;
    double *part;
};

static __global__ void norm_part_kernel(const __grid_constant__ norm_part_arrays a)
{
    for (int64_t i = thread_of_grid(); i < a.head.n + 2 * a.channels; i += threads_of_grid()) {
        const int64_t c = i - a.head.n;
        a.part[i] = c < 0 ? a.head.value[i] : c < a.channels ? a.mean.at(c, 0) : a.m2.at(c - a.channels, 0);
    }
}

wf_status wf_cuda_norm_part(wf_ctx *ctx, const wf_norm_head *head, const wf_array *mean, const wf_array *m2,
                            const wf_array *part)
{
    wf_cuda *own;
    const norm_part_arrays a = {wf_array_count(mean), *head, any_of(mean), any_of(m2), out_of<double>(part)};
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch(own, norm_part_kernel, blocks_for(own, wf_array_count(part)), THREADS, a);
}

struct norm_merge_arrays {
    int64_t parts, channels, length;
    const double *part;
    any_output mean, m2;
    double *count;
};

/* Products and sums are rounded one by one, as on the host: the numbers are those of `ref`. */
static __global__ void norm_merge_kernel(const __grid_constant__ norm_merge_arrays a)
{
    const int64_t head = a.length - 2 * a.channels;
    for (int64_t c = thread_of_grid(); c == 0 || c < a.channels; c += threads_of_grid()) {
        double total = 0, mean = 0, m2 = 0;
        for (int64_t p = 0; p < a.parts; p++) {
            const double *const part = a.part + p * a.length, more = part[0];
            if (!(more > 0))
                continue;
            const double share = more / __dadd_rn(total, more), weight = __dmul_rn(total, share);
            total = __dadd_rn(total, more);
            if (c >= a.channels)
                continue;
            const double d = __dsub_rn(part[head + c], mean);
            mean = __dadd_rn(mean, __dmul_rn(d, share));
            m2 = __dadd_rn(m2, __dadd_rn(part[head + a.channels + c], __dmul_rn(__dmul_rn(d, d), weight)));
        }
        if (c < a.channels) {
            a.mean.put(c, mean);
            a.m2.put(c, m2);
        }
        if (c == 0)
            *a.count = total;
    }
}

wf_status wf_cuda_norm_merge(wf_ctx *ctx, const wf_array *parts, const wf_array *mean, const wf_array *m2,
                             const wf_array *count)
{
    wf_cuda *own;
    norm_merge_arrays a = {};
    a.parts = parts->shape.dim[0];
    a.channels = wf_array_count(mean);
    a.length = parts->shape.dim[1];
    a.part = in_of<double>(parts);
    a.mean = output_of(mean);
    a.m2 = output_of(m2);
    a.count = out_of<double>(count);
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch(own, norm_merge_kernel, blocks_for(own, a.channels), THREADS, a);
}

struct norm_finish_arrays {
    int64_t channels;
    any_count count;
    double eps, decay;
    any_float mean, m2, old_mean, old_var;
    any_output invstd, new_mean, new_var;
};

static __global__ void norm_finish_kernel(const __grid_constant__ norm_finish_arrays a)
{
    for (int64_t c = thread_of_grid(); c < a.channels; c += threads_of_grid()) {
        const double m2 = a.m2.at(c, 0), n = a.count.read(), old_mean = a.old_mean.at(c, 0),
                     old_var = a.old_var.at(c, 0);
        a.invstd.put(c, n > 0 ? 1 / sqrt(m2 / n + a.eps) : 0);
        if (!(n > 0))
            continue;
        a.new_mean.put(c, old_mean + (1 - a.decay) * (a.mean.at(c, 0) - old_mean));
        a.new_var.put(c, old_var + (1 - a.decay) * (m2 / (n > 1 ? n - 1 : n) - old_var));
    }
}

wf_status wf_cuda_norm_finish(wf_ctx *ctx, const wf_norm_args *args)
{
    wf_cuda *own;
    norm_finish_arrays a = {};
    a.channels = wf_array_count(args->m2);
    a.count = any_of(args->count);
    a.eps = args->eps;
    a.decay = args->decay;
    a.mean = any_of(args->mean);
    a.m2 = any_of(args->m2);
    a.old_mean = any_of(args->running_mean);
    a.old_var = any_of(args->running_var);
    a.invstd = output_of(args->invstd);
    a.new_mean = output_of(args->running_mean);
    a.new_var = output_of(args->running_var);
    if (a.channels == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch(own, norm_finish_kernel, blocks_for(own, a.channels), THREADS, a);
}
