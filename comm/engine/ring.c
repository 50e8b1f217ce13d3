/* The rings of a node: memory that its ranks share, for schedules. One window for the communicator, made once: of every
 * rank two counting flags, the guard's records where all ranks are of one node, and a few slots of one piece each,
 * every slot behind a flag of its own. Another one for exchanges: of every rank flags and slots for each other rank. */
#include "comm/engine/engine_impl.h"

#include <stdlib.h>

#define HEAD ((size_t)4096)

_Static_assert(WF_FLAGS *WF_FLAG_LINE <= 4096, "the flags are in the head of a segment");
_Static_assert((sizeof(wf_ring_flag) + WF_SLOT_HEAD) % 64 == 0, "slots begin with a cache line");

_Static_assert(3 * WF_PAIR_RANKS * WF_FLAG_LINE <= 4096, "the flags of pairs are in the head of a segment");

static wf_status list(wf_comm *comm, wf_ring *ring)
{
    ring->flags = wf_calloc(comm->shared->ctx, 2 * (size_t)comm->size, sizeof *ring->flags);
    if (!ring->flags)
        return wf_error_code();
    ring->slots = ring->flags + comm->size;
    ring->seen = wf_calloc(comm->shared->ctx, (size_t)comm->size * WF_FLAGS, sizeof *ring->seen);
    if (!ring->seen)
        return wf_error_code();
    return WF_OK;
}

static size_t record_bytes(const wf_agreed *agreed)
{
    return agreed->nodes == 1 ? (wf_control_shared_bytes() + HEAD - 1) / HEAD * HEAD : 0;
}

/* With the flag in front of it. */
static size_t slot_bytes(const wf_agreed *agreed)
{
    return sizeof(wf_ring_flag) + WF_SLOT_HEAD + agreed->ring_slot_bytes;
}

wf_status wf_ring_open(wf_comm *comm, const wf_agreed *agreed, wf_ring *ring, char why[WF_FAILURE_TEXT])
{
    const wf_group node = wf_group_node(agreed, comm->rank);
    const size_t before = HEAD + record_bytes(agreed);
    const size_t bytes = before + (size_t)agreed->ring_slots * slot_bytes(agreed);
    wf_shm_window *window = &ring->window;
    WF_TRY(wf_shm_window_open(comm, bytes, window, why));
    if (!window->base)
        return WF_OK;
    WF_TRY(list(comm, ring));
    for (int i = 0; i < node.size; i++) {
        ring->flags[node.list[i]] = window->base + (size_t)i * window->segment;
        ring->slots[node.list[i]] = ring->flags[node.list[i]] + before;
    }
    return agreed->nodes == 1 ? wf_control_share(comm, window->base + HEAD, window->segment) : WF_OK;
}

char *wf_ring_slot(const wf_ring *ring, const wf_agreed *agreed, const wf_operand *slot)
{
    const int64_t place = (slot->index + ring->pieces) % agreed->ring_slots;
    return ring->slots[slot->owner] + (size_t)place * slot_bytes(agreed) + sizeof(wf_ring_flag);
}

void wf_ring_close(wf_ring *ring)
{
    wf_shm_window_close(&ring->window);
    free(ring->flags);
    free(ring->seen);
    *ring = (wf_ring){0};
}

/* --- rings of pairs ----------------------------------------------------------------------------------------------- */

/* A ring in host memory is the sender's. */
static void place_slots(const wf_agreed *agreed, wf_pairs *pairs, int rank, int size)
{
    const size_t ring = (size_t)wf_pair_slots(agreed, rank) * agreed->pair_slot_bytes;
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++)
            pairs->slots[from][to] = pairs->window.base + (size_t)from * pairs->window.segment + HEAD +
                                     (size_t)(to < from ? to : to - 1) * ring;
}

wf_status wf_pairs_open(wf_comm *comm, const wf_agreed *agreed, wf_pairs *pairs, char why[WF_FAILURE_TEXT])
{
    const int size = comm->intra_size;
    const int32_t *member = wf_group_node(agreed, comm->rank).list;
    const bool slots = size > 1 && size <= WF_PAIR_RANKS && !agreed->staged;
    const size_t ring = (size_t)wf_pair_slots(agreed, comm->rank) * agreed->pair_slot_bytes;
    WF_TRY(wf_shm_window_open(comm, HEAD + (slots ? (size_t)(size - 1) * ring : 0), &pairs->window, why));
    if (!pairs->window.base)
        return WF_OK;
    pairs->flags = wf_calloc(comm->shared->ctx, (size_t)comm->size, sizeof *pairs->flags);
    if (!pairs->flags)
        return wf_error_code();
    for (int i = 0; i < size; i++)
        pairs->flags[member[i]] = pairs->window.base + (size_t)i * pairs->window.segment;
    if (slots)
        place_slots(agreed, pairs, comm->rank, size);
    return WF_OK;
}

wf_ring_flag *wf_pairs_flag(const wf_pairs *pairs, const wf_agreed *agreed, int owner, int user)
{
    const int line = 2 * WF_PAIR_RANKS + agreed->place[user];
    return (wf_ring_flag *)(void *)(pairs->flags[owner] + (size_t)line * WF_FLAG_LINE);
}

void wf_pairs_close(wf_pairs *pairs, const wf_agreed *agreed)
{
    if (!agreed->staged)
        wf_shm_window_close(&pairs->window);
    free(pairs->flags);
    *pairs = (wf_pairs){0};
}
