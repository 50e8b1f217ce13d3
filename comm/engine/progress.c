/* The engine of a communicator: finds or makes the schedule of a call, binds it to memory and runs it to its end.
 *
 * Actors. The door (comm/collective/door.c) calls wf_engine_run between wf_guard_enter and wf_guard_settle. An
 * exchange brings a store of its own (wf_engine_post), and the background stream advances the run itself
 * (wf_engine_begin, wf_engine_end). wf_guard_run_begin sends the record of a call unless its schedule synchronises all
 * ranks by itself.
 *
 *     begin   find an entry of an equal call, or make its schedule and put it first; it is busy
 *     post    guard_run_begin, take scratch and device memory, bind operands, begin the run
 *     wait    advance; look at the clock, failures and the deadline after TRIES or SPINS advances
 *     end     guard_run_end, or cancel; count the pieces of the rings; give memory back; the entry is free again
 *
 * Who owns what. An entry owns the schedule, its run, the table of operands and memory that is kept from sum to sum; in
 * flight it has scratch and device memory too. Inputs and outputs stay the caller's, and must live until end. The
 * pieces of the rings that are used up belong to the communicator, and all ranks of a node count them alike, as they
 * run the same schedules in the same order.
 *
 * Agreement. A schedule is a pure function of the agreed configuration, the rank and the call, so ranks make parts of
 * one plan without a message. Each rank evicts the least recently used of its entries, and ranks may keep different
 * ones: that is no disagreement. Only `shared` must be compared, since it may change after entries were made.
 *
 * What may be in flight at once: any number of calls that use no ring. An entry in flight is busy and is not found, so
 * an equal call gets an entry of its own; more than KEPT entries exist only if that many were busy. Calls with a ring
 * follow each other, as their slots and flags start where the last one's end.
 *
 * Failure. wf_engine_end with an error cancels the run. If a message could not be cancelled, comm->lost is set and
 * memory that the transport may still write to is never used again. The collective reports the error by
 * wf_guard_end. */
#include "comm/engine/engine_impl.h"

#include <stdlib.h>
#include <string.h>

#define KEPT      128 /* schedules, and more where so many are in flight */
#define ALIGNMENT ((size_t)64)
#define TRIES     4  /* before a wait looks at the clock: short calls are over by then */
#define SPINS     64 /* the same of schedules that look at flags, which costs less than the clock */

typedef wf_engine_entry entry;

wf_status wf_engine_open(wf_comm *comm, const int32_t *node)
{
    wf_engine *engine = wf_calloc(comm->shared->ctx, 1, sizeof *engine);
    if (!engine)
        return wf_error_code();
    comm->engine = engine;
    engine->store.most = KEPT;
    WF_TRY(wf_agreed_make(comm->shared->ctx, comm->size, node, &engine->agreed));
    engine->agreed.staged = !comm->shared->ctx->k->host;
    if (comm->shared->chunk_bytes > 0)
        engine->agreed.chunk_bytes = comm->shared->chunk_bytes;
    return WF_OK;
}

wf_status wf_engine_share(wf_comm *comm, char why[WF_FAILURE_TEXT])
{
    wf_engine *engine = comm->engine;
    engine->share_asked = true;
    WF_TRY(wf_ring_open(comm, &engine->agreed, &engine->ring, why));
    engine->agreed.shared = engine->ring.flags != NULL;
    return WF_OK;
}

wf_agreed *wf_engine_agreed(const wf_comm *comm)
{
    return &comm->engine->agreed;
}

/* --- schedules that are kept -------------------------------------------------------------------------------------- */

static void free_entry(entry *e)
{
    if (!e)
        return;
    wf_run_free(e->run);
    wf_schedule_free(e->schedule);
    free((int64_t *)e->call.part);
    free(e->kept);
    free(e);
}

void wf_engine_store_clear(wf_engine_store *store)
{
    for (entry *e = store->first, *next; e; e = next) {
        next = e->next;
        free_entry(e);
    }
    store->first = NULL;
    store->entries = 0;
}

void wf_engine_unshare(wf_comm *comm)
{
    wf_engine_store_clear(&comm->engine->store);
    wf_control_unshare(comm);
    wf_ring_close(&comm->engine->ring);
    comm->engine->agreed.shared = false;
}

void wf_engine_close(wf_comm *comm)
{
    wf_engine *engine = comm->engine;
    comm->engine = NULL;
    if (!engine)
        return;
    wf_engine_store_clear(&engine->store);
    wf_ring_close(&engine->ring);
    wf_pairs_close(&engine->pairs, &engine->agreed);
    wf_agreed_clear(&engine->agreed);
    wf_comm_release(comm, engine); /* its token may be on its way */
}

static bool equal(const wf_call *a, const wf_call *b, int ranks)
{
    return a->operation == b->operation && a->count == b->count && a->dtype == b->dtype && a->op == b->op &&
           a->root == b->root && a->check == b->check && a->reducer == b->reducer && a->parts == b->parts &&
           a->exact == b->exact && a->buffer == b->buffer && a->device == b->device && !a->part == !b->part &&
           (!a->part || !memcmp(a->part, b->part, (size_t)wf_call_entries(a, ranks) * sizeof *a->part));
}

/* Moves what it finds to the front. Ranks keep different calls, so what some of them have kept since before memory was
 * shared must not be found any more. */
entry *wf_engine_find(const wf_comm *comm, wf_engine_store *store, const wf_call *call)
{
    const wf_agreed *agreed = &comm->engine->agreed;
    for (entry **at = &store->first; *at; at = &(*at)->next) {
        entry *e = *at;
        if (e->busy || e->shared != agreed->shared || !equal(&e->call, call, agreed->ranks))
            continue;
        *at = e->next;
        e->next = store->first;
        return store->first = e;
    }
    return NULL;
}

/* The one that was used longest ago, of those that are not in flight; one that keeps memory only where all do. */
static void drop_last(wf_engine_store *store)
{
    entry **last = NULL;
    for (entry **at = &store->first; *at; at = &(*at)->next)
        if (!(*at)->busy && (!last || !(*at)->kept || (*last)->kept))
            last = at;
    if (!last)
        return;
    entry *e = *last;
    *last = e->next;
    free_entry(e);
    store->entries--;
}

static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* How much memory the operands of one kind need. */
static size_t bytes_of(const wf_schedule *s, wf_operand_kind kind)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < s->operands; i++)
        bytes += s->operand[i].kind == kind ? rounded(s->operand[i].bytes) : 0;
    return bytes;
}

/* What a run of the schedule needs. */
static wf_status furnish(wf_comm *comm, entry *e)
{
    wf_ctx *ctx = comm->shared->ctx;
    e->run = wf_run_new(ctx, e->schedule);
    if (!e->run)
        return wf_error_code();
    e->run->link = &comm->link;
    e->run->world_rank = comm->ranks.world;
    e->run->launch = wf_native_run;
    e->run->launch_own = comm;
    e->scratch_bytes = bytes_of(e->schedule, WF_OPERAND_SCRATCH);
    e->device_bytes = bytes_of(e->schedule, WF_OPERAND_DEVICE);
    e->kept_bytes = bytes_of(e->schedule, WF_OPERAND_KEPT);
    e->kept = e->kept_bytes ? wf_calloc(ctx, 1, e->kept_bytes) : NULL;
    return e->kept_bytes == 0 || e->kept ? WF_OK : wf_error_code();
}

/* A copy of the call, with what it points to. */
static wf_status keep_call(wf_comm *comm, entry *e, const wf_call *call)
{
    const size_t parts = call->part ? (size_t)wf_call_entries(call, comm->size) * sizeof *call->part : 0;
    int64_t *part = parts ? wf_malloc(comm->shared->ctx, parts) : NULL;
    if (parts && !part)
        return wf_error_code();
    e->call = *call;
    e->call.part = parts ? memcpy(part, call->part, parts) : NULL;
    return WF_OK;
}

entry *wf_engine_keep(wf_comm *comm, wf_engine_store *store, const wf_call *call, wf_schedule *schedule)
{
    entry *e = wf_calloc(comm->shared->ctx, 1, sizeof *e);
    if (!e) {
        wf_schedule_free(schedule);
        return wf_error_null();
    }
    e->schedule = schedule;
    if (furnish(comm, e) != WF_OK || keep_call(comm, e, call) != WF_OK) {
        free_entry(e);
        return wf_error_null();
    }
    e->shared = comm->engine->agreed.shared;
    if (store->entries >= store->most)
        drop_last(store);
    e->next = store->first;
    store->entries++;
    return store->first = e;
}

static wf_status entry_of(wf_comm *comm, const wf_call *call, entry **out)
{
    wf_engine *engine = comm->engine;
    wf_schedule *schedule;
    *out = wf_engine_find(comm, &engine->store, call);
    if (*out)
        return WF_OK;
    WF_TRY(wf_call_schedule(comm->shared->ctx, &engine->agreed, comm->rank, call, &schedule));
    *out = wf_engine_keep(comm, &engine->store, call, schedule);
    return *out ? WF_OK : wf_error_code();
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

/* The address of a slot in this run: in the ring of the node, or of two of its ranks. */
static char *slot_at(const wf_engine *engine, int rank, const wf_operand *operand)
{
    const wf_agreed *agreed = &engine->agreed;
    if (operand->index < WF_RING_SLOTS)
        return wf_ring_slot(&engine->ring, agreed, operand);
    const int from = agreed->place[operand->owner], to = operand->index / WF_RING_SLOTS - 1;
    const int64_t before = engine->pairs.pieces[operand->owner == rank ? wf_ring_to(to) : wf_ring_from(from)];
    const int64_t slot = (operand->index % WF_RING_SLOTS + before) % wf_pair_slots(agreed, rank);
    return engine->pairs.slots[from][to] + (size_t)slot * agreed->pair_slot_bytes;
}

/* Rings may have been opened, or used, since the last run. */
static void bind(const wf_comm *comm, const entry *e, const void *const *in, void *const *out)
{
    wf_engine *engine = comm->engine;
    wf_run *run = e->run;
    char *next[] = {[WF_OPERAND_SCRATCH] = e->scratch, [WF_OPERAND_DEVICE] = e->device, [WF_OPERAND_KEPT] = e->kept};
    run->flags = engine->ring.flags;
    run->ring_pieces = engine->ring.pieces;
    run->seen = engine->ring.seen;
    run->pair_flags = engine->pairs.flags;
    run->pieces = engine->pairs.pieces;
    for (int32_t i = 0; i < e->schedule->operands; i++) {
        const wf_operand *operand = &e->schedule->operand[i];
        switch (operand->kind) {
        case WF_OPERAND_SHARED:
            run->data[i] = slot_at(engine, comm->rank, operand);
            break;
        case WF_OPERAND_INPUT:
            run->data[i] = (void *)in[operand->index];
            break;
        case WF_OPERAND_SCRATCH:
        case WF_OPERAND_DEVICE:
        case WF_OPERAND_KEPT:
            run->data[i] = next[operand->kind];
            next[operand->kind] += rounded(operand->bytes);
            break;
        case WF_OPERAND_TOKEN:
            run->data[i] = &engine->token;
            break;
        default:
            run->data[i] = out[operand->index];
            break;
        }
    }
}

void wf_engine_note(wf_comm *comm, const wf_run *run)
{
    char text[WF_FAILURE_TEXT];
    wf_recorder_step(comm, wf_run_text(run, text));
}

wf_status wf_engine_wait(wf_comm *comm, const entry *flight)
{
    wf_run *run = flight->run;
    const bool ring = run->schedule->ring_pieces > 0 || run->schedule->rings > 0;
    const int tries = !ring ? TRIES : wf_deadline_crowded(comm) ? 1 : SPINS;
    wf_deadline deadline = {.polls = -1};
    wf_run_wait(run);
    for (int idle = 0; !wf_run_done(run); idle++) {
        bool moved = false;
        WF_TRY(wf_run_advance(run, &moved));
        if (wf_run_done(run))
            break;
        if (moved && deadline.polls >= 0)
            deadline = wf_deadline_new();
        if (ring && moved)
            idle = 0;
        if (idle < tries)
            continue;
        if (deadline.polls < 0)
            deadline = wf_deadline_new();
        deadline.peer = wf_run_awaited(run);
        if (deadline.noted == 1)
            wf_engine_note(comm, run);
        WF_TRY(wf_deadline_poll(comm, &deadline));
        /* Long messages of an exchange move only while MPI is looked at. */
        idle = ring || run->schedule->in_order ? 0 : idle;
    }
    return WF_OK;
}

static wf_status start_run(wf_comm *comm, entry *e, int tag, bool in_line, const void *const *in, void *const *out)
{
    e->busy = true;
    WF_TRY(wf_guard_run_begin(comm, e->schedule->synchronizes));
    WF_TRY(wf_host_take(comm, e->scratch_bytes, &e->scratch));
    if (e->device_bytes > 0)
        WF_TRY(wf_pool_take(comm->shared->ctx, e->device_bytes, &e->device));
    if (e->kept && e->call.buffer == 0)
        memset(e->kept, 0, e->kept_bytes);
    bind(comm, e, in, out);
    e->run->tag = tag;
    wf_run_begin(e->run, in_line);
    /* Counted now, so that the bytes of a message that outlives its call are counted in that call. */
    comm->traffic.bytes_sent += e->schedule->bytes_sent;
    comm->traffic.messages += e->schedule->messages;
    comm->traffic.bytes_copied += e->schedule->bytes_copied;
    return WF_OK;
}

wf_status wf_engine_begin(wf_comm *comm, const wf_call *call, const void *const *in, void *const *out, entry **flight)
{
    WF_TRY(entry_of(comm, call, flight));
    return start_run(comm, *flight, comm->call.tag, false, in, out);
}

wf_status wf_engine_post(wf_comm *comm, entry *e, const void *const *in, void *const *out)
{
    return start_run(comm, e, comm->call.tag, false, in, out);
}

void wf_engine_end(wf_comm *comm, entry **flight, wf_status status)
{
    entry *e = *flight;
    *flight = NULL;
    if (!e)
        return;
    if (status == WF_OK)
        wf_guard_run_end(comm, e->schedule->synchronizes);
    else if (!wf_run_cancel(e->run))
        comm->lost = true;
    e->busy = false;
    comm->engine->ring.pieces += e->schedule->ring_pieces;
    for (int32_t i = 1; i < e->schedule->rings; i++)
        comm->engine->pairs.pieces[i] += e->schedule->pieces[i];
    wf_host_give(comm, e->scratch, e->scratch_bytes);
    /* Memory of a message that could not be given up is leaked: MPI may write to it at any time. */
    if (e->device && !comm->lost)
        wf_pool_give(comm->shared->ctx, e->device, e->device_bytes);
    e->scratch = e->device = NULL;
}

wf_status wf_engine_run_lists(wf_comm *comm, const wf_call *call, int tag, const void *const *in, void *const *out)
{
    entry *flight;
    wf_status status = entry_of(comm, call, &flight);
    if (status == WF_OK)
        status = start_run(comm, flight, tag, true, in, out);
    if (status == WF_OK)
        status = wf_engine_wait(comm, flight);
    wf_engine_end(comm, &flight, status);
    return status;
}

wf_status wf_engine_run(wf_comm *comm, const wf_call *call, const void *in, void *out)
{
    return wf_engine_run_lists(comm, call, comm->call.tag, &in, &out);
}
