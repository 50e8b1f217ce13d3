/* Backward of all parallel convolutions. The input's gradient is recomputed from the halo of dy, or computed from
 * this rank's outputs and added at the owners of the inputs; in both cases messages are in flight while the
 * gradients of parameters are computed. */
#include "layers/parallel/parallel_impl.h"

/* Parameters. */

typedef struct filter_run {
    const wf_mesh_conv_state *conv;
    const wf_index_map *index_map;
    wf_array dw, db;
    bool with_bias, add;
} filter_run;

static wf_status add_filter(void *user, const wf_spatial_part_arrays *a)
{
    filter_run *r = user;
    const bool straight = r->index_map->kind == WF_INDEX_MAP_WINDOW, add = r->add;
    const wf_channel_call call = {.local = &r->conv->local,
                                  .geom = wf_index_map_geom(r->index_map, a->out_box, a->in_box),
                                  .ctx = r->conv->conv.w->ctx};
    /* The first part overwrites the gradient or adds, as the tape wants; all others add. */
    r->add = true;
    return wf_channel_local_filter(&call, straight ? &a->in : &a->out, straight ? &a->out : &a->in, &r->dw,
                                   r->with_bias && !a->again ? &r->db : NULL, add);
}

static wf_status backward_filter(wf_node *node, const wf_tensor *dpart, filter_run *user, wf_exchange *poll)
{
    const wf_mesh_call *call = node->state;
    const wf_tensor *x = wf_node_saved(node, WF_MESH_CONV_X), *halo = wf_node_saved(node, WF_MESH_CONV_HALO);
    const wf_spatial_part_run run = {.index_map = &call->index_map,
                                     .way = WF_PART_SUM,
                                     .out = dpart,
                                     .out_box = call->y_box,
                                     .kernel = add_filter,
                                     .user = user,
                                     .poll = poll};
    /* Own inputs first: the halo of x was received in forward and is saved, so neither part waits. */
    WF_TRY(wf_output_regions_run(&run, x, call->x_box, &call->parts, halo, true));
    WF_TRY(wf_output_regions_run(&run, x, call->x_box, &call->parts, halo, false));
    /* Nothing was computed on an empty shard, and the gradient must still be written. */
    if (user->add)
        return WF_OK;
    WF_TRY(x->ctx->k->fill(x->ctx, &user->dw, 0));
    return user->with_bias ? x->ctx->k->fill(x->ctx, &user->db, 0) : WF_OK;
}

/* The inputs of dx: dy where the bias was added (this rank's part, or the output as it is held), and dy of the part
 * that this rank computed. */
typedef struct gradients {
    const wf_tensor *held, *part;
} gradients;

static wf_status backward_params(wf_node *node, const gradients *dy, wf_exchange *poll)
{
    const wf_mesh_call *call = node->state;
    filter_run user = {.conv = call->conv, .index_map = &call->index_map};
    const wf_array held = wf_tensor_array(dy->held);
    bool add_b = false;
    const bool wants_w = wf_node_wants(node, 1), wants_b = wf_node_wants(node, 2);
    /* The filter's gradient may be accumulated over several backwards of one step (micro-batches); the tape says so. */
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
    /* The filter kernel sums the bias along if both gradients are written in the same way. */
    user.with_bias = wants_w && wants_b && call->index_map.kind == WF_INDEX_MAP_WINDOW && user.add == add_b &&
                     wf_mesh_conv_in_one_pass(call->conv);
    if (wants_w)
        WF_TRY(backward_filter(node, dy->part, &user, poll));
    return wants_b && !user.with_bias ? dy->held->ctx->k->bias_backward(dy->held->ctx, &held, &user.db, add_b) : WF_OK;
}

/* The input. */

static wf_output_run from_dy(wf_node *node, const wf_index_map *back)
{
    const wf_mesh_call *call = node->state;
    return (wf_output_run){
        .conv = call->conv, .index_map = back, .w = wf_tensor_array(wf_node_saved(node, WF_MESH_CONV_W))};
}

static wf_status recompute_with(wf_node *node, const gradients *dy, wf_halo_input *flow, const wf_tensor *dx,
                                wf_box box)
{
    const wf_mesh_call *call = node->state;
    const wf_index_map back = wf_index_map_inverse(&call->index_map);
    wf_output_run user = from_dy(node, &back);
    const wf_spatial_part_run run = {.index_map = &back,
                                     .out = dx,
                                     .out_box = box,
                                     .kernel = wf_mesh_conv_output,
                                     .user = &user,
                                     .poll = flow->halo.exchange};
    /* Backward has regions of its own: its outputs are the pixels of x, its inputs those of dy. */
    flow->parts = wf_output_regions_make(&back, box, call->y_box, flow->halo.need);
    WF_TRY(wf_halo_input_begin(flow));
    /* Parameters are differentiated while the halo of dy travels, and poll it. */
    WF_TRY(backward_params(node, dy, flow->halo.exchange));
    return wf_halo_input_run(flow, &run);
}

/* dx of own pixels, of the channels that this rank computes with: NULL on failure. */
static wf_tensor *recompute(wf_node *node, const gradients *dy)
{
    const wf_mesh_call *call = node->state;
    wf_box box = call->x_box;
    /* dx is computed of the channels with which forward computed, not of those that are held. */
    box.lo[1] = call->x_halo.need.lo[1];
    box.hi[1] = call->x_halo.need.hi[1];
    wf_halo_input flow = {.own = dy->part, .own_box = call->y_box, .halo = call->dy_halo};
    wf_tensor *dx = wf_tensor_new_step(dy->part->ctx, dy->part->dtype, wf_box_shape(box), WF_CHANNELS_LAST);
    wf_status status;
    WF_TRY_OUT(wf_check(dx));
    WF_TRY_OUT(recompute_with(node, dy, &flow, dx, box));
out:
    wf_halo_input_free(&flow);
    if (status == WF_OK)
        return wf_channel_scatter(&call->conv->split.in, call->x_bounds, dx);
    wf_tensor_free(dx);
    return wf_error_null();
}

/* Writes dx of inputs that go on beyond the edges, with copies alone. */
static wf_status add_own(wf_node *node, const gradients *dy, wf_tensor *dx)
{
    /* No rank needs anything of another, but gradients of reflected elements fold back to their sources. */
    const wf_mesh_call *call = node->state;
    const wf_index_map back = wf_index_map_inverse(&call->index_map);
    const wf_tensor *part = dy->part;
    wf_output_run user = from_dy(node, &back);
    const wf_slab_run slabs = {
        .ctx = part->ctx, .back = &back, .halo = &call->x_halo, .kernel = wf_mesh_conv_output, .user = &user};
    WF_NEED(dx);
    WF_TRY(backward_params(node, dy, NULL));
    return wf_slabs_run_back(&slabs, &(wf_field){part->data, part->dtype, call->y_box},
                             &(wf_field){dx->data, dx->dtype, call->x_box});
}

/* Gathered channels arrive with the halo, and so they go back with it: dx of all that is read, and a copy of the own
 * part. */
static wf_status send_all_back(wf_node *node, const gradients *dy, wf_tensor *read, wf_tensor *dx)
{
    const wf_mesh_call *call = node->state;
    const wf_index_map back = wf_index_map_inverse(&call->index_map);
    wf_output_run user = from_dy(node, &back);
    const wf_spatial_part_arrays all = {.in_box = call->y_box,
                                        .out_box = call->x_halo.need,
                                        .in = wf_tensor_array(dy->part),
                                        .out = wf_tensor_array(read)};
    if (wf_tensor_count(read) > 0)
        WF_TRY(wf_mesh_conv_output(&user, &all));
    WF_TRY(wf_field_start(dx->ctx, &(wf_field){read->data, read->dtype, call->x_halo.need},
                          &(wf_field){dx->data, dx->dtype, call->x_box}));
    WF_TRY(wf_exchange_reverse_begin_halo(call->x_halo.exchange, read, dx));
    WF_TRY(backward_params(node, dy, call->x_halo.exchange));
    return wf_exchange_end(call->x_halo.exchange);
}

/* The halo's gradients travel while those of own inputs are written where they belong; what comes is added to these. */
static wf_status send_halo_back(wf_node *node, const gradients *dy, wf_tensor *halo, wf_tensor *dx)
{
    const wf_mesh_call *call = node->state;
    const wf_index_map back = wf_index_map_inverse(&call->index_map);
    wf_output_run user = from_dy(node, &back);
    const wf_slab_run slabs = {
        .ctx = dx->ctx, .back = &back, .halo = &call->x_halo, .kernel = wf_mesh_conv_output, .user = &user};
    const wf_field from = {dy->part->data, dx->dtype, call->y_box}, to = {dx->data, dx->dtype, call->x_box};
    WF_TRY(wf_slabs_run_halo(&slabs, &from, to.box, halo));
    WF_TRY(wf_exchange_reverse_begin_slabs(call->x_halo.exchange, halo, dx));
    WF_TRY(wf_slabs_run_own(&slabs, &from, &to));
    WF_TRY(backward_params(node, dy, call->x_halo.exchange));
    return wf_exchange_end(call->x_halo.exchange);
}

static wf_status add_back_with(wf_node *node, const gradients *dy, wf_tensor *dx)
{
    const wf_mesh_call *call = node->state;
    const wf_box need = call->x_halo.need;
    const wf_tensor *dv = dy->part;
    /* dx goes home with the channels if these were gathered, else as the halo alone. */
    const bool all = need.lo[1] != call->x_box.lo[1] || need.hi[1] != call->x_box.hi[1];
    const int64_t elements = wf_exchange_slabs(call->x_halo.exchange)->elements;
    wf_tensor *read = all ? wf_tensor_new_step(dv->ctx, dv->dtype, wf_box_shape(need), WF_CHANNELS_LAST)
                          : wf_tensor_new_step(dv->ctx, dv->dtype, WF_SHAPE(elements), WF_ROW_MAJOR);
    wf_status status = read && dx ? WF_OK : wf_error_code();
    if (status == WF_OK)
        status = all ? send_all_back(node, dy, read, dx) : send_halo_back(node, dy, read, dx);
    /* After an error: the exchange must end before its memory is reused, since messages may still arrive in it. */
    if (status != WF_OK && wf_exchange_end(call->x_halo.exchange) != WF_OK)
        wf_error_frame(status, __FILE__, __LINE__, __func__);
    wf_tensor_free(read);
    return status;
}

/* dx of all inputs that this rank's outputs read; gradients of other ranks' inputs are sent back to them. */
static wf_tensor *add_back(wf_node *node, const gradients *dy)
{
    const wf_mesh_call *call = node->state;
    wf_tensor *dx = wf_tensor_new_like(wf_node_saved(node, WF_MESH_CONV_X));
    const wf_status status = call->x_halo.exchange ? add_back_with(node, dy, dx) : add_own(node, dy, dx);
    /* With gathered channels the exchange has put dx where it belongs. */
    if (status == WF_OK)
        return call->gathers ? dx : wf_channel_scatter(&call->conv->split.in, call->x_bounds, dx);
    wf_tensor_free(dx);
    return wf_error_null();
}

static wf_status backward_from(wf_node *node, const gradients *dy)
{
    const wf_mesh_call *call = node->state;
    /* Without a gradient of x no message is sent in backward: all ranks know this alike from the tape. */
    if (!wf_node_wants(node, 0))
        return backward_params(node, dy, NULL);
    wf_tensor *dx = call->recompute ? recompute(node, dy) : add_back(node, dy);
    WF_NEED(dx);
    return wf_node_give(node, 0, dx, false);
}

/* dy where an activation follows: a handle to be freed. */
static wf_tensor *masked(wf_node *node, const wf_tensor *dy)
{
    const wf_mesh_call *call = node->state;
    if (!dy || !call->follows)
        return wf_tensor_alias(dy);
    wf_tensor *dv = wf_tensor_new_like(wf_node_saved(node, WF_MESH_CONV_Y));
    if (!dv)
        return NULL;
    const wf_array y = wf_tensor_array(wf_node_saved(node, WF_MESH_CONV_Y)), from = wf_tensor_array(dy);
    const wf_array to = wf_tensor_array(dv);
    const wf_status status = dv->ctx->k->epilogue_backward(dv->ctx, &call->epilogue, &y, &from, &to);
    if (status == WF_OK)
        return dv;
    wf_tensor_free(dv);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

wf_status wf_mesh_conv_backward(wf_node *node)
{
    /* dy is held as y was; the part that was computed here is fetched first. */
    const wf_mesh_call *call = node->state;
    const wf_channel_split *split = &call->conv->split;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *held = NULL, *part = NULL;
    wf_status status;
    if (split->out.partition) {
        part = wf_channel_gather(&split->out, split->bounds, dy);
        held = masked(node, part);
        wf_tensor_free(part);
        part = wf_tensor_alias(held);
    } else {
        held = masked(node, dy);
        /* Channels are gathered before the halo exchange: in a single exchange, the halo would arrive in one message
         * from every rank of a neighbour's channel group, and nothing could be computed meanwhile. */
        part = wf_channel_gather(&split->out, split->bounds, held);
    }
    WF_TRY_OUT(wf_check(part));
    WF_TRY_OUT(backward_from(node, &(gradients){held, part}));
out:
    wf_tensor_free(held);
    wf_tensor_free(part);
    return status;
}
