/* Rows of a table by their numbers: the function, and what the embedding layers are made of. A table may be a part:
 * rows of other ranks come out as zeros, and a sum over those ranks joins them (wf_take_part). */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

/* State of the node, for backward. */
typedef struct take_call {
    wf_take_part part;
    wf_comm *sums; /* over which the gradient of the table is summed here; NULL: nowhere */
} take_call;

/* x [R,...] as [R,E]: a handle of row-major memory, of a copy if need be. */
static wf_tensor *view_as_table(const wf_tensor *x)
{
    const int64_t rows = x->shape.dim[0];
    int64_t width = 1;
    for (int d = 1; d < x->shape.rank; d++)
        width *= x->shape.dim[d];
    wf_tensor *dense = wf_tensor_dense(x, x->dtype, WF_ROW_MAJOR);
    wf_tensor *table = dense ? wf_tensor_recast(dense, WF_SHAPE(rows, width), WF_ROW_MAJOR) : NULL;
    wf_tensor_free(dense);
    return table;
}

static wf_take_args args_of(const wf_take_part *part, const wf_array *table, const wf_array *index, const wf_array *y)
{
    return (wf_take_args){
        .table = table, .index = index, .y = y, .first = part->first, .whole = part->whole, .ignored = part->ignored};
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Kernels read dy row by row, so it is brought into that order. */
static wf_status sum_rows_back(const wf_node *node, const wf_tensor *table, bool add)
{
    const take_call *call = node->state;
    wf_tensor *dy = wf_tensor_dense(wf_node_dy(node), wf_node_dy(node)->dtype, WF_ROW_MAJOR);
    WF_NEED(dy);
    const wf_array to = wf_tensor_array(table), index = wf_tensor_array(wf_node_saved(node, 0));
    const wf_array from = wf_tensor_array(dy);
    wf_take_args args = args_of(&call->part, &to, &index, &from);
    args.accumulate = add;
    const wf_status status = dy->ctx->k->take_backward(dy->ctx, &args);
    wf_tensor_free(dy);
    return status;
}

/* The gradient as a tensor of its own: of a table of another shape or order, or one that ranks sum. */
static wf_status give_table_gradient(wf_node *node)
{
    const take_call *call = node->state;
    const wf_tensor *x = node->in[0]->value;
    wf_tensor *dx = wf_tensor_new_step(x->ctx, x->dtype, x->shape, WF_ROW_MAJOR);
    wf_tensor *table = dx ? view_as_table(dx) : NULL;
    wf_status status = table ? sum_rows_back(node, table, false) : wf_error_take("dx", __FILE__, __LINE__);
    wf_tensor_free(table);
    /* Each rank has rows of its own indices; the table is the same on all, and so must its gradient be. */
    if (status == WF_OK && call->sums && wf_tensor_count(dx) > 0)
        status = wf_allreduce_raw(call->sums, dx->data, dx->data, wf_tensor_count(dx), dx->dtype, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static wf_status take_backward(wf_node *node)
{
    const take_call *call = node->state;
    const wf_tensor *x = node->in[0]->value;
    bool add = false;
    if (!wf_node_wants(node, 0))
        return WF_OK;
    if (call->sums || x->shape.rank != 2 || x->order != WF_ROW_MAJOR)
        return give_table_gradient(node);
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    return sum_rows_back(node, dx, add);
}

static const wf_op take_op = {.name = "take", .backward = take_backward};

/* --- forward ------------------------------------------------------------------------------------------------------ */

wf_status wf_take_check(const char *what, const wf_var *index)
{
    WF_TRY(wf_function_check_value(what, index));
    const wf_dtype dtype = index->value->dtype;
    WF_CHECK(dtype == WF_U8 || dtype == WF_I32 || dtype == WF_I64, WF_ERR_DTYPE,
             "%s takes indices of type u8, i32 or i64, not %s", what, wf_dtype_name(dtype));
    return WF_OK;
}

/* A table is whole on each rank; indices may be cut in any way. */
static wf_status check_take(const char *what, const wf_var *table, const wf_var *index)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    const wf_tensor *x = table->value, *i = index->value;
    WF_CHECK(table->tape == index->tape, WF_ERR_ARGUMENT, "%s takes variables of one tape", what);
    WF_CHECK(x->shape.rank >= 1 && x->shape.rank + i->shape.rank - 1 <= WF_MAX_RANK, WF_ERR_SHAPE,
             "%s of rows of %s by indices %s: the result has %d dimensions, should have 0 to %d", what,
             wf_shape_text(x->shape, left), wf_shape_text(i->shape, right), x->shape.rank + i->shape.rank - 1,
             WF_MAX_RANK);
    for (int d = 0; d < x->shape.rank; d++)
        WF_CHECK(!wf_layout_is_sharded(&x->layout, d), WF_ERR_SHAPE,
                 "%s needs all of the table, which is sharded: %s; wf_redistribute it first", what,
                 wf_layout_text(&x->layout, left));
    /* Indices of another mesh would be cut over other ranks than the table is shared by. */
    WF_CHECK(!x->layout.known || (i->layout.known && i->layout.mesh == x->layout.mesh), WF_ERR_SHAPE,
             "%s has a table (%s) and indices (%s), which are not of one mesh", what, wf_layout_text(&x->layout, left),
             wf_layout_text(&i->layout, right));
    return WF_OK;
}

/* The uninitialised result: the dimensions of the indices, with their layout, then those of a row. */
static wf_tensor *new_rows(const char *what, const wf_tensor *x, const wf_tensor *index)
{
    wf_shape shape = index->shape;
    int from[WF_MAX_RANK];
    wf_layout layout;
    char text[WF_LAYOUT_TEXT];
    for (int d = 0; d < shape.rank; d++)
        from[d] = d;
    for (int d = 1; d < x->shape.rank; d++) {
        from[shape.rank] = -1;
        shape.dim[shape.rank++] = x->shape.dim[d];
    }
    WF_CHECK_NULL(wf_layout_follow(&index->layout, shape, from, &layout), WF_ERR_SHAPE,
                  "%s cannot take indices that are %s; wf_redistribute them first", what,
                  wf_layout_text(&index->layout, text));
    wf_tensor *y = wf_tensor_new_step(x->ctx, x->dtype, shape, WF_ROW_MAJOR);
    if (!y || wf_tensor_set_layout(y, layout) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

static wf_status run_take(const wf_take_part *part, const wf_tensor *x, const wf_tensor *index, const wf_tensor *y)
{
    WF_NEED(index);
    WF_NEED(y);
    wf_tensor *table = view_as_table(x);
    WF_NEED(table);
    const wf_array from = wf_tensor_array(table), at = wf_tensor_array(index), to = wf_tensor_array(y);
    const wf_take_args args = args_of(part, &from, &at, &to);
    wf_status status = x->ctx->k->take_forward(x->ctx, &args);
    /* Zeros of all ranks but one: the sum is exact. */
    if (status == WF_OK && part->comm && wf_tensor_count(y) > 0)
        status = wf_allreduce_raw(part->comm, y->data, y->data, wf_tensor_count(y), y->dtype, WF_SUM);
    wf_tensor_free(table);
    return status;
}

wf_var *wf_take_rows(const char *what, wf_var *table, const wf_var *index, const wf_take_part *part)
{
    WF_TRY_NULL(check_take(what, table, index));
    const wf_tensor *x = table->value;
    /* A table with a layout is whole on all ranks that share the indices, so its gradient is summed here and not by an
     * optimizer. */
    const unsigned axes = x->layout.known ? wf_layout_axes(&index->value->layout, ~0u) : 0;
    take_call call = {.part = *part};
    if (axes)
        WF_NEED_NULL(call.sums = wf_mesh_comm(x->layout.mesh, axes));
    wf_tensor *at = wf_tensor_dense(index->value, index->value->dtype, WF_ROW_MAJOR);
    wf_tensor *y = new_rows(what, x, index->value);
    wf_var *out = wf_function_finish(run_take(part, x, at, y), table->tape,
                                     &(wf_node_spec){.op = &take_op,
                                                     .n_in = 1,
                                                     .in = &table,
                                                     .n_saved = 1,
                                                     .saved = &at,
                                                     .state = &call,
                                                     .state_bytes = sizeof call,
                                                     .comm = call.sums},
                                     y);
    wf_tensor_free(at);
    return out;
}

wf_var *wf_take(wf_var *x, const wf_var *index)
{
    if (!x || !index)
        return NULL;
    WF_TRY_NULL(wf_function_check("take", x, WF_ANY_FUNCTION));
    WF_TRY_NULL(wf_take_check("take", index));
    const int64_t rows = x->value->shape.rank > 0 ? x->value->shape.dim[0] : 0;
    return wf_take_rows("take", x, index, &(wf_take_part){.whole = rows, .ignored = WF_NONE_IGNORED});
}
