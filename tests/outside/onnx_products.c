/* Products of matrices, and quantisation, which is made for them. */
#include "tests/outside/onnx.h"

#include <string.h>

static wf_var *say_mat_mul(onnx_call *call)
{
    return wf_matmul(call->in[0], call->in[1], (wf_matmul_opts){0});
}

static wf_var *say_mat_mul_integer(onnx_call *call)
{
    wf_var *a = wf_cast(call->in[0], WF_F64), *b = wf_cast(call->in[1], WF_F64);
    a = wf_sub(a, onnx_scalar(call, a, onnx_number(call, 2, 0)));
    b = wf_sub(b, onnx_scalar(call, b, onnx_number(call, 3, 0)));
    return wf_cast(wf_matmul(a, b, (wf_matmul_opts){0}), WF_I32);
}

/* alpha A B + beta C. */
static wf_var *say_gemm(onnx_call *call)
{
    const wf_matmul_opts opts = {.a_transposed = onnx_int(call, "transA", 0) != 0,
                                 .b_transposed = onnx_int(call, "transB", 0) != 0};
    wf_var *product = wf_scale(wf_matmul(call->in[0], call->in[1], opts), onnx_real(call, "alpha", 1));
    if (call->node->n_in < 3 || !call->in[2])
        return product;
    return wf_add(product, wf_scale(call->in[2], onnx_real(call, "beta", 1)));
}

/* Elements off the diagonal of the last two dimensions add zeros. */
static wf_var *diagonal(onnx_call *call, wf_var *x)
{
    const int64_t n = wf_var_shape(x).dim[onnx_rank(x) - 1];
    double one[64] = {0};
    for (int64_t i = 0; i < n && n <= 8; i++)
        one[i * n + i] = 1;
    return n > 8 ? NULL
                 : wf_sum_over(wf_mul(x, onnx_constant(call, onnx_dtype(x), WF_SHAPE(n, n), one)), WF_DIMS(-1), false);
}

/* The equations of the cases, each by the function that a program would call. */
static wf_var *say_einsum(onnx_call *call)
{
    wf_var *a = call->in[0], *b = call->in[1];
    if (onnx_word_is(call, "equation", "ij->ji"))
        return wf_transpose(a, (int[]){1, 0});
    if (onnx_word_is(call, "equation", "ij->i"))
        return wf_sum_over(a, WF_DIMS(1), false);
    if (onnx_word_is(call, "equation", "i,i"))
        return wf_sum(wf_mul(a, b));
    if (onnx_word_is(call, "equation", "bij,bjk->bik"))
        return wf_matmul(a, b, (wf_matmul_opts){0});
    return onnx_word_is(call, "equation", "...ii->...i") ? diagonal(call, a) : NULL;
}

/* Scales and zero points of a dimension, [C], as [C,1,...]; of the whole as they are. */
static wf_var *along_axis(const onnx_call *call, wf_var *of)
{
    const wf_shape shape = wf_var_shape(of);
    if (shape.rank == 0)
        return of;
    wf_shape to = {.rank = onnx_rank(call->in[0]) - onnx_axis(call->in[0], onnx_int(call, "axis", 1))};
    for (int d = 0; d < to.rank; d++)
        to.dim[d] = d == 0 ? shape.dim[0] : 1;
    return wf_reshape(of, to);
}

/* The cast to u8 limits what is beyond its ends. */
static wf_var *quantize(onnx_call *call, wf_var *x, wf_var *scale, wf_var *zero)
{
    wf_var *steps = onnx_round(call, wf_div(x, scale));
    return wf_cast(zero ? wf_add(steps, onnx_float(zero)) : steps, WF_U8);
}

static wf_var *say_quantize_linear(onnx_call *call)
{
    wf_var *zero = call->in[2] ? along_axis(call, call->in[2]) : NULL;
    return quantize(call, call->in[0], along_axis(call, call->in[1]), zero);
}

static wf_var *say_dequantize_linear(onnx_call *call)
{
    wf_var *x = onnx_float(call->in[0]);
    if (call->in[2])
        x = wf_sub(x, onnx_float(along_axis(call, call->in[2])));
    return wf_mul(x, along_axis(call, call->in[1]));
}

/* The range of the numbers and 0 in 255 steps. */
static wf_var *say_dynamic_quantize_linear(onnx_call *call)
{
    wf_var *x = call->in[0], *flat = wf_reshape(x, WF_SHAPE(-1));
    wf_var *most = wf_relu(wf_max_over(flat, WF_DIMS(0), false));
    wf_var *least = wf_scale(wf_relu(wf_max_over(wf_scale(flat, -1), WF_DIMS(0), false)), -1);
    wf_var *scale = wf_scale(wf_sub(most, least), 1 / 255.0);
    wf_var *zero = wf_clip(onnx_round(call, wf_scale(wf_div(least, scale), -1)), 0, 255);
    call->out[1] = scale;
    call->out[2] = wf_cast(zero, WF_U8);
    return quantize(call, x, scale, zero);
}

const onnx_operator onnx_products[] = {{"MatMul", say_mat_mul, ONNX_ROWS},
                                       {"MatMulInteger", say_mat_mul_integer, ONNX_WHOLE},
                                       {"Gemm", say_gemm, ONNX_ROWS},
                                       {"Einsum", say_einsum, ONNX_WHOLE},
                                       {"QuantizeLinear", say_quantize_linear, ONNX_WHOLE},
                                       {"DequantizeLinear", say_dequantize_linear, ONNX_WHOLE},
                                       {"DynamicQuantizeLinear", say_dynamic_quantize_linear, ONNX_WHOLE},
                                       {0}};
