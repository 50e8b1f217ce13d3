/* Collectives on tensors in the memory of GPUs that NCCL connects: one launch each, in the same order on all ranks, and
 * the host reads nothing of that memory. */
#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "core/tensor_author.h"
#include "layers/layers.h"
#include "tests/comm/comm_cases.h"
#include "tests/fake/guard.h"
#include "tests/fake/nccl_fake.h"
#include "tests/world.h"

#include <stdio.h>

enum { MOST = 8 };

static int rank, size;
static wf_comm *comm;
static wf_ctx *ctx;
static int everybody[MOST];

static void open_comm(void)
{
    comm = test_comm_open("pure_nccl", (wf_ctx_opts){0});
    WF_EXPECT(comm, "%s", wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    for (int r = 0; r < MOST; r++)
        everybody[r] = r;
}

static void close_comm(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

/* All ranks called the same collectives in the same order, and got all that was sent to them. */
static void expect_order(void)
{
    wf_tensor *last = wf_tensor_new(ctx, WF_U8, WF_SHAPE(1));
    WF_EXPECT_OK(wf_tensor_fill(last, 1));
    free(elements_of(last)); /* once all that is on its way is there */
    wf_tensor_free(last);
    nccl_journal mine = nccl_fake_journal(), all[MOST];
    WF_EXPECT_OK(wf_allgather_bytes(comm, &mine, sizeof mine, all));
    for (int r = 0; r < size; r++) {
        WF_EXPECT(all[r].order == mine.order, "rank %d called other collectives than rank %d", rank, r);
        WF_EXPECT(all[r].sent[rank] == mine.received[r], "rank %d sent %d, %d were received", r, (int)all[r].sent[rank],
                  (int)mine.received[r]);
    }
}

typedef struct before {
    nccl_journal journal;
    int64_t reads;
} before;

static before now(void)
{
    return (before){nccl_fake_journal(), guard_reads()};
}

static int launches_since(before b)
{
    return (int)(nccl_fake_journal().launches - b.journal.launches);
}

static void expect_native(before b, int launches, const char *what)
{
    const int launched = launches_since(b);
    WF_EXPECT(guard_reads() == b.reads, "%s: the host reads the device %d times", what, (int)(guard_reads() - b.reads));
    WF_EXPECT(launched == (size > 1 ? launches : 0), "%s: %d launches", what, launched);
}

static wf_shape ragged_shape(int r)
{
    return WF_SHAPE(r == 1 ? 0 : r + 2, 3);
}

static void make_all(wf_tensor **list, wf_dtype dtype, int form, int64_t salt)
{
    for (int r = 0; r < size; r++) {
        list[r] = tensor_in_form(ctx, dtype, ragged_shape(r), (comm_form)((form + r) % FORMS));
        if (salt >= 0)
            put_known(list[r], salt + r, rank);
    }
}

static void free_all(wf_tensor **list)
{
    for (int r = 0; r < size; r++)
        wf_tensor_free(list[r]);
}

static void whole(wf_dtype dtype, comm_form form, int i)
{
    const int root = i % size;
    wf_tensor *x = tensor_in_form(ctx, dtype, WF_SHAPE(5, 3, 2), form),
              *y = tensor_in_form(ctx, dtype, WF_SHAPE(5, 3, 2), form);
    put_known(x, i, rank);
    before b = now();
    WF_EXPECT_OK(wf_bcast(comm, x, root));
    expect_native(b, 1, "bcast");
    expect_known(x, i, root, "bcast");
    put_known(x, i, rank);
    for (int op = WF_SUM; op <= WF_PROD; op++) {
        const bool native = size == 1 || op == WF_SUM || op == WF_PROD || !wf_dtype_is_float(dtype);
        b = now();
        WF_EXPECT_OK(wf_allreduce(comm, x, y, (wf_reduce_op)op));
        if (native)
            expect_native(b, 1, "allreduce");
        expect_combined(y, (wf_reduce_op)op, i, everybody, size, "allreduce");
        b = now();
        WF_EXPECT_OK(wf_reduce(comm, x, y, (wf_reduce_op)op, root));
        if (native)
            expect_native(b, 1, "reduce");
        if (rank == root)
            expect_combined(y, (wf_reduce_op)op, i, everybody, size, "reduce");
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void lists(wf_dtype dtype, int form, int i)
{
    const int root = i % size;
    wf_tensor *x[MOST], *y[MOST];
    make_all(x, dtype, form, i);
    make_all(y, dtype, form + 1, -1);
    put_known(x[rank], i, rank);
    before b = now();
    WF_EXPECT_OK(wf_allgather(comm, x[rank], y));
    expect_native(b, 1, "allgather");
    for (int r = 0; r < size; r++)
        expect_known(y[r], i, r, "allgather");
    b = now();
    WF_EXPECT_OK(wf_gather(comm, x[rank], rank == root ? y : NULL, root));
    expect_native(b, launches_since(b) > 0, "gather"); /* of nothing, where that is all a rank has to do with it */
    for (int r = 0; r < size && rank == root; r++)
        expect_known(y[r], i, r, "gather");
    put_known(x[rank], i + rank, rank);
    b = now();
    WF_EXPECT_OK(wf_scatter(comm, rank == root ? x : NULL, y[rank], root));
    expect_native(b, launches_since(b) > 0, "scatter");
    expect_known(y[rank], i + rank, root, "scatter");
    b = now();
    WF_EXPECT_OK(wf_reduce_scatter(comm, x, y[rank], WF_SUM));
    expect_native(b, 1, "reduce_scatter");
    expect_combined(y[rank], WF_SUM, i + rank, everybody, size, "reduce_scatter");
    free_all(y);
    for (int r = 0; r < size; r++) /* of the shape of what comes from rank r */
        y[r] = tensor_in_form(ctx, dtype, ragged_shape(rank), (comm_form)((form + r) % FORMS));
    b = now();
    WF_EXPECT_OK(wf_alltoall(comm, x, y));
    expect_native(b, 1, "alltoall");
    for (int r = 0; r < size; r++)
        expect_known(y[r], i + rank, r, "alltoall");
    free_all(y);
    free_all(x);
}

static void collectives(void)
{
    open_comm();
    for (int i = 0; i < WF_DTYPES * FORMS; i++) {
        whole((wf_dtype)(i % WF_DTYPES), (comm_form)(i % FORMS), i);
        lists((wf_dtype)(i % WF_DTYPES), i % FORMS, i);
    }
    expect_order();
    close_comm();
}

/* 16-bit types are summed in f32 and rounded once; NaN wins in max and min. */
static void numbers(void)
{
    open_comm();
    for (int t = WF_BF16; t <= WF_F16; t++) {
        const double large = t == WF_BF16 ? 256 : 2048; /* from here on, neighbours are 2 apart */
        wf_tensor *x = wf_tensor_new(ctx, (wf_dtype)t, WF_SHAPE(50));
        WF_EXPECT_OK(wf_tensor_fill(x, rank == 0 ? large : 1));
        WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
        double *values = elements_of(x);
        WF_EXPECT(values[7] == 2 * nearbyint((large + size - 1) / 2), "%s: %g", wf_dtype_name((wf_dtype)t), values[7]);
        free(values);
        wf_tensor_free(x);
    }
    const double mine[2] = {rank == size - 1 ? NAN : 9, rank == 0 ? NAN : 9};
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(2), mine);
    WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_MAX));
    double *values = elements_of(x);
    WF_EXPECT(isnan(values[0]) && isnan(values[1]), "max %g %g", values[0], values[1]);
    free(values);
    wf_tensor_free(x);
    close_comm();
}

/* --- two ranks -----------------------------------------------------------------------------------------------------
 */

enum { SHORT = 50, LONG = 20000 };

static void pass_round(int64_t n, int salt)
{
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(n)), *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(n));
    put_known(x, salt, rank);
    const before b = now();
    WF_EXPECT_OK(wf_sendrecv(comm, x, right, y, left, 3));
    if (n == LONG)
        expect_native(b, 1, "sendrecv");
    expect_known(y, salt, left, "sendrecv");
    wf_tensor_free(x);
    wf_tensor_free(y);
}

/* Long messages go by NCCL, in the order in which they are received; short ones overtake them by their tags. */
static void pass_on(void)
{
    wf_tensor *large = wf_tensor_new(ctx, WF_F32, WF_SHAPE(LONG)), *small = wf_tensor_new(ctx, WF_F32, WF_SHAPE(SHORT));
    put_known(large, 1, 0);
    put_known(small, 2, 0);
    if (rank == 0) {
        WF_EXPECT_OK(wf_send(comm, small, 1, 5));
        const before b = now();
        WF_EXPECT_OK(wf_send(comm, large, 1, 4));
        expect_native(b, 1, "send");
        WF_EXPECT_OK(wf_send_new(comm, large, 1, 4));
    } else if (rank == 1) {
        WF_EXPECT_OK(wf_tensor_fill(large, 0));
        WF_EXPECT_OK(wf_tensor_fill(small, 0));
        const before b = now();
        WF_EXPECT_OK(wf_recv(comm, large, 0, 4));
        expect_native(b, 1, "recv");
        wf_tensor *fresh = wf_recv_new(comm, 0, 4);
        WF_EXPECT_OK(wf_recv(comm, small, 0, 5));
        expect_known(large, 1, 0, "recv");
        expect_known(small, 2, 0, "recv of what was sent before");
        WF_EXPECT(fresh, "%s", wf_error_message());
        expect_known(fresh, 1, 0, "recv_new");
        wf_tensor_free(fresh);
    }
    wf_tensor_free(large);
    wf_tensor_free(small);
}

static void between_two(void)
{
    open_comm();
    for (int i = 0; i < 4 && size > 1; i++) {
        pass_round(i % 2 ? LONG : SHORT, i);
        pass_on();
    }
    expect_order();
    close_comm();
}

/* Two long messages that are received in the other order: an error after the time-out, not the wrong numbers. */
static void crossed(void)
{
    open_comm();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(LONG)), *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(LONG));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    /* Once all ranks are there, since one that gives up takes the others along. */
    WF_EXPECT_OK(wf_barrier(comm));
    nccl_fake_limit_waits(1000);
    if (size > 1 && rank < 2) {
        const wf_status first = rank == 0 ? wf_send(comm, x, 1, 1) : wf_recv(comm, y, 0, 2);
        WF_EXPECT(first != WF_OK, "rank %d goes on with a message of another tag", rank);
        wf_error_clear();
    }
    nccl_fake_limit_waits(0);
    wf_tensor_free(x);
    wf_tensor_free(y);
    (void)wf_comm_close(comm);
    wf_error_clear();
}

/* --- parts ---------------------------------------------------------------------------------------------------------
 */

/* Equal parts, unequal ones, and none for some: sums, and parts brought together; every one is one launch. */
static void shards(void)
{
    open_comm();
    WF_EXPECT_OK(wf_background_open(comm));
    for (int form = 0; form < 3 && size > 1; form++) {
        int64_t shard[MOST + 1] = {0};
        for (int r = 0; r < size; r++)
            shard[r + 1] = shard[r] + (form == 0 ? 7 : form == 1 ? 5 + r : r % 2 ? 4 : 0);
        wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(shard[size]));
        put_known(x, form, rank);
        for (int way = 0; way < 2; way++) {
            const before b = now();
            (way ? wf_background_gather_shards : wf_background_sum_shards)(comm, x->data, shard, WF_F32);
            WF_EXPECT_OK(wf_background_wait(comm));
            expect_native(b, 1, way ? "gather of shards" : "sum of shards");
            double *values = elements_of(x);
            for (int64_t i = way ? 0 : shard[rank]; i < (way ? shard[size] : shard[rank + 1]); i++)
                WF_EXPECT(values[i] == combined(WF_SUM, form, everybody, size, i), "form %d, way %d: element %d is %g",
                          form, way, (int)i, values[i]);
            free(values);
        }
        wf_tensor_free(x);
    }
    expect_order();
    close_comm();
}

/* --- tasks ---------------------------------------------------------------------------------------------------------
 */

/* Sums of the background stream between collectives of the main program: NCCL has one order, whatever turn a rank takes
 * first. */
static void beside(void)
{
    enum { ROUNDS = 6 };
    open_comm();
    WF_EXPECT_OK(wf_background_open(comm));
    static const int64_t offset[2] = {0, 40};
    wf_tensor *summed[ROUNDS];
    wf_tensor *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(9));
    for (int i = 0; i < ROUNDS; i++) {
        summed[i] = wf_tensor_new(ctx, WF_F32, WF_SHAPE(40));
        put_known(summed[i], i, rank);
        wf_background_sum(comm, &(wf_call){.out = summed[i]->data, .dtype = WF_F32, .parts = 1, .part = offset});
        put_known(y, 10 + i, rank);
        if (rank == 0)
            wf_ctx_progress(ctx);
        WF_EXPECT_OK(wf_allreduce(comm, y, y, WF_SUM));
        expect_combined(y, WF_SUM, 10 + i, everybody, size, "main program");
    }
    WF_EXPECT_OK(wf_background_wait(comm));
    for (int i = 0; i < ROUNDS; i++) {
        expect_combined(summed[i], WF_SUM, i, everybody, size, "task");
        wf_tensor_free(summed[i]);
    }
    wf_tensor_free(y);
    expect_order();
    close_comm();
}

/* --- synchronised batch normalisation -------------------------------------------------------------------------------
 */

/* One launch in each direction. The host looks once at the parts of a new layout, and else at nothing: samples that
 * change in number from step to step are counted on the device. */
static void sync_norm(void)
{
    open_comm();
    wf_layer *layer = wf_sync_batchnorm(comm, (wf_batchnorm_opts){.channels = 3});
    wf_tape *tape = wf_tape_new(ctx);
    for (int i = 0; i < 8; i++) {
        const bool laid_out = i >= 4;
        const int64_t n = laid_out ? 4 : (rank + i) % 3;
        wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(n, 3, 2, 2));
        put_known(x, i, rank);
        if (laid_out)
            WF_EXPECT_OK(wf_tensor_set_layout(
                x, wf_layout_batch(wf_comm_mesh(comm), WF_SHAPE(4 * size, 3, 2, 2), 4 * rank, 4 * rank + 4)));
        const before b = now();
        wf_var *y = wf_apply(layer, wf_leaf(tape, x));
        WF_EXPECT(y, "%s", wf_error_message());
        WF_EXPECT_OK(wf_backward_from(y, x));
        if (i == 4)
            WF_EXPECT(guard_reads() > b.reads, "a new layout is not looked at");
        else
            expect_native(b, 2, "sync_batchnorm");
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(x);
    }
    wf_tape_free(tape);
    wf_layer_free(layer);
    expect_order();
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    nccl_fake_journal_clear();
    return test_main(argc, argv,
                     (test_case[]){{"collectives", collectives},
                                   {"numbers", numbers},
                                   {"between_two", between_two},
                                   {"crossed", crossed},
                                   {"shards", shards},
                                   {"beside", beside},
                                   {"sync_norm", sync_norm},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
