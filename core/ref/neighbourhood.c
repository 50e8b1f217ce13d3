/* Neighbourhood attention in plain loops, a query at a time: the oracle. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

typedef struct neighbour_rows {
    const wf_neighbourhood_args *a;
    wf_neighbourhood_sizes z;
    const double *q, *k, *v, *bias;
    double *score;      /* of the keys that a query sees */
    int64_t *key, *row; /* their places in the arrays of keys, and in bias */
} neighbour_rows;

static neighbour_rows read_neighbours(wf_ref_frame *frame, const wf_neighbourhood_args *a)
{
    neighbour_rows o = {.a = a, .z = wf_neighbourhood_sizes_of(a)};
    o.q = wf_ref_in(frame, a->q);
    o.k = wf_ref_in(frame, a->k);
    o.v = wf_ref_in(frame, a->v);
    o.bias = wf_ref_in(frame, a->bias);
    o.score = wf_ref_work(frame, o.z.seen);
    /* Work is counted in doubles, which are as long as these numbers. */
    o.key = (int64_t *)wf_ref_work(frame, o.z.seen);
    o.row = (int64_t *)wf_ref_work(frame, o.z.seen);
    return o;
}

/* The first feature of head h at a pixel of sample n: heads lie inside pixels. */
static int64_t head_of_pixel(const neighbour_rows *o, int64_t n, int64_t h, int64_t pixel, int64_t pixels, int64_t each)
{
    return ((n * pixels + pixel) * o->a->heads + h) * each;
}

static double multiply_features(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += a[c] * b[c];
    return sum;
}

static void add_weighted_pixel(double *to, double factor, const double *x, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        to[c] += factor * x[c];
}

/* The keys that the query at `pixel` sees, row by row. */
static void find_keys(const neighbour_rows *o, int64_t pixel)
{
    /* All grids have three dimensions; those that an image lacks have length 1. */
    const wf_neighbourhood *const g = &o->a->around;
    const int64_t *const p = o->z.p, *const s = o->z.s;
    const int64_t at[3] = {g->first_query[0] + pixel / (p[1] * p[2]), g->first_query[1] + pixel / p[2] % p[1],
                           g->first_query[2] + pixel % p[2]};
    wf_neighbours seen[3];
    for (int d = 0; d < 3; d++)
        seen[d] = wf_neighbourhood_keys(g, d, at[d]);
    for (int64_t i = 0; i < o->z.seen; i++) {
        const int64_t of[3] = {i / (seen[1].count * seen[2].count), i / seen[2].count % seen[1].count,
                               i % seen[2].count};
        o->key[i] = o->row[i] = 0;
        for (int d = 0; d < 3; d++) {
            /* Keys of this rank begin at first_key, since it may hold a part of the image with its halo. */
            const int64_t place = seen[d].first + of[d] * seen[d].step;
            o->key[i] = o->key[i] * s[d] + place - g->first_key[d];
            o->row[i] = o->row[i] * (2 * g->kernel[d] - 1) + wf_neighbourhood_row(g, d, at[d], place);
        }
    }
}

static void score_keys(const neighbour_rows *o, int64_t n, int64_t h, int64_t pixel)
{
    const double *const q = o->q + head_of_pixel(o, n, h, pixel, o->z.queries, o->z.d);
    find_keys(o, pixel);
    for (int64_t i = 0; i < o->z.seen; i++) {
        const double *const k = o->k + head_of_pixel(o, n, h, o->key[i], o->z.keys, o->z.d);
        o->score[i] =
            o->a->scale * multiply_features(q, k, o->z.d) + (o->bias ? o->bias[h * o->z.rows + o->row[i]] : 0);
    }
}

wf_status wf_ref_neighbourhood_forward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const neighbour_rows o = read_neighbours(&frame, args);
    double *const y = wf_ref_out(&frame, args->y, false), *const lse = wf_ref_out(&frame, args->lse, false);
    const int64_t each = args->heads * o.z.queries;
    for (int64_t r = 0; r < o.z.n * each && frame.status == WF_OK; r++) {
        const int64_t n = r / each, h = r % each / o.z.queries, pixel = r % o.z.queries;
        double *const to = y + head_of_pixel(&o, n, h, pixel, o.z.queries, o.z.e);
        /* The largest score is subtracted, so exp cannot overflow; lse is the logarithm of the sum of exponentials, all
         * that backward needs of the softmax. */
        double most = -INFINITY, sum = 0;
        score_keys(&o, n, h, pixel);
        for (int64_t i = 0; i < o.z.seen; i++)
            most = o.score[i] > most ? o.score[i] : most;
        for (int64_t i = 0; i < o.z.seen; i++)
            sum += exp(o.score[i] - most);
        lse[r] = most + log(sum);
        memset(to, 0, (size_t)o.z.e * sizeof *to);
        for (int64_t i = 0; i < o.z.seen; i++)
            add_weighted_pixel(to, exp(o.score[i] - lse[r]), o.v + head_of_pixel(&o, n, h, o.key[i], o.z.keys, o.z.e),
                               o.z.e);
    }
    return wf_ref_end(&frame);
}

typedef struct neighbour_grads {
    const double *y, *dy, *lse;
    double *dq, *dk, *dv, *dbias; /* NULL: not wanted */
} neighbour_grads;

static void differentiate_pixel(const neighbour_rows *o, const neighbour_grads *g, int64_t n, int64_t h, int64_t pixel)
{
    const wf_neighbourhood_sizes *const z = &o->z;
    const int64_t at = head_of_pixel(o, n, h, pixel, z->queries, z->e);
    const int64_t to = head_of_pixel(o, n, h, pixel, z->queries, z->d);
    const double lse = g->lse[(n * o->a->heads + h) * z->queries + pixel], *const dy = g->dy + at;
    /* The mean of dy v over the softmax is dy y, so one product replaces a pass over the keys. */
    const double mean = multiply_features(dy, g->y + at, z->e);
    score_keys(o, n, h, pixel);
    for (int64_t i = 0; i < z->seen; i++) {
        const int64_t key = head_of_pixel(o, n, h, o->key[i], z->keys, z->d);
        const int64_t value = head_of_pixel(o, n, h, o->key[i], z->keys, z->e);
        const double p = exp(o->score[i] - lse), ds = p * (multiply_features(dy, o->v + value, z->e) - mean);
        if (g->dv)
            add_weighted_pixel(g->dv + value, p, dy, z->e);
        if (g->dq)
            add_weighted_pixel(g->dq + to, o->a->scale * ds, o->k + key, z->d);
        if (g->dk)
            add_weighted_pixel(g->dk + key, o->a->scale * ds, o->q + to, z->d);
        if (g->dbias)
            g->dbias[h * z->rows + o->row[i]] += ds;
    }
}

static double *cleared(wf_ref_frame *frame, const wf_array *a)
{
    double *const v = wf_ref_out(frame, a, false);
    if (v && frame->status == WF_OK)
        memset(v, 0, (size_t)wf_array_count(a) * sizeof *v);
    return v;
}

wf_status wf_ref_neighbourhood_backward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const neighbour_rows o = read_neighbours(&frame, args);
    neighbour_grads g = {.y = wf_ref_in(&frame, args->y), .dy = wf_ref_in(&frame, args->dy)};
    g.lse = wf_ref_in(&frame, args->lse);
    g.dq = cleared(&frame, args->dq);
    g.dk = cleared(&frame, args->dk);
    g.dv = cleared(&frame, args->dv);
    g.dbias = cleared(&frame, args->dbias);
    const int64_t each = args->heads * o.z.queries;
    for (int64_t r = 0; r < o.z.n * each && frame.status == WF_OK; r++)
        differentiate_pixel(&o, &g, r / each, r % each / o.z.queries, r % o.z.queries);
    return wf_ref_end(&frame);
}
