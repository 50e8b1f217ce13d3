/* Exchanges by the native transport: all messages of one are a group, which is launched at once, and which the device
 * waits for. The engine's schedule has a step for its begin, its end, and the wait of the device. */
#include "comm/mesh/mesh_impl.h"

static wf_status group_begin(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    return wf_native_begin(own);
}

static wf_status group_end(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    return wf_transport_native.end(own, false);
}

static wf_status group_join(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    return wf_transport_native.join(own);
}

static wf_status group_start(void *own, wf_transfer *t)
{
    return t->sending ? wf_native_send(own, t->data, t->bytes, t->peer)
                      : wf_native_recv(own, t->data, t->bytes, t->peer);
}

/* Over for the host: what the device does next waits for it. */
static wf_status group_test(void *own, wf_transfer *t)
{
    t->done = true;
    t->arrived = t->bytes;
    return WF_OK;
}

static void group_cancel(void *own, wf_transfer *t)
{
    t->done = true;
}

const wf_exchange_native *wf_exchange_group(wf_comm *comm, wf_exchange_native *group)
{
    *group = (wf_exchange_native){.begin = group_begin, .end = group_end, .join = group_join, .own = comm};
    return comm->native ? group : NULL;
}

const wf_link *wf_exchange_link(wf_exchange *exchange)
{
    wf_comm *comm = exchange->comm;
    exchange->group = (wf_link){.own = comm, .start = group_start, .test = group_test, .cancel = group_cancel};
    return comm->native ? &exchange->group : NULL;
}
