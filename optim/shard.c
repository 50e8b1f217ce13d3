/* Sharded optimizer state (Rajbhandari et al. 2020, ZeRO stage 1): a rank has the sums, the state and the update of its
 * part of every bucket. The parameters lie in one flat buffer, in which the updated parts are gathered. */
#include "comm/comm_author.h"
#include "optim/multi_node_impl.h"

#define LINE 64 /* bytes: parts begin at whole cache lines */

static wf_status copy_elements(const wf_optim *optim, const wf_tensor *from, int64_t at_from, wf_tensor *to,
                               int64_t at_to, int64_t count)
{
    const size_t size = wf_dtype_size(from->dtype);
    wf_strided src = {.data = (char *)from->data + (size_t)at_from * size, .dtype = from->dtype, .rank = 1};
    src.dim[0] = count;
    src.stride[0] = 1;
    wf_strided dst = src;
    dst.data = (char *)to->data + (size_t)at_to * size;
    return count > 0 ? optim->ctx->k->copy(optim->ctx, &src, &dst, false) : WF_OK;
}

/* --- state ------------------------------------------------------------------------------------------------------- */

/* On all other ranks a part is zero, so the sum is the part itself. */
static wf_status bring_together(const wf_optim *optim, const wf_optim_slot *slot, int s, wf_tensor *whole)
{
    WF_TRY(wf_tensor_fill(whole, 0));
    if (slot->state[s])
        WF_TRY(copy_elements(optim, slot->state[s], 0, whole, slot->lo, slot->hi - slot->lo));
    return wf_allreduce_raw(slot->comm, whole->data, whole->data, wf_tensor_count(whole), whole->dtype, WF_SUM);
}

/* Collective over the ranks that share the slot; needed for archives and when buckets change. */
wf_tensor *wf_slot_whole(const wf_optim *optim, const wf_optim_slot *slot, const wf_param *param, int s)
{
    if (!slot->comm && slot->state[s])
        return wf_tensor_alias(slot->state[s]);
    wf_tensor *whole = wf_tensor_new_ordered(optim->ctx, param->dtype, param->shape, param->order);
    if (!whole)
        return NULL;
    if ((slot->comm ? bring_together(optim, slot, s, whole) : wf_tensor_fill(whole, 0)) == WF_OK)
        return whole;
    wf_tensor_free(whole);
    return wf_error_null();
}

/* Takes the whole state and keeps this rank's elements; not sharded, the tensor itself. */
wf_status wf_slot_keep(const wf_optim *optim, wf_optim_slot *slot, int s, wf_tensor *whole)
{
    WF_NEED(whole);
    wf_tensor *kept =
        slot->comm ? wf_tensor_new(optim->ctx, whole->dtype, WF_SHAPE(slot->hi - slot->lo)) : wf_tensor_alias(whole);
    WF_NEED(kept);
    wf_tensor_free(slot->state[s]);
    slot->state[s] = kept;
    return slot->comm ? copy_elements(optim, whole, slot->lo, kept, 0, slot->hi - slot->lo) : WF_OK;
}

/* The old slot may be whole, sharded at other bounds, or without state. */
static wf_status shard_state(const wf_optim *optim, const wf_optim_slot *old, wf_optim_slot *slot,
                             const wf_param *param, int s)
{
    if (old->state[s]) {
        wf_tensor *whole = wf_slot_whole(optim, old, param, s);
        const wf_status status = wf_slot_keep(optim, slot, s, whole);
        wf_tensor_free(whole);
        return status;
    }
    slot->state[s] = slot->comm ? wf_tensor_new(optim->ctx, param->dtype, WF_SHAPE(slot->hi - slot->lo))
                                : wf_tensor_new_ordered(optim->ctx, param->dtype, param->shape, param->order);
    WF_NEED(slot->state[s]);
    return wf_tensor_fill(slot->state[s], 0);
}

/* The list is short, and this happens when buckets are made. */
static int64_t place_of(const wf_grads *grads, const wf_param *param)
{
    int64_t place = 0;
    while (grads->param[place] != param)
        place++;
    return place;
}

static int64_t within(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* In the order of the model, which all ranks have. */
static wf_status shard_states(wf_buckets *all)
{
    wf_optim *optim = all->optim;
    const wf_grads *grads = optim->grads;
    for (int64_t i = 0; i < optim->n; i++) {
        const wf_param *param = optim->target[i];
        const int64_t place = place_of(grads, param), base = grads->offset[place], n = wf_shape_count(param->shape);
        const wf_bucket *bucket = all->bucket_of[place] < 0 ? NULL : &all->bucket[all->bucket_of[place]];
        const char *const *names = optim->rule->states;
        wf_optim_slot *slot = &optim->slot[optim->slot_of[i]];
        const wf_optim_slot old = *slot;
        /* A parameter that is not in a bucket is whole on this rank. */
        slot->comm = bucket ? bucket->comm : NULL;
        slot->lo = bucket ? within(bucket->lo - base, 0, n) : 0;
        slot->hi = bucket ? within(bucket->hi - base, 0, n) : n;
        for (int s = 0; s < WF_OPTIM_STATES && names[s]; s++)
            WF_TRY(shard_state(optim, &old, slot, param, s));
    }
    return WF_OK;
}

/* --- parameters -------------------------------------------------------------------------------------------------- */

/* Replaces the storage of a handle, so that pointers to the handle stay valid. */
static wf_status adopt_storage(const wf_buckets *all, int64_t i)
{
    wf_tensor *value = all->optim->grads->param[i]->value;
    wf_tensor *view = wf_grads_view(all->optim->grads, all->values, i);
    WF_NEED(view);
    const wf_status status = wf_tensor_assign(view, value);
    wf_storage *storage = value->storage;
    void *data = value->data;
    /* Layers and tapes hold the handle: what it points to is exchanged under them. */
    value->storage = view->storage;
    value->data = view->data;
    view->storage = storage;
    view->data = data;
    wf_tensor_free(view);
    return status;
}

/* Called before a step: a parameter that got a new value tensor lies elsewhere. */
wf_status wf_shards_adopt(wf_buckets *all)
{
    const wf_grads *grads = all->optim->grads;
    for (int64_t i = 0; all->values && i < grads->n; i++) {
        WF_NEED(wf_param_value(grads->param[i]));
        if (grads->param[i]->value->storage != all->values->storage)
            WF_TRY(adopt_storage(all, i));
    }
    return WF_OK;
}

/* --- parts ------------------------------------------------------------------------------------------------------- */

/* Parts of whole cache lines: two ranks' kernels never write one line, and vectors need no remainder. */
static void shard_bucket(wf_bucket *bucket, const int64_t *offset, int64_t line)
{
    const int64_t base = offset[bucket->first], lines = (offset[bucket->last] - base) / line;
    const int size = wf_comm_size(bucket->comm);
    int64_t lo, hi;
    for (int r = 0; r < size; r++) {
        wf_block(lines, size, r, &lo, &hi);
        bucket->shard[r] = lo * line;
        bucket->shard[r + 1] = hi * line;
    }
    bucket->lo = base + bucket->shard[wf_comm_rank(bucket->comm)];
    bucket->hi = base + bucket->shard[wf_comm_rank(bucket->comm) + 1];
}

/* After buckets were made; sizes follow from the communicator, so all ranks come to the same bounds. */
wf_status wf_shards_plan(wf_buckets *all)
{
    wf_optim *optim = all->optim;
    const wf_grads *grads = optim->grads;
    const int64_t each = wf_comm_size(wf_mesh_world(all->mesh)) + 1;
    const int64_t line = LINE / (int64_t)wf_dtype_size(grads->flat->dtype);
    int64_t *shard = wf_realloc(optim->ctx, all->shard, (size_t)(all->n * each) * sizeof *shard);
    WF_NEED(shard);
    all->shard = shard;
    for (int64_t b = 0; b < all->n; b++) {
        all->bucket[b].shard = shard + b * each;
        shard_bucket(&all->bucket[b], grads->offset, line);
    }
    wf_tensor_free(all->values);
    all->values = wf_tensor_new(optim->ctx, grads->flat->dtype, WF_SHAPE(grads->offset[grads->n]));
    WF_NEED(all->values);
    WF_TRY(wf_tensor_fill(all->values, 0));
    return shard_states(all);
}

/* --- numbers of parts -------------------------------------------------------------------------------------------- */

wf_status wf_shards_sum_numbers(const wf_buckets *all, int per, double *number)
{
    const bool sharded = all->optim->shards_state;
    for (int64_t r = 0, next; r < all->n_runs; r = next) {
        const unsigned axes = all->run[r].sharded | (sharded ? all->run[r].axes : 0);
        const int64_t first = all->run[r].first;
        /* Neighbours over the same ranks go in one message. */
        for (next = r + 1; next < all->n_runs; next++)
            if ((all->run[next].sharded | (sharded ? all->run[next].axes : 0)) != axes)
                break;
        const int64_t count = per * (all->run[next - 1].last - first);
        double *at = number + per * first;
        if (axes != 0)
            WF_TRY(wf_allreduce_raw(wf_mesh_comm(all->mesh, axes), at, at, count, WF_F64, WF_SUM));
    }
    return WF_OK;
}

static wf_status copy_numbers(wf_ctx *ctx, int per, double *from, double *to)
{
    const wf_array source = {.data = from, .dtype = WF_F64, .shape = WF_SHAPE(per)};
    const wf_array target = {.data = to, .dtype = WF_F64, .shape = WF_SHAPE(per)};
    const wf_strided src = wf_array_strided(&source), dst = wf_array_strided(&target);
    return ctx->k->copy(ctx, &src, &dst, false);
}

static wf_status share_numbers(const wf_buckets *all, int per, double *number, double *shared, int64_t count)
{
    wf_ctx *ctx = all->optim->ctx;
    const wf_grads *grads = all->optim->grads;
    const wf_array whole = {.data = shared, .dtype = WF_F64, .shape = WF_SHAPE(count)};
    WF_TRY(ctx->k->fill(ctx, &whole, 0));
    for (int64_t i = 0; i < grads->n; i++) {
        const wf_param *p = grads->param[i];
        if (p->stage_tie > 0 && !p->counted)
            WF_TRY(copy_numbers(ctx, per, number + per * i, shared + per * (p->stage_tie - 1)));
    }
    WF_TRY(
        wf_allreduce_raw(wf_mesh_comm(all->mesh, WF_AXIS_BIT(WF_AXIS_STAGE)), shared, shared, count, WF_F64, WF_SUM));
    for (int64_t i = 0; i < grads->n; i++)
        if (grads->param[i]->stage_tie > 0)
            WF_TRY(copy_numbers(ctx, per, shared + per * (grads->param[i]->stage_tie - 1), number + per * i));
    return WF_OK;
}

wf_status wf_shards_share_numbers(const wf_buckets *all, int per, double *number)
{
    const wf_grads *grads = all->optim->grads;
    const int64_t count = grads->n > 0 ? (int64_t)per * grads->param[0]->stage_ties : 0;
    void *shared = NULL;
    if (count == 0 || !all->optim->shards_state)
        return WF_OK;
    WF_TRY(wf_pool_take(all->optim->ctx, (size_t)count * sizeof(double), &shared));
    const wf_status status = share_numbers(all, per, number, shared, count);
    wf_pool_give(all->optim->ctx, shared, (size_t)count * sizeof(double));
    return status;
}

/* --- after the update -------------------------------------------------------------------------------------------- */

wf_status wf_shards_gather_values(wf_buckets *all)
{
    const wf_tensor *values = all->values;
    for (int64_t b = 0; b < all->n; b++) {
        const wf_bucket *bucket = &all->bucket[b];
        const size_t at = (size_t)all->optim->grads->offset[bucket->first] * wf_dtype_size(values->dtype);
        if (bucket->last > bucket->first)
            wf_background_gather_shards(bucket->comm, (char *)values->data + at, bucket->shard, values->dtype);
    }
    return wf_background_wait(wf_mesh_world(all->mesh));
}
