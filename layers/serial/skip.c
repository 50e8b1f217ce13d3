/* The two ends of a skip connection. The stash keeps its input's variable until the pop takes it; a pipeline hands the
 * pop a variable of its own, which may have come from another stage. */
#include "layers/skip.h"

#include "layers/functions.h"
#include "layers/serial/serial_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct skip_state {
    char *name;
    wf_skip_join join;
    wf_tape *tape; /* of the variable; compared before that is looked at */
    wf_var *kept;
} skip_state;

static void free_skip(wf_layer *layer)
{
    free(((skip_state *)layer->state)->name);
}

static wf_var *stash_forward(wf_layer *layer, wf_var *x)
{
    wf_skip_keep(layer, x);
    return x;
}

static wf_var *pop_forward(wf_layer *layer, wf_var *x)
{
    skip_state *own = layer->state;
    if (!own->kept) {
        wf_layer *stash = wf_skip_stash_of(layer);
        if (!stash)
            return NULL;
        own = stash->state;
    }
    wf_var *kept = own->tape == x->tape ? own->kept : NULL;
    own->kept = NULL;
    own->tape = NULL;
    WF_CHECK_NULL(kept && kept->value, WF_ERR_STATE,
                  "skip_pop \"%s\": nothing is kept under \"%s\"; its stash comes before it in the chain, and in the "
                  "same segment if it is recomputed",
                  wf_layer_path(layer), ((const skip_state *)layer->state)->name);
    wf_var *y = ((const skip_state *)layer->state)->join(x, kept);
    if (!y && wf_error_pending() == WF_OK)
        WF_FAIL_NULL(WF_ERR_STATE, "skip_pop \"%s\": the join of \"%s\" returned NULL and no error",
                     wf_layer_path(layer), ((const skip_state *)layer->state)->name);
    return y;
}

static const wf_layer_kind stash_kind = {.name = "skip_stash", .forward = stash_forward, .free = free_skip};
static const wf_layer_kind pop_kind = {.name = "skip_pop", .forward = pop_forward, .free = free_skip};

static wf_layer *skip_new(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, wf_skip_join join)
{
    WF_CHECK_NULL(name && *name, WF_ERR_ARGUMENT, "%s without a name", kind->name);
    wf_layer *layer = wf_layer_new(ctx, kind, sizeof(skip_state));
    if (!layer)
        return NULL;
    *(skip_state *)layer->state = (skip_state){.name = wf_strdup(ctx, name), .join = join};
    wf_layer_note(layer, "%s %s", kind->name, name);
    if (((skip_state *)layer->state)->name)
        return layer;
    wf_layer_free(layer);
    return wf_error_null();
}

wf_layer *wf_skip_stash(wf_ctx *ctx, const char *name)
{
    WF_NEED_NULL(ctx);
    return skip_new(ctx, &stash_kind, name, NULL);
}

wf_layer *wf_skip_pop(wf_ctx *ctx, const char *name, wf_skip_join join)
{
    WF_NEED_NULL(ctx);
    return skip_new(ctx, &pop_kind, name, join ? join : wf_add);
}

/* --- the two ends ---------------------------------------------------------------------------------------------------
 */

bool wf_skip_is_stash(const wf_layer *layer)
{
    return layer->kind == &stash_kind;
}

bool wf_skip_is_pop(const wf_layer *layer)
{
    return layer->kind == &pop_kind;
}

const char *wf_skip_name(const wf_layer *layer)
{
    return ((const skip_state *)layer->state)->name;
}

void wf_skip_keep(wf_layer *layer, wf_var *value)
{
    skip_state *own = layer->state;
    own->kept = value;
    own->tape = value->tape;
}

/* Counts the ends of a kind and name below a layer, and finds one. */
static int find_end(wf_layer *layer, const wf_layer_kind *kind, const char *name, wf_layer **found)
{
    int n = 0;
    if (layer->kind == kind && strcmp(wf_skip_name(layer), name) == 0) {
        *found = layer;
        n++;
    }
    for (int i = 0; i < layer->n_children; i++)
        n += find_end(layer->children[i], kind, name, found);
    return n;
}

wf_layer *wf_skip_stash_of(const wf_layer *pop)
{
    const char *name = wf_skip_name(pop);
    wf_layer *stash = NULL, *other = NULL;
    for (wf_layer *chain = pop->parent; chain; chain = chain->parent) {
        const int stashes = find_end(chain, &stash_kind, name, &stash);
        if (stashes == 0)
            continue;
        WF_CHECK_NULL(stashes == 1 && find_end(chain, &pop_kind, name, &other) == 1, WF_ERR_STATE,
                      "skip_pop \"%s\": the name \"%s\" has several stashes or pops in \"%s\"; should be one of each",
                      wf_layer_path(pop), name, wf_layer_path(chain));
        return stash;
    }
    WF_FAIL_NULL(WF_ERR_STATE, "skip_pop \"%s\": no layer of its chains is a wf_skip_stash of \"%s\"",
                 wf_layer_path(pop), name);
}
