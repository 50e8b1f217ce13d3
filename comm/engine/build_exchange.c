/* An exchange plan as a schedule. All that goes to one peer is a packet: one message of its boxes, one after the other;
 * or, between ranks of a node that share rings, parts that fit into a slot, packed by the one and unpacked by the other
 * rank. A single long box that lies in both arrays as it travels is a message without a copy, unless what comes is
 * added. Natively all is one group. */
#include "comm/engine/collectives_author.h"

#include "comm/plan_author.h"

#include <string.h>

/* One end of the plan: what this rank sends, or what comes. A packet has the elements of its pieces' sources, in their
 * order; in a need they lie where the piece says, and in reverse a need's elements of one source are added up. */
typedef struct side {
    const wf_piece *piece;
    const bool *dense; /* NULL: no piece is */
    int64_t pieces;
    bool needs;            /* the array is a need: pieces lie at their places, not at their sources */
    const wf_slabs *slabs; /* how a need is held; NULL: as its box */
    wf_box held;
    int64_t stride[WF_MAX_RANK];
    wf_address array;
} side;

/* Pieces [first, last) of a side are those of one peer. */
typedef struct packet {
    int64_t first, last;
    int peer; /* its rank */
    size_t bytes;
    bool parted;
    wf_address data; /* of a message */
    bool direct;     /* in the array itself */
    wf_steps ready;  /* what its end waits for: packed, or received */
} packet;

typedef struct exchange {
    wf_builder *b;
    const wf_agreed *agreed;
    const wf_group *group;
    const wf_exchange_shape *shape;
    side out, in;
    packet *sent, *came;
    int count_out, count_in;
    size_t size;  /* of an element */
    bool staged;  /* messages go through the host's memory */
    bool grouped; /* messages are one group of the native transport */
} exchange;

static size_t piece_bytes(const exchange *e, const wf_piece *piece)
{
    return (size_t)wf_shape_count(wf_box_shape(piece->box)) * e->size;
}

/* --- sides and packets -------------------------------------------------------------------------------------------- */

static side side_of(const exchange *e, bool sends, const int64_t *stride)
{
    const wf_plan *plan = e->shape->plan;
    const bool first = sends != e->shape->reversed; /* the plan's own sends */
    side s = {.piece = first ? plan->send : plan->recv,
              .pieces = first ? plan->n_send : plan->n_recv,
              .needs = !first,
              .slabs = first ? NULL : e->shape->slabs,
              .dense = first ? e->shape->dense_send : e->shape->dense_recv,
              .held = first ? e->shape->have : e->shape->need};
    if (stride)
        memcpy(s.stride, stride, (size_t)s.held.rank * sizeof *stride);
    else
        wf_order_strides(wf_box_shape(s.held), e->shape->order, s.stride);
    return s;
}

/* Bytes from the first to the last element, and whatever lies between. */
static size_t extent(const exchange *e, const side *s)
{
    int64_t last = 0;
    if (wf_box_empty(s->held))
        return 0;
    if (s->slabs)
        return (size_t)s->slabs->elements * e->size;
    for (int d = 0; d < s->held.rank; d++)
        last += (s->held.hi[d] - s->held.lo[d] - 1) * s->stride[d];
    return (size_t)(last + 1) * e->size;
}

/* Straight from array to array is faster only for what needs no packing and is long; a device's arrays always pass
 * through a slot. */
static bool goes_in_parts(const exchange *e, const side *s, const packet *p)
{
    if (e->grouped || !wf_pair_shares(e->agreed, wf_builder_rank(e->b), p->peer))
        return false;
    return e->agreed->staged || p->last - p->first > 1 || p->bytes <= e->agreed->pair_short_bytes || !s->dense ||
           !s->dense[p->first];
}

/* Pieces come sorted by peer. */
static packet *list_packets(const exchange *e, const side *s, int *count)
{
    packet *list = wf_builder_room(e->b, (size_t)s->pieces * sizeof *list + 1);
    int n = 0;
    for (int64_t i = 0, last; list && i < s->pieces; i = last) {
        packet p = {.first = i, .peer = wf_group_rank(e->group, s->piece[i].peer)};
        for (last = i; last < s->pieces && s->piece[last].peer == s->piece[i].peer; last++)
            p.bytes += piece_bytes(e, &s->piece[last]);
        p.last = last;
        p.parted = goes_in_parts(e, s, &p);
        if (s->piece[i].peer != e->shape->plan->rank)
            list[n++] = p;
    }
    *count = n;
    return list;
}

/* The piece in the array of the side, which begins at array_at. */
static wf_step_box step_box(const exchange *e, const side *s, const wf_piece *piece)
{
    wf_step_box at = {.held = s->held, .box = s->needs ? piece->at : piece->box, .order = e->shape->order};
    memcpy(at.stride, s->stride, sizeof at.stride);
    if (s->slabs) {
        at.held = s->slabs->box[wf_slabs_find(s->slabs, piece->at)];
        wf_order_strides(wf_box_shape(at.held), at.order, at.stride);
    }
    for (int d = 0; d < WF_MAX_RANK; d++)
        at.step[d] = s->needs ? piece->step[d] : 1;
    return at;
}

/* The array of the side, or the slab that the piece lies in. */
static wf_address array_at(const exchange *e, const side *s, const wf_piece *piece)
{
    if (!s->slabs)
        return s->array;
    return wf_address_add(s->array, (size_t)s->slabs->at[wf_slabs_find(s->slabs, piece->at)] * e->size);
}

/* Returns true if a piece is one run of memory in the array of the side, in the order of travel, and where. */
static bool lies_dense(const exchange *e, const side *s, const wf_piece *piece, wf_address *at)
{
    int64_t dense[WF_MAX_RANK], offset = 0;
    const wf_step_box box = step_box(e, s, piece);
    const wf_shape shape = wf_box_shape(box.box);
    wf_order_strides(shape, e->shape->order, dense);
    if (piece->negate)
        return false;
    for (int d = 0; d < shape.rank; d++) {
        if (box.step[d] != 1 || (shape.dim[d] > 1 && box.stride[d] != dense[d]))
            return false;
        offset += (box.box.lo[d] - box.held.lo[d]) * box.stride[d];
    }
    *at = wf_address_add(array_at(e, s, piece), (size_t)offset * e->size);
    return true;
}

static wf_address buffer(const exchange *e, size_t bytes)
{
    return e->agreed->staged ? wf_builder_device(e->b, bytes) : wf_builder_scratch(e->b, bytes);
}

/* Elements of a source, which lie in a message or a slot as all of `held` does. */
static wf_step_box packed_box(const exchange *e, wf_box held, wf_box box)
{
    wf_step_box at = {.held = held, .box = box, .order = e->shape->order};
    wf_order_strides(wf_box_shape(held), e->shape->order, at.stride);
    for (int d = 0; d < WF_MAX_RANK; d++)
        at.step[d] = 1;
    return at;
}

/* The next echo from number i on of elements of `part`, a part of piece `of` that comes, and what of it is in there.
 * Returns its number; that of all echoes if there is none. */
static int64_t next_echo(const exchange *e, int64_t of, const wf_piece *part, int64_t i, wf_piece *found)
{
    const wf_plan *plan = e->shape->plan;
    for (; i < plan->n_echo; i++) {
        const wf_piece *piece = &plan->echo[i].piece;
        const wf_box box = wf_box_intersect(piece->box, part->box);
        if (plan->echo[i].of != of || wf_box_empty(box))
            continue;
        *found = wf_piece_part(piece, box);
        break;
    }
    return i;
}

/* From box to box; through memory of its own where the sign changes. */
static wf_steps copy_box(const exchange *e, wf_address from, const wf_step_box *out, wf_address to,
                         const wf_step_box *in, bool negates, bool adds)
{
    if (!negates)
        return wf_add_copy_box(e->b, from, *out, e->shape->dtype, to, *in, adds);
    const wf_address through = buffer(e, (size_t)wf_shape_count(wf_step_box_source(out)) * e->size);
    wf_after(e->b, wf_add_pack(e->b, from, *out, e->shape->dtype, through, true));
    return wf_add_unpack(e->b, through, *in, e->shape->dtype, to, adds);
}

/* Copies what came for a part, and is at `at`, to the part's echoes, which lie in the need; in reverse adds the echoes
 * to the part, which is packed there. Elements at `at` have the part's sign already: forward an echo changes it only if
 * its own sign is another, in reverse an echo is multiplied by its own. */
static wf_steps copy_echoes(const exchange *e, int64_t of, const wf_piece *part, wf_address at, wf_steps all)
{
    const side *need = e->in.needs ? &e->in : &e->out;
    wf_piece echo;
    for (int64_t i = next_echo(e, of, part, 0, &echo); i < e->shape->plan->n_echo;
         i = next_echo(e, of, part, i + 1, &echo)) {
        const wf_step_box packed = packed_box(e, part->box, echo.box), place = step_box(e, need, &echo);
        const wf_address array = array_at(e, need, &echo);
        wf_after(e->b, all);
        all.last = e->shape->reversed
                       ? copy_box(e, array, &place, at, &packed, echo.negate, true).last
                       : copy_box(e, at, &packed, array, &place, echo.negate != part->negate, false).last;
    }
    return all;
}

/* Chooses the memory in which a message is packed or arrives: the array itself, if its only piece lies there as it
 * travels, else scratch. */
static void place_message(const exchange *e, const side *s, packet *p, bool may_be_direct)
{
    wf_piece echo;
    const bool echoes = s->needs && next_echo(e, p->first, &s->piece[p->first], 0, &echo) < e->shape->plan->n_echo;
    p->direct = may_be_direct && !echoes && p->last - p->first == 1 && lies_dense(e, s, &s->piece[p->first], &p->data);
    if (!p->direct)
        p->data = buffer(e, p->bytes);
}

/* --- what goes ---------------------------------------------------------------------------------------------------- */

/* The sender changes signs, so that what travels is what is unpacked. `part` is one of piece `of` of the side. */
static wf_steps pack(const exchange *e, int64_t of, const wf_piece *part, wf_address to)
{
    const wf_steps all =
        wf_add_pack(e->b, array_at(e, &e->out, part), step_box(e, &e->out, part), e->shape->dtype, to, part->negate);
    return e->out.needs ? copy_echoes(e, of, part, to, all) : all;
}

static void pack_message(const exchange *e, packet *p)
{
    size_t at = 0;
    place_message(e, &e->out, p, true);
    for (int64_t i = p->first; i < p->last && !p->direct; i++) {
        const wf_steps one = pack(e, i, &e->out.piece[i], wf_address_add(p->data, at));
        p->ready.first = i == p->first ? one.first : p->ready.first;
        p->ready.last = one.last;
        at += piece_bytes(e, &e->out.piece[i]);
    }
}

/* A message leaves as soon as its bytes are there; the next ones are on their way to the host meanwhile. */
static void send_message(const exchange *e, packet *p)
{
    pack_message(e, p);
    if (e->staged) {
        const wf_address host = wf_builder_scratch(e->b, p->bytes);
        wf_after(e->b, p->ready);
        wf_after(e->b, wf_add_stage_begin(e->b, p->data, host, p->bytes, true));
        p->ready = wf_add_fence(e->b);
        p->data = host;
    }
    wf_after(e->b, p->ready);
    wf_add_send(e->b, p->data, p->bytes, p->peer);
}

/* The parts of one packet that were added so far, and what adds a part. */
typedef struct parting {
    exchange *e;
    const packet *p;
    int64_t part;
    wf_steps before; /* what adds goes in the order of peers: behind this */
    const wf_piece *piece;
    void (*add)(struct parting *parting, const wf_piece *part);
} parting;

/* Calls for the parts of a piece with the source `box`, the outermost dimensions first. */
static void split(parting *t, wf_box box, int level)
{
    const int64_t most = (int64_t)(t->e->agreed->pair_slot_bytes / t->e->size);
    const int64_t count = wf_shape_count(wf_box_shape(box));
    if (count <= most || level == box.rank) {
        const wf_piece part = wf_piece_part(t->piece, box);
        t->add(t, &part);
        return;
    }
    const int d = wf_order_dim(t->e->shape->order, box.rank, level);
    const int64_t lo = box.lo[d], hi = box.hi[d], inner = count / (hi - lo);
    /* As many outer indices as fit in a slot. */
    const int64_t step = inner >= most ? 1 : most / inner;
    for (int64_t at = lo; at < hi; at += step) {
        box.lo[d] = at;
        box.hi[d] = at + step < hi ? at + step : hi;
        split(t, box, level + 1);
    }
}

static void split_pieces(parting *t, const side *s)
{
    for (int64_t i = t->p->first; i < t->p->last; i++) {
        t->piece = &s->piece[i];
        split(t, t->piece->box, 0);
    }
}

/* What is in a slot may be told of, or the slot given back, when the device has done it. */
static wf_steps until_done(const exchange *e, wf_steps steps)
{
    if (!e->agreed->staged)
        return steps;
    wf_after(e->b, steps);
    return wf_add_fence(e->b);
}

static void send_part(parting *t, const wf_piece *part)
{
    const exchange *e = t->e;
    const int own = wf_builder_rank(e->b), peer = t->p->peer;
    const int32_t place = e->agreed->place[peer], ring = wf_ring_to(place);
    const wf_address slot = wf_builder_pair_slot(e->b, own, peer, t->part);
    const int64_t freed = t->part + 1 - wf_pair_slots(e->agreed, own);
    wf_after(e->b, wf_add_ring_await(e->b, peer, ring, wf_flag_taken(e->agreed->place[own]), freed));
    wf_after(e->b, until_done(e, pack(e, t->piece - e->out.piece, part, slot)));
    wf_add_ring_notify(e->b, ring, wf_flag_posted(place), ++t->part);
}

/* The next rank is served first, so that not all begin with the same one. */
static void send_all(exchange *e)
{
    int first = 0;
    while (first < e->count_out && e->sent[first].peer < wf_builder_rank(e->b))
        first++;
    for (int i = 0; i < e->count_out; i++) {
        packet *p = &e->sent[(first + i) % e->count_out];
        parting t = {.e = e, .p = p, .add = send_part};
        if (p->parted) {
            split_pieces(&t, &e->out);
            wf_builder_count_passed(e->b, p->bytes);
        } else {
            send_message(e, p);
        }
    }
}

/* --- what comes --------------------------------------------------------------------------------------------------- */

/* In reverse the bytes are to be added, so they cannot arrive in the array itself. */
static void receive_messages(const exchange *e)
{
    for (int i = 0; i < e->count_in; i++) {
        packet *p = &e->came[i];
        if (p->parted)
            continue;
        place_message(e, &e->in, p, !e->shape->reversed);
        const wf_address to = e->staged ? wf_builder_scratch(e->b, p->bytes) : p->data;
        p->ready = wf_add_recv(e->b, to, p->bytes, p->peer);
        if (!e->staged)
            continue;
        wf_after(e->b, p->ready);
        p->ready = wf_add_stage_begin(e->b, to, p->data, p->bytes, false);
        wf_after(e->b, p->ready);
        wf_add_fence(e->b);
    }
}

/* Adding waits for the owner's wait, since the caller may add to the array before. `part` is one of piece `of`. */
static wf_steps unpack(const exchange *e, int64_t of, const wf_piece *part, wf_address from, wf_steps before)
{
    if (e->shape->reversed) {
        wf_after(e->b, before);
        wf_builder_at_wait(e->b);
    }
    const wf_steps all = wf_add_unpack(e->b, from, step_box(e, &e->in, part), e->shape->dtype,
                                       array_at(e, &e->in, part), e->shape->reversed);
    return e->in.needs ? copy_echoes(e, of, part, from, all) : all;
}

static void receive_part(parting *t, const wf_piece *part)
{
    const exchange *e = t->e;
    const int own = wf_builder_rank(e->b), peer = t->p->peer;
    const int32_t place = e->agreed->place[peer], ring = wf_ring_from(place);
    const wf_address slot = wf_builder_pair_slot(e->b, peer, own, t->part);
    wf_after(e->b, wf_add_ring_await(e->b, peer, ring, wf_flag_posted(e->agreed->place[own]), t->part + 1));
    t->before = unpack(e, t->piece - e->in.piece, part, slot, t->before);
    wf_after(e->b, until_done(e, t->before));
    wf_add_ring_notify(e->b, ring, wf_flag_taken(place), ++t->part);
}

static void unpack_all(exchange *e, wf_steps before)
{
    for (int i = 0; i < e->count_in; i++) {
        const packet *p = &e->came[i];
        parting t = {.e = e, .p = p, .before = before, .add = receive_part};
        size_t at = 0;
        if (p->parted) {
            split_pieces(&t, &e->in);
            before = t.before;
            continue;
        }
        for (int64_t k = p->first; k < p->last && !p->direct; k++) {
            wf_after(e->b, p->ready);
            before = unpack(e, k, &e->in.piece[k], wf_address_add(p->data, at), before);
            at += piece_bytes(e, &e->in.piece[k]);
        }
    }
}

/* Copies the pieces that this rank has itself; without its own part only those that go to other places. Those wait in
 * reverse for the owner's wait, as received ones do. */
static wf_steps keep_own(const exchange *e, wf_steps before)
{
    const wf_plan *plan = e->shape->plan;
    for (int64_t i = 0; i < plan->n_recv; i++) {
        const wf_piece *piece = &plan->recv[i];
        if (piece->peer != plan->rank || (!e->shape->own && wf_piece_stays(piece)))
            continue;
        wf_after(e->b, before);
        if (!e->shape->own && e->shape->reversed)
            wf_builder_at_wait(e->b);
        const wf_step_box from = step_box(e, &e->out, piece), to = step_box(e, &e->in, piece);
        before = copy_box(e, array_at(e, &e->out, piece), &from, array_at(e, &e->in, piece), &to, piece->negate,
                          e->shape->reversed);
    }
    return before;
}

/* Fills the places beyond constant edges, which may lie in several slabs. In reverse they have no source. */
static void fill_rest(const exchange *e)
{
    const wf_plan *plan = e->shape->plan;
    const int n = e->in.slabs ? e->in.slabs->n : 1;
    for (int64_t i = 0; i < plan->n_fill * n && !e->shape->reversed; i++) {
        wf_piece part = plan->fill[i / n];
        part.at = wf_box_intersect(part.at, e->in.slabs ? e->in.slabs->box[i % n] : e->in.held);
        if (!wf_box_empty(part.at))
            wf_add_fill(e->b, step_box(e, &e->in, &part), e->shape->dtype, array_at(e, &e->in, &part), plan->value);
    }
}

/* --- as one group of native messages ------------------------------------------------------------------------------ */

static wf_steps add_mark(wf_builder *b, wf_native_kind kind)
{
    return wf_add_native(b, (wf_step){.list = (int32_t)kind}, WF_NOWHERE, WF_NOWHERE);
}

/* Everything that a rank sends and receives is one group of the native transport. The device computes on until the
 * owner's wait. */
static wf_steps exchange_group(const exchange *e)
{
    for (int i = 0; i < e->count_out; i++)
        pack_message(e, &e->sent[i]);
    if (e->count_in + e->count_out == 0)
        return (wf_steps){0};
    for (int i = 0; i < e->count_out; i++)
        wf_after(e->b, e->sent[i].ready);
    const wf_steps begun = add_mark(e->b, WF_NATIVE_GROUP);
    wf_steps all = begun;
    for (int i = 0; i < e->count_in; i++) {
        packet *p = &e->came[i];
        place_message(e, &e->in, p, !e->shape->reversed);
        wf_after(e->b, begun);
        all.last = wf_add_recv(e->b, p->data, p->bytes, p->peer).last;
    }
    for (int i = 0; i < e->count_out; i++) {
        wf_after(e->b, begun);
        all.last = wf_add_send(e->b, e->sent[i].data, e->sent[i].bytes, e->sent[i].peer).last;
    }
    wf_after(e->b, all);
    const wf_steps ended = add_mark(e->b, WF_NATIVE_LEAVE);
    wf_after(e->b, ended);
    wf_builder_at_wait(e->b);
    const wf_steps joined = add_mark(e->b, WF_NATIVE_JOIN);
    for (int i = 0; i < e->count_in; i++)
        e->came[i].ready = joined;
    return ended;
}

void wf_build_exchange(wf_builder *b, const wf_group *group, const wf_exchange_shape *shape)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    const bool whole = shape->own && !shape->to_stride && !shape->reversed;
    exchange e = {.b = b, .agreed = agreed, .group = group, .shape = shape, .size = wf_dtype_size(shape->dtype)};
    wf_steps before = {0};
    e.grouped = agreed->native;
    e.staged = agreed->staged && !e.grouped;
    e.out = side_of(&e, true, shape->from_stride);
    e.in = side_of(&e, false, shape->to_stride);
    e.out.array = wf_builder_operand(b, WF_OPERAND_INPUT, 0, extent(&e, &e.out));
    e.in.array = wf_builder_operand(b, whole ? WF_OPERAND_OUTPUT : WF_OPERAND_BOTH, 0, extent(&e, &e.in));
    e.sent = list_packets(&e, &e.out, &e.count_out);
    e.came = list_packets(&e, &e.in, &e.count_in);
    if (!e.sent || !e.came)
        return;
    wf_builder_in_order(b);
    /* Between nodes nothing waits for an answer, which a rank that computes gives only now and then. */
    wf_builder_cut(b, agreed->nodes > 1 ? agreed->prompt_bytes : 0);
    if (e.grouped) {
        before = exchange_group(&e);
    } else {
        /* Receives before sends, so that what comes early finds its place. */
        receive_messages(&e);
        send_all(&e);
    }
    fill_rest(&e);
    before = keep_own(&e, before);
    unpack_all(&e, before);
    wf_builder_cut(b, 0);
}
