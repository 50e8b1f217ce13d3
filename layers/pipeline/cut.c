/* Divides a chain into parts: as it was given, or so that the heaviest part is as light as can be.
 *
 * wf_pipeline_cut is called once, when a pipeline is made, on all ranks. A layer weighs what the program says (`cost`).
 * Where it says nothing but gives a sample, all ranks measure forward and backward of each layer, and the slowest rank
 * counts; balanced by memory, a layer weighs the bytes of its parameters and of what each waiting chunk keeps, and
 * schedules make earlier parts hold more chunks. With neither, a layer weighs its number of parameters. The cut is
 * found by halving: the heaviest part may have a weight if parts filled up to it, one after the other, hold all layers.
 *
 * Measuring runs layers outside of the pipeline, so their values and running statistics are put back afterwards. */
#include "layers/pipeline/pipeline_impl.h"

#include "comm/comm_author.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
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

/* One more entry than layers, so that an empty chain has a list too. */
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

/* The pipeline's list was made when it was cut; a layer that was added later is in the chain and not in the list. */
const wf_layer *wf_chain_stranger(const wf_layer *chain, int count, wf_layer *const *list, int *at)
{
    for (int i = 0; i < chain->n_children; i++) {
        const wf_layer *child = chain->children[i], *stranger = NULL;
        if (*at < count && list[*at] == child)
            ++*at;
        else if (child->kind->chain)
            stranger = wf_chain_stranger(child, count, list, at);
        else
            stranger = child;
        if (stranger)
            return stranger;
    }
    return NULL;
}

/* Layers of the list that are not kept; chains that hold them stay, as they hold others. */
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

/* What is found out about a layer. */
typedef struct measured {
    double seconds; /* of its forward and backward */
    double bytes;   /* that a chunk keeps from forward to backward */
} measured;

/* What a layer is measured with. */
typedef struct trial {
    wf_tape *tape;
    wf_layer *layer;
    wf_tensor *x;
    int n_more; /* of the first layer: inputs beside x */
    const wf_tensor *const *more;
    int n_kept; /* of the end of a skip: what its stashes kept */
    wf_tensor *const *kept;
} trial;

/* Integers (labels, token numbers) have no gradient. */
static wf_var *variable_of(wf_tape *tape, const wf_tensor *value)
{
    return wf_dtype_is_float(value->dtype) ? wf_leaf(tape, value) : wf_input(tape, value);
}

static wf_var *apply_trial(const trial *t)
{
    void *memory = NULL;
    const size_t bytes = (size_t)(1 + t->n_more) * sizeof(wf_var *);
    WF_TRY_NULL(wf_pool_take_host(t->layer->ctx, bytes, &memory));
    wf_var **in = memory;
    in[0] = variable_of(t->tape, t->x);
    for (int i = 0; i < t->n_more; i++)
        in[1 + i] = variable_of(t->tape, t->more[i]);
    wf_var *y = wf_apply_n(t->layer, in, 1 + t->n_more);
    wf_pool_give_host(t->layer->ctx, memory, bytes);
    return y;
}

/* One forward and backward; *y is the output, for the next layer. */
static wf_status measure_once(const trial *t, wf_tensor **y, measured *m)
{
    /* Memory in use before and after forward differs by what the layer keeps for its backward. */
    const size_t before = wf_ctx_memory(t->layer->ctx).bytes_in_use;
    const double begin = now_s();
    for (int i = 0; i < t->n_kept; i++)
        wf_skip_keep(t->layer, i, variable_of(t->tape, t->kept[i]));
    wf_var *out = apply_trial(t);
    WF_NEED(out);
    m->bytes = (double)wf_ctx_memory(t->layer->ctx).bytes_in_use - (double)before;
    wf_tensor_free(*y);
    *y = wf_keep(out);
    WF_NEED(*y);
    /* Any gradient will do for the time of backward. */
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
    m->seconds = took < m->seconds ? took : m->seconds;
    return WF_OK;
}

/* The layer's values as they were: those that it had not yet are drawn when it is used, and running statistics have not
 * seen the sample. Trained values are not changed by backward, so they need no copy. */
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
    /* Gradients of the measurement would be taken for those of a step. */
    for (int64_t i = 0; i < v->n; i++) {
        wf_param *p = v->param[i];
        wf_tensor_free(p->grad);
        p->grad = NULL;
        /* Drawn by the measurement: they are drawn again, by the same numbers, when the program uses the layer. */
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

/* The output takes the place of the input. */
static wf_status measure_layer(trial *t, measured *m)
{
    values v = {0};
    wf_tensor *y = NULL;
    wf_status status = save_values(t->layer, &v);
    bool *had = wf_calloc(t->layer->ctx, (size_t)v.n + 1, sizeof *had);
    if (!had)
        status = wf_error_code();
    for (int64_t i = 0; had && i < v.n; i++)
        had[i] = v.param[i]->value;
    /* The first try makes primitives and memory and does not count. */
    for (int i = 0; status == WF_OK && i <= TRIES; i++) {
        if (i <= 1) /* the first one makes primitives and memory */
            m->seconds = INFINITY;
        status = measure_once(t, &y, m);
        const wf_status reset = wf_tape_reset(t->tape);
        status = status == WF_OK ? reset : status;
    }
    /* Values are put back after a failure too; the first error of the two is told. */
    if (had && v.was) {
        const wf_status back = restore_values(&v, had);
        status = status == WF_OK ? back : status;
    }
    free(had);
    free(v.was);
    wf_tensor_free(t->x);
    t->x = y;
    return status;
}

/* Places that stashes ahead of layer `before` have. Places number the values of all stashes of the chain, in its
 * order. */
static int places_until(int before, wf_layer *const *list)
{
    int n = 0;
    for (int i = 0; i < before; i++)
        n += wf_skip_is_stash(list[i]) ? wf_skip_count(list[i]) : 0;
    return n;
}

static wf_status keep_all(trial *t, const wf_layer *stash, wf_tensor **kept)
{
    const bool inputs = wf_skip_is_inputs(stash);
    WF_CHECK(!inputs || t->n_more == wf_skip_count(stash), WF_ERR_ARGUMENT,
             "skip_inputs \"%s\" takes %d inputs, and the pipeline has %d samples", wf_layer_path(stash), stash->most,
             1 + t->n_more);
    /* `kept` outlives the layers between a stash and its pop, so it holds a reference. */
    for (int i = 0; i < wf_skip_count(stash); i++)
        WF_NEED(kept[i] = wf_tensor_alias(inputs ? t->more[i] : t->x));
    return WF_OK;
}

/* `all`: what the places of all stashes have kept. `taken`: room for what one layer takes. */
static wf_status find_kept(trial *t, int i, wf_layer *const *list, wf_tensor *const *all, wf_tensor **taken)
{
    t->n_kept = wf_skip_is_pop(list[i]) ? wf_skip_count(list[i]) : 0;
    t->kept = taken;
    for (int k = 0; k < t->n_kept; k++) {
        int at = 0;
        const wf_layer *stash = wf_skip_stash_of(list[i], k, &at);
        WF_NEED(stash);
        taken[k] = NULL;
        for (int j = 0; j < i; j++)
            if (list[j] == stash)
                taken[k] = all[places_until(j, list) + at];
        WF_CHECK(taken[k], WF_ERR_ARGUMENT, "the pipeline takes \"%s\" by \"%s\" before it is kept",
                 wf_skip_name(list[i], k), wf_layer_path(list[i]));
    }
    return WF_OK;
}

/* kept: room for what all places keep, and for as many once more. */
static wf_status measure_all(trial *t, int count, wf_layer *const *list, wf_tensor **kept, measured *found)
{
    for (int i = 0; i < count; i++) {
        if (wf_skip_is_stash(list[i])) {
            WF_TRY(keep_all(t, list[i], kept + places_until(i, list)));
        } else {
            t->layer = list[i];
            WF_TRY(find_kept(t, i, list, kept, kept + places_until(count, list)));
            WF_TRY(measure_layer(t, &found[i]));
        }
        t->n_more = 0;
    }
    return WF_OK;
}

/* Every rank measures all layers; the slowest and the largest count, so that all ranks cut alike. */
static wf_status measure_layers(const wf_mesh *mesh, const wf_pipeline_opts *o, int count, wf_layer *const *list,
                                measured *found)
{
    wf_comm *world = wf_mesh_world(mesh);
    trial t = {.tape = wf_tape_new(wf_comm_ctx(world)),
               .x = wf_tensor_alias(o->sample),
               .n_more = o->n_more_samples,
               .more = o->more_samples};
    const int places = places_until(count, list);
    int most = 0; /* that one layer takes */
    for (int i = 0; i < count; i++)
        if (wf_skip_is_pop(list[i]) && wf_skip_count(list[i]) > most)
            most = wf_skip_count(list[i]);
    wf_tensor **kept = wf_calloc(wf_comm_ctx(world), (size_t)(places + most) + 1, sizeof(*kept));
    wf_status status = t.tape && t.x && kept ? WF_OK : wf_error_code();
    if (status == WF_OK)
        status = measure_all(&t, count, list, kept, found);
    for (int i = 0; kept && i < places; i++)
        wf_tensor_free(kept[i]);
    free(kept);
    wf_tensor_free(t.x);
    wf_tape_free(t.tape);
    /* A rank that fails must not leave the others in the sum. */
    WF_TRY(wf_agree_status(world, status));
    return wf_allreduce_f64(world, &found->seconds, 2 * (int64_t)count, WF_MAX);
}

_Static_assert(sizeof(measured) == 2 * sizeof(double), "measurements are reduced as numbers");

/* --- balance --------------------------------------------------------------------------------------------------------
 */

/* What layers weigh: for themselves, and more for each chunk that a part holds. */
typedef struct weights {
    double *own, *chunk; /* of each layer */
    double *live;        /* chunks that each part holds */
} weights;

static double weight_of(const weights *w, int part, int layer)
{
    return w->own[layer] + w->live[part] * w->chunk[layer];
}

/* How many parts of at most `most` the layers make, cut as late as can be (first fit); every part has a layer, and so
 * many layers are left that the remaining parts have one each. */
static bool fits(int count, const weights *w, int parts, double most, int *layers)
{
    int at = 0;
    for (int p = 0; p < parts; p++) {
        double sum = weight_of(w, p, at);
        layers[p] = 1;
        if (sum > most)
            return false;
        for (at++; at < count - (parts - 1 - p) && (sum + weight_of(w, p, at) <= most || p == parts - 1); at++) {
            sum += weight_of(w, p, at);
            layers[p]++;
        }
        if (sum > most)
            return false;
    }
    return at == count;
}

/* The least possible weight of the heaviest part is the sum of some layers in a row, and halving finds it to the last
 * bit that matters. */
static void balance(int count, const weights *w, int parts, int *layers)
{
    double lo = 0, hi = 0;
    for (int i = 0; i < count; i++) {
        double most = 0;
        for (int p = 0; p < parts; p++)
            most = weight_of(w, p, i) > most ? weight_of(w, p, i) : most;
        hi += most;
    }
    /* Rounding may make the sum of all layers a little more than the bound. */
    hi *= 1 + 1e-9;
    /* 60 halvings narrow the bound to 2^-60 of the sum of all weights. */
    for (int i = 0; i < 60; i++) {
        const double middle = (lo + hi) / 2;
        if (fits(count, w, parts, middle, layers))
            hi = middle;
        else
            lo = middle;
    }
    /* `layers` holds the last try, which may have failed. */
    (void)fits(count, w, parts, hi, layers);
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

/* The most chunks that wait for their backward in each part. The first stages hold most: in 1F1B as many chunks as
 * there are stages after them, and one. */
static void count_live(const wf_pipeline_schedule *s, double *live)
{
    for (int part = 0; part < s->stages * s->parts; part++) {
        int now = 0;
        for (int i = 0; i < s->count[part % s->stages]; i++) {
            const wf_pipeline_action *a = &s->action[part % s->stages][i];
            if (a->part == part)
                now += (a->verb == WF_PIPELINE_FORWARD) - (a->verb == WF_PIPELINE_BACKWARD);
            live[part] = now > live[part] ? now : live[part];
        }
    }
}

/* Value, gradient here and in the optimizer's buffer, and two numbers of its state. Adam's two numbers, whatever the
 * optimizer: it is not known here. */
static double bytes_of_params(wf_layer *layer)
{
    return 5.0 * (double)wf_layer_param_count(layer) * (double)wf_dtype_size(wf_ctx_dtype(layer->ctx));
}

static wf_status weigh(const wf_pipeline *p, const wf_pipeline_opts *o, int count, wf_layer *const *list,
                       const weights *w, measured *found)
{
    for (int i = 0; i < count; i++) {
        /* A layer without parameters is not for nothing either. */
        w->own[i] = o->cost ? o->cost[i] : 1 + (double)wf_layer_param_count(list[i]);
        WF_CHECK(w->own[i] >= 0 && isfinite(w->own[i]), WF_ERR_ARGUMENT,
                 "layer %d of the pipeline costs %g; should be 0 or more", i, w->own[i]);
    }
    if (o->cost || !o->sample)
        return WF_OK;
    WF_TRY(measure_layers(p->mesh, o, count, list, found));
    /* Each part has the count of its own schedule: weights of a layer depend on the part into which it falls. */
    if (o->by_memory)
        count_live(p->schedule, w->live);
    for (int i = 0; i < count; i++) {
        w->own[i] = o->by_memory ? bytes_of_params(list[i]) : found[i].seconds;
        w->chunk[i] = o->by_memory ? found[i].bytes : 0;
    }
    return WF_OK;
}

wf_status wf_pipeline_cut(wf_pipeline *p, const wf_pipeline_opts *o, int count, wf_layer *const *list)
{
    const int parts = p->stages * p->parts;
    WF_CHECK(count >= parts, WF_ERR_ARGUMENT,
             "a chain of %d layers in %d parts (%s); %d would be empty, so take fewer stages or parts", count, parts,
             wf_mesh_text(p->mesh), parts - count);
    WF_CHECK(!o->by_memory || (o->sample && !o->cost && !o->layers), WF_ERR_ARGUMENT,
             "a pipeline balanced by memory measures a chunk: give a sample, and neither costs nor layers");
    if (o->layers) {
        WF_TRY(check_given(o->layers, count, parts));
        memcpy(p->cuts, o->layers, (size_t)parts * sizeof *p->cuts);
        return WF_OK;
    }
    /* Two weights for each layer, then a count for each part. */
    double *numbers = wf_calloc(p->ctx, 2 * (size_t)count + (size_t)parts, sizeof *numbers);
    measured *found = wf_calloc(p->ctx, (size_t)count, sizeof *found);
    wf_status status = numbers && found ? WF_OK : wf_error_code();
    if (status == WF_OK) {
        const weights w = {numbers, numbers + count, numbers + 2 * count};
        status = weigh(p, o, count, list, &w, found);
        if (status == WF_OK)
            balance(count, &w, parts, p->cuts);
    }
    free(numbers);
    free(found);
    return status;
}

/* Layer numbers are those of the whole chain. */
int wf_pipeline_part_of(const wf_pipeline *p, int layer)
{
    int part = 0;
    for (int end = p->cuts[0]; layer >= end; end += p->cuts[++part])
        ;
    return part;
}
