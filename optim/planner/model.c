/* A model as a list of what costs time: applied once to noise, it leaves its operations on a tape, in their order. A
 * unit is a layer of the chain, which may be split on its own; a leaf is a layer inside of a unit that has operations
 * of its own. Local: every rank traces for itself. */
#include "optim/planner/planner_impl.h"

#include "core/profile_author.h"
#include "layers/functions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- units ----------------------------------------------------------------------------------------------------------
 */

/* A chain inside of a chain is opened; any other layer is one unit, whatever it contains. */
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

/* A node's first input says what its leaf reads. The node of a layer without a path in this model keeps no layer. */
static void describe(const wf_planner_model *m, wf_planner_leaf *leaf, const wf_node *node)
{
    wf_layer *layer = wf_planner_find(m->model, node->layer);
    /* A node without inputs (a table of positions) is taken to read what it writes. */
    *leaf = (wf_planner_leaf){.x = node->n_in > 0 && node->in[0] ? wf_var_shape(node->in[0]) : wf_var_shape(node->out)};
    snprintf(leaf->path, sizeof leaf->path, "%s", node->layer);
    if (!layer)
        return;
    leaf->params = trainable_of(layer);
    /* Only leaves without children can be built again by themselves (wf_part_new). */
    if (layer->n_children == 0) {
        leaf->layer = layer;
        leaf->info = wf_part_of(layer);
    } else if (layer->kind->describe) {
        leaf->info = wf_part_of(layer);
    }
}

static void add_node(wf_planner_model *m, const wf_node *node)
{
    wf_planner_leaf *leaf = m->leaf;
    const wf_planner_leaf *end = m->leaf + m->n_leaves;
    /* From the front each time: a model has hundreds of leaves and is traced once. */
    while (leaf < end && strcmp(leaf->path, node->layer) != 0)
        leaf++;
    if (leaf == end) {
        describe(m, leaf, node);
        m->n_leaves++;
    }
    /* Several nodes of one leaf: the last one's output is the leaf's, and `share` sums their bytes until
     * sort_leaves. */
    leaf->y = wf_var_shape(node->out);
    leaf->share += (double)wf_shape_count(leaf->y) * (double)wf_dtype_size(node->out->value->dtype);
}

/* Leaves lie one behind the other by their units. A leaf of no unit is dropped. */
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
    /* Bytes become shares: of what a step keeps, by leaf. */
    for (int i = 0; i < n; i++)
        all += sorted[i].share;
    for (int i = 0; i < n && all > 0; i++)
        sorted[i].share /= all;
    return WF_OK;
}

/* --- inputs ---------------------------------------------------------------------------------------------------------
 */

static wf_tensor *noise_of(const wf_planner_input *input, wf_tape *tape, int64_t batch)
{
    wf_shape shape = input->shape;
    /* The input has the sizes of one sample, whatever batch it was described with. */
    shape.dim[0] = batch;
    /* Half below the last whole number, so that no rounding passes it. */
    wf_var *x = input->below > 0 ? wf_rand_uniform(tape, shape, 0, (double)input->below - 0.5, NULL)
                                 : wf_rand_uniform(tape, shape, -1, 1, NULL);
    if (!x || input->below == 0)
        return wf_keep(x);
    return wf_tensor_copy(wf_value(x), WF_I64, WF_ROW_MAJOR);
}

/* On failure everything is freed again, and NULL says so. */
wf_tensor **wf_planner_noise(const wf_planner_model *m, wf_tape *tape, int64_t batch)
{
    wf_tensor **x = tape ? wf_calloc(m->ctx, (size_t)m->n_inputs, sizeof(*x)) : NULL;
    bool whole = x;
    for (int i = 0; i < m->n_inputs && whole; i++) {
        x[i] = noise_of(&m->inputs[i], tape, batch);
        whole = x[i];
    }
    if (whole)
        return x;
    wf_planner_noise_free(m, x);
    return wf_error_null();
}

void wf_planner_noise_free(const wf_planner_model *m, wf_tensor **x)
{
    for (int i = 0; x && i < m->n_inputs; i++)
        wf_tensor_free(x[i]);
    free(x);
}

double wf_planner_noise_bytes(const wf_planner_model *m, wf_tensor *const *x)
{
    double bytes = 0;
    for (int i = 0; i < m->n_inputs; i++)
        bytes += (double)wf_tensor_bytes(x[i]);
    return bytes;
}

wf_var *wf_planner_apply(const wf_planner_model *m, wf_tape *tape, wf_tensor *const *x)
{
    void *in = NULL;
    const size_t bytes = (size_t)m->n_inputs * sizeof(wf_var *);
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_pool_take_host(m->ctx, bytes, &in));
    for (int i = 0; i < m->n_inputs; i++)
        ((wf_var **)in)[i] = wf_input(tape, x[i]);
    wf_var *y = wf_apply_n(m->model, in, m->n_inputs);
    wf_pool_give_host(m->ctx, in, bytes);
    return y;
}

static wf_status look_at(wf_planner_model *m, wf_tape *tape)
{
    /* Only shapes of the tape are of interest, so the noise may go before them. */
    wf_tensor **x = wf_planner_noise(m, tape, m->input.dim[0]);
    const wf_var *y = wf_planner_apply(m, tape, x);
    wf_planner_noise_free(m, x);
    WF_NEED(y);
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

/* A profile gives operations the paths of their layers. No event is kept. */
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
    /* Before the tape is freed: its values go back to the pool. */
    if (status == WF_OK)
        status = wf_tape_reset(tape);
    wf_tape_free(tape);
    return status;
}

wf_status wf_planner_trace(wf_layer *model, wf_shape input, wf_planner_model *m)
{
    return wf_planner_trace_n(model, 1, &(wf_planner_input){.shape = input}, m);
}

static wf_status check_inputs(int n, const wf_planner_input *inputs)
{
    WF_CHECK(n >= 1 && inputs, WF_ERR_ARGUMENT, "a plan for a model of %d inputs; should be 1 or more", n);
    /* The first input of numbers needs features; labels and lengths do not. */
    for (int i = 0; i < n; i++) {
        const wf_shape shape = inputs[i].shape;
        WF_CHECK(shape.rank >= (i == 0 && inputs[i].below == 0 ? 2 : 1) && wf_shape_count(shape) > 0, WF_ERR_ARGUMENT,
                 "a plan for an input without elements");
        WF_CHECK(shape.dim[0] == inputs[0].shape.dim[0], WF_ERR_ARGUMENT,
                 "a plan for inputs of %lld and of %lld samples; should be of one batch",
                 (long long)inputs[0].shape.dim[0], (long long)shape.dim[0]);
        WF_CHECK(inputs[i].below >= 0, WF_ERR_ARGUMENT, "a plan for whole numbers below %lld; should be 1 or more",
                 (long long)inputs[i].below);
    }
    return WF_OK;
}

static wf_status trace_inputs(wf_planner_model *m, const wf_planner_input *inputs)
{
    m->unit = wf_calloc(m->ctx, (size_t)m->n_units + 1, sizeof *m->unit);
    m->inputs = wf_calloc(m->ctx, (size_t)m->n_inputs, sizeof *m->inputs);
    if (!m->unit || !m->inputs)
        return wf_error_code();
    memcpy(m->inputs, inputs, (size_t)m->n_inputs * sizeof *m->inputs);
    (void)list_units(m->model, m->unit);
    return trace(m);
}

wf_status wf_planner_trace_n(wf_layer *model, int n, const wf_planner_input *inputs, wf_planner_model *m)
{
    WF_NEED(model);
    WF_NEED(m);
    WF_TRY(check_inputs(n, inputs));
    *m = (wf_planner_model){
        .ctx = model->ctx, .model = model, .input = inputs[0].shape, .n_inputs = n, .n_units = count_units(model)};
    const wf_status status = trace_inputs(m, inputs);
    if (status != WF_OK)
        wf_planner_model_clear(m);
    return status;
}

void wf_planner_model_clear(wf_planner_model *m)
{
    free(m->leaf);
    free(m->unit);
    free(m->inputs);
    *m = (wf_planner_model){0};
}
