/* The parts of which every kernel is made: element types and their arithmetic, 16-byte packs, division by constants,
 * launches.
 *
 * Structs of arguments are `const __grid_constant__`, so that they stay in constant memory: one that a thread writes
 * to, or takes an element of by an index, would be copied to the thread's stack first. What a thread changes is a state
 * of its own. tests/static/stack.sh holds all kernels to that.
 *
 * C++, for the .cu files alone. A kernel is launched through `launch`, so that no source needs more than the language
 * of C++ and the names of the CUDA runtime.
 */
#ifndef WF_CORE_CUDA_KERNEL_IMPL_H
#define WF_CORE_CUDA_KERNEL_IMPL_H

#include "core/cuda/cuda_impl.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#define THREADS 256 /* of every block */

/* Arithmetic: f32 for f32, bf16 and f16, f64 for f64. */
template <class T> struct arithmetic {
    using type = float;
};
template <> struct arithmetic<double> {
    using type = double;
};
template <class T> using wide = typename arithmetic<T>::type;

/* What a thread keeps of a kernel that keeps nothing. */
struct nothing {
};

/* Elements of 16 bytes. */
template <class T> constexpr int pack_size = 16 / (int)sizeof(T);

__device__ inline float widen(float v)
{
    return v;
}
__device__ inline double widen(double v)
{
    return v;
}
__device__ inline float widen(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}
__device__ inline float widen(__half v)
{
    return __half2float(v);
}

__device__ inline void narrow(float v, float *to)
{
    *to = v;
}
__device__ inline void narrow(double v, double *to)
{
    *to = v;
}
__device__ inline void narrow(float v, __nv_bfloat16 *to)
{
    *to = __float2bfloat16_rn(v);
}
__device__ inline void narrow(float v, __half *to)
{
    *to = __float2half_rn(v);
}

template <class T, int V> struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) pack {
    T v[V];
};

template <int V, class T> __device__ inline pack<T, V> load_raw(const T *from, int64_t i)
{
    return *reinterpret_cast<const pack<T, V> *>(from + i);
}

template <int V, class T> __device__ inline void load(const T *from, int64_t i, wide<T> *to)
{
    const pack<T, V> raw = load_raw<V>(from, i);
#pragma unroll
    for (int k = 0; k < V; k++)
        to[k] = widen(raw.v[k]);
}

template <int V, class T> __device__ inline void store(const wide<T> *from, T *to, int64_t i)
{
    pack<T, V> raw;
#pragma unroll
    for (int k = 0; k < V; k++)
        narrow(from[k], &raw.v[k]);
    *reinterpret_cast<pack<T, V> *>(to + i) = raw;
}

/* One element of a float array whose type is known at run time: for what is read once a thread. */
struct any_float {
    const void *data; /* NULL: absent */
    wf_dtype dtype;

    __device__ double at(int64_t i, double otherwise) const
    {
        if (!data)
            return otherwise;
        if (dtype == WF_F32)
            return static_cast<const float *>(data)[i];
        if (dtype == WF_F64)
            return static_cast<const double *>(data)[i];
        return dtype == WF_BF16 ? widen(static_cast<const __nv_bfloat16 *>(data)[i])
                                : widen(static_cast<const __half *>(data)[i]);
    }
};

inline any_float any_of(const wf_array *a)
{
    return a ? any_float{a->data, a->dtype} : any_float{nullptr, WF_F32};
}

/* The arithmetic of a float array that is written once a channel. */
struct any_output {
    void *data; /* NULL: absent */
    wf_dtype dtype;

    __device__ void put(int64_t i, double v) const
    {
        if (!data)
            return;
        if (dtype == WF_F32)
            static_cast<float *>(data)[i] = (float)v;
        else if (dtype == WF_F64)
            static_cast<double *>(data)[i] = v;
        else if (dtype == WF_BF16)
            narrow((float)v, static_cast<__nv_bfloat16 *>(data) + i);
        else
            narrow((float)v, static_cast<__half *>(data) + i);
    }
};

inline any_output output_of(const wf_array *a)
{
    return a ? any_output{a->data, a->dtype} : any_output{nullptr, WF_F32};
}

/* n / d for 0 <= n < 2^63 by one multiplication: m = floor(2^(63+l) / d) + 1 with l = ceil(log2 d) fits 64 bits, and
 * its error, at most d / 2^(63+l), is too small to reach the next whole number. */
struct divider {
    int64_t d;
    uint64_t m;
    int shift;

    __device__ int64_t of(int64_t n) const
    {
        return d == 1 ? n : (int64_t)(__umul64hi((uint64_t)n, m) >> shift);
    }
    /* n / d; n becomes the remainder. */
    __device__ int64_t split(int64_t *n) const
    {
        const int64_t q = of(*n);
        *n -= q * d;
        return q;
    }
};

inline divider divide_by(int64_t d)
{
    int l = 0;
    while (l < 62 && ((int64_t)1 << l) < d)
        l++;
    if (d <= 1)
        return divider{1, 0, 0};
    return divider{d, (uint64_t)((((unsigned __int128)1) << (63 + l)) / (uint64_t)d) + 1, l - 1};
}

inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

inline int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

__device__ inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

__device__ inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Blocks for `threads` threads, at most `fit` a multiprocessor: each then takes several turns. */
inline unsigned blocks_for(const wf_cuda *own, int64_t threads, int fit = 8)
{
    const int64_t blocks = at_most(ceil_div(threads, THREADS), (int64_t)own->processors * fit);
    return (unsigned)(blocks > 0 ? blocks : 1);
}

inline bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class... P, class... A>
wf_status launch_named(const char *name, wf_cuda *own, void (*kernel)(P...), dim3 grid, dim3 block, A... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = own->stream;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
    return error == cudaSuccess ? WF_OK : wf_cuda_error(error, name, __FILE__, __LINE__);
}
#define launch(own, kernel, ...) launch_named(#kernel, own, kernel, __VA_ARGS__)

template <class... P> wf_status fit_of(wf_cuda *own, void (*kernel)(P...), int *blocks)
{
    return wf_cuda_fit(own, reinterpret_cast<const void *>(kernel), THREADS, blocks);
}

/* The kernel with a thread for each of `threads` turns, in as many blocks as the device holds at a time: more would be
 * a last wave that leaves most multiprocessors idle. */
template <class... P, class... A>
wf_status launch_over_named(const char *name, wf_cuda *own, void (*kernel)(P...), int64_t threads, A... args)
{
    int fit;
    WF_TRY(fit_of(own, kernel, &fit));
    return launch_named(name, own, kernel, blocks_for(own, threads, fit), THREADS, args...);
}
#define launch_over(own, kernel, ...) launch_over_named(#kernel, own, kernel, __VA_ARGS__)

__device__ inline int64_t thread_of_grid()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline int64_t threads_of_grid()
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* The sum over the threads of a block, in a fixed order, in thread 0. For blocks of THREADS threads in one dimension.
 */
__device__ inline double block_sum(double v)
{
    __shared__ double part[THREADS];
    part[threadIdx.x] = v;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    const double sum = part[0];
    __syncthreads();
    return sum;
}

/* f(T()) for the type of the array. */
template <class F> wf_status of_float(wf_dtype dtype, F f)
{
    switch (dtype) {
    case WF_F32:
        return f(float());
    case WF_F64:
        return f(double());
    case WF_BF16:
        return f(__nv_bfloat16());
    case WF_F16:
        return f(__half());
    default:
        WF_FAIL(WF_ERR_UNSUPPORTED, "device \"cuda\" computes this for float types, not for %s", wf_dtype_name(dtype));
    }
}

template <class T> const T *in_of(const wf_array *a)
{
    return a ? static_cast<const T *>(a->data) : nullptr;
}

template <class T> T *out_of(const wf_array *a)
{
    return static_cast<T *>(a->data);
}

#endif
