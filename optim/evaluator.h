/* Metrics over all ranks: every sample counts once, whatever the number of samples and of ranks. */
#ifndef WF_OPTIM_EVALUATOR_H
#define WF_OPTIM_EVALUATOR_H

#include "comm/comm.h"
#include "core/site.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Named sums: added locally, and summed over the ranks at the end. The result is not a mean of means: each value has
 * the weight of its samples. A rank without samples adds nothing and still calls wf_evaluator_finish. For
 * observations during training, add at every step and finish at every report. */
typedef struct wf_evaluator wf_evaluator;

/* Local. The communicator is borrowed. */
wf_evaluator *wf_evaluator_new(wf_comm *comm);
void wf_evaluator_free(wf_evaluator *evaluator);

/* wf_evaluator_add adds a mean over `weight` samples of this rank, wf_evaluator_add_sum a sum over them. Weight 0
 * adds the name alone, and the value is ignored. Names have up to 63 characters. Local. A loss that is this rank's
 * part of a mean over a scattered batch is wf_evaluator_add_sum(e, name, wf_item(loss) * batch.global, batch.size). */
wf_status wf_evaluator_add(wf_evaluator *evaluator, const char *name, double mean, double weight) WF_NODISCARD;
wf_status wf_evaluator_add_sum(wf_evaluator *evaluator, const char *name, double sum, double weight) WF_NODISCARD;

/* Sums over the ranks, in rank order, so that all ranks have the same bits. Values that are added afterwards belong
 * to the next round. The ranks need not have the same names. Collective. */
WF_PLACED wf_status wf_evaluator_finish(wf_evaluator *evaluator) WF_NODISCARD;

/* The results of the last wf_evaluator_finish, in the order in which names came up, rank 0's first; the same on all
 * ranks. Mean and weight by name: NaN and 0 where there is none of that name, a mean over weight 0 is NaN. */
int64_t wf_evaluator_count(const wf_evaluator *evaluator);
const char *wf_evaluator_name(const wf_evaluator *evaluator, int64_t i); /* borrowed; NULL out of range */
double wf_evaluator_mean(const wf_evaluator *evaluator, const char *name);
double wf_evaluator_weight(const wf_evaluator *evaluator, const char *name);

/* The result of one rank, in a format of the caller's. */
typedef struct wf_finding {
    const void *data;
    size_t bytes;
} wf_finding;
typedef wf_status (*wf_aggregate)(void *user, int ranks, const wf_finding *findings);

/* For metrics that are not means, such as a confusion matrix or a ranking: every rank gives its own result, and all
 * ranks call `aggregate` with the results of all ranks in rank order (borrowed during the call), so all get the same
 * answer. An error of `aggregate` on one rank is an error on all. Collective. */
WF_PLACED wf_status wf_evaluate_all(wf_comm *comm, const void *found, size_t bytes, wf_aggregate aggregate,
                                    void *user) WF_NODISCARD;

/* Makes running statistics and other values that are not trained equal on all ranks: their mean, in which a rank has
 * the weight `weight` (the number of samples that it has seen; 1 on all ranks gives the plain mean). A running
 * variance avg_var of a layer that also has avg_mean becomes the variance of the samples of all ranks together,
 * which includes the squared distances between the ranks' means. Computed in double. The ranks have the same model.
 * Collective. */
WF_PLACED wf_status wf_allreduce_persistent(wf_comm *comm, wf_layer *model, double weight) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
