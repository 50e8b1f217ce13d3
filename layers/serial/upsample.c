/* Upsampling layers, and the check of their options, which the parallel form uses too.
 * layers/parallel/spatial_upsample.c is the parallel form. */
#include "layers/serial/serial_impl.h"

/* Largest factor and largest length of an output: products of them fit 63 bits. */
#define MOST_SCALE  (INT64_C(1) << 20)
#define MOST_LENGTH (INT64_C(1) << 31)

/* Fits the geometry to an input of this shape, which may be the whole of one that this rank has a part of. */
wf_status wf_upsample_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_resample_geom *g, wf_shape *y)
{
    const wf_upsample_state *s = layer->state;
    char text[WF_SHAPE_TEXT];
    WF_CHECK(shape.rank == s->geom.nd + 2, WF_ERR_SHAPE,
             "%s \"%s\": input %s, should be [N,C] and %d spatial dimensions", s->name, wf_layer_path(layer),
             wf_shape_text(shape, text), s->geom.nd);
    WF_CHECK(wf_dtype_is_float(x->value->dtype), WF_ERR_DTYPE, "%s \"%s\": input of %s, should be a float type",
             s->name, wf_layer_path(layer), wf_dtype_name(x->value->dtype));
    *g = s->geom;
    *y = shape;
    for (int d = 0; d < g->nd; d++) {
        const int64_t length = shape.dim[2 + d];
        WF_CHECK(length >= 1 && length <= MOST_LENGTH / g->scale[d], WF_ERR_SHAPE,
                 "%s \"%s\": input %s cannot be %lld times as long in spatial dimension %d", s->name,
                 wf_layer_path(layer), wf_shape_text(shape, text), (long long)g->scale[d], d);
        g->in[d] = length;
        y->dim[2 + d] = length * g->scale[d];
    }
    return WF_OK;
}

/* Backward needs the geometry alone: resampling is linear, so no value is saved. */
static wf_status backward(wf_node *node)
{
    const wf_resample_geom *geom = node->state;
    const wf_tensor *x = node->in[0]->value;
    wf_tensor *dx = wf_tensor_new_step(x->ctx, x->dtype, x->shape, WF_CHANNELS_LAST);
    WF_NEED(dx);
    const wf_array dy = wf_tensor_array(wf_node_dy(node)), out = wf_tensor_array(dx);
    const wf_status status =
        x->ctx->k->resample_backward(x->ctx, &(wf_resample_args){.geom = geom, .y = &dy, .x = &out});
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return wf_error_frame(status, __FILE__, __LINE__, __func__);
}

static const wf_op upsample_op = {.name = "upsample", .backward = backward};

/* Inputs beyond the edges are made, so backward has to send their gradients back to where they came from. */
static const wf_op upsample_beyond_op = {.name = "upsample", .backward = wf_window_op_backward};

static wf_status run_upsample(const wf_resample_geom *geom, const wf_tensor *x, const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(y);
    const wf_array in = wf_tensor_array(x), out = wf_tensor_array(y);
    return x->ctx->k->resample_forward(x->ctx, &(wf_resample_args){.geom = geom, .x = &in, .y = &out});
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const wf_upsample_state *s = layer->state;
    wf_resample_geom geom;
    wf_shape shape;
    WF_TRY_NULL(wf_upsample_fit(layer, x, wf_var_shape(x), &geom, &shape));
    wf_window_op_call call = {.index_map = {.kind = WF_INDEX_MAP_RESAMPLE, .nd = geom.nd, .resample = geom},
                              .forward = wf_window_op_resample,
                              .backward = wf_window_op_resample_back};
    WF_TRY_NULL(wf_window_op_plan_whole(&call, x, &s->opts.boundary, shape));
    /* Without a boundary the kernel clamps at the edges by itself. */
    if (call.index_map.boundary)
        return wf_window_op_apply(layer, x, &upsample_beyond_op, &call, sizeof call,
                                  wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, 1, -1, -1, -1}));
    wf_tensor *dense = wf_dense_value(x);
    /* The result keeps how samples and channels are placed; spatial dimensions are new ones. */
    wf_tensor *y = wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, 1, -1, -1, -1});
    const wf_status status = run_upsample(&geom, dense, y);
    wf_tensor_free(dense);
    if (status == WF_OK)
        return wf_tape_record(
            wf_var_tape(x),
            &(wf_node_spec){.op = &upsample_op, .n_in = 1, .in = &x, .state = &geom, .state_bytes = sizeof geom}, y);
    wf_tensor_free(y);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}

/* Reads options, which may be the user's mistakes; after this the geometry can be trusted. */
static wf_status check_upsample_opts(const char *name, int nd, const wf_upsample_opts *o, wf_resample_geom *g)
{
    WF_CHECK(o->mode == WF_UPSAMPLE_NEAREST || o->mode == WF_UPSAMPLE_LINEAR, WF_ERR_ARGUMENT,
             "%s: mode is %d, should be nearest or linear", name, (int)o->mode);
    WF_CHECK(!o->align_corners || o->mode == WF_UPSAMPLE_LINEAR, WF_ERR_ARGUMENT,
             "%s: align_corners is for the linear mode", name);
    *g = (wf_resample_geom){.nd = nd, .linear = o->mode == WF_UPSAMPLE_LINEAR, .align_corners = o->align_corners};
    for (int d = 0; d < nd; d++) {
        /* Options that are zero are unset: the own one of a dimension, then that of all, then 2. */
        g->scale[d] = o->scale_nd[d] ? o->scale_nd[d] : o->scale ? o->scale : 2;
        WF_CHECK(g->scale[d] >= 1 && g->scale[d] <= MOST_SCALE, WF_ERR_ARGUMENT,
                 "%s: scale is %lld in spatial dimension %d, should be 1 to %lld", name, (long long)g->scale[d], d,
                 (long long)MOST_SCALE);
    }
    return WF_OK;
}

wf_layer *wf_upsample_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, int nd, const wf_upsample_opts *o,
                            size_t bytes)
{
    wf_upsample_state s = {.name = name, .opts = *o};
    if (!ctx)
        return NULL;
    WF_TRY_NULL(check_upsample_opts(name, nd, o, &s.geom));
    WF_TRY_NULL(wf_boundary_check_layer(name, &o->boundary, nd));
    wf_layer *layer = wf_layer_new(ctx, kind, bytes + wf_boundary_list_bytes(&o->boundary));
    if (!layer)
        return NULL;
    /* The list of edges is the caller's memory, so a copy lies behind the state. */
    wf_boundary_keep_list(&s.opts.boundary, (char *)layer->state + bytes);
    *(wf_upsample_state *)layer->state = s;
    /* What ranks compare, since none of it shows in parameters. */
    wf_layer_note(layer, "%s by %lld, %lld, %lld%s%s", name, (long long)s.geom.scale[0], (long long)s.geom.scale[1],
                  (long long)s.geom.scale[2], s.geom.linear ? ", linear" : "",
                  s.geom.align_corners ? ", align_corners" : "");
    wf_boundary_note(layer, &s.opts.boundary, nd);
    return layer;
}

const wf_layer_kind wf_upsample_serial = {.name = "upsample", .forward = forward};

wf_layer *wf_upsample(wf_ctx *ctx, wf_upsample_opts opts)
{
    static const char *const names[3] = {"upsample1d", "upsample2d", "upsample3d"};
    WF_NEED_NULL(ctx);
    WF_TRY_NULL(wf_nd_check("upsample", &opts.nd));
    return wf_upsample_layer(ctx, &wf_upsample_serial, names[opts.nd - 1], opts.nd, &opts, sizeof(wf_upsample_state));
}
