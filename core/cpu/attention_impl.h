/* Attention on vectors: a block of queries lies across the lanes, keys and values come one after the other. Scores,
 * probabilities and their gradients of a block are [keys][lanes], so maxima and sums over keys need no exchange between
 * lanes, and rows of k and v are read as they lie. Flash attention: Dao et al. 2022. */
#ifndef WF_CORE_CPU_ATTENTION_IMPL_H
#define WF_CORE_CPU_ATTENTION_IMPL_H

#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"

/* Queries and keys of a block: multiples of 16, so that scores of a block stay in the first-level cache. */
enum { LANES = 64, KEYS = 64 };
_Static_assert(LANES <= KEYS, "rooms for the rows of keys hold those of a block's queries too");

typedef struct attention_job {
    const wf_attention_args *a;
    wf_attention_sizes z;
    const float *bias; /* [heads][rows]; NULL: none */
    float *places;     /* the bias of each query and key, [heads][s][across]; NULL: it is read by rows */
    int64_t across;    /* queries, rounded up to whole blocks */
    int64_t dw, ew;    /* d and e, rounded up to whole packs */
    void *base;        /* to be given back: the bias, then the rooms */
    float *room;       /* of all workers */
    size_t each;       /* floats of one room */
} attention_job;

/* Some queries of a head. */
typedef struct attention_block {
    int64_t n, h, i, count; /* queries [i, i + count) */
    int64_t width;          /* lanes in use: count rounded up to whole packs */
    int64_t reach;          /* no query sees a key from here on */
} attention_block;

/* Rows of k or v of a head as floats. */
typedef struct attention_rows {
    const float *data;
    int64_t step;
} attention_rows;

static inline int64_t wf_pack_up(int64_t n)
{
    return (n + PACK - 1) / PACK * PACK;
}

static inline int64_t wf_attention_across(const wf_attention_sizes *z)
{
    return (z->t + LANES - 1) / LANES * LANES;
}

/* Returns true if the bias of every query and key is gathered by its rows once for all samples, as pays for windows.
 * The sides are bounded, so memory stays linear in the tokens. */
bool wf_attention_gathers(const wf_attention_args *args, const wf_attention_sizes *z);
/* Takes `bytes` of the pool, at job->base, for workers with rooms of `each` floats. */
wf_status wf_attention_begin(wf_ctx *ctx, const wf_attention_args *args, size_t each, int64_t workers,
                             attention_job *job, size_t *bytes);
attention_block wf_attention_block(const attention_job *job, int64_t n, int64_t h, int64_t i);
/* Rows [first, first + count) of head h of sample n: where they lie, or widened into room. */
attention_rows wf_attention_rows(const attention_job *job, const wf_array *of, int64_t n, int64_t h, int64_t first,
                                 int64_t count, float *room);
/* to[column][row] = scale from[row][column] */
void wf_attention_transpose(const float *from, int64_t from_step, int64_t rows, int64_t columns, float scale, float *to,
                            int64_t to_step);
/* The queries, or dy, of a block as [features][LANES], times scale; lanes in use without a query are 0. `room` holds
 * LANES of their rows. */
void wf_attention_turn(const attention_job *job, const wf_array *of, const attention_block *b, float scale, float *room,
                       float *to);
/* Scores [count][LANES] of keys [first, first + count), from queries that have the scale in them. */
void wf_attention_scores(const attention_job *job, const attention_block *b, const float *queries, attention_rows keys,
                         int64_t first, int64_t count, float *scores);
/* What dropout multiplies probabilities [count][LANES] by. */
void wf_attention_kept(const attention_job *job, const attention_block *b, int64_t first, int64_t count, float *kept);

/* c[m][n] += sum_k a[m][k] b[k][n], or = where fresh; element (m, k) of a is a[m row + k column]. n is a multiple of
 * PACK. */
typedef struct attention_product {
    bool fresh;
    int64_t m, n, k;
    const float *a;
    int64_t row, column;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
} attention_product;
void wf_attention_multiply(const attention_product *p);

#endif
