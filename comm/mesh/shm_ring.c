/* Rings of slots between the ranks of a node, in shared host memory or mapped device memory: flags, slots, and their
 * set-up. The exchange packs into a slot, and the receiver unpacks from there. It never waits. */
#include "comm/mesh/mesh_impl.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>

#define LINE        128 /* bytes between flags, so that ranks do not disturb each other's caches */
#define SLOTS       4   /* of a pair where two ranks share a node */
#define SLOTS_FEW   2   /* of a pair otherwise */
#define ALIGNMENT   4096
#define SLOT        ((size_t)128 << 10)
#define SLOT_DEVICE ((size_t)1 << 20) /* a part costs the host a look at an event on both sides */

struct wf_shm_ring {
    wf_ctx *ctx;
    int rank, size; /* in the node */
    int slots;
    wf_shm_window window;
    bool device;                   /* slots are in device memory that is not the host's */
    wf_ipc_buffers buffers;        /* where they are */
    int *place;                    /* in the node, of each rank of the communicator; -1: on another node */
    char *base[WF_SHM_RING_RANKS]; /* of each rank's memory: flags, then, in host memory, a ring for each other rank */
    uint64_t sent[WF_SHM_RING_RANKS];    /* parts to each rank of the node */
    uint64_t told[WF_SHM_RING_RANKS];    /* of them, those whose flag is raised */
    uint64_t taken[WF_SHM_RING_RANKS];   /* parts from each */
    uint64_t freed[WF_SHM_RING_RANKS];   /* of them, those whose flag is raised */
    uint64_t room_to[WF_SHM_RING_RANKS]; /* parts that may be sent before looking again */
    wf_event *packed[WF_SHM_RING_RANKS][SLOTS], *unpacked[WF_SHM_RING_RANKS][SLOTS];
};

static wf_flag *flag_at(const wf_shm_ring *ring, int owner, int line)
{
    return (wf_flag *)(void *)(ring->base[owner] + (size_t)line * LINE);
}

/* How many parts `from` has posted to `to`: in the sender's memory. */
static wf_flag *posted(const wf_shm_ring *ring, int from, int to)
{
    return flag_at(ring, from, to);
}

/* How many of them `to` has taken: in the receiver's memory. */
static wf_flag *taken(const wf_shm_ring *ring, int from, int to)
{
    return flag_at(ring, to, ring->size + from);
}

/* Whether `user` has unmapped the block of `owner`: in the owner's memory. */
static wf_flag *gone(const wf_shm_ring *ring, int owner, int user)
{
    return flag_at(ring, owner, 2 * ring->size + user);
}

static size_t head_bytes(int size)
{
    return ((size_t)(3 * size) * LINE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t wf_shm_ring_slot_bytes(const wf_ctx *ctx)
{
    return ctx->k->host ? SLOT : SLOT_DEVICE;
}

/* In host memory a ring is the sender's, in device memory the receiver's: writing to another device is faster than
 * reading from it. */
static char *slot(const wf_shm_ring *ring, int from, int to, uint64_t part)
{
    const size_t bytes = wf_shm_ring_slot_bytes(ring->ctx), at = (size_t)(part % (uint64_t)ring->slots) * bytes;
    if (ring->device)
        return wf_ipc_buffers_piece(&ring->buffers, to, from) + at;
    return ring->base[from] + head_bytes(ring->size) + (size_t)(to < from ? to : to - 1) * (size_t)ring->slots * bytes +
           at;
}

bool wf_shm_ring_reaches(const wf_shm_ring *ring, int peer)
{
    return ring && ring->place[peer] >= 0;
}

void *wf_shm_ring_slot(wf_shm_ring *ring, int peer)
{
    const int to = ring->place[peer];
    if (ring->sent[to] == ring->room_to[to])
        /* The receiver's flag is read only when the last known room is used up: each look takes its cache line away
         * from it. */
        ring->room_to[to] =
            atomic_load_explicit(taken(ring, ring->rank, to), memory_order_acquire) + (uint64_t)ring->slots;
    return ring->sent[to] < ring->room_to[to] ? slot(ring, ring->rank, to, ring->sent[to]) : NULL;
}

static void tell(wf_shm_ring *ring, int to)
{
    /* Release: whoever sees the number sees the part. */
    atomic_store_explicit(posted(ring, ring->rank, to), ++ring->told[to], memory_order_release);
}

static void give_back(wf_shm_ring *ring, int from)
{
    atomic_store_explicit(taken(ring, from, ring->rank), ++ring->freed[from], memory_order_release);
}

wf_status wf_shm_ring_post(wf_shm_ring *ring, int peer)
{
    const int to = ring->place[peer];
    const uint64_t part = ring->sent[to]++;
    if (ring->device)
        return ring->ctx->k->event_record(ring->ctx, ring->packed[to][part % (uint64_t)ring->slots], NULL);
    tell(ring, to);
    return WF_OK;
}

bool wf_shm_ring_told(const wf_shm_ring *ring, int peer)
{
    const int to = ring->place[peer];
    return ring->told[to] == ring->sent[to];
}

void *wf_shm_ring_next(wf_shm_ring *ring, int peer)
{
    const int from = ring->place[peer];
    if (atomic_load_explicit(posted(ring, from, ring->rank), memory_order_acquire) <= ring->taken[from])
        return NULL;
    return slot(ring, from, ring->rank, ring->taken[from]);
}

wf_status wf_shm_ring_took(wf_shm_ring *ring, int peer)
{
    const int from = ring->place[peer];
    const uint64_t part = ring->taken[from]++;
    if (ring->device)
        return ring->ctx->k->event_record(ring->ctx, ring->unpacked[from][part % (uint64_t)ring->slots], NULL);
    give_back(ring, from);
    return WF_OK;
}

/* Raises the flags from `done` parts on, up to `last`, in their order. */
static wf_status raise_flags(wf_shm_ring *ring, int place, wf_event *const *event, const uint64_t *done, uint64_t last,
                             void (*up)(wf_shm_ring *ring, int place))
{
    for (bool over = true; over && *done < last;) {
        WF_TRY(ring->ctx->k->event_done(ring->ctx, event[*done % (uint64_t)ring->slots], &over));
        if (over)
            up(ring, place);
    }
    return WF_OK;
}

wf_status wf_shm_ring_poll(wf_shm_ring *ring)
{
    for (int i = 0; ring && ring->device && i < ring->size; i++) {
        WF_TRY(raise_flags(ring, i, ring->packed[i], &ring->told[i], ring->sent[i], tell));
        WF_TRY(raise_flags(ring, i, ring->unpacked[i], &ring->freed[i], ring->taken[i], give_back));
    }
    return WF_OK;
}

static wf_shm_ring *ring_new(wf_comm *comm)
{
    wf_shm_ring *ring = wf_calloc(comm->shared->ctx, 1, sizeof *ring);
    int *place = wf_malloc(comm->shared->ctx, (size_t)comm->size * sizeof *place);
    if (!ring || !place) {
        free(ring);
        free(place);
        return NULL;
    }
    ring->ctx = comm->shared->ctx;
    ring->size = comm->intra_size <= WF_SHM_RING_RANKS ? comm->intra_size : 0;
    ring->device = !comm->shared->ctx->k->host;
    ring->slots = ring->size == 2 ? SLOTS : SLOTS_FEW;
    ring->place = place;
    for (int r = 0; r < comm->size; r++)
        place[r] = -1;
    return ring;
}

static wf_status make_events(wf_shm_ring *ring)
{
    wf_ctx *ctx = ring->ctx;
    for (int i = 0; i < ring->size; i++)
        for (int k = 0; i != ring->rank && k < ring->slots; k++) {
            WF_TRY(ctx->k->event_new(ctx, &ring->packed[i][k]));
            WF_TRY(ctx->k->event_new(ctx, &ring->unpacked[i][k]));
        }
    return WF_OK;
}

/* Slots in device memory. Where that does not work, the flags stay unused. */
static wf_status connect_devices(wf_comm *comm, wf_shm_ring *ring, bool fits, const int *rank)
{
    char why[WF_FAILURE_TEXT] = "";
    bool works = false;
    wf_ipc_buffers *b = &ring->buffers;
    *b = (wf_ipc_buffers){.rank = ring->rank, .size = fits ? ring->size : 0};
    b->bytes = (size_t)(fits ? ring->size - 1 : 0) * (size_t)ring->slots * wf_shm_ring_slot_bytes(ring->ctx);
    WF_TRY(wf_ipc_buffers_open(comm, b, rank, &works, why));
    if (works)
        return fits ? make_events(ring) : WF_OK;
    snprintf(comm->ring_why, sizeof comm->ring_why, "%.150s", why);
    if (comm->rank == 0)
        wf_log(WF_LOG_DEBUG, "exchanges inside a node go through host memory: %s", why);
    for (int i = 0; fits && i < ring->size; i++)
        ring->place[rank[i]] = -1;
    return WF_OK;
}

static wf_status share_flags(wf_comm *comm, wf_shm_ring *ring, bool fits, void **base, int *rank)
{
    char why[WF_FAILURE_TEXT] = "";
    const int size = comm->intra_size;
    const size_t rings =
        ring->device ? 0 : (size_t)(size - 1) * (size_t)ring->slots * wf_shm_ring_slot_bytes(ring->ctx);
    WF_TRY(wf_shm_window_open(comm, fits ? head_bytes(size) + rings : ALIGNMENT, &ring->window, base, rank, why));
    if (!base[0])
        snprintf(comm->ring_why, sizeof comm->ring_why, "%.150s", why);
    if (!base[0] && comm->rank == 0)
        wf_log(WF_LOG_WARN, "exchanges inside a node go by messages: %s", why);
    for (int i = 0; fits && base[0] && i < size; i++) {
        ring->base[i] = base[i];
        if (rank[i] == comm->rank)
            ring->rank = i;
        ring->place[rank[i]] = i;
    }
    return WF_OK;
}

/* A node of too many ranks takes part, but shares nothing. */
static wf_status connect(wf_comm *comm, wf_shm_ring *ring)
{
    const int size = comm->intra_size;
    const bool fits = size > 1 && size <= WF_SHM_RING_RANKS;
    const size_t room = (size_t)size * (sizeof(void *) + sizeof(int));
    wf_status status = WF_OK;
    void **base = wf_malloc(comm->shared->ctx, room);
    if (!base)
        return wf_error_code();
    int *rank = (int *)(void *)(base + size);
    WF_TRY_OUT(share_flags(comm, ring, fits, base, rank));
    if (base[0] && ring->device)
        WF_TRY_OUT(connect_devices(comm, ring, fits, rank));
    ring->place[comm->rank] = -1;
out:
    free(base);
    return status;
}

wf_status wf_shm_ring_open(wf_comm *comm)
{
    const wf_traffic before = comm->traffic;
    comm->ring_asked = true;
    if (comm->inter_size == comm->size)
        return WF_OK;
    WF_TRY(wf_coll_barrier(comm)); /* none is elsewhere: what follows waits without looking */
    comm->ring = ring_new(comm);
    if (!comm->ring)
        return wf_error_code();
    const wf_status status = connect(comm, comm->ring);
    comm->traffic = before;
    return status;
}

static bool reaches_any(const wf_shm_ring *ring, int size)
{
    for (int r = 0; r < size; r++)
        if (ring->place[r] >= 0)
            return true;
    return false;
}

void wf_shm_ring_close(wf_comm *comm)
{
    wf_shm_ring *ring = comm->ring;
    if (!ring)
        return;
    if (ring->device && reaches_any(ring, comm->size))
        wf_ipc_buffers_close(ring->ctx, &ring->buffers, gone, ring);
    for (int i = 0; i < WF_SHM_RING_RANKS; i++)
        for (int k = 0; k < SLOTS && ring->device; k++) {
            ring->ctx->k->event_free(ring->ctx, ring->packed[i][k]);
            ring->ctx->k->event_free(ring->ctx, ring->unpacked[i][k]);
        }
    if (!ring->device) /* others look there whether this rank has unmapped their device memory */
        wf_shm_window_close(&ring->window);
    free(ring->place);
    free(ring);
    comm->ring = NULL;
}

static wf_status enter_way(wf_comm *comm)
{
    const wf_call_record record = wf_call_record_plain("set-up", -1);
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_enter(comm, &record));
    if (!comm->nccl && !comm->ring_asked)
        WF_TRY(wf_shm_ring_open(comm));
    return wf_guard_settle(comm);
}

static const char *way_of(const wf_comm *comm, bool shared)
{
    const bool host = comm->shared->ctx->k->host;
    if (comm->size == 1)
        return "one rank: nothing to send";
    if (comm->nccl)
        return "by NCCL";
    if (!shared)
        return host ? "by messages" : "by messages through page-locked host memory";
    return host ? "in host memory that the ranks of a node share"
                : "in device memory that the ranks of a node map from each other";
}

wf_status wf_exchange_way(wf_comm *comm, char *text, size_t size)
{
    WF_NEED(comm);
    if (comm->size > 1)
        WF_TRY(wf_guard_end(comm, "set-up", enter_way(comm)));
    const bool shared = comm->ring && reaches_any(comm->ring, comm->size);
    snprintf(text, size, "%s%s%s%.150s", way_of(comm, shared),
             comm->size > 1 && !comm->nccl && comm->inter_size > 1 && shared ? ", by messages between nodes" : "",
             comm->ring_why[0] ? ": " : "", comm->ring_why);
    return WF_OK;
}
