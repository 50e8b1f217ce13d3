/* Losses: scalars of the input's type (of f32 for bf16 and f16, which are widened), means over all elements (over all
 * rows for labels) of the global batch where the input has a layout, otherwise of the local batch; see functions.h.
 * Local unless said otherwise. Tensors given as labels or targets must stay unchanged until backward. NULL on failure
 * and where an input is NULL; labels or a target of NULL, as of a data set without labels, are WF_ERR_ARGUMENT.
 */
#ifndef WF_LAYERS_LOSS_H
#define WF_LAYERS_LOSS_H

#include "layers/functions.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of the losses of rows or elements. Sums and single losses are no means over samples: with a
 * layout, those of other ranks and chunks are added, not averaged; without one, several ranks, chunks and
 * wf_optim_accumulate refuse them. */
typedef enum wf_loss_reduction {
    WF_REDUCTION_MEAN = 0,
    WF_REDUCTION_SUM,
    WF_REDUCTION_NONE, /* no scalar: a loss for each */
} wf_loss_reduction;

/* Rows that do not count, and may have a label outside [0, C): Chainer's -1, PyTorch's -100, a void class of images.
 * The other three are PyTorch's; smoothing and reduction are of softmax_cross_entropy alone. */
typedef struct wf_label_opts {
    bool ignores;            /* rows of the label `ignored`; default: every row counts */
    int64_t ignored;         /* such a row adds nothing, has the gradient 0, and is not in the mean; not INT64_MIN */
    double smoothing;        /* in [0, 1]: that part of the target is spread over all classes evenly; default 0 */
    const wf_tensor *weight; /* [C], of all classes, at least 0; the mean divides by the sum of the labels' weights */
    wf_loss_reduction reduction; /* default the mean; NONE: [N,...], row-major, with the layout of the
                                    scores, whole along axes that cut the classes */
} wf_label_opts;
/* Scores [N,C,...] (logits, or log-probabilities for wf_nll), labels [N,...] of type u8, i32 or i64 in [0, C). The
 * cross entropy takes scores whose classes mesh axes cut, into parts of any size: a rank has the labels of its rows, in
 * [0, C) of all classes, and a scalar loss is its part of a sum over these axes too. No score is sent: forward is then
 * collective over these axes (two all-reduces of a number a row, three with WF_REDUCTION_NONE), and backward local.
 *
 * The mean over the rows that count, of all ranks where the scores have a layout: then collective over the axes over
 * which they are sharded. Without a layout the ranks' means are weighted by their rows that count, or by the sums of
 * weights. 0 if none counts. A mean with an ignored label or with weights is not for a captured step, since the host
 * reads the number of rows. */
wf_var *wf_softmax_cross_entropy(wf_var *logits, const wf_tensor *labels, wf_label_opts opts);
wf_var *wf_nll(wf_var *logp, const wf_tensor *labels, wf_label_opts opts);
/* wf_softmax_cross_entropy without options, as a function for the `loss` of wf_fit and of pipelines. */
wf_var *wf_mean_cross_entropy(wf_var *logits, const wf_tensor *labels);
/* wf_softmax_cross_entropy of tokens: scores [N,T,C], as wf_token_linear gives them, and labels [N,T]; without a
 * reduction the losses are [N,T]. Any of the three dimensions may be cut, the classes as above: a language model's head
 * that is cut by vocabulary sends no score. Nothing is copied. */
wf_var *wf_token_cross_entropy(wf_var *logits, const wf_tensor *labels, wf_label_opts opts);

/* Binary cross entropy of logits, with a target for each (of any type) or one for all. */
wf_var *wf_bce_logits(wf_var *x, const wf_tensor *target);
wf_var *wf_bce_logits_constant(wf_var *x, double target);

/* Mean of (a - b)^2 and of |a - b|; gradients go to both. Equal shapes, types and layouts, here and in the next two,
 * but that b is brought to the shard bounds of a, as in wf_add (layers/functions.h). */
wf_var *wf_mse(wf_var *a, wf_var *b);
wf_var *wf_l1(wf_var *a, wf_var *b);

/* Huber's loss: d^2 / 2 where |d| = |a - b| is at most delta, else delta (|d| - delta / 2). Smooth L1 is that over beta
 * (0: wf_l1). */
wf_var *wf_huber(wf_var *a, wf_var *b, double delta);
wf_var *wf_smooth_l1(wf_var *a, wf_var *b, double beta);

/* The Kullback-Leibler divergence sum_c p (log p - logq) of probabilities p [N,C,...] and log-probabilities of this
 * shape: a mean over rows. No gradient goes to p. */
wf_var *wf_kl_div(wf_var *logq, const wf_tensor *p);

typedef struct wf_focal_opts {
    double gamma;    /* default 2; WF_ZERO for 0, which is binary cross entropy */
    double alpha;    /* weight of the target 1, that of 0 is 1 - alpha; default 0.25; WF_ZERO for 0 */
    bool unweighted; /* both weigh 1 */
    wf_loss_reduction reduction;
} wf_focal_opts;
/* Focal loss of logits (Lin et al. 2017) with a target for each, in [0, 1]: binary cross entropy times m^gamma and the
 * weight, where m is how far the probability is from the target's class. */
wf_var *wf_focal_logits(wf_var *x, const wf_tensor *target, wf_focal_opts opts);

/* These as a sum, or not reduced: each element's loss, of a's shape, order of memory and layout. */
wf_var *wf_bce_logits_reduced(wf_var *x, const wf_tensor *target, wf_loss_reduction reduction);
wf_var *wf_mse_reduced(wf_var *a, wf_var *b, wf_loss_reduction reduction);
wf_var *wf_l1_reduced(wf_var *a, wf_var *b, wf_loss_reduction reduction);
wf_var *wf_huber_reduced(wf_var *a, wf_var *b, double delta, wf_loss_reduction reduction);
wf_var *wf_smooth_l1_reduced(wf_var *a, wf_var *b, double beta, wf_loss_reduction reduction);
wf_var *wf_kl_div_reduced(wf_var *logq, const wf_tensor *p, wf_loss_reduction reduction);

typedef struct wf_dice_opts {
    bool skip_background;        /* class 0 does not count */
    bool batch;                  /* sums over the samples too, before the division: one quotient a class */
    bool squared;                /* the divisor has the sums of squares */
    double smooth_top;           /* added to the dividend; default 1e-5, WF_ZERO for 0 */
    double smooth_bottom;        /* added to the divisor; default 1e-5, WF_ZERO for 0 */
    wf_loss_reduction reduction; /* over samples and classes; default the mean; NONE: [N,C], or [1,C] of a batch */
} wf_dice_opts;
/* Soft Dice loss, MONAI's: 1 - (2 sum p t + top) / (sum p + sum t + bottom) of probabilities p [N,C,...], sums over the
 * pixels of each sample and class. The target is of p's shape, or labels [N,...] of u8, i32 or i64. The sums are those
 * of whole images where the layout cuts them, and of all ranks' samples with `batch`: then collective over these axes,
 * and a scalar result is this rank's part of a sum over them, as that of the other losses. `batch` without a layout is
 * of this rank's samples, in a pipeline of the chunk's; with one it is an error in chunks of a pipeline. All classes
 * must be on each rank for labels and skip_background. */
wf_var *wf_dice(wf_var *p, const wf_tensor *target, wf_dice_opts opts);

/* In how many rows held here the largest score (the first of equals) is at the label. -1 on failure or NULL. Where mesh
 * axes cut the classes, labels are in [0, C) of all of them, and this call and the next are collective over these axes:
 * two all-reduces of a number a row, and no score is sent. Each rank along them gets the count of the whole rows, so a
 * sum over ranks leaves these axes out; what one of them refuses ends the call on all, as in other collectives. Scores
 * of tokens [N,T,C] are wf_image(scores, WF_SHAPE(T)). */
int64_t wf_count_correct(const wf_var *scores, const wf_tensor *labels, wf_label_opts opts);
/* In how many it is among the k largest: top-k accuracy over all ranks is wf_evaluator_add_sum of this and of
 * wf_count_labels. */
int64_t wf_count_top_k(const wf_var *scores, const wf_tensor *labels, int64_t k, wf_label_opts opts);
/* How many rows held here count. -1 on failure or NULL. */
int64_t wf_count_labels(const wf_tensor *labels, wf_label_opts opts);

#ifdef __cplusplus
}
#endif
#endif
