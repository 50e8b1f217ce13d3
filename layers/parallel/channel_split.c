/* Decides which rank computes with which channels and in which form, from the options and sizes alone: every rank
 * comes to the same result without a message. */
#include "layers/parallel/parallel_impl.h"

#include <stdlib.h>

/* Rank r = c * filters + f: inputs are cut in `inputs` blocks, outputs in `filters`. */
typedef struct grid {
    int filters, inputs;
} grid;

/* Ascending parts without a gap; parts may be empty. */
static bool is_partition(const wf_channel_side *side, int size)
{
    int64_t at = 0;
    for (int r = 0; r < size; r++) {
        if (side->part[r].lo != at || side->part[r].hi < at)
            return false;
        at = side->part[r].hi;
    }
    return at == side->channels;
}

/* The blocks of `count` that the balanced blocks of all ranks make up, so that these nest in them. */
static wf_range joined_block(int64_t n, int size, int count, int which)
{
    wf_range range;
    int64_t unused;
    wf_block(n, size, (int64_t)which * (size / count), &range.lo, &unused);
    wf_block(n, size, (int64_t)(which + 1) * (size / count) - 1, &unused, &range.hi);
    return range;
}

/* The words of the table in layers/channel.h that depend on the grid, without the common factor: gathers of inputs
 * among ranks with different filters, sums of outputs among ranks with different inputs. */
static double words(const wf_channel_opts *o, grid g)
{
    return (g.filters - 1) * (double)o->in + (g.inputs - 1) * (double)o->out * o->growth;
}

static grid both_grid(const wf_channel_opts *o, int size)
{
    grid best = {0, 0};
    /* All divisors are tried: there are few, and this happens once per layer. */
    for (int filters = 2; filters < size; filters++) {
        const grid g = {filters, size / filters};
        if (size % filters == 0 && filters <= o->out && g.inputs <= o->in &&
            (best.filters == 0 || words(o, g) < words(o, best)))
            best = g;
    }
    return best;
}

static grid choose_grid(const wf_channel_opts *o, int size)
{
    const grid filter = {size, 1}, channel = {1, size}, both = both_grid(o, size);
    if (o->form == WF_FORM_FILTER || (o->form == WF_FORM_BOTH && both.filters == 0 && o->in < size))
        return filter;
    if (o->form == WF_FORM_CHANNEL)
        return channel;
    if (o->form == WF_FORM_BOTH && both.filters > 0)
        return both;
    /* Too few channels on one side leave the form that cuts the other side. */
    if (o->in < size || o->out < size)
        return o->in < size ? filter : channel;
    /* AUTO takes the form that moves fewer numbers; WF_FORM_BOTH is taken only when it is asked for. */
    return words(o, channel) < words(o, filter) ? channel : filter;
}

static wf_status check_form(const char *name, const wf_channel_opts *o)
{
    const wf_form own = o->by_input ? WF_FORM_CHANNEL : WF_FORM_FILTER;
    WF_CHECK(o->form >= WF_FORM_AUTO && o->form <= WF_FORM_BOTH, WF_ERR_ARGUMENT, "%s: form is %d, which is none", name,
             (int)o->form);
    WF_CHECK(o->groups == 1 || o->form == WF_FORM_AUTO || o->form == own, WF_ERR_UNSUPPORTED,
             "%s: %lld groups are not split in this form; use %s or WF_FORM_AUTO", name, (long long)o->groups,
             o->by_input ? "WF_FORM_CHANNEL" : "WF_FORM_FILTER");
    return WF_OK;
}

/* A rank has a block of dimension 0 of the weights; along dimension 1 it has the channels of the groups that its
 * block touches. */
static void split_groups(wf_channel_split *s, int size)
{
    wf_channel_side *outer = s->by_input ? &s->in : &s->out, *inner = s->by_input ? &s->out : &s->in;
    const int64_t rows = outer->channels / s->groups, columns = inner->channels / s->groups;
    for (int r = 0; r < size; r++) {
        wf_block(outer->channels, size, r, &outer->part[r].lo, &outer->part[r].hi);
        /* Rounded outwards: a group of which a row is here needs all of its columns. */
        inner->part[r].lo = outer->part[r].lo / rows * columns;
        inner->part[r].hi = (outer->part[r].hi + rows - 1) / rows * columns;
    }
}

static wf_status split_grid(wf_channel_split *s, const wf_channel_opts *o, int size)
{
    const grid g = choose_grid(o, size);
    WF_CHECK(o->out >= g.filters, WF_ERR_ARGUMENT,
             "%s: %lld outputs are fewer than the %d ranks that share them; use a smaller channel axis or the %s",
             s->name, (long long)o->out, g.filters, o->in >= size ? "channel form" : "serial layer");
    WF_CHECK(o->in >= g.inputs, WF_ERR_ARGUMENT,
             "%s: %lld inputs are fewer than the %d ranks that share them; use a smaller channel axis or the %s",
             s->name, (long long)o->in, g.inputs, o->out >= size ? "filter form" : "serial layer");
    for (int r = 0; r < size; r++) {
        /* Neighbouring ranks differ in their outputs first, so the ranks that share inputs are neighbours. */
        s->in.part[r] = joined_block(o->in, size, g.inputs, r / g.filters);
        s->out.part[r] = joined_block(o->out, size, g.filters, r % g.filters);
    }
    return WF_OK;
}

/* The bounds of consecutive parts. */
static const int64_t *part_cuts(const wf_mesh *mesh, const wf_channel_side *side, int size)
{
    int64_t *bounds = wf_calloc(wf_comm_ctx(wf_mesh_world(mesh)), (size_t)size + 1, sizeof *bounds);
    if (!bounds)
        return wf_error_null();
    for (int r = 0; r < size; r++)
        bounds[r + 1] = side->part[r].hi;
    const int64_t *own = wf_mesh_bounds(mesh, WF_AXIS_CHANNEL, bounds);
    free(bounds);
    return own;
}

static wf_status split_all(wf_channel_split *s, const wf_mesh *mesh, const wf_channel_opts *o, int size)
{
    const int64_t outer = o->by_input ? o->in : o->out;
    /* Groups are cut along one side only, which must have a channel for each rank. */
    if (o->groups > 1)
        WF_CHECK(outer >= size, WF_ERR_ARGUMENT,
                 "%s: %lld channels are fewer than the %d ranks that share them; use a smaller channel axis or the "
                 "serial layer",
                 s->name, (long long)outer, size);
    if (o->groups > 1)
        split_groups(s, size);
    else
        WF_TRY(split_grid(s, o, size));
    s->in.partition = is_partition(&s->in, size);
    s->out.partition = is_partition(&s->out, size);
    /* Bounds of a partition are kept by the mesh, so that layouts can point to them. */
    if (s->out.partition) {
        s->part_bounds = part_cuts(mesh, &s->out, size);
        WF_NEED(s->part_bounds);
    }
    if (o->replicate)
        return WF_OK;
    /* If outputs are parts of a sum, the sum is left in balanced blocks, so it is one reduce-scatter. */
    s->bounds = s->out.partition ? s->part_bounds
                                 : wf_mesh_bounds(mesh, WF_AXIS_CHANNEL, wf_mesh_blocks(mesh, WF_AXIS_CHANNEL, o->out));
    WF_NEED(s->bounds);
    return WF_OK;
}

/* One rank computes with all channels: a group of one, whatever the mesh is. */
static wf_status split_whole(wf_channel_split *s, wf_ctx *ctx)
{
    s->in.part = wf_calloc(ctx, 1, sizeof(wf_range));
    s->out.part = wf_calloc(ctx, 1, sizeof(wf_range));
    if (!s->in.part || !s->out.part) {
        wf_channel_split_free(s);
        return wf_error_take("a list of parts", __FILE__, __LINE__);
    }
    s->in.part->hi = s->in.channels;
    s->out.part->hi = s->out.channels;
    s->in.partition = s->out.partition = true;
    return WF_OK;
}

wf_status wf_channel_split_init(wf_channel_split *s, const char *name, const wf_mesh *mesh, const wf_channel_opts *o)
{
    const int size = o->whole ? 1 : wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    const int rank = o->whole ? 0 : wf_mesh_rank(mesh, WF_AXIS_CHANNEL);
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    *s = (wf_channel_split){.name = name,
                            .in = {.mesh = mesh, .size = size, .rank = rank, .channels = o->in},
                            .out = {.mesh = mesh, .size = size, .rank = rank, .channels = o->out},
                            .groups = o->groups,
                            .by_input = o->by_input,
                            .rank = rank};
    if (o->whole)
        return split_whole(s, ctx);
    WF_TRY(check_form(name, o));
    s->in.part = wf_calloc(ctx, (size_t)size, sizeof(wf_range));
    s->out.part = wf_calloc(ctx, (size_t)size, sizeof(wf_range));
    const wf_status status =
        s->in.part && s->out.part ? split_all(s, mesh, o, size) : wf_error_take("a list of parts", __FILE__, __LINE__);
    if (status != WF_OK)
        wf_channel_split_free(s);
    return status;
}

void wf_channel_split_free(wf_channel_split *s)
{
    free(s->in.part);
    free(s->out.part);
    s->in.part = s->out.part = NULL;
}

wf_range wf_channel_inputs(const wf_channel_split *s)
{
    return s->in.part[s->rank];
}

wf_range wf_channel_outputs(const wf_channel_split *s)
{
    return s->out.part[s->rank];
}

/* The bias is added by the rank that has the finished output: of its part, of its shard of the sum, or, replicated, of
 * everything. */
wf_range wf_channel_biases(const wf_channel_split *s)
{
    if (s->out.partition)
        return wf_channel_outputs(s);
    return s->bounds ? (wf_range){s->bounds[s->rank], s->bounds[s->rank + 1]} : (wf_range){0, s->out.channels};
}

bool wf_channel_is_split(const wf_channel_split *s)
{
    return s->in.size > 1;
}

/* The global shape stays with the parameter: initial values, checkpoints and the optimizer's names are those of the
 * serial one. */
void wf_channel_shard_param(wf_param *param, wf_box box, bool sharded)
{
    if (!param)
        return;
    param->global = param->shape;
    param->box = box;
    param->shape = wf_box_shape(box);
    param->shard_axes = sharded ? WF_AXIS_BIT(WF_AXIS_CHANNEL) : 0;
}

void wf_channel_shard_bias(wf_param *param, const wf_channel_split *s)
{
    const wf_range own = wf_channel_biases(s);
    const wf_box box = {.rank = 1, .lo = {own.lo}, .hi = {own.hi}};
    wf_channel_shard_param(param, box, wf_channel_is_split(s) && (s->out.partition || s->bounds));
}
