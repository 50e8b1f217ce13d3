/* Trains BasicNet without dropout (examples/models/mnist.h) from weights and batches that
 * tests/outside/torch_basicnet.py writes, and prints the loss of every step: torch_basicnet FILE sgd|adamw f32|f64
 * STEPS BATCH BATCHES. The file has doubles: the parameters in their order, then of each batch the images and the
 * labels. */
#include "examples/models/mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *file;

static double *read_doubles(int64_t n)
{
    double *x = malloc((size_t)n * sizeof *x);
    if (!x || fread(x, sizeof *x, (size_t)n, file) != (size_t)n) {
        fprintf(stderr, "torch_basicnet: the file is too short\n");
        exit(1);
    }
    return x;
}

static void read_into(wf_ctx *ctx, wf_tensor *to)
{
    const wf_shape shape = wf_tensor_shape(to);
    double *host = read_doubles(wf_shape_count(shape));
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, shape, host);
    WF_MUST(wf_tensor_assign(to, wide));
    wf_tensor_free(wide);
    free(host);
}

static void read_parameters(wf_ctx *ctx, wf_layer *model)
{
    wf_param *const *params;
    int64_t count;
    WF_MUST(wf_layer_params(model, &count, &params));
    for (int64_t i = 0; i < count; i++)
        read_into(ctx, wf_param_value(params[i]));
}

int main(int argc, char **argv)
{
    enum { MOST = 16 };
    if (argc != 7 || atoi(argv[6]) > MOST || !(file = fopen(argv[1], "rb"))) {
        fprintf(stderr, "torch_basicnet FILE sgd|adamw f32|f64 STEPS BATCH BATCHES\n");
        return 2;
    }
    const int steps = atoi(argv[4]), size = atoi(argv[5]), batches = atoi(argv[6]);
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.dtype = strcmp(argv[3], "f64") == 0 ? WF_F64 : WF_F32});
    wf_layer *model = mnist_basic(ctx, false);
    wf_optim *optim = strcmp(argv[2], "sgd") == 0 ? wf_sgd(model, (wf_sgd_opts){.lr = 1e-3})
                                                  : wf_adamw(model, (wf_adam_opts){.lr = 1e-3});
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x[MOST], *labels[MOST];
    WF_MUST(wf_check(optim));
    read_parameters(ctx, model);
    for (int b = 0; b < batches; b++) {
        x[b] = wf_tensor_new(ctx, wf_ctx_dtype(ctx), WF_SHAPE(size, 1, 28, 28));
        labels[b] = wf_tensor_new(ctx, WF_I32, WF_SHAPE(size));
        read_into(ctx, x[b]);
        read_into(ctx, labels[b]);
    }
    for (int i = 0; i < steps; i++) {
        wf_var *loss = wf_nll(wf_apply(model, wf_input(tape, x[i % batches])), labels[i % batches], (wf_label_opts){0});
        WF_MUST(wf_optim_step(optim, loss));
        printf("%.17g\n", wf_item(loss));
        WF_MUST(wf_tape_reset(tape));
    }
    for (int b = 0; b < batches; b++) {
        wf_tensor_free(x[b]);
        wf_tensor_free(labels[b]);
    }
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(model);
    wf_ctx_free(ctx);
    fclose(file);
    return 0;
}
