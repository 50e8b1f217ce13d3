/* Finds settings for a small network that tells digits, or Debian's photographs of clothes, apart: learning rate,
 * width, and whether the ranks of a trial share the images or the channels. Several trials run at once, on groups of
 * ranks:
 *
 *     mpirun -np 4 search_mnist --groups 2 --trials 30
 *
 * Optuna suggests the settings (optim/study.h). The same command goes on after a kill.
 */
#include "examples/common.h"
#include "examples/search_plots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *communicator, *data, *out, *storage;
    int64_t trials, groups, epochs, batch, seed;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {
        .communicator = "auto", .out = "search_mnist", .trials = 30, .groups = 1, .epochs = 3, .batch = 100, .seed = 1};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"trials", "N", "in all, over all runs of this study", .number = &s.trials, .most = EXAMPLE_MOST_COUNT,
         .least = 1},
        {"groups", "N", "of ranks, each of which makes a trial at a time", .number = &s.groups,
         .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"epochs", "N", "of a trial that is not pruned", .number = &s.epochs, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"batch", "N", "images in a step, for each rank that has images of its own", .number = &s.batch,
         .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"data", "DIR", "folder of MNIST's or Fashion-MNIST's IDX files", .text = &s.data},
        {"storage", "FILE", "of the study: SQLite (.db) or a journal (.journal); study.db in --out",
         .text = &s.storage},
        {"out", "DIR", "folder of the table and the pictures", .text = &s.out},
        {"seed", "N", "of the suggestions and of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT,
         .least = 1},
        {0}};
    example_options(argc, argv, "Searches learning rate, width and split of a classifier of 28x28 images.", table);
    return s;
}

/* --- A trial -------------------------------------------------------------------------------------------------------
 */

/* What was suggested. */
typedef struct choices {
    double lr;
    int64_t width;
    bool channel;
} choices;

/* What a trial works with; all of it is its own. */
typedef struct training {
    wf_mesh *mesh;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *train, *test;
} training;

static wf_layer *model_new(wf_ctx *ctx, int64_t width)
{
    return wf_sequential(ctx,
                         WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = 784, .out = width}), wf_lambda(ctx, wf_relu),
                                   wf_linear(ctx, (wf_linear_opts){.in = width, .out = width}), wf_lambda(ctx, wf_relu),
                                   wf_linear(ctx, (wf_linear_opts){.in = width, .out = 10, .replicate = true})));
}

static wf_iter *open_images(const training *t, wf_ctx *ctx, const settings *s, wf_dataset_split split)
{
    wf_dataset *files = wf_mnist(ctx, s->data, split);
    wf_dataset *part = wf_mesh_scatter_dataset(t->mesh, files, (wf_scatter_opts){.shuffle = split == WF_TRAIN_SET});
    return wf_batches(part, (wf_batch_opts){.size = s->batch});
}

static void training_close(training *t)
{
    wf_tape_free(t->tape);
    wf_iter_free(t->test);
    wf_iter_free(t->train);
    wf_optim_free(t->optim);
    wf_layer_free(t->model);
    wf_mesh_close(t->mesh);
}

/* Returns an error where the program could as well end: the study tells the trial as failed and goes on. */
static wf_status training_open(training *t, wf_comm *comm, const settings *s, choices c)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const wf_sgd_opts sgd = {.lr = c.lr, .momentum = 0.9};
    t->mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = c.channel ? wf_comm_size(comm) : 1});
    wf_status status = wf_check(t->mesh);
    t->model = model_new(ctx, c.width);
    if (status == WF_OK && c.channel)
        status = wf_parallelize(t->model, t->mesh, WF_PARALLEL_CHANNEL);
    if (status != WF_OK)
        return status;
    t->optim = wf_mesh_multi_node(t->mesh, wf_sgd(t->model, sgd), (wf_multi_node_opts){0});
    t->tape = wf_tape_new(ctx);
    t->train = open_images(t, ctx, s, WF_TRAIN_SET);
    t->test = open_images(t, ctx, s, WF_TEST_SET);
    status = wf_check(t->optim);
    status = status == WF_OK ? wf_check(t->train) : status;
    return status == WF_OK ? wf_check(t->test) : status;
}

/* *last is the loss of the last batch. */
static wf_status train_epoch(training *t, double *last)
{
    for (int64_t i = wf_iter_epoch_length(t->train); i > 0; i--) {
        wf_batch b;
        wf_status status = wf_iter_next(t->train, &b);
        if (status != WF_OK)
            return status;
        wf_var *loss =
            wf_softmax_cross_entropy(wf_apply(t->model, wf_input(t->tape, b.x)), b.labels, (wf_label_opts){0});
        status = wf_optim_step(t->optim, loss);
        *last = status == WF_OK ? wf_item(loss) : NAN;
        if (status == WF_OK)
            status = wf_tape_reset(t->tape);
        if (status != WF_OK || isnan(*last))
            return status;
    }
    return WF_OK;
}

/* Ranks along the channels have the same images; those along data have each their own part. */
static wf_status evaluate(training *t, double *accuracy)
{
    double counted[2] = {0};
    wf_status status = wf_tape_set_mode(t->tape, WF_EVAL);
    for (int64_t i = wf_iter_epoch_length(t->test); i > 0 && status == WF_OK; i--) {
        wf_batch b;
        if ((status = wf_iter_next(t->test, &b)) != WF_OK)
            return status;
        wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
        if ((status = wf_check(scores)) != WF_OK)
            return status;
        counted[0] += (double)wf_count_correct(scores, b.labels, (wf_label_opts){0});
        counted[1] += (double)b.size;
        status = wf_tape_reset(t->tape);
    }
    if (status == WF_OK)
        status = wf_allreduce_f64(wf_mesh_comm(t->mesh, WF_AXIS_BIT(WF_AXIS_DATA)), counted, 2, WF_SUM);
    *accuracy = counted[0] / counted[1];
    return status == WF_OK ? wf_tape_set_mode(t->tape, WF_TRAIN) : status;
}

static wf_status train(wf_trial *trial, training *t, const settings *s, double *accuracy)
{
    for (int64_t epoch = 0; epoch < s->epochs; epoch++) {
        double loss = NAN;
        wf_status status = train_epoch(t, &loss);
        if (status != WF_OK)
            return status;
        *accuracy = NAN;
        if (isnan(loss)) /* the trial has diverged */
            return WF_OK;
        status = evaluate(t, accuracy);
        if (status == WF_OK)
            status = wf_trial_report(trial, *accuracy, epoch);
        if (status != WF_OK)
            return status;
        if (wf_trial_should_prune(trial))
            return wf_trial_prune(trial);
    }
    return WF_OK;
}

static wf_status objective(wf_trial *trial, void *user, double *accuracy)
{
    static const char *const splits[] = {"data", "channel"};
    const settings *s = user;
    training t = {0};
    const double begin = example_seconds();
    const choices c = {.lr = wf_trial_suggest_float(trial, "lr", 1e-3, 10, WF_STUDY_LOG),
                       .width = wf_trial_suggest_int(trial, "width", 32, 512, WF_STUDY_STEP(32)),
                       .channel = wf_trial_suggest_categorical(trial, "split", splits, 2) == 1};
    wf_comm *comm = wf_trial_comm(trial);
    wf_status status = wf_trial_check(trial);
    if (status == WF_OK)
        status = training_open(&t, comm, s, c);
    if (status == WF_OK)
        status = train(trial, &t, s, accuracy);
    /* The first rank alone has a stdout (example_options), and here the first of every group speaks. */
    if (wf_comm_rank(comm) == 0)
        fprintf(stderr, "trial %lld: accuracy %.4f, lr %.4g, width %lld, %s  %.1f s\n",
                (long long)wf_trial_number(trial), status == WF_OK ? *accuracy : NAN, c.lr, (long long)c.width,
                splits[c.channel], example_seconds() - begin);
    training_close(&t);
    return status;
}

/* --- The search ----------------------------------------------------------------------------------------------------
 */

static const char *last_reason(const wf_study_row *rows, int64_t count)
{
    for (int64_t i = count - 1; i >= 0; i--)
        if (*rows[i].reason)
            return rows[i].reason;
    return "none";
}

/* Ends the program if no trial is complete. */
static void report(wf_comm *comm, wf_study *study, const settings *s)
{
    const wf_study_row *rows, *best;
    const wf_study_importance *importance;
    int64_t count;
    int parameters;
    char reason[700];
    WF_MUST(wf_barrier(comm)); /* groups end at different moments, and a rank that leaves would end the others */
    WF_MUST(wf_study_trials(study, &rows, &count));
    if (wf_comm_rank(comm) == 0) {
        search_write_table(s->out, rows, count);
        search_draw_history(s->out, rows, count);
    }
    /* The rows live until the next call. */
    snprintf(reason, sizeof reason, "no trial came to its end; the last that failed: %s", last_reason(rows, count));
    WF_MUST(wf_study_importances(study, &importance, &parameters));
    if (wf_comm_rank(comm) == 0)
        search_draw_importances(s->out, importance, parameters);
    WF_MUST(wf_study_best(study, &best));
    example_agree(comm, best ? NULL : reason);
    if (wf_comm_rank(comm) != 0)
        return;
    printf("best: trial %lld, accuracy %.4f", (long long)best->number, best->value);
    for (int p = 0; p < best->params; p++)
        if (best->param[p].kind == WF_STUDY_CATEGORICAL)
            printf(", %s %s", best->param[p].name, best->param[p].text);
        else
            printf(", %s %.6g", best->param[p].name, best->param[p].real);
    printf("\n%s: trials.csv, history.svg, importances.svg\n", s->out);
}

int main(int argc, char **argv)
{
    settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_folder(comm, s.out);
    char storage[4200];
    snprintf(storage, sizeof storage, "%s", s.storage ? s.storage : example_path(s.out, "study.db"));
    wf_study *study = wf_study_open(
        comm, "search_mnist",
        (wf_study_opts){
            .storage = storage, .trials = s.trials, .groups = (int)s.groups, .maximize = true, .seed = s.seed});
    example_check(comm, wf_check(study));
    WF_MUST(wf_study_optimize(study, objective, &s));
    report(comm, study, &s);
    wf_study_close(study);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
