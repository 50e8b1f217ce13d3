/* The order inside a schedule: links steps with those that wait for them, and the messages of a pair in their order. */
#include "comm/engine/schedule_author.h"

#include <stdlib.h>
#include <string.h>

/* Links each message with the one that is posted before it, by a hash table of the last one of each pair. */
static wf_status link_messages(wf_ctx *ctx, wf_schedule *s)
{
    uint32_t room = 16;
    for (int32_t i = 0, messages = 0; i < s->steps; i++) {
        messages += wf_step_is_message(&s->step[i]);
        while (room < 2 * (uint32_t)messages)
            room *= 2;
        s->next[i] = -1;
    }
    int32_t *last = wf_malloc(ctx, room * sizeof *last);
    if (!last)
        return wf_error_code();
    memset(last, 0xff, room * sizeof *last);
    for (int32_t i = 0; i < s->steps; i++) {
        wf_step *step = &s->step[i];
        if (!wf_step_is_message(step))
            continue;
        /* Multiplicative hashing (Knuth, volume 3): the table is sparse, so a few steps find the place. */
        uint32_t at = ((uint32_t)step->peer * 2 + step->kind) * 2654435769u & (room - 1);
        while (last[at] >= 0 && (s->step[last[at]].peer != step->peer || s->step[last[at]].kind != step->kind))
            at = (at + 1) & (room - 1);
        /* MPI matches messages of a pair by order, so their posting must keep that of the schedule, on both sides. */
        step->before = last[at];
        if (last[at] >= 0)
            s->next[last[at]] = i;
        last[at] = i;
    }
    free(last);
    return WF_OK;
}

/* Not what is left to the owner's wait, either: it may come before what is awaited. */
static bool is_local(const wf_step *step)
{
    return !wf_step_is_message(step) && step->kind != WF_STEP_FENCE && !(step->flags & WF_STEP_AT_WAIT);
}

wf_status wf_schedule_link(wf_ctx *ctx, wf_schedule *s)
{
    int32_t waits = 0;
    s->in_line = s->ring_pieces > 0 && s->rings == 0;
    for (int32_t i = 0; i < s->steps; i++) {
        waits += s->step[i].waits;
        s->in_line = s->in_line && is_local(&s->step[i]);
    }
    free(s->first_follower);
    free(s->follower);
    free(s->next);
    s->first_follower = wf_calloc(ctx, (size_t)s->steps + 2, sizeof *s->first_follower);
    s->follower = wf_malloc(ctx, (size_t)(waits + 1) * sizeof *s->follower);
    s->next = wf_malloc(ctx, (size_t)(s->steps + 1) * sizeof *s->next);
    if (!s->first_follower || !s->follower || !s->next)
        return wf_error_code();
    int32_t *count = s->first_follower + 1; /* one place on: after the second loop, entry i is the end of step i */
    for (int32_t i = 0; i < s->steps; i++)
        for (int32_t w = 0; w < s->step[i].waits; w++)
            count[s->wait[s->step[i].wait + w] + 1]++;
    for (int32_t i = 0; i < s->steps; i++)
        count[i + 1] += count[i];
    for (int32_t i = 0; i < s->steps; i++)
        for (int32_t w = 0; w < s->step[i].waits; w++)
            s->follower[count[s->wait[s->step[i].wait + w]]++] = i;
    return link_messages(ctx, s);
}

void wf_schedule_free(wf_schedule *s)
{
    if (!s)
        return;
    free(s->step);
    free(s->operand);
    free(s->wait);
    free(s->input);
    free(s->box);
    free(s->call);
    free(s->pieces);
    free(s->first_follower);
    free(s->follower);
    free(s->next);
    free(s);
}
