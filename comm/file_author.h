/* HDF5 files, for checkpoints, models and data sets. Local.
 *
 * HDF5's serial library is not thread-safe: one lock of the process is held during every call below, so any thread may
 * call them, and nothing else in the process may call HDF5 meanwhile. */
#ifndef WF_COMM_FILE_AUTHOR_H
#define WF_COMM_FILE_AUTHOR_H

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status_author.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_h5 wf_h5;
void wf_h5_lock(void); /* the lock, during each call of another library that calls HDF5 */
void wf_h5_unlock(void);

/* What a data set of a file is. */
typedef struct wf_h5_info {
    wf_dtype dtype;
    wf_shape shape;
    bool empty;      /* a null data space: None in Python */
    bool contiguous; /* its elements lie in one piece: `offset` bytes from the beginning of the file */
    int64_t offset;
    bool chunked;
    wf_shape chunk;
    size_t size;    /* bytes of an element in the file */
    bool native;    /* elements lie in the file as `dtype` lies in memory */
    int64_t stored; /* bytes that the elements take in the file, compressed */
} wf_h5_info;

/* A new file, in place of one of that name; an existing one, for reading. NULL on failure: WF_ERR_IO where the file
 * cannot be opened, WF_ERR_FORMAT where it is no HDF5 file. */
wf_h5 *wf_h5_create(const char *path);
wf_h5 *wf_h5_open(const char *path);
/* Closes the file; NULL is fine. An error after writing means that the file is not whole. */
wf_status wf_h5_close(wf_h5 *file);

/* Returns true if there is a data set of this name ("/a/b/c" or "a/b/c"). Soft links within the file are followed;
 * links to other files do not count. */
bool wf_h5_has(wf_h5 *file, const char *name);
/* WF_ERR_FORMAT where there is none, or one whose type has no wf_dtype, whose rank is above WF_MAX_RANK, or whose
 * elements lie in another file. */
wf_status wf_h5_stat(wf_h5 *file, const char *name, wf_h5_info *info) WF_NODISCARD;
/* Elements of `box` into `data`, row-major; float types become `dtype`, a float type, and integers and booleans an
 * integer type (WF_ERR_DTYPE for others). WF_ERR_FORMAT: an unsigned integer above 2^63 - 1. */
wf_status wf_h5_read(wf_h5 *file, const char *name, wf_box box, wf_dtype dtype, void *data) WF_NODISCARD;

/* A data set, with the groups above it; contiguous, and with a place in the file at once. */
wf_status wf_h5_add(wf_h5 *file, const char *name, wf_dtype dtype, wf_shape shape) WF_NODISCARD;
/* Adds a data set in chunks, compressed by gzip if level is 1 to 9 and not if it is 0. */
wf_status wf_h5_add_chunked(wf_h5 *file, const char *name, wf_dtype dtype, wf_shape shape, wf_shape chunk,
                            int level) WF_NODISCARD;
/* Elements of `box` from `data`, which has the data set's type. */
wf_status wf_h5_write(wf_h5 *file, const char *name, wf_box box, const void *data) WF_NODISCARD;

/* Calls `visit` with every data set of the file, in the order of names; an error ends the walk. The lock is not held
 * during it. */
typedef wf_status (*wf_h5_visit)(void *user, wf_h5 *file, const char *name);
wf_status wf_h5_each(wf_h5 *file, wf_h5_visit visit, void *user) WF_NODISCARD;

/* A text that belongs to a data set of the file, or, where `set` is NULL, to the file: an attribute of its root group.
 * Reading gives "" where there is none, and the digits of an integer. */
wf_status wf_h5_set_text(wf_h5 *file, const char *set, const char *name, const char *text) WF_NODISCARD;
wf_status wf_h5_get_text(wf_h5 *file, const char *set, const char *name, char *text, size_t size) WF_NODISCARD;

/* --- Files as such ------------------------------------------------------------------------------------------------ */

/* Makes what was written to a file, or the names in a folder, outlive a loss of power. */
wf_status wf_file_sync(const char *path) WF_NODISCARD;
wf_status wf_folder_sync(const char *folder) WF_NODISCARD;
#define WF_FILE_PATH 4096
/* Makes the folder and the folders above it, where they are missing. */
wf_status wf_folder_make(const char *folder) WF_NODISCARD;
/* Says where to write a file that shall become `path`: `target` is `path`, or the file that it leads to through
 * symbolic links, which stay and may lead to no file yet; `temporary` is the target's name with `end` after it.
 * WF_ERR_ARGUMENT: a name is too long; WF_ERR_IO: the links lead in a circle, or to what is no regular file. */
wf_status wf_file_target(const char *path, const char *end, char target[WF_FILE_PATH],
                         char temporary[WF_FILE_PATH]) WF_NODISCARD;
/* The file `temporary` becomes `path`, at once and durably; an existing one is replaced. */
wf_status wf_file_commit(const char *temporary, const char *path) WF_NODISCARD;

/* --- Sums that notice damage -------------------------------------------------------------------------------------- */

#define WF_FILE_BLOCK ((int64_t)1 << 20)

/* Adds `bytes` at `offset` of a file to the sums of its blocks of WF_FILE_BLOCK bytes, one number a block: sums[0] is
 * that of block `first`. Sums of parts of a block add up to that of the block, in any order and wherever it is split,
 * so several ranks may write one block. A change of one byte, and all but one in 2^32 of others, change a sum. */
void wf_file_sums(uint64_t *sums, int64_t first, int64_t offset, const void *data, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
