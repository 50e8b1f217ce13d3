/* Pooling of channels-last images: the largest number of a window, or the average.
 *
 * A thread makes a pack of channels of one output pixel. Backward a thread makes a pack of one input pixel, from all
 * windows that read it: sums have one order, without atomics, and no element is written twice. Forward keeps the pixel
 * of the largest number (`index`), the first of equal ones, to which backward gives the whole gradient. */
#include "core/cuda/grid_impl.h"

/* No kernel divides but for the averages at an edge: what is divided by is known to the host. */
struct pool_window {
    image in, out;
    int64_t kernel[3], pad[3], end[3]; /* end: of the padded input, which may be cut */
    divider stride[3], dilation[3];
    bool padded;    /* the average counts padding */
    int64_t taps;   /* of a whole window */
    double inverse; /* 1 / taps */

    /* The first element that window o reads, in the coordinates of the unpadded input. */
    __device__ int64_t first(int d, int64_t o) const
    {
        return o * stride[d].d - pad[d];
    }
    /* n / by, upwards; 0 for n below 0. */
    __device__ static int64_t over(int64_t n, const divider &by)
    {
        return n > 0 ? by.of(n + by.d - 1) : 0;
    }
    /* Taps [lo, hi) of window o along d that lie on real elements. */
    __device__ void real_taps(int d, int64_t o, int64_t *lo, int64_t *hi) const
    {
        const int64_t from = first(d, o), stop = least(in.extent[d], end[d]);
        *lo = over(-from, dilation[d]);
        *hi = least(kernel[d], over(stop - from, dilation[d]));
    }
    /* How many taps of window o along d the average counts. */
    __device__ int64_t counted(int d, int64_t o) const
    {
        /* Without padding the average counts real elements; with it, those of the padded input, which ceil mode may cut
         * short. */
        const int64_t from = first(d, o), stop = padded ? end[d] : least(in.extent[d], end[d]);
        if ((padded || from >= 0) && from + (kernel[d] - 1) * dilation[d].d < stop)
            return kernel[d];
        const int64_t lo = padded ? 0 : over(-from, dilation[d]);
        return most(0, least(kernel[d], over(stop - from, dilation[d])) - lo);
    }
    /* What a window of n taps multiplies its sum with. A whole window needs no division: its share was divided on the
     * host. */
    template <class W> __device__ W share(int64_t n) const
    {
        return n == taps ? (W)inverse : n > 0 ? 1 / (W)n : 0;
    }
    /* Windows [lo, hi) along d whose first to last tap span input i. */
    __device__ void readers(int d, int64_t i, int64_t *lo, int64_t *hi) const
    {
        /* A window reads i if its first tap is at or before it and its last at or behind it; with dilation, `touches`
         * asks for the taps between. */
        const int64_t at = i + pad[d];
        *lo = over(at - (kernel[d] - 1) * dilation[d].d, stride[d]);
        *hi = i >= end[d] || at < 0 ? *lo : least(out.extent[d], stride[d].of(at) + 1);
    }
    /* Returns true if a tap of window o along d reads input i, which lies within the window. */
    __device__ bool touches(int d, int64_t o, int64_t i) const
    {
        int64_t rest = i - first(d, o);
        if (dilation[d].d > 1)
            dilation[d].split(&rest);
        else
            rest = 0;
        return rest == 0;
    }
};

/* Windows of an adaptive pool, with what the kernels ask of a pool_window. Window o of the whole is [floor(o in / out),
 * ceil((o + 1) in / out)), as in PyTorch. */
struct adaptive_window {
    image in, out;
    int64_t in_lo[3], out_lo[3];
    divider inputs[3], outputs[3], dilation[3];

    /* The first input of window o of the whole. */
    __device__ int64_t start(int d, int64_t o) const
    {
        return outputs[d].of(o * inputs[d].d);
    }
    /* The end of window o of the whole. */
    __device__ int64_t stop(int d, int64_t o) const
    {
        return outputs[d].of((o + 1) * inputs[d].d + outputs[d].d - 1);
    }
    __device__ int64_t first(int d, int64_t o) const
    {
        return start(d, o + out_lo[d]) - in_lo[d];
    }
    __device__ void real_taps(int d, int64_t o, int64_t *lo, int64_t *hi) const
    {
        *lo = 0;
        *hi = counted(d, o);
    }
    __device__ int64_t counted(int d, int64_t o) const
    {
        return stop(d, o + out_lo[d]) - start(d, o + out_lo[d]);
    }
    template <class W> __device__ W share(int64_t n) const
    {
        return 1 / (W)n;
    }
    /* Windows and inputs read each other: o covers i where i covers o with lengths exchanged. So the same two formulas
     * give the readers. */
    __device__ void readers(int d, int64_t i, int64_t *lo, int64_t *hi) const
    {
        const int64_t at = (i + in_lo[d]) * outputs[d].d;
        *lo = most(0, inputs[d].of(at) - out_lo[d]);
        *hi = least(out.extent[d], inputs[d].of(at + outputs[d].d + inputs[d].d - 1) - out_lo[d]);
    }
    __device__ bool touches(int, int64_t, int64_t) const
    {
        return true;
    }
};

static void set_window(const wf_pool_geom *geom, const wf_array *x, const wf_array *y, int width, pool_window *of)
{
    pool_window &w = *of;
    w.padded = geom->kind == WF_POOL_AVG_PADDED;
    w.in = image_of(x, geom->nd, width);
    w.out = image_of(y, geom->nd, width);
    w.taps = 1;
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - geom->nd);
        w.kernel[d] = s < 0 ? 1 : geom->kernel[s];
        w.stride[d] = divide_by(s < 0 ? 1 : geom->stride[s]);
        w.dilation[d] = divide_by(s < 0 ? 1 : geom->dilation[s]);
        w.pad[d] = s < 0 ? 0 : geom->pad_lo[s];
        w.end[d] = w.in.extent[d] + (s < 0 ? 0 : geom->pad_hi[s]);
        w.taps *= w.kernel[d];
    }
    w.inverse = 1 / (double)w.taps;
}

static void set_window(const wf_pool_geom *geom, const wf_array *x, const wf_array *y, int width, adaptive_window *w)
{
    w->in = image_of(x, geom->nd, width);
    w->out = image_of(y, geom->nd, width);
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - geom->nd);
        w->inputs[d] = divide_by(s < 0 ? 1 : geom->inputs[s]);
        w->outputs[d] = divide_by(s < 0 ? 1 : geom->outputs[s]);
        w->in_lo[d] = s < 0 ? 0 : geom->in_lo[s];
        w->out_lo[d] = s < 0 ? 0 : geom->out_lo[s];
        w->dilation[d] = divide_by(1);
    }
}

/* The largest number of each channel so far and its pixel, or the sum so far. A NaN takes the place and keeps it; of
 * equal numbers the first one does. */
template <class T, int V, bool MAX> struct pooled {
    wide<T> value[V];
    int32_t place[V]; /* -1: none yet */
    __device__ void begin()
    {
#pragma unroll
        for (int k = 0; k < V; k++) {
            value[k] = MAX ? -(wide<T>)INFINITY : 0;
            place[k] = -1;
        }
    }
    __device__ void add(const pack<T, V> &raw, int64_t pixel)
    {
#pragma unroll
        for (int k = 0; k < V; k++) {
            const wide<T> v = widen(raw.v[k]);
            if constexpr (MAX) {
                /* The first number counts even if it is -infinity. */
                const bool larger = place[k] < 0 || v > value[k] || (v != v && value[k] == value[k]);
                value[k] = larger ? v : value[k];
                place[k] = larger ? (int32_t)pixel : place[k];
            } else {
                value[k] += v;
            }
        }
    }
};

/* Packs of x may be of more bytes than those of indices: V elements, whatever their size. */
template <int V> __device__ inline void store_places(const int32_t *place, int32_t *index, int64_t i)
{
    pack<int32_t, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++)
        raw.v[k] = place[k];
    *reinterpret_cast<pack<int32_t, V> *>(index + i) = raw;
}

/* The taps of a row in pairs, whose loads are in flight together; of the last pair the second may be the first again.
 */
template <class T, int V, bool MAX, class WINDOW>
__global__ void __launch_bounds__(THREADS)
    pool_forward_kernel(const __grid_constant__ WINDOW w, const T *x, T *y, int32_t *index)
{
    for (int64_t i = thread_of_grid(); i < w.out.count; i += threads_of_grid()) {
        int64_t sample, channel, o[3], lo[3], hi[3];
        w.out.place(i, V, &sample, o, &channel);
#pragma unroll
        for (int d = 0; d < 3; d++)
            w.real_taps(d, o[d], &lo[d], &hi[d]);
        pooled<T, V, MAX> to;
        to.begin();
        const T *const from = x + sample * w.in.pixels * w.in.c + channel;
        for (int64_t a = lo[0]; a < hi[0]; a++)
            for (int64_t b = lo[1]; b < hi[1]; b++) {
                const int64_t row =
                    (w.first(0, o[0]) + a * w.dilation[0].d) * w.in.extent[1] + w.first(1, o[1]) + b * w.dilation[1].d;
                int64_t pixel = row * w.in.extent[2] + w.first(2, o[2]) + lo[2] * w.dilation[2].d;
                for (int64_t c = lo[2]; c < hi[2]; c += 2, pixel += 2 * w.dilation[2].d) {
                    const int64_t next = c + 1 < hi[2] ? pixel + w.dilation[2].d : pixel;
                    const pack<T, V> first = load_raw<V>(from, pixel * w.in.c),
                                     second = load_raw<V>(from, next * w.in.c);
                    to.add(first, pixel);
                    if (MAX || next != pixel) /* the largest of a number and itself needs no branch */
                        to.add(second, next);
                }
            }
        if constexpr (!MAX) {
            const wide<T> share =
                w.template share<wide<T>>(w.counted(0, o[0]) * w.counted(1, o[1]) * w.counted(2, o[2]));
#pragma unroll
            for (int k = 0; k < V; k++)
                to.value[k] *= share;
        }
        store<V>(to.value, y, i * V);
        if (MAX && index)
            store_places<V>(to.place, index, i * V);
    }
}

/* The windows that read an input pixel, in ascending order: no two threads add to the same element. */
template <class T, int V, bool MAX, class WINDOW>
__global__ void __launch_bounds__(THREADS)
    pool_backward_kernel(const __grid_constant__ WINDOW w, const T *dy, const int32_t *index, T *dx, bool accumulate)
{
    for (int64_t i = thread_of_grid(); i < w.in.count; i += threads_of_grid()) {
        int64_t sample, channel, at[3], lo[3], hi[3], pixel = 0;
        w.in.place(i, V, &sample, at, &channel);
#pragma unroll
        for (int d = 0; d < 3; d++) {
            w.readers(d, at[d], &lo[d], &hi[d]);
            pixel = pixel * w.in.extent[d] + at[d];
        }
        wide<T> sum[V] = {};
        if (accumulate)
            load<V>(dx, i * V, sum);
        for (int64_t a = lo[0]; a < hi[0]; a++)
            for (int64_t b = lo[1]; b < hi[1]; b++) {
                if (!w.touches(0, a, at[0]) || !w.touches(1, b, at[1]))
                    continue;
                const int64_t row = ((sample * w.out.extent[0] + a) * w.out.extent[1] + b) * w.out.extent[2];
                /* The average's share is counted once for the two outer dimensions. */
                const int64_t n = MAX ? 1 : w.counted(0, a) * w.counted(1, b);
                for (int64_t c = lo[2]; c < hi[2]; c++) {
                    if (!w.touches(2, c, at[2]))
                        continue;
                    const int64_t from = (row + c) * w.out.c + channel;
                    const pack<T, V> v = load_raw<V>(dy, from);
                    if constexpr (MAX) {
                        const pack<int32_t, V> place = load_raw<V>(index, from);
#pragma unroll
                        for (int k = 0; k < V; k++)
                            sum[k] += place.v[k] == (int32_t)pixel ? widen(v.v[k]) : 0;
                    } else {
                        const wide<T> share = w.template share<wide<T>>(n * w.counted(2, c));
#pragma unroll
                        for (int k = 0; k < V; k++)
                            sum[k] += widen(v.v[k]) * share;
                    }
                }
            }
        store<V>(sum, dx, i * V);
    }
}

/* Channels in packs; indices need an alignment of their own. */
static bool packable(const wf_array *a, const wf_array *b, const wf_array *index)
{
    const int64_t width = 16 / (int64_t)wf_dtype_size(a->dtype);
    return a->shape.dim[1] % width == 0 && aligned(a->data) && aligned(b->data) && (!index || aligned(index->data));
}

template <class T, int V, class WINDOW> static wf_status forward(wf_cuda *own, const wf_pool_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    WINDOW w = {};
    set_window(args->geom, x, y, V, &w);
    int32_t *const index = args->index ? out_of<int32_t>(args->index) : nullptr;
    return args->geom->kind == WF_POOL_MAX ? launch_over(own, (pool_forward_kernel<T, V, true, WINDOW>), w.out.count, w,
                                                         in_of<T>(x), out_of<T>(y), index)
                                           : launch_over(own, (pool_forward_kernel<T, V, false, WINDOW>), w.out.count,
                                                         w, in_of<T>(x), out_of<T>(y), index);
}

template <class T, int V> static wf_status forward(wf_cuda *own, const wf_pool_args *args)
{
    return args->geom->adaptive ? forward<T, V, adaptive_window>(own, args) : forward<T, V, pool_window>(own, args);
}

wf_status wf_cuda_pool_forward(wf_ctx *ctx, const wf_pool_args *args)
{
    wf_cuda *own;
    if (wf_array_count(args->y) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(args->y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return packable(args->x, args->y, args->index) ? forward<T, pack_size<T>>(own, args) : forward<T, 1>(own, args);
    });
}

template <class T, int V, class WINDOW> static wf_status backward(wf_cuda *own, const wf_pool_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    WINDOW w = {};
    set_window(args->geom, dx, dy, V, &w);
    const int32_t *const index = in_of<int32_t>(args->index);
    return args->geom->kind == WF_POOL_MAX ? launch_over(own, (pool_backward_kernel<T, V, true, WINDOW>), w.in.count, w,
                                                         in_of<T>(dy), index, out_of<T>(dx), args->accumulate)
                                           : launch_over(own, (pool_backward_kernel<T, V, false, WINDOW>), w.in.count,
                                                         w, in_of<T>(dy), index, out_of<T>(dx), args->accumulate);
}

template <class T, int V> static wf_status backward(wf_cuda *own, const wf_pool_args *args)
{
    return args->geom->adaptive ? backward<T, V, adaptive_window>(own, args) : backward<T, V, pool_window>(own, args);
}

wf_status wf_cuda_pool_backward(wf_ctx *ctx, const wf_pool_args *args)
{
    wf_cuda *own;
    if (wf_array_count(args->x) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        return packable(args->x, args->y, args->index) ? backward<T, pack_size<T>>(own, args)
                                                       : backward<T, 1>(own, args);
    });
}
