/* The transport over MPI messages, between any two ranks. Steps of schedules come from comm/engine/progress.c, what is
 * agreed before calls of MPI that block from comm/guard/commit.c. Calls return at once, and errors come as codes. */
#include "comm/transport/transport_impl.h"

#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(((wf_transfer *)0)->own), "a request must fit into a transfer");
_Static_assert(sizeof(MPI_Comm) <= sizeof(((wf_comm *)0)->mpi_comm), "a communicator must fit into wf_comm");

MPI_Comm *wf_mpi_comm(const wf_comm *comm)
{
    return (MPI_Comm *)(void *)&comm->mpi_comm;
}

static MPI_Request *request(wf_transfer *transfer)
{
    return (MPI_Request *)(void *)transfer->own;
}

static wf_status start(void *comm, wf_transfer *t)
{
    /* Schedules cut messages at chunk_bytes, which is at most 2^30. */
    const int bytes = (int)t->bytes;
    if (t->sending)
        TRY_MPI(MPI_Isend(t->data, bytes, MPI_BYTE, t->peer, t->tag, *wf_mpi_comm(comm), request(t)));
    else
        TRY_MPI(MPI_Irecv(t->data, bytes, MPI_BYTE, t->peer, t->tag, *wf_mpi_comm(comm), request(t)));
    return WF_OK;
}

static wf_status test(void *comm, wf_transfer *t)
{
    MPI_Status status;
    int done = 0, count = 0, class = MPI_SUCCESS;
    const int code = MPI_Test(request(t), &done, &status);
    if (code == MPI_SUCCESS && !done)
        return WF_OK;
    t->done = true;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    /* Not an error of MPI's: the other rank sent more, and the caller says who and how much. */
    if (class == MPI_ERR_TRUNCATE) {
        t->arrived = SIZE_MAX;
    } else if (code != MPI_SUCCESS) {
        t->status = wf_mpi_raise(code, "MPI_Test", __FILE__, __LINE__);
    } else if (!t->sending && MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS) {
        t->arrived = (size_t)count;
    }
    return WF_OK;
}

static void cancel(void *comm, wf_transfer *t)
{
    int done = 0;
    /* Sends cannot be cancelled (MPI 4 deprecates it): they are only looked at. */
    if (!t->sending && MPI_Cancel(request(t)) != MPI_SUCCESS)
        return;
    t->done = MPI_Test(request(t), &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done;
}

/* A message that was not received and that MPI has not looked at yet would be delivered to the next communicator that
 * gets this one's context (seen: a later message between the two ranks is lost then). After a look it
 * goes with this one. What a rank sends to one that has closed is not seen here (comm.h: every message is received). */
static void look_at_what_is_left(MPI_Comm from)
{
    int found;
    for (int i = 0; i < WF_MPI_LOOKS; i++)
        (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, from, &found, MPI_STATUS_IGNORE);
}

/* MPI_Comm_free of a broken communicator might wait, and its context must not be given to another one. */
void wf_transport_mpi_close(wf_comm *comm)
{
    if (!comm->link.own || comm->death.status || wf_mpi_gone())
        return;
    look_at_what_is_left(*wf_mpi_comm(comm));
    MPI_Comm_free(wf_mpi_comm(comm));
}

wf_status wf_transport_mpi_open(wf_comm *comm, MPI_Comm data)
{
    int *most, known = 0;
    *wf_mpi_comm(comm) = data;
    comm->link = (wf_link){.own = comm, .start = start, .test = test, .cancel = cancel};
    /* Only MPI_COMM_WORLD has this attribute for certain. */
    TRY_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &known));
    /* Keeps the two highest tags free: for meetings and for answers. */
    comm->tags = known && *most > 2 * WF_TAGS ? *most - WF_TAGS - 1 : WF_TAGS - 2;
    return WF_OK;
}
