/* Normalisation over all dimensions but 1, and the gradient of a bias.
 *
 * Forward reads x twice: for the sums of each channel (norm_stats), and to write y (norm_forward). Backward reads x and
 * dy twice as well: for two sums of each channel (norm_backward_stats), and to write dx (norm_backward). Ranks that
 * share statistics merge them between the two, so each pass is a slot of its own; norm_part, norm_merge and norm_finish
 * work on the channels' numbers alone, in one small kernel each.
 *
 * A pass is a functor of columns_impl.h, which says what its members are: T is the type in memory, V the elements that
 * a thread loads at once, S how the gradient of a fused activation finds the sign of y. */
#include "core/cuda/act_impl.h"
#include "core/cuda/columns_impl.h"

template <class T, int V> struct bias_sums {
    using number = wide<T>;
    using state = nothing;
    struct raw {
        pack<T, V> dy;
    };
    static constexpr int sums = 1, ahead = 4, blocks = 3;
    const T *dy;
    any_float before;
    any_output db;
    bool accumulate;
    __device__ void start(state *, int64_t) const
    {
    }
    __device__ void take(raw *r, int64_t i) const
    {
        r->dy = load_raw<V>(dy, i);
    }
    __device__ void add(const state &, const raw &r, int64_t, wide<T> (*sum)[V]) const
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[0][k] += widen(r.dy.v[k]);
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

/* A number of elements that the host or the device knows. A merged count is known to the device alone: reading it on
 * the host would stop the stream. */
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

/* What follows the statistics of all elements: the deviation, and the running statistics. */
struct norm_end {
    any_count count;
    double eps, decay;
    any_float mean, m2, old_mean, old_var;
    any_output invstd, new_mean, new_var;

    /* mean and m2 are read as they are in memory, rounded. */
    __device__ void finish(int64_t c) const
    {
        const double squares = m2.at(c, 0), n = count.read(), from_mean = old_mean.at(c, 0),
                     from_var = old_var.at(c, 0);
        /* count 0: no rank has an element, and running statistics stay. */
        invstd.put(c, n > 0 ? 1 / sqrt(squares / n + eps) : 0);
        if (!(n > 0))
            return;
        new_mean.put(c, from_mean + (1 - decay) * (mean.at(c, 0) - from_mean));
        /* Unbiased, but for a single element. */
        new_var.put(c, from_var + (1 - decay) * (squares / (n > 1 ? n - 1 : n) - from_var));
    }
};

static norm_end end_of(const wf_norm_args *args)
{
    norm_end e = {};
    e.count = any_of(args->count);
    e.eps = args->eps;
    e.decay = args->decay;
    e.mean = any_of(args->mean);
    e.m2 = any_of(args->m2);
    e.old_mean = any_of(args->running_mean);
    e.old_var = any_of(args->running_var);
    e.invstd = output_of(args->invstd);
    e.new_mean = output_of(args->running_mean);
    e.new_var = output_of(args->running_var);
    return e;
}

static __global__ void norm_finish_kernel(int64_t channels, const __grid_constant__ norm_end e)
{
    for (int64_t c = thread_of_grid(); c < channels; c += threads_of_grid())
        e.finish(c);
}

wf_status wf_cuda_norm_finish(wf_ctx *ctx, const wf_norm_args *args)
{
    wf_cuda *own;
    const int64_t channels = wf_array_count(args->m2);
    if (channels == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch_over(own, norm_finish_kernel, channels, channels, end_of(args));
}

/* Sums of the distance from the first row, which is of the size of the deviation, and of its square: the mean may be
 * large. */
template <class T, int V> struct moment_sums {
    using number = wide<T>;
    static constexpr int sums = 2, ahead = 4, blocks = sizeof(T) == 4 ? 3 : 2;
    struct state {
        wide<T> origin[V];
    };
    struct raw {
        pack<T, V> x;
    };
    const T *x;
    int64_t rows;
    any_output mean, m2;
    norm_end end; /* its invstd absent: none follows */
    __device__ void start(state *s, int64_t c) const
    {
        if (rows > 0)
            load<V>(x, c, s->origin);
    }
    __device__ void take(raw *r, int64_t i) const
    {
        r->x = load_raw<V>(x, i);
    }
    __device__ void add(const state &s, const raw &r, int64_t, wide<T> (*sum)[V]) const
    {
#pragma unroll
        for (int k = 0; k < V; k++) {
            const wide<T> d = widen(r.x.v[k]) - s.origin[k];
            sum[0][k] += d;
            sum[1][k] += d * d;
        }
    }
    __device__ void finish(int64_t c, const double *sum) const
    {
        /* m2 = sum d^2 - (sum d)^2 / n, which rounding may bring below 0. */
        const double n = (double)rows, left = rows > 0 ? sum[1] - sum[0] * (sum[0] / n) : 0;
        mean.put(c, rows > 0 ? (double)widen(x[c]) + sum[0] / n : 0);
        m2.put(c, left < 0 ? 0 : left);
        /* Without a merge the last step follows in the same kernel, by the thread that has the channel's sums. */
        if (end.invstd.data)
            end.finish(c);
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
            return moment_sums<T, decltype(w)::value>{in_of<T>(x), a.rows, output_of(args->mean), output_of(args->m2),
                                                      end_of(args)};
        });
    });
}

/* Fused in so many words: the sign that norm_backward finds from x must be that of the y which norm_forward wrote. */
__device__ inline float normal(float x, float middle, float scale, float shift)
{
    return fmaf(x - middle, scale, shift);
}
__device__ inline double normal(double x, double middle, double scale, double shift)
{
    return fma(x - middle, scale, shift);
}

template <class T, int V, bool NOISY, bool RESIDUAL> struct norm_forward_run {
    struct state {
        typename epilogue<wide<T>, NOISY>::state e;
        wide<T> middle[V], scale[V], shift[V];
    };
    struct raw {
        pack<T, V> x, residual;
    };
    /* As many rows ahead as registers allow. */
    static constexpr int ahead = NOISY ? 1 : RESIDUAL ? 2 : 4; /* noise costs more than the loads */
    const T *x, *residual;
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
    __device__ void take(raw *r, int64_t i) const
    {
        r->x = load_raw<V>(x, i);
        if constexpr (RESIDUAL)
            r->residual = load_raw<V>(residual, i);
    }
    __device__ void run(state *s, const raw &r, int64_t i) const
    {
        wide<T> v[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            v[k] = normal(widen(r.x.v[k]), s->middle[k], s->scale[k], s->shift[k]);
            if constexpr (RESIDUAL)
                v[k] += widen(r.residual.v[k]);
            v[k] = e.of(&s->e, i + k, v[k]);
        }
        store<V>(v, y, i);
    }
};

template <class T, bool NOISY, bool RESIDUAL> static wf_status norm_forward(wf_ctx *ctx, const wf_norm_args *args)
{
    columns a = columns_of(args->x);
    a.vector = aligned(args->x->data) && aligned(args->y->data) && (!args->residual || aligned(args->residual->data));
    return column_map<T>(ctx, a, [&](auto w) {
        norm_forward_run<T, decltype(w)::value, NOISY, RESIDUAL> f = {};
        f.x = in_of<T>(args->x);
        f.residual = in_of<T>(args->residual);
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
        return of_noise(args->epilogue, [&](auto noisy) {
            constexpr bool NOISY = decltype(noisy)::value;
            return args->residual ? norm_forward<T, NOISY, true>(ctx, args) : norm_forward<T, NOISY, false>(ctx, args);
        });
    });
}

/* How a kernel finds the sign of y: it has no epilogue, reads y, or computes y again from x, which saves a third of
 * the bytes of norm_backward_stats and a quarter of norm_backward's. */
enum sign { SIGN_NONE, SIGN_OF_Y, SIGN_OF_X };

template <sign S> struct sign_kind {
    static constexpr sign value = S;
};

/* f(sign_kind). */
template <class F> static wf_status of_sign(const wf_norm_args *args, F f)
{
    if (!args->y || !args->epilogue || args->epilogue->act == WF_ACT_NONE)
        return f(sign_kind<SIGN_NONE>());
    return args->y_of_x ? f(sign_kind<SIGN_OF_X>()) : f(sign_kind<SIGN_OF_Y>());
}

/* The largest number that becomes 0 in memory: y was rounded to T, so a y made again up to there counts as 0, as what
 * was written. */
template <class T> __device__ inline wide<T> rounds_to_zero()
{
    return 0;
}
template <> __device__ inline float rounds_to_zero<__half>()
{
    return 0x1p-25f;
}
template <> __device__ inline float rounds_to_zero<__nv_bfloat16>()
{
    return 0x1p-134f;
}

/* x and dy of a row, and y where it is read. */
template <class T, int V, sign S> struct upstream_raw {
    pack<T, V> x, dy, y;
};
template <class T, int V> struct upstream_raw<T, V, SIGN_NONE> {
    pack<T, V> x, dy;
};
template <class T, int V> struct upstream_raw<T, V, SIGN_OF_X> {
    pack<T, V> x, dy;
};

/* dy through the epilogue backwards. */
template <class T, int V, sign S> struct upstream {
    const T *x, *dy, *y;
    edge<wide<T>> act;
    __device__ void take(upstream_raw<T, V, S> *r, int64_t i) const
    {
        r->x = load_raw<V>(x, i);
        r->dy = load_raw<V>(dy, i);
        if constexpr (S == SIGN_OF_Y)
            r->y = load_raw<V>(y, i);
    }
    /* made: the y before the epilogue, where the sign is that of x. */
    __device__ wide<T> of(const upstream_raw<T, V, S> &r, int k, wide<T> made) const
    {
        const wide<T> g = widen(r.dy.v[k]);
        if constexpr (S == SIGN_OF_Y)
            return g * act.derivative(widen(r.y.v[k]), 0);
        else if constexpr (S == SIGN_OF_X)
            return g * act.derivative(made, rounds_to_zero<T>());
        else
            return g;
    }
};

/* What a channel makes y of, where y is made again. Empty where y is read or not needed, so it takes no registers. */
template <class T, int V, sign S> struct made_of {
    __device__ void start(int64_t, const any_float &, const any_float &, const any_float &)
    {
    }
    __device__ wide<T> at(int, wide<T>, wide<T>) const
    {
        return 0;
    }
};
template <class T, int V> struct made_of<T, V, SIGN_OF_X> {
    wide<T> scale[V], shift[V];
    __device__ void start(int64_t c, const any_float &invstd, const any_float &gamma, const any_float &beta)
    {
#pragma unroll
        for (int k = 0; k < V; k++) {
            scale[k] = (wide<T>)(invstd.at(c + k, 0) * gamma.at(c + k, 1));
            shift[k] = (wide<T>)beta.at(c + k, 0);
        }
    }
    __device__ wide<T> at(int k, wide<T> x, wide<T> middle) const
    {
        return normal(x, middle, scale[k], shift[k]);
    }
};

template <class T, int V, sign S> struct gradient_sums {
    using number = wide<T>;
    using raw = upstream_raw<T, V, S>;
    static constexpr int sums = 2, ahead = 2, blocks = sizeof(T) == 4 ? 3 : 2;
    struct state {
        wide<T> middle[V];
        made_of<T, V, S> made;
    };
    T *kept; /* takes g; NULL: it is not kept */
    upstream<T, V, S> up;
    any_float mean, invstd, gamma, beta;
    any_output sum_g, sum_gx;
    __device__ void start(state *s, int64_t c) const
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            s->middle[k] = (wide<T>)mean.at(c + k, 0);
        s->made.start(c, invstd, gamma, beta);
    }
    __device__ void take(raw *r, int64_t i) const
    {
        up.take(r, i);
    }
    __device__ void add(const state &s, const raw &r, int64_t i, wide<T> (*sum)[V]) const
    {
        wide<T> g[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            const wide<T> x = widen(r.x.v[k]);
            g[k] = up.of(r, k, s.made.at(k, x, s.middle[k]));
            sum[0][k] += g[k];
            /* The sum of g (x - mean); `finish` multiplies by invstd once. */
            sum[1][k] += g[k] * (x - s.middle[k]);
        }
        /* g is what the residual's gradient is, so this pass writes it along. */
        if (kept)
            store<V>(g, kept, i);
    }
    __device__ void finish(int64_t c, const double *sum) const
    {
        sum_g.put(c, sum[0]);
        sum_gx.put(c, sum[1] * invstd.at(c, 0));
    }
};

template <class T, sign S> static wf_status gradient_sums_of(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x, *const y = args->y, *const g = args->g;
    columns a = columns_of(x);
    a.vector = aligned(x->data) && aligned(args->dy->data) && (!y || aligned(y->data)) && (!g || aligned(g->data));
    return column_sums<T>(ctx, a, [&](auto w) {
        constexpr int V = decltype(w)::value;
        gradient_sums<T, V, S> f = {};
        f.kept = g ? out_of<T>(g) : nullptr;
        f.up = upstream<T, V, S>{in_of<T>(x), in_of<T>(args->dy), in_of<T>(y), edge_of<wide<T>>(args->epilogue)};
        f.mean = any_of(args->mean);
        f.invstd = any_of(args->invstd);
        f.gamma = any_of(args->gamma);
        f.beta = any_of(args->beta);
        f.sum_g = output_of(args->sum_g);
        f.sum_gx = output_of(args->sum_gx);
        return f;
    });
}

wf_status wf_cuda_norm_backward_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        return of_sign(args, [&](auto s) { return gradient_sums_of<T, decltype(s)::value>(ctx, args); });
    });
}

/* dx = scale (g - back - xhat slope), where the last two are absent for statistics that are not the batch's. */
template <class T, int V, sign S> struct norm_backward_run {
    using raw = upstream_raw<T, V, S>;
    static constexpr int ahead = 2;
    struct state {
        bool batch; /* the statistics are the batch's */
        wide<T> middle[V], scale[V], shift[V], back[V], slope[V];
    };
    T *dx;
    upstream<T, V, S> up; /* its x is dy where x is not needed */
    any_float mean, invstd, gamma, beta, sum_g, sum_gx;
    any_count count;
    __device__ void start(state *s, int64_t c) const
    {
        /* In f64 and once a channel; the loop has products of the type only. */
        const double n = count.read(), share = n > 0 ? 1 / n : 0;
        s->batch = n > 0;
#pragma unroll
        for (int k = 0; k < V; k++) {
            const double deviation = invstd.at(c + k, 0);
            s->scale[k] = (wide<T>)(deviation * gamma.at(c + k, 1));
            if constexpr (S == SIGN_OF_X)
                s->shift[k] = (wide<T>)beta.at(c + k, 0);
            s->middle[k] = (wide<T>)mean.at(c + k, 0);
            s->back[k] = (wide<T>)(sum_g.at(c + k, 0) * share);
            s->slope[k] = (wide<T>)(deviation * sum_gx.at(c + k, 0) * share);
        }
    }
    __device__ void take(raw *r, int64_t i) const
    {
        up.take(r, i);
    }
    __device__ void run(state *s, const raw &r, int64_t i) const
    {
        wide<T> g[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            const wide<T> x = widen(r.x.v[k]);
            wide<T> made = 0;
            if constexpr (S == SIGN_OF_X)
                made = normal(x, s->middle[k], s->scale[k], s->shift[k]);
            g[k] = up.of(r, k, made);
            /* Chosen, not multiplied by 0: x may be infinite. */
            const wide<T> off = s->back[k] + (x - s->middle[k]) * s->slope[k];
            g[k] = (s->batch ? g[k] - off : g[k]) * s->scale[k];
        }
        store<V>(g, dx, i);
    }
};

template <class T, sign S> static wf_status norm_backward(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const y = args->y, *const dy = args->dy, *const dx = args->dx;
    /* With statistics that are constants x is not needed, unless the activation's sign is found from it. */
    const bool batch = args->count.device || args->count.value > 0, of_x = batch || S == SIGN_OF_X;
    columns a = columns_of(dy);
    a.vector = aligned(dx->data) && aligned(dy->data) && (!y || aligned(y->data)) && (!of_x || aligned(args->x->data));
    return column_map<T>(ctx, a, [&](auto w) {
        constexpr int V = decltype(w)::value;
        norm_backward_run<T, V, S> f = {};
        f.dx = out_of<T>(dx);
        f.up = upstream<T, V, S>{in_of<T>(of_x ? args->x : dy), in_of<T>(dy), in_of<T>(y),
                                 edge_of<wide<T>>(args->epilogue)};
        f.invstd = any_of(args->invstd);
        f.gamma = any_of(args->gamma);
        f.beta = any_of(args->beta);
        f.count = any_of(args->count);
        f.mean = any_of(of_x ? args->mean : nullptr);
        f.sum_g = any_of(batch ? args->sum_g : nullptr);
        f.sum_gx = any_of(batch ? args->sum_gx : nullptr);
        return f;
    });
}

/* Without x and mean, which may be absent where the statistics are not the batch's, the sign is read. */
wf_status wf_cuda_norm_backward(wf_ctx *ctx, const wf_norm_args *args)
{
    return of_float(args->dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        return of_sign(args, [&](auto s) {
            constexpr sign S = decltype(s)::value;
            return S == SIGN_OF_X && (!args->x || !args->mean) ? norm_backward<T, SIGN_OF_Y>(ctx, args)
                                                               : norm_backward<T, S>(ctx, args);
        });
    });
}

/* A part for the merge: what the caller puts in front (counts), then means, then m2. */
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
    return launch_over(own, norm_part_kernel, wf_array_count(part), a);
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
    /* c == 0 goes through the parts even without channels: the count is made there. */
    for (int64_t c = thread_of_grid(); c == 0 || c < a.channels; c += threads_of_grid()) {
        double total = 0, mean = 0, m2 = 0;
        for (int64_t p = 0; p < a.parts; p++) {
            /* Ranks without elements have no mean. */
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
    return launch_over(own, norm_merge_kernel, a.channels, a);
}
