/* Exchanges: every rank has a box of an array and needs a box; the plan (comm/plan_author.h) says what moves.
 *
 * One message is sent to each peer and direction (between nodes, several short ones); inside a node a packet goes in
 * parts through shared memory where its ranks have some, and natively all packets of a rank are one call. Packets are
 * packed by the kernel table's `copy`. What a rank needs and has itself is copied locally. A single box that is dense
 * in the tensor (a face across the slowest dimension) is sent and received without a copy. The reverse adds: every rank
 * that needed an element sends its gradient back to the owner that it came from.
 *
 * A need may reach beyond the edges of the array (core/boundary.h): it is then a list of pieces, and what a boundary
 * repeats along a line travels once in either direction.
 *
 * All ranks know the whole plan. An exchange that moves nothing between ranks sends nothing and is not a collective. In
 * any other exchange every rank of the communicator takes part, also one with nothing to send. */
#ifndef WF_COMM_EXCHANGE_AUTHOR_H
#define WF_COMM_EXCHANGE_AUTHOR_H

#include "comm/comm.h"
#include "comm/plan_author.h"

typedef struct wf_exchange wf_exchange;

/* have and need: `size` boxes, in rank order, the same on every rank. order: in which elements of a box travel; a
 * tensor of that order goes without a copy where it can. The communicator is borrowed. WF_ERR_SHAPE, on all ranks, if
 * an element is needed that no rank has. Local. */
wf_exchange *wf_exchange_new(wf_comm *comm, wf_dtype dtype, wf_order order, const wf_box *have, const wf_box *need);
/* wf_exchange_new for needs that may reach beyond the array, with the errors of wf_boundary_pieces, on all ranks;
 * WF_ERR_DTYPE where integers would change their sign. beyond, which is read during the call only, may be NULL. */
wf_exchange *wf_exchange_new_beyond(wf_comm *comm, wf_dtype dtype, wf_order order, const wf_box *have,
                                    const wf_box *need, const wf_beyond *beyond);
/* NULL is fine. Local. */
void wf_exchange_free(wf_exchange *exchange);
/* Bytes that this rank sends to others, one way. */
int64_t wf_exchange_bytes(const wf_exchange *exchange);
/* True if anything moves between ranks; the same on every rank. */
bool wf_exchange_moves(const wf_exchange *exchange);
/* Describes in one line for the user how exchanges over this communicator move data, and why: natively if every rank
 * has a GPU of its own; otherwise, inside a node, through memory that its ranks share (device memory, if a trial
 * shows that this works); otherwise by messages, through page-locked host memory where the device has memory of its
 * own. Collective. */
wf_status wf_exchange_way(wf_comm *comm, char *text, size_t size) WF_NODISCARD;
wf_comm *wf_exchange_comm(const wf_exchange *exchange); /* borrowed */

/* x holds this rank's have-box, y its need-box; both of the exchange's type, any strides. `begin` posts all messages
 * and returns. Until `end`, x must stay unchanged (messages may be sent directly from it), both handles must stay
 * alive, and only this rank's own part of y, which begin has copied, may be used. `end` waits and unpacks. Between
 * the two no other collective or message of this communicator may start (WF_ERR_STATE). wf_exchange_poll sends what
 * is ready by then (a part for which a slot is free, a message whose bytes have reached the host) and, but for the
 * reverse, unpacks what has arrived. After an error the exchange is over, and the communicator dead. Collective. */
wf_status wf_exchange_begin(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y) WF_NODISCARD;
wf_status wf_exchange_poll(wf_exchange *exchange) WF_NODISCARD;
wf_status wf_exchange_end(wf_exchange *exchange) WF_NODISCARD;
/* The reverse: dy holds the need-box; its elements are added to dx, the have-box: this rank's own first, which begin
 * adds, then those of peers in their order, each in the order of its pieces, so the result is the same in every run.
 * What lies beyond a constant edge is left out. */
wf_status wf_exchange_reverse_begin(wf_exchange *exchange, const wf_tensor *dy, wf_tensor *dx) WF_NODISCARD;

/* Without the local copy: only elements received from other ranks are written into y, or added to dx, and those that a
 * boundary puts beyond the edges (begin writes those of this rank, and end adds them); this rank's own elements are not
 * changed. For callers that use their own part in place: x may be a view of y, and dx of dy. */
wf_status wf_exchange_begin_halo(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y) WF_NODISCARD;
wf_status wf_exchange_reverse_begin_halo(wf_exchange *exchange, const wf_tensor *dy, wf_tensor *dx) WF_NODISCARD;

/* The slabs of this rank's halo, borrowed: the whole need as one where a piece lies in two slabs. Local. */
const wf_slabs *wf_exchange_slabs(const wf_exchange *exchange);
/* wf_exchange_begin_halo and its reverse with a halo in slabs: an array [slabs->elements], in which each box is dense
 * in the order of the exchange. It takes the memory of the halo, or of the whole need where that is the slab. */
wf_status wf_exchange_begin_slabs(wf_exchange *exchange, const wf_tensor *x, wf_tensor *slabs) WF_NODISCARD;
wf_status wf_exchange_reverse_begin_slabs(wf_exchange *exchange, const wf_tensor *slabs, wf_tensor *dx) WF_NODISCARD;

#endif
