/* Normalisation of groups: what the form for groups of one run of elements (group_runs.c) and that for groups of
 * several places (group_norm.c) share. */
#ifndef WF_CORE_CPU_GROUP_IMPL_H
#define WF_CORE_CPU_GROUP_IMPL_H

#include "core/cpu/rows_impl.h"

/* Channels [lo, hi) of this array that belong to group g of a row; lo >= hi: none. */
static inline void wf_group_channels(const wf_group_norm_args *a, int64_t g, int64_t *lo, int64_t *hi)
{
    const int64_t from = g * a->size - a->first;
    *lo = from > 0 ? from : 0;
    *hi = wf_cpu_min(from + a->size, a->channels);
}

/* 1 / standard deviation of a group with these squared deviations. Rows of few elements wait for it, so it divides once
 * in float; 1 / count waits for nothing. */
static inline float wf_group_inverse(const wf_group_norm_args *a, double squares)
{
    return a->count > 0 ? 1.0F / sqrtf((float)(squares * (1 / a->count) + a->eps)) : 0.0F;
}

/* Arrays are of floats or narrow, statistics of f32, and there is something to do. */
static inline bool wf_group_is_float(const wf_group_norm_args *a, const wf_array *x)
{
    return wf_cpu_is_float(x) && a->rows * a->places * a->channels > 0;
}

/* places == 1. Contracts are those of the slots. */
wf_group_norm_fn wf_cpu_group_runs_stats, wf_cpu_group_runs_forward;
/* dx NULL: the sums alone. sums are read where dx is given with them. */
wf_group_norm_fn wf_cpu_group_runs_backward;

#endif
