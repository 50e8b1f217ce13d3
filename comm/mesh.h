/* The mesh: a communicator's ranks arranged along named axes, the ways in which work is split.
 *
 * Ranks are numbered with data slowest, then stage, channel, depth, height, and width fastest, so that neighbours in
 * space are neighbours in rank (and mostly on one node). */
#ifndef WF_COMM_MESH_H
#define WF_COMM_MESH_H

#include "comm/comm.h"
#include "core/boundary.h"
#include "core/site.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of ranks along each axis. 0 means 1, except for `data`, where 0 means all ranks that the other axes
 * leave. */
typedef struct wf_mesh_opts {
    int data, channel, depth, height, width, stage;
} wf_mesh_opts;

/* WF_ERR_ARGUMENT, on all ranks, if the product is not the communicator's size, or if the ranks gave different options.
 * The communicator is borrowed and must outlive the mesh. Collective. */
WF_PLACED wf_mesh *wf_mesh_open(wf_comm *comm, wf_mesh_opts opts);
/* NULL is fine. Local. */
void wf_mesh_close(wf_mesh *mesh);

/* Ranks along an axis (1 where it is not split), and this rank's place along it. */
int wf_mesh_size(const wf_mesh *mesh, wf_axis axis);
int wf_mesh_rank(const wf_mesh *mesh, wf_axis axis);
/* The communicator of all ranks that differ only along these axes; borrowed. WF_AXIS_BIT(axis) is a set of one axis,
 * WF_NO_AXES gives only this rank. Ranks have the order of the mesh, so along one axis the rank is the place.
 * Local for at most one axis, and for all. For several axes it is made by the first call, which is collective over
 * those ranks, and kept: later calls are local. Axes of one rank do not count. WF_ERR_ARGUMENT for other bits.
 * If ranks at other places of the mesh lie on nodes otherwise, gradients are summed as by "flat": copies stay equal. */
WF_PLACED wf_comm *wf_mesh_comm(const wf_mesh *mesh, wf_axis_set axes);
/* The communicator of the whole mesh; borrowed. */
wf_comm *wf_mesh_world(const wf_mesh *mesh);
/* The place along every axis of a rank of the whole mesh. */
void wf_mesh_place(const wf_mesh *mesh, int rank, int place[WF_AXES]);
/* "data 2 x height 2: rank 3 is data 1, height 1" (only axes that are split); the rank is named as in messages
 * (comm/comm.h). Valid as long as the mesh. */
const char *wf_mesh_text(const wf_mesh *mesh);

typedef struct wf_layout_opts {
    int dim[WF_AXES]; /* WF_DIM(d): the axis shards dimension d; default: the tensor is replicated over it */
    /* Own cut points: size + 1 ascending numbers from 0 to the length of that dimension, which are copied into the
     * mesh; default: balanced blocks. */
    const int64_t *bounds[WF_AXES];
} wf_layout_opts;

/* The layout of a tensor of this global shape. WF_ERR_SHAPE if two axes cut one dimension, a dimension does not exist,
 * or the last bound is not its length. An axis of one rank, other than data, counts as replicated. Local. */
wf_status wf_mesh_layout(const wf_mesh *mesh, wf_shape global, wf_layout_opts opts, wf_layout *layout) WF_NODISCARD;
/* The layout of a tensor that is equal on every rank of the mesh; wf_layout_none if the mesh is NULL. Local. */
wf_layout wf_mesh_layout_same(const wf_mesh *mesh, wf_shape global);
/* The mesh's own copy of size + 1 ascending shard bounds along an axis: equal ones give the same pointer, which lives
 * as long as the mesh, as those of the layouts do that a program makes here. Of the bounds of its own tensors the
 * library keeps the 1024 that were used last, and those that are in use. NULL on failure. Local. */
const int64_t *wf_mesh_bounds(const wf_mesh *mesh, wf_axis axis, const int64_t *bounds);
/* The usual layout of activations [N,C,...]: samples over data, dimension 1 over channel, and the last one to three
 * dimensions over width, height and depth. Local. */
wf_status wf_mesh_layout_activation(const wf_mesh *mesh, wf_shape global, wf_layout *layout) WF_NODISCARD;

/* A new tensor of another layout, with x's type and order; the caller frees it. The target's mesh may be another
 * than x's, of the same communicator or of one of its axes. A tensor without a layout is taken as the whole tensor,
 * equal on all ranks. For variables: wf_redistribute (layers/redistribute.h). Collective. */
WF_PLACED wf_tensor *wf_tensor_redistribute(const wf_tensor *x, wf_layout target);
/* Returns x, whose layout is on this mesh with bounds, with halos: widths[d] more elements on both sides of this rank's
 * part in every dimension d, whichever rank holds them. An edge of the whole cuts halos (the default of the boundary),
 * or they go on beyond it as the boundary says, also in dimensions that are not cut. The result has no layout; it is
 * the part [lo - widths[d], hi + widths[d]) of the whole, cut where an edge cuts, and the caller frees it. Parts may be
 * empty, which get no halo, and halos wider than a part. What the boundary repeats along a line travels once; where no
 * dimension is cut nothing is sent. An equal exchange is planned once: the mesh keeps the 1024 plans that were used
 * last. WF_ERR_SHAPE for a negative width, a layout without bounds, and halos that reach farther beyond an edge than it
 * is defined for (core/boundary.h), WF_ERR_UNSUPPORTED for a partial layout. Collective. */
WF_PLACED wf_tensor *wf_halo_exchange(const wf_mesh *mesh, const wf_tensor *x, const int64_t *widths,
                                      wf_boundary boundary);

#ifdef __cplusplus
}
#endif

#endif
