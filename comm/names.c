/* The names of communicators: which reducer each stands for, what it needs, and what "auto" chooses after a look at
 * devices, nodes and a short trial. */
#include "comm/open_impl.h"

#include <stdio.h>
#include <string.h>

#define PROBE_BYTES  ((size_t)1 << 20)
#define PROBE_ROUNDS 3

static const char *list_names(char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "auto");
    for (int i = 0; wf_reducer_at(i) && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, ", %s", wf_reducer_at(i)->name);
    return text;
}

static void take_kind(wf_comm *comm, const char *name)
{
    comm->reducer = wf_reducer_find(name);
    comm->name = comm->reducer ? comm->reducer->name : "auto";
}

static bool named(const wf_comm *comm, const char *name)
{
    return !strcmp(comm->name, name);
}

wf_status wf_comm_choose(const char *name, wf_comm *comm)
{
    char known[400];
    comm->name = "auto";
    if (!name || !strcmp(name, "auto"))
        return WF_OK;
    take_kind(comm, name);
    WF_CHECK(comm->reducer, WF_ERR_ARGUMENT, "there is no communicator \"%.40s\"; there are %s", name,
             list_names(known, sizeof known));
    WF_CHECK(
        comm->reducer->build || wf_transport_native.name, WF_ERR_UNSUPPORTED,
        "communicator \"%s\" needs NCCL and a GPU for every rank, and this build has no NCCL; \"auto\" chooses one "
        "that works here",
        name);
    return WF_OK;
}

static wf_status refuse(const wf_comm *comm)
{
    WF_CHECK(!named(comm, "single_node") || comm->inter_size == 1, WF_ERR_ARGUMENT,
             "communicator \"single_node\" is for one node, and %d ranks are on %d nodes; take \"hierarchical\" or "
             "\"two_dimensional\"",
             comm->size, comm->inter_size);
    WF_CHECK(!named(comm, "non_cuda_aware") || !comm->shared->ctx->k->host, WF_ERR_UNSUPPORTED,
             "communicator \"non_cuda_aware\" brings a GPU's gradients through host memory, and device \"%s\" has them "
             "there; take \"hierarchical\"",
             wf_ctx_device(comm->shared->ctx));
    return WF_OK;
}

static wf_status time_of(wf_comm *comm, const char *name, const wf_call *sum, double *best)
{
    const wf_reducer *reducer = wf_reducer_find(name);
    *best = 1e9;
    for (int i = 0; i < PROBE_ROUNDS; i++) {
        const int64_t start = wf_now_ns();
        WF_TRY(wf_reducer_sum_by(comm, reducer, sum));
        const double ms = (double)(wf_now_ns() - start) * 1e-6;
        /* The best of a few rounds: the first one also makes schedules and touches memory. */
        *best = ms < *best ? ms : *best;
    }
    return WF_OK;
}

/* Both ways give the same bits, so nothing but time hangs on which one is found to be faster. */
static wf_status probe(wf_comm *comm)
{
    const int64_t offset[2] = {0, (int64_t)(PROBE_BYTES / sizeof(float))};
    wf_ctx *ctx = comm->shared->ctx;
    wf_call sum = {.dtype = WF_F32, .parts = 1, .part = offset};
    wf_status status;
    WF_TRY(wf_pool_take(ctx, PROBE_BYTES, &sum.out));
    const wf_array zeros = {.data = sum.out, .dtype = WF_F32, .shape = WF_SHAPE(offset[1])};
    WF_TRY_OUT(ctx->k->fill(ctx, &zeros, 0));
    WF_TRY_OUT(time_of(comm, "single_node", &sum, &comm->pick.probe_ms[0]));
    WF_TRY_OUT(time_of(comm, "flat", &sum, &comm->pick.probe_ms[1]));
    /* The slowest rank decides, and all ranks choose the same. */
    WF_TRY_OUT(wf_allreduce_f64(comm, comm->pick.probe_ms, 2, WF_MAX));
out:
    wf_pool_give(ctx, sum.out, PROBE_BYTES);
    return status;
}

static wf_status pick_in_node(wf_comm *comm)
{
    take_kind(comm, "single_node");
    WF_TRY(wf_reducer_connect(comm));
    if (wf_engine_agreed(comm)->shared)
        WF_TRY(probe(comm));
    if (wf_engine_agreed(comm)->shared && comm->pick.probe_ms[0] < comm->pick.probe_ms[1])
        return WF_OK;
    take_kind(comm, "flat");
    /* Memory that will not be used is given back. */
    wf_engine_unshare(comm);
    return WF_OK;
}

static wf_status pick_between_nodes(wf_comm *comm)
{
    int64_t ranks[2] = {comm->intra_size, -comm->intra_size}; /* of the largest node, and minus those of the smallest */
    WF_TRY(wf_allreduce_i64(comm, ranks, 2, WF_MAX));
    /* Shards need as many ranks as the smallest node has; with one rank in some node there is nothing to shard. */
    const char *name = ranks[0] > 1 ? "hierarchical" : "flat";
    if (ranks[1] < -1)
        name = "two_dimensional";
    take_kind(comm, name);
    return wf_reducer_connect(comm);
}

static wf_status pick_for_gpus(wf_comm *comm)
{
    WF_TRY(wf_native_fits(comm, comm->pick.no_native));
    if (comm->pick.no_native[0])
        return comm->inter_size == 1 ? pick_in_node(comm) : pick_between_nodes(comm);
    take_kind(comm, "pure_nccl");
    return wf_native_open(comm);
}

wf_status wf_comm_settle(wf_comm *comm)
{
    WF_TRY(refuse(comm));
    if (strcmp(comm->name, "auto") != 0)
        WF_TRY(wf_reducer_connect(comm));
    else if (comm->size == 1)
        take_kind(comm, "flat");
    else if (!comm->shared->ctx->k->host)
        WF_TRY(pick_for_gpus(comm));
    else if (comm->inter_size == 1)
        WF_TRY(pick_in_node(comm));
    else
        WF_TRY(pick_between_nodes(comm));
    /* The trial runs are no traffic of the program. */
    comm->traffic = (wf_traffic){0};
    comm->sequence = 0;
    return WF_OK;
}

static const char *ways_of(const wf_comm *comm)
{
    if (wf_agreed_alone(wf_engine_agreed(comm)))
        return "self";
    if (comm->reducer && !comm->reducer->build)
        return "nccl";
    if (!wf_engine_agreed(comm)->shared)
        return "mpi";
    return comm->inter_size == 1 ? "shm" : "shm and mpi";
}

static const char *what_it_does(const wf_comm *comm, char text[WF_RECORD_TEXT])
{
    const char *does = comm->size == 1 ? "one rank: nothing to send" : comm->reducer ? comm->reducer->does : "";
    snprintf(text, WF_RECORD_TEXT, "%s", does);
    if (comm->pick.probe_ms[1] > 0)
        snprintf(text, WF_RECORD_TEXT, "%.90s; 1 MiB takes %.2f ms in shared memory, %.2f ms by messages", does,
                 comm->pick.probe_ms[0], comm->pick.probe_ms[1]);
    if (comm->pick.no_native[0]) {
        const size_t used = strlen(text);
        snprintf(text + used, WF_RECORD_TEXT - used, "; no NCCL: %.150s", comm->pick.no_native);
    }
    return text;
}

const char *wf_comm_choice(const wf_comm *comm, char *text, size_t size)
{
    char does[WF_RECORD_TEXT];
    snprintf(text, size, "%d rank%s on %d node%s, device %s, %d thread%s a rank: %s x %s (%s)", comm->size,
             comm->size == 1 ? "" : "s", comm->inter_size, comm->inter_size == 1 ? "" : "s",
             wf_ctx_device(comm->shared->ctx), wf_ctx_threads(comm->shared->ctx),
             wf_ctx_threads(comm->shared->ctx) == 1 ? "" : "s", ways_of(comm), comm->name, what_it_does(comm, does));
    return text;
}
