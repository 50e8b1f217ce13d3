/* The inside of an iterator: a batcher that knows which samples come next, slots that hold batches, and perhaps a
 * thread between them. */
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

typedef struct wf_batcher {
    wf_dataset *dataset;
    wf_batch_opts opts;
    uint64_t seed, stream;
    const wf_dataset_part *parts; /* one for each place along data; `alone` where the data set is not scattered */
    wf_dataset_part alone;
    int rank, size; /* along data */
    wf_box box;     /* of a sample: what x holds of it */
    bool widened;   /* a batch has a wide part too */
    wf_box wide;    /* of a sample: what that holds of it */
    int64_t length; /* batches an epoch */
    int64_t epoch, index;
    int64_t *order;  /* of the epoch; NULL: as they come */
    int64_t *bounds; /* room for size + 1 numbers, of the main thread */
    wf_row_format format, wide_format;
    size_t row_bytes, wide_bytes;
    void *sample, *own; /* before conversion: what is read, and what is cut out of it */
    atomic_bool stop;   /* a batch in the making may be given up */
} wf_batcher;

/* Opens the data set. Not for the thread. */
wf_status wf_batcher_open(wf_batcher *batcher) WF_NODISCARD;
void wf_batcher_close(wf_batcher *batcher);
/* The memory of a batch: rows of x and of the wide part, and labels (NULL: none). */
typedef struct wf_rows_out {
    void *x, *wide;
    int64_t *labels;
} wf_rows_out;
/* Reads the next batch and moves on. On failure nothing moves. */
wf_status wf_batcher_fill(wf_batcher *batcher, wf_rows_out out, wf_batch_plan *plan) WF_NODISCARD;

/* Samples and channels whole, pixels sharded over the mesh. */
wf_status wf_batcher_layout(const wf_mesh *mesh, wf_shape global, wf_layout *layout) WF_NODISCARD;
/* Computes where the parts of batch `index` begin in the global batch, of all ranks: b->bounds. */
void wf_batcher_cut(wf_batcher *batcher, int64_t index);

enum { WF_BATCH_SIZES = 3 }; /* full, the last of this rank, empty */

/* Memory of a tensor of a batch and a handle on it for each size that occurs; all NULL where batches have none. Rows
 * are made in host memory, which is the tensor's own where the device's memory is the host's. */
typedef struct wf_slot_tensor {
    wf_tensor *memory;
    void *host;
    wf_tensor *sized[WF_BATCH_SIZES];
} wf_slot_tensor;

enum { WF_SLOT_X = 0, WF_SLOT_WIDE, WF_SLOT_LABELS, WF_SLOT_TENSORS };

typedef struct wf_slot {
    wf_slot_tensor tensor[WF_SLOT_TENSORS];
    wf_event *copied; /* the last batch has left the host memory, and is on the device */
    wf_event *read;   /* the program is done with the batch before it */
    wf_batch_plan plan;
    wf_status status; /* of the thread */
    char message[1024];
} wf_slot;

typedef struct wf_worker wf_worker;

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
    int depth; /* 0: no thread */
    wf_batcher batcher;
    int64_t sizes[WF_BATCH_SIZES];
    wf_slot *slots; /* depth + 1 */
    int slot_count;
    wf_stream *stream; /* of the copies to the device, which go beside computation; NULL on the host */
    int64_t given;     /* batches given out */
    int64_t epoch;
    int64_t next_epoch, next_index; /* of the batch to be given out next; the batcher may be ahead */
    wf_worker *worker;
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
int64_t wf_batcher_samples(const wf_batcher *batcher, int64_t index);
/* What comes after a batch. */
void wf_batcher_after(const wf_batcher *batcher, int64_t *epoch, int64_t *index);
/* The next batch that is made is this one. Not while the thread runs. */
void wf_batcher_seek(wf_batcher *batcher, int64_t epoch, int64_t index);

/* Reads the next batch into the slot's host memory. */
wf_status wf_slot_fill(wf_iter *iter, wf_slot *slot) WF_NODISCARD;

/* For an iterator with `streamed`. */
wf_status wf_streamed_batch(wf_iter *iter, wf_batch *batch) WF_NODISCARD;
void wf_streamed_place_get(const wf_iter *iter, wf_iter_place *place);
wf_status wf_streamed_place_set(wf_iter *iter, const wf_iter_place *place) WF_NODISCARD;
void wf_streamed_free(wf_ctx *ctx, wf_streamed *streamed);

/* The thread fills slots given, given + 1, ... modulo slot_count, never the one given out last. */
wf_status wf_worker_start(wf_iter *iter) WF_NODISCARD;
/* Waits for batch number iter->given; the slot given out before is the thread's again. */
wf_slot *wf_worker_wait(wf_iter *iter);
/* Waits for the end of the thread, at most the time of one sample. */
void wf_worker_stop(wf_iter *iter);

#endif
