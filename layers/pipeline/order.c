/* One order of all messages, on which the stages agree. Where a message holds up the next ones of both its stages until
 * both have come to it, the order of a schedule whose senders go on would make stages wait for each other: stage 0
 * sends chunk 1 while stage 1 sends the gradient of chunk 0. In the order of the time at which messages are made they
 * cannot. */
#include "layers/pipeline/pipeline_impl.h"

#include <stdlib.h>

/* A computation, or a message at its sender. Receives are made of sends, so they need no event. */
typedef struct event {
    int time; /* when it is over, or made */
    bool message;
    int stage, index;
} event;

/* Orders events by time. At one time computation comes first, then messages by the stage that sends. qsort is not
 * stable, so ties are broken down to the index. */
static int by_time(const void *left, const void *right)
{
    const event *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->message != b->message)
        return a->message ? 1 : -1;
    return a->stage != b->stage ? a->stage - b->stage : a->index - b->index;
}

/* A message takes no time here: only its order counts. */
static int64_t list_events(const wf_pipeline_schedule *s, const wf_pipeline_times *t, event *all)
{
    int64_t n = 0;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->count[stage]; i++) {
            const wf_pipeline_verb verb = s->action[stage][i].verb;
            if (verb != WF_PIPELINE_RECEIVE)
                all[n++] = (event){.time = t->begin[stage][i] + wf_pipeline_duration(verb),
                                   .message = verb == WF_PIPELINE_SEND,
                                   .stage = stage,
                                   .index = i};
        }
    return n;
}

/* Both ends of a message are added at once: every pair of stages then sees the messages between them in one order. */
static wf_status add_events(const wf_pipeline_schedule *s, const event *all, int64_t n, wf_pipeline_schedule *to)
{
    for (int64_t i = 0; i < n; i++) {
        const int stage = all[i].stage;
        wf_pipeline_action a = s->action[stage][all[i].index];
        WF_TRY(wf_pipeline_schedule_add(to, stage, a));
        if (!all[i].message)
            continue;
        const int peer = a.peer;
        a.verb = WF_PIPELINE_RECEIVE;
        a.peer = stage;
        WF_TRY(wf_pipeline_schedule_add(to, peer, a));
    }
    return WF_OK;
}

static wf_status order(const wf_pipeline_schedule *s, wf_pipeline_schedule *to)
{
    wf_pipeline_times t;
    int64_t most = 0;
    /* Receives that were there are left out and made again. */
    for (int stage = 0; stage < s->stages; stage++)
        most += s->count[stage];
    event *all = wf_malloc(s->ctx, ((size_t)most + 1) * sizeof *all);
    wf_status status = wf_pipeline_times_make(s, &t) && all ? WF_OK : WF_ERR_MEMORY;
    if (status == WF_OK) {
        const int64_t n = list_events(s, &t, all);
        qsort(all, (size_t)n, sizeof *all, by_time);
        status = add_events(s, all, n, to);
    }
    wf_pipeline_times_free(&t);
    free(all);
    return status;
}

/* The order is verified by the caller, like any other schedule. */
wf_pipeline_schedule *wf_pipeline_schedule_in_order(const wf_pipeline_schedule *s)
{
    WF_NEED_NULL(s);
    wf_pipeline_schedule *to = wf_pipeline_schedule_empty(s->ctx, s->stages, s->parts, s->chunks, s->skips, s->skip);
    if (!to)
        return wf_error_null();
    to->in_order = true;
    const wf_status status = order(s, to);
    if (status == WF_OK)
        return to;
    wf_pipeline_schedule_free(to);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}
