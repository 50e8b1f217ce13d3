/* Set-up over MPI: what the ranks tell each other when a communicator is opened, who is on which node, and the parts of
 * a communicator. Called by comm/open.c; programs call wf_comm_mpi. Here alone ranks meet without control channel, so
 * nothing may fail between two collective steps. */
#include "comm/open_impl.h"

#include "core/config_author.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the ranks tell each other when a communicator is opened. */
typedef struct setup {
    int32_t status, leader; /* leader: the lowest rank of this node */
    int64_t pid;
    uint64_t chunk_bytes, id;
    char name[32];
    char message[WF_FAILURE_TEXT];
} setup;

/* Notes process, node and world's number of rank r; `leader` is the lowest rank of its node. Ranks are visited in
 * order, so that all ranks number nodes alike, by their lowest ranks. */
static void place_rank(wf_comm *comm, int r, int leader, int64_t pid, int32_t world_rank)
{
    comm->ranks.pid[r] = pid;
    comm->ranks.world[r] = world_rank;
    comm->ranks.node[r] = leader == r ? comm->inter_size++ : comm->ranks.node[leader];
}

/* Computes this rank's place in its node, after place_rank of all ranks. */
static void take_place(wf_comm *comm)
{
    comm->inter_rank = comm->ranks.node[comm->rank];
    for (int r = 0; r < comm->size; r++) {
        comm->intra_size += comm->ranks.node[r] == comm->inter_rank;
        comm->intra_rank += comm->ranks.node[r] == comm->inter_rank && r < comm->rank;
    }
}

static wf_status agree_setups(wf_comm *comm, const setup *all)
{
    size_t *const chunk_bytes = &comm->shared->chunk_bytes;
    *chunk_bytes = (size_t)1 << 30; /* MPI counts with int */
    for (int r = 0; r < comm->size; r++) {
        if (all[r].status != WF_OK && comm->size > 1)
            WF_FAIL((wf_status)all[r].status, "rank %d: %s", r, all[r].message);
        if (all[r].chunk_bytes < *chunk_bytes)
            *chunk_bytes = all[r].chunk_bytes;
    }
    if (all[0].status != WF_OK)
        return (wf_status)all[0].status;
    for (int r = 1; r < comm->size; r++)
        WF_CHECK(!strcmp(all[r].name, all[0].name), WF_ERR_ARGUMENT,
                 "communicator \"%s\" on rank 0 and \"%s\" on rank %d: all ranks must ask for the same", all[0].name,
                 all[r].name, r);
    return WF_OK;
}

/* The memory of what follows, so that nothing fails between two collective steps. */
static wf_status make_room(wf_comm *comm)
{
    comm->ranks.node = calloc((size_t)comm->size, sizeof *comm->ranks.node);
    comm->ranks.pid = calloc((size_t)comm->size, sizeof *comm->ranks.pid);
    comm->ranks.world = calloc((size_t)comm->size, sizeof *comm->ranks.world);
    WF_CHECK(comm->ranks.node && comm->ranks.pid && comm->ranks.world, WF_ERR_MEMORY, "no memory for %d ranks",
             comm->size);
    if (comm->size == 1)
        return WF_OK;
    WF_TRY(wf_control_new(comm));
    wf_mpi_opened(comm);
    return WF_OK;
}

/* Without room for what the others say, a rank can still say that it has none. */
static wf_status check_lists(wf_comm *comm, MPI_Comm data, const void *list)
{
    int mine = list != NULL, all = 0;
    TRY_MPI(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, data));
    WF_CHECK(all, WF_ERR_MEMORY, "a rank has no memory for a communicator of %d ranks", comm->size);
    return WF_OK;
}

static wf_status exchange_setups(wf_comm *comm, MPI_Comm data, const setup *mine)
{
    setup *all = calloc((size_t)comm->size, sizeof *all);
    const wf_status there = check_lists(comm, data, all);
    if (there != WF_OK) {
        free(all);
        return there;
    }
    const int code = MPI_Allgather(mine, (int)sizeof *mine, MPI_BYTE, all, (int)sizeof *mine, MPI_BYTE, data);
    wf_status status = code == MPI_SUCCESS ? WF_OK : wf_mpi_raise(code, "MPI_Allgather", __FILE__, __LINE__);
    if (status == WF_OK) {
        comm->id = all[0].id;
        status = agree_setups(comm, all);
    }
    for (int r = 0; status == WF_OK && r < comm->size; r++)
        place_rank(comm, r, all[r].leader, all[r].pid, r);
    if (status == WF_OK)
        take_place(comm);
    free(all);
    return status;
}

static wf_status find_leader(MPI_Comm data, int rank, int32_t *leader)
{
    MPI_Comm node;
    int first = rank;
    TRY_MPI(MPI_Comm_split_type(data, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
    TRY_MPI(MPI_Bcast(&first, 1, MPI_INT, 0, node));
    TRY_MPI(MPI_Comm_free(&node));
    *leader = first;
    return WF_OK;
}

static wf_status open_transport(wf_comm *comm, MPI_Comm data)
{
    MPI_Comm control;
    /* Notices must never meet data, nor wait behind it. */
    TRY_MPI(MPI_Comm_dup(data, &control));
    TRY_MPI(MPI_Comm_set_errhandler(control, MPI_ERRORS_RETURN));
    WF_TRY(wf_transport_mpi_open(comm, data));
    return wf_control_open(comm, &control);
}

/* The communicators of a process have different ones; rank 0's is that of all. */
static uint64_t new_id(void)
{
    static uint64_t made;
    const uint64_t mixed = ((uint64_t)wf_now_ns() + ++made) * 0x9e3779b97f4a7c15u + (uint64_t)getpid();
    return mixed ^ (mixed >> 32);
}

/* Every rank takes every collective step, whatever has failed on it, so that no rank is left waiting. */
static wf_status fill_comm(wf_comm *comm, MPI_Comm data, wf_status status)
{
    setup mine = {.chunk_bytes = (uint64_t)wf_config_get()->chunk_bytes, .id = new_id(), .pid = getpid()};
    wf_status saved = WF_OK;
    TRY_MPI(MPI_Comm_set_errhandler(data, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_rank(data, &comm->rank));
    TRY_MPI(MPI_Comm_size(data, &comm->size));
    status = status == WF_OK ? make_room(comm) : status;
    if (status != WF_OK)
        wf_error_save(&saved, mine.message, sizeof mine.message);
    mine.status = status;
    if (comm->name)
        strncpy(mine.name, comm->name, sizeof mine.name - 1);
    WF_TRY(find_leader(data, comm->rank, &mine.leader));
    status = exchange_setups(comm, data, &mine);
    if (status == WF_OK && comm->size > 1)
        return open_transport(comm, data);
    MPI_Comm_free(&data);
    return status;
}

wf_status wf_mpi_attach(wf_comm *comm, const void *mpi_comm, wf_status status)
{
    const MPI_Comm from = mpi_comm ? *(const MPI_Comm *)mpi_comm : MPI_COMM_WORLD;
    MPI_Comm data;
    int inter = 0;
    WF_CHECK(from != MPI_COMM_NULL, WF_ERR_ARGUMENT, "the MPI communicator is MPI_COMM_NULL");
    TRY_MPI(MPI_Comm_test_inter(from, &inter));
    WF_CHECK(!inter, WF_ERR_ARGUMENT, "an MPI intercommunicator has no ranks of its own; merge it first");
    /* MPI's own collectives cannot be polled: only the watchdog can end a wait in one of them. */
    wf_mpi_waits("MPI_Comm_dup, to open a communicator");
    const int code = MPI_Comm_dup(from, &data);
    status =
        code == MPI_SUCCESS ? fill_comm(comm, data, status) : wf_mpi_raise(code, "MPI_Comm_dup", __FILE__, __LINE__);
    wf_mpi_waits(NULL);
    return status;
}

wf_status wf_mpi_prepare(const wf_comm *comm, const int *member, int members, wf_comm *child)
{
    child->size = members;
    child->id = new_id();
    while (member[child->rank] != comm->rank)
        child->rank++;
    WF_TRY(make_room(child));
    for (int r = 0; r < members; r++) {
        int leader = 0;
        while (comm->ranks.node[member[leader]] != comm->ranks.node[member[r]])
            leader++;
        place_rank(child, r, leader, comm->ranks.pid[member[r]], comm->ranks.world[member[r]]);
    }
    take_place(child);
    return WF_OK;
}

static wf_status part(const wf_comm *comm, const int *member, wf_comm *child)
{
    const MPI_Comm from = *wf_mpi_comm(comm);
    MPI_Group all, some;
    MPI_Comm data;
    TRY_MPI(MPI_Comm_group(from, &all));
    TRY_MPI(MPI_Group_incl(all, child->size, member, &some));
    TRY_MPI(MPI_Comm_create_group(from, some, 0, &data));
    TRY_MPI(MPI_Group_free(&all));
    TRY_MPI(MPI_Group_free(&some));
    TRY_MPI(MPI_Comm_set_errhandler(data, MPI_ERRORS_RETURN));
    return open_transport(child, data);
}

wf_status wf_mpi_part(wf_comm *comm, const int *member, wf_comm *child)
{
    wf_mpi_waits("MPI_Comm_create_group");
    const wf_status status = part(comm, member, child);
    wf_mpi_waits(NULL);
    return status;
}

wf_status wf_comm_mpi(wf_comm *comm, void *mpi_comm)
{
    WF_NEED(comm);
    WF_TRY(wf_comm_post_failure(comm,
                                mpi_comm ? WF_OK : WF_RAISE(WF_ERR_ARGUMENT, "the MPI communicator to fill is NULL")));
    WF_TRY(wf_barrier(comm)); /* no rank waits in MPI for one that has failed */
    wf_mpi_waits("MPI_Comm_dup, for the program");
    /* One rank has no transport of messages. */
    const int code = MPI_Comm_dup(comm->size > 1 ? *wf_mpi_comm(comm) : MPI_COMM_SELF, mpi_comm);
    wf_mpi_waits(NULL);
    TRY_MPI(code);
    TRY_MPI(MPI_Comm_set_errhandler(*(MPI_Comm *)mpi_comm, MPI_ERRORS_ARE_FATAL));
    return WF_OK;
}
