/* The autoencoder: a chain of blocks, so that it can be cut into stages. */
#include "examples/models/autoencoder.h"

#include <stdlib.h>

enum { SMALL = 24, FEW = 8, MANY = 64 }; /* pixels of a side behind both convolutions, and their channels */

static wf_layer *dense(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_linear(ctx, (wf_linear_opts){.in = in, .out = out});
}

static wf_var *hidden_forward(wf_layer *self, void *user, wf_var *x)
{
    return wf_relu(wf_apply(wf_layer_child(self, "dense"), x));
}

static wf_var *code_forward(wf_layer *self, void *user, wf_var *x)
{
    autoencoder_codes *codes = user;
    wf_var *y = wf_apply(wf_layer_child(self, "dense"), x);
    const int64_t n = wf_var_shape(y).dim[0];
    if (!y || wf_tape_mode(wf_var_tape(y)) == WF_TRAIN || codes->count + n > codes->most)
        return y;
    if (wf_tensor_export(wf_value(y), codes->code + codes->count * AUTOENCODER_CODE, wf_tensor_bytes(wf_value(y))) !=
        WF_OK)
        return NULL;
    codes->count += n;
    return y;
}

static wf_var *image_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "dense"), x);
    return wf_reshape(y, WF_SHAPE(wf_var_shape(y).dim[0], 1, 28, 28));
}

static wf_layer *block(wf_ctx *ctx, wf_forward forward, void *user, int64_t in, int64_t out)
{
    wf_layer *layer = wf_module(ctx, forward, user);
    wf_module_add(layer, "dense", dense(ctx, in, out));
    return layer;
}

wf_layer *autoencoder(wf_ctx *ctx, int64_t depth, int64_t width, autoencoder_codes *codes)
{
    const int count = (int)(2 * (depth + 1));
    wf_layer **layers = calloc((size_t)count, sizeof(*layers));
    int n = 0;
    if (!layers)
        return NULL;
    for (int64_t i = 0; i < depth; i++)
        layers[n++] = block(ctx, hidden_forward, NULL, i ? width : 784, width);
    layers[n++] = block(ctx, code_forward, codes, depth ? width : 784, AUTOENCODER_CODE);
    for (int64_t i = 0; i < depth; i++)
        layers[n++] = block(ctx, hidden_forward, NULL, i ? width : AUTOENCODER_CODE, width);
    layers[n++] = block(ctx, image_forward, NULL, depth ? width : AUTOENCODER_CODE, 784);
    wf_layer *model = wf_sequential(ctx, n, layers);
    free(layers);
    return wf_layer_named(model, "autoencoder");
}

static wf_var *conv_forward(wf_layer *self, void *user, wf_var *x)
{
    return wf_relu(wf_apply(wf_layer_child(self, "conv"), x));
}

static wf_var *pixels_forward(wf_layer *self, void *user, wf_var *x)
{
    return wf_sigmoid(wf_apply(wf_layer_child(self, "conv"), x));
}

static wf_var *planes_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_relu(wf_apply(wf_layer_child(self, "dense"), x));
    return wf_reshape(y, WF_SHAPE(wf_var_shape(y).dim[0], MANY, SMALL, SMALL));
}

static wf_layer *conv_block(wf_ctx *ctx, wf_forward forward, wf_layer *conv)
{
    wf_layer *layer = wf_module(ctx, forward, NULL);
    wf_module_add(layer, "conv", conv);
    return layer;
}

wf_layer *autoencoder_convolutional(wf_ctx *ctx, autoencoder_codes *codes)
{
    const int64_t flat = MANY * SMALL * SMALL;
    wf_layer *const layers[] = {
        conv_block(ctx, conv_forward, wf_conv2d(ctx, (wf_conv_opts){.in = 1, .out = FEW, .kernel = 3})),
        conv_block(ctx, conv_forward, wf_conv2d(ctx, (wf_conv_opts){.in = FEW, .out = MANY, .kernel = 3})),
        block(ctx, code_forward, codes, flat, AUTOENCODER_CODE),
        block(ctx, planes_forward, NULL, AUTOENCODER_CODE, flat),
        conv_block(ctx, conv_forward, wf_conv_transpose2d(ctx, (wf_conv_opts){.in = MANY, .out = FEW, .kernel = 3})),
        conv_block(ctx, pixels_forward, wf_conv_transpose2d(ctx, (wf_conv_opts){.in = FEW, .out = 1, .kernel = 3})),
    };
    return wf_layer_named(wf_sequential(ctx, (int)(sizeof layers / sizeof *layers), layers), "autoencoder");
}
