/* How a kernel walks a random fill: the array as rows that are contiguous both in memory and in the global index.
 *
 *     const wf_random_rows rows = wf_random_rows_make(random, y->order);
 *     for (int64_t r = 0; r < rows.count; r++)
 *         value(s) y[r * rows.length + i] have the global index wf_random_row_start(&rows, r) + i, 0 <= i < rows.length
 *
 * Rows are independent of each other and may be cut anywhere. A box that is the whole tensor is one row.
 */
#ifndef WF_CORE_RANDOM_ROWS_AUTHOR_H
#define WF_CORE_RANDOM_ROWS_AUTHOR_H

#include "core/dtype.h"
#include "core/random_author.h"

/* GPU kernels use the functions marked with this, too. */
#ifdef __CUDACC__
#define WF_HOST_AND_DEVICE __host__ __device__
#else
#define WF_HOST_AND_DEVICE
#endif

/* The largest number of this type that a uniform fill of [a, b) may write: a + (b - a) u may be rounded to b, and is
 * then this number. */
double wf_random_top(double a, double b, wf_dtype dtype);

typedef struct wf_random_rows {
    int64_t count;                                    /* 0 where the box is empty */
    int64_t length;                                   /* of every row; the local offset of row r is r * length */
    int64_t first;                                    /* global index of the box's first element */
    int outer;                                        /* dimensions outside the rows, outermost first */
    int64_t extent[WF_MAX_RANK], stride[WF_MAX_RANK]; /* of those; strides of the global tensor */
} wf_random_rows;

wf_random_rows wf_random_rows_make(const wf_random *random, wf_order order);
/* The global index of a row's first element. */
int64_t wf_random_row_start(const wf_random_rows *rows, int64_t row);

/* The key of Philox for (seed, stream); a block's counter words are counter low, high, iteration low, high. */
uint64_t wf_philox_key(uint64_t seed, uint64_t stream);

/* Ten rounds in place on one block: c is counter in, random words out. For loops that fill many blocks. */
WF_HOST_AND_DEVICE static inline void wf_philox_rounds(uint32_t k0, uint32_t k1, uint32_t c[4])
{
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The uniform number of a word: 24 bits, in [0, 1). Exact in f32, so that all fillings draw the same masks: an element
 * is dropped where wf_random_unit(word) < rate, compared in double. */
WF_HOST_AND_DEVICE static inline double wf_random_unit(uint32_t word)
{
    return (double)(word >> 8) * 0x1p-24;
}

#endif
