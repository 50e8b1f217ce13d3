/* Calls as schedules: lists of tensors, exchanges, and whole calls by name, from the algorithms of
 * comm/engine/algorithms_author.h. As pure as they are. */
#ifndef WF_COMM_ENGINE_COLLECTIVES_AUTHOR_H
#define WF_COMM_ENGINE_COLLECTIVES_AUTHOR_H

#include "comm/engine/algorithms_author.h"
#include "comm/engine/schedule_author.h"

/* --- build_tensors.c: lists of tensors, with their types and shapes ahead ------------------------------------------
 */
#define WF_FRAME_BYTES ((size_t)56)

/* What goes to, or comes from, one member. The frame says what is in it, and travels ahead. */
typedef struct wf_part {
    int member;
    wf_address at;
    size_t bytes;
    void *expected; /* of what comes: the first argument of `check` */
} wf_part;

typedef struct wf_parts {
    int count_out, count_in;
    const wf_part *out, *in;
    wf_address frames_out, frames_in; /* one a part, in the order of the list */
    wf_step_function check;           /* looks at the frame of each part that comes; NULL: nobody does */
} wf_parts;

/* All messages of one call on tensors. */
void wf_build_parts(wf_builder *b, const wf_group *group, const wf_parts *parts);

/* --- build_exchange.c -----------------------------------------------------------------------------------------------
 */
/* Native: what begins a group of messages, ends it, and lets the device wait for it; NULL: nothing. */
typedef struct wf_exchange_native {
    wf_step_function begin, end, join;
    void *own;
} wf_exchange_native;

/* The plan's boxes: input 0 holds box `have`, output 0 box `need`; reversed, input 0 holds `need` and what comes is
 * added to output 0, in the order of peers. Elements travel in `order`. `own`: also what this rank has itself and needs
 * where it is; what it has and needs elsewhere (beyond an edge) comes in any case, as what is filled does. */
struct wf_plan;
typedef struct wf_exchange_shape {
    const struct wf_plan *plan;
    wf_box have, need;
    wf_dtype dtype;
    wf_order order;
    bool reversed, own;
    const int64_t *from_stride, *to_stride; /* of what is read, and written; NULL: dense in `order` */
    const bool *dense_send, *dense_recv;    /* piece n of the plan's lists lies dense in the boxes of both ranks; NULL:
                                               none does */
    const wf_exchange_native *native;       /* NULL: by messages and rings */
} wf_exchange_shape;
void wf_build_exchange(wf_builder *b, const wf_group *group, const wf_exchange_shape *shape);

/* --- build_call.c: whole calls, by name -----------------------------------------------------------------------------
 */
typedef enum wf_operation {
    WF_CALL_BCAST = 0,      /* both 0: count elements */
    WF_CALL_REDUCE,         /* input 0 to output 0 of the root */
    WF_CALL_ALLREDUCE,      /* input 0 to output 0 */
    WF_CALL_ALLGATHER,      /* input 0: count elements; output 0: ranks times as many */
    WF_CALL_REDUCE_SCATTER, /* inputs r to output 0: part[r] elements */
    WF_CALL_BARRIER,
    WF_CALL_SUM_SHARDS,    /* both 0, in shards part[0..ranks] */
    WF_CALL_GATHER_SHARDS, /* both 0, in shards part[0..ranks] */
    WF_CALL_SUM,           /* both 0: a reducer's sum of gradients */
    /* What this rank alone knows of a call. */
    WF_CALL_LISTS, /* tensors between any two ranks: messages, gathers, scatters, all-to-alls. Input r to rank r, output
                      r from rank r: part[r] and part[ranks + r] bytes; -1: not even a frame. Input and output number
                      `ranks`: the frames, from the next rank on, and from the one before it on */
    WF_CALL_MEET,  /* a barrier of the `parts` ranks in `part`, by themselves */
    WF_CALL_RECEIVE, /* output 0: count bytes from rank `root`, without a frame */
    WF_CALLS
} wf_operation;

/* One call, as every rank makes it. What it costs: wf_call_price (comm/proof/proof_author.h). */
typedef struct wf_call {
    wf_operation operation;
    const char *reducer; /* of WF_CALL_SUM: its name */
    wf_reduce_op op;
    wf_dtype dtype;
    int root;
    int64_t count;       /* elements, as above; of WF_CALL_SUM the last end */
    const int64_t *part; /* lengths, or ends of shards, as above; of WF_CALL_SUM the ends of segments, the first of
                            which need not be 0 */
    int parts;           /* WF_CALL_SUM: segments, of which `part` holds the parts + 1 ends */
    int exact;           /* WF_CALL_SUM: how many of them, the last ones, a reducer must not round */
    uint64_t buffer;     /* WF_CALL_SUM: whose kept memory it is; 0: what is kept is zero in every sum */
    /* Calls with frames: checks each frame that arrives; its first argument is expected + r * expected_bytes for rank
     * r. */
    wf_step_function check;
    void *expected;
    size_t expected_bytes;
} wf_call;

/* Entries of `part`, where there is one. */
int64_t wf_call_entries(const wf_call *call, int ranks);

/* "allreduce", and back; WF_CALLS where there is none such. */
const char *wf_call_name(wf_operation operation);
wf_operation wf_call_of_name(const char *name);

/* The schedule of one rank; the caller frees it. WF_ERR_ARGUMENT for a call that cannot be, as a reducer that is not
 * there. Local. */
wf_status wf_call_schedule(wf_ctx *ctx, const wf_agreed *agreed, int rank, const wf_call *call,
                           wf_schedule **schedule) WF_NODISCARD;

#endif
