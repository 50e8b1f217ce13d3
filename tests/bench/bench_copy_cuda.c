/* The copy that the benchmark compares with, where there is a GPU. */
#include "tests/bench/bench_copy.h"

#include <cuda_runtime_api.h>

wf_status bench_copy(wf_ctx *ctx, wf_stream *stream, void *to, const void *from, size_t bytes)
{
    if (ctx->k->host)
        return bench_copy_host(ctx, to, from, bytes);
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)(void *)stream);
    WF_CHECK(error == cudaSuccess, WF_ERR_STATE, "a copy of %zu bytes: %s", bytes, cudaGetErrorString(error));
    return WF_OK;
}
