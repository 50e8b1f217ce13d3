/* Kernels over rows of neighbouring elements: a group of 1 to 32 lanes of a warp takes a row. */
#ifndef WF_CORE_CUDA_ROWS_IMPL_H
#define WF_CORE_CUDA_ROWS_IMPL_H

#include "core/cuda/kernel_impl.h"

struct row_set {
    int64_t rows, c;
    int group; /* lanes of a row: a power of two */
};

inline row_set rows_by(int64_t rows, int64_t c)
{
    int group = 1;
    while (group < 32 && group < c)
        group *= 2;
    return row_set{rows, c, group};
}

inline row_set rows_of(const wf_array *a)
{
    int64_t n, c, pixels;
    wf_array_ncp(a, &n, &c, &pixels);
    return rows_by(n * pixels, c);
}

/* f.run(state, a, row, lane) for every row, between f.begin(state) and f.end(state), by all lanes of a warp together:
 * lanes without a row get row -1, since they too take part in the exchange of a warp. */
template <class F> __global__ void row_kernel(const __grid_constant__ row_set a, const __grid_constant__ F f)
{
    typename F::state state = {};
    const int lane = (int)threadIdx.x % a.group;
    const int64_t step = threads_of_grid() / a.group;
    f.begin(&state);
    for (int64_t first = (thread_of_grid() - (int)threadIdx.x % 32) / a.group; first < a.rows; first += step) {
        const int64_t row = first + (int)threadIdx.x % 32 / a.group;
        f.run(&state, a, row < a.rows ? row : -1, lane);
    }
    f.end(&state);
}

template <class F> wf_status row_map(wf_ctx *ctx, const row_set &a, F f)
{
    wf_cuda *own;
    if (a.rows == 0 || a.c == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch_over(own, row_kernel<F>, a.rows * a.group, a, f);
}

template <class W> __device__ inline W group_sum(W v, int group)
{
    for (int m = group / 2; m > 0; m /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* NaN wins. */
template <class W> __device__ inline W group_most(W v, int group)
{
    for (int m = group / 2; m > 0; m /= 2) {
        const W other = __shfl_xor_sync(0xffffffffu, v, m);
        v = other > v || other != other ? other : v;
    }
    return v;
}

/* The largest of c elements, for all lanes of their group. */
template <class T> __device__ inline wide<T> row_most(const T *x, int64_t c, int lane, int group)
{
    wide<T> most = -(wide<T>)INFINITY;
    for (int64_t j = lane; j < c; j += group) {
        const wide<T> v = widen(x[j]);
        most = v > most || v != v ? v : most;
    }
    return group_most(most, group);
}

#endif
