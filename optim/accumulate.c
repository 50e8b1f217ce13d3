/* Several backwards for one step: weights losses by their samples and adds gradients until wf_optim_step. Nothing is
 * sent between ranks before the step. */
#include "comm/mesh.h"
#include "optim/optim_impl.h"

#include <stdlib.h>

/* Also frees what an archive brought and no backward has used. */
void wf_accumulated_forget(wf_optim *optim)
{
    optim->adding = false;
    for (int64_t i = 0; optim->restored && i < optim->n; i++)
        wf_tensor_free(optim->restored[i]);
    free(optim->restored);
    optim->restored = NULL;
}

/* Called by the next backward, once gradients have memory: loading happens before that exists. */
wf_status wf_accumulated_restore(wf_optim *optim)
{
    if (!optim->restored)
        return WF_OK;
    for (int64_t i = 0; i < optim->n; i++) {
        WF_TRY(wf_tensor_assign(optim->target[i]->grad, optim->restored[i]));
        wf_tensor_free(optim->restored[i]);
        optim->restored[i] = NULL;
    }
    free(optim->restored);
    optim->restored = NULL;
    return WF_OK;
}

/* A local optimizer cannot complete a sum over ranks, and would train on a part of the gradient. */
static wf_status check_local(const wf_var *loss)
{
    const wf_layout layout = wf_tensor_layout(wf_value(loss));
    char text[WF_LAYOUT_TEXT];
    for (int axis = 0; layout.known && axis < WF_AXES; axis++)
        WF_CHECK(layout.placement[axis] != WF_PARTIAL || wf_mesh_size(layout.mesh, (wf_axis)axis) == 1, WF_ERR_STATE,
                 "the loss is a part of a sum over ranks (%s); wrap the optimizer in wf_multi_node",
                 wf_layout_text(&layout, text));
    return WF_OK;
}

/* A mean tells over how many samples it is; anything else cannot be weighed against another loss. */
wf_status wf_loss_samples(const wf_var *loss, double *weight)
{
    WF_CHECK(loss->no_loss || loss->loss_count > 0 || loss->loss_mean || loss->loss_counted, WF_ERR_STATE,
             "the loss is no mean over samples, so its weight among others is unknown; end it in wf_mean or a loss "
             "function");
    *weight = loss->loss_count;
    return WF_OK;
}

/* A batch without samples still runs backward, with a seed of 0; if other ranks' gradients pass through it, 1 keeps
 * them. */
double wf_loss_seed(const wf_var *loss, double weight)
{
    return weight > 0 ? weight : loss->loss_relays ? 1 : WF_ZERO;
}

static wf_tensor *number_new(wf_ctx *ctx)
{
    return wf_tensor_new_step(ctx, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR);
}

/* Views a tensor of one element, of any rank, as a number. */
static wf_strided view_number(const wf_tensor *x)
{
    return (wf_strided){.data = x->data, .dtype = x->dtype};
}

wf_status wf_loss_add(wf_ctx *ctx, const wf_tensor *loss, double factor, const wf_array *sum, bool more)
{
    /* 0 times a loss that is not a number is no number: nothing is added. */
    if (factor == 0) /* times what may be no number */
        return more ? WF_OK : ctx->k->fill(ctx, sum, 0);
    wf_tensor *wide = number_new(ctx);
    WF_NEED(wide);
    wf_status status;
    const wf_strided from = view_number(loss), to = view_number(wide);
    const wf_array x = wf_tensor_array(wide);
    WF_TRY_OUT(ctx->k->copy(ctx, &from, &to, false));
    WF_TRY_OUT(ctx->k->binary(
        ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = factor, .a = &x, .y = sum, .accumulate = more}));
out:
    wf_tensor_free(wide);
    return status;
}

/* Back from f64 into the loss's own type; the program reads the mean of all backwards in its last loss. */
wf_status wf_loss_set(wf_ctx *ctx, const wf_strided *sum, double factor, wf_tensor *loss)
{
    wf_tensor *wide = number_new(ctx);
    WF_NEED(wide);
    wf_status status;
    const wf_strided between = view_number(wide), to = view_number(loss);
    const wf_array x = wf_tensor_array(wide);
    wf_tensor_touch(loss);
    WF_TRY_OUT(ctx->k->copy(ctx, sum, &between, false));
    WF_TRY_OUT(ctx->k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = factor, .a = &x, .y = &x}));
    WF_TRY_OUT(ctx->k->copy(ctx, &between, &to, false));
out:
    wf_tensor_free(wide);
    return status;
}

static wf_array loss_sum(const wf_optim *optim)
{
    return (wf_array){.data = &optim->device->loss, .dtype = WF_F64, .shape = wf_shape_scalar()};
}

/* Returns the seed as it was for a single loss. */
wf_status wf_optim_loss_weight(wf_optim *optim, const wf_var *loss, double *seed)
{
    const wf_array sum = loss_sum(optim);
    double weight = 0;
    WF_TRY(check_local(loss));
    /* One loss in this step: its weight is 1, whatever its samples. */
    if (!optim->more && !optim->adding)
        return WF_OK;
    if (!optim->adding)
        optim->weight_sum = 0;
    WF_TRY(wf_loss_samples(loss, &weight));
    /* Gradients are summed with the weights and divided once at the end, so that batches of different sizes count by
     * samples. */
    *seed = wf_loss_seed(loss, weight);
    optim->weight_sum += weight;
    return wf_loss_add(optim->ctx, loss->value, weight, &sum, optim->adding);
}

wf_status wf_optim_weighted_loss(wf_optim *optim, wf_var *loss, double *grad_scale)
{
    const wf_array sum = loss_sum(optim);
    const wf_strided number = wf_array_strided(&sum);
    *grad_scale = 1;
    if (!optim->adding)
        return WF_OK;
    *grad_scale = optim->weight_sum > 0 ? 1 / optim->weight_sum : 1;
    return wf_loss_set(optim->ctx, &number, *grad_scale, loss->value);
}

/* Differentiates and keeps the gradients; nothing is sent and no parameter moves. */
wf_status wf_optim_accumulate(wf_optim *optim, wf_var *loss)
{
    WF_NEED(optim);
    optim->agreed = false;
    optim->more = true;
    const wf_status status = wf_optim_differentiate(optim, loss);
    optim->more = false;
    if (status == WF_OK)
        optim->adding = true;
    else
        wf_accumulated_forget(optim);
    return status != WF_OK && optim->distributed ? optim->distributed->failed(optim, status) : status;
}
