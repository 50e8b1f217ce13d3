/* Arithmetic of two variables whose shapes differ, by NumPy's rule: shapes are aligned at their last dimensions, and a
 * dimension that one of them lacks, or has with length 1, is repeated. The kernels read it with steps of 0; the
 * gradient is summed over it in the pass that computes it.
 *
 * Layouts follow: where the result is cut along a dimension, a variable that repeats there is replicated over that
 * axis. Its gradient is then the sum of what the ranks of the axis have, made by one all-reduce in backward, so it is
 * that of the serial program, equal on all of them. A dimension of length 1 may be cut too, as that of the samples of a
 * batch of one: the rank that has it then repeats the other variable once, and the others not at all.
 */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

/* The whole of what a rank has a part of: what the rule is applied to. */
static wf_shape global_shape(const wf_tensor *x)
{
    return x->layout.known ? x->layout.global : x->shape;
}

/* Returns true if dimension d of a result of this rank is repeated in x. Dimensions are counted from the last one. */
static bool repeats(wf_shape whole, int rank, int d, int64_t length)
{
    const int own = d - (rank - whole.rank);
    return own < 0 || (whole.dim[own] == 1 && length != 1);
}

static bool merge_shapes(wf_shape a, wf_shape b, wf_shape *out)
{
    const int rank = a.rank > b.rank ? a.rank : b.rank;
    *out = (wf_shape){.rank = rank};
    for (int d = 0; d < rank; d++) {
        const int p = d - (rank - a.rank), q = d - (rank - b.rank);
        const int64_t m = p < 0 ? 1 : a.dim[p], n = q < 0 ? 1 : b.dim[q];
        if (m != n && m != 1 && n != 1)
            return false;
        out->dim[d] = m == 1 ? n : m;
    }
    return true;
}

/* How one axis cuts the result, of which `of` are the two variables; false: they lie differently over it. Each variable
 * that is sharded along the axis has to say the same. */
static bool merge_axis(const wf_tensor *const of[2], int axis, wf_broadcast *out)
{
    const int rank = out->layout.global.rank;
    for (int i = 0; i < 2; i++) {
        const wf_layout *own = &of[i]->layout, *other = &of[1 - i]->layout;
        if (own->placement[axis] != WF_SHARDED)
            continue;
        const int shift = rank - own->global.rank, d = own->dim[axis] + shift, e = d - (rank - other->global.rank);
        const int64_t length = out->layout.global.dim[d];
        const bool whole = other->placement[axis] != WF_SHARDED;
        const bool repeated = repeats(other->global, rank, d, length) || (whole && length == 1);
        /* The cut of a repeated dimension would give its ranks different parts of one number. */
        if (repeats(own->global, rank, d, length))
            return false;
        if (whole ? !repeated : repeated || other->dim[axis] != e)
            return false;
        if (!repeated && (own->box.lo[d - shift] != other->box.lo[e] || own->box.hi[d - shift] != other->box.hi[e]))
            return false;
        out->layout.placement[axis] = WF_SHARDED;
        out->layout.dim[axis] = (uint8_t)d;
        out->layout.box.lo[d] = own->box.lo[d - shift];
        out->layout.box.hi[d] = own->box.hi[d - shift];
        /* A layout may not know its bounds; then the other's are taken. */
        if (!out->layout.bounds[axis])
            out->layout.bounds[axis] = own->bounds[axis];
        else if (own->bounds[axis] && own->bounds[axis] != out->layout.bounds[axis])
            return false;
        if (repeated)
            out->axes[1 - i] |= 1u << axis;
    }
    return true;
}

static bool merge_layouts(const wf_tensor *a, const wf_tensor *b, wf_broadcast *out)
{
    const wf_tensor *const of[2] = {a, b};
    if (!a->layout.known)
        return true;
    if (a->layout.mesh != b->layout.mesh)
        return false;
    out->layout = (wf_layout){.known = true,
                              .mesh = a->layout.mesh,
                              .global = out->shape,
                              .box = wf_box_of_shape(out->shape),
                              .chunk = a->layout.chunk || b->layout.chunk};
    for (int axis = 0; axis < WF_AXES; axis++)
        if (!merge_axis(of, axis, out))
            return false;
    out->shape = wf_box_shape(out->layout.box);
    return true;
}

wf_status wf_broadcast_of(const char *what, const wf_tensor *a, const wf_tensor *b, wf_broadcast *out)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    *out = (wf_broadcast){0};
    WF_CHECK(a->layout.known == b->layout.known, WF_ERR_SHAPE,
             "%s takes two layouts or none, not (%s) and (%s); wf_redistribute the one without", what,
             wf_layout_text(&a->layout, left), wf_layout_text(&b->layout, right));
    WF_CHECK(
        merge_shapes(global_shape(a), global_shape(b), &out->shape), WF_ERR_SHAPE,
        "%s takes shapes that are equal where neither has length 1, counted from the last dimension, not %s and %s",
        what, wf_shape_text(global_shape(a), left), wf_shape_text(global_shape(b), right));
    WF_CHECK(merge_layouts(a, b, out), WF_ERR_SHAPE,
             "%s takes layouts that cut a dimension alike, or one that repeats it, not (%s) and (%s); wf_redistribute "
             "one of them",
             what, wf_layout_text(&a->layout, left), wf_layout_text(&b->layout, right));
    /* The order of the one with all dimensions, so that the larger one is not turned. */
    out->order = a->shape.rank == out->shape.rank ? a->order : b->order;
    return WF_OK;
}

/* A view only: nothing is copied for a repeated dimension. */
wf_strided wf_broadcast_view(const wf_tensor *x, wf_shape shape)
{
    const wf_strided own = wf_tensor_strided(x);
    wf_strided view = {.data = own.data, .dtype = own.dtype, .rank = shape.rank};
    for (int d = 0; d < shape.rank; d++) {
        const int from = d - (shape.rank - own.rank);
        view.dim[d] = shape.dim[d];
        view.stride[d] = from < 0 || (own.dim[from] == 1 && shape.dim[d] != 1) ? 0 : own.stride[from];
    }
    return view;
}

/* True if an axis cuts x along a dimension of length 1 that every rank of the axis has of y. */
static bool is_cut_alone(const wf_tensor *x, const wf_tensor *y)
{
    const wf_layout *p = &x->layout, *q = &y->layout;
    for (int axis = 0; p->known && q->known && axis < WF_AXES; axis++)
        if (p->placement[axis] == WF_SHARDED && q->placement[axis] == WF_REPLICATED && p->global.dim[p->dim[axis]] == 1)
            return true;
    return false;
}

bool wf_broadcasts(const wf_var *a, const wf_var *b)
{
    return a->value && b->value &&
           (!wf_shape_equal(a->value->shape, b->value->shape) ||
            !wf_shape_equal(global_shape(a->value), global_shape(b->value)) || is_cut_alone(a->value, b->value) ||
            is_cut_alone(b->value, a->value));
}

typedef struct broadcast_state {
    wf_binary_kind kind;
    unsigned axes[2]; /* of the mesh: over which the gradient of a variable is summed */
} broadcast_state;

/* The derivative by input i, times dy, summed over what is repeated: in dx, or added to it. */
static wf_status fold_gradient(const wf_node *node, int i, const wf_tensor *dx, bool add)
{
    const broadcast_state *state = node->state;
    const wf_tensor *dy = wf_node_dy(node), *second = NULL, *third = NULL;
    wf_fold_args args = {.op = WF_FOLD_LINEAR, .alpha = 1, .accumulate = add};
    if (state->kind == WF_BINARY_SUB_OF && i == 1)
        args.alpha = -1;
    if (state->kind == WF_BINARY_MUL_OF) {
        args.op = WF_FOLD_MUL;
        second = wf_node_saved(node, 1 - i);
    }
    if (state->kind == WF_BINARY_DIV_OF) {
        /* y = a / b: dy / b, and - dy y / b. */
        args = (wf_fold_args){.op = i == 0 ? WF_FOLD_DIV : WF_FOLD_MULDIV, .alpha = i == 0 ? 1 : -1, .accumulate = add};
        second = wf_node_saved(node, i == 0 ? 1 : 0);
        third = i == 0 ? NULL : wf_node_saved(node, 1);
    }
    const wf_strided from = wf_tensor_strided(dy), to = wf_broadcast_view(dx, dy->shape);
    wf_strided b, c;
    if (second) {
        b = wf_broadcast_view(second, dy->shape);
        args.b = &b;
    }
    if (third) {
        c = wf_broadcast_view(third, dy->shape);
        args.c = &c;
    }
    args.a = &from;
    args.y = &to;
    return dy->ctx->k->fold(dy->ctx, &args);
}

static wf_status give_gradient(wf_node *node, int i)
{
    const broadcast_state *state = node->state;
    const wf_tensor *x = node->in[i]->value;
    bool add = false;
    /* No axis repeats it: dx is written in place. */
    if (state->axes[i] == 0) {
        wf_tensor *dx = wf_node_grad(node, i, &add);
        WF_NEED(dx);
        return fold_gradient(node, i, dx, add);
    }
    wf_comm *comm = wf_mesh_comm(x->layout.mesh, state->axes[i]);
    WF_NEED(comm);
    wf_tensor *dx = wf_tensor_new_like(x);
    WF_NEED(dx);
    wf_status status = fold_gradient(node, i, dx, false);
    /* Summed here, since this variable need not be a parameter. */
    if (status == WF_OK && wf_tensor_count(dx) > 0)
        status = wf_allreduce_raw(comm, dx->data, dx->data, wf_tensor_count(dx), dx->dtype, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, i, dx);
    wf_tensor_free(dx);
    return status;
}

static wf_status broadcast_backward(wf_node *node)
{
    for (int i = 0; i < 2; i++)
        if (wf_node_wants(node, i))
            WF_TRY(give_gradient(node, i));
    return WF_OK;
}

static const wf_op ops[] = {
    [WF_BINARY_ADD_OF] = {.name = "add", .backward = broadcast_backward},
    [WF_BINARY_SUB_OF] = {.name = "sub", .backward = broadcast_backward},
    [WF_BINARY_MUL_OF] = {.name = "mul", .backward = broadcast_backward},
    [WF_BINARY_DIV_OF] = {.name = "div", .backward = broadcast_backward},
};

static wf_status run_binary(wf_binary_kind kind, const wf_tensor *a, const wf_tensor *b, const wf_tensor *y)
{
    static const wf_fold_op op[] = {[WF_BINARY_ADD_OF] = WF_FOLD_LINEAR,
                                    [WF_BINARY_SUB_OF] = WF_FOLD_LINEAR,
                                    [WF_BINARY_MUL_OF] = WF_FOLD_MUL,
                                    [WF_BINARY_DIV_OF] = WF_FOLD_DIV};
    WF_NEED(y);
    const wf_strided left = wf_broadcast_view(a, y->shape), right = wf_broadcast_view(b, y->shape);
    const wf_strided to = wf_tensor_strided(y);
    const wf_fold_args args = {
        .op = op[kind], .alpha = 1, .beta = kind == WF_BINARY_SUB_OF ? -1 : 1, .a = &left, .b = &right, .y = &to};
    return y->ctx->k->fold(y->ctx, &args);
}

static wf_status check_operands(const char *what, const wf_var *a, const wf_var *b)
{
    WF_TRY(wf_function_check(what, a, WF_ANY_FUNCTION));
    WF_TRY(wf_function_check(what, b, WF_ANY_FUNCTION));
    WF_CHECK(a->tape == b->tape, WF_ERR_ARGUMENT, "%s of variables of two tapes", what);
    WF_CHECK(a->value->dtype == b->value->dtype, WF_ERR_DTYPE, "%s takes equal types, not %s and %s", what,
             wf_dtype_name(a->value->dtype), wf_dtype_name(b->value->dtype));
    const bool sum = !a->loss_mean && !b->loss_mean && a->loss_count == 0 && b->loss_count == 0;
    char left[WF_SHAPE_TEXT], right[WF_SHAPE_TEXT];
    WF_CHECK(sum, WF_ERR_STATE, "%s takes no mean of a batch together with a variable of another shape: %s and %s",
             what, wf_shape_text(a->value->shape, left), wf_shape_text(b->value->shape, right));
    return WF_OK;
}

wf_var *wf_broadcast_binary(wf_binary_kind kind, wf_var *a, wf_var *b)
{
    wf_broadcast to;
    WF_TRY_NULL(check_operands(ops[kind].name, a, b));
    WF_TRY_NULL(wf_broadcast_of(ops[kind].name, a->value, b->value, &to));
    const broadcast_state state = {kind, {to.axes[0], to.axes[1]}};
    wf_comm *comm = NULL;
    /* Backward will sum over it, so the tape learns of its failures. */
    if ((to.axes[0] | to.axes[1]) != 0)
        WF_NEED_NULL(comm = wf_mesh_comm(to.layout.mesh, to.axes[0] | to.axes[1]));
    wf_tensor *y = wf_tensor_new_step(a->value->ctx, a->value->dtype, to.shape, to.order);
    wf_status status = run_binary(kind, a->value, b->value, y);
    if (status == WF_OK)
        status = wf_tensor_set_layout(y, to.layout);
    /* Quotients keep y and b, products both factors, sums nothing. */
    const bool saves = kind == WF_BINARY_MUL_OF || kind == WF_BINARY_DIV_OF;
    return wf_function_finish(
        status, a->tape,
        &(wf_node_spec){.op = &ops[kind],
                        .n_in = 2,
                        .in = (wf_var *const[]){a, b},
                        .n_saved = saves ? 2 : 0,
                        .saved = (wf_tensor *const[]){kind == WF_BINARY_DIV_OF ? y : a->value, b->value},
                        .state = &state,
                        .state_bytes = sizeof state,
                        .comm = comm},
        y);
}

wf_var *wf_div(wf_var *a, wf_var *b)
{
    if (!a || !b)
        return NULL;
    WF_TRY_NULL(wf_function_promote(&a, &b));
    WF_NEED_NULL(b = wf_function_align(b, a));
    return wf_broadcast_binary(WF_BINARY_DIV_OF, a, b);
}
