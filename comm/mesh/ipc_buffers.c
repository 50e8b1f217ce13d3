/* Device memory that the ranks of a node map from each other (CUDA IPC), for the slots of the rings of pairs. It is
 * tried with marks before it is used. Blocks that others have mapped are released when the last of them says so. */
#include "comm/mesh/mesh_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank tells the others while they try. */
typedef struct offer {
    wf_share share;
    char why[WF_WHY]; /* it failed; empty: it did not */
} offer;

/* A block that others may still have mapped. */
typedef struct leftover {
    const wf_kernels *k;
    void *data;
    size_t bytes;
    int users;
    wf_ring_flag *gone[WF_PAIR_RANKS];
    struct leftover *next;
} leftover;

static leftover *leftovers;

char *wf_ipc_buffers_piece(const wf_ipc_buffers *buffers, int owner, int from)
{
    const size_t piece = buffers->bytes / (size_t)(buffers->size - 1);
    return buffers->of[owner] + (size_t)(from < owner ? from : from - 1) * piece;
}

/* Any context of the device can release it. */
static void sweep(wf_ctx *ctx)
{
    for (leftover **at = &leftovers; *at;) {
        leftover *l = *at;
        bool used = l->k != ctx->k;
        for (int i = 0; i < l->users; i++)
            used = used || !atomic_load_explicit(l->gone[i], memory_order_acquire);
        if (used) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        ctx->k->release(ctx, l->data, l->bytes);
        free(l);
    }
}

/* --- the trial ---------------------------------------------------------------------------------------------------- */

static uint64_t mark_of(const wf_comm *comm, int from, int to)
{
    return (comm->id * 0x9e3779b97f4a7c15u) ^ (uint64_t)(from * 1000 + to + 1);
}

/* Writes a mark into the block of every other rank, as the rings do. */
static wf_status write_marks(wf_comm *comm, const wf_ipc_buffers *b)
{
    wf_ctx *ctx = comm->shared->ctx;
    for (int i = 0; i < b->size; i++) {
        if (i == b->rank)
            continue;
        const uint64_t mark = mark_of(comm, b->rank, i);
        WF_TRY(ctx->k->to_device(ctx, wf_ipc_buffers_piece(b, i, b->rank), &mark, sizeof mark));
    }
    return ctx->k->stream_finish(ctx, NULL);
}

static wf_status read_marks(wf_comm *comm, const wf_ipc_buffers *b)
{
    wf_ctx *ctx = comm->shared->ctx;
    for (int i = 0; i < b->size; i++) {
        uint64_t mark = 0;
        if (i == b->rank)
            continue;
        WF_TRY(ctx->k->to_host(ctx, &mark, wf_ipc_buffers_piece(b, b->rank, i), sizeof mark));
        WF_CHECK(mark == mark_of(comm, i, b->rank), WF_ERR_UNSUPPORTED,
                 "what one process writes into mapped device memory does not reach the other");
    }
    return WF_OK;
}

static wf_status make_block(wf_comm *comm, wf_ipc_buffers *b, wf_share *share)
{
    wf_ctx *ctx = comm->shared->ctx;
    void *own;
    WF_TRY(ctx->k->alloc(ctx, b->bytes, &own));
    b->of[b->rank] = own;
    return ctx->k->share(ctx, own, b->bytes, share);
}

static wf_status map_blocks(wf_comm *comm, wf_ipc_buffers *b, const offer *all)
{
    wf_ctx *ctx = comm->shared->ctx;
    for (int i = 0; i < b->size; i++) {
        void *theirs;
        if (i == b->rank)
            continue;
        WF_TRY(ctx->k->map(ctx, &all[b->member[i]].share, &theirs));
        b->of[i] = theirs;
    }
    return WF_OK;
}

/* The lowest rank that failed speaks. */
static wf_status agree_offers(wf_comm *comm, wf_status status, offer *all, char why[WF_FAILURE_TEXT])
{
    offer *mine = &all[comm->size];
    if (status != WF_OK)
        snprintf(mine->why, sizeof mine->why, "%.150s", wf_error_message());
    WF_TRY(wf_coll_allgather(comm, mine, sizeof *mine, all));
    for (int r = 0; r < comm->size && !why[0]; r++)
        if (all[r].why[0])
            snprintf(why, WF_FAILURE_TEXT, "rank %s: %.150s", WF_RANK(comm, r), all[r].why);
    return WF_OK;
}

static wf_status attempt(wf_comm *comm, wf_ipc_buffers *b, offer *all, char why[WF_FAILURE_TEXT])
{
    const bool part = b->size > 1;
    offer *mine = &all[comm->size];
    memset(mine, 0, sizeof *mine);
    WF_TRY(agree_offers(comm, part ? make_block(comm, b, &mine->share) : WF_OK, all, why));
    if (!why[0])
        WF_TRY(agree_offers(comm, part ? map_blocks(comm, b, all) : WF_OK, all, why));
    /* With some drivers and containers mapping works, and what is written never arrives. */
    if (!why[0])
        WF_TRY(agree_offers(comm, part ? write_marks(comm, b) : WF_OK, all, why));
    return why[0] ? WF_OK : agree_offers(comm, part ? read_marks(comm, b) : WF_OK, all, why);
}

static void unmap(wf_ctx *ctx, const wf_ipc_buffers *b)
{
    for (int i = 0; i < b->size; i++)
        if (i != b->rank && b->of[i])
            ctx->k->unmap(ctx, b->of[i]);
}

/* Frees the block after all other ranks have unmapped it, which they have when they are here too. */
static wf_status take_back(wf_comm *comm, wf_ipc_buffers *b)
{
    wf_ctx *ctx = comm->shared->ctx;
    unmap(ctx, b);
    WF_TRY(wf_coll_barrier(comm));
    if (b->size > 1 && b->of[b->rank])
        ctx->k->release(ctx, b->of[b->rank], b->bytes);
    memset(b->of, 0, sizeof b->of);
    return WF_OK;
}

wf_status wf_ipc_buffers_open(wf_comm *comm, wf_ipc_buffers *b, char why[WF_FAILURE_TEXT])
{
    const size_t bytes = (size_t)(comm->size + 1) * sizeof(offer);
    void *all = NULL;
    wf_errors *trial = wf_errors_new(); /* a trial that fails is no error of the program */
    if (!trial)
        return wf_error_code();
    sweep(comm->shared->ctx);
    wf_status status = wf_host_take(comm, bytes, &all);
    if (status == WF_OK) {
        wf_errors_swap(trial);
        status = attempt(comm, b, all, why);
        if (status == WF_OK && why[0])
            status = take_back(comm, b);
        if (status == WF_OK)
            wf_errors_swap(trial);
    }
    wf_host_give(comm, all, bytes);
    wf_errors_free(trial);
    return status;
}

/* The flag by which `user` says that it has unmapped the block of `owner`; both are places in the node. */
static wf_ring_flag *gone(const wf_comm *comm, const wf_ipc_buffers *b, int owner, int user)
{
    return wf_pairs_flag(&comm->engine->pairs, wf_engine_agreed(comm), b->member[owner], b->member[user]);
}

void wf_ipc_buffers_close(wf_comm *comm, wf_ipc_buffers *b)
{
    wf_ctx *ctx = comm->shared->ctx;
    leftover *l = calloc(1, sizeof *l);
    (void)ctx->k->stream_finish(ctx, NULL);
    unmap(ctx, b);
    for (int i = 0; i < b->size; i++)
        if (i != b->rank)
            atomic_store_explicit(gone(comm, b, i, b->rank), 1, memory_order_release);
    if (!l)
        return; /* the block goes with the process */
    *l = (leftover){.k = ctx->k, .data = b->of[b->rank], .bytes = b->bytes, .next = leftovers};
    for (int i = 0; i < b->size; i++)
        if (i != b->rank)
            l->gone[l->users++] = gone(comm, b, b->rank, i);
    leftovers = l;
    sweep(ctx);
}
