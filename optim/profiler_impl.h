/* The profiler's parts, for this folder. */
#ifndef WF_OPTIM_PROFILER_IMPL_H
#define WF_OPTIM_PROFILER_IMPL_H

#include "comm/comm_author.h"
#include "core/profile_author.h"
#include "optim/device_stats_impl.h"
#include "optim/profiler.h"

/* What this rank can do while all ranks measure it. */
typedef struct wf_profiler_peak {
    double flops, bytes; /* a second */
} wf_profiler_peak;

/* --- profiler.c --- */
/* Adds a point of this rank's device to the time line, if there is one; a point for which there is no memory is left
 * out. Local. */
void wf_profiler_point(wf_profiler *profiler, const wf_device_point *point);
/* Ends it without showing anything. Local. */
void wf_profiler_drop(wf_profiler *profiler);

/* --- profiler_table.c --- */
wf_status wf_profiler_measure(wf_ctx *ctx, wf_profiler_peak *peak) WF_NODISCARD;
/* `setup`: of the time of the profile. */
wf_status wf_profiler_table(const wf_comm *comm, const wf_profile *profile, wf_profiler_peak peak,
                            wf_setup_seconds setup, int file) WF_NODISCARD;

/* --- profiler_timeline.c --- */
/* The points of this rank's device. */
typedef struct wf_profiler_points {
    wf_device_point *point;
    int64_t n, room;
} wf_profiler_points;
/* Collective. */
wf_status wf_profiler_timeline(wf_comm *comm, const wf_profile *profile, const wf_profiler_points *points,
                               const char *path) WF_NODISCARD;

#endif
