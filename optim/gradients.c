/* Backward towards the parameters of one optimizer, into its flat buffer; each gradient that is complete is reported to
 * the multi-node optimizer, if it is one. Every step calls it (optim.c, accumulate.c). Gradients of other models on the
 * tape are not computed. */
#include "optim/optim_impl.h"

bool wf_optim_grads_current(const wf_optim *optim)
{
    const wf_grads *grads = optim->grads;
    if (!grads || optim->stale)
        return false;
    for (int64_t i = 0; i < grads->n; i++) {
        const wf_tensor *grad = grads->param[i]->grad;
        /* Another optimizer of the same parameters has laid out gradients of its own meanwhile. */
        if (!grad || grad->storage != grads->flat->storage)
            return false;
    }
    return true;
}

static bool listed(int64_t n, wf_param *const *list, const wf_param *param)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == param)
            return true;
    return false;
}

/* Once per layout of gradients, so a search will do. */
static int64_t target_of(const wf_optim *optim, const wf_param *param)
{
    int64_t i = 0;
    while (optim->target[i] != param)
        i++;
    return i;
}

/* In the order in which gradients become complete; those that this backward does not reach come last. */
static wf_status make_grads(wf_optim *optim, int64_t n, wf_param *const *reached)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++)
        optim->order[at++] = reached[i];
    for (int64_t i = 0; i < optim->n; i++)
        if (!listed(n, reached, optim->target[i]))
            optim->order[at++] = optim->target[i];
    const wf_optim_distributed *distributed = optim->distributed;
    if (distributed)
        WF_TRY(distributed->agree(optim, at, optim->order));
    wf_grads_free(optim->grads);
    optim->stale = false;
    optim->grads = wf_grads_new(optim->ctx, at, optim->order, distributed ? distributed->trailer : 0);
    WF_NEED(optim->grads);
    for (int64_t i = 0; i < at; i++)
        optim->target_of[i] = target_of(optim, optim->order[i]);
    return WF_OK;
}

static wf_status plan(void *user, int64_t n, wf_param *const *reached)
{
    wf_optim *optim = user;
    const bool current = wf_optim_grads_current(optim);
    WF_CHECK(current || !optim->adding || optim->restored, WF_ERR_STATE,
             "another optimizer took the gradients between wf_optim_accumulate and the step that they belong to");
    if (!current)
        WF_TRY(make_grads(optim, n, reached));
    WF_TRY(wf_accumulated_restore(optim));
    /* Parameters that this loss does not reach have a gradient of zero, and not that of the step before. */
    for (int64_t i = 0; !optim->adding && n < optim->n && i < optim->n; i++)
        if (!listed(n, reached, optim->target[i]))
            WF_TRY(wf_tensor_fill(optim->target[i]->grad, 0));
    return optim->distributed && !optim->more ? optim->distributed->begin(optim, n, reached) : WF_OK;
}

static wf_status ready(void *user, wf_param *param)
{
    wf_optim *optim = user;
    return optim->distributed && !optim->more ? optim->distributed->ready(optim, param) : WF_OK;
}

wf_status wf_optim_differentiate(wf_optim *optim, wf_var *loss)
{
    double seed = 1;
    if (!loss)
        return wf_error_take("the loss", __FILE__, __LINE__);
    WF_TRY(wf_optim_bind(optim));
    /* Before backward, since the weight of the loss is the seed of its gradient. */
    WF_TRY(optim->distributed ? optim->distributed->loss_weight(optim, loss, &seed)
                              : wf_optim_loss_weight(optim, loss, &seed));
    const wf_backward_opts opts = {.n_params = optim->n,
                                   .params = optim->target,
                                   .seed = seed,
                                   .scale = optim->scales ? &optim->device->scaling.seed : NULL,
                                   .add = optim->adding,
                                   .plan = plan,
                                   .ready = ready,
                                   .user = optim};
    WF_CHECK(loss->needs_grad || loss->no_loss, WF_ERR_STATE,
             "a step with a loss that depends on no parameter, or that was computed in WF_EVAL");
    return wf_backward_run(loss, NULL, &opts);
}
