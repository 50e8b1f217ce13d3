/* Sums of gradients by the reducer that a name chose. For comm/reduce and the files of comm itself. */
#ifndef WF_COMM_REDUCE_IMPL_H
#define WF_COMM_REDUCE_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/reducer_author.h"

/* --- sum.c --- */

/* As wf_reducer_sum, by another reducer than the communicator's, which is connected. Collective. */
wf_status wf_reducer_sum_by(wf_comm *comm, const wf_reducer *reducer, const wf_call *sum) WF_NODISCARD;
/* Completes the call for it. */
wf_call wf_reducer_call(const wf_reducer *reducer, const wf_call *sum);

#endif
