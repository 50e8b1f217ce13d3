/* The engine keeps the schedules of calls: calls of shapes that it knows ask the system for no memory; more shapes than
 * it keeps give the right results all the same, in any order of calls. */
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdlib.h>

#define FEW  20
#define MANY 150 /* more than are kept */

/* Sums i + 1 numbers over the ranks, and spreads them from a root. */
static void call(int i)
{
    double values[MANY];
    for (int k = 0; k <= i; k++)
        values[k] = rank + k;
    WF_EXPECT_OK(wf_allreduce_f64(comm, values, i + 1, WF_SUM));
    for (int k = 0; k <= i; k++)
        WF_EXPECT(values[k] == size * (size - 1) / 2.0 + size * k, "%d numbers: number %d is %g", i + 1, k, values[k]);
    if (rank != i % size)
        values[i] = -1;
    WF_EXPECT_OK(wf_bcast_bytes(comm, values, (size_t)(i + 1) * sizeof *values, i % size));
    WF_EXPECT(values[i] == size * (size - 1) / 2.0 + size * i, "number %d is spread as %g", i, values[i]);
}

static void known_shapes(void)
{
    int64_t before = 0;
    for (int round = 0; round < 5; round++) {
        if (round == 2)
            before = wf_ctx_memory(ctx).system_allocations;
        for (int i = 0; i < FEW; i++)
            call(i);
    }
    const int64_t more = wf_ctx_memory(ctx).system_allocations - before;
    WF_EXPECT(more == 0, "%ld allocations in calls of known shapes", (long)more);
}

static void many_shapes(void)
{
    for (int i = 0; i < MANY; i++)
        call(i);
    for (int i = MANY - 1; i >= 0; i--)
        call(i);
    for (int i = 0; i < MANY; i++)
        call(i * 7 % MANY);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    return ranks_close(
        test_main(argc, argv, (test_case[]){{"known_shapes", known_shapes}, {"many_shapes", many_shapes}, {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
