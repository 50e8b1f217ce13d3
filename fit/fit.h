/* Whole trainings in one call. wf_prepare makes a serial program's optimizer and data sets those of all ranks, and the
 * program keeps its own loop. wf_fit has the loop too: it trains, evaluates, keeps the best model, and continues.
 * docs/tutorial-ladder.md climbs from a bare loop to both. Nothing else of the library calls them: what they cannot
 * say, a program says with the functions that they call (wf_multi_node, wf_scatter_dataset, wf_batches,
 * wf_trainer_new).
 */
#ifndef WF_FIT_FIT_H
#define WF_FIT_FIT_H

#include "datasets/iterator.h"
#include "datasets/scatter.h"
#include "optim/multi_node.h"
#include "optim/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_prepare_opts {
    wf_optim *optim; /* of one process; consumed. Its model is borrowed */
    wf_dataset *train,
        *test;          /* consumed; rank 0's are scattered, and other ranks may give NULL. NULL on rank 0: none */
    int64_t batch;      /* samples of a rank in a training step; default 32 */
    int64_t test_batch; /* samples of a rank in a batch of `test`; default: as `batch` */
    wf_batch_growth grows[WF_BATCH_GROWTHS]; /* larger batches of `train` from an epoch on (wf_batch_opts) */
    int workers;          /* threads that read samples (wf_prefetch_opts), for each of the two; default 1 */
    wf_collate collate;   /* makes the batches' tensors (datasets/iterator.h); default: x and labels */
    bool in_order;        /* the samples of `train` in their own order; default: another order in every epoch */
    bool each_reads;      /* every rank reads its own samples from its own data set (wf_scatter_opts) */
    bool local_batchnorm; /* batch normalisations keep the statistics of their rank; default: those of all ranks */
    wf_multi_node_opts multi_node;
} wf_prepare_opts;

/* What wf_prepare gives; the caller owns it. */
typedef struct wf_prepared {
    wf_optim *optim;       /* a multi-node optimizer */
    wf_iter *train, *test; /* batches of this rank's samples, two of them prepared ahead by a thread */
} wf_prepared;

/* Prepares a serial program's parts for all ranks of the communicator: the batch normalisations of the optimizer's
 * model are synchronised, model and optimizer become equal on all ranks (wf_multi_node), and each rank has its share of
 * the samples in batches. Random transforms belong to data sets with `each_reads`: else they are applied once
 * (wf_scatter_opts). What is consumed is consumed also on failure, and *prepared is then empty: WF_ERR_ARGUMENT for an
 * option out of its range, or that differs between ranks, else the errors of the functions that it calls, the same on
 * all ranks. Collective. */
WF_PLACED wf_status wf_prepare(wf_comm *comm, wf_prepare_opts opts, wf_prepared *prepared) WF_NODISCARD;
/* Frees the optimizer and the iterators. Local. */
void wf_prepared_free(wf_prepared *prepared);

/* A loss: a variable of one element that is a mean over the batch, as wf_mean_cross_entropy. */
typedef wf_var *(*wf_loss_function)(wf_var *scores, const wf_tensor *labels);
/* A loss that looks at more than one tensor of the batch, by name (wf_batch_get). */
typedef wf_var *(*wf_batch_loss_function)(wf_var *scores, const wf_batch *batch);
/* A metric: a mean over the rows held here, of the scores and what a loss gets as labels; not called for a batch
 * without any. NaN is the end of the run, with WF_ERR_NUMERIC where the function has set no error of its own. */
typedef double (*wf_metric_function)(const wf_var *scores, const wf_tensor *labels);
typedef struct wf_metric {
    const char *name; /* at most 58 characters */
    wf_metric_function mean;
} wf_metric;
/* The share of rows whose largest score is at the label (wf_count_correct). */
double wf_accuracy(const wf_var *scores, const wf_tensor *labels);

typedef struct wf_fit_opts {
    wf_optim *optim;                   /* of one process; consumed. Its model is trained, and borrowed */
    wf_loss_function loss;             /* of the scores and the labels, or the first target of `collate` */
    wf_batch_loss_function batch_loss; /* in place of it; one of the two is required */
    const wf_metric
        *metrics; /* over `test`, until an entry without a name: {{"accuracy", wf_accuracy}, {0}}; may be NULL */
    wf_dataset *train, *test; /* consumed; with labels or `collate`. `test` may be NULL: no evaluation */
    wf_collate collate;       /* as of wf_prepare; the model gets its inputs in their order (wf_apply_n) */
    int workers;              /* as of wf_prepare */
    int64_t batch;            /* samples of a rank in a backward pass; default 32 */
    int64_t test_batch;       /* default: as `batch` */
    wf_batch_growth grows[WF_BATCH_GROWTHS]; /* as of wf_prepare */
    int64_t accumulate;                      /* backward passes in a step (wf_optim_accumulate); default 1 */
    int64_t epochs;                          /* default 1, or no bound where `seconds` is given */
    double seconds;                          /* ends after the step after which the run took this long; 0: no bound */
    int64_t evaluate_every; /* epochs between two evaluations; default 1. One more follows the last step */
    double ema;             /* decay of moving averages of the parameters (wf_ema_opts, without warm-up), by which the
                               model is evaluated and kept, and which it has after the run; 0: none */
    const char *best;       /* file of the best model (HDF5); NULL: none is kept */
    const char *watch;      /* what is best: "loss", which is the loss over `test`, or a metric; default: the first
                               metric, of which more is better, or "loss", of which less is */
    bool less_is_better;    /* of a metric that is watched */
    int64_t patience;       /* evaluations in a row without a better value, after which the run stops; 0: it does not */
    const char *checkpoints;  /* folder of checkpoints, which SIGTERM and SIGINT save too; NULL: none */
    int64_t checkpoint_every; /* steps between two checkpoints; default: those of an epoch */
    bool resume;              /* continues from the newest checkpoint of the folder, if there is one */
    const char *log;          /* file of reports, as JSON lines; NULL: none */
    const char *tensorboard;  /* folder of events for TensorBoard (wf_trainer_opts); NULL: none */
    bool device_statistics;   /* in reports, log, events and progress (wf_trainer_opts) */
    bool histograms;          /* the parameters as histograms in it, after every epoch */
    int progress;             /* file descriptor of the banner and the progress, as STDOUT_FILENO; 0: neither */
    bool in_order, each_reads, local_batchnorm; /* as of wf_prepare */
    wf_multi_node_opts multi_node;
} wf_fit_opts;

/* What a run came to; the same on all ranks. */
typedef struct wf_fit_result {
    int64_t steps, epochs; /* of the whole training, also before it was continued */
    double loss;           /* mean over the samples of the newest report */
    double test_loss;      /* of the newest evaluation; NaN without one */
    double best;           /* the best value of what is watched; NaN without one */
    double seconds;
    bool left; /* a signal ended the run, and all is saved: the program exits with WF_CHECKPOINT_EXIT */
} wf_fit_result;

/* Trains the model: prepares as wf_prepare, then in every step forward, loss, backward and update on batches of
 * `train`, and in every evaluation the loss and the metrics over all samples of `test` once, in evaluation mode.
 * Reports have "loss", and "test_loss" and "test_NAME" of the metrics. The banner says how many samples, epochs, steps,
 * parameters and ranks there are, and how large a batch is. `result` may be NULL. WF_ERR_ARGUMENT for an option out of
 * its range, or that differs between ranks; the errors of a step are those of wf_trainer_run, WF_ERR_NUMERIC for a loss
 * that is no number. Collective.
 */
WF_PLACED wf_status wf_fit(wf_comm *comm, wf_fit_opts opts, wf_fit_result *result) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
