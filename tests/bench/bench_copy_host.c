/* The copy that the benchmark compares with: memcpy by all threads. */
#include "tests/bench/bench_copy.h"

#include <string.h>

wf_status bench_copy_host(wf_ctx *ctx, void *to, const void *from, size_t bytes)
{
    const int threads = wf_ctx_threads(ctx);
    const size_t part = (bytes / (size_t)threads + 63) / 64 * 64;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < threads; i++) {
        const size_t at = (size_t)i * part;
        if (at < bytes)
            memcpy((char *)to + at, (const char *)from + at, bytes - at < part ? bytes - at : part);
    }
    return WF_OK;
}
