/* Positions that are added to tokens: a table, learnt or of sines (Vaswani et al., 2017), of which a rank adds the part
 * that belongs to its tokens and features. No message is sent but the optimizer's. */
#include "layers/positions.h"

#include "core/opts.h"
#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

#include <math.h>
#include <stdlib.h>

typedef struct positions_state {
    int64_t length, features;
    wf_param *w;      /* NULL: sines */
    wf_tensor *sines; /* NULL: learnt */
} positions_state;

/* State of the node, for backward. */
typedef struct positions_call {
    wf_box own; /* of the table */
    bool whole; /* it is all of it */
} positions_call;

/* A part [T,E] of the table as an array of the shape of x [N,T,E]: a stride of 0 shows it to every sample, and sums
 * over samples where it is written. */
static wf_strided of_tokens(const wf_tensor *x, const wf_tensor *part)
{
    wf_strided all = wf_tensor_strided(x);
    const wf_strided own = wf_tensor_strided(part);
    all.data = own.data;
    all.dtype = own.dtype;
    all.stride[0] = 0;
    all.stride[1] = own.stride[0];
    all.stride[2] = own.stride[1];
    return all;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The sum of dy over this rank's samples; the optimizer sums over the ranks. */
static wf_status give_table(wf_node *node, const positions_call *call)
{
    bool add = false;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *grad = wf_node_grad(node, 1, &add);
    WF_NEED(grad);
    if (!call->whole && !add)
        WF_TRY(wf_tensor_fill(grad, 0)); /* no token is at the rest, or it is for other ranks to give */
    wf_tensor *part = wf_tensor_view(grad, call->own);
    WF_NEED(part);
    const wf_strided from = wf_tensor_strided(dy), to = of_tokens(dy, part);
    const wf_status status = dy->ctx->k->fold(
        dy->ctx,
        &(wf_fold_args){.op = WF_FOLD_LINEAR, .alpha = 1, .a = &from, .y = &to, .accumulate = add || !call->whole});
    wf_tensor_free(part);
    return status;
}

static wf_status backward_positions(wf_node *node)
{
    if (node->in[1] && wf_node_wants(node, 1))
        WF_TRY(give_table(node, node->state));
    if (!wf_node_wants(node, 0))
        return WF_OK;
    /* y = x + table, so dx is dy itself: a handle, not a copy. */
    return wf_node_give(node, 0, wf_tensor_alias(wf_node_dy(node)), true);
}

static const wf_op positions_op = {.name = "positions", .backward = backward_positions};

/* --- forward ------------------------------------------------------------------------------------------------------ */

static wf_status check_tokens(const wf_layer *layer, const wf_var *x)
{
    const positions_state *s = layer->state;
    char text[WF_SHAPE_TEXT];
    wf_dtype both;
    WF_TRY(wf_function_check("positions", x, WF_ANY_FUNCTION));
    const wf_shape whole = x->value->layout.known ? x->value->layout.global : x->value->shape;
    WF_CHECK(wf_promoted(x->value->dtype, layer->ctx->dtype, &both), WF_ERR_DTYPE,
             "positions \"%s\": input of %s, should be %s", wf_layer_path(layer), wf_dtype_name(x->value->dtype),
             wf_dtype_name(layer->ctx->dtype));
    /* Fewer tokens than the table has are allowed: the front of it is used. */
    WF_CHECK(whole.rank == 3 && whole.dim[2] == s->features && whole.dim[1] <= s->length, WF_ERR_SHAPE,
             "positions \"%s\": input %s, should be [N,T,%lld] of at most %lld tokens", wf_layer_path(layer),
             wf_shape_text(whole, text), (long long)s->features, (long long)s->length);
    return WF_OK;
}

/* y = x + the part of the table. */
static wf_status add_table(const positions_call *call, const wf_tensor *table, const wf_tensor *x, const wf_tensor *y)
{
    wf_tensor *view = wf_tensor_view(table, call->own);
    wf_tensor *part = view ? wf_tensor_dense(view, x->dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(view);
    WF_NEED(part);
    const wf_strided a = wf_tensor_strided(x), b = of_tokens(x, part), to = wf_tensor_strided(y);
    const wf_status status = x->ctx->k->fold(
        x->ctx, &(wf_fold_args){.op = WF_FOLD_LINEAR, .alpha = 1, .beta = 1, .a = &a, .b = &b, .y = &to});
    wf_tensor_free(part);
    return status;
}

/* Tokens and features of the table are dimensions 1 and 2 of x, so x's box is the table's. */
static positions_call describe_positions(const positions_state *s, const wf_tensor *x)
{
    const wf_layout *const layout = &x->layout;
    positions_call call = {.own = {.rank = 2, .hi = {x->shape.dim[1], x->shape.dim[2]}}};
    for (int d = 0; d < 2 && layout->known; d++) {
        call.own.lo[d] = layout->box.lo[d + 1];
        call.own.hi[d] = layout->box.hi[d + 1];
    }
    call.whole =
        call.own.lo[0] == 0 && call.own.hi[0] == s->length && call.own.lo[1] == 0 && call.own.hi[1] == s->features;
    return call;
}

static wf_var *forward_positions(wf_layer *layer, wf_var *x)
{
    const positions_state *s = layer->state;
    WF_TRY_NULL(check_tokens(layer, x));
    /* All ranks have the whole parameter, and each the gradient of its part of x. */
    wf_param_sum_parts(s->w, &x->value->layout, ~0u);
    const positions_call call = describe_positions(s, x->value);
    wf_var *w = s->w ? wf_param_var(x->tape, s->w) : NULL;
    if (s->w && !w)
        return NULL;
    wf_tensor *v = wf_tensor_dense(x->value, x->value->dtype, WF_ROW_MAJOR);
    wf_tensor *y = wf_output("positions", x, x->value->shape, WF_ROW_MAJOR, (int[]){0, 1, 2});
    const wf_status status = v && y ? add_table(&call, w ? w->value : s->sines, v, y) : wf_error_code();
    wf_tensor_free(v);
    return wf_function_finish(
        status, x->tape,
        &(wf_node_spec){
            .op = &positions_op, .n_in = 2, .in = (wf_var *[]){x, w}, .state = &call, .state_bytes = sizeof call},
        y);
}

/* --- construction ------------------------------------------------------------------------------------------------- */

static void free_positions(wf_layer *layer)
{
    wf_tensor_free(((positions_state *)layer->state)->sines);
}

static const wf_layer_kind positions_kind = {.name = "positions", .forward = forward_positions, .free = free_positions};

/* In f64: angles of late tokens are large, and their sines would lose digits in f32. */
static wf_tensor *make_sines(wf_ctx *ctx, const wf_positions_opts *o, double base)
{
    const size_t count = (size_t)(o->length * o->features);
    double *host = wf_malloc(ctx, count * sizeof *host);
    if (!host)
        return wf_error_null();
    for (int64_t t = 0; t < o->length; t++)
        for (int64_t e = 0; e < o->features; e++) {
            /* Two neighbouring features share a frequency, as sine and cosine. */
            const double angle = (double)t / pow(base, (double)(e - e % 2) / (double)o->features);
            host[t * o->features + e] = e % 2 ? cos(angle) : sin(angle);
        }
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(o->length, o->features), host);
    wf_tensor *sines = wide ? wf_tensor_copy(wide, ctx->dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(wide);
    free(host);
    return sines;
}

static wf_status check_positions(const wf_positions_opts *o, double base)
{
    WF_CHECK(o->length >= 1 && o->features >= 1, WF_ERR_ARGUMENT,
             "positions: length is %lld and features is %lld, should be at least 1", (long long)o->length,
             (long long)o->features);
    WF_CHECK(o->kind == WF_POSITIONS_LEARNED || o->kind == WF_POSITIONS_SINE, WF_ERR_ARGUMENT,
             "positions: kind is %d, should be learned or sine", (int)o->kind);
    WF_CHECK(o->kind == WF_POSITIONS_LEARNED || o->features % 2 == 0, WF_ERR_ARGUMENT,
             "positions: features is %lld, should be even for sines", (long long)o->features);
    WF_CHECK(base > 0, WF_ERR_ARGUMENT, "positions: base is %g, should be above 0", base);
    return WF_OK;
}

wf_layer *wf_positions(wf_ctx *ctx, wf_positions_opts o)
{
    WF_NEED_NULL(ctx);
    const double base = wf_opt(o.base, 10000);
    WF_TRY_NULL(check_positions(&o, base));
    wf_layer *layer = wf_layer_new(ctx, &positions_kind, sizeof(positions_state));
    if (!layer)
        return NULL;
    positions_state *s = layer->state;
    *s = (positions_state){.length = o.length, .features = o.features};
    if (o.kind == WF_POSITIONS_SINE) {
        wf_layer_note(layer, "positions of %lld sines of %lld, base %g", (long long)o.length, (long long)o.features,
                      base);
        s->sines = make_sines(ctx, &o, base);
    } else {
        if (o.w_init.kind == WF_INIT_DEFAULT)
            o.w_init = (wf_init){WF_INIT_TRUNC_NORMAL, 0, 0.02};
        s->w = wf_layer_add_param(
            layer, "W",
            (wf_param_opts){.dtype = ctx->dtype, .shape = WF_SHAPE(o.length, o.features), .init = o.w_init});
    }
    if (s->w || s->sines)
        return layer;
    wf_layer_free(layer);
    return NULL;
}
