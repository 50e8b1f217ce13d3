/* The trainer: an optional loop around a program's own training step. It counts iterations and epochs, calls hooks at
 * intervals, makes means over all ranks, writes them as JSON lines, shows progress, stops early, keeps the best model,
 * and continues exactly from a checkpoint. A program that needs none of this writes its own loop.
 *
 *     static wf_status step(wf_trainer *trainer, void *user)
 *     {
 *         ... wf_iter_next, wf_apply, a loss, wf_optim_step ...
 *         wf_trainer_observe_var(trainer, "loss", loss, batch.size);
 *         wf_trainer_add_samples(trainer, batch.global);
 *         return wf_tape_reset(tape);
 *     }
 *
 *     wf_trainer *trainer = wf_trainer_new(comm, step, &mine, (wf_trainer_opts){
 *         .epoch_length = wf_iter_epoch_length(iter), .epochs = 10, .log = "log.jsonl", .progress = STDOUT_FILENO});
 *     wf_trainer_add_hook(trainer, "evaluate", evaluate, &mine, (wf_when){.epochs = 1});
 *     WF_MUST(wf_trainer_run(trainer));
 *
 * An iteration is: the step; the hooks that are due, in the order in which they were added; the report, if it is due;
 * the hooks with .after_report that are due; the checkpoint. All ranks make the same trainer, with the same hooks, so
 * step and hooks may call collective functions. An error that a step or a hook returns on one rank is the error of
 * wf_trainer_run on all ranks, and the communicator is dead afterwards.
 */
#ifndef WF_OPTIM_TRAINER_H
#define WF_OPTIM_TRAINER_H

#include "optim/checkpoint.h"
#include "optim/ema.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_trainer wf_trainer;

/* A step or a hook. `user` is what was given with it. Every rank calls it in the same iterations. */
typedef wf_status (*wf_train_function)(wf_trainer *trainer, void *user);

/* When something is due: after every so many iterations, at the end of every so many epochs, whenever such a share of
 * the run is over (0.1: ten times, by wf_trainer_share), and, with `end`, after the last iteration of the run, also
 * where the run stops early (but not where a signal ends it, as it will continue from there). Once an iteration at
 * most, whichever of them apply. */
typedef struct wf_when {
    int64_t iterations, epochs; /* 0: never for this reason */
    double share;               /* from 0 (never for this reason) to 1 */
    bool end;
    bool after_report; /* of a hook: runs behind the report, and sees its means */
} wf_when;

typedef struct wf_trainer_opts {
    int64_t epoch_length; /* iterations of an epoch: wf_iter_epoch_length; 0: there are no epochs */
    /* Iterations of each epoch, in place of epoch_length, where they are not all as long (wf_batch_opts.grows):
     * wf_iter_length_at, with the iterator as length_user. Of positive length, the same on all ranks. */
    int64_t (*length_at)(void *user, int64_t epoch);
    void *length_user;
    int64_t epochs;     /* ends after this epoch; 0: no bound */
    int64_t iterations; /* ends after this iteration, if that is earlier; 0: no bound */
    double seconds;     /* ends after the first iteration after which all runs took this long by the clock of rank 0, if
                           that is earlier; 0: no bound. One of the three is required */
    wf_when report;     /* when means are made; default: every epoch, and at the end */
    const char *log;    /* file for reports, as JSON lines; rank 0 writes it. NULL: none */
    int progress;       /* file descriptor to which rank 0 shows its progress, as STDOUT_FILENO; 0: none. A bar on a
                           terminal whose width is known, otherwise lines. Duplicated */
    double line_seconds;     /* between two such lines; default 5 */
    const char *unit;        /* name of a sample in rates: "images"; default "samples" */
    const wf_optim *optim;   /* reports have its learning rate as "lr". Borrowed; may be NULL */
    wf_ema *ema;             /* updated after every step, and a part of the checkpoint; borrowed. NULL: none. If hooks
                                leave averages swapped in, they are swapped out before the checkpoint and the next step,
                                with a line; after the last step they stay as the hooks left them */
    const char *timeline;    /* the run writes its time line here (optim/profiler.h); NULL: none. Copied */
    int profile;             /* file descriptor for a table of where its time went; 0: none */
    const char *tensorboard; /* folder in which rank 0 makes a file of events for TensorBoard, a new one for every run
                                (optim/tensorboard.h): the numbers of reports, what hooks show. NULL: none. Copied */
    /* Reports, and with them log, progress and events, have means over ranks of "device/cpu_percent" (processor time of
     * all threads of a process; one core is 100), "device/resident_mib" and "device/pool_mib" (memory of the process,
     * and reserved by the context's pool, on a GPU with the pinned memory of the host), "device/sent_mib_per_second"
     * (wf_traffic.bytes_sent), "device/setup_seconds" (the three of wf_ctx_setup_seconds together, so far), and on
     * GPUs, of the whole device, "device/gpu_percent" (use), "device/gpu_mib" (memory), "device/gpu_celsius" and
     * "device/gpu_watts", as NVIDIA's NVML tells them; what it does not tell is left out. Use, rates and processor time
     * are those since the report before, or as NVML takes them; the rest are those at the report. The time line has
     * them of every rank, ten times a second at most. */
    bool device_statistics;
    bool finite; /* a mean that is not finite ends the run with WF_ERR_NUMERIC */
} wf_trainer_opts;

/* The communicator has all ranks that train, and is borrowed; strings are copied. Local. */
wf_trainer *wf_trainer_new(wf_comm *comm, wf_train_function step, void *user, wf_trainer_opts opts);
void wf_trainer_free(wf_trainer *trainer);

/* Adds a hook, whose name is shown where it fails. Local. */
wf_status wf_trainer_add_hook(wf_trainer *trainer, const char *name, wf_train_function hook, void *user, wf_when when);

typedef struct wf_best_opts {
    bool larger;      /* larger values are better (accuracy); default: smaller values are better (loss) */
    double least;     /* an improvement must be larger than this; default 0 */
    int64_t patience; /* reports of the value in a row without an improvement, after which the run stops; 0: it does
                         not stop */
    wf_layer *model;  /* saved to `path` at every improvement (wf_save); borrowed. NULL: no model is kept */
    const char *path;
    bool averages; /* the file has the averages of wf_trainer_opts.ema in place of the parameters, for a hook that
                      evaluates these (wf_ema_swap) */
} wf_best_opts;
/* Watches the mean of this name: keeps the model with the best one, and stops early. A path that cannot be written is
 * an error of wf_trainer_run before its first step (WF_ERR_IO; also those of the time line and of TensorBoard); a save
 * that fails later is a warning, and the file has the best model before. All ranks decide by the same mean over all of
 * them. WF_ERR_STATE if a value is watched already. Local. */
wf_status wf_trainer_keep_best(wf_trainer *trainer, const char *name, wf_best_opts opts);
/* The best mean, NaN before the first report of it, and the iteration in which it was reported. */
double wf_trainer_best(const wf_trainer *trainer);
int64_t wf_trainer_best_iteration(const wf_trainer *trainer);
/* Loads the best model from its file into the model. WF_ERR_STATE if none was kept yet. Collective. */
wf_status wf_trainer_load_best(wf_trainer *trainer) WF_NODISCARD;

/* Adds the trainer to the checkpoint, as "trainer", and its averages, as "ema", and saves after every iteration in
 * which a save is due. Call it once, then wf_checkpoint_load_latest, which continues the trainer too, then
 * wf_trainer_run. A save that fails with WF_ERR_IO is a warning, and training goes on; the last one, after a signal, is
 * the error of wf_trainer_run on all ranks. Borrowed. Local. */
wf_status wf_trainer_set_checkpoint(wf_trainer *trainer, wf_checkpoint *checkpoint);
/* The state of the trainer, as a wf_archive_visit: counts, sums that were observed since the last report, the newest
 * means, the best value, and the length of the log, which is cut to it when the run continues; a log that has become
 * shorter is cut to its last whole line, with a warning. Where epochs have another length than when it was saved, the
 * place in the epoch is rounded as wf_iter_archive does. Collective. */
wf_status wf_trainer_visit(void *trainer, wf_archive *archive) WF_NODISCARD;

/* Runs until the last iteration, an early stop, or a signal (wf_checkpoint_opts.signals). Collective. */
wf_status wf_trainer_run(wf_trainer *trainer) WF_NODISCARD;
/* Returns true if a signal ended the run and the program should exit. If wf_trainer_run was WF_OK, all is saved
 * (WF_CHECKPOINT_EXIT); otherwise the last save failed (WF_CHECKPOINT_UNSAVED_EXIT). */
bool wf_trainer_left(const wf_trainer *trainer);

/* --- For steps and hooks ------------------------------------------------------------------------------------------ */

/* Observes a mean over `weight` samples of this rank; the next report has the mean over all samples of all ranks since
 * the last one. Of a loss on a scattered batch, which after wf_optim_step is the mean over all ranks, `weight` is this
 * rank's samples, too. Weight 0 is fine. Local. */
wf_status wf_trainer_observe(wf_trainer *trainer, const char *name, double mean, double weight) WF_NODISCARD;
/* Like wf_trainer_observe, with a variable of one element, which is read later, so that the step does not wait for the
 * device; not in a captured step. */
wf_status wf_trainer_observe_var(wf_trainer *trainer, const char *name, const wf_var *var, double weight) WF_NODISCARD;
/* Samples of all ranks that this iteration used; for the rate. Local. */
void wf_trainer_add_samples(wf_trainer *trainer, int64_t count);
/* Asks for the end of the run. One rank may ask: all of them stop after their next report. Local. */
void wf_trainer_stop(wf_trainer *trainer);
/* A line of rank 0 to opts.progress, above the bar; nothing on other ranks, and where there is no such file. Local. */
void wf_trainer_print(wf_trainer *trainer, const char *format, ...) WF_PRINTF(2, 3);
/* For opts.tensorboard, at this iteration: wf_tensorboard_image and wf_tensorboard_histogram of what rank 0 has;
 * nothing on other ranks, and where there is no such folder. A file that cannot be written is a warning, and gets no
 * more. wf_trainer_histograms: of every parameter of the model, by its path; of one that ranks share by parts, rank 0's
 * part. Local. */
wf_status wf_trainer_image(wf_trainer *trainer, const char *name, const wf_tensor *x, int64_t rows, int64_t cols,
                           double lo, double hi) WF_NODISCARD;
wf_status wf_trainer_histogram(wf_trainer *trainer, const char *name, const wf_tensor *x) WF_NODISCARD;
wf_status wf_trainer_histograms(wf_trainer *trainer, wf_layer *model) WF_NODISCARD;

/* Completed iterations and epochs. A hook sees those up to and including the step before it, a step those before it. */
int64_t wf_trainer_iteration(const wf_trainer *trainer);
int64_t wf_trainer_epoch(const wf_trainer *trainer);
/* The share of the run that is over, from 0 to 1 and never less than before, by the bound that is nearest: for what
 * changes over a run whose number of iterations is unknown, as a learning rate does. The same on all ranks. Local. */
double wf_trainer_share(const wf_trainer *trainer);
/* The mean of this name in the newest report that has it, and its samples over all ranks; NaN and 0 before. */
double wf_trainer_mean(const wf_trainer *trainer, const char *name);
double wf_trainer_weight(const wf_trainer *trainer, const char *name);
/* Seconds of all its runs so far, also before a checkpoint was loaded. */
double wf_trainer_seconds(const wf_trainer *trainer);
wf_comm *wf_trainer_comm(const wf_trainer *trainer); /* borrowed */

#ifdef __cplusplus
}
#endif

#endif
