/* Losses as functions. They divide by the global number of samples where the batch has a layout, so the loss of a rank
 * is its part of the global mean. Nothing here communicates; wf_reduction says what the optimizer has to know of a sum
 * that is a part. */
#include "layers/loss.h"
#include "comm/mesh.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

#include <math.h>

typedef struct loss_state {
    wf_loss_kind kind;
    double value, scale; /* scale: of the mean, and in `loss` at first a factor of it */
    double delta, gamma, alpha;
    wf_loss_reduction reduction;
} loss_state;

static wf_status loss_slopes(const loss_state *state, const wf_tensor *x, const wf_tensor *t, const wf_tensor *dy,
                             const wf_tensor *dx)
{
    WF_NEED(dx);
    const wf_array at = wf_tensor_array(x), target = wf_tensor_array(t), to = wf_tensor_array(dx);
    const wf_array dloss = wf_tensor_array(dy);
    const wf_loss_args args = {.kind = state->kind,
                               .x = &at,
                               .target = t ? &target : NULL,
                               .value = state->value,
                               .delta = state->delta,
                               .gamma = state->gamma,
                               .alpha = state->alpha,
                               .dloss = &dloss,
                               .scale = state->scale,
                               .dx = &to};
    return x->ctx->k->loss_backward(x->ctx, &args);
}

/* d loss / d x into a tensor like x; x and t have one order. */
static wf_status give_loss(wf_node *node, int i, const wf_tensor *x, const wf_tensor *t)
{
    const loss_state *state = node->state;
    wf_tensor *dx = wf_tensor_new_like(x);
    const wf_status status = loss_slopes(state, x, t, wf_node_dy(node), dx);
    if (status == WF_OK)
        return wf_function_give(node, i, dx);
    wf_tensor_free(dx);
    return status;
}

/* A loss of two variables is symmetric, so the second one's gradient is the first one's with the arguments exchanged.
 * That holds for mse, l1 and huber; the others have no second variable. */
static wf_status loss_backward(wf_node *node)
{
    const wf_tensor *x = wf_node_saved(node, 0), *t = wf_node_saved(node, 1);
    if (wf_node_wants(node, 0))
        WF_TRY(give_loss(node, 0, x, t));
    if (node->n_in == 2 && wf_node_wants(node, 1))
        WF_TRY(give_loss(node, 1, t, x));
    return WF_OK;
}

static const wf_op loss_ops[] = {
    [WF_LOSS_BCE_LOGITS] = {.name = "bce_logits", .backward = loss_backward},
    [WF_LOSS_MSE] = {.name = "mse", .backward = loss_backward},
    [WF_LOSS_L1] = {.name = "l1", .backward = loss_backward},
    [WF_LOSS_HUBER] = {.name = "huber", .backward = loss_backward},
    [WF_LOSS_KL] = {.name = "kl_div", .backward = loss_backward},
    [WF_LOSS_FOCAL] = {.name = "focal_logits", .backward = loss_backward},
};

wf_status wf_loss_check_reduction(const char *what, int reduction)
{
    WF_CHECK(reduction >= WF_REDUCTION_MEAN && reduction <= WF_REDUCTION_NONE, WF_ERR_ARGUMENT,
             "%s: reduction is %d, should be WF_REDUCTION_MEAN, _SUM or _NONE", what, reduction);
    return WF_OK;
}

static wf_status loss_run(const loss_state *state, const wf_tensor *x, const wf_tensor *t, const wf_tensor *loss)
{
    WF_NEED(x);
    WF_NEED(loss);
    const wf_array from = wf_tensor_array(x), target = wf_tensor_array(t), to = wf_tensor_array(loss);
    const wf_loss_args args = {.kind = state->kind,
                               .x = &from,
                               .target = t ? &target : NULL,
                               .value = state->value,
                               .scale = state->scale,
                               .delta = state->delta,
                               .gamma = state->gamma,
                               .alpha = state->alpha,
                               .loss = &to};
    WF_TRY(x->ctx->k->loss_forward(x->ctx, &args));
    return WF_OK;
}

/* `target` NULL: `value` everywhere. b is the target's variable where gradients go to it. The mean is over all
 * elements, or without dimension 1 for divergences, which are sums over classes. */
static wf_var *loss(loss_state state, wf_var *a, wf_var *b, const wf_tensor *target)
{
    const wf_reduction reduction = state.reduction == WF_REDUCTION_MEAN
                                       ? wf_reduction_mean(a, state.kind == WF_LOSS_KL ? 1 : -1)
                                       : wf_reduction_of(a);
    /* 1, or the factor that smooth_l1 brings. */
    state.scale *= reduction.scale;
    wf_tensor *x = wf_function_value(a);
    /* Without a reduction the loss has x's shape, and dloss a number for each element. */
    wf_tensor *y = state.reduction == WF_REDUCTION_NONE ? wf_tensor_new_like(a->value) : wf_reduction_scalar(a);
    /* x and t in one order, so that the kernel needs no strides; a target of another type is converted here. */
    wf_tensor *t = wf_tensor_dense(target, a->value->dtype, a->value->order);
    wf_status status = target && !t ? wf_error_take("target", __FILE__, __LINE__) : WF_OK;
    if (status == WF_OK)
        status = loss_run(&state, x, t, y);
    wf_var *out = wf_function_finish(status, a->tape,
                                     &(wf_node_spec){.op = &loss_ops[state.kind],
                                                     .n_in = b ? 2 : 1,
                                                     .in = (wf_var *const[]){a, b},
                                                     .n_saved = 2,
                                                     .saved = (wf_tensor *const[]){x, t},
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    /* The node holds what it needs of both. */
    wf_tensor_free(x);
    wf_tensor_free(t);
    return wf_reduction_mark(out, &reduction);
}

wf_var *wf_bce_logits_constant(wf_var *x, double target)
{
    x = wf_widened(x);
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check("bce_logits_constant", x, WF_ANY_FUNCTION));
    return loss((loss_state){.kind = WF_LOSS_BCE_LOGITS, .value = target, .scale = 1}, x, NULL, NULL);
}

/* A loss towards numbers of the program, which get no gradient. */
static wf_var *loss_to(const char *what, loss_state state, wf_var *x, const wf_tensor *target)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT], part[WF_PART_TEXT];
    x = wf_widened(x);
    if (!x)
        return NULL;
    if (!target)
        return wf_error_need_null(what, "the target", __FILE__, __LINE__);
    WF_TRY_NULL(wf_loss_check_reduction(what, (int)state.reduction));
    WF_TRY_NULL(wf_function_check(what, x, WF_ANY_FUNCTION));
    WF_CHECK_NULL(wf_shape_equal(x->value->shape, target->shape), WF_ERR_SHAPE,
                  "%s takes a target of the input's shape %s%s, not %s", what, wf_shape_text(x->value->shape, left),
                  wf_part_text(&x->value->layout, part), wf_shape_text(target->shape, right));
    WF_CHECK_NULL(!target->layout.known || wf_layout_equal(&x->value->layout, &target->layout), WF_ERR_SHAPE,
                  "%s takes a target of the input's layout (%s), not (%s)", what,
                  wf_layout_text(&x->value->layout, left), wf_layout_text(&target->layout, right));
    WF_CHECK_NULL(state.kind != WF_LOSS_KL || x->value->shape.rank >= 2, WF_ERR_SHAPE,
                  "%s takes log-probabilities [N,C,...], not %s", what, wf_shape_text(x->value->shape, left));
    return loss(state, x, NULL, target);
}

wf_var *wf_bce_logits(wf_var *x, const wf_tensor *target)
{
    return wf_bce_logits_reduced(x, target, WF_REDUCTION_MEAN);
}

wf_var *wf_bce_logits_reduced(wf_var *x, const wf_tensor *target, wf_loss_reduction reduction)
{
    const loss_state state = {.kind = WF_LOSS_BCE_LOGITS, .scale = 1, .reduction = reduction};
    return loss_to("bce_logits", state, x, target);
}

wf_var *wf_kl_div(wf_var *logq, const wf_tensor *p)
{
    return wf_kl_div_reduced(logq, p, WF_REDUCTION_MEAN);
}

wf_var *wf_kl_div_reduced(wf_var *logq, const wf_tensor *p, wf_loss_reduction reduction)
{
    return loss_to("kl_div", (loss_state){.kind = WF_LOSS_KL, .scale = 1, .reduction = reduction}, logq, p);
}

wf_var *wf_focal_logits(wf_var *x, const wf_tensor *target, wf_focal_opts opts)
{
    /* 0 means unset, so a gamma of 0 is WF_ZERO. */
    const double gamma = wf_opt(opts.gamma, 2), alpha = opts.unweighted ? -1 : wf_opt(opts.alpha, 0.25);
    WF_CHECK_NULL(gamma >= 0 && gamma < INFINITY, WF_ERR_ARGUMENT,
                  "focal_logits: gamma is %g, should be 0 (WF_ZERO) or more", gamma);
    WF_CHECK_NULL(opts.unweighted || (alpha >= 0 && alpha <= 1), WF_ERR_ARGUMENT,
                  "focal_logits: alpha is %g, should be in [0, 1]", alpha);
    const loss_state state = {
        .kind = WF_LOSS_FOCAL, .scale = 1, .gamma = gamma, .alpha = alpha, .reduction = opts.reduction};
    return loss_to("focal_logits", state, x, target);
}

/* A loss between two variables, which both get gradients. */
static wf_var *loss_between(loss_state state, wf_var *a, wf_var *b)
{
    const wf_loss_kind kind = state.kind;
    /* Losses are summed in f32 at least, whatever type the network computes in. */
    a = wf_widened(a);
    b = wf_widened(b);
    if (!a || !b)
        return NULL;
    WF_NEED_NULL(b = wf_function_align(b, a));
    WF_TRY_NULL(wf_loss_check_reduction(loss_ops[kind].name, (int)state.reduction));
    WF_TRY_NULL(wf_function_check_pair(loss_ops[kind].name, a, b, WF_ANY_FUNCTION));
    WF_TRY_NULL(wf_function_check_layouts(loss_ops[kind].name, a, b));
    return loss(state, a, b, b->value);
}

wf_var *wf_mse(wf_var *a, wf_var *b)
{
    return wf_mse_reduced(a, b, WF_REDUCTION_MEAN);
}

wf_var *wf_mse_reduced(wf_var *a, wf_var *b, wf_loss_reduction reduction)
{
    return loss_between((loss_state){.kind = WF_LOSS_MSE, .scale = 1, .reduction = reduction}, a, b);
}

wf_var *wf_l1(wf_var *a, wf_var *b)
{
    return wf_l1_reduced(a, b, WF_REDUCTION_MEAN);
}

wf_var *wf_l1_reduced(wf_var *a, wf_var *b, wf_loss_reduction reduction)
{
    return loss_between((loss_state){.kind = WF_LOSS_L1, .scale = 1, .reduction = reduction}, a, b);
}

wf_var *wf_huber(wf_var *a, wf_var *b, double delta)
{
    return wf_huber_reduced(a, b, delta, WF_REDUCTION_MEAN);
}

wf_var *wf_huber_reduced(wf_var *a, wf_var *b, double delta, wf_loss_reduction reduction)
{
    WF_CHECK_NULL(delta > 0 && delta < INFINITY, WF_ERR_ARGUMENT, "huber: delta is %g, should be above 0", delta);
    return loss_between((loss_state){.kind = WF_LOSS_HUBER, .scale = 1, .delta = delta, .reduction = reduction}, a, b);
}

wf_var *wf_smooth_l1(wf_var *a, wf_var *b, double beta)
{
    return wf_smooth_l1_reduced(a, b, beta, WF_REDUCTION_MEAN);
}

/* Huber's loss over beta. */
wf_var *wf_smooth_l1_reduced(wf_var *a, wf_var *b, double beta, wf_loss_reduction reduction)
{
    WF_CHECK_NULL(beta >= 0 && beta < INFINITY, WF_ERR_ARGUMENT, "smooth_l1: beta is %g, should be 0 or more", beta);
    /* The limit of Huber's loss over beta. */
    if (beta == 0)
        return wf_l1_reduced(a, b, reduction);
    const loss_state state = {.kind = WF_LOSS_HUBER, .scale = 1 / beta, .delta = beta, .reduction = reduction};
    return loss_between(state, a, b);
}
