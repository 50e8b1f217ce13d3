/* The contract of wf_comm: every public call against results that are computed here. */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/comm/comm_names.h"
#include "tests/world.h"

#include <stdio.h>
#include <time.h>
#include <weft_places.h>

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;
static int everybody[64];

#define SHAPES 9

static wf_shape shape_of(int i)
{
    switch (i) {
    case 0:
        return wf_shape_scalar();
    case 1:
        return WF_SHAPE(0);
    case 2:
        return WF_SHAPE(1);
    case 3:
        return WF_SHAPE(7);
    case 4:
        return WF_SHAPE(3, 5);
    case 5:
        return WF_SHAPE(2, 3, 4, 5);
    case 6:
        return WF_SHAPE(3, 0, 2);
    case 7:
        return WF_SHAPE(2, 3, 2, 3, 2);
    default:
        return WF_SHAPE(23, 701);
    }
}

/* A shape of its own for every rank, some of them empty. */
static wf_shape ragged_shape(int r)
{
    return r % 3 == 1 ? WF_SHAPE(r % 2, 0) : WF_SHAPE(r + 1, 3, 1 + r * 40);
}

static void properties(void)
{
    int64_t ranks = rank, ones = 1;
    WF_EXPECT(rank >= 0 && rank < size, "rank %d of %d", rank, size);
    int64_t in_nodes = wf_comm_intra_rank(comm) == 0 ? wf_comm_intra_size(comm) : 0,
            nodes = wf_comm_intra_rank(comm) == 0;
    WF_EXPECT(wf_comm_intra_rank(comm) < wf_comm_intra_size(comm) &&
                  wf_comm_inter_rank(comm) < wf_comm_inter_size(comm),
              "rank %d of %d in node %d of %d", wf_comm_intra_rank(comm), wf_comm_intra_size(comm),
              wf_comm_inter_rank(comm), wf_comm_inter_size(comm));
    WF_EXPECT_OK(wf_allreduce_i64(comm, &in_nodes, 1, WF_SUM));
    WF_EXPECT_OK(wf_allreduce_i64(comm, &nodes, 1, WF_SUM));
    WF_EXPECT(in_nodes == size && nodes == wf_comm_inter_size(comm), "%lld ranks in %lld nodes", (long long)in_nodes,
              (long long)nodes);
    WF_EXPECT_OK(wf_allreduce_i64(comm, &ranks, 1, WF_SUM));
    WF_EXPECT_OK(wf_allreduce_i64(comm, &ones, 1, WF_SUM));
    WF_EXPECT(ranks == (int64_t)size * (size - 1) / 2 && ones == size, "sums %lld, %lld", (long long)ranks,
              (long long)ones);
    WF_EXPECT(wf_ctx_threads(ctx) >= 1, "%d threads", wf_ctx_threads(ctx));
    WF_EXPECT(wf_comm_rank(NULL) == 0 && wf_comm_size(NULL) == 0 && !wf_comm_ctx(NULL), "getters of NULL");
    WF_EXPECT(wf_mesh_size(wf_comm_mesh(comm), WF_AXIS_DATA) == size, "data axis");
}

static void splits_by_color(void)
{
    wf_comm *half = wf_comm_split(comm, rank % 2, -rank);
    WF_EXPECT(half, "%s", wf_error_message());
    const int ranks = (size + 1 - rank % 2) / 2;
    WF_EXPECT(wf_comm_size(half) == ranks, "size %d, should be %d", wf_comm_size(half), ranks);
    WF_EXPECT(wf_comm_rank(half) == ranks - 1 - rank / 2, "rank %d", wf_comm_rank(half));
    WF_EXPECT(!strcmp(wf_comm_name(half), wf_comm_name(comm)), "name %s", wf_comm_name(half));
    WF_EXPECT(wf_comm_ctx(half) == ctx, "the context is another");
    int64_t members[64];
    const int64_t mine = rank;
    WF_EXPECT_OK(wf_allgather_bytes(half, &mine, sizeof mine, members));
    for (int r = 0; r < ranks; r++)
        WF_EXPECT(members[r] == rank % 2 + 2 * (ranks - 1 - r), "member %d is %lld", r, (long long)members[r]);
    wf_comm *again = wf_comm_split(half, 0, 0);
    WF_EXPECT_OK(wf_comm_close(half));
    WF_EXPECT_OK(wf_barrier(again));
    WF_EXPECT_OK(wf_comm_close(again));
}

static void splits_without_some(void)
{
    wf_comm *none = wf_comm_split(comm, -1, 0);
    WF_EXPECT(!none && wf_error_code() == WF_OK, "color -1 gives %s", wf_error_message());
    wf_comm *some = wf_comm_split(comm, rank == 0 ? -5 : 3, 0);
    WF_EXPECT((some == NULL) == (rank == 0) && wf_error_code() == WF_OK, "%s", wf_error_message());
    if (some)
        WF_EXPECT(wf_comm_size(some) == size - 1 && wf_comm_rank(some) == rank - 1, "rank %d of %d", wf_comm_rank(some),
                  wf_comm_size(some));
    WF_EXPECT_OK(wf_comm_close(some));
    WF_EXPECT_OK(wf_barrier(comm));
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* None leaves before the last one has come; all are on one machine and have one clock. */
static void barrier_waits_for_all(void)
{
    for (int late = 0; late < size; late++) {
        int64_t mine[2], all[2 * 64];
        if (rank == late)
            test_sleep_ms(20);
        mine[0] = now_ns();
        WF_EXPECT_OK(wf_barrier(comm));
        mine[1] = now_ns();
        WF_EXPECT_OK(wf_allgather_bytes(comm, mine, sizeof mine, all));
        for (int r = 0; r < size; r++)
            WF_EXPECT(all[2 * r + 1] >= all[2 * late], "rank %d left a barrier before rank %d came", r, late);
    }
}

/* Checks that the version of a received tensor changes, which holders of a copy (a rounded one) compare. */
static void counts_versions(void)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3)), *y[64];
    for (int r = 0; r < size; r++)
        y[r] = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    uint64_t before = wf_tensor_version(x);
    WF_EXPECT_OK(wf_bcast(comm, x, 0));
    WF_EXPECT(rank == 0 || wf_tensor_version(x) != before, "bcast leaves the version as it was");
    before = wf_tensor_version(x);
    WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
    WF_EXPECT(wf_tensor_version(x) != before, "allreduce leaves the version as it was");
    before = wf_tensor_version(y[size - 1]);
    WF_EXPECT_OK(wf_allgather(comm, x, y));
    WF_EXPECT(wf_tensor_version(y[size - 1]) != before, "allgather leaves the version as it was");
    before = wf_tensor_version(x);
    WF_EXPECT_OK(wf_reduce_scatter(comm, y, x, WF_SUM));
    WF_EXPECT(wf_tensor_version(x) != before, "reduce_scatter leaves the version as it was");
    for (int r = 0; r < size; r++)
        wf_tensor_free(y[r]);
    wf_tensor_free(x);
}

static void broadcasts(void)
{
    for (int i = 0; i < SHAPES * FORMS; i++) {
        const int root = i % size;
        for (int t = 0; t < WF_DTYPES; t++) {
            /* Every rank may hold the tensor in another form. */
            wf_tensor *x = tensor_in_form(ctx, (wf_dtype)t, shape_of(i / FORMS), (comm_form)((i + rank) % FORMS));
            put_known(x, i, rank);
            WF_EXPECT_OK(wf_bcast(comm, x, root));
            expect_known(x, i, root, "bcast");
            wf_tensor_free(x);
        }
    }
}

static void broadcasts_long(void)
{
    const wf_shape shape = WF_SHAPE(77777, 3);
    for (int root = 0; root < size; root++) {
        wf_tensor *x = tensor_in_form(ctx, WF_F32, shape, FORM_DENSE);
        put_known(x, root, rank);
        WF_EXPECT_OK(wf_bcast(comm, x, root));
        expect_known(x, root, root, "long bcast");
        wf_tensor_free(x);
    }
}

static void reduce_one(wf_dtype dtype, wf_shape shape, comm_form form, wf_reduce_op op, int root)
{
    const int64_t salt = (int64_t)dtype + op;
    wf_tensor *x = tensor_in_form(ctx, dtype, shape, form), *y = tensor_in_form(ctx, dtype, shape, FORM_DENSE);
    put_known(x, salt, rank);
    WF_EXPECT_OK(wf_allreduce(comm, x, y, op));
    expect_combined(y, op, salt, everybody, size, "allreduce");
    expect_known(x, salt, rank, "x of allreduce");
    WF_EXPECT_OK(wf_tensor_fill(y, 99));
    WF_EXPECT_OK(wf_reduce(comm, x, rank == root ? y : NULL, op, root));
    if (rank == root)
        expect_combined(y, op, salt, everybody, size, "reduce");
    WF_EXPECT_OK(wf_allreduce(comm, x, x, op));
    expect_combined(x, op, salt, everybody, size, "allreduce in place");
    put_known(x, salt, rank);
    WF_EXPECT_OK(wf_reduce(comm, x, x, op, root));
    if (rank == root)
        expect_combined(x, op, salt, everybody, size, "reduce in place");
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void reduces(void)
{
    for (int t = 0; t < WF_DTYPES; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int op = WF_SUM; op <= WF_PROD; op++)
                reduce_one((wf_dtype)t, shape_of(s), (comm_form)((s + t + op + rank) % FORMS), (wf_reduce_op)op,
                           (s + op) % size);
}

static void reduces_long(void)
{
    reduce_one(WF_F32, WF_SHAPE(1500001), FORM_DENSE, WF_SUM, size - 1);
    reduce_one(WF_BF16, WF_SHAPE(1100000), FORM_DENSE, WF_SUM, 0);
}

/* Sums in rank order, whatever the length: a part of a vector gives the bits that the whole gave. */
static void sums_in_rank_order(void)
{
    enum { N = 40000, PART = 100 };
    float *mine = malloc(N * sizeof *mine), *sum = calloc(N, sizeof *sum), *got = malloc(N * sizeof *got);
    for (int r = 0; r < size; r++) {
        test_rng rng = {.state = (uint64_t)r + 1};
        for (int i = 0; i < N; i++) {
            const float value = (float)test_uniform(&rng, -1, 1) * ldexpf(1, (int)test_int(&rng, -20, 20));
            sum[i] = r == 0 ? value : sum[i] + value;
            if (r == rank)
                mine[i] = value;
        }
    }
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(N), mine), *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(N));
    WF_EXPECT_OK(wf_allreduce_raw(comm, x->data, y->data, N, WF_F32, WF_SUM));
    WF_EXPECT_OK(wf_tensor_export(y, got, N * sizeof *got));
    WF_EXPECT(!memcmp(got, sum, N * sizeof *sum), "the long sum has other bits");
    WF_EXPECT_OK(wf_allreduce_raw(comm, (float *)x->data + 5000, y->data, PART, WF_F32, WF_SUM));
    WF_EXPECT_OK(wf_tensor_export(y, got, N * sizeof *got));
    WF_EXPECT(!memcmp(got, sum + 5000, PART * sizeof *sum), "the short sum has other bits");
    wf_tensor_free(x);
    wf_tensor_free(y);
    free(mine);
    free(sum);
    free(got);
}

/* 256 and three times 1 in bf16: 259 is rounded once, to 260; rounding at each step would stay at 256. */
static void sums_halves_in_f32(void)
{
    for (int long_vector = 0; long_vector < 2; long_vector++)
        for (int t = WF_BF16; t <= WF_F16; t++) {
            const double large = t == WF_BF16 ? 256 : 2048; /* from here on, neighbours are 2 apart */
            wf_tensor *x = wf_tensor_new(ctx, (wf_dtype)t, WF_SHAPE(long_vector ? 50000 : 50));
            WF_EXPECT_OK(wf_tensor_fill(x, rank == 0 ? large : 1));
            WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
            const double rounded = 2 * nearbyint((large + size - 1) / 2);
            double *values = elements_of(x);
            WF_EXPECT(values[0] == rounded && values[49] == rounded, "%s: %g, should be %g", wf_dtype_name((wf_dtype)t),
                      values[0], rounded);
            free(values);
            wf_tensor_free(x);
        }
}

static void wraps(void)
{
    int64_t big = INT64_MAX;
    WF_EXPECT_OK(wf_allreduce_i64(comm, &big, 1, WF_SUM));
    WF_EXPECT((uint64_t)big == (uint64_t)size * (uint64_t)INT64_MAX, "wrapped sum %lld", (long long)big);
}

/* NaN wins, whichever rank has it; beside it are numbers. */
static void not_a_number_from(wf_reduce_op op, wf_dtype dtype, int from)
{
    enum { N = 37 };
    double values[N];
    for (int i = 0; i < N; i++)
        values[i] = i % 2 && rank == from ? NAN : rank;
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(N), values);
    wf_tensor *x = wf_tensor_copy(wide, dtype, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_allreduce(comm, x, x, op));
    double *got = elements_of(x);
    for (int i = 0; i < N; i++)
        WF_EXPECT(i % 2 ? isnan(got[i]) : got[i] == (op == WF_MAX ? size - 1 : 0), "%s of %s, NaN on rank %d: %d is %g",
                  op == WF_MAX ? "max" : "min", wf_dtype_name(dtype), from, i, got[i]);
    free(got);
    wf_tensor_free(x);
    wf_tensor_free(wide);
}

static void not_a_number(void)
{
    static const wf_dtype dtypes[] = {WF_F64, WF_F32, WF_F16, WF_BF16};
    for (int t = 0; t < 4; t++)
        for (int from = 0; from < size; from++) {
            not_a_number_from(WF_MAX, dtypes[t], from);
            not_a_number_from(WF_MIN, dtypes[t], from);
        }
}

static void make_all(wf_tensor **list, wf_dtype dtype, int form)
{
    for (int r = 0; r < size; r++)
        list[r] = tensor_in_form(ctx, dtype, ragged_shape(r), (comm_form)((form + r) % FORMS));
}

static void free_all(wf_tensor **list)
{
    for (int r = 0; r < size; r++)
        wf_tensor_free(list[r]);
}

static void gathers(void)
{
    wf_tensor *y[64];
    for (int i = 0; i < WF_DTYPES * FORMS; i++) {
        const wf_dtype dtype = (wf_dtype)(i % WF_DTYPES);
        const int root = i % size;
        wf_tensor *x = tensor_in_form(ctx, dtype, ragged_shape(rank), (comm_form)(i % FORMS));
        put_known(x, i, rank);
        make_all(y, dtype, i + 1);
        WF_EXPECT_OK(wf_gather(comm, x, rank == root ? y : NULL, root));
        for (int r = 0; r < size && rank == root; r++)
            expect_known(y[r], i, r, "gather");
        free_all(y);
        make_all(y, dtype, i + 2);
        WF_EXPECT_OK(wf_allgather(comm, x, y));
        for (int r = 0; r < size; r++)
            expect_known(y[r], i, r, "allgather");
        free_all(y);
        wf_tensor_free(x);
    }
}

static void scatters(void)
{
    wf_tensor *x[64];
    for (int i = 0; i < WF_DTYPES * FORMS; i++) {
        const wf_dtype dtype = (wf_dtype)(i % WF_DTYPES);
        const int root = (i + 1) % size;
        wf_tensor *y = tensor_in_form(ctx, dtype, ragged_shape(rank), (comm_form)(i % FORMS));
        make_all(x, dtype, i);
        for (int r = 0; r < size; r++)
            put_known(x[r], i, root * 10 + r);
        WF_EXPECT_OK(wf_scatter(comm, rank == root ? x : NULL, y, root));
        expect_known(y, i, root * 10 + rank, "scatter");
        free_all(x);
        wf_tensor_free(y);
    }
}

static wf_shape pair_shape(int from, int to)
{
    return (from + to) % 3 == 2 ? WF_SHAPE(0) : WF_SHAPE(from + 1, 2 * to + 1, 2);
}

static void exchanges_all(void)
{
    wf_tensor *x[64], *y[64];
    for (int i = 0; i < WF_DTYPES * FORMS; i++) {
        for (int r = 0; r < size; r++) {
            /* Every other time each pair of ranks has a type of its own. */
            const int out = (i + i % 2 * (rank + 2 * r)) % WF_DTYPES, in = (i + i % 2 * (r + 2 * rank)) % WF_DTYPES;
            x[r] = tensor_in_form(ctx, (wf_dtype)out, pair_shape(rank, r), (comm_form)(i % FORMS));
            y[r] = tensor_in_form(ctx, (wf_dtype)in, pair_shape(r, rank), (comm_form)((i + r) % FORMS));
            put_known(x[r], i, rank * 10 + r);
        }
        WF_EXPECT_OK(wf_alltoall(comm, x, y));
        for (int r = 0; r < size; r++)
            expect_known(y[r], i, r * 10 + rank, "alltoall");
        free_all(x);
        free_all(y);
    }
}

static void reduce_scatters(void)
{
    wf_tensor *x[64];
    int from[64];
    for (int i = 0; i < WF_DTYPES * 4; i++) {
        const wf_dtype dtype = (wf_dtype)(i % WF_DTYPES);
        const wf_reduce_op op = (wf_reduce_op)(i % 4);
        wf_tensor *y = tensor_in_form(ctx, dtype, ragged_shape(rank), (comm_form)((i + 1) % FORMS));
        make_all(x, dtype, i);
        for (int r = 0; r < size; r++) {
            put_known(x[r], i, rank * 10 + r);
            from[r] = r * 10 + rank;
        }
        WF_EXPECT_OK(wf_reduce_scatter(comm, x, y, op));
        expect_combined(y, op, i, from, size, "reduce_scatter");
        free_all(x);
        wf_tensor_free(y);
    }
}

static void sends_round(void)
{
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int i = 0; size > 1 && i < WF_DTYPES * FORMS; i++) {
        const wf_dtype dtype = (wf_dtype)(i % WF_DTYPES);
        wf_tensor *x = tensor_in_form(ctx, dtype, ragged_shape(rank), (comm_form)(i % FORMS));
        wf_tensor *y = tensor_in_form(ctx, dtype, ragged_shape(from), (comm_form)((i + 1) % FORMS));
        put_known(x, i, rank);
        WF_EXPECT_OK(wf_sendrecv(comm, x, to, y, from, i));
        expect_known(y, i, from, "sendrecv");
        wf_tensor_free(x);
        wf_tensor_free(y);
    }
}

/* Two messages of one tag keep their order; one of them is received as it comes. */
static void sends_in_order(void)
{
    if (size < 2 || rank > 1)
        return;
    for (int i = 0; i < 20; i++) {
        wf_tensor *first = wf_tensor_new(ctx, WF_F32, WF_SHAPE(i * 100)),
                  *second = wf_tensor_new(ctx, WF_I64, shape_of(5));
        if (rank == 0) {
            put_known(first, i, 3);
            put_known(second, i, 4);
            WF_EXPECT_OK(wf_send_new(comm, first, 1, 16383));
            WF_EXPECT_OK(wf_send(comm, second, 1, 16383));
        } else {
            wf_tensor *came = wf_recv_new(comm, 0, 16383);
            WF_EXPECT(wf_tensor_dtype(came) == WF_F32 && wf_tensor_count(came) == i * 100, "another tensor came");
            expect_known(came, i, 3, "recv_new");
            WF_EXPECT_OK(wf_recv(comm, second, 0, 16383));
            expect_known(second, i, 4, "recv");
            wf_tensor_free(came);
        }
        wf_tensor_free(first);
        wf_tensor_free(second);
    }
}

static void bytes_and_numbers(void)
{
    static const size_t lengths[] = {0, 1, 100, 20000, 300000};
    for (int i = 0; i < 5; i++) {
        const size_t n = lengths[i];
        unsigned char *mine = malloc(n + 1), *all = malloc(n * (size_t)size + 1);
        memset(mine, rank + 1, n);
        WF_EXPECT_OK(wf_allgather_bytes(comm, mine, n, all));
        for (size_t at = 0; at < n * (size_t)size; at++)
            if (all[at] != at / n + 1) {
                test_failed(__FILE__, __LINE__, "byte %zu of allgather_bytes is %d", at, all[at]);
                break;
            }
        WF_EXPECT_OK(wf_bcast_bytes(comm, mine, n, size - 1));
        for (size_t at = 0; at < n; at++)
            if (mine[at] != size) {
                test_failed(__FILE__, __LINE__, "byte %zu of bcast_bytes is %d", at, mine[at]);
                break;
            }
        free(mine);
        free(all);
    }
    double values[2] = {rank + 0.5, -rank};
    WF_EXPECT_OK(wf_allreduce_f64(comm, values, 2, WF_MIN));
    WF_EXPECT(values[0] == 0.5 && values[1] == 1 - size, "min %g %g", values[0], values[1]);
    WF_EXPECT_OK(wf_allreduce_f64(comm, NULL, 0, WF_SUM));
}

static wf_traffic since(wf_traffic before)
{
    const wf_traffic now = wf_comm_traffic(comm);
    return (wf_traffic){.bytes_sent = now.bytes_sent - before.bytes_sent,
                        .messages = now.messages - before.messages,
                        .collectives = now.collectives - before.collectives,
                        .bytes_copied = now.bytes_copied - before.bytes_copied};
}

static void expect_bytes(wf_traffic before, int64_t bytes, const char *what)
{
    const wf_traffic sent = since(before);
    WF_EXPECT(sent.bytes_sent == (uint64_t)bytes, "%s: %llu bytes sent, should be %lld", what,
              (unsigned long long)sent.bytes_sent, (long long)bytes);
}

static void counts_traffic(void)
{
    const int64_t n = 60000, others = size - 1;
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(n)), *y[64];
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_traffic before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
    /* Reductions in shared memory send nothing. */
    const bool in_memory = wf_comm_shares_memory(comm) && wf_comm_inter_size(comm) == 1;
    expect_bytes(before, in_memory ? 0 : 2 * n * 4 * others / size, "allreduce");
    WF_EXPECT(since(before).collectives == 1, "%llu collectives", (unsigned long long)since(before).collectives);
    before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_reduce(comm, x, x, WF_SUM, 0));
    expect_bytes(before, others == 0 || in_memory ? 0 : rank > 0 ? n * 4 : n * 4 * others / size, "reduce");
    for (int r = 0; r < size; r++)
        y[r] = wf_tensor_new(ctx, WF_F32, WF_SHAPE(n));
    before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_allgather(comm, x, y));
    expect_bytes(before, n * 4 * others, "allgather");
    before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_gather(comm, x, y, 0));
    expect_bytes(before, rank == 0 ? 0 : n * 4, "gather");
    before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_scatter(comm, y, x, 0));
    expect_bytes(before, rank == 0 ? n * 4 * others : 0, "scatter");
    before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_bcast(comm, x, 0));
    int64_t sent = (int64_t)since(before).bytes_sent;
    WF_EXPECT_OK(wf_allreduce_i64(comm, &sent, 1, WF_SUM));
    WF_EXPECT(sent == n * 4 * others, "bcast: %lld bytes sent by all", (long long)sent);
    before = wf_comm_traffic(comm);
    double value = 1;
    WF_EXPECT_OK(wf_allreduce_f64(comm, &value, 1, WF_SUM));
    expect_bytes(before, in_memory ? 0 : 8 * others, "short allreduce");
    free_all(y);
    wf_tensor_free(x);
}

static void bcasts_a_status(void)
{
    for (int root = 0; root < size; root++) {
        wf_status mine = WF_OK;
        if (rank == root)
            mine = WF_RAISE(WF_ERR_IO, "cannot read file %d", root);
        WF_EXPECT(wf_bcast_status(comm, mine, root) == WF_ERR_IO, "status %s", wf_status_name(wf_error_code()));
        char text[40];
        snprintf(text, sizeof text, "cannot read file %d", root);
        WF_EXPECT(!strcmp(wf_error_message(), text), "message \"%s\"", wf_error_message());
        wf_error_clear();
        WF_EXPECT_OK(wf_bcast_status(comm, WF_OK, root));
    }
}

/* Checks that the error of the lowest rank that failed reaches all ranks. */
static void agrees_on_a_status(void)
{
    for (int first = 0; first <= size; first++) {
        char text[40];
        wf_status mine = WF_OK;
        if (rank >= first)
            mine = WF_RAISE(rank == first ? WF_ERR_IO : WF_ERR_FORMAT, "file %d is torn", rank);
        const wf_status status = wf_agree_status(comm, mine);
        snprintf(text, sizeof text, "file %d is torn", first);
        WF_EXPECT(status == (first < size ? WF_ERR_IO : WF_OK), "status %s", wf_status_name(status));
        WF_EXPECT(first == size || !strcmp(wf_error_message(), text), "message \"%s\"", wf_error_message());
        wf_error_clear();
    }
}

static int run_cases(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"properties", properties},
                                   {"splits_by_color", splits_by_color},
                                   {"splits_without_some", splits_without_some},
                                   {"barrier_waits_for_all", barrier_waits_for_all},
                                   {"counts_versions", counts_versions},
                                   {"broadcasts", broadcasts},
                                   {"broadcasts_long", broadcasts_long},
                                   {"reduces", reduces},
                                   {"reduces_long", reduces_long},
                                   {"sums_in_rank_order", sums_in_rank_order},
                                   {"sums_halves_in_f32", sums_halves_in_f32},
                                   {"wraps", wraps},
                                   {"not_a_number", not_a_number},
                                   {"gathers", gathers},
                                   {"scatters", scatters},
                                   {"exchanges_all", exchanges_all},
                                   {"reduce_scatters", reduce_scatters},
                                   {"sends_round", sends_round},
                                   {"sends_in_order", sends_in_order},
                                   {"bytes_and_numbers", bytes_and_numbers},
                                   {"counts_traffic", counts_traffic},
                                   {"bcasts_a_status", bcasts_a_status},
                                   {"agrees_on_a_status", agrees_on_a_status},
                                   {0}});
}

static int on_ranks(int argc, char **argv)
{
    const char *const only[] = {test_communicator(NULL), NULL}, *const *names = *only ? only : comm_names;
    int status = 0;
    for (int r = 0; r < 64; r++)
        everybody[r] = r;
    for (int n = 0; names[n]; n++) {
        comm = comm_open_named(names[n], (wf_ctx_opts){0});
        if (!comm)
            continue;
        ctx = wf_comm_ctx(comm);
        rank = wf_comm_rank(comm);
        size = wf_comm_size(comm);
        status |= run_cases(argc, argv);
        WF_EXPECT_OK(wf_comm_close(comm));
    }
    return status || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
