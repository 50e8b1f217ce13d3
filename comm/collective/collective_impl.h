/* Collectives on tensors, buffers and bytes: by messages, by memory that the ranks of a node share, natively. For
 * comm/collective and what stands on it. */
#ifndef WF_COMM_COLLECTIVE_IMPL_H
#define WF_COMM_COLLECTIVE_IMPL_H

#include "comm/engine/engine_impl.h"

/* --- buffer.c --- */

/* With the tensor's elements in it; or only room for them. x NULL gives an empty buffer. native: in device
 * memory. */
wf_status wf_buffer_read(wf_comm *comm, const wf_tensor *x, bool native, wf_buffer *buffer) WF_NODISCARD;
wf_status wf_buffer_room(wf_comm *comm, const wf_tensor *y, bool native, wf_buffer *buffer) WF_NODISCARD;
/* Puts what arrived into the tensor. */
wf_status wf_buffer_store(wf_buffer *buffer) WF_NODISCARD;
void wf_buffer_free(wf_buffer *buffer);

/* --- peer_slots.c --- */

/* What travels ahead of a tensor. */
wf_frame wf_frame_of(const wf_tensor *x);

/* Room for the slots and lists of a communicator whose size is known. */
wf_status wf_peer_slots_open(wf_comm *comm) WF_NODISCARD;
void wf_peer_slots_close(wf_comm *comm);
/* Clears what was asked of the peer slots. */
void wf_peer_slots_start(wf_comm *comm, wf_way way);
/* Sends slot.out to and receives slot.in from every rank that has one; for this rank itself copies. The sender's type
 * and shape come first and must be those of slot.in. */
wf_status wf_peer_slots_exchange(wf_comm *comm) WF_NODISCARD;
/* The parts of an exchange: make the buffers (of outgoing data; of both); send types and shapes alone, or as part of
 * the reduction of y's copies, which are in buffer_out of every slot and go to buffer_in of this rank's own. The caller
 * frees the slots. */
wf_status wf_peer_slots_read(wf_comm *comm) WF_NODISCARD;
wf_status wf_peer_slots_prepare(wf_comm *comm) WF_NODISCARD;
wf_status wf_peer_slots_agree(wf_comm *comm) WF_NODISCARD;
wf_status wf_peer_slots_reduce(wf_comm *comm, wf_dtype dtype, wf_reduce_op op) WF_NODISCARD;
/* Metadata: bytes[r] of x[r] go to rank r from the root, y_bytes to y. */
wf_status wf_peer_slots_scatter(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes,
                                int root) WF_NODISCARD;
/* Begins to send a frame and `bytes` behind it to one rank. */
wf_status wf_peer_slots_post(wf_comm *comm, const wf_frame *frame, const void *data, size_t bytes, int to,
                             wf_engine_call *flight) WF_NODISCARD;
/* A message whose type and shape the receiver does not know ahead: those, and the rest once there is room for it;
 * natively: if it is long and its sender does so. */
wf_status wf_peer_slots_look(wf_comm *comm, int from, wf_dtype *dtype, wf_shape *shape) WF_NODISCARD;
/* Returns the elements as a new tensor. */
wf_status wf_peer_slots_look_new(wf_comm *comm, int from, wf_tensor **y) WF_NODISCARD;
wf_status wf_peer_slots_take(wf_comm *comm, wf_tensor *y, int from, bool natively) WF_NODISCARD;
wf_status wf_peer_slots_copy_own(wf_comm *comm) WF_NODISCARD; /* from this rank to itself */
void wf_peer_slots_free(wf_comm *comm);

/* --- native_open.c --- */

/* One rank a GPU: `why` says what prevents a native connection, on all ranks alike; empty: nothing. Collective. */
wf_status wf_native_fits(wf_comm *comm, char why[WF_WHY]) WF_NODISCARD;
/* Connects all ranks by the native transport, if there are several, or one that the configuration lets it connect with
 * itself; wf_native_fits has found nothing against it. Collective. */
wf_status wf_native_open(wf_comm *comm) WF_NODISCARD;
/* Connects them, or fails with what prevents it. Collective. */
wf_status wf_comm_connect_native(wf_comm *comm) WF_NODISCARD;

/* --- native.c: collectives on device memory that is not the host's: by the native transport, or among one rank --- */

/* Returns true if collectives on tensors bypass the engine: the ranks are connected natively, or there is one rank and
 * its device memory is not host memory. comm->native says if they are connected. */
bool wf_native(const wf_comm *comm);
/* Moves the data of the peer slots as one native call. An all-gather sends the data of each rank to all. */
wf_status wf_native_move_slots(wf_comm *comm) WF_NODISCARD;
wf_status wf_native_gather_slots(wf_comm *comm, const wf_buffer *own) WF_NODISCARD;
/* The reduction of all ranks' buffer_out of each slot on the rank of the slot, in the buffer_in of its own. */
wf_status wf_native_reduce_slots(wf_comm *comm, wf_dtype dtype, wf_reduce_op op) WF_NODISCARD;
/* Between wf_native_begin and wf_transport_native's end. */
wf_status wf_native_send(wf_comm *comm, const void *data, size_t bytes, int to) WF_NODISCARD;
wf_status wf_native_recv(wf_comm *comm, void *data, size_t bytes, int from) WF_NODISCARD;
wf_status wf_native_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
wf_status wf_native_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* Returns true if the reduction bypasses the engine with the result that wf_allreduce promises. Over several ranks max
 * and min of floats do not: the transport may lose a NaN. */
bool wf_native_reduces(const wf_comm *comm, wf_dtype dtype, wf_reduce_op op);
/* Reduces 16-bit types in f32 and rounds once; root -1 puts the result on every rank. */
wf_status wf_native_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                           int root) WF_NODISCARD;
/* The sum on every rank, in place; the transport rounds 16-bit types at every step. */
wf_status wf_native_sum(wf_comm *comm, void *data, int64_t count, wf_dtype dtype) WF_NODISCARD;
/* In place, in a vector of which rank r has the part [shard[r], shard[r + 1]); shard[0] is 0. The parts are reduced,
 * each on its rank; the rest is left as it is. Or they are brought together. */
wf_status wf_native_reduce_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype,
                                  wf_reduce_op op) WF_NODISCARD;
wf_status wf_native_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;

/* --- calls.c: collectives on buffers. The call has been entered. --- */

/* Opens, at the first time, the memory in which the ranks of each node sum, where the communicator's name says that
 * they do: reductions on one node go through it from then on. WF_OK where there is none left, on all ranks alike; one
 * line of the log says so. Collective. */
wf_status wf_coll_share(wf_comm *comm) WF_NODISCARD;

wf_status wf_coll_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
/* The result on `root`, or everywhere where root is -1; y is not used elsewhere. y may be x. */
wf_status wf_coll_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root) WF_NODISCARD;
/* all holds size blocks of equal length in rank order. */
wf_status wf_coll_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
wf_status wf_coll_barrier(wf_comm *comm) WF_NODISCARD;
/* The next message of that rank, of which the length is known; wf_guard_point has been called. */
wf_status wf_coll_receive(wf_comm *comm, void *data, size_t bytes, int from) WF_NODISCARD;

#endif
