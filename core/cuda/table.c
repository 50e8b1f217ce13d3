/* The table of the device `cuda`: which function of this folder fills each slot. And its end, which frees what the
 * files of this folder keep for a context. */
#include "core/cuda/cuda_impl.h"

void wf_cuda_shutdown(wf_ctx *ctx)
{
    wf_cuda *const own = ctx->device_own;
    if (!own)
        return;
    /* The program may have chosen another device since. */
    cudaSetDevice(own->ordinal);
    /* Plans that kernels still use must not be freed. */
    cudaDeviceSynchronize();
    wf_cuda_dnn_free(own);
    wf_cuda_device_close(ctx);
}

static const wf_kernels table = {
    .name = "cuda",
    .host = false,
    .device_count = wf_cuda_device_count,
    .device_choose = wf_cuda_device_choose,
    .device_identity = wf_cuda_device_identity,
    .device_of = wf_cuda_device_of,
    .stream_new = wf_cuda_stream_new,
    .stream_free = wf_cuda_stream_free,
    .stream_use = wf_cuda_stream_use,
    .stream_finish = wf_cuda_stream_finish,
    .event_new = wf_cuda_event_new,
    .event_free = wf_cuda_event_free,
    .event_record = wf_cuda_event_record,
    .event_wait = wf_cuda_event_wait,
    .event_done = wf_cuda_event_done,
    .capture_begin = wf_cuda_capture_begin,
    .capture_end = wf_cuda_capture_end,
    .graph_launch = wf_cuda_graph_launch,
    .graph_free = wf_cuda_graph_free,
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
    .copy = wf_cuda_copy,
    .fill = wf_cuda_fill,
    .random = wf_cuda_random,
    .conv_forward = wf_cuda_conv_forward,
    .conv_backward_data = wf_cuda_conv_backward_data,
    .conv_backward_filter = wf_cuda_conv_backward_filter,
    .bias_backward = wf_cuda_bias_backward,
    .epilogue_backward = wf_cuda_epilogue_backward,
    .matmul = wf_cuda_matmul,
    .matmul_stack = wf_cuda_matmul_stack,
    .pool_forward = wf_cuda_pool_forward,
    .pool_backward = wf_cuda_pool_backward,
    .pool_places = wf_cuda_pool_places,
    .unpool_index = wf_cuda_unpool_index,
    .pick_pixels = wf_cuda_pick_pixels,
    .resample_forward = wf_cuda_resample_forward,
    .resample_backward = wf_cuda_resample_backward,
    .taps = wf_cuda_taps,
    .norm_stats = wf_cuda_norm_stats,
    .norm_part = wf_cuda_norm_part,
    .norm_merge = wf_cuda_norm_merge,
    .norm_forward = wf_cuda_norm_forward,
    .norm_backward_stats = wf_cuda_norm_backward_stats,
    .norm_backward = wf_cuda_norm_backward,
    .norm_finish = wf_cuda_norm_finish,
    .group_norm_stats = wf_cuda_group_norm_stats,
    .group_norm_merge = wf_cuda_group_norm_merge,
    .group_norm_forward = wf_cuda_group_norm_forward,
    .group_norm_backward_stats = wf_cuda_group_norm_backward_stats,
    .group_norm_backward = wf_cuda_group_norm_backward,
    .act_forward = wf_cuda_act_forward,
    .act_backward = wf_cuda_act_backward,
    .binary = wf_cuda_binary,
    .fold = wf_cuda_fold,
    .dropout = wf_cuda_dropout,
    .epilogue_forward = wf_cuda_epilogue_forward,
    .sum = wf_cuda_sum,
    .sum_squares = wf_cuda_sum_squares,
    .softmax_forward = wf_cuda_softmax_forward,
    .softmax_backward = wf_cuda_softmax_backward,
    .attention_forward = wf_cuda_attention_forward,
    .attention_backward = wf_cuda_attention_backward,
    .neighbourhood_forward = wf_cuda_neighbourhood_forward,
    .neighbourhood_backward = wf_cuda_neighbourhood_backward,
    .gates_forward = wf_cuda_gates_forward,
    .gates_backward = wf_cuda_gates_backward,
    .row_most = wf_cuda_row_most,
    .row_most_backward = wf_cuda_row_most_backward,
    .take_forward = wf_cuda_take_forward,
    .take_backward = wf_cuda_take_backward,
    .loss_forward = wf_cuda_loss_forward,
    .loss_backward = wf_cuda_loss_backward,
    .nll_forward = wf_cuda_nll_forward,
    .nll_backward = wf_cuda_nll_backward,
    .entropy_forward = wf_cuda_entropy_forward,
    .entropy_backward = wf_cuda_entropy_backward,
    .count_correct = wf_cuda_count_correct,
    .label_place = wf_cuda_label_place,
    .count_labels = wf_cuda_count_labels,
    .optim_update = wf_cuda_optim_update,
    .step_verdict = wf_cuda_step_verdict,
    .loss_scale = wf_cuda_loss_scale,
    .clip_scale = wf_cuda_clip_scale,
    .range_push = wf_cuda_range_push,
    .range_pop = wf_cuda_range_pop,
    .shutdown = wf_cuda_shutdown,
};

/* Asked before a device is chosen, so a machine without a GPU is no error here. */
bool wf_cuda_found(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

const wf_kernels *wf_kernels_cuda(void)
{
    int count = 0, current = 0;
    struct cudaDeviceProp device;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        WF_FAIL_NULL(WF_ERR_STATE, "device \"cuda\": %s",
                     error != cudaSuccess ? cudaGetErrorString(error) : "this machine has no GPU");
    /* A device too old for the kernels is refused here, where the message can name it, and not at the first launch. */
    if (cudaGetDevice(&current) == cudaSuccess && cudaGetDeviceProperties(&device, current) == cudaSuccess &&
        wf_cuda_capable(&device) != WF_OK)
        return wf_error_null();
    return &table;
}
