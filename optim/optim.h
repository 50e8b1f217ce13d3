/* Optimizers: they turn gradients into updates of parameters. An optimizer borrows its model. */
#ifndef WF_OPTIM_OPTIM_H
#define WF_OPTIM_OPTIM_H

#include "core/site.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_optim wf_optim;

typedef struct wf_sgd_opts {
    double lr;           /* default 0.01 */
    double momentum;     /* default 0 */
    double weight_decay; /* default 0; added to the gradient */
    bool nesterov;
} wf_sgd_opts;
typedef struct wf_adam_opts {
    double lr;           /* default 1e-3 */
    double beta1;        /* default 0.9; WF_ZERO for 0 */
    double beta2;        /* default 0.999; WF_ZERO for 0 */
    double eps;          /* default 1e-8 */
    double weight_decay; /* default 0; wf_adam adds it to the gradient, wf_adamw decays the parameter (default there
                            0.01, WF_ZERO for 0) */
} wf_adam_opts;
typedef struct wf_rmsprop_opts {
    double lr;    /* default 0.01 */
    double alpha; /* default 0.99; WF_ZERO for 0 */
    double eps;   /* default 1e-8 */
    double weight_decay;
} wf_rmsprop_opts;

/* RMSprop that turns into SGD, the slow start of very large batches (Akiba, Suzuki and Fukuda 2017, "Extremely large
 * minibatch SGD"): v = alpha v + (1 - alpha) g^2, m = momentum m + (a + (1 - a) r / (sqrt(v) + eps)) g, and w moves by
 * lr m. a is the share of SGD: after t updates 0.5 exp(2 (t - centre) / period) before the centre, then 0.5 + (t -
 * centre) / period, and 1 from half a period behind the centre on. r is rmsprop_lr / lr. */
typedef struct wf_rmsprop_sgd_opts {
    double lr;           /* of SGD; default 0.1 */
    double rmsprop_lr;   /* of RMSprop; default 3e-4. A schedule multiplies both */
    double momentum;     /* default 0.9; WF_ZERO for 0 */
    double alpha;        /* default 0.99; WF_ZERO for 0 */
    double eps;          /* default 1e-8 */
    double weight_decay; /* default 0; added to the gradient */
    int64_t centre;      /* updates after which half of it is SGD; required. The paper: those of 10 epochs of 90 */
    int64_t period;      /* updates that the turn takes; default: half of centre, as in the paper */
} wf_rmsprop_sgd_opts;

/* Every element's steps shrink with the squares of all its gradients so far (Duchi et al. 2011), as in PyTorch: v +=
 * g^2, and it moves by lr g / (sqrt(v) + eps). */
typedef struct wf_adagrad_opts {
    double lr;           /* default 0.01 */
    double eps;          /* default 1e-10 */
    double weight_decay; /* default 0; added to the gradient */
} wf_adagrad_opts;

/* Layer-wise steps for large batches (You et al. 2020), as apex's FusedLAMB makes them: the direction d is that of
 * AdamW, decay included, and each parameter moves by lr * norm(parameter) / norm(d) along it (by lr where one of the
 * norms is 0). Norms are of whole parameters, wherever their parts are. apex's max_grad_norm is
 * wf_optim_clip_norm(optim, 1). */
typedef struct wf_lamb_opts {
    double lr;           /* default 1e-3 */
    double beta1;        /* default 0.9; WF_ZERO for 0 */
    double beta2;        /* default 0.999; WF_ZERO for 0 */
    double eps;          /* default 1e-6 */
    double weight_decay; /* default 0.01; WF_ZERO for 0 */
    bool plain_vectors;  /* parameters of rank 1 and below (biases, gamma, beta) are not decayed */
    bool
        scale_undecayed; /* norms scale the steps of parameters without decay, too, which otherwise move as with Adam */
} wf_lamb_opts;

/* Steps of stochastic gradient descent whose length every layer sets for itself (You, Gitman and Ginsburg 2017, in the
 * form of You et al. 2020): m = momentum m + g + weight_decay w, and w moves by lr norm(w) / norm(m) along m (with
 * Nesterov's form along g + weight_decay w + momentum m). Parameters of rank 1 and below (biases, gamma, beta) move by
 * lr, without decay. */
typedef struct wf_lars_opts {
    double lr;           /* default 0.01 */
    double momentum;     /* default 0.9; WF_ZERO for 0 */
    double weight_decay; /* default 1e-4; WF_ZERO for 0 */
    bool nesterov;
} wf_lars_opts;

/* NULL, with WF_ERR_ARGUMENT, if an option is out of its range. All trainable parameters must be of one type. */
wf_optim *wf_sgd(wf_layer *model, wf_sgd_opts opts);
wf_optim *wf_adam(wf_layer *model, wf_adam_opts opts);
wf_optim *wf_adamw(wf_layer *model, wf_adam_opts opts);
wf_optim *wf_rmsprop(wf_layer *model, wf_rmsprop_opts opts);
/* Adam whose first steps, of which the variance is not bounded yet, are those of momentum, and whose later ones are
 * scaled (Liu et al. 2020). weight_decay is added to the gradient. */
wf_optim *wf_radam(wf_layer *model, wf_adam_opts opts);
wf_optim *wf_adagrad(wf_layer *model, wf_adagrad_opts opts);
wf_optim *wf_lamb(wf_layer *model, wf_lamb_opts opts);
wf_optim *wf_lars(wf_layer *model, wf_lars_opts opts);
wf_optim *wf_rmsprop_sgd(wf_layer *model, wf_rmsprop_sgd_opts opts);
void wf_optim_free(wf_optim *optim);

/* One step: sets the gradients of the model's trainable parameters to zero, runs backward from the scalar `loss`
 * towards these parameters alone, clips, and updates. A trainable parameter on which the loss does not depend has a
 * zero gradient and is updated like the others (momentum and weight decay act on it); wf_param_set_trainable
 * excludes a parameter. wf_no_loss gives zero gradients. WF_ERR_STATE if the loss depends on no parameter and no
 * leaf, or is one rank's part of a global mean and the optimizer is not a multi-node one. After a multi-node step
 * wf_item(loss) is the loss over all ranks. Collective for wf_multi_node optimizers. */
WF_PLACED wf_status wf_optim_step(wf_optim *optim, wf_var *loss) WF_NODISCARD;
/* The gradients that wf_optim_step would update with, before clipping, and nothing else: wf_param_grad then shows the
 * gradient of the loss of all ranks, of a sharded parameter the part that this rank holds (wf_param_layout), and
 * wf_item(loss) is that loss. No parameter, state or number of steps changes. WF_ERR_STATE with a scaled loss,
 * shard_optimizer or double_buffering, and where the values of the ranks differed (wf_multi_node). Collective.
 */
WF_PLACED wf_status wf_optim_gradients(wf_optim *optim, wf_var *loss) WF_NODISCARD;
/* Backward without a step: the gradients are kept, and those of the next wf_optim_accumulate or wf_optim_step are added
 * to them, so that any number of these and one step make the step of one large batch. Every loss counts as many samples
 * as it is a mean of; after the step wf_item of its loss is the mean over all of them. To step without a last batch,
 * give wf_no_loss. In between, do not change what is trainable, and run no other backward that reaches these
 * parameters. After an error of either function the accumulated gradients are dropped.
 *
 * Multi-node: nothing is summed over ranks before the step. Ranks may accumulate local means a different number of
 * times, also none; parts of global means come from all ranks each time (the step is WF_ERR_COMM where they do not).
 * The first backward of an optimizer, and the first after a change of what is trainable, is collective; the others are
 * local. WF_ERR_STATE if the loss is no mean. */
WF_PLACED wf_status wf_optim_accumulate(wf_optim *optim, wf_var *loss) WF_NODISCARD;
/* Makes the pending update of double buffering (wf_multi_node_opts). Call it before the model or the optimizer is
 * saved, before what is trainable changes, and when training ends. Does nothing where no update is pending;
 * wf_optim_free drops a pending update. Collective for wf_multi_node optimizers. */
WF_PLACED wf_status wf_optim_flush(wf_optim *optim) WF_NODISCARD;
/* The update alone, with the gradients that wf_backward computed; parameters without a gradient are not changed.
 * WF_ERR_STATE for multi-node optimizers, for those that scale the loss, and if no parameter has a gradient. */
wf_status wf_optim_update(wf_optim *optim) WF_NODISCARD;

/* Clips before the update: the norm of all gradients together (agreed over ranks), or each element; all ranks alike.
 * 0 switches off. */
wf_status wf_optim_clip_norm(wf_optim *optim, double max_norm);
wf_status wf_optim_clip_value(wf_optim *optim, double max_abs);

/* A group of parameters with numbers of their own: those whose paths (relative to the model, as "encoder/conv1/W")
 * match a pattern of the shell, in which * stands for any characters, also / and none: "encoder/" followed by * has all
 * of the layer encoder, and a pattern that begins with * and / also has paths that begin there. No decay of biases and
 * of what norms have: wf_optim_group(optim, "*", (wf_group_opts){.vectors = true, .weight_decay = WF_ZERO}); A number
 * that an option leaves out is that of an earlier group that has the parameter, or of the optimizer; a number that it
 * gives takes the place of theirs. LARS, and LAMB with plain_vectors, decay no vector in any group. */
typedef struct wf_group_opts {
    double lr_scale;     /* lr is multiplied by it; WF_ZERO for 0: parameters keep their values */
    double weight_decay; /* WF_ZERO for none */
    bool vectors;        /* parameters of rank 1 and below alone */
} wf_group_opts;
#define WF_GROUP_PATTERN 160 /* bytes of the longest pattern, and one */
/* WF_ERR_ARGUMENT names a pattern that no parameter matches, trained or not; of the stages of a pipeline one must have
 * such a parameter, and wf_mesh_multi_node tells where none has. Groups are made before wf_multi_node, which compares
 * them over the ranks (WF_ERR_STATE after it). An archive that was saved with other groups is WF_ERR_FORMAT. Local. */
wf_status wf_optim_group(wf_optim *optim, const char *pattern, wf_group_opts opts) WF_NODISCARD;

/* Loss scaling: the loss is multiplied by a scale before backward, so that small gradients are not lost in f16
 * (wf_ctx_set_compute), and the update divides by it. Where a gradient overflows on any rank, all ranks skip the
 * update: parameters, states and wf_optim_steps do not change, and the scale is reduced. All of this happens in
 * device memory, so a step reads no value back. wf_param_grad shows gradients times the scale. */
typedef struct wf_loss_scale_opts {
    double init;      /* default 65536 */
    double growth;    /* default 2; 1 for a scale that does not grow */
    double backoff;   /* default 0.5 */
    int64_t interval; /* steps without overflow until the scale grows, default 2000 */
} wf_loss_scale_opts;
/* Switches loss scaling on; all ranks must do so. WF_ERR_STATE after the first step; WF_ERR_ARGUMENT with
 * double_buffering (wf_multi_node_opts); WF_ERR_DTYPE for f64. */
wf_status wf_optim_scale_loss(wf_optim *optim, wf_loss_scale_opts opts);
/* The scale of the next step (1 if losses are not scaled), and the number of skipped updates. Both read the device
 * and wait for the current step. */
double wf_optim_loss_scale(const wf_optim *optim);
int64_t wf_optim_skipped(const wf_optim *optim);

/* The learning rate of the next update: the base times the schedule's factor, which counts skipped updates, too. */
double wf_optim_lr(const wf_optim *optim);
wf_status wf_optim_set_lr(wf_optim *optim, double lr); /* changes the base */
/* The number of updates made. With a scaled loss the call reads the device; -1 if that fails. */
int64_t wf_optim_steps(const wf_optim *optim);
wf_layer *wf_optim_model(const wf_optim *optim);
/* Bytes of the state that this rank keeps: momentum and moments. */
size_t wf_optim_state_bytes(const wf_optim *optim);
/* Kind, step count, base learning rate, schedule, scale of the loss (where there is one), and the state of every
 * trainable parameter under its path relative to the model. Loading into another kind of optimizer is WF_ERR_FORMAT.
 * Optimizers that scale their loss and those that do not load each other's: the scale then starts as it did, or the
 * updates left out no longer count as steps.
 * Where state is sharded over ranks (shard_optimizer), the archive is that of the serial optimizer, on every rank, so
 * any number of ranks can load it, and the call is collective.
 * Gradients of wf_optim_accumulate that wait for their step go along: those of this rank, and in a checkpoint, for
 * which the call is collective, their sum over the ranks too, for other partitions. */
WF_PLACED wf_status wf_optim_archive(wf_optim *optim, wf_archive *archive) WF_NODISCARD;
/* wf_optim_archive as a wf_archive_visit. */
wf_status wf_optim_visit(void *optim, wf_archive *archive) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
