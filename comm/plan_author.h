/* Exchange plans: which boxes of a global array move between which ranks, so that every rank gets the box that it needs
 * out of the boxes that the ranks have. Pure geometry, the same on every rank.
 *
 * Every need is intersected with every have, so halos wider than a neighbour, empty boxes and uneven blocks are no
 * special cases. Where several ranks have an element (replicas), it comes from the needing rank itself if that has it,
 * else from the first owner after it in cyclic order. Making a plan costs a look at all boxes, and its own pieces.
 */
#ifndef WF_COMM_PLAN_AUTHOR_H
#define WF_COMM_PLAN_AUTHOR_H

#include "core/context.h"
#include "core/shape.h"

typedef struct wf_piece {
    int peer;   /* may be this rank: a local copy */
    wf_box box; /* in global coordinates; not empty */
} wf_piece;

/* Pieces are ordered by peer; those to one peer are in the order in which that peer lists them as received from here.
 */
typedef struct wf_plan {
    int rank, size;
    int64_t n_send, n_recv;
    wf_piece *send, *recv;
    int64_t elements_sent, elements_received, elements_kept; /* to and from others; copied here */
    bool moves; /* anything, between any two ranks: the same on every rank */
} wf_plan;

/* have and need hold `size` boxes of one rank (dimensions); empty boxes are fine. WF_ERR_SHAPE if an element is needed
 * that nobody has. The caller frees the plan. Local. */
wf_status wf_plan_make(wf_ctx *ctx, int rank, int size, const wf_box *have, const wf_box *need,
                       wf_plan **plan) WF_NODISCARD;
void wf_plan_free(wf_plan *plan);

/* outer minus inner as boxes that do not overlap; returns how many, at most 2 * rank. */
int wf_box_subtract(wf_box outer, wf_box inner, wf_box rest[2 * WF_MAX_RANK]);

#endif
