/* Normalisation of each sample by itself. The four layers differ in which elements make a group; what a rank has of the
 * groups is read from the layout of each input. If a cut of the mesh crosses groups, the merge that
 * layers/parallel/mesh_norm.c gives brings the statistics, and in backward the sums, of whole groups. Evaluation and
 * training compute the same: nothing is kept from batch to batch. */
#include "layers/group_norm.h"

#include "core/opts.h"
#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

#include <string.h>

/* Either `shape` says which last dimensions a group has (layernorm of a shape), or dimension 1 is cut into groups of
 * `size`. */
typedef struct group_state {
    wf_shape shape;   /* of the last dimensions; rank 0: groups are of channels */
    int64_t channels; /* of dimension 1, if groups are of channels */
    int64_t size;     /* channels of a group; 0 with `shape` */
    bool pixels;      /* a group has all pixels of its channels */
    bool about_zero;
    double eps;
    wf_param *gamma, *beta; /* NULL: none */
    wf_group_merge merge;
} group_state;

/* State of the node, for backward. */
typedef struct group_call {
    wf_group_norm_args args; /* its numbers; no arrays */
    unsigned cuts;           /* bit a: mesh axis a cuts groups */
    bool sliced;             /* this rank has the part `own` of the elements of gamma and beta */
    wf_box own;
    wf_group_merge merge;
} group_call;

enum { INPUT_X, INPUT_GAMMA, INPUT_BETA, INPUTS };
enum { SAVED_X, SAVED_STATS, SAVED_GAMMA, SAVED };

/* --- which groups, and what this rank has of them ----------------------------------------------------------------- */

/* The first dimension of x that `shape` describes. */
static int first_normal(const group_state *s, wf_shape x)
{
    return x.rank - s->shape.rank;
}

/* Dimensions that a group extends over: a cut of another one leaves groups whole. */
static bool is_normal(const group_state *s, wf_shape x, int d)
{
    if (s->shape.rank > 0)
        return d >= first_normal(s, x);
    return d == 1 || (d >= 2 && s->pixels);
}

/* Returns true if the shard bounds of channels lie between groups on every rank. Ranks that know their own part alone
 * cannot tell, and all of them answer false. */
static bool between_groups(const group_state *s, const wf_layout *x, int axis)
{
    const int64_t *const bounds = x->bounds[axis];
    const int size = wf_mesh_size(x->mesh, (wf_axis)axis);
    /* Groups of one channel lie between any bounds. */
    if (s->size == 1)
        return true;
    for (int r = 0; bounds && r <= size; r++)
        if (bounds[r] % s->size != 0)
            return false;
    /* No bounds at all: the layout does not say where other ranks begin. */
    return bounds;
}

/* Every rank gets the same bits, since layouts agree; a rank must know that it takes part in a merge even where its own
 * groups happen to be whole. */
static unsigned cuts_of(const group_state *s, const wf_tensor *x)
{
    const wf_layout *const layout = &x->layout;
    unsigned cuts = 0;
    for (int a = 0; layout->known && a < WF_AXES; a++) {
        const int d = layout->dim[a];
        if (layout->placement[a] != WF_SHARDED || !is_normal(s, x->shape, d))
            continue;
        if (s->shape.rank == 0 && d == 1 && between_groups(s, layout, a))
            continue;
        cuts |= 1u << a;
    }
    return cuts;
}

/* Only then a rank may have a part of a group's channels, and counts groups by the whole's numbers. */
static bool cuts_channels(const wf_layout *x, unsigned cuts)
{
    for (int a = 0; a < WF_AXES; a++)
        if (cuts >> a & 1 && x->dim[a] == 1)
            return true;
    return false;
}

/* The product of dimensions [lo, hi). */
static int64_t product(wf_shape shape, int lo, int hi)
{
    int64_t n = 1;
    for (int d = lo; d < hi; d++)
        n *= shape.dim[d];
    return n;
}

/* A group is the last dimensions of the whole, of which this rank may have a box; the places of channels in gamma
 * follow from that box. */
static void describe_last(const group_state *s, const wf_tensor *x, group_call *call)
{
    const int first = first_normal(s, x->shape), rank = x->shape.rank;
    call->args.rows = product(x->shape, 0, first);
    call->args.places = call->args.groups = 1;
    call->args.channels = product(x->shape, first, rank);
    /* `size` is above what is here where the box is a part, so all local channels fall into one group. */
    call->args.size = wf_shape_count(s->shape);
    call->args.count = (double)call->args.size;
    call->own.rank = s->shape.rank;
    for (int d = first; d < rank; d++) {
        const bool part = x->layout.known;
        call->own.lo[d - first] = part ? x->layout.box.lo[d] : 0;
        call->own.hi[d - first] = part ? x->layout.box.hi[d] : x->shape.dim[d];
        call->sliced |= part && wf_layout_is_sharded(&x->layout, d);
    }
}

static void describe_channels(const group_state *s, const wf_tensor *x, group_call *call)
{
    const wf_layout *const layout = &x->layout;
    const wf_shape whole = layout->known ? layout->global : x->shape;
    const int64_t pixels = product(x->shape, 2, x->shape.rank), lo = layout->known ? layout->box.lo[1] : 0;
    /* Groups without pixels: each pixel of a sample is a row of its own. */
    call->args.rows = x->shape.dim[0] * (s->pixels ? 1 : pixels);
    call->args.places = s->pixels ? pixels : 1;
    call->args.channels = x->shape.dim[1];
    call->args.size = s->size;
    /* count is the whole group's, over all ranks that share it. */
    call->args.count = (double)s->size * (double)(s->pixels ? product(whole, 2, whole.rank) : 1);
    call->args.groups = s->channels / s->size;
    call->args.first = lo;
    if (!cuts_channels(layout, call->cuts)) {
        /* Groups of other ranks have no statistics here. */
        call->args.groups = x->shape.dim[1] / s->size;
        call->args.first = 0;
    }
    call->own = (wf_box){.rank = 1, .lo = {lo}, .hi = {lo + x->shape.dim[1]}};
    call->sliced = wf_layout_is_sharded(layout, 1);
}

static group_call describe_group_norm(const group_state *s, const wf_tensor *x)
{
    group_call call = {.cuts = cuts_of(s, x), .merge = s->merge};
    call.args.eps = s->eps;
    call.args.about_zero = s->about_zero;
    if (s->shape.rank > 0)
        describe_last(s, x, &call);
    else
        describe_channels(s, x, &call);
    return call;
}

/* The number of statistics of a kind that this rank makes: rows times groups. */
static int64_t columns_of(const group_call *call)
{
    return call->args.rows * call->args.groups;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static wf_status check_shape(const wf_layer *layer, const wf_tensor *x)
{
    const group_state *s = layer->state;
    const wf_shape whole = x->layout.known ? x->layout.global : x->shape;
    char text[WF_LAYOUT_TEXT], wanted[WF_SHAPE_TEXT];
    if (s->shape.rank > 0) {
        bool fits = whole.rank >= s->shape.rank;
        for (int d = 0; fits && d < s->shape.rank; d++)
            fits = whole.dim[first_normal(s, whole) + d] == s->shape.dim[d];
        WF_CHECK(fits, WF_ERR_SHAPE, "%s \"%s\": input %s, its last dimensions should be %s", layer->kind->name,
                 wf_layer_path(layer), wf_shape_text(whole, text), wf_shape_text(s->shape, wanted));
        return WF_OK;
    }
    WF_CHECK(whole.rank >= 2 && whole.rank <= 5 && whole.dim[1] == s->channels, WF_ERR_SHAPE,
             "%s \"%s\": input %s, should be [N,%lld] or [N,%lld,...] of rank 2 to 5", layer->kind->name,
             wf_layer_path(layer), wf_shape_text(whole, text), (long long)s->channels, (long long)s->channels);
    return WF_OK;
}

static wf_status check_group_input(const wf_layer *layer, const wf_var *x)
{
    const group_state *s = layer->state;
    const wf_layout *const layout = &x->value->layout;
    char text[WF_LAYOUT_TEXT];
    wf_dtype both;
    WF_TRY(wf_function_check(layer->kind->name, x, WF_ANY_FUNCTION));
    WF_TRY(check_shape(layer, x->value));
    WF_CHECK(wf_promoted(x->value->dtype, layer->ctx->dtype, &both), WF_ERR_DTYPE,
             "%s \"%s\": input of %s, should be %s", layer->kind->name, wf_layer_path(layer),
             wf_dtype_name(x->value->dtype), wf_dtype_name(layer->ctx->dtype));
    if (cuts_of(s, x->value) == 0)
        return WF_OK;
    /* A layer without a mesh refuses parts: this is asked on every rank, of the same layout. */
    WF_CHECK(s->merge.mesh, WF_ERR_SHAPE,
             "%s \"%s\" needs whole groups, its input is %s; wf_mesh_%s takes parts, wf_redistribute gathers them",
             layer->kind->name, wf_layer_path(layer), wf_layout_text(layout, text), layer->kind->name);
    WF_CHECK(s->merge.mesh == layout->mesh, WF_ERR_ARGUMENT,
             "%s \"%s\" is on another mesh than its input, which is %s; give both the same mesh", layer->kind->name,
             wf_layer_path(layer), wf_layout_text(layout, text));
    return WF_OK;
}

/* Returns a handle on the dense part of gamma or beta that this rank applies: all ranks hold the whole parameter. */
static wf_tensor *channel_part(const group_call *call, const wf_var *factor)
{
    if (!call->sliced)
        return wf_tensor_alias(factor->value);
    wf_tensor *view = wf_tensor_view(factor->value, call->own);
    wf_tensor *part = view ? wf_tensor_dense(view, factor->value->dtype, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(view);
    return part;
}

/* Tensors that one application reads and makes. */
typedef struct group_values {
    wf_tensor *x, *gamma, *beta; /* dense; NULL: no gamma, no beta */
    wf_tensor *stats;
    wf_tensor *sums; /* NULL: groups are whole here */
    wf_tensor *y;
} group_values;

/* Statistics of the part, merged by a message where groups are cut; then the kernel finishes them and writes y in one
 * pass. */
static wf_status compute_statistics(const group_call *call, const group_values *v)
{
    wf_ctx *ctx = v->x->ctx;
    wf_group_norm_args args = call->args;
    const wf_array x = wf_tensor_array(v->x), y = wf_tensor_array(v->y), stats = wf_tensor_array(v->stats);
    const wf_array gamma = wf_tensor_array(v->gamma), beta = wf_tensor_array(v->beta), sums = wf_tensor_array(v->sums);
    args.x = &x;
    if (call->cuts)
        WF_TRY(call->merge.stats(call->merge.mesh, call->cuts, ctx, &args, &sums));
    args.y = &y;
    args.stats = &stats;
    args.gamma = v->gamma ? &gamma : NULL;
    args.beta = v->beta ? &beta : NULL;
    args.sums = v->sums ? &sums : NULL;
    return ctx->k->group_norm_forward(ctx, &args);
}

static wf_status backward(wf_node *node);
static const wf_op group_norm_op = {.name = "group_norm", .backward = backward};

/* f32 at least. */
static wf_dtype wide_of(const wf_tensor *x)
{
    return x->dtype == WF_F64 ? WF_F64 : WF_F32;
}

/* On failure the caller frees what is there. */
static wf_status take_values(const wf_layer *layer, const group_call *call, const wf_var *x, wf_var *const in[INPUTS],
                             group_values *v)
{
    wf_ctx *ctx = layer->ctx;
    const int64_t columns = columns_of(call);
    v->stats = wf_tensor_new_step(ctx, wide_of(v->x), WF_SHAPE(2, columns), WF_ROW_MAJOR);
    WF_NEED(v->stats);
    v->y = wf_output(layer->kind->name, x, v->x->shape, v->x->order, (int[WF_MAX_RANK]){0, 1, 2, 3, 4, 5});
    WF_NEED(v->y);
    if (call->cuts)
        WF_NEED(v->sums = wf_tensor_new_step(ctx, WF_F64, WF_SHAPE(2, columns), WF_ROW_MAJOR));
    if (in[INPUT_GAMMA])
        WF_NEED(v->gamma = channel_part(call, in[INPUT_GAMMA]));
    if (in[INPUT_BETA])
        WF_NEED(v->beta = channel_part(call, in[INPUT_BETA]));
    return WF_OK;
}

/* The variable of y; takes the handle v->y, so that the caller's clean-up leaves it alone. */
static wf_var *record_group_norm(wf_tape *tape, const group_call *call, wf_var *const in[INPUTS], group_values *v)
{
    wf_tensor *y = v->y;
    v->y = NULL;
    return wf_tape_record(tape,
                          &(wf_node_spec){.op = &group_norm_op,
                                          .n_in = INPUTS,
                                          .in = in,
                                          .n_saved = SAVED,
                                          .saved = (wf_tensor *[]){v->x, v->stats, v->gamma},
                                          .state = call,
                                          .state_bytes = sizeof *call},
                          y);
}

static wf_var *apply(wf_layer *layer, wf_var *x, group_values *v)
{
    const group_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    const group_call call = describe_group_norm(s, v->x);
    wf_var *in[INPUTS] = {x, s->gamma ? wf_param_var(tape, s->gamma) : NULL,
                          s->beta ? wf_param_var(tape, s->beta) : NULL};
    WF_TRY_NULL((s->gamma && !in[INPUT_GAMMA]) || (s->beta && !in[INPUT_BETA])
                    ? wf_error_take("a parameter", __FILE__, __LINE__)
                    : WF_OK);
    /* Over channels too: all ranks have the whole parameter, and each the gradient of its part of x. */
    wf_param_sum_parts(s->gamma, &v->x->layout, ~0u);
    wf_param_sum_parts(s->beta, &v->x->layout, ~0u);
    WF_TRY_NULL(take_values(layer, &call, x, in, v));
    WF_TRY_NULL(compute_statistics(&call, v));
    return record_group_norm(tape, &call, in, v);
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const group_state *s = layer->state;
    WF_TRY_NULL(check_group_input(layer, x));
    /* Groups of last dimensions want them contiguous; groups of channels take channels last. */
    group_values v = {.x = s->shape.rank > 0 ? wf_tensor_dense(x->value, x->value->dtype, WF_ROW_MAJOR)
                                             : wf_dense_value(x)};
    wf_var *y = v.x ? apply(layer, x, &v) : NULL;
    wf_tensor_free(v.y);
    wf_tensor_free(v.beta);
    wf_tensor_free(v.gamma);
    wf_tensor_free(v.sums);
    wf_tensor_free(v.stats);
    wf_tensor_free(v.x);
    return y;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Tensors that backward makes. */
typedef struct group_gradients {
    wf_tensor *dx;             /* NULL: not wanted */
    wf_tensor *sums;           /* NULL: groups are whole here, or dx is not wanted */
    wf_tensor *dgamma, *dbeta; /* of this rank's part; NULL: not wanted */
} group_gradients;

/* The optimizer sums over the ranks. */
static wf_status give_factor(wf_node *node, const group_call *call, int i, const wf_tensor *part)
{
    bool add = false;
    if (!part)
        return WF_OK;
    wf_tensor *grad = wf_node_grad(node, i, &add);
    WF_NEED(grad);
    if (call->sliced && !add)
        /* The rest is for other ranks to give. */
        WF_TRY(wf_tensor_fill(grad, 0));
    wf_tensor *own = call->sliced ? wf_tensor_view(grad, call->own) : wf_tensor_alias(grad);
    WF_NEED(own);
    wf_array from = wf_tensor_array(part);
    /* The part is a flat list of factors; the parameter may have the shape of several dimensions. */
    from.shape = own->shape;
    const wf_strided src = wf_array_strided(&from), dst = wf_tensor_strided(own);
    const wf_status status = grad->ctx->k->copy(grad->ctx, &src, &dst, add);
    wf_tensor_free(own);
    return status;
}

/* What dx needs of other ranks is two sums a group: one message, between two kernels. */
static wf_status backward_with(wf_node *node, const group_gradients *to)
{
    const group_call *call = node->state;
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    wf_group_norm_args args = call->args;
    const wf_tensor *saved_gamma = wf_node_saved(node, SAVED_GAMMA);
    const wf_array x = wf_tensor_array(wf_node_saved(node, SAVED_X)), dy = wf_tensor_array(wf_node_dy(node));
    const wf_array stats = wf_tensor_array(wf_node_saved(node, SAVED_STATS)), gamma = wf_tensor_array(saved_gamma);
    const wf_array dgamma = wf_tensor_array(to->dgamma), dbeta = wf_tensor_array(to->dbeta);
    const wf_array sums = wf_tensor_array(to->sums), dx = wf_tensor_array(to->dx);
    args.x = &x;
    args.dy = &dy;
    args.stats = &stats;
    args.gamma = saved_gamma ? &gamma : NULL;
    args.sums = to->sums ? &sums : NULL;
    args.dgamma = to->dgamma ? &dgamma : NULL;
    args.dbeta = to->dbeta ? &dbeta : NULL;
    /* Gradients of parameters are this rank's sums, which the optimizer adds over ranks; dx needs those of whole
     * groups. */
    if (to->sums || !to->dx)
        WF_TRY(ctx->k->group_norm_backward_stats(ctx, &args));
    if (to->sums)
        WF_TRY(call->merge.sums(call->merge.mesh, call->cuts, &sums));
    args.dx = &dx;
    /* dx may lie over dy, so all sums of dy are made before. */
    if (to->dx)
        WF_TRY(ctx->k->group_norm_backward(ctx, &args));
    WF_TRY(give_factor(node, call, INPUT_GAMMA, to->dgamma));
    return give_factor(node, call, INPUT_BETA, to->dbeta);
}

static wf_status take_gradients(wf_node *node, group_gradients *to)
{
    const group_call *call = node->state;
    const wf_tensor *x = wf_node_saved(node, SAVED_X);
    const wf_shape factors = WF_SHAPE(call->args.channels);
    if (wf_node_wants(node, INPUT_X) && call->cuts)
        WF_NEED(to->sums = wf_tensor_new_step(x->ctx, WF_F64, WF_SHAPE(2, columns_of(call)), WF_ROW_MAJOR));
    if (wf_node_wants(node, INPUT_GAMMA))
        WF_NEED(to->dgamma = wf_tensor_new_step(x->ctx, wide_of(x), factors, WF_ROW_MAJOR));
    if (wf_node_wants(node, INPUT_BETA))
        WF_NEED(to->dbeta = wf_tensor_new_step(x->ctx, wide_of(x), factors, WF_ROW_MAJOR));
    /* If nothing else holds dy, its memory serves dx. */
    if (wf_node_wants(node, INPUT_X))
        WF_NEED(to->dx = wf_node_reuse_dy(node));
    return WF_OK;
}

static wf_status backward(wf_node *node)
{
    group_gradients to = {0};
    wf_status status = take_gradients(node, &to);
    if (status == WF_OK)
        status = backward_with(node, &to);
    if (status == WF_OK && to.dx) {
        status = wf_node_give(node, INPUT_X, to.dx, false);
        to.dx = NULL;
    }
    wf_tensor_free(to.dx);
    wf_tensor_free(to.dbeta);
    wf_tensor_free(to.dgamma);
    wf_tensor_free(to.sums);
    return status;
}

/* --- construction ------------------------------------------------------------------------------------------------- */

static const wf_layer_kind layer_kind = {.name = "layernorm", .forward = forward};
static const wf_layer_kind rms_kind = {.name = "rmsnorm", .forward = forward};
static const wf_layer_kind group_kind = {.name = "groupnorm", .forward = forward};
static const wf_layer_kind instance_kind = {.name = "instancenorm", .forward = forward};

/* All four kinds share `forward`, and nothing else does. */
bool wf_group_norm_is(const wf_layer *layer)
{
    return layer && layer->kind->forward == forward;
}

int64_t wf_group_norm_channels(const wf_layer *layer)
{
    return ((const group_state *)layer->state)->channels;
}

wf_layer *wf_group_norm_merged(wf_layer *layer, wf_group_merge merge)
{
    if (!layer)
        return NULL;
    ((group_state *)layer->state)->merge = merge;
    /* The layer sends messages now, so models ask its communication about failures. */
    layer->comm = wf_mesh_world(merge.mesh);
    return layer;
}

static wf_status check_groups(const char *name, const group_state *s)
{
    char text[WF_SHAPE_TEXT];
    WF_CHECK(s->eps >= 0, WF_ERR_ARGUMENT, "%s: eps is %g, should not be negative", name, s->eps);
    if (s->shape.rank > 0) {
        WF_CHECK(s->channels == 0, WF_ERR_ARGUMENT, "%s: shape is %s and channels is %lld; give one of the two", name,
                 wf_shape_text(s->shape, text), (long long)s->channels);
        for (int d = 0; d < s->shape.rank; d++)
            WF_CHECK(s->shape.dim[d] >= 1, WF_ERR_ARGUMENT, "%s: shape is %s, should have no dimension below 1", name,
                     wf_shape_text(s->shape, text));
        return WF_OK;
    }
    WF_CHECK(s->channels >= 1, WF_ERR_ARGUMENT, "%s: channels is %lld, should be at least 1", name,
             (long long)s->channels);
    return WF_OK;
}

typedef struct factors {
    bool gamma, beta;
    wf_init gamma_init, beta_init;
} factors;

static wf_param *factor(wf_layer *layer, const char *name, wf_shape shape, wf_init init, double otherwise)
{
    if (init.kind == WF_INIT_DEFAULT)
        init = (wf_init){WF_INIT_CONSTANT, otherwise, 0};
    return wf_layer_add_param(layer, name, (wf_param_opts){.dtype = layer->ctx->dtype, .shape = shape, .init = init});
}

static wf_layer *make_group_norm(wf_ctx *ctx, const wf_layer_kind *kind, const group_state *s, const factors *f)
{
    WF_TRY_NULL(check_groups(kind->name, s));
    wf_layer *layer = wf_layer_new(ctx, kind, sizeof *s);
    if (!layer)
        return NULL;
    group_state *own = layer->state;
    *own = *s;
    const wf_shape shape = s->shape.rank > 0 ? s->shape : WF_SHAPE(s->channels);
    wf_layer_note(layer, "%s of eps %g, groups of %lld", kind->name, s->eps, (long long)s->size);
    if (f->gamma)
        own->gamma = factor(layer, "gamma", shape, f->gamma_init, 1);
    if (f->beta)
        own->beta = factor(layer, "beta", shape, f->beta_init, 0);
    if ((own->gamma || !f->gamma) && (own->beta || !f->beta))
        return layer;
    wf_layer_free(layer);
    return NULL;
}

wf_layer *wf_layernorm(wf_ctx *ctx, wf_layernorm_opts o)
{
    WF_NEED_NULL(ctx);
    const group_state s = {.shape = o.shape, .channels = o.channels, .size = o.channels, .eps = wf_opt(o.eps, 1e-5)};
    return make_group_norm(ctx, &layer_kind, &s, &(factors){!o.no_gamma, !o.no_beta, o.gamma_init, o.beta_init});
}

wf_layer *wf_rmsnorm(wf_ctx *ctx, wf_rmsnorm_opts o)
{
    WF_NEED_NULL(ctx);
    const group_state s = {
        .shape = o.shape, .channels = o.channels, .size = o.channels, .about_zero = true, .eps = wf_opt(o.eps, 1e-6)};
    return make_group_norm(ctx, &rms_kind, &s, &(factors){.gamma = !o.no_gamma, .gamma_init = o.gamma_init});
}

wf_layer *wf_groupnorm(wf_ctx *ctx, wf_groupnorm_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.groups >= 1 && o.channels % o.groups == 0, WF_ERR_ARGUMENT,
                  "groupnorm: groups is %lld, should divide the %lld channels", (long long)o.groups,
                  (long long)o.channels);
    const group_state s = {
        .channels = o.channels, .size = o.channels / o.groups, .pixels = true, .eps = wf_opt(o.eps, 1e-5)};
    return make_group_norm(ctx, &group_kind, &s, &(factors){!o.no_gamma, !o.no_beta, o.gamma_init, o.beta_init});
}

wf_layer *wf_instancenorm(wf_ctx *ctx, wf_instancenorm_opts o)
{
    WF_NEED_NULL(ctx);
    const group_state s = {.channels = o.channels, .size = 1, .pixels = true, .eps = wf_opt(o.eps, 1e-5)};
    return make_group_norm(ctx, &instance_kind, &s, &(factors){!o.no_gamma, !o.no_beta, o.gamma_init, o.beta_init});
}
