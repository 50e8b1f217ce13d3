/* Forward and backward of layers without parameters (pooling, upsampling) on parts: run a kernel on interior and
 * boundary, and return gradients. The kernel and the geometry come from the layer. */
#include "layers/window/window_impl.h"

typedef struct window_op_run {
    const wf_window_op_call *call;
    wf_window_op_kernel kernel;
    wf_ctx *ctx;
} window_op_run;

/* The way from the general run of parts to the layer's own kernel. */
static wf_status run_part(void *user, const wf_spatial_part_arrays *part)
{
    const window_op_run *r = user;
    return r->kernel(r->call, r->ctx, part);
}

/* One function for both directions: they differ in which of the two has the halo. */
static wf_status run_window_op(const wf_window_op_call *call, wf_spatial_part_way way, wf_halo_input *flow,
                               const wf_tensor *out, const wf_tensor *index)
{
    const bool back = way == WF_PART_INPUT;
    WF_NEED(flow->own);
    WF_NEED(out);
    /* Only max pooling has indices: where each maximum was, for backward. */
    if (call->indexed)
        WF_NEED(index);
    window_op_run user = {call, back ? call->backward : call->forward, out->ctx};
    const wf_spatial_part_run all = {.index_map = &call->index_map,
                                     .way = way,
                                     .out = out,
                                     .out_box = call->out,
                                     .beside = index,
                                     .kernel = run_part,
                                     .user = &user,
                                     .poll = call->halo.exchange};
    flow->own_box = call->in;
    flow->halo = call->halo;
    /* The interior needs nothing of other ranks; boundary parts do. */
    flow->parts = wf_output_regions_make(&call->index_map, call->out, call->in, call->halo.need);
    const wf_status status = back ? wf_halo_input_run_back(flow, &all) : wf_halo_input_run(flow, &all);
    wf_halo_input_free(flow);
    return status;
}

wf_status wf_window_op_backward(wf_node *node)
{
    const wf_window_op_call *call = node->state;
    const wf_tensor *x = node->in[0]->value;
    wf_tensor *dx = wf_tensor_new_step(x->ctx, x->dtype, x->shape, WF_CHANNELS_LAST);
    /* The gradient of x is written and returned in the same tensor. */
    wf_halo_input flow = {.own = dx, .back = dx};
    const wf_status status = run_window_op(call, WF_PART_INPUT, &flow, wf_node_dy(node), wf_node_saved(node, 0));
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return status;
}

wf_var *wf_window_op_apply(wf_layer *layer, wf_var *x, const wf_op *op, const wf_window_op_call *call, size_t bytes,
                           wf_tensor *y)
{
    wf_tensor *own = wf_dense_value(x);
    wf_tensor *index = call->indexed && y ? wf_tensor_new_step(layer->ctx, WF_I32, y->shape, WF_CHANNELS_LAST) : NULL;
    wf_halo_input flow = {.own = own};
    wf_var *var = NULL;
    if (run_window_op(call, WF_PART_OUTPUT, &flow, y, index) == WF_OK) {
        var = wf_tape_record(
            wf_var_tape(x),
            &(wf_node_spec){
                .op = op, .n_in = 1, .in = &x, .n_saved = 1, .saved = &index, .state = call, .state_bytes = bytes},
            y);
    } else {
        wf_tensor_free(y);
        var = wf_error_null();
    }
    wf_tensor_free(index);
    wf_tensor_free(own);
    return var;
}

/* --- on one rank ----------------------------------------------------------------------------------------------------
 */

/* Channels, which x may have a part of, are counted as in the whole: places of channels name their random numbers and
 * parameters. */
static wf_box whole_box(const wf_var *x, wf_shape shape)
{
    const wf_layout *layout = &x->value->layout;
    wf_box box = wf_box_of_shape(shape);
    if (layout->known) {
        box.lo[1] = layout->box.lo[1];
        box.hi[1] = layout->box.hi[1];
    }
    return box;
}

/* On one rank: no exchange, but the same parts where a boundary makes inputs. */
wf_status wf_window_op_plan_whole(wf_window_op_call *call, const wf_var *x, const wf_boundary *boundary, wf_shape y)
{
    wf_shape whole = x->value->shape;
    call->in = whole_box(x, whole);
    call->out = whole_box(x, y);
    for (int d = 0; d < call->index_map.nd; d++) {
        call->index_map.in[d] = whole.dim[2 + d];
        call->index_map.out[d] = y.dim[2 + d];
    }
    wf_index_map_continue(&call->index_map, boundary);
    if (x->value->layout.known)
        whole.dim[1] = x->value->layout.global.dim[1];
    call->halo.need = wf_index_map_box(&call->index_map, call->out, call->in);
    return call->index_map.boundary ? wf_halo_continue(&call->halo, call->index_map.boundary, whole) : WF_OK;
}

wf_status wf_window_op_resample(const wf_window_op_call *call, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    const wf_resample_geom geom = wf_index_map_resample(&call->index_map, a->out_box, a->in_box);
    return ctx->k->resample_forward(ctx, &(wf_resample_args){.geom = &geom, .x = &a->in, .y = &a->out});
}

wf_status wf_window_op_resample_back(const wf_window_op_call *call, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    const wf_resample_geom geom = wf_index_map_resample(&call->index_map, a->out_box, a->in_box);
    return ctx->k->resample_backward(ctx,
                                     /* Parts of one input, made from different pieces of the output, add up. */
                                     &(wf_resample_args){.geom = &geom, .y = &a->out, .x = &a->in, .accumulate = true});
}
