/* Collectives on tensors, buffers and bytes: by messages, by memory that the ranks of a node share, natively. For
 * comm/collective and what stands on it. */
#ifndef WF_COMM_COLLECTIVE_IMPL_H
#define WF_COMM_COLLECTIVE_IMPL_H

#include "comm/engine/engine_impl.h"

/* --- buffer.c --- */

/* With the tensor's elements in it; or only room for them. x NULL gives an empty buffer. on_device: it stays
 * in device memory. */
wf_status wf_buffer_read(wf_comm *comm, const wf_tensor *x, bool on_device, wf_buffer *buffer) WF_NODISCARD;
wf_status wf_buffer_room(wf_comm *comm, const wf_tensor *y, bool on_device, wf_buffer *buffer) WF_NODISCARD;
/* Do so for a vector in device memory. */
wf_status wf_buffer_read_vector(wf_comm *comm, const void *data, size_t bytes, bool on_device,
                                wf_buffer *buffer) WF_NODISCARD;
wf_status wf_buffer_vector(wf_comm *comm, void *data, size_t bytes, bool on_device, wf_buffer *buffer) WF_NODISCARD;
/* Puts what arrived into the tensor, or the vector. */
wf_status wf_buffer_store(wf_buffer *buffer) WF_NODISCARD;
void wf_buffer_free(wf_buffer *buffer);

/* --- lists.c --- */

/* Returns true if the tensor of a list, which goes to a rank or comes from it, moves natively. */
static inline bool wf_lists_stay(const wf_buffer *buffer, int rank)
{
    const wf_comm *comm = buffer->comm;
    return buffer->tensor && rank != comm->rank && wf_tensor_bytes(buffer->tensor) >= comm->call.stays;
}

/* What travels ahead of a tensor. */
wf_frame wf_frame_of(const wf_tensor *x);

/* Makes the memory of these calls, which one of them has at a time, for a communicator whose size is known. */
wf_status wf_lists_open(wf_comm *comm) WF_NODISCARD;
void wf_lists_close(wf_comm *comm);
/* Empties the lists comm->call.outgoing and incoming, for the caller to fill with tensors. */
void wf_lists_begin(wf_comm *comm);
/* Moves the lists of an entered call: tensors, or bytes in the host's memory, or a reduction of tensors; on_device: as
 * wf_call_stays says of the call. */
wf_status wf_lists_run(wf_comm *comm, const wf_call *call, bool on_device) WF_NODISCARD;
/* Sends to and receives from every rank that has a tensor in the lists; for this rank itself copies. The sender's type
 * and shape come first and must be those of the tensor that receives. */
wf_status wf_lists_exchange(wf_comm *comm) WF_NODISCARD;
/* Fills the lists with bytes, for wf_lists_run: `out` of x go to the rank, and `in` come to y; -1: none. */
void wf_lists_set_bytes(wf_comm *comm, int rank, const void *x, int64_t out, void *y, int64_t in);
/* Begins to send a frame and `bytes` behind it to one rank. */
wf_status wf_lists_post(wf_comm *comm, const wf_frame *frame, const void *data, size_t bytes, int to,
                        wf_engine_entry **flight) WF_NODISCARD;
/* A message whose type and shape the receiver does not know ahead: those, and the rest once there is room for it.
 * Returns how many bytes come. */
wf_status wf_lists_look_bytes(wf_comm *comm, int from, size_t *bytes) WF_NODISCARD;
/* Returns the elements as a new tensor. */
wf_status wf_lists_look_new(wf_comm *comm, int from, wf_tensor **y) WF_NODISCARD;
wf_status wf_lists_take(wf_comm *comm, wf_tensor *y, int from, size_t stays) WF_NODISCARD;

/* --- point_to_point.c --- */

/* Receives a tensor whose type and shape the sender chose; `stays`: as of wf_call_state, on both sides alike. */
wf_tensor *wf_coll_recv_new(wf_comm *comm, int from, int tag, size_t stays) WF_NODISCARD;

/* --- native_open.c --- */

/* One rank a GPU: `why` says what prevents a native connection, on all ranks alike; empty: nothing. Collective. */
wf_status wf_native_fits(wf_comm *comm, char why[WF_WHY]) WF_NODISCARD;
/* Connects all ranks by the native transport, if there are several, or one that the configuration lets it connect with
 * itself; wf_native_fits has found nothing against it. Collective. */
wf_status wf_native_open(wf_comm *comm) WF_NODISCARD;
/* Connects the ranks of `part` if those of comm, which it is split from, are connected. Collective over part. */
wf_status wf_native_follow(const wf_comm *comm, wf_comm *part) WF_NODISCARD;
/* Connects them, unless they are connected, or fails with what prevents it. Collective. */
wf_status wf_comm_connect_native(wf_comm *comm) WF_NODISCARD;

/* --- native.c: lists by the native transport --- */

/* wf_call_state.stays of a message between two ranks. */
size_t wf_native_least(const wf_comm *comm);
/* Moves the data of the lists as one native call. An all-gather sends the data of each rank to all. */
wf_status wf_native_move_lists(wf_comm *comm) WF_NODISCARD;
wf_status wf_native_gather_lists(wf_comm *comm, const wf_buffer *own) WF_NODISCARD;
/* Reduces what all ranks have for each rank, into what comes from the rank itself. */
wf_status wf_native_reduce_lists(wf_comm *comm, wf_dtype dtype, wf_reduce_op op) WF_NODISCARD;
/* Sends a buffer to a rank, receives it from there, or broadcasts that of the rank to all, in the order of such calls.
 */
wf_status wf_native_pass(wf_comm *comm, wf_native_kind kind, const wf_buffer *buffer, int peer) WF_NODISCARD;

/* --- door.c: the one way of a collective --- */

/* Runs a call to its end: enters it, moves its memory, waits, and ends it; `checked` is what the caller found of its
 * arguments, and an error there ends the call before it begins. Collective. */
wf_status wf_comm_run(wf_comm *comm, wf_status checked, const wf_call *call) WF_NODISCARD;
/* Describes a call on vectors of bytes. */
wf_call wf_call_of_bytes(wf_operation operation, const char *name, const void *in, void *out, size_t bytes, int root);
/* Checks the vectors of an all-gather. */
wf_status wf_check_gathered(const void *mine, size_t bytes, const void *all) WF_NODISCARD;

/* --- calls.c: parts of a call that has been entered --- */

/* Returns false for a sum that leaves memory as it is, as the dummy's does, and for a call of one rank that neither the
 * native transport nor a copy on the device serves: these are not entered. */
bool wf_call_moves(const wf_comm *comm, const wf_call *call);

/* Opens, at the first time, the memory in which the ranks of each node sum, where the communicator's name says that
 * they do: reductions on one node go through it from then on. WF_OK where there is none left, on all ranks alike; one
 * line of the log says so. Collective. */
wf_status wf_coll_share(wf_comm *comm) WF_NODISCARD;

/* all holds size blocks of equal length in rank order. */
wf_status wf_coll_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
wf_status wf_coll_barrier(wf_comm *comm) WF_NODISCARD;
/* The next message of that rank, of which the length is known; wf_guard_point has been called. */
wf_status wf_coll_receive(wf_comm *comm, void *data, size_t bytes, int from) WF_NODISCARD;

#endif
