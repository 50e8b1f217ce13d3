/* oneDNN's primitives without anything around them: channels-last data, filters in oneDNN's own form, each on memory of
 * its own. What oneDNN offers first is taken. */
#ifndef WF_TESTS_BENCH_PRIMITIVE_H
#define WF_TESTS_BENCH_PRIMITIVE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum bench_op {
    BENCH_CONV,   /* with bias */
    BENCH_DECONV, /* with bias; from f channels to c, in the shapes of the convolution from c to f */
    BENCH_LINEAR, /* with bias, from c to f */
    BENCH_NORM,   /* batch statistics and ReLU in one, over c channels */
    BENCH_LEAKY,
    BENCH_SIGMOID,
} bench_op;

typedef enum bench_way {
    BENCH_FORWARD,
    BENCH_DATA,   /* the gradient of the input */
    BENCH_FILTER, /* the gradient of filter and bias, in f32 */
} bench_way;

/* n samples; h pixels of a side of the input, or of both sides, 1 for rows; kernel k, stride s, pad 1. */
typedef struct bench_primitive {
    bench_op op;
    bench_way way;
    int64_t n, c, f, h, k, s;
} bench_primitive;

/* Seconds of one run: the least of ten or more, which take 0.1 s or more. Ends the program where oneDNN has none. */
double bench_primitive_seconds(const bench_primitive *p, bool bf16);

#endif
