/* Epilogues after a product or a convolution, and convolutions in three directions by their definition: for f64, and
 * for what no engine of cuDNN takes. */
#include "core/cuda/act_impl.h"
#include "core/cuda/columns_impl.h"
#include "core/cuda/grid_impl.h"

template <class T, int V, bool NOISY> struct bias_run {
    struct state {
        typename epilogue<wide<T>, NOISY>::state e;
        wide<T> shift[V];
    };
    struct raw {
        pack<T, V> x;
    };
    static constexpr int ahead = NOISY ? 1 : 4;
    const T *x;
    T *y;
    any_float bias;
    epilogue<wide<T>, NOISY> e;
    __device__ void start(state *s, int64_t c) const
    {
        e.begin(&s->e);
#pragma unroll
        for (int k = 0; k < V; k++)
            s->shift[k] = (wide<T>)bias.at(c + k, 0);
    }
    __device__ void take(raw *r, int64_t i) const
    {
        r->x = load_raw<V>(x, i);
    }
    __device__ void run(state *s, const raw &r, int64_t i) const
    {
        wide<T> v[V];
#pragma unroll
        for (int k = 0; k < V; k++)
            v[k] = e.of(&s->e, i + k, widen(r.x.v[k]) + s->shift[k]);
        store<V>(v, y, i);
    }
};

template <class T, bool NOISY>
static wf_status bias_epilogue(wf_ctx *ctx, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y)
{
    columns a = columns_of(y);
    a.vector = aligned(y->data);
    return column_map<T>(ctx, a, [&](auto w) {
        bias_run<T, decltype(w)::value, NOISY> f = {};
        f.x = in_of<T>(y);
        f.y = out_of<T>(y);
        f.bias = any_of(bias);
        f.e = epilogue_of<wide<T>, NOISY>(epilogue, y->order);
        return f;
    });
}

wf_status wf_cuda_bias_epilogue(wf_ctx *ctx, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y)
{
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return of_noise(epilogue,
                        [&](auto noisy) { return bias_epilogue<T, decltype(noisy)::value>(ctx, bias, epilogue, y); });
    });
}

/* The geometry with three dimensions, those in front of length 1. An image of fewer dimensions than three is one whose
 * leading lengths are 1: one kernel serves all. */
struct conv_window {
    image x, y;
    int64_t c, f, cg, fg, taps, kernel[3], stride[3], dilation[3], pad[3];

    /* Pixel of x under a tap of place o of y; -1: padding. */
    __device__ int64_t under(const int64_t o[3], int64_t tap) const
    {
        int64_t k[3], pixel = 0;
        tap_place(tap, k);
        for (int d = 0; d < 3; d++) {
            const int64_t i = o[d] * stride[d] - pad[d] + k[d] * dilation[d];
            if (i < 0 || i >= x.extent[d])
                return -1;
            pixel = pixel * x.extent[d] + i;
        }
        return pixel;
    }
    /* Pixel of y whose tap lies on place i of x; -1: none. The reverse of `under`: y's place o lies over i exactly
     * where i + pad - k dilation is a multiple of the stride. */
    __device__ int64_t above(const int64_t i[3], int64_t tap) const
    {
        int64_t k[3], pixel = 0;
        tap_place(tap, k);
        for (int d = 0; d < 3; d++) {
            const int64_t t = i[d] + pad[d] - k[d] * dilation[d];
            /* t < 0 is asked first: -4 % 2 is 0 too, but lies in front of y. */
            if (t < 0 || t % stride[d] != 0 || t / stride[d] >= y.extent[d])
                return -1;
            pixel = pixel * y.extent[d] + t / stride[d];
        }
        return pixel;
    }
    __device__ void tap_place(int64_t tap, int64_t k[3]) const
    {
        k[2] = tap % kernel[2];
        k[1] = tap / kernel[2] % kernel[1];
        k[0] = tap / kernel[2] / kernel[1];
    }
};

static conv_window window_of(const wf_conv_geom *geom, const wf_array *x, const wf_array *y)
{
    conv_window w = {};
    w.x = image_of(x, geom->nd, 1);
    w.y = image_of(y, geom->nd, 1);
    w.c = x->shape.dim[1];
    w.f = y->shape.dim[1];
    w.cg = w.c / geom->groups;
    w.fg = w.f / geom->groups;
    w.taps = 1;
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - geom->nd);
        w.kernel[d] = s < 0 ? 1 : geom->kernel[s];
        w.stride[d] = s < 0 ? 1 : geom->stride[s];
        w.dilation[d] = s < 0 ? 1 : geom->dilation[s];
        w.pad[d] = s < 0 ? 0 : geom->pad_lo[s];
        w.taps *= w.kernel[d];
    }
    return w;
}

/* Sums in double: this is the fallback, which no library answers for. */
template <class T>
__global__ void conv_forward_kernel(const __grid_constant__ conv_window w, const T *x, const T *filter, T *y)
{
    for (int64_t i = thread_of_grid(); i < w.y.count; i += threads_of_grid()) {
        int64_t n, o[3], f;
        w.y.place(i, 1, &n, o, &f);
        double sum = 0;
        for (int64_t tap = 0; tap < w.taps; tap++) {
            const int64_t pixel = w.under(o, tap);
            if (pixel < 0)
                continue;
            /* Filter f reads the channels of its own group only, cg of them. */
            const T *const from = x + (n * w.x.pixels + pixel) * w.c + f / w.fg * w.cg;
            const T *const by = filter + (f * w.taps + tap) * w.cg;
            for (int64_t c = 0; c < w.cg; c++)
                sum += (double)widen(from[c]) * (double)widen(by[c]);
        }
        narrow((wide<T>)sum, y + i);
    }
}

/* A thread for each element of dx gathers what lies above it: no two threads write to one place, so no atomics, and the
 * order of the sum is fixed. */
template <class T>
__global__ void conv_data_kernel(const __grid_constant__ conv_window w, const T *dy, const T *filter, T *dx)
{
    for (int64_t i = thread_of_grid(); i < w.x.count; i += threads_of_grid()) {
        int64_t n, at[3], c;
        w.x.place(i, 1, &n, at, &c);
        const int64_t group = c / w.cg;
        double sum = 0;
        for (int64_t tap = 0; tap < w.taps; tap++) {
            const int64_t pixel = w.above(at, tap);
            if (pixel < 0)
                continue;
            const T *const from = dy + (n * w.y.pixels + pixel) * w.f;
            for (int64_t f = group * w.fg; f < (group + 1) * w.fg; f++)
                sum += (double)widen(from[f]) * (double)widen(filter[(f * w.taps + tap) * w.cg + c - group * w.cg]);
        }
        narrow((wide<T>)sum, dx + i);
    }
}

/* A thread for each number of the filter walks over all places of dy: slow for large images, but without atomics and in
 * a fixed order. */
template <class T>
__global__ void conv_filter_kernel(const __grid_constant__ conv_window w, const T *x, const T *dy, T *dw,
                                   bool accumulate)
{
    const int64_t count = w.f * w.taps * w.cg;
    for (int64_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const int64_t c = i % w.cg, tap = i / w.cg % w.taps, f = i / w.cg / w.taps;
        /* With accumulate the sum starts from what is there, and is rounded once. */
        double sum = accumulate ? (double)widen(dw[i]) : 0;
        for (int64_t j = 0; j < w.y.n * w.y.pixels; j++) {
            int64_t n, o[3], first;
            w.y.place(j * w.f, 1, &n, o, &first);
            const int64_t pixel = w.under(o, tap);
            if (pixel >= 0)
                sum += (double)widen(dy[j * w.f + f]) *
                       (double)widen(x[(n * w.x.pixels + pixel) * w.c + f / w.fg * w.cg + c]);
        }
        narrow((wide<T>)sum, dw + i);
    }
}

wf_status wf_cuda_direct_forward(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                                 const wf_array *y)
{
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        const conv_window window = window_of(geom, x, y);
        return launch_over(own, conv_forward_kernel<T>, window.y.count, window, in_of<T>(x), in_of<T>(w), out_of<T>(y));
    });
}

wf_status wf_cuda_direct_data(wf_cuda *own, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                              const wf_array *dx)
{
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        const conv_window window = window_of(geom, dx, dy);
        return launch_over(own, conv_data_kernel<T>, window.x.count, window, in_of<T>(dy), in_of<T>(w), out_of<T>(dx));
    });
}

wf_status wf_cuda_direct_filter(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                const wf_array *dw, bool accumulate)
{
    return of_float(dw->dtype, [&](auto zero) {
        using T = decltype(zero);
        const conv_window window = window_of(geom, x, dy);
        return launch_over(own, conv_filter_kernel<T>, wf_array_count(dw), window, in_of<T>(x), in_of<T>(dy),
                           out_of<T>(dw), accumulate);
    });
}
