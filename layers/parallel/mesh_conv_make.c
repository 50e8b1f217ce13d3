/* Constructors of the parallel convolutions: by channels, by pixels, by both. They take the options of the serial
 * layers and check them before anything is sent. */
#include "layers/channel.h"
#include "layers/mesh_conv.h"
#include "layers/parallel/parallel_impl.h"
#include "layers/spatial.h"

static void free_state(wf_layer *layer)
{
    wf_mesh_conv_state *s = layer->state;
    wf_channel_split_free(&s->split);
}

/* One way to split the work: a kind for each, so that a layer's kind tells its form, and names for errors. */
typedef struct way {
    wf_layer_kind kind;
    bool by_channels, by_pixels;
    const char *name[2][3];
} way;

#define NAMES(form)                                                                                                    \
    {                                                                                                                  \
        {form "_conv1d", form "_conv2d", form "_conv3d"},                                                              \
        {                                                                                                              \
            form "_conv_transpose1d", form "_conv_transpose2d", form "_conv_transpose3d"                               \
        }                                                                                                              \
    }
/* Three ways, one implementation: mesh_conv.c looks at the flags, not at the kind. */
static const way channel = {
    {.name = "channel_conv", .forward = wf_mesh_conv_forward, .free = free_state, .computes = true},
    true,
    false,
    NAMES("channel")};
static const way spatial = {
    {.name = "spatial_conv", .forward = wf_mesh_conv_forward, .free = free_state, .computes = true},
    false,
    true,
    NAMES("spatial")};
static const way both = {{.name = "mesh_conv", .forward = wf_mesh_conv_forward, .free = free_state, .computes = true},
                         true,
                         true,
                         NAMES("mesh")};

/* This rank's rows and columns of the filter, before it has a value: initial values are slices of the serial one. */
static wf_box filter_box(const wf_mesh_conv_state *s)
{
    const wf_channel_split *split = &s->split;
    const wf_range in = wf_channel_inputs(split), out = wf_channel_outputs(split);
    const wf_range rows = split->by_input ? in : out, columns = split->by_input ? out : in;
    wf_box box = wf_box_of_shape(s->conv.w->shape);
    box.lo[0] = rows.lo;
    box.hi[0] = rows.hi;
    /* With groups the second dimension is the inputs of one group, of which a rank holds all. */
    if (split->groups == 1) {
        box.lo[1] = columns.lo;
        box.hi[1] = columns.hi;
    }
    return box;
}

/* A split by pixels alone has all channels on every rank (`whole`), so the same code serves it. */
static wf_channel_opts split_opts(const way *how, const wf_conv_opts *o, const wf_conv_state *s)
{
    wf_channel_opts split = {.in = o->in,
                             .out = o->out,
                             .groups = s->geom.groups,
                             .growth = 1,
                             .by_input = s->transposed,
                             .replicate = o->replicate,
                             .whole = !how->by_channels,
                             .form = o->form};
    for (int d = 0; d < s->geom.nd; d++)
        /* Outputs per input pixel: what a sum of outputs costs against a gather of inputs. */
        split.growth *= s->transposed ? (double)s->geom.stride[d] : 1 / (double)s->geom.stride[d];
    return split;
}

static void shard_params(wf_mesh_conv_state *s)
{
    /* Each rank sees its own pixels only, so gradients of the filter are summed over the spatial axes too. */
    const uint32_t pixels = WF_AXIS_BIT(WF_AXIS_DEPTH) | WF_AXIS_BIT(WF_AXIS_HEIGHT) | WF_AXIS_BIT(WF_AXIS_WIDTH);
    wf_channel_shard_param(s->conv.w, filter_box(s), wf_channel_is_split(&s->split));
    wf_channel_shard_bias(s->conv.b, &s->split);
    if (s->by_pixels)
        s->conv.w->axes |= pixels;
    if (s->by_pixels && s->conv.b)
        s->conv.b->axes |= pixels;
}

/* All checks are local and see the same options on all ranks; nothing is sent before forward. */
static wf_layer *make_conv(const way *how, const wf_mesh *mesh, wf_conv_opts o, bool transposed)
{
    wf_conv_state conv;
    wf_channel_split split;
    WF_TRY_NULL(wf_nd_check(how->kind.name, &o.nd));
    /* nd and the direction choose the name of errors. */
    const char *name = how->name[transposed][o.nd - 1];
    WF_TRY_NULL(wf_conv_state_make(name, o.nd, transposed, &o, &conv));
    const wf_channel_opts opts = split_opts(how, &o, &conv);
    WF_TRY_NULL(wf_channel_split_init(&split, name, mesh, &opts));
    wf_layer *layer =
        wf_conv_layer(wf_comm_ctx(wf_mesh_world(mesh)), &how->kind, &o, &conv, sizeof(wf_mesh_conv_state));
    if (!layer) {
        /* The split has memory of its own. */
        wf_channel_split_free(&split);
        return NULL;
    }
    wf_mesh_conv_state *s = layer->state;
    layer->comm = wf_mesh_world(mesh);
    s->mesh = mesh;
    s->by_channels = how->by_channels;
    s->by_pixels = how->by_pixels;
    s->split = split;
    s->local = wf_channel_local_of(&s->split);
    shard_params(s);
    return layer;
}

/* In a chain. */

/* A chain takes only layers whose halo it can send itself. */
bool wf_is_spatial_conv(const wf_layer *layer, const wf_mesh *mesh)
{
    return layer->kind == &spatial.kind && ((const wf_mesh_conv_state *)layer->state)->mesh == mesh;
}

int64_t wf_spatial_conv_channels(const wf_layer *layer)
{
    return ((const wf_mesh_conv_state *)layer->state)->conv.out;
}

/* Constructors. */

wf_layer *wf_channel_conv(const wf_mesh *mesh, wf_conv_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_conv(&channel, mesh, opts, false);
}

wf_layer *wf_channel_conv_transpose(const wf_mesh *mesh, wf_conv_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_conv(&channel, mesh, opts, true);
}

wf_layer *wf_spatial_conv(const wf_mesh *mesh, wf_conv_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_conv(&spatial, mesh, opts, false);
}

wf_layer *wf_spatial_conv_transpose(const wf_mesh *mesh, wf_conv_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_conv(&spatial, mesh, opts, true);
}

wf_layer *wf_mesh_conv(const wf_mesh *mesh, wf_conv_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_conv(&both, mesh, opts, false);
}

wf_layer *wf_mesh_conv_transpose(const wf_mesh *mesh, wf_conv_opts opts)
{
    WF_NEED_NULL(mesh);
    return make_conv(&both, mesh, opts, true);
}
