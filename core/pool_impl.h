/* The pool's life, for the context. */
#ifndef WF_CORE_POOL_IMPL_H
#define WF_CORE_POOL_IMPL_H

#include "core/context_author.h"
#include "core/tensor_author.h"

wf_pool *wf_pool_new(wf_ctx *ctx);
void wf_pool_free(wf_pool *pool);

/* The device memory of a captured step. Between begin and end, what is taken becomes the claim's: given back, it is
 * handed out again until the end, and not after it. The end also claims all that is in use at the time: given back,
 * it waits for the drop. drop gives back what is not in use. */
typedef struct wf_claim wf_claim;
void wf_pool_claim_begin(wf_ctx *ctx);
wf_status wf_pool_claim_end(wf_ctx *ctx, wf_claim **claim) WF_NODISCARD;
void wf_pool_claim_drop(wf_ctx *ctx, wf_claim *claim);

/* Handles and storages of tensors (core/handles.c). */
typedef struct wf_handles {
    wf_tensor *tensors;   /* free handles, linked through data */
    wf_storage *storages; /* free storages, linked through next */
    wf_storage *steps;
    struct wf_tensor_chunk *tensor_chunks; /* memory of both */
    struct wf_storage_chunk *storage_chunks;
} wf_handles;

wf_handles *wf_pool_handles(const wf_ctx *ctx);
void wf_handles_free(wf_handles *handles);

/* Handles and storages of tensors are recycled. NULL and a recorded error on failure. */
wf_tensor *wf_pool_tensor(wf_ctx *ctx);
void wf_pool_tensor_give(wf_ctx *ctx, wf_tensor *tensor);
wf_storage *wf_pool_storage(wf_ctx *ctx);
void wf_pool_storage_give(wf_ctx *ctx, wf_storage *storage);
/* Head of the list of step storages. */
wf_storage **wf_pool_steps(wf_ctx *ctx);

#endif
