/* Makes an exchange once from the boxes that ranks have and need: the plan, and what of it needs no packing. No
 * messages are sent here. */
#include "comm/mesh/mesh_impl.h"

#include "core/random_author.h"

#include <stdlib.h>
#include <string.h>

#define SCHEDULES 8 /* that are kept: two directions, the need as a box or in slabs, and tensors of some strides */

static uint64_t hash_double(uint64_t hash, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return wf_hash_u64(hash, bits);
}

static uint64_t hash_beyond(uint64_t hash, const wf_beyond *beyond)
{
    const wf_boundary *b = beyond->boundary;
    for (int d = 0; d < beyond->global.rank; d++) {
        hash = wf_hash_u64(hash, (uint64_t)beyond->global.dim[d]);
        hash = wf_hash_u64(hash, (uint64_t)wf_boundary_edge(b, d, false) << 8 | (uint64_t)wf_boundary_edge(b, d, true));
    }
    hash = wf_hash_u64(hash_double(hash, b->value), (uint64_t)b->turned << 1 | b->row_on_pole);
    for (int i = 0; i < b->n_negated; i++)
        hash = wf_hash_u64(hash, (uint64_t)b->negated[i]);
    return hash;
}

/* Ranks compare this number before they exchange: boxes that differ would otherwise end as messages of unequal length,
 * or none. */
static uint64_t plan_number(int size, wf_order order, const wf_box *have, const wf_box *need, const wf_beyond *beyond)
{
    uint64_t hash = wf_hash_u64((uint64_t)size, (uint64_t)order);
    if (beyond)
        hash = hash_beyond(hash, beyond);
    for (int r = 0; r < size; r++)
        for (int d = 0; d < have[r].rank; d++) {
            hash = wf_hash_u64(wf_hash_u64(hash, (uint64_t)have[r].lo[d]), (uint64_t)have[r].hi[d]);
            hash = wf_hash_u64(wf_hash_u64(hash, (uint64_t)need[r].lo[d]), (uint64_t)need[r].hi[d]);
        }
    /* 0 stands for a call without a plan. */
    return hash | 1;
}

/* Describes the exchange in both directions by the extent of all that is needed, and the number of the plan. */
static void describe_call(wf_exchange *exchange, int size, const wf_box *have, const wf_box *need,
                          const wf_beyond *beyond)
{
    int64_t extent[WF_MAX_RANK] = {0};
    for (int r = 0; r < size; r++)
        for (int d = 0; d < need[r].rank; d++)
            extent[d] = need[r].hi[d] > extent[d] ? need[r].hi[d] : extent[d];
    exchange->extent = wf_shape_make(need[0].rank, extent);
    exchange->call = (wf_call){.operation = WF_CALL_EXCHANGE,
                               .name = "exchange",
                               .dtype = exchange->dtype,
                               .shape = &exchange->extent,
                               .plan = plan_number(size, exchange->order, have, need, beyond)};
}

/* Notes which pieces are contiguous at both ends: by the boxes, so both choose the same way, whatever either holds. */
static wf_status find_dense(wf_exchange *exchange, const wf_box *have, const wf_box *need)
{
    const wf_plan *plan = exchange->plan;
    const int64_t pieces = plan->n_send + plan->n_recv;
    exchange->dense = wf_calloc(exchange->comm->shared->ctx, (size_t)pieces + 1, sizeof *exchange->dense);
    WF_NEED(exchange->dense);
    for (int64_t i = 0; i < pieces; i++) {
        const bool sends = i < plan->n_send;
        const wf_piece *piece = sends ? &plan->send[i] : &plan->recv[i - plan->n_send];
        const int from = sends ? plan->rank : piece->peer, to = sends ? piece->peer : plan->rank;
        exchange->dense[i] = wf_piece_plain(piece) && wf_box_dense_in(piece->box, have[from], exchange->order) &&
                             wf_box_dense_in(piece->at, need[to], exchange->order);
    }
    return WF_OK;
}

/* Every piece of the halo lies in one slab; a fill is cut with each. */
static void find_slabs(wf_exchange *exchange)
{
    const wf_plan *plan = exchange->plan;
    exchange->slabs = wf_slabs_of(exchange->need, exchange->have);
    for (int64_t i = 0; i < plan->n_recv + plan->n_echo; i++) {
        const wf_piece *piece = i < plan->n_recv ? &plan->recv[i] : &plan->echo[i - plan->n_recv].piece;
        if (piece->peer != plan->rank || !wf_piece_stays(piece))
            wf_slabs_hold(&exchange->slabs, piece->at);
    }
}

/* Refuses integers that would change their sign: here, where all ranks do. */
static wf_status check_signs(const wf_exchange *exchange, const wf_beyond *beyond)
{
    WF_CHECK(!beyond || beyond->boundary->n_negated == 0 || wf_dtype_is_float(exchange->dtype), WF_ERR_DTYPE,
             "channels of type %s change their sign across a pole; should be of a float type",
             wf_dtype_name(exchange->dtype));
    return WF_OK;
}

static wf_status make(wf_exchange *exchange, const wf_box *have, const wf_box *need, const wf_beyond *beyond)
{
    const wf_comm *comm = exchange->comm;
    for (int r = 0; r < comm->size; r++)
        WF_CHECK(have[r].rank == have[0].rank && need[r].rank == have[0].rank, WF_ERR_SHAPE,
                 "boxes of %d, %d and %d dimensions in one exchange", have[0].rank, have[r].rank, need[r].rank);
    /* Every rank knows the boxes of all, so the plan needs no message. */
    WF_TRY(check_signs(exchange, beyond));
    WF_TRY(wf_plan_make(comm->shared->ctx, comm->rank, comm->size, comm->ranks.world, have, need, beyond,
                        &exchange->plan));
    describe_call(exchange, comm->size, have, need, beyond);
    exchange->have = have[comm->rank];
    exchange->need = need[comm->rank];
    find_slabs(exchange);
    return find_dense(exchange, have, need);
}

wf_exchange *wf_exchange_new(wf_comm *comm, wf_dtype dtype, wf_order order, const wf_box *have, const wf_box *need)
{
    return wf_exchange_new_beyond(comm, dtype, order, have, need, NULL);
}

wf_exchange *wf_exchange_new_beyond(wf_comm *comm, wf_dtype dtype, wf_order order, const wf_box *have,
                                    const wf_box *need, const wf_beyond *beyond)
{
    if (!comm)
        return NULL;
    WF_CHECK_NULL(have && need, WF_ERR_ARGUMENT, "an exchange without boxes");
    WF_CHECK_NULL(wf_dtype_size(dtype) > 0, WF_ERR_DTYPE, "%d is no type", (int)dtype);
    wf_exchange *exchange = wf_calloc(comm->shared->ctx, 1, sizeof *exchange);
    if (!exchange)
        return wf_error_null();
    exchange->comm = comm;
    exchange->dtype = dtype;
    exchange->order = order;
    exchange->store.most = SCHEDULES;
    const wf_status status = make(exchange, have, need, beyond);
    if (status == WF_OK)
        return exchange;
    wf_exchange_free(exchange);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}

void wf_exchange_free(wf_exchange *exchange)
{
    if (!exchange)
        return;
    wf_engine_end(exchange->comm, &exchange->flight, WF_ERR_STATE);
    wf_engine_store_clear(&exchange->store);
    wf_plan_free(exchange->plan);
    free(exchange->dense);
    free(exchange);
}

int64_t wf_exchange_bytes(const wf_exchange *exchange)
{
    return exchange ? exchange->plan->elements_sent * (int64_t)wf_dtype_size(exchange->dtype) : 0;
}

bool wf_exchange_moves(const wf_exchange *exchange)
{
    return exchange && exchange->plan->moves;
}

const wf_slabs *wf_exchange_slabs(const wf_exchange *exchange)
{
    return exchange ? &exchange->slabs : NULL;
}

wf_comm *wf_exchange_comm(const wf_exchange *exchange)
{
    return exchange ? exchange->comm : NULL;
}
