/* The proof of schedules before anything is sent: that they are right, what they cost, what they do. It depends on the
 * engine, and nothing of comm depends on it, so a program that only communicates does not link it. Tests, wf-doctor and
 * authors of reducers call it, wf-plan asks for prices, and pipelines and models over several ranks verify their
 * schedules when these are made.
 *
 * The schedules of all ranks are given together, all[r] being that of rank r.
 */
#ifndef WF_COMM_PROOF_PROOF_AUTHOR_H
#define WF_COMM_PROOF_PROOF_AUTHOR_H

#include "comm/call_author.h"
#include "comm/engine/schedule_author.h"
#include "comm/recorder_author.h"

/* --- print.c --------------------------------------------------------------------------------------------------------
 */
/* The schedule of one rank, a line a step, by `line` (which gets `own`). */
void wf_schedule_print(const wf_schedule *schedule, void (*line)(void *own, const char *text), void *own);
/* "allreduce", and back; WF_CALLS where there is none such. */
const char *wf_call_name(wf_operation operation);
wf_operation wf_call_of_name(const char *name);

/* --- verify.c -------------------------------------------------------------------------------------------------------
 */
/* WF_OK where
 *   every send meets one receive of equal bytes, and every awaited flag is raised; the flag of a slot keeps its value
 *   until all who await it have seen it;
 *   no steps wait for each other in a circle, even if no message leaves before its receive is posted, or if the steps
 *   of schedules that allow it run one by one;
 *   nothing is read before it is written, and everything that is output is written;
 *   no two steps that may run at the same time touch the same bytes, unless both only read; what a device was told runs
 *   until a fence behind it is over;
 *   of up to 64 ranks that are said to synchronize, none ends before messages, or flags of slots, tell it that all
 *   others have begun.
 * Else WF_ERR_STATE, with the rank and the step in the message. Where the schedules allow it, outputs are also taken
 * for inputs. */
wf_status wf_schedule_verify(wf_ctx *ctx, const wf_schedule *const *all, int ranks) WF_NODISCARD;

/* --- price.c --------------------------------------------------------------------------------------------------------
 */
typedef struct wf_price_model {
    double alpha_s[2], beta_s[2]; /* of a message, of its byte: inside a node, between nodes */
    double gamma_s;               /* of a byte that is copied, or of one input of a combination */
} wf_price_model;
/* 1 us and 10 GB/s in a node, 25 us and 1 GB/s between nodes, 10 GB/s of local work. */
wf_price_model wf_price_model_default(void);

typedef struct wf_price {
    double seconds; /* until the last rank is done. A link carries one message at a time, in the order in which both
                       ends of it have begun */
    double messages_s, work_s;               /* of it, on the longest chain: in messages, in local steps */
    uint64_t bytes, messages, between_bytes; /* payload of all ranks; of it, between nodes */
} wf_price;
wf_status wf_schedule_price(wf_ctx *ctx, const wf_agreed *agreed, const wf_schedule *const *all,
                            const wf_price_model *model, wf_price *price) WF_NODISCARD;

/* The price of a call (comm/engine/collectives_author.h) by representatives: where every node has as many ranks as the
 * others, in the order of nodes, and the call treats all nodes alike, the ranks of equal place in their nodes do the
 * same at the same time. So the schedules of the first node's ranks are made alone, and a message between two nodes
 * meets the one at the same distance; the cost is that of one node's steps, for any number of nodes. Where lengths do
 * not divide evenly among the nodes, every node counts as the first one. WF_ERR_STATE for a call that has a root, or
 * is otherwise not the same on every node, WF_ERR_ARGUMENT for other nodes. Local. */
struct wf_call;
wf_status wf_call_price(wf_ctx *ctx, const wf_agreed *agreed, const struct wf_call *call, const wf_price_model *model,
                        wf_price *price) WF_NODISCARD;

/* --- simulate.c -----------------------------------------------------------------------------------------------------
 */
typedef struct wf_simulation {
    uint64_t seed;    /* of delays and orders; not 0 */
    int most_delay;   /* of a message, in turns; 0: none */
    bool in_place;    /* output i is input i, where the schedule allows it */
    bool in_line;     /* steps run one by one, where it allows that */
    int failing_rank; /* fails when it has done `failing_step` steps; -1: none */
    int32_t failing_step;
    bool silently; /* it tells no rank, as when it is killed: a rank that waits for it notices when none can go on */
    /* Gives operands of kinds input and both their contents, and looks at outputs and boths in the end. */
    void (*fill)(void *own, int rank, const wf_operand *operand, void *data);
    void (*check)(void *own, int rank, const wf_operand *operand, const void *data);
    void *own;
    wf_status *ended; /* how each rank ended; NULL: not asked for */
} wf_simulation;

/* Runs all ranks in this process, by the engine itself, over a fake transport. WF_OK where all ranks came to their end;
 * WF_ERR_TIMEOUT where none can go on, naming a rank and its step. With a failing rank: WF_OK where every other rank
 * came to its end or to the failing rank's error. Of one that fails silently none knows but by wf_run_awaited: where
 * all that cannot go on wait for others, the result is WF_ERR_TIMEOUT. */
wf_status wf_schedule_simulate(wf_ctx *ctx, const wf_schedule *const *all, int ranks,
                               const wf_simulation *simulation) WF_NODISCARD;

/* --- graph.c: for the two above -------------------------------------------------------------------------------------
 */
/* All steps of all ranks as one graph of events. Step i of rank r is number first[r] + i; event 2 n is that step n
 * begins, 2 n + 1 that it is over. */
typedef struct wf_schedule_graph {
    const wf_schedule *const *all;
    const wf_agreed *folded; /* NULL: of all ranks; else `all` are those of the first of equal nodes, for all nodes */
    bool in_line;            /* a step begins after the one before it, in schedules that allow that */
    int ranks;               /* of `all` */
    int64_t *first;          /* ranks + 1 entries */
    int32_t *rank;           /* of each step */
    int64_t *match;  /* of a message: its other end; of an await: the notification that raises the flag far enough, or
                        -1 */
    int64_t *order;  /* events in an order in which all can happen */
    int64_t *raised; /* of a notification: the first await that it serves; of an await: the next one; -1 */
} wf_schedule_graph;

static inline const wf_step *wf_graph_step(const wf_schedule_graph *g, int64_t step)
{
    return &g->all[g->rank[step]]->step[step - g->first[g->rank[step]]];
}

/* WF_ERR_STATE where ends of messages do not meet, or events wait for each other in a circle. */
wf_status wf_graph_make(wf_ctx *ctx, const wf_schedule *const *all, int ranks, wf_schedule_graph *graph) WF_NODISCARD;
wf_status wf_graph_make_in_line(wf_ctx *ctx, const wf_schedule *const *all, int ranks,
                                wf_schedule_graph *graph) WF_NODISCARD;
wf_status wf_graph_make_folded(wf_ctx *ctx, const wf_agreed *agreed, const wf_schedule *const *all,
                               wf_schedule_graph *graph) WF_NODISCARD;
void wf_graph_clear(wf_schedule_graph *graph);
/* How many times an event is released before it can happen; and the events that one releases when it happens. */
int32_t wf_graph_awaited(const wf_schedule_graph *g, int64_t event);
void wf_graph_happen(const wf_schedule_graph *g, int64_t event, void (*release)(void *own, int64_t event), void *own);
/* "rank 2, step 7 (send ...)" */
const char *wf_graph_text(const wf_schedule_graph *g, int64_t step, char text[WF_FAILURE_TEXT]);

#endif
