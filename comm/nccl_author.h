/* NCCL beside messages: what lies in device memory goes from GPU to GPU, on a stream of its own. Records, notices and
 * metadata stay with MPI. comm/no_nccl.c takes the place of transport_nccl.c in a build without NCCL.
 *
 * A call only puts work on the stream: behind all that the context's stream has so far, and what the context's stream
 * gets later comes behind it. The host waits for none of it but where it asks for a number (the context's hook). All
 * communicators of a family share the stream, so what runs on the GPUs runs in the order of the calls.
 */
#ifndef WF_COMM_NCCL_AUTHOR_H
#define WF_COMM_NCCL_AUTHOR_H

#include "comm/comm.h"
#include "core/status_author.h"

#include <stdbool.h>

typedef struct wf_nccl wf_nccl;

bool wf_nccl_built(void);
/* Connects all ranks: each has a GPU of its own, as was checked. Collective. */
wf_status wf_nccl_open(wf_comm *comm) WF_NODISCARD;
/* Does not wait: what is on its way is given up where the communicator is dead. NULL is fine. */
void wf_nccl_close(wf_comm *comm);
/* The communicator died: kernels that wait for other ranks end. */
void wf_nccl_abort(wf_comm *comm);
/* An error that came up by itself. For whoever waits. */
wf_status wf_nccl_poll(wf_comm *comm) WF_NODISCARD;

/* Collective, on `count` elements in device memory; y may be x. */
wf_status wf_nccl_allreduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype,
                            wf_reduce_op op) WF_NODISCARD;
wf_status wf_nccl_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
/* Sends and receives between begin and end are one call. Those to one peer meet those of that peer in their order. */
wf_status wf_nccl_begin(wf_comm *comm) WF_NODISCARD;
wf_status wf_nccl_send(wf_comm *comm, const void *data, size_t bytes, int to) WF_NODISCARD;
wf_status wf_nccl_recv(wf_comm *comm, void *data, size_t bytes, int from) WF_NODISCARD;
wf_status wf_nccl_end(wf_comm *comm) WF_NODISCARD;

#endif
