/* Random numbers in kernels: the same ones as on any other device, keyed by the global index of the element. */
#ifndef WF_CORE_CUDA_NOISE_IMPL_H
#define WF_CORE_CUDA_NOISE_IMPL_H

#include "core/cuda/kernel_impl.h"

extern "C" {
#include "core/random_rows_author.h"
}

/* wf_random_rows with divisions prepared: an argument of kernels, so it stays in constant memory. */
struct noise_source {
    uint32_t key[2];
    const uint64_t *iteration;
    int64_t first;
    int outer;
    divider length, extent[WF_MAX_RANK];
    int64_t stride[WF_MAX_RANK];

    /* The global index of local element i. */
    __device__ int64_t index(int64_t i) const
    {
        if (outer == 0)
            return first + i;
        int64_t at = i, row = length.split(&at);
        at += first;
        for (int k = outer - 1; k >= 0; k--) {
            const int64_t rest = extent[k].of(row);
            at += (row - rest * extent[k].d) * stride[k];
            row = rest;
        }
        return at;
    }
};

inline noise_source noise_of(const wf_random *random, wf_order order)
{
    const wf_random_rows rows = wf_random_rows_make(random, order);
    const uint64_t key = wf_philox_key(random->seed, random->stream);
    noise_source s = {};
    s.key[0] = (uint32_t)key;
    s.key[1] = (uint32_t)(key >> 32);
    s.iteration = random->iteration;
    s.first = rows.first;
    s.outer = rows.count > 1 ? rows.outer : 0;
    s.length = divide_by(rows.length);
    for (int k = 0; k < WF_MAX_RANK; k++) {
        s.extent[k] = divide_by(rows.extent[k]);
        s.stride[k] = rows.stride[k];
    }
    return s;
}

/* A thread's place in the stream: one block of four words, kept while neighbours use it. */
struct noise_block {
    uint64_t iteration, counter;
    uint32_t word[4];

    __device__ void begin(const noise_source &s)
    {
        iteration = s.iteration ? *s.iteration : 0;
        counter = ~(uint64_t)0;
    }

    /* Returns true if the block with index g of the whole tensor had to be computed. */
    __device__ bool seek(const noise_source &s, int64_t g)
    {
        const uint64_t wanted = (uint64_t)g >> 2;
        if (wanted == counter)
            return false;
        counter = wanted;
        word[0] = (uint32_t)wanted;
        word[1] = (uint32_t)(wanted >> 32);
        word[2] = (uint32_t)iteration;
        word[3] = (uint32_t)(iteration >> 32);
        wf_philox_rounds(s.key[0], s.key[1], word);
        return true;
    }
};

/* Without an index that is known at run time, which would send the four to memory. */
template <class V> __device__ inline V pick(const V v[4], int64_t g)
{
    const V low = g & 1 ? v[1] : v[0], high = g & 1 ? v[3] : v[2];
    return g & 2 ? high : low;
}

/* The upper 24 bits of the word of local element i. */
__device__ inline uint32_t noise_bits(const noise_source &s, noise_block *block, int64_t i)
{
    const int64_t g = s.index(i);
    block->seek(s, g);
    return pick(block->word, g) >> 8;
}

__device__ inline void box_muller(uint32_t first, uint32_t second, float *a, float *b)
{
    const float r = sqrtf(-2 * logf(((float)(first >> 8) + 1) * 0x1p-24f));
    float s, c;
    sincospif(2 * ((float)(second >> 8) * 0x1p-24f), &s, &c);
    *a = r * c;
    *b = r * s;
}

__device__ inline void box_muller(uint32_t first, uint32_t second, double *a, double *b)
{
    const double r = sqrt(-2 * log(((double)(first >> 8) + 1) * 0x1p-24));
    double s, c;
    sincospi(2 * ((double)(second >> 8) * 0x1p-24), &s, &c);
    *a = r * c;
    *b = r * s;
}

/* Standard normal numbers of arithmetic W. */
template <class W> struct normal_block {
    noise_block block;
    W value[4];

    __device__ void begin(const noise_source &s)
    {
        block.begin(s);
    }

    __device__ W at(const noise_source &s, int64_t i)
    {
        const int64_t g = s.index(i);
        if (block.seek(s, g)) {
            box_muller(block.word[0], block.word[1], &value[0], &value[1]);
            box_muller(block.word[2], block.word[3], &value[2], &value[3]);
        }
        return pick(value, g);
    }
};

#endif
