/* Captures: what would be put on the device is kept in a list, in its order, and done again by every launch. What CUDA
 * refuses is refused, and what it would not notice ends the process. */
#include "tests/fake/guard_impl.h"

#include <stdlib.h>
#include <string.h>

enum { STREAMS = 8 };

typedef struct item {
    guard_call call; /* NULL: an event */
    guard_value value[GUARD_VALUES];
    wf_event *event;
    bool waits; /* else it is recorded */
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

/* Those of which nothing is on its way any more. */
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

wf_status guard_graph_launch(wf_ctx *ctx, wf_graph *graph)
{
    wf_status status = guard_not_capturing("a graph is launched");
    sweep();
    graph->launching = true;
    for (int64_t i = 0; i < graph->n && status == WF_OK && !graph->freed; i++)
        status = launch_item(ctx, &graph->items[i]);
    graph->launching = false;
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
