/* Merges batch statistics over ranks. They are sent in double, and every rank merges them in the order of ranks, so
 * all get the same bits. Statistics and counts stay in device memory; the host takes part only where messages need
 * it. */
#include "layers/sync_norm.h"

#include "comm/comm_author.h"
#include "core/boundary_author.h"
#include "core/captured_author.h"
#include "layers/parallel/parallel_impl.h"

#include <stdlib.h>
#include <string.h>

/* Sent ahead of mean and m2, as the numbers of a wf_norm_head: where this rank's part of the input lies in the whole.
 * They let the ranks check that their parts together are whole samples. */
typedef struct norm_header {
    double count;                     /* elements in each column; first, since the kernel reads it */
    double first_sample, last_sample; /* [first, last) */
    double first_pixel;               /* place of the part's first pixel in the image, row-major */
    double pixels, all_pixels;        /* of a sample: in the part, and of the whole image */
} norm_header;

#define HEAD  ((int64_t)(sizeof(norm_header) / sizeof(double)))
#define KNOWN 8 /* layouts of inputs that a layer meets in turn: full and last batches, several sizes of images */

/* The ranks of comm hold whole samples together where this rank has this part. */
typedef struct checked {
    const wf_comm *comm;
    norm_header header;
} checked;

/* The ranks over which statistics are merged, and the last KNOWN parts of this rank that were checked. */
typedef struct over {
    const char *name; /* in errors; a literal */
    wf_comm *comm;    /* NULL: those of the mesh along the spatial axes that shard the input, */
    const wf_mesh *mesh;
    bool samples; /* and along data */
    checked known[KNOWN];
    unsigned checks;
} over;

/* The communicator of the ranks that hold other parts, without those that hold copies of the same part. NULL on
 * failure. */
static wf_comm *comm_for(const over *o, const wf_tensor *x)
{
    const wf_layout *layout = &x->layout;
    const bool whole = layout->known && layout->placement[WF_AXIS_DATA] == WF_REPLICATED;
    unsigned axes = o->samples && !whole ? WF_AXIS_BIT(WF_AXIS_DATA) : 0;
    for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++)
        if (layout->known && layout->placement[a] == WF_SHARDED)
            axes |= 1u << a;
    return o->comm ? o->comm : wf_mesh_comm(o->mesh, axes);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Numbers as doubles, since they travel with the statistics in one message; they are exact up to 2^53. */
static norm_header describe(const wf_tensor *x, double count)
{
    const wf_layout *layout = &x->layout;
    norm_header p = {.count = count, .last_sample = (double)x->shape.dim[0], .pixels = 1, .all_pixels = 1};
    if (!layout->known)
        return p;
    p.first_sample = (double)layout->box.lo[0];
    p.last_sample = (double)layout->box.hi[0];
    for (int d = 2; d < x->shape.rank; d++) {
        /* Row-major place of the part's first pixel, which names the part. */
        p.first_pixel = p.first_pixel * (double)layout->global.dim[d] + (double)layout->box.lo[d];
        p.pixels *= (double)x->shape.dim[d];
        p.all_pixels *= (double)layout->global.dim[d];
    }
    return p;
}

/* Checks that the ranks which have this rank's samples hold all of their pixels, each exactly once. */
static wf_status check_whole(const char *name, const norm_header *all, int size, const norm_header *mine)
{
    double seen = 0;
    int copies = 0;
    for (int r = 0; r < size; r++) {
        const norm_header *other = &all[r];
        /* A rank with fewer samples than this one cannot be the rest of its images. */
        if (other->first_sample > mine->first_sample || other->last_sample < mine->last_sample || other->count <= 0)
            continue;
        seen += other->pixels;
        copies += other->first_pixel == mine->first_pixel;
    }
    WF_CHECK(copies <= 1, WF_ERR_ARGUMENT,
             "%s: %d of the %d ranks of its communicator hold the same part; it should hold the ranks along "
             "the mesh axes that cut the input (wf_mesh_comm), as wf_parallelize does",
             name, copies, size);
    WF_CHECK(seen >= mine->all_pixels, WF_ERR_ARGUMENT,
             "%s: the %d ranks of its communicator hold %.0f of the %.0f pixels of a sample; it should hold "
             "all ranks along the mesh axes that cut the pixels (wf_mesh_comm)",
             name, size, seen, mine->all_pixels);
    return WF_OK;
}

static bool is_known(const over *o, const wf_comm *comm, const norm_header *mine)
{
    for (int i = 0; i < KNOWN; i++)
        if (o->known[i].comm == comm && !memcmp(&o->known[i].header, mine, sizeof *mine))
            return true;
    return false;
}

static wf_status read_heads(wf_ctx *ctx, int size, const double *all, int64_t n, norm_header *heads)
{
    for (int r = 0; r < size; r++)
        WF_TRY(wf_ctx_capture_read(ctx, &heads[r], all + r * n, sizeof *heads));
    return WF_OK;
}

/* The host reads the received heads only when this rank's part is new, so steps of a fixed shape read nothing from
 * the device, and a captured step was checked in its rehearsal. If two parts do not fit, both ranks find it. */
static wf_status check_parts(over *o, wf_comm *comm, const wf_tensor *x, const norm_header *mine, const double *all,
                             int64_t n)
{
    const int size = wf_comm_size(comm);
    const size_t bytes = (size_t)size * sizeof(norm_header);
    void *heads;
    if (!x->layout.known || mine->count <= 0 || is_known(o, comm, mine) || wf_ctx_capturing(x->ctx))
        return WF_OK;
    WF_TRY(wf_pool_take_host(x->ctx, bytes, &heads));
    wf_status status = read_heads(x->ctx, size, all, n, heads);
    if (status == WF_OK)
        status = check_whole(o->name, heads, size, mine);
    wf_pool_give_host(x->ctx, heads, bytes);
    if (status == WF_OK)
        o->known[o->checks++ % KNOWN] = (checked){comm, *mine};
    return status;
}

/* all: room for a part of every rank; after them this rank's own. Collective: every rank comes here for every
 * application, also with an empty part. */
static wf_status merge_stats(over *o, wf_comm *comm, const wf_tensor *x, double count, const wf_array *stats,
                             const wf_array *total, double *all)
{
    const wf_kernels *k = x->ctx->k;
    const int64_t n = HEAD + wf_array_count(stats), size = wf_comm_size(comm);
    const norm_header mine = describe(x, count);
    const wf_array mean = wf_norm_row(stats, 0), m2 = wf_norm_row(stats, 1);
    const wf_array own = {.data = all + size * n, .dtype = WF_F64, .shape = WF_SHAPE(n)};
    const wf_array parts = {.data = all, .dtype = WF_F64, .shape = WF_SHAPE(size, n)};
    wf_norm_head head = {.n = (int)HEAD};
    memcpy(head.value, &mine, sizeof mine);
    WF_TRY(k->norm_part(x->ctx, &head, &mean, &m2, &own));
    WF_TRY(wf_allgather_raw(comm, own.data, (size_t)n * sizeof(double), all));
    WF_TRY(check_parts(o, comm, x, &mine, all, n));
    return k->norm_merge(x->ctx, &parts, &mean, &m2, total);
}

static wf_status stats(void *user, const wf_tensor *x, double count, const wf_array *stats, const wf_array *total)
{
    wf_comm *comm = comm_for(user, x);
    WF_NEED(comm);
    const size_t bytes = (size_t)((wf_comm_size(comm) + 1) * (HEAD + wf_array_count(stats))) * sizeof(double);
    void *all;
    WF_TRY(wf_pool_take(x->ctx, bytes, &all));
    const wf_status status = merge_stats(user, comm, x, count, stats, total, all);
    wf_pool_give(x->ctx, all, bytes);
    return status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static wf_status sum_wide(wf_comm *comm, wf_ctx *ctx, const wf_array *sums, void *wide)
{
    const int64_t n = wf_array_count(sums);
    const wf_strided own = wf_strided_row(sums->data, sums->dtype, n), all = wf_strided_row(wide, WF_F64, n);
    WF_TRY(ctx->k->copy(ctx, &own, &all, false));
    WF_TRY(wf_allreduce_raw(comm, wide, wide, n, WF_F64, WF_SUM));
    return ctx->k->copy(ctx, &all, &own, false);
}

/* Sums in f64, so that the order of ranks shows less than the rounding to f32. */
static wf_status sums(void *user, const wf_tensor *x, const wf_array *sums)
{
    wf_comm *comm = comm_for(user, x);
    const int64_t n = wf_array_count(sums);
    void *wide;
    WF_NEED(comm);
    if (wf_comm_size(comm) == 1)
        return WF_OK;
    if (sums->dtype == WF_F64)
        return wf_allreduce_raw(comm, sums->data, sums->data, n, WF_F64, WF_SUM);
    WF_TRY(wf_pool_take(x->ctx, (size_t)n * sizeof(double), &wide));
    const wf_status status = sum_wide(comm, x->ctx, sums, wide);
    wf_pool_give(x->ctx, wide, (size_t)n * sizeof(double));
    return status;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

/* One struct for each layer: what was checked depends on the layer's inputs. */
static wf_status make_merge(wf_ctx *ctx, over from, wf_norm_merge *merge)
{
    over *o = wf_malloc(ctx, sizeof *o);
    WF_NEED(o);
    *o = from;
    *merge = (wf_norm_merge){.comm = from.comm ? from.comm : wf_mesh_world(from.mesh),
                             .stats = stats,
                             .sums = sums,
                             .free = free,
                             .user = o};
    return WF_OK;
}

wf_status wf_norm_merge_over(const char *name, wf_comm *comm, wf_norm_merge *merge)
{
    return make_merge(wf_comm_ctx(comm), (over){.name = name, .comm = comm}, merge);
}

wf_status wf_norm_merge_mesh(const char *name, const wf_mesh *mesh, bool samples, wf_norm_merge *merge)
{
    return make_merge(wf_comm_ctx(wf_mesh_world(mesh)), (over){.name = name, .mesh = mesh, .samples = samples}, merge);
}

wf_layer *wf_sync_batchnorm(wf_comm *comm, wf_batchnorm_opts opts)
{
    wf_norm_merge merge;
    WF_NEED_NULL(comm);
    WF_TRY_NULL(wf_norm_merge_over("sync_batchnorm", comm, &merge));
    return wf_batchnorm_merged(wf_comm_ctx(comm), opts, merge);
}
