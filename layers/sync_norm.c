/* What goes to the others is in double, and every rank merges it in the order of ranks: all get the same bits. */
#include "layers/sync_norm.h"

#include "comm/comm_author.h"
#include "layers/norm_impl.h"

#include <stdlib.h>

/* What travels ahead of mean and m2: how many elements per channel, of which samples, and which of their pixels. */
typedef struct part {
    double count, first_sample, last_sample, first_pixel, pixels, all_pixels;
} part;

#define HEAD ((int64_t)(sizeof(part) / sizeof(double)))

/* What a call needs of host memory. */
typedef struct work {
    wf_comm *comm;
    size_t bytes;
    double *mine, *all; /* HEAD + n numbers; that of every rank */
    void *raw;          /* n numbers in the type of the array */
    bool laid_out;      /* the input has a layout */
} work;

static wf_status work_take(work *w, int64_t n)
{
    const size_t message = (size_t)(HEAD + n) * sizeof(double);
    void *data = NULL;
    w->bytes = message * (size_t)(wf_comm_size(w->comm) + 2);
    WF_TRY(wf_host_take(w->comm, w->bytes, &data));
    w->mine = data;
    w->raw = w->mine + HEAD + n;
    w->all = w->mine + 2 * (HEAD + n);
    return WF_OK;
}

static void work_give(work *w)
{
    wf_host_give(w->comm, w->mine, w->bytes);
}

static wf_status values_in(wf_ctx *ctx, const wf_array *a, void *raw, double *values)
{
    const int64_t n = wf_array_count(a);
    const float *narrow = raw;
    if (a->dtype == WF_F64)
        return wf_ctx_read(ctx, values, a->data, (size_t)n * sizeof(double));
    WF_TRY(wf_ctx_read(ctx, raw, a->data, (size_t)n * sizeof(float)));
    for (int64_t i = 0; i < n; i++)
        values[i] = narrow[i];
    return WF_OK;
}

static wf_status values_out(wf_ctx *ctx, const double *values, void *raw, const wf_array *a)
{
    const int64_t n = wf_array_count(a);
    float *narrow = raw;
    if (a->dtype == WF_F64)
        return ctx->k->to_device(ctx, a->data, values, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (float)values[i];
    return ctx->k->to_device(ctx, a->data, raw, (size_t)n * sizeof(float));
}

/* Forward. */

static part describe(const wf_tensor *x, double count)
{
    const wf_layout *layout = &x->layout;
    part p = {.count = count, .last_sample = (double)x->shape.dim[0], .pixels = 1, .all_pixels = 1};
    if (!layout->known)
        return p;
    p.first_sample = (double)layout->box.lo[0];
    p.last_sample = (double)layout->box.hi[0];
    for (int d = 2; d < x->shape.rank; d++) {
        p.first_pixel = p.first_pixel * (double)layout->global.dim[d] + (double)layout->box.lo[d];
        p.pixels *= (double)x->shape.dim[d];
        p.all_pixels *= (double)layout->global.dim[d];
    }
    return p;
}

/* The ranks that have samples of this one have all of their pixels, and each pixel once. */
static wf_status check_whole(const work *w, int64_t n, const part *mine)
{
    double seen = 0;
    int copies = 0;
    const int size = wf_comm_size(w->comm);
    if (!w->laid_out || mine->count <= 0)
        return WF_OK;
    for (int r = 0; r < size; r++) {
        const part *other = (const part *)(w->all + r * (HEAD + n));
        if (other->first_sample > mine->first_sample || other->last_sample < mine->last_sample || other->count <= 0)
            continue;
        seen += other->pixels;
        copies += other->first_pixel == mine->first_pixel;
    }
    WF_CHECK(
        copies <= 1, WF_ERR_ARGUMENT,
        "sync_batchnorm: %d of the %d ranks of its communicator hold the same part; it should hold the ranks along "
        "the mesh axes that cut the input (wf_mesh_comm_of), as wf_parallelize does",
        copies, size);
    WF_CHECK(
        seen >= mine->all_pixels, WF_ERR_ARGUMENT,
        "sync_batchnorm: the %d ranks of its communicator hold %.0f of the %.0f pixels of a sample; it should hold "
        "all ranks along the mesh axes that cut the pixels (wf_mesh_comm_of)",
        size, seen, mine->all_pixels);
    return WF_OK;
}

/* Of all ranks into `mine`: mean and m2 of the parts seen so far, joined with the next part. */
static void join(work *w, int64_t channels)
{
    const int64_t n = 2 * channels;
    part *total = (part *)w->mine;
    double *mean = w->mine + HEAD, *m2 = mean + channels;
    total->count = 0;
    for (int64_t i = 0; i < n; i++)
        mean[i] = 0;
    for (int r = 0; r < wf_comm_size(w->comm); r++) {
        const part *more = (const part *)(w->all + r * (HEAD + n));
        const double *const its_mean = (const double *)more + HEAD, *const its_m2 = its_mean + channels;
        if (!(more->count > 0))
            continue;
        const double share = more->count / (total->count + more->count), weight = total->count * share;
        for (int64_t c = 0; c < channels; c++) {
            const double d = its_mean[c] - mean[c];
            mean[c] += d * share;
            m2[c] += its_m2[c] + d * d * weight;
        }
        total->count += more->count;
    }
}

static wf_status merge_stats(work *w, const wf_tensor *x, double *count, const wf_array *stats)
{
    const int64_t n = wf_array_count(stats);
    const part mine = describe(x, *count);
    *(part *)w->mine = mine;
    WF_TRY(values_in(x->ctx, stats, w->raw, w->mine + HEAD));
    WF_TRY(wf_allgather_bytes(w->comm, w->mine, (size_t)(HEAD + n) * sizeof(double), w->all));
    WF_TRY(check_whole(w, n, &mine));
    join(w, n / 2);
    *count = ((const part *)w->mine)->count;
    return values_out(x->ctx, w->mine + HEAD, w->raw, stats);
}

static wf_status stats_over(wf_comm *comm, const wf_tensor *x, double *count, const wf_array *stats)
{
    work w = {.comm = comm, .laid_out = x->layout.known};
    WF_NEED(comm);
    WF_TRY(work_take(&w, wf_array_count(stats)));
    const wf_status status = merge_stats(&w, x, count, stats);
    work_give(&w);
    return status;
}

/* Backward. */

static wf_status merge_sums(work *w, wf_ctx *ctx, const wf_array *sums)
{
    WF_TRY(values_in(ctx, sums, w->raw, w->mine));
    WF_TRY(wf_allreduce_f64(w->comm, w->mine, wf_array_count(sums), WF_SUM));
    return values_out(ctx, w->mine, w->raw, sums);
}

static wf_status sums_over(wf_comm *comm, const wf_tensor *x, const wf_array *sums)
{
    work w = {.comm = comm};
    WF_NEED(comm);
    if (wf_comm_size(comm) == 1)
        return WF_OK;
    WF_TRY(work_take(&w, wf_array_count(sums)));
    const wf_status status = merge_sums(&w, x->ctx, sums);
    work_give(&w);
    return status;
}

/* Over a communicator. */

static wf_status comm_stats(void *user, const wf_tensor *x, double *count, const wf_array *stats)
{
    return stats_over(user, x, count, stats);
}

static wf_status comm_sums(void *user, const wf_tensor *x, const wf_array *sums)
{
    return sums_over(user, x, sums);
}

static wf_status comm_failed(void *user, wf_status status)
{
    return wf_comm_post_failure(user, status);
}

wf_norm_merge wf_norm_merge_over(wf_comm *comm)
{
    return (wf_norm_merge){.stats = comm_stats, .sums = comm_sums, .failed = comm_failed, .user = comm};
}

wf_layer *wf_sync_batchnorm(wf_comm *comm, wf_batchnorm_opts opts)
{
    return comm ? wf_batchnorm_merged(wf_comm_ctx(comm), opts, wf_norm_merge_over(comm)) : NULL;
}

/* Over a mesh. */

typedef struct over_mesh {
    const wf_mesh *mesh;
    bool samples;
} over_mesh;

/* The ranks that hold other parts; none of the copies. NULL on failure. */
static wf_comm *comm_for(const over_mesh *m, const wf_tensor *x)
{
    const wf_layout *layout = &x->layout;
    unsigned axes = m->samples ? 1u << WF_AXIS_DATA : 0;
    for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++)
        if (layout->known && layout->placement[a] == WF_SHARDED)
            axes |= 1u << a;
    return wf_mesh_comm_of(m->mesh, axes);
}

static wf_status mesh_stats(void *user, const wf_tensor *x, double *count, const wf_array *stats)
{
    return stats_over(comm_for(user, x), x, count, stats);
}

static wf_status mesh_sums(void *user, const wf_tensor *x, const wf_array *sums)
{
    return sums_over(comm_for(user, x), x, sums);
}

static wf_status mesh_failed(void *user, wf_status status)
{
    return wf_comm_post_failure(wf_mesh_world(((const over_mesh *)user)->mesh), status);
}

wf_status wf_norm_merge_mesh(const wf_mesh *mesh, bool samples, wf_norm_merge *merge)
{
    over_mesh *user = wf_malloc(wf_comm_ctx(wf_mesh_world(mesh)), sizeof *user);
    WF_NEED(user);
    *user = (over_mesh){mesh, samples};
    *merge = (wf_norm_merge){.stats = mesh_stats, .sums = mesh_sums, .failed = mesh_failed, .free = free, .user = user};
    return WF_OK;
}
