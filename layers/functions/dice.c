/* Dice loss. One node makes the sums of each sample (or batch) and class, merged over the ranks that hold parts of them
 * before anything is divided: y [2,M,C] has u = sum p + sum t - 2 sum p t + bottom - top and v = sum p + sum t +
 * bottom, so that 1 - (2 sum p t + top) / v is u / v. Its backward sends nothing: every rank has the gradient of the
 * whole sums, and gives that of its own pixels.
 *
 * Merged sums give the same quotients on each of their ranks, but a loss has to be a part of a sum over these: each
 * rank takes an equal share, and backward undoes that in the gradient of the sums, which would be
 * summed over the shares. */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "core/opts.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"
#include "layers/loss.h"

typedef struct dice_state {
    bool batch, squared;
    double shares, top, bottom;
} dice_state;

/* Component k of y as an array of p's shape. */
static wf_strided sums_view(const wf_tensor *y, int k, bool batch, wf_shape shape)
{
    const wf_strided own = wf_tensor_strided(y);
    wf_strided view = {.dtype = own.dtype, .rank = shape.rank};
    view.data = (char *)own.data + (size_t)(k * own.stride[0]) * wf_dtype_size(own.dtype);
    for (int d = 0; d < shape.rank; d++)
        view.dim[d] = shape.dim[d];
    view.stride[0] = batch ? 0 : own.stride[1];
    view.stride[1] = own.stride[2];
    return view;
}

/* Component k of y by itself. */
static wf_array sums_array(const wf_tensor *y, int k)
{
    const int64_t count = y->shape.dim[1] * y->shape.dim[2];
    wf_array half = {.dtype = y->dtype, .shape = WF_SHAPE(count), .order = WF_ROW_MAJOR};
    half.data = (char *)y->data + (size_t)(k * count) * wf_dtype_size(y->dtype);
    return half;
}

static wf_status fold(wf_ctx *ctx, wf_fold_op op, double factor, const wf_strided *a, const wf_strided *b,
                      const wf_strided *y, bool accumulate)
{
    return ctx->k->fold(
        ctx,
        &(wf_fold_args){.op = op, .alpha = factor, .beta = factor, .a = a, .b = b, .y = y, .accumulate = accumulate});
}

/* to = alpha a + beta b, of components of y; b NULL: alpha a + beta. */
static wf_status combine(const wf_tensor *y, double alpha, const wf_array *a, double beta, const wf_array *b,
                         const wf_array *to)
{
    wf_tensor *constant = NULL;
    wf_array filled;
    wf_status status;
    if (!b) {
        WF_NEED(constant = wf_tensor_new_step(y->ctx, y->dtype, a->shape, WF_ROW_MAJOR));
        WF_TRY_OUT(wf_tensor_fill(constant, beta));
        filled = wf_tensor_array(constant);
    }
    WF_TRY_OUT(y->ctx->k->binary(
        y->ctx,
        &(wf_binary_args){
            .op = WF_BINARY_LINEAR, .alpha = alpha, .beta = b ? beta : 1, .a = a, .b = b ? b : &filled, .y = to}));
out:
    wf_tensor_free(constant);
    return status;
}

/* y: -2 sum p t and sum p + sum t (of squares) of the pixels here. */
static wf_status sum_parts(const dice_state *state, const wf_tensor *p, const wf_tensor *t, const wf_tensor *y)
{
    wf_ctx *ctx = p->ctx;
    const wf_strided a = wf_tensor_strided(p), b = wf_tensor_strided(t);
    const wf_strided both = sums_view(y, 0, state->batch, p->shape), all = sums_view(y, 1, state->batch, p->shape);
    WF_TRY(fold(ctx, WF_FOLD_MUL, -2, &a, &b, &both, false));
    if (!state->squared)
        return fold(ctx, WF_FOLD_LINEAR, 1, &a, &b, &all, false);
    WF_TRY(fold(ctx, WF_FOLD_MUL, 1, &a, &a, &all, false));
    return fold(ctx, WF_FOLD_MUL, 1, &b, &b, &all, true);
}

/* Collective over `axes`, on all ranks alike, whatever they have of the image. */
static wf_status merge_sums(const dice_state *state, const wf_tensor *p, unsigned axes, wf_tensor *y)
{
    const wf_array u = sums_array(y, 0), v = sums_array(y, 1);
    if (axes != 0) {
        wf_comm *comm = wf_mesh_comm(p->layout.mesh, axes);
        WF_NEED(comm);
        WF_TRY(wf_allreduce(comm, y, y, WF_SUM));
    }
    WF_TRY(combine(y, 1, &v, state->bottom, NULL, &v));
    WF_TRY(combine(y, 1, &u, 1, &v, &u));
    return combine(y, 1, &u, -state->top, NULL, &u);
}

/* dp = r0 (or 2 p r0) - 2 t r1, with r0 = du + dv and r1 = du of the sample's (or batch's) class. */
static wf_status dice_slopes(const dice_state *state, const wf_tensor *p, const wf_tensor *t, const wf_tensor *dy,
                             const wf_tensor *r, const wf_tensor *dp)
{
    WF_NEED(r);
    WF_NEED(dp);
    const wf_array du = sums_array(dy, 0), dv = sums_array(dy, 1), first = sums_array(r, 0);
    WF_TRY(combine(r, state->shares, &du, state->shares, &dv, &first));
    const wf_strided a = wf_tensor_strided(p), b = wf_tensor_strided(t), to = wf_tensor_strided(dp);
    const wf_strided r0 = sums_view(r, 0, state->batch, p->shape), r1 = sums_view(dy, 0, state->batch, p->shape);
    WF_TRY(fold(p->ctx, WF_FOLD_MUL, -2 * state->shares, &b, &r1, &to, false));
    return state->squared ? fold(p->ctx, WF_FOLD_MUL, 2, &a, &r0, &to, true)
                          : fold(p->ctx, WF_FOLD_LINEAR, 1, &r0, NULL, &to, true);
}

static wf_status dice_backward(wf_node *node)
{
    const wf_tensor *p = wf_node_saved(node, 0), *dy = wf_node_dy(node);
    wf_tensor *dp = wf_tensor_new_like(p), *r = wf_tensor_new_like(dy);
    const wf_status status = dice_slopes(node->state, p, wf_node_saved(node, 1), dy, r, dp);
    wf_tensor_free(r);
    if (status == WF_OK)
        return wf_function_give(node, 0, dp);
    wf_tensor_free(dp);
    return status;
}

static const wf_op dice_op = {.name = "dice", .backward = dice_backward};

/* One in the place of each label, else 0. */
static wf_tensor *one_hot(const wf_tensor *labels, const wf_tensor *like)
{
    const wf_order order = like->shape.rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    wf_tensor *t = wf_tensor_new_step(like->ctx, like->dtype, like->shape, order);
    wf_tensor *one = wf_tensor_new_step(like->ctx, like->dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    wf_tensor *at = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR);
    wf_status status = t && one && at ? wf_tensor_fill(one, 1) : wf_error_take("target", __FILE__, __LINE__);
    if (status == WF_OK) {
        const wf_array label = wf_tensor_array(at), up = wf_tensor_array(one), to = wf_tensor_array(t);
        status = like->ctx->k->nll_backward(like->ctx, &label, WF_NONE_IGNORED, &up, -1, &to);
    }
    wf_tensor_free(one);
    wf_tensor_free(at);
    if (status == WF_OK)
        return t;
    wf_tensor_free(t);
    return wf_error_null();
}

static wf_status check_dice(const wf_var *p, const wf_tensor *target, const wf_dice_opts *opts)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT], part[WF_PART_TEXT];
    const wf_tensor *x = p->value;
    const bool one_hot = target->shape.rank == x->shape.rank;
    WF_TRY(wf_loss_check_reduction("dice", (int)opts->reduction));
    WF_CHECK(x->shape.rank >= 2 && x->shape.rank <= 5, WF_ERR_SHAPE,
             "dice takes probabilities [N,C,...] of rank 2 to 5, not %s", wf_shape_text(x->shape, left));
    WF_CHECK(!one_hot || wf_shape_equal(target->shape, x->shape), WF_ERR_SHAPE,
             "dice takes a target of the shape %s%s or labels without its dimension 1, not %s",
             wf_shape_text(x->shape, left), wf_part_text(&x->layout, part), wf_shape_text(target->shape, right));
    WF_CHECK(!one_hot || !target->layout.known || wf_layout_equal(&x->layout, &target->layout), WF_ERR_SHAPE,
             "dice takes a target of the input's layout (%s), not (%s)", wf_layout_text(&x->layout, left),
             wf_layout_text(&target->layout, right));
    WF_CHECK(!opts->skip_background || !wf_layout_is_sharded(&x->layout, 1), WF_ERR_SHAPE,
             "dice with skip_background needs all of dimension 1, which is sharded: %s; wf_redistribute it first",
             wf_layout_text(&x->layout, left));
    WF_CHECK(!opts->skip_background || x->shape.dim[1] > 1, WF_ERR_SHAPE,
             "dice with skip_background of %s, which has no class but the background", wf_shape_text(x->shape, left));
    WF_CHECK(!opts->batch || !x->layout.chunk, WF_ERR_UNSUPPORTED,
             "dice with batch in a chunk of a pipeline, whose other samples are not known; leave batch out");
    return one_hot ? WF_OK : wf_labels_check("dice", p, target);
}

/* The uninitialised sums, [2,M,C], whole over the merged axes. */
static wf_tensor *sums_new(const wf_tensor *p, bool batch, unsigned merged)
{
    const int from[WF_MAX_RANK] = {-1, batch ? -1 : 0, 1, -1, -1, -1};
    const wf_shape shape = WF_SHAPE(2, batch ? 1 : p->shape.dim[0], p->shape.dim[1]);
    wf_layout own = p->layout, layout;
    char text[WF_LAYOUT_TEXT];
    for (int a = 0; a < WF_AXES; a++)
        if (merged >> a & 1) {
            own.placement[a] = WF_REPLICATED;
            own.dim[a] = 0;
            own.bounds[a] = NULL;
        }
    WF_CHECK_NULL(wf_layout_follow(&own, shape, from, &layout), WF_ERR_SHAPE, "dice cannot take an input that is %s",
                  wf_layout_text(&p->layout, text));
    wf_tensor *y = wf_tensor_new_step(p->ctx, p->dtype, shape, WF_ROW_MAJOR);
    if (!y || wf_tensor_set_layout(y, layout) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

static wf_status dice_run(const dice_state *state, const wf_tensor *p, const wf_tensor *t, unsigned merged,
                          wf_tensor *y)
{
    WF_NEED(p);
    WF_NEED(t);
    WF_NEED(y);
    WF_TRY(sum_parts(state, p, t, y));
    return merge_sums(state, p, merged, y);
}

static wf_var *dice_sums(const dice_state *state, wf_var *p, const wf_tensor *target, unsigned merged)
{
    wf_tensor *x = wf_function_value(p), *t = NULL, *y = sums_new(p->value, state->batch, merged);
    if (x && target->shape.rank == x->shape.rank)
        t = wf_tensor_dense(target, x->dtype, x->order);
    else if (x)
        t = one_hot(target, x);
    wf_status status = dice_run(state, x, t, merged, y);
    if (merged != 0) /* the others may wait in the sum */
        status = wf_comm_post_failure(wf_mesh_world(p->value->layout.mesh), status);
    wf_var *out = wf_function_finish(status, p->tape,
                                     &(wf_node_spec){.op = &dice_op,
                                                     .n_in = 1,
                                                     .in = &p,
                                                     .n_saved = 2,
                                                     .saved = (wf_tensor *const[]){x, t},
                                                     .state = state,
                                                     .state_bytes = sizeof *state},
                                     y);
    wf_tensor_free(x);
    wf_tensor_free(t);
    return out;
}

/* u / v of the classes that count, [M,C]. */
static wf_var *quotients(wf_var *sums, bool skip_background)
{
    wf_var *part[2];
    if (!sums || !wf_split(sums, 0, 2, NULL, part))
        return NULL;
    /* A sum over dimension 0, of length 1, takes it away whatever cuts the others. */
    wf_var *q = wf_sum_over(wf_div(part[0], part[1]), WF_DIMS(0), false);
    if (!q || !skip_background)
        return q;
    wf_box box = wf_box_of_shape(q->value->shape);
    box.lo[1] = 1;
    return wf_slice(q, box);
}

/* An equal share of what every rank of the axes has: all shares make the whole. */
static wf_var *share_of(wf_var *y, unsigned axes, double shares)
{
    if (!y || axes == 0)
        return y;
    wf_var *share = wf_scale(y, 1 / shares);
    if (!share)
        return NULL;
    wf_layout layout = share->value->layout;
    for (int a = 0; a < WF_AXES; a++)
        if (axes >> a & 1)
            layout.placement[a] = WF_PARTIAL;
    WF_TRY_NULL(wf_tensor_set_layout(share->value, layout));
    return share;
}

wf_var *wf_dice(wf_var *p, const wf_tensor *target, wf_dice_opts opts)
{
    p = wf_widened(p);
    if (!p)
        return NULL;
    if (!target)
        return wf_error_need_null("dice", "the target", __FILE__, __LINE__);
    WF_TRY_NULL(wf_function_check("dice", p, WF_ANY_FUNCTION));
    WF_TRY_NULL(check_dice(p, target, &opts));
    const wf_layout *layout = &p->value->layout;
    const unsigned samples = opts.batch ? wf_layout_axes(layout, 1) : 0;
    const unsigned merged = samples | wf_layout_axes(layout, ~3u);
    /* A scalar is a part of a sum over all that cut its input, as other losses are, so that they may be added to it. */
    const unsigned shared = opts.reduction == WF_REDUCTION_NONE ? samples : merged;
    dice_state state = {opts.batch, opts.squared, 1, wf_opt(opts.smooth_top, 1e-5), wf_opt(opts.smooth_bottom, 1e-5)};
    for (int a = 0; a < WF_AXES; a++)
        state.shares *= shared >> a & 1 ? wf_mesh_size(layout->mesh, (wf_axis)a) : 1;
    const wf_shape whole = layout->known ? layout->global : p->value->shape;
    wf_var *y = quotients(dice_sums(&state, p, target, merged), opts.skip_background);
    if (opts.reduction != WF_REDUCTION_NONE)
        y = opts.reduction == WF_REDUCTION_SUM ? wf_sum(y) : wf_mean(y);
    y = share_of(y, shared, state.shares);
    if (!y || opts.reduction != WF_REDUCTION_MEAN)
        return y;
    /* It stands for the samples, of a batch too, and each rank for its share of the elements. */
    wf_reduction mark = wf_reduction_of(y);
    const int64_t own = wf_shape_count(p->value->shape), all = wf_shape_count(whole);
    mark.loss_count = (double)whole.dim[0];
    mark.loss_part = all > 0 ? (double)own / (double)all * mark.loss_count : 0;
    return wf_reduction_mark(y, &mark);
}
