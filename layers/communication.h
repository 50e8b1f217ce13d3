/* Communication as functions: every rank computes a part of one program, and gradients are those of the serial program,
 * whose loss is the sum of what the ranks differentiate.
 *
 * Each has a name of comm/comm.h with `_var` and moves what this rank holds: a value with a layout is refused
 * (WF_ERR_SHAPE; redistribute.h moves those). Gradients travel where the value that was sent needs one; then every
 * backward of the tape runs the communication that is still open on it, with zeros where no gradient came, so all ranks
 * that took part differentiate, also one that has no loss: wf_backward or wf_optim_step from a token or wf_no_loss.
 * One that evaluates while another wants a gradient of it is WF_ERR_STATE.
 *
 * x[r] and y[r] are lists of one entry for each rank; all of one type, each of its own shape. NULL inputs and wrong
 * arguments end the communicator, as any error of a function that communicates.
 */
#ifndef WF_LAYERS_COMMUNICATION_H
#define WF_LAYERS_COMMUNICATION_H

#include "comm/comm.h"
#include "core/site.h"
#include "core/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sends x and returns a token: a scalar 0 that stands for as many samples as x in a mean over ranks. Backward receives
 * the gradient of x. To oneself: WF_ERR_ARGUMENT. */
WF_PLACED wf_var *wf_send_var(wf_comm *comm, wf_var *x, int to, int tag);
/* What wf_send_var sent, of its type and shape. Backward sends the gradient. */
WF_PLACED wf_var *wf_recv_var(wf_comm *comm, wf_tape *tape, int from, int tag);
/* x, which now depends on what the token stands for: x is what this rank goes on with, or differentiates, in its place.
 * Local. */
wf_var *wf_pseudo_connect(wf_var *token, wf_var *x);

/* Collective. x is read on the root alone. Gradient: the sum over the ranks goes to the root. */
WF_PLACED wf_var *wf_bcast_var(wf_comm *comm, wf_tape *tape, wf_var *x, int root);
/* Collective. On the root y[r] is rank r's x; elsewhere y[0] is a token and the others are NULL. Gradient: scatter. */
WF_PLACED wf_status wf_gather_var(wf_comm *comm, wf_var *x, wf_var **y, int root) WF_NODISCARD;
/* Collective. Rank r gets the root's x[r]; x is read on the root alone. Gradient: gather. */
WF_PLACED wf_var *wf_scatter_var(wf_comm *comm, wf_tape *tape, wf_var *const *x, int root);
/* Collective. y[r] is rank r's x. Gradient: all-to-all, and the sum of what came. */
WF_PLACED wf_status wf_allgather_var(wf_comm *comm, wf_var *x, wf_var **y) WF_NODISCARD;
/* Collective. y[r] is what rank r has for this one. Gradient: all-to-all. */
WF_PLACED wf_status wf_alltoall_var(wf_comm *comm, wf_var *const *x, wf_var **y) WF_NODISCARD;
/* Collective. The sum over the ranks. Gradient: the sum over the ranks. */
WF_PLACED wf_var *wf_allreduce_var(wf_comm *comm, wf_var *x);
/* Collective. On rank r the sum over the ranks of their x[r]. Gradient: all-gather. */
WF_PLACED wf_var *wf_reduce_scatter_var(wf_comm *comm, wf_var *const *x);

#ifdef __cplusplus
}
#endif

#endif
