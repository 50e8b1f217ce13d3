/* One chunk in one part: forward on a tape of its own, the messages around it, and backward. A chunk's variables and
 * what they saved live from its forward to the end of its backward. */
#include "layers/pipeline/pipeline_impl.h"

#include <string.h>

/* Parts of a stage are `stages` apart, so a part's number among those of its stage is the quotient. */
static wf_pipeline_slot *chunk_slot(const wf_pipeline *p, int part, int chunk)
{
    return &p->slot[(int64_t)(part / p->stages) * p->chunks + chunk];
}

/* Links of parts come first, then those of skips; neither depends on the stage. */
int wf_pipeline_link_row(const wf_pipeline *p, int part, int skip)
{
    return skip > 0 ? p->stages * p->parts + skip - 1 : part;
}

wf_pipeline_link *wf_pipeline_link_of(const wf_pipeline *p, int part, int skip, int chunk)
{
    return &p->link[(int64_t)wf_pipeline_link_row(p, part, skip) * p->chunks + chunk];
}

/* The part that ends in the loss, or in the model's output. */
static bool is_last(const wf_pipeline *p, int part)
{
    return part == p->stages * p->parts - 1;
}

static void drop(wf_tensor **tensor)
{
    wf_tensor_free(*tensor);
    *tensor = NULL;
}

/* Gives back all that a chunk holds on its tape. The tape itself is kept for the next chunk, so a loop makes no new
 * ones. */
static wf_status release_chunk(wf_pipeline_slot *s)
{
    wf_pipeline *p = s->pipe;
    wf_status status = WF_OK;
    if (s->tape) {
        status = wf_tape_reset(s->tape);
        p->tape[p->tapes++] = s->tape;
    }
    if (s->x)
        wf_pool_give_host(p->ctx, s->x, (size_t)s->n_x * sizeof(*s->x));
    *s = (wf_pipeline_slot){0};
    return status;
}

/* After a failure: what is under way of the step is dropped, and the pipeline may be freed or stepped again. */
void wf_pipeline_forget(wf_pipeline *p)
{
    const int rows = p->stages * p->parts + p->skips;
    for (int i = 0; p->link && i < rows * p->chunks; i++) {
        wf_tensor_free(p->link[i].value);
        wf_tensor_free(p->link[i].gradient);
        p->link[i] = (wf_pipeline_link){0};
    }
    for (int i = 0; p->slot && i < p->parts * p->chunks; i++)
        (void)release_chunk(&p->slot[i]);
}

static wf_status open_slot(wf_pipeline_run *run, int part, int chunk)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = chunk_slot(p, part, chunk);
    *s = (wf_pipeline_slot){.pipe = p, .part = part, .chunk = chunk};
    /* Tapes are as many as chunks wait at a time, at most. */
    s->tape = p->tapes > 0 ? p->tape[--p->tapes] : wf_tape_new(p->ctx);
    WF_NEED(s->tape);
    /* Draws of a batch with a layout are keyed by the place in the batch; else by the chunk. */
    const uint64_t applied = run->known ? run->applied : run->applied * (uint64_t)p->chunks + (uint64_t)chunk;
    return wf_tape_follow(s->tape, run->tape, applied);
}

/* The samples of a chunk, with their place in the batch where it has a layout. */
static wf_tensor *chunk_of(const wf_pipeline_run *run, const wf_tensor *batch, int chunk)
{
    wf_box box = wf_box_of_shape(batch->shape);
    wf_layout layout = batch->layout;
    const int64_t first = layout.known ? layout.box.lo[0] : 0;
    /* Chunks are blocks of samples of the batch, balanced, the same on all stages by wf_block. */
    wf_block(batch->shape.dim[0], run->pipe->chunks, chunk, &box.lo[0], &box.hi[0]);
    wf_tensor *part = wf_tensor_view(batch, box);
    if (!part || !layout.known)
        return part;
    layout.chunk = true;
    layout.box.lo[0] = first + box.lo[0];
    layout.box.hi[0] = first + box.hi[0];
    /* Bounds of other ranks' samples in this chunk are not known here, and nothing asks for them. */
    layout.placement[WF_AXIS_DATA] = WF_SHARDED;
    layout.dim[WF_AXIS_DATA] = 0;
    layout.bounds[WF_AXIS_DATA] = NULL;
    if (wf_tensor_set_layout(part, layout) == WF_OK)
        return part;
    wf_tensor_free(part);
    return wf_error_null();
}

/* --- the loss -------------------------------------------------------------------------------------------------------
 */

/* On the device, in f64: a captured step cannot read numbers back. The loss of a chunk without samples is no number. */
static wf_status add_value(wf_pipeline_run *run, const wf_tensor *value, double weight)
{
    wf_ctx *ctx = run->pipe->ctx;
    if (!run->loss) {
        WF_NEED(run->loss = wf_tensor_new(ctx, WF_F64, wf_shape_scalar()));
        WF_TRY(wf_tensor_fill(run->loss, 0));
    }
    /* A chunk without samples has a loss that is not a number, which 0 times it would not remove. */
    if (weight == 0)
        return WF_OK;
    wf_tensor *wide = wf_tensor_copy(value, WF_F64, WF_ROW_MAJOR);
    WF_NEED(wide);
    const wf_array from = wf_tensor_array(wide), to = wf_tensor_array(run->loss);
    const wf_status status = ctx->k->binary(
        ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = weight, .a = &from, .y = &to, .accumulate = true});
    wf_tensor_free(wide);
    return status;
}

/* Returns an error unless the loss of the batch can be made of those of the chunks so far and this one. */
static wf_status check_loss(const wf_pipeline_run *run, const wf_var *loss, int chunk)
{
    const bool known = loss->value->layout.known;
    WF_CHECK(
        wf_tensor_count(loss->value) == 1 && (loss->loss_mean || known), WF_ERR_STATE,
        "the loss of a pipeline is no mean over samples, so the weight of a chunk is unknown; end it in wf_mean or "
        "a loss function");
    WF_CHECK(known == run->known, WF_ERR_STATE, "the loss of a pipeline has %s layout, and its batch has %s",
             known ? "a" : "no", run->known ? "one" : "none");
    WF_CHECK(!known || !loss->loss_mixed || run->pipe->chunks == 1, WF_ERR_STATE,
             "the loss of a pipeline adds a mean over the labels that count to one over other elements, so the weight "
             "of a chunk is unknown; add means over the same labels, ignore no label, or give the pipeline 1 chunk, "
             "not %d",
             run->pipe->chunks);
    WF_CHECK(!known || !run->like || run->counted == loss->loss_counted, WF_ERR_STATE,
             "the loss of chunk %d is %s, and that of an earlier one is not; should be so for all chunks of a batch",
             chunk, loss->loss_counted ? "a mean over the labels that count" : "a mean over all samples");
    WF_CHECK(!known || !run->like || run->counted || run->count == loss->loss_count, WF_ERR_STATE,
             "the loss of chunk %d is a mean over %.15g samples, and that of an earlier one over %.15g; should be the "
             "whole batch of all ranks",
             chunk, loss->loss_count, run->count);
    return WF_OK;
}

/* True if the chunk's loss is its part of the batch's mean: divided by what all chunks have, so it is only added. Else
 * it is the chunk's own mean, which counts by what that is over: its weight follows it here and in backward. */
static bool is_part(const wf_pipeline_run *run, const wf_var *loss)
{
    return run->known && !loss->loss_counted;
}

/* Adds the loss of a chunk to that of the batch. */
static wf_status add_loss(wf_pipeline_run *run, const wf_var *loss, int chunk)
{
    WF_TRY(check_loss(run, loss, chunk));
    const bool part = is_part(run, loss);
    const double weight = part ? 1 : loss->loss_count;
    run->counted = loss->loss_counted;
    run->weight = part ? 1 : run->weight + weight;
    run->count = part ? loss->loss_count : run->weight;
    run->part += loss->loss_part;
    if (!run->like)
        run->like = wf_tensor_alias(loss->value);
    WF_NEED(run->like);
    return add_value(run, loss->value, weight);
}

/* Only the last part of the last stage comes here, and only it has targets. */
static wf_status end_in_loss(wf_pipeline_run *run, wf_pipeline_slot *s)
{
    wf_tensor *target = chunk_of(run, run->target, s->chunk);
    WF_NEED(target);
    const int64_t samples = s->y->value->shape.rank > 0 ? s->y->value->shape.dim[0] : 1;
    wf_status status = WF_OK;
    if (samples != target->shape.dim[0])
        status = WF_RAISE(WF_ERR_SHAPE,
                          "chunk %d has %lld samples and %lld targets: a batch and its targets should be "
                          "of one length",
                          s->chunk, (long long)samples, (long long)target->shape.dim[0]);
    else
        s->y = run->pipe->loss(s->y, target);
    wf_tensor_free(target);
    WF_TRY(status);
    /* The loss function is the program's: what it returns is checked like any other input. */
    WF_CHECK(s->y || wf_error_pending() != WF_OK, WF_ERR_STATE,
             "the loss of a pipeline returned NULL and no error, for chunk %d; should be a variable", s->chunk);
    WF_NEED(s->y);
    WF_CHECK(s->y->needs_grad || wf_tape_mode(run->tape) != WF_TRAIN, WF_ERR_STATE,
             "a step of a pipeline with a loss that depends on no parameter; should be computed from the output that "
             "the loss function gets");
    return add_loss(run, s->y, s->chunk);
}

/* --- forward --------------------------------------------------------------------------------------------------------
 */

/* Returns true if a skip leaves the part, or enters it from an earlier one. A skip inside of one part needs no link:
 * its value is on the same tape. */
static bool crosses(const wf_pipeline *p, int skip, int part, bool leaves)
{
    const wf_pipeline_skip *k = &p->skip[skip - 1].parts;
    return k->from != k->to && (leaves ? k->from : k->to) == part;
}

/* Hands a pop the values of its skips, which may have come from other stages. */
static void hand_to_pop(const wf_pipeline_slot *s, wf_layer *pop)
{
    const wf_pipeline *p = s->pipe;
    for (int k = 1; k <= p->skips; k++) {
        if (p->skip[k - 1].pop != pop)
            continue;
        const wf_pipeline_link *link = wf_pipeline_link_of(p, 0, k, s->chunk);
        wf_skip_keep(pop, p->skip[k - 1].pop_place, crosses(p, k, s->part, false) ? link->taken : link->made);
    }
}

/* From a layer to the next stash, or to the end of the part. The first layer takes all inputs. Called for a part and,
 * if it is recomputed, again from backward: it must do the same both times. */
static wf_var *apply_layers(wf_var *const *x, int n, void *slot, int64_t from)
{
    const wf_pipeline_slot *s = slot;
    const wf_pipeline *p = s->pipe;
    wf_var *y = x[0];
    for (int i = (int)from; y && i < p->first[s->part / p->stages + 1] && !wf_skip_is_stash(p->layer[i]); i++) {
        if (wf_skip_is_pop(p->layer[i]))
            hand_to_pop(s, p->layer[i]);
        y = wf_apply_n(p->layer[i], x, n);
        x = &y;
        n = 1;
        if (!y && wf_error_pending() == WF_OK)
            WF_FAIL_NULL(WF_ERR_STATE, "%s \"%s\" returned NULL and no error; should be a variable",
                         p->layer[i]->kind->name, wf_layer_path(p->layer[i]));
        /* A large message to a stage that waits needs this one to go on. */
        wf_ctx_progress(p->ctx);
    }
    return y;
}

/* At a stash: the value goes on, and is the value of its skips; of a stash of inputs, these are. */
static wf_status begin_skips(const wf_pipeline_slot *s, const wf_layer *stash, wf_var *y)
{
    const wf_pipeline *p = s->pipe;
    const bool inputs = wf_skip_is_inputs(stash);
    WF_CHECK(!inputs || s->n_x == stash->most, WF_ERR_ARGUMENT, "skip_inputs \"%s\" takes %d inputs, not %d",
             wf_layer_path(stash), stash->most, s->n_x);
    for (int k = 1; k <= p->skips; k++)
        if (p->skip[k - 1].stash == stash)
            wf_pipeline_link_of(p, 0, k, s->chunk)->made = inputs ? s->x[1 + p->skip[k - 1].stash_place] : y;
    return WF_OK;
}

/* What is recomputed ends where a skip begins, since only its end leaves a segment. Without recomputation the same
 * layers run once, as one run from stash to stash. */
static wf_var *apply_part(wf_pipeline_slot *s, bool again)
{
    const wf_pipeline *p = s->pipe;
    const int end = p->first[s->part / p->stages + 1];
    wf_var *const *x = s->x;
    wf_var *y = s->x[0];
    for (int i = p->first[s->part / p->stages], n = s->n_x; y; i++, n = 1) {
        y = again ? wf_tape_segment(x, n, apply_layers, s, i) : apply_layers(x, n, s, i);
        while (i < end && !wf_skip_is_stash(p->layer[i]))
            i++;
        if (i == end || !y)
            return y;
        WF_TRY_NULL(begin_skips(s, p->layer[i], y));
        x = &y;
    }
    return NULL;
}

/* A variable of what comes from an earlier part. */
static wf_status take(wf_pipeline_slot *s, wf_pipeline_link *k, bool differentiable)
{
    WF_NEED(k->value);
    /* Backward of this part ends at this leaf; keep_gradients sends its gradient on. */
    differentiable =
        differentiable && wf_dtype_is_float(k->value->dtype); /* an input that a skip hands on may be not */
    WF_TRY(wf_outbox_await(s->pipe->outbox, k->value));
    k->taken = differentiable ? wf_leaf(s->tape, k->value) : wf_input(s->tape, k->value);
    WF_NEED(k->taken);
    drop(&k->value);
    return WF_OK;
}

static wf_status take_all(wf_pipeline_run *run, wf_pipeline_slot *s)
{
    wf_pipeline *p = s->pipe;
    /* Row 0 of a part is its input from the part before, or, of the first part, the batch. */
    wf_pipeline_link *input = wf_pipeline_link_of(p, s->part, 0, s->chunk);
    void *x = NULL;
    const int n = s->part == 0 ? run->n_x : 1;
    WF_TRY(wf_pool_take_host(p->ctx, (size_t)n * sizeof(*s->x), &x));
    s->x = x;
    s->n_x = n;
    if (s->part == 0)
        input->value = chunk_of(run, run->x[0], s->chunk);
    WF_TRY(take(s, input, s->part > 0));
    s->x[0] = input->taken;
    for (int i = 1; i < n; i++) {
        wf_tensor *part = chunk_of(run, run->x[i], s->chunk);
        s->x[i] = wf_input(s->tape, part);
        wf_tensor_free(part);
        WF_NEED(s->x[i]);
    }
    /* Values of skips have come by now: the schedule has their receives before this forward. */
    for (int k = 1; k <= p->skips; k++)
        if (crosses(p, k, s->part, false))
            WF_TRY(take(s, wf_pipeline_link_of(p, 0, k, s->chunk), true));
    return WF_OK;
}

/* Backward of a part begins at all that it gives to others: hands their gradients on, in the order in which the serial
 * program adds them: that of the part's output comes last. */
static wf_status outputs_backward(wf_node *node)
{
    const wf_pipeline_slot *s = *(wf_pipeline_slot *const *)node->state;
    const wf_pipeline *p = s->pipe;
    int at = 0;
    /* The serial program adds a skip's gradient before that of the chain; sums of the same order have the same bits. */
    for (int k = 1; k <= p->skips; k++) {
        if (!crosses(p, k, s->part, true))
            continue;
        wf_tensor *gradient = wf_pipeline_link_of(p, 0, k, s->chunk)->gradient;
        WF_NEED(gradient);
        WF_TRY(wf_outbox_await(p->outbox, gradient));
        if (node->in[at]->value && node->in[at]->value->layout.known)
            WF_TRY(wf_tensor_set_layout(gradient, node->in[at]->value->layout));
        WF_TRY(wf_node_give(node, at++, wf_tensor_alias(gradient), true));
    }
    return wf_node_give(node, at, wf_tensor_alias(wf_node_dy(node)), true);
}

static const wf_op outputs_op = {.name = "outputs of a stage", .backward = outputs_backward};

/* One node over all outputs of a part, so that one backward starts from all of them. */
static wf_status record_outputs(wf_pipeline_slot *s, int skips)
{
    const wf_pipeline *p = s->pipe;
    void *in = NULL;
    const size_t bytes = ((size_t)skips + 1) * sizeof(wf_var *);
    wf_node_spec spec = {.op = &outputs_op, .n_in = skips + 1, .state = &s, .state_bytes = sizeof s};
    WF_TRY(wf_pool_take_host(p->ctx, bytes, &in));
    wf_var **var = in;
    for (int k = 1; k <= p->skips; k++)
        if (crosses(p, k, s->part, true))
            *var++ = wf_pipeline_link_of(p, 0, k, s->chunk)->made;
    *var = s->y;
    spec.in = in;
    s->y = wf_tape_record(s->tape, &spec, wf_tensor_alias(s->y->value));
    wf_pool_give_host(p->ctx, in, bytes);
    WF_NEED(s->y);
    return WF_OK;
}

/* What later parts take: aliases, which keep the values after the tape has released its variables. */
static wf_status give_all(wf_pipeline_run *run, wf_pipeline_slot *s)
{
    const wf_pipeline *p = s->pipe;
    int skips = 0;
    if (is_last(p, s->part)) {
        if (!run->loses)
            WF_NEED(run->y[s->chunk] = wf_tensor_alias(s->y->value));
        return WF_OK;
    }
    wf_pipeline_link *next = wf_pipeline_link_of(p, s->part + 1, 0, s->chunk);
    WF_NEED(next->value = wf_tensor_alias(s->y->value));
    for (int k = 1; k <= p->skips; k++) {
        if (!crosses(p, k, s->part, true))
            continue;
        wf_pipeline_link *skip = wf_pipeline_link_of(p, 0, k, s->chunk);
        WF_NEED(skip->value = wf_tensor_alias(skip->made->value));
        skips++;
    }
    return skips > 0 ? record_outputs(s, skips) : WF_OK;
}

wf_status wf_pipeline_forward(wf_pipeline_run *run, int part, int chunk, bool at_once)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = chunk_slot(p, part, chunk);
    WF_TRY(open_slot(run, part, chunk));
    WF_TRY(take_all(run, s));
    /* The last chunk's backward follows at once, so that recomputing it would save no memory. */
    const bool again = p->recompute == WF_RECOMPUTE_ALWAYS || (p->recompute == WF_RECOMPUTE_EXCEPT_LAST && !at_once);
    s->y = apply_part(s, again);
    WF_NEED(s->y);
    if (is_last(p, part) && run->loses)
        WF_TRY(end_in_loss(run, s));
    WF_TRY(give_all(run, s));
    return wf_tape_mode(run->tape) == WF_TRAIN ? WF_OK : release_chunk(s);
}

/* --- backward -------------------------------------------------------------------------------------------------------
 */

/* Keeps the gradient of the input of a part: zeros if the loss does not depend on it, since the earlier stage waits for
 * a message. */
static wf_status keep_gradient(wf_pipeline_link *k)
{
    const wf_tensor *gradient = wf_grad(k->taken);
    k->gradient = gradient ? wf_tensor_alias(gradient) : wf_tensor_new_like(k->taken->value);
    WF_NEED(k->gradient);
    return gradient ? WF_OK : wf_tensor_fill(k->gradient, 0);
}

/* Keeps the gradients of all inputs of this part, and drops those of its outputs, which backward has used. */
static wf_status keep_gradients(const wf_pipeline *p, int part, int chunk)
{
    if (!is_last(p, part))
        drop(&wf_pipeline_link_of(p, part + 1, 0, chunk)->gradient);
    if (part > 0)
        WF_TRY(keep_gradient(wf_pipeline_link_of(p, part, 0, chunk)));
    for (int k = 1; k <= p->skips; k++) {
        wf_pipeline_link *skip = wf_pipeline_link_of(p, 0, k, chunk);
        if (crosses(p, k, part, true))
            drop(&skip->gradient);
        if (crosses(p, k, part, false))
            WF_TRY(keep_gradient(skip));
    }
    return WF_OK;
}

wf_status wf_pipeline_backward(wf_pipeline_run *run, int part, int chunk)
{
    wf_pipeline *p = run->pipe;
    wf_pipeline_slot *s = chunk_slot(p, part, chunk);
    /* The weight is in the seed, so gradients of chunks add up to that of the sum of losses; the mean is made at the
     * end. */
    const double weight = !is_last(p, part) || is_part(run, s->y) ? 1 : s->y->loss_count;
    const wf_backward_opts opts = {
        .seed = weight > 0 ? weight : WF_ZERO, .add = true, .plan = wf_pipeline_grads_plan, .user = p};
    wf_tensor *gradient = NULL;
    if (!is_last(p, part)) {
        gradient = wf_pipeline_link_of(p, part + 1, 0, chunk)->gradient;
        WF_NEED(gradient);
        WF_TRY(wf_outbox_await(p->outbox, gradient));
        if (s->y->value && s->y->value->layout.known)
            WF_TRY(wf_tensor_set_layout(gradient, s->y->value->layout));
    }
    /* If nothing here is trained, there is nothing to differentiate, but the part before still gets a gradient:
     * zeros. */
    if (s->y->needs_grad)
        WF_TRY(wf_backward_run(s->y, gradient, &opts));
    WF_TRY(keep_gradients(p, part, chunk));
    return release_chunk(s);
}

/* --- messages -------------------------------------------------------------------------------------------------------
 */

static wf_status send(wf_pipeline *p, const wf_pipeline_action *a, wf_tensor **tensor)
{
    WF_NEED(*tensor);
    /* The layout is told with the first chunk only; later chunks continue it. */
    if (a->chunk == 0 && !a->gradient)
        WF_TRY(wf_pipeline_layout_send(p, *tensor, a->peer));
    WF_TRY(wf_outbox_post(p->outbox, *tensor, a->peer));
    drop(tensor);
    return WF_OK;
}

wf_status wf_pipeline_message(wf_pipeline_run *run, const wf_pipeline_action *a)
{
    wf_pipeline *p = run->pipe;
    /* The gradient of a part's output is that of the next one's input. */
    const int part = a->gradient ? a->part + 1 : a->part, row = wf_pipeline_link_row(p, part, a->skip);
    wf_pipeline_link *k = wf_pipeline_link_of(p, part, a->skip, a->chunk);
    wf_tensor **to = a->gradient ? &k->gradient : &k->value;
    if (a->verb == WF_PIPELINE_SEND)
        return send(p, a, to);
    if (!a->gradient && a->chunk == 0) {
        WF_TRY(wf_pipeline_layout_receive(p, row, a->peer));
        if (a->skip == 0)
            run->known = p->layout[row].known;
    }
    /* Receives are expected here and awaited by the computation that needs them. */
    *to = wf_outbox_expect(p->outbox, a->peer);
    WF_NEED(*to);
    return a->gradient ? WF_OK : wf_pipeline_layout_set(p, row, a->chunk, *to);
}
