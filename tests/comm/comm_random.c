/* Ten thousand random operations over communicators that overlap, sums of gradients among them, compared with a serial
 * model. All ranks draw the same numbers; the values of a rank follow from the number of the operation, so every rank
 * knows what must come out.
 */
#include "comm/reducer_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/world.h"

#include <stdio.h>

#define COMMS      5
#define OPERATIONS 10000
#define KINDS      12
#define MOST       16

typedef struct group {
    wf_comm *comm; /* NULL where this rank is not in it */
    int size;
    int member[MOST]; /* world ranks in the order of the group's */
} group;

/* One random operation, the same on all members. */
typedef struct job {
    const group *g;
    int64_t salt;
    wf_dtype dtype;
    wf_reduce_op op;
    int root, form;
    wf_shape shape;
} job;

static wf_comm *world;
static wf_ctx *ctx;

/* Sized differently for every pair, and empty now and then. */
static wf_shape part_shape(const job *j, int a, int b)
{
    return WF_SHAPE((j->salt + 3 * a + 5 * b) % 4, 1 + (j->salt * 7 + a + b) % 60);
}

static int me(const job *j)
{
    return wf_comm_rank(j->g->comm);
}

static wf_tensor *new_known(const job *j, wf_shape shape, int64_t source)
{
    wf_tensor *x = tensor_in_form(ctx, j->dtype, shape, (comm_form)((j->form + source) % FORMS));
    put_known(x, j->salt, (int)source);
    return x;
}

static wf_tensor *new_room(const job *j, wf_shape shape)
{
    return tensor_in_form(ctx, j->dtype, shape, (comm_form)((j->form + 1) % FORMS));
}

static void run_bcast(const job *j)
{
    wf_tensor *x = new_known(j, j->shape, j->g->member[me(j)]);
    WF_EXPECT_OK(wf_bcast(j->g->comm, x, j->root));
    expect_known(x, j->salt, j->g->member[j->root], "bcast");
    wf_tensor_free(x);
}

static void run_allreduce(const job *j)
{
    wf_tensor *x = new_known(j, j->shape, j->g->member[me(j)]), *y = new_room(j, j->shape);
    WF_EXPECT_OK(wf_allreduce(j->g->comm, x, y, j->op));
    expect_combined(y, j->op, j->salt, j->g->member, j->g->size, "allreduce");
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void run_reduce(const job *j)
{
    wf_tensor *x = new_known(j, j->shape, j->g->member[me(j)]), *y = new_room(j, j->shape);
    WF_EXPECT_OK(wf_reduce(j->g->comm, x, y, j->op, j->root));
    if (me(j) == j->root)
        expect_combined(y, j->op, j->salt, j->g->member, j->g->size, "reduce");
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void run_gather(const job *j)
{
    wf_tensor *x = new_known(j, part_shape(j, me(j), 0), j->g->member[me(j)]), *y[MOST];
    const bool all = j->op == WF_MAX;
    for (int r = 0; r < j->g->size; r++)
        y[r] = new_room(j, part_shape(j, r, 0));
    if (all)
        WF_EXPECT_OK(wf_allgather(j->g->comm, x, y));
    else
        WF_EXPECT_OK(wf_gather(j->g->comm, x, y, j->root));
    for (int r = 0; r < j->g->size; r++) {
        if (all || me(j) == j->root)
            expect_known(y[r], j->salt, j->g->member[r], all ? "allgather" : "gather");
        wf_tensor_free(y[r]);
    }
    wf_tensor_free(x);
}

static int pair(const job *j, int from, int to)
{
    return j->g->member[from] * 20 + j->g->member[to];
}

static void run_alltoall(const job *j)
{
    wf_tensor *x[MOST], *y[MOST];
    for (int r = 0; r < j->g->size; r++) {
        x[r] = new_known(j, part_shape(j, me(j), r), pair(j, me(j), r));
        y[r] = new_room(j, part_shape(j, r, me(j)));
    }
    WF_EXPECT_OK(wf_alltoall(j->g->comm, x, y));
    for (int r = 0; r < j->g->size; r++) {
        expect_known(y[r], j->salt, pair(j, r, me(j)), "alltoall");
        wf_tensor_free(x[r]);
        wf_tensor_free(y[r]);
    }
}

static void run_scatter(const job *j)
{
    wf_tensor *x[MOST], *y = new_room(j, part_shape(j, 0, me(j)));
    for (int r = 0; r < j->g->size; r++)
        x[r] = new_known(j, part_shape(j, 0, r), pair(j, me(j), r));
    WF_EXPECT_OK(wf_scatter(j->g->comm, x, y, j->root));
    expect_known(y, j->salt, pair(j, j->root, me(j)), "scatter");
    for (int r = 0; r < j->g->size; r++)
        wf_tensor_free(x[r]);
    wf_tensor_free(y);
}

static void run_reduce_scatter(const job *j)
{
    wf_tensor *x[MOST], *y = new_room(j, part_shape(j, 0, me(j)));
    int source[MOST];
    for (int r = 0; r < j->g->size; r++) {
        x[r] = new_known(j, part_shape(j, 0, r), pair(j, me(j), r));
        source[r] = pair(j, r, me(j));
    }
    WF_EXPECT_OK(wf_reduce_scatter(j->g->comm, x, y, j->op));
    expect_combined(y, j->op, j->salt, source, j->g->size, "reduce_scatter");
    for (int r = 0; r < j->g->size; r++)
        wf_tensor_free(x[r]);
    wf_tensor_free(y);
}

/* From the root to its neighbour, without a word to the others. */
static void run_send(const job *j)
{
    const int to = (j->root + 1) % j->g->size, tag = (int)(j->salt % 16384);
    if (j->g->size < 2 || (me(j) != j->root && me(j) != to))
        return;
    wf_tensor *x = new_known(j, j->shape, pair(j, me(j), to));
    if (me(j) == j->root) {
        WF_EXPECT_OK(wf_send(j->g->comm, x, to, tag));
    } else {
        WF_EXPECT_OK(wf_recv(j->g->comm, x, j->root, tag));
        expect_known(x, j->salt, pair(j, j->root, to), "recv");
    }
    wf_tensor_free(x);
}

/* Up to several pieces of what goes through shared memory at once. */
static void run_gradients(const job *j)
{
    const int64_t count = wf_shape_count(j->shape) * (j->salt % 8 == 0 ? 17 : 1), offset[] = {0, count / 3, count};
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(count));
    const wf_call sum = {.out = x->data, .dtype = WF_F32, .parts = 2, .part = offset};
    put_known(x, j->salt, j->g->member[me(j)]);
    WF_EXPECT_OK(wf_reducer_sum(j->g->comm, &sum));
    expect_combined(x, WF_SUM, j->salt, j->g->member, j->g->size, "gradients");
    wf_tensor_free(x);
}

static void run_barrier(const job *j)
{
    WF_EXPECT_OK(wf_barrier(j->g->comm));
}

static void run_job(test_rng *rng, const group *groups, int64_t salt)
{
    static void (*const kinds[KINDS])(const job *) = {run_bcast,  run_allreduce, run_reduce,    run_gather,
                                                      run_gather, run_alltoall,  run_scatter,   run_reduce_scatter,
                                                      run_send,   run_barrier,   run_gradients, run_gradients};
    job j = {.g = &groups[test_int(rng, 0, COMMS - 1)], .salt = salt};
    const int64_t kind = test_int(rng, 0, KINDS - 1), rows = test_int(rng, 0, 6);
    j.dtype = (wf_dtype)test_int(rng, 0, WF_DTYPES - 1);
    j.op = (wf_reduce_op)test_int(rng, 0, 3);
    j.root = (int)(test_u64(rng) % (uint64_t)j.g->size);
    j.form = (int)test_int(rng, 0, FORMS - 1);
    j.shape = test_int(rng, 0, 19) == 0 ? WF_SHAPE(rows, 4000) : WF_SHAPE(rows, test_int(rng, 0, 40));
    if (j.g->comm)
        kinds[kind](&j);
}

/* Members by color, in the order of keys, then ranks. */
static void group_open(group *g, int (*color)(int), int (*key)(int))
{
    const int rank = wf_comm_rank(world), size = wf_comm_size(world);
    g->comm = wf_comm_split(world, color(rank), key(rank));
    WF_EXPECT((g->comm != NULL) == (color(rank) >= 0), "%s", wf_error_message());
    for (int k = -size; k <= size; k++)
        for (int r = 0; r < size; r++)
            if (color(r) == color(rank) && key(r) == k)
                g->member[g->size++] = r;
}

static int same(int r)
{
    return 0;
}

static int parity(int r)
{
    return r % 2;
}

static int backwards(int r)
{
    return -r;
}

static int but_the_first(int r)
{
    return r == 0 ? -1 : 1;
}

static int halves(int r)
{
    return r / 2;
}

static void many(void)
{
    group groups[COMMS] = {{0}};
    test_rng rng = {.state = 20};
    group_open(&groups[0], same, same);
    group_open(&groups[1], same, backwards);
    group_open(&groups[2], parity, same);
    group_open(&groups[3], but_the_first, backwards);
    group_open(&groups[4], halves, backwards);
    for (int64_t i = 0; i < OPERATIONS && test_failures() == 0; i++)
        run_job(&rng, groups, i);
    for (int i = 0; i < COMMS; i++)
        WF_EXPECT_OK(wf_comm_close(groups[i].comm));
}

static int on_ranks(int argc, char **argv)
{
    world = test_comm_open("two_dimensional", (wf_ctx_opts){0});
    if (!world) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    ctx = wf_comm_ctx(world);
    const int status = test_main(argc, argv, (test_case[]){{"many", many}, {0}});
    WF_EXPECT_OK(wf_comm_close(world));
    return status || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
