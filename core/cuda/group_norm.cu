/* Normalisation of groups. Up to 32 lanes of a warp take a group, and add in f64: the statistics are those of `ref` but
 * for the order of sums. */
#include "core/cuda/columns_impl.h"
#include "core/cuda/rows_impl.h"

/* The geometry of wf_group_norm_args. `first` is the place of channel 0 among the channels of all groups, so the first
 * group may begin in front of x; columns = rows groups is the number of statistics of a kind. */
struct group_set {
    int64_t places, channels, groups, size, first, columns;
};

static group_set groups_of(const wf_group_norm_args *args)
{
    return group_set{args->places, args->channels, args->groups, args->size, args->first, args->rows * args->groups};
}

/* The team of a group: as many lanes as it has elements, up to a warp. A part without elements has sums too. */
static row_set teams_of(const wf_group_norm_args *args)
{
    const int64_t width = at_most(args->size, args->channels), each = args->places * width;
    row_set a = {args->rows * args->groups, each > 0 ? each : 1, 1};
    while (a.group < 32 && a.group < a.c)
        a.group *= 2;
    return a;
}

/* f(i, c) for the elements i of group `column` that are this lane's; c is the channel. None for column -1. A lane steps
 * by `team` elements, and keeps its place and channel by addition: no division in the loop. */
template <class F> __device__ void each_element(const group_set &a, int64_t column, int lane, int team, F f)
{
    if (column < 0)
        return;
    const int64_t row = column / a.groups, group = column - row * a.groups;
    /* The group's channels that this rank has: a group may reach beyond either end of its part. */
    const int64_t from = group * a.size - a.first, lo = from > 0 ? from : 0;
    const int64_t to = from + a.size, hi = to < a.channels ? to : a.channels, width = hi - lo;
    if (width <= 0)
        return;
    /* A step of `team` elements is `down` whole places and `aside` channels. aside < width, so one correction is
     * enough. */
    const int64_t down = team / width, aside = team - down * width;
    int64_t p = lane / width, c = lane - p * width;
    while (p < a.places) {
        f((row * a.places + p) * a.channels + lo + c, lo + c);
        p += down;
        c += aside;
        if (c >= width) {
            c -= width;
            p++;
        }
    }
}

/* As in the paper of Chan, Golub and LeVeque: parts of a sum of squares about their own means can be joined without
 * loss. */
struct moments {
    double count, mean, squares;
};

/* For all lanes of the team. Two passes: the second reads what the first has brought into the cache. */
template <class T>
__device__ moments moments_of(const group_set &a, const T *x, bool about_zero, int64_t column, int lane, int team)
{
    double count = 0, sum = 0, squares = 0;
    each_element(a, column, lane, team, [&](int64_t i, int64_t) {
        count += 1;
        sum += (double)widen(x[i]);
    });
    count = group_sum(count, team);
    sum = group_sum(sum, team);
    /* about_zero is RMS normalisation: no mean is subtracted. */
    const double mean = about_zero || count == 0 ? 0 : sum / count;
    each_element(a, column, lane, team, [&](int64_t i, int64_t) {
        const double d = (double)widen(x[i]) - mean;
        squares += d * d;
    });
    return moments{count, mean, group_sum(squares, team)};
}

/* The parts of a functor that row_map asks for and these do not need. */
struct stateless {
    using state = nothing;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
};

template <class T> struct group_stats : stateless {
    group_set set;
    const T *x;
    bool about_zero;
    double *sums;
    __device__ void run(nothing *, const row_set &a, int64_t column, int lane) const
    {
        /* All lanes call it, lanes without a group too: the sums inside are exchanges of the whole warp. */
        const moments m = moments_of(set, x, about_zero, column, lane, a.group);
        if (column < 0 || lane != 0)
            return;
        sums[column] = m.count;
        sums[set.columns + column] = m.mean;
        sums[2 * set.columns + column] = m.squares;
    }
};

wf_status wf_cuda_group_norm_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        group_stats<T> f = {};
        f.set = groups_of(args);
        f.x = in_of<T>(args->x);
        f.about_zero = args->about_zero;
        f.sums = out_of<double>(args->sums);
        return row_map(ctx, teams_of(args), f);
    });
}

/* Products and sums are rounded one by one, as on the host: the numbers are those of `ref`. Parts are joined in the
 * order of ranks on every rank, so all ranks get the same bits. */
static __global__ void group_merge_kernel(int64_t parts, int64_t columns, const double *part, double *sums)
{
    for (int64_t g = thread_of_grid(); g < columns; g += threads_of_grid()) {
        double total = 0, mean = 0, squares = 0;
        for (int64_t p = 0; p < parts; p++) {
            const double *const from = part + 3 * p * columns + g;
            /* A rank without elements of the group has no mean to join. The test also keeps 0 / 0 away. */
            if (!(from[0] > 0))
                continue;
            const double share = from[0] / __dadd_rn(total, from[0]), weight = __dmul_rn(total, share);
            const double d = __dsub_rn(from[columns], mean);
            mean = __dadd_rn(mean, __dmul_rn(d, share));
            squares = __dadd_rn(squares, __dadd_rn(from[2 * columns], __dmul_rn(__dmul_rn(d, d), weight)));
            total = __dadd_rn(total, from[0]);
        }
        sums[g] = mean;
        sums[columns + g] = squares;
    }
}

wf_status wf_cuda_group_norm_merge(wf_ctx *ctx, const wf_array *parts, const wf_array *sums)
{
    wf_cuda *own;
    const int64_t columns = parts->shape.dim[2];
    if (columns == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch_over(own, group_merge_kernel, columns, parts->shape.dim[0], columns, in_of<double>(parts),
                       out_of<double>(sums));
}

template <class T> struct group_forward : stateless {
    group_set set;
    const T *x;
    T *y;
    any_float gamma, beta;
    const double *sums; /* NULL: made here */
    any_output stats;
    bool about_zero;
    double count, eps;
    __device__ void run(nothing *, const row_set &a, int64_t column, int lane) const
    {
        moments m = {};
        /* With sums, other ranks had a part in the statistics; without, the group is all here. */
        if (!sums)
            m = moments_of(set, x, about_zero, column, lane, a.group);
        else if (column >= 0)
            m = moments{count, sums[column], sums[set.columns + column]};
        /* count is that of the whole group on all ranks, of which m may have been only a part. */
        const double inverse = count > 0 ? 1 / sqrt(m.squares / count + eps) : 0;
        if (column >= 0 && lane == 0) {
            stats.put(column, m.mean);
            stats.put(set.columns + column, inverse);
        }
        const wide<T> middle = (wide<T>)m.mean, scale = (wide<T>)inverse;
        /* The statistics are made in f64, but elements are normalised in the arithmetic of the type: the loop is bound
         * by memory. */
        each_element(set, column, lane, a.group, [&](int64_t i, int64_t c) {
            const wide<T> v = (widen(x[i]) - middle) * scale;
            narrow(v * (wide<T>)gamma.at(c, 1) + (wide<T>)beta.at(c, 0), y + i);
        });
    }
};

wf_status wf_cuda_group_norm_forward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        group_forward<T> f = {};
        f.set = groups_of(args);
        f.x = in_of<T>(args->x);
        f.y = out_of<T>(args->y);
        f.gamma = any_of(args->gamma);
        f.beta = any_of(args->beta);
        f.sums = in_of<double>(args->sums);
        f.stats = output_of(args->stats);
        f.about_zero = args->about_zero;
        f.count = args->count;
        f.eps = args->eps;
        return row_map(ctx, teams_of(args), f);
    });
}

/* dgamma and dbeta. */
template <class T, int V> struct group_factor_sums {
    using number = wide<T>;
    struct state {
        int64_t group[V];
    };
    struct raw {
        pack<T, V> x, dy;
    };
    static constexpr int sums = 2, ahead = 2, blocks = 2;
    group_set set;
    divider block; /* elements of a row */
    const T *x, *dy;
    any_float stats;
    any_output dgamma, dbeta;
    /* The groups of the thread's own channels never change, so they are divided out once. */
    __device__ void start(state *s, int64_t c) const
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            s->group[k] = (set.first + c + k) / set.size;
    }
    __device__ void take(raw *r, int64_t i) const
    {
        r->x = load_raw<V>(x, i);
        r->dy = load_raw<V>(dy, i);
    }
    __device__ void add(const state &s, const raw &r, int64_t i, wide<T> (*sum)[V]) const
    {
        const int64_t row = block.of(i) * set.groups;
#pragma unroll
        for (int k = 0; k < V; k++) {
            const int64_t column = row + s.group[k];
            const wide<T> middle = (wide<T>)stats.at(column, 0), scale = (wide<T>)stats.at(set.columns + column, 0);
            const wide<T> g = widen(r.dy.v[k]);
            sum[0][k] += g * ((widen(r.x.v[k]) - middle) * scale);
            sum[1][k] += g;
        }
    }
    __device__ void finish(int64_t c, const double *sum) const
    {
        dgamma.put(c, sum[0]);
        dbeta.put(c, sum[1]);
    }
};

template <class T> static wf_status factor_sums(wf_ctx *ctx, const wf_group_norm_args *args)
{
    if (!args->dgamma && !args->dbeta)
        return WF_OK;
    /* Packs need both arrays aligned, since one index serves both. */
    const columns a = {args->rows * args->places, args->channels, aligned(args->x->data) && aligned(args->dy->data)};
    return column_sums<T>(ctx, a, [&](auto w) {
        group_factor_sums<T, decltype(w)::value> f = {};
        f.set = groups_of(args);
        f.block = divide_by(args->places * args->channels);
        f.x = in_of<T>(args->x);
        f.dy = in_of<T>(args->dy);
        f.stats = any_of(args->stats);
        f.dgamma = output_of(args->dgamma);
        f.dbeta = output_of(args->dbeta);
        return f;
    });
}

/* The sums of a group, kept or used at once for dx. With sums given, other ranks had a part in them, and nothing is
 * added here; without, both steps are made in one kernel and dy is read from the cache the second time. */
template <class T> struct group_backward : stateless {
    group_set set;
    const T *x, *dy;
    T *dx; /* NULL: not wanted */
    any_float gamma, stats;
    const double *given; /* NULL: made here */
    double *kept;        /* NULL: not wanted */
    bool about_zero;
    double count;
    __device__ void run(nothing *, const row_set &a, int64_t column, int lane) const
    {
        const int64_t at = column < 0 ? 0 : column;
        const wide<T> middle = (wide<T>)stats.at(at, 0), scale = (wide<T>)stats.at(set.columns + at, 0);
        double sum = 0, sum_x = 0;
        if (given) {
            sum = given[at];
            sum_x = given[set.columns + at];
        } else {
            /* Let v be the normalised x: dx = scale (g - mean(g) - v mean(g v)), where g = gamma dy. These are the two
             * means' sums. */
            each_element(set, column, lane, a.group, [&](int64_t i, int64_t c) {
                const double g = gamma.at(c, 1) * (double)widen(dy[i]);
                sum += g;
                sum_x += g * (double)((widen(x[i]) - middle) * scale);
            });
            sum = group_sum(sum, a.group);
            sum_x = group_sum(sum_x, a.group);
        }
        /* Nothing reads `kept` in this kernel: the ranks add it up before they come back with `given`. */
        if (kept && column >= 0 && lane == 0) {
            kept[column] = sum;
            kept[set.columns + column] = sum_x;
        }
        if (!dx)
            return;
        /* A mean that was never subtracted has no gradient. */
        const wide<T> back = (wide<T>)(about_zero ? 0 : sum / count), slope = (wide<T>)(sum_x / count);
        each_element(set, column, lane, a.group, [&](int64_t i, int64_t c) {
            const wide<T> v = (widen(x[i]) - middle) * scale, g = widen(dy[i]) * (wide<T>)gamma.at(c, 1);
            narrow(scale * (g - back - v * slope), dx + i);
        });
    }
};

template <class T> static group_backward<T> backward_of(const wf_group_norm_args *args)
{
    group_backward<T> f = {};
    f.set = groups_of(args);
    f.x = in_of<T>(args->x);
    f.dy = in_of<T>(args->dy);
    f.gamma = any_of(args->gamma);
    f.stats = any_of(args->stats);
    f.about_zero = args->about_zero;
    f.count = args->count;
    return f;
}

/* With sums, dgamma and dbeta are made here, and the pass for dx does not make them again. */
wf_status wf_cuda_group_norm_backward_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        group_backward<T> f = backward_of<T>(args);
        WF_TRY(factor_sums<T>(ctx, args));
        if (!args->sums)
            return WF_OK;
        f.kept = out_of<double>(args->sums);
        return row_map(ctx, teams_of(args), f);
    });
}

wf_status wf_cuda_group_norm_backward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        group_backward<T> f = backward_of<T>(args);
        /* Before dx, which may be dy. */
        if (!args->sums)
            WF_TRY(factor_sums<T>(ctx, args));
        f.given = in_of<double>(args->sums);
        f.dx = out_of<T>(args->dx);
        return row_map(ctx, teams_of(args), f);
    });
}
