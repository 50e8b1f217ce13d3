/* Steps as data: made of components, and as text. A component becomes takes, one compute and gives, in this order; the
 * checks of whole chains and the schedules read nothing else. */
#include "layers/multi_node_chain/multi_node_chain_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_chain_steps *wf_chain_steps_new(wf_ctx *ctx, const wf_comm *comm, int ranks)
{
    WF_NEED_NULL(ctx);
    wf_chain_steps *s = wf_calloc(ctx, 1, sizeof *s);
    if (!s)
        return wf_error_null();
    *s = (wf_chain_steps){.ctx = ctx, .comm = comm, .ranks = ranks};
    s->count = wf_calloc(ctx, (size_t)ranks, sizeof *s->count);
    s->step = wf_calloc(ctx, (size_t)ranks, sizeof(*s->step));
    if (s->count && s->step)
        return s;
    wf_chain_steps_free(s);
    return wf_error_null();
}

void wf_chain_steps_free(wf_chain_steps *s)
{
    if (!s)
        return;
    for (int r = 0; s->step && r < s->ranks; r++)
        free(s->step[r]);
    free(s->step);
    free(s->count);
    free(s);
}

/* --- a component ----------------------------------------------------------------------------------------------------
 */

static wf_status check_name(const char *what, const char *name)
{
    WF_CHECK(strlen(name) < WF_CHAIN_NAME, WF_ERR_ARGUMENT,
             "the name of a %s is \"%.64s\", should have at most %d letters", what, name, WF_CHAIN_NAME - 1);
    return WF_OK;
}

/* 0 leaves a rank or a length open: it is known only when data come. */
static wf_status check_shape(const wf_component *c, const wf_chain_end *end, bool gives)
{
    WF_CHECK(end->shape.rank >= 0 && end->shape.rank <= WF_MAX_RANK, WF_ERR_ARGUMENT,
             "component \"%s\" %s a shape of %d dimensions; should be 1 to %d, or 0 for any shape", c->name,
             gives ? "gives" : "takes", end->shape.rank, WF_MAX_RANK);
    for (int d = 0; d < end->shape.rank; d++)
        WF_CHECK(end->shape.dim[d] >= 0, WF_ERR_ARGUMENT,
                 "component \"%s\" %s a shape whose dimension %d has length %lld; should be 1 or more, or 0 for any "
                 "length",
                 c->name, gives ? "gives" : "takes", d, (long long)end->shape.dim[d]);
    return WF_OK;
}

static wf_status check_end(const wf_chain_steps *s, const wf_component *c, const wf_chain_end *end, bool gives)
{
    const int outputs = c->outputs ? c->outputs : 1;
    WF_CHECK(end->rank >= WF_OUTSIDE && end->rank < s->ranks, WF_ERR_ARGUMENT,
             "component \"%s\" %s rank %d; there are %d ranks, and WF_OUTSIDE", c->name,
             gives ? "gives to" : "takes from", end->rank, s->ranks);
    WF_CHECK(end->output >= 0 && end->output < (gives ? outputs : 1), WF_ERR_ARGUMENT,
             "component \"%s\" %s output %d; it has %d", c->name, gives ? "gives" : "takes", end->output,
             gives ? outputs : 0);
    WF_TRY(check_shape(c, end, gives));
    return end->name ? check_name("message", end->name) : WF_OK;
}

/* A value that goes nowhere would have no gradient, and backward would wait for one. */
static wf_status check_outputs(const wf_component *c)
{
    for (int port = 0; port < (c->outputs ? c->outputs : 1); port++) {
        bool given = false;
        for (int i = 0; i < c->n_out; i++)
            given = given || c->out[i].output == port;
        WF_CHECK(given, WF_ERR_ARGUMENT, "output %d of component \"%s\" goes nowhere", port, c->name);
    }
    return WF_OK;
}

static wf_status check_component(const wf_chain_steps *s, const wf_component *c)
{
    WF_CHECK(c->name && *c->name, WF_ERR_ARGUMENT, "a component without a name");
    WF_TRY(check_name("component", c->name));
    WF_CHECK(c->outputs >= 0, WF_ERR_ARGUMENT, "component \"%s\" has %d outputs; should be 1 or more (0: 1)", c->name,
             c->outputs);
    WF_CHECK(
        c->n_in > 0 && c->in && c->n_out > 0 && c->out, WF_ERR_ARGUMENT,
        "component \"%s\" names %d inputs and %d places for its outputs; should be 1 or more of each (WF_FROM, WF_TO)",
        c->name, c->n_in, c->n_out);
    WF_CHECK(c->function || c->outputs <= 1, WF_ERR_ARGUMENT,
             "component \"%s\" has %d outputs; a layer has one, and .function applies others", c->name, c->outputs);
    for (int i = 0; i < c->n_in; i++)
        WF_TRY(check_end(s, c, &c->in[i], false));
    for (int i = 0; i < c->n_out; i++)
        WF_TRY(check_end(s, c, &c->out[i], true));
    return check_outputs(c);
}

/* A step holds copies of the names, since the program's component may be gone when an error prints them. */
static wf_chain_step step_of(const wf_component *c, int number, wf_chain_verb verb, const wf_chain_end *end, int port)
{
    wf_chain_step step = {.verb = verb, .peer = end ? end->rank : WF_OUTSIDE, .component = number, .port = port};
    snprintf(step.name, sizeof step.name, "%s", c->name);
    if (!end)
        return step;
    snprintf(step.message, sizeof step.message, "%s", end->name ? end->name : "");
    step.rank = end->shape.rank;
    memcpy(step.dim, end->shape.dim, (size_t)end->shape.rank * sizeof *step.dim);
    return step;
}

wf_status wf_chain_steps_add(wf_chain_steps *s, int rank, const wf_component *c)
{
    WF_NEED(s);
    WF_NEED(c);
    WF_TRY(check_component(s, c));
    /* Takes, the compute and gives of one component. */
    const int more = c->n_in + 1 + c->n_out, count = s->count[rank];
    wf_chain_step *step = wf_realloc(s->ctx, s->step[rank], (size_t)(count + more) * sizeof *step);
    WF_NEED(step);
    s->step[rank] = step;
    /* Components are numbered in the order in which they were added; the last step knows the last number. */
    const int number = count > 0 ? step[count - 1].component + 1 : 0;
    step += count;
    for (int i = 0; i < c->n_in; i++)
        *step++ = step_of(c, number, WF_CHAIN_TAKE, &c->in[i], i);
    /* The compute's port is the number of outputs. */
    *step++ = step_of(c, number, WF_CHAIN_COMPUTE, NULL, c->outputs ? c->outputs : 1);
    for (int i = 0; i < c->n_out; i++)
        *step++ = step_of(c, number, WF_CHAIN_GIVE, &c->out[i], c->out[i].output);
    s->count[rank] = count + more;
    return WF_OK;
}

/* --- text -----------------------------------------------------------------------------------------------------------
 */

const char *wf_chain_step_text(const wf_chain_steps *s, int rank, int step, char text[WF_FAILURE_TEXT])
{
    const wf_chain_step *a = &s->step[rank][step];
    char what[WF_CHAIN_NAME + 24], where[WF_RANK_TEXT + 8];
    if (a->message[0])
        snprintf(what, sizeof what, "\"%s\"", a->message);
    else
        snprintf(what, sizeof what, "%s %d", a->verb == WF_CHAIN_TAKE ? "input" : "output", a->port);
    if (a->peer == WF_OUTSIDE)
        snprintf(where, sizeof where, "outside");
    else
        snprintf(where, sizeof where, "rank %s", WF_RANK(s->comm, a->peer));
    if (a->verb == WF_CHAIN_COMPUTE)
        snprintf(text, WF_FAILURE_TEXT, "rank %s, step %d (%s computes)", WF_RANK(s->comm, rank), step, a->name);
    else
        snprintf(text, WF_FAILURE_TEXT, "rank %s, step %d (%s %s %s %s %s)", WF_RANK(s->comm, rank), step, a->name,
                 a->verb == WF_CHAIN_TAKE ? "takes" : "gives", what, a->verb == WF_CHAIN_TAKE ? "from" : "to", where);
    return text;
}
