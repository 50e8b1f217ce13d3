/* The trainer's parts, for this folder. */
#ifndef WF_OPTIM_TRAINER_IMPL_H
#define WF_OPTIM_TRAINER_IMPL_H

#include "comm/comm_author.h"
#include "core/context_author.h"
#include "optim/device_stats_impl.h"
#include "optim/early_stop_impl.h"
#include "optim/evaluator_impl.h"
#include "optim/profiler_impl.h"
#include "optim/tensorboard.h"
#include "optim/trainer.h"

#include <stdio.h>

#define WF_TRAINER_WAITING 64 /* observed variables that are not read yet */
#define WF_TRAINER_LINE    1024
#define WF_TRAINER_DEVICE  "device/" /* in front of statistics of the device */

typedef struct wf_trainer_hook {
    char *name;
    wf_train_function run;
    void *user;
    wf_when when;
    int64_t ran; /* the last iteration in which it was called */
} wf_trainer_hook;

typedef struct wf_trainer_variable {
    char name[WF_SUM_NAME];
    wf_tensor *value;
    double weight;
} wf_trainer_variable;

typedef struct wf_trainer_watch {
    char *name, *path;
    wf_layer *model;
    bool averages;
    wf_early_stop *stop;
    int64_t iteration; /* of the best; 0: none yet */
} wf_trainer_watch;

/* What rank 0 shows. */
typedef struct wf_trainer_shown {
    bool bar, drawn;       /* drawn: a bar is in the current line of the terminal */
    double last;           /* time of the last bar or line; 0: none in this run */
    double since;          /* begin of the time over which the rate is taken */
    double paused;         /* of it, in hooks */
    int64_t samples, step; /* at that begin */
    double rate;
} wf_trainer_shown;

/* How much of the run is over; the same on all ranks (trainer_share.c). */
typedef struct wf_trainer_part {
    double now, last;     /* after this iteration and after the one before it, 0 to 1 */
    double seconds, each; /* of all runs at the last look at rank 0's clock; of an iteration before it */
    int64_t at, next;     /* the iterations of this look and of the next one */
} wf_trainer_part;

struct wf_trainer {
    wf_comm *comm;
    wf_ctx *ctx;
    bool first; /* rank 0 */
    wf_train_function step;
    void *user;
    wf_trainer_opts opts;
    char *log_path, *timeline, *board_folder;
    char unit[64];
    wf_trainer_hook *hook;
    int64_t n_hooks;
    const char *swapper; /* name of the hook that swapped the averages in last; NULL: none */
    bool told_swapper;
    wf_checkpoint *checkpoint;
    wf_trainer_watch best;

    int64_t iteration, epoch, index; /* index: iterations made of the epoch */
    int64_t reported;                /* the iteration of the last report */
    bool epoch_ended;                /* by the last iteration */
    int64_t total;                   /* the iteration after which the run ends; 0: time alone bounds it */
    bool stopping;                   /* the run is to end; the same on all ranks */
    bool asked;                      /* this rank asks for it */
    bool left;
    wf_status lost; /* of the save after a signal, with its message; the communicator lives */
    char lost_message[512];
    wf_evaluator *evaluator; /* since the last report */
    wf_sums latest;          /* the newest mean of each name, as sum and weight */
    wf_trainer_variable waiting[WF_TRAINER_WAITING];
    int n_waiting;

    FILE *out;             /* rank 0: opts.progress; NULL: nothing is shown */
    FILE *log;             /* rank 0 */
    wf_tensorboard *board; /* rank 0, during a run */
    int64_t log_bytes;     /* of it; while loading, of the log that was saved */
    int64_t samples;       /* in this run */
    int64_t begun;         /* the first iteration of this run */
    double start, paused;  /* of this run: clock, seconds in hooks and reports */
    double before;         /* seconds of earlier runs */
    wf_trainer_part share;
    wf_device_since device, line;    /* from the report before, from the last point of the time line */
    wf_nvml *nvml;                   /* during a run with device_statistics on a GPU; NULL: nothing to ask */
    wf_profiler *profiler;           /* during a run with a time line or a table; NULL: none */
    wf_trainer_shown shown, reports; /* reports: the rate in the log */
};

/* A clock that never goes back, in seconds. */
double wf_trainer_clock(void);
/* The last iteration of the run, as far as is known; 0: time alone bounds it. */
int64_t wf_trainer_total(const wf_trainer *t);
/* The rate since the last call with the same record; samples a second, or iterations where none are counted. */
double wf_trainer_rate(const wf_trainer *t, wf_trainer_shown *since);
const char *wf_trainer_rate_unit(const wf_trainer *t);

/* --- trainer_share.c --- */
/* At the begin of a run and after each of its iterations. Collective. */
wf_status wf_trainer_share_begin(wf_trainer *t) WF_NODISCARD;
wf_status wf_trainer_share_step(wf_trainer *t) WF_NODISCARD;
bool wf_trainer_has_epochs(const wf_trainer *t);
/* Returns true after the iteration that ends the run by opts.seconds. */
bool wf_trainer_time_over(const wf_trainer *t);
/* Returns true if the last iteration ended a multiple of this share. */
bool wf_trainer_share_due(const wf_trainer *t, double each);

/* --- trainer_report.c --- */
/* Reads the variables that were observed. Local. */
wf_status wf_trainer_read(wf_trainer *t) WF_NODISCARD;
void wf_trainer_forget(wf_trainer *t);
/* Statistics of the device are of one report: leaves them out of the newest means. Local. */
void wf_trainer_forget_device(wf_trainer *t);
/* Makes the means, writes them, and decides by them. Collective. */
wf_status wf_trainer_report(wf_trainer *t) WF_NODISCARD;
/* Before the first step: the files of the best model and the time line can be written. Collective. */
wf_status wf_trainer_try_paths(wf_trainer *t) WF_NODISCARD;
/* An error of a file, which all ranks have, is a warning. */
wf_status wf_trainer_warn(const wf_trainer *t, wf_status status, const char *what) WF_NODISCARD;
/* Opens the log and the file of events; the same error on all ranks. Collective. */
wf_status wf_trainer_log_open(wf_trainer *t) WF_NODISCARD;
void wf_trainer_log_close(wf_trainer *t);

/* --- trainer_board.c: rank 0 alone has a file of events. Local --- */
wf_status wf_trainer_board_open(wf_trainer *t) WF_NODISCARD;
void wf_trainer_board_close(wf_trainer *t);
/* A number of a report. */
wf_status wf_trainer_board_point(wf_trainer *t, const char *name, double value) WF_NODISCARD;

/* --- trainer_progress.c: nothing on other ranks than 0 --- */
wf_status wf_trainer_progress_open(wf_trainer *t) WF_NODISCARD;
void wf_trainer_progress_begin(wf_trainer *t);
/* Shows it where it is time to, or the last time. */
void wf_trainer_progress(wf_trainer *t, bool last);
/* Ends the line of a bar that is drawn. */
void wf_trainer_progress_end(wf_trainer *t);

#endif
