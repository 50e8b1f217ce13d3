/* The inside of an iterator: a batcher that knows which samples come next, slots that hold batches, and perhaps
 * threads between them. */
#ifndef WF_DATASETS_ITERATOR_IMPL_H
#define WF_DATASETS_ITERATOR_IMPL_H

#include "datasets/dataset_author.h"
#include "datasets/iterator.h"
#include "datasets/streamed.h"

#include <stdatomic.h>

/* Which samples a batch has: places [start, start + size) of this rank's order; [lo, lo + size) of the global batch. */
typedef struct wf_batch_plan {
    int64_t epoch, index, start, size, lo, global;
    bool last;
} wf_batch_plan;

/* How a sample becomes a row of x. */
typedef struct wf_row_format {
    wf_dtype from, to;
    wf_order order;
    int64_t channels, pixels; /* of a channels-last row; else 1 and all elements */
    bool direct;              /* nothing to do: the sample is read into its place */
} wf_row_format;

wf_row_format wf_row_format_make(const wf_dataset_info *info, wf_dtype float_type, bool raw);
void wf_row_store(const wf_row_format *format, const void *sample, void *row);

/* Memory of one thread for samples before conversion: what is read, and what is cut out of it. */
typedef struct wf_batch_room {
    void *sample, *own;
} wf_batch_room;

typedef struct wf_batcher {
    wf_dataset *dataset;
    wf_batch_opts opts;
    uint64_t seed, stream;
    const wf_dataset_part *parts; /* one for each place along data; `alone` where the data set is not scattered */
    wf_dataset_part alone;
    int rank, size;      /* along data */
    wf_box box;          /* of a sample: what x holds of it */
    bool widened;        /* a batch has a wide part too */
    wf_box wide;         /* of a sample: what that holds of it */
    int64_t most, least; /* samples of the longest and the shortest part */
    int64_t epoch, index;
    int64_t *order;  /* of the epoch; NULL: as they come */
    int64_t *bounds; /* room for size + 1 numbers, of the main thread */
    wf_row_format format, wide_format;
    size_t row_bytes, wide_bytes;
    wf_batch_room *room; /* of each thread that reads */
    int rooms;
    atomic_bool stop; /* a batch in the making may be given up */
} wf_batcher;

/* Opens the data set, for so many threads that read. On the main thread alone. */
wf_status wf_batcher_open(wf_batcher *batcher, int threads) WF_NODISCARD;
void wf_batcher_close(wf_batcher *batcher);
/* The memory of a batch: rows of x and of the wide part, and labels (NULL: none). */
typedef struct wf_rows_out {
    void *x, *wide;
    int64_t *labels, *number; /* number: each sample's place in the scattered order; NULL: not asked for */
} wf_rows_out;
/* One sample of a batch: which one it is, how its random transforms draw, and its row. */
typedef struct wf_batch_row {
    int64_t index, row;
    wf_sample_key key;
} wf_batch_row;

/* The next batch; shuffles where an epoch begins. One thread at a time, like wf_batcher_row and wf_batcher_advance. */
wf_batch_plan wf_batcher_plan(wf_batcher *batcher);
/* Row `i` of a batch whose epoch is the one that was shuffled last. */
wf_batch_row wf_batcher_row(const wf_batcher *batcher, const wf_batch_plan *plan, int64_t i);
void wf_batcher_advance(wf_batcher *batcher);
/* Reads a sample. Several threads at a time, each with a room of its own. */
wf_status wf_batcher_read(const wf_batcher *batcher, const wf_batch_room *room, const wf_batch_row *row,
                          const wf_rows_out *out) WF_NODISCARD;
/* Reads the next batch, without moving on. */
wf_status wf_batcher_fill(wf_batcher *batcher, wf_rows_out out, wf_batch_plan *plan) WF_NODISCARD;

/* Samples and channels whole, pixels sharded over the mesh. */
wf_status wf_batcher_layout(const wf_mesh *mesh, wf_shape global, wf_layout *layout) WF_NODISCARD;
/* Computes where the parts of a batch begin in the global batch, of all ranks: b->bounds. */
void wf_batcher_cut(wf_batcher *batcher, const wf_batch_plan *plan);
/* Samples per rank in a full batch of this epoch, and batches in it. */
int64_t wf_batcher_size(const wf_batcher *batcher, int64_t epoch);
int64_t wf_batcher_length(const wf_batcher *batcher, int64_t epoch);

enum { WF_BATCH_SIZES = 3 }; /* full, the last of this rank, empty */

/* Memory of a tensor of a batch and a handle on it for each size that occurs; all NULL where batches have none. Rows
 * are made in host memory, which is the tensor's own where the device's memory is the host's. */
typedef struct wf_slot_tensor {
    wf_tensor *memory;
    void *host;
    wf_tensor *sized[WF_BATCH_SIZES];
    int oldest;      /* of them: the next one that makes room for another size */
    void *row_major; /* of a field: where the collate function writes; `host` where that is the same order */
    int64_t longest; /* of a field that varies: rows are this long in dimension 0, on this rank and then on all */
} wf_slot_tensor;

enum { WF_SLOT_X = 0, WF_SLOT_WIDE, WF_SLOT_LABELS, WF_SLOT_TENSORS = WF_BATCH_FIELDS };

enum { WF_FIELD_NAME = 32 };

/* A tensor of all batches: x, the wide part and the labels, or the fields of a collate function. */
typedef struct wf_iter_field {
    char name[WF_FIELD_NAME]; /* "": it has none, as the wide part */
    bool present, varies, target;
    bool sharded; /* its pixels are */
    wf_dtype dtype;
    wf_shape shape; /* of a row */
    wf_order order;
    size_t row_bytes;
    double pad;
    unsigned char padding[8]; /* one element */
    wf_row_format format;     /* from row-major rows of a collate function */
} wf_iter_field;

typedef struct wf_slot {
    wf_slot_tensor tensor[WF_SLOT_TENSORS];
    /* What a collate function reads. */
    void *sample_memory;
    int64_t *label_memory, *number;
    wf_event *copied; /* the last batch has left the host memory, and is on the device */
    wf_event *read;   /* the program is done with the batch before it */
    wf_batch_plan plan;
    /* The threads' rows: those that none has taken, those that are being read, and the first one that failed. */
    int64_t left, flying, failed_row;
    wf_status status;
    char message[1024];
} wf_slot;

typedef struct wf_loader wf_loader;

/* Batches of the program's own tensors. */
typedef struct wf_streamed {
    const wf_mesh *mesh;
    wf_streamed_opts opts;
    int64_t given;         /* batches given out, over all epochs */
    wf_tensor *x, *target; /* of the last one */
    wf_event *read;        /* the device is done with the last one; NULL on the host */
} wf_streamed;

struct wf_iter {
    wf_ctx *ctx;
    bool opened;
    int depth;   /* batches ahead; 0: no thread */
    int workers; /* threads */
    wf_batcher batcher;
    int64_t sizes[WF_BATCH_SIZES];
    int64_t rows; /* of the largest batch of all epochs */
    wf_iter_field field[WF_BATCH_FIELDS];
    bool collates;
    wf_slot *slots; /* depth + 1 */
    int slot_count;
    wf_stream *stream; /* of the copies to the device, which go beside computation; NULL on the host */
    int64_t given;     /* batches given out */
    int64_t epoch;
    int64_t next_epoch, next_index; /* of the batch to be given out next; the batcher may be ahead */
    wf_loader *loader;
    wf_streamed *streamed; /* gives the batches; the batcher is not used then. NULL: the batcher makes them */
};

/* The place of an iterator: the batch to be given out next, of `length` in an epoch, the samples of all ranks that
 * come before it in the epoch, of `total`, and the seed of the order. total -1: an archive from before samples were
 * counted. */
typedef struct wf_iter_place {
    int64_t epoch, index, length, samples, total, seed;
} wf_iter_place;

wf_status wf_iter_place_get(wf_iter *iter, wf_iter_place *place) WF_NODISCARD;
wf_status wf_iter_place_set(wf_iter *iter, const wf_iter_place *place) WF_NODISCARD;
wf_status wf_iter_place_archive(wf_iter_place *place, struct wf_archive *archive) WF_NODISCARD;

/* Samples of all ranks in the first `index` batches of an epoch. */
int64_t wf_batcher_samples(const wf_batcher *batcher, int64_t epoch, int64_t index);
/* What comes after a batch. */
void wf_batcher_after(const wf_batcher *batcher, int64_t *epoch, int64_t *index);
/* The next batch that is made is this one. Not while a thread runs. */
void wf_batcher_seek(wf_batcher *batcher, int64_t epoch, int64_t index);

/* The memory that samples of the batch of this slot are read into. */
wf_rows_out wf_slot_rows(const wf_iter *iter, const wf_slot *slot);

/* For an iterator with `streamed`. */
wf_status wf_streamed_batch(wf_iter *iter, wf_batch *batch) WF_NODISCARD;
void wf_streamed_place_get(const wf_iter *iter, wf_iter_place *place);
wf_status wf_streamed_place_set(wf_iter *iter, const wf_iter_place *place) WF_NODISCARD;
void wf_streamed_free(wf_ctx *ctx, wf_streamed *streamed);

/* --- collate.c ---------------------------------------------------------------------------------------------------- */

/* Checks the fields and copies them into iter->field. */
wf_status wf_collate_check(wf_iter *iter, const wf_collate *collate) WF_NODISCARD;
/* What the fields need to know of the open data set, and memory of a slot for the samples. */
wf_status wf_collate_open(wf_iter *iter) WF_NODISCARD;
wf_status wf_collate_slot_open(const wf_iter *iter, wf_slot *slot) WF_NODISCARD;
void wf_collate_slot_free(const wf_iter *iter, wf_slot *slot);
/* Calls the function for a batch whose samples have been read. From any thread. */
wf_status wf_collate_run(const wf_iter *iter, wf_slot *slot) WF_NODISCARD;
/* Makes rows of fields that vary as long as the longest one of all ranks. Collective if there are any. */
wf_status wf_collate_trim(const wf_iter *iter, wf_slot *slot) WF_NODISCARD;
/* The shape of a field's rows in this batch. */
wf_shape wf_collate_row(const wf_iter_field *field, const wf_slot_tensor *tensor);
/* Sets x and labels from the named tensors. */
void wf_batch_name(wf_batch *batch);

/* The threads fill slots given, given + 1, ... modulo slot_count, never the one given out last. */
wf_status wf_loader_start(wf_iter *iter) WF_NODISCARD;
/* Waits for batch number iter->given; the slot given out before is the threads' again. */
wf_slot *wf_loader_wait(wf_iter *iter);
/* Waits for the end of the threads, at most the time of one sample. */
void wf_loader_stop(wf_iter *iter);

#endif
