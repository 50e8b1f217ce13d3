/* Communication as functions with gradients. Every rank computes a part of one program; gradients are those of the
 * serial program whose loss is the sum of the losses that the ranks differentiate.
 *
 * Each function has the name of its counterpart in comm/comm.h with `_var` appended. It moves this rank's own value; a
 * value with a layout is WF_ERR_SHAPE (layers/redistribute.h moves those). Where a value that was sent needs a
 * gradient, backward sends the gradient in the opposite direction: every backward of the tape runs all communication on
 * it that has not been differentiated yet, with zeros where there is no gradient. So every rank that took part must run
 * backward; a rank without a loss calls wf_backward or wf_optim_step with a token or wf_no_loss. If a rank is in
 * evaluation while another one needs a gradient from it, that is WF_ERR_STATE.
 *
 * x and y are lists with one entry for each rank, all of one type on all ranks (WF_ERR_DTYPE; wf_alltoall of
 * comm/comm.h takes a type for each pair), each with a shape of its own. NULL inputs and wrong arguments make the
 * communicator dead, like any error of a function that communicates.
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
/* Receives what wf_send_var sent, with its type and shape. Backward sends the gradient. */
WF_PLACED wf_var *wf_recv_var(wf_comm *comm, wf_tape *tape, int from, int tag);
/* Returns x with a dependence on the token, so that a backward from the result also runs the communication for which
 * the token stands. Local. */
wf_var *wf_pseudo_connect(wf_var *token, wf_var *x);

/* Collective. x is read on the root alone. Gradient: the sum over the ranks goes to the root. */
WF_PLACED wf_var *wf_bcast_var(wf_comm *comm, wf_tape *tape, wf_var *x, int root);
/* Collective. On the root y[r] is rank r's x; elsewhere y[0] is a token and the others are NULL. Gradient: scatter. */
WF_PLACED wf_status wf_gather_var(wf_comm *comm, wf_var *x, wf_var **y, int root) WF_NODISCARD;
/* Collective. Rank r gets the root's x[r]; x is read on the root alone. Gradient: gather. */
WF_PLACED wf_var *wf_scatter_var(wf_comm *comm, wf_tape *tape, wf_var *const *x, int root);
/* Collective. y[r] is rank r's x. Gradient: all-to-all, then the sum of the received gradients. */
WF_PLACED wf_status wf_allgather_var(wf_comm *comm, wf_var *x, wf_var **y) WF_NODISCARD;
/* Collective. y[r] is the entry that rank r has for this rank. Gradient: all-to-all. */
WF_PLACED wf_status wf_alltoall_var(wf_comm *comm, wf_var *const *x, wf_var **y) WF_NODISCARD;
/* Collective. The sum over the ranks. Gradient: the sum over the ranks. */
WF_PLACED wf_var *wf_allreduce_var(wf_comm *comm, wf_var *x);
/* Collective. On rank r the sum over the ranks of their x[r]. Gradient: all-gather. */
WF_PLACED wf_var *wf_reduce_scatter_var(wf_comm *comm, wf_var *const *x);

#ifdef __cplusplus
}
#endif

#endif
