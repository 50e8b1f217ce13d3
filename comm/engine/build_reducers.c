/* Reducers by name: how a flat buffer of gradients is summed over all ranks. Each is a function that adds steps, and a
 * line in the table at the end. Where the ranks of a node share no memory, all of them sum by messages among all ranks.
 */
#include "comm/engine/collectives_author.h"

#include <string.h>

static wf_address segment_at(wf_address flat, int64_t element, wf_dtype dtype)
{
    return wf_address_add(flat, (size_t)element * wf_dtype_size(dtype));
}

static void sum_all(wf_builder *b, wf_address flat, int64_t count, wf_dtype dtype)
{
    const wf_group all = wf_group_all(wf_builder_agreed(b), wf_builder_rank(b));
    wf_build_reduce(b, &all, flat, flat, count, dtype, WF_SUM, -1);
}

/* One all-reduce a segment. */
static void naive(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype)
{
    for (int64_t i = 0; i < segments; i++) {
        sum_all(b, segment_at(flat, offset[i], dtype), offset[i + 1] - offset[i], dtype);
        wf_builder_phase(b);
    }
}

/* One all-reduce of everything. */
static void flat_sum(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype)
{
    sum_all(b, segment_at(flat, offset[0], dtype), offset[segments] - offset[0], dtype);
}

/* Each of `shards` shards is summed into one rank of the node, by that rank with its like in the other nodes, and goes
 * back into the node. */
static void sum_shards(wf_builder *b, wf_address data, int64_t count, wf_dtype dtype, int shards)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    const int rank = wf_builder_rank(b), place = agreed->place[rank];
    const wf_group between = wf_group_column(agreed, rank, place < shards ? place : 0);
    int64_t lo, hi;
    for (int s = 0; s < shards; s++) {
        wf_block(count, shards, s, &lo, &hi);
        const wf_address shard = segment_at(data, lo, dtype);
        wf_build_node_reduce(b, shard, shard, hi - lo, dtype, WF_SUM, s);
    }
    wf_builder_phase(b);
    wf_block(count, shards, place < shards ? place : 0, &lo, &hi);
    const wf_address shard = segment_at(data, lo, dtype);
    wf_build_reduce(b, &between, shard, shard, hi - lo, dtype, WF_SUM, -1);
    wf_builder_phase(b);
    for (int s = 0; s < shards; s++) {
        wf_block(count, shards, s, &lo, &hi);
        wf_build_node_bcast(b, segment_at(data, lo, dtype), (size_t)(hi - lo) * wf_dtype_size(dtype), s);
    }
}

static void sum_by_nodes(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype,
                         int shards)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    const int64_t count = offset[segments] - offset[0];
    const wf_address first = segment_at(flat, offset[0], dtype);
    if (!agreed->shared)
        sum_all(b, first, count, dtype);
    else if (agreed->nodes == 1)
        wf_build_node_reduce(b, first, first, count, dtype, WF_SUM, -1);
    else
        sum_shards(b, first, count, dtype, shards);
}

/* One rank of each node speaks for it; inside a node alone, everybody for himself. */
static void hierarchical(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype)
{
    sum_by_nodes(b, flat, offset, segments, dtype, 1);
}

/* As many shards as the smallest node has ranks. */
static void two_dimensional(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype)
{
    sum_by_nodes(b, flat, offset, segments, dtype, wf_builder_agreed(b)->smallest);
}

/* Device memory: to the host, as hierarchical there, and back. */
static void staged(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype)
{
    const size_t size = wf_dtype_size(dtype), bytes = (size_t)(offset[segments] - offset[0]) * size;
    const wf_address device = segment_at(flat, offset[0], dtype), host = wf_builder_scratch(b, bytes);
    const int64_t whole[2] = {0, offset[segments] - offset[0]};
    wf_add_stage(b, device, host, bytes, true);
    wf_builder_phase(b);
    sum_by_nodes(b, host, whole, 1, dtype, 1);
    wf_builder_phase(b);
    wf_add_stage(b, host, device, bytes, false);
}

/* Every rank keeps its own sums. */
static void dummy(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype)
{
}

static const wf_reducer_builder reducers[] = {
    {"naive", naive},
    {"flat", flat_sum},
    {"hierarchical", hierarchical},
    {"two_dimensional", two_dimensional},
    {"single_node", hierarchical},
    {"non_cuda_aware", staged},
    {"dummy", dummy},
};

#define REDUCERS (sizeof reducers / sizeof *reducers)

const wf_reducer_builder *wf_reducer_builder_find(const char *name)
{
    for (size_t i = 0; name && i < REDUCERS; i++)
        if (!strcmp(reducers[i].name, name))
            return &reducers[i];
    return NULL;
}

const wf_reducer_builder *wf_reducer_builder_at(int i)
{
    return i >= 0 && (size_t)i < REDUCERS ? &reducers[i] : NULL;
}
