/* The profiler's parts, for this folder. */
#ifndef WF_OPTIM_PROFILER_IMPL_H
#define WF_OPTIM_PROFILER_IMPL_H

#include "comm/comm_author.h"
#include "core/profile_author.h"
#include "optim/profiler.h"

/* What this rank can do while all ranks measure it. */
typedef struct wf_profiler_peak {
    double flops, bytes; /* a second */
} wf_profiler_peak;

/* --- profiler.c --- */
/* Ends it without showing anything. Local. */
void wf_profiler_drop(wf_profiler *profiler);

/* --- profiler_table.c --- */
wf_status wf_profiler_measure(wf_ctx *ctx, wf_profiler_peak *peak) WF_NODISCARD;
wf_status wf_profiler_table(const wf_comm *comm, const wf_profile *profile, wf_profiler_peak peak,
                            int file) WF_NODISCARD;

/* --- profiler_timeline.c --- */
/* Collective. */
wf_status wf_profiler_timeline(wf_comm *comm, const wf_profile *profile, const char *path) WF_NODISCARD;

#endif
