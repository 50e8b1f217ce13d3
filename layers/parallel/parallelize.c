/* Turns the layers of a whole model into parallel ones, in place, and sets the redistributions between them. Called
 * once, before the optimizer is made; a layer object keeps its address, name and values. */
#include "layers/parallelize_author.h"

#include "comm/mesh_author.h"
#include "layers/channel.h"
#include "layers/functions.h"
#include "layers/mesh_conv.h"
#include "layers/parallel/parallel_impl.h"
#include "layers/redistribute.h"
#include "layers/spatial.h"

#include <stdlib.h>
#include <string.h>

/* A walk through a model in the order in which children were added; the data is assumed to pass them in this order.
 * Every rank walks the same model, and nothing is sent. */
typedef struct walk {
    const wf_mesh *mesh;
    unsigned how;
    bool sharded; /* what leaves the last layer has its channels sharded */
    /* Not NULL: says how for each layer. An input may then be sharded in another way than the layer wants. */
    wf_parallel_choice choose;
    void *user;
} walk;

/* --- inputs ---------------------------------------------------------------------------------------------------------
 */

/* Whole along the dimension that this axis shards. Local: what the redistribution to this layout moves is decided by
 * wf_redistribute. */
static void join(wf_layout *layout, int axis)
{
    const int d = layout->dim[axis];
    layout->placement[axis] = WF_REPLICATED;
    layout->dim[axis] = 0;
    layout->bounds[axis] = NULL;
    layout->box.lo[d] = 0;
    layout->box.hi[d] = layout->global.dim[d];
}

/* Sharded along all spatial axes of the mesh, in balanced blocks where it is not sharded yet. */
static wf_var *shard_pixels(const wf_layer *layer, wf_var *x)
{
    const wf_mesh *mesh = layer->prepare_mesh;
    wf_layout layout = x->value->layout, usual;
    /* A local x is the same on all ranks (a program that has not sharded its input), or laid out on another mesh. */
    if (!layout.known || layout.mesh != mesh) {
        WF_TRY_NULL(wf_mesh_layout_activation_recent(mesh, layout.known ? layout.global : x->value->shape, &usual));
        if (usual.placement[WF_AXIS_CHANNEL] == WF_SHARDED)
            join(&usual, WF_AXIS_CHANNEL);
        return wf_redistribute(x, usual);
    }
    WF_TRY_NULL(wf_mesh_layout_activation_recent(mesh, layout.global, &usual));
    unsigned moved = 0;
    for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++) {
        if (layout.placement[a] == WF_SHARDED || usual.placement[a] != WF_SHARDED)
            continue;
        const int d = usual.dim[a];
        wf_layout_shard(mesh, &layout, (wf_axis)a, d, wf_mesh_blocks(mesh, (wf_axis)a, layout.global.dim[d]));
        moved |= 1u << a;
    }
    return moved ? wf_redistribute_along(x, layout, moved) : x;
}

/* Whole but for its first `kept` dimensions: a layer behind a flatten needs whole samples, one of pixels whole
 * images. */
static wf_var *joined(wf_var *x, int kept)
{
    wf_layout layout = x->value->layout;
    unsigned moved = 0;
    for (int a = 0; layout.known && a < WF_AXES; a++)
        if (layout.placement[a] == WF_SHARDED && layout.dim[a] >= kept) {
            join(&layout, a);
            moved |= 1u << a;
        }
    return moved ? wf_redistribute_along(x, layout, moved) : x;
}

static wf_var *whole_samples(const wf_layer *layer, wf_var *x)
{
    return joined(x, 1);
}

static wf_var *whole_pixels(const wf_layer *layer, wf_var *x)
{
    return joined(x, 2);
}

static wf_var *whole_channels(const wf_layer *layer, wf_var *x)
{
    wf_layout layout = x->value->layout;
    if (!layout.known || layout.placement[WF_AXIS_CHANNEL] != WF_SHARDED)
        return x;
    join(&layout, WF_AXIS_CHANNEL);
    return wf_redistribute(x, layout);
}

static wf_var *all_channels(const wf_layer *layer, wf_var *x)
{
    x = whole_channels(layer, x);
    return x ? shard_pixels(layer, x) : NULL;
}

/* The conversion belongs to the layer: a model written for one process needs no line between its layers. */
static void prepare_with(wf_layer *layer, const wf_mesh *mesh, wf_var *(*prepare)(const wf_layer *, wf_var *))
{
    layer->prepare = prepare;
    layer->prepare_mesh = mesh;
    layer->comm = wf_mesh_world(mesh);
}

/* --- one layer becomes another --------------------------------------------------------------------------------------
 */

/* The parallel parameter takes its slice of the value that the serial one has, if that was drawn or loaded already. */
static wf_status take_value(wf_param *to, wf_param *from)
{
    to->trainable = from->trainable;
    if (!from->value)
        return WF_OK;
    wf_tensor *value = wf_param_value(to), *view = wf_tensor_view(from->value, to->box);
    const wf_status status = value && view ? wf_tensor_assign(value, view) : wf_error_code();
    wf_tensor_free(view);
    return status;
}

/* By name, since kinds need not list their parameters in one order. */
static wf_status take_values(wf_layer *layer, wf_layer *other)
{
    for (int i = 0; i < other->n_params; i++) {
        other->params[i]->owner = layer;
        for (int j = 0; j < layer->n_params; j++)
            if (strcmp(layer->params[j]->name, other->params[i]->name) == 0)
                WF_TRY(take_value(other->params[i], layer->params[j]));
    }
    return WF_OK;
}

/* The layer gets the interior of `other`, which is freed with the layer's former one. */
static wf_status become(wf_layer *layer, wf_layer *other)
{
    if (!other)
        return wf_error_code();
    wf_status status = WF_OK;
    for (int i = 0; i < layer->n_params && status == WF_OK; i++)
        if (layer->params[i]->tied || layer->params[i]->tied_next)
            status = WF_RAISE(WF_ERR_STATE, "%s is tied; wf_layer_tie after wf_parallelize",
                              wf_param_path(layer->params[i]));
    if (status == WF_OK)
        status = take_values(layer, other);
    /* Nothing that can fail comes after this line. */
    if (status == WF_OK) {
        /* The object stays, since the model and the optimizer point to it: only its interior is exchanged. */
        const wf_layer former = *layer;
        layer->kind = other->kind;
        layer->comm = other->comm;
        layer->least = other->least;
        layer->most = other->most;
        memcpy(layer->options, other->options, sizeof layer->options);
        layer->state = other->state;
        layer->params = other->params;
        layer->n_params = other->n_params;
        other->kind = former.kind;
        other->state = former.state;
        other->params = former.params;
        other->n_params = former.n_params;
        /* Lists of parameters that contain the former ones are stale. */
        for (wf_layer *above = layer; above; above = above->parent) {
            free(above->all);
            above->all = NULL;
        }
    }
    wf_layer_free(other);
    return status;
}

/* --- kinds of layers ------------------------------------------------------------------------------------------------
 */

typedef wf_layer *(*conv_maker)(const wf_mesh *mesh, wf_conv_opts opts);

/* Tables by transposed and dimensions: the constructors of users are the only ones. */
static wf_status swap_conv(wf_layer *layer, walk *w)
{
    static const conv_maker channel[2] = {wf_channel_conv, wf_channel_conv_transpose};
    static const conv_maker spatial[2] = {wf_spatial_conv, wf_spatial_conv_transpose};
    static const conv_maker both[2] = {wf_mesh_conv, wf_mesh_conv_transpose};
    const wf_conv_state *s = layer->state;
    const wf_conv_opts opts = s->opts;
    const bool by_channels = w->how & WF_PARALLEL_CHANNEL, by_pixels = w->how & WF_PARALLEL_SPATIAL;
    conv_maker make = spatial[s->transposed];
    if (by_channels)
        make = (by_pixels ? both : channel)[s->transposed];
    if (!by_channels && !by_pixels)
        return WF_OK;
    WF_TRY(become(layer, make(w->mesh, opts)));
    if (by_channels)
        w->sharded = !opts.replicate;
    if (by_pixels)
        prepare_with(layer, w->mesh, shard_pixels);
    return WF_OK;
}

static wf_status swap_linear(wf_layer *layer, walk *w)
{
    const wf_linear_opts opts = wf_linear_options(layer);
    if (w->how & WF_PARALLEL_CHANNEL) {
        WF_TRY(become(layer, wf_channel_linear(w->mesh, opts)));
        w->sharded = !opts.replicate;
    }
    if (w->how & WF_PARALLEL_SPATIAL)
        prepare_with(layer, w->mesh, w->how & WF_PARALLEL_CHANNEL ? whole_pixels : whole_samples);
    return WF_OK;
}

/* An embedding's output has all channels on every rank. */
static wf_status swap_embedding(wf_layer *layer, walk *w)
{
    w->sharded = false;
    return w->how & WF_PARALLEL_CHANNEL ? become(layer, wf_channel_embedding(w->mesh, wf_embedding_options(layer)))
                                        : WF_OK;
}

static wf_layer *spatial_pool(const wf_layer *layer, const wf_mesh *mesh)
{
    const wf_pool_state *s = layer->state;
    const bool average = s->geom.kind != WF_POOL_MAX;
    if (s->geom.adaptive)
        return wf_spatial_adaptive_max_pool(mesh, s->size);
    if (s->geom.nd == 0)
        return average ? wf_spatial_global_avg_pool(mesh) : wf_spatial_global_max_pool(mesh);
    return average ? wf_spatial_avg_pool(mesh, s->opts) : wf_spatial_max_pool(mesh, s->opts);
}

static wf_layer *spatial_upsample(const wf_layer *layer, const wf_mesh *mesh)
{
    return wf_spatial_upsample(mesh, ((const wf_upsample_state *)layer->state)->opts);
}

/* The layer attends to pixels of an image near each other. */
static bool attends_near(const wf_layer *layer)
{
    const wf_part_kind kind = wf_part_of(layer).kind;
    return kind == WF_PART_WINDOWS || kind == WF_PART_NEIGHBOURHOOD;
}

/* The layer makes images of images without a parameter. */
static bool is_image(const wf_layer *layer)
{
    return layer->kind == &wf_pool_serial || layer->kind == &wf_upsample_serial || layer->kind == &wf_resize_serial;
}

static wf_status swap_image(wf_layer *layer, const walk *w)
{
    if (!(w->how & WF_PARALLEL_SPATIAL))
        return WF_OK;
    wf_layer *other = NULL;
    if (layer->kind == &wf_pool_serial)
        other = spatial_pool(layer, w->mesh);
    else if (layer->kind == &wf_upsample_serial)
        other = spatial_upsample(layer, w->mesh);
    else
        other = wf_spatial_resize_of(layer, w->mesh);
    WF_TRY(become(layer, other));
    prepare_with(layer, w->mesh, shard_pixels);
    return WF_OK;
}

/* Attention in windows and neighbourhoods takes images that are cut, and projects whole channels. Its heads stay whole:
 * the mesh of its options cuts them. */
static void place_attention(wf_layer *layer, walk *w)
{
    if (w->how & WF_PARALLEL_SPATIAL)
        prepare_with(layer, w->mesh, all_channels);
    else if (w->choose)
        prepare_with(layer, w->mesh, whole_samples);
    else if (w->how & WF_PARALLEL_CHANNEL)
        prepare_with(layer, w->mesh, whole_channels);
    else
        return;
    w->sharded = false;
}

static wf_status swap_norm(wf_layer *layer, const walk *w)
{
    wf_norm_merge merge;
    /* The program has merged its statistics itself. */
    if (wf_norm_is_merged(layer))
        return WF_OK;
    if (w->sharded)
        WF_TRY(become(layer, wf_channel_batchnorm(w->mesh, wf_norm_options(layer))));
    if (!(w->how & (WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN)))
        return WF_OK;
    WF_TRY(wf_norm_merge_mesh("wf_parallelize", w->mesh, w->how & WF_PARALLEL_SYNC_BN, &merge));
    wf_norm_set_merge(layer, merge);
    return WF_OK;
}

/* Forms for which the mesh has no axis are left out, so that a layer does not change its kind for nothing. */
static unsigned possible(const wf_mesh *mesh, unsigned how)
{
    const bool pixels = wf_mesh_size(mesh, WF_AXIS_DEPTH) > 1 || wf_mesh_size(mesh, WF_AXIS_HEIGHT) > 1 ||
                        wf_mesh_size(mesh, WF_AXIS_WIDTH) > 1;
    if (wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1)
        how &= ~(unsigned)WF_PARALLEL_CHANNEL;
    return pixels ? how : how & ~(unsigned)WF_PARALLEL_SPATIAL;
}

static unsigned choice_of(const walk *w, const wf_layer *layer)
{
    return possible(w->mesh, w->choose(w->user, layer));
}

/* If each layer has its own form, one that is split by pixels, channels or neither gets what it needs. */
static void accept_any(wf_layer *layer, walk *w)
{
    const bool by_channels = w->how & WF_PARALLEL_CHANNEL, by_pixels = w->how & WF_PARALLEL_SPATIAL;
    const bool multiplies = layer->kind->computes;
    if (by_pixels && multiplies && !by_channels && layer->prepare == shard_pixels)
        prepare_with(layer, w->mesh, all_channels);
    else if (!by_pixels)
        prepare_with(layer, w->mesh, multiplies && !by_channels ? whole_samples : whole_pixels);
    else if (wf_norm_is(layer))
        prepare_with(layer, w->mesh, shard_pixels);
    if (multiplies && !by_channels)
        w->sharded = false;
}

/* A layer of any other kind stays as it is, and so does wf_lambda of another function: what it does to each element is
 * right on parts too, and whatever needs whole samples or channels returns an error when it is applied. One layer, then
 * its children, which may be of any kind. */
static wf_status swap(wf_layer *layer, walk *w)
{
    const bool table = layer->kind == &wf_embedding_serial; /* the table's new form is another kind */
    const bool near = attends_near(layer);
    const bool known = layer->kind == &wf_conv_serial || layer->kind == &wf_linear_serial || is_image(layer) ||
                       wf_norm_is(layer) || near;
    /* The choice is asked only about layers that have several forms. */
    if (w->choose && (known || table))
        w->how = choice_of(w, layer);
    else if (w->choose)
        w->how = WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL; /* what comes to wf_flatten may be split in any way */
    if (layer->kind == &wf_conv_serial)
        WF_TRY(swap_conv(layer, w));
    else if (layer->kind == &wf_linear_serial)
        WF_TRY(swap_linear(layer, w));
    else if (table)
        WF_TRY(swap_embedding(layer, w));
    else if (is_image(layer))
        WF_TRY(swap_image(layer, w));
    else if (near)
        place_attention(layer, w);
    else if (wf_norm_is(layer))
        WF_TRY(swap_norm(layer, w));
    else if (wf_lambda_is(layer, wf_flatten) && (w->how & (WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL))) {
        prepare_with(layer, w->mesh, whole_samples);
        w->sharded = false;
    } else if (wf_group_norm_is(layer) && (w->how & (WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL)))
        wf_group_norm_merged(layer, wf_group_merge_mesh(w->mesh));
    if (w->choose && known && !near)
        accept_any(layer, w);
    for (int i = 0; i < layer->n_children; i++)
        WF_TRY(swap(layer->children[i], w));
    return WF_OK;
}

wf_status wf_parallelize(wf_layer *model, const wf_mesh *mesh, unsigned how)
{
    WF_NEED(model);
    WF_NEED(mesh);
    WF_CHECK(model->ctx == wf_comm_ctx(wf_mesh_world(mesh)), WF_ERR_ARGUMENT,
             "wf_parallelize: the model belongs to another context than the mesh; make it with wf_comm_ctx");
    /* Nothing to split: the serial layers stay, and so do their names in errors. */
    if (wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1)
        how &= ~(unsigned)WF_PARALLEL_CHANNEL;
    walk w = {.mesh = mesh, .how = how};
    return swap(model, &w);
}

wf_status wf_parallelize_by(wf_layer *model, const wf_mesh *mesh, wf_parallel_choice choose, void *user)
{
    WF_NEED(model);
    WF_NEED(mesh);
    WF_CHECK(model->ctx == wf_comm_ctx(wf_mesh_world(mesh)), WF_ERR_ARGUMENT,
             "wf_parallelize_by: the model belongs to another context than the mesh; make it with wf_comm_ctx");
    walk w = {.mesh = mesh, .choose = choose, .user = user};
    /* Nothing is split: only statistics may be merged over the samples. */
    if (possible(mesh, WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL) == 0)
        w = (walk){.mesh = mesh, .how = choose(user, model) & WF_PARALLEL_SYNC_BN};
    return swap(model, &w);
}

/* --- normalisation alone --------------------------------------------------------------------------------------------
 */

/* Goes into layers of all kinds, as blocks hide their norms. */
static wf_status sync_norms(wf_layer *layer, wf_comm *comm)
{
    wf_norm_merge merge;
    if (wf_norm_is(layer) && !wf_norm_is_merged(layer)) {
        WF_TRY(wf_norm_merge_over("wf_to_sync_batchnorm", comm, &merge));
        wf_norm_set_merge(layer, merge);
    }
    for (int i = 0; i < layer->n_children; i++)
        WF_TRY(sync_norms(layer->children[i], comm));
    return WF_OK;
}

wf_status wf_to_sync_batchnorm(wf_layer *model, wf_comm *comm)
{
    WF_NEED(model);
    WF_NEED(comm);
    WF_CHECK(
        model->ctx == wf_comm_ctx(comm), WF_ERR_ARGUMENT,
        "wf_to_sync_batchnorm: the model belongs to another context than the communicator; make it with wf_comm_ctx");
    return sync_norms(model, comm);
}
