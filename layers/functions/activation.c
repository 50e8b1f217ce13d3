/* Activations as functions. Each saves the one array that its backward needs, the input or the output. Programs call
 * them by layers/functions.h; layers that have an activation of their own fuse it instead (layers/serial/epilogue.c).
 */
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

typedef struct act_state {
    wf_act act;
    double slope;
} act_state;

static wf_status act_backward(wf_node *node)
{
    const act_state *state = node->state;
    bool add = false;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    const wf_array saved = wf_tensor_array(wf_node_saved(node, 0));
    const wf_array to = wf_tensor_array(dx), dy = wf_tensor_array(wf_node_dy(node));
    const bool input = wf_act_by_x(state->act);
    const wf_act_args args = {.act = state->act,
                              .slope = state->slope,
                              /* One array is kept, not two; the kernel takes whichever it is given. */
                              .x = input ? &saved : NULL,
                              .y = input ? NULL : &saved,
                              .dy = &dy,
                              .dx = &to,
                              .accumulate = add};
    WF_TRY(dx->ctx->k->act_backward(dx->ctx, &args));
    return WF_OK;
}

/* Noise alone: its derivative is 1. */
static wf_status pass_backward(wf_node *node)
{
    return wf_function_give(node, 0, wf_tensor_alias(wf_node_dy(node)));
}

static const wf_op ops[WF_ACTS] = {
    [WF_ACT_NONE] = {.name = "gaussian_noise", .backward = pass_backward},
    [WF_ACT_RELU] = {.name = "relu", .backward = act_backward},
    [WF_ACT_LEAKY_RELU] = {.name = "leaky_relu", .backward = act_backward},
    [WF_ACT_ELU] = {.name = "elu", .backward = act_backward},
    [WF_ACT_GELU] = {.name = "gelu", .backward = act_backward},
    [WF_ACT_SIGMOID] = {.name = "sigmoid", .backward = act_backward},
    [WF_ACT_TANH] = {.name = "tanh", .backward = act_backward},
    [WF_ACT_SOFTPLUS] = {.name = "softplus", .backward = act_backward},
    [WF_ACT_SILU] = {.name = "silu", .backward = act_backward},
    [WF_ACT_GELU_TANH] = {.name = "gelu_tanh", .backward = act_backward},
    [WF_ACT_HARD_SWISH] = {.name = "hard_swish", .backward = act_backward},
    [WF_ACT_SELU] = {.name = "selu", .backward = act_backward},
    [WF_ACT_EXP] = {.name = "exp", .backward = act_backward},
    [WF_ACT_LOG] = {.name = "log", .backward = act_backward},
    [WF_ACT_SQRT] = {.name = "sqrt", .backward = act_backward},
    [WF_ACT_POW] = {.name = "pow", .backward = act_backward},
    [WF_ACT_ABS] = {.name = "abs", .backward = act_backward},
};

static wf_status act_run(wf_var *x, const act_state *state, double noise, const wf_tensor *v, const wf_tensor *y)
{
    WF_NEED(v);
    WF_NEED(y);
    const wf_array from = wf_tensor_array(v), to = wf_tensor_array(y);
    if (noise == 0.0) {
        WF_TRY(v->ctx->k->act_forward(v->ctx,
                                      &(wf_act_args){.act = state->act, .slope = state->slope, .x = &from, .y = &to}));
        return WF_OK;
    }
    const wf_epilogue epilogue = {.act = state->act,
                                  .slope = state->slope,
                                  .noise = noise,
                                  /* The layout goes in: noise is drawn by the global index of an element, so cut and
                                   * whole inputs get the same. */
                                  .random = wf_tape_random(x->tape, v->shape, &x->value->layout)};
    WF_TRY(v->ctx->k->epilogue_forward(v->ctx, &epilogue, &from, &to));
    return WF_OK;
}

/* Saves x or y, whichever the derivative is computed from; y of ReLU is often saved by the next layer too. */
static wf_var *activated(wf_var *x, act_state state, double noise)
{
    wf_tensor *v = wf_function_value(x), *y = wf_tensor_new_like(x->value);
    const wf_status status = act_run(x, &state, noise, v, y);
    wf_tensor *saved = wf_act_by_x(state.act) ? v : y;
    wf_var *out = wf_function_finish(status, x->tape,
                                     &(wf_node_spec){.op = &ops[state.act],
                                                     .n_in = 1,
                                                     .in = &x,
                                                     .n_saved = state.act == WF_ACT_NONE ? 0 : 1,
                                                     .saved = &saved,
                                                     .state = &state,
                                                     .state_bytes = sizeof state},
                                     y);
    wf_tensor_free(v);
    return out;
}

wf_var *wf_activate(wf_var *x, wf_act act, double slope, double noise)
{
    if (!x)
        return NULL;
    WF_CHECK_NULL((unsigned)act < WF_ACTS, WF_ERR_ARGUMENT, "activation %d does not exist", (int)act);
    WF_CHECK_NULL(slope >= 0 || act == WF_ACT_POW, WF_ERR_ARGUMENT, "%s has slope (or alpha) %g; it must be 0 or more",
                  ops[act].name, slope);
    WF_CHECK_NULL(noise >= 0, WF_ERR_ARGUMENT, "noise has standard deviation %g; it must be 0 or more", noise);
    /* Noise is for training; evaluation is deterministic. */
    const bool noisy = noise > 0 && wf_tape_mode(x->tape) == WF_TRAIN;
    if (act == WF_ACT_NONE && !noisy)
        return x;
    /* Activations go element by element, so a cut input is as good as a whole one. */
    WF_TRY_NULL(wf_function_check(ops[act].name, x, WF_ANY_FUNCTION));
    /* One kernel for both; leaky with slope 0 would also give -0 for negative inputs. */
    if (act == WF_ACT_LEAKY_RELU && slope == 0)
        act = WF_ACT_RELU;
    if (!noisy)
        return activated(x, (act_state){act, slope}, 0.0);
    /* The epilogue's kernels have these activations, so noise and activation are one pass; the others take two. */
    if (act == WF_ACT_NONE || act == WF_ACT_RELU || act == WF_ACT_LEAKY_RELU)
        return activated(x, (act_state){act, slope}, noise);
    wf_var *v = activated(x, (act_state){WF_ACT_NONE, 0.0}, noise);
    return v ? activated(v, (act_state){act, slope}, 0.0) : NULL;
}

wf_var *wf_relu(wf_var *x)
{
    return wf_activate(x, WF_ACT_RELU, 0.0, 0.0);
}

wf_var *wf_leaky_relu(wf_var *x, double slope)
{
    return wf_activate(x, WF_ACT_LEAKY_RELU, slope, 0.0);
}

wf_var *wf_elu(wf_var *x, double alpha)
{
    return wf_activate(x, WF_ACT_ELU, alpha, 0.0);
}

wf_var *wf_gelu(wf_var *x)
{
    return wf_activate(x, WF_ACT_GELU, 0.0, 0.0);
}

wf_var *wf_sigmoid(wf_var *x)
{
    return wf_activate(x, WF_ACT_SIGMOID, 0.0, 0.0);
}

wf_var *wf_tanh(wf_var *x)
{
    return wf_activate(x, WF_ACT_TANH, 0.0, 0.0);
}

wf_var *wf_softplus(wf_var *x)
{
    return wf_activate(x, WF_ACT_SOFTPLUS, 0.0, 0.0);
}

wf_var *wf_silu(wf_var *x)
{
    return wf_activate(x, WF_ACT_SILU, 0.0, 0.0);
}

wf_var *wf_gelu_tanh(wf_var *x)
{
    return wf_activate(x, WF_ACT_GELU_TANH, 0.0, 0.0);
}

wf_var *wf_hard_swish(wf_var *x)
{
    return wf_activate(x, WF_ACT_HARD_SWISH, 0.0, 0.0);
}

wf_var *wf_selu(wf_var *x)
{
    return wf_activate(x, WF_ACT_SELU, 0.0, 0.0);
}

wf_var *wf_exp(wf_var *x)
{
    return wf_activate(x, WF_ACT_EXP, 0.0, 0.0);
}

wf_var *wf_log(wf_var *x)
{
    return wf_activate(x, WF_ACT_LOG, 0.0, 0.0);
}

wf_var *wf_sqrt(wf_var *x)
{
    return wf_activate(x, WF_ACT_SQRT, 0.0, 0.0);
}

wf_var *wf_abs(wf_var *x)
{
    return wf_activate(x, WF_ACT_ABS, 0.0, 0.0);
}

wf_var *wf_pow(wf_var *x, double exponent)
{
    return wf_activate(x, WF_ACT_POW, exponent, 0.0);
}

/* Clipping, by the slot of folds: it has two bounds. */

typedef struct clip_state {
    double lo, hi;
} clip_state;

/* With b this is the gradient: a is dy, and b the input that says where the bounds were passed. */
static wf_status clip(const clip_state *s, const wf_tensor *a, const wf_tensor *b, const wf_tensor *y, bool accumulate)
{
    WF_NEED(a);
    WF_NEED(y);
    const wf_strided from = wf_tensor_strided(a), to = wf_tensor_strided(y);
    wf_strided at;
    if (b)
        at = wf_tensor_strided(b);
    const wf_fold_args args = {.op = b ? WF_FOLD_CLIP_X : WF_FOLD_CLIP,
                               .alpha = s->lo,
                               .beta = s->hi,
                               .a = &from,
                               .b = b ? &at : NULL,
                               .y = &to,
                               .accumulate = accumulate};
    return y->ctx->k->fold(y->ctx, &args);
}

static wf_status clip_backward(wf_node *node)
{
    bool add = false;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    return clip(node->state, wf_node_dy(node), wf_node_saved(node, 0), dx, add);
}

static const wf_op clip_op = {.name = "clip", .backward = clip_backward};

wf_var *wf_clip(wf_var *x, double lo, double hi)
{
    const clip_state state = {lo, hi};
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check("clip", x, WF_ANY_FUNCTION));
    WF_CHECK_NULL(lo <= hi, WF_ERR_ARGUMENT, "clip to [%g, %g]; the lower bound should not be above the upper one", lo,
                  hi);
    wf_tensor *y = wf_tensor_new_like(x->value);
    return wf_function_finish(clip(&state, x->value, NULL, y, false), x->tape,
                              &(wf_node_spec){.op = &clip_op,
                                              .n_in = 1,
                                              .in = &x,
                                              .n_saved = 1,
                                              .saved = &x->value,
                                              .state = &state,
                                              .state_bytes = sizeof state},
                              y);
}
