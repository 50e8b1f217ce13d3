/* Losses as functions. They divide by the global number of samples where the batch has a layout, so the loss of a
 * rank is its part of the global mean. Nothing here communicates. */
#include "layers/loss.h"
#include "comm/mesh.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

#include <math.h>

typedef struct loss_state {
    wf_loss_kind kind;
    double value, scale; /* scale: of the mean, and in `loss` at first a factor of it */
    double delta, gamma, alpha;
} loss_state;

/* d loss / d x into a tensor like x; x and t have one order. */
static wf_status give_loss(wf_node *node, int i, const wf_tensor *x, const wf_tensor *t)
{
    const loss_state *state = node->state;
    wf_tensor *dx = wf_tensor_new_like(x);
    WF_NEED(dx);
    const wf_array at = wf_tensor_array(x), target = wf_tensor_array(t), to = wf_tensor_array(dx);
    const wf_array dloss = wf_tensor_array(wf_node_dy(node));
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
    const wf_status status = x->ctx->k->loss_backward(x->ctx, &args);
    if (status == WF_OK)
        return wf_function_give(node, i, dx);
    wf_tensor_free(dx);
    return status;
}

/* A loss of two variables is symmetric, so the second one's gradient is the first one's with the arguments exchanged.
 */
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
    const wf_reduction reduction = wf_reduction_mean(a, state.kind == WF_LOSS_KL ? 1 : -1);
    state.scale *= reduction.scale;
    wf_tensor *x = wf_function_value(a), *y = wf_reduction_scalar(a);
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
    wf_tensor_free(x);
    wf_tensor_free(t);
    return wf_reduction_mark(out, &reduction);
}

wf_var *wf_bce_logits(wf_var *x, double target)
{
    x = wf_widened(x);
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check("bce_logits", x, WF_ANY_FUNCTION));
    return loss((loss_state){.kind = WF_LOSS_BCE_LOGITS, .value = target, .scale = 1}, x, NULL, NULL);
}

static wf_var *loss_to(const char *what, loss_state state, wf_var *x, const wf_tensor *target)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    x = wf_widened(x);
    if (!x || !target)
        return NULL;
    WF_TRY_NULL(wf_function_check(what, x, WF_ANY_FUNCTION));
    WF_CHECK_NULL(wf_shape_equal(x->value->shape, target->shape), WF_ERR_SHAPE,
                  "%s takes a target of the input's shape %s, not %s", what, wf_shape_text(x->value->shape, left),
                  wf_shape_text(target->shape, right));
    WF_CHECK_NULL(!target->layout.known || wf_layout_equal(&x->value->layout, &target->layout), WF_ERR_SHAPE,
                  "%s takes a target of the input's layout (%s), not (%s)", what,
                  wf_layout_text(&x->value->layout, left), wf_layout_text(&target->layout, right));
    WF_CHECK_NULL(state.kind != WF_LOSS_KL || x->value->shape.rank >= 2, WF_ERR_SHAPE,
                  "%s takes log-probabilities [N,C,...], not %s", what, wf_shape_text(x->value->shape, left));
    return loss(state, x, NULL, target);
}

wf_var *wf_bce_logits_with(wf_var *x, const wf_tensor *target)
{
    return loss_to("bce_logits_with", (loss_state){.kind = WF_LOSS_BCE_LOGITS, .scale = 1}, x, target);
}

wf_var *wf_kl_div(wf_var *logq, const wf_tensor *p)
{
    return loss_to("kl_div", (loss_state){.kind = WF_LOSS_KL, .scale = 1}, logq, p);
}

wf_var *wf_focal_logits(wf_var *x, const wf_tensor *target, wf_focal_opts opts)
{
    const double gamma = wf_opt(opts.gamma, 2), alpha = opts.unweighted ? -1 : wf_opt(opts.alpha, 0.25);
    WF_CHECK_NULL(gamma >= 0 && gamma < INFINITY, WF_ERR_ARGUMENT,
                  "focal_logits: gamma is %g, should be 0 (WF_ZERO) or more", gamma);
    WF_CHECK_NULL(opts.unweighted || (alpha >= 0 && alpha <= 1), WF_ERR_ARGUMENT,
                  "focal_logits: alpha is %g, should be in [0, 1]", alpha);
    const loss_state state = {.kind = WF_LOSS_FOCAL, .scale = 1, .gamma = gamma, .alpha = alpha};
    return loss_to("focal_logits", state, x, target);
}

static wf_var *loss_between(loss_state state, wf_var *a, wf_var *b)
{
    const wf_loss_kind kind = state.kind;
    /* Losses are summed in f32 at least, whatever type the network computes in. */
    a = wf_widened(a);
    b = wf_widened(b);
    if (!a || !b)
        return NULL;
    WF_TRY_NULL(wf_function_check_pair(loss_ops[kind].name, a, b, WF_ANY_FUNCTION));
    WF_TRY_NULL(wf_function_check_layouts(loss_ops[kind].name, a, b));
    return loss(state, a, b, b->value);
}

wf_var *wf_mse(wf_var *a, wf_var *b)
{
    return loss_between((loss_state){.kind = WF_LOSS_MSE, .scale = 1}, a, b);
}

wf_var *wf_l1(wf_var *a, wf_var *b)
{
    return loss_between((loss_state){.kind = WF_LOSS_L1, .scale = 1}, a, b);
}

wf_var *wf_huber(wf_var *a, wf_var *b, double delta)
{
    WF_CHECK_NULL(delta > 0 && delta < INFINITY, WF_ERR_ARGUMENT, "huber: delta is %g, should be above 0", delta);
    return loss_between((loss_state){.kind = WF_LOSS_HUBER, .scale = 1, .delta = delta}, a, b);
}

/* Huber's loss over beta. */
wf_var *wf_smooth_l1(wf_var *a, wf_var *b, double beta)
{
    WF_CHECK_NULL(beta >= 0 && beta < INFINITY, WF_ERR_ARGUMENT, "smooth_l1: beta is %g, should be 0 or more", beta);
    if (beta == 0)
        return wf_l1(a, b);
    return loss_between((loss_state){.kind = WF_LOSS_HUBER, .scale = 1 / beta, .delta = beta}, a, b);
}

/* One label for each row of scores, of the same samples. */
static wf_status check_label_tensor(const char *what, const wf_var *scores, const wf_tensor *labels)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    const wf_shape *s = &scores->value->shape, *l = &labels->shape;
    WF_TRY(wf_function_check(what, scores, WF_ANY_FUNCTION));
    WF_CHECK(labels->dtype == WF_U8 || labels->dtype == WF_I32 || labels->dtype == WF_I64, WF_ERR_DTYPE,
             "%s takes labels of type u8, i32 or i64, not %s", what, wf_dtype_name(labels->dtype));
    bool same = s->rank >= 2 && s->rank <= 5 && l->rank == s->rank - 1 && l->dim[0] == s->dim[0];
    for (int d = 2; same && d < s->rank; d++)
        same = l->dim[d - 1] == s->dim[d];
    WF_CHECK(same, WF_ERR_SHAPE, "%s takes scores [N,C,...] of rank 2 to 5 and labels [N,...], not %s and %s", what,
             wf_shape_text(*s, left), wf_shape_text(*l, right));
    const wf_layout *p = &scores->value->layout, *q = &labels->layout;
    WF_CHECK(!wf_layout_is_sharded(p, 1), WF_ERR_SHAPE,
             "%s needs all of dimension 1, which is sharded: %s; wf_redistribute it first", what,
             wf_layout_text(p, left));
    /* Labels without a layout are taken to be this rank's; with one it has to be the batch's. */
    WF_CHECK(!q->known || (p->known && p->box.lo[0] == q->box.lo[0] && p->global.dim[0] == q->global.dim[0]),
             WF_ERR_SHAPE, "%s has scores (%s) and labels (%s), which are not of the same samples", what,
             wf_layout_text(p, left), wf_layout_text(q, right));
    return WF_OK;
}

static int64_t ignored_of(wf_label_opts opts)
{
    return opts.ignores ? opts.ignored : WF_NONE_IGNORED;
}

typedef struct label_state {
    double scale;
    int64_t ignored;
} label_state;

static wf_status nll_backward(wf_node *node)
{
    const label_state *state = node->state;
    const wf_tensor *logp = node->in[0]->value;
    /* The order in which forward read it. */
    const wf_order order = logp->shape.rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    wf_tensor *dx = wf_tensor_new_step(logp->ctx, logp->dtype, logp->shape, order);
    WF_NEED(dx);
    const wf_array labels = wf_tensor_array(wf_node_saved(node, 0)), to = wf_tensor_array(dx);
    const wf_array dloss = wf_tensor_array(wf_node_dy(node));
    const wf_status status = logp->ctx->k->nll_backward(logp->ctx, &labels, state->ignored, &dloss, state->scale, &to);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op nll_op = {.name = "nll", .backward = nll_backward};

static wf_status nll_run(const label_state *state, const wf_tensor *logp, const wf_tensor *labels, const wf_tensor *y)
{
    WF_NEED(logp);
    WF_NEED(labels);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(logp), at = wf_tensor_array(labels), to = wf_tensor_array(y);
    WF_TRY(logp->ctx->k->nll_forward(logp->ctx, &from, &at, state->ignored, state->scale, &to));
    return WF_OK;
}

static wf_status count_labels(wf_ctx *ctx, const wf_tensor *labels, int64_t ignored, int64_t *count)
{
    wf_tensor *counted = wf_tensor_new_step(ctx, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(counted);
    wf_status status;
    const wf_array at = wf_tensor_array(labels), to = wf_tensor_array(counted);
    WF_TRY_OUT(ctx->k->count_labels(ctx, &at, ignored, &to));
    WF_TRY_OUT(wf_ctx_read(ctx, count, counted->data, sizeof *count));
out:
    wf_tensor_free(counted);
    return status;
}

/* The mean is over the rows that count, of all ranks that hold parts of x. */
static wf_status weigh_counted(const wf_var *x, const wf_tensor *labels, int64_t ignored, wf_reduction *reduction)
{
    const wf_layout *layout = &x->value->layout;
    int64_t own = 0, all;
    unsigned axes = 0;
    if (ignored == WF_NONE_IGNORED)
        return WF_OK;
    WF_NEED(labels);
    WF_TRY(count_labels(x->value->ctx, labels, ignored, &own));
    for (int a = 0; layout->known && a < WF_AXES; a++)
        axes |= layout->placement[a] == WF_SHARDED ? 1u << a : 0;
    all = own;
    if (axes != 0)
        WF_TRY(wf_allreduce_i64(wf_mesh_comm_of(layout->mesh, axes), &all, 1, WF_SUM));
    reduction->scale = all > 0 ? 1.0 / (double)all : 0;
    reduction->loss_count = all;
    reduction->loss_part = (double)own;
    reduction->loss_counted = true;
    return WF_OK;
}

wf_var *wf_nll(wf_var *logp, const wf_tensor *labels)
{
    return wf_nll_with(logp, labels, (wf_label_opts){0});
}

wf_var *wf_nll_with(wf_var *logp, const wf_tensor *labels, wf_label_opts opts)
{
    logp = wf_widened(logp);
    if (!logp || !labels)
        return NULL;
    WF_TRY_NULL(check_label_tensor("nll", logp, labels));
    /* Classes are no samples: the mean is over rows of scores. */
    wf_reduction reduction = wf_reduction_mean(logp, 1);
    wf_tensor *x = wf_dense_value(logp), *y = wf_reduction_scalar(logp);
    wf_tensor *at = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR);
    wf_status status = weigh_counted(logp, at, ignored_of(opts), &reduction);
    const label_state state = {reduction.scale, ignored_of(opts)};
    if (status == WF_OK)
        status = nll_run(&state, x, at, y);
    wf_var *out = wf_function_finish(status, logp->tape,
                                     &(wf_node_spec){.op = &nll_op,
                                                     .n_in = 1,
                                                     .in = &logp,
                                                     .n_saved = 1,
                                                     .saved = &at,
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    wf_tensor_free(x);
    wf_tensor_free(at);
    return wf_reduction_mark(out, &reduction);
}

/* Makes no f32 copy of bf16 and f16: kernels widen what they read, and round the gradient once. */
static wf_status entropy_backward(wf_node *node)
{
    const label_state *state = node->state;
    const wf_tensor *x = wf_node_saved(node, 0);
    wf_tensor *dx = wf_tensor_new_like(x);
    WF_NEED(dx);
    const wf_array from = wf_tensor_array(x), labels = wf_tensor_array(wf_node_saved(node, 1));
    const wf_array log_sum = wf_tensor_array(wf_node_saved(node, 2)), dloss = wf_tensor_array(wf_node_dy(node));
    const wf_array to = wf_tensor_array(dx);
    const wf_entropy_args args = {.x = &from,
                                  .labels = &labels,
                                  .ignored = state->ignored,
                                  .scale = state->scale,
                                  .log_sum = &log_sum,
                                  .dloss = &dloss,
                                  .dx = &to};
    const wf_status status = x->ctx->k->entropy_backward(x->ctx, &args);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op entropy_op = {.name = "softmax_cross_entropy", .backward = entropy_backward};

static wf_status entropy_run(const label_state *state, const wf_tensor *x, const wf_tensor *labels,
                             const wf_tensor *log_sum, const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(labels);
    WF_NEED(log_sum);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(x), at = wf_tensor_array(labels), sums = wf_tensor_array(log_sum);
    const wf_array to = wf_tensor_array(y);
    return x->ctx->k->entropy_forward(x->ctx, &(wf_entropy_args){.x = &from,
                                                                 .labels = &at,
                                                                 .ignored = state->ignored,
                                                                 .scale = state->scale,
                                                                 .log_sum = &sums,
                                                                 .loss = &to});
}

wf_var *wf_softmax_cross_entropy(wf_var *logits, const wf_tensor *labels)
{
    return wf_softmax_cross_entropy_with(logits, labels, (wf_label_opts){0});
}

wf_var *wf_softmax_cross_entropy_with(wf_var *logits, const wf_tensor *labels, wf_label_opts opts)
{
    if (!logits || !labels)
        return NULL;
    WF_TRY_NULL(check_label_tensor("softmax_cross_entropy", logits, labels));
    /* The mean is over rows, as in wf_nll. */
    wf_reduction reduction = wf_reduction_mean(logits, 1);
    wf_tensor *x = wf_dense_value(logits), *y = wf_reduction_scalar(logits);
    wf_tensor *at = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR);
    wf_tensor *log_sum = y ? wf_tensor_new_step(y->ctx, y->dtype, labels->shape, WF_ROW_MAJOR) : NULL;
    wf_status status = weigh_counted(logits, at, ignored_of(opts), &reduction);
    const label_state state = {reduction.scale, ignored_of(opts)};
    if (status == WF_OK)
        status = entropy_run(&state, x, at, log_sum, y);
    wf_var *out = wf_function_finish(status, logits->tape,
                                     &(wf_node_spec){.op = &entropy_op,
                                                     .n_in = 1,
                                                     .in = &logits,
                                                     .n_saved = 3,
                                                     .saved = (wf_tensor *const[]){x, at, log_sum},
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    wf_tensor_free(x);
    wf_tensor_free(at);
    wf_tensor_free(log_sum);
    return wf_reduction_mark(out, &reduction);
}

static wf_status count_run(const wf_tensor *scores, const wf_tensor *labels, int64_t ignored, const wf_tensor *correct)
{
    WF_NEED(scores);
    WF_NEED(labels);
    WF_NEED(correct);
    const wf_array from = wf_tensor_array(scores), at = wf_tensor_array(labels), to = wf_tensor_array(correct);
    WF_TRY(scores->ctx->k->count_correct(scores->ctx, &from, &at, ignored, &to));
    return WF_OK;
}

/* Reads a number from the device, which waits for it: for measuring, not for each step. */
int64_t wf_count_correct(const wf_var *scores, const wf_tensor *labels)
{
    return wf_count_correct_with(scores, labels, (wf_label_opts){0});
}

int64_t wf_count_correct_with(const wf_var *scores, const wf_tensor *labels, wf_label_opts opts)
{
    if (!scores || !labels || check_label_tensor("count_correct", scores, labels) != WF_OK)
        return -1;
    wf_ctx *ctx = scores->value->ctx;
    wf_tensor *x = wf_dense_value(scores), *at = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR);
    wf_tensor *correct = wf_tensor_new_step(ctx, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR);
    int64_t count = -1;
    if (count_run(x, at, ignored_of(opts), correct) != WF_OK ||
        wf_ctx_read(ctx, &count, correct->data, sizeof count) != WF_OK)
        count = -1;
    wf_tensor_free(x);
    wf_tensor_free(at);
    wf_tensor_free(correct);
    return count;
}

int64_t wf_count_labels(const wf_tensor *labels, wf_label_opts opts)
{
    wf_tensor *at = labels ? wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR) : NULL;
    int64_t count = -1;
    if (!at || count_labels(labels->ctx, at, ignored_of(opts), &count) != WF_OK)
        count = -1;
    wf_tensor_free(at);
    return count;
}
