/* The schedules of all ranks as one graph of events: what a verifier and a price need. Ends of messages are matched as
 * the engine would match them, and events are put into an order in which all can happen, if there is one. A message is
 * over when both ends have begun, so a schedule that passes here needs no buffering by the transport. */
#include "comm/proof/proof_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *wf_graph_text(const wf_schedule_graph *g, int64_t step, char text[WF_FAILURE_TEXT])
{
    char what[WF_FAILURE_TEXT];
    const int rank = g->rank[step];
    const int32_t i = (int32_t)(step - g->first[rank]);
    snprintf(text, WF_FAILURE_TEXT, "rank %d, step %d (%.300s)", rank, (int)i,
             wf_step_text(g->all[rank], i, NULL, what));
    return text;
}

/* --- matching -------------------------------------------------------------------------------------------------------
 */

/* One end: sorted by sender, receiver, and number in the schedule; of flags, by owner, flag and value. */
typedef struct end {
    int32_t a, b;
    int64_t number, step;
} end;

static int compare(const void *left, const void *right)
{
    const end *x = left, *y = right;
    if (x->a != y->a)
        return x->a < y->a ? -1 : 1;
    if (x->b != y->b)
        return x->b < y->b ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* The pair of a message from `from` to `to`, of which one is of this graph. Folded, pairs at the same distance are one.
 */
static end pair_of(const wf_schedule_graph *g, int from, int to, int64_t n)
{
    const wf_agreed *a = g->folded;
    if (!a)
        return (end){from, to, n, n};
    const int distance = (a->node[to] - a->node[from] + a->nodes) % a->nodes;
    return (end){a->place[from], distance * a->smallest + a->place[to], n, n};
}

/* Sorted lists of both ends, walked side by side: matching costs n log n, not n squared. Equal keys in both lists are
 * the two ends of a message. */
static int64_t list_ends(const wf_schedule_graph *g, wf_step_kind kind, end *list)
{
    const int64_t steps = g->first[g->ranks];
    int64_t ends = 0;
    for (int64_t n = 0; n < steps; n++) {
        const wf_step *step = wf_graph_step(g, n);
        if (step->kind != kind)
            continue;
        const int rank = g->rank[n], peer = step->peer;
        switch (kind) {
        case WF_STEP_SEND:
            list[ends++] = pair_of(g, rank, peer, n);
            break;
        case WF_STEP_RECV:
            list[ends++] = pair_of(g, peer, rank, n);
            break;
        default:
            list[ends++] = (end){peer, step->flag, step->value, n};
            break;
        }
    }
    qsort(list, (size_t)ends, sizeof *list, compare);
    return ends;
}

static wf_status unmatched(const wf_schedule_graph *g, const end *one, const char *what)
{
    char text[WF_FAILURE_TEXT];
    WF_FAIL(WF_ERR_STATE, "%s: %.400s", what, wf_graph_text(g, one->step, text));
}

/* Folded, the bytes of both ends may differ: nodes may have parts of different lengths, and the first stands for
 * all. */
static wf_status match_messages(wf_schedule_graph *g, end *send, end *recv)
{
    const int64_t sends = list_ends(g, WF_STEP_SEND, send), recvs = list_ends(g, WF_STEP_RECV, recv);
    char a[WF_FAILURE_TEXT], b[WF_FAILURE_TEXT];
    for (int64_t i = 0; i < sends || i < recvs; i++) {
        const bool both = i < sends && i < recvs;
        const int pairs = !both ? 0 : send[i].a != recv[i].a ? send[i].a - recv[i].a : send[i].b - recv[i].b;
        if (i >= recvs || (both && pairs < 0))
            return unmatched(g, &send[i], "a send without a receive");
        if (i >= sends || pairs > 0)
            return unmatched(g, &recv[i], "a receive without a send");
        /* The number of an end in its schedule is its order among the messages of the pair, as MPI counts them. */
        WF_CHECK(g->folded || wf_graph_step(g, send[i].step)->bytes == wf_graph_step(g, recv[i].step)->bytes,
                 WF_ERR_STATE, "a send meets a receive of other bytes: %.220s; %.220s",
                 wf_graph_text(g, send[i].step, a), wf_graph_text(g, recv[i].step, b));
        g->match[send[i].step] = recv[i].step;
        g->match[recv[i].step] = send[i].step;
    }
    return WF_OK;
}

/* The flag of a slot has one value alone, and is awaited where it is raised. */
static bool same_slot(const wf_schedule_graph *g, int64_t notify, int64_t await)
{
    const wf_step *a = wf_graph_step(g, notify), *b = wf_graph_step(g, await);
    if (a->to.operand < 0 || b->to.operand < 0)
        return a->to.operand < 0 && b->to.operand < 0;
    const wf_operand *x = &g->all[g->rank[notify]]->operand[a->to.operand];
    const wf_operand *y = &g->all[g->rank[await]]->operand[b->to.operand];
    return a->value == b->value && x->owner == y->owner && x->index == y->index;
}

/* An await is served by the first notification of a value that is high enough; below 1 by an earlier schedule. */
static wf_status match_flags(wf_schedule_graph *g, end *notify, end *await)
{
    const int64_t notifies = list_ends(g, WF_STEP_NOTIFY, notify), awaits = list_ends(g, WF_STEP_AWAIT, await);
    int64_t n = 0;
    for (int64_t i = 0; i < awaits; i++) {
        /* Both lists are sorted alike, and an await's value never makes n go back: one walk serves all. */
        if (await[i].number <= 0)
            continue;
        while (n < notifies && compare(&notify[n], &await[i]) < 0)
            n++;
        if (n == notifies || notify[n].a != await[i].a || notify[n].b != await[i].b ||
            !same_slot(g, notify[n].step, await[i].step))
            return unmatched(g, &await[i], "a flag that is never raised");
        g->match[await[i].step] = notify[n].step;
        /* Awaits of one notification are a list that begins at it. */
        g->raised[await[i].step] = g->raised[notify[n].step];
        g->raised[notify[n].step] = await[i].step;
    }
    return WF_OK;
}

/* --- order ----------------------------------------------------------------------------------------------------------
 */

/* The number of times that wf_graph_happen releases an event. The two must agree, or sort_events finds circles that are
 * none. */
int32_t wf_graph_awaited(const wf_schedule_graph *g, int64_t event)
{
    const wf_step *step = wf_graph_step(g, event / 2);
    const int rank = g->rank[event / 2];
    /* In line, the first step of a rank has none before it. */
    const bool behind = g->in_line && g->all[rank]->in_line && event / 2 > g->first[rank];
    if (event % 2 == 0)
        return step->waits + (step->before >= 0) + behind;
    /* The end of a message waits for its own beginning and the other one's; that of an await for its notification. */
    return 1 + (g->match[event / 2] >= 0);
}

void wf_graph_happen(const wf_schedule_graph *g, int64_t event, void (*release)(void *own, int64_t event), void *own)
{
    const int64_t n = event / 2, first = g->first[g->rank[n]];
    const wf_schedule *schedule = g->all[g->rank[n]];
    const int32_t i = (int32_t)(n - first);
    const wf_step *step = &schedule->step[i];
    /* Every step is two events: 2n, it begins, and 2n + 1, it is over. */
    if (event % 2 == 0) {
        release(own, event + 1);
        if (wf_step_is_message(step)) {
            /* The other end can be over only now that this one has begun. */
            release(own, 2 * g->match[n] + 1);
            if (schedule->next[i] >= 0)
                release(own, 2 * (first + schedule->next[i]));
        }
        return;
    }
    /* event + 1 is the beginning of the next step. */
    if (g->in_line && schedule->in_line && i + 1 < schedule->steps)
        release(own, event + 1);
    for (int32_t f = schedule->first_follower[i]; f < schedule->first_follower[i + 1]; f++)
        release(own, 2 * (first + schedule->follower[f]));
    if (step->kind == WF_STEP_NOTIFY)
        for (int64_t await = g->raised[n]; await >= 0; await = g->raised[await])
            release(own, 2 * await + 1);
}

typedef struct sorting {
    wf_schedule_graph *g;
    int32_t *left; /* of each event */
    int64_t ordered;
} sorting;

/* Kahn's algorithm: what was released as often as it is awaited can happen, and `order` is its queue too. */
static void put_in_order(void *own, int64_t event)
{
    sorting *s = own;
    if (--s->left[event] == 0)
        s->g->order[s->ordered++] = event;
}

static wf_status sort_events(wf_ctx *ctx, wf_schedule_graph *g)
{
    const int64_t steps = g->first[g->ranks];
    sorting s = {.g = g, .left = wf_malloc(ctx, (2 * (size_t)steps + 1) * sizeof *s.left)};
    char text[WF_FAILURE_TEXT];
    if (!s.left)
        return wf_error_code();
    for (int64_t e = 0; e < 2 * steps; e++) {
        s.left[e] = wf_graph_awaited(g, e);
        if (s.left[e] == 0)
            g->order[s.ordered++] = e;
    }
    for (int64_t at = 0; at < s.ordered; at++)
        wf_graph_happen(g, g->order[at], put_in_order, &s);
    /* What could never happen is in a circle or behind one; the first of it is named. */
    int64_t stuck = 0;
    while (s.ordered < 2 * steps && s.left[stuck] == 0)
        stuck++;
    free(s.left);
    WF_CHECK(s.ordered == 2 * steps, WF_ERR_STATE,
             "steps wait for each other in a circle, or for one that does: %.400s", wf_graph_text(g, stuck / 2, text));
    return WF_OK;
}

/* --- all ------------------------------------------------------------------------------------------------------------
 */

void wf_graph_clear(wf_schedule_graph *g)
{
    free(g->first);
    free(g->rank);
    free(g->match);
    free(g->order);
    free(g->raised);
    *g = (wf_schedule_graph){0};
}

static wf_status make_room(wf_ctx *ctx, wf_schedule_graph *g)
{
    g->first = wf_calloc(ctx, (size_t)g->ranks + 1, sizeof *g->first);
    if (!g->first)
        return wf_error_code();
    for (int r = 0; r < g->ranks; r++)
        g->first[r + 1] = g->first[r] + g->all[r]->steps;
    /* One more, so that a graph without steps has non-empty lists. */
    const size_t steps = (size_t)g->first[g->ranks] + 1;
    g->rank = wf_malloc(ctx, steps * sizeof *g->rank);
    g->match = wf_malloc(ctx, steps * sizeof *g->match);
    g->raised = wf_malloc(ctx, steps * sizeof *g->raised);
    g->order = wf_malloc(ctx, 2 * steps * sizeof *g->order);
    if (!g->rank || !g->match || !g->raised || !g->order)
        return wf_error_code();
    /* -1 in every byte is -1. */
    memset(g->match, 0xff, steps * sizeof *g->match);
    memset(g->raised, 0xff, steps * sizeof *g->raised);
    for (int r = 0; r < g->ranks; r++)
        for (int64_t n = g->first[r]; n < g->first[r + 1]; n++)
            g->rank[n] = r;
    return WF_OK;
}

/* Schedules come from generators that may be wrong: indices are checked before anything is indexed by them. */
static wf_status check_ranks(const wf_schedule_graph *g)
{
    char text[WF_FAILURE_TEXT];
    for (int64_t n = 0; n < g->first[g->ranks]; n++) {
        const wf_step *step = wf_graph_step(g, n);
        const bool speaks = wf_step_is_message(step) || step->kind == WF_STEP_AWAIT;
        const int ranks = g->folded && step->kind != WF_STEP_AWAIT ? g->folded->ranks : g->ranks;
        WF_CHECK(!speaks || (step->peer >= 0 && step->peer < ranks && step->peer != g->rank[n]), WF_ERR_STATE,
                 "no such other rank: %.400s", wf_graph_text(g, n, text));
        for (int32_t w = 0; w < step->waits; w++)
            WF_CHECK(g->all[g->rank[n]]->wait[step->wait + w] < g->all[g->rank[n]]->steps, WF_ERR_STATE,
                     "waits for a step that is not there: %.400s", wf_graph_text(g, n, text));
    }
    return WF_OK;
}

static wf_status make(wf_ctx *ctx, wf_schedule_graph *g)
{
    wf_status status = make_room(ctx, g);
    const size_t steps = status == WF_OK ? (size_t)g->first[g->ranks] + 1 : 1;
    end *ends = status == WF_OK ? wf_malloc(ctx, 2 * steps * sizeof *ends) : NULL;
    if (status == WF_OK && !ends)
        status = wf_error_code();
    if (status == WF_OK)
        status = check_ranks(g);
    if (status == WF_OK)
        status = match_messages(g, ends, ends + steps);
    if (status == WF_OK)
        status = match_flags(g, ends, ends + steps);
    if (status == WF_OK)
        status = sort_events(ctx, g);
    free(ends);
    if (status != WF_OK)
        wf_graph_clear(g);
    return status;
}

wf_status wf_graph_make(wf_ctx *ctx, const wf_schedule *const *all, int ranks, wf_schedule_graph *g)
{
    *g = (wf_schedule_graph){.all = all, .ranks = ranks};
    return make(ctx, g);
}

wf_status wf_graph_make_in_line(wf_ctx *ctx, const wf_schedule *const *all, int ranks, wf_schedule_graph *g)
{
    *g = (wf_schedule_graph){.all = all, .ranks = ranks, .in_line = true};
    return make(ctx, g);
}

wf_status wf_graph_make_folded(wf_ctx *ctx, const wf_agreed *agreed, const wf_schedule *const *all,
                               wf_schedule_graph *g)
{
    *g = (wf_schedule_graph){.all = all, .ranks = agreed->smallest, .folded = agreed};
    return make(ctx, g);
}
