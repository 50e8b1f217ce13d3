/* A model whose parts are on several ranks: components that say where their inputs come from and where their outputs
 * go (ChainerMN's MultiNodeChainList). Ranks may be passed in a circle, cross, branch, and send to themselves.
 *
 *     wf_layer *model = wf_multi_node_chain(comm);
 *     if (wf_comm_rank(comm) == 0) {
 *         WF_MUST(wf_multi_node_chain_add(model, (wf_component){
 *             .name = "encoder", .layer = encoder_new(ctx), WF_FROM({.rank = WF_OUTSIDE}), WF_TO({.rank = 1})}));
 *         WF_MUST(wf_multi_node_chain_add(model, (wf_component){
 *             .name = "head", .layer = head_new(ctx), WF_FROM({.rank = 1}), WF_TO({.rank = WF_OUTSIDE})}));
 *     } else {
 *         WF_MUST(wf_multi_node_chain_add(model, (wf_component){
 *             .name = "middle", .layer = middle_new(ctx), WF_FROM({.rank = 0}), WF_TO({.rank = 0})}));
 *     }
 *     WF_MUST(wf_multi_node_chain_connect(model));
 *     wf_optim *opt = wf_adam(model, (wf_adam_opts){0});              (each rank has the parameters of its components)
 *     wf_var *y = wf_apply(model, rank == 0 ? wf_input(tape, x) : wf_no_loss(tape));
 *     WF_MUST(wf_optim_step(opt, rank == 0 ? wf_mean(y) : y));       (on rank 1 y is a token: it runs backward there)
 *
 * The components of a rank run in the order in which they were added. A message meets the receive that has the same
 * place among the messages between the two ranks. Senders do not wait for receivers, so the order of the program is
 * all that ranks wait for; before the first message every rank knows the steps of all, and has verified that every
 * message meets its receive and that no ranks wait for each other in a circle, in both directions: backward sends
 * gradients the opposite way, in the opposite order. So no wf_pseudo_connect is needed.
 *
 * With data parallelism there are several such models side by side, each on a communicator of its own (wf_comm_split),
 * and wf_multi_node over the ranks that have the same components.
 *
 * Outputs and gradients are those of the serial program that applies the components one after the other; initial values
 * and random numbers too, where its modules have the same names.
 */
#ifndef WF_LAYERS_CHAIN_H
#define WF_LAYERS_CHAIN_H

#include "comm/comm.h"
#include "core/site.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In place of a rank: an input, or an output, of the whole model. */
#define WF_OUTSIDE (-1)

/* The other end of an input or output of a component. */
typedef struct wf_chain_end {
    int rank;         /* that has the other end; may be this one, and WF_OUTSIDE */
    const char *name; /* of the message, at most 31 characters: the other end must have the same. NULL: none */
    int output;       /* which output of the component it is; default the first. An output may go to several places */
    wf_shape shape; /* that it must have, where a length of 0 stands for any; default: any. Ends that both say one must
                       agree */
} wf_chain_end;
#define WF_FROM(...)                                                                                                   \
    .n_in = (int)(sizeof((wf_chain_end[]){__VA_ARGS__}) / sizeof(wf_chain_end)), .in = (const wf_chain_end[])          \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define WF_TO(...)                                                                                                     \
    .n_out = (int)(sizeof((wf_chain_end[]){__VA_ARGS__}) / sizeof(wf_chain_end)), .out = (const wf_chain_end[])        \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* Applies a layer that has several outputs, or in a way of its own: y[i] from x, with the layer's children
 * (wf_layer_child). */
typedef wf_status (*wf_component_function)(wf_layer *layer, void *user, wf_var *const *x, wf_var **y);

typedef struct wf_component {
    const char *name; /* letters, digits and '_', at most 31; no other component of any rank has it. Paths of parameters
                         begin with it */
    wf_layer *layer;  /* the model takes it over, also when it fails */
    wf_component_function function; /* NULL: wf_apply_n, for one output */
    void *user;                     /* given to it; borrowed */
    int outputs;                    /* of the function; default 1. Each goes somewhere */
    int n_in, n_out;
    const wf_chain_end *in, *out; /* read by wf_multi_node_chain_add */
} wf_component;

/* A model without components. The communicator is borrowed. Local. */
wf_layer *wf_multi_node_chain(wf_comm *comm);
/* WF_ERR_ARGUMENT for a component that cannot be. Local. */
wf_status wf_multi_node_chain_add(wf_layer *chain, wf_component component) WF_NODISCARD;
/* After the last component: every rank learns the steps of all and verifies them. WF_ERR_STATE, on all ranks, and
 * nothing is sent, for steps that do not fit: the message names ranks, steps, and components. Ranks without a component
 * call it, too. wf_apply calls it if the program has not; an error of it is then one that the communicator dies of.
 * Collective. */
WF_PLACED wf_status wf_multi_node_chain_connect(wf_layer *chain) WF_NODISCARD;

/* The model with any number of inputs and outputs; wf_apply and wf_apply_n are the forms for at most one output on
 * every rank (a rank without an input gives any variable of its tape). x and y: this rank's, in the order in which its
 * components name WF_OUTSIDE; NULL where there are none. Returns y[0], or on ranks without an output a token that
 * stands for as many samples as what it sends, for wf_backward, wf_optim_step or wf_pseudo_connect; NULL on failure. In
 * WF_TRAIN all ranks must run one backward on their tapes, in which gradients go back, zeros where there are none. A
 * value with a layout is WF_ERR_SHAPE. A message is the value and 8 bytes ahead. Not recomputed (wf_recompute). In a
 * captured step on a GPU it is WF_ERR_UNSUPPORTED on every rank, by NCCL too: messages go through the host's memory, in
 * the order of each rank's components, while NCCL needs one order of all ranks; that of a pipeline (layers/pipeline.h)
 * can be captured. Collective. */
WF_PLACED wf_var *wf_multi_node_chain_apply(wf_layer *chain, wf_tape *tape, int n_x, wf_var *const *x, int n_y,
                                            wf_var **y);

#ifdef __cplusplus
}
#endif

#endif
