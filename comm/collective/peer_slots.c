#include "comm/collective/collective_impl.h"
#include "comm/nccl_author.h"

#include <string.h>

void wf_peer_slots_start(wf_comm *comm, wf_way way)
{
    memset(comm->slot, 0, (size_t)comm->size * sizeof *comm->slot);
    comm->way = way;
}

static wf_frame frame_of(const wf_tensor *x)
{
    wf_frame frame = {.dtype = (int32_t)x->dtype, .rank = x->shape.rank};
    memcpy(frame.dim, x->shape.dim, sizeof frame.dim);
    return frame;
}

wf_status wf_frame_shape(const wf_frame *frame, int from, wf_shape *shape)
{
    *shape = wf_shape_make(frame->rank, frame->dim);
    WF_CHECK(frame->dtype >= 0 && frame->dtype < WF_DTYPES && wf_shape_count(*shape) >= 0, WF_ERR_COMM,
             "what rank %d sent is no tensor", from);
    return WF_OK;
}

static wf_status check_frame(const wf_frame *frame, const wf_tensor *y, int from)
{
    char sent[WF_SHAPE_TEXT], expected[WF_SHAPE_TEXT];
    wf_shape shape;
    WF_TRY(wf_frame_shape(frame, from, &shape));
    WF_CHECK(frame->dtype == (int32_t)y->dtype && wf_shape_equal(shape, y->shape), WF_ERR_COMM,
             "rank %d sent %s %.120s where %s %.120s is expected", from, wf_dtype_name((wf_dtype)frame->dtype),
             wf_shape_text(shape, sent), wf_dtype_name(y->dtype), wf_shape_text(y->shape, expected));
    return WF_OK;
}

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

/* NCCL knows no tags: it matches the messages of two ranks by their order. That is the order in which receivers come,
 * if senders wait for them. MPI lets them wait too with all that is longer than it sends at once, so no program that
 * runs by MPI waits for ever here. */
bool wf_peer_slots_native_point(const wf_comm *comm, const wf_tensor *x)
{
    return comm->nccl && wf_tensor_bytes(x) > WF_PROMPT_BYTES;
}

static bool native(const wf_comm *comm, const wf_tensor *x)
{
    return comm->way == WF_WAY_POINT ? wf_peer_slots_native_point(comm, x) : comm->way == WF_WAY_NATIVE && comm->nccl;
}

wf_status wf_peer_slots_read(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        wf_peer_slot *slot = &comm->slot[r];
        if (r == comm->rank || !slot->out)
            continue;
        slot->frame_out = frame_of(slot->out);
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

/* Starts with the next rank, so that not all ranks begin with the same one. */
static int peer_of(const wf_comm *comm, int step)
{
    return (comm->rank + step) % comm->size;
}

static wf_status post_frames(wf_comm *comm)
{
    for (int step = 1; step < comm->size; step++) {
        const int from = peer_of(comm, comm->size - step);
        if (comm->slot[from].in)
            WF_TRY(wf_requests_recv_frame(&comm->requests, &comm->slot[from].frame_in, from));
    }
    for (int step = 1; step < comm->size; step++) {
        const int to = peer_of(comm, step);
        if (comm->slot[to].out)
            WF_TRY(wf_requests_send_frame(&comm->requests, &comm->slot[to].frame_out, to));
    }
    return WF_OK;
}

static wf_status post_data(wf_comm *comm)
{
    for (int step = 1; step < comm->size; step++) {
        const int from = peer_of(comm, comm->size - step);
        const wf_buffer *in = &comm->slot[from].buffer_in;
        if (comm->slot[from].in && !comm->slot[from].native_in)
            WF_TRY(wf_requests_recv(&comm->requests, in->data, in->bytes, from));
    }
    for (int step = 1; step < comm->size; step++) {
        const int to = peer_of(comm, step);
        const wf_buffer *out = &comm->slot[to].buffer_out;
        if (comm->slot[to].out && !comm->slot[to].native_out)
            WF_TRY(wf_requests_send(&comm->requests, out->data, out->bytes, to));
    }
    return WF_OK;
}

static wf_status check_frames(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->slot[r].in)
            WF_TRY(check_frame(&comm->slot[r].frame_in, comm->slot[r].in, r));
    return WF_OK;
}

/* Under a tag of its own: what else this rank has sent there under the tag of the message may still be on its way. */
static wf_status answer(wf_comm *comm, wf_frame *frame, int peer, bool sending)
{
    wf_requests *requests = &comm->requests;
    const int tag = requests->tag;
    requests->tag = WF_TAGS + comm->tags;
    const wf_status status =
        sending ? wf_requests_send_frame(requests, frame, peer) : wf_requests_recv_frame(requests, frame, peer);
    requests->tag = tag;
    return status;
}

/* Every receiver of a message between two has come. */
static wf_status meet(wf_comm *comm)
{
    const int first = comm->requests.count;
    for (int r = 0; r < comm->size; r++) {
        wf_peer_slot *slot = &comm->slot[r];
        if (slot->native_in)
            WF_TRY(answer(comm, &slot->go_out, r, true));
        if (slot->native_out)
            WF_TRY(answer(comm, &slot->go_in, r, false));
    }
    return wf_requests_wait(&comm->requests, first, comm->requests.count);
}

/* All that goes by NCCL is one call. */
static wf_status post_native(wf_comm *comm)
{
    bool any = false;
    for (int r = 0; r < comm->size; r++)
        any = any || comm->slot[r].native_in || comm->slot[r].native_out;
    if (!any)
        return WF_OK;
    if (comm->way == WF_WAY_POINT)
        WF_TRY(meet(comm));
    WF_TRY(wf_nccl_begin(comm));
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &comm->slot[r];
        if (slot->native_in && slot->buffer_in.bytes > 0)
            WF_TRY(wf_nccl_recv(comm, slot->buffer_in.data, slot->buffer_in.bytes, r));
        if (slot->native_out && slot->buffer_out.bytes > 0)
            WF_TRY(wf_nccl_send(comm, slot->buffer_out.data, slot->buffer_out.bytes, r));
    }
    return wf_nccl_end(comm);
}

wf_status wf_peer_slots_agree(wf_comm *comm)
{
    WF_TRY(post_frames(comm));
    WF_TRY(wf_requests_wait_all(&comm->requests));
    return check_frames(comm);
}

wf_status wf_peer_slots_post(wf_comm *comm)
{
    WF_TRY(post_frames(comm));
    const int frames = comm->requests.count;
    WF_TRY(post_data(comm));
    WF_TRY(wf_requests_wait(&comm->requests, 0, frames));
    WF_TRY(check_frames(comm));
    return post_native(comm);
}

wf_status wf_peer_slots_take(wf_comm *comm, wf_tensor *y, int from)
{
    wf_peer_slot *slot = &comm->slot[from];
    wf_status status;
    slot->in = y;
    slot->native_in = true;
    WF_TRY_OUT(wf_buffer_room(comm, y, true, &slot->buffer_in));
    WF_TRY_OUT(post_native(comm));
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
    const wf_frame frame = frame_of(own->out);
    WF_TRY(check_frame(&frame, own->in, comm->rank));
    return wf_tensor_assign(own->in, own->out);
}

static wf_status run(wf_comm *comm)
{
    WF_TRY(wf_peer_slots_prepare(comm));
    WF_TRY(wf_peer_slots_post(comm));
    WF_TRY(wf_peer_slots_copy_own(comm));
    WF_TRY(wf_requests_wait_all(&comm->requests));
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
