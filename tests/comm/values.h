/* Inputs of sums in tests: numbers of many magnitudes, so that sums in another order have other bits. For tests of
 * collectives and of their schedules. */
#ifndef WF_TESTS_COMM_VALUES_H
#define WF_TESTS_COMM_VALUES_H

#include "core/dtype.h"

#include <stdint.h>
#include <string.h>

/* Elements [from, from + count) of input `index` of a rank. */
static inline void values_of(int rank, int index, wf_dtype dtype, int64_t from, int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t h = ((uint64_t)(from + i) * 131 + (uint64_t)index) * 8209 + (uint64_t)rank + 1;
        h *= 0x9e3779b97f4a7c15u;
        h ^= h >> 31;
        const float value = (float)((int)(h % 2001) - 1000) * (float)(1 << (h >> 20) % 12);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == WF_F32)
            ((float *)to)[i] = value;
        else if (dtype == WF_F64)
            ((double *)to)[i] = (double)value / 3; /* sums of these are rounded */
        else if (dtype == WF_BF16)
            ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
        else if (dtype == WF_F16)
            ((uint16_t *)to)[i] = (uint16_t)(0x3c00 + h % 1024);
        else
            memcpy((char *)to + (size_t)i * wf_dtype_size(dtype), &h, wf_dtype_size(dtype));
    }
}

#endif
