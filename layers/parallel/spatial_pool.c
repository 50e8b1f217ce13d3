/* Spatially parallel pooling. A global maximum gathers the whole input on every rank; a global average is a sum over
 * the ranks of their parts. */
#include "layers/parallel/parallel_impl.h"
#include "layers/serial/serial_impl.h"
#include "layers/spatial.h"

typedef struct spatial_pool {
    wf_pool_state pool;
    const wf_mesh *mesh;
} spatial_pool;

/* State of the node, for backward. */
typedef struct pool_call {
    wf_pool_call of; /* with the geometry of the whole image; of a global average: of own inputs */
    const wf_mesh *mesh;
    unsigned axes; /* a global average: a sum over these, */
    double share;  /* of means of own inputs, times their share of all */
} pool_call;

/* Windows. */

static const wf_op spatial_pool_op = {.name = "spatial_pool", .backward = wf_window_op_backward};

/* Over the whole image. */

/* The output of a global pool has one pixel, which every rank gets: axes that cut pixels cut nothing any more. */
static wf_layout replicated(const wf_sharding *sharding, wf_layout layout)
{
    for (int d = 0; d < layout.global.rank - 2; d++) {
        layout.global.dim[2 + d] = layout.box.hi[2 + d] = 1;
        layout.box.lo[2 + d] = 0;
        if (sharding->axis[d] < 0)
            continue;
        layout.placement[sharding->axis[d]] = WF_REPLICATED;
        layout.dim[sharding->axis[d]] = 0;
        layout.bounds[sharding->axis[d]] = NULL;
    }
    return layout;
}

/* The mean of the local elements, if there are any, scaled to be a part of the global mean. An empty part has a share
 * of 0, and adds zeros to the sum. */
static void make_share(const wf_sharding *sharding, pool_call *call)
{
    call->share = 1;
    for (int d = 0; d < call->of.geom.nd; d++) {
        call->of.geom.kernel[d] = sharding->box.hi[2 + d] - sharding->box.lo[2 + d];
        call->share *= (double)call->of.geom.kernel[d] / (double)sharding->length[d];
        if (sharding->axis[d] >= 0)
            call->axes |= 1u << sharding->axis[d];
    }
}

static wf_status scale(const wf_array *a, wf_ctx *ctx, double by)
{
    return ctx->k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = by, .a = a, .y = a});
}

/* Sum over ranks of mean times share is the global mean; the order of the sum is that of the reducer. */
static wf_status sum_means(const pool_call *call, const wf_tensor *own, const wf_tensor *y)
{
    WF_NEED(own);
    WF_NEED(y);
    wf_ctx *ctx = y->ctx;
    wf_comm *comm = wf_mesh_comm(call->mesh, call->axes);
    const wf_array in = wf_tensor_array(own), out = wf_tensor_array(y);
    if (call->share > 0) {
        WF_TRY(ctx->k->pool_forward(ctx, &(wf_pool_args){.geom = &call->of.geom, .x = &in, .y = &out}));
        WF_TRY(scale(&out, ctx, call->share));
    } else
        WF_TRY(ctx->k->fill(ctx, &out, 0));
    if (call->axes == 0)
        return WF_OK;
    WF_NEED(comm);
    return wf_allreduce_raw(comm, y->data, y->data, wf_tensor_count(y), y->dtype, WF_SUM);
}

/* The output is replicated, so every rank has its whole gradient and computes its own part of the input's gradient. */
static wf_status backward_global(wf_node *node)
{
    const pool_call *call = node->state;
    /* A maximum was taken over the gathered input: its places are in there. */
    const wf_window_op_call *plain = &call->of.plain;
    const wf_tensor *x = node->in[0]->value, *index = plain->indexed ? wf_node_saved(node, 0) : NULL;
    const wf_box need = plain->halo.exchange ? plain->halo.need : plain->in;
    wf_tensor *read = wf_tensor_new_step(x->ctx, x->dtype, wf_box_shape(need), WF_CHANNELS_LAST), *dx = NULL;
    wf_status status;
    WF_TRY_OUT(wf_check(read));
    const wf_array dy = wf_tensor_array(wf_node_dy(node)), at = wf_tensor_array(index), to = wf_tensor_array(read);
    if (wf_array_count(&to) > 0)
        WF_TRY_OUT(x->ctx->k->pool_backward(
            x->ctx, &(wf_pool_args){.geom = &call->of.geom, .y = &dy, .index = index ? &at : NULL, .x = &to}));
    if (!index && wf_array_count(&to) > 0)
        WF_TRY_OUT(scale(&to, x->ctx, call->share));
    dx = wf_tensor_view(read, wf_box_relative(plain->in, need));
    WF_TRY_OUT(wf_check(dx));
out:
    wf_tensor_free(read);
    return status == WF_OK ? wf_node_give(node, 0, dx, false) : status;
}

static const wf_op global_op = {.name = "spatial_global_pool", .backward = backward_global};

static wf_var *apply_average(wf_layer *layer, wf_var *x, const pool_call *call, const wf_layout *layout)
{
    wf_tensor *own = wf_dense_value(x);
    wf_tensor *y = wf_tensor_new_step(layer->ctx, x->value->dtype, wf_box_shape(layout->box), WF_CHANNELS_LAST);
    const wf_status status = sum_means(call, own, y);
    wf_tensor_free(own);
    if (status != WF_OK) {
        wf_tensor_free(y);
        return wf_error_null();
    }
    y->layout = *layout;
    return wf_tape_record(
        wf_var_tape(x),
        &(wf_node_spec){.op = &global_op, .n_in = 1, .in = &x, .state = call, .state_bytes = sizeof *call}, y);
}

/* Forward. */

static wf_status plan_pool(const wf_layer *layer, const wf_var *x, pool_call *call, wf_layout *layout)
{
    const spatial_pool *s = layer->state;
    const wf_layout *given = &x->value->layout;
    const bool global = s->pool.geom.nd == 0;
    wf_window_op_call *plain = &call->of.plain;
    wf_pool_geom geom;
    wf_shape shape;
    wf_sharding in;
    WF_TRY(wf_sharding_of(layer, s->pool.name, s->mesh, x, WF_SHARDING_ANY, &in));
    WF_TRY(wf_pool_fit(layer, x, given->global, &geom, &shape));
    *call = (pool_call){.of = wf_pool_call_of(&geom, global ? WF_INDEX_MAP_ALL : WF_INDEX_MAP_WINDOW), .mesh = s->mesh};
    if (!global)
        return wf_window_op_plan(plain, x, &s->pool.opts.boundary, &in, shape, layout);
    *layout = replicated(&in, *given);
    plain->in = plain->out = in.box;
    for (int d = 0; d < plain->index_map.nd; d++) {
        plain->index_map.in[d] = given->global.dim[2 + d];
        plain->index_map.out[d] = plain->out.hi[2 + d] = 1;
        plain->out.lo[2 + d] = 0;
    }
    /* The halo of a global maximum is everything: each rank gets the whole input. */
    if (plain->indexed)
        return wf_halo_make(&in, &plain->index_map, &in, NULL, x->value->dtype, &plain->halo);
    make_share(&in, call);
    return WF_OK;
}

wf_var *wf_spatial_pool_run(wf_layer *layer, wf_var *x, wf_tensor **places)
{
    pool_call call;
    wf_layout layout;
    WF_TRY_NULL(plan_pool(layer, x, &call, &layout));
    const bool global = call.of.plain.index_map.kind == WF_INDEX_MAP_ALL;
    /* An average needs no pixels of other ranks, so it has no exchange. */
    if (global && !call.of.plain.indexed)
        return apply_average(layer, x, &call, &layout);
    wf_tensor *y = wf_sharding_tensor(x, &layout);
    if (places && y) {
        *places = wf_pool_new_places(y);
        call.of.places = *places;
        if (!*places) {
            wf_tensor_free(y);
            y = NULL;
        }
    }
    /* Indices are for backward and for places alone. */
    call.of.plain.indexed = call.of.plain.indexed && (places || wf_tape_mode(wf_var_tape(x)) == WF_TRAIN);
    return wf_window_op_apply(layer, x, global ? &global_op : &spatial_pool_op, &call.of.plain, sizeof call, y);
}

static wf_var *forward(wf_layer *layer, wf_var *x)
{
    return wf_spatial_pool_run(layer, x, NULL);
}

const wf_layer_kind wf_pool_spatial = {.name = "spatial_pool", .forward = forward};

/* NULL passes. The constructor of the serial layer may have failed and told why. */
static wf_layer *put_on_mesh(wf_layer *layer, const wf_mesh *mesh)
{
    if (!layer)
        return NULL;
    layer->comm = wf_mesh_world(mesh);
    ((spatial_pool *)layer->state)->mesh = mesh;
    return layer;
}

static wf_layer *make_pool(const wf_mesh *mesh, wf_pool_kind kind, wf_pool_opts o)
{
    static const char *const names[2][3] = {{"spatial_max_pool1d", "spatial_max_pool2d", "spatial_max_pool3d"},
                                            {"spatial_avg_pool1d", "spatial_avg_pool2d", "spatial_avg_pool3d"}};
    const bool average = kind == WF_POOL_AVG;
    WF_TRY_NULL(wf_nd_check(average ? "spatial_avg_pool" : "spatial_max_pool", &o.nd));
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    const char *name = names[average][o.nd - 1];
    return put_on_mesh(wf_pool_layer(ctx, &wf_pool_spatial, name, kind, o.nd, &o, sizeof(spatial_pool)), mesh);
}

wf_layer *wf_spatial_max_pool(const wf_mesh *mesh, wf_pool_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_pool(mesh, WF_POOL_MAX, opts);
}

wf_layer *wf_spatial_avg_pool(const wf_mesh *mesh, wf_pool_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_pool(mesh, WF_POOL_AVG, opts);
}

wf_layer *wf_spatial_global_max_pool(const wf_mesh *mesh)
{
    WF_NEED_NULL(mesh);
    return put_on_mesh(wf_pool_layer(wf_comm_ctx(wf_mesh_world(mesh)), &wf_pool_spatial, "spatial_global_max_pool",
                                     WF_POOL_MAX, 0, NULL, sizeof(spatial_pool)),
                       mesh);
}

wf_layer *wf_spatial_global_avg_pool(const wf_mesh *mesh)
{
    WF_NEED_NULL(mesh);
    return put_on_mesh(wf_pool_layer(wf_comm_ctx(wf_mesh_world(mesh)), &wf_pool_spatial, "spatial_global_avg_pool",
                                     WF_POOL_AVG, 0, NULL, sizeof(spatial_pool)),
                       mesh);
}

wf_layer *wf_spatial_adaptive_max_pool(const wf_mesh *mesh, wf_shape size)
{
    WF_NEED_NULL(mesh);
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    return put_on_mesh(
        wf_pool_adaptive_layer(ctx, &wf_pool_spatial, "spatial_adaptive_max_pool", size, sizeof(spatial_pool)), mesh);
}
