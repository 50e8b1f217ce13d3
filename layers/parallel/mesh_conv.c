/* Forward of all parallel convolutions: the halo and the channels are sent while the interior, which needs neither,
 * is computed; then the boundary. The constructors are in mesh_conv_make.c, backward in mesh_conv_grad.c. */
#include "core/config_author.h"
#include "layers/parallel/parallel_impl.h"

/* A sum over ranks or over pieces is not complete when the kernel writes it, so its bias and activation come later. */
bool wf_mesh_conv_in_one_pass(const wf_mesh_conv_state *s)
{
    return s->split.out.partition && s->local.pieces == 1;
}

/* Kernels. */

wf_status wf_mesh_conv_output(void *user, const wf_spatial_part_arrays *a)
{
    const wf_output_run *r = user;
    const wf_channel_call call = {.local = &r->conv->local,
                                  .geom = wf_index_map_geom(r->index_map, a->out_box, a->in_box),
                                  .ctx = r->conv->conv.w->ctx,
                                  .way = r->index_map->kind == WF_INDEX_MAP_WINDOW ? WF_TO_OUTER : WF_TO_INNER};
    const wf_epilogue epilogue =
        r->epilogue ? wf_epilogue_part(r->epilogue, a->out_box) : (wf_epilogue){.act = WF_ACT_NONE};
    return wf_channel_local_run(&call, &a->in, &r->w, r->bias.shape.rank ? &r->bias : NULL,
                                r->epilogue ? &epilogue : NULL, &a->out);
}

/* Plan. */

/* Says how the layer maps inputs to outputs and what an output costs; chains and the layer's own plan share it. */
wf_status wf_spatial_conv_map(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_index_map *index_map,
                              double *work, wf_shape *y)
{
    const wf_conv_state *c = layer->state;
    WF_TRY(wf_conv_output_shape(layer, x, shape, y));
    WF_TRY(wf_conv_map(layer, shape, *y, index_map));
    *work = (double)(c->in / c->geom.groups);
    for (int d = 0; d < index_map->nd; d++) {
        /* Multiplications for one output, by which a chain weighs recomputing against sending. */
        *work *= (double)c->geom.kernel[d] / (double)(c->transposed ? c->geom.stride[d] : 1);
    }
    return WF_OK;
}

/* The plan of a layer inside a chain: nothing is exchanged here, neither forward nor backward, as the chain has the
 * halo already. */
static wf_status plan_step(const wf_mesh_conv_state *s, const wf_spatial_link *step, wf_mesh_call *call)
{
    const wf_index_map *map = &step->index_map, back = wf_index_map_inverse(map);
    const wf_box whole = step->x_box;
    bool beyond = false;
    *call = (wf_mesh_call){
        .conv = s, .index_map = step->index_map, .x_box = step->x_box, .y_box = step->y_box, .recompute = true};
    call->x_halo.need = wf_index_map_box(&step->index_map, step->y_box, step->x_box);
    /* Beyond its own outputs the chain computes nothing, so no gradient comes from there. */
    call->dy_halo.need = wf_box_intersect(wf_index_map_box(&back, step->x_box, step->y_box), step->y_box);
    call->parts = wf_output_regions_make(&step->index_map, step->y_box, step->x_box, call->x_halo.need);
    /* Along circular dimensions the chain has everything; along others rims are made again of what it has. */
    wf_shape length = wf_box_shape(whole);
    length.dim[1] = s->conv.in;
    for (int d = 0; d < map->nd; d++) {
        const wf_box *need = &call->x_halo.need;
        call->x_halo.first[2 + d] = map->round[d] ? whole.lo[2 + d] : 0;
        length.dim[2 + d] = map->round[d] ? length.dim[2 + d] : map->in[d];
        beyond = beyond || (!map->round[d] && (need->lo[2 + d] < 0 || need->hi[2 + d] > map->in[d]));
    }
    call->recompute = !beyond;
    return beyond ? wf_halo_continue(&call->x_halo, map->boundary, length) : WF_OK;
}

static wf_status check_input(const wf_layer *layer, const wf_var *x, wf_mesh_call *call)
{
    const wf_mesh_conv_state *s = layer->state;
    const wf_layout *given = &x->value->layout;
    if (!s->by_pixels || (s->by_channels && !given->known))
        return wf_channel_check_input(layer, s->conv.name, s->mesh, x, &call->x_bounds);
    WF_TRY(
        wf_sharding_check(layer, s->conv.name, s->mesh, x, s->by_channels ? WF_SHARDING_SUMS : WF_SHARDING_SUMS_WHOLE));
    if (given->placement[WF_AXIS_CHANNEL] == WF_SHARDED)
        call->x_bounds = given->bounds[WF_AXIS_CHANNEL];
    return WF_OK;
}

static wf_status make_x_halo(wf_mesh_call *call, const wf_sharding *in, const wf_sharding *out, wf_dtype dtype)
{
    const wf_channel_side *side = &call->conv->split.in;
    /* If channels move, each rank along the channel axis needs the pixels of all channels with which it computes, from
     * the ranks that hold them: pixels and channels are one exchange. */
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(in->mesh));
    wf_range *held = NULL;
    if (!call->gathers)
        return wf_halo_make(in, &call->index_map, out, NULL, dtype, &call->x_halo);
    WF_TRY(wf_channel_held(side, call->x_bounds, ctx, &held));
    const wf_halo_channels channels = {side->channels, held, side->part};
    const wf_status status = wf_halo_make(in, &call->index_map, out, &channels, dtype, &call->x_halo);
    wf_pool_give_host(ctx, held, (size_t)side->size * sizeof *held);
    return status;
}

/* How dx is computed: from the halo of dy, or by adding gradients at the owners of the inputs. */
static wf_status plan_backward(wf_mesh_call *call, const wf_sharding *in, const wf_sharding *out, wf_dtype dtype)
{
    const wf_channel_split *split = &call->conv->split;
    const wf_index_map back = wf_index_map_inverse(&call->index_map);
    /* Edges fold gradients back to where elements came from. */
    if (call->index_map.boundary)
        return WF_OK;
    WF_TRY(wf_halo_make(out, &back, in, NULL, dtype, &call->dy_halo));
    /* Gaps of dilation may make an input's readers seem to be elsewhere. */
    if (call->x_halo.pixels == 0)
        call->dy_halo = (wf_halo){.need = wf_box_intersect(call->dy_halo.need, out->box)};
    /* Recomputation adds every output of dx in the serial order, so it is bit-equal to one rank; else the smaller
     * volume wins. */
    call->recompute = wf_config_get()->deterministic || call->dy_halo.pixels * (double)wf_channel_width(&split->out) <=
                                                            call->x_halo.pixels * (double)wf_channel_width(&split->in);
    return WF_OK;
}

/* The exchange of pixels cuts boxes of all dimensions: their channels must be those of the tensors that are sent. */
static void set_channels(wf_sharding *sharding, int64_t channels, wf_range here)
{
    sharding->channels = channels;
    sharding->box.lo[1] = here.lo;
    sharding->box.hi[1] = here.hi;
}

/* *layout: of the output, with all channels. */
static wf_status plan_call(const wf_layer *layer, const wf_var *x, wf_mesh_call *call, wf_layout *layout)
{
    const wf_mesh_conv_state *s = layer->state;
    const wf_channel_split *split = &s->split;
    wf_shape whole, shape;
    wf_sharding in, out;
    double work;
    *call = (wf_mesh_call){.conv = s};
    WF_TRY(check_input(layer, x, call));
    WF_TRY(wf_sharding_read(layer, s->conv.name, s->mesh, x, &in));
    whole = x->value->layout.known ? x->value->layout.global : wf_var_shape(x);
    WF_TRY(wf_spatial_conv_map(layer, x, whole, &call->index_map, &work, &shape));
    WF_TRY(wf_sharding_outputs(&in, &call->index_map, &out));
    /* Inputs as they are held, outputs as this rank computes them: between the two the halo's exchange moves channels
     * too. */
    set_channels(&in, s->conv.in,
                 call->x_bounds ? (wf_range){call->x_bounds[split->rank], call->x_bounds[split->rank + 1]}
                                : wf_channel_inputs(split));
    set_channels(&out, s->conv.out, (wf_range){0, s->conv.out});
    *layout = wf_sharding_layout(&out, &x->value->layout);
    set_channels(&out, s->conv.out, wf_channel_outputs(split));
    /* Channels and halo go in one exchange where both move. */
    call->gathers = call->x_bounds && wf_channel_moves(&split->in, call->x_bounds);
    WF_TRY(make_x_halo(call, &in, &out, x->value->dtype));
    call->x_box = in.box;
    call->y_box = out.box;
    call->parts = wf_output_regions_make(&call->index_map, out.box, in.box, call->x_halo.need);
    /* Planning backward makes exchanges, which an evaluation does not need. */
    if (!x->needs_grad || wf_tape_mode(x->tape) != WF_TRAIN)
        return WF_OK;
    return plan_backward(call, &in, &out, x->value->dtype);
}

/* Compute. */

static wf_layout shard_channels(const wf_mesh_conv_state *s, wf_layout layout, const int64_t *bounds)
{
    if (s->by_channels) {
        layout.placement[WF_AXIS_CHANNEL] = WF_REPLICATED;
        layout.dim[WF_AXIS_CHANNEL] = 0;
        layout.bounds[WF_AXIS_CHANNEL] = NULL;
    }
    if (bounds)
        wf_layout_shard(s->mesh, &layout, WF_AXIS_CHANNEL, 1, bounds);
    return layout;
}

/* Noise of an epilogue is keyed by the place of an element in the whole, so y must have its layout first. */
static void set_epilogue(wf_mesh_call *call, wf_tape *tape, const wf_tensor *y)
{
    call->epilogue = wf_epilogue_on(&call->conv->conv.epilogue, tape, y);
    call->follows = wf_epilogue_acts(&call->epilogue);
}

static wf_status add_epilogue(const wf_mesh_call *call, const wf_var *b, const wf_tensor *y)
{
    const wf_array out = wf_tensor_array(y);
    if (b)
        WF_TRY(wf_channel_bias(y, b->used));
    return y->ctx->k->epilogue_forward(y->ctx, &call->epilogue, &out, &out);
}

static wf_status convolve(const wf_mesh_call *call, wf_halo_input *flow, const wf_var *w, const wf_var *b,
                          const wf_tensor *part)
{
    const bool fused = wf_mesh_conv_in_one_pass(call->conv);
    wf_output_run user = {
        .conv = call->conv, .index_map = &call->index_map, .epilogue = fused ? &call->epilogue : NULL};
    user.w = wf_tensor_array(w->used);
    user.bias = wf_tensor_array(fused && b ? b->used : NULL);
    const wf_spatial_part_run run = {.index_map = &call->index_map,
                                     .out = part,
                                     .out_box = call->y_box,
                                     .kernel = wf_mesh_conv_output,
                                     .user = &user,
                                     .poll = call->x_halo.exchange};
    return wf_halo_input_run(flow, &run);
}

/* *acted is the output of the activation: this rank's part, or the output as it is held. */
static wf_tensor *compute_output(wf_mesh_call *call, wf_tape *tape, wf_halo_input *flow, const wf_var *w,
                                 const wf_var *b, const wf_layout *layout, wf_tensor **acted)
{
    const wf_mesh_conv_state *s = call->conv;
    const wf_channel_split *split = &s->split;
    const bool partition = split->out.partition;
    const wf_tensor *own = flow->own;
    wf_tensor *part = wf_tensor_new_step(own->ctx, own->dtype, wf_box_shape(call->y_box), WF_CHANNELS_LAST), *y = NULL;
    wf_status status;
    WF_TRY_OUT(wf_check(part));
    /* The part is an output of its own here, with its own layout. */
    if (partition) {
        part->layout = shard_channels(s, *layout, split->part_bounds);
        set_epilogue(call, tape, part);
    }
    WF_TRY_OUT(convolve(call, flow, w, b, part));
    /* Several pieces add to one output: bias and activation come after the last of them. */
    if (partition && !wf_mesh_conv_in_one_pass(s))
        WF_TRY_OUT(add_epilogue(call, b, part));
    if (partition)
        *acted = wf_tensor_alias(part);
    y = wf_channel_scatter(&split->out, split->bounds, part);
    part = NULL;
    WF_TRY_OUT(wf_check(y));
    y->layout = shard_channels(s, *layout, split->bounds);
    if (!partition) {
        set_epilogue(call, tape, y);
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

static const wf_op conv_op = {.name = "mesh_conv", .backward = wf_mesh_conv_backward};
static const wf_op conv_transpose_op = {.name = "mesh_conv_transpose", .backward = wf_mesh_conv_backward};

static wf_var *apply_conv(wf_layer *layer, wf_var *x, wf_mesh_call *call, wf_halo_input *flow, const wf_layout *layout)
{
    const wf_conv_state *s = layer->state;
    wf_tape *tape = wf_var_tape(x);
    wf_var *w = wf_compute_var(tape, s->w), *b = s->b ? wf_compute_var(tape, s->b) : NULL;
    if (!w || (s->b && !b))
        return NULL;
    /* The activation's output is kept only if backward needs its sign. */
    wf_tensor *acted = NULL, *y = compute_output(call, tape, flow, w, b, layout, &acted);
    wf_var *var = NULL;
    if (y)
        var = wf_tape_record(tape,
                             &(wf_node_spec){.op = s->transposed ? &conv_transpose_op : &conv_op,
                                             .n_in = 3,
                                             .in = (wf_var *[]){x, w, b},
                                             .n_saved = WF_MESH_CONV_SAVED,
                                             .saved = (wf_tensor *[]){(wf_tensor *)flow->own, flow->assembled, w->used,
                                                                      call->follows ? acted : NULL},
                                             .state = call,
                                             .state_bytes = sizeof *call},
                             y);
    wf_tensor_free(acted);
    return var;
}

/* x is moved to the pixels and channels of the plan, and computed with. */
static wf_var *run_call(wf_layer *layer, wf_var *x, wf_mesh_call *call, const wf_layout *layout)
{
    const wf_mesh_conv_state *s = layer->state;
    /* A sharded x is sent from where it is; of a replicated one each rank takes its channels without a message. */
    wf_tensor *own = call->x_bounds ? wf_dense_value(x) : wf_channel_gather(&s->split.in, NULL, x->value);
    wf_halo_input flow = {.own = own, .own_box = call->x_box, .halo = call->x_halo, .parts = call->parts};
    wf_var *var = own ? apply_conv(layer, x, call, &flow, layout) : NULL;
    wf_halo_input_free(&flow);
    wf_tensor_free(own);
    return var;
}

wf_var *wf_mesh_conv_forward(wf_layer *layer, wf_var *x)
{
    wf_mesh_call call;
    wf_layout layout;
    WF_TRY_NULL(plan_call(layer, x, &call, &layout));
    return run_call(layer, x, &call, &layout);
}

/* As wf_mesh_conv_forward, with the plan of the chain. */
static wf_var *forward_step(wf_layer *layer, void *user, wf_var *const *x, int n)
{
    const wf_spatial_link *step = user;
    wf_mesh_call call;
    WF_TRY_NULL(plan_step(layer->state, step, &call));
    return run_call(layer, x[0], &call, &step->layout);
}

wf_var *wf_spatial_conv_apply(wf_layer *layer, wf_var *x, wf_spatial_link *step)
{
    return wf_apply_with(layer, &x, 1, forward_step, step);
}
