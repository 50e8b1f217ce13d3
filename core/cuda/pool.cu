#include "core/cuda/grid_impl.h"

struct pool_window {
    wf_pool_kind kind;
    image in, out;
    int64_t kernel[3], stride[3], dilation[3], pad[3], end[3]; /* end: of the padded input, which may be cut */

    /* Taps [lo, hi) of window o along d that lie on real elements. */
    __device__ void real_taps(int d, int64_t o, int64_t *lo, int64_t *hi) const
    {
        const int64_t first = o * stride[d] - pad[d], stop = least(in.extent[d], end[d]);
        *lo = most(0, ceiling(-first, dilation[d]));
        *hi = least(kernel[d], ceiling(stop - first, dilation[d]));
    }
    /* How many taps of window o along d the average counts. */
    __device__ int64_t counted(int d, int64_t o) const
    {
        int64_t lo, hi;
        if (kind == WF_POOL_AVG_PADDED)
            return most(0, least(kernel[d], ceiling(end[d] - (o * stride[d] - pad[d]), dilation[d])));
        real_taps(d, o, &lo, &hi);
        return most(0, hi - lo);
    }
    __device__ int64_t divisor(const int64_t o[3]) const
    {
        return counted(0, o[0]) * counted(1, o[1]) * counted(2, o[2]);
    }
    /* Windows [lo, hi) along d whose first to last tap span input i. */
    __device__ void readers(int d, int64_t i, int64_t *lo, int64_t *hi) const
    {
        *lo = most(0, ceiling(i + pad[d] - (kernel[d] - 1) * dilation[d], stride[d]));
        *hi = least(out.extent[d], (i + pad[d]) / stride[d] + 1);
        if (i >= end[d] || i + pad[d] < 0)
            *hi = *lo;
    }
    /* Returns true if a tap of window o along d reads input i, which lies within the window. */
    __device__ bool touches(int d, int64_t o, int64_t i) const
    {
        return dilation[d] == 1 || (i - (o * stride[d] - pad[d])) % dilation[d] == 0;
    }
};

static pool_window window_of(const wf_pool_geom *geom, const wf_array *x, const wf_array *y, int width)
{
    pool_window w = {};
    w.kind = geom->kind;
    w.in = image_of(x, geom->nd, width);
    w.out = image_of(y, geom->nd, width);
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - geom->nd);
        w.kernel[d] = s < 0 ? 1 : geom->kernel[s];
        w.stride[d] = s < 0 ? 1 : geom->stride[s];
        w.dilation[d] = s < 0 ? 1 : geom->dilation[s];
        w.pad[d] = s < 0 ? 0 : geom->pad_lo[s];
        w.end[d] = w.in.extent[d] + (s < 0 ? 0 : geom->pad_hi[s]);
    }
    return w;
}

template <int V> struct pool_state {
    int64_t place[V];
    __device__ void begin()
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            place[k] = -1;
    }
};

template <class T, int V>
__device__ inline void max_tap(const T *x, int64_t at, int64_t pixel, wide<T> best[V], pool_state<V> &state)
{
    wide<T> v[V];
    load<V>(x, at, v);
#pragma unroll
    for (int k = 0; k < V; k++)
        if (state.place[k] < 0 || v[k] > best[k] || (v[k] != v[k] && best[k] == best[k])) {
            best[k] = v[k];
            state.place[k] = pixel;
        }
}

template <int V> __device__ inline void store_places(const int64_t *place, int32_t *index, int64_t i)
{
    pack<int32_t, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++)
        raw.v[k] = (int32_t)place[k];
    *reinterpret_cast<pack<int32_t, V> *>(index + i) = raw;
}

template <class T, int V>
__global__ void pool_forward_kernel(const __grid_constant__ pool_window w, const T *x, T *y, int32_t *index)
{
    for (int64_t i = thread_of_grid(); i < w.out.count; i += threads_of_grid()) {
        int64_t sample, channel, o[3], lo[3], hi[3];
        w.out.place(i, V, &sample, o, &channel);
        for (int d = 0; d < 3; d++)
            w.real_taps(d, o[d], &lo[d], &hi[d]);
        wide<T> value[V];
        pool_state<V> state;
        state.begin();
        for (int k = 0; k < V; k++)
            value[k] = w.kind == WF_POOL_MAX ? -(wide<T>)INFINITY : 0;
        for (int64_t a = lo[0]; a < hi[0]; a++)
            for (int64_t b = lo[1]; b < hi[1]; b++)
                for (int64_t c = lo[2]; c < hi[2]; c++) {
                    const int64_t tap[3] = {a, b, c};
                    int64_t pixel = 0;
                    for (int d = 0; d < 3; d++)
                        pixel = pixel * w.in.extent[d] + o[d] * w.stride[d] - w.pad[d] + tap[d] * w.dilation[d];
                    const int64_t at = (sample * w.in.pixels + pixel) * w.in.c + channel;
                    if (w.kind == WF_POOL_MAX) {
                        max_tap<T, V>(x, at, pixel, value, state);
                    } else {
                        wide<T> v[V];
                        load<V>(x, at, v);
                        for (int k = 0; k < V; k++)
                            value[k] += v[k];
                    }
                }
        if (w.kind != WF_POOL_MAX) {
            const int64_t n = w.divisor(o);
            for (int k = 0; k < V; k++)
                value[k] = n > 0 ? value[k] / (wide<T>)n : 0;
        }
        store<V>(value, y, i * V);
        if (w.kind == WF_POOL_MAX && index)
            store_places<V>(state.place, index, i * V);
    }
}

/* The windows that read an input pixel, in ascending order: no two threads add to the same element. */
template <class T, int V>
__global__ void pool_backward_kernel(const __grid_constant__ pool_window w, const T *dy, const int32_t *index, T *dx,
                                     bool accumulate)
{
    for (int64_t i = thread_of_grid(); i < w.in.count; i += threads_of_grid()) {
        int64_t sample, channel, at[3], lo[3], hi[3], pixel = 0;
        w.in.place(i, V, &sample, at, &channel);
        for (int d = 0; d < 3; d++) {
            w.readers(d, at[d], &lo[d], &hi[d]);
            pixel = pixel * w.in.extent[d] + at[d];
        }
        wide<T> sum[V] = {};
        if (accumulate)
            load<V>(dx, i * V, sum);
        for (int64_t a = lo[0]; a < hi[0]; a++)
            for (int64_t b = lo[1]; b < hi[1]; b++)
                for (int64_t c = lo[2]; c < hi[2]; c++) {
                    const int64_t o[3] = {a, b, c};
                    if (!w.touches(0, a, at[0]) || !w.touches(1, b, at[1]) || !w.touches(2, c, at[2]))
                        continue;
                    const int64_t from =
                        (((sample * w.out.extent[0] + a) * w.out.extent[1] + b) * w.out.extent[2] + c) * w.out.c +
                        channel;
                    wide<T> v[V];
                    load<V>(dy, from, v);
                    if (w.kind == WF_POOL_MAX) {
                        const pack<int32_t, V> place = *reinterpret_cast<const pack<int32_t, V> *>(index + from);
                        for (int k = 0; k < V; k++)
                            sum[k] += place.v[k] == pixel ? v[k] : 0;
                    } else {
                        const wide<T> n = (wide<T>)w.divisor(o);
                        for (int k = 0; k < V; k++)
                            sum[k] += v[k] / n;
                    }
                }
        store<V>(sum, dx, i * V);
    }
}

static bool packable(const wf_array *a, const wf_array *b, const wf_array *index)
{
    const int64_t width = 16 / (int64_t)wf_dtype_size(a->dtype);
    return a->shape.dim[1] % width == 0 && aligned(a->data) && aligned(b->data) && (!index || aligned(index->data));
}

wf_status wf_cuda_pool_forward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const x = args->x, *const y = args->y, *const index = args->index;
    wf_cuda *own;
    if (wf_array_count(y) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = pack_size<T>;
        const bool vector = packable(x, y, index);
        const pool_window w = window_of(args->geom, x, y, vector ? V : 1);
        int32_t *const places = index ? out_of<int32_t>(index) : nullptr;
        return vector ? launch(own, (pool_forward_kernel<T, V>), blocks_for(own, w.out.count), THREADS, w, in_of<T>(x),
                               out_of<T>(y), places)
                      : launch(own, (pool_forward_kernel<T, 1>), blocks_for(own, w.out.count), THREADS, w, in_of<T>(x),
                               out_of<T>(y), places);
    });
}

wf_status wf_cuda_pool_backward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const dy = args->y, *const index = args->index, *const dx = args->x;
    wf_cuda *own;
    if (wf_array_count(dx) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = pack_size<T>;
        const bool vector = packable(dx, dy, index);
        const pool_window w = window_of(args->geom, dx, dy, vector ? V : 1);
        const int32_t *const places = index ? in_of<int32_t>(index) : nullptr;
        return vector ? launch(own, (pool_backward_kernel<T, V>), blocks_for(own, w.in.count), THREADS, w, in_of<T>(dy),
                               places, out_of<T>(dx), args->accumulate)
                      : launch(own, (pool_backward_kernel<T, 1>), blocks_for(own, w.in.count), THREADS, w, in_of<T>(dy),
                               places, out_of<T>(dx), args->accumulate);
    });
}
