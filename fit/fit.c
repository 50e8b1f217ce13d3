/* Training and evaluation of a model on samples with labels, in one call: a step and an evaluation for the trainer,
 * which has the loop, and what a program would wire to it. Programs call it. It computes nothing that they could not.
 */
#include "comm/comm_author.h"
#include "core/status_author.h"
#include "fit/fit_impl.h"
#include "layers/loss.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "test_" and the name of a metric, in what an evaluator takes for a name. */
enum { NAME = 64 };

typedef struct fitting {
    const wf_fit_opts *opts;
    wf_comm *comm;
    wf_layer *model;
    wf_prepared data;
    wf_tape *tape;
    wf_trainer *trainer;
    wf_checkpoint *checkpoint;
    wf_ema *ema;
    int64_t accumulate, epoch_steps;
    int64_t samples, test_samples; /* on rank 0, for the banner */
    int64_t evaluated;             /* the iteration of the newest evaluation */
} fitting;

double wf_accuracy(const wf_var *scores, const wf_tensor *labels)
{
    const int64_t right = wf_count_correct(scores, labels, (wf_label_opts){0});
    /* A negative count is a failure whose error is pending; NaN passes that on to observe_metrics. */
    return right < 0 ? NAN : (double)right / (double)wf_tensor_count(labels);
}

/* --- What is asked for -------------------------------------------------------------------------------------------- */

static const wf_metric *metric_of(const wf_fit_opts *o, const char *name)
{
    for (const wf_metric *m = o->metrics; m && m->name; m++)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

static wf_status check_metrics(const wf_fit_opts *o)
{
    for (const wf_metric *m = o->metrics; m && m->name; m++) {
        WF_CHECK(strlen(m->name) < NAME - sizeof "test_", WF_ERR_ARGUMENT,
                 "wf_fit: the metric %s has a name of %zu characters: should be at most %zu", m->name, strlen(m->name),
                 NAME - sizeof "test_" - 1);
        WF_CHECK(m->mean, WF_ERR_ARGUMENT, "wf_fit: the metric %s has no function", m->name);
        /* The first metric of the name must be this one, so a second one of the name is found. */
        WF_CHECK(metric_of(o, m->name) == m && strcmp(m->name, "loss") != 0, WF_ERR_ARGUMENT,
                 "wf_fit: two metrics are named %s", m->name);
    }
    WF_CHECK(!o->watch || strcmp(o->watch, "loss") == 0 || metric_of(o, o->watch), WF_ERR_ARGUMENT,
             "wf_fit: watch is %s: should be loss or the name of a metric", o->watch);
    return WF_OK;
}

static wf_status check_fit(const wf_fit_opts *o)
{
    if (!o->optim)
        return wf_error_need("wf_fit", "optim", __FILE__, __LINE__);
    if (!o->train || !o->test) /* NULL may be what a reader left that failed */
        WF_TRY(wf_error_pending());
    WF_CHECK(o->loss || o->batch_loss, WF_ERR_ARGUMENT, "wf_fit needs a loss");
    WF_CHECK(!o->loss || !o->batch_loss, WF_ERR_ARGUMENT, "wf_fit: loss and batch_loss are given: should be one");
    WF_CHECK(
        o->accumulate >= 0 && o->epochs >= 0 && o->evaluate_every >= 0 && o->patience >= 0 && o->checkpoint_every >= 0,
        WF_ERR_ARGUMENT,
        "wf_fit: accumulate %lld, epochs %lld, evaluate_every %lld, patience %lld, checkpoint_every %lld: should be 0 "
        "(the default) or more",
        (long long)o->accumulate, (long long)o->epochs, (long long)o->evaluate_every, (long long)o->patience,
        (long long)o->checkpoint_every);
    WF_CHECK(o->ema >= 0 && o->ema < 1, WF_ERR_ARGUMENT, "wf_fit: ema is %g: should be 0 (none) or more, below 1",
             o->ema);
    WF_CHECK(o->seconds >= 0 && isfinite(o->seconds), WF_ERR_ARGUMENT, "wf_fit: %g seconds: should be 0 or more",
             o->seconds);
    WF_CHECK(o->tensorboard || !o->histograms, WF_ERR_ARGUMENT, "wf_fit: histograms need a folder, tensorboard");
    WF_CHECK(o->checkpoints || !(o->resume || o->checkpoint_every), WF_ERR_ARGUMENT,
             "wf_fit: resume and checkpoint_every need a folder of checkpoints");
    return check_metrics(o);
}

/* Metrics end with one that has no name. */
static int64_t count_metrics(const wf_metric *metrics)
{
    int64_t n = 0;
    while (metrics && metrics[n].name)
        n++;
    return n;
}

/* Ranks that stop or evaluate at other steps would wait for each other; with other averages they would test other
 * models. */
static wf_status agree_fit(wf_comm *comm, const wf_fit_opts *o)
{
    const wf_fit_number numbers[] = {{"epochs", o->epochs},
                                     {"accumulate", o->accumulate},
                                     {"evaluate_every", o->evaluate_every},
                                     {"patience", o->patience},
                                     {"checkpoint_every", o->checkpoint_every},
                                     {"resume", o->resume},
                                     {"ema in millionths", llround(o->ema * 1e6)},
                                     {"less_is_better", o->less_is_better},
                                     {"histograms", o->histograms},
                                     {"the number of metrics", count_metrics(o->metrics)},
                                     {"best or not", o->best != NULL},
                                     {"checkpoints or not", o->checkpoints != NULL}};
    _Static_assert(sizeof numbers / sizeof *numbers <= WF_FIT_NUMBERS, "wf_fit_agree has room for them");
    /* Checked first and agreed on: a rank that returned here would leave the others in the broadcast. */
    WF_TRY(wf_agree_status(comm, check_fit(o)));
    return wf_fit_agree(comm, "wf_fit", sizeof numbers / sizeof *numbers, numbers);
}

/* --- A step, and an evaluation ------------------------------------------------------------------------------------ */

/* One batch through the model. Fields that are no targets are its inputs, in the order of the batch. */
static wf_status take_batch(fitting *f, wf_iter *iter, wf_batch *b, wf_var **scores, wf_var **loss)
{
    const wf_fit_opts *o = f->opts;
    wf_var *input[WF_BATCH_FIELDS];
    int inputs = 0;
    WF_TRY(wf_iter_next(iter, b));
    WF_CHECK(b->labels || o->batch_loss, WF_ERR_ARGUMENT, "wf_fit: the samples have no labels");
    for (int i = 0; i < b->names; i++)
        if (!b->named[i].target) {
            input[inputs] = wf_input(f->tape, b->named[i].tensor);
            WF_TRY(wf_check(input[inputs++]));
        }
    *scores = wf_apply_n(f->model, input, inputs);
    WF_TRY(wf_check(*scores));
    *loss = o->loss ? o->loss(*scores, b->labels) : o->batch_loss(*scores, b);
    return wf_check(*loss);
}

/* One step of the optimizer: `accumulate` batches, or fewer at the end of an epoch, so no step spans two epochs. */
static wf_status train_step(wf_trainer *trainer, void *user)
{
    fitting *f = user;
    double size = 0;
    for (int64_t pass = 1;; pass++) {
        wf_batch b;
        wf_var *scores = NULL, *loss = NULL;
        WF_TRY(take_batch(f, f->data.train, &b, &scores, &loss));
        size += (double)b.size;
        wf_trainer_add_samples(trainer, b.global);
        /* The last pass steps, which sums gradients over the ranks; the passes before only add to this rank's. */
        if (pass == f->accumulate || b.last) {
            WF_TRY(wf_optim_step(f->data.optim, loss));
            WF_TRY(wf_trainer_observe_var(trainer, "loss", loss, size));
            return wf_tape_reset(f->tape);
        }
        WF_TRY(wf_optim_accumulate(f->data.optim, loss));
        WF_TRY(wf_tape_reset(f->tape));
    }
}

static wf_status observe_metrics(fitting *f, wf_trainer *trainer, const wf_batch *b, const wf_var *scores)
{
    for (const wf_metric *m = f->opts->metrics; m && m->name; m++) {
        char name[NAME];
        snprintf(name, sizeof name, "test_%s", m->name);
        /* A rank without samples in a batch takes part with weight 0: the mean over ranks is the same. */
        const double mean = b->size > 0 ? m->mean(scores, b->labels) : 0;
        if (isnan(mean)) {
            /* A metric that failed has left an error; one that divided by zero has not. */
            WF_TRY(wf_error_code());
            WF_FAIL(WF_ERR_NUMERIC, "the metric %s is no number", m->name);
        }
        WF_TRY(wf_trainer_observe(trainer, name, mean, (double)b->size));
    }
    return WF_OK;
}

static wf_status evaluate_batches(fitting *f, wf_trainer *trainer)
{
    const double ranks = wf_comm_size(f->comm);
    WF_TRY(wf_tape_set_mode(f->tape, WF_EVAL));
    const int64_t length = wf_iter_epoch_length(f->data.test);
    /* Without batches the others would wait for a rank that could not open its own. */
    WF_TRY(wf_agree_status(f->comm, length > 0 ? WF_OK : wf_error_pending()));
    for (int64_t left = length; left > 0; left--) {
        wf_batch b;
        wf_var *scores = NULL, *loss = NULL;
        WF_TRY(take_batch(f, f->data.test, &b, &scores, &loss));
        /* The loss is this rank's part of a sum over the ranks, which is the mean over the samples of all. */
        WF_TRY(wf_trainer_observe(trainer, "test_loss", wf_item(loss) * ranks, (double)b.global / ranks));
        WF_TRY(observe_metrics(f, trainer, &b, scores));
        WF_TRY(wf_tape_reset(f->tape));
    }
    f->evaluated = wf_trainer_iteration(trainer);
    return wf_tape_set_mode(f->tape, WF_TRAIN);
}

/* Averages of weights are swapped in for the test and back out, so training goes on with its own. */
static wf_status evaluate_all(wf_trainer *trainer, void *user)
{
    fitting *f = user;
    if (!f->ema)
        return evaluate_batches(f, trainer);
    WF_TRY(wf_ema_swap(f->ema));
    WF_TRY(evaluate_batches(f, trainer));
    return wf_ema_swap(f->ema);
}

/* Without `watch` the first metric counts, or the loss if there is none. A loss is better if smaller, a metric if
 * larger unless the program says the opposite. */
static void name_watched(const wf_fit_opts *o, char name[NAME], bool *larger)
{
    const char *first = o->metrics && o->metrics->name ? o->metrics->name : "loss";
    const char *watched = o->watch ? o->watch : first;
    *larger = strcmp(watched, "loss") != 0 && !o->less_is_better;
    snprintf(name, NAME, "test_%s", watched);
}

static wf_status show_epoch(wf_trainer *trainer, void *user)
{
    fitting *f = user;
    char line[512];
    int used = snprintf(line, sizeof line, "epoch %lld  loss %.4f", (long long)wf_trainer_epoch(trainer),
                        wf_trainer_mean(trainer, "loss"));
    /* Tests may come less often than epochs; an old number is not shown as a new one. */
    const bool tested = f->data.test && f->evaluated == wf_trainer_iteration(trainer);
    if (tested)
        used += snprintf(line + used, sizeof line - (size_t)used, "  test_loss %.4f",
                         wf_trainer_mean(trainer, "test_loss"));
    for (const wf_metric *m = f->opts->metrics; tested && m && m->name && used < (int)sizeof line - NAME - 16; m++) {
        char name[NAME];
        snprintf(name, sizeof name, "test_%s", m->name);
        used += snprintf(line + used, sizeof line - (size_t)used, "  %s %.4f", name, wf_trainer_mean(trainer, name));
    }
    wf_trainer_print(trainer, "%s  %.1f s", line, wf_trainer_seconds(trainer));
    return WF_OK;
}

static wf_status show_parameters(wf_trainer *trainer, void *user)
{
    return wf_trainer_histograms(trainer, ((fitting *)user)->model);
}

/* --- Wiring ------------------------------------------------------------------------------------------------------- */

/* Steps of an epoch. */
static int64_t steps_at(void *user, int64_t epoch)
{
    const fitting *f = user;
    /* Rounded up: the last step of an epoch may have fewer passes. */
    return (wf_iter_length_at(f->data.train, epoch) + f->accumulate - 1) / f->accumulate;
}

static wf_status wire_trainer(fitting *f)
{
    const wf_fit_opts *o = f->opts;
    const int64_t every = o->evaluate_every ? o->evaluate_every : 1;
    if (o->ema > 0) {
        f->ema = wf_ema_new(f->model, (wf_ema_opts){.decay = o->ema});
        WF_NEED(f->ema);
    }
    /* Neither epochs nor seconds: one epoch. With seconds alone, 0 epochs mean no bound. */
    f->trainer = wf_trainer_new(f->comm, train_step, f,
                                (wf_trainer_opts){.length_at = steps_at,
                                                  .length_user = f,
                                                  .epochs = o->epochs || o->seconds > 0 ? o->epochs : 1,
                                                  .seconds = o->seconds,
                                                  .log = o->log,
                                                  .tensorboard = o->tensorboard,
                                                  .device_statistics = o->device_statistics,
                                                  .progress = o->progress,
                                                  .finite = true,
                                                  .optim = f->data.optim,
                                                  .ema = f->ema});
    WF_TRY(wf_check(f->trainer));
    if (f->data.test) {
        char watched[NAME];
        const bool keeps = o->best != NULL;
        wf_best_opts best = {
            .patience = o->patience, .path = o->best, .model = keeps ? f->model : NULL, .averages = keeps && f->ema};
        name_watched(o, watched, &best.larger);
        /* Tests come before the best is judged, since hooks run in the order in which they were added. */
        WF_TRY(wf_trainer_add_hook(f->trainer, "evaluate", evaluate_all, f, (wf_when){.epochs = every, .end = true}));
        WF_TRY(wf_trainer_keep_best(f->trainer, watched, best));
    }
    if (o->histograms)
        WF_TRY(wf_trainer_add_hook(f->trainer, "histograms", show_parameters, f, (wf_when){.epochs = 1, .end = true}));
    /* Last, and after the report: its means are those of all ranks. */
    return wf_trainer_add_hook(f->trainer, "show", show_epoch, f,
                               (wf_when){.epochs = 1, .end = true, .after_report = true});
}

static wf_status wire_checkpoint(fitting *f)
{
    const wf_fit_opts *o = f->opts;
    if (!o->checkpoints)
        return WF_OK;
    int64_t step = 0;
    /* Once an epoch, unless the program says how often. */
    const int64_t every = o->checkpoint_every ? o->checkpoint_every : f->epoch_steps;
    f->checkpoint = wf_checkpoint_open(f->comm, o->checkpoints,
                                       (wf_checkpoint_opts){.every = every, .async = true, .signals = true});
    WF_TRY(wf_check(f->checkpoint));
    WF_TRY(wf_checkpoint_add_model(f->checkpoint, "model", f->model));
    WF_TRY(wf_checkpoint_add_optim(f->checkpoint, "optimizer", f->data.optim));
    WF_TRY(wf_checkpoint_add(f->checkpoint, "tape", wf_tape_visit, f->tape));
    WF_TRY(wf_checkpoint_add(f->checkpoint, "batches", wf_iter_visit, f->data.train));
    WF_TRY(wf_trainer_set_checkpoint(f->trainer, f->checkpoint));
    /* Everything that is saved must be known to the checkpoint before it loads. */
    if (o->resume)
        WF_TRY(wf_checkpoint_load_latest(f->checkpoint, &step));
    if (step > 0)
        wf_trainer_print(f->trainer, "continues after step %lld of %s", (long long)step, o->checkpoints);
    return WF_OK;
}

static void show_banner(const fitting *f, int64_t batch)
{
    const wf_fit_opts *o = f->opts;
    const int ranks = wf_comm_size(f->comm);
    const int64_t step = batch * ranks * f->accumulate;
    const int64_t epochs = o->epochs || o->seconds > 0 ? o->epochs : 1;
    wf_trainer *t = f->trainer;
    wf_trainer_print(t, "samples          %lld, %lld of the test", (long long)f->samples, (long long)f->test_samples);
    if (epochs > 0)
        wf_trainer_print(t, "epochs           %lld", (long long)epochs);
    if (o->seconds > 0)
        wf_trainer_print(t, "seconds          %g", o->seconds);
    wf_trainer_print(t, "batch of a rank  %lld", (long long)batch);
    wf_trainer_print(t, "batch of a step  %lld (ranks: %d, backward passes: %lld)", (long long)step, ranks,
                     (long long)f->accumulate);
    wf_trainer_print(t, "steps            %lld an epoch", (long long)f->epoch_steps);
    wf_trainer_print(t, "parameters       %lld", (long long)wf_layer_param_count(f->model));
    wf_trainer_print(t, "device           %s", wf_ctx_device(wf_comm_ctx(f->comm)));
}

static int64_t count_of(wf_dataset *dataset)
{
    /* Called on rank 0 alone, so an error here must not stop it: the others would wait. */
    wf_dataset_info info = {0};
    if (dataset && wf_dataset_info_get(dataset, &info) != WF_OK)
        wf_error_clear(); /* wf_prepare opens it once more, and returns the error on all ranks */
    return info.count;
}

static wf_status check_samples(const fitting *f)
{
    WF_CHECK(wf_comm_rank(f->comm) != 0 || f->samples > 0, WF_ERR_ARGUMENT,
             "wf_fit: the data set to train on is empty");
    return WF_OK;
}

static wf_status train_prepared(fitting *f, wf_prepare_opts prepare)
{
    const wf_fit_opts *o = f->opts;
    f->model = wf_optim_model(o->optim);
    f->accumulate = o->accumulate ? o->accumulate : 1;
    if (wf_comm_rank(f->comm) == 0) {
        f->samples = count_of(prepare.train);
        f->test_samples = count_of(prepare.test);
    }
    WF_TRY(wf_prepare(f->comm, prepare, &f->data));
    WF_CHECK(f->data.train, WF_ERR_ARGUMENT, "wf_fit: no data set to train on");
    WF_CHECK(f->data.test || !(o->best || o->patience || o->watch), WF_ERR_ARGUMENT,
             "wf_fit: best, patience and watch need a data set to test on");
    WF_TRY(wf_agree_status(f->comm, check_samples(f)));
    f->epoch_steps = steps_at(f, 0);
    /* Ranks with different numbers of steps between saves would wait for each other for ever. */
    WF_TRY(wf_agree_status(f->comm, f->epoch_steps > 0 ? WF_OK : wf_error_code()));
    f->tape = wf_tape_new(wf_comm_ctx(f->comm));
    WF_TRY(wf_agree_status(f->comm, wf_check(f->tape)));
    WF_TRY(wf_agree_status(f->comm, wire_trainer(f)));
    WF_TRY(wire_checkpoint(f));
    show_banner(f, prepare.batch);
    WF_TRY(wf_trainer_run(f->trainer));
    /* The averages are the result of a run that came to its end; a run that is to continue keeps the weights. */
    return f->ema && !wf_trainer_left(f->trainer) && wf_ema_updates(f->ema) > 0 ? wf_ema_swap(f->ema) : WF_OK;
}

/* A run that fails while the averages are swapped in leaves the model with the parameters of its training. */
static wf_status swap_back(const fitting *f, wf_status status)
{
    char message[512];
    if (status == WF_OK || !wf_ema_swapped(f->ema))
        return status;
    wf_error_save(&status, message, sizeof message);
    if (wf_ema_swap(f->ema) != WF_OK)
        WF_FAIL(status, "%s; the model keeps its averages", message);
    return status;
}

static void tell_result(const fitting *f, wf_fit_result *result)
{
    const wf_trainer *t = f->trainer;
    *result = (wf_fit_result){.steps = wf_trainer_iteration(t),
                              .epochs = wf_trainer_epoch(t),
                              .loss = wf_trainer_mean(t, "loss"),
                              .test_loss = wf_trainer_mean(t, "test_loss"),
                              .best = f->data.test ? wf_trainer_best(t) : NAN,
                              .seconds = wf_trainer_seconds(t),
                              .left = wf_trainer_left(t)};
}

wf_status wf_fit(wf_comm *comm, wf_fit_opts opts, wf_fit_result *result)
{
    wf_status status = comm ? agree_fit(comm, &opts) : wf_error_need(__func__, "comm", __FILE__, __LINE__);
    /* Everything was given away, so it is freed here too. */
    if (status != WF_OK) {
        wf_optim_free(opts.optim);
        wf_dataset_free(opts.train);
        wf_dataset_free(opts.test);
        return status;
    }
    fitting f = {.opts = &opts, .comm = comm};
    wf_prepare_opts prepare = {.optim = opts.optim,
                               .train = opts.train,
                               .test = opts.test,
                               .batch = opts.batch ? opts.batch : 32,
                               .test_batch = opts.test_batch,
                               .workers = opts.workers,
                               .collate = opts.collate,
                               .in_order = opts.in_order,
                               .each_reads = opts.each_reads,
                               .local_batchnorm = opts.local_batchnorm,
                               .multi_node = opts.multi_node};
    memcpy(prepare.grows, opts.grows, sizeof prepare.grows);
    status = swap_back(&f, train_prepared(&f, prepare));
    /* Closed before the error is returned: a save that goes on in a thread is waited for, and its failure is told
     * unless there is one already. */
    if (f.checkpoint) {
        const wf_status closed = wf_checkpoint_close(f.checkpoint);
        status = status ? status : closed;
    }
    if (status == WF_OK && result)
        tell_result(&f, result);
    wf_trainer_free(f.trainer);
    wf_ema_free(f.ema);
    wf_tape_free(f.tape);
    wf_prepared_free(&f.data);
    return status;
}
