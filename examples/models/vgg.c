/* Simonyan and Zisserman 2015 with batch normalisation, as Chainer's CIFAR example has it. */
#include "examples/models/vgg.h"

static wf_var *drop_less(wf_var *x)
{
    return wf_dropout(x, 0.3);
}

static wf_var *drop(wf_var *x)
{
    return wf_dropout(x, 0.4);
}

static wf_var *drop_half(wf_var *x)
{
    return wf_dropout(x, 0.5);
}

static wf_var *as_it_is(wf_var *x)
{
    return x;
}

static wf_layer *conv(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 3, .pad = 1, .no_bias = true});
}

static wf_layer *bn_relu(wf_ctx *ctx, int64_t channels)
{
    return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = channels, .act = WF_ACT_RELU});
}

/* Convolutions of equal width with dropout between them, then half the side. */
static wf_layer *group(wf_ctx *ctx, int64_t in, int64_t out, int convolutions, wf_var *(*dropout)(wf_var *))
{
    wf_layer *layers[9];
    int n = 0;
    for (int i = 0; i < convolutions; i++) {
        layers[n++] = conv(ctx, i == 0 ? in : out, out);
        layers[n++] = bn_relu(ctx, out);
        if (dropout && i + 1 < convolutions)
            layers[n++] = wf_lambda(ctx, dropout);
    }
    layers[n++] = wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2});
    return wf_sequential(ctx, n, layers);
}

static wf_layer *head(wf_ctx *ctx, int64_t in, int64_t hidden, int64_t classes, wf_var *(*dropout)(wf_var *))
{
    return wf_sequential(ctx,
                         WF_LAYERS(wf_lambda(ctx, wf_flatten), wf_lambda(ctx, dropout),
                                   wf_linear(ctx, (wf_linear_opts){.in = in, .out = hidden, .no_bias = true}),
                                   bn_relu(ctx, hidden), wf_lambda(ctx, dropout),
                                   wf_linear(ctx, (wf_linear_opts){.in = hidden, .out = classes, .replicate = true})));
}

wf_layer *vgg16(wf_ctx *ctx, vgg_opts o)
{
    const int64_t w = o.width ? o.width : 64, classes = o.classes ? o.classes : 10, side = (o.side ? o.side : 32) / 32;
    wf_var *(*const first)(wf_var *) = o.no_dropout ? NULL : drop_less;
    wf_var *(*const rest)(wf_var *) = o.no_dropout ? NULL : drop;

    return wf_sequential(
        ctx, WF_LAYERS(group(ctx, 3, w, 2, first),        /* [N,w,16,16] */
                       group(ctx, w, 2 * w, 2, rest),     /* [N,2w,8,8] */
                       group(ctx, 2 * w, 4 * w, 3, rest), /* [N,4w,4,4] */
                       group(ctx, 4 * w, 8 * w, 3, rest), /* [N,8w,2,2] */
                       group(ctx, 8 * w, 8 * w, 3, rest), /* [N,8w,1,1] */
                       head(ctx, 8 * w * side * side, 8 * w, classes, o.no_dropout ? as_it_is : drop_half)));
}
