/* Chosen by CMake where NCCL is absent: nothing but wf_nccl_built is reached then. */
#include "comm/nccl_author.h"

static wf_status none(void)
{
    WF_FAIL(WF_ERR_UNSUPPORTED, "this build of Weft has no NCCL");
}

bool wf_nccl_built(void)
{
    return false;
}

wf_status wf_nccl_open(wf_comm *comm)
{
    return none();
}

bool wf_nccl_wanted(const wf_comm *comm)
{
    return false;
}

bool wf_nccl_shares_gpu(void)
{
    return false;
}

wf_status wf_nccl_split(wf_comm *comm, int color, int key, wf_comm *child)
{
    return none();
}

void wf_nccl_close(wf_comm *comm)
{
}

void wf_nccl_abort(wf_comm *comm)
{
}

wf_status wf_nccl_poll(wf_comm *comm)
{
    return WF_OK;
}

wf_status wf_nccl_join(wf_comm *comm)
{
    return WF_OK;
}

wf_status wf_nccl_join_sums(wf_comm *comm)
{
    return WF_OK;
}

wf_status wf_nccl_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root)
{
    return none();
}

wf_status wf_nccl_reduce_scatter(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op)
{
    return none();
}

wf_status wf_nccl_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    return none();
}

wf_status wf_nccl_bcast(wf_comm *comm, void *data, size_t bytes, int root)
{
    return none();
}

wf_status wf_nccl_begin(wf_comm *comm)
{
    return none();
}

wf_status wf_nccl_send(wf_comm *comm, const void *data, size_t bytes, int to)
{
    return none();
}

wf_status wf_nccl_recv(wf_comm *comm, void *data, size_t bytes, int from)
{
    return none();
}

wf_status wf_nccl_end_no_join(wf_comm *comm)
{
    return none();
}

wf_status wf_nccl_record(wf_comm *comm, wf_event *event)
{
    return none();
}

wf_status wf_nccl_end(wf_comm *comm)
{
    return none();
}
