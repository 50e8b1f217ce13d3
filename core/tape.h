/* The tape: an array of the operations that were executed, in order; backward walks it in reverse. Local.
 *
 * Define-by-run: an operation is recorded when it is computed. A variable belongs to its tape and lives until
 * wf_tape_reset. Write at most one chain of wf_apply per statement, since C does not define the order in which
 * arguments are evaluated.
 */
#ifndef WF_CORE_TAPE_H
#define WF_CORE_TAPE_H

#include "core/param.h"
#include "core/site.h"

#ifdef __cplusplus
extern "C" {
#endif

struct wf_archive;
typedef struct wf_tape wf_tape;
typedef struct wf_var wf_var;

typedef enum wf_mode {
    WF_TRAIN = 0, /* record; dropout, noise and batch statistics as in training */
    WF_EVAL,      /* record nothing; layers behave as in evaluation */
} wf_mode;

wf_tape *wf_tape_new(wf_ctx *ctx);
void wf_tape_free(wf_tape *tape);
/* Takes effect with the next operation. */
wf_status wf_tape_set_mode(wf_tape *tape, wf_mode mode);
wf_mode wf_tape_mode(const wf_tape *tape);
/* Ends the step: frees all variables and counts one iteration. WF_ERR_STATE if the program still holds tensors of this
 * step that it did not wf_keep (they stay valid). */
wf_status wf_tape_reset(wf_tape *tape);
/* The number of resets so far; random numbers depend on it. Ranks that compute parts of one step, or the same, have the
 * same number (wf_multi_node checks it). */
int64_t wf_tape_iteration(const wf_tape *tape);
wf_status wf_tape_set_iteration(wf_tape *tape, int64_t iteration);
/* Random numbers depend on the tape's name too: two tapes that are in use side by side draw the same numbers in the
 * same iteration, unless they have names. For a tape on which nothing was drawn since its last reset, else
 * WF_ERR_STATE. */
wf_status wf_tape_set_name(wf_tape *tape, const char *name);

/* Saves and loads that number, as a wf_archive_visit. */
wf_status wf_tape_visit(void *tape, struct wf_archive *archive) WF_NODISCARD;

/* A variable with the value of a tensor, which is not copied and must stay unchanged until the reset. Backward keeps
 * no gradient for it. */
wf_var *wf_input(wf_tape *tape, const wf_tensor *tensor);
/* Like wf_input, but backward computes its gradient (wf_grad). */
wf_var *wf_leaf(wf_tape *tape, const wf_tensor *tensor);
/* Stands for "no loss on this rank": wf_optim_step counts it with weight zero. */
wf_var *wf_no_loss(wf_tape *tape);

/* Borrowed; NULL if var is NULL. wf_value is NULL with WF_ERR_STATE where a backward has released it. wf_grad is NULL
 * before backward, and if the loss does not depend on the variable. */
const wf_tensor *wf_value(const wf_var *var);
const wf_tensor *wf_grad(const wf_var *var);
wf_tape *wf_var_tape(const wf_var *var);
wf_shape wf_var_shape(const wf_var *var);
/* A handle on the value that may outlive the step; the caller frees it. WF_ERR_STATE after the reset, as long as no
 * other variable has taken the place of this one. */
wf_tensor *wf_keep(const wf_var *var);
/* The value of a variable of one element; NaN on failure. Local. For a loss on a sharded batch this is the global
 * mean after wf_optim_step, and this rank's part of it before. */
double wf_item(const wf_var *var);

/* Differentiates a scalar towards every leaf and trainable parameter that it depends on: gradients of parameters are
 * set (not added to earlier ones). A node runs once. Then the tensors that it saved are released, and so is the
 * value of its output unless that has one element; call wf_keep before for values that are needed later.
 * WF_ERR_STATE if a saved tensor has changed since, or if nothing was recorded. */
WF_PLACED wf_status wf_backward(wf_var *loss) WF_NODISCARD;
/* Like wf_backward, from any variable, with its gradient given. */
WF_PLACED wf_status wf_backward_from(wf_var *var, const wf_tensor *grad) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
