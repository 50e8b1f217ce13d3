/* Layouts as values: comparison, text, and how a layout follows through a change of dimensions. Called wherever a
 * tensor is made from another. The mesh is an opaque pointer here; arithmetic on its ranks is in comm/mesh. */
#include "core/layout.h"

#include <inttypes.h>
#include <stdio.h>

/* In the order of wf_axis. */
static const char *const axis_names[WF_AXES] = {"data", "channel", "depth", "height", "width", "stage"};

const char *wf_axis_name(wf_axis axis)
{
    return axis >= 0 && axis < WF_AXES ? axis_names[axis] : "no axis";
}

wf_layout wf_layout_none(void)
{
    return (wf_layout){0};
}

/* Samples are divided, nothing else is. The axis' dimension is 0 already; bounds are missing until the mesh completes
 * the layout. */
wf_layout wf_layout_batch(const wf_mesh *mesh, wf_shape global, int64_t lo, int64_t hi)
{
    wf_layout layout = {.known = true, .mesh = mesh, .global = global, .box = wf_box_of_shape(global)};
    layout.box.lo[0] = lo;
    layout.box.hi[0] = hi;
    layout.placement[WF_AXIS_DATA] = WF_SHARDED;
    return layout;
}

bool wf_layout_equal(const wf_layout *a, const wf_layout *b)
{
    if (!a || !b)
        return a == b;
    /* Two unknown layouts are equal, whatever else is in them. */
    if (!a->known || !b->known)
        return a->known == b->known;
    if (a->mesh != b->mesh || !wf_shape_equal(a->global, b->global) || !wf_box_equal(a->box, b->box))
        return false;
    for (int x = 0; x < WF_AXES; x++) {
        if (a->placement[x] != b->placement[x])
            return false;
        if (a->placement[x] != WF_SHARDED)
            continue;
        /* Bounds are interned by the mesh: equal bounds are the same pointer. A layout that is not completed has
         * none yet and is equal to either. */
        if (a->dim[x] != b->dim[x] || (a->bounds[x] && b->bounds[x] && a->bounds[x] != b->bounds[x]))
            return false;
    }
    return true;
}

bool wf_layout_is_partial(const wf_layout *layout)
{
    for (int x = 0; layout && x < WF_AXES; x++)
        if (layout->known && layout->placement[x] == WF_PARTIAL)
            return true;
    return false;
}

/* Both sets are bits: bit d for dimension d, bit x for axis x. */
unsigned wf_layout_axes(const wf_layout *layout, unsigned dims)
{
    unsigned axes = 0;
    for (int x = 0; layout && x < WF_AXES; x++)
        if (layout->known && layout->placement[x] == WF_SHARDED && dims >> layout->dim[x] & 1u)
            axes |= 1u << x;
    return axes;
}

bool wf_layout_is_sharded(const wf_layout *layout, int dim)
{
    for (int x = 0; layout && x < WF_AXES; x++)
        if (layout->known && layout->placement[x] == WF_SHARDED && layout->dim[x] == dim)
            return true;
    return false;
}

const char *wf_layout_text(const wf_layout *layout, char text[WF_LAYOUT_TEXT])
{
    char shape[WF_SHAPE_TEXT];
    if (!text)
        return "";
    if (!layout || !layout->known) {
        snprintf(text, WF_LAYOUT_TEXT, "%s", layout ? "local" : "no layout");
        return text;
    }
    int at = snprintf(text, WF_LAYOUT_TEXT, "%s", wf_shape_text(layout->global, shape));
    bool any = false;
    /* snprintf returns the length that it wanted, so `at` may pass the end of a text that was cut: the loop stops
     * there. */
    for (int x = 0; x < WF_AXES && at < WF_LAYOUT_TEXT; x++) {
        const size_t room = (size_t)(WF_LAYOUT_TEXT - at);
        const int d = layout->dim[x];
        if (layout->placement[x] == WF_SHARDED)
            at += snprintf(text + at, room, "%s sharded over %s at dimension %d: [%" PRId64 ",%" PRId64 ")",
                           any ? "," : "", axis_names[x], d, layout->box.lo[d], layout->box.hi[d]);
        else if (layout->placement[x] == WF_PARTIAL)
            at += snprintf(text + at, room, "%s partial over %s", any ? "," : "", axis_names[x]);
        any = any || layout->placement[x] != WF_REPLICATED;
    }
    if (!any && at < WF_LAYOUT_TEXT)
        snprintf(text + at, (size_t)(WF_LAYOUT_TEXT - at), " replicated");
    return text;
}

/* The output dimension that comes from dimension `dim` of the input, or -1. */
static int goes_to(int dim, int rank, const int *from)
{
    for (int d = 0; d < rank; d++)
        if (from[d] == dim)
            return d;
    return -1;
}

/* Dimensions that the function makes or changes (from[d] < 0) must be whole on every rank; dimensions that it passes on
 * keep their sharding. */
bool wf_layout_follow(const wf_layout *in, wf_shape local, const int *from, wf_layout *out)
{
    if (!in || !out || !from)
        return false;
    *out = *in;
    if (!in->known)
        return true;
    out->global = local;
    out->box = wf_box_of_shape(local);
    for (int x = 0; x < WF_AXES; x++) {
        /* A function of one summand is no summand of the function's value. */
        if (in->placement[x] == WF_PARTIAL)
            return false;
        if (in->placement[x] != WF_SHARDED)
            continue;
        const int d = goes_to(in->dim[x], local.rank, from);
        if (d < 0)
            return false;
        out->dim[x] = (uint8_t)d;
        /* `local` has only this rank's lengths, so the global ones of sharded dimensions come from the input. */
        out->global.dim[d] = in->global.dim[in->dim[x]];
        out->box.lo[d] = in->box.lo[in->dim[x]];
        out->box.hi[d] = in->box.hi[in->dim[x]];
    }
    return true;
}
