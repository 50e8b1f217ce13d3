/* Connects ranks by the native transport: checks that every rank has a GPU of its own, and brings the id of the
 * connection to all. */
#include "comm/collective/collective_impl.h"

#include "core/config_author.h"

#include <stdio.h>
#include <string.h>

typedef struct gpu {
    char identity[WF_DEVICE_IDENTITY], unfit[WF_NATIVE_WHY]; /* unfit: why the transport cannot be used there */
    bool shared;                                             /* this rank's transport takes other ranks on its GPU */
} gpu;

wf_status wf_native_fits(wf_comm *comm, char why[WF_WHY])
{
    wf_ctx *ctx = comm->shared->ctx;
    gpu mine = {.shared = wf_transport_native.name && wf_transport_native.shares_gpu()};
    const size_t bytes = (size_t)comm->size * sizeof mine;
    void *memory;
    wf_status status;
    why[0] = 0;
    if (ctx->k->host)
        snprintf(why, WF_WHY, "device \"%s\" is no GPU, and NCCL needs one", wf_ctx_device(ctx));
    else if (!wf_transport_native.name)
        snprintf(why, WF_WHY, "this build has no NCCL");
    if (why[0])
        return WF_OK;
    /* All ranks must come to the same answer, so every rank looks at the identities of all GPUs. */
    wf_transport_native.find_unfit(mine.unfit);
    WF_TRY(wf_comm_post_failure(comm, ctx->k->device_identity(ctx, mine.identity)));
    WF_TRY(wf_host_take(comm, bytes, &memory));
    const gpu *all = memory;
    WF_TRY_OUT(wf_allgather_bytes(comm, &mine, sizeof mine, memory));
    for (int r = 0; r < comm->size && !why[0]; r++)
        if (all[r].unfit[0])
            snprintf(why, WF_WHY, "rank %s has %.*s", WF_RANK(comm, r), WF_NATIVE_WHY, all[r].unfit);
    for (int r = 1; r < comm->size; r++)
        for (int q = 0; q < r && !why[0]; q++)
            /* NCCL itself would fail with a message that names neither rank. */
            if (!(all[q].shared && all[r].shared) && !strncmp(all[q].identity, all[r].identity, WF_DEVICE_IDENTITY))
                snprintf(why, WF_WHY, "ranks %s and %s share GPU %.60s, and NCCL takes one rank a GPU",
                         WF_RANK(comm, q), WF_RANK(comm, r), all[r].identity);
out:
    wf_host_give(comm, memory, bytes);
    return status;
}

wf_status wf_native_open(wf_comm *comm)
{
    wf_native_id id = {0};
    if (comm->size == 1 && !wf_config_get()->nccl_one_rank)
        return WF_OK;
    WF_TRY(wf_comm_post_failure(comm, wf_transport_native.prepare(comm, &id)));
    WF_TRY(wf_bcast_bytes(comm, &id, sizeof id, 0));
    WF_TRY(wf_barrier(comm)); /* learns here of a rank that failed before */
    WF_TRY(wf_native_connect(comm, &id));
    wf_native_watch(comm);
    wf_engine_agreed(comm)->native = true;
    return WF_OK;
}

wf_status wf_native_follow(const wf_comm *comm, wf_comm *part)
{
    return comm->native ? wf_native_open(part) : WF_OK;
}

wf_status wf_comm_connect_native(wf_comm *comm)
{
    char why[WF_WHY];
    if (comm->native)
        return WF_OK;
    WF_TRY(wf_native_fits(comm, why));
    if (why[0])
        return wf_comm_post_failure(comm, WF_RAISE(WF_ERR_UNSUPPORTED,
                                                   "communicator \"%s\": %s; \"auto\" chooses one that works here",
                                                   comm->name, why));
    return wf_native_open(comm);
}
