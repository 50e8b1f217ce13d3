/* The constructors of the optimizers and the ranges of their options. The arithmetic is in the kernel table. Options
 * are checked here once; a step checks nothing. */
#include "optim/optim_impl.h"

#include <math.h>

typedef struct algorithm {
    const char *name;
    const char *states[WF_OPTIM_STATES];
} algorithm;

/* Names of states are part of files and must not change. */
static const algorithm algorithms[] = {
    [WF_OPTIM_SGD] = {"sgd", {"momentum"}},
    [WF_OPTIM_ADAM] = {"adam", {"m", "v"}},
    [WF_OPTIM_ADAMW] = {"adamw", {"m", "v"}},
    [WF_OPTIM_RMSPROP] = {"rmsprop", {"v"}},
};

const char *wf_optim_kind_name(wf_optim_kind kind)
{
    return kind <= WF_OPTIM_RMSPROP ? algorithms[kind].name : "unknown";
}

const char *const *wf_optim_state_names(const wf_optim *optim)
{
    static const char *const none[WF_OPTIM_STATES] = {NULL};
    /* SGD without momentum has no state, and an archive of it holds none. */
    const bool stateless = optim->kind == WF_OPTIM_SGD && optim->hyper.momentum == 0;
    return stateless ? none : algorithms[optim->kind].states;
}

static wf_status at_least_0(wf_optim_kind kind, const char *field, double value)
{
    WF_CHECK(value >= 0 && isfinite(value), WF_ERR_ARGUMENT, "wf_%s: %s is %g; it must be 0 or more",
             wf_optim_kind_name(kind), field, value);
    return WF_OK;
}

static wf_status below_1(wf_optim_kind kind, const char *field, double value)
{
    WF_CHECK(value >= 0 && value < 1, WF_ERR_ARGUMENT, "wf_%s: %s is %g; it must be in [0, 1)",
             wf_optim_kind_name(kind), field, value);
    return WF_OK;
}

static wf_status check_hyper(wf_optim_kind kind, const wf_optim_hyper *h)
{
    WF_TRY(at_least_0(kind, "lr", h->lr));
    WF_TRY(at_least_0(kind, "weight_decay", h->decay));
    WF_TRY(at_least_0(kind, "eps", h->eps));
    WF_TRY(at_least_0(kind, "momentum", h->momentum));
    WF_TRY(below_1(kind, "beta1", h->beta1));
    WF_TRY(below_1(kind, "beta2", h->beta2));
    WF_TRY(below_1(kind, "alpha", h->alpha));
    WF_CHECK(h->nesterov == 0 || h->momentum > 0, WF_ERR_ARGUMENT, "wf_%s: nesterov needs a momentum above 0",
             wf_optim_kind_name(kind));
    return WF_OK;
}

static wf_optim *make_optim(wf_layer *model, wf_optim_kind kind, wf_optim_hyper hyper)
{
    if (!model)
        return NULL;
    WF_TRY_NULL(check_hyper(kind, &hyper));
    return wf_optim_new(model, kind, hyper);
}

/* Defaults are those of Kingma and Ba 2015; AdamW adds 0.01 of decoupled decay. */
static wf_optim_hyper adam_hyper(wf_adam_opts opts, double decay)
{
    return (wf_optim_hyper){.lr = wf_opt(opts.lr, 1e-3),
                            .beta1 = wf_opt(opts.beta1, 0.9),
                            .beta2 = wf_opt(opts.beta2, 0.999),
                            .eps = wf_opt(opts.eps, 1e-8),
                            .decay = wf_opt(opts.weight_decay, decay)};
}

wf_optim *wf_sgd(wf_layer *model, wf_sgd_opts opts)
{
    WF_NEED_NULL(model);
    return make_optim(model, WF_OPTIM_SGD,
                      (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                       .momentum = wf_opt(opts.momentum, 0),
                                       .decay = wf_opt(opts.weight_decay, 0),
                                       .nesterov = opts.nesterov ? 1 : 0});
}

wf_optim *wf_adam(wf_layer *model, wf_adam_opts opts)
{
    WF_NEED_NULL(model);
    return make_optim(model, WF_OPTIM_ADAM, adam_hyper(opts, 0));
}

wf_optim *wf_adamw(wf_layer *model, wf_adam_opts opts)
{
    WF_NEED_NULL(model);
    return make_optim(model, WF_OPTIM_ADAMW, adam_hyper(opts, 0.01));
}

wf_optim *wf_rmsprop(wf_layer *model, wf_rmsprop_opts opts)
{
    WF_NEED_NULL(model);
    return make_optim(model, WF_OPTIM_RMSPROP,
                      (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                       .alpha = wf_opt(opts.alpha, 0.99),
                                       .eps = wf_opt(opts.eps, 1e-8),
                                       .decay = wf_opt(opts.weight_decay, 0)});
}
