/* A rank that fails in the middle of a split, where the others may be in a call of MPI that looks at nothing: all get
 * the same error at once. Without memory: every call of malloc, calloc and realloc in a split fails in its turn, on
 * every rank in its turn; the linker diverts those calls to this file (--wrap), and in the shared form of the library
 * it does not, and nothing fails. Communicators of MPI are made of those of the library, and back. */
#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/world.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#define TEXT 700

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t bytes);

static int64_t left; /* calls until one fails; 0: none does */

static bool fails(void)
{
    return left > 0 && --left == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

static wf_comm *world;
static int rank, size;

/* Returns true if the split failed, and checks that all ranks then have the same error. */
static bool split_once(int culprit, int64_t nth)
{
    char mine[TEXT] = "", *all = malloc((size_t)size * TEXT);
    wf_comm *comm = wf_comm_split(world, 0, 0);
    WF_EXPECT_OK(wf_barrier(world));
    left = rank == culprit ? nth : 0;
    wf_comm *child = wf_comm_split(comm, 0, size - rank);
    wf_status status = child ? wf_reducer_connect(child) : wf_error_code();
    left = 0;
    status = status == WF_OK ? wf_barrier(child) : status;
    snprintf(mine, sizeof mine, "%s: %s", wf_status_name(status), status == WF_OK ? "" : wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_allgather_bytes(world, mine, TEXT, all));
    for (int r = 0; r < size; r++)
        WF_EXPECT(!strcmp(all + (size_t)r * TEXT, mine),
                  "rank %d without its memory %lld: rank %d has \"%s\", this "
                  "rank \"%s\"",
                  culprit, (long long)nth, r, all + (size_t)r * TEXT, mine);
    WF_EXPECT(status == WF_OK || status == WF_ERR_MEMORY, "rank %d without its memory %lld: \"%s\"", culprit,
              (long long)nth, mine);
    free(all);
    WF_EXPECT_OK(wf_comm_close(child));
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
    return status != WF_OK;
}

static void splits_without_memory(void)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit++) {
        int64_t nth = 1, passed = 0;
        for (; passed < 3 && nth < 200; nth++)
            passed = split_once(culprit, nth) ? 0 : passed + 1;
        WF_EXPECT(nth < 200, "rank %d: no split came to its end", culprit);
    }
}

static void without_memory(void)
{
    splits_without_memory();
}

/* A communicator whose ranks share memory for their sums: the window is made behind the split. */
static void without_memory_for_windows(void)
{
    wf_comm *flat = world;
    world = test_comm_open("single_node", (wf_ctx_opts){0});
    WF_EXPECT(world, "%s", wf_error_message());
    if (world)
        splits_without_memory();
    WF_EXPECT_OK(wf_comm_close(world));
    world = flat;
}

static void pause_here(int signal)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* This rank is held up for a millisecond again and again, wherever it is. */
static void hold_up(bool on)
{
    const struct itimerval every = {.it_interval.tv_usec = on ? 1300 + 370 * rank : 0,
                                    .it_value.tv_usec = on ? 700 + 170 * rank : 0};
    struct sigaction action = {.sa_handler = pause_here, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

/* The culprit takes no part in the splits: its notice reaches the others in the middle of one, each at another place.
 */
static void notices(void)
{
    for (int i = 0; size > 2 && i < 30; i++) {
        const int culprit = i % size;
        char mine[TEXT], first[TEXT];
        wf_comm *upper = wf_comm_split(world, 0, 0);
        wf_comm *comm = wf_comm_split(upper, rank == culprit ? -1 : 0, 0), *child[200];
        int made = 0;
        wf_status status = WF_OK;
        WF_EXPECT_OK(wf_barrier(world));
        hold_up(rank != culprit);
        if (rank == culprit) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000 + i * 377000}, NULL);
            status = wf_comm_post_failure(upper, WF_RAISE(WF_ERR_IO, "disk full"));
        }
        while (rank != culprit && made < 200 && (child[made] = wf_comm_split(comm, 0, 0)))
            made++;
        hold_up(false);
        status = rank == culprit ? status : wf_error_code();
        snprintf(mine, sizeof mine, "%s: %s", wf_status_name(status), wf_error_message());
        snprintf(first, sizeof first, "io: rank %d: disk full", culprit);
        WF_EXPECT(!strcmp(mine, first), "\"%s\", not \"%s\", after %d splits", mine, first, made);
        wf_error_clear();
        while (made > 0)
            WF_EXPECT_OK(wf_comm_close(child[--made]));
        WF_EXPECT_OK(wf_comm_close(comm));
        WF_EXPECT_OK(wf_comm_close(upper));
        WF_EXPECT_OK(wf_barrier(world));
    }
}

/* Sums the ranks' numbers by MPI, while the library's own messages are under way. */
static void use_mpi(MPI_Comm mpi, const wf_comm *like)
{
    int own = -1, ranks = 0, sum = -1;
    WF_EXPECT(MPI_Comm_rank(mpi, &own) == MPI_SUCCESS && own == wf_comm_rank(like), "rank %d is %d for MPI",
              wf_comm_rank(like), own);
    WF_EXPECT(MPI_Comm_size(mpi, &ranks) == MPI_SUCCESS && ranks == wf_comm_size(like), "%d ranks are %d for MPI",
              wf_comm_size(like), ranks);
    WF_EXPECT(MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, mpi) == MPI_SUCCESS, "MPI_Allreduce failed");
    WF_EXPECT(sum == ranks * (ranks - 1) / 2, "the sum of %d ranks is %d", ranks, sum);
}

/* A communicator of MPI is made of one of the library and back; the ranks are in reverse order. */
static void of_mpi(void)
{
    MPI_Comm mpi = MPI_COMM_NULL, alone = MPI_COMM_NULL;
    wf_comm *turned = wf_comm_split(world, 0, size - rank), *own = wf_comm_split(world, rank, 0);
    WF_EXPECT_OK(wf_comm_mpi(turned, &mpi));
    WF_EXPECT_OK(wf_comm_mpi(own, &alone));
    use_mpi(mpi, turned);
    use_mpi(alone, own);
    WF_EXPECT_OK(wf_barrier(turned));
    wf_comm *back = wf_comm_from_mpi(&mpi, "flat", (wf_ctx_opts){.device = "ref", .threads = 1});
    WF_EXPECT(wf_comm_rank(back) == wf_comm_rank(turned), "rank %d came back as %d", wf_comm_rank(turned),
              wf_comm_rank(back));
    WF_EXPECT_OK(wf_comm_close(turned));
    WF_EXPECT_OK(wf_comm_close(own));
    use_mpi(mpi, back);
    MPI_Comm_free(&mpi);
    MPI_Comm_free(&alone);
    WF_EXPECT_OK(wf_barrier(back));
    WF_EXPECT_OK(wf_comm_close(back));
}

/* One rank gives no place for it: all have its error. */
static void of_mpi_nowhere(void)
{
    for (int culprit = 0; culprit < size; culprit++) {
        MPI_Comm mpi = MPI_COMM_NULL;
        wf_comm *comm = wf_comm_split(world, 0, 0);
        const wf_status status = wf_comm_mpi(comm, rank == culprit ? NULL : &mpi);
        WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), "to fill is NULL"), "%s: %s",
                  wf_status_name(status), wf_error_message());
        WF_EXPECT(mpi == MPI_COMM_NULL, "a communicator in spite of the error");
        wf_error_clear();
        WF_EXPECT_OK(wf_comm_close(comm));
        WF_EXPECT_OK(wf_barrier(world));
    }
}

static int on_ranks(int argc, char **argv)
{
    world = test_comm_open("flat", (wf_ctx_opts){0});
    if (!world) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    rank = wf_comm_rank(world);
    size = wf_comm_size(world);
    const int status = test_main(argc, argv,
                                 (test_case[]){{"without_memory", without_memory},
                                               {"without_memory_for_windows", without_memory_for_windows},
                                               {"notices", notices},
                                               {"of_mpi", of_mpi},
                                               {"of_mpi_nowhere", of_mpi_nowhere},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(world));
    return status || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
