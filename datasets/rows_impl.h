/* Samples in host memory, one after the other: what most readers load. */
#ifndef WF_DATASETS_ROWS_IMPL_H
#define WF_DATASETS_ROWS_IMPL_H

#include "datasets/dataset_author.h"

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
void wf_rows_dataset_free(wf_dataset *dataset);

/* A memory data set with room for info.count samples, to be filled through *rows. */
wf_dataset *wf_rows_dataset_new(wf_ctx *ctx, const wf_dataset_info *info, wf_rows **rows);

#endif
