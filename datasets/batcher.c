/* Decides which samples make the next batch on this rank, and how large the global batch is: by arithmetic that all
 * ranks share, without a message. It also fills the batch; threads of wf_prefetch run it, so it never calls MPI or the
 * pool. */
#include "comm/mesh_author.h"
#include "datasets/iterator_impl.h"

#include <stdlib.h>
#include <string.h>

static int64_t at_most(int64_t value, int64_t limit)
{
    return value < limit ? value : limit;
}

int64_t wf_batcher_size(const wf_batcher *b, int64_t epoch)
{
    int64_t size = b->opts.size;
    for (int i = 0; i < WF_BATCH_GROWTHS && b->opts.grows[i].size > 0 && b->opts.grows[i].epoch <= epoch; i++)
        size = b->opts.grows[i].size;
    return size;
}

/* An empty data set gives one empty batch for each epoch, so that loops over epochs end. */
int64_t wf_batcher_length(const wf_batcher *b, int64_t epoch)
{
    const int64_t size = wf_batcher_size(b, epoch);
    const int64_t length = b->opts.drop_last ? b->least / size : b->most / size + (b->most % size > 0);
    return length == 0 && !b->opts.once ? 1 : length;
}

/* Samples of rank r in a batch: none in the mark at the end of an epoch. */
static int64_t size_of(const wf_batcher *b, int r, int64_t epoch, int64_t index)
{
    if (index >= wf_batcher_length(b, epoch))
        return 0;
    const int64_t size = wf_batcher_size(b, epoch), left = b->parts[r].count - index * size;
    return left < 0 ? 0 : at_most(left, size);
}

int64_t wf_batcher_samples(const wf_batcher *b, int64_t epoch, int64_t index)
{
    const int64_t size = wf_batcher_size(b, epoch);
    int64_t samples = 0;
    for (int r = 0; r < b->size; r++)
        samples += index > b->parts[r].count / size ? b->parts[r].count : at_most(index * size, b->parts[r].count);
    return samples;
}

/* All ranks know the counts of all parts, so they find the same number of batches without a message. It has to be the
 * same: a rank that ended its epoch earlier would leave the others alone in a collective. With drop_last every batch is
 * full on every rank; otherwise a rank whose part is used up takes part with an empty batch. */
static wf_status count_batches(wf_batcher *b)
{
    int64_t largest = b->opts.size;
    b->most = 0;
    b->least = INT64_MAX;
    for (int r = 0; r < b->size; r++) {
        b->most = b->parts[r].count > b->most ? b->parts[r].count : b->most;
        b->least = at_most(b->parts[r].count, b->least);
    }
    for (int i = 0; i < WF_BATCH_GROWTHS && b->opts.grows[i].size > 0; i++)
        largest = b->opts.grows[i].size > largest ? b->opts.grows[i].size : largest;
    WF_CHECK(!b->opts.drop_last || b->least >= largest || b->most == 0, WF_ERR_ARGUMENT,
             "batches of %lld with drop_last: no batch is full, the shortest part has %lld samples", (long long)largest,
             (long long)b->least);
    return WF_OK;
}

/* The longest part counts, not this batch's samples: the memory is taken once and lives as long as the iterator. */
static wf_status make_room(wf_batcher *b, int threads)
{
    const wf_dataset *d = b->dataset;
    /* The order holds the samples of this rank alone; a permutation of the whole would need memory for all of them. */
    const int64_t held = d->info.count;
    b->bounds = wf_malloc(d->ctx, ((size_t)b->size + 1) * sizeof *b->bounds);
    if (!b->bounds)
        return WF_ERR_MEMORY;
    if (b->opts.shuffle) {
        b->order = wf_malloc(d->ctx, held ? (size_t)held * sizeof *b->order : 1);
        if (!b->order)
            return WF_ERR_MEMORY;
    }
    const size_t size = wf_dtype_size(d->info.dtype);
    b->room = wf_calloc(d->ctx, (size_t)threads, sizeof *b->room);
    if (!b->room)
        return WF_ERR_MEMORY;
    b->rooms = threads;
    for (wf_batch_room *r = b->room; r < b->room + threads; r++) {
        r->own = wf_malloc(d->ctx, (size_t)wf_shape_count(wf_box_shape(b->box)) * size + 1);
        r->sample = b->widened ? wf_malloc(d->ctx, (size_t)wf_shape_count(wf_box_shape(b->wide)) * size + 1) : NULL;
        if (!r->own || (b->widened && !r->sample))
            return WF_ERR_MEMORY;
    }
    return WF_OK;
}

wf_status wf_batcher_layout(const wf_mesh *mesh, wf_shape global, wf_layout *layout)
{
    wf_layout usual;
    WF_TRY(wf_mesh_layout_activation_recent(mesh, global, &usual));
    *layout = (wf_layout){.known = true, .mesh = mesh, .global = global, .box = wf_box_of_shape(global)};
    for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++)
        if (usual.placement[a] == WF_SHARDED)
            wf_layout_shard(mesh, layout, (wf_axis)a, usual.dim[a], usual.bounds[a]);
    return WF_OK;
}

/* The part of a sample that this rank reads: its own pixels, if they are sharded over the mesh. */
static wf_status choose_box(wf_batcher *b)
{
    const wf_dataset *d = b->dataset;
    const wf_shape shape = d->info.shape;
    int64_t dim[WF_MAX_RANK] = {b->size};
    wf_layout layout;
    b->box = wf_box_of_shape(shape);
    if (!b->opts.sharded)
        return WF_OK;
    WF_CHECK(d->mesh, WF_ERR_ARGUMENT,
             "batches that are cut, of a data set that is not scattered over a mesh: wf_mesh_scatter_dataset it first");
    for (int k = 0; k < shape.rank; k++)
        dim[k + 1] = shape.dim[k];
    WF_TRY(wf_batcher_layout(d->mesh, wf_shape_make(shape.rank + 1, dim), &layout));
    for (int k = 0; k < shape.rank; k++) {
        b->box.lo[k] = layout.box.lo[k + 1];
        b->box.hi[k] = layout.box.hi[k + 1];
    }
    return WF_OK;
}

/* The box with its halo, as far as the image goes. */
static wf_status widen(wf_batcher *b)
{
    const wf_shape shape = b->dataset->info.shape;
    const int64_t *halo = b->opts.halo;
    char text[WF_SHAPE_TEXT];
    b->wide = b->box;
    for (int a = 0; a < 3; a++) {
        const int d = shape.rank - 3 + a; /* dimension 0 is the channels */
        WF_CHECK(halo[a] >= 0 && (halo[a] == 0 || (d >= 1 && b->opts.sharded)), WF_ERR_ARGUMENT,
                 "batches with a halo of %lld x %lld x %lld pixels (depth, height, width), of samples %s: should be 0 "
                 "where there is no such dimension, and wf_batch_opts.sharded be set",
                 (long long)halo[0], (long long)halo[1], (long long)halo[2], wf_shape_text(shape, text));
        b->widened = b->widened || halo[a] > 0;
        if (halo[a] == 0 || wf_box_empty(b->box))
            continue;
        b->wide.lo[d] = halo[a] < b->box.lo[d] ? b->box.lo[d] - halo[a] : 0;
        b->wide.hi[d] = halo[a] < shape.dim[d] - b->box.hi[d] ? b->box.hi[d] + halo[a] : shape.dim[d];
    }
    return WF_OK;
}

static wf_row_format format_of(const wf_batcher *b, wf_box box, size_t *bytes)
{
    wf_dataset_info part = b->dataset->info;
    part.shape = wf_box_shape(box);
    wf_row_format format = wf_row_format_make(&part, wf_ctx_dtype(b->dataset->ctx), b->opts.raw);
    if (b->opts.collate.function) { /* it reads samples as they are */
        format = (wf_row_format){.from = part.dtype, .to = part.dtype, .order = WF_ROW_MAJOR, .direct = true};
    }
    *bytes = (size_t)wf_shape_count(part.shape) * wf_dtype_size(format.to);
    return format;
}

wf_status wf_batcher_open(wf_batcher *b, int threads)
{
    wf_dataset *d = b->dataset;
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_dataset_open(d));
    /* The batch has one dimension more than a sample, the first. */
    WF_CHECK(d->info.shape.rank < WF_MAX_RANK, WF_ERR_SHAPE, "batches of samples of shape %s: rank should be below %d",
             wf_shape_text(d->info.shape, text), WF_MAX_RANK);
    b->alone = (wf_dataset_part){.first = 0, .count = d->info.count};
    b->parts = d->mesh ? d->parts : &b->alone;
    b->rank = d->mesh ? wf_mesh_rank(d->mesh, WF_AXIS_DATA) : 0;
    b->size = d->mesh ? wf_mesh_size(d->mesh, WF_AXIS_DATA) : 1;
    WF_TRY(choose_box(b));
    WF_TRY(widen(b));
    b->opts.shuffle = b->opts.shuffle || d->reshuffled;
    b->seed = b->opts.seed ? b->opts.seed : wf_ctx_seed(d->ctx);
    /* Ranks shuffle their parts by different streams of one seed: equal permutations would tie the same places of all
     * parts together in every batch. */
    b->stream = wf_hash_u64(wf_hash_text(0, "batches"), (uint64_t)b->rank);
    b->format = format_of(b, b->box, &b->row_bytes);
    b->wide_format = format_of(b, b->wide, &b->wide_bytes);
    WF_TRY(count_batches(b));
    WF_TRY(make_room(b, threads));
    return WF_OK;
}

void wf_batcher_close(wf_batcher *b)
{
    for (int i = 0; i < b->rooms; i++) {
        free(b->room[i].sample);
        free(b->room[i].own);
    }
    free(b->room);
    free(b->order);
    free(b->bounds);
    b->bounds = NULL;
    b->order = NULL;
    b->room = NULL;
    b->rooms = 0;
}

/* `lo` is what the ranks before this one contribute, so the sum over r gives this rank's place in the global batch. */
static wf_batch_plan plan_next(const wf_batcher *b)
{
    wf_batch_plan plan = {.epoch = b->epoch, .index = b->index, .last = b->index + 1 == wf_batcher_length(b, b->epoch)};
    for (int r = 0; r < b->size; r++) {
        const int64_t size = size_of(b, r, b->epoch, b->index);
        if (r < b->rank)
            plan.lo += size;
        if (r == b->rank)
            plan.size = size;
        plan.global += size;
    }
    if (plan.size > 0)
        plan.start = b->index * wf_batcher_size(b, b->epoch);
    return plan;
}

void wf_batcher_cut(wf_batcher *b, const wf_batch_plan *plan)
{
    b->bounds[0] = 0;
    for (int r = 0; r < b->size; r++)
        b->bounds[r + 1] = b->bounds[r] + size_of(b, r, plan->epoch, plan->index);
}

static wf_status read_own(const wf_batcher *b, const wf_batch_room *room, const wf_batch_row *r, unsigned char *x,
                          int64_t *label)
{
    void *to = b->format.direct ? x : room->own;
    if (b->opts.sharded)
        WF_TRY(wf_dataset_read_box(b->dataset, r->index, &r->key, &b->box, to, label));
    else
        WF_TRY(wf_dataset_read(b->dataset, r->index, &r->key, to, label));
    if (!b->format.direct)
        wf_row_store(&b->format, room->own, x);
    return WF_OK;
}

static void store(const wf_row_format *format, const void *sample, void *x, size_t bytes)
{
    if (format->direct)
        memcpy(x, sample, bytes);
    else
        wf_row_store(format, sample, x);
}

/* The wide part is read, and the own part cut out of it. */
static wf_status read_wide(const wf_batcher *b, const wf_batch_room *room, const wf_batch_row *r, unsigned char *x,
                           unsigned char *wide, int64_t *label)
{
    const wf_box own = wf_box_relative(b->box, b->wide);
    WF_TRY(wf_dataset_read_box(b->dataset, r->index, &r->key, &b->wide, room->sample, label));
    wf_box_copy(wf_box_shape(b->wide), wf_dtype_size(b->dataset->info.dtype), &own, room->sample, room->own);
    store(&b->wide_format, room->sample, wide, b->wide_bytes);
    store(&b->format, room->own, x, b->row_bytes);
    return WF_OK;
}

wf_batch_row wf_batcher_row(const wf_batcher *b, const wf_batch_plan *plan, int64_t i)
{
    const int64_t place = plan->start + i, index = b->order ? b->order[place] : place;
    /* The key has the sample's place in the scattered order, which does not depend on the number of ranks: a random
     * transform gives the same picture on every mesh. */
    return (wf_batch_row){.index = index,
                          .row = i,
                          .key = {.seed = b->seed, .epoch = plan->epoch, .sample = b->parts[b->rank].first + index}};
}

wf_status wf_batcher_read(const wf_batcher *b, const wf_batch_room *room, const wf_batch_row *r, const wf_rows_out *out)
{
    int64_t *label = out->labels ? out->labels + r->row : NULL;
    unsigned char *x = (unsigned char *)out->x + (size_t)r->row * b->row_bytes;
    if (out->number)
        out->number[r->row] = r->key.sample;
    if (!b->widened)
        return read_own(b, room, r, x, label);
    return read_wide(b, room, r, x, (unsigned char *)out->wide + (size_t)r->row * b->wide_bytes, label);
}

static void shuffle(wf_batcher *b)
{
    if (b->order)
        /* The permutation follows from the epoch, not from the one before: an iterator that resumes in epoch 7 does not
         * replay six. */
        wf_random_permutation(b->seed, wf_hash_u64(b->stream, (uint64_t)b->epoch), b->parts[b->rank].count, b->order);
}

/* With `once` the mark after the last batch is one more, empty, batch. */
void wf_batcher_after(const wf_batcher *b, int64_t *epoch, int64_t *index)
{
    ++*index;
    if (*index >= wf_batcher_length(b, *epoch) + (b->opts.once ? 1 : 0)) {
        *index = 0;
        ++*epoch;
    }
}

void wf_batcher_seek(wf_batcher *b, int64_t epoch, int64_t index)
{
    b->epoch = epoch;
    b->index = index;
    shuffle(b);
}

wf_batch_plan wf_batcher_plan(wf_batcher *b)
{
    if (b->index == 0)
        shuffle(b);
    return plan_next(b);
}

void wf_batcher_advance(wf_batcher *b)
{
    wf_batcher_after(b, &b->epoch, &b->index);
}

wf_status wf_batcher_fill(wf_batcher *b, wf_rows_out out, wf_batch_plan *plan)
{
    *plan = wf_batcher_plan(b);
    for (int64_t i = 0; i < plan->size; i++) {
        const wf_batch_row row = wf_batcher_row(b, plan, i);
        WF_TRY(wf_batcher_read(b, b->room, &row, &out));
    }
    return WF_OK;
}
