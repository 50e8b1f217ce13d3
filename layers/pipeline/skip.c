/* The skip connections of a model that is cut: which parts they go from and to. Called once, when the chain is cut, on
 * all ranks; values move in chunk.c. */
#include "layers/pipeline/pipeline_impl.h"

#include <stdlib.h>

static int place_in(int count, wf_layer *const *list, const wf_layer *layer)
{
    for (int i = 0; i < count; i++)
        if (list[i] == layer)
            return i;
    return -1;
}

/* The ends below a layer that is not cut belong to each other, and the layer moves their values by itself; an end of
 * the chain's own must not hide there. */
static wf_status check_inside(const wf_layer *layer, const wf_layer *top)
{
    if (layer != top && (wf_skip_is_pop(layer) || wf_skip_is_stash(layer)))
        WF_FAIL(WF_ERR_ARGUMENT,
                "the pipeline cuts around \"%s\", and \"%s\" inside of it is an end of a skip; the ends of a skip "
                "should be layers of the chain",
                wf_layer_path(top), wf_layer_path(layer));
    for (int i = 0; i < layer->n_children; i++)
        WF_TRY(check_inside(layer->children[i], top));
    return WF_OK;
}

/* What takes the value of a place of the stash that is layer number i. */
static wf_status find_pop(const wf_pipeline *p, int count, wf_layer *const *list, int i, int place,
                          wf_pipeline_ends *ends)
{
    for (int j = i + 1; j < count; j++)
        for (int k = 0; wf_skip_is_pop(list[j]) && k < wf_skip_count(list[j]); k++) {
            /* Names may repeat along a chain: the pop knows its own stash. */
            int at = 0;
            const wf_layer *stash = wf_skip_stash_of(list[j], k, &at);
            WF_NEED(stash);
            if (stash != list[i] || at != place)
                continue;
            *ends = (wf_pipeline_ends){.stash = list[i],
                                       .pop = list[j],
                                       .stash_place = place,
                                       .pop_place = k,
                                       .taken = j,
                                       .parts = {.from = wf_pipeline_part_of(p, i), .to = wf_pipeline_part_of(p, j)}};
            return WF_OK;
        }
    /* A value that no layer takes would be sent and never received. */
    WF_FAIL(WF_ERR_ARGUMENT, "the pipeline keeps \"%s\" by \"%s\", and no wf_skip_pop behind it takes it",
            wf_skip_name(list[i], place), wf_layer_path(list[i]));
}

static wf_status find_pops(wf_pipeline *p, int count, wf_layer *const *list, int i)
{
    WF_CHECK(i == 0 || !wf_skip_is_inputs(list[i]), WF_ERR_ARGUMENT,
             "\"%s\" keeps inputs of a chain, and is layer %d of the pipeline's; should be the first one",
             wf_layer_path(list[i]), i);
    for (int place = 0; place < wf_skip_count(list[i]); place++)
        WF_TRY(find_pop(p, count, list, i, place, &p->skip[p->skips++]));
    return WF_OK;
}

/* Every place of the pop has a stash ahead of it. */
static wf_status check_pop(int count, wf_layer *const *list, int i)
{
    for (int k = 0; k < wf_skip_count(list[i]); k++) {
        int at = 0;
        const wf_layer *stash = wf_skip_stash_of(list[i], k, &at);
        WF_NEED(stash);
        WF_CHECK(place_in(count, list, stash) < i, WF_ERR_ARGUMENT,
                 "the pipeline takes \"%s\" by \"%s\" before it is kept", wf_skip_name(list[i], k),
                 wf_layer_path(list[i]));
    }
    return WF_OK;
}

/* Skips between parts come first, as the schedule counts only those; among them the one that is taken last comes first,
 * which is the order of their gradients in the serial program. */
static int by_order(const void *left, const void *right)
{
    const wf_pipeline_ends *a = left, *b = right;
    const bool inside = a->parts.from == a->parts.to, other = b->parts.from == b->parts.to;
    if (inside != other)
        return inside - other;
    return b->taken != a->taken ? b->taken - a->taken : a->pop_place - b->pop_place;
}

wf_status wf_pipeline_find_skips(wf_pipeline *p, int count, wf_layer *const *list)
{
    int pops = 0, stashes = 0;
    for (int i = 0; i < count; i++) {
        stashes += wf_skip_is_stash(list[i]) ? wf_skip_count(list[i]) : 0;
        pops += wf_skip_is_pop(list[i]) ? wf_skip_count(list[i]) : 0;
    }
    /* As many entries as values are kept; each has one pop. */
    p->skip = wf_calloc(p->ctx, (size_t)stashes + 1, sizeof *p->skip);
    if (!p->skip)
        return wf_error_code();
    for (int i = 0; i < count; i++)
        WF_TRY(check_inside(list[i], list[i]));
    for (int i = 0; i < count; i++)
        if (wf_skip_is_stash(list[i]))
            WF_TRY(find_pops(p, count, list, i));
    /* More pops than stashes: one of them takes a value that does not exist. */
    for (int i = 0; i < count && pops > p->skips; i++)
        if (wf_skip_is_pop(list[i]))
            WF_TRY(check_pop(count, list, i));
    qsort(p->skip, (size_t)p->skips, sizeof *p->skip, by_order);
    return WF_OK;
}
