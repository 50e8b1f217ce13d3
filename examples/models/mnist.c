/* The usual beginners' networks, serial; data parallelism needs no change in a model. */
#include "examples/models/mnist.h"

static wf_layer *dense(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_linear(ctx, (wf_linear_opts){.in = in, .out = out});
}

static wf_layer *relu(wf_ctx *ctx)
{
    return wf_lambda(ctx, wf_relu);
}

wf_layer *mnist_mlp(wf_ctx *ctx)
{
    return wf_sequential(
        ctx, WF_LAYERS(dense(ctx, 784, 1000), relu(ctx), dense(ctx, 1000, 1000), relu(ctx), dense(ctx, 1000, 10)));
}

static wf_layer *conv(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 5, .pad = 2});
}

static wf_layer *pool(wf_ctx *ctx)
{
    return wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2});
}

wf_layer *mnist_cnn(wf_ctx *ctx)
{
    return wf_sequential(ctx, WF_LAYERS(conv(ctx, 1, 16), relu(ctx), pool(ctx),  /* [N,16,14,14] */
                                        conv(ctx, 16, 32), relu(ctx), pool(ctx), /* [N,32,7,7] */
                                        dense(ctx, 32 * 49, 128), relu(ctx), dense(ctx, 128, 10)));
}

static wf_var *drop_quarter(wf_var *x)
{
    return wf_dropout(x, 0.25);
}

static wf_var *drop_half(wf_var *x)
{
    return wf_dropout(x, 0.5);
}

wf_layer *mnist_basic(wf_ctx *ctx, bool dropout)
{
    wf_layer *first = wf_conv2d(ctx, (wf_conv_opts){.in = 1, .out = 32, .kernel = 3});   /* [N,32,26,26] */
    wf_layer *second = wf_conv2d(ctx, (wf_conv_opts){.in = 32, .out = 64, .kernel = 3}); /* [N,64,24,24] */
    wf_layer *middle = dense(ctx, 9216, 128), *last = dense(ctx, 128, 10), *logp = wf_lambda(ctx, wf_log_softmax);
    if (!dropout)
        return wf_sequential(ctx,
                             WF_LAYERS(first, relu(ctx), second, relu(ctx), pool(ctx), middle, relu(ctx), last, logp));
    return wf_sequential(ctx, WF_LAYERS(first, relu(ctx), second, relu(ctx), pool(ctx), wf_lambda(ctx, drop_quarter),
                                        middle, relu(ctx), wf_lambda(ctx, drop_half), last, logp));
}
