/* Elements of any type read as double and written back with the rounding that all fillings must show: to nearest
 * even, saturating for integers. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* Copies of bytes are the way that C allows to look at a float's bits. */
static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* An f32 in which an inexact value is never even: a second rounding to fewer bits is then as good as one alone. */
static uint32_t f32_rounded_to_odd(double d)
{
    const float f = (float)d;
    uint32_t u = bits_of(f);
    if ((double)f == d || isnan(d))
        return u;
    /* Back toward zero, then the odd neighbour: Boldo and Melquiond 2008, rounding to odd. */
    if (fabs((double)f) > fabs(d))
        u--;
    return u | 1;
}

static uint16_t to_bf16(double d)
{
    const uint32_t u = f32_rounded_to_odd(d);
    if (isnan(d))
        /* The quiet bit keeps a NaN a NaN when its low bits are cut off. */
        return (uint16_t)(u >> 16 | 0x40);
    /* To nearest even: half of the last place, and one more if the last kept bit is odd. A carry may reach infinity, as
     * it should. */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static double from_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static uint16_t to_f16(double d)
{
    const uint32_t u = f32_rounded_to_odd(d), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (isnan(d))
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) /* 2^16 and up */
        return (uint16_t)(sign | 0x7c00);
    /* Normal numbers: exponent rebased by 112, 13 bits fewer. A carry out of the largest gives infinity. */
    if (magnitude >= 0x38800000)
        return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
    /* Subnormal: whole steps of 2^-24. */
    return (uint16_t)(sign | (uint32_t)nearbyint(fabs(d) * 0x1p24));
}

/* ldexp is exact here: every f16 is a double. */
static double from_f16(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double magnitude = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

/* limit is the first value above the range: exact in double for every integer type, while the highest value of i64 is
 * not. Fractions are cut towards 0. */
static int64_t to_integer(double d, int64_t lowest, int64_t highest, double limit)
{
    if (isnan(d))
        return 0;
    if (d >= limit)
        return highest;
    return d <= (double)lowest ? lowest : (int64_t)d;
}

#define LOAD(type, expression)                                                                                         \
    do {                                                                                                               \
        const type *const p = data;                                                                                    \
        for (int64_t i = 0; i < n; i++)                                                                                \
            out[i] = (expression);                                                                                     \
    } while (0)

void wf_ref_load(wf_dtype dtype, const void *data, int64_t stride, int64_t n, double *out)
{
    switch (dtype) {
    case WF_F32:
        LOAD(float, p[i * stride]);
        break;
    case WF_F64:
        LOAD(double, p[i * stride]);
        break;
    case WF_BF16:
        LOAD(uint16_t, from_bf16(p[i * stride]));
        break;
    case WF_F16:
        LOAD(uint16_t, from_f16(p[i * stride]));
        break;
    case WF_I32:
        LOAD(int32_t, p[i * stride]);
        break;
    case WF_I64:
        LOAD(int64_t, (double)p[i * stride]);
        break;
    case WF_U8:
        LOAD(uint8_t, p[i * stride]);
        break;
    case WF_DTYPES:
        break;
    }
}

#define STORE(type, expression)                                                                                        \
    do {                                                                                                               \
        type *const p = data;                                                                                          \
        for (int64_t i = 0; i < n; i++)                                                                                \
            p[i * stride] = (type)(expression);                                                                        \
    } while (0)

void wf_ref_store(wf_dtype dtype, void *data, int64_t stride, int64_t n, const double *in)
{
    switch (dtype) {
    case WF_F32:
        STORE(float, in[i]);
        break;
    case WF_F64:
        STORE(double, in[i]);
        break;
    case WF_BF16:
        STORE(uint16_t, to_bf16(in[i]));
        break;
    case WF_F16:
        STORE(uint16_t, to_f16(in[i]));
        break;
    case WF_I32:
        STORE(int32_t, to_integer(in[i], INT32_MIN, INT32_MAX, 0x1p31));
        break;
    case WF_I64:
        STORE(int64_t, to_integer(in[i], INT64_MIN, INT64_MAX, 0x1p63));
        break;
    case WF_U8:
        STORE(uint8_t, to_integer(in[i], 0, UINT8_MAX, 256));
        break;
    case WF_DTYPES:
        break;
    }
}
