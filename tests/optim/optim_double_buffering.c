/* Double buffering: every step is that of the serial program which uses the gradient of the step before. */
#include "core/context_author.h"
#include "tests/optim/optim_reference.h"
#include "tests/world.h"

#include <math.h>
#include <string.h>

enum { STEPS = 5, BATCH = 3, RANKS = 4, PARAMS = 4 };

static const wf_multi_node_opts twice = {.double_buffering = true};
static double before[PARAMS][IN * HIDDEN], loss_before;

static wf_var *loss_on(wf_layer *net, int step, int64_t first, int64_t n, wf_tensor **labels)
{
    double x[RANKS * BATCH * IN];
    int64_t label[RANKS * BATCH];
    for (int64_t i = 0; i < n; i++) {
        test_rng rng = {(uint64_t)(1000 * step + first + i + 1)};
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = test_uniform(&rng, -1, 1);
        label[i] = test_int(&rng, 0, CLASSES - 1);
    }
    wf_tensor *in = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(n, IN), x);
    *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(n), label);
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(net, wf_input(tape, in)), *labels, (wf_label_opts){0});
    wf_tensor_free(in);
    return loss;
}

static void serial_update(void)
{
    for (int i = 0; i < PARAMS; i++)
        grad_set(param_of(whole_model, i), before[i]);
    WF_EXPECT_OK(wf_optim_update(whole_optim));
}

/* The update with the gradient of the step before, if there was one; the gradient of this one is kept. */
static void serial_step(int t)
{
    double now[PARAMS][IN * HIDDEN];
    wf_tensor *labels;
    wf_var *loss = loss_on(whole_model, t, 0, size * BATCH, &labels);
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_backward(loss));
    for (int i = 0; i < PARAMS; i++)
        values_get(wf_param_grad(param_of(whole_model, i)), now[i]);
    if (t > 0)
        serial_update();
    memcpy(before, now, sizeof before);
    loss_before = value;
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(labels);
}

static void expect_alike(const char *what, int t)
{
    double a[IN * HIDDEN], b[IN * HIDDEN];
    for (int i = 0; i < PARAMS; i++) {
        const wf_tensor *value = wf_param_value(param_of(model, i));
        values_get(value, a);
        values_get(wf_param_value(param_of(whole_model, i)), b);
        WF_EXPECT(test_distance(wf_tensor_count(value), a, b) < 1e-12,
                  "%s, step %d, rank %d: parameter %d is off by %g", what, t, rank, i,
                  test_distance(wf_tensor_count(value), a, b));
    }
}

/* The first rank has a sample more, in two backwards, the last one less. */
static double step(int t)
{
    const int64_t first = rank * BATCH + (rank > 0), end = (rank + 1) * BATCH + (rank < size - 1);
    const int64_t half = rank == 0 ? 1 : 0;
    wf_tensor *labels[2] = {NULL};
    if (half)
        WF_EXPECT_OK(wf_optim_accumulate(optim, loss_on(model, t, first, half, &labels[0])));
    wf_var *loss = loss_on(model, t, first + half, end - first - half, &labels[1]);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(labels[0]);
    wf_tensor_free(labels[1]);
    return value;
}

static void delayed(const char *name, wf_multi_node_opts opts)
{
    opts.compare_every = -1; /* a comparison of replicas waits for the sums that this looks for */
    open_models(name, opts);
    for (int t = 0; t < STEPS; t++) {
        const double loss = step(t), should = loss_before;
        WF_EXPECT(size == 1 || ctx->progress, "nothing is on the wire after step %d", t);
        WF_EXPECT(wf_optim_steps(optim) == t, "%lld updates after %d steps", (long long)wf_optim_steps(optim), t + 1);
        WF_EXPECT(t == 0 || fabs(loss - should) < 1e-12, "step %d: loss %.15g, should be %.15g", t, loss, should);
        serial_step(t);
        expect_alike(name, t);
    }
    WF_EXPECT_OK(wf_optim_flush(optim));
    WF_EXPECT_OK(wf_optim_flush(optim));
    serial_update();
    expect_alike(name, STEPS);
    WF_EXPECT(wf_optim_steps(optim) == STEPS, "%lld updates", (long long)wf_optim_steps(optim));
    close_models();
}

static void delayed_gradient(void)
{
    delayed("flat", (wf_multi_node_opts){.bucket_bytes = 100, .first_bucket_bytes = 1, .double_buffering = true});
    delayed("hierarchical", twice);
}

/* Saved after a flush, loaded, and gone on with, after what is trainable changed and changed back. */
static void saved(void)
{
    double a[IN * HIDDEN], b[IN * HIDDEN];
    open_models("flat", twice);
    wf_archive *archive = wf_archive_memory(ctx);
    step(0);
    WF_EXPECT_OK(wf_optim_flush(optim));
    for (int round = 0; round < 2; round++) {
        WF_EXPECT_OK(wf_optim_archive(optim, archive));
        WF_EXPECT_OK(wf_layer_archive(model, archive));
        step(1);
        step(2);
        WF_EXPECT_OK(wf_optim_flush(optim));
        values_get(wf_param_value(param_of(model, 0)), round ? b : a);
        if (round == 0)
            WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    }
    WF_EXPECT(test_distance(IN * HIDDEN, a, b) == 0, "goes on differently, by %g", test_distance(IN * HIDDEN, a, b));
    WF_EXPECT_OK(wf_param_set_trainable(param_of(model, 1), false));
    step(3);
    WF_EXPECT_OK(wf_optim_flush(optim));
    wf_archive_free(archive);
    close_models();
}

/* Adds `factor` times the gradient of these samples, with the serial model as it is, to what the next update takes. */
static void serial_part(int64_t first, int64_t n, double factor)
{
    double now[IN * HIDDEN];
    wf_tensor *labels;
    WF_EXPECT_OK(wf_backward(loss_on(whole_model, 1, first, n, &labels)));
    for (int i = 0; i < PARAMS; i++) {
        values_get(wf_param_grad(param_of(whole_model, i)), now);
        for (int64_t k = 0; k < wf_tensor_count(wf_param_value(param_of(whole_model, i))); k++)
            before[i][k] += factor * now[k];
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(labels);
}

/* A flush between accumulated gradients and their step, as a save makes it: the update of the step before comes early,
 * and what was accumulated stays. */
static void flushed_within_a_step(void)
{
    double first[PARAMS][IN * HIDDEN];
    const double samples = size * BATCH;
    wf_tensor *labels;
    open_models("flat", twice);
    step(0);
    serial_step(0);
    if (rank == 0) {
        WF_EXPECT_OK(wf_optim_accumulate(optim, loss_on(model, 1, 0, 1, &labels)));
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(labels);
    }
    memcpy(first, before, sizeof before);
    memset(before, 0, sizeof before);
    serial_part(0, 1, 1 / samples);
    for (int i = 0; i < PARAMS; i++)
        grad_set(param_of(whole_model, i), first[i]);
    WF_EXPECT_OK(wf_optim_update(whole_optim));
    WF_EXPECT_OK(wf_optim_flush(optim));
    expect_alike("flush", 0);
    const int64_t lo = rank == 0 ? 1 : rank * BATCH, hi = (rank + 1) * BATCH;
    WF_EXPECT_OK(wf_optim_step(optim, loss_on(model, 1, lo, hi - lo, &labels)));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(labels);
    serial_part(1, size * BATCH - 1, (samples - 1) / samples);
    WF_EXPECT_OK(wf_optim_flush(optim));
    serial_update();
    expect_alike("step", 1);
    close_models();
}

static void dropped(void)
{
    open_models("flat", twice);
    step(0);
    close_models();
}

static void misuse(void)
{
    open_models("flat", twice);
    wf_archive *archive = wf_archive_memory(ctx);
    step(0);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_archive(optim, archive));
    if (wf_barrier(comm) != WF_OK) /* none learns of the failure before; some may here */
        wf_error_clear();
    WF_EXPECT_OK(wf_param_set_trainable(param_of(model, 1), false));
    const wf_status status = wf_optim_step(optim, wf_no_loss(tape));
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), "call wf_optim_flush before"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_flush(NULL));
    wf_archive_free(archive);
    close_models();
    open_models("flat", twice);
    const wf_multi_node_opts wrong = {.double_buffering = true, .shard_optimizer = true};
    WF_EXPECT(!wf_multi_node(comm, wf_sgd(whole_model, (wf_sgd_opts){.lr = 1}), wrong), "both were taken");
    WF_EXPECT(strstr(wf_error_message(), "neither with shard_optimizer"), "'%s'", wf_error_message());
    wf_error_clear();
    close_models();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"delayed_gradient", delayed_gradient},
                                   {"saved", saved},
                                   {"flushed_within_a_step", flushed_within_a_step},
                                   {"dropped", dropped},
                                   {"misuse", misuse},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
