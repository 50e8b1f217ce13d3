/* Activations. */
#include "tests/outside/onnx.h"

#include <string.h>

static wf_var *say_relu(onnx_call *call)
{
    return wf_relu(call->in[0]);
}

static wf_var *say_leaky_relu(onnx_call *call)
{
    return wf_leaky_relu(call->in[0], onnx_real(call, "alpha", 0.01));
}

static wf_var *say_elu(onnx_call *call)
{
    return wf_elu(call->in[0], onnx_real(call, "alpha", 1));
}

/* max(x, 0) + min(0, alpha (exp(x / alpha) - 1)): an ELU of x / alpha, alpha times. */
static wf_var *say_celu(onnx_call *call)
{
    const double alpha = onnx_real(call, "alpha", 1);
    return wf_scale(wf_elu(wf_scale(call->in[0], 1 / alpha), 1), alpha);
}

/* Other constants than those of wf_selu are a scaled ELU. */
static wf_var *say_selu(onnx_call *call)
{
    if (call->node->n_attributes == 0)
        return wf_selu(call->in[0]);
    return wf_scale(wf_elu(call->in[0], onnx_real(call, "alpha", 1.67326)), onnx_real(call, "gamma", 1.0507));
}

static wf_var *say_sigmoid(onnx_call *call)
{
    return wf_sigmoid(call->in[0]);
}

static wf_var *say_tanh(onnx_call *call)
{
    return wf_tanh(call->in[0]);
}

static wf_var *say_softplus(onnx_call *call)
{
    return wf_softplus(call->in[0]);
}

static wf_var *say_softsign(onnx_call *call)
{
    wf_var *size = wf_abs(call->in[0]);
    return wf_div(call->in[0], wf_add(size, onnx_scalar(call, size, 1)));
}

static wf_var *say_hard_sigmoid(onnx_call *call)
{
    wf_var *x = wf_scale(call->in[0], onnx_real(call, "alpha", 0.2));
    return wf_clip(wf_add(x, onnx_scalar(call, x, onnx_real(call, "beta", 0.5))), 0, 1);
}

static wf_var *say_hard_swish(onnx_call *call)
{
    return wf_hard_swish(call->in[0]);
}

static wf_var *say_gelu(onnx_call *call)
{
    return onnx_word_is(call, "approximate", "tanh") ? wf_gelu_tanh(call->in[0]) : wf_gelu(call->in[0]);
}

/* x tanh(log(1 + exp(x))). */
static wf_var *say_mish(onnx_call *call)
{
    wf_var *gate = wf_tanh(wf_softplus(call->in[0]));
    return wf_mul(call->in[0], gate);
}

static wf_var *say_thresholded_relu(onnx_call *call)
{
    wf_var *x = call->in[0], *beyond = wf_sub(x, onnx_scalar(call, x, onnx_real(call, "alpha", 1)));
    return wf_where(wf_relu(beyond), x, onnx_scalar(call, x, 0));
}

/* x - bias beyond lambd, x + bias below -lambd, else 0. */
static wf_var *say_shrink(onnx_call *call)
{
    const double bias = onnx_real(call, "bias", 0), lambda = onnx_real(call, "lambd", 0.5);
    wf_var *x = onnx_float(call->in[0]), *edge = onnx_scalar(call, x, lambda), *shift = onnx_scalar(call, x, bias);
    wf_var *none = onnx_scalar(call, x, 0), *up = wf_relu(wf_sub(x, edge));
    wf_var *down = wf_relu(wf_sub(wf_scale(x, -1), edge)), *less = wf_sub(x, shift), *more = wf_add(x, shift);
    return onnx_like(call, wf_where(up, less, wf_where(down, more, none)), call->in[0]);
}

/* The layer where there is a slope for each channel, or one; else a choice. */
static wf_var *say_prelu(onnx_call *call)
{
    wf_var *x = call->in[0], *slope = call->in[1];
    const int64_t channels = onnx_rank(x) > 1 ? wf_var_shape(x).dim[1] : 0, count = wf_tensor_count(wf_value(slope));
    wf_shape each = wf_var_shape(slope);
    if (count == 1 || (each.rank == onnx_rank(x) - 1 && each.dim[0] == channels && count == channels)) {
        wf_layer *layer =
            onnx_layer(call, wf_prelu(call->run->ctx, (wf_prelu_opts){.channels = count > 1 ? channels : 0}));
        onnx_set_param(layer, "W", wf_reshape(slope, WF_SHAPE(count)));
        return wf_apply(layer, x);
    }
    return wf_where(wf_relu(x), x, wf_mul(x, slope));
}

/* Before version 13 softmax went over all dimensions from the axis on. */
static wf_var *soften(onnx_call *call, wf_var *(*over)(wf_var *x, wf_dims dims))
{
    int axis[WF_MAX_RANK];
    onnx_axes(call, axis);
    return over(call->in[0], WF_DIMS(axis[0]));
}

static wf_var *say_softmax(onnx_call *call)
{
    return soften(call, wf_softmax_over);
}

static wf_var *say_log_softmax(onnx_call *call)
{
    return soften(call, wf_log_softmax_over);
}

/* 1 at the place of the largest, the first of equals. */
static wf_var *say_hardmax(onnx_call *call)
{
    wf_var *x = call->in[0];
    int axis[WF_MAX_RANK];
    onnx_axes(call, axis);
    double place[1024];
    wf_shape shape = wf_var_shape(x);
    const int64_t length = shape.dim[axis[0]];
    for (int d = 0; d < shape.rank; d++)
        shape.dim[d] = d == axis[0] ? length : 1;
    for (int64_t i = 0; i < length && i < 1024; i++)
        place[i] = (double)i;
    wf_var *largest = wf_cast(wf_argmax_over(x, WF_DIMS(axis[0]), true), onnx_dtype(x));
    wf_var *places = onnx_constant(call, onnx_dtype(x), shape, place);
    return onnx_zero(call, wf_sub(places, largest));
}

/* The inverted mask is random in training, by other numbers than NumPy's. */
static wf_var *say_dropout(onnx_call *call)
{
    const bool training = onnx_number(call, 2, 0) != 0;
    WF_EXPECT_OK(wf_tape_set_mode(call->run->tape, training ? WF_TRAIN : WF_EVAL));
    const double rate = onnx_number(call, 1, onnx_real(call, "ratio", 0.5));
    if (training && rate > 0)
        return NULL;
    if (call->node->n_out > 1)
        call->out[1] = wf_cast(onnx_zero(call, wf_scale(call->in[0], 0)), WF_U8);
    return wf_dropout(call->in[0], rate);
}

const onnx_operator onnx_activations[] = {{"Relu", say_relu, ONNX_ELEMENTS},
                                          {"LeakyRelu", say_leaky_relu, ONNX_ELEMENTS},
                                          {"Elu", say_elu, ONNX_ELEMENTS},
                                          {"Celu", say_celu, ONNX_ELEMENTS},
                                          {"Selu", say_selu, ONNX_ELEMENTS},
                                          {"Sigmoid", say_sigmoid, ONNX_ELEMENTS},
                                          {"Tanh", say_tanh, ONNX_ELEMENTS},
                                          {"Softplus", say_softplus, ONNX_ELEMENTS},
                                          {"Softsign", say_softsign, ONNX_ELEMENTS},
                                          {"HardSigmoid", say_hard_sigmoid, ONNX_ELEMENTS},
                                          {"HardSwish", say_hard_swish, ONNX_ELEMENTS},
                                          {"Gelu", say_gelu, ONNX_ELEMENTS},
                                          {"Mish", say_mish, ONNX_ELEMENTS},
                                          {"ThresholdedRelu", say_thresholded_relu, ONNX_ELEMENTS},
                                          {"Shrink", say_shrink, ONNX_ELEMENTS},
                                          {"PRelu", say_prelu, ONNX_WHOLE},
                                          {"Softmax", say_softmax, ONNX_LINES},
                                          {"LogSoftmax", say_log_softmax, ONNX_LINES},
                                          {"Hardmax", say_hardmax, ONNX_LINES},
                                          {"Dropout", say_dropout, ONNX_FIRST},
                                          {0}};
