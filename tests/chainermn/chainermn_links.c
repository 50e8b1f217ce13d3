/* ChainerMN's links_tests on normalisation and recurrence, by meaning; its chains are in chainermn_chains.c. */
#include "layers/communication.h"
#include "layers/parallelize.h"
#include "layers/sync_norm.h"
#include "optim/multi_node.h"
#include "tests/chainermn/chainermn.h"

/* --- test_batch_normalization
 * -----------------------------------------------------------------------------------------
 */

enum { LOCAL_BATCH = 8, WIDTH = 3 };

static wf_layer *norm_layer(wf_comm *over)
{
    const wf_batchnorm_opts opts = {.channels = WIDTH};
    return over ? wf_sync_batchnorm(over, opts) : wf_batchnorm(ctx, opts);
}

static wf_layer *linear_layer(int64_t out, bool bias)
{
    return wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = out, .no_bias = !bias});
}

/* Linear, normalisation and ReLU twice, and a linear layer. Models of one name begin with the same values. */
static wf_layer *normalised_model(wf_comm *over)
{
    return wf_layer_named(
        wf_sequential(ctx, WF_LAYERS(linear_layer(WIDTH, false), norm_layer(over), wf_lambda(ctx, wf_relu),
                                     linear_layer(WIDTH, false), norm_layer(over), wf_lambda(ctx, wf_relu),
                                     linear_layer(2, true))),
        "normalised");
}

/* Gradients of the model for rows [lo, hi) of the data; over all ranks if `optim` is not NULL. */
static void differentiate_rows(wf_layer *model, wf_optim *optim, const double *data, int64_t lo, int64_t hi)
{
    int64_t labels[4 * LOCAL_BATCH] = {0};
    wf_tape *tape = wf_tape_new(ctx);
    wf_var *x = input_given(tape, tensor_of(WF_F32, WF_SHAPE(hi - lo, WIDTH), data + lo * WIDTH));
    wf_tensor *t = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(hi - lo), labels);
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, x), t, (wf_label_opts){0});
    if (optim)
        WF_EXPECT_OK(wf_optim_gradients(optim, loss));
    else
        WF_EXPECT_OK(wf_backward(loss));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(t);
    wf_tape_free(tape);
}

/* The largest distance of two models' gradients of one parameter, in parts of atol + rtol |a|. */
static double distance_of(wf_param *a, wf_param *b, double atol, double rtol)
{
    double *mine = doubles_of(wf_param_grad(a)), *theirs = doubles_of(wf_param_grad(b)), most = 0;
    for (int64_t i = 0; i < wf_tensor_count(wf_param_grad(a)); i++)
        most = fmax(most, fabs(mine[i] - theirs[i]) / (atol + rtol * fabs(mine[i])));
    free(mine);
    free(theirs);
    return most;
}

enum { ALONE, ALONE_PARTS, WHOLE_BATCH, PARTS, MODELS };

/* Their four configurations: one rank, ranks that normalise by themselves, and normalisation over the ranks of whole
 * batches, and of parts. All but the second agree. */
static void expect_equal_models(wf_layer **model, double atol, double rtol)
{
    wf_param *const *params[MODELS];
    int64_t n = 0;
    for (int m = 0; m < MODELS; m++)
        WF_EXPECT_OK(wf_layer_params(model[m], &n, &params[m]));
    for (int64_t i = 0; i < n; i++) {
        wf_param *const one = params[ALONE][i];
        if (!wf_param_trainable(one))
            continue;
        const double whole = distance_of(one, params[WHOLE_BATCH][i], atol, rtol);
        const double parts = distance_of(one, params[PARTS][i], atol, rtol);
        const double ghost = distance_of(one, params[ALONE_PARTS][i], 1e-5, 1e-4);
        WF_EXPECT(whole <= 1, "%s of whole batches is off by %g tolerances", wf_param_path(one), whole);
        WF_EXPECT(parts <= 1, "%s of parts is off by %g tolerances", wf_param_path(one), parts);
        WF_EXPECT(size == 1 || ghost > 1, "%s: ranks that normalise by themselves agree", wf_param_path(one));
    }
}

static void check_multi_node_bn(wf_dtype compute, double atol, double rtol)
{
    communicator_open("naive", (wf_ctx_opts){.compute = compute});
    test_rng rng = {71};
    double data[4 * LOCAL_BATCH * WIDTH];
    for (int i = 0; i < size * LOCAL_BATCH * WIDTH; i++)
        data[i] = test_uniform(&rng, 0, 1);
    wf_layer *model[MODELS] = {normalised_model(NULL), normalised_model(NULL), normalised_model(comm),
                               normalised_model(comm)};
    wf_optim *alone = wf_multi_node(comm, wf_sgd(model[ALONE_PARTS], (wf_sgd_opts){0}), (wf_multi_node_opts){0});
    wf_optim *together = wf_multi_node(comm, wf_sgd(model[PARTS], (wf_sgd_opts){0}), (wf_multi_node_opts){0});
    const int64_t lo = (int64_t)rank * LOCAL_BATCH, hi = lo + LOCAL_BATCH;
    differentiate_rows(model[ALONE], NULL, data, 0, (int64_t)size * LOCAL_BATCH);
    differentiate_rows(model[ALONE_PARTS], alone, data, lo, hi);
    differentiate_rows(model[WHOLE_BATCH], NULL, data, 0, (int64_t)size * LOCAL_BATCH);
    differentiate_rows(model[PARTS], together, data, lo, hi);
    expect_equal_models(model, atol, rtol);
    wf_optim_free(alone);
    wf_optim_free(together);
    for (int m = 0; m < MODELS; m++)
        wf_layer_free(model[m]);
    communicator_close();
}

/* They copy the link; here its values go through an archive into another one. */
static void check_link_copyable(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_layer *one = normalised_model(comm), *other = wf_layer_named(normalised_model(comm), "another");
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(wf_tensor_fill(value_of(one, "1/gamma"), 2));
    WF_EXPECT_OK(wf_tensor_fill(value_of(one, "4/avg_mean"), 3));
    WF_EXPECT_OK(wf_layer_archive(one, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_layer_archive(other, archive));
    expect_all("gamma of the copy", value_of(other, "1/gamma"), 2, 0);
    expect_all("the mean of the copy", value_of(other, "4/avg_mean"), 3, 0);
    expect_near("W of the copy", value_of(other, "0/W"), value_of(one, "0/W"), 0);
    wf_archive_free(archive);
    wf_layer_free(one);
    wf_layer_free(other);
    communicator_close();
}

static void test_multi_node_bn(void)
{
    check_multi_node_bn(WF_F32, 1e-4, 1e-3);
    check_multi_node_bn(WF_F16, 1e-2, 1e-2);
    check_link_copyable();
}

/* The layer communicates as its communicator does, whichever that is. */
static void test_support_communication_backend(void)
{
    static const char *const names[] = {"naive", "auto", "flat"};
    for (int n = 0; n < 3; n++) {
        communicator_open(names[n], (wf_ctx_opts){0});
        wf_layer *layer = wf_sync_batchnorm(comm, (wf_batchnorm_opts){.channels = 1});
        WF_EXPECT(layer, "over %s: %s", names[n], wf_error_message());
        wf_layer_free(layer);
        communicator_close();
    }
}

static void test_unsupport_communication_backend(void)
{
    comm = test_comm_open("no_such_communicator", (wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    WF_EXPECT(!comm && wf_error_code() == WF_ERR_ARGUMENT, "a name that does not exist: %s", wf_error_message());
    wf_error_clear();
}

/* --- test_create_mnbn_model
 * -------------------------------------------------------------------------------------------
 */

static wf_layer *convolution(void)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = 1, .out = 3, .kernel = 1, .pad = 1, .no_bias = true});
}

static wf_var *apply_named(wf_layer *self, void *user, wf_var *x)
{
    const char *const *name = user;
    return wf_relu(wf_apply(wf_layer_child(self, name[1]), wf_apply(wf_layer_child(self, name[0]), x)));
}

/* Swaps the normalisation, runs their input of zeros, and checks that only the normalisation changed: on inputs that
 * differ between ranks the running mean is that of all. */
static void check_swapped(wf_layer *model, const char *weights, const char *mean)
{
    wf_tensor *before = wf_tensor_copy(value_of(model, weights), WF_F32, WF_ROW_MAJOR);
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT_OK(wf_to_sync_batchnorm(model, comm));
    for (int time = 0; time < 2; time++) {
        wf_var *y = wf_apply(model, input_given(tape, arange(WF_F32, WF_SHAPE(1, 1, 1, 1), time * rank, 0)));
        WF_EXPECT(y && wf_shape_equal(wf_var_shape(y), WF_SHAPE(1, 3, 3, 3)), "a swapped model: %s",
                  wf_error_message());
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor *after = wf_tensor_copy(value_of(model, weights), WF_F32, WF_ROW_MAJOR);
    expect_near("the convolution", after, before, 0);
    double *w = doubles_of(after), *seen = doubles_of(value_of(model, mean)), should[3];
    for (int i = 0; i < 3; i++)
        should[i] = 0.1 * w[i] * (size - 1) / 2.0 / 9;
    WF_EXPECT(test_distance(3, seen, should) < 1e-6, "the running mean is %g, should be %g", seen[0], should[0]);
    free(w);
    free(seen);
    wf_tensor_free(before);
    wf_tensor_free(after);
    wf_tape_free(tape);
    wf_layer_free(model);
}

/* A model whose layers are attributes, and one whose layers are numbered. */
static void swap_module(const char *const *name, const char *weights, const char *mean)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_layer *model = wf_module(ctx, apply_named, (void *)name);
    wf_module_add(model, name[0], convolution());
    wf_module_add(model, name[1], wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3}));
    check_swapped(model, weights, mean);
    communicator_close();
}

static void test_create_mnbn_model_chain(void)
{
    swap_module((const char *const[]){"conv", "bn"}, "conv/W", "bn/avg_mean");
}

static void test_create_mnbn_model_chain_list(void)
{
    swap_module((const char *const[]){"0", "1"}, "0/W", "1/avg_mean");
}

static void test_create_mnbn_model_sequential(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    check_swapped(wf_sequential(ctx, WF_LAYERS(convolution(), wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3}),
                                               wf_lambda(ctx, wf_relu))),
                  "0/W", "1/avg_mean");
    communicator_close();
}

/* --- test_n_step_rnn
 * --------------------------------------------------------------------------------------------------
 */

enum { SEQUENCES = 25, WORDS = 8, MOST_WORDS = 10, CELL = 10 };

/* An embedding (a linear layer of one-hot rows), an LSTM cell, and two linear layers. */
static wf_layer *recurrent_model(int64_t hidden)
{
    wf_layer *model = wf_layer_named(wf_module(ctx, apply_nothing, NULL), "recurrent");
    add_linear(model, "words", WORDS, CELL);
    wf_module_add(model, "input", wf_linear(ctx, (wf_linear_opts){.in = CELL, .out = 4 * CELL}));
    wf_module_add(model, "state", wf_linear(ctx, (wf_linear_opts){.in = CELL, .out = 4 * CELL}));
    wf_module_add(model, "l2", wf_linear(ctx, (wf_linear_opts){.in = CELL, .out = hidden}));
    wf_module_add(model, "l3", wf_linear(ctx, (wf_linear_opts){.in = hidden, .out = 1}));
    return model;
}

typedef struct cell_state {
    wf_var *h, *c;
} cell_state;

static cell_state step_cell(wf_layer *model, cell_state s, wf_var *x)
{
    wf_var *from_x = wf_apply(wf_layer_child(model, "input"), x), *gate[4];
    wf_var *from_h = wf_apply(wf_layer_child(model, "state"), s.h);
    if (!wf_split(wf_add(from_x, from_h), 1, 4, NULL, gate))
        return (cell_state){NULL, NULL};
    wf_var *c = wf_add(wf_mul(wf_sigmoid(gate[1]), s.c), wf_mul(wf_sigmoid(gate[0]), wf_tanh(gate[2])));
    return (cell_state){wf_mul(wf_sigmoid(gate[3]), wf_tanh(c)), c};
}

static wf_var *word(wf_tape *tape, int64_t number)
{
    double row[WORDS] = {0};
    row[number] = 1;
    return input_given(tape, tensor_of(WF_F32, WF_SHAPE(1, WORDS), row));
}

/* One sequence: the state comes from the rank before and goes to the rank after. */
static void train_sequence(wf_layer *model, wf_tape *tape, test_rng *rng)
{
    const int64_t length = test_int(rng, MOST_WORDS / 2, MOST_WORDS);
    const wf_shape shape = WF_SHAPE(1, CELL);
    cell_state s = {0};
    wf_var *sum = NULL;
    s.h = rank ? wf_recv_var(comm, tape, rank - 1, 0) : input_given(tape, arange(WF_F32, shape, 0, 0));
    s.c = rank ? wf_recv_var(comm, tape, rank - 1, 1) : input_given(tape, arange(WF_F32, shape, 0, 0));
    for (int64_t i = 0; i < length; i++) {
        s = step_cell(model, s, wf_apply(wf_layer_child(model, "words"), word(tape, test_int(rng, 0, WORDS - 1))));
        wf_var *hidden = wf_apply(wf_layer_child(model, "l2"), s.h);
        wf_var *y = wf_apply(wf_layer_child(model, "l3"), hidden);
        sum = sum ? wf_add(sum, y) : y;
    }
    wf_var *target =
        input_given(tape, arange(wf_tensor_dtype(wf_value(sum)), WF_SHAPE(1, 1), 2 * test_uniform(rng, 0, 1), 0));
    wf_var *loss = wf_mse(sum, target);
    for (int i = 0; i < 2 && rank + 1 < size; i++)
        loss = wf_pseudo_connect(wf_send_var(comm, i ? s.c : s.h, rank + 1, i), loss);
    WF_EXPECT(isfinite(wf_item(loss)), "the loss is %g: %s", wf_item(loss), wf_error_message());
    WF_EXPECT_OK(wf_backward(loss));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void expect_gradients(wf_layer *model)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_tensor *grad = wf_param_grad(params[i]);
        double *value = grad ? doubles_of(grad) : NULL, sum = 0;
        for (int64_t k = 0; grad && k < wf_tensor_count(grad); k++)
            sum += value[k] * value[k];
        WF_EXPECT(grad && isfinite(sum), "rank %d of %d: no gradient of %s", rank, size, wf_param_path(params[i]));
        free(value);
    }
}

static void check_recurrent(bool equal)
{
    for (int half = 0; half < 2; half++) {
        communicator_open("naive", (wf_ctx_opts){.compute = half ? WF_F16 : WF_F32});
        wf_layer *model = recurrent_model(equal ? 2 : (rank + 1) * 10);
        wf_tape *tape = wf_tape_new(ctx);
        test_rng rng = {(uint64_t)rank};
        for (int i = 0; i < SEQUENCES; i++)
            train_sequence(model, tape, &rng);
        expect_gradients(model);
        wf_tape_free(tape);
        wf_layer_free(model);
        communicator_close();
    }
}

static void test_homogeneous_rnn(void)
{
    check_recurrent(true);
}

static void test_heterogeneous_rnn(void)
{
    check_recurrent(false);
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"multi_node_bn", test_multi_node_bn},
                                   {"support_communication_backend", test_support_communication_backend},
                                   {"unsupport_communication_backend", test_unsupport_communication_backend},
                                   {"create_mnbn_model_chain", test_create_mnbn_model_chain},
                                   {"create_mnbn_model_chain_list", test_create_mnbn_model_chain_list},
                                   {"create_mnbn_model_sequential", test_create_mnbn_model_sequential},
                                   {"homogeneous_rnn", test_homogeneous_rnn},
                                   {"heterogeneous_rnn", test_heterogeneous_rnn},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
