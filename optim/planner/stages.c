/* Plans with stages: a pipeline whose cuts are balanced by the measured times of a chunk, priced by its schedule.
 * Inside of the stages the units have the forms that are fastest for a chunk. */
#include "optim/planner/planner_impl.h"

#include <stdlib.h>
#include <string.h>

/* Cuts so that the slowest stage is as fast as can be: the least bound under which the units, taken in order, fill no
 * more than all stages. By bisection: 60 halvings are more than a double has bits. */
static void cut_stages(const double *seconds, int units, int stages, int *each)
{
    double lo = 0, hi = 0;
    /* The bound lies between the slowest unit and all of them together. */
    for (int u = 0; u < units; u++) {
        hi += seconds[u];
        lo = seconds[u] > lo ? seconds[u] : lo;
    }
    for (int round = 0; round < 60; round++) {
        const double bound = (lo + hi) / 2;
        double sum = 0;
        int used = 1;
        for (int u = 0; u < units; u++) {
            const bool next = sum > 0 && sum + seconds[u] > bound;
            used += next;
            sum = next ? seconds[u] : sum + seconds[u];
        }
        *(used <= stages ? &hi : &lo) = bound;
    }
    double sum = 0;
    int stage = 0;
    memset(each, 0, (size_t)stages * sizeof *each);
    for (int u = 0; u < units; u++) {
        /* Each stage gets a unit at least: when as many are left as stages, each takes one. */
        const bool must = units - u == stages - stage - 1 && each[stage] > 0;
        if (stage + 1 < stages && each[stage] > 0 && (must || sum + seconds[u] > hi * (1 + 1e-12))) {
            stage++;
            sum = 0;
        }
        each[stage]++;
        sum += seconds[u];
    }
}

/* A pipeline that is tried, and what its parts cost for a chunk; part k is on stage k % stages. */
typedef struct stage_try {
    wf_pipeline_kind kind;
    wf_pipeline_recompute recompute;
    int stages, parts /* of all stages */, chunks;
    int *each; /* units of each part */
    double *forward, *backward, *kept, *params[2];
    size_t *bytes; /* of a part's input on a rank */
} stage_try;

/* What the units cost in their forms. What lies outside of them is the loss, which the last one has. */
typedef struct stage_units {
    wf_unit_cost *cost;
    int *state; /* of a unit's input */
    double *seconds;
} stage_units;

/* What a stage receives for a chunk, on one rank of it. */
static double input_bytes(const wf_search *s, int unit, int state)
{
    const wf_shape x = s->m->leaf[s->m->unit[unit].first].x;
    const double ranks =
        (state & WF_PARALLEL_SPATIAL ? s->place->pixels : 1) * (state & WF_PARALLEL_CHANNEL ? s->place->channels : 1);
    return 4 * (double)wf_shape_count(x) / (double)x.dim[0] * (double)s->place->batch / ranks;
}

static void add_up(const wf_search *s, const stage_units *units, stage_try *t)
{
    int u = 0;
    for (int k = 0; k < t->parts; k++) {
        t->forward[k] = t->backward[k] = t->kept[k] = t->params[0][k] = t->params[1][k] = 0;
        t->bytes[k] = (size_t)input_bytes(s, u, units->state[u]);
        for (int i = 0; i < t->each[k]; i++, u++) {
            /* Half of a unit's messages are forward's. */
            const wf_unit_cost *cost = &units->cost[u];
            t->forward[k] += cost->forward_s + cost->message_s / 2;
            t->backward[k] += cost->backward_s + cost->message_s / 2;
            t->kept[k] += cost->kept;
            t->params[0][k] += cost->params[0];
            t->params[1][k] += cost->params[1];
        }
        /* The last stage runs backward at once behind a forward. */
        const bool again =
            t->recompute == WF_RECOMPUTE_ALWAYS || (t->recompute == WF_RECOMPUTE_EXCEPT_LAST && k + 1 < t->parts);
        /* Recomputing is forward once more, in backward's time. */
        t->backward[k] += again ? t->forward[k] : 0;
    }
}

/* The largest stage's memory. Chunks have gradients of their own, which are added up in a buffer beside those of the
 * optimizer. live[stage]: chunks whose activations the schedule keeps at once. */
static double stage_memory(const wf_search *s, const stage_try *t, const int *live)
{
    const int parts = t->parts / t->stages;
    double most = 0;
    for (int stage = 0; stage < t->stages; stage++) {
        double all = 0;
        for (int k = stage; k < t->parts; k += t->stages) {
            /* A stage with several parts keeps the same chunks for each. */
            const double chunks = (double)live[stage] / parts;
            /* Recomputed chunks keep their input; only the one at work has what its units keep. */
            const bool again = t->recompute != WF_RECOMPUTE_NEVER && live[stage] > 1;
            all += again ? chunks * (double)t->bytes[k] + t->kept[k] : chunks * t->kept[k];
            all += 4 * (1 + s->words) * (t->params[0][k] + t->params[1][k]);
        }
        most = all > most ? all : most;
    }
    return most + wf_search_base(s, t->chunks * s->place->batch);
}

/* A stage's sums and update count as those of the largest stage, for which all wait. */
static void fill_plan(const wf_search *s, const stage_units *units, const stage_try *t, wf_training_plan *plan)
{
    const double all = wf_search_params(s->m);
    double params = 0, sum = 0;
    for (int stage = 0; stage < t->stages; stage++) {
        double of[2] = {0};
        for (int k = stage; k < t->parts; k += t->stages)
            for (int i = 0; i < 2; i++)
                of[i] += t->params[i][k];
        const wf_unit_cost of_stage = {.params = {of[0], of[1]}};
        const double seconds = wf_search_sum(s, &of_stage) + wf_search_gather(s, &of_stage);
        params = of[0] + of[1] > params ? of[0] + of[1] : params;
        sum = seconds > sum ? seconds : sum;
    }
    plan->sum_s = sum;
    plan->zero = s->zero;
    plan->update_s = all > 0 ? s->place->times.update_s * params / all / (s->zero ? plan->mesh.data : 1) : 0;
    plan->other_s = all > 0 ? s->place->times.passes_s * params / all : 0;
    plan->chunks = t->chunks;
    plan->schedule = t->kind;
    plan->parts = t->parts / t->stages;
    plan->recompute = t->recompute;
    for (int u = 0; u < plan->n_units; u++) {
        const wf_unit_cost *cost = &units->cost[u];
        wf_plan_unit *unit = &plan->unit[u];
        unit->forward_s = t->chunks * cost->forward_s;
        unit->backward_s = t->chunks * cost->backward_s;
        unit->message_s = t->chunks * cost->message_s;
        unit->bytes = t->chunks * cost->bytes;
        unit->kept = cost->kept;
        unit->split = (unsigned)cost->form;
        unit->sum_bytes = wf_search_sum_bytes(s, cost);
        /* A rank is on one stage, so it sends its share. */
        plan->bytes += (unit->bytes + unit->sum_bytes) / t->stages;
    }
}

static wf_status take_plan(wf_search *s, const stage_units *units, const stage_try *t, const wf_pipeline_price *price)
{
    const double memory = stage_memory(s, t, price->live);
    if (wf_search_too_large(s, memory))
        return WF_OK;
    wf_training_plan *plan = wf_search_plan(s);
    int *each = wf_calloc(s->m->ctx, (size_t)t->parts, sizeof *each);
    if (!plan || !each) {
        wf_training_plan_free(plan);
        free(each);
        return wf_error_code();
    }
    /* Every try owns its cuts; the plan gets a copy. */
    memcpy(each, t->each, (size_t)t->parts * sizeof *each);
    plan->stage_units = each;
    fill_plan(s, units, t, plan);
    plan->seconds = price->seconds + plan->sum_s + plan->update_s + plan->other_s;
    plan->bytes += (double)price->bytes / t->stages;
    plan->memory = memory;
    plan->idle = price->bubble;
    wf_search_take(s, plan);
    return WF_OK;
}

/* No optimizer takes a stage without parameters. */
static bool all_train(const stage_try *t)
{
    for (int stage = 0; stage < t->stages; stage++) {
        double params = 0;
        for (int k = stage; k < t->parts; k += t->stages)
            params += t->params[0][k] + t->params[1][k];
        if (params == 0)
            return false;
    }
    return true;
}

static wf_status price_stages(wf_search *s, const stage_units *units, stage_try *t)
{
    const wf_mesh_opts *m = &s->place->mesh;
    /* Neighbouring stages of one column differ by this many ranks. */
    const bool between = wf_place_between(s->place, wf_mesh_opts_size(*m) / m->data);
    wf_price_model links = s->place->meter->links;
    wf_pipeline_price price = {.live = wf_calloc(s->m->ctx, (size_t)t->stages, sizeof(int))};
    wf_pipeline_schedule *schedule = wf_pipeline_schedule_new(
        s->m->ctx, (wf_pipeline_schedule_opts){
                       .kind = t->kind, .stages = t->stages, .parts = t->parts / t->stages, .chunks = t->chunks});
    /* All ranks of a schedule are priced as those of one node. */
    const wf_planner_link *link = between ? &s->place->meter->one_way : &s->place->meter->exchange[0];
    links.alpha_s[0] = link->alpha_s;
    links.beta_s[0] = link->beta_s;
    const wf_pipeline_costs costs = {.forward_s = t->forward, .backward_s = t->backward, .bytes = t->bytes};
    wf_status status =
        price.live && schedule ? wf_pipeline_schedule_price(schedule, &costs, &links, &price) : wf_error_code();
    if (status == WF_OK)
        status = take_plan(s, units, t, &price);
    wf_pipeline_schedule_free(schedule);
    free(price.live);
    return status;
}

static wf_status try_schedule(wf_search *s, const stage_units *units, wf_pipeline_kind kind, int parts, int chunks)
{
    const int stages = s->place->mesh.stage, all = stages * parts;
    stage_try t = {.kind = kind, .stages = stages, .parts = all, .chunks = chunks};
    double *numbers = wf_calloc(s->m->ctx, 5 * (size_t)all, sizeof *numbers);
    t.bytes = wf_calloc(s->m->ctx, (size_t)all, sizeof *t.bytes);
    t.each = wf_calloc(s->m->ctx, (size_t)all, sizeof *t.each);
    wf_status status = numbers && t.bytes && t.each ? WF_OK : wf_error_code();
    /* Five arrays in one piece. */
    if (status == WF_OK) {
        t.forward = numbers;
        t.backward = numbers + all;
        t.kept = numbers + (ptrdiff_t)2 * all;
        t.params[0] = numbers + (ptrdiff_t)3 * all;
        t.params[1] = numbers + (ptrdiff_t)4 * all;
        cut_stages(units->seconds, s->m->n_units, all, t.each);
    }
    /* Each way to recompute, with and without a sharded optimizer. */
    const int ways = 2 * (WF_RECOMPUTE_ALWAYS + 1);
    for (int way = 0; way < ways && status == WF_OK; way++) {
        t.recompute = (wf_pipeline_recompute)(way / 2);
        s->zero = way % 2;
        s->words = wf_search_words(s);
        add_up(s, units, &t);
        /* Recomputing costs time: without a limit of memory it is not tried. */
        if (all_train(&t) && (t.recompute == WF_RECOMPUTE_NEVER || s->o->memory > 0) &&
            (!s->zero || s->place->mesh.data > 1))
            status = price_stages(s, units, &t);
    }
    free(t.each);
    free(t.bytes);
    free(numbers);
    return status;
}

static wf_status unit_costs(wf_search *s, stage_units *units)
{
    const int last = s->m->n_units - 1;
    const wf_planner_times *t = &s->place->times;
    WF_TRY(wf_search_forms(s, units->cost, units->state));
    /* What no leaf accounts for is the loss, of the last stage. */
    const double outside = t->forward_s + t->backward_s - wf_search_leaves(s), all = t->forward_s + t->backward_s;
    units->cost[last].forward_s += all > 0 ? outside * t->forward_s / all : 0;
    units->cost[last].backward_s += all > 0 ? outside * t->backward_s / all : 0;
    for (int u = 0; u <= last; u++)
        units->seconds[u] = units->cost[u].forward_s + units->cost[u].backward_s + units->cost[u].message_s;
    return WF_OK;
}

/* A place whose batch is a chunk. */
wf_status wf_search_stages(wf_search *s, int chunks)
{
    static const struct {
        wf_pipeline_kind kind;
        int parts;
    } schedules[] = {
        {WF_PIPELINE_1F1B, 1}, {WF_PIPELINE_GPIPE, 1}, {WF_PIPELINE_INTERLEAVED, 2}, {WF_PIPELINE_INTERLEAVED, 4}};
    const size_t n = (size_t)s->m->n_units;
    stage_units units = {.cost = wf_calloc(s->m->ctx, n, sizeof *units.cost),
                         .state = wf_calloc(s->m->ctx, n, sizeof *units.state),
                         .seconds = wf_calloc(s->m->ctx, n, sizeof *units.seconds)};
    wf_status status = units.cost && units.state && units.seconds ? WF_OK : wf_error_code();
    /* Forms are chosen without sharding: it changes no time of a chunk. */
    s->zero = false;
    s->words = wf_search_words(s);
    if (status == WF_OK)
        status = unit_costs(s, &units);
    const bool possible = status == WF_OK && units.cost[s->m->n_units - 1].possible;
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules && status == WF_OK && possible; i++)
        if (schedules[i].parts * s->place->mesh.stage <= s->m->n_units)
            status = try_schedule(s, &units, schedules[i].kind, schedules[i].parts, chunks);
    free(units.cost);
    free(units.state);
    free(units.seconds);
    return status;
}
