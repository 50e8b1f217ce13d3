/* Functions of scores with a label for each row: negative log likelihood, softmax and cross entropy in one. Means
 * are over the rows that count, or by the weights of their labels, of all ranks that hold parts of the scores. The
 * cross entropy takes classes that are cut (entropy_merge.c joins the rows): then a rank's loss is the part of its
 * classes, and its gradient needs no message. */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"
#include "layers/loss.h"

wf_status wf_labels_check_rows(const char *what, const wf_var *scores, const wf_tensor *labels)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT], part[WF_PART_TEXT];
    const wf_shape *s = &scores->value->shape, *l = &labels->shape;
    WF_TRY(wf_function_check(what, scores, WF_ANY_FUNCTION));
    /* Labels of other types would be rounded on the way. */
    WF_CHECK(labels->dtype == WF_U8 || labels->dtype == WF_I32 || labels->dtype == WF_I64, WF_ERR_DTYPE,
             "%s takes labels of type u8, i32 or i64, not %s", what, wf_dtype_name(labels->dtype));
    bool same = s->rank >= 2 && s->rank <= 5 && l->rank == s->rank - 1 && l->dim[0] == s->dim[0];
    for (int d = 2; same && d < s->rank; d++)
        same = l->dim[d - 1] == s->dim[d];
    WF_CHECK(same, WF_ERR_SHAPE, "%s takes scores [N,C,...] of rank 2 to 5 and labels [N,...], not %s%s and %s", what,
             wf_shape_text(*s, left), wf_part_text(&scores->value->layout, part), wf_shape_text(*l, right));
    const wf_layout *p = &scores->value->layout, *q = &labels->layout;
    /* Labels without a layout are taken to be this rank's; with one it has to be the batch's. */
    WF_CHECK(!q->known || (p->known && p->box.lo[0] == q->box.lo[0] && p->global.dim[0] == q->global.dim[0]),
             WF_ERR_SHAPE, "%s has scores (%s) and labels (%s), which are not of the same samples", what,
             wf_layout_text(p, left), wf_layout_text(q, right));
    return WF_OK;
}

wf_status wf_labels_check(const char *what, const wf_var *scores, const wf_tensor *labels)
{
    char text[WF_LAYOUT_TEXT];
    WF_TRY(wf_labels_check_rows(what, scores, labels));
    WF_CHECK(!wf_layout_is_sharded(&scores->value->layout, 1), WF_ERR_SHAPE,
             "%s needs all of dimension 1, which is sharded: %s; wf_redistribute it first", what,
             wf_layout_text(&scores->value->layout, text));
    return WF_OK;
}

/* The axes that cut the classes, all of whose ranks have the same rows: sums over them join what belongs to one row. */
unsigned wf_labels_class_axes(const wf_layout *layout)
{
    return wf_layout_axes(layout, 1u << 1);
}

int64_t wf_labels_ignored(const wf_label_opts *opts)
{
    return opts->ignores ? opts->ignored : WF_NONE_IGNORED;
}

wf_status wf_ignored_check(const char *what, bool ignores, int64_t ignored)
{
    WF_CHECK(!ignores || ignored != WF_NONE_IGNORED, WF_ERR_ARGUMENT, "%s: ignored is %lld, should be %lld or more",
             what, (long long)ignored, (long long)(WF_NONE_IGNORED + 1));
    return WF_OK;
}

typedef struct label_state {
    double scale;
    int64_t ignored;
} label_state;

static wf_status nll_backward(wf_node *node)
{
    const label_state *state = node->state;
    const wf_tensor *logp = node->in[0]->value;
    /* The order in which forward read it. */
    const wf_order order = logp->shape.rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    wf_tensor *dx = wf_tensor_new_step(logp->ctx, logp->dtype, logp->shape, order);
    WF_NEED(dx);
    const wf_array labels = wf_tensor_array(wf_node_saved(node, 0)), to = wf_tensor_array(dx);
    const wf_array dloss = wf_tensor_array(wf_node_dy(node));
    const wf_status status = logp->ctx->k->nll_backward(logp->ctx, &labels, state->ignored, &dloss, state->scale, &to);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op nll_op = {.name = "nll", .backward = nll_backward};

static wf_status nll_run(const label_state *state, const wf_tensor *logp, const wf_tensor *labels, const wf_tensor *y)
{
    WF_NEED(logp);
    WF_NEED(labels);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(logp), at = wf_tensor_array(labels), to = wf_tensor_array(y);
    WF_TRY(logp->ctx->k->nll_forward(logp->ctx, &from, &at, state->ignored, state->scale, &to));
    return WF_OK;
}

/* Reads a number from the device, so the host waits here: only losses that ignore labels, or weigh classes, do. */
static wf_status count_labels(wf_ctx *ctx, const wf_tensor *labels, int64_t ignored, int64_t *count)
{
    wf_tensor *counted = wf_tensor_new_step(ctx, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(counted);
    wf_status status;
    const wf_array at = wf_tensor_array(labels), to = wf_tensor_array(counted);
    WF_TRY_OUT(ctx->k->count_labels(ctx, &at, ignored, &to));
    WF_TRY_OUT(wf_ctx_read(ctx, count, counted->data, sizeof *count));
out:
    wf_tensor_free(counted);
    return status;
}

/* A row for each label with the weight of its class, 0 where it is ignored. */
static wf_status take_weights(const wf_tensor *labels, int64_t ignored, const wf_tensor *table, const wf_tensor *taken)
{
    WF_NEED(table);
    WF_NEED(taken);
    const wf_array rows = wf_tensor_array(table), index = wf_tensor_array(labels), to = wf_tensor_array(taken);
    return labels->ctx->k->take_forward(
        labels->ctx,
        &(wf_take_args){.table = &rows, .index = &index, .y = &to, .whole = rows.shape.dim[0], .ignored = ignored});
}

/* In f64, so that the sum of many weights keeps its digits. */
static wf_status sum_weights(const wf_tensor *labels, int64_t ignored, const wf_tensor *weight, double *sum)
{
    wf_ctx *ctx = labels->ctx;
    wf_tensor *wide = wf_tensor_copy(weight, WF_F64, WF_ROW_MAJOR), *table = NULL;
    wf_tensor *taken = wf_tensor_new_step(ctx, WF_F64, WF_SHAPE(wf_tensor_count(labels), 1), WF_ROW_MAJOR);
    wf_tensor *total = wf_tensor_new_step(ctx, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR);
    wf_status status;
    if (wide)
        table = wf_tensor_recast(wide, WF_SHAPE(weight->shape.dim[0], 1), WF_ROW_MAJOR);
    WF_TRY_OUT(take_weights(labels, ignored, table, taken));
    WF_TRY_OUT(total ? WF_OK : wf_error_take("total", __FILE__, __LINE__));
    const wf_array from = wf_tensor_array(taken), to = wf_tensor_array(total);
    WF_TRY_OUT(ctx->k->sum(ctx, &from, 1, &to));
    WF_TRY_OUT(wf_ctx_read(ctx, sum, total->data, sizeof *sum));
out:
    wf_tensor_free(wide);
    wf_tensor_free(table);
    wf_tensor_free(taken);
    wf_tensor_free(total);
    return status;
}

/* What the rows of this rank count for, in a mean that is not over all of them. A rank may have none that counts. */
static wf_status count_rows(wf_ctx *ctx, const wf_tensor *labels, const wf_label_opts *opts, double *own)
{
    int64_t count = 0;
    if (opts->weight)
        return sum_weights(labels, wf_labels_ignored(opts), opts->weight, own);
    WF_TRY(count_labels(ctx, labels, opts->ignored, &count));
    *own = (double)count;
    return WF_OK;
}

/* The mean is over the rows that count, of all ranks that hold parts of x. */
static wf_status weigh_counted(const wf_var *x, const wf_tensor *labels, const wf_label_opts *opts,
                               wf_reduction *reduction)
{
    const wf_layout *layout = &x->value->layout;
    double own = 0, all;
    /* Ranks along the classes have the same rows, so they are not counted again. */
    const unsigned classes = wf_labels_class_axes(layout), axes = wf_layout_axes(layout, ~0U) & ~classes;
    if (opts->reduction != WF_REDUCTION_MEAN || (!opts->ignores && !opts->weight))
        return WF_OK;
    wf_status status =
        labels ? count_rows(x->value->ctx, labels, opts, &own) : wf_error_take("labels", __FILE__, __LINE__);
    if (axes != 0) /* the others may wait in the sum */
        status = wf_comm_post_failure(wf_mesh_world(layout->mesh), status);
    WF_TRY(status);
    all = own;
    if (axes != 0)
        WF_TRY(wf_allreduce_f64(wf_mesh_comm(layout->mesh, axes), &all, 1, WF_SUM));
    /* Only ignored rows on all ranks, or weights of 0: the mean is 0, not NaN. */
    reduction->scale = all > 0 ? 1.0 / all : 0;
    reduction->loss_count = all;
    reduction->loss_part = own;
    /* Each rank along the classes has a part of a row's loss. */
    for (int a = 0; a < WF_AXES; a++)
        if (classes >> a & 1)
            reduction->loss_part /= wf_mesh_size(layout->mesh, (wf_axis)a);
    reduction->loss_counted = true;
    return WF_OK;
}

/* Classes are no samples: a mean is over rows of scores. */
static wf_reduction reduction_of_rows(const wf_var *scores, wf_loss_reduction reduction)
{
    return reduction == WF_REDUCTION_MEAN ? wf_reduction_mean(scores, 1) : wf_reduction_of(scores);
}

static wf_status check_label_opts(const char *what, int64_t classes, const wf_label_opts *opts)
{
    char text[WF_SHAPE_TEXT];
    WF_CHECK(opts->smoothing >= 0 && opts->smoothing <= 1, WF_ERR_ARGUMENT, "%s: smoothing is %g, should be in [0, 1]",
             what, opts->smoothing);
    WF_TRY(wf_ignored_check(what, opts->ignores, opts->ignored));
    WF_TRY(wf_loss_check_reduction(what, (int)opts->reduction));
    const wf_tensor *w = opts->weight;
    WF_CHECK(!w || (w->shape.rank == 1 && w->shape.dim[0] == classes), WF_ERR_SHAPE,
             "%s of %lld classes takes weights [%lld], not %s", what, (long long)classes, (long long)classes,
             wf_shape_text(w->shape, text));
    return WF_OK;
}

/* Scores times the weights of their classes: a row's loss reads the score at its label alone. */
static wf_var *weigh_classes(wf_var *logp, const wf_tensor *weight)
{
    const wf_layout *layout = &logp->value->layout;
    wf_shape shape = {.rank = logp->value->shape.rank - 1, .dim = {weight->shape.dim[0]}};
    for (int d = 1; d < shape.rank; d++)
        shape.dim[d] = 1;
    wf_tensor *dense = wf_tensor_dense(weight, logp->value->dtype, WF_ROW_MAJOR);
    wf_tensor *table = dense ? wf_tensor_recast(dense, shape, WF_ROW_MAJOR) : NULL;
    /* A table that is whole on every rank, which wf_mul is told by a layout. */
    if (table && layout->known)
        table->layout =
            (wf_layout){.known = true, .mesh = layout->mesh, .global = shape, .box = wf_box_of_shape(shape)};
    wf_var *weighted = table ? wf_mul(logp, wf_input(logp->tape, table)) : NULL;
    wf_tensor_free(dense);
    wf_tensor_free(table);
    return weighted;
}

wf_var *wf_nll(wf_var *logp, const wf_tensor *labels, wf_label_opts opts)
{
    logp = wf_widened(logp);
    if (!logp)
        return NULL;
    if (!labels)
        return wf_error_need_null("nll", "the tensor of labels", __FILE__, __LINE__);
    WF_TRY_NULL(wf_labels_check("nll", logp, labels));
    WF_TRY_NULL(check_label_opts("nll", logp->value->shape.dim[1], &opts));
    /* What cross entropy of logits does in one pass is not offered here in another form. */
    WF_CHECK_NULL(opts.smoothing == 0 && opts.reduction == WF_REDUCTION_MEAN, WF_ERR_UNSUPPORTED,
                  "nll takes no smoothing and no reduction but the mean; wf_softmax_cross_entropy does, of logits");
    if (opts.weight) {
        const wf_layout layout = logp->value->layout;
        logp = weigh_classes(logp, opts.weight);
        if (!logp && wf_layout_axes(&layout, ~0U) != 0) /* the others may wait in the sum of weights */
            (void)wf_comm_post_failure(wf_mesh_world(layout.mesh), wf_error_code());
    }
    WF_NEED_NULL(logp);
    wf_reduction reduction = reduction_of_rows(logp, opts.reduction);
    wf_tensor *x = wf_dense_value(logp), *y = wf_reduction_scalar(logp);
    /* Labels are few and small: a copy costs little. */
    wf_tensor *at = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR);
    wf_status status = weigh_counted(logp, at, &opts, &reduction);
    const label_state state = {reduction.scale, wf_labels_ignored(&opts)};
    if (status == WF_OK)
        status = nll_run(&state, x, at, y);
    wf_var *out = wf_function_finish(status, logp->tape,
                                     &(wf_node_spec){.op = &nll_op,
                                                     .n_in = 1,
                                                     .in = &logp,
                                                     .n_saved = 1,
                                                     .saved = &at,
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    wf_tensor_free(x);
    wf_tensor_free(at);
    return wf_reduction_mark(out, &reduction);
}

typedef struct entropy_state {
    double scale, smoothing;
    int64_t ignored;
    int64_t first, whole; /* of the classes, where the scores have a part of them */
} entropy_state;

/* Saved: scores, labels, log_sum, weights and the largest scores (which may be absent). Makes no f32 copy of bf16 and
 * f16: kernels widen what they read, and round the gradient once. */
static wf_status entropy_slopes(wf_node *node, const wf_tensor *dx)
{
    const entropy_state *state = node->state;
    const wf_tensor *x = wf_node_saved(node, 0), *weight = wf_node_saved(node, 3), *most = wf_node_saved(node, 4);
    WF_NEED(dx);
    const wf_array from = wf_tensor_array(x), labels = wf_tensor_array(wf_node_saved(node, 1));
    const wf_array log_sum = wf_tensor_array(wf_node_saved(node, 2)), dloss = wf_tensor_array(wf_node_dy(node));
    const wf_array weights = wf_tensor_array(weight), to = wf_tensor_array(dx), high = wf_tensor_array(most);
    const wf_entropy_args args = {.x = &from,
                                  .labels = &labels,
                                  .ignored = state->ignored,
                                  .scale = state->scale,
                                  .weight = weight ? &weights : NULL,
                                  .smoothing = state->smoothing,
                                  .log_sum = &log_sum,
                                  .dloss = &dloss,
                                  .dx = &to,
                                  .most = most ? &high : NULL,
                                  .first = state->first,
                                  .whole = state->whole};
    return x->ctx->k->entropy_backward(x->ctx, &args);
}

static wf_status entropy_backward(wf_node *node)
{
    wf_tensor *dx = wf_tensor_new_like(wf_node_saved(node, 0));
    const wf_status status = entropy_slopes(node, dx);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op entropy_op = {.name = "softmax_cross_entropy", .backward = entropy_backward};

/* Tensors that a loss of scores keeps or makes. `weight` is wide, since sums are. */
typedef struct entropy_tensors {
    wf_tensor *x, *labels, *log_sum, *weight, *most, *y; /* most: of scores whose classes are cut */
} entropy_tensors;

/* Without `losses`: the first of the two calls of scores whose classes are cut. */
static wf_status entropy_run(const entropy_state *state, const entropy_tensors *t, bool losses)
{
    WF_NEED(t->x);
    WF_NEED(t->labels);
    WF_NEED(t->log_sum);
    WF_NEED(t->y);
    const wf_array from = wf_tensor_array(t->x), at = wf_tensor_array(t->labels), sums = wf_tensor_array(t->log_sum);
    const wf_array weights = wf_tensor_array(t->weight), to = wf_tensor_array(t->y), most = wf_tensor_array(t->most);
    return t->x->ctx->k->entropy_forward(t->x->ctx, &(wf_entropy_args){.x = &from,
                                                                       .labels = &at,
                                                                       .ignored = state->ignored,
                                                                       .scale = state->scale,
                                                                       .weight = t->weight ? &weights : NULL,
                                                                       .smoothing = state->smoothing,
                                                                       .log_sum = &sums,
                                                                       .loss = losses ? &to : NULL,
                                                                       .most = t->most ? &most : NULL,
                                                                       .first = state->first,
                                                                       .whole = state->whole});
}

/* The largest scores and the sums of rows of all classes, of which this rank has some. Each rank has the largest score
 * and the sum of its own classes; the merge makes those of all from them. */
static wf_status entropy_merge(const entropy_state *state, const entropy_tensors *t, const wf_layout *layout,
                               unsigned axes)
{
    WF_NEED(t->most);
    WF_TRY(entropy_run(state, t, false));
    return wf_entropy_merge(layout->mesh, axes, t->most, t->log_sum);
}

/* `status`: of what was done before. Only failures before the merge are known to this rank alone: afterwards all that
 * share a row have the same. */
static wf_status entropy_forward(wf_status status, const entropy_state *state, const entropy_tensors *t,
                                 const wf_layout *layout)
{
    const unsigned axes = wf_labels_class_axes(layout);
    /* A rank that failed says so; the others would wait in the merge. */
    if (axes != 0) {
        if (status == WF_OK)
            status = entropy_merge(state, t, layout, axes);
        status = wf_comm_post_failure(wf_mesh_world(layout->mesh), status);
    }
    WF_TRY(status);
    status = entropy_run(state, t, true);
    if (axes == 0 || t->y->shape.rank == 0)
        return status;
    /* Losses of rows are parts too; a scalar is summed by the optimizer's count of parts. */
    WF_TRY(wf_comm_post_failure(wf_mesh_world(layout->mesh), status)); /* the others may wait in the sum of rows */
    return wf_entropy_sum_rows(layout->mesh, axes, t->y);
}

/* Losses of rows, of the labels' shape and with the scores' layout without the classes. */
static wf_tensor *rows_of_losses(const wf_var *logits, wf_dtype dtype, wf_shape shape)
{
    static const int from[WF_MAX_RANK] = {0, 2, 3, 4, -1, -1};
    wf_layout whole = logits->value->layout, layout;
    char text[WF_LAYOUT_TEXT];
    /* Losses are summed over the axes that cut the classes. */
    for (int a = 0; a < WF_AXES; a++)
        if (wf_labels_class_axes(&logits->value->layout) >> a & 1) {
            whole.placement[a] = WF_REPLICATED;
            whole.dim[a] = 0;
            whole.bounds[a] = NULL;
        }
    WF_CHECK_NULL(wf_layout_follow(&whole, shape, from, &layout), WF_ERR_SHAPE,
                  "softmax_cross_entropy cannot take an input that is %s; wf_redistribute it first",
                  wf_layout_text(&whole, text));
    wf_tensor *y = wf_tensor_new_step(logits->value->ctx, dtype, shape, WF_ROW_MAJOR);
    if (y)
        y->layout = layout;
    return y;
}

wf_status wf_labels_post(const wf_layout *layout, unsigned axes, wf_status status)
{
    return axes != 0 ? wf_comm_post_failure(wf_mesh_world(layout->mesh), status) : status;
}

static wf_status check_entropy(const wf_var *logits, int64_t classes, const wf_tensor *labels,
                               const wf_label_opts *opts)
{
    if (!labels)
        return wf_error_take("softmax_cross_entropy: the tensor of labels", __FILE__, __LINE__);
    WF_TRY(wf_labels_check_rows("softmax_cross_entropy", logits, labels));
    return check_label_opts("softmax_cross_entropy", classes, opts);
}

wf_var *wf_softmax_cross_entropy(wf_var *logits, const wf_tensor *labels, wf_label_opts opts)
{
    if (!logits)
        return NULL;
    WF_TRY_NULL(wf_function_check("softmax_cross_entropy", logits, WF_ANY_FUNCTION));
    const wf_layout *const layout = &logits->value->layout;
    const int64_t whole = layout->known ? layout->global.dim[1] : logits->value->shape.dim[1];
    const int64_t first = layout->known ? layout->box.lo[1] : 0;
    /* Wrong labels of one rank alone are told before the first message. */
    WF_TRY_NULL(wf_labels_post(layout, wf_labels_class_axes(layout), check_entropy(logits, whole, labels, &opts)));
    wf_reduction reduction = reduction_of_rows(logits, opts.reduction);
    const wf_dtype wide = logits->value->dtype == WF_F64 ? WF_F64 : WF_F32;
    entropy_tensors t = {.x = wf_dense_value(logits),
                         .labels = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR),
                         .log_sum = wf_tensor_new_step(logits->value->ctx, wide, labels->shape, WF_ROW_MAJOR),
                         .weight = wf_tensor_dense(opts.weight, wide, WF_ROW_MAJOR)};
    /* Only cut classes need the largest scores kept: a whole row finds its own again. */
    if (wf_labels_class_axes(layout) != 0)
        t.most = wf_tensor_new_step(logits->value->ctx, wide, labels->shape, WF_ROW_MAJOR);
    t.y =
        opts.reduction == WF_REDUCTION_NONE ? rows_of_losses(logits, wide, labels->shape) : wf_reduction_scalar(logits);
    wf_status status = opts.weight && !t.weight ? wf_error_take("weight", __FILE__, __LINE__) : WF_OK;
    if (status == WF_OK)
        status = weigh_counted(logits, t.labels, &opts, &reduction);
    const entropy_state state = {reduction.scale, opts.smoothing, wf_labels_ignored(&opts), first, whole};
    status = entropy_forward(status, &state, &t, layout);
    wf_var *out =
        wf_function_finish(status, logits->tape,
                           &(wf_node_spec){.op = &entropy_op,
                                           .n_in = 1,
                                           .in = &logits,
                                           .n_saved = 5,
                                           .saved = (wf_tensor *const[]){t.x, t.labels, t.log_sum, t.weight, t.most},
                                           .state = &state,
                                           .state_bytes = sizeof state},
                           t.y);
    wf_tensor_free(t.x);
    wf_tensor_free(t.labels);
    wf_tensor_free(t.log_sum);
    wf_tensor_free(t.weight);
    wf_tensor_free(t.most);
    return wf_reduction_mark(out, &reduction);
}

wf_var *wf_mean_cross_entropy(wf_var *logits, const wf_tensor *labels)
{
    return wf_softmax_cross_entropy(logits, labels, (wf_label_opts){0});
}

static wf_status check_token_labels(const wf_var *logits, const wf_tensor *labels)
{
    char left[WF_SHAPE_TEXT], right[WF_SHAPE_TEXT];
    if (!labels)
        return wf_error_take("token_cross_entropy: the tensor of labels", __FILE__, __LINE__);
    const wf_shape s = logits->value->shape, l = labels->shape;
    WF_CHECK(s.rank == 3 && l.rank == 2 && l.dim[0] == s.dim[0] && l.dim[1] == s.dim[1], WF_ERR_SHAPE,
             "token_cross_entropy takes scores [N,T,C] and labels [N,T], not %s and %s", wf_shape_text(s, left),
             wf_shape_text(l, right));
    return WF_OK;
}

/* Row-major tokens [N,T,C] are the memory of a channels-last image [N,C,T], whose classes are where the other forms
 * have them. */
wf_var *wf_token_cross_entropy(wf_var *logits, const wf_tensor *labels, wf_label_opts opts)
{
    if (!logits)
        return NULL;
    WF_TRY_NULL(wf_function_check("token_cross_entropy", logits, WF_ANY_FUNCTION));
    const wf_layout *const layout = &logits->value->layout;
    /* wf_image moves the classes from dimension 2 to 1. */
    WF_TRY_NULL(wf_labels_post(layout, wf_layout_axes(layout, 1u << 2), check_token_labels(logits, labels)));
    const wf_shape s = logits->value->shape;
    return wf_softmax_cross_entropy(wf_image(logits, WF_SHAPE(s.dim[1])), labels, opts);
}

int64_t wf_count_labels(const wf_tensor *labels, wf_label_opts opts)
{
    wf_tensor *at = labels ? wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR) : NULL;
    int64_t count = -1;
    if (!at || wf_ignored_check("count_labels", opts.ignores, opts.ignored) != WF_OK ||
        count_labels(labels->ctx, at, wf_labels_ignored(&opts), &count) != WF_OK)
        count = -1;
    wf_tensor_free(at);
    return count;
}
