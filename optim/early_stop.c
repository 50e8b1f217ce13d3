/* Early stopping: compares a mean over all ranks with the best one so far, so that all ranks stop at the same time.
 * Called by programs after an evaluation. It ends nothing itself. Its state goes into checkpoints
 * (wf_early_stop_visit), so a run that goes on stops where it would have. */
#include "optim/early_stop_impl.h"

#include "comm/comm_author.h"
#include "core/archive.h"
#include "core/context_author.h"
#include "core/opts.h"
#include "optim/evaluator.h"

#include <math.h>
#include <stdlib.h>

struct wf_early_stop {
    wf_comm *comm;
    wf_early_stop_opts opts;
    wf_evaluator *evaluator;
    double best;
    int64_t worse; /* observations since the best */
};

wf_early_stop *wf_early_stop_new(wf_comm *comm, wf_early_stop_opts opts)
{
    WF_NEED_NULL(comm);
    opts.patience = opts.patience ? opts.patience : 5;
    WF_CHECK_NULL(opts.patience > 0 && opts.least >= 0, WF_ERR_ARGUMENT,
                  "early stop with patience %lld and least improvement %g: should not be negative",
                  (long long)opts.patience, opts.least);
    wf_early_stop *stop = wf_calloc(wf_comm_ctx(comm), 1, sizeof *stop);
    wf_evaluator *evaluator = stop ? wf_evaluator_new(comm) : NULL;
    if (!evaluator) {
        free(stop);
        return wf_error_null();
    }
    *stop = (wf_early_stop){.comm = comm, .opts = opts, .evaluator = evaluator, .best = NAN};
    return stop;
}

void wf_early_stop_free(wf_early_stop *stop)
{
    if (!stop)
        return;
    wf_evaluator_free(stop->evaluator);
    free(stop);
}

/* An improvement has to be larger than `least`; equal is no improvement. */
static bool improves(const wf_early_stop *stop, double mean)
{
    /* The first observation is better than none; a mean that is no number never is. */
    if (isnan(mean) || isnan(stop->best))
        return !isnan(mean);
    return (stop->opts.larger ? mean - stop->best : stop->best - mean) > stop->opts.least;
}

/* For callers that have the mean already, as a study has. Local. */
void wf_early_stop_take(wf_early_stop *stop, double mean, bool *better, bool *stops)
{
    *better = improves(stop, mean);
    stop->best = *better ? mean : stop->best;
    stop->worse = *better ? 0 : stop->worse + 1;
    *stops = stop->worse >= stop->opts.patience;
}

wf_status wf_early_stop_observe(wf_early_stop *stop, double mean, double weight, bool *stops)
{
    static const char *const name = "observed";
    WF_NEED(stop);
    const wf_status status =
        stops ? wf_evaluator_add(stop->evaluator, name, mean, weight) : wf_error_take("stops", __FILE__, __LINE__);
    /* A rank with a wrong call tells the others, which would wait in the sum below. */
    WF_TRY(wf_comm_post_failure(stop->comm, status));
    /* Every rank gets the same mean, so all take the same decision. */
    WF_TRY(wf_evaluator_finish(stop->evaluator));
    bool better;
    wf_early_stop_take(stop, wf_evaluator_mean(stop->evaluator, name), &better, stops);
    return WF_OK;
}

double wf_early_stop_best(const wf_early_stop *stop)
{
    return stop ? stop->best : NAN;
}

wf_status wf_early_stop_visit(void *stop, wf_archive *archive)
{
    wf_early_stop *s = stop;
    WF_NEED(s);
    WF_NEED(archive);
    WF_TRY(wf_archive_f64(archive, "best", &s->best));
    WF_TRY(wf_archive_i64(archive, "worse", &s->worse));
    WF_CHECK(s->worse >= 0, WF_ERR_FORMAT, "the archive holds %lld observations without an improvement",
             (long long)s->worse);
    return WF_OK;
}
