/* Gradients of every layer against central differences, in f64 on `ref`: towards the input and each parameter, for one
 * to three spatial dimensions and every option, also through a layer that is applied twice, and on empty batches. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;
static wf_tape *tape;
static test_rng rng = {.state = 7};

typedef struct check {
    const char *name;
    wf_layer *layer;
    wf_tensor *x;
    bool twice; /* y = layer(x) + 2 layer(x): parameters are used twice */
} check;

/* The objective is sum weight y; weights are a function of the element's place. */
static wf_var *objective(const check *c, wf_var **leaf)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 0)); /* the same noise in every run */
    *leaf = wf_leaf(tape, c->x);
    wf_var *y = wf_apply(c->layer, *leaf);
    if (c->twice) {
        wf_var *again = wf_apply(c->layer, *leaf);
        y = wf_add(y, wf_scale(again, 2));
    }
    WF_EXPECT(y, "%s: %s", c->name, wf_error_message());
    if (!y)
        return NULL;
    const int64_t n = wf_tensor_count(wf_value(y));
    double *host = malloc((size_t)(n + 1) * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = sin(1.3 * (double)i + 0.4);
    wf_tensor *w = wf_tensor_new_like(wf_value(y));
    WF_EXPECT_OK(wf_tensor_import(w, host, wf_tensor_bytes(w)));
    wf_var *weighted = wf_mul(y, wf_input(tape, w));
    wf_tensor_free(w);
    free(host);
    return wf_sum(weighted);
}

static double value(const check *c)
{
    wf_var *leaf;
    return wf_item(objective(c, &leaf));
}

static double *fetch(const wf_tensor *t)
{
    double *host = calloc((size_t)wf_tensor_count(t) + 1, sizeof *host);
    if (t)
        WF_EXPECT_OK(wf_tensor_export(t, host, wf_tensor_bytes(t)));
    return host;
}

/* Central differences towards the elements of `t`, of which at most about 40 are tried. */
static void compare(const check *c, const char *what, wf_tensor *t, const double *gradient)
{
    const double h = 1e-5;
    const int64_t n = wf_tensor_count(t), step = n / 40 + 1;
    double *host = fetch(t);
    for (int64_t i = 0; i < n; i += step) {
        const double old = host[i];
        host[i] = old + h;
        WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
        const double up = value(c);
        host[i] = old - h;
        WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
        const double numeric = (up - value(c)) / (2 * h);
        host[i] = old;
        WF_EXPECT(fabs(numeric - gradient[i]) < 1e-7 * (1 + fabs(numeric)), "%s: d/d%s[%lld] is %.10g, numeric %.10g",
                  c->name, what, (long long)i, gradient[i], numeric);
    }
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    free(host);
}

static void run(const check *c)
{
    wf_var *leaf, *f = objective(c, &leaf);
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_backward(f));
    WF_EXPECT_OK(wf_layer_params(c->layer, &n, &params));
    double *gradient[16], *dx = fetch(wf_grad(leaf));
    for (int64_t i = 0; i < n; i++)
        gradient[i] = fetch(wf_param_grad(params[i]));
    compare(c, "x", c->x, dx);
    for (int64_t i = 0; i < n; i++) {
        if (wf_param_trainable(params[i]))
            compare(c, wf_param_name(params[i]), wf_param_value(params[i]), gradient[i]);
        free(gradient[i]);
    }
    free(dx);
}

static wf_tensor *random_tensor(wf_shape shape, double lo, double hi)
{
    const int64_t n = wf_shape_count(shape);
    double *host = malloc((size_t)(n + 1) * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = test_uniform(&rng, lo, hi);
    wf_tensor *t = wf_tensor_new(ctx, WF_F64, shape);
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    free(host);
    return t;
}

/* Parameters get random values, so that biases and beta count. Owns the layer. */
static void check_layer(const char *name, wf_layer *layer, wf_shape shape)
{
    WF_EXPECT(layer, "%s: %s", name, wf_error_message());
    if (!layer)
        return;
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(layer, &n, &params));
    for (int64_t i = 0; i < n; i++)
        if (wf_param_trainable(params[i])) {
            wf_tensor *value_of = random_tensor(wf_param_shape(params[i]), -1, 1);
            WF_EXPECT_OK(wf_tensor_assign(wf_param_value(params[i]), value_of));
            wf_tensor_free(value_of);
        }
    check c = {.name = name, .layer = layer, .x = random_tensor(shape, -1, 1)};
    run(&c);
    c.twice = true;
    run(&c);
    wf_tensor_free(c.x);
    shape.dim[0] = 0; /* nothing in, nothing out, gradients are zero */
    wf_tensor *empty = wf_tensor_new(ctx, WF_F64, shape);
    check e = {.name = name, .layer = layer, .x = empty};
    wf_var *leaf;
    WF_EXPECT_OK(wf_backward(objective(&e, &leaf)));
    for (int64_t i = 0; i < n; i++) {
        double *g = fetch(wf_param_grad(params[i]));
        for (int64_t j = 0; wf_param_trainable(params[i]) && j < wf_shape_count(wf_param_shape(params[i])); j++)
            WF_EXPECT(g[j] == 0, "%s: gradient of %s is %g on an empty batch", name, wf_param_name(params[i]), g[j]);
        free(g);
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(empty);
    wf_layer_free(layer);
}

static void linear(void)
{
    check_layer("linear", wf_linear(ctx, (wf_linear_opts){.in = 5, .out = 3}), WF_SHAPE(4, 5));
    check_layer("linear flattens", wf_linear(ctx, (wf_linear_opts){.in = 12, .out = 2}), WF_SHAPE(3, 3, 2, 2));
    check_layer("linear no bias", wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 1, .no_bias = true}), WF_SHAPE(1, 2));
}

typedef struct conv_case {
    const char *name;
    int nd;
    wf_conv_opts o;
    int64_t n, length[3];
} conv_case;

static const conv_case conv_cases[] = {
    {"k3 p1", 2, {.in = 3, .out = 4, .kernel = 3, .pad = 1}, 2, {5, 4}},
    {"k4 s2 p1", 2, {.in = 2, .out = 3, .kernel = 4, .stride = 2, .pad = 1}, 2, {6, 8}},
    {"k2 s3", 2, {.in = 2, .out = 2, .kernel = 2, .stride = 3}, 2, {8, 7}},
    {"k3 d2 p2", 2, {.in = 2, .out = 2, .kernel = 3, .dilation = 2, .pad = 2}, 1, {6, 5}},
    {"groups 2", 2, {.in = 4, .out = 6, .kernel = 3, .pad = 1, .groups = 2}, 2, {4, 4}},
    {"depthwise", 2, {.in = 4, .out = 4, .kernel = 3, .pad = 1, .groups = 4, .no_bias = true}, 2, {4, 5}},
    {"unequal",
     2,
     {.in = 2,
      .out = 3,
      .kernel_nd = {3, 2},
      .stride_nd = {1, 2},
      .dilation_nd = {2, 1},
      .pad_lo_nd = {2, 0},
      .pad_hi_nd = {1, 3}},
     2,
     {6, 5}},
    {"cropped", 2, {.in = 2, .out = 2, .kernel = 3, .pad_lo_nd = {-1, 0}, .pad_hi_nd = {0, -2}}, 1, {7, 8}},
    {"relu", 2, {.in = 2, .out = 3, .kernel = 3, .pad = 1, .act = WF_ACT_RELU}, 2, {4, 4}},
    {"leaky", 2, {.in = 2, .out = 3, .kernel = 3, .act = WF_ACT_LEAKY_RELU, .slope = 0.2}, 2, {4, 4}},
    {"noise leaky",
     2,
     {.in = 2, .out = 3, .kernel = 3, .act = WF_ACT_LEAKY_RELU, .slope = 0.2, .noise = 0.5},
     2,
     {4, 4}},
    {"noise", 2, {.in = 2, .out = 2, .kernel = 1, .noise = 0.5}, 2, {3, 3}},
    {"1-d", 1, {.in = 2, .out = 3, .kernel = 3, .stride = 2, .pad = 1}, 2, {7}},
    {"3-d", 3, {.in = 2, .out = 2, .kernel = 2, .pad = 1}, 1, {3, 2, 3}},
    {"3-d groups", 3, {.in = 2, .out = 4, .kernel = 3, .stride = 2, .pad = 1, .groups = 2}, 1, {4, 3, 3}},
};

static wf_layer *build(const conv_case *c, bool transposed)
{
    wf_conv_opts o = c->o;
    o.nd = c->nd;
    return transposed ? wf_conv_transpose(ctx, o) : wf_conv(ctx, o);
}

static wf_shape shape_of(const conv_case *c)
{
    wf_shape shape = {.rank = c->nd + 2, .dim = {c->n, c->o.in}};
    memcpy(shape.dim + 2, c->length, sizeof c->length);
    return shape;
}

static void conv(void)
{
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
        check_layer(conv_cases[i].name, build(&conv_cases[i], false), shape_of(&conv_cases[i]));
}

static void conv_transpose(void)
{
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        conv_case c = conv_cases[i];
        for (int d = 0; d < 3; d++)
            c.length[d] = (c.length[d] + 1) / 2 + 1;
        check_layer(c.name, build(&c, true), shape_of(&c));
    }
    check_layer("output pad",
                wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 2, .out = 3, .kernel = 3, .stride = 2, .output_pad = 1}),
                WF_SHAPE(2, 2, 3, 2));
}

static void batchnorm(void)
{
    check_layer("[N,C]", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3}), WF_SHAPE(5, 3));
    check_layer("[N,C,L]", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 2}), WF_SHAPE(3, 2, 4));
    check_layer("[N,C,H,W]", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .eps = 0.1}), WF_SHAPE(2, 3, 3, 2));
    check_layer("[N,C,D,H,W]", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 2}), WF_SHAPE(2, 2, 2, 2, 3));
    check_layer("no gamma", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .no_gamma = true}),
                WF_SHAPE(2, 3, 3, 2));
    check_layer("no beta", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .no_beta = true}), WF_SHAPE(4, 3));
    check_layer("relu", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .act = WF_ACT_RELU}),
                WF_SHAPE(2, 3, 3, 2));
    check_layer(
        "no gamma, noise, leaky",
        wf_batchnorm(
            ctx,
            (wf_batchnorm_opts){.channels = 3, .no_gamma = true, .noise = 0.2, .act = WF_ACT_LEAKY_RELU, .slope = 0.2}),
        WF_SHAPE(2, 3, 3, 2));
}

static void group_norms(void)
{
    const wf_shape image = WF_SHAPE(2, 6, 3, 2);
    check_layer("layernorm of [N,E]", wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(5)}), WF_SHAPE(3, 5));
    check_layer("layernorm of [N,T,E]", wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(4)}),
                WF_SHAPE(2, 3, 4));
    check_layer("layernorm over two dimensions", wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(3, 4)}),
                WF_SHAPE(2, 3, 4));
    check_layer("layernorm of channels", wf_layernorm(ctx, (wf_layernorm_opts){.channels = 6, .no_beta = true}), image);
    check_layer("layernorm without gamma",
                wf_layernorm(ctx, (wf_layernorm_opts){.shape = WF_SHAPE(4), .no_gamma = true}), WF_SHAPE(2, 3, 4));
    check_layer("rmsnorm of [N,T,E]", wf_rmsnorm(ctx, (wf_rmsnorm_opts){.shape = WF_SHAPE(4)}), WF_SHAPE(2, 3, 4));
    check_layer("rmsnorm of channels", wf_rmsnorm(ctx, (wf_rmsnorm_opts){.channels = 6, .no_gamma = true}), image);
    check_layer("groupnorm", wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = 6, .groups = 2}), image);
    check_layer("groupnorm of [N,C]", wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = 6, .groups = 3, .eps = 0.1}),
                WF_SHAPE(4, 6));
    check_layer("groupnorm of a volume", wf_groupnorm(ctx, (wf_groupnorm_opts){.channels = 4, .groups = 1}),
                WF_SHAPE(2, 4, 2, 3, 2));
    check_layer("instancenorm", wf_instancenorm(ctx, (wf_instancenorm_opts){.channels = 6}), image);
    check_layer("instancenorm of [N,C,L]",
                wf_instancenorm(ctx, (wf_instancenorm_opts){.channels = 2, .no_gamma = true, .no_beta = true}),
                WF_SHAPE(3, 2, 5));
}

static void prelus(void)
{
    check_layer("prelu", wf_prelu(ctx, (wf_prelu_opts){.slope = 0.3}), WF_SHAPE(2, 3, 4));
    check_layer("prelu of channels", wf_prelu(ctx, (wf_prelu_opts){.channels = 6}), WF_SHAPE(2, 6, 3, 2));
    check_layer("prelu of [N,C]", wf_prelu(ctx, (wf_prelu_opts){.channels = 5}), WF_SHAPE(3, 5));
}

static wf_var *add_half(wf_layer *self, void *user, wf_var *x)
{
    return wf_apply_residual(wf_layer_child(self, "norm"), x, wf_scale(x, 0.5));
}

static wf_var *add_itself(wf_layer *self, void *user, wf_var *x)
{
    return wf_apply_residual(wf_layer_child(self, "norm"), wf_tanh(x), x);
}

static wf_var *add_x(wf_layer *self, void *user, wf_var *x)
{
    return wf_apply_residual(wf_layer_child(self, "norm"), x, x);
}

/* The residual depends on x, too. */
static void residual(void)
{
    const wf_forward forward[] = {add_half, add_itself, add_x};
    const wf_batchnorm_opts opts[] = {{.channels = 3, .act = WF_ACT_RELU},
                                      {.channels = 3},
                                      {.channels = 3, .act = WF_ACT_LEAKY_RELU, .slope = 0.2, .noise = 0.2}};
    for (int f = 0; f < 3; f++)
        for (int o = 0; o < 3; o++) {
            wf_layer *module = wf_module(ctx, forward[f], NULL);
            WF_EXPECT(wf_module_add(module, "norm", wf_batchnorm(ctx, opts[o])), "%s", wf_error_message());
            check_layer("with a residual", module, WF_SHAPE(2, 3, 3, 2));
        }
}

/* The rows 1, 3, 1, 0, 3 and -1, which is ignored, times x. */
static wf_var *embed(wf_layer *self, void *user, wf_var *x)
{
    const int32_t host[] = {1, 3, 1, 0, 3, -1};
    (void)user;
    wf_tensor *index = wf_tensor_new(ctx, WF_I32, WF_SHAPE(wf_var_shape(x).dim[0], 3));
    WF_EXPECT_OK(wf_tensor_import(index, host, wf_tensor_bytes(index)));
    wf_var *y = wf_apply(wf_layer_child(self, "table"), wf_input(tape, index));
    wf_tensor_free(index);
    return wf_mul(x, y);
}

static void embedding(void)
{
    wf_layer *module = wf_module(ctx, embed, NULL);
    wf_module_add(module, "table",
                  wf_embedding(ctx, (wf_embedding_opts){.count = 4, .features = 5, .ignores = true, .ignored = -1}));
    check_layer("embedding", module, WF_SHAPE(2, 3, 5));
}

static void transformers(void)
{
    const wf_init init = {WF_INIT_UNIFORM, -0.5, 0.5};
    const wf_token_linear_opts linear = {.in = 4, .out = 3, .w_init = init};
    const wf_multihead_opts heads = {.features = 4, .heads = 2, .relative = 3, .w_init = init};
    const wf_transformer_block_opts block = {
        .features = 4, .heads = 2, .hidden = 5, .causal = true, .dropout = 0.3, .rotary = 4, .w_init = init};
    check_layer("token_linear", wf_token_linear(ctx, linear), WF_SHAPE(2, 3, 4));
    check_layer("token_linear of no token", wf_token_linear(ctx, linear), WF_SHAPE(2, 0, 4));
    check_layer("class_token", wf_class_token(ctx, (wf_class_token_opts){.features = 4, .w_init = init}),
                WF_SHAPE(2, 3, 4));
    check_layer("rotary", wf_rotary(ctx, (wf_rotary_opts){.length = 4, .heads = 2, .features = 4}), WF_SHAPE(2, 3, 8));
    check_layer("multihead", wf_multihead(ctx, heads), WF_SHAPE(2, 3, 4));
    check_layer("transformer_block", wf_transformer_block(ctx, block), WF_SHAPE(2, 3, 4));
    wf_window_attention_opts windows = {
        .features = 2, .heads = 2, .window = 2, .shift_nd = {1, 1}, .dropout = 0.3, .w_init = init};
    check_layer("window_attention", wf_window_attention(ctx, windows), WF_SHAPE(1, 2, 4, 3));
    check_layer("window_attention of a row of windows", wf_window_attention(ctx, windows), WF_SHAPE(2, 2, 2, 3));
    check_layer("window_attention of no sample", wf_window_attention(ctx, windows), WF_SHAPE(0, 2, 4, 3));
    windows = (wf_window_attention_opts){
        .features = 2, .heads = 1, .window_nd = {1, 3}, .shift_nd = {0, 2}, .no_bias = true, .w_init = init};
    check_layer("window_attention of wide windows", wf_window_attention(ctx, windows), WF_SHAPE(1, 2, 2, 5));
    check_layer("window_attention of no row", wf_window_attention(ctx, windows), WF_SHAPE(1, 2, 0, 5));
}

static void neighbourhoods(void)
{
    const wf_init init = {WF_INIT_UNIFORM, -0.5, 0.5};
    wf_neighbourhood_attention_opts o = {.features = 4, .heads = 2, .kernel_nd = {3, 2}, .w_init = init};
    check_layer("neighbourhood_attention", wf_neighbourhood_attention(ctx, o), WF_SHAPE(1, 4, 4, 3));
    check_layer("neighbourhood_attention of no sample", wf_neighbourhood_attention(ctx, o), WF_SHAPE(0, 4, 4, 3));
    o = (wf_neighbourhood_attention_opts){
        .features = 2, .heads = 1, .nd = 1, .kernel = 3, .dilation = 2, .scale = 0.7, .no_bias = true, .w_init = init};
    check_layer("neighbourhood_attention 1-d, dilated", wf_neighbourhood_attention(ctx, o), WF_SHAPE(2, 2, 7));
    o = (wf_neighbourhood_attention_opts){
        .features = 2, .heads = 2, .nd = 3, .kernel = 2, .no_relative = true, .w_init = init};
    check_layer("neighbourhood_attention 3-d", wf_neighbourhood_attention(ctx, o), WF_SHAPE(1, 2, 2, 3, 2));
}

/* What residual blocks end with, and positions; the same samples are left out every time. */
static void small_layers(void)
{
    check_layer("layerscale", wf_layerscale(ctx, (wf_layerscale_opts){.channels = 3}), WF_SHAPE(4, 3));
    check_layer("layerscale 2-d", wf_layerscale(ctx, (wf_layerscale_opts){.channels = 5}), WF_SHAPE(2, 5, 3, 2));
    check_layer("layerscale 3-d", wf_layerscale(ctx, (wf_layerscale_opts){.channels = 2}), WF_SHAPE(2, 2, 3, 2, 2));
    check_layer("layerscale tokens", wf_layerscale(ctx, (wf_layerscale_opts){.features = 5}), WF_SHAPE(2, 3, 5));
    check_layer("layerscale planes", wf_layerscale(ctx, (wf_layerscale_opts){.features = 4}), WF_SHAPE(2, 3, 2, 4));
    check_layer("positions", wf_positions(ctx, (wf_positions_opts){.length = 5, .features = 4}), WF_SHAPE(2, 3, 4));
    check_layer("all positions", wf_positions(ctx, (wf_positions_opts){.length = 3, .features = 4}), WF_SHAPE(2, 3, 4));
    check_layer("sines", wf_positions(ctx, (wf_positions_opts){.length = 5, .features = 4, .kind = WF_POSITIONS_SINE}),
                WF_SHAPE(2, 3, 4));
    check_layer("stochastic depth", wf_stochastic_depth(ctx, 0.4), WF_SHAPE(5, 3, 2, 2));
    check_layer("stochastic depth of vectors", wf_stochastic_depth(ctx, 0.4), WF_SHAPE(5, 3));
}

/* Pixels that fill no patch have no gradient. */
static void patches(void)
{
    check_layer("patches", wf_patch_embed(ctx, (wf_patch_embed_opts){.in = 2, .out = 3, .patch = 2}),
                WF_SHAPE(2, 2, 5, 4));
    check_layer("patches 1-d", wf_patch_embed(ctx, (wf_patch_embed_opts){.in = 2, .out = 3, .nd = 1, .patch = 2}),
                WF_SHAPE(2, 2, 4));
    const wf_patch_embed_opts volume = {.in = 1, .out = 2, .nd = 3, .patch = 2, .patch_nd = {1}, .no_bias = true};
    check_layer("patches 3-d", wf_patch_embed(ctx, volume), WF_SHAPE(1, 1, 2, 4, 4));
    check_layer("merged", wf_patch_merging(ctx, (wf_patch_merging_opts){.channels = 2}), WF_SHAPE(2, 2, 4, 2));
    check_layer("merged by 3", wf_patch_merging(ctx, (wf_patch_merging_opts){.channels = 1, .out = 2, .block = 3}),
                WF_SHAPE(1, 1, 3, 6));
}

/* A picture of the maxima alone, and the maxima themselves where places meet twice. */
static wf_var *there_and_back(wf_layer *self, void *user, wf_var *x)
{
    const wf_pool_opts *opts = user;
    wf_shape size = {0};
    wf_var *places, *y = wf_max_pool_with_places(wf_layer_child(self, "pool"), x, &places);
    const wf_shape shape = wf_var_shape(x);
    size.rank = opts ? 0 : shape.rank - 2;
    for (int d = 0; d < size.rank; d++)
        size.dim[d] = shape.dim[2 + d];
    return wf_max_unpool(wf_mul(y, y), places, opts ? *opts : (wf_pool_opts){0}, size);
}

/* With options the size follows from them. */
static wf_layer *unpooled(wf_layer *pool, const wf_pool_opts *opts)
{
    wf_layer *module = wf_module(ctx, there_and_back, (void *)opts);
    wf_module_add(module, "pool", pool);
    return module;
}

static void places(void)
{
    static const wf_pool_opts strided = {.kernel = 3, .stride = 2, .pad = 1}, plain = {.kernel = 2};
    check_layer("adaptive max 1-d", wf_adaptive_max_pool(ctx, WF_SHAPE(3)), WF_SHAPE(2, 3, 7));
    check_layer("adaptive max 2-d", wf_adaptive_max_pool(ctx, WF_SHAPE(7, 0)), WF_SHAPE(2, 3, 5, 4));
    check_layer("adaptive max 3-d", wf_adaptive_max_pool(ctx, WF_SHAPE(2, 1, 3)), WF_SHAPE(2, 2, 3, 4, 2));
    check_layer("unpool 1-d", unpooled(wf_max_pool1d(ctx, plain), &plain), WF_SHAPE(2, 3, 8));
    check_layer("unpool 2-d", unpooled(wf_max_pool2d(ctx, plain), NULL), WF_SHAPE(2, 3, 5, 7));
    check_layer("unpool 3-d", unpooled(wf_max_pool3d(ctx, plain), &plain), WF_SHAPE(1, 2, 4, 2, 6));
    check_layer("unpool, equal places", unpooled(wf_max_pool2d(ctx, strided), NULL), WF_SHAPE(2, 3, 5, 7));
    check_layer("unpool, global", unpooled(wf_global_max_pool(ctx), NULL), WF_SHAPE(2, 3, 4, 3));
    check_layer("unpool, adaptive", unpooled(wf_adaptive_max_pool(ctx, WF_SHAPE(4, 3)), NULL), WF_SHAPE(2, 3, 5, 5));
}

static void pooling(void)
{
    const wf_pool_opts plain = {.kernel = 2}, strided = {.kernel = 3, .stride = 2, .pad = 1};
    const wf_pool_opts ceil = {.kernel = 3, .stride = 2, .ceil_mode = true};
    const wf_pool_opts padded = {.kernel = 3, .stride = 2, .pad = 1, .ceil_mode = true, .count_include_pad = true};
    const wf_pool_opts unequal = {
        .kernel_nd = {2, 3}, .stride_nd = {1, 2}, .dilation_nd = {2, 1}, .pad_lo_nd = {1, 0}, .pad_hi_nd = {0, 1}};
    const wf_pool_opts all[] = {plain, strided, ceil, padded, unequal};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_layer("max 2-d", wf_max_pool2d(ctx, all[i]), WF_SHAPE(2, 3, 6, 7));
        check_layer("avg 2-d", wf_avg_pool2d(ctx, all[i]), WF_SHAPE(2, 3, 6, 7));
    }
    check_layer("max 1-d", wf_max_pool1d(ctx, strided), WF_SHAPE(2, 2, 7));
    check_layer("avg 1-d", wf_avg_pool1d(ctx, strided), WF_SHAPE(2, 2, 7));
    check_layer("max 3-d", wf_max_pool3d(ctx, strided), WF_SHAPE(1, 2, 4, 3, 5));
    check_layer("avg 3-d", wf_avg_pool3d(ctx, padded), WF_SHAPE(1, 2, 4, 3, 5));
    check_layer("lp 1-d", wf_lp_pool1d(ctx, 3, strided), WF_SHAPE(2, 2, 7));
    check_layer("lp 2-d", wf_lp_pool2d(ctx, 2, unequal), WF_SHAPE(2, 3, 6, 7));
    check_layer("lp 3-d", wf_lp_pool3d(ctx, 1.5, padded), WF_SHAPE(1, 2, 4, 3, 5));
    check_layer("global max", wf_global_max_pool(ctx), WF_SHAPE(2, 3, 4, 3));
    check_layer("global avg", wf_global_avg_pool(ctx), WF_SHAPE(2, 3, 4, 3, 2));
}

static void composed(void)
{
    check_layer("sequential",
                wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, (wf_conv_opts){.in = 2, .out = 3, .kernel = 3, .pad = 1}),
                                             wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .act = WF_ACT_RELU}),
                                             wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2}), wf_lambda(ctx, wf_tanh),
                                             wf_linear(ctx, (wf_linear_opts){.in = 12, .out = 2}))),
                WF_SHAPE(3, 2, 4, 4));
}

static wf_layer *square(void)
{
    return wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 3});
}

static wf_var *beside(wf_var *x, wf_var *kept)
{
    return wf_concat(2, (wf_var *[]){x, kept}, 1);
}

/* A skip around two layers, one inside of it, and one weight in three places. */
static void skips_and_ties(void)
{
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(square(), wf_skip_stash(ctx, "a"), square(), wf_skip_stash(ctx, "b"),
                                                   wf_lambda(ctx, wf_tanh), wf_skip_pop(ctx, "b", wf_mul), square(),
                                                   wf_skip_pop(ctx, "a", beside)));
    WF_EXPECT_OK(wf_layer_tie(model, "2/W", "0/W"));
    WF_EXPECT_OK(wf_layer_tie(model, "6/W", "0/W"));
    check_layer("skips and ties", model, WF_SHAPE(4, 3));
}

/* y and the final state, of an initial state that is made of x. A constant x of i32, the lengths, is the user's. */
static wf_var *with_states(wf_layer *self, void *lengths, wf_var *x)
{
    const wf_shape shape = wf_var_shape(x);
    wf_layer *const layer = wf_layer_child(self, "layer");
    wf_box box = wf_box_of_shape(shape);
    box.hi[1] = 4;
    wf_var *input[3] = {x, wf_tanh(wf_slice(x, box))}, *last;
    const int64_t n = shape.dim[0];
    wf_tensor *l = lengths ? wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(n), lengths) : NULL;
    if (l)
        input[2] = wf_input(tape, l);
    wf_tensor_free(l);
    wf_var *y = wf_recurrent(layer, input, lengths ? 3 : 2, &last);
    return wf_concat(2, (wf_var *[]){wf_flatten(y), wf_flatten(last)}, 1);
}

static wf_layer *stateful(wf_layer *layer, int32_t *lengths)
{
    wf_layer *module = wf_module(ctx, with_states, lengths);
    wf_module_add(module, "layer", layer);
    return module;
}

/* Four rows of state: of an LSTM of two levels or of both directions, of a GRU of both. */
static void recurrent(void)
{
    static int32_t lengths[] = {3, 0, 5, 9};
    const wf_recurrent_opts one = {.in = 3, .hidden = 2}, two = {.in = 3, .hidden = 3, .levels = 2, .dropout = 0.4};
    const wf_recurrent_opts sides = {.in = 3, .hidden = 3, .both = true};
    const wf_recurrent_opts all = {.in = 3, .hidden = 3, .levels = 2, .both = true, .no_bias = true};
    check_layer("lstm", wf_lstm(ctx, one), WF_SHAPE(2, 3, 3));
    check_layer("gru", wf_gru(ctx, one), WF_SHAPE(2, 3, 3));
    check_layer("gru of two levels with dropout", wf_gru(ctx, two), WF_SHAPE(2, 3, 3));
    check_layer("lstm of two levels with states", stateful(wf_lstm(ctx, two), NULL), WF_SHAPE(2, 5, 3));
    check_layer("lstm of both directions with states", stateful(wf_lstm(ctx, sides), lengths), WF_SHAPE(4, 5, 3));
    check_layer("gru of both directions with states", stateful(wf_gru(ctx, all), lengths), WF_SHAPE(4, 5, 3));
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"linear", linear},
                                               {"conv", conv},
                                               {"conv_transpose", conv_transpose},
                                               {"batchnorm", batchnorm},
                                               {"group_norms", group_norms},
                                               {"prelus", prelus},
                                               {"patches", patches},
                                               {"residual", residual},
                                               {"small_layers", small_layers},
                                               {"embedding", embedding},
                                               {"transformers", transformers},
                                               {"neighbourhoods", neighbourhoods},
                                               {"recurrent", recurrent},
                                               {"pooling", pooling},
                                               {"places", places},
                                               {"composed", composed},
                                               {"skips_and_ties", skips_and_ties},
                                               {0}});
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
