/* Exchange plans: which boxes of a global array move between which ranks, so that every rank gets the box that it needs
 * out of the boxes that the ranks have. Pure geometry, the same on every rank.
 *
 * A need is a list of pieces (core/boundary_author.h): one, the box itself, where it lies inside the array; several
 * where it reaches beyond the edges. What no piece covers is filled with the boundary's value and sent by no rank.
 *
 * Every piece is intersected with every have, so halos wider than a neighbour, empty boxes and uneven blocks are no
 * special cases. Where several ranks have an element (replicas), it comes from the needing rank itself if that has it,
 * else from the first owner after it in cyclic order. Making a plan costs a look at all boxes, and its own pieces. */
#ifndef WF_COMM_PLAN_AUTHOR_H
#define WF_COMM_PLAN_AUTHOR_H

#include "comm/recorder_author.h"
#include "core/boundary_author.h"
#include "core/context.h"

/* Pieces are ordered by peer, which may be this rank: a local copy. Those of one peer are in the order in which the
 * needing rank lists the pieces of its need. An element travels to a rank once, however many places repeat it: the
 * others of a mirror, of a ring that one rank has alone, or of a corner beyond two edges are echoes of what comes. */
typedef struct wf_plan {
    int rank, size;
    int64_t n_send, n_recv;
    wf_piece *send, *recv; /* parts of what is needed, whose source one rank has; those of others do not overlap */
    int64_t n_echo;
    wf_echo *echo; /* of pieces of `recv` that come from others, in the order in which they are written */
    int64_t n_fill;
    wf_piece *fill; /* boxes `at` of this rank's need that hold `value` */
    double value;
    int64_t elements_sent, elements_received, elements_kept; /* to and from others; copied here */
    bool moves;    /* anything, between any two ranks: the same on every rank */
    bool rewrites; /* this rank fills boxes, or copies its own elements to other places */
} wf_plan;

/* An array of shape `global`, and its continuation beyond its edges. */
typedef struct wf_beyond {
    wf_shape global;
    const wf_boundary *boundary;
} wf_beyond;

/* have and need hold `size` boxes of one rank (dimensions); empty boxes are fine. beyond NULL: needs lie inside.
 * WF_ERR_SHAPE if an element is needed that no rank has, which names the rank by world_rank (wf_rank_listed), and the
 * errors of wf_boundary_pieces. The caller frees the plan. Local. */
wf_status wf_plan_make(wf_ctx *ctx, int rank, int size, const int32_t *world_rank, const wf_box *have,
                       const wf_box *need, const wf_beyond *beyond, wf_plan **plan) WF_NODISCARD;
void wf_plan_free(wf_plan *plan);

#endif
