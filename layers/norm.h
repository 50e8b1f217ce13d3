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

#ifdef __cplusplus
}
#endif
#endif
