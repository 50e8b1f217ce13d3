/* Tensors of the peer slots on their way by the native transport. Types and shapes have travelled ahead by messages, so
 * all ranks know that lengths are equal. */
#include "comm/collective/collective_impl.h"

/* A native connection knows no tags: it matches the messages of two ranks by their order. That is the order in which
 * receivers come, if senders wait for them. MPI lets them wait too with all that is longer than it sends at once, so no
 * program that runs by MPI waits for ever here. */
size_t wf_native_least(const wf_comm *comm)
{
    return comm->native ? WF_PROMPT_BYTES + 1 : SIZE_MAX;
}

static wf_status keep(wf_comm *comm, const void *x, void *y, size_t bytes)
{
    wf_ctx *ctx = comm->shared->ctx;
    const wf_strided src = {.data = (void *)x, .dtype = WF_U8, .rank = 1, .dim = {(int64_t)bytes}, .stride = {1}};
    wf_strided dst = src;
    dst.data = y;
    return bytes > 0 && x != y ? ctx->k->copy(ctx, &src, &dst, false) : WF_OK;
}

static wf_status put_bytes(wf_comm *comm, wf_native_kind kind, const void *x, void *y, size_t bytes, int peer)
{
    return wf_native_run(comm, &(wf_native_part){.kind = kind, .count = (int64_t)bytes, .dtype = WF_U8, .peer = peer},
                         x, y);
}

wf_status wf_native_send(wf_comm *comm, const void *data, size_t bytes, int to)
{
    return put_bytes(comm, WF_NATIVE_SEND, data, NULL, bytes, to);
}

wf_status wf_native_recv(wf_comm *comm, void *data, size_t bytes, int from)
{
    return put_bytes(comm, WF_NATIVE_RECV, NULL, data, bytes, from);
}

wf_status wf_native_move_slots(const wf_peer_call *c)
{
    wf_comm *comm = c->comm;
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &c->slot[r];
        if (wf_peer_slot_stays(c, slot, slot->in))
            WF_TRY(wf_native_recv(comm, slot->buffer_in.data, slot->buffer_in.bytes, r));
        if (wf_peer_slot_stays(c, slot, slot->out))
            WF_TRY(wf_native_send(comm, slot->buffer_out.data, slot->buffer_out.bytes, r));
    }
    return wf_transport_native.end(comm, true);
}

wf_status wf_native_gather_slots(const wf_peer_call *c, const wf_buffer *own)
{
    wf_comm *comm = c->comm;
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++) {
        const wf_buffer *from = r == comm->rank ? own : &c->slot[r].buffer_in;
        WF_TRY(put_bytes(comm, WF_NATIVE_BCAST, NULL, from->data, from->bytes, r));
    }
    return wf_transport_native.end(comm, true);
}

/* As shards of one vector. */
wf_status wf_native_reduce_slots(const wf_peer_call *c, wf_dtype dtype, wf_reduce_op op)
{
    wf_comm *comm = c->comm;
    wf_ctx *ctx = comm->shared->ctx;
    const wf_peer_slot *own = &c->slot[comm->rank];
    const size_t size = wf_dtype_size(dtype);
    int64_t *shard = c->part;
    void *all;
    wf_status status;
    if (wf_agreed_alone(wf_engine_agreed(comm)))
        return keep(comm, own->buffer_out.data, own->buffer_in.data, own->buffer_in.bytes);
    shard[0] = 0;
    for (int r = 0; r < comm->size; r++)
        shard[r + 1] = shard[r] + wf_tensor_count(c->slot[r].out);
    const size_t bytes = (size_t)shard[comm->size] * size;
    const wf_call call = {.operation = WF_CALL_SUM_SHARDS,
                          .op = op,
                          .dtype = dtype,
                          .count = shard[comm->size],
                          .part = shard,
                          .device = true};
    if (bytes == 0)
        return WF_OK;
    WF_TRY(wf_pool_take(ctx, bytes, &all));
    for (int r = 0; r < comm->size; r++)
        WF_TRY_OUT(
            keep(comm, c->slot[r].buffer_out.data, (char *)all + (size_t)shard[r] * size, c->slot[r].buffer_out.bytes));
    WF_TRY_OUT(wf_engine_run(comm, &call, NULL, all));
    const char *part = (char *)all + (size_t)shard[comm->rank] * size;
    WF_TRY_OUT(keep(comm, part, own->buffer_in.data, own->buffer_in.bytes));
out:
    wf_pool_give(ctx, all, bytes);
    return status;
}
