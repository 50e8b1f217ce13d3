/* Dropout, noise and random variables. The numbers are a function of the place in the global tensor, so they do not
 * depend on the partition. */
#include "layers/functions.h"

#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions/functions_impl.h"

typedef struct dropout_state {
    double rate;
    wf_random random;
} dropout_state;

static wf_status dropout_run(const dropout_state *state, const wf_tensor *x, const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(x), to = wf_tensor_array(y);
    WF_TRY(x->ctx->k->dropout(x->ctx, state->rate, &state->random, &from, &to));
    return WF_OK;
}

static wf_status dropout_backward(wf_node *node)
{
    /* The mask is drawn again instead of saved: the same stream gives the same mask. */
    wf_tensor *dx = wf_tensor_new_like(wf_node_dy(node));
    const wf_status status = dropout_run(node->state, wf_node_dy(node), dx);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op dropout_op = {.name = "dropout", .backward = dropout_backward};

wf_var *wf_dropout(wf_var *x, double rate)
{
    if (!x)
        return NULL;
    WF_CHECK_NULL(rate >= 0 && rate < 1, WF_ERR_ARGUMENT, "dropout rate %g is not in [0, 1)", rate);
    /* No draw is counted here, so evaluation does not move the numbers of training. */
    if (rate == 0 || wf_tape_mode(x->tape) != WF_TRAIN)
        return x;
    WF_TRY_NULL(wf_function_check("dropout", x, WF_ANY_FUNCTION));
    const dropout_state state = {rate, wf_tape_random(x->tape, x->value->shape, &x->value->layout)};
    wf_tensor *v = wf_function_value(x), *y = wf_tensor_new_like(x->value);
    const wf_status status = dropout_run(&state, v, y);
    wf_var *out = wf_function_finish(
        status, x->tape,
        &(wf_node_spec){.op = &dropout_op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state}, y);
    wf_tensor_free(v);
    return out;
}

wf_var *wf_gaussian_noise(wf_var *x, double std)
{
    return wf_activate(x, WF_ACT_NONE, 0.0, std);
}

/* Axes that cut dimension 0 of `like` cut that of the new tensor; along the others every rank draws the same numbers.
 */
static wf_status follow_batch(const char *what, const wf_layout *in, wf_shape shape, wf_layout *out)
{
    static const int from[WF_MAX_RANK] = {0, -1, -1, -1, -1, -1};
    char text[WF_SHAPE_TEXT], whole[WF_LAYOUT_TEXT];
    wf_layout batch = *in;
    for (int axis = 0; axis < WF_AXES; axis++)
        if (batch.placement[axis] == WF_SHARDED && batch.dim[axis] != 0)
            batch.placement[axis] = WF_REPLICATED;
    WF_CHECK(wf_layout_follow(&batch, shape, from, out), WF_ERR_SHAPE, "%s of shape %s cannot follow the layout %s",
             what, wf_shape_text(shape, text), wf_layout_text(in, whole));
    WF_CHECK(shape.rank == 0 || !wf_layout_is_sharded(in, 0) || shape.dim[0] == in->box.hi[0] - in->box.lo[0],
             WF_ERR_SHAPE, "%s of shape %s: dimension 0 should be the %lld samples that this rank has of %s", what,
             wf_shape_text(shape, text), (long long)(in->box.hi[0] - in->box.lo[0]), wf_layout_text(in, whole));
    return WF_OK;
}

/* The shape may be wrong on some ranks alone: of 3 samples, one rank may have all. */
static wf_status layout_like(const char *what, const wf_var *like, wf_shape shape, wf_layout *out)
{
    *out = wf_layout_none();
    WF_CHECK(!like || like->value, WF_ERR_STATE, "%s like a variable whose value went with the backward that passed it",
             what);
    if (!like || !like->value->layout.known)
        return WF_OK;
    const wf_layout *in = &like->value->layout;
    const wf_status status = follow_batch(what, in, shape, out);
    return status == WF_OK ? WF_OK : wf_comm_post_failure(wf_mesh_world(in->mesh), status);
}

static wf_status draw_tensor(wf_tape *tape, wf_distribution dist, double a, double b, const wf_layout *layout,
                             wf_tensor *y)
{
    WF_NEED(y);
    WF_TRY(wf_tensor_set_layout(y, *layout));
    const wf_random random = wf_tape_random(tape, y->shape, layout);
    const wf_array to = wf_tensor_array(y);
    WF_TRY(y->ctx->k->random(y->ctx, dist, &random, a, b, &to));
    return WF_OK;
}

static wf_var *drawn(const char *what, wf_tape *tape, wf_shape shape, wf_distribution dist, double a, double b,
                     const wf_var *like)
{
    if (!tape)
        return NULL;
    char text[WF_SHAPE_TEXT];
    wf_layout layout;
    WF_CHECK_NULL(wf_shape_count(shape) >= 0, WF_ERR_SHAPE, "%s of impossible shape %s", what,
                  wf_shape_text(shape, text));
    WF_TRY_NULL(layout_like(what, like, shape, &layout));
    wf_ctx *ctx = wf_tape_ctx(tape);
    wf_tensor *y = wf_tensor_new_step(ctx, ctx->dtype, shape, wf_order_default(shape.rank));
    wf_var *out = draw_tensor(tape, dist, a, b, &layout, y) == WF_OK ? wf_input(tape, y) : wf_error_null();
    wf_tensor_free(y);
    return out;
}

wf_var *wf_randn(wf_tape *tape, wf_shape shape, const wf_var *like)
{
    return drawn("randn", tape, shape, WF_NORMAL, 0.0, 1.0, like);
}

wf_var *wf_rand_uniform(wf_tape *tape, wf_shape shape, double lo, double hi, const wf_var *like)
{
    WF_CHECK_NULL(lo <= hi, WF_ERR_ARGUMENT, "rand_uniform in [%g, %g)", lo, hi);
    return drawn("rand_uniform", tape, shape, WF_UNIFORM, lo, hi, like);
}
