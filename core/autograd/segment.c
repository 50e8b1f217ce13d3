/* Segments that are recomputed: forward keeps nothing of what is computed inside, and leaves one node on the tape,
 * whose inputs are all that the segment uses from outside. Called by wf_apply and by chains for layers that
 * wf_recompute marks; backward.c calls wf_segment_repeat when it reaches the node, and runs what that records.
 *
 *     forward, tape->segment set       each wf_tape_record only notes inputs from outside (wf_segment_note); at the
 *                                      end one node is recorded, and the values inside are freed
 *     backward, tape->repeat.on        the same function records its nodes at the tape's end, draws the numbers of the
 *                                      first time; backward.c runs these nodes and cuts them off again
 *
 * An op needs to know nothing of this, unless it changes a state in forward (wf_tape_repeats). */
#include "core/autograd/autograd_impl.h"

#include <string.h>

typedef struct segment {
    wf_segment_run run;
    void *owner;
    int64_t part;
    wf_var *const *x; /* during forward the caller's list, in the node a copy in the tape's arena */
    int n;
    wf_scope scope;
    int64_t draw, draw_end; /* the tape's draws that it made */
    uint64_t seed;          /* of the context then: wf_multi_node may set rank 0's before backward */
} segment;

static wf_status backward(wf_node *node)
{
    WF_FAIL(WF_ERR_STATE, "%s runs through wf_backward alone", node->op->name);
}

const wf_op wf_segment_op = {.name = "recomputed segment", .backward = backward};

bool wf_tape_repeats(const wf_tape *tape)
{
    return tape && tape->repeat.on;
}

static int64_t draws_so_far(const wf_tape *tape)
{
    return tape->repeat.on ? tape->repeat.draw : tape->n_draws;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Returns true if this is no further input of the segment: it was made inside, or is listed already. Notes that it is
 * listed from here on. Parameters are listed once each, in the order in which recorded nodes would use them: the order
 * in which backward completes their gradients follows from it, and is that of a segment that is recorded. */
static bool is_listed(const wf_tape *tape, wf_var *in)
{
    if (in->param ? in->param->segment == tape->segment : in->segment == tape->segment)
        return true;
    const bool listed = in->listed_in == tape->segment;
    in->listed_in = tape->segment;
    if (in->param)
        in->param->segment = tape->segment;
    return listed;
}

static wf_status list(wf_tape *tape, wf_var *in)
{
    if (tape->n_outside == tape->cap_outside) {
        const int64_t cap = tape->cap_outside ? 2 * tape->cap_outside : 64;
        wf_var **outside = wf_realloc(tape->ctx, tape->outside, (size_t)cap * sizeof *outside);
        if (!outside)
            return WF_ERR_MEMORY;
        tape->outside = outside;
        tape->cap_outside = cap;
    }
    tape->outside[tape->n_outside++] = in;
    return WF_OK;
}

wf_status wf_tape_check_message(const wf_tape *tape, const char *name)
{
    WF_CHECK(!tape || !tape->segment, WF_ERR_UNSUPPORTED,
             "%s inside of a segment that is recomputed: the other rank would not repeat the message; leave it outside",
             name);
    return WF_OK;
}

wf_status wf_segment_note(wf_tape *tape, const wf_node_spec *r)
{
    /* An op that always runs is a point-to-point message. */
    if (r->op && r->op->always)
        WF_TRY(wf_tape_check_message(tape, r->op->name));
    /* The ranks of the first one: in backward this rank's failure in the segment is told to them. */
    if (!tape->collective)
        tape->collective = r->comm ? r->comm : tape->scope.comm;
    for (int i = 0; i < r->n_in; i++)
        if (r->in[i] && !is_listed(tape, r->in[i]))
            WF_TRY(list(tape, r->in[i]));
    return WF_OK;
}

/* The node saves all that it uses, so that a change of it before backward is noticed. */
static wf_status record(wf_tape *tape, segment *s, wf_var *y)
{
    const int64_t n = tape->n_outside;
    wf_tensor **saved = wf_arena_take(tape->ctx, &tape->arena, (size_t)n * sizeof *saved);
    wf_var **x = wf_arena_take(tape->ctx, &tape->arena, (size_t)s->n * sizeof *x);
    WF_NEED(saved);
    WF_NEED(x);
    memcpy(x, s->x, (size_t)s->n * sizeof *x);
    s->x = x;
    for (int64_t i = 0; i < n; i++)
        saved[i] = tape->outside[i]->value;
    return wf_tape_add_node(tape,
                            &(wf_node_spec){.op = &wf_segment_op,
                                            .n_in = (int)n,
                                            .in = tape->outside,
                                            .n_saved = (int)n,
                                            .saved = saved,
                                            .state = s,
                                            .state_bytes = sizeof *s,
                                            .comm = tape->collective},
                            y);
}

wf_var *wf_tape_segment(wf_var *const *x, int n, wf_segment_run run, void *owner, int64_t part)
{
    for (int i = 0; i < n; i++)
        if (!x[i])
            return NULL;
    wf_tape *tape = x[0]->tape;
    /* Inside of another segment that is not recorded this one is a part of that, and becomes a node when that one is
     * computed again. */
    if (tape->mode != WF_TRAIN || tape->segment)
        return run(x, n, owner, part);
    const int64_t first = tape->n_vars;
    segment s = {run, owner, part, x, n, tape->scope, draws_so_far(tape), 0, tape->ctx->seed};
    if (tape->repeat.on)
        s.seed = tape->repeat.seed;
    const uint64_t id = tape->segment = ++tape->ctx->segments;
    tape->n_outside = 0;
    tape->collective = NULL;
    wf_var *y = run(x, n, owner, part);
    tape->segment = 0;
    s.draw_end = draws_so_far(tape);
    /* No node for a y that was not computed inside: an input, or a parameter, that `run` returned as it is. */
    if (y && y->segment == id && y->needs_grad && !y->param && record(tape, &s, y) != WF_OK)
        y = wf_error_null();
    for (int64_t i = first; i < tape->n_vars; i++) {
        wf_var *inside = tape->vars[i];
        if (inside == y || inside->param)
            continue;
        wf_tensor_free(inside->value);
        inside->value = NULL;
    }
    return y;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static wf_status check_again(const wf_node *node, const wf_var *y, int64_t draw)
{
    const segment *s = node->state;
    const wf_tensor *dy = node->out->grad;
    char text[2][WF_SHAPE_TEXT];
    WF_CHECK(draw == s->draw_end && !node->tape->draws_lost, WF_ERR_STATE,
             "\"%s\" drew random numbers %lld times in forward, and %lld times when it was recomputed",
             s->scope.path ? s->scope.path : "", (long long)(s->draw_end - s->draw), (long long)(draw - s->draw));
    WF_CHECK(y->node && y->value->dtype == dy->dtype && y->value->order == dy->order &&
                 wf_shape_equal(y->value->shape, dy->shape),
             WF_ERR_STATE, "\"%s\" gave %s %s in forward, and %s %s when it was recomputed",
             s->scope.path ? s->scope.path : "", wf_dtype_name(dy->dtype), wf_shape_text(dy->shape, text[0]),
             wf_dtype_name(y->value->dtype), wf_shape_text(y->value->shape, text[1]));
    return WF_OK;
}

wf_var *wf_segment_repeat(wf_node *node)
{
    wf_tape *tape = node->tape;
    const segment *s = node->state;
    /* The tape goes back to where the segment began, and afterwards to where backward was called. */
    const wf_scope scope = tape->scope;
    const uint64_t draws_in_scope = tape->draws_in_scope;
    const wf_mode mode = tape->mode;
    tape->scope = s->scope;
    tape->mode = WF_TRAIN;
    tape->repeat = (wf_repeat){.on = true, .draw = s->draw, .seed = s->seed};
    wf_var *y = s->run(s->x, s->n, s->owner, s->part);
    const int64_t draw = tape->repeat.draw;
    tape->repeat = (wf_repeat){0};
    tape->mode = mode;
    tape->scope = scope;
    tape->draws_in_scope = draws_in_scope;
    if (y)
        WF_TRY_NULL(check_again(node, y, draw));
    return y;
}
