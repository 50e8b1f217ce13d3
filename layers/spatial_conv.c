/* Spatially parallel convolution and transposed convolution. Forward computes the outputs of this rank from its inputs
 * and their halo, which it keeps for the filter's gradient. */
#include "core/config_author.h"
#include "layers/conv_impl.h"
#include "layers/spatial.h"
#include "layers/spatial_impl.h"

typedef struct spatial_conv {
    wf_conv_state conv;
    const wf_mesh *mesh;
    const wf_chain_step *step; /* of the chain that applies this layer just now */
} spatial_conv;

/* What backward is told. */
typedef struct spatial_call {
    const wf_mesh *mesh;
    wf_map map; /* y from x */
    int64_t groups;
    wf_box x_box, y_box;
    wf_parts parts;
    wf_halo x_halo, dy_halo;
    bool follows, recompute;
    wf_epilogue epilogue;
} spatial_call;

enum { SAVED_X, SAVED_HALO, SAVED_W, SAVED_Y, SAVED };

/* Kernels. */

static wf_conv_geom local_geom(const wf_map *map, int64_t groups, wf_box out, wf_box in)
{
    wf_conv_geom g = {.nd = map->nd, .groups = groups};
    for (int d = 0; d < map->nd; d++) {
        const wf_window w =
            wf_map_local(map, d, (wf_range){out.lo[2 + d], out.hi[2 + d]}, (wf_range){in.lo[2 + d], in.hi[2 + d]});
        g.kernel[d] = w.kernel;
        g.stride[d] = w.stride;
        g.dilation[d] = w.dilation;
        g.pad_lo[d] = w.pad_lo;
        g.pad_hi[d] = w.pad_hi;
    }
    return g;
}

typedef struct output_run {
    wf_ctx *ctx;
    const wf_map *map;
    int64_t groups;
    wf_array w, bias;
    const wf_epilogue *epilogue; /* NULL: none */
} output_run;

static wf_status make_output(void *user, const wf_array *in, wf_box in_box, const wf_array *out, wf_box out_box)
{
    const output_run *r = user;
    const wf_conv_geom geom = local_geom(r->map, r->groups, out_box, in_box);
    wf_epilogue epilogue = r->epilogue ? *r->epilogue : (wf_epilogue){.act = WF_ACT_NONE};
    wf_box *part = &epilogue.random.box;
    for (int d = 2; d < out_box.rank; d++) {
        part->lo[d] = out_box.lo[d];
        part->hi[d] = out_box.hi[d];
    }
    part->hi[0] = part->lo[0] + out_box.hi[0];
    part->lo[0] += out_box.lo[0];
    const wf_kernels *k = r->ctx->k;
    return (r->map->kind == WF_MAP_WINDOW ? k->conv_forward : k->conv_backward_data)(
        r->ctx, &geom, in, &r->w, r->bias.shape.rank ? &r->bias : NULL, r->epilogue ? &epilogue : NULL, out);
}

typedef struct filter_run {
    wf_ctx *ctx;
    const wf_map *map;
    int64_t groups;
    wf_array dw, db;
    bool with_bias, add;
} filter_run;

static wf_status add_filter(void *user, const wf_array *in, wf_box in_box, const wf_array *out, wf_box out_box)
{
    filter_run *r = user;
    const wf_conv_geom geom = local_geom(r->map, r->groups, out_box, in_box);
    const bool straight = r->map->kind == WF_MAP_WINDOW, add = r->add;
    r->add = true;
    return r->ctx->k->conv_backward_filter(r->ctx, &geom, straight ? in : out, straight ? out : in, &r->dw,
                                           r->with_bias ? &r->db : NULL, add);
}

/* Forward. */

wf_status wf_spatial_conv_map(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_map *map, double *work,
                              wf_shape *y)
{
    const wf_conv_state *c = layer->state;
    WF_TRY(wf_conv_output_shape(layer, x, shape, y));
    *map = (wf_map){.kind = c->transposed ? WF_MAP_WINDOW_BACK : WF_MAP_WINDOW, .nd = c->geom.nd};
    *work = (double)(c->in / c->geom.groups);
    for (int d = 0; d < map->nd; d++) {
        map->window[d] = wf_conv_window(&c->geom, d);
        map->in[d] = shape.dim[2 + d];
        map->out[d] = y->dim[2 + d];
        *work *= (double)c->geom.kernel[d] / (double)(c->transposed ? c->geom.stride[d] : 1);
    }
    return WF_OK;
}

/* In a chain nothing moves, neither now nor in backward. */
static void plan_step(const spatial_conv *s, spatial_call *call, wf_layout *layout)
{
    const wf_chain_step *step = s->step;
    const wf_map back = wf_map_inverse(&step->map);
    *call = (spatial_call){.mesh = s->mesh,
                           .map = step->map,
                           .groups = s->conv.geom.groups,
                           .x_box = step->x_box,
                           .y_box = step->y_box,
                           .recompute = true};
    call->x_halo.need = wf_map_box(&step->map, step->y_box, step->x_box);
    call->dy_halo.need = wf_box_intersect(wf_map_box(&back, step->x_box, step->y_box), step->y_box);
    call->parts = wf_parts_make(&step->map, step->y_box, step->x_box, call->x_halo.need);
    *layout = step->layout;
}

static wf_status plan(const wf_layer *layer, const wf_var *x, spatial_call *call, wf_layout *layout)
{
    const spatial_conv *s = layer->state;
    const wf_conv_state *c = &s->conv;
    const wf_layout *given = &x->value->layout;
    wf_shape shape;
    wf_cuts in, out;
    double work;
    if (s->step) {
        plan_step(s, call, layout);
        return WF_OK;
    }
    *call = (spatial_call){.mesh = s->mesh, .groups = c->geom.groups};
    WF_TRY(wf_cuts_of(layer, c->name, s->mesh, x, true, &in));
    WF_TRY(wf_spatial_conv_map(layer, x, given->global, &call->map, &work, &shape));
    WF_TRY(wf_cuts_outputs(&in, &call->map, c->out, &out));
    WF_TRY(wf_halo_make(&in, &call->map, &out, x->value->dtype, &call->x_halo));
    call->x_box = in.box;
    call->y_box = out.box;
    call->parts = wf_parts_make(&call->map, out.box, in.box, call->x_halo.need);
    *layout = wf_cuts_layout(&out, given);
    if (!x->needs_grad || wf_tape_mode(x->tape) != WF_TRAIN)
        return WF_OK;
    const wf_map back = wf_map_inverse(&call->map);
    WF_TRY(wf_halo_make(&out, &back, &in, x->value->dtype, &call->dy_halo));
    /* Gaps of dilation may make an input's readers seem to be elsewhere. */
    if (!call->x_halo.exchange)
        call->dy_halo = (wf_halo){.need = wf_box_intersect(call->dy_halo.need, out.box)};
    call->recompute = wf_config_get()->deterministic || call->dy_halo.volume <= call->x_halo.volume;
    return WF_OK;
}

static wf_status compute(const spatial_call *call, wf_inflow *flow, const wf_var *w, const wf_var *b,
                         const wf_tensor *y)
{
    output_run user = {.ctx = y->ctx, .map = &call->map, .groups = call->groups, .epilogue = &call->epilogue};
    user.w = wf_tensor_array(w->value);
    user.bias = wf_tensor_array(b ? b->value : NULL);
    const wf_part_run run = {.map = &call->map,
                             .out = y,
                             .out_box = call->y_box,
                             .kernel = make_output,
                             .user = &user,
                             .poll = call->x_halo.exchange};
    WF_TRY(wf_inflow_begin(flow));
    WF_TRY(wf_parts_run(&run, flow->own, flow->own_box, &flow->parts, NULL, true));
    WF_TRY(wf_inflow_end(flow));
    return wf_parts_run(&run, flow->own, flow->own_box, &flow->parts, flow->assembled, false);
}

static wf_status backward(wf_node *node);
static const wf_op spatial_conv_op = {.name = "spatial_conv", .backward = backward};
static const wf_op spatial_conv_transpose_op = {.name = "spatial_conv_transpose", .backward = backward};

/* The variable of y, whose handle it takes. */
static wf_var *apply(wf_layer *layer, wf_var *x, spatial_call *call, wf_inflow *flow, wf_tensor *y)
{
    const wf_conv_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    wf_var *w = wf_param_var(tape, s->w), *b = s->b ? wf_param_var(tape, s->b) : NULL;
    call->epilogue = wf_epilogue_on(&s->epilogue, tape, y);
    call->follows = wf_epilogue_acts(&call->epilogue);
    const wf_status status =
        !w || (s->b && !b) ? wf_error_take("a parameter", __FILE__, __LINE__) : compute(call, flow, w, b, y);
    if (status != WF_OK) {
        wf_error_frame(status, __FILE__, __LINE__, __func__);
        wf_tensor_free(y);
        return NULL;
    }
    return wf_tape_record(tape,
                          &(wf_record){.op = s->transposed ? &spatial_conv_transpose_op : &spatial_conv_op,
                                       .n_in = 3,
                                       .in = (wf_var *[]){x, w, b},
                                       .n_saved = SAVED,
                                       .saved = (wf_tensor *[]){(wf_tensor *)flow->own, flow->assembled, w->value,
                                                                call->follows ? y : NULL},
                                       .state = call,
                                       .state_bytes = sizeof *call},
                          y);
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const spatial_conv *s = layer->state;
    spatial_call call;
    wf_layout layout;
    wf_status status = plan(layer, x, &call, &layout);
    if (status != WF_OK) {
        wf_spatial_failed(s->mesh, status);
        return wf_error_null();
    }
    wf_tensor *own = wf_dense_value(x);
    wf_tensor *y = wf_tensor_new_step(layer->ctx, x->value->dtype, wf_box_shape(call.y_box), WF_CHANNELS_LAST);
    wf_inflow flow = {.own = own, .own_box = call.x_box, .halo = call.x_halo, .parts = call.parts};
    wf_var *var = NULL;
    if (own && y) {
        y->layout = layout;
        var = apply(layer, x, &call, &flow, y);
    } else
        wf_tensor_free(y);
    if (!var)
        wf_spatial_failed(s->mesh, wf_error_code());
    wf_inflow_free(&flow);
    wf_tensor_free(own);
    return var ? var : wf_error_null();
}

/* Backward. */

static wf_status backward_filter(wf_node *node, const spatial_call *call, const wf_tensor *dv, filter_run *user,
                                 wf_exchange *poll)
{
    const wf_tensor *x = wf_node_saved(node, SAVED_X), *halo = wf_node_saved(node, SAVED_HALO);
    const wf_part_run run = {.map = &call->map,
                             .out = dv,
                             .out_box = call->y_box,
                             .reads_out = true,
                             .kernel = add_filter,
                             .user = user,
                             .poll = poll};
    WF_TRY(wf_parts_run(&run, x, call->x_box, &call->parts, halo, true));
    WF_TRY(wf_parts_run(&run, x, call->x_box, &call->parts, halo, false));
    if (user->add)
        return WF_OK;
    WF_TRY(x->ctx->k->fill(x->ctx, &user->dw, 0));
    return user->with_bias ? x->ctx->k->fill(x->ctx, &user->db, 0) : WF_OK;
}

static wf_status backward_params(wf_node *node, const spatial_call *call, const wf_tensor *dv, wf_exchange *poll)
{
    filter_run user = {.ctx = dv->ctx, .map = &call->map, .groups = call->groups};
    const wf_array dy = wf_tensor_array(dv);
    bool add_b = false;
    const bool wants_w = wf_node_wants(node, 1), wants_b = wf_node_wants(node, 2);
    if (wants_w) {
        wf_tensor *grad = wf_node_grad(node, 1, &user.add);
        WF_NEED(grad);
        user.dw = wf_tensor_array(grad);
    }
    if (wants_b) {
        wf_tensor *grad = wf_node_grad(node, 2, &add_b);
        WF_NEED(grad);
        user.db = wf_tensor_array(grad);
    }
    user.with_bias = wants_w && wants_b && call->map.kind == WF_MAP_WINDOW && user.add == add_b;
    if (wants_w)
        WF_TRY(backward_filter(node, call, dv, &user, poll));
    return wants_b && !user.with_bias ? dv->ctx->k->bias_backward(dv->ctx, &dy, &user.db, add_b) : WF_OK;
}

/* dx from dy and its halo, which travels while the parameters' gradients are computed. */
static wf_status recompute_with(wf_node *node, const spatial_call *call, wf_inflow *flow, const wf_tensor *dx)
{
    const wf_map back = wf_map_inverse(&call->map);
    output_run user = {.ctx = dx->ctx, .map = &back, .groups = call->groups};
    user.w = wf_tensor_array(wf_node_saved(node, SAVED_W));
    const wf_part_run run = {.map = &back,
                             .out = dx,
                             .out_box = call->x_box,
                             .kernel = make_output,
                             .user = &user,
                             .poll = flow->halo.exchange};
    flow->parts = wf_parts_make(&back, call->x_box, call->y_box, flow->halo.need);
    WF_TRY(wf_inflow_begin(flow));
    WF_TRY(backward_params(node, call, flow->own, flow->halo.exchange));
    WF_TRY(wf_parts_run(&run, flow->own, flow->own_box, &flow->parts, NULL, true));
    WF_TRY(wf_inflow_end(flow));
    return wf_parts_run(&run, flow->own, flow->own_box, &flow->parts, flow->assembled, false);
}

static wf_status recompute(wf_node *node, const spatial_call *call, const wf_tensor *dv, wf_tensor *dx)
{
    wf_inflow flow = {.own = dv, .own_box = call->y_box, .halo = call->dy_halo};
    const wf_status status = recompute_with(node, call, &flow, dx);
    if (status != WF_OK)
        wf_spatial_failed(call->mesh, status);
    wf_inflow_free(&flow);
    return status;
}

/* dx of all inputs that this rank's outputs read; what belongs to others goes back to them meanwhile. */
static wf_status add_back_with(wf_node *node, const spatial_call *call, const wf_tensor *dv, wf_tensor *read,
                               wf_tensor *dx)
{
    const wf_map back = wf_map_inverse(&call->map);
    output_run user = {.ctx = dx->ctx, .map = &back, .groups = call->groups};
    user.w = wf_tensor_array(wf_node_saved(node, SAVED_W));
    const wf_array in = wf_tensor_array(dv), out = wf_tensor_array(read);
    WF_NEED(read);
    WF_TRY(wf_tensor_fill(dx, 0));
    if (wf_tensor_count(read) > 0)
        WF_TRY(make_output(&user, &in, call->y_box, &out, call->x_halo.need));
    WF_TRY(wf_exchange_reverse_begin(call->x_halo.exchange, read, dx));
    WF_TRY(backward_params(node, call, dv, call->x_halo.exchange));
    return wf_exchange_end(call->x_halo.exchange);
}

static wf_status add_back(wf_node *node, const spatial_call *call, const wf_tensor *dv, wf_tensor *dx)
{
    wf_tensor *read = wf_tensor_new_step(dv->ctx, dv->dtype, wf_box_shape(call->x_halo.need), WF_CHANNELS_LAST);
    const wf_status status = add_back_with(node, call, dv, read, dx);
    /* After an error: messages must not come to memory that is someone else's by then. */
    if (status != WF_OK && wf_spatial_failed(call->mesh, status) != WF_OK &&
        wf_exchange_end(call->x_halo.exchange) != WF_OK)
        wf_error_frame(status, __FILE__, __LINE__, __func__);
    wf_tensor_free(read);
    return status;
}

static wf_status backward_from(wf_node *node, const spatial_call *call, const wf_tensor *dv)
{
    if (!wf_node_wants(node, 0))
        return backward_params(node, call, dv, NULL);
    wf_tensor *dx = wf_tensor_new_like(wf_node_saved(node, SAVED_X));
    WF_NEED(dx);
    const wf_status status = (call->recompute ? recompute : add_back)(node, call, dv, dx);
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return wf_error_frame(status, __FILE__, __LINE__, __func__);
}

static wf_status backward(wf_node *node)
{
    const spatial_call *call = node->state;
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    if (!call->follows)
        return backward_from(node, call, wf_node_dy(node));
    const wf_array y = wf_tensor_array(wf_node_saved(node, SAVED_Y)), dy = wf_tensor_array(wf_node_dy(node));
    wf_tensor *masked = wf_tensor_new_like(wf_node_saved(node, SAVED_Y));
    wf_status status = masked ? WF_OK : wf_error_take("a gradient", __FILE__, __LINE__);
    const wf_array dv = wf_tensor_array(masked);
    if (status == WF_OK)
        status = ctx->k->epilogue_backward(ctx, &call->epilogue, &y, &dy, &dv);
    if (status == WF_OK)
        status = backward_from(node, call, masked);
    wf_tensor_free(masked);
    return status;
}

/* In a chain. */

static const wf_layer_kind spatial_conv_kind = {"spatial_conv", forward, NULL};

bool wf_is_spatial_conv(const wf_layer *layer, const wf_mesh *mesh)
{
    return layer->kind == &spatial_conv_kind && ((const spatial_conv *)layer->state)->mesh == mesh;
}

int64_t wf_spatial_conv_channels(const wf_layer *layer)
{
    return ((const spatial_conv *)layer->state)->conv.out;
}

wf_var *wf_spatial_conv_apply(wf_layer *layer, wf_var *x, const wf_chain_step *step)
{
    spatial_conv *s = layer->state;
    s->step = step;
    wf_var *y = wf_apply(layer, x);
    s->step = NULL;
    return y;
}

/* Construction. */

static wf_layer *make(const wf_mesh *mesh, wf_conv_opts o, int nd, bool transposed)
{
    static const char *const names[2][3] = {
        {"spatial_conv1d", "spatial_conv2d", "spatial_conv3d"},
        {"spatial_conv_transpose1d", "spatial_conv_transpose2d", "spatial_conv_transpose3d"}};
    const uint32_t axes = 1u << WF_AXIS_DATA | 1u << WF_AXIS_DEPTH | 1u << WF_AXIS_HEIGHT | 1u << WF_AXIS_WIDTH;
    wf_conv_state state;
    if (!mesh)
        return NULL;
    WF_TRY_NULL(wf_conv_state_make(names[transposed][nd - 1], nd, transposed, &o, &state));
    wf_layer *layer =
        wf_conv_layer(wf_comm_ctx(wf_mesh_world(mesh)), &spatial_conv_kind, &o, &state, sizeof(spatial_conv));
    if (!layer)
        return NULL;
    spatial_conv *s = layer->state;
    s->mesh = mesh;
    s->conv.w->axes = axes;
    if (s->conv.b)
        s->conv.b->axes = axes;
    return layer;
}

wf_layer *wf_spatial_conv1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 1, false);
}

wf_layer *wf_spatial_conv2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 2, false);
}

wf_layer *wf_spatial_conv3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 3, false);
}

wf_layer *wf_spatial_conv_transpose1d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 1, true);
}

wf_layer *wf_spatial_conv_transpose2d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 2, true);
}

wf_layer *wf_spatial_conv_transpose3d(const wf_mesh *mesh, wf_conv_opts opts)
{
    return make(mesh, opts, 3, true);
}
