/* A profile of a context: how long its kernels, collectives and waits for input take, by layer, and when they were.
 * While there is none, ctx->profile is NULL and the kernel table is the device's own, so nothing is measured and
 * nothing is asked but that pointer. optim/profiler.h is what programs use. */
#ifndef WF_CORE_PROFILE_AUTHOR_H
#define WF_CORE_PROFILE_AUTHOR_H

#include "core/context_author.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_profile wf_profile;

typedef enum wf_profile_kind {
    WF_PROFILE_KERNEL = 0,
    WF_PROFILE_COLLECTIVE,
    WF_PROFILE_INPUT, /* the program waits for a batch */
    WF_PROFILE_KINDS
} wf_profile_kind;

/* All calls of one thing in a layer: of a kernel, or of one kind of collective. */
typedef struct wf_profile_row {
    wf_profile_kind kind;
    const char *name, *layer; /* layer: its path, "" outside of layers */
    int64_t calls, ns;
    double flops, bytes; /* bytes: read and written by a kernel, of the tensor of a collective */
    double sent;         /* what a collective gave to the transport */
} wf_profile_row;

/* One of them, for a time line; times are of the monotonic clock. */
typedef struct wf_profile_event {
    int64_t start_ns, end_ns;
    int32_t row;
    double flops, bytes, sent; /* sent: what a collective gave to the transport */
} wf_profile_event;

/* Begins a profile, and keeps up to `events` events, the first ones. The context must outlive it. WF_ERR_UNSUPPORTED on
 * devices whose kernels run beside the host, WF_ERR_STATE where the context has a profile already. */
wf_status wf_profile_begin(wf_ctx *ctx, int64_t events) WF_NODISCARD;
/* Ends it: from here nothing is measured. What it has stays readable until wf_profile_free. */
void wf_profile_end(wf_profile *profile);
void wf_profile_free(wf_profile *profile);

int64_t wf_profile_rows(const wf_profile *profile, const wf_profile_row **rows); /* borrowed */
int64_t wf_profile_events(const wf_profile *profile, const wf_profile_event **events);
int64_t wf_profile_left_out(const wf_profile *profile); /* events that were too many */
int64_t wf_profile_ns(const wf_profile *profile);       /* from begin to end, or to now */
/* The clock of its events. */
int64_t wf_profile_clock(void);
/* Tests move the clock of a process, as if it ran on another machine. */
void wf_profile_clock_move(int64_t ns);

/* --- For the library: each of these first looks at ctx->profile. ----------------------------------------------------
 */

/* From here, kernels belong to this layer; the name is copied. Returns the layer before, to come back to it. */
const char *wf_profile_change_layer(wf_profile *profile, const char *layer);
static inline const char *wf_profile_layer(const wf_ctx *ctx, const char *layer)
{
    return ctx->profile ? wf_profile_change_layer(ctx->profile, layer) : NULL;
}

/* The layer of now, valid as long as the profile. */
const char *wf_profile_current(const wf_profile *profile);

void wf_profile_add(wf_profile *profile, wf_profile_kind kind, const char *name, const wf_profile_event *event);

#ifdef __cplusplus
}
#endif
#endif
