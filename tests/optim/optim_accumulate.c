/* Steps of several backwards: those of one large batch, however it is cut, on any number of ranks. */
#include "tests/optim/optim_reference.h"
#include "tests/world.h"

#include <math.h>
#include <string.h>

enum { STEPS = 4, ROUNDS = 4, MOST = 96 };

static const wf_multi_node_opts buckets = {.bucket_bytes = 100};

/* Samples [first, first + n) of a step; the labels are freed with the tensors that a test kept. */
static wf_tensor *kept[2 * ROUNDS + 2];
static int n_kept;

static wf_var *loss_on(wf_layer *net, int step, int64_t first, int64_t n, const wf_layout *layout)
{
    double x[MOST * IN] = {0};
    int64_t label[MOST] = {0};
    for (int64_t i = 0; i < n; i++) {
        test_rng rng = {(uint64_t)(1000 * step + first + i + 1)};
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = test_uniform(&rng, -1, 1);
        label[i] = test_int(&rng, 0, CLASSES - 1);
    }
    wf_tensor *in = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(n, IN), x);
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(n), label);
    if (layout) {
        WF_EXPECT_OK(wf_tensor_set_layout(in, layout[0]));
        WF_EXPECT_OK(wf_tensor_set_layout(labels, layout[1]));
    }
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(net, wf_input(tape, in)), labels, (wf_label_opts){0});
    kept[n_kept++] = in;
    kept[n_kept++] = labels;
    return loss;
}

static void end_step(void)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    while (n_kept > 0)
        wf_tensor_free(kept[--n_kept]);
}

/* The step of the serial program, and what it leaves: the same as the ranks' step. */
static void expect_whole(const char *what, int step, int64_t n, double loss)
{
    double a[IN * HIDDEN], b[IN * HIDDEN];
    end_step();
    wf_var *whole = loss_on(whole_model, step, 0, n, NULL);
    WF_EXPECT_OK(wf_optim_step(whole_optim, whole));
    WF_EXPECT(fabs(loss - wf_item(whole)) < 1e-12, "%s, step %d: loss %.15g, should be %.15g", what, step, loss,
              wf_item(whole));
    for (int i = 0; param_of(model, i); i++) {
        const wf_tensor *value = wf_param_value(param_of(model, i));
        values_get(value, a);
        values_get(wf_param_value(param_of(whole_model, i)), b);
        WF_EXPECT(test_distance(wf_tensor_count(value), a, b) < 1e-12,
                  "%s, step %d, rank %d: parameter %d is off by %g", what, step, rank, i,
                  test_distance(wf_tensor_count(value), a, b));
    }
    end_step();
}

/* How often rank r accumulates before a step, and how many samples its round k has: none for wf_no_loss. */
static int rounds(int step, int r)
{
    return (step + r) % ROUNDS;
}

static int64_t samples(int step, int r, int k)
{
    return (step + 2 * r + 3 * k) % 4;
}

static void local_means(void)
{
    open_models("flat", buckets);
    for (int step = 0; step < STEPS; step++) {
        int64_t first = 0;
        double loss = 0;
        if (step == 2) {
            WF_EXPECT_OK(wf_param_set_trainable(param_of(model, 1), false));
            WF_EXPECT_OK(wf_param_set_trainable(param_of(whole_model, 1), false));
        }
        for (int r = 0; r < size; r++)
            for (int k = 0; k <= rounds(step, r); k++) {
                const int64_t n = samples(step, r, k);
                if (r == rank) {
                    wf_var *mine = n > 0 ? loss_on(model, step, first, n, NULL) : wf_no_loss(tape);
                    const bool last = k == rounds(step, r);
                    WF_EXPECT_OK(last ? wf_optim_step(optim, mine) : wf_optim_accumulate(optim, mine));
                    loss = wf_item(mine);
                }
                first += n;
            }
        if (first > 0)
            expect_whole("local means", step, first, loss);
    }
    WF_EXPECT(wf_optim_steps(optim) == STEPS, "%lld steps", (long long)wf_optim_steps(optim));
    close_models();
}

/* Global batches of different lengths, which do not divide by the ranks. */
static void sharded_means(void)
{
    open_models("auto", buckets);
    const wf_mesh *mesh = wf_comm_mesh(comm);
    for (int step = 0; step < STEPS; step++) {
        int64_t first = 0;
        double loss = 0;
        for (int k = 0; k < ROUNDS; k++) {
            const int64_t n = 2 * size + 1 + 3 * k + step;
            int64_t lo, hi;
            wf_block(n, size, rank, &lo, &hi);
            const wf_layout layouts[2] = {wf_layout_batch(mesh, WF_SHAPE(n, IN), lo, hi),
                                          wf_layout_batch(mesh, WF_SHAPE(n), lo, hi)};
            wf_var *mine = loss_on(model, step, first + lo, hi - lo, layouts);
            WF_EXPECT_OK(k < ROUNDS - 1 ? wf_optim_accumulate(optim, mine) : wf_optim_step(optim, mine));
            loss = wf_item(mine);
            first += n;
        }
        expect_whole("sharded means", step, first, loss);
    }
    close_models();
}

/* An optimizer of one rank. */
static void serial(void)
{
    open_models("flat", buckets);
    wf_optim_free(optim);
    optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.5, .momentum = 0.9});
    WF_EXPECT_OK(wf_optim_clip_norm(optim, 0.3));
    for (int step = 0; step < STEPS; step++) {
        WF_EXPECT_OK(wf_optim_accumulate(optim, loss_on(model, step, 0, 3, NULL)));
        WF_EXPECT_OK(wf_optim_accumulate(optim, loss_on(model, step, 3, 1, NULL)));
        wf_var *last = step % 2 ? wf_no_loss(tape) : loss_on(model, step, 4, 5, NULL);
        WF_EXPECT_OK(wf_optim_step(optim, last));
        expect_whole("serial", step, step % 2 ? 4 : 9, wf_item(last));
    }
    close_models();
}

/* Nothing goes between ranks before the step, once the first backward has settled the order. */
static void nothing_is_sent(void)
{
    open_models("flat", buckets);
    for (int step = 0; step < 2; step++) {
        uint64_t sent[3] = {wf_comm_traffic(comm).collectives, 0, 0};
        WF_EXPECT_OK(wf_optim_accumulate(optim, loss_on(model, step, 0, 3, NULL)));
        sent[1] = wf_comm_traffic(comm).collectives;
        WF_EXPECT_OK(wf_optim_step(optim, loss_on(model, step, 3, 3, NULL)));
        sent[2] = wf_comm_traffic(comm).collectives;
        WF_EXPECT(step == 0 || sent[1] == sent[0], "%d collectives before the step", (int)(sent[1] - sent[0]));
        WF_EXPECT(size == 1 || sent[2] > sent[1], "no collective in the step");
        end_step();
    }
    close_models();
}

static void unequal_parts(void)
{
    open_models("flat", buckets);
    const wf_mesh *mesh = wf_comm_mesh(comm);
    const wf_layout layouts[2] = {wf_layout_batch(mesh, WF_SHAPE(2 * size, IN), 2 * rank, 2 * rank + 2),
                                  wf_layout_batch(mesh, WF_SHAPE(2 * size), 2 * rank, 2 * rank + 2)};
    wf_status status = WF_OK;
    if (rank == 0)
        status = wf_optim_accumulate(optim, loss_on(model, 0, 0, 2, layouts));
    WF_EXPECT_OK(status);
    status = wf_optim_step(optim, loss_on(model, 0, 0, 2, layouts));
    WF_EXPECT(size == 1 ? status == WF_OK
                        : status == WF_ERR_COMM && strstr(wf_error_message(), "all do it equally often"),
              "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
    end_step();
    close_models();
}

static void misuse(void)
{
    open_models("flat", buckets);
    wf_optim *local = whole_optim;
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_accumulate(local, wf_mul(loss_on(whole_model, 0, 0, 3, NULL),
                                                                    loss_on(whole_model, 0, 3, 2, NULL))));
    WF_EXPECT_OK(wf_optim_accumulate(local, loss_on(whole_model, 0, 0, 3, NULL)));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_update(local));
    WF_EXPECT_OK(wf_param_set_trainable(param_of(whole_model, 0), false));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_step(local, wf_no_loss(tape)));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_accumulate(NULL, wf_no_loss(tape)));
    end_step();
    close_models();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"local_means", local_means},
                                   {"sharded_means", sharded_means},
                                   {"serial", serial},
                                   {"nothing_is_sent", nothing_is_sent},
                                   {"unequal_parts", unequal_parts},
                                   {"misuse", misuse},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
