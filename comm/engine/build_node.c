/* Reduction and broadcast among the ranks of a node, through shared memory.
 *
 * The algorithm is a reduce-scatter followed by an all-gather (Rabenseifner 2004, "Optimization of Collective Reduction
 * Operations"), pipelined over pieces of the vector. Every rank owns ring_slots slots of one piece each. With three
 * ranks, piece k of the vector has slices 0, 1 and 2, and passes through three stages:
 *
 *     slot of      rank 0         rank 1         rank 2          flag raised by each rank
 *     copy      [  . |x0 |x0 ]  [x1 |  . |x1 ]  [x2 |x2 |  . ]    the slot's: k + 1, and the call
 *     reduce    [ y  |x0 |x0 ]  [x1 | y  |x1 ]  [x2 |x2 | y  ]    REDUCED: k + 1
 *     take      y of the other two slots into the result          TAKEN: k + 1
 *
 * A rank copies what others need of its piece, not its own slice, into its slot; sums its slice of all ranks, in rank
 * order, into its slot and the result; and takes the other slices out of the other slots. Each stage is a piece behind
 * the one before it, so that what it awaits from other ranks is mostly there, and still in a cache:
 *
 *     step      0         1         2         3
 *     piece 0   copy      reduce    take
 *     piece 1             copy      reduce    take
 *
 * Variants. Vectors of at most ring_short_bytes are `whole`: every rank that wants the result reduces all of each piece
 * by itself, which saves a stage. A reduction to a root: only the root takes. A broadcast: the root copies, the others
 * take.
 *
 * Who owns what. Only its owner writes to a slot. The owner writes a piece when all others have raised TAKEN of the
 * piece before it in that slot (ring_slots earlier), and when this rank's own steps are done with that one. The slot's
 * flag lies before its data; those of a short vector share its cache line. Flags order the accesses (run.c). All ranks
 * sum in the same order, so that all get the same bits. A rank that fails leaves flags down: the others wait, and the
 * guard ends the wait. verify.c checks these schedules for races and deadlock. */
#include "comm/engine/collectives_author.h"

#define GRAIN 16 /* elements: slices begin at whole cache lines */

enum { REDUCED = WF_FLAG_SLOT + 1, TAKEN };

typedef struct passage {
    wf_builder *b;
    wf_group node;
    wf_address x, y; /* of a broadcast: x is read on the root alone */
    wf_address *in;
    int64_t count, piece, pieces, ring; /* ring: pieces before this passage */
    size_t size, begin;                 /* of an element; of a piece in its slot */
    wf_dtype dtype;
    wf_reduce_op op;
    int root;
    bool bcast, whole; /* whole: pieces are not cut into slices */
    bool wanted;
} passage;

/* A part of the vector, and where it is in a slot. */
typedef struct slice {
    size_t at, bytes, in_slot;
} slice;

static slice whole_of(const passage *p, int64_t k)
{
    const int64_t base = k * p->piece, n = p->count - base < p->piece ? p->count - base : p->piece;
    return (slice){.at = (size_t)base * p->size, .bytes = (size_t)n * p->size};
}

/* The part of piece k that a member reduces. */
static slice slice_of(const passage *p, int64_t k, int member)
{
    slice s = whole_of(p, k);
    const int64_t n = (int64_t)(s.bytes / p->size);
    int64_t lo, hi;
    if (p->whole)
        return s;
    wf_block((n + GRAIN - 1) / GRAIN, p->node.size, member, &lo, &hi);
    lo = lo * GRAIN < n ? lo * GRAIN : n;
    hi = hi * GRAIN < n ? hi * GRAIN : n;
    s.in_slot = (size_t)lo * p->size;
    s.at += s.in_slot;
    s.bytes = (size_t)(hi - lo) * p->size;
    return s;
}

static wf_address slot_of(const passage *p, int member, int64_t k)
{
    return wf_address_add(wf_builder_shared(p->b, wf_group_rank(&p->node, member), p->ring + k), p->begin);
}

/* A member has copied piece k into its slot. */
static wf_steps await_copy(const passage *p, int member, int64_t k)
{
    const int rank = wf_group_rank(&p->node, member);
    return wf_add_slot_await(p->b, rank, wf_builder_shared(p->b, rank, p->ring + k), p->ring + k + 1);
}

/* The other members' flags count piece k. */
static wf_steps await_others(const passage *p, int flag, int64_t k)
{
    wf_steps all = {0};
    for (int m = 0; m < p->node.size; m++) {
        if (m == p->node.place)
            continue;
        const wf_steps one = flag == WF_FLAG_SLOT
                                 ? await_copy(p, m, k)
                                 : wf_add_await(p->b, wf_group_rank(&p->node, m), flag, p->ring + k + 1);
        all.first = all.last == 0 ? one.first : all.first;
        all.last = one.last;
    }
    return all;
}

/* Starts after all ranks have read what the slot held before. */
static wf_steps copy_in(const passage *p, int64_t k)
{
    const slice all = whole_of(p, k), own = slice_of(p, k, p->node.place);
    const size_t after = own.in_slot + own.bytes;
    const wf_address slot = slot_of(p, p->node.place, k), x = wf_address_add(p->x, all.at);
    if (p->bcast && p->root != p->node.place)
        return (wf_steps){0};
    const wf_steps freed = await_others(p, TAKEN, k - wf_builder_agreed(p->b)->ring_slots);
    const wf_steps own_use = wf_builder_slot_user(p->b, p->ring + k);
    wf_after(p->b, freed);
    wf_after(p->b, own_use);
    wf_steps copied = wf_add_copy(p->b, x, slot, p->whole ? all.bytes : own.in_slot, true);
    if (!p->whole) {
        wf_after(p->b, freed);
        wf_after(p->b, own_use);
        copied.last =
            wf_add_copy(p->b, wf_address_add(x, after), wf_address_add(slot, after), all.bytes - after, true).last;
    }
    wf_after(p->b, freed);
    wf_after(p->b, copied);
    wf_add_slot_notify(p->b, wf_builder_shared(p->b, wf_builder_rank(p->b), p->ring + k), p->ring + k + 1);
    return copied;
}

/* Reduces this rank's slice of a piece into its slot, for the others, and into the result; a piece that every rank
 * reduces goes only to the result. */
static wf_steps reduce_slice(const passage *p, int64_t k, wf_steps copied)
{
    const slice own = slice_of(p, k, p->node.place);
    const wf_address y = p->wanted ? wf_address_add(p->y, own.at) : WF_NOWHERE;
    if (p->whole && !p->wanted)
        return (wf_steps){0};
    const wf_steps there = await_others(p, WF_FLAG_SLOT, k);
    for (int m = 0; m < p->node.size; m++)
        p->in[m] = m == p->node.place ? wf_address_add(p->x, own.at) : wf_address_add(slot_of(p, m, k), own.in_slot);
    const wf_address slot = wf_address_add(slot_of(p, p->node.place, k), own.in_slot);
    wf_after(p->b, there);
    wf_after(p->b, copied);
    const wf_steps combined = wf_add_combine(p->b, p->op, p->dtype, p->node.size, p->in, p->whole ? y : slot,
                                             p->whole ? WF_NOWHERE : y, (int64_t)(own.bytes / p->size));
    if (!p->whole) {
        wf_after(p->b, there);
        wf_after(p->b, combined);
        wf_add_notify(p->b, REDUCED, p->ring + k + 1);
    }
    return (wf_steps){there.first, combined.last};
}

/* The other members' slices, out of their slots. */
static wf_steps take_slices(const passage *p, int64_t k)
{
    if (p->whole || !p->wanted)
        return (wf_steps){0};
    const wf_steps there = await_others(p, REDUCED, k);
    wf_steps taken = there;
    for (int m = 0; m < p->node.size; m++) {
        const slice s = slice_of(p, k, m);
        if (m == p->node.place)
            continue;
        wf_after(p->b, (wf_steps){there.first, there.last});
        taken.last =
            wf_add_copy(p->b, wf_address_add(slot_of(p, m, k), s.in_slot), wf_address_add(p->y, s.at), s.bytes, false)
                .last;
    }
    return taken;
}

static void take_piece(const passage *p, int64_t k, wf_steps reduced)
{
    const wf_steps taken = take_slices(p, k);
    wf_after(p->b, reduced);
    wf_after(p->b, taken);
    wf_builder_slot_used(p->b, p->ring + k, wf_add_notify(p->b, TAKEN, p->ring + k + 1));
}

_Static_assert(WF_RING_SLOTS >= 3, "a piece is copied before the two before it have been taken");

/* The three stages of a vector, each one piece behind the stage before it: what a stage needs of the others they have
 * mostly done by then, since they are as far as this rank. */
static void reduce_pieces(const passage *p)
{
    wf_steps copied[2] = {0}, reduced[2] = {0};
    for (int64_t k = 0; k < p->pieces + 2; k++) {
        const int64_t before = k - 1, last = k - 2;
        if (k < p->pieces)
            copied[k % 2] = copy_in(p, k);
        if (before >= 0 && before < p->pieces)
            reduced[before % 2] = reduce_slice(p, before, copied[before % 2]);
        if (last >= 0)
            take_piece(p, last, reduced[last % 2]);
    }
}

static void bcast_piece(const passage *p, int64_t k)
{
    const slice all = whole_of(p, k);
    wf_steps taken = copy_in(p, k);
    if (p->root != p->node.place) {
        const wf_steps there = await_copy(p, p->root, k);
        wf_after(p->b, there);
        taken = wf_add_copy(p->b, slot_of(p, p->root, k), wf_address_add(p->y, all.at), all.bytes, false);
    }
    wf_after(p->b, taken);
    wf_builder_slot_used(p->b, p->ring + k, wf_add_notify(p->b, TAKEN, p->ring + k + 1));
}

/* Some pieces even of a vector that fits into one slot, so that ranks overlap. */
static void cut(passage *p)
{
    const wf_agreed *agreed = wf_builder_agreed(p->b);
    const int64_t most = (int64_t)(agreed->ring_slot_bytes / p->size);
    const int64_t least = (int64_t)(agreed->ring_short_bytes / p->size);
    p->piece = p->count / agreed->ring_slots;
    p->piece = p->piece < least ? least : p->piece > most ? most : p->piece;
    p->pieces = (p->count + p->piece - 1) / p->piece;
    p->begin = (size_t)p->count * p->size <= WF_SLOT_HEAD ? 0 : WF_SLOT_HEAD;
    p->ring = wf_builder_ring(p->b, p->pieces);
}

void wf_build_node_reduce(wf_builder *b, wf_address x, wf_address y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                          int root)
{
    passage p = {.b = b, .x = x, .y = y, .count = count, .dtype = dtype, .op = op, .root = root};
    p.node = wf_group_node(wf_builder_agreed(b), wf_builder_rank(b));
    p.size = wf_dtype_size(dtype);
    p.wanted = root < 0 || root == p.node.place;
    p.whole = (size_t)count * p.size <= wf_builder_agreed(b)->ring_short_bytes;
    if (p.node.size == 1) {
        if (x.operand != y.operand || x.at != y.at)
            wf_add_copy(b, x, y, (size_t)count * p.size, false);
        return;
    }
    p.in = wf_builder_room(b, (size_t)p.node.size * sizeof *p.in);
    if (!p.in || count == 0)
        return;
    cut(&p);
    if (root < 0)
        wf_builder_synchronizes(b, &p.node);
    reduce_pieces(&p);
}

void wf_build_node_bcast(wf_builder *b, wf_address data, size_t bytes, int root)
{
    passage p = {.b = b, .x = data, .y = data, .count = (int64_t)bytes, .size = 1, .root = root};
    p.node = wf_group_node(wf_builder_agreed(b), wf_builder_rank(b));
    p.bcast = p.whole = p.wanted = true;
    if (p.node.size == 1 || bytes == 0)
        return;
    cut(&p);
    for (int64_t k = 0; k < p.pieces; k++)
        bcast_piece(&p, k);
}
