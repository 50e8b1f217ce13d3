/* Reducers: how the gradients of one step are summed over the ranks. 30 to 80 lines each. */
#ifndef WF_COMM_REDUCER_AUTHOR_H
#define WF_COMM_REDUCER_AUTHOR_H

#include "comm/comm.h"

/* A flat buffer of one float type: segment i is [offset[i], offset[i+1]) elements of it; the last segment holds
 * losses and weights. In device memory. */
typedef struct wf_reduce_job {
    void *flat;
    wf_dtype dtype;
    int64_t segments;
    const int64_t *offset; /* segments + 1 entries */
} wf_reduce_job;

typedef struct wf_reducer {
    const char *name;
    /* Sums in place over all ranks, the same bits everywhere. Collective. */
    wf_status (*reduce)(wf_comm *comm, const wf_reduce_job *job);
} wf_reducer;

/* The reducer of a communicator's name. */
const wf_reducer *wf_comm_reducer(const wf_comm *comm);

/* Connects what the reducer needs: shared memory inside nodes, messages between them. A communicator that was opened
 * by name is connected already; one that was split is connected by this call, or at its first sum, so that
 * communicators that never sum cost nothing. Collective. */
wf_status wf_reducer_connect(wf_comm *comm) WF_NODISCARD;

#endif
