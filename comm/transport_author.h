/* Transports: how buffers move between the ranks of one communicator.
 *
 * A transport moves messages. It never waits, but to close: waiting, time-outs, failure notices and the
 * cutting of large messages are the communicator's.
 *
 * MPI gets no device memory, though it may be built to take some. Whether that works shows only when ranks send it to
 * each other: where it does not, the process dies or hangs, and a trial in a child needs a job of its own, which a
 * launcher does not give to processes that it did not start. What one process sends to itself goes another way. Where
 * neither a native transport nor memory mapped between processes is there, device memory goes through page-locked host
 * memory here, which is what such an MPI does inside. wf-doctor prints what MPI says of itself.
 *
 * A native transport moves device memory from GPU to GPU, by calls that match by their order alone. A build has at most
 * one, beside MPI: records, notices and metadata are messages of the host. */
#ifndef WF_COMM_TRANSPORT_AUTHOR_H
#define WF_COMM_TRANSPORT_AUTHOR_H

#include "comm/comm.h"
#include "core/kernels_author.h"

/* One message in flight. The memory stays the caller's and must live until `done`. */
typedef struct wf_transfer {
    void *data; /* of a send: is read only */
    size_t bytes;
    int peer;
    int tag;
    int32_t step; /* the run's: of its schedule */
    bool sending;
    bool done;
    wf_status status; /* once done */
    size_t arrived;   /* of a receive, once done: how many bytes came */
    uint64_t own[2];  /* the transport's */
} wf_transfer;

/* By which the schedules of a communicator move messages: MPI's (comm/transport/mpi.c), the native group of an
 * exchange, or the fake one of the simulation. */
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
} wf_link;

/* --- native ------------------------------------------------------------------------------------------------------- */

/* What a native step of a schedule does with vectors x and y in device memory: a call of the transport, or what stands
 * between its calls. */
typedef enum wf_native_kind {
    WF_NATIVE_SEND = 0, /* x to rank `peer`; messages of a pair of ranks meet in their order */
    WF_NATIVE_RECV,     /* y from rank `peer` */
    WF_NATIVE_BCAST,    /* y of rank `peer` to the y of all */
    WF_NATIVE_ALLGATHER,
    /* All x are combined in the y of rank `peer`, or in that of all where it is -1; y may be x. 16-bit types are
     * rounded at every step, and NaN may lose in max and min. */
    WF_NATIVE_REDUCE,
    WF_NATIVE_REDUCE_SCATTER,
    /* Not of the transport alone: comm/guard/native.c. */
    WF_NATIVE_COPY,   /* x to y, in whose type, after all native calls before it */
    WF_NATIVE_GROUP,  /* calls from here on are one */
    WF_NATIVE_LAUNCH, /* ends the group; what the device computes next waits for it */
    WF_NATIVE_LEAVE,  /* ends the group; the device computes on, until a join */
    WF_NATIVE_JOIN    /* what the device computes next waits for all native calls before */
} wf_native_kind;

#define WF_NATIVE_WHY 64

/* Names a connection: rank 0 makes it, and all ranks need it to connect. */
typedef struct wf_native_id {
    char bytes[128];
} wf_native_id;

/* A call only puts work on a stream. The work waits for everything that is on the context's stream at that time, and
 * later work on the context's stream waits for it. The host waits only where it reads a value (comm/guard/native.c).
 * All communicators of a shared state share one stream, so what runs on the GPUs runs in the order of the calls, which
 * is the same on all ranks: what is added to the background stream runs where it is added (comm/background_author.h).
 * The second connection of the background stream may have a stream of its own, where the transport keeps that order.
 *
 * comm->native says that a communicator is connected, or that its `prepare` has begun, which is enough for poll, test,
 * pending, give_up and close. Unless it says otherwise, a function needs a connection. */
typedef struct wf_native_transport {
    const char *name; /* NULL: this build has none, and no function */

    /* Writes why this process cannot use it, or nothing. Needs no connection. */
    void (*find_unfit)(char why[WF_NATIVE_WHY]);
    /* Returns true if several ranks may use one GPU. Needs no connection. */
    bool (*shares_gpu)(void);
    /* Sets comm->native, and on rank 0 the id of the connection. Local. */
    wf_status (*prepare)(wf_comm *comm, wf_native_id *id);
    /* Connects all ranks, which have the id of rank 0. The caller has checked that each has a GPU that the transport
     * takes, and that all have come. `wait` returns once `ready` says so, or with the error of a rank that fails;
     * connect and later calls wait by it. Collective. */
    wf_status (*connect)(wf_comm *comm, const wf_native_id *id, wf_status (*wait)(wf_comm *comm));
    /* Says if all that was called so far, connect included, is on its stream. */
    wf_status (*ready)(wf_comm *comm, bool *ready);
    /* After the last call is over, or the communicator dead. Graphs of captured steps that use it are freed first. */
    void (*close)(wf_comm *comm);
    /* The communicator died: kernels that wait for other ranks end, its own and those of the ones split from it. What
     * they should have brought is an error of the next read (wf_ctx_read), and captured steps that use them run no
     * more. Inside a capture this is done when the capture has ended. */
    void (*give_up)(wf_comm *comm);

    /* An asynchronous error, or WF_OK. Every loop that waits calls it. `all`: of any that shares its streams. */
    wf_status (*poll)(wf_comm *comm, bool all);
    /* pending: returns true if the host may have to wait for calls of the communicators that share its streams. test:
     * sets *done if all are over, or returns the error of one of them. */
    bool (*pending)(const wf_comm *comm);
    wf_status (*test)(wf_comm *comm, bool *done);
    /* The host waits no more for what is pending. Returns, once, a communicator that died while its calls were on their
     * way: what they have left in memory is not known. Else NULL. */
    const wf_comm *(*forget)(wf_comm *comm);

    /* x and y are of one length, the elements of a rank; 0 does nothing, on all ranks alike. At the x of a
     * reduce-scatter and the y of an all-gather lies one such block for each rank, in rank order; y or x may be this
     * rank's own block of it. */
    wf_status (*call)(wf_comm *comm, wf_native_kind kind, wf_reduce_op op, int peer, const wf_strided *x,
                      const wf_strided *y);
    /* Calls between begin and end are one; sends and receives are made there alone. Unless end joins, the context's
     * stream does not wait before `join`: it computes meanwhile. */
    wf_status (*begin)(wf_comm *comm);
    wf_status (*end)(wf_comm *comm, bool joins);
    /* The context's stream goes behind what does not hold it up yet (of `end`, and sums of the background stream).
     * Local. */
    wf_status (*join)(wf_comm *comm);
    /* Like join, for what the background stream has summed, of any communicator that shares the streams of comm. */
    wf_status (*join_sums)(wf_comm *comm);
    /* Records the event behind all calls so far: work that waits for it does not wait for later calls. */
    wf_status (*record)(wf_comm *comm, wf_event *event);
} wf_native_transport;

extern const wf_native_transport wf_transport_native;

#endif
