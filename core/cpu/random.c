/* Philox blocks as many at a time as a register holds, and what is made of them. The numbers are those of
 * core/ref/random.c, up to the rounding of logarithm, sine and cosine in f32; uniform ones are equal. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"
#include "core/random_rows_author.h"

#include <math.h>
#include <string.h>

/* Registers of blocks side by side: a round of one waits for the products of the one before it, which those of another
 * fill. */
#if defined(__AVX512F__)
enum { SETS = 1 };
#else
enum { SETS = 2 };
#endif
enum { GROUP = 4 * PACK * SETS };

typedef struct stream_key {
    uint32_t k0, k1, i0, i1;
} stream_key;

static stream_key key_of(const wf_random *random)
{
    const uint64_t key = wf_philox_key(random->seed, random->stream);
    const uint64_t iteration = random->iteration ? *random->iteration : 0;
    return (stream_key){(uint32_t)key, (uint32_t)(key >> 32), (uint32_t)iteration, (uint32_t)(iteration >> 32)};
}

/* gcc keeps the widening products of a plain loop scalar: hence vectors by hand. */
static inline void multiply(const pack_word *a, uint32_t by, pack_word *low, pack_word *high)
{
    const pack_pair factor = (pack_pair){0} + by;
    const pack_pair even = pack_multiply((pack_pair)*a, factor), odd = pack_multiply((pack_pair)*a >> 32, factor);
#if defined(__AVX512F__)
    *low = *a * by;
    *high = (pack_word)((even >> 32) | (odd & 0xffffffff00000000U));
#elif defined(__AVX2__)
    *low = (pack_word)_mm256_blend_epi32((__m256i)even, (__m256i)(odd << 32), 0xaa);
    *high = (pack_word)_mm256_blend_epi32((__m256i)(even >> 32), (__m256i)odd, 0xaa);
#else
    *low = (pack_word)((even & 0xffffffffU) | (odd << 32));
    *high = (pack_word)((even >> 32) | (odd & 0xffffffff00000000U));
#endif
}

/* wf_philox_rounds on the blocks `counter` to `counter` + PACK * SETS. */
static inline void blocks(stream_key key, uint64_t counter, pack_word c[SETS][4])
{
    static const uint32_t number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    pack_word lane, low0, high0, low1, high1;
    memcpy(&lane, number, sizeof lane);
    for (int s = 0; s < SETS; s++, lane += PACK) {
        c[s][0] = lane + (uint32_t)counter;
        /* The carry: a comparison of vectors is -1 where the low word wrapped. */
        c[s][1] = (pack_word){0} + (uint32_t)(counter >> 32) - (pack_word)(c[s][0] < lane);
        c[s][2] = (pack_word){0} + key.i0;
        c[s][3] = (pack_word){0} + key.i1;
    }
    for (int round = 0; round < 10; round++)
        for (int s = 0; s < SETS; s++) {
            multiply(&c[s][0], 0xD2511F53U, &low0, &high0);
            multiply(&c[s][2], 0xCD9E8D57U, &low1, &high1);
            c[s][0] = high1 ^ c[s][1] ^ (key.k0 + (uint32_t)round * 0x9E3779B9U);
            c[s][1] = low1;
            c[s][2] = high0 ^ c[s][3] ^ (key.k1 + (uint32_t)round * 0xBB67AE85U);
            c[s][3] = low0;
        }
}

/* (word >> 8) + add in units of 2^-24: exact. */
static inline pack unit(pack_word word, int32_t add)
{
    return __builtin_convertvector((pack_mask)(word >> 8) + add, pack) * pack_of(0x1p-24F);
}

/* The natural logarithm of positive normal numbers: x = 2^e m, m about 1; log m = 2 atanh((m - 1) / (m + 1)). */
static inline pack log_of(pack x)
{
    const pack_word root_half = (pack_word){0} + 0x3f3504f3U, shifted = (pack_word)x - root_half;
    const pack e = __builtin_convertvector((pack_mask)shifted >> 23, pack);
    const pack m = (pack)((shifted & 0x007fffffU) + root_half), one = pack_of(1.0F), z = (m - one) / (m + one),
               zz = z * z;
    /* Coefficients of a minimax fit of the series 2/3, 2/5, 2/7, 2/9. */
    pack p = pack_of(2.358498275e-01F);
    p = pack_fma(p, zz, pack_of(2.853716910e-01F));
    p = pack_fma(p, zz, pack_of(4.000033736e-01F));
    p = pack_fma(p, zz, pack_of(6.666666269e-01F));
    const pack tail = pack_fma(p * zz, z, e * pack_of(-1.90465421e-9F));
    return pack_fma(e, pack_of(0.693147182F), z + z + tail);
}

/* Sine and cosine of u turns, u in [0, 1): quadrant q and the rest t, |t| <= 1/8. */
static inline void turn_of(pack u, pack *sine, pack *cosine)
{
    const pack magic = pack_of(12582912.0F); /* 1.5 * 2^23: adding it rounds to a whole number in the low bits */
    const pack q = pack_fma(u, pack_of(4.0F), magic), t = pack_fma(q - magic, pack_of(-0.25F), u), tt = t * t;
    const pack_word quadrant = (pack_word)q;
    /* Fits of sin and cos of 2 pi t on |t| <= 1/8. */
    pack s = pack_of(4.147207260e+01F), c = pack_of(5.921887589e+01F);
    s = pack_fma(s, tt, pack_of(-7.669784546e+01F));
    s = pack_fma(s, tt, pack_of(8.160520172e+01F));
    s = pack_fma(s, tt, pack_of(-4.134170151e+01F));
    s = pack_fma(s, tt, pack_of(6.283185482e+00F)) * t;
    c = pack_fma(c, tt, pack_of(-8.544281006e+01F));
    c = pack_fma(c, tt, pack_of(6.493931580e+01F));
    c = pack_fma(c, tt, pack_of(-1.973920822e+01F));
    c = pack_fma(c, tt, pack_of(1.0F));
    const pack_word odd = (pack_word){0} - (quadrant & 1U);
    const pack_word bs = (pack_word)s, bc = (pack_word)c;
    /* Odd quadrants swap sine and cosine; bit 1 of the quadrant, moved to the sign bit, negates. */
    *sine = (pack)(((bs & ~odd) | (bc & odd)) ^ ((quadrant & 2U) << 30));
    *cosine = (pack)(((bc & ~odd) | (bs & odd)) ^ (((quadrant + 1U) & 2U) << 30));
}

/* out[4 l + k] = value[k][l]. ZIP and TWO interleave the floats and the pairs of two registers: of 16 floats in the
 * order of the result, of 8 by halves, which are then put in order. */
#if defined(__AVX512F__)
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define TWO_LOW(a, b)  __builtin_shufflevector(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23)
#define TWO_HIGH(a, b) __builtin_shufflevector(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31)
#elif defined(__AVX__)
#define ZIP_LOW(a, b)   __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define ZIP_HIGH(a, b)  __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define TWO_LOW(a, b)   __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define TWO_HIGH(a, b)  __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define HALF_LOW(a, b)  __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HALF_HIGH(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define TWO_LOW(a, b)  __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define TWO_HIGH(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#endif
static inline void interleave(const pack value[4], float *out)
{
    const pack low01 = ZIP_LOW(value[0], value[1]), low23 = ZIP_LOW(value[2], value[3]);
    const pack high01 = ZIP_HIGH(value[0], value[1]), high23 = ZIP_HIGH(value[2], value[3]);
    const pack a = TWO_LOW(low01, low23), b = TWO_HIGH(low01, low23);
    const pack c = TWO_LOW(high01, high23), d = TWO_HIGH(high01, high23);
#if defined(HALF_LOW)
    pack_store(out, HALF_LOW(a, b));
    pack_store(out + PACK, HALF_LOW(c, d));
    pack_store(out + 2 * PACK, HALF_HIGH(a, b));
    pack_store(out + 3 * PACK, HALF_HIGH(c, d));
#else
    pack_store(out, a);
    pack_store(out + PACK, b);
    pack_store(out + 2 * PACK, c);
    pack_store(out + 3 * PACK, d);
#endif
}

/* Values 4 * counter to 4 * counter + GROUP of the stream. */
static void group_uniform(stream_key key, uint64_t counter, float *out)
{
    pack_word word[SETS][4];
    pack value[4];
    blocks(key, counter, word);
    for (int s = 0; s < SETS; s++) {
        for (int k = 0; k < 4; k++)
            value[k] = unit(word[s][k], 0);
        interleave(value, out + 4 * PACK * s);
    }
}

static void group_normal(stream_key key, uint64_t counter, float *out)
{
    pack_word word[SETS][4];
    pack value[4];
    blocks(key, counter, word);
    for (int s = 0; s < SETS; s++) {
        for (int k = 0; k < 4; k += 2) {
            const pack radius = pack_sqrt(pack_of(-2.0F) * log_of(unit(word[s][k], 1)));
            pack sine, cosine;
            turn_of(unit(word[s][k + 1], 0), &sine, &cosine);
            value[k] = radius * cosine;
            value[k + 1] = radius * sine;
        }
        interleave(value, out + 4 * PACK * s);
    }
}

/* n values from global index `start` on. */
static void run_draw(wf_distribution dist, stream_key key, int64_t start, int64_t n, float *out)
{
    /* Blocks of Philox begin at multiples of four, wherever this run begins: its first and last group are made whole
     * and copied in part. */
    for (int64_t at = start / 4 * 4; at < start + n; at += GROUP) {
        float spare[GROUP];
        const int64_t offset = at - start;
        const bool whole = offset >= 0 && offset + GROUP <= n;
        float *const to = whole ? out + offset : spare;
        if (dist == WF_NORMAL)
            group_normal(key, (uint64_t)at / 4, to);
        else
            group_uniform(key, (uint64_t)at / 4, to);
        if (whole)
            continue;
        const int64_t from = offset < 0 ? -offset : 0, until = wf_cpu_min(GROUP, n - offset);
        for (int64_t i = from; i < until; i++)
            out[offset + i] = spare[i];
    }
}

static void draw(wf_distribution dist, const wf_random *random, wf_order order, int64_t lo, int64_t n, float *out)
{
    const stream_key key = key_of(random);
    const wf_random_rows rows = wf_random_rows_make(random, order);
    while (n > 0) {
        const int64_t row = lo / rows.length, offset = lo % rows.length;
        const int64_t count = wf_cpu_min(n, rows.length - offset);
        run_draw(dist, key, wf_random_row_start(&rows, row) + offset, count, out);
        lo += count;
        out += count;
        n -= count;
    }
}

void wf_cpu_normals(const wf_random *random, wf_order order, int64_t lo, int64_t n, float *out)
{
    draw(WF_NORMAL, random, order, lo, n, out);
}

void wf_cpu_uniforms(const wf_random *random, wf_order order, int64_t lo, int64_t n, float *out)
{
    draw(WF_UNIFORM, random, order, lo, n, out);
}

/* From uniform numbers, in place. Only initial values are drawn so, hence a loop that calls log. */
static __attribute__((noinline)) void set_truncated(double a, double scale, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(a + scale * wf_random_truncated((double)out[i]));
}

wf_status wf_cpu_random(wf_ctx *ctx, wf_distribution dist, const wf_random *random, double a, double b,
                        const wf_array *y)
{
    if (y->dtype != WF_F32)
        return REF->random(ctx, dist, random, a, b, y);
    const int64_t n = wf_array_count(y);
    const double scale = dist == WF_UNIFORM ? b - a : b;
    const float top = dist == WF_UNIFORM ? (float)wf_random_top(a, b, WF_F32) : INFINITY;
    float *const out = y->data;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, n)) schedule(static)
    for (int64_t at = 0; at < n; at += WF_CPU_CHUNK) {
        const int64_t count = wf_cpu_min(WF_CPU_CHUNK, n - at);
        draw(dist, random, y->order, at, count, out + at);
        if (dist == WF_TRUNCATED) {
            set_truncated(a, scale, count, out + at);
            continue;
        }
        for (int64_t i = at; i < at + count; i++) {
            const float v = (float)(a + scale * (double)out[i]);
            out[i] = v < top ? v : top;
        }
    }
    return WF_OK;
}

wf_status wf_cpu_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y)
{
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y))
        return REF->dropout(ctx, rate, random, x, y);
    const int64_t total = wf_array_count(y);
    const float keep = (float)(1 / (1 - rate));
    /* The smallest number of 24 bits that is not below rate: exact, so that all fillings draw the same mask. */
    const float threshold = (float)(ceil(rate * 0x1p24) * 0x1p-24);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t at = 0; at < total; at += WF_CPU_CHUNK) {
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, total - at);
        float u[WF_CPU_CHUNK], wide[WF_CPU_CHUNK], made[WF_CPU_CHUNK];
        const float *const in = wf_cpu_read(x, at, n, wide);
        float *const out = wf_cpu_place(y, at, n, false, made);
        draw(WF_UNIFORM, random, y->order, at, n, u);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float kept = in[i] * keep;
            out[i] = u[i] < threshold ? 0.0F : kept;
        }
        wf_cpu_put(y, at, n, out);
    }
    return WF_OK;
}
