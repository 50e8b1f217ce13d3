/* Elementary functions of floats that a loop over them vectorises: no branch, no table, no call. Relative error below
 * 1e-6 where the result is normal. NaN gives NaN; infinities give the limits, except where a note says otherwise. */
#ifndef WF_CORE_CPU_VMATH_IMPL_H
#define WF_CORE_CPU_VMATH_IMPL_H

#include "core/cpu/cpu_impl.h"

#include <stdint.h>
#include <string.h>

/* A call would leave a loop without vectors. */
#define VM_INLINE static inline __attribute__((always_inline))

VM_INLINE float vm_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

VM_INLINE uint32_t vm_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

VM_INLINE float vm_abs(float x)
{
    return vm_float(vm_bits(x) & 0x7fffffffU);
}

VM_INLINE float vm_sign(float magnitude, float sign)
{
    return vm_float((vm_bits(magnitude) & 0x7fffffffU) | (vm_bits(sign) & 0x80000000U));
}

/* x = n ln 2 + r with n whole and |r| <= ln 2 / 2. x is in [-105, 90]. */
VM_INLINE float vm_exp_reduce(float x, int32_t *n)
{
    const float magic = 12582912.0F; /* 1.5 * 2^23: adding it rounds to a whole number in the low bits */
    const float t = wf_fma(x, 1.44269504F, magic), whole = t - magic;
    *n = (int32_t)(vm_bits(t) - 0x4b400000U);
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return wf_fma(whole, 1.42860677e-6F, wf_fma(whole, -0.693148613F, x));
#else
    /* ln 2 as a sum whose first number has nine bits: its product is exact. */
    return (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
#endif
}

/* exp(r) - 1 for |r| <= ln 2 / 2 */
VM_INLINE float vm_expm1_core(float r)
{
    float p = 1.395059982e-03F;
    p = wf_fma(p, r, 8.368954062e-03F);
    p = wf_fma(p, r, 4.166620597e-02F);
    p = wf_fma(p, r, 1.666651815e-01F);
    p = wf_fma(p, r, 5.000000000e-01F);
    return wf_fma(p, r * r, r);
}

VM_INLINE float vm_pow2(int32_t n)
{
    return vm_float((uint32_t)(n + 127) << 23);
}

/* Two factors, so that results between the smallest normal number and 0, and up to infinity, come out right. */
VM_INLINE float vm_exp(float x)
{
    int32_t n;
    x = x > 89.0F ? 89.0F : x;
    x = x < -104.0F ? -104.0F : x;
    const float r = vm_exp_reduce(x, &n);
    const int32_t half = n >> 1;
    return (1.0F + vm_expm1_core(r)) * vm_pow2(half) * vm_pow2(n - half);
}

/* For x <= 88, beyond which it is as at 88; 0 below -87, where the result is hardly a normal number. */
VM_INLINE float vm_exp_falling(float x)
{
    const float least = -87.0F, most = x > 88.0F ? 88.0F : x;
    int32_t n;
    const float r = vm_exp_reduce(most < least ? least : most, &n), y = (1.0F + vm_expm1_core(r)) * vm_pow2(n);
    return x < least ? 0.0F : y;
}

/* For x <= 88: ELU, tanh. */
VM_INLINE float vm_expm1(float x)
{
    int32_t n;
    x = x > 88.0F ? 88.0F : x;
    x = x < -80.0F ? -80.0F : x;
    const float r = vm_exp_reduce(x, &n), scale = vm_pow2(n);
    return wf_fma(vm_expm1_core(r), scale, scale - 1.0F);
}

/* (2 atanh z - 2 z) / z^3 as a polynomial in z^2, |z| <= 1/3 */
VM_INLINE float vm_atanh_core(float zz)
{
    float p = 2.430238277e-01F;
    p = wf_fma(p, zz, 2.142730504e-01F);
    p = wf_fma(p, zz, 2.861691415e-01F);
    p = wf_fma(p, zz, 3.999887705e-01F);
    return wf_fma(p, zz, 6.666667461e-01F);
}

/* log(1 + e) for e in [0, 1] */
VM_INLINE float vm_log1p_unit(float e)
{
    const float z = e / (2.0F + e), zz = z * z;
    return wf_fma(vm_atanh_core(zz) * zz, z, 2.0F * z);
}

/* x = 2^n m with m between sqrt(1/2) and sqrt(2), so that logarithms near 1 keep their digits. */
VM_INLINE float vm_log(float x)
{
    const float least = 1.17549435e-38F, infinite = vm_float(0x7f800000U), none = vm_float(0x7fc00000U);
    const float up = x < least ? x * 8388608.0F : x;
    const int32_t n = (int32_t)(vm_bits(up) - 0x3f3504f3U) >> 23;
    const float m = vm_float(vm_bits(up) - ((uint32_t)n << 23)), z = (m - 1.0F) / (m + 1.0F), zz = z * z;
    const float whole = (float)n - (x < least ? 23.0F : 0.0F);
    const float low = wf_fma(whole, -1.42860677e-6F, wf_fma(vm_atanh_core(zz) * zz, z, 2.0F * z));
    const float y = wf_fma(whole, 0.693148613F, low);
    const float edge = x == 0.0F ? -infinite : x == infinite ? infinite : none;
    return x > 0.0F && x < infinite ? y : edge;
}

VM_INLINE float vm_sigmoid(float x)
{
    return 1.0F / (1.0F + vm_exp(-x));
}

VM_INLINE float vm_tanh(float x)
{
    const float a = vm_abs(x), e = vm_expm1(2.0F * (a > 10.0F ? 10.0F : a));
    return vm_sign(e / (e + 2.0F), x);
}

VM_INLINE float vm_softplus(float x)
{
    return (x > 0.0F ? x : 0.0F) + vm_log1p_unit(vm_exp(-vm_abs(x)));
}

/* exp(-x^2 / 2), and the normal distribution function at x. The tail is the exponential times a polynomial in
 * 1 / (1 + 0.3 |x|), so it keeps its relative accuracy. */
VM_INLINE float vm_normal_cdf(float x, float *bell)
{
    const float a = vm_abs(x) > 15.0F ? 15.0F : vm_abs(x), u = 1.0F / wf_fma(a, 0.3F, 1.0F);
    *bell = vm_exp(-0.5F * a * a);
    float p = 3.840761259e-02F;
    p = wf_fma(p, u, -1.693084538e-01F);
    p = wf_fma(p, u, 2.289536893e-01F);
    p = wf_fma(p, u, -7.684165984e-02F);
    p = wf_fma(p, u, 1.427665204e-01F);
    p = wf_fma(p, u, 9.458539635e-02F);
    p = wf_fma(p, u, 1.219453663e-01F);
    p = wf_fma(p, u, 1.194841936e-01F);
    p = wf_fma(p, u, 7.372982054e-06F);
    p *= *bell;
    return x > 0.0F ? 1.0F - p : p;
}

VM_INLINE float vm_gelu(float x)
{
    float bell;
    const float cdf = vm_normal_cdf(x, &bell);
    return x * cdf;
}

VM_INLINE float vm_gelu_slope(float x)
{
    float bell;
    const float cdf = vm_normal_cdf(x, &bell);
    return wf_fma(x * bell, 0.398942280F, cdf);
}

VM_INLINE float vm_silu(float x)
{
    return x * vm_sigmoid(x);
}

VM_INLINE float vm_silu_slope(float x)
{
    const float s = vm_sigmoid(x);
    return s * (1.0F + x * (1.0F - s));
}

VM_INLINE float vm_gelu_tanh(float x)
{
    return 0.5F * x * (1.0F + vm_tanh(0.797884561F * wf_fma(0.044715F * x * x, x, x)));
}

/* Beyond 10 the tanh is 1 to all digits, and its inside would overflow. */
VM_INLINE float vm_gelu_tanh_slope(float v)
{
    const float x = v > 10.0F ? 10.0F : v < -10.0F ? -10.0F : v;
    const float t = vm_tanh(0.797884561F * wf_fma(0.044715F * x * x, x, x));
    const float steep = 0.797884561F * wf_fma(0.134145F * x, x, 1.0F);
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * steep;
}

#endif
