/* Calls of the native transport for callers that need not know if there is one: they do nothing where ranks are not
 * connected natively. They have a file of their own since the waits of native.c call the files that call these. */
#include "comm/guard/guard_impl.h"

wf_status wf_native_poll(wf_comm *comm)
{
    return comm->native ? wf_transport_native.poll(comm, false) : WF_OK;
}

void wf_native_give_up(wf_comm *comm)
{
    if (comm->native)
        wf_transport_native.give_up(comm);
}

wf_status wf_native_join_sums(wf_comm *comm)
{
    return comm->native ? wf_transport_native.join_sums(comm) : WF_OK;
}
