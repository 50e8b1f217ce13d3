/* Calls on lists: what goes to each rank and what comes from it. Types and shapes travel ahead of the data in one
 * schedule of the engine (WF_CALL_LISTS). What goes natively follows once they have come. The lists are memory of the
 * communicator (comm->call), which one call has at a time. */
#include "comm/collective/collective_impl.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(wf_frame) == WF_FRAME_BYTES, "frames of the engine are frames of tensors");

wf_status wf_lists_open(wf_comm *comm)
{
    const size_t size = (size_t)comm->size;
    wf_call_state *c = &comm->call;
    c->outgoing = wf_calloc(comm->shared->ctx, 2 * size, sizeof *c->outgoing);
    c->part = wf_calloc(comm->shared->ctx, 2 * size + 2 * (size + 1) + 2 * size * sizeof(wf_frame) / sizeof(int64_t),
                        sizeof *c->part);
    if (!c->outgoing || !c->part)
        return wf_error_code();
    c->incoming = c->outgoing + size;
    /* One block for all lists: they are made once per communicator and are as long as it has ranks. */
    c->in = (const void **)(void *)(c->part + 2 * size);
    c->out = (void **)(void *)(c->in + size + 1);
    c->frame_out = (wf_frame *)(void *)(c->out + size + 1);
    c->frame_in = c->frame_out + size;
    return WF_OK;
}

void wf_lists_close(wf_comm *comm)
{
    wf_comm_release(comm, comm->call.outgoing);
    wf_comm_release(comm, comm->call.part);
}

void wf_lists_begin(wf_comm *comm)
{
    for (int i = 0; i < 2 * comm->size; i++)
        comm->call.outgoing[i] = (wf_buffer){.comm = comm};
    comm->call.stays = SIZE_MAX;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

wf_frame wf_frame_of(const wf_tensor *x)
{
    wf_frame frame = {.dtype = (int32_t)x->dtype, .rank = x->shape.rank};
    memcpy(frame.dim, x->shape.dim, sizeof frame.dim);
    return frame;
}

static wf_status shape_of(const wf_comm *comm, const wf_frame *frame, int from, wf_shape *shape)
{
    *shape = wf_shape_make(frame->rank, frame->dim);
    WF_CHECK(frame->dtype >= 0 && frame->dtype < WF_DTYPES && wf_shape_count(*shape) >= 0, WF_ERR_COMM,
             "what rank %s sent is no tensor", WF_RANK(comm, from));
    return WF_OK;
}

static wf_status check_frame(const wf_comm *comm, const wf_frame *frame, const wf_tensor *y, int from)
{
    char sent[WF_SHAPE_TEXT], expected[WF_SHAPE_TEXT];
    wf_shape shape;
    WF_TRY(shape_of(comm, frame, from, &shape));
    WF_CHECK(frame->dtype == (int32_t)y->dtype && wf_shape_equal(shape, y->shape), WF_ERR_COMM,
             "rank %s sent %s %.120s where %s %.120s is expected", WF_RANK(comm, from),
             wf_dtype_name((wf_dtype)frame->dtype), wf_shape_text(shape, sent), wf_dtype_name(y->dtype),
             wf_shape_text(y->shape, expected));
    return WF_OK;
}

/* The rank that a buffer of incoming is of. */
static int sender_of(const wf_buffer *incoming)
{
    return (int)(incoming - incoming->comm->call.incoming);
}

/* Steps of the schedule: `own` is the buffer that expects the frame. */
static wf_status check_tensor(void *own, const void *frame, size_t bytes, void *to, size_t to_bytes)
{
    const wf_buffer *expected = own;
    return check_frame(expected->comm, frame, expected->tensor, sender_of(expected));
}

/* Zero bytes send no message whose size the transport would compare, so the frame carries the size. */
static wf_status check_bytes(void *own, const void *frame, size_t bytes, void *to, size_t to_bytes)
{
    const wf_buffer *expected = own;
    const int64_t sent = ((const wf_frame *)frame)->dim[0];
    WF_CHECK(sent == (int64_t)expected->bytes, WF_ERR_COMM, "rank %s sent %lld bytes where %zu are expected",
             WF_RANK(expected->comm, sender_of(expected)), (long long)sent, expected->bytes);
    return WF_OK;
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

/* One tensor that goes to many ranks is packed once. */
static wf_status read_once(wf_comm *comm, int rank)
{
    wf_buffer *out = comm->call.outgoing, *own = &out[rank];
    for (int r = 0; r < rank; r++) {
        if (r == comm->rank || out[r].tensor != own->tensor)
            continue;
        *own = out[r];
        own->packed = own->staged = NULL;
        return WF_OK;
    }
    return wf_buffer_read(comm, own->tensor, wf_lists_stay(own, rank), own);
}

static wf_status read_buffers(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->call.outgoing[r].tensor)
            WF_TRY(read_once(comm, r));
    return WF_OK;
}

static wf_status prepare_buffers(wf_comm *comm)
{
    WF_TRY(read_buffers(comm));
    for (int r = 0; r < comm->size; r++) {
        wf_buffer *in = &comm->call.incoming[r];
        if (r != comm->rank && in->tensor)
            WF_TRY(wf_buffer_room(comm, in->tensor, wf_lists_stay(in, r), in));
    }
    return WF_OK;
}

static void free_buffers(const wf_comm *comm)
{
    for (int i = 0; i < 2 * comm->size; i++)
        wf_buffer_free(&comm->call.outgoing[i]);
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* Runs a call with frames, which are in the engine's order: to the next rank first, from the previous one first. */
static wf_status run_lists(wf_comm *comm, wf_call *call, int tag)
{
    call->part = comm->call.part;
    call->expected = comm->call.incoming;
    call->expected_bytes = sizeof *comm->call.incoming;
    comm->call.in[comm->size] = comm->call.frame_out;
    comm->call.out[comm->size] = comm->call.frame_in;
    return wf_engine_run_lists(comm, call, tag, comm->call.in, comm->call.out);
}

static void list_frames(const wf_comm *comm)
{
    wf_frame *frame = comm->call.frame_out;
    for (int step = 1; step < comm->size; step++) {
        const wf_buffer *out = &comm->call.outgoing[(comm->rank + step) % comm->size];
        /* Frames lie in the order in which the engine's schedule sends. */
        if (out->tensor)
            *frame++ = wf_frame_of(out->tensor);
    }
}

/* What goes behind the frame of a tensor, if it has one. */
static int64_t data_bytes(const wf_buffer *buffer, int rank, bool data)
{
    if (!buffer->tensor || rank == buffer->comm->rank)
        return -1;
    return data && !wf_lists_stay(buffer, rank) ? (int64_t)buffer->bytes : 0;
}

/* Types and shapes of everything; data of what does not go natively. */
static wf_status move_lists(wf_comm *comm, bool data)
{
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .check = check_tensor};
    for (int r = 0; r < comm->size; r++) {
        comm->call.part[r] = data_bytes(&comm->call.outgoing[r], r, data);
        comm->call.part[comm->size + r] = data_bytes(&comm->call.incoming[r], r, data);
        comm->call.in[r] = comm->call.outgoing[r].data;
        comm->call.out[r] = comm->call.incoming[r].data;
    }
    list_frames(comm);
    return run_lists(comm, &call, comm->call.tag);
}

/* Waits until the receivers of native messages have come: each sends a frame. It has a tag of its own, since other
 * messages of this rank with the tag of the call may still be in flight. */
static wf_status meet(wf_comm *comm)
{
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8};
    for (int r = 0; r < comm->size; r++) {
        comm->call.part[r] = wf_lists_stay(&comm->call.incoming[r], r) ? 0 : -1;
        comm->call.part[comm->size + r] = wf_lists_stay(&comm->call.outgoing[r], r) ? 0 : -1;
    }
    return run_lists(comm, &call, WF_TAGS + comm->tags);
}

/* Moves all native tensors as one group. Ranks that move all of them so are in the same collective; else receivers may
 * come later. */
static wf_status post_native(wf_comm *comm)
{
    bool any = false;
    for (int r = 0; r < comm->size; r++)
        any = any || wf_lists_stay(&comm->call.incoming[r], r) || wf_lists_stay(&comm->call.outgoing[r], r);
    if (!any)
        return WF_OK;
    if (comm->call.stays > 0)
        WF_TRY(meet(comm));
    return wf_native_move_lists(comm);
}

wf_status wf_lists_post(wf_comm *comm, const wf_frame *frame, const void *data, size_t bytes, int to,
                        wf_engine_entry **flight)
{
    const wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .count = (int64_t)bytes, .part = comm->call.part};
    memset(comm->call.part, 0xff, 2 * (size_t)comm->size * sizeof *comm->call.part); /* -1 */
    comm->call.part[to] = (int64_t)bytes;
    comm->call.in[to] = data;
    comm->call.in[comm->size] = frame;
    return wf_engine_begin(comm, &call, comm->call.in, comm->call.out, flight);
}

static wf_status reduce_parts(wf_comm *comm, wf_dtype dtype, wf_reduce_op op)
{
    wf_call call = {.operation = WF_CALL_REDUCE_SCATTER, .dtype = dtype, .op = op, .check = check_tensor};
    for (int r = 0; r < comm->size; r++) {
        comm->call.part[r] = wf_tensor_count(comm->call.outgoing[r].tensor);
        comm->call.in[r] = comm->call.outgoing[r].data;
    }
    comm->call.out[0] = comm->call.incoming[comm->rank].data;
    list_frames(comm);
    return run_lists(comm, &call, comm->call.tag);
}

void wf_lists_set_bytes(wf_comm *comm, int rank, const void *x, int64_t out, void *y, int64_t in)
{
    const bool other = rank != comm->rank;
    comm->call.part[rank] = other ? out : -1;
    comm->call.part[comm->size + rank] = other ? in : -1;
    comm->call.in[rank] = x;
    comm->call.out[rank] = y;
    comm->call.incoming[rank].bytes = (size_t)in;
    /* A rank sends itself no message. */
    if (!other && out > 0 && in == out)
        memcpy(y, x, (size_t)out);
}

static wf_status run_bytes(wf_comm *comm)
{
    const int size = comm->size;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .check = check_bytes};
    wf_frame *frame = comm->call.frame_out;
    for (int step = 0; step < size; step++) {
        const int r = (comm->rank + step) % size;
        if (comm->call.part[r] >= 0)
            *frame++ = (wf_frame){.dtype = WF_U8, .rank = 1, .dim = {comm->call.part[r]}};
    }
    return run_lists(comm, &call, comm->call.tag);
}

/* --- whole calls -------------------------------------------------------------------------------------------------- */

static wf_status receive_frame(wf_comm *comm, int from, wf_dtype *dtype, wf_shape *shape)
{
    wf_frame *frame = comm->call.frame_in;
    WF_TRY(wf_coll_receive(comm, frame, sizeof *frame, from));
    WF_TRY(shape_of(comm, frame, from, shape));
    *dtype = (wf_dtype)frame->dtype;
    return WF_OK;
}

wf_status wf_lists_look_bytes(wf_comm *comm, int from, size_t *bytes)
{
    wf_dtype dtype = WF_U8;
    wf_shape shape = {0};
    char text[WF_SHAPE_TEXT];
    WF_TRY(receive_frame(comm, from, &dtype, &shape));
    WF_CHECK(dtype == WF_U8 && shape.rank == 1, WF_ERR_COMM, "rank %s sent %s %.120s where bytes are expected",
             WF_RANK(comm, from), wf_dtype_name(dtype), wf_shape_text(shape, text));
    *bytes = (size_t)shape.dim[0];
    return WF_OK;
}

wf_status wf_lists_look_new(wf_comm *comm, int from, wf_tensor **y)
{
    wf_dtype dtype = WF_U8;
    wf_shape shape = {0};
    WF_TRY(receive_frame(comm, from, &dtype, &shape));
    *y = wf_tensor_new(comm->shared->ctx, dtype, shape);
    return *y ? WF_OK : wf_error_code();
}

wf_status wf_lists_take(wf_comm *comm, wf_tensor *y, int from, size_t stays)
{
    wf_buffer *in = &comm->call.incoming[from];
    wf_status status;
    wf_lists_begin(comm);
    comm->call.stays = stays;
    in->tensor = y;
    const bool on_device = wf_lists_stay(in, from);
    WF_TRY_OUT(wf_buffer_room(comm, y, on_device, in));
    if (on_device)
        WF_TRY_OUT(post_native(comm));
    else
        WF_TRY_OUT(wf_coll_receive(comm, in->data, in->bytes, from));
    WF_TRY_OUT(wf_buffer_store(in));
out:
    free_buffers(comm);
    return status;
}

static wf_status copy_own(const wf_comm *comm)
{
    const wf_tensor *x = comm->call.outgoing[comm->rank].tensor, *y = comm->call.incoming[comm->rank].tensor;
    if (!x || !y || x == y)
        return WF_OK;
    const wf_frame frame = wf_frame_of(x);
    WF_TRY(check_frame(comm, &frame, y, comm->rank));
    return wf_tensor_assign((wf_tensor *)y, x);
}

static wf_status store_all(const wf_comm *comm)
{
    WF_TRY(copy_own(comm));
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->call.incoming[r].tensor)
            WF_TRY(wf_buffer_store(&comm->call.incoming[r]));
    return WF_OK;
}

static wf_status exchange(wf_comm *comm)
{
    WF_TRY(prepare_buffers(comm));
    WF_TRY(move_lists(comm, true));
    WF_TRY(post_native(comm));
    return store_all(comm);
}

/* Broadcasts the tensor of each rank; all broadcasts are one group, whatever the lengths. */
static wf_status allgather_natively(wf_comm *comm)
{
    WF_TRY(prepare_buffers(comm));
    WF_TRY(move_lists(comm, false));
    WF_TRY(wf_native_gather_lists(comm, &comm->call.outgoing[comm->rank == 0 ? 1 : 0])); /* x goes to all */
    return store_all(comm);
}

/* Sends frames first, so that lengths are known to be equal on all ranks: with others the transport itself would hang,
 * or write beside the array. */
static wf_status reduce_natively(wf_comm *comm, wf_dtype dtype, wf_reduce_op op)
{
    WF_TRY(move_lists(comm, false));
    return wf_native_reduce_lists(comm, dtype, op);
}

static wf_status reduce_scatter(wf_comm *comm, const wf_call *call, bool on_device)
{
    wf_buffer *out = &comm->call.outgoing[comm->rank], *in = &comm->call.incoming[comm->rank];
    WF_TRY(read_buffers(comm));
    WF_TRY(wf_buffer_read(comm, out->tensor, on_device, out));
    WF_TRY(wf_buffer_room(comm, in->tensor, on_device, in));
    WF_TRY((on_device ? reduce_natively : reduce_parts)(comm, call->dtype, call->op));
    return wf_buffer_store(in);
}

wf_status wf_lists_exchange(wf_comm *comm)
{
    const wf_status status = exchange(comm);
    free_buffers(comm);
    return status;
}

static wf_status run_kind(wf_comm *comm, const wf_call *call, bool on_device)
{
    if (!call->device)
        return run_bytes(comm);
    if (call->operation == WF_CALL_REDUCE_SCATTER)
        return reduce_scatter(comm, call, on_device);
    return call->same && comm->size > 1 && on_device ? allgather_natively(comm) : exchange(comm);
}

wf_status wf_lists_run(wf_comm *comm, const wf_call *call, bool on_device)
{
    comm->call.stays = on_device ? 0 : SIZE_MAX;
    const wf_status status = run_kind(comm, call, on_device);
    free_buffers(comm);
    return status;
}
