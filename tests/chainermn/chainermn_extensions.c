/* ChainerMN's extensions_tests and its training on MNIST, by meaning. */
#include "datasets/datasets.h"
#include "optim/checkpoint.h"
#include "optim/early_stop.h"
#include "optim/evaluator.h"
#include "optim/multi_node.h"
#include "optim/trainer.h"
#include "tests/chainermn/chainermn.h"
#include "tests/file/folder.h"

/* --- test_allreduce_persistent
 * ----------------------------------------------------------------------------------------
 */

static wf_layer *persistent_model(void)
{
    const wf_batchnorm_opts norm = {.channels = 5};
    return wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 5, .no_bias = true}),
                                        wf_batchnorm(ctx, norm),
                                        wf_linear(ctx, (wf_linear_opts){.in = 5, .out = 5, .no_bias = true}),
                                        wf_batchnorm(ctx, norm), wf_linear(ctx, (wf_linear_opts){.in = 5, .out = 2})));
}

/* Their variance is the mean of variances; here the distances of the ranks' means are part of it. */
static void test_allreduce_persistent(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_layer *model = persistent_model();
    static const char *const path[] = {"1/avg_mean", "3/avg_mean", "1/avg_var", "3/avg_var"};
    const double mean = (size - 1) / 2.0;
    double spread = 0;
    for (int r = 0; r < size; r++)
        spread += (r - mean) * (r - mean) / size;
    for (int i = 0; i < 4; i++)
        WF_EXPECT_OK(wf_tensor_fill(value_of(model, path[i]), rank * (i + 1)));
    WF_EXPECT_OK(wf_allreduce_persistent(comm, model, 1));
    expect_all("the first mean", value_of(model, path[0]), mean, 1e-6);
    expect_all("the second mean", value_of(model, path[1]), 2 * mean, 1e-6);
    expect_all("the first variance", value_of(model, path[2]), 3 * mean + spread, 1e-6);
    expect_all("the second variance", value_of(model, path[3]), 4 * mean + 4 * spread, 1e-6);
    wf_layer_free(model);
    communicator_close();
}

/* --- training: a perceptron of 100 units on images of 28 by 28
 * --------------------------------------------------------
 */

enum { IMAGES = 600, TESTS = 200, BATCH = 50, UNITS = 100 };

typedef struct training {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *train;
    wf_checkpoint *saves;
    int64_t step;
} training;

static wf_dataset *images(int64_t count)
{
    return wf_synthetic(ctx, (wf_synthetic_opts){.count = count, .shape = WF_SHAPE(1, 28, 28), .seed = 9});
}

static training training_open(const char *path)
{
    training t = {0};
    t.model = wf_layer_named(
        wf_sequential(ctx,
                      WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = 784, .out = UNITS}), wf_lambda(ctx, wf_relu),
                                wf_linear(ctx, (wf_linear_opts){.in = UNITS, .out = UNITS}), wf_lambda(ctx, wf_relu),
                                wf_linear(ctx, (wf_linear_opts){.in = UNITS, .out = 10}))),
        "mlp");
    t.optim = wf_multi_node(comm, wf_adam(t.model, (wf_adam_opts){0}), (wf_multi_node_opts){0});
    t.tape = wf_tape_new(ctx);
    t.train = wf_batches(wf_scatter_dataset(comm, rank ? NULL : images(IMAGES), (wf_scatter_opts){.shuffle = true}),
                         (wf_batch_opts){.size = BATCH});
    t.saves = wf_checkpoint_open(comm, path, (wf_checkpoint_opts){0});
    WF_EXPECT(t.model && t.optim && t.train && t.saves, "a training run: %s", wf_error_message());
    WF_EXPECT_OK(wf_checkpoint_add_model(t.saves, "model", t.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(t.saves, "optim", t.optim));
    WF_EXPECT_OK(wf_checkpoint_add(t.saves, "tape", wf_tape_visit, t.tape));
    WF_EXPECT_OK(wf_checkpoint_add(t.saves, "batches", wf_iter_visit, t.train));
    WF_EXPECT_OK(wf_checkpoint_load_latest(t.saves, &t.step));
    return t;
}

static void training_close(training *t)
{
    WF_EXPECT_OK(wf_checkpoint_close(t->saves));
    wf_iter_free(t->train);
    wf_tape_free(t->tape);
    wf_optim_free(t->optim);
    wf_layer_free(t->model);
}

/* One update; true at the end of an epoch. */
static bool update(training *t)
{
    wf_batch batch = {0};
    WF_EXPECT_OK(wf_iter_next(t->train, &batch));
    wf_var *y = wf_apply(t->model, wf_input(t->tape, batch.x));
    WF_EXPECT_OK(wf_optim_step(t->optim, wf_softmax_cross_entropy(y, batch.labels, (wf_label_opts){0})));
    WF_EXPECT_OK(wf_tape_reset(t->tape));
    t->step++;
    return batch.last;
}

/* The accuracy over the test images of all ranks. */
static double accuracy_of(const training *t)
{
    wf_iter *iter =
        wf_batches(wf_scatter_dataset(comm, rank ? NULL : images(TESTS), (wf_scatter_opts){.shuffle = true}),
                   (wf_batch_opts){.size = BATCH, .once = true});
    wf_evaluator *all = wf_evaluator_new(comm);
    WF_EXPECT_OK(wf_tape_set_mode(t->tape, WF_EVAL));
    for (wf_batch batch = {.global = 1}; batch.global;) {
        WF_EXPECT_OK(wf_iter_next(iter, &batch));
        if (batch.size == 0)
            continue;
        wf_var *y = wf_apply(t->model, wf_input(t->tape, batch.x));
        WF_EXPECT_OK(wf_evaluator_add_sum(
            all, "accuracy", (double)wf_count_correct(y, batch.labels, (wf_label_opts){0}), (double)batch.size));
    }
    WF_EXPECT_OK(wf_evaluator_finish(all));
    WF_EXPECT_OK(wf_tape_set_mode(t->tape, WF_TRAIN));
    const double accuracy = wf_evaluator_mean(all, "accuracy");
    WF_EXPECT(wf_evaluator_weight(all, "accuracy") == TESTS, "%g images", wf_evaluator_weight(all, "accuracy"));
    wf_evaluator_free(all);
    wf_iter_free(iter);
    return accuracy;
}

static void open_folder(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    folder_make();
}

static void close_folder(void)
{
    folder_remove();
    communicator_close();
}

/* Their checkpointer deletes all at the end; Weft keeps the last three generations. */
static void test_mnist(void)
{
    open_folder();
    training t = training_open(in_folder("run"));
    for (int epoch = 0; epoch < 5;)
        if (update(&t)) {
            WF_EXPECT_OK(wf_checkpoint_save(t.saves, t.step));
            epoch++;
        }
    const double accuracy = accuracy_of(&t);
    WF_EXPECT(accuracy > 0.95, "accuracy %g", accuracy);
    training_close(&t); /* rank 0's thread has removed what is too old */
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(files_in(in_folder("run")) == 3, "%lld files", (long long)files_in(in_folder("run")));
    close_folder();
}

/* --- test_checkpoint
 * --------------------------------------------------------------------------------------------------
 */

/* The name of a file gives the number of its generation, and back. */
static void test_filename_converters(void)
{
    open_folder();
    int64_t number = 5;
    wf_checkpoint *saves = wf_checkpoint_open(comm, in_folder("run"), (wf_checkpoint_opts){.keep = 20});
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "number", &number));
    for (int i = 0; i < 12; i++) {
        char name[32], path[256];
        WF_EXPECT_OK(wf_checkpoint_save(saves, 100 * i));
        WF_EXPECT(wf_checkpoint_generation(saves) >= i, "generation %lld", (long long)wf_checkpoint_generation(saves));
        snprintf(name, sizeof name, "run/ckpt-%08lld.h5", (long long)wf_checkpoint_generation(saves));
        snprintf(path, sizeof path, "%s", in_folder(name));
        FILE *file = fopen(path, "rb");
        WF_EXPECT(file, "no file %s", path);
        if (file)
            fclose(file);
    }
    WF_EXPECT(files_in(in_folder("run")) == 12, "%lld files", (long long)files_in(in_folder("run")));
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    close_folder();
}

/* Values of a model, to be freed. */
static double *values_of(const training *t)
{
    wf_param *const *params;
    int64_t n = 0, count = 0;
    WF_EXPECT_OK(wf_layer_params(t->model, &n, &params));
    double *all = calloc((size_t)wf_layer_param_count(t->model), sizeof *all);
    for (int64_t i = 0; i < n; i++) {
        double *one = doubles_of(wf_param_value(params[i]));
        const int64_t length = wf_tensor_count(wf_param_value(params[i]));
        memcpy(all + count, one, (size_t)length * sizeof *all);
        count += length;
        free(one);
    }
    return all;
}

/* Five epochs, then five more by objects that were loaded. They leave the model's values unchecked. */
static void test_mnist_simple(void)
{
    open_folder();
    training first = training_open(in_folder("run"));
    for (int epoch = 0; epoch < 5;)
        if (update(&first)) {
            WF_EXPECT_OK(wf_checkpoint_save(first.saves, first.step));
            epoch++;
        }
    double *before = values_of(&first);
    const int64_t step = first.step, epoch = wf_iter_epoch(first.train);
    training_close(&first);
    training second = training_open(in_folder("run"));
    WF_EXPECT(second.step == step && wf_iter_epoch(second.train) == epoch, "step %lld of %lld, epoch %lld of %lld",
              (long long)second.step, (long long)step, (long long)wf_iter_epoch(second.train), (long long)epoch);
    double *after = values_of(&second);
    WF_EXPECT(memcmp(before, after, (size_t)wf_layer_param_count(second.model) * sizeof *after) == 0,
              "the model is another one");
    while (wf_iter_epoch(second.train) < 10)
        (void)update(&second);
    WF_EXPECT(second.step == 2 * step, "%lld steps", (long long)second.step);
    WF_EXPECT(accuracy_of(&second) >= 0.95, "accuracy %g", accuracy_of(&second));
    free(before);
    free(after);
    training_close(&second);
    close_folder();
}

/* --- test_multi_node_snapshot
 * -----------------------------------------------------------------------------------------
 */

/* Ranks are no masters of sets here: one generation is one file, into which all ranks write. A condition that holds
 * the first time only is `every`. */
static void test_smoke_multinode_snapshot(void)
{
    open_folder();
    int64_t number = 5;
    wf_checkpoint *saves = wf_checkpoint_open(comm, in_folder("run"), (wf_checkpoint_opts){.every = 2});
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "number", &number));
    for (int step = 1; step <= 3; step++) {
        bool leave = true;
        WF_EXPECT_OK(wf_checkpoint_step(saves, step, &leave));
        WF_EXPECT(!leave, "a signal that was not sent");
        WF_EXPECT_OK(wf_barrier(comm));
        WF_EXPECT(files_in(in_folder("run")) == (step > 1), "%lld files after step %d",
                  (long long)files_in(in_folder("run")), step);
        WF_EXPECT_OK(wf_barrier(comm));
    }
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    close_folder();
}

static void test_multinode_autoload(void)
{
    open_folder();
    training t = training_open(in_folder("run"));
    for (int i = 0; i < 3; i++)
        (void)update(&t);
    WF_EXPECT(t.step == 3, "%lld updates", (long long)t.step);
    WF_EXPECT_OK(wf_checkpoint_save(t.saves, t.step));
    training_close(&t);
    t = training_open(in_folder("run"));
    WF_EXPECT(t.step == 3 && wf_optim_steps(t.optim) == 3, "%lld updates after the load", (long long)t.step);
    training_close(&t);
    close_folder();
}

/* --- test_multi_node_early_stopping_trigger
 * ---------------------------------------------------------------------------
 */

/* Two iterations an epoch, at whose end the mean of the epoch is observed. */
static void test_early_stopping_trigger_with_accuracy(void)
{
    static const double accuracy[] = {0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.6, 0.6, 0.4, 0.4, 0.3, 0.3, 0.2, 0.2};
    communicator_open("naive", (wf_ctx_opts){0});
    wf_early_stop *stop = wf_early_stop_new(comm, (wf_early_stop_opts){.patience = 3, .larger = true});
    const double mine = 1 - (double)rank / size;
    for (int i = 1; i < 16; i += 2) {
        bool stops = false;
        WF_EXPECT_OK(wf_early_stop_observe(stop, mine * (accuracy[i - 1] + accuracy[i]) / 2, 1, &stops));
        WF_EXPECT(stops == (i >= 13), "after iteration %d: %s", i + 1, stops ? "stops" : "goes on");
    }
    wf_early_stop_free(stop);
    communicator_close();
}

/* --- test_multi_node_evaluator
 * ----------------------------------------------------------------------------------------
 */

typedef struct collected {
    int64_t count, sum;
    int ranks, length;
} collected;

/* Rank r's results are 3 (r + i size), and the gathered list is all of them. */
static wf_status collect_results(void *user, int ranks, const wf_finding *findings)
{
    collected *c = user;
    c->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        const int64_t *value = findings[r].data, n = (int64_t)(findings[r].bytes / sizeof *value);
        for (int64_t i = 0; i < n; i++) {
            WF_EXPECT(value[i] == 3 * (r + i * ranks), "result %lld of rank %d is %lld", (long long)i, r,
                      (long long)value[i]);
            c->count++;
            c->sum += value[i];
        }
    }
    return WF_OK;
}

static wf_status sum_results(void *user, int ranks, const wf_finding *findings)
{
    collected *c = user;
    c->ranks = ranks;
    for (int r = 0; r < ranks; r++)
        c->sum += *(const int64_t *)findings[r].data;
    return WF_OK;
}

/* a + b + c of each of this rank's samples, in batches; 2 for each batch. */
static void check_evaluator(int length, int batch, bool custom)
{
    int64_t result[97], n = 0, batches = 0;
    for (int i = rank; i < length; i += size) {
        batches += n % batch == 0;
        result[n++] = i + i + i;
    }
    collected c = {0};
    if (custom) {
        int64_t twos = 2 * batches, all = 2 * batches;
        WF_EXPECT_OK(wf_evaluate_all(comm, &twos, sizeof twos, sum_results, &c));
        WF_EXPECT_OK(wf_allreduce_i64(comm, &all, 1, WF_SUM));
        WF_EXPECT(c.sum == all, "%lld, should be %lld", (long long)c.sum, (long long)all);
    } else {
        WF_EXPECT_OK(wf_evaluate_all(comm, result, (size_t)n * sizeof *result, collect_results, &c));
        WF_EXPECT(c.count == length && c.sum == 3L * length * (length - 1) / 2, "%lld results, which sum to %lld",
                  (long long)c.count, (long long)c.sum);
    }
    WF_EXPECT(c.ranks == size, "results of %d ranks", c.ranks);
}

static void each_evaluation(bool custom)
{
    communicator_open("naive", (wf_ctx_opts){0});
    check_evaluator(97, 7, custom);
    check_evaluator(9, 77, custom);
    communicator_close();
}

static void test_generic(void)
{
    each_evaluation(false);
}

static void test_custom(void)
{
    each_evaluation(true);
}

/* --- test_observation_aggregator
 * --------------------------------------------------------------------------------------
 */

typedef struct observed {
    wf_tape *tape;
    bool variable;
    int reports;
} observed;

static wf_status observe_rank(wf_trainer *trainer, void *user)
{
    observed *o = user;
    if (!o->variable)
        return wf_trainer_observe(trainer, "rank", rank, 1);
    const float mine = (float)rank;
    wf_tensor *value = wf_tensor_from_host(ctx, WF_F32, wf_shape_scalar(), &mine);
    const wf_status status = wf_trainer_observe_var(trainer, "rank", wf_input(o->tape, value), 1);
    wf_tensor_free(value);
    return status;
}

static wf_status check_mean(wf_trainer *trainer, void *user)
{
    observed *o = user;
    const double mean = wf_trainer_mean(trainer, "rank");
    WF_EXPECT(fabs(mean - (size - 1) / 2.0) < 1e-6, "the mean of ranks is %g", mean);
    o->reports++;
    return WF_OK;
}

/* Ten samples, one an iteration, are one epoch. */
static void check_aggregator(bool variable, int interval)
{
    observed o = {.tape = wf_tape_new(ctx), .variable = variable};
    wf_trainer *trainer = wf_trainer_new(
        comm, observe_rank, &o, (wf_trainer_opts){.epoch_length = 10, .epochs = 1, .report = {.iterations = interval}});
    WF_EXPECT_OK(
        wf_trainer_add_hook(trainer, "check", check_mean, &o, (wf_when){.iterations = interval, .after_report = true}));
    WF_EXPECT_OK(wf_trainer_run(trainer));
    WF_EXPECT(o.reports == 10 / interval, "%d reports", o.reports);
    wf_trainer_free(trainer);
    WF_EXPECT_OK(wf_tape_reset(o.tape));
    wf_tape_free(o.tape);
}

static void test_observation_aggregator(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    for (int variable = 0; variable < 2; variable++)
        for (int interval = 1; interval < 3; interval++)
            check_aggregator(variable, interval);
    communicator_close();
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"allreduce_persistent", test_allreduce_persistent},
                                   {"mnist", test_mnist},
                                   {"filename_converters", test_filename_converters},
                                   {"mnist_simple", test_mnist_simple},
                                   {"smoke_multinode_snapshot", test_smoke_multinode_snapshot},
                                   {"multinode_autoload", test_multinode_autoload},
                                   {"early_stopping_trigger_with_accuracy", test_early_stopping_trigger_with_accuracy},
                                   {"generic", test_generic},
                                   {"custom", test_custom},
                                   {"observation_aggregator", test_observation_aggregator},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
