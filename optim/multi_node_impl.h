/* What the ranks of a multi-node optimizer agree on, for this folder. */
#ifndef WF_OPTIM_MULTI_NODE_IMPL_H
#define WF_OPTIM_MULTI_NODE_IMPL_H

#include "comm/mesh.h"
#include "optim/optim_impl.h"

/* All ranks have the same model: paths, shapes (of the serial parameters), types, order of memory, and mesh axes of its
 * parameters. The error names the first difference and is the same on all ranks (*agreed). Collective. */
wf_status wf_agree_model(wf_comm *comm, wf_optim *optim, bool *agreed) WF_NODISCARD;
/* Every parameter has the value of the first rank, among those that hold the same part of it; running statistics
 * included. Collective. */
wf_status wf_agree_values(const wf_mesh *mesh, wf_optim *optim) WF_NODISCARD;
/* All ranks train the same parameters; `order`, a permutation of optim->target, becomes rank 0's. Collective. */
wf_status wf_agree_order(wf_comm *comm, wf_optim *optim, wf_param **order, bool *agreed) WF_NODISCARD;

/* Parameters [first, last) of the flat buffer: those whose gradients are summed over the same axes of the mesh, and
 * which are cut over the same ones. Axes that the mesh does not split are not named. */
typedef struct wf_grad_run {
    unsigned axes, cut;
    int64_t first, last;
} wf_grad_run;

/* The axes that the mesh splits, without `stage`, whose ranks have models of their own. */
unsigned wf_grad_axes(const wf_mesh *mesh);
/* Reorders so that parameters of equal axes lie together, those that are summed over `last` at the end; otherwise the
 * order stays. */
void wf_grad_sort(const wf_mesh *mesh, unsigned last, int64_t n, wf_param **order);
/* Connects all ranks over whom some gradient is summed, so that no step has to. Collective. */
wf_status wf_grad_connect(const wf_mesh *mesh, wf_optim *optim) WF_NODISCARD;
/* The runs of an order, at most n; returns how many. */
int64_t wf_grad_runs(const wf_mesh *mesh, int64_t n, wf_param *const *order, wf_grad_run *runs);

#endif
