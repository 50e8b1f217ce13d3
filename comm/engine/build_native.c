/* Calls on device memory that the native transport moves: each is one call of it, or a group of calls. Among one rank
 * that is not connected, what is left of them is a copy.
 *
 * The transport would round 16-bit types at every step of a sum, so reductions of them go through f32: a copy widens
 * them, and another one rounds the result. */
#include "comm/engine/collectives_author.h"

_Static_assert(WF_CALLS == 12, "a new operation: decide here and in wf_build_native if the native transport moves it");
bool wf_call_stays(const wf_agreed *agreed, const wf_call *call)
{
    const bool alone = wf_agreed_alone(agreed);
    if (!call->device || !(agreed->native || (alone && agreed->staged)))
        return false;
    switch (call->operation) {
    case WF_CALL_SUM:
    case WF_CALL_SUM_SHARDS:
    case WF_CALL_GATHER_SHARDS:
        return agreed->native;
    case WF_CALL_REDUCE:
    case WF_CALL_ALLREDUCE:
    case WF_CALL_REDUCE_SCATTER:
        return alone || call->op == WF_SUM || call->op == WF_PROD || !wf_dtype_is_float(call->dtype);
    default:
        return true;
    }
}

/* A native call of a builder, whose elements are of `size` bytes. */
typedef struct native_call {
    wf_builder *b;
    const wf_call *call;
    wf_dtype dtype; /* in which it travels */
    size_t size;
} native_call;

static bool is_alone(const native_call *n)
{
    return wf_agreed_alone(wf_builder_agreed(n->b));
}

static void add_native_copy(const native_call *n, wf_address x, wf_dtype from, wf_address y, wf_dtype to, int64_t count)
{
    const wf_step copy = {.list = WF_NATIVE_COPY, .dtype = (uint8_t)from, .to_dtype = (uint8_t)to, .value = count};
    if (count > 0)
        wf_add_native(n->b, copy, x, y);
    wf_builder_phase(n->b);
}

/* Each is a phase of its own, since the transport matches calls by their order. */
static void add_call(const native_call *n, wf_native_kind kind, wf_address x, wf_address y, int64_t count, int peer)
{
    wf_step step = {.list = (int32_t)kind, .op = (uint8_t)n->call->op, .peer = peer, .value = count};
    step.dtype = step.to_dtype = (uint8_t)n->dtype;
    wf_add_native(n->b, step, x, y);
    wf_builder_phase(n->b);
}

/* --- vectors of equal length -------------------------------------------------------------------------------------- */

static void build_bcast(const native_call *n, wf_address data)
{
    if (!is_alone(n))
        add_call(n, WF_NATIVE_BCAST, WF_NOWHERE, data, n->call->count, n->call->root);
}

static void build_allgather(const native_call *n, wf_address mine, wf_address all)
{
    if (is_alone(n))
        add_native_copy(n, mine, n->dtype, all, n->dtype, n->call->count);
    else
        add_call(n, WF_NATIVE_ALLGATHER, mine, all, n->call->count, -1);
}

/* root -1: everywhere. */
static void build_reduce(const native_call *n, wf_address x, wf_address y, int root)
{
    const int64_t count = n->call->count;
    const wf_dtype dtype = n->call->dtype;
    if (is_alone(n)) {
        add_native_copy(n, x, dtype, y, dtype, count);
    } else if (dtype == n->dtype) {
        add_call(n, WF_NATIVE_REDUCE, x, y, count, root);
    } else {
        const wf_address wide = wf_builder_device(n->b, (size_t)count * n->size);
        add_native_copy(n, x, dtype, wide, n->dtype, count);
        add_call(n, WF_NATIVE_REDUCE, wide, wide, count, root);
        if (root < 0 || root == wf_builder_rank(n->b))
            add_native_copy(n, wide, n->dtype, y, dtype, count);
    }
}

/* --- shards ------------------------------------------------------------------------------------------------------- */

static wf_address shard_at(const native_call *n, wf_address data, int rank)
{
    return wf_address_add(data, (size_t)n->call->part[rank] * n->size);
}

/* Adds one call for shards of equal length, which are `each` long, or a group of one call for each rank. */
static void add_shards(const native_call *n, wf_address data, wf_native_kind whole, wf_native_kind single)
{
    const int64_t *shard = n->call->part;
    const int ranks = wf_builder_agreed(n->b)->ranks, rank = wf_builder_rank(n->b);
    const wf_address own = shard_at(n, data, rank);
    const bool gathers = whole == WF_NATIVE_ALLGATHER;
    bool equal = true;
    for (int r = 1; r < ranks; r++)
        equal = equal && shard[r + 1] - shard[r] == shard[1];
    if (equal) {
        add_call(n, whole, gathers ? own : data, gathers ? data : own, shard[1], -1);
        return;
    }
    add_call(n, WF_NATIVE_GROUP, WF_NOWHERE, WF_NOWHERE, 0, -1);
    for (int r = 0; r < ranks; r++) {
        const wf_address at = shard_at(n, data, r);
        add_call(n, single, gathers ? WF_NOWHERE : at, at, shard[r + 1] - shard[r], r);
    }
    add_call(n, WF_NATIVE_LAUNCH, WF_NOWHERE, WF_NOWHERE, 0, -1);
}

static void build_sum_shards(const native_call *n, wf_address data)
{
    const wf_dtype dtype = n->call->dtype;
    const int64_t *shard = n->call->part;
    const int rank = wf_builder_rank(n->b);
    if (dtype == n->dtype) {
        add_shards(n, data, WF_NATIVE_REDUCE_SCATTER, WF_NATIVE_REDUCE);
        return;
    }
    const int64_t count = shard[wf_builder_agreed(n->b)->ranks];
    const wf_address wide = wf_builder_device(n->b, (size_t)count * n->size);
    const wf_address own = wf_address_add(data, (size_t)shard[rank] * wf_dtype_size(dtype));
    add_native_copy(n, data, dtype, wide, n->dtype, count);
    add_shards(n, wide, WF_NATIVE_REDUCE_SCATTER, WF_NATIVE_REDUCE);
    add_native_copy(n, shard_at(n, wide, rank), n->dtype, own, dtype, shard[rank + 1] - shard[rank]);
}

static void build_sum(const native_call *n, wf_address flat)
{
    const int64_t first = n->call->parts > 0 ? n->call->part[0] : 0;
    const wf_address at = wf_address_add(flat, (size_t)first * n->size);
    add_call(n, WF_NATIVE_REDUCE, at, at, n->call->count - first, -1);
}

/* --- all ---------------------------------------------------------------------------------------------------------- */

static wf_address operand(const native_call *n, wf_operand_kind kind, int64_t count)
{
    return wf_builder_operand(n->b, kind, 0, (size_t)count * wf_dtype_size(n->call->dtype));
}

void wf_build_native(wf_builder *b, const wf_call *call)
{
    const int ranks = wf_builder_agreed(b)->ranks;
    const bool narrow = call->dtype == WF_BF16 || call->dtype == WF_F16;
    const bool widens = narrow && (call->operation == WF_CALL_REDUCE || call->operation == WF_CALL_ALLREDUCE ||
                                   call->operation == WF_CALL_SUM_SHARDS);
    native_call n = {.b = b, .call = call, .dtype = widens ? WF_F32 : call->dtype};
    n.size = wf_dtype_size(n.dtype);
    wf_builder_in_order(b);
    switch (call->operation) {
    case WF_CALL_BCAST:
        build_bcast(&n, operand(&n, WF_OPERAND_BOTH, call->count));
        break;
    case WF_CALL_ALLGATHER:
        build_allgather(&n, operand(&n, WF_OPERAND_INPUT, call->count),
                        operand(&n, WF_OPERAND_OUTPUT, ranks * call->count));
        break;
    case WF_CALL_SUM:
        build_sum(&n, operand(&n, WF_OPERAND_BOTH, call->count));
        break;
    case WF_CALL_SUM_SHARDS:
        build_sum_shards(&n, operand(&n, WF_OPERAND_BOTH, call->part[ranks]));
        break;
    case WF_CALL_GATHER_SHARDS:
        add_shards(&n, operand(&n, WF_OPERAND_BOTH, call->part[ranks]), WF_NATIVE_ALLGATHER, WF_NATIVE_BCAST);
        break;
    default: { /* WF_CALL_REDUCE, WF_CALL_ALLREDUCE */
        const int root = call->operation == WF_CALL_REDUCE ? call->root : -1;
        const bool wanted = root < 0 || root == wf_builder_rank(b);
        wf_builder_in_place(b);
        build_reduce(&n, operand(&n, WF_OPERAND_INPUT, call->count),
                     wanted ? operand(&n, WF_OPERAND_OUTPUT, call->count) : WF_NOWHERE, root);
        break;
    }
    }
}
