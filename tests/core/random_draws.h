/* Random geometries for tests/core/random_kernels.c. */
#ifndef WF_TESTS_RANDOM_DRAWS_H
#define WF_TESTS_RANDOM_DRAWS_H

#include "tests/core/contract_bodies.h"

typedef enum drawn_kind {
    DRAWN_FORWARD = 0,
    DRAWN_DATA, /* gradients of the data, and transposed convolutions, which are these with a bias and an activation */
    DRAWN_FILTER,
    DRAWN_MATMUL,
    DRAWN_REUSED,
    DRAWN_POOL,
    DRAWN_RESAMPLE,
    DRAWN_NORM_STATS,
    DRAWN_NORM_FORWARD,
    DRAWN_NORM_BACKWARD,
    DRAWN_SOFTMAX,
    DRAWN_BIAS,
    DRAWN_KINDS
} drawn_kind;

/* A case: a slot, its geometry, a float type, and a number of threads. */
typedef struct drawn {
    drawn_kind kind;
    wf_dtype type;
    int threads;
    double grid; /* of inputs: 1 where sums are of small integers, so exact in f32 */
    uint64_t seed;
    union {
        conv_case conv;
        matmul_case matmul;
        pool_case pool;
        resample_case resample;
        norm_case norm;
        row_case row;
    } of;
} drawn;

/* Number `index` of the cases of a seed. */
drawn draw(uint64_t seed, int64_t index);
const char *drawn_name(drawn_kind kind);
contract_body drawn_body(drawn_kind kind);

#endif
