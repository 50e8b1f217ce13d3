#include "comm/nccl_author.h"
#include "comm/reduce/reduce_impl.h"

static wf_strided run_of(void *data, wf_dtype dtype, int64_t count)
{
    return (wf_strided){.data = data, .dtype = dtype, .rank = 1, .dim = {count}, .stride = {1}};
}

/* In another type on the wire: half the bytes, and sums that are rounded at every step. */
static wf_status sum_narrow(wf_comm *comm, void *flat, int64_t count, wf_dtype dtype)
{
    wf_ctx *ctx = comm->shared->ctx;
    const size_t bytes = (size_t)count * wf_dtype_size(comm->grad_dtype);
    void *narrow;
    wf_status status;
    WF_TRY(wf_pool_take(ctx, bytes, &narrow));
    const wf_strided wide = run_of(flat, dtype, count), small = run_of(narrow, comm->grad_dtype, count);
    WF_TRY_OUT(ctx->k->copy(ctx, &wide, &small, false));
    WF_TRY_OUT(wf_nccl_allreduce(comm, narrow, narrow, count, comm->grad_dtype, WF_SUM));
    WF_TRY_OUT(wf_nccl_join(comm));
    WF_TRY_OUT(ctx->k->copy(ctx, &small, &wide, false));
out:
    wf_pool_give(ctx, narrow, bytes);
    return status;
}

static wf_status sum(wf_comm *comm, const wf_reduce_job *job)
{
    const int64_t count = job->segments > 0 ? job->offset[job->segments] - job->offset[0] : 0;
    const wf_call_record record = wf_call_record_values("pure_nccl", job->dtype, count, (int)WF_SUM, -1);
    WF_TRY(wf_comm_alive(comm));
    WF_TRY(wf_guard_enter(comm, &record));
    if (count > 0) {
        char *first = (char *)job->flat + (size_t)job->offset[0] * wf_dtype_size(job->dtype);
        if (comm->grad_dtype_set && comm->grad_dtype != job->dtype)
            WF_TRY(sum_narrow(comm, first, count, job->dtype));
        else
            WF_TRY(wf_nccl_allreduce(comm, first, first, count, job->dtype, WF_SUM));
    }
    return wf_guard_settle(comm);
}

/* One all-reduce of everything by NCCL. */
static wf_status reduce(wf_comm *comm, const wf_reduce_job *job)
{
    WF_NEED(comm);
    if (comm->size == 1 || !comm->nccl)
        return wf_comm_alive(comm);
    return wf_guard_end(comm, "pure_nccl", sum(comm, job));
}

wf_status wf_comm_set_grad_dtype(wf_comm *comm, wf_dtype dtype)
{
    WF_NEED(comm);
    WF_CHECK(comm->reducer == &wf_reducer_pure_nccl, WF_ERR_UNSUPPORTED,
             "communicator \"%s\" sends gradients in their own type; only \"pure_nccl\" has another one on the wire",
             comm->name);
    WF_CHECK(dtype == WF_F32 || dtype == WF_F16 || dtype == WF_BF16, WF_ERR_DTYPE,
             "gradients go as f32, f16 or bf16, not as %s", wf_dtype_name(dtype));
    comm->grad_dtype_set = true;
    comm->grad_dtype = dtype;
    return WF_OK;
}

const wf_reducer wf_reducer_pure_nccl = {.name = "pure_nccl", .reduce = reduce};
