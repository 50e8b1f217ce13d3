/* Calls on tensors, one for each pair of ranks: what goes to and comes from a rank is a slot; types and shapes travel
 * ahead of the data in one schedule of the engine (WF_CALL_LISTS). What goes natively follows once they have come. */
#include "comm/collective/collective_impl.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(wf_frame) == WF_FRAME_BYTES, "frames of the engine are frames of tensors");

wf_status wf_peer_calls_open(wf_comm *comm)
{
    const size_t size = (size_t)comm->size;
    wf_peer_call *c = wf_calloc(comm->shared->ctx, 1, sizeof *c);
    if (!c)
        return wf_error_code();
    comm->call.peers = c;
    c->comm = comm;
    c->slot = wf_calloc(comm->shared->ctx, size, sizeof *c->slot);
    c->part = wf_calloc(comm->shared->ctx, 2 * size + 2 * (size + 1) + 2 * size * sizeof(wf_frame) / sizeof(int64_t),
                        sizeof *c->part);
    if (!c->slot || !c->part)
        return wf_error_code();
    /* One block for all lists: they are made once per communicator and are as long as it has ranks. */
    c->in = (const void **)(void *)(c->part + 2 * size);
    c->out = (void **)(void *)(c->in + size + 1);
    c->frame_out = (wf_frame *)(void *)(c->out + size + 1);
    c->frame_in = c->frame_out + size;
    return WF_OK;
}

void wf_peer_calls_close(wf_comm *comm)
{
    wf_peer_call *c = comm->call.peers;
    if (!c)
        return;
    wf_comm_release(comm, c->slot);
    wf_comm_release(comm, c->part);
    free(c);
    comm->call.peers = NULL;
}

wf_peer_call *wf_peer_call_begin(wf_comm *comm)
{
    wf_peer_call *c = comm->call.peers;
    memset(c->slot, 0, (size_t)comm->size * sizeof *c->slot);
    for (int r = 0; r < comm->size; r++) {
        c->slot[r].comm = comm;
        c->slot[r].rank = r;
    }
    c->stays = SIZE_MAX;
    c->same = false;
    return c;
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

/* Steps of the schedule: `own` is the slot that expects the frame. */
static wf_status check_tensor(void *own, const void *frame, size_t bytes, void *to, size_t to_bytes)
{
    const wf_peer_slot *slot = own;
    return check_frame(slot->comm, frame, slot->in, slot->rank);
}

/* Zero bytes send no message whose size the transport would compare, so the frame carries the size. */
static wf_status check_bytes(void *own, const void *frame, size_t bytes, void *to, size_t to_bytes)
{
    const wf_peer_slot *slot = own;
    const int64_t sent = ((const wf_frame *)frame)->dim[0];
    WF_CHECK(sent == (int64_t)slot->bytes, WF_ERR_COMM, "rank %s sent %lld bytes where %zu are expected",
             WF_RANK(slot->comm, slot->rank), (long long)sent, slot->bytes);
    return WF_OK;
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

/* One tensor that goes to many ranks is packed once. */
static wf_status read_once(wf_peer_call *c, int rank)
{
    wf_comm *comm = c->comm;
    wf_peer_slot *slot = &c->slot[rank];
    for (int r = 0; r < rank; r++) {
        if (r == comm->rank || c->slot[r].out != slot->out)
            continue;
        slot->buffer_out = c->slot[r].buffer_out;
        slot->buffer_out.packed = slot->buffer_out.staged = NULL;
        return WF_OK;
    }
    return wf_buffer_read(comm, slot->out, wf_peer_slot_stays(c, slot, slot->out), &slot->buffer_out);
}

static wf_status read_buffers(wf_peer_call *c)
{
    wf_comm *comm = c->comm;
    for (int r = 0; r < comm->size; r++) {
        wf_peer_slot *slot = &c->slot[r];
        if (r == comm->rank || !slot->out)
            continue;
        WF_TRY(read_once(c, r));
    }
    return WF_OK;
}

static wf_status prepare_buffers(wf_peer_call *c)
{
    wf_comm *comm = c->comm;
    WF_TRY(read_buffers(c));
    for (int r = 0; r < comm->size; r++) {
        wf_peer_slot *slot = &c->slot[r];
        if (r == comm->rank || !slot->in)
            continue;
        WF_TRY(wf_buffer_room(comm, slot->in, wf_peer_slot_stays(c, slot, slot->in), &slot->buffer_in));
    }
    return WF_OK;
}

static void free_buffers(wf_peer_call *c)
{
    const wf_comm *comm = c->comm;
    for (int r = 0; r < comm->size; r++) {
        wf_buffer_free(&c->slot[r].buffer_out);
        wf_buffer_free(&c->slot[r].buffer_in);
    }
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* Runs a call with frames, which are in the engine's order: to the next rank first, from the previous one first. */
static wf_status run_lists(wf_peer_call *c, wf_call *call, int tag)
{
    wf_comm *comm = c->comm;
    call->part = c->part;
    call->expected = c->slot;
    call->expected_bytes = sizeof *c->slot;
    c->in[comm->size] = c->frame_out;
    c->out[comm->size] = c->frame_in;
    return wf_engine_run_lists(comm, call, tag, c->in, c->out);
}

static void list_frames(const wf_peer_call *c)
{
    const wf_comm *comm = c->comm;
    wf_frame *frame = c->frame_out;
    for (int step = 1; step < comm->size; step++) {
        const wf_peer_slot *slot = &c->slot[(comm->rank + step) % comm->size];
        /* Frames lie in the order in which the engine's schedule sends. */
        if (slot->out)
            *frame++ = wf_frame_of(slot->out);
    }
}

/* What goes behind the frame of a tensor, if it has one. */
static int64_t data_bytes(const wf_peer_call *c, const wf_peer_slot *slot, const wf_tensor *x, const wf_buffer *buffer,
                          bool data)
{
    if (!x || slot->rank == c->comm->rank)
        return -1;
    return data && !wf_peer_slot_stays(c, slot, x) ? (int64_t)buffer->bytes : 0;
}

/* Types and shapes of everything; data of what does not go natively. */
static wf_status move_lists(wf_peer_call *c, bool data)
{
    const wf_comm *comm = c->comm;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .check = check_tensor};
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &c->slot[r];
        c->part[r] = data_bytes(c, slot, slot->out, &slot->buffer_out, data);
        c->part[comm->size + r] = data_bytes(c, slot, slot->in, &slot->buffer_in, data);
        c->in[r] = slot->buffer_out.data;
        c->out[r] = slot->buffer_in.data;
        call.count += c->part[r] + 3 * c->part[comm->size + r];
    }
    list_frames(c);
    return run_lists(c, &call, comm->call.tag);
}

/* Waits until the receivers of native messages have come: each sends a frame. It has a tag of its own, since other
 * messages of this rank with the tag of the call may still be in flight. */
static wf_status meet(wf_peer_call *c)
{
    const wf_comm *comm = c->comm;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8};
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &c->slot[r];
        c->part[r] = wf_peer_slot_stays(c, slot, slot->in) ? 0 : -1;
        c->part[comm->size + r] = wf_peer_slot_stays(c, slot, slot->out) ? 0 : -1;
        call.count += c->part[r] + 3 * c->part[comm->size + r];
    }
    return run_lists(c, &call, WF_TAGS + comm->tags);
}

/* Moves all native tensors as one group. Ranks that move all of them so are in the same collective; else receivers may
 * come later. */
static wf_status post_native(wf_peer_call *c)
{
    const wf_comm *comm = c->comm;
    bool any = false;
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &c->slot[r];
        any = any || wf_peer_slot_stays(c, slot, slot->in) || wf_peer_slot_stays(c, slot, slot->out);
    }
    if (!any)
        return WF_OK;
    if (c->stays > 0)
        WF_TRY(meet(c));
    return wf_native_move_slots(c);
}

wf_status wf_peer_call_post(wf_comm *comm, const wf_frame *frame, const void *data, size_t bytes, int to,
                            wf_engine_entry **flight)
{
    const wf_peer_call *c = comm->call.peers;
    const wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .count = (int64_t)bytes, .part = c->part};
    memset(c->part, 0xff, 2 * (size_t)comm->size * sizeof *c->part); /* -1 */
    c->part[to] = (int64_t)bytes;
    c->in[to] = data;
    c->in[comm->size] = frame;
    return wf_engine_begin(comm, &call, c->in, c->out, flight);
}

static wf_status reduce_parts(wf_peer_call *c, wf_dtype dtype, wf_reduce_op op)
{
    const wf_comm *comm = c->comm;
    wf_call call = {.operation = WF_CALL_REDUCE_SCATTER, .dtype = dtype, .op = op, .check = check_tensor};
    for (int r = 0; r < comm->size; r++) {
        c->part[r] = wf_tensor_count(c->slot[r].out);
        c->in[r] = c->slot[r].buffer_out.data;
        call.count += c->part[r];
    }
    c->out[0] = c->slot[comm->rank].buffer_in.data;
    list_frames(c);
    return run_lists(c, &call, comm->call.tag);
}

void wf_peer_call_bytes(wf_peer_call *c, int rank, const void *x, int64_t out, void *y, int64_t in)
{
    const bool other = rank != c->comm->rank;
    c->part[rank] = other ? out : -1;
    c->part[c->comm->size + rank] = other ? in : -1;
    c->in[rank] = x;
    c->out[rank] = y;
    c->slot[rank].bytes = (size_t)in;
    /* A rank sends itself no message. */
    if (!other && out > 0 && in == out)
        memcpy(y, x, (size_t)out);
}

static wf_status run_bytes(wf_peer_call *c)
{
    const int size = c->comm->size;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .check = check_bytes};
    wf_frame *frame = c->frame_out;
    for (int step = 0; step < size; step++) {
        const int r = (c->comm->rank + step) % size;
        call.count += c->part[r] + 3 * c->part[size + r];
        if (c->part[r] >= 0)
            *frame++ = (wf_frame){.dtype = WF_U8, .rank = 1, .dim = {c->part[r]}};
    }
    return run_lists(c, &call, c->comm->call.tag);
}

/* --- whole calls -------------------------------------------------------------------------------------------------- */

static wf_status receive_frame(wf_comm *comm, int from, wf_dtype *dtype, wf_shape *shape)
{
    wf_frame *frame = comm->call.peers->frame_in;
    WF_TRY(wf_coll_receive(comm, frame, sizeof *frame, from));
    WF_TRY(shape_of(comm, frame, from, shape));
    *dtype = (wf_dtype)frame->dtype;
    return WF_OK;
}

wf_status wf_peer_call_look_bytes(wf_comm *comm, int from, size_t *bytes)
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

wf_status wf_peer_call_look_new(wf_comm *comm, int from, wf_tensor **y)
{
    wf_dtype dtype = WF_U8;
    wf_shape shape = {0};
    WF_TRY(receive_frame(comm, from, &dtype, &shape));
    *y = wf_tensor_new(comm->shared->ctx, dtype, shape);
    return *y ? WF_OK : wf_error_code();
}

wf_status wf_peer_call_take(wf_comm *comm, wf_tensor *y, int from, size_t stays)
{
    wf_peer_call *c = wf_peer_call_begin(comm);
    wf_peer_slot *slot = &c->slot[from];
    wf_status status;
    c->stays = stays;
    slot->in = y;
    const bool on_device = wf_peer_slot_stays(c, slot, y);
    WF_TRY_OUT(wf_buffer_room(comm, y, on_device, &slot->buffer_in));
    if (on_device)
        WF_TRY_OUT(post_native(c));
    else
        WF_TRY_OUT(wf_coll_receive(comm, slot->buffer_in.data, slot->buffer_in.bytes, from));
    WF_TRY_OUT(wf_buffer_store(&slot->buffer_in));
out:
    free_buffers(c);
    return status;
}

static wf_status copy_own(const wf_peer_call *c)
{
    const wf_comm *comm = c->comm;
    const wf_peer_slot *own = &c->slot[comm->rank];
    if (!own->in || !own->out || own->in == own->out)
        return WF_OK;
    const wf_frame frame = wf_frame_of(own->out);
    WF_TRY(check_frame(comm, &frame, own->in, comm->rank));
    return wf_tensor_assign(own->in, own->out);
}

static wf_status store_all(const wf_peer_call *c)
{
    WF_TRY(copy_own(c));
    for (int r = 0; r < c->comm->size; r++)
        if (r != c->comm->rank && c->slot[r].in)
            WF_TRY(wf_buffer_store(&c->slot[r].buffer_in));
    return WF_OK;
}

static wf_status exchange(wf_peer_call *c)
{
    WF_TRY(prepare_buffers(c));
    WF_TRY(move_lists(c, true));
    WF_TRY(post_native(c));
    return store_all(c);
}

/* Broadcasts the tensor of each rank; all broadcasts are one group, whatever the lengths. */
static wf_status allgather_natively(wf_peer_call *c)
{
    WF_TRY(prepare_buffers(c));
    WF_TRY(move_lists(c, false));
    WF_TRY(wf_native_gather_slots(c, &c->slot[c->comm->rank == 0 ? 1 : 0].buffer_out)); /* x goes to all */
    return store_all(c);
}

/* Sends frames first, so that lengths are known to be equal on all ranks: with others the transport itself would hang,
 * or write beside the array. */
static wf_status reduce_natively(wf_peer_call *c, wf_dtype dtype, wf_reduce_op op)
{
    WF_TRY(move_lists(c, false));
    return wf_native_reduce_slots(c, dtype, op);
}

static wf_status reduce_scatter(wf_peer_call *c, const wf_call *call, bool on_device)
{
    wf_peer_slot *mine = &c->slot[c->comm->rank];
    WF_TRY(read_buffers(c));
    WF_TRY(wf_buffer_read(c->comm, mine->out, on_device, &mine->buffer_out));
    WF_TRY(wf_buffer_room(c->comm, mine->in, on_device, &mine->buffer_in));
    WF_TRY((on_device ? reduce_natively : reduce_parts)(c, call->dtype, call->op));
    return wf_buffer_store(&mine->buffer_in);
}

wf_status wf_peer_call_exchange(wf_peer_call *c)
{
    const wf_status status = exchange(c);
    free_buffers(c);
    return status;
}

static wf_status run_kind(wf_peer_call *c, const wf_call *call, bool on_device)
{
    if (!call->device)
        return run_bytes(c);
    if (call->operation == WF_CALL_REDUCE_SCATTER)
        return reduce_scatter(c, call, on_device);
    return c->same && c->comm->size > 1 && on_device ? allgather_natively(c) : exchange(c);
}

wf_status wf_peer_call_run(wf_peer_call *c, const wf_call *call, bool on_device)
{
    c->stays = on_device ? 0 : SIZE_MAX;
    const wf_status status = run_kind(c, call, on_device);
    free_buffers(c);
    return status;
}
