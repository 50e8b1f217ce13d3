/* The plan of an exchange: intersects the pieces that every rank needs with what every rank has. Pure geometry: every
 * rank makes the same plan of the same boxes, so sends and receives meet without a message. */
#include "comm/plan_author.h"

#include "core/context_author.h"

#include <stdlib.h>

/* --- pieces ------------------------------------------------------------------------------------------------------- */

static wf_status subtract_owners(const wf_piece_tree *have, const wf_box *box, int64_t first, int64_t last,
                                 wf_pieces *left)
{
    for (int64_t r = wf_piece_tree_next(have, box, first, last); r < last && left->n > 0;
         r = wf_piece_tree_next(have, box, r + 1, last))
        WF_TRY(wf_pieces_subtract(left, have->piece[r].box));
    return WF_OK;
}

/* Appends what the rank of a need's piece receives of it from `owner`: what the owner has, but for what the ranks from
 * the needing one on up to the owner have, in cyclic order. So own data is copied and not sent, and copies of
 * replicated data are asked of different ranks; and sender and receiver find the same pieces, each without looking at
 * other owners. */
static wf_status add_pieces(const wf_piece_tree *have, const wf_piece *need, int owner, wf_pieces *left,
                            wf_pieces *found, int peer)
{
    const wf_box box = wf_box_intersect(need->box, have->piece[owner].box);
    const int rank = need->peer;
    left->n = 0;
    if (wf_box_empty(box))
        return WF_OK;
    WF_TRY(wf_pieces_push(left, &(wf_piece){.box = box}));
    WF_TRY(subtract_owners(have, &box, rank, owner < rank ? have->size : owner, left));
    WF_TRY(subtract_owners(have, &box, 0, owner < rank ? owner : 0, left));
    for (int64_t i = 0; i < left->n; i++) {
        wf_piece part = wf_piece_part(need, left->piece[i].box);
        part.peer = peer;
        WF_TRY(wf_pieces_push(found, &part));
    }
    return WF_OK;
}

/* Checks that every rank finds what it needs. The box around all needs is looked up first, since together the ranks
 * usually have all of it; else each piece is checked. */
static wf_status check_needs(const int32_t *world_rank, const wf_piece_tree *have, const wf_piece_tree *need,
                             wf_pieces *left)
{
    char text[WF_SHAPE_TEXT];
    for (int64_t i = -1; i < need->size && need->size > 0; i++) {
        const wf_box box = i < 0 ? need->around[0] : need->piece[i].box;
        left->n = 0;
        if (!wf_box_empty(box)) {
            WF_TRY(wf_pieces_push(left, &(wf_piece){.box = box}));
            WF_TRY(subtract_owners(have, &box, 0, have->size, left));
        }
        if (i < 0 && left->n == 0)
            return WF_OK;
        WF_CHECK(i < 0 || left->n == 0, WF_ERR_SHAPE, "rank %s needs a box of shape %s that no rank has",
                 WF_RANK_LISTED(world_rank, need->piece[i].peer),
                 wf_shape_text(wf_box_shape(left->piece[0].box), text));
    }
    return WF_OK;
}

static int64_t count(const wf_piece *piece, int64_t n, int rank, bool own)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < n; i++)
        if ((piece[i].peer == rank) == own)
            elements += wf_shape_count(wf_box_shape(piece[i].box));
    return elements;
}

/* The lists that a plan is made from and into. */
typedef struct making {
    wf_plan *plan;
    const int32_t *world_rank;
    wf_pieces have, need, fill, left, send, recv;
    wf_echoes echoes;
    wf_piece_tree of_have, of_need;
} making;

/* Pieces of all ranks, and what this rank fills. */
static wf_status note_piece(void *own, const wf_piece *piece, bool fills)
{
    making *m = own;
    if (!fills)
        return wf_pieces_push(&m->need, piece);
    return piece->peer == m->plan->rank ? wf_pieces_push(&m->fill, piece) : WF_OK;
}

static wf_status list_boxes(making *m, const wf_box *have, const wf_box *need, const wf_beyond *beyond)
{
    for (int r = 0; r < m->plan->size; r++) {
        const wf_piece has = wf_piece_of(r, have[r]);
        WF_TRY(wf_pieces_push(&m->have, &has));
        WF_TRY(wf_boundary_pieces(beyond ? beyond->global : (wf_shape){0}, beyond ? beyond->boundary : NULL, need[r], r,
                                  note_piece, m));
    }
    return WF_OK;
}

/* The first owner from `from` on of any of the pieces [first, last); the number of ranks if there is none. */
static int next_owner(const wf_piece_tree *have, const wf_piece_tree *need, int64_t first, int64_t last, int64_t from)
{
    int64_t found = have->size;
    for (int64_t i = first; i < last; i++)
        found = wf_piece_tree_next(have, &need->piece[i].box, from, found);
    return (int)found;
}

/* Pieces of this rank's own need, then what its array is the source of. */
static wf_status find_pieces(making *m)
{
    const int rank = m->plan->rank, size = m->plan->size;
    const wf_piece_tree *have = &m->of_have, *need = &m->of_need;
    const wf_box *own = &have->piece[rank].box;
    int64_t first = 0, last;
    WF_TRY(check_needs(m->world_rank, have, need, &m->left));
    while (first < need->size && need->piece[first].peer < rank)
        first++;
    for (last = first; last < need->size && need->piece[last].peer == rank;)
        last++;
    for (int q = next_owner(have, need, first, last, 0); q < size; q = next_owner(have, need, first, last, q + 1)) {
        const int64_t before = m->recv.n;
        for (int64_t i = first; i < last; i++)
            WF_TRY(add_pieces(have, &need->piece[i], q, &m->left, &m->recv, q));
        if (q != rank)
            WF_TRY(wf_pieces_once(&m->recv, before, &m->echoes));
    }
    int64_t before = 0;
    for (int64_t i = wf_piece_tree_next(need, own, 0, need->size), after; i < need->size; i = after) {
        const int peer = need->piece[i].peer;
        WF_TRY(add_pieces(have, &need->piece[i], rank, &m->left, &m->send, peer));
        after = wf_piece_tree_next(need, own, i + 1, need->size);
        if (after < need->size && need->piece[after].peer == peer)
            continue;
        if (peer != rank)
            WF_TRY(wf_pieces_once(&m->send, before, NULL));
        before = m->send.n;
    }
    for (int64_t i = 0; i < need->size && !m->plan->moves; i++)
        m->plan->moves = !wf_box_contains(have->piece[need->piece[i].peer].box, need->piece[i].box);
    return WF_OK;
}

static wf_status make(making *m, wf_ctx *ctx, const wf_box *have, const wf_box *need, const wf_beyond *beyond)
{
    WF_TRY(list_boxes(m, have, need, beyond));
    WF_TRY(wf_piece_tree_make(ctx, &m->of_have, &m->have));
    WF_TRY(wf_piece_tree_make(ctx, &m->of_need, &m->need));
    return find_pieces(m);
}

/* The plan takes the lists of its pieces. */
static void finish_plan(making *m, const wf_beyond *beyond)
{
    wf_plan *plan = m->plan;
    const int rank = plan->rank;
    plan->send = m->send.piece;
    plan->recv = m->recv.piece;
    plan->fill = m->fill.piece;
    plan->echo = m->echoes.echo;
    plan->n_send = m->send.n;
    plan->n_recv = m->recv.n;
    plan->n_fill = m->fill.n;
    plan->n_echo = m->echoes.n;
    plan->value = beyond && beyond->boundary ? beyond->boundary->value : 0;
    plan->elements_sent = count(plan->send, plan->n_send, rank, false);
    plan->elements_received = count(plan->recv, plan->n_recv, rank, false);
    plan->elements_kept = count(plan->recv, plan->n_recv, rank, true);
    plan->rewrites = plan->n_fill > 0;
    for (int64_t i = 0; i < plan->n_recv && !plan->rewrites; i++)
        plan->rewrites = plan->recv[i].peer == rank && !wf_piece_stays(&plan->recv[i]);
}

wf_status wf_plan_make(wf_ctx *ctx, int rank, int size, const int32_t *world_rank, const wf_box *have,
                       const wf_box *need, const wf_beyond *beyond, wf_plan **out)
{
    WF_NEED(ctx);
    *out = NULL;
    wf_plan *plan = wf_calloc(ctx, 1, sizeof *plan);
    WF_CHECK(plan, WF_ERR_MEMORY, "no memory for a plan");
    plan->rank = rank;
    plan->size = size;
    making m = {.plan = plan,
                .world_rank = world_rank,
                .have.ctx = ctx,
                .need.ctx = ctx,
                .fill.ctx = ctx,
                .left.ctx = ctx,
                .send.ctx = ctx,
                .recv.ctx = ctx};
    const wf_status status = make(&m, ctx, have, need, beyond);
    finish_plan(&m, beyond);
    free(m.of_have.around);
    free(m.of_need.around);
    free(m.have.piece);
    free(m.need.piece);
    free(m.left.piece);
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
    free(plan->fill);
    free(plan->echo);
    free(plan);
}
