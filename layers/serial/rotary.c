/* Rotary positions (Su et al. 2021): each pair of features of a head is turned by an angle of its token, so products of
 * queries and keys depend on the distance of their tokens. Backward turns back. Features c and c + D/2 make a pair. */
#include "core/opts.h"
#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"
#include "layers/transformer.h"

#include <math.h>
#include <stdlib.h>

typedef struct rotary_state {
    int64_t length, heads, half;
    wf_tensor *turns; /* [2,length,half]: cosines, sines */
} rotary_state;

/* State of the node. */
typedef struct rotary_call {
    const rotary_state *state;
    int64_t first; /* token of this rank */
} rotary_call;

/* Feature c, or c + D/2, of each pair: [N,T,heads,D/2]. */
static wf_strided feature_side(const rotary_call *call, const wf_tensor *x, int side)
{
    const int64_t half = call->state->half, all = x->shape.dim[2], t = x->shape.dim[1];
    wf_strided a = {.data = x->data, .dtype = x->dtype, .rank = 4};
    const int64_t dim[4] = {x->shape.dim[0], t, all / (2 * half), half}, stride[4] = {t * all, all, 2 * half, 1};
    for (int d = 0; d < 4; d++) {
        a.dim[d] = dim[d];
        a.stride[d] = stride[d];
    }
    /* Empty tensors may have no memory, and NULL takes no offset. */
    if (a.data)
        a.data = (char *)a.data + side * half * (int64_t)wf_dtype_size(x->dtype);
    return a;
}

/* Cosines or sines as an array of that shape. */
static wf_strided turns_of(const rotary_call *call, const wf_tensor *turns, const wf_strided *like, int sines)
{
    const rotary_state *const s = call->state;
    wf_strided a = *like;
    /* All samples and heads share the angles: strides of 0. On a rank with part of the tokens they begin at its first
     * one. */
    a.stride[0] = a.stride[2] = 0;
    a.stride[1] = s->half;
    a.dtype = turns->dtype;
    a.data = (char *)turns->data + (sines * s->length + call->first) * s->half * (int64_t)wf_dtype_size(turns->dtype);
    return a;
}

/* y = x turned; `way` -1: back. */
static wf_status turn_features(const rotary_call *call, double way, const wf_tensor *turns, const wf_tensor *x,
                               const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(y);
    WF_NEED(turns);
    for (int side = 0; side < 2; side++) {
        const wf_strided own = feature_side(call, x, side), other = feature_side(call, x, 1 - side),
                         to = feature_side(call, y, side);
        const wf_strided cosines = turns_of(call, turns, &own, 0), sines = turns_of(call, turns, &own, 1);
        wf_fold_args args = {.op = WF_FOLD_MUL, .alpha = 1, .a = &own, .b = &cosines, .y = &to};
        WF_TRY(y->ctx->k->fold(y->ctx, &args));
        /* The turn is (a cos - b sin, b cos + a sin); backward has the other sign of the sines. */
        args.alpha = side == 0 ? -way : way;
        args.a = &other;
        args.b = &sines;
        args.accumulate = true;
        WF_TRY(y->ctx->k->fold(y->ctx, &args));
    }
    return WF_OK;
}

static wf_status backward_rotary(wf_node *node)
{
    wf_tensor *dy = wf_tensor_dense(wf_node_dy(node), wf_node_dy(node)->dtype, WF_ROW_MAJOR);
    wf_tensor *dx = dy ? wf_tensor_new_step(dy->ctx, dy->dtype, dy->shape, WF_ROW_MAJOR) : NULL;
    const wf_status status = turn_features(node->state, -1, wf_node_saved(node, 0), dy, dx);
    wf_tensor_free(dy);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op rotary_op = {.name = "rotary", .backward = backward_rotary};

static wf_status check_rotary(const wf_layer *layer, const wf_var *x)
{
    const rotary_state *s = layer->state;
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_function_check("rotary", x, WF_ANY_FUNCTION));
    const wf_layout *const layout = &x->value->layout;
    const wf_shape whole = layout->known ? layout->global : x->value->shape;
    WF_CHECK(whole.rank == 3 && whole.dim[2] == 2 * s->half * s->heads && whole.dim[1] <= s->length, WF_ERR_SHAPE,
             "rotary \"%s\": input %s, should be [N,T,%lld] of at most %lld tokens", wf_layer_path(layer),
             wf_shape_text(whole, text), (long long)(2 * s->half * s->heads), (long long)s->length);
    WF_CHECK(!layout->known || (layout->box.lo[2] % (2 * s->half) == 0 && layout->box.hi[2] % (2 * s->half) == 0),
             WF_ERR_SHAPE, "rotary \"%s\": features [%lld,%lld) are no whole heads of %lld", wf_layer_path(layer),
             (long long)layout->box.lo[2], (long long)layout->box.hi[2], (long long)(2 * s->half));
    return WF_OK;
}

static wf_var *forward_rotary(wf_layer *layer, wf_var *x)
{
    const rotary_state *s = layer->state;
    WF_TRY_NULL(check_rotary(layer, x));
    /* A rank with part of the tokens turns them by their place in the whole sequence. */
    const rotary_call call = {s, x->value->layout.known ? x->value->layout.box.lo[1] : 0};
    wf_tensor *v = wf_tensor_dense(x->value, x->value->dtype, WF_ROW_MAJOR);
    /* Tables of angles in the input's type; of the same type this is no copy. */
    wf_tensor *turns = wf_tensor_dense(s->turns, x->value->dtype, WF_ROW_MAJOR);
    wf_tensor *y = wf_output("rotary", x, x->value->shape, WF_ROW_MAJOR, (int[]){0, 1, 2});
    const wf_status status = turn_features(&call, 1, turns, v, y);
    wf_var *out = wf_function_finish(status, x->tape,
                                     &(wf_node_spec){.op = &rotary_op,
                                                     .n_in = 1,
                                                     .in = &x,
                                                     .n_saved = 1,
                                                     .saved = &turns,
                                                     .state = &call,
                                                     .state_bytes = sizeof call},
                                     y);
    wf_tensor_free(turns);
    wf_tensor_free(v);
    return out;
}

static void free_rotary(wf_layer *layer)
{
    wf_tensor_free(((rotary_state *)layer->state)->turns);
}

static const wf_layer_kind rotary_kind = {.name = "rotary", .forward = forward_rotary, .free = free_rotary};

static wf_tensor *make_turns(wf_ctx *ctx, const rotary_state *s, double base)
{
    /* In double, since angles of late tokens are large and float would lose their fraction. */
    double *host = wf_malloc(ctx, (size_t)(2 * s->length * s->half) * sizeof *host);
    if (!host)
        return wf_error_null();
    for (int64_t t = 0; t < s->length; t++)
        for (int64_t c = 0; c < s->half; c++) {
            const double angle = (double)t * pow(base, -(double)c / (double)s->half);
            host[t * s->half + c] = cos(angle);
            host[(s->length + t) * s->half + c] = sin(angle);
        }
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(2, s->length, s->half), host);
    wf_tensor *turns = wide ? wf_tensor_copy(wide, ctx->dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(wide);
    free(host);
    return turns;
}

wf_layer *wf_rotary(wf_ctx *ctx, wf_rotary_opts o)
{
    WF_NEED_NULL(ctx);
    const double base = wf_opt(o.base, 10000);
    const int64_t heads = o.heads ? o.heads : 1;
    WF_CHECK_NULL(o.length >= 1 && heads >= 1, WF_ERR_ARGUMENT,
                  "rotary: length is %lld and heads is %lld, should be at least 1", (long long)o.length,
                  (long long)heads);
    WF_CHECK_NULL(o.features >= 2 && o.features % 2 == 0, WF_ERR_ARGUMENT,
                  "rotary: features of a head are %lld, should be even", (long long)o.features);
    WF_CHECK_NULL(base > 0, WF_ERR_ARGUMENT, "rotary: base is %g, should be above 0", base);
    wf_layer *layer = wf_layer_new(ctx, &rotary_kind, sizeof(rotary_state));
    if (!layer)
        return NULL;
    rotary_state *s = layer->state;
    *s = (rotary_state){.length = o.length, .heads = heads, .half = o.features / 2};
    wf_layer_note(layer, "rotary of %lld tokens, %lld heads of %lld, base %g", (long long)o.length, (long long)heads,
                  (long long)o.features, base);
    s->turns = make_turns(ctx, s, base);
    if (s->turns)
        return layer;
    wf_layer_free(layer);
    return NULL;
}
