/* Where a chain is cut into parts: as it was given, or so that the heaviest part is as light as can be. */
#include "layers/pipeline/pipeline_impl.h"

#include "comm/comm_author.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { TRIES = 3 }; /* of a measurement, of which the fastest counts */

/* --- the layers of a chain ------------------------------------------------------------------------------------------
 */

/* A chain inside a chain, unless it is recomputed by parts of its own. */
static bool goes_on(const wf_layer *layer)
{
    return layer->kind->chain && layer->segments == 0;
}

static int count_layers(const wf_layer *chain)
{
    int n = 0;
    for (int i = 0; i < chain->n_children; i++)
        n += goes_on(chain->children[i]) ? count_layers(chain->children[i]) : 1;
    return n;
}

static int list_layers(const wf_layer *chain, wf_layer **list)
{
    int n = 0;
    for (int i = 0; i < chain->n_children; i++) {
        wf_layer *child = chain->children[i];
        if (goes_on(child))
            n += list_layers(child, list + n);
        else
            list[n++] = child;
    }
    return n;
}

wf_status wf_chain_list(wf_layer *chain, int *count, wf_layer ***list)
{
    WF_CHECK(chain->kind->chain, WF_ERR_ARGUMENT,
             "a pipeline of a layer of kind %s, which may not be cut; should be a chain (wf_sequential)",
             chain->kind->name);
    *count = count_layers(chain);
    *list = wf_malloc(chain->ctx, ((size_t)*count + 1) * sizeof(**list));
    if (!*list)
        return wf_error_code();
    (void)list_layers(chain, *list);
    return WF_OK;
}

static bool dropped(const wf_layer *layer, int count, wf_layer *const *list, const bool *keep)
{
    for (int i = 0; i < count; i++)
        if (list[i] == layer)
            return !keep[i];
    return false;
}

void wf_chain_drop(wf_layer *chain, int count, wf_layer *const *list, const bool *keep)
{
    int left = 0;
    for (int i = 0; i < chain->n_children; i++) {
        wf_layer *child = chain->children[i];
        if (goes_on(child))
            wf_chain_drop(child, count, list, keep);
        if (dropped(child, count, list, keep))
            wf_layer_free(child);
        else
            chain->children[left++] = child;
    }
    chain->n_children = left;
    free(chain->all); /* its list of parameters is made anew */
    chain->all = NULL;
}

/* --- what a layer costs ---------------------------------------------------------------------------------------------
 */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One forward and backward; *y is the output, for the next layer. */
static wf_status time_once(wf_tape *tape, wf_layer *layer, const wf_tensor *x, wf_tensor **y, double *seconds)
{
    const bool differentiable = wf_dtype_is_float(x->dtype);
    const double begin = now_s();
    wf_var *out = wf_apply(layer, differentiable ? wf_leaf(tape, x) : wf_input(tape, x));
    WF_NEED(out);
    wf_tensor_free(*y);
    *y = wf_keep(out);
    WF_NEED(*y);
    if (out->needs_grad) {
        wf_tensor *ones = wf_tensor_new_like(*y);
        WF_NEED(ones);
        wf_status status = wf_tensor_fill(ones, 1);
        if (status == WF_OK)
            status = wf_backward_from(out, ones);
        wf_tensor_free(ones);
        WF_TRY(status);
    }
    const double took = now_s() - begin;
    *seconds = took < *seconds ? took : *seconds;
    return WF_OK;
}

/* The layer's values as they were: those that it had not yet are drawn when it is used, and running statistics have not
 * seen the sample. */
typedef struct values {
    int64_t n;
    wf_param *const *param;
    wf_tensor **was;
} values;

static wf_status save_values(wf_layer *layer, values *v)
{
    WF_TRY(wf_layer_params(layer, &v->n, &v->param));
    v->was = wf_calloc(layer->ctx, (size_t)v->n + 1, sizeof(*v->was));
    if (!v->was)
        return wf_error_code();
    for (int64_t i = 0; i < v->n; i++) {
        const wf_tensor *value = v->param[i]->value;
        if (value && !v->param[i]->trainable)
            WF_NEED(v->was[i] = wf_tensor_copy(value, value->dtype, value->order));
    }
    return WF_OK;
}

static wf_status restore_values(values *v, const bool *had)
{
    wf_status status = WF_OK;
    for (int64_t i = 0; i < v->n; i++) {
        wf_param *p = v->param[i];
        wf_tensor_free(p->grad);
        p->grad = NULL;
        if (!had[i]) {
            wf_tensor_free(p->value);
            wf_tensor_free(p->rounded);
            p->value = p->rounded = NULL;
        } else if (v->was[i] && status == WF_OK) {
            status = wf_tensor_assign(p->value, v->was[i]);
            wf_tensor_touch(p->value);
        }
        wf_tensor_free(v->was[i]);
    }
    return status;
}

static wf_status time_layer(wf_tape *tape, wf_layer *layer, wf_tensor **x, double *seconds)
{
    values v = {0};
    wf_tensor *y = NULL;
    wf_status status = save_values(layer, &v);
    bool *had = wf_calloc(layer->ctx, (size_t)v.n + 1, sizeof *had);
    if (!had)
        status = wf_error_code();
    for (int64_t i = 0; had && i < v.n; i++)
        had[i] = v.param[i]->value;
    *seconds = INFINITY;
    for (int i = 0; status == WF_OK && i <= TRIES; i++) {
        status = time_once(tape, layer, *x, &y, seconds);
        if (i == 0) /* the first one makes primitives and memory */
            *seconds = INFINITY;
        const wf_status reset = wf_tape_reset(tape);
        status = status == WF_OK ? reset : status;
    }
    if (had && v.was) {
        const wf_status back = restore_values(&v, had);
        status = status == WF_OK ? back : status;
    }
    free(had);
    free(v.was);
    wf_tensor_free(*x);
    *x = y;
    return status;
}

/* Every rank measures all layers; the slowest counts, so that all ranks cut alike. */
static wf_status measure(const wf_mesh *mesh, const wf_tensor *sample, int count, wf_layer *const *list, double *cost)
{
    wf_comm *world = wf_mesh_world(mesh);
    wf_tape *tape = wf_tape_new(wf_comm_ctx(world));
    wf_tensor *x = wf_tensor_alias(sample);
    wf_status status = tape && x ? WF_OK : wf_error_code();
    for (int i = 0; status == WF_OK && i < count; i++)
        status = time_layer(tape, list[i], &x, &cost[i]);
    wf_tensor_free(x);
    wf_tape_free(tape);
    WF_TRY(wf_agree_status(world, status));
    return wf_allreduce_f64(world, cost, count, WF_MAX);
}

/* --- balance --------------------------------------------------------------------------------------------------------
 */

/* How many parts of at most `most` the layers make, cut as late as can be; every part has a layer, and so many layers
 * are left that the remaining parts have one each. */
static bool fits(int count, const double *cost, int parts, double most, int *layers)
{
    int at = 0;
    for (int p = 0; p < parts; p++) {
        double sum = cost[at];
        layers[p] = 1;
        if (sum > most)
            return false;
        for (at++; at < count - (parts - 1 - p) && (sum + cost[at] <= most || p == parts - 1); at++) {
            sum += cost[at];
            layers[p]++;
        }
        if (sum > most)
            return false;
    }
    return at == count;
}

/* The least possible cost of the heaviest part is the sum of some layers in a row, and halving finds it to the last
 * bit that matters. */
static void balance(int count, const double *cost, int parts, int *layers)
{
    double lo = 0, hi = 0;
    for (int i = 0; i < count; i++)
        hi += cost[i];
    hi *= 1 + 1e-9;
    for (int i = 0; i < 60; i++) {
        const double middle = (lo + hi) / 2;
        if (fits(count, cost, parts, middle, layers))
            hi = middle;
        else
            lo = middle;
    }
    (void)fits(count, cost, parts, hi, layers);
}

static wf_status check_given(const int *layers, int count, int parts)
{
    int64_t sum = 0;
    for (int p = 0; p < parts; p++) {
        WF_CHECK(layers[p] > 0, WF_ERR_ARGUMENT, "part %d of the pipeline has %d layers; each should have 1 or more", p,
                 layers[p]);
        sum += layers[p];
    }
    WF_CHECK(sum == count, WF_ERR_ARGUMENT, "the parts of the pipeline have %lld layers together; the chain has %d",
             (long long)sum, count);
    return WF_OK;
}

wf_status wf_pipeline_cut(const wf_mesh *mesh, const wf_pipeline_opts *opts, int count, wf_layer *const *list,
                          int parts, int *layers)
{
    WF_CHECK(count >= parts, WF_ERR_ARGUMENT,
             "a chain of %d layers in %d parts (%s); %d would be empty, so take fewer stages or parts", count, parts,
             wf_mesh_text(mesh), parts - count);
    if (opts->layers) {
        WF_TRY(check_given(opts->layers, count, parts));
        for (int p = 0; p < parts; p++)
            layers[p] = opts->layers[p];
        return WF_OK;
    }
    double *cost = wf_malloc(wf_comm_ctx(wf_mesh_world(mesh)), (size_t)count * sizeof *cost);
    if (!cost)
        return wf_error_code();
    wf_status status = WF_OK;
    for (int i = 0; i < count && status == WF_OK; i++) {
        /* A layer without parameters is not for nothing either. */
        cost[i] = opts->cost ? opts->cost[i] : 1 + (double)wf_layer_param_count(list[i]);
        if (!(cost[i] >= 0 && isfinite(cost[i])))
            status = WF_RAISE(WF_ERR_ARGUMENT, "layer %d of the pipeline costs %g; should be 0 or more", i, cost[i]);
    }
    if (status == WF_OK && !opts->cost && opts->sample)
        status = measure(mesh, opts->sample, count, list, cost);
    if (status == WF_OK)
        balance(count, cost, parts, layers);
    free(cost);
    return status;
}
