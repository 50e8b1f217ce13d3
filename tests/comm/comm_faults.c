/* What goes wrong: every case gives the same error on all ranks, in bounded time, and leaves the communicator dead and
 * everything else alive. Each case runs on a communicator of its own, with every rank in turn as the culprit. */
#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "core/context_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/world.h"

#include <stdio.h>
#include <weft_places.h>

#define TEXT  700
#define PLACE " at comm_faults.c:"

static wf_comm *world;
static wf_ctx *ctx;
static int rank, size;
static bool shared; /* the communicators share memory, in which the guard leaves its records */
static bool ends;   /* the first and the last rank alone are culprits */

static wf_comm *part_of_world(void)
{
    wf_comm *comm = wf_comm_split(world, 0, 0);
    if (shared)
        WF_EXPECT_OK(wf_reducer_connect(comm));
    return comm;
}

typedef wf_status (*fault)(wf_comm *comm, bool culprit);

/* The call may have ended before the failure where the data of a rank did not depend on the culprit; then the next one
 * fails. */
static wf_status at_the_latest_now(wf_comm *comm, wf_status status)
{
    return status == WF_OK ? wf_barrier(comm) : status;
}

static void expect_dead(wf_comm *comm, wf_status code)
{
    double value = 1;
    WF_EXPECT_ERROR(code, wf_barrier(comm));
    WF_EXPECT_ERROR(code, wf_allreduce_f64(comm, &value, 1, WF_SUM));
    WF_EXPECT_ERROR(code, wf_check(wf_comm_split(comm, 0, 0)));
}

static int next_culprit(int culprit)
{
    return culprit + (ends && size > 2 ? size - 1 : 1);
}

/* The message must say "rank", the culprit's number, and `part`. */
static void run_fault(const char *what, fault run, wf_status code, const char *part)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit = next_culprit(culprit)) {
        char wanted[TEXT];
        snprintf(wanted, sizeof wanted, "rank %d%s", culprit, part);
        wf_comm *comm = part_of_world();
        WF_EXPECT_OK(wf_barrier(world));
        const wf_status status = run(comm, rank == culprit);
        expect_same_error(world, status, code, wanted, what, culprit);
        expect_dead(comm, code);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
}

static wf_status reduce_of(wf_comm *comm, wf_dtype dtype, wf_shape shape, wf_reduce_op op)
{
    wf_tensor *x = wf_tensor_new(ctx, dtype, shape);
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    const wf_status status = wf_allreduce(comm, x, x, op);
    wf_tensor_free(x);
    return status;
}

static wf_status other_operation(wf_comm *comm, bool culprit)
{
    return culprit ? wf_barrier(comm) : reduce_of(comm, WF_F32, WF_SHAPE(10), WF_SUM);
}

static wf_status other_type(wf_comm *comm, bool culprit)
{
    return reduce_of(comm, culprit ? WF_I32 : WF_F32, WF_SHAPE(10), WF_SUM);
}

static wf_status other_count(wf_comm *comm, bool culprit)
{
    return reduce_of(comm, WF_F32, WF_SHAPE(culprit ? 11 : 10), WF_SUM);
}

static wf_status other_count_long(wf_comm *comm, bool culprit)
{
    return reduce_of(comm, WF_F32, WF_SHAPE(culprit ? 300001 : 300000), WF_SUM);
}

static wf_status other_shape(wf_comm *comm, bool culprit)
{
    return reduce_of(comm, WF_F64, culprit ? WF_SHAPE(2, 3, 5) : WF_SHAPE(2, 5, 3), WF_SUM);
}

static wf_status other_reduction(wf_comm *comm, bool culprit)
{
    return reduce_of(comm, WF_F32, WF_SHAPE(10), culprit ? WF_MAX : WF_MIN);
}

static wf_status other_root(wf_comm *comm, bool culprit)
{
    char data[100] = {0};
    return at_the_latest_now(comm, wf_bcast_bytes(comm, data, sizeof data, culprit ? 1 : 0));
}

static wf_status other_length(wf_comm *comm, bool culprit)
{
    char data[100] = {0};
    return at_the_latest_now(comm, wf_bcast_bytes(comm, data, culprit ? 50 : 100, 0));
}

static wf_status other_order(wf_comm *comm, bool culprit)
{
    wf_status status = culprit ? wf_barrier(comm) : reduce_of(comm, WF_F32, WF_SHAPE(10), WF_SUM);
    if (status == WF_OK)
        status = culprit ? reduce_of(comm, WF_F32, WF_SHAPE(10), WF_SUM) : wf_barrier(comm);
    return status;
}

static wf_status one_more(wf_comm *comm, bool culprit)
{
    if (culprit)
        WF_EXPECT(wf_barrier(comm) != WF_OK, "a barrier that the others did not enter");
    return reduce_of(comm, WF_F32, WF_SHAPE(10), WF_SUM);
}

static wf_status missing_call(wf_comm *comm, bool culprit)
{
    const wf_status status = culprit ? WF_OK : wf_barrier(comm);
    return status == WF_OK ? reduce_of(comm, WF_F32, WF_SHAPE(10), WF_SUM) : status;
}

static void disagreements(void)
{
    run_fault("other operation", other_operation, WF_ERR_COMM, " calls barrier()" PLACE);
    run_fault("other type", other_type, WF_ERR_COMM, " calls allreduce(i32 [10], sum)" PLACE);
    run_fault("other count", other_count, WF_ERR_COMM, " calls allreduce(f32 [11], sum)" PLACE);
    run_fault("other count, long", other_count_long, WF_ERR_COMM, " calls allreduce(f32 [300001], sum)" PLACE);
    run_fault("other shape", other_shape, WF_ERR_COMM, " calls allreduce(f64 [2,3,5], sum)" PLACE);
    run_fault("other reduction", other_reduction, WF_ERR_COMM, " calls allreduce(f32 [10], max)" PLACE);
    run_fault("other root", other_root, WF_ERR_COMM, " calls bcast_bytes(u8 [100], root 1)" PLACE);
    run_fault("other length", other_length, WF_ERR_COMM, " calls bcast_bytes(u8 [50], root 0)" PLACE);
    run_fault("other order", other_order, WF_ERR_COMM, " calls barrier()" PLACE);
    run_fault("missing call", missing_call, WF_ERR_COMM, " calls allreduce(f32 [10], sum)" PLACE);
    run_fault("one more", one_more, WF_ERR_COMM, " calls barrier()" PLACE);
}

/* A rank that misses a call and closes instead, or that never comes to it because the program is over there. */
static void closed_early(void)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit = next_culprit(culprit)) {
        char wanted[TEXT];
        snprintf(wanted, sizeof wanted, "collective %d: rank %d calls close()" PLACE, shared ? 3 : 2, culprit);
        wf_comm *comm = part_of_world();
        WF_EXPECT_OK(wf_barrier(comm));
        WF_EXPECT_OK(wf_barrier(world)); /* all ranks have left the first one */
        if (rank != culprit) {
            WF_EXPECT(wf_barrier(comm) == WF_ERR_COMM && strstr(wf_error_message(), wanted),
                      "culprit %d: \"%s\" does not say \"%s\"", culprit, wf_error_message(), wanted);
            wf_error_clear();
        }
        WF_EXPECT_OK(wf_comm_close(comm));
        WF_EXPECT_OK(wf_barrier(world));
    }
}

/* Closing is no collective: in any order, while others still talk elsewhere; and what is closed leaves nothing behind
 * for those that are opened after it. */
static void closed_in_any_order(void)
{
    for (int i = 0; i < 20; i++) {
        wf_comm *a = wf_comm_split(world, 0, 0), *b = wf_comm_split(world, 0, size - rank);
        WF_EXPECT_OK(wf_barrier(a));
        WF_EXPECT_OK(wf_barrier(b));
        WF_EXPECT_OK(wf_comm_close((rank + i) % 2 ? a : b));
        WF_EXPECT_OK(wf_barrier(world));
        WF_EXPECT_OK(wf_comm_close((rank + i) % 2 ? b : a));
    }
    WF_EXPECT_OK(wf_barrier(world));
}

#if !defined __SANITIZE_ADDRESS__ /* which keeps what is freed */
static int64_t resident_pages(void)
{
    long long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    WF_EXPECT(file && fscanf(file, "%lld %lld", &all, &resident) == 2, "no count of pages");
    if (file)
        fclose(file);
    return resident;
}
#endif

/* Communicators that come and go do not add up. */
static void closed_leaves_no_memory(void)
{
#if !defined __SANITIZE_ADDRESS__
    int64_t before = 0;
    for (int i = 0; i < 700; i++) {
        if (i == 100)
            before = resident_pages();
        WF_EXPECT_OK(wf_comm_close(wf_comm_split(world, 0, 0)));
    }
    const int64_t more = resident_pages() - before;
    WF_EXPECT(more < 700, "600 communicators left %lld pages", (long long)more);
#endif
}

static wf_status null_argument(wf_comm *comm, bool culprit)
{
    return culprit ? wf_allreduce(comm, NULL, NULL, WF_SUM) : reduce_of(comm, WF_F32, WF_SHAPE(10), WF_SUM);
}

/* The error that made the argument NULL is the one that travels. */
static wf_status failed_constructor(wf_comm *comm, bool culprit)
{
    if (!culprit)
        return wf_barrier(comm);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(-3));
    WF_EXPECT(!x, "a tensor of a negative size");
    return wf_allreduce(comm, x, x, WF_SUM);
}

static wf_status bad_root(wf_comm *comm, bool culprit)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(10));
    WF_EXPECT_OK(wf_tensor_fill(x, 0));
    const wf_status status = wf_bcast(comm, x, culprit ? size : 0);
    wf_tensor_free(x);
    return at_the_latest_now(comm, status);
}

static wf_status posted(wf_comm *comm, bool culprit)
{
    if (culprit)
        return wf_comm_post_failure(comm, WF_RAISE(WF_ERR_IO, "disk full"));
    return wf_barrier(comm);
}

/* The others wait in a communicator that was split from the one where it is posted. */
static wf_status posted_above(wf_comm *comm, bool culprit)
{
    wf_comm *child = wf_comm_split(comm, 0, 0);
    if (culprit)
        (void)wf_comm_post_failure(comm, WF_RAISE(WF_ERR_IO, "disk full"));
    const wf_status status = wf_barrier(child);
    WF_EXPECT_OK(wf_comm_close(child));
    WF_EXPECT_OK(wf_comm_alive(comm) == status ? WF_OK : WF_RAISE(WF_ERR_STATE, "parent and child differ"));
    return wf_barrier(comm);
}

static wf_status split_and_barrier(wf_comm *comm, bool culprit)
{
    if (culprit)
        return wf_barrier(comm);
    WF_EXPECT(!wf_comm_split(comm, 0, 0), "a split that one rank did not enter");
    return wf_error_code();
}

static wf_status ragged_surprise(wf_comm *comm, bool culprit)
{
    wf_tensor *y[64], *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(culprit ? 4 : 3));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    for (int r = 0; r < size; r++)
        y[r] = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3));
    const wf_status status = wf_allgather(comm, x, y);
    for (int r = 0; r < size; r++)
        wf_tensor_free(y[r]);
    wf_tensor_free(x);
    return at_the_latest_now(comm, status);
}

static void failures_of_one(void)
{
    run_fault("NULL", null_argument, WF_ERR_ARGUMENT, ": allreduce: x is NULL (called at comm_faults.c:");
    run_fault("failed constructor", failed_constructor, WF_ERR_SHAPE, ": allreduce: ");
    run_fault("bad root", bad_root, WF_ERR_ARGUMENT, ": bcast: root ");
    run_fault("posted", posted, WF_ERR_IO, ": disk full");
    run_fault("posted above", posted_above, WF_ERR_IO, ": disk full");
    run_fault("split", split_and_barrier, WF_ERR_COMM, " calls barrier()" PLACE);
}

/* The culprit ends its part of a broadcast before its notice goes out. The others still wait in it for a late rank:
 * they end it well, and learn of the failure in the call after it. */
static void notice_waits_for_its_call(void)
{
    for (int culprit = 0; size > 2 && culprit < size; culprit++) {
        char data[16] = {0}, wanted[TEXT];
        wf_comm *comm = part_of_world();
        WF_EXPECT_OK(wf_barrier(comm));
        if (rank == (culprit + 1) % size)
            test_sleep_ms(200);
        data[3] = (char)(rank == culprit ? 7 : 0);
        WF_EXPECT_OK(wf_bcast_bytes(comm, data, sizeof data, culprit));
        WF_EXPECT(data[3] == 7, "culprit %d: the broadcast brought %d", culprit, data[3]);
        const wf_status status =
            rank == culprit ? wf_comm_post_failure(comm, WF_RAISE(WF_ERR_IO, "disk full")) : wf_barrier(comm);
        snprintf(wanted, sizeof wanted, "rank %d: disk full", culprit);
        expect_same_error(world, status, WF_ERR_IO, wanted, "a notice of the call after", culprit);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
}

/* The error names the rank that saw it, so only its code is compared. */
static void messages_that_do_not_fit(void)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit++) {
        wf_comm *comm = wf_comm_split(world, 0, 0);
        WF_EXPECT_ERROR(WF_ERR_COMM, ragged_surprise(comm, rank == culprit));
        WF_EXPECT_OK(wf_comm_close(comm));
        WF_EXPECT_OK(wf_barrier(world));
    }
    if (size < 2)
        return;
    for (int i = 0; i < 3; i++) {
        static const char *const says[] = {"rank 0 sent f32 [4] where f32 [3] is expected",
                                           "rank 0 sent f32 [2] where f32 [3] is expected",
                                           "rank 0 sent i32 [3] where f32 [3] is expected"};
        wf_comm *comm = wf_comm_split(world, 0, 0);
        wf_tensor *to = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3));
        wf_tensor *from = wf_tensor_new(ctx, i == 2 ? WF_I32 : WF_F32, WF_SHAPE(i == 0 ? 4 : i == 1 ? 2 : 3));
        WF_EXPECT_OK(wf_tensor_fill(from, 1));
        const wf_status status = rank == 0 ? wf_send(comm, from, 1, 5) : rank == 1 ? wf_recv(comm, to, 0, 5) : WF_OK;
        expect_same_error(world, at_the_latest_now(comm, status), WF_ERR_COMM, says[i], "recv", 0);
        wf_tensor_free(from);
        wf_tensor_free(to);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
}

/* What the root scatters is not what a rank has room for, also where one of them is nothing. */
static void scattered_sizes(void)
{
    static const size_t sent[] = {0, 8, 8, 16}, room[] = {8, 0, 16, 8};
    static const char *const says[] = {"sent 0 bytes where 8 are expected", "sent 8 bytes where 0 are expected",
                                       "sent 8 bytes where 16 are expected", "sent 16 bytes where 8 are expected"};
    for (int i = 0; size > 1 && i < 5; i++) {
        char from[16] = {0}, to[16];
        const void *x[64];
        size_t bytes[64];
        for (int r = 0; r < size; r++) {
            x[r] = i == 4 && r == size - 1 ? NULL : from;
            bytes[r] = i == 4 ? 8 : r == size - 1 ? sent[i] : 4;
        }
        wf_comm *comm = wf_comm_split(world, 0, 0);
        const size_t own = i < 4 && rank == size - 1 ? room[i] : bytes[rank];
        const wf_status status = at_the_latest_now(comm, wf_scatter_bytes(comm, x, bytes, to, own, 0));
        expect_same_error(world, status, i == 4 ? WF_ERR_ARGUMENT : WF_ERR_COMM,
                          i == 4 ? "is NULL, and bytes" : says[i], "scatter_bytes", 0);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
}

/* All ranks make the same mistake. */
static void arguments(void)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4)), *y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(4));
    wf_tensor *z = wf_tensor_new(ctx, WF_F32, WF_SHAPE(5));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_tensor *parts[64];
    for (int r = 0; r < size; r++)
        parts[r] = size > 1 && r == size - 1 - (rank == size - 1) ? y : x; /* one that is not this rank's own */
    for (int i = 0; i < (size > 1 ? 11 : 9); i++) {
        wf_comm *comm = wf_comm_split(world, 0, 0);
        const wf_status status = i == 0    ? wf_bcast(comm, x, size)
                                 : i == 1  ? wf_bcast(comm, x, -1)
                                 : i == 2  ? wf_allreduce(comm, x, y, WF_SUM)
                                 : i == 3  ? wf_allreduce(comm, x, z, WF_SUM)
                                 : i == 4  ? wf_allreduce(comm, x, x, (wf_reduce_op)9)
                                 : i == 5  ? wf_send(comm, x, rank, 0)
                                 : i == 6  ? wf_send(comm, x, size, 0)
                                 : i == 7  ? wf_recv(comm, x, (rank + 1) % size, 16384)
                                 : i == 9  ? wf_sendrecv(comm, x, (rank + 1) % size, z, -1, 0)
                                 : i == 10 ? wf_reduce_scatter(comm, parts, x, WF_SUM)
                                           : wf_gather(comm, NULL, NULL, 0);
        const wf_status code = i == 2 || i == 10 ? WF_ERR_DTYPE : i == 3 ? WF_ERR_SHAPE : WF_ERR_ARGUMENT;
        WF_EXPECT(status == code && wf_error_code() == code, "argument %d: %s", i, wf_error_message());
        wf_error_clear();
        expect_dead(comm, code);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_tensor_free(z);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_barrier(NULL));
    WF_EXPECT(!wf_comm_split(NULL, 0, 0) && wf_comm_close(NULL) == WF_OK, "NULL communicators");
}

/* --- tasks that a failure meets on their way ---------------------------------------------------------------------- */

static wf_comm *torn;
static wf_tensor *cargo;

/* A sum, which no rank ends before all have begun it. */
static void add_sum(int64_t count)
{
    static const int64_t none[2] = {0, 1};
    static int64_t span[2];
    static float one;
    span[1] = count;
    wf_background_sum(
        torn, &(wf_call){.out = cargo ? cargo->data : &one, .dtype = WF_F32, .parts = 1, .part = cargo ? span : none});
}

/* What was split from a dead communicator says no farewell when it closes: those that are in a call of it learn of the
 * failure alone. */
static void closed_after_a_failure(void)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit++) {
        wf_comm *comm = wf_comm_split(world, 0, 0);
        torn = wf_comm_split(comm, 0, 0);
        WF_EXPECT_OK(wf_background_open(torn));
        if (rank != culprit) {
            add_sum(1);
            wf_ctx_progress(ctx);
        }
        WF_EXPECT_OK(wf_barrier(world));
        if (rank != culprit)
            test_sleep_ms(50);
        wf_status status =
            rank == culprit ? wf_comm_post_failure(comm, WF_RAISE(WF_ERR_IO, "the disk is full")) : WF_OK;
        if (rank == culprit)
            WF_EXPECT_OK(wf_comm_close(torn));
        else
            status = wf_background_wait(torn);
        expect_same_error(world, status, WF_ERR_IO, "the disk is full", "closed after a failure", culprit);
        if (rank != culprit)
            WF_EXPECT_OK(wf_comm_close(torn));
        WF_EXPECT_OK(wf_comm_close(comm));
    }
}

static wf_tensor *filled(double value)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE((int64_t)4 << 20));
    WF_EXPECT_OK(wf_tensor_fill(x, value));
    return x;
}

static void expect_filled(const wf_tensor *x, float value)
{
    const size_t bytes = wf_tensor_bytes(x), count = bytes / sizeof value;
    float *found = malloc(bytes);
    size_t same = 0;
    WF_EXPECT_OK(wf_tensor_export(x, found, bytes));
    while (same < count && found[same] == value)
        same++;
    WF_EXPECT(same == count, "element %zu is %g, not %g: a message wrote into memory that was given back", same,
              same < count ? found[same] : 0, value);
    free(found);
}

/* Rank 1 begins to send and then computes; rank 0 receives a part and fails. What arrives later must not meet the
 * tensor that is made next. */
static void memory_of_unfinished_messages(void)
{
    if (size < 2)
        return;
    torn = wf_comm_split(world, 0, 0);
    WF_EXPECT_OK(wf_background_open(torn));
    cargo = filled(rank == 1 ? 3 : 0);
    if (rank < 2)
        add_sum((int64_t)4 << 20);
    if (rank == 1)
        wf_ctx_progress(ctx);
    WF_EXPECT_OK(wf_barrier(world));
    for (int i = 0; rank == 0 && i < 200; i++)
        wf_ctx_progress(ctx);
    if (rank == 0)
        WF_EXPECT(wf_comm_post_failure(torn, WF_RAISE(WF_ERR_IO, "a torn message")) == WF_ERR_IO, "no failure");
    else
        test_sleep_ms(500);
    wf_background_end(torn);
    wf_error_clear();
    wf_tensor_free(cargo);
    cargo = NULL;
    wf_tensor *next = filled(7);
    for (int i = 0; i < 100; i++)
        WF_EXPECT_OK(wf_barrier(world));
    expect_filled(next, 7);
    wf_tensor_free(next);
    WF_EXPECT_OK(wf_comm_close(torn));
}

/* Several ranks fail at once, each by itself, and all say the same in the end: what rank 0 received first. */
static void several_fail(void)
{
    wf_comm *comm = part_of_world();
    WF_EXPECT_OK(wf_barrier(world));
    const wf_status mine = size < 3 || rank > 0 ? WF_RAISE(WF_ERR_IO, "disk %d is full", rank) : WF_OK;
    const wf_status status = mine == WF_OK ? wf_barrier(comm) : wf_comm_post_failure(comm, mine);
    expect_same_error(world, status, WF_ERR_IO, " is full", "several fail", 0);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* A rank runs ahead of its right neighbour as far as records can be kept, many times over. */
static void far_ahead(void)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit++) {
        char byte = 0;
        wf_comm *comm = part_of_world();
        for (int i = 0; i < 300; i++) {
            byte = (char)(rank == culprit ? i : 0);
            if (i % 100 == 50 && rank != culprit)
                test_sleep_ms(20);
            WF_EXPECT_OK(wf_bcast_bytes(comm, &byte, 1, culprit));
            WF_EXPECT(byte == (char)i, "call %d brought %d", i, byte);
        }
        WF_EXPECT_OK(wf_comm_close(comm));
    }
}

/* Records lie in memory of the node. */
static void in_shared_memory(void)
{
    wf_comm *before = world;
    world = test_comm_open("single_node", (wf_ctx_opts){0});
    shared = true;
    far_ahead();
    disagreements();
    closed_early();
    failures_of_one();
    notice_waits_for_its_call();
    /* Runs the cases again with a failure in the call that opens the shared memory. */
    shared = false;
    ends = true;
    disagreements();
    closed_early();
    failures_of_one();
    ends = false;
    WF_EXPECT_OK(wf_comm_close(world));
    world = before;
}

static void expect_no_comm(const char *name, wf_ctx_opts opts, wf_status code, const char *part)
{
    wf_comm *comm = test_comm_open(name, opts);
    WF_EXPECT(!comm && wf_error_code() == code && strstr(wf_error_message(), part), "\"%s\": %s", name,
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(world));
}

static void names(void)
{
    const wf_ctx_opts none = {0}, nonsense = {.device = "abacus"};
    expect_no_comm("flatt", none, WF_ERR_ARGUMENT, "\"flatt\"");
    expect_no_comm("flatt", none, WF_ERR_ARGUMENT, "auto, naive, flat");
    expect_no_comm("", none, WF_ERR_ARGUMENT, "\"\"");
    expect_no_comm("flat", nonsense, WF_ERR_ARGUMENT, "abacus");
    if (size == 1)
        return;
    expect_no_comm("flat", rank == 1 ? nonsense : none, WF_ERR_ARGUMENT, "abacus");
    expect_no_comm(rank == 1 ? "naive" : "flat", none, WF_ERR_ARGUMENT, "naive");
}

static int on_ranks(int argc, char **argv)
{
    world = test_comm_open("flat", (wf_ctx_opts){0});
    if (!world) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    ctx = wf_comm_ctx(world);
    rank = wf_comm_rank(world);
    size = wf_comm_size(world);
    const int status = test_main(argc, argv,
                                 (test_case[]){{"disagreements", disagreements},
                                               {"closed_early", closed_early},
                                               {"closed_in_any_order", closed_in_any_order},
                                               {"closed_leaves_no_memory", closed_leaves_no_memory},
                                               {"closed_after_a_failure", closed_after_a_failure},
                                               {"failures_of_one", failures_of_one},
                                               {"notice_waits_for_its_call", notice_waits_for_its_call},
                                               {"messages_that_do_not_fit", messages_that_do_not_fit},
                                               {"memory_of_unfinished_messages", memory_of_unfinished_messages},
                                               {"scattered_sizes", scattered_sizes},
                                               {"arguments", arguments},
                                               {"several_fail", several_fail},
                                               {"far_ahead", far_ahead},
                                               {"in_shared_memory", in_shared_memory},
                                               {"names", names},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(world));
    return status || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
