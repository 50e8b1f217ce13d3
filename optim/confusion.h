/* Confusion matrices: counts, over all ranks, what a classifier takes for what, and computes the figures that follow.
 */
#ifndef WF_OPTIM_CONFUSION_H
#define WF_OPTIM_CONFUSION_H

#include "comm/comm.h"
#include "core/site.h"
#include "layers/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A confusion matrix: rows (samples, or pixels of a segmentation) of each label by the class that was predicted. Counts
 * are whole numbers, added locally and summed over the ranks at the end, so the figures are those of all rows, whatever
 * the number of ranks and of rows on each. The communicator has the ranks over which rows are cut; a rank whose rows
 * others have as well would count them again. */
typedef struct wf_confusion wf_confusion;

/* Local. The communicator is borrowed. */
wf_confusion *wf_confusion_new(wf_comm *comm, int64_t classes);
void wf_confusion_free(wf_confusion *confusion);

/* Adds the rows held here: the largest of the scores [N,C,...] (the first of equals) by the labels [N,...] of u8, i32
 * or i64 in [0, C). Rows of the ignored label do not count; other options have no effect. Reads from the device. Local;
 * but where mesh axes cut the classes, C is that of all of them, and the call is collective over these axes. */
wf_status wf_confusion_add(wf_confusion *confusion, wf_var *scores, const wf_tensor *labels,
                           wf_label_opts opts) WF_NODISCARD;

/* Sums over the ranks. Rows that are added afterwards belong to the next round. Collective. */
WF_PLACED wf_status wf_confusion_finish(wf_confusion *confusion) WF_NODISCARD;

/* The results of the last wf_confusion_finish, the same on all ranks; 0 out of range. */
int64_t wf_confusion_count(const wf_confusion *confusion, int64_t label, int64_t predicted);

/* Figures of one class, with right (rows of it that were predicted), missed (that were not), and wrong (of other
 * classes, predicted as it). */
typedef enum wf_class_metric {
    WF_PRECISION = 0, /* right / (right + wrong) */
    WF_RECALL,        /* right / (right + missed) */
    WF_F1,            /* 2 right / (2 right + wrong + missed): the Dice coefficient */
    WF_IOU,           /* right / (right + wrong + missed) */
} wf_class_metric;

/* NaN of a class that was neither a label nor predicted, else 0 where its divisor is 0. */
double wf_confusion_of_class(const wf_confusion *confusion, wf_class_metric metric, int64_t class_number);
/* The mean over the classes that have a value (macro), and that of the sums over all classes (micro). NaN of no rows.
 */
double wf_confusion_macro(const wf_confusion *confusion, wf_class_metric metric);
double wf_confusion_micro(const wf_confusion *confusion, wf_class_metric metric);
/* The part of all rows that is right. NaN of no rows. */
double wf_confusion_accuracy(const wf_confusion *confusion);

#ifdef __cplusplus
}
#endif

#endif
