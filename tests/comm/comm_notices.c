/* A rank fails in place of each call, or in the middle of it: all ranks end that call, or the next one, in its error,
 * word for word; by messages, and in memory that a node shares. What ranks do at each step of their schedules
 * meanwhile: schedules_faults.c. */
#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "comm/exchange_author.h"
#include "comm/reducer_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/ranks.h"

#include <stdio.h>
#include <string.h>
#include <weft_places.h>

enum { MOST = 8, SHORT = 5, LONG = 100000 };

static wf_tensor *x, *y, *part[MOST], *room[MOST];

static wf_status bcast(wf_comm *c)
{
    return wf_bcast(c, x, 0);
}

static wf_status reduce(wf_comm *c)
{
    return wf_reduce(c, x, y, WF_SUM, size - 1);
}

static wf_status allreduce(wf_comm *c)
{
    return wf_allreduce(c, x, y, WF_SUM);
}

static wf_status gather(wf_comm *c)
{
    return wf_gather(c, x, room, 0);
}

static wf_status allgather(wf_comm *c)
{
    return wf_allgather(c, x, room);
}

static wf_status scatter(wf_comm *c)
{
    return wf_scatter(c, part, y, 0);
}

static wf_status alltoall(wf_comm *c)
{
    return wf_alltoall(c, part, room);
}

static wf_status reduce_scatter(wf_comm *c)
{
    return wf_reduce_scatter(c, part, y, WF_SUM);
}

static wf_status around(wf_comm *c)
{
    return wf_sendrecv(c, x, (rank + 1) % size, y, (rank + size - 1) % size, 3);
}

static wf_status allgather_bytes(wf_comm *c)
{
    char all[MOST];
    return wf_allgather_bytes(c, "1", 1, all);
}

static wf_status scatter_bytes(wf_comm *c)
{
    static const void *const from[MOST] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    static const size_t bytes[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    char to;
    return wf_scatter_bytes(c, from, bytes, &to, 1, 0);
}

static wf_status gather_bytes(wf_comm *c)
{
    size_t lengths[MOST];
    void *all = NULL;
    const wf_status status = wf_gather_bytes(c, "12", (size_t)rank % 3, lengths, &all, 0);
    free(all);
    return status;
}

static wf_status agree(wf_comm *c)
{
    return wf_agree_status(c, WF_OK);
}

static wf_call job_of(float *flat, const int64_t offset[2])
{
    return (wf_call){.out = flat, .dtype = WF_F32, .parts = 1, .part = offset};
}

static wf_status gradients(wf_comm *c)
{
    static float flat[LONG];
    static const int64_t offset[] = {0, LONG};
    const wf_call job = job_of(flat, offset);
    return wf_reducer_sum(c, &job);
}

static wf_status background(wf_comm *c)
{
    static float flat[SHORT];
    static const int64_t offset[] = {0, SHORT};
    const wf_call job = job_of(flat, offset);
    wf_background_sum(c, &job);
    return wf_background_wait(c);
}

typedef wf_status (*collective)(wf_comm *c);

static const struct {
    const char *name;
    collective call;
    bool compared; /* a collective of comm.h, with whose record that of a barrier is compared */
} calls[] = {{"barrier", wf_barrier, false},
             {"bcast", bcast, true},
             {"reduce", reduce, true},
             {"allreduce", allreduce, true},
             {"gather", gather, true},
             {"allgather", allgather, true},
             {"scatter", scatter, true},
             {"alltoall", alltoall, true},
             {"reduce_scatter", reduce_scatter, true},
             {"sendrecv", around, false},
             {"allgather_bytes", allgather_bytes, true},
             {"scatter_bytes", scatter_bytes, true},
             {"gather_bytes", gather_bytes, true},
             {"agree_status", agree, false},
             {"gradients", gradients, false},
             {"background sum", background, false}};

static wf_status fail(wf_comm *c)
{
    return wf_comm_post_failure(c, WF_RAISE(WF_ERR_IO, "disk %d is full", rank));
}

static void expect_notice(wf_status status, const char *what, int culprit)
{
    char says[64];
    snprintf(says, sizeof says, "rank %d: disk %d is full", culprit, culprit);
    expect_same_error(comm, status, WF_ERR_IO, says, what, culprit);
}

static wf_status call_barrier(wf_comm *c)
{
    return wf_barrier(c);
}

/* The error names both calls, and where this file makes them. */
static void expect_places(wf_status status, const char *what, int culprit)
{
    char said[WF_FAILURE_TEXT] = "";
    int places = 0;
    wf_error_save(&status, said, sizeof said);
    for (const char *at = said; (at = strstr(at, " at comm_notices.c:")); at++)
        places++;
    WF_EXPECT(status == WF_ERR_COMM && places == 2, "a barrier of rank %d in %s: \"%s\"", culprit, what, said);
    wf_error_clear();
}

/* The culprit fails, or makes another call. Ranks that need nothing of it may end the call well, and learn of the
 * failure in the next one. */
static void in_place_of(collective call, const char *name, int culprit, collective other,
                        void (*expect)(wf_status status, const char *what, int culprit))
{
    const wf_shape shape = WF_SHAPE(culprit % 2 ? LONG : SHORT);
    wf_comm *c = wf_comm_split(comm, 0, 0);
    if (call == background)
        WF_EXPECT_OK(wf_background_open(c));
    x = wf_tensor_new(ctx, WF_F32, shape);
    y = wf_tensor_new(ctx, WF_F32, shape);
    for (int r = 0; r < size; r++) {
        part[r] = x;
        room[r] = wf_tensor_new(ctx, WF_F32, shape);
    }
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_barrier(c));
    wf_status status = rank == culprit ? other(c) : call(c);
    if (status == WF_OK)
        status = wf_barrier(c);
    expect(status, name, culprit);
    for (int r = 0; r < size; r++)
        wf_tensor_free(room[r]);
    wf_tensor_free(x);
    wf_tensor_free(y);
    WF_EXPECT_OK(wf_comm_close(c));
}

static void in_place_of_a_call(void)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int culprit = 0; culprit < size; culprit++)
            in_place_of(calls[i].call, calls[i].name, culprit, fail, expect_notice);
}

static void another_call(void)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (calls[i].compared)
            in_place_of(calls[i].call, calls[i].name, (int)i % size, call_barrier, expect_places);
}

/* All ranks have begun; the culprit does not come to the end. */
static void in_an_exchange(void)
{
    for (int i = 0; i < 2 * size; i++) {
        const int culprit = i / 2;
        const int64_t each = i % 2 ? LONG : SHORT;
        wf_box have[MOST], need[MOST];
        wf_comm *c = wf_comm_split(comm, 0, 0);
        for (int r = 0; r < size; r++) {
            have[r] = (wf_box){.rank = 1, .lo = {r * each}, .hi = {(r + 1) * each}};
            need[r] = (wf_box){.rank = 1, .hi = {size * each}};
        }
        wf_exchange *e = wf_exchange_new(c, WF_F32, WF_ROW_MAJOR, have, need);
        x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(each));
        y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(size * each));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        wf_status status = wf_exchange_begin(e, x, y);
        if (status == WF_OK)
            status = rank == culprit ? fail(c) : wf_exchange_end(e);
        if (status == WF_OK)
            status = wf_barrier(c);
        expect_notice(status, "exchange", culprit);
        wf_exchange_free(e);
        wf_tensor_free(x);
        wf_tensor_free(y);
        WF_EXPECT_OK(wf_comm_close(c));
    }
}

static int on_ranks(int argc, char **argv)
{
    static const char *const names[] = {"flat", "single_node"};
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        if (!ranks_open(names[i]))
            return 1;
        failed += test_main(argc, argv,
                            (test_case[]){{"in_place_of_a_call", in_place_of_a_call},
                                          {"another_call", another_call},
                                          {"in_an_exchange", in_an_exchange},
                                          {0}});
        failed += ranks_close(0);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
