/* Parametric ReLU. Slopes are read with steps of 0 along all dimensions but the channels; their gradient is a sum over
 * those dimensions, made in the same pass. The layer takes parts of any layout, so it needs no parallel form. */
#include "layers/prelu.h"

#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

typedef struct prelu_state {
    int64_t channels; /* 0: one slope for all */
    wf_param *slope;
} prelu_state;

/* The slopes of a rank among all. */
typedef struct prelu_part {
    int64_t channels, lo, hi;
} prelu_part;

/* Slopes, or their gradient, as an array of x's shape: a stride of 0 shows one slope to all elements that share it.
 * `lo` is the first of this rank's. */
static wf_strided slope_view(const prelu_part *part, const wf_tensor *slopes, int64_t lo, wf_shape shape)
{
    wf_strided view = {.data = (char *)slopes->data + lo * (int64_t)wf_dtype_size(slopes->dtype),
                       .dtype = slopes->dtype,
                       .rank = shape.rank};
    for (int d = 0; d < shape.rank; d++) {
        view.dim[d] = shape.dim[d];
        view.stride[d] = part->channels > 0 && d == 1 ? 1 : 0;
    }
    return view;
}

static wf_status prelu_run(const prelu_part *part, const wf_tensor *x, const wf_tensor *slopes, const wf_tensor *y)
{
    WF_NEED(slopes);
    WF_NEED(y);
    const wf_strided from = wf_tensor_strided(x), to = wf_tensor_strided(y);
    const wf_strided slope = slope_view(part, slopes, part->lo, x->shape);
    return x->ctx->k->fold(x->ctx, &(wf_fold_args){.op = WF_FOLD_PRELU, .a = &from, .b = &slope, .y = &to});
}

static wf_status give_x(wf_node *node)
{
    const prelu_part *part = node->state;
    const wf_tensor *x = wf_node_saved(node, 0), *slopes = wf_node_saved(node, 1);
    bool add = false;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    const wf_strided dy = wf_tensor_strided(wf_node_dy(node)), at = wf_tensor_strided(x), to = wf_tensor_strided(dx);
    const wf_strided slope = slope_view(part, slopes, part->lo, x->shape);
    return x->ctx->k->fold(
        x->ctx, &(wf_fold_args){.op = WF_FOLD_PRELU_X, .a = &dy, .b = &at, .c = &slope, .y = &to, .accumulate = add});
}

/* The gradient of the slopes, a sum of dy x over negative x; the optimizer sums over the ranks. */
static wf_status give_slopes(wf_node *node)
{
    const prelu_part *part = node->state;
    const wf_tensor *x = wf_node_saved(node, 0);
    bool add = false;
    wf_tensor *grad = wf_node_grad(node, 1, &add);
    WF_NEED(grad);
    /* Only the first gradient of a step finds undefined memory. */
    if (!add && part->hi - part->lo < wf_tensor_count(grad))
        /* The rest is for other ranks to give. */
        WF_TRY(wf_tensor_fill(grad, 0));
    const wf_strided dy = wf_tensor_strided(wf_node_dy(node)), at = wf_tensor_strided(x);
    const wf_strided to = slope_view(part, grad, part->lo, x->shape);
    return x->ctx->k->fold(x->ctx,
                           &(wf_fold_args){.op = WF_FOLD_PRELU_SLOPE, .a = &dy, .b = &at, .y = &to, .accumulate = add});
}

static wf_status backward(wf_node *node)
{
    if (wf_node_wants(node, 0))
        WF_TRY(give_x(node));
    return wf_node_wants(node, 1) ? give_slopes(node) : WF_OK;
}

static const wf_op prelu_op = {.name = "prelu", .backward = backward};

static wf_status check_prelu_input(const wf_layer *layer, const wf_var *x)
{
    const prelu_state *s = layer->state;
    const wf_tensor *v = x->value;
    char text[WF_SHAPE_TEXT];
    wf_dtype both;
    WF_TRY(wf_function_check("prelu", x, WF_ANY_FUNCTION));
    /* Slopes belong to channels of the whole tensor, whatever part is here. */
    const wf_shape whole = v->layout.known ? v->layout.global : v->shape;
    WF_CHECK(s->channels == 0 || (whole.rank >= 2 && whole.dim[1] == s->channels), WF_ERR_SHAPE,
             "prelu \"%s\": input %s, should be [N,%lld,...]", wf_layer_path(layer), wf_shape_text(whole, text),
             (long long)s->channels);
    WF_CHECK(wf_promoted(v->dtype, layer->ctx->dtype, &both), WF_ERR_DTYPE, "prelu \"%s\": input of %s, should be %s",
             wf_layer_path(layer), wf_dtype_name(v->dtype), wf_dtype_name(layer->ctx->dtype));
    return WF_OK;
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const prelu_state *s = layer->state;
    WF_TRY_NULL(check_prelu_input(layer, x));
    const wf_tensor *v = x->value;
    const wf_layout *layout = &v->layout;
    prelu_part part = {.channels = s->channels, .hi = 1};
    if (s->channels > 0) {
        part.lo = layout->known ? layout->box.lo[1] : 0;
        part.hi = part.lo + v->shape.dim[1];
    }
    wf_var *slope = wf_param_var(wf_var_tape(x), s->slope);
    if (!slope)
        return NULL;
    /* Every axis of the mesh that splits x splits the sum of the slopes' gradient. */
    wf_param_sum_parts(s->slope, layout, ~0u);
    wf_tensor *y = wf_tensor_new_like(v), *slopes = wf_tensor_dense(slope->value, v->dtype, WF_ROW_MAJOR);
    const wf_status status = prelu_run(&part, v, slopes, y);
    wf_var *out = wf_function_finish(status, wf_var_tape(x),
                                     &(wf_node_spec){.op = &prelu_op,
                                                     .n_in = 2,
                                                     .in = (wf_var *[]){x, slope},
                                                     .n_saved = 2,
                                                     .saved = (wf_tensor *[]){x->value, slopes},
                                                     .state = &part,
                                                     .state_bytes = sizeof part},
                                     y);
    wf_tensor_free(slopes);
    return out;
}

static const wf_layer_kind prelu_kind = {.name = "prelu", .forward = forward};

wf_layer *wf_prelu(wf_ctx *ctx, wf_prelu_opts opts)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(opts.channels >= 0, WF_ERR_ARGUMENT, "prelu: channels is %lld, should be 0 or more",
                  (long long)opts.channels);
    wf_layer *layer = wf_layer_new(ctx, &prelu_kind, sizeof(prelu_state));
    if (!layer)
        return NULL;
    prelu_state *s = layer->state;
    s->channels = opts.channels;
    wf_layer_note(layer, "prelu of %lld slopes", (long long)(opts.channels > 0 ? opts.channels : 1));
    s->slope = wf_layer_add_param(layer, "W",
                                  (wf_param_opts){.dtype = ctx->dtype,
                                                  .shape = WF_SHAPE(opts.channels > 0 ? opts.channels : 1),
                                                  .init = {WF_INIT_CONSTANT, wf_opt(opts.slope, 0.25), 0}});
    if (s->slope)
        return layer;
    wf_layer_free(layer);
    return NULL;
}
