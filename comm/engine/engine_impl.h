/* The engine from inside. For comm/engine and what stands on it. */
#ifndef WF_COMM_ENGINE_ENGINE_IMPL_H
#define WF_COMM_ENGINE_ENGINE_IMPL_H

#include "comm/engine/collectives_author.h"
#include "comm/engine/run_author.h"
#include "comm/guard/guard_impl.h"

/* --- progress.c --- */

/* The engine of a communicator whose rank and size are known; node[r] is the number of rank r's node. */
wf_status wf_engine_open(wf_comm *comm, const int32_t *node) WF_NODISCARD;
void wf_engine_close(wf_comm *comm);
/* Runs a call to its end: `in` is its input 0, `out` its output 0 or what is both, in host memory. The call has been
 * entered. */
wf_status wf_engine_run(wf_comm *comm, const wf_call *call, const void *in, void *out) WF_NODISCARD;

/* --- combine.c --- */

/* y[i] = in[0][i] op in[1][i] op ...; y may be one of the inputs. Host memory. */
wf_status wf_combine(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, void *y,
                     int64_t count) WF_NODISCARD;

#endif
