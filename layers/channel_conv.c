/* A convolution whose weights are shared out among the ranks of the channel axis. Forward takes this rank's part of x,
 * convolves, and puts the result where y is held; backward does the reverse. Where the ranks' outputs are to be summed,
 * bias and activation come after the sum, else in the same pass as the convolution. */
#include "layers/channel.h"
#include "layers/channel_local_impl.h"
#include "layers/conv_impl.h"

typedef struct conv_state {
    wf_conv_state conv;
    const wf_mesh *mesh;
    wf_channel_split split;
    wf_channel_local local;
} conv_state;

/* What backward is told. */
typedef struct conv_call {
    const conv_state *state;
    const int64_t *x_cut;
    bool follows; /* an activation follows */
    wf_epilogue epilogue;
} conv_call;

enum { SAVED_X, SAVED_W, SAVED_Y, SAVED };

/* Forward. */

static bool in_one_pass(const conv_state *s)
{
    return s->split.out.apart && s->local.pieces == 1;
}

static wf_tensor *new_part(const wf_tensor *like, wf_shape shape, wf_range channels)
{
    shape.dim[1] = channels.hi - channels.lo;
    return wf_tensor_new_step(like->ctx, like->dtype, shape, WF_CHANNELS_LAST);
}

static wf_status add_epilogue(const conv_call *call, const wf_var *b, const wf_tensor *y)
{
    const wf_array out = wf_tensor_array(y);
    if (b)
        WF_TRY(wf_channel_bias(y, b->value));
    return y->ctx->k->epilogue_forward(y->ctx, &call->epilogue, &out, &out);
}

static void set_epilogue(conv_call *call, wf_var *x, wf_tensor *y, const int64_t *cut)
{
    const conv_state *s = call->state;
    y->layout = wf_channel_layout(s->mesh, x, y->shape, s->conv.out, cut);
    call->epilogue = wf_epilogue_on(&s->conv.epilogue, wf_var_tape(x), y);
    call->follows = wf_epilogue_acts(&call->epilogue);
}

/* The result that an activation made stands in *acted: the part, or what is held. */
static wf_tensor *compute(conv_call *call, wf_var *x, const wf_tensor *in, const wf_var *w, const wf_var *b,
                          wf_shape shape, wf_tensor **acted)
{
    const conv_state *s = call->state;
    const wf_channel_way way = s->conv.transposed ? WF_TO_INNER : WF_TO_OUTER;
    const bool apart = s->split.out.apart, fused = in_one_pass(s);
    const wf_array bias = wf_tensor_array(b ? b->value : NULL);
    wf_tensor *part = new_part(in, shape, wf_channel_outputs(&s->split)), *y = NULL;
    wf_status status;
    WF_TRY_OUT(wf_check(part));
    if (apart)
        set_epilogue(call, x, part, s->split.part_cut);
    WF_TRY_OUT(wf_channel_local_run(&s->local, way, in, w->value, fused && b ? &bias : NULL,
                                    fused ? &call->epilogue : NULL, part));
    if (apart && !fused)
        WF_TRY_OUT(add_epilogue(call, b, part));
    if (apart)
        *acted = wf_tensor_alias(part);
    y = wf_channel_put(&s->split.out, s->split.cut, part);
    part = NULL;
    WF_TRY_OUT(wf_check(y));
    y->layout = wf_channel_layout(s->mesh, x, y->shape, s->conv.out, s->split.cut);
    if (!apart) {
        set_epilogue(call, x, y, s->split.cut);
        WF_TRY_OUT(add_epilogue(call, b, y));
        *acted = wf_tensor_alias(y);
    }
    WF_TRY_OUT(wf_check(*acted));
    return y;
out:
    wf_tensor_free(part);
    wf_tensor_free(y);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

static wf_status backward(wf_node *node);
static const wf_op conv_op = {.name = "channel_conv", .backward = backward};

static wf_var *apply(wf_layer *layer, wf_var *x, const int64_t *x_cut, wf_tensor *in, wf_shape shape)
{
    const conv_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    wf_var *w = wf_param_var(tape, s->conv.w), *b = s->conv.b ? wf_param_var(tape, s->conv.b) : NULL;
    if (!w || (s->conv.b && !b))
        return NULL;
    conv_call call = {.state = s, .x_cut = x_cut};
    wf_tensor *acted = NULL, *y = compute(&call, x, in, w, b, shape, &acted);
    wf_var *var = NULL;
    if (y)
        var = wf_tape_record(tape,
                             &(wf_record){.op = &conv_op,
                                          .n_in = 3,
                                          .in = (wf_var *[]){x, w, b},
                                          .n_saved = SAVED,
                                          .saved = (wf_tensor *[]){in, w->value, call.follows ? acted : NULL},
                                          .state = &call,
                                          .state_bytes = sizeof call},
                             y);
    wf_tensor_free(acted);
    return var;
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const conv_state *s = layer->state;
    const int64_t *x_cut = NULL;
    wf_shape whole = wf_var_shape(x), shape = {0};
    WF_TRY_NULL(wf_channel_check_input(layer, s->conv.name, s->mesh, x, &x_cut));
    if (x_cut)
        whole.dim[1] = x_cut[wf_mesh_size(s->mesh, WF_AXIS_CHANNEL)];
    WF_TRY_NULL(wf_conv_output_shape(layer, x, whole, &shape));
    wf_tensor *in = wf_channel_take(&s->split.in, x_cut, x->value);
    wf_var *y = in ? apply(layer, x, x_cut, in, shape) : NULL;
    wf_tensor_free(in);
    return y;
}

/* Backward. */

/* dy where an activation follows: a handle to be freed. */
static wf_tensor *masked(wf_node *node, const wf_tensor *dy)
{
    const conv_call *call = node->state;
    if (!dy || !call->follows)
        return wf_tensor_alias(dy);
    wf_tensor *dv = wf_tensor_new_like(wf_node_saved(node, SAVED_Y));
    if (!dv)
        return NULL;
    const wf_array y = wf_tensor_array(wf_node_saved(node, SAVED_Y)), from = wf_tensor_array(dy);
    const wf_array to = wf_tensor_array(dv);
    const wf_status status = dv->ctx->k->epilogue_backward(dv->ctx, &call->epilogue, &y, &from, &to);
    if (status == WF_OK)
        return dv;
    wf_tensor_free(dv);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

static wf_status backward_x(wf_node *node, const wf_tensor *dpart)
{
    const conv_call *call = node->state;
    const conv_state *s = call->state;
    wf_tensor *part = wf_tensor_new_like(wf_node_saved(node, SAVED_X));
    WF_NEED(part);
    const wf_status status = wf_channel_local_run(&s->local, s->conv.transposed ? WF_TO_OUTER : WF_TO_INNER, dpart,
                                                  wf_node_saved(node, SAVED_W), NULL, NULL, part);
    if (status != WF_OK) {
        wf_tensor_free(part);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    return wf_node_give(node, 0, wf_channel_put(&s->split.in, call->x_cut, part), false);
}

/* dv is where the bias was added: the part, or what is held. */
static wf_status backward_params(wf_node *node, const wf_tensor *dpart, const wf_tensor *dv)
{
    const conv_call *call = node->state;
    const conv_state *s = call->state;
    const wf_tensor *x = wf_node_saved(node, SAVED_X);
    bool add_w = false, add_b = false;
    const bool wants_w = wf_node_wants(node, 1), wants_b = wf_node_wants(node, 2);
    wf_tensor *dw = wants_w ? wf_node_grad(node, 1, &add_w) : NULL, *db = NULL;
    if (wants_b) {
        db = wf_node_grad(node, 2, &add_b);
        WF_NEED(db);
    }
    const wf_array bias = wf_tensor_array(db), from = wf_tensor_array(dv);
    const bool together = wants_w && wants_b && !s->conv.transposed && add_w == add_b && in_one_pass(s);
    if (wants_w) {
        WF_NEED(dw);
        WF_TRY(wf_channel_local_filter(&s->local, s->conv.transposed ? dpart : x, s->conv.transposed ? x : dpart, dw,
                                       together ? &bias : NULL, add_w));
    }
    if (wants_b && !together)
        WF_TRY(dv->ctx->k->bias_backward(dv->ctx, &from, &bias, add_b));
    return WF_OK;
}

static wf_status backward(wf_node *node)
{
    const conv_call *call = node->state;
    const wf_channel_split *split = &call->state->split;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *dv = NULL, *part = NULL;
    wf_status status;
    if (split->out.apart) {
        part = wf_channel_take(&split->out, split->cut, dy);
        dv = masked(node, part);
        wf_tensor_free(part);
        part = wf_tensor_alias(dv);
    } else {
        dv = masked(node, dy);
        part = wf_channel_take(&split->out, split->cut, dv);
    }
    WF_TRY_OUT(wf_check(part));
    WF_TRY_OUT(backward_params(node, part, dv));
    if (wf_node_wants(node, 0))
        WF_TRY_OUT(backward_x(node, part));
out:
    wf_tensor_free(dv);
    wf_tensor_free(part);
    return status;
}

/* Construction. */

static void free_state(wf_layer *layer)
{
    conv_state *s = layer->state;
    wf_channel_split_free(&s->split);
}

static const wf_layer_kind conv_kind = {"channel_conv", forward, free_state};

/* This rank's rows and columns of the filter. */
static wf_box filter_box(const conv_state *s)
{
    const wf_channel_split *split = &s->split;
    const wf_range in = wf_channel_inputs(split), out = wf_channel_outputs(split);
    const wf_range rows = split->by_input ? in : out, columns = split->by_input ? out : in;
    wf_box box = wf_box_of_shape(s->conv.w->shape);
    box.lo[0] = rows.lo;
    box.hi[0] = rows.hi;
    if (split->groups == 1) {
        box.lo[1] = columns.lo;
        box.hi[1] = columns.hi;
    }
    return box;
}

static wf_channel_opts split_opts(const wf_conv_opts *o, const wf_conv_state *s)
{
    wf_channel_opts split = {.in = o->in,
                             .out = o->out,
                             .groups = s->geom.groups,
                             .growth = 1,
                             .by_input = s->transposed,
                             .replicate = o->replicate,
                             .form = o->form};
    for (int d = 0; d < s->geom.nd; d++)
        split.growth *= s->transposed ? (double)s->geom.stride[d] : 1 / (double)s->geom.stride[d];
    return split;
}

static wf_layer *make(const wf_mesh *mesh, wf_conv_opts o, int nd, bool transposed)
{
    static const char *const names[2][3] = {
        {"channel_conv1d", "channel_conv2d", "channel_conv3d"},
        {"channel_conv_transpose1d", "channel_conv_transpose2d", "channel_conv_transpose3d"}};
    const char *name = names[transposed][nd - 1];
    wf_conv_state conv;
    wf_channel_split split;
    if (!mesh)
        return NULL;
    WF_TRY_NULL(wf_conv_state_make(name, nd, transposed, &o, &conv));
    const wf_channel_opts opts = split_opts(&o, &conv);
    WF_TRY_NULL(wf_channel_split_init(&split, name, mesh, &opts));
    wf_layer *layer = wf_conv_layer(wf_comm_ctx(wf_mesh_world(mesh)), &conv_kind, &o, &conv, sizeof(conv_state));
    if (!layer) {
        wf_channel_split_free(&split);
        return NULL;
    }
    conv_state *s = layer->state;
    s->mesh = mesh;
    s->split = split;
    s->local = wf_channel_local_of(&s->split, s->conv.geom);
    wf_channel_cut_param(s->conv.w, filter_box(s), wf_channel_is_split(&s->split));
    wf_channel_cut_bias(s->conv.b, &s->split);
    return layer;
}

wf_layer *wf_channel_conv1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 1, false);
}

wf_layer *wf_channel_conv2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 2, false);
}

wf_layer *wf_channel_conv3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 3, false);
}

wf_layer *wf_channel_conv_transpose1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 1, true);
}

wf_layer *wf_channel_conv_transpose2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 2, true);
}

wf_layer *wf_channel_conv_transpose3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 3, true);
}
