#include "comm/transport/transport_impl.h"

#include <string.h>

static wf_status start(wf_comm *comm, wf_transfer *transfer)
{
    WF_FAIL(WF_ERR_ARGUMENT, "a communicator of one rank has nobody to exchange messages with");
}

static wf_status test(wf_comm *comm, wf_transfer *transfer)
{
    transfer->done = true;
    return WF_OK;
}

static void cancel(wf_comm *comm, wf_transfer *transfer)
{
    transfer->done = true;
}

static wf_status bcast(wf_comm *comm, void *data, size_t bytes, int root, wf_transfer *transfer)
{
    transfer->done = true;
    return WF_OK;
}

static wf_status allreduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                           wf_transfer *transfer)
{
    if (x != y && count > 0)
        memcpy(y, x, (size_t)count * wf_dtype_size(dtype));
    transfer->done = true;
    return WF_OK;
}

static void close_self(wf_comm *comm)
{
}

const wf_transport wf_transport_self = {
    .name = "self",
    .start = start,
    .test = test,
    .cancel = cancel,
    .bcast = bcast,
    .allreduce = allreduce,
    .close = close_self,
};
