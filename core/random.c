/* Philox, the hashes that make streams of it, and the division of a random fill into rows. Kernels, initial values
 * and data sets draw from it. It holds no state: equal arguments give equal numbers, on any rank. */
#include "core/random_rows_author.h"

#include <math.h>
#include <string.h>

/* 2^64 / golden ratio, and the finaliser of SplitMix64 (Steele, Lea and Flood 2014; constants by Stafford). */
static const uint64_t golden = 0x9E3779B97F4A7C15u;

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* mix(0) is 0, so stream 0 leaves the key as the seed: the published test vectors can be fed in. */
uint64_t wf_philox_key(uint64_t seed, uint64_t stream)
{
    return seed ^ mix(stream);
}

void wf_philox(uint64_t seed, uint64_t stream, uint64_t iteration, uint64_t counter, uint32_t word[4])
{
    const uint64_t key = wf_philox_key(seed, stream);
    word[0] = (uint32_t)counter;
    word[1] = (uint32_t)(counter >> 32);
    /* The 128-bit counter is (element / 4, iteration): the numbers of different iterations never overlap. */
    word[2] = (uint32_t)iteration;
    word[3] = (uint32_t)(iteration >> 32);
    wf_philox_rounds((uint32_t)key, (uint32_t)(key >> 32), word);
}

uint64_t wf_hash_u64(uint64_t hash, uint64_t value)
{
    return mix(mix(hash + golden) + value);
}

/* The length goes in last, so that "ab","c" and "a","bc" differ. */
uint64_t wf_hash_text(uint64_t hash, const char *text)
{
    const size_t length = text ? strlen(text) : 0;
    for (size_t i = 0; i < length; i++)
        /* FNV-1a, byte by byte. */
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3u;
    return wf_hash_u64(hash, length);
}

static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t low = a0 * b0, m0 = a1 * b0 + (low >> 32), m1 = a0 * b1 + (uint32_t)m0;
    return a1 * b1 + (m0 >> 32) + (m1 >> 32);
}

uint64_t wf_random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n)
{
    uint32_t word[4];
    wf_philox(seed, stream, 0, counter, word);
    /* Scaling by the high half of the product (Lemire 2019) instead of a remainder: unbiased up to n / 2^64, and one
     * draw always suffices, so the n-th number does not depend on the ones before. */
    return multiply_high((uint64_t)word[1] << 32 | word[0], n);
}

void wf_random_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *index)
{
    for (int64_t i = 0; i < n; i++)
        index[i] = i;
    /* Fisher and Yates. */
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = (int64_t)wf_random_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        const int64_t t = index[i];
        index[i] = index[j];
        index[j] = t;
    }
}

static int digits_of(wf_dtype dtype)
{
    return dtype == WF_F64 ? 53 : dtype == WF_F32 ? 24 : dtype == WF_F16 ? 11 : 8;
}

double wf_random_top(double a, double b, wf_dtype dtype)
{
    int exponent;
    const double fraction = frexp(b, &exponent);
    const double step = ldexp(1, exponent - digits_of(dtype) - (fraction == 0.5)); /* between numbers just below b */
    const double top = b == 0 ? -ldexp(1, -14) : (ceil(b / step) - 1) * step;
    return top > a ? top : a;
}

/* The dimensions as they lie in memory, outermost first. */
static void memory_sequence(int rank, wf_order order, int sequence[WF_MAX_RANK])
{
    int k = 0;
    for (int d = 0; d < rank; d++)
        if (order == WF_ROW_MAJOR || d != 1)
            sequence[k++] = d;
    if (k < rank)
        sequence[k] = 1;
}

wf_random_rows wf_random_rows_make(const wf_random *random, wf_order order)
{
    const int rank = random->box.rank;
    wf_random_rows rows = {.count = 1, .length = 1};
    int sequence[WF_MAX_RANK] = {0};
    memory_sequence(rank, order, sequence);
    int64_t stride = 1;
    bool whole = true;
    for (int k = rank - 1; k >= 0; k--) {
        const int d = sequence[k];
        const int64_t extent = random->box.hi[d] - random->box.lo[d];
        rows.first += random->box.lo[d] * stride;
        /* Inner dimensions that are whole on this rank form one run of consecutive global numbers; the first cut one
         * ends it. */
        if (whole) {
            rows.length *= extent;
        } else {
            rows.count *= extent;
            rows.extent[k] = extent;
            rows.stride[k] = stride;
            rows.outer = rows.outer ? rows.outer : k + 1;
        }
        whole = whole && extent == random->global.dim[d];
        stride *= random->global.dim[d];
    }
    if (rows.length == 0)
        rows.count = 0;
    return rows;
}

int64_t wf_random_row_start(const wf_random_rows *rows, int64_t row)
{
    int64_t start = rows->first;
    for (int k = rows->outer - 1; k >= 0; k--) {
        start += row % rows->extent[k] * rows->stride[k];
        row /= rows->extent[k];
    }
    return start;
}
