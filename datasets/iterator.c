/* Iterators: hand out batches, one after the other, from the batcher directly or from the threads of wf_prefetch.
 * Tensors are made here, on the main thread only. A batch is a slot: host memory that the batcher or a thread fills,
 * device memory, and handles of the sizes that occur. It is the program's until the next call. */
#include "datasets/iterator_impl.h"

#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/archive.h"
#include "core/captured_author.h"
#include "core/profile_author.h"

#include <stdlib.h>

/* Growing batches begin at later and later epochs; the list ends with zeros. */
static wf_status check_growth(const wf_batch_opts *opts)
{
    int64_t before = 0;
    bool over = false;
    for (int i = 0; i < WF_BATCH_GROWTHS; i++) {
        const wf_batch_growth *g = &opts->grows[i];
        over = over || g->size == 0;
        WF_CHECK(over ? g->size == 0 && g->epoch == 0 : g->size > 0 && g->epoch > before, WF_ERR_ARGUMENT,
                 "batches of %lld from epoch %lld on: sizes should be 1 or more, epochs 1 or more and rising",
                 (long long)g->size, (long long)g->epoch);
        before = g->epoch;
    }
    return WF_OK;
}

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
    iter->collates = opts.collate.function;
    atomic_init(&iter->batcher.stop, false);
    wf_live_add(ctx, WF_LIVE_ITER, 1);
    if (check_growth(&opts) != WF_OK || wf_collate_check(iter, &opts.collate) != WF_OK) {
        wf_iter_free(iter);
        return wf_error_null();
    }
    return iter;
}

/* A depth of 0 is a mistake here and the default there, so it becomes one that is refused. */
static wf_status check_prefetch(const wf_iter *iter, wf_prefetch_opts opts)
{
    WF_CHECK(!iter->streamed, WF_ERR_ARGUMENT,
             "prefetch of streamed batches: the program makes them while it asks for them, so none is made ahead");
    WF_CHECK(!iter->opened && iter->depth == 0, WF_ERR_STATE,
             "prefetch of an iterator that gave batches or has a prefetch already");
    WF_CHECK(opts.depth >= 1 && opts.depth <= 1024, WF_ERR_ARGUMENT, "prefetch of %d batches: should be 1 to 1024",
             opts.depth > 0 ? opts.depth : 0);
    WF_CHECK(opts.workers >= 1 && opts.workers <= 256, WF_ERR_ARGUMENT, "prefetch by %d threads: should be 1 to 256",
             opts.workers);
    return WF_OK;
}

/* Takes the iterator; a failure frees it. */
wf_iter *wf_prefetch(wf_iter *iter, wf_prefetch_opts opts)
{
    if (!iter)
        return NULL;
    opts.depth = opts.depth ? opts.depth : 2;
    opts.workers = opts.workers ? opts.workers : 1;
    if (check_prefetch(iter, opts) != WF_OK) {
        wf_iter_free(iter);
        return wf_error_null();
    }
    iter->depth = opts.depth;
    iter->workers = opts.workers;
    return iter;
}

/* On the host, `host` is the tensor's own memory and not given back twice. */
static void slot_free(const wf_iter *iter, wf_slot *slot)
{
    wf_ctx *ctx = iter->ctx;
    for (int i = 0; i < WF_SLOT_TENSORS; i++) {
        wf_slot_tensor *t = &slot->tensor[i];
        if (!ctx->k->host && t->memory)
            wf_pool_give_host(ctx, t->host, wf_tensor_bytes(t->memory));
        for (int k = 0; k < WF_BATCH_SIZES; k++)
            wf_tensor_free(t->sized[k]);
        wf_tensor_free(t->memory);
    }
    wf_collate_slot_free(iter, slot);
    if (ctx->k->host)
        return;
    ctx->k->event_free(ctx, slot->copied);
    ctx->k->event_free(ctx, slot->read);
}

/* Order: threads write to slots, copies read them, the batcher is used by both. */
static void release_slots(wf_iter *iter)
{
    wf_loader_stop(iter);
    /* Copies on it still read the host memory of the slots: its end waits for them. */
    if (iter->stream)
        iter->ctx->k->stream_free(iter->ctx, iter->stream);
    iter->stream = NULL;
    for (int s = 0; s < iter->slot_count; s++)
        slot_free(iter, &iter->slots[s]);
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

/* A handle has no memory of its own: it names the slot's, for a batch of this size. */
static wf_tensor *handle_new(const wf_iter *iter, const wf_iter_field *f, const wf_slot_tensor *t, int64_t size)
{
    return wf_tensor_wrap(iter->ctx, f->dtype, batch_shape(size, wf_collate_row(f, t)), t->memory->data,
                          (wf_wrap_opts){.order = f->order});
}

static wf_status slot_tensor_open(const wf_iter *iter, const wf_iter_field *f, wf_slot_tensor *t)
{
    wf_ctx *ctx = iter->ctx;
    t->memory = wf_tensor_new_ordered(ctx, f->dtype, batch_shape(iter->rows, f->shape), f->order);
    WF_TRY(wf_check(t->memory));
    /* On the host a batch is written where it is read. */
    t->host = t->memory->data;
    if (!ctx->k->host) {
        t->host = NULL;
        WF_TRY(wf_pool_take_host(ctx, wf_tensor_bytes(t->memory), &t->host));
    }
    /* The usual sizes are made here, so that the loop makes none. */
    for (int k = 0; k < WF_BATCH_SIZES; k++) {
        t->sized[k] = handle_new(iter, f, t, iter->sizes[k]);
        WF_TRY(wf_check(t->sized[k]));
    }
    return WF_OK;
}

/* The handle of the batch's shape: one that there is, or a new one in place of the oldest. */
static wf_status find_handle(const wf_iter *iter, const wf_iter_field *f, wf_slot_tensor *t, int64_t size,
                             wf_tensor **handle)
{
    const wf_shape shape = batch_shape(size, wf_collate_row(f, t));
    for (int k = 0; k < WF_BATCH_SIZES; k++)
        if (wf_shape_equal(t->sized[k]->shape, shape)) {
            *handle = t->sized[k];
            return WF_OK;
        }
    wf_tensor *made = handle_new(iter, f, t, size);
    WF_TRY(wf_check(made));
    wf_tensor_free(t->sized[t->oldest]);
    *handle = t->sized[t->oldest] = made;
    t->oldest = (t->oldest + 1) % WF_BATCH_SIZES;
    return WF_OK;
}

static wf_status slot_open(wf_iter *iter, wf_slot *slot)
{
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        if (iter->field[i].present)
            WF_TRY(slot_tensor_open(iter, &iter->field[i], &slot->tensor[i]));
    if (iter->collates)
        WF_TRY(wf_collate_slot_open(iter, slot));
    if (iter->ctx->k->host)
        return WF_OK;
    WF_TRY(iter->ctx->k->event_new(iter->ctx, &slot->copied));
    WF_TRY(iter->ctx->k->event_new(iter->ctx, &slot->read));
    /* Earlier work may still use the memory, which the pool gave to others before. */
    return iter->ctx->k->event_record(iter->ctx, slot->read, NULL);
}

/* A collate function gets samples, and makes the rows of tensors from them; else rows are tensors. */
wf_rows_out wf_slot_rows(const wf_iter *iter, const wf_slot *slot)
{
    const wf_slot_tensor *t = slot->tensor;
    if (iter->collates)
        return (wf_rows_out){.x = slot->sample_memory, .labels = slot->label_memory, .number = slot->number};
    return (wf_rows_out){.x = t[WF_SLOT_X].host, .wide = t[WF_SLOT_WIDE].host, .labels = t[WF_SLOT_LABELS].host};
}

/* The tensors of batches without a collate function. */
static void name_fields(wf_iter *iter)
{
    const wf_batcher *b = &iter->batcher;
    iter->field[WF_SLOT_X] = (wf_iter_field){.name = "x",
                                             .present = true,
                                             .sharded = b->opts.sharded,
                                             .dtype = b->format.to,
                                             .shape = wf_box_shape(b->box),
                                             .order = b->format.order};
    iter->field[WF_SLOT_WIDE] = (wf_iter_field){.present = b->widened,
                                                .dtype = b->wide_format.to,
                                                .shape = wf_box_shape(b->wide),
                                                .order = b->wide_format.order};
    iter->field[WF_SLOT_LABELS] = (wf_iter_field){
        .name = "labels", .present = b->dataset->info.labels, .target = true, .dtype = WF_I64, .order = WF_ROW_MAJOR};
}

static wf_status build(wf_iter *iter)
{
    WF_TRY(wf_batcher_open(&iter->batcher, iter->workers > 1 ? iter->workers : 1));
    const wf_batch_opts *opts = &iter->batcher.opts;
    const int64_t held = iter->batcher.dataset->info.count, size = opts->size;
    /* No more rows than this rank has samples. */
    iter->rows = size;
    for (int i = 0; i < WF_BATCH_GROWTHS && opts->grows[i].size > 0; i++)
        iter->rows = opts->grows[i].size > iter->rows ? opts->grows[i].size : iter->rows;
    iter->rows = held < iter->rows ? held : iter->rows;
    iter->sizes[0] = held < size ? held : size;
    iter->sizes[1] = held < size ? 0 : held % size;
    iter->sizes[2] = 0;
    if (iter->collates)
        WF_TRY(wf_collate_open(iter));
    else
        name_fields(iter);
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
        WF_TRY(wf_loader_start(iter));
    return WF_OK;
}

/* Batches are made at the first call: wf_prefetch may come until then. */
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

/* Without threads: on failure nothing moves. */
static wf_status fill_slot(wf_iter *iter, wf_slot *slot)
{
    WF_TRY(wf_batcher_fill(&iter->batcher, wf_slot_rows(iter, slot), &slot->plan));
    if (iter->collates)
        WF_TRY(wf_collate_run(iter, slot));
    wf_batcher_advance(&iter->batcher);
    return WF_OK;
}

/* The threads are stopped first: they advance the batcher and write to the slots. Slots that the program or a copy
 * still reads are waited for. */
static wf_status seek(wf_iter *iter, int64_t epoch, int64_t index)
{
    wf_loader_stop(iter);
    WF_TRY(mark_read(iter));
    for (int s = 0; s < iter->slot_count && iter->given > 0; s++)
        WF_TRY(wait_copied(iter->ctx, &iter->slots[s]));
    iter->given = 0;
    iter->epoch = iter->next_epoch = epoch;
    iter->next_index = index;
    if (iter->depth > 0)
        return wf_loader_start(iter); /* which seeks, too */
    wf_batcher_seek(&iter->batcher, epoch, index);
    return WF_OK;
}

static wf_status take_slot(wf_iter *iter, wf_slot **slot)
{
    /* The threads of an earlier seek did not start. */
    if (iter->depth > 0 && !iter->loader)
        WF_TRY(seek(iter, iter->next_epoch, iter->next_index));
    WF_TRY(mark_read(iter));
    if (iter->loader) {
        if (iter->given > 0) { /* the threads will write there */
            wf_slot *last = &iter->slots[(iter->given - 1) % iter->slot_count];
            WF_TRY(wait_copied(iter->ctx, last));
            touch_slot(last);
        }
        *slot = wf_loader_wait(iter);
        WF_CHECK((*slot)->status == WF_OK, (*slot)->status, "%s", (*slot)->message);
    } else {
        *slot = &iter->slots[0];
        WF_TRY(wait_copied(iter->ctx, *slot));
        touch_slot(*slot);
        WF_TRY(fill_slot(iter, *slot));
    }
    /* Collective if fields vary, so it is done by this thread and not by those of wf_prefetch. */
    WF_TRY(wf_collate_trim(iter, *slot));
    return copy_to_device(iter, *slot);
}

/* The place of the tensor in the global batch; x (not labels) may be sharded along pixels. Without a message: the plan
 * says how many samples every rank has. */
static wf_status dress(wf_iter *iter, const wf_batch_plan *plan, const wf_iter_field *f, wf_tensor *tensor)
{
    const wf_batcher *b = &iter->batcher;
    const wf_mesh *mesh = b->dataset->mesh;
    if (!mesh)
        return WF_OK;
    const wf_shape part = wf_tensor_shape(tensor);
    const wf_shape row = f->sharded ? b->dataset->info.shape : wf_shape_make(part.rank - 1, part.dim + 1);
    const wf_shape global = batch_shape(plan->global, row);
    wf_layout layout = wf_layout_batch(mesh, global, 0, 0);
    if (f->sharded)
        WF_TRY(wf_batcher_layout(mesh, global, &layout));
    wf_batcher_cut(&iter->batcher, plan);
    wf_layout_shard(mesh, &layout, WF_AXIS_DATA, 0, iter->batcher.bounds);
    WF_NEED(layout.bounds[WF_AXIS_DATA]);
    return wf_tensor_set_layout(tensor, layout);
}

/* The tensors of a batch, by name where they have one. */
static wf_status show_tensors(wf_iter *iter, wf_slot *slot, wf_batch *batch)
{
    for (int i = 0; i < WF_BATCH_FIELDS; i++) {
        const wf_iter_field *f = &iter->field[i];
        wf_tensor *tensor = NULL;
        if (!f->present)
            continue;
        WF_TRY(find_handle(iter, f, &slot->tensor[i], slot->plan.size, &tensor));
        if (*f->name) {
            WF_TRY(dress(iter, &slot->plan, f, tensor));
            batch->named[batch->names++] = (wf_batch_tensor){.name = f->name, .tensor = tensor, .target = f->target};
        } else {
            batch->wide = tensor;
        }
    }
    wf_batch_name(batch);
    return WF_OK;
}

/* The position that a checkpoint stores is that of the batch handed out, not that of the threads, which are ahead. */
static wf_status next_batch(wf_iter *iter, wf_batch *batch)
{
    wf_slot *slot = NULL;
    WF_TRY(take_slot(iter, &slot));
    const wf_batch_plan *plan = &slot->plan;
    wf_batch made = {.wide_box = iter->batcher.wide,
                     .size = plan->size,
                     .global = plan->global,
                     .epoch = plan->epoch,
                     .index = plan->index,
                     .last = plan->last};
    WF_TRY(show_tensors(iter, slot, &made));
    iter->given++;
    iter->next_epoch = plan->epoch;
    iter->next_index = plan->index;
    wf_batcher_after(&iter->batcher, &iter->next_epoch, &iter->next_index);
    /* The epoch that the program sees changes after the last batch was handed out. */
    iter->epoch = plan->last ? plan->epoch + 1 : iter->epoch;
    *batch = made;
    return WF_OK;
}

/* Options and shapes that opening refuses are refused on all ranks alike, which leaves the communicator alive: no other
 * rank waits. */
static bool is_refused_alike(wf_status opening)
{
    return opening == WF_OK || opening == WF_ERR_ARGUMENT || opening == WF_ERR_SHAPE || opening == WF_ERR_DTYPE ||
           opening == WF_ERR_UNSUPPORTED;
}

/* A file or a sample is broken on the rank that reads it, or its memory or its threads do not suffice, while the others
 * train on. This is the one place that tells them; readers and transforms return their errors and no more. */
wf_status wf_iter_next(wf_iter *iter, wf_batch *batch)
{
    WF_NEED(iter);
    WF_NEED(batch);
    /* A captured step cannot read a file again. */
    WF_TRY(wf_ctx_forbid_capture(iter->ctx, "fetch its batch",
                                 "fetch it between runs and assign it to a tensor of the step's"));
    const wf_status opening = open_once(iter);
    const wf_mesh *mesh = iter->streamed ? iter->streamed->mesh : iter->batcher.dataset->mesh;
    if (opening != WF_OK)
        return mesh && !is_refused_alike(opening) ? wf_comm_post_failure(wf_mesh_world(mesh), opening) : opening;
    const int64_t start_ns = iter->ctx->profile ? wf_profile_clock() : 0;
    const wf_status status = iter->streamed ? wf_streamed_batch(iter, batch) : next_batch(iter, batch);
    if (iter->ctx->profile)
        wf_profile_add(iter->ctx->profile, WF_PROFILE_INPUT, "next batch",
                       &(wf_profile_event){.start_ns = start_ns, .end_ns = wf_profile_clock()});
    return mesh ? wf_comm_post_failure(wf_mesh_world(mesh), status) : status;
}

int64_t wf_iter_epoch(const wf_iter *iter)
{
    return iter ? iter->epoch : 0;
}

int64_t wf_iter_length_at(void *iter, int64_t epoch)
{
    wf_iter *own = iter;
    if (own && own->streamed)
        return own->streamed->opts.epoch_length;
    /* A data set that does not open has no batches; the error is kept. */
    return own && open_once(own) == WF_OK ? wf_batcher_length(&own->batcher, epoch) : 0;
}

int64_t wf_iter_epoch_length(wf_iter *iter)
{
    return wf_iter_length_at(iter, iter ? iter->next_epoch : 0);
}

/* --- Where it is -------------------------------------------------------------------------------------------------- */

/* value * factor / divisor, rounded down, of numbers that are 0 or more, for value <= divisor. */
static int64_t share_of(int64_t value, int64_t factor, int64_t divisor)
{
    __extension__ typedef unsigned __int128 wide; /* the product of two numbers of 63 bits */
    return divisor > 0 ? (int64_t)((wide)value * (wide)factor / (wide)divisor) : 0;
}

/* The batch that has the first sample after `samples` ones: none is left out, and fewer than a batch are repeated.
 * Batches of a growing size are not equally long, hence the search. */
static int64_t batch_of(const wf_batcher *b, int64_t epoch, int64_t samples)
{
    int64_t lo = 0, hi = wf_batcher_length(b, epoch); /* batches [0, lo) are over, batch hi is not */
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (wf_batcher_samples(b, epoch, middle + 1) <= samples)
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
    const int64_t own = wf_batcher_length(b, p->epoch), total = wf_batcher_samples(b, p->epoch, own);
    if (p->total < 0)
        return p->length == own ? p->index : share_of(p->index, own, p->length);
    if (p->length == own && p->total == total && wf_batcher_samples(b, p->epoch, p->index) == p->samples)
        return p->index;
    if (p->index == p->length)
        return own;
    return batch_of(b, p->epoch, p->total == total ? p->samples : share_of(p->samples, total, p->total));
}

static wf_status check_place(const wf_iter_place *p)
{
    WF_CHECK(p->epoch >= 0 && p->epoch < INT64_MAX && p->length >= 0 && p->index >= 0 && p->index <= p->length &&
                 (p->total < 0 || (p->samples >= 0 && p->samples <= p->total)),
             WF_ERR_FORMAT, "the archive holds batch %lld of %lld, after sample %lld of %lld, in epoch %lld",
             (long long)p->index, (long long)p->length, (long long)p->samples, (long long)p->total,
             (long long)p->epoch);
    return WF_OK;
}

/* The end of an epoch is the beginning of the next, unless there is only one. */
static wf_status load(wf_iter *iter, const wf_iter_place *p)
{
    int64_t epoch = p->epoch, index = index_of(iter, p);
    if (index >= wf_batcher_length(&iter->batcher, epoch) && !iter->batcher.opts.once) {
        index = 0;
        epoch++;
    }
    return seek(iter, epoch, index);
}

/* The place of what the program has got, not of what the threads have read. */
wf_status wf_iter_place_get(wf_iter *iter, wf_iter_place *place)
{
    WF_NEED(iter);
    if (iter->streamed) {
        wf_streamed_place_get(iter, place);
        return WF_OK;
    }
    WF_TRY(open_once(iter));
    const wf_batcher *b = &iter->batcher;
    const int64_t epoch = iter->next_epoch, length = wf_batcher_length(b, epoch);
    *place = (wf_iter_place){.epoch = epoch,
                             .index = iter->next_index,
                             .length = length,
                             .samples = wf_batcher_samples(b, epoch, iter->next_index),
                             .total = wf_batcher_samples(b, epoch, length),
                             .seed = (int64_t)b->seed};
    return WF_OK;
}

wf_status wf_iter_place_set(wf_iter *iter, const wf_iter_place *place)
{
    WF_NEED(iter);
    if (iter->streamed)
        return wf_streamed_place_set(iter, place);
    WF_TRY(open_once(iter));
    /* An archive that is refused leaves the iterator where it is. */
    WF_TRY(check_place(place));
    wf_loader_stop(iter);
    /* The threads, which shuffle by the seed, have been stopped. */
    iter->batcher.seed = (uint64_t)place->seed;
    return load(iter, place);
}

wf_status wf_iter_place_archive(wf_iter_place *place, wf_archive *archive)
{
    WF_TRY(wf_archive_i64(archive, "epoch", &place->epoch));
    WF_TRY(wf_archive_i64(archive, "index", &place->index));
    WF_TRY(wf_archive_i64(archive, "length", &place->length));
    /* Archives of earlier versions have only batch numbers. */
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
