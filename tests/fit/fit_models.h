/* Samples and models of the tests of wf_fit, and what is expected of them. */
#ifndef WF_TESTS_FIT_MODELS_H
#define WF_TESTS_FIT_MODELS_H

#include "datasets/datasets.h"
#include "fit/fit.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>

enum { SAMPLES = 37, TESTED = 11, CLASSES = 3, SIDE = 6, EPOCHS = 5, LONGEST = 60 };

static wf_dataset *samples_new(wf_ctx *where, int count, uint64_t seed)
{
    static double x[SAMPLES * SIDE * SIDE];
    static int64_t labels[SAMPLES];
    test_rng rng = {.state = seed};
    for (int i = 0; i < count * SIDE * SIDE; i++)
        x[i] = test_uniform(&rng, -1, 1);
    for (int i = 0; i < count; i++)
        labels[i] = (int64_t)(test_uniform(&rng, 0, CLASSES - 1e-9));
    return wf_memory_dataset(where, WF_F64, WF_SHAPE(count, 1, SIDE, SIDE), x, labels);
}

static wf_layer *model_new(wf_ctx *where, bool norm)
{
    wf_layer *conv = wf_conv2d(where, (wf_conv_opts){.in = 1, .out = 4, .kernel = 3, .no_bias = norm});
    wf_layer *last = wf_linear(where, (wf_linear_opts){.in = 4 * 4 * 4, .out = CLASSES});
    wf_layer *model =
        norm ? wf_sequential(where, WF_LAYERS(conv, wf_batchnorm(where, (wf_batchnorm_opts){.channels = 4}),
                                              wf_lambda(where, wf_relu), last))
             : wf_sequential(where, WF_LAYERS(conv, wf_lambda(where, wf_relu), last));
    return wf_layer_named(model, "m");
}

static wf_optim *optim_new(wf_layer *model)
{
    return wf_adam(model, (wf_adam_opts){.lr = 0.01});
}

static void expect_near(const char *what, double is, double should)
{
    WF_EXPECT(fabs(is - should) < 1e-12, "%s is %.17g, should be %.17g", what, is, should);
}

static void expect_same_model(wf_layer *is, wf_layer *should)
{
    int64_t n, m;
    wf_param *const *p, *const *q;
    WF_EXPECT_OK(wf_layer_params(is, &n, &p));
    WF_EXPECT_OK(wf_layer_params(should, &m, &q));
    WF_EXPECT(n == m, "%lld parameters, should be %lld", (long long)n, (long long)m);
    for (int64_t i = 0; i < n && n == m; i++) {
        double a[512], b[512];
        const wf_tensor *x = wf_param_value(p[i]), *y = wf_param_value(q[i]);
        WF_EXPECT_OK(wf_tensor_export(x, a, wf_tensor_bytes(x)));
        WF_EXPECT_OK(wf_tensor_export(y, b, wf_tensor_bytes(y)));
        for (int64_t k = 0; k < wf_tensor_count(x); k++)
            expect_near(wf_param_path(p[i]), a[k], b[k]);
    }
}

#endif
