/* Meshes for layers: shard bounds, and cached exchanges. */
#ifndef WF_COMM_MESH_AUTHOR_H
#define WF_COMM_MESH_AUTHOR_H

#include "comm/exchange_author.h"
#include "comm/mesh.h"
#include "core/boundary_author.h"
#include "core/window.h"

/* As wf_mesh_bounds, of bounds that need not last: they stand until WF_PLANS_MOST / 2 have been asked for after them,
 * as long as there are variables on a tape without a break, and as long as a tensor's layout has them. A layer or
 * program that holds some for longer asks for them by wf_mesh_bounds. Local. */
const int64_t *wf_mesh_bounds_recent(const wf_mesh *mesh, wf_axis axis, const int64_t *bounds);
/* How many bounds the mesh keeps that need not last. Local. */
int64_t wf_mesh_bounds_kept(const wf_mesh *mesh);
/* Bounds of balanced blocks of [0, length), one for each place along the axis: size + 1 numbers, which stand as those
 * of wf_mesh_bounds_recent do. WF_ERR_SHAPE, and NULL, for a negative length. Local. */
const int64_t *wf_mesh_blocks(const wf_mesh *mesh, wf_axis axis, int64_t length);

/* wf_mesh_layout_activation, whose bounds stand as those of wf_mesh_bounds_recent do. Local. */
wf_status wf_mesh_layout_activation_recent(const wf_mesh *mesh, wf_shape global, wf_layout *layout) WF_NODISCARD;

/* Shards dimension `dim` of a layout over `axis` at `bounds`, which wf_mesh_bounds_recent copies; the global length is
 * the last bound, and the box is set accordingly. An axis of one rank, other than data, does not shard: the dimension
 * stays whole. With bounds NULL, which failed before, nothing changes. Local. */
void wf_layout_shard(const wf_mesh *mesh, wf_layout *layout, wf_axis axis, int dim, const int64_t *bounds);

/* Gathers shard bounds along these axes that are unknown (of a batch, where each rank knows only its own place), and
 * keeps them by wf_mesh_bounds_recent. Collective over the axes whose bounds are gathered, else local. */
wf_status wf_layout_complete(wf_layout *layout, unsigned axes) WF_NODISCARD;

/* Which part of an array each rank has, or needs: for each axis, one range for every place along it; a rank's part
 * is the product of its ranges. Dimensions that no axis shards are whole on every rank. Ranges may overlap (halos)
 * and may be empty. */
typedef struct wf_regions {
    wf_shape global;                /* of dimensions that this exchange does not move: the local length */
    int dim[WF_AXES];               /* -1: not sharded over this axis */
    const wf_range *range[WF_AXES]; /* wf_mesh_size entries each; read during the call only */
} wf_regions;

/* The exchange from `have` to `need`, among the ranks that differ along the axes over which either is sharded. Every
 * rank computes it without communication. Cached in the mesh under the regions' contents; borrowed: it stands until
 * WF_PLANS_MOST others have been asked for, and as long as there are variables on a tape without a break, so a node may
 * keep it for backward. Local, but for the communicator of a new set of axes (wf_mesh_comm), so all ranks ask for
 * the same exchanges in the same order. */
wf_exchange *wf_mesh_exchange(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need, wf_dtype dtype,
                              wf_order order);

/* wf_mesh_exchange for a need that may reach beyond the edges of the whole: `rest` has what is needed in dimensions
 * that no axis of `need` shards (entries of others are not read). NULL after the errors of wf_exchange_new_beyond, on
 * all ranks. */
wf_exchange *wf_mesh_exchange_beyond(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need,
                                     const wf_range rest[WF_MAX_RANK], const wf_boundary *boundary, wf_dtype dtype,
                                     wf_order order);

/* Like wf_mesh_exchange, between boxes of any kind: one per rank of the whole mesh. */
wf_exchange *wf_mesh_exchange_boxes(const wf_mesh *mesh, const wf_box *have, const wf_box *need, wf_dtype dtype,
                                    wf_order order);
/* The one that takes a tensor from one complete layout to another, both on one mesh, or on two meshes of which one
 * is of the other's communicator or of one of its axes (wf_mesh_comm). An axis over which both are sharded
 * equally is left out. If the exchange moves nothing and this rank's boxes are equal, the tensor can be used as it
 * is. NULL after an error: WF_ERR_UNSUPPORTED for a partial layout. Local, as wf_mesh_exchange is. */
wf_exchange *wf_mesh_exchange_layouts(const wf_layout *from, const wf_layout *to, wf_dtype dtype, wf_order order);
/* Like wf_mesh_exchange_layouts for x, whose layout goes to *from: an x without one counts as the whole, equal on every
 * rank of the target's mesh. Completes both layouts along these axes, so collective where their bounds are unknown.
 * Along all others *target is as x's own layout, on every rank, and nothing moves. */
wf_exchange *wf_tensor_exchange(const wf_tensor *x, wf_layout *target, wf_layout *from, unsigned axes);
/* How many exchanges the mesh keeps; those that nodes may hold beyond WF_PLANS_MOST count too. Local. */
int64_t wf_mesh_exchanges(const wf_mesh *mesh);

#endif
