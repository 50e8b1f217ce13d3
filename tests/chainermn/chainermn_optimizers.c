/* ChainerMN's optimizer_tests, by meaning. Their optimizers are mocks whose calls are counted; here SGD of rate 1 moves
 * each parameter by its mean gradient, which tells both. */
#include "optim/multi_node.h"
#include "tests/chainermn/chainermn.h"

static wf_layer *model;
static wf_optim *optim;
static wf_tape *tape;

static void open_model(int64_t third, bool double_buffering)
{
    static const char *const path[] = {"a/W", "b/W", "c/W"};
    communicator_open("naive", (wf_ctx_opts){0});
    tape = wf_tape_new(ctx);
    model = example_model(third);
    for (int i = 0; i < (third ? 3 : 2); i++)
        WF_EXPECT_OK(wf_tensor_fill(value_of(model, path[i]), rank + i));
    optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 1}),
                          (wf_multi_node_opts){.double_buffering = double_buffering});
    WF_EXPECT(optim && wf_optim_steps(optim) == 0, "an optimizer: %s", wf_error_message());
}

static void close_model(void)
{
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(model);
    communicator_close();
}

/* A step with gradients rank + more, rank + more + 1, and so on; c's is left out if `third` is false. */
static void step_with(double more, bool third)
{
    wf_var *loss = wf_add(loss_with(tape, model, "a", rank + more), loss_with(tape, model, "b", rank + more + 1));
    if (third)
        loss = wf_add(loss, loss_with(tape, model, "c", rank + more + 2));
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static double base(void)
{
    return (size - 1) / 2.0;
}

/* After updates by means whose `more` add up to this. */
static void expect_updates(const char *what, int updates, double sum_of_more)
{
    const double a = 0 - updates * base() - sum_of_more, b = 1 - updates * (base() + 1) - sum_of_more;
    WF_EXPECT(wf_optim_steps(optim) == updates, "%s: %lld updates, should be %d", what,
              (long long)wf_optim_steps(optim), updates);
    expect_all(what, value_of(model, "a/W"), a, 1e-6);
    expect_all(what, value_of(model, "b/W"), b, 1e-6);
}

/* Their first update broadcasts only; here wf_multi_node broadcasts, and the first step updates. */
static void test_update(void)
{
    open_model(5, false);
    expect_updates("after the set-up", 0, 0);
    expect_all("c after the set-up", value_of(model, "c/W"), 2, 0);
    step_with(0, true);
    expect_updates("after a step", 1, 0);
    expect_all("c after a step", value_of(model, "c/W"), 2 - (base() + 2), 1e-6);
    close_model();
}

/* A layer that the model gains: the step after it makes it rank 0's on every rank, and updates nothing. */
static void add_third(void)
{
    add_linear(model, "c", 4, 4);
    WF_EXPECT_OK(wf_tensor_fill(value_of(model, "c/W"), rank == 0 ? 2 : 100 + rank));
}

static void test_update_dynamic(void)
{
    open_model(0, false);
    step_with(0, false);
    expect_updates("before the change", 1, 0);
    add_third();
    step_with(5, true);
    expect_all("c after the change", value_of(model, "c/W"), size > 1 ? 2 : 2 - 7, 1e-6);
    const int updates = size > 1 ? 1 : 2; /* a single rank has no one to agree with */
    expect_updates("after the change", updates, size > 1 ? 0 : 5);
    step_with(1, true);
    expect_updates("after the next step", updates + 1, size > 1 ? 1 : 6);
    expect_all("c after the next step", value_of(model, "c/W"), size > 1 ? 2 - (base() + 3) : 2 - 7 - 3, 1e-6);
    close_model();
}

/* The update of a step is made in the one after it. */
static void test_double_buffering_update(void)
{
    open_model(5, true);
    step_with(0, true);
    expect_updates("after the first step", 0, 0);
    step_with(3, true);
    expect_updates("after the second step", 1, 0);
    expect_all("c after the second step", value_of(model, "c/W"), 2 - (base() + 2), 1e-6);
    WF_EXPECT_OK(wf_optim_flush(optim));
    expect_updates("after the flush", 2, 3);
    expect_all("c after the flush", value_of(model, "c/W"), 2 - 2 * (base() + 2) - 3, 1e-6);
    close_model();
}

static void test_double_buffering_update_dynamic(void)
{
    open_model(0, true);
    step_with(0, false);
    step_with(3, false);
    expect_updates("before the change", 1, 0);
    WF_EXPECT_OK(wf_optim_flush(optim));
    expect_updates("after the flush", 2, 3);
    add_third();
    step_with(6, true);
    WF_EXPECT_OK(wf_optim_flush(optim));
    expect_all("c after the change", value_of(model, "c/W"), size > 1 ? 2 : 2 - 8, 1e-6);
    const int updates = size > 1 ? 2 : 3;
    expect_updates("after the change", updates, size > 1 ? 3 : 9);
    step_with(6, true);
    step_with(9, true);
    expect_updates("after two steps more", updates + 1, size > 1 ? 9 : 15);
    WF_EXPECT_OK(wf_optim_flush(optim));
    expect_updates("at the end", updates + 2, size > 1 ? 18 : 24);
    expect_all("c at the end", value_of(model, "c/W"), (size > 1 ? 2 : 2 - 8) - 2 * (base() + 2) - 15, 1e-6);
    close_model();
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"update", test_update},
                                   {"update_dynamic", test_update_dynamic},
                                   {"double_buffering_update", test_double_buffering_update},
                                   {"double_buffering_update_dynamic", test_double_buffering_update_dynamic},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
