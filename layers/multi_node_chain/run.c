/* Runs this rank's steps on a tape. What is sent and received becomes nodes whose backward sends the gradient the
 * opposite way; senders hand over and go on, in both directions. So no rank waits in a send, and the order of steps
 * that was verified (wf_chain_steps_verify) is the only one that waits. */
#include "layers/multi_node_chain/multi_node_chain_impl.h"

#include "core/site_author.h"

#include <stdio.h>

#define WF_CHAIN_PURPOSE (WF_CHAIN_NAME + 32)

typedef struct point {
    wf_chain_state *chain;
    int peer, step;
} point;

/* A number ahead of each value: whether its gradient is to come back. The receiver knows so whether to send one. */
static wf_status send_flag(const wf_chain_state *state, bool grads, int to)
{
    wf_tensor *flag = wf_tensor_new(wf_comm_ctx(state->comm), WF_I64, wf_shape_scalar());
    WF_NEED(flag);
    wf_status status = wf_tensor_fill(flag, grads);
    if (status == WF_OK)
        status = wf_outbox_send(state->outbox, flag, to);
    wf_tensor_free(flag);
    return status;
}

static wf_status receive_flag(const wf_chain_state *state, bool *grads, int from)
{
    wf_tensor *flag = wf_outbox_receive(state->comm, from);
    WF_NEED(flag);
    *grads = wf_tensor_item(flag) > 0;
    wf_tensor_free(flag);
    return WF_OK;
}

/* For errors, which else name no component: the rank that is awaited may have forgotten a call. */
static const char *purpose_of(const wf_chain_state *state, int step, const char *what, const char *does,
                              char text[WF_CHAIN_PURPOSE])
{
    const wf_chain_step *a = &state->steps->step[wf_comm_rank(state->comm)][step];
    snprintf(text, WF_CHAIN_PURPOSE, "%s %s %s", what, a->name, does);
    return text;
}

/* --- backward -------------------------------------------------------------------------------------------------------
 */

/* `always`: the gradient comes also if nothing here wants it, and must be taken off the wire. */
static wf_status give_backward(wf_node *node)
{
    const point *state = node->state;
    char text[WF_CHAIN_PURPOSE];
    wf_site_purpose(purpose_of(state->chain, state->step, "the gradient of what", "gives", text));
    wf_tensor *dx = wf_outbox_receive(state->chain->comm, state->peer);
    wf_site_purpose(NULL);
    WF_NEED(dx);
    if (wf_node_wants(node, 0))
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return WF_OK;
}

/* Without a gradient zeros are sent, since the other rank waits. */
static wf_status take_backward(wf_node *node)
{
    const point *state = node->state;
    return wf_outbox_send(state->chain->outbox, wf_node_dy(node), state->peer);
}

/* Waits for everything that backward sends. The node is the first of the tape, so its backward is the last. */
static wf_status begin_backward(wf_node *node)
{
    const point *state = node->state;
    return wf_outbox_wait(state->chain->outbox);
}

static const wf_op give_op = {.name = "chain_give", .backward = give_backward, .always = true};
static const wf_op take_op = {.name = "chain_take", .backward = take_backward, .always = true};
static const wf_op begin_op = {.name = "chain_begin", .backward = begin_backward, .always = true};

/* --- the ends of a message ------------------------------------------------------------------------------------------
 */

/* What a component said about its values is checked on both ends. */
static wf_status check_value(const wf_chain_state *state, int step, const wf_tensor *value)
{
    const int rank = wf_comm_rank(state->comm);
    const wf_chain_step *a = &state->steps->step[rank][step];
    char text[WF_FAILURE_TEXT], layout[WF_LAYOUT_TEXT], shape[2][WF_SHAPE_TEXT];
    WF_CHECK(!value->layout.known, WF_ERR_SHAPE,
             "%.300s: a value that is %s; what goes from rank to rank has no layout",
             wf_chain_step_text(state->steps, rank, step, text), wf_layout_text(&value->layout, layout));
    bool fits = a->rank == 0 || a->rank == value->shape.rank;
    for (int d = 0; fits && d < a->rank; d++)
        fits = a->dim[d] == 0 || a->dim[d] == value->shape.dim[d];
    WF_CHECK(fits, WF_ERR_SHAPE, "%.300s: %s, should be %s (0: any length)",
             wf_chain_step_text(state->steps, rank, step, text), wf_shape_text(value->shape, shape[0]),
             wf_shape_text(wf_shape_make(a->rank, a->dim), shape[1]));
    return WF_OK;
}

/* A value of no meaning that ties the tape's last node to a loss. */
static wf_var *token_of(wf_tape *tape, const wf_node_spec *record)
{
    wf_ctx *ctx = wf_tape_ctx(tape);
    wf_tensor *zero = wf_tensor_new_step(ctx, ctx->dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    if (!zero)
        return NULL;
    const wf_status status = wf_tensor_fill(zero, 0);
    wf_var *token = wf_tape_record(tape, record, zero); /* which frees it on failure */
    WF_TRY_NULL(status);
    if (token)
        token->loss_mean = true;
    return token;
}

/* It stands for as many samples as the value that was sent. */
static void count_samples(wf_var *token, const wf_var *x)
{
    token->loss_count = x->value->shape.rank > 0 ? (double)x->value->shape.dim[0] : 1;
}

static wf_status give(wf_chain_state *state, int step, wf_var *x)
{
    const int to = state->steps->step[wf_comm_rank(state->comm)][step].peer;
    /* In evaluation nothing comes back. */
    const bool grads = x->needs_grad && wf_tape_mode(x->tape) == WF_TRAIN;
    WF_CHECK(x->value, WF_ERR_STATE, "a component gives a variable that has no value");
    WF_TRY(check_value(state, step, x->value));
    WF_TRY(send_flag(state, grads, to));
    WF_TRY(wf_outbox_send(state->outbox, x->value, to));
    const point own = {state, to, step};
    const wf_node_spec record = {
        .op = &give_op, .n_in = 1, .in = &x, .state = &own, .state_bytes = sizeof own, .comm = state->comm};
    if (grads)
        WF_NEED(state->token = token_of(x->tape, &record));
    count_samples(state->token, x);
    return WF_OK;
}

static wf_status receive_value(const wf_chain_state *state, const wf_tape *tape, int from, bool *grads,
                               wf_tensor **value)
{
    WF_TRY(receive_flag(state, grads, from));
    /* The receiver would keep no graph for that gradient. */
    WF_CHECK(!*grads || wf_tape_mode(tape) == WF_TRAIN, WF_ERR_STATE,
             "takes in WF_EVAL what rank %s gives in WF_TRAIN and wants a gradient of", WF_RANK(state->comm, from));
    *value = wf_outbox_receive(state->comm, from);
    WF_NEED(*value);
    return WF_OK;
}

static wf_status take_value(wf_chain_state *state, wf_tape *tape, int step, wf_var **x)
{
    const int from = state->steps->step[wf_comm_rank(state->comm)][step].peer;
    char text[WF_CHAIN_PURPOSE];
    bool grads = false;
    wf_tensor *value = NULL;
    wf_site_purpose(purpose_of(state, step, "what", "takes", text));
    const wf_status came = receive_value(state, tape, from, &grads, &value);
    wf_site_purpose(NULL);
    WF_TRY(came);
    const wf_status status = check_value(state, step, value);
    if (status != WF_OK) {
        wf_tensor_free(value);
        return status;
    }
    const point own = {state, from, step};
    const wf_node_spec record = {.op = &take_op, .state = &own, .state_bytes = sizeof own, .comm = state->comm};
    *x = wf_tape_record(tape, grads ? &record : &(wf_node_spec){0}, value);
    WF_NEED(*x);
    return WF_OK;
}

/* --- forward --------------------------------------------------------------------------------------------------------
 */

/* A component leaves its outputs in `out`; NULL without an error would be a mistake of the program. */
static wf_status compute(const wf_chain_state *state, const wf_chain_step *a)
{
    const wf_chain_part *part = &state->part[a->component];
    for (int i = 0; i < part->outputs; i++)
        state->out[i] = NULL;
    if (part->function)
        WF_TRY(part->function(part->layer, part->user, state->in, state->out));
    else
        state->out[0] = wf_apply_n(part->layer, state->in, part->n_in);
    for (int i = 0; i < part->outputs; i++) {
        const wf_status pending = state->out[i] ? WF_OK : wf_error_pending();
        WF_CHECK(state->out[i] || pending != WF_OK, WF_ERR_STATE, "component \"%s\" left output %d NULL and no error",
                 a->name, i);
        WF_TRY(pending);
    }
    return WF_OK;
}

static wf_status run_step(wf_chain_state *state, const wf_chain_call *call, int step)
{
    const int rank = wf_comm_rank(state->comm);
    const wf_chain_step *a = &state->steps->step[rank][step];
    if (a->verb == WF_CHAIN_COMPUTE)
        return compute(state, a);
    if (a->verb == WF_CHAIN_TAKE) {
        wf_var **x = &state->in[a->port];
        /* Three sources: another rank, this rank's own earlier component, the caller. */
        if (a->peer != WF_OUTSIDE && a->peer != rank)
            return take_value(state, call->tape, step, x);
        *x = a->peer == rank ? state->held[state->taken++] : call->x[state->from_outside++];
        return (*x)->value ? check_value(state, step, (*x)->value) : WF_OK;
    }
    wf_var *y = state->out[a->port];
    if (a->peer != WF_OUTSIDE && a->peer != rank)
        return give(state, step, y);
    if (y->value)
        WF_TRY(check_value(state, step, y->value));
    /* Values of this rank to itself are kept in order, which is that of taking them. */
    if (a->peer == rank)
        state->held[state->given++] = y;
    else
        call->y[state->to_outside++] = y;
    return WF_OK;
}

wf_status wf_chain_run(wf_layer *chain, const wf_chain_call *call, wf_var **y)
{
    wf_chain_state *state = chain->state;
    const point own = {state, -1, -1};
    const wf_node_spec begin = {.op = &begin_op, .state = &own, .state_bytes = sizeof own, .comm = state->comm};
    const bool train = wf_tape_mode(call->tape) == WF_TRAIN;
    state->given = state->taken = state->from_outside = state->to_outside = 0;
    state->token = token_of(call->tape, train ? &begin : &(wf_node_spec){0});
    WF_NEED(state->token);
    for (int i = 0; i < state->steps->count[wf_comm_rank(state->comm)]; i++)
        WF_TRY(run_step(state, call, i));
    WF_TRY(wf_outbox_wait(state->outbox));
    /* A rank without outputs gives the token, whose backward starts its part. */
    *y = call->n_y > 0 ? call->y[0] : state->token;
    return WF_OK;
}
