/* The memory in which a tensor's elements travel: in place where they lie densely and the transport can read them,
 * otherwise packed, and for a GPU without a native transport in host memory. Collectives and point-to-point calls take
 * a buffer before and give it back after the message. */
#include "comm/collective/collective_impl.h"

/* The order in which elements travel, whatever the order of the tensors at both ends. */
static wf_strided dense_view(const wf_tensor *x, void *data)
{
    wf_strided view = wf_tensor_strided(x);
    view.data = data;
    wf_order_strides(x->shape, wf_order_default(x->shape.rank), view.stride);
    return view;
}

static bool travels_as_it_is(const wf_tensor *x)
{
    int64_t stride[WF_MAX_RANK];
    wf_order_strides(x->shape, wf_order_default(x->shape.rank), stride);
    for (int d = 0; d < x->shape.rank; d++)
        if (x->shape.dim[d] > 1 && x->stride[d] != stride[d])
            return false;
    return true;
}

/* Into memory that the transport can read, unless it reads that of the device. */
static wf_status stage(wf_buffer *b, bool on_device)
{
    if (b->comm->shared->ctx->k->host || on_device)
        return WF_OK;
    WF_TRY(wf_host_take(b->comm, b->bytes, &b->staged));
    b->data = b->staged;
    return WF_OK;
}

/* Two steps at most, each only where it is needed: into the order that travels, then into the host's memory. */
wf_status wf_buffer_room(wf_comm *comm, const wf_tensor *y, bool on_device, wf_buffer *buffer)
{
    *buffer = (wf_buffer){.comm = comm, .tensor = y};
    buffer->bytes = y ? wf_tensor_bytes(y) : 0;
    if (buffer->bytes == 0)
        return WF_OK;
    buffer->origin = buffer->data = y->data;
    if (!travels_as_it_is(y)) {
        WF_TRY(wf_pool_take(y->ctx, buffer->bytes, &buffer->packed));
        buffer->data = buffer->packed;
    }
    return stage(buffer, on_device);
}

wf_status wf_buffer_vector(wf_comm *comm, void *data, size_t bytes, bool on_device, wf_buffer *buffer)
{
    *buffer = (wf_buffer){.comm = comm, .origin = data, .data = data, .bytes = bytes};
    return bytes > 0 ? stage(buffer, on_device) : WF_OK;
}

static wf_status read_staged(wf_buffer *b)
{
    return b->staged ? wf_ctx_read(b->comm->shared->ctx, b->staged, b->packed ? b->packed : b->origin, b->bytes)
                     : WF_OK;
}

wf_status wf_buffer_read(wf_comm *comm, const wf_tensor *x, bool on_device, wf_buffer *buffer)
{
    WF_TRY(wf_buffer_room(comm, x, on_device, buffer));
    if (buffer->packed) {
        const wf_strided from = wf_tensor_strided(x), to = dense_view(x, buffer->packed);
        WF_TRY(x->ctx->k->copy(x->ctx, &from, &to, false));
    }
    return read_staged(buffer);
}

wf_status wf_buffer_read_vector(wf_comm *comm, const void *data, size_t bytes, bool on_device, wf_buffer *buffer)
{
    WF_TRY(wf_buffer_vector(comm, (void *)data, bytes, on_device, buffer));
    return read_staged(buffer);
}

wf_status wf_buffer_store(wf_buffer *buffer)
{
    const wf_tensor *y = buffer->tensor;
    if (buffer->staged) {
        wf_ctx *ctx = buffer->comm->shared->ctx;
        void *to = buffer->packed ? buffer->packed : buffer->origin;
        WF_TRY(ctx->k->to_device(ctx, to, buffer->staged, buffer->bytes));
    }
    if (!y)
        return WF_OK;
    if (buffer->packed) {
        const wf_strided from = dense_view(y, buffer->packed), to = wf_tensor_strided(y);
        WF_TRY(y->ctx->k->copy(y->ctx, &from, &to, false));
    }
    /* Copies of the old contents that others keep are void. */
    wf_tensor_touch((wf_tensor *)y);
    return WF_OK;
}

void wf_buffer_free(wf_buffer *buffer)
{
    if (buffer->packed && !buffer->comm->lost)
        wf_pool_give(buffer->tensor->ctx, buffer->packed, buffer->bytes);
    if (buffer->staged)
        wf_host_give(buffer->comm, buffer->staged, buffer->bytes);
    buffer->packed = buffer->staged = NULL;
}
