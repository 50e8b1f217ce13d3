/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 *
 * A value depends on (seed, stream, iteration, index) alone, so any rank can make any part of a random tensor. The
 * index of an element is its place in the *global* dense tensor in that tensor's order; value i uses word i % 4 of the
 * block with counter i / 4.
 */
#ifndef WF_CORE_RANDOM_AUTHOR_H
#define WF_CORE_RANDOM_AUTHOR_H

#include "core/layout.h"

typedef struct wf_random {
    uint64_t seed;
    uint64_t stream;           /* which use of random numbers: a hash of layer path, application, ... */
    const uint64_t *iteration; /* in device memory, so that a step can be replayed; NULL counts as 0 */
    wf_shape global;           /* shape of the whole tensor */
    wf_box box;                /* the part to be made; the array's shape */
} wf_random;

typedef enum wf_distribution {
    WF_UNIFORM = 0, /* a + (b - a) u, u in [0, 1) with 24 bits (f32) */
    WF_NORMAL,      /* mean a, standard deviation b; Box-Muller on words (0,1) and (2,3) */
    WF_TRUNCATED,   /* WF_NORMAL as far as it lies within 2 b of a: by the inverse of its distribution, of u */
} wf_distribution;

/* The four words of block `counter`. */
void wf_philox(uint64_t seed, uint64_t stream, uint64_t iteration, uint64_t counter, uint32_t word[4]);

/* Hashes for streams: a string into a running hash, a number into a running hash (SplitMix64 finaliser). */
uint64_t wf_hash_text(uint64_t hash, const char *text);
uint64_t wf_hash_u64(uint64_t hash, uint64_t value);

/* A uniform integer in [0, n), n > 0, without bias that matters (64-bit multiply-high), from block `counter`. */
uint64_t wf_random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n);
/* A permutation of 0..n-1 in `index` (Fisher-Yates). */
void wf_random_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *index);

#endif
