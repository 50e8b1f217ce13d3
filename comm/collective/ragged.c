/* Collectives on lists of tensors, whose shapes may differ between ranks: gather, scatter, all-gather, all-to-all,
 * reduce-scatter. They fill the slots of peer_slots.c, which moves them. */
#include "comm/collective/collective_impl.h"

/* Checked before the first message: a rank that gave up half way would leave the others with messages of which nobody
 * takes the rest. */
static wf_status need_all(const wf_comm *comm, const char *what, wf_tensor *const *list)
{
    if (!list)
        return wf_error_take(what, __FILE__, __LINE__);
    for (int r = 0; r < comm->size; r++)
        if (!list[r])
            return wf_error_take(what, __FILE__, __LINE__);
    return WF_OK;
}

static wf_status enter(wf_comm *comm, const char *operation, int op, int root, wf_way way)
{
    wf_call_record record = wf_call_record_plain(operation, root);
    record.op = op;
    wf_peer_slots_start(comm, way);
    return wf_guard_enter(comm, &record);
}

static wf_status exchange(wf_comm *comm)
{
    WF_TRY(wf_peer_slots_exchange(comm));
    return wf_guard_settle(comm);
}

static wf_status gather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y, int root)
{
    WF_NEED(x);
    WF_TRY(wf_check_rank(comm, "root", root));
    if (comm->rank == root)
        WF_TRY(need_all(comm, "a tensor of y", y));
    WF_TRY(enter(comm, "gather", -1, root, WF_WAY_NATIVE));
    comm->slot[root].out = x;
    for (int r = 0; r < comm->size && comm->rank == root; r++)
        comm->slot[r].in = y[r];
    return exchange(comm);
}

wf_status wf_gather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y, int root)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "gather", gather(comm, x, y, root));
}

/* A group of broadcasts: whole lists in one call, whatever the lengths. */
static wf_status allgather_native(wf_comm *comm)
{
    const wf_buffer *own = &comm->slot[comm->rank == 0 ? 1 : 0].buffer_out; /* x goes to all */
    wf_status status;
    WF_TRY_OUT(wf_peer_slots_prepare(comm));
    WF_TRY_OUT(wf_peer_slots_agree(comm));
    WF_TRY_OUT(wf_native_gather_slots(comm, own));
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            WF_TRY_OUT(wf_buffer_store(&comm->slot[r].buffer_in));
    WF_TRY_OUT(wf_peer_slots_copy_own(comm));
    WF_TRY_OUT(wf_guard_settle(comm));
out:
    wf_peer_slots_free(comm);
    return status;
}

static wf_status allgather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y)
{
    WF_NEED(x);
    WF_TRY(need_all(comm, "a tensor of y", y));
    WF_TRY(enter(comm, "allgather", -1, -1, WF_WAY_NATIVE));
    for (int r = 0; r < comm->size; r++) {
        /* One tensor to all: it is packed once (peer_slots.c). */
        comm->slot[r].out = x;
        comm->slot[r].in = y[r];
    }
    return comm->native && comm->size > 1 ? allgather_native(comm) : exchange(comm);
}

wf_status wf_allgather(wf_comm *comm, const wf_tensor *x, wf_tensor *const *y)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "allgather", allgather(comm, x, y));
}

static wf_status scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, int root)
{
    WF_NEED(y);
    WF_TRY(wf_check_rank(comm, "root", root));
    if (comm->rank == root)
        WF_TRY(need_all(comm, "a tensor of x", x));
    WF_TRY(enter(comm, "scatter", -1, root, WF_WAY_NATIVE));
    comm->slot[root].in = y;
    for (int r = 0; r < comm->size && comm->rank == root; r++)
        comm->slot[r].out = x[r];
    return exchange(comm);
}

wf_status wf_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, int root)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "scatter", scatter(comm, x, y, root));
}

static wf_status alltoall(wf_comm *comm, wf_tensor *const *x, wf_tensor *const *y)
{
    WF_TRY(need_all(comm, "a tensor of x", x));
    WF_TRY(need_all(comm, "a tensor of y", y));
    WF_TRY(enter(comm, "alltoall", -1, -1, WF_WAY_NATIVE));
    for (int r = 0; r < comm->size; r++) {
        comm->slot[r].out = x[r];
        comm->slot[r].in = y[r];
    }
    return exchange(comm);
}

wf_status wf_alltoall(wf_comm *comm, wf_tensor *const *x, wf_tensor *const *y)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "alltoall", alltoall(comm, x, y));
}

static wf_status reduce_native(wf_comm *comm, wf_dtype dtype, wf_reduce_op op)
{
    /* Lengths are known to be equal on all ranks after this: the transport itself would hang, or write beside the
     * array. */
    WF_TRY(wf_peer_slots_agree(comm));
    return wf_native_reduce_slots(comm, dtype, op);
}

/* Every slot expects a tensor like y; the combination of all goes to y. */
static wf_status reduce_slots(wf_comm *comm, const wf_tensor *own, wf_tensor *y, wf_reduce_op op, bool native)
{
    wf_peer_slot *mine = &comm->slot[comm->rank];
    WF_TRY(wf_peer_slots_read(comm));
    WF_TRY(wf_buffer_read(comm, own, native, &mine->buffer_out));
    WF_TRY(wf_buffer_room(comm, y, native, &mine->buffer_in));
    WF_TRY((native ? reduce_native : wf_peer_slots_reduce)(comm, y->dtype, op));
    return wf_buffer_store(&mine->buffer_in);
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

static wf_status reduce_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, wf_reduce_op op)
{
    wf_status status;
    WF_TRY(need_all(comm, "a tensor of x", x));
    WF_NEED(y);
    WF_TRY(wf_check_op(op));
    WF_TRY(check_parts(comm, x, y));
    const bool native = wf_native_reduces(comm, y->dtype, op);
    WF_TRY(enter(comm, "reduce_scatter", (int)op, -1, native ? WF_WAY_NATIVE : WF_WAY_STAGED));
    for (int r = 0; r < comm->size; r++) {
        comm->slot[r].out = x[r];
        comm->slot[r].in = y;
    }
    WF_TRY_OUT(reduce_slots(comm, x[comm->rank], y, op, native));
    WF_TRY_OUT(wf_guard_settle(comm));
out:
    wf_peer_slots_free(comm);
    return status;
}

wf_status wf_reduce_scatter(wf_comm *comm, wf_tensor *const *x, wf_tensor *y, wf_reduce_op op)
{
    WF_NEED(comm);
    return wf_guard_end(comm, "reduce_scatter", reduce_scatter(comm, x, y, op));
}
