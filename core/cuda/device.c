/* The device of a context: its choice, its streams and events. Every entry to the device goes through wf_cuda_here,
 * which makes the state at the first use. A wait never blocks where other ranks may fail meanwhile. */
#include "core/cuda/cuda_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_status wf_cuda_error(cudaError_t error, const char *call, const char *file, int line)
{
    int ordinal = -1;
    struct cudaDeviceProp device = {.name = "none"};
    cudaGetLastError(); /* an error that is not sticky is ours now, not the next call's */
    if (cudaGetDevice(&ordinal) == cudaSuccess)
        cudaGetDeviceProperties(&device, ordinal);
    return wf_error_set(error == cudaErrorMemoryAllocation ? WF_ERR_MEMORY : WF_ERR_STATE, file, line,
                        "%s on device %d (%s): %s", call, ordinal, device.name, cudaGetErrorString(error));
}

wf_status wf_cuda_capable(const struct cudaDeviceProp *device)
{
    WF_CHECK(device->major >= CUDA_LEAST_MAJOR, WF_ERR_STATE,
             "device \"cuda\": %s has compute capability %d.%d, and %d.0 is the least", device->name, device->major,
             device->minor, CUDA_LEAST_MAJOR);
    return WF_OK;
}

wf_status wf_cuda_not_capturing(const wf_cuda *own, const char *what)
{
    WF_CHECK(!own->capturing, WF_ERR_STATE, "%s while a step is captured on device %d (%s), which only keeps its work",
             what, own->ordinal, own->name);
    return WF_OK;
}

int wf_cuda_device_count(void)
{
    int count = 0;
    /* Without a device the count is 1, and the first use says what is missing. */
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? count : 1;
}

/* While other ranks may fail, `waiting` looks for it at each turn: a rank that waits for a kernel which waits for a
 * dead peer does not hang. */
wf_status wf_cuda_wait(wf_cuda *own, cudaEvent_t event)
{
    wf_wait wait = {0};
    if (!own->ctx->waiting) {
        /* Blocks if there is one rank; with others the wait is a poll that learns of their failures. */
        TRY_CUDA(cudaEventSynchronize(event));
        return WF_OK;
    }
    for (cudaError_t state; (state = cudaEventQuery(event)) != cudaSuccess;) {
        if (state != cudaErrorNotReady)
            TRY_CUDA(state);
        cudaGetLastError(); /* "not ready" is no error: the next call must not report it */
        WF_TRY(own->ctx->waiting(own->ctx->comm, &wait));
    }
    return WF_OK;
}

wf_status wf_cuda_wait_stream(wf_cuda *own, cudaStream_t stream)
{
    /* An event can be polled; a stream can only be waited for. */
    TRY_CUDA(cudaEventRecord(own->finished, stream));
    return wf_cuda_wait(own, own->finished);
}

/* Kernels report a label out of range here; `claim` lets the first of them write, `label` is what the host reads. */
static wf_status make_label(wf_cuda *own)
{
    void *label, *claim;
    TRY_CUDA(cudaHostAlloc(&label, sizeof *own->label, cudaHostAllocMapped));
    own->label = label;
    own->label->filled = 0;
    TRY_CUDA(cudaMalloc(&claim, sizeof *own->claim));
    own->claim = claim;
    TRY_CUDA(cudaMemsetAsync(claim, 0, sizeof *own->claim, own->own));
    return WF_OK;
}

/* Page-locked pieces for copies of pageable memory, with an event each that says when a piece is free. */
static wf_status make_stages(wf_cuda *own)
{
    for (int i = 0; i < CUDA_STAGES; i++) {
        TRY_CUDA(cudaHostAlloc(&own->stage[i], CUDA_STAGE_BYTES, cudaHostAllocDefault));
        TRY_CUDA(cudaEventCreateWithFlags(&own->staged[i], cudaEventDisableTiming));
    }
    return WF_OK;
}

static wf_status make_state(wf_cuda *own)
{
    struct cudaDeviceProp device;
    TRY_CUDA(cudaSetDevice(own->ordinal));
    TRY_CUDA(cudaGetDeviceProperties(&device, own->ordinal));
    WF_TRY(wf_cuda_capable(&device));
    own->processors = device.multiProcessorCount;
    snprintf(own->name, sizeof own->name, "%.90s", device.name);
    /* Non-blocking: the default stream, which other libraries of the program may use, would order itself with it. */
    TRY_CUDA(cudaStreamCreateWithFlags(&own->own, cudaStreamNonBlocking));
    own->stream = own->own;
    TRY_CUDA(cudaEventCreateWithFlags(&own->finished, cudaEventDisableTiming));
    WF_TRY(make_stages(own));
    return make_label(own);
}

/* At the first use, so that a context on a machine without a device can be made and used on the host. */
static wf_status open_device(wf_ctx *ctx, int ordinal)
{
    wf_cuda *const own = calloc(1, sizeof *own);
    WF_CHECK(own, WF_ERR_MEMORY, "no memory for the state of a device");
    own->ctx = ctx;
    own->ordinal = ordinal;
    /* Before it is complete, so that shutdown frees what there is. */
    ctx->device_own = own;
    const wf_status status = make_state(own);
    if (status != WF_OK)
        wf_cuda_device_close(ctx);
    return status;
}

wf_status wf_cuda_here(wf_ctx *ctx, wf_cuda **own)
{
    int current;
    if (!ctx->device_own)
        WF_TRY(open_device(ctx, 0));
    *own = ctx->device_own;
    TRY_CUDA(cudaGetDevice(&current));
    /* The program or another context may have chosen another device for this thread meanwhile. */
    if (current != (*own)->ordinal)
        TRY_CUDA(cudaSetDevice((*own)->ordinal));
    return WF_OK;
}

/* Occupancy costs a call of the driver; kernels are few, so answers are kept. A full table only means asking again. */
wf_status wf_cuda_fit(wf_cuda *own, const void *kernel, int threads, int *blocks)
{
    const size_t home = (size_t)((uintptr_t)kernel >> 4) % CUDA_FITS;
    cuda_fit *free = NULL;
    for (size_t i = 0; i < CUDA_FITS && !free; i++) {
        cuda_fit *const entry = &own->fit[(home + i) % CUDA_FITS];
        if (entry->kernel == kernel && entry->threads == threads) {
            *blocks = entry->blocks;
            return WF_OK;
        }
        free = entry->kernel ? NULL : entry;
    }
    TRY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, 0));
    /* 0 would be a kernel that cannot run: its launch says why. */
    *blocks = *blocks > 0 ? *blocks : 1;
    if (free)
        *free = (cuda_fit){kernel, threads, *blocks};
    return WF_OK;
}

wf_status wf_cuda_device_choose(wf_ctx *ctx, int ordinal)
{
    const wf_cuda *const own = ctx->device_own;
    const int count = wf_cuda_device_count();
    WF_CHECK(ordinal >= 0 && ordinal < count, WF_ERR_ARGUMENT, "there is no device %d, only 0 to %d", ordinal,
             count - 1);
    WF_CHECK(!own || own->ordinal == ordinal, WF_ERR_STATE, "device %d is chosen after device %d was used", ordinal,
             own->ordinal);
    return own ? WF_OK : open_device(ctx, ordinal);
}

/* Ranks compare identities to find out which of them share a device. */
wf_status wf_cuda_device_identity(wf_ctx *ctx, char identity[WF_DEVICE_IDENTITY])
{
    wf_cuda *own;
    struct cudaDeviceProp device;
    WF_TRY(wf_cuda_here(ctx, &own));
    TRY_CUDA(cudaGetDeviceProperties(&device, own->ordinal));
    int at = snprintf(identity, WF_DEVICE_IDENTITY, "GPU-");
    /* The UUID, not the ordinal: CUDA_VISIBLE_DEVICES gives every rank a device 0. */
    for (size_t i = 0; i < sizeof device.uuid.bytes; i++)
        at += snprintf(identity + at, (size_t)(WF_DEVICE_IDENTITY - at), "%02x", (unsigned char)device.uuid.bytes[i]);
    return WF_OK;
}

/* Page-locked and managed memory is within a kernel's reach too. */
wf_status wf_cuda_device_of(wf_ctx *ctx, const void *data, int *ordinal)
{
    static const char *const kinds[] = {"the host's, and not page-locked", "page-locked", "a device's", "managed"};
    wf_cuda *own;
    struct cudaPointerAttributes found;
    WF_TRY(wf_cuda_here(ctx, &own));
    TRY_CUDA(cudaPointerGetAttributes(&found, data));
    *ordinal = found.device;
    const bool elsewhere = found.type == cudaMemoryTypeDevice && found.device != own->ordinal;
    WF_CHECK(found.type != cudaMemoryTypeUnregistered && found.devicePointer == data && !elsewhere, WF_ERR_ARGUMENT,
             "memory at %p is %s (device %d); it should be memory of device %d (%s)", data, kinds[found.type & 3],
             found.device, own->ordinal, own->name);
    return WF_OK;
}

/* Frees what the context has on the device. Errors are ignored, since no caller is left who could handle them.
 * Workspace is memory of the pool, which is freed after this. */
void wf_cuda_device_close(wf_ctx *ctx)
{
    wf_cuda *const own = ctx->device_own;
    if (!own)
        return;
    cudaSetDevice(own->ordinal);
    /* Memory that kernels still write to must not be freed. */
    cudaDeviceSynchronize();
    for (int i = 0; i < CUDA_STAGES; i++) {
        if (own->staged[i])
            cudaEventDestroy(own->staged[i]);
        /* Freeing NULL is no error, so a state that is half made is freed the same way. */
        cudaFreeHost(own->stage[i]);
    }
    if (own->finished)
        cudaEventDestroy(own->finished);
    cudaFreeHost(own->label);
    cudaFree(own->claim);
    if (own->own)
        cudaStreamDestroy(own->own);
    free(own);
    ctx->device_own = NULL;
}

/* NULL is the context's own stream. */
static cudaStream_t stream_of(const wf_cuda *own, wf_stream *stream)
{
    return stream ? (cudaStream_t)(void *)stream : own->own;
}

wf_status wf_cuda_stream_new(wf_ctx *ctx, wf_stream **stream)
{
    wf_cuda *own;
    cudaStream_t made;
    int least, greatest;
    WF_TRY(wf_cuda_here(ctx, &own));
    /* Communication runs there. Blocks of its few kernels take the next free multiprocessors instead of waiting until
     * all blocks of a computation that was launched before have begun. */
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TRY_CUDA(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest));
    *stream = (wf_stream *)(void *)made;
    return WF_OK;
}

void wf_cuda_stream_free(wf_ctx *ctx, wf_stream *stream)
{
    wf_cuda *const own = ctx->device_own;
    if (!stream || !own)
        return;
    const cudaStream_t gone = stream_of(own, stream);
    cudaSetDevice(own->ordinal);
    /* A stream may still work on its workspace. */
    const bool quiet = wf_cuda_wait_stream(own, gone) == WF_OK;
    for (int i = 0; i < CUDA_STREAMS; i++)
        if (own->workspace[i].stream == gone) {
            /* The stream hangs or failed: its workspace may still be written to, so it is not handed out again. */
            if (!quiet)
                wf_pool_hold(ctx, own->workspace[i].data);
            wf_pool_give(ctx, own->workspace[i].data, own->workspace[i].bytes);
            own->workspace[i] = (cuda_workspace){0};
        }
    if (own->stream == gone)
        own->stream = own->own;
    cudaStreamDestroy(gone);
}

/* All kernels of this context go to this stream from now on. */
wf_status wf_cuda_stream_use(wf_ctx *ctx, wf_stream *stream)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    own->stream = stream_of(own, stream);
    return WF_OK;
}

/* Waits on the host, and while a step is captured there is nothing to wait for. */
wf_status wf_cuda_stream_finish(wf_ctx *ctx, wf_stream *stream)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(wf_cuda_not_capturing(own, "a stream is waited for"));
    return wf_cuda_wait_stream(own, stream_of(own, stream));
}

wf_status wf_cuda_event_new(wf_ctx *ctx, wf_event **event)
{
    wf_cuda *own;
    cudaEvent_t made;
    WF_TRY(wf_cuda_here(ctx, &own));
    TRY_CUDA(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    *event = (wf_event *)(void *)made;
    return WF_OK;
}

void wf_cuda_event_free(wf_ctx *ctx, wf_event *event)
{
    if (event)
        cudaEventDestroy((cudaEvent_t)(void *)event);
}

wf_status wf_cuda_event_record(wf_ctx *ctx, wf_event *event, wf_stream *stream)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    TRY_CUDA(cudaEventRecord((cudaEvent_t)(void *)event, stream_of(own, stream)));
    return WF_OK;
}

/* The device waits, not the host. */
wf_status wf_cuda_event_wait(wf_ctx *ctx, wf_event *event, wf_stream *stream)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    TRY_CUDA(cudaStreamWaitEvent(stream_of(own, stream), (cudaEvent_t)(void *)event, 0));
    return WF_OK;
}

wf_status wf_cuda_event_done(wf_ctx *ctx, wf_event *event, bool *done)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(wf_cuda_not_capturing(own, "an event is asked for"));
    const cudaError_t state = cudaEventQuery((cudaEvent_t)(void *)event);
    *done = state == cudaSuccess;
    if (state != cudaErrorNotReady)
        TRY_CUDA(state);
    cudaGetLastError();
    return WF_OK;
}
