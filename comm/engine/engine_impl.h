/* The engine from inside. For comm/engine and what stands on it. */
#ifndef WF_COMM_ENGINE_ENGINE_IMPL_H
#define WF_COMM_ENGINE_ENGINE_IMPL_H

#include "comm/engine/collectives_author.h"
#include "comm/engine/run_author.h"
#include "comm/guard/guard_impl.h"

/* --- combine.c --- */

/* y[i] = in[0][i] op in[1][i] op ...; y may be one of the inputs. Host memory. */
wf_status wf_combine(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, void *y,
                     int64_t count) WF_NODISCARD;

#endif
