/* Collectives on a tensor of equal shape on all ranks, and on vectors in device memory: broadcast, sums, barrier. Each
 * checks its arguments, describes the call, and passes it through the door (door.c). */
#include "comm/collective/collective_impl.h"

static wf_call describe_tensors(wf_operation operation, const char *name, const wf_tensor *x, wf_tensor *y)
{
    wf_call call = {.operation = operation, .name = name, .x = x, .y = y, .device = true};
    if (!x)
        return call;
    call.dtype = x->dtype;
    call.shape = &x->shape;
    call.count = wf_tensor_count(x);
    return call;
}

static wf_status check_tensor_bcast(const wf_comm *comm, const wf_tensor *x, int root)
{
    WF_NEED(x);
    return wf_check_rank(comm, "root", root);
}

wf_status wf_bcast(wf_comm *comm, wf_tensor *x, int root)
{
    WF_NEED(comm);
    wf_call call = describe_tensors(WF_CALL_BCAST, "bcast", x, x);
    call.root = root;
    return wf_comm_run(comm, check_tensor_bcast(comm, x, root), &call);
}

static wf_status check_pair(const wf_tensor *x, const wf_tensor *y)
{
    char a[WF_SHAPE_TEXT], b[WF_SHAPE_TEXT];
    WF_CHECK(x->dtype == y->dtype, WF_ERR_DTYPE, "x is %s and y is %s", wf_dtype_name(x->dtype),
             wf_dtype_name(y->dtype));
    WF_CHECK(wf_shape_equal(x->shape, y->shape), WF_ERR_SHAPE, "x is %s and y is %s", wf_shape_text(x->shape, a),
             wf_shape_text(y->shape, b));
    return WF_OK;
}

/* wanted: the result comes to this rank; others may give NULL for y. */
static wf_status check_reduction(const wf_tensor *x, const wf_tensor *y, wf_reduce_op op, bool wanted)
{
    WF_NEED(x);
    WF_TRY(wf_check_op(op));
    if (!wanted)
        return WF_OK;
    WF_NEED(y);
    return check_pair(x, y);
}

wf_status wf_allreduce(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op)
{
    WF_NEED(comm);
    wf_call call = describe_tensors(WF_CALL_ALLREDUCE, "allreduce", x, y);
    call.op = op;
    return wf_comm_run(comm, check_reduction(x, y, op, true), &call);
}

static wf_status check_reduce(const wf_comm *comm, const wf_tensor *x, const wf_tensor *y, wf_reduce_op op, int root)
{
    WF_TRY(wf_check_rank(comm, "root", root));
    return check_reduction(x, y, op, root == comm->rank);
}

wf_status wf_reduce(wf_comm *comm, const wf_tensor *x, wf_tensor *y, wf_reduce_op op, int root)
{
    WF_NEED(comm);
    wf_call call = describe_tensors(WF_CALL_REDUCE, "reduce", x, root == comm->rank ? y : NULL);
    call.op = op;
    call.root = root;
    return wf_comm_run(comm, check_reduce(comm, x, y, op, root), &call);
}

wf_status wf_allgather_raw(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    WF_NEED(comm);
    wf_call call = wf_call_of_bytes(WF_CALL_ALLGATHER, "allgather_raw", mine, all, bytes, 0);
    call.device = true;
    return wf_comm_run(comm, wf_check_gathered(mine, bytes, all), &call);
}

wf_status wf_barrier(wf_comm *comm)
{
    WF_NEED(comm);
    const wf_call call = {.operation = WF_CALL_BARRIER, .name = "barrier"};
    return wf_comm_run(comm, WF_OK, &call);
}
