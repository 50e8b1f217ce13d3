/* Helpers of the data sets of this folder: files, samples in memory, IDX, parts, pictures. iterator_impl.h and
 * hdf5_impl.h have the types of one part each. */
#ifndef WF_DATASETS_DATASETS_IMPL_H
#define WF_DATASETS_DATASETS_IMPL_H

#include "datasets/dataset_author.h"

/* --- file.c: data files, plain or gzip, whose size is checked ----------------------------------------------------- */

#define WF_PATH_MAX 4096

/* "dir/name" into path; WF_ERR_ARGUMENT if it does not fit. */
wf_status wf_path_join(char path[WF_PATH_MAX], const char *dir, const char *name) WF_NODISCARD;
bool wf_path_is_file(const char *path);
bool wf_path_is_folder(const char *path);

typedef struct wf_data_file {
    const char *path; /* borrowed */
    void *stream;
    bool compressed;
    uint64_t disk_bytes;
    uint64_t done; /* bytes read so far, uncompressed */
} wf_data_file;

/* Opens a file, plain or gzip, which its first bytes tell. WF_ERR_IO: it is not there, or cannot be read;
 * WF_ERR_FORMAT: it is empty. Close it after a success. */
wf_status wf_data_file_open(wf_data_file *file, const char *path) WF_NODISCARD;
/* Closes it; an error of reading has been returned before. A file that is zeroed or closed is fine. */
void wf_data_file_close(wf_data_file *file);
/* Checks, before memory is taken for it, that the file can hold `total` bytes uncompressed. */
wf_status wf_data_file_expect(wf_data_file *file, uint64_t total) WF_NODISCARD;
/* Exactly `bytes`, of a file that should have `total`; a shorter one is WF_ERR_FORMAT with both sizes. */
wf_status wf_data_file_read(wf_data_file *file, void *data, size_t bytes, uint64_t total) WF_NODISCARD;
/* WF_ERR_FORMAT with both sizes if anything follows what was read. */
wf_status wf_data_file_end(wf_data_file *file) WF_NODISCARD;

/* --- memory.c: samples in host memory, one after the other ------------------------------------------------- */

/* The first member of the state of every kind that reads by wf_rows_read. */
typedef struct wf_rows {
    int64_t count;
    size_t sample_bytes;
    unsigned char *x;
    int64_t *labels; /* NULL: none */
} wf_rows;

/* Room for `count` samples; frees what `rows` held. WF_ERR_MEMORY names `what`. */
wf_status wf_rows_alloc(wf_ctx *ctx, const char *what, wf_rows *rows, int64_t count, size_t sample_bytes,
                        bool labels) WF_NODISCARD;
void wf_rows_free(wf_rows *rows);

wf_status wf_rows_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label);
wf_status wf_rows_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                           int64_t *label);
/* WF_OK if the label is in [0, classes); classes 0: not known, so it need only not be negative. The error has this
 * code and begins with `what`, the file. */
wf_status wf_label_check(wf_status code, const char *what, int64_t label, int64_t sample, int64_t classes) WF_NODISCARD;
void wf_rows_dataset_free(wf_dataset *dataset);

/* A memory data set with room for info.count samples, to be filled through *rows. */
wf_dataset *wf_rows_dataset_new(wf_ctx *ctx, const wf_dataset_info *info, wf_rows **rows);

/* --- idx.c: the IDX format, for wf_idx and wf_mnist --------------------------------------------------------------- */

/* Loads both files (labels may be NULL) and fills info. classes 0: the largest label plus 1; else every label is
 * checked against it. */
wf_status wf_idx_load(wf_ctx *ctx, const char *images, const char *labels, int64_t classes, wf_rows *rows,
                      wf_dataset_info *info) WF_NODISCARD;

/* --- part.c: a part of a data set that every rank can read, for wf_mesh_scatter_dataset --------------------------- */

/* The samples at places [part.first, part.first + part.count) of `order` (NULL: as they come; read during the call
 * only), each read when it is needed. Owns the data set, which is open. */
wf_dataset *wf_part_dataset(wf_dataset *dataset, wf_dataset_part part, const int64_t *order, uint64_t seed);

/* --- picture.c, resize.c: pictures; called from the prefetch thread too ------------------------------------------- */

/* Height and width of a PNG or JPEG file, upright, from its header, which the file's length must explain. */
wf_status wf_picture_size(const char *path, int64_t *height, int64_t *width) WF_NODISCARD;

/* A PNG or JPEG file as u8 [channels,height,width], upright and resized. A file that is damaged or not whole is
 * WF_ERR_FORMAT. */
wf_status wf_picture_read(const char *path, int64_t channels, int64_t height, int64_t width,
                          uint8_t *planar) WF_NODISCARD;

/* One plane, u8 or f32. */
wf_status wf_plane_resize(wf_dtype dtype, const void *in, int64_t in_height, int64_t in_width, void *out,
                          int64_t height, int64_t width) WF_NODISCARD;

#endif
