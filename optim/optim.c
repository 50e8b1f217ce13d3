/* The optimizer as an object: the step, the update alone, clipping, learning rate. It knows no communicator; what a
 * multi-node optimizer does differently are functions that multi_node.c sets. */
#include "layers/layer_author.h"
#include "optim/optim_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* NaN fails these checks too. */
static wf_status at_least_0(const wf_optim_rule *rule, const char *field, double value)
{
    WF_CHECK(value >= 0 && isfinite(value), WF_ERR_ARGUMENT, "%s: %s is %g; it must be 0 or more", rule->name, field,
             value);
    return WF_OK;
}

static wf_status below_1(const wf_optim_rule *rule, const char *field, double value)
{
    WF_CHECK(value >= 0 && value < 1, WF_ERR_ARGUMENT, "%s: %s is %g; it must be in [0, 1)", rule->name, field, value);
    return WF_OK;
}

static wf_status check_hyper(const wf_optim_rule *rule, const wf_optim_hyper *h)
{
    WF_TRY(at_least_0(rule, "lr", h->lr));
    WF_TRY(at_least_0(rule, "weight_decay", h->decay));
    WF_TRY(at_least_0(rule, "eps", h->eps));
    WF_TRY(at_least_0(rule, "momentum", h->momentum));
    WF_TRY(below_1(rule, "beta1", h->beta1));
    WF_TRY(below_1(rule, "beta2", h->beta2));
    WF_TRY(below_1(rule, "alpha", h->alpha));
    WF_CHECK(h->nesterov == 0 || h->momentum > 0, WF_ERR_ARGUMENT, "%s: nesterov needs a momentum above 0", rule->name);
    return WF_OK;
}

wf_optim *wf_optim_new(wf_layer *model, const wf_optim_rule *rule, wf_optim_hyper hyper, size_t state_bytes)
{
    WF_NEED_NULL(model);
    WF_NEED_NULL(rule);
    WF_TRY_NULL(check_hyper(rule, &hyper));
    wf_ctx *ctx = wf_layer_ctx(model);
    wf_optim *optim = wf_calloc(ctx, 1, sizeof *optim);
    /* The caller's rule decides how long its own state is. */
    void *device = NULL, *state = optim && state_bytes ? wf_calloc(ctx, 1, state_bytes) : NULL;
    /* What changes from step to step lies on the device, so that a captured step can be replayed with new numbers. */
    if (!optim || (state_bytes && !state) || wf_pool_take(ctx, sizeof *optim->device, &device) != WF_OK) {
        free(state);
        free(optim);
        return wf_error_null();
    }
    *optim = (wf_optim){.ctx = ctx, .model = model, .rule = rule, .hyper = hyper, .schedule = {.power = 1}};
    optim->state = state;
    optim->device = device;
    wf_layer_root(model); /* in the order of the optimizers, which is that of the serial program */
    wf_live_add(ctx, WF_LIVE_OPTIM, 1);
    return optim;
}

void *wf_optim_state(wf_optim *optim)
{
    return optim ? optim->state : NULL;
}

void wf_optim_note(wf_optim *optim, const char *format, ...)
{
    va_list args;
    if (!optim)
        return;
    va_start(args, format);
    vsnprintf(optim->note, sizeof optim->note, format, args);
    va_end(args);
}

void wf_optim_free(wf_optim *optim)
{
    if (!optim)
        return;
    /* The multi-node part first: it may have messages under way that use the gradients. */
    if (optim->distributed)
        optim->distributed->free(optim);
    wf_accumulated_forget(optim);
    wf_grads_free(optim->grads);
    for (int64_t i = 0; i < optim->n_slots; i++) {
        free(optim->slot[i].path);
        for (int s = 0; s < WF_OPTIM_STATES; s++)
            wf_tensor_free(optim->slot[i].state[s]);
    }
    free(optim->slot);
    free(optim->group);
    free(optim->target);
    free(optim->order);
    free(optim->target_of);
    free(optim->slot_of);
    free(optim->segment);
    wf_pool_give(optim->ctx, optim->device, sizeof *optim->device);
    if (optim->state && optim->rule->free)
        optim->rule->free(optim->state);
    free(optim->state);
    wf_live_add(optim->ctx, WF_LIVE_OPTIM, -1);
    free(optim);
}

/* Collective with a multi-node optimizer. After a failure every rank gets an error, or learns of one. */
wf_status wf_optim_step(wf_optim *optim, wf_var *loss)
{
    double grad_scale;
    WF_NEED(optim);
    /* `agreed`: all ranks know the outcome already, and need not be told. */
    optim->agreed = false;
    wf_status status = wf_optim_differentiate(optim, loss);
    optim->queues = true;
    if (status == WF_OK)
        status = (optim->distributed ? optim->distributed->reduce : wf_optim_weighted_loss)(optim, loss, &grad_scale);
    /* 0 means that there is nothing to apply: the first step with double buffering has no sums yet, and gradients of
     * values that differed between ranks are dropped. */
    if (status == WF_OK && grad_scale != 0)
        status = wf_optim_apply(optim, grad_scale);
    optim->queues = false;
    wf_accumulated_forget(optim);
    return status != WF_OK && optim->distributed ? optim->distributed->failed(optim, status) : status;
}

/* The flat gradients, which may be sums of several means, times the weight of the mean. */
static wf_status scale_gradients(wf_optim *optim, double factor)
{
    wf_array all = wf_tensor_array(optim->grads->flat);
    all.shape = WF_SHAPE(optim->grads->offset[optim->grads->n]);
    if (factor == 1)
        return WF_OK;
    return optim->ctx->k->binary(optim->ctx,
                                 &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = factor, .a = &all, .y = &all});
}

static wf_status gradients(wf_optim *optim, wf_var *loss)
{
    double grad_scale;
    /* Gradients of these kinds would be scaled, a part, or a step late. */
    WF_CHECK(!optim->scales && !optim->shards_state && !(optim->distributed && optim->distributed->delayed(optim)),
             WF_ERR_STATE,
             "wf_optim_gradients with a scaled loss, shard_optimizer or double_buffering, whose gradients are not the "
             "whole ones of this step");
    WF_TRY(wf_optim_differentiate(optim, loss));
    WF_TRY((optim->distributed ? optim->distributed->reduce : wf_optim_weighted_loss)(optim, loss, &grad_scale));
    optim->agreed = grad_scale == 0; /* all ranks know */
    WF_CHECK(grad_scale != 0, WF_ERR_STATE,
             "the values of the ranks differed, and are the first rank's from now on: compute the loss again");
    return scale_gradients(optim, grad_scale);
}

wf_status wf_optim_gradients(wf_optim *optim, wf_var *loss)
{
    WF_NEED(optim);
    optim->agreed = false;
    const wf_status status = gradients(optim, loss);
    wf_accumulated_forget(optim);
    return status != WF_OK && optim->distributed ? optim->distributed->failed(optim, status) : status;
}

/* Sums of the last step that double buffering still has. */
static wf_status flush(wf_optim *optim)
{
    double grad_scale;
    WF_TRY(optim->distributed->flush(optim, &grad_scale));
    if (grad_scale == 0)
        return WF_OK;
    WF_TRY(wf_optim_apply(optim, grad_scale));
    return optim->adding ? optim->distributed->resume(optim) : WF_OK;
}

wf_status wf_optim_flush(wf_optim *optim)
{
    WF_NEED(optim);
    if (!optim->distributed)
        return WF_OK;
    optim->agreed = false;
    const wf_status status = flush(optim);
    return status == WF_OK ? WF_OK : optim->distributed->failed(optim, status);
}

wf_status wf_optim_update(wf_optim *optim)
{
    WF_NEED(optim);
    /* wf_optim_update is for those who call wf_backward themselves; the three checks name what it would silently leave
     * out. */
    WF_CHECK(!optim->distributed, WF_ERR_STATE,
             "wf_optim_update on a multi-node optimizer, whose ranks would come to differ; use wf_optim_step");
    WF_CHECK(!optim->scales, WF_ERR_STATE,
             "wf_optim_update with a scaled loss, of which wf_backward knows nothing; use wf_optim_step");
    WF_CHECK(!optim->adding, WF_ERR_STATE,
             "wf_optim_update after wf_optim_accumulate; end it with wf_optim_step (wf_no_loss if nothing is left)");
    WF_TRY(wf_optim_bind(optim));
    /* What wf_backward has left in the parameters' own gradients. */
    return wf_optim_apply(optim, 1);
}

wf_status wf_optim_clip_norm(wf_optim *optim, double max_norm)
{
    WF_NEED(optim);
    WF_CHECK(max_norm >= 0 && isfinite(max_norm), WF_ERR_ARGUMENT, "clipping to norm %g; it must be 0 (off) or more",
             max_norm);
    optim->clip_norm = max_norm;
    return WF_OK;
}

wf_status wf_optim_clip_value(wf_optim *optim, double max_abs)
{
    WF_NEED(optim);
    WF_CHECK(max_abs >= 0 && isfinite(max_abs), WF_ERR_ARGUMENT, "clipping to value %g; it must be 0 (off) or more",
             max_abs);
    optim->hyper.clip_value = max_abs;
    return WF_OK;
}

static wf_schedule_opts with_defaults(wf_schedule_opts o)
{
    o.gamma = wf_opt(o.gamma, o.kind == WF_SCHEDULE_EXPONENTIAL ? 0.999 : 0.1);
    o.power = wf_opt(o.power, 1);
    o.end = wf_opt(o.end, 0);
    return o;
}

wf_optim *wf_lr_schedule(wf_optim *optim, wf_schedule_opts opts)
{
    /* NULL passes through, so that constructors can be nested; a failure frees what was handed in. */
    if (!optim)
        return NULL;
    opts = with_defaults(opts);
    if (wf_schedule_check(&opts) != WF_OK) {
        wf_optim_free(optim);
        return wf_error_null();
    }
    optim->schedule = opts;
    return optim;
}

wf_status wf_optim_set_lr(wf_optim *optim, double lr)
{
    WF_NEED(optim);
    WF_CHECK(lr >= 0 && isfinite(lr), WF_ERR_ARGUMENT, "a learning rate of %g; it must be 0 or more", lr);
    optim->hyper.lr = lr;
    return WF_OK;
}

int64_t wf_optim_steps(const wf_optim *optim)
{
    /* Steps whose gradients overflowed have counted a batch but moved nothing. */
    const int64_t skipped = wf_optim_skipped(optim);
    if (!optim)
        return 0;
    return skipped < 0 ? -1 : optim->steps - skipped;
}

wf_layer *wf_optim_model(const wf_optim *optim)
{
    return optim ? optim->model : NULL;
}

size_t wf_optim_state_bytes(const wf_optim *optim)
{
    size_t bytes = 0;
    for (int64_t i = 0; optim && i < optim->n_slots; i++)
        for (int s = 0; s < WF_OPTIM_STATES; s++)
            bytes += optim->slot[i].state[s] ? wf_tensor_bytes(optim->slot[i].state[s]) : 0;
    return bytes;
}
