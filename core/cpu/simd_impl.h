/* Vectors: `vec` of sixteen floats, which compilers make of narrower ones where the processor has no AVX-512, but keep
 * in memory there; and `pack` of as many floats as one register has. */
#ifndef WF_CORE_CPU_SIMD_IMPL_H
#define WF_CORE_CPU_SIMD_IMPL_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Vectors wider than the processor's are passed by reference; everything here is inlined. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float vec __attribute__((vector_size(64)));
typedef int32_t vec_mask __attribute__((vector_size(64)));
typedef uint32_t vec_word __attribute__((vector_size(64)));

static inline vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

/* The first n of sixteen, n <= 16; the others are 0, or left alone. */
static inline vec vec_load_part(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1U << n) - 1), p);
#else
    vec v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
#endif
}

static inline void vec_store_part(float *p, int64_t n, vec v)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1U << n) - 1), (__m512)v);
#else
    memcpy(p, &v, (size_t)n * sizeof *p);
#endif
}

static inline vec vec_of(float x)
{
    return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

/* a b + c */
static inline vec vec_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return a * b + c;
#endif
}

typedef uint16_t vec_half __attribute__((vector_size(32)));

/* Sixteen bf16. */
static inline vec vec_load_bf16(const uint16_t *from)
{
    vec_half h;
    memcpy(&h, from, sizeof h);
    return (vec)(__builtin_convertvector(h, vec_word) << 16);
}

/* Rounded to the nearest, ties to even; NaN stays one. */
static inline void vec_store_bf16(uint16_t *to, vec v)
{
    const vec_word bits = (vec_word)v, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    const vec_word nan = (vec_word)((bits & 0x7fffffff) > 0x7f800000);
    const vec_half h = __builtin_convertvector((quiet & nan) | (rounded & ~nan), vec_half);
    memcpy(to, &h, sizeof h);
}

/* Floats of one register. */
#if defined(__AVX512F__)
enum { PACK = 16 };
#elif defined(__AVX__)
enum { PACK = 8 };
#else
enum { PACK = 4 };
#endif
typedef float pack __attribute__((vector_size(4 * PACK)));
typedef int32_t pack_mask __attribute__((vector_size(4 * PACK)));
typedef uint32_t pack_word __attribute__((vector_size(4 * PACK)));
typedef uint64_t pack_pair __attribute__((vector_size(4 * PACK)));
typedef uint16_t pack_half __attribute__((vector_size(2 * PACK)));

static inline pack pack_load(const float *p)
{
    pack v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void pack_store(float *p, pack v)
{
    memcpy(p, &v, sizeof v);
}

/* The first n, n <= PACK; the others are 0, or left alone. */
static inline pack pack_load_part(const float *p, int64_t n)
{
#if defined(__AVX512F__)
    return (pack)_mm512_maskz_loadu_ps((__mmask16)((1U << n) - 1), p);
#else
    pack v = {0};
    if (n == PACK)
        return pack_load(p);
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
#endif
}

static inline void pack_store_part(float *p, int64_t n, pack v)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1U << n) - 1), (__m512)v);
#else
    if (n == PACK)
        pack_store(p, v);
    else
        memcpy(p, &v, (size_t)n * sizeof *p);
#endif
}

static inline pack pack_of(float x)
{
    return x - (pack){0};
}

/* a b + c. ISO C has gcc round the product, so fused multiplication must be asked for. */
static inline pack pack_fma(pack a, pack b, pack c)
{
#if defined(__AVX512F__)
    return (pack)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (pack)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline pack pack_scaled(float a, pack b, pack c)
{
    return pack_fma(pack_of(a), b, c);
}

/* v where it is not negative, slope v where it is. */
static inline pack pack_leak(pack v, pack slope)
{
    const pack_mask negative = v < (pack){0};
    return (pack)(((pack_mask)(slope * v) & negative) | ((pack_mask)v & ~negative));
}

/* All ones where v is a number, 0 where it is a NaN. */
static inline pack_mask pack_numbers(pack v)
{
    const pack same = v;
    return v == same;
}

/* a where the mask is all ones, b where it is 0. */
static inline pack pack_select(pack_mask mask, pack a, pack b)
{
#if defined(__AVX__) && !defined(__AVX512F__)
    return (pack)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (pack)(((pack_mask)a & mask) | ((pack_mask)b & ~mask));
#endif
}

static inline pack pack_sqrt(pack v)
{
#if defined(__AVX512F__)
    return (pack)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX__)
    return (pack)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
    return (pack)_mm_sqrt_ps((__m128)v);
#else
    for (int i = 0; i < PACK; i++)
        v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

/* The products of the low halves. */
static inline pack_pair pack_multiply(pack_pair a, pack_pair b)
{
#if defined(__AVX512F__)
    return (pack_pair)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (pack_pair)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
    return (pack_pair)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffU) * (b & 0xffffffffU);
#endif
}

/* v where it is not negative, slope v where it is. */
static inline vec vec_leak(vec v, vec slope)
{
    const vec_mask negative = v < (vec){0};
    return (vec)(((vec_mask)(slope * v) & negative) | ((vec_mask)v & ~negative));
}

#endif
