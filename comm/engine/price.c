/* What schedules cost, by alpha (of a message) and beta (of its bytes): the events of all ranks in order, each as soon
 * as what it waits for has happened and the link, or the rank that computes, is free. */
#include "comm/engine/proof_author.h"

#include <stdlib.h>

/* When something is over, and what the longest chain up to there consists of. */
typedef struct moment {
    double at, messages, work;
} moment;

typedef struct pricing {
    const wf_agreed *agreed;
    const wf_price_model *model;
    const wf_schedule_graph *g;
    moment *event;
    double *out, *in, *busy; /* of each rank: until when its link out and in (two kinds) and its processor are taken */
} pricing;

wf_price_model wf_price_model_default(void)
{
    /* Inside a node and between nodes: 1 us and 10 GB/s, 25 us and 1 GB/s; sums at 10 GB/s. */
    return (wf_price_model){.alpha_s = {1e-6, 25e-6}, .beta_s = {1e-10, 1e-9}, .gamma_s = 1e-10};
}

static moment later(moment a, moment b)
{
    return a.at >= b.at ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

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

/* Both ends are over together; whichever comes first in the order settles it. */
static moment end_of_message(pricing *p, int64_t n)
{
    const int64_t other = p->g->match[n], send = wf_graph_step(p->g, n)->kind == WF_STEP_SEND ? n : other;
    const int from = p->g->rank[send], to = wf_graph_step(p->g, send)->peer;
    const int kind = p->agreed->node[from] != p->agreed->node[to];
    const double bytes = (double)wf_graph_step(p->g, send)->bytes, taken = bytes * p->model->beta_s[kind];
    /* The other end was settled before and took the link for both. */
    if (p->event[2 * other + 1].at > 0)
        return p->event[2 * other + 1];
    moment end = later(p->event[2 * n], p->event[2 * other]);
    const double free = most(p->out[2 * from + kind], p->in[2 * to + kind]), wait = most(0, free - end.at);
    const double took = wait + p->model->alpha_s[kind] + taken;
    /* One that takes no time takes no link either: a receive that comes late would keep others waiting. */
    if (taken > 0)
        p->out[2 * from + kind] = p->in[2 * to + kind] = end.at + wait + taken;
    end.at += took;
    /* The time on the critical path that messages take, beside that of work. */
    end.messages += took;
    return end;
}

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

/* When the last rank has begun, one message to each other rank, which the slowest link carries one after the other. */
static moment end_of_collective(const pricing *p, int64_t n)
{
    const double others = p->g->ranks - 1;
    moment end = p->event[2 * n];
    for (int64_t m = p->g->match[n]; m != n; m = p->g->match[m])
        end = later(end, p->event[2 * m]);
    const double took = p->model->alpha_s[1] + others * (double)wf_graph_step(p->g, n)->bytes * p->model->beta_s[1];
    end.at += took;
    end.messages += took;
    return end;
}

static moment end_of(pricing *p, int64_t n)
{
    const wf_step *step = wf_graph_step(p->g, n);
    moment end = p->event[2 * n];
    if (step->kind == WF_STEP_SEND || step->kind == WF_STEP_RECV)
        return end_of_message(p, n);
    if (step->kind == WF_STEP_COLLECTIVE)
        return end_of_collective(p, n);
    if (step->kind == WF_STEP_AWAIT && p->g->match[n] >= 0) {
        moment raised = p->event[2 * p->g->match[n] + 1];
        raised.at += p->model->alpha_s[0];
        raised.messages += p->model->alpha_s[0];
        return later(end, raised);
    }
    return step->kind == WF_STEP_AWAIT ? end : end_of_local(p, n);
}

static void count(const wf_agreed *agreed, const wf_schedule *const *all, wf_price *price)
{
    for (int r = 0; r < agreed->ranks; r++) {
        price->bytes += all[r]->bytes_sent;
        price->messages += all[r]->messages;
        for (int32_t i = 0; i < all[r]->steps; i++) {
            const wf_step *step = &all[r]->step[i];
            if (step->kind == WF_STEP_SEND && !(step->flags & WF_STEP_UNCOUNTED) &&
                agreed->node[r] != agreed->node[step->peer])
                price->between_bytes += step->bytes;
        }
    }
}

wf_status wf_schedule_price(wf_ctx *ctx, const wf_agreed *agreed, const wf_schedule *const *all,
                            const wf_price_model *model, wf_price *price)
{
    const size_t ranks = (size_t)agreed->ranks;
    wf_schedule_graph g;
    *price = (wf_price){0};
    count(agreed, all, price);
    WF_TRY(wf_graph_make(ctx, all, agreed->ranks, &g));
    const int64_t events = 2 * g.first[g.ranks];
    pricing p = {.agreed = agreed, .model = model, .g = &g};
    p.event = wf_calloc(ctx, (size_t)events + 1, sizeof *p.event);
    /* Two kinds of links in both directions, and the processor. */
    p.out = wf_calloc(ctx, 5 * ranks, sizeof *p.out);
    if (p.event && p.out) {
        p.in = p.out + 2 * ranks;
        p.busy = p.in + 2 * ranks;
        moment last = {0};
        for (int64_t i = 0; i < events; i++) {
            const int64_t e = g.order[i];
            p.event[e] = e % 2 ? end_of(&p, e / 2) : begin_of(&p, e / 2);
            last = later(last, p.event[e]);
        }
        price->seconds = last.at;
        price->messages_s = last.messages;
        price->work_s = last.work;
    }
    const wf_status status = p.event && p.out ? WF_OK : wf_error_code();
    free(p.event);
    free(p.out);
    wf_graph_clear(&g);
    return status;
}
