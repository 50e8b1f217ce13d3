/* The exchanges of a mesh, found by their description: a plan is made at the first call of a shape and kept with the
 * mesh, which keeps those that were used last. */
#include "comm/mesh_author.h"
#include "comm/open_impl.h"

#include <stdlib.h>
#include <string.h>

int64_t wf_mesh_exchanges(const wf_mesh *mesh)
{
    return mesh ? mesh->kept->exchanges.count : 0;
}

/* The exchange under the key; NULL if there is none. */
static wf_exchange *find(const wf_mesh *mesh, const int64_t *key, int64_t words)
{
    const wf_mesh_entry *entry = wf_mesh_find(mesh->ctx, &mesh->kept->exchanges, key, words);
    return entry ? entry->exchange : NULL;
}

/* Takes a new exchange, unless it failed, under that key. */
static wf_exchange *keep(const wf_mesh *mesh, const int64_t *key, int64_t words, wf_exchange *exchange)
{
    wf_mesh_entry *entry = exchange ? wf_mesh_add(mesh->ctx, &mesh->kept->exchanges, key, words) : NULL;
    if (!entry) {
        wf_exchange_free(exchange);
        return wf_error_null();
    }
    return entry->exchange = exchange;
}

/* --- between boxes of all ranks ----------------------------------------------------------------------------------- */

static int64_t *write_boxes(int64_t *key, int size, const wf_box *box)
{
    for (int r = 0; r < size; r++) {
        *key++ = box[r].rank;
        for (int d = 0; d < box[r].rank; d++) {
            *key++ = box[r].lo[d];
            *key++ = box[r].hi[d];
        }
    }
    return key;
}

wf_exchange *wf_mesh_exchange_boxes(const wf_mesh *mesh, const wf_box *have, const wf_box *need, wf_dtype dtype,
                                    wf_order order)
{
    if (!mesh || !have || !need)
        return NULL;
    const int size = mesh->world->size;
    const size_t bytes = (3 + 2 * (size_t)size * (1 + 2 * WF_MAX_RANK)) * sizeof(int64_t);
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(mesh->ctx, bytes, &memory));
    int64_t *key = memory;
    /* Tells boxes from regions, whose keys could be the same words. */
    key[0] = 1;
    key[1] = (int64_t)dtype;
    key[2] = (int64_t)order;
    const int64_t words = write_boxes(write_boxes(key + 3, size, have), size, need) - key;
    wf_exchange *exchange = find(mesh, key, words);
    if (!exchange)
        exchange = keep(mesh, key, words, wf_exchange_new(mesh->world, dtype, order, have, need));
    wf_pool_give_host(mesh->ctx, memory, bytes);
    return exchange;
}

/* --- between regions ---------------------------------------------------------------------------------------------- */

static unsigned axes_of(const wf_regions *regions)
{
    unsigned axes = 0;
    for (int a = 0; a < WF_AXES; a++)
        if (regions->dim[a] >= 0)
            axes |= 1u << a;
    return axes;
}

static int64_t words_of(const wf_mesh *mesh, const wf_regions *regions)
{
    int64_t words = 1 + WF_MAX_RANK + WF_AXES;
    for (int a = 0; a < WF_AXES; a++)
        words += regions->dim[a] >= 0 ? 2 * mesh->size[a] : 0;
    return words;
}

static int64_t *write_regions(int64_t *key, const wf_mesh *mesh, const wf_regions *regions)
{
    *key++ = regions->global.rank;
    for (int d = 0; d < WF_MAX_RANK; d++)
        *key++ = d < regions->global.rank ? regions->global.dim[d] : 0;
    for (int a = 0; a < WF_AXES; a++) {
        *key++ = regions->dim[a] >= 0 ? regions->dim[a] : -1;
        for (int p = 0; regions->dim[a] >= 0 && p < mesh->size[a]; p++) {
            *key++ = regions->range[a][p].lo;
            *key++ = regions->range[a][p].hi;
        }
    }
    return key;
}

/* The rest of a need and its boundary, which are a part of the key. */
typedef struct outside {
    const wf_range *rest;
    const wf_boundary *boundary; /* NULL: nothing is */
} outside;

static int64_t words_outside(const outside *o)
{
    return o->boundary ? 4 * WF_MAX_RANK + 4 + o->boundary->n_negated : 0;
}

static int64_t *write_outside(int64_t *key, const outside *o, const wf_regions *need)
{
    const wf_boundary *b = o->boundary;
    if (!b)
        return key;
    for (int d = 0; d < WF_MAX_RANK; d++) {
        bool cut = d >= need->global.rank;
        for (int a = 0; a < WF_AXES; a++)
            cut = cut || need->dim[a] == d;
        *key++ = cut ? 0 : o->rest[d].lo;
        *key++ = cut ? 0 : o->rest[d].hi;
        *key++ = (int64_t)wf_boundary_edge(b, d, false);
        *key++ = (int64_t)wf_boundary_edge(b, d, true);
    }
    memcpy(key++, &b->value, sizeof b->value);
    *key++ = b->turned;
    *key++ = b->row_on_pole;
    *key++ = b->n_negated;
    for (int i = 0; i < b->n_negated; i++)
        *key++ = b->negated[i];
    return key;
}

static wf_box box_at(const wf_regions *regions, const outside *o, const int place[WF_AXES])
{
    wf_box box = wf_box_of_shape(regions->global);
    for (int d = 0; d < box.rank && o; d++) {
        box.lo[d] = o->rest[d].lo;
        box.hi[d] = o->rest[d].hi;
    }
    for (int a = 0; a < WF_AXES; a++) {
        const int d = regions->dim[a];
        if (d < 0)
            continue;
        const wf_range range = regions->range[a][place[a]];
        box.lo[d] = range.lo;
        box.hi[d] = range.hi > range.lo ? range.hi : range.lo;
    }
    return box;
}

/* Among the ranks that differ along the axes that cut either. */
static wf_exchange *make_exchange(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need, const outside *o,
                                  wf_dtype dtype, wf_order order)
{
    const unsigned axes = wf_mesh_split_axes(mesh, axes_of(have) | axes_of(need));
    const wf_beyond beyond = {.global = have->global, .boundary = o->boundary};
    wf_comm *comm = wf_mesh_comm(mesh, axes);
    if (!comm)
        return NULL;
    const int size = comm->size;
    wf_box *box = wf_malloc(mesh->ctx, 2 * (size_t)size * sizeof *box);
    if (!box)
        return wf_error_null();
    for (int r = 0; r < size; r++) {
        int place[WF_AXES];
        memcpy(place, mesh->place, sizeof place);
        wf_mesh_place_along(mesh, axes, r, place);
        box[r] = box_at(have, NULL, place);
        box[size + r] = box_at(need, o->boundary ? o : NULL, place);
    }
    wf_exchange *exchange = wf_exchange_new_beyond(comm, dtype, order, box, box + size, o->boundary ? &beyond : NULL);
    free(box);
    return exchange;
}

static wf_status check_regions(const wf_regions *regions, int rank)
{
    WF_CHECK(regions->global.rank == rank && rank <= WF_MAX_RANK, WF_ERR_SHAPE,
             "an exchange between arrays of %d and %d dimensions", rank, regions->global.rank);
    for (int a = 0; a < WF_AXES; a++)
        WF_CHECK(regions->dim[a] < rank && (regions->dim[a] < 0 || regions->range[a]), WF_ERR_ARGUMENT,
                 "an exchange cuts dimension %d over %s, and there are %d", regions->dim[a], wf_axis_name((wf_axis)a),
                 rank);
    return WF_OK;
}

static wf_exchange *exchange_of(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need, const outside *o,
                                wf_dtype dtype, wf_order order)
{
    if (!mesh || !have || !need)
        return NULL;
    WF_TRY_NULL(check_regions(have, have->global.rank));
    WF_TRY_NULL(check_regions(need, have->global.rank));
    const int64_t words = 3 + words_of(mesh, have) + words_of(mesh, need) + words_outside(o);
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(mesh->ctx, (size_t)words * sizeof(int64_t), &memory));
    int64_t *key = memory;
    key[0] = o->boundary ? 2 : 0;
    key[1] = (int64_t)dtype;
    key[2] = (int64_t)order;
    write_outside(write_regions(write_regions(key + 3, mesh, have), mesh, need), o, need);
    wf_exchange *exchange = find(mesh, key, words);
    if (!exchange)
        exchange = keep(mesh, key, words, make_exchange(mesh, have, need, o, dtype, order));
    wf_pool_give_host(mesh->ctx, memory, (size_t)words * sizeof(int64_t));
    return exchange;
}

wf_exchange *wf_mesh_exchange(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need, wf_dtype dtype,
                              wf_order order)
{
    return exchange_of(mesh, have, need, &(outside){0}, dtype, order);
}

wf_exchange *wf_mesh_exchange_beyond(const wf_mesh *mesh, const wf_regions *have, const wf_regions *need,
                                     const wf_range rest[WF_MAX_RANK], const wf_boundary *boundary, wf_dtype dtype,
                                     wf_order order)
{
    if (!rest || !boundary)
        return NULL;
    return exchange_of(mesh, have, need, &(outside){rest, boundary}, dtype, order);
}
