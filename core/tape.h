/* The tape: an array of what was computed, in execution order; backward walks it in reverse. Local.
 *
 * Define-by-run. A variable knows its tape and belongs to it, until wf_tape_reset. At most one chain of wf_apply per
 * statement: C leaves the order in which arguments are evaluated open.
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
/* Holds from the next operation on. */
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

/* A variable for a tensor, which is not copied and must stay unchanged until reset. No gradient is kept for it. */
wf_var *wf_input(wf_tape *tape, const wf_tensor *tensor);
/* The same; backward gives it a gradient. */
wf_var *wf_leaf(wf_tape *tape, const wf_tensor *tensor);
/* "No loss on this rank": takes part in wf_optim_step with weight zero. */
wf_var *wf_no_loss(wf_tape *tape);

/* Borrowed; NULL on NULL. wf_grad is NULL before backward, or if none came. */
const wf_tensor *wf_value(const wf_var *var);
const wf_tensor *wf_grad(const wf_var *var);
wf_tape *wf_var_tape(const wf_var *var);
wf_shape wf_var_shape(const wf_var *var);
/* A handle on the value that may outlive the step; the caller frees it. */
wf_tensor *wf_keep(const wf_var *var);
/* The value of a variable of one element; NaN on failure. Local: for a loss that is a global mean, the global value
 * after wf_optim_step, this rank's part before. */
double wf_item(const wf_var *var);

/* Differentiates a scalar towards every leaf and trainable parameter that it depends on: gradients of parameters are
 * set (not added to earlier ones). A node runs once; what it saved is then released, and
 * so is the value of the variable that it made, unless that has one element: wf_keep what is needed later. WF_ERR_STATE
 * if a saved tensor has changed since, or if nothing was recorded. */
WF_PLACED wf_status wf_backward(wf_var *loss) WF_NODISCARD;
/* The same from any variable, with its gradient given. */
WF_PLACED wf_status wf_backward_from(wf_var *var, const wf_tensor *grad) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
