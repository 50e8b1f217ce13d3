/* Batches. */
#ifndef WF_DATASETS_ITERATOR_H
#define WF_DATASETS_ITERATOR_H

#include "datasets/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

struct wf_archive;
typedef struct wf_iter wf_iter;

enum { WF_BATCH_FIELDS = 8 }; /* most named tensors of a batch */

/* A tensor of a batch, by its name. */
typedef struct wf_batch_tensor {
    const char *name;
    wf_tensor *tensor;
    bool target; /* what a loss compares with, not an input of the model */
} wf_batch_tensor;

/* A mini-batch, borrowed from the iterator until its next call. For a scattered data set the tensors carry a layout:
 * sharded over data, with the size of the global batch and this rank's place in it; the local batch may be smaller
 * than others', or empty. Over a mesh with more axes (wf_mesh_scatter_dataset), the ranks along those have the same
 * samples. Parts of equal length overlap, so some samples count twice in an epoch. An empty data set gives one empty
 * batch an epoch. */
typedef struct wf_batch {
    /* [size, sample...]. u8 samples become numbers in [0, 1] and f32 and f64 samples numbers of the context's type;
     * other types stay. Float types are channels-last where rank >= 4, integers row-major. */
    wf_tensor *x;
    wf_tensor *labels; /* i64 [size], or NULL */
    wf_tensor *target; /* of wf_streamed_batches: what the program gives beside x, or NULL. NULL otherwise */
    /* With wf_batch_opts.halo: this rank's part and what surrounds it, [size, ...] like x but without a layout, since
     * parts of different ranks overlap. NULL otherwise. */
    wf_tensor *wide;
    wf_box wide_box; /* of a sample: the elements in `wide` */
    int64_t size;    /* samples here */
    int64_t global;  /* samples over all ranks */
    int64_t epoch;   /* of this batch, from 0 */
    int64_t index;   /* of this batch in its epoch */
    bool last;       /* the last of its epoch */
    /* All of the batch by name: "x" and "labels", of wf_streamed_batches "x" and "target", or the fields of wf_collate
     * in their order. With the latter, x is the first input and labels the first target; both may be NULL. */
    int names;
    wf_batch_tensor named[WF_BATCH_FIELDS];
} wf_batch;

/* The tensor of this name, borrowed as the batch is; NULL, with WF_ERR_ARGUMENT that lists the names, if there is
 * none. Local. */
wf_tensor *wf_batch_get(const wf_batch *batch, const char *name);

/* One of the tensors that a collate function writes: [size, shape...]. Integers and floats of rank below 4 are
 * row-major, other floats channels-last. */
typedef struct wf_batch_field {
    const char *name; /* at most 31 characters */
    wf_dtype dtype;
    wf_shape shape; /* of a row; zeroed: a number */
    /* Dimension 0 of a row is as long as the longest row of the batch needs, over all ranks of a scattered data set,
     * and at least 1; shape has the most that occurs. */
    bool varies;
    bool target; /* as of wf_batch_tensor */
    double pad;  /* what elements are that the function does not write */
} wf_batch_field;

/* What a collate function reads: the samples of this rank in one batch, at least one. */
typedef struct wf_batch_samples {
    int64_t count;
    const void *x;         /* [count, sample...], row-major, in the samples' own type */
    size_t bytes;          /* of a sample */
    const int64_t *labels; /* NULL: none */
    const int64_t *number; /* of each sample: its place in the scattered order, the same on any number of ranks */
    uint64_t seed;         /* with the epoch and a sample's number: for random numbers (wf_philox) */
    int64_t epoch, index;  /* of the batch */
} wf_batch_samples;

/* What it writes, for each field in order. */
typedef struct wf_batch_rows {
    void *data;      /* [count, shape...], row-major, filled with `pad` */
    int64_t longest; /* of a field that varies: set it to the length that these rows need, up to shape.dim[0] */
} wf_batch_rows;

/* Makes the tensors of a batch from its samples. Threads of wf_prefetch call it, for several batches at a time: no
 * tensors, no MPI; what `user` points to is only read. An error is that of the wf_iter_next whose batch it is. */
typedef wf_status (*wf_collate_function)(void *user, const wf_batch_samples *samples, wf_batch_rows *rows);

/* Batches of several tensors, with names, which a function of the program makes: padded sequences and their lengths,
 * images with masks. */
typedef struct wf_collate {
    wf_collate_function function;
    void *user;
    const wf_batch_field *fields; /* until one without a name; copied */
} wf_collate;

enum { WF_BATCH_GROWTHS = 8 };

/* From an epoch on, batches of another size. */
typedef struct wf_batch_growth {
    int64_t epoch, size; /* epoch: 1 or more, rising */
} wf_batch_growth;

typedef struct wf_batch_opts {
    int64_t size; /* samples per rank, the same on all; required */
    /* Batches that grow instead of a learning rate that falls (Smith et al. 2018): size per rank from an epoch on,
     * until an entry without a size. An epoch then has another number of batches: wf_iter_length_at. */
    wf_batch_growth grows[WF_BATCH_GROWTHS];
    bool shuffle;   /* another order every epoch, the same for the same seed; wf_scatter_dataset's shuffle implies it */
    bool drop_last; /* leave out a last batch that is not full on every rank */
    bool once;      /* after each epoch wf_iter_next gives one batch with size 0 and global 0, which marks the end */
    bool sharded; /* over a mesh: x holds this rank's pixels alone, sharded over depth, height and width as by wf_shard
                   */
    /* With `sharded`: pixels of the neighbours along depth, height and width that wf_batch.wide holds around this
     * rank's own, on either side, as far as the image goes: what a first layer reads of them. A rank without pixels has
     * none. */
    int64_t halo[3];
    bool raw;      /* x in the samples' own type: nothing is converted */
    uint64_t seed; /* default: the context's */
    /* The tensors of a batch are made by a function of the program; WF_ERR_ARGUMENT with `sharded`. */
    wf_collate collate;
} wf_batch_opts;

/* Owns the data set. Local; all ranks of a scattered set run the same number of iterations an epoch, by arithmetic. */
wf_iter *wf_batches(wf_dataset *dataset, wf_batch_opts opts);
typedef struct wf_prefetch_opts {
    int depth; /* batches that are prepared ahead; default 2 */
    /* Threads that read, decode and transform samples; default 1. Several share the samples of a batch and begin the
     * next ones meanwhile, but read one at a time from a data set that cannot do more (of the library's: HDF5 files;
     * the transforms after it run at a time). Batches do not depend on it. */
    int workers;
} wf_prefetch_opts;
/* Prepares batches ahead in threads that never call MPI. Owns the iterator that it wraps, from which no batch may have
 * been taken yet. An error in a thread is returned by the wf_iter_next whose batch failed: that of the first sample
 * that failed. WF_ERR_ARGUMENT for more than 1024 batches or 256 threads. Local. */
wf_iter *wf_prefetch(wf_iter *iter, wf_prefetch_opts opts);
void wf_iter_free(wf_iter *iter);

/* The next batch, which is valid until the following call; the first call opens the data set. After the last batch of
 * an epoch comes the first of the next one, or, with `once`, the mark. WF_ERR_IO, WF_ERR_FORMAT and the like are the
 * reader's, WF_ERR_ARGUMENT those of the options. For a scattered data set all ranks call it equally often, and an
 * error of one rank reaches the others, from this call or from their next collective; nothing else is sent, unless a
 * field of wf_collate varies: the ranks then agree on its length in every batch. */
wf_status wf_iter_next(wf_iter *iter, wf_batch *batch) WF_NODISCARD;
/* The number of completed epochs, those whose last batch has been returned: 0 in the first epoch. */
int64_t wf_iter_epoch(const wf_iter *iter);
/* The place of the next batch: epoch, and batch in it; prefetching or not. If batches have another size, or another
 * number of ranks loads, the samples that all ranks were given count: none is left out, and fewer than a global batch
 * are repeated, none if a batch begins at that sample. On another number of ranks the parts of a scattered data set are
 * others, so the rest of that epoch has as many samples as were left, and not the same ones. The seed of the order goes
 * along. Local. */
wf_status wf_iter_archive(wf_iter *iter, struct wf_archive *archive) WF_NODISCARD;
/* wf_iter_archive as a wf_archive_visit. */
wf_status wf_iter_visit(void *iter, struct wf_archive *archive) WF_NODISCARD;
/* Batches in the epoch of the next batch, the mark of `once` not counted; 0 on failure. Opens the data set, and so its
 * files, if no batch has been taken yet. Local. */
int64_t wf_iter_epoch_length(wf_iter *iter);
/* Batches in epoch `epoch` of the iterator, as wf_trainer_opts.length_at takes it; 0 on failure. Local. */
int64_t wf_iter_length_at(void *iter, int64_t epoch);

#ifdef __cplusplus
}
#endif
#endif
