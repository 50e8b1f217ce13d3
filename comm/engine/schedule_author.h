/* Schedules: what one rank does in one communication, as data.
 *
 * A schedule is a list of steps; each names the earlier steps of this rank that it waits for, and steps that do not
 * wait for each other may run at the same time or in any order. Its memory is symbolic: a step reads and writes
 * addresses in operands (the caller's input and output, scratch, memory that the ranks of a node share), which get real
 * memory when the schedule is posted. A schedule never names a transport, a pointer or a file descriptor, so one
 * process can make the schedules of all ranks and print, price, verify and simulate them (comm/proof/proof_author.h).
 *
 * The functions of comm/engine/collectives_author.h make schedules with the builder below; comm/engine/run_author.h
 * runs them.
 *
 * Messages between two ranks match in the order of the schedule: the first send of rank 0 to rank 1 meets the first
 * receive of rank 1 from rank 0. A message is posted only after the previous one of its pair and direction. */
#ifndef WF_COMM_ENGINE_SCHEDULE_AUTHOR_H
#define WF_COMM_ENGINE_SCHEDULE_AUTHOR_H

#include "comm/engine/builder_author.h"
#include "comm/recorder_author.h"
#include "comm/transport_author.h"

typedef enum wf_step_kind {
    WF_STEP_SEND = 0, /* `bytes` of `from` to `peer` */
    WF_STEP_RECV,     /* `bytes` from `peer` into `to` */
    WF_STEP_COMBINE,  /* `to`, and `also` if it is somewhere, get the reduction of the inputs in their order */
    WF_STEP_COPY,     /* `bytes` of `from` into `to`; with boxes, box[list] of one into box[list + 1] of the other */
    WF_STEP_PACK,     /* the box of the strided operand `from` into the dense `to` */
    WF_STEP_UNPACK,   /* the dense `from` into the box of the strided operand `to`; adds where the flag says so */
    WF_STEP_FILL,     /* the box of the strided operand `to` gets the number whose bits are `value` */
    WF_STEP_STAGE,    /* `bytes` of `from` into `to`, of which one is in device memory */
    WF_STEP_NOTIFY,   /* this rank's flag `flag` becomes `value`: of the slot `to`, or where that is nowhere, of all */
    WF_STEP_AWAIT,    /* waits until flag `flag` of rank `peer` of the node is at least `value`, of a slot just that */
    WF_STEP_CALL,     /* a local function; without one it only joins the steps that it waits for */
    WF_STEP_NATIVE,   /* a wf_native_kind, of `value` elements of `from` and `to`: the transport goes on by itself */
    WF_STEP_FENCE,    /* over when the device has done all that it was given before */
    WF_STEP_KINDS
} wf_step_kind;

enum {
    WF_STEP_UNCOUNTED = 1, /* a message that is not payload: types and shapes */
    WF_STEP_ADDS = 2,      /* unpack, or copy with boxes: adds to what is there */
    WF_STEP_TO_HOST = 4,   /* stage: `from` is in device memory; else `to` is */
    WF_STEP_STAGED = 8,    /* a copy that wf_traffic counts as copied on the way */
    WF_STEP_AT_WAIT = 16,  /* runs in the owner's wait alone */
    WF_STEP_BEGUN = 32,    /* stage: is over once the device was told */
    WF_STEP_NEGATES = 64,  /* pack: with the sign changed */
    WF_STEP_GROUPED = 128  /* a message that is a call of a group of the native transport */
};

typedef struct wf_step {
    uint8_t kind, op, dtype, flags;
    uint8_t to_dtype; /* native: of `to` */
    int32_t peer;
    int32_t wait, waits;  /* it waits for schedule->wait[wait .. wait + waits) */
    int32_t before;       /* the message of this pair and direction that is posted before it; -1: none */
    int32_t list, inputs; /* combine: schedule->input[list ...]; pack, unpack, fill: ->box[list]; call: ->call[list];
                             native: its wf_native_kind; fence: its number; else -1 */
    int32_t flag;
    int32_t ring; /* notify, await: whose pieces `value` counts, 0: the node's; else a pair's */
    wf_address from, to, also;
    size_t bytes; /* of `to` in a call */
    int64_t value;
} wf_step;

static inline bool wf_step_is_message(const wf_step *step)
{
    return step->kind == WF_STEP_SEND || step->kind == WF_STEP_RECV;
}

typedef struct wf_schedule {
    int rank, ranks;
    int32_t steps, operands;
    wf_step *step;
    wf_operand *operand;
    int32_t *wait;
    wf_address *input;
    wf_step_box *box;
    wf_step_call *call;
    /* The steps that wait for step i: follower[first_follower[i] .. first_follower[i + 1]); and the message that is
     * posted after it: next[i], -1 if there is none. */
    int32_t *first_follower, *follower, *next;
    int64_t ring_pieces; /* of the node's ring that the schedule uses */
    int32_t *pieces;     /* the same of the rings of pairs, by number; entry 0 is not used */
    int32_t rings;       /* of them */
    int32_t fences;
    bool device;       /* arrays and slots are in device memory: boxes move when the device comes to it */
    bool in_place;     /* output i may be input i */
    bool in_order;     /* the first of the ready steps runs first */
    bool synchronizes; /* no rank ends it before messages, or flags of slots, tell it that all have begun */
    bool in_line;      /* steps are local, or await flags: they can run one by one in the order of the list */
    /* Payload that this rank sends, and what wf_traffic counts as copied. */
    uint64_t bytes_sent, messages, bytes_copied;
} wf_schedule;

/* The rings of this rank with the one of place `place` in the node: what goes there, and what comes. */
static inline int32_t wf_ring_to(int place)
{
    return 1 + 2 * place;
}
static inline int32_t wf_ring_from(int place)
{
    return 2 + 2 * place;
}
/* Their flags: how many parts went to a place; how many that came from it were taken. */
static inline int32_t wf_flag_posted(int place)
{
    return WF_FLAGS + 2 * place;
}
static inline int32_t wf_flag_taken(int place)
{
    return WF_FLAGS + 2 * place + 1;
}

void wf_schedule_free(wf_schedule *schedule);
/* Finds out who follows whom, from the steps and their waits: again where these were changed by hand. */
wf_status wf_schedule_link(wf_ctx *ctx, wf_schedule *schedule) WF_NODISCARD;

/* --- step_text.c --- */

/* "send 4096 bytes of input 0 + 128 to rank 3", into text, which is returned. world_rank: see wf_rank_listed. */
const char *wf_step_text(const wf_schedule *schedule, int32_t step, const int32_t *world_rank,
                         char text[WF_FAILURE_TEXT]);

/* --- making one: the steps are added by comm/engine/builder_author.h --- */

/* Adds a native step on device memory x and y; `step` has its list, op, types, peer and value. It is over once it is on
 * the transport's stream. After WF_NATIVE_GROUP, messages are calls of that group up to the next native step, and
 * counted by the transport. */
wf_steps wf_add_native(wf_builder *b, wf_step step, wf_address x, wf_address y);
/* The agreed configuration is borrowed until the end. */
wf_builder *wf_builder_new(wf_ctx *ctx, const wf_agreed *agreed, int rank);
/* The schedule, which the caller frees; the builder is gone in any case. */
wf_status wf_builder_end(wf_builder *b, wf_schedule **schedule) WF_NODISCARD;

#endif
