/* NCCL: moves tensors in device memory from GPU to GPU, on a separate stream. Records, notices and metadata use MPI. A
 * build without NCCL compiles comm/collective/no_nccl.c instead of comm/collective/nccl.c.
 *
 * A call only puts work on the stream. The work waits for everything that is on the context's stream at that time, and
 * later work on the context's stream waits for it. The host waits only where it reads a value (the context's hook). All
 * communicators of a shared state share the stream, so what runs on the GPUs runs in the order of the calls, which is
 * the same on all ranks: what is added to the background stream runs where it is added
 * (comm/background_author.h).
 */
#ifndef WF_COMM_NCCL_AUTHOR_H
#define WF_COMM_NCCL_AUTHOR_H

#include "comm/comm.h"
#include "core/status_author.h"

#include <stdbool.h>

typedef struct wf_nccl wf_nccl;

bool wf_nccl_built(void);
/* Connects all ranks. The caller has checked that each has a GPU of its own. Collective. */
wf_status wf_nccl_open(wf_comm *comm) WF_NODISCARD;
/* Waits for what is on its way, with the communicator's time-out; gives it up where the communicator is dead. NULL is
 * fine. */
void wf_nccl_close(wf_comm *comm);
/* The communicator died: kernels that wait for other ranks end, its own and those of the ones split from it. What they
 * should have brought is an error of the next read (wf_ctx_read). */
void wf_nccl_abort(wf_comm *comm);
/* An asynchronous error of NCCL, or WF_OK. Every loop that waits calls it. */
wf_status wf_nccl_poll(wf_comm *comm) WF_NODISCARD;
/* What does not hold up the context's stream (wf_nccl_end_no_join, and sums of the background stream):
 * now it goes behind. NULL is fine. Local. */
wf_status wf_nccl_join(wf_comm *comm) WF_NODISCARD;

/* Collective, on `count` elements in device memory; y may be x. As NCCL does it: 16-bit types are rounded at every
 * step, and NaN may lose in max and min. */
wf_status wf_nccl_allreduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype,
                            wf_reduce_op op) WF_NODISCARD;
/* y is written on the root alone. */
wf_status wf_nccl_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root) WF_NODISCARD;
/* x holds `size` blocks of `count` elements; y gets the block of this rank, and may be that block of x. */
wf_status wf_nccl_reduce_scatter(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype,
                                 wf_reduce_op op) WF_NODISCARD;
wf_status wf_nccl_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
/* all gets `size` blocks in rank order; mine may be the block of this rank in it. */
wf_status wf_nccl_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* Calls between begin and end are one. Sends and receives of one pair of ranks meet in their order. */
wf_status wf_nccl_begin(wf_comm *comm) WF_NODISCARD;
wf_status wf_nccl_send(wf_comm *comm, const void *data, size_t bytes, int to) WF_NODISCARD;
wf_status wf_nccl_recv(wf_comm *comm, void *data, size_t bytes, int from) WF_NODISCARD;
wf_status wf_nccl_end(wf_comm *comm) WF_NODISCARD;
/* The same, and the context's stream does not wait before wf_nccl_join: it computes meanwhile. */
wf_status wf_nccl_end_no_join(wf_comm *comm) WF_NODISCARD;

#endif
