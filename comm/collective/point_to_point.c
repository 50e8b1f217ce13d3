/* Send and receive of tensors between two ranks, by the lists of lists.c. A failure on one side ends the call on
 * the other, as in collectives. */
#include "comm/collective/collective_impl.h"

/* x to one rank, and y from one; NULL: nothing goes, or comes. */
static wf_status exchange_pair(wf_comm *comm, const char *operation, const wf_tensor *x, int to, wf_tensor *y, int from,
                               int tag)
{
    /* Both partners are checked before anything is sent. */
    if (x)
        WF_TRY(wf_guard_point(comm, operation, to, tag));
    if (y)
        WF_TRY(wf_guard_point(comm, operation, from, tag));
    wf_lists_begin(comm);
    comm->call.stays = wf_native_least(comm);
    if (x)
        comm->call.outgoing[to].tensor = x;
    if (y)
        comm->call.incoming[from].tensor = y;
    return wf_lists_exchange(comm);
}

static wf_status missing(const char *operation, const char *what)
{
    return wf_error_need(operation, what, __FILE__, __LINE__);
}

wf_status wf_send(wf_comm *comm, const wf_tensor *x, int to, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "send", x ? exchange_pair(comm, "send", x, to, NULL, -1, tag) : missing("send", "x"));
}

/* The frame, type and shape, travels with every message, so a receiver without a tensor needs nothing more from the
 * sender. */
wf_status wf_send_new(wf_comm *comm, const wf_tensor *x, int to, int tag)
{
    return wf_send(comm, x, to, tag);
}

wf_status wf_recv(wf_comm *comm, wf_tensor *y, int from, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "recv", y ? exchange_pair(comm, "recv", NULL, -1, y, from, tag) : missing("recv", "y"));
}

wf_status wf_sendrecv(wf_comm *comm, const wf_tensor *x, int to, wf_tensor *y, int from, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "sendrecv",
                        x && y ? exchange_pair(comm, "sendrecv", x, to, y, from, tag)
                               : missing("sendrecv", x ? "y" : "x"));
}

static wf_status recv_new(wf_comm *comm, int from, int tag, size_t stays, wf_tensor **y)
{
    WF_TRY(wf_guard_point(comm, "recv", from, tag));
    /* The frame comes first and says which tensor to make; the data follow. */
    WF_TRY(wf_lists_look_new(comm, from, y));
    return wf_lists_take(comm, *y, from, stays);
}

wf_tensor *wf_coll_recv_new(wf_comm *comm, int from, int tag, size_t stays)
{
    wf_tensor *y = NULL;
    if (wf_guard_end(comm, "recv", recv_new(comm, from, tag, stays, &y)) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

wf_tensor *wf_recv_new(wf_comm *comm, int from, int tag)
{
    WF_NEED_NULL(comm);
    return wf_coll_recv_new(comm, from, tag, wf_native_least(comm));
}

static wf_status send_bytes(wf_comm *comm, const void *data, size_t bytes, int to, int tag)
{
    const wf_frame frame = {.dtype = WF_U8, .rank = 1, .dim = {(int64_t)bytes}};
    wf_engine_entry *flight = NULL;
    wf_status status;
    WF_CHECK(data || bytes == 0, WF_ERR_ARGUMENT, "data is NULL, and bytes is %zu", bytes);
    WF_TRY(wf_guard_point(comm, "send_bytes", to, tag));
    WF_TRY_OUT(wf_lists_post(comm, &frame, data, bytes, to, &flight));
    WF_TRY_OUT(wf_engine_wait(comm, flight));
out:
    wf_engine_end(comm, &flight, status);
    return status;
}

wf_status wf_send_bytes(wf_comm *comm, const void *data, size_t bytes, int to, int tag)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "send_bytes", send_bytes(comm, data, bytes, to, tag));
}

static wf_status receive_bytes(wf_comm *comm, char **data, size_t *bytes, int from, int tag)
{
    WF_TRY(wf_guard_point(comm, "receive_bytes", from, tag));
    WF_TRY(wf_lists_look_bytes(comm, from, bytes));
    *data = wf_calloc(comm->shared->ctx, *bytes + 1, 1);
    return *data ? wf_coll_receive(comm, *data, *bytes, from) : wf_error_code();
}

void *wf_receive_bytes(wf_comm *comm, size_t *bytes, int from, int tag)
{
    char *data = NULL;
    WF_NEED_NULL(comm);
    if (wf_guard_end(comm, "receive_bytes",
                     bytes ? receive_bytes(comm, &data, bytes, from, tag) : missing("receive_bytes", "bytes")) == WF_OK)
        return data;
    wf_comm_release(comm, data);
    return wf_error_null();
}
