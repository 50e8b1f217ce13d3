/* The mesh: named axes over the ranks of a communicator, the place of each rank, and the communicators along axes.
 * Programs open it, layers ask it. It holds what is kept for exchanges and shard bounds. */
#include "comm/mesh_author.h"
#include "comm/open_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Outermost first: neighbours along width are neighbouring ranks, which mostly share a node, and halos there are the
 * most frequent messages. */
const wf_axis wf_mesh_order[WF_AXES] = {WF_AXIS_DATA,  WF_AXIS_STAGE,  WF_AXIS_CHANNEL,
                                        WF_AXIS_DEPTH, WF_AXIS_HEIGHT, WF_AXIS_WIDTH};

void wf_mesh_place_along(const wf_mesh *mesh, unsigned axes, int rank, int place[WF_AXES])
{
    for (int i = WF_AXES - 1; i >= 0; i--) {
        const wf_axis a = wf_mesh_order[i];
        if (!(axes >> a & 1u))
            continue;
        place[a] = rank % mesh->size[a];
        rank /= mesh->size[a];
    }
}

void wf_mesh_place(const wf_mesh *mesh, int rank, int place[WF_AXES])
{
    if (mesh && place)
        wf_mesh_place_along(mesh, WF_ALL_AXES, rank, place);
}

bool wf_mesh_is_first(const wf_mesh *mesh, unsigned axes)
{
    for (int a = 0; mesh && a < WF_AXES; a++)
        if ((axes >> a & 1u) && mesh->place[a] > 0)
            return false;
    return true;
}

/* "data 2 x height 2": of each axis of the set its name and its number. */
static const char *list_axes(unsigned axes, const int number[WF_AXES], const char *between, char text[WF_MESH_TEXT])
{
    int at = 0;
    text[0] = '\0';
    for (int i = 0; i < WF_AXES; i++) {
        const wf_axis a = wf_mesh_order[i];
        if (axes >> a & 1u)
            at += snprintf(text + at, (size_t)(WF_MESH_TEXT - at), "%s%s %d", at ? between : "", wf_axis_name(a),
                           number[a]);
    }
    return text;
}

static void describe(wf_mesh *mesh)
{
    char sizes[WF_MESH_TEXT], places[WF_MESH_TEXT];
    const unsigned split = wf_mesh_split_axes(mesh, WF_ALL_AXES);
    snprintf(mesh->kept->text, WF_MESH_TEXT, "one rank");
    if (split)
        snprintf(mesh->kept->text, WF_MESH_TEXT, "%.100s: rank %s is %.100s",
                 list_axes(split, mesh->size, " x ", sizes), WF_RANK(mesh->world, mesh->world->rank),
                 list_axes(split, mesh->place, ", ", places));
}

wf_status wf_mesh_init(wf_mesh *mesh, wf_comm *world, const int size[WF_AXES])
{
    mesh->ctx = world->shared->ctx;
    mesh->world = world;
    memcpy(mesh->size, size, sizeof mesh->size);
    wf_mesh_place(mesh, world->rank, mesh->place);
    mesh->kept = wf_calloc(mesh->ctx, 1, sizeof *mesh->kept);
    if (!mesh->kept)
        return wf_error_code();
    describe(mesh);
    return WF_OK;
}

unsigned wf_mesh_split_axes(const wf_mesh *mesh, unsigned axes)
{
    unsigned split = 0;
    for (int a = 0; a < WF_AXES; a++)
        if ((axes >> a & 1u) && mesh->size[a] > 1)
            split |= 1u << a;
    return split;
}

/* The first of the ranks whose places differ from those of a rank along `axes` only. */
static int first_along(const wf_mesh *mesh, unsigned axes, int rank)
{
    int place[WF_AXES], first = 0;
    wf_mesh_place(mesh, rank, place);
    for (int i = 0; i < WF_AXES; i++) {
        const wf_axis a = wf_mesh_order[i];
        first = first * mesh->size[a] + (axes >> a & 1u ? 0 : place[a]);
    }
    return first;
}

/* Returns true if ranks along an axis set, whose first[r] is that of rank r's, lie on nodes alike at all places along
 * the other axes. */
static bool lie_alike(const wf_mesh *mesh, const int *first)
{
    const int32_t *node = mesh->world->ranks.node;
    for (int r = 0; r < mesh->world->size; r++)
        for (int s = first[r]; s < r; s++)
            if (first[s] == first[r] && (node[r] == node[s]) != (node[r - first[r]] == node[s - first[r]]))
                return false;
    return true;
}

static wf_comm *part_of(const wf_mesh *mesh, unsigned axes)
{
    const int size = mesh->world->size;
    int members = 0;
    int *first = wf_malloc(mesh->ctx, 2 * (size_t)size * sizeof *first), *const member = first + size;
    if (!first)
        return wf_error_null();
    for (int r = 0; r < size; r++)
        first[r] = first_along(mesh, axes, r);
    for (int r = 0; r < size; r++)
        if (first[r] == first[mesh->world->rank])
            member[members++] = r;
    wf_comm *part = wf_comm_part(mesh->world, member, members);
    /* Ranks along the other axes hold copies, whose gradients are to be added in one order. */
    if (part && part->reducer->shares && members > 1 && !lie_alike(mesh, first))
        part->reducer = wf_reducer_find("flat");
    free(first);
    return part;
}

_Static_assert(WF_ALL_AXES == (1 << WF_AXES) - 1, "WF_ALL_AXES has a bit for each axis");

wf_comm *wf_mesh_comm(const wf_mesh *mesh, wf_axis_set axes)
{
    WF_NEED_NULL(mesh);
    WF_CHECK_NULL((unsigned)axes <= WF_ALL_AXES, WF_ERR_ARGUMENT,
                  "a set of mesh axes (%u) has bits beyond \"stage\", the last one", (unsigned)axes);
    /* Axes of size 1 make no difference, so that data and data with height are one communicator where height is 1. */
    const unsigned split = wf_mesh_split_axes(mesh, axes);
    /* Along all axes: no second communicator of the same ranks. */
    if (split == wf_mesh_split_axes(mesh, WF_ALL_AXES))
        return mesh->world;
    if (!mesh->kept->comm[split])
        mesh->kept->comm[split] = part_of(mesh, split); /* wf_mesh_open makes those of single axes */
    return mesh->kept->comm[split];
}

wf_comm *wf_mesh_world(const wf_mesh *mesh)
{
    WF_NEED_NULL(mesh);
    return mesh ? mesh->world : NULL;
}

int wf_mesh_size(const wf_mesh *mesh, wf_axis axis)
{
    return mesh && axis >= 0 && axis < WF_AXES ? mesh->size[axis] : 0;
}

int wf_mesh_rank(const wf_mesh *mesh, wf_axis axis)
{
    return mesh && axis >= 0 && axis < WF_AXES ? mesh->place[axis] : 0;
}

const char *wf_mesh_text(const wf_mesh *mesh)
{
    return mesh ? mesh->kept->text : "";
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void asked_sizes(wf_mesh_opts opts, int size[WF_AXES])
{
    size[WF_AXIS_DATA] = opts.data;
    size[WF_AXIS_CHANNEL] = opts.channel;
    size[WF_AXIS_DEPTH] = opts.depth;
    size[WF_AXIS_HEIGHT] = opts.height;
    size[WF_AXIS_WIDTH] = opts.width;
    size[WF_AXIS_STAGE] = opts.stage;
}

static wf_status compare(const wf_comm *comm, const int *all)
{
    for (int r = 1; r < comm->size; r++)
        for (int a = 0; a < WF_AXES; a++)
            WF_CHECK(all[r * WF_AXES + a] == all[a], WF_ERR_ARGUMENT,
                     "rank %s opens a mesh with %s %d and rank %s with %s %d; all ranks give the same options",
                     WF_RANK(comm, 0), wf_axis_name((wf_axis)a), all[a], WF_RANK(comm, r), wf_axis_name((wf_axis)a),
                     all[r * WF_AXES + a]);
    return WF_OK;
}

/* All ranks see all options, so that all come to the same end. */
static wf_status agree_opts(wf_comm *comm, const int size[WF_AXES])
{
    int *all = wf_malloc(comm->shared->ctx, (size_t)comm->size * WF_AXES * sizeof *all);
    if (!all)
        return wf_comm_post_failure(comm, wf_error_code());
    wf_status status = wf_allgather_bytes(comm, size, WF_AXES * sizeof *size, all);
    if (status == WF_OK)
        status = compare(comm, all);
    wf_comm_release(comm, all);
    return status;
}

/* Writes the sizes that were asked for as a product. */
static const char *product_text(const int size[WF_AXES], char text[WF_MESH_TEXT])
{
    unsigned asked = 0;
    for (int a = 0; a < WF_AXES; a++)
        asked |= size[a] > 0 ? 1u << a : 0;
    return list_axes(asked, size, " x ", text);
}

static wf_status complete_sizes(int size[WF_AXES], int ranks)
{
    char text[WF_MESH_TEXT];
    int64_t product = 1;
    for (int a = 0; a < WF_AXES; a++) {
        WF_CHECK(size[a] >= 0 && size[a] <= ranks, WF_ERR_ARGUMENT,
                 "a mesh with %s %d on %d ranks, should be 0 (the default) to %d", wf_axis_name((wf_axis)a), size[a],
                 ranks, ranks);
        product *= size[a] ? size[a] : 1;
    }
    /* The data axis takes what the others leave, so a program runs on any number of ranks that they divide. */
    if (size[WF_AXIS_DATA] == 0) {
        WF_CHECK(ranks % product == 0, WF_ERR_ARGUMENT, "a mesh of %s does not divide the %d ranks",
                 product_text(size, text), ranks);
        size[WF_AXIS_DATA] = (int)(ranks / product);
        product = ranks;
    }
    WF_CHECK(product == ranks, WF_ERR_ARGUMENT,
             "a mesh of %s has %lld ranks and the communicator %d; data 0 takes what remains", product_text(size, text),
             (long long)product, ranks);
    for (int a = 0; a < WF_AXES; a++)
        size[a] = size[a] ? size[a] : 1;
    return WF_OK;
}

static wf_status furnish_mesh(wf_mesh *mesh, wf_comm *comm, const int size[WF_AXES])
{
    const wf_status status = wf_mesh_init(mesh, comm, size);
    if (status != WF_OK)
        return wf_comm_post_failure(comm, status);
    for (int i = 0; i < WF_AXES; i++)
        /* Made here, in one order on all ranks; making a communicator is a collective, which later calls of some ranks
         * alone could not be. */
        if (!wf_mesh_comm(mesh, WF_AXIS_BIT(wf_mesh_order[i])))
            return wf_error_code();
    return WF_OK;
}

wf_mesh *wf_mesh_open(wf_comm *comm, wf_mesh_opts opts)
{
    int size[WF_AXES];
    WF_NEED_NULL(comm);
    asked_sizes(opts, size);
    WF_TRY_NULL(agree_opts(comm, size));
    WF_TRY_NULL(complete_sizes(size, comm->size));
    wf_mesh *mesh = wf_calloc(comm->shared->ctx, 1, sizeof *mesh);
    if (!mesh) {
        wf_comm_post_failure(comm, wf_error_code());
        return wf_error_null();
    }
    mesh->ctx = comm->shared->ctx;
    wf_live_add(mesh->ctx, WF_LIVE_COMM, 1);
    if (furnish_mesh(mesh, comm, size) == WF_OK)
        return mesh;
    wf_mesh_close(mesh);
    return wf_error_null();
}

void wf_mesh_clear(wf_mesh *mesh)
{
    wf_mesh_kept *kept = mesh->kept;
    mesh->kept = NULL;
    if (!kept)
        return;
    wf_mesh_list_clear(&kept->exchanges);
    wf_mesh_list_clear(&kept->bounds);
    for (unsigned set = 0; set < 1u << WF_AXES; set++)
        /* After the exchanges, which use them. */
        (void)wf_comm_close(kept->comm[set]);
    free(kept);
}

void wf_mesh_close(wf_mesh *mesh)
{
    if (!mesh)
        return;
    wf_mesh_clear(mesh);
    wf_live_add(mesh->ctx, WF_LIVE_COMM, -1);
    free(mesh);
}
