/* Reductions and sums of shards, from messages. */
#include "comm/engine/collectives_author.h"

#include <stdlib.h>

/* Long vectors: the vector is cut into pieces, each piece into one block per member. Every member receives its block of
 * a piece from all others, combines the copies in their order, and sends the result on; the next pieces are already on
 * their way meanwhile. */
typedef struct reduction {
    wf_builder *b;
    const wf_group *g;
    wf_address x, y; /* y: the result; not used where it is not wanted */
    wf_address own;  /* where it is not: the combined blocks of this member, one after the other */
    wf_address work; /* of the pieces ahead: one block a member each */
    wf_address *in;
    wf_steps *sent, *came; /* of the piece in hand, by member */
    wf_steps *combined;    /* of the pieces ahead */
    int64_t count, piece;
    size_t size, slot; /* bytes of an element, of the longest block */
    wf_dtype dtype;
    wf_reduce_op op;
    int root, ahead;
    bool wanted;
    const int64_t *shard; /* of sums of shards; else NULL */
} reduction;

static int64_t longest_shard(const wf_group *g, const int64_t *shard)
{
    int64_t longest = 0;
    for (int m = 0; m < g->size; m++)
        longest = shard[m + 1] - shard[m] > longest ? shard[m + 1] - shard[m] : longest;
    return longest;
}

static int64_t pieces_of(const reduction *r)
{
    const int64_t each = r->piece / r->g->size;
    if (r->shard)
        return (longest_shard(r->g, r->shard) + each - 1) / each;
    return (r->count + r->piece - 1) / r->piece;
}

/* The block of a member in piece k: where it is in the vector, and how long. */
static void block_of(const reduction *r, int64_t k, int member, size_t *at, size_t *bytes)
{
    int64_t lo, hi;
    if (r->shard) {
        const int64_t each = r->piece / r->g->size, end = r->shard[member + 1], from = r->shard[member] + k * each;
        lo = end < from ? end : from;
        hi = end - lo < each ? end : lo + each;
    } else {
        const int64_t base = k * r->piece, n = r->count - base < r->piece ? r->count - base : r->piece;
        wf_block(n, r->g->size, member, &lo, &hi);
        lo += base;
        hi += base;
    }
    *at = (size_t)lo * r->size;
    *bytes = (size_t)(hi - lo) * r->size;
}

static wf_address work_of(const reduction *r, int64_t k, int member)
{
    return wf_address_add(r->work, ((size_t)(k % r->ahead) * (size_t)r->g->size + (size_t)member) * r->slot);
}

/* Receives this member's block of piece k from the others, once the piece that was in that place is combined; sends
 * them theirs. Steps of the sends stay in sent[k % ahead]. */
static void spread_piece(const reduction *r, int64_t k)
{
    const wf_group *g = r->g;
    wf_steps *came = r->came + (k % r->ahead) * g->size, *sent = r->sent + (k % r->ahead) * g->size;
    size_t at, bytes;
    block_of(r, k, g->place, &at, &bytes);
    for (int step = 1; step < g->size; step++) {
        const int from = (g->place + g->size - step) % g->size;
        wf_after(r->b, r->combined[k % r->ahead]);
        came[from] = wf_add_recv(r->b, work_of(r, k, from), bytes, wf_group_rank(g, from));
    }
    for (int step = 1; step < g->size; step++) {
        const int to = (g->place + step) % g->size;
        block_of(r, k, to, &at, &bytes);
        sent[to] = wf_add_send(r->b, wf_address_add(r->x, at), bytes, wf_group_rank(g, to));
    }
}

static wf_address combine_piece(const reduction *r, int64_t k)
{
    const wf_group *g = r->g;
    const wf_steps *came = r->came + (k % r->ahead) * g->size;
    size_t at, bytes;
    block_of(r, k, g->place, &at, &bytes);
    for (int m = 0; m < g->size; m++) {
        r->in[m] = m == g->place ? wf_address_add(r->x, at) : work_of(r, k, m);
        if (m != g->place)
            wf_after(r->b, came[m]);
    }
    const wf_address to = r->own.operand >= 0 ? wf_address_add(r->own, (size_t)k * r->slot) : wf_address_add(r->y, at);
    r->combined[k % r->ahead] =
        wf_add_combine(r->b, r->op, r->dtype, g->size, r->in, to, WF_NOWHERE, (int64_t)(bytes / r->size));
    return to;
}

/* y may be x: the result of a block is received where its copy has been sent from. */
static void collect_piece(const reduction *r, int64_t k, wf_address result)
{
    const wf_group *g = r->g;
    const wf_steps *sent = r->sent + (k % r->ahead) * g->size;
    size_t at, bytes, own_at, own_bytes;
    block_of(r, k, g->place, &own_at, &own_bytes);
    for (int step = 1; step < g->size && r->wanted; step++) {
        const int from = (g->place + g->size - step) % g->size;
        block_of(r, k, from, &at, &bytes);
        wf_after(r->b, sent[from]);
        wf_add_recv(r->b, wf_address_add(r->y, at), bytes, wf_group_rank(g, from));
    }
    for (int step = 1; step < g->size; step++) {
        const int to = (g->place + step) % g->size;
        if (r->root >= 0 && r->root != to)
            continue;
        wf_after(r->b, r->combined[k % r->ahead]);
        wf_add_send(r->b, result, own_bytes, wf_group_rank(g, to));
    }
}

static void run_pieces(const reduction *r)
{
    const int64_t pieces = pieces_of(r);
    int64_t spread = 0;
    for (int64_t k = 0; k < pieces; k++) {
        for (; spread < pieces && spread < k + r->ahead; spread++)
            spread_piece(r, spread);
        const wf_address result = combine_piece(r, k);
        if (!r->shard)
            collect_piece(r, k, result);
    }
}

/* To other nodes in messages that need no answer: each answer waits until its rank looks at its messages, and a rank
 * that computes meanwhile does so only now and then. */
static void reduce_long(reduction *r)
{
    const wf_agreed *agreed = wf_builder_agreed(r->b);
    const int size = r->g->size;
    int64_t piece = (int64_t)(agreed->piece_bytes / r->size) / size;
    r->ahead = agreed->pieces_ahead;
    if (piece < agreed->least_block)
        piece = agreed->least_block;
    if (piece > r->count / size + 1)
        piece = r->count / size + 1;
    r->piece = piece * size;
    r->slot = (size_t)piece * r->size;
    r->work = wf_builder_scratch(r->b, (size_t)(r->ahead * size) * r->slot);
    r->own = r->wanted ? WF_NOWHERE : wf_builder_scratch(r->b, (size_t)pieces_of(r) * r->slot);
    wf_builder_cut(r->b, agreed->nodes > 1 ? agreed->prompt_bytes : 0);
    run_pieces(r);
    wf_builder_cut(r->b, 0);
}

/* Sends the vector of every member to every other one. */
static void reduce_to_all(const reduction *r)
{
    const wf_group *g = r->g;
    const wf_address slot = wf_builder_scratch(r->b, (size_t)g->size * r->slot);
    const wf_steps moved = wf_build_bruck(r->b, g, r->x, r->slot, slot);
    for (int m = 0; m < g->size; m++)
        r->in[m] = wf_address_add(slot, (size_t)((m - g->place + g->size) % g->size) * r->slot);
    wf_after(r->b, moved);
    wf_add_combine(r->b, r->op, r->dtype, g->size, r->in, r->y, WF_NOWHERE, r->count);
}

static void reduce_to_root(const reduction *r)
{
    const wf_group *g = r->g;
    if (g->place != r->root) {
        wf_add_send(r->b, r->x, r->slot, wf_group_rank(g, r->root));
        return;
    }
    const wf_address all = wf_builder_scratch(r->b, (size_t)g->size * r->slot);
    wf_steps came = {0};
    for (int m = 0; m < g->size; m++) {
        r->in[m] = m == g->place ? r->x : wf_address_add(all, (size_t)m * r->slot);
        if (m == g->place)
            continue;
        const wf_steps one = wf_add_recv(r->b, r->in[m], r->slot, wf_group_rank(g, m));
        came.first = came.last == 0 ? one.first : came.first;
        came.last = one.last;
    }
    wf_after(r->b, came);
    wf_add_combine(r->b, r->op, r->dtype, g->size, r->in, r->y, WF_NOWHERE, r->count);
}

/* Room for the lists of a reduction, until the builder's end. */
static bool make_lists(reduction *r)
{
    const size_t size = (size_t)r->g->size, ahead = (size_t)wf_builder_agreed(r->b)->pieces_ahead;
    r->in = wf_builder_room(r->b, size * sizeof *r->in);
    r->sent = wf_builder_room(r->b, ahead * size * sizeof *r->sent);
    r->came = wf_builder_room(r->b, ahead * size * sizeof *r->came);
    r->combined = wf_builder_room(r->b, ahead * sizeof *r->combined);
    return r->in && r->sent && r->came && r->combined;
}

void wf_build_reduce(wf_builder *b, const wf_group *g, wf_address x, wf_address y, int64_t count, wf_dtype dtype,
                     wf_reduce_op op, int root)
{
    reduction r = {.b = b, .g = g, .x = x, .y = y, .count = count, .dtype = dtype, .op = op, .root = root};
    r.size = wf_dtype_size(dtype);
    r.slot = (size_t)count * r.size;
    r.wanted = root < 0 || root == g->place;
    if (g->place < 0 || count == 0)
        return;
    if (g->size == 1) {
        if (x.operand != y.operand || x.at != y.at)
            wf_add_copy(b, x, y, r.slot, false);
        return;
    }
    if (!make_lists(&r))
        return;
    if (root < 0)
        wf_builder_synchronizes(b, g);
    if (r.slot > wf_builder_agreed(b)->small_bytes / (size_t)g->size) {
        reduce_long(&r);
        return;
    }
    wf_builder_count_copied(b, r.slot);
    if (root < 0)
        reduce_to_all(&r);
    else
        reduce_to_root(&r);
}

void wf_build_sum_shards(wf_builder *b, const wf_group *g, wf_address data, const int64_t *shard, wf_dtype dtype)
{
    reduction r = {.b = b, .g = g, .x = data, .y = data, .dtype = dtype, .op = WF_SUM, .root = -1, .shard = shard};
    r.count = shard[g->size];
    r.size = wf_dtype_size(dtype);
    r.wanted = true;
    if (g->place >= 0 && g->size > 1 && longest_shard(g, shard) > 0 && make_lists(&r))
        reduce_long(&r);
}
