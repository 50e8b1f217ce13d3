/* Models of torchvision's shapes, an eighth as wide, for tests/file/from_pytorch.sh: torch_models vgg|resnet FILE
 * IMAGES SCORES SAVED loads the file, computes the scores of the images (raw f32), and saves the model again. The VGG's
 * layers have PyTorch's names; the ResNet's have others, which tests/file/resnet18.names translates. */
#include "layers/layers.h"
#include "layers/save.h"
#include "tests/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, CLASSES = 10, MOST_LAYERS = 40 };

static wf_layer *relu(void)
{
    return wf_lambda(ctx, wf_relu);
}

static wf_var *vgg_forward(wf_layer *self, void *user, wf_var *x)
{
    return wf_apply(wf_layer_child(self, "classifier"), wf_flatten(wf_apply(wf_layer_child(self, "features"), x)));
}

/* 0: a pool. Dropout has no parameters, but a number in the chain. */
static wf_layer *vgg_new(void)
{
    static const int64_t width[] = {8, 8, 0, 16, 16, 0, 32, 32, 32, 0, 64, 64, 64, 0, 64, 64, 64, 0};
    wf_layer *layer[MOST_LAYERS], *self = wf_module(ctx, vgg_forward, NULL);
    int n = 0;
    int64_t in = 3;
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        if (width[i] == 0) {
            layer[n++] = wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2});
            continue;
        }
        layer[n++] = wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = width[i], .kernel = 3, .pad = 1});
        layer[n++] = relu();
        in = width[i];
    }
    wf_layer *head[] = {wf_linear(ctx, (wf_linear_opts){.in = 64 * 7 * 7, .out = 64}), relu(), relu(),
                        wf_linear(ctx, (wf_linear_opts){.in = 64, .out = 64}),         relu(), relu(),
                        wf_linear(ctx, (wf_linear_opts){.in = 64, .out = CLASSES})};
    wf_module_add(self, "features", wf_sequential(ctx, n, layer));
    wf_module_add(self, "classifier", wf_sequential(ctx, 7, head));
    return self;
}

static wf_layer *conv_bn(int64_t in, int64_t out, int64_t kernel, int64_t stride, wf_act act)
{
    const wf_conv_opts conv = {
        .in = in, .out = out, .kernel = kernel, .stride = stride, .pad = kernel / 2, .no_bias = true};
    wf_layer *first = wf_conv2d(ctx, conv);
    return wf_sequential(
        ctx, WF_LAYERS(first, wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = out, .eps = 1e-5, .act = act})));
}

static wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *y = wf_apply(wf_layer_child(self, "second"), wf_apply(wf_layer_child(self, "first"), x));
    wf_layer *round = wf_layer_child(self, "round");
    return wf_relu(wf_add(y, round ? wf_apply(round, x) : x));
}

static wf_layer *block(int64_t in, int64_t out, int64_t stride)
{
    wf_layer *self = wf_module(ctx, block_forward, NULL);
    wf_module_add(self, "first", conv_bn(in, out, 3, stride, WF_ACT_RELU));
    wf_module_add(self, "second", conv_bn(out, out, 3, 1, WF_ACT_NONE));
    if (in != out || stride != 1)
        wf_module_add(self, "round", conv_bn(in, out, 1, stride, WF_ACT_NONE));
    return self;
}

static wf_layer *resnet_new(void)
{
    wf_layer *layer[12];
    int n = 0;
    layer[n++] = conv_bn(3, 8, 7, 2, WF_ACT_RELU);
    layer[n++] = wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 3, .stride = 2, .pad = 1});
    for (int64_t stage = 0, in = 8; stage < 4; stage++) {
        const int64_t out = (int64_t)8 << stage;
        layer[n++] = block(in, out, stage > 0 ? 2 : 1);
        layer[n++] = block(out, out, 1);
        in = out;
    }
    layer[n++] = wf_global_avg_pool(ctx);
    layer[n++] = wf_linear(ctx, (wf_linear_opts){.in = 64, .out = CLASSES});
    return wf_sequential(ctx, n, layer);
}

static float *read_images(const char *path, int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x);
    FILE *file = fopen(path, "rb");
    if (!file || !x || fread(x, sizeof *x, (size_t)count, file) != (size_t)count)
        abort();
    fclose(file);
    return x;
}

static void compute(wf_layer *model, int64_t side, const char *images, const char *scores)
{
    float y[IMAGES * CLASSES];
    float *x = read_images(images, IMAGES * 3 * side * side);
    wf_tensor *in = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(IMAGES, 3, side, side), x);
    wf_tape *tape = wf_tape_new(ctx);
    WF_MUST(wf_tape_set_mode(tape, WF_EVAL));
    wf_var *out = wf_apply(model, wf_input(tape, in));
    WF_MUST(wf_check(out));
    WF_MUST(wf_tensor_export(wf_value(out), y, sizeof y));
    FILE *file = fopen(scores, "wb");
    if (!file || fwrite(y, sizeof y, 1, file) != 1 || fclose(file) != 0)
        abort();
    wf_tensor_free(in);
    wf_tape_free(tape);
    free(x);
}

int main(int argc, char **argv)
{
    if (argc != 6 || !ranks_open("auto"))
        return 2;
    const bool vgg = strcmp(argv[1], "vgg") == 0;
    wf_layer *model = vgg ? vgg_new() : resnet_new();
    WF_MUST(wf_check(model));
    WF_MUST(wf_load(model, argv[2]));
    if (rank == 0)
        compute(model, vgg ? 224 : 64, argv[3], argv[4]);
    WF_MUST(wf_save(model, argv[5]));
    wf_layer_free(model);
    return ranks_close(0);
}
