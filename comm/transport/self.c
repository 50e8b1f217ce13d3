/* The transport of a communicator of one rank, which has nobody to talk to. Collectives never reach it; whoever does
 * has asked for a peer that does not exist. */
#include "comm/transport/transport_impl.h"

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

static void close_self(wf_comm *comm)
{
}

const wf_transport wf_transport_self = {
    .name = "self",
    .start = start,
    .test = test,
    .cancel = cancel,
    .close = close_self,
};
