/* Host memory for the time of a call: from the pool, or for the background stream a block of its own. Schedules take
 * their scratch here; collectives, checkpoints and layers take staging buffers. */
#include "comm/engine/engine_impl.h"

/* The background stream takes memory in the midst of a computation that takes blocks of the pool, now before and now
 * after it: it has a block of its own, so that both take the same in every step. One is enough, since its calls run one
 * after the other; while a message that was given up may still write to it, the pool serves instead. */
static bool uses_own_block(const wf_comm *comm)
{
    return comm->shared->ctx->k->host && comm->shared->background_runs && !comm->shared->block.taken;
}

static wf_status take_own_block(wf_comm *comm, size_t bytes, void **data)
{
    wf_host_block *block = &comm->shared->block;
    if (block->bytes < bytes) {
        void *grown = wf_realloc(comm->shared->ctx, block->data, bytes);
        if (!grown)
            return wf_error_code();
        block->data = grown;
        block->bytes = bytes;
    }
    block->taken = true;
    *data = block->data;
    return WF_OK;
}

wf_status wf_host_take(wf_comm *comm, size_t bytes, void **data)
{
    *data = NULL;
    if (bytes == 0)
        return WF_OK;
    WF_TRY(wf_comm_forbid_capture(comm, "communicate through the memory of the host"));
    return uses_own_block(comm) ? take_own_block(comm, bytes, data) : wf_pool_take_host(comm->shared->ctx, bytes, data);
}

void wf_host_give(wf_comm *comm, void *data, size_t bytes)
{
    /* What an unfinished message may still write to is leaked on purpose. */
    if (!data || comm->lost)
        return;
    if (data == comm->shared->block.data)
        comm->shared->block.taken = false;
    else
        wf_pool_give_host(comm->shared->ctx, data, bytes);
}
