/* The archive visitor: one walk over an object saves it, loads it, counts it or sends it.
 *
 * wf_layer_archive, wf_optim_archive, ... call these for every part, in a fixed order, inside named groups. What
 * happens is the archive's affair: a file, memory, a communicator.
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
wf_status wf_archive_i64(wf_archive *archive, const char *name, int64_t *value) WF_NODISCARD;
wf_status wf_archive_f64(wf_archive *archive, const char *name, double *value) WF_NODISCARD;
bool wf_archive_loading(const wf_archive *archive);
/* "gen/conv1/W": the path of `name` in the current group, valid until the next call. */
const char *wf_archive_path(wf_archive *archive, const char *name);
void wf_archive_free(wf_archive *archive);

/* In host memory, holding logical row-major elements. Made empty for saving; wf_archive_memory_rewind turns it to
 * loading, after which every visit must find its path with the same shape and type (WF_ERR_FORMAT names the path). */
wf_archive *wf_archive_memory(wf_ctx *ctx);
wf_status wf_archive_memory_rewind(wf_archive *archive) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
