/* The backward functions of these collectives, which are collectives themselves: every rank that took part in
 * forward must run them. */
#include "layers/communication/communication_impl.h"

#include <string.h>

wf_status wf_tensors_new(wf_ctx *ctx, int n, wf_tensors *list)
{
    void *memory;
    *list = (wf_tensors){.ctx = ctx};
    WF_TRY(wf_pool_take_host(ctx, (size_t)n * sizeof *list->t, &memory));
    list->t = memory;
    list->n = n;
    if (n > 0)
        memset(list->t, 0, (size_t)n * sizeof *list->t);
    return WF_OK;
}

void wf_tensors_free(wf_tensors *list)
{
    for (int i = 0; i < list->n; i++)
        wf_tensor_free(list->t[i]);
    wf_pool_give_host(list->ctx, list->t, (size_t)list->n * sizeof *list->t);
    list->n = 0;
}

/* Views of one array: the collective reads and writes the parts in place. */
wf_status wf_tensors_split(wf_tensors *list, const wf_tensor *packed, const wf_shape *shape)
{
    wf_box box = {.rank = 1};
    for (int i = 0; i < list->n; i++) {
        box.lo[0] = box.hi[0];
        box.hi[0] += wf_shape_count(shape[i]);
        wf_tensor *view = wf_tensor_view(packed, box);
        WF_NEED(view);
        list->t[i] = wf_tensor_recast(view, shape[i], wf_order_default(shape[i].rank));
        wf_tensor_free(view);
        WF_NEED(list->t[i]);
    }
    return WF_OK;
}

/* The output's gradient as the list that the output was. */
static wf_status grads_out(const wf_node *node, wf_tensors *list)
{
    const wf_group_state *state = node->state;
    WF_TRY(wf_tensors_new(wf_tape_ctx(node->tape), state->n_out, list));
    return wf_tensors_split(list, wf_node_dy(node), state->shape);
}

/* Room for the gradients of all inputs. */
static wf_status grads_in(const wf_node *node, wf_tensors *list)
{
    WF_TRY(wf_tensors_new(wf_tape_ctx(node->tape), node->n_in, list));
    for (int i = 0; i < list->n; i++) {
        const wf_tensor *x = node->in[i]->value;
        /* Made even if it is not wanted, since the collective has to be complete. */
        list->t[i] = wf_exchanged_new(x->ctx, x->dtype, x->shape);
        WF_NEED(list->t[i]);
    }
    return WF_OK;
}

static wf_status give_all(wf_node *node, wf_tensors *list)
{
    for (int i = 0; i < list->n; i++) {
        wf_tensor *dx = list->t[i];
        list->t[i] = NULL;
        WF_TRY(wf_node_give(node, i, dx, false));
    }
    return WF_OK;
}

static wf_comm *comm_of(const wf_node *node)
{
    return ((const wf_group_state *)node->state)->comm;
}

static int root_of(const wf_node *node)
{
    return ((const wf_group_state *)node->state)->root;
}

/* Copies go out, so gradients are summed: broadcast and reduce are each other's backward. */
static wf_status to_root(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    (void)dy;
    return wf_reduce(comm_of(node), wf_node_dy(node), dx->n ? dx->t[0] : NULL, WF_SUM, root_of(node));
}

static wf_status to_sources(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    return wf_scatter(comm_of(node), dy->t, dx->t[0], root_of(node));
}

static wf_status to_list(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    (void)dy;
    return wf_gather(comm_of(node), wf_node_dy(node), dx->t, root_of(node));
}

/* Every rank got every part; the gradient of a part is the sum of what all ranks give for it. */
static wf_status to_sums(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    return wf_reduce_scatter(comm_of(node), dy->t, dx->t[0], WF_SUM);
}

static wf_status back_and_forth(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    return wf_alltoall(comm_of(node), dy->t, dx->t);
}

static wf_status to_sum(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    (void)dy;
    return wf_allreduce(comm_of(node), wf_node_dy(node), dx->t[0], WF_SUM);
}

static wf_status to_all(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx)
{
    (void)dy;
    return wf_allgather(comm_of(node), wf_node_dy(node), dx->t);
}

static wf_status backward(wf_node *node);

/* `always`: also without a gradient from above, since other ranks may have one. */
const wf_op wf_bcast_op = {.name = "bcast", .backward = backward, .always = true};
const wf_op wf_gather_op = {.name = "gather", .backward = backward, .always = true};
const wf_op wf_scatter_op = {.name = "scatter", .backward = backward, .always = true};
const wf_op wf_allgather_op = {.name = "allgather", .backward = backward, .always = true};
const wf_op wf_alltoall_op = {.name = "alltoall", .backward = backward, .always = true};
const wf_op wf_allreduce_op = {.name = "allreduce", .backward = backward, .always = true};
const wf_op wf_reduce_scatter_op = {.name = "reduce_scatter", .backward = backward, .always = true};

/* Fills one list from the other. */
static const struct {
    const wf_op *of;
    wf_status (*move)(const wf_node *node, const wf_tensors *dy, const wf_tensors *dx);
} moves[] = {{&wf_bcast_op, to_root},        {&wf_gather_op, to_sources},       {&wf_scatter_op, to_list},
             {&wf_allgather_op, to_sums},    {&wf_alltoall_op, back_and_forth}, {&wf_allreduce_op, to_sum},
             {&wf_reduce_scatter_op, to_all}};

static wf_status backward(wf_node *node)
{
    wf_tensors dy = {0}, dx = {0};
    wf_status status;
    int i = 0;
    /* Every operation of this file is in the table. */
    while (moves[i].of != node->op)
        i++;
    WF_TRY_OUT(grads_out(node, &dy));
    WF_TRY_OUT(grads_in(node, &dx));
    WF_TRY_OUT(moves[i].move(node, &dy, &dx));
    WF_TRY_OUT(give_all(node, &dx));
out:
    wf_tensors_free(&dy);
    wf_tensors_free(&dx);
    return status;
}
