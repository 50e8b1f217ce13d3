/* From gradients to new parameters, in one call of the kernel table for all segments. Called by wf_optim_step after the
 * sums over ranks; the loss scale, clipping and the schedule come together here. */
#include "core/captured_author.h"
#include "optim/optim_impl.h"

#include "core/profile_author.h"

#include <math.h>
#include <string.h>

/* Lists the segments to update. All ranks list the same parameters in the same order, that of the flat buffer, in which
 * parameters with the same sharding are neighbours. */
static wf_status collect_segments(wf_optim *optim, int64_t *n)
{
    *n = 0;
    for (int64_t i = 0; i < optim->n; i++) {
        const int64_t at_target = optim->distributed ? optim->target_of[i] : i;
        wf_param *param = optim->target[at_target];
        /* Parameters that the loss did not reach stay as they are, also without decay. */
        if (!param->grad)
            continue;
        const wf_tensor *value = wf_param_value(param);
        WF_NEED(value);
        const wf_optim_slot *slot = &optim->slot[optim->slot_of[at_target]];
        /* With shard_optimizer each rank updates its part of a bucket only; `updated` then gathers the parts. */
        const int64_t lo = slot->comm ? slot->lo : 0, hi = slot->comm ? slot->hi : wf_shape_count(param->shape);
        const size_t at = (size_t)lo * wf_dtype_size(param->dtype);
        optim->order[*n] = param;
        optim->segment[(*n)++] = (wf_optim_segment){.p = (char *)value->data + at,
                                                    .g = (char *)param->grad->data + at,
                                                    .state1 = slot->state[0] ? slot->state[0]->data : NULL,
                                                    .state2 = slot->state[1] ? slot->state[1]->data : NULL,
                                                    .n = hi - lo,
                                                    .grouped = slot->grouped,
                                                    .lr_scale = slot->lr_scale,
                                                    .decay = slot->decay};
    }
    WF_CHECK(*n > 0, WF_ERR_STATE, "an update without gradients; call wf_backward first");
    return WF_OK;
}

/* The share of SGD after t updates (Akiba, Suzuki and Fukuda 2017): rises exponentially up to a half at the centre,
 * then linearly with the same slope, and is 1 from half a period later on. */
static double share_of_sgd(double t, double centre, double period)
{
    const double at = (t - centre) / period;
    return at < 0 ? exp(2 * at) / 2 : at < 0.5 ? 0.5 + at : 1;
}

static wf_status hyper_of(void *own, double grad_scale, void *value)
{
    const wf_optim *optim = own;
    wf_optim_hyper hyper = optim->hyper;
    const double t = (double)(optim->steps + 1);
    hyper.lr = wf_optim_lr(optim);
    /* Computed in double on the host, once for all elements. */
    hyper.bias1 = 1 - pow(hyper.beta1, t);
    hyper.bias2 = 1 - pow(hyper.beta2, t);
    hyper.grad_scale = grad_scale;
    hyper.step = t;
    if (optim->rule->kind == WF_OPTIM_RMSPROP_SGD) {
        const wf_optim_transition *transition = optim->state;
        hyper.sgd = share_of_sgd(t - 1, transition->centre, transition->period);
        hyper.rms = (1 - hyper.sgd) * optim->hyper.rms;
    }
    memcpy(value, &hyper, sizeof hyper);
    return WF_OK;
}

static wf_status send_hyper(wf_optim *optim, double grad_scale)
{
    return wf_ctx_capture_host_op(optim->ctx, (wf_host_op){.act = hyper_of,
                                                           .own = optim,
                                                           .number = grad_scale,
                                                           .device = &optim->device->hyper,
                                                           .bytes = sizeof optim->device->hyper});
}

static wf_status count_step(void *own, double number, void *value)
{
    wf_optim *optim = own;
    optim->steps++;
    return WF_OK;
}

static void uncount_step(void *own, double number)
{
    wf_optim *optim = own;
    optim->steps--;
}

/* The norm for clipping is an argument by value of a kernel, so it must not change in replays. */
static wf_status check_clip(void *own, double captured, void *value)
{
    const wf_optim *optim = own;
    WF_CHECK(optim->clip_norm == captured, WF_ERR_STATE,
             "gradients are clipped to norm %g, and were to %g when the step was captured; capture it anew",
             optim->clip_norm, captured);
    return WF_OK;
}

/* Numbers of groups are such arguments, too. */
static wf_status check_groups(void *own, double captured, void *value)
{
    const wf_optim *optim = own;
    WF_CHECK((double)optim->group_changes == captured, WF_ERR_STATE,
             "%d groups of parameters were made since the step was captured; capture it anew",
             optim->group_changes - (int)captured);
    return WF_OK;
}

static wf_status sum_squares(wf_optim *optim, const wf_array *out)
{
    const wf_kernels *k = optim->ctx->k;
    if (optim->distributed)
        return optim->distributed->norm(optim, out);
    /* All gradients lie in one flat array, and one kernel sums them. */
    if (wf_optim_grads_current(optim)) {
        wf_array all = wf_tensor_array(optim->grads->flat);
        all.shape = WF_SHAPE(optim->grads->offset[optim->grads->n]);
        return k->sum_squares(optim->ctx, &all, out, false);
    }
    bool accumulate = false;
    for (int64_t i = 0; i < optim->n; i++)
        if (optim->target[i]->grad) {
            const wf_array one = wf_tensor_array(optim->target[i]->grad);
            WF_TRY(k->sum_squares(optim->ctx, &one, out, accumulate));
            accumulate = true;
        }
    return WF_OK;
}

/* Overflow is checked, and gradients are divided by the scale, before they are clipped by norm. */
static wf_status prepare(wf_optim *optim)
{
    const wf_kernels *k = optim->ctx->k;
    wf_optim_device *device = optim->device;
    const wf_array out = {.data = &device->sum_squares, .dtype = WF_F64, .shape = wf_shape_scalar()};
    if (optim->scales) {
        /* An overflow on one rank is one on all: a rank that skipped alone would have other parameters from then on. */
        WF_TRY(optim->distributed ? optim->distributed->overflow(optim, &out) : sum_squares(optim, &out));
        WF_TRY(k->loss_scale(optim->ctx, &device->sum_squares, &device->scaling, &device->hyper));
    }
    if (optim->clip_norm <= 0)
        return WF_OK;
    if (!optim->scales || optim->distributed)
        WF_TRY(sum_squares(optim, &out));
    return k->clip_scale(optim->ctx, &device->sum_squares, optim->clip_norm, &device->hyper);
}

/* A row of its own in a profile. */
static wf_status update(wf_optim *optim, int64_t n)
{
    const char *outside = wf_profile_layer(optim->ctx, "(optimizer)");
    const wf_optim_rule *rule = optim->rule;
    const wf_optim_work work = {.optim = optim,
                                .ctx = optim->ctx,
                                .state = optim->state,
                                .hyper = &optim->device->hyper,
                                .options = &optim->hyper,
                                .dtype = optim->target[0]->dtype,
                                .n = n,
                                .segment = optim->segment,
                                .param = optim->order};
    const wf_status status =
        rule->update ? rule->update(&work)
                     : optim->ctx->k->optim_update(optim->ctx, rule->kind, work.hyper, work.dtype, n, work.segment);
    wf_profile_layer(optim->ctx, outside);
    return status;
}

wf_status wf_optim_apply(wf_optim *optim, double grad_scale)
{
    int64_t n;
    WF_TRY(collect_segments(optim, &n));
    WF_TRY(wf_ctx_capture_host_op(
        optim->ctx, (wf_host_op){.act = check_clip, .own = optim, .number = optim->clip_norm, .check = true}));
    WF_TRY(wf_ctx_capture_host_op(
        optim->ctx, (wf_host_op){.act = check_groups, .own = optim, .number = optim->group_changes, .check = true}));
    WF_TRY(send_hyper(optim, grad_scale));
    if (optim->distributed)
        WF_TRY(optim->distributed->verdict(optim));
    WF_TRY(prepare(optim));
    WF_TRY(update(optim, n));
    if (optim->distributed && optim->distributed->updated)
        WF_TRY(optim->distributed->updated(optim));
    for (int64_t i = 0; i < optim->n; i++)
        if (optim->target[i]->grad)
            /* Packed forms and saved handles of the old value are void. */
            wf_tensor_touch(optim->target[i]->value);
    return wf_ctx_capture_host_op(optim->ctx, (wf_host_op){.act = count_step, .own = optim, .undo = uncount_step});
}
