/* Batch normalisation (Ioffe and Szegedy, 2015) in three steps: local statistics, a merge over the ranks that share
 * them, normalisation; backward has the same steps for its sums. The serial layer has no merge;
 * layers/parallel/sync_norm.c gives one. */
#include "layers/norm.h"

#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

#include <stdio.h>
#include <string.h>

typedef struct norm_state {
    wf_batchnorm_opts opts; /* as they were given */
    int64_t channels;
    wf_range own_channels; /* this rank has the parameters of these; hi 0: of all */
    double decay, eps;
    int64_t averaged; /* the batches of wf_batchnorm_average so far; 0: running statistics decay */
    wf_epilogue_opts epilogue;
    wf_norm_merge merge;
    wf_norm_chunks *chunks; /* whose statistics wait for the commit; NULL: running statistics follow every batch */
    wf_param *gamma, *beta, *mean, *var;
} norm_state;

/* State of the node, for backward. What forward decided, so that backward decides the same although modes and options
 * may have changed since. */
typedef struct norm_call {
    bool follows;
    bool batch;     /* statistics came from the batch */
    bool update;    /* and running statistics follow them: not where a segment is recomputed */
    wf_count count; /* over all that share them; 0 where they did not come from the batch */
    wf_epilogue epilogue;
    wf_norm_merge merge;
} norm_call;

enum { INPUT_X, INPUT_GAMMA, INPUT_BETA, INPUT_RESIDUAL, INPUTS };
enum { SAVED_X, SAVED_STATS, SAVED_GAMMA, SAVED_BETA, SAVED_Y, SAVED_COUNT, SAVED };

/* The n-th of n batches of a plain mean counts as one n-th: mean_n = (n - 1) / n mean_(n-1) + 1 / n x_n. */
static double decay_of(const norm_state *s)
{
    return s->averaged > 0 ? (double)(s->averaged - 1) / (double)s->averaged : s->decay;
}

/* In f32 at least: sums over a batch do not fit 16 bits. */
static wf_tensor *statistic(wf_ctx *ctx, wf_dtype dtype, int64_t rows, int64_t channels)
{
    return wf_tensor_new_step(ctx, dtype == WF_F64 ? WF_F64 : WF_F32, WF_SHAPE(rows, channels), WF_ROW_MAJOR);
}

enum { ROW_MEAN, ROW_M2, ROW_INVSTD, ROWS };

wf_array wf_norm_row(const wf_array *rows, int64_t row)
{
    wf_array a = *rows;
    const int64_t columns = rows->shape.dim[1];
    a.shape = WF_SHAPE(columns);
    if (a.data)
        a.data = (char *)a.data + (size_t)(row * columns) * wf_dtype_size(a.dtype);
    return a;
}

static wf_array row_of(const wf_tensor *t, int64_t row)
{
    const wf_array rows = wf_tensor_array(t);
    return wf_norm_row(&rows, row);
}

/* Rows 0 and 1 of a [rows, channels] tensor, which a merge takes as one array. */
static wf_array two_rows(const wf_tensor *t)
{
    wf_array a = wf_tensor_array(t);
    a.shape.dim[0] = 2;
    return a;
}

/* Forward. */

/* Elements of each channel here. A rank without samples counts 0, and still takes part in the merge. */
static double local_count(const wf_tensor *x)
{
    const int64_t channels = x->shape.dim[1];
    return channels > 0 ? (double)(wf_shape_count(x->shape) / channels) : 0;
}

/* Statistics of the batch into the rows of `stats`; running statistics follow, if `update`. Where ranks share them,
 * their count is known to the device alone, in `counted`. */
static wf_status batch_statistics(const norm_state *s, bool update, const wf_tensor *x, wf_tensor *stats,
                                  const wf_tensor *counted, wf_count *count)
{
    wf_ctx *ctx = x->ctx;
    const wf_kernels *k = ctx->k;
    const wf_array in = wf_tensor_array(x), mean = row_of(stats, ROW_MEAN), m2 = row_of(stats, ROW_M2);
    const wf_array invstd = row_of(stats, ROW_INVSTD), both = two_rows(stats);
    wf_tensor *avg_mean = wf_param_value(s->mean), *avg_var = wf_param_value(s->var);
    WF_NEED(avg_mean);
    WF_NEED(avg_var);
    *count = (wf_count){.value = local_count(x)};
    if (counted) {
        const wf_array all = wf_tensor_array(counted);
        /* Only sums first: mean and squared deviations of the part, which the merge replaces by those of all. */
        WF_TRY(k->norm_stats(ctx, &(wf_norm_args){.x = &in, .mean = &mean, .m2 = &m2}));
        WF_TRY(s->merge.stats(s->merge.user, x, count->value, &both, &all));
        count->device = all.data;
    }
    const wf_array running_mean = wf_tensor_array(avg_mean), running_var = wf_tensor_array(avg_var);
    wf_norm_args args = {
        .x = &in, .mean = &mean, .m2 = &m2, .count = *count, .eps = s->eps, .decay = decay_of(s), .invstd = &invstd};
    /* A segment that is computed again must not move the running statistics twice. */
    if (update && !s->chunks) {
        /* The kernel writes them behind the tape's back: whatever saved them must notice. */
        wf_tensor_touch(avg_mean);
        wf_tensor_touch(avg_var);
        args.running_mean = &running_mean;
        args.running_var = &running_var;
    }
    /* Without a merge the kernel finishes in the same pass over x. */
    WF_TRY(counted ? k->norm_finish(ctx, &args) : k->norm_stats(ctx, &args));
    return update && s->chunks ? wf_norm_chunks_add(s->chunks, ctx, &mean, &m2, *count) : WF_OK;
}

/* Running statistics: invstd is computed from avg_var, taken as m2 of a single element: 1 / sqrt(var / 1 + eps). */
static wf_status running_statistics(const norm_state *s, wf_tensor *stats)
{
    wf_ctx *ctx = stats->ctx;
    wf_tensor *avg_mean = wf_param_value(s->mean), *avg_var = wf_param_value(s->var);
    WF_NEED(avg_mean);
    WF_NEED(avg_var);
    const wf_array from = wf_tensor_array(avg_mean), var = wf_tensor_array(avg_var);
    const wf_array mean = row_of(stats, ROW_MEAN), invstd = row_of(stats, ROW_INVSTD);
    const wf_strided src = wf_array_strided(&from), dst = wf_array_strided(&mean);
    WF_TRY(ctx->k->copy(ctx, &src, &dst, false));
    const wf_norm_args args = {.mean = &mean, .m2 = &var, .count = {.value = 1}, .eps = s->eps, .invstd = &invstd};
    return ctx->k->norm_finish(ctx, &args);
}

/* What one application reads and makes. */
typedef struct norm_values {
    wf_tensor *x, *residual; /* dense; residual NULL: none */
    wf_tensor *stats;
    wf_tensor *counted; /* where ranks share statistics; otherwise NULL */
    wf_tensor *y;
} norm_values;

/* The epilogue (activation, noise) is applied in the kernel that normalises: one pass less over y. */
static wf_status compute_norm(const norm_state *s, norm_call *call, const norm_values *v, const wf_var *gamma,
                              const wf_var *beta)
{
    wf_ctx *ctx = v->x->ctx;
    if (call->batch)
        WF_TRY(batch_statistics(s, call->update, v->x, v->stats, v->counted, &call->count));
    else
        WF_TRY(running_statistics(s, v->stats));
    const wf_array in = wf_tensor_array(v->x), mean = row_of(v->stats, ROW_MEAN);
    const wf_array invstd = row_of(v->stats, ROW_INVSTD), residual = wf_tensor_array(v->residual);
    const wf_array out = wf_tensor_array(v->y), scale = wf_tensor_array(gamma ? gamma->value : NULL);
    const wf_array shift = wf_tensor_array(beta ? beta->value : NULL);
    const wf_norm_args args = {.x = &in,
                               .residual = v->residual ? &residual : NULL,
                               .mean = &mean,
                               .invstd = &invstd,
                               .gamma = gamma ? &scale : NULL,
                               .beta = beta ? &shift : NULL,
                               .epilogue = &call->epilogue,
                               .y = &out};
    return ctx->k->norm_forward(ctx, &args);
}

/* Checks that x holds the channels whose parameters this rank has. Layouts agree, so all ranks refuse alike. */
static wf_status check_channels(const wf_layer *layer, const wf_layout *x)
{
    const norm_state *s = layer->state;
    char text[WF_LAYOUT_TEXT];
    const bool sharded = wf_layout_is_sharded(x, 1);
    if (s->own_channels.hi == 0)
        WF_CHECK(!sharded, WF_ERR_SHAPE,
                 "batchnorm \"%s\" needs all channels, its input is %s; wf_channel_batchnorm takes a part of them, "
                 "wf_redistribute gathers it",
                 wf_layer_path(layer), wf_layout_text(x, text));
    else
        WF_CHECK(sharded && x->box.lo[1] == s->own_channels.lo && x->box.hi[1] == s->own_channels.hi, WF_ERR_SHAPE,
                 "batchnorm \"%s\" has channels [%lld,%lld), its input is %s; wf_redistribute it first",
                 wf_layer_path(layer), (long long)s->own_channels.lo, (long long)s->own_channels.hi,
                 wf_layout_text(x, text));
    return WF_OK;
}

static wf_status check_norm_input(const wf_layer *layer, const wf_var *x)
{
    const norm_state *s = layer->state;
    const wf_shape shape = wf_var_shape(x);
    char text[WF_LAYOUT_TEXT];
    wf_dtype both;
    const int64_t channels = s->own_channels.hi > 0 ? s->own_channels.hi - s->own_channels.lo : s->channels;
    WF_CHECK(shape.rank >= 2 && shape.rank <= 5, WF_ERR_SHAPE, "batchnorm \"%s\": input %s, should be of rank 2 to 5",
             wf_layer_path(layer), wf_shape_text(shape, text));
    WF_TRY(check_channels(layer, &x->value->layout));
    WF_CHECK(shape.dim[1] == channels, WF_ERR_SHAPE, "batchnorm \"%s\": input %s, should be [N,%lld] or [N,%lld,...]",
             wf_layer_path(layer), wf_shape_text(shape, text), (long long)channels, (long long)channels);
    WF_CHECK(wf_promoted(x->value->dtype, layer->ctx->dtype, &both), WF_ERR_DTYPE,
             "batchnorm \"%s\": input of %s, should be %s", wf_layer_path(layer), wf_dtype_name(x->value->dtype),
             wf_dtype_name(layer->ctx->dtype));
    /* A serial layer needs whole images: statistics of a part would differ from rank to rank. */
    for (int d = 2; d < shape.rank && !s->merge.stats; d++)
        WF_CHECK(!wf_layout_is_sharded(&x->value->layout, d), WF_ERR_SHAPE,
                 "batchnorm \"%s\" needs whole samples, its input is %s; wf_sync_batchnorm takes parts, "
                 "wf_redistribute gathers them",
                 wf_layer_path(layer), wf_layout_text(&x->value->layout, text));
    return WF_OK;
}

/* x is checked already. */
static wf_status check_residual(const wf_layer *layer, const wf_var *x, const wf_var *residual)
{
    char what[256];
    snprintf(what, sizeof what, "batchnorm \"%s\" with a residual", wf_layer_path(layer));
    WF_TRY(wf_function_check_pair(what, x, residual, WF_ANY_FUNCTION));
    return wf_function_check_layouts(what, x, residual);
}

static wf_status backward(wf_node *node);
static const wf_op batchnorm_op = {.name = "batchnorm", .backward = backward};

/* The variable of y, whose handle it takes. residual NULL: none. */
static wf_var *apply_norm(wf_layer *layer, wf_var *x, wf_var *residual, const norm_values *v)
{
    const norm_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    wf_var *gamma = s->gamma ? wf_param_var(tape, s->gamma) : NULL,
           *beta = s->beta ? wf_param_var(tape, s->beta) : NULL;
    /* The gradient of a parameter is a sum over this rank's samples and pixels; channels are its own. */
    wf_param_sum_parts(s->gamma, &x->value->layout, ~(1u << 1));
    wf_param_sum_parts(s->beta, &x->value->layout, ~(1u << 1));
    norm_call call = {.merge = s->merge,
                      .batch = wf_tape_mode(tape) == WF_TRAIN,
                      .update = !wf_tape_repeats(tape),
                      .epilogue = wf_epilogue_on(&s->epilogue, tape, v->y)};
    call.follows = wf_epilogue_acts(&call.epilogue);
    const wf_status status = (s->gamma && !gamma) || (s->beta && !beta)
                                 ? wf_error_take("a parameter", __FILE__, __LINE__)
                                 : compute_norm(s, &call, v, gamma, beta);
    if (status != WF_OK) {
        wf_error_frame(status, __FILE__, __LINE__, __func__);
        wf_tensor_free(v->y);
        return wf_error_null();
    }
    return wf_tape_record(
        tape,
        &(wf_node_spec){.op = &batchnorm_op,
                        .n_in = INPUTS,
                        .in = (wf_var *[]){x, gamma, beta, residual},
                        .n_saved = SAVED,
                        .saved = (wf_tensor *[]){v->x, v->stats, gamma ? gamma->value : NULL, beta ? beta->value : NULL,
                                                 call.follows ? v->y : NULL, v->counted},
                        .state = &call,
                        .state_bytes = sizeof call},
        v->y);
}

/* Checks first, then all memory, then kernels: a failure leaves no half-recorded node. */
static wf_var *normalise(wf_layer *layer, wf_var *x, wf_var *residual)
{
    WF_TRY_NULL(check_norm_input(layer, x));
    if (residual) {
        WF_TRY_NULL(wf_function_promote(&x, &residual));
        WF_TRY_NULL(check_residual(layer, x, residual));
    }
    norm_values v = {.x = wf_dense_value(x)};
    if (!v.x)
        return NULL;
    /* In evaluation nothing is merged, so no message is sent. */
    const bool merges = ((const norm_state *)layer->state)->merge.stats && wf_tape_mode(wf_var_tape(x)) == WF_TRAIN;
    v.residual = residual ? wf_tensor_dense(residual->value, v.x->dtype, v.x->order) : NULL;
    v.stats = statistic(layer->ctx, v.x->dtype, ROWS, v.x->shape.dim[1]);
    v.counted = merges ? wf_tensor_new_step(layer->ctx, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR) : NULL;
    v.y = wf_output("batchnorm", x, v.x->shape, v.x->order, (int[]){0, 1, 2, 3, 4});
    wf_var *var = NULL;
    if (v.stats && v.y && (v.residual || !residual) && (v.counted || !merges))
        var = apply_norm(layer, x, residual, &v);
    else
        wf_tensor_free(v.y);
    wf_tensor_free(v.counted);
    wf_tensor_free(v.stats);
    wf_tensor_free(v.residual);
    wf_tensor_free(v.x);
    return var;
}

static wf_var *forward(wf_layer *layer, wf_var *const *x, int n)
{
    return normalise(layer, x[0], n > 1 ? x[1] : NULL);
}

static wf_var *refuse_residual(wf_layer *layer, void *user, wf_var *const *x, int n)
{
    WF_FAIL_NULL(WF_ERR_ARGUMENT,
                 "wf_apply_residual of \"%s\", a %s: it takes a batch normalisation; wf_add adds to the output of "
                 "any layer",
                 wf_layer_path(layer), layer->kind->name);
}

wf_var *wf_apply_residual(wf_layer *norm, wf_var *x, wf_var *residual)
{
    WF_NEED_NULL(norm);
    return wf_apply_with(norm, (wf_var *const[]){x, residual}, 2, wf_norm_is(norm) ? NULL : refuse_residual, NULL);
}

/* Backward. */

/* The gradient of gamma or beta is a sum over this rank's elements; the optimizer sums over the ranks. */
static wf_status give_sum(wf_node *node, int i, const wf_array *sum)
{
    if (!wf_node_wants(node, i))
        return WF_OK;
    bool add = false;
    wf_tensor *grad = wf_node_grad(node, i, &add);
    WF_NEED(grad);
    const wf_strided src = wf_array_strided(sum), dst = wf_tensor_strided(grad);
    return grad->ctx->k->copy(grad->ctx, &src, &dst, add);
}

/* What backward makes. */
typedef struct norm_gradients {
    wf_tensor *sums;
    wf_tensor *dx; /* NULL: not wanted */
    wf_tensor *g;  /* dy through the activation, for the residual; NULL: not wanted, or dy itself */
} norm_gradients;

/* sum_g and sum_gx are the gradients of beta and gamma, and with them dx is a map: two kernels and perhaps a message in
 * between. */
static wf_status backward_with(wf_node *node, const norm_gradients *to)
{
    const norm_call *call = node->state;
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_tensor *stats = wf_node_saved(node, SAVED_STATS), *saved_y = wf_node_saved(node, SAVED_Y);
    const wf_tensor *saved_gamma = wf_node_saved(node, SAVED_GAMMA), *saved_beta = wf_node_saved(node, SAVED_BETA);
    const wf_array x = wf_tensor_array(wf_node_saved(node, SAVED_X)), dy = wf_tensor_array(wf_node_dy(node));
    const wf_array mean = row_of(stats, ROW_MEAN), invstd = row_of(stats, ROW_INVSTD), y = wf_tensor_array(saved_y);
    const wf_array sum_g = row_of(to->sums, 0), sum_gx = row_of(to->sums, 1), both = two_rows(to->sums);
    const wf_array gamma = wf_tensor_array(saved_gamma), beta = wf_tensor_array(saved_beta);
    const wf_array g = wf_tensor_array(to->g);
    wf_norm_args args = {.x = &x, .mean = &mean, .invstd = &invstd, .dy = &dy, .sum_g = &sum_g, .sum_gx = &sum_gx};
    args.epilogue = call->follows ? &call->epilogue : NULL;
    args.y = call->follows ? &y : NULL;
    args.g = to->g ? &g : NULL;
    args.gamma = saved_gamma ? &gamma : NULL;
    args.beta = saved_beta ? &beta : NULL;
    /* With noise or a residual the sign of y does not follow from x. */
    args.y_of_x = !node->in[INPUT_RESIDUAL] && call->epilogue.noise == 0;
    WF_TRY(ctx->k->norm_backward_stats(ctx, &args));
    /* Before the merge: gradients of parameters are this rank's sums, which the optimizer adds over ranks; dx needs the
     * sums of all. */
    WF_TRY(give_sum(node, INPUT_GAMMA, &sum_gx));
    WF_TRY(give_sum(node, INPUT_BETA, &sum_g));
    if (!to->dx)
        return WF_OK;
    /* In WF_EVAL statistics are constants, so nothing is merged, and ranks may evaluate different numbers of batches.
     */
    if (call->merge.sums && call->batch)
        WF_TRY(call->merge.sums(call->merge.user, wf_node_saved(node, SAVED_X), &both));
    /* The activation's part is in g already. */
    if (to->g) {
        args.dy = &g;
        args.epilogue = NULL;
        args.y = args.g = NULL;
    }
    const wf_array out = wf_tensor_array(to->dx);
    args.count = call->count;
    args.dx = &out;
    return ctx->k->norm_backward(ctx, &args);
}

/* Frees what is not given. */
static wf_status give_gradients(wf_node *node, wf_status status, const norm_gradients *from)
{
    /* Without an activation the residual's gradient is dy itself. */
    const bool residual = wf_node_wants(node, INPUT_RESIDUAL);
    wf_tensor *g = from->g || !residual ? from->g : wf_tensor_alias(wf_node_dy(node)), *dx = from->dx;
    if (status == WF_OK && residual) {
        status = wf_node_give(node, INPUT_RESIDUAL, g, !from->g);
        g = NULL;
    }
    if (status == WF_OK && dx) {
        status = wf_node_give(node, INPUT_X, dx, false);
        dx = NULL;
    }
    wf_tensor_free(g);
    wf_tensor_free(dx);
    return status;
}

/* If nothing else holds dy, its memory is used again: for g, if the residual gets one, otherwise for dx. */
static wf_status backward(wf_node *node)
{
    const wf_tensor *x = wf_node_saved(node, SAVED_X);
    const bool wants = wf_node_wants(node, INPUT_X), residual = wf_node_wants(node, INPUT_RESIDUAL);
    const bool keeps = residual && ((const norm_call *)node->state)->follows;
    norm_gradients to = {.sums = statistic(x->ctx, x->dtype, 2, x->shape.dim[1])};
    to.g = keeps ? wf_node_reuse_dy(node) : NULL;
    /* dx may take dy's memory only if the residual has not been given it. */
    to.dx = wants ? residual ? wf_tensor_new_like(x) : wf_node_reuse_dy(node) : NULL;
    const bool made = to.sums && (to.g || !keeps) && (to.dx || !wants);
    const wf_status status = made ? backward_with(node, &to) : wf_error_take("a gradient", __FILE__, __LINE__);
    wf_tensor_free(to.sums);
    return give_gradients(node, status, &to);
}

/* Construction. */

/* Statistics that run are parameters too, in the state of model files, but no optimizer touches them. */
static wf_param *vector(wf_layer *layer, const char *name, int64_t channels, wf_init init, double otherwise, bool state)
{
    if (init.kind == WF_INIT_DEFAULT)
        init = (wf_init){WF_INIT_CONSTANT, otherwise, 0};
    return wf_layer_add_param(
        layer, name,
        (wf_param_opts){.dtype = layer->ctx->dtype, .shape = WF_SHAPE(channels), .init = init, .state = state});
}

static void free_merge(const wf_norm_merge *merge)
{
    if (merge->free)
        merge->free(merge->user);
}

/* The merge belongs to the layer, which frees what the parallel form allocated. */
static void free_norm(wf_layer *layer)
{
    const norm_state *s = layer->state;
    free_merge(&s->merge);
    wf_norm_chunks_free(s->chunks);
}

static const wf_layer_kind batchnorm_kind = {.name = "batchnorm", .forward_n = forward, .free = free_norm};

bool wf_norm_is(const wf_layer *layer)
{
    return layer && layer->kind == &batchnorm_kind;
}

bool wf_norm_is_merged(const wf_layer *layer)
{
    return wf_norm_is(layer) && ((const norm_state *)layer->state)->merge.stats;
}

wf_batchnorm_opts wf_norm_options(const wf_layer *layer)
{
    return ((const norm_state *)layer->state)->opts;
}

void wf_norm_set_merge(wf_layer *layer, wf_norm_merge merge)
{
    norm_state *s = layer->state;
    free_merge(&s->merge);
    s->merge = merge;
    layer->comm = merge.comm;
}

/* Called by what cuts mini-batches into chunks, before the first chunk; off discards what was noted. */
wf_status wf_norm_defer(wf_layer *layer, bool on)
{
    norm_state *s = layer->state;
    if (!on) {
        wf_norm_chunks_free(s->chunks);
        s->chunks = NULL;
        return WF_OK;
    }
    if (s->chunks)
        wf_norm_chunks_clear(s->chunks);
    else
        WF_NEED(s->chunks = wf_norm_chunks_new(layer->ctx));
    return WF_OK;
}

wf_status wf_norm_commit(wf_layer *layer)
{
    const norm_state *s = layer->state;
    const wf_norm_running running = {wf_param_value(s->mean), wf_param_value(s->var)};
    WF_NEED(running.mean);
    WF_NEED(running.var);
    return s->chunks ? wf_norm_chunks_commit(s->chunks, layer->ctx, decay_of(s), &running) : WF_OK;
}

/* For all batch normalisations below this layer. The caller counts the batches. */
wf_status wf_batchnorm_average(wf_layer *model, int64_t batch)
{
    WF_NEED(model);
    WF_CHECK(batch >= 0, WF_ERR_ARGUMENT, "batchnorm: batch %lld of a mean: should be 1 or more, or 0 for none",
             (long long)batch);
    if (wf_norm_is(model))
        ((norm_state *)model->state)->averaged = batch;
    for (int i = 0; i < model->n_children; i++)
        WF_TRY(wf_batchnorm_average(model->children[i], batch));
    return WF_OK;
}

void wf_norm_set_own_channels(wf_layer *layer, wf_range own)
{
    ((norm_state *)layer->state)->own_channels = own;
}

static wf_status check_norm_opts(const wf_batchnorm_opts *o, norm_state *s)
{
    WF_CHECK(o->channels >= 1, WF_ERR_ARGUMENT, "batchnorm: channels is %lld, should be at least 1",
             (long long)o->channels);
    WF_CHECK(s->decay >= 0 && s->decay <= 1, WF_ERR_ARGUMENT, "batchnorm: decay is %g, should be 0 to 1", s->decay);
    WF_CHECK(s->eps >= 0, WF_ERR_ARGUMENT, "batchnorm: eps is %g, should not be negative", s->eps);
    return wf_epilogue_check("batchnorm", &s->epilogue);
}

wf_layer *wf_batchnorm_merged(wf_ctx *ctx, wf_batchnorm_opts o, wf_norm_merge merge)
{
    norm_state s = {.opts = o,
                    .channels = o.channels,
                    .decay = wf_opt(o.decay, 0.9),
                    .eps = wf_opt(o.eps, 2e-5),
                    .epilogue = {o.act, o.slope, o.noise}};
    const wf_status status = ctx ? check_norm_opts(&o, &s) : WF_OK;
    wf_layer *layer = ctx && status == WF_OK ? wf_layer_new(ctx, &batchnorm_kind, sizeof s) : NULL;
    if (!layer) {
        /* The merge was handed over, so a failure frees it here. */
        free_merge(&merge);
        return status == WF_OK ? NULL : wf_error_null();
    }
    s.merge = merge;
    memcpy(layer->state, &s, sizeof s);
    layer->comm = merge.comm;
    layer->most = 2;
    /* What ranks compare: none of it shows in the shapes of parameters. */
    wf_layer_note(layer, "batchnorm of decay %g, eps %g, act %d, slope %g, noise %g", s.decay, s.eps, (int)o.act,
                  o.slope, o.noise);
    norm_state *own = layer->state;
    if (!o.no_gamma)
        own->gamma = vector(layer, "gamma", o.channels, o.gamma_init, 1, false);
    if (!o.no_beta)
        own->beta = vector(layer, "beta", o.channels, o.beta_init, 0, false);
    own->mean = vector(layer, "avg_mean", o.channels, (wf_init){0}, 0, true);
    own->var = vector(layer, "avg_var", o.channels, (wf_init){0}, 1, true);
    if ((o.no_gamma || own->gamma) && (o.no_beta || own->beta) && own->mean && own->var)
        return layer;
    wf_layer_free(layer);
    return NULL;
}

wf_layer *wf_batchnorm(wf_ctx *ctx, wf_batchnorm_opts opts)
{
    WF_NEED_NULL(ctx);
    return wf_batchnorm_merged(ctx, opts, (wf_norm_merge){0});
}
