/* The largest element of each row and its place, and the way back: the kernels of `row_most`. A group of lanes takes a
 * row (rows_impl.h). Ties go to the element in front, so the result does not depend on how many lanes share a row. */
#include "core/cuda/rows_impl.h"

template <class T> struct row_most_rows {
    using state = nothing;
    const T *x;
    T *y; /* NULL: not wanted */
    int64_t *index;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    /* NaN before numbers, then the larger one, then the one in front. A place of -1 marks a lane that has seen no
     * element: it loses against any other. */
    __device__ static bool better(wide<T> v, int64_t at, wide<T> best, int64_t place)
    {
        if (at < 0 || place < 0)
            return place < 0 && at >= 0;
        const bool nan = v != v, held = best != best;
        if (nan || held)
            return nan && (!held || at < place);
        return v > best || (v == best && at < place);
    }
    __device__ void run(nothing *, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t c = row < 0 ? 0 : a.c, at = row * a.c;
        W best = 0;
        int64_t place = -1;
        for (int64_t j = lane; j < c; j += a.group) {
            const W v = widen(x[at + j]);
            if (better(v, j, best, place)) {
                best = v;
                place = j;
            }
        }
        /* `better` is a total order, so after the exchange all lanes hold the same element, whichever pairs met
         * first. */
        for (int m = a.group / 2; m > 0; m /= 2) {
            const W other = __shfl_xor_sync(0xffffffffu, best, m);
            const int64_t there = __shfl_xor_sync(0xffffffffu, place, m);
            if (better(other, there, best, place)) {
                best = other;
                place = there;
            }
        }
        /* Only now may lanes without a row leave: the shuffles above name all 32 lanes of the warp. */
        if (row < 0 || lane != 0)
            return;
        index[row] = place;
        if (y)
            y[row] = x[at + place];
    }
};

wf_status wf_cuda_row_most(wf_ctx *ctx, const wf_array *x, const wf_array *y, const wf_array *index)
{
    return of_float(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, rows_of(x),
                       row_most_rows<T>{in_of<T>(x), y ? out_of<T>(y) : nullptr, static_cast<int64_t *>(index->data)});
    });
}

/* The gradient goes to the place that was chosen, and every other element gets a zero: dx is written as a whole. */
template <class T> struct row_most_back {
    using state = nothing;
    const int64_t *index;
    const T *dy;
    T *dx;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    __device__ void run(nothing *, const row_set &a, int64_t row, int lane) const
    {
        const int64_t c = row < 0 ? 0 : a.c, place = row < 0 ? -1 : index[row];
        for (int64_t j = lane; j < c; j += a.group)
            narrow(j == place ? widen(dy[row]) : (wide<T>)0, dx + row * a.c + j);
    }
};

wf_status wf_cuda_row_most_backward(wf_ctx *ctx, const wf_array *index, const wf_array *dy, const wf_array *dx)
{
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, rows_of(dx),
                       row_most_back<T>{static_cast<const int64_t *>(index->data), in_of<T>(dy), out_of<T>(dx)});
    });
}
