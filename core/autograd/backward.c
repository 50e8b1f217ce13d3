/* Backward, in four passes over the tape: mark the variables that lead to a wanted gradient (from the front), mark the
 * nodes that the loss reaches (from the end), tell the optimizer the order in which gradients of parameters will be
 * complete, and run the nodes (from the end). A segment that is recomputed is one node in this; when it is its turn,
 * its inside is recorded behind the tape's end, marked, run and cut off again. Called by wf_backward and by optimizers.
 * A node is never run twice, and nothing here knows what an op computes. */
#include "core/autograd/autograd_impl.h"
#include "core/profile_author.h"

/* One backward. */
typedef struct run {
    wf_tape *tape;
    const wf_backward_opts *opts;
    uint64_t id;      /* marks what it concerns: variables, nodes and target parameters whose `run` is this number */
    wf_param **order; /* of wf_backward_opts.plan; in pool memory */
    int64_t n_order, cap_order;
} run;

/* Returns true if differentiation ends here: a parameter or leaf that this backward is asked for. */
static bool is_target(const run *r, const wf_var *var)
{
    if (!var->needs_grad)
        return false;
    if (var->param)
        return var->param->trainable && (r->opts->n_params == 0 || var->param->run == r->id);
    return var->leaf && r->opts->n_params == 0;
}

static bool wanted(const run *r, const wf_var *var)
{
    return var && var->run == r->id;
}

/* Marks the variables that need a gradient: targets, and outputs of nodes from `first` on that read such a variable or
 * always run. */
static void mark_wanted(const run *r, int64_t first)
{
    wf_tape *tape = r->tape;
    for (int64_t n = first; n < tape->n_nodes; n++) {
        wf_node *node = tape->nodes[n];
        bool any = node->op->always;
        for (int i = 0; i < node->n_in; i++) {
            wf_var *in = node->in[i];
            if (in && !in->node && is_target(r, in))
                in->run = r->id;
            any = any || wanted(r, in);
        }
        if (any)
            node->out->run = r->id;
    }
}

/* One pass from the end suffices, since execution order is a topological order. */
static wf_status mark_reached(const run *r, wf_node *from, int64_t first)
{
    wf_tape *tape = r->tape;
    if (from)
        from->run = r->id;
    for (int64_t n = tape->n_nodes - 1; n >= first; n--) {
        wf_node *node = tape->nodes[n];
        if (node->op->always && !node->done)
            node->run = r->id;
        if (node->run != r->id || node->out->run != r->id)
            continue;
        WF_CHECK(!node->done, WF_ERR_STATE,
                 "%s was differentiated before; what it saved is gone (one backward for each part of the tape)",
                 node->op->name);
        for (int i = 0; i < node->n_in; i++)
            if (wanted(r, node->in[i]) && node->in[i]->node)
                node->in[i]->node->run = r->id;
    }
    return WF_OK;
}

/* Returns true if this backward runs the node: the loss depends on it, and it leads to a target. */
static bool runs(const run *r, const wf_node *node)
{
    return node->run == r->id && node->out->run == r->id;
}

/* Counts the uses of parameters, and lists them: a gradient is complete at its last contribution, which is the first
 * node of the tape that uses the parameter; so their order is that of first use, reversed. */
static wf_status count_uses(run *r)
{
    wf_tape *tape = r->tape;
    for (int64_t n = 0; n < tape->n_nodes; n++)
        for (int i = 0; runs(r, tape->nodes[n]) && i < tape->nodes[n]->n_in; i++)
            if (tape->nodes[n]->in[i] && tape->nodes[n]->in[i]->param) {
                /* An earlier backward that failed has left some. */
                tape->nodes[n]->in[i]->param->uses = 0;
                r->cap_order++;
            }
    void *memory;
    WF_TRY(wf_pool_take_host(tape->ctx, (size_t)r->cap_order * sizeof *r->order, &memory));
    r->order = memory;
    for (int64_t n = 0; n < tape->n_nodes; n++)
        for (int i = 0; runs(r, tape->nodes[n]) && i < tape->nodes[n]->n_in; i++) {
            wf_var *in = tape->nodes[n]->in[i];
            if (!in || !in->param || !wanted(r, in))
                continue;
            if (in->param->uses++ == 0)
                r->order[r->n_order++] = in->param;
        }
    /* The first uses were listed from the front of the tape; gradients are complete from its end. */
    for (int64_t i = 0; i < r->n_order / 2; i++) {
        wf_param *swap = r->order[i];
        r->order[i] = r->order[r->n_order - 1 - i];
        r->order[r->n_order - 1 - i] = swap;
    }
    return WF_OK;
}

/* Every parameter that this backward reaches has memory for its gradient before the first node runs: the plan of an
 * optimizer may have made views of a flat buffer, and what is left gets a tensor of its own. */
static wf_status prepare_grads(run *r)
{
    if (r->opts->plan)
        WF_TRY(r->opts->plan(r->opts->user, r->n_order, r->order));
    for (int64_t i = 0; i < r->n_order; i++) {
        wf_param *p = r->order[i];
        /* Cleared lazily: the first contribution of this backward overwrites the gradient and saves a pass that writes
         * zeros. */
        p->grad_set = r->opts->add && p->grad;
        if (!p->grad)
            p->grad = wf_tensor_new_ordered(p->ctx, p->dtype, p->shape, p->order);
        WF_NEED(p->grad);
    }
    return WF_OK;
}

/* One use of the parameter has given its gradient, or has none to give. */
static wf_status param_done(run *r, wf_param *p)
{
    if (--p->uses > 0)
        return WF_OK;
    /* All its uses turned out to give nothing (pruned below an empty batch, say); the sum over ranks still reads it. */
    if (!p->grad_set)
        WF_TRY(wf_tensor_fill(p->grad, 0));
    p->grad_set = true;
    return r->opts->ready ? r->opts->ready(r->opts->user, p) : WF_OK;
}

/* A gradient computed from a value that has changed since forward would be wrong without a sign of it. */
static wf_status check_saved(const wf_node *node)
{
    for (int i = 0; i < node->n_saved; i++)
        if (node->saved[i].tensor)
            WF_CHECK(wf_tensor_version(node->saved[i].tensor) == node->saved[i].version, WF_ERR_STATE,
                     "%s: a tensor that it saved (a parameter?) was changed before backward", node->op->name);
    return WF_OK;
}

static wf_status run_nodes(run *r, int64_t first);

/* The parameters of a segment count once for its node. From here they count as often as the recomputed nodes use them,
 * so a gradient is complete, and may be sent, as early as without recomputation. Those that no recomputed node uses
 * stay with the segment's node, which ends their one use. */
static wf_status take_over_uses(const run *r, wf_node *segment, int64_t first)
{
    wf_tape *tape = r->tape;
    /* Two marks in param->segment, from the numbers of segments so that no older mark equals them: an input of this
     * node, and one of which a recomputed node has taken over the use that the node has counted. */
    const uint64_t listed = ++tape->ctx->segments, used = ++tape->ctx->segments;
    for (int i = 0; i < segment->n_in; i++)
        if (segment->in[i]->param && wanted(r, segment->in[i]))
            segment->in[i]->param->segment = listed;
    for (int64_t n = first; n < tape->n_nodes; n++)
        for (int i = 0; runs(r, tape->nodes[n]) && i < tape->nodes[n]->n_in; i++) {
            const wf_var *in = tape->nodes[n]->in[i];
            if (!in || !in->param || !wanted(r, in))
                continue;
            wf_param *p = in->param;
            WF_CHECK(p->segment == listed || p->segment == used, WF_ERR_STATE,
                     "%s was not used in forward, but when its segment was recomputed", wf_param_path(p));
            p->uses += p->segment == used;
            p->segment = used;
        }
    for (int i = 0; i < segment->n_in; i++)
        if (segment->in[i]->param && segment->in[i]->param->segment == used)
            segment->in[i] = NULL;
    return WF_OK;
}

/* Computes the inside of the node again and runs it. The output's value goes first: it is computed again. */
static wf_status run_segment(run *r, wf_node *node)
{
    wf_tape *tape = r->tape;
    wf_var *out = node->out;
    const int64_t first = tape->n_nodes, first_var = tape->n_vars;
    if (wf_tensor_count(out->value) > 1) {
        wf_tensor_free(out->value);
        out->value = NULL;
    }
    wf_var *y = wf_segment_repeat(node);
    WF_NEED(y);
    mark_wanted(r, first);
    WF_TRY(mark_reached(r, y->node, first));
    WF_TRY(take_over_uses(r, node, first));
    /* The gradient moves to the output of the recomputed nodes, which run like any others. */
    y->grad = out->grad;
    y->grad_shared = out->grad_shared;
    out->grad = NULL;
    WF_TRY(run_nodes(r, first));
    wf_tape_cut(tape, first, first_var);
    return WF_OK;
}

static wf_status run_node(run *r, wf_node *node)
{
    wf_var *out = node->out;
    /* Only such ops run without a gradient: another rank waits for their message. Any other node without one has no
     * gradient to pass on and is skipped. */
    if (!out->grad && node->op->always) {
        out->grad = wf_tensor_new_like(out->value);
        WF_NEED(out->grad);
        WF_TRY(wf_tensor_fill(out->grad, 0));
    }
    if (out->grad) {
        WF_TRY(check_saved(node));
        wf_range_push(r->tape->ctx, node->op->name);
        const char *outside = wf_profile_layer(r->tape->ctx, node->layer);
        const wf_status status = node->op == &wf_segment_op ? run_segment(r, node) : node->op->backward(node);
        wf_profile_layer(r->tape->ctx, outside);
        wf_range_pop(r->tape->ctx);
        WF_TRY(status);
    }
    for (int i = node->n_in - 1; i >= 0; i--) /* the order that count_uses announced */
        if (node->in[i] && node->in[i]->param && wanted(r, node->in[i]))
            WF_TRY(param_done(r, node->in[i]->param));
    /* From here the node gives back what it holds: saved tensors, its gradient, and its output, which no node before it
     * reads. So activations are freed while backward passes over them. */
    node->done = true;
    wf_node_release(node);
    wf_tensor_free(out->grad);
    out->grad = NULL;
    /* Scalars stay, since programs print losses after the step. */
    if (out->value && wf_tensor_count(out->value) > 1) {
        wf_tensor_free(out->value);
        out->value = NULL;
    }
    return WF_OK;
}

static wf_status run_nodes(run *r, int64_t first)
{
    wf_tape *tape = r->tape;
    for (int64_t n = tape->n_nodes - 1; n >= first; n--) {
        wf_node *node = tape->nodes[n];
        if (!runs(r, node))
            continue;
        wf_status status = run_node(r, node);
        /* The other ranks of this node wait for a message that this rank will not send. This is the one place that
         * tells them; an op returns its error and knows nothing of it. */
        if (status != WF_OK && node->comm && tape->ctx->tell_failure)
            status = tape->ctx->tell_failure(node->comm, status);
        WF_TRY(status);
        wf_ctx_progress(tape->ctx);
    }
    return WF_OK;
}

/* grad = seed scale, where the scale is known to the device only: that of a loss which f16 would round to zero. */
static wf_status seed_scaled(const wf_tensor *grad, double seed, const float *scale)
{
    wf_ctx *ctx = grad->ctx;
    const wf_array to = wf_tensor_array(grad);
    const wf_array from = {.data = (void *)scale, .dtype = WF_F32, .shape = wf_shape_scalar()};
    const wf_strided src = wf_array_strided(&from);
    wf_strided dst = src;
    dst.data = to.data;
    dst.dtype = to.dtype;
    WF_TRY(ctx->k->copy(ctx, &src, &dst, false));
    return seed == 1
               ? WF_OK
               : ctx->k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = seed, .a = &to, .y = &to});
}

static wf_status seed_grad(wf_var *loss, const wf_tensor *grad, const wf_backward_opts *opts)
{
    const double seed = opts->seed == 0 ? 1 : opts->seed;
    char text[2][WF_SHAPE_TEXT];
    if (grad) {
        WF_CHECK(wf_shape_equal(grad->shape, loss->value->shape), WF_ERR_SHAPE, "a gradient %s for a variable %s",
                 wf_shape_text(grad->shape, text[0]), wf_shape_text(loss->value->shape, text[1]));
        loss->grad = wf_tensor_dense(grad, loss->value->dtype, loss->value->order);
        /* The caller's tensor may be aliased by wf_tensor_dense: it is copied before anything is added to it. */
        loss->grad_shared = true;
        WF_NEED(loss->grad);
        return WF_OK;
    }
    WF_CHECK(wf_tensor_count(loss->value) == 1, WF_ERR_SHAPE,
             "backward from a variable %s: it starts from a scalar, or by wf_backward_from with a gradient",
             wf_shape_text(loss->value->shape, text[0]));
    loss->grad = wf_tensor_new_like(loss->value);
    loss->grad_shared = false;
    WF_NEED(loss->grad);
    return opts->scale ? seed_scaled(loss->grad, seed, opts->scale) : wf_tensor_fill(loss->grad, seed);
}

static wf_status run_all(run *r, wf_var *loss, const wf_tensor *grad)
{
    for (int64_t p = 0; p < r->opts->n_params; p++)
        r->opts->params[p]->run = r->id;
    /* Marks and counts come before the first node runs: optimizers need the order, and a tape that was differentiated
     * before is refused while all gradients are as they were. */
    mark_wanted(r, 0);
    WF_CHECK(!loss->node || !loss->node->done, WF_ERR_STATE, "this variable was differentiated before");
    WF_TRY(mark_reached(r, loss->node, 0));
    WF_TRY(count_uses(r));
    WF_TRY(prepare_grads(r));
    /* wf_no_loss has neither: then only nodes run that always do. */
    if (loss->node || loss->leaf)
        WF_TRY(seed_grad(loss, grad, r->opts));
    return run_nodes(r, 0);
}

wf_status wf_backward_run(wf_var *loss, const wf_tensor *grad, const wf_backward_opts *opts)
{
    WF_NEED(loss);
    WF_CHECK(loss->value, WF_ERR_STATE, "this variable was differentiated before");
    wf_tape *tape = loss->tape;
    run r = {.tape = tape, .opts = opts, .id = ++tape->ctx->backwards};
    /* A gradient left by a backward that failed must not count. */
    for (int64_t i = 0; i < tape->n_vars; i++)
        if (tape->vars[i]->grad && tape->vars[i]->node) {
            wf_tensor_free(tape->vars[i]->grad);
            tape->vars[i]->grad = NULL;
        }
    const wf_status status = run_all(&r, loss, grad);
    wf_pool_give_host(tape->ctx, r.order, (size_t)r.cap_order * sizeof *r.order);
    if (status != WF_OK)
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    return WF_OK;
}

static wf_status backward_all(wf_var *var, const wf_tensor *grad)
{
    WF_NEED(var);
    WF_CHECK(var->needs_grad, WF_ERR_STATE,
             "backward from a variable that depends on no parameter and no leaf, or that was computed in WF_EVAL");
    const wf_backward_opts opts = {0};
    return wf_backward_run(var, grad, &opts);
}

wf_status wf_backward(wf_var *loss)
{
    return backward_all(loss, NULL);
}

wf_status wf_backward_from(wf_var *var, const wf_tensor *grad)
{
    WF_NEED(grad);
    return backward_all(var, grad);
}

const wf_tensor *wf_node_dy(const wf_node *node)
{
    return node->out->grad;
}

wf_tensor *wf_node_reuse_dy(const wf_node *node)
{
    const wf_tensor *dy = node->out->grad;
    const wf_storage *storage = dy->storage;
    /* Another handle, as that of a gradient that was passed on unchanged, would see what is written. */
    return storage->references == 1 && !storage->borrowed ? wf_tensor_alias(dy) : wf_tensor_new_like(dy);
}

const wf_tensor *wf_node_saved(const wf_node *node, int i)
{
    return node->saved[i].tensor;
}

/* The gradient is summed over axes along which this node computes the same on all ranks: the first of them gives it. */
static bool is_repeated(const wf_node *node, const wf_param *param)
{
    const wf_layout *layout = &node->out->value->layout;
    const wf_ctx *ctx = node->tape->ctx;
    unsigned axes = 0;
    for (int a = 0; layout->known && a < WF_AXES; a++)
        if ((param->axes >> a & 1u) && layout->placement[a] == WF_REPLICATED)
            axes |= 1u << a;
    return axes != 0 && ctx->is_first && !ctx->is_first(layout->mesh, axes);
}

bool wf_node_wants(const wf_node *node, int i)
{
    const wf_var *in = node->in[i];
    return in && in->run == node->run && !(in->param && is_repeated(node, in->param));
}

/* Replaces a shared gradient by a copy, so that it can be added to. */
static wf_status own_grad(wf_var *var)
{
    if (!var->grad_shared)
        return WF_OK;
    wf_tensor *own = wf_tensor_new_like(var->value);
    WF_NEED(own);
    const wf_status status = wf_tensor_assign(own, var->grad);
    wf_tensor_free(var->grad);
    var->grad = own;
    var->grad_shared = false;
    return status;
}

wf_tensor *wf_node_grad(wf_node *node, int i, bool *accumulate)
{
    wf_var *in = node->in[i];
    *accumulate = false;
    /* All uses of a parameter have one gradient; of another variable this is its own. */
    if (in->param) {
        *accumulate = in->param->grad_set;
        in->param->grad_set = true;
        return in->param->grad;
    }
    if (in->grad) {
        *accumulate = true;
        WF_TRY_NULL(own_grad(in));
        return in->grad;
    }
    in->grad_shared = false;
    in->grad = wf_tensor_new_like(in->value);
    return in->grad;
}

static wf_status add_to(wf_tensor *grad, const wf_tensor *dx, bool accumulate)
{
    wf_ctx *ctx = grad->ctx;
    if (accumulate && dx->dense && dx->order == grad->order && dx->dtype == grad->dtype) {
        const wf_array a = wf_tensor_array(grad), b = wf_tensor_array(dx);
        return ctx->k->binary(
            ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &a, .beta = 1, .b = &b, .y = &a});
    }
    const wf_strided src = wf_tensor_strided(dx), dst = wf_tensor_strided(grad);
    return ctx->k->copy(ctx, &src, &dst, accumulate);
}

static wf_status give_grad(wf_node *node, int i, wf_tensor **dx, bool shared)
{
    char text[2][WF_SHAPE_TEXT];
    wf_var *in = node->in[i];
    WF_CHECK(wf_shape_equal((*dx)->shape, in->value->shape), WF_ERR_SHAPE, "%s gives a gradient %s for an input %s",
             node->op->name, wf_shape_text((*dx)->shape, text[0]), wf_shape_text(in->value->shape, text[1]));
    const bool as_is = (*dx)->dense && (*dx)->order == in->value->order && (*dx)->dtype == in->value->dtype;
    /* The first gradient of an intermediate value is taken as it is; most have one alone, and nothing is copied or
     * added. */
    if (!in->param && !in->grad && as_is) {
        in->grad = *dx;
        in->grad->layout = in->value->layout;
        in->grad_shared = shared;
        *dx = NULL;
        return WF_OK;
    }
    bool accumulate;
    wf_tensor *grad = wf_node_grad(node, i, &accumulate);
    WF_NEED(grad);
    return add_to(grad, *dx, accumulate);
}

wf_status wf_node_give(wf_node *node, int i, wf_tensor *dx, bool shared)
{
    WF_NEED(dx);
    const wf_status status = wf_node_wants(node, i) ? give_grad(node, i, &dx, shared) : WF_OK;
    wf_tensor_free(dx);
    return status;
}
