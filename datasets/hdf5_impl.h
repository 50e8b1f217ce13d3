/* The files behind wf_hdf5_dataset, and the blocks of them that are kept in memory. */
#ifndef WF_DATASETS_HDF5_IMPL_H
#define WF_DATASETS_HDF5_IMPL_H

#include "comm/file_author.h"
#include "datasets/dataset_author.h"

typedef struct wf_hdf5_file {
    char *path;
    int64_t first, count; /* samples */
    wf_h5_info info;      /* of the samples */
    bool direct;          /* elements are read at info.offset */
    int fd;               /* of a direct one; -1: closed */
    wf_h5 *h5;            /* of another; NULL: closed */
    uint64_t used;
} wf_hdf5_file;

/* Samples [first, first + count) of a file: the elements of the cache's box. */
typedef struct wf_hdf5_block {
    const wf_hdf5_file *file; /* NULL: nothing is held */
    int64_t first;
    uint64_t used;
    unsigned char *data;
} wf_hdf5_block;

enum {
    WF_HDF5_OPEN = 32, /* most files that are open at a time */
    WF_HDF5_WAYS = 8
};

/* Blocks in sets: a block may be in the places of its own set alone. */
typedef struct wf_hdf5_cache {
    wf_box box; /* of a sample, of every block */
    size_t sample_bytes, block_bytes;
    int64_t sets, ways; /* 0: not made yet */
    wf_hdf5_block *block;
} wf_hdf5_cache;

typedef struct wf_hdf5 {
    char *files, *x, *labels_name;
    bool labels_wanted; /* by name: every file must have them */
    int64_t given_classes;
    size_t budget;
    wf_hdf5_file *file;
    int64_t n_files, n_open;
    int64_t *labels;
    uint64_t clock; /* counts uses of files and blocks */
    wf_hdf5_cache cache;
} wf_hdf5;

/* Reads the elements of `box` of sample `index` of all files. May be called from the prefetch thread. */
wf_status wf_hdf5_read(wf_hdf5 *s, wf_dtype dtype, int64_t index, const wf_box *box, void *x) WF_NODISCARD;
void wf_hdf5_file_close(wf_hdf5 *s, wf_hdf5_file *file);
void wf_hdf5_cache_free(wf_hdf5 *s);

#endif
