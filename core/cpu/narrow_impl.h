/* 16-bit floats on the way to and from arithmetic in f32. Passes work on chunks that stay in the first-level cache:
 * what they read is widened there, what they write is narrowed from there, and f32 arrays are used where they are. */
#ifndef WF_CORE_CPU_NARROW_IMPL_H
#define WF_CORE_CPU_NARROW_IMPL_H

#include "core/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

static inline float wf_from_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t wf_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* The magnitude moves into f32's place for it; its exponent is then 112 too small. */
static inline float wf_from_f16(uint16_t h)
{
    const uint32_t shifted = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float f;
    uint32_t bits;
    memcpy(&f, &shifted, sizeof f);
    f *= 0x1p112F;
    memcpy(&bits, &f, sizeof bits);
    bits |= sign | ((h & 0x7c00) == 0x7c00 ? 0x7f800000U : 0U);
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Below 2^-14, steps are of 2^-24, the last place of 0.5: the addition rounds. */
static inline uint16_t wf_to_f16(float f)
{
    uint32_t bits, small;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - 0x38000000U + 0xfff + (magnitude >> 13 & 1)) >> 13;
    float raised = fabsf(f) + 0.5F;
    memcpy(&small, &raised, sizeof small);
    uint32_t half = magnitude < 0x38800000U ? small - 0x3f000000U : normal;
    half = magnitude >= 0x47800000U ? 0x7c00U : half;
    half = magnitude > 0x7f800000U ? 0x7e00U : half;
    return (uint16_t)(sign | half);
}

/* n elements between f32 and bf16 or f16. */
void wf_cpu_widen(wf_dtype from, int64_t n, const uint16_t *src, float *dst);
void wf_cpu_narrow(wf_dtype to, int64_t n, const float *src, uint16_t *dst);

static inline bool wf_cpu_is_narrow(const wf_array *a)
{
    return a && a->data && (a->dtype == WF_BF16 || a->dtype == WF_F16);
}

/* Returns true if passes can read and write it as floats. NULL is allowed. */
static inline bool wf_cpu_is_float(const wf_array *a)
{
    return wf_cpu_is(a, WF_F32) || wf_cpu_is_narrow(a);
}

/* Element e of an array of bf16, or of f32. Callers are inlined with a constant `bf16`: then a loop has one form, and
 * widens and narrows in registers. */
static inline float wf_cpu_at(const void *a, bool bf16, int64_t e)
{
    return bf16 ? wf_from_bf16(((const uint16_t *)a)[e]) : ((const float *)a)[e];
}

static inline void wf_cpu_set(void *a, bool bf16, int64_t e, float value)
{
    if (bf16)
        ((uint16_t *)a)[e] = wf_to_bf16(value);
    else
        ((float *)a)[e] = value;
}

#define WF_CPU_INLINE static inline __attribute__((always_inline))

/* Elements [at, at + n) as floats: where they are, or in `room`, which holds n. NULL for an absent array. */
static inline const float *wf_cpu_read(const wf_array *a, int64_t at, int64_t n, float *room)
{
    if (!wf_cpu_is_narrow(a))
        return a && a->data ? (const float *)a->data + at : NULL;
    wf_cpu_widen(a->dtype, n, (const uint16_t *)a->data + at, room);
    return room;
}

/* Returns the memory in which floats for elements [at, at + n) are to be written: the array itself, or `room`, with the
 * array's elements if `filled`. wf_cpu_put then copies them from there into the array. */
static inline float *wf_cpu_place(const wf_array *a, int64_t at, int64_t n, bool filled, float *room)
{
    if (!wf_cpu_is_narrow(a))
        return (float *)a->data + at;
    if (filled)
        wf_cpu_widen(a->dtype, n, (const uint16_t *)a->data + at, room);
    return room;
}

static inline void wf_cpu_put(const wf_array *a, int64_t at, int64_t n, const float *from)
{
    if (wf_cpu_is_narrow(a))
        wf_cpu_narrow(a->dtype, n, from, (uint16_t *)a->data + at);
}

#endif
