/* Records of calls: what a rank calls, with type, count, root and place in the program. The guard compares them between
 * ranks; the flight recorder and errors print them. */
#include "comm/safety/safety_impl.h"

#include "core/dtype.h"
#include "core/site_author.h"

#include <stdio.h>
#include <string.h>

wf_call_record wf_call_record_plain(const char *operation, int root)
{
    wf_call_record record = {
        .dtype = -1, .dims = -1, .op = -1, .root = root, .peer = -1, .tag = -1, .world_root = root, .world_peer = -1};
    /* Zeroed before: records travel and are compared as bytes. */
    strncpy(record.operation, operation, sizeof record.operation - 1);
    return record;
}

void wf_call_record_place(wf_call_record *record)
{
    const wf_site site = wf_site_now();
    const char *purpose = wf_site_purpose_now();
    record->line = site.line;
    record->file[0] = record->purpose[0] = '\0';
    if (site.file)
        strncpy(record->file, site.file, sizeof record->file - 1);
    if (purpose[0])
        strncpy(record->purpose, purpose, sizeof record->purpose - 1);
}

/* The place in the program is left out: two branches of a program may well make the same call. */
bool wf_call_record_equal(const wf_call_record *a, const wf_call_record *b)
{
    return a->sequence == b->sequence && !strncmp(a->operation, b->operation, sizeof a->operation) &&
           a->dtype == b->dtype && a->dims == b->dims && a->op == b->op && a->root == b->root && a->plan == b->plan &&
           !memcmp(a->dim, b->dim, sizeof a->dim);
}

const char *wf_call_record_text(const wf_call_record *record, char text[WF_RECORD_TEXT])
{
    static const char *const ops[] = {"sum", "max", "min", "prod"};
    char rank[WF_RANK_TEXT], shape[WF_SHAPE_TEXT], part[6][WF_SHAPE_TEXT] = {{0}};
    int parts = 0, used = 0;
    if (record->dims >= 0)
        snprintf(part[parts++], sizeof part[0], "%s %.100s", wf_dtype_name((wf_dtype)record->dtype),
                 wf_shape_text(wf_shape_make(record->dims, record->dim), shape));
    if (record->op >= 0 && record->op < 4)
        snprintf(part[parts++], sizeof part[0], "%s", ops[record->op]);
    if (record->root >= 0)
        snprintf(part[parts++], sizeof part[0], "root %s", wf_rank_numbers(record->world_root, record->root, rank));
    if (record->peer >= 0)
        snprintf(part[parts++], sizeof part[0], "rank %s", wf_rank_numbers(record->world_peer, record->peer, rank));
    if (record->tag >= 0)
        snprintf(part[parts++], sizeof part[0], "tag %d", record->tag);
    if (record->plan != 0)
        snprintf(part[parts++], sizeof part[0], "plan %04x", (unsigned)(record->plan & 0xffff));
    used = snprintf(text, WF_RECORD_TEXT, "%.*s(", WF_OPERATION, record->operation);
    for (int i = 0; i < parts; i++)
        used += snprintf(text + used, (size_t)(WF_RECORD_TEXT - used), "%s%.100s", i ? ", " : "", part[i]);
    used += snprintf(text + used, (size_t)(WF_RECORD_TEXT - used), ")%s%.*s", record->purpose[0] ? ", " : "",
                     WF_PURPOSE, record->purpose);
    if (record->file[0])
        snprintf(text + used, (size_t)(WF_RECORD_TEXT - used), " at %.*s:%d", WF_SITE_FILE, record->file, record->line);
    return text;
}

const char *wf_trace_event_text(const wf_trace_event *event, int64_t now_ns, char text[WF_FAILURE_TEXT])
{
    static const char *const states[] = {"", "entered", "agreed with its neighbour and entered", "done", "failed"};
    const int state = event->state >= WF_EVENT_ENTERED && event->state <= WF_EVENT_FAILED ? event->state : 0;
    char call[WF_RECORD_TEXT], rank[WF_RANK_TEXT], number[48] = "";
    if (event->call.sequence > 0)
        snprintf(number, sizeof number, ", collective %llu", (unsigned long long)event->call.sequence);
    const int64_t since = now_ns - (event->end_ns ? event->end_ns : event->start_ns);
    const bool known = event->step[0] && event->state != WF_EVENT_DONE;
    const char *waits = !known ? "" : event->state == WF_EVENT_FAILED ? ", waited for: " : ", waits for: ";
    snprintf(text, WF_FAILURE_TEXT,
             "%s%s of communicator %04x (%d ranks) as rank %s, %llu bytes sent: %s %.3f s ago%s%s",
             wf_call_record_text(&event->call, call), number, (unsigned)(event->comm & 0xffff), event->comm_size,
             wf_rank_numbers(event->world_rank, event->comm_rank, rank), (unsigned long long)event->bytes,
             states[state], (double)since * 1e-9, waits, known ? event->step : "");
    return text;
}
