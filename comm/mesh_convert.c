/* From any layout to any other: completes bounds that only the ranks themselves know, finds what each rank has and
 * needs, and moves tensors. Called by wf_redistribute. It never completes a partial sum. */
#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "comm/open_impl.h"

#include <string.h>

/* --- shard bounds that only the ranks themselves know ------------------------------------------------------------- */

static wf_status bounds_from(const wf_mesh *mesh, wf_axis axis, const int64_t *parts, int64_t length, int64_t *bounds)
{
    const int size = mesh->size[axis];
    bounds[0] = 0;
    for (int p = 0; p < size; p++) {
        const int64_t lo = parts[2 * p], hi = parts[2 * p + 1];
        WF_CHECK(lo == hi || lo == bounds[p], WF_ERR_SHAPE,
                 "place %d along %s holds [%lld,%lld), but the one before it ends at %lld", p, wf_axis_name(axis),
                 (long long)lo, (long long)hi, (long long)bounds[p]);
        /* An empty part may say anything about where it lies. */
        bounds[p + 1] = lo == hi ? bounds[p] : hi;
    }
    WF_CHECK(bounds[size] == length, WF_ERR_SHAPE, "the parts along %s end at %lld, not at %lld", wf_axis_name(axis),
             (long long)bounds[size], (long long)length);
    return WF_OK;
}

static wf_status gather_bounds(wf_layout *layout, wf_axis axis)
{
    const wf_mesh *mesh = layout->mesh;
    const int d = layout->dim[axis], size = mesh->size[axis];
    const int64_t mine[2] = {layout->box.lo[d], layout->box.hi[d]};
    const size_t bytes = (3 * (size_t)size + 1) * sizeof(int64_t);
    wf_comm *comm = wf_mesh_comm(mesh, WF_AXIS_BIT(axis));
    WF_NEED(comm);
    void *memory;
    WF_TRY(wf_comm_post_failure(comm, wf_pool_take_host(mesh->ctx, bytes, &memory)));
    int64_t *parts = memory, *bounds = parts + 2 * size;
    wf_status status = wf_allgather_bytes(comm, mine, sizeof mine, parts);
    if (status == WF_OK)
        status = bounds_from(mesh, axis, parts, layout->global.dim[d], bounds);
    if (status == WF_OK)
        layout->bounds[axis] = wf_mesh_bounds_recent(mesh, axis, bounds);
    if (!comm->lost) /* else a message may still arrive there */
        wf_pool_give_host(mesh->ctx, memory, bytes);
    WF_TRY(status);
    return layout->bounds[axis] ? WF_OK : wf_error_code();
}

wf_status wf_layout_complete(wf_layout *layout, unsigned axes)
{
    for (int i = 0; layout->known && i < WF_AXES; i++) {
        const wf_axis a = wf_mesh_order[i];
        const bool stays = layout->chunk && a == WF_AXIS_DATA;
        if (axes >> a & 1u && !stays && layout->placement[a] == WF_SHARDED && !layout->bounds[a])
            WF_TRY(gather_bounds(layout, a));
    }
    return WF_OK;
}

/* --- one mesh ----------------------------------------------------------------------------------------------------- */

static bool is_cut(const wf_layout *layout, int axis)
{
    return layout->placement[axis] == WF_SHARDED;
}

static bool alike(const wf_layout *a, const wf_layout *b, int axis)
{
    return is_cut(a, axis) && is_cut(b, axis) && a->dim[axis] == b->dim[axis] && a->bounds[axis] == b->bounds[axis];
}

/* The ranges of one layout along an axis are written to `range`; returns what follows them. */
static wf_range *add_axis(const wf_layout *layout, int axis, wf_regions *regions, wf_range *range)
{
    regions->dim[axis] = layout->dim[axis];
    regions->range[axis] = range;
    for (int p = 0; p < layout->mesh->size[axis]; p++)
        *range++ = (wf_range){layout->bounds[axis][p], layout->bounds[axis][p + 1]};
    return range;
}

/* An axis that cuts both in the same way moves nothing: each of its ranks has its own plan, in local coordinates. */
static void regions_of(const wf_layout *from, const wf_layout *to, wf_regions *have, wf_regions *need, wf_range *range)
{
    have->global = need->global = from->global;
    for (int a = 0; a < WF_AXES; a++) {
        have->dim[a] = need->dim[a] = -1;
        if (alike(from, to, a)) {
            const int d = from->dim[a];
            have->global.dim[d] = need->global.dim[d] = from->box.hi[d] - from->box.lo[d];
            continue;
        }
        if (is_cut(from, a))
            range = add_axis(from, a, have, range);
        if (is_cut(to, a))
            range = add_axis(to, a, need, range);
    }
}

static wf_exchange *between_axes(const wf_layout *from, const wf_layout *to, wf_dtype dtype, wf_order order)
{
    const wf_mesh *mesh = from->mesh;
    wf_regions have = {0}, need = {0};
    size_t bytes = 0;
    for (int a = 0; a < WF_AXES; a++)
        bytes += 2 * (size_t)mesh->size[a] * sizeof(wf_range);
    void *range;
    WF_TRY_NULL(wf_pool_take_host(mesh->ctx, bytes, &range));
    regions_of(from, to, &have, &need, range);
    wf_exchange *exchange = wf_mesh_exchange(mesh, &have, &need, dtype, order);
    wf_pool_give_host(mesh->ctx, range, bytes);
    return exchange;
}

/* --- two meshes --------------------------------------------------------------------------------------------------- */

/* The set of axes of `mesh` whose communicator `part` is; all axes for the whole. False if it is none. */
static bool find_axes(const wf_mesh *mesh, const wf_comm *part, unsigned *axes)
{
    *axes = WF_ALL_AXES;
    if (part == mesh->world)
        return true;
    for (*axes = 0; *axes < 1u << WF_AXES; ++*axes)
        if (mesh->kept->comm[*axes] == part)
            return true;
    return false;
}

/* The boxes of all ranks of `mesh` under a layout of a mesh whose ranks are those of these axes. */
static void boxes_of(const wf_mesh *mesh, unsigned axes, const wf_layout *layout, wf_box *box)
{
    for (int r = 0; r < mesh->world->size; r++) {
        int place[WF_AXES], rank = 0;
        wf_mesh_place(mesh, r, place);
        for (int i = 0; i < WF_AXES; i++) {
            const wf_axis a = wf_mesh_order[i];
            if (axes >> a & 1u)
                rank = rank * mesh->size[a] + place[a];
        }
        wf_mesh_place(layout->mesh, rank, place);
        box[r] = wf_box_of_shape(layout->global);
        for (int a = 0; a < WF_AXES; a++) {
            if (!is_cut(layout, a))
                continue;
            box[r].lo[layout->dim[a]] = layout->bounds[a][place[a]];
            box[r].hi[layout->dim[a]] = layout->bounds[a][place[a] + 1];
        }
    }
}

static wf_exchange *between_meshes(const wf_layout *from, const wf_layout *to, wf_dtype dtype, wf_order order)
{
    unsigned axes_from, axes_to;
    const wf_mesh *mesh = to->mesh->world->size >= from->mesh->world->size ? to->mesh : from->mesh;
    WF_CHECK_NULL(find_axes(mesh, from->mesh->world, &axes_from) && find_axes(mesh, to->mesh->world, &axes_to),
                  WF_ERR_UNSUPPORTED,
                  "from a mesh (%s) to another (%s) of other ranks; both must be of one communicator, or one of some "
                  "axes of the other",
                  wf_mesh_text(from->mesh), wf_mesh_text(to->mesh));
    const int size = mesh->world->size;
    const size_t bytes = 2 * (size_t)size * sizeof(wf_box);
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(mesh->ctx, bytes, &memory));
    wf_box *box = memory;
    boxes_of(mesh, axes_from, from, box);
    boxes_of(mesh, axes_to, to, box + size);
    wf_exchange *exchange = wf_mesh_exchange_boxes(mesh, box, box + size, dtype, order);
    wf_pool_give_host(mesh->ctx, memory, bytes);
    return exchange;
}

static wf_status check_layout(const wf_layout *layout)
{
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(layout->known && layout->mesh, WF_ERR_ARGUMENT, "a layout without a mesh");
    WF_CHECK(!wf_layout_is_partial(layout), WF_ERR_UNSUPPORTED,
             "%s: a partial sum is completed by the layer that made it, not by a redistribution",
             wf_layout_text(layout, text));
    return WF_OK;
}

wf_exchange *wf_mesh_exchange_layouts(const wf_layout *from, const wf_layout *to, wf_dtype dtype, wf_order order)
{
    char a[WF_SHAPE_TEXT], b[WF_SHAPE_TEXT];
    WF_TRY_NULL(check_layout(from));
    WF_TRY_NULL(check_layout(to));
    WF_CHECK_NULL(wf_shape_equal(from->global, to->global), WF_ERR_SHAPE, "from %s to a layout of %s",
                  wf_shape_text(from->global, a), wf_shape_text(to->global, b));
    if (from->mesh == to->mesh)
        return between_axes(from, to, dtype, order);
    return between_meshes(from, to, dtype, order);
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

/* That a value without a layout has another shape here may be so on this rank alone. */
static wf_status whole_of(const wf_tensor *x, const wf_layout *target, wf_layout *from)
{
    char is[WF_SHAPE_TEXT], should[WF_SHAPE_TEXT];
    *from = (wf_layout){
        .known = true, .mesh = target->mesh, .global = target->global, .box = wf_box_of_shape(target->global)};
    if (wf_shape_equal(x->shape, target->global))
        return WF_OK;
    return wf_comm_post_failure(target->mesh->world,
                                WF_RAISE(WF_ERR_SHAPE,
                                         "a tensor %s without a layout counts as the whole, which is %s in the target",
                                         wf_shape_text(x->shape, is), wf_shape_text(target->global, should)));
}

/* Samples of a chunk stay on their ranks along data: gives the target the part of them that is here. */
static wf_status keep_samples(const wf_layout *from, wf_layout *target)
{
    char text[WF_LAYOUT_TEXT];
    const int d = from->dim[WF_AXIS_DATA];
    if (!from->chunk)
        return WF_OK;
    WF_CHECK(from->mesh == target->mesh, WF_ERR_UNSUPPORTED,
             "a chunk of a pipeline on the mesh %s cannot go to another mesh, %s", wf_mesh_text(from->mesh),
             wf_mesh_text(target->mesh));
    WF_CHECK(wf_shape_equal(from->global, target->global), WF_ERR_SHAPE, "a chunk of a batch, %s, to another shape",
             wf_layout_text(from, text));
    for (int a = 0; a < WF_AXES; a++)
        WF_CHECK(!is_cut(target, a) || (a == WF_AXIS_DATA) == (target->dim[a] == d), WF_ERR_UNSUPPORTED,
                 "the samples of a pipeline's chunk, dimension %d, stay on their ranks along data, and the target is "
                 "%s; should be sharded over data there or nowhere, and over other axes elsewhere",
                 d, wf_layout_text(target, text));
    target->chunk = true;
    target->placement[WF_AXIS_DATA] = WF_SHARDED;
    target->dim[WF_AXIS_DATA] = (uint8_t)d;
    target->bounds[WF_AXIS_DATA] = NULL;
    target->box.lo[d] = from->box.lo[d];
    target->box.hi[d] = from->box.hi[d];
    return WF_OK;
}

wf_exchange *wf_tensor_exchange(const wf_tensor *x, wf_layout *target, wf_layout *from, unsigned axes)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(check_layout(target));
    *from = x->layout;
    if (from->known)
        WF_TRY_NULL(check_layout(from));
    else
        WF_TRY_NULL(whole_of(x, target, from));
    WF_TRY_NULL(keep_samples(from, target));
    WF_TRY_NULL(wf_layout_complete(from, axes));
    WF_TRY_NULL(wf_layout_complete(target, axes));
    return wf_mesh_exchange_layouts(from, target, x->dtype, x->order);
}

static wf_status move_tensor(wf_exchange *exchange, const wf_tensor *x, const wf_layout *target, wf_tensor *y)
{
    WF_NEED(y);
    WF_TRY(wf_tensor_set_layout(y, *target));
    WF_TRY(wf_exchange_begin(exchange, x, y));
    return wf_exchange_end(exchange);
}

wf_tensor *wf_tensor_redistribute(const wf_tensor *x, wf_layout target)
{
    wf_layout from;
    wf_exchange *exchange = wf_tensor_exchange(x, &target, &from, WF_ALL_AXES);
    if (!exchange)
        return NULL;
    wf_tensor *y = wf_tensor_new_ordered(x->ctx, x->dtype, wf_box_shape(target.box), x->order);
    if (move_tensor(exchange, x, &target, y) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}
