#include "comm/mesh/mesh_impl.h"
#include "comm/transport/transport_impl.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>

#define LINE        128 /* bytes between flags, so that ranks do not disturb each other's caches */
#define SLOTS       4   /* of a pair where two ranks share a node */
#define SLOTS_FEW   2   /* of a pair otherwise */
#define ALIGNMENT   4096
#define SLOT        ((size_t)128 << 10)
#define SLOT_DEVICE ((size_t)1 << 20) /* a part costs the host a look at an event on both sides */

struct wf_board {
    wf_ctx *ctx;
    int rank, size; /* in the node */
    int slots;
    bool apart;                     /* slots are in device memory that is not the host's */
    wf_blocks blocks;               /* where they are */
    int *place;                     /* in the node, of each rank of the communicator; -1: on another node */
    char *base[WF_BOARD_RANKS];     /* of each rank's memory: flags, then, in host memory, a ring for each other rank */
    uint64_t sent[WF_BOARD_RANKS];  /* parts to each rank of the node */
    uint64_t told[WF_BOARD_RANKS];  /* of them, those whose flag is raised */
    uint64_t taken[WF_BOARD_RANKS]; /* parts from each */
    uint64_t freed[WF_BOARD_RANKS]; /* of them, those whose flag is raised */
    uint64_t room_to[WF_BOARD_RANKS]; /* parts that may be sent before looking again */
    wf_event *packed[WF_BOARD_RANKS][SLOTS], *unpacked[WF_BOARD_RANKS][SLOTS];
};

static wf_flag *flag_at(const wf_board *board, int owner, int line)
{
    return (wf_flag *)(void *)(board->base[owner] + (size_t)line * LINE);
}

/* How many parts `from` has posted to `to`: in the sender's memory. */
static wf_flag *posted(const wf_board *board, int from, int to)
{
    return flag_at(board, from, to);
}

/* How many of them `to` has taken: in the receiver's memory. */
static wf_flag *taken(const wf_board *board, int from, int to)
{
    return flag_at(board, to, board->size + from);
}

/* Whether `user` has unmapped the block of `owner`: in the owner's memory. */
static wf_flag *gone(const wf_board *board, int owner, int user)
{
    return flag_at(board, owner, 2 * board->size + user);
}

static size_t head_bytes(int size)
{
    return ((size_t)(3 * size) * LINE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t wf_board_slot_bytes(const wf_ctx *ctx)
{
    return ctx->k->host ? SLOT : SLOT_DEVICE;
}

/* In host memory a ring is the sender's, in device memory the receiver's: writing to another device is faster than
 * reading from it. */
static char *slot(const wf_board *board, int from, int to, uint64_t part)
{
    const size_t bytes = wf_board_slot_bytes(board->ctx), at = (size_t)(part % (uint64_t)board->slots) * bytes;
    if (board->apart)
        return wf_blocks_piece(&board->blocks, to, from) + at;
    return board->base[from] + head_bytes(board->size) +
           (size_t)(to < from ? to : to - 1) * (size_t)board->slots * bytes + at;
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

static void tell(wf_board *board, int to)
{
    atomic_store_explicit(posted(board, board->rank, to), ++board->told[to], memory_order_release);
}

static void give_back(wf_board *board, int from)
{
    atomic_store_explicit(taken(board, from, board->rank), ++board->freed[from], memory_order_release);
}

wf_status wf_board_post(wf_board *board, int peer)
{
    const int to = board->place[peer];
    const uint64_t part = board->sent[to]++;
    if (board->apart)
        return board->ctx->k->event_record(board->ctx, board->packed[to][part % (uint64_t)board->slots], NULL);
    tell(board, to);
    return WF_OK;
}

bool wf_board_told(const wf_board *board, int peer)
{
    const int to = board->place[peer];
    return board->told[to] == board->sent[to];
}

void *wf_board_next(wf_board *board, int peer)
{
    const int from = board->place[peer];
    if (atomic_load_explicit(posted(board, from, board->rank), memory_order_acquire) <= board->taken[from])
        return NULL;
    return slot(board, from, board->rank, board->taken[from]);
}

wf_status wf_board_took(wf_board *board, int peer)
{
    const int from = board->place[peer];
    const uint64_t part = board->taken[from]++;
    if (board->apart)
        return board->ctx->k->event_record(board->ctx, board->unpacked[from][part % (uint64_t)board->slots], NULL);
    give_back(board, from);
    return WF_OK;
}

/* Raises the flags from `done` parts on, up to `last`, in their order. */
static wf_status raise_flags(wf_board *board, int place, wf_event *const *event, const uint64_t *done, uint64_t last,
                             void (*up)(wf_board *board, int place))
{
    for (bool over = true; over && *done < last;) {
        WF_TRY(board->ctx->k->event_done(board->ctx, event[*done % (uint64_t)board->slots], &over));
        if (over)
            up(board, place);
    }
    return WF_OK;
}

wf_status wf_board_poll(wf_board *board)
{
    for (int i = 0; board && board->apart && i < board->size; i++) {
        WF_TRY(raise_flags(board, i, board->packed[i], &board->told[i], board->sent[i], tell));
        WF_TRY(raise_flags(board, i, board->unpacked[i], &board->freed[i], board->taken[i], give_back));
    }
    return WF_OK;
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
    board->ctx = comm->family->ctx;
    board->size = comm->intra_size <= WF_BOARD_RANKS ? comm->intra_size : 0;
    board->apart = !comm->family->ctx->k->host;
    board->slots = board->size == 2 ? SLOTS : SLOTS_FEW;
    board->place = place;
    for (int r = 0; r < comm->size; r++)
        place[r] = -1;
    return board;
}

static wf_status make_events(wf_board *board)
{
    wf_ctx *ctx = board->ctx;
    for (int i = 0; i < board->size; i++)
        for (int k = 0; i != board->rank && k < board->slots; k++) {
            WF_TRY(ctx->k->event_new(ctx, &board->packed[i][k]));
            WF_TRY(ctx->k->event_new(ctx, &board->unpacked[i][k]));
        }
    return WF_OK;
}

/* Slots in device memory. Where that does not work, the flags stay unused. */
static wf_status connect_devices(wf_comm *comm, wf_board *board, bool fits, const int *rank)
{
    char why[WF_FAILURE_TEXT] = "";
    bool works = false;
    wf_blocks *b = &board->blocks;
    *b = (wf_blocks){.rank = board->rank, .size = fits ? board->size : 0};
    b->bytes = (size_t)(fits ? board->size - 1 : 0) * (size_t)board->slots * wf_board_slot_bytes(board->ctx);
    WF_TRY(wf_blocks_open(comm, b, rank, &works, why));
    if (works)
        return fits ? make_events(board) : WF_OK;
    snprintf(comm->board_why, sizeof comm->board_why, "%.150s", why);
    if (comm->rank == 0)
        wf_log(WF_LOG_DEBUG, "exchanges inside a node go through host memory: %s", why);
    for (int i = 0; fits && i < board->size; i++)
        board->place[rank[i]] = -1;
    return WF_OK;
}

static wf_status share_flags(wf_comm *comm, wf_board *board, bool fits, void **base, int *rank)
{
    char why[WF_FAILURE_TEXT] = "";
    const int size = comm->intra_size;
    const size_t rings = board->apart ? 0 : (size_t)(size - 1) * (size_t)board->slots * wf_board_slot_bytes(board->ctx);
    WF_TRY(wf_mpi_share(comm, fits ? head_bytes(size) + rings : ALIGNMENT, base, rank, why));
    if (!base[0])
        snprintf(comm->board_why, sizeof comm->board_why, "%.150s", why);
    if (!base[0] && comm->rank == 0)
        wf_log(WF_LOG_WARN, "exchanges inside a node go by messages: %s", why);
    for (int i = 0; fits && base[0] && i < size; i++) {
        board->base[i] = base[i];
        if (rank[i] == comm->rank)
            board->rank = i;
        board->place[rank[i]] = i;
    }
    return WF_OK;
}

/* A node of too many ranks takes part, but shares nothing. */
static wf_status connect(wf_comm *comm, wf_board *board)
{
    const int size = comm->intra_size;
    const bool fits = size > 1 && size <= WF_BOARD_RANKS;
    const size_t room = (size_t)size * (sizeof(void *) + sizeof(int));
    wf_status status = WF_OK;
    void **base = wf_malloc(comm->family->ctx, room);
    if (!base)
        return wf_error_code();
    int *rank = (int *)(void *)(base + size);
    WF_TRY_OUT(share_flags(comm, board, fits, base, rank));
    if (base[0] && board->apart)
        WF_TRY_OUT(connect_devices(comm, board, fits, rank));
    board->place[comm->rank] = -1;
out:
    free(base);
    return status;
}

wf_status wf_board_open(wf_comm *comm)
{
    const wf_traffic before = comm->traffic;
    comm->board_asked = true;
    if (comm->inter_size == comm->size)
        return WF_OK;
    WF_TRY(wf_move_barrier(comm)); /* none is elsewhere: what follows waits without looking */
    comm->board = board_new(comm);
    if (!comm->board)
        return wf_error_code();
    const wf_status status = connect(comm, comm->board);
    comm->traffic = before;
    return status;
}

static bool reaches_any(const wf_board *board, int size)
{
    for (int r = 0; r < size; r++)
        if (board->place[r] >= 0)
            return true;
    return false;
}

void wf_board_close(wf_comm *comm)
{
    wf_board *board = comm->board;
    if (!board)
        return;
    if (board->apart && reaches_any(board, comm->size))
        wf_blocks_close(board->ctx, &board->blocks, gone, board);
    for (int i = 0; i < WF_BOARD_RANKS; i++)
        for (int k = 0; k < SLOTS && board->apart; k++) {
            board->ctx->k->event_free(board->ctx, board->packed[i][k]);
            board->ctx->k->event_free(board->ctx, board->unpacked[i][k]);
        }
    free(board->place);
    free(board);
    comm->board = NULL;
}

static wf_status enter_way(wf_comm *comm)
{
    const wf_record record = wf_record_plain("set-up", -1);
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_call_enter(comm, &record));
    if (!comm->nccl && !comm->board_asked)
        WF_TRY(wf_board_open(comm));
    return wf_call_settle(comm);
}

wf_status wf_exchange_way(wf_comm *comm, char *text, size_t size)
{
    WF_NEED(comm);
    if (comm->size > 1)
        WF_TRY(wf_call_end(comm, "set-up", enter_way(comm)));
    const bool host = comm->family->ctx->k->host, shared = comm->board && reaches_any(comm->board, comm->size);
    snprintf(text, size, "%s%s%s%.150s",
             comm->size == 1 ? "one rank: nothing to send"
             : comm->nccl    ? "by NCCL"
             : !shared       ? (host ? "by messages" : "by messages through page-locked host memory")
             : host          ? "in host memory that the ranks of a node share"
                             : "in device memory that the ranks of a node map from each other",
             comm->size > 1 && !comm->nccl && comm->inter_size > 1 && shared ? ", by messages between nodes" : "",
             comm->board_why[0] ? ": " : "", comm->board_why);
    return WF_OK;
}
