/* Sums gradients in a narrower type than the one they are computed in: rounds, sums in f32, widens. Called by the
 * buckets with `grad_dtype`, never for f32. */
#include "core/boundary_author.h"
#include "core/captured_author.h"
#include "optim/multi_node_impl.h"

#include <math.h>

/* Finds a sum that exceeded the range of f16, or a gradient that was not finite: the sum of squares is then not finite.
 */
static wf_status check_overflow(wf_buckets *all, void *data, int64_t count)
{
    wf_ctx *ctx = all->optim->ctx;
    double *device = &all->optim->device->sum_squares, squares = 0;
    const wf_array sums = {.data = data, .dtype = WF_F32, .shape = WF_SHAPE(count)};
    const wf_array out = {.data = device, .dtype = WF_F64, .shape = wf_shape_scalar()};
    WF_TRY(ctx->k->sum_squares(ctx, &sums, &out, false));
    WF_TRY(wf_ctx_forbid_capture(ctx, "look for overflow in flight, as f16 needs", "let gradients travel as WF_BF16"));
    WF_TRY(wf_ctx_capture_read(ctx, &squares, device, sizeof squares));
    if (!isfinite(squares))
        all->trailer[WF_TRAILER_OVERFLOW] = 1;
    return WF_OK;
}

static wf_status narrow(void *own)
{
    const wf_bucket *bucket = own;
    const wf_buckets *all = bucket->all;
    const int64_t base = all->offset[bucket->first], count = all->offset[bucket->last] - base;
    float *flat = all->grads->flat->data;
    const wf_strided mine = wf_strided_row(flat + base, WF_F32, count);
    const wf_strided sent = wf_strided_row(all->narrow, all->opts.grad_dtype, count);
    return all->optim->ctx->k->copy(all->optim->ctx, &mine, &sent, false);
}

/* With sharded state a rank has the sums of its own part alone. */
static wf_status widen_sums(void *own)
{
    const wf_bucket *bucket = own;
    wf_buckets *all = bucket->all;
    wf_ctx *ctx = all->optim->ctx;
    const size_t size = wf_dtype_size(all->opts.grad_dtype);
    const int64_t base = all->offset[bucket->first], count = all->offset[bucket->last] - base;
    const int64_t summed = bucket->hi - bucket->lo;
    float *flat = all->grads->flat->data;
    const wf_strided sums = wf_strided_row(flat + bucket->lo, WF_F32, summed);
    const wf_strided arrived =
        wf_strided_row((char *)all->narrow + (size_t)(bucket->lo - base) * size, all->opts.grad_dtype, summed);
    wf_background_count_copied(bucket->comm, (size_t)(count + summed) * size);
    if (summed == 0)
        return WF_OK;
    WF_TRY(ctx->k->copy(ctx, &arrived, &sums, false));
    return all->opts.grad_dtype == WF_F16 && !all->optim->scales ? check_overflow(all, flat + bucket->lo, summed)
                                                                 : WF_OK;
}

wf_status wf_grad_dtype_reduce(wf_bucket *bucket)
{
    wf_background_call(bucket->comm, narrow, bucket);
    WF_TRY(wf_bucket_sum(bucket, bucket->all->narrow, bucket->all->opts.grad_dtype));
    wf_background_call(bucket->comm, widen_sums, bucket);
    return WF_OK;
}
