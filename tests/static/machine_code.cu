/* Kernels whose machine code is known, by which tests/static/loads.sh checks what machine_code.c reads. */
struct alignas(16) four {
    float v[4];
};

/* Two loads of 16 bytes in flight together. */
extern "C" __global__ void two_at_a_time(const four *a, const four *b, four *c)
{
    const four x = a[threadIdx.x], y = b[threadIdx.x];
    four z;
    for (int k = 0; k < 4; k++)
        z.v[k] = x.v[k] * y.v[k];
    c[threadIdx.x] = z;
}

/* The second load has to know what the first one brought. */
extern "C" __global__ void one_after_another(const four *a, four *c)
{
    const four x = a[threadIdx.x];
    c[threadIdx.x] = a[(int)x.v[0]];
}

/* A 64-bit division is a call. */
extern "C" __global__ void divides(const long long *a, long long *c)
{
    c[threadIdx.x] = a[threadIdx.x] / a[threadIdx.x + 1];
}
