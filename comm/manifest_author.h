/* The manifest, the bytes behind the HDF5 part of a checkpoint: the place of every data set, a sum for every block, and
 * a trailer that says where it all is. Local. */
#ifndef WF_COMM_MANIFEST_AUTHOR_H
#define WF_COMM_MANIFEST_AUTHOR_H

#include "comm/file_author.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_manifest_entry {
    char *name;
    wf_dtype dtype;
    wf_shape shape;
    int64_t offset; /* of its elements, row-major, in the file */
} wf_manifest_entry;

#define WF_MANIFEST_MESH 128
typedef struct wf_manifest {
    int64_t generation, step, ranks;
    char mesh[WF_MANIFEST_MESH];
    int64_t bytes; /* of the HDF5 part */
    int64_t n;
    wf_manifest_entry *entry;
    int64_t blocks;
    uint64_t *sums;
    uint64_t hash; /* of the manifest as it was read */
} wf_manifest;

/* Writes it behind the HDF5 part of a file that is open for writing. */
wf_status wf_manifest_write(int file, const char *path, const wf_manifest *manifest) WF_NODISCARD;
/* Reads and checks it: WF_ERR_FORMAT says what is wrong. Memory is taken only for what the file has. Frees nothing that
 * was there; to be freed by wf_manifest_free whatever comes. */
wf_status wf_manifest_read(int file, const char *path, wf_manifest *manifest) WF_NODISCARD;
void wf_manifest_free(wf_manifest *manifest);

const wf_manifest_entry *wf_manifest_find(const wf_manifest *manifest, const char *name);
/* Reads block b, of which *bytes are in the HDF5 part, and compares its sum. `data` has room for WF_FILE_BLOCK. */
wf_status wf_manifest_block(int file, const char *path, const wf_manifest *manifest, int64_t b, void *data,
                            int64_t *bytes) WF_NODISCARD;
/* The block that was read last, so that neighbours in it need not read it again. */
typedef struct wf_manifest_reader {
    int file;
    const char *path;
    const wf_manifest *manifest;
    int64_t block; /* -1: none */
    int64_t bytes;
    unsigned char *data; /* room for WF_FILE_BLOCK */
} wf_manifest_reader;
/* Elements of a box, row-major; every block on the way is checked. */
wf_status wf_manifest_read_box(wf_manifest_reader *reader, const wf_manifest_entry *entry, wf_box box,
                               void *data) WF_NODISCARD;

/* The pieces of a box of a row-major array that lie in one run: calls `visit` with the first element's number in the
 * array, the first element's number in the box, and how many there are. */
typedef wf_status (*wf_box_run)(void *user, int64_t in_array, int64_t in_box, int64_t count);
wf_status wf_box_runs(wf_shape shape, wf_box box, wf_box_run visit, void *user) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
