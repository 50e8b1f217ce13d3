/* Sums over all elements of arrays, in a fixed order: a partial sum in f64 for each block, then the sum of those.
 *
 * A term is a struct with `operator()(v)`, what an element adds from its inputs v[0..N), and `finish(sum)`, which one
 * thread calls at the end.
 */
#ifndef WF_CORE_CUDA_REDUCE_IMPL_H
#define WF_CORE_CUDA_REDUCE_IMPL_H

#include "core/cuda/kernel_impl.h"

template <class F> __global__ void finish_kernel(const double *part, int parts, const __grid_constant__ F f)
{
    double sum = 0;
    for (int i = (int)threadIdx.x; i < parts; i += THREADS)
        sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        f.finish(sum);
}

template <class T, int N> struct reduce_arrays {
    int64_t n;
    bool vector;
    const T *in[N];
};

template <int V, class T, int N, class F>
__device__ double reduce_run(const reduce_arrays<T, N> &a, const F &f, int64_t i, int64_t n, int64_t step)
{
    double sum = 0;
#pragma unroll 2
    for (; i + V <= n; i += step) {
        wide<T> v[N][V];
#pragma unroll
        for (int j = 0; j < N; j++)
            load<V>(a.in[j], i, v[j]);
#pragma unroll
        for (int k = 0; k < V; k++) {
            wide<T> element[2] = {v[0][k], v[N - 1][k]};
            sum += f(element);
        }
    }
    return sum;
}

template <class T, int N, class F>
__global__ void reduce_kernel(const __grid_constant__ reduce_arrays<T, N> a, const __grid_constant__ F f, double *part)
{
    constexpr int V = pack_size<T>;
    const int64_t thread = thread_of_grid(), threads = threads_of_grid();
    double sum = a.vector ? reduce_run<V>(a, f, thread * V, a.n, threads * V) : 0;
    sum += reduce_run<1>(a, f, (a.vector ? a.n / V * V : 0) + thread, a.n, threads);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

template <class T, int N, class F> wf_status reduce(wf_ctx *ctx, const wf_array *const (&inputs)[N], F f)
{
    wf_cuda *own;
    void *part;
    reduce_arrays<T, N> a = {};
    a.n = wf_array_count(inputs[0]);
    a.vector = true;
    for (int j = 0; j < N; j++) {
        a.in[j] = in_of<T>(inputs[j]);
        a.vector = a.vector && aligned(a.in[j]);
    }
    WF_TRY(wf_cuda_here(ctx, &own));
    const auto kernel = reduce_kernel<T, N, F>;
    int fit;
    WF_TRY(fit_of(own, kernel, &fit));
    const unsigned blocks = blocks_for(own, a.vector ? ceil_div(a.n, pack_size<T>) : a.n, fit);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(launch_named("reduce_kernel", own, kernel, blocks, THREADS, a, f, static_cast<double *>(part)));
    return launch(own, (finish_kernel<F>), 1, THREADS, static_cast<const double *>(part), (int)blocks, f);
}

#endif
