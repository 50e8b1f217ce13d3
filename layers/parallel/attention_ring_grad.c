/* Backward of ring attention (attention_ring.c has the algorithm): blocks of keys and values go round once more, and
 * the gradients of each follow it one step later, since a rank adds to them only after it has computed with the block.
 * wf_ring_backward is the node's backward; all ranks of the axis call it together. */
#include "layers/parallel/ring_impl.h"

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* What this rank receives at a step: the next block, then the gradients of the block at hand, to which the rank before
 * has added. */
static wf_tensor *new_message(const wf_ring_call *c, wf_ctx *ctx, int step, bool grads, int64_t *at)
{
    *at = step + 1 < c->size ? wf_ring_bytes(c, wf_ring_owner(c, c->rank, step + 1), c->dtype) : 0;
    return wf_ring_new_bytes(ctx, *at + (grads ? wf_ring_bytes(c, wf_ring_owner(c, c->rank, step), c->wide) : 0));
}

static wf_tensor *new_zeros(wf_ctx *ctx, int64_t bytes)
{
    wf_tensor *t = wf_ring_new_bytes(ctx, bytes);
    if (!t || wf_tensor_fill(t, 0) == WF_OK)
        return t;
    wf_tensor_free(t);
    return wf_error_null();
}

/* Adds the gradients of a step to those that came with the block. */
static wf_status add_block(const wf_ring_pass *p, int step, const wf_tensor *own, const wf_tensor *to, int64_t at)
{
    const wf_ring_call *const c = p->call;
    const int64_t count = 2 * c->n * wf_ring_keys(c, wf_ring_owner(c, c->rank, step)) * c->features;
    if (count == 0)
        return WF_OK;
    const wf_array from = {.data = own->data, .dtype = c->wide, .order = WF_ROW_MAJOR, .shape = WF_SHAPE(count)};
    wf_array sum = from;
    sum.data = (char *)to->data + at;
    return wf_ring_copy(p->ctx, &from, &sum, true);
}

/* What travels of a message: in the first step no gradients, which `next` only has room for, in the last one no keys.
 */
static wf_tensor *travels(const wf_tensor *t, int64_t lo, int64_t hi)
{
    return wf_tensor_view(t, (wf_box){.rank = 1, .lo = {lo}, .hi = {hi}});
}

/* Gradients of the own block begin in `next`, behind what comes. */
static wf_status begin_sums(const wf_tensor *next, int64_t at)
{
    wf_tensor *behind = travels(next, at, next->shape.dim[0]);
    const wf_status status = behind ? wf_tensor_fill(behind, 0) : wf_error_code();
    wf_tensor_free(behind);
    return status;
}

/* Sends `block` and receives `next`, whose gradients are at `at`, while the gradients of the step are computed. */
static wf_status backward_step(const wf_ring_pass *p, int step, const wf_tensor *block, wf_tensor *next, int64_t at)
{
    const wf_ring_call *const c = p->call;
    const bool grads = p->keys || p->values;
    const int owner = wf_ring_owner(c, c->rank, step);
    const wf_ring_message message = {.step = step, .keys = step + 1 < c->size, .grads = grads && step > 0};
    const int64_t keys = wf_ring_bytes(c, owner, c->dtype), size = block->shape.dim[0];
    wf_exchange *exchange = NULL;
    /* Without keys to send the message is what follows them in `block`. */
    wf_tensor *from = travels(block, message.keys ? 0 : keys, size);
    wf_tensor *to = travels(next, 0, step == 0 ? at : next->shape.dim[0]);
    /* Made from zeros and added after the exchange: the sums of the ranks before are still on their way while kernels
     * run. */
    wf_tensor *own = grads ? new_zeros(p->ctx, wf_ring_bytes(c, owner, c->wide)) : NULL;
    wf_status status = from && to && (own || !grads) ? WF_OK : wf_error_code();
    if (status == WF_OK && (message.keys || message.grads))
        status = wf_ring_send(c, &message, from, to, &exchange);
    if (status == WF_OK)
        status = wf_ring_compute(p, step, block->data, own ? own->data : NULL, exchange);
    status = wf_ring_end(exchange, status);
    if (status == WF_OK && own && step == 0)
        status = begin_sums(next, at);
    if (status == WF_OK && own)
        status = add_block(p, step, own, next, at);
    wf_tensor_free(own);
    wf_tensor_free(to);
    wf_tensor_free(from);
    return status;
}

/* *sums: the gradients of this rank's own block. */
static wf_status backward_ring(const wf_ring_pass *p, wf_tensor **sums)
{
    const wf_ring_call *const c = p->call;
    const bool grads = p->keys || p->values;
    wf_tensor *block = wf_ring_pack(c, p->saved + WF_RING_K, p->saved + WF_RING_V, p->ctx);
    wf_status status = block ? WF_OK : wf_error_code();
    for (int step = 0; step < c->size && status == WF_OK; step++) {
        int64_t at = 0;
        wf_tensor *next = new_message(c, p->ctx, step, grads, &at);
        status = next ? backward_step(p, step, block, next, at) : wf_error_code();
        wf_tensor_free(block);
        block = next;
    }
    *sums = block;
    /* On one rank the sums are at home. */
    if (status != WF_OK || !grads || c->size == 1)
        return status;
    /* After the last step a rank has the sums of the next rank's block, so one message more takes all home. */
    wf_exchange *exchange = NULL;
    wf_tensor *own = wf_ring_new_bytes(p->ctx, wf_ring_bytes(c, c->rank, c->wide));
    status = own ? wf_ring_send(c, &(wf_ring_message){.step = c->size, .grads = true}, block, own, &exchange)
                 : wf_error_code();
    status = wf_ring_end(exchange, status);
    wf_tensor_free(block);
    *sums = own;
    return status;
}

/* dk, or dv, from the sums of the own block. */
static wf_status give_keys(wf_node *node, const wf_ring_pass *p, const wf_tensor *sums, bool values)
{
    const wf_ring_call *const c = p->call;
    wf_tensor *run[WF_RING_RUNS] = {0}, *whole = NULL;
    wf_status status = WF_OK;
    for (int x = 0; x < c->runs && status == WF_OK; x++) {
        const wf_array from = wf_ring_array(c, sums->data, c->wide, c->rank, values, x);
        run[x] = wf_tensor_new_step(p->ctx, c->dtype, from.shape, WF_ROW_MAJOR);
        const wf_array to = wf_tensor_array(run[x]);
        status = run[x] ? wf_ring_copy(p->ctx, &from, &to, false) : wf_error_code();
    }
    if (status == WF_OK) {
        whole = wf_ring_put(c, run, true, p->ctx);
        status = whole ? wf_function_give(node, values ? WF_RING_IN_V : WF_RING_IN_K, whole) : wf_error_code();
    }
    for (int x = 0; x < WF_RING_RUNS; x++)
        wf_tensor_free(run[x]);
    return status;
}

/* The gradient of the table from that of the columns of this rank's heads. Columns of heads that other ranks have stay
 * 0; the sum over the axes adds theirs. */
static wf_status fill_table(const wf_ring_pass *p, wf_tensor *sum)
{
    WF_NEED(sum);
    WF_TRY(wf_tensor_fill(sum, 0));
    wf_tensor *columns = wf_attention_columns(sum, p->call->first_head, p->call->heads);
    WF_NEED(columns);
    const wf_strided from = wf_tensor_strided(p->dbias), to = wf_tensor_strided(columns);
    const wf_status status = p->ctx->k->copy(p->ctx, &from, &to, false);
    wf_tensor_free(columns);
    return status;
}

static wf_status give_bias_sum(wf_node *node, const wf_ring_pass *p)
{
    const wf_tensor *const table = node->in[WF_RING_IN_BIAS]->value;
    const unsigned axes = p->call->axes;
    wf_tensor *sum = wf_tensor_new_step(p->ctx, table->dtype, table->shape, WF_ROW_MAJOR);
    wf_status status = fill_table(p, sum);
    if (status == WF_OK && axes)
        status = wf_allreduce_raw(wf_mesh_comm(p->call->mesh, axes), sum->data, sum->data, wf_tensor_count(sum),
                                  sum->dtype, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, WF_RING_IN_BIAS, sum);
    wf_tensor_free(sum);
    return status;
}

static wf_status give_gradients_home(wf_node *node, const wf_ring_pass *p, const wf_tensor *sums)
{
    if (p->dbias)
        WF_TRY(give_bias_sum(node, p));
    if (wf_node_wants(node, WF_RING_IN_Q)) {
        wf_tensor *whole = wf_ring_put(p->call, p->dq, false, p->ctx);
        WF_NEED(whole);
        WF_TRY(wf_function_give(node, WF_RING_IN_Q, whole));
    }
    if (p->keys)
        WF_TRY(give_keys(node, p, sums, false));
    return p->values ? give_keys(node, p, sums, true) : WF_OK;
}

/* dy moves to the queries of each run, as they did in forward; dq goes back the same way. */
static wf_status begin_backward(const wf_node *node, wf_ring_pass *p, wf_tensor **dy)
{
    const wf_ring_call *const c = p->call;
    for (int x = 0; x < c->runs; x++) {
        WF_TRY(wf_ring_take(c, wf_node_dy(node), false, x, &dy[x]));
        p->dy[x] = dy[x];
        if (wf_node_wants(node, WF_RING_IN_Q))
            WF_NEED(p->dq[x] = wf_ring_zeros(p, dy[x]->shape));
    }
    if (node->in[WF_RING_IN_BIAS] && wf_node_wants(node, WF_RING_IN_BIAS))
        WF_NEED(p->dbias = wf_ring_zeros(p, p->saved[WF_RING_BIAS]->shape));
    p->keys = wf_node_wants(node, WF_RING_IN_K);
    p->values = wf_node_wants(node, WF_RING_IN_V);
    return WF_OK;
}

wf_status wf_ring_backward(wf_node *node)
{
    const wf_tensor *saved[WF_RING_SAVED];
    wf_tensor *dy[WF_RING_RUNS] = {0}, *sums = NULL;
    wf_ring_pass p = {.call = node->state, .ctx = wf_tape_ctx(node->tape), .saved = saved};
    for (int i = 0; i < WF_RING_SAVED; i++)
        saved[i] = wf_node_saved(node, i);
    wf_status status = begin_backward(node, &p, dy);
    if (status == WF_OK)
        status = backward_ring(&p, &sums);
    if (status == WF_OK)
        status = give_gradients_home(node, &p, sums);
    for (int x = 0; x < WF_RING_RUNS; x++) {
        wf_tensor_free(dy[x]);
        wf_tensor_free(p.dq[x]);
    }
    wf_tensor_free(p.dbias);
    /* sums may be NULL after an error. */
    wf_tensor_free(sums);
    return status;
}
