/* The product of 8 rows with a packed matrix. Sums are in registers: 16 of them hide the latency of the multiplier. It
 * knows nothing of tiles and filters. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

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
