/* Lists of pieces: boxes taken out of others, slabs, which pieces meet a box, and elements that several pieces have
 * brought down to one of them. Pure geometry, of which plans of exchanges are made. */
#include "core/boundary_author.h"

#include "core/context_author.h"

#include <stdlib.h>

/* At most two slabs for each dimension, of which the earlier dimensions have the larger ones. */
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

/* From the innermost dimension outwards: once a dimension is not whole, the next run of elements lies elsewhere, so all
 * dimensions outside it must have length 1. */
bool wf_box_dense_in(wf_box box, wf_box world, wf_order order)
{
    bool outside = false;
    for (int i = box.rank - 1; i >= 0; i--) {
        const int d = wf_order_dim(order, box.rank, i);
        const int64_t length = box.hi[d] - box.lo[d];
        if (outside && length > 1)
            return false;
        outside = outside || length < world.hi[d] - world.lo[d];
    }
    return true;
}

wf_status wf_pieces_push(wf_pieces *l, const wf_piece *one)
{
    wf_piece *piece = wf_grow(l->ctx, l->piece, &l->room, l->n + 1, sizeof *piece);
    if (!piece)
        return wf_error_code();
    /* wf_grow doubles the room, and leaves the old list as it was when it fails. */
    l->piece = piece;
    l->piece[l->n++] = *one;
    return WF_OK;
}

wf_status wf_pieces_subtract(wf_pieces *left, wf_box box)
{
    const int64_t n = left->n;
    /* The new boxes go to the end and are moved down afterwards: the loop above may not write over what it has yet to
     * read. */
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        wf_box rest[2 * WF_MAX_RANK];
        const wf_box one = left->piece[i].box;
        /* Only pieces that meet the box are cut, so the list does not grow where nothing is taken out. */
        if (wf_box_empty(wf_box_intersect(one, box))) {
            left->piece[kept++].box = one;
            continue;
        }
        const int more = wf_box_subtract(one, box, rest);
        for (int r = 0; r < more; r++)
            WF_TRY(wf_pieces_push(left, &(wf_piece){.box = rest[r]}));
    }
    for (int64_t i = n; i < left->n; i++)
        left->piece[kept++].box = left->piece[i].box;
    left->n = kept;
    return WF_OK;
}

/* --- slabs -------------------------------------------------------------------------------------------------------- */

static void place_slabs(wf_slabs *slabs)
{
    slabs->elements = 0;
    for (int i = 0; i < slabs->n; i++) {
        slabs->at[i] = slabs->elements;
        /* Each slab begins at a cache line, if elements have 4 bytes; what is left of the last line counts too. */
        slabs->elements += (wf_shape_count(wf_box_shape(slabs->box[i])) + 15) / 16 * 16;
    }
}

/* A buffer for what a rank does not have: one dense box for each side. need and have may be disjoint; then there is
 * one slab, the need. */
wf_slabs wf_slabs_of(wf_box need, wf_box have)
{
    wf_slabs slabs = {.need = need};
    slabs.n = wf_box_subtract(need, have, slabs.box);
    place_slabs(&slabs);
    return slabs;
}

int wf_slabs_find(const wf_slabs *slabs, wf_box box)
{
    int i = 0;
    while (i < slabs->n && !wf_box_contains(slabs->box[i], box))
        i++;
    return i;
}

/* A piece of a plan must lie in one buffer, since one copy moves it: what would be spread over two slabs makes one of
 * all of them, at the price of memory for what the rank has already. */
void wf_slabs_hold(wf_slabs *slabs, wf_box box)
{
    if (wf_slabs_find(slabs, box) < slabs->n)
        return;
    slabs->n = 1;
    slabs->box[0] = slabs->need;
    place_slabs(slabs);
}

/* --- which pieces meet a box -------------------------------------------------------------------------------------- */

/* wf_box_intersect would make a box first: the search asks this for each node. */
static bool meet(const wf_box *a, const wf_box *b)
{
    for (int d = 0; d < a->rank; d++)
        if (a->lo[d] >= b->hi[d] || b->lo[d] >= a->hi[d])
            return false;
    return !wf_box_empty(*a) && !wf_box_empty(*b);
}

/* An empty box has no place, and would draw the box around to wherever its corners are. */
static wf_box box_around(wf_box a, wf_box b)
{
    if (wf_box_empty(a) || wf_box_empty(b))
        return wf_box_empty(a) ? b : a;
    for (int d = 0; d < a.rank; d++) {
        a.lo[d] = b.lo[d] < a.lo[d] ? b.lo[d] : a.lo[d];
        a.hi[d] = b.hi[d] > a.hi[d] ? b.hi[d] : a.hi[d];
    }
    return a;
}

/* A tree of 2 n - 1 nodes in one array without pointers: the left half follows its parent, and takes 2 (middle - lo) -
 * 1 nodes. */
static void fill_tree(wf_piece_tree *t, int64_t node, int64_t lo, int64_t hi)
{
    const int64_t middle = lo + (hi - lo) / 2, right = node + 2 * (middle - lo);
    if (hi - lo == 1) {
        t->around[node] = t->piece[lo].box;
        return;
    }
    fill_tree(t, node + 1, lo, middle);
    fill_tree(t, right, middle, hi);
    t->around[node] = box_around(t->around[node + 1], t->around[right]);
}

/* One more than needed, so that a list without pieces asks for memory too and the caller frees in every case. */
wf_status wf_piece_tree_make(wf_ctx *ctx, wf_piece_tree *t, const wf_pieces *l)
{
    *t = (wf_piece_tree){
        .size = l->n, .piece = l->piece, .around = wf_malloc(ctx, (2 * (size_t)l->n + 1) * sizeof(wf_box))};
    if (!t->around)
        return wf_error_code();
    if (l->n > 0)
        fill_tree(t, 0, 0, l->n);
    return WF_OK;
}

/* Halves that are outside [first, last) or that miss the box are not opened. The call depth is the logarithm of the
 * list. */
static int64_t search(const wf_piece_tree *t, int64_t node, int64_t lo, int64_t hi, const wf_box *box, int64_t first,
                      int64_t last)
{
    const int64_t middle = lo + (hi - lo) / 2;
    if (hi <= first || lo >= last || !meet(&t->around[node], box))
        return last;
    if (hi - lo == 1)
        return lo;
    const int64_t found = search(t, node + 1, lo, middle, box, first, last);
    return found < last ? found : search(t, node + 2 * (middle - lo), middle, hi, box, first, last);
}

int64_t wf_piece_tree_next(const wf_piece_tree *t, const wf_box *box, int64_t first, int64_t last)
{
    return first < last ? search(t, 0, 0, t->size, box, first, last) : last;
}

/* --- what is there once ---------------------------------------------------------------------------------------------
 */

/* A part of the list, and what of it no earlier claim has: pieces [first, last) of `kept`. */
typedef struct claim {
    int64_t elements, part, first, last;
} claim;

typedef struct claims {
    claim *list; /* of each part */
    int64_t n;
    wf_pieces kept, left;
    wf_echoes *echoes;
    int64_t first_echo;
} claims;

/* The largest comes first, so that a corner is an echo of the row that it is a part of. */
static int by_size(const void *left, const void *right)
{
    const claim *a = left, *b = right;
    if (a->elements != b->elements)
        return a->elements > b->elements ? -1 : 1;
    return a->part < b->part ? -1 : a->part > b->part;
}

/* Pieces overlap only where a boundary repeats elements, so most lists need no more than this test. It is quadratic, in
 * the pieces of one peer. */
static bool any_overlap(const wf_piece *part, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t k = 0; k < i; k++)
            if (!wf_box_empty(wf_box_intersect(part[i].box, part[k].box)))
                return true;
    return false;
}

static wf_status push_echo(claims *c, int64_t of, wf_piece piece)
{
    wf_echoes *all = c->echoes;
    if (!all)
        return WF_OK;
    wf_echo *echo = wf_grow(c->kept.ctx, all->echo, &all->room, all->n + 1, sizeof *echo);
    if (!echo)
        return wf_error_code();
    all->echo = echo;
    all->echo[all->n++] = (wf_echo){of, piece};
    return WF_OK;
}

/* What no claim before has, becomes this part's; what one has, becomes an echo of it. Kept pieces never overlap, so an
 * element has one owner. */
static wf_status claim_part(claims *c, const wf_piece *part, claim *own)
{
    c->left.n = 0;
    own->first = c->kept.n;
    WF_TRY(wf_pieces_push(&c->left, &(wf_piece){.box = part->box}));
    /* own->first: pieces of this part's own must not be taken for earlier ones. */
    for (int64_t k = 0; k < own->first && c->left.n > 0; k++) {
        const wf_box kept = c->kept.piece[k].box, box = wf_box_intersect(part->box, kept);
        if (wf_box_empty(box))
            continue;
        WF_TRY(push_echo(c, k, wf_piece_part(part, box)));
        WF_TRY(wf_pieces_subtract(&c->left, kept));
    }
    for (int64_t i = 0; i < c->left.n; i++) {
        const wf_piece piece = wf_piece_part(part, c->left.piece[i].box);
        WF_TRY(wf_pieces_push(&c->kept, &piece));
    }
    own->last = c->kept.n;
    return WF_OK;
}

static int by_part(const void *left, const void *right)
{
    const claim *a = left, *b = right;
    return a->part < b->part ? -1 : a->part > b->part;
}

/* What is kept takes the place of the parts, in their order; the echoes get the numbers that pieces have there. Both
 * ends of an exchange make the same list, so its order must not depend on the sort by size. */
static wf_status replace_parts(claims *c, wf_pieces *parts, int64_t first)
{
    int64_t *number = wf_malloc(c->kept.ctx, ((size_t)c->kept.n + 1) * sizeof *number);
    wf_status status = number ? WF_OK : wf_error_code();
    qsort(c->list, (size_t)c->n, sizeof *c->list, by_part);
    parts->n = first;
    for (int64_t i = 0; i < c->n && status == WF_OK; i++)
        for (int64_t k = c->list[i].first; k < c->list[i].last && status == WF_OK; k++) {
            number[k] = parts->n;
            status = wf_pieces_push(parts, &c->kept.piece[k]);
        }
    for (int64_t i = c->first_echo; c->echoes && i < c->echoes->n && status == WF_OK; i++)
        c->echoes->echo[i].of = number[c->echoes->echo[i].of];
    free(number);
    return status;
}

/* `part` points into the list that replace_parts writes over: the call comes last. */
static wf_status claim_all(claims *c, wf_pieces *parts, int64_t first)
{
    const wf_piece *part = parts->piece + first;
    for (int64_t i = 0; i < c->n; i++)
        c->list[i] = (claim){.elements = wf_shape_count(wf_box_shape(part[i].box)), .part = i};
    qsort(c->list, (size_t)c->n, sizeof *c->list, by_size);
    for (int64_t i = 0; i < c->n; i++)
        WF_TRY(claim_part(c, &part[c->list[i].part], &c->list[i]));
    return replace_parts(c, parts, first);
}

/* Echoes that were in the list before have their final numbers and are left alone. */
wf_status wf_pieces_once(wf_pieces *parts, int64_t first, wf_echoes *echoes)
{
    claims c = {.n = parts->n - first,
                .kept.ctx = parts->ctx,
                .left.ctx = parts->ctx,
                .echoes = echoes,
                .first_echo = echoes ? echoes->n : 0};
    if (!any_overlap(parts->piece + first, c.n))
        return WF_OK;
    c.list = wf_calloc(parts->ctx, (size_t)c.n, sizeof *c.list);
    const wf_status status = c.list ? claim_all(&c, parts, first) : wf_error_code();
    free(c.list);
    free(c.kept.piece);
    free(c.left.piece);
    return status;
}
