/* Layouts: which part of a global tensor a rank holds, and how. Plain values without ownership. Local.
 *
 * Every tensor carries a layout. A tensor whose layout is unknown (`known` is false) concerns this rank alone. A known
 * layout says the global shape, the mesh, and for each mesh axis whether the tensor is sharded over it (and along which
 * dimension), replicated, or partial: a sum over that axis is still to be made.
 */
#ifndef WF_CORE_LAYOUT_H
#define WF_CORE_LAYOUT_H

#include "core/shape.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_mesh wf_mesh; /* comm/mesh.h; opaque to core */

typedef enum wf_axis {
    WF_AXIS_DATA = 0, /* samples */
    WF_AXIS_CHANNEL,
    WF_AXIS_DEPTH,
    WF_AXIS_HEIGHT,
    WF_AXIS_WIDTH,
    WF_AXIS_STAGE,
    WF_AXES
} wf_axis;

/* A set of axes: WF_AXIS_BIT(WF_AXIS_HEIGHT) | WF_AXIS_BIT(WF_AXIS_WIDTH). An axis in place of a set is a warning of
 * the compiler. */
typedef enum wf_axis_set { WF_NO_AXES = 0, WF_ALL_AXES = 63 } wf_axis_set;
#define WF_AXIS_BIT(axis) ((wf_axis_set)(1u << (axis)))
#ifdef __cplusplus
/* Without it C++ makes an int of two sets. */
extern "C++" inline wf_axis_set operator|(wf_axis_set a, wf_axis_set b)
{
    return (wf_axis_set)((unsigned)a | (unsigned)b);
}
#endif

const char *wf_axis_name(wf_axis axis); /* "data", "channel", ... */

typedef enum wf_placement {
    WF_REPLICATED = 0,
    WF_SHARDED,
    WF_PARTIAL,
} wf_placement;

typedef struct wf_layout {
    bool known;
    const wf_mesh *mesh;
    wf_shape global; /* the shape of the whole */
    wf_box box;      /* the part held here, in global coordinates */
    uint8_t placement[WF_AXES];
    uint8_t dim[WF_AXES]; /* where placement is WF_SHARDED: the dimension cut by that axis */
    /* If placement is WF_SHARDED: the shard bounds along that dimension of the ranks of this axis, size + 1 ascending
     * numbers (wf_mesh_bounds); NULL: each rank knows only its own part. They live as long as the mesh if the program
     * made the layout, else as long as a tensor with them and the step in which it was made. With bounds, any rank can
     * compute the box of every other rank. */
    const int64_t *bounds[WF_AXES];
    /* The dimension cut by the data axis holds a chunk of the samples of each rank (layers/pipeline.h). These parts do
     * not follow one another in the whole, so no bounds describe them, and a redistribution leaves them in place. */
    bool chunk;
} wf_layout;

wf_layout wf_layout_none(void);
/* The layout of samples [lo, hi) of a batch of shape `global`: dimension 0 is sharded over the mesh's data axis, the
 * other dimensions are whole. */
wf_layout wf_layout_batch(const wf_mesh *mesh, wf_shape global, int64_t lo, int64_t hi);
/* Compares mesh, global shape, box, placements, and shard bounds where both layouts have them. */
bool wf_layout_equal(const wf_layout *a, const wf_layout *b);
bool wf_layout_is_partial(const wf_layout *layout);
bool wf_layout_is_sharded(const wf_layout *layout, int dim);
/* The axes (a bit each) that shard a dimension of `dims` (bit d); 0 of an unknown layout and of NULL. */
unsigned wf_layout_axes(const wf_layout *layout, unsigned dims);
/* "[256,3,32,32] sharded over data at dimension 0: [0,64)" into text, which is returned. */
#define WF_LAYOUT_TEXT 320
const char *wf_layout_text(const wf_layout *layout, char text[WF_LAYOUT_TEXT]);

/* The layout of an output of shape `local` whose dimension d comes from dimension from[d] of the input (-1: it is new,
 * and whole on every rank). False if a sharded dimension of `in` is in no from[], or a partial one would be lost. */
bool wf_layout_follow(const wf_layout *in, wf_shape local, const int *from, wf_layout *out);

#ifdef __cplusplus
}
#endif
#endif
