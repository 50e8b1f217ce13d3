/* Device memory, page-locked memory, and copies between device and host. Copies from pageable memory go through
 * page-locked pieces, so that no call of CUDA blocks without polling for failures of other ranks. */
#include "core/cuda/cuda_impl.h"

#include <stdio.h>
#include <string.h>

/* An allocation is no work on a stream, so it may be made while a step is captured, if CUDA is told that this is meant:
 * the pool may need a block more than it did in the rehearsal. */
static wf_status allowed(const wf_cuda *own, enum cudaStreamCaptureMode *mode)
{
    if (own->capturing)
        TRY_CUDA(cudaThreadExchangeStreamCaptureMode(mode));
    return WF_OK;
}

/* cudaMalloc may wait for the device. The pool calls this where it has no free block, so a step does in the beginning
 * and rarely in a capture; comm for blocks that processes map from each other (comm/mesh/ipc_buffers.c), and a profile
 * once (optim/profiler_table.c). */
wf_status wf_cuda_alloc(wf_ctx *ctx, size_t bytes, void **data)
{
    wf_cuda *own;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    *data = NULL;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(allowed(own, &mode));
    const cudaError_t error = cudaMalloc(data, bytes ? bytes : 1);
    /* The exchange swaps the mode back. */
    WF_TRY(allowed(own, &mode));
    if (error != cudaSuccess)
        return wf_cuda_error(error, "cudaMalloc", __FILE__, __LINE__);
    return WF_OK;
}

void wf_cuda_release(wf_ctx *ctx, void *data, size_t bytes)
{
    /* Without a context's device the driver finds the memory's own. */
    const wf_cuda *own = ctx->device_own; /* NULL once it was shut down: the pool comes last */
    if (own)
        cudaSetDevice(own->ordinal);
    cudaFree(data);
}

wf_status wf_cuda_pinned_alloc(wf_ctx *ctx, size_t bytes, void **data)
{
    wf_cuda *own;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    *data = NULL;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(allowed(own, &mode));
    const cudaError_t error = cudaHostAlloc(data, bytes ? bytes : 1, cudaHostAllocDefault);
    WF_TRY(allowed(own, &mode));
    if (error != cudaSuccess)
        return wf_cuda_error(error, "cudaHostAlloc", __FILE__, __LINE__);
    return WF_OK;
}

/* Page-locked memory knows its device itself. */
void wf_cuda_pinned_release(wf_ctx *ctx, void *data, size_t bytes)
{
    cudaFreeHost(data);
}

/* A label out of range that a kernel has met since the last call. The record is read after its stream was waited for.
 */
static wf_status check_labels(wf_cuda *own)
{
    if (!own->label->filled)
        return WF_OK;
    const cuda_label bad = *own->label;
    own->label->filled = 0;
    /* The claim is opened again, for the next bad label. */
    TRY_CUDA(cudaMemsetAsync(own->claim, 0, sizeof *own->claim, own->stream));
    static const char *const words[][2] = {[CUDA_LABEL] = {"label", "in row"},
                                           [CUDA_INDEX] = {"index", "in place"},
                                           [CUDA_PLACE] = {"place", "of element"}};
    WF_FAIL(WF_ERR_ARGUMENT, "%s %lld %s %lld is outside [0, %lld)", words[bad.kind][0], (long long)bad.label,
            words[bad.kind][1], (long long)bad.row, (long long)bad.classes);
}

/* Through two page-locked pieces in turn: one is filled while the other travels. Returns when the caller may change
 * `host`, not when the copy is over: later work of this stream finds it. */
wf_status wf_cuda_to_device(wf_ctx *ctx, void *device, const void *host, size_t bytes)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(wf_cuda_not_capturing(own, "host memory is copied to the device"));
    /* No piece and no event: the bytes go with the launch. */
    if (bytes <= CUDA_INLINE_BYTES)
        return wf_cuda_put(own, device, host, bytes);
    for (size_t at = 0, i = 0; at < bytes; at += CUDA_STAGE_BYTES, i = (i + 1) % CUDA_STAGES) {
        const size_t n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        WF_TRY(wf_cuda_wait(own, own->staged[i]));
        memcpy(own->stage[i], (const char *)host + at, n);
        TRY_CUDA(cudaMemcpyAsync((char *)device + at, own->stage[i], n, cudaMemcpyHostToDevice, own->stream));
        TRY_CUDA(cudaEventRecord(own->staged[i], own->stream));
    }
    return WF_OK;
}

/* The next piece travels while the one before is copied to its place. */
static wf_status fetch(wf_cuda *own, const void *device, size_t bytes, size_t at)
{
    const size_t i = at / CUDA_STAGE_BYTES % CUDA_STAGES;
    if (at >= bytes)
        return WF_OK;
    WF_TRY(wf_cuda_wait(own, own->staged[i]));
    TRY_CUDA(cudaMemcpyAsync(own->stage[i], (const char *)device + at,
                             bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES, cudaMemcpyDeviceToHost,
                             own->stream));
    TRY_CUDA(cudaEventRecord(own->staged[i], own->stream));
    return WF_OK;
}

wf_status wf_cuda_to_host(wf_ctx *ctx, void *host, const void *device, size_t bytes)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(wf_cuda_not_capturing(own, "device memory is read"));
    WF_TRY(fetch(own, device, bytes, 0));
    for (size_t at = 0; at < bytes; at += CUDA_STAGE_BYTES) {
        const size_t i = at / CUDA_STAGE_BYTES % CUDA_STAGES;
        WF_TRY(fetch(own, device, bytes, at + CUDA_STAGE_BYTES));
        WF_TRY(wf_cuda_wait(own, own->staged[i]));
        memcpy((char *)host + at, own->stage[i], bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES);
    }
    TRY_CUDA(cudaEventRecord(own->finished, own->stream));
    WF_TRY(wf_cuda_wait(own, own->finished));
    /* The stream was waited for, so what its kernels have reported is complete. */
    return check_labels(own);
}

/* Both `begin` calls take page-locked memory, and the caller waits for an event before it touches it. */
wf_status wf_cuda_to_device_begin(wf_ctx *ctx, void *device, const void *host, size_t bytes, wf_stream *stream)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    if (bytes > 0)
        TRY_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice,
                                 stream ? (cudaStream_t)(void *)stream : own->own));
    return WF_OK;
}

wf_status wf_cuda_to_host_begin(wf_ctx *ctx, void *host, const void *device, size_t bytes, wf_stream *stream)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    if (bytes > 0)
        TRY_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost,
                                 stream ? (cudaStream_t)(void *)stream : own->own));
    return WF_OK;
}

/* Codes with which drivers, and sandboxes around them, say that memory is shared with no other process. */
static bool cannot_share(cudaError_t error)
{
    return error == cudaErrorNotSupported || error == cudaErrorPeerAccessUnsupported ||
           error == cudaErrorMapBufferObjectFailed || error == cudaErrorOperatingSystem || error == cudaErrorUnknown;
}

/* A handle names a whole allocation of cudaMalloc. So `data` must come from wf_cuda_alloc, as in
 * comm/mesh/ipc_buffers.c, and not from the pool, whose blocks may be parts of one. */
wf_status wf_cuda_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share)
{
    wf_cuda *own;
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof handle <= sizeof share->name, "a handle fits a share");
    WF_TRY(wf_cuda_here(ctx, &own));
    const cudaError_t error = cudaIpcGetMemHandle(&handle, data);
    cudaGetLastError();
    WF_CHECK(!cannot_share(error), WF_ERR_UNSUPPORTED, "%s shares no memory between processes: %s", own->name,
             cudaGetErrorString(error));
    TRY_CUDA(error);
    memcpy(share->name, &handle, sizeof handle);
    return WF_OK;
}

wf_status wf_cuda_map(wf_ctx *ctx, const wf_share *share, void **data)
{
    wf_cuda *own;
    cudaIpcMemHandle_t handle;
    WF_TRY(wf_cuda_here(ctx, &own));
    memcpy(&handle, share->name, sizeof handle);
    /* Lazily: peer access is enabled for the devices that really map each other. */
    const cudaError_t error = cudaIpcOpenMemHandle(data, handle, cudaIpcMemLazyEnablePeerAccess);
    cudaGetLastError();
    WF_CHECK(!cannot_share(error), WF_ERR_UNSUPPORTED, "%s cannot map memory of another process: %s", own->name,
             cudaGetErrorString(error));
    TRY_CUDA(error);
    return WF_OK;
}

void wf_cuda_unmap(wf_ctx *ctx, void *data)
{
    const wf_cuda *own = ctx->device_own;
    if (own)
        cudaSetDevice(own->ordinal);
    if (data)
        cudaIpcCloseMemHandle(data);
}

/* The workspace of a stream; a free entry if it has none. Streams beyond the table have to share the last entry, which
 * then waits. Kernels of one stream follow each other, so one workspace serves them all. */
static wf_status find_workspace(wf_cuda *own, cuda_workspace **out)
{
    int i = 0;
    while (i < CUDA_STREAMS - 1 && own->workspace[i].stream && own->workspace[i].stream != own->stream)
        i++;
    cuda_workspace *const entry = &own->workspace[i];
    if (entry->stream && entry->stream != own->stream)
        WF_TRY(wf_cuda_wait_stream(own, entry->stream));
    entry->stream = own->stream;
    *out = entry;
    return WF_OK;
}

wf_status wf_cuda_workspace(wf_cuda *own, size_t bytes, void **data)
{
    cuda_workspace *entry = NULL;
    WF_TRY(find_workspace(own, &entry));
    /* Only grows: after a few steps every size was seen. */
    if (bytes > entry->bytes) {
        /* The graph would keep the address of the old block. */
        WF_TRY(wf_cuda_not_capturing(own, "workspace grows"));
        /* Another stream may be handed the old block at once. */
        WF_TRY(wf_cuda_wait_stream(own, entry->stream));
        wf_pool_give(own->ctx, entry->data, entry->bytes);
        entry->bytes = 0;
        WF_TRY(wf_pool_take(own->ctx, bytes, &entry->data));
        entry->bytes = bytes;
    }
    *data = entry->data;
    return WF_OK;
}
