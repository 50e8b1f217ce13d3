/* The models and optimizers of random_pipelines.c, the serial ones and those of the pipeline. */
#ifndef WF_TESTS_RANDOM_PIPELINES_MODEL_H
#define WF_TESTS_RANDOM_PIPELINES_MODEL_H

#include "tests/layers/random_pipelines_plan.h"
#include "tests/optim/random_training.h"

/* --- models ---------------------------------------------------------------------------------------------------------
 */

static inline wf_var *concat(wf_var *x, wf_var *kept)
{
    return wf_concat(2, (wf_var *[]){x, kept}, 1);
}

/* Bounded: products of products would grow out of all proportion. And not even: normalisation makes the two samples of
 * a chunk opposite; if their products were equal, the next one would make them zero but for rounding, where ReLU has
 * its corner. */
static inline wf_var *product(wf_var *x, wf_var *kept)
{
    wf_var *left = wf_tanh(x), *right = wf_sigmoid(kept);
    return wf_mul(left, right);
}

static const wf_skip_join joins[JOINS] = {NULL, product, concat};

static inline wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.1);
}

static inline wf_var *leaky(wf_var *x)
{
    return wf_leaky_relu(x, 0.1);
}

static inline wf_var *join_branches(wf_layer *self, void *user, wf_var *x)
{
    const join *how = user;
    wf_var *left = wf_apply(wf_layer_child(self, "left"), x);
    wf_var *right = wf_apply(wf_layer_child(self, "right"), x);
    return *how == JOIN_MUL ? product(left, right) : wf_add(left, right);
}

static inline bool is_deep(const part *l)
{
    return l->in.rank == 5;
}

static inline wf_layer *conv(const part *l, int64_t kernel)
{
    return (is_deep(l) ? wf_conv3d : wf_conv2d)(on.ctx, (wf_conv_opts){.in = l->in.dim[1],
                                                                       .out = l->out,
                                                                       .kernel = kernel,
                                                                       .stride = l->stride ? 2 : 1,
                                                                       .pad = kernel / 2,
                                                                       .boundary.edge = l->edge});
}

static inline wf_layer *token_linear(int64_t in, int64_t out)
{
    return wf_token_linear(on.ctx, (wf_token_linear_opts){.in = in, .out = out});
}

static inline wf_layer *branch(const part *l)
{
    static const join hows[JOINS] = {JOIN_ADD, JOIN_MUL, JOIN_CONCAT};
    const int64_t in = l->in.dim[1];
    wf_layer *module = wf_module(on.ctx, join_branches, (void *)&hows[l->join]);
    wf_module_add(module, "left",
                  is_tokens(l->in)  ? token_linear(in, l->out)
                  : is_image(l->in) ? conv(l, 3)
                                    : dense(in, l->out));
    wf_module_add(module, "right",
                  is_tokens(l->in)  ? token_linear(in, l->out)
                  : is_image(l->in) ? conv(l, 1)
                                    : dense(in, l->out));
    return l->segment ? wf_recompute(module) : module;
}

/* Makes the same layers in both programs: in the serial one a chain. */
static inline wf_layer *linked(const part *l, bool parallel)
{
    const wf_spatial_chain_opts opts[COSTS] = {
        {.depth = 1 + (int)(l->out % l->links)},
        {.message_seconds = 1e-5, .byte_seconds = 3e-10, .work_seconds = 1.5e-11},
        {0},
    };
    wf_layer *link[LINKS];
    for (int i = 0; i < l->links; i++) {
        const wf_conv_opts conv = {.in = i == 0 ? l->in.dim[1] : l->out,
                                   .out = l->out,
                                   .kernel = i == 1 ? 1 : 3,
                                   .pad = i == 1 ? 0 : 1,
                                   .boundary.edge = l->edge};
        link[i] = parallel     ? (is_deep(l) ? wf_spatial_conv3d : wf_spatial_conv2d)(on.mesh, conv)
                  : is_deep(l) ? wf_conv3d(on.ctx, conv)
                               : wf_conv2d(on.ctx, conv);
    }
    wf_layer *chain =
        parallel ? wf_spatial_chain(on.mesh, opts[l->costs], l->links, link) : wf_sequential(on.ctx, l->links, link);
    return l->segment ? wf_recompute(chain) : chain;
}

/* Samples as they are, and dimension 1 over the first other axis of several ranks. */
static inline bool turned(const wf_layout *was, wf_layout *there)
{
    wf_layout_opts opts = {.dim = {[WF_AXIS_DATA] = WF_DIM(0)}};
    for (int a = WF_AXIS_CHANNEL; a <= WF_AXIS_WIDTH; a++)
        if (wf_mesh_size(was->mesh, (wf_axis)a) > 1) {
            opts.dim[a] = WF_DIM(1);
            break;
        }
    return wf_mesh_layout(was->mesh, was->global, opts, there) == WF_OK;
}

/* To another layout, a function there, and back. Samples of a chunk stay on their ranks along data. */
static inline wf_var *go_and_return(wf_layer *self, void *user, wf_var *x)
{
    const move *how = user;
    const wf_layout was = x && wf_value(x) ? wf_tensor_layout(wf_value(x)) : wf_layout_none();
    wf_layout there;
    if (!was.known)
        return wf_tanh(x);
    if (*how == MOVE_TURN && !turned(&was, &there))
        return NULL;
    wf_var *moved = *how == MOVE_GATHER  ? wf_unshard(x)
                    : *how == MOVE_SHARD ? wf_shard(x, was.mesh)
                                         : wf_redistribute(x, there);
    return wf_redistribute(wf_tanh(moved), was);
}

static inline wf_layer *moving(const part *l)
{
    static const move hows[MOVES] = {MOVE_GATHER, MOVE_TURN, MOVE_SHARD};
    return wf_module(on.ctx, go_and_return, (void *)&hows[l->move]);
}

static inline wf_layer *pool(const part *l)
{
    const wf_pool_opts opts = {.kernel = 2, .stride = 2};
    if (is_deep(l))
        return (l->max_pool ? wf_max_pool3d : wf_avg_pool3d)(on.ctx, opts);
    return (l->max_pool ? wf_max_pool2d : wf_avg_pool2d)(on.ctx, opts);
}

/* Statistics of a sample by itself: chunks have those of the whole batch. */
static inline wf_layer *grouped(const part *l)
{
    if (is_tokens(l->in) && l->function == 0)
        return wf_layernorm(on.ctx, (wf_layernorm_opts){.shape = WF_SHAPE(l->out), .eps = 0.5});
    if (is_tokens(l->in))
        return wf_rmsnorm(on.ctx, (wf_rmsnorm_opts){.shape = WF_SHAPE(l->out), .eps = 0.5});
    const int64_t groups = l->out % 2 ? 1 : l->out / 2;
    switch (l->function) {
    case 0:
        return wf_layernorm(on.ctx, (wf_layernorm_opts){.channels = l->out, .eps = 0.5});
    case 1:
        return wf_rmsnorm(on.ctx, (wf_rmsnorm_opts){.channels = l->out, .eps = 0.5});
    case 2:
        return wf_groupnorm(on.ctx, (wf_groupnorm_opts){.channels = l->out, .groups = groups, .eps = 0.5});
    case 3:
        return wf_layerscale(on.ctx,
                             (wf_layerscale_opts){.channels = l->out, .gamma_init = {WF_INIT_TRUNC_NORMAL, 1, 0.25}});
    default:
        return wf_groupnorm(on.ctx, (wf_groupnorm_opts){.channels = l->out, .groups = 1, .eps = 0.5});
    }
}

/* The image whole along channels and all pixels but those of the first spatial dimension, whose cut is one of tokens.
 */
static inline wf_var *whole_rows(wf_var *x)
{
    const wf_layout was = x && wf_value(x) ? wf_tensor_layout(wf_value(x)) : wf_layout_none();
    wf_layout_opts opts = {0};
    wf_layout target;
    if (!was.known)
        return x;
    for (int a = 0; a < WF_AXES; a++)
        if (was.placement[a] == WF_SHARDED && (was.dim[a] == 0 || was.dim[a] == 2)) {
            opts.dim[a] = WF_DIM(was.dim[a]);
            opts.bounds[a] = was.bounds[a];
        }
    if (wf_mesh_layout(was.mesh, was.global, opts, &target) != WF_OK)
        return NULL;
    /* Each rank knows its own samples of a chunk. */
    for (int a = 0; a < WF_AXES; a++)
        if (was.placement[a] == WF_SHARDED && was.dim[a] == 0) {
            target.bounds[a] = was.bounds[a];
            target.box.lo[0] = was.box.lo[0];
            target.box.hi[0] = was.box.hi[0];
        }
    return wf_redistribute(x, target);
}

static inline wf_var *attend(wf_layer *self, void *user, wf_var *x)
{
    const part *l = user;
    wf_layer *of = wf_layer_child(self, "of");
    if (is_tokens(l->in))
        return wf_apply(of, x);
    const wf_layout was = x && wf_value(x) ? wf_tensor_layout(wf_value(x)) : wf_layout_none();
    wf_var *rows = whole_rows(x);
    if (!rows)
        return NULL;
    wf_shape pixels = wf_var_shape(rows);
    pixels.rank -= 2;
    memmove(pixels.dim, pixels.dim + 2, 3 * sizeof *pixels.dim);
    wf_var *image = wf_image(wf_apply(of, wf_tokens(rows)), pixels);
    return image && was.known ? wf_redistribute(image, was) : image;
}

static inline wf_layer *attention(const part *l, const wf_mesh *mesh)
{
    const int64_t features = l->in.dim[1];
    const double dropout = l->drops ? 0.3 : 0;
    const int64_t relative = 2 * l->shift + 1;
    wf_layer *module;
    switch (l->kind) {
    case WINDOWS:
        return wf_window_attention(on.ctx, (wf_window_attention_opts){.features = features,
                                                                      .heads = l->heads,
                                                                      .window = l->side,
                                                                      .shift = l->shift,
                                                                      .dropout = dropout,
                                                                      .mesh = mesh});
    case NEIGHBOURS:
        return wf_neighbourhood_attention(
            on.ctx,
            (wf_neighbourhood_attention_opts){
                .features = features, .heads = l->heads, .nd = l->in.rank - 2, .kernel = l->side, .mesh = mesh});
    case BLOCK:
        module = wf_module(on.ctx, attend, (void *)l);
        wf_module_add(module, "of",
                      wf_transformer_block(on.ctx, (wf_transformer_block_opts){.features = features,
                                                                               .heads = l->heads,
                                                                               .hidden = features + l->side,
                                                                               .causal = l->causal,
                                                                               .dropout = dropout,
                                                                               .drop_path = dropout,
                                                                               .relative = relative,
                                                                               .eps = 0.5,
                                                                               .mesh = mesh,
                                                                               .cut = l->cut,
                                                                               .paired = l->paired}));
        break;
    default:
        module = wf_module(on.ctx, attend, (void *)l);
        wf_module_add(module, "of",
                      wf_multihead(on.ctx, (wf_multihead_opts){.features = features,
                                                               .heads = l->heads,
                                                               .causal = l->causal,
                                                               .dropout = dropout,
                                                               .relative = relative,
                                                               .mesh = mesh,
                                                               .cut = l->cut,
                                                               .paired = l->paired}));
    }
    return l->segment ? wf_recompute(module) : module;
}

static inline wf_var *join_inputs(wf_layer *self, void *user, wf_var *const *x, int n)
{
    const wf_skip_join *how = user;
    return *how ? (*how)(x[0], x[n - 1]) : wf_add(x[0], x[n - 1]);
}

/* Every other one is a layer of two inputs, and of these every other one is recomputed. */
static inline wf_layer *pop_of(const part *l, const char *name)
{
    if (l->skip % 2 == 0)
        return wf_skip_pop(on.ctx, name, joins[l->join]);
    wf_layer *module = wf_module_n(on.ctx, 2, 2, join_inputs, (void *)&joins[l->join]);
    wf_layer *pop = wf_skip_apply(module, WF_NAMES(name));
    return l->skip % 4 == 1 ? wf_recompute(pop) : pop;
}

static inline wf_layer *layer_of(const part *l, bool last, bool parallel)
{
    static wf_var *(*const functions[])(wf_var *) = {drop, noisy, wf_tanh, wf_sigmoid, leaky};
    const wf_batchnorm_opts norms = {
        .channels = l->out, .eps = 0.5, .decay = 0.7, .act = l->function ? WF_ACT_RELU : WF_ACT_NONE};
    char name[16];
    snprintf(name, sizeof name, "skip%d", l->skip);
    switch (l->kind) {
    case DENSE:
        if (is_tokens(l->in))
            return token_linear(l->in.dim[1], l->out);
        return wf_linear(on.ctx, (wf_linear_opts){.in = l->in.dim[1], .out = l->out, .replicate = last});
    case CONV:
        return conv(l, l->conv);
    case NORM:
        return wf_batchnorm(on.ctx, norms);
    case GROUPED:
        return grouped(l);
    case FUNCTION:
        if (l->function == 0 && l->in.dim[1] % 2)
            return wf_stochastic_depth(on.ctx, 0.3);
        return wf_lambda(on.ctx, functions[l->function]);
    case POOL:
        return pool(l);
    case UPSAMPLE:
        return (is_deep(l) ? wf_upsample3d : wf_upsample2d)(on.ctx, (wf_upsample_opts){0});
    case FLATTEN:
        return wf_lambda(on.ctx, wf_flatten);
    case BRANCH:
        return branch(l);
    case LINKED:
        return linked(l, parallel);
    case MOVE:
        return moving(l);
    case EMBED:
        return wf_embedding(on.ctx, (wf_embedding_opts){.count = WORDS, .features = l->out});
    case MULTIHEAD:
    case BLOCK:
    case WINDOWS:
    case NEIGHBOURS:
        return attention(l, parallel && l->cut_heads ? on.mesh : NULL);
    case STASH:
        return wf_skip_stash(on.ctx, name);
    case POP:
        return pop_of(l, name);
    }
    return NULL;
}

/* The path of a layer's parameter below the model. */
static const char *path_of(const plan *p, int layer, const char *name, char path[64])
{
    const int lo = p->inner[0], hi = p->inner[1];
    if (lo == hi || layer < lo)
        snprintf(path, 64, "%d/%s", layer, name);
    else if (layer < hi)
        snprintf(path, 64, "%d/%d/%s", lo, layer - lo, name);
    else
        snprintf(path, 64, "%d/%s", layer - (hi - lo) + 1, name);
    return path;
}

static inline wf_layer *chain_of(const plan *p, bool parallel)
{
    wf_layer *layer[LAYERS], *outer[LAYERS];
    const int lo = p->inner[0], hi = p->inner[1];
    char path[64], with[64];
    int n = 0;
    for (int i = 0; i < p->n; i++)
        layer[i] = layer_of(&p->part[i], i == p->n - 1, parallel);
    for (int i = 0; i < p->n; i++) {
        if (i == lo && lo < hi)
            outer[n++] = wf_sequential(on.ctx, hi - lo, layer + lo);
        if (i < lo || i >= hi)
            outer[n++] = layer[i];
    }
    wf_layer *model = wf_layer_named(wf_sequential(on.ctx, n, outer), "net");
    WF_EXPECT(model, "%s: %s", p->text, wf_error_message());
    if (parallel && p->how)
        WF_EXPECT(wf_parallelize(model, on.mesh, p->how) == WF_OK, "%s: %s", p->text, wf_error_message());
    for (int i = 0; i < p->ties; i++)
        for (int k = 0; k <= p->ties_biases; k++) {
            const wf_status status = wf_layer_tie(model, path_of(p, p->tie[i][0], k ? "b" : "W", path),
                                                  path_of(p, p->tie[i][1], k ? "b" : "W", with));
            WF_EXPECT(status == WF_OK, "%s: %s", p->text, wf_error_message());
        }
    if (p->frozen >= 0)
        WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(model, path_of(p, p->frozen, "W", path)), false));
    return model;
}

/* --- optimizers -----------------------------------------------------------------------------------------------------
 */

static inline wf_optim *update_rule(const plan *p, wf_layer *model)
{
    /* A large eps, which magnifies no rounding of gradients that are zero. */
    const wf_adam_opts adam = {.lr = p->lr, .eps = 0.5};
    switch (HAS_SGD + p->optimizer) {
    case HAS_SGD:
        return wf_sgd(model, (wf_sgd_opts){.lr = p->lr, .weight_decay = 0.01});
    case HAS_MOMENTUM:
        return wf_sgd(model, (wf_sgd_opts){.lr = p->lr, .momentum = 0.9, .nesterov = p->number % 2});
    case HAS_ADAM:
        return wf_adam(model, adam);
    case HAS_ADAMW:
        return wf_adamw(model, adam);
    case HAS_RMSPROP:
        return wf_rmsprop(model, (wf_rmsprop_opts){.lr = p->lr, .eps = 0.5});
    case HAS_LAMB:
        return wf_lamb(model, (wf_lamb_opts){.lr = p->lr, .eps = 0.5});
    }
    return NULL;
}

static inline wf_optim *optim_of(const plan *p, wf_layer *model)
{
    wf_optim *optim = update_rule(p, model);
    if (p->schedule.kind != WF_SCHEDULE_CONSTANT)
        optim = wf_lr_schedule(optim, p->schedule);
    WF_EXPECT(optim, "%s: %s", p->text, wf_error_message());
    if (p->clip_norm > 0)
        WF_EXPECT_OK(wf_optim_clip_norm(optim, p->clip_norm));
    if (p->clip_value > 0)
        WF_EXPECT_OK(wf_optim_clip_value(optim, p->clip_value));
    if (p->scales)
        WF_EXPECT_OK(wf_optim_scale_loss(optim, (wf_loss_scale_opts){.init = 1024, .interval = 2}));
    return optim;
}

/* The optimizer of the pipeline; counts the sums of the program's own. */
static inline wf_optim *multi_node_optim_of(const plan *p, wf_layer *model, int64_t *sums)
{
    wf_multi_node_opts opts = p->multi;
    if (p->own_sum) {
        opts.reduce = sum_halves;
        opts.reduce_user = sums;
    }
    wf_optim *optim = wf_mesh_multi_node(on.mesh, optim_of(p, model), opts);
    WF_EXPECT(optim, "%s: %s", p->text, wf_error_message());
    return optim;
}

#endif
