/* Memory of the heap: what is kept from step to step, such as lists, names and plans. Each allocation is counted in the
 * counters of the context, by which tests notice a loop that allocates. What a step takes and gives back comes from the
 * pool (pool.c). From any thread: the count is atomic. */
#include "core/pool_impl.h"

#include <stdlib.h>
#include <string.h>

static void *note_allocation(wf_ctx *ctx, void *p, size_t bytes)
{
    wf_pool_count_allocation(ctx);
    if (!p)
        WF_RAISE(WF_ERR_MEMORY, "no memory for %zu bytes", bytes);
    return p;
}

void *wf_malloc(wf_ctx *ctx, size_t bytes)
{
    return note_allocation(ctx, malloc(bytes ? bytes : 1), bytes);
}

void *wf_calloc(wf_ctx *ctx, size_t count, size_t size)
{
    return note_allocation(ctx, calloc(count ? count : 1, size ? size : 1), count * size);
}

void *wf_realloc(wf_ctx *ctx, void *old, size_t bytes)
{
    return note_allocation(ctx, realloc(old, bytes ? bytes : 1), bytes);
}

void *wf_grow(wf_ctx *ctx, void *list, int64_t *room, int64_t count, size_t size)
{
    int64_t more = *room > 0 ? *room : 16;
    if (count <= *room)
        return list;
    /* Doubling keeps the cost of an element constant. */
    while (more < count)
        more *= 2;
    void *grown = wf_realloc(ctx, list, (size_t)more * size);
    *room = grown ? more : *room;
    return grown;
}

char *wf_strdup(wf_ctx *ctx, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = wf_malloc(ctx, bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}
