#include "comm/comm_impl.h"

#include <string.h>

void wf_lanes_start(wf_comm *comm)
{
    memset(comm->lane, 0, (size_t)comm->size * sizeof *comm->lane);
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
    wf_lane *lane = &comm->lane[rank];
    for (int r = 0; r < rank; r++) {
        if (r == comm->rank || comm->lane[r].out != lane->out)
            continue;
        lane->buffer_out = comm->lane[r].buffer_out;
        lane->buffer_out.packed = lane->buffer_out.staged = NULL;
        return WF_OK;
    }
    return wf_buffer_read(comm, lane->out, &lane->buffer_out);
}

wf_status wf_lanes_prepare(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        wf_lane *lane = &comm->lane[r];
        if (r == comm->rank)
            continue;
        if (lane->out) {
            lane->frame_out = frame_of(lane->out);
            WF_TRY(read_once(comm, r));
        }
        if (lane->in)
            WF_TRY(wf_buffer_room(comm, lane->in, &lane->buffer_in));
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
        if (comm->lane[from].in)
            WF_TRY(wf_batch_recv_frame(&comm->batch, &comm->lane[from].frame_in, from));
    }
    for (int step = 1; step < comm->size; step++) {
        const int to = peer_of(comm, step);
        if (comm->lane[to].out)
            WF_TRY(wf_batch_send_frame(&comm->batch, &comm->lane[to].frame_out, to));
    }
    return WF_OK;
}

static wf_status post_data(wf_comm *comm)
{
    for (int step = 1; step < comm->size; step++) {
        const int from = peer_of(comm, comm->size - step);
        const wf_buffer *in = &comm->lane[from].buffer_in;
        if (comm->lane[from].in)
            WF_TRY(wf_batch_recv(&comm->batch, in->data, in->bytes, from));
    }
    for (int step = 1; step < comm->size; step++) {
        const int to = peer_of(comm, step);
        const wf_buffer *out = &comm->lane[to].buffer_out;
        if (comm->lane[to].out)
            WF_TRY(wf_batch_send(&comm->batch, out->data, out->bytes, to));
    }
    return WF_OK;
}

wf_status wf_lanes_post(wf_comm *comm)
{
    WF_TRY(post_frames(comm));
    const int frames = comm->batch.count;
    WF_TRY(post_data(comm));
    WF_TRY(wf_batch_wait(&comm->batch, 0, frames));
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->lane[r].in)
            WF_TRY(check_frame(&comm->lane[r].frame_in, comm->lane[r].in, r));
    return WF_OK;
}

static wf_status copy_own(wf_comm *comm)
{
    const wf_lane *own = &comm->lane[comm->rank];
    if (!own->in || !own->out || own->in == own->out)
        return WF_OK;
    const wf_frame frame = frame_of(own->out);
    WF_TRY(check_frame(&frame, own->in, comm->rank));
    return wf_tensor_assign(own->in, own->out);
}

static wf_status run(wf_comm *comm)
{
    WF_TRY(wf_lanes_prepare(comm));
    WF_TRY(wf_lanes_post(comm));
    WF_TRY(copy_own(comm));
    WF_TRY(wf_batch_wait_all(&comm->batch));
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && comm->lane[r].in)
            WF_TRY(wf_buffer_store(&comm->lane[r].buffer_in));
    return WF_OK;
}

wf_status wf_lanes_exchange(wf_comm *comm)
{
    const wf_status status = run(comm);
    wf_lanes_free(comm);
    return status;
}

void wf_lanes_free(wf_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        wf_buffer_free(&comm->lane[r].buffer_out);
        wf_buffer_free(&comm->lane[r].buffer_in);
    }
}
