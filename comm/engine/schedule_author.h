/* Schedules: what one rank does in one communication, as data.
 *
 * A schedule is a list of steps; each names the earlier steps of this rank that it waits for, and steps that do not
 * wait for each other may run at the same time or in any order. Its memory is symbolic: a step reads and writes
 * addresses in operands (the caller's input and output, scratch, memory that the ranks of a node share), which get real
 * memory when the schedule is posted. A schedule never names a transport, a pointer or a file descriptor, so one
 * process can make the schedules of all ranks and print, price, verify and simulate them (comm/engine/proof_author.h).
 *
 * The functions of comm/engine/collectives_author.h make schedules with the builder below; comm/engine/run_author.h
 * runs them.
 *
 * Messages between two ranks match in the order of the schedule: the first send of rank 0 to rank 1 meets the first
 * receive of rank 1 from rank 0. A message is posted only after the previous one of its pair and direction.
 */
#ifndef WF_COMM_ENGINE_SCHEDULE_AUTHOR_H
#define WF_COMM_ENGINE_SCHEDULE_AUTHOR_H

#include "comm/comm.h"
#include "comm/engine/agreed_author.h"
#include "core/context_author.h"
#include "core/status_author.h"

typedef enum wf_operand_kind {
    WF_OPERAND_INPUT = 0, /* the caller's, read only */
    WF_OPERAND_OUTPUT,    /* the caller's; may be the input of the same index where the schedule says `in_place` */
    WF_OPERAND_BOTH,      /* the caller's, read and written */
    WF_OPERAND_SCRATCH,   /* the engine's; undefined at first */
    WF_OPERAND_TOKEN,     /* the engine's; what is in it does not matter, so it may be sent as it is */
    WF_OPERAND_SHARED     /* slot `index` of the node's ring, in the memory of rank `owner` */
} wf_operand_kind;

typedef struct wf_operand {
    wf_operand_kind kind;
    int owner, index;
    size_t bytes;
} wf_operand;

/* Byte `at` of operand number `operand`; operand -1: nowhere. */
typedef struct wf_address {
    int32_t operand;
    size_t at;
} wf_address;

#define WF_FLAGS   3 /* of a rank, for the ring of its node */

#define WF_NOWHERE ((wf_address){.operand = -1})

static inline wf_address wf_address_add(wf_address base, size_t bytes)
{
    base.at += bytes;
    return base;
}

typedef enum wf_step_kind {
    WF_STEP_SEND = 0, /* `bytes` of `from` to `peer` */
    WF_STEP_RECV,     /* `bytes` from `peer` into `to` */
    WF_STEP_COMBINE,  /* `to`, and `also` if it is somewhere, get the reduction of the inputs in their order */
    WF_STEP_COPY,     /* `bytes` of `from` into `to`; with boxes, box[list] of one into box[list + 1] of the other */
    WF_STEP_PACK,     /* the box of the strided operand `from` into the dense `to` */
    WF_STEP_UNPACK,   /* the dense `from` into the box of the strided operand `to`; adds where the flag says so */
    WF_STEP_STAGE,    /* `bytes` of `from` into `to`, of which one is in device memory */
    WF_STEP_NOTIFY,   /* this rank's flag `flag` becomes `value` */
    WF_STEP_AWAIT,    /* waits until flag `flag` of rank `peer` of the node is at least `value` */
    WF_STEP_CALL,     /* a local function; without one it only joins the steps that it waits for */
    WF_STEP_KINDS
} wf_step_kind;

enum {
    WF_STEP_UNCOUNTED = 1, /* a message that is not payload: types and shapes */
    WF_STEP_ADDS = 2,      /* unpack, or copy with boxes: adds to what is there */
    WF_STEP_TO_HOST = 4,   /* stage: `from` is in device memory; else `to` is */
    WF_STEP_STAGED = 8     /* a copy that wf_traffic counts as copied on the way */
};

/* A local function of a schedule: reads `from_bytes`, writes `to_bytes`. `own` is whatever the schedule's maker gave;
 * it must not wait. */
typedef wf_status (*wf_step_function)(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes);

typedef struct wf_step_call {
    wf_step_function run;
    void *own;
    size_t from_bytes;
} wf_step_call;

/* What pack and unpack move: a box of an operand that holds `held`; elements are of the step's type. */
typedef struct wf_step_box {
    wf_box held, box;
    wf_order order; /* of the elements of a dense box */
} wf_step_box;

typedef struct wf_step {
    uint8_t kind, op, dtype, flags;
    int32_t peer;
    int32_t wait, waits; /* it waits for schedule->wait[wait .. wait + waits) */
    int32_t before;      /* the message of this pair and direction that is posted before it; -1: none */
    int32_t list,
        inputs; /* combine: schedule->input[list ...]; pack, unpack: ->box[list]; call: ->call[list]; else -1 */
    int32_t flag;
    wf_address from, to, also;
    size_t bytes; /* of `to` in a call */
    int64_t value;
} wf_step;

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
    bool in_place;       /* output i may be input i */
    /* Payload that this rank sends, and what wf_traffic counts as copied. */
    uint64_t bytes_sent, messages, bytes_copied;
} wf_schedule;

void wf_schedule_free(wf_schedule *schedule);
/* Finds out who follows whom, from the steps and their waits: again where these were changed by hand. */
wf_status wf_schedule_link(wf_ctx *ctx, wf_schedule *schedule) WF_NODISCARD;

/* --- the builder ----------------------------------------------------------------------------------------------------
 *
 * Steps are added one after the other. Running out of memory is remembered, and wf_builder_end says so; so callers
 * check nothing on the way. */

/* Consecutive steps [first, last): a long message is cut into several. */
typedef struct wf_steps {
    int32_t first, last;
} wf_steps;

typedef struct wf_builder wf_builder;

/* The agreed configuration is borrowed until the end. */
wf_builder *wf_builder_new(wf_ctx *ctx, const wf_agreed *agreed, int rank);
/* The schedule, which the caller frees; the builder is gone in any case. */
wf_status wf_builder_end(wf_builder *b, wf_schedule **schedule) WF_NODISCARD;

const wf_agreed *wf_builder_agreed(const wf_builder *b);
int wf_builder_rank(const wf_builder *b);
/* Output i may be input i. */
void wf_builder_in_place(wf_builder *b);

/* Operands of kinds input, output and both are found by kind and index, so that asking twice gives the same; scratch
 * and tokens are new ones at each call. */
wf_address wf_builder_operand(wf_builder *b, wf_operand_kind kind, int index, size_t bytes);
wf_address wf_builder_scratch(wf_builder *b, size_t bytes);
/* A slot of the node's ring in the memory of a rank of this node. */
wf_address wf_builder_shared(wf_builder *b, int owner, int64_t piece);

/* The next steps that are added wait for these (all that is asked before them). */
void wf_after(wf_builder *b, wf_steps steps);
/* No message of what follows is longer than this; 0: the agreed chunk limit alone. */
void wf_builder_cut(wf_builder *b, size_t most_bytes);

/* Each adds its steps and returns them; nothing for 0 bytes. */
wf_steps wf_add_send(wf_builder *b, wf_address from, size_t bytes, int to);
wf_steps wf_add_recv(wf_builder *b, wf_address to, size_t bytes, int from);
/* Of types and shapes: not counted as payload. */
wf_steps wf_add_send_frame(wf_builder *b, wf_address from, size_t bytes, int to);
/* in[0..inputs); also may be WF_NOWHERE. */
wf_steps wf_add_combine(wf_builder *b, wf_reduce_op op, wf_dtype dtype, int inputs, const wf_address *in, wf_address to,
                        wf_address also, int64_t count);
wf_steps wf_add_copy(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool counted);
wf_steps wf_add_pack(wf_builder *b, wf_address from, wf_step_box box, wf_dtype dtype, wf_address to);
wf_steps wf_add_unpack(wf_builder *b, wf_address from, wf_step_box box, wf_dtype dtype, wf_address to, bool adds);
wf_steps wf_add_copy_box(wf_builder *b, wf_address from, wf_step_box out, wf_dtype dtype, wf_address to, wf_step_box in,
                         bool adds);
wf_steps wf_add_stage(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool to_host);
/* Behind the earlier notifications of this flag, so that a flag only grows. flag: 0 to WF_FLAGS - 1. */
wf_steps wf_add_notify(wf_builder *b, int flag, int64_t value);
wf_steps wf_add_await(wf_builder *b, int rank, int flag, int64_t value);
wf_steps wf_add_call(wf_builder *b, wf_step_call call, wf_address from, wf_address to, size_t to_bytes);
/* All that was added since the last phase is over before what follows begins. */
void wf_builder_phase(wf_builder *b);

/* The ring's pieces used so far; and now `pieces` more. */
int64_t wf_builder_ring(wf_builder *b, int64_t pieces);
/* This rank's own last use of its slot for a piece: nothing if there was none. What comes into the slot next waits for
 * it, as it awaits the other ranks' use. */
wf_steps wf_builder_slot_user(const wf_builder *b, int64_t piece);
void wf_builder_slot_used(wf_builder *b, int64_t piece, wf_steps last);
/* Bytes that wf_traffic counts as copied, besides those of steps. */
void wf_builder_count_copied(wf_builder *b, size_t bytes);
/* Zeroed memory until the end of the builder; NULL where there is none, which the end says. */
void *wf_builder_room(wf_builder *b, size_t bytes);

#endif
