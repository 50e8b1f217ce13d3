/* Messages through memory that the ranks of a node share, for exchanges: a ring of slots for each pair of ranks, which
 * the sender packs into and the receiver unpacks from. What is strided is then copied twice, not four times.
 */
#ifndef WF_COMM_BOARD_IMPL_H
#define WF_COMM_BOARD_IMPL_H

#include "comm/comm_impl.h"

#define WF_BOARD_SLOT  ((size_t)128 << 10) /* bytes: a part stays in the caches between packing and unpacking */
#define WF_BOARD_SMALL ((size_t)256 << 10) /* bytes: longer messages that need no packing go faster through MPI */

typedef struct wf_board wf_board;

/* Makes the board of a communicator whose ranks have all entered this call; comm->board stays NULL where memory cannot
 * be shared. Collective. */
wf_status wf_board_open(wf_comm *comm) WF_NODISCARD;
void wf_board_close(wf_comm *comm);
/* Whether parts can go to and come from this rank; the same on both. */
bool wf_board_reaches(const wf_board *board, int peer);
/* A free slot for the next part to a peer, of WF_BOARD_SLOT bytes, 64-byte aligned; NULL where there is none at the
 * moment. post hands it over. */
void *wf_board_slot(wf_board *board, int peer);
void wf_board_post(wf_board *board, int peer);
/* The next part that came from a peer; NULL where there is none yet. took gives the slot back. */
void *wf_board_next(wf_board *board, int peer);
void wf_board_took(wf_board *board, int peer);

#endif
