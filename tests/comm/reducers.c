/* Every communicator's way of summing gradients: values, bits, bytes, and what is said where a name cannot be. */
#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_names.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENTS 6

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;

/* False where no gradients are summed: dummy, and names that cannot be here. */
static bool open_as(const char *name)
{
    comm = strcmp(name, "dummy") ? comm_open_named(name, (wf_ctx_opts){0}) : NULL;
    ctx = wf_comm_ctx(comm);
    return comm;
}

static void close_it(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
}

static double noise(int of_rank, int64_t i)
{
    test_rng rng = {.state = (uint64_t)(of_rank * 7368787 + i * 31 + 5)};
    return test_uniform(&rng, -1, 1);
}

/* Uneven segments of [0, count), some of them empty. */
static void cut(int64_t count, int64_t offset[SEGMENTS + 1])
{
    const int64_t part[SEGMENTS + 1] = {0, count / 7, count / 7, count / 3, count - count / 5, count, count};
    memcpy(offset, part, sizeof part);
}

static wf_tensor *noisy(wf_dtype dtype, int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = noise(rank, i);
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(count), values);
    wf_tensor *x = wf_tensor_copy(wide, dtype, WF_ROW_MAJOR);
    wf_tensor_free(wide);
    free(values);
    return x;
}

static double *values_of(const wf_tensor *x)
{
    const size_t bytes = (size_t)wf_tensor_count(x) * sizeof(double);
    double *values = malloc(bytes + 1);
    wf_tensor *wide = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_export(wide, values, bytes));
    wf_tensor_free(wide);
    return values;
}

static void reduce(wf_tensor *x)
{
    int64_t offset[SEGMENTS + 1];
    cut(wf_tensor_count(x), offset);
    const wf_call job = {.out = x->data, .dtype = x->dtype, .parts = SEGMENTS, .part = offset};
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
}

/* To be freed. */
static void *bits_of(const wf_tensor *x)
{
    void *bits = malloc(wf_tensor_bytes(x) + 1);
    WF_EXPECT_OK(wf_tensor_export(x, bits, wf_tensor_bytes(x)));
    return bits;
}

/* Checks that all ranks have the bits of rank 0. */
static void expect_same_bits(const wf_tensor *x, const char *name)
{
    const size_t bytes = wf_tensor_bytes(x);
    void *own = bits_of(x), *first = bits_of(x);
    WF_EXPECT_OK(wf_bcast_bytes(comm, first, bytes, 0));
    WF_EXPECT(!memcmp(first, own, bytes), "%s: rank %d has other bits than rank 0", name, rank);
    free(first);
    free(own);
}

static double rounding(wf_dtype dtype)
{
    return dtype == WF_F64 ? 1e-15 : dtype == WF_F32 ? 1e-6 : dtype == WF_F16 ? 2e-3 : 1.6e-2;
}

static void expect_sum(const wf_tensor *y, const char *name)
{
    double *values = values_of(y);
    const int64_t count = wf_tensor_count(y);
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < size; r++)
            sum += noise(r, i);
        if (fabs(values[i] - sum) > rounding(wf_tensor_dtype(y)) * size) {
            test_failed(__FILE__, __LINE__, "%s, %s: element %lld of %lld is %.9g, should be %.9g", name,
                        wf_dtype_name(wf_tensor_dtype(y)), (long long)i, (long long)count, values[i], sum);
            break;
        }
    }
    free(values);
}

static void sum_once(const char *name, wf_dtype dtype, int64_t count)
{
    wf_tensor *x = noisy(dtype, count), *again = noisy(dtype, count);
    reduce(x);
    expect_sum(x, name);
    expect_same_bits(x, name);
    reduce(again);
    void *one = bits_of(x), *other = bits_of(again);
    WF_EXPECT(!memcmp(one, other, wf_tensor_bytes(x)), "%s: other bits the second time", name);
    free(one);
    free(other);
    wf_tensor_free(x);
    wf_tensor_free(again);
}

/* Around one slice, one short step, one slot, and several pieces. */
static const int64_t counts[] = {0, 1, 2, 7, 17, 255, 4095, 4096, 4097, 8193, 32769, 65537, 131072, 500009};

static void sums(void)
{
    static const wf_dtype dtypes[] = {WF_F32, WF_F64, WF_BF16, WF_F16};
    for (int n = 0; comm_names[n]; n++) {
        if (!open_as(comm_names[n]))
            continue;
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int t = 0; t < (counts[c] > 140000 ? 1 : 4); t++)
                sum_once(comm_names[n], dtypes[t], counts[c]);
        close_it();
    }
}

/* On one node every name adds in rank order, so their bits are equal. */
static void names_agree_in_bits(void)
{
    float *first = NULL;
    for (int n = 0; comm_names[n]; n++) {
        if (!open_as(comm_names[n]))
            continue;
        const bool one_node = wf_comm_inter_size(comm) == 1;
        wf_tensor *x = noisy(WF_F32, 100003);
        reduce(x);
        float *bits = bits_of(x);
        if (!first)
            first = bits_of(x);
        WF_EXPECT(!one_node || !memcmp(first, bits, wf_tensor_bytes(x)), "%s differs from %s in its bits",
                  comm_names[n], comm_names[0]);
        free(bits);
        wf_tensor_free(x);
        close_it();
    }
    free(first);
}

/* Numbers of the host as one segment on the device and back. */
static void reduce_values(wf_comm *c, float *values, int64_t count)
{
    const int64_t offset[] = {0, count};
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(count), values);
    const wf_call job = {.out = x->data, .dtype = WF_F32, .parts = 1, .part = offset};
    WF_EXPECT_OK(wf_reducer_sum(c, &job));
    WF_EXPECT_OK(wf_tensor_export(x, values, wf_tensor_bytes(x)));
    wf_tensor_free(x);
}

/* Ranks arrive at different times, with vectors of changing length: the slots of earlier calls are still being read. */
static void many_in_a_row(void)
{
    for (int n = 0; comm_names[n]; n++) {
        if (!open_as(comm_names[n]))
            continue;
        test_rng rng = {.state = 11};
        static float values[70000];
        for (int i = 0; i < 150; i++) {
            const int64_t count = i % 3 ? test_int(&rng, 0, 300) : test_int(&rng, 0, 70000);
            for (int64_t k = 0; k < count; k++)
                values[k] = (float)(rank + k % 5 + i);
            reduce_values(comm, values, count);
            int64_t wrong = 0;
            for (int64_t k = 0; k < count; k++)
                wrong += values[k] != (float)(size * (size - 1) / 2 + size * (k % 5 + i));
            WF_EXPECT(wrong == 0, "%s, round %d: %lld of %lld elements are wrong", comm_names[n], i, (long long)wrong,
                      (long long)count);
        }
        close_it();
    }
}

static void sums_in_parts(void)
{
    for (int n = 0; comm_names[n]; n++) {
        if (!open_as(comm_names[n]))
            continue;
        wf_comm *half = wf_comm_split(comm, rank % 2, rank);
        float value[3] = {1, 2, (float)rank};
        for (int i = 0; i < 2; i++) {
            value[0] = 1;
            reduce_values(half, value, 3);
            WF_EXPECT(value[0] == (float)wf_comm_size(half), "%s: sum %g of %d ranks", comm_names[n], (double)value[0],
                      wf_comm_size(half));
        }
        WF_EXPECT_OK(wf_comm_close(half));
        close_it();
    }
}

static void allocates_nothing(void)
{
    for (int n = 0; comm_names[n]; n++) {
        if (!open_as(comm_names[n]))
            continue;
        wf_tensor *x = noisy(WF_F32, 100003);
        WF_EXPECT_OK(wf_tensor_fill(x, 0));
        reduce(x);
        const int64_t before = wf_ctx_memory(ctx).system_allocations;
        for (int i = 0; i < 5; i++)
            reduce(x);
        WF_EXPECT(wf_ctx_memory(ctx).system_allocations == before, "%s: %lld allocations in the loop", comm_names[n],
                  (long long)(wf_ctx_memory(ctx).system_allocations - before));
        wf_tensor_free(x);
        close_it();
    }
}

/* One rank sums another count: an error on all ranks, and none waits for ever. A rank may learn of it while it is still
 * opening. */
static void count_that_differs(int64_t count, int64_t last)
{
    const int64_t offset[] = {0, rank == size - 1 ? last : count};
    wf_status status = comm ? WF_OK : wf_error_code();
    wf_tensor *x = comm ? noisy(WF_F32, last) : NULL;
    if (x) {
        const wf_call job = {.out = x->data, .dtype = WF_F32, .parts = 1, .part = offset};
        status = wf_reducer_sum(comm, &job);
    }
    if (status == WF_OK && size > 1)
        status = wf_barrier(comm);
    WF_EXPECT(status == (size > 1 ? WF_ERR_COMM : WF_OK), "%s", wf_error_message());
    WF_EXPECT(size == 1 || strstr(wf_error_message(), "disagree"), "%s", wf_error_message());
    wf_error_clear();
    wf_tensor_free(x);
}

static void each_with_counts(int64_t count, int64_t last)
{
    for (int n = 0; comm_names[n]; n++) {
        if (!strcmp(comm_names[n], "dummy") || !comm_name_fits(comm_names[n], (wf_ctx_opts){0}))
            continue;
        comm = test_comm_open(comm_names[n], (wf_ctx_opts){0});
        ctx = wf_comm_ctx(comm);
        count_that_differs(count, last);
        close_it();
    }
}

static void counts_that_differ(void)
{
    each_with_counts(200000, 300000);
}

/* Counts so short that a rank could take the data of the other count for its own. */
static void short_counts_that_differ(void)
{
    each_with_counts(3, 4);
}

static void unknown_name(void)
{
    WF_EXPECT(!test_comm_open("hierachical", (wf_ctx_opts){0}), "hierachical opens");
    WF_EXPECT(wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), "two_dimensional"), "\"%s\"",
              wf_error_message());
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    comm = test_comm_open("flat", (wf_ctx_opts){0});
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return test_main(argc, argv,
                     (test_case[]){{"sums", sums},
                                   {"names_agree_in_bits", names_agree_in_bits},
                                   {"many_in_a_row", many_in_a_row},
                                   {"sums_in_parts", sums_in_parts},
                                   {"allocates_nothing", allocates_nothing},
                                   {"counts_that_differ", counts_that_differ},
                                   {"short_counts_that_differ", short_counts_that_differ},
                                   {"unknown_name", unknown_name},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
