/* Prices schedules, by alpha (of a message) and beta (of its bytes): the events of all ranks in the order of time,
 * each as soon as what it waits for has happened and the link, or the rank that computes, is free. */
#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"

#include <stdlib.h>

/* When something is over, and what the longest chain up to there consists of: waiting for a link counts as a message,
 * waiting for the processor as work. */
typedef struct moment {
    double at, messages, work;
} moment;

/* An event that may happen, and the time of it. */
typedef struct due {
    double at;
    int32_t step; /* of a message, in its schedule; -1: no message */
    int64_t event;
} due;

/* Messages that wait for a link, by the numbers of their sends: -1, nothing. */
typedef struct line {
    int64_t first, last;
} line;

typedef struct pricing {
    const wf_agreed *agreed;
    const wf_price_model *model;
    const wf_schedule_graph *g;
    moment *event;
    int32_t *left; /* releases that an event waits for */
    due *heap;     /* the earliest first */
    int64_t dues;
    double now;
    line *line;              /* of each rank's links out */
    int64_t *behind;         /* in a line: the next one; of a send that was in none: itself */
    double *out, *in, *busy; /* of each rank: until when its link out and in (two kinds) and its processor are taken */
    moment last;
} pricing;

wf_price_model wf_price_model_default(void)
{
    /* Inside a node and between nodes: 1 us and 10 GB/s, 25 us and 1 GB/s; sums at 10 GB/s. */
    return (wf_price_model){.alpha_s = {1e-6, 25e-6}, .beta_s = {1e-10, 1e-9}, .gamma_s = 1e-10};
}

/* The chain that is over last is the critical one, and brings its parts with it. */
static moment later(moment a, moment b)
{
    return a.at >= b.at ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* A step begins when all that it waits for is over and the message before it in its pair has begun: the transport keeps
 * their order. */
static moment begin_of(const pricing *p, int64_t n)
{
    const int rank = p->g->rank[n];
    const int64_t first = p->g->first[rank];
    const wf_step *step = wf_graph_step(p->g, n);
    moment begin = {0};
    for (int32_t w = 0; w < step->waits; w++)
        begin = later(begin, p->event[2 * (first + p->g->all[rank]->wait[step->wait + w]) + 1]);
    return step->before >= 0 ? later(begin, p->event[2 * (first + step->before)]) : begin;
}

/* A rank computes one thing at a time: steps that may run together share its processor. */
static moment end_of_local(pricing *p, int64_t n)
{
    const wf_step *step = wf_graph_step(p->g, n);
    const int rank = p->g->rank[n];
    const double call = step->kind == WF_STEP_CALL ? p->g->all[rank]->call[step->list].seconds : 0;
    const double took = call + p->model->gamma_s * (double)step->bytes * (step->inputs > 1 ? step->inputs : 1);
    moment end = p->event[2 * n];
    const double wait = most(0, p->busy[rank] - end.at);
    end.at += wait + took;
    end.work += wait + took;
    p->busy[rank] = end.at;
    return end;
}

static bool is_message(const pricing *p, int64_t n)
{
    const wf_step_kind kind = (wf_step_kind)wf_graph_step(p->g, n)->kind;
    return kind == WF_STEP_SEND || kind == WF_STEP_RECV;
}

/* A flag is seen one latency of the node after it was raised; it has no bytes. */
static moment end_of(pricing *p, int64_t n)
{
    const wf_step *step = wf_graph_step(p->g, n);
    moment end = p->event[2 * n];
    if (step->kind == WF_STEP_AWAIT && p->g->match[n] >= 0) {
        moment raised = p->event[2 * p->g->match[n] + 1];
        raised.at += p->model->alpha_s[0];
        raised.messages += p->model->alpha_s[0];
        return later(end, raised);
    }
    return step->kind == WF_STEP_AWAIT ? end : end_of_local(p, n);
}

/* --- in the order of time -------------------------------------------------------------------------------------------
 */

/* Orders events by time. At equal times messages come last, when all that may go are known, in the order of their
 * schedules, so that all ranks of a symmetric schedule stay in step. The order is total: the price repeats. */
static bool sooner(due a, due b)
{
    if (a.at != b.at)
        return a.at < b.at;
    return a.step != b.step ? a.step < b.step : a.event < b.event;
}

/* Never in the past: a message that is put back gets the time at which a link becomes free, but not before now. */
static void push_event(pricing *p, double at, int64_t event)
{
    int64_t i = p->dues++;
    const int64_t n = event / 2;
    const bool goes = event % 2 && is_message(p, n);
    const due d = {most(at, p->now), goes ? (int32_t)(n - p->g->first[p->g->rank[n]]) : -1, event};
    for (; i > 0 && sooner(d, p->heap[(i - 1) / 2]); i = (i - 1) / 2)
        p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = d;
}

/* A heap in an array: the children of i are 2 i + 1 and 2 i + 2. */
static due pop(pricing *p)
{
    const due top = p->heap[0], d = p->heap[--p->dues];
    int64_t i = 0;
    for (int64_t child = 1; child < p->dues; child = 2 * i + 1) {
        child += child + 1 < p->dues && sooner(p->heap[child + 1], p->heap[child]);
        if (!sooner(p->heap[child], d))
            break;
        p->heap[i] = p->heap[child];
        i = child;
    }
    p->heap[i] = d;
    return top;
}

/* The last release makes an event due. wf_graph_awaited counted them. */
static void release_event(void *own, int64_t e)
{
    pricing *p = own;
    if (--p->left[e] > 0)
        return;
    /* The send speaks for both ends of a message. */
    if (e % 2 == 0)
        push_event(p, begin_of(p, e / 2).at, e);
    else if (!is_message(p, e / 2))
        push_event(p, p->event[e - 1].at, e);
    else if (wf_graph_step(p->g, e / 2)->kind == WF_STEP_SEND)
        push_event(p, later(p->event[e - 1], p->event[2 * p->g->match[e / 2]]).at, e);
}

static void over(pricing *p, int64_t e, moment when)
{
    p->event[e] = when;
    p->last = later(p->last, when);
    wf_graph_happen(p->g, e, release_event, p);
}

/* Both ends are over together. */
static void transfer(pricing *p, int64_t send, int kind, double taken)
{
    const int64_t recv = p->g->match[send];
    moment end = later(p->event[2 * send], p->event[2 * recv]);
    const double took = p->now - end.at + p->model->alpha_s[kind] + taken;
    end.at += took;
    /* The time on the critical path that messages take, beside that of work. */
    end.messages += took;
    over(p, 2 * send + 1, end);
    over(p, 2 * recv + 1, end);
}

static void stand_in_line(pricing *p, line *l, int64_t send)
{
    /* `behind` of a send names itself until it is in the line, so one that comes back is not put in again. */
    if (p->behind[send] != send)
        return;
    p->behind[send] = -1;
    if (l->first >= 0)
        p->behind[l->last] = send;
    else
        l->first = send;
    l->last = send;
}

/* A message that may go: it goes when it is the first in its line and both links are free. */
static void carry(pricing *p, int64_t send)
{
    const wf_step *step = wf_graph_step(p->g, send);
    const int from = p->g->rank[send], to = p->g->rank[p->g->match[send]];
    const int kind = p->agreed->node[from] != p->agreed->node[step->peer], link = 2 * from + kind;
    const double taken = (double)step->bytes * p->model->beta_s[kind];
    line *l = &p->line[link];
    /* One that takes no time takes no link either: a receive that comes late would keep others waiting. */
    if (taken <= 0) {
        transfer(p, send, kind, 0);
        return;
    }
    stand_in_line(p, l, send);
    if (l->first != send)
        return;
    /* Both ends must be free at once: the link out of the sender and the link into the receiver, of this kind. */
    const double free = most(p->out[link], p->in[2 * to + kind]);
    if (free > p->now) {
        push_event(p, free, 2 * send + 1);
        return;
    }
    p->out[link] = p->in[2 * to + kind] = p->now + taken;
    l->first = p->behind[send];
    transfer(p, send, kind, taken);
    /* The next one in line is woken when this link is free; it may have come first to an earlier time and been put
     * off. */
    if (l->first >= 0)
        push_event(p, p->out[link], 2 * l->first + 1);
}

static void run(pricing *p)
{
    const int64_t events = 2 * p->g->first[p->g->ranks];
    for (int64_t e = 0; e < events; e++)
        p->left[e] = wf_graph_awaited(p->g, e);
    for (int64_t e = 0; e < events; e++)
        if (p->left[e] == 0)
            push_event(p, 0, e);
    /* Each event is popped once, but for messages that are put back: the loop ends, since time only goes on. */
    while (p->dues > 0) {
        const due d = pop(p);
        p->now = d.at;
        if (d.event % 2 == 0)
            over(p, d.event, begin_of(p, d.event / 2));
        else if (is_message(p, d.event / 2))
            carry(p, d.event / 2);
        else
            over(p, d.event, end_of(p, d.event / 2));
    }
}

static void count_traffic(const wf_agreed *agreed, const wf_schedule *const *all, int ranks, wf_price *price)
{
    for (int r = 0; r < ranks; r++) {
        price->bytes += all[r]->bytes_sent;
        price->messages += all[r]->messages;
        for (int32_t i = 0; i < all[r]->steps; i++) {
            const wf_step *step = &all[r]->step[i];
            /* Uncounted sends carry no payload of the caller. */
            if (step->kind == WF_STEP_SEND && !(step->flags & WF_STEP_UNCOUNTED) &&
                agreed->node[r] != agreed->node[step->peer])
                price->between_bytes += step->bytes;
        }
    }
}

static wf_status price_graph(wf_ctx *ctx, const wf_agreed *agreed, const wf_schedule_graph *g,
                             const wf_price_model *model, wf_price *price)
{
    const size_t ranks = (size_t)g->ranks, steps = (size_t)g->first[g->ranks];
    pricing p = {.agreed = agreed, .model = model, .g = g};
    p.event = wf_calloc(ctx, 2 * steps + 1, sizeof *p.event);
    p.left = wf_malloc(ctx, (2 * steps + 1) * sizeof *p.left);
    p.heap = wf_malloc(ctx, (2 * steps + 1) * sizeof *p.heap);
    p.behind = wf_malloc(ctx, (steps + 1) * sizeof *p.behind);
    p.line = wf_malloc(ctx, 2 * ranks * sizeof *p.line);
    /* Two kinds of links in both directions, and the processor. */
    p.out = wf_calloc(ctx, 5 * ranks, sizeof *p.out);
    const bool room = p.event && p.left && p.heap && p.behind && p.line && p.out;
    if (room) {
        p.in = p.out + 2 * ranks;
        p.busy = p.in + 2 * ranks;
        for (size_t i = 0; i < steps; i++)
            p.behind[i] = (int64_t)i;
        for (size_t i = 0; i < 2 * ranks; i++)
            p.line[i] = (line){-1, -1};
        run(&p);
        price->seconds = p.last.at;
        price->messages_s = p.last.messages;
        price->work_s = p.last.work;
    }
    free(p.event);
    free(p.left);
    free(p.heap);
    free(p.behind);
    free(p.line);
    free(p.out);
    return room ? WF_OK : wf_error_code();
}

wf_status wf_schedule_price(wf_ctx *ctx, const wf_agreed *agreed, const wf_schedule *const *all,
                            const wf_price_model *model, wf_price *price)
{
    wf_schedule_graph g;
    *price = (wf_price){0};
    count_traffic(agreed, all, agreed->ranks, price);
    WF_TRY(wf_graph_make(ctx, all, agreed->ranks, &g));
    const wf_status status = price_graph(ctx, agreed, &g, model, price);
    wf_graph_clear(&g);
    return status;
}

/* --- by representatives ---------------------------------------------------------------------------------------------
 */

/* The folded graph takes a rank's node and place from its number. */
static wf_status check_nodes(const wf_agreed *agreed)
{
    for (int r = 0; r < agreed->ranks; r++)
        WF_CHECK(agreed->node[r] == r / agreed->smallest && agreed->smallest * agreed->nodes == agreed->ranks,
                 WF_ERR_ARGUMENT,
                 "rank %d is on node %d: representatives need nodes of equally many ranks, one after the other", r,
                 (int)agreed->node[r]);
    return WF_OK;
}

/* Equal places of all nodes do the same at the same time, so the ranks of one node stand for all. */
static wf_status price_first(wf_ctx *ctx, const wf_agreed *agreed, const wf_call *call, const wf_price_model *model,
                             wf_schedule **all, wf_price *price)
{
    const wf_schedule *const *made = (const wf_schedule *const *)all;
    const uint64_t nodes = (uint64_t)agreed->nodes;
    wf_schedule_graph g;
    for (int r = 0; r < agreed->smallest; r++)
        WF_TRY(wf_call_schedule(ctx, agreed, r, call, &all[r]));
    WF_TRY(wf_graph_make_folded(ctx, agreed, made, &g));
    const wf_status status = price_graph(ctx, agreed, &g, model, price);
    wf_graph_clear(&g);
    count_traffic(agreed, made, agreed->smallest, price);
    price->bytes *= nodes;
    price->messages *= nodes;
    price->between_bytes *= nodes;
    return status;
}

wf_status wf_call_price(wf_ctx *ctx, const wf_agreed *agreed, const wf_call *call, const wf_price_model *model,
                        wf_price *price)
{
    *price = (wf_price){0};
    WF_TRY(check_nodes(agreed));
    wf_schedule **all = wf_calloc(ctx, (size_t)agreed->smallest, sizeof(*all));
    if (!all)
        return wf_error_code();
    const wf_status status = price_first(ctx, agreed, call, model, all, price);
    for (int r = 0; r < agreed->smallest; r++)
        wf_schedule_free(all[r]);
    free(all);
    return status;
}
