/* The reducer "pure_nccl": whether NCCL fits the ranks and their GPUs, and sums of gradients by it. names.c asks, sum.c
 * calls. */
#include "comm/nccl_author.h"
#include "comm/reduce/reduce_impl.h"

#include <stdio.h>
#include <string.h>

typedef struct gpu {
    char identity[WF_DEVICE_IDENTITY];
    bool shared; /* this rank's NCCL takes other ranks on its GPU */
} gpu;

wf_status wf_reducer_nccl_fits(wf_comm *comm, char why[WF_WHY])
{
    wf_ctx *ctx = comm->shared->ctx;
    gpu mine = {.shared = wf_nccl_shares_gpu()};
    const size_t bytes = (size_t)comm->size * sizeof mine;
    void *memory;
    wf_status status;
    why[0] = 0;
    if (ctx->k->host)
        snprintf(why, WF_WHY, "device \"%s\" is no GPU, and NCCL needs one", wf_ctx_device(ctx));
    else if (!wf_nccl_built())
        snprintf(why, WF_WHY, "this build has no NCCL");
    if (why[0])
        return WF_OK;
    /* All ranks must come to the same answer, so every rank looks at the identities of all GPUs. */
    WF_TRY(wf_comm_post_failure(comm, ctx->k->device_identity(ctx, mine.identity)));
    WF_TRY(wf_host_take(comm, bytes, &memory));
    const gpu *all = memory;
    WF_TRY_OUT(wf_allgather_bytes(comm, &mine, sizeof mine, memory));
    for (int r = 1; r < comm->size; r++)
        for (int q = 0; q < r && !why[0]; q++)
            /* NCCL itself would fail with a message that names neither rank. */
            if (!(all[q].shared && all[r].shared) && !strncmp(all[q].identity, all[r].identity, WF_DEVICE_IDENTITY))
                snprintf(why, WF_WHY, "ranks %d and %d share GPU %.60s, and NCCL takes one rank a GPU", q, r,
                         all[r].identity);
out:
    wf_host_give(comm, memory, bytes);
    return status;
}

wf_status wf_reducer_nccl_connect(wf_comm *comm)
{
    char why[WF_WHY];
    WF_TRY(wf_reducer_nccl_fits(comm, why));
    if (why[0])
        return wf_comm_post_failure(
            comm,
            WF_RAISE(WF_ERR_UNSUPPORTED, "communicator \"pure_nccl\": %s; \"auto\" chooses one that works here", why));
    return wf_nccl_wanted(comm) ? wf_nccl_open(comm) : WF_OK;
}

static wf_status sum(wf_comm *comm, const wf_reduce_job *job)
{
    const int64_t count = job->segments > 0 ? job->offset[job->segments] - job->offset[0] : 0;
    const wf_call_record record = wf_call_record_values("pure_nccl", job->dtype, count, (int)WF_SUM, -1);
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_enter(comm, &record));
    if (count > 0) {
        char *first = (char *)job->flat + (size_t)job->offset[0] * wf_dtype_size(job->dtype);
        const bool narrow = comm->grad_dtype_set && comm->grad_dtype != job->dtype;
        const int64_t rounded = narrow ? job->offset[job->segments - job->exact] - job->offset[0] : 0;
        char *rest = first + (size_t)rounded * wf_dtype_size(job->dtype);
        /* In grad_dtype: half the bytes, and sums that are rounded at every step. */
        if (rounded > 0)
            WF_TRY(wf_native_reduce_as(comm, first, first, rounded, job->dtype, comm->grad_dtype, WF_SUM, -1));
        WF_TRY(wf_nccl_reduce(comm, rest, rest, count - rounded, job->dtype, WF_SUM, -1));
    }
    return wf_guard_settle(comm);
}

/* One all-reduce of everything by NCCL. */
wf_status wf_reducer_nccl_sum(wf_comm *comm, const wf_reduce_job *job)
{
    WF_NEED(comm);
    /* One rank has its sum already. */
    if (!comm->nccl)
        return wf_comm_alive(comm);
    return wf_guard_end(comm, "pure_nccl", sum(comm, job));
}

wf_status wf_comm_set_grad_dtype(wf_comm *comm, wf_dtype dtype)
{
    WF_NEED(comm);
    WF_CHECK(!comm->reducer->build, WF_ERR_UNSUPPORTED,
             "communicator \"%s\" sends gradients in their own type; only \"pure_nccl\" has another grad_dtype",
             comm->name);
    WF_CHECK(dtype == WF_F32 || dtype == WF_F16 || dtype == WF_BF16, WF_ERR_DTYPE,
             "gradients go as f32, f16 or bf16, not as %s", wf_dtype_name(dtype));
    comm->grad_dtype_set = true;
    comm->grad_dtype = dtype;
    return WF_OK;
}
