/* Windows: memory that the ranks of a node share, a file of /dev/shm that every rank maps and that has no name once all
 * have. Each rank allocates its own segment of it, so that it lies near that rank, and so that a full file system is an
 * answer here and not a signal later. Ranks meet by calls of the engine, which see time-outs and failures; nothing here
 * waits in MPI. A window goes when the last of its ranks unmaps it or ends. */
#include "comm/engine/engine_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FOLDER    "/dev/shm"
#define PAGE      ((size_t)4096)
#define SPARE     ((uint64_t)4 << 20) /* for each rank of the machine: what MPI touches of its own files there later */
#define NAME_TEXT 80

/* `why` is empty on a rank that has not failed; every rank gets the text of the lowest rank that has. */
static wf_status agree_windows(wf_comm *comm, char (*all)[WF_WHY], char why[WF_FAILURE_TEXT])
{
    const wf_call call = {.operation = WF_CALL_ALLGATHER, .dtype = WF_U8, .count = WF_WHY};
    char mine[WF_WHY] = "";
    snprintf(mine, sizeof mine, "%.150s", why);
    WF_TRY(wf_engine_run(comm, &call, mine, all));
    why[0] = '\0';
    for (int r = 0; r < comm->size && !why[0]; r++)
        snprintf(why, WF_FAILURE_TEXT, "%s", all[r]);
    return WF_OK;
}

static uint64_t machine_ranks(const wf_comm *comm)
{
    while (comm->parent)
        comm = comm->parent;
    return (uint64_t)comm->intra_size;
}

static void check_room(const wf_comm *comm, uint64_t bytes, char why[WF_FAILURE_TEXT])
{
    struct statvfs s;
    const uint64_t needed = bytes + SPARE * machine_ranks(comm);
    if (statvfs(FOLDER, &s) != 0) {
        snprintf(why, WF_FAILURE_TEXT, "there is no " FOLDER);
        return;
    }
    const uint64_t there = (uint64_t)s.f_bavail * s.f_frsize;
    if (there < needed)
        snprintf(why, WF_FAILURE_TEXT, FOLDER " has %llu KiB free, %llu KiB are needed",
                 (unsigned long long)(there >> 10), (unsigned long long)(needed >> 10));
}

static void create(const wf_comm *comm, const char *name, size_t bytes, char why[WF_FAILURE_TEXT])
{
    check_room(comm, bytes, why);
    if (why[0])
        return;
    const int file = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
        snprintf(why, WF_FAILURE_TEXT, "%s: %s", name, strerror(errno));
    if (file >= 0)
        close(file);
}

/* Zeroed pages for this rank's segment, and the whole file mapped. */
static void map(const char *name, int place, wf_shm_window *w, char why[WF_FAILURE_TEXT])
{
    const int file = open(name, O_RDWR | O_CLOEXEC);
    const size_t at = (size_t)place * w->segment;
    int code = file < 0 ? errno : posix_fallocate(file, (off_t)at, (off_t)w->segment);
    void *base = MAP_FAILED;
    if (code == 0) {
        base = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        code = base == MAP_FAILED ? errno : 0;
    }
    if (file >= 0)
        close(file);
    if (code == 0)
        w->base = base;
    else
        snprintf(why, WF_FAILURE_TEXT, "%zu KiB of shared memory: %s", w->segment >> 10, strerror(code));
}

/* Others may have taken what was there when it was looked at. */
static wf_status connect(wf_comm *comm, char (*all)[WF_WHY], wf_shm_window *w, char why[WF_FAILURE_TEXT])
{
    char name[NAME_TEXT];
    int leader = 0;
    while (comm->ranks.node[leader] != comm->ranks.node[comm->rank])
        leader++;
    snprintf(name, sizeof name, FOLDER "/weft-window-%llx-%d-%llu", (unsigned long long)comm->id, leader,
             (unsigned long long)comm->sequence);
    why[0] = '\0';
    if (comm->rank == leader)
        create(comm, name, w->bytes, why);
    wf_status status = agree_windows(comm, all, why);
    if (status == WF_OK && !why[0]) {
        map(name, comm->intra_rank, w, why);
        if (!why[0] && comm->rank == leader)
            check_room(comm, 0, why);
        status = agree_windows(comm, all, why);
    }
    if (comm->rank == leader)
        unlink(name);
    return status;
}

wf_status wf_shm_window_open(wf_comm *comm, size_t bytes, wf_shm_window *w, char why[WF_FAILURE_TEXT])
{
    const size_t segment = (bytes + PAGE - 1) / PAGE * PAGE;
    char(*all)[WF_WHY] = wf_calloc(comm->shared->ctx, (size_t)comm->size, sizeof *all);
    *w = (wf_shm_window){.segment = segment, .bytes = (size_t)comm->intra_size * segment};
    if (!all)
        return wf_error_code();
    const wf_status status = connect(comm, all, w, why);
    wf_comm_release(comm, all);
    if (status != WF_OK || why[0])
        wf_shm_window_close(w);
    return status;
}

void wf_shm_window_close(wf_shm_window *w)
{
    if (w->base)
        munmap(w->base, w->bytes);
    *w = (wf_shm_window){0};
}
