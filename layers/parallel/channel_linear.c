/* A linear layer whose weights are sharded over the ranks of the channel axis: by columns (filter form), by rows
 * (channel form) or both. It moves channels as layers/parallel/mesh_conv.c does, and has no activation. */
#include "comm/comm_author.h"
#include "layers/channel.h"
#include "layers/functions.h"
#include "layers/parallel/parallel_impl.h"

typedef struct linear_state {
    const wf_mesh *mesh;
    wf_channel_split split;
    wf_param *w, *b;
} linear_state;

/* State of the node, for backward. x_bounds is how x was sharded, which dx must be as well. */
typedef struct linear_call {
    const linear_state *state;
    const int64_t *x_bounds;
} linear_call;

static const char name[] = "channel_linear";

/* Backward. Inputs of the node: x, W, b. Saved: this rank's part of x, W. The order is: dW and db from the gathered dy,
 * then dx, whose exchange may wait for other ranks. */

static wf_status backward_x(wf_node *node, const wf_array *dy)
{
    const linear_call *call = node->state;
    const wf_array w = wf_tensor_array(wf_node_saved(node, 1));
    wf_tensor *dx = wf_tensor_new_like(wf_node_saved(node, 0));
    WF_NEED(dx);
    const wf_array out = wf_tensor_array(dx);
    const wf_status status = dx->ctx->k->matmul(
        dx->ctx, &(wf_matmul_args){.a = dy, .b = &w, .b_reused = wf_tape_reuses(node->tape), .c = &out});
    if (status != WF_OK) {
        wf_tensor_free(dx);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    /* Parts of inputs may overlap; scattering adds what several ranks have of one input. */
    return wf_node_give(node, 0, wf_channel_scatter(&call->state->split.in, call->x_bounds, dx), false);
}

/* db is the sum of dy where the bias was added: on this rank's part of the output, or on the output as it is held. */
static wf_status backward_part(wf_node *node, const wf_tensor *part)
{
    const linear_call *call = node->state;
    const wf_kernels *k = wf_tape_ctx(node->tape)->k;
    const wf_array dy = wf_tensor_array(part), x = wf_tensor_array(wf_node_saved(node, 0));
    const wf_array held = wf_tensor_array(call->state->split.out.partition ? part : wf_node_dy(node));
    for (int i = 1; i < 3; i++) {
        if (!wf_node_wants(node, i))
            continue;
        bool add = false;
        wf_tensor *grad = wf_node_grad(node, i, &add);
        WF_NEED(grad);
        const wf_array out = wf_tensor_array(grad);
        if (i == 1)
            WF_TRY(k->matmul(grad->ctx,
                             &(wf_matmul_args){.a = &dy, .a_transposed = true, .b = &x, .c = &out, .accumulate = add}));
        else
            WF_TRY(k->bias_backward(grad->ctx, &held, &out, add));
    }
    return wf_node_wants(node, 0) ? backward_x(node, &dy) : WF_OK;
}

static wf_status backward(wf_node *node)
{
    const linear_call *call = node->state;
    const wf_channel_split *split = &call->state->split;
    /* What forward scattered is gathered, and the other way round: the same exchanges run backward. */
    wf_tensor *part = wf_channel_gather(&split->out, split->bounds, wf_node_dy(node));
    WF_NEED(part);
    const wf_status status = backward_part(node, part);
    wf_tensor_free(part);
    return status;
}

static const wf_op linear_op = {.name = "channel_linear", .backward = backward};

/* Forward. */

static wf_tensor *compute_output(const linear_state *s, const wf_var *x, const wf_tensor *in, const wf_var *w,
                                 const wf_var *b)
{
    const wf_range own = wf_channel_outputs(&s->split);
    const bool partition = s->split.out.partition;
    const wf_array from = wf_tensor_array(in), weight = wf_tensor_array(w->used);
    const wf_array bias = wf_tensor_array(b ? b->used : NULL);
    wf_tensor *y = wf_tensor_new_step(in->ctx, in->dtype, WF_SHAPE(in->shape.dim[0], own.hi - own.lo), WF_ROW_MAJOR);
    wf_status status;
    WF_TRY_OUT(wf_check(y));
    const wf_array to = wf_tensor_array(y);
    const wf_matmul_args args = {.a = &from,
                                 .b = &weight,
                                 .b_transposed = true,
                                 .b_reused = wf_tape_reuses(wf_var_tape(x)),
                                 .bias = partition && b ? &bias : NULL,
                                 .c = &to};
    WF_TRY_OUT(in->ctx->k->matmul(in->ctx, &args));
    y = wf_channel_scatter(&s->split.out, s->split.bounds, y);
    WF_TRY_OUT(wf_check(y));
    y->layout = wf_channel_layout(s->mesh, x, y->shape, s->split.out.channels, s->split.bounds);
    /* If parts are summed, the bias is added after the sum, once, and not once per rank. */
    if (!partition && b)
        WF_TRY_OUT(wf_channel_bias(y, b->used));
    return y;
out:
    wf_tensor_free(y);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

static wf_var *apply_linear(wf_layer *layer, wf_var *x, const int64_t *x_bounds, const wf_tensor *in)
{
    const linear_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    wf_var *w = wf_compute_var(tape, s->w), *b = s->b ? wf_compute_var(tape, s->b) : NULL;
    if (!w || (s->b && !b))
        return NULL;
    wf_tensor *y = compute_output(s, x, in, w, b);
    /* x_bounds belongs to the mesh, which lives longer than the node. */
    const linear_call call = {s, x_bounds};
    if (!y)
        return NULL;
    return wf_tape_record(tape,
                          &(wf_node_spec){.op = &linear_op,
                                          .n_in = 3,
                                          .in = (wf_var *[]){x, w, b},
                                          .n_saved = 2,
                                          .saved = (wf_tensor *[]){(wf_tensor *)in, w->used},
                                          .state = &call,
                                          .state_bytes = sizeof call},
                          y);
}

static wf_status check_channel_input(const wf_layer *layer, const wf_var *x, const int64_t **x_bounds)
{
    const linear_state *s = layer->state;
    const wf_shape shape = wf_var_shape(x);
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_channel_check_input(layer, name, s->mesh, x, x_bounds));
    const int64_t features = *x_bounds ? (*x_bounds)[wf_mesh_size(s->mesh, WF_AXIS_CHANNEL)] : shape.dim[1];
    WF_CHECK(shape.rank == 2 && features == s->split.in.channels, WF_ERR_SHAPE,
             "channel_linear \"%s\": input %s of %lld features in all, should be [N,%lld] or of that many elements a "
             "sample",
             wf_layer_path(layer), wf_shape_text(shape, text), (long long)features, (long long)s->split.in.channels);
    WF_CHECK(x->value->dtype == wf_ctx_compute(layer->ctx), WF_ERR_DTYPE,
             "channel_linear \"%s\": input of %s, should be %s", wf_layer_path(layer), wf_dtype_name(x->value->dtype),
             wf_dtype_name(wf_ctx_compute(layer->ctx)));
    return WF_OK;
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const linear_state *s = layer->state;
    const int64_t *x_bounds = NULL;
    /* As in the serial layer: images go in without an explicit flatten. */
    if (wf_var_shape(x).rank > 2)
        x = wf_flatten(x);
    if (!x)
        return NULL;
    WF_TRY_NULL(check_channel_input(layer, x, &x_bounds));
    /* Freed after the node has been recorded, which holds its own handle. */
    wf_tensor *in = wf_channel_gather(&s->split.in, x_bounds, x->value);
    wf_var *y = in ? apply_linear(layer, x, x_bounds, in) : NULL;
    wf_tensor_free(in);
    return y;
}

/* Construction. */

static void free_state(wf_layer *layer)
{
    linear_state *s = layer->state;
    wf_channel_split_free(&s->split);
}

static const wf_layer_kind linear_kind = {
    .name = "channel_linear", .forward = forward, .free = free_state, .computes = true};

static wf_status add_params(wf_layer *layer, const wf_linear_opts *o)
{
    linear_state *s = layer->state;
    const wf_range in = wf_channel_inputs(&s->split), out = wf_channel_outputs(&s->split);
    const wf_box box = {.rank = 2, .lo = {out.lo, in.lo}, .hi = {out.hi, in.hi}};
    /* Numbers of the whole layer: a rank's part must be drawn as the serial layer draws it. */
    wf_param_opts w = {.dtype = layer->ctx->dtype,
                       .shape = WF_SHAPE(o->out, o->in),
                       .fan_in = o->in,
                       .fan_out = o->out,
                       .init = o->w_init};
    if (w.init.kind == WF_INIT_DEFAULT)
        w.init.kind = WF_INIT_LECUN_NORMAL;
    s->w = wf_layer_add_param(layer, "W", w);
    WF_NEED(s->w);
    wf_channel_shard_param(s->w, box, wf_channel_is_split(&s->split));
    if (o->no_bias)
        return WF_OK;
    s->b =
        wf_layer_add_param(layer, "b", (wf_param_opts){.dtype = w.dtype, .shape = WF_SHAPE(o->out), .init = o->b_init});
    WF_NEED(s->b);
    wf_channel_shard_bias(s->b, &s->split);
    return WF_OK;
}

wf_layer *wf_channel_linear(const wf_mesh *mesh, wf_linear_opts o)
{
    wf_channel_split split;
    WF_NEED_NULL(mesh);
    WF_CHECK_NULL(o.in >= 1 && o.out >= 1, WF_ERR_ARGUMENT,
                  "channel_linear: in is %lld and out is %lld, should be at least 1", (long long)o.in,
                  (long long)o.out);
    const wf_channel_opts opts = {
        .in = o.in, .out = o.out, .groups = 1, .growth = 1, .replicate = o.replicate, .form = o.form};
    WF_TRY_NULL(wf_channel_split_init(&split, name, mesh, &opts));
    wf_layer *layer = wf_layer_new(wf_comm_ctx(wf_mesh_world(mesh)), &linear_kind, sizeof(linear_state));
    /* The split owns memory until the layer has it. */
    if (!layer) {
        wf_channel_split_free(&split);
        return NULL;
    }
    *(linear_state *)layer->state = (linear_state){.mesh = mesh, .split = split};
    layer->comm = wf_mesh_world(mesh);
    wf_layer_note(layer, "channel_linear of form %d, replicate %d", (int)o.form, o.replicate);
    const wf_status status = add_params(layer, &o);
    if (status == WF_OK)
        return layer;
    wf_layer_free(layer);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}
