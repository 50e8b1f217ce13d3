/* Gradients that travel in a narrower type than they are computed in. */
#include "optim/multi_node_impl.h"

#include <math.h>

static wf_strided row(void *data, wf_dtype dtype, int64_t count)
{
    return (wf_strided){.data = data, .dtype = dtype, .rank = 1, .dim = {count}, .stride = {1}};
}

/* Whether a sum left the range of f16, or a gradient was not finite before: then the squares do not add up to a number.
 */
static wf_status look_for_overflow(wf_buckets *all, void *data, int64_t count)
{
    wf_ctx *ctx = all->optim->ctx;
    double *device = &all->optim->device->sum_squares, squares = 0;
    const wf_array sums = {.data = data, .dtype = WF_F32, .shape = WF_SHAPE(count)};
    const wf_array out = {.data = device, .dtype = WF_F64, .shape = wf_shape_scalar()};
    WF_TRY(ctx->k->sum_squares(ctx, &sums, &out, false));
    WF_TRY(ctx->k->to_host(ctx, &squares, device, sizeof squares));
    if (!isfinite(squares))
        all->tail[WF_TAIL_OVERFLOW] = 1;
    return WF_OK;
}

static wf_status reduce_gradients(const wf_bucket *bucket, char *data)
{
    wf_buckets *all = bucket->all;
    wf_ctx *ctx = all->optim->ctx;
    const int64_t base = all->offset[bucket->first], count = all->offset[bucket->last] - base;
    const wf_strided own = row(data, WF_F32, count), sent = row(all->narrow, all->opts.wire, count);
    const wf_reduce_job job = {.flat = all->narrow,
                               .dtype = all->opts.wire,
                               .segments = bucket->last - bucket->first,
                               .offset = all->narrow_offset};
    for (int64_t i = bucket->first; i <= bucket->last; i++)
        all->narrow_offset[i - bucket->first] = all->offset[i] - base;
    WF_TRY(ctx->k->copy(ctx, &own, &sent, false));
    WF_TRY(wf_reduce_beside(bucket->comm, &job));
    WF_TRY(ctx->k->copy(ctx, &sent, &own, false));
    wf_copied_beside(bucket->comm, 2 * (size_t)count * wf_dtype_size(all->opts.wire));
    return all->opts.wire == WF_F16 ? look_for_overflow(all, data, count) : WF_OK;
}

/* The last bucket is the one with the tail, so that what was found in the others can ride in it. */
static wf_status reduce_tail(const wf_bucket *bucket)
{
    const wf_buckets *all = bucket->all;
    const wf_grads *grads = all->optim->grads;
    wf_ctx *ctx = all->optim->ctx;
    const wf_reduce_job job = {
        .flat = grads->flat->data, .dtype = WF_F32, .segments = 1, .offset = all->offset + grads->n};
    float *tail = (float *)grads->flat->data + grads->offset[grads->n];
    const float overflow = (float)all->tail[WF_TAIL_OVERFLOW];
    WF_TRY(ctx->k->to_device(ctx, tail + WF_TAIL_OVERFLOW, &overflow, sizeof overflow));
    return wf_reduce_beside(bucket->comm, &job);
}

wf_status wf_wire_reduce(const wf_bucket *bucket)
{
    const wf_buckets *all = bucket->all;
    const int64_t base = all->offset[bucket->first];
    char *data = (char *)all->optim->grads->flat->data + (size_t)base * sizeof(float);
    if (bucket->last > bucket->first)
        WF_TRY(reduce_gradients(bucket, data));
    return bucket->tail ? reduce_tail(bucket) : WF_OK;
}
