/* Several backwards towards one step. */
#include "comm/mesh.h"
#include "optim/optim_impl.h"

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

/* What a loss counts among others: the samples that it is a mean of. */
static wf_status weight_of(const wf_var *loss, double *weight)
{
    WF_CHECK(loss->no_loss || loss->loss_count > 0 || loss->loss_mean, WF_ERR_STATE,
             "the loss is no mean over samples, so its weight among others is unknown; end it in wf_mean or a loss "
             "function");
    *weight = (double)loss->loss_count;
    return WF_OK;
}

wf_status wf_optim_weigh(wf_optim *optim, const wf_var *loss, double *seed)
{
    double weight = 0;
    WF_TRY(check_local(loss));
    if (!optim->more && !optim->adding)
        return WF_OK;
    if (!optim->adding)
        optim->loss_sum = optim->weight_sum = 0;
    WF_TRY(weight_of(loss, &weight));
    *seed = weight > 0 ? weight : WF_ZERO;
    optim->weight_sum += weight;
    optim->loss_sum += weight > 0 ? weight * wf_item(loss) : 0;
    return WF_OK;
}

wf_status wf_optim_weighed(wf_optim *optim, wf_var *loss, double *grad_scale)
{
    if (!optim->adding)
        return WF_OK;
    *grad_scale = optim->weight_sum > 0 ? 1 / optim->weight_sum : 1;
    return wf_tensor_fill(loss->value, optim->loss_sum * *grad_scale);
}

wf_status wf_optim_differentiate(wf_optim *optim, wf_var *loss)
{
    double seed = 1;
    WF_NEED(loss);
    WF_TRY(wf_optim_bind(optim));
    WF_TRY(optim->across ? optim->across->weigh(optim, loss, &seed) : wf_optim_weigh(optim, loss, &seed));
    return wf_optim_backward(optim, loss, seed);
}

wf_status wf_optim_accumulate(wf_optim *optim, wf_var *loss)
{
    WF_NEED(optim);
    optim->agreed = false;
    optim->more = true;
    const wf_status status = wf_optim_differentiate(optim, loss);
    optim->more = false;
    optim->adding = status == WF_OK;
    return status != WF_OK && optim->across ? optim->across->failed(optim, status) : status;
}
