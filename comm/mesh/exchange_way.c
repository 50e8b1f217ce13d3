/* Rings through which exchanges inside a node pass, in memory that its ranks share, of the host or of their devices.
 * They are made at the first exchange that needs them, and described to the user. */
#include "comm/mesh/mesh_impl.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>

#define SLOT_DEVICE ((size_t)1 << 20) /* a part costs the host a look at an event on both sides */

/* Places slots in device memory. A ring is the receiver's, since writing to another device is faster than reading from
 * it. */
static void place_slots(const wf_comm *comm, wf_pairs *pairs, const wf_ipc_buffers *b)
{
    const int own = comm->intra_rank;
    for (int i = 0; i < b->size; i++) {
        if (i == own)
            continue;
        pairs->slots[own][i] = wf_ipc_buffers_piece(b, i, own);
        pairs->slots[i][own] = wf_ipc_buffers_piece(b, own, i);
    }
}

static wf_status map_devices(wf_comm *comm, wf_pairs *pairs)
{
    wf_agreed *agreed = wf_engine_agreed(comm);
    const int size = comm->intra_size;
    const bool fits = size > 1 && size <= WF_PAIR_RANKS;
    const int32_t *member = wf_group_node(agreed, comm->rank).list;
    char why[WF_FAILURE_TEXT] = "";
    wf_ipc_buffers *b = wf_calloc(comm->shared->ctx, 1, sizeof *b);
    if (!b)
        return wf_error_code();
    pairs->ipc = b;
    agreed->pair_slot_bytes = SLOT_DEVICE;
    *b = (wf_ipc_buffers){.rank = comm->intra_rank, .size = fits ? size : 0, .member = member};
    b->bytes = (size_t)(fits ? size - 1 : 0) * (size_t)wf_pair_slots(agreed, comm->rank) * SLOT_DEVICE;
    WF_TRY(wf_ipc_buffers_open(comm, b, why));
    agreed->pairs = !why[0];
    if (agreed->pairs) {
        place_slots(comm, pairs, b);
        return WF_OK;
    }
    snprintf(pairs->why, sizeof pairs->why, "%.150s", why);
    if (comm->rank == 0)
        wf_log_write(WF_LOG_DEBUG, "exchanges inside a node go through host memory: %s", why);
    free(b);
    pairs->ipc = NULL;
    return WF_OK;
}

static wf_status share_pair_rings(wf_comm *comm)
{
    wf_agreed *agreed = wf_engine_agreed(comm);
    wf_pairs *pairs = &comm->engine->pairs;
    char why[WF_FAILURE_TEXT] = "";
    WF_TRY(wf_coll_barrier(comm)); /* none is elsewhere: what follows waits without looking */
    WF_TRY(wf_pairs_open(comm, agreed, pairs, why));
    if (pairs->flags && agreed->staged)
        return map_devices(comm, pairs);
    agreed->pairs = pairs->flags != NULL;
    if (agreed->pairs)
        return WF_OK;
    snprintf(pairs->why, sizeof pairs->why, "%.150s", why);
    if (comm->rank == 0)
        wf_log_write(WF_LOG_WARN, "exchanges inside a node go by messages: %s", why);
    return WF_OK;
}

static bool moves_natively(const wf_comm *comm)
{
    return wf_engine_agreed(comm)->native;
}

wf_status wf_exchange_open_way(wf_comm *comm)
{
    const wf_traffic before = comm->traffic;
    if (moves_natively(comm))
        return WF_OK;
    WF_TRY(wf_comm_forbid_capture(comm, "exchange halos by messages or mapped memory, which the host looks after"));
    if (comm->engine->pairs.asked)
        return WF_OK;
    comm->engine->pairs.asked = true;
    if (comm->inter_size == comm->size)
        return WF_OK;
    const wf_status status = share_pair_rings(comm);
    comm->traffic = before;
    return status;
}

void wf_exchange_unshare(wf_comm *comm)
{
    wf_pairs *pairs = comm->engine ? &comm->engine->pairs : NULL;
    if (!pairs)
        return;
    if (pairs->ipc && pairs->ipc->size > 0)
        wf_ipc_buffers_close(comm, pairs->ipc);
    free(pairs->ipc);
    pairs->ipc = NULL;
}

static wf_status enter_way(wf_comm *comm)
{
    const wf_call call = {.operation = WF_CALL_BARRIER, .name = "set-up"};
    WF_TRY(wf_guard_enter(comm, &call));
    WF_TRY(wf_exchange_open_way(comm));
    return wf_guard_settle(comm);
}

static bool shares_any(const wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++)
        if (wf_pair_shares(wf_engine_agreed(comm), comm->rank, r))
            return true;
    return false;
}

static const char *way_of(const wf_comm *comm, bool shared)
{
    const bool host = comm->shared->ctx->k->host;
    if (comm->size == 1)
        return "one rank: nothing to send";
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
    const bool shared = shares_any(comm);
    const wf_pairs *pairs = &comm->engine->pairs;
    if (comm->size > 1 && moves_natively(comm))
        snprintf(text, size, "by %s", wf_transport_native.name);
    else
        snprintf(text, size, "%s%s%s%.150s", way_of(comm, shared),
                 comm->size > 1 && comm->inter_size > 1 && shared ? ", by messages between nodes" : "",
                 pairs->why[0] ? ": " : "", pairs->why);
    return WF_OK;
}
