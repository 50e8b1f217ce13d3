/* An exchange plan as a schedule: one message to each peer, of the boxes that go there, one after the other. A single
 * box that lies in the array as it travels goes and comes without a copy, unless what comes is added. */
#include "comm/engine/collectives_author.h"

#include "comm/plan_author.h"

typedef struct exchange {
    wf_builder *b;
    const wf_group *g;
    const wf_exchange_shape *shape;
    wf_address from, to;
    size_t size; /* of an element */
} exchange;

/* Pieces [first, last) of a list are those of one peer. */
static int64_t end_of_peer(const wf_piece *piece, int64_t pieces, int64_t first)
{
    int64_t last = first;
    while (last < pieces && piece[last].peer == piece[first].peer)
        last++;
    return last;
}

static size_t box_bytes(const exchange *e, wf_box box)
{
    return (size_t)wf_shape_count(wf_box_shape(box)) * e->size;
}

static size_t bytes_of(const exchange *e, const wf_piece *piece, int64_t first, int64_t last)
{
    size_t bytes = 0;
    for (int64_t i = first; i < last; i++)
        bytes += box_bytes(e, piece[i].box);
    return bytes;
}

/* Whether a box is one run of memory in the dense array of `held`, and where it begins. */
static bool dense_in(const exchange *e, wf_box held, wf_box box, size_t *at)
{
    int64_t whole[WF_MAX_RANK], part[WF_MAX_RANK], offset = 0;
    const wf_shape inner = wf_box_shape(box);
    wf_order_strides(wf_box_shape(held), e->shape->order, whole);
    wf_order_strides(inner, e->shape->order, part);
    for (int d = 0; d < box.rank; d++) {
        if (inner.dim[d] > 1 && whole[d] != part[d])
            return false;
        offset += (box.lo[d] - held.lo[d]) * whole[d];
    }
    *at = (size_t)offset * e->size;
    return true;
}

static void send_to(const exchange *e, const wf_piece *piece, int64_t first, int64_t last, wf_box held)
{
    const size_t bytes = bytes_of(e, piece, first, last);
    wf_steps packed = {0};
    size_t at = 0;
    wf_address source;
    if (last - first == 1 && dense_in(e, held, piece[first].box, &at)) {
        source = wf_address_add(e->from, at);
    } else {
        source = wf_builder_scratch(e->b, bytes);
        for (int64_t i = first; i < last; i++) {
            const wf_step_box box = {.held = held, .box = piece[i].box, .order = e->shape->order};
            const wf_steps one = wf_add_pack(e->b, e->from, box, e->shape->dtype, wf_address_add(source, at));
            packed.first = i == first ? one.first : packed.first;
            packed.last = one.last;
            at += box_bytes(e, piece[i].box);
        }
    }
    wf_after(e->b, packed);
    wf_add_send(e->b, source, bytes, wf_group_rank(e->g, piece[first].peer));
}

/* What adds goes in the order of peers: behind `before`. */
static wf_steps recv_from(const exchange *e, const wf_piece *piece, int64_t first, int64_t last, wf_box held,
                          wf_steps before)
{
    const size_t bytes = bytes_of(e, piece, first, last);
    const int peer = wf_group_rank(e->g, piece[first].peer);
    size_t at = 0;
    if (!e->shape->reversed && last - first == 1 && dense_in(e, held, piece[first].box, &at)) {
        wf_add_recv(e->b, wf_address_add(e->to, at), bytes, peer);
        return before;
    }
    const wf_address packed = wf_builder_scratch(e->b, bytes);
    const wf_steps came = wf_add_recv(e->b, packed, bytes, peer);
    for (int64_t i = first; i < last; i++) {
        const wf_step_box box = {.held = held, .box = piece[i].box, .order = e->shape->order};
        wf_after(e->b, came);
        if (e->shape->reversed)
            wf_after(e->b, before);
        before = wf_add_unpack(e->b, wf_address_add(packed, at), box, e->shape->dtype, e->to, e->shape->reversed);
        at += box_bytes(e, piece[i].box);
    }
    return before;
}

/* What this rank has itself goes from array to array. */
static wf_steps keep_own(const exchange *e, wf_box from, wf_box to)
{
    const wf_plan *plan = e->shape->plan;
    wf_steps last = {0};
    for (int64_t i = 0; i < plan->n_recv; i++) {
        if (plan->recv[i].peer != plan->rank)
            continue;
        const wf_step_box out = {.held = from, .box = plan->recv[i].box, .order = e->shape->order};
        const wf_step_box in = {.held = to, .box = plan->recv[i].box, .order = e->shape->order};
        wf_after(e->b, last);
        last = wf_add_copy_box(e->b, e->from, out, e->shape->dtype, e->to, in, e->shape->reversed);
    }
    return last;
}

void wf_build_exchange(wf_builder *b, const wf_group *g, const wf_exchange_shape *shape)
{
    const wf_plan *plan = shape->plan;
    const wf_piece *in = shape->reversed ? plan->send : plan->recv, *out = shape->reversed ? plan->recv : plan->send;
    const int64_t n_in = shape->reversed ? plan->n_send : plan->n_recv;
    const int64_t n_out = shape->reversed ? plan->n_recv : plan->n_send;
    const wf_box from = shape->reversed ? shape->need : shape->have, to = shape->reversed ? shape->have : shape->need;
    exchange e = {.b = b, .g = g, .shape = shape, .size = wf_dtype_size(shape->dtype)};
    wf_steps before = {0};
    e.from = wf_builder_operand(b, WF_OPERAND_INPUT, 0, box_bytes(&e, from));
    e.to = wf_builder_operand(b, shape->reversed ? WF_OPERAND_BOTH : WF_OPERAND_OUTPUT, 0, box_bytes(&e, to));
    wf_builder_cut(b, wf_builder_agreed(b)->nodes > 1 ? wf_builder_agreed(b)->prompt_bytes : 0);
    if (shape->own)
        before = keep_own(&e, from, to);
    for (int64_t i = 0, last; i < n_in; i = last) {
        last = end_of_peer(in, n_in, i);
        if (in[i].peer != plan->rank)
            before = recv_from(&e, in, i, last, to, before);
    }
    for (int64_t i = 0, last; i < n_out; i = last) {
        last = end_of_peer(out, n_out, i);
        if (out[i].peer != plan->rank)
            send_to(&e, out, i, last, from);
    }
    wf_builder_cut(b, 0);
}
