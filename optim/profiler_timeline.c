/* The time line of all ranks in Chrome's trace format. Every rank writes its events as text, in the time of rank 0's
 * clock, and rank 0 puts the texts into one file. Collective; each text is as long as the events that the profile has
 * room for. */
#include "optim/json_impl.h"
#include "optim/profiler_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Clocks of machines differ by seconds; half a fast round trip is the error that is left. */
#define ROUNDS 32 /* of messages, by which two clocks are compared */
#define TAG    16383

/* --- Clocks ------------------------------------------------------------------------------------------------------- */

/* A message of two numbers. */
static wf_status send_pair(wf_comm *comm, wf_tensor *pair, int64_t a, int64_t b, int to)
{
    WF_TRY(wf_tensor_import(pair, (int64_t[]){a, b}, 2 * sizeof a));
    return wf_send(comm, pair, to, TAG);
}

static wf_status recv_pair(wf_comm *comm, wf_tensor *pair, int64_t value[2], int from)
{
    WF_TRY(wf_recv(comm, pair, from, TAG));
    return wf_tensor_export(pair, value, 2 * sizeof *value);
}

/* Rank 0: what to add to the other's clock, by the fastest of some questions: its answer was given in the middle
 * (Cristian, 1989). Slow ones waited somewhere, on the way there or back. */
static wf_status compare_clocks(wf_comm *comm, wf_tensor *pair, int other, int64_t *offset)
{
    int64_t fastest = INT64_MAX, value[2];
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t start = wf_profile_clock();
        WF_TRY(send_pair(comm, pair, 0, 0, other));
        WF_TRY(recv_pair(comm, pair, value, other));
        const int64_t end = wf_profile_clock();
        if (end - start < fastest) {
            fastest = end - start;
            *offset = start + (end - start) / 2 - value[0];
        }
    }
    return WF_OK;
}

/* Returns in *offset what each rank adds to its clock to get that of rank 0. One rank after the other, since rank 0
 * answers by its own clock. */
static wf_status align(wf_comm *comm, wf_tensor *pair, int64_t *offset)
{
    int64_t value[2] = {0};
    *offset = 0;
    if (wf_comm_rank(comm) > 0) {
        for (int i = 0; i < ROUNDS; i++) {
            WF_TRY(recv_pair(comm, pair, value, 0));
            WF_TRY(send_pair(comm, pair, wf_profile_clock(), 0, 0));
        }
        WF_TRY(recv_pair(comm, pair, value, 0));
        *offset = value[0];
        return WF_OK;
    }
    for (int r = 1; r < wf_comm_size(comm); r++) {
        int64_t of_rank = 0;
        WF_TRY(compare_clocks(comm, pair, r, &of_rank));
        WF_TRY(send_pair(comm, pair, of_rank, 0, r));
    }
    return WF_OK;
}

/* --- Text --------------------------------------------------------------------------------------------------------- */

/* A process for each rank and a thread for each kind of event, as viewers draw them. */
static void write_head(FILE *file, const wf_comm *comm)
{
    const int rank = wf_comm_rank(comm);
    static const char *const threads[WF_PROFILE_KINDS] = {"kernels", "collectives", "input"};
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    fprintf(file,
            "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"rank %s on %s\"}},\n",
            rank, WF_RANK(comm, rank), host);
    for (int k = 0; k < WF_PROFILE_KINDS; k++)
        fprintf(file,
                "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s\"}},\n",
                rank, k, threads[k]);
}

static void write_event(FILE *file, int rank, const wf_profile_event *e, const wf_profile_row *row, int64_t offset)
{
    static const char *const kinds[WF_PROFILE_KINDS] = {"kernel", "collective", "input"};
    fputs("{\"name\": ", file);
    wf_json_text(file, row->name);
    fprintf(file, ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f",
            /* Microseconds, as the format wants. */
            kinds[row->kind], rank, (int)row->kind, 1e-3 * (double)(e->start_ns + offset),
            1e-3 * (double)(e->end_ns - e->start_ns));
    if (row->kind != WF_PROFILE_INPUT)
        fprintf(file, ", \"args\": {\"bytes\": %.0f", e->bytes);
    if (row->kind == WF_PROFILE_KERNEL) {
        fprintf(file, ", \"flops\": %.0f, \"layer\": ", e->flops);
        wf_json_text(file, row->layer);
    } else if (row->kind == WF_PROFILE_COLLECTIVE) {
        fprintf(file, ", \"sent\": %.0f", e->sent);
    }
    fputs(row->kind != WF_PROFILE_INPUT ? "}},\n" : "},\n", file);
}

/* Counters, which viewers draw as curves above the rows of their rank. */
static void write_point(FILE *file, int rank, const wf_device_point *point, int64_t offset)
{
    static const char *const words[WF_DEVICE_VALUES] = WF_DEVICE_WORDS;
    /* A device that cannot tell a value says NaN. */
    for (int i = 0; i < WF_DEVICE_VALUES; i++)
        if (isfinite(point->value[i]))
            fprintf(file,
                    "{\"name\": \"%s\", \"ph\": \"C\", \"pid\": %d, \"ts\": %.3f, \"args\": {\"value\": %.6g}},\n",
                    words[i], rank, 1e-3 * (double)(point->ns + offset), point->value[i]);
}

/* `free` the text. Its last event is followed by a comma, too. */
static wf_status write_own(wf_comm *comm, const wf_profile *profile, const wf_profiler_points *points, int64_t offset,
                           char **text, size_t *bytes)
{
    const wf_profile_event *event;
    const wf_profile_row *row;
    const int64_t n = wf_profile_events(profile, &event);
    wf_profile_rows(profile, &row);
    FILE *file = open_memstream(text, bytes);
    WF_CHECK(file, WF_ERR_MEMORY, "no memory for a time line");
    write_head(file, comm);
    for (int64_t i = 0; i < n; i++)
        write_event(file, wf_comm_rank(comm), &event[i], &row[event[i].row], offset);
    for (int64_t i = 0; i < points->n; i++)
        write_point(file, wf_comm_rank(comm), &points->point[i], offset);
    const bool failed = ferror(file);
    WF_CHECK(fclose(file) == 0 && !failed, WF_ERR_MEMORY, "no memory for a time line of %lld events", (long long)n);
    return WF_OK;
}

/* --- File --------------------------------------------------------------------------------------------------------- */

/* The text of another rank, added to the file. One text at a time is in rank 0's memory. */
static wf_status take_text(wf_comm *comm, int from, FILE *file)
{
    wf_tensor *text = wf_recv_new(comm, from, TAG);
    WF_NEED(text);
    const size_t bytes = wf_tensor_bytes(text);
    char *host = malloc(bytes + 1);
    wf_status status =
        host ? wf_tensor_export(text, host, bytes) : WF_RAISE(WF_ERR_MEMORY, "no memory for a time line");
    if (status == WF_OK)
        fwrite(host, 1, bytes, file);
    free(host);
    wf_tensor_free(text);
    return status;
}

static wf_status give_text(wf_comm *comm, const char *text, size_t bytes)
{
    wf_tensor *tensor = wf_tensor_from_host(wf_comm_ctx(comm), WF_U8, WF_SHAPE((int64_t)bytes), text);
    WF_NEED(tensor);
    const wf_status status = wf_send_new(comm, tensor, 0, TAG);
    wf_tensor_free(tensor);
    return status;
}

/* Rank 0. */
static wf_status write_file(wf_comm *comm, const wf_profile *profile, const char *text, size_t bytes, FILE *file)
{
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file);
    fwrite(text, 1, bytes, file);
    for (int r = 1; r < wf_comm_size(comm); r++)
        WF_TRY(take_text(comm, r, file));
    /* The last entry has no comma: it closes the list. */
    fprintf(file, "{\"name\": \"events left out\", \"ph\": \"M\", \"pid\": 0, \"args\": {\"count\": %lld}}\n]}\n",
            (long long)wf_profile_left_out(profile));
    return WF_OK;
}

static wf_status bring_together(wf_comm *comm, const wf_profile *profile, const wf_profiler_points *points, FILE *file)
{
    char *text = NULL;
    size_t bytes = 0;
    int64_t offset;
    wf_tensor *pair = wf_tensor_new(wf_comm_ctx(comm), WF_I64, WF_SHAPE(2));
    WF_NEED(pair);
    wf_status status = align(comm, pair, &offset);
    wf_tensor_free(pair);
    if (status == WF_OK)
        status = write_own(comm, profile, points, offset, &text, &bytes);
    if (status == WF_OK)
        status = wf_comm_rank(comm) > 0 ? give_text(comm, text, bytes) : write_file(comm, profile, text, bytes, file);
    free(text);
    return wf_comm_post_failure(comm, status);
}

wf_status wf_profiler_timeline(wf_comm *comm, const wf_profile *profile, const wf_profiler_points *points,
                               const char *path)
{
    FILE *file = NULL;
    wf_status status = WF_OK;
    if (wf_comm_rank(comm) == 0 && !(file = fopen(path, "w")))
        status = WF_RAISE(WF_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    /* Only rank 0 has the file; all learn of its failure before they measure clocks. */
    WF_TRY(wf_bcast_status(comm, status, 0));
    status = bring_together(comm, profile, points, file);
    const bool failed = file && ferror(file);
    /* Data may be lost as late as in fclose. */
    if (file && (fclose(file) != 0 || failed) && status == WF_OK)
        status = WF_RAISE(WF_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    WF_TRY(wf_comm_alive(comm));
    return wf_bcast_status(comm, status, 0);
}
