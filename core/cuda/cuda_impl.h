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

/* A label that is out of range. A kernel that meets one claims the record (device memory) and fills it in (host memory
 * that the device sees); the next to_host finds it. */
typedef struct cuda_label {
    int64_t label, row, classes;
    int32_t filled;
} cuda_label;

/* Workspace of one stream, grown to the largest size asked for. */
typedef struct cuda_workspace {
    cudaStream_t stream;
    void *data;
    size_t bytes;
} cuda_workspace;

#define CUDA_STREAMS     16
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
    void *stage[CUDA_STAGES];                  /* page-locked, for copies from and to plain memory */
    cudaEvent_t staged[CUDA_STAGES], finished; /* of a stream that the host waits for */
    cuda_label *label;                         /* page-locked, seen by the device under the same address */
    int32_t *claim;                            /* device memory: 0 while the record is free */
    wf_cuda_dnn *dnn;                          /* NULL until the first convolution or product */
} wf_cuda;

/* The state of this context, made if need be, with its device made the thread's current one. */
wf_status wf_cuda_here(wf_ctx *ctx, wf_cuda **own);

/* WF_ERR_STATE while a step is captured: `what` would have to be done now. */
wf_status wf_cuda_not_capturing(const wf_cuda *own, const char *what);

/* Few bytes of the host to the device, as arguments of kernels: the host waits for nothing. */
#define CUDA_INLINE_BYTES ((size_t)2048)
wf_status wf_cuda_put(wf_cuda *own, void *device, const void *host, size_t bytes);

/* At least `bytes` of device memory, 256-byte aligned, that this slot may use until it returns: work of later slots
 * on the same stream comes after it. Grows in the first steps alone. */
wf_status wf_cuda_workspace(wf_cuda *own, size_t bytes, void **data);

/* Until the event is done, or never will be: it may be behind kernels that wait for other ranks. */
wf_status wf_cuda_wait(wf_cuda *own, cudaEvent_t event);

/* "cudaMalloc(&p, 64) on device 0 (NVIDIA H200): out of memory". */
wf_status wf_cuda_error(cudaError_t error, const char *call, const char *file, int line);
#define TRY_CUDA(call)                                                                                                 \
    do {                                                                                                               \
        const cudaError_t try_cuda_ = (call);                                                                          \
        if (try_cuda_ != cudaSuccess)                                                                                  \
            return wf_cuda_error(try_cuda_, #call, __FILE__, __LINE__);                                                \
    } while (0)

/* Frees own->dnn and what hangs on it; NULL is fine. */
void wf_cuda_dnn_free(wf_cuda *own);

/* The slots, as in core/kernels_author.h. */
int wf_cuda_device_count(void);
wf_status wf_cuda_device_choose(wf_ctx *ctx, int ordinal);
wf_status wf_cuda_device_identity(wf_ctx *ctx, char identity[WF_DEVICE_IDENTITY]);
void wf_cuda_shutdown(wf_ctx *ctx);

wf_status wf_cuda_stream_new(wf_ctx *ctx, wf_stream **stream);
void wf_cuda_stream_free(wf_ctx *ctx, wf_stream *stream);
wf_status wf_cuda_stream_use(wf_ctx *ctx, wf_stream *stream);
wf_status wf_cuda_stream_finish(wf_ctx *ctx, wf_stream *stream);
wf_status wf_cuda_event_new(wf_ctx *ctx, wf_event **event);
void wf_cuda_event_free(wf_ctx *ctx, wf_event *event);
wf_status wf_cuda_event_record(wf_ctx *ctx, wf_event *event, wf_stream *stream);
wf_status wf_cuda_event_wait(wf_ctx *ctx, wf_event *event, wf_stream *stream);
wf_status wf_cuda_event_done(wf_ctx *ctx, wf_event *event, bool *done);

wf_status wf_cuda_capture_begin(wf_ctx *ctx);
wf_status wf_cuda_capture_end(wf_ctx *ctx, wf_graph **graph);
wf_status wf_cuda_graph_launch(wf_ctx *ctx, wf_graph *graph);
void wf_cuda_graph_free(wf_ctx *ctx, wf_graph *graph);

wf_status wf_cuda_alloc(wf_ctx *ctx, size_t bytes, void **data);
void wf_cuda_release(wf_ctx *ctx, void *data, size_t bytes);
wf_status wf_cuda_pinned_alloc(wf_ctx *ctx, size_t bytes, void **data);
void wf_cuda_pinned_release(wf_ctx *ctx, void *data, size_t bytes);
wf_status wf_cuda_to_device(wf_ctx *ctx, void *device, const void *host, size_t bytes);
wf_status wf_cuda_to_host(wf_ctx *ctx, void *host, const void *device, size_t bytes);
wf_status wf_cuda_to_device_begin(wf_ctx *ctx, void *device, const void *host, size_t bytes, wf_stream *stream);
wf_status wf_cuda_to_host_begin(wf_ctx *ctx, void *host, const void *device, size_t bytes, wf_stream *stream);
wf_status wf_cuda_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share);
wf_status wf_cuda_map(wf_ctx *ctx, const wf_share *share, void **data);
void wf_cuda_unmap(wf_ctx *ctx, void *data);

wf_status wf_cuda_copy(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate);
wf_status wf_cuda_fill(wf_ctx *ctx, const wf_array *y, double value);
wf_status wf_cuda_random(wf_ctx *ctx, wf_distribution dist, const wf_random *random, double a, double b,
                         const wf_array *y);
wf_status wf_cuda_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y);

wf_status wf_cuda_conv_forward(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y);
wf_status wf_cuda_conv_backward_data(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *bias, const wf_epilogue *epilogue, const wf_array *dx);
wf_status wf_cuda_conv_backward_filter(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, const wf_array *dbias, bool accumulate);
wf_status wf_cuda_matmul(wf_ctx *ctx, const wf_array *a, bool a_transposed, const wf_array *b, bool b_transposed,
                         const wf_array *bias, const wf_array *c, bool accumulate);
wf_status wf_cuda_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate);
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

wf_status wf_cuda_pool_forward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *x, const wf_array *y,
                               const wf_array *index);
wf_status wf_cuda_pool_backward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *dy, const wf_array *index,
                                const wf_array *dx, bool accumulate);
wf_status wf_cuda_resample_forward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *x, const wf_array *y);
wf_status wf_cuda_resample_backward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *dy, const wf_array *dx,
                                    bool accumulate);

wf_status wf_cuda_norm_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *m2);
wf_status wf_cuda_norm_forward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                               const wf_array *gamma, const wf_array *beta, const wf_epilogue *epilogue,
                               const wf_array *y);
wf_status wf_cuda_norm_backward_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                      const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                      const wf_array *sum_g, const wf_array *sum_gx);
wf_status wf_cuda_norm_backward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                const wf_array *gamma, const wf_epilogue *epilogue, const wf_array *y,
                                const wf_array *dy, const wf_array *sum_g, const wf_array *sum_gx, wf_count count,
                                const wf_array *dx);
wf_status wf_cuda_norm_part(wf_ctx *ctx, const wf_norm_head *head, const wf_array *mean, const wf_array *m2,
                            const wf_array *part);
wf_status wf_cuda_norm_merge(wf_ctx *ctx, const wf_array *parts, const wf_array *mean, const wf_array *m2,
                             const wf_array *count);
wf_status wf_cuda_norm_finish(wf_ctx *ctx, const wf_array *mean, const wf_array *m2, wf_count count, double eps,
                              double decay, const wf_array *invstd, const wf_array *running_mean,
                              const wf_array *running_var);

wf_status wf_cuda_act_forward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y);
wf_status wf_cuda_act_backward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y,
                               const wf_array *dy, const wf_array *dx, bool accumulate);
wf_status wf_cuda_binary(wf_ctx *ctx, wf_binary op, double alpha, const wf_array *a, double beta, const wf_array *b,
                         const wf_array *y, bool accumulate);
wf_status wf_cuda_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y);
wf_status wf_cuda_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                    const wf_array *dv);
wf_status wf_cuda_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y);
wf_status wf_cuda_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate);

wf_status wf_cuda_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y);
wf_status wf_cuda_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                   const wf_array *dx);
wf_status wf_cuda_loss_forward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                               double scale, const wf_array *loss);
wf_status wf_cuda_loss_backward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                                const wf_array *dloss, double scale, const wf_array *dx);
wf_status wf_cuda_nll_forward(wf_ctx *ctx, const wf_array *logp, const wf_array *labels, double scale,
                              const wf_array *loss);
wf_status wf_cuda_nll_backward(wf_ctx *ctx, const wf_array *labels, const wf_array *dloss, double scale,
                               const wf_array *dx);
wf_status wf_cuda_count_correct(wf_ctx *ctx, const wf_array *scores, const wf_array *labels, const wf_array *correct);

wf_status wf_cuda_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                               int64_t segments, const wf_optim_segment *segment);
wf_status wf_cuda_loss_scale(wf_ctx *ctx, const double *sum_squares, wf_loss_scaling *scaling, wf_optim_hyper *hyper);
wf_status wf_cuda_clip_scale(wf_ctx *ctx, const double *sum_squares, double max_norm, wf_optim_hyper *hyper);

void wf_cuda_range_push(wf_ctx *ctx, const char *name);
void wf_cuda_range_pop(wf_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
