/* The plan of an exchange: intersects what every rank needs with what every rank has. Pure geometry: every rank makes
 * the same plan of the same boxes, so sends and receives meet without a message. */
#include "comm/plan_author.h"

#include "core/context_author.h"

#include <stdlib.h>

int wf_box_subtract(wf_box outer, wf_box inner, wf_box rest[2 * WF_MAX_RANK])
{
    const wf_box hole = wf_box_intersect(outer, inner);
    int n = 0;
    if (wf_box_empty(outer))
        return 0;
    if (wf_box_empty(hole)) {
        rest[0] = outer;
        return 1;
    }
    for (int d = 0; d < outer.rank; d++) {
        /* One slab on either side of the hole per dimension; what remains is narrower by the hole's extent, so slabs
         * never overlap. */
        wf_box slab = outer;
        slab.hi[d] = hole.lo[d];
        if (!wf_box_empty(slab))
            rest[n++] = slab;
        slab = outer;
        slab.lo[d] = hole.hi[d];
        if (!wf_box_empty(slab))
            rest[n++] = slab;
        outer.lo[d] = hole.lo[d];
        outer.hi[d] = hole.hi[d];
    }
    return n;
}

/* A growing list of pieces. */
typedef struct list {
    wf_ctx *ctx;
    wf_piece *piece;
    int64_t n, room;
} list;

static wf_status push(list *l, int peer, wf_box box)
{
    wf_piece *piece = wf_grow(l->ctx, l->piece, &l->room, l->n + 1, sizeof *piece);
    if (!piece)
        return wf_error_code();
    l->piece = piece;
    l->piece[l->n++] = (wf_piece){peer, box};
    return WF_OK;
}

/* Appends what `owner` gives of the boxes in `left` to `found`, and keeps in `left` what it does not have. */
static wf_status take_from(list *left, int owner, wf_box have, list *found)
{
    const int64_t n = left->n;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        const wf_box box = left->piece[i].box, part = wf_box_intersect(box, have);
        if (wf_box_empty(part)) {
            left->piece[kept++].box = box;
            continue;
        }
        WF_TRY(push(found, owner, part));
        wf_box rest[2 * WF_MAX_RANK];
        const int more = wf_box_subtract(box, part, rest);
        for (int r = 0; r < more; r++)
            WF_TRY(push(left, -1, rest[r]));
    }
    for (int64_t i = n; i < left->n; i++)
        left->piece[kept++].box = left->piece[i].box;
    left->n = kept;
    return WF_OK;
}

/* Everything that `rank` receives, in the order of owners from itself on. */
static wf_status sources(int rank, int size, const wf_box *have, wf_box need, list *left, list *found)
{
    left->n = 0;
    found->n = 0;
    if (wf_box_empty(need))
        return WF_OK;
    WF_TRY(push(left, -1, need));
    for (int i = 0; i < size && left->n > 0; i++) {
        /* From itself on: own data is copied and not sent, and copies of replicated data are asked of different ranks.
         */
        const int owner = (rank + i) % size;
        WF_TRY(take_from(left, owner, have[owner], found));
    }
    char text[WF_SHAPE_TEXT];
    WF_CHECK(left->n == 0, WF_ERR_SHAPE, "rank %d needs a box of shape %s that no rank has", rank,
             wf_shape_text(wf_box_shape(left->piece[0].box), text));
    return WF_OK;
}

/* A stable sort by peer, of lists that are nearly in order: few peers, short runs. */
static void by_peer(wf_piece *piece, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        const wf_piece moved = piece[i];
        int64_t j = i;
        for (; j > 0 && piece[j - 1].peer > moved.peer; j--)
            piece[j] = piece[j - 1];
        piece[j] = moved;
    }
}

static int64_t count(const wf_piece *piece, int64_t n, int rank, bool own)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < n; i++)
        if ((piece[i].peer == rank) == own)
            elements += wf_shape_count(wf_box_shape(piece[i].box));
    return elements;
}

static wf_status find_pieces(wf_plan *plan, const wf_box *have, const wf_box *need, list *scratch, list *send,
                             list *recv)
{
    for (int q = 0; q < plan->size; q++) {
        list *found = q == plan->rank ? recv : &scratch[1];
        WF_TRY(sources(q, plan->size, have, need[q], &scratch[0], found));
        plan->elements_moved += count(found->piece, found->n, q, false);
        for (int64_t i = 0; i < found->n; i++)
            if (found->piece[i].peer == plan->rank)
                WF_TRY(push(send, q, found->piece[i].box));
    }
    return WF_OK;
}

wf_status wf_plan_make(wf_ctx *ctx, int rank, int size, const wf_box *have, const wf_box *need, wf_plan **out)
{
    WF_NEED(ctx);
    *out = NULL;
    wf_plan *plan = wf_calloc(ctx, 1, sizeof *plan);
    WF_CHECK(plan, WF_ERR_MEMORY, "no memory for a plan");
    plan->rank = rank;
    plan->size = size;
    list scratch[2] = {{.ctx = ctx}, {.ctx = ctx}}, send = {.ctx = ctx}, recv = {.ctx = ctx};
    const wf_status status = find_pieces(plan, have, need, scratch, &send, &recv);
    free(scratch[0].piece);
    free(scratch[1].piece);
    by_peer(recv.piece, recv.n);
    plan->send = send.piece;
    plan->recv = recv.piece;
    plan->n_send = send.n;
    plan->n_recv = recv.n;
    plan->elements_sent = count(send.piece, send.n, rank, false);
    plan->elements_received = count(recv.piece, recv.n, rank, false);
    plan->elements_kept = count(recv.piece, recv.n, rank, true);
    if (status != WF_OK) {
        wf_plan_free(plan);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    *out = plan;
    return WF_OK;
}

void wf_plan_free(wf_plan *plan)
{
    if (!plan)
        return;
    free(plan->send);
    free(plan->recv);
    free(plan);
}
