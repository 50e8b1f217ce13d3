/* ChainerMN's communicator_tests, by meaning. */
#include "optim/multi_node.h"
#include "tests/chainermn/chainermn.h"

enum { MOST_RANKS = 4 };

static const char *const names[] = {"naive", "flat", "hierarchical", "two_dimensional", "single_node"};
enum { NAMES = sizeof names / sizeof *names };

/* --- test_communication_utility --------------------------------------------------------------------------------------
 */

/* WEFT_CHUNK_BYTES is theirs of the third case, 2378; their other limits are larger than their data, or no limit. */
static void test_chunked_bcast_objs(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    static const int64_t count[] = {10, 1024, 355678, 234};
    for (int c = 0; c < 4; c++) {
        int64_t *data = calloc((size_t)count[c], sizeof *data), i = 0;
        for (int64_t k = 0; k < count[c] && rank == 0; k++)
            data[k] = k;
        WF_EXPECT_OK(wf_bcast_bytes(comm, data, (size_t)count[c] * sizeof *data, 0));
        while (i < count[c] && data[i] == i)
            i++;
        WF_EXPECT(i == count[c], "element %lld of %lld is %lld", (long long)i, (long long)count[c],
                  (long long)data[i < count[c] ? i : 0]);
        free(data);
    }
    communicator_close();
}

/* --- test_communicator: send and receive -----------------------------------------------------------------------------
 */

static void send_along(int n, const wf_shape *shape, bool of_rank)
{
    for (int i = 0; i < n && rank > 0; i++) {
        wf_tensor *y = wf_recv_new(comm, rank - 1, 0);
        WF_EXPECT(y && wf_shape_equal(wf_tensor_shape(y), shape[i]), "message %d of %d: %s", i, n, wf_error_message());
        expect_all("a message", y, of_rank ? rank - 1 : 1, 0);
        wf_tensor_free(y);
    }
    for (int i = 0; i < n && rank < size - 1; i++) {
        wf_tensor *x = arange(WF_F32, shape[i], of_rank ? rank : 1, 0);
        WF_EXPECT_OK(wf_send_new(comm, x, rank + 1, 0));
        wf_tensor_free(x);
    }
}

static void check_send_recv(void)
{
    const wf_shape shape[] = {WF_SHAPE(50), WF_SHAPE(50, 20), WF_SHAPE(50, 20, 5), WF_SHAPE(50, 20, 5, 3)};
    for (int s = 0; s < 4; s++)
        send_along(1, &shape[s], true);
    send_along(1, shape, false);
    send_along(3, shape, false);
}

/* --- test_communicator: means of gradients ---------------------------------------------------------------------------
 */

/* They call bcast_data; here wf_multi_node does it. */
static void check_bcast_data(void)
{
    wf_layer *model = example_model(5);
    WF_EXPECT_OK(wf_tensor_fill(value_of(model, "a/W"), rank));
    WF_EXPECT_OK(wf_tensor_fill(value_of(model, "b/W"), rank + 1));
    WF_EXPECT_OK(wf_tensor_fill(value_of(model, "c/W"), rank + 2));
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){0}), (wf_multi_node_opts){0});
    expect_all("a after the broadcast", value_of(model, "a/W"), 0, 0);
    expect_all("b after the broadcast", value_of(model, "b/W"), 1, 0);
    expect_all("c after the broadcast", value_of(model, "c/W"), 2, 0);
    wf_optim_free(optim);
    wf_layer_free(model);
}

typedef enum third { ALL_HAVE, NO_RANK_HAS, EVEN_HAVE } third;

static double mean_of_third(third who)
{
    double sum = 0;
    for (int r = 0; r < size; r++)
        sum += who == ALL_HAVE || (who == EVEN_HAVE && r % 2 == 0) ? r + 2 : 0;
    return sum / size;
}

/* The mean over ranks of gradients rank, rank + 1 and rank + 2, twice. SGD of rate 1 moves parameters by it. */
static void check_mean_grad(const char *what, third who, wf_dtype sent)
{
    const double tolerance = sent == WF_F32 ? 1e-6 : 5e-3;
    wf_layer *model = example_model(5);
    wf_tape *tape = wf_tape_new(ctx);
    wf_optim *optim =
        wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){.grad_dtype = sent});
    WF_EXPECT(optim, "%s: %s", what, wf_error_message());
    for (int time = 0; time < 2; time++) {
        WF_EXPECT_OK(wf_tensor_fill(value_of(model, "a/W"), 0));
        WF_EXPECT_OK(wf_tensor_fill(value_of(model, "b/W"), 0));
        WF_EXPECT_OK(wf_tensor_fill(value_of(model, "c/W"), 0));
        wf_var *loss = wf_add(loss_with(tape, model, "a", rank), loss_with(tape, model, "b", rank + 1));
        if (who == ALL_HAVE || (who == EVEN_HAVE && rank % 2 == 0))
            loss = wf_add(loss, loss_with(tape, model, "c", rank + 2));
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        expect_all(what, value_of(model, "a/W"), -(size - 1) / 2.0, tolerance);
        expect_all(what, value_of(model, "b/W"), -(size - 1) / 2.0 - 1, tolerance);
        expect_all(what, value_of(model, "c/W"), -mean_of_third(who), tolerance);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(model);
}

/* Their debug mode finds NaN before the sum; here a sum in f16 finds it, on all ranks. */
static void check_diverged(void)
{
    wf_layer *model = example_model(5);
    wf_tape *tape = wf_tape_new(ctx);
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){0}), (wf_multi_node_opts){.grad_dtype = WF_F16});
    wf_var *loss = wf_add(loss_with(tape, model, "a", 1), loss_with(tape, model, "c", rank == size - 1 ? NAN : 1));
    if (size > 1)
        WF_EXPECT_ERROR(WF_ERR_NUMERIC, wf_optim_step(optim, loss));
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(model);
}

/* One communicator, as their check_send_recv and check_collective_communication in turn. */
static void check_communicator(const char *name, wf_dtype sent)
{
    communicator_open(name, (wf_ctx_opts){0});
    if (sent == WF_F32)
        check_send_recv();
    check_bcast_data();
    check_mean_grad("a mean of gradients", ALL_HAVE, sent);
    check_mean_grad("a mean of which no rank has one part", NO_RANK_HAS, sent);
    check_mean_grad("a mean of which half the ranks have one part", EVEN_HAVE, sent);
    check_diverged();
    communicator_close();
}

static void test_communicator_cpu(void)
{
    check_communicator("naive", WF_F32);
}

static void test_communicator_gpu(void)
{
    for (int n = 1; n < NAMES; n++)
        check_communicator(names[n], WF_F32);
    check_communicator("flat", WF_F16);
    check_communicator("hierarchical", WF_BF16);
}

/* Their mock of NCCL sees the type that is sent; here the bytes tell. */
static void test_mixed_dtype_communicator_gpu(void)
{
    uint64_t bytes[2] = {0, 0};
    for (int half = 0; half < 2; half++) {
        communicator_open("flat", (wf_ctx_opts){0});
        const uint64_t before = wf_comm_traffic(comm).bytes_sent;
        check_mean_grad("a mean in 16 bits", ALL_HAVE, half ? WF_F16 : WF_F32);
        bytes[half] = wf_comm_traffic(comm).bytes_sent - before;
        communicator_close();
    }
    WF_EXPECT(size == 1 || bytes[1] < bytes[0], "f16 sends %llu bytes, f32 %llu", (unsigned long long)bytes[1],
              (unsigned long long)bytes[0]);
}

static void test_invalid_allreduce_grad_dtype(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_layer *model = example_model(5);
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){0}), (wf_multi_node_opts){.grad_dtype = WF_I32});
    WF_EXPECT(!optim && wf_error_code() == WF_ERR_ARGUMENT, "gradients as i32: %s", wf_error_message());
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(model);
    (void)wf_comm_close(comm);
    wf_error_clear();
}

/* --- test_communicator: TestDifferentDtype ---------------------------------------------------------------------------
 */

static const wf_dtype dtypes[] = {WF_I32, WF_I64, WF_F32, WF_F64};

/* Rank r's part of arange(4 size), or the scalar `number`. */
static wf_tensor *part_of(wf_dtype dtype, int r, bool scalar, double number)
{
    return scalar ? arange(dtype, wf_shape_scalar(), number, 0) : arange(dtype, WF_SHAPE(1, 4), 4 * r, 1);
}

/* The test of one operation: every type, as arrays and as scalars. */
static void each_dtype(void (*check)(wf_dtype dtype, bool scalar))
{
    communicator_open("naive", (wf_ctx_opts){0});
    for (int d = 0; d < 4; d++)
        for (int scalar = 0; scalar < 2; scalar++)
            check(dtypes[d], scalar);
    communicator_close();
}

static void check_pair(wf_dtype dtype, bool scalar)
{
    wf_tensor *x = scalar ? part_of(dtype, 0, true, 1) : arange(dtype, WF_SHAPE(18), 0, 1);
    if (rank == 0 && size > 1)
        WF_EXPECT_OK(wf_send_new(comm, x, 1, 0));
    wf_tensor *y = rank == 1 ? wf_recv_new(comm, 0, 0) : wf_tensor_alias(x);
    expect_near("what was received", y, x, 0);
    wf_tensor_free(y);
    wf_tensor_free(x);
}

/* Lists of what each rank has (x) and of room for what is received (y). */
typedef struct parts {
    wf_tensor *x[MOST_RANKS], *y[MOST_RANKS];
} parts;

static parts parts_of(wf_dtype dtype, bool scalar, double number, bool counted)
{
    parts p = {{0}, {0}};
    for (int r = 0; r < size; r++) {
        p.x[r] = part_of(dtype, r, scalar, counted ? r : number);
        p.y[r] = wf_tensor_new(ctx, dtype, wf_tensor_shape(p.x[r]));
    }
    return p;
}

static void free_parts(parts *p)
{
    for (int r = 0; r < size; r++) {
        wf_tensor_free(p->x[r]);
        wf_tensor_free(p->y[r]);
    }
}

static void check_alltoall(wf_dtype dtype, bool scalar)
{
    parts p = parts_of(dtype, scalar, 1, false);
    wf_tensor *mine[MOST_RANKS];
    for (int r = 0; r < size; r++)
        mine[r] = p.x[rank];
    WF_EXPECT_OK(wf_alltoall(comm, mine, p.y));
    for (int r = 0; r < size; r++)
        expect_near("all-to-all", p.y[r], p.x[r], 0);
    free_parts(&p);
}

static void check_allgather(wf_dtype dtype, bool scalar)
{
    parts p = parts_of(dtype, scalar, 1, false);
    WF_EXPECT_OK(wf_allgather(comm, p.x[rank], p.y));
    for (int r = 0; r < size; r++)
        expect_near("all-gather", p.y[r], p.x[r], 0);
    free_parts(&p);
}

static void check_bcast(wf_dtype dtype, bool scalar)
{
    wf_tensor *x = scalar ? part_of(dtype, 0, true, 42) : arange(dtype, WF_SHAPE(4), 0, 1);
    wf_tensor *y = rank == 0 ? wf_tensor_alias(x) : wf_tensor_new(ctx, dtype, wf_tensor_shape(x));
    WF_EXPECT_OK(wf_bcast(comm, y, 0));
    expect_near("broadcast", y, x, 0);
    wf_tensor_free(y);
    wf_tensor_free(x);
}

static void check_gather(wf_dtype dtype, bool scalar)
{
    parts p = parts_of(dtype, scalar, 0, true);
    WF_EXPECT_OK(wf_gather(comm, p.x[rank], p.y, 0));
    for (int r = 0; r < size && rank == 0; r++)
        expect_near("gather", p.y[r], p.x[r], 0);
    free_parts(&p);
}

static void check_scatter(wf_dtype dtype, bool scalar)
{
    parts p = parts_of(dtype, scalar, 42, false);
    WF_EXPECT_OK(wf_scatter(comm, rank == 0 ? p.x : NULL, p.y[rank], 0));
    expect_near("scatter", p.y[rank], p.x[rank], 0);
    free_parts(&p);
}

static void check_allreduce(wf_dtype dtype, bool scalar)
{
    static const int64_t count[] = {1, 18, 32};
    for (int c = 0; c < (scalar ? 1 : 3); c++) {
        const wf_shape shape = scalar ? wf_shape_scalar() : WF_SHAPE(count[c]);
        const double sum = (double)size * (size - 1) / 2;
        wf_tensor *x = arange(dtype, shape, scalar ? 1 : rank, scalar ? 0 : 1);
        wf_tensor *should = arange(dtype, shape, scalar ? size : sum, scalar ? 0 : size);
        WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
        expect_near("all-reduce", x, should, 0);
        wf_tensor_free(should);
        wf_tensor_free(x);
    }
}

static void test_send_recv(void)
{
    each_dtype(check_pair);
}

static void test_alltoall(void)
{
    each_dtype(check_alltoall);
}

static void test_allgather(void)
{
    each_dtype(check_allgather);
}

static void test_bcast(void)
{
    each_dtype(check_bcast);
}

static void test_gather(void)
{
    each_dtype(check_gather);
}

static void test_scatter(void)
{
    each_dtype(check_scatter);
}

static void test_allreduce(void)
{
    each_dtype(check_allreduce);
}

/* --- test_communicator: TestNonContiguousArray -----------------------------------------------------------------------
 */

/* x[:, 1, :] of arange(18) as [3,3,2]: [3,1,2], and what it holds. */
static wf_tensor *middle_rows(wf_tensor **dense)
{
    wf_tensor *x = arange(WF_F32, WF_SHAPE(3, 3, 2), 0, 1);
    wf_tensor *view = wf_tensor_view(x, (wf_box){.rank = 3, .lo = {0, 1, 0}, .hi = {3, 2, 2}});
    *dense = tensor_of(WF_F32, WF_SHAPE(3, 1, 2), (const double[]){2, 3, 8, 9, 14, 15});
    wf_tensor_free(x);
    return view;
}

static void test_send_noncontiguous(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_tensor *dense, *x = middle_rows(&dense);
    if (rank == 0 && size > 1)
        WF_EXPECT_OK(wf_send(comm, x, 1, 0));
    if (rank == 1) {
        wf_tensor *y = wf_recv_new(comm, 0, 0);
        expect_near("a view that was sent", y, dense, 0);
        wf_tensor_free(y);
    }
    wf_tensor_free(dense);
    wf_tensor_free(x);
    communicator_close();
}

static void test_alltoall_noncontiguous(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_tensor *dense, *view = middle_rows(&dense), *x[MOST_RANKS], *y[MOST_RANKS];
    for (int r = 0; r < size; r++) {
        x[r] = view;
        y[r] = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3, 1, 2));
    }
    WF_EXPECT_OK(wf_alltoall(comm, x, y));
    for (int r = 0; r < size; r++) {
        expect_near("a view to all", y[r], dense, 0);
        wf_tensor_free(y[r]);
    }
    wf_tensor_free(dense);
    wf_tensor_free(view);
    communicator_close();
}

/* Their objects are pickled; here a number travels as a tensor of one i64, under their tags. */
static void test_send_recv_obj(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    static const int tag[] = {0, 1, 2, 0, 4, 5};
    for (int i = 0; i < 6 && size > 1; i++) {
        wf_tensor *x = arange(WF_I64, wf_shape_scalar(), i, 0);
        if (rank == 0)
            WF_EXPECT_OK(wf_send_new(comm, x, 1, tag[i]));
        wf_tensor *y = rank == 1 ? wf_recv_new(comm, 0, tag[i]) : wf_tensor_alias(x);
        expect_near("a number", y, x, 0);
        wf_tensor_free(y);
        wf_tensor_free(x);
    }
    communicator_close();
}

/* --- test_mpi --------------------------------------------------------------------------------------------------------
 */

static void test_bcast_gpu_large_buffer_deadlock(void)
{
    communicator_open("flat", (wf_ctx_opts){0});
    wf_tensor *should = arange(WF_F32, WF_SHAPE(10000), 0, 1);
    wf_tensor *x = rank == 0 ? wf_tensor_alias(should) : wf_tensor_new(ctx, WF_F32, WF_SHAPE(10000));
    WF_EXPECT_OK(wf_bcast(comm, x, 0));
    WF_EXPECT_OK(wf_barrier(comm));
    expect_near("10000 numbers", x, should, 0);
    wf_tensor_free(x);
    wf_tensor_free(should);
    communicator_close();
}

/* --- test_node_aware_communicator_base -------------------------------------------------------------------------------
 */

/* What the launcher says of this process, or -1; the ranks under test are the first ones of the world. */
static int said_by_launcher(const char *variable)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : -1;
}

static void test_intra_rank_with_env(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    const int should = said_by_launcher("OMPI_COMM_WORLD_LOCAL_RANK");
    if (should >= 0)
        WF_EXPECT(wf_comm_intra_rank(comm) == should, "intra rank %d, the launcher says %d", wf_comm_intra_rank(comm),
                  should);
    communicator_close();
}

/* The largest local rank of a node, and one. */
static void test_intra_size_with_env(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    const int local = said_by_launcher("OMPI_COMM_WORLD_LOCAL_RANK");
    int64_t most[MOST_RANKS] = {0};
    most[wf_comm_inter_rank(comm)] = local + 1;
    WF_EXPECT_OK(wf_allreduce_i64(comm, most, MOST_RANKS, WF_MAX));
    if (local >= 0)
        WF_EXPECT(wf_comm_intra_size(comm) == most[wf_comm_inter_rank(comm)], "intra size %d, the launcher's is %lld",
                  wf_comm_intra_size(comm), (long long)most[wf_comm_inter_rank(comm)]);
    communicator_close();
}

typedef struct place {
    int intra, intra_size, inter, inter_size;
} place;

static void all_places(place *all)
{
    const place mine = {wf_comm_intra_rank(comm), wf_comm_intra_size(comm), wf_comm_inter_rank(comm),
                        wf_comm_inter_size(comm)};
    WF_EXPECT_OK(wf_allgather_bytes(comm, &mine, sizeof mine, all));
}

static void test_inter_rank_and_size(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    place all[MOST_RANKS];
    unsigned seen = 0;
    all_places(all);
    for (int r = 0; r < size; r++) {
        WF_EXPECT(0 <= all[r].inter && all[r].inter < all[r].inter_size, "node %d of %d", all[r].inter,
                  all[r].inter_size);
        WF_EXPECT(all[r].inter_size == all[0].inter_size, "%d nodes or %d", all[r].inter_size, all[0].inter_size);
        seen |= 1u << all[r].inter;
    }
    WF_EXPECT(seen == (1u << all[0].inter_size) - 1, "nodes %x of %d", seen, all[0].inter_size);
    communicator_close();
}

static void test_intra_rank_and_size(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    place all[MOST_RANKS];
    unsigned seen[MOST_RANKS] = {0};
    all_places(all);
    for (int r = 0; r < size; r++) {
        WF_EXPECT(0 <= all[r].intra && all[r].intra < all[r].intra_size, "rank %d of %d in its node", all[r].intra,
                  all[r].intra_size);
        seen[all[r].inter] |= 1u << all[r].intra;
    }
    for (int r = 0; r < size; r++)
        WF_EXPECT(seen[all[r].inter] == (1u << all[r].intra_size) - 1, "node %d has ranks %x, and %d of them",
                  all[r].inter, seen[all[r].inter], all[r].intra_size);
    communicator_close();
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"chunked_bcast_objs", test_chunked_bcast_objs},
                                   {"communicator_cpu", test_communicator_cpu},
                                   {"communicator_gpu", test_communicator_gpu},
                                   {"mixed_dtype_communicator_gpu", test_mixed_dtype_communicator_gpu},
                                   {"invalid_allreduce_grad_dtype", test_invalid_allreduce_grad_dtype},
                                   {"send_recv", test_send_recv},
                                   {"alltoall", test_alltoall},
                                   {"allgather", test_allgather},
                                   {"bcast", test_bcast},
                                   {"gather", test_gather},
                                   {"scatter", test_scatter},
                                   {"allreduce", test_allreduce},
                                   {"send_noncontiguous", test_send_noncontiguous},
                                   {"alltoall_noncontiguous", test_alltoall_noncontiguous},
                                   {"send_recv_obj", test_send_recv_obj},
                                   {"bcast_gpu_large_buffer_deadlock", test_bcast_gpu_large_buffer_deadlock},
                                   {"intra_rank_with_env", test_intra_rank_with_env},
                                   {"intra_size_with_env", test_intra_size_with_env},
                                   {"inter_rank_and_size", test_inter_rank_and_size},
                                   {"intra_rank_and_size", test_intra_rank_and_size},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
