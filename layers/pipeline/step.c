/* A step of a pipeline: runs this stage's actions in their order, and makes the loss of the batch of those of the
 * chunks. A failure on one rank is told to all. */
#include "layers/pipeline/pipeline_impl.h"

#include "comm/comm_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns true if the next computation after a forward is the backward of the same chunk. Recomputation is pointless
 * for a chunk whose backward follows at once. */
static bool at_once(const wf_pipeline_schedule *s, int stage, int i)
{
    const wf_pipeline_action *a = s->action[stage], *forward = &a[i];
    for (i++; i < s->count[stage]; i++)
        if (a[i].verb <= WF_PIPELINE_BACKWARD)
            return a[i].verb == WF_PIPELINE_BACKWARD && a[i].part == forward->part && a[i].chunk == forward->chunk;
    return false;
}

/* The whole step is this list of actions, made and verified when the pipeline was. */
static wf_status run_actions(wf_pipeline_run *run)
{
    const wf_pipeline *p = run->pipe;
    const wf_pipeline_schedule *s = p->in_order ? p->in_order : p->schedule;
    const bool train = wf_tape_mode(run->tape) == WF_TRAIN;
    for (int i = 0; i < s->count[p->stage]; i++) {
        const wf_pipeline_action *a = &s->action[p->stage][i];
        /* Evaluation runs the forwards of the same schedule, so its messages have the same order on all stages. */
        if (!train && (a->gradient || a->verb == WF_PIPELINE_BACKWARD))
            continue;
        if (a->verb == WF_PIPELINE_FORWARD)
            WF_TRY(wf_pipeline_forward(run, a->part, a->chunk, at_once(s, p->stage, i)));
        else if (a->verb == WF_PIPELINE_BACKWARD)
            WF_TRY(wf_pipeline_backward(run, a->part, a->chunk));
        else
            WF_TRY(wf_pipeline_message(run, a));
    }
    if (!train)
        return wf_outbox_wait(p->outbox);
    /* Before sums of ties, which also give a gradient to a parameter that no loss depends on. */
    run->reached = wf_pipeline_grads_reached(p);
    return wf_pipeline_sum_ties(run->pipe);
}

/* Checks before anything is sent: the other stages wait, and learn of a failure by a notice. */
static wf_status check_batch(const wf_pipeline *p, const wf_tensor *batch, const char *what)
{
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(batch, WF_ERR_ARGUMENT, "the %s stage of a pipeline gets %s NULL; should be that of the batch",
             strcmp(what, "target") ? "first" : "last", what);
    WF_CHECK(batch->ctx == p->ctx, WF_ERR_ARGUMENT, "%s belongs to another context than the pipeline", what);
    WF_CHECK(batch->shape.rank > 0, WF_ERR_SHAPE, "%s is a scalar; should be [N,...]", what);
    const wf_layout *layout = &batch->layout;
    /* Chunks of a stage follow each other in samples only, so the batch may be cut along data and no other axis. */
    WF_CHECK(!layout->known || (layout->mesh == p->mesh && (layout->placement[WF_AXIS_DATA] == WF_SHARDED ||
                                                            wf_mesh_size(p->mesh, WF_AXIS_DATA) == 1)),
             WF_ERR_SHAPE, "%s is %s; should be sharded over data at dimension 0, on the mesh %s", what,
             wf_layout_text(layout, text), wf_mesh_text(p->mesh));
    WF_CHECK(!layout->known || layout->placement[WF_AXIS_DATA] != WF_SHARDED || layout->dim[WF_AXIS_DATA] == 0,
             WF_ERR_SHAPE, "%s is %s; samples are dimension 0", what, wf_layout_text(layout, text));
    return WF_OK;
}

/* The inputs of the model, on the first stage. */
static wf_status check_batches(const wf_pipeline_run *run)
{
    WF_CHECK(run->n_x >= 1 && run->x, WF_ERR_ARGUMENT, "a step of a pipeline with %d inputs; should be 1 or more",
             run->n_x);
    for (int i = 0; i < run->n_x; i++) {
        char name[32] = "x";
        if (i > 0)
            snprintf(name, sizeof name, "input %d", i);
        WF_TRY(check_batch(run->pipe, run->x[i], name));
        WF_CHECK(run->x[i]->shape.dim[0] == run->x[0]->shape.dim[0], WF_ERR_SHAPE,
                 "%s has %lld samples, and x has %lld; inputs of one batch should be of one length", name,
                 (long long)run->x[i]->shape.dim[0], (long long)run->x[0]->shape.dim[0]);
        WF_CHECK(run->x[i]->layout.known == run->x[0]->layout.known, WF_ERR_SHAPE,
                 "%s has %s layout, and x has %s; should be alike", name, run->x[i]->layout.known ? "a" : "no",
                 run->x[0]->layout.known ? "one" : "none");
    }
    return WF_OK;
}

static wf_status begin(wf_pipeline_run *run)
{
    wf_pipeline *p = run->pipe;
    int at = 0;
    /* The list of layers was made at the cut; a layer added later is in no stage's list. */
    const wf_layer *stranger = wf_chain_stranger(p->model, p->first[p->parts], p->layer, &at);
    WF_CHECK(!stranger, WF_ERR_STATE,
             "\"%s\" was added to the model of a pipeline after it was cut, so no stage would apply it; add layers to "
             "the chain that is given to wf_pipeline_new",
             wf_layer_path(stranger));
    WF_NEED(run->tape);
    WF_CHECK(wf_tape_ctx(run->tape) == p->ctx, WF_ERR_ARGUMENT,
             "the tape belongs to another context than the pipeline");
    if (p->stage == 0)
        WF_TRY(check_batches(run));
    if (p->stage == p->stages - 1 && run->loses)
        WF_TRY(check_batch(p, run->target, "target"));
    /* A variable on the program's tape: what the step makes is no leak of an earlier one (wf_tape_reset). */
    WF_NEED(wf_no_loss(run->tape));
    run->known = p->stage == 0 && run->x[0]->layout.known;
    /* Counted once a step, not once a chunk: random numbers are keyed by it. */
    return wf_tape_count_application(run->tape, p->model->id, &run->applied);
}

/* Every batch normalisation of the stage. */
static wf_status each_norm(wf_layer *layer, wf_status (*act)(wf_layer *norm))
{
    if (wf_norm_is(layer))
        WF_TRY(act(layer));
    for (int i = 0; i < layer->n_children; i++)
        WF_TRY(each_norm(layer->children[i], act));
    return WF_OK;
}

/* Statistics are gathered over the chunks of a step and become running statistics once, as of the whole batch. */
static wf_status defer_norm(wf_layer *norm)
{
    return wf_norm_defer(norm, true);
}

static wf_status compute(wf_pipeline_run *run)
{
    wf_pipeline *p = run->pipe;
    WF_TRY(begin(run));
    const bool train = wf_tape_mode(run->tape) == WF_TRAIN;
    /* Compared before the step changes anything. */
    if (train)
        WF_TRY(wf_pipeline_compare_ties(p));
    if (train && p->deferred)
        WF_TRY(each_norm(p->model, defer_norm));
    if (train)
        WF_TRY(wf_pipeline_grads_begin(p));
    /* Weights are used by several chunks, so packed forms of them pay. */
    p->ctx->reusing += p->chunks > 1;
    wf_status status = run_actions(run);
    p->ctx->reusing -= p->chunks > 1;
    /* Also after a failure: parameters get their own gradients back. */
    wf_pipeline_grads_end(p);
    if (train && p->deferred && status == WF_OK)
        status = each_norm(p->model, wf_norm_commit);
    return status;
}

/* What all stages know of the loss, besides its value: as the last one made it. Sent as bytes, so it has no pointer. */
typedef struct shared_loss {
    double weight, part, count;
    int32_t dtype, known;
    uint8_t placement[WF_AXES];
    uint8_t reached, counted;
} shared_loss;

static shared_loss own_loss(const wf_pipeline_run *run)
{
    shared_loss own;
    memset(&own, 0, sizeof own); /* padding is sent, too */
    own.reached = run->reached;
    if (run->like) {
        own.weight = run->weight;
        own.part = run->part;
        own.count = run->count;
        own.counted = run->counted;
        own.dtype = (int32_t)run->like->dtype;
        own.known = run->like->layout.known;
        memcpy(own.placement, run->like->layout.placement, sizeof own.placement);
    }
    return own;
}

/* A step in training that reaches no parameter of any stage is an error on all of them. Each stage broadcasts, since an
 * all-gather takes memory of the host, which no captured step may. */
static wf_status share(const wf_pipeline_run *run, shared_loss *all)
{
    /* The last stage broadcasts last, so `all` is its struct after the loop. */
    const wf_pipeline *p = run->pipe;
    bool reached = wf_tape_mode(run->tape) != WF_TRAIN;
    for (int s = 0; s < p->stages; s++) {
        *all = own_loss(run);
        WF_TRY(wf_bcast_bytes(p->comm, all, sizeof *all, s));
        reached = reached || all->reached;
    }
    WF_CHECK(reached, WF_ERR_STATE,
             "a step of a pipeline with a loss that depends on no parameter: all parameters that it reaches are frozen "
             "(wf_param_set_trainable)");
    return WF_OK;
}

/* The mean, from the sum that the last stage has. */
static wf_status share_value(wf_pipeline_run *run, double weight, wf_tensor *value)
{
    const wf_pipeline *p = run->pipe;
    /* Other stages have no sum yet and receive into this. */
    if (!run->loss)
        WF_NEED(run->loss = wf_tensor_new(p->ctx, WF_F64, wf_shape_scalar()));
    WF_TRY(wf_bcast(p->comm, run->loss, p->stages - 1));
    const wf_array sum = wf_tensor_array(run->loss);
    WF_TRY(p->ctx->k->binary(p->ctx,
                             &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1 / weight, .a = &sum, .y = &sum}));
    return wf_tensor_assign(value, run->loss);
}

static wf_status loss_of(wf_pipeline_run *run, wf_var **loss)
{
    wf_pipeline *p = run->pipe;
    shared_loss all = {0};
    WF_TRY(share(run, &all));
    /* A weight of 0 has a sum of 0 (a batch without samples): divided by 1 it stays 0. */
    const double weight = all.weight > 0 ? all.weight : 1;
    wf_tensor *value = wf_tensor_new_step(p->ctx, (wf_dtype)all.dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(value);
    wf_status status = share_value(run, weight, value);
    if (status == WF_OK && all.known) {
        wf_layout layout = {.known = true, .mesh = p->mesh, .global = wf_shape_scalar(), .box = {.rank = 0}};
        memcpy(layout.placement, all.placement, sizeof layout.placement);
        status = wf_tensor_set_layout(value, layout);
    }
    if (status != WF_OK) {
        wf_tensor_free(value);
        return status;
    }
    /* The variable is a node on the program's tape: its backward hands out gradients that exist already. */
    *loss = wf_pipeline_grads_record(p, run->tape, value, weight);
    WF_NEED(*loss);
    (*loss)->loss_mean = !all.known;
    (*loss)->loss_count = all.count;
    (*loss)->loss_part = all.part;
    (*loss)->loss_counted = all.counted;
    /* A statistic that ranks share, such as of a normalisation, brings gradients of the other ranks' losses here. They
     * are in the sums already, so a seed of 0 would lose them. */
    (*loss)->loss_relays = (*loss)->loss_mean && all.count == 0;
    return WF_OK;
}

/* The other ranks wait for what this one does not send. The error is told to all ranks of the mesh, and what is under
 * way of this step is dropped. */
static void *fail(wf_pipeline_run *run, wf_status status)
{
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    wf_comm_post_failure(wf_mesh_world(run->pipe->mesh), status);
    wf_error_null();
    wf_pipeline_forget(run->pipe);
    return NULL;
}

wf_var *wf_pipeline_step(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *x, const wf_tensor *target)
{
    return wf_pipeline_step_n(pipe, tape, &x, 1, target);
}

wf_var *wf_pipeline_step_n(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *const *x, int n, const wf_tensor *target)
{
    WF_NEED_NULL(pipe);
    wf_pipeline_run run = {.pipe = pipe, .tape = tape, .n_x = n, .x = x, .target = target, .loses = true};
    wf_var *loss = NULL;
    wf_status status = compute(&run);
    if (status == WF_OK)
        status = loss_of(&run, &loss);
    wf_tensor_free(run.like);
    wf_tensor_free(run.loss);
    return status == WF_OK ? loss : fail(&run, status);
}

/* --- the output -----------------------------------------------------------------------------------------------------
 */

/* Chunks are samples in order, so they are copied one after the other. */
static wf_status join(const wf_pipeline_run *run, wf_tensor *whole)
{
    wf_box box = wf_box_of_shape(whole->shape);
    box.hi[0] = 0;
    for (int c = 0; c < run->pipe->chunks; c++) {
        box.lo[0] = box.hi[0];
        box.hi[0] += run->y[c]->shape.dim[0];
        wf_tensor *part = wf_tensor_view(whole, box);
        WF_NEED(part);
        const wf_status status = wf_tensor_assign(part, run->y[c]);
        wf_tensor_free(part);
        WF_TRY(status);
    }
    wf_layout layout = run->y[0]->layout;
    if (!layout.known)
        return WF_OK;
    /* The output is a whole batch again. */
    layout.chunk = false;
    layout.box.hi[0] = layout.box.lo[0] + whole->shape.dim[0];
    return wf_tensor_set_layout(whole, layout);
}

static wf_status output_of(wf_pipeline_run *run, wf_var **out)
{
    const wf_pipeline *p = run->pipe;
    /* Other stages have no output; the variable without a loss keeps their programs alike. */
    if (p->stage < p->stages - 1) {
        *out = wf_no_loss(run->tape);
        WF_NEED(*out);
        return WF_OK;
    }
    wf_shape shape = run->y[0]->shape;
    WF_CHECK(shape.rank > 0, WF_ERR_SHAPE, "the output of a chunk is a scalar; should be [N,...]");
    for (int c = 1; c < p->chunks; c++)
        shape.dim[0] += run->y[c]->shape.dim[0];
    wf_tensor *whole = wf_tensor_new_step(p->ctx, run->y[0]->dtype, shape, run->y[0]->order);
    WF_NEED(whole);
    const wf_status status = join(run, whole);
    *out = status == WF_OK ? wf_input(run->tape, whole) : NULL;
    wf_tensor_free(whole);
    WF_TRY(status);
    WF_NEED(*out);
    return WF_OK;
}

static wf_status apply(wf_pipeline_run *run, wf_var **out)
{
    /* In evaluation no loss is made: targets may be absent. */
    WF_CHECK(wf_tape_mode(run->tape) == WF_EVAL, WF_ERR_STATE,
             "wf_pipeline_apply on a tape in WF_TRAIN, to which backward could not come; use wf_pipeline_step, or "
             "wf_tape_set_mode");
    run->y = wf_calloc(run->pipe->ctx, (size_t)run->pipe->chunks, sizeof(*run->y));
    if (!run->y)
        return wf_error_code();
    WF_TRY(compute(run));
    return output_of(run, out);
}

wf_var *wf_pipeline_apply(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *x)
{
    return wf_pipeline_apply_n(pipe, tape, &x, 1);
}

wf_var *wf_pipeline_apply_n(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *const *x, int n)
{
    WF_NEED_NULL(pipe);
    wf_pipeline_run run = {.pipe = pipe, .tape = tape, .n_x = n, .x = x};
    wf_var *y = NULL;
    const wf_status status = apply(&run, &y);
    for (int c = 0; run.y && c < pipe->chunks; c++)
        wf_tensor_free(run.y[c]);
    free(run.y);
    return status == WF_OK ? y : fail(&run, status);
}
