/* Boundaries: what an array holds beyond its edges, for padding, halos and rolls.
 *
 * For a dimension of the elements a b c d, two elements beyond either edge:
 *
 *     constant   v v | a b c d | v v      v is `value`
 *     circular   c d | a b c d | a b
 *     reflect    c b | a b c d | c b      mirrored, the edge is not repeated
 *     symmetric  b a | a b c d | d c      mirrored, the edge is repeated
 *     replicate  a a | a b c d | d d
 *
 * A pole mirrors its dimension (rows of latitude) and turns another one by half its length (columns of longitude):
 * beyond the pole a meridian goes on as the opposite one.
 *
 * A boundary reaches beyond an edge at most as far as it is defined: reflect by less than the length of its dimension,
 * circular, symmetric and pole by the length (a pole with a row on it by less), the others as far as asked.
 */
#ifndef WF_CORE_BOUNDARY_H
#define WF_CORE_BOUNDARY_H

#include "core/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_edge {
    WF_EDGE_DEFAULT = 0, /* what the function that takes the boundary says of it */
    WF_EDGE_CONSTANT,
    WF_EDGE_CIRCULAR,
    WF_EDGE_REFLECT,
    WF_EDGE_SYMMETRIC,
    WF_EDGE_REPLICATE,
    WF_EDGE_POLE, /* of at most one dimension */
    WF_EDGES
} wf_edge;

const char *wf_edge_name(wf_edge edge); /* "reflect" */

/* Zero means the default of the function. Options of a pole matter only if an edge is one. */
typedef struct wf_boundary {
    wf_edge edge;                             /* of every side that has none of its own */
    wf_edge lo[WF_MAX_RANK], hi[WF_MAX_RANK]; /* of the lower and the upper side of each dimension */
    double value;                             /* beyond a constant edge */
    int turned;       /* WF_DIM(d): the dimension that a pole turns, circular and of even length; 0: the last one */
    bool row_on_pole; /* the row at the edge lies on the pole itself, and is not repeated */
    /* Channels (dimension 1) that change their sign across a pole, as components of a vector do: n_negated ascending
     * numbers, of a float type. */
    int n_negated;
    const int64_t *negated;
} wf_boundary;

#ifdef __cplusplus
}
#endif

#endif
