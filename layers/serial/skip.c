/* The two ends of a skip connection. The stash keeps its input's variable until the pop takes it; a pipeline hands the
 * pop a variable of its own, which may have come from another stage. */
#include "layers/skip.h"

#include "layers/functions.h"
#include "layers/serial/serial_impl.h"

#include <stdlib.h>
#include <string.h>

/* A value on its way from one end to the other. */
typedef struct place {
    char *name;
    wf_tape *tape; /* of the variable; compared before that is looked at */
    wf_var *kept;
} place;

typedef struct skip_state {
    int n;
    place *place;
    wf_skip_join join;
    wf_var **in; /* of wf_skip_apply: x, and what was kept */
} skip_state;

static void free_skip(wf_layer *layer)
{
    skip_state *own = layer->state;
    for (int i = 0; own->place && i < own->n; i++)
        free(own->place[i].name);
    free(own->place);
    free(own->in);
}

/* The value passes on unchanged; the stash only notes it. */
static wf_var *stash_forward(wf_layer *layer, wf_var *x)
{
    wf_skip_keep(layer, 0, x);
    return x;
}

/* Extra inputs of a chain are kept for the pops by name; the first goes on through it. */
static wf_var *inputs_forward(wf_layer *layer, wf_var *const *x, int n)
{
    for (int i = 1; i < n; i++)
        wf_skip_keep(layer, i - 1, x[i]);
    return x[0];
}

/* Takes what was kept for place i: handed to the layer itself by a pipeline, else to its stash. */
static wf_var *take_kept(wf_layer *layer, int i, const wf_tape *tape)
{
    place *own = &((skip_state *)layer->state)->place[i];
    if (!own->kept) {
        int at = 0;
        const wf_layer *stash = wf_skip_stash_of(layer, i, &at);
        if (!stash)
            return NULL;
        own = &((skip_state *)stash->state)->place[at];
    }
    /* A variable of another tape may be freed already, so the tapes are compared and the variable is not looked at. */
    wf_var *kept = own->tape == tape ? own->kept : NULL;
    /* Taken once: a second pop of a step would be a fault in the chain, and finds nothing. */
    own->kept = NULL;
    own->tape = NULL;
    WF_CHECK_NULL(kept && kept->value, WF_ERR_STATE,
                  "%s \"%s\": nothing is kept under \"%s\"; its stash comes before it in the chain, and in the "
                  "same segment if it is recomputed",
                  layer->kind->name, wf_layer_path(layer), wf_skip_name(layer, i));
    return kept;
}

static wf_var *pop_forward(wf_layer *layer, wf_var *x)
{
    const skip_state *own = layer->state;
    wf_var *kept = take_kept(layer, 0, x->tape);
    if (!kept)
        return NULL;
    wf_var *y = own->join(x, kept);
    /* A join is the program's function and may fail without an error of ours. */
    if (!y && wf_error_pending() == WF_OK)
        WF_FAIL_NULL(WF_ERR_STATE, "skip_pop \"%s\": the join of \"%s\" returned NULL and no error",
                     wf_layer_path(layer), own->place[0].name);
    return y;
}

static wf_var *apply_forward(wf_layer *layer, wf_var *x)
{
    const skip_state *own = layer->state;
    own->in[0] = x;
    for (int i = 0; i < own->n; i++) {
        own->in[i + 1] = take_kept(layer, i, x->tape);
        if (!own->in[i + 1])
            return NULL;
    }
    return wf_apply_n(layer->children[0], own->in, own->n + 1);
}

static const wf_layer_kind stash_kind = {.name = "skip_stash", .forward = stash_forward, .free = free_skip};
static const wf_layer_kind inputs_kind = {.name = "skip_inputs", .forward_n = inputs_forward, .free = free_skip};
static const wf_layer_kind pop_kind = {.name = "skip_pop", .forward = pop_forward, .free = free_skip};
static const wf_layer_kind apply_kind = {
    .name = "skip_apply", .forward = apply_forward, .free = free_skip, .wraps = true};

static wf_status name_places(wf_layer *layer, int count, const char *const *names)
{
    skip_state *own = layer->state;
    own->place = wf_calloc(layer->ctx, (size_t)count, sizeof *own->place);
    own->in = wf_calloc(layer->ctx, (size_t)count + 1, sizeof(*own->in));
    if (!own->place || !own->in)
        return wf_error_code();
    own->n = count;
    for (int i = 0; i < count; i++) {
        wf_layer_note(layer, "%s %s;", i ? "" : layer->kind->name, names[i]);
        own->place[i].name = wf_strdup(layer->ctx, names[i]);
        if (!own->place[i].name)
            return wf_error_code();
    }
    return WF_OK;
}

static wf_layer *skip_new(wf_ctx *ctx, const wf_layer_kind *kind, int count, const char *const *names)
{
    WF_CHECK_NULL(count >= 1 && names, WF_ERR_ARGUMENT, "%s of %d names; should be 1 or more", kind->name, count);
    for (int i = 0; i < count; i++)
        WF_CHECK_NULL(names[i] && *names[i], WF_ERR_ARGUMENT, "%s without a name", kind->name);
    wf_layer *layer = wf_layer_new(ctx, kind, sizeof(skip_state));
    if (!layer)
        return NULL;
    if (name_places(layer, count, names) == WF_OK)
        return layer;
    wf_layer_free(layer);
    return wf_error_null();
}

wf_layer *wf_skip_stash(wf_ctx *ctx, const char *name)
{
    WF_NEED_NULL(ctx);
    return skip_new(ctx, &stash_kind, 1, &name);
}

wf_layer *wf_skip_inputs(wf_ctx *ctx, int count, const char *const *names)
{
    WF_NEED_NULL(ctx);
    wf_layer *layer = skip_new(ctx, &inputs_kind, count, names);
    /* The number of inputs is fixed: one for the chain and one for each name. */
    if (layer)
        layer->least = layer->most = count + 1;
    return layer;
}

wf_layer *wf_skip_pop(wf_ctx *ctx, const char *name, wf_skip_join join)
{
    WF_NEED_NULL(ctx);
    wf_layer *layer = skip_new(ctx, &pop_kind, 1, &name);
    if (layer)
        ((skip_state *)layer->state)->join = join ? join : wf_add;
    return layer;
}

wf_layer *wf_skip_apply(wf_layer *layer, int count, const char *const *names)
{
    WF_NEED_NULL(layer);
    wf_layer *self = skip_new(layer->ctx, &apply_kind, count, names);
    /* The layer was given away; it is freed unless some other parent owns it. */
    if (!self) {
        if (!layer->parent)
            wf_layer_free(layer);
        return NULL;
    }
    /* Only this one child is ever applied, so no other may be added later. */
    self->takes_children = true;
    const bool added = wf_module_add(self, "layer", layer);
    self->takes_children = false;
    if (added)
        return self;
    wf_layer_free(self);
    return NULL;
}

/* --- the two ends ---------------------------------------------------------------------------------------------------
 */

static bool is_stash(const wf_layer_kind *kind)
{
    return kind == &stash_kind || kind == &inputs_kind;
}

static bool is_pop(const wf_layer_kind *kind)
{
    return kind == &pop_kind || kind == &apply_kind;
}

bool wf_skip_is_stash(const wf_layer *layer)
{
    return is_stash(layer->kind);
}

bool wf_skip_is_inputs(const wf_layer *layer)
{
    return layer->kind == &inputs_kind;
}

bool wf_skip_is_pop(const wf_layer *layer)
{
    return is_pop(layer->kind);
}

int wf_skip_count(const wf_layer *end)
{
    return ((const skip_state *)end->state)->n;
}

const char *wf_skip_name(const wf_layer *end, int i)
{
    return ((const skip_state *)end->state)->place[i].name;
}

void wf_skip_keep(wf_layer *end, int i, wf_var *value)
{
    place *own = &((skip_state *)end->state)->place[i];
    own->kept = value;
    own->tape = value->tape;
}

/* Counts the places of a name at one kind of end below a layer, and finds one. A name may be used again in another
 * chain, so all are counted. */
static int find_end(wf_layer *layer, bool (*is)(const wf_layer_kind *), const char *name, wf_layer **found, int *at)
{
    int n = 0;
    for (int i = 0; is(layer->kind) && i < wf_skip_count(layer); i++)
        if (strcmp(wf_skip_name(layer, i), name) == 0) {
            *found = layer;
            *at = i;
            n++;
        }
    for (int i = 0; i < layer->n_children; i++)
        n += find_end(layer->children[i], is, name, found, at);
    return n;
}

/* The nearest chain that has a stash of the name counts, as the nearest scope does in a program. */
wf_layer *wf_skip_stash_of(const wf_layer *pop, int i, int *at)
{
    const char *name = wf_skip_name(pop, i);
    wf_layer *stash = NULL, *other = NULL;
    for (wf_layer *chain = pop->parent; chain; chain = chain->parent) {
        int place_of_pop = 0;
        const int stashes = find_end(chain, is_stash, name, &stash, at);
        if (stashes == 0)
            continue;
        WF_CHECK_NULL(stashes == 1 && find_end(chain, is_pop, name, &other, &place_of_pop) == 1, WF_ERR_STATE,
                      "%s \"%s\": the name \"%s\" has several stashes or pops in \"%s\"; should be one of each",
                      pop->kind->name, wf_layer_path(pop), name, wf_layer_path(chain));
        return stash;
    }
    WF_FAIL_NULL(WF_ERR_STATE, "%s \"%s\": no layer of its chains is a wf_skip_stash of \"%s\"", pop->kind->name,
                 wf_layer_path(pop), name);
}
