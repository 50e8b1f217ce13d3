/* As bench_copy_cuda.c, for builds without CUDA. */
#include "tests/bench/bench_copy.h"

wf_status bench_copy(wf_ctx *ctx, wf_stream *stream, void *to, const void *from, size_t bytes)
{
    return bench_copy_host(ctx, to, from, bytes);
}
