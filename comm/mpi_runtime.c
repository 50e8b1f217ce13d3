#include "comm/mpi_impl.h"

#include "core/config_author.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_OPEN 64

static bool ours;   /* Weft initialised MPI */
static bool broken; /* a communicator died */
static MPI_Comm leaving = MPI_COMM_NULL;
static wf_comm *opened[MOST_OPEN];

wf_status wf_mpi_raise(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0, name = 0;
    MPI_Error_string(code, text, &length);
    while (call[name] && call[name] != '(')
        name++;
    return wf_error_set(WF_ERR_COMM, file, line, "%.*s: %.200s", name, call, text);
}

void wf_mpi_opened(wf_comm *comm)
{
    for (int i = 0; i < MOST_OPEN; i++)
        if (!opened[i]) {
            opened[i] = comm;
            return;
        }
}

void wf_mpi_closed(wf_comm *comm)
{
    for (int i = 0; i < MOST_OPEN; i++)
        if (opened[i] == comm)
            opened[i] = NULL;
}

void wf_mpi_broken(void)
{
    broken = true;
}

void wf_mpi_abort(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
    abort();
}

static bool lives(const wf_comm *comm)
{
    for (; comm; comm = comm->parent)
        if (comm->dead)
            return false;
    return true;
}

/* Ranks that wait for one that has failed and left would otherwise wait for their time-out. Where a communicator died,
 * its family has been told why. */
static void tell_that_we_leave(int code)
{
    for (int i = 0; i < MOST_OPEN; i++)
        if (opened[i] && lives(opened[i]))
            wf_comm_post_failure(opened[i], WF_RAISE(WF_ERR_COMM, "the program ended with exit code %d", code));
}

/* MPI_Finalize waits for all ranks without end, so it is called only once all are known to be there. */
static bool everybody_leaves(void)
{
    const long limit_ms = broken ? 3 * WF_GRACE_MS : wf_config_get()->timeout_ms;
    const int64_t start = wf_now_ns();
    MPI_Request request;
    int done = 0;
    if (MPI_Ibarrier(leaving, &request) != MPI_SUCCESS)
        return false;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (wf_now_ns() - start > (int64_t)limit_ms * 1000000)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return done;
}

static void at_exit(int code, void *unused)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        return;
    if (code != 0)
        tell_that_we_leave(code);
    if (ours && everybody_leaves()) {
        wf_mpi_unshare_all();
        MPI_Finalize();
    }
}

wf_status wf_mpi_start(int *argc, char ***argv)
{
    static bool registered;
    int done = 0, level = 0;
    TRY_MPI(MPI_Finalized(&done));
    WF_CHECK(!done, WF_ERR_STATE, "MPI was finalized; a communicator needs it");
    TRY_MPI(MPI_Initialized(&done));
    if (!done) {
        TRY_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level));
        ours = true;
        TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
        TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
        TRY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &leaving));
    }
    if (!registered && on_exit(at_exit, NULL) == 0)
        registered = true;
    return WF_OK;
}
