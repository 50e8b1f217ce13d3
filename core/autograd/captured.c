/* Captured steps: a step of fixed shape is recorded by the device once, and launched as a whole from then on.
 *
 * Actors. The program calls wf_captured_run for every step. Library code that runs inside the step says what a replay
 * must repeat on the host (wf_ctx_capture_host_op, wf_ctx_send, wf_ctx_repeat), what must happen after every launch
 * (wf_ctx_after_capture), what it depends on (wf_ctx_capture_uses), and what cannot be captured
 * (wf_ctx_forbid_capture). The device records the work that the step enqueues, and replays it.
 *
 *     runs 1, 2   rehearsals: the step is called; what is made once is made here (plans, pool blocks, connections)
 *     run 3       capture: the step is called while the device records; host operations become entries; then a launch
 *     run 4 ...   replay: checks, host operations, one copy of their values to the device, launch, callbacks
 *
 * A host operation computes a number that changes from step to step (a learning rate, the key of random numbers). All
 * of them write to `values`; the copy to device_values precedes the launch, and the recorded work copies each number to
 * its place from there. So no replay needs a transfer between its kernels.
 *
 * Guarantees. A replay computes what the step would. Checks come before operations that count, so a refused replay has
 * changed nothing. Memory that the step took while it was recorded is claimed (core/pool.c): other work never gets it,
 * as the recorded kernels write to the same addresses every time.
 *
 * What may happen meanwhile. A communicator that the step uses may die or close: wf_ctx_end_captures frees the graph of
 * each captured step that uses it, and nothing else, since a launch may still be in flight; further runs return its
 * error. Of one context, no captured step runs inside another.
 *
 * Failure. Of each call of the step the first reason that bars a capture is kept (`why`). A rehearsal goes on all the
 * same; run 3 and later ones return it. After an error in the capture the counts of host operations are undone in
 * reverse order, all that the capture made is freed, and the next run tries again, unless the step is barred. On a
 * device that cannot capture every run calls the step. */
#include "core/captured_author.h"

#include "core/log.h"
#include "core/pool_impl.h"
#include "core/profile_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first run allocates what is made once; the second is already like all further ones. */
enum { REHEARSALS = 2, VALUES = 16 << 10, ALIGN = 16, WHY = 640 };

/* An operation of the host and the place of its value; without an operation, a constant value. */
typedef struct entry {
    wf_host_op op;
    size_t at; /* of its value in `values` */
} entry;

typedef struct callback {
    wf_status (*act)(void *own);
    void *own;
} callback;

typedef struct callbacks {
    callback *list;
    int64_t n;
} callbacks;

struct wf_captured {
    wf_ctx *ctx;
    wf_status (*step)(void *arg);
    void *arg;
    int rehearsed;   /* rehearsals that succeeded */
    bool capturing;  /* the step is being called while the device records */
    wf_graph *graph; /* NULL until it is captured */
    wf_claim *claim; /* its memory */
    entry *entries;
    int64_t n_entries;
    callbacks after;                  /* called after every launch */
    callbacks users;                  /* an `act` returns an error if its `own` no longer lives */
    struct wf_captured *next, **here; /* of the context's list */
    /* All values are copied to the device together, before a launch; the captured step then copies each to its place at
     * the right time.
     */
    unsigned char *values;
    void *device_values;
    size_t used;     /* of the VALUES bytes */
    bool barred;     /* the last call of the step met something that cannot be captured */
    wf_status ended; /* something that it uses has ended */
    char why[WHY];   /* what barred the last rehearsal, or the capture, or how that ended */
};

/* --- for library code ----------------------------------------------------------------------------------------------
 */

bool wf_ctx_capturing(const wf_ctx *ctx)
{
    return ctx->captured && ctx->captured->capturing;
}

static wf_status refuse(const wf_captured *c)
{
    WF_FAIL(WF_ERR_UNSUPPORTED, "%s", c->why);
}

wf_status wf_ctx_forbid_capture(wf_ctx *ctx, const char *what, const char *instead)
{
    wf_captured *c = ctx->captured;
    if (!c)
        return WF_OK;
    /* The first reason is told; what follows from it would confuse. A rehearsal goes on, so that the program's first
     * runs work either way. */
    if (!c->barred)
        snprintf(c->why, sizeof c->why, "a captured step cannot %s; %s", what, instead);
    c->barred = true;
    return c->capturing ? refuse(c) : WF_OK;
}

/* Adds an operation to those of every replay, and puts the copy of its value, if it has one, into the graph. */
static wf_status add_entry(wf_captured *c, const wf_host_op *op)
{
    entry *more = wf_realloc(c->ctx, c->entries, (size_t)(c->n_entries + 1) * sizeof *more);
    if (!more)
        return wf_error_code();
    c->entries = more;
    more[c->n_entries] = (entry){*op, c->used};
    if (op->bytes == 0)
        c->n_entries++;
    if (op->bytes == 0)
        return WF_OK;
    WF_CHECK(c->used + op->bytes <= VALUES, WF_ERR_UNSUPPORTED,
             "a captured step with more than %d bytes of numbers that change; capture it in parts", VALUES);
    const wf_strided from = {(char *)c->device_values + c->used, WF_U8, 1, {(int64_t)op->bytes}, {1}};
    const wf_strided to = {op->device, WF_U8, 1, {(int64_t)op->bytes}, {1}};
    WF_TRY(c->ctx->k->copy(c->ctx, &from, &to, false));
    c->used += (op->bytes + ALIGN - 1) / ALIGN * ALIGN;
    c->n_entries++;
    return WF_OK;
}

wf_status wf_ctx_capture_host_op(wf_ctx *ctx, wf_host_op op)
{
    _Alignas(ALIGN) unsigned char value[WF_HOST_OP_BYTES];
    WF_CHECK(op.bytes <= sizeof value, WF_ERR_ARGUMENT, "%zu bytes from an operation of the host, at most %zu",
             op.bytes, sizeof value);
    if (wf_ctx_capturing(ctx)) {
        wf_captured *c = ctx->captured;
        const size_t at = c->used;
        WF_TRY(add_entry(c, &op));
        return op.act(op.own, op.number, c->values + at);
    }
    WF_TRY(op.act(op.own, op.number, value));
    return op.bytes > 0 ? ctx->k->to_device(ctx, op.device, value, op.bytes) : WF_OK;
}

wf_status wf_ctx_send(wf_ctx *ctx, void *device, const void *host, size_t bytes)
{
    wf_captured *c = ctx->captured;
    if (!wf_ctx_capturing(ctx))
        return ctx->k->to_device(ctx, device, host, bytes);
    const size_t at = c->used;
    WF_TRY(add_entry(c, &(wf_host_op){.device = device, .bytes = bytes}));
    memcpy(c->values + at, host, bytes);
    return WF_OK;
}

void wf_ctx_repeat(wf_ctx *ctx, wf_status (*act)(void *own, double number, void *value), void *own)
{
    wf_captured *c = ctx->captured;
    if (!wf_ctx_capturing(ctx) || add_entry(c, &(wf_host_op){.act = act, .own = own}) == WF_OK)
        return;
    /* The callers change a count and cannot fail, so the capture does (run_step). */
    snprintf(c->why, sizeof c->why, "%s", wf_error_message());
    c->barred = true;
}

/* Each pair once: a step may use a communicator hundreds of times. */
static wf_status enlist(wf_ctx *ctx, callbacks *f, wf_status (*act)(void *own), void *own)
{
    for (int64_t i = 0; i < f->n; i++)
        if (f->list[i].act == act && f->list[i].own == own)
            return WF_OK;
    callback *more = wf_realloc(ctx, f->list, (size_t)(f->n + 1) * sizeof *more);
    if (!more)
        return wf_error_code();
    f->list = more;
    more[f->n++] = (callback){act, own};
    return WF_OK;
}

wf_status wf_ctx_after_capture(wf_ctx *ctx, wf_status (*act)(void *own), void *own)
{
    return wf_ctx_capturing(ctx) ? enlist(ctx, &ctx->captured->after, act, own) : WF_OK;
}

wf_status wf_ctx_capture_uses(wf_ctx *ctx, wf_status (*alive)(void *own), void *own)
{
    return wf_ctx_capturing(ctx) ? enlist(ctx, &ctx->captured->users, alive, own) : WF_OK;
}

static bool uses(const wf_captured *c, const void *own)
{
    for (int64_t i = 0; i < c->users.n; i++)
        if (c->users.list[i].own == own)
            return true;
    return false;
}

/* Nothing else is freed: what was launched may still be on its way. */
void wf_ctx_end_captures(wf_ctx *ctx, const void *own, wf_status status, const char *why)
{
    for (wf_captured *c = ctx->captured_list; c; c = c->next) {
        if (!uses(c, own))
            continue;
        if (c->graph)
            ctx->k->graph_free(ctx, c->graph);
        c->graph = NULL;
        c->users.n = 0;
        c->ended = status;
        snprintf(c->why, sizeof c->why, "%s", why);
    }
}

/* --- the runs ------------------------------------------------------------------------------------------------------
 */

wf_captured *wf_capture(wf_ctx *ctx, wf_status (*step)(void *arg), void *arg)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(step, WF_ERR_ARGUMENT, "wf_capture without a step");
    wf_captured *c = wf_calloc(ctx, 1, sizeof *c);
    if (!c)
        return wf_error_null();
    *c = (wf_captured){.ctx = ctx, .step = step, .arg = arg, .next = ctx->captured_list, .here = &ctx->captured_list};
    if (c->next)
        c->next->here = &c->next;
    ctx->captured_list = c;
    wf_live_add(ctx, WF_LIVE_CAPTURED, 1);
    if (!ctx->k->capture_begin)
        wf_log_write(WF_LOG_INFO, "device \"%s\" captures no steps: they run as they are", ctx->k->name);
    return c;
}

/* Everything that a capture made. */
static void forget_capture(wf_captured *c)
{
    wf_ctx *ctx = c->ctx;
    if (c->graph)
        ctx->k->graph_free(ctx, c->graph);
    c->graph = NULL;
    wf_pool_claim_drop(ctx, c->claim);
    c->claim = NULL;
    wf_pool_give(ctx, c->device_values, VALUES);
    c->device_values = NULL;
    free(c->values);
    free(c->entries);
    free(c->after.list);
    free(c->users.list);
    c->values = NULL;
    c->entries = NULL;
    c->after = c->users = (callbacks){0};
    c->n_entries = 0;
    c->used = 0;
}

void wf_captured_free(wf_captured *captured)
{
    if (!captured)
        return;
    forget_capture(captured);
    *captured->here = captured->next;
    if (captured->next)
        captured->next->here = captured->here;
    wf_live_add(captured->ctx, WF_LIVE_CAPTURED, -1);
    free(captured);
}

bool wf_captured_replays(const wf_captured *captured)
{
    return captured && captured->graph;
}

static wf_status call_step(wf_captured *c, bool capturing)
{
    c->barred = false;
    c->capturing = capturing;
    c->ctx->captured = c;
    const wf_status status = c->step(c->arg);
    c->ctx->captured = NULL;
    c->capturing = false;
    return status;
}

static wf_status call_all(const callbacks *f)
{
    for (int64_t i = 0; i < f->n; i++)
        WF_TRY(f->list[i].act(f->list[i].own));
    return WF_OK;
}

/* An answer may be that this is known already, or what ends the captures. */
static wf_status ask_users(const wf_captured *c)
{
    WF_TRY(call_all(&c->users));
    return c->ended == WF_OK ? WF_OK : WF_RAISE(c->ended, "%s", c->why);
}

/* Checks come first: they may refuse the run (an optimizer that was given a wrong rate), and then nothing was changed.
 */
static wf_status act_all(const wf_captured *c, bool checks)
{
    for (int64_t i = 0; i < c->n_entries; i++) {
        const entry *e = &c->entries[i];
        if (e->op.act && e->op.check == checks)
            WF_TRY(e->op.act(e->op.own, e->op.number, c->values + e->at));
    }
    return WF_OK;
}

static wf_status launch_graph(const wf_captured *c)
{
    wf_ctx *ctx = c->ctx;
    if (c->used > 0)
        WF_TRY(ctx->k->to_device(ctx, c->device_values, c->values, c->used));
    WF_TRY(ctx->k->graph_launch(ctx, c->graph));
    return call_all(&c->after);
}

/* Undoes what the host has counted during an abandoned capture. */
static void undo_counts(const wf_captured *c)
{
    for (int64_t i = c->n_entries - 1; i >= 0; i--)
        if (c->entries[i].op.undo)
            c->entries[i].op.undo(c->entries[i].op.own, c->entries[i].op.number);
}

/* Runs the step between begin and end of a capture. An error of the step takes precedence; the capture is then only
 * ended. */
static wf_status record_graph(wf_captured *c)
{
    wf_ctx *ctx = c->ctx;
    WF_TRY(ctx->k->capture_begin(ctx));
    wf_pool_claim_begin(ctx);
    /* Invalidates packed forms, so that the capture contains the work that makes them: a replay needs it, too. */
    ctx->epoch = ++ctx->captures << 40;
    wf_status status = call_step(c, true);
    ctx->epoch = 0;
    if (status == WF_OK && c->barred)
        status = refuse(c);
    const wf_status ended = ctx->k->capture_end(ctx, status == WF_OK ? &c->graph : NULL);
    const wf_status claimed = wf_pool_claim_end(ctx, &c->claim);
    status = status != WF_OK ? status : ended;
    status = status != WF_OK ? status : claimed;
    /* A communicator that the step uses may have ended meanwhile: a launch would wait for it on the device. */
    status = status != WF_OK ? status : ask_users(c);
    if (status != WF_OK && c->graph) {
        ctx->k->graph_free(ctx, c->graph);
        c->graph = NULL;
    }
    return status;
}

static wf_status capture(wf_captured *c)
{
    void *memory = NULL;
    if (c->barred)
        return refuse(c);
    WF_TRY(wf_pool_take(c->ctx, VALUES, &memory));
    c->device_values = memory;
    c->values = wf_calloc(c->ctx, 1, VALUES);
    if (!c->values)
        return wf_error_code();
    /* Plans that the step makes meanwhile count as such, and not twice. */
    const int64_t start = wf_profile_clock(), plans = c->ctx->planning_ns + c->ctx->tuning_ns;
    const wf_status status = record_graph(c);
    c->ctx->capturing_ns += wf_profile_clock() - start - (c->ctx->planning_ns + c->ctx->tuning_ns - plans);
    return status != WF_OK ? status : launch_graph(c);
}

static wf_status run_step(wf_captured *c)
{
    WF_CHECK(!c->ctx->captured, WF_ERR_STATE, "a captured step runs inside another; let one function be the step");
    WF_TRY(ask_users(c));
    if (c->graph) {
        /* Checks first: a replay that is refused must not have counted anything. */
        WF_TRY(act_all(c, true));
        WF_TRY(act_all(c, false));
        return launch_graph(c);
    }
    if (!c->ctx->k->capture_begin)
        return c->step(c->arg);
    if (c->rehearsed < REHEARSALS) {
        const wf_status status = call_step(c, false);
        c->rehearsed += status == WF_OK;
        return status;
    }
    const wf_status status = capture(c);
    if (status == WF_OK || c->graph)
        return status;
    /* The first error message is kept; errors that follow from it are not reported. */
    if (call_all(&c->after) != WF_OK)
        wf_log_write(WF_LOG_WARN, "after a capture was given up: %s", wf_error_message());
    undo_counts(c);
    forget_capture(c);
    return status;
}

wf_status wf_captured_run(wf_captured *captured)
{
    WF_NEED(captured);
    return run_step(captured);
}
