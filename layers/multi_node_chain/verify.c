/* Verifies the steps before anything is sent: names, the messages of every pair of ranks, and that no ranks
 * wait for each other. That nothing is read before it is there, and that backward fits too, is proved on the engine's
 * schedules (schedules.c). */
#include "layers/multi_node_chain/multi_node_chain_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OTHER_END 128 /* letters that say where the other end of a message is */

/* --- names ----------------------------------------------------------------------------------------------------------
 */

static bool named_before(const wf_chain_steps *s, int rank, int step, int *other)
{
    for (*other = 0; *other <= rank; ++*other)
        for (int i = 0; i < (*other < rank ? s->count[*other] : step); i++) {
            const wf_chain_step *a = &s->step[*other][i];
            if (a->verb == WF_CHAIN_COMPUTE && strcmp(a->name, s->step[rank][step].name) == 0)
                return true;
        }
    return false;
}

static wf_status check_names(const wf_chain_steps *s)
{
    int other;
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < s->count[rank]; i++)
            WF_CHECK(s->step[rank][i].verb != WF_CHAIN_COMPUTE || !named_before(s, rank, i, &other), WF_ERR_STATE,
                     "rank %s, step %d: a component \"%s\" is on rank %s already; names are of all ranks",
                     WF_RANK(s->comm, rank), i, s->step[rank][i].name, WF_RANK(s->comm, other));
    return WF_OK;
}

/* --- two ranks ------------------------------------------------------------------------------------------------------
 */

/* The next end of a message from `step` on; past the last step where there is none. */
static int next_end(const wf_chain_steps *s, int rank, int step, wf_chain_verb verb, int peer)
{
    while (step < s->count[rank] && (s->step[rank][step].verb != (int32_t)verb || s->step[rank][step].peer != peer))
        step++;
    return step;
}

/* Says where the other end of a message of this name is, if it is elsewhere: two ranks may give what one takes once. */
static const char *other_end(const wf_chain_steps *s, int rank, int step, char text[OTHER_END])
{
    const wf_chain_step *end = &s->step[rank][step];
    const bool gives = end->verb == WF_CHAIN_GIVE;
    text[0] = '\0';
    for (int r = 0; end->message[0] && r < s->ranks; r++)
        for (int i = 0; i < s->count[r]; i++) {
            const wf_chain_step *a = &s->step[r][i];
            const bool meets = a->verb == (int32_t)(gives ? WF_CHAIN_TAKE : WF_CHAIN_GIVE);
            if (meets && a->peer != WF_OUTSIDE && strcmp(a->message, end->message) == 0)
                snprintf(text, OTHER_END, "; rank %s %s \"%s\" %s rank %s", WF_RANK(s->comm, r),
                         gives ? "takes" : "gives", a->message, gives ? "from" : "to", WF_RANK(s->comm, a->peer));
        }
    return text;
}

static wf_status check_shapes(const wf_chain_steps *s, int from, int out, int to, int in)
{
    const wf_chain_step *a = &s->step[from][out], *b = &s->step[to][in];
    char gives[WF_FAILURE_TEXT], takes[WF_FAILURE_TEXT], shape[2][WF_SHAPE_TEXT];
    bool fits = a->rank == b->rank || a->rank == 0 || b->rank == 0;
    for (int d = 0; fits && d < a->rank && d < b->rank; d++)
        fits = a->dim[d] == b->dim[d] || a->dim[d] == 0 || b->dim[d] == 0;
    const wf_shape mine = wf_shape_make(a->rank, a->dim), theirs = wf_shape_make(b->rank, b->dim);
    WF_CHECK(fits, WF_ERR_STATE, "shapes do not fit: %.200s, %s; %.200s, %s", wf_chain_step_text(s, from, out, gives),
             wf_shape_text(mine, shape[0]), wf_chain_step_text(s, to, in, takes), wf_shape_text(theirs, shape[1]));
    return WF_OK;
}

static wf_status check_pair(const wf_chain_steps *s, int from, int to)
{
    char gives[WF_FAILURE_TEXT], takes[WF_FAILURE_TEXT], more[OTHER_END];
    int out = next_end(s, from, 0, WF_CHAIN_GIVE, to), in = next_end(s, to, 0, WF_CHAIN_TAKE, from);
    while (out < s->count[from] || in < s->count[to]) {
        WF_CHECK(in < s->count[to], WF_ERR_STATE, "%.300s: rank %s never takes it%s",
                 wf_chain_step_text(s, from, out, gives), WF_RANK(s->comm, to), other_end(s, from, out, more));
        WF_CHECK(out < s->count[from], WF_ERR_STATE, "%.300s: rank %s never gives it%s",
                 wf_chain_step_text(s, to, in, takes), WF_RANK(s->comm, from), other_end(s, to, in, more));
        WF_CHECK(strcmp(s->step[from][out].message, s->step[to][in].message) == 0, WF_ERR_STATE,
                 "messages do not meet: %.220s; %.220s", wf_chain_step_text(s, from, out, gives),
                 wf_chain_step_text(s, to, in, takes));
        WF_TRY(check_shapes(s, from, out, to, in));
        out = next_end(s, from, out + 1, WF_CHAIN_GIVE, to);
        in = next_end(s, to, in + 1, WF_CHAIN_TAKE, from);
    }
    return WF_OK;
}

/* --- all ranks ------------------------------------------------------------------------------------------------------
 */

/* How far every rank has come, and how many messages of a pair are on their way. */
typedef struct walking {
    const wf_chain_steps *s;
    int *at;    /* of each rank: its next step */
    int *given; /* of each pair: given and not taken yet */
} walking;

static bool can_go(const walking *w, int rank)
{
    if (w->at[rank] == w->s->count[rank])
        return false;
    const wf_chain_step *a = &w->s->step[rank][w->at[rank]];
    return a->verb != WF_CHAIN_TAKE || a->peer == WF_OUTSIDE || w->given[a->peer * w->s->ranks + rank] > 0;
}

static void go(const walking *w, int rank)
{
    const wf_chain_step *a = &w->s->step[rank][w->at[rank]++];
    if (a->peer != WF_OUTSIDE && a->verb == WF_CHAIN_TAKE)
        w->given[a->peer * w->s->ranks + rank]--;
    if (a->peer != WF_OUTSIDE && a->verb == WF_CHAIN_GIVE)
        w->given[rank * w->s->ranks + a->peer]++;
}

/* A rank that cannot go on waits for one that cannot either; following them leads into the circle. */
static wf_status name_circle(const walking *w, int rank)
{
    char text[2][WF_FAILURE_TEXT];
    for (int i = 0; i < w->s->ranks; i++)
        rank = w->s->step[rank][w->at[rank]].peer;
    const int next = w->s->step[rank][w->at[rank]].peer;
    if (next == rank)
        return WF_RAISE(WF_ERR_STATE, "%.300s: before it is given",
                        wf_chain_step_text(w->s, rank, w->at[rank], text[0]));
    return WF_RAISE(WF_ERR_STATE, "ranks wait for each other in a circle: %.220s; %.220s",
                    wf_chain_step_text(w->s, rank, w->at[rank], text[0]),
                    wf_chain_step_text(w->s, next, w->at[next], text[1]));
}

static wf_status walk(const walking *w)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < w->s->ranks; rank++)
            while (can_go(w, rank)) {
                go(w, rank);
                moved = true;
            }
    }
    for (int rank = 0; rank < w->s->ranks; rank++)
        if (w->at[rank] < w->s->count[rank])
            return name_circle(w, rank);
    return WF_OK;
}

static wf_status check_order(const wf_chain_steps *s)
{
    const size_t ranks = (size_t)s->ranks;
    const walking w = {.s = s,
                       .at = wf_calloc(s->ctx, ranks, sizeof *w.at),
                       .given = wf_calloc(s->ctx, ranks * ranks, sizeof *w.given)};
    const wf_status status = w.at && w.given ? walk(&w) : wf_error_code();
    free(w.at);
    free(w.given);
    return status;
}

/* --- the engine -----------------------------------------------------------------------------------------------------
 */

static wf_status check_engine(const wf_chain_steps *s)
{
    wf_agreed agreed = {0};
    int32_t *node = wf_calloc(s->ctx, (size_t)s->ranks, sizeof *node);
    wf_schedule **all = wf_calloc(s->ctx, (size_t)s->ranks, sizeof(*all));
    wf_status status = node && all ? wf_agreed_make(s->ctx, s->ranks, node, &agreed) : wf_error_code();
    if (status == WF_OK)
        status = wf_chain_steps_schedules(s, &agreed, all);
    if (status == WF_OK)
        status = wf_schedule_verify(s->ctx, (const wf_schedule *const *)all, s->ranks);
    for (int r = 0; all && r < s->ranks; r++)
        wf_schedule_free(all[r]);
    wf_agreed_clear(&agreed);
    free(all);
    free(node);
    return status;
}

wf_status wf_chain_steps_verify(const wf_chain_steps *s)
{
    WF_NEED(s);
    WF_TRY(check_names(s));
    for (int from = 0; from < s->ranks; from++)
        for (int to = 0; to < s->ranks; to++)
            WF_TRY(check_pair(s, from, to));
    WF_TRY(check_order(s));
    return check_engine(s);
}
