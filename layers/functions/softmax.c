/* Softmax and its logarithm over dimension 1. Rows are sums over all classes, so dimension 1 must be whole on each
 * rank. */
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

/* Both derivatives are known from y, so x need not be kept. */
static wf_status softmax_backward(wf_node *node)
{
    const bool *logarithm = node->state;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *dx = wf_tensor_new_like(dy);
    WF_NEED(dx);
    const wf_array y = wf_tensor_array(wf_node_saved(node, 0)), from = wf_tensor_array(dy), to = wf_tensor_array(dx);
    const wf_status status = dy->ctx->k->softmax_backward(dy->ctx, *logarithm, &y, &from, &to);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op softmax_op = {.name = "softmax", .backward = softmax_backward};
static const wf_op log_softmax_op = {.name = "log_softmax", .backward = softmax_backward};

static wf_status softmax_run(bool logarithm, const wf_tensor *x, const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(x), to = wf_tensor_array(y);
    WF_TRY(x->ctx->k->softmax_forward(x->ctx, logarithm, &from, &to));
    return WF_OK;
}

static wf_status softmax_check(const char *what, const wf_var *x)
{
    char shape[WF_SHAPE_TEXT], layout[WF_LAYOUT_TEXT];
    const wf_shape *s = &x->value->shape;
    WF_TRY(wf_function_check(what, x, WF_ANY_FUNCTION));
    WF_CHECK(s->rank >= 2 && s->rank <= 5, WF_ERR_SHAPE, "%s takes rank 2 to 5, not %s", what,
             wf_shape_text(*s, shape));
    WF_CHECK(!wf_layout_is_sharded(&x->value->layout, 1), WF_ERR_SHAPE,
             "%s needs all of dimension 1, which is sharded: %s; wf_redistribute it first", what,
             wf_layout_text(&x->value->layout, layout));
    return WF_OK;
}

static wf_var *softmax(const wf_op *op, bool logarithm, wf_var *x)
{
    /* x's layout goes along unchanged. */
    static const int same[WF_MAX_RANK] = {0, 1, 2, 3, 4, 5};
    /* Sums of exponentials over many classes lose too much in 16 bits. */
    x = wf_widened(x);
    if (!x)
        return NULL;
    WF_TRY_NULL(softmax_check(op->name, x));
    wf_tensor *v = wf_dense_value(x);
    wf_tensor *y = v ? wf_output(op->name, x, v->shape, v->order, same) : NULL;
    const wf_status status = softmax_run(logarithm, v, y);
    wf_var *out = wf_function_finish(status, x->tape,
                                     &(wf_node_spec){.op = op,
                                                     .n_in = 1,
                                                     .in = &x,
                                                     .n_saved = 1,
                                                     .saved = &y,
                                                     .state = &logarithm,
                                                     .state_bytes = sizeof logarithm},
                                     y);
    wf_tensor_free(v);
    return out;
}

wf_var *wf_softmax(wf_var *x)
{
    return softmax(&softmax_op, false, x);
}

wf_var *wf_log_softmax(wf_var *x)
{
    return softmax(&log_softmax_op, true, x);
}
