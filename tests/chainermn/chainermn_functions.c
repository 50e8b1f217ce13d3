/* ChainerMN's functions_tests, by meaning: communication with gradients. */
#include "layers/communication.h"
#include "tests/chainermn/chainermn.h"

enum { MOST_RANKS = 4, WIDTH = 10 };

static wf_tape *tape;

static void open_for(const element *e, const char *what)
{
    communicator_open("naive", (wf_ctx_opts){.compute = e->compute});
    tape = wf_tape_new(ctx);
    WF_EXPECT(tape, "%s of %s: %s", what, e->name, wf_error_message());
}

static void close_all(void)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    communicator_close();
}

/* Returns the mean of the squared distances of y to the expected value, which is 0. A sum that is scaled, since means
 * of several numbers of samples are not added. */
static wf_var *loss_against(wf_var *y, wf_tensor *should)
{
    wf_var *off = wf_sub(y, wf_input(tape, should));
    return wf_scale(wf_sum(wf_mul(off, off)), 1.0 / (double)wf_tensor_count(should));
}

/* Each function for every type, on two ranks and more, as theirs. */
static void each_element(void (*check)(const element *e), const char *what)
{
    for (int e = 0; e < ELEMENTS; e++) {
        open_for(&elements[e], what);
        if (size > 1)
            check(&elements[e]);
        close_all();
    }
}

/* --- test_collective_communication
 * ------------------------------------------------------------------------------------
 */

typedef wf_shape (*shape_for)(int i);

static wf_shape ten_by(int i)
{
    return WF_SHAPE(10, i + 1);
}

static wf_shape hundred_square(int i)
{
    (void)i;
    return WF_SHAPE(100, 100);
}

static wf_shape growing_square(int i)
{
    return WF_SHAPE(i + 1, i + 1);
}

/* All ranks draw the same tensors, as they do with their seed 42. */
static void draw(const element *e, shape_for shape, wf_tensor **x)
{
    for (int r = 0; r < size; r++)
        x[r] = random_tensor(e->value, shape(r), 42 + (uint64_t)r);
}

static void free_tensors(wf_tensor **x)
{
    for (int r = 0; r < size; r++)
        wf_tensor_free(x[r]);
}

/* Differentiates and checks that the loss is 0, and that x, where there is one, has a gradient. */
static void expect_no_error(const char *what, wf_var *loss, const wf_var *x)
{
    WF_EXPECT(wf_item(loss) == 0, "%s on rank %d of %d: the loss is %g (%s)", what, rank, size, wf_item(loss),
              wf_error_message());
    WF_EXPECT_OK(wf_backward(loss));
    if (x) {
        WF_EXPECT(wf_grad(x), "%s on rank %d of %d: no gradient", what, rank, size);
        expect_all(what, wf_grad(x), 0, 0);
    }
}

static wf_var *loss_of_all(wf_var *const *y, wf_tensor *const *should)
{
    wf_var *loss = loss_against(y[0], should[0]);
    for (int r = 1; r < size; r++)
        loss = wf_add(loss, loss_against(y[r], should[r]));
    return loss;
}

static void check_all_gather(const element *e)
{
    wf_tensor *x[MOST_RANKS];
    wf_var *y[MOST_RANKS];
    draw(e, ten_by, x);
    wf_var *mine = wf_leaf(tape, x[rank]);
    WF_EXPECT_OK(wf_allgather_var(comm, mine, y));
    expect_no_error("all-gather", loss_of_all(y, x), mine);
    free_tensors(x);
}

static void test_all_gather(void)
{
    each_element(check_all_gather, "all-gather");
}

/* Tensors [rank, i], some of them empty; then [rank + 1, i + 1], as theirs on GPUs. */
static void exchange_all(const element *e, int more)
{
    wf_var *x[MOST_RANKS], *y[MOST_RANKS];
    for (int r = 0; r < size; r++)
        x[r] = leaf_given(tape, arange(e->value, WF_SHAPE(rank + more, r + more), 0, 0));
    WF_EXPECT_OK(wf_alltoall_var(comm, x, y));
    wf_var *sum = wf_sum(y[0]);
    for (int r = 0; r < size; r++)
        WF_EXPECT(wf_shape_equal(wf_var_shape(y[r]), WF_SHAPE(r + more, rank + more)), "all-to-all: from %d: %s", r,
                  wf_error_message());
    for (int r = 1; r < size; r++)
        sum = wf_add(sum, wf_sum(y[r]));
    WF_EXPECT_OK(wf_backward(sum));
    for (int r = 0; r < size; r++) {
        WF_EXPECT(wf_grad(x[r]), "all-to-all: no gradient");
        expect_all("the gradient of an all-to-all", wf_grad(x[r]), 1, 0);
    }
}

static void check_all_to_all(const element *e)
{
    exchange_all(e, 0);
    WF_EXPECT_OK(wf_tape_reset(tape));
    exchange_all(e, 1);
}

static void test_all_to_all(void)
{
    each_element(check_all_to_all, "all-to-all");
}

static void check_bcast_function(const element *e)
{
    wf_tensor *x = random_tensor(e->value, WF_SHAPE(100, 100), 42);
    wf_var *leaf = rank == 0 ? wf_leaf(tape, x) : NULL;
    expect_no_error("broadcast", loss_against(wf_bcast_var(comm, tape, leaf, 0), x), leaf);
    wf_tensor_free(x);
}

static void test_bcast(void)
{
    each_element(check_bcast_function, "broadcast");
}

static void gather_shapes(const element *e, shape_for shape)
{
    wf_tensor *x[MOST_RANKS];
    wf_var *y[MOST_RANKS];
    draw(e, shape, x);
    wf_var *mine = wf_leaf(tape, x[rank]);
    WF_EXPECT_OK(wf_gather_var(comm, mine, y, 0));
    expect_no_error("gather", rank == 0 ? loss_of_all(y, x) : y[0], mine);
    free_tensors(x);
}

static void check_gather_function(const element *e)
{
    gather_shapes(e, hundred_square);
}

static void check_gatherv(const element *e)
{
    gather_shapes(e, growing_square);
}

static void test_gather(void)
{
    each_element(check_gather_function, "gather");
}

static void test_gatherv(void)
{
    each_element(check_gatherv, "gather of several shapes");
}

static void scatter_shapes(const element *e, shape_for shape)
{
    wf_tensor *x[MOST_RANKS];
    wf_var *leaf[MOST_RANKS] = {0};
    draw(e, shape, x);
    for (int r = 0; r < size && rank == 0; r++)
        leaf[r] = wf_leaf(tape, x[r]);
    wf_var *y = wf_scatter_var(comm, tape, rank == 0 ? leaf : NULL, 0);
    expect_no_error("scatter", loss_against(y, x[rank]), leaf[0]);
    for (int r = 1; r < size && rank == 0; r++)
        expect_all("the gradient of a scatter", wf_grad(leaf[r]), 0, 0);
    free_tensors(x);
}

static void check_scatter_function(const element *e)
{
    scatter_shapes(e, hundred_square);
}

static void check_scatterv(const element *e)
{
    scatter_shapes(e, growing_square);
}

static void test_scatter(void)
{
    each_element(check_scatter_function, "scatter");
}

static void test_scatterv(void)
{
    each_element(check_scatterv, "scatter of several shapes");
}

/* --- test_point_to_point_communication
 * --------------------------------------------------------------------------------
 */

/* Rank l's linear layer: W = arange(100) as [10,10] / ((l + 1) 100). */
static wf_layer *layer_of(int l)
{
    wf_layer *layer = wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = WIDTH, .b_init = {WF_INIT_CONSTANT, 0, 0}});
    wf_tensor *w = arange(WF_F32, WF_SHAPE(WIDTH, WIDTH), 0, 1 / ((l + 1) * 100.0));
    WF_EXPECT_OK(wf_tensor_assign(value_of(layer, "W"), w));
    wf_tensor_free(w);
    return layer;
}

static wf_var *sigmoid_of(wf_layer *layer, wf_var *x)
{
    return wf_sigmoid(wf_apply(layer, x));
}

/* The input: arange(10) / 10. A linear layer of a context of f32 takes f32, so their float16 is that of the messages:
 * what is sent is rounded. */
static wf_tensor *line(wf_dtype dtype)
{
    return arange(dtype, WF_SHAPE(1, WIDTH), 0, 0.1);
}

static wf_var *send_on(const element *e, wf_var *y, int to)
{
    return wf_send_var(comm, wf_cast(y, e->value), to, 0);
}

static wf_var *receive_from(const element *e, int from)
{
    wf_var *x = wf_recv_var(comm, tape, from, 0);
    return e->compute == WF_F32 ? wf_cast(x, WF_F32) : x;
}

/* The value after all layers, and the gradient of the first layer's W, of the program on one rank. */
static void compute_alone(const element *e, wf_layer *const *all, wf_tensor **y, wf_tensor **grad)
{
    wf_tape *alone = wf_tape_new(ctx);
    wf_tensor *x = line(e->compute);
    wf_var *h = wf_input(alone, x);
    for (int l = 0; l < size; l++)
        h = sigmoid_of(all[l], h);
    *y = wf_keep(h);
    WF_EXPECT_OK(wf_backward(wf_mse(h, wf_input(alone, x))));
    *grad = wf_tensor_copy(wf_param_grad(wf_layer_param(all[0], "W")), WF_F32, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tape_reset(alone));
    wf_tape_free(alone);
    wf_tensor_free(x);
}

static void check_communication(const element *e)
{
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    wf_tensor *x = line(e->compute), *y_alone, *grad_alone;
    wf_layer *layer = layer_of(rank), *all[MOST_RANKS];
    for (int l = 0; l < size; l++)
        all[l] = layer_of(l);
    compute_alone(e, all, &y_alone, &grad_alone);
    wf_var *h = sigmoid_of(layer, rank == 0 ? wf_input(tape, x) : receive_from(e, last));
    if (rank == size - 1) {
        expect_near("the output", wf_value(h), y_alone, e->tolerance);
        WF_EXPECT_OK(wf_backward(wf_mse(h, wf_input(tape, x))));
    } else {
        WF_EXPECT_OK(wf_backward(send_on(e, h, next)));
    }
    if (rank == 0)
        expect_near("the gradient of the first layer", wf_param_grad(wf_layer_param(layer, "W")), grad_alone,
                    e->tolerance);
    for (int l = 0; l < size; l++)
        wf_layer_free(all[l]);
    wf_layer_free(layer);
    wf_tensor_free(x);
    wf_tensor_free(y_alone);
    wf_tensor_free(grad_alone);
}

static void test_communication(void)
{
    each_element(check_communication, "a chain of ranks");
}

/* Round the ring; rank 0 joins what it sent and what it receives by the token. */
static void check_retain(const element *e)
{
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    wf_layer *layer = layer_of(rank);
    if (rank == 0) {
        wf_var *x = leaf_given(tape, line(e->compute));
        wf_var *token = send_on(e, sigmoid_of(layer, x), next);
        wf_var *y = wf_pseudo_connect(token, receive_from(e, last));
        WF_EXPECT_OK(wf_backward(wf_mse(y, input_given(tape, line(e->compute)))));
        WF_EXPECT(wf_grad(x), "a ring of %d: no gradient comes back", size);
    } else {
        WF_EXPECT_OK(wf_backward(send_on(e, sigmoid_of(layer, receive_from(e, last)), next)));
    }
    wf_layer_free(layer);
}

static void test_retain(void)
{
    each_element(check_retain, "a ring");
}

/* A tuple is as many messages. */
static void pass_tuple(const element *e, int length)
{
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    wf_layer *layer = layer_of(rank);
    wf_var *h[2], *token = NULL;
    for (int i = 0; i < length; i++)
        h[i] = rank == 0 ? sigmoid_of(layer, input_given(tape, line(e->compute))) : receive_from(e, last);
    if (rank == size - 1) {
        wf_var *z = length == 1 ? h[0] : wf_add(h[0], h[1]);
        WF_EXPECT_OK(wf_backward(wf_mse(z, input_given(tape, line(e->compute)))));
    }
    for (int i = 0; i < length && rank < size - 1; i++) {
        wf_var *sent = send_on(e, h[i], next);
        token = token ? wf_pseudo_connect(token, sent) : sent;
    }
    if (token)
        WF_EXPECT_OK(wf_backward(token));
    if (rank == 0)
        WF_EXPECT(wf_param_grad(wf_layer_param(layer, "W")), "a tuple of %d: no gradient", length);
    wf_layer_free(layer);
}

static void check_tuple(const element *e)
{
    pass_tuple(e, 1);
    WF_EXPECT_OK(wf_tape_reset(tape));
    pass_tuple(e, 2);
}

static void test_tuple_communication(void)
{
    each_element(check_tuple, "a tuple");
}

/* What is sent needs no gradient. Every rank then knows that there is nothing to differentiate, and none waits. */
static void check_non_variable(const element *e)
{
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    wf_var *x =
        rank == 0 ? input_given(tape, arange(e->value, WF_SHAPE(1, WIDTH), 1, 0)) : wf_recv_var(comm, tape, last, 0);
    wf_var *token = rank == size - 1 ? NULL : wf_send_var(comm, x, next, 0);
    if (rank == 0 || rank == size - 1) {
        wf_var *y = wf_sum(token ? wf_pseudo_connect(token, x) : x);
        WF_EXPECT(wf_item(y) == WIDTH, "the sum is %g", wf_item(y));
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(wf_mul(y, y)));
    } else {
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(token));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static void test_non_variable_send(void)
{
    each_element(check_non_variable, "an input that is sent");
}

/* --- test_pseudo_connect
 * ----------------------------------------------------------------------------------------------
 */

static const element precise[] = {
    {"float16", WF_F16, WF_F32, 0}, {"float32", WF_F32, WF_F32, 0}, {"float64", WF_F64, WF_F32, 0}};

typedef struct connection {
    int n;
    wf_shape shape[2], delegate;
} connection;

static void each_connection(void (*check)(const element *e, const connection *c))
{
    const wf_shape delegate[] = {WF_SHAPE(3, 2), wf_shape_scalar()};
    communicator_open("naive", (wf_ctx_opts){0});
    tape = wf_tape_new(ctx);
    for (int e = 0; e < 3; e++)
        for (int d = 0; d < 2; d++) {
            check(&precise[e], &(connection){2, {WF_SHAPE(4, 5), WF_SHAPE(3, 2)}, delegate[d]});
            check(&precise[e], &(connection){1, {WF_SHAPE(3, 2)}, delegate[d]});
            check(&precise[e], &(connection){1, {wf_shape_scalar()}, delegate[d]});
        }
    close_all();
}

/* A token of Weft is a scalar; a tensor that they connect is summed first. */
static wf_var *token_of(const element *e, const connection *c)
{
    wf_var *delegate = leaf_given(tape, random_tensor(e->value, c->delegate, 7));
    return c->delegate.rank ? wf_sum(delegate) : delegate;
}

static void check_connected_value(const element *e, const connection *c)
{
    wf_var *token = token_of(e, c);
    for (int i = 0; i < c->n; i++) {
        wf_tensor *x = random_tensor(e->value, c->shape[i], 100 + (uint64_t)i);
        expect_near("what is connected", wf_value(wf_pseudo_connect(token, wf_leaf(tape, x))), x, 0);
        wf_tensor_free(x);
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* The gradient goes through, that of the token is 0. */
static void check_connected_gradient(const element *e, const connection *c)
{
    for (int i = 0; i < c->n; i++) {
        wf_var *delegate = leaf_given(tape, random_tensor(e->value, c->delegate, 7));
        wf_var *token = c->delegate.rank ? wf_sum(delegate) : delegate;
        wf_var *x = leaf_given(tape, random_tensor(e->value, c->shape[i], 100 + (uint64_t)i));
        wf_tensor *gy = random_tensor(e->value, c->shape[i], 200 + (uint64_t)i);
        WF_EXPECT_OK(wf_backward_from(wf_pseudo_connect(token, x), gy));
        expect_near("the gradient of what is connected", wf_grad(x), gy, 0);
        if (wf_grad(delegate))
            expect_all("the gradient of the token", wf_grad(delegate), 0, 0);
        wf_tensor_free(gy);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
}

static void test_pseudo_connect_forward(void)
{
    each_connection(check_connected_value);
}

static void test_pseudo_connect_backward(void)
{
    each_connection(check_connected_gradient);
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"all_gather", test_all_gather},
                                   {"all_to_all", test_all_to_all},
                                   {"bcast", test_bcast},
                                   {"gather", test_gather},
                                   {"gatherv", test_gatherv},
                                   {"scatter", test_scatter},
                                   {"scatterv", test_scatterv},
                                   {"communication", test_communication},
                                   {"retain", test_retain},
                                   {"tuple_communication", test_tuple_communication},
                                   {"non_variable_send", test_non_variable_send},
                                   {"pseudo_connect_forward", test_pseudo_connect_forward},
                                   {"pseudo_connect_backward", test_pseudo_connect_backward},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
