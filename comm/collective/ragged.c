/* Collectives on lists of tensors, whose shapes may differ between ranks: gather, scatter, all-gather, all-to-all,
 * reduce-scatter. Each checks its arguments, fills the lists of lists.c, and passes the call through the door. */
#include "comm/collective/collective_impl.h"

/* Checked before the first message: a rank that gave up half way would leave the others with messages whose rest is
 * not received. */
static wf_status need_all(const wf_comm *comm, const char *what, wf_tensor *const *list)
{
    if (!list)
        return wf_error_take(what, __FILE__, __LINE__);
    for (int r = 0; r < comm->size; r++)
        if (!list[r])
            return wf_error_take(what, __FILE__, __LINE__);
    return WF_OK;
}

/* A call on lists, which are empty. */
static wf_call describe_lists(wf_comm *comm, const char *name, int root)
{
    wf_lists_begin(comm);
    return (wf_call){.operation = WF_CALL_LISTS, .name = name, .root = root, .device = true};
}

/* out[r] goes to rank r and in[r] comes from it; NULL: nothing does. */
static void fill_lists(const wf_comm *comm, wf_tensor *const *out, wf_tensor *const *in)
{
    for (int r = 0; r < comm->size && out; r++)
        comm->call.outgoing[r].tensor = out[r];
    for (int r = 0; r < comm->size && in; r++)
        comm->call.incoming[r].tensor = in[r];
}

static wf_status check_gather(const wf_comm *comm, const wf_tensor *x, wf_tensor *const *y, int root)
{
    WF_NEED(x);
    WF_TRY(wf_check_rank(comm, "root", root));
    return comm->rank == root ? need_all(comm, "a tensor of y", y) : WF_OK;
}

wf_status wf_gather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y, int root)
{
    WF_NEED(comm);
    const wf_status checked = check_gather(comm, x, y, root);
    const wf_call call = describe_lists(comm, "gather", root);
    if (checked == WF_OK) {
        comm->call.outgoing[root].tensor = x;
        fill_lists(comm, NULL, comm->rank == root ? y : NULL);
    }
    return wf_comm_run(comm, checked, &call);
}

static wf_status check_allgather(const wf_comm *comm, const wf_tensor *x, wf_tensor *const *y)
{
    WF_NEED(x);
    return need_all(comm, "a tensor of y", y);
}

wf_status wf_allgather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y)
{
    WF_NEED(comm);
    const wf_status checked = check_allgather(comm, x, y);
    wf_call call = describe_lists(comm, "allgather", -1);
    call.same = true;
    if (checked == WF_OK)
        fill_lists(comm, NULL, y);
    /* One tensor to all: it is packed once (lists.c). */
    for (int r = 0; r < comm->size; r++)
        comm->call.outgoing[r].tensor = x;
    return wf_comm_run(comm, checked, &call);
}

static wf_status check_scatter(const wf_comm *comm, wf_tensor *const *x, const wf_tensor *y, int root)
{
    WF_NEED(y);
    WF_TRY(wf_check_rank(comm, "root", root));
    return comm->rank == root ? need_all(comm, "a tensor of x", x) : WF_OK;
}

wf_status wf_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, int root)
{
    WF_NEED(comm);
    const wf_status checked = check_scatter(comm, x, y, root);
    const wf_call call = describe_lists(comm, "scatter", root);
    if (checked == WF_OK) {
        comm->call.incoming[root].tensor = y;
        fill_lists(comm, comm->rank == root ? x : NULL, NULL);
    }
    return wf_comm_run(comm, checked, &call);
}

static wf_status check_alltoall(const wf_comm *comm, wf_tensor *const *x, wf_tensor *const *y)
{
    WF_TRY(need_all(comm, "a tensor of x", x));
    return need_all(comm, "a tensor of y", y);
}

wf_status wf_alltoall(wf_comm *comm, wf_tensor *const *x, wf_tensor *const *y)
{
    WF_NEED(comm);
    const wf_status checked = check_alltoall(comm, x, y);
    const wf_call call = describe_lists(comm, "alltoall", -1);
    if (checked == WF_OK)
        fill_lists(comm, x, y);
    return wf_comm_run(comm, checked, &call);
}

static wf_status check_parts(const wf_comm *comm, wf_tensor *const *x, const wf_tensor *y)
{
    const wf_tensor *own = x[comm->rank];
    char a[WF_SHAPE_TEXT], b[WF_SHAPE_TEXT];
    WF_CHECK(wf_shape_equal(own->shape, y->shape), WF_ERR_SHAPE, "x[%d] is %s and y is %s", comm->rank,
             wf_shape_text(own->shape, a), wf_shape_text(y->shape, b));
    for (int r = 0; r < comm->size; r++)
        WF_CHECK(x[r]->dtype == y->dtype, WF_ERR_DTYPE, "x[%d] is %s and y is %s", r, wf_dtype_name(x[r]->dtype),
                 wf_dtype_name(y->dtype));
    return WF_OK;
}

static wf_status check_reduce_scatter(const wf_comm *comm, wf_tensor *const *x, const wf_tensor *y, wf_reduce_op op)
{
    WF_TRY(need_all(comm, "a tensor of x", x));
    WF_NEED(y);
    WF_TRY(wf_check_op(op));
    return check_parts(comm, x, y);
}

wf_status wf_reduce_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, wf_reduce_op op)
{
    WF_NEED(comm);
    const wf_status checked = check_reduce_scatter(comm, x, y, op);
    wf_call call = describe_lists(comm, "reduce_scatter", -1);
    call.operation = WF_CALL_REDUCE_SCATTER;
    call.op = op;
    if (checked == WF_OK) {
        call.dtype = y->dtype;
        fill_lists(comm, x, NULL);
    }
    /* Each rank sends a tensor like y; the combination of all goes to y. */
    for (int r = 0; r < comm->size; r++)
        comm->call.incoming[r].tensor = y;
    return wf_comm_run(comm, checked, &call);
}
