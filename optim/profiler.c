/* The profiler as an object: begins a profile of the context (core/profile.c) and shows it at the end. */
#include "optim/profiler_impl.h"

#include <stdlib.h>

/* EVENTS: of a timeline, unless the program says how many. FIRST_POINTS: room of the list at first; it doubles. */
#define EVENTS       262144
#define FIRST_POINTS 256

struct wf_profiler {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_profile *profile;
    int table;
    char *timeline;
    wf_profiler_points points;
    wf_setup_seconds setup; /* at the begin of the profile; after its end, during it */
};

void wf_profiler_drop(wf_profiler *profiler)
{
    wf_profiler *p = profiler;
    wf_profile_free(p->profile);
    free(p->timeline);
    free(p->points.point);
    free(p);
}

static wf_status begin(wf_profiler *p, wf_profiler_opts opts)
{
    WF_CHECK(opts.events >= 0, WF_ERR_ARGUMENT, "a profiler of %lld events: should be 0 or more",
             (long long)opts.events);
    if (opts.timeline && !(p->timeline = wf_strdup(p->ctx, opts.timeline)))
        return wf_error_code();
    /* Events are kept for a timeline only; a table needs sums alone. */
    WF_TRY(wf_profile_begin(p->ctx, opts.timeline ? (opts.events ? opts.events : EVENTS) : 0));
    p->profile = p->ctx->profile;
    return WF_OK;
}

wf_profiler *wf_profiler_open(wf_comm *comm, wf_profiler_opts opts)
{
    if (!comm)
        return NULL;
    wf_profiler *p = wf_calloc(wf_comm_ctx(comm), 1, sizeof *p);
    if (!p)
        return wf_error_null();
    p->comm = comm;
    p->ctx = wf_comm_ctx(comm);
    p->table = opts.table;
    p->setup = wf_ctx_setup_seconds(p->ctx);
    if (begin(p, opts) == WF_OK)
        return p;
    wf_profiler_drop(p);
    return wf_error_null();
}

/* A point that finds no memory is left out: a timeline is no reason to stop a training. */
void wf_profiler_point(wf_profiler *profiler, const wf_device_point *point)
{
    wf_profiler_points *points = &profiler->points;
    if (!profiler->timeline)
        return;
    if (points->n == points->room) {
        const int64_t room = points->room ? 2 * points->room : FIRST_POINTS;
        wf_device_point *longer = realloc(points->point, (size_t)room * sizeof *longer);
        if (!longer)
            return;
        points->point = longer;
        points->room = room;
    }
    points->point[points->n++] = *point;
}

/* All ranks measure at once, as they compute at once. */
static wf_status show_table(const wf_profiler *p)
{
    wf_profiler_peak peak = {0};
    /* The barrier lets no rank measure its peak while another still computes. */
    WF_TRY(wf_barrier(p->comm));
    WF_TRY(wf_agree_status(p->comm, wf_profiler_measure(p->ctx, &peak)));
    const bool shows = wf_comm_rank(p->comm) == 0 && p->table;
    return wf_bcast_status(p->comm, shows ? wf_profiler_table(p->comm, p->profile, peak, p->setup, p->table) : WF_OK,
                           0);
}

/* Ends the count of seconds before the peak is measured, which makes plans, too. */
static void end_setup(wf_profiler *p)
{
    const wf_setup_seconds now = wf_ctx_setup_seconds(p->ctx);
    p->setup.planning = now.planning - p->setup.planning;
    p->setup.tuning = now.tuning - p->setup.tuning;
    p->setup.capturing = now.capturing - p->setup.capturing;
}

wf_status wf_profiler_close(wf_profiler *profiler)
{
    wf_profiler *p = profiler;
    if (!p)
        return WF_OK;
    wf_profile_end(p->profile);
    end_setup(p);
    /* One rank that wants a table makes all measure, since they measure together. */
    int64_t tables = p->table != 0;
    wf_status status = wf_allreduce_i64(p->comm, &tables, 1, WF_MAX);
    if (status == WF_OK && p->timeline)
        status = wf_profiler_timeline(p->comm, p->profile, &p->points, p->timeline);
    if (status == WF_OK && tables)
        status = show_table(p);
    wf_profiler_drop(p);
    return status;
}
