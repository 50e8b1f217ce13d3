/* Spatially parallel resampling to any length: an output lies where its place among the inputs lies. wf_parallelize
 * makes it from the serial layer; the arithmetic is that of layers/serial/resize.c, on boxes. */
#include "layers/parallel/parallel_impl.h"
#include "layers/serial/serial_impl.h"
#include "layers/spatial.h"

typedef struct spatial_resize {
    wf_resize_state resize;
    const wf_mesh *mesh;
} spatial_resize;

static const wf_op spatial_resize_op = {.name = "spatial_resize", .backward = wf_window_op_backward};

static wf_status plan_resize(const wf_layer *layer, const wf_var *x, wf_resize_call *call, wf_layout *layout)
{
    const spatial_resize *s = layer->state;
    wf_shape shape;
    wf_sharding in;
    WF_TRY(wf_sharding_of(layer, s->resize.name, s->mesh, x, WF_SHARDING_ANY, &in));
    /* Checked and sized by the global shape; the boxes of the ranks follow from it. */
    WF_TRY(wf_resize_fit(layer, x, x->value->layout.global, call, &shape));
    return wf_window_op_plan(&call->plain, x, NULL, &in, shape, layout);
}

static wf_var *apply_resize(wf_layer *layer, wf_var *x)
{
    wf_resize_call call;
    wf_layout layout;
    WF_TRY_NULL(plan_resize(layer, x, &call, &layout));
    return wf_window_op_apply(layer, x, &spatial_resize_op, &call.plain, sizeof call, wf_sharding_tensor(x, &layout));
}

static const wf_layer_kind spatial_resize_kind = {
    .name = "spatial_resize", .forward = apply_resize, .free = wf_resize_free};

static wf_layer *resize_over(const wf_mesh *mesh, const char *name, int nd, const wf_resize_opts *o)
{
    wf_layer *layer =
        wf_resize_layer(wf_comm_ctx(wf_mesh_world(mesh)), &spatial_resize_kind, name, nd, o, sizeof(spatial_resize));
    if (!layer)
        return NULL;
    layer->comm = wf_mesh_world(mesh);
    ((spatial_resize *)layer->state)->mesh = mesh;
    return layer;
}

/* nd is 0 for a resize, whose rank follows from its input. */
wf_layer *wf_spatial_resize_of(const wf_layer *layer, const wf_mesh *mesh)
{
    const wf_resize_state *s = layer->state;
    return resize_over(mesh, s->nd ? "spatial_adaptive_avg_pool" : "spatial_resize", s->nd, &s->opts);
}

wf_layer *wf_spatial_resize(const wf_mesh *mesh, wf_resize_opts opts)
{
    WF_NEED_NULL(mesh);
    return resize_over(mesh, "spatial_resize", 0, &opts);
}

wf_layer *wf_spatial_adaptive_avg_pool(const wf_mesh *mesh, wf_shape size)
{
    wf_resize_opts opts;
    WF_NEED_NULL(mesh);
    WF_TRY_NULL(wf_adaptive_opts("spatial_adaptive_avg_pool", size, &opts));
    return resize_over(mesh, "spatial_adaptive_avg_pool", size.rank, &opts);
}
