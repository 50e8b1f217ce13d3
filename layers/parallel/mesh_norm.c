/* Statistics and sums of groups that the axes of a mesh cut. Statistics travel in f64 as counts, means and squared
 * deviations, and every rank joins them in the order of ranks, so all get the same bits. Every rank knows from the
 * layout alone which axes cut groups and how many groups there are: no message says so. */
#include "layers/mesh_norm.h"

#include "comm/comm_author.h"
#include "layers/parallel/parallel_impl.h"

/* all: room for a part of every rank; behind them this rank's own. */
static wf_status gather_slices(wf_comm *comm, wf_ctx *ctx, const wf_group_norm_args *args, double *all,
                               const wf_array *sums)
{
    const int64_t columns = args->rows * args->groups, size = wf_comm_size(comm);
    const wf_array own = {.data = all + size * 3 * columns, .dtype = WF_F64, .shape = WF_SHAPE(3, columns)};
    const wf_array parts = {.data = all, .dtype = WF_F64, .shape = WF_SHAPE(size, 3, columns)};
    wf_group_norm_args of = *args;
    of.sums = &own;
    WF_TRY(ctx->k->group_norm_stats(ctx, &of));
    WF_TRY(wf_allgather_raw(comm, own.data, (size_t)(3 * columns) * sizeof(double), all));
    return ctx->k->group_norm_merge(ctx, &parts, sums);
}

static wf_status merge_stats(const wf_mesh *mesh, unsigned axes, wf_ctx *ctx, const wf_group_norm_args *args,
                             const wf_array *sums)
{
    wf_comm *comm = wf_mesh_comm(mesh, axes);
    WF_NEED(comm);
    const int64_t columns = args->rows * args->groups;
    const size_t bytes = (size_t)((wf_comm_size(comm) + 1) * 3 * columns) * sizeof(double);
    void *all;
    /* Ranks that share groups have the same samples, so all of them or none have no group at all. */
    if (columns == 0)
        return WF_OK;
    WF_TRY(wf_pool_take(ctx, bytes, &all));
    const wf_status status = gather_slices(comm, ctx, args, all, sums);
    wf_pool_give(ctx, all, bytes);
    return status;
}

/* All ranks of the axes have the same samples and groups, so all of them or none return early. */
static wf_status merge_sums(const wf_mesh *mesh, unsigned axes, const wf_array *sums)
{
    wf_comm *comm = wf_mesh_comm(mesh, axes);
    WF_NEED(comm);
    if (wf_array_count(sums) == 0)
        return WF_OK;
    return wf_allreduce_raw(comm, sums->data, sums->data, wf_array_count(sums), WF_F64, WF_SUM);
}

/* The layer decides when to merge; this struct borrows the mesh and owns nothing. */
wf_group_merge wf_group_merge_mesh(const wf_mesh *mesh)
{
    return (wf_group_merge){.mesh = mesh, .stats = merge_stats, .sums = merge_sums};
}

static wf_ctx *ctx_of(const wf_mesh *mesh)
{
    return wf_comm_ctx(wf_mesh_world(mesh));
}

wf_layer *wf_mesh_layernorm(const wf_mesh *mesh, wf_layernorm_opts opts)
{
    WF_NEED_NULL(mesh);
    return wf_group_norm_merged(wf_layernorm(ctx_of(mesh), opts), wf_group_merge_mesh(mesh));
}

wf_layer *wf_mesh_rmsnorm(const wf_mesh *mesh, wf_rmsnorm_opts opts)
{
    WF_NEED_NULL(mesh);
    return wf_group_norm_merged(wf_rmsnorm(ctx_of(mesh), opts), wf_group_merge_mesh(mesh));
}

wf_layer *wf_mesh_groupnorm(const wf_mesh *mesh, wf_groupnorm_opts opts)
{
    WF_NEED_NULL(mesh);
    return wf_group_norm_merged(wf_groupnorm(ctx_of(mesh), opts), wf_group_merge_mesh(mesh));
}

wf_layer *wf_mesh_instancenorm(const wf_mesh *mesh, wf_instancenorm_opts opts)
{
    WF_NEED_NULL(mesh);
    return wf_group_norm_merged(wf_instancenorm(ctx_of(mesh), opts), wf_group_merge_mesh(mesh));
}
