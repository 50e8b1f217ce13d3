/* Losses, as kernels see them: the sum of what each element or row adds, or that of each by itself. */
#ifndef WF_CORE_LOSS_AUTHOR_H
#define WF_CORE_LOSS_AUTHOR_H

#include "core/array_author.h"

typedef enum wf_loss_kind {
    WF_LOSS_BCE_LOGITS = 0, /* max(x,0) - x t + log(1 + exp(-|x|)) */
    WF_LOSS_MSE,            /* (x - t)^2 */
    WF_LOSS_L1,             /* |x - t|, derivative 0 at 0 */
    WF_LOSS_HUBER,          /* d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2), with d = x - t */
    WF_LOSS_KL,             /* t (log t - x), and 0 where t is 0 */
    WF_LOSS_FOCAL,          /* BCE_LOGITS w m^gamma; m = p (1 - t) + (1 - p) t, p = sigmoid(x); w = alpha t +
                               (1 - alpha) (1 - t), or 1 where alpha is negative */
} wf_loss_kind;

typedef struct wf_loss_args {
    wf_loss_kind kind;
    const wf_array *x;
    const wf_array *target; /* NULL: `value` everywhere */
    double value, scale;
    double delta;                 /* HUBER: above 0 */
    double gamma, alpha;          /* FOCAL: gamma is 0 or more */
    const wf_array *loss, *dloss; /* scalars, or of x's shape and order; dloss is in device memory */
    const wf_array *dx;
} wf_loss_args;

/* Softmax and cross entropy in one. weight, log_sum, most, loss and dloss are of f32, or of f64 where x is; rows and
 * labels are those of nll_forward.
 *
 * With `most`, x has the classes [first, first + C) of `whole`, labels and weights are those of the whole, and the loss
 * is this part's of a sum over all parts. Forward is then two calls: one without `loss` writes most and log_sum of the
 * part (both -infinity where no score is above -infinity); one with `loss`, and backward, read those of all classes. */
typedef struct wf_entropy_args {
    const wf_array *x, *labels;
    int64_t ignored;
    double scale;
    const wf_array *weight;       /* [C] (with `most` [whole]), of the classes; NULL: 1 */
    double smoothing;             /* in [0, 1] */
    const wf_array *log_sum;      /* [rows]: log sum_j exp(x_j - max x); forward writes it, backward reads it */
    const wf_array *loss, *dloss; /* scalars, or one for each row; dloss is in device memory */
    const wf_array *dx;           /* of x's type */
    const wf_array *most;         /* [rows]; NULL: x has all classes */
    int64_t first, whole;         /* with `most` */
} wf_entropy_args;

/* Places of labels among the scores of their rows, where x has the classes [first, first + C) of `whole`. A call
 * without `before` writes the scores of labels into `at`; one with it reads them there. A NaN is largest at the head of
 * a whole row and nothing elsewhere. */
typedef struct wf_label_place_args {
    const wf_array *x, *labels;
    int64_t ignored, first, whole;
    const wf_array *at;     /* [rows], of f32, or of f64 where x is: -infinity where x has not the label's class */
    const wf_array *before; /* i64 [rows]: classes of x that come before the label's, by score and then by number; -1:
                               the label is ignored */
} wf_label_place_args;

/* How many classes labels have that are given with c of them. */
static inline int64_t wf_entropy_classes(const wf_entropy_args *args, int64_t c)
{
    return args->most ? args->whole : c;
}

#endif
