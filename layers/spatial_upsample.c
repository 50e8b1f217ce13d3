/* Spatially parallel upsampling: an output lies where its source does; linear needs one element of halo. */
#include "layers/spatial.h"
#include "layers/spatial_impl.h"
#include "layers/upsample_impl.h"

typedef struct spatial_upsample {
    wf_upsample_state upsample;
    const wf_mesh *mesh;
} spatial_upsample;

/* What backward is told. */
typedef struct upsample_call {
    const wf_mesh *mesh;
    wf_map map;
    wf_resample_geom geom;
    wf_halo halo;
    wf_box in, out; /* of this rank */
} upsample_call;

static wf_status plan(const wf_layer *layer, const wf_var *x, upsample_call *call, wf_layout *layout)
{
    const spatial_upsample *s = layer->state;
    const wf_layout *given = &x->value->layout;
    wf_shape shape;
    wf_cuts in, out;
    *call = (upsample_call){.mesh = s->mesh};
    WF_TRY(wf_cuts_of(layer, s->upsample.name, s->mesh, x, WF_CUTS_ANY, &in));
    WF_TRY(wf_upsample_fit(layer, x, given->global, &call->geom, &shape));
    call->map = (wf_map){.kind = WF_MAP_RESAMPLE, .nd = call->geom.nd, .resample = call->geom};
    for (int d = 0; d < call->map.nd; d++) {
        call->map.in[d] = given->global.dim[2 + d];
        call->map.out[d] = shape.dim[2 + d];
    }
    WF_TRY(wf_cuts_outputs(&in, &call->map, &out));
    WF_TRY(wf_halo_make(&in, &call->map, &out, NULL, x->value->dtype, &call->halo));
    *layout = wf_cuts_layout(&out, given);
    call->in = in.box;
    call->out = out.box;
    for (int d = 0; d < call->map.nd; d++) {
        call->geom.out_lo[d] = out.box.lo[2 + d];
        call->geom.in_lo[d] = (call->halo.exchange ? call->halo.need : in.box).lo[2 + d];
    }
    return WF_OK;
}

static wf_status backward_whole(const upsample_call *call, const wf_tensor *dy, const wf_tensor *whole)
{
    WF_NEED(whole);
    const wf_array from = wf_tensor_array(dy), to = wf_tensor_array(whole);
    return dy->ctx->k->resample_backward(dy->ctx, &call->geom, &from, &to);
}

static wf_status backward(wf_node *node)
{
    const upsample_call *call = node->state;
    const wf_tensor *x = node->in[0]->value;
    const wf_shape shape = call->halo.exchange ? wf_box_shape(call->halo.need) : x->shape;
    wf_tensor *whole = wf_tensor_new_step(x->ctx, x->dtype, shape, WF_CHANNELS_LAST);
    const wf_status status = backward_whole(call, wf_node_dy(node), whole);
    if (status != WF_OK) {
        wf_tensor_free(whole);
        return wf_spatial_failed(call->mesh, status);
    }
    wf_tensor *dx = wf_inflow_return(whole, x, &call->halo);
    return dx ? wf_node_give(node, 0, dx, false) : wf_spatial_failed(call->mesh, wf_error_code());
}

static const wf_op spatial_upsample_op = {.name = "spatial_upsample", .backward = backward};

typedef struct resample_run {
    wf_ctx *ctx;
    const wf_resample_geom *geom;
} resample_run;

static wf_status resample_part(void *user, const wf_array *in, wf_box in_box, const wf_array *out, wf_box out_box)
{
    const resample_run *r = user;
    wf_resample_geom geom = *r->geom;
    for (int d = 0; d < geom.nd; d++) {
        geom.in_lo[d] = in_box.lo[2 + d];
        geom.out_lo[d] = out_box.lo[2 + d];
    }
    return r->ctx->k->resample_forward(r->ctx, &geom, in, out);
}

static wf_status run(const upsample_call *call, const wf_tensor *own, const wf_tensor *y)
{
    WF_NEED(own);
    WF_NEED(y);
    resample_run user = {y->ctx, &call->geom};
    wf_inflow flow = {.own = own, .own_box = call->in, .halo = call->halo};
    flow.parts = wf_parts_make(&call->map, call->out, call->in, call->halo.need);
    const wf_status status = wf_inflow_run(&flow, &(wf_part_run){.map = &call->map,
                                                                 .out = y,
                                                                 .out_box = call->out,
                                                                 .kernel = resample_part,
                                                                 .user = &user,
                                                                 .poll = call->halo.exchange});
    if (status != WF_OK)
        wf_spatial_failed(call->mesh, status);
    wf_inflow_free(&flow);
    return status;
}

static wf_var *apply(wf_layer *layer, wf_var *x, const upsample_call *call, const wf_layout *layout)
{
    wf_tensor *own = wf_dense_value(x);
    wf_tensor *y = wf_tensor_new_step(layer->ctx, x->value->dtype, wf_box_shape(layout->box), WF_CHANNELS_LAST);
    const wf_status status = run(call, own, y);
    wf_tensor_free(own);
    if (status != WF_OK) {
        wf_tensor_free(y);
        return NULL;
    }
    y->layout = *layout;
    return wf_tape_record(
        wf_var_tape(x),
        &(wf_record){.op = &spatial_upsample_op, .n_in = 1, .in = &x, .state = call, .state_bytes = sizeof *call}, y);
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const spatial_upsample *s = layer->state;
    upsample_call call;
    wf_layout layout;
    const wf_status status = plan(layer, x, &call, &layout);
    wf_var *var = status == WF_OK ? apply(layer, x, &call, &layout) : NULL;
    if (var)
        return var;
    wf_spatial_failed(s->mesh, status == WF_OK ? wf_error_code() : status);
    return wf_error_null();
}

static const wf_layer_kind spatial_upsample_kind = {.name = "spatial_upsample", .forward = forward};

static wf_layer *make(const wf_mesh *mesh, const char *name, int nd, const wf_upsample_opts *o)
{
    if (!mesh)
        return NULL;
    wf_layer *layer = wf_upsample_layer(wf_comm_ctx(wf_mesh_world(mesh)), &spatial_upsample_kind, name, nd, o,
                                        sizeof(spatial_upsample));
    if (layer)
        ((spatial_upsample *)layer->state)->mesh = mesh;
    return layer;
}

wf_layer *wf_spatial_upsample1d(const wf_mesh *mesh, wf_upsample_opts opts)
{
    return make(mesh, "spatial_upsample1d", 1, &opts);
}

wf_layer *wf_spatial_upsample2d(const wf_mesh *mesh, wf_upsample_opts opts)
{
    return make(mesh, "spatial_upsample2d", 2, &opts);
}

wf_layer *wf_spatial_upsample3d(const wf_mesh *mesh, wf_upsample_opts opts)
{
    return make(mesh, "spatial_upsample3d", 3, &opts);
}
