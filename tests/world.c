/* Starts MPI for a test and gives it communicators of several sizes in turn. Ranks that are not needed sleep, since
 * those under test need the processors. */
#include "tests/world.h"

#include "tests/test.h"
#include "tests/timeouts.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static MPI_Comm whole = MPI_COMM_NULL; /* for those who wait; the library knows nothing of it */
static MPI_Comm part = MPI_COMM_NULL;  /* the ranks under test, where they are not all */

wf_comm *test_comm_open(const char *name, wf_ctx_opts opts)
{
    return part == MPI_COMM_NULL ? wf_comm_open(NULL, NULL, name, opts) : wf_comm_from_mpi(&part, name, opts);
}

/* The library starts MPI, and so ends it at the exit. */
static bool start(int *argc, char ***argv, int *rank, int *size)
{
    wf_comm *comm = wf_comm_open(argc, argv, "flat", (wf_ctx_opts){0});
    if (!comm || wf_comm_close(comm) != WF_OK) {
        fprintf(stderr, "%s\n", wf_error_trail());
        return false;
    }
    test_timeouts_begin();
    MPI_Comm_dup(MPI_COMM_WORLD, &whole);
    MPI_Comm_rank(whole, rank);
    MPI_Comm_size(whole, size);
    return true;
}

/* Asleep: those under test need the processors. */
static void wait_for_all(void)
{
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(whole, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

int ranks_main(int argc, char **argv, int (*run)(int argc, char **argv))
{
    const char *counts = getenv("TEST_RANKS");
    int rank, size, status = 0, taken = 0;
    if (!counts || !*counts)
        return run(argc, argv);
    if (!start(&argc, &argv, &rank, &size))
        return 1;
    for (int n; sscanf(counts, "%d%n", &n, &taken) == 1; counts += taken) {
        if (rank == 0)
            printf("on %d of %d ranks\n", n, size);
        fflush(stdout);
        WF_EXPECT(n > 0 && n <= size, "TEST_RANKS wants %d of %d ranks", n, size);
        if (n < size)
            MPI_Comm_split(whole, rank < n ? 0 : MPI_UNDEFINED, rank, &part);
        if (rank < n && run(argc, argv) != 0)
            status = 1;
        if (part != MPI_COMM_NULL)
            MPI_Comm_free(&part);
        wait_for_all();
    }
    return status || test_failures() > 0;
}
