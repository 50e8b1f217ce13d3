#include "core/cuda/cuda_impl.h"

static const wf_kernels table = {
    .name = "cuda",
    .host = false,
    .device_count = wf_cuda_device_count,
    .device_choose = wf_cuda_device_choose,
    .device_identity = wf_cuda_device_identity,
    .stream_new = wf_cuda_stream_new,
    .stream_free = wf_cuda_stream_free,
    .stream_use = wf_cuda_stream_use,
    .stream_finish = wf_cuda_stream_finish,
    .event_new = wf_cuda_event_new,
    .event_free = wf_cuda_event_free,
    .event_record = wf_cuda_event_record,
    .event_wait = wf_cuda_event_wait,
    .event_done = wf_cuda_event_done,
    .pinned_alloc = wf_cuda_pinned_alloc,
    .pinned_release = wf_cuda_pinned_release,
    .to_device_begin = wf_cuda_to_device_begin,
    .to_host_begin = wf_cuda_to_host_begin,
    .share = wf_cuda_share,
    .map = wf_cuda_map,
    .unmap = wf_cuda_unmap,
    .alloc = wf_cuda_alloc,
    .release = wf_cuda_release,
    .to_device = wf_cuda_to_device,
    .to_host = wf_cuda_to_host,
    .conv_forward = wf_cuda_conv_forward,
    .conv_backward_data = wf_cuda_conv_backward_data,
    .conv_backward_filter = wf_cuda_conv_backward_filter,
    .matmul = wf_cuda_matmul,
    .range_push = wf_cuda_range_push,
    .range_pop = wf_cuda_range_pop,
    .shutdown = wf_cuda_shutdown,
};

const wf_kernels *wf_kernels_cuda(void)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        WF_FAIL_NULL(WF_ERR_STATE, "device \"cuda\": %s",
                     error != cudaSuccess ? cudaGetErrorString(error) : "this machine has no GPU");
    return &table;
}
