/* Moves channels between the sharding of a tensor and the channels with which the ranks compute: gather,
 * reduce-scatter, and the same for bias and gradients. All channel-parallel layers use it. */
#include "layers/parallel/parallel_impl.h"

static wf_range own_part(const wf_channel_side *side)
{
    return side->part[side->rank];
}

/* The channels that a rank holds. */
static wf_range held_by(const wf_channel_side *side, const int64_t *bounds, int rank)
{
    return bounds ? (wf_range){bounds[rank], bounds[rank + 1]} : (wf_range){0, side->channels};
}

/* Looks at the parts of all ranks, so all of them move channels, or none does. */
bool wf_channel_moves(const wf_channel_side *side, const int64_t *bounds)
{
    for (int r = 0; r < side->size; r++) {
        const wf_range held = held_by(side, bounds, r);
        if (held.lo != side->part[r].lo || held.hi != side->part[r].hi)
            return true;
    }
    return false;
}

int64_t wf_channel_width(const wf_channel_side *side)
{
    int64_t width = 0;
    for (int r = 0; r < side->size; r++)
        width += side->part[r].hi - side->part[r].lo;
    return width;
}

/* Kernels take pictures channels-last; a range of channels is then strided, and moved or picked as a box. */
static wf_order order_of(int rank)
{
    return rank >= 3 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
}

/* A step tensor like `like`, with other channels. It has no layout: the caller knows which channels these are. */
static wf_tensor *with_channels(const wf_tensor *like, int64_t channels)
{
    wf_shape shape = like->shape;
    shape.dim[1] = channels;
    return wf_tensor_new_step(like->ctx, like->dtype, shape, order_of(shape.rank));
}

static wf_tensor *view_of(const wf_tensor *tensor, int64_t lo, int64_t hi)
{
    wf_box box = wf_box_of_shape(tensor->shape);
    box.lo[1] = lo;
    box.hi[1] = hi;
    return wf_tensor_view(tensor, box);
}

wf_tensor *wf_channel_pick(const wf_tensor *tensor, int64_t lo, int64_t hi)
{
    wf_tensor *view = view_of(tensor, lo, hi);
    wf_tensor *picked = wf_tensor_dense(view, tensor->dtype, order_of(tensor->shape.rank));
    wf_tensor_free(view);
    return picked;
}

/* The exchange from the ranges `have` (NULL: all of it) to `need`, both one for each rank of the group, over tensors
 * like x. */
static wf_exchange *exchange_of(const wf_channel_side *side, const wf_tensor *x, const wf_range *have,
                                const wf_range *need)
{
    wf_regions from = {.global = x->shape}, to;
    from.global.dim[1] = side->channels;
    for (int a = 0; a < WF_AXES; a++)
        from.dim[a] = -1;
    /* Only channels differ between the two sides; all other axes keep what they have, so the exchange is within a
     * group. */
    from.dim[WF_AXIS_CHANNEL] = 1;
    to = from;
    from.range[WF_AXIS_CHANNEL] = have;
    to.range[WF_AXIS_CHANNEL] = need;
    return wf_mesh_exchange(side->mesh, &from, &to, x->dtype, order_of(x->shape.rank));
}

wf_status wf_channel_held(const wf_channel_side *side, const int64_t *bounds, wf_ctx *ctx, wf_range **held)
{
    void *memory = NULL;
    WF_TRY(wf_pool_take_host(ctx, (size_t)side->size * sizeof **held, &memory));
    *held = memory;
    for (int r = 0; r < side->size; r++)
        (*held)[r] = held_by(side, bounds, r);
    return WF_OK;
}

static wf_field field_of(const wf_tensor *tensor, wf_range channels)
{
    wf_field field = {tensor->data, tensor->dtype, wf_box_of_shape(tensor->shape)};
    field.box.lo[1] = channels.lo;
    field.box.hi[1] = channels.hi;
    return field;
}

typedef enum direction {
    HELD_TO_PART = 0, /* every rank gets its part */
    PART_TO_HELD,     /* the parts, which do not overlap, to the ranks that hold them */
    PART_ADD_HELD,    /* the parts are added to what is held, the reverse of the first */
} direction;

static wf_status move_channels(const wf_channel_side *side, const int64_t *bounds, direction way, const wf_tensor *from,
                               wf_tensor *to)
{
    wf_range *held = NULL;
    WF_NEED(from);
    WF_NEED(to);
    WF_TRY(wf_channel_held(side, bounds, from->ctx, &held));
    /* Both lists are of all ranks, known without a message: the exchange is planned locally. */
    wf_exchange *exchange =
        way == PART_TO_HELD ? exchange_of(side, from, side->part, held) : exchange_of(side, from, held, side->part);
    wf_pool_give_host(from->ctx, held, (size_t)side->size * sizeof *held);
    WF_NEED(exchange);
    if (way == PART_ADD_HELD) {
        const wf_field source = field_of(from, own_part(side)),
                       target = field_of(to, held_by(side, bounds, side->rank));
        /* What stays on this rank is copied before messages are added to it; they arrive during end(), not before. */
        WF_TRY(wf_field_start(to->ctx, &source, &target));
        WF_TRY(wf_exchange_reverse_begin_halo(exchange, from, to));
    } else
        WF_TRY(wf_exchange_begin(exchange, from, to));
    return wf_exchange_end(exchange);
}

static wf_tensor *free_failed(wf_status status, wf_tensor *tensor)
{
    wf_tensor_free(tensor);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}

/* Three ways: nothing moves and a dense copy is enough; every rank has all channels and picks its part; or an exchange
 * brings them. */
wf_tensor *wf_channel_gather(const wf_channel_side *side, const int64_t *bounds, const wf_tensor *held)
{
    const wf_range own = own_part(side);
    if (!held)
        return NULL;
    if (!wf_channel_moves(side, bounds))
        return wf_tensor_dense(held, held->dtype, order_of(held->shape.rank));
    /* Every rank has all channels: no message. */
    if (!bounds)
        return wf_channel_pick(held, own.lo, own.hi);
    wf_tensor *part = with_channels(held, own.hi - own.lo);
    const wf_status status = move_channels(side, bounds, HELD_TO_PART, held, part);
    return status == WF_OK ? part : free_failed(status, part);
}

/* The sum over the group of all parts; a rank contributes zeros outside of its own part. */
static wf_tensor *sum_whole(const wf_channel_side *side, const wf_tensor *part)
{
    const wf_range own = own_part(side);
    wf_comm *group = wf_mesh_comm(side->mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL));
    /* Every rank has a term for every channel: the part is summed in place. */
    const bool all = own.lo == 0 && own.hi == side->channels;
    /* Zeros elsewhere make one all-reduce of it, whatever parts overlap. */
    wf_tensor *whole = all ? wf_tensor_alias(part) : with_channels(part, side->channels);
    wf_tensor *place = NULL;
    wf_status status = WF_OK;
    WF_TRY_OUT(wf_check(whole));
    if (!all) {
        WF_TRY_OUT(wf_tensor_fill(whole, 0));
        place = view_of(whole, own.lo, own.hi);
        WF_TRY_OUT(wf_check(place));
        WF_TRY_OUT(wf_tensor_assign(place, part));
    }
    WF_TRY_OUT(wf_allreduce(group, whole, whole, WF_SUM));
out:
    wf_tensor_free(place);
    return status == WF_OK ? whole : free_failed(status, whole);
}

/* Partitions are moved or stay; parts that overlap are summed, by one all-reduce if every rank is to have the whole, or
 * by a reversed gather if ranks are to have shards. */
static wf_tensor *put_part(const wf_channel_side *side, const int64_t *bounds, const wf_tensor *part)
{
    const wf_range own = held_by(side, bounds, side->rank);
    if (!wf_channel_moves(side, bounds) && side->partition)
        return wf_tensor_alias(part);
    if (!bounds && !side->partition)
        return sum_whole(side, part);
    wf_tensor *held = with_channels(part, own.hi - own.lo);
    wf_status status;
    WF_TRY_OUT(wf_check(held));
    WF_TRY_OUT(move_channels(side, bounds, side->partition ? PART_TO_HELD : PART_ADD_HELD, part, held));
out:
    return status == WF_OK ? held : free_failed(status, held);
}

wf_tensor *wf_channel_scatter(const wf_channel_side *side, const int64_t *bounds, wf_tensor *part)
{
    if (!part)
        return NULL;
    wf_tensor *held = put_part(side, bounds, part);
    wf_tensor_free(part);
    return held;
}

wf_status wf_channel_bias(const wf_tensor *y, const wf_tensor *b)
{
    const wf_strided dst = wf_tensor_strided(y);
    wf_strided src = dst;
    WF_NEED(b);
    src.data = b->data;
    src.dtype = b->dtype;
    for (int d = 0; d < src.rank; d++)
        /* The bias as a tensor of y's shape: strides of 0 in all dimensions but the channels. */
        src.stride[d] = d == 1;
    return y->ctx->k->copy(y->ctx, &src, &dst, true);
}

/* Layouts. */

static wf_status check_axis(const wf_layer *layer, const char *name, const wf_layout *x, int axis)
{
    char text[WF_LAYOUT_TEXT];
    const bool sharded = x->placement[axis] == WF_SHARDED;
    const int dim = axis == WF_AXIS_CHANNEL ? 1 : 0;
    WF_CHECK(x->placement[axis] != WF_PARTIAL && (!sharded || x->dim[axis] == dim) &&
                 (axis == WF_AXIS_CHANNEL || axis == WF_AXIS_DATA || !sharded),
             WF_ERR_SHAPE,
             "%s \"%s\" takes samples sharded over data and dimension 1 over channel, its input is %s; "
             "wf_redistribute it first, or use wf_mesh_conv2d and the like, which take cut pixels too",
             name, wf_layer_path(layer), wf_layout_text(x, text));
    WF_CHECK(axis != WF_AXIS_CHANNEL || !sharded || x->bounds[axis], WF_ERR_SHAPE,
             "%s \"%s\": the shard bounds of its input, %s, are not known to all ranks; wf_redistribute it first", name,
             wf_layer_path(layer), wf_layout_text(x, text));
    return WF_OK;
}

wf_status wf_channel_check_input(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                                 const int64_t **bounds)
{
    const wf_layout *layout = &x->value->layout;
    *bounds = NULL;
    if (!layout->known) {
        /* Without a layout, x can only be whole on all ranks, which is known if channels are the only thing that is
         * split. */
        const int split = wf_comm_size(wf_mesh_world(mesh)) / wf_mesh_size(mesh, WF_AXIS_CHANNEL);
        WF_CHECK(split == 1, WF_ERR_SHAPE,
                 "%s \"%s\": its input has no layout, on a mesh that splits more than channels (%s); say with "
                 "wf_tensor_set_layout what part it is",
                 name, wf_layer_path(layer), wf_mesh_text(mesh));
        return WF_OK;
    }
    WF_CHECK(layout->mesh == mesh, WF_ERR_ARGUMENT, "%s \"%s\": its input is laid out on another mesh; wf_redistribute",
             name, wf_layer_path(layer));
    for (int a = 0; a < WF_AXES; a++)
        WF_TRY(check_axis(layer, name, layout, a));
    if (layout->placement[WF_AXIS_CHANNEL] == WF_SHARDED)
        *bounds = layout->bounds[WF_AXIS_CHANNEL];
    return WF_OK;
}

/* Everything but samples and channels is whole here: this file's layers do not cut pixels. */
wf_layout wf_channel_layout(const wf_mesh *mesh, const wf_var *x, wf_shape local, int64_t channels,
                            const int64_t *bounds)
{
    const wf_layout *from = &x->value->layout;
    wf_layout layout = {.known = true, .mesh = mesh, .global = local, .box = wf_box_of_shape(local)};
    if (from->known && from->placement[WF_AXIS_DATA] == WF_SHARDED) {
        layout.placement[WF_AXIS_DATA] = WF_SHARDED;
        layout.bounds[WF_AXIS_DATA] = from->bounds[WF_AXIS_DATA];
        layout.chunk = from->chunk;
        layout.global.dim[0] = from->global.dim[0];
        layout.box.lo[0] = from->box.lo[0];
        layout.box.hi[0] = from->box.hi[0];
    }
    layout.global.dim[1] = channels;
    if (bounds)
        wf_layout_shard(mesh, &layout, WF_AXIS_CHANNEL, 1, bounds);
    return layout;
}
