/* Attention of pixels to those around them, in one pair of slots of the kernel table (core/kernels_author.h). The rule
 * is that of NATTEN (Hassani et al. 2023, "Neighborhood Attention Transformer"), here along one dimension of L pixels,
 * a kernel k and a dilation r, k r <= L:
 *
 *     Pixel i sees k pixels, all of them i modulo r. Those are the places 0 ... n - 1 of its class, i the g-th. The
 *     first one it sees is the place clamp(g - k / 2, 0, n - k): k / 2 before it, and at the borders as many as
 *     needed to have k inside. An even kernel has one pixel less behind than before.
 *
 *       i = 0, 1 or 2 of k = 5:  [0 1 2 3 4]5 6 7        i = 4 of k = 4:  0 1[2 3 4 5]6 7
 */
#ifndef WF_CORE_NEIGHBOURHOOD_AUTHOR_H
#define WF_CORE_NEIGHBOURHOOD_AUTHOR_H

#include "core/array_author.h"
#include "core/random_rows_author.h"

/* Three dimensions; those that an image does not have are the first ones, of length, kernel and dilation 1. Arrays hold
 * parts of the image. */
typedef struct wf_neighbourhood {
    int64_t length[3]; /* of the whole image */
    int64_t kernel[3], dilation[3];
    int64_t first_query[3], first_key[3]; /* the places of the arrays' first pixels in the whole */
} wf_neighbourhood;

/* N samples; a head has D features of q and k, E of v. P are the pixels of queries, S those of keys, which are all that
 * the queries see, or more. Arrays are row-major. "Wide" is f32, and f64 where q is. A row of bias is the difference of
 * the places of key and query, in steps of the dilation, + kernel - 1 along each dimension, row by row. */
typedef struct wf_neighbourhood_args {
    wf_neighbourhood around;
    int64_t heads;
    double scale;
    const wf_array *q, *k, *v;    /* [N,P,P,P,heads D], [N,S,S,S,heads D], [N,S,S,S,heads E] */
    const wf_array *y;            /* [N,P,P,P,heads E] */
    const wf_array *lse;          /* wide [N,heads,P P P]: the logarithm of the sum of exp(scores) */
    const wf_array *dy;           /* y's shape; NULL: forward */
    const wf_array *dq, *dk, *dv; /* of q, k and v; NULL: not wanted */
    const wf_array *bias;         /* wide [heads,rows], rows = product of 2 kernel - 1; NULL: 0 */
    const wf_array *dbias;        /* like bias; NULL: not wanted */
} wf_neighbourhood_args;

typedef struct wf_neighbourhood_sizes {
    int64_t n, d, e, seen, rows; /* pixels that a query sees; rows of a bias */
    int64_t p[3], s[3], queries, keys;
} wf_neighbourhood_sizes;

static inline wf_neighbourhood_sizes wf_neighbourhood_sizes_of(const wf_neighbourhood_args *a)
{
    const int64_t *const q = a->q->shape.dim, *const k = a->k->shape.dim;
    wf_neighbourhood_sizes z;
    z.n = q[0];
    z.d = q[4] / a->heads;
    z.e = a->v->shape.dim[4] / a->heads;
    z.seen = z.rows = z.queries = z.keys = 1;
    for (int d = 0; d < 3; d++) {
        z.p[d] = q[1 + d];
        z.s[d] = k[1 + d];
        z.queries *= z.p[d];
        z.keys *= z.s[d];
        z.seen *= a->around.kernel[d];
        z.rows *= 2 * a->around.kernel[d] - 1;
    }
    return z;
}

/* Places first, first + step, ... of the whole, along a dimension. */
typedef struct wf_neighbours {
    int64_t first, step, count;
} wf_neighbours;

/* The places that place i sees. */
WF_HOST_AND_DEVICE static inline wf_neighbours wf_neighbourhood_keys(const wf_neighbourhood *a, int d, int64_t i)
{
    const int64_t step = a->dilation[d], kernel = a->kernel[d], rest = i % step;
    const int64_t last = (a->length[d] - rest + step - 1) / step - kernel;
    int64_t first = i / step - kernel / 2;
    first = first < 0 ? 0 : first > last ? last : first;
    wf_neighbours seen = {first * step + rest, step, kernel};
    return seen;
}

/* The places in [lo, hi) that see place j. */
WF_HOST_AND_DEVICE static inline wf_neighbours wf_neighbourhood_queries(const wf_neighbourhood *a, int d, int64_t j,
                                                                        int64_t lo, int64_t hi)
{
    const int64_t step = a->dilation[d], kernel = a->kernel[d], rest = j % step, at = j / step;
    const int64_t places = (a->length[d] - rest + step - 1) / step;
    int64_t first = at - kernel + 1 <= 0 ? 0 : at - kernel + 1 + kernel / 2;
    int64_t end = at >= places - kernel ? places : at + kernel / 2 + 1;
    /* The first places of this class at or after lo and hi. */
    const int64_t from = lo > rest ? (lo - rest + step - 1) / step : 0,
                  to = hi > rest ? (hi - rest + step - 1) / step : 0;
    first = first < from ? from : first;
    end = end > to ? to : end;
    wf_neighbours seeing = {first * step + rest, step, end > first ? end - first : 0};
    return seeing;
}

/* The row of bias along a dimension, for a place and one that it sees. */
WF_HOST_AND_DEVICE static inline int64_t wf_neighbourhood_row(const wf_neighbourhood *a, int d, int64_t query,
                                                              int64_t key)
{
    return (key - query) / a->dilation[d] + a->kernel[d] - 1;
}

#endif
