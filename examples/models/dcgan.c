/* Radford, Metz and Chintala 2016, for images of 32 x 32, with the noise that Chainer's example adds in the
 * discriminator. */
#include "examples/models/dcgan.h"

static const wf_init weights = {WF_INIT_NORMAL, 0, 0.02};

/* [N,in,H,W] -> [N,out,2H,2W] */
static wf_layer *up(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_conv_transpose2d(
        ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 4, .stride = 2, .pad = 1, .w_init = weights});
}

static wf_layer *bn_relu(wf_ctx *ctx, int64_t channels)
{
    return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = channels, .act = WF_ACT_RELU});
}

static wf_var *to_square(wf_var *x)
{
    return wf_reshape(x, WF_SHAPE(wf_var_shape(x).dim[0], -1, 4, 4));
}

wf_layer *dcgan_generator(wf_ctx *ctx, int64_t ch, int64_t latent)
{
    wf_layer *const layers[] = {
        wf_linear(ctx, (wf_linear_opts){.in = latent, .out = 16 * ch, .w_init = weights, .replicate = true}),
        bn_relu(ctx, 16 * ch),
        wf_lambda(ctx, to_square), /* [N,ch,4,4] */
        up(ctx, ch, ch / 2),
        bn_relu(ctx, ch / 2), /* [N,ch/2,8,8] */
        up(ctx, ch / 2, ch / 4),
        bn_relu(ctx, ch / 4), /* [N,ch/4,16,16] */
        up(ctx, ch / 4, ch / 8),
        bn_relu(ctx, ch / 8), /* [N,ch/8,32,32] */
        wf_conv_transpose2d(
            ctx, (wf_conv_opts){.in = ch / 8, .out = 3, .kernel = 3, .pad = 1, .w_init = weights, .replicate = true}),
        wf_lambda(ctx, wf_sigmoid),
    };
    return wf_sequential(ctx, (int)(sizeof layers / sizeof *layers), layers);
}

/* Batch normalisation without gamma, noise in training, leaky ReLU: one layer. */
static wf_layer *bn_noise_leaky(wf_ctx *ctx, int64_t channels)
{
    return wf_batchnorm(
        ctx, (wf_batchnorm_opts){
                 .channels = channels, .no_gamma = true, .noise = 0.2, .act = WF_ACT_LEAKY_RELU, .slope = 0.2});
}

static wf_layer *keep(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 3, .pad = 1, .w_init = weights});
}

static wf_layer *halve(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 4, .stride = 2, .pad = 1, .w_init = weights});
}

static wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.2);
}

/* The first convolution has no batch normalisation after it. */
static wf_layer *first(wf_ctx *ctx, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = 3,
                                         .out = out,
                                         .kernel = 3,
                                         .pad = 1,
                                         .w_init = weights,
                                         .noise = 0.2,
                                         .act = WF_ACT_LEAKY_RELU,
                                         .slope = 0.2});
}

wf_layer *dcgan_discriminator(wf_ctx *ctx, int64_t ch)
{
    wf_layer *const layers[] = {
        wf_lambda(ctx, noisy),
        first(ctx, ch / 8), /* [N,ch/8,32,32] */
        halve(ctx, ch / 8, ch / 4),
        bn_noise_leaky(ctx, ch / 4), /* [N,ch/4,16,16] */
        keep(ctx, ch / 4, ch / 4),
        bn_noise_leaky(ctx, ch / 4),
        halve(ctx, ch / 4, ch / 2),
        bn_noise_leaky(ctx, ch / 2), /* [N,ch/2,8,8] */
        keep(ctx, ch / 2, ch / 2),
        bn_noise_leaky(ctx, ch / 2),
        halve(ctx, ch / 2, ch),
        bn_noise_leaky(ctx, ch), /* [N,ch,4,4] */
        keep(ctx, ch, ch),
        bn_noise_leaky(ctx, ch),
        wf_linear(ctx, (wf_linear_opts){.in = 16 * ch, .out = 1, .w_init = weights, .replicate = true}),
    };
    return wf_sequential(ctx, (int)(sizeof layers / sizeof *layers), layers);
}
