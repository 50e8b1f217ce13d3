/* The process and MPI: who initialises it, what is said at the exit, and when it is finalised. Called once by the first
 * communicator and then by the exit of the program. */
#include "comm/open_impl.h"

#include "core/config_author.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS  1000000000 /* from one look at the other processes to the next, while they are awaited at the exit */
#define LEAVE_MS 20000      /* for MPI to end a process whose communicators are dead, on a busy machine */

static bool ours;   /* Weft initialised MPI */
static pid_t owner; /* the process that speaks MPI: a child that it forks has its memory, and no part in the job */
static MPI_Comm leaving = MPI_COMM_NULL;
static wf_comm *opened; /* the first one first */

void wf_mpi_opened(wf_comm *comm)
{
    wf_comm **at = &opened;
    while (*at)
        at = &(*at)->next_open;
    *at = comm;
}

void wf_mpi_closed(wf_comm *comm)
{
    for (wf_comm **at = &opened; *at; at = &(*at)->next_open)
        if (*at == comm) {
            *at = comm->next_open;
            return;
        }
}

void wf_mpi_abort(int code)
{
    if (getpid() != owner)
        _exit(code);
    wf_watch_last("MPI_Abort", LEAVE_MS);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* a launcher may drop what was written just before */
    if (!wf_mpi_gone())
        MPI_Abort(MPI_COMM_WORLD, code);
    /* MPI is gone, so the launcher learns of it by the code alone. */
    _exit(code);
}

static bool lives(const wf_comm *comm)
{
    for (; comm; comm = comm->parent)
        if (comm->death.status)
            return false;
    return true;
}

/* Tells the right neighbour that no collective follows, and all ranks that this program ends. */
static void say_farewell(wf_comm *comm)
{
    wf_control_leave(comm, "exit");
    wf_control_tell(comm, WF_OK, "", false);
}

/* Tells the others, which would wait for this rank until their time-out. The ranks of a communicator that died know
 * why. */
static void tell_that_we_leave(int code)
{
    for (wf_comm *comm = opened; comm; comm = comm->next_open) {
        if (!lives(comm))
            continue;
        if (code != 0)
            wf_failure_leave(comm, code);
        else
            say_farewell(comm);
    }
}

/* MPI_Finalize waits for all ranks without end, so it is called only once all are known to be there. One that has ended
 * well waits for those that still work as long as the launcher lives, which the watchdog looks after; but for one of
 * this machine that was stopped by a signal no longer than the time-out. */
static bool everybody_leaves(int code)
{
    const bool broken = wf_failure_happened(), well = code == 0 && !broken;
    const int64_t limit = (int64_t)(broken ? 3 * WF_GRACE_MS : wf_config_get()->timeout_ms) * 1000000;
    const int64_t every = limit / 4 < LOOK_NS ? limit / 4 : LOOK_NS;
    int64_t since = 0, looked = 0;
    wf_wait wait = {0};
    MPI_Request request;
    int done = 0;
    /* On a communicator of its own, made at the start: those of the program may be dead. */
    if (MPI_Ibarrier(leaving, &request) != MPI_SUCCESS)
        return false;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        const int64_t waited = wf_wait_ns(&wait);
        if (well && waited - looked > every) {
            looked = waited;
            if (!wf_recorder_finds_stopped())
                since = waited;
        }
        if (waited - since > limit)
            return false;
        wf_watch_beat();
        nanosleep(&(struct timespec){.tv_nsec = waited < 100000000 ? 20000 : 1000000}, NULL);
    }
    return done;
}

/* What is left of the exit is done here: a handler cannot change the code, and MPI is not to be called again. */
static void end_now(int code, const char *why)
{
    fflush(NULL);
    wf_log_write(WF_LOG_ERROR, "rank %d: %s", wf_recorder_rank(), why);
    _exit(code ? code : WF_WATCHDOG_EXIT);
}

static void finalize_mpi(int code)
{
    if (!everybody_leaves(code))
        end_now(code, "the program ends, and not all ranks do");
    if (wf_failure_happened())
        wf_watch_last("MPI_Finalize", LEAVE_MS);
    wf_control_sweep();
    MPI_Finalize();
}

/* exit() may come from a signal handler inside a call, or from another thread while one is in a call: MPI cannot be
 * called then. A program may well use the library in one thread and end in another, one after the other. */
static void at_exit(int code, void *unused)
{
    if (getpid() != owner)
        return;
    if (wf_watch_running())
        end_now(code, "the program ends in the middle of a call of the library");
    if (!wf_mpi_gone()) {
        wf_watch_begin("the exit of the program");
        tell_that_we_leave(code);
        if (ours)
            finalize_mpi(code);
        wf_watch_end();
    }
    if (code == 0)
        wf_recorder_remove();
}

static wf_status initialise(int *argc, char ***argv)
{
    int level = 0;
    TRY_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level));
    ours = true;
    TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &leaving));
    return WF_OK;
}

static wf_status take_place(void)
{
    int rank, size;
    TRY_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    wf_recorder_place(rank, size);
    return WF_OK;
}

wf_status wf_mpi_start(int *argc, char ***argv)
{
    static bool registered;
    int done = 0;
    wf_recorder_open();
    /* Before MPI_Init, which may hang when the ranks cannot reach each other. */
    wf_watchdog_start();
    TRY_MPI(MPI_Finalized(&done));
    WF_CHECK(!done, WF_ERR_STATE, "MPI was finalized; a communicator needs it");
    TRY_MPI(MPI_Initialized(&done));
    if (!done) {
        wf_mpi_waits("MPI_Init");
        const wf_status status = initialise(argc, argv);
        wf_mpi_waits(NULL);
        WF_TRY(status);
    }
    WF_TRY(take_place());
    owner = getpid();
    /* on_exit and not atexit: the handler needs the exit code. */
    if (!registered && on_exit(at_exit, NULL) == 0)
        registered = true;
    return WF_OK;
}
