/* The network of chainer_files.py: chainer_files save FOLDER writes weft.h5 and weft.scores; chainer_files load FOLDER
 * reads chainer.h5, and writes loaded.scores and, the same model again, resaved.h5. Both read the folder's `images`. */
#include "core/core.h"
#include "layers/layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 5, CLASSES = 10, PIXELS = 3 * 8 * 8 };

static char path[512];

static const char *file_of(const char *folder, const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static wf_var *stem_forward(wf_layer *self, void *user, wf_var *x)
{
    (void)user;
    return wf_relu(wf_apply(wf_layer_child(self, "bn"), wf_apply(wf_layer_child(self, "conv1"), x)));
}

static wf_var *net_forward(wf_layer *self, void *user, wf_var *x)
{
    (void)user;
    wf_var *h = wf_relu(wf_apply(wf_layer_child(self, "up"), wf_apply(wf_layer_child(self, "stem"), x)));
    return wf_apply(wf_layer_child(self, "fc2"), wf_tanh(wf_apply(wf_layer_child(self, "fc1"), h)));
}

static wf_layer *net_of(wf_ctx *ctx)
{
    wf_layer *net = wf_module(ctx, net_forward, NULL), *stem = wf_module(ctx, stem_forward, NULL);
    const wf_init spread = {WF_INIT_UNIFORM, 0.5, 1.5};
    wf_module_add(stem, "conv1",
                  wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 8, .kernel = 3, .pad = 1, .b_init = spread}));
    wf_module_add(stem, "bn",
                  wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8, .gamma_init = spread, .beta_init = spread}));
    wf_module_add(net, "stem", stem);
    wf_module_add(net, "up", wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 8, .out = 6, .kernel = 2, .stride = 2}));
    wf_module_add(net, "fc1", wf_linear(ctx, (wf_linear_opts){.in = 6 * 16 * 16, .out = 20, .b_init = spread}));
    wf_module_add(net, "fc2", wf_linear(ctx, (wf_linear_opts){.in = 20, .out = CLASSES}));
    return net;
}

static wf_tensor *images_of(wf_ctx *ctx, const char *folder)
{
    static float x[SAMPLES * PIXELS];
    FILE *file = fopen(file_of(folder, "images"), "rb");
    if (!file || fread(x, sizeof x, 1, file) != 1) {
        fprintf(stderr, "chainer_files: cannot read %s\n", path);
        exit(1);
    }
    fclose(file);
    return wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(SAMPLES, 3, 8, 8), x);
}

static void write_scores(wf_ctx *ctx, wf_layer *net, const char *folder, const char *name)
{
    float score[SAMPLES * CLASSES];
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = images_of(ctx, folder);
    WF_MUST(wf_tape_set_mode(tape, WF_EVAL));
    wf_var *y = wf_apply(net, wf_input(tape, x));
    if (!y) {
        fprintf(stderr, "chainer_files: %s\n", wf_error_message());
        exit(1);
    }
    WF_MUST(wf_tensor_export(wf_value(y), score, sizeof score));
    FILE *file = fopen(file_of(folder, name), "wb");
    if (!file || fwrite(score, sizeof score, 1, file) != 1 || fclose(file) != 0) {
        fprintf(stderr, "chainer_files: cannot write %s\n", path);
        exit(1);
    }
    WF_MUST(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tape_free(tape);
}

/* Running values that are not those of the start: a batch in training. */
static void run_batch(wf_ctx *ctx, wf_layer *net, const char *folder)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = images_of(ctx, folder);
    if (!wf_apply(net, wf_input(tape, x))) {
        fprintf(stderr, "chainer_files: %s\n", wf_error_message());
        exit(1);
    }
    WF_MUST(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tape_free(tape);
}

int main(int argc, char **argv)
{
    const bool saves = argc == 3 && strcmp(argv[1], "save") == 0;
    if (argc != 3 || (!saves && strcmp(argv[1], "load") != 0)) {
        fprintf(stderr, "chainer_files save|load FOLDER\n");
        return 1;
    }
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .seed = 3, .threads = 1});
    wf_layer *net = net_of(ctx);
    if (saves) {
        run_batch(ctx, net, argv[2]);
        WF_MUST(wf_save(net, file_of(argv[2], "weft.h5")));
        write_scores(ctx, net, argv[2], "weft.scores");
    } else {
        WF_MUST(wf_load(net, file_of(argv[2], "chainer.h5")));
        write_scores(ctx, net, argv[2], "loaded.scores");
        WF_MUST(wf_save(net, file_of(argv[2], "resaved.h5")));
    }
    wf_layer_free(net);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
