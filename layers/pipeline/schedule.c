/* The schedules: GPipe, 1F1B and interleaved 1F1B. First the order in which each stage computes, then the messages that
 * this order needs: a send right behind what makes it, a receive right before what needs it, in the order in which the
 * other stage sends. */
#include "layers/pipeline/pipeline_impl.h"

#include <stdio.h>
#include <stdlib.h>

void wf_pipeline_schedule_free(wf_pipeline_schedule *s)
{
    if (!s)
        return;
    for (int i = 0; s->action && i < s->stages; i++)
        free(s->action[i]);
    free(s->action);
    free(s->count);
    free(s->skip);
    free(s);
}

/* The caller adds in the order in which the stage will act. */
wf_status wf_pipeline_schedule_add(wf_pipeline_schedule *s, int stage, wf_pipeline_action action)
{
    const int n = s->count[stage];
    /* Doubled at each power of two. */
    if ((n & (n - 1)) == 0) {
        wf_pipeline_action *grown =
            wf_realloc(s->ctx, s->action[stage], (size_t)(n ? 2 * n : 1) * sizeof *s->action[stage]);
        if (!grown)
            return wf_error_code();
        s->action[stage] = grown;
    }
    s->action[stage][s->count[stage]++] = action;
    return WF_OK;
}

/* text is the caller's, so that two actions may be told in one message. */
const char *wf_pipeline_action_text(const wf_pipeline_schedule *s, int stage, int step, char text[WF_FAILURE_TEXT])
{
    const wf_pipeline_action *a = &s->action[stage][step];
    const bool sends = a->verb == WF_PIPELINE_SEND;
    if (a->verb <= WF_PIPELINE_BACKWARD)
        snprintf(text, WF_FAILURE_TEXT, "stage %d, step %d (%s of chunk %d through part %d)", stage, step,
                 a->verb == WF_PIPELINE_FORWARD ? "forward" : "backward", a->chunk, a->part);
    else if (a->skip > 0)
        snprintf(text, WF_FAILURE_TEXT, "stage %d, step %d (%s the %s of skip %d for part %d, chunk %d, %s stage %d)",
                 stage, step, sends ? "send" : "receive", a->gradient ? "gradient" : "value", a->skip, a->part,
                 a->chunk, sends ? "to" : "from", a->peer);
    else
        snprintf(text, WF_FAILURE_TEXT, "stage %d, step %d (%s the %s of part %d, chunk %d, %s stage %d)", stage, step,
                 sends ? "send" : "receive", a->gradient ? "output's gradient" : "input", a->part, a->chunk,
                 sends ? "to" : "from", a->peer);
    return text;
}

/* --- the order of computations --------------------------------------------------------------------------------------
 */

/* Chunks go in groups of as many as there are stages, each group through all parts of a stage before the next one. The
 * order is made for whole groups, in which no stages wait for each other in a circle, and chunks that are not there are
 * left out, which makes no stage wait longer. The last group may be short of chunks. */
static int whole_groups(const wf_pipeline_schedule *s)
{
    return (s->chunks + s->stages - 1) / s->stages * s->stages;
}

/* How many forwards a stage is ahead before its first backward: as many as chunks fit between it and the last part. For
 * interleaved parts this is Megatron-LM's formula (Narayanan et al. 2021). */
static int warmup(const wf_pipeline_schedule *s, wf_pipeline_kind kind, int stage)
{
    const int all = s->parts * whole_groups(s), behind = s->stages - 1 - stage;
    const int ahead = s->parts == 1 ? behind : 2 * behind + (s->parts - 1) * s->stages;
    return kind == WF_PIPELINE_GPIPE || ahead > all ? all : ahead;
}

/* Computation number i of a direction. Chunks of a part come in ascending order in both directions, so that gradients
 * are summed in that order in every schedule. Backwards take the parts of a stage from the last to the first, since
 * gradients come from later parts. */
static wf_pipeline_action computation(const wf_pipeline_schedule *s, wf_pipeline_verb verb, int stage, int i)
{
    const int group = i / (s->stages * s->parts), within = i % (s->stages * s->parts), round = within / s->stages;
    const int part = verb == WF_PIPELINE_FORWARD ? round : s->parts - 1 - round;
    return (wf_pipeline_action){
        .verb = verb, .part = part * s->stages + stage, .chunk = group * s->stages + within % s->stages, .peer = -1};
}

/* Computation number n of a stage, both directions together: forwards up to `ahead`, then one of each in turn, then
 * backwards. */
static wf_pipeline_action in_turn(const wf_pipeline_schedule *s, int ahead, int stage, int n)
{
    const int all = s->parts * whole_groups(s), pair = (n - ahead) / 2;
    if (n < ahead)
        return computation(s, WF_PIPELINE_FORWARD, stage, n);
    if (pair >= all - ahead)
        return computation(s, WF_PIPELINE_BACKWARD, stage, n - all);
    if ((n - ahead) % 2 == 0)
        return computation(s, WF_PIPELINE_FORWARD, stage, ahead + pair);
    return computation(s, WF_PIPELINE_BACKWARD, stage, pair);
}

/* --- the messages ---------------------------------------------------------------------------------------------------
 */

/* Parts that are needed lie before a forward and after a backward; those that get something lie on the other side. */
int wf_pipeline_other_part(const wf_pipeline_schedule *s, const wf_pipeline_action *a, bool needed, int skip)
{
    const bool earlier = (a->verb == WF_PIPELINE_FORWARD) == needed;
    if (skip > 0) {
        const wf_pipeline_skip *k = &s->skip[skip - 1];
        return (earlier ? k->to : k->from) != a->part ? -1 : earlier ? k->from : k->to;
    }
    /* -1 is also the answer before the first part. */
    const int part = earlier ? a->part - 1 : a->part + 1;
    return part < s->stages * s->parts ? part : -1;
}

bool wf_pipeline_message_of(const wf_pipeline_schedule *s, const wf_pipeline_action *a, bool needed, int skip,
                            wf_pipeline_action *message)
{
    const int other = wf_pipeline_other_part(s, a, needed, skip);
    /* Parts of one stage hand values over in memory. */
    if (other < 0 || other % s->stages == a->part % s->stages)
        return false;
    *message = (wf_pipeline_action){.verb = needed ? WF_PIPELINE_RECEIVE : WF_PIPELINE_SEND,
                                    .part = needed ? a->part : other,
                                    .chunk = a->chunk,
                                    .peer = other % s->stages,
                                    .gradient = a->verb != WF_PIPELINE_FORWARD,
                                    .skip = skip};
    return true;
}

/* A message is named by the part that gets it, so its maker is what a computation of that part needs. */
int wf_pipeline_maker(const wf_pipeline_schedule *s, const wf_pipeline_action *message)
{
    if (message->skip < 0 || message->skip > s->skips)
        return -1;
    const wf_pipeline_action computes = {.verb = message->gradient ? WF_PIPELINE_BACKWARD : WF_PIPELINE_FORWARD,
                                         .part = message->part};
    return wf_pipeline_other_part(s, &computes, true, message->skip);
}

typedef struct building {
    wf_pipeline_schedule *s;
    wf_pipeline_action **order; /* of each stage: its computations */
    int *sent; /* of each other stage: the computations whose messages to this stage have been received */
    char *has; /* of each part, or skip, chunk and direction */
} building;

static char *has_of(const building *b, const wf_pipeline_action *message)
{
    const int64_t row = message->skip > 0 ? b->s->parts + message->skip - 1 : message->part / b->s->stages;
    return &b->has[2 * (row * b->s->chunks + message->chunk) + message->gradient];
}

/* Receives what is needed, and whatever its sender sends here before: messages between two stages keep the order in
 * which they are sent. */
static wf_status add_receive(building *b, int stage, const wf_pipeline_action *needed)
{
    wf_pipeline_schedule *s = b->s;
    wf_pipeline_action message;
    while (!*has_of(b, needed)) {
        const int all = 2 * s->parts * s->chunks;
        /* No schedule of this file comes here; it keeps a mistake from running past the list. */
        WF_CHECK(b->sent[needed->peer] < all, WF_ERR_STATE, "stage %d never sends what stage %d needs", needed->peer,
                 stage);
        const wf_pipeline_action made = b->order[needed->peer][b->sent[needed->peer]++];
        for (int skip = 0; skip <= s->skips; skip++) {
            if (!wf_pipeline_message_of(s, &made, false, skip, &message) || message.peer != stage)
                continue;
            message.verb = WF_PIPELINE_RECEIVE;
            message.peer = needed->peer;
            *has_of(b, &message) = 1;
            WF_TRY(wf_pipeline_schedule_add(s, stage, message));
        }
    }
    return WF_OK;
}

/* For one stage: walks its computations, and for each first the receives, then the computation, then the sends. */
static wf_status build_stage(building *b, int stage)
{
    wf_pipeline_schedule *s = b->s;
    wf_pipeline_action message;
    for (int i = 0; i < s->stages; i++)
        b->sent[i] = 0;
    for (int i = 0; i < 2 * (s->parts + s->skips) * s->chunks; i++)
        b->has[i] = 0;
    for (int n = 0; n < 2 * s->parts * s->chunks; n++) {
        const wf_pipeline_action a = b->order[stage][n];
        for (int skip = 0; skip <= s->skips; skip++)
            if (wf_pipeline_message_of(s, &a, true, skip, &message))
                WF_TRY(add_receive(b, stage, &message));
        WF_TRY(wf_pipeline_schedule_add(s, stage, a));
        for (int skip = 0; skip <= s->skips; skip++)
            if (wf_pipeline_message_of(s, &a, false, skip, &message))
                WF_TRY(wf_pipeline_schedule_add(s, stage, message));
    }
    return WF_OK;
}

/* The computations of all stages. */
static wf_status order_all(const wf_pipeline_schedule *s, wf_pipeline_kind kind, wf_pipeline_action **order)
{
    for (int stage = 0; stage < s->stages; stage++) {
        int at = 0;
        order[stage] = wf_malloc(s->ctx, 2 * (size_t)s->parts * (size_t)s->chunks * sizeof **order);
        if (!order[stage])
            return wf_error_code();
        /* Chunks that fill the last group are left out here, and nowhere else. */
        for (int n = 0; n < 2 * s->parts * whole_groups(s); n++) {
            const wf_pipeline_action a = in_turn(s, warmup(s, kind, stage), stage, n);
            if (a.chunk < s->chunks)
                order[stage][at++] = a;
        }
    }
    return WF_OK;
}

static wf_status build(wf_pipeline_schedule *s, wf_pipeline_kind kind)
{
    building b = {.s = s};
    wf_status status = WF_OK;
    b.order = wf_calloc(s->ctx, (size_t)s->stages, sizeof(*b.order));
    b.sent = wf_calloc(s->ctx, (size_t)s->stages, sizeof *b.sent);
    b.has = wf_calloc(s->ctx, 2 * (size_t)(s->parts + s->skips) * (size_t)s->chunks, 1);
    if (!b.order || !b.sent || !b.has)
        status = wf_error_code();
    if (status == WF_OK)
        status = order_all(s, kind, b.order);
    for (int stage = 0; status == WF_OK && stage < s->stages; stage++)
        status = build_stage(&b, stage);
    for (int stage = 0; b.order && stage < s->stages; stage++)
        free(b.order[stage]);
    free(b.order);
    free(b.sent);
    free(b.has);
    return status;
}

static wf_status take_skips(wf_pipeline_schedule *s, int skips, const wf_pipeline_skip *skip)
{
    const int parts = s->stages * s->parts;
    /* Skips are numbered from 1 in messages, 0 being the chain. */
    WF_CHECK(skips >= 0 && skips < 1 << 16, WF_ERR_ARGUMENT, "%d skips in a pipeline; should be 0 or more", skips);
    s->skip = wf_calloc(s->ctx, (size_t)skips + 1, sizeof *s->skip);
    if (!s->skip)
        return wf_error_code();
    for (; s->skips < skips; s->skips++) {
        const wf_pipeline_skip *k = &skip[s->skips];
        WF_CHECK(k->from >= 0 && k->from < k->to && k->to < parts, WF_ERR_ARGUMENT,
                 "skip %d goes from part %d to part %d of %d; should go to a later one", s->skips + 1, k->from, k->to,
                 parts);
        s->skip[s->skips] = *k;
    }
    return WF_OK;
}

wf_pipeline_schedule *wf_pipeline_schedule_empty(wf_ctx *ctx, int stages, int parts, int chunks, int skips,
                                                 const wf_pipeline_skip *skip)
{
    wf_pipeline_schedule *s = wf_calloc(ctx, 1, sizeof *s);
    if (!s)
        return wf_error_null();
    *s = (wf_pipeline_schedule){.ctx = ctx, .stages = stages, .parts = parts, .chunks = chunks};
    wf_status status = take_skips(s, skips, skip);
    s->count = wf_calloc(ctx, (size_t)stages, sizeof *s->count);
    s->action = wf_calloc(ctx, (size_t)stages, sizeof(*s->action));
    if (status == WF_OK && (!s->count || !s->action))
        status = wf_error_code();
    if (status == WF_OK)
        return s;
    wf_pipeline_schedule_free(s);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

wf_pipeline_schedule *wf_pipeline_schedule_new(wf_ctx *ctx, wf_pipeline_schedule_opts opts)
{
    const int stages = opts.stages, parts = opts.parts, chunks = opts.chunks;
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(opts.kind >= WF_PIPELINE_1F1B && opts.kind <= WF_PIPELINE_INTERLEAVED, WF_ERR_ARGUMENT,
                  "%d is no schedule of a pipeline; there are WF_PIPELINE_1F1B, _GPIPE and _INTERLEAVED",
                  (int)opts.kind);
    /* The product bounds the sizes of all lists below, so no int overflows. */
    WF_CHECK_NULL(stages > 0 && parts > 0 && chunks > 0 && (int64_t)parts * chunks * stages < 1 << 28, WF_ERR_ARGUMENT,
                  "a pipeline of %d stages of %d parts and %d chunks; each should be 1 or more", stages, parts, chunks);
    wf_pipeline_schedule *s = wf_pipeline_schedule_empty(ctx, stages, parts, chunks, opts.skips, opts.skip);
    if (!s)
        return wf_error_null();
    const wf_status status = build(s, opts.kind);
    if (status == WF_OK)
        return s;
    wf_pipeline_schedule_free(s);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}
