#ifndef WF_TESTS_EMULATE_CUDA_BF16_H
#define WF_TESTS_EMULATE_CUDA_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
    uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 h)
{
    return __uint_as_float((uint32_t)h.bits << 16);
}

inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    const uint32_t u = __float_as_uint(f);
    return __nv_bfloat16{f != f ? (uint16_t)0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}

#endif
