/* Send and receive of tensors between two ranks, by the slots of peer_slots.c. A failure on one side ends the call on
 * the other, as in collectives. */
#include "comm/collective/collective_impl.h"

static wf_status send(wf_comm *comm, const wf_tensor *x, int to, int tag)
{
    WF_TRY(wf_comm_alive(comm));
    WF_NEED(x);
    WF_TRY(wf_guard_point(comm, "send", to, tag));
    wf_peer_slots_start(comm, WF_WAY_POINT);
    comm->slot[to].out = x;
    return wf_peer_slots_exchange(comm);
}

wf_status wf_send(wf_comm *comm, const wf_tensor *x, int to, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "send", send(comm, x, to, tag));
}

/* The frame, type and shape, travels with every message, so a receiver without a tensor needs nothing more from the
 * sender. */
wf_status wf_send_new(wf_comm *comm, const wf_tensor *x, int to, int tag)
{
    return wf_send(comm, x, to, tag);
}

static wf_status recv(wf_comm *comm, wf_tensor *y, int from, int tag)
{
    WF_TRY(wf_comm_alive(comm));
    WF_NEED(y);
    WF_TRY(wf_guard_point(comm, "recv", from, tag));
    wf_peer_slots_start(comm, WF_WAY_POINT);
    comm->slot[from].in = y;
    return wf_peer_slots_exchange(comm);
}

wf_status wf_recv(wf_comm *comm, wf_tensor *y, int from, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "recv", recv(comm, y, from, tag));
}

static wf_status sendrecv(wf_comm *comm, const wf_tensor *x, int to, wf_tensor *y, int from, int tag)
{
    WF_TRY(wf_comm_alive(comm));
    WF_NEED(x);
    WF_NEED(y);
    /* Both partners are checked before anything is sent. */
    WF_TRY(wf_guard_point(comm, "sendrecv", to, tag));
    WF_TRY(wf_guard_point(comm, "sendrecv", from, tag));
    wf_peer_slots_start(comm, WF_WAY_POINT);
    comm->slot[to].out = x;
    comm->slot[from].in = y;
    return wf_peer_slots_exchange(comm);
}

wf_status wf_sendrecv(wf_comm *comm, const wf_tensor *x, int to, wf_tensor *y, int from, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "sendrecv", sendrecv(comm, x, to, y, from, tag));
}

static wf_status recv_new(wf_comm *comm, int from, int tag, wf_tensor **y)
{
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_point(comm, "recv", from, tag));
    wf_peer_slots_start(comm, WF_WAY_POINT);
    /* The frame comes first and says which tensor to make; the data follow. */
    WF_TRY(wf_peer_slots_look_new(comm, from, y));
    return wf_peer_slots_take(comm, *y, from);
}

wf_tensor *wf_recv_new(wf_comm *comm, int from, int tag)
{
    wf_tensor *y = NULL;
    WF_NEED_NULL(comm);
    if (wf_guard_end(comm, "recv", recv_new(comm, from, tag, &y)) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}
