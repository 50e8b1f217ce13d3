/* Captures: what would be put on the device is kept in a list, and done again by every launch, in a random order that
 * the streams and events of the capture allow. What CUDA refuses is refused, and what it would not notice ends the
 * process. */
#include "tests/fake/guard_impl.h"

#include "core/random_author.h"

#include <stdlib.h>
#include <string.h>

enum { STREAMS = 8 };

typedef struct item {
    guard_call call; /* NULL: an event */
    guard_value value[GUARD_VALUES];
    wf_event *event;
    bool waits;       /* else it is recorded */
    int64_t recorded; /* of a wait: the number of the item that records the event */
    wf_stream *stream;
    bool (*step)(void *arg);
    void *(*again)(void *arg);
    void (*drop)(void *arg);
    void *arg;
} item;

/* A stream beside the context's own, with the numbers of its last item and of the last that the own waits for. */
typedef struct branch {
    wf_stream *stream;
    int64_t last, joined;
} branch;

struct wf_graph {
    item *items;
    int64_t n, room;
    branch branches[STREAMS];
    int n_branches;
    bool launching, freed;
    wf_graph *next; /* of those that were freed while their work was on its way */
};

static wf_graph *capture; /* NULL: nothing is captured */
static wf_graph *freed;

bool guard_capturing(void)
{
    return capture != NULL;
}

wf_status guard_not_capturing(const char *what)
{
    WF_CHECK(!capture, WF_ERR_STATE, "%s while a step is captured", what);
    return WF_OK;
}

static void *clone(const void *data, size_t bytes)
{
    void *const copy = data ? malloc(bytes) : NULL;
    if (copy)
        memcpy(copy, data, bytes);
    return copy;
}

static item *keep(void)
{
    if (capture->n == capture->room) {
        capture->room = capture->room ? 2 * capture->room : 64;
        capture->items = realloc(capture->items, (size_t)capture->room * sizeof *capture->items);
    }
    item *one = &capture->items[capture->n++];
    *one = (item){0};
    return one;
}

static branch *branch_of(const wf_stream *stream)
{
    for (int i = 0; i < capture->n_branches; i++)
        if (capture->branches[i].stream == stream)
            return &capture->branches[i];
    return NULL;
}

static branch *branch_for(const wf_stream *stream)
{
    branch *b = branch_of(stream);
    if (!b)
        guard_refuse("capture", "work on a stream that does not wait for the context's");
    return b;
}

wf_status guard_keep_call(guard_call call, const guard_value value[GUARD_VALUES])
{
    wf_stream *stream = guard_stream_in_use();
    branch *b = stream ? branch_for(stream) : NULL;
    item *one = keep();
    one->call = call;
    one->stream = stream;
    memcpy(one->value, value, sizeof one->value);
    if (b)
        b->last = capture->n;
    return WF_OK;
}

void guard_keep_step(wf_stream *stream, bool (*step)(void *arg), void *(*again)(void *arg), void (*drop)(void *arg),
                     void *arg)
{
    branch *b = branch_for(stream);
    item *one = keep();
    one->stream = stream;
    one->step = step;
    one->again = again;
    one->drop = drop;
    one->arg = arg;
    b->last = capture->n;
}

wf_event *guard_keep_record(wf_ctx *ctx, wf_stream *stream, int64_t *number)
{
    wf_event *event = NULL;
    if (stream)
        branch_for(stream);
    if (guard_event_new(ctx, &event) != WF_OK)
        guard_refuse("capture", "no memory");
    item *one = keep();
    one->event = event;
    one->stream = stream;
    *number = capture->n;
    return event;
}

void guard_keep_wait(wf_event *event, const wf_stream *of, int64_t number, wf_stream *stream)
{
    if (stream && !branch_of(stream)) {
        if (capture->n_branches == STREAMS)
            guard_refuse("capture", "more streams than the double takes");
        capture->branches[capture->n_branches++] = (branch){.stream = stream};
    }
    item *one = keep();
    one->event = event;
    one->waits = true;
    one->recorded = number;
    one->stream = stream;
    branch *b = stream ? NULL : branch_of(of);
    if (b && b->joined < number)
        b->joined = number;
}

wf_status guard_capture_begin(wf_ctx *ctx)
{
    WF_TRY(guard_not_capturing("a capture begins"));
    guard_stream_catch_up();
    capture = calloc(1, sizeof *capture);
    return capture ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a capture");
}

wf_status guard_capture_end(wf_ctx *ctx, wf_graph **graph)
{
    wf_graph *ended = capture;
    bool joined = true;
    capture = NULL;
    WF_TRY(guard_stream_use(ctx, NULL));
    for (int i = 0; i < ended->n_branches; i++)
        joined = joined && ended->branches[i].last <= ended->branches[i].joined;
    if (graph && joined)
        *graph = ended;
    else
        guard_graph_free(ctx, ended);
    WF_CHECK(joined || !graph, WF_ERR_STATE, "the context's stream does not wait for all that was captured");
    return WF_OK;
}

static wf_status launch_item(wf_ctx *ctx, const item *one)
{
    if (one->call) {
        WF_TRY(guard_stream_use(ctx, one->stream));
        const wf_status status = one->call(ctx, one->value);
        WF_TRY(guard_stream_use(ctx, NULL));
        return status;
    }
    if (one->step) {
        guard_stream_step(one->stream, one->step, one->again(one->arg));
        return WF_OK;
    }
    return one->waits ? guard_event_wait(ctx, one->event, one->stream)
                      : guard_event_record(ctx, one->event, one->stream);
}

static void bury(wf_graph *graph)
{
    for (int64_t i = 0; i < graph->n; i++) {
        const item *one = &graph->items[i];
        for (int v = 0; v < GUARD_VALUES; v++)
            if (one->value[v].owned)
                free(one->value[v].p);
        if (one->event && !one->waits)
            guard_event_free(NULL, one->event);
    }
    free(graph->items);
    free(graph);
}

/* Frees the graphs of which nothing is in flight any more. */
static void sweep(void)
{
    wf_graph **at = &freed;
    while (*at && guard_streams_idle()) {
        wf_graph *graph = *at;
        if (graph->launching) {
            at = &graph->next;
            continue;
        }
        *at = graph->next;
        bury(graph);
    }
}

/* One launch of a graph. Streams are counted from 0, which is the context's own. */
typedef struct replay {
    const wf_graph *graph;
    bool *launched;            /* of each item */
    int64_t next[STREAMS + 1]; /* item of each stream; n: none is left */
} replay;

/* Every process draws the same. */
static int draw(int choices)
{
    static uint64_t draws;
    return (int)(wf_hash_u64(++draws, 20261124) % (uint64_t)choices);
}

static wf_stream *stream_at(const wf_graph *graph, int i)
{
    return i == 0 ? NULL : graph->branches[i - 1].stream;
}

static void step_to_next(replay *r, int stream)
{
    const wf_graph *graph = r->graph;
    int64_t *at = &r->next[stream];
    while (*at < graph->n && (r->launched[*at] || graph->items[*at].stream != stream_at(graph, stream)))
        ++*at;
}

/* The host would wait in it, though other streams may have work that this wait needs. */
static bool blocks(const item *one)
{
    const bool own = !one->stream && !one->waits;
    return (own && guard_stream_awaits()) || (one->call && (guard_stream_awaits() || guard_stream_busy(one->stream)));
}

/* Returns a random stream whose next item may be launched, if possible one in which the host does not wait. Returns -1
 * at the end. */
static int choose_stream(const replay *r)
{
    const wf_graph *graph = r->graph;
    int ready[STREAMS + 1], free_of_waits[STREAMS + 1], n = 0, quick = 0;
    for (int i = 0; i <= graph->n_branches; i++) {
        const item *one = r->next[i] < graph->n ? &graph->items[r->next[i]] : NULL;
        if (!one || (one->waits && !r->launched[one->recorded - 1]))
            continue;
        ready[n++] = i;
        if (!blocks(one))
            free_of_waits[quick++] = i;
    }
    if (quick > 0)
        return free_of_waits[draw(quick)];
    return n > 0 ? ready[draw(n)] : -1;
}

/* Other streams may be ahead of the context's own. */
static void go_ahead(const wf_graph *graph)
{
    for (int i = 0; i < graph->n_branches; i++)
        for (int steps = draw(4); steps > 0 && !graph->freed; steps--)
            guard_stream_go_on(graph->branches[i].stream);
}

wf_status guard_graph_launch(wf_ctx *ctx, wf_graph *graph)
{
    wf_status status = guard_not_capturing("a graph is launched");
    sweep();
    replay r = {.graph = graph, .launched = calloc((size_t)graph->n + 1, sizeof *r.launched)};
    WF_CHECK(r.launched, WF_ERR_MEMORY, "no memory for a launch");
    graph->launching = true;
    for (int i = 0; i <= graph->n_branches; i++)
        step_to_next(&r, i);
    for (int at; status == WF_OK && !graph->freed && (at = choose_stream(&r)) >= 0;) {
        r.launched[r.next[at]] = true;
        status = launch_item(ctx, &graph->items[r.next[at]]);
        step_to_next(&r, at);
        go_ahead(graph);
    }
    graph->launching = false;
    free(r.launched);
    return status;
}

/* What was launched goes on, as on a GPU; what its steps hold is given back at once. */
void guard_graph_free(wf_ctx *ctx, wf_graph *graph)
{
    if (!graph)
        return;
    for (int64_t i = 0; i < graph->n; i++)
        if (graph->items[i].drop)
            graph->items[i].drop(graph->items[i].arg);
    graph->freed = true;
    graph->next = freed;
    freed = graph;
    sweep();
}

/* --- arguments ------------------------------------------------------------------------------------------------------
 */

guard_value guard_save(const void *host, size_t bytes)
{
    return (guard_value){.p = clone(host, bytes), .owned = host != NULL};
}

/* What was packed then is stale by now. */
guard_value guard_save_array(const wf_array *a)
{
    const guard_value v = guard_save(a, sizeof *a);
    if (v.p)
        ((wf_array *)v.p)->forms = NULL;
    return v;
}
