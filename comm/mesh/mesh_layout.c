/* Layouts over a mesh: shard bounds, balanced blocks, the usual layout of an activation. Arithmetic only; nothing is
 * sent. */
#include "comm/mesh/mesh_impl.h"
#include "comm/mesh_author.h"

#include <string.h>

/* Bounds are interned, so that layouts are compared by pointers. */
static wf_mesh_entry *bounds_entry(const wf_mesh *mesh, wf_axis axis, const int64_t *bounds)
{
    if (!mesh || !bounds)
        return NULL;
    wf_mesh_list *list = &mesh->kept->bounds;
    wf_mesh_entry *entry = wf_mesh_find(mesh->ctx, list, bounds, mesh->size[axis] + 1);
    if (entry)
        return entry;
    for (int i = 0; i < mesh->size[axis]; i++)
        WF_CHECK_NULL(bounds[i] <= bounds[i + 1] && bounds[0] == 0, WF_ERR_ARGUMENT,
                      "shard bounds along %s start with 0 and ascend, not %lld, %lld", wf_axis_name(axis),
                      (long long)bounds[i], (long long)bounds[i + 1]);
    return wf_mesh_add(mesh->ctx, list, bounds, mesh->size[axis] + 1);
}

const int64_t *wf_mesh_bounds_recent(const wf_mesh *mesh, wf_axis axis, const int64_t *bounds)
{
    const wf_mesh_entry *entry = bounds_entry(mesh, axis, bounds);
    return entry ? entry->key : NULL;
}

const int64_t *wf_mesh_bounds(const wf_mesh *mesh, wf_axis axis, const int64_t *bounds)
{
    wf_mesh_entry *entry = bounds_entry(mesh, axis, bounds);
    if (!entry)
        return NULL;
    mesh->kept->bounds.count -= !entry->lasting;
    entry->lasting = true;
    return entry->key;
}

int64_t wf_mesh_bounds_kept(const wf_mesh *mesh)
{
    return mesh ? mesh->kept->bounds.count : 0;
}

const int64_t *wf_mesh_blocks(const wf_mesh *mesh, wf_axis axis, int64_t length)
{
    if (!mesh)
        return NULL;
    WF_CHECK_NULL(length >= 0, WF_ERR_SHAPE, "blocks of length %lld", (long long)length);
    const size_t bytes = ((size_t)mesh->size[axis] + 1) * sizeof(int64_t);
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(mesh->ctx, bytes, &memory));
    int64_t *block = memory;
    for (int i = 0; i < mesh->size[axis]; i++)
        wf_block(length, mesh->size[axis], i, &block[i], &block[i + 1]);
    const int64_t *bounds = wf_mesh_bounds_recent(mesh, axis, block);
    wf_pool_give_host(mesh->ctx, memory, bytes);
    return bounds;
}

void wf_layout_shard(const wf_mesh *mesh, wf_layout *layout, wf_axis axis, int dim, const int64_t *bounds)
{
    if (!mesh || !bounds)
        return;
    layout->known = true;
    layout->mesh = mesh;
    layout->global.dim[dim] = bounds[mesh->size[axis]];
    layout->box.lo[dim] = bounds[mesh->place[axis]];
    layout->box.hi[dim] = bounds[mesh->place[axis] + 1];
    /* One place along an axis cuts nothing; along data it still says that the first dimension is a batch's. */
    if (mesh->size[axis] == 1 && axis != WF_AXIS_DATA)
        return;
    layout->placement[axis] = WF_SHARDED;
    layout->dim[axis] = (uint8_t)dim;
    layout->bounds[axis] = wf_mesh_bounds_recent(mesh, axis, bounds);
}

/* Returns the bounds that the program gave, which must end where the dimension does, or balanced blocks. */
static const int64_t *bounds_of(const wf_mesh *mesh, wf_axis axis, const int64_t *given, int64_t length)
{
    if (!given)
        return wf_mesh_blocks(mesh, axis, length);
    WF_CHECK_NULL(given[mesh->size[axis]] == length, WF_ERR_SHAPE,
                  "shard bounds along %s end at %lld, should end at %lld", wf_axis_name(axis),
                  (long long)given[mesh->size[axis]], (long long)length);
    return wf_mesh_bounds_recent(mesh, axis, given);
}

wf_layout wf_mesh_layout_same(const wf_mesh *mesh, wf_shape global)
{
    if (!mesh)
        return wf_layout_none();
    return (wf_layout){.known = true, .mesh = mesh, .global = global, .box = wf_box_of_shape(global)};
}

static wf_status cut_layout(const wf_mesh *mesh, wf_shape global, wf_layout_opts opts, wf_layout *layout)
{
    char text[WF_SHAPE_TEXT];
    int cutter[WF_MAX_RANK];
    WF_NEED(mesh);
    WF_NEED(layout);
    WF_CHECK(wf_shape_count(global) >= 0, WF_ERR_SHAPE, "%s is no shape", wf_shape_text(global, text));
    *layout = wf_mesh_layout_same(mesh, global);
    memset(cutter, -1, sizeof cutter);
    for (int a = 0; a < WF_AXES; a++) {
        const int d = opts.dim[a] - 1;
        if (opts.dim[a] == 0)
            continue;
        WF_CHECK(d >= 0 && d < global.rank, WF_ERR_SHAPE, "dimension %d, to be sharded over %s, is not in %s", d,
                 wf_axis_name((wf_axis)a), wf_shape_text(global, text));
        WF_CHECK(cutter[d] < 0, WF_ERR_SHAPE, "dimension %d cannot be cut both over %s and over %s", d,
                 wf_axis_name((wf_axis)cutter[d]), wf_axis_name((wf_axis)a));
        cutter[d] = a;
        const int64_t *bounds = bounds_of(mesh, (wf_axis)a, opts.bounds[a], global.dim[d]);
        WF_NEED(bounds);
        wf_layout_shard(mesh, layout, (wf_axis)a, d, bounds);
    }
    return WF_OK;
}

wf_status wf_mesh_layout(const wf_mesh *mesh, wf_shape global, wf_layout_opts opts, wf_layout *layout)
{
    WF_TRY(cut_layout(mesh, global, opts, layout));
    for (int a = 0; a < WF_AXES; a++)
        if (layout->bounds[a])
            layout->bounds[a] = wf_mesh_bounds(mesh, (wf_axis)a, layout->bounds[a]);
    return WF_OK;
}

/* Samples, channels, and what is beyond them. */
static wf_layout_opts activation_opts(wf_shape global)
{
    static const wf_axis from_last[WF_MAX_SPATIAL] = {WF_AXIS_WIDTH, WF_AXIS_HEIGHT, WF_AXIS_DEPTH};
    wf_layout_opts opts = {0};
    if (global.rank > 0)
        opts.dim[WF_AXIS_DATA] = WF_DIM(0);
    if (global.rank > 1)
        opts.dim[WF_AXIS_CHANNEL] = WF_DIM(1);
    for (int i = 0; i < WF_MAX_SPATIAL && global.rank - 1 - i > 1; i++)
        opts.dim[from_last[i]] = WF_DIM(global.rank - 1 - i);
    return opts;
}

wf_status wf_mesh_layout_activation(const wf_mesh *mesh, wf_shape global, wf_layout *layout)
{
    return wf_mesh_layout(mesh, global, activation_opts(global), layout);
}

wf_status wf_mesh_layout_activation_recent(const wf_mesh *mesh, wf_shape global, wf_layout *layout)
{
    return cut_layout(mesh, global, activation_opts(global), layout);
}
