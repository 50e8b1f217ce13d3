/* An update that is queued before the host knows the trailer (buckets.c), so that the device need not wait for the host
 * between the sums and the update.
 *
 *     stream | backward | sums | copy of the trailer | verdict | loss scale, clipping | update |
 *     host   | ... queues all of these ............................................. | waits for the copy | next step
 *
 * The verdict stops the update on the device for each reason for which the host returns an error afterwards, and also
 * where the sums are not those of all ranks: a collective that was given up since a rank failed. Ranks have the same
 * sums, so all stop or none does. The host returns the error of this step, before it counts the step.
 *
 * If ranks wait for each other between the sums and the end of the update, the host reads the trailer first: a rank
 * whose model has changed is not there. */
#include "core/captured_author.h"
#include "optim/multi_node_impl.h"

#include <string.h>

/* Loss scale and clipping need sums over ranks where a rank has only a part of the gradients. */
static bool has_whole_norm(const wf_buckets *all)
{
    const bool needed = all->optim->scales || all->optim->clip_norm > 0;
    for (int64_t r = 0; needed && r < all->n_runs; r++)
        if (all->run[r].axes != all->axes || all->run[r].sharded != 0)
            return false;
    return true;
}

bool wf_queue_allowed(const wf_buckets *all)
{
    const wf_optim *optim = all->optim;
    const wf_comm *comm = wf_mesh_comm(all->mesh, all->axes);
    /* An optimizer from outside may read numbers or sum over ranks; "dummy" sums nothing. */
    const bool local = !optim->shards_state && !optim->rule->update && has_whole_norm(all) &&
                       wf_mesh_size(all->mesh, WF_AXIS_STAGE) == 1;
    return !optim->ctx->k->host && !wf_ctx_capturing(optim->ctx) && !all->opts.double_buffering && local &&
           wf_comm_size(comm) > 1 && strcmp(wf_comm_name(comm), "dummy") != 0;
}

wf_status wf_queue_verdict(const wf_buckets *all, wf_optim_hyper *hyper)
{
    const wf_tensor *flat = all->grads->flat;
    const size_t at = (size_t)all->grads->offset[all->grads->n] * wf_dtype_size(flat->dtype);
    const int ranks = wf_comm_size(wf_mesh_comm(all->mesh, all->axes));
    wf_ctx *ctx = all->optim->ctx;
    return ctx->k->step_verdict(ctx, (const char *)flat->data + at, flat->dtype, ranks, hyper);
}

wf_status wf_queue_copy(wf_buckets *all, const void *from, size_t bytes)
{
    wf_ctx *ctx = all->optim->ctx;
    if (!all->copied)
        WF_TRY(wf_pool_take_host(ctx, sizeof all->trailer, &all->copied));
    if (!all->copy)
        WF_TRY(ctx->k->event_new(ctx, &all->copy));
    WF_TRY(ctx->k->to_host_begin(ctx, all->copied, from, bytes, NULL));
    all->copying = true;
    return ctx->k->event_record(ctx, all->copy, NULL);
}

wf_status wf_queue_wait(wf_buckets *all, const void **copied)
{
    wf_ctx *ctx = all->optim->ctx;
    /* Asks for ranks that failed, as each read by the host does (wf_ctx_read). */
    if (ctx->await)
        WF_TRY(ctx->await(ctx->comm));
    WF_TRY(wf_ctx_wait_event(ctx, all->copy, "copied the sums of a step"));
    all->copying = false;
    *copied = all->copied;
    return WF_OK;
}

void wf_queue_free(wf_buckets *all)
{
    wf_ctx *ctx = all->optim->ctx;
    if (all->copying && wf_ctx_wait_event(ctx, all->copy, "copied the sums of a step") != WF_OK)
        wf_pool_hold(ctx, all->copied);
    ctx->k->event_free(ctx, all->copy);
    wf_pool_give_host(ctx, all->copied, sizeof all->trailer);
}
