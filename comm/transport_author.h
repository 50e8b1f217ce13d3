/* Transports: how buffers move between the ranks of one communicator.
 *
 * A transport moves messages and a few whole collectives. It never waits: waiting, time-outs, failure notices and the
 * cutting of large messages are the communicator's.
 *
 * MPI gets no device memory, though it may be built to take some. Whether that works shows only when ranks send it to
 * each other: where it does not, the process dies or hangs, and a trial in a child needs a job of its own, which a
 * launcher does not give to processes that it did not start. What one process sends to itself goes another way. Where
 * neither NCCL nor memory mapped between processes is there, device memory goes through page-locked host memory here,
 * which is what such an MPI does inside. wf-doctor prints what MPI says of itself.
 */
#ifndef WF_COMM_TRANSPORT_AUTHOR_H
#define WF_COMM_TRANSPORT_AUTHOR_H

#include "comm/comm.h"

/* One message, or one collective, in flight. The memory stays the caller's and must live until `done`. */
typedef struct wf_transfer {
    void *data; /* of a send: is read only */
    size_t bytes;
    int peer; /* -1: a collective */
    int tag;
    bool sending;
    bool done;
    wf_status status; /* once done */
    size_t arrived;   /* of a receive, once done: how many bytes came */
    uint64_t own[2];  /* the transport's */
} wf_transfer;

/* By which the schedules of a communicator move messages: MPI's (comm/transport/mpi.c), NCCL's group of an exchange, or
 * the fake one of the simulation. */
typedef struct wf_link {
    void *own;

    /* Begins a message of at least one byte and at most WEFT_CHUNK_BYTES. Messages between two ranks with one tag
     * arrive in the order in which they were begun. */
    wf_status (*start)(void *own, wf_transfer *transfer);
    /* Looks whether it is over; an error of it alone goes to transfer->status, with done. A receive of another size
     * than was sent is not an error here. */
    wf_status (*test)(void *own, wf_transfer *transfer);
    /* Gives up a message after a failure. `done` says whether its memory is free; where it is not, the memory is lost.
     */
    void (*cancel)(void *own, wf_transfer *transfer);
    /* Begins a collective on dense buffers, which `test` ends: `bytes` from every rank to all (its x) or to each other
     * (its block of x), into y in rank order. */
    wf_status (*collective)(void *own, bool gathers, const void *x, void *y, size_t bytes, wf_transfer *transfer);
} wf_link;

#endif
