/* The inside of the `cuda` filling: its state in a context, errors with the call and the device, and its slots.
 *
 * Everything is put on the stream in use and returns before it is done, but to_host. A slot allocates nothing after
 * the first calls of its kind, waits for nothing and reads no value back, so that a step can be captured in a CUDA
 * graph.
 */
#ifndef WF_CORE_CUDA_CUDA_IMPL_H
#define WF_CORE_CUDA_CUDA_IMPL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/context_author.h"

#include <cuda_runtime_api.h>

/* Numbers that kernels read, for errors. */
typedef enum cuda_label_kind { CUDA_LABEL, CUDA_INDEX, CUDA_PLACE } cuda_label_kind;

/* A label, an index of rows or a place in an image that is out of range. A kernel that meets one claims the record
 * (device memory) and fills it in (host memory that the device sees); the next to_host finds it. */
typedef struct cuda_label {
    int64_t label, row, classes;
    cuda_label_kind kind;
    int32_t filled;
} cuda_label;

/* Workspace of one stream, grown to the largest size asked for. */
typedef struct cuda_workspace {
    cudaStream_t stream;
    void *data;
    size_t bytes;
} cuda_workspace;

/* How many blocks of a kernel a multiprocessor holds. */
typedef struct cuda_fit {
    const void *kernel; /* NULL: a free entry */
    int threads, blocks;
} cuda_fit;

#define CUDA_STREAMS     16
#define CUDA_FITS        1024 /* the library has a few hundred kernels */
#define CUDA_STAGES      2
#define CUDA_STAGE_BYTES ((size_t)4 << 20)
#define CUDA_DEVICE_NAME 96

typedef struct wf_cuda_dnn wf_cuda_dnn; /* cuDNN and cuBLASLt: handles and caches of plans */

/* ctx->device_own; made by the first call that needs it. */
typedef struct wf_cuda {
    wf_ctx *ctx;
    int ordinal, processors; /* the device and its number of multiprocessors */
    char name[CUDA_DEVICE_NAME];
    cudaStream_t own, stream; /* the context's own stream; the one in use */
    bool capturing;           /* the context's own */
    cuda_workspace workspace[CUDA_STREAMS];
    cuda_fit fit[CUDA_FITS];                   /* by kernel; see wf_cuda_fit */
    void *stage[CUDA_STAGES];                  /* page-locked, for copies from and to plain memory */
    cudaEvent_t staged[CUDA_STAGES], finished; /* of a stream that the host waits for */
    cuda_label *label;                         /* page-locked, seen by the device under the same address */
    int32_t *claim;                            /* device memory: 0 while the record is free */
    wf_cuda_dnn *dnn;                          /* NULL until the first convolution or product */
} wf_cuda;

/* The state of this context, made if need be, with its device made the thread's current one. */
wf_status wf_cuda_here(wf_ctx *ctx, wf_cuda **own);

/* Frees what wf_cuda_here has made, and not own->dnn; nothing made is fine. */
void wf_cuda_device_close(wf_ctx *ctx);

/* WF_ERR_STATE while a step is captured: `what` would have to be done now. */
wf_status wf_cuda_not_capturing(const wf_cuda *own, const char *what);

/* How many blocks of so many threads of the kernel a multiprocessor holds at a time, at least 1. CUDA is asked once for
 * each kernel. */
wf_status wf_cuda_fit(wf_cuda *own, const void *kernel, int threads, int *blocks);

/* Few bytes of the host to the device, as arguments of kernels: the host waits for nothing. */
#define CUDA_INLINE_BYTES ((size_t)2048)
wf_status wf_cuda_put(wf_cuda *own, void *device, const void *host, size_t bytes);

/* At least `bytes` of device memory, 256-byte aligned, that this slot may use until it returns: work of later slots
 * on the same stream comes after it. A stream has one block, so a slot asks once, for all that it needs: a second call
 * hands out the same bytes. Grows in the first steps alone. */
wf_status wf_cuda_workspace(wf_cuda *own, size_t bytes, void **data);

/* Until the event, or all work put on the stream, is done, or never will be: it may be behind kernels that wait for
 * other ranks. */
wf_status wf_cuda_wait(wf_cuda *own, cudaEvent_t event);
wf_status wf_cuda_wait_stream(wf_cuda *own, cudaStream_t stream);

/* "cudaMalloc(&p, 64) on device 0 (NVIDIA H200): out of memory". */
wf_status wf_cuda_error(cudaError_t error, const char *call, const char *file, int line);
#define TRY_CUDA(call)                                                                                                 \
    do {                                                                                                               \
        const cudaError_t try_cuda_ = (call);                                                                          \
        if (try_cuda_ != cudaSuccess)                                                                                  \
            return wf_cuda_error(try_cuda_, #call, __FILE__, __LINE__);                                                \
    } while (0)

/* Fails unless the kernels run on the device: bf16 needs compute capability 8.0. */
#define CUDA_LEAST_MAJOR 8
wf_status wf_cuda_capable(const struct cudaDeviceProp *device);

/* Frees own->dnn and what hangs on it; NULL is fine. */
void wf_cuda_dnn_free(wf_cuda *own);

/* y = epilogue(y + bias), each of which may be NULL; and convolutions by their definition, of arrays that are not
 * empty.
 */
wf_status wf_cuda_bias_epilogue(wf_ctx *ctx, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y);
wf_status wf_cuda_direct_forward(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                                 const wf_array *y);
wf_status wf_cuda_direct_data(wf_cuda *own, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                              const wf_array *dx);
wf_status wf_cuda_direct_filter(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                const wf_array *dw, bool accumulate);

/* The slots. */
wf_device_count_fn wf_cuda_device_count;
wf_device_choose_fn wf_cuda_device_choose;
wf_device_identity_fn wf_cuda_device_identity;
wf_device_of_fn wf_cuda_device_of;
wf_stream_new_fn wf_cuda_stream_new;
wf_stream_free_fn wf_cuda_stream_free;
wf_stream_fn wf_cuda_stream_use, wf_cuda_stream_finish;
wf_event_new_fn wf_cuda_event_new;
wf_event_free_fn wf_cuda_event_free;
wf_event_stream_fn wf_cuda_event_record, wf_cuda_event_wait;
wf_event_done_fn wf_cuda_event_done;
wf_capture_begin_fn wf_cuda_capture_begin;
wf_capture_end_fn wf_cuda_capture_end;
wf_graph_launch_fn wf_cuda_graph_launch;
wf_graph_free_fn wf_cuda_graph_free;
wf_alloc_fn wf_cuda_pinned_alloc;
wf_release_fn wf_cuda_pinned_release;
wf_transfer_begin_fn wf_cuda_to_device_begin, wf_cuda_to_host_begin;
wf_share_fn wf_cuda_share;
wf_map_fn wf_cuda_map;
wf_unmap_fn wf_cuda_unmap;
wf_alloc_fn wf_cuda_alloc;
wf_release_fn wf_cuda_release;
wf_transfer_fn wf_cuda_to_device, wf_cuda_to_host;
wf_copy_fn wf_cuda_copy;
wf_fill_fn wf_cuda_fill;
wf_random_fn wf_cuda_random;
wf_conv_fn wf_cuda_conv_forward, wf_cuda_conv_backward_data, wf_cuda_conv_backward_filter;
wf_bias_backward_fn wf_cuda_bias_backward;
wf_matmul_fn wf_cuda_matmul;
wf_matmul_stack_fn wf_cuda_matmul_stack;
wf_pool_fn wf_cuda_pool_forward, wf_cuda_pool_backward;
wf_places_fn wf_cuda_pool_places;
wf_unpool_fn wf_cuda_unpool_index;
wf_pick_pixels_fn wf_cuda_pick_pixels;
wf_resample_fn wf_cuda_resample_forward, wf_cuda_resample_backward;
wf_taps_fn wf_cuda_taps;
wf_norm_fn wf_cuda_norm_stats, wf_cuda_norm_finish, wf_cuda_norm_forward, wf_cuda_norm_backward_stats,
    wf_cuda_norm_backward;
wf_norm_part_fn wf_cuda_norm_part;
wf_norm_merge_fn wf_cuda_norm_merge;
wf_group_norm_fn wf_cuda_group_norm_stats, wf_cuda_group_norm_forward, wf_cuda_group_norm_backward_stats,
    wf_cuda_group_norm_backward;
wf_group_norm_merge_fn wf_cuda_group_norm_merge;
wf_act_fn wf_cuda_act_forward, wf_cuda_act_backward;
wf_binary_fn wf_cuda_binary;
wf_fold_fn wf_cuda_fold;
wf_dropout_fn wf_cuda_dropout;
wf_epilogue_forward_fn wf_cuda_epilogue_forward;
wf_epilogue_backward_fn wf_cuda_epilogue_backward;
wf_sum_fn wf_cuda_sum;
wf_sum_squares_fn wf_cuda_sum_squares;
wf_softmax_forward_fn wf_cuda_softmax_forward;
wf_softmax_backward_fn wf_cuda_softmax_backward;
wf_attention_fn wf_cuda_attention_forward, wf_cuda_attention_backward;
wf_neighbourhood_fn wf_cuda_neighbourhood_forward, wf_cuda_neighbourhood_backward;
wf_gates_fn wf_cuda_gates_forward, wf_cuda_gates_backward;
wf_row_most_fn wf_cuda_row_most;
wf_row_most_backward_fn wf_cuda_row_most_backward;
wf_take_fn wf_cuda_take_forward, wf_cuda_take_backward;
wf_loss_fn wf_cuda_loss_forward, wf_cuda_loss_backward;
wf_nll_forward_fn wf_cuda_nll_forward;
wf_nll_backward_fn wf_cuda_nll_backward;
wf_entropy_fn wf_cuda_entropy_forward, wf_cuda_entropy_backward;
wf_count_correct_fn wf_cuda_count_correct;
wf_label_place_fn wf_cuda_label_place;
wf_count_labels_fn wf_cuda_count_labels;
wf_optim_update_fn wf_cuda_optim_update;
wf_step_verdict_fn wf_cuda_step_verdict;
wf_loss_scale_fn wf_cuda_loss_scale;
wf_clip_scale_fn wf_cuda_clip_scale;
wf_range_push_fn wf_cuda_range_push;
wf_range_pop_fn wf_cuda_range_pop;
wf_shutdown_fn wf_cuda_shutdown;

#ifdef __cplusplus
}
#endif
#endif
