/* Concatenation, slices, reshape and transpose. They copy only where the wanted order of memory needs it, and reject
 * a change of a sharded dimension instead of moving data. */
#include "comm/mesh_author.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

#define MOST_PARTS 4096 /* of a dimension that is flattened with others */

static wf_status follow_layout(const char *what, const wf_var *x, wf_shape shape, const int *from, wf_layout *out)
{
    char text[WF_SHAPE_TEXT], layout[WF_LAYOUT_TEXT];
    WF_CHECK(wf_layout_follow(&x->value->layout, shape, from, out), WF_ERR_SHAPE,
             "%s to %s cannot keep the layout of its input (%s); wf_redistribute it first", what,
             wf_shape_text(shape, text), wf_layout_text(&x->value->layout, layout));
    return WF_OK;
}

/* A region of `whole` is copied to `part`, or to a region of `whole` from `part`. */
static wf_status copy_region(const wf_tensor *whole, wf_box region, const wf_tensor *part, bool to_part,
                             bool accumulate)
{
    wf_tensor *view = wf_tensor_view(whole, region);
    WF_NEED(view);
    const wf_strided a = wf_tensor_strided(view), b = wf_tensor_strided(part);
    const wf_status status = part->ctx->k->copy(part->ctx, to_part ? &a : &b, to_part ? &b : &a, accumulate);
    wf_tensor_free(view);
    return status;
}

/* Concatenation. State: the dimension, then the extent of each input along it. */

static wf_box region_along(wf_shape whole, int64_t dim, int64_t lo, int64_t extent)
{
    wf_box box = wf_box_of_shape(whole);
    box.lo[dim] = lo;
    box.hi[dim] = lo + extent;
    return box;
}

/* Regions of dy are copied back, so nothing of the inputs is saved. */
static wf_status concat_backward(wf_node *node)
{
    const int64_t *state = node->state, *extent = state + 1;
    const wf_tensor *dy = wf_node_dy(node);
    int64_t lo = 0;
    for (int i = 0; i < node->n_in; lo += extent[i++]) {
        bool add = false;
        if (!wf_node_wants(node, i))
            continue;
        wf_tensor *dx = wf_node_grad(node, i, &add);
        WF_NEED(dx);
        WF_TRY(copy_region(dy, region_along(dy->shape, state[0], lo, extent[i]), dx, true, add));
    }
    return WF_OK;
}

static const wf_op concat_op = {.name = "concat", .backward = concat_backward};

/* A shape; of a part, the whole too, and how it is cut. */
static const char *describe_input(const wf_tensor *t, char text[WF_LAYOUT_TEXT])
{
    return t->layout.known ? wf_layout_text(&t->layout, text) : wf_shape_text(t->shape, text);
}

static wf_status concat_check(int count, wf_var *const *x, int dim, wf_dtype *dtype)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    WF_TRY(wf_function_check_value("concat", x[0]));
    const wf_tensor *first = x[0]->value;
    *dtype = first->dtype;
    WF_CHECK(dim >= 0 && dim < first->shape.rank, WF_ERR_ARGUMENT,
             "concat along dimension %d of %s, should be %d to %d", dim < 0 ? dim - first->shape.rank : dim,
             wf_shape_text(first->shape, left), -first->shape.rank, first->shape.rank - 1);
    WF_CHECK(!wf_layout_is_sharded(&first->layout, dim), WF_ERR_SHAPE,
             "concat along dimension %d, which is sharded: %s; wf_redistribute it first", dim,
             wf_layout_text(&first->layout, left));
    for (int i = 1; i < count; i++) {
        WF_TRY(wf_function_check_value("concat", x[i]));
        const wf_tensor *t = x[i]->value;
        wf_shape shape = t->shape;
        if (shape.rank == first->shape.rank)
            /* Made equal in the dimension that may differ, so that the rest can be compared as a whole. */
            shape.dim[dim] = first->shape.dim[dim];
        WF_CHECK(wf_shape_equal(shape, first->shape), WF_ERR_SHAPE,
                 "concat along dimension %d of %s and %s, which differ elsewhere%s", dim, describe_input(first, left),
                 describe_input(t, right),
                 first->layout.known || t->layout.known
                     ? "; where it is the parts that differ, wf_redistribute one to the layout of the other"
                     : "");
        WF_CHECK(wf_promoted(*dtype, t->dtype, dtype), WF_ERR_DTYPE,
                 "concat takes equal types, or f32, bf16 and f16, not %s and %s", wf_dtype_name(first->dtype),
                 wf_dtype_name(t->dtype));
    }
    return WF_OK;
}

/* All inputs must lead to one layout of the result. */
static wf_status concat_layout(int count, wf_var *const *x, int dim, wf_shape shape, wf_layout *out)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    int from[WF_MAX_RANK];
    for (int d = 0; d < WF_MAX_RANK; d++)
        from[d] = d == dim ? -1 : d;
    WF_TRY(follow_layout("concat", x[0], shape, from, out));
    for (int i = 1; i < count; i++) {
        wf_layout other;
        WF_TRY(follow_layout("concat", x[i], shape, from, &other));
        WF_CHECK(wf_layout_equal(out, &other), WF_ERR_SHAPE,
                 "concat takes equal layouts, not (%s) and (%s); wf_redistribute one of them",
                 wf_layout_text(&x[0]->value->layout, left), wf_layout_text(&x[i]->value->layout, right));
    }
    return WF_OK;
}

static wf_status concat_run(int count, wf_var *const *x, const int64_t *state, const wf_layout *layout, wf_tensor *y)
{
    WF_NEED(y);
    WF_TRY(wf_tensor_set_layout(y, *layout));
    int64_t lo = 0;
    for (int i = 0; i < count; lo += state[1 + i++])
        WF_TRY(copy_region(y, region_along(y->shape, state[0], lo, state[1 + i]), x[i]->value, false, false));
    return WF_OK;
}

static wf_var *concat(int count, wf_var *const *x, wf_dtype dtype, int64_t *state)
{
    const int dim = (int)state[0];
    wf_shape shape = x[0]->value->shape;
    wf_layout layout;
    shape.dim[dim] = 0;
    for (int i = 0; i < count; i++) {
        state[1 + i] = x[i]->value->shape.dim[dim];
        shape.dim[dim] += state[1 + i];
    }
    WF_TRY_NULL(concat_layout(count, x, dim, shape, &layout));
    wf_tensor *y = wf_tensor_new_step(x[0]->value->ctx, dtype, shape, x[0]->value->order);
    return wf_function_finish(concat_run(count, x, state, &layout, y), x[0]->tape,
                              &(wf_node_spec){.op = &concat_op,
                                              .n_in = count,
                                              .in = x,
                                              .state = state,
                                              .state_bytes = ((size_t)count + 1) * sizeof *state},
                              y);
}

/* Inputs at the shard bounds of the first one, which may be other variables. */
static wf_status align_inputs(int count, wf_var *const *x, wf_var **aligned)
{
    for (int i = 0; i < count; i++) {
        aligned[i] = i == 0 ? x[0] : wf_function_align(x[i], x[0]);
        WF_NEED(aligned[i]);
    }
    return WF_OK;
}

wf_var *wf_concat(int count, wf_var *const *x, int dim)
{
    WF_CHECK_NULL(count > 0 && x, WF_ERR_ARGUMENT, "concat of %d variables; it takes one or more", count);
    for (int i = 0; i < count; i++)
        if (!x[i])
            return NULL;
    wf_dtype dtype;
    wf_ctx *ctx = wf_tape_ctx(x[0]->tape);
    const size_t bytes = ((size_t)count + 1) * sizeof(int64_t) + (size_t)count * sizeof(wf_var *);
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(ctx, bytes, &memory));
    /* From the pool: the number of inputs is the caller's, and no fixed array would do. */
    int64_t *const state = memory;
    wf_var **const aligned = (wf_var **)(state + count + 1), *y = NULL;
    if (dim < 0 && x[0]->value)
        dim += x[0]->value->shape.rank;
    if (align_inputs(count, x, aligned) == WF_OK && concat_check(count, aligned, dim, &dtype) == WF_OK) {
        state[0] = dim;
        y = concat(count, aligned, dtype, state);
    }
    wf_pool_give_host(ctx, memory, bytes);
    return y;
}

/* Slices. State: the box. */

static wf_status slice_backward(wf_node *node)
{
    const wf_box *box = node->state;
    bool add = false;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    if (!add)
        /* Outside of the box the gradient is zero. */
        WF_TRY(wf_tensor_fill(dx, 0.0));
    return copy_region(dx, *box, wf_node_dy(node), false, add);
}

static const wf_op slice_op = {.name = "slice", .backward = slice_backward};

/* A cut dimension may be sliced only as a whole: other parts of it lie on other ranks. */
wf_var *wf_slice(wf_var *x, wf_box box)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("slice", x));
    const wf_box whole = wf_box_of_shape(x->value->shape);
    /* A slice of all is x itself. */
    if (wf_box_equal(box, whole))
        return x;
    wf_tensor *view = wf_tensor_view(x->value, box);
    if (!view)
        return NULL;
    int from[WF_MAX_RANK];
    /* A dimension that is sliced keeps no cut. */
    for (int d = 0; d < box.rank; d++)
        from[d] = box.lo[d] == 0 && box.hi[d] == whole.hi[d] ? d : -1;
    wf_layout layout;
    const wf_status status = follow_layout("slice", x, view->shape, from, &layout);
    wf_tensor *y = status == WF_OK ? wf_tensor_dense(view, view->dtype, view->order) : NULL;
    wf_tensor_free(view);
    return wf_function_finish(
        y ? wf_tensor_set_layout(y, layout) : status, x->tape,
        &(wf_node_spec){.op = &slice_op, .n_in = 1, .in = &x, .state = &box, .state_bytes = sizeof box}, y);
}

/* Reshape. State: the shape and order in which the gradient is read. */

typedef struct reshape_state {
    wf_shape shape;
    wf_order order;
} reshape_state;

static wf_status reshape_backward(wf_node *node)
{
    const reshape_state *state = node->state;
    return wf_function_give(node, 0, wf_tensor_recast(wf_node_dy(node), state->shape, state->order));
}

static const wf_op reshape_op = {.name = "reshape", .backward = reshape_backward};

/* Returns true if both orders of this shape are one sequence in memory. Lengths of 1 have no place in the sequence. */
static bool orders_agree(wf_shape shape)
{
    int64_t rows[WF_MAX_RANK], last[WF_MAX_RANK];
    wf_order_strides(shape, WF_ROW_MAJOR, rows);
    wf_order_strides(shape, WF_CHANNELS_LAST, last);
    for (int d = 0; d < shape.rank; d++)
        if (shape.dim[d] > 1 && rows[d] != last[d])
            return wf_shape_count(shape) == 0;
    return true;
}

/* Dimensions that are equal from the front and, behind what changes, from the back. */
static void match_dims(wf_shape in, wf_shape out, int *front, int *back)
{
    const int least = in.rank < out.rank ? in.rank : out.rank;
    *front = *back = 0;
    while (*front < least && in.dim[*front] == out.dim[*front])
        ++*front;
    while (*back < least - *front && in.dim[in.rank - 1 - *back] == out.dim[out.rank - 1 - *back])
        ++*back;
}

/* The dimension that is -1 is found from what the matching dimensions leave, so that an empty batch has an answer. */
static bool resolve(wf_shape in, wf_shape *out)
{
    int front, back, unknown = -1;
    int64_t left = 1, known = 1;
    for (int d = 0; d < out->rank; d++) {
        /* -1 once; any other negative length is wrong. */
        if (out->dim[d] >= 0)
            continue;
        if (out->dim[d] != -1 || unknown >= 0)
            return false;
        unknown = d;
    }
    if (unknown >= 0) {
        match_dims(in, *out, &front, &back);
        for (int d = front; d < in.rank - back; d++)
            left *= in.dim[d];
        for (int d = front; d < out->rank - back; d++)
            known *= d == unknown ? 1 : out->dim[d];
        if (known == 0 || left % known != 0)
            return false;
        out->dim[unknown] = left / known;
    }
    return wf_shape_count(*out) == wf_shape_count(in);
}

/* x's elements under another shape, `whole` on all ranks together; *seen is what undoes it. */
static wf_tensor *reshaped(const wf_tensor *x, wf_shape shape, wf_shape whole, wf_order *seen)
{
    const wf_shape from = x->layout.known ? x->layout.global : x->shape;
    /* If both names fit the bytes, takes the one that later layers need not convert. All ranks take the same one, which
     * an empty part or one of a single element must not decide: exchanges travel in the order of the memory. */
    const wf_order order = shape.rank >= 4 && orders_agree(whole) ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    /* The order in which backward has to read dy. */
    *seen = x->order;
    if (x->order == WF_ROW_MAJOR || orders_agree(from))
        return wf_tensor_recast(x, shape, order);
    /* Only pixels are folded: samples and channels keep their strides. */
    if (shape.rank >= 3 && whole.dim[0] == from.dim[0] && whole.dim[1] == from.dim[1])
        return wf_tensor_recast(x, shape, WF_CHANNELS_LAST);
    *seen = WF_ROW_MAJOR;
    wf_tensor *rows = wf_tensor_dense(x, x->dtype, WF_ROW_MAJOR), *y = wf_tensor_recast(rows, shape, order);
    wf_tensor_free(rows);
    return y;
}

/* [N,C,...] sharded along C, as [N, all the rest]: logical order has C first, so each part stays one run. */
static bool flat_layout(const wf_layout *in, wf_shape shape, wf_layout *out)
{
    int64_t rest = 1;
    int axis = 0;
    for (int d = 2; d < in->global.rank; d++)
        rest *= in->global.dim[d];
    while (axis < WF_AXES && (in->placement[axis] != WF_SHARDED || in->dim[axis] != 1))
        axis++;
    const int size = axis < WF_AXES && in->bounds[axis] ? wf_mesh_size(in->mesh, (wf_axis)axis) : 0;
    int64_t bounds[MOST_PARTS + 1];
    if (size < 1 || size > MOST_PARTS || !wf_layout_follow(in, shape, (int[]){0, 1}, out))
        return false;
    for (int r = 0; r <= size; r++)
        bounds[r] = in->bounds[axis][r] * rest;
    const int64_t *own = wf_mesh_bounds_recent(in->mesh, (wf_axis)axis, bounds);
    if (own)
        wf_layout_shard(in->mesh, out, (wf_axis)axis, 1, own);
    return own;
}

static wf_var *reshape(const char *what, wf_var *x, wf_shape shape)
{
    char given[WF_SHAPE_TEXT], has[WF_SHAPE_TEXT];
    int front, back, from[WF_MAX_RANK];
    const char *asked = wf_shape_text(shape, given);
    WF_CHECK_NULL(resolve(x->value->shape, &shape), WF_ERR_SHAPE, "%s of %s to %s, which has other elements", what,
                  wf_shape_text(x->value->shape, has), asked);
    if (wf_shape_equal(shape, x->value->shape))
        return x;
    match_dims(x->value->shape, shape, &front, &back);
    for (int d = 0; d < shape.rank; d++)
        from[d] = d < front ? d : d >= shape.rank - back ? d - shape.rank + x->value->shape.rank : -1;
    wf_layout layout;
    const bool flat = shape.rank == 2 && front > 0 && wf_layout_is_sharded(&x->value->layout, 1);
    if (!flat || !flat_layout(&x->value->layout, shape, &layout))
        WF_TRY_NULL(follow_layout(what, x, shape, flat ? (int[]){0, -1} : from, &layout));
    reshape_state state = {.shape = x->value->shape};
    wf_tensor *y = reshaped(x->value, shape, layout.known ? layout.global : shape, &state.order);
    const wf_status status = wf_tensor_set_layout(y, layout);
    wf_var *out = wf_function_finish(
        status, x->tape,
        &(wf_node_spec){.op = &reshape_op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state}, y);
    const wf_reduction reduction = wf_reduction_of(x);
    return wf_reduction_mark(out, &reduction);
}

wf_var *wf_reshape(wf_var *x, wf_shape shape)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("reshape", x));
    return reshape("reshape", x, shape);
}

wf_var *wf_flatten(wf_var *x)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("flatten", x));
    const wf_shape *in = &x->value->shape;
    WF_CHECK_NULL(in->rank > 0, WF_ERR_SHAPE, "flatten takes rank 1 or more, not a scalar");
    int64_t rest = 1;
    for (int d = 1; d < in->rank; d++)
        rest *= in->dim[d];
    return reshape("flatten", x, WF_SHAPE(in->dim[0], rest));
}

/* Transpose. State: the inverse permutation. */

static wf_status transpose_backward(wf_node *node)
{
    return wf_function_give(node, 0, wf_tensor_permute(wf_node_dy(node), node->state));
}

static const wf_op transpose_op = {.name = "transpose", .backward = transpose_backward};

wf_var *wf_transpose(wf_var *x, const int *perm)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("transpose", x));
    WF_CHECK_NULL(perm, WF_ERR_ARGUMENT, "transpose without a permutation");
    wf_tensor *view = wf_tensor_permute(x->value, perm);
    if (!view)
        return NULL;
    int inverse[WF_MAX_RANK] = {0};
    for (int d = 0; d < view->shape.rank; d++)
        /* Backward permutes back. */
        inverse[perm[d]] = d;
    wf_layout layout;
    const wf_status status = follow_layout("transpose", x, view->shape, perm, &layout);
    wf_tensor *y = status == WF_OK ? wf_tensor_dense(view, view->dtype, view->order) : NULL;
    wf_tensor_free(view);
    return wf_function_finish(
        y ? wf_tensor_set_layout(y, layout) : status, x->tape,
        &(wf_node_spec){.op = &transpose_op, .n_in = 1, .in = &x, .state = inverse, .state_bytes = sizeof inverse}, y);
}
