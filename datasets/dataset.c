/* Data sets as objects: opening, reading, decorators. Readers and transforms are kinds (datasets/dataset_author.h);
 * iterators and scatter are the callers. Nothing here communicates. */
#include "datasets/dataset_author.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Memory for a read, with what wf_dataset_take_room returns behind it. Each data set keeps its rooms for the next
 * reads, so that threads do not allocate for every sample. */
typedef struct wf_dataset_room {
    struct wf_dataset_room *next;
    size_t bytes;
    alignas(max_align_t) unsigned char data[];
} wf_dataset_room;

/* The inner data set is taken in every case, so that constructors can be nested without a name for each. */
wf_dataset *wf_dataset_new(wf_ctx *ctx, const wf_dataset_kind *kind, wf_dataset *inner, size_t state_bytes)
{
    if (!ctx) {
        wf_dataset_free(inner);
        return NULL;
    }
    wf_dataset *dataset = wf_calloc(ctx, 1, sizeof *dataset);
    void *state = dataset ? wf_calloc(ctx, 1, state_bytes ? state_bytes : 1) : NULL;
    if (!state) {
        free(dataset);
        wf_dataset_free(inner);
        return wf_error_null();
    }
    *dataset = (wf_dataset){.kind = kind, .ctx = ctx, .inner = inner, .state = state};
    pthread_mutex_init(&dataset->reading, NULL);
    pthread_mutex_init(&dataset->rooms, NULL);
    wf_live_add(ctx, WF_LIVE_DATASET, 1);
    return dataset;
}

/* Layers of decorators share the parts of the innermost data set, which frees them. */
void wf_dataset_free(wf_dataset *dataset)
{
    if (!dataset)
        return;
    if (dataset->kind->free)
        dataset->kind->free(dataset);
    if (!dataset->inner)
        free(dataset->parts);
    wf_dataset_free(dataset->inner);
    free(dataset->state);
    for (wf_dataset_room *room = dataset->room; room;) {
        wf_dataset_room *const next = room->next;
        free(room);
        room = next;
    }
    pthread_mutex_destroy(&dataset->rooms);
    pthread_mutex_destroy(&dataset->reading);
    wf_live_add(dataset->ctx, WF_LIVE_DATASET, -1);
    free(dataset);
}

/* Opening is late and from the inside out: a chain of decorators costs nothing until the first batch, and a transform
 * sees the final shape of what it decorates. */
wf_status wf_dataset_open(wf_dataset *dataset)
{
    WF_NEED(dataset);
    if (dataset->opened)
        return WF_OK;
    if (dataset->inner) {
        WF_TRY(wf_dataset_open(dataset->inner));
        dataset->info = dataset->inner->info;
        dataset->mesh = dataset->inner->mesh;
        dataset->parts = dataset->inner->parts;
        dataset->reshuffled = dataset->inner->reshuffled;
    }
    if (dataset->kind->open)
        WF_TRY(dataset->kind->open(dataset));
    dataset->opened = true;
    return WF_OK;
}

wf_status wf_dataset_info_get(wf_dataset *dataset, wf_dataset_info *info)
{
    WF_TRY(wf_dataset_open(dataset));
    WF_NEED(info);
    *info = dataset->info;
    return WF_OK;
}

int64_t wf_dataset_count(wf_dataset *dataset)
{
    if (!dataset || wf_dataset_open(dataset) != WF_OK)
        return 0;
    return dataset->info.count;
}

/* The one check of all kinds, which may rely on it. */
static wf_status check_index(const wf_dataset *dataset, int64_t index)
{
    WF_CHECK(index >= 0 && index < dataset->info.count, WF_ERR_ARGUMENT, "%s: sample %lld is not in [0, %lld)",
             dataset->kind->name, (long long)index, (long long)dataset->info.count);
    return WF_OK;
}

/* The first room that is large enough; samples of a data set have one size, so it nearly always is the first. */
void *wf_dataset_take_room(wf_dataset *dataset, size_t bytes)
{
    pthread_mutex_lock(&dataset->rooms);
    wf_dataset_room **at = &dataset->room;
    while (*at && (*at)->bytes < bytes)
        at = &(*at)->next;
    wf_dataset_room *room = *at;
    if (room)
        *at = room->next;
    pthread_mutex_unlock(&dataset->rooms);
    if (!room && (room = malloc(sizeof *room + bytes)))
        room->bytes = bytes;
    WF_CHECK_NULL(room, WF_ERR_MEMORY, "%s: no memory for a sample of %zu bytes", dataset->kind->name, bytes);
    return room->data;
}

/* Threads give back in any order. */
void wf_dataset_give_room(wf_dataset *dataset, void *data)
{
    if (!data)
        return;
    wf_dataset_room *const room = (wf_dataset_room *)((unsigned char *)data - offsetof(wf_dataset_room, data));
    pthread_mutex_lock(&dataset->rooms);
    room->next = dataset->room;
    dataset->room = room;
    pthread_mutex_unlock(&dataset->rooms);
}

/* Reads a sample, or the box of one, while no other thread reads this data set, unless its kind says that it may: a
 * library such as HDF5 may have one caller at a time. */
static wf_status read_guarded(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                              int64_t *label)
{
    const wf_dataset_kind *const kind = dataset->kind;
    int64_t unused;
    int64_t *const to = label ? label : &unused;
    if (!kind->concurrent)
        pthread_mutex_lock(&dataset->reading);
    const wf_status status =
        box ? kind->read_box(dataset, index, key, box, x, to) : kind->read(dataset, index, key, x, to);
    if (!kind->concurrent)
        pthread_mutex_unlock(&dataset->reading);
    WF_TRY(status);
    return WF_OK;
}

wf_status wf_dataset_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    WF_TRY(check_index(dataset, index));
    return read_guarded(dataset, index, key, NULL, x, label);
}

/* The room is freed by the caller unless there is an error. */
wf_status wf_dataset_read_inner(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void **sample,
                                int64_t *label)
{
    *sample = wf_dataset_take_room(dataset, wf_dataset_sample_bytes(dataset->inner));
    if (!*sample)
        return wf_error_code();
    const wf_status status = wf_dataset_read(dataset->inner, index, key, *sample, label);
    if (status != WF_OK)
        wf_dataset_give_room(dataset, *sample);
    return status;
}

void wf_box_copy(wf_shape whole, size_t size, const wf_box *box, const void *from, void *to)
{
    const unsigned char *x = from;
    unsigned char *y = to;
    const int last = whole.rank - 1;
    int64_t at[WF_MAX_RANK];
    if (wf_box_empty(*box))
        return;
    /* Whole runs of the last dimension are copied; the loop below counts through the other ones like an odometer. */
    const size_t run = whole.rank > 0 ? (size_t)(box->hi[last] - box->lo[last]) * size : size;
    memcpy(at, box->lo, sizeof at);
    for (;;) {
        int64_t offset = 0;
        int d = last - 1;
        for (int k = 0; k < whole.rank; k++)
            offset = offset * whole.dim[k] + at[k];
        memcpy(y, x + (size_t)offset * size, run);
        y += run;
        for (; d >= 0 && ++at[d] == box->hi[d]; d--)
            at[d] = box->lo[d];
        if (d < 0)
            return;
    }
}

wf_status wf_dataset_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                              int64_t *label)
{
    WF_TRY(check_index(dataset, index));
    if (dataset->kind->read_box)
        return read_guarded(dataset, index, key, box, x, label);
    /* Kinds without boxes read the whole sample and cut. */
    void *whole = wf_dataset_take_room(dataset, wf_dataset_sample_bytes(dataset));
    if (!whole)
        return wf_error_code();
    const wf_status status = wf_dataset_read(dataset, index, key, whole, label);
    if (status == WF_OK)
        wf_box_copy(dataset->info.shape, wf_dtype_size(dataset->info.dtype), box, whole, x);
    wf_dataset_give_room(dataset, whole);
    return status;
}

size_t wf_dataset_sample_bytes(const wf_dataset *dataset)
{
    return (size_t)wf_shape_count(dataset->info.shape) * wf_dtype_size(dataset->info.dtype);
}

/* The scatter itself, not the decorators around it. */
static bool is_scattered(const wf_dataset *dataset)
{
    return dataset->mesh && !(dataset->inner && dataset->inner->mesh);
}

/* The stream of a transform's random numbers: its kind, and how many of its kind are below. A scatter ends the count:
 * what is below it has drawn already. */
uint64_t wf_dataset_stream(const wf_dataset *dataset)
{
    uint64_t before = 0;
    for (const wf_dataset *d = dataset->inner; d && !is_scattered(d); d = d->inner)
        before += d->kind == dataset->kind;
    return wf_hash_u64(wf_hash_text(0, dataset->kind->name), before);
}

wf_sample_key wf_sample_key_before_scatter(uint64_t seed, int64_t epoch, int64_t sample)
{
    /* Not the key that transforms after the scatter get, which would draw the same numbers once more. */
    return (wf_sample_key){
        .seed = wf_hash_u64(wf_hash_text(0, "before scatter"), seed), .epoch = epoch, .sample = sample};
}
