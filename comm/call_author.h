/* A call: one communication, described once. Public functions fill it in; the guard hashes and records what ranks must
 * agree about, the engine makes and keeps a schedule for it. A record of it (wf_call_record) is what ranks compare. */
#ifndef WF_COMM_CALL_AUTHOR_H
#define WF_COMM_CALL_AUTHOR_H

#include "comm/comm.h"
#include "core/tensor.h"

typedef enum wf_operation {
    WF_CALL_BCAST = 0,      /* operand 0, read and written: count elements */
    WF_CALL_REDUCE,         /* input 0 to output 0 of the root */
    WF_CALL_ALLREDUCE,      /* input 0 to output 0 */
    WF_CALL_ALLGATHER,      /* input 0: count elements; output 0: ranks times as many */
    WF_CALL_REDUCE_SCATTER, /* inputs r to output 0: part[r] elements; frames as in WF_CALL_LISTS */
    WF_CALL_BARRIER,
    WF_CALL_SUM_SHARDS,    /* operand 0, read and written, in shards part[0..ranks] */
    WF_CALL_GATHER_SHARDS, /* the same operand */
    WF_CALL_SUM,           /* the same operand: a reducer's sum of gradients */
    /* Calls that are not alike on all ranks. */
    WF_CALL_LISTS, /* tensors between any two ranks: messages, gathers, scatters, all-to-alls. Input r to rank r, output
                      r from rank r: part[r] and part[ranks + r] bytes; -1: not even a frame. Input and output number
                      `ranks`: the frames, from the next rank on, and from the one before it on */
    WF_CALL_MEET,  /* a barrier of the `parts` ranks in `part`, by themselves */
    WF_CALL_RECEIVE, /* output 0: count bytes from rank `root`, without a frame */
    WF_CALLS,
    WF_CALL_EXCHANGE = WF_CALLS, /* boxes, by a plan: its schedule has a maker of its own (wf_build_exchange), and
                                    depends on the direction and strides, which are the `parts` words in `part` */
    WF_CALL_FUNCTION             /* of the background stream: its turn has come; nothing is sent */
} wf_operation;

/* A step that checks a frame; see wf_step_function (comm/engine/builder_author.h). */
typedef wf_status (*wf_call_check)(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes);

typedef struct wf_call {
    wf_operation operation;

    /* What all ranks must agree about; of those with lengths of their own not type and shape (has_equal_elements). */
    const char *name;    /* as the user typed it, for records and errors; NULL only where the guard is left out */
    const char *reducer; /* of WF_CALL_SUM: its name */
    wf_reduce_op op;
    wf_dtype dtype;
    int root;
    int64_t count;         /* elements, as above; of WF_CALL_SUM the last end */
    const wf_shape *shape; /* of the tensor that has them; NULL: `count` in a row */
    uint64_t plan;         /* of an exchange: who has and needs what, as a number; else 0 */

    /* What only this rank knows, or what follows from the above. */
    const int64_t *part; /* lengths, or ends of shards, as above; of WF_CALL_SUM the ends of segments, the first of
                            which need not be 0 */
    int parts;           /* WF_CALL_SUM: segments, of which `part` holds the parts + 1 ends; MEET, EXCHANGE: entries */
    int exact;           /* WF_CALL_SUM: how many of them, the last ones, a reducer must not round */
    uint64_t buffer;     /* WF_CALL_SUM: whose kept memory it is; 0: what is kept is zero in every sum */
    /* Calls with frames: checks each frame that arrives, with expected + r * expected_bytes for rank r. Schedules that
     * are kept hold this address: `expected` is the same memory in all calls of a communicator. */
    wf_call_check check;
    void *expected;
    size_t expected_bytes;

    /* In the queue of the background stream. */
    wf_comm *comm;               /* the program's */
    wf_status (*run)(void *out); /* WF_CALL_FUNCTION */

    /* Its memory: tensors, or vectors. In place: out is in. */
    const wf_tensor *x;
    wf_tensor *y;
    const void *in;
    void *out;
    bool device; /* tensors, or vectors in device memory; else memory of the host */
    bool same;   /* WF_CALL_LISTS: one tensor goes to all ranks */
} wf_call;

#endif
