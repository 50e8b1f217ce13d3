/* Tied weights whose layers are on several stages: each of them keeps the parameter, begins with the same value, and
 * updates it with the sum of the gradients of all. */
#include "layers/pipeline/pipeline_impl.h"

#include "core/captured_author.h"

#include <stdio.h>
#include <stdlib.h>

void wf_pipeline_ties_free(wf_pipeline *p)
{
    /* The one behind the last was perhaps begun. */
    for (int i = 0; p->tie && i <= p->ties; i++) {
        free(p->tie[i].on);
        free(p->tie[i].come);
    }
    free(p->tie);
    p->tie = NULL;
}

/* The stage on which a parameter's layer will be. The owner may be a layer inside one that the pipeline lists: its
 * parents are looked at. */
static int stage_of(const wf_pipeline *p, int count, wf_layer *const *list, const wf_param *param)
{
    for (const wf_layer *layer = param->owner; layer; layer = layer->parent)
        for (int i = 0; i < count; i++)
            if (list[i] == layer)
                return wf_pipeline_part_of(p, i) % p->stages;
    return -1;
}

/* Marks the stages of a parameter and of those for which it stands; returns how many. */
static int mark_stages(const wf_pipeline *p, int count, wf_layer *const *list, wf_param *param, wf_pipeline_tie *tie)
{
    int n = 0;
    /* tied_next goes through all parameters that the first one stands for. */
    for (wf_param *one = param; one; one = one->tied_next) {
        const int stage = stage_of(p, count, list, one);
        if (stage < 0)
            continue;
        n += !tie->on[stage];
        tie->on[stage] = true;
        /* Any of this stage's copies will do: they share one value. */
        if (stage == p->stage && !tie->param)
            tie->param = one;
    }
    return n;
}

/* All ranks walk the whole model, before layers are dropped, and find the same ties in the same order. */
wf_status wf_pipeline_find_ties(wf_pipeline *p, int count, wf_layer *const *list)
{
    int64_t n;
    wf_param *const *param;
    WF_TRY(wf_layer_params(p->model, &n, &param));
    p->tie = wf_calloc(p->ctx, (size_t)n + 1, sizeof *p->tie);
    if (!p->tie)
        return wf_error_code();
    for (int64_t i = 0; i < n; i++) {
        if (!param[i]->tied_next)
            continue;
        wf_pipeline_tie *tie = &p->tie[p->ties];
        if (!tie->on)
            tie->on = wf_calloc(p->ctx, (size_t)p->stages, sizeof *tie->on);
        if (!tie->come)
            tie->come = wf_calloc(p->ctx, (size_t)p->stages, sizeof(*tie->come));
        if (!tie->on || !tie->come)
            return wf_error_code();
        if (mark_stages(p, count, list, param[i], tie) > 1) {
            /* Drawn under the name that all stages know. All stages draw the value under the first parameter's name, so
             * copies begin equal without a message. */
            WF_NEED(wf_param_value(param[i]));
            p->ties++;
            continue;
        }
        /* The entry was not needed, and serves the next candidate. */
        for (int s = 0; s < p->stages; s++)
            tie->on[s] = false;
        tie->param = NULL;
    }
    return WF_OK;
}

/* A tie has a stage, so this ends. */
static int first_stage(const wf_pipeline_tie *tie)
{
    int first = 0;
    while (!tie->on[first])
        first++;
    return first;
}

/* Afterwards a stage has its own copy only, and wf_layer_params lists it. */
wf_status wf_pipeline_keep_ties(wf_pipeline *p)
{
    int64_t n;
    wf_param *const *param;
    for (int i = 0; i < p->ties; i++) {
        wf_pipeline_tie *tie = &p->tie[i];
        tie->param = wf_param_of(tie->param);
        if (!tie->param)
            continue;
        /* Norms count a tied parameter once: on its first stage. */
        tie->param->counted = first_stage(tie) != p->stage;
        tie->param->stage_tie = i + 1;
    }
    WF_TRY(wf_layer_params(p->model, &n, &param));
    for (int64_t i = 0; i < n; i++)
        param[i]->stage_ties = p->ties;
    return WF_OK;
}

/* --- values ---------------------------------------------------------------------------------------------------------
 */

/* What a stage tells the first one that has the parameter. */
typedef struct copy {
    int64_t hash;
    char path[128];
} copy;

/* Every stage sends a hash to the first one; values stay where they are. */
static wf_status compare_tie(wf_pipeline *p, const wf_pipeline_tie *tie)
{
    copy mine = {.hash = 0}, theirs;
    const int first = first_stage(tie);
    WF_TRY(wf_param_hash(tie->param, &mine.hash));
    /* Longer paths are cut, which only a message shows. */
    snprintf(mine.path, sizeof mine.path, "%s", wf_param_path(tie->param));
    if (p->stage != first)
        return wf_outbox_send_bytes(p->outbox, &mine, sizeof mine, first);
    for (int stage = first + 1; stage < p->stages; stage++) {
        if (!tie->on[stage])
            continue;
        WF_TRY(wf_outbox_receive_bytes(p->comm, &theirs, sizeof theirs, stage));
        WF_CHECK(
            mine.hash == theirs.hash, WF_ERR_COMM,
            "tied weights differ: %s on stage %d and %.127s on stage %d should have equal values; change all copies "
            "alike",
            mine.path, first, theirs.path, stage);
    }
    return WF_OK;
}

/* Replays do not come here: they are neither counted nor compared. The step that is captured is counted alone, and the
 * schedule of comparisons goes on after it. */
wf_status wf_pipeline_compare_ties(wf_pipeline *p)
{
    /* All stages count alike, so all compare in the same step. */
    const bool due = p->compare_every > 0 && p->steps++ % p->compare_every == 0;
    if (!due || wf_ctx_capturing(p->ctx))
        return WF_OK;
    for (int i = 0; i < p->ties; i++)
        if (p->tie[i].param)
            WF_TRY(compare_tie(p, &p->tie[i]));
    return wf_outbox_wait(p->outbox);
}

/* --- gradients ------------------------------------------------------------------------------------------------------
 */

/* What goes in place of the gradient of one that is not trained: a message all the same, since the other stage waits
 * for one. */
static wf_tensor *frozen_new(wf_pipeline *p)
{
    wf_tensor *frozen = wf_tensor_new(p->ctx, WF_I64, wf_shape_scalar());
    if (!frozen || wf_tensor_fill(frozen, 0) == WF_OK)
        return frozen;
    wf_tensor_free(frozen);
    return wf_error_null();
}

static bool is_frozen(const wf_tensor *message)
{
    return message->dtype == WF_I64;
}

/* The gradient is sent as it is, so it must not change before wf_outbox_wait: sum_tie works on a copy. */
static wf_status send_tie(wf_pipeline *p, const wf_pipeline_tie *tie)
{
    const bool trained = tie->param->trainable;
    wf_tensor *own = trained ? wf_pipeline_grads_of(p, tie->param) : frozen_new(p);
    wf_status status = WF_OK;
    WF_NEED(own);
    for (int stage = 0; stage < p->stages && status == WF_OK; stage++)
        if (tie->on[stage] && stage != p->stage)
            status = wf_outbox_post(p->outbox, own, stage);
    if (!trained)
        wf_tensor_free(own);
    return status;
}

/* Takes `next`: it becomes the sum, or is freed. */
static wf_status add(wf_ctx *ctx, wf_tensor **sum, wf_tensor *next)
{
    if (!*sum) {
        *sum = next;
        return WF_OK;
    }
    const wf_array from = wf_tensor_array(next), to = wf_tensor_array(*sum);
    const wf_status status = ctx->k->binary(
        ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &from, .y = &to, .accumulate = true});
    wf_tensor_free(next);
    return status;
}

static wf_status check_frozen(const wf_pipeline *p, const wf_pipeline_tie *tie, const wf_tensor *message, int stage)
{
    const bool trained = tie->param->trainable;
    WF_CHECK(
        is_frozen(message) != trained, WF_ERR_COMM,
        "%s is tied on several stages, and trained on stage %d but not on stage %d; should be so on all of them, or "
        "on none (wf_param_set_trainable)",
        wf_param_path(tie->param), trained ? p->stage : stage, trained ? stage : p->stage);
    return WF_OK;
}

/* One message from each stage, in the order of the ties: all stages send in that order too. */
static wf_status receive_tie(const wf_pipeline *p, wf_pipeline_tie *tie)
{
    for (int stage = 0; stage < p->stages; stage++) {
        if (!tie->on[stage] || stage == p->stage)
            continue;
        WF_NEED(tie->come[stage] = wf_outbox_expect(p->outbox, stage));
        WF_TRY(check_frozen(p, tie, tie->come[stage], stage));
    }
    return WF_OK;
}

/* In the order of the stages, on all alike, so all have the same bits. Own ones may be on their way to the others, so
 * the sum has memory of its own. */
static wf_status sum_tie(wf_pipeline *p, wf_pipeline_tie *tie)
{
    for (int stage = 0; stage < p->stages && tie->param->trainable; stage++) {
        if (!tie->on[stage])
            continue;
        wf_tensor *own = stage == p->stage ? wf_pipeline_grads_of(p, tie->param) : NULL;
        wf_tensor *next = own ? wf_tensor_copy(own, own->dtype, own->order) : tie->come[stage];
        WF_NEED(next);
        tie->come[stage] = NULL;
        WF_TRY(add(p->ctx, &tie->sum, next));
    }
    return WF_OK;
}

static void drop_come(const wf_pipeline *p, wf_pipeline_tie *tie)
{
    for (int stage = 0; tie->come && stage < p->stages; stage++) {
        wf_tensor_free(tie->come[stage]);
        tie->come[stage] = NULL;
    }
    wf_tensor_free(tie->sum);
    tie->sum = NULL;
}

/* All send, and expect all, before they wait for the ends of their own messages. */
static wf_status exchange_ties(wf_pipeline *p)
{
    wf_status status = WF_OK;
    wf_outbox_group_begin(p->outbox);
    for (int i = 0; i < p->ties && status == WF_OK; i++)
        if (p->tie[i].param)
            status = send_tie(p, &p->tie[i]);
    for (int i = 0; i < p->ties && status == WF_OK; i++)
        if (p->tie[i].param)
            status = receive_tie(p, &p->tie[i]);
    WF_TRY(status);
    WF_TRY(wf_outbox_group_end(p->outbox));
    return wf_outbox_wait(p->outbox);
}

static wf_status sum_all(wf_pipeline *p)
{
    /* After the wait: own gradients may be overwritten now. */
    WF_TRY(exchange_ties(p));
    for (int i = 0; i < p->ties; i++) {
        wf_pipeline_tie *tie = &p->tie[i];
        if (tie->param)
            WF_TRY(sum_tie(p, tie));
        if (tie->sum)
            WF_TRY(wf_tensor_assign(wf_pipeline_grads_of(p, tie->param), tie->sum));
    }
    return WF_OK;
}

wf_status wf_pipeline_sum_ties(wf_pipeline *p)
{
    /* After a failure as well. */
    const wf_status status = sum_all(p);
    for (int i = 0; i < p->ties; i++)
        drop_come(p, &p->tie[i]);
    return status;
}
