/* Captured steps: a training step of fixed shape whose work is handed to the device once and is replayed from then on
 * as a whole (a CUDA graph), which saves the host the launches of a step, one by one. A replay computes what the step
 * would compute, bit for bit. Local; all ranks of a communicator run their captured steps alike.
 *
 *     static wf_status step(void *arg)
 *     {
 *         training *t = arg;
 *         wf_var *loss = wf_softmax_cross_entropy(wf_apply(t->model, wf_input(t->tape, t->x)), t->labels);
 *         WF_MUST(wf_optim_step(t->optim, loss));
 *         wf_tensor_free(t->loss);
 *         t->loss = wf_keep(loss);
 *         return wf_tape_reset(t->tape);
 *     }
 *
 *     t.x = wf_tensor_copy(batch.x, WF_F32, wf_tensor_order(batch.x)), likewise t.labels;
 *     wf_captured *captured = wf_capture(ctx, step, &t);
 *     while (...) {
 *         WF_MUST(wf_iter_next(iter, &batch));
 *         WF_MUST(wf_tensor_assign(t.x, batch.x));
 *         WF_MUST(wf_tensor_assign(t.labels, batch.labels));
 *         WF_MUST(wf_captured_run(captured));
 *     }
 *
 * The step is a function of what `arg` holds. It reads its batch from tensors that stay the same, which the program
 * refills between runs by wf_tensor_assign or wf_tensor_import. The first two runs call it as it is, the third captures
 * it, and further runs replay that: the function is not called again. So what it decides on the host (shapes, branches,
 * the mode of a tape, what is trainable, clipping) stays as it was in the third run, and what it counts there it counts
 * three times. Of the library's own, everything that changes from step to step goes on: random numbers and
 * wf_tape_iteration, learning rate and schedule, wf_optim_steps, the parameters' versions. What wf_keep kept in the
 * third run is written anew by every replay, so that wf_tensor_item of a kept loss is that of the last run. Traffic
 * (wf_comm_traffic) is counted in the first three runs alone, and so are calls by the check of the ranks.
 *
 * What the step works with (its model, optimizers, tape, tensors, communicator) outlives the captured step. Its memory
 * is its own: other work, between replays, is never given memory that a replay writes to.
 *
 * Not inside a step: reading a number back (wf_item, wf_tensor_item, wf_tensor_export, wf_count_correct), filling a
 * tensor from host memory, wf_iter_next, wf_tape_new, wf_tape_set_iteration, wf_optim_skipped and wf_optim_loss_scale,
 * double_buffering and the `reduce` hook of wf_multi_node, another captured step, and communication that goes
 * through host memory, which on a GPU is all but NCCL's ("pure_nccl", or a single rank).
 */
#ifndef WF_CORE_CAPTURED_H
#define WF_CORE_CAPTURED_H

#include "core/context.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_captured wf_captured;

/* Calls nothing yet. On a device that captures nothing (cpu, ref) every run calls the function; one line in the log
 * says so. The caller frees it. */
wf_captured *wf_capture(wf_ctx *ctx, wf_status (*step)(void *arg), void *arg);
/* One run of the step. WF_ERR_UNSUPPORTED, that names what cannot be captured and what would help, from the third run
 * on; then nothing was computed, and nothing has changed. Else what the function returns. */
wf_status wf_captured_run(wf_captured *captured) WF_NODISCARD;
/* Whether runs are replays from now on. */
bool wf_captured_replays(const wf_captured *captured);
void wf_captured_free(wf_captured *captured);

#ifdef __cplusplus
}
#endif
#endif
