/* Reducers by name: how a flat buffer of gradients is summed over all ranks. Each is a function that adds steps, and a
 * line in the table at the end. Where the ranks of a node share no memory, sums go by messages among all ranks. */
#include "comm/engine/collectives_author.h"
#include "comm/reducer_author.h"

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
static void naive(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                  wf_dtype dtype)
{
    for (int64_t i = 0; i < segments; i++) {
        sum_all(b, segment_at(flat, offset[i], dtype), offset[i + 1] - offset[i], dtype);
        wf_builder_phase(b);
    }
}

/* One all-reduce of everything. */
static void flat_sum(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                     wf_dtype dtype)
{
    sum_all(b, segment_at(flat, offset[0], dtype), offset[segments] - offset[0], dtype);
}

/* Each of `blocks` blocks is summed into one rank of the node, by that rank with its like in the other nodes, and goes
 * back into the node. */
static void sum_blocks(wf_builder *b, wf_address data, int64_t count, wf_dtype dtype, int blocks)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    const int rank = wf_builder_rank(b), place = agreed->place[rank];
    const wf_group all = wf_group_all(agreed, rank);
    const wf_group between = wf_group_column(agreed, rank, place < blocks ? place : 0);
    int64_t lo, hi;
    if (count > 0)
        wf_builder_synchronizes(b, &all);
    for (int s = 0; s < blocks; s++) {
        wf_block(count, blocks, s, &lo, &hi);
        const wf_address block = segment_at(data, lo, dtype);
        wf_build_node_reduce(b, block, block, hi - lo, dtype, WF_SUM, s);
    }
    wf_builder_phase(b);
    wf_block(count, blocks, place < blocks ? place : 0, &lo, &hi);
    const wf_address block = segment_at(data, lo, dtype);
    wf_build_reduce(b, &between, block, block, hi - lo, dtype, WF_SUM, -1);
    wf_builder_phase(b);
    for (int s = 0; s < blocks; s++) {
        wf_block(count, blocks, s, &lo, &hi);
        wf_build_node_bcast(b, segment_at(data, lo, dtype), (size_t)(hi - lo) * wf_dtype_size(dtype), s);
    }
}

static void sum_by_nodes(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, wf_dtype dtype,
                         int blocks)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    const int64_t count = offset[segments] - offset[0];
    const wf_address first = segment_at(flat, offset[0], dtype);
    if (!agreed->shared)
        sum_all(b, first, count, dtype);
    else if (agreed->nodes == 1)
        wf_build_node_reduce(b, first, first, count, dtype, WF_SUM, -1);
    else
        sum_blocks(b, first, count, dtype, blocks);
}

/* Sums inside each node, then over one rank of each node, which passes the result on. */
static void hierarchical(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                         wf_dtype dtype)
{
    sum_by_nodes(b, flat, offset, segments, dtype, 1);
}

/* As many blocks as the smallest node has ranks. */
static void two_dimensional(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                            wf_dtype dtype)
{
    sum_by_nodes(b, flat, offset, segments, dtype, wf_builder_agreed(b)->smallest);
}

/* Every rank keeps its own sums. */
static void dummy(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                  wf_dtype dtype)
{
}

static const wf_reducer reducers[] = {
    {"naive", "one all-reduce per parameter", false, false, naive},
    {"flat", "one all-reduce of the flat gradient buffer", false, false, flat_sum},
    {"hierarchical", "a sum inside each node, an all-reduce between one rank of each", false, true, hierarchical},
    {"two_dimensional",
     "a reduce-scatter inside each node, an all-reduce between nodes per shard, an all-gather inside", false, true,
     two_dimensional},
    {"single_node", "one all-reduce in shared memory", false, true, hierarchical},
    {"non_cuda_aware", "as hierarchical, through host memory", false, true, hierarchical},
    {"pure_nccl", "one all-reduce by NCCL", false, false, NULL},
    {"dummy", "gradients are not exchanged", false, false, dummy},
};

#define REDUCERS ((int)(sizeof reducers / sizeof *reducers))
#define MOST     32 /* of programs */

static const wf_reducer *registered[MOST];
static int others;

const wf_reducer *wf_reducer_at(int i)
{
    if (i < 0 || i >= REDUCERS + others)
        return NULL;
    return i < REDUCERS ? &reducers[i] : registered[i - REDUCERS];
}

const wf_reducer *wf_reducer_find(const char *name)
{
    const wf_reducer *reducer = NULL;
    for (int i = 0; name && (reducer = wf_reducer_at(i)); i++)
        if (!strcmp(reducer->name, name))
            return reducer;
    return NULL;
}

wf_status wf_reducer_register(const wf_reducer *reducer)
{
    WF_NEED(reducer);
    WF_CHECK(reducer->name && reducer->build, WF_ERR_ARGUMENT, "a reducer without a name, or without steps");
    WF_CHECK(reducer->name[0] && strlen(reducer->name) < 32 && strcmp(reducer->name, "auto") != 0 &&
                 !wf_reducer_find(reducer->name),
             WF_ERR_ARGUMENT, "a reducer cannot have the name \"%.40s\": it is taken, empty or too long",
             reducer->name);
    WF_CHECK(others < MOST, WF_ERR_STATE, "%d reducers are registered already", MOST);
    registered[others++] = reducer;
    return WF_OK;
}
