#include "core/cuda/grid_impl.h"

/* One dimension: output o of the whole reads inputs floor(wanted / whole) and the next, weighted by the remainder. */
struct resample_axis {
    int64_t in, scale, in_lo, out_lo;
    int64_t step, start, whole; /* wanted = step o + start, at least 0 */
    bool linear;

    __device__ void taps(int64_t o, int64_t at[2], double *weight) const
    {
        const int64_t wanted = most(0, step * o + start);
        at[0] = wanted / whole;
        at[1] = linear ? least(at[0] + 1, in - 1) : at[0];
        *weight = linear ? (double)(wanted - at[0] * whole) / (double)whole : 0;
    }
    /* The first output whose first input is m or a later one. */
    __device__ int64_t first_of(int64_t m) const
    {
        if (m <= 0)
            return 0;
        return step == 0 ? in * scale : most(0, ceiling(m * whole - start, step));
    }
};

struct resampling {
    image in, out;
    resample_axis axis[3];
};

static resample_axis axis_of(const wf_resample_geom *geom, int s)
{
    resample_axis a = {1, 1, 0, 0, 1, 0, 1, false};
    if (s < 0)
        return a;
    a.in = geom->in[s];
    a.scale = a.whole = geom->scale[s];
    a.in_lo = geom->in_lo[s];
    a.out_lo = geom->out_lo[s];
    a.linear = geom->linear;
    const int64_t outputs = a.in * a.scale;
    if (a.linear && geom->align_corners) {
        a.step = a.in - 1;
        a.whole = outputs > 1 ? outputs - 1 : 1;
    } else if (a.linear) {
        a.step = 2;
        a.start = 1 - a.scale;
        a.whole = 2 * a.scale;
    }
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

template <class T, int V>
__global__ void resample_forward_kernel(const __grid_constant__ resampling r, const T *x, T *y)
{
    for (int64_t i = thread_of_grid(); i < r.out.count; i += threads_of_grid()) {
        int64_t sample, channel, o[3], at[3][2];
        double weight[3];
        wide<T> sum[V] = {};
        r.out.place(i, V, &sample, o, &channel);
        for (int d = 0; d < 3; d++)
            r.axis[d].taps(o[d] + r.axis[d].out_lo, at[d], &weight[d]);
        for (int corner = 0; corner < 8; corner++) {
            double share = 1;
            int64_t pixel = sample;
            for (int d = 0; d < 3; d++) {
                const bool upper = corner >> d & 1;
                share *= upper ? weight[d] : 1 - weight[d];
                pixel = pixel * r.in.extent[d] + (upper ? at[d][1] : at[d][0]) - r.axis[d].in_lo;
            }
            if (share == 0)
                continue;
            wide<T> v[V];
            load<V>(x, pixel * r.in.c + channel, v);
            for (int k = 0; k < V; k++)
                sum[k] += (wide<T>)share * v[k];
        }
        store<V>(sum, y, i * V);
    }
}

/* What output o takes from input i along one dimension. */
__device__ static inline double share_of(const resample_axis &a, int64_t o, int64_t i)
{
    int64_t at[2];
    double weight;
    a.taps(o, at, &weight);
    return (at[0] == i ? 1 - weight : 0) + (at[1] == i ? weight : 0);
}

template <class T, int V>
__global__ void resample_backward_kernel(const __grid_constant__ resampling r, const T *dy, T *dx, bool accumulate)
{
    for (int64_t i = thread_of_grid(); i < r.in.count; i += threads_of_grid()) {
        int64_t sample, channel, at[3], lo[3], hi[3];
        wide<T> sum[V] = {};
        if (accumulate)
            load<V>(dx, i * V, sum);
        r.in.place(i, V, &sample, at, &channel);
        for (int d = 0; d < 3; d++) {
            const resample_axis &a = r.axis[d];
            at[d] += a.in_lo;
            lo[d] = most(0, a.first_of(a.linear ? at[d] - 1 : at[d]) - a.out_lo);
            hi[d] = least(r.out.extent[d], at[d] + 1 < a.in ? a.first_of(at[d] + 1) - a.out_lo : r.out.extent[d]);
        }
        for (int64_t p = lo[0]; p < hi[0]; p++)
            for (int64_t q = lo[1]; q < hi[1]; q++)
                for (int64_t s = lo[2]; s < hi[2]; s++) {
                    const double share = share_of(r.axis[0], p + r.axis[0].out_lo, at[0]) *
                                         share_of(r.axis[1], q + r.axis[1].out_lo, at[1]) *
                                         share_of(r.axis[2], s + r.axis[2].out_lo, at[2]);
                    if (share == 0)
                        continue;
                    const int64_t pixel = ((sample * r.out.extent[0] + p) * r.out.extent[1] + q) * r.out.extent[2] + s;
                    wide<T> v[V];
                    load<V>(dy, pixel * r.out.c + channel, v);
                    for (int k = 0; k < V; k++)
                        sum[k] += (wide<T>)share * v[k];
                }
        store<V>(sum, dx, i * V);
    }
}

static bool packable(const wf_array *a, const wf_array *b)
{
    const int64_t width = 16 / (int64_t)wf_dtype_size(a->dtype);
    return a->shape.dim[1] % width == 0 && aligned(a->data) && aligned(b->data);
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
        const bool vector = packable(x, y);
        const resampling r = resampling_of(args->geom, x, y, vector ? V : 1);
        const unsigned blocks = blocks_for(own, r.out.count);
        return vector ? launch(own, (resample_forward_kernel<T, V>), blocks, THREADS, r, in_of<T>(x), out_of<T>(y))
                      : launch(own, (resample_forward_kernel<T, 1>), blocks, THREADS, r, in_of<T>(x), out_of<T>(y));
    });
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
        const bool vector = packable(dx, dy);
        const resampling r = resampling_of(args->geom, dx, dy, vector ? V : 1);
        const unsigned blocks = blocks_for(own, r.in.count);
        return vector ? launch(own, (resample_backward_kernel<T, V>), blocks, THREADS, r, in_of<T>(dy), out_of<T>(dx),
                               args->accumulate)
                      : launch(own, (resample_backward_kernel<T, 1>), blocks, THREADS, r, in_of<T>(dy), out_of<T>(dx),
                               args->accumulate);
    });
}
