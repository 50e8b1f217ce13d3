/* ChainerMN's test_multi_node_chain_list, by meaning: 100 samples of 10 numbers, one after the other, through models
 * whose parts are on several ranks; every rank runs backward. */
#include "layers/chain.h"
#include "tests/chainermn/chainermn.h"

enum { SAMPLES = 100, WIDTH = 10, MOST = 4 };

static wf_layer *model;
static int parts_here, inputs_here, outputs_here;

/* --- components
 * -------------------------------------------------------------------------------------------------------
 */

static wf_var *apply_to_sum(wf_layer *self, void *user, wf_var *const *x, int n)
{
    (void)user;
    wf_var *sum = x[0];
    for (int i = 1; i < n; i++)
        sum = wf_add(sum, x[i]);
    return wf_apply(wf_layer_child(self, "f"), sum);
}

static wf_layer *sum_layer(int64_t out)
{
    wf_layer *layer = wf_module_n(ctx, 1, 0, apply_to_sum, NULL);
    wf_module_add(layer, "f", wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = out}));
    return layer;
}

static wf_layer *two_linears(void)
{
    wf_layer *layer = wf_module(ctx, apply_nothing, NULL);
    wf_module_add(layer, "f0", wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = WIDTH}));
    wf_module_add(layer, "f1", wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = WIDTH}));
    return layer;
}

/* A tuple of two from one, and one from a tuple. */
static wf_status give_tuple(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    (void)user;
    y[0] = wf_apply(wf_layer_child(layer, "f0"), x[0]);
    y[1] = wf_apply(wf_layer_child(layer, "f1"), x[0]);
    return y[0] && y[1] ? WF_OK : wf_error_code();
}

static wf_status take_tuple(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    (void)user;
    wf_var *first = wf_apply(wf_layer_child(layer, "f0"), x[0]);
    y[0] = wf_add(first, wf_apply(wf_layer_child(layer, "f1"), x[1]));
    return y[0] ? WF_OK : wf_error_code();
}

static void add_component(wf_component component, int n_in, const int *from, int n_out, const int *to)
{
    wf_chain_end in[MOST + 1] = {{0}}, out[MOST + 1] = {{0}};
    char name[32];
    for (int i = 0; i < n_in; i++) {
        in[i].rank = from[i];
        inputs_here += from[i] == WF_OUTSIDE;
    }
    for (int i = 0; i < n_out; i++) {
        out[i].rank = to[i];
        out[i].output = component.outputs > 1 ? i : 0;
        outputs_here += to[i] == WF_OUTSIDE;
    }
    snprintf(name, sizeof name, "part%d_%d", parts_here++, rank);
    component.name = name;
    component.n_in = n_in;
    component.in = in;
    component.n_out = n_out;
    component.out = out;
    WF_EXPECT_OK(wf_multi_node_chain_add(model, component));
}

static void add_parts(int64_t width, int n_in, const int *from, int n_out, const int *to)
{
    add_component((wf_component){.layer = sum_layer(width)}, n_in, from, n_out, to);
}

static void add_part(int64_t width, int from, int to)
{
    add_parts(width, 1, &from, 1, &to);
}

/* --- training
 * ---------------------------------------------------------------------------------------------------------
 */

static void expect_all_gradients(const char *what)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_tensor *grad = wf_param_grad(params[i]);
        double *value = grad ? doubles_of(grad) : NULL, sum = 0;
        for (int64_t k = 0; grad && k < wf_tensor_count(grad); k++)
            sum += fabs(value[k]);
        WF_EXPECT(sum > 0 && isfinite(sum), "%s on rank %d of %d: the gradient of %s sums to %g", what, rank, size,
                  wf_param_path(params[i]), sum);
        free(value);
    }
}

/* Applies the model to each sample (to the same one for each of its inputs), and differentiates. */
static void train(const char *what)
{
    wf_tape *tape = wf_tape_new(ctx);
    test_rng rng = {5};
    WF_EXPECT_OK(wf_multi_node_chain_connect(model));
    for (int s = 0; s < SAMPLES; s++) {
        const int64_t label = test_int(&rng, 0, 1);
        wf_var *x[MOST], *y[MOST] = {NULL};
        wf_tensor *sample = random_tensor(WF_F32, WF_SHAPE(1, WIDTH), (uint64_t)s);
        wf_tensor *t = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(1), &label);
        for (int i = 0; i < inputs_here; i++)
            x[i] = wf_input(tape, sample);
        wf_var *token = wf_multi_node_chain_apply(model, tape, inputs_here, x, outputs_here, y);
        wf_var *loss = NULL;
        for (int i = 0; i < outputs_here; i++) {
            wf_var *one = wf_softmax_cross_entropy(y[i], t, (wf_label_opts){0});
            loss = loss ? wf_add(loss, one) : one;
        }
        WF_EXPECT(token, "%s: %s", what, wf_error_message());
        if (parts_here)
            WF_EXPECT_OK(wf_backward(loss ? loss : token));
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(sample);
        wf_tensor_free(t);
    }
    expect_all_gradients(what);
    wf_tape_free(tape);
}

/* Each model in f32 and in f16 (mixed16 and float16 are one here); on two ranks and more, as theirs. */
static void each_type(const char *what, void (*add)(int next, int last))
{
    for (int half = 0; half < 2; half++) {
        communicator_open("naive", (wf_ctx_opts){.compute = half ? WF_F16 : WF_F32});
        parts_here = inputs_here = outputs_here = 0;
        if (size > 1) {
            model = wf_layer_named(wf_multi_node_chain(comm), "chain");
            add((rank + 1) % size, (rank + size - 1) % size);
            train(what);
            wf_layer_free(model);
        }
        communicator_close();
    }
}

static void add_cycle(int next, int last)
{
    if (rank == 0) {
        add_part(WIDTH, WF_OUTSIDE, next);
        add_part(2, last, WF_OUTSIDE);
    } else {
        add_part(WIDTH, last, next);
    }
}

static void test_cycle_model(void)
{
    each_type("a cycle", add_cycle);
}

/* Rank 0 sends before it receives; the others add the two in the other order. A receive comes first there, so with two
 * ranks the messages cross. */
static void add_crossing(int next, int last)
{
    if (rank == 0)
        add_part(WIDTH, WF_OUTSIDE, next);
    add_part(2, last, WF_OUTSIDE);
    if (rank > 0)
        add_part(WIDTH, WF_OUTSIDE, next);
}

static void test_crossing_model(void)
{
    each_type("a crossing", add_crossing);
}

/* The parents' lists of ranks: children; this rank and children; children and this rank; the same, turned by one. */
static int branch_kind;

static int branch_ranks(int *list)
{
    int n = 0;
    if (branch_kind == 1)
        list[n++] = 0;
    for (int r = 1; r < size; r++)
        list[n++] = r;
    if (branch_kind > 1)
        list[n++] = 0;
    for (int i = 0; i + 1 < n && branch_kind == 3; i++) {
        const int first = list[i];
        list[i] = list[i + 1];
        list[i + 1] = first;
    }
    return n;
}

static void add_branch(int next, int last)
{
    (void)next, (void)last;
    static const int outside = WF_OUTSIDE;
    int list[MOST + 1];
    const int n = branch_ranks(list);
    if (rank > 0) {
        add_part(WIDTH, 0, 0);
        return;
    }
    add_parts(WIDTH, 1, &outside, n, list);
    if (branch_kind > 0)
        add_part(WIDTH, 0, 0);
    add_parts(WIDTH, n, list, 1, &outside);
}

static void test_branching_models(void)
{
    for (branch_kind = 0; branch_kind < 4; branch_kind++)
        each_type("a branch", add_branch);
}

static void add_twist(int next, int last)
{
    const bool first = rank == 0, end = rank == size - 1;
    if (first) {
        add_part(WIDTH, WF_OUTSIDE, next);
        add_part(WIDTH, next, WF_OUTSIDE);
    } else if (end) {
        add_part(WIDTH, last, WF_OUTSIDE);
        add_part(WIDTH, WF_OUTSIDE, last);
    } else {
        static const int outside = WF_OUTSIDE;
        add_part(WIDTH, last, rank);
        add_part(WIDTH, WF_OUTSIDE, last);
        add_part(WIDTH, WF_OUTSIDE, next);
        add_part(WIDTH, next, rank);
        add_parts(WIDTH, 2, (const int[]){rank, rank}, 1, &outside);
    }
}

static void test_twisting_model(void)
{
    each_type("a twist", add_twist);
}

/* Pairs of ranks; the last one of an odd number has no part. */
static void add_tuples(int next, int last)
{
    static const int outside = WF_OUTSIDE;
    if (rank % 2 == 0 && rank == size - 1)
        return;
    if (rank % 2 == 0) {
        add_component((wf_component){.layer = two_linears(), .function = give_tuple, .outputs = 2}, 1, &outside, 2,
                      (const int[]){next, next});
        add_part(WIDTH, next, WF_OUTSIDE);
    } else {
        add_component((wf_component){.layer = two_linears(), .function = take_tuple}, 2, (const int[]){last, last}, 1,
                      &last);
    }
}

static void test_tuple_data_model(void)
{
    each_type("a tuple", add_tuples);
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"cycle_model", test_cycle_model},
                                   {"crossing_model", test_crossing_model},
                                   {"branching_models", test_branching_models},
                                   {"twisting_model", test_twisting_model},
                                   {"tuple_data_model", test_tuple_data_model},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
