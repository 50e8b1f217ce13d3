/* Batch normalisation. */
#ifndef WF_LAYERS_NORM_H
#define WF_LAYERS_NORM_H

#include "core/act.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_batchnorm_opts {
    int64_t channels; /* required */
    double decay; /* of the running statistics: running = decay running + (1 - decay) batch; default 0.9, WF_ZERO: 0 */
    double eps;   /* added to the variance; default 2e-5, WF_ZERO: 0 */
    bool no_gamma, no_beta;
    wf_act act;         /* in the same pass: WF_ACT_NONE, WF_ACT_RELU or WF_ACT_LEAKY_RELU */
    double slope;       /* of leaky ReLU, > 0; default 0.01 */
    double noise;       /* in training, standard deviation of normal noise added before act */
    wf_init gamma_init; /* default: 1 */
    wf_init beta_init;  /* default: 0 */
} wf_batchnorm_opts;

/* y = (x - mean) / sqrt(variance + eps) gamma + beta for x [N,C] or [N,C,...], statistics over all dimensions but 1.
 * Training uses the statistics of this rank's batch and updates the running averages avg_mean and avg_var (with the
 * unbiased variance); evaluation uses avg_mean and avg_var. Trainable parameters: gamma, beta [C]. Running values:
 * avg_mean (initially 0), avg_var (initially 1).
 *
 * x is of rank 2 to 5 and of a float type (WF_ERR_SHAPE, WF_ERR_DTYPE); y has its shape, type and layout. x may be
 * sharded along samples: the statistics are then those of this rank's samples (wf_sync_batchnorm: of all). Sharded
 * channels or pixels are WF_ERR_SHAPE, which names the layer that takes them. Options out of their range are
 * WF_ERR_ARGUMENT. Local. */
wf_layer *wf_batchnorm(wf_ctx *ctx, wf_batchnorm_opts opts);

/* Batch normalisation without moving averages (Akiba, Suzuki and Fukuda 2017): the running statistics of all batch
 * normalisations of the model, in any form, become the plain mean of those of batches that are given forward in a pass
 * after training, or before a test, with weights that do not change meanwhile:
 *
 *     for (int64_t k = 1; k <= wf_iter_epoch_length(train); k++) {
 *         ... wf_iter_next ...
 *         wf_batchnorm_average(model, k);                       (the next forward is batch k of the mean)
 *         wf_apply(model, wf_input(tape, batch.x));             (in training mode)
 *         wf_tape_reset(tape);
 *     }
 *     wf_batchnorm_average(model, 0);                           (from now on they decay again)
 *
 * Every batch counts alike. WF_ERR_ARGUMENT for a negative number. Not in a captured step, which keeps the number that
 * it was captured with. Local. */
wf_status wf_batchnorm_average(wf_layer *model, int64_t batch) WF_NODISCARD;

/* What a residual block ends with, in one pass: as wf_apply(norm, x), with `residual` added before noise and act.
 *
 *     return wf_apply_residual(wf_layer_child(self, "norm"), wf_apply(wf_layer_child(self, "path"), x), x);
 *
 * It computes wf_relu(wf_add(wf_apply(norm, x), residual)) where act is WF_ACT_RELU, and keeps neither of the two
 * values in between for backward. `norm` is a batch normalisation in any form, serial or parallel (WF_ERR_ARGUMENT for
 * other layers); residual has the shape and layout of x (WF_ERR_SHAPE) and may be x; where one is of f32 and the other
 * of 16 bits, the result is of f32. NULL on failure, and where an argument is NULL. As local or collective as the
 * layer. */
WF_PLACED wf_var *wf_apply_residual(wf_layer *norm, wf_var *x, wf_var *residual);

#ifdef __cplusplus
}
#endif
#endif
