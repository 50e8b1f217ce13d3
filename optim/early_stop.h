/* Early stopping: ends training on all ranks at the same time when a metric no longer improves. */
#ifndef WF_OPTIM_EARLY_STOP_H
#define WF_OPTIM_EARLY_STOP_H

#include "comm/comm.h"
#include "core/site.h"

#ifdef __cplusplus
extern "C" {
#endif

struct wf_archive;

typedef struct wf_early_stop_opts {
    int64_t patience; /* observations in a row without an improvement, after which to stop; default 5 */
    double least;     /* an improvement must be larger than this; default 0 */
    bool larger;      /* larger values are better (accuracy); default: smaller values are better (loss) */
} wf_early_stop_opts;

typedef struct wf_early_stop wf_early_stop;

/* The communicator is borrowed. WF_ERR_ARGUMENT for a negative option. Local. */
wf_early_stop *wf_early_stop_new(wf_comm *comm, wf_early_stop_opts opts);
void wf_early_stop_free(wf_early_stop *stop);

/* Observes a mean over `weight` samples of this rank (0 if it has none). The decision uses the mean over the samples
 * of all ranks, as wf_evaluator computes it, so *stops is the same on all ranks. NaN is no improvement. Collective. */
WF_PLACED wf_status wf_early_stop_observe(wf_early_stop *stop, double mean, double weight, bool *stops) WF_NODISCARD;
/* The best mean so far; NaN before the first. */
double wf_early_stop_best(const wf_early_stop *stop);
/* Saves and loads the best mean and the observations since, as a wf_archive_visit. */
wf_status wf_early_stop_visit(void *stop, struct wf_archive *archive) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
