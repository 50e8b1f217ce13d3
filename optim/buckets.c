/* Buckets: gradients are summed over the ranks in groups while backward goes on.
 *
 * Actors. Backward reports each gradient that is complete (wf_buckets_ready). The background stream sums buckets, one
 * after the other. The step (multi_node.c) calls begin before backward and end after it, and updates then. Once the
 * buckets are made, begin and ready wait for no other rank; end does, and its other forms: swap, flush and announce.
 *
 *     flat buffer   | w5 w4 | w3 w2 w1 | w0 | trailer |     a bucket: neighbours, summed over the same axes
 *     backward      ready(w5) ready(w4) -> bucket 0 starts ... ready(w0) -> the last one starts, with the trailer
 *
 * The order. Messages of one communicator match by their order, so buckets start in one order on all ranks: that in
 * which their last gradients were complete in rank 0's first step (`place`). A bucket that is complete early waits for
 * those before it. Ranks may reach different parameters: `missing` counts what this rank's backward will complete, and
 * a bucket of which it reaches nothing is complete from the start, with zeros.
 *
 * The trailer follows the gradients in the flat buffer and is summed exactly, in the last bucket: loss, weights of the
 * means, and flags (overflow, a model that changed, a hash of what was drawn). So a step needs no further message for
 * them. The sums are read by end; where an update is queued before the host knows them (queued.c), by end_queued.
 *
 * Who owns what. From the start of a bucket to the end of the step its elements belong to the stream; backward has
 * finished with them. A bucket in a narrow type, or with shards, or with the program's hook, is summed in a buffer of
 * its own or in parts. `number` names its memory to reducers that keep state from sum to sum.
 *
 * Double buffering. swap starts the sums of this step and hands backward the other flat buffer, so the sums of a step
 * are in flight during the next one; flush waits for them. A captured step must have the trailer of the run before it
 * (`sent`), since every replay sends the same numbers.
 *
 * Failure. An error of the stream is the result of the next ready, or of end; wf_optim_step tells the other ranks. A
 * rank that has died is noticed in end, by the deadline of the first sum that needs it (comm/guard/deadline.c). */
#include "core/captured_author.h"
#include "optim/multi_node_impl.h"

#include <stdlib.h>
#include <string.h>

static wf_comm *comm_of(const wf_buckets *all, unsigned axes)
{
    return wf_mesh_comm(all->mesh, axes);
}

/* --- the trailer ----------------------------------------------------------------------------------------------------
 */

static wf_strided trailer_at(const wf_grads *grads, int place)
{
    const wf_tensor *flat = grads->flat;
    const size_t at = (size_t)(grads->offset[grads->n] + place);
    return (wf_strided){.data = (char *)flat->data + at * wf_dtype_size(flat->dtype), .dtype = flat->dtype};
}

wf_status wf_buckets_get_loss(const wf_buckets *all, const wf_grads *grads, double factor, wf_tensor *loss)
{
    const wf_strided sum = trailer_at(grads, WF_TRAILER_LOSS);
    return wf_loss_set(all->optim->ctx, &sum, factor, loss);
}

/* Copies the trailer (loss, weights, flags) to the end of the flat buffer, in the buffer's type. */
static wf_status put_trailer(wf_buckets *all, const wf_grads *grads)
{
    wf_ctx *ctx = all->optim->ctx;
    const wf_dtype dtype = grads->flat->dtype;
    const bool wide = dtype == WF_F64;
    const wf_strided loss = wf_tensor_strided(all->loss), place = trailer_at(grads, WF_TRAILER_LOSS);
    float narrow[WF_TRAILER];
    all->trailer[WF_TRAILER_RANKS] = 1;
    WF_CHECK(wide || dtype == WF_F32, WF_ERR_DTYPE, "gradients of type %s; they must be f32 or f64",
             wf_dtype_name(dtype));
    for (int i = 0; i < WF_TRAILER; i++)
        narrow[i] = (float)all->trailer[i];
    WF_TRY(wf_ctx_send(ctx, trailer_at(grads, 0).data, wide ? (const void *)all->trailer : narrow,
                       WF_TRAILER * wf_dtype_size(dtype)));
    /* What a capture sends is what every replay sends: get_trailer compares it. */
    if (!wf_ctx_capturing(ctx))
        memcpy(all->sent, all->trailer, sizeof all->sent);
    return ctx->k->copy(ctx, &loss, &place, false);
}

/* A captured step has the same samples as the one before it, on all ranks, so the sums are the same. What was drawn is
 * not compared in it. */
static wf_status trailer_again(wf_buckets *all)
{
    WF_CHECK(memcmp(all->sent, all->trailer, WF_TRAILER_COMPARED * sizeof *all->sent) == 0, WF_ERR_STATE,
             "a captured step has as many samples in every run, and this one has not as many as the run before");
    memcpy(all->trailer, all->summed, sizeof all->trailer);
    return WF_OK;
}

/* The sums, as they were in the flat buffer. */
static void take_sums(wf_buckets *all, const void *sums, bool wide)
{
    const double *number = sums;
    const float *narrow = sums;
    for (int i = 0; i < WF_TRAILER; i++)
        all->trailer[i] = wide ? number[i] : (double)narrow[i];
    memcpy(all->summed, all->trailer, sizeof all->summed);
}

/* Reads the sums over the ranks. With one rank they are local already. */
static wf_status get_trailer(wf_buckets *all, const wf_grads *grads)
{
    wf_ctx *ctx = all->optim->ctx;
    const bool wide = grads->flat->dtype == WF_F64;
    const bool alone = wf_comm_size(comm_of(all, all->axes)) == 1 && !all->opts.double_buffering;
    double sums[WF_TRAILER];
    if (wf_ctx_capturing(ctx))
        return trailer_again(all);
    if (alone) {
        memcpy(all->summed, all->trailer, sizeof all->summed);
        return WF_OK;
    }
    WF_TRY(wf_ctx_capture_read(ctx, sums, trailer_at(grads, 0).data, WF_TRAILER * wf_dtype_size(grads->flat->dtype)));
    take_sums(all, sums, wide);
    return WF_OK;
}

/* --- making ------------------------------------------------------------------------------------------------------ */

wf_status wf_buckets_new(wf_optim *optim, const wf_mesh *mesh, wf_multi_node_opts opts, wf_buckets **out)
{
    wf_buckets *all = wf_calloc(optim->ctx, 1, sizeof *all);
    WF_NEED(all);
    opts.bucket_bytes = opts.bucket_bytes ? opts.bucket_bytes : WF_BUCKET_BYTES;
    opts.first_bucket_bytes = opts.first_bucket_bytes ? opts.first_bucket_bytes : WF_FIRST_BUCKET_BYTES;
    *all = (wf_buckets){.optim = optim, .mesh = mesh, .axes = wf_grad_axes(mesh), .opts = opts};
    *out = all;
    all->loss = wf_tensor_new(optim->ctx, WF_F64, wf_shape_scalar());
    WF_NEED(all->loss);
    all->squares = wf_tensor_new(optim->ctx, WF_F64, WF_SHAPE(1 << WF_AXES));
    WF_NEED(all->squares);
    return WF_OK;
}

wf_status wf_buckets_open(wf_buckets *all)
{
    wf_param *const *params;
    int64_t n;
    bool needed[1 << WF_AXES] = {false};
    WF_TRY(wf_layer_params(all->optim->model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        /* Connected at set-up and not in a step. Over axes that a layer learns in its first forward, open_bucket does
         * it in the first backward, which is collective too (agree in multi_node.c). */
        needed[params[i]->axes & wf_grad_axes(all->mesh)] = true;
    needed[all->axes] = true;
    for (unsigned axes = 0; axes < 1u << WF_AXES; axes++)
        if (needed[axes]) {
            wf_comm *comm = comm_of(all, axes);
            WF_NEED(comm);
            WF_TRY(wf_background_open(comm));
        }
    return WF_OK;
}

/* The lists, for n gradients at most. */
static wf_status allocate_lists(wf_buckets *all, int64_t n)
{
    wf_ctx *ctx = all->optim->ctx;
    const size_t room = (size_t)n + 2;
    wf_param **arrived = wf_realloc(ctx, all->arrived, room * sizeof(wf_param *));
    all->arrived = arrived ? arrived : all->arrived;
    wf_grad_run *run = wf_realloc(ctx, all->run, room * sizeof *run);
    all->run = run ? run : all->run;
    wf_bucket *bucket = wf_realloc(ctx, all->bucket, room * sizeof *bucket);
    all->bucket = bucket ? bucket : all->bucket;
    int64_t *numbers = wf_realloc(ctx, all->offset, 4 * room * sizeof *numbers);
    all->offset = numbers ? numbers : all->offset;
    if (!arrived || !run || !bucket || !numbers)
        return wf_error_code();
    all->bucket_of = numbers + room;
    all->relative = numbers + 2 * room;
    return WF_OK;
}

wf_status wf_buckets_plan(wf_buckets *all, int64_t n, wf_param **order)
{
    all->made = false;
    WF_TRY(allocate_lists(all, n));
    for (int64_t i = 0; i < n; i++)
        all->arrived[i] = order[i];
    wf_grad_sort(all->mesh, all->axes, n, order);
    all->n_runs = wf_grad_runs(all->mesh, n, order, all->run);
    return WF_OK;
}

bool wf_buckets_outgrown(const wf_buckets *all, const wf_param **param)
{
    const wf_grads *grads = all->optim->grads;
    const unsigned split = wf_grad_axes(all->mesh);
    for (int64_t r = 0; grads && r < all->n_runs; r++)
        for (int64_t i = all->run[r].first; i < all->run[r].last; i++) {
            *param = grads->param[i];
            if (((*param)->axes & split) != all->run[r].axes)
                return true;
        }
    return false;
}

static int64_t place_of(const wf_buckets *all, const wf_param *param)
{
    int64_t place = 0;
    while (all->arrived[place] != param)
        place++;
    return place;
}

static void *at_element(const wf_buckets *all, int64_t at)
{
    const wf_tensor *flat = all->grads->flat;
    return (char *)flat->data + (size_t)at * wf_dtype_size(flat->dtype);
}

/* With one rank there is nothing to sum. */
static void sum(const wf_bucket *bucket, const wf_call *job)
{
    if (wf_comm_size(bucket->comm) > 1)
        wf_background_sum(bucket->comm, job);
}

/* A hook would be called once, during the capture, and not in replays. */
static wf_status call_hook(wf_bucket *bucket, void *data, wf_dtype dtype, int64_t segments)
{
    const wf_buckets *all = bucket->all;
    WF_TRY(wf_ctx_forbid_capture(all->optim->ctx, "call the program's own sum of gradients (wf_multi_node_opts.reduce)",
                                 "leave the sums to the communicator"));
    bucket->given = (wf_grad_bucket){.comm = bucket->comm,
                                     .ctx = all->optim->ctx,
                                     .index = bucket - all->bucket,
                                     .plan = all->plans,
                                     .flat = data,
                                     .dtype = dtype,
                                     .count = bucket->relative[segments],
                                     .segments = segments,
                                     .offset = bucket->relative,
                                     .param = all->grads->param + bucket->first};
    return all->opts.reduce(all->opts.reduce_user, &bucket->given);
}

wf_status wf_bucket_sum(wf_bucket *bucket, void *data, wf_dtype dtype)
{
    const wf_buckets *all = bucket->all;
    const int64_t segments = bucket->last - bucket->first;
    if (bucket->shard) {
        wf_background_sum_shards(bucket->comm, data, bucket->shard, dtype);
        return WF_OK;
    }
    for (int64_t i = 0; i <= segments; i++)
        bucket->relative[i] = all->offset[bucket->first + i] - all->offset[bucket->first];
    if (all->opts.reduce)
        return call_hook(bucket, data, dtype, segments);
    sum(bucket,
        &(wf_call){
            .out = data, .dtype = dtype, .parts = (int)segments, .part = bucket->relative, .buffer = bucket->number});
    return WF_OK;
}

/* Writes into the trailer, which is in device memory already, whether one of the buckets before overflowed. */
static wf_status put_overflow(void *buckets)
{
    const wf_buckets *all = buckets;
    const wf_grads *grads = all->grads;
    wf_ctx *ctx = all->optim->ctx;
    const float overflow = (float)all->trailer[WF_TRAILER_OVERFLOW];
    return ctx->k->to_device(ctx, at_element(all, grads->offset[grads->n] + WF_TRAILER_OVERFLOW), &overflow,
                             sizeof overflow);
}

/* The trailer belongs to the last bucket, so that it can carry findings about the other buckets. */
static void sum_trailer(const wf_bucket *bucket)
{
    wf_buckets *all = bucket->all;
    const wf_grads *grads = all->grads;
    if (all->opts.grad_dtype == WF_F16 && !all->optim->scales)
        wf_background_call(bucket->comm, put_overflow, all);
    sum(bucket, &(wf_call){.out = grads->flat->data,
                           .dtype = grads->flat->dtype,
                           .parts = 1,
                           .part = all->offset + grads->n,
                           .exact = 1});
}

static wf_status start_bucket(wf_bucket *bucket)
{
    const wf_buckets *all = bucket->all;
    const wf_tensor *flat = all->grads->flat;
    const bool narrow = all->opts.grad_dtype != WF_F32, own_buffer = narrow || bucket->shard || all->opts.reduce;
    if (!own_buffer) {
        const int64_t trailer = bucket->trailer ? 1 : 0, segments = bucket->last - bucket->first + trailer;
        sum(bucket, &(wf_call){.out = flat->data,
                               .dtype = flat->dtype,
                               .parts = (int)segments,
                               .part = all->offset + bucket->first,
                               .exact = (int)trailer,
                               .buffer = bucket->number});
        return WF_OK;
    }
    if (bucket->last > bucket->first)
        WF_TRY(narrow ? wf_grad_dtype_reduce(bucket)
                      : wf_bucket_sum(bucket, at_element(all, all->offset[bucket->first]), flat->dtype));
    if (bucket->trailer)
        sum_trailer(bucket);
    return WF_OK;
}

static wf_status open_bucket(wf_buckets *all, unsigned axes, int64_t first, wf_bucket **out)
{
    wf_bucket *bucket = &all->bucket[all->n++];
    *bucket = (wf_bucket){.all = all, .number = wf_reduce_buffer_new(), .first = first, .last = first};
    /* Buckets are opened in the order of their gradients, and sorted otherwise later: the lists follow one another in
     * this one, each of one entry more than its bucket has gradients. */
    bucket->relative = all->relative + first + all->n - 1;
    bucket->comm = comm_of(all, axes);
    *out = bucket;
    WF_NEED(bucket->comm);
    /* A layer may have learned in this step's forward over which axes its gradients are summed. */
    return wf_background_open(bucket->comm);
}

/* Cuts gradients [first, last), which are summed over the same axes, into buckets. The trailer rides in the last bucket
 * of those that are summed over all axes. */
static wf_status add_buckets(wf_buckets *all, unsigned axes, int64_t first, int64_t last)
{
    const wf_grads *grads = all->optim->grads;
    const int64_t size = (int64_t)wf_dtype_size(grads->flat->dtype);
    int64_t limit = all->opts.first_bucket_bytes;
    wf_bucket *bucket = NULL;
    for (int64_t i = first; i < last; i++) {
        if (!bucket)
            WF_TRY(open_bucket(all, axes, i, &bucket));
        const int64_t place = place_of(all, grads->param[i]);
        bucket->place = place > bucket->place ? place : bucket->place;
        bucket->last = i + 1;
        if ((grads->offset[i + 1] - grads->offset[bucket->first]) * size < limit || i + 1 == last)
            continue;
        bucket = NULL;
        limit = all->opts.bucket_bytes;
    }
    if (axes != all->axes)
        return WF_OK;
    if (!bucket)
        WF_TRY(open_bucket(all, axes, last, &bucket));
    bucket->trailer = true;
    bucket->place = grads->n;
    return WF_OK;
}

/* Buckets start in the order in which rank 0 completed them, on all ranks: the sums of one communicator match by it. */
static void sort_by_place(wf_buckets *all)
{
    for (int64_t i = 1; i < all->n; i++) {
        const wf_bucket bucket = all->bucket[i];
        int64_t at = i;
        for (; at > 0 && all->bucket[at - 1].place > bucket.place; at--)
            all->bucket[at] = all->bucket[at - 1];
        all->bucket[at] = bucket;
    }
}

static wf_status make_narrow(wf_buckets *all)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < all->n; b++) {
        const int64_t length = all->offset[all->bucket[b].last] - all->offset[all->bucket[b].first];
        longest = length > longest ? length : longest;
    }
    wf_pool_give(all->optim->ctx, all->narrow, all->narrow_bytes);
    all->narrow_bytes = all->opts.grad_dtype == WF_F32 ? 0 : (size_t)longest * wf_dtype_size(all->opts.grad_dtype);
    return wf_pool_take(all->optim->ctx, all->narrow_bytes, &all->narrow);
}

/* A bucket holds parameters of one sharding. Beside shards, whose sizes and values differ along an axis, a parameter
 * that is whole along it would have another place and other neighbours on each rank. Copies would part by it: a state
 * that is cut into parts adds squares in another order, a reducer or a hook rounds by what lies together, and NCCL's
 * order of sums may depend on the place. */
static wf_status make_buckets(wf_buckets *all)
{
    const wf_grads *grads = all->optim->grads;
    int64_t r = 0;
    all->n = 0;
    for (int64_t i = 0; i <= grads->n; i++) {
        all->offset[i] = grads->offset[i];
        all->bucket_of[i] = -1;
    }
    all->offset[grads->n + 1] = grads->offset[grads->n] + WF_TRAILER;
    for (; r < all->n_runs && all->run[r].axes != all->axes; r++)
        if (all->run[r].axes != 0)
            WF_TRY(add_buckets(all, all->run[r].axes, all->run[r].first, all->run[r].last));
    WF_TRY(add_buckets(all, all->axes, r < all->n_runs ? all->run[r].first : grads->n, grads->n));
    sort_by_place(all);
    for (int64_t b = 0; b < all->n; b++)
        for (int64_t i = all->bucket[b].first; i < all->bucket[b].last; i++)
            all->bucket_of[i] = b;
    for (int64_t b = 0; b < all->n; b++) {
        all->bucket[b].lo = all->offset[all->bucket[b].first];
        all->bucket[b].hi = all->offset[all->bucket[b].last];
    }
    if (all->opts.shard_optimizer)
        WF_TRY(wf_shards_plan(all));
    WF_TRY(make_narrow(all));
    all->made = true;
    all->plans++;
    return WF_OK;
}

/* --- a step ------------------------------------------------------------------------------------------------------ */

static wf_status start_complete(wf_buckets *all)
{
    for (; all->started < all->n && all->bucket[all->started].missing == 0; all->started++)
        WF_TRY(start_bucket(&all->bucket[all->started]));
    return WF_OK;
}

/* The bucket of a gradient, found by its offset in the flat buffer; NULL if the gradient is not summed. */
static wf_bucket *bucket_with(const wf_buckets *all, const wf_param *param)
{
    const wf_grads *grads = all->optim->grads;
    const int64_t bytes = (const char *)param->grad->data - (const char *)grads->flat->data;
    const int64_t offset = bytes / (int64_t)wf_dtype_size(grads->flat->dtype);
    int64_t low = 0, high = grads->n - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (grads->offset[middle] <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    return all->bucket_of[low] < 0 ? NULL : &all->bucket[all->bucket_of[low]];
}

static void get_ready(wf_buckets *all, wf_grads *grads)
{
    all->grads = grads;
    all->started = 0;
    for (int64_t b = 0; b < all->n; b++)
        all->bucket[b].missing = 0;
}

wf_status wf_buckets_begin(wf_buckets *all, int64_t n, wf_param *const *reached)
{
    if (!all->made)
        WF_TRY(make_buckets(all));
    if (all->opts.double_buffering)
        return WF_OK;
    WF_TRY(wf_shards_adopt(all));
    get_ready(all, all->optim->grads);
    for (int64_t i = 0; i < n; i++) {
        wf_bucket *bucket = bucket_with(all, reached[i]);
        if (bucket)
            bucket->missing++;
    }
    WF_TRY(put_trailer(all, all->grads));
    return all->opts.no_overlap ? WF_OK : start_complete(all);
}

wf_status wf_buckets_ready(wf_buckets *all, const wf_param *param)
{
    wf_bucket *bucket = all->opts.double_buffering ? NULL : bucket_with(all, param);
    if (bucket)
        bucket->missing--;
    if (bucket && !all->opts.no_overlap)
        WF_TRY(start_complete(all));
    return wf_background_status(wf_mesh_world(all->mesh));
}

wf_status wf_buckets_end(wf_buckets *all)
{
    WF_TRY(start_complete(all));
    WF_TRY(wf_background_wait(wf_mesh_world(all->mesh)));
    return get_trailer(all, all->grads);
}

wf_status wf_buckets_end_begin(wf_buckets *all)
{
    WF_TRY(start_complete(all));
    WF_TRY(wf_background_wait(wf_mesh_world(all->mesh)));
    return wf_queue_copy(all, trailer_at(all->grads, 0).data, WF_TRAILER * wf_dtype_size(all->grads->flat->dtype));
}

wf_status wf_buckets_end_queued(wf_buckets *all)
{
    const void *copied;
    WF_TRY(wf_queue_wait(all, &copied));
    take_sums(all, copied, all->grads->flat->dtype == WF_F64);
    return WF_OK;
}

wf_status wf_buckets_announce(wf_buckets *all, double *ranks)
{
    double kept[WF_TRAILER];
    memcpy(kept, all->trailer, sizeof kept);
    memset(all->trailer, 0, sizeof all->trailer);
    all->trailer[WF_TRAILER_CHANGED] = 1;
    get_ready(all, all->optim->grads);
    WF_TRY(put_trailer(all, all->grads));
    WF_TRY(wf_buckets_end(all));
    *ranks = all->trailer[WF_TRAILER_CHANGED];
    memcpy(all->trailer, kept, sizeof kept);
    return WF_OK;
}

/* The next backward writes into the buffer whose sums this step uses. */
static wf_status exchange_buffers(wf_buckets *all)
{
    wf_optim *optim = all->optim;
    wf_grads *sent = optim->grads;
    optim->grads = all->other;
    all->other = sent;
    for (int64_t i = 0; i < optim->grads->n; i++) {
        wf_tensor *view = wf_grads_view(optim->grads, optim->grads->flat, i);
        WF_NEED(view);
        wf_tensor_free(optim->grads->param[i]->grad);
        optim->grads->param[i]->grad = view;
    }
    return WF_OK;
}

wf_status wf_buckets_flush(wf_buckets *all)
{
    memcpy(all->kept, all->trailer, sizeof all->kept);
    WF_TRY(wf_background_wait(wf_mesh_world(all->mesh)));
    WF_TRY(get_trailer(all, all->other));
    all->pending = false;
    return exchange_buffers(all);
}

wf_status wf_buckets_resume(wf_buckets *all)
{
    memcpy(all->trailer, all->kept, sizeof all->trailer);
    return exchange_buffers(all);
}

wf_status wf_buckets_swap(wf_buckets *all, bool *any)
{
    *any = all->pending;
    WF_TRY(wf_ctx_forbid_capture(all->optim->ctx, "change its buffers, as double_buffering does every step",
                                 "switch double_buffering off"));
    WF_TRY(put_trailer(all, all->optim->grads));
    WF_TRY(wf_background_wait(wf_mesh_world(all->mesh)));
    if (all->pending)
        WF_TRY(get_trailer(all, all->other));
    get_ready(all, all->optim->grads);
    WF_TRY(start_complete(all));
    all->pending = true;
    return exchange_buffers(all);
}

void wf_buckets_free(wf_buckets *all)
{
    if (!all)
        return;
    wf_queue_free(all);
    wf_pool_give(all->optim->ctx, all->narrow, all->narrow_bytes);
    wf_grads_free(all->other);
    wf_tensor_free(all->values);
    wf_tensor_free(all->loss);
    wf_tensor_free(all->squares);
    free(all->shard);
    free(all->arrived);
    free(all->run);
    free(all->bucket);
    free(all->offset);
    free(all);
}
