/* Search over settings, by Optuna: trials of a training with suggested settings, of which the best is kept.
 *
 *     static wf_status objective(wf_trial *trial, void *user, double *loss)
 *     {
 *         const double lr = wf_trial_suggest_float(trial, "lr", 1e-5, 1e-1, WF_STUDY_LOG);
 *         wf_status status = wf_trial_check(trial);
 *         for (int64_t epoch = 0; epoch < 10 && status == WF_OK; epoch++) {
 *             status = train_epoch(wf_trial_comm(trial), lr, loss);
 *             if (status == WF_OK)
 *                 status = wf_trial_report(trial, *loss, epoch);
 *             if (status == WF_OK && wf_trial_should_prune(trial))
 *                 return wf_trial_prune(trial);
 *         }
 *         return status;
 *     }
 *
 * An objective returns its errors, and the trial has failed; WF_MUST in it would end the job.
 *
 *     const wf_study_opts opts = {.storage = "mnist.db", .trials = 30, .groups = 2};
 *     wf_study *study = wf_study_open(comm, "mnist", opts);
 *     WF_MUST(wf_study_optimize(study, objective, user));
 *     WF_MUST(wf_study_best(study, &best));
 *
 * The ranks are divided into groups, each of which makes a trial at a time, so that several are made at once. Rank 0 of
 * a group starts a Python process with Optuna (3.0 or later) and talks to it; every rank of the group gets the same
 * values, bit for bit. Groups share the storage, a SQLite database or a journal file, which every rank 0 of a group
 * must see; Optuna itself and its dashboard read it too.
 *
 * Python is `python3`, or /usr/bin/python3 where that one has no Optuna; WEFT_PYTHON names another. Where there is
 * none, wf_study_open is WF_ERR_UNSUPPORTED on all ranks, with what to install. A Python that dies, or does not answer
 * within `timeout_ms`, is an error of all ranks of all groups (WF_ERR_IO, WF_ERR_TIMEOUT), and of every later call.
 *
 * A study goes on where it was stopped or killed: wf_study_open finds the trials in the storage. One that was running
 * when the job was killed is made again with the same settings: Optuna then lists it twice, as failed and as its retry,
 * and the study counts it once. It is made again three times at most: a trial that runs at the fourth kill, too, is
 * told as failed, with that as its reason, also where it only ran beside the trial whose process died.
 *
 * A trial fails if its value is NaN, or if any rank of its group has an error. It is then told as failed, with the
 * reason, counts as one of the trials, and the study goes on. The communicator of a trial is closed after an error, and
 * the next trial has a new one; so a trial works on wf_trial_comm alone, and frees before it ends what it made there. A
 * rank whose process dies ends the job, as everywhere; the study can be opened again, and makes the trial again, as
 * after a kill.
 *
 * With one group, or as long as no other group has told anything, the suggestions are those of Optuna's sampler of the
 * same seed, bit for bit. Group g of a study opened with n trials in the storage has the sampler's seed
 * seed + 65537 g + n, since the state of a sampler is not stored.
 *
 * Names, choices and the storage are UTF-8 (WF_ERR_ARGUMENT). In a text of an error, a byte that is none is replaced.
 *
 * "Collective" means by all ranks of the group, in the same order, unless "by all groups" is said.
 */
#ifndef WF_OPTIM_STUDY_H
#define WF_OPTIM_STUDY_H

#include "comm/comm.h"
#include "core/site.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_study wf_study;
typedef struct wf_trial wf_trial;

typedef enum wf_study_sampler {
    WF_SAMPLER_TPE = 0, /* with several groups it takes trials that run for bad ones (Optuna's constant_liar) */
    WF_SAMPLER_RANDOM,
    WF_SAMPLER_CMAES, /* needs Python's package cmaes */
    WF_SAMPLER_QMC,   /* needs Python's package scipy */
} wf_study_sampler;

typedef enum wf_study_pruner {
    WF_PRUNER_MEDIAN = 0, /* prunes what is worse than the median of the earlier trials at the same step */
    WF_PRUNER_NONE,
    WF_PRUNER_HALVING, /* successive halving */
    WF_PRUNER_HYPERBAND,
} wf_study_pruner;

typedef struct wf_study_opts {
    /* A file: SQLite's (its name ends in .db, .sqlite or .sqlite3) or a journal (.journal or .log). Made if it is not
     * there; may hold several studies. Default: memory, which takes one group and is gone with the study. */
    const char *storage;
    int64_t trials; /* of all groups and all runs, without those that were made again; default: no limit */
    int groups;     /* of ranks; default 1. Group g has the ranks r with r * groups / size == g */
    bool maximize;  /* larger values are better; default: smaller ones are. A study keeps its direction */
    wf_study_sampler sampler;
    int64_t seed;           /* of the sampler, below 2^32; default: another one every time, from the system */
    int64_t startup_trials; /* at random, before TPE, CMA-ES or the median is used; default Optuna's: 10, 1 and 5 */
    wf_study_pruner pruner;
    int64_t warmup_steps; /* of the median: a trial is not pruned before this step; default 0 */
    int64_t timeout_ms;   /* longest wait for an answer of Python; default 60000, and at most WEFT_TIMEOUT_MS */
} wf_study_opts;

/* Opens a study of this name in the storage, or makes it. The communicator is borrowed. WF_ERR_ARGUMENT for wrong
 * options, or those of a rank that differ from rank 0's, or a study that is there with the other direction;
 * WF_ERR_UNSUPPORTED if the sampler needs a package that is not there; WF_ERR_STATE if another job has the study open;
 * WF_ERR_IO if the storage cannot be read or written, or is a file of another kind, which is left as it is. Collective
 * over `comm`. */
WF_PLACED wf_study *wf_study_open(wf_comm *comm, const char *name, wf_study_opts opts);
/* A trial that is still open is told as failed. Does not wait for other ranks. */
void wf_study_close(wf_study *study);
int wf_study_group(const wf_study *study); /* of this rank: 0 to groups - 1 */

/* --- Trials --------------------------------------------------------------------------------------------------------
 */

/* Begins a trial; it belongs to the study until wf_study_tell. *trial is NULL once the study has its opts.trials; this
 * call then has waited for the last trials of the other groups. Collective. */
WF_PLACED wf_status wf_study_ask(wf_study *study, wf_trial **trial) WF_NODISCARD;
/* Ends the trial with the value of rank 0 of the group; pruned after wf_trial_prune, failed if a rank's value is NaN.
 * Where a rank of the group calls wf_study_tell_failed instead, all have told that. Returns the trial's own error, if
 * it has one (wf_trial_check), after it was told as failed. Collective. */
WF_PLACED wf_status wf_study_tell(wf_study *study, wf_trial *trial, double value) WF_NODISCARD;
/* Ends the trial as failed. `status` is not WF_OK, and this thread's last error is the reason that is stored; the ranks
 * that wait for this one in a call of wf_trial_comm, or of this trial, get it as their error. Collective. */
WF_PLACED wf_status wf_study_tell_failed(wf_study *study, wf_trial *trial, wf_status status) WF_NODISCARD;

/* Trains and puts the value into *value, which is the same on all ranks of the group. An error is told as that of the
 * trial. Called on all ranks of the group. */
typedef wf_status (*wf_study_objective)(wf_trial *trial, void *user, double *value);
/* Asks, calls the objective and tells until the study has its opts.trials (WF_ERR_ARGUMENT where that is 0). Collective
 * by all groups. */
WF_PLACED wf_status wf_study_optimize(wf_study *study, wf_study_objective objective, void *user) WF_NODISCARD;

int64_t wf_trial_number(const wf_trial *trial); /* Optuna's, from 0 */
/* The group's communicator for this trial, split from that of the study; borrowed. */
wf_comm *wf_trial_comm(const wf_trial *trial);
/* The trial's first error: of a wrong suggestion, of a rank that told the trial as failed, or of Python. Local. */
wf_status wf_trial_check(const wf_trial *trial) WF_NODISCARD;

/* How a range is divided. */
typedef struct wf_study_scale {
    bool log;
    double step; /* 0: every number of the range */
} wf_study_scale;
#define WF_STUDY_LINEAR  ((wf_study_scale){0})
#define WF_STUDY_LOG     ((wf_study_scale){.log = true})
#define WF_STUDY_STEP(s) ((wf_study_scale){.step = (s)}) /* low, low + s, ... */

/* A value of [low, high], both included. All ranks of the group give the same arguments, and get the same value. After
 * an error, which wf_trial_check and the verbs of this trial return, it is NaN, or 0. Asked for twice under one name, a
 * trial gives one value; WF_ERR_ARGUMENT with another range. Collective. */
double wf_trial_suggest_float(wf_trial *trial, const char *name, double low, double high, wf_study_scale scale);
/* Within +-2^53, since Optuna computes with doubles. */
int64_t wf_trial_suggest_int(wf_trial *trial, const char *name, int64_t low, int64_t high, wf_study_scale scale);
/* The place of the choice in the list; choices differ from each other. */
int wf_trial_suggest_categorical(wf_trial *trial, const char *name, const char *const *choices, int count);

/* Reports a value on the way, that of rank 0 of the group, for a step from 0 on; once a step. Collective. */
WF_PLACED wf_status wf_trial_report(wf_trial *trial, double value, int64_t step) WF_NODISCARD;
/* Returns true if the pruner would end this trial after what was reported so far; false after an error. Collective. */
bool wf_trial_should_prune(wf_trial *trial);
/* The trial will be told as pruned, with its last reported value. Returns WF_OK, for the end of an objective. Local, on
 * all ranks of the group. */
wf_status wf_trial_prune(wf_trial *trial);

/* --- Results -------------------------------------------------------------------------------------------------------
 */

typedef enum wf_study_state {
    WF_TRIAL_COMPLETE = 0,
    WF_TRIAL_PRUNED,
    WF_TRIAL_FAILED,
    WF_TRIAL_RUNNING,
    WF_TRIAL_WAITING, /* to be made again */
    WF_TRIAL_RETRIED, /* killed; a later row has this one as its retry_of */
} wf_study_state;

typedef enum wf_study_kind {
    WF_STUDY_FLOAT = 0,
    WF_STUDY_INT,
    WF_STUDY_CATEGORICAL,
} wf_study_kind;

typedef struct wf_study_param {
    const char *name;
    wf_study_kind kind;
    double real;      /* of a float and an int */
    int64_t integer;  /* of an int */
    const char *text; /* the choice; of a number, the number */
} wf_study_param;

typedef struct wf_study_row {
    int64_t number;
    wf_study_state state;
    double value;       /* NaN where there is none */
    double seconds;     /* that it took; NaN while it runs */
    int64_t retry_of;   /* the killed trial that this one makes again; -1: none */
    const char *reason; /* of a failure; else empty */
    int params;
    const wf_study_param *param; /* by name */
} wf_study_row;

/* All trials by number, of all groups. The rows belong to the study, and live until the next call of one of these three
 * functions. Collective. */
WF_PLACED wf_status wf_study_trials(wf_study *study, const wf_study_row **rows, int64_t *count) WF_NODISCARD;
/* The first of the complete trials with the best value; *best is NULL where none is complete. Collective. */
WF_PLACED wf_status wf_study_best(wf_study *study, const wf_study_row **best) WF_NODISCARD;

typedef struct wf_study_importance {
    const char *name;
    double share; /* 0 to 1 */
} wf_study_importance;

/* How much of the differences between complete trials each parameter explains alone, the largest first: the effect size
 * of the Kruskal-Wallis test, (H - k + 1) / (n - k), where the n values are divided into k groups, of a choice each, or
 * of quarters of the numbers. 0 where it is negative, and where there are too few trials to tell. Ranks and not values
 * are compared, so trials that ended badly do not outweigh the others. Optuna's own (optuna.importance) needs
 * scikit-learn; it can be asked through the storage. Collective. */
WF_PLACED wf_status wf_study_importances(wf_study *study, const wf_study_importance **list, int *count) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
