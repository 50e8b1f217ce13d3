/* Spatially parallel upsampling: an output lies where its source lies, and linear interpolation needs a halo of one
 * element. The model of a parallel layer without parameters. */
#include "layers/parallel/parallel_impl.h"
#include "layers/serial/serial_impl.h"
#include "layers/spatial.h"

typedef struct spatial_upsample {
    wf_upsample_state upsample;
    const wf_mesh *mesh;
} spatial_upsample;

static const wf_op spatial_upsample_op = {.name = "spatial_upsample", .backward = wf_window_op_backward};

/* Called on all ranks with the same global shape; only the box of x differs. */
static wf_status plan_call(const wf_layer *layer, const wf_var *x, wf_window_op_call *call, wf_layout *layout)
{
    const spatial_upsample *s = layer->state;
    wf_resample_geom geom;
    wf_shape shape;
    wf_sharding in;
    *call = (wf_window_op_call){.forward = wf_window_op_resample, .backward = wf_window_op_resample_back};
    WF_TRY(wf_sharding_of(layer, s->upsample.name, s->mesh, x, WF_SHARDING_ANY, &in));
    /* Checked and sized by the global shape; the boxes of the ranks follow from it. */
    WF_TRY(wf_upsample_fit(layer, x, x->value->layout.global, &geom, &shape));
    call->index_map = (wf_index_map){.kind = WF_INDEX_MAP_RESAMPLE, .nd = geom.nd, .resample = geom};
    return wf_window_op_plan(call, x, &s->upsample.opts.boundary, &in, shape, layout);
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    wf_window_op_call call;
    wf_layout layout;
    WF_TRY_NULL(plan_call(layer, x, &call, &layout));
    return wf_window_op_apply(layer, x, &spatial_upsample_op, &call, sizeof call, wf_sharding_tensor(x, &layout));
}

static const wf_layer_kind spatial_upsample_kind = {.name = "spatial_upsample", .forward = forward};

wf_layer *wf_spatial_upsample(const wf_mesh *mesh, wf_upsample_opts opts)
{
    static const char *const names[3] = {"spatial_upsample1d", "spatial_upsample2d", "spatial_upsample3d"};
    WF_NEED_NULL(mesh);
    WF_TRY_NULL(wf_nd_check("spatial_upsample", &opts.nd));
    wf_layer *layer = wf_upsample_layer(wf_comm_ctx(wf_mesh_world(mesh)), &spatial_upsample_kind, names[opts.nd - 1],
                                        opts.nd, &opts, sizeof(spatial_upsample));
    if (!layer)
        return NULL;
    layer->comm = wf_mesh_world(mesh);
    ((spatial_upsample *)layer->state)->mesh = mesh;
    return layer;
}
