/* Samples in HDF5 files, of which every rank reads its own.
 *
 *     wf_dataset *all = wf_hdf5_dataset(ctx, "train-*.h5", (wf_hdf5_opts){.cache_bytes = 256 << 20});
 *     wf_dataset *part = wf_scatter_dataset(comm, all, (wf_scatter_opts){.shuffle = true, .each_reads = true});
 *     wf_iter *iter = wf_prefetch(wf_batches(part, (wf_batch_opts){.size = 64}), (wf_prefetch_opts){.depth = 2});
 *
 * With each_reads nothing is sent: a rank reads the samples of its part when they are needed, and of images that are
 * sharded over a mesh (wf_mesh_scatter_dataset, wf_batch_opts.sharded) the pixels of its own box, and as many around it
 * as wf_batch_opts.halo says. The tool wf-data converts other formats to such files; any program can write them.
 *
 * How elements are read depends on how they lie in the file:
 * - contiguous and of a type of this machine: straight from their place in the file, without HDF5 and without a cache.
 *   Pieces less than 4 KiB apart are read in one go;
 * - in chunks, compressed or not, or of another type: through HDF5, in blocks of the samples of one chunk, of which the
 *   pixels of the box are kept in memory within `cache_bytes`. The blocks used last stay.
 * Filters are those that HDF5 has: gzip, shuffle, ...
 *
 * HDF5's serial library is not thread-safe. Weft holds one lock of the process during every call of it, so the prefetch
 * thread, checkpoints and the main thread may all read. A program that calls HDF5 itself must not do so while a data
 * set of this kind is prefetched.
 */
#ifndef WF_DATASETS_HDF5_H
#define WF_DATASETS_HDF5_H

#include "datasets/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names are those of HDF5 data sets in each file, and may be paths ("train/images"). */
typedef struct wf_hdf5_opts {
    const char *x;      /* samples, [count, sample...]; default "x" */
    const char *labels; /* integers or booleans, [count] or [count,1]; default "labels" where the first file has it; "":
                           no labels */
    /* Labels are in [0, classes). Default: what the files' attribute "classes" says (an integer or a string), or the
     * largest label plus 1. */
    int64_t classes;
    size_t cache_bytes; /* most memory for decoded blocks; default 64 MiB. A block that is larger is read in parts. */
} wf_hdf5_opts;

/* One file, or all that a pattern of the shell names ("train-*.h5"), in the order of their names: their samples follow
 * each other. Samples must have one shape and type. Lazy and local, as the readers of datasets/readers.h: the first use
 * opens all files and reads the labels, 8 bytes a sample. With wf_scatter_dataset an error is the same on all ranks.
 * WF_ERR_IO: there is no such file; WF_ERR_FORMAT: it is damaged, holds fewer elements than its shape says, or lacks a
 * data set; WF_ERR_SHAPE and WF_ERR_DTYPE: files that do not fit together, labels that do not fit the samples.
 *
 * Targets that are no labels, such as masks: a second data set of the same files with another `x`, and equal options
 * (seed, size, random transforms) from there on, gives the samples in the same order, flipped and cropped alike. */
wf_dataset *wf_hdf5_dataset(wf_ctx *ctx, const char *files, wf_hdf5_opts opts);

/* What such a data set holds at the moment: files that are open, at most 32, and bytes of decoded blocks.
 * WF_ERR_ARGUMENT for another one. Not while a prefetch thread reads. */
typedef struct wf_hdf5_counters {
    int64_t open_files;
    size_t cache_bytes;
} wf_hdf5_counters;
wf_status wf_hdf5_count(const wf_dataset *dataset, wf_hdf5_counters *counters) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
