/* The end of training when nothing improves any more: at the same time on all ranks. */
#ifndef WF_OPTIM_EARLY_STOP_H
#define WF_OPTIM_EARLY_STOP_H

#include "comm/comm.h"
#include "core/site.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_early_stop_opts {
    int64_t patience; /* observations in a row without an improvement, after which to stop; default 5 */
    double least;     /* what counts as an improvement is more than this; default 0 */
    bool larger;      /* larger is better, as of an accuracy; default: smaller, as of a loss */
} wf_early_stop_opts;

typedef struct wf_early_stop wf_early_stop;

/* The communicator is borrowed. WF_ERR_ARGUMENT for a negative option. Local. */
wf_early_stop *wf_early_stop_new(wf_comm *comm, wf_early_stop_opts opts);
void wf_early_stop_free(wf_early_stop *stop);

/* Observes a mean over `weight` samples of this rank (none: 0). What is judged is the mean over all ranks' samples, as
 * of wf_evaluator, so *stops is the same on all ranks; NaN is no improvement. Collective. */
WF_PLACED wf_status wf_early_stop_observe(wf_early_stop *stop, double mean, double weight, bool *stops) WF_NODISCARD;
/* The best mean so far; NaN before the first. */
double wf_early_stop_best(const wf_early_stop *stop);

#ifdef __cplusplus
}
#endif

#endif
