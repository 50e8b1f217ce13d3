/* Neighbourhood attention (Hassani et al., 2023), a pixel of a head to a warp: its lanes make the scores of 32 keys (or
 * queries) at a time, then add up as many features of the result. Scores are made again for every 32 features, so
 * nothing is kept of them. Gradients are gathered by the pixel that they belong to, so sums have a fixed order. */
#include "core/cuda/rows_impl.h"

template <class T> struct near_set {
    wf_neighbourhood g;
    wf_neighbourhood_sizes z;
    int64_t heads;
    double scale;
    const T *q, *k, *v, *y, *dy;
    wide<T> *lse;
    const wide<T> *bias;
};

template <class T> static near_set<T> near_set_of(const wf_neighbourhood_args *a)
{
    using W = wide<T>;
    near_set<T> s = {};
    s.g = a->around;
    s.z = wf_neighbourhood_sizes_of(a);
    s.heads = a->heads;
    s.scale = a->scale;
    s.q = in_of<T>(a->q);
    s.k = in_of<T>(a->k);
    s.v = in_of<T>(a->v);
    s.y = in_of<T>(a->y);
    s.dy = in_of<T>(a->dy);
    s.lse = out_of<W>(a->lse);
    s.bias = in_of<W>(a->bias);
    return s;
}

/* The pixel of a row of heads, and those that it sees, or is seen by. */
struct near_place {
    int64_t n, h, pixel, place[3];
    wf_neighbours at[3];
    int64_t count;
};

/* For a key: the queries that see it, within those of this rank. Each dimension's are in equal steps, so their product
 * is the whole list. */
template <class T> __device__ near_place near_of(const near_set<T> &s, bool query, int64_t row)
{
    const int64_t *const dim = query ? s.z.p : s.z.s, *const first = query ? s.g.first_query : s.g.first_key;
    const int64_t pixels = query ? s.z.queries : s.z.keys;
    near_place p;
    p.n = row / pixels / s.heads;
    p.h = row / pixels % s.heads;
    p.pixel = row % pixels;
    p.place[0] = first[0] + p.pixel / (dim[1] * dim[2]);
    p.place[1] = first[1] + p.pixel / dim[2] % dim[1];
    p.place[2] = first[2] + p.pixel % dim[2];
    p.count = 1;
    for (int d = 0; d < 3; d++) {
        const int64_t lo = s.g.first_query[d];
        p.at[d] = query ? wf_neighbourhood_keys(&s.g, d, p.place[d])
                        : wf_neighbourhood_queries(&s.g, d, p.place[d], lo, lo + s.z.p[d]);
        p.count *= p.at[d].count;
    }
    return p;
}

/* A pair of a query and a key, and its row of bias. */
struct near_pair {
    int64_t query, key, row;
};

/* Pair i of a pixel: i counts through the box of its neighbours, the last dimension fastest. */
template <class T> __device__ near_pair pair_at(const near_set<T> &s, const near_place &p, bool query, int64_t i)
{
    const int64_t wide = p.at[2].count, high = p.at[1].count;
    const int64_t of[3] = {i / (wide * high), i / wide % high, i % wide};
    const int64_t *const dim = query ? s.z.s : s.z.p, *const first = query ? s.g.first_key : s.g.first_query;
    int64_t pixel = 0, row = 0;
    for (int d = 0; d < 3; d++) {
        const int64_t place = p.at[d].first + of[d] * p.at[d].step;
        pixel = pixel * dim[d] + place - first[d];
        row = row * (2 * s.g.kernel[d] - 1) + (query ? wf_neighbourhood_row(&s.g, d, p.place[d], place)
                                                     : wf_neighbourhood_row(&s.g, d, place, p.place[d]));
    }
    return query ? near_pair{p.pixel, pixel, row} : near_pair{pixel, p.pixel, row};
}

template <class T>
__device__ const T *near_row(const near_set<T> &s, const T *of, const near_place &p, int64_t pixel, int64_t pixels,
                             int64_t each)
{
    return of + ((p.n * pixels + pixel) * s.heads + p.h) * each;
}

template <class T> __device__ wide<T> near_product(const T *a, const T *b, int64_t n)
{
    wide<T> sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += widen(a[c]) * widen(b[c]);
    return sum;
}

template <class T> __device__ wide<T> near_score(const near_set<T> &s, const near_place &p, const near_pair &x)
{
    using W = wide<T>;
    const W sum = (W)s.scale * near_product(near_row(s, s.q, p, x.query, s.z.queries, s.z.d),
                                            near_row(s, s.k, p, x.key, s.z.keys, s.z.d), s.z.d);
    return s.bias ? sum + s.bias[p.h * s.z.rows + x.row] : sum;
}

/* The parts of a functor that row_map asks for and these do not need. */
struct near_map {
    using state = nothing;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
};

static row_set warp_each(int64_t rows)
{
    return row_set{rows, 32, 32};
}

/* The sum over a warp of v[lane] times feature c of the row at[lane] of x; `count` lanes have one. Weights and pixels
 * go round by shuffle, so the lanes read each row side by side. */
template <class W, class T>
__device__ W sum_rows(const near_set<T> &s, const near_place &p, W v, int64_t at, const T *x, int64_t pixels,
                      int64_t each, int64_t count, int64_t c)
{
    W sum = 0;
    for (int m = 0; m < 32 && m < count; m++) {
        const W part = __shfl_sync(0xffffffffu, v, m);
        const int64_t pixel = __shfl_sync(0xffffffffu, at, m);
        if (c < each)
            sum += part * widen(near_row(s, x, p, pixel, pixels, each)[c]);
    }
    return sum;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

template <class T> struct near_forward : near_map {
    near_set<T> s;
    T *out;

    /* A running maximum for each lane, joined over the warp: no exponential gets a positive argument. A query sees at
     * least one key, so `all` is finite for finite scores. */
    __device__ wide<T> log_sum(const near_place &p, int lane) const
    {
        using W = wide<T>;
        W top = -(W)INFINITY, sum = 0;
        for (int64_t i = lane; i < p.count; i += 32) {
            const W v = near_score(s, p, pair_at(s, p, true, i));
            sum = v > top ? sum * exp(top - v) + 1 : sum + exp(v - top);
            top = v > top ? v : top;
        }
        const W all = group_most(top, 32);
        return all + log(group_sum(top == -(W)INFINITY ? (W)0 : sum * exp(top - all), 32));
    }
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        /* A group is a whole warp, so the warp leaves together. */
        using W = wide<T>;
        if (row < 0)
            return;
        const near_place p = near_of(s, true, row);
        const W lse = log_sum(p, lane);
        T *const y = const_cast<T *>(near_row(s, (const T *)out, p, p.pixel, s.z.queries, s.z.e));
        if (lane == 0)
            s.lse[row] = lse;
        /* The bound is the same for all lanes: those without a feature still give their weights. */
        for (int64_t c = lane; c - lane < s.z.e; c += 32) {
            W sum = 0;
            for (int64_t i = 0; i < p.count; i += 32) {
                near_pair x = {0, 0, 0};
                W weight = 0;
                if (i + lane < p.count) {
                    x = pair_at(s, p, true, i + lane);
                    weight = exp(near_score(s, p, x) - lse);
                }
                sum += sum_rows(s, p, weight, x.key, s.v, s.z.keys, s.z.e, p.count - i, c);
            }
            if (c < s.z.e)
                narrow(sum, y + c);
        }
    }
};

wf_status wf_cuda_neighbourhood_forward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    return of_float(args->q->dtype, [&](auto zero) {
        using T = decltype(zero);
        near_forward<T> f = {};
        f.s = near_set_of<T>(args);
        f.out = out_of<T>(args->y);
        return row_map(ctx, warp_each(f.s.z.n * args->heads * f.s.z.queries), f);
    });
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The probability of a pair, and the gradient of its score. */
template <class W> struct near_weight {
    W p, ds;
};

/* dS = P (dy.v - dy.y): dy.y is the sum over keys of P dy.v, so no pass over the keys is needed for it. */
template <class T>
__device__ near_weight<wide<T>> weight_of(const near_set<T> &s, const near_place &p, const near_pair &x)
{
    using W = wide<T>;
    const T *const dy = near_row(s, s.dy, p, x.query, s.z.queries, s.z.e);
    const T *const y = near_row(s, s.y, p, x.query, s.z.queries, s.z.e);
    const T *const v = near_row(s, s.v, p, x.key, s.z.keys, s.z.e);
    const W weight = exp(near_score(s, p, x) - s.lse[(p.n * s.heads + p.h) * s.z.queries + x.query]);
    return near_weight<W>{weight, weight * (near_product(dy, v, s.z.e) - near_product(dy, y, s.z.e))};
}

template <class T> struct near_queries : near_map {
    near_set<T> s;
    T *dq;
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        using W = wide<T>;
        if (row < 0)
            return;
        const near_place p = near_of(s, true, row);
        T *const to = const_cast<T *>(near_row(s, (const T *)dq, p, p.pixel, s.z.queries, s.z.d));
        for (int64_t c = lane; c - lane < s.z.d; c += 32) {
            W sum = 0;
            for (int64_t i = 0; i < p.count; i += 32) {
                near_pair x = {0, 0, 0};
                W ds = 0;
                if (i + lane < p.count) {
                    x = pair_at(s, p, true, i + lane);
                    ds = weight_of(s, p, x).ds;
                }
                sum += sum_rows(s, p, ds, x.key, s.k, s.z.keys, s.z.d, p.count - i, c);
            }
            if (c < s.z.d)
                narrow((W)s.scale * sum, to + c);
        }
    }
};

/* dk and dv of a key in one walk over the queries that see it. */
template <class T> struct near_keys : near_map {
    near_set<T> s;
    T *dk, *dv; /* NULL: not wanted */
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        using W = wide<T>;
        if (row < 0)
            return;
        const near_place p = near_of(s, false, row);
        const int64_t d = s.z.d, e = s.z.e, queries = s.z.queries;
        const int64_t key = near_row(s, s.k, p, p.pixel, s.z.keys, d) - s.k;
        const int64_t value = near_row(s, s.v, p, p.pixel, s.z.keys, e) - s.v;
        for (int64_t c = lane; c - lane < most(d, e); c += 32) {
            W of_key = 0, of_value = 0;
            for (int64_t i = 0; i < p.count; i += 32) {
                near_pair x = {0, 0, 0};
                near_weight<W> w = {0, 0};
                if (i + lane < p.count) {
                    x = pair_at(s, p, false, i + lane);
                    w = weight_of(s, p, x);
                }
                of_key += sum_rows(s, p, w.ds, x.query, s.q, queries, d, p.count - i, c);
                of_value += sum_rows(s, p, w.p, x.query, s.dy, queries, e, p.count - i, c);
            }
            if (dk && c < d)
                narrow((W)s.scale * of_key, dk + key + c);
            if (dv && c < e)
                narrow(of_value, dv + value + c);
        }
    }
};

/* Queries whose gradients a warp adds up for one number of the table: 32 turns, or more where there are many queries,
 * so that the memory of all parts has a limit. Sums do not depend on the device. */
#define NEAR_QUERIES 1024
#define NEAR_PARTS   64

static int64_t queries_of_part(int64_t queries)
{
    const int64_t shared = ceil_div(ceil_div(queries, NEAR_PARTS), 32) * 32;
    return shared > NEAR_QUERIES ? shared : NEAR_QUERIES;
}

/* The part of each number of the table that `each` queries have, a warp for each; a query has one key for it at most.
 * `by` is the offset between key and query that a row of bias stands for. */
template <class T> struct near_bias : near_map {
    near_set<T> s;
    double *part; /* [parts, heads, rows] */
    int64_t each;
    /* False where the key at this offset is outside of the query's window. */
    __device__ bool find(const near_place &p, const int64_t by[3], near_pair *x) const
    {
        int64_t key = 0;
        for (int d = 0; d < 3; d++) {
            const int64_t place = p.place[d] + by[d] * s.g.dilation[d];
            if (place < p.at[d].first || place > p.at[d].first + (p.at[d].count - 1) * p.at[d].step)
                return false;
            key = key * s.z.s[d] + place - s.g.first_key[d];
        }
        x->query = p.pixel;
        x->key = key;
        return true;
    }
    __device__ void run(nothing *, const row_set &, int64_t row, int lane) const
    {
        if (row < 0)
            return;
        const int64_t h = row / s.z.rows % s.heads, r = row % s.z.rows;
        /* Parts are ranges of queries, whose number depends on their count alone: results repeat on any device. */
        const int64_t first = row / s.z.rows / s.heads * each;
        const int64_t end = least(first + each, s.z.n * s.z.queries);
        const int64_t high = 2 * s.g.kernel[1] - 1, wide_by = 2 * s.g.kernel[2] - 1;
        const int64_t by[3] = {r / (high * wide_by) - s.g.kernel[0] + 1, r / wide_by % high - s.g.kernel[1] + 1,
                               r % wide_by - s.g.kernel[2] + 1};
        double sum = 0;
        for (int64_t u = first + lane; u < end; u += 32) {
            const near_place p = near_of(s, true, (u / s.z.queries * s.heads + h) * s.z.queries + u % s.z.queries);
            near_pair x = {0, 0, r};
            if (find(p, by, &x))
                sum += weight_of(s, p, x).ds;
        }
        sum = group_sum(sum, 32);
        if (lane == 0)
            part[row] = sum;
    }
};

/* A warp for each number: its parts, lane by lane in their order. */
template <class W> struct near_bias_sum : near_map {
    const double *part;
    int64_t parts;
    W *dbias;
    __device__ void run(nothing *, const row_set &a, int64_t row, int lane) const
    {
        double sum = 0;
        for (int64_t i = lane; row >= 0 && i < parts; i += 32)
            sum += part[i * a.rows + row];
        sum = group_sum(sum, 32);
        if (row >= 0 && lane == 0)
            dbias[row] = (W)sum;
    }
};

template <class R> static R *asked(const wf_array *a)
{
    return a ? out_of<R>(a) : nullptr;
}

/* Parts lie in the workspace, which the next kernel of this stream may use again: their sum is made before it. */
template <class T> static wf_status near_bias_gradient(wf_ctx *ctx, const near_set<T> &s, wide<T> *dbias)
{
    wf_cuda *own;
    void *work;
    const int64_t numbers = s.z.rows * s.heads, each = queries_of_part(s.z.n * s.z.queries);
    const int64_t parts = ceil_div(s.z.n * s.z.queries, each);
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(wf_cuda_workspace(own, (size_t)(numbers * parts) * sizeof(double), &work));
    near_bias<T> bias = {};
    bias.s = s;
    bias.part = static_cast<double *>(work);
    bias.each = each;
    WF_TRY(row_map(ctx, warp_each(numbers * parts), bias));
    near_bias_sum<wide<T>> sum = {};
    sum.part = bias.part;
    sum.parts = parts;
    sum.dbias = dbias;
    return row_map(ctx, warp_each(numbers), sum);
}

template <class T> static wf_status near_gradients(wf_ctx *ctx, const wf_neighbourhood_args *args, const near_set<T> &s)
{
    near_queries<T> queries = {};
    queries.s = s;
    queries.dq = asked<T>(args->dq);
    if (args->dq)
        WF_TRY(row_map(ctx, warp_each(s.z.n * args->heads * s.z.queries), queries));
    near_keys<T> keys = {};
    keys.s = s;
    keys.dk = asked<T>(args->dk);
    keys.dv = asked<T>(args->dv);
    if (args->dk || args->dv)
        WF_TRY(row_map(ctx, warp_each(s.z.n * args->heads * s.z.keys), keys));
    return args->dbias ? near_bias_gradient(ctx, s, asked<wide<T>>(args->dbias)) : WF_OK;
}

wf_status wf_cuda_neighbourhood_backward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    return of_float(args->q->dtype, [&](auto zero) {
        using T = decltype(zero);
        return near_gradients<T>(ctx, args, near_set_of<T>(args));
    });
}
