/* The ring of a node: memory that its ranks share, for schedules. One window for the communicator, made once: of every
 * rank three flags and a few slots of one piece each. */
#include "comm/engine/engine_impl.h"

#include <stdlib.h>

#define HEAD ((size_t)4096)

_Static_assert(WF_FLAGS *WF_FLAG_LINE <= 4096, "the flags are in the head of a segment");

static wf_status list(wf_comm *comm, wf_ring *ring)
{
    ring->flags = wf_calloc(comm->shared->ctx, 2 * (size_t)comm->size, sizeof *ring->flags);
    if (!ring->flags)
        return wf_error_code();
    ring->slots = ring->flags + comm->size;
    return WF_OK;
}

static wf_status share(wf_comm *comm, const wf_agreed *agreed, wf_ring *ring, void **base, int *rank,
                       char why[WF_FAILURE_TEXT])
{
    const size_t bytes = HEAD + (size_t)agreed->ring_slots * agreed->ring_slot_bytes;
    WF_TRY(wf_shm_window_open(comm, bytes, &ring->window, base, rank, why));
    if (!base[0])
        return WF_OK;
    WF_TRY(list(comm, ring));
    for (int i = 0; i < comm->intra_size; i++) {
        ring->flags[rank[i]] = base[i];
        ring->slots[rank[i]] = (char *)base[i] + HEAD;
    }
    return WF_OK;
}

wf_status wf_ring_open(wf_comm *comm, const wf_agreed *agreed, wf_ring *ring, char why[WF_FAILURE_TEXT])
{
    void **base = wf_calloc(comm->shared->ctx, (size_t)comm->intra_size, sizeof *base);
    int *rank = wf_calloc(comm->shared->ctx, (size_t)comm->intra_size, sizeof *rank);
    const wf_status status = base && rank ? share(comm, agreed, ring, base, rank, why) : wf_error_code();
    free(base);
    free(rank);
    return status;
}

void wf_ring_close(wf_ring *ring)
{
    wf_shm_window_close(&ring->window);
    free(ring->flags);
    *ring = (wf_ring){0};
}
