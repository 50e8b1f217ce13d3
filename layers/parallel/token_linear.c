/* The linear layer of tokens, whole or cut over the channel axis by outputs (columns) or inputs (rows). One that is cut
 * by columns sums dx over the axis, one by rows y: a pair of the two, as in attention and in an MLP, needs one
 * all-reduce forward and one backward (Shoeybi et al. 2019, "Megatron-LM"). Called by layers/transformer.c and by
 * attention. */
#include "layers/functions/functions_impl.h"
#include "layers/parallel/parallel_impl.h"
#include "layers/transformer.h"

#include <stdlib.h>

typedef struct token_state {
    int64_t in, out;
    const wf_mesh *mesh;   /* NULL: serial */
    bool columns, rows;    /* which one is cut; neither: whole */
    const int64_t *bounds; /* of the features that are cut */
    wf_range own;          /* of them */
    wf_param *w, *b;
} token_state;

/* --- sums over the axis ------------------------------------------------------------------------------------------- */

/* Identity forward, sum backward: each rank's weights saw all of x, so each has a part of its gradient. */
static wf_status copied_backward(wf_node *node)
{
    const wf_mesh *const *mesh = node->state;
    const wf_tensor *const dy = wf_node_dy(node);
    wf_tensor *dx = wf_tensor_new_like(dy);
    WF_NEED(dx);
    const wf_status status = wf_allreduce(wf_mesh_comm(*mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)), dy, dx, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op copied_op = {.name = "channel_copied", .backward = copied_backward};

wf_var *wf_channel_copied(const wf_mesh *mesh, wf_var *x)
{
    /* No other rank has a part. */
    if (!x || !mesh || wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1)
        return x;
    wf_tensor *y = wf_tensor_alias(x->value);
    if (!y)
        return NULL;
    return wf_tape_record(
        x->tape, &(wf_node_spec){.op = &copied_op, .n_in = 1, .in = &x, .state = &mesh, .state_bytes = sizeof mesh}, y);
}

/* --- the node ----------------------------------------------------------------------------------------------------- */

/* Tokens as the rows of a matrix. */
static wf_array token_rows(const wf_tensor *x)
{
    wf_array a = wf_tensor_array(x);
    int64_t rows = 1;
    for (int d = 0; d < x->shape.rank - 1; d++)
        rows *= x->shape.dim[d];
    a.shape = WF_SHAPE(rows, x->shape.dim[x->shape.rank - 1]);
    a.order = WF_ROW_MAJOR;
    /* Packed forms belong to the tensor's own shape. */
    a.forms = NULL;
    return a;
}

/* Inputs of the node: x, W, b. dx of a layer that is cut by columns is a part, which wf_channel_copied sums. */
static wf_status backward_tokens(wf_node *node)
{
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_tensor *const kept = wf_node_saved(node, 0);
    const wf_array dy = token_rows(wf_node_dy(node)), x = token_rows(kept), w = wf_tensor_array(wf_node_saved(node, 1));
    for (int i = 0; i < 3; i++) {
        if (!node->in[i] || !wf_node_wants(node, i))
            continue;
        bool add = false;
        if (i == 0) {
            wf_tensor *dx = wf_tensor_new_step(ctx, kept->dtype, kept->shape, WF_ROW_MAJOR);
            WF_NEED(dx);
            const wf_array to = token_rows(dx);
            const wf_matmul_args args = {.a = &dy, .b = &w, .b_reused = wf_tape_reuses(node->tape), .c = &to};
            const wf_status status = ctx->k->matmul(ctx, &args);
            if (status != WF_OK) {
                wf_tensor_free(dx);
                return status;
            }
            WF_TRY(wf_function_give(node, 0, dx));
            continue;
        }
        wf_tensor *grad = wf_node_grad(node, i, &add);
        WF_NEED(grad);
        const wf_array to = wf_tensor_array(grad);
        if (i == 1)
            WF_TRY(ctx->k->matmul(
                ctx, &(wf_matmul_args){.a = &dy, .a_transposed = true, .b = &x, .c = &to, .accumulate = add}));
        else
            WF_TRY(ctx->k->bias_backward(ctx, &dy, &to, add));
    }
    return WF_OK;
}

static const wf_op token_op = {.name = "token_linear", .backward = backward_tokens};

/* By rows the sum gives every rank all features; by columns each rank has its own. */
static wf_layout output_layout(const token_state *s, const wf_layout *x, int64_t features)
{
    wf_layout layout = *x;
    if (!layout.known)
        return layout;
    if (s->rows) {
        layout.placement[WF_AXIS_CHANNEL] = WF_REPLICATED;
        layout.dim[WF_AXIS_CHANNEL] = 0;
        layout.bounds[WF_AXIS_CHANNEL] = NULL;
    }
    const int last = layout.global.rank - 1;
    layout.global.dim[last] = layout.box.hi[last] = features;
    layout.box.lo[last] = 0;
    if (s->columns)
        wf_layout_shard(s->mesh, &layout, WF_AXIS_CHANNEL, last, s->bounds);
    return layout;
}

/* The bias of every row, after the sum. */
static wf_status add_token_bias(const wf_tensor *y, const wf_tensor *b)
{
    const wf_strided to = wf_tensor_strided(y);
    wf_strided from = to;
    from.data = b->data;
    from.dtype = b->dtype;
    for (int d = 0; d < from.rank; d++)
        from.stride[d] = d == from.rank - 1;
    return y->ctx->k->copy(y->ctx, &from, &to, true);
}

static wf_status compute_tokens(const token_state *s, bool reused, const wf_tensor *x, const wf_var *w, const wf_var *b,
                                wf_tensor *y)
{
    /* Tensors may be NULL after a failure of the caller, which is told here. */
    WF_NEED(x);
    WF_NEED(y);
    const bool sums = s->rows && wf_mesh_size(s->mesh, WF_AXIS_CHANNEL) > 1;
    /* The bias is part of the product unless rows are summed over ranks: then it would be added once by each rank. */
    const wf_array in = token_rows(x), weight = wf_tensor_array(w->used), to = token_rows(y);
    const wf_array bias = wf_tensor_array(b ? b->used : NULL);
    WF_TRY(y->ctx->k->matmul(y->ctx, &(wf_matmul_args){.a = &in,
                                                       .b = &weight,
                                                       .b_transposed = true,
                                                       .b_reused = reused,
                                                       .bias = b && !sums ? &bias : NULL,
                                                       .c = &to}));
    if (!sums)
        return WF_OK;
    WF_TRY(wf_allreduce(wf_mesh_comm(s->mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)), y, y, WF_SUM));
    return b ? add_token_bias(y, b->used) : WF_OK;
}

static wf_status check_tokens(const wf_layer *layer, const wf_var *x)
{
    /* Bad layouts must fail before the all-reduce, since other ranks might be in it. */
    const token_state *s = layer->state;
    const wf_layout *const layout = &x->value->layout;
    const wf_shape shape = x->value->shape;
    const int64_t in = s->rows ? s->own.hi - s->own.lo : s->in;
    const int last = shape.rank - 1;
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(shape.rank >= 3 && shape.dim[last] == in, WF_ERR_SHAPE,
             "token_linear \"%s\": input %s, should be [N,T,%lld]", wf_layer_path(layer), wf_shape_text(shape, text),
             (long long)in);
    WF_CHECK(x->value->dtype == wf_ctx_compute(layer->ctx), WF_ERR_DTYPE,
             "token_linear \"%s\": input of %s, should be %s", wf_layer_path(layer), wf_dtype_name(x->value->dtype),
             wf_dtype_name(wf_ctx_compute(layer->ctx)));
    WF_CHECK(
        !s->mesh || (layout->known && layout->mesh == s->mesh), WF_ERR_SHAPE,
        "token_linear \"%s\": its input is %s, should have a layout on its mesh; say with wf_tensor_set_layout what "
        "part it is",
        wf_layer_path(layer), wf_layout_text(layout, text));
    WF_CHECK(!s->mesh || layout->placement[WF_AXIS_CHANNEL] != WF_SHARDED || layout->dim[WF_AXIS_CHANNEL] == last,
             WF_ERR_SHAPE,
             "token_linear \"%s\": its weights are cut along the channel axis, its input has samples or tokens cut "
             "there: %s; "
             "wf_redistribute it first",
             wf_layer_path(layer), wf_layout_text(layout, text));
    const bool cut = wf_layout_is_sharded(layout, last);
    WF_CHECK(s->rows ? wf_mesh_size(s->mesh, WF_AXIS_CHANNEL) == 1 ||
                           (cut && layout->box.lo[last] == s->own.lo && layout->box.hi[last] == s->own.hi)
                     : !cut,
             WF_ERR_SHAPE, "token_linear \"%s\" takes features %s, its input is %s; wf_redistribute it first",
             wf_layer_path(layer), s->rows ? "cut as its weights" : "that are whole", wf_layout_text(layout, text));
    return WF_OK;
}

static wf_var *apply_local(wf_layer *layer, void *user, wf_var *const *inputs, int n)
{
    const token_state *s = layer->state;
    wf_var *const x = inputs[0];
    WF_TRY_NULL(wf_function_check("token_linear", x, WF_ANY_FUNCTION));
    WF_TRY_NULL(check_tokens(layer, x));
    const wf_layout *const layout = &x->value->layout;
    /* The bias of a layer by rows is whole on all ranks, and each sees the same y: its gradient is not summed over
     * channels. Bits of all dimensions but the features'. */
    const unsigned samples_and_tokens = (1u << (x->value->shape.rank - 1)) - 1;
    wf_param_sum_parts(s->w, layout, samples_and_tokens);
    wf_param_sum_parts(s->b, layout, samples_and_tokens);
    wf_var *w = wf_compute_var(x->tape, s->w), *b = s->b ? wf_compute_var(x->tape, s->b) : NULL;
    if (!w || (s->b && !b))
        return NULL;
    wf_shape shape = x->value->shape;
    /* By rows every rank has all outputs after the sum. */
    shape.dim[shape.rank - 1] = s->columns ? s->own.hi - s->own.lo : s->out;
    wf_tensor *v = wf_tensor_dense(x->value, x->value->dtype, WF_ROW_MAJOR);
    wf_tensor *y = wf_tensor_new_step(layer->ctx, x->value->dtype, shape, WF_ROW_MAJOR);
    wf_status status = compute_tokens(s, wf_tape_reuses(x->tape), v, w, b, y);
    if (status == WF_OK)
        status = wf_tensor_set_layout(y, output_layout(s, layout, s->out));
    wf_var *result = wf_function_finish(status, x->tape,
                                        &(wf_node_spec){.op = &token_op,
                                                        .n_in = 3,
                                                        .in = (wf_var *const[]){x, w, b},
                                                        .n_saved = 2,
                                                        .saved = (wf_tensor *const[]){v, w->used}},
                                        y);
    wf_tensor_free(v);
    return result;
}

static wf_var *forward_tokens(wf_layer *layer, wf_var *x)
{
    const token_state *s = layer->state;
    /* Queries, keys and values share one copy (wf_project), so that dx is summed once for the three. */
    if (s->columns)
        x = wf_channel_copied(s->mesh, x);
    return x ? apply_local(layer, NULL, &x, 1) : NULL;
}

/* --- construction ------------------------------------------------------------------------------------------------- */

static const wf_layer_kind token_kind = {.name = "token_linear", .forward = forward_tokens, .computes = true};

/* Balanced blocks of units: a head's features stay on one rank. */
static wf_status cut_features(token_state *s, const wf_token_linear_opts *o)
{
    s->columns = o->form == WF_FORM_FILTER;
    s->rows = o->form == WF_FORM_CHANNEL;
    WF_CHECK(s->columns || s->rows, WF_ERR_ARGUMENT,
             "token_linear: form is %d, should be WF_FORM_FILTER or WF_FORM_CHANNEL on a mesh", (int)o->form);
    const int64_t all = s->columns ? o->out : o->in, unit = o->unit ? o->unit : 1;
    const int size = wf_mesh_size(o->mesh, WF_AXIS_CHANNEL);
    WF_CHECK(unit >= 1 && all % unit == 0, WF_ERR_ARGUMENT, "token_linear: units of %lld, should divide %lld features",
             (long long)unit, (long long)all);
    WF_CHECK(all / unit >= size, WF_ERR_ARGUMENT,
             "token_linear: %lld units of features (heads) are fewer than the %d ranks that share them; use a smaller "
             "channel axis",
             (long long)(all / unit), size);
    const int64_t *const blocks = wf_mesh_blocks(o->mesh, WF_AXIS_CHANNEL, all / unit);
    WF_NEED(blocks);
    int64_t *bounds = wf_calloc(wf_comm_ctx(wf_mesh_world(o->mesh)), (size_t)size + 1, sizeof *bounds);
    WF_NEED(bounds);
    /* Blocks of units, then features: a bound lies between units always. */
    for (int r = 0; r <= size; r++)
        bounds[r] = blocks[r] * unit;
    s->bounds = wf_mesh_bounds(o->mesh, WF_AXIS_CHANNEL, bounds);
    free(bounds);
    WF_NEED(s->bounds);
    const int place = wf_comm_rank(wf_mesh_comm(o->mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)));
    s->own = (wf_range){s->bounds[place], s->bounds[place + 1]};
    return WF_OK;
}

static bool add_parameters(wf_layer *layer, const wf_token_linear_opts *o)
{
    token_state *s = layer->state;
    wf_param_opts w = {.dtype = layer->ctx->dtype,
                       .shape = WF_SHAPE(o->out, o->in),
                       .fan_in = o->in,
                       .fan_out = o->out,
                       .init = o->w_init};
    if (w.init.kind == WF_INIT_DEFAULT)
        w.init.kind = WF_INIT_LECUN_NORMAL;
    s->w = wf_layer_add_param(layer, "W", w);
    if (!o->no_bias)
        s->b = wf_layer_add_param(layer, "b",
                                  (wf_param_opts){.dtype = w.dtype, .shape = WF_SHAPE(o->out), .init = o->b_init});
    if (!s->w || (!o->no_bias && !s->b))
        return false;
    /* One rank on the axis has everything, and its parameter must not look sharded. */
    const bool split = s->mesh && wf_mesh_size(s->mesh, WF_AXIS_CHANNEL) > 1;
    if (s->columns) {
        wf_channel_shard_param(s->w, (wf_box){.rank = 2, .lo = {s->own.lo, 0}, .hi = {s->own.hi, o->in}}, split);
        wf_channel_shard_param(s->b, (wf_box){.rank = 1, .lo = {s->own.lo}, .hi = {s->own.hi}}, split);
    } else if (s->rows)
        wf_channel_shard_param(s->w, (wf_box){.rank = 2, .lo = {0, s->own.lo}, .hi = {o->out, s->own.hi}}, split);
    return true;
}

wf_layer *wf_token_linear(wf_ctx *ctx, wf_token_linear_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.in >= 1 && o.out >= 1, WF_ERR_ARGUMENT,
                  "token_linear: in is %lld and out is %lld, should be at least 1", (long long)o.in, (long long)o.out);
    token_state s = {.in = o.in, .out = o.out, .mesh = o.mesh};
    if (o.mesh)
        WF_TRY_NULL(cut_features(&s, &o));
    wf_layer *layer = wf_layer_new(ctx, &token_kind, sizeof s);
    if (!layer)
        return NULL;
    *(token_state *)layer->state = s;
    wf_layer_note(layer, "token_linear%s", s.columns ? " cut by outputs" : s.rows ? " cut by inputs" : "");
    if (o.mesh)
        layer->comm = wf_mesh_world(o.mesh);
    if (add_parameters(layer, &o))
        return layer;
    wf_layer_free(layer);
    return NULL;
}

/* A projection without the copy of its input, which the caller has made for several. */
wf_var *wf_project(wf_layer *linear, wf_var *x)
{
    return wf_apply_with(linear, &x, 1, apply_local, NULL);
}

/* Query, key and value are cut by outputs, that is by heads; the output joins the heads, cut by inputs, with one
 * sum. */
bool wf_projections_add(wf_layer *layer, wf_token_linear_opts each, bool out_bias, wf_projections *to)
{
    each.out = each.in;
    each.form = WF_FORM_FILTER;
    to->query = wf_module_add(layer, "query", wf_token_linear(layer->ctx, each));
    to->key = wf_module_add(layer, "key", wf_token_linear(layer->ctx, each));
    to->value = wf_module_add(layer, "value", wf_token_linear(layer->ctx, each));
    each.form = WF_FORM_CHANNEL;
    each.no_bias = !out_bias;
    to->out = wf_module_add(layer, "out", wf_token_linear(layer->ctx, each));
    return to->query && to->key && to->value && to->out;
}
