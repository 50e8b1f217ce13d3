/* Figures of merit over all ranks: every sample counts once, whatever the number of samples and of ranks. */
#ifndef WF_OPTIM_EVALUATOR_H
#define WF_OPTIM_EVALUATOR_H

#include "comm/comm.h"
#include "core/site.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sums under names, added where they arise and brought together at the end. Not a mean of means: each value weighs as
 * many samples as it stands for. A rank without samples adds nothing and joins in wf_evaluator_finish. Also for what is
 * observed while training: add at every step, finish at every report. */
typedef struct wf_evaluator wf_evaluator;

/* Local. The communicator is borrowed. */
wf_evaluator *wf_evaluator_new(wf_comm *comm);
void wf_evaluator_free(wf_evaluator *evaluator);

/* Notes the mean of something over `weight` samples of this rank, and the sum over them. Weight 0 adds the name alone,
 * whatever the value. Names have up to 63 characters. Local. A loss that is this rank's part of a mean over a scattered
 * batch is wf_evaluator_add_sum(e, name, wf_item(loss) * batch.global, batch.size). */
wf_status wf_evaluator_add(wf_evaluator *evaluator, const char *name, double mean, double weight) WF_NODISCARD;
wf_status wf_evaluator_add_sum(wf_evaluator *evaluator, const char *name, double sum, double weight) WF_NODISCARD;

/* Sums over the ranks, in rank order, so that all have the same bits; what is added from now on is another round. The
 * ranks need not have the same names. Collective. */
WF_PLACED wf_status wf_evaluator_finish(wf_evaluator *evaluator) WF_NODISCARD;

/* The results of the last wf_evaluator_finish, in the order in which names came up, rank 0's first; the same on all
 * ranks. Mean and weight by name: NaN and 0 where there is none of that name, a mean over weight 0 is NaN. */
int64_t wf_evaluator_count(const wf_evaluator *evaluator);
const char *wf_evaluator_name(const wf_evaluator *evaluator, int64_t i); /* borrowed; NULL out of range */
double wf_evaluator_mean(const wf_evaluator *evaluator, const char *name);
double wf_evaluator_weight(const wf_evaluator *evaluator, const char *name);

/* What one rank found, of any kind and size. */
typedef struct wf_finding {
    const void *data;
    size_t bytes;
} wf_finding;
typedef wf_status (*wf_aggregate)(void *user, int ranks, const wf_finding *findings);

/* For figures that are no means, such as a confusion matrix or a ranking: every rank finds something of its own, and
 * all call `aggregate` with what all ranks found, in rank order (borrowed during the call), so that all come to the
 * same result. An error of `aggregate` on one rank is one on all. Collective. */
WF_PLACED wf_status wf_evaluate_all(wf_comm *comm, const void *found, size_t bytes, wf_aggregate aggregate,
                                    void *user) WF_NODISCARD;

/* Makes the values that a model keeps and does not learn (running statistics) the same on all ranks: their mean, in
 * which a rank counts `weight` (how many samples it has seen; 1 on all of them is the plain mean). A running variance
 * avg_var beside an avg_mean becomes the variance of all ranks' samples together, so the squared distance of the ranks'
 * means is in it. Computed in double. The ranks have the same model. Collective. */
WF_PLACED wf_status wf_allreduce_persistent(wf_comm *comm, wf_layer *model, double weight) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
