/* Kernels over the channels of channels-last arrays: [rows, channels], channels innermost.
 *
 * A block is tx by ty threads: tx threads side by side hold neighbouring channels (a pack each, where all arrays allow
 * it), the ty rows of threads walk over the rows of the array. So what belongs to a channel stays in registers.
 *
 * column_map and column_sums are given a lambda `make(width<V>)` that returns a functor f for packs of V channels; V is
 * 1, or pack_size<T>. f is copied to the device and must have
 *
 *     struct state                                what a thread keeps of its channels; value-initialised
 *     void start(state *s, int64_t c) const       before the rows of channels [c, c + V)
 *     struct raw                                  the packs of a row as they are in memory
 *     void take(raw *r, int64_t i) const          loads the packs at element i, and does nothing else
 *     static constexpr int ahead                  rows that are loaded before the first of them is computed
 *   for column_map
 *     void run(state *s, const raw &r, int64_t i) const       the pack at element i, once
 *   for column_sums
 *     static constexpr int sums                   K, how many sums each channel has
 *     static constexpr int blocks                 how many blocks a multiprocessor shall hold: 3, or 2 where the totals
 *                                                 and the state would not fit the registers then
 *     number                                      the type in which a few rows are added; the rest is in f64
 *     void add(const state &s, const raw &r, int64_t i, number sum[K][V]) const     adds the pack at element i
 *     void finish(int64_t c, const double *sum) const                 takes the K sums of channel c, once
 *
 * A thread has as many bytes in flight as it loads before it waits, so the loads of `ahead` rows stand in one straight
 * piece of code: a branch between them, or arithmetic on the first, would make each wait for the one before.
 * tests/static/loads.sh holds the machine code to that.
 *
 * core/cuda/norm.cu has one of each (norm_forward_run, moment_sums). */
#ifndef WF_CORE_CUDA_COLUMNS_IMPL_H
#define WF_CORE_CUDA_COLUMNS_IMPL_H

#include "core/cuda/kernel_impl.h"

struct columns {
    int64_t rows, channels;
    bool vector;
};

inline columns columns_of(const wf_array *a)
{
    int64_t n, c, pixels;
    wf_array_ncp(a, &n, &c, &pixels);
    return columns{n * pixels, c, true};
}

struct column_grid {
    dim3 grid, block;
};

/* fit: the blocks that a multiprocessor holds. */
inline column_grid columns_grid(const wf_cuda *own, const columns &a, int width, int rows_each, int fit)
{
    const int64_t packs = ceil_div(a.channels, width);
    unsigned tx = 1;
    while (tx < 32 && tx < packs)
        tx *= 2;
    const int64_t distributed = ceil_div(packs, tx), ty = THREADS / tx;
    const int64_t wanted = ceil_div(a.rows, ty * rows_each), room = (int64_t)own->processors * fit / distributed;
    const int64_t down = at_most(at_most(wanted, room), 65535);
    return column_grid{dim3((unsigned)distributed, (unsigned)(down > 0 ? down : 1)), dim3(tx, (unsigned)ty)};
}

template <int V> __device__ inline int64_t column_of_thread()
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
}

__device__ inline int64_t row_of_thread()
{
    return (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
}

__device__ inline int64_t rows_of_grid()
{
    return (int64_t)gridDim.y * blockDim.y;
}

/* The rows first, first + step, ... that the thread has left, n at most `ahead`: f(raw, i) of each. */
template <class F, class G>
__device__ inline void few_rows(const F &f, const columns &a, int64_t first, int64_t step, int64_t c, G use)
{
    constexpr int AHEAD = F::ahead;
    typename F::raw raw[AHEAD];
    if (first + (AHEAD - 1) * step < a.rows) {
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            f.take(&raw[j], (first + j * step) * a.channels + c);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            use(raw[j], (first + j * step) * a.channels + c);
        return;
    }
#pragma unroll 1
    for (int64_t r = first; r < a.rows; r += step) {
        f.take(&raw[0], r * a.channels + c);
        use(raw[0], r * a.channels + c);
    }
}

/* Every element once. */
template <int V, class F>
__global__ void __launch_bounds__(THREADS) column_kernel(const __grid_constant__ columns a, const __grid_constant__ F f)
{
    const int64_t c = column_of_thread<V>(), step = rows_of_grid();
    if (c >= a.channels)
        return;
    typename F::state state = {};
    f.start(&state, c);
    for (int64_t r = row_of_thread(); r < a.rows; r += F::ahead * step)
        few_rows(f, a, r, step, c, [&](const typename F::raw &raw, int64_t i) { f.run(&state, raw, i); });
}

/* Sums over rows, in the arithmetic of the type for BURST rows, then in f64; part[k][block][channel] takes the sums of
 * a block. */
template <int V, class F>
__global__ void __launch_bounds__(THREADS, F::blocks)
    column_sum_kernel(const __grid_constant__ columns a, const __grid_constant__ F f, double *part)
{
    constexpr int BURST = 8, K = F::sums;
    static_assert(BURST % F::ahead == 0, "a burst is whole pieces of rows");
    __shared__ double shared[THREADS];
    const int64_t c = column_of_thread<V>(), step = rows_of_grid();
    const bool mine = c < a.channels;
    double total[K][V] = {};
    typename F::state state = {};
    if (mine)
        f.start(&state, c);
    for (int64_t r = row_of_thread(); mine && r < a.rows; r += BURST * step) {
        typename F::number sum[K][V] = {};
#pragma unroll 1
        for (int64_t p = r; p < least(a.rows, r + BURST * step); p += F::ahead * step)
            few_rows(f, a, p, step, c, [&](const typename F::raw &raw, int64_t i) { f.add(state, raw, i, sum); });
#pragma unroll
        for (int k = 0; k < K * V; k++)
            total[k / V][k % V] += sum[k / V][k % V];
    }
    const int at = (int)(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
    for (int k = 0; k < K * V; k++) {
        shared[at] = total[k / V][k % V];
        for (int half = (int)blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            if ((int)threadIdx.y < half)
                shared[at] += shared[at + half * (int)blockDim.x];
        }
        if (threadIdx.y == 0 && mine)
            part[((int64_t)(k / V) * gridDim.y + blockIdx.y) * a.channels + c + k % V] = shared[at];
        __syncthreads();
    }
}

/* The parts of a channel put together; f.finish(c, sums). There may be a thousand parts and few channels, so a block
 * has few channels and a row of threads for each part, up to FINISH_ROWS; rows are added in pairs, in an order that
 * depends on the number of parts alone. */
enum { FINISH_CHANNELS = 8, FINISH_ROWS = 128 };

/* Without the bound a build for a debugger may take more registers than a block of this size has. */
template <class F>
__global__ void __launch_bounds__(FINISH_CHANNELS *FINISH_ROWS)
    column_finish_kernel(int64_t channels, int parts, const double *part, const __grid_constant__ F f)
{
    __shared__ double shared[FINISH_ROWS][FINISH_CHANNELS];
    const int64_t c = (int64_t)blockIdx.x * FINISH_CHANNELS + threadIdx.x;
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    double total[F::sums];
    for (int k = 0; k < F::sums; k++) {
        double sum = 0;
        for (int p = y; p < parts && c < channels; p += (int)blockDim.y)
            sum += part[((int64_t)k * parts + p) * channels + c];
        shared[y][x] = sum;
        for (int half = (int)blockDim.y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (y < half)
                shared[y][x] += shared[y + half][x];
        }
        if (y == 0)
            total[k] = shared[0][x];
        __syncthreads();
    }
    if (y == 0 && c < channels)
        f.finish(c, total);
}

inline dim3 finish_block(int parts)
{
    unsigned rows = 1;
    while (rows < FINISH_ROWS && rows < (unsigned)parts)
        rows *= 2;
    return dim3(FINISH_CHANNELS, rows);
}

/* The argument of `make`: its type carries the number of channels in a pack. */
template <int V> struct width {
    static constexpr int value = V;
};

template <class T, class M> wf_status column_map(wf_ctx *ctx, const columns &a, M make)
{
    wf_cuda *own;
    if (a.rows == 0 || a.channels == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    const auto run = [&](auto w) {
        constexpr int V = decltype(w)::value;
        const auto f = make(w);
        const auto kernel = column_kernel<V, decltype(make(w))>;
        int fit;
        WF_TRY(fit_of(own, kernel, &fit));
        const column_grid g = columns_grid(own, a, V, 4, fit);
        return launch_named("column_kernel", own, kernel, g.grid, g.block, a, f);
    };
    constexpr int V = pack_size<T>;
    return a.vector && a.channels % V == 0 ? run(width<V>()) : run(width<1>());
}

template <class T, class M> wf_status column_sums(wf_ctx *ctx, const columns &a, M make)
{
    wf_cuda *own;
    if (a.channels == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    const auto run = [&](auto w) {
        constexpr int V = decltype(w)::value;
        const auto f = make(w);
        using F = decltype(make(w));
        const auto kernel = column_sum_kernel<V, F>;
        int fit;
        void *part;
        WF_TRY(fit_of(own, kernel, &fit));
        const column_grid g = columns_grid(own, a, V, 16, fit);
        WF_TRY(wf_cuda_workspace(own, (size_t)(F::sums * a.channels) * g.grid.y * sizeof(double), &part));
        WF_TRY(launch_named("column_sum_kernel", own, kernel, g.grid, g.block, a, f, static_cast<double *>(part)));
        const int parts = (int)g.grid.y;
        return launch(own, (column_finish_kernel<F>), dim3((unsigned)ceil_div(a.channels, FINISH_CHANNELS)),
                      finish_block(parts), a.channels, parts, static_cast<const double *>(part), f);
    };
    constexpr int V = pack_size<T>;
    return a.vector && a.channels % V == 0 ? run(width<V>()) : run(width<1>());
}

#endif
