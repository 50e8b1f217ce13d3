/* Normalisation, also of inputs that are cut over a mesh. */
#include "core/opts.h"
#include "tests/outside/onnx.h"

#include <string.h>

static double eps_of(const onnx_call *call)
{
    const double eps = onnx_real(call, "epsilon", 1e-5);
    return eps == 0 ? WF_ZERO : eps;
}

static wf_layer *batchnorm_layer(onnx_call *call, wf_batchnorm_opts opts)
{
    const wf_mesh *mesh = call->run->mesh;
    if (!mesh)
        return onnx_layer(call, wf_batchnorm(call->run->ctx, opts));
    const bool channels = wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1;
    return onnx_layer(call,
                      channels ? wf_channel_sync_batchnorm(mesh, opts) : wf_sync_batchnorm(wf_mesh_world(mesh), opts));
}

/* A parameter of the layer, whole. */
static wf_var *state_of(onnx_call *call, wf_layer *layer, const char *name)
{
    const onnx_run *run = call->run;
    wf_param *param = wf_layer_param(layer, name);
    wf_tensor *value =
        run->mesh ? wf_param_gather(wf_mesh_world(run->mesh), param) : wf_tensor_alias(wf_param_value(param));
    wf_tensor *copy = wf_tensor_copy(value, WF_F32, WF_ROW_MAJOR);
    wf_tensor_free(value);
    return wf_input(run->tape, onnx_hold(call, copy));
}

/* ONNX's running variance is that of the batch, Weft's the unbiased one: n / (n - 1) of it. */
static wf_var *biased_variance(onnx_call *call, wf_layer *layer, wf_var *old, double decay, int64_t n)
{
    wf_var *kept = wf_scale(old, decay), *all = state_of(call, layer, "avg_var");
    return wf_add(kept, wf_scale(wf_sub(all, kept), (double)(n - 1) / (double)n));
}

static wf_var *say_batch_normalization(onnx_call *call)
{
    const onnx_run *run = call->run;
    const wf_shape x = onnx_whole_shape(call->in[0]);
    const double decay = onnx_real(call, "momentum", 0.9);
    const bool training = onnx_int(call, "training_mode", 0) != 0;
    const wf_batchnorm_opts opts = {.channels = x.dim[1], .eps = eps_of(call), .decay = decay};
    wf_layer *layer = batchnorm_layer(call, opts);
    const char *names[] = {"gamma", "beta", "avg_mean", "avg_var"};
    for (int i = 0; i < 4; i++)
        onnx_set_param(layer, names[i], call->in[1 + i]);
    WF_EXPECT_OK(wf_tape_set_mode(run->tape, training ? WF_TRAIN : WF_EVAL));
    wf_var *y = wf_apply(layer, call->in[0]);
    if (training && y) {
        call->out[1] = state_of(call, layer, "avg_mean");
        call->out[2] = biased_variance(call, layer, call->in[4], decay, wf_shape_count(x) / x.dim[1]);
    }
    return y;
}

static wf_var *say_instance_normalization(onnx_call *call)
{
    const onnx_run *run = call->run;
    const wf_instancenorm_opts opts = {.channels = wf_var_shape(call->in[1]).dim[0], .eps = eps_of(call)};
    wf_layer *layer = run->mesh ? wf_mesh_instancenorm(run->mesh, opts) : wf_instancenorm(run->ctx, opts);
    onnx_layer(call, layer);
    onnx_set_param(layer, "gamma", call->in[1]);
    onnx_set_param(layer, "beta", call->in[2]);
    return wf_apply(layer, call->in[0]);
}

/* With a factor for each channel, as from version 21 on. */
static wf_var *say_group_normalization(onnx_call *call)
{
    const onnx_run *run = call->run;
    const wf_groupnorm_opts opts = {.channels = onnx_whole_shape(call->in[0]).dim[1],
                                    .groups = onnx_int(call, "num_groups", 1),
                                    .eps = eps_of(call)};
    wf_layer *layer = run->mesh ? wf_mesh_groupnorm(run->mesh, opts) : wf_groupnorm(run->ctx, opts);
    onnx_layer(call, layer);
    onnx_set_param(layer, "gamma", call->in[1]);
    onnx_set_param(layer, "beta", call->in[2]);
    return wf_apply(layer, call->in[0]);
}

/* The layer gives the first output; the mean and 1 / sqrt(variance + eps) are computed by functions. */
static wf_var *say_layer_normalization(onnx_call *call)
{
    const onnx_run *run = call->run;
    wf_layernorm_opts opts = {.eps = eps_of(call), .shape = wf_var_shape(call->in[1])};
    wf_layer *layer = run->mesh ? wf_mesh_layernorm(run->mesh, opts) : wf_layernorm(run->ctx, opts);
    onnx_layer(call, layer);
    onnx_set_param(layer, "gamma", call->in[1]);
    if (call->in[2])
        onnx_set_param(layer, "beta", call->in[2]);
    wf_var *whole = run->mesh ? wf_unshard(call->in[0]) : call->in[0];
    wf_dims dims = {0};
    for (int d = onnx_axis(whole, onnx_int(call, "axis", -1)); d < onnx_rank(whole); d++)
        dims.dim[dims.count++] = d;
    wf_var *mean = wf_mean_over(whole, dims, true), *off = wf_sub(whole, mean);
    wf_var *variance = wf_mean_over(wf_mul(off, off), dims, true);
    call->out[1] = mean;
    call->out[2] = wf_pow(wf_add(variance, onnx_scalar(call, variance, onnx_real(call, "epsilon", 1e-5))), -0.5);
    return wf_apply(layer, call->in[0]);
}

/* A batch normalisation without parameters. */
static wf_var *say_mean_variance_normalization(onnx_call *call)
{
    const onnx_run *run = call->run;
    const wf_batchnorm_opts opts = {
        .channels = onnx_whole_shape(call->in[0]).dim[1], .eps = WF_ZERO, .no_gamma = true, .no_beta = true};
    if (onnx_find(call, "axes"))
        return NULL;
    WF_EXPECT_OK(wf_tape_set_mode(run->tape, WF_TRAIN));
    return wf_apply(batchnorm_layer(call, opts), call->in[0]);
}

/* x / (bias + alpha mean of x^2 over neighbouring channels)^beta: pooling along channels. */
static wf_var *say_lrn(onnx_call *call)
{
    const wf_shape s = wf_var_shape(call->in[0]);
    const int64_t n = onnx_int(call, "size", 1);
    const wf_pool_opts opts = {.kernel_nd = {n, 1},
                               .stride_nd = {1, 1},
                               .pad_lo_nd = {(n - 1) / 2, 0},
                               .pad_hi_nd = {n / 2, 0},
                               .count_include_pad = true};
    wf_layer *pool = onnx_layer(call, wf_avg_pool2d(call->run->ctx, opts));
    wf_var *square = wf_mul(call->in[0], call->in[0]);
    wf_var *mean = wf_reshape(wf_apply(pool, wf_reshape(square, WF_SHAPE(s.dim[0], 1, s.dim[1], -1))), s);
    wf_var *base =
        wf_add(wf_scale(mean, onnx_real(call, "alpha", 1e-4)), onnx_scalar(call, mean, onnx_real(call, "bias", 1)));
    return wf_mul(call->in[0], wf_pow(base, -onnx_real(call, "beta", 0.75)));
}

const onnx_operator onnx_norms[] = {{"BatchNormalization", say_batch_normalization, ONNX_CHANNELS},
                                    {"InstanceNormalization", say_instance_normalization, ONNX_CHANNELS},
                                    {"GroupNormalization", say_group_normalization, ONNX_CHANNELS},
                                    {"LayerNormalization", say_layer_normalization, ONNX_FIRST},
                                    {"MeanVarianceNormalization", say_mean_variance_normalization, ONNX_CHANNELS},
                                    {"LRN", say_lrn, ONNX_WHOLE},
                                    {0}};
