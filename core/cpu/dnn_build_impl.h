/* Makes and unmakes the oneDNN objects of an operation. */
#ifndef WF_CORE_CPU_DNN_BUILD_IMPL_H
#define WF_CORE_CPU_DNN_BUILD_IMPL_H

#include "core/cpu/dnn_impl.h"

/* Fills an operation whose key is set and whose rest is zero. False where oneDNN does not take it; then wf_dnn_unbuild.
 */
bool wf_dnn_build(dnnl_engine_t engine, wf_dnn_op *op);
/* Frees the oneDNN objects; the operation itself is the caller's. */
void wf_dnn_unbuild(wf_dnn_op *op);

/* What goes wrong where this implementation of oneDNN computes this key; NULL: nothing that is known. */
const char *wf_dnn_fault(const wf_dnn_key *key, const char *implementation);

#endif
