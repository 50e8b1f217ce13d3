/* NCCL: moves tensors in device memory from GPU to GPU, on a separate stream. Records, notices and metadata use MPI. A
 * build without NCCL compiles comm/collective/no_nccl.c instead of comm/collective/nccl.c and nccl_calls.c.
 *
 * A call only puts work on a stream. The work waits for everything that is on the context's stream at that time, and
 * later work on the context's stream waits for it. The host waits only where it reads a value (the context's hook). All
 * communicators of a shared state share one stream, so what runs on the GPUs runs in the order of the calls, which is
 * the same on all ranks: what is added to the background stream runs where it is added (comm/background_author.h). The
 * second connection of the background stream has a stream of its own where NCCL (2.26 or newer) keeps that order.
 */
#ifndef WF_COMM_NCCL_AUTHOR_H
#define WF_COMM_NCCL_AUTHOR_H

#include "comm/comm.h"
#include "core/kernels_author.h"
#include "core/status_author.h"

#include <stdbool.h>

typedef struct wf_nccl wf_nccl;

bool wf_nccl_built(void);
/* Whether NCCL connects the ranks of such a communicator: several, or one where WEFT_NCCL_ONE_RANK asks for it. */
bool wf_nccl_wanted(const wf_comm *comm);
/* Whether this NCCL takes several ranks on one GPU: 2.30 or newer, where NCCL_MULTI_RANK_GPU_ENABLE is 1. */
bool wf_nccl_shares_gpu(void);
/* Connects all ranks, with resources of their own. The caller has checked that each has a GPU of its own. Collective.
 */
wf_status wf_nccl_open(wf_comm *comm) WF_NODISCARD;
/* The same for `child`, which was split from the connected comm by color and key; it shares comm's resources, but for
 * a nested child. A rank of negative color takes part. Collective on comm. */
wf_status wf_nccl_split(wf_comm *comm, int color, int key, wf_comm *child) WF_NODISCARD;
/* Waits for what is on its way, with the communicator's time-out; gives it up where the communicator is dead. Graphs of
 * captured steps that use it are freed first. NULL is fine. */
void wf_nccl_close(wf_comm *comm);
/* The communicator died: kernels that wait for other ranks end, its own, those of the ones split from it, and those of
 * all that share resources with one of them. What they should have brought is an error of the next read (wf_ctx_read),
 * and captured steps that use them run no more. Inside a capture this is done when the capture has ended. */
void wf_nccl_abort(wf_comm *comm);
/* An asynchronous error of NCCL, or WF_OK. Every loop that waits calls it. */
wf_status wf_nccl_poll(wf_comm *comm) WF_NODISCARD;
/* What does not hold up the context's stream (wf_nccl_end_no_join, and sums of the background stream):
 * now it goes behind. NULL is fine. Local. */
wf_status wf_nccl_join(wf_comm *comm) WF_NODISCARD;
/* The same for what the background stream has summed, of whichever communicator that shares the streams of comm. */
wf_status wf_nccl_join_sums(wf_comm *comm) WF_NODISCARD;

/* Collective, on `count` elements in device memory; y may be x, and is written on the root alone, or everywhere where
 * root is -1. As NCCL does it: 16-bit types are rounded at every step, and NaN may lose in max and min. */
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
/* Records the event on NCCL's stream behind all calls so far: work that waits for it does not wait for later calls. */
wf_status wf_nccl_record(wf_comm *comm, wf_event *event) WF_NODISCARD;

#endif
