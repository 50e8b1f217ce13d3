/* Activations, binary operations, dropout and epilogues in plain loops, through double: the oracle. The other devices
 * are compared with these numbers, so each formula is as exact as double makes it. */
#include "core/ref/ref_impl.h"

#include <math.h>

/* sqrt(1/2) and 1 / sqrt(2 pi), of the normal distribution. */
static const double half_root = 0.70710678118654752440, normal_peak = 0.39894228040143267794;

/* Comparisons are written so that NaN comes through. */
static double act_value(wf_act act, double slope, double x)
{
    /* `slope` is the parameter of activations that have one. */
    switch (act) {
    case WF_ACT_RELU:
        return x < 0 ? 0 : x;
    case WF_ACT_LEAKY_RELU:
        return x < 0 ? slope * x : x;
    case WF_ACT_ELU:
        return x < 0 ? slope * expm1(x) : x;
    case WF_ACT_GELU:
        return 0.5 * x * (1 + erf(x * half_root));
    case WF_ACT_SIGMOID:
        return 1 / (1 + exp(-x));
    case WF_ACT_TANH:
        return tanh(x);
    case WF_ACT_SOFTPLUS:
        /* log(1 + exp(x)) without overflow for large x. */
        return log1p(exp(-fabs(x))) + (x < 0 ? 0 : x);
    case WF_ACT_SILU:
        return x / (1 + exp(-x));
    case WF_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(WF_GELU_SCALE * (x + WF_GELU_CUBE * x * x * x)));
    case WF_ACT_HARD_SWISH:
        return x < -3 ? 0 : x > 3 ? x : x * (x + 3) / 6;
    case WF_ACT_SELU:
        return x < 0 ? WF_SELU_ALPHA * expm1(x) : WF_SELU_SCALE * x;
    case WF_ACT_EXP:
        return exp(x);
    case WF_ACT_LOG:
        return log(x);
    case WF_ACT_SQRT:
        return sqrt(x);
    case WF_ACT_POW:
        return pow(x, slope);
    case WF_ACT_ABS:
        return fabs(x);
    case WF_ACT_NONE:
    case WF_ACTS:
        break;
    }
    return x;
}

/* The derivative of the approximation, not of the exact function. */
static double gelu_tanh_derivative(double x)
{
    const double t = tanh(WF_GELU_SCALE * (x + WF_GELU_CUBE * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * WF_GELU_SCALE * (1 + 3 * WF_GELU_CUBE * x * x);
}

static double silu_derivative(double x)
{
    const double s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
}

/* Reads x or y, as wf_act_by_x says. */
static double act_derivative(wf_act act, double slope, double x, double y)
{
    /* By y where that suffices: then x need not be kept. */
    switch (act) {
    case WF_ACT_RELU:
        return y <= 0 ? 0 : 1;
    case WF_ACT_LEAKY_RELU:
        return y <= 0 ? slope : 1;
    case WF_ACT_ELU:
        /* y = slope (e^x - 1), so slope e^x = y + slope. */
        return y <= 0 ? y + slope : 1;
    case WF_ACT_GELU:
        return 0.5 * (1 + erf(x * half_root)) + x * normal_peak * exp(-0.5 * x * x);
    case WF_ACT_SIGMOID:
        return y * (1 - y);
    case WF_ACT_TANH:
        return 1 - y * y;
    case WF_ACT_SOFTPLUS:
        return 1 / (1 + exp(-x));
    case WF_ACT_SILU:
        return silu_derivative(x);
    case WF_ACT_GELU_TANH:
        return gelu_tanh_derivative(x);
    case WF_ACT_HARD_SWISH:
        return x <= -3 ? 0 : x >= 3 ? 1 : (2 * x + 3) / 6;
    case WF_ACT_SELU:
        return y <= 0 ? y + WF_SELU_ALPHA : WF_SELU_SCALE;
    case WF_ACT_EXP:
        return y;
    case WF_ACT_LOG:
        return 1 / x;
    case WF_ACT_SQRT:
        return 0.5 / y;
    case WF_ACT_POW:
        /* slope 0 is a constant, whose formula would be 0 times infinity at 0. */
        return slope == 0 ? 0 : slope * pow(x, slope - 1);
    case WF_ACT_ABS:
        /* 0 at 0, and NaN for NaN. */
        return x > 0 ? 1 : x < 0 ? -1 : x;
    case WF_ACT_NONE:
    case WF_ACTS:
        break;
    }
    return 1;
}

/* Only activations whose derivative is known from y are fused. */
double wf_ref_epilogue_slope(const wf_epilogue *epilogue, double y)
{
    return act_derivative(epilogue->act, epilogue->slope, 0, y);
}

void wf_ref_epilogue(wf_ref_frame *frame, const wf_epilogue *epilogue, wf_order order, int64_t n, double *v)
{
    if (!epilogue)
        return;
    if (epilogue->noise != 0) {
        double *const noise = wf_ref_work(frame, n);
        if (!noise)
            return;
        /* The noise of an element belongs to its global number, so it does not depend on how the output was cut. */
        wf_ref_draw(&epilogue->random, order, WF_NORMAL, noise);
        for (int64_t i = 0; i < n; i++)
            v[i] += epilogue->noise * noise[i];
    }
    for (int64_t i = 0; i < n; i++)
        v[i] = act_value(epilogue->act, epilogue->slope, v[i]);
}

wf_status wf_ref_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(y);
    const double *const xv = wf_ref_in(&frame, x);
    double *const yv = wf_ref_out(&frame, y, false);
    if (frame.status == WF_OK) {
        for (int64_t i = 0; i < n; i++)
            yv[i] = xv[i];
        wf_ref_epilogue(&frame, epilogue, y->order, n, yv);
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                   const wf_array *dv)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(dv);
    /* Noise was added and does not enter the derivative. */
    const double *const yv = epilogue ? wf_ref_in(&frame, y) : NULL, *const dyv = wf_ref_in(&frame, dy);
    double *const out = wf_ref_out(&frame, dv, false);
    if (frame.status == WF_OK)
        for (int64_t i = 0; i < n; i++)
            out[i] = yv ? dyv[i] * wf_ref_epilogue_slope(epilogue, yv[i]) : dyv[i];
    return wf_ref_end(&frame);
}

wf_status wf_ref_act_forward(wf_ctx *ctx, const wf_act_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(args->y);
    const wf_act act = args->act;
    const double slope = args->slope;
    const double *const xv = wf_ref_in(&frame, args->x);
    double *const yv = wf_ref_out(&frame, args->y, false);
    if (frame.status == WF_OK)
        for (int64_t i = 0; i < n; i++)
            yv[i] = act_value(act, slope, xv[i]);
    return wf_ref_end(&frame);
}

wf_status wf_ref_act_backward(wf_ctx *ctx, const wf_act_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(args->dx);
    const wf_act act = args->act;
    const double slope = args->slope;
    const bool accumulate = args->accumulate, by_x = wf_act_by_x(act);
    const double *const xv = by_x ? wf_ref_in(&frame, args->x) : NULL, *const yv =
                                                                           by_x ? NULL : wf_ref_in(&frame, args->y);
    const double *const dyv = wf_ref_in(&frame, args->dy);
    double *const out = wf_ref_out(&frame, args->dx, accumulate);
    if (frame.status == WF_OK)
        for (int64_t i = 0; i < n; i++) {
            const double d = dyv[i] * act_derivative(act, slope, xv ? xv[i] : 0, yv ? yv[i] : 0);
            out[i] = accumulate ? out[i] + d : d;
        }
    return wf_ref_end(&frame);
}

wf_status wf_ref_binary(wf_ctx *ctx, const wf_binary_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(args->y);
    const double alpha = args->alpha, beta = args->beta;
    const bool accumulate = args->accumulate;
    const double *const av = wf_ref_in(&frame, args->a), *const bv = wf_ref_in(&frame, args->b);
    double *const yv = wf_ref_out(&frame, args->y, accumulate);
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    for (int64_t i = 0; i < n; i++) {
        /* alpha and beta are in double and the sum is rounded once. */
        double v = alpha * av[i];
        if (bv)
            v = args->op == WF_BINARY_MUL ? v * bv[i] : v + beta * bv[i];
        yv[i] = accumulate ? yv[i] + v : v;
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(x);
    const double *const xv = wf_ref_in(&frame, x);
    double *const yv = wf_ref_out(&frame, y, false);
    if (frame.status == WF_OK) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += xv[i];
        *yv = scale * sum;
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(x);
    const double *const xv = wf_ref_in(&frame, x);
    double *const total = wf_ref_out(&frame, out, accumulate);
    if (frame.status == WF_OK) {
        /* One running sum over all arrays, in their order. */
        double sum = accumulate ? *total : 0;
        for (int64_t i = 0; i < n; i++)
            sum += xv[i] * xv[i];
        *total = sum;
    }
    return wf_ref_end(&frame);
}
