/* Makes an exchange once from the boxes that ranks have and need: the plan, the messages of each pair, and the parts in
 * which they pass through shared memory. No messages are sent here. */
#include "comm/mesh/mesh_impl.h"

#include <stdlib.h>

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* Ranks compare this number before they exchange: boxes that differ would otherwise end as messages of unequal length,
 * or none. */
static uint64_t plan_number(int size, wf_order order, const wf_box *have, const wf_box *need)
{
    uint64_t hash = mix((uint64_t)size, (uint64_t)order);
    for (int r = 0; r < size; r++)
        for (int d = 0; d < have[r].rank; d++) {
            hash = mix(mix(hash, (uint64_t)have[r].lo[d]), (uint64_t)have[r].hi[d]);
            hash = mix(mix(hash, (uint64_t)need[r].lo[d]), (uint64_t)need[r].hi[d]);
        }
    /* 0 stands for a call without a plan. */
    return hash | 1;
}

/* Shown in messages: the extent of all that is needed. */
static wf_call_record record_of(const char *operation, const wf_exchange *exchange, int size, const wf_box *have,
                                const wf_box *need)
{
    wf_call_record record = wf_call_record_plain(operation, -1);
    record.dtype = (int32_t)exchange->dtype;
    record.rank = need[0].rank;
    for (int r = 0; r < size; r++)
        for (int d = 0; d < need[r].rank; d++)
            record.dim[d] = need[r].hi[d] > record.dim[d] ? need[r].hi[d] : record.dim[d];
    record.plan = plan_number(size, exchange->order, have, need);
    return record;
}

/* The dimension that is number i from the outermost in memory. */
static int outer_dim(wf_order order, int rank, int i)
{
    /* Channels last: sample, the spatial dimensions, channel. */
    if (order == WF_ROW_MAJOR || rank < 3)
        return i;
    return i == 0 ? 0 : i == rank - 1 ? 1 : i + 1;
}

/* Whether a box is one run of memory in a dense array of `world`. */
static bool dense_in(wf_box box, wf_box world, wf_order order)
{
    bool outside = false;
    for (int i = box.rank - 1; i >= 0; i--) {
        const int d = outer_dim(order, box.rank, i);
        const int64_t length = box.hi[d] - box.lo[d];
        if (outside && length > 1)
            return false;
        outside = outside || length < world.hi[d] - world.lo[d];
    }
    return true;
}

/* Whether one piece alone goes by parts. */
static bool goes_by_parts(const wf_exchange *exchange, wf_box box, wf_box have, wf_box need)
{
    const size_t bytes = (size_t)wf_shape_count(wf_box_shape(box)) * wf_dtype_size(exchange->dtype);
    /* What is dense and long goes straight from tensor to tensor, without the copy into a slot; a GPU's arrays always
     * pass through one. */
    return !exchange->comm->shared->ctx->k->host || bytes <= WF_SHM_RING_SMALL ||
           !dense_in(box, have, exchange->order) || !dense_in(box, need, exchange->order);
}

static bool any_parted(const wf_exchange *exchange, int size, const wf_box *have, const wf_box *need)
{
    for (int p = 0; p < size; p++)
        for (int q = 0; q < size; q++) {
            const wf_box box = wf_box_intersect(have[p], need[q]);
            if (p != q && !wf_box_empty(box) && goes_by_parts(exchange, box, have[p], need[q]))
                return true;
        }
    return false;
}

/* Calls for the parts of a box, the outermost dimensions first; counts them where part is NULL. */
static int64_t split(wf_box box, wf_order order, int level, int64_t most, wf_box *part)
{
    if (wf_shape_count(wf_box_shape(box)) <= most || level == box.rank) {
        if (part)
            *part = box;
        return 1;
    }
    const int d = outer_dim(order, box.rank, level);
    const int64_t lo = box.lo[d], hi = box.hi[d], inner = wf_shape_count(wf_box_shape(box)) / (hi - lo);
    /* As many outer indices as fit in a slot. */
    const int64_t step = inner >= most ? 1 : most / inner;
    int64_t n = 0;
    for (int64_t at = lo; at < hi; at += step) {
        box.lo[d] = at;
        box.hi[d] = at + step < hi ? at + step : hi;
        n += split(box, order, level + 1, most, part ? part + n : NULL);
    }
    return n;
}

static wf_status make_parts(const wf_exchange *exchange, wf_exchange_side *side)
{
    const int64_t most =
        (int64_t)(wf_shm_ring_slot_bytes(exchange->comm->shared->ctx) / wf_dtype_size(exchange->dtype));
    /* Counts, takes the memory, then fills it by the same loop. */
    for (int pass = 0; pass < 2; pass++) {
        side->parts = 0;
        for (int i = 0; i < side->packets; i++) {
            wf_packet *p = &side->packet[i];
            p->from = side->parts;
            for (int64_t k = p->first; p->parted && k < p->first + p->pieces; k++)
                side->parts +=
                    split(side->piece[k].box, exchange->order, 0, most, side->part ? side->part + side->parts : NULL);
            p->to = side->parts;
        }
        if (pass == 0 && side->parts > 0) {
            side->part = wf_malloc(exchange->comm->shared->ctx, (size_t)side->parts * sizeof *side->part);
            if (!side->part)
                return wf_error_code();
        }
    }
    return WF_OK;
}

/* `theirs`: the boxes at the other end, by rank. */
static wf_status make_side(const wf_exchange *exchange, wf_exchange_side *side, const wf_box *ours,
                           const wf_box *theirs, const wf_piece *piece, int64_t pieces)
{
    const int rank = exchange->comm->rank;
    const size_t element = wf_dtype_size(exchange->dtype);
    int packets = 0;
    *side = (wf_exchange_side){.box = ours[rank], .piece = piece};
    for (int64_t i = 0; i < pieces; i++)
        /* Pieces come sorted by peer; all of one peer are one message. */
        packets += piece[i].peer != rank && (i == 0 || piece[i].peer != piece[i - 1].peer);
    if (packets == 0)
        return WF_OK;
    side->packet = wf_calloc(exchange->comm->shared->ctx, (size_t)packets, sizeof *side->packet);
    if (!side->packet)
        return wf_error_code();
    for (int64_t i = 0; i < pieces; i++) {
        if (piece[i].peer == rank)
            continue;
        if (i == 0 || piece[i].peer != piece[i - 1].peer)
            side->packet[side->packets++] = (wf_packet){.peer = piece[i].peer, .first = i};
        wf_packet *p = &side->packet[side->packets - 1];
        p->pieces++;
        p->bytes += (size_t)wf_shape_count(wf_box_shape(piece[i].box)) * element;
        p->parted = p->pieces > 1 || goes_by_parts(exchange, piece[i].box, ours[rank], theirs[p->peer]);
    }
    wf_ctx *ctx = exchange->comm->shared->ctx;
    for (int i = 0; i < side->packets && !ctx->k->host; i++)
        WF_TRY(ctx->k->event_new(ctx, &side->packet[i].copied));
    return make_parts(exchange, side);
}

static wf_status make(wf_exchange *exchange, const wf_box *have, const wf_box *need)
{
    const wf_comm *comm = exchange->comm;
    for (int r = 0; r < comm->size; r++)
        WF_CHECK(have[r].rank == have[0].rank && need[r].rank == have[0].rank, WF_ERR_SHAPE,
                 "boxes of %d, %d and %d dimensions in one exchange", have[0].rank, have[r].rank, need[r].rank);
    /* Every rank knows the boxes of all, so the plan needs no message. */
    WF_TRY(wf_plan_make(comm->shared->ctx, comm->rank, comm->size, have, need, &exchange->plan));
    const wf_plan *plan = exchange->plan;
    exchange->record = record_of("exchange", exchange, comm->size, have, need);
    exchange->reverse_record = record_of("exchange_reverse", exchange, comm->size, have, need);
    /* Asked over all pairs, not this rank's: opening the ring takes all ranks of the node. */
    exchange->parted = any_parted(exchange, comm->size, have, need);
    WF_TRY(make_side(exchange, &exchange->have, have, need, plan->send, plan->n_send));
    return make_side(exchange, &exchange->need, need, have, plan->recv, plan->n_recv);
}

wf_exchange *wf_exchange_new(wf_comm *comm, wf_dtype dtype, wf_order order, const wf_box *have, const wf_box *need)
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
    const wf_status status = make(exchange, have, need);
    if (status == WF_OK)
        return exchange;
    wf_exchange_free(exchange);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}

static void side_free(const wf_exchange *exchange, wf_exchange_side *side)
{
    wf_ctx *ctx = exchange->comm->shared->ctx;
    for (int i = 0; i < side->packets && !ctx->k->host; i++)
        ctx->k->event_free(ctx, side->packet[i].copied);
    free(side->packet);
    free(side->part);
}

void wf_exchange_free(wf_exchange *exchange)
{
    if (!exchange)
        return;
    wf_plan_free(exchange->plan);
    side_free(exchange, &exchange->have);
    side_free(exchange, &exchange->need);
    free(exchange);
}

const wf_plan *wf_exchange_plan(const wf_exchange *exchange)
{
    return exchange ? exchange->plan : NULL;
}

int64_t wf_exchange_bytes(const wf_exchange *exchange)
{
    return exchange ? exchange->plan->elements_sent * (int64_t)wf_dtype_size(exchange->dtype) : 0;
}

bool wf_exchange_moves(const wf_exchange *exchange)
{
    return exchange && exchange->plan->elements_moved > 0;
}

wf_comm *wf_exchange_comm(const wf_exchange *exchange)
{
    return exchange ? exchange->comm : NULL;
}
