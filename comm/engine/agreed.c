/* The agreed configuration and groups of its ranks; see the header. */
#include "comm/engine/agreed_author.h"

#include <stdlib.h>

#define RING_SLOT_BYTES ((size_t)128 << 10)
#define RING_SHORT      ((size_t)16 << 10)
#define PAIR_SLOT       ((size_t)128 << 10) /* it stays in the caches between packing and unpacking */
#define PAIR_SHORT      ((size_t)256 << 10)
#define CHUNK_BYTES     ((size_t)1 << 30)
#define PROMPT_BYTES    ((size_t)65280) /* what MPI sends over TCP at once, without asking the receiver */
#define SMALL_BYTES     ((size_t)32 << 10)
#define BCAST_PIECE     ((size_t)128 << 10)
#define PIECE_BYTES     ((size_t)1 << 20)
#define LEAST_BLOCK     4096
#define PIECES_AHEAD    4 /* a rank that looks at its messages only now and then keeps a link busy */

static wf_status count_nodes(wf_agreed *a, const int32_t *node)
{
    for (int r = 0; r < a->ranks; r++) {
        WF_CHECK(node[r] >= 0 && node[r] < a->ranks, WF_ERR_ARGUMENT, "rank %d is on node %d of %d", r, (int)node[r],
                 a->ranks);
        a->nodes = node[r] >= a->nodes ? node[r] + 1 : a->nodes;
        a->node[r] = node[r];
        a->place[r] = a->first[node[r] + 1]++;
    }
    a->smallest = a->ranks;
    for (int n = 0; n < a->nodes; n++) {
        const int size = a->first[n + 1];
        WF_CHECK(size > 0, WF_ERR_ARGUMENT, "node %d has no rank", n);
        a->smallest = size < a->smallest ? size : a->smallest;
        a->first[n + 1] += a->first[n];
    }
    for (int r = 0; r < a->ranks; r++)
        a->member[a->first[node[r]] + a->place[r]] = r;
    return WF_OK;
}

wf_status wf_agreed_make(wf_ctx *ctx, int ranks, const int32_t *node, wf_agreed *agreed)
{
    const size_t words = 4 * (size_t)ranks + 1;
    *agreed = (wf_agreed){.ranks = ranks,
                          .ring_slots = WF_RING_SLOTS,
                          .ring_slot_bytes = RING_SLOT_BYTES,
                          .ring_short_bytes = RING_SHORT,
                          .pair_slot_bytes = PAIR_SLOT,
                          .pair_short_bytes = PAIR_SHORT,
                          .chunk_bytes = CHUNK_BYTES,
                          .prompt_bytes = PROMPT_BYTES,
                          .small_bytes = SMALL_BYTES,
                          .bcast_piece_bytes = BCAST_PIECE,
                          .piece_bytes = PIECE_BYTES,
                          .least_block = LEAST_BLOCK,
                          .pieces_ahead = PIECES_AHEAD};
    agreed->node = wf_calloc(ctx, words, sizeof *agreed->node);
    if (!agreed->node)
        return wf_error_code();
    agreed->place = agreed->node + ranks;
    agreed->member = agreed->place + ranks;
    agreed->first = agreed->member + ranks;
    const wf_status status = count_nodes(agreed, node);
    if (status != WF_OK)
        wf_agreed_clear(agreed);
    return status;
}

void wf_agreed_clear(wf_agreed *agreed)
{
    free(agreed->node);
    *agreed = (wf_agreed){0};
}

wf_group wf_group_all(const wf_agreed *agreed, int rank)
{
    return (wf_group){.size = agreed->ranks, .place = rank};
}

wf_group wf_group_node(const wf_agreed *agreed, int rank)
{
    const int32_t *first = agreed->first + agreed->node[rank];
    return (wf_group){
        .size = (int)(first[1] - first[0]), .place = agreed->place[rank], .list = agreed->member + first[0]};
}

wf_group wf_group_column(const wf_agreed *agreed, int rank, int column)
{
    return (wf_group){.size = agreed->nodes,
                      .place = agreed->place[rank] == column ? (int)agreed->node[rank] : -1,
                      .list = agreed->member,
                      .start = agreed->first,
                      .column = column};
}
