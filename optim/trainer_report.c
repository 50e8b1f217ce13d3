/* Reports: means over all ranks, the log, the best model, and the decision to stop. A report is collective: it is due
 * on all ranks in the same iteration, and is the only place at which observations are brought together. */
#include "comm/file_author.h"
#include "core/log.h"
#include "layers/save.h"
#include "optim/json_impl.h"
#include "optim/trainer_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* Not a name that a program would take: a rank asks for the end under it. */
static const char *const asks = "\001stop";

/* --- What was observed -------------------------------------------------------------------------------------------- */

/* Values that wait are dropped, after an error or at the end. */
void wf_trainer_forget(wf_trainer *t)
{
    for (int i = 0; i < t->n_waiting; i++)
        wf_tensor_free(t->waiting[i].value);
    t->n_waiting = 0;
}

/* Reading a number waits for the device: done at reports, not at every observation. */
wf_status wf_trainer_read(wf_trainer *t)
{
    wf_status status = WF_OK;
    for (int i = 0; status == WF_OK && i < t->n_waiting; i++) {
        const wf_trainer_variable *v = &t->waiting[i];
        status = wf_evaluator_add(t->evaluator, v->name, wf_tensor_item(v->value), v->weight);
    }
    wf_trainer_forget(t);
    return status;
}

wf_status wf_trainer_observe(wf_trainer *trainer, const char *name, double mean, double weight)
{
    wf_trainer *t = trainer;
    WF_NEED(t);
    WF_NEED(name);
    for (int i = 0; i < t->n_waiting; i++)
        if (strcmp(t->waiting[i].name, name) == 0) { /* a sum is made in the order of its observations */
            WF_TRY(wf_trainer_read(t));
            break;
        }
    return wf_evaluator_add(t->evaluator, name, mean, weight);
}

wf_status wf_trainer_observe_var(wf_trainer *trainer, const char *name, const wf_var *var, double weight)
{
    wf_trainer *t = trainer;
    WF_NEED(t);
    WF_NEED(name);
    WF_NEED(var);
    WF_CHECK(wf_shape_count(wf_var_shape(var)) == 1, WF_ERR_SHAPE, "%s is observed, and has %lld elements", name,
             (long long)wf_shape_count(wf_var_shape(var)));
    /* Weight 0 adds nothing. */
    WF_TRY(wf_evaluator_add(t->evaluator, name, 0, 0)); /* checks the name, and keeps the order of names */
    if (t->n_waiting == WF_TRAINER_WAITING)
        WF_TRY(wf_trainer_read(t));
    wf_tensor *value = wf_keep(var);
    WF_NEED(value);
    wf_trainer_variable *v = &t->waiting[t->n_waiting++];
    *v = (wf_trainer_variable){.value = value, .weight = weight};
    memcpy(v->name, name, strlen(name));
    return WF_OK;
}

/* --- The log ------------------------------------------------------------------------------------------------------ */

/* The end of the last whole line in the first `bytes` bytes; once, when a run continues. */
static int64_t end_of_lines(FILE *log, int64_t bytes)
{
    int64_t end = 0;
    rewind(log);
    for (int64_t at = 1; at <= bytes; at++)
        if (getc(log) == '\n')
            end = at;
    return end;
}

/* A run that continues cuts off what was written after its checkpoint. A log that lost its end, as the last lines
 * before a loss of power do, may also have half a line. */
static wf_status continue_log(wf_trainer *t)
{
    fseeko(t->log, 0, SEEK_END);
    const int64_t bytes = ftello(t->log);
    const int64_t end = end_of_lines(t->log, bytes < t->log_bytes ? bytes : t->log_bytes);
    if (end < t->log_bytes)
        wf_log_write(WF_LOG_WARN,
                     "%s: had %" PRId64 " bytes at the checkpoint, and %" PRId64
                     " in whole lines are left: it continues there",
                     t->log_path, t->log_bytes, end);
    WF_CHECK(end >= bytes || ftruncate(fileno(t->log), end) == 0, WF_ERR_IO,
             "%s: cannot be cut to %" PRId64 " bytes: %s", t->log_path, end, strerror(errno));
    t->log_bytes = end;
    fseeko(t->log, 0, SEEK_END);
    return WF_OK;
}

/* A run that begins overwrites the log, one that continues keeps its lines. */
static wf_status open_log(wf_trainer *t)
{
    t->log = fopen(t->log_path, t->iteration > 0 ? "r+" : "w");
    if (!t->log && t->iteration > 0 && errno == ENOENT)
        t->log = fopen(t->log_path, "w+");
    WF_CHECK(t->log, WF_ERR_IO, "%s: cannot write: %s", t->log_path, strerror(errno));
    return t->iteration > 0 ? continue_log(t) : WF_OK;
}

static wf_status open_files(wf_trainer *t)
{
    if (t->log_path)
        WF_TRY(open_log(t));
    return wf_trainer_board_open(t);
}

/* Rank 0 has the files; the others learn whether they could be opened. */
wf_status wf_trainer_log_open(wf_trainer *t)
{
    if (!t->log_path && !t->board_folder)
        return WF_OK;
    const wf_status status = wf_bcast_status(t->comm, t->first ? open_files(t) : WF_OK, 0);
    if (status != WF_OK)
        wf_trainer_log_close(t);
    return status;
}

void wf_trainer_log_close(wf_trainer *t)
{
    if (t->log)
        fclose(t->log); /* every line was flushed */
    t->log = NULL;
    wf_trainer_board_close(t);
}

/* The numbers of a report, each of which `put` gets: one order for the log and for TensorBoard. */
typedef wf_status (*put_number)(wf_trainer *t, const char *name, double value);

static wf_status put_numbers(wf_trainer *t, put_number put)
{
    char rate[80];
    for (int64_t i = 0; i < wf_evaluator_count(t->evaluator); i++) {
        const char *name = wf_evaluator_name(t->evaluator, i);
        if (strcmp(name, asks) != 0 && wf_evaluator_weight(t->evaluator, name) > 0)
            WF_TRY(put(t, name, wf_evaluator_mean(t->evaluator, name)));
    }
    if (t->opts.optim)
        WF_TRY(put(t, "lr", wf_optim_lr(t->opts.optim)));
    snprintf(rate, sizeof rate, "%s_per_second", wf_trainer_rate_unit(t));
    return put(t, rate, t->reports.rate);
}

/* JSON has no number for what is not finite. */
static wf_status write_number(wf_trainer *t, const char *name, double value)
{
    fputs(", ", t->log);
    wf_json_text(t->log, name);
    if (isfinite(value))
        fprintf(t->log, ": %.9g", value);
    else
        fputs(": null", t->log);
    return WF_OK;
}

/* One line is one JSON object: a reader may follow the file while it grows. */
static wf_status write_line(wf_trainer *t)
{
    fprintf(t->log, "{\"iteration\": %" PRId64, t->iteration);
    if (wf_trainer_has_epochs(t))
        fprintf(t->log, ", \"epoch\": %" PRId64, t->epoch);
    WF_TRY(put_numbers(t, write_number));
    fprintf(t->log, ", \"elapsed_seconds\": %.3f}\n", wf_trainer_seconds(t));
    WF_CHECK(fflush(t->log) == 0, WF_ERR_IO, "%s: cannot write: %s", t->log_path, strerror(errno));
    /* Kept in checkpoints, so that a run that continues knows where to go on. */
    t->log_bytes = ftello(t->log);
    return WF_OK;
}

static wf_status write_report(wf_trainer *t)
{
    if (!t->log && !t->board)
        return WF_OK;
    wf_trainer_rate(t, &t->reports);
    if (t->log)
        WF_TRY(write_line(t));
    return t->board ? put_numbers(t, wf_trainer_board_point) : WF_OK;
}

/* --- Files that are written later --------------------------------------------------------------------------------- */

/* Checks that a file of this name can be created, without touching one that exists: creates a file of a longer name in
 * its folder, and removes it. */
static wf_status try_path(const char *path)
{
    char end[32], target[WF_FILE_PATH], probe[WF_FILE_PATH];
    snprintf(end, sizeof end, ".%ld", (long)getpid());
    WF_TRY(wf_file_target(path, end, target, probe));
    const int file = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno == EEXIST)
        return WF_OK; /* a file of the user's, which stays */
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    close(file);
    unlink(probe);
    return WF_OK;
}

/* Rank 0 writes all of these. */
static wf_status try_paths(const wf_trainer *t)
{
    if (t->best.path)
        WF_TRY(try_path(t->best.path));
    /* A time line is written into a file that is there; models take the place of theirs. */
    return t->timeline && access(t->timeline, W_OK) != 0 ? try_path(t->timeline) : WF_OK;
}

wf_status wf_trainer_try_paths(wf_trainer *t)
{
    return wf_bcast_status(t->comm, t->first ? try_paths(t) : WF_OK, 0);
}

/* An error that all ranks have and that ends no training: WF_OK with a warning. Others stay. */
wf_status wf_trainer_warn(const wf_trainer *t, wf_status status, const char *what)
{
    if (status != WF_ERR_IO || wf_comm_alive(t->comm) != WF_OK)
        return status;
    if (t->first)
        wf_log_write(WF_LOG_WARN, "iteration %" PRId64 ": %s: %s", t->iteration, what, wf_error_message());
    wf_error_clear();
    return WF_OK;
}

/* --- The report --------------------------------------------------------------------------------------------------- */

/* The values of this rank's device become means over ranks, as observed values do. */
static wf_status observe_device(wf_trainer *t)
{
    static const char *const words[WF_DEVICE_VALUES] = WF_DEVICE_WORDS;
    if (!t->opts.device_statistics)
        return WF_OK;
    const wf_device_point point = wf_device_take(t->comm, t->nvml, &t->device);
    for (int i = 0; i < WF_DEVICE_VALUES; i++) {
        char name[WF_SUM_NAME];
        /* A device that does not tell a value has weight 0, and no mean. */
        const bool told = isfinite(point.value[i]);
        snprintf(name, sizeof name, WF_TRAINER_DEVICE "%s", words[i]);
        WF_TRY(wf_evaluator_add(t->evaluator, name, told ? point.value[i] : 0, told));
    }
    return WF_OK;
}

void wf_trainer_forget_device(wf_trainer *t)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < t->latest.n; i++)
        if (strncmp(t->latest.item[i].name, WF_TRAINER_DEVICE, strlen(WF_TRAINER_DEVICE)) != 0)
            t->latest.item[kept++] = t->latest.item[i];
    t->latest.n = kept;
}

/* Means stay until the next report: between two reports hooks and the progress read them. */
static wf_status take_latest(wf_trainer *t)
{
    wf_trainer_forget_device(t);
    for (int64_t i = 0; i < wf_evaluator_count(t->evaluator); i++) {
        const char *name = wf_evaluator_name(t->evaluator, i);
        const double weight = wf_evaluator_weight(t->evaluator, name), mean = wf_evaluator_mean(t->evaluator, name);
        if (strcmp(name, asks) == 0 || weight == 0)
            continue;
        WF_TRY(wf_sums_add(t->ctx, &t->latest, name, 0, 0));
        wf_sum_entry *latest = wf_sums_find(&t->latest, name);
        latest->sum = mean;
        latest->weight = weight;
        /* Means are the same on all ranks, so all stop here. */
        WF_CHECK(!t->opts.finite || isfinite(mean), WF_ERR_NUMERIC, "iteration %" PRId64 ": %s is %g", t->iteration,
                 name, mean);
    }
    return WF_OK;
}

/* A hook may have left the averages swapped in, where they stay. */
static wf_status save_best(const wf_trainer *t)
{
    const bool swaps = t->best.averages && !wf_ema_swapped(t->opts.ema);
    if (swaps)
        WF_TRY(wf_ema_swap(t->opts.ema));
    const wf_status status =
        wf_trainer_warn(t, wf_save_over(t->comm, t->best.model, t->best.path), "the best model is not kept");
    return status == WF_OK && swaps ? wf_ema_swap(t->opts.ema) : status;
}

/* All ranks have the same mean, and come to the same verdict. */
static wf_status watch(wf_trainer *t)
{
    bool better = false, stops = false;
    wf_trainer_watch *best = &t->best;
    if (!best->stop || wf_evaluator_weight(t->evaluator, best->name) == 0)
        return WF_OK;
    wf_early_stop_take(best->stop, wf_evaluator_mean(t->evaluator, best->name), &better, &stops);
    if (better)
        best->iteration = t->iteration;
    if (better && best->model)
        WF_TRY(save_best(t));
    t->stopping = t->stopping || stops;
    return WF_OK;
}

/* The request to stop is an observation under a name of its own: the report's one reduction brings it to all. */
wf_status wf_trainer_report(wf_trainer *t)
{
    WF_TRY(wf_trainer_read(t));
    if (t->asked)
        WF_TRY(wf_evaluator_add(t->evaluator, asks, 1, 1));
    t->asked = false;
    WF_TRY(observe_device(t));
    WF_TRY(wf_evaluator_finish(t->evaluator));
    t->reported = t->iteration;
    t->stopping = t->stopping || wf_evaluator_weight(t->evaluator, asks) > 0;
    WF_TRY(take_latest(t));
    WF_TRY(write_report(t));
    return watch(t);
}

wf_status wf_trainer_load_best(wf_trainer *trainer)
{
    WF_NEED(trainer);
    const wf_trainer_watch *best = &trainer->best;
    WF_CHECK(best->model && best->iteration > 0, WF_ERR_STATE, "the trainer has kept no best model");
    return wf_load_over(trainer->comm, best->model, best->path);
}
