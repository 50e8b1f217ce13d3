/* Places of maxima, and images made of them. A thread has one element, or a pack of channels.
 *
 * The last pixel of those with the same place takes it: the larger number, which one atomic operation finds whatever
 * the order in which threads come. */
#include "core/cuda/labels_impl.h"

struct box_places {
    const int32_t *index;
    int64_t *y;
    divider length[3]; /* 1s in front */
    int64_t lo[3], whole[3];
};

static __global__ void pool_places_kernel(int64_t n, const __grid_constant__ box_places a)
{
    for (int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
        int64_t rest = a.index[i], place = -1;
        /* -1: the window had no element. */
        if (rest >= 0) {
            const int64_t row = a.length[2].of(rest), plane = a.length[1].of(row);
            /* The number of a pixel in a box becomes its number in the whole image. */
            place = ((plane + a.lo[0]) * a.whole[1] + row - plane * a.length[1].d + a.lo[1]) * a.whole[2] + rest -
                    row * a.length[2].d + a.lo[2];
        }
        a.y[i] = place;
    }
}

wf_status wf_cuda_pool_places(wf_ctx *ctx, const wf_places_args *args)
{
    wf_cuda *own;
    const int64_t n = wf_array_count(args->y);
    box_places a = {};
    a.index = in_of<int32_t>(args->index);
    a.y = out_of<int64_t>(args->y);
    if (n == 0)
        return WF_OK;
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - args->nd);
        a.length[d] = divide_by(s < 0 ? 1 : args->length[s]);
        a.lo[d] = s < 0 ? 0 : args->lo[s];
        a.whole[d] = s < 0 ? 1 : args->whole[s];
    }
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch_over(own, pool_places_kernel, n, n, a);
}

/* Elements of the smaller image, and where their places are in the larger one. */
struct unpool_pixels {
    label_source places;
    int32_t *index, *taken;
    divider c, pixels;
    int64_t larger;

    __device__ int64_t pixel(int64_t i) const
    {
        const int64_t row = c.of(i);
        return row - pixels.of(row) * pixels.d;
    }
    /* The element of the larger image that element i of the smaller one names. */
    __device__ int64_t place(int64_t i, int64_t at) const
    {
        const int64_t row = c.of(i);
        return (pixels.of(row) * larger + at) * c.d + i - row * c.d;
    }
};

/* All writers of a place agree on the largest number, so the result does not depend on their order. */
static __global__ void take_places_kernel(int64_t n, const __grid_constant__ unpool_pixels a)
{
    for (int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
        const int64_t at = a.places.at(i);
        a.index[i] = (int32_t)at;
        if (at >= 0)
            atomicMax(a.taken + a.place(i, at), (int32_t)a.pixel(i));
    }
}

/* A second pass, since only now each place knows its last taker. Elements that lost have no way into y, and get no
 * gradient. */
static __global__ void lose_places_kernel(int64_t n, const __grid_constant__ unpool_pixels a)
{
    for (int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
        const int64_t at = a.index[i];
        if (at >= 0 && a.taken[a.place(i, at)] != a.pixel(i))
            a.index[i] = -1;
    }
}

wf_status wf_cuda_unpool_index(wf_ctx *ctx, const wf_unpool_args *args)
{
    wf_cuda *own;
    int64_t n, c, pixels, larger;
    unpool_pixels a = {};
    wf_array_ncp(args->taken, &n, &c, &larger);
    wf_array_ncp(args->index, &n, &c, &pixels);
    /* -1 is no place, and left out. */
    WF_TRY(labels_of(ctx, args->places, -1, larger, &own, &a.places, CUDA_PLACE));
    if (n * c * larger == 0)
        return WF_OK;
    a.index = out_of<int32_t>(args->index);
    a.taken = out_of<int32_t>(args->taken);
    a.c = divide_by(c);
    a.pixels = divide_by(pixels);
    a.larger = larger;
    /* -1 in every byte: no pixel has taken the place. */
    TRY_CUDA(cudaMemsetAsync(a.taken, 0xff, (size_t)(n * c * larger) * sizeof(int32_t), own->stream));
    if (pixels == 0)
        return WF_OK;
    WF_TRY(launch_over(own, take_places_kernel, n * c * pixels, n * c * pixels, a));
    return launch_over(own, lose_places_kernel, n * c * pixels, n * c * pixels, a);
}

template <class T> struct picked_pixels {
    const T *x;
    const int32_t *index;
    T *y;
    divider c, pixels;
    int64_t from;
};

/* Both directions: y of x by `taken`, and dx of dy by `index`. */
template <class T> static __global__ void pick_pixels_kernel(int64_t n, const __grid_constant__ picked_pixels<T> a)
{
    for (int64_t i = thread_of_grid(); i < n; i += threads_of_grid()) {
        const int64_t row = a.c.of(i), at = a.index[i];
        wide<T> v = 0;
        if (at >= 0)
            v = widen(a.x[(a.pixels.of(row) * a.from + at) * a.c.d + i - row * a.c.d]);
        narrow(v, a.y + i);
    }
}

wf_status wf_cuda_pick_pixels(wf_ctx *ctx, const wf_array *x, const wf_array *index, const wf_array *y)
{
    wf_cuda *own;
    int64_t n, c, from, to;
    wf_array_ncp(x, &n, &c, &from);
    wf_array_ncp(y, &n, &c, &to);
    if (n * c * to == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        const picked_pixels<T> a = {in_of<T>(x),  in_of<int32_t>(index), out_of<T>(y),
                                    divide_by(c), divide_by(to),         from};
        return launch_over(own, pick_pixels_kernel<T>, n * to * c, n * to * c, a);
    });
}
