/* A model as a list of what costs time: applied once to noise, it leaves its operations on a tape, in their order. */
#include "optim/planner/planner_impl.h"

#include "core/profile_author.h"
#include "layers/functions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- units ----------------------------------------------------------------------------------------------------------
 */

static int count_units(const wf_layer *layer)
{
    int n = 0;
    for (int i = 0; i < layer->n_children && layer->kind->chain; i++)
        n += count_units(layer->children[i]);
    return layer->kind->chain ? n : 1;
}

static int list_units(const wf_layer *layer, wf_planner_unit *unit)
{
    int n = 0;
    if (!layer->kind->chain) {
        snprintf(unit->path, sizeof unit->path, "%s", wf_layer_path(layer));
        return 1;
    }
    for (int i = 0; i < layer->n_children; i++)
        n += list_units(layer->children[i], unit + n);
    return n;
}

/* A path is inside of another one that is equal, or that it continues behind a '/'. */
bool wf_planner_inside(const char *path, const char *of)
{
    const size_t length = strlen(of);
    return length == 0 || (strncmp(path, of, length) == 0 && (path[length] == '\0' || path[length] == '/'));
}

/* --- leaves ---------------------------------------------------------------------------------------------------------
 */

wf_layer *wf_planner_find(wf_layer *layer, const char *path)
{
    if (strcmp(wf_layer_path(layer), path) == 0)
        return layer;
    for (int i = 0; i < layer->n_children; i++)
        if (wf_planner_inside(path, wf_layer_path(layer->children[i])))
            return wf_planner_find(layer->children[i], path);
    return NULL;
}

static double trainable_of(const wf_layer *layer)
{
    double count = 0;
    for (int i = 0; i < layer->n_params; i++)
        if (layer->params[i]->trainable)
            count += (double)wf_shape_count(layer->params[i]->shape);
    return count;
}

static void describe(const wf_planner_model *m, wf_planner_leaf *leaf, const wf_node *node)
{
    wf_layer *layer = wf_planner_find(m->model, node->layer);
    *leaf = (wf_planner_leaf){.x = node->n_in > 0 && node->in[0] ? wf_var_shape(node->in[0]) : wf_var_shape(node->out)};
    snprintf(leaf->path, sizeof leaf->path, "%s", node->layer);
    if (!layer)
        return;
    leaf->params = trainable_of(layer);
    if (layer->n_children == 0) {
        leaf->layer = layer;
        leaf->info = wf_part_of(layer);
    }
}

static void add_node(wf_planner_model *m, const wf_node *node)
{
    wf_planner_leaf *leaf = m->leaf;
    const wf_planner_leaf *end = m->leaf + m->n_leaves;
    while (leaf < end && strcmp(leaf->path, node->layer) != 0)
        leaf++;
    if (leaf == end) {
        describe(m, leaf, node);
        m->n_leaves++;
    }
    leaf->y = wf_var_shape(node->out);
    leaf->share += (double)wf_shape_count(leaf->y) * (double)wf_dtype_size(node->out->value->dtype);
}

/* Leaves lie one behind the other by their units. */
static int by_unit(const wf_planner_model *m, wf_planner_leaf *sorted)
{
    int n = 0;
    for (int u = 0; u < m->n_units; u++) {
        m->unit[u].first = n;
        for (int i = 0; i < m->n_leaves; i++)
            if (wf_planner_inside(m->leaf[i].path, m->unit[u].path))
                sorted[n++] = m->leaf[i];
        m->unit[u].leaves = n - m->unit[u].first;
    }
    return n;
}

static wf_status sort_leaves(wf_planner_model *m)
{
    wf_planner_leaf *sorted = wf_calloc(m->ctx, (size_t)m->n_leaves + 1, sizeof *sorted);
    double all = 0;
    if (!sorted)
        return wf_error_code();
    const int n = by_unit(m, sorted);
    free(m->leaf);
    m->leaf = sorted;
    m->n_leaves = n;
    for (int i = 0; i < n; i++)
        all += sorted[i].share;
    for (int i = 0; i < n && all > 0; i++)
        sorted[i].share /= all;
    return WF_OK;
}

static wf_status look_at(wf_planner_model *m, wf_tape *tape)
{
    wf_var *x = wf_rand_uniform(tape, m->input, -1, 1, NULL);
    WF_NEED(x);
    WF_NEED(wf_apply(m->model, x));
    wf_node *const *node;
    const int64_t nodes = wf_tape_nodes(tape, &node);
    m->leaf = wf_calloc(m->ctx, (size_t)nodes + 1, sizeof *m->leaf);
    if (!m->leaf)
        return wf_error_code();
    for (int64_t i = 0; i < nodes; i++)
        if (node[i]->layer && *node[i]->layer)
            add_node(m, node[i]);
    WF_CHECK(m->n_leaves > 0, WF_ERR_ARGUMENT, "the model has no layer with a gradient, so there is nothing to plan");
    return sort_leaves(m);
}

/* A profile gives operations the paths of their layers. */
static wf_status trace(wf_planner_model *m)
{
    wf_tape *tape = wf_tape_new(m->ctx);
    WF_NEED(tape);
    wf_status status = wf_profile_begin(m->ctx, 0);
    if (status == WF_OK) {
        wf_profile *profile = m->ctx->profile;
        status = look_at(m, tape);
        wf_profile_free(profile);
    }
    if (status == WF_OK)
        status = wf_tape_reset(tape);
    wf_tape_free(tape);
    return status;
}

wf_status wf_planner_trace(wf_layer *model, wf_shape input, wf_planner_model *m)
{
    WF_NEED(model);
    WF_NEED(m);
    WF_CHECK(input.rank >= 2 && wf_shape_count(input) > 0, WF_ERR_ARGUMENT, "a plan for an input without elements");
    *m = (wf_planner_model){.ctx = model->ctx, .model = model, .input = input, .n_units = count_units(model)};
    m->unit = wf_calloc(m->ctx, (size_t)m->n_units + 1, sizeof *m->unit);
    if (!m->unit)
        return wf_error_code();
    (void)list_units(model, m->unit);
    const wf_status status = trace(m);
    if (status != WF_OK)
        wf_planner_model_clear(m);
    return status;
}

void wf_planner_model_clear(wf_planner_model *m)
{
    free(m->leaf);
    free(m->unit);
    *m = (wf_planner_model){0};
}
