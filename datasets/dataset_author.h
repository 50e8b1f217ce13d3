/* How a data set is written. */
#ifndef WF_DATASETS_DATASET_AUTHOR_H
#define WF_DATASETS_DATASET_AUTHOR_H

#include "comm/mesh.h"
#include "core/tensor_author.h"
#include "datasets/dataset.h"

#include <pthread.h>

/* What a random transform may use: seed, epoch and the sample's number, which are the same on any number of ranks. */
typedef struct wf_sample_key {
    uint64_t seed;
    int64_t epoch;
    int64_t sample; /* its place in the scattered order: wf_dataset_part.first and its index in the part; where nothing
                       was scattered, its index */
} wf_sample_key;

typedef struct wf_dataset_kind {
    const char *name;
    /* Fills dataset->info, which is the inner one's before (of a reader: zero). Called on the main thread, at the first
     * use of the data set, and again at the next use if it failed: it then finds in state what the failed call left
     * there. NULL: info stays the inner one's. Memory comes from wf_malloc or the C library and is freed by `free`. */
    wf_status (*open)(wf_dataset *dataset);
    /* Writes sample `index` (row-major logical elements of info.dtype) and its label. label is never NULL; 0 is written
     * where there are none. Called from threads of wf_prefetch too: no MPI, no pool, no tape, errors through the
     * thread's own trail; wf_malloc, for what is kept, and the C library's malloc are allowed. One thread at a time
     * (others wait) unless `concurrent` is set. */
    wf_status (*read)(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label);
    /* Writes the elements of `box`, a part of one sample, alone: for readers that need not touch the others. x is
     * packed: row-major, of the shape of the box. NULL: the whole sample is read by
     * `read`, and the box copied out of it. */
    wf_status (*read_box)(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                          int64_t *label);
    void (*free)(wf_dataset *dataset); /* what state points to, not state itself; may be NULL */
    /* Several threads may be in `read` and `read_box` at a time: they change nothing of the data set. Memory for the
     * duration of a call comes from wf_dataset_take_room. */
    bool concurrent;
} wf_dataset_kind;

/* Samples [first, first + count) of the scattered order. */
typedef struct wf_dataset_part {
    int64_t first, count;
} wf_dataset_part;

struct wf_dataset {
    const wf_dataset_kind *kind;
    wf_ctx *ctx;
    wf_dataset *inner; /* of a decorator; owned */
    bool opened;
    wf_dataset_info info;
    void *state;

    /* Scattered data sets; a decorator copies these three from its inner one when it is opened. */
    const wf_mesh *mesh;    /* NULL: not scattered */
    wf_dataset_part *parts; /* one for each place along the mesh's data axis */
    bool reshuffled;        /* iterators take another order every epoch */

    pthread_mutex_t reading;      /* held during a read of a kind that is not concurrent */
    pthread_mutex_t rooms;        /* guards `room` */
    struct wf_dataset_room *room; /* memory that no call uses now */
};

/* state is zeroed. Owns inner, also when it fails. ctx NULL (the inner one is NULL) gives NULL without an error. */
wf_dataset *wf_dataset_new(wf_ctx *ctx, const wf_dataset_kind *kind, wf_dataset *inner, size_t state_bytes);
/* The data set must be open; label may be NULL. */
wf_status wf_dataset_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x,
                          int64_t *label) WF_NODISCARD;
/* Reads the part `box` of the sample into x, which is packed; label may be NULL. */
wf_status wf_dataset_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                              int64_t *label) WF_NODISCARD;
/* Takes memory for the duration of one read, from any thread; NULL with WF_ERR_MEMORY. Given back, it is kept for the
 * next call until the data set is freed, so that reads allocate as many times as there are threads. */
void *wf_dataset_take_room(wf_dataset *dataset, size_t bytes);
void wf_dataset_give_room(wf_dataset *dataset, void *room);
/* Reads a sample of the inner data set into memory of wf_dataset_take_room, which the caller gives back after
 * success. */
wf_status wf_dataset_read_inner(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void **sample,
                                int64_t *label) WF_NODISCARD;
/* Copies the elements of `box`, of `size` bytes each, out of a whole array; both are row-major, and
 * `to` is packed: it holds the box alone. */
void wf_box_copy(wf_shape whole, size_t size, const wf_box *box, const void *from, void *to);
/* Bytes of one sample. */
size_t wf_dataset_sample_bytes(const wf_dataset *dataset);
/* The random stream of a transform, which is open or being opened: a hash of its kind's name, and of how many of its
 * kind come before it in the chain, so that two flips draw different numbers. Nothing else of the chain counts: images
 * and masks that have the same random transforms are changed alike, whatever other transforms one of them has.
 * Transforms before a scatter do not count for those after it, since a rank may not have them. */
uint64_t wf_dataset_stream(const wf_dataset *dataset);
/* The key by which samples are read before they are scattered. `sample` is the index in the source. */
wf_sample_key wf_sample_key_before_scatter(uint64_t seed, int64_t epoch, int64_t sample);

#endif
