/* Captured steps (core/captured.h) for library code.
 *
 * A step is rehearsed, then captured, then replayed. A replay repeats only the work that slots of the kernel table put
 * on a stream, with the arguments that they had: numbers passed by value stay as they were. Work that the host must
 * repeat in every step is registered with wf_ctx_capture_host_op or wf_ctx_send, which do it at once and again before
 * every replay. An op that calls slots alone needs nothing of this header.
 */
#ifndef WF_CORE_CAPTURED_AUTHOR_H
#define WF_CORE_CAPTURED_AUTHOR_H

#include "core/captured.h"
#include "core/context_author.h"

#define WF_HOST_OP_BYTES 128

/* An operation of the host: a number that changes from step to step, a count, or a check. */
typedef struct wf_host_op {
    /* Writes `bytes` to `value`, which is aligned for every type. An error is that of the step, or refuses the run. */
    wf_status (*act)(void *own, double number, void *value);
    void *own;     /* what it works on, which must outlive the captured step */
    double number; /* handed to act and undo: the same one at every replay */
    void *device;  /* the value is copied there, in the order of the step; memory that outlives the captured step */
    size_t bytes;  /* at most WF_HOST_OP_BYTES; 0: there is no value */
    bool check; /* only checks and changes nothing: at a replay it runs before all operations that change something */
    void (*undo)(void *own, double number); /* called if the capture is abandoned; NULL: nothing to undo */
} wf_host_op;
/* Does the operation now, and in a capture again before every replay. All values of a captured step, of wf_ctx_send
 * too, have 16 KiB together: WF_ERR_UNSUPPORTED beyond. Local. */
wf_status wf_ctx_capture_host_op(wf_ctx *ctx, wf_host_op op) WF_NODISCARD;
/* Copies values to the device that are known to the host now; `host` is free to change afterwards. Every replay copies
 * the values of the capture again. Local. */
wf_status wf_ctx_send(wf_ctx *ctx, void *device, const void *host, size_t bytes) WF_NODISCARD;
/* Registers an operation that was done already and is to be repeated before every replay. Does nothing outside of a
 * capture. If it cannot be registered, the capture fails at its end. */
void wf_ctx_repeat(wf_ctx *ctx, wf_status (*act)(void *own, double number, void *value), void *own);
/* Registers an operation to do after every launch, and when a capture is abandoned. Does nothing outside of a
 * capture. */
wf_status wf_ctx_after_capture(wf_ctx *ctx, wf_status (*act)(void *own), void *own) WF_NODISCARD;

/* The step that is being captured uses something of `own` that may end before it: `alive` is asked before every launch,
 * and its error is that of the run. Does nothing outside of a capture. */
wf_status wf_ctx_capture_uses(wf_ctx *ctx, wf_status (*alive)(void *own), void *own) WF_NODISCARD;
/* `own` ends: graphs of captured steps that use it are freed now, and their further runs return this error. What they
 * have on the device goes on by itself. */
void wf_ctx_end_captures(wf_ctx *ctx, const void *own, wf_status status, const char *why);

/* Call this before an operation that cannot be captured. WF_OK outside of a capture, WF_ERR_UNSUPPORTED inside; a
 * rehearsal records it, so that the step is not captured at all. The message is "a captured step cannot <what>;
 * <instead>". */
wf_status wf_ctx_forbid_capture(wf_ctx *ctx, const char *what, const char *instead) WF_NODISCARD;
/* True while a step is being captured: work for the device is recorded and not done. */
bool wf_ctx_capturing(const wf_ctx *ctx);

#endif
