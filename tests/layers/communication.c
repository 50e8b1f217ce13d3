/* Functions that communicate: values, gradients of the serial program, adjoints, tokens, errors. */
#include "layers/communication.h"
#include "core/core.h"
#include "layers/layers.h"
#include "optim/optim.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <math.h>

enum { MOST = 256, RANKS = 8 };

static wf_tape *tape;

/* Pieces of several shapes, of rank 0, 1 and 4, some of them empty. */
static wf_shape shape_of(int a, int b)
{
    switch ((a + 2 * b) % 4) {
    case 0:
        return WF_SHAPE(2, 3, 2, 1);
    case 1:
        return WF_SHAPE(5);
    case 2:
        return WF_SHAPE(0, 4);
    default:
        return wf_shape_scalar();
    }
}

/* Element i of what rank `from` has for `to`. */
static double value_at(int from, int to, int64_t i)
{
    return 1 + from + 0.25 * to + 0.5 * (double)(i % 7);
}

/* How much it counts in the loss of rank `at`, in place `slot`. */
static double weight_at(int at, int slot, int64_t i)
{
    return 0.5 - at + 0.75 * slot + 0.125 * (double)(i % 5);
}

static wf_tensor *filled(wf_shape shape, int a, int b, double (*of)(int, int, int64_t))
{
    double host[MOST];
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        host[i] = of(a, b, i);
    return wf_tensor_from_host(ctx, WF_F64, shape, host);
}

static wf_var *leaf_of(wf_shape shape, int from, int to)
{
    wf_tensor *x = filled(shape, from, to, value_at);
    wf_var *leaf = wf_leaf(tape, x);
    wf_tensor_free(x);
    return leaf;
}

/* sum(weights y), so that the gradient of y is known. */
static wf_var *loss_of(wf_var *y, int slot)
{
    wf_tensor *w = filled(wf_var_shape(y), rank, slot, weight_at);
    wf_var *loss = wf_sum(wf_mul(y, wf_input(tape, w)));
    wf_tensor_free(w);
    return loss;
}

typedef double (*expected)(int a, int b, int64_t i);

static void expect_tensor(const char *what, const wf_tensor *x, wf_shape shape, int a, int b, expected of)
{
    double got[MOST], want[MOST];
    WF_EXPECT(x && wf_shape_equal(wf_tensor_shape(x), shape), "%s: missing or of another shape (%s)", what,
              wf_error_message());
    if (!x || !wf_shape_equal(wf_tensor_shape(x), shape))
        return;
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        want[i] = of(a, b, i);
    WF_EXPECT_OK(wf_tensor_export(x, got, wf_tensor_bytes(x)));
    WF_EXPECT(test_distance(wf_shape_count(shape), got, want) < 1e-13, "%s of %d for %d is off", what, a, b);
}

static double dot(const wf_tensor *a, const wf_tensor *b)
{
    double x[MOST], y[MOST], sum = 0;
    if (!a || !b)
        return NAN;
    WF_EXPECT_OK(wf_tensor_export(a, x, wf_tensor_bytes(a)));
    WF_EXPECT_OK(wf_tensor_export(b, y, wf_tensor_bytes(b)));
    for (int64_t i = 0; i < wf_tensor_count(a); i++)
        sum += x[i] * y[i];
    return sum;
}

/* Differentiates, and holds the adjoint against the function: over all ranks sum of losses = sum of x dx. */
static void differentiate(wf_var *loss, int n, wf_var *const *x)
{
    double sums[2] = {wf_item(loss), 0};
    WF_EXPECT_OK(wf_backward(loss));
    for (int i = 0; i < n; i++)
        sums[1] += dot(wf_value(x[i]), wf_grad(x[i]));
    WF_EXPECT_OK(wf_allreduce_f64(comm, sums, 2, WF_SUM));
    WF_EXPECT(test_distance(1, &sums[1], &sums[0]) < 1e-12, "adjoint: %g, should be %g", sums[1], sums[0]);
}

static wf_var *loss_of_list(wf_var *const *y)
{
    wf_var *loss = loss_of(y[0], 0);
    for (int r = 1; r < size; r++)
        loss = wf_add(loss, loss_of(y[r], r));
    return loss;
}

/* --- what the serial program gives ---------------------------------------------------------------------------------
 */

static double summed_weights(int at, int slot, int64_t i)
{
    double sum = 0;
    (void)at;
    for (int r = 0; r < size; r++)
        sum += weight_at(r, slot, i);
    return sum;
}

static double summed_values(int from, int to, int64_t i)
{
    double sum = 0;
    (void)from;
    for (int r = 0; r < size; r++)
        sum += value_at(r, to, i);
    return sum;
}

/* --- collectives ---------------------------------------------------------------------------------------------------
 */

static void broadcasts(void)
{
    for (int root = 0; root < size; root++) {
        const wf_shape shape = shape_of(root, 0);
        wf_var *x = rank == root ? leaf_of(shape, root, 0) : NULL;
        wf_var *y = wf_bcast_var(comm, tape, x, root);
        expect_tensor("broadcast", wf_value(y), shape, root, 0, value_at);
        differentiate(loss_of(y, 0), x != NULL, &x);
        if (x)
            expect_tensor("its gradient", wf_grad(x), shape, 0, 0, summed_weights);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
}

static void gathers(void)
{
    for (int root = 0; root < size; root++) {
        wf_var *x = leaf_of(shape_of(rank, 1), rank, 1), *y[RANKS];
        WF_EXPECT_OK(wf_gather_var(comm, x, y, root));
        for (int r = 0; r < size && rank == root; r++)
            expect_tensor("gather", wf_value(y[r]), shape_of(r, 1), r, 1, value_at);
        differentiate(rank == root ? loss_of_list(y) : y[0], 1, &x);
        expect_tensor("its gradient", wf_grad(x), shape_of(rank, 1), root, rank, weight_at);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
}

static void scatters(void)
{
    for (int root = 0; root < size; root++) {
        wf_var *x[RANKS] = {0};
        for (int r = 0; r < size && rank == root; r++)
            x[r] = leaf_of(shape_of(root, r), root, r);
        wf_var *y = wf_scatter_var(comm, tape, x, root);
        expect_tensor("scatter", wf_value(y), shape_of(root, rank), root, rank, value_at);
        differentiate(loss_of(y, 0), rank == root ? size : 0, x);
        for (int r = 0; r < size && rank == root; r++)
            expect_tensor("its gradient", wf_grad(x[r]), shape_of(root, r), r, 0, weight_at);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
}

static void allgathers(void)
{
    wf_var *x = leaf_of(shape_of(rank, 0), rank, 0), *y[RANKS];
    WF_EXPECT_OK(wf_allgather_var(comm, x, y));
    for (int r = 0; r < size; r++)
        expect_tensor("allgather", wf_value(y[r]), shape_of(r, 0), r, 0, value_at);
    differentiate(loss_of_list(y), 1, &x);
    expect_tensor("its gradient", wf_grad(x), shape_of(rank, 0), 0, rank, summed_weights);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void alltoalls(void)
{
    wf_var *x[RANKS], *y[RANKS];
    for (int r = 0; r < size; r++)
        x[r] = leaf_of(shape_of(rank, r), rank, r);
    WF_EXPECT_OK(wf_alltoall_var(comm, x, y));
    for (int r = 0; r < size; r++)
        expect_tensor("alltoall", wf_value(y[r]), shape_of(r, rank), r, rank, value_at);
    differentiate(loss_of_list(y), size, x);
    for (int r = 0; r < size; r++)
        expect_tensor("its gradient", wf_grad(x[r]), shape_of(rank, r), r, rank, weight_at);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void allreduces(void)
{
    const wf_shape shape = WF_SHAPE(3, 2, 2, 2);
    wf_var *x = leaf_of(shape, rank, 0);
    wf_var *y = wf_allreduce_var(comm, x);
    expect_tensor("allreduce", wf_value(y), shape, 0, 0, summed_values);
    differentiate(loss_of(y, 0), 1, &x);
    expect_tensor("its gradient", wf_grad(x), shape, 0, 0, summed_weights);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void reduce_scatters(void)
{
    wf_var *x[RANKS];
    for (int r = 0; r < size; r++)
        x[r] = leaf_of(shape_of(r, 0), rank, r);
    wf_var *y = wf_reduce_scatter_var(comm, x);
    expect_tensor("reduce_scatter", wf_value(y), shape_of(rank, 0), 0, rank, summed_values);
    differentiate(loss_of(y, 0), size, x);
    for (int r = 0; r < size; r++)
        expect_tensor("its gradient", wf_grad(x[r]), shape_of(r, 0), r, 0, weight_at);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* Checks that an output that one rank leaves unused has gradient zero, and that no rank waits for it. */
static void unused(void)
{
    wf_var *x = leaf_of(WF_SHAPE(4), rank, 0), *y[RANKS];
    WF_EXPECT_OK(wf_allgather_var(comm, x, y));
    wf_var *loss = rank == 0 ? loss_of(y[size - 1], size - 1) : wf_no_loss(tape);
    WF_EXPECT_OK(rank == 0 ? wf_backward(loss) : wf_backward(wf_pseudo_connect(y[0], wf_sum(wf_scale(x, 0)))));
    double want = 0;
    for (int64_t i = 0; i < 4; i++)
        want += rank == size - 1 ? weight_at(0, rank, i) * value_at(rank, 0, i) : 0;
    const double got = dot(wf_value(x), wf_grad(x));
    WF_EXPECT(fabs(got - want) < 1e-12, "a gradient that weighs %g, should be %g", got, want);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* --- point to point ------------------------------------------------------------------------------------------------
 */

static double powers(int a, int b, int64_t i)
{
    (void)b;
    return pow(0.5, a) * weight_at(0, 0, i);
}

/* Round the ring, halved by every other rank; the loss is where it began, the others have tokens. */
static void ring(void)
{
    if (size == 1)
        return;
    const wf_shape shape = WF_SHAPE(2, 3, 1, 2);
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    wf_var *x = rank == 0 ? leaf_of(shape, 0, 0) : wf_scale(wf_recv_var(comm, tape, last, 7), 0.5);
    wf_var *token = wf_send_var(comm, x, next, 7);
    WF_EXPECT(token && wf_item(token) == 0, "a token: %s", wf_error_message());
    wf_var *loss = rank == 0 ? loss_of(wf_pseudo_connect(token, wf_recv_var(comm, tape, last, 7)), 0) : token;
    WF_EXPECT_OK(wf_backward(loss));
    if (rank == 0)
        expect_tensor("the ring's gradient", wf_grad(x), shape, size - 1, 0, powers);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* Rank 0 has w, the last rank v, and the loss is v (w x): both take the step that the serial program takes. */
static void two_models(void)
{
    if (size == 1)
        return;
    static const double start[] = {1, -2, 3}, data[] = {0.5, 1, 2}, factor[] = {4};
    const bool first = rank == 0, last = rank == size - 1;
    double after[3] = {0};
    wf_layer *model = first ? dot_new(ctx, 3, start) : last ? dot_new(ctx, 1, factor) : NULL;
    wf_optim *optim = model ? wf_sgd(model, (wf_sgd_opts){.lr = 0.1}) : NULL;
    wf_tensor *x = wf_tensor_new(ctx, wf_ctx_dtype(ctx), WF_SHAPE(3));
    values_set(x, data);
    if (first)
        WF_EXPECT_OK(wf_optim_step(optim, wf_send_var(comm, wf_apply(model, wf_input(tape, x)), size - 1, 3)));
    if (last)
        WF_EXPECT_OK(wf_optim_step(optim, wf_apply(model, wf_reshape(wf_recv_var(comm, tape, 0, 3), WF_SHAPE(1)))));
    if (model)
        values_get(wf_param_value(param_of(model, 0)), after);
    for (int i = 0; i < 3 && first; i++)
        WF_EXPECT(fabs(after[i] - (start[i] - 0.4 * data[i])) < 1e-5, "w[%d] = %g", i, after[i]);
    if (last)
        WF_EXPECT(fabs(after[0] - (4 - 0.1 * 4.5)) < 1e-5, "v = %g", after[0]);
    wf_tensor_free(x);
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* What needs no gradient travels one way, of any type. */
static void labels(void)
{
    if (size == 1)
        return;
    const int64_t numbers[] = {3, 1, 4};
    if (rank == 0) {
        wf_tensor *x = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(3), numbers);
        for (int r = 1; r < size; r++)
            WF_EXPECT(wf_send_var(comm, wf_input(tape, x), r, 0), "%s", wf_error_message());
        wf_tensor_free(x);
    } else {
        int64_t got[3] = {0};
        wf_var *y = wf_recv_var(comm, tape, 0, 0);
        WF_EXPECT_OK(wf_tensor_export(wf_value(y), got, sizeof got));
        WF_EXPECT(got[0] == 3 && got[1] == 1 && got[2] == 4, "%lld", (long long)got[0]);
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(y));
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* --- errors --------------------------------------------------------------------------------------------------------
 */

static void expect_null(const wf_var *y, wf_status code, const char *what)
{
    WF_EXPECT(!y && wf_error_code() == code, "%s: %s", what, wf_error_message());
    wf_error_clear();
}

static void oneself(void)
{
    wf_comm *mine = wf_comm_split(comm, 0, 0);
    expect_null(wf_send_var(mine, leaf_of(WF_SHAPE(2), 0, 0), rank, 0), WF_ERR_ARGUMENT, "send to oneself");
    wf_error_clear();
    if (mine && wf_comm_close(mine) != WF_OK)
        wf_error_clear();
    wf_comm *other = wf_comm_split(comm, 0, 0);
    expect_null(wf_recv_var(other, tape, rank, 0), WF_ERR_ARGUMENT, "receive from oneself");
    if (other && wf_comm_close(other) != WF_OK)
        wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void modes(void)
{
    if (size == 1)
        return;
    wf_comm *child = wf_comm_split(comm, 0, 0);
    WF_EXPECT_OK(wf_tape_set_mode(tape, rank == 0 ? WF_EVAL : WF_TRAIN));
    expect_null(wf_allreduce_var(child, leaf_of(WF_SHAPE(2), 0, 0)), WF_ERR_STATE, "one rank evaluates");
    if (child && wf_comm_close(child) != WF_OK)
        wf_error_clear();
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* One rank has nowhere to put the results: no rank waits for it. */
static void nowhere(void)
{
    wf_comm *child = wf_comm_split(comm, 0, 0);
    wf_var *y[64] = {NULL};
    const wf_status status = wf_allgather_var(child, leaf_of(WF_SHAPE(2), 0, 0), rank == size - 1 ? NULL : y);
    WF_EXPECT(status == WF_ERR_ARGUMENT, "%s", wf_error_message());
    if (child && wf_comm_close(child) != WF_OK)
        wf_error_clear();
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"broadcasts", broadcasts},
                                               {"gathers", gathers},
                                               {"scatters", scatters},
                                               {"allgathers", allgathers},
                                               {"alltoalls", alltoalls},
                                               {"allreduces", allreduces},
                                               {"reduce_scatters", reduce_scatters},
                                               {"unused", unused},
                                               {"ring", ring},
                                               {"two_models", two_models},
                                               {"labels", labels},
                                               {"oneself", oneself},
                                               {"modes", modes},
                                               {"nowhere", nowhere},
                                               {0}});
    wf_tape_free(tape);
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
