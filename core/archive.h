/* The archive visitor: one walk over an object saves it, loads it, counts it or sends it.
 *
 * wf_layer_archive, wf_optim_archive, ... call these for every part, in a fixed order, inside named groups. The archive
 * decides what a visit does: write to a file, read from memory, send to other ranks.
 */
#ifndef WF_CORE_ARCHIVE_H
#define WF_CORE_ARCHIVE_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_archive wf_archive;

wf_status wf_archive_enter(wf_archive *archive, const char *name) WF_NODISCARD;
wf_status wf_archive_leave(wf_archive *archive) WF_NODISCARD;
/* Saves from or loads into the tensor (and notes the change). */
wf_status wf_archive_tensor(wf_archive *archive, const char *name, wf_tensor *tensor) WF_NODISCARD;
/* The place of a tensor that is, on this rank, the part `box` of one of shape `global`, of which the other ranks have
 * the rest. `varies`: ranks that have the same part may have other values (running statistics). An archive in the
 * memory of one rank keeps the part. */
typedef struct wf_archive_place {
    wf_shape global;
    wf_box box;
    bool varies;
} wf_archive_place;
wf_status wf_archive_part(wf_archive *archive, const char *name, wf_tensor *tensor,
                          wf_archive_place place) WF_NODISCARD;
wf_status wf_archive_i64(wf_archive *archive, const char *name, int64_t *value) WF_NODISCARD;
wf_status wf_archive_f64(wf_archive *archive, const char *name, double *value) WF_NODISCARD;
bool wf_archive_loading(const wf_archive *archive);
/* While loading: whether the archive holds this part. While saving: true. */
bool wf_archive_has(wf_archive *archive, const char *name);
/* "gen/conv1/W": the path of `name` in the current group, valid until the next call. */
const char *wf_archive_path(wf_archive *archive, const char *name);
void wf_archive_free(wf_archive *archive);

/* A function that visits an object: wf_layer_visit, wf_optim_visit, ... have this form, so that a list may hold several
 * kinds. */
typedef wf_status (*wf_archive_visit)(void *object, wf_archive *archive);

/* In host memory, holding logical row-major elements. Made empty for saving; wf_archive_memory_rewind turns it to
 * loading, after which every visit must find its path with the same shape and type (WF_ERR_FORMAT names the path). */
wf_archive *wf_archive_memory(wf_ctx *ctx);
wf_status wf_archive_memory_rewind(wf_archive *archive) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
