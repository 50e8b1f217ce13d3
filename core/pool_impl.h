/* The inside of the memory pool (core/pool.c), for core alone: context.c makes and frees it, autograd/captured.c claims
 * memory for captured steps, tensor.c and handles.c recycle the handles of tensors, heap.c counts what it allocates.
 * Memory is taken and given back by core/context_author.h. Local; main thread only, but wf_pool_count_allocation.
 *
 * Each context has a pool of its own, and contexts share no block, also where several use one device. So a block can
 * serve its next owner without a wait: the work of the old and of the new owner is put on one stream, the context's. A
 * pool of several contexts would need an event for each block that is given back, for which a take by another context
 * waits. The counters (wf_ctx_memory), the handles and the claim that is made belong to one context in any case.
 *
 * Slots, their arguments and layers with `pool` in their names are those of pooling and have nothing to do with it. */
#ifndef WF_CORE_POOL_IMPL_H
#define WF_CORE_POOL_IMPL_H

#include "core/context_author.h"
#include "core/tensor_author.h"

/* Makes the pool of a context, which owns it. The context has its kernel table, and its device only later
 * (wf_ctx_make), so nothing is allocated on a device here. NULL and a recorded error on failure. */
wf_pool *wf_pool_new(wf_ctx *ctx);
/* Returns all blocks to the device, those in use too, but not those that wf_pool_hold retired. NULL is fine. */
void wf_pool_free(wf_pool *pool);

/* Counts an allocation of the heap (core/heap.c) in the counters of the pool. From any thread. */
void wf_pool_count_allocation(wf_ctx *ctx);

/* A claim: the device memory of a captured step, whose replays use the addresses of the capture again.
 *
 * begin .. end: blocks that are taken belong to the claim. One that is given back serves later takes of the capture.
 * end:          also claims every block that is in use, since the graph may read it. From here on a block of the claim
 *               that is free, or becomes free, is handed out to no one. *claim is the caller's until the drop;
 *               WF_ERR_MEMORY: *claim is NULL, and nothing is claimed.
 * drop:         blocks that are free serve all takes again; the others stay with those who took them. NULL is fine.
 *
 * A context makes one claim at a time; a block may be in several. */
typedef struct wf_claim wf_claim;
void wf_pool_claim_begin(wf_ctx *ctx);
wf_status wf_pool_claim_end(wf_ctx *ctx, wf_claim **claim) WF_NODISCARD;
void wf_pool_claim_drop(wf_ctx *ctx, wf_claim *claim);

/* Handles and storages of tensors (core/handles.c). */
typedef struct wf_handles {
    wf_tensor *tensors;                    /* free handles, linked through data */
    wf_storage *storages;                  /* free storages, linked through next */
    wf_storage *steps;                     /* of tensors for one step, in use, linked through next and prev */
    struct wf_tensor_chunk *tensor_chunks; /* memory of both */
    struct wf_storage_chunk *storage_chunks;
} wf_handles;

wf_handles *wf_pool_handles(const wf_ctx *ctx);
void wf_handles_free(wf_handles *handles);

/* Handles and storages of tensors are recycled. A new one is zero but for its ctx; the caller gives it back once, after
 * what it points to. NULL and a recorded error on failure. */
wf_tensor *wf_pool_tensor(wf_ctx *ctx);
void wf_pool_tensor_give(wf_ctx *ctx, wf_tensor *tensor);
wf_storage *wf_pool_storage(wf_ctx *ctx);
void wf_pool_storage_give(wf_ctx *ctx, wf_storage *storage);
/* Head of the list of step storages. */
wf_storage **wf_pool_steps(wf_ctx *ctx);

#endif
