/* Rows of 16-bit floats to f32 and back, in loops that become vectors. Called by every kernel that reads or writes
 * narrow arrays chunk by chunk. */
#include "core/cpu/narrow_impl.h"

void wf_cpu_widen(wf_dtype from, int64_t n, const uint16_t *restrict src, float *restrict dst)
{
    if (from == WF_BF16)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dst[i] = wf_from_bf16(src[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dst[i] = wf_from_f16(src[i]);
}

void wf_cpu_narrow(wf_dtype to, int64_t n, const float *restrict src, uint16_t *restrict dst)
{
    if (to == WF_BF16)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dst[i] = wf_to_bf16(src[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dst[i] = wf_to_f16(src[i]);
}
