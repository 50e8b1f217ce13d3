/* Spatially parallel pooling: the input with its halo, then the serial kernel; gradients of the halo go back and are
 * added. */
#include "layers/pool_impl.h"
#include "layers/spatial.h"
#include "layers/spatial_impl.h"

typedef struct spatial_pool {
    wf_pool_state pool;
    const wf_mesh *mesh;
} spatial_pool;

/* What backward is told. */
typedef struct pool_call {
    const wf_mesh *mesh;
    wf_map map;
    wf_pool_geom whole; /* of the whole image */
    wf_pool_geom geom;  /* over what this rank reads */
    wf_halo halo;
    wf_box out; /* of this rank */
    wf_box in;  /* what this rank reads, or its own input */
    wf_box own;
    bool global;
    unsigned axes; /* a global average: a sum over these, */
    double share;  /* of means of own inputs, times their share of all */
} pool_call;

/* The whole geometry becomes that of this rank's outputs over its inputs. */
static void make_local(const wf_map *map, wf_box out, wf_box in, wf_pool_geom *g)
{
    for (int d = 0; d < g->nd; d++) {
        const wf_window w =
            wf_map_local(map, d, (wf_range){out.lo[2 + d], out.hi[2 + d]}, (wf_range){in.lo[2 + d], in.hi[2 + d]});
        /* A last window that ceil mode lets stick out of the padding counts only what is inside. */
        const int64_t most = map->in[d] + g->pad_hi[d] - in.hi[2 + d];
        g->pad_lo[d] = w.pad_lo;
        g->pad_hi[d] = w.pad_hi < most ? w.pad_hi : most;
    }
}

static void make_replicated(const wf_cuts *cuts, wf_layout *layout)
{
    for (int d = 0; d < layout->global.rank - 2; d++) {
        layout->global.dim[2 + d] = layout->box.hi[2 + d] = 1;
        layout->box.lo[2 + d] = 0;
        if (cuts->axis[d] < 0)
            continue;
        layout->placement[cuts->axis[d]] = WF_REPLICATED;
        layout->dim[cuts->axis[d]] = 0;
        layout->cut[cuts->axis[d]] = NULL;
    }
}

/* The mean of what is here, if anything is, as a part of the mean of all. */
static void make_share(const wf_cuts *cuts, pool_call *call)
{
    call->share = 1;
    for (int d = 0; d < call->geom.nd; d++) {
        call->geom.kernel[d] = cuts->box.hi[2 + d] - cuts->box.lo[2 + d];
        call->share *= (double)call->geom.kernel[d] / (double)cuts->length[d];
        if (cuts->axis[d] >= 0)
            call->axes |= 1u << cuts->axis[d];
    }
}

static wf_status plan(const wf_layer *layer, const wf_var *x, pool_call *call, wf_layout *layout)
{
    const spatial_pool *s = layer->state;
    const wf_layout *given = &x->value->layout;
    wf_shape shape;
    wf_cuts in, out;
    *call = (pool_call){.mesh = s->mesh, .global = s->pool.geom.nd == 0};
    WF_TRY(wf_cuts_of(layer, s->pool.name, s->mesh, x, WF_CUTS_ANY, &in));
    WF_TRY(wf_pool_fit(layer, x, given->global, &call->geom, &shape));
    call->whole = call->geom;
    call->map = (wf_map){.kind = call->global ? WF_MAP_ALL : WF_MAP_WINDOW, .nd = call->geom.nd};
    for (int d = 0; d < call->map.nd; d++) {
        call->map.window[d] = wf_pool_window(&call->geom, d);
        call->map.in[d] = given->global.dim[2 + d];
        call->map.out[d] = shape.dim[2 + d];
    }
    *layout = *given;
    call->own = in.box;
    if (call->global) {
        make_replicated(&in, layout);
        if (call->geom.kind == WF_POOL_AVG) {
            make_share(&in, call);
            return WF_OK;
        }
        return wf_halo_make(&in, &call->map, &in, NULL, x->value->dtype, &call->halo);
    }
    WF_TRY(wf_cuts_outputs(&in, &call->map, &out));
    WF_TRY(wf_halo_make(&in, &call->map, &out, NULL, x->value->dtype, &call->halo));
    *layout = wf_cuts_layout(&out, given);
    call->in = call->halo.exchange ? call->halo.need : in.box;
    call->out = out.box;
    if (!wf_box_empty(out.box))
        make_local(&call->map, out.box, call->in, &call->geom);
    return WF_OK;
}

static wf_status backward_whole(const pool_call *call, const wf_tensor *dy, const wf_tensor *index,
                                const wf_tensor *whole)
{
    WF_NEED(whole);
    const wf_array from = wf_tensor_array(dy), at = wf_tensor_array(index), to = wf_tensor_array(whole);
    if (wf_array_count(&from) == 0)
        return dy->ctx->k->fill(dy->ctx, &to, 0);
    if (call->axes && wf_array_count(&to) > 0) {
        WF_TRY(dy->ctx->k->pool_backward(dy->ctx, &call->geom, &from, NULL, &to));
        return dy->ctx->k->binary(dy->ctx, WF_BINARY_LINEAR, call->share, &to, 0, NULL, &to, false);
    }
    return dy->ctx->k->pool_backward(dy->ctx, &call->geom, &from, index ? &at : NULL, &to);
}

/* Of a replicated output every rank has the whole gradient: it keeps its own part of the input's. */
static wf_tensor *own_part(const pool_call *call, wf_tensor *whole)
{
    wf_box part = call->own;
    part.hi[1] -= part.lo[1];
    part.lo[0] = part.lo[1] = 0;
    wf_tensor *view = wf_tensor_view(whole, part);
    wf_tensor_free(whole);
    return view;
}

static wf_status backward(wf_node *node)
{
    const pool_call *call = node->state;
    const wf_tensor *x = node->in[0]->value, *dy = wf_node_dy(node);
    const wf_shape shape = call->halo.exchange ? wf_box_shape(call->halo.need) : x->shape;
    wf_tensor *whole = wf_tensor_new_step(x->ctx, x->dtype, shape, WF_CHANNELS_LAST);
    const wf_status status = backward_whole(call, dy, wf_node_saved(node, 0), whole);
    if (status != WF_OK) {
        wf_tensor_free(whole);
        return wf_spatial_failed(call->mesh, status);
    }
    wf_tensor *dx =
        call->global && call->halo.exchange ? own_part(call, whole) : wf_inflow_return(whole, x, &call->halo);
    return dx ? wf_node_give(node, 0, dx, false) : wf_spatial_failed(call->mesh, wf_error_code());
}

static const wf_op spatial_pool_op = {.name = "spatial_pool", .backward = backward};

static wf_status sum_means(const pool_call *call, const wf_tensor *own, const wf_tensor *y)
{
    WF_NEED(own);
    WF_NEED(y);
    wf_ctx *ctx = y->ctx;
    wf_comm *comm = wf_mesh_comm_of(call->mesh, call->axes);
    WF_NEED(comm);
    const wf_array in = wf_tensor_array(own), out = wf_tensor_array(y);
    if (call->share > 0) {
        WF_TRY(ctx->k->pool_forward(ctx, &call->geom, &in, &out, NULL));
        WF_TRY(ctx->k->binary(ctx, WF_BINARY_LINEAR, call->share, &out, 0, NULL, &out, false));
    } else
        WF_TRY(ctx->k->fill(ctx, &out, 0));
    return wf_allreduce_raw(comm, y->data, y->data, wf_tensor_count(y), y->dtype, WF_SUM);
}

typedef struct average_run {
    wf_ctx *ctx;
    const pool_call *call;
} average_run;

static wf_status average_part(void *user, const wf_array *in, wf_box in_box, const wf_array *out, wf_box out_box)
{
    const average_run *r = user;
    wf_pool_geom geom = r->call->whole;
    make_local(&r->call->map, out_box, in_box, &geom);
    return r->ctx->k->pool_forward(r->ctx, &geom, in, out, NULL);
}

static wf_status average(const pool_call *call, const wf_tensor *own, const wf_tensor *y)
{
    average_run user = {y->ctx, call};
    wf_inflow flow = {.own = own, .own_box = call->own, .halo = call->halo};
    flow.parts = wf_parts_make(&call->map, call->out, call->own, call->halo.need);
    const wf_status status = wf_inflow_run(&flow, &(wf_part_run){.map = &call->map,
                                                                 .out = y,
                                                                 .out_box = call->out,
                                                                 .kernel = average_part,
                                                                 .user = &user,
                                                                 .poll = call->halo.exchange});
    if (status != WF_OK)
        wf_spatial_failed(call->mesh, status);
    wf_inflow_free(&flow);
    return status;
}

/* A maximum remembers where in its input it was, so it takes that as a whole. */
static wf_status run(const pool_call *call, const wf_tensor *own, const wf_tensor *y, const wf_tensor *index)
{
    WF_NEED(own);
    WF_NEED(y);
    if (!index && !call->global)
        return average(call, own, y);
    wf_tensor *whole = wf_inflow_whole(own, &call->halo);
    WF_NEED(whole);
    const wf_array in = wf_tensor_array(whole), out = wf_tensor_array(y), at = wf_tensor_array(index);
    wf_status status = WF_OK;
    if (wf_array_count(&out) > 0)
        status = y->ctx->k->pool_forward(y->ctx, &call->geom, &in, &out, index ? &at : NULL);
    wf_tensor_free(whole);
    return status;
}

static wf_var *apply(wf_layer *layer, wf_var *x, const pool_call *call, const wf_layout *layout)
{
    const wf_shape shape = wf_box_shape(layout->box);
    wf_tensor *own = wf_dense_value(x);
    wf_tensor *y = wf_tensor_new_step(layer->ctx, x->value->dtype, shape, WF_CHANNELS_LAST);
    wf_tensor *index =
        call->geom.kind == WF_POOL_MAX ? wf_tensor_new_step(layer->ctx, WF_I32, shape, WF_CHANNELS_LAST) : NULL;
    const wf_status status = call->geom.kind == WF_POOL_MAX && !index ? wf_error_take("an index", __FILE__, __LINE__)
                             : call->axes                             ? sum_means(call, own, y)
                                                                      : run(call, own, y, index);
    wf_tensor_free(own);
    wf_var *var = NULL;
    if (status == WF_OK) {
        y->layout = *layout;
        var = wf_tape_record(wf_var_tape(x),
                             &(wf_record){.op = &spatial_pool_op,
                                          .n_in = 1,
                                          .in = &x,
                                          .n_saved = 1,
                                          .saved = &index,
                                          .state = call,
                                          .state_bytes = sizeof *call},
                             y);
    } else
        wf_tensor_free(y);
    wf_tensor_free(index);
    return var;
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    const spatial_pool *s = layer->state;
    pool_call call;
    wf_layout layout;
    const wf_status status = plan(layer, x, &call, &layout);
    wf_var *var = status == WF_OK ? apply(layer, x, &call, &layout) : NULL;
    if (var)
        return var;
    wf_spatial_failed(s->mesh, status == WF_OK ? wf_error_code() : status);
    return wf_error_null();
}

static const wf_layer_kind spatial_pool_kind = {.name = "spatial_pool", .forward = forward};

static wf_layer *make(const wf_mesh *mesh, const char *name, wf_pool_kind kind, int nd, const wf_pool_opts *o)
{
    if (!mesh)
        return NULL;
    wf_layer *layer =
        wf_pool_layer(wf_comm_ctx(wf_mesh_world(mesh)), &spatial_pool_kind, name, kind, nd, o, sizeof(spatial_pool));
    if (layer)
        ((spatial_pool *)layer->state)->mesh = mesh;
    return layer;
}

wf_layer *wf_spatial_max_pool1d(const wf_mesh *mesh, wf_pool_opts opts)
{
    return make(mesh, "spatial_max_pool1d", WF_POOL_MAX, 1, &opts);
}

wf_layer *wf_spatial_max_pool2d(const wf_mesh *mesh, wf_pool_opts opts)
{
    return make(mesh, "spatial_max_pool2d", WF_POOL_MAX, 2, &opts);
}

wf_layer *wf_spatial_max_pool3d(const wf_mesh *mesh, wf_pool_opts opts)
{
    return make(mesh, "spatial_max_pool3d", WF_POOL_MAX, 3, &opts);
}

wf_layer *wf_spatial_avg_pool1d(const wf_mesh *mesh, wf_pool_opts opts)
{
    return make(mesh, "spatial_avg_pool1d", WF_POOL_AVG, 1, &opts);
}

wf_layer *wf_spatial_avg_pool2d(const wf_mesh *mesh, wf_pool_opts opts)
{
    return make(mesh, "spatial_avg_pool2d", WF_POOL_AVG, 2, &opts);
}

wf_layer *wf_spatial_avg_pool3d(const wf_mesh *mesh, wf_pool_opts opts)
{
    return make(mesh, "spatial_avg_pool3d", WF_POOL_AVG, 3, &opts);
}

wf_layer *wf_spatial_global_max_pool(const wf_mesh *mesh)
{
    return make(mesh, "spatial_global_max_pool", WF_POOL_MAX, 0, NULL);
}

wf_layer *wf_spatial_global_avg_pool(const wf_mesh *mesh)
{
    return make(mesh, "spatial_global_avg_pool", WF_POOL_AVG, 0, NULL);
}
