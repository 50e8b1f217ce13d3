/* Memory and streams of the emulated device.
 *
 * Device memory is one range of addresses that only work on a stream can read or write, filled with NaN when it is
 * handed out, with a guard after each block. Work is put in one queue and done, in its order, when the program waits;
 * a query whether it is done does one piece of it.
 *
 * While a stream is captured, its work goes to a graph instead, and what cannot be captured spoils that graph. Each
 * launch replays the graph in another order that its edges allow, as CUDA may run two tasks without an edge in any
 * order.
 */
#include "tests/emulate/dnn.h"
#include "tests/emulate/emulate.h"
#include "tests/emulate/order.hpp"
#include "tests/shut_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { GUARD = 256, GUARD_BYTE = 0xcb };

static size_t room = (size_t)8 << 30;
static char *arena;
static size_t used;
static int file = -1; /* that the arena is a view of, so that another process can have one too */

static bool idle;

#if defined(__SANITIZE_ADDRESS__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* The size of a block lies before it. */
struct head {
    size_t bytes;
    char unused[GUARD - sizeof(size_t)];
};

struct task {
    task *next;
    cudaStream_t stream;
    uint64_t number;
    cudaLaunchConfig_t config;
    emulated_work *work; /* NULL: a copy, or a fill where `from` is NULL */
    bool borrowed;       /* work is a graph's */
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

/* Which tasks of a graph come before a point of a stream. */
typedef std::vector<bool> past;

struct CUstream_st {
    uint64_t last; /* number of its last task */
    bool captured;
    past before;
};
struct CUevent_st {
    uint64_t last;    /* number of the task to wait for */
    bool captured;    /* its last record was */
    uint64_t capture; /* in which capture */
    past before;
};
struct CUgraph_st {
    std::vector<task> tasks;
    std::vector<past> before; /* of each task */
    int users;
};
struct CUgraphExec_st {
    cudaGraph_t graph;
};

static struct {
    cudaGraph_t graph; /* NULL: nothing is captured */
    cudaStream_t origin;
    std::vector<cudaStream_t> others;
    bool spoiled, relaxed;
    uint64_t number;
} capture;
static cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static task *first, **end = &first;
static uint64_t given, done;
static int waits;

struct pinned {
    pinned *next;
    char *data;
    size_t bytes;
};
static pinned *host_blocks;

void emulated_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "emulated device: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

static bool on_device(const void *p, size_t bytes)
{
    const char *const at = static_cast<const char *>(p);
    return arena && at >= arena && at + bytes <= arena + used;
}

static bool page_locked(const void *p)
{
    const char *const at = static_cast<const char *>(p);
    for (const pinned *b = host_blocks; b; b = b->next)
        if (at >= b->data && at < b->data + b->bytes)
            return true;
    return false;
}

static void perform(task *t)
{
    if (idle && t->to && page_locked(t->to))
        memset(t->to, 0, t->bytes);
    else if (idle)
        ;
    else if (t->work)
        emulated_run(t->config, t->work);
    else if (t->from)
        memcpy(t->to, t->from, t->bytes);
    else
        memset(t->to, t->value, t->bytes);
    if (!t->borrowed)
        delete t->work;
}

static void finish_to(uint64_t number)
{
    if (done >= number)
        return;
    shut_memory_open(false);
    while (first && first->number <= number) {
        task *const t = first;
        perform(t);
        done = t->number;
        first = t->next;
        end = first ? end : &first;
        free(t);
    }
    shut_memory_close();
}

static cudaError_t spoil(cudaError_t error)
{
    capture.spoiled = true;
    return error;
}

/* What may make the device wait, while a capture is going on. */
static bool unsafe()
{
    return capture.graph && !capture.relaxed && thread_mode != cudaStreamCaptureModeRelaxed;
}

static task *keep(cudaStream_t stream)
{
    capture.graph->before.push_back(stream->before);
    stream->before.resize(capture.graph->tasks.size() + 1);
    stream->before.back() = true;
    capture.graph->tasks.push_back(task{});
    return &capture.graph->tasks.back();
}

static task *queue(cudaStream_t stream)
{
    if (!stream)
        emulated_fail("work on stream 0, which waits for all others");
    if (stream->captured)
        return keep(stream);
    task *const t = static_cast<task *>(calloc(1, sizeof *t));
    t->number = stream->last = ++given;
    t->stream = stream;
    *end = t;
    end = &t->next;
    return t;
}

cudaError_t emulated_launch(const cudaLaunchConfig_t &config, emulated_work *work)
{
    const dim3 b = config.blockDim, g = config.gridDim;
    if (b.x * b.y * b.z == 0 || b.x * b.y * b.z > 1024 || g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffff ||
        g.y > 65535 || g.z > 65535) {
        delete work;
        return cudaErrorInvalidValue;
    }
    if (config.stream && config.stream->captured && capture.spoiled) {
        delete work;
        return cudaErrorStreamCaptureInvalidated;
    }
    task *const t = queue(config.stream);
    t->config = config;
    t->work = work;
    return cudaSuccess;
}

/* A word that is the address of mapped memory, and not the device's, is a pointer that got here by mistake. A sanitizer
 * maps so much that a number and the padding beside it are such an address, too: without it alone can that be told. */
void emulated_check_argument(const void *argument, size_t bytes)
{
    const uint64_t lowest = (uint64_t)1 << 32;
    if (bytes > 32764)
        emulated_fail("an argument of %zu bytes", bytes);
    for (size_t at = 0; !sanitized && at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, static_cast<const char *>(argument) + at, 8);
        if (word < lowest || word >= (uint64_t)1 << 47)
            continue;
        void *const p = reinterpret_cast<void *>(word), *const page = reinterpret_cast<void *>(word / 4096 * 4096);
        if (!on_device(p, 0) && !page_locked(p) && msync(page, 1, MS_ASYNC) == 0)
            emulated_fail("a kernel gets the address of host memory, %p", p);
    }
}

void emulated_idle(void)
{
    idle = true;
    room = (size_t)1 << 40;
}

int emulated_waits(void)
{
    return waits;
}

int emulated_tasks(void)
{
    return (int)given;
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (capture.graph)
        return spoil(cudaErrorStreamCaptureUnsupported);
    waits++;
    finish_to(given);
    return cudaSuccess;
}

/* Bytes that were given out and not taken back, and the most that there may be. */
static size_t taken, most = SIZE_MAX;

void emulated_room(size_t bytes)
{
    most = taken + bytes;
}

static void refused()
{
    emulated_fail("memory of the device is touched outside of its work");
}

static bool reserved()
{
    if (arena)
        return true;
    file = memfd_create("emulated device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)room) != 0)
        return false;
    arena = shut_memory(file, room, &used, refused);
    return arena != nullptr;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    const size_t size = (bytes + 255) / 256 * 256;
    if (unsafe())
        return spoil(cudaErrorStreamCaptureUnsupported);
    if (!reserved() || taken + bytes > most || size > room || used + sizeof(head) + size + GUARD > room)
        return cudaErrorMemoryAllocation;
    char *const at = arena + used;
    used += sizeof(head) + size + GUARD;
    taken += bytes;
    shut_memory_open(false);
    reinterpret_cast<head *>(at)->bytes = bytes;
    if (!idle) {
        memset(at + sizeof(head), 0xff, bytes);
        memset(at + sizeof(head) + bytes, GUARD_BYTE, size - bytes + GUARD);
    }
    shut_memory_close();
    *data = at + sizeof(head);
    return cudaSuccess;
}

cudaError_t cudaFree(void *data)
{
    if (!data)
        return cudaSuccess;
    if (unsafe())
        return spoil(cudaErrorStreamCaptureUnsupported);
    finish_to(given);
    shut_memory_open(false);
    const unsigned char *const at = static_cast<const unsigned char *>(data);
    const size_t bytes = (reinterpret_cast<const head *>(at) - 1)->bytes;
    for (size_t i = bytes; !idle && i < (bytes + 255) / 256 * 256 + GUARD; i++)
        if (at[i] != GUARD_BYTE)
            emulated_fail("byte %zu behind a block of %zu bytes was written", i - bytes, bytes);
    taken -= bytes;
    shut_memory_close();
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned)
{
    if (unsafe())
        return spoil(cudaErrorStreamCaptureUnsupported);
    pinned *const b = static_cast<pinned *>(malloc(sizeof *b));
    *b = pinned{host_blocks, static_cast<char *>(malloc(bytes)), bytes};
    host_blocks = b;
    *data = b->data;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *data)
{
    const char *const at = static_cast<const char *>(data);
    void *const same = const_cast<void *>(data);
    *attributes = cudaPointerAttributes{cudaMemoryTypeUnregistered, -2, nullptr, same};
    if (arena && at >= arena && at < arena + used)
        *attributes = cudaPointerAttributes{cudaMemoryTypeDevice, 0, same, nullptr};
    for (const pinned *b = host_blocks; b; b = b->next)
        if (at >= b->data && at < b->data + b->bytes)
            *attributes = cudaPointerAttributes{cudaMemoryTypeHost, 0, same, same};
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    finish_to(given);
    for (pinned **at = &host_blocks; *at; at = &(*at)->next)
        if ((*at)->data == data) {
            pinned *const b = *at;
            *at = b->next;
            free(b->data);
            free(b);
            return cudaSuccess;
        }
    return data ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    const bool up = kind == cudaMemcpyHostToDevice;
    if (!on_device(up ? to : from, bytes) || !page_locked(up ? from : to))
        emulated_fail("a copy of %zu bytes from %p to %p that is not between the device and page-locked memory", bytes,
                      from, to);
    if (stream && stream->captured && capture.spoiled)
        return cudaErrorStreamCaptureInvalidated;
    task *const t = queue(stream);
    t->to = to;
    t->from = from;
    t->bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream)
{
    task *const t = queue(stream);
    t->to = data;
    t->value = value;
    t->bytes = bytes;
    return cudaSuccess;
}

/* A block as other processes name it. */
struct block_name {
    pid_t process;
    int file;
    uint64_t offset, bytes;
};

static cudaError_t barred;

void emulated_bar_sharing(int error)
{
    barred = (cudaError_t)error;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *data)
{
    if (barred)
        return barred;
    if (!on_device(data, 0))
        return cudaErrorInvalidValue;
    shut_memory_open(false);
    const block_name name = {getpid(), file, (uint64_t)(static_cast<char *>(data) - arena),
                             (static_cast<const head *>(data) - 1)->bytes};
    shut_memory_close();
    static_assert(sizeof name <= sizeof *handle, "a name fits a handle");
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &name, sizeof name);
    return cudaSuccess;
}

/* The other's pages take a place among this one's. */
cudaError_t cudaIpcOpenMemHandle(void **data, cudaIpcMemHandle_t handle, unsigned)
{
    block_name name;
    char path[64];
    memcpy(&name, &handle, sizeof name);
    if (barred)
        return barred;
    if (name.process == getpid() || !reserved())
        return cudaErrorInvalidValue;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)name.process, name.file);
    const int theirs = open(path, O_RDWR | O_CLOEXEC);
    if (theirs < 0)
        return cudaErrorNotSupported;
    const size_t before = name.offset % 4096, bytes = (before + name.bytes + 4095) / 4096 * 4096;
    used = (used + 4095) / 4096 * 4096;
    char *const at = arena + used;
    const bool good = used + bytes <= room &&
                      mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, theirs, (off_t)(name.offset - before)) == at;
    close(theirs);
    if (!good)
        return cudaErrorMemoryAllocation;
    used += bytes;
    *data = at + before;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *data)
{
    finish_to(given);
    return on_device(data, 0) ? cudaSuccess : cudaErrorInvalidValue;
}

static const int greatest_priority = -5;
static int last_priority;

bool emulated_hurries(void)
{
    return last_priority == greatest_priority;
}

static int fits_asked;

int emulated_fits_asked(void)
{
    return fits_asked;
}

/* As few as kernels with many registers have. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t)
{
    if (!kernel || threads < 1)
        return cudaErrorInvalidValue;
    fits_asked++;
    *blocks = 3;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = greatest_priority;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority)
{
    *stream = new CUstream_st{};
    last_priority = priority;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    finish_to(given);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream->captured)
        return spoil(cudaErrorStreamCaptureUnsupported);
    waits++;
    finish_to(stream->last);
    return cudaSuccess;
}

/* The queue is in order already. A captured event brings the stream into the capture. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    const bool live = event->captured && capture.graph && event->capture == capture.number;
    if (stream->captured && !live)
        return spoil(cudaErrorStreamCaptureIsolation);
    if (event->captured && !live)
        return cudaErrorCapturedEvent;
    if (!live)
        return cudaSuccess;
    if (!stream->captured)
        capture.others.push_back(stream);
    stream->captured = true;
    if (stream->before.size() < event->before.size())
        stream->before.resize(event->before.size());
    for (size_t i = 0; i < event->before.size(); i++)
        if (event->before[i])
            stream->before[i] = true;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new CUevent_st{};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->captured = stream->captured;
    event->capture = capture.number;
    if (stream->captured)
        event->before = stream->before;
    else
        event->last = stream->last;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->captured)
        return spoil(cudaErrorCapturedEvent);
    if (unsafe())
        return spoil(cudaErrorStreamCaptureUnsupported);
    waits++;
    finish_to(event->last);
    return cudaSuccess;
}

/* Lets time go by with each query, for programs that poll. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (event->captured)
        return spoil(cudaErrorCapturedEvent);
    if (unsafe())
        return spoil(cudaErrorStreamCaptureUnsupported);
    if (done >= event->last)
        return cudaSuccess;
    finish_to(first->number);
    return cudaErrorNotReady;
}

/* A task takes a millisecond. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop)
{
    *ms = (float)(stop->last - start->last);
    return done >= stop->last ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = !stream->captured ? cudaStreamCaptureStatusNone
              : capture.spoiled ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    const cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    if (capture.graph)
        return cudaErrorStreamCaptureUnsupported;
    capture.graph = new CUgraph_st{};
    capture.graph->users = 1;
    capture.origin = stream;
    capture.spoiled = false;
    capture.relaxed = mode == cudaStreamCaptureModeRelaxed;
    capture.number++;
    stream->captured = true;
    stream->before.clear();
    return cudaSuccess;
}

static void drop(cudaGraph_t graph)
{
    if (--graph->users > 0)
        return;
    finish_to(given);
    for (const task &t : graph->tasks)
        delete t.work;
    delete graph;
}

/* Everything has to come before the end of the stream with which it began. */
static bool joined()
{
    size_t before = 0;
    for (const bool b : capture.origin->before)
        before += b;
    return before == capture.graph->tasks.size();
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    if (!capture.graph || stream != capture.origin)
        return cudaErrorStreamCaptureUnmatched;
    const cudaError_t error = capture.spoiled ? cudaErrorStreamCaptureInvalidated
                              : joined()      ? cudaSuccess
                                              : cudaErrorStreamCaptureUnjoined;
    stream->captured = false;
    for (const cudaStream_t other : capture.others) {
        other->captured = false;
        other->before.clear();
    }
    capture.others.clear();
    if (error == cudaSuccess)
        *graph = capture.graph;
    else
        drop(capture.graph);
    capture.graph = nullptr;
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long)
{
    *ready = new CUgraphExec_st{graph};
    graph->users++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream)
{
    if (stream->captured)
        emulated_fail("a graph is launched inside a capture");
    for (const size_t at : emulated_order(ready->graph->before)) {
        task *const t = queue(stream), queued = *t;
        *t = ready->graph->tasks[at];
        t->next = queued.next;
        t->number = queued.number;
        t->stream = stream;
        t->borrowed = true;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    drop(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready)
{
    drop(ready->graph);
    delete ready;
    return cudaSuccess;
}
