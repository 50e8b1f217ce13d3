/* Pooling layers over one to three dimensions, and global pooling. layers/parallel/spatial_pool.c is the parallel form;
 * the options are shared (pool_state.c). */
#include "layers/serial/serial_impl.h"

static wf_status backward(wf_node *node)
{
    const wf_pool_geom *geom = node->state;
    /* x gives shape and type only; the values that backward needs are in the index of the maxima. */
    const wf_tensor *x = node->in[0]->value, *saved = wf_node_saved(node, 0);
    wf_tensor *dx = wf_tensor_new_step(x->ctx, x->dtype, x->shape, WF_CHANNELS_LAST);
    WF_NEED(dx);
    const wf_array dy = wf_tensor_array(wf_node_dy(node)), index = wf_tensor_array(saved), out = wf_tensor_array(dx);
    const wf_status status = x->ctx->k->pool_backward(
        x->ctx, &(wf_pool_args){.geom = geom, .y = &dy, .index = saved ? &index : NULL, .x = &out});
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return wf_error_frame(status, __FILE__, __LINE__, __func__);
}

static const wf_op pool_op = {.name = "pool", .backward = backward};

/* Part by part. */

/* The whole geometry becomes that of outputs over inputs: the part's padding is what its windows reach beyond the
 * inputs at hand. */
static wf_pool_geom part_geometry(const wf_window_op_call *plain, const wf_spatial_part_arrays *a)
{
    const wf_index_map *index_map = &plain->index_map;
    wf_pool_geom g = ((const wf_pool_call *)plain)->geom;
    /* An empty part computes nothing, and its bounds mean nothing. */
    for (int d = 0; d < g.nd && !wf_box_empty(a->out_box); d++) {
        const wf_range out = {a->out_box.lo[2 + d], a->out_box.hi[2 + d]},
                       in = {a->in_box.lo[2 + d], a->in_box.hi[2 + d]};
        if (g.adaptive) {
            g.in_lo[d] = in.lo;
            g.out_lo[d] = out.lo;
            continue;
        }
        const wf_window w = wf_index_map_local(index_map, d, out, in);
        /* In ceil mode the last window may extend beyond the padding; only elements inside are counted. */
        const int64_t most = index_map->in[d] + g.pad_hi[d] - in.hi;
        g.pad_lo[d] = w.pad_lo;
        g.pad_hi[d] = w.pad_hi < most ? w.pad_hi : most;
    }
    return g;
}

/* A part's places are counted in its inputs; they become numbers of the whole image's pixels here. */
static wf_status write_places(const wf_pool_call *call, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    const wf_field to = {call->places->data, WF_I64, call->plain.out};
    wf_block_of block = {.bytes = 0};
    wf_places_args args = {.nd = call->geom.nd, .index = &a->beside, .y = &block.array};
    for (int d = 0; d < args.nd; d++) {
        args.lo[d] = a->in_box.lo[2 + d];
        args.length[d] = a->in_box.hi[2 + d] - args.lo[d];
        args.whole[d] = call->plain.index_map.in[d];
    }
    /* The places of this box are taken out of the tensor, filled, and put back: the kernel writes dense arrays only. */
    wf_status status = wf_block_gather(ctx, &to, a->out_box, false, &block);
    if (status == WF_OK)
        status = ctx->k->pool_places(ctx, &args);
    if (status == WF_OK)
        status = wf_block_scatter(ctx, &to, a->out_box, &block);
    wf_block_give(ctx, &block);
    return status;
}

static wf_status forward_part(const wf_window_op_call *plain, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    const wf_pool_call *call = (const wf_pool_call *)plain;
    const wf_pool_geom geom = part_geometry(plain, a);
    WF_TRY(ctx->k->pool_forward(
        ctx, &(wf_pool_args){.geom = &geom, .x = &a->in, .y = &a->out, .index = plain->indexed ? &a->beside : NULL}));
    return call->places ? write_places(call, ctx, a) : WF_OK;
}

static wf_status backward_part(const wf_window_op_call *plain, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    const wf_pool_geom geom = part_geometry(plain, a);
    const wf_pool_args args = {
        .geom = &geom, .y = &a->out, .index = plain->indexed ? &a->beside : NULL, .x = &a->in, .accumulate = true};
    return ctx->k->pool_backward(ctx, &args);
}

wf_pool_call wf_pool_call_of(const wf_pool_geom *geom, wf_index_map_kind kind)
{
    /* An index is kept for maxima alone: only they need to remember what they have read. */
    wf_pool_call call = {.plain = {.index_map = {.kind = kind, .nd = geom->nd},
                                   .forward = forward_part,
                                   .backward = backward_part,
                                   .indexed = geom->kind == WF_POOL_MAX},
                         .geom = *geom};
    for (int d = 0; d < geom->nd; d++)
        call.plain.index_map.window[d] = wf_pool_window(geom, d);
    /* Adaptive windows are those of area resampling, which the index map knows. */
    if (geom->adaptive) {
        wf_resize_geom *resize = &call.plain.index_map.resize;
        call.plain.index_map.kind = WF_INDEX_MAP_RESIZE;
        *resize = (wf_resize_geom){.nd = geom->nd, .mode = WF_RESIZE_AREA, .places = WF_PLACES_CENTRES};
        for (int d = 0; d < geom->nd; d++) {
            resize->in[d] = geom->inputs[d];
            resize->out[d] = geom->outputs[d];
        }
    }
    return call;
}

/* Asked before a message is sent: every rank refuses the same layer. */
wf_status wf_pool_check_places(const wf_layer *layer)
{
    const wf_pool_state *s = layer->state;
    WF_CHECK(s->geom.kind == WF_POOL_MAX, WF_ERR_ARGUMENT, "%s \"%s\": an average has no places; should be a maximum",
             s->name, wf_layer_path(layer));
    WF_CHECK(!wf_boundary_given(&s->opts.boundary, s->geom.nd), WF_ERR_UNSUPPORTED,
             "%s \"%s\": with a boundary maxima may lie beyond the edges, which have no places", s->name,
             wf_layer_path(layer));
    return WF_OK;
}

/* Placed like y, so that a later unpool takes it without an exchange. */
wf_tensor *wf_pool_new_places(const wf_tensor *y)
{
    wf_tensor *places = y ? wf_tensor_new_step(y->ctx, WF_I64, y->shape, WF_CHANNELS_LAST) : NULL;
    if (!places || wf_tensor_set_layout(places, y->layout) == WF_OK)
        return places;
    wf_tensor_free(places);
    return wf_error_null();
}

static const wf_op pool_beyond_op = {.name = "pool", .backward = wf_window_op_backward};

static wf_status run_pool(const wf_pool_geom *g, const wf_tensor *x, const wf_tensor *y, const wf_tensor *index,
                          const wf_tensor *places)
{
    const wf_array in = wf_tensor_array(x), out = wf_tensor_array(y), at = wf_tensor_array(index);
    const wf_array to = wf_tensor_array(places);
    WF_TRY(
        x->ctx->k->pool_forward(x->ctx, &(wf_pool_args){.geom = g, .x = &in, .y = &out, .index = index ? &at : NULL}));
    if (!places)
        return WF_OK;
    wf_places_args args = {.nd = g->nd, .index = &at, .y = &to};
    for (int d = 0; d < g->nd; d++)
        args.length[d] = args.whole[d] = x->shape.dim[2 + d];
    return x->ctx->k->pool_places(x->ctx, &args);
}

/* The maxima's numbers of pixels, for backward; without backward and places nothing needs them. Backward of a mean
 * needs no index, and a maximum in evaluation has no backward. */
static bool keeps_index(const wf_pool_geom *geom, const wf_var *x, bool places)
{
    return geom->kind == WF_POOL_MAX && (places || wf_tape_mode(wf_var_tape(x)) == WF_TRAIN);
}

wf_var *wf_pool_run(wf_layer *layer, wf_var *x, wf_tensor **places)
{
    const wf_pool_state *s = layer->state;
    wf_pool_geom geom;
    wf_shape shape;
    WF_TRY_NULL(wf_pool_fit(layer, x, wf_var_shape(x), &geom, &shape));
    wf_pool_call call = wf_pool_call_of(&geom, WF_INDEX_MAP_WINDOW);
    /* Global pooling has no spatial options, and so no boundary. */
    WF_TRY_NULL(wf_window_op_plan_whole(&call.plain, x, s->geom.nd > 0 ? &s->opts.boundary : NULL, shape));
    /* Windows beyond the edges: the boundary makes a larger input first. */
    if (call.plain.index_map.boundary) {
        call.plain.indexed = keeps_index(&geom, x, false);
        return wf_window_op_apply(layer, x, &pool_beyond_op, &call.plain, sizeof call,
                                  wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, 1, -1, -1, -1}));
    }
    const bool indexed = keeps_index(&geom, x, places);
    wf_tensor *dense = wf_dense_value(x),
              *y = wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, 1, -1, -1, -1});
    /* Backward needs the argmax and no input, which is freed. */
    wf_tensor *index = indexed && y ? wf_tensor_new_step(layer->ctx, WF_I32, shape, WF_CHANNELS_LAST) : NULL;
    if (places)
        *places = wf_pool_new_places(y);
    wf_status status = !dense || !y || (indexed && !index) || (places && !*places)
                           ? wf_error_take("an output", __FILE__, __LINE__)
                           : run_pool(&geom, dense, y, index, places ? *places : NULL);
    wf_tensor_free(dense);
    wf_var *var = NULL;
    if (status == WF_OK)
        var = wf_tape_record(wf_var_tape(x),
                             &(wf_node_spec){.op = &pool_op,
                                             .n_in = 1,
                                             .in = &x,
                                             .n_saved = 1,
                                             .saved = &index,
                                             .state = &geom,
                                             .state_bytes = sizeof geom},
                             y);
    else
        wf_tensor_free(y);
    wf_tensor_free(index);
    return status == WF_OK ? var : wf_error_null();
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    return wf_pool_run(layer, x, NULL);
}

const wf_layer_kind wf_pool_serial = {.name = "pool", .forward = forward};

static wf_layer *make_pool(wf_ctx *ctx, wf_pool_kind kind, wf_pool_opts o)
{
    static const char *const names[2][3] = {{"max_pool1d", "max_pool2d", "max_pool3d"},
                                            {"avg_pool1d", "avg_pool2d", "avg_pool3d"}};
    const bool average = kind == WF_POOL_AVG;
    WF_TRY_NULL(wf_nd_check(average ? "avg_pool" : "max_pool", &o.nd));
    return wf_pool_layer(ctx, &wf_pool_serial, names[average][o.nd - 1], kind, o.nd, &o, sizeof(wf_pool_state));
}

wf_layer *wf_max_pool(wf_ctx *ctx, wf_pool_opts opts)
{
    WF_NEED_NULL(ctx);
    return make_pool(ctx, WF_POOL_MAX, opts);
}

wf_layer *wf_avg_pool(wf_ctx *ctx, wf_pool_opts opts)
{
    WF_NEED_NULL(ctx);
    return make_pool(ctx, WF_POOL_AVG, opts);
}

wf_layer *wf_global_max_pool(wf_ctx *ctx)
{
    WF_NEED_NULL(ctx);
    return wf_pool_layer(ctx, &wf_pool_serial, "global_max_pool", WF_POOL_MAX, 0, NULL, sizeof(wf_pool_state));
}

wf_layer *wf_global_avg_pool(wf_ctx *ctx)
{
    WF_NEED_NULL(ctx);
    return wf_pool_layer(ctx, &wf_pool_serial, "global_avg_pool", WF_POOL_AVG, 0, NULL, sizeof(wf_pool_state));
}

wf_layer *wf_adaptive_max_pool(wf_ctx *ctx, wf_shape size)
{
    WF_NEED_NULL(ctx);
    return wf_pool_adaptive_layer(ctx, &wf_pool_serial, "adaptive_max_pool", size, sizeof(wf_pool_state));
}
