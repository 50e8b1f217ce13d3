/* The records of a profile: rows by kind, name and layer, and the first events one by one. Kernels come from the table
 * of profile_kernels.c, collectives from the flight recorder (comm/safety), waits from the iterators (datasets). Main
 * thread only. It never fails in the middle of a run: what it has no memory for is left out and counted. */
#include "core/profile_impl.h"

#include "core/random_author.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Four slots for each of the first 256 rows. */
#define FIRST_SLOTS 1024

/* Tests give ranks clocks that differ, as those of different machines do. */
static int64_t moved_ns;

int64_t wf_profile_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + moved_ns;
}

void wf_profile_clock_move(int64_t ns)
{
    moved_ns = ns;
}

/* --- Life --------------------------------------------------------------------------------------------------------- */

static wf_status allocate(wf_profile *p, int64_t events)
{
    p->slots = FIRST_SLOTS;
    p->slot = malloc((size_t)p->slots * sizeof *p->slot);
    /* Events are allocated once: a record in the middle of a kernel's loop must not wait for memory to move. */
    p->event = events > 0 ? malloc((size_t)events * sizeof *p->event) : NULL; /* pages are taken as they are used */
    p->most_events = events;
    WF_CHECK(p->slot && (p->event || events == 0), WF_ERR_MEMORY, "no memory for a profile of %lld events",
             (long long)events);
    memset(p->slot, -1, (size_t)p->slots * sizeof *p->slot);
    return WF_OK;
}

/* Every kernel of the context is timed by exchanging its table, so nothing is paid where no profile is taken. */
wf_status wf_profile_begin(wf_ctx *ctx, int64_t events)
{
    WF_NEED(ctx);
    WF_CHECK(!ctx->profile, WF_ERR_STATE, "the context has a profile already");
    WF_CHECK(ctx->k->host, WF_ERR_UNSUPPORTED,
             "kernels of %s run beside the host, which cannot time them; a profiler of the device shows layers and "
             "collectives as ranges",
             ctx->k->name);
    WF_CHECK(events >= 0, WF_ERR_ARGUMENT, "a profile of %lld events: should be 0 or more", (long long)events);
    wf_profile *p = calloc(1, sizeof *p);
    WF_CHECK(p, WF_ERR_MEMORY, "no memory for a profile");
    const wf_status status = allocate(p, events);
    if (status != WF_OK) {
        wf_profile_free(p);
        return status;
    }
    p->ctx = ctx;
    p->device = ctx->k;
    p->table = *ctx->k;
    p->layer = "";
    wf_profile_table(&p->table);
    ctx->k = &p->table;
    ctx->profile = p;
    p->start_ns = wf_profile_clock();
    return WF_OK;
}

/* Reading a profile is allowed after its end: only the context gets its own table back. */
void wf_profile_end(wf_profile *profile)
{
    if (!profile || profile->end_ns)
        return;
    profile->end_ns = wf_profile_clock();
    profile->ctx->k = profile->device;
    profile->ctx->profile = NULL;
}

void wf_profile_free(wf_profile *profile)
{
    wf_profile *p = profile;
    if (!p)
        return;
    /* A profile that was never begun has no context to give back. */
    if (p->ctx)
        wf_profile_end(p);
    for (int64_t i = 0; i < p->n_names; i++)
        free(p->name[i]);
    free(p->name);
    free(p->row);
    free(p->slot);
    free(p->event);
    free(p);
}

/* --- Names -------------------------------------------------------------------------------------------------------- */

/* Layers are few, and the same ones come again and again: the list is short, and a pointer often suffices. Without
 * memory the name becomes the empty one: the time is counted, only without the name. */
static const char *copy_of(wf_profile *p, const char *name)
{
    for (int64_t i = 0; i < p->n_names; i++)
        if (p->name[i] == name || strcmp(p->name[i], name) == 0)
            return p->name[i];
    if (p->n_names == p->names_room) {
        const int64_t room = p->names_room ? 2 * p->names_room : 64;
        char **longer = realloc(p->name, (size_t)room * sizeof *longer);
        if (!longer)
            return "";
        p->name = longer;
        p->names_room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        return "";
    p->name[p->n_names++] = copy;
    return copy;
}

/* Returns the layer before, which the caller sets again: layers lie inside each other. */
const char *wf_profile_change_layer(wf_profile *profile, const char *layer)
{
    const char *before = profile->layer;
    profile->layer = layer && *layer ? copy_of(profile, layer) : "";
    return before;
}

const char *wf_profile_current(const wf_profile *profile)
{
    return profile->layer;
}

/* --- Rows --------------------------------------------------------------------------------------------------------- */

/* The place of the row in the table, or the one that it would have. Open addressing by steps of one; the table is never
 * more than a quarter full, so an empty slot is always found. */
static int32_t *place_of(const wf_profile *p, const wf_profile_row *row)
{
    uint64_t at = wf_hash_text(wf_hash_text((uint64_t)row->kind, row->name), row->layer) % (uint64_t)p->slots;
    for (;; at = (at + 1) % (uint64_t)p->slots) {
        int32_t *slot = &p->slot[at];
        const wf_profile_row *r = *slot >= 0 ? &p->row[*slot] : NULL;
        if (!r || (r->kind == row->kind && !strcmp(r->name, row->name) && !strcmp(r->layer, row->layer)))
            return slot;
    }
}

/* The table is made anew rather than moved, since places depend on its size. On failure the old one stays as it was,
 * with `room` unchanged although rows may have got more. */
static bool grow_rows(wf_profile *p)
{
    const int64_t room = p->room ? 2 * p->room : FIRST_SLOTS / 4;
    wf_profile_row *rows = realloc(p->row, (size_t)room * sizeof *rows);
    if (rows)
        p->row = rows;
    int32_t *slots = rows ? malloc((size_t)room * 4 * sizeof *slots) : NULL;
    if (!slots)
        return false;
    free(p->slot);
    p->slot = slots;
    p->slots = room * 4;
    p->room = room;
    memset(slots, -1, (size_t)p->slots * sizeof *slots);
    for (int64_t i = 0; i < p->n_rows; i++)
        *place_of(p, &p->row[i]) = (int32_t)i;
    return true;
}

/* -1 where there is no memory for it. */
static int32_t row_of(wf_profile *p, wf_profile_kind kind, const char *name)
{
    /* An iterator is waited for between layers: its time belongs to none. */
    const wf_profile_row row = {.kind = kind, .name = name, .layer = kind == WF_PROFILE_INPUT ? "" : p->layer};
    const int32_t *found = place_of(p, &row);
    if (*found >= 0)
        return *found;
    if (p->n_rows == p->room && !grow_rows(p))
        return -1;
    const int32_t i = (int32_t)p->n_rows++;
    p->row[i] = row;
    p->row[i].name = copy_of(p, name);
    /* grow_rows may have changed the table since the search above. */
    *place_of(p, &row) = i;
    return i;
}

/* Rows go on counting when the events are full, so sums are complete while the list of events is a beginning. */
void wf_profile_add(wf_profile *profile, wf_profile_kind kind, const char *name, const wf_profile_event *event)
{
    const int32_t i = row_of(profile, kind, name);
    if (i < 0 || profile->n_events == profile->most_events)
        profile->left_out++;
    if (i < 0)
        return;
    wf_profile_row *row = &profile->row[i];
    row->calls++;
    row->ns += event->end_ns - event->start_ns;
    row->flops += event->flops;
    row->bytes += event->bytes;
    row->sent += event->sent;
    if (profile->n_events == profile->most_events)
        return;
    profile->event[profile->n_events] = *event;
    profile->event[profile->n_events++].row = i;
}

int64_t wf_profile_rows(const wf_profile *profile, const wf_profile_row **rows)
{
    *rows = profile->row;
    return profile->n_rows;
}

int64_t wf_profile_events(const wf_profile *profile, const wf_profile_event **events)
{
    *events = profile->event;
    return profile->n_events;
}

int64_t wf_profile_left_out(const wf_profile *profile)
{
    return profile->left_out;
}

/* A profile that still runs counts up to now. */
int64_t wf_profile_ns(const wf_profile *profile)
{
    return (profile->end_ns ? profile->end_ns : wf_profile_clock()) - profile->start_ns;
}
