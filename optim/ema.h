/* Exponential moving averages of a model's parameters, which are often better at the end than the parameters
 * themselves. */
#ifndef WF_OPTIM_EMA_H
#define WF_OPTIM_EMA_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_ema wf_ema;

typedef struct wf_ema_opts {
    double decay; /* default 0.999; WF_ZERO for 0; below 1 */
    bool warm_up; /* the decay of update t is min(decay, (1 + t) / (10 + t)), as in torch-ema */
} wf_ema_opts;

/* Averages of the trainable parameters of a model, which is borrowed. WF_ERR_ARGUMENT for a decay out of its range.
 * Local. */
wf_ema *wf_ema_new(wf_layer *model, wf_ema_opts opts);
void wf_ema_free(wf_ema *ema);

/* Call this after each step of the optimizer: average = average - (1 - decay) (average - parameter). The first update
 * copies the parameters, and so does the first one of a parameter that joins later, as torch.optim.swa_utils does.
 * Averages have the type of the parameters, f32 or f64, whatever layers compute with (wf_ctx_set_compute). A rank
 * averages what it holds: its part of a parameter that is cut over a mesh, and the whole of one that shard_optimizer
 * has gathered; so nothing is sent. Running statistics and frozen parameters are not averaged. May be part of a
 * captured step. WF_ERR_STATE while the averages are swapped in. Local. */
wf_status wf_ema_update(wf_ema *ema) WF_NODISCARD;
/* Exchanges the contents of parameters and averages, and again: swap, evaluate or wf_save, swap. Parameters keep their
 * memory, so captured steps stay valid. Running statistics stay those of the training. WF_ERR_STATE before the first
 * update, and in a captured step. Local. */
wf_status wf_ema_swap(wf_ema *ema) WF_NODISCARD;
bool wf_ema_swapped(const wf_ema *ema);    /* true while the model has the averages; false for NULL */
int64_t wf_ema_updates(const wf_ema *ema); /* those made so far */

/* The number of updates, and the average of every trainable parameter under its path relative to the model: as of the
 * serial program, so that another number of ranks loads them. Decay and warm-up stay those of the options. WF_ERR_STATE
 * while the averages are swapped in. wf_ema_visit is it as a wf_archive_visit, for wf_checkpoint_add. Collective where
 * the archive is. */
wf_status wf_ema_archive(wf_ema *ema, wf_archive *archive) WF_NODISCARD;
wf_status wf_ema_visit(void *ema, wf_archive *archive) WF_NODISCARD;
wf_layer *wf_ema_model(const wf_ema *ema);

#ifdef __cplusplus
}
#endif

#endif
