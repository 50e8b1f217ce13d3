/* A reducer from outside the library (examples/quantized.c): its schedules are right on 1 to 16 ranks, its messages are
 * as short as they should be, all ranks have the same sums, and what rounding leaves out comes with later sums. */
#include "examples/quantized.h"
#include "comm/reducer_author.h"
#include "core/context_author.h"
#include "tests/comm/schedules.h"
#include "tests/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 5000, EXACT = 7, SUMS = 60, FEW_SUMS = 4, OTHER_CALLS = 100 }; /* more than the engine keeps */

static const int64_t offset[4] = {0, 1234, COUNT, COUNT + EXACT};
static wf_comm *comm;
static int rank, size;

static void open_it(void)
{
    comm = test_comm_open("quantized", (wf_ctx_opts){.device = "cpu", .threads = 1});
    WF_EXPECT(comm, "%s", wf_error_message());
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static void names(void)
{
    static const wf_reducer empty = {.name = "empty"};
    const wf_reducer *mine = wf_reducer_find("quantized");
    WF_EXPECT(mine && mine->keeps, "not registered");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, quantized_register());
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_reducer_register(&empty));
}

static void schedules(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    for (int ranks = 1; ranks <= 16; ranks++) {
        fixture f;
        fixture_open(ctx, &f, ranks, ranks % 3);
        wf_call call = {.operation = WF_CALL_SUM,
                        .reducer = "quantized",
                        .dtype = WF_F32,
                        .count = offset[3],
                        .part = offset,
                        .parts = 3,
                        .exact = 1};
        wf_schedule **all = fixture_schedules(ctx, &f, &call);
        WF_EXPECT_OK(wf_schedule_verify(ctx, (const wf_schedule *const *)all, ranks));
        const wf_simulation s = {.seed = 7,
                                 .most_delay = 5,
                                 .failing_rank = -1,
                                 .fill = judge_fill,
                                 .own = &(judge){.ctx = ctx, .f = &f, .call = &call}};
        WF_EXPECT_OK(wf_schedule_simulate(ctx, (const wf_schedule *const *)all, ranks, &s));
        fixture_free(all, ranks);
        fixture_close(&f);
    }
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* A gradient of mixed magnitudes, so that small elements are lost in every single sum. */
static float gradient(int of, int64_t i)
{
    return (float)((i * 37 + of * 11) % 101 - 50) * (i % 256 == 0 ? 2.0f : 0.01f);
}

/* Without feedback the mean of many equal sums would be as far from the truth as one of them. */
static void feedback(void)
{
    static float flat[COUNT + EXACT], first[COUNT + EXACT];
    double *total = calloc(COUNT + EXACT, sizeof *total), one = 0, mean = 0;
    const wf_call job = {
        .out = flat, .dtype = WF_F32, .parts = 3, .part = offset, .exact = 1, .buffer = wf_reduce_buffer_new()};
    open_it();
    for (int k = 0; k < SUMS; k++) {
        for (int64_t i = 0; i < COUNT + EXACT; i++)
            flat[i] = gradient(rank, i);
        WF_EXPECT_OK(wf_reducer_sum(comm, &job));
        for (int64_t i = 0; i < COUNT + EXACT; i++)
            total[i] += flat[i];
        if (k == 0)
            memcpy(first, flat, sizeof first);
    }
    for (int64_t i = 0; i < COUNT + EXACT; i++) {
        double should = 0;
        for (int r = 0; r < size; r++)
            should += gradient(r, i);
        one = fabs(first[i] - should) > one ? fabs(first[i] - should) : one;
        mean = fabs(total[i] / SUMS - should) > mean ? fabs(total[i] / SUMS - should) : mean;
        if (i >= COUNT)
            WF_EXPECT(fabs(first[i] - should) < 1e-3, "element %d of the last segment is %g, not %g", (int)i,
                      (double)first[i], should);
    }
    WF_EXPECT(size == 1 ? one < 1e-6 : one > 0.1 && one < size * size, "one sum is off by %g", one);
    WF_EXPECT(size == 1 || mean < one / 4, "the mean of %d sums is off by %g, one by %g", SUMS, mean, one);
    uint64_t bits = 0;
    for (int64_t i = 0; i < COUNT + EXACT; i++) {
        uint32_t word;
        memcpy(&word, &first[i], sizeof word);
        bits = bits * 31 + word;
    }
    int64_t ends[2] = {(int64_t)(bits >> 1), -(int64_t)(bits >> 1)};
    WF_EXPECT_OK(wf_allreduce_i64(comm, ends, 2, WF_MAX));
    WF_EXPECT(ends[0] == -ends[1], "rank %d has other bits", rank);
    free(total);
    WF_EXPECT_OK(wf_comm_close(comm));
}

typedef enum beside { NOTHING, ANOTHER_BUFFER, MANY_CALLS } beside;

/* The last of some sums of one buffer, with other calls between them. */
static void last_sum(beside what, float *flat)
{
    static float other[COUNT + EXACT];
    double numbers[OTHER_CALLS] = {0};
    const wf_call job = {
        .out = flat, .dtype = WF_F32, .parts = 3, .part = offset, .exact = 1, .buffer = wf_reduce_buffer_new()};
    wf_call second = job;
    second.out = other;
    second.buffer = wf_reduce_buffer_new();
    open_it();
    for (int k = 0; k < FEW_SUMS; k++) {
        for (int64_t i = 0; i < COUNT + EXACT; i++) {
            flat[i] = gradient(rank, i);
            other[i] = gradient(rank + 5, i);
        }
        WF_EXPECT_OK(wf_reducer_sum(comm, &job));
        if (what == ANOTHER_BUFFER)
            WF_EXPECT_OK(wf_reducer_sum(comm, &second));
        for (int i = 0; i < OTHER_CALLS && what == MANY_CALLS; i++)
            WF_EXPECT_OK(wf_allreduce_f64(comm, numbers, i + 1, WF_SUM));
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* What rounding leaves out is kept for each buffer by itself, whatever is called between its sums. */
static void own_memory(void)
{
    static float alone[COUNT + EXACT], flat[COUNT + EXACT];
    last_sum(NOTHING, alone);
    for (beside what = ANOTHER_BUFFER; what <= MANY_CALLS; what++) {
        last_sum(what, flat);
        WF_EXPECT(!memcmp(flat, alone, sizeof flat), "sums beside %s have other bits",
                  what == MANY_CALLS ? "many calls" : "another buffer");
    }
}

/* A buffer at an address where another one was before begins anew; so does every sum of one without a number. */
static void address_comes_back(void)
{
    static float flat[COUNT + EXACT], first[COUNT + EXACT];
    wf_call job = {.out = flat, .dtype = WF_F32, .parts = 3, .part = offset, .exact = 1};
    open_it();
    for (int k = 0; k < 2 * FEW_SUMS; k++) {
        for (int64_t i = 0; i < COUNT + EXACT; i++)
            flat[i] = gradient(rank, i);
        job.buffer = k < FEW_SUMS ? wf_reduce_buffer_new() : 0;
        WF_EXPECT_OK(wf_reducer_sum(comm, &job));
        if (k == 0)
            memcpy(first, flat, sizeof first);
        WF_EXPECT(!memcmp(first, flat, sizeof first), "sum %d has other bits than the first one", k);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void bytes(void)
{
    static float flat[COUNT + EXACT];
    const int64_t whole[2] = {0, COUNT};
    const wf_call jobs[] = {
        {.out = flat, .dtype = WF_F32, .parts = 3, .part = offset, .exact = 1},
        {.out = flat, .dtype = WF_F32, .parts = 1, .part = whole}, /* a bucket of one gradient, and no losses */
    };
    const char *const what[] = {"with losses", "one gradient"};
    open_it();
    for (int i = 0; i < 2; i++) {
        const uint64_t before = wf_comm_traffic(comm).bytes_sent;
        WF_EXPECT_OK(wf_reducer_sum(comm, &jobs[i]));
        const double sent = (double)(wf_comm_traffic(comm).bytes_sent - before), f32 = 8.0 * COUNT * (size - 1) / size;
        WF_EXPECT(size == 1 || sent < 0.27 * f32 + 8 * EXACT * size, "%s: %g bytes, and %g as f32", what[i], sent, f32);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"names", names},
                                   {"schedules", schedules},
                                   {"feedback", feedback},
                                   {"own_memory", own_memory},
                                   {"address_comes_back", address_comes_back},
                                   {"bytes", bytes},
                                   {0}});
}

int main(int argc, char **argv)
{
    WF_MUST(quantized_register());
    return ranks_main(argc, argv, on_ranks);
}
