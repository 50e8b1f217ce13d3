/* Ten training steps of a small network against PyTorch 2.15 in double precision: every loss. golden.py made the
 * numbers. */
#include "layers/layers.h"
#include "optim/optim.h"
#include "tests/test.h"

#include <math.h>

#define STEPS 10

static const double sgd_losses[STEPS] = {1.696651895446552, 1.368554472230966, 1.617926051164694, 2.022264715618846,
                                         1.924359620331479, 1.831540315809222, 1.753574865650172, 1.750897422958373,
                                         1.743026927333512, 1.838802098449921};
static const double adam_losses[STEPS] = {1.696651895446552, 1.343343046421679, 1.527782919030987, 1.717260123254302,
                                          1.702765540499087, 1.836453209786686, 1.269066317542725, 0.9376957355036163,
                                          1.09294556415221,  1.266942963148151};

/* offset + scale sin(step i + phase), i the element's number, row-major. */
static void wave(wf_tensor *t, double scale, double step, double phase, double offset)
{
    double host[2048];
    float narrow[2048];
    const int64_t n = wf_tensor_count(t);
    WF_EXPECT(n > 0 && n <= 2048, "a tensor of %lld elements: %s", (long long)n, wf_error_message());
    for (int64_t i = 0; i < n && i < 2048; i++) {
        host[i] = offset + scale * sin(step * (double)i + phase);
        narrow[i] = (float)host[i];
    }
    WF_EXPECT_OK(wf_tensor_import(t, wf_tensor_dtype(t) == WF_F64 ? (void *)host : (void *)narrow, wf_tensor_bytes(t)));
}

static void set(wf_layer *model, const char *path, double scale, double step, double phase, double offset)
{
    wave(wf_param_value(wf_layer_param(model, path)), scale, step, phase, offset);
}

static wf_var *leaky(wf_var *x)
{
    return wf_leaky_relu(x, 0.2);
}

static wf_layer *network(wf_ctx *ctx)
{
    wf_layer *conv =
        wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 4, .kernel = 3, .stride = 2, .pad = 1, .no_bias = true});
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 4, .eps = 1e-5});
    wf_layer *linear = wf_linear(ctx, (wf_linear_opts){.in = 64, .out = 5});
    wf_layer *model =
        wf_sequential(ctx, WF_LAYERS(conv, norm, wf_lambda(ctx, leaky), wf_lambda(ctx, wf_flatten), linear));
    set(model, "0/W", 0.3, 0.7, 0.2, 0);
    set(model, "1/gamma", 0.1, 1.0, 0.5, 1);
    set(model, "1/beta", 0.1, 1.3, 0.4, 0);
    set(model, "4/W", 0.2, 0.9, 0.3, 0);
    set(model, "4/b", 0.1, 1.1, 0.7, 0);
    return model;
}

static wf_optim *sgd(wf_layer *model)
{
    return wf_sgd(model, (wf_sgd_opts){.lr = 0.05, .momentum = 0.9});
}

static wf_optim *adam(wf_layer *model)
{
    return wf_adam(model, (wf_adam_opts){.lr = 0.01});
}

static void compare(const char *device, wf_dtype dtype, wf_optim *(*make)(wf_layer *), const double *expected,
                    double tolerance)
{
    const int64_t label[] = {1, 2, 0, 0, 2, 1};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device(device), .dtype = dtype});
    wf_layer *model = network(ctx);
    wf_optim *optim = make(model);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, dtype, WF_SHAPE(6, 3, 8, 8));
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(6), label);
    for (int step = 0; step < STEPS; step++) {
        wave(x, 1.0, 0.37, step, 0);
        wf_var *y = wf_apply(model, wf_input(tape, x));
        wf_var *loss = wf_softmax_cross_entropy(y, labels, (wf_label_opts){0});
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        const double got = wf_item(loss);
        WF_EXPECT(fabs(got - expected[step]) <= tolerance, "%s, step %d: the loss is %.16g, not %.16g", device, step,
                  got, expected[step]);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void sgd_ref(void)
{
    compare("ref", WF_F64, sgd, sgd_losses, 1e-11);
}

static void adam_ref(void)
{
    compare("ref", WF_F64, adam, adam_losses, 1e-9);
}

static void sgd_cpu(void)
{
    compare("cpu", WF_F32, sgd, sgd_losses, 1e-4);
}

static void adam_cpu(void)
{
    compare("cpu", WF_F32, adam, adam_losses, 1e-4);
}

int main(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){{"sgd_ref", sgd_ref}, {"adam_ref", adam_ref}, {"sgd_cpu", sgd_cpu}, {"adam_cpu", adam_cpu}, {0}});
}
