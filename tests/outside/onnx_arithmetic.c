/* Arithmetic, comparison and logic, element by element with broadcasting. Integers are computed as floats, which hold
 * those of the cases exactly; a comparison is a choice by the sign of the difference. */
#include "tests/outside/onnx.h"

#include <math.h>
#include <string.h>

typedef wf_var *(*binary)(wf_var *a, wf_var *b);

/* f(a, b) in floats, then in a's type, or as a truth value. */
static wf_var *say_binary(onnx_call *call, binary f)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return onnx_like(call, f(a, b), call->in[0]);
}

static wf_var *say_add(onnx_call *call)
{
    return say_binary(call, wf_add);
}

static wf_var *say_sub(onnx_call *call)
{
    return say_binary(call, wf_sub);
}

static wf_var *say_mul(onnx_call *call)
{
    return say_binary(call, wf_mul);
}

/* An integer quotient is cut. */
static wf_var *say_div(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return wf_cast(wf_div(a, b), onnx_dtype(call->in[0]));
}

static wf_var *floor_of(onnx_call *call, wf_var *x)
{
    wf_var *down = wf_cast(wf_cast(x, WF_I64), onnx_dtype(x));
    return wf_sub(down, onnx_positive(call, wf_sub(down, x)));
}

/* a - b floor(a / b), or, as C's fmod, of the quotient cut. */
static wf_var *say_mod(onnx_call *call)
{
    wf_var *a = wf_cast(call->in[0], WF_F64), *b = wf_cast(call->in[1], WF_F64);
    wf_var *ratio = wf_div(a, b);
    wf_var *whole = onnx_int(call, "fmod", 0) ? wf_cast(wf_cast(ratio, WF_I64), WF_F64) : floor_of(call, ratio);
    return onnx_like(call, wf_sub(a, wf_mul(b, whole)), call->in[0]);
}

/* By wf_pow for one exponent, else exp(y log x). */
static wf_var *say_pow(onnx_call *call)
{
    wf_var *x = wf_cast(call->in[0], WF_F64), *y = wf_cast(call->in[1], WF_F64);
    const bool one = wf_tensor_count(wf_value(y)) == 1;
    wf_var *power = one ? wf_pow(x, onnx_number(call, 1, 1)) : wf_exp(wf_mul(y, wf_log(x)));
    return onnx_like(call, power, call->in[0]);
}

static wf_var *say_fold(onnx_call *call, double sign, binary f)
{
    wf_var *y = onnx_float(call->in[0]);
    for (int i = 1; i < call->node->n_in; i++) {
        wf_var *x = onnx_float(call->in[i]);
        y = f ? f(y, x) : onnx_larger(y, x, sign);
    }
    return onnx_like(call, y, call->in[0]);
}

static wf_var *say_sum(onnx_call *call)
{
    return say_fold(call, 1, wf_add);
}

static wf_var *say_mean(onnx_call *call)
{
    return wf_scale(say_fold(call, 1, wf_add), 1.0 / call->node->n_in);
}

static wf_var *say_max(onnx_call *call)
{
    return say_fold(call, 1, NULL);
}

static wf_var *say_min(onnx_call *call)
{
    return say_fold(call, -1, NULL);
}

static wf_var *say_clip(onnx_call *call)
{
    const double lo = onnx_number(call, 1, -INFINITY), hi = onnx_number(call, 2, INFINITY);
    return wf_clip(call->in[0], lo, hi);
}

/* --- comparison and logic: u8 ---------------------------------------------------------------------------------------
 */

static wf_var *truth(wf_var *x)
{
    return wf_cast(x, WF_U8);
}

static wf_var *say_equal(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(onnx_zero(call, wf_sub(a, b)));
}

static wf_var *say_greater(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(onnx_positive(call, wf_sub(a, b)));
}

static wf_var *say_less(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(onnx_positive(call, wf_sub(b, a)));
}

static wf_var *say_greater_equal(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(onnx_zero(call, wf_relu(wf_sub(b, a))));
}

static wf_var *say_less_equal(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(onnx_zero(call, wf_relu(wf_sub(a, b))));
}

static wf_var *say_and(onnx_call *call)
{
    return say_binary(call, wf_mul);
}

static wf_var *say_or(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(wf_where(call->in[0], onnx_scalar(call, a, 1), b));
}

static wf_var *say_xor(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[0]), *b = onnx_float(call->in[1]);
    return truth(wf_abs(wf_sub(a, b)));
}

static wf_var *say_not(onnx_call *call)
{
    return truth(onnx_zero(call, onnx_float(call->in[0])));
}

/* --- functions of one number
 * ------------------------------------------------------------------------------------------
 */

static wf_var *say_abs(onnx_call *call)
{
    return wf_abs(call->in[0]);
}

static wf_var *say_neg(onnx_call *call)
{
    return onnx_like(call, wf_scale(onnx_float(call->in[0]), -1), call->in[0]);
}

static wf_var *say_exp(onnx_call *call)
{
    return wf_exp(call->in[0]);
}

static wf_var *say_log(onnx_call *call)
{
    return wf_log(call->in[0]);
}

static wf_var *say_sqrt(onnx_call *call)
{
    return wf_sqrt(call->in[0]);
}

static wf_var *say_reciprocal(onnx_call *call)
{
    return wf_pow(call->in[0], -1);
}

static wf_var *say_floor(onnx_call *call)
{
    return floor_of(call, call->in[0]);
}

static wf_var *say_ceil(onnx_call *call)
{
    return wf_scale(floor_of(call, wf_scale(call->in[0], -1)), -1);
}

static wf_var *say_round(onnx_call *call)
{
    return onnx_round(call, call->in[0]);
}

static wf_var *say_sign(onnx_call *call)
{
    wf_var *up = onnx_positive(call, call->in[0]), *down = onnx_positive(call, wf_scale(call->in[0], -1));
    return wf_sub(up, down);
}

/* (exp(x) + sign exp(-x)) / 2. */
static wf_var *hyperbolic(wf_var *x, double sign)
{
    wf_var *up = wf_exp(x), *down = wf_exp(wf_scale(x, -1));
    return wf_scale(wf_add(up, wf_scale(down, sign)), 0.5);
}

static wf_var *say_sinh(onnx_call *call)
{
    return hyperbolic(call->in[0], -1);
}

static wf_var *say_cosh(onnx_call *call)
{
    return hyperbolic(call->in[0], 1);
}

/* log(x + sqrt(x^2 + sign)), in f64, since the sum cancels for negative x. */
static wf_var *area_of(onnx_call *call, double sign)
{
    wf_var *x = wf_cast(call->in[0], WF_F64);
    wf_var *root = wf_sqrt(wf_add(wf_mul(x, x), onnx_scalar(call, x, sign)));
    return wf_cast(wf_log(wf_add(x, root)), onnx_dtype(call->in[0]));
}

static wf_var *say_asinh(onnx_call *call)
{
    return area_of(call, 1);
}

static wf_var *say_acosh(onnx_call *call)
{
    return area_of(call, -1);
}

static wf_var *say_atanh(onnx_call *call)
{
    wf_var *x = wf_cast(call->in[0], WF_F64), *one = onnx_scalar(call, x, 1);
    wf_var *ratio = wf_div(wf_add(one, x), wf_sub(one, x));
    return wf_cast(wf_scale(wf_log(ratio), 0.5), onnx_dtype(call->in[0]));
}

/* GELU is x (1 + erf(x / sqrt(2))) / 2, from which it follows but at 0. */
static wf_var *say_erf(onnx_call *call)
{
    wf_var *x = wf_scale(wf_cast(call->in[0], WF_F64), sqrt(2));
    wf_var *ratio = wf_scale(wf_div(wf_gelu(x), x), 2);
    wf_var *erf = wf_sub(ratio, onnx_scalar(call, x, 1));
    return wf_cast(wf_where(x, erf, onnx_scalar(call, x, 0)), onnx_dtype(call->in[0]));
}

const onnx_operator onnx_arithmetic[] = {{"Add", say_add, ONNX_ELEMENTS},
                                         {"Sub", say_sub, ONNX_ELEMENTS},
                                         {"Mul", say_mul, ONNX_ELEMENTS},
                                         {"Div", say_div, ONNX_ELEMENTS},
                                         {"Mod", say_mod, ONNX_ELEMENTS},
                                         {"Pow", say_pow, ONNX_ELEMENTS},
                                         {"Sum", say_sum, ONNX_ELEMENTS},
                                         {"Mean", say_mean, ONNX_ELEMENTS},
                                         {"Max", say_max, ONNX_ELEMENTS},
                                         {"Min", say_min, ONNX_ELEMENTS},
                                         {"Clip", say_clip, ONNX_FIRST},
                                         {"Equal", say_equal, ONNX_ELEMENTS},
                                         {"Greater", say_greater, ONNX_ELEMENTS},
                                         {"Less", say_less, ONNX_ELEMENTS},
                                         {"GreaterOrEqual", say_greater_equal, ONNX_ELEMENTS},
                                         {"LessOrEqual", say_less_equal, ONNX_ELEMENTS},
                                         {"And", say_and, ONNX_ELEMENTS},
                                         {"Or", say_or, ONNX_ELEMENTS},
                                         {"Xor", say_xor, ONNX_ELEMENTS},
                                         {"Not", say_not, ONNX_ELEMENTS},
                                         {"Abs", say_abs, ONNX_ELEMENTS},
                                         {"Neg", say_neg, ONNX_ELEMENTS},
                                         {"Exp", say_exp, ONNX_ELEMENTS},
                                         {"Log", say_log, ONNX_ELEMENTS},
                                         {"Sqrt", say_sqrt, ONNX_ELEMENTS},
                                         {"Reciprocal", say_reciprocal, ONNX_ELEMENTS},
                                         {"Floor", say_floor, ONNX_ELEMENTS},
                                         {"Ceil", say_ceil, ONNX_ELEMENTS},
                                         {"Round", say_round, ONNX_ELEMENTS},
                                         {"Sign", say_sign, ONNX_ELEMENTS},
                                         {"Sinh", say_sinh, ONNX_ELEMENTS},
                                         {"Cosh", say_cosh, ONNX_ELEMENTS},
                                         {"Asinh", say_asinh, ONNX_ELEMENTS},
                                         {"Acosh", say_acosh, ONNX_ELEMENTS},
                                         {"Atanh", say_atanh, ONNX_ELEMENTS},
                                         {"Erf", say_erf, ONNX_ELEMENTS},
                                         {0}};
