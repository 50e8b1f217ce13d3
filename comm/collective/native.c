/* What the native transport is asked to do, and what is left to do where there is one rank. It would round 16-bit types
 * at every step of a sum: they go as f32, but for sums of gradients. */
#include "comm/collective/collective_impl.h"

/* One rank, and nobody to ask. */
static bool alone(const wf_comm *comm)
{
    return comm->size == 1 && !comm->native;
}

static bool bypasses(const wf_comm *comm)
{
    return comm->native || (alone(comm) && !comm->shared->ctx->k->host);
}

bool wf_native_takes(const wf_comm *comm, const wf_call *call)
{
    if (!call->device || !bypasses(comm))
        return false;
    switch (call->operation) {
    case WF_CALL_SUM:
    case WF_CALL_SUM_SHARDS:
    case WF_CALL_GATHER_SHARDS:
        return comm->native;
    case WF_CALL_REDUCE:
    case WF_CALL_ALLREDUCE:
    case WF_CALL_REDUCE_SCATTER:
        /* Maxima and minima of floats stay with the engine, whose rule for NaN the transport does not have. */
        return alone(comm) || call->op == WF_SUM || call->op == WF_PROD || !wf_dtype_is_float(call->dtype);
    default:
        return true;
    }
}

/* A native connection knows no tags: it matches the messages of two ranks by their order. That is the order in which
 * receivers come, if senders wait for them. MPI lets them wait too with all that is longer than it sends at once, so no
 * program that runs by MPI waits for ever here. */
bool wf_native_takes_tensor(const wf_peer_call *c, const wf_tensor *x)
{
    if (!c->comm->native)
        return false;
    return c->way == WF_WAY_NATIVE || (c->way == WF_WAY_POINT && wf_tensor_bytes(x) > WF_PROMPT_BYTES);
}

static wf_status keep(wf_comm *comm, const void *x, void *y, size_t bytes)
{
    wf_ctx *ctx = comm->shared->ctx;
    const wf_strided src = {.data = (void *)x, .dtype = WF_U8, .rank = 1, .dim = {(int64_t)bytes}, .stride = {1}};
    wf_strided dst = src;
    dst.data = y;
    return bytes > 0 && x != y ? ctx->k->copy(ctx, &src, &dst, false) : WF_OK;
}

static wf_status move(wf_comm *comm, wf_native_operation operation, const void *x, void *y, size_t bytes, int peer)
{
    const wf_native_call call = {
        .operation = operation, .x = x, .y = y, .count = (int64_t)bytes, .dtype = WF_U8, .peer = peer};
    return wf_native_put(comm, &call);
}

static wf_status reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op, int root)
{
    const wf_native_call call = {
        .operation = WF_NATIVE_REDUCE, .x = x, .y = y, .count = count, .dtype = dtype, .op = op, .peer = root};
    return wf_native_put(comm, &call);
}

wf_status wf_native_send(wf_comm *comm, const void *data, size_t bytes, int to)
{
    return move(comm, WF_NATIVE_SEND, data, NULL, bytes, to);
}

wf_status wf_native_recv(wf_comm *comm, void *data, size_t bytes, int from)
{
    return move(comm, WF_NATIVE_RECV, NULL, data, bytes, from);
}

static wf_status run_bcast(wf_comm *comm, void *data, size_t bytes, int root)
{
    return alone(comm) ? WF_OK : move(comm, WF_NATIVE_BCAST, NULL, data, bytes, root);
}

static wf_status run_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    return alone(comm) ? keep(comm, mine, all, bytes) : move(comm, WF_NATIVE_ALLGATHER, mine, all, bytes, -1);
}

wf_status wf_native_move_slots(const wf_peer_call *c)
{
    wf_comm *comm = c->comm;
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++) {
        const wf_peer_slot *slot = &c->slot[r];
        if (slot->native_in)
            WF_TRY(wf_native_recv(comm, slot->buffer_in.data, slot->buffer_in.bytes, r));
        if (slot->native_out)
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
        WF_TRY(run_bcast(comm, from->data, from->bytes, r));
    }
    return wf_transport_native.end(comm, true);
}

static bool narrow(wf_dtype dtype)
{
    return dtype == WF_BF16 || dtype == WF_F16;
}

static wf_status convert(wf_comm *comm, const void *x, wf_dtype from, void *y, wf_dtype to, int64_t count)
{
    wf_ctx *ctx = comm->shared->ctx;
    const wf_strided src = {.data = (void *)x, .dtype = from, .rank = 1, .dim = {count}, .stride = {1}};
    const wf_strided dst = {.data = y, .dtype = to, .rank = 1, .dim = {count}, .stride = {1}};
    if (count == 0)
        return WF_OK;
    comm->traffic.bytes_copied += (size_t)count * wf_dtype_size(from);
    return ctx->k->copy(ctx, &src, &dst, false);
}

/* Waits for the sum before it converts; the background stream leaves this to wf_background_wait. */
static wf_status convert_back(wf_comm *comm, const float *wide, void *y, wf_dtype dtype, int64_t count)
{
    WF_TRY(wf_transport_native.join(comm));
    return convert(comm, wide, WF_F32, y, dtype, count);
}

static wf_status run_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                            int root)
{
    wf_ctx *ctx = comm->shared->ctx;
    const size_t bytes = (size_t)count * sizeof(float);
    void *wide;
    wf_status status;
    if (alone(comm))
        return keep(comm, x, y, (size_t)count * wf_dtype_size(dtype));
    if (!narrow(dtype))
        return reduce(comm, x, y, count, dtype, op, root);
    WF_TRY(wf_pool_take(ctx, bytes, &wide));
    WF_TRY_OUT(convert(comm, x, dtype, wide, WF_F32, count));
    WF_TRY_OUT(reduce(comm, wide, wide, count, WF_F32, op, root));
    if (root < 0 || root == comm->rank)
        WF_TRY_OUT(convert_back(comm, wide, y, dtype, count));
out:
    wf_pool_give(ctx, wide, bytes);
    return status;
}

/* The length of every part where they are equal; else 0. */
static int64_t equal_parts(const wf_comm *comm, const int64_t *shard)
{
    for (int r = 1; r < comm->size; r++)
        if (shard[r + 1] - shard[r] != shard[1])
            return 0;
    return shard[1];
}

/* In place. */
static wf_status sum_as_it_is(wf_comm *comm, char *data, const int64_t *shard, wf_dtype dtype, wf_reduce_op op)
{
    const size_t size = wf_dtype_size(dtype);
    const int64_t each = equal_parts(comm, shard);
    const wf_native_call call = {.operation = WF_NATIVE_REDUCE_SCATTER,
                                 .x = data,
                                 .y = data + (size_t)shard[comm->rank] * size,
                                 .count = each,
                                 .dtype = dtype,
                                 .op = op};
    if (each > 0)
        return wf_native_put(comm, &call);
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++) {
        char *part = data + (size_t)shard[r] * size;
        WF_TRY(reduce(comm, part, part, shard[r + 1] - shard[r], dtype, op, r));
    }
    return wf_transport_native.end(comm, true);
}

static wf_status run_reduce_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype, wf_reduce_op op)
{
    wf_ctx *ctx = comm->shared->ctx;
    const int64_t count = shard[comm->size], lo = shard[comm->rank], own = shard[comm->rank + 1] - lo;
    const size_t bytes = (size_t)count * sizeof(float);
    void *wide;
    wf_status status;
    if (count == 0)
        return WF_OK;
    if (!narrow(dtype))
        return sum_as_it_is(comm, data, shard, dtype, op);
    WF_TRY(wf_pool_take(ctx, bytes, &wide));
    WF_TRY_OUT(convert(comm, data, dtype, wide, WF_F32, count));
    WF_TRY_OUT(sum_as_it_is(comm, wide, shard, WF_F32, op));
    char *part = (char *)data + (size_t)lo * wf_dtype_size(dtype);
    WF_TRY_OUT(convert_back(comm, (float *)wide + lo, part, dtype, own));
out:
    wf_pool_give(ctx, wide, bytes);
    return status;
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
    if (alone(comm))
        return keep(comm, own->buffer_out.data, own->buffer_in.data, own->buffer_in.bytes);
    shard[0] = 0;
    for (int r = 0; r < comm->size; r++)
        shard[r + 1] = shard[r] + wf_tensor_count(c->slot[r].out);
    const size_t bytes = (size_t)shard[comm->size] * size;
    WF_TRY(wf_pool_take(ctx, bytes, &all));
    for (int r = 0; r < comm->size; r++)
        WF_TRY_OUT(
            keep(comm, c->slot[r].buffer_out.data, (char *)all + (size_t)shard[r] * size, c->slot[r].buffer_out.bytes));
    WF_TRY_OUT(run_reduce_shards(comm, all, shard, dtype, op));
    const char *part = (char *)all + (size_t)shard[comm->rank] * size;
    WF_TRY_OUT(keep(comm, part, own->buffer_in.data, own->buffer_in.bytes));
out:
    wf_pool_give(ctx, all, bytes);
    return status;
}

static wf_status run_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    const size_t size = wf_dtype_size(dtype);
    const int64_t each = equal_parts(comm, shard);
    char *first = data;
    if (shard[comm->size] == 0)
        return WF_OK;
    if (each > 0)
        return run_allgather(comm, first + (size_t)shard[comm->rank] * size, (size_t)each * size, data);
    WF_TRY(wf_native_begin(comm));
    for (int r = 0; r < comm->size; r++)
        WF_TRY(run_bcast(comm, first + (size_t)shard[r] * size, (size_t)(shard[r + 1] - shard[r]) * size, r));
    return wf_transport_native.end(comm, true);
}

/* Sent in the type of the buffer, also 16 bits, which is what wf_multi_node_opts.grad_dtype asks for. */
static wf_status run_sum(wf_comm *comm, const wf_call *call, void *flat)
{
    if (call->parts == 0)
        return WF_OK;
    char *first = (char *)flat + (size_t)call->part[0] * wf_dtype_size(call->dtype);
    return reduce(comm, first, first, call->count - call->part[0], call->dtype, WF_SUM, -1);
}

wf_status wf_native_run(wf_comm *comm, const wf_call *call, const void *in, void *out)
{
    const size_t bytes = (size_t)call->count * wf_dtype_size(call->dtype);
    switch (call->operation) {
    case WF_CALL_BCAST:
        return run_bcast(comm, out, bytes, call->root);
    case WF_CALL_ALLGATHER:
        return run_allgather(comm, in, bytes, out);
    case WF_CALL_SUM:
        return run_sum(comm, call, out);
    case WF_CALL_SUM_SHARDS:
        return run_reduce_shards(comm, out, call->part, call->dtype, WF_SUM);
    case WF_CALL_GATHER_SHARDS:
        return run_gather_shards(comm, out, call->part, call->dtype);
    default:
        return run_reduce(comm, in, out, call->count, call->dtype, call->op,
                          call->operation == WF_CALL_REDUCE ? call->root : -1);
    }
}
