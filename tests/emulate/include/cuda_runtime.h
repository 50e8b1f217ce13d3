/* The language of CUDA as far as core/cuda speaks it, for a C++ compiler of the host. Each thread of a block runs until
 * a barrier or the exchange of a warp, then the next one; see tests/emulate/device.cpp. */
#ifndef WF_TESTS_EMULATE_CUDA_RUNTIME_H
#define WF_TESTS_EMULATE_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __noinline__ __attribute__((noinline))
/* Blocks run one after another. */
#define __shared__ static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};

/* The thread that runs. */
struct emulated_place {
    dim3 thread, block;
};
extern "C" {
extern emulated_place *emulated_now;
extern dim3 emulated_block_dim, emulated_grid_dim;
void emulated_barrier(void);
/* Hands in 8 bytes and returns those of another lane of the warp. */
uint64_t emulated_shuffle(uint64_t mine, int lane_mask);
}
#define threadIdx (emulated_now->thread)
#define blockIdx  (emulated_now->block)
#define blockDim  emulated_block_dim
#define gridDim   emulated_grid_dim

inline void __syncthreads()
{
    emulated_barrier();
}

template <class T> T __shfl_xor_sync(unsigned, T v, int lane_mask)
{
    uint64_t bits = 0;
    static_assert(sizeof v <= sizeof bits, "a shuffle moves at most 8 bytes");
    memcpy(&bits, &v, sizeof v);
    bits = emulated_shuffle(bits, lane_mask);
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The value of a lane that may be another one for each. */
template <class T> T __shfl_sync(unsigned all, T v, int from)
{
    return __shfl_xor_sync(all, v, (int)(threadIdx.x % 32) ^ from);
}

inline int32_t atomicCAS(int32_t *at, int32_t expected, int32_t wanted)
{
    const int32_t old = *at;
    if (old == expected)
        *at = wanted;
    return old;
}

inline int32_t atomicMax(int32_t *at, int32_t v)
{
    const int32_t old = *at;
    if (old < v)
        *at = v;
    return old;
}

inline void __threadfence_system()
{
}

inline uint64_t __umul64hi(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

/* Rounded one by one: volatile keeps a compiler from fusing them. */
inline double __dadd_rn(double a, double b)
{
    volatile double sum = a + b;
    return sum;
}

inline double __dsub_rn(double a, double b)
{
    return __dadd_rn(a, -b);
}

inline double __dmul_rn(double a, double b)
{
    volatile double product = a * b;
    return product;
}

inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

inline float __double2float_rz(double d)
{
    const float f = (float)d;
    return fabs((double)f) > fabs(d) ? nextafterf(f, 0) : f;
}

inline void sincospif(float x, float *s, float *c)
{
    *s = (float)sin(M_PI * (double)x);
    *c = (float)cos(M_PI * (double)x);
}

inline void sincospi(double x, double *s, double *c)
{
    *s = sin(M_PI * x);
    *c = cos(M_PI * x);
}

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

#define __grid_constant__
#define __launch_bounds__(...)

/* A kernel with its arguments. */
struct emulated_work {
    virtual void thread() const = 0;
    virtual ~emulated_work() = default;
};
template <class F> struct emulated_kernel : emulated_work {
    F f;
    explicit emulated_kernel(F g) : f(g)
    {
    }
    void thread() const override
    {
        f();
    }
};
cudaError_t emulated_launch(const cudaLaunchConfig_t &config, emulated_work *work);
/* Ends the program if one of the words is the address of host memory, which a kernel cannot read. */
void emulated_check_argument(const void *argument, size_t bytes);

/* What lies between the members of a struct may be left over from a pointer. */
template <class P> void emulated_check(P argument)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
    emulated_check_argument(&argument, sizeof argument);
#endif
#endif
}

template <class... P> cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), P... args)
{
    (emulated_check(args), ...);
    const auto run = [=] { kernel(args...); };
    return emulated_launch(*config, new emulated_kernel<decltype(run)>(run));
}

#endif
