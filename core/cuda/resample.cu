/* Upsampling by whole factors, nearest and linear, in up to three dimensions, for the layers' resample slots. Backward
 * gathers: each input sums the outputs that have read it, in a fixed order and without atomics. Any other resampling
 * goes by tables (taps.cu). */
#include "core/cuda/grid_impl.h"

/* One dimension: output o of the whole reads inputs floor(wanted / whole) and the next, weighted by the remainder. No
 * kernel divides: what is divided by is known to the host. */
struct resample_axis {
    int64_t in, outputs, in_lo, out_lo;
    int64_t step, start; /* wanted = step o + start, at least 0 */
    divider whole, by_step;
    double inverse; /* 1 / whole */

    /* In units of 1 / whole, so that places are whole numbers and equal on every rank. */
    __device__ int64_t wanted(int64_t o) const
    {
        return most(0, step * o + start);
    }
    /* The first output whose first input is m or a later one. The readers of an input are neighbours, since wanted
     * grows with o: two calls of this give their range. */
    __device__ int64_t first_of(int64_t m) const
    {
        if (m <= 0)
            return 0;
        const int64_t least_wanted = m * whole.d - start;
        if (step == 0)
            return outputs;
        return least_wanted > 0 ? by_step.of(least_wanted + step - 1) : 0;
    }
    /* What output o takes from input i: a tent around it, which is flat behind the last input. */
    template <class W> __device__ W share(int64_t o, int64_t i) const
    {
        const int64_t offset = wanted(o) - i * whole.d, distance = offset < 0 ? -offset : offset;
        if (offset >= 0 && i == in - 1)
            return 1;
        return distance < whole.d ? 1 - (W)distance * (W)inverse : 0;
    }
};

struct resampling {
    image in, out;
    resample_axis axis[3];
};

/* s < 0 is a dimension in front that the array does not have: length 1, factor 1. */
static resample_axis axis_of(const wf_resample_geom *geom, int s)
{
    resample_axis a = {};
    int64_t whole = 1;
    a.in = a.outputs = a.step = 1;
    if (s >= 0) {
        a.in = geom->in[s];
        a.outputs = a.in * geom->scale[s];
        a.in_lo = geom->in_lo[s];
        a.out_lo = geom->out_lo[s];
        whole = geom->scale[s];
    }
    /* o of [0, outputs) maps to o (in - 1) / (outputs - 1): the corners meet. */
    if (s >= 0 && geom->linear && geom->align_corners) {
        a.step = a.in - 1;
        whole = a.outputs > 1 ? a.outputs - 1 : 1;
    } else if (s >= 0 && geom->linear) {
        /* Centres meet: input (o + 1/2) / scale - 1/2, times 2 scale. */
        a.step = 2;
        a.start = 1 - whole;
        whole *= 2;
    }
    a.whole = divide_by(whole);
    /* A step of 0 has one input, and first_of asks before it divides. */
    a.by_step = divide_by(a.step > 0 ? a.step : 1);
    a.inverse = 1 / (double)whole;
    return a;
}

static resampling resampling_of(const wf_resample_geom *geom, const wf_array *x, const wf_array *y, int width)
{
    resampling r = {};
    r.in = image_of(x, geom->nd, width);
    r.out = image_of(y, geom->nd, width);
    for (int d = 0; d < 3; d++)
        r.axis[d] = axis_of(geom, d - (3 - geom->nd));
    return r;
}

/* ND is 2 or 3, the trailing dimensions in which weights differ from 1; 0: no dimension has weights. A template, so
 * that all corners of a pixel are loaded in one straight piece of code. */
template <class T, int V, int ND>
__global__ void __launch_bounds__(THREADS)
    resample_forward_kernel(const __grid_constant__ resampling r, const T *x, T *y)
{
    constexpr int CORNERS = 1 << ND;
    for (int64_t i = thread_of_grid(); i < r.out.count; i += threads_of_grid()) {
        int64_t sample, channel, o[3], at[3][2];
        wide<T> weight[3] = {}, share[CORNERS], sum[V] = {};
        pack<T, V> raw[CORNERS] = {};
        r.out.place(i, V, &sample, o, &channel);
#pragma unroll
        for (int d = 0; d < 3; d++) {
            const resample_axis &a = r.axis[d];
            int64_t rest = a.wanted(o[d] + a.out_lo);
            at[d][0] = a.whole.split(&rest);
            /* The tent is flat beyond the last input: the same input twice. */
            at[d][1] = least(at[d][0] + 1, a.in - 1);
            if (d >= 3 - ND)
                weight[d] = (wide<T>)rest * (wide<T>)a.inverse;
        }
        /* All loads before any arithmetic; what has no share may lie on another rank. */
#pragma unroll
        for (int corner = 0; corner < CORNERS; corner++) {
            int64_t pixel = sample;
            share[corner] = 1;
#pragma unroll
            for (int d = 0; d < 3; d++) {
                const bool upper = d >= 3 - ND && (corner >> (2 - d) & 1);
                if (d >= 3 - ND)
                    share[corner] *= upper ? weight[d] : 1 - weight[d];
                pixel = pixel * r.in.extent[d] + at[d][upper] - r.axis[d].in_lo;
            }
            /* A share of exactly 0 is not loaded, since its input may not be here; its pack stays 0. */
            if (share[corner] != 0)
                raw[corner] = load_raw<V>(x, pixel * r.in.c + channel);
        }
#pragma unroll
        for (int corner = 0; corner < CORNERS; corner++)
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k] += share[corner] * widen(raw[corner].v[k]);
        store<V>(sum, y, i * V);
    }
}

/* The outputs [lo, hi) that read an input, in each dimension. */
struct resample_readers {
    int64_t lo[3], hi[3];
};

template <bool LINEAR> __device__ inline resample_readers readers_of(const resampling &r, const int64_t at[3])
{
    resample_readers to;
#pragma unroll
    for (int d = 0; d < 3; d++) {
        const resample_axis &a = r.axis[d];
        /* Linear: an output whose first input is at - 1 reads `at` as its second. */
        to.lo[d] = most(0, a.first_of(LINEAR ? at[d] - 1 : at[d]) - a.out_lo);
        to.hi[d] = least(r.out.extent[d], at[d] + 1 < a.in ? a.first_of(at[d] + 1) - a.out_lo : r.out.extent[d]);
    }
    return to;
}

/* Outputs without a share may hold NaNs of other places' gradients. */
template <int V, class T> __device__ inline void add_share(wide<T> sum[V], const pack<T, V> &raw, wide<T> share)
{
#pragma unroll
    for (int k = 0; k < V; k++)
        sum[k] += share == 0 ? 0 : share * widen(raw.v[k]);
}

/* A row of outputs in pairs, whose loads are in flight together; the second of the last pair may be the first again. */
template <class T, int V, bool LINEAR>
__global__ void __launch_bounds__(THREADS)
    resample_backward_kernel(const __grid_constant__ resampling r, const T *dy, T *dx, bool accumulate)
{
    for (int64_t i = thread_of_grid(); i < r.in.count; i += threads_of_grid()) {
        int64_t sample, channel, at[3];
        wide<T> sum[V] = {};
        if (accumulate)
            load<V>(dx, i * V, sum);
        r.in.place(i, V, &sample, at, &channel);
/* Counted in the whole from here on: a part's inputs have the tents of the whole. */
#pragma unroll
        for (int d = 0; d < 3; d++)
            at[d] += r.axis[d].in_lo;
        const resample_readers to = readers_of<LINEAR>(r, at);
        const auto share = [&](int d, int64_t o) -> wide<T> {
            return LINEAR ? r.axis[d].template share<wide<T>>(o + r.axis[d].out_lo, at[d]) : 1;
        };
        for (int64_t p = to.lo[0]; p < to.hi[0]; p++) {
            const wide<T> share_p = share(0, p);
            for (int64_t q = to.lo[1]; q < to.hi[1]; q++) {
                const wide<T> share_q = share_p * share(1, q);
                const T *const row =
                    dy + (((sample * r.out.extent[0] + p) * r.out.extent[1] + q) * r.out.extent[2]) * r.out.c + channel;
                for (int64_t s = to.lo[2]; s < to.hi[2]; s += 2) {
                    const bool pair = s + 1 < to.hi[2];
                    const pack<T, V> first = load_raw<V>(row, s * r.out.c),
                                     second = load_raw<V>(row, (pair ? s + 1 : s) * r.out.c);
                    add_share<V>(sum, first, share_q * share(2, s));
                    add_share<V>(sum, second, pair ? share_q * share(2, s + 1) : 0);
                }
            }
        }
        store<V>(sum, dx, i * V);
    }
}

/* Channels in packs: a pack may not cross the end of a pixel. */
static bool packable(const wf_array *a, const wf_array *b)
{
    const int64_t width = 16 / (int64_t)wf_dtype_size(a->dtype);
    return a->shape.dim[1] % width == 0 && aligned(a->data) && aligned(b->data);
}

template <class T, int V, int ND>
static wf_status forward(wf_cuda *own, const resampling &r, const wf_array *x, const wf_array *y)
{
    return launch_over(own, (resample_forward_kernel<T, V, ND>), r.out.count, r, in_of<T>(x), out_of<T>(y));
}

wf_status wf_cuda_resample_forward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    wf_cuda *own;
    if (wf_array_count(y) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = pack_size<T>;
        const bool vector = packable(x, y), linear = args->geom->linear;
        const resampling r = resampling_of(args->geom, x, y, vector ? V : 1);
        if (!linear)
            return vector ? forward<T, V, 0>(own, r, x, y) : forward<T, 1, 0>(own, r, x, y);
        if (!vector)
            return forward<T, 1, 3>(own, r, x, y);
        return args->geom->nd < 3 ? forward<T, V, 2>(own, r, x, y) : forward<T, V, 3>(own, r, x, y);
    });
}

template <class T, int V, bool LINEAR>
static wf_status backward(wf_cuda *own, const resampling &r, const wf_array *dy, const wf_array *dx, bool accumulate)
{
    return launch_over(own, (resample_backward_kernel<T, V, LINEAR>), r.in.count, r, in_of<T>(dy), out_of<T>(dx),
                       accumulate);
}

wf_status wf_cuda_resample_backward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    wf_cuda *own;
    if (wf_array_count(dx) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = pack_size<T>;
        const bool vector = packable(dx, dy), sums = args->accumulate;
        const resampling r = resampling_of(args->geom, dx, dy, vector ? V : 1);
        if (args->geom->linear)
            return vector ? backward<T, V, true>(own, r, dy, dx, sums) : backward<T, 1, true>(own, r, dy, dx, sums);
        return vector ? backward<T, V, false>(own, r, dy, dx, sums) : backward<T, 1, false>(own, r, dy, dx, sums);
    });
}
