/* Point-to-point messages with a gradient, and the tokens that stand for a value on another rank. Backward sends in
 * the opposite direction, with zeros where there is no gradient, so that no rank waits in vain. */
#include "layers/communication/communication_impl.h"

typedef struct point {
    wf_comm *comm;
    int peer, tag;
} point;

/* In the order that both sides know without a word. */
wf_tensor *wf_exchanged_new(wf_ctx *ctx, wf_dtype dtype, wf_shape shape)
{
    return wf_tensor_new_step(ctx, dtype, shape, wf_order_default(shape.rank));
}

/* What crosses ranks is dense and in the default order of its rank, so that both sides agree on the bytes without a
 * word about it. */
wf_tensor *wf_exchanged_value(const wf_tensor *x)
{
    return wf_tensor_dense(x, x->dtype, wf_order_default(x->shape.rank));
}

wf_status wf_communication_check(const char *what, const wf_var *x)
{
    char text[WF_LAYOUT_TEXT];
    WF_NEED(x);
    WF_TRY(wf_function_check_value(what, x));
    WF_CHECK(!x->value->layout.known, WF_ERR_SHAPE,
             "%s takes what this rank holds, without a layout, not %s: wf_redistribute moves that", what,
             wf_layout_text(&x->value->layout, text));
    return WF_OK;
}

/* Functions without a layer are called by no wf_apply, so this is their one place that tells the other ranks of a
 * failure. */
wf_status wf_communication_end(wf_comm *comm, wf_status status)
{
    return wf_comm_post_failure(comm, status);
}

void *wf_communication_null(wf_comm *comm, wf_status status)
{
    wf_communication_end(comm, status);
    return wf_error_null();
}

/* A scalar that stands for the order of operations; its number is never read. */
wf_tensor *wf_token_value(wf_ctx *ctx)
{
    wf_tensor *zero = wf_tensor_new_step(ctx, ctx->dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    if (zero && wf_tensor_fill(zero, 0) == WF_OK)
        return zero;
    wf_tensor_free(zero);
    return wf_error_null();
}

/* A token counts samples, so that a loss of tokens has a weight. */
wf_var *wf_token_mark(wf_var *token, const wf_var *x)
{
    if (!token)
        return NULL;
    const wf_shape shape = x->value->shape;
    token->loss_mean = true;
    token->loss_count = x->loss_mean ? x->loss_count : shape.rank > 0 ? (double)shape.dim[0] : 1;
    return token;
}

/* A flag is sent ahead of the value: whether its gradient must be sent back. */
static wf_status send_flag(wf_comm *comm, wf_ctx *ctx, bool grads, int to, int tag)
{
    wf_tensor *flag = wf_tensor_new_step(ctx, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(flag);
    /* The flag goes through a tensor of the device, because wf_send takes no other memory. */
    wf_status status = wf_tensor_fill(flag, grads);
    if (status == WF_OK)
        status = wf_send(comm, flag, to, tag);
    wf_tensor_free(flag);
    return status;
}

static wf_status recv_flag(wf_comm *comm, wf_ctx *ctx, bool *grads, int from, int tag)
{
    wf_tensor *flag = wf_tensor_new_step(ctx, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(flag);
    const wf_status status = wf_recv(comm, flag, from, tag);
    *grads = status == WF_OK && wf_tensor_item(flag) > 0;
    wf_tensor_free(flag);
    return status;
}

static wf_status send_backward(wf_node *node)
{
    const point *state = node->state;
    /* The gradient comes back in the form in which the value was sent; the other rank's backward decides when. */
    const wf_tensor *x = node->in[0]->value;
    wf_tensor *dx = wf_exchanged_new(x->ctx, x->dtype, x->shape);
    WF_NEED(dx);
    const wf_status status = wf_recv(state->comm, dx, state->peer, state->tag);
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return status;
}

static wf_status recv_backward(wf_node *node)
{
    const point *state = node->state;
    return wf_send(state->comm, wf_node_dy(node), state->peer, state->tag);
}

static const wf_op send_op = {.name = "send", .backward = send_backward, .always = true};
static const wf_op recv_op = {.name = "recv", .backward = recv_backward, .always = true};

static wf_status send_value(wf_comm *comm, const wf_var *x, bool grads, int to, int tag)
{
    WF_TRY(send_flag(comm, x->value->ctx, grads, to, tag));
    wf_tensor *value = wf_exchanged_value(x->value);
    WF_NEED(value);
    const wf_status status = wf_send_new(comm, value, to, tag);
    wf_tensor_free(value);
    return status;
}

wf_var *wf_send_var(wf_comm *comm, wf_var *x, int to, int tag)
{
    WF_NEED_NULL(comm);
    wf_status status = wf_communication_check("send", x);
    if (status == WF_OK)
        status = wf_tape_check_message(x->tape, "send");
    if (status != WF_OK)
        return wf_communication_null(comm, status);
    const bool grads = x->needs_grad && wf_tape_mode(x->tape) == WF_TRAIN;
    status = send_value(comm, x, grads, to, tag);
    if (status != WF_OK)
        return wf_communication_null(comm, status);
    const point state = {comm, to, tag};
    const wf_node_spec record = {
        .op = &send_op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state, .comm = comm};
    wf_var *token = wf_tape_record(x->tape, grads ? &record : &(wf_node_spec){0}, wf_token_value(x->value->ctx));
    return wf_token_mark(token, x);
}

wf_var *wf_recv_var(wf_comm *comm, wf_tape *tape, int from, int tag)
{
    WF_NEED_NULL(comm);
    /* The sender is waiting already, so a missing tape is told to it, too. */
    if (!tape)
        return wf_communication_null(comm, wf_error_take("tape", __FILE__, __LINE__));
    bool grads;
    wf_status status = wf_tape_check_message(tape, "recv");
    if (status == WF_OK)
        status = recv_flag(comm, wf_tape_ctx(tape), &grads, from, tag);
    if (status == WF_OK && grads && wf_tape_mode(tape) == WF_EVAL)
        status = WF_RAISE(WF_ERR_STATE, "receives in WF_EVAL what rank %s sends in WF_TRAIN and wants a gradient of",
                          WF_RANK(comm, from));
    if (status != WF_OK)
        return wf_communication_null(comm, status);
    wf_tensor *sent = wf_recv_new(comm, from, tag);
    if (!sent)
        return NULL;
    const point state = {comm, from, tag};
    const wf_node_spec record = {.op = &recv_op, .state = &state, .state_bytes = sizeof state, .comm = comm};
    return wf_tape_record(tape, grads ? &record : &(wf_node_spec){0}, sent);
}

static wf_status connect_backward(wf_node *node)
{
    /* The token gets no gradient: it is the order of operations that it stands for, and the tape keeps that order. */
    wf_tensor *dx = wf_node_wants(node, 1) ? wf_tensor_alias(wf_node_dy(node)) : NULL;
    return wf_node_wants(node, 1) ? wf_node_give(node, 1, dx, true) : WF_OK;
}

static const wf_op connect_op = {.name = "pseudo_connect", .backward = connect_backward};

wf_var *wf_pseudo_connect(wf_var *token, wf_var *x)
{
    if (!token || !x)
        return NULL;
    WF_CHECK_NULL(!x->no_loss && x->value, WF_ERR_STATE, "pseudo_connect of a variable that has no value");
    wf_var *y = wf_tape_record(x->tape, &(wf_node_spec){.op = &connect_op, .n_in = 2, .in = (wf_var *[]){token, x}},
                               wf_function_value(x));
    if (!y)
        return NULL;
    if (x->value->layout.known)
        WF_TRY_NULL(wf_tensor_set_layout(y->value, x->value->layout));
    const wf_reduction reduction = wf_reduction_of(x);
    return wf_reduction_mark(y, &reduction);
}
