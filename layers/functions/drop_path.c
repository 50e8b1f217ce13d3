/* Stochastic depth: dropout of whole samples. The mask has one number for each sample, drawn as dropout draws, and is
 * saved: it is small. */
#include "layers/functions/functions_impl.h"
#include "layers/layerscale.h"

typedef struct drop_path_state {
    double keep; /* what is kept is divided by it */
} drop_path_state;

/* y (+)= x mask / keep */
static wf_status scale_samples(const drop_path_state *state, const wf_tensor *x, const wf_tensor *mask,
                               const wf_tensor *y, bool accumulate)
{
    WF_NEED(x);
    WF_NEED(y);
    const wf_strided from = wf_tensor_strided(x), to = wf_tensor_strided(y);
    wf_strided repeated = to;
    repeated.data = wf_tensor_array(mask).data;
    /* The mask is repeated along all dimensions but the samples. */
    for (int d = 0; d < repeated.rank; d++)
        repeated.stride[d] = d == 0;
    return x->ctx->k->fold(x->ctx, &(wf_fold_args){.op = WF_FOLD_MUL,
                                                   .alpha = 1 / state->keep,
                                                   .a = &from,
                                                   .b = &repeated,
                                                   .y = &to,
                                                   .accumulate = accumulate});
}

static wf_status drop_path_backward(wf_node *node)
{
    bool add = false;
    /* A NULL gradient is refused by scale_samples. */
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    return scale_samples(node->state, wf_node_dy(node), wf_node_saved(node, 0), dx, add);
}

static const wf_op drop_path_op = {.name = "drop_path", .backward = drop_path_backward};

/* Keyed by the place of each sample in the whole batch, so a sample that is divided over ranks is dropped on all of
 * them or none. */
static wf_random random_of(wf_tape *tape, const wf_tensor *x)
{
    const wf_layout *const layout = &x->layout;
    wf_layout samples = {.known = layout->known};
    if (layout->known) {
        samples.global = WF_SHAPE(layout->global.dim[0]);
        samples.box = (wf_box){.rank = 1, .lo = {layout->box.lo[0]}, .hi = {layout->box.hi[0]}};
    }
    return wf_tape_random(tape, WF_SHAPE(x->shape.dim[0]), &samples);
}

/* 1 where a sample is kept, else 0, in x's type. */
static wf_status fill_mask(double rate, const wf_random *random, wf_tensor *drawn, wf_tensor *mask)
{
    WF_NEED(drawn);
    WF_NEED(mask);
    const wf_array one = wf_tensor_array(drawn);
    const wf_strided c = wf_tensor_strided(drawn), y = wf_tensor_strided(mask);
    wf_ctx *ctx = mask->ctx;
    /* Ones go through dropout, which leaves 0 or 1 / keep; the choice then makes 1 of what is not 0. The scale comes
     * with the product. */
    WF_TRY(wf_tensor_fill(drawn, 1));
    WF_TRY(ctx->k->dropout(ctx, rate, random, &one, &one));
    WF_TRY(wf_tensor_fill(mask, 1));
    return ctx->k->fold(ctx, &(wf_fold_args){.op = WF_FOLD_WHERE, .a = &y, .c = &c, .y = &y});
}

static wf_tensor *mask_of(const wf_tensor *x, double rate, const wf_random *random)
{
    /* Numbers are drawn in float at least, so that rates are the same for narrow types. */
    const wf_dtype wide = x->dtype == WF_F64 ? WF_F64 : WF_F32;
    wf_tensor *drawn = wf_tensor_new_step(x->ctx, wide, WF_SHAPE(x->shape.dim[0]), WF_ROW_MAJOR);
    wf_tensor *mask = wf_tensor_new_step(x->ctx, x->dtype, WF_SHAPE(x->shape.dim[0]), WF_ROW_MAJOR);
    const wf_status status = fill_mask(rate, random, drawn, mask);
    wf_tensor_free(drawn);
    if (status == WF_OK)
        return mask;
    wf_tensor_free(mask);
    return wf_error_null();
}

wf_var *wf_drop_path(wf_var *x, double rate)
{
    if (!x)
        return NULL;
    WF_CHECK_NULL(rate >= 0 && rate < 1, WF_ERR_ARGUMENT, "drop_path: rate %g is not in [0, 1)", rate);
    /* No draw is counted here, so evaluation does not move the numbers of training. */
    if (rate == 0 || wf_tape_mode(x->tape) != WF_TRAIN)
        return x;
    WF_TRY_NULL(wf_function_check("drop_path", x, WF_ANY_FUNCTION));
    WF_CHECK_NULL(x->value->shape.rank > 0, WF_ERR_SHAPE, "drop_path of a scalar; samples are dimension 0");
    const drop_path_state state = {1 - rate};
    const wf_random random = random_of(x->tape, x->value);
    wf_tensor *v = wf_function_value(x), *mask = mask_of(x->value, rate, &random);
    wf_tensor *y = mask ? wf_tensor_new_like(x->value) : NULL;
    const wf_status status = y ? scale_samples(&state, v, mask, y, false) : wf_error_code();
    wf_var *out = wf_function_finish(status, x->tape,
                                     &(wf_node_spec){.op = &drop_path_op,
                                                     .n_in = 1,
                                                     .in = &x,
                                                     .n_saved = 1,
                                                     .saved = &mask,
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    wf_tensor_free(mask);
    wf_tensor_free(v);
    return out;
}
