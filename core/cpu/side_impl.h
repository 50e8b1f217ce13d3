/* Short rows side by side: few numbers fill no vector, so sixteen rows are turned over, and number j of all of them
 * lies in a line. Softmax and cross entropy of few classes. */
#ifndef WF_CORE_CPU_SIDE_IMPL_H
#define WF_CORE_CPU_SIDE_IMPL_H

#include "core/cpu/simd_impl.h"

/* Rows that are computed side by side, and the most numbers of a row for which that pays. */
enum { SIDE = 16, SHORT_ROW = 64 };

typedef float side_four __attribute__((vector_size(16)));

/* Four rows of four numbers, `step` floats apart, become four columns, `to_step` apart. */
static inline void side_tile(const float *from, int64_t step, float *to, int64_t to_step)
{
    side_four a, b, c, d;
    memcpy(&a, from, sizeof a);
    memcpy(&b, from + step, sizeof b);
    memcpy(&c, from + 2 * step, sizeof c);
    memcpy(&d, from + 3 * step, sizeof d);
    const side_four e = __builtin_shufflevector(a, b, 0, 4, 1, 5), f = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const side_four g = __builtin_shufflevector(a, b, 2, 6, 3, 7), h = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(e, f, 0, 1, 4, 5);
    b = __builtin_shufflevector(e, f, 2, 3, 6, 7);
    c = __builtin_shufflevector(g, h, 0, 1, 4, 5);
    d = __builtin_shufflevector(g, h, 2, 3, 6, 7);
    memcpy(to, &a, sizeof a);
    memcpy(to + to_step, &b, sizeof b);
    memcpy(to + 2 * to_step, &c, sizeof c);
    memcpy(to + 3 * to_step, &d, sizeof d);
}

/* to[column][row] = from[row][column]; rows of `from` are `step` apart, those of `to` `to_step`. */
static inline void side_turn(int64_t rows, int64_t columns, const float *from, int64_t step, float *to, int64_t to_step)
{
    int64_t r = 0;
    for (; r + 4 <= rows && columns >= 4; r += 4) {
        int64_t j = 0;
        for (; j + 4 <= columns; j += 4)
            side_tile(from + r * step + j, step, to + j * to_step + r, to_step);
        /* The last tile may cover some columns again. */
        if (j < columns)
            side_tile(from + r * step + columns - 4, step, to + (columns - 4) * to_step + r, to_step);
    }
    for (; r < rows; r++)
        for (int64_t j = 0; j < columns; j++)
            to[j * to_step + r] = from[r * step + j];
}

/* n <= SIDE rows of c numbers into to[c][SIDE]; rows that are missing are 0. */
static inline void side_take(int64_t n, int64_t c, const float *from, float *to)
{
    if (n < SIDE)
        memset(to, 0, (size_t)(c * SIDE) * sizeof *to);
    side_turn(n, c, from, c, to, SIDE);
}

/* Back into n rows of c numbers. */
static inline void side_put(int64_t n, int64_t c, const float *from, float *to)
{
    side_turn(c, n, from, SIDE, to, c);
}

#endif
