/* Reductions in the memory that the ranks of a node share: the same bits as by messages, for every type, operation and
 * length, in place and into another buffer; when that memory is taken; and that a captured step has no part of them. */
#include "comm/comm_author.h"
#include "core/captured.h"
#include "core/context_author.h"
#include "tests/comm/values.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wf_comm *comm, *flat;
static wf_ctx *ctx;
static int rank, size;
static bool in_memory; /* else there is none, or one rank */

static wf_status reduce(wf_comm *on, const wf_tensor *x, wf_tensor *y, wf_reduce_op op, int root)
{
    return root < 0 ? wf_allreduce(on, x, y, op) : wf_reduce(on, x, root == rank ? y : NULL, op, root);
}

/* What this rank gets, and x, which is left as it was unless it is y. */
static void reduced(wf_comm *on, wf_dtype dtype, int64_t n, const void *from, wf_reduce_op op, int root, bool in_place,
                    char *to)
{
    wf_tensor *x = wf_tensor_new(wf_comm_ctx(on), dtype, WF_SHAPE(n));
    wf_tensor *y = in_place ? wf_tensor_alias(x) : wf_tensor_new(wf_comm_ctx(on), dtype, WF_SHAPE(n));
    const size_t bytes = wf_tensor_bytes(x);
    WF_EXPECT_OK(wf_tensor_import(x, from, bytes));
    if (!in_place)
        WF_EXPECT_OK(wf_tensor_import(y, from, bytes));
    WF_EXPECT_OK(reduce(on, x, y, op, root));
    WF_EXPECT_OK(wf_tensor_export(y, to, bytes));
    WF_EXPECT_OK(wf_tensor_export(x, to + bytes, bytes));
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void compare(wf_dtype dtype, int64_t n, wf_reduce_op op, int root, bool in_place)
{
    const size_t bytes = (size_t)n * wf_dtype_size(dtype);
    char *from = malloc(bytes + 1), *here = malloc(2 * bytes + 1), *there = malloc(2 * bytes + 1);
    values_of(rank, (int)op + root, dtype, 0, n, from);
    const uint64_t before = wf_comm_traffic(comm).bytes_sent;
    reduced(comm, dtype, n, from, op, root, in_place, here);
    WF_EXPECT(!in_memory || wf_comm_traffic(comm).bytes_sent == before, "%s: %lld elements were sent",
              wf_dtype_name(dtype), (long long)n);
    reduced(flat, dtype, n, from, op, root, in_place, there);
    WF_EXPECT(!memcmp(here, there, 2 * bytes),
              "%s, %lld elements, operation %d, root %d%s: other bits than by messages", wf_dtype_name(dtype),
              (long long)n, (int)op, root, in_place ? ", in place" : "");
    free(from);
    free(here);
    free(there);
}

/* None, whole lines of a cache and parts of them, in one step and in slices, in one slot and in many pieces. */
static void same_bits_as_messages(void)
{
    static const int64_t counts[] = {0, 1, 12, 17, 1000, 4097, 40001, 300007};
    static const wf_dtype dtypes[] = {WF_F32, WF_F64, WF_BF16, WF_F16, WF_I32, WF_I64, WF_U8};
    int i = 0;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int op = WF_SUM; op <= WF_PROD; op++, i++) {
                if (counts[c] > 4097 && (op + (int)d) % 4 > 0)
                    continue;
                compare(dtypes[d], counts[c], (wf_reduce_op)op, -1, i % 2);
                compare(dtypes[d], counts[c], (wf_reduce_op)op, i % size, i / 2 % 2);
            }
}

/* Each rank keeps the schedules of its own calls: two of them forget that of numbers, the others do not. */
static void forget_on_two_ranks(wf_comm *part)
{
    for (int n = 1; n <= 150 && rank < 2 && size > 1; n++) {
        wf_tensor *x = wf_tensor_new(ctx, WF_U8, WF_SHAPE(n));
        WF_EXPECT_OK(rank == 0 ? wf_send(part, x, 1, 0) : wf_recv(part, x, 0, 0));
        wf_tensor_free(x);
    }
}

/* What was split takes no memory until tensors are reduced on it; then it is as the communicator above. */
static void shares_at_the_first_reduction(void)
{
    wf_comm *part = wf_comm_split(comm, 0, rank);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1)), *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1));
    int64_t one = 1;
    WF_EXPECT_OK(wf_allreduce_i64(part, &one, 1, WF_SUM));
    WF_EXPECT(one == size && !wf_comm_shares_memory(part), "the sum of ones is %lld; memory is shared for it: %d",
              (long long)one, wf_comm_shares_memory(part));
    forget_on_two_ranks(part);
    WF_EXPECT_OK(wf_tensor_fill(x, rank + 1));
    for (int i = 0; i < 3; i++) {
        const wf_traffic before = wf_comm_traffic(part);
        WF_EXPECT_OK(wf_allreduce(part, x, y, WF_MAX));
        const wf_traffic after = wf_comm_traffic(part);
        const int64_t bytes = (int64_t)(after.bytes_sent - before.bytes_sent);
        WF_EXPECT(wf_tensor_item(y) == size, "the largest of %d ranks is %g", size, wf_tensor_item(y));
        WF_EXPECT(wf_comm_shares_memory(part) == in_memory, "memory is shared: %d", !in_memory);
        WF_EXPECT(bytes == (in_memory ? 0 : 4 * (size - 1)), "reduction %d sends %lld bytes", i, (long long)bytes);
        WF_EXPECT(after.collectives == before.collectives + 1, "it counts as several");
    }
    WF_EXPECT_OK(wf_allreduce_i64(part, &one, 1, WF_SUM));
    WF_EXPECT(one == size * size, "the sum of %d is %lld", size, (long long)one);
    wf_tensor_free(x);
    wf_tensor_free(y);
    WF_EXPECT_OK(wf_comm_close(part));
}

static wf_status sum_numbers(void *own)
{
    double value = 1;
    return wf_allreduce_f64(own, &value, 1, WF_SUM);
}

/* A replay would leave out what the host sums. */
static void not_captured(void)
{
    const bool captures = size > 1 && ctx->k->capture_begin;
    wf_captured *c = wf_capture(ctx, sum_numbers, comm);
    for (int i = 0; i < 3; i++) {
        const wf_status status = wf_captured_run(c), wanted = i == 2 && captures ? WF_ERR_UNSUPPORTED : WF_OK;
        WF_EXPECT(status == wanted, "run %d: %s: %s", i, wf_status_name(status), wf_error_message());
        wf_error_clear();
    }
    wf_captured_free(c);
}

static int on_ranks(int argc, char **argv)
{
    comm = test_comm_open("single_node", (wf_ctx_opts){.device = test_device("cpu")});
    if (!comm) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    in_memory = wf_comm_shares_memory(comm);
    flat = test_comm_open("flat", (wf_ctx_opts){.device = test_device("cpu")});
    WF_EXPECT(flat && !wf_comm_shares_memory(flat), "%s", wf_error_message());
    const int status = test_main(argc, argv,
                                 (test_case[]){{"same_bits_as_messages", same_bits_as_messages},
                                               {"shares_at_the_first_reduction", shares_at_the_first_reduction},
                                               {"not_captured", not_captured},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(flat));
    WF_EXPECT_OK(wf_comm_close(comm));
    return status || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
