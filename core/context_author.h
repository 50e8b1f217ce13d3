/* The context as the library sees it: kernel table, pool, live-object counters, hooks that comm fills. A context uses
 * one device, which other contexts of the process may use too, each with a pool and a stream of its own. One thread of
 * the process calls the library, with whatever context; comments call it the main thread. Everything here is local. */
#ifndef WF_CORE_CONTEXT_AUTHOR_H
#define WF_CORE_CONTEXT_AUTHOR_H

#include "core/kernels_author.h"

/* Kinds of objects whose life is counted. */
typedef enum wf_live {
    WF_LIVE_TENSOR = 0,
    WF_LIVE_TAPE,
    WF_LIVE_LAYER,
    WF_LIVE_OPTIM,
    WF_LIVE_DATASET,
    WF_LIVE_ITER,
    WF_LIVE_COMM, /* communicators split from the first, and meshes */
    WF_LIVE_CAPTURED,
    WF_LIVES
} wf_live;

/* Plans of one kind that a filling, or a mesh, keeps; shapes that change with every batch would fill the memory. */
#define WF_PLANS_MOST 1024

/* The time of a wait (wf_wait_ns); zero before it begins. */
typedef struct wf_wait {
    int64_t start_ns, seen_ns; /* when it began, and when the clock was read */
    int64_t lost_ns;           /* how long this process did not run since start_ns */
} wf_wait;

typedef struct wf_pool wf_pool;
struct wf_captured;
struct wf_profile;

#define WF_CTX_NOTICE 256

struct wf_ctx {
    const wf_kernels *k; /* of the device; a profile puts a table that measures in its place */
    wf_dtype dtype;
    wf_dtype compute; /* WF_F32, which is 0: as dtype */
    uint64_t seed;
    int threads;
    wf_pool *pool;
    int64_t live[WF_LIVES];
    uint64_t layers;            /* made so far */
    uint64_t roots;             /* root layers without a name that have a number so far (layers/layer_author.h) */
    int64_t vars;               /* variables alive on all tapes */
    uint64_t emptied;           /* how often the last of them went: until then backward may use what forward made */
    int64_t plans;              /* kept by the filling: primitives, plans (wf_memory_counters) */
    uint64_t backwards;         /* backwards started */
    int64_t reusing;            /* pipelines in a step of several chunks: see wf_tape_reuses */
    uint64_t segments;          /* numbers given to segments that are recomputed (core/autograd/segment.c), and to marks
                                   that backward sets in parameters */
    char notice[WF_CTX_NOTICE]; /* why the device is not the requested one; empty: it is the requested one */
    void *device_own;           /* a filling's own state (primitive cache, streams); freed by its shutdown */

    struct wf_captured *captured;      /* whose step runs, to be captured; NULL: none (core/captured_author.h) */
    struct wf_captured *captured_list; /* all captured steps that are not freed */
    uint64_t captures;                 /* begun so far */
    uint64_t epoch;                    /* added to the versions of arrays; 0 outside of a capture */

    int64_t planning_ns, tuning_ns, capturing_ns; /* wf_setup_seconds */

    struct wf_profile *profile; /* measures where the time goes (core/profile_author.h); NULL: nothing does */

    struct wf_comm *world; /* the first communicator of this context; NULL: none, or it is closed */
    /* Tells the other ranks of `comm` that this one failed with its last error; returns the status. Filled by comm. */
    wf_status (*tell_failure)(struct wf_comm *comm, wf_status status);
    /* Returns true if this rank is the first of those that differ along these axes (bit a: axis a). Filled by comm;
     * NULL: there is one rank. */
    bool (*is_first)(const struct wf_mesh *mesh, unsigned axes);

    /* Hooks that comm fills where device memory moves natively. Where they are NULL, a read need not wait for other
     * ranks. */
    void *comm;                     /* the argument of the hooks */
    wf_status (*await)(void *comm); /* before the host reads a value that may depend on other ranks */
    /* Called repeatedly while the host waits for the device; an error ends the wait. *wait is zero at the first call.
     */
    wf_status (*waiting)(void *comm, wf_wait *wait);

    /* Set by comm, and by a ring of attention, while communication is in flight, otherwise NULL: see wf_ctx_progress.
     */
    void (*progress)(void *own);
    void *progress_state;
};

/* Advances messages that are in flight. Long operations call it between their pieces, on the main thread and outside
 * parallel regions. A kernel that splits its work for this checks ctx->progress first, and computes the same result
 * either way. */
static inline void wf_ctx_progress(const wf_ctx *ctx)
{
    if (ctx->progress)
        ctx->progress(ctx->progress_state);
}

/* wf_ctx_new in two parts: makes the context, and logs the line about its device, which only one rank should do. */
wf_ctx *wf_ctx_make(wf_ctx_opts opts);
void wf_ctx_announce(const wf_ctx *ctx);

/* Counts `by` more objects of a kind that are alive (negative: fewer); wf_ctx_free refuses while there is one. */
void wf_live_add(wf_ctx *ctx, wf_live kind, int64_t by);

/* Reads a value from the device: waits for other ranks that contribute to it, then calls k->to_host. While a step
 * is captured WF_ERR_UNSUPPORTED, as wf_ctx_forbid_capture says. */
wf_status wf_ctx_read(wf_ctx *ctx, void *host, const void *device, size_t bytes) WF_NODISCARD;
/* Like wf_ctx_read, for callers that skip the read while a step is captured. */
wf_status wf_ctx_capture_read(wf_ctx *ctx, void *host, const void *device, size_t bytes) WF_NODISCARD;

/* Returns how many nanoseconds a wait has lasted, without the time in which this process was stopped or its machine
 * suspended: a fifth of a second counts, from one call of this to the next. The first call, of one that is zero, begins
 * it. Any thread, each with its own. */
int64_t wf_wait_ns(wf_wait *wait);

/* Waits until an event of the device is done, and meanwhile for failures of other ranks. WF_ERR_TIMEOUT: "the device
 * has not <what> after ... ms". Not in a captured step. */
wf_status wf_ctx_wait_event(wf_ctx *ctx, wf_event *event, const char *what) WF_NODISCARD;

/* The memory pool of this context, on its device. Main thread only.
 *
 * take: *data is the caller's until it gives the block back: uninitialised, 64-byte aligned; NULL for 0 bytes.
 *       WF_ERR_MEMORY where the device has no more, on this rank alone.
 * give: `data` as a take gave it, or NULL, and the bytes that were asked for. Work that the context's stream has for
 *       the block may still be under way, since the next owner's comes after it. If another stream uses the block, the
 *       caller has made the context's stream wait for that one by an event. Workspace of a kernel is taken and given
 *       within the slot.
 *
 * A block that was given back may serve a later take of its size class. A pool that would grow beyond a quarter and 16
 * MiB more than was ever in use, or whose device has no more memory, first cuts a larger free block, or returns free
 * ones to the system; memory of the device and page-locked memory of the host have a count each, which blocks below 16
 * KiB and those of a capture are not in. Before a block is returned the host waits for the context's communication and
 * its own stream: an error if a rank fails meanwhile. */
wf_status wf_pool_take(wf_ctx *ctx, size_t bytes, void **data) WF_NODISCARD;
void wf_pool_give(wf_ctx *ctx, void *data, size_t bytes);
/* Retires the block that contains this address: it is never reused and not freed with the context, even after it is
 * given back, because a transfer in flight may still read or write it. Addresses outside the pool are ignored. */
void wf_pool_hold(wf_ctx *ctx, const void *data);
/* Take and give host memory, page-locked if the device has memory of its own: for lists, and for transfers to and from
 * the device. Before the give the host has waited for transfers that use the block. */
wf_status wf_pool_take_host(wf_ctx *ctx, size_t bytes, void **data) WF_NODISCARD;
void wf_pool_give_host(wf_ctx *ctx, void *data, size_t bytes);
/* The most bytes that were in use since the call before, or ever. */
size_t wf_pool_mark(wf_ctx *ctx);

/* malloc, calloc and realloc, counted (core/heap.c), for what is kept from step to step; what one step takes and gives
 * back is the pool's. The caller frees it, by free. NULL and a recorded WF_ERR_MEMORY on failure. From any thread. */
void *wf_malloc(wf_ctx *ctx, size_t bytes);
void *wf_calloc(wf_ctx *ctx, size_t count, size_t size);
void *wf_realloc(wf_ctx *ctx, void *old, size_t bytes);
/* A list that has room for `count` elements of `size` bytes: `list` (NULL at first, with *room 0), or, where that has
 * not, a longer one to which it moved; *room follows. NULL on failure: the list is as it was. */
void *wf_grow(wf_ctx *ctx, void *list, int64_t *room, int64_t count, size_t size);
char *wf_strdup(wf_ctx *ctx, const char *text);

/* A range in a profiler's time line, where the device has them. */
static inline void wf_range_push(wf_ctx *ctx, const char *name)
{
    if (ctx && ctx->k->range_push)
        ctx->k->range_push(ctx, name);
}

static inline void wf_range_pop(wf_ctx *ctx)
{
    if (ctx && ctx->k->range_pop)
        ctx->k->range_pop(ctx);
}

/* Frees the packed forms of a parameter (core/array_author.h), and empties the list. */
void wf_packed_free(wf_ctx *ctx, wf_packed_form **forms);

#endif
