/* Calls on tensors, one for each pair of ranks: what goes to and comes from a rank is a slot; types and shapes travel
 * ahead of the data in one schedule of the engine (WF_CALL_LISTS). What goes natively follows once they have come. */
#include "comm/collective/collective_impl.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(wf_frame) == WF_FRAME_BYTES, "frames of the engine are frames of tensors");

wf_status wf_peer_slots_open(wf_comm *comm)
{
    const size_t size = (size_t)comm->size;
    wf_peer_lists *l = &comm->lists;
    comm->slot = wf_calloc(comm->shared->ctx, size, sizeof *comm->slot);
    l->part = wf_calloc(comm->shared->ctx, 2 * size + 2 * (size + 1) + 2 * size * sizeof(wf_frame) / sizeof(int64_t),
                        sizeof *l->part);
    if (!comm->slot || !l->part)
        return wf_error_code();
    /* One block for all lists: they are made once per communicator and are as long as it has ranks. */
    l->in = (const void **)(void *)(l->part + 2 * size);
    l->out = (void **)(void *)(l->in + size + 1);
    l->frame_out = (wf_frame *)(void *)(l->out + size + 1);
    l->frame_in = l->frame_out + size;
    return WF_OK;
}

void wf_peer_slots_close(wf_comm *comm)
{
    wf_comm_release(comm, comm->slot);
    wf_comm_release(comm, comm->lists.part);
}

void wf_peer_slots_start(wf_comm *comm, wf_way way)
{
    memset(comm->slot, 0, (size_t)comm->size * sizeof *comm->slot);
    comm->way = way;
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
static wf_status read_once(wf_comm *comm, int rank)
{
    wf_peer_slot *slot = &comm->slot[rank];
    for (int r = 0; r < rank; r++) {
        if (r == comm->rank || comm->slot[r].out != slot->out)
            continue;
        slot->buffer_out = comm->slot[r].buffer_out;
        slot->buffer_out.packed = slot->buffer_out.staged = NULL;
        return WF_OK;
    }
    return wf_buffer_read(comm, slot->out, slot->native_out, &slot->buffer_out);
}

/* A native connection knows no tags: it matches the messages of two ranks by their order. That is the order in which
 * receivers come, if senders wait for them. MPI lets them wait too with all that is longer than it sends at once, so no
 * program that runs by MPI waits for ever here. */
static bool native_point(const wf_comm *comm, const wf_tensor *x)
{
    return comm->native && wf_tensor_bytes(x) > WF_PROMPT_BYTES;
}

static bool native(const wf_comm *comm, const wf_tensor *x)
{
    return comm->way == WF_WAY_POINT ? native_point(comm, x) : comm->way == WF_WAY_NATIVE && comm->native;
}

wf_status wf_peer_slots_read(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        wf_peer_slot *slot = &comm->slot[r];
        if (r == comm->rank || !slot->out)
            continue;
        slot->native_out = native(comm, slot->out);
        WF_TRY(read_once(comm, r));
    }
    return WF_OK;
}

wf_status wf_peer_slots_prepare(wf_comm *comm)
{
    WF_TRY(wf_peer_slots_read(comm));
    for (int r = 0; r < comm->size; r++) {
        wf_peer_slot *slot = &comm->slot[r];
        if (r == comm->rank || !slot->in)
            continue;
        slot->native_in = native(comm, slot->in);
        WF_TRY(wf_buffer_room(comm, slot->in, slot->native_in, &slot->buffer_in));
    }
    return WF_OK;
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* A call with frames, in the engine's order: to the next rank first, from the one before this one first. */
static wf_status run_lists(wf_comm *comm, wf_call *call)
{
    const wf_peer_lists *l = &comm->lists;
    call->part = l->part;
    call->expected = comm->slot;
    call->expected_bytes = sizeof *comm->slot;
    l->in[comm->size] = l->frame_out;
    l->out[comm->size] = l->frame_in;
    for (int r = 0; r < comm->size; r++) {
        comm->slot[r].comm = comm;
        comm->slot[r].rank = r;
    }
    return wf_engine_run_lists(comm, call, l->in, l->out);
}

static void list_frames(const wf_comm *comm)
{
    wf_frame *frame = comm->lists.frame_out;
    for (int step = 1; step < comm->size; step++) {
        const wf_peer_slot *slot = &comm->slot[(comm->rank + step) % comm->size];
        /* In the order in which the engine's schedule sends. */
        if (slot->out)
            *frame++ = wf_frame_of(slot->out);
    }
}

/* Types and shapes of everything; data of what does not go natively. */
static wf_status move_lists(wf_comm *comm, bool data)
{
    const wf_peer_lists *l = &comm->lists;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .check = check_tensor};
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &comm->slot[r];
        const bool other = r != comm->rank;
        l->part[r] = !slot->out || !other ? -1 : data && !slot->native_out ? (int64_t)slot->buffer_out.bytes : 0;
        l->part[comm->size + r] = !slot->in || !other        ? -1
                                  : data && !slot->native_in ? (int64_t)slot->buffer_in.bytes
                                                             : 0;
        l->in[r] = slot->buffer_out.data;
        l->out[r] = slot->buffer_in.data;
        call.count += l->part[r] + 3 * l->part[comm->size + r];
    }
    list_frames(comm);
    return run_lists(comm, &call);
}

/* Every receiver of a message between two has come: it sends a frame, under a tag of its own, since what else this rank
 * has sent there under the tag of the message may still be on its way. */
static wf_status meet(wf_comm *comm)
{
    const wf_peer_lists *l = &comm->lists;
    const int tag = comm->tag;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8};
    for (int r = 0; r < comm->size; r++) {
        l->part[r] = comm->slot[r].native_in ? 0 : -1;
        l->part[comm->size + r] = comm->slot[r].native_out ? 0 : -1;
        call.count += l->part[r] + 3 * l->part[comm->size + r];
    }
    comm->tag = WF_TAGS + comm->tags;
    const wf_status status = run_lists(comm, &call);
    comm->tag = tag;
    return status;
}

/* All that goes natively is one call. */
static wf_status post_native(wf_comm *comm)
{
    bool any = false;
    for (int r = 0; r < comm->size; r++)
        any = any || comm->slot[r].native_in || comm->slot[r].native_out;
    if (!any)
        return WF_OK;
    if (comm->way == WF_WAY_POINT)
        WF_TRY(meet(comm));
    return wf_native_move_slots(comm);
}

wf_status wf_peer_slots_post(wf_comm *comm, const wf_frame *frame, const void *data, size_t bytes, int to,
                             wf_engine_call *flight)
{
    const wf_peer_lists *l = &comm->lists;
    const wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .count = (int64_t)bytes, .part = l->part};
    memset(l->part, 0xff, 2 * (size_t)comm->size * sizeof *l->part); /* -1 */
    l->part[to] = (int64_t)bytes;
    l->in[to] = data;
    l->in[comm->size] = frame;
    return wf_engine_begin(comm, &call, l->in, l->out, flight);
}

wf_status wf_peer_slots_agree(wf_comm *comm)
{
    return move_lists(comm, false);
}

wf_status wf_peer_slots_reduce(wf_comm *comm, wf_dtype dtype, wf_reduce_op op)
{
    const wf_peer_lists *l = &comm->lists;
    wf_call call = {.operation = WF_CALL_REDUCE_SCATTER, .dtype = dtype, .op = op, .check = check_tensor};
    for (int r = 0; r < comm->size; r++) {
        l->part[r] = wf_tensor_count(comm->slot[r].out);
        l->in[r] = comm->slot[r].buffer_out.data;
        call.count += l->part[r];
    }
    l->out[0] = comm->slot[comm->rank].buffer_in.data;
    list_frames(comm);
    return run_lists(comm, &call);
}

wf_status wf_peer_slots_scatter(wf_comm *comm, const void *const *x, const size_t *bytes, void *y, size_t y_bytes,
                                int root)
{
    const wf_peer_lists *l = &comm->lists;
    wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .check = check_bytes};
    for (int r = 0; r < comm->size; r++) {
        const bool goes = comm->rank == root && r != root;
        l->part[r] = goes ? (int64_t)bytes[r] : -1;
        l->part[comm->size + r] = r == root && comm->rank != root ? (int64_t)y_bytes : -1;
        l->in[r] = goes ? x[r] : NULL;
        call.count += l->part[r] + 3 * l->part[comm->size + r];
    }
    for (int step = 1; step < comm->size && comm->rank == root; step++)
        l->frame_out[step - 1] =
            (wf_frame){.dtype = WF_U8, .rank = 1, .dim = {(int64_t)bytes[(comm->rank + step) % comm->size]}};
    l->out[root] = y;
    comm->slot[root].bytes = y_bytes;
    return run_lists(comm, &call);
}

/* --- whole calls -------------------------------------------------------------------------------------------------- */

wf_status wf_peer_slots_look(wf_comm *comm, int from, wf_dtype *dtype, wf_shape *shape)
{
    const wf_frame *frame = comm->lists.frame_in;
    WF_TRY(wf_coll_receive(comm, comm->lists.frame_in, sizeof *frame, from));
    WF_TRY(shape_of(comm, frame, from, shape));
    *dtype = (wf_dtype)frame->dtype;
    return WF_OK;
}

wf_status wf_peer_slots_look_new(wf_comm *comm, int from, wf_tensor **y)
{
    wf_dtype dtype;
    wf_shape shape;
    WF_TRY(wf_peer_slots_look(comm, from, &dtype, &shape));
    *y = wf_tensor_new(comm->shared->ctx, dtype, shape);
    return *y ? WF_OK : wf_error_code();
}

wf_status wf_peer_slots_take(wf_comm *comm, wf_tensor *y, int from, bool natively)
{
    wf_peer_slot *slot = &comm->slot[from];
    wf_status status;
    slot->in = y;
    slot->native_in = natively && native_point(comm, y);
    WF_TRY_OUT(wf_buffer_room(comm, y, slot->native_in, &slot->buffer_in));
    if (slot->native_in)
        WF_TRY_OUT(post_native(comm));
    else
        WF_TRY_OUT(wf_coll_receive(comm, slot->buffer_in.data, slot->buffer_in.bytes, from));
    WF_TRY_OUT(wf_buffer_store(&slot->buffer_in));
out:
    wf_peer_slots_free(comm);
    return status;
}

wf_status wf_peer_slots_copy_own(wf_comm *comm)
{
    const wf_peer_slot *own = &comm->slot[comm->rank];
    if (!own->in || !own->out || own->in == own->out)
        return WF_OK;
    const wf_frame frame = wf_frame_of(own->out);
    WF_TRY(check_frame(comm, &frame, own->in, comm->rank));
    return wf_tensor_assign(own->in, own->out);
}

static wf_status run(wf_comm *comm)
{
    WF_TRY(wf_peer_slots_prepare(comm));
    WF_TRY(move_lists(comm, true));
    WF_TRY(post_native(comm));
    WF_TRY(wf_peer_slots_copy_own(comm));
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->slot[r].in)
            WF_TRY(wf_buffer_store(&comm->slot[r].buffer_in));
    return WF_OK;
}

wf_status wf_peer_slots_exchange(wf_comm *comm)
{
    const wf_status status = run(comm);
    wf_peer_slots_free(comm);
    return status;
}

void wf_peer_slots_free(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        wf_buffer_free(&comm->slot[r].buffer_out);
        wf_buffer_free(&comm->slot[r].buffer_in);
    }
}
