#include "examples/scaled_rmsprop.h"

#include <weft/optim/optim_author.h>

static wf_trust how(const wf_optim_work *work, const wf_param *param)
{
    return wf_param_shape(param).rank < 2 ? WF_TRUST_NO_DECAY : WF_TRUST_SCALED;
}

static wf_status update(const wf_optim_work *work)
{
    return wf_optim_trust(work, WF_OPTIM_RMSPROP, how);
}

wf_optim *scaled_rmsprop(wf_layer *model, scaled_rmsprop_opts opts)
{
    static const wf_optim_rule rule = {.name = "scaled_rmsprop", .states = {"v"}, .update = update};
    return wf_optim_new(model, &rule,
                        (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                         .alpha = wf_opt(opts.alpha, 0.99),
                                         .eps = 1e-8,
                                         .decay = wf_opt(opts.weight_decay, 1e-4)},
                        0);
}
