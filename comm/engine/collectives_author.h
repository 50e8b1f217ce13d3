/* The algorithms: each adds to a schedule what one rank does in a collective among the members of a group. Pure
 * functions of the builder's agreed configuration and rank, of the group and of the arguments; the time is that of the
 * steps they add. A rank that is not in the group adds nothing. `root` is a member of the group, not a rank.
 *
 * Sums go in the order of members, so they have the same bits on all of them; 16-bit types are summed in f32 and
 * rounded once.
 */
#ifndef WF_COMM_ENGINE_COLLECTIVES_AUTHOR_H
#define WF_COMM_ENGINE_COLLECTIVES_AUTHOR_H

#include "comm/engine/schedule_author.h"

/* --- build_spread.c: what is only moved -----------------------------------------------------------------------------
 */
/* A binomial tree; more than one piece goes along the chain of members, each of which passes on a piece while the next
 * one arrives. */
void wf_build_bcast(wf_builder *b, const wf_group *group, wf_address data, size_t bytes, int root);
/* `all` gets the members' blocks of equal length in their order; `mine` may be this member's block in it. Short ones in
 * ceil(log2 P) steps (Bruck), long ones from everybody to everybody. */
void wf_build_allgather(wf_builder *b, const wf_group *group, wf_address mine, size_t bytes, wf_address all);
/* In place: member m has elements [shard[m], shard[m + 1]) of the vector, and all get all. */
void wf_build_gather_shards(wf_builder *b, const wf_group *group, wf_address data, const int64_t *shard, size_t size);
void wf_build_barrier(wf_builder *b, const wf_group *group);
/* The short all-gather without the last copy: slot j gets what member place + j has. */
wf_steps wf_build_bruck(wf_builder *b, const wf_group *group, wf_address mine, size_t bytes, wf_address slot);

/* --- build_reduce.c -------------------------------------------------------------------------------------------------
 */
/* y is the reduction of the members' x, on the root or everywhere (root -1); elsewhere y is not used. Short vectors go
 * to everybody who wants the result; long ones in pieces of one block a member, which combines it and sends it on. */
void wf_build_reduce(wf_builder *b, const wf_group *group, wf_address x, wf_address y, int64_t count, wf_dtype dtype,
                     wf_reduce_op op, int root);
/* In place: elements [shard[m], shard[m + 1]) are summed on member m; the rest of the vector is left as it is. */
void wf_build_sum_shards(wf_builder *b, const wf_group *group, wf_address data, const int64_t *shard, wf_dtype dtype);

/* --- build_node.c: through the ring that the ranks of this node share -----------------------------------------------
 */
/* As wf_build_reduce and wf_build_bcast, among the ranks of this node; the root is a place in it. */
void wf_build_node_reduce(wf_builder *b, wf_address x, wf_address y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                          int root);
void wf_build_node_bcast(wf_builder *b, wf_address data, size_t bytes, int root);

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
/* The plan's boxes: input 0 holds box `have`, output 0 box `need`, both dense in `order`; reversed, input 0 holds
 * `need` and what comes is added to output 0, in the order of peers. `own`: also what this rank has itself. */
struct wf_plan;
typedef struct wf_exchange_shape {
    const struct wf_plan *plan;
    wf_box have, need;
    wf_dtype dtype;
    wf_order order;
    bool reversed, own;
} wf_exchange_shape;
void wf_build_exchange(wf_builder *b, const wf_group *group, const wf_exchange_shape *shape);

/* --- build_call.c: whole calls, by name -----------------------------------------------------------------------------
 */
typedef enum wf_operation {
    WF_CALL_BCAST = 0,      /* both 0: count elements */
    WF_CALL_REDUCE,         /* input 0 to output 0 of the root */
    WF_CALL_ALLREDUCE,      /* input 0 to output 0 */
    WF_CALL_ALLGATHER,      /* input 0: count elements; output 0: ranks times as many */
    WF_CALL_GATHER,         /* input 0 to outputs r of the root: part[r] elements */
    WF_CALL_SCATTER,        /* inputs r of the root to output 0 */
    WF_CALL_ALLTOALL,       /* inputs r to outputs r: count elements each */
    WF_CALL_REDUCE_SCATTER, /* inputs r to output 0: part[r] elements */
    WF_CALL_BARRIER,
    WF_CALL_SUM_SHARDS,    /* both 0, in shards part[0..ranks] */
    WF_CALL_GATHER_SHARDS, /* likewise */
    WF_CALL_SEND,          /* input 0 of rank `root` to output 0 of rank `other` */
    WF_CALL_SUM,           /* both 0: a reducer's sum of gradients */
    /* What this rank alone knows of a call. */
    WF_CALL_LISTS, /* input r to rank r, output r from rank r: part[r] and part[ranks + r] bytes; -1: not even a frame.
                      Input and output number `ranks`: the frames, from the next rank on, and from the one before it on
                    */
    WF_CALL_MEET,  /* a barrier of the `parts` ranks in `part`, by themselves */
    WF_CALL_RECEIVE, /* output 0: count bytes from rank `root`, without a frame */
    WF_CALLS
} wf_operation;

/* One call, as every rank makes it. */
typedef struct wf_call {
    wf_operation operation;
    const char *reducer; /* of WF_CALL_SUM: its name */
    wf_reduce_op op;
    wf_dtype dtype;
    int root, other;
    int64_t count;
    const int64_t *part; /* lengths, or ends of shards, as above */
    int parts;           /* WF_CALL_SUM: segments; part has one entry more, the ends */
    /* Of calls with frames: looks at each that comes; its first argument is expected + r * expected_bytes for rank r.
     */
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
