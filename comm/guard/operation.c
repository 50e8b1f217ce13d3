/* The guard around a collective or a message: numbers it, announces it, and, if it ends with an error, tells all ranks.
 * door.c, background.c and exchanges call it; arguments are checked before. control.c compares the records. */
#include "comm/guard/guard_impl.h"

#include "core/site_author.h"

#include <stdio.h>
#include <string.h>

#define SEQUENCES   128                 /* tags of so many collectives in a row differ, even if the calls are equal */
#define LEAST_KINDS ((uint64_t)1 << 15) /* tags of one collective; with fewer, equal tags do not prove equal calls */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* Hashes the fields that wf_call_record_equal compares. */
static uint64_t hash_of(const wf_call_record *record)
{
    uint64_t operation[WF_OPERATION / sizeof(uint64_t) + 1] = {0};
    memcpy(operation, record->operation, sizeof record->operation);
    uint64_t hash = mix(record->sequence, (uint64_t)(uint32_t)record->dtype << 32 | (uint32_t)record->dims);
    for (size_t i = 0; i < sizeof operation / sizeof *operation; i++)
        hash = mix(hash, operation[i]);
    for (int d = 0; d < record->dims; d++)
        hash = mix(hash, (uint64_t)record->dim[d]);
    hash = mix(hash, record->plan);
    return mix(hash, (uint64_t)(uint32_t)record->op << 32 | (uint32_t)record->root);
}

static uint64_t kinds_of(const wf_comm *comm)
{
    return (uint64_t)comm->tags / SEQUENCES;
}

/* Calls that do not belong together have different tags, so that their messages never meet: all ranks then wait until
 * the disagreement is known. The number is in it as it is, for collectives that overlap. */
static int tag_of(const wf_comm *comm, uint64_t sequence, uint64_t hash)
{
    const uint64_t kinds = kinds_of(comm);
    return WF_TAGS + (int)(sequence % SEQUENCES * kinds + (hash >> 8) % kinds);
}

/* Returns true if the elements of the call are the same on all ranks, so that their type and count belong to what ranks
 * agree about. */
_Static_assert(WF_CALLS == 12, "a new operation: decide here and in the two functions below");
static bool has_equal_elements(wf_operation operation)
{
    return operation != WF_CALL_REDUCE_SCATTER && operation != WF_CALL_BARRIER && operation != WF_CALL_LISTS &&
           operation != WF_CALL_MEET;
}

static bool reduces(wf_operation operation)
{
    return operation == WF_CALL_REDUCE || operation == WF_CALL_ALLREDUCE || operation == WF_CALL_REDUCE_SCATTER ||
           operation == WF_CALL_SUM || operation == WF_CALL_SUM_SHARDS || operation == WF_CALL_GATHER_SHARDS;
}

static bool has_root(wf_operation operation)
{
    return operation == WF_CALL_BCAST || operation == WF_CALL_REDUCE || operation == WF_CALL_LISTS;
}

/* Returns what ranks compare of a call, and what other processes read in the flight recorder. */
static wf_call_record record_of(const wf_comm *comm, const wf_call *call)
{
    wf_call_record record = wf_call_record_plain(call->name, has_root(call->operation) ? call->root : -1);
    record.world_root = wf_world_rank(comm, record.root);
    record.op = reduces(call->operation) ? (int32_t)call->op : -1;
    record.plan = call->plan;
    if (!has_equal_elements(call->operation))
        return record;
    const int64_t first = call->operation == WF_CALL_SUM && call->parts > 0 ? call->part[0] : 0;
    const wf_shape shape = call->shape ? *call->shape : WF_SHAPE(call->count - first);
    record.dtype = (int32_t)call->dtype;
    record.dims = shape.rank;
    memcpy(record.dim, shape.dim, sizeof record.dim);
    return record;
}

wf_status wf_guard_enter(wf_comm *comm, const wf_call *call)
{
    WF_TRY(wf_comm_alive(comm));
    WF_CHECK(!comm->call.entered, WF_ERR_STATE, "%.*s starts while %.*s of this communicator is not over", WF_OPERATION,
             call->name, WF_OPERATION, comm->call.record.operation);
    comm->call.record = record_of(comm, call);
    /* Counted also without control (one rank), so that errors and traces number calls alike. */
    comm->call.record.sequence = ++comm->sequence;
    comm->call.entered = true;
    wf_range_push(comm->shared->ctx, comm->call.record.operation);
    comm->traffic.collectives++;
    if (!comm->control)
        return WF_OK;
    wf_call_record_place(&comm->call.record);
    wf_watch_begin(comm->call.record.operation);
    wf_recorder_enter(comm);
    const uint64_t hash = hash_of(&comm->call.record);
    comm->call.tag = tag_of(comm, comm->call.record.sequence, hash);
    WF_TRY(wf_control_announce(comm, &comm->call.record, hash));
    /* Native messages carry no tag, so the record is shown at once. */
    return comm->shared->in_order ? wf_control_show(comm) : WF_OK;
}

/* Returns true if tags have enough bits to make a collision of the tags of two calls negligible. */
static bool tags_tell(const wf_comm *comm)
{
    return kinds_of(comm) >= LEAST_KINDS;
}

wf_status wf_guard_run_begin(wf_comm *comm, bool synchronizes)
{
    return synchronizes && tags_tell(comm) ? WF_OK : wf_control_show(comm);
}

void wf_guard_run_end(wf_comm *comm, bool synchronizes)
{
    if (synchronizes && tags_tell(comm))
        wf_control_confirm(comm);
}

wf_status wf_guard_try_settle(wf_comm *comm, bool *settled)
{
    *settled = wf_control_confirmed(comm);
    if (!*settled) {
        WF_TRY(wf_control_show(comm));
        WF_TRY(wf_control_poll(comm, false));
        *settled = wf_control_confirmed(comm);
    }
    if (*settled && comm->control)
        wf_recorder_settle(comm);
    return WF_OK;
}

wf_status wf_guard_settle(wf_comm *comm)
{
    bool settled;
    WF_TRY(wf_guard_try_settle(comm, &settled));
    if (!settled)
        for (wf_deadline deadline = wf_deadline_new(); !settled;) {
            WF_TRY(wf_deadline_poll(comm, &deadline));
            WF_TRY(wf_guard_try_settle(comm, &settled));
        }
    return WF_OK;
}

/* Starts a message between two ranks or a meeting of some: no collective, so it has no number. */
static wf_status enter_uncounted(wf_comm *comm, const char *operation, int peer, int tag)
{
    WF_CHECK(!comm->call.entered, WF_ERR_STATE, "%s starts while %.*s of this communicator is not over", operation,
             WF_OPERATION, comm->call.record.operation);
    comm->call.record = wf_call_record_plain(operation, -1);
    comm->call.record.peer = peer;
    comm->call.record.world_peer = wf_world_rank(comm, peer);
    comm->call.record.tag = peer < 0 ? -1 : tag;
    wf_call_record_place(&comm->call.record);
    wf_watch_begin(comm->call.record.operation);
    wf_recorder_enter(comm);
    comm->call.tag = tag;
    return WF_OK;
}

wf_status wf_guard_point(wf_comm *comm, const char *operation, int peer, int tag)
{
    WF_TRY(wf_comm_alive(comm));
    WF_CHECK(tag >= 0 && tag < WF_TAGS, WF_ERR_ARGUMENT, "tag %d is not in 0..%d", tag, WF_TAGS - 1);
    WF_TRY(wf_check_rank(comm, "peer", peer));
    WF_CHECK(peer != comm->rank, WF_ERR_ARGUMENT, "peer %s is this rank itself", WF_RANK(comm, peer));
    return enter_uncounted(comm, operation, peer, tag);
}

wf_status wf_guard_meet(wf_comm *comm, const char *operation)
{
    return enter_uncounted(comm, operation, -1, WF_TAGS + comm->tags);
}

/* Writes " (called at train.c:40)", or nothing if the place is not known. */
static const char *place_text(char text[WF_SITE_FILE + 24])
{
    const wf_site site = wf_site_now();
    text[0] = '\0';
    if (site.file)
        snprintf(text, WF_SITE_FILE + 24, " (called at %.*s:%d)", WF_SITE_FILE, site.file, site.line);
    return text;
}

/* Turns an error that this rank alone has into that of all; one of which the communicator has died already is returned
 * as it is. The call still counts as entered, so others are told of its number. */
static wf_status fail_call(wf_comm *comm, const char *operation, wf_status status)
{
    char message[WF_FAILURE_TEXT], place[WF_SITE_FILE + 24], number[48] = "";
    wf_status code;
    if (comm->death.status)
        return WF_RAISE(comm->death.status, "%s", comm->death.text);
    wf_error_save(&code, message, sizeof message);
    if (comm->call.entered)
        snprintf(number, sizeof number, " (collective %llu)", (unsigned long long)comm->sequence);
    WF_RAISE(status, "%s%s: %.400s%s", operation, number, message, place_text(place));
    return wf_failure_own(comm, status, !comm->call.entered && !comm->call.parting);
}

wf_status wf_guard_end(wf_comm *comm, const char *operation, wf_status status)
{
    wf_recorder_end(comm, operation, status != WF_OK);
    if (!comm->nested)
        wf_watch_end();
    if (comm->call.entered)
        wf_range_pop(comm->shared->ctx);
    if (status != WF_OK)
        status = fail_call(comm, operation, status);
    comm->call.entered = comm->call.parting = false;
    return status;
}

wf_status wf_check_rank(const wf_comm *comm, const char *what, int rank)
{
    WF_CHECK(rank >= 0 && rank < comm->size, WF_ERR_ARGUMENT, "%s %d is not in 0..%d, the ranks of the communicator",
             what, rank, comm->size - 1);
    return WF_OK;
}

wf_status wf_check_op(wf_reduce_op op)
{
    WF_CHECK(op >= WF_SUM && op <= WF_PROD, WF_ERR_ARGUMENT,
             "%d is no reduction; there are WF_SUM, WF_MAX, WF_MIN and WF_PROD", (int)op);
    return WF_OK;
}
