/* Attention of each pixel to those around it (Hassani et al., 2023): the layer with its projections
 * (layers/parallel/neighbourhood.c has the attention, and the exchange of pixels between ranks). */
#include "core/opts.h"
#include "layers/functions.h"
#include "layers/parallel/parallel_impl.h"
#include "layers/parallelize_author.h"
#include "layers/transformer.h"

typedef struct around_state {
    int nd; /* spatial dimensions */
    wf_near_opts opts;
    const wf_mesh *mesh;
    wf_projections of;
} around_state;

/* The image with channels last, and back: where memory is channels-last nothing is copied. */
static wf_var *turn_image(wf_var *x, int nd, bool back)
{
    int perm[WF_MAX_RANK] = {0};
    perm[back ? 1 : nd + 1] = back ? nd + 1 : 1;
    for (int d = 0; d < nd; d++)
        perm[(back ? 2 : 1) + d] = (back ? 1 : 2) + d;
    return wf_transpose(x, perm);
}

static wf_var *attend_around(wf_layer *layer, wf_var *x, int nd)
{
    const around_state *s = layer->state;
    /* A rank's gradient of x is a sum over the heads of all ranks along channel. */
    x = wf_channel_copied(s->mesh, turn_image(x, nd, false));
    wf_var *q = wf_project(s->of.query, x);
    /* After a failure the next projection gets NULL, and computes nothing. */
    wf_var *k = wf_project(s->of.key, q ? x : NULL);
    wf_var *v = wf_project(s->of.value, k ? x : NULL);
    return wf_near_attention(q, k, v, &s->opts);
}

static wf_var *forward_around(wf_layer *layer, wf_var *x)
{
    const around_state *s = layer->state;
    const wf_layout *const layout = &x->value->layout;
    const int nd = x->value->shape.rank - 2;
    char text[WF_SHAPE_TEXT];
    WF_CHECK_NULL(nd == s->nd, WF_ERR_SHAPE,
                  "neighbourhood_attention \"%s\": input %s, should have %d spatial dimensions", wf_layer_path(layer),
                  wf_shape_text(x->value->shape, text), s->nd);
    /* Only with a cut along pixels other ranks wait here. */
    wf_comm *comm = wf_layout_axes(layout, ~3u) ? wf_mesh_world(layout->mesh) : NULL;
    wf_var *y = attend_around(layer, x, nd);
    /* The other ranks may wait for the exchange. */
    if (!y && comm)
        return (wf_comm_post_failure(comm, wf_error_code()), NULL);
    return turn_image(wf_apply(s->of.out, y), nd, true);
}

static void describe_around(const wf_layer *layer, wf_part_info *info)
{
    const around_state *s = layer->state;
    *info = (wf_part_info){.kind = WF_PART_NEIGHBOURHOOD, .nd = s->nd, .heads = s->opts.heads};
    for (int d = 0; d < s->nd; d++)
        info->window[d] = (wf_window){.kernel = s->opts.kernel[d], .stride = 1, .dilation = s->opts.dilation[d]};
}

static const wf_layer_kind around_kind = {
    .name = "neighbourhood_attention", .forward = forward_around, .computes = true, .describe = describe_around};

/* --- construction ------------------------------------------------------------------------------------------------- */

static bool add_parts(wf_layer *layer, const wf_neighbourhood_attention_opts *o)
{
    around_state *s = layer->state;
    /* A unit of the cut is a head: heads are never cut. */
    const wf_token_linear_opts each = {
        .in = o->features, .no_bias = o->no_bias, .w_init = o->w_init, .mesh = o->mesh, .unit = o->features / o->heads};
    wf_param_opts table = {.dtype = layer->ctx->dtype, .init = {WF_INIT_TRUNC_NORMAL, 0, 0.02}};
    const bool added = wf_projections_add(layer, each, true, &s->of);
    if (!o->no_relative) {
        /* A row for each offset between a query and a key, as many as a kernel can have in both directions. */
        table.shape.rank = 1 + s->nd;
        table.shape.dim[0] = o->heads;
        for (int d = 0; d < s->nd; d++)
            table.shape.dim[1 + d] = 2 * s->opts.kernel[d] - 1;
        s->opts.bias = wf_layer_add_param(layer, "relative", table);
    }
    return added && (s->opts.bias || o->no_relative);
}

static wf_status check_around(const wf_neighbourhood_attention_opts *o, const around_state *s)
{
    WF_CHECK(o->features >= 1 && o->heads >= 1 && o->features % o->heads == 0, WF_ERR_ARGUMENT,
             "neighbourhood_attention: %lld features of %lld heads, should be a multiple", (long long)o->features,
             (long long)o->heads);
    WF_CHECK(s->nd >= 1 && s->nd <= 3, WF_ERR_ARGUMENT,
             "neighbourhood_attention of %d spatial dimensions, should be 1 to 3", s->nd);
    WF_CHECK(o->scale >= 0, WF_ERR_ARGUMENT, "neighbourhood_attention: scale is %g, should be above 0", o->scale);
    for (int d = 0; d < s->nd; d++) {
        WF_CHECK(s->opts.kernel[d] >= 1 && s->opts.kernel[d] <= 1 << 10, WF_ERR_ARGUMENT,
                 "neighbourhood_attention: a kernel of %lld pixels, should be 1 to 1024", (long long)s->opts.kernel[d]);
        WF_CHECK(s->opts.dilation[d] >= 1 && s->opts.dilation[d] <= 1 << 20, WF_ERR_ARGUMENT,
                 "neighbourhood_attention: a dilation of %lld pixels, should be 1 to 1048576",
                 (long long)s->opts.dilation[d]);
    }
    return WF_OK;
}

/* Options that are 0 are unset: the own one of a dimension, then that of all. */
static around_state read_options(const wf_neighbourhood_attention_opts *o)
{
    around_state s = {.nd = o->nd ? o->nd : 2, .mesh = o->mesh, .opts = {.heads = o->heads, .scale = o->scale}};
    for (int d = 0; d < 3; d++) {
        s.opts.kernel[d] = o->kernel_nd[d] ? o->kernel_nd[d] : o->kernel;
        s.opts.dilation[d] = o->dilation_nd[d] ? o->dilation_nd[d] : o->dilation ? o->dilation : 1;
    }
    return s;
}

wf_layer *wf_neighbourhood_attention(wf_ctx *ctx, wf_neighbourhood_attention_opts o)
{
    WF_NEED_NULL(ctx);
    const around_state s = read_options(&o);
    WF_TRY_NULL(check_around(&o, &s));
    wf_layer *layer = wf_layer_new(ctx, &around_kind, sizeof s);
    if (!layer)
        return NULL;
    *(around_state *)layer->state = s;
    layer->takes_children = true;
    if (o.mesh)
        layer->comm = wf_mesh_world(o.mesh);
    wf_layer_note(layer, "neighbourhood_attention of %lld heads, scale %g, %d-d", (long long)o.heads, o.scale, s.nd);
    for (int d = 0; d < s.nd; d++)
        wf_layer_note(layer, ", %lld pixels %lld apart", (long long)s.opts.kernel[d], (long long)s.opts.dilation[d]);
    if (add_parts(layer, &o))
        return layer;
    wf_layer_free(layer);
    return NULL;
}
