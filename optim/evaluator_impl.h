/* Lists of named sums, for this folder. */
#ifndef WF_OPTIM_EVALUATOR_IMPL_H
#define WF_OPTIM_EVALUATOR_IMPL_H

#include "core/archive.h"
#include "optim/evaluator.h"

#define WF_SUM_NAME 64

typedef struct wf_sum_entry {
    char name[WF_SUM_NAME];
    double sum, weight;
} wf_sum_entry;

typedef struct wf_sums {
    wf_sum_entry *item;
    int64_t n, cap;
} wf_sums;

struct wf_evaluator {
    wf_comm *comm;
    wf_sums local, result;
};

wf_sum_entry *wf_sums_find(const wf_sums *sums, const char *name);
/* Adds to the entry of this name, which is made if there is none. */
wf_status wf_sums_add(wf_ctx *ctx, wf_sums *sums, const char *name, double sum, double weight) WF_NODISCARD;
/* Saves or loads a list that is the same on all ranks. */
wf_status wf_sums_visit(wf_ctx *ctx, wf_sums *sums, wf_archive *archive) WF_NODISCARD;
/* Saves or loads what was added since the last wf_evaluator_finish, of every rank. Another number of ranks than saved
 * it loads the sums of all of them on rank 0. Collective. */
wf_status wf_evaluator_archive(wf_evaluator *evaluator, wf_archive *archive) WF_NODISCARD;

#endif
