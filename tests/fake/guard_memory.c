/* Memory of the guarded device: the host that touches it without a right ends with a report of where. */
#include "tests/fake/guard_impl.h"
#include "tests/shut_memory.h"

#include <execinfo.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA  ((size_t)1 << 38) /* addresses, not memory */
#define PAGE   ((size_t)4096)
#define MAPPED 1024 /* blocks of others at a time */

static char *base;
static size_t top;
static int64_t blocks;
static int file = -1;

void guard_refuse(const char *what, const char *why)
{
    void *frame[32];
    fprintf(stderr, "guarded device: %s: %s\n", what, why);
    backtrace_symbols_fd(frame, backtrace(frame, 32), STDERR_FILENO);
    abort();
}

static void refused(void)
{
    guard_refuse("memory of the device", "touched outside the kernel table");
}

static void reserve(void)
{
    file = memfd_create("guarded device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)ARENA) != 0)
        guard_refuse("memory of the device", "cannot be made");
    base = shut_memory(file, ARENA, &top, refused);
    if (!base)
        guard_refuse("memory of the device", "cannot be mapped");
}

void guard_open(void)
{
    shut_memory_open(false);
}

void guard_open_for(const wf_ctx *ctx)
{
    shut_memory_open(ctx->threads > 1);
}

void guard_close(void)
{
    shut_memory_close();
}

static size_t whole(size_t bytes)
{
    return (bytes + PAGE) / PAGE * PAGE;
}

/* Fresh memory is filled with values that are not zeros. */
wf_status guard_alloc(wf_ctx *ctx, size_t bytes, void **data)
{
    if (!base)
        reserve();
    WF_CHECK(whole(bytes) <= ARENA - top, WF_ERR_MEMORY, "no memory for a block of %zu bytes", bytes);
    guard_open();
    *data = base + top;
    top += whole(bytes);
    blocks++;
    memset(*data, 0xb7, bytes);
    guard_close();
    return WF_OK;
}

static void drop(void)
{
    if (--blocks == 0)
        top = 0;
}

/* CUDA's would wait for the whole device, and so for ranks that may never come. */
void guard_release(wf_ctx *ctx, void *data, size_t bytes)
{
    if (guard_streams_step())
        guard_refuse("release", "a call of NCCL is on its way, and nothing would end this wait for it");
    mprotect(data, whole(bytes), PROT_NONE);
    madvise(data, whole(bytes), MADV_REMOVE);
    drop();
}

static bool holds(const char *data, size_t bytes)
{
    return base && data >= base && data + bytes <= base + top;
}

bool guard_holds(const void *data)
{
    return holds(data, 1);
}

void guard_need_device(const char *what, const void *data, size_t bytes)
{
    if (bytes > 0 && !holds(data, bytes))
        guard_refuse(what, "is given memory that is not the device's");
}

void guard_need_host(const char *what, const void *data, size_t bytes)
{
    if (bytes > 0 && base && (const char *)data + bytes > base && (const char *)data < base + ARENA)
        guard_refuse(what, "is given memory of the device where the host's is needed");
}

typedef struct name {
    pid_t process;
    int file;
    uint64_t offset, bytes;
} name;

static guard_sharing sharing;

void guard_share_so(guard_sharing how)
{
    sharing = how;
}

wf_status guard_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share)
{
    const name n = {getpid(), file, (uint64_t)((char *)data - base), whole(bytes)};
    WF_CHECK(sharing != GUARD_SHARES_NOTHING, WF_ERR_UNSUPPORTED, "the guarded device shares nothing");
    guard_need_device("share", data, bytes);
    memset(share, 0, sizeof *share);
    memcpy(share->name, &n, sizeof n);
    return WF_OK;
}

/* What was mapped from others. */
static struct {
    void *data;
    size_t bytes;
} mapped[MAPPED];

static void note(void *data, size_t bytes)
{
    for (int i = 0; i < MAPPED; i++)
        if (!mapped[i].data) {
            mapped[i].data = data;
            mapped[i].bytes = bytes;
            return;
        }
    guard_refuse("map", "has mapped too much");
}

/* The other's pages take a place of their own among this one's. */
wf_status guard_map(wf_ctx *ctx, const wf_share *share, void **data)
{
    char path[64];
    name n;
    WF_CHECK(sharing != GUARD_MAPS_NOTHING, WF_ERR_UNSUPPORTED, "the guarded device maps nothing");
    memcpy(&n, share->name, sizeof n);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)n.process, n.file);
    const int theirs = open(path, O_RDWR | O_CLOEXEC);
    WF_CHECK(theirs >= 0, WF_ERR_UNSUPPORTED, "the memory of process %ld cannot be opened", (long)n.process);
    const wf_status status = guard_alloc(ctx, n.bytes - PAGE, data);
    if (status == WF_OK && sharing == GUARD_MAPS_COPIES) { /* looks mapped, and is this one's own */
        close(theirs);
        note(*data, n.bytes);
        return WF_OK;
    }
    if (status == WF_OK && mmap(*data, n.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, theirs, (off_t)n.offset) != *data)
        guard_refuse("map", "cannot map");
    if (status == WF_OK)
        note(*data, n.bytes);
    close(theirs);
    return status;
}

/* The place is this one's own again. */
void guard_unmap(wf_ctx *ctx, void *data)
{
    for (int i = 0; i < MAPPED; i++) {
        if (mapped[i].data != data)
            continue;
        if (mmap(data, mapped[i].bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, (off_t)((char *)data - base)) != data)
            guard_refuse("unmap", "cannot unmap");
        mapped[i].data = NULL;
        drop();
        return;
    }
    guard_refuse("unmap", "is given memory that was not mapped");
}
