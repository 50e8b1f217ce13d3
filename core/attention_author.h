/* Attention of several heads, in one pair of slots of the kernel table (core/kernels_author.h). */
#ifndef WF_CORE_ATTENTION_AUTHOR_H
#define WF_CORE_ATTENTION_AUTHOR_H

#include "core/array_author.h"
#include "core/random_rows_author.h"

/* Samples that are windows of images, row by row: of each image the call has `rows` rows of `columns` windows, from
 * these first ones on, of as many as there are of it on all ranks. rows 0: samples are no windows. */
typedef struct wf_attention_grid {
    int64_t first_row, rows, all_rows, first_column, columns, all_columns;
} wf_attention_grid;

/* N samples of T queries and S keys; a head has D features of q and k, E of v. All arrays are row-major. "Wide" is f32,
 * and f64 where q is. The score of query i and key j of a head is
 *
 *     s = scale q[i] . k[j] + bias[row of (i, j)] + mask[i, j],   or -infinity where i does not see j.
 *
 * i and j of a causal mask, of lengths and of a bias without an index are places among all tokens, of which the arrays
 * hold those from first_query and first_key on. The number of keys that a call computes with is free: results of parts
 * of the keys are joined by their lse, forward where `joins`; backward of a part takes y and lse of all keys. */
typedef struct wf_attention_args {
    int64_t heads;
    double scale;
    const wf_array *q, *k, *v;    /* [N,T,heads D], [N,S,heads D], [N,S,heads E] */
    const wf_array *y;            /* [N,T,heads E]; forward's of q's type or wide, backward's of q's type */
    const wf_array *lse;          /* wide [N,heads,T]: the logarithm of the sum of exp(s) */
    const wf_array *dy;           /* y's shape */
    const wf_array *dq, *dk, *dv; /* of q, k, v, all of q's type or all wide; NULL: not wanted */
    bool joins; /* forward: y and lse hold the result of other keys, and become that of both; y is 0 where lse is
                   -infinity */
    bool adds;  /* backward: gradients are added to what dq, dk, dv and dbias hold */
    const wf_array *bias;                /* wide [rows,heads]; NULL: 0 */
    const wf_array *index;               /* i32 [T,S], entries in [0, rows), else WF_ERR_ARGUMENT, of the forward slot:
                                            the row of bias. NULL: rows is odd, and the row is j - i + rows / 2, cut
                                            to [0, rows) */
    const wf_array *dbias;               /* wide [rows,heads]; NULL: not wanted */
    const wf_strided *mask;              /* wide [N,heads,T,S], strides of 0 allowed; NULL: 0 */
    const wf_array *lengths;             /* i32 [N]: keys from this place on are not seen; NULL: all are */
    const wf_array *q_region, *k_region; /* i32 [G,T] and [G,S]: in sample n, i sees j where entries i and j of rows
                                            (number of the sample) % G are equal; both NULL: always */
    bool causal;                         /* i does not see j > i */
    int64_t first_query, first_key;
    int64_t first_sample; /* among all samples; with a grid, of the images */
    wf_attention_grid grid;
    double dropout;          /* the rate at which probabilities become 0; the others are divided by 1 - rate */
    const wf_random *random; /* of an array [N,heads,T,S], from the first sample on; NULL where dropout is 0 */
} wf_attention_args;

/* Lengths and shapes of a call. */
typedef struct wf_attention_sizes {
    int64_t n, t, s, d, e, rows, groups; /* rows, groups: 0 where there is no bias, no region */
} wf_attention_sizes;

static inline wf_attention_sizes wf_attention_sizes_of(const wf_attention_args *a)
{
    const int64_t *const q = a->q->shape.dim, *const k = a->k->shape.dim;
    return (wf_attention_sizes){.n = q[0],
                                .t = q[1],
                                .s = k[1],
                                .d = q[2] / a->heads,
                                .e = a->v->shape.dim[2] / a->heads,
                                .rows = a->bias ? a->bias->shape.dim[0] : 0,
                                .groups = a->q_region ? a->q_region->shape.dim[0] : 0};
}

/* The number of keys at the front of S that query i may see, by the causal mask and the length of its sample (INT64_MAX
 * if it has none). */
WF_HOST_AND_DEVICE static inline int64_t wf_attention_reach(const wf_attention_args *a, int64_t s, int64_t length,
                                                            int64_t i)
{
    int64_t end = length - a->first_key;
    if (a->causal && a->first_query + i - a->first_key + 1 < end)
        end = a->first_query + i - a->first_key + 1;
    return end < 0 ? 0 : end < s ? end : s;
}

/* The row of bias without an index. */
WF_HOST_AND_DEVICE static inline int64_t wf_attention_row(const wf_attention_args *a, int64_t rows, int64_t i,
                                                          int64_t j)
{
    const int64_t row = a->first_key + j - a->first_query - i + rows / 2;
    return row < 0 ? 0 : row < rows ? row : rows - 1;
}

/* The number of sample n among all samples. */
WF_HOST_AND_DEVICE static inline int64_t wf_attention_sample(const wf_attention_args *a, int64_t n)
{
    const wf_attention_grid *const g = &a->grid;
    if (g->rows == 0)
        return a->first_sample + n;
    const int64_t row = n / g->columns, image = row / g->rows;
    return ((a->first_sample + image) * g->all_rows + g->first_row + row % g->rows) * g->all_columns + g->first_column +
           n % g->columns;
}

/* The random index of (sample, head, i) and key 0; `sample` counts all samples. */
WF_HOST_AND_DEVICE static inline int64_t wf_attention_place(const wf_random *r, int64_t sample, int64_t head, int64_t i)
{
    const int64_t *const lo = r->box.lo, *const g = r->global.dim;
    return ((sample * g[1] + lo[1] + head) * g[2] + lo[2] + i) * g[3] + lo[3];
}

#endif
