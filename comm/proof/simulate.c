/* All ranks of a communication in one process: each has a run of its own (run.c), which a seeded order advances a
 * little at a time, and messages go by a fake transport whose delays are seeded too. What is received is garbage until
 * it has come, and scratch is garbage at first, so a step that runs too early gives a wrong result. */
#include "comm/engine/run_author.h"
#include "comm/proof/proof_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON     0xff /* a NaN in every type of float */
#define NEVER      INT64_MAX
#define LATEST     16 /* turns until every owner waits for the end */
#define PAIR_FLAGS (2 * WF_PAIR_RANKS)

/* One end of a message, as the engine gave it to the transport. */
typedef struct parcel {
    wf_transfer *transfer;
    void *data;
    size_t bytes;
    int from, to;
    int64_t other; /* the end that it meets; -1: not there yet */
    int64_t due;   /* the turn in which it goes over; NEVER until both are there */
    int64_t next;  /* of the same pair and direction, not met */
    bool over;
    bool withdrawn; /* before it met the other end */
} parcel;

/* Ends that wait for their other end: the first and the last of each pair and direction that has met. A transport keeps
 * the order of messages between two ranks, so each such list is served from its front. */
typedef struct mailbox {
    int from, to; /* from -1: none */
    bool sending;
    int64_t first, last;
} mailbox;

typedef struct world {
    wf_ctx *ctx;
    const wf_simulation *s;
    const wf_schedule *const *all;
    int ranks;
    uint64_t random;
    int64_t turn;
    parcel *parcel;
    int64_t parcels, room, under_way; /* under_way: ends that met, and of whose end their rank does not know */
    int64_t oldest;
    mailbox *mailbox;
    int64_t mailboxes;
    struct rank *rank;
    char *flags, *pair_flags;
    char **flag_of; /* of the node's ring, then of pairs */
} world;

typedef struct rank {
    world *w;
    int number;
    wf_run *run;
    wf_link link;
    void **data;
    int64_t told;  /* the turn in which it learns of a failure */
    int64_t waits; /* the turn from which on it waits for the end */
    wf_status status;
    bool over;
} rank;

/* Marsaglia's xorshift: the same seed gives the same course on every machine, so a failure can be played again. */
static uint64_t random_of(world *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

/* --- the fake transport ---------------------------------------------------------------------------------------------
 */

/* A hash table with open addressing: four places for each message and a few more, so a free one is always found. */
static mailbox *mailbox_of(world *w, int from, int to, bool sending)
{
    uint64_t at = ((uint64_t)from * 8191 + (uint64_t)to * 2 + sending) * 0x9e3779b97f4a7c15u >> 20;
    for (;; at++) {
        mailbox *l = &w->mailbox[at % (uint64_t)w->mailboxes];
        if (l->from == from && l->to == to && l->sending == sending)
            return l;
        if (l->from >= 0)
            continue;
        *l = (mailbox){.from = from, .to = to, .sending = sending, .first = -1, .last = -1};
        return l;
    }
}

/* Both ends go over in the same turn; until then neither buffer may be touched, and the poison in it shows a step that
 * does. */
static void match_messages(world *w, int64_t one, int64_t other)
{
    const int64_t delay = w->s->most_delay > 0 ? (int64_t)(random_of(w) % (uint64_t)w->s->most_delay) : 0;
    w->parcel[one].other = other;
    w->parcel[other].other = one;
    w->parcel[one].due = w->parcel[other].due = w->turn + delay;
    w->under_way += 2;
}

/* The oldest of the other direction that waits, if any; else it waits itself. */
static void post(world *w, int64_t id)
{
    parcel *p = &w->parcel[id];
    mailbox *theirs = mailbox_of(w, p->from, p->to, !p->transfer->sending);
    /* Withdrawn ends are only skipped: to take them out of the middle would need a way back. */
    while (theirs->first >= 0 && w->parcel[theirs->first].withdrawn)
        theirs->first = w->parcel[theirs->first].next;
    if (theirs->first >= 0) {
        const int64_t other = theirs->first;
        theirs->first = w->parcel[other].next;
        match_messages(w, id, other);
        return;
    }
    mailbox *ours = mailbox_of(w, p->from, p->to, p->transfer->sending);
    if (ours->first < 0)
        ours->first = id;
    else
        w->parcel[ours->last].next = id;
    ours->last = id;
}

/* Messages are as many as steps of both kinds, so the list of parcels never grows and pointers into it stay good. */
static wf_status start_transfer(void *own, wf_transfer *t)
{
    rank *r = own;
    world *w = r->w;
    const int64_t id = w->parcels++;
    w->parcel[id] = (parcel){.transfer = t,
                             .data = t->data,
                             .bytes = t->bytes,
                             .from = t->sending ? r->number : t->peer,
                             .to = t->sending ? t->peer : r->number,
                             .other = -1,
                             .due = NEVER,
                             .next = -1};
    t->own[0] = (uint64_t)id;
    /* A step that reads before the message has come reads NaNs. */
    if (!t->sending)
        memset(t->data, POISON, t->bytes);
    post(w, id);
    return WF_OK;
}

/* The bytes go over when they are due, as they are then: a sender that writes to its buffer too early sends the wrong
 * ones. */
static void deliver(world *w, int64_t id)
{
    parcel *p = &w->parcel[id], *q = &w->parcel[p->other];
    parcel *send = p->transfer->sending ? p : q, *recv = p->transfer->sending ? q : p;
    memcpy(recv->data, send->data, send->bytes < recv->bytes ? send->bytes : recv->bytes);
    /* A longer message than the receive has room for is an error of the schedule, which the engine reports. */
    recv->transfer->arrived = send->bytes <= recv->bytes ? send->bytes : SIZE_MAX;
    send->over = recv->over = true;
}

static wf_status test_transfer(void *own, wf_transfer *t)
{
    world *w = ((rank *)own)->w;
    parcel *p = &w->parcel[t->own[0]];
    if (!p->over && p->due <= w->turn)
        deliver(w, (int64_t)t->own[0]);
    t->done = p->over;
    w->under_way -= t->done;
    return WF_OK;
}

/* What has met its other end cannot be called back, and goes over: its memory is written to after the failure. The
 * engine has to keep that memory until the end of it. */
static void cancel(void *own, wf_transfer *t)
{
    world *w = ((rank *)own)->w;
    parcel *p = &w->parcel[t->own[0]];
    if (p->other >= 0) {
        p->due = w->parcel[p->other].due = w->turn;
        return;
    }
    p->withdrawn = t->done = true;
}

/* --- ranks ----------------------------------------------------------------------------------------------------------
 */

/* Output k is input k, where the caller asks for calls in place and the schedule allows them. */
static int32_t alias_of(const world *w, const wf_schedule *s, int32_t i)
{
    for (int32_t k = 0; w->s->in_place && s->in_place && s->operand[i].kind == WF_OPERAND_OUTPUT && k < i; k++)
        if (s->operand[k].kind == WF_OPERAND_INPUT && s->operand[k].index == s->operand[i].index)
            return k;
    return i;
}

static wf_status make_memory(world *w, rank *r)
{
    const wf_schedule *s = w->all[r->number];
    r->data = wf_calloc(w->ctx, (size_t)s->operands + 1, sizeof *r->data);
    if (!r->data)
        return wf_error_code();
    for (int32_t i = 0; i < s->operands; i++) {
        const wf_operand *operand = &s->operand[i];
        const int32_t alias = alias_of(w, s, i);
        if (operand->kind == WF_OPERAND_SHARED)
            continue;
        /* One byte more than asked: an operand without bytes has an address of its own, too. */
        r->data[i] = alias < i ? r->data[alias] : wf_malloc(w->ctx, operand->bytes + 1);
        if (!r->data[i])
            return wf_error_code();
        if (alias == i)
            memset(r->data[i], operand->kind == WF_OPERAND_KEPT ? 0 : POISON, operand->bytes + 1);
        if (w->s->fill && (operand->kind == WF_OPERAND_INPUT || operand->kind == WF_OPERAND_BOTH))
            w->s->fill(w->s->own, r->number, operand, r->data[i]);
    }
    return WF_OK;
}

/* Slots are the owner's; all that name one get the same memory, as ranks of a node do by shared memory. */
static void **find_slot(world *w, const wf_operand *slot)
{
    const wf_schedule *s = w->all[slot->owner];
    for (int32_t i = 0; i < s->operands; i++)
        if (s->operand[i].kind == WF_OPERAND_SHARED && s->operand[i].owner == slot->owner &&
            s->operand[i].index == slot->index)
            return &w->rank[slot->owner].data[i];
    return NULL;
}

/* Garbage behind a flag that nothing has been told by. */
static void *slot_new(wf_ctx *ctx, size_t bytes)
{
    wf_ring_flag *flag = wf_calloc(ctx, 1, sizeof *flag + bytes);
    return flag ? memset(flag + 1, POISON, bytes) : NULL;
}

static void slot_free(void *slot)
{
    free(slot ? (wf_ring_flag *)slot - 1 : NULL);
}

static wf_status share_memory(world *w, rank *r)
{
    const wf_schedule *s = w->all[r->number];
    for (int32_t i = 0; i < s->operands; i++) {
        if (s->operand[i].kind != WF_OPERAND_SHARED)
            continue;
        void **slot = find_slot(w, &s->operand[i]);
        WF_CHECK(slot, WF_ERR_STATE, "rank %d uses slot %d of rank %d, which does not", r->number, s->operand[i].index,
                 s->operand[i].owner);
        if (!*slot)
            *slot = slot_new(w->ctx, s->operand[i].bytes);
        if (!*slot)
            return wf_error_code();
        r->data[i] = *slot;
    }
    return WF_OK;
}

static wf_status begin(world *w, rank *r)
{
    r->link = (wf_link){.own = r, .start = start_transfer, .test = test_transfer, .cancel = cancel};
    r->told = NEVER;
    /* Ranks begin to wait for the end at different turns, some at once: a collective that is waited for late must be
     * right too. */
    r->waits = (int64_t)((w->s->seed >> 8) + (uint64_t)r->number * 7) % LATEST;
    r->run = wf_run_new(w->ctx, w->all[r->number]);
    if (!r->run)
        return wf_error_code();
    /* One step at a time and in shuffled order: more orders of steps are met than on a machine. */
    r->run->link = &r->link;
    r->run->data = r->data;
    r->run->flags = w->flag_of;
    r->run->pair_flags = w->flag_of + w->ranks;
    r->run->shuffle = random_of(w) | 1;
    r->run->steps_at_once = 1;
    wf_run_begin(r->run, w->s->in_line);
    return WF_OK;
}

/* Lets the other ranks learn of it some turns later, each at a time of its own, as news travel. */
static void tell(world *w, const rank *from)
{
    for (int i = 0; i < w->ranks; i++)
        if (i != from->number && w->rank[i].told == NEVER)
            w->rank[i].told = w->turn + 1 + (int64_t)(random_of(w) % (uint64_t)(w->s->most_delay + 1));
}

static wf_status fail(world *w, rank *r, bool tells)
{
    r->status = WF_ERR_COMM;
    r->over = true;
    if (tells)
        tell(w, r);
    WF_CHECK(wf_run_cancel(r->run), WF_ERR_STATE, "rank %d cannot give up its messages", r->number);
    return WF_OK;
}

/* A failing rank stops between two of its steps, as a process that was killed would. */
static wf_status advance(world *w, rank *r, bool *moved)
{
    const bool fails = r->number == w->s->failing_rank && r->run->done >= w->s->failing_step;
    if (fails || r->told <= w->turn) {
        *moved = true;
        return fail(w, r, fails && !w->s->silently);
    }
    if (w->turn >= r->waits && !r->run->waiting) {
        wf_run_wait(r->run);
        *moved = true;
    }
    WF_TRY(wf_run_advance(r->run, moved));
    r->over = wf_run_done(r->run);
    return WF_OK;
}

/* --- the course of things -------------------------------------------------------------------------------------------
 */

static wf_status stuck(const rank *r)
{
    char text[WF_FAILURE_TEXT];
    while (r->over)
        r++;
    WF_FAIL(WF_ERR_TIMEOUT, "no rank can go on; rank %d waits for: %.300s", r->number, wf_run_text(r->run, text));
}

/* Called when no rank can go on because one failed silently. Ranks that know that they wait for that rank end, and tell
 * the others. If there are none, all wait in a circle, and the lowest ends when its time is over. A rank that waits for
 * one that has finished, or for none, would wait long: its peer lives. */
static wf_status notice(world *w)
{
    rank *first = NULL;
    bool noticed = false;
    for (int i = w->ranks - 1; i >= 0; i--) {
        rank *r = &w->rank[i];
        const int awaited = r->over ? -1 : wf_run_awaited(r->run);
        if (r->over)
            continue;
        if (awaited < 0 || (w->rank[awaited].over && w->rank[awaited].status == WF_OK))
            return stuck(r);
        first = r;
        if (awaited != w->s->failing_rank)
            continue;
        noticed = true;
        WF_TRY(fail(w, r, true));
    }
    return noticed ? WF_OK : fail(w, first, true);
}

/* A rank that will still learn of a failure is not stuck. */
static bool news_under_way(const world *w)
{
    for (int i = 0; i < w->ranks; i++)
        if (!w->rank[i].over && w->rank[i].told != NEVER)
            return true;
    return false;
}

/* A turn gives most of the ranks, in an order that begins elsewhere each time, a chance to go on. */
static wf_status play(world *w)
{
    for (int over = 0; over < w->ranks; w->turn++) {
        bool moved = false;
        over = 0;
        const int shift = (int)(random_of(w) % (uint64_t)w->ranks);
        for (int i = 0; i < w->ranks; i++) {
            rank *r = &w->rank[(i + shift) % w->ranks];
            /* A quarter of the chances is left out, so that some ranks get ahead. One that was passed over counts as
             * moving: it might have. */
            if (!r->over && (w->ranks == 1 || random_of(w) % 4 != 0))
                WF_TRY(advance(w, r, &moved));
            else
                moved = moved || !r->over;
            over += r->over;
        }
        /* No chance was left out, no message is on its way and no rank will learn anything: nothing can ever change. */
        if (over < w->ranks && !moved && w->under_way == 0 && w->turn >= LATEST && !news_under_way(w))
            WF_TRY(w->s->failing_rank >= 0 && w->s->silently ? notice(w) : stuck(w->rank));
    }
    return WF_OK;
}

static void check_results(const world *w)
{
    for (int i = 0; i < w->ranks && w->s->ended; i++)
        w->s->ended[i] = w->rank[i].status;
    /* Ranks that failed have no result that anyone may look at. */
    for (int i = 0; i < w->ranks && w->s->check; i++) {
        const wf_schedule *s = w->all[i];
        for (int32_t k = 0; k < s->operands && w->rank[i].status == WF_OK; k++)
            if (s->operand[k].kind == WF_OPERAND_OUTPUT || s->operand[k].kind == WF_OPERAND_BOTH)
                w->s->check(w->s->own, i, &s->operand[k], w->rank[i].data[k]);
    }
}

static wf_status set_up(world *w)
{
    int64_t messages = 0;
    for (int i = 0; i < w->ranks; i++)
        for (int32_t k = 0; k < w->all[i]->steps; k++)
            messages += w->all[i]->step[k].kind == WF_STEP_SEND || w->all[i]->step[k].kind == WF_STEP_RECV;
    /* Twice the mailboxes that can be in use: each message may open one for either direction. */
    w->mailboxes = 4 * messages + 16;
    w->parcel = wf_malloc(w->ctx, (size_t)(messages + 1) * sizeof *w->parcel);
    w->mailbox = wf_malloc(w->ctx, (size_t)w->mailboxes * sizeof *w->mailbox);
    w->rank = wf_calloc(w->ctx, (size_t)w->ranks, sizeof *w->rank);
    w->flags = wf_calloc(w->ctx, (size_t)w->ranks, WF_FLAGS * WF_FLAG_LINE);
    w->pair_flags = wf_calloc(w->ctx, (size_t)w->ranks, PAIR_FLAGS * WF_FLAG_LINE);
    w->flag_of = wf_malloc(w->ctx, 2 * (size_t)w->ranks * sizeof *w->flag_of);
    if (!w->parcel || !w->mailbox || !w->rank || !w->flags || !w->pair_flags || !w->flag_of)
        return wf_error_code();
    for (int64_t i = 0; i < w->mailboxes; i++)
        w->mailbox[i].from = -1;
    for (int i = 0; i < w->ranks; i++) {
        w->rank[i] = (rank){.w = w, .number = i};
        w->flag_of[i] = w->flags + (size_t)i * WF_FLAGS * WF_FLAG_LINE;
        w->flag_of[w->ranks + i] = w->pair_flags + (size_t)i * PAIR_FLAGS * WF_FLAG_LINE;
        WF_TRY(make_memory(w, &w->rank[i]));
    }
    for (int i = 0; i < w->ranks; i++)
        WF_TRY(share_memory(w, &w->rank[i]));
    for (int i = 0; i < w->ranks; i++)
        WF_TRY(begin(w, &w->rank[i]));
    return WF_OK;
}

static void tear_down(world *w)
{
    for (int i = 0; w->rank && i < w->ranks; i++) {
        rank *r = &w->rank[i];
        const wf_schedule *s = w->all[i];
        /* Slots belong to their owner's schedule, so each is freed once. */
        for (int32_t k = 0; r->data && k < s->operands; k++)
            if (s->operand[k].kind != WF_OPERAND_SHARED)
                free(alias_of(w, s, k) == k ? r->data[k] : NULL);
            else if (s->operand[k].owner == i)
                slot_free(r->data[k]);
        free(r->data);
        wf_run_free(r->run);
    }
    free(w->parcel);
    free(w->mailbox);
    free(w->rank);
    free(w->flags);
    free(w->pair_flags);
    free(w->flag_of);
}

/* `|1`: xorshift would stay at 0 for ever. */
wf_status wf_schedule_simulate(wf_ctx *ctx, const wf_schedule *const *all, int ranks, const wf_simulation *simulation)
{
    world w = {.ctx = ctx, .s = simulation, .all = all, .ranks = ranks};
    w.random = simulation->seed * 0x9e3779b97f4a7c15u | 1;
    wf_status status = set_up(&w);
    if (status == WF_OK)
        status = play(&w);
    if (status == WF_OK)
        check_results(&w);
    tear_down(&w);
    return status;
}
