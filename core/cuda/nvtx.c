/* Ranges in the profiler's time line. Without a profiler a call is a test of a pointer. */
#include "core/cuda/cuda_impl.h"

#include <nvtx3/nvToolsExt.h>

void wf_cuda_range_push(wf_ctx *ctx, const char *name)
{
    nvtxRangePushA(name);
}

void wf_cuda_range_pop(wf_ctx *ctx)
{
    nvtxRangePop();
}
