/* The product of 8 rows with a packed matrix. Sums are in registers: with AVX-512 those of 8 rows and 32 columns at a
 * time, else of 4 rows and 16 columns. It knows nothing of tiles and filters. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

#if defined(__AVX512F__)

/* One register of floats. */
typedef vec part;
enum { PART = 16, ROWS_AT_ONCE = 8 };
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

#else

#if defined(__FMA__)
#include <immintrin.h>
#endif

/* The compiler keeps `vec` in memory where the processor has no registers of its size. */
typedef float part __attribute__((vector_size(32)));
enum { PART = 8, ROWS_AT_ONCE = 4 };
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)

#endif

static inline part part_load(const float *p)
{
    part v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void part_store(float *p, part v)
{
    memcpy(p, &v, sizeof v);
}

static inline part part_of(float x)
{
#if defined(__AVX512F__)
    return vec_of(x);
#else
    return (part){x, x, x, x, x, x, x, x};
#endif
}

/* a b + c. ISO C has gcc round the product, so fused multiplication must be asked for. */
static inline part part_fma(part a, part b, part c)
{
#if defined(__AVX512F__)
    return vec_fma(a, b, c);
#elif defined(__FMA__)
    return (part)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* A block of ROWS_AT_ONCE rows and one or two registers of columns. Element i of row r of a is at
 * a.data[i * a_next + r * a.step]. Sums are named variables, not an array: compilers keep only those in registers for
 * certain. */
static inline __attribute__((always_inline)) void block(bool two, int64_t k, wf_wino_rows a, int64_t a_next,
                                                        wf_wino_rows b, bool accumulate, float *restrict c,
                                                        int64_t c_step)
{
#define START(r)                                                                                                       \
    part p##r = part_of(0), q##r = part_of(0);                                                                         \
    if (accumulate) {                                                                                                  \
        p##r = part_load(c + (r)*c_step);                                                                              \
        q##r = two ? part_load(c + (r)*c_step + PART) : q##r;                                                          \
    }
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        const part x = part_of(a.data[i * a_next + (r)*a.step]);                                                       \
        p##r = part_fma(x, b0, p##r);                                                                                  \
        q##r = two ? part_fma(x, b1, q##r) : q##r;                                                                     \
    }
#define FINISH(r)                                                                                                      \
    part_store(c + (r)*c_step, p##r);                                                                                  \
    if (two)                                                                                                           \
        part_store(c + (r)*c_step + PART, q##r);
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const part b0 = part_load(b.data + i * b.step), b1 = two ? part_load(b.data + i * b.step + PART) : b0;
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

static inline __attribute__((always_inline)) void blocks(int64_t k, int64_t n, wf_wino_rows a, int64_t a_next,
                                                         wf_wino_rows b, bool accumulate, float *c, int64_t c_step)
{
    for (int64_t j = 0; j < n; j += 2 * PART)
        for (int64_t r = 0; r < WINO_ROWS; r += ROWS_AT_ONCE) {
            const wf_wino_rows rows = {a.data + r * a.step, a.step}, columns = {b.data + j, b.step};
            float *const to = c + r * c_step + j;
            if (j + PART < n)
                block(true, k, rows, a_next, columns, accumulate, to, c_step);
            else
                block(false, k, rows, a_next, columns, accumulate, to, c_step);
        }
}

void wf_wino_multiply_transposed(int64_t k, int64_t n, wf_wino_rows a, wf_wino_rows b, bool accumulate, float *c,
                                 int64_t c_step)
{
    blocks(k, n, (wf_wino_rows){a.data, 1}, a.step, b, accumulate, c, c_step);
}

void wf_wino_multiply(int64_t k, int64_t n, wf_wino_rows a, const float *b, float *c, int64_t c_step)
{
    /* Constants: the compiler then knows where the next row of b is. */
    if (n == WINO_PANEL)
        blocks(k, WINO_PANEL, a, 1, (wf_wino_rows){b, WINO_PANEL}, false, c, c_step);
    else
        blocks(k, WINO_PANEL / 2, a, 1, (wf_wino_rows){b, WINO_PANEL / 2}, false, c, c_step);
}
