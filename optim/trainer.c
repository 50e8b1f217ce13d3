/* The training loop: what runs in which iteration. Means, log and best model are in trainer_report.c, the share of the
 * run that is over in trainer_share.c, what is shown in trainer_progress.c. */
#include "core/archive.h"
#include "core/log.h"
#include "core/status_author.h"
#include "optim/trainer_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINE_POINT_NS 100000000 /* between two points of the device in the time line */

/* Monotonic: a clock that is set during a run changes no rate and no end. */
double wf_trainer_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* --- Life --------------------------------------------------------------------------------------------------------- */

/* All ranks are given the same options, so all fail here alike, before anything is sent. */
static wf_status check_opts(const wf_trainer_opts *o)
{
    WF_CHECK(o->epoch_length >= 0 && o->epochs >= 0 && o->iterations >= 0 && o->line_seconds >= 0, WF_ERR_ARGUMENT,
             "a trainer with epoch_length %lld, epochs %lld, iterations %lld, line_seconds %g: should be 0 or more",
             (long long)o->epoch_length, (long long)o->epochs, (long long)o->iterations, o->line_seconds);
    WF_CHECK(o->seconds >= 0 && isfinite(o->seconds), WF_ERR_ARGUMENT, "a trainer of %g seconds: should be 0 or more",
             o->seconds);
    WF_CHECK(o->epochs > 0 || o->iterations > 0 || o->seconds > 0, WF_ERR_ARGUMENT,
             "a trainer without an end: epochs, iterations or seconds should be given");
    WF_CHECK(o->epoch_length == 0 || !o->length_at, WF_ERR_ARGUMENT,
             "a trainer with epoch_length %lld and length_at: should be one of them", (long long)o->epoch_length);
    WF_CHECK(o->epochs == 0 || o->epoch_length > 0 || o->length_at, WF_ERR_ARGUMENT,
             "a trainer of %lld epochs: epoch_length should be given", (long long)o->epochs);
    return WF_OK;
}

bool wf_trainer_has_epochs(const wf_trainer *t)
{
    return t->opts.epoch_length > 0 || t->opts.length_at;
}

/* Iterations of an epoch; 0: there are no epochs. Asked again whenever it is needed: lengths may come from a data set
 * that changes. */
static int64_t length_of(const wf_trainer *t, int64_t epoch)
{
    return t->opts.length_at ? t->opts.length_at(t->opts.length_user, epoch) : t->opts.epoch_length;
}

static wf_status check_when(const wf_trainer *t, wf_when when, const char *what)
{
    WF_CHECK(when.iterations >= 0 && when.epochs >= 0, WF_ERR_ARGUMENT,
             "%s every %lld iterations and %lld epochs: should be 0 or more", what, (long long)when.iterations,
             (long long)when.epochs);
    WF_CHECK(when.epochs == 0 || wf_trainer_has_epochs(t), WF_ERR_ARGUMENT,
             "%s every %lld epochs of a trainer without epoch_length", what, (long long)when.epochs);
    WF_CHECK(when.share >= 0 && when.share <= 1, WF_ERR_ARGUMENT,
             "%s after every share %g of the run: should be from 0 to 1", what, when.share);
    WF_CHECK(when.iterations || when.epochs || when.share > 0 || when.end, WF_ERR_ARGUMENT, "%s is never due", what);
    return WF_OK;
}

static wf_status set_up_trainer(wf_trainer *t, wf_trainer_opts opts)
{
    wf_when *report = &t->opts.report;
    t->opts = opts;
    t->opts.line_seconds = opts.line_seconds > 0 ? opts.line_seconds : 5;
    /* Without an answer to when, a report at the end of each epoch, and of the run. */
    if (!report->iterations && !report->epochs && report->share == 0 && !report->end)
        *report = (wf_when){.epochs = wf_trainer_has_epochs(t), .end = true};
    WF_TRY(check_when(t, *report, "the report"));
    /* Strings are copied: the program's may be gone when they are needed. */
    snprintf(t->unit, sizeof t->unit, "%s", opts.unit ? opts.unit : "samples");
    t->log_path = opts.log ? wf_strdup(t->ctx, opts.log) : NULL;
    t->timeline = opts.timeline ? wf_strdup(t->ctx, opts.timeline) : NULL;
    t->board_folder = opts.tensorboard ? wf_strdup(t->ctx, opts.tensorboard) : NULL;
    if ((opts.log && !t->log_path) || (opts.timeline && !t->timeline) || (opts.tensorboard && !t->board_folder))
        return wf_error_code();
    t->evaluator = wf_evaluator_new(t->comm);
    WF_NEED(t->evaluator);
    return wf_trainer_progress_open(t);
}

wf_trainer *wf_trainer_new(wf_comm *comm, wf_train_function step, void *user, wf_trainer_opts opts)
{
    if (!comm)
        return NULL;
    WF_CHECK_NULL(step, WF_ERR_ARGUMENT, "a trainer needs a step");
    WF_TRY_NULL(check_opts(&opts));
    wf_trainer *t = wf_calloc(wf_comm_ctx(comm), 1, sizeof *t);
    if (!t)
        return wf_error_null();
    t->comm = comm;
    t->ctx = wf_comm_ctx(comm);
    t->first = wf_comm_rank(comm) == 0;
    t->step = step;
    t->user = user;
    if (set_up_trainer(t, opts) == WF_OK)
        return t;
    wf_trainer_free(t);
    return wf_error_null();
}

/* Takes a trainer of which a part was made. */
void wf_trainer_free(wf_trainer *trainer)
{
    wf_trainer *t = trainer;
    if (!t)
        return;
    wf_trainer_log_close(t);
    if (t->out)
        fclose(t->out);
    wf_trainer_forget(t);
    for (int64_t i = 0; i < t->n_hooks; i++)
        free(t->hook[i].name);
    free(t->hook);
    wf_early_stop_free(t->best.stop);
    free(t->best.name);
    free(t->best.path);
    wf_evaluator_free(t->evaluator);
    free(t->latest.item);
    free(t->log_path);
    free(t->timeline);
    free(t->board_folder);
    free(t);
}

wf_status wf_trainer_add_hook(wf_trainer *trainer, const char *name, wf_train_function hook, void *user, wf_when when)
{
    wf_trainer *t = trainer;
    WF_NEED(t);
    WF_NEED(name);
    WF_NEED(hook);
    WF_TRY(check_when(t, when, name));
    wf_trainer_hook *longer = wf_realloc(t->ctx, t->hook, (size_t)(t->n_hooks + 1) * sizeof *longer);
    if (!longer)
        return wf_error_code();
    t->hook = longer;
    /* The list is longer already and its number is not: a failure here leaves no half entry. */
    char *copy = wf_strdup(t->ctx, name);
    if (!copy)
        return wf_error_code();
    /* -1 is no iteration, so a hook that is due runs once in each. */
    t->hook[t->n_hooks++] = (wf_trainer_hook){.name = copy, .run = hook, .user = user, .when = when, .ran = -1};
    return WF_OK;
}

/* A struct is filled before the trainer has it, so that a failure leaves the trainer without a best model. */
static wf_status watch_metric(wf_trainer *t, const char *name, wf_best_opts opts)
{
    const int64_t patience = opts.patience ? opts.patience : INT64_MAX;
    wf_trainer_watch best = {.model = opts.model, .averages = opts.averages, .name = wf_strdup(t->ctx, name)};
    best.path = opts.path ? wf_strdup(t->ctx, opts.path) : NULL;
    /* Each failure of a copy leaves `stop` NULL. */
    if (best.name && (best.path || !opts.path))
        best.stop = wf_early_stop_new(
            t->comm, (wf_early_stop_opts){.patience = patience, .least = opts.least, .larger = opts.larger});
    if (best.stop) {
        t->best = best;
        return WF_OK;
    }
    free(best.name);
    free(best.path);
    return wf_error_code();
}

wf_status wf_trainer_keep_best(wf_trainer *trainer, const char *name, wf_best_opts opts)
{
    WF_NEED(trainer);
    WF_NEED(name);
    WF_CHECK(!opts.model == !opts.path, WF_ERR_ARGUMENT, "the best by %s: model and path should be given together",
             name);
    WF_CHECK(!opts.averages || (trainer->opts.ema && wf_ema_model(trainer->opts.ema) == opts.model), WF_ERR_ARGUMENT,
             "the best by %s: averages are kept of the model that wf_trainer_opts.ema averages", name);
    WF_CHECK(!trainer->best.stop, WF_ERR_STATE, "the trainer watches %s already", trainer->best.name);
    return watch_metric(trainer, name, opts);
}

wf_status wf_trainer_set_checkpoint(wf_trainer *trainer, wf_checkpoint *checkpoint)
{
    WF_NEED(trainer);
    WF_NEED(checkpoint);
    WF_CHECK(!trainer->checkpoint, WF_ERR_STATE, "the trainer has a checkpoint already");
    WF_TRY(wf_checkpoint_add(checkpoint, "trainer", wf_trainer_visit, trainer));
    if (trainer->opts.ema)
        WF_TRY(wf_checkpoint_add(checkpoint, "ema", wf_ema_visit, trainer->opts.ema));
    trainer->checkpoint = checkpoint;
    return WF_OK;
}

/* --- How long it is ----------------------------------------------------------------------------------------------- */

/* Most epochs whose lengths are asked for at a time: a program without an end gives epochs by the billion. */
enum { LOOKED_AHEAD = 4096 };

/* sum + epochs * length, of numbers that are 0 or more; INT64_MAX for a larger one. */
static int64_t add_epochs(int64_t sum, int64_t epochs, int64_t length)
{
    int64_t more = 0;
    const bool over = __builtin_mul_overflow(epochs, length, &more) || __builtin_add_overflow(sum, more, &sum);
    return over ? INT64_MAX : sum;
}

/* The last iteration of the last epoch. Epochs further ahead than LOOKED_AHEAD count as long as the last one before
 * them; the number becomes exact when the run comes near its end. Epochs beyond `most` iterations are not asked for. A
 * resumed run begins inside of an epoch: `iteration - index` is where that began. */
static int64_t end_of_epochs(const wf_trainer *t, int64_t most)
{
    int64_t sum = t->iteration - t->index, length = t->opts.epoch_length, e = t->epoch;
    if (t->opts.length_at)
        for (; e < t->opts.epochs && e - t->epoch < LOOKED_AHEAD && sum < most; e++) {
            length = length_of(t, e);
            /* Ends early, so a program of a billion epochs costs nothing. */
            sum = add_epochs(sum, 1, length);
        }
    return e < t->opts.epochs ? add_epochs(sum, t->opts.epochs - e, length) : sum;
}

/* The total changes with the epoch alone, so steps in between do not compute it. */
static void count_total(wf_trainer *t)
{
    const wf_trainer_opts *o = &t->opts;
    const int64_t most = o->iterations > 0 ? o->iterations : INT64_MAX;
    t->total = o->iterations;
    if (o->epochs == 0)
        return;
    const int64_t epochs = end_of_epochs(t, most);
    t->total = epochs < most ? epochs : most;
}

/* A run that was asked to stop has its end where it is. */
int64_t wf_trainer_total(const wf_trainer *t)
{
    return t->stopping ? t->iteration : t->total;
}

/* --- State -------------------------------------------------------------------------------------------------------- */

/* Rounds the place in an epoch of another length as wf_iter_archive does, so that loop and data stay together when a
 * run continues with another number of ranks or batch size. */
static wf_status set_place(wf_trainer *t, int64_t length)
{
    WF_CHECK(t->iteration >= 0 && t->epoch >= 0 && t->index >= 0 && length >= 0 && t->log_bytes >= 0, WF_ERR_FORMAT,
             "the archive holds iteration %lld, epoch %lld and place %lld of %lld in it", (long long)t->iteration,
             (long long)t->epoch, (long long)t->index, (long long)length);
    const int64_t own = length_of(t, t->epoch);
    if (own > 0 && length > 0 && own != length)
        t->index = (int64_t)((double)t->index / (double)length * (double)own);
    if (own > 0 && t->index >= own) {
        t->index = 0;
        t->epoch++;
    }
    count_total(t);
    return WF_OK;
}

static wf_status visit_counts(wf_trainer *t, wf_archive *archive)
{
    /* One list of entries saves and loads; what is loaded is checked after all of it is there. */
    int64_t length = length_of(t, t->epoch), stopping = t->stopping, best = t->best.iteration;
    double seconds = wf_trainer_seconds(t);
    WF_TRY(wf_archive_i64(archive, "iteration", &t->iteration));
    WF_TRY(wf_archive_i64(archive, "epoch", &t->epoch));
    WF_TRY(wf_archive_i64(archive, "index", &t->index));
    WF_TRY(wf_archive_i64(archive, "length", &length));
    WF_TRY(wf_archive_i64(archive, "stopping", &stopping));
    WF_TRY(wf_archive_i64(archive, "log_bytes", &t->log_bytes));
    WF_TRY(wf_archive_i64(archive, "best_iteration", &best));
    WF_TRY(wf_archive_f64(archive, "seconds", &seconds));
    if (!wf_archive_loading(archive))
        return WF_OK;
    t->stopping = stopping != 0;
    t->best.iteration = best;
    /* Seconds of earlier runs; those of this one are added by wf_trainer_seconds. */
    t->before = seconds;
    t->reported = 0;
    /* A hook may be due again in the iteration at which the run continues. */
    for (int64_t i = 0; i < t->n_hooks; i++)
        t->hook[i].ran = -1;
    return set_place(t, length);
}

static wf_status visit(wf_trainer *t, wf_archive *archive)
{
    /* Variables that wait on the device are observed first, so that the archive has their numbers. */
    WF_TRY(wf_trainer_read(t));
    WF_TRY(visit_counts(t, archive));
    WF_TRY(wf_archive_enter(archive, "observed"));
    WF_TRY(wf_evaluator_archive(t->evaluator, archive));
    WF_TRY(wf_archive_leave(archive));
    WF_TRY(wf_archive_enter(archive, "latest"));
    WF_TRY(wf_sums_visit(t->ctx, &t->latest, archive));
    WF_TRY(wf_archive_leave(archive));
    /* Readings of devices belong to the ranks that made them. */
    if (wf_archive_loading(archive))
        wf_trainer_forget_device(t);
    if (!t->best.stop)
        return WF_OK;
    WF_TRY(wf_archive_enter(archive, "best"));
    WF_TRY(wf_early_stop_visit(t->best.stop, archive));
    return wf_archive_leave(archive);
}

/* Saving may fail on one rank, which must tell the others; loading fails on all alike. */
wf_status wf_trainer_visit(void *trainer, wf_archive *archive)
{
    wf_trainer *t = trainer;
    WF_NEED(t);
    WF_NEED(archive);
    const wf_status status = visit(t, archive);
    return wf_archive_loading(archive) ? status : wf_comm_post_failure(t->comm, status);
}

/* --- The loop ----------------------------------------------------------------------------------------------------- */

/* All ranks get the same answer: stopping comes from a report, time from rank 0's clock, the rest is counted. */
static bool ended(const wf_trainer *t)
{
    const wf_trainer_opts *o = &t->opts;
    return t->stopping || wf_trainer_time_over(t) || (o->iterations > 0 && t->iteration >= o->iterations) ||
           (o->epochs > 0 && t->epoch >= o->epochs);
}

/* Called after the counts went up, so the first iteration is 1. */
static bool due(const wf_trainer *t, wf_when when, bool last)
{
    return (when.iterations > 0 && t->iteration % when.iterations == 0) ||
           (when.epochs > 0 && t->epoch_ended && t->epoch % when.epochs == 0) || wf_trainer_share_due(t, when.share) ||
           (when.end && last);
}

/* The name of the hook goes along with its error to all ranks. hook->ran is set also if it fails. */
static wf_status run_hook(wf_trainer *t, wf_trainer_hook *hook)
{
    char message[512];
    const bool swapped = wf_ema_swapped(t->opts.ema);
    wf_status status = hook->run(t, hook->user);
    hook->ran = t->iteration;
    if (!swapped && wf_ema_swapped(t->opts.ema))
        t->swapper = hook->name;
    /* The error is this rank's own, and gets the hook's name; one that came from another rank has its words already. */
    if (status == WF_OK || wf_comm_alive(t->comm) != WF_OK)
        return status;
    wf_error_save(&status, message, sizeof message);
    WF_FAIL(status, "%s, after iteration %lld: %s", hook->name, (long long)t->iteration, message);
}

/* Hooks before the report observe values, those after it read its means. */
static wf_status run_hooks(wf_trainer *t, bool after, bool last, bool *any)
{
    for (int64_t i = 0; i < t->n_hooks; i++) {
        wf_trainer_hook *hook = &t->hook[i];
        if (hook->when.after_report != after || hook->ran == t->iteration || !due(t, hook->when, last))
            continue;
        *any = true;
        WF_TRY(run_hook(t, hook));
    }
    return WF_OK;
}

static wf_status round_of_hooks(wf_trainer *t, bool last)
{
    bool any = false;
    WF_TRY(run_hooks(t, false, last, &any));
    /* A second round after the report ends the run reports only if a hook observed something. */
    if (due(t, t->opts.report, last) && (any || t->reported != t->iteration))
        WF_TRY(wf_trainer_report(t));
    return run_hooks(t, true, last, &any);
}

/* If a report ends the run, hooks that are due at the end follow, and what they observe is reported, too. */
static wf_status after_step(wf_trainer *t)
{
    const bool last = ended(t);
    WF_TRY(round_of_hooks(t, last));
    return !last && ended(t) ? round_of_hooks(t, true) : WF_OK;
}

static wf_status save(wf_trainer *t)
{
    if (!t->checkpoint)
        return WF_OK;
    const wf_status status = wf_checkpoint_step(t->checkpoint, t->iteration, &t->left);
    /* A full disk ends no run; but if the run is to leave, what is lost is the result of it. */
    if (status != WF_ERR_IO)
        return status;
    if (t->left) {
        wf_error_save(&t->lost, t->lost_message, sizeof t->lost_message);
        wf_error_clear();
        return WF_OK;
    }
    if (t->first)
        wf_log_write(WF_LOG_WARN, "iteration %lld is not saved: %s", (long long)t->iteration, wf_error_message());
    wf_error_clear();
    return WF_OK;
}

/* The checkpoint and the next step need the parameters, which a hook may have left swapped out: the step would train
 * the averages. After the last iteration they are as the hooks left them, since the program may go on with averages. */
static wf_status save_parameters(wf_trainer *t)
{
    if (!wf_ema_swapped(t->opts.ema))
        return save(t);
    /* Swaps the averages out, saves, and swaps them in again only if the program goes on with them. */
    WF_TRY(wf_ema_swap(t->opts.ema));
    WF_TRY(save(t));
    if (ended(t) || t->left)
        return wf_ema_swap(t->opts.ema);
    if (t->first && !t->told_swapper)
        wf_log_write(WF_LOG_WARN,
                     "%s, after iteration %lld, leaves the moving averages swapped in; the trainer swaps them out for "
                     "the next step: the hook should call wf_ema_swap once more",
                     t->swapper ? t->swapper : "a step", (long long)t->iteration);
    t->told_swapper = true;
    return WF_OK;
}

/* Epochs may have different lengths: the next one's is asked for when it begins. */
static void count_iteration(wf_trainer *t)
{
    t->iteration++;
    t->index++;
    t->epoch_ended = t->index == length_of(t, t->epoch);
    if (t->epoch_ended) {
        t->index = 0;
        t->epoch++;
        count_total(t);
    }
}

/* A point costs microseconds; ten a second are enough to see what goes on. Time since the last point, not iterations: a
 * fast loop would fill the file. */
static void watch_device(wf_trainer *t)
{
    if (!t->opts.device_statistics || !t->profiler || wf_profile_clock() - t->line.ns < LINE_POINT_NS)
        return;
    const wf_device_point point = wf_device_take(t->comm, t->nvml, &t->line);
    wf_profiler_point(t->profiler, &point);
}

/* The order matters: averages take the step's parameters, counts go up before anything is due, and the checkpoint comes
 * after all that the iteration has observed. */
static wf_status iterate(wf_trainer *t)
{
    WF_TRY(t->step(t, t->user));
    if (t->opts.ema)
        WF_TRY(wf_ema_update(t->opts.ema));
    count_iteration(t);
    WF_TRY(wf_trainer_share_step(t));
    watch_device(t);
    /* Time in hooks and saves is left out of the rate. */
    const double start = wf_trainer_clock();
    WF_TRY(after_step(t));
    WF_TRY(save_parameters(t));
    t->paused += wf_trainer_clock() - start;
    wf_trainer_progress(t, ended(t) || t->left);
    return WF_OK;
}

static wf_status run_training(wf_trainer *t)
{
    /* Set again for each run of one trainer, which may be continued. */
    t->start = wf_trainer_clock();
    t->begun = t->iteration;
    t->samples = 0;
    t->paused = 0;
    count_total(t);
    t->reports = (wf_trainer_shown){.since = t->start, .step = t->iteration};
    t->device = t->line = wf_device_begin(t->comm);
    WF_TRY(wf_trainer_share_begin(t));
    wf_trainer_progress_begin(t);
    while (!ended(t) && !t->left)
        WF_TRY(iterate(t));
    return WF_OK;
}

/* The profile is of this run alone. After a failure nothing is written: the ranks no longer talk. */
static wf_status run_measured(wf_trainer *t)
{
    if (!t->timeline && !t->opts.profile)
        return run_training(t);
    wf_profiler *profiler =
        wf_profiler_open(t->comm, (wf_profiler_opts){.timeline = t->timeline, .table = t->opts.profile});
    WF_NEED(profiler);
    t->profiler = profiler;
    const wf_status status = run_training(t);
    t->profiler = NULL;
    wf_trainer_progress_end(t);
    if (status == WF_OK)
        return wf_trainer_warn(t, wf_profiler_close(profiler), "the profile is not written");
    wf_profiler_drop(profiler);
    return status;
}

/* The barrier brings the failure of a rank in the last iteration to the others. Paths are tried before the first step:
 * a run of days should not end with a file that cannot be written. */
wf_status wf_trainer_run(wf_trainer *trainer)
{
    wf_trainer *t = trainer;
    wf_status kept;
    char message[1024];
    WF_NEED(t);
    WF_CHECK(t->start == 0, WF_ERR_STATE, "a step or a hook runs the trainer that runs it");
    WF_TRY(wf_trainer_try_paths(t));
    WF_TRY(wf_trainer_log_open(t));
    if (t->opts.device_statistics && !t->ctx->k->host)
        t->nvml = wf_nvml_open();
    /* The failure of a rank is posted, so that the others end, too. */
    wf_status status = wf_comm_post_failure(t->comm, run_measured(t));
    wf_nvml_close(t->nvml);
    t->nvml = NULL;
    if (status == WF_OK)
        status = wf_barrier(t->comm);
    t->before = wf_trainer_seconds(t);
    t->start = 0;
    wf_trainer_progress_end(t);
    /* Closing files may raise errors of its own. */
    wf_error_save(&kept, message, sizeof message);
    wf_trainer_log_close(t); /* a file that cannot be closed is a warning, and may not hide the error of the run */
    if (status != WF_OK && wf_error_code() != status)
        WF_FAIL(status, "%s", message);
    if (status != WF_OK || t->lost == WF_OK)
        return status;
    WF_FAIL(t->lost, "%s", t->lost_message);
}

/* --- For steps and hooks ------------------------------------------------------------------------------------------ */

/* Local: nothing is sent, and the rate that is shown is made of rank 0's numbers. */
void wf_trainer_add_samples(wf_trainer *trainer, int64_t count)
{
    if (trainer)
        trainer->samples += count;
}

/* Collected by the next report, where all ranks learn of it. */
void wf_trainer_stop(wf_trainer *trainer)
{
    if (trainer)
        trainer->asked = true;
}

bool wf_trainer_left(const wf_trainer *trainer)
{
    return trainer && trainer->left;
}

int64_t wf_trainer_iteration(const wf_trainer *trainer)
{
    return trainer ? trainer->iteration : 0;
}

int64_t wf_trainer_epoch(const wf_trainer *trainer)
{
    return trainer ? trainer->epoch : 0;
}

double wf_trainer_mean(const wf_trainer *trainer, const char *name)
{
    const wf_sum_entry *e = trainer ? wf_sums_find(&trainer->latest, name) : NULL;
    return e ? e->sum : NAN;
}

double wf_trainer_weight(const wf_trainer *trainer, const char *name)
{
    const wf_sum_entry *e = trainer ? wf_sums_find(&trainer->latest, name) : NULL;
    return e ? e->weight : 0;
}

double wf_trainer_seconds(const wf_trainer *trainer)
{
    if (!trainer)
        return 0;
    return trainer->before + (trainer->start > 0 ? wf_trainer_clock() - trainer->start : 0);
}

double wf_trainer_best(const wf_trainer *trainer)
{
    return trainer ? wf_early_stop_best(trainer->best.stop) : NAN;
}

int64_t wf_trainer_best_iteration(const wf_trainer *trainer)
{
    return trainer ? trainer->best.iteration : 0;
}

wf_comm *wf_trainer_comm(const wf_trainer *trainer)
{
    return trainer ? trainer->comm : NULL;
}
