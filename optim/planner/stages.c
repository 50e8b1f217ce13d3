/* Plans with stages: a pipeline whose cuts are balanced by the measured times of a chunk, priced by its schedule. */
#include "optim/planner/planner_impl.h"

#include <stdlib.h>
#include <string.h>

/* Cuts so that the slowest stage is as fast as can be: the least bound under which the units, taken in order, fill no
 * more than all stages. */
static void cut_stages(const double *seconds, int units, int stages, int *each)
{
    double lo = 0, hi = 0;
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
        const bool must = units - u == stages - stage - 1 && each[stage] > 0;
        if (stage + 1 < stages && each[stage] > 0 && (must || sum + seconds[u] > hi * (1 + 1e-12))) {
            stage++;
            sum = 0;
        }
        each[stage]++;
        sum += seconds[u];
    }
}

typedef struct stage_costs {
    double *forward, *backward, *kept, *params;
    size_t *bytes;
} stage_costs;

static void add_up(const wf_search *s, const int *each, wf_pipeline_recompute recompute, stage_costs *c)
{
    int u = 0;
    for (int k = 0; k < s->place->mesh.stage; k++) {
        c->forward[k] = c->backward[k] = c->kept[k] = c->params[k] = 0;
        const wf_planner_leaf *leaf = &s->m->leaf[s->m->unit[u].first];
        c->bytes[k] = (size_t)((double)wf_shape_count(leaf->x) / (double)leaf->x.dim[0] * (double)s->place->batch * 4);
        for (int i = 0; i < each[k]; i++, u++) {
            const wf_unit_cost *cost = wf_search_cost(s, u, 0, 0);
            c->forward[k] += cost->forward_s;
            c->backward[k] += cost->backward_s;
            c->kept[k] += cost->kept;
            c->params[k] += cost->params[0];
        }
        /* The last stage runs backward at once behind a forward. */
        const bool again =
            recompute == WF_RECOMPUTE_ALWAYS || (recompute == WF_RECOMPUTE_EXCEPT_LAST && k + 1 < s->place->mesh.stage);
        c->backward[k] += again ? c->forward[k] : 0;
    }
}

/* The largest stage's memory. */
static double stage_memory(const wf_search *s, const stage_costs *c, const int *live, wf_pipeline_recompute recompute)
{
    double most = 0;
    for (int k = 0; k < s->place->mesh.stage; k++) {
        const bool again = recompute != WF_RECOMPUTE_NEVER && live[k] > 1;
        const double kept = again ? live[k] * (double)c->bytes[k] + c->kept[k] : live[k] * c->kept[k];
        const double all = kept + 4 * s->words * c->params[k];
        most = all > most ? all : most;
    }
    return most + s->place->times.more;
}

static wf_training_plan *stage_plan(const wf_search *s, const int *each, const stage_costs *c, double seconds)
{
    wf_training_plan *plan = wf_search_plan(s);
    int *copy = wf_calloc(s->m->ctx, (size_t)s->place->mesh.stage, sizeof *copy);
    double params = 0, backward = 0, most = 0;
    if (!plan || !copy) {
        wf_training_plan_free(plan);
        free(copy);
        return wf_error_null();
    }
    memcpy(copy, each, (size_t)s->place->mesh.stage * sizeof *copy);
    plan->stage_units = copy;
    for (int k = 0; k < s->place->mesh.stage; k++) {
        params = c->params[k] > params ? c->params[k] : params;
        backward = c->backward[k] > backward ? c->backward[k] : backward;
        most = (double)c->bytes[k] > most && k > 0 ? (double)c->bytes[k] : most;
    }
    const double all = wf_search_params(s->m);
    plan->sum_s = 4 * params * s->place->sum_s[0];
    plan->update_s = all > 0 ? s->place->times.update_s * params / all : 0;
    plan->other_s = 0;
    plan->seconds = seconds + plan->sum_s + plan->update_s;
    return plan;
}

static wf_status price_stages(wf_search *s, const int *each, stage_costs *c, int chunks,
                              wf_pipeline_recompute recompute)
{
    const int stages = s->place->mesh.stage;
    const bool between = wf_place_between(s->place, stages);
    wf_price_model links = s->place->meter->links;
    wf_pipeline_price price = {.live = wf_calloc(s->m->ctx, (size_t)stages, sizeof(int))};
    wf_pipeline_schedule *schedule = wf_pipeline_schedule_new(s->m->ctx, WF_PIPELINE_1F1B, stages, 1, chunks);
    /* All ranks of a schedule are priced as those of one node. */
    links.alpha_s[0] = between ? links.alpha_s[1] : s->place->meter->exchange_alpha_s;
    links.beta_s[0] = between ? links.beta_s[1] : s->place->meter->exchange_beta_s;
    add_up(s, each, recompute, c);
    const wf_pipeline_costs costs = {.forward_s = c->forward, .backward_s = c->backward, .bytes = c->bytes};
    wf_status status =
        price.live && schedule ? wf_pipeline_schedule_price(schedule, &costs, &links, &price) : wf_error_code();
    if (status == WF_OK && !wf_search_too_large(s, stage_memory(s, c, price.live, recompute))) {
        wf_training_plan *plan = stage_plan(s, each, c, price.seconds);
        status = plan ? WF_OK : wf_error_code();
        if (plan) {
            plan->chunks = chunks;
            plan->recompute = recompute;
            plan->memory = stage_memory(s, c, price.live, recompute);
            plan->bytes = (double)price.bytes / stages;
            for (int u = 0; u < plan->n_units; u++) {
                const wf_unit_cost *cost = wf_search_cost(s, u, 0, 0);
                plan->unit[u].forward_s = chunks * cost->forward_s;
                plan->unit[u].backward_s = chunks * cost->backward_s;
                plan->unit[u].kept = cost->kept;
                plan->unit[u].sum_bytes = 4 * cost->params[0] * s->place->sum_bytes[0];
            }
        }
        wf_search_take(s, plan);
    }
    wf_pipeline_schedule_free(schedule);
    free(price.live);
    return status;
}

/* A place whose batch is a chunk: units have no form, and what lies outside of them is spread over them. */
wf_status wf_search_stages(wf_search *s, int chunks)
{
    const int units = s->m->n_units, stages = s->place->mesh.stage;
    const wf_planner_times *t = &s->place->times;
    const double more = (t->forward_s + t->backward_s) / wf_search_leaves(s);
    double *numbers = wf_calloc(s->m->ctx, (size_t)units + 5 * (size_t)stages, sizeof *numbers);
    int *each = wf_calloc(s->m->ctx, (size_t)stages, sizeof *each);
    stage_costs c = {0};
    wf_status status = numbers && each ? WF_OK : wf_error_code();
    if (status == WF_OK)
        c = (stage_costs){numbers + units, numbers + units + stages, numbers + units + 2 * stages,
                          numbers + units + 3 * stages, (size_t *)(void *)(numbers + units + 4 * stages)};
    s->words = 2 + s->place->meter->state_words;
    for (int u = 0; u < units && status == WF_OK; u++) {
        wf_unit_cost *cost = wf_search_cost(s, u, 0, 0);
        status = wf_place_cost(s->place, &s->m->unit[u], 0, 0, cost);
        cost->forward_s *= more;
        cost->backward_s *= more;
        numbers[u] = cost->forward_s + cost->backward_s;
    }
    if (status == WF_OK)
        cut_stages(numbers, units, stages, each);
    for (int r = WF_RECOMPUTE_NEVER; r <= WF_RECOMPUTE_ALWAYS && status == WF_OK; r++)
        if (r == WF_RECOMPUTE_NEVER || s->o->memory > 0)
            status = price_stages(s, each, &c, chunks, (wf_pipeline_recompute)r);
    free(numbers);
    free(each);
    return status;
}
