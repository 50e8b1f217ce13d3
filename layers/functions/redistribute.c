/* Redistribution as a function with a gradient: forward is an exchange, backward the exchange in the other
 * direction. Layers and programs call it; wf_parallelize inserts it. */
#include "layers/redistribute.h"

#include "comm/mesh_author.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

#include <string.h>

/* State: from where to where. local: the value had no layout, so its gradient gets none. */
typedef struct redistribution {
    wf_layout from, to;
    bool local;
} redistribution;

static wf_status run_exchange(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y)
{
    WF_NEED(y);
    WF_TRY(wf_exchange_begin(exchange, x, y));
    return wf_exchange_end(exchange);
}

/* x under another layout: a handle on the same elements where nothing moves. */
static wf_tensor *moved(wf_exchange *exchange, const wf_tensor *x, const wf_layout *from, const wf_layout *to)
{
    const bool stays = !wf_exchange_moves(exchange) && wf_box_equal(from->box, to->box);
    wf_tensor *y = stays ? wf_tensor_alias(x) : wf_tensor_new_step(x->ctx, x->dtype, wf_box_shape(to->box), x->order);
    if (y && (stays || run_exchange(exchange, x, y) == WF_OK) && wf_tensor_set_layout(y, *to) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

/* A gradient has the layout of its value, so backward is the exchange between the same two layouts: the gradient of a
 * slice is gathered, that of a gathered value is sliced. It is another exchange than that of forward, and the mesh
 * keeps both. */
static wf_status backward(wf_node *node)
{
    const redistribution *state = node->state;
    const wf_tensor *dy = wf_node_dy(node);
    if (!wf_node_wants(node, 0))
        return WF_OK;
    wf_exchange *exchange = wf_mesh_exchange_layouts(&state->to, &state->from, dy->dtype, dy->order);
    WF_NEED(exchange);
    wf_tensor *dx = moved(exchange, dy, &state->to, &state->from);
    WF_NEED(dx);
    if (state->local)
        dx->layout = wf_layout_none();
    return wf_function_give(node, 0, dx);
}

static const wf_op redistribute_op = {.name = "redistribute", .backward = backward};

wf_var *wf_redistribute_along(wf_var *x, wf_layout target, unsigned axes)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("redistribute", x));
    redistribution state = {.local = !x->value->layout.known};
    wf_exchange *exchange = wf_tensor_exchange(x->value, &target, &state.from, axes);
    if (!exchange)
        return NULL;
    state.to = target;
    const wf_layout *has = &x->value->layout;
    /* Bounds too: a layout without them says less, and later layers may ask for them. */
    bool same = has->known && wf_layout_equal(has, &target);
    for (int axis = 0; axis < WF_AXES; axis++)
        same = same && has->bounds[axis] == target.bounds[axis];
    if (same)
        return x;
    wf_tensor *y = moved(exchange, x->value, &state.from, &state.to);
    return wf_function_finish(
        y ? WF_OK : wf_error_code(), x->tape,
        &(wf_node_spec){.op = &redistribute_op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state}, y);
}

/* Returns true if both are cut by this axis along dimension d, into other parts of the same length. The verdict is that
 * of all ranks of the axis, since each knows the bounds of all. */
static bool cuts_elsewhere(const wf_layout *a, const wf_layout *b, int axis)
{
    const int d = a->dim[axis];
    if (a->placement[axis] != WF_SHARDED || b->placement[axis] != WF_SHARDED || b->dim[axis] != d ||
        a->global.dim[d] != b->global.dim[d] || !a->bounds[axis] || !b->bounds[axis])
        return false;
    const size_t count = (size_t)wf_mesh_size(a->mesh, (wf_axis)axis) + 1;
    return a->bounds[axis] != b->bounds[axis] &&
           memcmp(a->bounds[axis], b->bounds[axis], count * sizeof *a->bounds[axis]) != 0;
}

wf_var *wf_function_align(wf_var *x, const wf_var *to)
{
    if (!x || !x->value || !to->value)
        return x;
    wf_layout target = x->value->layout;
    const wf_layout *const is = &to->value->layout;
    unsigned moved = 0;
    if (!target.known || !is->known || target.mesh != is->mesh || target.global.rank != is->global.rank)
        return x;
    for (int axis = 0; axis < WF_AXES; axis++) {
        const int d = target.dim[axis];
        if (!cuts_elsewhere(&target, is, axis))
            continue;
        target.bounds[axis] = is->bounds[axis];
        target.box.lo[d] = is->box.lo[d];
        target.box.hi[d] = is->box.hi[d];
        moved |= 1u << axis;
    }
    return moved ? wf_redistribute_along(x, target, moved) : x;
}

wf_var *wf_redistribute(wf_var *x, wf_layout target)
{
    return wf_redistribute_along(x, target, WF_ALL_AXES);
}

wf_var *wf_shard(wf_var *x, const wf_mesh *mesh)
{
    wf_layout target;
    WF_NEED_NULL(mesh);
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("shard", x));
    const wf_tensor *value = x->value;
    WF_TRY_NULL(
        wf_mesh_layout_activation_recent(mesh, value->layout.known ? value->layout.global : value->shape, &target));
    return wf_redistribute(x, target);
}

wf_var *wf_unshard(wf_var *x)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("unshard", x));
    const wf_layout *has = &x->value->layout;
    if (!has->known)
        return x;
    return wf_redistribute(
        x, (wf_layout){.known = true, .mesh = has->mesh, .global = has->global, .box = wf_box_of_shape(has->global)});
}
