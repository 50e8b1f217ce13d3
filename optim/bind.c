/* Binds an optimizer to the parameters of its model: which are trainable, and where their state is. Called at the
 * beginning of every step, accumulation and archive; it does work only where something has changed. */
#include "layers/layer_author.h"
#include "optim/optim_impl.h"

#include <string.h>

static wf_status grow_targets(wf_optim *optim, int64_t capacity)
{
    wf_ctx *ctx = optim->ctx;
    const size_t n = (size_t)capacity;
    /* Each pointer is stored at once, so that a failure of a later one frees nothing twice. */
    wf_param **target = wf_realloc(ctx, optim->target, n * sizeof(wf_param *));
    if (target)
        optim->target = target;
    wf_param **order = wf_realloc(ctx, optim->order, n * sizeof(wf_param *));
    if (order)
        optim->order = order;
    int64_t *target_of = wf_realloc(ctx, optim->target_of, n * sizeof *target_of);
    if (target_of)
        optim->target_of = target_of;
    int64_t *slot_of = wf_realloc(ctx, optim->slot_of, n * sizeof *slot_of);
    if (slot_of)
        optim->slot_of = slot_of;
    wf_optim_segment *segment = wf_realloc(ctx, optim->segment, n * sizeof *segment);
    if (segment)
        optim->segment = segment;
    if (!target || !order || !target_of || !slot_of || !segment)
        return wf_error_code();
    optim->capacity = capacity;
    return WF_OK;
}

static wf_status new_slot(wf_optim *optim, const wf_param *param, const char *path)
{
    wf_optim_slot *slots = wf_realloc(optim->ctx, optim->slot, (size_t)(optim->n_slots + 1) * sizeof *slots);
    if (!slots)
        return wf_error_code();
    optim->slot = slots;
    wf_optim_slot *slot = &slots[optim->n_slots];
    *slot = (wf_optim_slot){.path = wf_strdup(optim->ctx, path)};
    if (!slot->path)
        return wf_error_code();
    optim->n_slots++;
    const char *const *names = optim->rule->states;
    for (int s = 0; s < WF_OPTIM_STATES && names[s] && !optim->shards_state; s++) {
        slot->state[s] = wf_tensor_new_ordered(optim->ctx, param->dtype, param->shape, param->order);
        WF_NEED(slot->state[s]);
        WF_TRY(wf_tensor_fill(slot->state[s], 0));
    }
    return WF_OK;
}

static wf_status find_slot(wf_optim *optim, const wf_param *param, int64_t *found)
{
    /* Relative to the optimizer's model, so that it does not change when the model is moved into another one. */
    const char *path = wf_layer_param_name(optim->model, param);
    /* State is found by path, not by position: parameters may be frozen and freed again, and archives know paths alone.
     */
    for (*found = 0; *found < optim->n_slots; (*found)++)
        if (strcmp(optim->slot[*found].path, path) == 0)
            return WF_OK;
    return new_slot(optim, param, path);
}

static wf_status bind_targets(wf_optim *optim)
{
    for (int64_t i = 0; i < optim->n; i++) {
        const wf_param *param = optim->target[i];
        WF_CHECK(param->dtype == optim->target[0]->dtype, WF_ERR_DTYPE,
                 "parameter %s is %s and %s is %s; an optimizer takes parameters of one type", wf_param_path(param),
                 wf_dtype_name(param->dtype), wf_param_path(optim->target[0]), wf_dtype_name(optim->target[0]->dtype));
        WF_TRY(find_slot(optim, param, &optim->slot_of[i]));
        wf_groups_apply(optim, param, &optim->slot[optim->slot_of[i]]);
    }
    return WF_OK;
}

/* The flat gradients are of the parameters that are bound now: what changed has changed back. */
static bool of_targets(const wf_optim *optim)
{
    const wf_grads *grads = optim->grads;
    int64_t found = 0;
    for (int64_t i = 0; i < optim->n; i++)
        for (int64_t k = 0; k < grads->n; k++)
            found += grads->param[k] == optim->target[i];
    return found == optim->n && grads->n == optim->n;
}

wf_status wf_optim_bind(wf_optim *optim)
{
    wf_param *const *all;
    int64_t n_all, n = 0;
    WF_TRY(wf_layer_params(optim->model, &n_all, &all));
    if (n_all > optim->capacity)
        WF_TRY(grow_targets(optim, n_all));
    /* The list is compared while it is written; a step of fixed shape ends here. */
    bool same = optim->bound;
    for (int64_t i = 0; i < n_all; i++)
        if (all[i]->trainable) {
            same = same && n < optim->n && optim->target[n] == all[i];
            optim->target[n++] = all[i];
        }
    WF_CHECK(n > 0, WF_ERR_STATE, "the model of this %s optimizer has no trainable parameter", optim->rule->name);
    if (same && n == optim->n)
        return WF_OK;
    WF_CHECK(!optim->distributed || !optim->distributed->pending(optim), WF_ERR_STATE,
             "what is trainable changed while gradients are in flight (double_buffering); call wf_optim_flush before");
    WF_CHECK(!optim->adding, WF_ERR_STATE,
             "what is trainable changed between wf_optim_accumulate and the step that it belongs to");
    optim->bound = false;
    optim->n = n;
    optim->stale = optim->grads && !of_targets(optim);
    WF_TRY(bind_targets(optim));
    optim->bound = true;
    return WF_OK;
}
