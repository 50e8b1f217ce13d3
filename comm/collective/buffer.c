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

wf_status wf_buffer_room(wf_comm *comm, const wf_tensor *y, bool native, wf_buffer *buffer)
{
    *buffer = (wf_buffer){.comm = comm, .tensor = y};
    buffer->bytes = y ? wf_tensor_bytes(y) : 0;
    if (buffer->bytes == 0)
        return WF_OK;
    buffer->data = y->data;
    /* Two steps at most, each only where it is needed: into the order that travels, then into memory that the transport
     * can read. */
    if (!travels_as_it_is(y)) {
        WF_TRY(wf_pool_take(y->ctx, buffer->bytes, &buffer->packed));
        buffer->data = buffer->packed;
    }
    if (!y->ctx->k->host && !native) {
        WF_TRY(wf_host_take(comm, buffer->bytes, &buffer->staged));
        buffer->data = buffer->staged;
    }
    return WF_OK;
}

wf_status wf_buffer_read(wf_comm *comm, const wf_tensor *x, bool native, wf_buffer *buffer)
{
    WF_TRY(wf_buffer_room(comm, x, native, buffer));
    if (buffer->packed) {
        const wf_strided from = wf_tensor_strided(x), to = dense_view(x, buffer->packed);
        WF_TRY(x->ctx->k->copy(x->ctx, &from, &to, false));
    }
    if (buffer->staged)
        WF_TRY(wf_ctx_read(x->ctx, buffer->staged, buffer->packed ? buffer->packed : x->data, buffer->bytes));
    return WF_OK;
}

wf_status wf_buffer_store(wf_buffer *buffer)
{
    const wf_tensor *y = buffer->tensor;
    if (!y)
        return WF_OK;
    if (buffer->staged)
        WF_TRY(y->ctx->k->to_device(y->ctx, buffer->packed ? buffer->packed : y->data, buffer->staged, buffer->bytes));
    if (buffer->packed) {
        const wf_strided from = dense_view(y, buffer->packed), to = wf_tensor_strided(y);
        WF_TRY(y->ctx->k->copy(y->ctx, &from, &to, false));
    }
    /* What others keep of the old contents is void. */
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
