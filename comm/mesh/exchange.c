/* Moves what an exchange was planned for, forward or in reverse: by NCCL, by messages, through shared memory in parts,
 * or as one collective. The caller may compute between begin and end. Halos, redistribution and channel layers run
 * through it. */
#include "comm/mesh/mesh_impl.h"
#include "comm/nccl_author.h"

#include "core/captured_author.h"

#include <string.h>

/* --- packing ------------------------------------------------------------------------------------------------------ */

static wf_strided region(const wf_tensor *x, wf_box held, wf_box box)
{
    wf_strided part = wf_tensor_strided(x);
    int64_t at = 0;
    for (int d = 0; d < box.rank; d++) {
        part.dim[d] = box.hi[d] - box.lo[d];
        /* Boxes are in global indices, the tensor begins at the corner of what is held. */
        at += (box.lo[d] - held.lo[d]) * part.stride[d];
    }
    part.data = (char *)part.data + at * (int64_t)wf_dtype_size(x->dtype);
    return part;
}

static wf_strided packed_box(const wf_exchange *exchange, wf_box box, void *data)
{
    const wf_shape shape = wf_box_shape(box);
    wf_strided part = {.data = data, .dtype = exchange->dtype, .rank = shape.rank};
    memcpy(part.dim, shape.dim, sizeof part.dim);
    wf_order_strides(shape, exchange->order, part.stride);
    return part;
}

static wf_status pack(const wf_exchange *exchange, const wf_exchange_side *side, wf_box box, void *data)
{
    wf_ctx *ctx = exchange->comm->shared->ctx;
    const wf_strided here = region(exchange->from, side->box, box), there = packed_box(exchange, box, data);
    return ctx->k->copy(ctx, &here, &there, false);
}

static wf_status unpack(const wf_exchange *exchange, const wf_exchange_side *side, wf_box box, void *data)
{
    wf_ctx *ctx = exchange->comm->shared->ctx;
    const wf_strided here = region(exchange->to, side->box, box), there = packed_box(exchange, box, data);
    /* In reverse halo gradients are added to what the owner has. */
    return ctx->k->copy(ctx, &there, &here, exchange->reversed);
}

/* The pieces of a packet, one after the other in its buffer. */
static wf_status for_pieces(const wf_exchange *exchange, const wf_exchange_side *side, const wf_packet *p,
                            wf_status (*copy)(const wf_exchange *, const wf_exchange_side *, wf_box, void *))
{
    char *data = p->packed;
    for (int64_t i = p->first; i < p->first + p->pieces; i++) {
        const wf_box box = side->piece[i].box;
        WF_TRY(copy(exchange, side, box, data));
        data += (size_t)wf_shape_count(wf_box_shape(box)) * wf_dtype_size(exchange->dtype);
    }
    return WF_OK;
}

/* Where the only piece of a packet lies in the tensor as it travels; NULL where it has to be packed. */
static void *in_place(const wf_exchange *exchange, const wf_exchange_side *side, const wf_packet *p, const wf_tensor *x)
{
    const wf_box box = side->piece[p->first].box;
    /* Several pieces are one message and so need one buffer. */
    if (p->pieces != 1)
        return NULL;
    const wf_strided here = region(x, side->box, box), dense = packed_box(exchange, box, NULL);
    for (int d = 0; d < box.rank; d++)
        if (here.dim[d] > 1 && here.stride[d] != dense.stride[d])
            return NULL;
    return here.data;
}

/* --- memory of messages ---------------------------------------------------------------------------------------------
 */

static bool staged(const wf_comm *comm)
{
    /* Device memory, which MPI does not get (comm/transport_author.h). */
    return !comm->shared->ctx->k->host && !comm->nccl;
}

/* What a message goes from or comes to; *data is the transport's view of it. */
static wf_status take(wf_exchange *exchange, wf_packet *p, void *direct, void **data)
{
    wf_comm *comm = exchange->comm;
    if (!direct)
        WF_TRY(wf_pool_take(comm->shared->ctx, p->bytes, &p->packed));
    *data = direct ? direct : p->packed;
    if (staged(comm)) {
        WF_TRY(wf_host_take(comm, p->bytes, &p->staged));
        *data = p->staged;
    }
    return WF_OK;
}

/* Whether the packet's last copy between host and device is over. An event that cannot be asked has ended. */
static bool copied(const wf_exchange *exchange, const wf_packet *p)
{
    wf_ctx *ctx = exchange->comm->shared->ctx;
    bool done = false;
    return ctx->k->event_done(ctx, p->copied, &done) != WF_OK || done;
}

static void give(wf_exchange *exchange, wf_exchange_side *side)
{
    wf_comm *comm = exchange->comm;
    for (int i = 0; i < side->packets; i++) {
        wf_packet *p = &side->packet[i];
        /* The device may still read or write this memory; it is a matter of microseconds. */
        while (p->staged && !copied(exchange, p))
            ;
        wf_host_give(comm, p->staged, p->bytes);
        /* Memory of a message that could not be given up is leaked: MPI may write to it at any time. */
        if (p->packed && !comm->lost)
            wf_pool_give(comm->shared->ctx, p->packed, p->bytes);
        p->packed = p->staged = NULL;
    }
}

static void blocks_give(wf_exchange *exchange, void **buffers, size_t bytes)
{
    if (*buffers && !exchange->comm->lost)
        wf_pool_give(exchange->comm->shared->ctx, *buffers, bytes);
    *buffers = NULL;
}

static wf_exchange_side *from_side(wf_exchange *exchange)
{
    return exchange->reversed ? &exchange->need : &exchange->have;
}

static wf_exchange_side *to_side(wf_exchange *exchange)
{
    return exchange->reversed ? &exchange->have : &exchange->need;
}

static void start_packets(const wf_exchange *exchange, wf_exchange_side *side)
{
    for (int i = 0; i < side->packets; i++) {
        wf_packet *p = &side->packet[i];
        p->shared = p->parted && wf_shm_ring_reaches(exchange->comm->ring, p->peer);
        p->part = p->from;
        p->done = p->begun = false;
    }
}

/* --- moving --------------------------------------------------------------------------------------------------------
 */

static wf_status post_receives(wf_exchange *exchange)
{
    wf_exchange_side *side = to_side(exchange);
    wf_requests *requests = &exchange->comm->requests;
    for (int i = 0; i < side->packets; i++) {
        wf_packet *p = &side->packet[i];
        if (p->shared)
            continue;
        /* In reverse the bytes are to be added, so they cannot arrive in the tensor itself. */
        void *data, *direct = exchange->reversed ? NULL : in_place(exchange, side, p, exchange->to);
        WF_TRY(take(exchange, p, direct, &data));
        p->posted = requests->count;
        WF_TRY(wf_requests_recv(requests, data, p->bytes, p->peer));
        p->last = requests->count;
    }
    return WF_OK;
}

/* Packs, and puts the copy to the host behind it. */
static wf_status begin_message(wf_exchange *exchange, wf_packet *p)
{
    const wf_exchange_side *side = from_side(exchange);
    wf_ctx *ctx = exchange->comm->shared->ctx;
    void *direct = in_place(exchange, side, p, exchange->from);
    p->begun = true;
    WF_TRY(take(exchange, p, direct, &p->moves));
    if (!direct)
        WF_TRY(for_pieces(exchange, side, p, pack));
    if (!p->staged)
        return WF_OK;
    WF_TRY(ctx->k->to_host_begin(ctx, p->staged, direct ? direct : p->packed, p->bytes, NULL));
    return ctx->k->event_record(ctx, p->copied, NULL);
}

/* A message leaves as soon as its bytes are there; the next ones are on their way to the host meanwhile. */
static wf_status send_message(wf_exchange *exchange, wf_packet *p)
{
    if (!p->begun)
        WF_TRY(begin_message(exchange, p));
    if (p->staged && !copied(exchange, p))
        return WF_OK;
    p->done = true;
    return wf_requests_send(&exchange->comm->requests, p->moves, p->bytes, p->peer);
}

/* As many parts as there are free slots. */
static wf_status send_parts(wf_exchange *exchange, wf_packet *p, bool *moved)
{
    const wf_exchange_side *side = from_side(exchange);
    wf_shm_ring *ring = exchange->comm->ring;
    for (void *slot; p->part < p->to && (slot = wf_shm_ring_slot(ring, p->peer)); p->part++) {
        WF_TRY(pack(exchange, side, side->part[p->part], slot));
        WF_TRY(wf_shm_ring_post(ring, p->peer));
        *moved = true;
    }
    if (p->part == p->to && wf_shm_ring_told(ring, p->peer)) {
        exchange->comm->traffic.bytes_sent += p->bytes;
        exchange->comm->traffic.messages++;
        p->done = true;
    }
    return WF_OK;
}

/* Everything that a rank sends and receives is one call of NCCL. */
static wf_status post_group(wf_exchange *exchange)
{
    wf_comm *comm = exchange->comm;
    wf_exchange_side *in = to_side(exchange), *out = from_side(exchange);
    for (int i = 0; i < out->packets; i++) {
        wf_packet *p = &out->packet[i];
        void *direct = in_place(exchange, out, p, exchange->from);
        WF_TRY(take(exchange, p, direct, &p->moves));
        if (!direct)
            WF_TRY(for_pieces(exchange, out, p, pack));
    }
    for (int i = 0; i < in->packets; i++) {
        wf_packet *p = &in->packet[i];
        WF_TRY(take(exchange, p, exchange->reversed ? NULL : in_place(exchange, in, p, exchange->to), &p->moves));
    }
    if (in->packets + out->packets == 0)
        return WF_OK;
    WF_TRY(wf_nccl_begin(comm));
    for (int i = 0; i < in->packets; i++)
        WF_TRY(wf_nccl_recv(comm, in->packet[i].moves, in->packet[i].bytes, in->packet[i].peer));
    for (int i = 0; i < out->packets; i++)
        WF_TRY(wf_nccl_send(comm, out->packet[i].moves, out->packet[i].bytes, out->packet[i].peer));
    return wf_nccl_end_no_join(comm);
}

/* The device unpacks when NCCL is done; the host need not know. */
static wf_status take_group(wf_exchange *exchange)
{
    wf_exchange_side *side = to_side(exchange);
    WF_TRY(wf_nccl_join(exchange->comm));
    for (int i = 0; i < side->packets; i++)
        if (side->packet[i].packed)
            WF_TRY(for_pieces(exchange, side, &side->packet[i], unpack));
    return WF_OK;
}

/* The next rank is served first, so that not all begin with the same one. */
static wf_status send(wf_exchange *exchange, bool *moved, bool *done)
{
    wf_exchange_side *side = from_side(exchange);
    int first = 0;
    *done = true;
    WF_TRY(wf_shm_ring_poll(exchange->comm->ring));
    while (first < side->packets && side->packet[first].peer < exchange->comm->rank)
        first++;
    for (int i = 0; i < side->packets; i++) {
        wf_packet *p = &side->packet[(first + i) % side->packets];
        if (!p->done)
            WF_TRY(p->shared ? send_parts(exchange, p, moved) : send_message(exchange, p));
        *done = *done && p->done;
    }
    return WF_OK;
}

static wf_status receive_message(wf_exchange *exchange, wf_packet *p)
{
    const wf_exchange_side *side = to_side(exchange);
    wf_ctx *ctx = exchange->comm->shared->ctx;
    WF_TRY(wf_requests_look(&exchange->comm->requests, p->posted, p->last, &p->done));
    if (!p->done)
        return WF_OK;
    if (p->staged) {
        void *place = p->packed ? p->packed : in_place(exchange, side, p, exchange->to);
        WF_TRY(ctx->k->to_device_begin(ctx, place, p->staged, p->bytes, NULL));
        WF_TRY(ctx->k->event_record(ctx, p->copied, NULL));
    }
    return p->packed ? for_pieces(exchange, side, p, unpack) : WF_OK;
}

static wf_status receive_parts(wf_exchange *exchange, wf_packet *p, bool *moved)
{
    const wf_exchange_side *side = to_side(exchange);
    wf_shm_ring *ring = exchange->comm->ring;
    for (void *slot; p->part < p->to && (slot = wf_shm_ring_next(ring, p->peer)); p->part++) {
        WF_TRY(unpack(exchange, side, side->part[p->part], slot));
        WF_TRY(wf_shm_ring_took(ring, p->peer));
        *moved = true;
    }
    p->done = p->part == p->to;
    return WF_OK;
}

/* What adds is taken in the order of peers. */
static wf_status receive(wf_exchange *exchange, bool *moved, bool *done)
{
    wf_exchange_side *side = to_side(exchange);
    *done = true;
    for (int i = 0; i < side->packets && (*done || !exchange->reversed); i++) {
        wf_packet *p = &side->packet[i];
        if (!p->done) {
            WF_TRY(p->shared ? receive_parts(exchange, p, moved) : receive_message(exchange, p));
            *moved = *moved || p->done;
        }
        *done = *done && p->done;
    }
    return WF_OK;
}

static wf_status copy_own(wf_exchange *exchange)
{
    const wf_plan *plan = exchange->plan;
    wf_ctx *ctx = exchange->comm->shared->ctx;
    for (int64_t i = 0; i < plan->n_recv; i++) {
        /* What this rank has and needs itself is a piece of the plan like any other, without a message. */
        if (plan->recv[i].peer != plan->rank)
            continue;
        const wf_strided here = region(exchange->from, from_side(exchange)->box, plan->recv[i].box),
                         there = region(exchange->to, to_side(exchange)->box, plan->recv[i].box);
        WF_TRY(ctx->k->copy(ctx, &here, &there, exchange->reversed));
    }
    return WF_OK;
}

/* --- as one collective ---------------------------------------------------------------------------------------------
 */

/* In bytes; longer blocks are faster as messages, which do not copy what is dense. */
#define SHORT_BLOCK ((size_t)2 << 10)

/* Of short blocks between nodes, where what counts is the number of steps; inside a node nothing is faster than
 * messages and the ring. The same on every rank. */
static bool is_collective(const wf_exchange *exchange)
{
    const wf_comm *comm = exchange->comm;
    return exchange->plan->form != WF_PLAN_PIECES && comm->size > 2 && comm->inter_size > 1 &&
           comm->shared->ctx->k->host && comm->transport->allgather && comm->transport->alltoall &&
           exchange->have.packet[0].bytes <= SHORT_BLOCK && exchange->have.packet[0].bytes <= comm->chunk_bytes;
}

static bool gathers(const wf_exchange *exchange)
{
    return exchange->plan->form == WF_PLAN_ALLGATHER && !exchange->reversed;
}

static char *block_of(void *buffers, const wf_packet *p)
{
    return (char *)buffers + (size_t)p->peer * p->bytes;
}

/* A reduce-scatter is an all-to-all of what is to be added: the order of the sums is ours then. */
static wf_status post_collective(wf_exchange *exchange)
{
    wf_comm *comm = exchange->comm;
    const wf_exchange_side *side = from_side(exchange);
    const size_t block = side->packet[0].bytes, all = (size_t)comm->size * block;
    WF_TRY(wf_pool_take(comm->shared->ctx, all, &exchange->blocks_out));
    WF_TRY(wf_pool_take(comm->shared->ctx, all, &exchange->blocks_in));
    for (int i = 0; i < (gathers(exchange) ? 1 : side->packets); i++) {
        const wf_packet *p = &side->packet[i];
        WF_TRY(pack(exchange, side, side->piece[p->first].box,
                    gathers(exchange) ? exchange->blocks_out : block_of(exchange->blocks_out, p)));
    }
    WF_TRY(wf_requests_collective(&comm->requests));
    /* All blocks are of one length here (plan->form says so), as MPI wants them. */
    WF_TRY((gathers(exchange) ? comm->transport->allgather : comm->transport->alltoall)(
        comm, exchange->blocks_out, exchange->blocks_in, block, &comm->requests.transfer[0]));
    comm->traffic.bytes_sent += (uint64_t)(all - block);
    comm->traffic.messages++;
    return WF_OK;
}

static wf_status end_collective(wf_exchange *exchange)
{
    const wf_exchange_side *side = to_side(exchange);
    WF_TRY(wf_requests_wait_all(&exchange->comm->requests));
    for (int i = 0; i < side->packets; i++) {
        const wf_packet *p = &side->packet[i];
        WF_TRY(unpack(exchange, side, side->piece[p->first].box, block_of(exchange->blocks_in, p)));
    }
    wf_tensor_touch(exchange->to);
    return wf_guard_settle(exchange->comm);
}

/* --- the calls -----------------------------------------------------------------------------------------------------
 */

static wf_status check_tensor(const wf_exchange *exchange, const char *name, const wf_tensor *x, wf_box box)
{
    char is[WF_SHAPE_TEXT], should[WF_SHAPE_TEXT];
    const wf_shape shape = wf_box_shape(box);
    WF_CHECK(x->dtype == exchange->dtype, WF_ERR_DTYPE, "%s of an exchange of %s is %s", name,
             wf_dtype_name(exchange->dtype), wf_dtype_name(x->dtype));
    WF_CHECK(wf_shape_equal(x->shape, shape) || (wf_box_empty(box) && wf_tensor_count(x) == 0), WF_ERR_SHAPE,
             "%s of an exchange is %s, and its box %s", name, wf_shape_text(x->shape, is),
             wf_shape_text(shape, should));
    return WF_OK;
}

static wf_status post(wf_exchange *exchange)
{
    wf_comm *comm = exchange->comm;
    bool moved = false, done;
    WF_TRY(wf_guard_enter(comm, exchange->reversed ? &exchange->reverse_record : &exchange->record));
    exchange->active = true;
    if (comm->nccl)
        return post_group(exchange);
    if (is_collective(exchange))
        return post_collective(exchange);
    WF_TRY(wf_ctx_forbid_capture(comm->shared->ctx,
                                 "exchange halos by messages or mapped memory, which the host looks after",
                                 "let NCCL move them (communicator \"pure_nccl\")"));
    /* At the first exchange that needs it: a communicator whose exchanges are all long never takes the memory. */
    if (exchange->parted && !comm->ring_asked)
        WF_TRY(wf_shm_ring_open(comm));
    start_packets(exchange, &exchange->have);
    start_packets(exchange, &exchange->need);
    /* Between nodes nothing waits for an answer, which a rank that computes gives only now and then. */
    comm->requests.most_bytes = comm->inter_size > 1 ? WF_PROMPT_BYTES : 0;
    /* Receives before sends, so that what comes early finds its place. */
    WF_TRY(post_receives(exchange));
    return send(exchange, &moved, &done);
}

static wf_status begin(wf_exchange *exchange, const wf_tensor *from, wf_tensor *to, bool own)
{
    const bool moves = wf_exchange_moves(exchange);
    if (moves)
        WF_TRY(wf_comm_alive(exchange->comm));
    WF_NEED(from);
    WF_NEED(to);
    WF_TRY(check_tensor(exchange, exchange->reversed ? "dy" : "x", from, from_side(exchange)->box));
    WF_TRY(check_tensor(exchange, exchange->reversed ? "dx" : "y", to, to_side(exchange)->box));
    exchange->from = from;
    exchange->to = to;
    if (moves)
        WF_TRY(post(exchange));
    if (own)
        WF_TRY(copy_own(exchange));
    wf_tensor_touch(to);
    return WF_OK;
}

/* Of a call that is over, well or not: an unfinished message is given up before its memory is. */
static wf_status over(wf_exchange *exchange, wf_status status)
{
    status = wf_guard_end(exchange->comm, exchange->reversed ? "exchange_reverse" : "exchange", status);
    if (exchange->active) {
        give(exchange, &exchange->have);
        give(exchange, &exchange->need);
        if (exchange->blocks_out) {
            const size_t bytes = (size_t)exchange->comm->size * exchange->have.packet[0].bytes;
            blocks_give(exchange, &exchange->blocks_out, bytes);
            blocks_give(exchange, &exchange->blocks_in, bytes);
        }
    }
    exchange->active = false;
    exchange->from = exchange->to = NULL;
    return status;
}

static void count_time(const wf_exchange *exchange, int64_t start_ns)
{
    exchange->comm->traffic.exchange_ns += (uint64_t)(wf_now_ns() - start_ns);
}

static wf_status start(wf_exchange *exchange, const wf_tensor *from, wf_tensor *to, bool reversed, bool own)
{
    WF_NEED(exchange);
    const int64_t start_ns = wf_now_ns();
    if (exchange->active)
        return over(exchange, WF_RAISE(WF_ERR_STATE, "an exchange begins again before its end"));
    exchange->reversed = reversed;
    const wf_status status = begin(exchange, from, to, own);
    count_time(exchange, start_ns);
    if (status == WF_OK)
        wf_watch_end(); /* what the caller computes meanwhile may take its time */
    return status == WF_OK ? WF_OK : over(exchange, status);
}

wf_status wf_exchange_begin(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y)
{
    return start(exchange, x, y, false, true);
}

wf_status wf_exchange_begin_halo(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y)
{
    return start(exchange, x, y, false, false);
}

wf_status wf_exchange_reverse_begin(wf_exchange *exchange, const wf_tensor *dy, wf_tensor *dx)
{
    return start(exchange, dy, dx, true, true);
}

wf_status wf_exchange_reverse_begin_halo(wf_exchange *exchange, const wf_tensor *dy, wf_tensor *dx)
{
    return start(exchange, dy, dx, true, false);
}

/* What adds may meet what the caller adds meanwhile, so it waits for the end. */
static wf_status poll(wf_exchange *exchange)
{
    bool moved = false, done;
    WF_TRY(wf_control_poll(exchange->comm));
    if (exchange->comm->nccl)
        return wf_nccl_poll(exchange->comm);
    WF_TRY(wf_requests_poll(&exchange->comm->requests));
    if (is_collective(exchange))
        return WF_OK;
    WF_TRY(send(exchange, &moved, &done));
    return exchange->reversed ? WF_OK : receive(exchange, &moved, &done);
}

wf_status wf_exchange_poll(wf_exchange *exchange)
{
    WF_NEED(exchange);
    if (!exchange->active)
        return WF_OK;
    const int64_t start_ns = wf_now_ns();
    wf_watch_begin("exchange");
    const wf_status status = poll(exchange);
    wf_watch_end();
    count_time(exchange, start_ns);
    return status == WF_OK ? WF_OK : over(exchange, status);
}

static wf_status end(wf_exchange *exchange)
{
    wf_comm *comm = exchange->comm;
    wf_deadline deadline = wf_deadline_new();
    if (is_collective(exchange))
        return end_collective(exchange);
    if (comm->nccl)
        WF_TRY(take_group(exchange));
    while (!comm->nccl) {
        bool moved = false, sent, received;
        WF_TRY(send(exchange, &moved, &sent));
        WF_TRY(receive(exchange, &moved, &received));
        /* Both directions are served in turn: a rank that only waited for its own halo would keep the neighbour's. */
        if (sent && received)
            break;
        if (moved)
            deadline = wf_deadline_new();
        else
            WF_TRY(wf_deadline_poll(comm, &deadline, &comm->requests));
    }
    WF_TRY(wf_requests_wait_all(&comm->requests));
    wf_tensor_touch(exchange->to);
    return wf_guard_settle(comm);
}

wf_status wf_exchange_end(wf_exchange *exchange)
{
    WF_NEED(exchange);
    if (exchange->active) {
        const int64_t start_ns = wf_now_ns();
        wf_watch_begin("exchange");
        const wf_status status = over(exchange, end(exchange));
        count_time(exchange, start_ns);
        return status;
    }
    return wf_exchange_moves(exchange) ? wf_comm_alive(exchange->comm) : WF_OK;
}
