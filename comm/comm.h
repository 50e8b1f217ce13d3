/* Communicators. Functions marked "Collective" must be called by all ranks of the communicator in the same order.
 *
 * A communicator's name says how the gradients of a step are summed, and whether that is in memory that the ranks of a
 * node share. If it is, reductions (wf_allreduce, wf_reduce, and the numbers of wf_allreduce_f64 and _i64 once the
 * memory is there) on one node go through it too. Several nodes reduce by messages, in the order of ranks; all other
 * collectives use messages under every name.
 *
 *   naive            one all-reduce per parameter
 *   flat             one all-reduce of the flat buffer
 *   single_node      one all-reduce in memory that the ranks share; an error where there is more than one node
 *   hierarchical     a sum inside each node in shared memory, an all-reduce between one rank of each, and back
 *   two_dimensional  the same in as many shards as the smallest node has ranks, each with its own all-reduce
 *   non_cuda_aware   as hierarchical, through host memory; an error where gradients are in host memory
 *   pure_nccl        one all-reduce by NCCL; an error in a build without it, and where two ranks share a GPU
 *   dummy            nothing is sent (measures the overhead)
 *   auto             looks at ranks, nodes and devices, says in one line what it chose and why: on one node the faster
 * of single_node and flat, on several two_dimensional, or what is left of it with one rank a node
 *
 * Where NCCL connects the ranks (pure_nccl, and auto where every rank has a GPU of its own), collectives, exchanges and
 * messages of tensors above 64 KiB use NCCL too. Its order of summation is the same on all ranks; bf16 and f16 are sent
 * as f32 and rounded once. Max and min of floats use MPI, where a NaN in any input gives NaN. The device waits for
 * incoming data; the host waits for the device only where it reads a value.
 *
 * On one node all other names give the same bits. Sums in shared memory are made in rank order inside a node, then in
 * the order of the nodes; bf16 and f16 are summed in f32 and rounded once for each level. The memory, 0.6 MiB a rank,
 * is taken when the communicator is opened by name; one that was split takes it at its first sum of gradients or, on
 * one node, at its first reduction of tensors. Where a node has too little of it (a small /dev/shm), one line of the
 * log says so, and messages are used instead.
 *
 * Errors. A failed call returns the same error on all ranks that can still be reached, naming rank, operation, the
 * number of the collective, and the place of the call in the program. Ranks notice that they make different calls by a
 * hash of number, operation, type, shape, reduction and root, in the tags of messages and in memory that all ranks
 * share; where that cannot prove that all calls are equal, and in a call of over 20 ms, each sends a record of it to
 * its neighbour in the ring of ranks. A rank that fails for its own reasons sends a notice to all; one that dies sends
 * none (docs/running.md says who notices). A rank that had completed its part gets the error from its next call that
 * waits, or that begins 20 ms after it looked last. After an error a communicator is dead, and so are those split from
 * it: every later call returns that error, and closing it does not wait. This holds for every error of a function that
 * communicates, also for a wrong argument, since other ranks may be waiting for this one.
 *
 * Messages name a rank by its number in the world, and, where the communicator of the call counts it otherwise, by that
 * number too, in brackets: "rank 5 (1)". The world is the communicator that the program opened; communicators that are
 * split from it, and those of a mesh's axes, descend from it and keep its numbers.
 *
 * Every collective waits until the left ring neighbour has entered it. Beyond that it synchronises ranks only where the
 * data requires it. */
#ifndef WF_COMM_COMM_H
#define WF_COMM_COMM_H

#include "core/site.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_comm wf_comm;

/* Returns the communicator of all ranks. Initialises MPI if the program has not done so. argc and argv may be NULL.
 * name NULL is "auto". `opts` are those of the context that belongs to it. WF_ERR_ARGUMENT lists the known names.
 * Collective. */
WF_PLACED wf_comm *wf_comm_open(int *argc, char ***argv, const char *name, wf_ctx_opts opts);
/* Opens a communicator of the ranks of an MPI communicator of the program; mpi_comm points to an MPI_Comm, which is
 * duplicated.
 * What is opened is the world of all that descends from it: messages name ranks by its numbers, also if MPI_COMM_WORLD
 * has others. Only the watchdog and wf-doctor --trace, which see processes, number by MPI_COMM_WORLD. Collective. */
WF_PLACED wf_comm *wf_comm_from_mpi(const void *mpi_comm, const char *name, wf_ctx_opts opts);
/* Makes an MPI communicator of the ranks of comm, numbered alike; mpi_comm points to the MPI_Comm that is written. It
 * shares no messages with comm, which may close first, and has MPI's default error handler. The program frees it, and
 * ends MPI if it has begun it; else the library does so at exit. NULL on a rank is an error of all, after which comm is
 * dead. Collective. */
WF_PLACED wf_status wf_comm_mpi(wf_comm *comm, void *mpi_comm) WF_NODISCARD;
/* Ranks of equal color form a communicator, ordered by key, then rank. A rank with a negative color takes part in
 * the call and gets NULL without an error (wf_error_code is WF_OK). Name and settings are inherited. Collective. */
WF_PLACED wf_comm *wf_comm_split(wf_comm *comm, int color, int key);
/* Closes the communicator. The first communicator also frees its context; where communicators split from it are still
 * open, the last of them does. Where other objects of the context are still alive it reports them (WF_ERR_STATE), and
 * the context stays: the caller frees those, then the context (wf_ctx_free). Does not wait for other ranks; a
 * collective on a communicator that another rank has closed is WF_ERR_COMM. MPI is finalised at process exit, and only
 * if Weft initialised it. */
WF_PLACED wf_status wf_comm_close(wf_comm *comm);

/* Tells the other ranks that this one is about to work for up to `ms` milliseconds without a call of the communicator:
 * their waits, here and in communicators split from it, do not time out before that. Needed between machines, and
 * beyond WEFT_IDLE_MS: on one machine the others see that this rank works. `what` is for their log ("writing results").
 * A later call replaces an earlier one if it lasts longer. Local. */
wf_status wf_comm_busy(wf_comm *comm, const char *what, int64_t ms) WF_NODISCARD;

wf_ctx *wf_comm_ctx(wf_comm *comm);
const char *wf_comm_name(const wf_comm *comm); /* what auto chose */
int wf_comm_rank(const wf_comm *comm);
int wf_comm_size(const wf_comm *comm);
int wf_comm_intra_rank(const wf_comm *comm); /* inside this node, which is the set of ranks that can share memory */
int wf_comm_intra_size(const wf_comm *comm);
int wf_comm_inter_rank(const wf_comm *comm); /* of this node */
int wf_comm_inter_size(const wf_comm *comm);
/* The mesh whose data axis is the whole communicator; borrowed. */
const wf_mesh *wf_comm_mesh(wf_comm *comm);

typedef enum wf_reduce_op {
    WF_SUM = 0,
    WF_MAX,
    WF_MIN,
    WF_PROD,
} wf_reduce_op;

/* --- Tensors. Types and shapes must agree where data meets; tensors may be strided views. ------------------------- */

/* Point to point. tag is 0 to 16382; pipelines and chains over ranks send with 16383. A send may wait for its receive
 * to begin. Every message is to be received before its communicator is closed: one that is left over can disturb those
 * of a communicator opened later. A send or receive with oneself is WF_ERR_ARGUMENT. */
WF_PLACED wf_status wf_send(wf_comm *comm, const wf_tensor *x, int to, int tag) WF_NODISCARD;
WF_PLACED wf_status wf_recv(wf_comm *comm, wf_tensor *y, int from, int tag) WF_NODISCARD;
/* A tensor of the type and shape that the sender has; NULL on failure. */
WF_PLACED wf_tensor *wf_recv_new(wf_comm *comm, int from, int tag);
/* Equal to wf_send, which always sends type and shape first; the name is the counterpart of wf_recv_new. */
WF_PLACED wf_status wf_send_new(wf_comm *comm, const wf_tensor *x, int to, int tag) WF_NODISCARD;
WF_PLACED wf_status wf_sendrecv(wf_comm *comm, const wf_tensor *x, int to, wf_tensor *y, int from,
                                int tag) WF_NODISCARD;

/* Collective. Copies x of the root to x of every rank. */
WF_PLACED wf_status wf_bcast(wf_comm *comm, wf_tensor *x, int root) WF_NODISCARD;
/* Collective. In place where y == x. Each element is combined in rank order, so its bits are the same on all ranks
 * and do not depend on the count; bf16 and f16 are combined in f32 and rounded once; integers wrap; max and min give
 * NaN if any input is NaN. */
WF_PLACED wf_status wf_allreduce(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op) WF_NODISCARD;
/* Collective. As wf_allreduce, but the result is on the root alone, which alone gives y. */
WF_PLACED wf_status wf_reduce(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op, int root) WF_NODISCARD;
/* Collective. Ragged: y[r] has the type and shape of rank r's x; y is given on the root alone (gather), or
 * everywhere. The shapes may differ between ranks and may be empty. */
WF_PLACED wf_status wf_gather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y, int root) WF_NODISCARD;
WF_PLACED wf_status wf_allgather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y) WF_NODISCARD;
/* Collective. x[r] on the root goes to y on rank r; x is read on the root alone. */
WF_PLACED wf_status wf_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, int root) WF_NODISCARD;
/* Collective. x[r] goes to rank r; y[r] comes from rank r. Each pair of ranks may have a type and a shape of its own:
 * x[r] on rank s has those of y[s] on rank r. */
WF_PLACED wf_status wf_alltoall(wf_comm *comm, wf_tensor *const *x, wf_tensor *const *y) WF_NODISCARD;
/* Collective. y on rank r is the reduction over all ranks of their x[r]. */
WF_PLACED wf_status wf_reduce_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, wf_reduce_op op) WF_NODISCARD;
WF_PLACED wf_status wf_barrier(wf_comm *comm) WF_NODISCARD; /* Collective. Ends once all ranks have begun it. */

/* --- Bytes and numbers of the host: metadata. Collective, but for those between two ranks. ------------------ */

WF_PLACED wf_status wf_bcast_bytes(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
/* all receives size times bytes, in rank order. */
WF_PLACED wf_status wf_allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* x[r], of bytes[r], on the root goes to y, of as many bytes, on rank r (WF_ERR_COMM if it is not); x and bytes are
 * read on the root alone. */
WF_PLACED wf_status wf_scatter_bytes(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes,
                                     int root) WF_NODISCARD;
/* `mine` of every rank, of any length: lengths [size] gets them on all ranks; *all, on the root alone, a new buffer of
 * them in rank order and a NUL, for the caller to free(). */
WF_PLACED wf_status wf_gather_bytes(wf_comm *comm, const void *mine, size_t bytes, size_t *lengths, void **all,
                                    int root) WF_NODISCARD;
/* Between two ranks, as wf_send and wf_recv: the receiver learns how many bytes come, and gets them in a new buffer
 * with a NUL behind them, for it to free(); NULL on failure. */
WF_PLACED wf_status wf_send_bytes(wf_comm *comm, const void *data, size_t bytes, int to, int tag) WF_NODISCARD;
WF_PLACED void *wf_receive_bytes(wf_comm *comm, size_t *bytes, int from, int tag);
WF_PLACED wf_status wf_allreduce_f64(wf_comm *comm, double *values, int64_t count, wf_reduce_op op) WF_NODISCARD;
WF_PLACED wf_status wf_allreduce_i64(wf_comm *comm, int64_t *values, int64_t count, wf_reduce_op op) WF_NODISCARD;
/* Returns the root's status, with its message, on all ranks: for work that one rank does for all. The communicator
 * stays usable, since all ranks know of the error. */
WF_PLACED wf_status wf_bcast_status(wf_comm *comm, wf_status status, int root) WF_NODISCARD;

/* The traffic that this rank has given to the transport since the communicator was made. Payload only: records of
 * calls, notices, and the 56 bytes of type and shape that are sent ahead of a tensor, or of scattered bytes, are not
 * counted. With P ranks and n bytes (of a tensor, or of x) a rank sends
 *
 *   send                n                           all-reduce     2 n (P-1)/P where P divides the count; else
 *   broadcast           n (P-1) over all ranks                     n - own block + (P-1) own block per piece of the
 *   gather              n, the root 0                              buffer, blocks by wf_block; where P n <= 32 KiB:
 *   all-gather          n (P-1)                                    n (P-1), in fewer steps
 *   scatter             x of the others, only       reduce         as all-reduce, the root n (P-1)/P and the others n;
 *                       the root                                   where P n <= 32 KiB: n, the root 0
 *   all-to-all, reduce-scatter: x of the others     barrier        one byte ceil(log2 P) times
 *
 * and nothing where P is 1, nor by all-reduce and reduce where the ranks of one node share memory for sums. Reducers:
 * as all-reduce by messages (naive, flat); nothing by single_node; with M nodes as all-reduce of M ranks by one rank a
 * node (hierarchical), or by each of S ranks a node of its n/S (two_dimensional). A message is one call of the
 * transport (at most WEFT_CHUNK_BYTES; of all-reduces between nodes at most 64 KiB). */
typedef struct wf_traffic {
    uint64_t bytes_sent, messages, collectives;
    /* Bytes copied to staging buffers during reductions: into shared memory, through host memory, or into another
     * type. All-reduces by messages (also those of reducers) above the 32 KiB that the table names send from and
     * receive into the vector itself and copy nothing. */
    uint64_t bytes_copied;
    uint64_t exchange_ns; /* that this rank spent inside exchanges of halos and other boxes: packing and waiting */
} wf_traffic;
wf_traffic wf_comm_traffic(const wf_comm *comm);

/* The watchdog is a thread that ends the process with this exit code if the launcher has died, or if the main thread
 * is inside a call of the library and has made no progress for WEFT_TIMEOUT_MS and two seconds more (it is stuck in
 * MPI or in a kernel and cannot report a time-out itself). It prints the reason and the last calls of this rank. */
#define WF_WATCHDOG_EXIT 75
/* The watchdog calls this hook, with the reason, before it ends the process. NULL: no hook. Local. */
typedef void (*wf_watchdog_hook)(const char *text);
void wf_watchdog_set_hook(wf_watchdog_hook hook);

#ifdef __cplusplus
}
#endif

#endif
