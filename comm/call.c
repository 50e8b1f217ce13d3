#include "comm/comm_impl.h"

#include <stdio.h>
#include <string.h>

static wf_record record_new(const char *operation)
{
    wf_record record = {.dtype = -1, .rank = -1, .op = -1, .root = -1, .peer = -1, .tag = -1};
    strncpy(record.operation, operation, sizeof record.operation - 1);
    return record;
}

wf_record wf_record_plain(const char *operation, int root)
{
    wf_record record = record_new(operation);
    record.root = root;
    return record;
}

wf_record wf_record_tensor(const char *operation, const wf_tensor *x, int op, int root)
{
    wf_record record = record_new(operation);
    record.dtype = (int32_t)x->dtype;
    record.rank = x->shape.rank;
    memcpy(record.dim, x->shape.dim, sizeof record.dim);
    record.op = op;
    record.root = root;
    return record;
}

wf_record wf_record_values(const char *operation, wf_dtype dtype, int64_t count, int op, int root)
{
    wf_record record = record_new(operation);
    record.dtype = (int32_t)dtype;
    record.rank = 1;
    record.dim[0] = count;
    record.op = op;
    record.root = root;
    return record;
}

bool wf_record_equal(const wf_record *a, const wf_record *b)
{
    return a->sequence == b->sequence && !strncmp(a->operation, b->operation, sizeof a->operation) &&
           a->dtype == b->dtype && a->rank == b->rank && a->op == b->op && a->root == b->root && a->plan == b->plan &&
           !memcmp(a->dim, b->dim, sizeof a->dim);
}

const char *wf_record_text(const wf_record *record, char text[WF_RECORD_TEXT])
{
    static const char *const ops[] = {"sum", "max", "min", "prod"};
    char shape[WF_SHAPE_TEXT], part[6][WF_SHAPE_TEXT] = {{0}};
    int parts = 0, used = 0;
    if (record->rank >= 0)
        snprintf(part[parts++], sizeof part[0], "%s %.100s", wf_dtype_name((wf_dtype)record->dtype),
                 wf_shape_text(wf_shape_make(record->rank, record->dim), shape));
    if (record->op >= 0 && record->op < 4)
        snprintf(part[parts++], sizeof part[0], "%s", ops[record->op]);
    if (record->root >= 0)
        snprintf(part[parts++], sizeof part[0], "root %d", record->root);
    if (record->peer >= 0)
        snprintf(part[parts++], sizeof part[0], "rank %d", record->peer);
    if (record->tag >= 0)
        snprintf(part[parts++], sizeof part[0], "tag %d", record->tag);
    if (record->plan != 0)
        snprintf(part[parts++], sizeof part[0], "plan %04x", (unsigned)(record->plan & 0xffff));
    used = snprintf(text, WF_RECORD_TEXT, "%.*s(", WF_OPERATION, record->operation);
    for (int i = 0; i < parts; i++)
        used += snprintf(text + used, (size_t)(WF_RECORD_TEXT - used), "%s%.120s", i ? ", " : "", part[i]);
    snprintf(text + used, (size_t)(WF_RECORD_TEXT - used), ")");
    return text;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* Calls that do not belong together have different tags, so that their messages never meet: all ranks then wait until
 * the disagreement is known. The number is in it as it is, for collectives that overlap. */
static int tag_of(const wf_comm *comm, const wf_record *record)
{
    const uint64_t kinds = (uint64_t)comm->tags / 128;
    uint64_t hash = mix(record->sequence, (uint64_t)record->dtype);
    for (size_t i = 0; i < sizeof record->operation; i++)
        hash = mix(hash, (uint64_t)record->operation[i]);
    for (int d = 0; d < WF_MAX_RANK; d++)
        hash = mix(hash, (uint64_t)record->dim[d]);
    hash = mix(hash, record->plan);
    hash = mix(mix(mix(hash, (uint64_t)record->rank), (uint64_t)record->op), (uint64_t)record->root);
    return WF_TAGS + (int)(record->sequence % 128 * kinds + (hash >> 8) % kinds);
}

wf_status wf_call_enter(wf_comm *comm, const wf_record *record)
{
    WF_CHECK(!comm->inside, WF_ERR_STATE, "%.*s starts while %.*s of this communicator is not over", WF_OPERATION,
             record->operation, WF_OPERATION, comm->doing.operation);
    comm->doing = *record;
    comm->doing.sequence = ++comm->sequence;
    comm->inside = true;
    comm->traffic.collectives++;
    if (!comm->control)
        return WF_OK;
    wf_batch_start(&comm->batch, tag_of(comm, &comm->doing));
    return wf_control_announce(comm, &comm->doing);
}

wf_status wf_call_settle(wf_comm *comm)
{
    if (!comm->control)
        return WF_OK;
    WF_TRY(wf_control_poll(comm));
    for (wf_patience patience = wf_patience_new(); !wf_control_confirmed(comm);)
        WF_TRY(wf_patience_poll(comm, &patience, NULL));
    return WF_OK;
}

wf_status wf_call_point(wf_comm *comm, const char *operation, int peer, int tag)
{
    WF_CHECK(tag >= 0 && tag < WF_TAGS, WF_ERR_ARGUMENT, "tag %d is not in 0..%d", tag, WF_TAGS - 1);
    WF_TRY(wf_check_rank(comm, "peer", peer));
    WF_CHECK(!comm->inside, WF_ERR_STATE, "%s starts while %.*s of this communicator is not over", operation,
             WF_OPERATION, comm->doing.operation);
    WF_CHECK(peer != comm->rank, WF_ERR_ARGUMENT, "peer %d is this rank itself", peer);
    comm->doing = record_new(operation);
    comm->doing.peer = peer;
    comm->doing.tag = tag;
    wf_batch_start(&comm->batch, tag);
    return WF_OK;
}

wf_status wf_call_end(wf_comm *comm, const char *operation, wf_status status)
{
    const bool inside = comm->inside;
    char message[WF_FAILURE_TEXT];
    wf_status code;
    comm->inside = false;
    if (status == WF_OK)
        return WF_OK;
    if (!wf_batch_cancel(&comm->batch))
        comm->lost = true;
    if (comm->dead)
        return WF_RAISE(comm->dead, "%s", comm->death);
    wf_error_save(&code, message, sizeof message);
    if (inside)
        WF_RAISE(status, "%s (collective %llu): %.400s", operation, (unsigned long long)comm->sequence, message);
    else
        WF_RAISE(status, "%s: %.400s", operation, message);
    return wf_comm_post_failure(comm, status);
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
