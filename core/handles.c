/* The handles of tensors and storages of a context, and the packed forms that hang on them. They are made by the dozen
 * and never freed before the pool: a loop of fixed shape reuses those of its first steps. Called by tensor.c, which
 * counts references; nothing here does. Main thread only. */
#include "core/pool_impl.h"

#include <stdlib.h>

/* Handles that one allocation makes. Chunks are never moved or shrunk, so a handle keeps its address. */
enum { CHUNK = 64 };

struct wf_tensor_chunk {
    struct wf_tensor_chunk *next;
    wf_tensor tensor[CHUNK]; /* ctx is NULL in those that are free */
};

struct wf_storage_chunk {
    struct wf_storage_chunk *next;
    wf_storage storage[CHUNK];
};

wf_tensor *wf_pool_tensor(wf_ctx *ctx)
{
    wf_handles *handles = wf_pool_handles(ctx);
    if (!handles->tensors) {
        struct wf_tensor_chunk *many = wf_calloc(ctx, 1, sizeof *many);
        if (!many)
            return NULL;
        many->next = handles->tensor_chunks;
        handles->tensor_chunks = many;
        for (int i = 0; i < CHUNK; i++)
            wf_pool_tensor_give(ctx, &many->tensor[i]);
    }
    wf_tensor *tensor = handles->tensors;
    /* A free handle has no data of its own, so the field links the list. */
    handles->tensors = tensor->data;
    /* Clears what the last user left in it. */
    *tensor = (wf_tensor){.ctx = ctx};
    return tensor;
}

void wf_pool_tensor_give(wf_ctx *ctx, wf_tensor *tensor)
{
    wf_handles *handles = wf_pool_handles(ctx);
    /* wf_any_tensor walks whole chunks and skips the free handles by this. */
    tensor->ctx = NULL;
    tensor->data = handles->tensors;
    handles->tensors = tensor;
}

bool wf_any_tensor(const wf_ctx *ctx, bool (*has)(const wf_tensor *tensor, const void *what), const void *what)
{
    for (const struct wf_tensor_chunk *c = wf_pool_handles(ctx)->tensor_chunks; c; c = c->next)
        for (int i = 0; i < CHUNK; i++)
            if (c->tensor[i].ctx && has(&c->tensor[i], what))
                return true;
    return false;
}

/* As wf_pool_tensor, without the mark: nothing walks over chunks of storages. */
wf_storage *wf_pool_storage(wf_ctx *ctx)
{
    wf_handles *handles = wf_pool_handles(ctx);
    if (!handles->storages) {
        struct wf_storage_chunk *many = wf_calloc(ctx, 1, sizeof *many);
        if (!many)
            return NULL;
        many->next = handles->storage_chunks;
        handles->storage_chunks = many;
        for (int i = 0; i < CHUNK; i++)
            wf_pool_storage_give(ctx, &many->storage[i]);
    }
    wf_storage *storage = handles->storages;
    handles->storages = storage->next;
    *storage = (wf_storage){.ctx = ctx};
    return storage;
}

void wf_pool_storage_give(wf_ctx *ctx, wf_storage *storage)
{
    wf_handles *handles = wf_pool_handles(ctx);
    storage->next = handles->storages;
    handles->storages = storage;
}

/* The list of step storages that are alive; core/tensor.c links and unlinks them. */
wf_storage **wf_pool_steps(wf_ctx *ctx)
{
    return &wf_pool_handles(ctx)->steps;
}

/* With the pool: what is still in a list, or in use, lies in the chunks and goes with them. */
void wf_handles_free(wf_handles *handles)
{
    for (struct wf_tensor_chunk *c = handles->tensor_chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    for (struct wf_storage_chunk *c = handles->storage_chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
}

/* The data came from the pool, the form from the heap; each goes back where it came from. */
void wf_packed_free(wf_ctx *ctx, wf_packed_form **forms)
{
    while (*forms) {
        wf_packed_form *form = *forms;
        *forms = form->next;
        wf_pool_give(ctx, form->data, form->bytes);
        free(form);
    }
}
