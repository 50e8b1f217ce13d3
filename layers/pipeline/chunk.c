/* One chunk in one part: forward on a tape of its own, the messages around it, and backward. A chunk's variables and
 * what they saved live from its forward to the end of its backward. */
#include "layers/pipeline/pipeline_impl.h"

#include <string.h>

static wf_pipeline_slot *slot_of(const wf_pipeline *p, int part, int chunk)
{
    return &p->slot[(int64_t)(part / p->stages) * p->chunks + chunk];
}

static bool is_last(const wf_pipeline *p, int part)
{
    return part == p->stages * p->parts - 1;
}

/* Gives back all that a chunk holds. */
static wf_status release(wf_pipeline *p, wf_pipeline_slot *s)
{
    wf_status status = WF_OK;
    wf_tensor_free(s->input);
    wf_tensor_free(s->gradient);
    if (s->tape) {
        status = wf_tape_reset(s->tape);
        p->tape[p->tapes++] = s->tape;
    }
    *s = (wf_pipeline_slot){0};
    return status;
}

void wf_pipeline_forget(wf_pipeline *p)
{
    for (int i = 0; p->slot && i < p->parts * p->chunks; i++)
        (void)release(p, &p->slot[i]);
}

static wf_tape *tape_of(wf_pipeline_run *run, wf_pipeline_slot *s, int chunk)
{
    wf_pipeline *p = run->pipe;
    s->tape = p->tapes > 0 ? p->tape[--p->tapes] : wf_tape_new(p->ctx);
    if (!s->tape)
        return NULL;
    /* Draws of a batch with a layout are keyed by the place in the batch; else by the chunk. */
    const uint64_t applied = run->known ? run->applied : run->applied * (uint64_t)p->chunks + (uint64_t)chunk;
    WF_TRY_NULL(wf_tape_follow(s->tape, run->tape, applied));
    return s->tape;
}

/* The samples of a chunk, with their place in the batch where it has a layout. */
static wf_tensor *chunk_of(const wf_pipeline_run *run, const wf_tensor *batch, int chunk)
{
    wf_box box = wf_box_of_shape(batch->shape);
    wf_layout layout = batch->layout;
    const int64_t first = layout.known ? layout.box.lo[0] : 0;
    wf_block(batch->shape.dim[0], run->pipe->chunks, chunk, &box.lo[0], &box.hi[0]);
    wf_tensor *part = wf_tensor_view(batch, box);
    if (!part || !layout.known)
        return part;
    layout.box.lo[0] = first + box.lo[0];
    layout.box.hi[0] = first + box.hi[0];
    layout.placement[WF_AXIS_DATA] = WF_SHARDED;
    layout.dim[WF_AXIS_DATA] = 0;
    layout.bounds[WF_AXIS_DATA] = NULL;
    if (wf_tensor_set_layout(part, layout) == WF_OK)
        return part;
    wf_tensor_free(part);
    return wf_error_null();
}

/* --- forward --------------------------------------------------------------------------------------------------------
 */

/* What the loss of a chunk adds to that of the batch. */
static wf_status add_loss(wf_pipeline_run *run, const wf_var *loss, int chunk)
{
    const bool known = loss->value->layout.known;
    WF_CHECK(
        wf_tensor_count(loss->value) == 1 && (loss->loss_mean || known), WF_ERR_STATE,
        "the loss of a pipeline is no mean over samples, so the weight of a chunk is unknown; end it in wf_mean or "
        "a loss function");
    WF_CHECK(known == run->known, WF_ERR_STATE, "the loss of a pipeline has %s layout, and its batch has %s",
             known ? "a" : "no", run->known ? "one" : "none");
    WF_CHECK(!known || !run->like || run->count == loss->loss_count, WF_ERR_STATE,
             "the loss of chunk %d is a mean over %lld samples, and that of an earlier one over %lld; should be the "
             "whole batch of all ranks",
             chunk, (long long)loss->loss_count, (long long)run->count);
    const double weight = known ? 1 : (double)loss->loss_count;
    if (weight > 0)
        run->loss += weight * wf_item(loss);
    run->weight = known ? 1 : run->weight + weight;
    run->count = known ? loss->loss_count : (int64_t)run->weight;
    run->part += loss->loss_part;
    if (!run->like)
        run->like = wf_tensor_alias(loss->value);
    WF_NEED(run->like);
    return WF_OK;
}

static wf_status end_in_loss(wf_pipeline_run *run, wf_pipeline_slot *s, int chunk)
{
    wf_tensor *target = chunk_of(run, run->target, chunk);
    WF_NEED(target);
    const int64_t samples = s->y->value->shape.rank > 0 ? s->y->value->shape.dim[0] : 1;
    wf_status status = WF_OK;
    if (samples != target->shape.dim[0])
        status = WF_RAISE(WF_ERR_SHAPE,
                          "chunk %d has %lld samples and %lld targets: a batch and its targets should be "
                          "of one length",
                          chunk, (long long)samples, (long long)target->shape.dim[0]);
    else
        s->y = run->pipe->loss(s->y, target);
    wf_tensor_free(target);
    WF_TRY(status);
    WF_NEED(s->y);
    return add_loss(run, s->y, chunk);
}

/* Where the output goes if it is not sent. */
static wf_status pass_on(wf_pipeline_run *run, wf_pipeline_slot *s, int part, int chunk)
{
    wf_pipeline *p = run->pipe;
    if (is_last(p, part)) {
        if (!run->loses)
            WF_NEED(run->y[chunk] = wf_tensor_alias(s->y->value));
    } else if (p->stages == 1) {
        wf_pipeline_slot *next = slot_of(p, part + 1, chunk);
        WF_NEED(next->input = wf_tensor_alias(s->y->value));
    } else {
        return WF_OK;
    }
    return wf_tape_mode(run->tape) == WF_TRAIN ? WF_OK : release(p, s);
}

static wf_var *apply_part(wf_var *x, void *pipe, int64_t own)
{
    const wf_pipeline *p = pipe;
    for (int i = p->first[own]; i < p->first[own + 1] && x; i++)
        x = wf_apply(p->layer[i], x);
    return x;
}

wf_status wf_pipeline_forward(wf_pipeline_run *run, int part, int chunk, bool at_once)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = slot_of(p, part, chunk);
    const int own = part / p->stages;
    if (part == 0)
        s->input = chunk_of(run, run->x, chunk);
    WF_NEED(s->input);
    wf_tape *tape = tape_of(run, s, chunk);
    WF_NEED(tape);
    s->x = part == 0 ? wf_input(tape, s->input) : wf_leaf(tape, s->input);
    WF_NEED(s->x);
    const bool again = p->recompute == WF_RECOMPUTE_ALWAYS || (p->recompute == WF_RECOMPUTE_EXCEPT_LAST && !at_once);
    s->y = again ? wf_tape_segment(s->x, apply_part, p, own) : apply_part(s->x, p, own);
    WF_NEED(s->y);
    if (is_last(p, part) && run->loses)
        WF_TRY(end_in_loss(run, s, chunk));
    return pass_on(run, s, part, chunk);
}

/* --- backward -------------------------------------------------------------------------------------------------------
 */

/* The gradient of the part's input; zeros where the loss does not depend on it. */
static wf_tensor *gradient_of_input(const wf_pipeline_slot *s)
{
    if (wf_grad(s->x))
        return wf_tensor_alias(wf_grad(s->x));
    wf_tensor *zero = wf_tensor_new_like(s->input);
    if (zero && wf_tensor_fill(zero, 0) == WF_OK)
        return zero;
    wf_tensor_free(zero);
    return wf_error_null();
}

wf_status wf_pipeline_backward(wf_pipeline_run *run, int part, int chunk)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = slot_of(p, part, chunk);
    const double weight = run->known || !is_last(p, part) ? 1 : (double)s->y->loss_count;
    const wf_backward_opts opts = {
        .seed = weight > 0 ? weight : WF_ZERO, .add = true, .plan = wf_pipeline_grads_plan, .user = p};
    if (!is_last(p, part)) {
        WF_NEED(s->gradient);
        if (s->y->value && s->y->value->layout.known)
            WF_TRY(wf_tensor_set_layout(s->gradient, s->y->value->layout));
    }
    if (s->y->needs_grad)
        WF_TRY(wf_backward_run(s->y, is_last(p, part) ? NULL : s->gradient, &opts));
    if (part == 0)
        return release(p, s);
    if (p->stages > 1)
        return WF_OK;
    WF_NEED(slot_of(p, part - 1, chunk)->gradient = gradient_of_input(s));
    return release(p, s);
}

/* --- messages -------------------------------------------------------------------------------------------------------
 */

static wf_status send_input(wf_pipeline_run *run, const wf_pipeline_action *a)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = slot_of(p, a->part - 1, a->chunk);
    WF_NEED(s->y);
    if (a->chunk == 0)
        WF_TRY(wf_pipeline_layout_send(p, s->y->value, a->peer));
    WF_TRY(wf_outbox_send(p->outbox, s->y->value, a->peer));
    return wf_tape_mode(run->tape) == WF_TRAIN ? WF_OK : release(p, s);
}

static wf_status send_gradient(wf_pipeline_run *run, const wf_pipeline_action *a)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = slot_of(p, a->part + 1, a->chunk);
    wf_tensor *dx = gradient_of_input(s);
    WF_NEED(dx);
    const wf_status status = wf_outbox_send(p->outbox, dx, a->peer);
    wf_tensor_free(dx);
    WF_TRY(status);
    return release(p, s);
}

wf_status wf_pipeline_message(wf_pipeline_run *run, const wf_pipeline_action *a)
{
    wf_pipeline *p = run->pipe;
    if (a->verb == WF_PIPELINE_SEND)
        return a->gradient ? send_gradient(run, a) : send_input(run, a);
    wf_pipeline_slot *s = slot_of(p, a->part, a->chunk);
    wf_tensor **to = a->gradient ? &s->gradient : &s->input;
    if (!a->gradient && a->chunk == 0)
        WF_TRY(wf_pipeline_layout_receive(run, a->part, a->peer));
    *to = wf_outbox_receive(p->comm, a->peer);
    WF_NEED(*to);
    return a->gradient ? WF_OK : wf_pipeline_layout_set(p, a->part, a->chunk, *to);
}
