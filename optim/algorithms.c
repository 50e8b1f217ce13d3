/* The optimizers of the library: their rules, and the defaults of their options. The arithmetic is in the kernel table.
 */
#include "core/random_author.h"
#include "optim/optim_impl.h"

#include <math.h>
#include <string.h>

/* Names of rules and of states are part of files and must not change. SGD without momentum has no state. */
static const wf_optim_rule sgd = {.name = "sgd", .kind = WF_OPTIM_SGD};
static const wf_optim_rule sgd_momentum = {.name = "sgd", .states = {"momentum"}, .kind = WF_OPTIM_SGD};
static const wf_optim_rule adam = {.name = "adam", .states = {"m", "v"}, .kind = WF_OPTIM_ADAM};
static const wf_optim_rule adamw = {.name = "adamw", .states = {"m", "v"}, .kind = WF_OPTIM_ADAMW};
static const wf_optim_rule rmsprop = {.name = "rmsprop", .states = {"v"}, .kind = WF_OPTIM_RMSPROP};
static const wf_optim_rule radam = {.name = "radam", .states = {"m", "v"}, .kind = WF_OPTIM_RADAM};
static const wf_optim_rule adagrad = {.name = "adagrad", .states = {"v"}, .kind = WF_OPTIM_ADAGRAD};
static const wf_optim_rule rmsprop_sgd = {
    .name = "rmsprop_sgd", .states = {"momentum", "v"}, .kind = WF_OPTIM_RMSPROP_SGD};
/* Declared here for the list below; their definitions need functions that come later. */
static const wf_optim_rule lamb, lars;

/* In files a rule is its place here; one of a program, whose names are unknown here, is a hash of its name. */
static const wf_optim_rule *const rules[] = {&sgd,  &adam,  &adamw,   &rmsprop,    &lamb,
                                             &lars, &radam, &adagrad, &rmsprop_sgd};

int64_t wf_optim_rule_number(const wf_optim_rule *rule)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i]->name, rule->name) == 0)
            return (int64_t)i;
    /* Bit 32 is set, so that no hash is the place of a rule; the sign bit is clear. */
    return (int64_t)(wf_hash_text(0, rule->name) >> 1 | (uint64_t)1 << 32);
}

const char *wf_optim_rule_name(int64_t number)
{
    const bool known = number >= 0 && number < (int64_t)(sizeof rules / sizeof *rules);
    return known ? rules[number]->name : "an optimizer that the library does not know";
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
    /* Without momentum there is no state, which saves a copy of the parameters. */
    return wf_optim_new(model, wf_opt(opts.momentum, 0) == 0 ? &sgd : &sgd_momentum,
                        (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                         .momentum = wf_opt(opts.momentum, 0),
                                         .decay = wf_opt(opts.weight_decay, 0),
                                         .nesterov = opts.nesterov ? 1 : 0},
                        0);
}

wf_optim *wf_adam(wf_layer *model, wf_adam_opts opts)
{
    WF_NEED_NULL(model);
    return wf_optim_new(model, &adam, adam_hyper(opts, 0), 0);
}

wf_optim *wf_adamw(wf_layer *model, wf_adam_opts opts)
{
    WF_NEED_NULL(model);
    return wf_optim_new(model, &adamw, adam_hyper(opts, 0.01), 0);
}

wf_optim *wf_rmsprop(wf_layer *model, wf_rmsprop_opts opts)
{
    WF_NEED_NULL(model);
    return wf_optim_new(model, &rmsprop,
                        (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                         .alpha = wf_opt(opts.alpha, 0.99),
                                         .eps = wf_opt(opts.eps, 1e-8),
                                         .decay = wf_opt(opts.weight_decay, 0)},
                        0);
}

/* Akiba et al. 2017: RMSprop at the beginning, SGD with momentum later, with a smooth transition around update
 * `centre`. */
wf_optim *wf_rmsprop_sgd(wf_layer *model, wf_rmsprop_sgd_opts opts)
{
    WF_NEED_NULL(model);
    /* As a ratio, since schedules change lr: both rates then change alike. */
    const double lr = wf_opt(opts.lr, 0.1), rms = wf_opt(opts.rmsprop_lr, 3e-4);
    opts.period = opts.period ? opts.period : (opts.centre + 1) / 2;
    WF_CHECK_NULL(opts.centre > 0 && opts.period > 0, WF_ERR_ARGUMENT,
                  "rmsprop_sgd: centre is %lld and period %lld: both should be 1 or more", (long long)opts.centre,
                  (long long)opts.period);
    WF_CHECK_NULL(lr > 0 && rms >= 0 && isfinite(rms), WF_ERR_ARGUMENT,
                  "rmsprop_sgd: lr is %g and rmsprop_lr %g: should be above 0, and 0 or more", lr, rms);
    wf_optim *optim = wf_optim_new(model, &rmsprop_sgd,
                                   (wf_optim_hyper){.lr = lr,
                                                    .momentum = wf_opt(opts.momentum, 0.9),
                                                    .alpha = wf_opt(opts.alpha, 0.99),
                                                    .eps = wf_opt(opts.eps, 1e-8),
                                                    .decay = wf_opt(opts.weight_decay, 0),
                                                    .rms = rms / lr},
                                   sizeof(wf_optim_transition));
    if (!optim)
        return NULL;
    *(wf_optim_transition *)wf_optim_state(optim) =
        (wf_optim_transition){.centre = (double)opts.centre, .period = (double)opts.period};
    wf_optim_note(optim, ", centre %lld, period %lld", (long long)opts.centre, (long long)opts.period);
    return optim;
}

wf_optim *wf_radam(wf_layer *model, wf_adam_opts opts)
{
    WF_NEED_NULL(model);
    return wf_optim_new(model, &radam, adam_hyper(opts, 0), 0);
}

wf_optim *wf_adagrad(wf_layer *model, wf_adagrad_opts opts)
{
    WF_NEED_NULL(model);
    return wf_optim_new(model, &adagrad,
                        (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                         .eps = wf_opt(opts.eps, 1e-10),
                                         .decay = wf_opt(opts.weight_decay, 0)},
                        0);
}

/* --- LAMB ----------------------------------------------------------------------------------------------------------
 */

/* Options beyond wf_optim_hyper. */
typedef struct lamb_state {
    bool plain_vectors, scale_undecayed;
} lamb_state;

/* As apex's FusedLAMB does it: a parameter without decay moves as with Adam, unless the options say otherwise. */
static wf_trust lamb_how(const wf_optim_work *work, const wf_param *param)
{
    const lamb_state *own = work->state;
    const bool decays = work->options->decay > 0 && !(own->plain_vectors && param->shape.rank < 2);
    if (decays)
        return WF_TRUST_SCALED;
    return own->scale_undecayed ? WF_TRUST_SCALED_NO_DECAY : WF_TRUST_NO_DECAY;
}

static wf_status lamb_update(const wf_optim_work *work)
{
    return wf_optim_trust(work, WF_OPTIM_ADAMW, lamb_how);
}

static const wf_optim_rule lamb = {.name = "lamb", .states = {"m", "v"}, .update = lamb_update};

wf_optim *wf_lamb(wf_layer *model, wf_lamb_opts opts)
{
    WF_NEED_NULL(model);
    const wf_optim_hyper hyper = {.lr = wf_opt(opts.lr, 1e-3),
                                  .beta1 = wf_opt(opts.beta1, 0.9),
                                  .beta2 = wf_opt(opts.beta2, 0.999),
                                  .eps = wf_opt(opts.eps, 1e-6),
                                  .decay = wf_opt(opts.weight_decay, 0.01)};
    wf_optim *optim = wf_optim_new(model, &lamb, hyper, sizeof(lamb_state));
    lamb_state *own = wf_optim_state(optim);
    if (!optim)
        return NULL;
    *own = (lamb_state){.plain_vectors = opts.plain_vectors, .scale_undecayed = opts.scale_undecayed};
    wf_optim_note(optim, "%s%s", own->plain_vectors ? ", plain vectors" : "",
                  own->scale_undecayed ? ", scaled without decay" : "");
    return optim;
}

/* --- LARS ----------------------------------------------------------------------------------------------------------
 */

/* You et al. 2017 scale whole layers; biases and factors of norms, of rank 1, neither decay nor are scaled. */
static wf_trust lars_how(const wf_optim_work *work, const wf_param *param)
{
    return param->shape.rank < 2 ? WF_TRUST_NO_DECAY : WF_TRUST_SCALED;
}

static wf_status lars_update(const wf_optim_work *work)
{
    return wf_optim_trust(work, WF_OPTIM_SGD, lars_how);
}

static const wf_optim_rule lars = {.name = "lars", .states = {"momentum"}, .update = lars_update};

wf_optim *wf_lars(wf_layer *model, wf_lars_opts opts)
{
    WF_NEED_NULL(model);
    return wf_optim_new(model, &lars,
                        (wf_optim_hyper){.lr = wf_opt(opts.lr, 0.01),
                                         .momentum = wf_opt(opts.momentum, 0.9),
                                         .decay = wf_opt(opts.weight_decay, 1e-4),
                                         .nesterov = opts.nesterov ? 1 : 0},
                        0);
}
