/* The node of a collective, lists of tensors, and checks, for the functions of this room: forward is in
 * communication.c, backward in communication_grad.c, messages between two ranks in communication_point.c. */
#ifndef WF_LAYERS_COMMUNICATION_IMPL_H
#define WF_LAYERS_COMMUNICATION_IMPL_H

#include "comm/comm_author.h"
#include "layers/communication.h"
#include "layers/functions/functions_impl.h"

/* What a node of a collective knows: on ranks that got a list, its shapes, whose elements are one behind the other in
 * the node's value. */
typedef struct wf_group_state {
    wf_comm *comm;
    int root;
    int n_out; /* 0: the value is the result */
    wf_shape shape[];
} wf_group_state;

extern const wf_op wf_bcast_op, wf_gather_op, wf_scatter_op, wf_allgather_op, wf_alltoall_op, wf_allreduce_op,
    wf_reduce_scatter_op;

/* Tensors in pool memory, NULL at first; freed with the list. */
typedef struct wf_tensors {
    wf_ctx *ctx;
    int n;
    wf_tensor **t;
} wf_tensors;
wf_status wf_tensors_new(wf_ctx *ctx, int n, wf_tensors *list) WF_NODISCARD;
void wf_tensors_free(wf_tensors *list);
/* Views of a dense tensor of rank 1, one behind the other. */
wf_status wf_tensors_split(wf_tensors *list, const wf_tensor *packed, const wf_shape *shape) WF_NODISCARD;

/* A tensor for one step in the order in which ranks exchange. */
wf_tensor *wf_exchanged_new(wf_ctx *ctx, wf_dtype dtype, wf_shape shape);
/* x in that order: a handle to be freed. */
wf_tensor *wf_exchanged_value(const wf_tensor *x);

/* x can be communicated. */
wf_status wf_communication_check(const char *what, const wf_var *x) WF_NODISCARD;
/* Every function of this folder ends through one of these two: the other ranks are told of an error, since they wait
 * for what this rank will not send. The status, or NULL. */
wf_status wf_communication_end(wf_comm *comm, wf_status status);
void *wf_communication_null(wf_comm *comm, wf_status status);
/* A scalar 0. */
wf_tensor *wf_token_value(wf_ctx *ctx);
/* The token counts as many samples as x. NULL passes. */
wf_var *wf_token_mark(wf_var *token, const wf_var *x);

#endif
