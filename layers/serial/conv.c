/* Convolution and transposed convolution in one implementation. The transposed form is the backward-data pass of the
 * convolution from its output to its input, so the two differ only in which kernel slot is forward. The parallel forms
 * share its options and parameters (conv_state.c), not this file. */
#include "layers/serial/serial_impl.h"

/* State of the node, for backward. `follows` is also whether y is saved. */
typedef struct conv_call {
    bool transposed, follows; /* an activation follows */
    wf_conv_geom geom;
    wf_epilogue epilogue;
} conv_call;

/* Forward. */

static wf_status run_conv(const wf_tape *tape, const conv_call *call, const wf_tensor *x, const wf_var *w,
                          const wf_var *b, const wf_tensor *y)
{
    wf_ctx *ctx = wf_tape_ctx(tape);
    const wf_array in = wf_tensor_array(x), weight = wf_tensor_array(w->used), out = wf_tensor_array(y);
    const wf_array bias = wf_tensor_array(b ? b->used : NULL);
    /* Geometry is that of the convolution always, so for the transposed form the layer's input stands as y. */
    const wf_conv_args args = {.geom = &call->geom,
                               .x = call->transposed ? &out : &in,
                               .y = call->transposed ? &in : &out,
                               .w = &weight,
                               .bias = b ? &bias : NULL,
                               .epilogue = &call->epilogue,
                               .w_reused = wf_tape_reuses(tape)};
    return (call->transposed ? ctx->k->conv_backward_data : ctx->k->conv_forward)(ctx, &args);
}

static wf_status backward(wf_node *node);
static const wf_op conv_op = {.name = "conv", .backward = backward};
static const wf_op conv_transpose_op = {.name = "conv_transpose", .backward = backward};

static wf_var *apply_conv(wf_layer *layer, wf_var *x, wf_tensor *dense, wf_tensor *y)
{
    const wf_conv_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    /* Parameters in the type of the arithmetic; the tape keeps the copies for the step. */
    wf_var *w = wf_compute_var(tape, s->w), *b = s->b ? wf_compute_var(tape, s->b) : NULL;
    if (!w || (s->b && !b)) {
        wf_tensor_free(y);
        return NULL;
    }
    conv_call call = {.transposed = s->transposed, .geom = s->geom};
    call.epilogue = wf_epilogue_on(&s->epilogue, tape, y);
    call.follows = wf_epilogue_acts(&call.epilogue);
    /* The activation is part of the kernel call, which spares a pass over y. */
    const wf_status status = run_conv(tape, &call, dense, w, b, y);
    if (status != WF_OK) {
        wf_error_frame(status, __FILE__, __LINE__, __func__);
        wf_tensor_free(y);
        return wf_error_null();
    }
    return wf_tape_record(tape,
                          &(wf_node_spec){.op = s->transposed ? &conv_transpose_op : &conv_op,
                                          .n_in = 3,
                                          .in = (wf_var *[]){x, w, b},
                                          .n_saved = 3,
                                          .saved = (wf_tensor *[]){dense, w->used, call.follows ? y : NULL},
                                          .state = &call,
                                          .state_bytes = sizeof call},
                          y);
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const wf_conv_state *s = layer->state;
    wf_shape shape = {0};
    wf_index_map index_map;
    WF_TRY_NULL(wf_layer_check_whole(s->name, layer, x));
    WF_TRY_NULL(wf_conv_output_shape(layer, x, wf_var_shape(x), &shape));
    WF_TRY_NULL(wf_conv_map(layer, wf_var_shape(x), shape, &index_map));
    /* Beyond a boundary other than zeros, the input is first extended by it. */
    if (index_map.boundary)
        return wf_conv_beyond(layer, x, &index_map,
                              wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, -1, -1, -1, -1}));
    wf_tensor *dense = wf_dense_value(x);
    /* Only samples may be sharded: a serial convolution needs all pixels and channels of what it has
     * (wf_layer_check_whole). */
    wf_tensor *y = dense ? wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, -1, -1, -1, -1}) : NULL;
    wf_var *var = y ? apply_conv(layer, x, dense, y) : NULL;
    wf_tensor_free(dense);
    return var;
}

/* Backward. dv is the gradient before the activation. */

static wf_status backward_x(wf_node *node, const conv_call *call, const wf_array *dv)
{
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_tensor *x = wf_node_saved(node, 0);
    const wf_array w = wf_tensor_array(wf_node_saved(node, 1));
    wf_tensor *dx = wf_tensor_new_like(x);
    WF_NEED(dx);
    const wf_array out = wf_tensor_array(dx);
    const wf_conv_args args = {
        .geom = &call->geom, .x = call->transposed ? dv : &out, .y = call->transposed ? &out : dv, .w = &w};
    /* Backward of either form is forward of the other. */
    wf_conv_fn *const slot = call->transposed ? ctx->k->conv_forward : ctx->k->conv_backward_data;
    const wf_status status = slot(ctx, &args);
    if (status != WF_OK) {
        wf_tensor_free(dx);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    return wf_node_give(node, 0, dx, false);
}

/* The gradient of the bias is computed together with that of the filter where one call of the slot can compute both. */
static wf_status backward_params(wf_node *node, const conv_call *call, const wf_array *dv)
{
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_array x = wf_tensor_array(wf_node_saved(node, 0));
    wf_array dw = {0}, db = {0};
    bool add_w = false, add_b = false;
    const bool wants_w = wf_node_wants(node, 1), wants_b = wf_node_wants(node, 2);
    if (wants_w) {
        wf_tensor *grad = wf_node_grad(node, 1, &add_w);
        WF_NEED(grad);
        dw = wf_tensor_array(grad);
    }
    if (wants_b) {
        wf_tensor *grad = wf_node_grad(node, 2, &add_b);
        WF_NEED(grad);
        db = wf_tensor_array(grad);
    }
    /* A transposed convolution exchanges x and dy, so the slot would sum the bias over x. */
    const bool together = wants_w && wants_b && !call->transposed && add_w == add_b;
    const wf_conv_args args = {.geom = &call->geom,
                               .x = call->transposed ? dv : &x,
                               .y = call->transposed ? &x : dv,
                               .w = &dw,
                               .bias = together ? &db : NULL,
                               .accumulate = add_w};
    if (wants_w)
        WF_TRY(ctx->k->conv_backward_filter(ctx, &args));
    if (wants_b && !together)
        WF_TRY(ctx->k->bias_backward(ctx, dv, &db, add_b));
    return WF_OK;
}

static wf_status backward_from(wf_node *node, const conv_call *call, const wf_array *dv)
{
    WF_TRY(backward_params(node, call, dv));
    return wf_node_wants(node, 0) ? backward_x(node, call, dv) : WF_OK;
}

static wf_status backward(wf_node *node)
{
    const conv_call *call = node->state;
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_array dy = wf_tensor_array(wf_node_dy(node));
    /* Without an activation dy is dv, and no array is needed. */
    if (!call->follows)
        return backward_from(node, call, &dy);
    const wf_array y = wf_tensor_array(wf_node_saved(node, 2));
    /* The slope of these activations follows from the sign of y, so what came before them is not kept. */
    wf_tensor *masked = wf_tensor_new_like(wf_node_saved(node, 2));
    WF_NEED(masked);
    const wf_array dv = wf_tensor_array(masked);
    wf_status status;
    WF_TRY_OUT(ctx->k->epilogue_backward(ctx, &call->epilogue, &y, &dy, &dv));
    WF_TRY_OUT(backward_from(node, call, &dv));
out:
    wf_tensor_free(masked);
    return status;
}

/* Construction. */

const wf_layer_kind wf_conv_serial = {.name = "conv", .forward = forward, .computes = true};

static wf_layer *make_conv(wf_ctx *ctx, wf_conv_opts o, bool transposed)
{
    static const char *const names[2][3] = {{"conv1d", "conv2d", "conv3d"},
                                            {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}};
    wf_conv_state s;
    WF_TRY_NULL(wf_nd_check(transposed ? "conv_transpose" : "conv", &o.nd));
    WF_TRY_NULL(wf_conv_state_make(names[transposed][o.nd - 1], o.nd, transposed, &o, &s));
    return wf_conv_layer(ctx, &wf_conv_serial, &o, &s, sizeof s);
}

wf_layer *wf_conv(wf_ctx *ctx, wf_conv_opts opts)
{
    WF_NEED_NULL(ctx);
    return make_conv(ctx, opts, false);
}

wf_layer *wf_conv_transpose(wf_ctx *ctx, wf_conv_opts opts)
{
    WF_NEED_NULL(ctx);
    return make_conv(ctx, opts, true);
}
