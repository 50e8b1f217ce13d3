/* Strided copies with conversion, and fills.
 *
 * A copy is a walk over the elements of dst in the order of its memory, so that writes of neighbouring threads are
 * neighbours; dimensions that continue each other on both sides are one. Three kernels do it. Copies of one type move
 * bytes, in the largest unit that runs and addresses allow (move_kernel). Dense runs between float types, as the
 * compute copy of a parameter, are loaded in packs (cast_kernel). All else goes by element (convert_kernel), from any
 * type to any: whole numbers by themselves, other numbers through double, rounded once. */
#include "core/cuda/kernel_impl.h"

#include <stdlib.h>
#include <string.h>

/* The elements of a copy, outermost dimension first; a dimension that continues another is merged with it. Steps may be
 * 0 or negative in src. */
struct copy_walk {
    int64_t n;
    int rank;
    divider dim[WF_MAX_RANK];
    int64_t from[WF_MAX_RANK], to[WF_MAX_RANK]; /* steps in elements */

    /* The places of element i in both. */
    __device__ void place(int64_t i, int64_t *src, int64_t *dst) const
    {
        int64_t s = 0, d = 0;
        /* Division by known divisors, the innermost dimension first. */
        for (int k = rank - 1; k >= 0; k--) {
            const int64_t rest = dim[k].of(i), at = i - rest * dim[k].d;
            s += at * from[k];
            d += at * to[k];
            i = rest;
        }
        *src = s;
        *dst = d;
    }
};

/* Neighbours in dst are neighbours in the walk. By insertion: the rank is small, and equal steps keep their order. */
static void sort_by_step(int rank, int64_t dim[], int64_t from[], int64_t to[])
{
    for (int i = 1; i < rank; i++)
        for (int j = i; j > 0 && llabs(to[j - 1]) < llabs(to[j]); j--) {
            int64_t *const all[3] = {dim, from, to};
            for (int64_t *v : all) {
                const int64_t t = v[j];
                v[j] = v[j - 1];
                v[j - 1] = t;
            }
        }
}

static copy_walk walk_of(const wf_strided *src, const wf_strided *dst)
{
    int64_t dim[WF_MAX_RANK], from[WF_MAX_RANK], to[WF_MAX_RANK];
    copy_walk w = {};
    int rank = 0, last = 0;
    w.n = 1;
    for (int d = 0; d < dst->rank; d++) {
        w.n *= dst->dim[d];
        /* A dimension of length 1 has no step that matters, and would only stand between two that could be merged. */
        if (dst->dim[d] == 1)
            continue;
        dim[rank] = dst->dim[d];
        from[rank] = src->stride[d];
        to[rank++] = dst->stride[d];
    }
    sort_by_step(rank, dim, from, to);
    for (int k = 1; k < rank; k++) {
        /* On both sides the outer step is as large as the whole inner dimension: one dimension for both. */
        if (to[last] == to[k] * dim[k] && from[last] == from[k] * dim[k]) {
            dim[last] *= dim[k];
        } else {
            dim[++last] = dim[k];
        }
        from[last] = from[k];
        to[last] = to[k];
    }
    w.rank = rank > 0 ? last + 1 : 0;
    for (int k = 0; k < w.rank; k++) {
        w.dim[k] = divide_by(dim[k]);
        w.from[k] = from[k];
        w.to[k] = to[k];
    }
    return w;
}

template <class U> __global__ void move_kernel(const __grid_constant__ copy_walk w, const U *src, U *dst)
{
    const int64_t step = threads_of_grid();
    int64_t i = thread_of_grid();
    /* Two loads are in flight before the first is stored. src and dst do not overlap. */
    for (; i + step < w.n; i += 2 * step) {
        int64_t from[2], to[2];
        w.place(i, &from[0], &to[0]);
        w.place(i + step, &from[1], &to[1]);
        const U first = src[from[0]], second = src[from[1]];
        dst[to[0]] = first;
        dst[to[1]] = second;
    }
    if (i < w.n) {
        int64_t from, to;
        w.place(i, &from, &to);
        dst[to] = src[from];
    }
}

/* Describes the same bytes in units `times` as large, if runs, steps and addresses allow it. */
static bool widened(const copy_walk &w, const void *src, const void *dst, size_t size, int times, copy_walk *out)
{
    const size_t unit = size * (size_t)times;
    const int in = w.rank - 1;
    *out = w;
    if (times == 1)
        return true;
    if (w.rank == 0 || w.from[in] != 1 || w.to[in] != 1 || w.dim[in].d % times != 0 ||
        reinterpret_cast<uintptr_t>(src) % unit != 0 || reinterpret_cast<uintptr_t>(dst) % unit != 0)
        return false;
    for (int k = 0; k < in; k++) {
        if (w.from[k] % times != 0 || w.to[k] % times != 0)
            return false;
        out->from[k] = w.from[k] / times;
        out->to[k] = w.to[k] / times;
    }
    out->dim[in] = divide_by(w.dim[in].d / times);
    out->n = w.n / times;
    return true;
}

template <class U> static wf_status move_units(wf_cuda *own, const copy_walk &w, const void *src, void *dst)
{
    return launch_over(own, move_kernel<U>, w.n, w, static_cast<const U *>(src), static_cast<U *>(dst));
}

static wf_status move(wf_cuda *own, const copy_walk &w, const void *src, void *dst, size_t size)
{
    copy_walk wide_walk;
    /* A unit of the element's own size always fits, so the loop ends. */
    size_t unit = 16;
    while (!widened(w, src, dst, size, (int)(unit / size), &wide_walk))
        unit /= 2;
    switch (unit) {
    case 16:
        return move_units<uint4>(own, wide_walk, src, dst);
    case 8:
        return move_units<uint2>(own, wide_walk, src, dst);
    case 4:
        return move_units<uint32_t>(own, wide_walk, src, dst);
    case 2:
        return move_units<uint16_t>(own, wide_walk, src, dst);
    default:
        return move_units<uint8_t>(own, wide_walk, src, dst);
    }
}

/* A double to f32 such that a second rounding to fewer bits is as good as one alone: what is inexact becomes odd (Boldo
 * and Melquiond, 2008). */
__device__ static inline float rounded_to_odd(double d)
{
    const float f = __double2float_rz(d);
    return (double)f == d || d != d ? f : __uint_as_float(__float_as_uint(f) | 1);
}

/* Cut, not rounded; beyond the range its end; NaN is 0. limit: the first value above the range, since the highest i64
 * is no double. */
__device__ static inline int64_t cut(double d, int64_t lowest, int64_t highest, double limit)
{
    if (d != d)
        return 0;
    return d >= limit ? highest : d <= (double)lowest ? lowest : (int64_t)d;
}

template <class T> struct element {
    static constexpr bool whole = false;
    __device__ static double get(T v)
    {
        return widen(v);
    }
    __device__ static T made(double v)
    {
        T t;
        narrow(rounded_to_odd(v), &t);
        return t;
    }
};
template <> __device__ inline float element<float>::made(double v)
{
    return (float)v;
}
template <> __device__ inline double element<double>::made(double v)
{
    return v;
}
template <class T, int64_t LOW, int64_t HIGH> struct whole_element {
    static constexpr bool whole = true;
    static constexpr int64_t low = LOW, high = HIGH;
    __device__ static double get(T v)
    {
        return (double)v;
    }
    __device__ static T made(double v)
    {
        return (T)cut(v, LOW, HIGH, HIGH == INT64_MAX ? 0x1p63 : (double)HIGH + 1);
    }
};
template <> struct element<uint8_t> : whole_element<uint8_t, 0, UINT8_MAX> {
};
template <> struct element<int32_t> : whole_element<int32_t, INT32_MIN, INT32_MAX> {
};
template <> struct element<int64_t> : whole_element<int64_t, INT64_MIN, INT64_MAX> {
};

/* Whole numbers do not go through double, which has too few bits for i64. */
__device__ static inline int64_t whole_sum(int64_t a, int64_t b)
{
    /* Sums stop at the ends of the range: wrapping around would change the sign. */
    if (b > 0 && a > INT64_MAX - b)
        return INT64_MAX;
    return b < 0 && a < INT64_MIN - b ? INT64_MIN : a + b;
}

template <class S, class D> __device__ inline void convert(const S *src, D *dst, bool accumulate)
{
    if constexpr (element<S>::whole && element<D>::whole) {
        const int64_t v = accumulate ? whole_sum((int64_t)*src, (int64_t)*dst) : (int64_t)*src;
        *dst = (D)(v < element<D>::low ? element<D>::low : v > element<D>::high ? element<D>::high : v);
    } else {
        const double v = element<S>::get(*src);
        *dst = element<D>::made(accumulate ? v + element<D>::get(*dst) : v);
    }
}

template <class S, class D>
__global__ void convert_kernel(const __grid_constant__ copy_walk w, const S *src, D *dst, bool accumulate)
{
    for (int64_t i = thread_of_grid(); i < w.n; i += threads_of_grid()) {
        int64_t from, to;
        w.place(i, &from, &to);
        convert(src + from, dst + to, accumulate);
    }
}

/* Dense runs between float types: the compute copy of a parameter, its gradient's way back. */
template <class S, class D> __global__ void cast_kernel(int64_t n, const S *src, D *dst, bool accumulate)
{
    /* V elements of both types: the wider one decides, so no pack is longer than 16 bytes. */
    constexpr int V = pack_size<S> < pack_size<D> ? pack_size<S> : pack_size<D>;
    for (int64_t i = thread_of_grid() * V; i < n; i += threads_of_grid() * V) {
        if (i + V > n) {
            for (int64_t k = i; k < n; k++)
                convert(src + k, dst + k, accumulate);
            continue;
        }
        pack<S, V> s = *reinterpret_cast<const pack<S, V> *>(src + i);
        pack<D, V> d = {};
        if (accumulate)
            d = *reinterpret_cast<const pack<D, V> *>(dst + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            convert(&s.v[k], &d.v[k], accumulate);
        *reinterpret_cast<pack<D, V> *>(dst + i) = d;
    }
}

template <class F> static wf_status of_type(wf_dtype dtype, F f)
{
    switch (dtype) {
    case WF_I32:
        return f(int32_t());
    case WF_I64:
        return f(int64_t());
    case WF_U8:
        return f(uint8_t());
    default:
        return of_float(dtype, f);
    }
}

template <class S, class D>
static wf_status converted(wf_cuda *own, const copy_walk &w, const S *src, D *dst, bool accumulate)
{
    const bool dense = w.rank == 1 && w.from[0] == 1 && w.to[0] == 1;
    if constexpr (!element<S>::whole && !element<D>::whole) {
        constexpr int V = pack_size<S> < pack_size<D> ? pack_size<S> : pack_size<D>;
        if (dense && aligned(src) && aligned(dst))
            return launch_over(own, (cast_kernel<S, D>), ceil_div(w.n, V), w.n, src, dst, accumulate);
    }
    return launch_over(own, (convert_kernel<S, D>), w.n, w, src, dst, accumulate);
}

wf_status wf_cuda_copy(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate)
{
    wf_cuda *own;
    const copy_walk w = walk_of(src, dst);
    if (w.n == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    /* Equal types need no arithmetic, so the bytes are moved, NaNs and all. */
    if (src->dtype == dst->dtype && !accumulate)
        return move(own, w, src->data, dst->data, wf_dtype_size(src->dtype));
    return of_type(src->dtype, [&](auto from) {
        return of_type(dst->dtype, [&](auto to) {
            return converted(own, w, static_cast<const decltype(from) *>(src->data),
                             static_cast<decltype(to) *>(dst->data), accumulate);
        });
    });
}

/* Bytes that travel with a launch. Small arguments reach the device with the launch: no transfer, no wait, and a
 * captured step replays them. */
struct inline_bytes {
    uint64_t word[CUDA_INLINE_BYTES / 8];
};

__global__ static void put_kernel(const __grid_constant__ inline_bytes from, int64_t bytes, unsigned char *to)
{
    for (int64_t i = threadIdx.x; i < bytes; i += THREADS)
        to[i] = (unsigned char)(from.word[i / 8] >> (8 * (i % 8)));
}

wf_status wf_cuda_put(wf_cuda *own, void *device, const void *host, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(inline_bytes)) {
        inline_bytes from = {};
        const size_t n = bytes - at < sizeof from ? bytes - at : sizeof from;
        memcpy(&from, static_cast<const char *>(host) + at, n);
        WF_TRY(launch(own, put_kernel, 1, THREADS, from, (int64_t)n, static_cast<unsigned char *>(device) + at));
    }
    return WF_OK;
}

/* The value is rounded once, in each thread, to the type of y. */
template <class T> __global__ void fill_kernel(int64_t n, bool vector, double value, T *y)
{
    constexpr int V = pack_size<T>;
    const T one = element<T>::made(value);
    const int64_t thread = thread_of_grid(), threads = threads_of_grid(), packed = vector ? n / V : 0;
    pack<T, V> many;
#pragma unroll
    for (int k = 0; k < V; k++)
        many.v[k] = one;
    for (int64_t i = thread; i < packed; i += threads)
        *reinterpret_cast<pack<T, V> *>(y + i * V) = many;
    for (int64_t i = packed * V + thread; i < n; i += threads)
        y[i] = one;
}

wf_status wf_cuda_fill(wf_ctx *ctx, const wf_array *y, double value)
{
    wf_cuda *own;
    const int64_t n = wf_array_count(y);
    if (n == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_type(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return launch_over(own, fill_kernel<T>, ceil_div(n, pack_size<T>), n, aligned(y->data), value, out_of<T>(y));
    });
}
