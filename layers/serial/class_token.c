/* A learned token in front of those of every sample (ViT). Its output is what a classifier reads. Samples may be
 * divided over ranks, tokens and features may not. */
#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"
#include "layers/transformer.h"

typedef struct class_state {
    int64_t features;
    wf_param *w;
} class_state;

/* Tokens [lo, hi) of every sample. */
static wf_tensor *tokens_between(const wf_tensor *x, int64_t lo, int64_t hi)
{
    wf_box box = wf_box_of_shape(x->shape);
    box.lo[1] = lo;
    box.hi[1] = hi;
    return wf_tensor_view(x, box);
}

static wf_status copy_strided(wf_ctx *ctx, const wf_strided *from, const wf_tensor *to, bool add)
{
    WF_NEED(to);
    const wf_strided dst = wf_tensor_strided(to);
    return ctx->k->copy(ctx, from, &dst, add);
}

/* The sum over samples of the gradient of the first token. */
static wf_status give_token(wf_node *node, const wf_tensor *first)
{
    bool add = false;
    wf_tensor *grad = wf_node_grad(node, 1, &add);
    WF_NEED(grad);
    const wf_strided from = wf_tensor_strided(first);
    wf_strided to = from;
    to.data = grad->data;
    to.dtype = grad->dtype;
    /* Strides of 0 sum over the samples: the token is the same in all of them. */
    to.stride[0] = to.stride[1] = 0;
    to.stride[2] = 1;
    return first->ctx->k->fold(
        first->ctx, &(wf_fold_args){.op = WF_FOLD_LINEAR, .alpha = 1, .a = &from, .y = &to, .accumulate = add});
}

static wf_status backward_class(wf_node *node)
{
    const wf_tensor *const dy = wf_node_dy(node);
    wf_status status = WF_OK;
    if (wf_node_wants(node, 1)) {
        wf_tensor *first = tokens_between(dy, 0, 1);
        status = first ? give_token(node, first) : wf_error_code();
        wf_tensor_free(first);
    }
    if (status != WF_OK || !wf_node_wants(node, 0))
        return status;
    wf_tensor *rest = tokens_between(dy, 1, dy->shape.dim[1]);
    wf_tensor *dx = rest ? wf_tensor_dense(rest, rest->dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(rest);
    return wf_function_give(node, 0, dx);
}

static const wf_op class_op = {.name = "class_token", .backward = backward_class};

static wf_status fill_tokens(const wf_tensor *x, const wf_tensor *token, const wf_tensor *y)
{
    WF_NEED(y);
    wf_tensor *first = tokens_between(y, 0, 1), *rest = tokens_between(y, 1, y->shape.dim[1]);
    wf_status status = first && rest ? WF_OK : wf_error_code();
    if (status == WF_OK) {
        wf_strided from = wf_tensor_strided(first);
        from.data = token->data;
        from.dtype = token->dtype;
        /* Strides of 0 write the one token to every sample. */
        from.stride[0] = from.stride[1] = 0;
        from.stride[2] = 1;
        const wf_strided others = wf_tensor_strided(x);
        status = copy_strided(y->ctx, &from, first, false);
        if (status == WF_OK)
            status = copy_strided(y->ctx, &others, rest, false);
    }
    wf_tensor_free(first);
    wf_tensor_free(rest);
    return status;
}

static wf_var *forward_class(wf_layer *layer, wf_var *x)
{
    const class_state *s = layer->state;
    char text[WF_LAYOUT_TEXT];
    WF_TRY_NULL(wf_function_check("class_token", x, WF_ANY_FUNCTION));
    const wf_layout *const layout = &x->value->layout;
    const wf_shape shape = x->value->shape;
    WF_CHECK_NULL(shape.rank == 3 && shape.dim[2] == s->features, WF_ERR_SHAPE,
                  "class_token \"%s\": input %s, should be [N,T,%lld]", wf_layer_path(layer),
                  wf_shape_text(shape, text), (long long)s->features);
    WF_CHECK_NULL(!wf_layout_is_sharded(layout, 1) && !wf_layout_is_sharded(layout, 2), WF_ERR_SHAPE,
                  "class_token \"%s\" needs whole samples, its input is %s; wf_redistribute it first",
                  wf_layer_path(layer), wf_layout_text(layout, text));
    /* Each rank sums over its own samples, so the token's gradients are summed over ranks later. */
    wf_param_sum_parts(s->w, layout, ~0u);
    wf_var *w = wf_param_var(x->tape, s->w);
    if (!w)
        return NULL;
    wf_tensor *y = wf_output("class_token", x, WF_SHAPE(shape.dim[0], shape.dim[1] + 1, s->features), WF_ROW_MAJOR,
                             (int[]){0, -1, 2});
    return wf_function_finish(fill_tokens(x->value, w->value, y), x->tape,
                              &(wf_node_spec){.op = &class_op, .n_in = 2, .in = (wf_var *const[]){x, w}}, y);
}

static const wf_layer_kind class_kind = {.name = "class_token", .forward = forward_class};

wf_layer *wf_class_token(wf_ctx *ctx, wf_class_token_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.features >= 1, WF_ERR_ARGUMENT, "class_token: features is %lld, should be at least 1",
                  (long long)o.features);
    wf_layer *layer = wf_layer_new(ctx, &class_kind, sizeof(class_state));
    if (!layer)
        return NULL;
    class_state *s = layer->state;
    s->features = o.features;
    wf_layer_note(layer, "class_token");
    s->w = wf_layer_add_param(layer, "W",
                              (wf_param_opts){.dtype = ctx->dtype, .shape = WF_SHAPE(o.features), .init = o.w_init});
    if (s->w)
        return layer;
    wf_layer_free(layer);
    return NULL;
}
