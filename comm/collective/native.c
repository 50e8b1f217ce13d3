/* Calls on lists by the native transport. Types and shapes have travelled ahead by messages, so all ranks know that
 * lengths are equal. */
#include "comm/collective/collective_impl.h"
#include "core/boundary_author.h"

/* A native connection knows no tags: it matches the messages of two ranks by their order. That is the order in which
 * receivers come, if senders wait for them. MPI lets them wait too with all that is longer than it sends at once, so no
 * program that runs by MPI waits for ever here. */
size_t wf_native_least(const wf_comm *comm)
{
    return comm->native ? WF_PROMPT_BYTES + 1 : SIZE_MAX;
}

static wf_status pass_row(wf_comm *comm, wf_native_kind kind, const void *from, void *to, size_t bytes, int peer)
{
    const wf_strided x = wf_strided_row(from, WF_U8, (int64_t)bytes), y = wf_strided_row(to, WF_U8, (int64_t)bytes);
    return wf_native_run(comm, kind, WF_SUM, peer, &x, &y);
}

wf_status wf_native_pass(wf_comm *comm, wf_native_kind kind, const wf_buffer *buffer, int peer)
{
    return pass_row(comm, kind, buffer->data, buffer->data, buffer->bytes, peer);
}

wf_status wf_native_move_lists(wf_comm *comm)
{
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++) {
        if (wf_lists_stay(&comm->call.incoming[r], r))
            WF_TRY(wf_native_pass(comm, WF_NATIVE_RECV, &comm->call.incoming[r], r));
        if (wf_lists_stay(&comm->call.outgoing[r], r))
            WF_TRY(wf_native_pass(comm, WF_NATIVE_SEND, &comm->call.outgoing[r], r));
    }
    return wf_transport_native.end(comm, true);
}

wf_status wf_native_gather_lists(wf_comm *comm, const wf_buffer *own)
{
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++)
        WF_TRY(wf_native_pass(comm, WF_NATIVE_BCAST, r == comm->rank ? own : &comm->call.incoming[r], r));
    return wf_transport_native.end(comm, true);
}

/* As shards of one vector. */
wf_status wf_native_reduce_lists(wf_comm *comm, wf_dtype dtype, wf_reduce_op op)
{
    wf_ctx *ctx = comm->shared->ctx;
    const wf_buffer *out = comm->call.outgoing, *result = &comm->call.incoming[comm->rank];
    const size_t size = wf_dtype_size(dtype);
    int64_t *shard = comm->call.part;
    void *all;
    wf_status status;
    if (wf_agreed_alone(wf_engine_agreed(comm)))
        return pass_row(comm, WF_NATIVE_COPY, out[comm->rank].data, result->data, result->bytes, -1);
    shard[0] = 0;
    for (int r = 0; r < comm->size; r++)
        shard[r + 1] = shard[r] + wf_tensor_count(out[r].tensor);
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
            pass_row(comm, WF_NATIVE_COPY, out[r].data, (char *)all + (size_t)shard[r] * size, out[r].bytes, -1));
    WF_TRY_OUT(wf_engine_run(comm, &call, NULL, all));
    const char *part = (char *)all + (size_t)shard[comm->rank] * size;
    WF_TRY_OUT(pass_row(comm, WF_NATIVE_COPY, part, result->data, result->bytes, -1));
out:
    wf_pool_give(ctx, all, bytes);
    return status;
}
