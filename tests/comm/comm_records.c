/* Records of calls that are messages: which calls send none, and what the ranks learn of each other nevertheless. The
 * program has MPI_Isend and MPI_Irecv of its own, which count. */
#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/ranks.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 50, LATE_MS = 30 };

static int begun, awaited;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm mpi, MPI_Request *request)
{
    begun++;
    return PMPI_Isend(data, count, type, to, tag, mpi, request);
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm mpi, MPI_Request *request)
{
    awaited++;
    return PMPI_Irecv(data, count, type, from, tag, mpi, request);
}

/* --- calls, each of which checks its result -------------------------------------------------------------------------
 */

static wf_status sum_short(wf_comm *part)
{
    float x[16];
    for (int i = 0; i < 16; i++)
        x[i] = (float)(rank + i);
    const wf_status status = wf_allreduce_raw(part, x, x, 16, WF_F32, WF_SUM);
    for (int i = 0; i < 16 && status == WF_OK; i++)
        WF_EXPECT(x[i] == (float)(size * (size - 1) / 2 + size * i), "element %d of the sum is %g", i, (double)x[i]);
    return status;
}

static wf_status sum_gradients(wf_comm *part)
{
    float x[16] = {0};
    const int64_t offset[] = {0, 16};
    return wf_reducer_sum(part, &(wf_call){.out = x, .dtype = WF_F32, .parts = 1, .part = offset});
}

static wf_status gather_bytes(wf_comm *part)
{
    char mine = (char)(rank + 1), all[64] = {0};
    const wf_status status = wf_allgather_bytes(part, &mine, 1, all);
    for (int r = 0; r < size && status == WF_OK; r++)
        WF_EXPECT(all[r] == r + 1, "byte %d is %d", r, all[r]);
    return status;
}

static wf_status bcast_bytes(wf_comm *part)
{
    char data[24] = {(char)(rank == 0 ? 5 : 0)};
    const wf_status status = wf_bcast_bytes(part, data, sizeof data, 0);
    WF_EXPECT(status != WF_OK || data[0] == 5, "the broadcast brought %d", data[0]);
    return status;
}

typedef wf_status (*collective)(wf_comm *part);

/* --- cases ----------------------------------------------------------------------------------------------------------
 */

/* As many messages as a round of doubling needs; now and then a rank waits long, and sends its record too. */
static void data_alone(void)
{
    static const collective list[] = {sum_short, sum_gradients, gather_bytes, wf_barrier};
    wf_comm *part = wf_comm_split(comm, 0, 0);
    int rounds = 0;
    for (int known = 1; known < size; known *= 2)
        rounds++;
    for (int i = 0; i < 4; i++) {
        int least = 100;
        for (int k = 0; k < CALLS; k++) {
            begun = 0;
            WF_EXPECT_OK(list[i](part));
            least = begun < least ? begun : least;
        }
        WF_EXPECT(least == rounds, "call %d: %d messages where %d are enough", i, least, rounds);
    }
    WF_EXPECT_OK(wf_comm_close(part));
}

/* All others wait until they send their records, which come while other calls are under way. */
static void late_rank(void)
{
    for (int late = 0; late < size; late++) {
        wf_comm *part = wf_comm_split(comm, 0, 0);
        for (int k = 0; k < 80; k++) {
            if (rank == late && k % 40 < 2)
                test_sleep_ms(LATE_MS);
            WF_EXPECT_OK((k % 3 == 0 ? sum_short : k % 3 == 1 ? wf_barrier : gather_bytes)(part));
            if (k % 5 == 0)
                WF_EXPECT_OK(bcast_bytes(part));
        }
        WF_EXPECT_OK(wf_comm_close(part));
    }
}

/* The right neighbour of ranks that always wait receives their records, though it waits for nothing. */
static void records_do_not_add_up(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    awaited = 0;
    for (int k = 0; k < 40 && size == 2; k++) {
        if (rank == 1)
            test_sleep_ms(LATE_MS);
        WF_EXPECT_OK(wf_barrier(part));
    }
    WF_EXPECT(size != 2 || rank == 0 || awaited > 40 + 15, "%d receives in 40 calls", awaited);
    WF_EXPECT_OK(wf_comm_close(part));
}

/* One rank makes a call that sends its record with one that does not, or two of the same kind; each after calls whose
 * records have come late, or never. */
static void disagreements(void)
{
    static const struct {
        collective theirs, others;
        const char *says;
    } list[] = {{bcast_bytes, wf_barrier, " calls bcast_bytes("},
                {wf_barrier, bcast_bytes, " calls barrier("},
                {gather_bytes, sum_short, " calls allgather_bytes("},
                {bcast_bytes, sum_short, " calls bcast_bytes("},
                {sum_gradients, wf_barrier, " calls flat("}};
    for (int i = 0; i < 5; i++)
        for (int culprit = 0; size > 1 && culprit < size; culprit++) {
            wf_comm *part = wf_comm_split(comm, 0, 0);
            char says[64];
            for (int k = 0; k < 3; k++) {
                if (rank == (culprit + k) % size)
                    test_sleep_ms(LATE_MS);
                WF_EXPECT_OK(sum_short(part));
            }
            snprintf(says, sizeof says, "rank %d%s", culprit, list[i].says);
            wf_status status = (rank == culprit ? list[i].theirs : list[i].others)(part);
            if (status == WF_OK) /* the data of a broadcast may have been sent already */
                status = wf_barrier(part);
            expect_same_error(comm, status, WF_ERR_COMM, says, "other calls", culprit);
            WF_EXPECT_OK(wf_comm_close(part));
        }
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"data_alone", data_alone},
                                               {"late_rank", late_rank},
                                               {"records_do_not_add_up", records_do_not_add_up},
                                               {"disagreements", disagreements},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
