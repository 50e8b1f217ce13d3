/* Memory of the guarded device: the host that touches it without a right ends with a report of where. */
#include "tests/fake/guard_impl.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA  ((size_t)1 << 38) /* addresses, not memory */
#define PAGE   ((size_t)4096)
#define CHUNK  ((size_t)1 << 18)
#define CHUNKS 256  /* at a time; more: all of it */
#define MAPPED 1024 /* blocks of others at a time */

static char *base;
static size_t top;
static int64_t blocks;
static int depth, file = -1;

/* What is open: a chunk opens when it is first touched while the memory is open. Most calls touch little of it. */
static size_t opened[CHUNKS];
static int n_opened;
static size_t all_below; /* 0: chunks are open, or none */

void guard_refuse(const char *what, const char *why)
{
    void *frame[32];
    fprintf(stderr, "guarded device: %s: %s\n", what, why);
    backtrace_symbols_fd(frame, backtrace(frame, 32), STDERR_FILENO);
    abort();
}

static void protect(size_t from, size_t bytes, int how)
{
    if (bytes > 0 && mprotect(base + from, bytes, how) != 0)
        guard_refuse("memory of the device", "cannot be protected");
}

static void open_all(void)
{
    protect(0, top, PROT_READ | PROT_WRITE);
    all_below = top;
}

static void open_chunk(size_t at)
{
    if (n_opened == CHUNKS) {
        open_all();
        return;
    }
    opened[n_opened] = at / CHUNK * CHUNK;
    protect(opened[n_opened++], CHUNK, PROT_READ | PROT_WRITE);
}

static void caught(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    const bool here = base && at >= base && at < base + ARENA;
    if (here && depth > 0 && at < base + top) {
        open_chunk((size_t)(at - base));
        return;
    }
    signal(SIGSEGV, SIG_DFL);
    if (here)
        guard_refuse("memory of the device", "touched outside the kernel table");
}

/* The handler has a stack of its own: code that oneDNN generates lets the stack pointer point into the heap. */
static void reserve(void)
{
    static char stack[1 << 16];
    const stack_t apart = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    file = memfd_create("guarded device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)ARENA) != 0)
        guard_refuse("memory of the device", "cannot be made");
    base = mmap(NULL, ARENA, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (base == MAP_FAILED)
        guard_refuse("memory of the device", "cannot be mapped");
    if (sigaltstack(&apart, NULL) != 0 || sigaction(SIGSEGV, &action, NULL) != 0)
        guard_refuse("memory of the device", "cannot be watched");
}

void guard_open(void)
{
    depth++;
}

/* All of it at once: threads other than this one have no stack for the handler. */
void guard_open_for(const wf_ctx *ctx)
{
    guard_open();
    if (ctx->threads > 1)
        open_all();
}

void guard_close(void)
{
    if (--depth > 0)
        return;
    protect(0, all_below, PROT_NONE);
    while (n_opened > 0)
        protect(opened[--n_opened], CHUNK, PROT_NONE);
    all_below = 0;
}

static size_t whole(size_t bytes)
{
    return (bytes + PAGE) / PAGE * PAGE;
}

/* Fresh memory holds what nobody can take for zeros. */
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

void guard_release(wf_ctx *ctx, void *data, size_t bytes)
{
    mprotect(data, whole(bytes), PROT_NONE);
    madvise(data, whole(bytes), MADV_REMOVE);
    drop();
}

static bool holds(const char *data, size_t bytes)
{
    return base && data >= base && data + bytes <= base + top;
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
