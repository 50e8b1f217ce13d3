/* Saves and loads named sums: of every rank, since a mean continues to the bit only if each rank goes on with its own
 * sum. */
#include "comm/comm_author.h"
#include "core/context_author.h"
#include "optim/evaluator_impl.h"

#include <stdlib.h>
#include <string.h>

#define MOST_NAMES 65536 /* more in an archive are taken for damage */

/* The archive's `bytes` of host memory, as a tensor; `part`, where it is a part. */
static wf_status visit_host(wf_ctx *ctx, wf_archive *archive, const char *name, wf_tensor *tensor,
                            const wf_archive_place *part, void *host)
{
    WF_NEED(tensor);
    const size_t bytes = wf_tensor_bytes(tensor);
    if (!wf_archive_loading(archive))
        WF_TRY(wf_tensor_import(tensor, host, bytes));
    WF_TRY(part ? wf_archive_part(archive, name, tensor, *part) : wf_archive_tensor(archive, name, tensor));
    return wf_archive_loading(archive) ? wf_tensor_export(tensor, host, bytes) : WF_OK;
}

/* Loading empties the list first; it then has the archive's names, and sums of 0, to which values are added. */
static wf_status visit_names(wf_ctx *ctx, wf_sums *sums, int64_t n, wf_archive *archive)
{
    char *names = wf_calloc(ctx, (size_t)n, WF_SUM_NAME);
    if (!names)
        return wf_error_code();
    for (int64_t i = 0; !wf_archive_loading(archive) && i < n; i++)
        memcpy(names + i * WF_SUM_NAME, sums->item[i].name, WF_SUM_NAME);
    wf_tensor *tensor = wf_tensor_new(ctx, WF_U8, WF_SHAPE(n, WF_SUM_NAME));
    wf_status status = visit_host(ctx, archive, "names", tensor, NULL, names);
    wf_tensor_free(tensor);
    for (int64_t i = 0; status == WF_OK && wf_archive_loading(archive) && i < n; i++) {
        /* Text from a file may lack its end. */
        names[(i + 1) * WF_SUM_NAME - 1] = '\0';
        status = wf_sums_add(ctx, sums, names + i * WF_SUM_NAME, 0, 0);
    }
    /* Names that are added twice are one entry, so the numbers differ if two are equal. */
    if (status == WF_OK && sums->n != n)
        status = WF_RAISE(WF_ERR_FORMAT, "%lld names in the archive are not all different", (long long)n);
    free(names);
    return status;
}

/* A number beyond the bound is damage: memory is taken by it next. */
static wf_status visit_count(wf_sums *sums, wf_archive *archive, int64_t *n)
{
    *n = sums->n;
    WF_TRY(wf_archive_i64(archive, "count", n));
    WF_CHECK(*n >= 0 && *n <= MOST_NAMES, WF_ERR_FORMAT, "the archive holds %lld named sums", (long long)*n);
    /* The list is emptied only after the number was found good. */
    if (wf_archive_loading(archive))
        sums->n = 0;
    return WF_OK;
}

/* Pairs of sum and weight. */
static void values_take(const wf_sums *sums, double *values)
{
    for (int64_t i = 0; i < sums->n; i++) {
        values[2 * i] = sums->item[i].sum;
        values[2 * i + 1] = sums->item[i].weight;
    }
}

static void values_add(wf_sums *sums, const double *values)
{
    for (int64_t i = 0; i < sums->n; i++) {
        sums->item[i].sum += values[2 * i];
        sums->item[i].weight += values[2 * i + 1];
    }
}

wf_status wf_sums_visit(wf_ctx *ctx, wf_sums *sums, wf_archive *archive)
{
    int64_t n;
    WF_TRY(visit_count(sums, archive, &n));
    if (n == 0)
        return WF_OK;
    WF_TRY(visit_names(ctx, sums, n, archive));
    double *values = wf_calloc(ctx, (size_t)n, 2 * sizeof *values);
    if (!values)
        return wf_error_code();
    values_take(sums, values);
    wf_tensor *tensor = wf_tensor_new(ctx, WF_F64, WF_SHAPE(n, 2));
    const wf_status status = visit_host(ctx, archive, "values", tensor, NULL, values);
    if (status == WF_OK && wf_archive_loading(archive))
        values_add(sums, values);
    wf_tensor_free(tensor);
    free(values);
    return status;
}

/* --- The sums of every rank --------------------------------------------------------------------------------------- */

/* Gives all ranks the same names in the same order, that of wf_evaluator_finish: first rank 0's, then what other ranks
 * have beyond them. */
static wf_status unite(wf_evaluator *evaluator, int64_t most, char *all)
{
    wf_comm *comm = evaluator->comm;
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_sums united = {0};
    wf_status status = WF_OK;
    const int64_t bytes = most * WF_SUM_NAME, size = wf_comm_size(comm);
    char *own = all + size * bytes;
    memset(own, 0, (size_t)bytes);
    /* Copied with all bytes behind the name, which are zero, so equal names are equal bytes. */
    for (int64_t i = 0; i < evaluator->local.n; i++)
        memcpy(own + i * WF_SUM_NAME, evaluator->local.item[i].name, WF_SUM_NAME);
    WF_TRY(wf_allgather_bytes(comm, own, (size_t)bytes, all));
    /* Ranks with fewer names send empty ones, which are left out. */
    for (int64_t i = 0; status == WF_OK && i < size * most; i++)
        if (all[i * WF_SUM_NAME])
            status = wf_sums_add(ctx, &united, all + i * WF_SUM_NAME, 0, 0);
    for (int64_t i = 0; status == WF_OK && i < evaluator->local.n; i++) {
        const wf_sum_entry *e = &evaluator->local.item[i];
        status = wf_sums_add(ctx, &united, e->name, e->sum, e->weight);
    }
    /* Exactly one of the lists is dropped: the old one, or the one that failed. */
    free(status == WF_OK ? evaluator->local.item : united.item);
    if (status == WF_OK)
        evaluator->local = united;
    return status;
}

static wf_status unite_names(wf_evaluator *evaluator)
{
    void *all = NULL;
    int64_t most = evaluator->local.n;
    WF_TRY(wf_allreduce_i64(evaluator->comm, &most, 1, WF_MAX));
    if (most == 0)
        return WF_OK;
    const size_t bytes = (size_t)(wf_comm_size(evaluator->comm) + 1) * (size_t)most * WF_SUM_NAME;
    wf_status status = wf_host_take(evaluator->comm, bytes, &all);
    if (status == WF_OK)
        status = unite(evaluator, most, all);
    wf_host_give(evaluator->comm, all, bytes);
    return status;
}

/* values: room for `ranks` times the list. [ranks, n, 2] in the archive. Loaded by another number of ranks, the first
 * takes the sums of all. */
static wf_status visit_values(wf_evaluator *evaluator, int64_t ranks, double *values, wf_archive *archive)
{
    wf_sums *sums = &evaluator->local;
    wf_ctx *ctx = wf_comm_ctx(evaluator->comm);
    const int64_t n = sums->n, rank = wf_comm_rank(evaluator->comm), size = wf_comm_size(evaluator->comm);
    const wf_shape global = WF_SHAPE(ranks, n, 2);
    /* The place of this rank's pairs in the whole. */
    const wf_archive_place own = {.global = global, .box = {.rank = 3, .lo = {rank}, .hi = {rank + 1, n, 2}}};
    values_take(sums, values);
    /* With another number of ranks each rank reads the whole array. */
    wf_tensor *tensor = wf_tensor_new(ctx, WF_F64, ranks == size ? WF_SHAPE(1, n, 2) : global);
    const wf_status status = visit_host(ctx, archive, "values", tensor, ranks == size ? &own : NULL, values);
    wf_tensor_free(tensor);
    if (status != WF_OK || !wf_archive_loading(archive))
        return status;
    if (ranks == size)
        values_add(sums, values);
    /* On one rank, so that the sum over the ranks has each value once; its order of additions differs from before. */
    for (int64_t r = 0; ranks != size && rank == 0 && r < ranks; r++)
        values_add(sums, values + 2 * n * r);
    return WF_OK;
}

static wf_status visit_own(wf_evaluator *evaluator, wf_archive *archive)
{
    int64_t n, ranks = wf_comm_size(evaluator->comm);
    wf_ctx *ctx = wf_comm_ctx(evaluator->comm);
    /* Names must be the same on all ranks, since the archive has them once. */
    if (!wf_archive_loading(archive))
        WF_TRY(unite_names(evaluator));
    WF_TRY(wf_archive_i64(archive, "ranks", &ranks));
    WF_CHECK(ranks > 0 && ranks <= INT32_MAX, WF_ERR_FORMAT, "the archive holds sums of %lld ranks", (long long)ranks);
    WF_TRY(visit_count(&evaluator->local, archive, &n));
    if (n == 0)
        return WF_OK;
    WF_TRY(visit_names(ctx, &evaluator->local, n, archive));
    double *values = wf_calloc(ctx, (size_t)(ranks * n), 2 * sizeof *values);
    if (!values)
        return wf_error_code();
    const wf_status status = visit_values(evaluator, ranks, values, archive);
    free(values);
    return status;
}

wf_status wf_evaluator_archive(wf_evaluator *evaluator, wf_archive *archive)
{
    WF_NEED(evaluator);
    WF_NEED(archive);
    return visit_own(evaluator, archive);
}
