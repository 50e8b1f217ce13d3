/* Streams and events of the guarded device. Work is done late, so that a missing wait shows up as a wrong result. */
#include "tests/fake/guard_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOKS = 100, REST_NS = 20000 };

/* What waits on a stream: a step of a caller, or a copy, or an event that it waits for or that comes to pass. */
typedef struct work {
    struct work *next;
    bool (*step)(void *arg);
    void *arg;
    void *to;
    const void *from;
    size_t bytes;
    wf_event *awaited, *reached;
    uint64_t number; /* of the event's records */
    wf_stream *on;   /* where that record was made: a later one may be elsewhere */
} work;

struct wf_stream {
    work *first, **last;
};

struct wf_event {
    wf_stream *stream; /* of the last record; NULL: the context's own, where it is done at once */
    uint64_t recorded, passed;
    wf_event *inside; /* the last record was captured: what stands for it there */
    int64_t number;
};

static wf_stream *in_use;
/* What the context's own stream waits for. */
static struct {
    wf_event *event;
    uint64_t number;
    wf_stream *on;
} awaited[64];
static int awaiting;

static int64_t waiting; /* on all streams */
static int64_t steps;   /* of these, those that have a step of their own */

static void put(wf_stream *stream, work w)
{
    work *one = malloc(sizeof *one);
    if (!one)
        guard_refuse("stream", "no memory");
    *one = w;
    one->next = NULL;
    waiting++;
    steps += w.step != NULL;
    *stream->last = one;
    stream->last = &one->next;
}

/* One step of what comes first; false where that has to wait. */
static bool advance(wf_stream *stream);

static bool reach(const wf_event *event, uint64_t number, wf_stream *on)
{
    if (event->passed < number && on)
        advance(on);
    return event->passed >= number;
}

static bool perform(const work *w)
{
    if (w->step)
        return w->step(w->arg);
    if (w->awaited)
        return reach(w->awaited, w->number, w->on);
    if (w->reached && w->reached->passed < w->number)
        w->reached->passed = w->number;
    if (w->bytes > 0) {
        guard_open();
        memcpy(w->to, w->from, w->bytes);
        guard_close();
    }
    return true;
}

static bool advance(wf_stream *stream)
{
    work *w = stream->first;
    if (!w)
        return true;
    if (!perform(w))
        return false;
    stream->first = w->next;
    if (!stream->first)
        stream->last = &stream->first;
    waiting--;
    steps -= w->step != NULL;
    free(w);
    return true;
}

/* After a look in vain: soon the processor is left to the ranks that are waited for. */
static void rest(int *looks)
{
    if (++*looks > LOOKS)
        nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
}

/* Until nothing is left on the stream. */
static void drain(wf_stream *stream)
{
    for (int looks = 0; stream && stream->first;)
        if (!advance(stream))
            rest(&looks);
}

bool guard_streams_step(void)
{
    return steps > 0;
}

bool guard_streams_idle(void)
{
    return waiting == 0 && awaiting == 0;
}

/* The context that made streams: its slots wait here, where a device's would not, as the host waits elsewhere. */
static wf_ctx *waiter;

void guard_stream_catch_up(void)
{
    wf_wait wait = {0};
    guard_here();
    for (int i = 0, looks = 0; i < awaiting; i++)
        for (; !reach(awaited[i].event, awaited[i].number, awaited[i].on); rest(&looks))
            if (waiter && waiter->waiting && waiter->waiting(waiter->comm, &wait) != WF_OK)
                wait = (wf_wait){0}; /* what is given up ends by itself */
    awaiting = 0;
    drain(in_use);
}

bool guard_stream_awaits(void)
{
    return awaiting > 0;
}

bool guard_stream_busy(const wf_stream *stream)
{
    return stream && stream->first;
}

void guard_stream_go_on(wf_stream *stream)
{
    advance(stream);
}

void guard_stream_step(wf_stream *stream, bool (*step)(void *arg), void *arg)
{
    if (!stream)
        guard_refuse("stream", "a step on the context's own");
    put(stream, (work){.step = step, .arg = arg});
}

wf_status guard_stream_new(wf_ctx *ctx, wf_stream **stream)
{
    wf_stream *s = wf_calloc(ctx, 1, sizeof *s);
    if (!s)
        return wf_error_code();
    s->last = &s->first;
    guard_here();
    *stream = s;
    waiter = ctx;
    return WF_OK;
}

/* As a GPU's: waits for what is on the stream, and meanwhile asks for failures of other ranks. */
void guard_stream_free(wf_ctx *ctx, wf_stream *stream)
{
    wf_wait wait = {0};
    if (ctx->waiting && ctx->waiting(ctx->comm, &wait) != WF_OK)
        guard_refuse("stream_free", "a wait that fails");
    waiter = NULL;
    for (work *w = stream ? stream->first : NULL, *next; w; w = next) {
        next = w->next;
        waiting--;
        steps -= w->step != NULL;
        free(w);
    }
    free(stream);
}

wf_stream *guard_stream_in_use(void)
{
    return in_use;
}

wf_status guard_stream_use(wf_ctx *ctx, wf_stream *stream)
{
    in_use = stream;
    guard_here();
    return WF_OK;
}

wf_status guard_stream_finish(wf_ctx *ctx, wf_stream *stream)
{
    WF_TRY(guard_not_capturing("a stream is waited for"));
    if (!stream)
        guard_stream_catch_up();
    drain(stream);
    return WF_OK;
}

wf_status guard_event_new(wf_ctx *ctx, wf_event **event)
{
    *event = wf_calloc(ctx, 1, sizeof **event);
    return *event ? WF_OK : wf_error_code();
}

void guard_event_free(wf_ctx *ctx, wf_event *event)
{
    for (int i = 0; i < awaiting; i++)
        if (awaited[i].event == event)
            awaited[i--] = awaited[--awaiting];
    free(event);
}

/* Refuses an event that was recorded in a capture: it cannot be used outside of it. */
static void need_outside(const char *what, const wf_event *event)
{
    if (event->inside)
        guard_refuse(what, "of an event that was recorded in a capture");
}

wf_status guard_event_record(wf_ctx *ctx, wf_event *event, wf_stream *stream)
{
    event->inside = NULL;
    if (guard_capturing()) {
        event->stream = stream;
        event->inside = guard_keep_record(ctx, stream, &event->number);
        return WF_OK;
    }
    event->recorded++;
    event->stream = stream;
    if (!stream) {
        guard_stream_catch_up();
        event->passed = event->recorded;
    } else {
        put(stream, (work){.reached = event, .number = event->recorded});
    }
    return WF_OK;
}

wf_status guard_event_wait(wf_ctx *ctx, wf_event *event, wf_stream *stream)
{
    if (guard_capturing()) {
        WF_CHECK(event->inside, WF_ERR_STATE, "what is captured waits for an event from outside");
        guard_keep_wait(event->inside, event->stream, event->number, stream);
        return WF_OK;
    }
    need_outside("event_wait", event);
    if (event->passed == event->recorded)
        return WF_OK;
    if (stream) {
        put(stream, (work){.awaited = event, .number = event->recorded, .on = event->stream});
        return WF_OK;
    }
    if (awaiting == sizeof awaited / sizeof *awaited)
        guard_stream_catch_up();
    awaited[awaiting].event = event;
    awaited[awaiting].on = event->stream;
    awaited[awaiting++].number = event->recorded;
    return WF_OK;
}

wf_status guard_event_done(wf_ctx *ctx, wf_event *event, bool *done)
{
    WF_TRY(guard_not_capturing("an event is asked for"));
    need_outside("event_done", event);
    *done = event->passed == event->recorded;
    if (!*done)
        reach(event, event->recorded, event->stream);
    return WF_OK;
}

static void copy(void *to, const void *from, size_t bytes, wf_stream *stream)
{
    if (stream) {
        put(stream, (work){.to = to, .from = from, .bytes = bytes});
        return;
    }
    guard_stream_catch_up();
    if (bytes == 0)
        return;
    guard_open();
    memcpy(to, from, bytes);
    guard_close();
}

wf_status guard_to_device_begin(wf_ctx *ctx, void *device, const void *host, size_t bytes, wf_stream *stream)
{
    WF_TRY(guard_not_capturing("the double copies from the host"));
    guard_need_device("to_device_begin", device, bytes);
    guard_need_host("to_device_begin", host, bytes);
    copy(device, host, bytes, stream);
    return WF_OK;
}

static int64_t reads;

int64_t guard_reads(void)
{
    return reads;
}

wf_status guard_to_host_begin(wf_ctx *ctx, void *host, const void *device, size_t bytes, wf_stream *stream)
{
    WF_TRY(guard_not_capturing("the double copies to the host"));
    reads++;
    guard_need_host("to_host_begin", host, bytes);
    guard_need_device("to_host_begin", device, bytes);
    copy(host, device, bytes, stream);
    return WF_OK;
}
