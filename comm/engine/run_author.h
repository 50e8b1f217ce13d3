/* A run: one schedule in progress on this rank. The owner binds its operands to memory and advances it until it is
 * done; nothing here waits, and nothing is allocated once the run exists. Who else has to be looked at between two
 * advances (control messages, time-outs, other runs) is the owner's business. */
#ifndef WF_COMM_ENGINE_RUN_AUTHOR_H
#define WF_COMM_ENGINE_RUN_AUTHOR_H

#include "comm/engine/schedule_author.h"
#include "comm/recorder_author.h"
#include "comm/transport_author.h"

#include <stdatomic.h>

#define WF_FLAG_LINE                                                                                                   \
    128 /* bytes from one flag of a rank to its next, so that ranks do not disturb each other's caches */
typedef atomic_int_least64_t wf_ring_flag;

/* Runs a native step on the memory x and y. */
typedef wf_status (*wf_native_step)(void *own, wf_native_kind kind, wf_reduce_op op, int peer, const wf_strided *x,
                                    const wf_strided *y);

/* What it runs on is the owner's, who fills it in before the begin: NULL or 0 until then, and borrowed until the end.
 */
typedef struct wf_run {
    wf_ctx *ctx;
    const wf_schedule *schedule;

    const wf_link *link;
    const int32_t *world_rank; /* of each rank: the world's number, for messages; NULL: its own */
    void **data;               /* of each operand; the run has room for them */
    int tag;                   /* of its messages, and in the flags of slots */
    char *const *flags;        /* of each rank of this node, by rank: flag f is at f * WF_FLAG_LINE; NULL: no ring */
    int64_t ring_pieces;       /* of the ring, by earlier schedules */
    char *const *pair_flags;   /* by rank too: the flags of pairs, from WF_FLAGS on */
    const int64_t *pieces;     /* of the rings of pairs, by earlier schedules, by number; NULL: none */
    int64_t *seen;         /* of flag f of rank r, at r * WF_FLAGS + f: its value when last looked at; NULL: unknown */
    wf_native_step launch; /* runs native steps; NULL: messages of a group go by the link */
    void *launch_own;
    uint64_t shuffle;      /* simulation: a seed by which ready steps run in any order; 0: in order */
    int32_t steps_at_once; /* simulation: local steps in one advance; 0: all */

    /* How far it is. */
    int32_t *left;  /* of each step: what it still waits for */
    int32_t *ready; /* steps that wait for nothing, [head, tail) */
    int32_t head, tail;
    int32_t *awaiting; /* awaits that wait for nothing but their flag */
    int32_t awaits;
    int32_t *late; /* steps that wait for nothing but the owner's wait */
    int32_t lates;
    bool waiting;
    bool in_line;     /* `done` is also the next step */
    wf_event **event; /* of each fence */
    int32_t *fencing; /* fences that the device has not reached, the oldest first */
    int32_t fences;
    wf_transfer *message;             /* in the order in which they were begun */
    int32_t messages, landed, cursor; /* landed: all before this one are done */
    const void **in;
    int32_t done;
} wf_run;

/* A run of this schedule; both are borrowed. */
wf_run *wf_run_new(wf_ctx *ctx, const wf_schedule *schedule);
void wf_run_free(wf_run *run);

/* Begins, or begins again. Nothing moves before the first advance. in_line: the owner waits until it is done, so steps
 * may run one by one, where the schedule allows it. */
void wf_run_begin(wf_run *run, bool in_line);
/* The owner waits from now on: steps run that were left to that. */
void wf_run_wait(wf_run *run);
/* Does what can be done without waiting; *moved becomes true where something was. Of a run that is done: nothing. An
 * error ends the run: cancel it. */
wf_status wf_run_advance(wf_run *run, bool *moved) WF_NODISCARD;
static inline bool wf_run_done(const wf_run *run)
{
    return run->done == run->schedule->steps;
}
/* A rank that the run waits for: -1 if none. */
int wf_run_awaited(const wf_run *run);
/* The first step that is not done, in words; for reports (step_text.c). */
const char *wf_run_text(const wf_run *run, char text[WF_FAILURE_TEXT]);
/* Gives up what is in flight. False where memory could not be freed of it: then it must not be used again. */
bool wf_run_cancel(wf_run *run);

#endif
