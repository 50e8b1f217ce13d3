/* Messages through memory that the ranks of a node share, for exchanges: a ring of slots for each pair of ranks, which
 * the sender packs into and the receiver unpacks from. What is strided is then copied twice, not four times.
 *
 * Where device memory is not the host's, the slots are in the memory of the receiver's device, and the sender's kernels
 * write there: every rank has mapped the others' slots (the table's `share` and `map`), which works for ranks on one
 * device too. Flags stay in the host's memory; one is raised when the kernels before it are done, by whoever of the two
 * looks at the board (wf_board_poll). That such memory works is tried when the board is made: what one rank writes the
 * other reads, both ways.
 */
#ifndef WF_COMM_BOARD_IMPL_H
#define WF_COMM_BOARD_IMPL_H

#include "comm/comm_impl.h"

#include <stdatomic.h>

#define WF_BOARD_SMALL ((size_t)256 << 10) /* bytes: longer messages that need no packing go faster through MPI */
#define WF_BOARD_RANKS 8                   /* of a node; with more, the rings would take too much memory */

typedef struct wf_board wf_board;

/* Makes the board of a communicator whose ranks have all entered this call; comm->board stays NULL where memory cannot
 * be shared, and comm->board_why says why. Collective. */
wf_status wf_board_open(wf_comm *comm) WF_NODISCARD;
void wf_board_close(wf_comm *comm);
/* Whether parts can go to and come from this rank; the same on both. */
bool wf_board_reaches(const wf_board *board, int peer);
/* How long a part may be: in host memory it stays in the caches between packing and unpacking. */
size_t wf_board_slot_bytes(const wf_ctx *ctx);
/* A free slot for the next part to a peer, 64-byte aligned, in device memory; NULL where there is none at the moment.
 * post hands it over, behind what the context's stream has to do. */
void *wf_board_slot(wf_board *board, int peer);
wf_status wf_board_post(wf_board *board, int peer) WF_NODISCARD;
/* Whether the peer has been told of all that was posted to it. */
bool wf_board_told(const wf_board *board, int peer);
/* The next part that came from a peer; NULL where there is none yet. took gives the slot back, likewise. */
void *wf_board_next(wf_board *board, int peer);
wf_status wf_board_took(wf_board *board, int peer) WF_NODISCARD;
/* Raises the flags whose kernels are done. Nothing to do for NULL, and in host memory. */
wf_status wf_board_poll(wf_board *board) WF_NODISCARD;

/* --- blocks.c: device memory that the ranks of a node map from each other
 * ------------------------------------------------ */
typedef atomic_uint_least64_t wf_flag;

typedef struct wf_blocks {
    int rank, size; /* in the node */
    size_t bytes;   /* of a block: size - 1 equal pieces, one for each other rank */
    char *of[WF_BOARD_RANKS];
} wf_blocks;

/* The piece of `owner`'s block for what comes from `from`. */
char *wf_blocks_piece(const wf_blocks *blocks, int owner, int from);
/* Allocates, maps and tries it; `member` is the rank in the communicator of each of the node, whose size is 0 on a node
 * that takes no part. Where it fails on one rank, WF_OK with *works false on all, and `why` says what failed.
 * Collective over the communicator; the call has been entered. */
wf_status wf_blocks_open(wf_comm *comm, wf_blocks *blocks, const int *member, bool *works,
                         char why[WF_FAILURE_TEXT]) WF_NODISCARD;
/* Unmaps the others' blocks and says so: gone[owner][user] are flags in host memory that lasts as long as the process.
 * This rank's own is released once all others have unmapped it, now or when another board is made or closed. Does not
 * wait. */
void wf_blocks_close(wf_ctx *ctx, wf_blocks *blocks, wf_flag *(*gone)(const wf_board *board, int owner, int user),
                     const wf_board *board);

#endif
