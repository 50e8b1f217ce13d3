/* Answers about a communicator: its context, ranks, nodes and traffic. Nothing here changes it. */
#include "comm/comm_impl.h"

wf_ctx *wf_comm_ctx(wf_comm *comm)
{
    return comm ? comm->shared->ctx : NULL;
}

const char *wf_comm_name(const wf_comm *comm)
{
    return comm ? comm->name : "";
}

int wf_comm_rank(const wf_comm *comm)
{
    return comm ? comm->rank : 0;
}

int wf_comm_size(const wf_comm *comm)
{
    return comm ? comm->size : 0;
}

int wf_comm_intra_rank(const wf_comm *comm)
{
    return comm ? comm->intra_rank : 0;
}

int wf_comm_intra_size(const wf_comm *comm)
{
    return comm ? comm->intra_size : 0;
}

int wf_comm_inter_rank(const wf_comm *comm)
{
    return comm ? comm->inter_rank : 0;
}

int wf_comm_inter_size(const wf_comm *comm)
{
    return comm ? comm->inter_size : 0;
}

const wf_mesh *wf_comm_mesh(wf_comm *comm)
{
    return comm ? &comm->mesh : NULL;
}

wf_traffic wf_comm_traffic(const wf_comm *comm)
{
    return comm ? comm->traffic : (wf_traffic){0};
}
