/* Softmax and its logarithm over the rows of neighbouring elements, and their gradients. A group of lanes reads a row
 * three times: for the largest score, the sum of exponentials, and the results. Other dimensions than the last are
 * brought to that place first, by layers/functions/over.c. */
#include "core/cuda/rows_impl.h"

template <class T> struct softmax_rows {
    using state = nothing;
    bool logarithm;
    const T *x;
    T *y;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    __device__ void run(nothing *, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        /* Lanes without a row run along with no elements: the exchange of a warp needs them all. */
        const int64_t c = row < 0 ? 0 : a.c, at = row * c;
        const W most = row_most(x + at, c, lane, a.group);
        W sum = 0;
        /* At most exp(0): the largest score is subtracted, so nothing overflows, and the sum is at least 1. */
        for (int64_t j = lane; j < c; j += a.group)
            sum += exp(widen(x[at + j]) - most);
        sum = group_sum(sum, a.group);
        const W log_sum = log(sum);
        for (int64_t j = lane; j < c; j += a.group) {
            const W v = widen(x[at + j]) - most;
            narrow(logarithm ? v - log_sum : exp(v) / sum, y + at + j);
        }
    }
};

wf_status wf_cuda_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y)
{
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, rows_of(x), softmax_rows<T>{logarithm, in_of<T>(x), out_of<T>(y)});
    });
}

template <class T> struct softmax_backward_rows {
    using state = nothing;
    bool logarithm;
    const T *y, *dy;
    T *dx;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    __device__ void run(nothing *, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t c = row < 0 ? 0 : a.c, at = row * a.c;
        W sum = 0;
        /* dx = y (dy - sum y dy); of the logarithm, dx = dy - softmax sum dy. */
        for (int64_t j = lane; j < c; j += a.group)
            sum += widen(dy[at + j]) * (logarithm ? 1 : widen(y[at + j]));
        sum = group_sum(sum, a.group);
        for (int64_t j = lane; j < c; j += a.group) {
            const W v = widen(y[at + j]), d = widen(dy[at + j]);
            narrow(logarithm ? d - exp(v) * sum : v * (d - sum), dx + at + j);
        }
    }
};

wf_status wf_cuda_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                   const wf_array *dx)
{
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, rows_of(y), softmax_backward_rows<T>{logarithm, in_of<T>(y), in_of<T>(dy), out_of<T>(dx)});
    });
}
