/* The NCCL transport on the double of NCCL: the order of calls, grouping, and what goes wrong. */
#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "comm/exchange_author.h"
#include "comm/mesh.h"
#include "comm/reducer_author.h"
#include "comm/transport_author.h"
#include "core/boundary_author.h"
#include "core/tensor_author.h"
#include "tests/fake/guard.h"
#include "tests/fake/nccl_fake.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int rank, size;
static wf_comm *comm;
static wf_ctx *ctx;

static void open_as(const char *name)
{
    comm = test_comm_open(name, (wf_ctx_opts){0});
    WF_EXPECT(comm, "%s: %s", name, wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

/* Checks that all ranks called the same collectives in the same order, and received all that was sent to them. */
static void expect_order(nccl_journal before)
{
    nccl_journal mine = nccl_fake_journal(), *all = malloc((size_t)size * sizeof *all);
    WF_EXPECT_OK(wf_allgather_bytes(comm, &mine, sizeof mine, all));
    for (int r = 0; r < size; r++) {
        WF_EXPECT(all[r].order == mine.order && all[r].collectives == mine.collectives,
                  "rank %d called %d collectives, rank %d %d, or others", rank, (int)mine.collectives, r,
                  (int)all[r].collectives);
        WF_EXPECT(all[r].sent[rank] == mine.received[r], "rank %d sent %d, %d were received", r, (int)all[r].sent[rank],
                  (int)mine.received[r]);
    }
    WF_EXPECT(size == 1 || mine.launches > before.launches, "nothing went by NCCL");
    free(all);
}

static void reduce_known(int64_t count, int round)
{
    const int64_t offset[] = {0, count / 3, count};
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)((rank + 1) * (i % 7 + round));
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(count), values);
    const wf_call job = {.out = x->data, .dtype = WF_F32, .parts = 2, .part = offset};
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
    WF_EXPECT_OK(wf_tensor_export(x, values, wf_tensor_bytes(x)));
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += values[i] != (float)(size * (size + 1) / 2 * (i % 7 + round));
    WF_EXPECT(wrong == 0, "%lld of %lld sums are wrong", (long long)wrong, (long long)count);
    wf_tensor_free(x);
    free(values);
}

/* Reduces after backward; returns the bytes that were sent for it. */
static uint64_t reduce_behind(int64_t count)
{
    const int64_t offset[] = {0, count};
    const uint64_t before = wf_comm_traffic(comm).bytes_sent;
    float *values = malloc((size_t)count * sizeof *values);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(count));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_background_sum(comm, &(wf_call){.out = x->data, .dtype = WF_F32, .parts = 1, .part = offset});
    WF_EXPECT_OK(wf_background_wait(comm));
    WF_EXPECT_OK(wf_tensor_export(x, values, wf_tensor_bytes(x)));
    WF_EXPECT(values[0] == (float)size && values[count - 1] == (float)size, "the sums are %g and %g", (double)values[0],
              (double)values[count - 1]);
    wf_tensor_free(x);
    free(values);
    return wf_comm_traffic(comm).bytes_sent - before;
}

static void gradients(void)
{
    open_as("pure_nccl");
    const nccl_journal before = nccl_fake_journal();
    for (int i = 0; i < 10; i++)
        reduce_known(i * i * 100, i);
    expect_order(before);
    const nccl_journal after = nccl_fake_journal();
    WF_EXPECT(after.collectives - before.collectives == (size > 1 ? 9 : 0), "%d all-reduces of 9 vectors",
              (int)(after.collectives - before.collectives));
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* A sum sends the same behind backward. */
static void sums_behind_backward(void)
{
    open_as("pure_nccl");
    WF_EXPECT_OK(wf_background_open(comm));
    const uint64_t before = wf_comm_traffic(comm).bytes_sent;
    reduce_known(300, 1);
    const uint64_t sent = wf_comm_traffic(comm).bytes_sent - before;
    WF_EXPECT(sent == 2 * 300 * sizeof(float) * (size_t)(size - 1) / (size_t)size, "%d bytes", (int)sent);
    WF_EXPECT(reduce_behind(300) == sent, "other bytes behind backward");
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* A ring of rows: every rank has `rows` and sends the first to its left and the last to its right neighbour, which may
 * be one and the same. Two exchanges, so that two halos go between the same two ranks. */
static void ring(void)
{
    enum { ROWS = 4, WIDTH = 5 };
    open_as("pure_nccl");
    wf_box *have = calloc((size_t)size, sizeof *have), *before = calloc((size_t)size, sizeof *before),
           *behind = calloc((size_t)size, sizeof *behind);
    for (int r = 0; r < size; r++) {
        const int left = (r + size - 1) % size, right = (r + 1) % size;
        have[r] = (wf_box){.rank = 2, .lo = {r * ROWS, 0}, .hi = {(r + 1) * ROWS, WIDTH}};
        before[r] = (wf_box){.rank = 2, .lo = {(left + 1) * ROWS - 1, 0}, .hi = {(left + 1) * ROWS, WIDTH}};
        behind[r] = (wf_box){.rank = 2, .lo = {right * ROWS, 0}, .hi = {right * ROWS + 1, WIDTH}};
    }
    float own[ROWS * WIDTH], row[WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        own[i] = (float)(rank * ROWS * WIDTH + i);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(ROWS, WIDTH), own);
    const nccl_journal start = nccl_fake_journal();
    for (int way = 0; way < 2; way++) {
        const wf_box *need = way ? behind : before;
        wf_tensor *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1, WIDTH));
        wf_exchange *exchange = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
        WF_EXPECT_OK(wf_exchange_begin(exchange, x, y));
        WF_EXPECT_OK(wf_exchange_end(exchange));
        WF_EXPECT_OK(wf_tensor_export(y, row, sizeof row));
        for (int i = 0; i < WIDTH; i++)
            WF_EXPECT(row[i] == (float)(need[rank].lo[0] * WIDTH + i), "way %d, element %d is %g", way, i,
                      (double)row[i]);
        wf_exchange_free(exchange);
        wf_tensor_free(y);
    }
    expect_order(start);
    WF_EXPECT(size == 1 || nccl_fake_journal().launches - start.launches == 2, "%d launches of two exchanges",
              (int)(nccl_fake_journal().launches - start.launches));
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(comm));
    free(have);
    free(before);
    free(behind);
}

static uint64_t received(void)
{
    const nccl_journal journal = nccl_fake_journal();
    uint64_t all = 0;
    for (int r = 0; r < size; r++)
        all += journal.received[r];
    return all;
}

/* What is computed between the begin and the end of an exchange does not wait for it; what follows the end does. */
static void computes_meanwhile(void)
{
    enum { WIDTH = 5 };
    open_as("pure_nccl");
    wf_box have[NCCL_FAKE_RANKS], need[NCCL_FAKE_RANKS];
    for (int r = 0; r < size; r++) {
        have[r] = (wf_box){.rank = 2, .lo = {r, 0}, .hi = {r + 1, WIDTH}};
        need[r] = (wf_box){.rank = 2, .lo = {(r + 1) % size, 0}, .hi = {(r + 1) % size + 1, WIDTH}};
    }
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1, WIDTH)), *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1, WIDTH));
    wf_tensor *other = wf_tensor_new(ctx, WF_F32, WF_SHAPE(9));
    wf_exchange *exchange = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
    float row[WIDTH];
    WF_EXPECT_OK(wf_tensor_fill(x, rank + 1));
    WF_EXPECT_OK(wf_tensor_fill(y, 0));
    const uint64_t before = received();
    WF_EXPECT_OK(wf_exchange_begin(exchange, x, y));
    WF_EXPECT_OK(wf_tensor_fill(other, 1));
    WF_EXPECT(received() == before, "a fill waits for the exchange");
    WF_EXPECT_OK(wf_exchange_end(exchange));
    WF_EXPECT_OK(wf_tensor_assign(x, y));
    WF_EXPECT_OK(wf_tensor_export(x, row, sizeof row));
    WF_EXPECT(size == 1 || (row[0] == (float)((rank + 1) % size + 1) && row[WIDTH - 1] == row[0]), "%g came",
              (double)row[0]);
    wf_exchange_free(exchange);
    wf_tensor_free(other);
    wf_tensor_free(x);
    wf_tensor_free(y);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Past the communicator's own checks. */
static wf_status native(wf_comm *by, wf_native_kind kind, const wf_tensor *x, wf_tensor *y, int peer)
{
    const int64_t n = wf_tensor_count(x);
    const wf_strided from = wf_strided_row(x->data, x->dtype, n), to = wf_strided_row(y->data, y->dtype, n);
    return wf_transport_native.call(by, kind, WF_SUM, peer, &from, &to);
}

/* The context's stream does not wait. */
static void sum_apart(wf_comm *by, wf_tensor *x)
{
    WF_EXPECT_OK(wf_transport_native.begin(by));
    WF_EXPECT_OK(native(by, WF_NATIVE_REDUCE, x, x, -1));
    WF_EXPECT_OK(wf_transport_native.end(by, false));
}

/* Rank 0 adds to the sums behind backward once it has its neighbour's row, the others ahead of that: no row waits for a
 * sum. */
static void overlap(void)
{
    open_as("pure_nccl");
    WF_EXPECT_OK(wf_background_open(comm));
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1)), *y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1));
    wf_tensor *sum = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1));
    WF_EXPECT_OK(wf_tensor_fill(x, rank));
    WF_EXPECT_OK(wf_tensor_fill(sum, 1));
    double value = 0;
    if (size > 1 && rank > 0)
        sum_apart(wf_background_comm(comm), sum);
    if (size > 1) {
        WF_EXPECT_OK(wf_transport_native.begin(comm));
        WF_EXPECT_OK(native(comm, WF_NATIVE_SEND, x, x, (rank + 1) % size));
        WF_EXPECT_OK(native(comm, WF_NATIVE_RECV, y, y, (rank + size - 1) % size));
        WF_EXPECT_OK(wf_transport_native.end(comm, true));
        WF_EXPECT_OK(wf_ctx_read(ctx, &value, y->data, sizeof value));
        WF_EXPECT(value == (rank + size - 1) % size, "%g came", value);
        if (rank == 0)
            sum_apart(wf_background_comm(comm), sum);
        WF_EXPECT_OK(wf_transport_native.join(wf_background_comm(comm)));
        WF_EXPECT_OK(wf_ctx_read(ctx, &value, sum->data, sizeof value));
        WF_EXPECT(value == size, "the sum is %g of %d", value, size);
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_tensor_free(sum);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* What is split communicates on its own, in the order of the calls. */
static void splits(void)
{
    open_as("pure_nccl");
    const nccl_journal before = nccl_fake_journal();
    wf_comm *half = wf_comm_split(comm, rank % 2, rank);
    wf_comm *none = wf_comm_split(comm, rank > 0 ? 1 : -1, -rank);
    const nccl_journal after = nccl_fake_journal();
    const int connected = (wf_comm_size(half) > 1) + (wf_comm_size(none) > 1); /* no communicator has size 0 */
    WF_EXPECT(after.communicators - before.communicators == (uint64_t)connected, "%d new communicators, not %d",
              (int)(after.communicators - before.communicators), connected);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3)), *y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    for (int i = 0; i < 3; i++) {
        WF_EXPECT_OK(wf_allreduce_raw(half, x->data, y->data, 3, WF_F64, WF_SUM));
        WF_EXPECT_OK(wf_allreduce_raw(comm, y->data, y->data, 3, WF_F64, WF_MAX));
    }
    double got[3] = {0};
    WF_EXPECT_OK(wf_tensor_export(y, got, sizeof got));
    WF_EXPECT(got[2] == (size + 1) / 2, "%g of %d", got[2], size);
    if (none) {
        WF_EXPECT_OK(wf_tensor_fill(x, rank));
        WF_EXPECT_OK(wf_bcast(none, x, 0));
        WF_EXPECT_OK(wf_tensor_export(x, got, sizeof got));
        WF_EXPECT(got[1] == size - 1, "the first rank by key is %g", got[1]);
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
    WF_EXPECT_OK(wf_comm_close(none));
    WF_EXPECT_OK(wf_comm_close(half));
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* A communicator that dies takes those split from it along, and leaves the one above it and its other parts as they
 * are: NCCL's communicators share no resources, since aborting one would abort all. */
static void part_dies(void)
{
    enum { N = 10000 };
    double *got = calloc(N, sizeof *got);
    open_as("pure_nccl");
    wf_comm *half = wf_comm_split(comm, rank % 2, rank), *other = wf_comm_split(comm, rank % 2, -rank);
    wf_comm *below = wf_comm_split(half, 0, 0);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(N));
    if (size > 1) {
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        WF_EXPECT_OK(wf_allreduce_raw(half, x->data, x->data, N, WF_F64, WF_SUM));
        WF_EXPECT_OK(wf_tensor_export(x, got, N * sizeof *got)); /* nothing is in flight any more */
        WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_allreduce_raw(half, x->data, x->data, -1, WF_F64, WF_SUM));
        WF_EXPECT(wf_comm_alive(half) != WF_OK && wf_comm_alive(below) != WF_OK, "what has failed is alive");
        wf_error_clear();
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        WF_EXPECT_OK(wf_allreduce_raw(other, x->data, x->data, N, WF_F64, WF_SUM));
        WF_EXPECT_OK(wf_allreduce_raw(comm, x->data, x->data, N, WF_F64, WF_MAX));
        WF_EXPECT_OK(wf_tensor_export(x, got, N * sizeof *got));
        WF_EXPECT(got[1] == (size + 1) / 2, "%g of %d", got[1], size);
    }
    free(got);
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(below));
    WF_EXPECT_OK(wf_comm_close(other));
    WF_EXPECT_OK(wf_comm_close(half));
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Past the communicator's own check, rank 0 broadcasts where the others sum: an error on all ranks, no hang. */
static void misordered(void)
{
    open_as("pure_nccl");
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(8));
    double value[1];
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    if (size > 1) {
        const wf_status first =
            rank == 0 ? native(comm, WF_NATIVE_BCAST, x, x, 0) : native(comm, WF_NATIVE_REDUCE, x, x, -1);
        const wf_status second =
            rank > 0 ? native(comm, WF_NATIVE_BCAST, x, x, 0) : native(comm, WF_NATIVE_REDUCE, x, x, -1);
        WF_EXPECT(first == WF_OK, "%s", wf_error_message());
        WF_EXPECT(second == WF_OK || second == WF_ERR_COMM, "%s", wf_error_message()); /* it may be known already */
        wf_error_clear();
        WF_EXPECT_ERROR(WF_ERR_COMM, wf_ctx_read(ctx, value, x->data, sizeof value));
        WF_EXPECT(wf_comm_alive(comm) == WF_ERR_COMM && strstr(wf_error_message(), " broadcast 1 of"), "%s",
                  wf_error_message());
        wf_error_clear();
    }
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Once all ranks are there, since a rank that gives up takes the others along. */
static void give_up_soon(void)
{
    WF_EXPECT_OK(wf_barrier(comm));
    nccl_fake_limit_waits(1000);
}

/* Sends stderr to a file; returns what restore_stderr wants, which reads the file. */
static int divert_stderr(void)
{
    const int kept = dup(STDERR_FILENO), file = memfd_create("log", 0);
    dup2(file, STDERR_FILENO);
    close(file);
    return kept;
}

static const char *restore_stderr(int kept)
{
    static char text[4096];
    const ssize_t bytes = pread(STDERR_FILENO, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    dup2(kept, STDERR_FILENO);
    close(kept);
    return text;
}

/* Rank 0 never comes: the others give up and end what waits on their GPUs. An end that fails is logged. */
static void alone(void)
{
    open_as("pure_nccl");
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(8));
    double value[1];
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    if (rank > 0)
        WF_EXPECT_OK(native(comm, WF_NATIVE_REDUCE, x, x, -1));
    if (size > 1) {
        give_up_soon();
        nccl_fake_fail_end();
        const int log = divert_stderr();
        const wf_status status = rank > 0 ? wf_ctx_read(ctx, value, x->data, sizeof value) : wf_barrier(comm);
        const char *said = restore_stderr(log);
        WF_EXPECT(status == WF_ERR_TIMEOUT, "%s", wf_error_message());
        WF_EXPECT(strstr(said, "NCCL does not end what waits on the GPU: error"), "an abort that fails says: %s", said);
        wf_error_clear();
        nccl_fake_limit_waits(0);
    }
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Rank 0 comes to none of the sums of two communicators, which lie on one stream: the others end both. */
static void ends_together(void)
{
    open_as("pure_nccl");
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size > 2 ? 2 : 1});
    wf_comm *part = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT));
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1)), *y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1));
    double value[1];
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_fill(y, 1));
    if (rank > 0)
        sum_apart(comm, x);
    if (rank > 0 && wf_comm_size(part) > 1)
        sum_apart(part, y);
    if (size > 1) {
        give_up_soon();
        const wf_status status = rank > 0 ? wf_ctx_read(ctx, value, x->data, sizeof value) : wf_barrier(comm);
        WF_EXPECT(status == WF_ERR_TIMEOUT, "%s", wf_error_message());
        wf_error_clear();
        nccl_fake_limit_waits(0);
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

/* A rank dies after it has started a sum at which the host has not looked. If the device has the sum, the host reads
 * it. If rank 0 never came to the sum, the host learns of the death where it reads. */
static void dies_after_a_sum(void)
{
    for (int absent = 0; absent < (size > 1 ? 2 : 0); absent++) {
        const bool lost = absent && rank > 0;
        double value = 0;
        open_as("pure_nccl");
        wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1)), *y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        if (!absent || rank > 0)
            sum_apart(comm, x);
        if (!absent)
            WF_EXPECT_OK(wf_transport_native.join(comm));
        if (!absent)
            WF_EXPECT_OK(wf_tensor_assign(y, x)); /* the device waits for the sum */
        WF_EXPECT_OK(wf_barrier(comm));
        WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_bcast_bytes(comm, &value, 1, size));
        const wf_status status = wf_ctx_read(ctx, &value, absent ? x->data : y->data, sizeof value);
        WF_EXPECT(status == (lost ? WF_ERR_ARGUMENT : WF_OK), "absent %d: %s", absent,
                  status == WF_OK ? "the read succeeds" : wf_error_message());
        WF_EXPECT(lost || value == (absent ? 1 : size), "absent %d: the sum is %g", absent, value);
        wf_error_clear();
        wf_tensor_free(x);
        wf_tensor_free(y);
        WF_EXPECT_OK(wf_comm_close(comm));
        wf_error_clear();
    }
}

/* The pool returns a free block to the device while a sum is on its way. The device would wait for the sum before it
 * takes the block, so the context waits first: if rank 0 never comes, that is an error. */
static void frees_during_a_sum(void)
{
    const size_t first = (size_t)40 << 20, second = (size_t)60 << 20;
    for (int absent = 0; absent < (size > 1 ? 2 : 1); absent++) {
        void *data = NULL;
        double value = 0;
        open_as("pure_nccl");
        wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        WF_EXPECT_OK(wf_pool_take(ctx, first, &data));
        wf_pool_give(ctx, data, first);
        if (size > 1 && !(absent && rank == 0))
            sum_apart(comm, x);
        if (absent)
            give_up_soon();
        const wf_status status = absent && rank == 0 ? wf_barrier(comm) : wf_pool_take(ctx, second, &data);
        WF_EXPECT(status == (absent ? WF_ERR_TIMEOUT : WF_OK), "%s",
                  status == WF_OK ? "it is there" : wf_error_message());
        wf_error_clear();
        nccl_fake_limit_waits(0);
        if (!absent) {
            WF_EXPECT(wf_ctx_memory(ctx).bytes_reserved < first + second, "the first block was not returned");
            wf_pool_give(ctx, data, second);
            WF_EXPECT_OK(wf_ctx_read(ctx, &value, x->data, sizeof value));
        }
        wf_tensor_free(x);
        WF_EXPECT_OK(wf_comm_close(comm));
        wf_error_clear();
    }
}

/* Two ranks on one GPU: pure_nccl is refused, auto takes another way. */
static void shared_gpu(void)
{
    guard_devices(1);
    comm = test_comm_open("pure_nccl", (wf_ctx_opts){0});
    WF_EXPECT(size == 1 || (!comm && wf_error_code() == WF_ERR_UNSUPPORTED &&
                            strstr(wf_error_message(), "ranks 0 and 1 share GPU guard-0")),
              "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_comm_close(comm));
    open_as("auto");
    WF_EXPECT(size == 1 || strcmp(wf_comm_name(comm), "pure_nccl"), "auto took %s", wf_comm_name(comm));
    WF_EXPECT_OK(wf_comm_close(comm));
    nccl_fake_set_version(23000);
    open_as("auto");
    const bool shares = getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL;
    WF_EXPECT(size == 1 || !strcmp(wf_comm_name(comm), "pure_nccl") == shares, "auto took %s", wf_comm_name(comm));
    WF_EXPECT_OK(wf_comm_close(comm));
    nccl_fake_set_version(0);
    guard_devices(8);
    open_as("auto");
    WF_EXPECT(size == 1 || !strcmp(wf_comm_name(comm), "pure_nccl"), "auto took %s", wf_comm_name(comm));
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* An NCCL that cannot abort communicators as a group is refused in one line on all ranks, and auto takes another way.
 */
static void too_old(void)
{
    open_as("flat");
    WF_EXPECT_OK(wf_comm_close(comm));
    nccl_fake_set_version(rank == size - 1 ? 22105 : 0);
    comm = test_comm_open("pure_nccl", (wf_ctx_opts){0});
    char want[64];
    snprintf(want, sizeof want, "rank %d has NCCL 2.21.5, and 2.22 is the least", size - 1);
    WF_EXPECT(size == 1 || (!comm && wf_error_code() == WF_ERR_UNSUPPORTED && strstr(wf_error_message(), want) &&
                            !strchr(wf_error_message(), '\n')),
              "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_comm_close(comm));
    open_as("auto");
    WF_EXPECT(size == 1 || strcmp(wf_comm_name(comm), "pure_nccl"), "auto took %s", wf_comm_name(comm));
    WF_EXPECT_OK(wf_comm_close(comm));
    nccl_fake_set_version(0);
}

/* The program uses another GPU before it splits a communicator: that is connected on the context's all the same. */
static void other_device(void)
{
    open_as("pure_nccl");
    guard_set_device(7);
    wf_comm *again = wf_comm_split(comm, 0, rank);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3));
    double got[3] = {0};
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_allreduce_raw(again, x->data, x->data, 3, WF_F64, WF_SUM));
    WF_EXPECT_OK(wf_tensor_export(x, got, sizeof got));
    WF_EXPECT(got[2] == size, "the sum is %g of %d", got[2], size);
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(again));
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* With WEFT_NCCL_ONE_RANK a single rank's sums, on both streams, and its parts go by NCCL. */
static void one_rank(void)
{
    const int64_t shard[2] = {0, 3};
    const uint64_t communicators = nccl_fake_journal().communicators;
    open_as("pure_nccl");
    if (size > 1 || !getenv("WEFT_NCCL_ONE_RANK")) {
        WF_EXPECT(size > 1 || nccl_fake_journal().communicators == communicators, "NCCL connects one rank");
        WF_EXPECT_OK(wf_comm_close(comm));
        return;
    }
    WF_EXPECT_OK(wf_background_open(comm));
    const nccl_journal before = nccl_fake_journal();
    reduce_known(300, 1);
    const double values[3] = {1, 2, 3};
    double got[3] = {0};
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(3), values), *y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3));
    wf_background_sum_shards(comm, x->data, shard, WF_F64);
    wf_background_gather_shards(comm, x->data, shard, WF_F64);
    WF_EXPECT_OK(wf_background_wait(comm));
    WF_EXPECT_OK(wf_allreduce(comm, x, y, WF_SUM));
    WF_EXPECT_OK(wf_tensor_export(y, got, sizeof got));
    WF_EXPECT(got[0] == 1 && got[2] == 3, "%g and %g", got[0], got[2]);
    const nccl_journal after = nccl_fake_journal();
    WF_EXPECT(after.collectives - before.collectives == 4, "%d calls", (int)(after.collectives - before.collectives));
    wf_tensor_free(x);
    wf_tensor_free(y);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int on_ranks(int argc, char **argv)
{
    nccl_fake_journal_clear();
    return test_main(argc, argv,
                     (test_case[]){{"gradients", gradients},
                                   {"sums_behind_backward", sums_behind_backward},
                                   {"ring", ring},
                                   {"computes_meanwhile", computes_meanwhile},
                                   {"overlap", overlap},
                                   {"splits", splits},
                                   {"part_dies", part_dies},
                                   {"misordered", misordered},
                                   {"alone", alone},
                                   {"ends_together", ends_together},
                                   {"dies_after_a_sum", dies_after_a_sum},
                                   {"frees_during_a_sum", frees_during_a_sum},
                                   {"shared_gpu", shared_gpu},
                                   {"too_old", too_old},
                                   {"other_device", other_device},
                                   {"one_rank", one_rank},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
