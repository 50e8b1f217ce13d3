#ifndef WF_TESTS_EMULATE_CUDA_FP16_H
#define WF_TESTS_EMULATE_CUDA_FP16_H

#include <cuda_runtime.h>

struct __half {
    uint16_t bits;
};

inline float __half2float(__half h)
{
    const int exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
    const float a = exponent == 31 ? (fraction ? NAN : INFINITY)
                    : exponent     ? ldexpf((float)(1024 + fraction), exponent - 25)
                                   : ldexpf((float)fraction, -24);
    return h.bits >> 15 ? -a : a;
}

/* To nearest even, by the arithmetic of the host. */
inline __half __float2half_rn(float f)
{
    const uint16_t sign = signbit(f) ? 0x8000 : 0;
    const float a = fabsf(f);
    if (isnan(f))
        return __half{0x7fff};
    if (a >= 65520)
        return __half{(uint16_t)(sign | 0x7c00)};
    if (a < 0x1p-14f)
        return __half{(uint16_t)(sign | (int)nearbyintf(a * 0x1p24f))};
    int exponent;
    frexpf(a, &exponent);
    const int steps = (int)nearbyintf(ldexpf(a, 11 - exponent)); /* 1024 to 2048 */
    return __half{(uint16_t)(sign | (((exponent + 14) << 10) + steps - 1024))};
}

#endif
