/* Collectives on tensors, buffers and bytes: by messages, by memory that the ranks of a node share, by NCCL. For
 * comm/collective and what stands on it. */
#ifndef WF_COMM_COLLECTIVE_IMPL_H
#define WF_COMM_COLLECTIVE_IMPL_H

#include "comm/engine/engine_impl.h"

#include <stdatomic.h>

/* --- buffer.c --- */

void wf_host_free_all(wf_comm_shared *shared);

/* With the tensor's elements in it; or only room for them. x NULL gives an empty buffer. native: for NCCL, in device
 * memory. */
wf_status wf_buffer_read(wf_comm *comm, const wf_tensor *x, bool native, wf_buffer *buffer) WF_NODISCARD;
wf_status wf_buffer_room(wf_comm *comm, const wf_tensor *y, bool native, wf_buffer *buffer) WF_NODISCARD;
/* Puts what arrived into the tensor. */
wf_status wf_buffer_store(wf_buffer *buffer) WF_NODISCARD;
void wf_buffer_free(wf_buffer *buffer);

/* --- peer_slots.c --- */

/* Clears what was asked of the peer slots. */
void wf_peer_slots_start(wf_comm *comm, wf_way way);
/* Sends peer slot.out to and receives peer slot.in from every rank that has one; for this rank itself copies. The
 * sender's type and shape come first and must be those of peer slot.in. */
wf_status wf_peer_slots_exchange(wf_comm *comm) WF_NODISCARD;
/* The same in parts: make the buffers (of what goes out; of both); post the messages ahead and see that all that come
 * are as expected, without or with the data. The caller then waits for the batch and frees the peer slots. */
wf_status wf_peer_slots_read(wf_comm *comm) WF_NODISCARD;
wf_status wf_peer_slots_prepare(wf_comm *comm) WF_NODISCARD;
wf_status wf_peer_slots_agree(wf_comm *comm) WF_NODISCARD;
wf_status wf_peer_slots_post(wf_comm *comm) WF_NODISCARD;
/* Whether a message between two goes by NCCL: its sender then waits for its receiver, as MPI's do of that length. */
bool wf_peer_slots_native_point(const wf_comm *comm, const wf_tensor *x);
/* What is left of such a message once its type and shape have come. */
wf_status wf_peer_slots_take(wf_comm *comm, wf_tensor *y, int from) WF_NODISCARD;
wf_status wf_peer_slots_copy_own(wf_comm *comm) WF_NODISCARD; /* from this rank to itself */
void wf_peer_slots_free(wf_comm *comm);
/* The shape in a message ahead, if it is one. */
wf_status wf_frame_shape(const wf_frame *frame, int from, wf_shape *shape) WF_NODISCARD;

/* --- native.c: collectives on device memory that is not the host's: by NCCL, or among one rank --- */

bool wf_native(const wf_comm *comm);
wf_status wf_native_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
wf_status wf_native_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* Whether it combines as wf_allreduce says: not in NCCL's max and min of floats, in which NaN may lose. */
bool wf_native_reduces(const wf_comm *comm, wf_dtype dtype, wf_reduce_op op);
/* Of 16-bit types in f32, which is rounded once; root -1: the result is everywhere. */
wf_status wf_native_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                           int root) WF_NODISCARD;
/* y is the reduction over all ranks of their x[rank], which has count[rank] elements. */
wf_status wf_native_reduce_scatter(wf_comm *comm, const void *const *x, const int64_t *count, void *y, wf_dtype dtype,
                                   wf_reduce_op op) WF_NODISCARD;
/* As the two of messages.c. */
wf_status wf_native_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_native_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;

/* --- messages.c: collectives on buffers, from messages. The call has been entered. --- */

wf_status wf_coll_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
/* The result on `root`, or everywhere where root is -1; y is not used elsewhere. y may be x. */
wf_status wf_coll_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root) WF_NODISCARD;
/* all holds size blocks of equal length in rank order. */
wf_status wf_coll_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* In place, in a vector of which rank r has the part [shard[r], shard[r + 1]); shard[0] is 0. The parts are summed,
 * each on its rank, in rank order; the rest is left as it is. Or they are brought together. */
wf_status wf_coll_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_coll_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_coll_barrier(wf_comm *comm) WF_NODISCARD;

/* --- shm_open.c, shm_reduce.c --- */
/* Memory that the ranks of a node share, and what they do in it: sums and broadcasts without messages.
 *
 * Every rank has a segment of the window: flags, and a few slots of one piece each. A vector goes through the slots
 * piece by piece: a rank copies what others need of a piece into its slot, reduces its own slice of the piece as soon
 * as the others have copied theirs, and takes the other slices' results out of their slots. The three run ahead of each
 * other as far as the slots allow, so what is moved stays in the caches.
 */

#define WF_SHM_SLOTS 4
#define WF_SHM_SLOT  ((size_t)128 << 10) /* bytes of a piece */
#define WF_SHM_LINE  128                 /* apart from each other, so that ranks do not disturb each other's caches */
#define WF_SHM_HEAD  ((size_t)4096)

/* How many pieces of all calls so far this rank has copied in, has reduced, and has no longer to read. */
typedef struct wf_shm_flags {
    _Alignas(WF_SHM_LINE) atomic_uint_least64_t copied;
    _Alignas(WF_SHM_LINE) atomic_uint_least64_t reduced;
    _Alignas(WF_SHM_LINE) atomic_uint_least64_t taken;
} wf_shm_flags;

typedef struct wf_shm_rank {
    wf_shm_flags *flags;
    char *slots;
    int world; /* its rank in the communicator */
} wf_shm_rank;

typedef struct wf_shm {
    int rank, size;  /* in the node */
    uint64_t pieces; /* of earlier calls: the same on all ranks of the node */
    wf_shm_rank *at; /* of each rank of the node */
    const void **in; /* room for the inputs of a sum */
} wf_shm;

/* Shares memory among the ranks of each node. WF_OK and NULL, on all ranks of all nodes, where one node has no memory
 * to share; `why` says what is missing. The window is freed when the process ends. Collective over comm. */
wf_status wf_shm_open(wf_comm *comm, wf_shm **shm, char why[WF_FAILURE_TEXT]) WF_NODISCARD;
void wf_shm_close(wf_shm *shm);

/* Collective over the ranks of a node; the call has been entered. `root` is a rank in the node. */
/* As wf_coll_reduce: the same bits everywhere, combined in rank order. */
wf_status wf_shm_reduce(wf_comm *comm, wf_shm *shm, const void *x, void *y, int64_t count, wf_dtype dtype,
                        wf_reduce_op op, int root) WF_NODISCARD;
wf_status wf_shm_bcast(wf_comm *comm, wf_shm *shm, void *data, size_t bytes, int root) WF_NODISCARD;

/* What all ranks of the communicator share for sums; NULL where there is nothing such. */
wf_shm *wf_hierarchy_memory(const wf_comm *comm);

#endif
