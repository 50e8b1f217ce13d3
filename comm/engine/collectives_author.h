/* Calls as schedules: lists of tensors, exchanges, and whole calls by name, from the algorithms of
 * comm/engine/algorithms_author.h. As pure as they are. */
#ifndef WF_COMM_ENGINE_COLLECTIVES_AUTHOR_H
#define WF_COMM_ENGINE_COLLECTIVES_AUTHOR_H

#include "comm/call_author.h"
#include "comm/engine/algorithms_author.h"
#include "comm/engine/schedule_author.h"

/* The bytes of a tensor's type and shape, which travel ahead of it in calls on lists. */
#define WF_FRAME_BYTES ((size_t)56)

/* --- build_exchange.c --------------------------------------------------------------------------------------------- */
/* The plan's boxes: input 0 holds box `have`, output 0 box `need`; reversed, input 0 holds `need` and what comes is
 * added to output 0, in the order of peers. Elements travel in `order`. `own`: also what this rank has itself and needs
 * where it is; what it has and needs elsewhere (beyond an edge) comes in any case, as what is filled does. */
struct wf_plan;
struct wf_slabs;
typedef struct wf_exchange_shape {
    const struct wf_plan *plan;
    wf_box have, need;
    wf_dtype dtype;
    wf_order order;
    bool reversed, own;
    const struct wf_slabs *slabs;           /* how the need is held; without `own`. NULL: as its box */
    const int64_t *from_stride, *to_stride; /* of what is read, and written; NULL: dense in `order` */
    const bool *dense_send, *dense_recv;    /* piece n of the plan's lists lies dense in the boxes of both ranks, also
                                               where a need is in slabs: both choose the same way. NULL: none does */
} wf_exchange_shape;
void wf_build_exchange(wf_builder *b, const wf_group *group, const wf_exchange_shape *shape);

/* --- build_call.c: whole calls, by name --------------------------------------------------------------------------- */
/* A call (comm/call_author.h) as the schedule of one rank. What it costs: wf_call_price (comm/proof/proof_author.h). */

/* --- build_native.c --- */
/* Returns true if the call's vectors stay in device memory: the native transport moves them, or there is one rank,
 * whose vectors are copied. The same on all ranks. Max and min of floats do so over one rank only, since the transport
 * may lose a NaN. */
bool wf_call_stays(const wf_agreed *agreed, const wf_call *call);
/* Adds the steps of such a call. 16-bit types are reduced in f32 and rounded once, but in sums of gradients, which
 * travel in the type of their buffer (wf_multi_node_opts.grad_dtype). */
void wf_build_native(wf_builder *b, const wf_call *call);

/* Entries of `part`, where there is one. */
int64_t wf_call_entries(const wf_call *call, int ranks);

/* The schedule of one rank; the caller frees it. WF_ERR_ARGUMENT for a call that cannot be, as a reducer that is not
 * there. Local. */
wf_status wf_call_schedule(wf_ctx *ctx, const wf_agreed *agreed, int rank, const wf_call *call,
                           wf_schedule **schedule) WF_NODISCARD;

#endif
