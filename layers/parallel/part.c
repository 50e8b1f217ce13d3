/* Describes a layer to a planner of costs (optim/planner), and makes a serial layer of the size of one rank's part,
 * which the planner measures. */
#include "layers/parallelize_author.h"

#include "layers/serial/serial_impl.h"

static void add_boundary(wf_part_info *info, const wf_boundary *boundary)
{
    info->folds = wf_boundary_given(boundary, info->nd);
    for (int d = 0; d < info->nd; d++) {
        info->round_lo[d] = wf_boundary_edge(boundary, 2 + d, false) == WF_EDGE_CIRCULAR;
        info->round_hi[d] = wf_boundary_edge(boundary, 2 + d, true) == WF_EDGE_CIRCULAR;
    }
}

/* The planner works with numbers, not with layers: what it must know of a kind is copied into one struct. */
static wf_part_info conv_info(const wf_layer *layer)
{
    const wf_conv_state *s = layer->state;
    wf_part_info info = {.kind = WF_PART_CONV,
                         .in = s->in,
                         .out = s->out,
                         .groups = s->opts.groups ? s->opts.groups : 1,
                         .nd = s->geom.nd,
                         .transposed = s->transposed,
                         .replicate = s->opts.replicate,
                         .form = s->opts.form};
    for (int d = 0; d < s->geom.nd; d++)
        info.window[d] = wf_conv_window(&s->geom, d);
    add_boundary(&info, &s->opts.boundary);
    return info;
}

static wf_part_info pool_info(const wf_layer *layer)
{
    const wf_pool_state *s = layer->state;
    if (s->geom.adaptive)
        return (wf_part_info){.kind = WF_PART_WINDOW};
    wf_part_info info = {.kind = WF_PART_WINDOW, .nd = s->geom.nd};
    if (s->geom.nd == 0)
        info.kind = s->geom.kind == WF_POOL_MAX ? WF_PART_GLOBAL_MAX : WF_PART_GLOBAL_MEAN;
    for (int d = 0; d < s->geom.nd; d++)
        info.window[d] = wf_pool_window(&s->geom, d);
    add_boundary(&info, &s->opts.boundary);
    return info;
}

/* Kinds that are not known here may describe themselves; else the planner leaves them whole. */
wf_part_info wf_part_of(const wf_layer *layer)
{
    if (layer->kind == &wf_conv_serial)
        return conv_info(layer);
    if (layer->kind == &wf_linear_serial) {
        const wf_linear_opts o = wf_linear_options(layer);
        return (wf_part_info){
            .kind = WF_PART_LINEAR, .in = o.in, .out = o.out, .groups = 1, .replicate = o.replicate, .form = o.form};
    }
    if (wf_norm_is(layer)) {
        const int64_t channels = wf_norm_options(layer).channels;
        return (wf_part_info){.kind = WF_PART_NORM, .in = channels, .out = channels, .groups = 1};
    }
    if (layer->kind == &wf_pool_serial)
        return pool_info(layer);
    if (layer->kind == &wf_upsample_serial || layer->kind == &wf_resize_serial)
        return (wf_part_info){.kind = WF_PART_WINDOW};
    wf_part_info info = {0};
    if (layer->kind->describe)
        layer->kind->describe(layer, &info);
    return info;
}

/* The largest part that a rank can have, as the slowest rank counts. */
static int64_t share(int64_t n, int64_t ranks)
{
    return (n + ranks - 1) / ranks;
}

static wf_layer *conv_part(const wf_layer *layer, int64_t in, int64_t out)
{
    const wf_conv_state *s = layer->state;
    wf_conv_opts o = s->opts;
    /* Groups are split as wholes; both numbers of channels fall with them. */
    if (o.groups > 1) {
        const int64_t ranks = in > out ? in : out, groups = share(o.groups, ranks);
        o.in = o.in / o.groups * groups;
        o.out = o.out / o.groups * groups;
        o.groups = groups;
    } else {
        o.in = share(o.in, in);
        o.out = share(o.out, out);
    }
    return s->transposed ? wf_conv_transpose(layer->ctx, o) : wf_conv(layer->ctx, o);
}

/* The layer has no values that anyone reads: it is run with random ones for its time. */
wf_layer *wf_part_new(const wf_layer *layer, int64_t in, int64_t out)
{
    WF_NEED_NULL(layer);
    if (layer->kind == &wf_conv_serial)
        return conv_part(layer, in, out);
    if (layer->kind == &wf_linear_serial) {
        wf_linear_opts o = wf_linear_options(layer);
        o.in = share(o.in, in);
        o.out = share(o.out, out);
        return wf_linear(layer->ctx, o);
    }
    if (wf_norm_is(layer)) {
        wf_batchnorm_opts o = wf_norm_options(layer);
        o.channels = share(o.channels, out);
        return wf_batchnorm(layer->ctx, o);
    }
    return NULL;
}
