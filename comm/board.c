#include "comm/board_impl.h"

#include "core/log.h"

#include <stdatomic.h>
#include <stdlib.h>

#define LINE      128 /* bytes between flags, so that ranks do not disturb each other's caches */
#define MOST      8   /* ranks of a node; with more, the rings would take too much memory */
#define SLOTS     4   /* of a pair where two ranks share a node */
#define SLOTS_FEW 2   /* of a pair otherwise */
#define ALIGNMENT 4096

struct wf_board {
    int rank, size; /* in the node */
    int slots;
    int *place;             /* in the node, of each rank of the communicator; -1: on another node */
    char *base[MOST];       /* of each rank's memory: flags, then a ring for each other rank */
    uint64_t sent[MOST];    /* parts to each rank of the node */
    uint64_t taken[MOST];   /* parts from each */
    uint64_t room_to[MOST]; /* parts that may be sent before looking again */
};

typedef atomic_uint_least64_t flag;

/* How many parts `from` has posted to `to`: in the sender's memory. */
static flag *posted(const wf_board *board, int from, int to)
{
    return (flag *)(void *)(board->base[from] + (size_t)to * LINE);
}

/* How many of them `to` has taken: in the receiver's memory. */
static flag *taken(const wf_board *board, int from, int to)
{
    return (flag *)(void *)(board->base[to] + (size_t)(board->size + from) * LINE);
}

static size_t head_bytes(int size)
{
    return ((size_t)(2 * size) * LINE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static char *slot(const wf_board *board, int from, int to, uint64_t part)
{
    const size_t ring = (size_t)board->slots * WF_BOARD_SLOT;
    return board->base[from] + head_bytes(board->size) + (size_t)(to < from ? to : to - 1) * ring +
           (size_t)(part % (uint64_t)board->slots) * WF_BOARD_SLOT;
}

bool wf_board_reaches(const wf_board *board, int peer)
{
    return board && board->place[peer] >= 0;
}

void *wf_board_slot(wf_board *board, int peer)
{
    const int to = board->place[peer];
    if (board->sent[to] == board->room_to[to])
        board->room_to[to] =
            atomic_load_explicit(taken(board, board->rank, to), memory_order_acquire) + (uint64_t)board->slots;
    return board->sent[to] < board->room_to[to] ? slot(board, board->rank, to, board->sent[to]) : NULL;
}

void wf_board_post(wf_board *board, int peer)
{
    const int to = board->place[peer];
    atomic_store_explicit(posted(board, board->rank, to), ++board->sent[to], memory_order_release);
}

void *wf_board_next(wf_board *board, int peer)
{
    const int from = board->place[peer];
    if (atomic_load_explicit(posted(board, from, board->rank), memory_order_acquire) <= board->taken[from])
        return NULL;
    return slot(board, from, board->rank, board->taken[from]);
}

void wf_board_took(wf_board *board, int peer)
{
    const int from = board->place[peer];
    atomic_store_explicit(taken(board, from, board->rank), ++board->taken[from], memory_order_release);
}

static wf_board *board_new(wf_comm *comm)
{
    wf_board *board = wf_calloc(comm->family->ctx, 1, sizeof *board);
    int *place = wf_malloc(comm->family->ctx, (size_t)comm->size * sizeof *place);
    if (!board || !place) {
        free(board);
        free(place);
        return NULL;
    }
    board->size = comm->intra_size;
    board->slots = board->size == 2 ? SLOTS : SLOTS_FEW;
    board->place = place;
    for (int r = 0; r < comm->size; r++)
        place[r] = -1;
    return board;
}

/* A node of too many ranks takes part, but shares nothing. */
static wf_status connect(wf_comm *comm, wf_board *board)
{
    char why[WF_FAILURE_TEXT] = "";
    const int size = comm->intra_size;
    const bool fits = size > 1 && size <= MOST;
    const size_t ring = (size_t)board->slots * WF_BOARD_SLOT;
    const size_t bytes = fits ? head_bytes(size) + (size_t)(size - 1) * ring : ALIGNMENT;
    const size_t room = (size_t)size * (sizeof(void *) + sizeof(int));
    wf_status status = WF_OK;
    void **base = wf_malloc(comm->family->ctx, room);
    if (!base)
        return wf_error_code();
    int *rank = (int *)(void *)(base + size);
    WF_TRY_OUT(wf_mpi_share(comm, bytes, base, rank, why));
    if (!base[0] && comm->rank == 0)
        wf_log(WF_LOG_WARN, "exchanges inside a node go by messages: %s", why);
    for (int i = 0; fits && base[0] && i < size; i++) {
        board->base[i] = base[i];
        if (rank[i] == comm->rank)
            board->rank = i;
        board->place[rank[i]] = i;
    }
    board->place[comm->rank] = -1;
out:
    free(base);
    return status;
}

wf_status wf_board_open(wf_comm *comm)
{
    const wf_traffic before = comm->traffic;
    comm->board_asked = true;
    if (!comm->family->ctx->k->host || comm->inter_size == comm->size)
        return WF_OK;
    WF_TRY(wf_move_barrier(comm)); /* none is elsewhere: what follows waits without looking */
    comm->traffic = before;
    comm->board = board_new(comm);
    if (!comm->board)
        return wf_error_code();
    return connect(comm, comm->board);
}

void wf_board_close(wf_comm *comm)
{
    if (!comm->board)
        return;
    free(comm->board->place);
    free(comm->board);
    comm->board = NULL;
}
