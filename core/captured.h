/* Captured steps: a training step of fixed shape whose work is handed to the device once and is replayed from then on
 * as a whole (a CUDA graph), which saves the host the launches of a step, one by one. A replay computes what the step
 * would compute, bit for bit. Local; all ranks of a communicator run their captured steps alike.
 *
 *     static wf_status step(void *arg)
 *     {
 *         training *t = arg;
 *         wf_var *y = wf_apply(t->model, wf_input(t->tape, t->x));
 *         wf_var *loss = wf_softmax_cross_entropy(y, t->labels, (wf_label_opts){0});
 *         WF_MUST(wf_optim_step(t->optim, loss));
 *         wf_tensor_free(t->loss);
 *         t->loss = wf_keep(loss);
 *         return wf_tape_reset(t->tape);
 *     }
 *
 *     t.x = wf_tensor_copy(batch.x, WF_F32, wf_tensor_order(batch.x)), t.labels too;
 *     wf_captured *captured = wf_capture(ctx, step, &t);
 *     while (...) {
 *         WF_MUST(wf_iter_next(iter, &batch));
 *         WF_MUST(wf_tensor_assign(t.x, batch.x));
 *         WF_MUST(wf_tensor_assign(t.labels, batch.labels));
 *         WF_MUST(wf_captured_run(captured));
 *     }
 *
 * The step reads its batch from tensors that stay the same; the program refills them between runs by wf_tensor_assign
 * or wf_tensor_import. The first two runs call the function, the third run calls and captures it, and further runs
 * replay the capture without calling the function. Decisions that the function makes on the host (shapes, branches, the
 * mode of a tape, what is trainable, clipping) therefore stay as they were in the third run, and a counter of the
 * program that the function increments is incremented three times. Everything that the library itself changes from step
 * to step keeps changing: random numbers and wf_tape_iteration, learning rate and schedule, wf_optim_steps, the
 * versions of parameters. Every replay writes the tensors that wf_keep kept in the third run, so wf_tensor_item of a
 * kept loss is the loss of the last run. Traffic (wf_comm_traffic) and the calls that ranks compare are counted in the
 * first three runs only.
 *
 * The objects that the step uses (model, optimizers, tape, tensors) must outlive the captured step. A communicator may
 * fail or be closed before: further runs are an error then, and change nothing. Memory that a replay writes to is
 * reserved: work between replays never gets it.
 *
 * Not inside a step: reading a number back (wf_item, wf_tensor_item, wf_tensor_export, wf_count_correct), filling a
 * tensor from host memory, wf_iter_next, wf_tape_new, wf_tape_set_iteration, wf_optim_skipped and wf_optim_loss_scale,
 * double_buffering and the `reduce` hook of wf_multi_node, another captured step, and communication that goes
 * through host memory, which on a GPU is all but NCCL's ("pure_nccl", or a single rank), and a wf_multi_node_chain's.
 */
#ifndef WF_CORE_CAPTURED_H
#define WF_CORE_CAPTURED_H

#include "core/context.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_captured wf_captured;

/* Does not call the function yet. On a device without capture (cpu, ref) every run calls the function; one line in
 * the log says so. The caller frees it. */
wf_captured *wf_capture(wf_ctx *ctx, wf_status (*step)(void *arg), void *arg);
/* One run of the step; returns the status of the function. From the third run on, WF_ERR_UNSUPPORTED names an
 * operation that cannot be captured and what would help; nothing was computed or changed then. */
wf_status wf_captured_run(wf_captured *captured) WF_NODISCARD;
/* True once runs are replays. */
bool wf_captured_replays(const wf_captured *captured);
void wf_captured_free(wf_captured *captured);

#ifdef __cplusplus
}
#endif
#endif
