/* Memory that the ranks of a node share, as an MPI window made at set-up. Whether there is room is asked before, since
 * MPI may hang or be killed where there is none. Collective, and never called while messages are in flight. */
#include "comm/transport/transport_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#define SHARED_FOLDER "/dev/shm"
#define SPARE         ((uint64_t)1 << 20) /* MPI's own, and those of other programs meanwhile */
#define LISTED        16
#define ALIGN         ((size_t)128) /* two cache lines, which processors fetch together */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* A window is freed by all its ranks together, so not when one of them closes a communicator, but at the end. */
static MPI_Win *window;
static int windows, room;

void wf_mpi_unshare_all(void)
{
    for (int i = 0; i < windows; i++)
        MPI_Win_free(&window[i]);
    free(window);
    window = NULL;
    windows = room = 0;
}

static wf_status remember(MPI_Win win)
{
    if (windows == room) {
        MPI_Win *more = realloc(window, (size_t)(room + LISTED) * sizeof *more);
        WF_CHECK(more, WF_ERR_MEMORY, "no memory for a window");
        window = more;
        room += LISTED;
    }
    window[windows++] = win;
    return WF_OK;
}

/* Everybody's lowest answer, and the words of the lowest rank that said no. */
static wf_status agree(MPI_Comm all, int rank, bool *yes, char why[WF_FAILURE_TEXT])
{
    int size, first = *yes ? -1 : rank, speaker;
    TRY_MPI(MPI_Comm_size(all, &size));
    first = first < 0 ? size : first;
    TRY_MPI(MPI_Allreduce(&first, &speaker, 1, MPI_INT, MPI_MIN, all));
    *yes = speaker == size;
    if (!*yes)
        TRY_MPI(MPI_Bcast(why, WF_FAILURE_TEXT, MPI_CHAR, speaker, all));
    return WF_OK;
}

/* MPI makes a file of the window there. Some of them hang where it does not fit, others are killed when they touch it,
 * so that is asked ahead. */
static bool there_is_room(uint64_t bytes, char why[WF_FAILURE_TEXT])
{
    struct statvfs s;
    if (statvfs(SHARED_FOLDER, &s) != 0) {
        snprintf(why, WF_FAILURE_TEXT, "there is no " SHARED_FOLDER);
        return false;
    }
    const uint64_t there = (uint64_t)s.f_bavail * s.f_frsize;
    if (there >= bytes + SPARE)
        return true;
    snprintf(why, WF_FAILURE_TEXT, SHARED_FOLDER " has %llu KiB free, %llu KiB are needed",
             (unsigned long long)(there >> 10), (unsigned long long)((bytes + SPARE) >> 10));
    return false;
}

/* Kernels that do not know this way of asking leave it at what the file system said. */
static bool pages_are_there(void *base, size_t bytes, char why[WF_FAILURE_TEXT])
{
    const uintptr_t page = 4096, from = ((uintptr_t)base + page - 1) / page * page;
    const uintptr_t to = ((uintptr_t)base + bytes) / page * page;
    if (to <= from || madvise((void *)from, to - from, MADV_POPULATE_WRITE) == 0 || errno == EINVAL)
        return true;
    snprintf(why, WF_FAILURE_TEXT, "shared memory cannot be written: %s", strerror(errno));
    return false;
}

/* MPI puts a head of its own before the memory. Every process maps it at a page's start, so the next multiple of ALIGN
 * is the same place for all. */
static void *aligned(void *base)
{
    return (void *)(((uintptr_t)base + ALIGN - 1) / ALIGN * ALIGN);
}

static wf_status allocate(MPI_Comm node, size_t bytes, void **base, MPI_Win *win)
{
    int size;
    const size_t whole = (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN;
    MPI_Info info;
    TRY_MPI(MPI_Comm_size(node, &size));
    TRY_MPI(MPI_Info_create(&info));
    /* Each rank's piece then begins at a page of its own, and lies on the memory of its own processor. */
    TRY_MPI(MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    TRY_MPI(MPI_Win_allocate_shared((MPI_Aint)whole, 1, info, node, &base[0], win));
    TRY_MPI(MPI_Info_free(&info));
    for (int i = 0; i < size; i++) {
        MPI_Aint length;
        int unit;
        TRY_MPI(MPI_Win_shared_query(*win, i, &length, &unit, &base[i]));
        base[i] = aligned(base[i]);
    }
    return WF_OK;
}

static wf_status share(wf_comm *comm, MPI_Comm all, MPI_Comm node, size_t bytes, void **base, char why[WF_FAILURE_TEXT])
{
    MPI_Win win;
    int place, size;
    bool yes;
    TRY_MPI(MPI_Comm_rank(node, &place));
    TRY_MPI(MPI_Comm_size(node, &size));
    base[0] = NULL;
    /* One rank of each node asks for all of the node; the answer is agreed on by all nodes. */
    yes = place > 0 || there_is_room((uint64_t)bytes * (uint64_t)size, why);
    WF_TRY(agree(all, comm->rank, &yes, why));
    if (!yes)
        return WF_OK;
    WF_TRY(allocate(node, bytes, base, &win));
    WF_TRY(remember(win));
    yes = pages_are_there(base[place], bytes, why);
    WF_TRY(agree(all, comm->rank, &yes, why));
    if (!yes) {
        base[0] = NULL;
        return WF_OK;
    }
    /* Every rank touches its own memory first, so that the kernel puts it near its processor. */
    memset(base[place], 0, bytes);
    TRY_MPI(MPI_Barrier(node));
    return WF_OK;
}

static wf_status share_in_nodes(wf_comm *comm, size_t bytes, void **base, int *rank, char why[WF_FAILURE_TEXT])
{
    const MPI_Comm all = *(const MPI_Comm *)comm->mpi_comm;
    MPI_Comm node;
    TRY_MPI(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &node));
    TRY_MPI(MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN));
    wf_status status = share(comm, all, node, bytes, base, why);
    if (status == WF_OK && MPI_Allgather(&comm->rank, 1, MPI_INT, rank, 1, MPI_INT, node) != MPI_SUCCESS)
        status = WF_RAISE(WF_ERR_COMM, "MPI_Allgather failed among the ranks of a node");
    if (status == WF_OK)
        TRY_MPI(MPI_Comm_free(&node));
    return status;
}

wf_status wf_mpi_share(wf_comm *comm, size_t bytes, void **base, int *rank, char why[WF_FAILURE_TEXT])
{
    wf_mpi_waits("MPI_Win_allocate_shared");
    const wf_status status = share_in_nodes(comm, bytes, base, rank, why);
    wf_mpi_waits(NULL);
    return status;
}
