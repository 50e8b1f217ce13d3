/* Sums, means, largest elements and softmax over any dimensions. Sums read the tensor as it lies; the others see it as
 * rows: the dimensions that stay are moved to the front, those of the reduction to the back, which copies only if
 * memory does not hold that sequence already. What is reduced must be whole on each rank. */
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

/* count -1 marks a wrong list, which the function then refuses. */
wf_dims wf_dims_make(int count, const int *dim)
{
    wf_dims dims = {.count = count};
    if (count < 0 || count > WF_MAX_RANK)
        return (wf_dims){.count = -1};
    for (int i = 0; i < count; i++)
        dims.dim[i] = dim[i];
    return dims;
}

/* The dimensions of a reduction: kept ones first, then the others, each in their order. */
typedef struct reduction_dims {
    unsigned set;
    int kept, rank;
    int perm[WF_MAX_RANK];
    int64_t rows, length;
    wf_shape shape; /* of x, in the order of perm */
} reduction_dims;

static wf_status reduction_of(const char *what, const wf_var *x, wf_dims dims, reduction_dims *out)
{
    const wf_shape shape = x->value->shape;
    char text[WF_LAYOUT_TEXT];
    *out = (reduction_dims){.rank = shape.rank, .rows = 1, .length = 1, .shape = shape};
    WF_CHECK(dims.count >= 1, WF_ERR_ARGUMENT, "%s over %d dimensions, should be 1 to %d", what, dims.count,
             WF_MAX_RANK);
    for (int i = 0; i < dims.count; i++) {
        const int d = dims.dim[i] < 0 ? dims.dim[i] + shape.rank : dims.dim[i];
        WF_CHECK(d >= 0 && d < shape.rank, WF_ERR_SHAPE, "%s over dimension %d of %s, should be %d to %d", what,
                 dims.dim[i], wf_shape_text(shape, text), -shape.rank, shape.rank - 1);
        WF_CHECK(!(out->set >> d & 1), WF_ERR_ARGUMENT, "%s names dimension %d twice", what, d);
        WF_CHECK(!wf_layout_is_sharded(&x->value->layout, d), WF_ERR_SHAPE,
                 "%s needs all of dimension %d, which is sharded: %s; wf_redistribute it first", what, d,
                 wf_layout_text(&x->value->layout, text));
        out->set |= 1u << d;
    }
    int at = 0;
    /* Two walks: kept dimensions keep their order, and so do the others. */
    for (int folded = 0; folded < 2; folded++)
        for (int d = 0; d < shape.rank; d++) {
            if ((int)(out->set >> d & 1) != folded)
                continue;
            out->shape.dim[at] = shape.dim[d];
            out->perm[at++] = d;
            out->kept += !folded;
            *(folded ? &out->length : &out->rows) *= shape.dim[d];
        }
    return WF_OK;
}

/* Shape and layout of the result: what is reduced has length 1, or is left out. */
static wf_tensor *take_result(const char *what, const wf_var *x, const reduction_dims *r, bool keep, wf_dtype dtype)
{
    const wf_tensor *v = x->value;
    int from[WF_MAX_RANK], rank = 0;
    wf_shape shape = {0};
    char text[WF_LAYOUT_TEXT];
    for (int d = 0; d < r->rank; d++) {
        const bool folded = r->set >> d & 1;
        if (folded && !keep)
            continue;
        shape.dim[rank] = folded ? 1 : v->shape.dim[d];
        from[rank++] = folded ? -1 : d;
    }
    shape.rank = rank;
    wf_layout layout;
    WF_CHECK_NULL(wf_layout_follow(&v->layout, shape, from, &layout), WF_ERR_SHAPE,
                  "%s cannot take an input that is %s; wf_redistribute it first", what,
                  wf_layout_text(&v->layout, text));
    wf_tensor *y = wf_tensor_new_step(v->ctx, dtype, shape, WF_ROW_MAJOR);
    if (!y || wf_tensor_set_layout(y, layout) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

/* y, without or with the dimensions that are reduced, as an array of x's shape: steps of 0 along them. Written to, it
 * is a sum; read, a repetition. */
static wf_strided spread_view(const wf_tensor *y, wf_shape shape, unsigned set)
{
    const wf_strided own = wf_tensor_strided(y);
    wf_strided view = {.data = own.data, .dtype = own.dtype, .rank = shape.rank};
    for (int d = 0, at = 0; d < shape.rank; d++) {
        const bool folded = set >> d & 1;
        view.dim[d] = shape.dim[d];
        view.stride[d] = folded ? 0 : own.stride[at];
        at += own.rank == shape.rank || !folded;
    }
    return view;
}

typedef struct sum_state {
    unsigned set;
    double scale;
} sum_state;

/* Every element of a sum has the gradient of the sum: dy is repeated along what was reduced. */
static wf_status sum_over_backward(wf_node *node)
{
    const sum_state *s = node->state;
    bool add = false;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    const wf_strided from = spread_view(wf_node_dy(node), dx->shape, s->set), to = wf_tensor_strided(dx);
    return dx->ctx->k->fold(
        dx->ctx, &(wf_fold_args){.op = WF_FOLD_LINEAR, .alpha = s->scale, .a = &from, .y = &to, .accumulate = add});
}

static const wf_op sum_over_op = {.name = "sum", .backward = sum_over_backward};
static const wf_op mean_over_op = {.name = "mean", .backward = sum_over_backward};

static wf_status sum_over_run(const sum_state *s, const wf_tensor *x, const wf_tensor *y)
{
    WF_NEED(y);
    const wf_strided from = wf_tensor_strided(x), to = spread_view(y, x->shape, s->set);
    return x->ctx->k->fold(x->ctx, &(wf_fold_args){.op = WF_FOLD_LINEAR, .alpha = s->scale, .a = &from, .y = &to});
}

/* A mean over no element is 0, as its sum. The factor is the number of elements here, since what is reduced is whole.
 */
static wf_var *sum_over(const wf_op *op, wf_var *x, wf_dims dims, bool keep)
{
    reduction_dims r;
    /* Sums of 16-bit numbers are made and kept in f32. */
    x = wf_widened(x);
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check(op->name, x, WF_ANY_FUNCTION));
    WF_TRY_NULL(reduction_of(op->name, x, dims, &r));
    const bool mean = op == &mean_over_op;
    const sum_state state = {r.set, !mean ? 1 : r.length > 0 ? 1 / (double)r.length : 0};
    wf_tensor *y = take_result(op->name, x, &r, keep, x->value->dtype);
    return wf_function_finish(
        sum_over_run(&state, x->value, y), x->tape,
        &(wf_node_spec){.op = op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state}, y);
}

wf_var *wf_sum_over(wf_var *x, wf_dims dims, bool keep)
{
    return sum_over(&sum_over_op, x, dims, keep);
}

wf_var *wf_mean_over(wf_var *x, wf_dims dims, bool keep)
{
    return sum_over(&mean_over_op, x, dims, keep);
}

/* --- rows ----------------------------------------------------------------------------------------------------------
 */

/* x as [rows, length]; a handle, of a copy if need be. */
static wf_tensor *view_as_rows(const wf_tensor *x, const reduction_dims *r)
{
    wf_tensor *view = wf_tensor_permute(x, r->perm);
    wf_tensor *dense = view ? wf_tensor_dense(view, x->dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor *rows = dense ? wf_tensor_recast(dense, WF_SHAPE(r->rows, r->length), WF_ROW_MAJOR) : NULL;
    wf_tensor_free(view);
    wf_tensor_free(dense);
    return rows;
}

/* Goes back: a view of the rows with x's dimensions, and no copy. */
static wf_tensor *from_rows(const wf_tensor *rows, const reduction_dims *r)
{
    int inverse[WF_MAX_RANK] = {0};
    for (int d = 0; d < r->rank; d++)
        inverse[r->perm[d]] = d;
    wf_tensor *whole = wf_tensor_recast(rows, r->shape, WF_ROW_MAJOR);
    wf_tensor *view = whole ? wf_tensor_permute(whole, inverse) : NULL;
    wf_tensor_free(whole);
    return view;
}

/* dx, as rows, goes to the input; takes the handle. */
static wf_status give_rows(wf_node *node, const reduction_dims *r, wf_status status, wf_tensor *rows)
{
    wf_tensor *dx = status == WF_OK ? from_rows(rows, r) : NULL;
    wf_tensor_free(rows);
    WF_TRY(status);
    return wf_function_give(node, 0, dx);
}

/* The place of each largest element was saved, not x: backward needs one number a row. */
static wf_status max_backward(wf_node *node)
{
    const reduction_dims *r = node->state;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *rows = wf_tensor_new_step(dy->ctx, dy->dtype, WF_SHAPE(r->rows, r->length), WF_ROW_MAJOR);
    WF_NEED(rows);
    const wf_array index = wf_tensor_array(wf_node_saved(node, 0)), from = wf_tensor_array(dy);
    const wf_array to = wf_tensor_array(rows);
    return give_rows(node, r, dy->ctx->k->row_most_backward(dy->ctx, &index, &from, &to), rows);
}

static const wf_op max_op = {.name = "max", .backward = max_backward};

/* y NULL: only the places are wanted. */
static wf_status most_run(const reduction_dims *r, const wf_tensor *x, const wf_tensor *y, const wf_tensor *index)
{
    WF_NEED(index);
    wf_tensor *rows = view_as_rows(x, r);
    WF_NEED(rows);
    const wf_array from = wf_tensor_array(rows), to = wf_tensor_array(y), at = wf_tensor_array(index);
    const wf_status status = x->ctx->k->row_most(x->ctx, &from, y ? &to : NULL, &at);
    wf_tensor_free(rows);
    return status;
}

static wf_status most_check(const char *what, const wf_var *x, wf_dims dims, reduction_dims *r)
{
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_function_check(what, x, WF_ANY_FUNCTION));
    WF_TRY(reduction_of(what, x, dims, r));
    WF_CHECK(r->length > 0 || r->rows == 0, WF_ERR_SHAPE, "%s over no element of %s", what,
             wf_shape_text(x->value->shape, text));
    return WF_OK;
}

wf_var *wf_max_over(wf_var *x, wf_dims dims, bool keep)
{
    reduction_dims r;
    if (!x)
        return NULL;
    WF_TRY_NULL(most_check("max", x, dims, &r));
    wf_tensor *y = take_result("max", x, &r, keep, x->value->dtype);
    wf_tensor *index = y ? wf_tensor_new_step(y->ctx, WF_I64, WF_SHAPE(r.rows), WF_ROW_MAJOR) : NULL;
    wf_var *out = wf_function_finish(
        most_run(&r, x->value, y, index), x->tape,
        &(wf_node_spec){
            .op = &max_op, .n_in = 1, .in = &x, .n_saved = 1, .saved = &index, .state = &r, .state_bytes = sizeof r},
        y);
    wf_tensor_free(index);
    return out;
}

wf_var *wf_argmax_over(wf_var *x, wf_dims dims, bool keep)
{
    reduction_dims r;
    if (!x)
        return NULL;
    WF_TRY_NULL(most_check("argmax", x, dims, &r));
    wf_tensor *index = take_result("argmax", x, &r, keep, WF_I64);
    const wf_status status = most_run(&r, x->value, NULL, index);
    /* A place has no gradient, so it is an input of the tape, not the output of a node. */
    wf_var *out = status == WF_OK ? wf_input(x->tape, index) : wf_error_null();
    wf_tensor_free(index);
    return out;
}

typedef struct softmax_state {
    bool logarithm;
    reduction_dims dims;
} softmax_state;

static wf_status softmax_over_backward(wf_node *node)
{
    const softmax_state *s = node->state;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *from = view_as_rows(dy, &s->dims), *rows = from ? wf_tensor_new_like(from) : NULL;
    if (!rows) {
        wf_tensor_free(from);
        return wf_error_take("rows", __FILE__, __LINE__);
    }
    const wf_array y = wf_tensor_array(wf_node_saved(node, 0)), up = wf_tensor_array(from), to = wf_tensor_array(rows);
    const wf_status status = dy->ctx->k->softmax_backward(dy->ctx, s->logarithm, &y, &up, &to);
    wf_tensor_free(from);
    return give_rows(node, &s->dims, status, rows);
}

static const wf_op softmax_over_op = {.name = "softmax", .backward = softmax_over_backward};
static const wf_op log_softmax_over_op = {.name = "log_softmax", .backward = softmax_over_backward};

/* y as rows, in *rows; takes what x's rows are. */
static wf_status softmax_rows(const softmax_state *s, const wf_tensor *x, wf_tensor **rows)
{
    wf_tensor *from = view_as_rows(x, &s->dims);
    WF_NEED(from);
    *rows = wf_tensor_new_like(from);
    const wf_array in = wf_tensor_array(from), out = wf_tensor_array(*rows);
    const wf_status status =
        *rows ? x->ctx->k->softmax_forward(x->ctx, s->logarithm, &in, &out) : wf_error_take("rows", __FILE__, __LINE__);
    wf_tensor_free(from);
    return status;
}

static wf_var *softmax_over(const wf_op *op, wf_var *x, wf_dims dims)
{
    softmax_state s = {.logarithm = op == &log_softmax_over_op};
    wf_tensor *rows = NULL, *view = NULL, *y = NULL;
    x = wf_widened(x);
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check(op->name, x, WF_ANY_FUNCTION));
    WF_TRY_NULL(reduction_of(op->name, x, dims, &s.dims));
    /* The rows are saved as they were computed; y has x's order, for the layers that follow. */
    wf_status status = softmax_rows(&s, x->value, &rows);
    if (status == WF_OK) {
        view = from_rows(rows, &s.dims);
        y = view ? wf_tensor_dense(view, view->dtype, x->value->order) : NULL;
        status = y ? wf_tensor_set_layout(y, x->value->layout) : wf_error_take("y", __FILE__, __LINE__);
    }
    wf_var *out = wf_function_finish(
        status, x->tape,
        &(wf_node_spec){
            .op = op, .n_in = 1, .in = &x, .n_saved = 1, .saved = &rows, .state = &s, .state_bytes = sizeof s},
        y);
    wf_tensor_free(view);
    wf_tensor_free(rows);
    return out;
}

wf_var *wf_softmax_over(wf_var *x, wf_dims dims)
{
    return softmax_over(&softmax_over_op, x, dims);
}

wf_var *wf_log_softmax_over(wf_var *x, wf_dims dims)
{
    return softmax_over(&log_softmax_over_op, x, dims);
}
