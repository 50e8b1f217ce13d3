/* Data files, plain or gzip, whose size is checked. */
#ifndef WF_DATASETS_FILE_IMPL_H
#define WF_DATASETS_FILE_IMPL_H

#include "core/status_author.h"

#include <stdbool.h>
#include <stdint.h>

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

wf_status wf_data_file_open(wf_data_file *file, const char *path) WF_NODISCARD;
void wf_data_file_close(wf_data_file *file);
/* Checks, before memory is taken for it, that the file can hold `total` bytes uncompressed. */
wf_status wf_data_file_expect(wf_data_file *file, uint64_t total) WF_NODISCARD;
/* Exactly `bytes`, of a file that should have `total`; a shorter one is WF_ERR_FORMAT with both sizes. */
wf_status wf_data_file_read(wf_data_file *file, void *data, size_t bytes, uint64_t total) WF_NODISCARD;
/* WF_ERR_FORMAT with both sizes if anything follows what was read. */
wf_status wf_data_file_end(wf_data_file *file) WF_NODISCARD;

#endif
