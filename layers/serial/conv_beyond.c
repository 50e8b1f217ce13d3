/* A serial convolution whose input goes on beyond its edges. The interior of the output is computed from x itself, and
 * the frame around it from slabs that hold the edges of x and their continuation, so that the image is not copied. In
 * backward gradients of what is beyond an edge are computed for each slab and added to where its elements came from.
 *
 *      B B B B B B     x, and its continuation B. Outputs whose windows touch B are computed from four slabs: two of
 *      B x x x x B     whole rows, two of columns. Slabs of inputs, which hold B alone, partition B for the gradient of
 *      B x x x x B     the input. That of the filter is a sum over the same parts as the output.
 *      B B B B B B
 */
#include "layers/serial/serial_impl.h"

/* State of the node, for backward. */
typedef struct beyond_call {
    bool transposed, follows; /* an activation follows */
    int64_t groups;
    wf_index_map index_map;
    wf_box x_box, y_box;
    wf_halo halo;
    wf_output_regions parts;
    wf_epilogue epilogue;
} beyond_call;

enum { SAVED_X, SAVED_SLABS, SAVED_W, SAVED_Y, SAVED };

/* What makes boxes of outputs, or of gradients of inputs. */
typedef struct output_run {
    wf_ctx *ctx;
    const wf_index_map *index_map;
    int64_t groups;
    wf_array w, bias;
    const wf_epilogue *epilogue; /* NULL: none */
    bool w_reused;
} output_run;

static wf_status output_part(void *user, const wf_spatial_part_arrays *a)
{
    const output_run *r = user;
    const bool straight = r->index_map->kind == WF_INDEX_MAP_WINDOW;
    wf_conv_geom geom = wf_index_map_geom(r->index_map, a->out_box, a->in_box);
    geom.groups = r->groups;
    const wf_epilogue epilogue = r->epilogue ? wf_epilogue_part(r->epilogue, a->out_box) : (wf_epilogue){0};
    const wf_conv_args args = {.geom = &geom,
                               .x = straight ? &a->in : &a->out,
                               .y = straight ? &a->out : &a->in,
                               .w = &r->w,
                               .bias = r->bias.shape.rank ? &r->bias : NULL,
                               .epilogue = r->epilogue ? &epilogue : NULL,
                               .w_reused = r->w_reused};
    return (straight ? r->ctx->k->conv_forward : r->ctx->k->conv_backward_data)(r->ctx, &args);
}

/* Forward. */

static wf_status backward(wf_node *node);
static const wf_op conv_op = {.name = "conv", .backward = backward};
static const wf_op conv_transpose_op = {.name = "conv_transpose", .backward = backward};

static wf_status convolve(const beyond_call *call, const wf_tape *tape, wf_halo_input *flow, const wf_var *w,
                          const wf_var *b, const wf_tensor *y)
{
    output_run user = {.ctx = y->ctx,
                       .index_map = &call->index_map,
                       .groups = call->groups,
                       .w = wf_tensor_array(w->used),
                       .bias = wf_tensor_array(b ? b->used : NULL),
                       .epilogue = &call->epilogue,
                       .w_reused = wf_tape_reuses(tape)};
    const wf_spatial_part_run run = {
        .index_map = &call->index_map, .out = y, .out_box = call->y_box, .kernel = output_part, .user = &user};
    return wf_halo_input_run(flow, &run);
}

static wf_var *apply_beyond(wf_layer *layer, wf_var *x, beyond_call *call, wf_halo_input *flow, wf_tensor *y)
{
    const wf_conv_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    wf_var *w = wf_compute_var(tape, s->w), *b = s->b ? wf_compute_var(tape, s->b) : NULL;
    if (!w || (s->b && !b)) {
        wf_tensor_free(y);
        return NULL;
    }
    call->epilogue = wf_epilogue_on(&s->epilogue, tape, y);
    call->follows = wf_epilogue_acts(&call->epilogue);
    const wf_status status = convolve(call, tape, flow, w, b, y);
    if (status != WF_OK) {
        wf_error_frame(status, __FILE__, __LINE__, __func__);
        wf_tensor_free(y);
        return wf_error_null();
    }
    return wf_tape_record(tape,
                          &(wf_node_spec){.op = s->transposed ? &conv_transpose_op : &conv_op,
                                          .n_in = 3,
                                          .in = (wf_var *[]){x, w, b},
                                          .n_saved = SAVED,
                                          .saved = (wf_tensor *[]){(wf_tensor *)flow->own, flow->assembled, w->used,
                                                                   call->follows ? y : NULL},
                                          .state = call,
                                          .state_bytes = sizeof *call},
                          y);
}

wf_var *wf_conv_beyond(wf_layer *layer, wf_var *x, const wf_index_map *index_map, wf_tensor *y)
{
    const wf_conv_state *s = layer->state;
    wf_tensor *own = y ? wf_dense_value(x) : NULL;
    if (!own) {
        wf_tensor_free(y);
        return NULL;
    }
    beyond_call call = {.transposed = s->transposed,
                        .groups = s->geom.groups,
                        .index_map = *index_map,
                        .x_box = wf_box_of_shape(own->shape),
                        .y_box = wf_box_of_shape(y->shape)};
    call.halo.need = wf_index_map_box(index_map, call.y_box, call.x_box);
    wf_var *var = NULL;
    if (wf_halo_continue(&call.halo, index_map->boundary, own->shape) == WF_OK) {
        call.parts = wf_output_regions_make(index_map, call.y_box, call.x_box, call.halo.need);
        wf_halo_input flow = {.own = own, .own_box = call.x_box, .halo = call.halo, .parts = call.parts};
        var = apply_beyond(layer, x, &call, &flow, y);
        wf_halo_input_free(&flow);
    } else {
        wf_error_null();
        wf_tensor_free(y);
    }
    wf_tensor_free(own);
    return var;
}

/* Gradients of parameters. */

typedef struct filter_run {
    wf_ctx *ctx;
    const wf_index_map *index_map;
    int64_t groups;
    wf_array dw, db;
    bool with_bias, add;
} filter_run;

static wf_status filter_part(void *user, const wf_spatial_part_arrays *a)
{
    filter_run *r = user;
    const bool straight = r->index_map->kind == WF_INDEX_MAP_WINDOW;
    wf_conv_geom geom = wf_index_map_geom(r->index_map, a->out_box, a->in_box);
    geom.groups = r->groups;
    const wf_conv_args args = {.geom = &geom,
                               .x = straight ? &a->in : &a->out,
                               .y = straight ? &a->out : &a->in,
                               .w = &r->dw,
                               .bias = r->with_bias && !a->again ? &r->db : NULL,
                               .accumulate = r->add};
    /* The first part overwrites the gradient or adds, as the tape wants; all others add. */
    r->add = true;
    return r->ctx->k->conv_backward_filter(r->ctx, &args);
}

static wf_status backward_filter(wf_node *node, const wf_tensor *dv, filter_run *user)
{
    const beyond_call *call = node->state;
    const wf_tensor *x = wf_node_saved(node, SAVED_X), *slabs = wf_node_saved(node, SAVED_SLABS);
    const wf_spatial_part_run run = {.index_map = &call->index_map,
                                     .way = WF_PART_SUM,
                                     .out = dv,
                                     .out_box = call->y_box,
                                     .kernel = filter_part,
                                     .user = user};
    WF_TRY(wf_output_regions_run(&run, x, call->x_box, &call->parts, slabs, true));
    WF_TRY(wf_output_regions_run(&run, x, call->x_box, &call->parts, slabs, false));
    /* Nothing was computed of an empty batch, and the gradient must still be written. */
    if (user->add)
        return WF_OK;
    WF_TRY(user->ctx->k->fill(user->ctx, &user->dw, 0));
    return user->with_bias ? user->ctx->k->fill(user->ctx, &user->db, 0) : WF_OK;
}

static wf_status give_params(wf_node *node, const wf_tensor *dv)
{
    const beyond_call *call = node->state;
    filter_run user = {.ctx = dv->ctx, .index_map = &call->index_map, .groups = call->groups};
    const wf_array dy = wf_tensor_array(dv);
    const bool wants_w = wf_node_wants(node, 1), wants_b = wf_node_wants(node, 2);
    bool add_b = false;
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
    /* The filter kernel sums the bias along if both gradients are written in the same way; where the form is
     * transposed it would sum over x. */
    user.with_bias = wants_w && wants_b && !call->transposed && user.add == add_b;
    if (wants_w)
        WF_TRY(backward_filter(node, dv, &user));
    return wants_b && !user.with_bias ? dv->ctx->k->bias_backward(dv->ctx, &dy, &user.db, add_b) : WF_OK;
}

/* Gradient of the input. */

static wf_status add_input(wf_node *node, const wf_tensor *dv, const wf_tensor *dx)
{
    const beyond_call *call = node->state;
    const wf_index_map back = wf_index_map_inverse(&call->index_map);
    output_run run = {
        .ctx = dv->ctx, .index_map = &back, .groups = call->groups, .w = wf_tensor_array(wf_node_saved(node, SAVED_W))};
    const wf_slab_run slabs = {.ctx = dv->ctx, .back = &back, .halo = &call->halo, .kernel = output_part, .user = &run};
    return wf_slabs_run_back(&slabs, &(wf_field){dv->data, dv->dtype, call->y_box},
                             &(wf_field){dx->data, dx->dtype, call->x_box});
}

static wf_status give_input(wf_node *node, const wf_tensor *dv)
{
    wf_tensor *dx = wf_tensor_new_like(wf_node_saved(node, SAVED_X));
    WF_NEED(dx);
    const wf_status status = add_input(node, dv, dx);
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return wf_error_frame(status, __FILE__, __LINE__, __func__);
}

static wf_status backward(wf_node *node)
{
    const beyond_call *call = node->state;
    wf_ctx *ctx = wf_tape_ctx(node->tape);
    const wf_tensor *dy = wf_node_dy(node), *acted = wf_node_saved(node, SAVED_Y);
    wf_tensor *dv = call->follows ? wf_tensor_new_like(acted) : wf_tensor_alias(dy);
    wf_status status;
    WF_TRY_OUT(wf_check(dv));
    if (call->follows) {
        const wf_array y = wf_tensor_array(acted), from = wf_tensor_array(dy), to = wf_tensor_array(dv);
        WF_TRY_OUT(ctx->k->epilogue_backward(ctx, &call->epilogue, &y, &from, &to));
    }
    WF_TRY_OUT(give_params(node, dv));
    if (wf_node_wants(node, 0))
        WF_TRY_OUT(give_input(node, dv));
out:
    wf_tensor_free(dv);
    return status;
}
