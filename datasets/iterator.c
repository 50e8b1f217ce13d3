/* Iterators: hand out batches, one after the other, from the batcher directly or from the prefetch thread. Tensors
 * are made here, on the main thread alone. */
#include "datasets/iterator_impl.h"

#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/archive.h"
#include "core/captured_author.h"
#include "core/profile_author.h"

#include <stdlib.h>

/* Nothing is opened yet: wf_prefetch may still change how batches are made. */
wf_iter *wf_batches(wf_dataset *dataset, wf_batch_opts opts)
{
    if (!dataset)
        return NULL;
    wf_ctx *ctx = dataset->ctx;
    wf_iter *iter = opts.size > 0 ? wf_calloc(ctx, 1, sizeof *iter) : NULL;
    if (!iter) {
        wf_dataset_free(dataset);
        WF_CHECK_NULL(opts.size > 0, WF_ERR_ARGUMENT, "batches of size %lld: should be 1 or more",
                      (long long)opts.size);
        return wf_error_null();
    }
    iter->ctx = ctx;
    iter->batcher.dataset = dataset;
    iter->batcher.opts = opts;
    atomic_init(&iter->batcher.stop, false);
    wf_live_add(ctx, WF_LIVE_ITER, 1);
    return iter;
}

wf_iter *wf_prefetch(wf_iter *iter, int depth)
{
    if (!iter)
        return NULL;
    const bool late = iter->opened || iter->depth > 0, streamed = iter->streamed;
    if (depth >= 1 && depth <= 1024 && !late) {
        iter->depth = depth;
        return iter;
    }
    wf_iter_free(iter);
    WF_CHECK_NULL(!streamed, WF_ERR_ARGUMENT,
                  "prefetch of streamed batches: the program makes them while it asks for them, so none is made ahead");
    WF_CHECK_NULL(!late, WF_ERR_STATE, "prefetch of an iterator that gave batches or has a prefetch already");
    WF_FAIL_NULL(WF_ERR_ARGUMENT, "prefetch of %d batches: should be 1 to 1024", depth);
}

/* On the host, `host` is the tensor's own memory and not given back twice. */
static void slot_free(wf_ctx *ctx, wf_slot *slot)
{
    for (int i = 0; i < WF_SLOT_TENSORS; i++) {
        wf_slot_tensor *t = &slot->tensor[i];
        if (!ctx->k->host && t->memory)
            wf_pool_give_host(ctx, t->host, wf_tensor_bytes(t->memory));
        for (int k = 0; k < WF_BATCH_SIZES; k++)
            wf_tensor_free(t->sized[k]);
        wf_tensor_free(t->memory);
    }
    if (ctx->k->host)
        return;
    ctx->k->event_free(ctx, slot->copied);
    ctx->k->event_free(ctx, slot->read);
}

static void release_slots(wf_iter *iter)
{
    wf_worker_stop(iter);
    /* Copies on it still read the host memory of the slots: its end waits for them. */
    if (iter->stream)
        iter->ctx->k->stream_free(iter->ctx, iter->stream);
    iter->stream = NULL;
    for (int s = 0; s < iter->slot_count; s++)
        slot_free(iter->ctx, &iter->slots[s]);
    free(iter->slots);
    iter->slots = NULL;
    iter->slot_count = 0;
    wf_batcher_close(&iter->batcher);
}

void wf_iter_free(wf_iter *iter)
{
    if (!iter)
        return;
    release_slots(iter);
    wf_streamed_free(iter->ctx, iter->streamed);
    wf_dataset_free(iter->batcher.dataset);
    wf_live_add(iter->ctx, WF_LIVE_ITER, -1);
    free(iter);
}

static wf_shape batch_shape(int64_t size, wf_shape sample)
{
    int64_t dim[WF_MAX_RANK] = {size};
    for (int d = 0; d < sample.rank; d++)
        dim[d + 1] = sample.dim[d];
    return wf_shape_make(sample.rank + 1, dim);
}

/* A tensor of the batch: rows of this shape. */
static wf_status slot_tensor_open(const wf_iter *iter, wf_slot_tensor *t, wf_dtype dtype, wf_shape row, wf_order order)
{
    wf_ctx *ctx = iter->ctx;
    t->memory = wf_tensor_new_ordered(ctx, dtype, batch_shape(iter->sizes[0], row), order);
    WF_TRY(wf_check(t->memory));
    t->host = t->memory->data;
    if (!ctx->k->host) {
        t->host = NULL;
        WF_TRY(wf_pool_take_host(ctx, wf_tensor_bytes(t->memory), &t->host));
    }
    for (int k = 0; k < WF_BATCH_SIZES; k++) {
        t->sized[k] = wf_tensor_wrap(ctx, dtype, batch_shape(iter->sizes[k], row), t->memory->data,
                                     (wf_wrap_opts){.order = order});
        WF_TRY(wf_check(t->sized[k]));
    }
    return WF_OK;
}

static wf_status slot_open(wf_iter *iter, wf_slot *slot)
{
    const wf_batcher *b = &iter->batcher;
    wf_slot_tensor *t = slot->tensor;
    WF_TRY(slot_tensor_open(iter, &t[WF_SLOT_X], b->format.to, wf_box_shape(b->box), b->format.order));
    if (b->widened)
        WF_TRY(
            slot_tensor_open(iter, &t[WF_SLOT_WIDE], b->wide_format.to, wf_box_shape(b->wide), b->wide_format.order));
    if (b->dataset->info.labels)
        WF_TRY(slot_tensor_open(iter, &t[WF_SLOT_LABELS], WF_I64, wf_shape_scalar(), WF_ROW_MAJOR));
    if (iter->ctx->k->host)
        return WF_OK;
    WF_TRY(iter->ctx->k->event_new(iter->ctx, &slot->copied));
    WF_TRY(iter->ctx->k->event_new(iter->ctx, &slot->read));
    /* Earlier work may still use the memory, which the pool gave to others before. */
    return iter->ctx->k->event_record(iter->ctx, slot->read, NULL);
}

wf_status wf_slot_fill(wf_iter *iter, wf_slot *slot)
{
    const wf_slot_tensor *t = slot->tensor;
    const wf_rows_out out = {.x = t[WF_SLOT_X].host, .wide = t[WF_SLOT_WIDE].host, .labels = t[WF_SLOT_LABELS].host};
    return wf_batcher_fill(&iter->batcher, out, &slot->plan);
}

static wf_status build(wf_iter *iter)
{
    WF_TRY(wf_batcher_open(&iter->batcher));
    const int64_t held = iter->batcher.dataset->info.count, size = iter->batcher.opts.size;
    iter->sizes[0] = held < size ? held : size;
    iter->sizes[1] = held < size ? 0 : held % size;
    iter->sizes[2] = 0;
    /* One more than the depth: the slot that the program computes with is not free for the thread. */
    iter->slots = wf_calloc(iter->ctx, (size_t)iter->depth + 1, sizeof *iter->slots);
    if (!iter->slots)
        return WF_ERR_MEMORY;
    iter->slot_count = iter->depth + 1;
    if (!iter->ctx->k->host)
        WF_TRY(iter->ctx->k->stream_new(iter->ctx, &iter->stream));
    for (int s = 0; s < iter->slot_count; s++)
        WF_TRY(slot_open(iter, &iter->slots[s]));
    if (iter->depth > 0)
        WF_TRY(wf_worker_start(iter));
    return WF_OK;
}

static wf_status open_once(wf_iter *iter)
{
    if (iter->opened)
        return WF_OK;
    const wf_status status = build(iter);
    if (status != WF_OK)
        release_slots(iter);
    iter->opened = status == WF_OK;
    return status;
}

/* Waits until the previous batch has been copied out of the host memory. */
static wf_status wait_copied(wf_ctx *ctx, const wf_slot *slot)
{
    return ctx->k->host ? WF_OK : wf_ctx_wait_event(ctx, slot->copied, "copied a batch");
}

/* The memory of a batch is about to be written again: whatever saved one of its handles is told, of any size. */
static void touch_slot(wf_slot *slot)
{
    for (int i = 0; i < WF_SLOT_TENSORS; i++)
        for (int k = 0; k < WF_BATCH_SIZES; k++)
            if (slot->tensor[i].sized[k])
                wf_tensor_touch(slot->tensor[i].sized[k]);
}

/* The slot that was given out last is read by what is on the context's stream now, and by nothing that follows. */
static wf_status mark_read(const wf_iter *iter)
{
    if (iter->ctx->k->host || iter->given == 0)
        return WF_OK;
    return iter->ctx->k->event_record(iter->ctx, iter->slots[(iter->given - 1) % iter->slot_count].read, NULL);
}

/* On a stream of its own: the copy waits for those who read the batch before in this slot, not for the step that the
 * device computes meanwhile from another slot, and the next step waits for the copy. */
static wf_status copy_to_device(const wf_iter *iter, const wf_slot *slot)
{
    wf_ctx *ctx = iter->ctx;
    if (ctx->k->host)
        return WF_OK;
    WF_TRY(ctx->k->event_wait(ctx, slot->read, iter->stream));
    /* The whole slot is copied even if the batch is shorter: the handles of all sizes share this memory. */
    for (int i = 0; i < WF_SLOT_TENSORS; i++) {
        const wf_slot_tensor *t = &slot->tensor[i];
        if (t->memory)
            WF_TRY(ctx->k->to_device_begin(ctx, t->memory->data, t->host, wf_tensor_bytes(t->memory), iter->stream));
    }
    WF_TRY(ctx->k->event_record(ctx, slot->copied, iter->stream));
    return ctx->k->event_wait(ctx, slot->copied, NULL);
}

static wf_status take_slot(wf_iter *iter, wf_slot **slot)
{
    WF_TRY(mark_read(iter));
    if (iter->worker) {
        if (iter->given > 0) { /* the thread will write there */
            wf_slot *last = &iter->slots[(iter->given - 1) % iter->slot_count];
            WF_TRY(wait_copied(iter->ctx, last));
            touch_slot(last);
        }
        *slot = wf_worker_wait(iter);
        WF_CHECK((*slot)->status == WF_OK, (*slot)->status, "%s", (*slot)->message);
    } else {
        *slot = &iter->slots[0];
        WF_TRY(wait_copied(iter->ctx, *slot));
        touch_slot(*slot);
        WF_TRY(wf_slot_fill(iter, *slot));
    }
    return copy_to_device(iter, *slot);
}

/* The handle of this size with its place in the global batch; x (not labels) may be sharded along pixels. */
static wf_status dress(wf_iter *iter, const wf_batch_plan *plan, wf_shape sample, bool sharded, wf_tensor *tensor)
{
    const wf_mesh *mesh = iter->batcher.dataset->mesh;
    const wf_shape global = batch_shape(plan->global, sample);
    wf_layout layout = wf_layout_batch(mesh, global, 0, 0);
    if (!tensor || !mesh)
        return WF_OK;
    if (sharded)
        WF_TRY(wf_batcher_layout(mesh, global, &layout));
    wf_batcher_cut(&iter->batcher, plan->index);
    wf_layout_shard(mesh, &layout, WF_AXIS_DATA, 0, iter->batcher.bounds);
    WF_NEED(layout.bounds[WF_AXIS_DATA]);
    return wf_tensor_set_layout(tensor, layout);
}

/* The position that a checkpoint stores is that of the batch handed out, not that of the thread, which is ahead. */
static wf_status next_batch(wf_iter *iter, wf_batch *batch)
{
    wf_slot *slot = NULL;
    WF_TRY(take_slot(iter, &slot));
    const wf_batch_plan *plan = &slot->plan;
    int k = 0;
    while (k < WF_BATCH_SIZES - 1 && iter->sizes[k] != plan->size)
        k++;
    wf_tensor *x = slot->tensor[WF_SLOT_X].sized[k], *labels = slot->tensor[WF_SLOT_LABELS].sized[k];
    WF_TRY(dress(iter, plan, iter->batcher.dataset->info.shape, iter->batcher.opts.sharded, x));
    WF_TRY(dress(iter, plan, wf_shape_scalar(), false, labels));
    iter->given++;
    iter->next_epoch = plan->epoch;
    iter->next_index = plan->index;
    wf_batcher_after(&iter->batcher, &iter->next_epoch, &iter->next_index);
    iter->epoch = plan->last ? plan->epoch + 1 : iter->epoch;
    *batch = (wf_batch){.x = x,
                        .labels = labels,
                        .wide = slot->tensor[WF_SLOT_WIDE].sized[k],
                        .wide_box = iter->batcher.wide,
                        .size = plan->size,
                        .global = plan->global,
                        .epoch = plan->epoch,
                        .index = plan->index,
                        .last = plan->last};
    return WF_OK;
}

/* A file or a sample is broken on the rank that reads it, while the others train on. This is the one place that tells
 * them; readers and transforms return their errors and no more. What opening refuses is the same on all ranks, or was
 * agreed on when the data set was scattered, so it leaves the communicator alive. */
wf_status wf_iter_next(wf_iter *iter, wf_batch *batch)
{
    WF_NEED(iter);
    WF_NEED(batch);
    WF_TRY(wf_ctx_forbid_capture(iter->ctx, "fetch its batch",
                                 "fetch it between runs and assign it to a tensor of the step's"));
    WF_TRY(open_once(iter));
    const int64_t start_ns = iter->ctx->profile ? wf_profile_clock() : 0;
    const wf_status status = iter->streamed ? wf_streamed_batch(iter, batch) : next_batch(iter, batch);
    if (iter->ctx->profile)
        wf_profile_add(iter->ctx->profile, WF_PROFILE_INPUT, "next batch",
                       &(wf_profile_event){.start_ns = start_ns, .end_ns = wf_profile_clock()});
    const wf_mesh *mesh = iter->streamed ? iter->streamed->mesh : iter->batcher.dataset->mesh;
    return mesh ? wf_comm_post_failure(wf_mesh_world(mesh), status) : status;
}

int64_t wf_iter_epoch(const wf_iter *iter)
{
    return iter ? iter->epoch : 0;
}

int64_t wf_iter_epoch_length(wf_iter *iter)
{
    if (iter && iter->streamed)
        return iter->streamed->opts.epoch_length;
    return iter && open_once(iter) == WF_OK ? iter->batcher.length : 0;
}

/* --- Where it is -------------------------------------------------------------------------------------------------- */

/* The thread is stopped first: it advances the batcher and writes to the slots. */
static wf_status seek(wf_iter *iter, int64_t epoch, int64_t index)
{
    wf_worker_stop(iter);
    WF_TRY(mark_read(iter));
    atomic_store(&iter->batcher.stop, false);
    for (int s = 0; s < iter->slot_count && iter->given > 0; s++)
        WF_TRY(wait_copied(iter->ctx, &iter->slots[s]));
    wf_batcher_seek(&iter->batcher, epoch, index);
    iter->given = 0;
    iter->epoch = iter->next_epoch = epoch;
    iter->next_index = index;
    return iter->depth > 0 ? wf_worker_start(iter) : WF_OK;
}

/* value * factor / divisor, rounded down, of numbers that are 0 or more, for value <= divisor. */
static int64_t share_of(int64_t value, int64_t factor, int64_t divisor)
{
    __extension__ typedef unsigned __int128 wide; /* the product of two numbers of 63 bits */
    return divisor > 0 ? (int64_t)((wide)value * (wide)factor / (wide)divisor) : 0;
}

/* The batch that has the first sample after `samples` ones: none is left out, and fewer than a batch are repeated. */
static int64_t batch_of(const wf_batcher *b, int64_t samples)
{
    int64_t lo = 0, hi = b->length; /* batches [0, lo) are over, batch hi is not */
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (wf_batcher_samples(b, middle + 1) <= samples)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* Returns the index of the batch at a place. If the batches are those of the archive, they keep their numbers; if not,
 * the place follows from the samples of all ranks that were given out, or for another data set from their share. */
static int64_t index_of(const wf_iter *iter, const wf_iter_place *p)
{
    const wf_batcher *b = &iter->batcher;
    const int64_t own = b->length, total = wf_batcher_samples(b, own);
    if (p->total < 0)
        return p->length == own ? p->index : share_of(p->index, own, p->length);
    if (p->length == own && p->total == total && wf_batcher_samples(b, p->index) == p->samples)
        return p->index;
    if (p->index == p->length)
        return own;
    return batch_of(b, p->total == total ? p->samples : share_of(p->samples, total, p->total));
}

static wf_status load(wf_iter *iter, const wf_iter_place *p)
{
    int64_t epoch = p->epoch;
    WF_CHECK(epoch >= 0 && epoch < INT64_MAX && p->length >= 0 && p->index >= 0 && p->index <= p->length &&
                 (p->total < 0 || (p->samples >= 0 && p->samples <= p->total)),
             WF_ERR_FORMAT, "the archive holds batch %lld of %lld, after sample %lld of %lld, in epoch %lld",
             (long long)p->index, (long long)p->length, (long long)p->samples, (long long)p->total, (long long)epoch);
    int64_t index = index_of(iter, p);
    if (index >= iter->batcher.length && !iter->batcher.opts.once) {
        index = 0;
        epoch++;
    }
    return seek(iter, epoch, index);
}

wf_status wf_iter_place_get(wf_iter *iter, wf_iter_place *place)
{
    WF_NEED(iter);
    if (iter->streamed) {
        wf_streamed_place_get(iter, place);
        return WF_OK;
    }
    WF_TRY(open_once(iter));
    const wf_batcher *b = &iter->batcher;
    *place = (wf_iter_place){.epoch = iter->next_epoch,
                             .index = iter->next_index,
                             .length = b->length,
                             .samples = wf_batcher_samples(b, iter->next_index),
                             .total = wf_batcher_samples(b, b->length),
                             .seed = (int64_t)b->seed};
    return WF_OK;
}

wf_status wf_iter_place_set(wf_iter *iter, const wf_iter_place *place)
{
    WF_NEED(iter);
    if (iter->streamed)
        return wf_streamed_place_set(iter, place);
    WF_TRY(open_once(iter));
    wf_worker_stop(iter);
    /* The thread, which shuffles by the seed, has been stopped. */
    iter->batcher.seed = (uint64_t)place->seed;
    return load(iter, place);
}

wf_status wf_iter_place_archive(wf_iter_place *place, wf_archive *archive)
{
    WF_TRY(wf_archive_i64(archive, "epoch", &place->epoch));
    WF_TRY(wf_archive_i64(archive, "index", &place->index));
    WF_TRY(wf_archive_i64(archive, "length", &place->length));
    if (wf_archive_has(archive, "samples")) {
        WF_TRY(wf_archive_i64(archive, "samples", &place->samples));
        WF_TRY(wf_archive_i64(archive, "total", &place->total));
    } else {
        place->total = -1;
    }
    return wf_archive_i64(archive, "seed", &place->seed);
}

wf_status wf_iter_archive(wf_iter *iter, wf_archive *archive)
{
    wf_iter_place place;
    WF_NEED(archive);
    WF_TRY(wf_iter_place_get(iter, &place));
    WF_TRY(wf_iter_place_archive(&place, archive));
    return wf_archive_loading(archive) ? wf_iter_place_set(iter, &place) : WF_OK;
}

wf_status wf_iter_visit(void *iter, wf_archive *archive)
{
    return wf_iter_archive(iter, archive);
}
