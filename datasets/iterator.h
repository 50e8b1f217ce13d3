/* Batches. */
#ifndef WF_DATASETS_ITERATOR_H
#define WF_DATASETS_ITERATOR_H

#include "datasets/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

struct wf_archive;
typedef struct wf_iter wf_iter;

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
} wf_batch;

typedef struct wf_batch_opts {
    int64_t size;   /* samples per rank; required */
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
} wf_batch_opts;

/* Owns the data set. Local; all ranks of a scattered set run the same number of iterations an epoch, by arithmetic. */
wf_iter *wf_batches(wf_dataset *dataset, wf_batch_opts opts);
/* Prepares up to `depth` (1 or more) batches ahead in a thread that never calls MPI. Owns the iterator that it
 * wraps, from which no batch may have been taken yet. An error in the thread is returned by the wf_iter_next whose
 * batch failed. */
wf_iter *wf_prefetch(wf_iter *iter, int depth);
void wf_iter_free(wf_iter *iter);

/* The next batch, which is valid until the following call; the first call opens the data set. After the last batch of
 * an epoch comes the first of the next one, or, with `once`, the mark. WF_ERR_IO, WF_ERR_FORMAT and the like are the
 * reader's, WF_ERR_ARGUMENT those of the options. For a scattered data set all ranks call it equally often, and an
 * error of one rank reaches the others, from this call or from their next collective; nothing else is sent. */
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
/* Batches in an epoch, the mark of `once` not counted; 0 on failure. Opens the data set, and so its files, if no batch
 * has been taken yet. Local. */
int64_t wf_iter_epoch_length(wf_iter *iter);

#ifdef __cplusplus
}
#endif
#endif
