/* The search: every mesh of the ranks in turn; on each, the units of the chain get their forms by dynamic programming
 * over the chain. A state is how an output is split; each keeps its Pareto front of time and memory. Every rank
 * searches for itself; what the meter measures on the way is collective, so all must go the same way, and do, since
 * their numbers are equal. */
#include "optim/planner/planner_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 128 /* candidates that are kept of each state */

const char *wf_planner_mesh_text(wf_mesh_opts m, char text[WF_PLANNER_PATH])
{
    const struct {
        const char *name;
        int n;
    } axis[] = {{"data", m.data},   {"stage", m.stage},   {"channel", m.channel},
                {"depth", m.depth}, {"height", m.height}, {"width", m.width}};
    int used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++)
        if (axis[i].n > 1)
            used += snprintf(text + used, WF_PLANNER_PATH - (size_t)used, "%s%s %d", used ? " x " : "", axis[i].name,
                             axis[i].n);
    return used ? text : "one rank";
}

/* --- the chain ------------------------------------------------------------------------------------------------------
 */

/* 4 bytes an element, `words` times: value, gradient, state, and packed forms. */
static double param_bytes(const wf_search *s, const wf_unit_cost *c)
{
    return 4.0 * s->words * (c->params[0] + c->params[1]);
}

/* Seconds of summing a unit's gradients, if the sums hide behind nothing. ZeRO sums shards. */
double wf_search_sum(const wf_search *s, const wf_unit_cost *c)
{
    const wf_sum_cost *a = &s->place->sum[0], *b = &s->place->sum[1];
    return 4 * (s->zero ? c->params[0] * a->shards_s + c->params[1] * b->shards_s
                        : c->params[0] * a->sum_s + c->params[1] * b->sum_s);
}

double wf_search_gather(const wf_search *s, const wf_unit_cost *c)
{
    const wf_sum_cost *a = &s->place->sum[0], *b = &s->place->sum[1];
    return s->zero ? 4 * (c->params[0] * a->gather_s + c->params[1] * b->gather_s) : 0;
}

double wf_search_sum_bytes(const wf_search *s, const wf_unit_cost *c)
{
    const wf_sum_cost *a = &s->place->sum[0], *b = &s->place->sum[1];
    return 4 * (s->zero ? c->params[0] * a->sharded_bytes + c->params[1] * b->sharded_bytes
                        : c->params[0] * a->bytes + c->params[1] * b->bytes);
}

/* A mesh without several places along an axis has nothing to split there. */
static unsigned forms_of(const wf_search *s)
{
    unsigned forms = 0;
    if (s->place->channels > 1)
        forms |= WF_PARALLEL_CHANNEL;
    if (s->place->pixels > 1)
        forms |= WF_PARALLEL_SPATIAL;
    return forms;
}

/* Splits that multiply nothing only add messages, so units without products stay whole. */
static bool may_take(const wf_search *s, int unit, unsigned form)
{
    bool multiplies = false;
    if (form & ~forms_of(s))
        return false;
    /* Asked for unit by unit, or for all of them. */
    if (s->o->forms)
        return form == (s->o->forms[unit] & forms_of(s));
    if (s->o->split >= 0)
        return form == ((unsigned)s->o->split & forms_of(s));
    for (int i = s->m->unit[unit].first; i < s->m->unit[unit].first + s->m->unit[unit].leaves; i++)
        multiplies = multiplies || s->m->leaf[i].info.kind != WF_PART_OTHER;
    return multiplies || form == 0;
}

/* Ties by memory, so that the order is total and the plan the same on all ranks. */
static int by_state_and_time(const void *left, const void *right)
{
    const wf_candidate *a = left, *b = right;
    if (a->state != b->state)
        return a->state - b->state;
    if (a->seconds != b->seconds)
        return a->seconds < b->seconds ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* Thins a Pareto front that is sorted by time. If it has more than MOST candidates, keeps the fastest in each of MOST
 * equal ranges of bytes, and the leanest, so that every limit of memory has candidates near to it. */
static int thin_out(const wf_candidate *w, int n, wf_candidate *to)
{
    const double width = n > MOST ? (w[0].bytes - w[n - 1].bytes) / (MOST - 1) : 0;
    int kept = 0;
    double bound = INFINITY;
    for (int i = 0; i < n; i++) {
        /* A candidate in the range of the one before is dropped; the last of all, the leanest, never is. */
        if (n > MOST && i + 1 < n && w[i].bytes > bound)
            continue;
        bound = w[i].bytes - width;
        /* Without room the last place is written again: it is the leanest so far. */
        to[kept < MOST ? kept++ : MOST - 1] = w[i];
    }
    return kept;
}

/* Keeps the Pareto front (time, memory) of each state, thinned to MOST candidates. */
static int keep_best(wf_candidate *w, int n, wf_candidate *to)
{
    int kept = 0;
    qsort(w, (size_t)n, sizeof *w, by_state_and_time);
    for (int i = 0; i < n;) {
        const int first = i, state = w[i].state;
        int all = 0;
        /* Sorted by time: a later candidate is worth keeping only if it needs less memory. */
        for (; i < n && w[i].state == state; i++)
            if (all == 0 || w[i].bytes < w[first + all - 1].bytes)
                w[first + all++] = w[i];
        kept += thin_out(w + first, all, to + kept);
    }
    return kept;
}

/* Recomputing keeps the output alone, and pays forward once more, with its messages. */
static wf_candidate extend(const wf_search *s, const wf_candidate *w, int before, int unit, unsigned form,
                           bool recompute)
{
    const wf_unit_cost *c = wf_search_cost(s, unit, form, w->state);
    wf_candidate next = {.before = before, .form = (uint8_t)form, .state = (uint8_t)c->state, .recompute = recompute};
    next.seconds =
        w->seconds + c->forward_s + c->backward_s + c->message_s + wf_search_sum(s, c) + wf_search_gather(s, c);
    next.bytes = w->bytes + param_bytes(s, c) + (recompute ? c->output : c->kept);
    next.seconds += recompute ? c->forward_s + c->again_s : 0;
    return next;
}

static wf_status step_unit(wf_search *s, int unit, wf_candidate *room)
{
    /* Unit 0 has one predecessor: the input, whole, free of cost. */
    const wf_candidate start = {0}, *from = unit > 0 ? s->candidate + (unit - 1) * WF_STATES * MOST : &start;
    const int n_from = unit > 0 ? s->candidates[unit - 1] : 1;
    int n = 0;
    /* Costs depend on the state of the input but not on the candidate: once for each state. */
    for (unsigned form = 0; form < WF_STATES; form++)
        for (int state = 0; state < WF_STATES && may_take(s, unit, form); state++)
            WF_TRY(wf_place_cost(s->place, &s->m->unit[unit], form, state, wf_search_cost(s, unit, form, state)));
    for (int i = 0; i < n_from; i++)
        for (unsigned form = 0; form < WF_STATES; form++)
            for (int again = 0; again <= s->recompute && may_take(s, unit, form); again++)
                if (wf_search_cost(s, unit, form, from[i].state)->possible)
                    room[n++] = extend(s, &from[i], i, unit, form, again);
    s->candidates[unit] = keep_best(room, n, s->candidate + unit * WF_STATES * MOST);
    return WF_OK;
}

/* --- a plan ---------------------------------------------------------------------------------------------------------
 */

void wf_training_plan_free(wf_training_plan *plan)
{
    if (!plan)
        return;
    free(plan->stage_units);
    free(plan->unit);
    wf_plan_watch_free(plan->watch);
    free(plan);
}

/* A plan without numbers: paths and what the search was given. */
wf_training_plan *wf_search_plan(const wf_search *s)
{
    wf_training_plan *plan = wf_calloc(s->m->ctx, 1, sizeof *plan);
    wf_plan_unit *unit = wf_calloc(s->m->ctx, (size_t)s->m->n_units + 1, sizeof *unit);
    if (!plan || !unit) {
        free(plan);
        free(unit);
        return wf_error_null();
    }
    *plan = (wf_training_plan){.ctx = s->m->ctx,
                               .ranks = s->o->ranks,
                               .nodes = s->o->nodes,
                               .batch = s->o->batch,
                               .mesh = s->place->mesh,
                               .chunks = 1,
                               .parts = 1,
                               .links = s->place->meter->links,
                               .exchange = {s->place->meter->exchange[0], s->place->meter->exchange[1]},
                               .overlap = s->place->overlap,
                               .n_units = s->m->n_units,
                               .unit = unit};
    for (int u = 0; u < plan->n_units; u++)
        memcpy(unit[u].path, s->m->unit[u].path, sizeof unit[u].path);
    return plan;
}

double wf_search_params(const wf_planner_model *m)
{
    double all = 0;
    for (int i = 0; i < m->n_leaves; i++)
        all += m->leaf[i].params;
    return all;
}

double wf_search_leaves(const wf_search *s)
{
    double all = 0;
    for (int i = 0; i < s->m->n_leaves; i++)
        all += s->place->times.leaf_forward_s[i] + s->place->times.leaf_backward_s[i];
    return all;
}

/* What a step takes at its peak beyond what is kept. Parts of the work need their part of it. */
static double more_bytes(const wf_search *s)
{
    return s->place->times.more / (s->place->pixels * s->place->channels);
}

/* The base that no choice of forms changes. `fixed` was measured with whole parameters, so they are taken out:
 * param_bytes adds them by unit. */
double wf_search_base(const wf_search *s, int64_t batch)
{
    const wf_planner_times *t = &s->place->times;
    const double trained = 4 * (2 + s->place->meter->state_words) * wf_search_params(s->m) + t->packed;
    double input = 0;
    for (int i = 0; i < s->m->n_inputs; i++) {
        const wf_planner_input *in = &s->m->inputs[i];
        /* Whole numbers have 8 bytes; inputs are cut along pixels alone. */
        input += (in->below > 0 ? 8 : 4) * (double)wf_shape_count(in->shape) / (double)in->shape.dim[0] * (double)batch;
    }
    return (t->fixed > trained ? t->fixed - trained : 0) + more_bytes(s) + input / s->place->pixels;
}

/* A value, a gradient, state, and the packed forms that kernels keep. With a sharded optimizer the peak is in the first
 * step, while the values move into one buffer: they are there twice, with the forms that forward has packed. Later no
 * packed form is kept. */
double wf_search_words(const wf_search *s)
{
    const wf_planner_times *t = &s->place->times;
    const double params = wf_search_params(s->m), packed = s->zero ? t->packed_forward : t->packed;
    return 2 + s->zero + s->place->meter->state_words / (s->zero ? s->place->mesh.data : 1) +
           (params > 0 ? packed / (4 * params) : 0);
}

/* Numbers of a unit as the table shows them, and its part of the plan's sums. */
static void fill_unit(const wf_search *s, const wf_candidate *w, const wf_candidate *before, int unit,
                      wf_training_plan *plan)
{
    const wf_unit_cost *c = wf_search_cost(s, unit, w->form, before ? before->state : 0);
    wf_plan_unit *u = &plan->unit[unit];
    u->split = w->form;
    u->recompute = w->recompute;
    u->forward_s = c->forward_s;
    u->backward_s = c->backward_s + (w->recompute ? c->forward_s : 0);
    u->message_s = c->message_s + (w->recompute ? c->again_s : 0);
    u->bytes = c->bytes + (w->recompute ? c->again_bytes : 0);
    u->kept = w->recompute ? c->output : c->kept;
    u->sum_bytes = wf_search_sum_bytes(s, c);
    plan->sum_s += wf_search_sum(s, c) + wf_search_gather(s, c);
    plan->update_s += c->params[0] + c->params[1];
    plan->bytes += u->bytes + u->sum_bytes;
}

/* What backward takes of a step, beside what its leaves take: a factor above 1. */
static double backward_of_leaves(const wf_search *s)
{
    double all = 0;
    for (int i = 0; i < s->m->n_leaves; i++)
        all += s->place->times.leaf_backward_s[i];
    return all > 0 ? s->place->times.backward_s / all : 1;
}

/* Backward of a unit, from its last leaf on. A leaf has its share of the unit's parameters and, by its measured time,
 * of the unit's backward; what lies outside of leaves is spread over all of them. */
static void add_sums(const wf_search *s, int unit, const wf_unit_cost *c, double backward_s, wf_hidden_sums *sums)
{
    const int first = s->m->unit[unit].first, leaves = s->m->unit[unit].leaves;
    const double *leaf_s = s->place->times.leaf_backward_s;
    double seconds = 0, params = 0;
    for (int i = first; i < first + leaves; i++) {
        seconds += leaf_s[i];
        params += s->m->leaf[i].params;
    }
    for (int i = first + leaves - 1; i >= first; i--) {
        const double part = params > 0 ? s->m->leaf[i].params / params : 0;
        wf_hidden_sums_add(sums, backward_s * (seconds > 0 ? leaf_s[i] / seconds : 1.0 / leaves),
                           4 * part * (c->params[0] + c->params[1]), part * wf_search_sum(s, c));
    }
}

static wf_training_plan *plan_of(const wf_search *s, const wf_candidate *last)
{
    wf_training_plan *plan = wf_search_plan(s);
    wf_hidden_sums sums = wf_hidden_sums_begin(s->place->overlap);
    const double outside = backward_of_leaves(s);
    double gathers = 0;
    if (!plan)
        return NULL;
    /* From the last unit to the first, as backward goes and as `before` leads. */
    const wf_candidate *w = last;
    for (int u = s->m->n_units - 1; u >= 0; u--) {
        const wf_candidate *before = u > 0 ? s->candidate + (u - 1) * WF_STATES * MOST + w->before : NULL;
        fill_unit(s, w, before, u, plan);
        plan->seconds += plan->unit[u].forward_s + plan->unit[u].backward_s + plan->unit[u].message_s;
        const wf_unit_cost *c = wf_search_cost(s, u, w->form, before ? before->state : 0);
        add_sums(s, u, c, outside * plan->unit[u].backward_s, &sums);
        gathers += wf_search_gather(s, c);
        w = before;
    }
    const wf_planner_times *t = &s->place->times;
    const double params = wf_search_params(s->m);
    plan->zero = s->zero;
    /* Between nodes, sums go on while backward computes; inside a node they take the processor's time. */
    if (wf_place_between(s->place, wf_mesh_opts_size(plan->mesh)))
        plan->sum_s = wf_hidden_sums_shown(&sums) + gathers;
    /* The update is proportional to the elements that a rank updates. */
    plan->update_s = params > 0 ? t->update_s * plan->update_s / params / (s->zero ? plan->mesh.data : 1) : 0;
    plan->other_s = t->forward_s + t->backward_s - wf_search_leaves(s);
    plan->seconds += plan->sum_s + plan->update_s + plan->other_s;
    plan->memory = wf_search_base(s, s->place->batch) + last->bytes;
    return plan;
}

/* The plan if it is faster than the best one so far; else it is gone. A tie keeps the earlier one, which is the simpler
 * mesh; the margin makes rounding no reason. */
void wf_search_take(wf_search *s, wf_training_plan *plan)
{
    if (plan && (!s->best || plan->seconds < s->best->seconds * (1 - 1e-9))) {
        wf_training_plan_free(s->best);
        s->best = plan;
        return;
    }
    wf_training_plan_free(plan);
}

/* Remembers the leanest that did not fit, for the message if none does. */
bool wf_search_too_large(wf_search *s, double bytes)
{
    if (s->o->memory <= 0 || bytes <= s->o->memory)
        return false;
    if (s->least == 0 || bytes < s->least) {
        s->least = bytes;
        s->least_mesh = s->place->mesh;
    }
    return true;
}

static wf_status step_units(wf_search *s)
{
    /* At most so many extensions of a unit: states by MOST candidates, forms, and with and without recomputing. */
    wf_candidate *room = wf_calloc(s->m->ctx, 2 * WF_STATES * WF_STATES * MOST, sizeof *room);
    wf_status status = room ? WF_OK : wf_error_code();
    for (int u = 0; u < s->m->n_units && status == WF_OK; u++)
        status = step_unit(s, u, room);
    free(room);
    return status;
}

/* The output goes into a loss, which takes pixels that are cut, but no channels. For stages: the fastest forms,
 * whatever memory they need. */
wf_status wf_search_forms(wf_search *s, wf_unit_cost *cost, int *state)
{
    const int last = s->m->n_units - 1;
    const wf_candidate *w = NULL;
    WF_TRY(step_units(s));
    for (int i = 0; i < s->candidates[last]; i++) {
        const wf_candidate *c = &s->candidate[last * WF_STATES * MOST + i];
        if (!(c->state & WF_PARALLEL_CHANNEL) && (!w || c->seconds < w->seconds))
            w = c;
    }
    cost[last].possible = w;
    for (int u = last; u >= 0 && w; u--) {
        const wf_candidate *before = u > 0 ? &s->candidate[(u - 1) * WF_STATES * MOST + w->before] : NULL;
        state[u] = before ? before->state : 0;
        cost[u] = *wf_search_cost(s, u, w->form, state[u]);
        w = before;
    }
    return WF_OK;
}

/* By how much backward of some unit needs more than the end of forward, where all that is kept is there: the units
 * behind it have freed theirs, and a recomputed one gets back what it does not keep. Where the unit is as the meter has
 * measured it, its peak is that of the step. */
static double backward_bytes(const wf_search *s, const wf_candidate *w)
{
    double most = 0, freed = 0;
    for (int u = s->m->n_units - 1; u >= 0; u--) {
        const wf_candidate *before = u > 0 ? &s->candidate[(u - 1) * WF_STATES * MOST + w->before] : NULL;
        const wf_unit_cost *c = wf_search_cost(s, u, w->form, before ? before->state : 0);
        const double more = c->backward - (w->recompute ? 0 : c->kept) - freed - more_bytes(s);
        most = (w->form || w->recompute) && more > most ? more : most;
        freed += w->recompute ? c->output : c->kept;
        w = before;
    }
    return most;
}

static wf_status run_chain(wf_search *s, bool zero)
{
    const int last = s->m->n_units - 1;
    s->zero = zero;
    s->words = wf_search_words(s);
    WF_TRY(step_units(s));
    const wf_candidate *chosen = NULL;
    /* Among those that fit, the fastest; the front has the leanest of each state, so what can fit is found. */
    for (int i = 0; i < s->candidates[last]; i++) {
        const wf_candidate *w = &s->candidate[last * WF_STATES * MOST + i];
        if (!(w->state & WF_PARALLEL_CHANNEL) &&
            !wf_search_too_large(s, wf_search_base(s, s->place->batch) + w->bytes + backward_bytes(s, w)) &&
            (!chosen || w->seconds < chosen->seconds))
            chosen = w;
    }
    if (!chosen)
        return WF_OK;
    wf_training_plan *plan = plan_of(s, chosen);
    if (!plan)
        return wf_error_code();
    plan->memory += backward_bytes(s, chosen);
    wf_search_take(s, plan);
    return WF_OK;
}

/* --- meshes ---------------------------------------------------------------------------------------------------------
 */

/* Returns true if the program can have such a mesh: it says so in `can`. */
static bool has_form(const wf_planner_opts *o, wf_mesh_opts m)
{
    const bool pixels = m.depth * m.height * m.width > 1;
    return !(pixels && !(o->can & WF_PLANNER_SPATIAL)) && !(m.channel > 1 && !(o->can & WF_PLANNER_CHANNEL)) &&
           !(m.stage > 1 && !(o->can & WF_PLANNER_STAGE)) && !(m.depth > 1 && !(o->can & WF_PLANNER_DEPTH));
}

/* Each place along data needs as many samples, and each stage a unit. */
static bool wanted(const wf_search *s, wf_mesh_opts m)
{
    const wf_mesh_opts *only = &s->o->mesh;
    if (wf_mesh_opts_size(*only) > 0 && memcmp(only, &m, sizeof m) != 0)
        return false;
    return s->o->batch % m.data == 0 && m.stage <= s->m->n_units && has_form(s->o, m);
}

/* Recomputing is tried only where memory is limited: it never makes a step faster. */
static wf_status try_place(wf_search *s, wf_mesh_opts mesh, int64_t batch, int chunks)
{
    wf_place place;
    WF_TRY(wf_place_open(s->m, s->place->meter, s->o, mesh, batch, &place));
    const wf_place *outside = s->place;
    wf_status status = WF_OK;
    s->place = &place;
    s->recompute = false;
    if (mesh.stage > 1)
        status = wf_search_stages(s, chunks);
    for (int again = 0; again < 2 && mesh.stage == 1; again++)
        for (int zero = 0; zero < 2; zero++) {
            s->recompute = again;
            if (status == WF_OK && !(zero && mesh.data == 1) &&
                !(again && (s->o->memory <= 0 || !(s->o->can & WF_PLANNER_RECOMPUTE))))
                status = run_chain(s, zero);
        }
    s->place = outside;
    wf_place_close(&place);
    return status;
}

static wf_status try_mesh(wf_search *s, wf_mesh_opts mesh)
{
    const int64_t batch = s->o->batch / mesh.data;
    wf_status status = WF_OK;
    if (!wanted(s, mesh))
        return WF_OK;
    if (mesh.stage == 1)
        return try_place(s, mesh, batch, 1);
    /* Fewer chunks than stages leave stages idle; beyond eight times as many, messages cost more than idleness. */
    const int only = s->o->chunks, from = only ? only : mesh.stage, to = only ? only : 8 * mesh.stage;
    /* The batch of a chunk, rounded up: the largest one decides. */
    for (int chunks = from; chunks <= to && chunks <= batch && status == WF_OK; chunks *= 2)
        status = try_place(s, mesh, (batch + chunks - 1) / chunks, chunks);
    return status;
}

/* Every way to write the ranks as a product, data alone first: of equal plans the simplest is kept. */
static wf_status try_meshes(wf_search *s, wf_mesh_opts mesh, int axis, int left)
{
    int *const size[] = {&mesh.data, &mesh.stage, &mesh.channel, &mesh.depth, &mesh.height, &mesh.width};
    if (axis == 5) {
        *size[axis] = left;
        return try_mesh(s, mesh);
    }
    for (int n = left; n >= 1; n--) {
        *size[axis] = n;
        if (left % n == 0)
            WF_TRY(try_meshes(s, mesh, axis + 1, left / n));
    }
    return WF_OK;
}

/* The only mesh that is asked for. */
static wf_status check_mesh(const wf_planner_model *m, const wf_planner_opts *o)
{
    char text[WF_PLANNER_PATH];
    const long long asked = wf_mesh_opts_size(o->mesh);
    wf_planner_mesh_text(o->mesh, text);
    WF_CHECK(asked == o->ranks, WF_ERR_ARGUMENT, "a mesh of %s has %lld ranks: should have %d, those of the plan", text,
             asked, o->ranks);
    WF_CHECK(o->batch % o->mesh.data == 0, WF_ERR_ARGUMENT,
             "a mesh of %s for a batch of %lld: data should be a number that divides it", text, (long long)o->batch);
    WF_CHECK(o->mesh.stage <= m->n_units, WF_ERR_ARGUMENT,
             "a mesh of %s for a model of %d layers: should have as many stages at most", text, m->n_units);
    WF_CHECK(has_form(o, o->mesh), WF_ERR_ARGUMENT,
             "a mesh of %s: the program does not take such a mesh (the last argument of wf_planner_answer)", text);
    return WF_OK;
}

static wf_status check_opts(const wf_planner_model *m, const wf_planner_opts *o)
{
    WF_CHECK(o->ranks >= 1 && o->nodes >= 1 && o->ranks % o->nodes == 0, WF_ERR_ARGUMENT,
             "a plan for %d ranks on %d nodes: should be as many ranks on each node", o->ranks, o->nodes);
    WF_CHECK(o->batch >= 1, WF_ERR_ARGUMENT, "a plan for a batch of %lld", (long long)o->batch);
    WF_CHECK(m->n_units > 0, WF_ERR_ARGUMENT, "a plan for a model without layers");
    return wf_mesh_opts_size(o->mesh) > 0 ? check_mesh(m, o) : WF_OK;
}

/* Two reasons: no mesh at all, or none within the memory. */
static wf_status none_fits(const wf_search *s)
{
    char text[WF_PLANNER_PATH];
    WF_CHECK(s->least > 0, WF_ERR_ARGUMENT, "no mesh of %d ranks divides a batch of %lld for this program", s->o->ranks,
             (long long)s->o->batch);
    WF_FAIL(WF_ERR_MEMORY, "no plan for %d ranks fits into %.1f MiB of each: the leanest needs %.1f MiB (%s)",
            s->o->ranks, s->o->memory / 0x1p20, s->least / 0x1p20, wf_planner_mesh_text(s->least_mesh, text));
}

wf_training_plan *wf_planner_search(const wf_planner_model *m, const wf_planner_meter *meter, const wf_planner_opts *o)
{
    const size_t units = (size_t)m->n_units;
    /* Costs are opened by try_place; here only the meter is known. */
    const wf_place start = {.meter = meter};
    WF_TRY_NULL(check_opts(m, o));
    wf_search s = {.m = m, .o = o, .place = &start};
    s.cost = wf_calloc(m->ctx, units * WF_STATES * WF_STATES, sizeof *s.cost);
    s.candidate = wf_calloc(m->ctx, units * WF_STATES * MOST, sizeof *s.candidate);
    s.candidates = wf_calloc(m->ctx, units, sizeof *s.candidates);
    wf_status status = s.cost && s.candidate && s.candidates ? WF_OK : wf_error_code();
    const wf_mesh_opts ones = {1, 1, 1, 1, 1, 1};
    if (status == WF_OK)
        status = try_meshes(&s, ones, 0, o->ranks);
    if (status == WF_OK && !s.best)
        status = none_fits(&s);
    free(s.cost);
    free(s.candidate);
    free(s.candidates);
    if (status == WF_OK)
        return s.best;
    wf_training_plan_free(s.best);
    return wf_error_null();
}
