/* The two usual beginners' networks, serial; data parallelism needs no change in a model. */
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
