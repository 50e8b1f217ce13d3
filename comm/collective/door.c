/* The door: the one sequence by which a collective runs.
 *
 *     checked   the caller has looked at its arguments; an error of one rank becomes that of all
 *     enter     the guard numbers the call, notes it, and announces it (comm/guard/operation.c, control.c)
 *     buffers   tensors become memory that travels: packed, and in the host's memory unless they move natively
 *     move      a schedule of the engine; a step of it may be a call of the native transport
 *     store     what came goes into the tensor
 *     settle    waits until the left neighbour is known to make the same call
 *     end       counts the call as over; an error of any step above becomes the same error on all ranks
 *
 * Public functions describe a call and pass it in. The background stream does so a little at a time
 * (comm/background.c), and an exchange between its begin and its end (comm/mesh/exchange.c): for these the same steps
 * have names of their own. Messages between two ranks have no number, and begin with wf_guard_point instead. */
#include "comm/collective/collective_impl.h"

typedef struct call_buffers {
    wf_buffer in, out;
} call_buffers;

/* Returns true for sums in place: the schedule itself copies device memory to the host and back, if it has to. */
static bool sums_in_place(const wf_call *call)
{
    return call->operation == WF_CALL_SUM || call->operation == WF_CALL_SUM_SHARDS ||
           call->operation == WF_CALL_GATHER_SHARDS;
}

static wf_status open_tensors(wf_comm *comm, const wf_call *call, bool on_device, call_buffers *b)
{
    /* The root's elements are in the memory that the others receive into. */
    if (call->operation == WF_CALL_BCAST)
        return comm->rank == call->root ? wf_buffer_read(comm, call->y, on_device, &b->out)
                                        : wf_buffer_room(comm, call->y, on_device, &b->out);
    WF_TRY(wf_buffer_read(comm, call->x, on_device, &b->in));
    return wf_buffer_room(comm, call->y, on_device, &b->out);
}

/* A reduction of vectors may be made in place, so memory of the host serves for both ends. */
static wf_status open_reduced(wf_comm *comm, const wf_call *call, size_t bytes, bool on_device, call_buffers *b)
{
    WF_TRY(wf_buffer_read_vector(comm, call->in, bytes, on_device, &b->out));
    b->in.data = b->out.data;
    b->out.origin = call->out;
    if (b->out.staged)
        comm->traffic.bytes_copied += 2 * bytes;
    else
        b->out.data = call->out;
    return WF_OK;
}

static wf_status open_vectors(wf_comm *comm, const wf_call *call, bool on_device, call_buffers *b)
{
    const size_t bytes = (size_t)call->count * wf_dtype_size(call->dtype);
    if (call->operation != WF_CALL_ALLGATHER)
        return open_reduced(comm, call, bytes, on_device, b);
    WF_TRY(wf_buffer_read_vector(comm, call->in, bytes, on_device, &b->in));
    return wf_buffer_vector(comm, call->out, (size_t)comm->size * bytes, on_device, &b->out);
}

/* Its tensors are opened one for each rank (lists.c). */
static bool goes_by_lists(const wf_call *call)
{
    return call->operation == WF_CALL_LISTS || call->operation == WF_CALL_REDUCE_SCATTER;
}

static wf_status open_buffers(wf_comm *comm, const wf_call *call, bool on_device, call_buffers *b)
{
    if (call->x || call->y)
        return open_tensors(comm, call, on_device, b);
    if (call->device && !goes_by_lists(call) && !sums_in_place(call))
        return open_vectors(comm, call, on_device, b);
    b->in.data = (void *)call->in;
    b->out.data = call->out;
    return WF_OK;
}

static wf_status move_memory(wf_comm *comm, const wf_call *call, bool on_device, const call_buffers *b)
{
    const bool reduces = call->operation == WF_CALL_REDUCE || call->operation == WF_CALL_ALLREDUCE;
    if (goes_by_lists(call))
        return wf_lists_run(comm, call, on_device);
    /* A reduction of tensors opens the memory that it goes through; numbers use it once it is open, so that a
     * communicator on which ranks only agree takes none. */
    if (reduces && !on_device && call->device && comm->inter_size == 1)
        WF_TRY(wf_coll_share(comm));
    /* Sums in a node's memory need none of the host's of their own, which could not be captured either. */
    if (reduces && !on_device && comm->size > 1 && call->count > 0)
        WF_TRY(wf_comm_forbid_capture(comm, "communicate through the memory of the host"));
    return wf_engine_run(comm, call, b->in.data, b->out.data);
}

static wf_status store_result(const wf_comm *comm, const wf_call *call, wf_buffer *out)
{
    return call->operation == WF_CALL_BCAST && comm->rank == call->root ? WF_OK : wf_buffer_store(out);
}

static wf_status run_call(wf_comm *comm, const wf_call *call)
{
    call_buffers b = {0};
    wf_status status;
    WF_TRY(wf_guard_enter(comm, call));
    /* All ranks decide alike, since both ways need all of them. */
    const bool on_device = wf_call_stays(wf_engine_agreed(comm), call);
    WF_TRY_OUT(open_buffers(comm, call, on_device, &b));
    WF_TRY_OUT(move_memory(comm, call, on_device, &b));
    WF_TRY_OUT(store_result(comm, call, &b.out));
    WF_TRY_OUT(wf_guard_settle(comm));
out:
    wf_buffer_free(&b.out);
    wf_buffer_free(&b.in);
    return status;
}

wf_status wf_comm_run(wf_comm *comm, wf_status checked, const wf_call *call)
{
    return wf_guard_end(comm, call->name, checked == WF_OK ? run_call(comm, call) : checked);
}
