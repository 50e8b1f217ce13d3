/* Memory of one step of a tape: nodes, variables and their lists are cut from chunks that are used again after the
 * reset, so a loop of fixed shape allocates nothing. Nothing here is freed one by one. */
#include "core/autograd/autograd_impl.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)1 << 16) /* what is longer has a chunk of its own */

/* A chunk for `bytes` at least, behind the others. */
static bool add_chunk(wf_ctx *ctx, wf_arena *arena, size_t bytes)
{
    void **chunk = wf_realloc(ctx, arena->chunk, (arena->n + 1) * sizeof *chunk);
    arena->chunk = chunk ? chunk : arena->chunk;
    size_t *room = wf_realloc(ctx, arena->room, (arena->n + 1) * sizeof *room);
    arena->room = room ? room : arena->room;
    if (!chunk || !room)
        return false;
    room[arena->n] = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    chunk[arena->n] = wf_malloc(ctx, room[arena->n]);
    if (!chunk[arena->n])
        return false;
    arena->n++;
    return true;
}

void *wf_arena_take(wf_ctx *ctx, wf_arena *arena, size_t bytes)
{
    /* 16 bytes suit every type of C without vector types. */
    bytes = (bytes + 15) & ~(size_t)15;
    while (arena->current < arena->n && arena->used + bytes > arena->room[arena->current]) {
        arena->current++;
        arena->used = 0;
    }
    if (arena->current == arena->n && !add_chunk(ctx, arena, bytes))
        return NULL;
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
    free(arena->room);
    *arena = (wf_arena){0};
}
