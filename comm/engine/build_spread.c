/* Broadcast, all-gather, gathering of shards and barrier, from messages. */
#include "comm/engine/collectives_author.h"

static int member_at(const wf_group *g, int distance)
{
    return wf_group_rank(g, (g->place + distance) % g->size);
}

/* The member that is `distance` places before this one. */
static int member_before(const wf_group *g, int distance)
{
    return member_at(g, g->size - distance);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Piece by piece, so that a rank passes on the first piece while the next one comes. */
static void bcast_long(wf_builder *b, const wf_group *g, wf_address data, size_t bytes, int root)
{
    const int place = (g->place - root + g->size) % g->size;
    const size_t piece = wf_builder_agreed(b)->bcast_piece_bytes;
    for (size_t at = 0; at < bytes; at += piece) {
        const size_t n = least(piece, bytes - at);
        const wf_address part = wf_address_add(data, at);
        wf_steps came = {0};
        if (place > 0)
            came = wf_add_recv(b, part, n, member_before(g, 1));
        if (place < g->size - 1) {
            wf_after(b, came);
            wf_add_send(b, part, n, member_at(g, 1));
        }
    }
}

/* At distance d, the members below d serve those d further. */
static void bcast_short(wf_builder *b, const wf_group *g, wf_address data, size_t bytes, int root)
{
    const int place = (g->place - root + g->size) % g->size;
    wf_steps came = {0};
    int distance = 1;
    while (distance < g->size)
        distance *= 2;
    if (place > 0) {
        distance = place & -place;
        came = wf_add_recv(b, data, bytes, wf_group_rank(g, (place - distance + root) % g->size));
    }
    for (distance /= 2; distance > 0; distance /= 2)
        if (place + distance < g->size) {
            wf_after(b, came);
            wf_add_send(b, data, bytes, wf_group_rank(g, (place + distance + root) % g->size));
        }
}

void wf_build_bcast(wf_builder *b, const wf_group *g, wf_address data, size_t bytes, int root)
{
    if (g->place < 0 || g->size == 1 || bytes == 0)
        return;
    if (bytes > wf_builder_agreed(b)->bcast_piece_bytes)
        bcast_long(b, g, data, bytes, root);
    else
        bcast_short(b, g, data, bytes, root);
}

/* Slot j holds what member place + j has, and every step doubles the slots that are known. */
wf_steps wf_build_bruck(wf_builder *b, const wf_group *g, wf_address mine, size_t bytes, wf_address slot)
{
    const wf_steps own = wf_add_copy(b, mine, slot, bytes, false);
    wf_steps came[32], all = own;
    int rounds = 0;
    for (int known = 1; known < g->size; known *= 2, rounds++) {
        const int more = known < g->size - known ? known : g->size - known;
        const size_t part = (size_t)more * bytes;
        came[rounds] = wf_add_recv(b, wf_address_add(slot, (size_t)known * bytes), part, member_at(g, known));
        wf_after(b, own);
        for (int i = 0; i < rounds; i++)
            wf_after(b, came[i]);
        all.last = wf_add_send(b, slot, part, member_before(g, known)).last;
    }
    return all;
}

static void allgather_short(wf_builder *b, const wf_group *g, wf_address mine, size_t bytes, wf_address all)
{
    const wf_address slot = wf_builder_scratch(b, (size_t)g->size * bytes);
    const wf_steps moved = wf_build_bruck(b, g, mine, bytes, slot);
    const size_t above = (size_t)(g->size - g->place) * bytes;
    wf_after(b, moved);
    /* The rotation: slots begin with this rank's own block, the result with rank 0's. */
    wf_add_copy(b, slot, wf_address_add(all, (size_t)g->place * bytes), above, false);
    wf_after(b, moved);
    wf_add_copy(b, wf_address_add(slot, above), all, (size_t)g->place * bytes, false);
}

/* Every pair of ranks directly: no block is passed on, so every byte crosses the network once. */
static void allgather_long(wf_builder *b, const wf_group *g, wf_address mine, size_t bytes, wf_address all)
{
    for (int step = 1; step < g->size; step++) {
        const int from = (g->place + g->size - step) % g->size;
        wf_add_recv(b, wf_address_add(all, (size_t)from * bytes), bytes, wf_group_rank(g, from));
    }
    for (int step = 1; step < g->size; step++)
        wf_add_send(b, mine, bytes, member_at(g, step));
    const wf_address own = wf_address_add(all, (size_t)g->place * bytes);
    if (own.operand != mine.operand || own.at != mine.at)
        wf_add_copy(b, mine, own, bytes, false);
}

void wf_build_allgather(wf_builder *b, const wf_group *g, wf_address mine, size_t bytes, wf_address all)
{
    if (g->place < 0 || bytes == 0)
        return;
    wf_builder_synchronizes(b, g);
    if (bytes <= wf_builder_agreed(b)->small_bytes / (size_t)g->size)
        allgather_short(b, g, mine, bytes, all);
    else
        allgather_long(b, g, mine, bytes, all);
}

/* Between nodes in messages that no receiver answers, as sums of shards: long ones, of which each asks for leave, keep
 * a link busy in one direction at a time. */
void wf_build_gather_shards(wf_builder *b, const wf_group *g, wf_address data, const int64_t *shard, size_t size)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    wf_builder_cut(b, agreed->nodes > 1 ? agreed->prompt_bytes : 0);
    for (int step = 1; g->place >= 0 && step < g->size; step++) {
        const int from = (g->place + g->size - step) % g->size;
        wf_add_recv(b, wf_address_add(data, (size_t)shard[from] * size), (size_t)(shard[from + 1] - shard[from]) * size,
                    wf_group_rank(g, from));
    }
    for (int step = 1; g->place >= 0 && step < g->size; step++)
        wf_add_send(b, wf_address_add(data, (size_t)shard[g->place] * size),
                    (size_t)(shard[g->place + 1] - shard[g->place]) * size, member_at(g, step));
    wf_builder_cut(b, 0);
}

/* One byte to a member at every power of two, once all nearer ones are known to have come. */
void wf_build_barrier(wf_builder *b, const wf_group *g)
{
    wf_steps came[32];
    int rounds = 0;
    if (g->place < 0 || g->size == 1)
        return;
    /* Dissemination (Hensgen, Finkel and Manber 1988): the last round of a rank ends after every other rank has come.
     */
    const wf_address token = wf_builder_operand(b, WF_OPERAND_TOKEN, 0, 1);
    for (int distance = 1; distance < g->size; distance *= 2, rounds++) {
        came[rounds] = wf_add_recv(b, wf_builder_scratch(b, 1), 1, member_before(g, distance));
        for (int i = 0; i < rounds; i++)
            wf_after(b, came[i]);
        wf_add_send(b, token, 1, member_at(g, distance));
    }
}
