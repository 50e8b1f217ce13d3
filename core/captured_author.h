/* What library code has to know of captured steps (core/captured.h).
 *
 * A step is rehearsed, then captured, then replayed. Whatever the host does in every step that is not put on a stream
 * by a slot of the kernel table does not happen in a replay by itself: it is given to wf_ctx_capture_host_op or
 * wf_ctx_send, which do it at once, and once more in front of every replay.
 */
#ifndef WF_CORE_CAPTURED_AUTHOR_H
#define WF_CORE_CAPTURED_AUTHOR_H

#include "core/captured.h"
#include "core/context_author.h"

#define WF_ACT_BYTES 128

/* Something that the host does. It writes `bytes` (at most WF_ACT_BYTES, 0: none) to `value`, which go to `device` in
 * the order of the step. What `own` points to outlives the captured step. */
typedef struct wf_host_op {
    wf_status (*act)(void *own, double number, void *value);
    void *own;
    double number;
    void *device;
    size_t bytes;
    bool check;                             /* changes nothing; comes before all acts that do */
    void (*undo)(void *own, double number); /* after a capture that was given up; NULL: nothing to undo */
} wf_host_op;
wf_status wf_ctx_capture_host_op(wf_ctx *ctx, wf_host_op act) WF_NODISCARD;
/* Values that are the same in every run. */
wf_status wf_ctx_send(wf_ctx *ctx, void *device, const void *host, size_t bytes) WF_NODISCARD;
/* What has been done already, to be done again in front of every replay; nothing outside of a capture. */
void wf_ctx_repeat(wf_ctx *ctx, wf_status (*act)(void *own, double number, void *value), void *own);
/* Something to do behind every launch, and where a capture is given up; nothing outside of a capture. */
wf_status wf_ctx_after_capture(wf_ctx *ctx, wf_status (*act)(void *own), void *own) WF_NODISCARD;

/* In front of what cannot be captured: WF_OK, but WF_ERR_UNSUPPORTED while a step is captured. A rehearsal notes it, so
 * that the step is not captured at all. "a captured step cannot <what>; <instead>". */
wf_status wf_ctx_forbid_capture(wf_ctx *ctx, const char *what, const char *instead) WF_NODISCARD;
/* A step is being captured: what is put on the device is not done now. */
bool wf_ctx_capturing(const wf_ctx *ctx);

#endif
