/* Learning-rate schedules: lr = base * factor(t), t the number of updates made. An optimizer has one schedule; setting
 * another replaces it. Local. */
#ifndef WF_OPTIM_SCHEDULE_H
#define WF_OPTIM_SCHEDULE_H

#include "optim/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_schedule_kind {
    WF_SCHEDULE_CONSTANT = 0,
    WF_SCHEDULE_STEP,        /* gamma^floor(t / every) */
    WF_SCHEDULE_EXPONENTIAL, /* gamma^t */
    WF_SCHEDULE_COSINE,      /* end + (1 - end)(1 + cos(pi t / total)) / 2, `end` after total */
    WF_SCHEDULE_POLYNOMIAL,  /* end + (1 - end)(1 - t / total)^power, `end` after total */
    WF_SCHEDULE_RESTARTS,    /* cosine over total updates, then again from 1, each time `power` times as long
                                (Loshchilov and Hutter 2017) */
} wf_schedule_kind;

typedef struct wf_schedule_opts {
    wf_schedule_kind kind;
    int64_t warmup; /* first updates: factor rises linearly as (t + 1) / warmup; t of the kind counts from its end */
    double gamma;   /* step, exponential: default 0.1 and 0.999 */
    int64_t every;  /* step: required */
    int64_t total;  /* cosine, polynomial, restarts: required */
    double power;   /* polynomial, restarts: default 1; of restarts at least 1 */
    double end;     /* factor at the end: default 0 */
    /* Linear scaling (Goyal et al. 2017): the size of the batch over that for which lr was found, as in
     * wf_comm_size(comm) * 64 / 256.0. The factor of the kind is multiplied by it, and that of warm-up rises from 1 (lr
     * as it was found) to it: 1 + (scale - 1) t / warmup. Default: none. */
    double scale;
} wf_schedule_opts;

/* Returns optim, so that calls nest. NULL if an option is invalid; optim is then freed. */
wf_optim *wf_lr_schedule(wf_optim *optim, wf_schedule_opts opts);

#ifdef __cplusplus
}
#endif
#endif
