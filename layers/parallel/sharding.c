/* The sharding of outputs and the halo of inputs, from which elements of an input an output box reads (index maps).
 * Pure arithmetic on boxes of all ranks. */
#include "layers/parallel/parallel_impl.h"

/* The first output at or after the place of input `a`. Monotonic in `a`, so bounds of inputs become ascending bounds of
 * outputs. */
static int64_t place_of(const wf_index_map *index_map, int d, int64_t a)
{
    const wf_window w = index_map->window[d];
    const int64_t most = index_map->out[d];
    if (index_map->kind == WF_INDEX_MAP_WINDOW)
        return wf_window_anchored(w, (wf_range){a, a}, most, false, false).lo;
    if (index_map->kind == WF_INDEX_MAP_RESIZE)
        return wf_resize_place(&index_map->resize, d, a);
    /* Scaling moves a place by its factor; a transposed convolution by its stride, to the middle of what the input
     * writes. */
    int64_t at = a * index_map->resample.scale[d];
    if (index_map->kind == WF_INDEX_MAP_WINDOW_BACK)
        at = w.stride * a - w.pad_lo + (wf_window_extent(w) - 1) / 2;
    return at < 0 ? 0 : at > most ? most : at;
}

/* Cuts. */

static wf_status find_axis(const wf_layer *layer, const char *name, const wf_layout *layout, int d, int *axis)
{
    char text[WF_LAYOUT_TEXT];
    *axis = -1;
    for (int a = 0; a < WF_AXES; a++) {
        if (layout->placement[a] != WF_SHARDED || layout->dim[a] != 2 + d)
            continue;
        /* A cut by several axes would need a product of bounds, and a plan for it. */
        WF_CHECK(*axis < 0, WF_ERR_SHAPE, "%s \"%s\": its input is cut twice along dimension %d: %s", name,
                 wf_layer_path(layer), 2 + d, wf_layout_text(layout, text));
        WF_CHECK(
            layout->bounds[a], WF_ERR_SHAPE,
            "%s \"%s\": its input is %s, without the shard bounds of the other ranks; wf_shard and wf_redistribute "
            "give tensors that have them",
            name, wf_layer_path(layer), wf_layout_text(layout, text));
        *axis = a;
    }
    return WF_OK;
}

/* Channels are sharded over the channel axis, and it cuts nothing else. */
static wf_status check_channels(const wf_layer *layer, const char *name, const wf_layout *layout)
{
    char text[WF_LAYOUT_TEXT];
    for (int a = 0; a < WF_AXES; a++) {
        const bool sharded = layout->placement[a] == WF_SHARDED;
        WF_CHECK(
            !sharded || (a == WF_AXIS_CHANNEL) == (layout->dim[a] == 1), WF_ERR_SHAPE,
            "%s \"%s\": its input is %s, should be sharded along dimension 1 over channel and along others over other "
            "axes; wf_shard or wf_redistribute it",
            name, wf_layer_path(layer), wf_layout_text(layout, text));
        WF_CHECK(
            !sharded || layout->dim[a] != 1 || layout->bounds[a], WF_ERR_SHAPE,
            "%s \"%s\": its input is %s, without the shard bounds of the other ranks; wf_shard and wf_redistribute "
            "give tensors that have them",
            name, wf_layer_path(layer), wf_layout_text(layout, text));
    }
    return WF_OK;
}

/* Judges the layout only, which is equal on all ranks of the mesh but for the box: all return the same. */
wf_status wf_sharding_check(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                            wf_sharding_taken taken)
{
    const wf_layout *layout = &x->value->layout;
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(layout->known, WF_ERR_SHAPE,
             "%s \"%s\": its input is local, which says nothing about the other ranks; wf_shard it over the mesh", name,
             wf_layer_path(layer));
    WF_CHECK(layout->mesh == mesh, WF_ERR_SHAPE,
             "%s \"%s\": its input is %s of another mesh; wf_redistribute it to the layer's", name,
             wf_layer_path(layer), wf_layout_text(layout, text));
    WF_CHECK(!wf_layout_is_partial(layout), WF_ERR_SHAPE,
             "%s \"%s\": its input is %s, a sum that is still to be made, which neither it nor wf_redistribute takes",
             name, wf_layer_path(layer), wf_layout_text(layout, text));
    WF_CHECK(
        taken != WF_SHARDING_SUMS_WHOLE || !wf_layout_is_sharded(layout, 1), WF_ERR_SHAPE,
        "%s \"%s\": its input is %s, should have whole channels; wf_redistribute it, or use wf_mesh_conv2d and the "
        "like",
        name, wf_layer_path(layer), wf_layout_text(layout, text));
    if (taken == WF_SHARDING_SUMS)
        WF_TRY(check_channels(layer, name, layout));
    for (int a = 0; taken != WF_SHARDING_ANY && a < WF_AXES; a++)
        WF_CHECK(a == WF_AXIS_CHANNEL || a == WF_AXIS_STAGE || wf_mesh_size(mesh, (wf_axis)a) == 1 ||
                     layout->placement[a] == WF_SHARDED,
                 WF_ERR_SHAPE,
                 "%s \"%s\": its input is %s, should be sharded over %s too; wf_shard or wf_redistribute it", name,
                 wf_layer_path(layer), wf_layout_text(layout, text), wf_axis_name((wf_axis)a));
    return WF_OK;
}

wf_status wf_sharding_read(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                           wf_sharding *sharding)
{
    const wf_layout *layout = &x->value->layout;
    const wf_shape shape = x->value->shape, global = layout->known ? layout->global : shape;
    /* An input without a layout is taken to be whole on every rank. */
    *sharding = (wf_sharding){.mesh = mesh, .channels = global.dim[1], .box = wf_box_of_shape(shape)};
    /* The batch is not looked at: samples stay where they are. */
    for (int d = 1; d < shape.rank && layout->known; d++) {
        sharding->box.lo[d] = layout->box.lo[d];
        sharding->box.hi[d] = layout->box.hi[d];
    }
    for (int d = 0; d < shape.rank - 2 && d < WF_MAX_SPATIAL; d++) {
        WF_TRY(find_axis(layer, name, layout, d, &sharding->axis[d]));
        sharding->length[d] = global.dim[2 + d];
        if (sharding->axis[d] >= 0)
            sharding->bounds[d] = layout->bounds[sharding->axis[d]];
    }
    return WF_OK;
}

wf_status wf_sharding_of(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                         wf_sharding_taken taken, wf_sharding *sharding)
{
    WF_TRY(wf_sharding_check(layer, name, mesh, x, taken));
    return wf_sharding_read(layer, name, mesh, x, sharding);
}

/* Local: the mesh keeps equal bounds once, and every rank computes those of all places. */
static wf_status shard_output(wf_ctx *ctx, const wf_sharding *in, const wf_index_map *index_map, int d,
                              wf_sharding *out)
{
    const wf_axis axis = (wf_axis)in->axis[d];
    const int size = wf_mesh_size(in->mesh, axis), place = wf_mesh_rank(in->mesh, axis);
    const size_t bytes = (size_t)(size + 1) * sizeof(int64_t);
    void *memory;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    int64_t *bounds = memory;
    for (int r = 0; r <= size; r++)
        /* The bound of outputs is the place of the bound of inputs: every rank finds those of all ranks without a
         * message. */
        bounds[r] = r == 0 ? 0 : r == size ? index_map->out[d] : place_of(index_map, d, in->bounds[d][r]);
    out->bounds[d] = wf_mesh_bounds_recent(in->mesh, axis, bounds);
    wf_pool_give_host(ctx, memory, bytes);
    WF_NEED(out->bounds[d]);
    out->box.lo[2 + d] = out->bounds[d][place];
    out->box.hi[2 + d] = out->bounds[d][place + 1];
    return WF_OK;
}

wf_status wf_sharding_outputs(const wf_sharding *in, const wf_index_map *index_map, wf_sharding *out)
{
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(in->mesh));
    *out = *in;
    for (int d = 0; d < index_map->nd; d++) {
        out->length[d] = out->box.hi[2 + d] = index_map->out[d];
        if (in->axis[d] >= 0)
            WF_TRY(shard_output(ctx, in, index_map, d, out));
    }
    return WF_OK;
}

wf_layout wf_sharding_layout(const wf_sharding *sharding, const wf_layout *x)
{
    wf_layout layout = *x;
    if (!x->known)
        layout = (wf_layout){
            .known = true, .mesh = sharding->mesh, .global = wf_box_shape(sharding->box), .box = sharding->box};
    layout.global.dim[1] = sharding->channels;
    for (int d = 1; d < layout.global.rank; d++) {
        layout.box.lo[d] = sharding->box.lo[d];
        layout.box.hi[d] = sharding->box.hi[d];
    }
    for (int d = 0; d < layout.global.rank - 2; d++) {
        layout.global.dim[2 + d] = sharding->length[d];
        if (sharding->axis[d] >= 0)
            layout.bounds[sharding->axis[d]] = sharding->bounds[d];
    }
    return layout;
}

wf_tensor *wf_sharding_tensor(const wf_var *x, const wf_layout *layout)
{
    wf_tensor *y = wf_tensor_new_step(x->value->ctx, x->value->dtype, wf_box_shape(layout->box), WF_CHANNELS_LAST);
    if (y)
        y->layout = *layout;
    return y;
}

/* Halos. */

/* Ranges along one axis, of all places: need minus have is what travels. */
typedef struct halo_ranges {
    wf_range *have, *need; /* of every place along the axis that cuts a dimension */
    int size, place;
} halo_ranges;

/* Needs of the ranks may overlap and leave gaps; what they have does neither. */
static halo_ranges ranges_along(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want, int d,
                                wf_range *memory)
{
    const wf_axis axis = (wf_axis)have->axis[d];
    halo_ranges r = {.have = memory, .size = wf_mesh_size(have->mesh, axis), .place = wf_mesh_rank(have->mesh, axis)};
    r.need = r.have + r.size;
    /* A place without outputs needs nothing and may still have inputs, which others need. */
    for (int i = 0; i < r.size; i++) {
        r.have[i] = (wf_range){have->bounds[d][i], have->bounds[d][i + 1]};
        r.need[i] = wf_index_map_reads(index_map, d, (wf_range){want->bounds[d][i], want->bounds[d][i + 1]});
    }
    return r;
}

static int64_t overlap(wf_range a, wf_range b)
{
    const int64_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi;
    return hi > lo ? hi - lo : 0;
}

typedef struct halo_regions {
    wf_regions from, to;
    double pixels;
    wf_box need;
} halo_regions;

static void shard_halo_channels(const wf_sharding *have, const wf_halo_channels *channels, halo_regions *h)
{
    /* Each rank along the channel axis computes with its own range; all of them hold other ranges. */
    const wf_range need = channels->need[wf_mesh_rank(have->mesh, WF_AXIS_CHANNEL)];
    h->from.global.dim[1] = h->to.global.dim[1] = channels->all;
    h->from.dim[WF_AXIS_CHANNEL] = h->to.dim[WF_AXIS_CHANNEL] = 1;
    h->from.range[WF_AXIS_CHANNEL] = channels->have;
    h->to.range[WF_AXIS_CHANNEL] = channels->need;
    h->need.lo[1] = need.lo;
    h->need.hi[1] = need.hi;
}

static void find_regions(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                         const wf_halo_channels *channels, wf_range *memory, halo_regions *h)
{
    /* Counts elements of all ranks together, so that all come to the same number. */
    double needed = 1, kept = 1;
    h->from = (wf_regions){.global = wf_box_shape(have->box)};
    for (int a = 0; a < WF_AXES; a++)
        h->from.dim[a] = -1;
    h->to = h->from;
    h->need = have->box;
    if (channels)
        shard_halo_channels(have, channels, h);
    for (int d = 0; d < index_map->nd; d++) {
        h->from.global.dim[2 + d] = h->to.global.dim[2 + d] = have->length[d];
        if (have->axis[d] < 0) {
            /* The axis does not cut this dimension: every rank has all of it, and elements beyond the edges are made of
             * that. */
            const wf_range all = wf_index_map_reads(index_map, d, (wf_range){0, want->length[d]});
            h->need.lo[2 + d] = all.lo < 0 ? all.lo : 0;
            h->need.hi[2 + d] = all.hi > have->length[d] ? all.hi : have->length[d];
            needed *= (double)have->length[d];
            kept *= (double)have->length[d];
            continue;
        }
        const halo_ranges r = ranges_along(have, index_map, want, d, memory);
        memory += 2 * r.size;
        /* Dimensions 0 and 1 are samples and channels. */
        h->from.dim[have->axis[d]] = h->to.dim[have->axis[d]] = 2 + d;
        h->from.range[have->axis[d]] = r.have;
        h->to.range[have->axis[d]] = r.need;
        h->need.lo[2 + d] = r.need[r.place].lo;
        h->need.hi[2 + d] = r.need[r.place].hi;
        int64_t all = 0, own = 0;
        for (int i = 0; i < r.size; i++) {
            all += r.need[i].hi - r.need[i].lo;
            own += overlap(r.have[i], r.need[i]);
        }
        needed *= (double)all;
        kept *= (double)own;
    }
    /* The needs of all ranks are a product over dimensions, so their sum is the product of the sums. */
    h->pixels = needed - kept;
}

static size_t bytes_of_ranges(const wf_sharding *have, const wf_index_map *index_map)
{
    size_t bytes = 0;
    for (int d = 0; d < index_map->nd; d++)
        if (have->axis[d] >= 0)
            bytes += 2 * (size_t)wf_mesh_size(have->mesh, (wf_axis)have->axis[d]) * sizeof(wf_range);
    return bytes;
}

/* The volume of an exchange that is not made: a chain compares depths by it. */
wf_status wf_halo_volume(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                         double *volume)
{
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(have->mesh));
    const size_t bytes = bytes_of_ranges(have, index_map);
    halo_regions regions;
    void *memory;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    find_regions(have, index_map, want, NULL, memory, &regions);
    *volume = regions.pixels * (double)have->channels;
    wf_pool_give_host(ctx, memory, bytes);
    return WF_OK;
}

/* A pole needs columns of other ranks if those are cut, also for rows that this rank has: the point on the other side
 * of a pole is half a turn away. */
static bool turns(const wf_sharding *have, const wf_index_map *index_map)
{
    const wf_boundary *b = index_map->boundary;
    const int turned = b && b->turned ? b->turned - 3 : index_map->nd - 1;
    for (int d = 0; b && d < index_map->nd; d++)
        if ((index_map->lo[d] > 0 && wf_boundary_edge(b, 2 + d, false) == WF_EDGE_POLE) ||
            (index_map->hi[d] > 0 && wf_boundary_edge(b, 2 + d, true) == WF_EDGE_POLE))
            return turned >= 0 && turned < index_map->nd && have->axis[turned] >= 0;
    return false;
}

/* Channels that change their sign are counted from the first one that the exchange knows. */
static wf_exchange *exchange_beyond(const wf_sharding *have, const wf_boundary *all, const halo_regions *h,
                                    wf_range channels, wf_dtype dtype)
{
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(have->mesh));
    const size_t bytes = (size_t)(all->n_negated > 0 ? all->n_negated : 1) * sizeof(int64_t);
    wf_boundary boundary = *all;
    wf_range rest[WF_MAX_RANK];
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(ctx, bytes, &memory));
    int64_t *negated = memory;
    /* A part may have some of the channels; numbers are made relative to its first one. */
    boundary.n_negated = 0;
    for (int i = 0; i < all->n_negated; i++)
        if (all->negated[i] >= channels.lo && all->negated[i] < channels.hi)
            negated[boundary.n_negated++] = all->negated[i] - channels.lo;
    boundary.negated = negated;
    for (int d = 0; d < h->need.rank; d++)
        rest[d] = d < 2 ? (wf_range){0, h->from.global.dim[d]} : (wf_range){h->need.lo[d], h->need.hi[d]};
    wf_exchange *exchange =
        wf_mesh_exchange_beyond(have->mesh, &h->from, &h->to, rest, &boundary, dtype, WF_CHANNELS_LAST);
    wf_pool_give_host(ctx, memory, bytes);
    return exchange;
}

static wf_status make_halo(const wf_sharding *have, const wf_index_map *index_map, const halo_regions *regions,
                           const wf_halo_channels *channels, wf_dtype dtype, wf_halo *halo)
{
    const wf_boundary *boundary = index_map->boundary;
    const wf_range own = {have->box.lo[1], have->box.hi[1]};
    *halo = (wf_halo){.need = regions->need, .pixels = regions->pixels};
    /* Every rank computes the same number for all ranks, so all make the exchange, or none does. */
    if (halo->pixels > 0 || channels || turns(have, index_map)) {
        halo->exchange =
            boundary ? exchange_beyond(have, boundary, regions, channels ? (wf_range){0, channels->all} : own, dtype)
                     : wf_mesh_exchange(have->mesh, &regions->from, &regions->to, dtype, WF_CHANNELS_LAST);
        return halo->exchange ? WF_OK : wf_error_code();
    }
    if (!boundary)
        return WF_OK;
    /* Elements beyond the edges come from this rank's own part. */
    wf_shape whole = wf_box_shape(have->box);
    whole.dim[1] = have->channels;
    for (int d = 0; d < index_map->nd; d++)
        whole.dim[2 + d] = have->length[d];
    return wf_halo_continue(halo, boundary, whole);
}

wf_status wf_halo_make(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                       const wf_halo_channels *channels, wf_dtype dtype, wf_halo *halo)
{
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(have->mesh));
    const size_t bytes = bytes_of_ranges(have, index_map);
    halo_regions regions;
    void *memory;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    find_regions(have, index_map, want, channels, memory, &regions);
    const wf_status status = make_halo(have, index_map, &regions, channels, dtype, halo);
    wf_pool_give_host(ctx, memory, bytes);
    return status;
}

wf_status wf_window_op_plan(wf_window_op_call *call, const wf_var *x, const wf_boundary *boundary,
                            const wf_sharding *in, wf_shape y, wf_layout *layout)
{
    const wf_layout *given = &x->value->layout;
    wf_sharding out;
    for (int d = 0; d < call->index_map.nd; d++) {
        call->index_map.in[d] = given->global.dim[2 + d];
        call->index_map.out[d] = y.dim[2 + d];
    }
    wf_index_map_continue(&call->index_map, boundary);
    WF_TRY(wf_sharding_outputs(in, &call->index_map, &out));
    WF_TRY(wf_halo_make(in, &call->index_map, &out, NULL, x->value->dtype, &call->halo));
    call->in = in->box;
    call->out = out.box;
    *layout = wf_sharding_layout(&out, given);
    return WF_OK;
}
