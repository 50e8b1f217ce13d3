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

/* Takes a box out of all boxes of the list. */
static wf_status subtract(list *left, wf_box box)
{
    const int64_t n = left->n;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        wf_box rest[2 * WF_MAX_RANK];
        const wf_box one = left->piece[i].box;
        if (wf_box_empty(wf_box_intersect(one, box))) {
            left->piece[kept++].box = one;
            continue;
        }
        const int more = wf_box_subtract(one, box, rest);
        for (int r = 0; r < more; r++)
            WF_TRY(push(left, -1, rest[r]));
    }
    for (int64_t i = n; i < left->n; i++)
        left->piece[kept++].box = left->piece[i].box;
    left->n = kept;
    return WF_OK;
}

/* --- who meets a box ------------------------------------------------------------------------------------------------
 */

/* The boxes of all ranks, and over halves of halves of them the box around those that are not empty. Ranks of a mesh
 * that follow each other lie side by side, so a search for what meets a box leaves most halves out. */
typedef struct tree {
    int size;
    const wf_box *box;
    wf_box *around; /* of ranks [lo, hi): entry `node`; of its halves: node + 1, node + 2 (middle - lo) */
} tree;

static bool meet(const wf_box *a, const wf_box *b)
{
    for (int d = 0; d < a->rank; d++)
        if (a->lo[d] >= b->hi[d] || b->lo[d] >= a->hi[d])
            return false;
    return !wf_box_empty(*a) && !wf_box_empty(*b);
}

static wf_box around(wf_box a, wf_box b)
{
    if (wf_box_empty(a) || wf_box_empty(b))
        return wf_box_empty(a) ? b : a;
    for (int d = 0; d < a.rank; d++) {
        a.lo[d] = b.lo[d] < a.lo[d] ? b.lo[d] : a.lo[d];
        a.hi[d] = b.hi[d] > a.hi[d] ? b.hi[d] : a.hi[d];
    }
    return a;
}

static void fill_tree(tree *t, int node, int lo, int hi)
{
    const int middle = lo + (hi - lo) / 2, right = node + 2 * (middle - lo);
    if (hi - lo == 1) {
        t->around[node] = t->box[lo];
        return;
    }
    fill_tree(t, node + 1, lo, middle);
    fill_tree(t, right, middle, hi);
    t->around[node] = around(t->around[node + 1], t->around[right]);
}

static wf_status make_tree(wf_ctx *ctx, tree *t, int size, const wf_box *box)
{
    *t = (tree){.size = size, .box = box, .around = wf_malloc(ctx, 2 * (size_t)size * sizeof(wf_box))};
    if (!t->around)
        return wf_error_code();
    fill_tree(t, 0, 0, size);
    return WF_OK;
}

static int search(const tree *t, int node, int lo, int hi, const wf_box *box, int first, int last)
{
    const int middle = lo + (hi - lo) / 2;
    if (hi <= first || lo >= last || !meet(&t->around[node], box))
        return last;
    if (hi - lo == 1)
        return lo;
    const int found = search(t, node + 1, lo, middle, box, first, last);
    return found < last ? found : search(t, node + 2 * (middle - lo), middle, hi, box, first, last);
}

/* The first rank of [first, last) whose box meets this one; `last` if there is none. */
static int next(const tree *t, const wf_box *box, int first, int last)
{
    return first < last ? search(t, 0, 0, t->size, box, first, last) : last;
}

/* --- pieces ---------------------------------------------------------------------------------------------------------
 */

static wf_status subtract_owners(const tree *have, const wf_box *box, int first, int last, list *left)
{
    for (int r = next(have, box, first, last); r < last && left->n > 0; r = next(have, box, r + 1, last))
        WF_TRY(subtract(left, have->box[r]));
    return WF_OK;
}

/* Appends what `rank` receives from `owner`: what it needs and the owner has, but for what the ranks from `rank` on up
 * to the owner have, in cyclic order. So own data is copied and not sent, and copies of replicated data are asked of
 * different ranks; and sender and receiver find the same pieces, each without looking at other owners. */
static wf_status add_pieces(const tree *have, int rank, wf_box need, int owner, list *left, list *found, int peer)
{
    const wf_box box = wf_box_intersect(need, have->box[owner]);
    left->n = 0;
    if (wf_box_empty(box))
        return WF_OK;
    WF_TRY(push(left, -1, box));
    WF_TRY(subtract_owners(have, &box, rank, owner < rank ? have->size : owner, left));
    WF_TRY(subtract_owners(have, &box, 0, owner < rank ? owner : 0, left));
    for (int64_t i = 0; i < left->n; i++)
        WF_TRY(push(found, peer, left->piece[i].box));
    return WF_OK;
}

/* Whether every rank finds what it needs: asked once for the box around all needs, which somebody has as a rule, else
 * rank by rank. */
static wf_status check_needs(const tree *have, const tree *need, list *left)
{
    char text[WF_SHAPE_TEXT];
    for (int q = -1; q < need->size; q++) {
        const wf_box box = q < 0 ? need->around[0] : need->box[q];
        left->n = 0;
        if (!wf_box_empty(box)) {
            WF_TRY(push(left, -1, box));
            WF_TRY(subtract_owners(have, &box, 0, have->size, left));
        }
        if (q < 0 && left->n == 0)
            return WF_OK;
        WF_CHECK(q < 0 || left->n == 0, WF_ERR_SHAPE, "rank %d needs a box of shape %s that no rank has", q,
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

static wf_status find_pieces(wf_plan *plan, const tree *have, const tree *need, list *left, list *send, list *recv)
{
    const int rank = plan->rank, size = plan->size;
    WF_TRY(check_needs(have, need, left));
    for (int q = next(have, &need->box[rank], 0, size); q < size; q = next(have, &need->box[rank], q + 1, size))
        WF_TRY(add_pieces(have, rank, need->box[rank], q, left, recv, q));
    for (int q = next(need, &have->box[rank], 0, size); q < size; q = next(need, &have->box[rank], q + 1, size))
        WF_TRY(add_pieces(have, q, need->box[q], rank, left, send, q));
    for (int q = 0; q < size && !plan->moves; q++)
        plan->moves = !wf_box_contains(have->box[q], need->box[q]);
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
    list left = {.ctx = ctx}, send = {.ctx = ctx}, recv = {.ctx = ctx};
    tree of_have = {0}, of_need = {0};
    wf_status status = make_tree(ctx, &of_have, size, have);
    if (status == WF_OK)
        status = make_tree(ctx, &of_need, size, need);
    if (status == WF_OK)
        status = find_pieces(plan, &of_have, &of_need, &left, &send, &recv);
    free(of_have.around);
    free(of_need.around);
    free(left.piece);
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
