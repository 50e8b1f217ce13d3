/* Communicators of the double of NCCL: made, split, and ended as NCCL ends them. */
#include "tests/fake/nccl_fake_impl.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION   22809
#define FIRST_TAG 1000  /* no other code sends on MPI_COMM_WORLD */
#define SETUP     50000 /* beyond the tag of a communicator's work */
#define CLOSING   16    /* communicators that one group closes */
#define HANG_S    3     /* NCCL would wait without end */

static int communicators;

typedef struct token {
    int world, tag;
} token;

static int new_tag(int world)
{
    return FIRST_TAG + communicators++ + 100000 * world;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    token t;
    MPI_Comm_rank(MPI_COMM_WORLD, &t.world);
    t.tag = new_tag(t.world);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &t, sizeof t);
    return ncclSuccess;
}

static const char *blocked = "";

void nccl_fake_block(const char *name)
{
    blocked = name;
}

bool nccl_fake_blocks(const char *name)
{
    return strcmp(name, blocked) == 0;
}

static int pretended;

void nccl_fake_set_version(int version)
{
    pretended = version;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = pretended ? pretended : VERSION;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    token t;
    int self;
    ncclComm_t comm = calloc(1, sizeof *comm);
    memcpy(&t, id.internal, sizeof t);
    MPI_Comm_rank(MPI_COMM_WORLD, &self);
    if (!comm || ranks > NCCL_FAKE_RANKS)
        return ncclSystemError;
    if (config->blocking)
        guard_refuse("NCCL", "a communicator that blocks: nothing ends the wait for a rank that has died");
    comm->ranks = ranks;
    comm->rank = rank;
    comm->tag = t.tag;
    comm->elsewhere = !guard_is_here();
    comm->first = t.world;
    comm->connecting = true;
    comm->world[rank] = self;
    comm->present = 1;
    const int pair[2] = {rank, self};
    if (self != t.world)
        MPI_Send(pair, 2, MPI_INT, t.world, comm->tag, MPI_COMM_WORLD);
    nccl_fake_count()->communicators++;
    *out = comm;
    return ncclInProgress;
}

static bool is_there(int from, int tag)
{
    int there = 0;
    MPI_Iprobe(from, tag, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    return there != 0;
}

/* The rank that made the name receives a message of every other one, and tells each who they are. */
void nccl_fake_connect(ncclComm_t comm)
{
    const bool is_first = comm->world[comm->rank] == comm->first;
    if (nccl_fake_blocks("ncclCommInitRankConfig"))
        return;
    while (is_first && comm->present < comm->ranks && is_there(MPI_ANY_SOURCE, comm->tag)) {
        int pair[2];
        MPI_Recv(pair, 2, MPI_INT, MPI_ANY_SOURCE, comm->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        comm->world[pair[0]] = pair[1];
        comm->present++;
    }
    if (is_first && comm->present == comm->ranks) {
        for (int r = 0; r < comm->ranks; r++)
            if (r != comm->rank)
                MPI_Send(comm->world, comm->ranks, MPI_INT, comm->world[r], comm->tag, MPI_COMM_WORLD);
        comm->connecting = false;
    } else if (!is_first && is_there(comm->first, comm->tag)) {
        MPI_Recv(comm->world, comm->ranks, MPI_INT, comm->first, comm->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        comm->connecting = false;
    }
}

void nccl_fake_forget(ncclComm_t comm)
{
    if (comm->closed && comm->pending == 0)
        free(comm);
}

static struct {
    ncclComm_t comm[CLOSING];
    int count;
} closing;

static bool fails_to_end;

void nccl_fake_fail_end(void)
{
    fails_to_end = true;
}

/* As NCCL does it: waits for what is on the communicator's streams, which another communicator may hold up, and until
 * no graph holds it. */
ncclResult_t nccl_fake_finish_closing(void)
{
    const bool fails = fails_to_end && closing.count > 0;
    const double end = MPI_Wtime() + HANG_S;
    for (int i = 0; i < closing.count; i++) {
        ncclComm_t comm = closing.comm[i];
        if (comm->kept > 0)
            guard_refuse("NCCL", "the end of a communicator waits for a graph that holds it");
        for (wf_stream *stream; (stream = nccl_fake_stream_of(comm)) && MPI_Wtime() < end;)
            guard_stream_go_on(stream);
        if (comm->pending > 0)
            guard_refuse("NCCL", "the end of a communicator waits for work of another on its stream");
    }
    for (int i = 0; i < closing.count; i++) {
        closing.comm[i]->closed = true;
        nccl_fake_forget(closing.comm[i]);
    }
    closing.count = 0;
    fails_to_end = fails_to_end && !fails;
    return fails ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    while (nccl_fake_blocks("ncclCommDestroy"))
        sleep(1);
    if (closing.count == CLOSING)
        return ncclSystemError;
    closing.comm[closing.count++] = comm;
    if (!nccl_fake_grouping())
        nccl_fake_finish_closing();
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->error = ncclSystemError;
    nccl_fake_drop(comm);
    return ncclCommDestroy(comm);
}
