/* Verifies and prices a pipeline's schedule before anything is sent. Each stage is looked at by itself, then the
 * messages of every pair of stages; the rest, the order in which all of it can happen, and the price, are the engine's:
 * a schedule of the pipeline becomes one schedule of the engine a stage. wf_pipeline_new calls it on every rank, so a
 * schedule that could hang never runs. */
#include "layers/pipeline/pipeline_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* --- one stage ------------------------------------------------------------------------------------------------------
 */

/* What has happened to a part, or to a skip, and chunk so far. A bit that is set twice is an error. */
enum { HAS_VALUE = 1, HAS_GRADIENT = 2, SENT_VALUE = 4, SENT_GRADIENT = 8, DID_FORWARD = 16, DID_BACKWARD = 32 };

typedef struct looking {
    const wf_pipeline_schedule *s;
    int stage;
    unsigned char *state; /* of each part of the stage, then of each skip, and chunk */
} looking;

static unsigned char *state_of(const looking *l, int part, int chunk)
{
    return &l->state[(int64_t)(part / l->s->stages) * l->s->chunks + chunk];
}

/* The state of the messages of a part, or of a skip. The message of a skip is seen by one part of a stage at most, so
 * one entry serves it. */
static unsigned char *messages_of(const looking *l, int part, int skip, int chunk)
{
    return skip > 0 ? &l->state[(int64_t)(l->s->parts + skip - 1) * l->s->chunks + chunk] : state_of(l, part, chunk);
}

/* First of all checks, as the others index by these numbers. */
static wf_status check_numbers(const looking *l, int step)
{
    const wf_pipeline_schedule *s = l->s;
    const wf_pipeline_action *a = &s->action[l->stage][step];
    const int most = s->stages * s->parts;
    WF_CHECK((unsigned)a->verb <= WF_PIPELINE_RECEIVE && a->part >= 0 && a->part < most && a->chunk >= 0 &&
                 a->chunk < s->chunks,
             WF_ERR_STATE, "stage %d, step %d is of part %d and chunk %d; there are %d parts and %d chunks", l->stage,
             step, a->part, a->chunk, most, s->chunks);
    /* A message is at home in the part that gets it. */
    const int home = a->verb == WF_PIPELINE_SEND ? wf_pipeline_maker(s, a) : a->part;
    char text[WF_FAILURE_TEXT];
    WF_CHECK(home >= 0, WF_ERR_STATE, "%.400s: there is no such message",
             wf_pipeline_action_text(s, l->stage, step, text));
    WF_CHECK(home % s->stages == l->stage, WF_ERR_STATE, "%.400s: that part is on stage %d",
             wf_pipeline_action_text(s, l->stage, step, text), home % s->stages);
    return WF_OK;
}

/* The message that a computation needs, or makes, goes between the right stages; false: there is none. */
static wf_status check_peer(const looking *l, int step)
{
    const wf_pipeline_schedule *s = l->s;
    const wf_pipeline_action *a = &s->action[l->stage][step];
    const bool sends = a->verb == WF_PIPELINE_SEND;
    const wf_pipeline_action by = {.verb = a->gradient ? WF_PIPELINE_BACKWARD : WF_PIPELINE_FORWARD,
                                   .part = sends ? wf_pipeline_maker(s, a) : a->part,
                                   .chunk = a->chunk};
    wf_pipeline_action message;
    char text[WF_FAILURE_TEXT];
    const bool any = a->skip >= 0 && a->skip <= s->skips && wf_pipeline_message_of(s, &by, !sends, a->skip, &message);
    WF_CHECK(any && message.peer == a->peer, WF_ERR_STATE, "%.400s: that message goes between stages %d and %d",
             wf_pipeline_action_text(s, l->stage, step, text), l->stage, any ? message.peer : l->stage);
    return WF_OK;
}

/* Text is made on failure only: WF_CHECK evaluates its arguments then. */
static wf_status mark_done(const looking *l, int step, unsigned char *state, unsigned done)
{
    char text[WF_FAILURE_TEXT];
    WF_CHECK((*state & done) == 0, WF_ERR_STATE, "%.400s: a second time",
             wf_pipeline_action_text(l->s, l->stage, step, text));
    *state = (unsigned char)(*state | done);
    return WF_OK;
}

static wf_status need(const looking *l, int step, const unsigned char *state, unsigned needed, const char *what)
{
    char text[WF_FAILURE_TEXT];
    WF_CHECK(*state & needed, WF_ERR_STATE, "%.400s: before %s", wf_pipeline_action_text(l->s, l->stage, step, text),
             what);
    return WF_OK;
}

/* What a computation needs along the chain, or of a skip. What a stage makes for itself needs no message. */
static wf_status check_needed(const looking *l, int step, int skip)
{
    const wf_pipeline_schedule *s = l->s;
    const wf_pipeline_action *a = &s->action[l->stage][step];
    const bool forward = a->verb == WF_PIPELINE_FORWARD;
    const int from = wf_pipeline_other_part(s, a, true, skip);
    wf_pipeline_action message;
    char what[160];
    if (from < 0)
        return WF_OK;
    if (wf_pipeline_message_of(s, a, true, skip, &message)) {
        const char *of =
            skip > 0 ? (forward ? "a skip's value" : "a skip's gradient") : (forward ? "its input" : "the gradient");
        snprintf(what, sizeof what, "it has received %s from stage %d", of, message.peer);
        return need(l, step, messages_of(l, a->part, skip, a->chunk), forward ? HAS_VALUE : HAS_GRADIENT, what);
    }
    snprintf(what, sizeof what, "part %d of the same stage", from);
    return need(l, step, state_of(l, from, a->chunk), forward ? DID_FORWARD : DID_BACKWARD, what);
}

static wf_status check_computation(const looking *l, int step)
{
    const wf_pipeline_action *a = &l->s->action[l->stage][step];
    unsigned char *state = state_of(l, a->part, a->chunk);
    /* Skip 0 is the chain. */
    for (int skip = 0; skip <= l->s->skips; skip++)
        WF_TRY(check_needed(l, step, skip));
    WF_TRY(mark_done(l, step, state, a->verb == WF_PIPELINE_FORWARD ? DID_FORWARD : DID_BACKWARD));
    /* A backward before its forward has nothing to differentiate. */
    return a->verb == WF_PIPELINE_FORWARD ? WF_OK : need(l, step, state, DID_FORWARD, "its forward");
}

static wf_status check_action(const looking *l, int step)
{
    const wf_pipeline_action *a = &l->s->action[l->stage][step];
    WF_TRY(check_numbers(l, step));
    if (a->verb <= WF_PIPELINE_BACKWARD)
        return check_computation(l, step);
    WF_TRY(check_peer(l, step));
    if (a->verb == WF_PIPELINE_RECEIVE)
        return mark_done(l, step, messages_of(l, a->part, a->skip, a->chunk), a->gradient ? HAS_GRADIENT : HAS_VALUE);
    const int maker = wf_pipeline_maker(l->s, a);
    /* A second send of one value would be received as the next chunk's. */
    WF_TRY(mark_done(l, step, messages_of(l, maker, a->skip, a->chunk), a->gradient ? SENT_GRADIENT : SENT_VALUE));
    return need(l, step, state_of(l, maker, a->chunk), a->gradient ? DID_BACKWARD : DID_FORWARD,
                a->gradient ? "the backward that makes it" : "the forward that makes it");
}

/* A computation is done, and what it makes is sent. */
static wf_status check_done(const looking *l, const wf_pipeline_action *a)
{
    const wf_pipeline_schedule *s = l->s;
    const bool back = a->verb == WF_PIPELINE_BACKWARD;
    wf_pipeline_action message;
    WF_CHECK(*state_of(l, a->part, a->chunk) & (back ? DID_BACKWARD : DID_FORWARD), WF_ERR_STATE,
             "stage %d ends after %d steps without the %s of chunk %d through part %d", l->stage, s->count[l->stage],
             back ? "backward" : "forward", a->chunk, a->part);
    for (int skip = 0; skip <= s->skips; skip++)
        WF_CHECK(!wf_pipeline_message_of(s, a, false, skip, &message) ||
                     (*messages_of(l, a->part, skip, a->chunk) & (back ? SENT_GRADIENT : SENT_VALUE)),
                 WF_ERR_STATE, "stage %d ends after %d steps and has not sent the %s of chunk %d to stage %d", l->stage,
                 s->count[l->stage],
                 skip > 0 ? (back ? "gradient of a skip" : "value of a skip") : (back ? "gradient" : "output"),
                 a->chunk, message.peer);
    return WF_OK;
}

/* Checks that the stage does all of its work. Anything that was done twice has failed before; here only what is missing
 * can be found. */
static wf_status check_stage_work(const looking *l)
{
    const wf_pipeline_schedule *s = l->s;
    for (int part = l->stage; part < s->stages * s->parts; part += s->stages)
        for (int chunk = 0; chunk < s->chunks; chunk++)
            for (int back = 0; back < 2; back++)
                WF_TRY(check_done(l, &(wf_pipeline_action){.verb = back ? WF_PIPELINE_BACKWARD : WF_PIPELINE_FORWARD,
                                                           .part = part,
                                                           .chunk = chunk}));
    return WF_OK;
}

static wf_status check_stage(const wf_pipeline_schedule *s, int stage)
{
    looking l = {.s = s, .stage = stage};
    l.state = wf_calloc(s->ctx, (size_t)(s->parts + s->skips) * (size_t)s->chunks, 1);
    if (!l.state)
        return wf_error_code();
    wf_status status = WF_OK;
    for (int step = 0; status == WF_OK && step < s->count[stage]; step++)
        status = check_action(&l, step);
    if (status == WF_OK)
        status = check_stage_work(&l);
    free(l.state);
    return status;
}

/* --- two stages -----------------------------------------------------------------------------------------------------
 */

/* The next message from `step` on; past the end if there is none. Computations between messages do not matter for their
 * order. */
static int next_message(const wf_pipeline_schedule *s, int stage, int step, wf_pipeline_verb verb, int peer)
{
    while (step < s->count[stage] && (s->action[stage][step].verb != verb || s->action[stage][step].peer != peer))
        step++;
    return step;
}

/* Each stage by itself is right: one sends what the other receives, once, so only the order is left to check. Messages
 * between two stages are matched by their order alone, so the n-th send must be the n-th receive. */
static wf_status check_stage_pair(const wf_pipeline_schedule *s, int from, int to)
{
    char sent[WF_FAILURE_TEXT], got[WF_FAILURE_TEXT];
    int out = next_message(s, from, 0, WF_PIPELINE_SEND, to), in = next_message(s, to, 0, WF_PIPELINE_RECEIVE, from);
    while (out < s->count[from]) {
        const wf_pipeline_action *a = &s->action[from][out], *b = &s->action[to][in];
        WF_CHECK(wf_pipeline_same_message(a, b), WF_ERR_STATE, "messages do not meet: %.220s; %.220s",
                 wf_pipeline_action_text(s, from, out, sent), wf_pipeline_action_text(s, to, in, got));
        out = next_message(s, from, out + 1, WF_PIPELINE_SEND, to);
        in = next_message(s, to, in + 1, WF_PIPELINE_RECEIVE, from);
    }
    return WF_OK;
}

/* --- all, if messages wait for both their ends ----------------------------------------------------------------------
 */

/* Returns true if both stages have reached the message. */
static bool is_met(const wf_pipeline_schedule *s, const int *next, int stage)
{
    const wf_pipeline_action *a = &s->action[stage][next[stage]];
    if (next[a->peer] == s->count[a->peer])
        return false;
    const wf_pipeline_action *b = &s->action[a->peer][next[a->peer]];
    return b->verb > WF_PIPELINE_BACKWARD && b->verb != a->verb && b->peer == stage && wf_pipeline_same_message(a, b);
}

/* One more action of the stage, with the other end of a message. */
static bool advance_stage(const wf_pipeline_schedule *s, int *next, int stage)
{
    if (next[stage] == s->count[stage])
        return false;
    const wf_pipeline_action *a = &s->action[stage][next[stage]];
    if (a->verb > WF_PIPELINE_BACKWARD && !is_met(s, next, stage))
        return false;
    if (a->verb > WF_PIPELINE_BACKWARD)
        next[a->peer]++;
    next[stage]++;
    return true;
}

/* Simulates all stages together: a message happens only if both its ends are next. The result does not depend on who
 * moves first, so a walk that gets stuck is a deadlock for any timing. */
static wf_status check_order(const wf_pipeline_schedule *s)
{
    char mine[WF_FAILURE_TEXT], theirs[WF_FAILURE_TEXT];
    int stuck = 0, *next = wf_calloc(s->ctx, (size_t)s->stages, sizeof *next);
    if (!next)
        return wf_error_code();
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < s->stages; stage++)
            while (advance_stage(s, next, stage))
                moved = true;
    }
    /* The first stage that is stuck names the circle, or a peer that has ended. */
    while (stuck < s->stages && next[stuck] == s->count[stuck])
        stuck++;
    wf_status status = WF_OK;
    if (stuck < s->stages) {
        const int peer = s->action[stuck][next[stuck]].peer;
        const bool over = next[peer] == s->count[peer];
        status = WF_RAISE(WF_ERR_STATE, "stages wait for each other's messages: %.220s; %.220s",
                          wf_pipeline_action_text(s, stuck, next[stuck], mine),
                          over ? "the other is at its end" : wf_pipeline_action_text(s, peer, next[peer], theirs));
    }
    free(next);
    return status;
}

/* --- all: the engine ------------------------------------------------------------------------------------------------
 */

/* A byte count of 0 would make a range that the engine does not check, so unknown sizes count 8. */
enum { STASH = 8 }; /* bytes: what a forward leaves for its backward */

/* Memory of a chunk in a part, one behind the other: values of skips that come and the input; output, values of skips
 * that leave and what forward leaves for backward; gradients of those skips and of the output; gradients of the input
 * and of the skips that came. So a computation reads one range and writes one. */
typedef struct engine_schedules {
    const wf_pipeline_schedule *s;
    wf_pipeline_costs costs;
    wf_agreed agreed;
    wf_schedule **all;
    wf_address *memory; /* of each part of a stage and chunk */
} engine_schedules;

/* The last part's output goes nowhere: the loss. */
static size_t bytes_of(const engine_schedules *e, int part)
{
    const bool any = part < e->s->stages * e->s->parts;
    return e->costs.bytes && any ? e->costs.bytes[part] : STASH;
}

static size_t skip_bytes(const engine_schedules *e, int skip)
{
    return e->costs.skip_bytes ? e->costs.skip_bytes[skip - 1] : STASH;
}

/* Bytes of the skips below `skip` that a part gets from other stages, or makes for them. Skips inside of a stage need
 * no memory of a message. */
static size_t bytes_below(const engine_schedules *e, int part, bool taken, int skip)
{
    size_t bytes = 0;
    for (int k = 1; k < skip; k++) {
        const wf_pipeline_skip *one = &e->s->skip[k - 1];
        if ((taken ? one->to : one->from) == part && one->from % e->s->stages != one->to % e->s->stages)
            bytes += skip_bytes(e, k);
    }
    return bytes;
}

/* The places where the ranges begin. */
typedef struct places {
    size_t taken, in, out, made, stash, made_gradient, out_gradient, in_gradient, taken_gradient, end;
} places;

/* Ranges that a computation reads, or writes, follow each other, as a step of the engine has one of each. */
static places places_of(const engine_schedules *e, int part)
{
    const int all = e->s->skips + 1;
    const size_t in = bytes_of(e, part), out = bytes_of(e, part + 1), taken = bytes_below(e, part, true, all),
                 made = bytes_below(e, part, false, all);
    places p = {.in = taken, .out = taken + in};
    p.made = p.out + out;
    p.stash = p.made + made;
    p.made_gradient = p.stash + STASH;
    p.out_gradient = p.made_gradient + made;
    p.in_gradient = p.out_gradient + out;
    p.taken_gradient = p.in_gradient + in;
    p.end = p.taken_gradient + taken;
    return p;
}

static wf_address memory_of(const engine_schedules *e, int part, int chunk, size_t at)
{
    return wf_address_add(e->memory[(int64_t)(part / e->s->stages) * e->s->chunks + chunk], at);
}

static wf_steps add_message_step(engine_schedules *e, wf_builder *b, const wf_pipeline_action *a)
{
    const bool sends = a->verb == WF_PIPELINE_SEND;
    /* The memory of this stage's part, whose neighbour the other part is. */
    const int part = sends ? wf_pipeline_maker(e->s, a) : a->part;
    const places p = places_of(e, part);
    size_t at, bytes;
    if (a->skip > 0) {
        const bool taken = sends == a->gradient;
        at = a->gradient ? (taken ? p.taken_gradient : p.made_gradient) : taken ? p.taken : p.made;
        at += bytes_below(e, part, taken, a->skip);
        bytes = skip_bytes(e, a->skip);
    } else {
        at = a->gradient ? (sends ? p.in_gradient : p.out_gradient) : sends ? p.out : p.in;
        bytes = bytes_of(e, a->gradient ? a->part + 1 : a->part);
    }
    const wf_address place = memory_of(e, part, a->chunk, at);
    return sends ? wf_add_send(b, place, bytes, a->peer) : wf_add_recv(b, place, bytes, a->peer);
}

static wf_steps add_computation(engine_schedules *e, wf_builder *b, const wf_pipeline_action *a)
{
    const int last = e->s->stages * e->s->parts - 1;
    const bool forward = a->verb == WF_PIPELINE_FORWARD;
    const double *seconds = forward ? e->costs.forward_s : e->costs.backward_s;
    const places p = places_of(e, a->part);
    wf_pipeline_action message;
    const bool receives = wf_pipeline_message_of(e->s, a, true, 0, &message);
    wf_step_call call = {.seconds = seconds ? seconds[a->part] : 0};
    /* The first part reads the batch, which is not in this memory. */
    if (forward) {
        call.from_bytes = receives ? p.out : 0;
        const wf_address from = receives ? memory_of(e, a->part, a->chunk, 0) : WF_NOWHERE;
        return wf_add_call(b, call, from, memory_of(e, a->part, a->chunk, p.out), p.made_gradient - p.out);
    }
    const wf_address from = memory_of(e, a->part, a->chunk, p.stash);
    call.from_bytes = (receives && a->part < last ? p.in_gradient : p.out_gradient) - p.stash;
    return wf_add_call(b, call, from, memory_of(e, a->part, a->chunk, p.in_gradient), p.end - p.in_gradient);
}

static wf_status add_stage(engine_schedules *e, int stage)
{
    const wf_pipeline_schedule *s = e->s;
    wf_builder *b = wf_builder_new(s->ctx, &e->agreed, stage);
    wf_steps before = {0, 0};
    if (!b)
        return wf_error_code();
    for (int j = 0; j < s->parts; j++)
        for (int c = 0; c < s->chunks; c++) {
            const int part = j * s->stages + stage;
            e->memory[(int64_t)j * s->chunks + c] = wf_builder_scratch(b, places_of(e, part).end);
        }
    /* Sends overlap what follows them; all else of a stage is in sequence. */
    for (int i = 0; i < s->count[stage]; i++) {
        const wf_pipeline_action *a = &s->action[stage][i];
        /* A send waits for what is before it; nothing waits for a send. */
        wf_after(b, before);
        const wf_steps steps = a->verb <= WF_PIPELINE_BACKWARD ? add_computation(e, b, a) : add_message_step(e, b, a);
        before = a->verb == WF_PIPELINE_SEND ? before : steps;
    }
    return wf_builder_end(b, &e->all[stage]);
}

static void clear_schedules(engine_schedules *e)
{
    for (int i = 0; e->all && i < e->s->stages; i++)
        wf_schedule_free(e->all[i]);
    free(e->all);
    free(e->memory);
    wf_agreed_clear(&e->agreed);
}

static wf_status make(const wf_pipeline_schedule *s, const wf_pipeline_costs *costs, engine_schedules *e)
{
    *e = (engine_schedules){.s = s, .costs = costs ? *costs : (wf_pipeline_costs){0}};
    int32_t *node = wf_calloc(s->ctx, (size_t)s->stages, sizeof *node);
    wf_status status = node ? wf_agreed_make(s->ctx, s->stages, node, &e->agreed) : wf_error_code();
    free(node);
    e->all = wf_calloc(s->ctx, (size_t)s->stages, sizeof *e->all);
    e->memory = wf_calloc(s->ctx, (size_t)s->parts * (size_t)s->chunks, sizeof *e->memory);
    if (status == WF_OK && (!e->all || !e->memory))
        status = wf_error_code();
    /* Steps of the engine are those of the pipeline, one for one. A message must not be split: prices and times count
     * one step for each action. */
    e->agreed.chunk_bytes = SIZE_MAX;
    for (int stage = 0; status == WF_OK && stage < s->stages; stage++)
        status = add_stage(e, stage);
    if (status != WF_OK)
        clear_schedules(e);
    return status;
}

wf_status wf_pipeline_schedule_verify(const wf_pipeline_schedule *s)
{
    engine_schedules e;
    WF_NEED(s);
    for (int stage = 0; stage < s->stages; stage++)
        WF_TRY(check_stage(s, stage));
    for (int from = 0; from < s->stages; from++)
        for (int to = 0; to < s->stages; to++)
            if (from != to)
                WF_TRY(check_stage_pair(s, from, to));
    if (s->in_order)
        WF_TRY(check_order(s));
    WF_TRY(make(s, NULL, &e));
    const wf_status status = wf_schedule_verify(s->ctx, (const wf_schedule *const *)e.all, s->stages);
    clear_schedules(&e);
    return status;
}

/* Chunks whose forward is done and backward is not: what a stage must keep. */
static void count_live(const wf_pipeline_schedule *s, int *live)
{
    for (int stage = 0; stage < s->stages; stage++) {
        int now = 0;
        live[stage] = 0;
        for (int i = 0; i < s->count[stage]; i++) {
            const wf_pipeline_verb verb = s->action[stage][i].verb;
            now += (verb == WF_PIPELINE_FORWARD) - (verb == WF_PIPELINE_BACKWARD);
            live[stage] = now > live[stage] ? now : live[stage];
        }
    }
}

wf_status wf_pipeline_schedule_price(const wf_pipeline_schedule *s, const wf_pipeline_costs *costs,
                                     const wf_price_model *model, wf_pipeline_price *price)
{
    engine_schedules e;
    wf_price all = {0};
    WF_NEED(s);
    WF_NEED(price);
    WF_TRY(make(s, costs, &e));
    wf_price_model m = model ? *model : wf_price_model_default();
    m.gamma_s = 0; /* a computation costs its seconds, and not its bytes */
    const wf_status status = wf_schedule_price(s->ctx, &e.agreed, (const wf_schedule *const *)e.all, &m, &all);
    clear_schedules(&e);
    WF_TRY(status);
    double work = 0;
    for (int part = 0; part < s->stages * s->parts; part++)
        work += s->chunks * ((costs && costs->forward_s ? costs->forward_s[part] : 0) +
                             (costs && costs->backward_s ? costs->backward_s[part] : 0));
    price->seconds = all.seconds;
    /* The part of the stages' time in which they wait. */
    price->bubble = all.seconds > 0 ? 1 - work / (s->stages * all.seconds) : 0;
    price->bytes = all.bytes;
    if (price->live)
        count_live(s, price->live);
    return WF_OK;
}
