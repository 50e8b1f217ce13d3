/* Attention, a row to a warp: its lanes make the scores of 32 keys (or queries) at a time, then add up as many features
 * of the result. Scores are made again for every 32 features, so nothing of T x S is kept: memory does not grow with
 * the product of both lengths. All gradients are sums that one warp makes alone, without atomics, so results repeat bit
 * for bit. core/ref/attention.c is the oracle. */
#include "core/cuda/labels_impl.h"
#include "core/cuda/rows_impl.h"

#include "core/random_rows_author.h"

template <class T> struct attention_set {
    wf_attention_args a; /* its numbers; pointers to arrays are the host's, and left out */
    wf_attention_sizes z;
    const T *q, *k, *v, *y, *dy;
    wide<T> *lse;
    const wide<T> *bias, *mask;
    int64_t step[4];    /* of the mask */
    label_source index; /* data is NULL: none */
    const int32_t *lengths, *q_region, *k_region;
    uint64_t key;
    wf_random random;
};

template <class T> static wf_status set_of(wf_ctx *ctx, const wf_attention_args *args, attention_set<T> *out)
{
    using W = wide<T>;
    wf_cuda *own;
    attention_set<T> s = {};
    s.a.heads = args->heads;
    s.a.scale = args->scale;
    s.a.causal = args->causal;
    s.a.first_query = args->first_query;
    s.a.first_key = args->first_key;
    s.a.first_sample = args->first_sample;
    s.a.grid = args->grid;
    s.a.dropout = args->dropout;
    s.z = wf_attention_sizes_of(args);
    s.q = in_of<T>(args->q);
    s.k = in_of<T>(args->k);
    s.v = in_of<T>(args->v);
    s.y = in_of<T>(args->y);
    s.dy = in_of<T>(args->dy);
    s.lse = out_of<W>(args->lse);
    s.bias = in_of<W>(args->bias);
    if (args->index)
        WF_TRY(labels_of(ctx, args->index, WF_NONE_IGNORED, s.z.rows, &own, &s.index, CUDA_INDEX));
    s.lengths = in_of<int32_t>(args->lengths);
    s.q_region = in_of<int32_t>(args->q_region);
    s.k_region = in_of<int32_t>(args->k_region);
    if (args->mask) {
        s.mask = static_cast<const W *>(args->mask->data);
        for (int d = 0; d < 4; d++)
            s.step[d] = args->mask->stride[d];
    }
    if (args->dropout > 0) {
        s.random = *args->random;
        s.key = wf_philox_key(s.random.seed, s.random.stream);
    }
    *out = s;
    return WF_OK;
}

/* A query, or a key, of a head. */
struct attention_place {
    int64_t n, h, at;
};

__device__ static attention_place place_of(int64_t row, int64_t heads, int64_t length)
{
    const int64_t head = row / length;
    return attention_place{head / heads, head % heads, row % length};
}

/* The row of place `at` of head h in an array [n, length, heads, each]. */
template <class T>
__device__ const T *row_of(const T *of, int64_t n, int64_t h, int64_t at, int64_t length, int64_t heads, int64_t each)
{
    return of + ((n * length + at) * heads + h) * each;
}

template <class T> __device__ wide<T> product_of(const T *a, const T *b, int64_t n)
{
    wide<T> sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += widen(a[c]) * widen(b[c]);
    return sum;
}

/* Keys from there on are hidden by the causal mask or by the sample's length: loops do not visit them at all. */
template <class T> __device__ int64_t reach_of(const attention_set<T> &s, int64_t n, int64_t i)
{
    return wf_attention_reach(&s.a, s.z.s, s.lengths ? s.lengths[n] : INT64_MAX, i);
}

template <class T> __device__ int64_t bias_row(const attention_set<T> &s, int64_t i, int64_t j)
{
    return s.index.data ? s.index.at(i * s.z.s + j) : wf_attention_row(&s.a, s.z.rows, i, j);
}

/* -infinity where i does not see j, which is within its reach. */
template <class T> __device__ wide<T> score_of(const attention_set<T> &s, int64_t n, int64_t h, int64_t i, int64_t j)
{
    using W = wide<T>;
    /* Regions are those of a shifted window: keys that came around the edge are in another one. */
    const int64_t heads = s.a.heads, group = s.q_region ? wf_attention_sample(&s.a, n) % s.z.groups : 0;
    if (s.q_region && s.q_region[group * s.z.t + i] != s.k_region[group * s.z.s + j])
        return -(W)INFINITY;
    W sum = (W)s.a.scale *
            product_of(row_of(s.q, n, h, i, s.z.t, heads, s.z.d), row_of(s.k, n, h, j, s.z.s, heads, s.z.d), s.z.d);
    const int64_t row = s.bias ? bias_row(s, i, j) : -1;
    if (row >= 0)
        sum += s.bias[row * heads + h];
    if (s.mask)
        sum += s.mask[n * s.step[0] + h * s.step[1] + i * s.step[2] + j * s.step[3]];
    return sum;
}

/* What dropout multiplies the probability by. The number of word at % 4 of block at / 4 of the stream, as on any other
 * device: both passes and all ranks draw the same. */
template <class T> __device__ wide<T> kept_of(const attention_set<T> &s, int64_t n, int64_t h, int64_t i, int64_t j)
{
    if (s.a.dropout <= 0)
        return 1;
    const uint64_t at = (uint64_t)(wf_attention_place(&s.random, wf_attention_sample(&s.a, n), h, i) + j),
                   counter = at / 4;
    const uint64_t iteration = s.random.iteration ? *s.random.iteration : 0;
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)iteration, (uint32_t)(iteration >> 32)};
    wf_philox_rounds((uint32_t)s.key, (uint32_t)(s.key >> 32), c);
    const int word = (int)(at % 4);
    const uint32_t low = word & 1 ? c[1] : c[0], high = word & 1 ? c[3] : c[2];
    return wf_random_unit(word & 2 ? high : low) < s.a.dropout ? (wide<T>)0 : (wide<T>)(1 / (1 - s.a.dropout));
}

/* The parts of a functor that row_map asks for and these do not need. */
struct attention_map {
    using state = nothing;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
};

static row_set warps_for(int64_t rows)
{
    return row_set{rows, 32, 32};
}

/* The sum over a warp of v[lane] x[lane][c], for the c of this lane; `count` lanes have one. Every lane has one weight
 * and needs all 32, so weights go round by shuffle: each row x[m] is read side by side by the lanes, and only once for
 * 32 features. */
template <class W, class T>
__device__ W spread_sum(W v, const T *x, int64_t step, int64_t count, int64_t c, int64_t features)
{
    W sum = 0;
    for (int m = 0; m < 32 && m < count; m++) {
        const W part = __shfl_sync(0xffffffffu, v, m);
        if (c < features)
            sum += part * widen(x[m * step + c]);
    }
    return sum;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* R: the type of results, T or wide. */
template <class T, class R> struct attention_forward : attention_map {
    attention_set<T> s;
    R *out;
    bool joins;

    /* `before`, lse of other keys, counts as a score of the first lane. The running maximum of Milakov and Gimelshein
     * (2018), a lane for itself, joined over the warp at the end: exp gets no positive argument, so nothing overflows.
     * The first lane takes `before`, so that it counts once. */
    __device__ wide<T> log_sum(const attention_place &p, int64_t reach, int lane, wide<T> before) const
    {
        using W = wide<T>;
        W top = lane == 0 ? before : -(W)INFINITY, sum = top == -(W)INFINITY ? 0 : 1;
        for (int64_t j = lane; j < reach; j += 32) {
            const W v = score_of(s, p.n, p.h, p.at, j);
            if (v == -(W)INFINITY)
                continue;
            sum = v > top ? sum * exp(top - v) + 1 : sum + exp(v - top);
            top = v > top ? v : top;
        }
        const W all = group_most(top, 32);
        /* No key is seen at all: the row's result is zero, and lse says that to the backward pass. */
        if (all == -(W)INFINITY)
            return all;
        return all + log(group_sum(top == -(W)INFINITY ? (W)0 : sum * exp(top - all), 32));
    }
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        using W = wide<T>;
        /* A group is a whole warp, so the warp leaves together and no shuffle waits for it. */
        if (row < 0)
            return;
        const attention_place p = place_of(row, s.a.heads, s.z.t);
        const int64_t reach = reach_of(s, p.n, p.at), step = s.a.heads * s.z.e;
        const W before = joins ? s.lse[row] : -(W)INFINITY, lse = log_sum(p, reach, lane, before);
        const T *const v = row_of(s.v, p.n, p.h, 0, s.z.s, s.a.heads, s.z.e);
        R *const y = const_cast<R *>(row_of(out, p.n, p.h, p.at, s.z.t, s.a.heads, s.z.e));
        /* y so far is weighted for the keys before; exp(before - lse) is their share of all keys. */
        const W fade = before == -(W)INFINITY ? (W)0 : exp(before - lse);
        /* All lanes have read the old lse: the shuffles of log_sum stand in between. */
        if (lane == 0)
            s.lse[row] = lse;
        /* The loop's bound is the same for all lanes, also for those whose c is beyond the features: they still give
         * weights. */
        for (int64_t c = lane; c - lane < s.z.e; c += 32) {
            W sum = 0;
            /* An lse of -infinity would make the weight NaN. */
            for (int64_t j = 0; j < reach && lse != -(W)INFINITY; j += 32) {
                W weight = 0;
                if (j + lane < reach)
                    weight = exp(score_of(s, p.n, p.h, p.at, j + lane) - lse) * kept_of(s, p.n, p.h, p.at, j + lane);
                sum += spread_sum(weight, v + j * step, step, reach - j, c, s.z.e);
            }
            if (c < s.z.e)
                narrow(joins ? fade * widen(y[c]) + sum : sum, y + c);
        }
    }
};

template <class T, class R> static wf_status forward_of(wf_ctx *ctx, const wf_attention_args *args)
{
    attention_forward<T, R> f = {};
    WF_TRY(set_of(ctx, args, &f.s));
    f.out = out_of<R>(args->y);
    f.joins = args->joins;
    return row_map(ctx, warps_for(f.s.z.n * args->heads * f.s.z.t), f);
}

__global__ void index_kernel(int64_t n, const __grid_constant__ label_source index)
{
    for (int64_t i = thread_of_grid(); i < n; i += threads_of_grid())
        (void)index.at(i);
}

/* The kernel that follows reads only the entries of pairs that see each other. */
static wf_status check_hidden_index(wf_ctx *ctx, const wf_attention_args *args)
{
    wf_cuda *own;
    label_source source = {};
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    if (!args->index || z.t * z.s == 0 || (!args->causal && !args->lengths && !args->q_region))
        return WF_OK;
    WF_TRY(labels_of(ctx, args->index, WF_NONE_IGNORED, z.rows, &own, &source, CUDA_INDEX));
    return launch_over(own, index_kernel, z.t * z.s, z.t * z.s, source);
}

wf_status wf_cuda_attention_forward(wf_ctx *ctx, const wf_attention_args *args)
{
    WF_TRY(check_hidden_index(ctx, args));
    return of_float(args->q->dtype, [&](auto zero) {
        using T = decltype(zero);
        return args->y->dtype == args->q->dtype ? forward_of<T, T>(ctx, args) : forward_of<T, wide<T>>(ctx, args);
    });
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The probability of i and j as it multiplies dy, and the gradient of the score. */
template <class W> struct attention_pair {
    W p, ds;
};

/* With P the probabilities before dropout: dS = P (keep dy.v - dy.y), where dy.y is the sum over keys of P keep dy.v:
 * it needs no pass over the keys of its own. */
template <class T>
__device__ attention_pair<wide<T>> pair_of(const attention_set<T> &s, int64_t n, int64_t h, int64_t i, int64_t j)
{
    using W = wide<T>;
    const int64_t heads = s.a.heads;
    const W lse = s.lse[(n * heads + h) * s.z.t + i];
    if (lse == -(W)INFINITY || j >= reach_of(s, n, i))
        return attention_pair<W>{0, 0};
    const T *const dy = row_of(s.dy, n, h, i, s.z.t, heads, s.z.e), *const y =
                                                                        row_of(s.y, n, h, i, s.z.t, heads, s.z.e);
    const T *const v = row_of(s.v, n, h, j, s.z.s, heads, s.z.e);
    const W p = exp(score_of(s, n, h, i, j) - lse), keep = kept_of(s, n, h, i, j);
    return attention_pair<W>{p * keep, p * (keep * product_of(dy, v, s.z.e) - product_of(dy, y, s.z.e))};
}

template <class W, class R> __device__ void put_gradient(bool adds, W v, R *to)
{
    narrow(adds ? widen(*to) + v : v, to);
}

/* A warp for each query: the sum over keys that it sees. */
template <class T, class R> struct attention_queries : attention_map {
    attention_set<T> s;
    R *dq;
    bool adds;
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        using W = wide<T>;
        if (row < 0)
            return;
        const attention_place p = place_of(row, s.a.heads, s.z.t);
        const int64_t reach = reach_of(s, p.n, p.at), step = s.a.heads * s.z.d;
        const T *const k = row_of(s.k, p.n, p.h, 0, s.z.s, s.a.heads, s.z.d);
        R *const to = dq + (row_of(s.q, p.n, p.h, p.at, s.z.t, s.a.heads, s.z.d) - s.q);
        for (int64_t c = lane; c - lane < s.z.d; c += 32) {
            W sum = 0;
            for (int64_t j = 0; j < reach; j += 32) {
                const W ds = j + lane < reach ? pair_of(s, p.n, p.h, p.at, j + lane).ds : (W)0;
                sum += spread_sum(ds, k + j * step, step, reach - j, c, s.z.d);
            }
            if (c < s.z.d)
                put_gradient(adds, (W)s.a.scale * sum, to + c);
        }
    }
};

/* A warp for each key: the sum over all queries, of which pair_of gives 0 for those that do not see it. dk and dv in
 * one walk, since both need the pair. */
template <class T, class R> struct attention_keys : attention_map {
    attention_set<T> s;
    R *dk, *dv; /* NULL: not wanted */
    bool adds;
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        using W = wide<T>;
        if (row < 0)
            return;
        const attention_place p = place_of(row, s.a.heads, s.z.s);
        const int64_t heads = s.a.heads, d = s.z.d, e = s.z.e;
        const T *const q = row_of(s.q, p.n, p.h, 0, s.z.t, heads, d), *const dy =
                                                                          row_of(s.dy, p.n, p.h, 0, s.z.t, heads, e);
        const int64_t key = row_of(s.k, p.n, p.h, p.at, s.z.s, heads, d) - s.k;
        const int64_t value = row_of(s.v, p.n, p.h, p.at, s.z.s, heads, e) - s.v;
        /* c runs over the longer of both; spread_sum and the tests below leave out what the shorter has not. */
        for (int64_t c = lane; c - lane < most(d, e); c += 32) {
            W of_key = 0, of_value = 0;
            for (int64_t i = 0; i < s.z.t; i += 32) {
                attention_pair<W> pair = {0, 0};
                if (i + lane < s.z.t)
                    pair = pair_of(s, p.n, p.h, i + lane, p.at);
                of_key += spread_sum(pair.ds, q + i * heads * d, heads * d, s.z.t - i, c, d);
                of_value += spread_sum(pair.p, dy + i * heads * e, heads * e, s.z.t - i, c, e);
            }
            if (dk && c < d)
                put_gradient(adds, (W)s.a.scale * of_key, dk + key + c);
            if (dv && c < e)
                put_gradient(adds, of_value, dv + value + c);
        }
    }
};

/* A warp for each number of the table, which adds all pairs that have used it: no atomics, one order, and in f64, since
 * a table is small and each of its numbers has many terms. */
template <class T> struct attention_bias : attention_map {
    attention_set<T> s;
    wide<T> *dbias;
    bool adds;
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        if (row < 0)
            return;
        const int64_t r = row / s.a.heads, h = row % s.a.heads, last = s.z.s - 1;
        double sum = 0;
        for (int64_t u = lane; u < s.z.n * s.z.t; u += 32) {
            const int64_t n = u / s.z.t, i = u % s.z.t;
            const int64_t at = r - s.z.rows / 2 + s.a.first_query + i - s.a.first_key;
            /* Without an index one key has the row, but for the first and the last row. */
            const int64_t lo = s.index.data || r == 0 ? 0 : most(at, 0);
            const int64_t hi = s.index.data || r == s.z.rows - 1 ? last : least(at, last);
            for (int64_t j = lo; j <= hi; j++)
                if (bias_row(s, i, j) == r)
                    sum += pair_of(s, n, h, i, j).ds;
        }
        sum = group_sum(sum, 32);
        if (lane == 0)
            dbias[row] = (wide<T>)(adds ? dbias[row] + sum : sum);
    }
};

template <class R> static R *wanted_of(const wf_array *a)
{
    return a ? out_of<R>(a) : nullptr;
}

template <class T, class R>
static wf_status gradients_of(wf_ctx *ctx, const wf_attention_args *args, const attention_set<T> &s)
{
    attention_queries<T, R> queries = {};
    queries.s = s;
    queries.dq = wanted_of<R>(args->dq);
    queries.adds = args->adds;
    if (args->dq)
        WF_TRY(row_map(ctx, warps_for(s.z.n * args->heads * s.z.t), queries));
    attention_keys<T, R> keys = {};
    keys.s = s;
    keys.dk = wanted_of<R>(args->dk);
    keys.dv = wanted_of<R>(args->dv);
    keys.adds = args->adds;
    if (args->dk || args->dv)
        WF_TRY(row_map(ctx, warps_for(s.z.n * args->heads * s.z.s), keys));
    return WF_OK;
}

/* Gradients are wide although q is not. An exchange between ranks adds parts of gradients up, and rounds only at the
 * end. */
static bool widens(const wf_attention_args *args)
{
    const wf_array *const any = args->dq ? args->dq : args->dk ? args->dk : args->dv;
    return any && any->dtype != args->q->dtype;
}

wf_status wf_cuda_attention_backward(wf_ctx *ctx, const wf_attention_args *args)
{
    return of_float(args->q->dtype, [&](auto zero) {
        using T = decltype(zero);
        attention_set<T> s;
        WF_TRY(set_of(ctx, args, &s));
        if (widens(args))
            WF_TRY((gradients_of<T, wide<T>>(ctx, args, s)));
        else
            WF_TRY((gradients_of<T, T>(ctx, args, s)));
        if (!args->dbias)
            return WF_OK;
        attention_bias<T> bias = {};
        bias.s = s;
        bias.dbias = out_of<wide<T>>(args->dbias);
        bias.adds = args->adds;
        return row_map(ctx, warps_for(s.z.rows * args->heads), bias);
    });
}
