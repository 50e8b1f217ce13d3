/* The product of 8 rows with a packed matrix. Sums are in registers, as many as hide the latency of the multiplier:
 * sixteen with AVX-512, eight otherwise. It knows nothing of tiles and filters. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

#if defined(__FMA__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)

#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

/* The two accumulators of each row are named variables, not an array: compilers keep only those in registers for
 * certain. */
static void panel_32(int64_t k, const float *restrict a, int64_t step, const float *restrict b, float *restrict c,
                     int64_t c_step)
{
#define START(r) vec p##r = {0}, q##r = {0};
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        const vec x = vec_of(a[(r)*step + i]);                                                                         \
        p##r = vec_fma(x, b0, p##r);                                                                                   \
        q##r = vec_fma(x, b1, q##r);                                                                                   \
    }
#define FINISH(r)                                                                                                      \
    vec_store(c + (r)*c_step, p##r);                                                                                   \
    vec_store(c + (r)*c_step + 16, q##r);
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const vec b0 = vec_load(b + i * 32), b1 = vec_load(b + i * 32 + 16);
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

static void panel_16(int64_t k, const float *restrict a, int64_t step, const float *restrict b, float *restrict c,
                     int64_t c_step)
{
#define START(r)  vec p##r = {0};
#define STEP(r)   p##r = vec_fma(vec_of(a[(r)*step + i]), b0, p##r);
#define FINISH(r) vec_store(c + (r)*c_step, p##r);
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const vec b0 = vec_load(b + i * 16);
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

/* As panel_32, with the rows of a side by side: sums over tiles, for gradients. */
static void outer_32(int64_t k, const float *restrict a, int64_t a_step, const float *restrict b, int64_t b_step,
                     bool accumulate, float *restrict c, int64_t c_step)
{
#define START(r)                                                                                                       \
    vec p##r = accumulate ? vec_load(c + (r)*c_step) : vec_of(0.0F);                                                   \
    vec q##r = accumulate ? vec_load(c + (r)*c_step + 16) : vec_of(0.0F);
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        const vec x = vec_of(a[i * a_step + (r)]);                                                                     \
        p##r = vec_fma(x, b0, p##r);                                                                                   \
        q##r = vec_fma(x, b1, q##r);                                                                                   \
    }
#define FINISH(r)                                                                                                      \
    vec_store(c + (r)*c_step, p##r);                                                                                   \
    vec_store(c + (r)*c_step + 16, q##r);
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const vec b0 = vec_load(b + i * b_step), b1 = vec_load(b + i * b_step + 16);
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

static void outer_16(int64_t k, const float *restrict a, int64_t a_step, const float *restrict b, int64_t b_step,
                     bool accumulate, float *restrict c, int64_t c_step)
{
#define START(r)  vec p##r = accumulate ? vec_load(c + (r)*c_step) : vec_of(0.0F);
#define STEP(r)   p##r = vec_fma(vec_of(a[i * a_step + (r)]), b0, p##r);
#define FINISH(r) vec_store(c + (r)*c_step, p##r);
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const vec b0 = vec_load(b + i * b_step);
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

void wf_wino_multiply_transposed(int64_t k, int64_t n, wf_wino_rows a, wf_wino_rows b, bool accumulate, float *c,
                                 int64_t c_step)
{
    if (n == WINO_PANEL)
        outer_32(k, a.data, a.step, b.data, b.step, accumulate, c, c_step);
    else
        outer_16(k, a.data, a.step, b.data, b.step, accumulate, c, c_step);
}

void wf_wino_multiply(int64_t k, int64_t n, wf_wino_rows a, const float *b, float *c, int64_t c_step)
{
    if (n == WINO_PANEL)
        panel_32(k, a.data, a.step, b, c, c_step);
    else
        panel_16(k, a.data, a.step, b, c, c_step);
}

#else

/* Sixteen registers of eight floats do not hold the sums of 8 rows: four rows by sixteen columns at a time. */
enum { SQUARE_ROWS = 4, SQUARE_COLUMNS = 16 };

/* The compiler keeps `vec` in memory where the processor has no registers of its size. */
typedef float half_vec __attribute__((vector_size(32)));

static inline half_vec half_load(const float *p)
{
    half_vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void half_store(float *p, half_vec v)
{
    memcpy(p, &v, sizeof v);
}

/* a b + c. ISO C has gcc round the product, so fused multiplication must be asked for. */
static inline half_vec half_fma(half_vec a, half_vec b, half_vec c)
{
#if defined(__FMA__)
    return (half_vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Element i of row r is at a.data[i * a_apart + r * a.step]. */
static inline __attribute__((always_inline)) void square(int64_t k, wf_wino_rows a, int64_t a_apart, wf_wino_rows b,
                                                         bool accumulate, float *restrict c, int64_t c_step)
{
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define START(r)                                                                                                       \
    half_vec p##r = {0}, q##r = {0};                                                                                   \
    if (accumulate) {                                                                                                  \
        p##r = half_load(c + (r)*c_step);                                                                              \
        q##r = half_load(c + (r)*c_step + 8);                                                                          \
    }
#define STEP(r)                                                                                                        \
    {                                                                                                                  \
        const float one = a.data[i * a_apart + (r)*a.step];                                                            \
        const half_vec x = {one, one, one, one, one, one, one, one};                                                   \
        p##r = half_fma(x, b0, p##r);                                                                                  \
        q##r = half_fma(x, b1, q##r);                                                                                  \
    }
#define FINISH(r)                                                                                                      \
    half_store(c + (r)*c_step, p##r);                                                                                  \
    half_store(c + (r)*c_step + 8, q##r);
    EACH_ROW(START)
    for (int64_t i = 0; i < k; i++) {
        const half_vec b0 = half_load(b.data + i * b.step), b1 = half_load(b.data + i * b.step + 8);
        EACH_ROW(STEP)
    }
    EACH_ROW(FINISH)
#undef START
#undef STEP
#undef FINISH
}

void wf_wino_multiply_transposed(int64_t k, int64_t n, wf_wino_rows a, wf_wino_rows b, bool accumulate, float *c,
                                 int64_t c_step)
{
    for (int64_t j = 0; j < n; j += SQUARE_COLUMNS)
        for (int64_t r = 0; r < WINO_ROWS; r += SQUARE_ROWS)
            square(k, (wf_wino_rows){a.data + r, 1}, a.step, (wf_wino_rows){b.data + j, b.step}, accumulate,
                   c + r * c_step + j, c_step);
}

void wf_wino_multiply(int64_t k, int64_t n, wf_wino_rows a, const float *b, float *c, int64_t c_step)
{
    for (int64_t j = 0; j < n; j += SQUARE_COLUMNS)
        for (int64_t r = 0; r < WINO_ROWS; r += SQUARE_ROWS)
            square(k, (wf_wino_rows){a.data + r * a.step, a.step}, 1, (wf_wino_rows){b + j, n}, false,
                   c + r * c_step + j, c_step);
}

#endif
