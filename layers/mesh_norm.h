/* Layer, RMS, group and instance normalisation of inputs whose groups are cut by the axes of a mesh.
 *
 * Options, parameters and their names are those of layers/group_norm.h, and so is what is computed. A layer reads the
 * layout of its input, which must be on `mesh` (WF_ERR_ARGUMENT), on each application: any cut is right, also of uneven
 * and empty parts. If axes cut groups, the ranks along exactly those axes merge their statistics by counts: forward one
 * all-gather of 24 K bytes (K: groups of this rank's samples; count, mean and squared deviations in f64), (P-1) 24 K
 * sent where P ranks share groups, and backward one all-reduce of 16 K bytes. Where no cut crosses a group nothing is
 * sent: samples, the pixels of a layer normalisation over channels, channels of an instance normalisation, channels cut
 * between groups.
 *
 * Collective over the ranks that share groups; a failure on one rank is the same error on all. The mesh is borrowed and
 * must outlive the layer. wf_parallelize makes such layers of the serial ones. */
#ifndef WF_LAYERS_MESH_NORM_H
#define WF_LAYERS_MESH_NORM_H

#include "comm/mesh.h"
#include "layers/group_norm.h"

#ifdef __cplusplus
extern "C" {
#endif

wf_layer *wf_mesh_layernorm(const wf_mesh *mesh, wf_layernorm_opts opts);
wf_layer *wf_mesh_rmsnorm(const wf_mesh *mesh, wf_rmsnorm_opts opts);
wf_layer *wf_mesh_groupnorm(const wf_mesh *mesh, wf_groupnorm_opts opts);
wf_layer *wf_mesh_instancenorm(const wf_mesh *mesh, wf_instancenorm_opts opts);

#ifdef __cplusplus
}
#endif
#endif
