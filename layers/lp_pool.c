/* Pooling by a norm: powers, their average, and the root of the average times the window's size. */
#include "layers/lp_pool.h"

#include "layers/chain.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"
#include "layers/serial/serial_impl.h"

#include <math.h>

/* State of both layers, and of the root's node. A chain of three layers: power, average, root. An average needs no
 * layer of its own, so all of its options work here. */
typedef struct lp_state {
    double p, size; /* size: elements of a window */
} lp_state;

static wf_var *raise_elements(wf_layer *layer, wf_var *x)
{
    return wf_pow(wf_abs(x), ((const lp_state *)layer->state)->p);
}

static const wf_layer_kind power_kind = {.name = "lp_power", .forward = raise_elements};

/* The root's slope at 0 is infinite: sums below this one have no gradient. */
static double least_sum(wf_dtype dtype)
{
    return dtype == WF_F64 ? 0x1p-1022 : dtype == WF_F16 ? 0x1p-24 : 0x1p-126;
}

/* Sums below the least are clipped up before the slope is taken, so it stays finite, and their gradient is then set to
 * 0. */
static wf_status root_backward(wf_node *node)
{
    const lp_state *s = node->state;
    const wf_tensor *dy = wf_node_dy(node), *sum = wf_node_saved(node, 0);
    const double least = least_sum(sum->dtype);
    wf_tensor *at = wf_tensor_new_like(sum), *slope = wf_tensor_new_like(sum), *dx = wf_tensor_new_like(sum);
    wf_tensor *g = wf_tensor_dense(dy, sum->dtype, sum->order);
    wf_status status = at && slope && dx && g ? WF_OK : wf_error_code();
    if (status == WF_OK) {
        wf_ctx *ctx = sum->ctx;
        const wf_strided from = wf_tensor_strided(sum), inside = wf_tensor_strided(at), raw = wf_tensor_strided(slope),
                         to = wf_tensor_strided(dx);
        const wf_array x = wf_tensor_array(at), gradient = wf_tensor_array(g), made = wf_tensor_array(slope);
        wf_fold_args clip = {.op = WF_FOLD_CLIP, .alpha = least, .beta = INFINITY, .a = &from, .y = &inside};
        status = ctx->k->fold(ctx, &clip);
        if (status == WF_OK)
            status = ctx->k->act_backward(
                ctx, &(wf_act_args){.act = WF_ACT_POW, .slope = 1 / s->p, .x = &x, .dy = &gradient, .dx = &made});
        clip = (wf_fold_args){.op = WF_FOLD_CLIP_X, .alpha = least, .beta = INFINITY, .a = &raw, .b = &from, .y = &to};
        if (status == WF_OK)
            status = ctx->k->fold(ctx, &clip);
    }
    wf_tensor_free(at);
    wf_tensor_free(slope);
    wf_tensor_free(g);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op root_op = {.name = "lp_root", .backward = root_backward};

static wf_var *take_root(wf_layer *layer, wf_var *mean)
{
    const lp_state *s = layer->state;
    /* The average times the elements of a window is the sum. */
    wf_var *x = wf_scale(mean, s->size);
    if (!x)
        return NULL;
    wf_tensor *sum = wf_function_value(x), *y = sum ? wf_tensor_new_like(sum) : NULL;
    wf_status status = y ? WF_OK : wf_error_code();
    if (status == WF_OK) {
        const wf_array from = wf_tensor_array(sum), to = wf_tensor_array(y);
        status = sum->ctx->k->act_forward(sum->ctx,
                                          &(wf_act_args){.act = WF_ACT_POW, .slope = 1 / s->p, .x = &from, .y = &to});
    }
    wf_var *out = wf_function_finish(
        status, x->tape,
        &(wf_node_spec){
            .op = &root_op, .n_in = 1, .in = &x, .n_saved = 1, .saved = &sum, .state = s, .state_bytes = sizeof *s},
        y);
    wf_tensor_free(sum);
    return out;
}

static const wf_layer_kind root_kind = {.name = "lp_root", .forward = take_root};

static wf_layer *lp_layer(wf_ctx *ctx, const wf_layer_kind *kind, lp_state state)
{
    wf_layer *layer = wf_layer_new(ctx, kind, sizeof state);
    if (!layer)
        return NULL;
    *(lp_state *)layer->state = state;
    wf_layer_note(layer, "%s of norm %g, windows of %g", kind->name, state.p, state.size);
    return layer;
}

wf_layer *wf_lp_pool(wf_ctx *ctx, double p, wf_pool_opts opts)
{
    WF_NEED_NULL(ctx);
    WF_TRY_NULL(wf_nd_check("lp_pool", &opts.nd));
    WF_CHECK_NULL(p >= 1 && p < INFINITY, WF_ERR_ARGUMENT, "lp_pool%dd: p is %g, should be at least 1 and finite",
                  opts.nd, p);
    lp_state state = {.p = p, .size = 1};
    for (int d = 0; d < opts.nd; d++)
        state.size *= (double)(opts.kernel_nd[d] ? opts.kernel_nd[d] : opts.kernel);
    /* The root takes the average times the window's size, so padding must count in the average. */
    opts.count_include_pad = true;
    /* Powers are what lies beyond the edge, too, and have no sign. */
    opts.boundary.value = pow(fabs(opts.boundary.value), p);
    opts.boundary.n_negated = 0;
    return wf_sequential(
        ctx, WF_LAYERS(lp_layer(ctx, &power_kind, state), wf_avg_pool(ctx, opts), lp_layer(ctx, &root_kind, state)));
}
