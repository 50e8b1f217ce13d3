/* The product of some rows with a packed matrix. Sums are in registers: with AVX-512 those of 8 rows and 32 columns at
 * a time, else of 6 or 4 rows and 16 columns. It knows nothing of tiles and filters. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

#if defined(__AVX512F__)

/* One register of floats. */
typedef vec part;
enum { PART = 16, ROWS_MOST = 8 };
/* The fetch of the next columns was not measured with AVX-512. */
static const bool fetches = false;

#else

#if defined(__FMA__)
#include <immintrin.h>
#endif

/* The compiler keeps `vec` in memory where the processor has no registers of its size. */
typedef float part __attribute__((vector_size(32)));
enum { PART = 8, ROWS_MOST = 6 };
static const bool fetches = true;

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

#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

/* What is fetched to the second-level cache: so many bytes further on with each row of b. */
typedef struct fetch {
    const char *from;
    int64_t step;
} fetch;

/* A block of some rows and one or two registers of columns. Element i of row r of a is at a.data[i * a_next + r *
 * a.step]. Sums are named variables, not an array: compilers keep only those in registers for certain. `rows` and `two`
 * are constants, so what lies beyond them goes away. */
static inline __attribute__((always_inline)) void block(int rows, bool two, int64_t k, wf_wino_rows a, int64_t a_next,
                                                        wf_wino_rows b, fetch next, bool accumulate, float *restrict c,
                                                        int64_t c_step)
{
#define START(r)                                                                                                       \
    part p##r = part_of(0), q##r = part_of(0);                                                                         \
    if ((r) < rows && accumulate) {                                                                                    \
        p##r = part_load(c + (r)*c_step);                                                                              \
        q##r = two ? part_load(c + (r)*c_step + PART) : q##r;                                                          \
    }
#define STEP(r)                                                                                                        \
    if ((r) < rows) {                                                                                                  \
        const part x = part_of(a.data[i * a_next + (r)*a.step]);                                                       \
        p##r = part_fma(x, b0, p##r);                                                                                  \
        q##r = two ? part_fma(x, b1, q##r) : q##r;                                                                     \
    }
#define FINISH(r)                                                                                                      \
    if ((r) < rows) {                                                                                                  \
        part_store(c + (r)*c_step, p##r);                                                                              \
        if (two)                                                                                                       \
            part_store(c + (r)*c_step + PART, q##r);                                                                   \
    }
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const part b0 = part_load(b.data + i * b.step), b1 = two ? part_load(b.data + i * b.step + PART) : b0;
        if (next.from)
            __builtin_prefetch(next.from + i * next.step, 0, 2);
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

/* Some rows, and all n columns. */
static inline __attribute__((always_inline)) void columns(int rows, int64_t k, int64_t n, wf_wino_rows a,
                                                          int64_t a_next, wf_wino_rows b, fetch next, bool accumulate,
                                                          float *c, int64_t c_step)
{
    for (int64_t j = 0; j < n; j += 2 * PART) {
        const wf_wino_rows some = {b.data + j, b.step};
        if (j + PART < n)
            block(rows, true, k, a, a_next, some, next, accumulate, c + j, c_step);
        else
            block(rows, false, k, a, a_next, some, next, accumulate, c + j, c_step);
    }
}

/* All rows; n and b.step are constants. Where rows are no multiple of ROWS_MOST, the first ones go by WINO_ROWS until
 * they are. */
static inline __attribute__((always_inline)) void all_rows(bool transposed, wf_wino_size size, int64_t n,
                                                           wf_wino_rows a, wf_wino_rows b, const float *next,
                                                           bool accumulate, float *c, int64_t c_step)
{
    /* Every row of blocks fetches its part of the next columns: the processor then finds them in its second-level
     * cache, which its own prefetching does not reach in time (1.1 to 1.3 times as fast on a Zen 3 from 128 channels
     * on). */
    const int64_t few = size.m % ROWS_MOST == 0 ? 0 : size.m % ROWS_MOST == 4 ? 4 : 8;
    const int64_t turns = few / WINO_ROWS + (size.m - few) / ROWS_MOST;
    const int64_t step = (b.step * (int64_t)sizeof(float) + turns - 1) / turns;
    const int64_t a_row = transposed ? 1 : a.step, a_next = transposed ? a.step : 1;
    const char *from = (const char *)next;
    int64_t row = 0;
    for (; row < size.m; from += size.k * step) {
        const wf_wino_rows rows = {a.data + row * a_row, a_row};
        const fetch ahead = {fetches ? from : NULL, step};
        float *const to = c + row * c_step;
        if ((size.m - row) % ROWS_MOST == 0) {
            columns(ROWS_MOST, size.k, n, rows, a_next, b, ahead, accumulate, to, c_step);
            row += ROWS_MOST;
        } else {
            columns(WINO_ROWS, size.k, n, rows, a_next, b, ahead, accumulate, to, c_step);
            row += WINO_ROWS;
        }
    }
}

void wf_wino_multiply_transposed(wf_wino_size size, wf_wino_rows a, const float *b, const float *next, bool accumulate,
                                 float *c, int64_t c_step)
{
    const wf_wino_rows panel = {b, WINO_PANEL};
    if (WINO_PANEL == 16 || size.n != 16)
        all_rows(true, size, WINO_PANEL, a, panel, next, accumulate, c, c_step);
    else
        all_rows(true, size, 16, a, panel, next, accumulate, c, c_step);
}

void wf_wino_multiply(wf_wino_size size, wf_wino_rows a, const float *b, const float *next, float *c, int64_t c_step)
{
    /* Constants: the compiler then knows where the next row of b is. */
    if (WINO_PANEL == 16 || size.n == 16)
        all_rows(false, size, 16, a, (wf_wino_rows){b, 16}, next, false, c, c_step);
    else
        all_rows(false, size, WINO_PANEL, a, (wf_wino_rows){b, WINO_PANEL}, next, false, c, c_step);
}
