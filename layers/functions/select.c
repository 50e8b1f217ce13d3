/* Choices between two variables, and functions that are made of slices, joins and reshapes: parts of a dimension, a new
 * dimension, one that goes. */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

typedef struct where_state {
    unsigned axes[2]; /* of the mesh: over which the gradient of a variable is summed */
} where_state;

static wf_status run_choice(const wf_tensor *a, const wf_tensor *b, const wf_tensor *condition, const wf_tensor *y)
{
    WF_NEED(y);
    const wf_strided left = wf_broadcast_view(a, y->shape), right = wf_broadcast_view(b, y->shape);
    const wf_strided which = wf_broadcast_view(condition, y->shape), to = wf_tensor_strided(y);
    return y->ctx->k->fold(y->ctx,
                           &(wf_fold_args){.op = WF_FOLD_WHERE, .a = &left, .b = &right, .c = &which, .y = &to});
}

/* dy where this input was chosen, summed over what it repeats: a missing side of the choice counts as 0. */
static wf_status choice_gradient(const wf_node *node, int i, const wf_tensor *dx, bool add)
{
    const wf_tensor *dy = wf_node_dy(node);
    const wf_strided from = wf_tensor_strided(dy), which = wf_broadcast_view(wf_node_saved(node, 0), dy->shape);
    const wf_strided to = wf_broadcast_view(dx, dy->shape);
    return dy->ctx->k->fold(dy->ctx, &(wf_fold_args){.op = WF_FOLD_WHERE,
                                                     .a = i == 0 ? &from : NULL,
                                                     .b = i == 0 ? NULL : &from,
                                                     .c = &which,
                                                     .y = &to,
                                                     .accumulate = add});
}

/* A variable that is whole on every rank of an axis that cuts the result: each rank has the sum over its own part of
 * the result, so these are summed over the axis. Elsewhere the slot writes into the gradient itself. */
static wf_status give_choice(wf_node *node, int i)
{
    const where_state *s = node->state;
    const wf_tensor *x = node->in[i]->value;
    bool add = false;
    if (s->axes[i] == 0) {
        wf_tensor *dx = wf_node_grad(node, i, &add);
        WF_NEED(dx);
        return choice_gradient(node, i, dx, add);
    }
    wf_tensor *dx = wf_tensor_new_like(x);
    WF_NEED(dx);
    wf_status status = choice_gradient(node, i, dx, false);
    /* An empty gradient on one rank is empty on all: what is summed is whole on each. */
    if (status == WF_OK && wf_tensor_count(dx) > 0)
        status = wf_allreduce_raw(wf_mesh_comm(x->layout.mesh, s->axes[i]), dx->data, dx->data, wf_tensor_count(dx),
                                  dx->dtype, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, i, dx);
    wf_tensor_free(dx);
    return status;
}

static wf_status where_backward(wf_node *node)
{
    for (int i = 0; i < 2; i++)
        if (wf_node_wants(node, i))
            WF_TRY(give_choice(node, i));
    return WF_OK;
}

static const wf_op where_op = {.name = "where", .backward = where_backward};

static wf_status check_choice(const wf_var *condition, const wf_var *a, const wf_var *b)
{
    WF_TRY(wf_function_check("where", a, WF_ANY_FUNCTION));
    WF_TRY(wf_function_check("where", b, WF_ANY_FUNCTION));
    WF_TRY(wf_function_check_value("where", condition));
    WF_CHECK(a->tape == b->tape && a->tape == condition->tape, WF_ERR_ARGUMENT, "where of variables of two tapes");
    WF_CHECK(a->value->dtype == b->value->dtype, WF_ERR_DTYPE, "where takes equal types, not %s and %s",
             wf_dtype_name(a->value->dtype), wf_dtype_name(b->value->dtype));
    WF_CHECK(condition->value->dtype == WF_U8 || condition->value->dtype == a->value->dtype, WF_ERR_DTYPE,
             "where takes a condition of u8 or of the type of its variables, %s, not of %s",
             wf_dtype_name(a->value->dtype), wf_dtype_name(condition->value->dtype));
    return WF_OK;
}

wf_var *wf_where(wf_var *condition, wf_var *a, wf_var *b)
{
    wf_broadcast pair, to;
    wf_comm *comm = NULL;
    if (!condition || !a || !b)
        return NULL;
    WF_TRY_NULL(wf_function_promote(&a, &b));
    WF_NEED_NULL(b = wf_function_align(b, a));
    WF_NEED_NULL(condition = wf_function_align(condition, a));
    WF_TRY_NULL(check_choice(condition, a, b));
    WF_TRY_NULL(wf_broadcast_of("where", a->value, b->value, &pair));
    /* Three shapes meet in two steps: what a and b give together, and that with the condition. A copy of the handle, as
     * a carrier of shape and layout alone; it is never freed. */
    wf_tensor both = *a->value;
    both.shape = pair.shape;
    both.layout = pair.layout;
    WF_TRY_NULL(wf_broadcast_of("where", &both, condition->value, &to));
    /* What the condition cuts, both variables repeat. */
    const where_state state = {{pair.axes[0] | to.axes[0], pair.axes[1] | to.axes[0]}};
    if ((state.axes[0] | state.axes[1]) != 0)
        WF_NEED_NULL(comm = wf_mesh_comm(to.layout.mesh, state.axes[0] | state.axes[1]));
    wf_tensor *y = wf_tensor_new_step(a->value->ctx, a->value->dtype, to.shape,
                                      to.shape.rank == pair.shape.rank ? pair.order : to.order);
    wf_status status = run_choice(a->value, b->value, condition->value, y);
    if (status == WF_OK)
        status = wf_tensor_set_layout(y, to.layout);
    return wf_function_finish(status, a->tape,
                              &(wf_node_spec){.op = &where_op,
                                              .n_in = 2,
                                              .in = (wf_var *const[]){a, b},
                                              /* No input: it has no gradient. */
                                              .n_saved = 1,
                                              .saved = &condition->value,
                                              .state = &state,
                                              .state_bytes = sizeof state,
                                              .comm = comm},
                              y);
}

/* --- parts, and dimensions of length 1 -----------------------------------------------------------------------------
 */

/* A dimension as programs name it: from the front, or from the back by a negative number. */
static wf_status place_of_dim(const char *what, const wf_var *x, int dim, int rank, int *out)
{
    char text[WF_SHAPE_TEXT];
    *out = dim < 0 ? dim + rank : dim;
    WF_CHECK(*out >= 0 && *out < rank, WF_ERR_SHAPE, "%s at dimension %d of %s", what, dim,
             wf_shape_text(x->value->shape, text));
    return WF_OK;
}

static wf_status check_split_parts(const wf_var *x, int dim, int count, const int64_t *length)
{
    char text[WF_SHAPE_TEXT];
    const int64_t whole = x->value->shape.dim[dim];
    int64_t sum = 0;
    WF_CHECK(count >= 1, WF_ERR_ARGUMENT, "split into %d parts, should be 1 or more", count);
    WF_CHECK(length || whole % count == 0, WF_ERR_SHAPE, "split of dimension %d of %s into %d equal parts", dim,
             wf_shape_text(x->value->shape, text), count);
    for (int i = 0; i < count; i++) {
        WF_CHECK(!length || length[i] >= 0, WF_ERR_ARGUMENT, "split into a part of length %lld", (long long)length[i]);
        sum += length ? length[i] : whole / count;
    }
    WF_CHECK(sum == whole, WF_ERR_SHAPE, "split of dimension %d of %s into parts of %lld elements together", dim,
             wf_shape_text(x->value->shape, text), (long long)sum);
    return WF_OK;
}

/* Slices, so a part that is not used costs nothing in backward. Each slice is checked for its own layout, so a cut of
 * this dimension is refused there. */
static wf_status split_into(wf_var *x, int dim, int count, const int64_t *length, wf_var **part)
{
    int64_t lo = 0;
    WF_TRY(wf_function_check_value("split", x));
    WF_TRY(place_of_dim("split", x, dim, x->value->shape.rank, &dim));
    WF_TRY(check_split_parts(x, dim, count, length));
    for (int i = 0; i < count; i++) {
        wf_box box = wf_box_of_shape(x->value->shape);
        box.lo[dim] = lo;
        box.hi[dim] = lo += length ? length[i] : x->value->shape.dim[dim] / count;
        WF_NEED(part[i] = wf_slice(x, box));
    }
    return WF_OK;
}

bool wf_split(wf_var *x, int dim, int count, const int64_t *length, wf_var **part)
{
    for (int i = 0; part && i < count; i++)
        part[i] = NULL;
    if (!x || !part)
        return false;
    if (split_into(x, dim, count, length, part) == WF_OK)
        return true;
    /* All or none: a program that goes on with some parts would meet the error far from here. */
    for (int i = 0; i < count; i++)
        part[i] = NULL;
    return wf_error_null() != NULL;
}

wf_var *wf_unsqueeze(wf_var *x, int dim)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("unsqueeze", x));
    wf_shape shape = x->value->shape;
    WF_CHECK_NULL(shape.rank < WF_MAX_RANK, WF_ERR_SHAPE, "unsqueeze of rank %d, which is the most", shape.rank);
    WF_TRY_NULL(place_of_dim("unsqueeze", x, dim, shape.rank + 1, &dim));
    /* From the back, so that no length is overwritten before it has moved. */
    for (int d = shape.rank++; d > dim; d--)
        shape.dim[d] = shape.dim[d - 1];
    shape.dim[dim] = 1;
    return wf_reshape(x, shape);
}

wf_var *wf_squeeze(wf_var *x, int dim)
{
    char text[WF_SHAPE_TEXT];
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("squeeze", x));
    wf_shape shape = x->value->shape;
    WF_TRY_NULL(place_of_dim("squeeze", x, dim, shape.rank, &dim));
    /* A dimension of length 1 here may be a part of a longer one. */
    WF_CHECK_NULL(shape.dim[dim] == 1 && !wf_layout_is_sharded(&x->value->layout, dim), WF_ERR_SHAPE,
                  "squeeze of dimension %d of %s, should be of length 1 on every rank", dim,
                  wf_shape_text(shape, text));
    for (int d = dim; d + 1 < shape.rank; d++)
        shape.dim[d] = shape.dim[d + 1];
    shape.dim[--shape.rank] = 0;
    return wf_reshape(x, shape);
}

wf_var *wf_stack(int count, wf_var *const *x, int dim)
{
    WF_CHECK_NULL(count > 0 && x, WF_ERR_ARGUMENT, "stack of %d variables; it takes one or more", count);
    /* NULL is a failure that was told before. */
    for (int i = 0; i < count; i++)
        if (!x[i])
            return NULL;
    wf_ctx *ctx = wf_tape_ctx(x[0]->tape);
    const size_t bytes = (size_t)count * sizeof(wf_var *);
    void *memory;
    WF_TRY_NULL(wf_function_check_value("stack", x[0]));
    const int at = dim < 0 ? dim + x[0]->value->shape.rank + 1 : dim;
    WF_TRY_NULL(wf_pool_take_host(ctx, bytes, &memory));
    /* From the pool: the count is the program's, and no fixed array would do. */
    wf_var **each = memory;
    bool failed = false;
    for (int i = 0; i < count; i++) {
        /* After a failure the others become NULL, so that the array is whole; variables belong to the tape, which frees
         * them. */
        each[i] = failed ? NULL : wf_unsqueeze(x[i], at);
        failed |= !each[i];
    }
    wf_var *y = failed ? NULL : wf_concat(count, each, at);
    wf_pool_give_host(ctx, memory, bytes);
    return y;
}
