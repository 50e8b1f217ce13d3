/* Memory of one step of a tape: nodes, variables and their lists are cut from chunks that are used again after the
 * reset, so a loop of fixed shape allocates nothing. Nothing here is freed one by one. */
#include "core/autograd/autograd_impl.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16 };

void *wf_arena_take(wf_ctx *ctx, wf_arena *arena, size_t bytes)
{
    /* 16 bytes suit every type of C without vector types. */
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > CHUNK_BYTES) {
        WF_RAISE(WF_ERR_MEMORY, "%zu bytes of a tape asked for at once, at most %d", bytes, (int)CHUNK_BYTES);
        return NULL;
    }
    if (arena->n > 0 && arena->used + bytes > CHUNK_BYTES) {
        arena->current++;
        arena->used = 0;
    }
    if (arena->current == arena->n) {
        void **chunk = wf_realloc(ctx, arena->chunk, (arena->n + 1) * sizeof *chunk);
        if (!chunk)
            return NULL;
        arena->chunk = chunk;
        chunk[arena->n] = wf_malloc(ctx, CHUNK_BYTES);
        if (!chunk[arena->n])
            return NULL;
        arena->n++;
    }
    void *memory = (char *)arena->chunk[arena->current] + arena->used;
    arena->used += bytes;
    /* Zeroed here, for all: a node's unset fields are those of the last step otherwise. */
    return memset(memory, 0, bytes);
}

void wf_arena_reset(wf_arena *arena)
{
    arena->current = 0;
    arena->used = 0;
}

void wf_arena_free(wf_arena *arena)
{
    for (size_t i = 0; i < arena->n; i++)
        free(arena->chunk[i]);
    free(arena->chunk);
    *arena = (wf_arena){0};
}
