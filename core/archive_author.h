/* How a new kind of archive (core/archive.h) is made: a table of functions, one for each kind of part. Local, unless
 * the kind spans ranks. */
#ifndef WF_CORE_ARCHIVE_AUTHOR_H
#define WF_CORE_ARCHIVE_AUTHOR_H

#include "core/archive.h"

/* The functions read or write one part each, in the order of the visit; path is the whole path of it, valid during the
 * call. `part` may be NULL: a part of a parameter is then archived like a whole tensor. */
typedef struct wf_archive_ops {
    wf_status (*tensor)(wf_archive *archive, const char *path, wf_tensor *tensor);
    wf_status (*part)(wf_archive *archive, const char *path, wf_tensor *tensor, const wf_archive_place *place);
    bool (*has)(wf_archive *archive, const char *path); /* while loading */
    wf_status (*i64)(wf_archive *archive, const char *path, int64_t *value);
    wf_status (*f64)(wf_archive *archive, const char *path, double *value);
    void (*free)(wf_archive *archive); /* frees `own` */
} wf_archive_ops;

/* An archive of this kind with a state `own`, which ops->free frees with it. The caller frees the archive. NULL and a
 * recorded error on failure: `own` is then still the caller's. */
wf_archive *wf_archive_new(wf_ctx *ctx, const wf_archive_ops *ops, bool loading, void *own);
void *wf_archive_state(wf_archive *archive);
void wf_archive_set_loading(wf_archive *archive, bool loading);
/* Returns true if the archive gathers the parts of all ranks, which makes its visits collective. */
bool wf_archive_spans_ranks(const wf_archive *archive);

#endif
