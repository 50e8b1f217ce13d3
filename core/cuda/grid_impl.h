/* Channels-last images [N, d0, d1, d2, C] of up to three spatial dimensions, walked by threads that hold a pack of
 * neighbouring channels each. */
#ifndef WF_CORE_CUDA_GRID_IMPL_H
#define WF_CORE_CUDA_GRID_IMPL_H

#include "core/cuda/kernel_impl.h"

struct image {
    int64_t n, c, extent[3], pixels; /* extents: 1s in front where there are fewer than three */
    divider packs, length[3];        /* packs of a pixel */
    int64_t count;                   /* packs in all */

    /* Pack i: sample, place and first channel. */
    __device__ void place(int64_t i, int width, int64_t *sample, int64_t at[3], int64_t *channel) const
    {
        int64_t rest = packs.of(i);
        *channel = (i - rest * packs.d) * width;
        for (int d = 2; d >= 0; d--) {
            const int64_t q = length[d].of(rest);
            at[d] = rest - q * length[d].d;
            rest = q;
        }
        *sample = rest;
    }
};

inline image image_of(const wf_array *a, int nd, int width)
{
    image m = {};
    m.n = a->shape.dim[0];
    m.c = a->shape.dim[1];
    m.pixels = 1;
    for (int d = 0; d < 3; d++) {
        m.extent[d] = d < 3 - nd ? 1 : a->shape.dim[2 + d - (3 - nd)];
        m.pixels *= m.extent[d];
        m.length[d] = divide_by(m.extent[d]);
    }
    m.packs = divide_by(m.c / width);
    m.count = m.n * m.pixels * (m.c / width);
    return m;
}

/* Upwards, for any n and d > 0. */
__device__ inline int64_t ceiling(int64_t n, int64_t d)
{
    return n > 0 ? (n + d - 1) / d : -(-n / d);
}

#endif
