/* Communicators of the double of NCCL: made, split, and ended as NCCL ends them. */
#include "tests/fake/nccl_fake_impl.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION   22809
#define FIRST_TAG 1000  /* nobody else sends on MPI_COMM_WORLD */
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

static ncclComm_t alive; /* all that are not closed */

static void list_in(ncclComm_t comm)
{
    comm->next = alive;
    alive = comm;
}

static void list_out(const struct ncclComm *comm)
{
    ncclComm_t *at = &alive;
    while (*at && *at != comm)
        at = &(*at)->next;
    if (*at)
        *at = comm->next;
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

static void block(const char *name)
{
    while (!strcmp(name, blocked))
        sleep(1);
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

/* The rank that made the name hears of all others, and tells each who they are. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    token t;
    int self;
    ncclComm_t comm = calloc(1, sizeof *comm);
    block("ncclCommInitRankConfig");
    memcpy(&t, id.internal, sizeof t);
    MPI_Comm_rank(MPI_COMM_WORLD, &self);
    if (!comm || ranks > NCCL_FAKE_RANKS || config->magic != 0xcafebeef)
        return ncclSystemError;
    comm->ranks = ranks;
    comm->rank = rank;
    comm->tag = t.tag;
    comm->family = config->splitShare ? comm->tag : 0;
    for (int i = 1; i < ranks && self == t.world; i++) {
        int pair[2];
        MPI_Recv(pair, 2, MPI_INT, MPI_ANY_SOURCE, comm->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        comm->world[pair[0]] = pair[1];
    }
    if (self == t.world) {
        comm->world[rank] = self;
        for (int r = 0; r < ranks; r++)
            if (r != rank)
                MPI_Send(comm->world, ranks, MPI_INT, comm->world[r], comm->tag, MPI_COMM_WORLD);
    } else {
        const int pair[2] = {rank, self};
        MPI_Send(pair, 2, MPI_INT, t.world, comm->tag, MPI_COMM_WORLD);
        MPI_Recv(comm->world, ranks, MPI_INT, t.world, comm->tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    nccl_fake_count()->communicators++;
    list_in(comm);
    *out = comm;
    return ncclSuccess;
}

typedef struct part {
    int color, key, world, tag;
} part;

/* Every rank tells every other; the first of each color names the tag. */
static void meet(ncclComm_t comm, part mine, part all[NCCL_FAKE_RANKS])
{
    MPI_Request sent[NCCL_FAKE_RANKS];
    for (int r = 0; r < comm->ranks; r++)
        MPI_Isend(&mine, sizeof mine, MPI_BYTE, comm->world[r], comm->tag + SETUP, MPI_COMM_WORLD, &sent[r]);
    for (int r = 0; r < comm->ranks; r++)
        MPI_Recv(&all[r], sizeof *all, MPI_BYTE, comm->world[r], comm->tag + SETUP, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Waitall(comm->ranks, sent, MPI_STATUSES_IGNORE);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    part mine = {color, key, comm->world[comm->rank], 0}, all[NCCL_FAKE_RANKS];
    *out = NULL;
    block("ncclCommSplit");
    if (config || comm->error != ncclSuccess || comm->closed)
        return ncclInvalidUsage;
    mine.tag = new_tag(mine.world);
    meet(comm, mine, all);
    nccl_fake_count()->splits++;
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    ncclComm_t made = calloc(1, sizeof *made);
    made->family = comm->family;
    for (int r = 0; r < comm->ranks; r++) {
        int at = made->ranks;
        if (all[r].color != color)
            continue;
        if (made->ranks++ == 0)
            made->tag = all[r].tag;
        for (; at > 0 && made->key[at - 1] > all[r].key; at--) {
            made->world[at] = made->world[at - 1];
            made->key[at] = made->key[at - 1];
        }
        made->world[at] = all[r].world;
        made->key[at] = all[r].key;
    }
    while (made->world[made->rank] != mine.world)
        made->rank++;
    list_in(made);
    *out = made;
    return ncclSuccess;
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

/* As NCCL does it: waits for what is on the communicator's streams, which another communicator may hold up, and until
 * no graph holds it. */
void nccl_fake_finish_closing(void)
{
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
        list_out(closing.comm[i]);
        nccl_fake_forget(closing.comm[i]);
    }
    closing.count = 0;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    block("ncclCommDestroy");
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
    /* What shares resources shares the flag that ends kernels. */
    for (ncclComm_t other = alive; other && comm->family; other = other->next)
        if (other->family == comm->family)
            other->error = ncclSystemError;
    return ncclCommDestroy(comm);
}
