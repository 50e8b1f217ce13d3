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

#include <math.h>

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

/* The standard normal number below which the part p of all of them lies: Wichura's PPND16 (AS 241, 1988), of a relative
 * accuracy of 1e-16, without its branch for p below 1e-11 or above 1 - 1e-11. */
WF_HOST_AND_DEVICE static inline double wf_normal_quantile(double p)
{
    const double q = p - 0.5;
    if (fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        const double above = ((((((2509.0809287301226727 * r + 33430.575583588128105) * r + 67265.770927008700853) * r +
                                 45921.953931549871457) *
                                    r +
                                13731.693765509461125) *
                                   r +
                               1971.5909503065514427) *
                                  r +
                              133.14166789178437745) *
                                 r +
                             3.3871328727963666080;
        const double below = ((((((5226.4952788528545610 * r + 28729.085735721942674) * r + 39307.895800092710610) * r +
                                 21213.794301586595867) *
                                    r +
                                5394.1960214247511077) *
                                   r +
                               687.18700749205790830) *
                                  r +
                              42.313330701600911252) *
                                 r +
                             1;
        return q * above / below;
    }
    const double r = sqrt(-log(q < 0 ? p : 1 - p)) - 1.6;
    const double above =
        ((((((7.74545014278341407640e-4 * r + 0.0227238449892691845833) * r + 0.241780725177450611770) * r +
            1.27045825245236838258) *
               r +
           3.64784832476320460504) *
              r +
          5.76949722146069140550) *
             r +
         4.63033784615654529590) *
            r +
        1.42343711074968357734;
    const double below =
        ((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r + 0.0151986665636164571966) * r +
            0.148103976427480074590) *
               r +
           0.689767334985100004550) *
              r +
          1.67638483018380384940) *
             r +
         2.05319162663775882187) *
            r +
        1;
    return (q < 0 ? -1 : 1) * above / below;
}

/* WF_TRUNCATED of mean 0 and deviation 1, from u of wf_random_unit: the middle of the part that u stands for, so the
 * ends are not reached. */
WF_HOST_AND_DEVICE static inline double wf_random_truncated(double u)
{
    const double outside = 0.022750131948179207200; /* of all normal numbers, those below -2 */
    return wf_normal_quantile(outside + (u + 0x1p-25) * (1 - 2 * outside));
}

#endif
