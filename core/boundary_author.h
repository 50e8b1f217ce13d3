/* Boundaries as pieces: which elements of an array lie where in a box that reaches beyond its edges. Pure geometry, and
 * copies of one piece. Plans of exchanges (comm/plan_author.h) and functions on one rank are made of it. */
#ifndef WF_CORE_BOUNDARY_AUTHOR_H
#define WF_CORE_BOUNDARY_AUTHOR_H

#include "core/boundary.h"
#include "core/kernels_author.h"

/* Elements that go from a box of the whole to a place in a need. Along dimension d the place runs through the source
 * upwards (step[d] = 1), downwards (-1), or holds its only element all along (0). */
typedef struct wf_piece {
    int peer;                 /* whose piece it is: says the list that holds it */
    wf_box box;               /* the source, in the coordinates of the whole; not empty */
    wf_box at;                /* the place, in those of the need: the whole, continued beyond its edges */
    int8_t step[WF_MAX_RANK]; /* 1 where the box has one element and so has the place */
    bool negate;              /* the elements change their sign */
} wf_piece;

/* The piece that takes a box to the same place. */
wf_piece wf_piece_of(int peer, wf_box box);
/* The elements go as they are: no step but 1, no change of sign; and besides, to the place where they are. */
bool wf_piece_plain(const wf_piece *piece);
bool wf_piece_stays(const wf_piece *piece);
/* The part of a piece whose source is `part`, a box inside the piece's. */
wf_piece wf_piece_part(const wf_piece *piece, wf_box part);

/* A growing list of pieces; its own memory. */
typedef struct wf_pieces {
    wf_ctx *ctx;
    wf_piece *piece;
    int64_t n, room;
} wf_pieces;
wf_status wf_pieces_push(wf_pieces *pieces, const wf_piece *one) WF_NODISCARD;
/* Takes a box out of the sources of all pieces, which have no other fields than `box`. */
wf_status wf_pieces_subtract(wf_pieces *pieces, wf_box box) WF_NODISCARD;

/* A further place of elements that a piece of a list has. */
typedef struct wf_echo {
    int64_t of; /* the number of that piece */
    wf_piece piece;
} wf_echo;
typedef struct wf_echoes {
    wf_echo *echo;
    int64_t n, room;
} wf_echoes;
/* Pieces whose sources overlap, from number `first` on, become pieces whose sources do not, the largest of them whole,
 * and echoes of these, which are added to the list. Pure arithmetic: equal pieces become equal ones. `echoes` NULL:
 * none are listed. */
wf_status wf_pieces_once(wf_pieces *pieces, int64_t first, wf_echoes *echoes) WF_NODISCARD;

/* outer minus inner as boxes that do not overlap; returns how many, at most 2 * rank. */
int wf_box_subtract(wf_box outer, wf_box inner, wf_box rest[2 * WF_MAX_RANK]);
/* Returns true if a box is contiguous in a dense array of `world`. */
bool wf_box_dense_in(wf_box box, wf_box world, wf_order order);

/* The halo of a need as slabs, dense boxes one after the other: the need without the part of it that a rank has, which
 * may be most of it and takes no memory here. Each slab begins at a multiple of 16 elements. */
typedef struct wf_slabs {
    wf_box need;
    int n;
    int64_t elements; /* of the array that holds all slabs, with the padding behind each */
    wf_box box[2 * WF_MAX_RANK];
    int64_t at[2 * WF_MAX_RANK]; /* the element with which each slab begins */
} wf_slabs;
wf_slabs wf_slabs_of(wf_box need, wf_box have);
/* The number of the slab that contains the box; n if none does. */
int wf_slabs_find(const wf_slabs *slabs, wf_box box);
/* Makes sure that one slab contains the box, which lies in the need: where none does, the whole need becomes the only
 * slab. */
void wf_slabs_hold(wf_slabs *slabs, wf_box box);

/* Boxes of pieces in their order, and over halves of halves of them the box around those that are not empty. Ranks of a
 * mesh that follow each other lie side by side, so a search for pieces that meet a box leaves most halves out. */
typedef struct wf_piece_tree {
    int64_t size;
    const wf_piece *piece; /* whose box is in the tree */
    wf_box *around;        /* of [lo, hi): entry `node`; of its halves: node + 1, node + 2 (middle - lo) */
} wf_piece_tree;
/* Borrows the list. The caller frees `around`. */
wf_status wf_piece_tree_make(wf_ctx *ctx, wf_piece_tree *tree, const wf_pieces *list) WF_NODISCARD;
/* The first of [first, last) whose box meets this one; `last` if there is none. */
int64_t wf_piece_tree_next(const wf_piece_tree *tree, const wf_box *box, int64_t first, int64_t last);

/* WF_ERR_ARGUMENT where an array of this rank has no such boundary, whatever its lengths. Local. */
wf_status wf_boundary_check(const wf_boundary *boundary, int rank) WF_NODISCARD;
/* The side's edge: its own, or that of all. */
wf_edge wf_boundary_edge(const wf_boundary *boundary, int dim, bool upper);
/* Along dimension `dim` a need is not the whole array in its order: it is longer or shorter, goes beyond an edge, or is
 * turned by a pole; the channels of signs count too. A rank that has all of the other dimensions needs nothing else. */
bool wf_boundary_moves(wf_shape global, const wf_boundary *boundary, wf_box need, int dim);

/* Called for each piece of a need, in a fixed order, without overlaps: those that read (`fills` false), and the boxes
 * piece->at that hold the boundary's value. */
typedef wf_status wf_piece_visit(void *own, const wf_piece *piece, bool fills);
/* The pieces of a need of an array of this shape: its box inside, and what the boundary makes of the rest; a side of
 * the default edge is constant. The peer of every piece is `peer`. NULL boundary: the need lies inside, and is one
 * piece. WF_ERR_SHAPE if the need goes beyond what an edge is defined for, WF_ERR_ARGUMENT for a boundary that is none:
 * pure arithmetic, so ranks that ask for the same get the same error. Local. */
wf_status wf_boundary_pieces(wf_shape global, const wf_boundary *boundary, wf_box need, int peer, wf_piece_visit *visit,
                             void *own) WF_NODISCARD;

/* The elements of a source, a strided array, go to their place, and back: copied, or added to what is there. The
 * elements of a place that come from one element are added up, in row-major order, before their sum goes back. The
 * arrays do not overlap. */
wf_status wf_strided_spread(wf_ctx *ctx, const wf_strided *source, const wf_strided *place, const int8_t *step,
                            bool accumulate) WF_NODISCARD;
wf_status wf_strided_gather(wf_ctx *ctx, const wf_strided *place, const wf_strided *source, const int8_t *step,
                            bool accumulate) WF_NODISCARD;
/* A box of an array, in memory. */
typedef struct wf_boxed {
    wf_box box; /* in the coordinates of the whole, which go on beyond its edges */
    wf_strided at;
} wf_boxed;
/* to's elements come from `from`, which holds the source of each of them, or are the boundary's value. The reverse adds
 * the elements of `place` to their sources, in the order of pieces. Both have the errors of wf_boundary_pieces. */
wf_status wf_boundary_read(wf_ctx *ctx, wf_shape global, const wf_boundary *boundary, const wf_boxed *from,
                           const wf_boxed *to) WF_NODISCARD;
wf_status wf_boundary_add(wf_ctx *ctx, wf_shape global, const wf_boundary *boundary, const wf_boxed *place,
                          const wf_boxed *source) WF_NODISCARD;
/* n elements, one behind the other. */
wf_strided wf_strided_row(const void *data, wf_dtype dtype, int64_t n);
/* Every element becomes the value. */
wf_status wf_strided_fill(wf_ctx *ctx, const wf_strided *y, double value) WF_NODISCARD;
/* Dense elements of a float type change their sign; WF_ERR_DTYPE for another one. */
wf_status wf_negate(wf_ctx *ctx, wf_dtype dtype, void *data, int64_t count) WF_NODISCARD;

#endif
