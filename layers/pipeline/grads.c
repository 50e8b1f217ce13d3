/* The gradients of a step. Chunks are differentiated before the optimizer's backward, whose buffers may be in use by
 * then (double buffering, wf_optim_accumulate), so they have memory of their own; the backward of the loss hands them
 * over. */
#include "layers/pipeline/pipeline_impl.h"

#include <stdlib.h>
#include <string.h>

/* Elements that are multiplied at a time: the factor's copies take 256 KiB of f32. */
enum { PIECE = 1 << 16 };

void wf_pipeline_grads_free(wf_pipeline *pipe)
{
    wf_pipeline_grads *g = &pipe->grads;
    for (int64_t i = 0; g->sum && i < g->n; i++)
        wf_tensor_free(g->sum[i]);
    free(g->sum);
    free(g->kept);
    free(g->reached);
    *g = (wf_pipeline_grads){0};
}

/* The model may have changed since the last step: a parameter added is a new entry, and all memory is taken again. */
static wf_status list_params(wf_pipeline *pipe)
{
    wf_pipeline_grads *g = &pipe->grads;
    int64_t n;
    wf_param *const *param;
    WF_TRY(wf_layer_params(pipe->model, &n, &param));
    if (!g->sum || g->n != n) {
        wf_pipeline_grads_free(pipe);
        g->sum = wf_calloc(pipe->ctx, (size_t)n + 1, sizeof(*g->sum));
        g->kept = wf_calloc(pipe->ctx, (size_t)n + 1, sizeof(*g->kept));
        g->reached = wf_calloc(pipe->ctx, (size_t)n + 1, sizeof *g->reached);
        if (!g->sum || !g->kept || !g->reached)
            return wf_error_code();
        g->n = n;
    }
    g->param = param;
    memset(g->reached, 0, (size_t)n * sizeof *g->reached);
    return WF_OK;
}

/* From here to wf_pipeline_grads_end the parameters' `grad` points to sums of this file; the program's own wait in
 * `kept`. */
wf_status wf_pipeline_grads_begin(wf_pipeline *pipe)
{
    wf_pipeline_grads *g = &pipe->grads;
    WF_TRY(list_params(pipe));
    for (int64_t i = 0; i < g->n; i++) {
        const wf_param *p = g->param[i];
        /* A parameter that was replaced (wf_parallelize) has another shape. */
        if (g->sum[i] && (!wf_shape_equal(g->sum[i]->shape, p->shape) || g->sum[i]->order != p->order)) {
            wf_tensor_free(g->sum[i]);
            g->sum[i] = NULL;
        }
        if (p->trainable && !g->sum[i])
            WF_NEED(g->sum[i] = wf_tensor_new_ordered(p->ctx, p->dtype, p->shape, p->order));
    }
    for (int64_t i = 0; i < g->n; i++) {
        g->kept[i] = g->param[i]->grad;
        if (g->param[i]->trainable)
            g->param[i]->grad = g->sum[i];
    }
    g->swapped = true;
    return WF_OK;
}

/* Safe to call twice, and after a begin that failed. */
void wf_pipeline_grads_end(wf_pipeline *pipe)
{
    wf_pipeline_grads *g = &pipe->grads;
    for (int64_t i = 0; g->swapped && i < g->n; i++)
        g->param[i]->grad = g->kept[i];
    g->swapped = false;
}

bool wf_pipeline_grads_reached(const wf_pipeline *pipe)
{
    for (int64_t i = 0; i < pipe->grads.n; i++)
        if (pipe->grads.reached[i])
            return true;
    return false;
}

/* A tied parameter that no chunk reached still takes part in the sum over stages: it gives zeros. */
wf_tensor *wf_pipeline_grads_of(wf_pipeline *pipe, const wf_param *param)
{
    wf_pipeline_grads *g = &pipe->grads;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->param[i] != param)
            continue;
        if (!g->reached[i])
            WF_TRY_NULL(wf_tensor_fill(g->sum[i], 0));
        g->reached[i] = true;
        return g->sum[i];
    }
    WF_FAIL_NULL(WF_ERR_STATE, "%s, which is tied, is no parameter of its stage", wf_param_path(param));
}

/* Every chunk adds to what the chunks before have left; the first one to nothing: its sum starts from 0 here. */
wf_status wf_pipeline_grads_plan(void *user, int64_t n, wf_param *const *order)
{
    const wf_pipeline *pipe = user;
    const wf_pipeline_grads *g = &pipe->grads;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < g->n; i++)
            if (g->param[i] == order[k] && !g->reached[i]) {
                WF_TRY(wf_tensor_fill(g->sum[i], 0));
                g->reached[i] = true;
            }
    return WF_OK;
}

/* The loss' gradient many times, in the type of what it is multiplied with. The host does not read it: a captured step
 * could not. */
static wf_tensor *repeated(const wf_tensor *dy, wf_dtype dtype, int64_t count)
{
    wf_tensor *many = wf_tensor_new(dy->ctx, dtype, WF_SHAPE(count));
    WF_NEED_NULL(many);
    const wf_strided one = {.data = dy->data, .dtype = dy->dtype, .rank = 1, .dim = {count}, .stride = {0}};
    const wf_strided all = wf_tensor_strided(many);
    if (dy->ctx->k->copy(dy->ctx, &one, &all, false) == WF_OK)
        return many;
    wf_tensor_free(many);
    return wf_error_null();
}

static wf_array elements(const wf_tensor *x, int64_t first, int64_t count)
{
    return (wf_array){
        .data = (char *)x->data + (size_t)first * wf_dtype_size(x->dtype), .dtype = x->dtype, .shape = WF_SHAPE(count)};
}

/* to (+)= from * dy / weight, by pieces, so that the factor takes little memory. One multiplication gives both the mean
 * over the batch and the gradient that comes to the loss. */
static wf_status scale_into(const wf_tensor *from, const wf_tensor *dy, double weight, const wf_tensor *to, bool add)
{
    const int64_t all = wf_tensor_count(from), piece = all < PIECE ? all : PIECE;
    WF_CHECK(from->order == to->order && from->dtype == to->dtype, WF_ERR_STATE,
             "a gradient of a pipeline has another type or order than its parameter");
    wf_tensor *factor = piece > 0 ? repeated(dy, to->dtype, piece) : NULL;
    wf_status status = piece == 0 || factor ? WF_OK : wf_error_code();
    for (int64_t at = 0; at < all && status == WF_OK; at += piece) {
        const int64_t n = all - at < piece ? all - at : piece;
        const wf_array a = elements(from, at, n), b = elements(factor, 0, n), y = elements(to, at, n);
        const wf_binary_args args = {
            .op = WF_BINARY_MUL, .alpha = 1 / weight, .a = &a, .b = &b, .y = &y, .accumulate = add};
        status = from->ctx->k->binary(from->ctx, &args);
    }
    wf_tensor_free(factor);
    return status;
}

/* Called in the program's backward, where the optimizer has laid out its own buffers: sums are multiplied into them. */
static wf_status backward(wf_node *node)
{
    const double *weight = node->state;
    for (int i = 0; i < node->n_in; i++) {
        bool add = false;
        /* Not wf_node_wants, which leaves out copies of one gradient: every rank has its own part of the sum, whatever
         * the layout of the loss. */
        if (node->in[i]->run != node->run)
            continue;
        wf_tensor *grad = wf_node_grad(node, i, &add);
        WF_NEED(grad);
        WF_TRY(scale_into(wf_node_saved(node, i), wf_node_dy(node), *weight, grad, add));
    }
    return WF_OK;
}

static const wf_op pipeline_op = {.name = "pipeline", .backward = backward};

/* Called on every stage, also on one without parameters: all have a loss variable that the program treats alike. */
wf_var *wf_pipeline_grads_record(wf_pipeline *pipe, wf_tape *tape, wf_tensor *loss, double weight)
{
    const wf_pipeline_grads *g = &pipe->grads;
    const bool train = wf_tape_mode(tape) == WF_TRAIN;
    const size_t bytes = ((size_t)g->n + 1) * sizeof(void *);
    void *in = NULL, *saved = NULL;
    wf_status status = wf_pool_take_host(pipe->ctx, bytes, &in);
    if (status == WF_OK)
        status = wf_pool_take_host(pipe->ctx, bytes, &saved);
    wf_node_spec spec = {.op = &pipeline_op, .in = in, .saved = saved, .state = &weight, .state_bytes = sizeof weight};
    for (int64_t i = 0; status == WF_OK && train && i < g->n; i++) {
        /* A parameter that no chunk reached has no gradient, as in the serial program. */
        if (!g->reached[i])
            continue;
        wf_var *leaf = wf_param_var(tape, g->param[i]);
        if (!leaf)
            status = wf_error_take("a parameter", __FILE__, __LINE__);
        ((wf_var **)in)[spec.n_in++] = leaf;
        ((wf_tensor **)saved)[spec.n_saved++] = g->sum[i];
    }
    wf_var *var = NULL;
    if (status == WF_OK)
        var = wf_tape_record(tape, &spec, loss);
    else
        wf_tensor_free(loss);
    /* A stage without parameters takes part in every backward all the same. */
    if (var && train)
        var->needs_grad = true;
    wf_pool_give_host(pipe->ctx, in, in ? bytes : 0);
    wf_pool_give_host(pipe->ctx, saved, saved ? bytes : 0);
    if (status != WF_OK)
        return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
    return var;
}
