/* The fully connected layer: the model of a serial layer with parameters. layers/parallel/channel_linear.c is its
 * parallel form. */
#include "layers/linear.h"

#include "layers/functions.h"
#include "layers/layer_author.h"
#include "layers/serial/serial_impl.h"

typedef struct linear_state {
    wf_linear_opts opts; /* as they were given */
    int64_t in, out;
    wf_param *w, *b;
} linear_state;

/* Inputs of the node: x, W, b. */
static wf_status backward(wf_node *node)
{
    const wf_array dy = wf_tensor_array(wf_node_dy(node)), x = wf_tensor_array(wf_node_saved(node, 0));
    const wf_array w = wf_tensor_array(wf_node_saved(node, 1));
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_kernels *k = ctx->k;
    const bool reused = wf_tape_reuses(node->tape);
    /* dx = dy W, dW = dy^T x, db = the sum of dy's rows. Each is made only where it is wanted. */
    for (int i = 0; i < 3; i++) {
        if (!wf_node_wants(node, i))
            continue;
        bool add = false;
        wf_tensor *grad = wf_node_grad(node, i, &add);
        WF_NEED(grad);
        const wf_array out = wf_tensor_array(grad);
        /* W is [out, in], as in PyTorch, so forward multiplies by its transpose and backward by itself. */
        if (i == 0)
            WF_TRY(
                k->matmul(ctx, &(wf_matmul_args){.a = &dy, .b = &w, .b_reused = reused, .c = &out, .accumulate = add}));
        else if (i == 1)
            WF_TRY(k->matmul(ctx,
                             &(wf_matmul_args){.a = &dy, .a_transposed = true, .b = &x, .c = &out, .accumulate = add}));
        else
            WF_TRY(k->bias_backward(ctx, &dy, &out, add));
    }
    return WF_OK;
}

static const wf_op linear_op = {.name = "linear", .backward = backward};

static wf_status compute_linear(const wf_var *x, const wf_var *w, const wf_var *b, const wf_tensor *y)
{
    WF_NEED(y);
    const wf_array in = wf_tensor_array(x->value), weight = wf_tensor_array(w->used), out = wf_tensor_array(y);
    const wf_array bias = wf_tensor_array(b ? b->used : NULL);
    wf_ctx *ctx = y->ctx;
    const wf_matmul_args args = {.a = &in,
                                 .b = &weight,
                                 .b_transposed = true,
                                 .b_reused = wf_tape_reuses(wf_var_tape(x)),
                                 .bias = b ? &bias : NULL,
                                 .c = &out};
    return ctx->k->matmul(ctx, &args);
}

/* Parts of features go to wf_channel_linear; here a split input is refused on every rank alike. */
static wf_status check_input(const wf_layer *layer, const wf_var *x)
{
    const linear_state *s = layer->state;
    const wf_shape shape = wf_var_shape(x);
    char text[WF_SHAPE_TEXT];
    int64_t features = 1;
    for (int d = 1; d < shape.rank; d++)
        features *= shape.dim[d];
    WF_TRY(wf_layer_check_whole("linear", layer, x));
    WF_CHECK(shape.rank >= 2 && features == s->in, WF_ERR_SHAPE,
             "linear \"%s\": input %s, should be [N,%lld] or of that many elements a sample", wf_layer_path(layer),
             wf_shape_text(shape, text), (long long)s->in);
    WF_CHECK(x->value->dtype == wf_ctx_compute(layer->ctx), WF_ERR_DTYPE, "linear \"%s\": input of %s, should be %s",
             wf_layer_path(layer), wf_dtype_name(x->value->dtype), wf_dtype_name(wf_ctx_compute(layer->ctx)));
    return WF_OK;
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const linear_state *s = layer->state;
    WF_TRY_NULL(check_input(layer, x));
    /* Images go in without an explicit flatten, in logical order. */
    if (wf_var_shape(x).rank > 2)
        x = wf_flatten(x);
    wf_var *w = wf_compute_var(wf_var_tape(x), s->w), *b = s->b ? wf_compute_var(wf_var_tape(x), s->b) : NULL;
    if (!x || !w || (s->b && !b))
        return NULL;
    wf_tensor *y = wf_output("linear", x, WF_SHAPE(wf_var_shape(x).dim[0], s->out), WF_ROW_MAJOR, (int[]){0, -1});
    const wf_status status = compute_linear(x, w, b, y);
    if (status != WF_OK) {
        wf_tensor_free(y);
        return wf_error_null();
    }
    return wf_tape_record(wf_var_tape(x),
                          &(wf_node_spec){.op = &linear_op,
                                          .n_in = 3,
                                          .in = (wf_var *[]){x, w, b},
                                          .n_saved = 2,
                                          /* Saved in the type that was computed with, so that backward converts
                                           * nothing. */
                                          .saved = (wf_tensor *[]){x->value, w->used}},
                          y);
}

const wf_layer_kind wf_linear_serial = {.name = "linear", .forward = forward, .computes = true};

wf_linear_opts wf_linear_options(const wf_layer *layer)
{
    return ((const linear_state *)layer->state)->opts;
}

wf_layer *wf_linear(wf_ctx *ctx, wf_linear_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.in >= 1 && o.out >= 1, WF_ERR_ARGUMENT, "linear: in is %lld and out is %lld, should be at least 1",
                  (long long)o.in, (long long)o.out);
    wf_layer *layer = wf_layer_new(ctx, &wf_linear_serial, sizeof(linear_state));
    if (!layer)
        return NULL;
    linear_state *s = layer->state;
    *s = (linear_state){.opts = o, .in = o.in, .out = o.out};
    wf_layer_note(layer, "linear");
    if (o.w_init.kind == WF_INIT_DEFAULT)
        o.w_init.kind = WF_INIT_LECUN_NORMAL;
    s->w = wf_layer_add_param(
        layer, "W",
        (wf_param_opts){
            .dtype = ctx->dtype, .shape = WF_SHAPE(o.out, o.in), .fan_in = o.in, .fan_out = o.out, .init = o.w_init});
    if (!o.no_bias)
        s->b = wf_layer_add_param(layer, "b",
                                  (wf_param_opts){.dtype = ctx->dtype, .shape = WF_SHAPE(o.out), .init = o.b_init});
    if (s->w && (o.no_bias || s->b))
        return layer;
    wf_layer_free(layer);
    return NULL;
}
