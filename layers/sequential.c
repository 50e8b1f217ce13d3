/* Chains, and the recomputation of segments of a model, which a chain may cut itself into. The tape recomputes
 * (core/autograd/segment.c); here is said what. */
#include "layers/layer_author.h"
#include "layers/recompute.h"

#include <stdio.h>

/* Applies one of the parts into which wf_recompute_chain divides the layers. */
static wf_var *sequential_part(wf_var *const *x, int n_x, void *chain, int64_t part)
{
    const wf_layer *layer = chain;
    const int64_t n = layer->n_children, parts = layer->segments > 1 ? layer->segments : 1;
    int64_t i = n * part / parts;
    const int64_t end = n * (part + 1) / parts;
    /* The first layer takes all inputs. */
    wf_var *y = i < end ? wf_apply_n(layer->children[i++], x, n_x) : x[0];
    for (; i < end; i++)
        y = wf_apply(layer->children[i], y);
    return y;
}

static wf_var *sequential_forward(wf_layer *layer, wf_var *const *x, int n)
{
    const int parts = layer->segments > 1 ? layer->segments : 1;
    wf_var *y = NULL;
    WF_CHECK_NULL(n == 1 || layer->n_children > 0, WF_ERR_ARGUMENT,
                  "sequential \"%s\" takes 1 input, not %d: it has no layer that could take them", wf_layer_path(layer),
                  n);
    /* The last one is recorded, since backward would recompute it at once. */
    for (int part = 0; part < parts; part++) {
        const bool whole = part == parts - 1 || !x[0];
        y = whole ? sequential_part(x, n, layer, part) : wf_tape_segment(x, n, sequential_part, layer, part);
        x = &y;
        n = 1;
    }
    return y;
}

static const wf_layer_kind sequential_kind = {.name = "sequential", .forward_n = sequential_forward, .chain = true};

bool wf_sequential_is(const wf_layer *layer)
{
    return layer->kind == &sequential_kind;
}

wf_layer *wf_sequential(wf_ctx *ctx, int count, wf_layer *const *layers)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(count == 0 || (count > 0 && layers), WF_ERR_ARGUMENT,
                  "wf_sequential takes 0 or more layers, not %d%s", count, layers ? "" : " at NULL");
    wf_layer *layer = wf_layer_new(ctx, &sequential_kind, 0);
    bool failed = !layer;
    if (layer) {
        layer->takes_children = true;
        layer->most = 0;
    }
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        /* Goes on after a failure: every layer of the list is taken, added or freed. */
        if (!wf_module_add(layer, name, layers[i]))
            failed = true;
    }
    if (!failed)
        return layer;
    wf_layer_free(layer);
    return NULL;
}

/* --- recomputation ------------------------------------------------------------------------------------------------ */

wf_layer *wf_recompute(wf_layer *segment)
{
    WF_NEED_NULL(segment);
    /* What a chain has kept for a layer is there once, so the layer that takes it stays outside. */
    (segment->kind->wraps ? segment->children[0] : segment)->segments = 1;
    return segment;
}

/* Cuts a chain into about the root of its length: what is kept at the cuts, and what a segment keeps while it runs
 * backward, are then equally many layers. */
static int usual_segments(int layers)
{
    int segments = 1;
    while ((segments + 1) * (segments + 1) <= layers)
        segments++;
    return segments;
}

static wf_status cut(wf_layer *chain, int segments)
{
    WF_CHECK(wf_sequential_is(chain), WF_ERR_ARGUMENT,
             "wf_recompute_chain of \"%s\", a %s: it cuts a wf_sequential; wf_recompute takes any layer",
             wf_layer_path(chain), chain->kind->name);
    WF_CHECK(segments >= 0, WF_ERR_ARGUMENT, "wf_recompute_chain into %d segments", segments);
    if (segments == 0)
        segments = usual_segments(chain->n_children);
    segments = segments < chain->n_children ? segments : chain->n_children;
    /* One segment is the last one, which is recorded. */
    chain->segments = segments > 1 ? segments : 0;
    return WF_OK;
}

wf_layer *wf_recompute_chain(wf_layer *chain, int segments)
{
    WF_NEED_NULL(chain);
    const wf_status status = cut(chain, segments);
    if (status == WF_OK)
        return chain;
    if (!chain->parent)
        wf_layer_free(chain);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

static void mark_innermost(wf_layer *layer)
{
    bool innermost = true;
    for (int i = 0; i < layer->n_children; i++) {
        wf_layer *child = layer->children[i];
        child = child->kind->wraps ? child->children[0] : child;
        if (child->n_children > 0 && child->takes_children) {
            mark_innermost(child);
            innermost = false;
        }
    }
    if (innermost)
        layer->segments = 1;
}

wf_layer *wf_recompute_model(wf_layer *model)
{
    WF_NEED_NULL(model);
    bool flat = true;
    for (int i = 0; i < model->n_children; i++)
        flat = flat && model->children[i]->n_children == 0;
    if (flat && wf_sequential_is(model))
        return wf_recompute_chain(model, 0);
    mark_innermost(model);
    return model;
}
