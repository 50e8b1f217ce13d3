/* The profiler: where the time of a run goes. A table by kernel and by layer, and a time line of all ranks.
 *
 *     wf_profiler *profiler = wf_profiler_open(comm, (wf_profiler_opts){.table = STDOUT_FILENO, .timeline =
 * "run.json"});
 *     ... training ...
 *     WF_MUST(wf_profiler_close(profiler));
 *
 * The table has, for rank 0: calls, milliseconds, GFLOP/s (products alone: convolutions and matrix products), GB/s
 * (each array of a kernel read or written once), the share of the time between open and close, and the percentage of
 * the peak of this machine, as it is measured at the close: of products or of memory, whichever the kernel comes closer
 * to; it is above 100 where arrays were in caches. Layers of one path in several models share a row. Waits for batches
 * and collectives have rows, too; kernels that a collective calls count in both. The last rows are planning, tuning and
 * capturing (wf_setup_seconds) in this time, which the kernels that asked for plans count as well.
 *
 * The time line is a file in Chrome's trace format (chrome://tracing, ui.perfetto.dev): one process a rank with its
 * kernels, its collectives with the bytes of their tensors and those sent, and its waits for batches. The ranks' clocks
 * are compared at the close, by messages to and from rank 0, and the file has the times of rank 0's clock. Ranks alone
 * on their communicator record no collectives.
 *
 * A program without a profiler pays one comparison for each layer and each collective; kernels cost nothing. */
#ifndef WF_OPTIM_PROFILER_H
#define WF_OPTIM_PROFILER_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_profiler_opts {
    int table;            /* file descriptor to which rank 0 writes the table, as STDOUT_FILENO; 0: none */
    const char *timeline; /* rank 0 writes this file; NULL: none. Copied */
    int64_t events;       /* of a rank, in the time line; default 262144. Later ones are left out, and counted */
} wf_profiler_opts;

typedef struct wf_profiler wf_profiler;

/* Begins. All ranks give the same options. The communicator has all ranks of the time line; its context is measured,
 * which can have one profiler at a time (WF_ERR_STATE). WF_ERR_UNSUPPORTED on a GPU, whose kernels the host cannot
 * time: its own profilers show layers and collectives as ranges. Local. */
wf_profiler *wf_profiler_open(wf_comm *comm, wf_profiler_opts opts);
/* Ends it, writes table and time line, and frees it, also if that fails. Collective. */
WF_PLACED wf_status wf_profiler_close(wf_profiler *profiler) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
