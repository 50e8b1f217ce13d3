/* The builder of schedules, for authors of reducers and of collectives: functions that add steps, one after the other,
 * of what one rank does (comm/engine/schedule_author.h says what a schedule is). A step names memory by its operand and
 * the place in it, and waits for the steps that wf_after named; steps that do not wait for each other may run at the
 * same time or in any order. */
#ifndef WF_COMM_ENGINE_BUILDER_AUTHOR_H
#define WF_COMM_ENGINE_BUILDER_AUTHOR_H

#include "comm/comm.h"
#include "comm/engine/agreed_author.h"
#include "core/status_author.h"

typedef enum wf_operand_kind {
    WF_OPERAND_INPUT = 0, /* the caller's, read only */
    WF_OPERAND_OUTPUT,    /* the caller's; may be the input of the same index where the schedule says `in_place` */
    WF_OPERAND_BOTH,      /* the caller's, read and written */
    WF_OPERAND_SCRATCH,   /* the engine's; undefined at first */
    WF_OPERAND_DEVICE,    /* the engine's; undefined at first; in memory of the device */
    WF_OPERAND_TOKEN,     /* the engine's; what is in it does not matter, so it may be sent as it is */
    WF_OPERAND_KEPT,      /* the engine's; zero at first, and then as the last run of this schedule left it */
    WF_OPERAND_SHARED /* slot `index` of the node's ring, in the memory of rank `owner`; from WF_RING_SLOTS on: of the
                         ring from `owner` to the rank of place index / WF_RING_SLOTS - 1 */
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

#define WF_FLAGS     3  /* of a rank, for the ring of its node */
#define WF_FLAG_SLOT 0  /* of these, the one that each slot has for itself, in front of it */
#define WF_SLOT_HEAD 56 /* bytes of a slot that lie in one cache line with its flag */

#define WF_NOWHERE   ((wf_address){.operand = -1})

static inline wf_address wf_address_add(wf_address base, size_t bytes)
{
    base.at += bytes;
    return base;
}

/* A local function of a schedule: reads `from_bytes`, writes `to_bytes`. `own` is whatever the schedule's maker gave;
 * it must not wait. */
typedef wf_status (*wf_step_function)(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes);

typedef struct wf_step_call {
    wf_step_function run;
    void *own;
    size_t from_bytes;
    double seconds; /* what it costs, for a price: besides its bytes */
} wf_step_call;

/* One end of a copy, pack, unpack or fill: a box of an operand that holds `held`; elements are of the step's type. The
 * other end is the source of the box (wf_piece.step): of the same shape but one element where the step is 0. */
typedef struct wf_step_box {
    wf_box held, box;
    int64_t stride[WF_MAX_RANK]; /* of the operand's elements */
    int8_t step[WF_MAX_RANK]; /* how the box runs through the elements of the other end: 1 in order, -1 back, 0 one */
    wf_order order;           /* of the elements of a dense source */
} wf_step_box;

/* The shape of the source. */
wf_shape wf_step_box_source(const wf_step_box *box);

/* --- the builder ----------------------------------------------------------------------------------------------------
 *
 * Steps are added one after the other. Running out of memory is remembered, and wf_builder_end says so; so callers
 * check nothing on the way. */

/* Consecutive steps [first, last): a long message is cut into several. */
typedef struct wf_steps {
    int32_t first, last;
} wf_steps;

typedef struct wf_builder wf_builder;

const wf_agreed *wf_builder_agreed(const wf_builder *b);
int wf_builder_rank(const wf_builder *b);
/* Output i may be input i. */
void wf_builder_in_place(wf_builder *b);

/* Operands of kinds input, output and both are found by kind and index, so that asking twice gives the same; scratch
 * and tokens are new ones at each call. */
wf_address wf_builder_operand(wf_builder *b, wf_operand_kind kind, int index, size_t bytes);
wf_address wf_builder_scratch(wf_builder *b, size_t bytes);
wf_address wf_builder_device(wf_builder *b, size_t bytes);
/* For reducers that say so (wf_reducer.keeps): memory for one buffer of gradients, from sum to sum. */
wf_address wf_builder_kept(wf_builder *b, size_t bytes);
/* A slot of the node's ring in the memory of a rank of this node: WF_SLOT_HEAD bytes, and a piece from the next cache
 * line on. */
wf_address wf_builder_shared(wf_builder *b, int owner, int64_t piece);
/* A slot of the ring of two ranks of this node, for a part that passes from one to the other. */
wf_address wf_builder_pair_slot(wf_builder *b, int from, int to, int64_t part);

/* The next steps that are added wait for these (all that is asked before them). */
void wf_after(wf_builder *b, wf_steps steps);
/* No message of what follows is longer than this; 0: the agreed chunk limit alone. */
void wf_builder_cut(wf_builder *b, size_t most_bytes);
/* Runs the ready steps in the order in which they were added. */
void wf_builder_in_order(wf_builder *b);
/* Says that no member of the group ends the steps that are added before a message, a slot flag or a chain of these has
 * come from every other member. If the group has all ranks, this proves that all have made the call, and the guard does
 * not ask. */
void wf_builder_synchronizes(wf_builder *b, const wf_group *g);
/* Runs the next step that is added only in the wait of the caller, which uses the memory until then. */
void wf_builder_at_wait(wf_builder *b);

/* Each adds its steps and returns them; nothing for 0 bytes. */
wf_steps wf_add_send(wf_builder *b, wf_address from, size_t bytes, int to);
wf_steps wf_add_recv(wf_builder *b, wf_address to, size_t bytes, int from);
/* Sends a frame of types and shapes, which is not counted as payload. */
wf_steps wf_add_send_frame(wf_builder *b, wf_address from, size_t bytes, int to);
/* in[0..inputs); also may be WF_NOWHERE. */
wf_steps wf_add_combine(wf_builder *b, wf_reduce_op op, wf_dtype dtype, int inputs, const wf_address *in, wf_address to,
                        wf_address also, int64_t count);
wf_steps wf_add_copy(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool counted);
/* `negate`: the elements change their sign. Elements of a box that have one source are added up for it. */
wf_steps wf_add_pack(wf_builder *b, wf_address from, wf_step_box box, wf_dtype dtype, wf_address to, bool negate);
wf_steps wf_add_unpack(wf_builder *b, wf_address from, wf_step_box box, wf_dtype dtype, wf_address to, bool adds);
wf_steps wf_add_copy_box(wf_builder *b, wf_address from, wf_step_box out, wf_dtype dtype, wf_address to, wf_step_box in,
                         bool adds);
/* Every element of the box becomes the value. */
wf_steps wf_add_fill(wf_builder *b, wf_step_box box, wf_dtype dtype, wf_address to, double value);
wf_steps wf_add_stage(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool to_host);
/* Enqueues the copy on the device without waiting for it, and does not count it as copied; a fence must follow. */
wf_steps wf_add_stage_begin(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool to_host);
/* Ends when the device has done all work that was enqueued before. */
wf_steps wf_add_fence(wf_builder *b);
/* Runs after the earlier notifications of this flag, so that a flag only grows. Ring 0 is that of the node, with the
 * flags below WF_FLAGS except WF_FLAG_SLOT; in the ring of a pair (wf_ring_to, wf_flag_posted and others) each
 * notification is of one part more. */
wf_steps wf_add_ring_notify(wf_builder *b, int32_t ring, int flag, int64_t value);
/* Runs after the earlier awaits of this flag of this rank, whose values are lower. */
wf_steps wf_add_ring_await(wf_builder *b, int rank, int32_t ring, int flag, int64_t value);
/* Like the flags of a ring, for one slot. The value also holds the tag of the call, so a rank in another call keeps
 * waiting. All readers of a slot must have seen a value before the next one is written. */
wf_steps wf_add_slot_notify(wf_builder *b, wf_address slot, int64_t value);
wf_steps wf_add_slot_await(wf_builder *b, int rank, wf_address slot, int64_t value);
static inline wf_steps wf_add_notify(wf_builder *b, int flag, int64_t value)
{
    return wf_add_ring_notify(b, 0, flag, value);
}
static inline wf_steps wf_add_await(wf_builder *b, int rank, int flag, int64_t value)
{
    return wf_add_ring_await(b, rank, 0, flag, value);
}
wf_steps wf_add_call(wf_builder *b, wf_step_call call, wf_address from, wf_address to, size_t to_bytes);
/* Orders all steps since the last phase before all that follow. */
void wf_builder_phase(wf_builder *b);

/* The ring's pieces used so far; and now `pieces` more. */
int64_t wf_builder_ring(wf_builder *b, int64_t pieces);
/* This rank's own last use of its slot for a piece: nothing if there was none. What comes into the slot next waits for
 * it, as it awaits the other ranks' use. */
wf_steps wf_builder_slot_user(const wf_builder *b, int64_t piece);
void wf_builder_slot_used(wf_builder *b, int64_t piece, wf_steps last);
/* Payload that passes through slots, as one message. */
void wf_builder_count_passed(wf_builder *b, size_t bytes);
/* Bytes that wf_traffic counts as copied, besides those of steps. */
void wf_builder_count_copied(wf_builder *b, size_t bytes);
/* Zeroed memory until the end of the builder; NULL where there is none, which the end says. */
void *wf_builder_room(wf_builder *b, size_t bytes);

#endif
