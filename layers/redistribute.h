/* Moves a variable from one layout to another, differentiably, in one exchange. Collective over the ranks of the axes
 * that change.
 *
 * The gradient has the layout of its value: backward of a gather is a slice, of a slice a gather, and replicas all hold
 * the same gradient, which is that of the serial program. A value without a layout is taken as the whole tensor, equal
 * on all ranks. A variable that has the wanted layout already is returned as it is.
 *
 * In the layers of a pipeline x is a chunk of the batch, whose samples stay on their ranks along data: these functions
 * move it along the other axes, and leave out what the target says of the data axis. WF_ERR_UNSUPPORTED if the target
 * shards samples over another axis, or another dimension over data.
 */
#ifndef WF_LAYERS_REDISTRIBUTE_H
#define WF_LAYERS_REDISTRIBUTE_H

#include "comm/mesh.h"
#include "core/site.h"
#include "core/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* WF_ERR_SHAPE if the target is of another global shape; WF_ERR_UNSUPPORTED for a partial layout. */
WF_PLACED wf_var *wf_redistribute(wf_var *x, wf_layout target);
/* To the usual layout of activations on this mesh: samples over data, channels over channel, pixels over depth, height
 * and width, in balanced blocks (wf_mesh_layout_activation). */
WF_PLACED wf_var *wf_shard(wf_var *x, const wf_mesh *mesh);
/* The whole, on every rank of x's mesh (of a chunk: its own samples). A value without a layout is returned as it is. */
wf_var *wf_unshard(wf_var *x);

#ifdef __cplusplus
}
#endif

#endif
