/* What the tests of optimizers share: numbers in and out of tensors as doubles, and a model with a gradient that the
 * test chooses. */
#ifndef WF_TESTS_OPTIM_MODEL_H
#define WF_TESTS_OPTIM_MODEL_H

#include "layers/functions.h"
#include "layers/layer_author.h"
#include "tests/test.h"

#include <stdlib.h>

static inline void values_set(wf_tensor *tensor, const double *value)
{
    const int64_t n = wf_tensor_count(tensor);
    const size_t bytes = wf_tensor_bytes(tensor);
    float *narrow = calloc((size_t)n + 1, sizeof *narrow);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (float)value[i];
    const bool wide = wf_tensor_dtype(tensor) == WF_F64;
    WF_EXPECT_OK(wf_tensor_import(tensor, wide ? (const void *)value : narrow, bytes));
    free(narrow);
}

static inline void values_get(const wf_tensor *tensor, double *value)
{
    const int64_t n = wf_tensor_count(tensor);
    float *narrow = calloc((size_t)n + 1, sizeof *narrow);
    const bool wide = wf_tensor_dtype(tensor) == WF_F64;
    WF_EXPECT_OK(wf_tensor_export(tensor, wide ? (void *)value : narrow, wf_tensor_bytes(tensor)));
    for (int64_t i = 0; i < n && !wide; i++)
        value[i] = narrow[i];
    free(narrow);
}

static inline wf_var *dot_forward(wf_layer *layer, wf_var *x)
{
    return wf_sum(wf_mul(wf_param_var(x->tape, layer->params[0]), x));
}

/* loss = sum of w x, so that the gradient of w is x. */
static inline wf_layer *dot_new(wf_ctx *ctx, int64_t n, const double *start)
{
    static const wf_layer_kind kind = {.name = "dot", .forward = dot_forward};
    wf_layer *layer = wf_layer_new(ctx, &kind, 0);
    const wf_param_opts opts = {.dtype = wf_ctx_dtype(ctx), .shape = WF_SHAPE(n)};
    wf_param *w = wf_layer_add_param(layer, "w", opts);
    values_set(wf_param_value(w), start);
    return layer;
}

static inline wf_param *param_of(wf_layer *layer, int64_t i)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(layer, &n, &params));
    return i < n ? params[i] : NULL;
}

/* The gradient, as if a backward had left it. */
static inline void grad_set(wf_param *param, const double *value)
{
    if (!param->grad)
        param->grad = wf_tensor_new_ordered(param->ctx, param->dtype, param->shape, param->order);
    values_set(param->grad, value);
}

static inline wf_ctx *ctx_of(const char *device, wf_dtype dtype)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device(device), .dtype = dtype, .threads = 1});
    WF_EXPECT(ctx, "no context on %s: %s", device, wf_error_message());
    return ctx;
}

#endif
