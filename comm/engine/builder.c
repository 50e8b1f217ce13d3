/* The builder of schedules: lists that grow, steps that wait for what wf_after named, and at the end the reverse of the
 * waiting (who follows whom), which is what a run needs. It never looks at other ranks. */
#include "comm/engine/schedule_author.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A growing array of elements of one size. */
typedef struct list {
    void *data;
    size_t size;
    int32_t count;
    int64_t room;
} list;

struct wf_builder {
    wf_ctx *ctx;
    const wf_agreed *agreed;
    wf_schedule *schedule; /* the rest of it is filled in at the end */
    int rank;
    bool failed;
    uint8_t flags, grouped; /* of the next step; of messages, which may be in a native group */
    size_t most_bytes;
    list step, operand, wait, input, box, call, pending;
    list known[WF_OPERAND_SHARED + 1]; /* operands by kind and number */
    int32_t phase_first;               /* the steps of this phase begin here */
    int32_t phase_join;                /* what they wait for; -1: nothing */
    list notified;                     /* the last notification of each flag, and 1 */
    list awaited;                      /* the last await of each flag of each rank of the node, and 1 */
    list passed;                       /* parts so far in the rings of pairs, by number */
    wf_steps user[WF_RING_SLOTS];
    struct room *room;
};

/* Memory of the function that builds, freed at the end; max_align_t keeps what follows aligned for any type. */
struct room {
    struct room *next;
    max_align_t data[];
};

/* After the first failure every call does nothing; wf_builder_end reports it once, so that builders need no checks. */
static void *grow(wf_builder *b, list *l, int32_t more)
{
    if (b->failed)
        return NULL;
    void *grown = wf_grow(b->ctx, l->data, &l->room, l->count + more, l->size);
    if (!grown) {
        b->failed = true;
        return NULL;
    }
    l->data = grown;
    void *at = (char *)l->data + (size_t)l->count * l->size;
    l->count += more;
    return at;
}

static void push_int(wf_builder *b, list *l, int32_t value)
{
    int32_t *at = grow(b, l, 1);
    if (at)
        *at = value;
}

static wf_step *step_at(const wf_builder *b, int32_t i)
{
    return (wf_step *)b->step.data + i;
}

wf_builder *wf_builder_new(wf_ctx *ctx, const wf_agreed *agreed, int rank)
{
    wf_builder *b = wf_calloc(ctx, 1, sizeof *b);
    wf_schedule *s = wf_calloc(ctx, 1, sizeof *s);
    if (!b || !s) {
        free(b);
        free(s);
        return wf_error_null();
    }
    *b = (wf_builder){.ctx = ctx, .agreed = agreed, .rank = rank, .schedule = s, .phase_join = -1};
    b->step.size = sizeof(wf_step);
    b->operand.size = sizeof(wf_operand);
    b->wait.size = b->pending.size = sizeof(int32_t);
    for (int kind = 0; kind <= WF_OPERAND_SHARED; kind++)
        b->known[kind].size = sizeof(int32_t);
    b->notified.size = b->awaited.size = b->passed.size = sizeof(int32_t);
    b->input.size = sizeof(wf_address);
    b->box.size = sizeof(wf_step_box);
    b->call.size = sizeof(wf_step_call);
    return b;
}

const wf_agreed *wf_builder_agreed(const wf_builder *b)
{
    return b->agreed;
}

int wf_builder_rank(const wf_builder *b)
{
    return b->rank;
}

void wf_builder_in_place(wf_builder *b)
{
    b->schedule->in_place = true;
}

void wf_builder_cut(wf_builder *b, size_t most_bytes)
{
    b->most_bytes = most_bytes;
}

void wf_builder_in_order(wf_builder *b)
{
    b->schedule->in_order = true;
}

void wf_builder_synchronizes(wf_builder *b, const wf_group *g)
{
    b->schedule->synchronizes = b->schedule->synchronizes || g->size == b->agreed->ranks;
}

void wf_builder_at_wait(wf_builder *b)
{
    b->flags = WF_STEP_AT_WAIT;
}

int64_t wf_builder_ring(wf_builder *b, int64_t pieces)
{
    const int64_t before = b->schedule->ring_pieces;
    b->schedule->ring_pieces += pieces;
    return before;
}

wf_steps wf_builder_slot_user(const wf_builder *b, int64_t piece)
{
    return b->user[piece % b->agreed->ring_slots];
}

void wf_builder_slot_used(wf_builder *b, int64_t piece, wf_steps last)
{
    b->user[piece % b->agreed->ring_slots] = last;
}

void wf_builder_count_passed(wf_builder *b, size_t bytes)
{
    b->schedule->bytes_sent += bytes;
    b->schedule->messages++;
}

void wf_builder_count_copied(wf_builder *b, size_t bytes)
{
    b->schedule->bytes_copied += bytes;
}

void *wf_builder_room(wf_builder *b, size_t bytes)
{
    struct room *room = b->failed ? NULL : wf_calloc(b->ctx, 1, sizeof *room + bytes);
    if (!room) {
        b->failed = true;
        return NULL;
    }
    room->next = b->room;
    b->room = room;
    return room->data;
}

/* --- operands ----------------------------------------------------------------------------------------------------- */

static wf_address operand_new(wf_builder *b, wf_operand operand)
{
    wf_operand *at = grow(b, &b->operand, 1);
    if (!at)
        return WF_NOWHERE;
    *at = operand;
    return (wf_address){.operand = b->operand.count - 1};
}

/* Entry `key` of a table of integers, which are 0 at first; NULL without memory. */
static int32_t *entry_of(wf_builder *b, list *table, int32_t key)
{
    const int32_t missing = key + 1 - table->count;
    if (missing > 0) {
        int32_t *more = grow(b, table, missing);
        if (more)
            memset(more, 0, (size_t)missing * sizeof *more);
    }
    return b->failed ? NULL : (int32_t *)table->data + key;
}

/* The operand that is number `key` of its kind; a new one at the first time. */
static wf_address operand_find(wf_builder *b, int32_t key, wf_operand wanted)
{
    int32_t *at = entry_of(b, &b->known[wanted.kind], key); /* the number of the operand, and 1 */
    if (!at)
        return WF_NOWHERE;
    if (*at == 0)
        *at = operand_new(b, wanted).operand + 1;
    if (b->failed)
        return WF_NOWHERE;
    wf_operand *operand = (wf_operand *)b->operand.data + *at - 1;
    operand->bytes = operand->bytes < wanted.bytes ? wanted.bytes : operand->bytes;
    return (wf_address){.operand = *at - 1};
}

wf_address wf_builder_operand(wf_builder *b, wf_operand_kind kind, int index, size_t bytes)
{
    return operand_find(b, index, (wf_operand){.kind = kind, .owner = b->rank, .index = index, .bytes = bytes});
}

static wf_address fresh(wf_builder *b, wf_operand_kind kind, size_t bytes)
{
    return operand_new(b, (wf_operand){.kind = kind, .owner = b->rank, .index = b->operand.count, .bytes = bytes});
}

wf_address wf_builder_scratch(wf_builder *b, size_t bytes)
{
    return fresh(b, WF_OPERAND_SCRATCH, bytes);
}

wf_address wf_builder_device(wf_builder *b, size_t bytes)
{
    return fresh(b, WF_OPERAND_DEVICE, bytes);
}

wf_address wf_builder_kept(wf_builder *b, size_t bytes)
{
    return fresh(b, WF_OPERAND_KEPT, bytes);
}

wf_address wf_builder_pair_slot(wf_builder *b, int from, int to, int64_t part)
{
    const int index = (1 + b->agreed->place[to]) * WF_RING_SLOTS + (int)(part % wf_pair_slots(b->agreed, to));
    /* Numbers the slots of each sender after those of the ring of the node. */
    const int key = wf_node_size(b->agreed, b->rank) * (WF_RING_SLOTS + b->agreed->place[from] * WF_RING_SLOTS) + index;
    return operand_find(
        b, key,
        (wf_operand){.kind = WF_OPERAND_SHARED, .owner = from, .index = index, .bytes = b->agreed->pair_slot_bytes});
}

wf_address wf_builder_shared(wf_builder *b, int owner, int64_t piece)
{
    /* Pieces take the slots of the ring in turn, over all calls: a slot's last user must be done before the next. */
    const int slot = (int)(piece % b->agreed->ring_slots);
    return operand_find(b, b->agreed->place[owner] * b->agreed->ring_slots + slot,
                        (wf_operand){.kind = WF_OPERAND_SHARED,
                                     .owner = owner,
                                     .index = slot,
                                     .bytes = WF_SLOT_HEAD + b->agreed->ring_slot_bytes});
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* What is named here is waited for by the next step that is added, and by no other. */
void wf_after(wf_builder *b, wf_steps steps)
{
    for (int32_t i = steps.first; i < steps.last; i++)
        push_int(b, &b->pending, i);
}

/* What was asked of wf_after becomes a list of steps to wait for. A step that waits for nothing of its own phase waits
 * for the end of the phase before. */
static void take_waits(wf_builder *b, int32_t *wait, int32_t *waits)
{
    const int32_t *asked = b->pending.data;
    bool inside = false;
    *wait = b->wait.count;
    for (int32_t i = 0; i < b->pending.count; i++) {
        inside = inside || asked[i] >= b->phase_first;
        push_int(b, &b->wait, asked[i]);
    }
    if (!inside && b->phase_join >= 0)
        push_int(b, &b->wait, b->phase_join);
    *waits = b->wait.count - *wait;
    b->pending.count = 0;
}

/* An empty range at the current place: to wait for it is to wait for nothing. */
static wf_steps none(const wf_builder *b)
{
    return (wf_steps){b->step.count, b->step.count};
}

static wf_steps add(wf_builder *b, wf_step step)
{
    take_waits(b, &step.wait, &step.waits);
    step.before = -1;
    step.flags |= b->flags;
    b->flags = 0;
    wf_step *at = grow(b, &b->step, 1);
    if (!at)
        return (wf_steps){0};
    *at = step;
    return (wf_steps){b->step.count - 1, b->step.count};
}

static wf_step step_of(wf_step_kind kind, wf_address from, wf_address to, size_t bytes)
{
    return (wf_step){
        .kind = (uint8_t)kind, .peer = -1, .list = -1, .from = from, .to = to, .also = WF_NOWHERE, .bytes = bytes};
}

/* No bytes, no step: who waits for it waits for nothing. */
static wf_steps nothing(wf_builder *b)
{
    b->pending.count = 0;
    return none(b);
}

/* A message in parts of at most the agreed length; all parts wait for the same steps. */
static wf_steps add_message(wf_builder *b, wf_step_kind kind, wf_address address, size_t bytes, int peer, uint8_t flags)
{
    const size_t limit = b->agreed->chunk_bytes;
    const size_t most = b->most_bytes > 0 && b->most_bytes < limit ? b->most_bytes : limit;
    const uint8_t marks = (uint8_t)(flags | b->grouped);
    const bool sends = kind == WF_STEP_SEND, counted = sends && !(marks & WF_STEP_UNCOUNTED);
    const int32_t first = b->step.count;
    wf_step step = step_of(kind, WF_NOWHERE, WF_NOWHERE, bytes);
    if (bytes == 0)
        return nothing(b);
    step.peer = peer;
    step.flags = marks;
    step.before = -1;
    take_waits(b, &step.wait, &step.waits);
    for (size_t at = 0; at < bytes; at += most) {
        wf_step *part = grow(b, &b->step, 1);
        if (!part)
            return none(b);
        *part = step;
        *(sends ? &part->from : &part->to) = wf_address_add(address, at);
        part->bytes = bytes - at < most ? bytes - at : most;
    }
    b->schedule->bytes_sent += counted ? bytes : 0;
    b->schedule->messages += counted ? (uint64_t)(b->step.count - first) : 0;
    return (wf_steps){first, b->step.count};
}

wf_steps wf_add_send(wf_builder *b, wf_address from, size_t bytes, int to)
{
    return add_message(b, WF_STEP_SEND, from, bytes, to, 0);
}

wf_steps wf_add_send_frame(wf_builder *b, wf_address from, size_t bytes, int to)
{
    return add_message(b, WF_STEP_SEND, from, bytes, to, WF_STEP_UNCOUNTED);
}

wf_steps wf_add_recv(wf_builder *b, wf_address to, size_t bytes, int from)
{
    return add_message(b, WF_STEP_RECV, to, bytes, from, 0);
}

wf_steps wf_add_combine(wf_builder *b, wf_reduce_op op, wf_dtype dtype, int inputs, const wf_address *in, wf_address to,
                        wf_address also, int64_t count)
{
    wf_step step = step_of(WF_STEP_COMBINE, WF_NOWHERE, to, (size_t)count * wf_dtype_size(dtype));
    if (count == 0)
        return nothing(b);
    step.op = (uint8_t)op;
    step.dtype = (uint8_t)dtype;
    step.list = b->input.count;
    step.inputs = inputs;
    step.also = also;
    wf_address *at = grow(b, &b->input, inputs);
    if (at)
        memcpy(at, in, (size_t)inputs * sizeof *in);
    return add(b, step);
}

/* In host memory, or between that and the device. */
static wf_steps add_copy(wf_builder *b, wf_step_kind kind, wf_address from, wf_address to, size_t bytes, uint8_t flags)
{
    wf_step step = step_of(kind, from, to, bytes);
    if (bytes == 0)
        return nothing(b);
    step.flags = flags;
    b->schedule->bytes_copied += flags & WF_STEP_STAGED ? bytes : 0;
    return add(b, step);
}

wf_steps wf_add_copy(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool counted)
{
    return add_copy(b, WF_STEP_COPY, from, to, bytes, counted ? WF_STEP_STAGED : 0);
}

wf_steps wf_add_stage(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool to_host)
{
    return add_copy(b, WF_STEP_STAGE, from, to, bytes, (uint8_t)(WF_STEP_STAGED | (to_host ? WF_STEP_TO_HOST : 0)));
}

wf_steps wf_add_stage_begin(wf_builder *b, wf_address from, wf_address to, size_t bytes, bool to_host)
{
    return add_copy(b, WF_STEP_STAGE, from, to, bytes, (uint8_t)(WF_STEP_BEGUN | (to_host ? WF_STEP_TO_HOST : 0)));
}

wf_shape wf_step_box_source(const wf_step_box *box)
{
    wf_shape shape = wf_box_shape(box->box);
    for (int d = 0; d < shape.rank; d++)
        if (box->step[d] == 0 && shape.dim[d] > 1)
            shape.dim[d] = 1;
    return shape;
}

/* `out` in what is read; in a copy from box to box also `in`, in what is written. */
static wf_steps add_box(wf_builder *b, wf_step step, wf_step_box out, const wf_step_box *in, wf_dtype dtype, bool adds)
{
    step.dtype = (uint8_t)dtype;
    step.list = b->box.count;
    step.bytes = (size_t)wf_shape_count(wf_step_box_source(&out)) * wf_dtype_size(dtype);
    step.flags |= adds ? WF_STEP_ADDS : 0;
    wf_step_box *at = grow(b, &b->box, in ? 2 : 1);
    if (at) {
        at[0] = out;
        if (in)
            at[1] = *in;
    }
    return add(b, step);
}

wf_steps wf_add_pack(wf_builder *b, wf_address from, wf_step_box box, wf_dtype dtype, wf_address to, bool negate)
{
    wf_step step = step_of(WF_STEP_PACK, from, to, 0);
    step.flags = negate ? WF_STEP_NEGATES : 0;
    return add_box(b, step, box, NULL, dtype, false);
}

wf_steps wf_add_fill(wf_builder *b, wf_step_box box, wf_dtype dtype, wf_address to, double value)
{
    wf_step step = step_of(WF_STEP_FILL, WF_NOWHERE, to, 0);
    memcpy(&step.value, &value, sizeof value);
    return add_box(b, step, box, NULL, dtype, false);
}

wf_steps wf_add_unpack(wf_builder *b, wf_address from, wf_step_box box, wf_dtype dtype, wf_address to, bool adds)
{
    return add_box(b, step_of(WF_STEP_UNPACK, from, to, 0), box, NULL, dtype, adds);
}

wf_steps wf_add_copy_box(wf_builder *b, wf_address from, wf_step_box out, wf_dtype dtype, wf_address to, wf_step_box in,
                         bool adds)
{
    return add_box(b, step_of(WF_STEP_COPY, from, to, 0), out, &in, dtype, adds);
}

wf_steps wf_add_fence(wf_builder *b)
{
    wf_step step = step_of(WF_STEP_FENCE, WF_NOWHERE, WF_NOWHERE, 0);
    step.list = b->schedule->fences++;
    return add(b, step);
}

/* A flag only grows: behind the last step of the same flag, which is remembered in the table. */
static wf_steps add_flag(wf_builder *b, list *table, int32_t key, wf_step step)
{
    int32_t *last = entry_of(b, table, key);
    if (!last)
        return none(b);
    if (*last > 0)
        wf_after(b, (wf_steps){*last - 1, *last});
    const wf_steps added = add(b, step);
    *last = added.last;
    return added;
}

static wf_step flag_step(wf_step_kind kind, int rank, int32_t ring, int flag, int64_t value)
{
    wf_step step = step_of(kind, WF_NOWHERE, WF_NOWHERE, 0);
    step.peer = rank;
    step.ring = ring;
    step.flag = flag;
    step.value = value;
    return step;
}

wf_steps wf_add_ring_notify(wf_builder *b, int32_t ring, int flag, int64_t value)
{
    int32_t *passed = ring > 0 ? entry_of(b, &b->passed, ring) : NULL;
    if (passed)
        ++*passed;
    return add_flag(b, &b->notified, flag, flag_step(WF_STEP_NOTIFY, b->rank, ring, flag, value));
}

static wf_steps add_await(wf_builder *b, wf_step step)
{
    const int32_t flags = WF_FLAGS + 2 * WF_PAIR_RANKS;
    return add_flag(b, &b->awaited, b->agreed->place[step.peer] * flags + step.flag, step);
}

wf_steps wf_add_ring_await(wf_builder *b, int rank, int32_t ring, int flag, int64_t value)
{
    return add_await(b, flag_step(WF_STEP_AWAIT, rank, ring, flag, value));
}

wf_steps wf_add_slot_notify(wf_builder *b, wf_address slot, int64_t value)
{
    wf_step step = flag_step(WF_STEP_NOTIFY, b->rank, 0, WF_FLAG_SLOT, value);
    step.to = slot;
    return add_flag(b, &b->notified, WF_FLAG_SLOT, step);
}

wf_steps wf_add_slot_await(wf_builder *b, int rank, wf_address slot, int64_t value)
{
    wf_step step = flag_step(WF_STEP_AWAIT, rank, 0, WF_FLAG_SLOT, value);
    step.to = slot;
    return add_await(b, step);
}

wf_steps wf_add_call(wf_builder *b, wf_step_call call, wf_address from, wf_address to, size_t to_bytes)
{
    wf_step step = step_of(WF_STEP_CALL, from, to, to_bytes);
    step.list = b->call.count;
    wf_step_call *at = grow(b, &b->call, 1);
    if (at)
        *at = call;
    return add(b, step);
}

wf_steps wf_add_native(wf_builder *b, wf_step step, wf_address x, wf_address y)
{
    step.kind = WF_STEP_NATIVE;
    step.from = x;
    step.to = y;
    step.also = WF_NOWHERE;
    b->grouped = step.list == WF_NATIVE_GROUP ? WF_STEP_GROUPED | WF_STEP_UNCOUNTED : 0;
    return add(b, step);
}

/* One empty step joins all steps that no step waits for yet. A barrier of n steps costs n waits this way, not n times
 * the steps after it. */
void wf_builder_phase(wf_builder *b)
{
    const int32_t first = b->phase_first, last = b->step.count;
    b->pending.count = 0;
    if (first == last)
        return;
    bool *followed = wf_calloc(b->ctx, (size_t)(last - first), sizeof *followed);
    if (!followed) {
        b->failed = true;
        return;
    }
    for (int32_t i = first; i < last && !b->failed; i++) {
        const wf_step *step = step_at(b, i);
        for (int32_t w = 0; w < step->waits; w++) {
            const int32_t on = ((int32_t *)b->wait.data)[step->wait + w];
            if (on >= first)
                followed[on - first] = true;
        }
    }
    for (int32_t i = first; i < last; i++)
        if (!followed[i - first])
            wf_after(b, (wf_steps){i, i + 1});
    free(followed);
    b->phase_join = wf_add_call(b, (wf_step_call){0}, WF_NOWHERE, WF_NOWHERE, 0).first;
    b->phase_first = b->step.count;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

wf_status wf_builder_end(wf_builder *b, wf_schedule **schedule)
{
    wf_ctx *ctx = b->ctx;
    wf_schedule *s = b->schedule;
    const bool failed = b->failed;
    s->rank = b->rank;
    s->ranks = b->agreed->ranks;
    s->steps = b->step.count;
    s->operands = b->operand.count;
    s->step = b->step.data;
    s->operand = b->operand.data;
    s->wait = b->wait.data;
    s->input = b->input.data;
    s->box = b->box.data;
    s->call = b->call.data;
    s->pieces = b->passed.data;
    s->rings = b->passed.count;
    s->device = b->agreed->staged;
    for (struct room *room = b->room, *next; room; room = next) {
        next = room->next;
        free(room);
    }
    for (int kind = 0; kind <= WF_OPERAND_SHARED; kind++)
        free(b->known[kind].data);
    free(b->notified.data);
    free(b->awaited.data);
    free(b->pending.data);
    free(b);
    const wf_status status = failed ? WF_RAISE(WF_ERR_MEMORY, "no memory for a schedule of %d steps", (int)s->steps)
                                    : wf_schedule_link(ctx, s);
    *schedule = status == WF_OK ? s : NULL;
    if (status != WF_OK)
        wf_schedule_free(s);
    return status;
}
