/* Arithmetic, sums and means, detach: the model of an op with two inputs (add_scaled, binary, mul_backward). Sums of
 * sharded values are parts of a global sum and are marked as such; nothing here communicates, but that the second of
 * two inputs is brought to the shard bounds of the first. */
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

/* y = sum of coefficient[i] in[i]. */
typedef struct linear_state {
    double coefficient[2];
} linear_state;

/* The gradient of input i is op(alpha, dy, b), computed in dy's order. */
static wf_status give_binary(wf_node *node, int i, wf_binary op, double alpha, const wf_tensor *b)
{
    const wf_tensor *dy = wf_node_dy(node), *x = node->in[i]->value;
    wf_ctx *ctx = dy->ctx;
    const wf_array from = wf_tensor_array(dy), other = wf_tensor_array(b);
    /* The kernel works on arrays of one order. If the input's differs, the product is made in dy's order and converted
     * on the way to the gradient. */
    const bool direct = x->order == dy->order || x->shape.rank < 3;
    bool add = false;
    wf_tensor *dx = direct ? wf_node_grad(node, i, &add) : wf_tensor_new_like(dy);
    WF_NEED(dx);
    const wf_array to = wf_tensor_array(dx);
    const wf_binary_args args = {
        .op = op, .alpha = alpha, .a = &from, .beta = 0.0, .b = b ? &other : NULL, .y = &to, .accumulate = add};
    const wf_status status = ctx->k->binary(ctx, &args);
    if (direct)
        return status;
    if (status == WF_OK)
        return wf_function_give(node, i, dx);
    wf_tensor_free(dx);
    return status;
}

static wf_status linear_backward(wf_node *node)
{
    const linear_state *state = node->state;
    for (int i = 0; i < node->n_in; i++) {
        if (!wf_node_wants(node, i))
            continue;
        if (state->coefficient[i] == 1.0)
            /* Shared with dy, not copied: most sums have nothing else to add to it. */
            WF_TRY(wf_function_give(node, i, wf_tensor_alias(wf_node_dy(node))));
        else
            WF_TRY(give_binary(node, i, WF_BINARY_LINEAR, state->coefficient[i], NULL));
    }
    return WF_OK;
}

static wf_status mul_backward(wf_node *node)
{
    for (int i = 0; i < 2; i++)
        if (wf_node_wants(node, i))
            /* The derivative by one factor is the other one. */
            WF_TRY(give_binary(node, i, WF_BINARY_MUL, 1.0, wf_node_saved(node, 1 - i)));
    return WF_OK;
}

static const wf_op add_op = {.name = "add", .backward = linear_backward};
static const wf_op sub_op = {.name = "sub", .backward = linear_backward};
static const wf_op scale_op = {.name = "scale", .backward = linear_backward};
static const wf_op mul_op = {.name = "mul", .backward = mul_backward};

static wf_status binary_run(wf_binary op, const linear_state *c, const wf_tensor *a, const wf_tensor *b,
                            const wf_tensor *y)
{
    WF_NEED(a);
    WF_NEED(y);
    const wf_array left = wf_tensor_array(a), right = wf_tensor_array(b), to = wf_tensor_array(y);
    const wf_binary_args args = {
        .op = op, .alpha = c->coefficient[0], .a = &left, .beta = c->coefficient[1], .b = b ? &right : NULL, .y = &to};
    WF_TRY(a->ctx->k->binary(a->ctx, &args));
    return WF_OK;
}

/* b is NULL for a function of one variable. */
static wf_var *binary(const wf_op *op, wf_binary kind, linear_state state, wf_var *a, wf_var *b)
{
    wf_tensor *v = wf_function_value(a), *y = wf_tensor_new_like(a->value);
    wf_tensor *w = b ? wf_tensor_dense(b->value, b->value->dtype, a->value->order) : NULL;
    wf_status status = b && !w ? wf_error_take("b", __FILE__, __LINE__) : WF_OK;
    if (status == WF_OK)
        status = binary_run(kind, &state, v, w, y);
    wf_var *out = wf_function_finish(status, a->tape,
                                     &(wf_node_spec){.op = op,
                                                     .n_in = b ? 2 : 1,
                                                     .in = (wf_var *const[]){a, b},
                                                     .n_saved = kind == WF_BINARY_MUL ? 2 : 0,
                                                     .saved = (wf_tensor *const[]){v, w},
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    wf_tensor_free(v);
    wf_tensor_free(w);
    return out;
}

/* True if the sum of losses of these kinds has one meaning on all ranks. */
static wf_status check_mixture(const char *what, const wf_var *a, const wf_var *b)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    const wf_layout *p = &a->value->layout, *q = &b->value->layout;
    const bool partial = wf_layout_is_partial(p) || wf_layout_is_partial(q);
    WF_CHECK(!partial || p->known == q->known, WF_ERR_STATE,
             "%s is mixing a part of a sum over all ranks with a local value: (%s) and (%s)", what,
             wf_layout_text(p, left), wf_layout_text(q, right));
    WF_TRY(wf_function_check_layouts(what, a, b));
    WF_CHECK(!a->loss_mean || !b->loss_mean || a->loss_count == b->loss_count, WF_ERR_STATE,
             "%s is mixing a mean over %.15g local samples with one over %.15g; scale a wf_sum of one of them", what,
             a->loss_count, b->loss_count);
    return WF_OK;
}

static wf_var *add_scaled(const wf_op *op, wf_var *a, double beta, wf_var *b)
{
    if (!a || !b)
        return NULL;
    /* Two absent losses stay absent, so a rank without samples can add its losses like the others. */
    if (a->no_loss && b->no_loss)
        return a;
    WF_TRY_NULL(wf_function_promote(&a, &b));
    WF_NEED_NULL(b = wf_function_align(b, a));
    if (wf_broadcasts(a, b))
        return wf_broadcast_binary(beta < 0 ? WF_BINARY_SUB_OF : WF_BINARY_ADD_OF, a, b);
    WF_TRY_NULL(wf_function_check_pair(op->name, a, b, WF_LINEAR));
    WF_TRY_NULL(check_mixture(op->name, a, b));
    /* The seed of a loss that relays is 1, though it counts for nothing: its own terms must not count either. */
    const bool relays = a->loss_relays || b->loss_relays;
    if (relays && !a->loss_relays)
        WF_NEED_NULL(a = wf_detach(a));
    if (relays && !b->loss_relays)
        WF_NEED_NULL(b = wf_detach(b));
    /* One pass also for a - b, without a scaled copy of b. */
    wf_var *y = binary(op, WF_BINARY_LINEAR, (linear_state){{1.0, beta}}, a, b);
    wf_reduction reduction = wf_reduction_of(a->loss_count > 0 || a->loss_mean ? a : b);
    const bool counted = a->loss_counted || b->loss_counted;
    const bool alike = a->loss_counted == b->loss_counted && a->loss_count == b->loss_count;
    reduction.loss_mixed = a->loss_mixed || b->loss_mixed || (counted && !alike);
    reduction.loss_counted = counted && !reduction.loss_mixed;
    reduction.loss_relays = relays;
    return wf_reduction_mark(y, &reduction);
}

wf_var *wf_add(wf_var *a, wf_var *b)
{
    return add_scaled(&add_op, a, 1.0, b);
}

wf_var *wf_sub(wf_var *a, wf_var *b)
{
    return add_scaled(&sub_op, a, -1.0, b);
}

wf_var *wf_mul(wf_var *a, wf_var *b)
{
    if (!a || !b)
        return NULL;
    WF_TRY_NULL(wf_function_promote(&a, &b));
    WF_NEED_NULL(b = wf_function_align(b, a));
    if (wf_broadcasts(a, b))
        return wf_broadcast_binary(WF_BINARY_MUL_OF, a, b);
    WF_TRY_NULL(wf_function_check_pair("mul", a, b, WF_ANY_FUNCTION));
    WF_TRY_NULL(wf_function_check_layouts("mul", a, b));
    return binary(&mul_op, WF_BINARY_MUL, (linear_state){{1.0, 0.0}}, a, b);
}

wf_var *wf_scale(wf_var *x, double alpha)
{
    /* An absent loss is absent times anything, and one times x is x itself. */
    if (!x || x->no_loss || alpha == 1.0)
        return x;
    WF_TRY_NULL(wf_function_check("scale", x, WF_LINEAR));
    wf_var *y = binary(&scale_op, WF_BINARY_LINEAR, (linear_state){{alpha, 0.0}}, x, NULL);
    const wf_reduction reduction = wf_reduction_of(x);
    return wf_reduction_mark(y, &reduction);
}

static wf_status broadcast(wf_node *node, const wf_tensor *value)
{
    bool add = false;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    const wf_strided to = wf_tensor_strided(dx);
    wf_strided from = to;
    from.data = value->data;
    for (int d = 0; d < from.rank; d++)
        /* One number for every element, copied with strides of 0. */
        from.stride[d] = 0;
    return dx->ctx->k->copy(dx->ctx, &from, &to, add);
}

static wf_status sum_backward(wf_node *node)
{
    const double *scale = node->state;
    const wf_tensor *dy = wf_node_dy(node);
    /* The scale is applied to the one number, then spread over all elements. */
    wf_tensor *scaled = wf_tensor_new_like(dy);
    WF_NEED(scaled);
    const wf_array from = wf_tensor_array(dy), to = wf_tensor_array(scaled);
    wf_status status;
    WF_TRY_OUT(dy->ctx->k->binary(
        dy->ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = *scale, .a = &from, .beta = 0.0, .y = &to}));
    WF_TRY_OUT(broadcast(node, scaled));
out:
    wf_tensor_free(scaled);
    return status;
}

static const wf_op sum_op = {.name = "sum", .backward = sum_backward};
static const wf_op mean_op = {.name = "mean", .backward = sum_backward};

static wf_status sum_run(double scale, const wf_tensor *x, const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(x), to = wf_tensor_array(y);
    WF_TRY(x->ctx->k->sum(x->ctx, &from, scale, &to));
    return WF_OK;
}

static wf_var *reduced(const wf_op *op, wf_var *x, const wf_reduction *reduction)
{
    wf_tensor *v = wf_function_value(x), *y = wf_reduction_scalar(x);
    const wf_status status = sum_run(reduction->scale, v, y);
    wf_var *out = wf_function_finish(
        status, x->tape,
        &(wf_node_spec){
            .op = op, .n_in = 1, .in = &x, .state = &reduction->scale, .state_bytes = sizeof reduction->scale},
        y);
    wf_tensor_free(v);
    return wf_reduction_mark(out, reduction);
}

wf_var *wf_sum(wf_var *x)
{
    x = wf_widened(x);
    if (!x || x->no_loss)
        return x;
    WF_TRY_NULL(wf_function_check("sum", x, WF_LINEAR));
    const wf_reduction reduction = wf_reduction_of(x);
    return reduced(&sum_op, x, &reduction);
}

wf_var *wf_mean(wf_var *x)
{
    x = wf_widened(x);
    if (!x || x->no_loss)
        return x;
    WF_TRY_NULL(wf_function_check("mean", x, WF_LINEAR));
    const wf_reduction reduction = wf_reduction_mean(x, -1);
    return reduced(&mean_op, x, &reduction);
}

wf_var *wf_detach(wf_var *x)
{
    if (!x || x->no_loss)
        return x;
    WF_CHECK_NULL(x->value, WF_ERR_STATE, "detach of a variable whose value went with the backward that passed it");
    /* Shares the memory with a variable without a node: backward stops here. */
    wf_var *y = wf_input(x->tape, x->value);
    /* The mark stays with the value: a detached loss that is printed still has its weight. */
    const wf_reduction reduction = wf_reduction_of(x);
    return wf_reduction_mark(y, &reduction);
}
