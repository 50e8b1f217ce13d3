/* Elementwise kernels: y[i] = f(i, inputs at i), in packs of 16 bytes where every array allows it.
 *
 * A map is a struct with a type `state`, which a thread keeps; `begin(state)`, called once a thread; and
 * `operator()(state, i, v)`: the value of element i from the inputs v[0..N), N at most 3. y may be one of the inputs.
 */
#ifndef WF_CORE_CUDA_MAP_IMPL_H
#define WF_CORE_CUDA_MAP_IMPL_H

#include "core/cuda/kernel_impl.h"

template <class T, int N> struct map_arrays {
    int64_t n;
    bool vector;
    const T *in[N ? N : 1];
    T *out;
};

template <int V, class T, int N> struct map_packs {
    wide<T> v[N ? N : 1][V];

    __device__ void take(const map_arrays<T, N> &a, int64_t i)
    {
#pragma unroll
        for (int j = 0; j < N; j++)
            load<V>(a.in[j], i, v[j]);
    }

    template <class F> __device__ void put(const map_arrays<T, N> &a, const F &f, typename F::state *state, int64_t i)
    {
        wide<T> y[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            wide<T> element[3] = {};
#pragma unroll
            for (int j = 0; j < N; j++)
                element[j] = v[j][k];
            y[k] = f(state, i + k, element);
        }
        store<V>(y, a.out, i);
    }
};

/* Elements [i, n) by steps; two packs are on their way before the first is used. */
template <int V, class T, int N, class F>
__device__ void map_run(const map_arrays<T, N> &a, const F &f, typename F::state *state, int64_t i, int64_t n,
                        int64_t step)
{
    for (; V > 1 && i + step + V <= n; i += 2 * step) {
        map_packs<V, T, N> first, second;
        first.take(a, i);
        second.take(a, i + step);
        first.put(a, f, state, i);
        second.put(a, f, state, i + step);
    }
    for (; i + V <= n; i += step) {
        map_packs<V, T, N> one;
        one.take(a, i);
        one.put(a, f, state, i);
    }
}

template <class T, int N, class F>
__global__ void map_kernel(const __grid_constant__ map_arrays<T, N> a, const __grid_constant__ F f)
{
    constexpr int V = pack_size<T>;
    const int64_t thread = thread_of_grid(), threads = threads_of_grid();
    typename F::state state = {};
    f.begin(&state);
    if (a.vector)
        map_run<V>(a, f, &state, thread * V, a.n, threads * V);
    map_run<1>(a, f, &state, (a.vector ? a.n / V * V : 0) + thread, a.n, threads);
}

/* inputs: the arrays, of y's type and count. */
template <class T, int N, class F>
wf_status map(wf_ctx *ctx, const wf_array *const (&inputs)[N ? N : 1], const wf_array *y, F f)
{
    wf_cuda *own;
    map_arrays<T, N> a = {};
    a.n = wf_array_count(y);
    a.out = out_of<T>(y);
    a.vector = aligned(a.out);
    for (int j = 0; j < N; j++) {
        a.in[j] = in_of<T>(inputs[j]);
        a.vector = a.vector && aligned(a.in[j]);
    }
    if (a.n == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch_over(own, (map_kernel<T, N, F>), a.vector ? ceil_div(a.n, pack_size<T>) : a.n, a, f);
}

#endif
