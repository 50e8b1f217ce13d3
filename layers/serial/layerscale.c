/* A factor of each channel (Touvron et al., 2021), and stochastic depth (Huang et al., 2016) with it. A rank that has a
 * part of the channels uses its part of the factors; no message is sent but the optimizer's. */
#include "layers/layerscale.h"

#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

typedef struct scale_state {
    int64_t length;
    bool last; /* of the last dimension; else of dimension 1 */
    wf_param *gamma;
} scale_state;

/* State of the node, for backward. */
typedef struct scale_call {
    int dim;     /* of x */
    bool sliced; /* this rank has the factors `own` alone */
    wf_box own;
} scale_call;

enum { SAVED_X, SAVED_GAMMA };

/* An array of one number a channel, as one of the shape of x: strides of 0 repeat it. Written to, it is a sum. */
static wf_strided of_channels(const wf_tensor *x, int dim, const wf_tensor *factors)
{
    wf_strided all = wf_tensor_strided(x);
    const wf_strided own = wf_tensor_strided(factors);
    all.data = own.data;
    all.dtype = own.dtype;
    for (int d = 0; d < all.rank; d++)
        all.stride[d] = d == dim ? own.stride[0] : 0;
    return all;
}

/* y (+)= x gamma; of dy it is the gradient of x. */
static wf_status scale_channels(int dim, const wf_tensor *x, const wf_tensor *gamma, const wf_tensor *y,
                                bool accumulate)
{
    WF_NEED(x);
    WF_NEED(y);
    const wf_strided from = wf_tensor_strided(x), to = wf_tensor_strided(y), factors = of_channels(x, dim, gamma);
    return x->ctx->k->fold(
        x->ctx,
        &(wf_fold_args){.op = WF_FOLD_MUL, .alpha = 1, .a = &from, .b = &factors, .y = &to, .accumulate = accumulate});
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The sum of dy x over this rank's elements; the optimizer sums over the ranks. */
static wf_status give_gamma(wf_node *node, const scale_call *call)
{
    bool add = false;
    const wf_tensor *x = wf_node_saved(node, SAVED_X), *dy = wf_node_dy(node);
    wf_tensor *grad = wf_node_grad(node, 1, &add);
    WF_NEED(grad);
    if (call->sliced && !add)
        WF_TRY(wf_tensor_fill(grad, 0)); /* the rest is for other ranks to give */
    wf_tensor *own = call->sliced ? wf_tensor_view(grad, call->own) : wf_tensor_alias(grad);
    WF_NEED(own);
    const wf_strided a = wf_tensor_strided(dy), b = wf_tensor_strided(x), y = of_channels(x, call->dim, own);
    /* Sliced gradients were filled before, so this adds in any case. */
    const wf_status status = x->ctx->k->fold(
        x->ctx,
        &(wf_fold_args){.op = WF_FOLD_MUL, .alpha = 1, .a = &a, .b = &b, .y = &y, .accumulate = add || call->sliced});
    wf_tensor_free(own);
    return status;
}

static wf_status backward_scale(wf_node *node)
{
    const scale_call *call = node->state;
    bool add = false;
    if (wf_node_wants(node, 1))
        WF_TRY(give_gamma(node, call));
    if (!wf_node_wants(node, 0))
        return WF_OK;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    return scale_channels(call->dim, wf_node_dy(node), wf_node_saved(node, SAVED_GAMMA), dx, add);
}

static const wf_op layerscale_op = {.name = "layerscale", .backward = backward_scale};

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Checked against the whole shape, so all ranks agree. */
static wf_status check_scale(const wf_layer *layer, const wf_var *x)
{
    const scale_state *s = layer->state;
    WF_TRY(wf_function_check("layerscale", x, WF_ANY_FUNCTION));
    const wf_shape whole = x->value->layout.known ? x->value->layout.global : x->value->shape;
    char text[WF_SHAPE_TEXT];
    wf_dtype both;
    WF_CHECK(wf_promoted(x->value->dtype, layer->ctx->dtype, &both), WF_ERR_DTYPE,
             "layerscale \"%s\": input of %s, should be %s", wf_layer_path(layer), wf_dtype_name(x->value->dtype),
             wf_dtype_name(layer->ctx->dtype));
    WF_CHECK(whole.rank >= (s->last ? 1 : 2) && whole.dim[s->last ? whole.rank - 1 : 1] == s->length, WF_ERR_SHAPE,
             "layerscale \"%s\": input %s, should be %s%lld%s", wf_layer_path(layer), wf_shape_text(whole, text),
             s->last ? "[...," : "[N,", (long long)s->length, s->last ? "]" : "] or with more dimensions behind");
    return WF_OK;
}

/* The factors of this rank's channels, in x's type. */
static wf_tensor *own_factors(const scale_call *call, const wf_tensor *gamma, wf_dtype dtype)
{
    wf_tensor *part = call->sliced ? wf_tensor_view(gamma, call->own) : wf_tensor_alias(gamma);
    wf_tensor *dense = part ? wf_tensor_dense(part, dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(part);
    return dense;
}

static wf_var *record_scale(wf_var *x, wf_var *gamma, const scale_call *call)
{
    wf_tensor *v = wf_function_value(x), *factors = own_factors(call, gamma->value, x->value->dtype);
    wf_tensor *y = factors ? wf_tensor_new_like(x->value) : NULL;
    const wf_status status = y ? scale_channels(call->dim, v, factors, y, false) : wf_error_code();
    wf_var *out = wf_function_finish(status, x->tape,
                                     &(wf_node_spec){.op = &layerscale_op,
                                                     .n_in = 2,
                                                     .in = (wf_var *[]){x, gamma},
                                                     .n_saved = 2,
                                                     .saved = (wf_tensor *[]){v, factors},
                                                     .state = call,
                                                     .state_bytes = sizeof *call},
                                     y);
    wf_tensor_free(factors);
    wf_tensor_free(v);
    return out;
}

static wf_var *forward_scale(wf_layer *layer, wf_var *x)
{
    const scale_state *s = layer->state;
    WF_TRY_NULL(check_scale(layer, x));
    const wf_layout *const layout = &x->value->layout;
    scale_call call = {.dim = s->last ? x->value->shape.rank - 1 : 1};
    call.sliced = layout->known && wf_layout_is_sharded(layout, call.dim);
    call.own = (wf_box){.rank = 1, .hi = {s->length}};
    if (call.sliced) {
        call.own.lo[0] = layout->box.lo[call.dim];
        call.own.hi[0] = layout->box.hi[call.dim];
    }
    /* All ranks have the whole parameter, and each the gradient of its part of x. */
    wf_param_sum_parts(s->gamma, layout, ~0u);
    wf_var *gamma = wf_param_var(x->tape, s->gamma);
    return gamma ? record_scale(x, gamma, &call) : NULL;
}

static const wf_layer_kind layerscale_kind = {.name = "layerscale", .forward = forward_scale};

wf_layer *wf_layerscale(wf_ctx *ctx, wf_layerscale_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL((o.channels >= 1 && o.features == 0) || (o.features >= 1 && o.channels == 0), WF_ERR_ARGUMENT,
                  "layerscale: channels is %lld and features is %lld; give one of the two, at least 1",
                  (long long)o.channels, (long long)o.features);
    wf_layer *layer = wf_layer_new(ctx, &layerscale_kind, sizeof(scale_state));
    if (!layer)
        return NULL;
    scale_state *s = layer->state;
    *s = (scale_state){.length = o.channels + o.features, .last = o.features > 0};
    wf_layer_note(layer, "layerscale of the %s", s->last ? "last dimension" : "channels");
    /* The paper's small first factor: a deep model begins as nearly the identity. */
    if (o.gamma_init.kind == WF_INIT_DEFAULT)
        o.gamma_init = (wf_init){WF_INIT_CONSTANT, 1e-6, 0};
    s->gamma = wf_layer_add_param(
        layer, "gamma", (wf_param_opts){.dtype = ctx->dtype, .shape = WF_SHAPE(s->length), .init = o.gamma_init});
    if (s->gamma)
        return layer;
    wf_layer_free(layer);
    return NULL;
}

/* --- stochastic depth --------------------------------------------------------------------------------------------- */

typedef struct depth_state {
    double rate;
} depth_state;

static wf_var *forward_depth(wf_layer *layer, wf_var *x)
{
    return wf_drop_path(x, ((const depth_state *)layer->state)->rate);
}

static const wf_layer_kind depth_kind = {.name = "stochastic_depth", .forward = forward_depth};

wf_layer *wf_stochastic_depth(wf_ctx *ctx, double rate)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(rate >= 0 && rate < 1, WF_ERR_ARGUMENT, "stochastic_depth: rate %g is not in [0, 1)", rate);
    wf_layer *layer = wf_layer_new(ctx, &depth_kind, sizeof(depth_state));
    if (!layer)
        return NULL;
    ((depth_state *)layer->state)->rate = rate;
    wf_layer_note(layer, "stochastic_depth of rate %g", rate);
    return layer;
}
