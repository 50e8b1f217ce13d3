/* Halos of tensors for programs: a part with its neighbours' elements around it, planned like every other exchange.
 * Layers plan their own, since they overlap them with what they compute. */
#include "comm/mesh_author.h"
#include "comm/open_impl.h"

#include <stdlib.h>

typedef struct halo {
    wf_regions have, need;
    wf_range *range;             /* room of both */
    wf_range rest[WF_MAX_RANK];  /* needed of dimensions that are not cut */
    const wf_boundary *boundary; /* NULL: every edge cuts */
    wf_box box;                  /* the part with its halos */
} halo;

static wf_status check(const wf_mesh *mesh, const wf_tensor *x, const int64_t *widths)
{
    const wf_layout *l = &x->layout;
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(l->known && l->mesh == mesh, WF_ERR_SHAPE,
             "wf_halo_exchange: x is %s; it should be sharded over this mesh", wf_layout_text(l, text));
    WF_CHECK(!wf_layout_is_partial(l), WF_ERR_UNSUPPORTED, "wf_halo_exchange: x is %s, a sum still to be made",
             wf_layout_text(l, text));
    for (int a = 0; a < WF_AXES; a++)
        WF_CHECK(l->placement[a] != WF_SHARDED || l->bounds[a], WF_ERR_SHAPE,
                 "wf_halo_exchange: the shard bounds of x over %s are unknown; wf_tensor_redistribute makes some",
                 wf_axis_name((wf_axis)a));
    for (int d = 0; d < x->shape.rank; d++)
        WF_CHECK(widths[d] >= 0, WF_ERR_SHAPE, "wf_halo_exchange: %lld elements of halo in dimension %d",
                 (long long)widths[d], d);
    return WF_OK;
}

static bool edge_cuts(const halo *h, int d, bool upper)
{
    return !h->boundary || wf_boundary_edge(h->boundary, d, upper) == WF_EDGE_DEFAULT;
}

static wf_range wider(const halo *h, int d, wf_range part, int64_t width, int64_t length)
{
    const wf_range all = {edge_cuts(h, d, false) && part.lo < width ? 0 : part.lo - width,
                          edge_cuts(h, d, true) && width > length - part.hi ? length : part.hi + width};
    return part.lo < part.hi ? all : part; /* nothing is beside an empty part */
}

static void regions_of(halo *h, const wf_mesh *mesh, const wf_layout *l, const int64_t *widths)
{
    wf_range *next = h->range;
    h->have = h->need = (wf_regions){.global = l->global};
    h->box = l->box;
    for (int d = 0; d < l->global.rank; d++) {
        const int64_t length = l->global.dim[d];
        h->rest[d] = wider(h, d, (wf_range){0, length}, widths[d], length);
        h->box.lo[d] = h->rest[d].lo;
        h->box.hi[d] = h->rest[d].hi;
    }
    for (int a = 0; a < WF_AXES; a++) {
        const int d = l->placement[a] == WF_SHARDED ? l->dim[a] : -1;
        h->have.dim[a] = h->need.dim[a] = d;
        if (d < 0)
            continue;
        wf_range *have = next, *need = have + mesh->size[a];
        next = need + mesh->size[a];
        for (int i = 0; i < mesh->size[a]; i++) {
            have[i] = (wf_range){l->bounds[a][i], l->bounds[a][i + 1]};
            need[i] = wider(h, d, have[i], widths[d], l->global.dim[d]);
        }
        h->have.range[a] = have;
        h->need.range[a] = need;
        h->box.lo[d] = need[mesh->place[a]].lo;
        h->box.hi[d] = need[mesh->place[a]].hi;
    }
}

static wf_status exchange(const wf_mesh *mesh, const wf_tensor *x, const halo *h, wf_tensor *y)
{
    wf_exchange *e = !h->boundary
                         ? wf_mesh_exchange(mesh, &h->have, &h->need, x->dtype, x->order)
                         : wf_mesh_exchange_beyond(mesh, &h->have, &h->need, h->rest, h->boundary, x->dtype, x->order);
    WF_NEED(e);
    WF_NEED(y);
    WF_TRY(wf_exchange_begin(e, x, y));
    return wf_exchange_end(e);
}

/* Every side has the default: nothing is beyond the edges. */
static bool all_cut(const wf_boundary *boundary, int rank)
{
    for (int d = 0; d < rank; d++)
        if (wf_boundary_edge(boundary, d, false) != WF_EDGE_DEFAULT ||
            wf_boundary_edge(boundary, d, true) != WF_EDGE_DEFAULT)
            return false;
    return true;
}

wf_tensor *wf_halo_exchange(const wf_mesh *mesh, const wf_tensor *x, const int64_t *widths, wf_boundary boundary)
{
    WF_NEED_NULL(mesh);
    WF_NEED_NULL(x);
    WF_NEED_NULL(widths);
    WF_TRY_NULL(check(mesh, x, widths));
    WF_TRY_NULL(wf_boundary_check(&boundary, x->shape.rank));
    size_t places = 0;
    for (int a = 0; a < WF_AXES; a++)
        places += 2 * (size_t)mesh->size[a];
    halo h = {.range = wf_malloc(mesh->ctx, places * sizeof *h.range),
              .boundary = all_cut(&boundary, x->shape.rank) ? NULL : &boundary};
    if (!h.range)
        return wf_error_null();
    regions_of(&h, mesh, &x->layout, widths);
    wf_tensor *y = wf_tensor_new_ordered(mesh->ctx, x->dtype, wf_box_shape(h.box), x->order);
    const wf_status status = exchange(mesh, x, &h, y);
    free(h.range);
    if (status == WF_OK)
        return y;
    wf_tensor_free(y);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}
