/* Meshes for layers: shard bounds, and cached exchanges. */
#ifndef WF_COMM_MESH_AUTHOR_H
#define WF_COMM_MESH_AUTHOR_H

#include "comm/exchange_author.h"
#include "comm/mesh.h"
#include "core/window.h"

/* The mesh's own copy of size + 1 ascending shard bounds along an axis: equal ones give the same pointer, which lives
 * as long as the mesh. NULL on failure. Local. */
const int64_t *wf_mesh_bounds(const wf_mesh *mesh, wf_axis axis, const int64_t *bounds);
/* Balanced blocks of [0, length). */
const int64_t *wf_mesh_blocks(const wf_mesh *mesh, wf_axis axis, int64_t length);

/* Cuts dimension `dim` of a layout over `axis` at `bounds` (interned here if they are not yet); the global length is
 * the last cut, the box follows. An axis of one rank, other than data, does not count as cut: the dimension is whole.
 */
void wf_layout_shard(const wf_mesh *mesh, wf_layout *layout, wf_axis axis, int dim, const int64_t *bounds);

/* Where shard bounds are unknown (a batch whose place only each rank knows), gathers them: collective over those axes.
 */
wf_status wf_layout_complete(wf_layout *layout) WF_NODISCARD;

/* Who has, or needs, which part of an array: the product over the axes of one range per place along each axis.
 * Dimensions that no axis cuts are whole everywhere. Ranges may overlap (halos) and may be empty. */
typedef struct wf_regions {
    wf_shape global;                /* of dimensions that this exchange does not move: the local length */
    int dim[WF_AXES];               /* -1: not sharded over this axis */
    const wf_range *range[WF_AXES]; /* wf_mesh_size entries each; read during the call only */
} wf_regions;

/* The exchange from `have` to `need`, among the ranks that differ along the axes by which either is cut: every rank
 * computes it by arithmetic. Cached in the mesh under the regions' contents; borrowed. Local, but for the communicator
 * of a new set of axes (wf_mesh_comm_of), so all ranks ask for the same exchanges in the same order. */
wf_exchange *wf_mesh_exchange(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need, wf_dtype dtype,
                              wf_order order);

/* The same between boxes of any kind: one per rank of the whole mesh. */
wf_exchange *wf_mesh_exchange_boxes(const wf_mesh *mesh, const wf_box *have, const wf_box *need, wf_dtype dtype,
                                    wf_order order);
/* The one that takes a tensor from one complete layout to another, both on one mesh, or on two meshes of which one is
 * of the other's communicator or of one of its axes (wf_mesh_comm_of). An axis that cuts both alike is left out. Where
 * it moves nothing and this rank's boxes are equal, the tensor can be taken as it is. WF_ERR_UNSUPPORTED for a partial
 * layout. */
wf_exchange *wf_mesh_exchange_layouts(const wf_layout *from, const wf_layout *to, wf_dtype dtype, wf_order order);
/* The same for x, whose layout goes to *from: one without a layout counts as the whole, the same on every rank of the
 * target's mesh. Completes both layouts. */
wf_exchange *wf_tensor_exchange(const wf_tensor *x, wf_layout *target, wf_layout *from);

#endif
