/* Opening, splitting and closing of communicators, and what those of one process share. Programs call it; everything
 * below is opened from here, in the order of the folders, and closed in reverse. */
#include "comm/background_author.h"
#include "comm/open_impl.h"

#include "core/config_author.h"
#include "core/log.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wf_status set_mesh(wf_comm *comm)
{
    int size[WF_AXES];
    for (int a = 0; a < WF_AXES; a++)
        size[a] = a == WF_AXIS_DATA ? comm->size : 1;
    return wf_mesh_init(&comm->mesh, comm, size);
}

/* Makes everything that depends on the number of ranks. */
static wf_status furnish_comm(wf_comm *comm)
{
    WF_TRY(wf_lists_open(comm));
    WF_TRY(wf_engine_open(comm, comm->ranks.node));
    return set_mesh(comm);
}

static wf_comm *comm_new(wf_comm_shared *shared, wf_comm *parent)
{
    wf_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->shared = shared;
    comm->references = 1;
    comm->parent = parent;
    shared->members++;
    if (!parent)
        return comm;
    parent->references++;
    comm->name = parent->name;
    comm->reducer = parent->reducer;
    /* The first communicator owns the context, so only those split from it count as its objects. */
    wf_live_add(shared->ctx, WF_LIVE_COMM, 1);
    return comm;
}

static void unreference(wf_comm *comm)
{
    /* Walks up the parents: the last child frees those that were closed before it. */
    while (comm && --comm->references == 0) {
        wf_comm *parent = comm->parent;
        free(comm);
        comm = parent;
    }
}

wf_comm *wf_comm_hold(wf_comm *comm)
{
    if (comm)
        comm->references++;
    return comm;
}

void wf_comm_let_go(wf_comm *comm)
{
    unreference(comm);
}

/* The context goes with the first communicator; where objects of it are alive, with the last. */
static wf_status leave_shared(wf_comm *comm)
{
    wf_comm_shared *shared = comm->shared;
    wf_status status = WF_OK;
    if (comm->parent)
        wf_live_add(shared->ctx, WF_LIVE_COMM, -1);
    else
        shared->ctx->world = NULL;
    shared->members--;
    if (!comm->parent || (!shared->ctx->world && shared->members == 0))
        status = wf_ctx_free(shared->ctx);
    if (shared->members == 0) {
        if (!shared->block.taken)
            free(shared->block.data);
        wf_background_free(shared->background);
        free(shared);
    }
    return comm->parent ? WF_OK : status;
}

static void silence_others(const wf_comm *comm)
{
    /* Information is the same on all ranks; warnings of any rank are shown. */
    if (comm->rank > 0 && wf_config_get()->log_level == WF_LOG_INFO)
        wf_log_set_level(WF_LOG_WARN);
}

/* The processors of a node are divided among its ranks, and a rank takes no more than it may use. */
static wf_status share_processors(wf_comm *comm, wf_ctx_opts opts)
{
    cpu_set_t mask;
    if (opts.threads > 0 || wf_config_get()->omp_threads > 0)
        return WF_OK;
    long share = sysconf(_SC_NPROCESSORS_ONLN) / comm->intra_size;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_COUNT(&mask) < share)
        share = CPU_COUNT(&mask);
    return wf_ctx_set_threads(comm->shared->ctx, share > 1 ? (int)share : 1);
}

bool wf_comm_shares_memory(const wf_comm *comm)
{
    return wf_engine_agreed(comm)->shared;
}

/* The devices of a node are dealt out to its ranks. */
static wf_status choose_device(wf_comm *comm)
{
    wf_ctx *ctx = comm->shared->ctx;
    return ctx->k->device_choose(ctx, comm->intra_rank % ctx->k->device_count());
}

/* What fails on one rank is told to all while they meet in wf_mpi_attach. */
static wf_status set_up(wf_comm *comm, const void *mpi_comm, const char *name, wf_ctx_opts opts)
{
    char text[3 * WF_RECORD_TEXT];
    wf_status status = wf_comm_choose(name, comm);
    if (status == WF_OK) {
        comm->shared->ctx = wf_ctx_make(opts);
        status = comm->shared->ctx ? WF_OK : wf_error_code();
    }
    WF_TRY(wf_mpi_attach(comm, mpi_comm, status));
    WF_TRY(furnish_comm(comm));
    WF_TRY(wf_comm_post_failure(comm, choose_device(comm)));
    WF_TRY(share_processors(comm, opts));
    silence_others(comm);
    wf_ctx_announce(comm->shared->ctx);
    WF_TRY(wf_comm_settle(comm));
    if (comm->rank == 0 && (!name || !strcmp(name, "auto")))
        wf_log_write(WF_LOG_INFO, "communicator: %s", wf_comm_choice(comm, text, sizeof text));
    return WF_OK;
}

static void disconnect(wf_comm *comm)
{
    /* First what may still send or wait, then what that needs. */
    wf_failure_settle(comm);
    wf_background_close(comm);
    wf_mesh_clear(&comm->mesh);
    wf_exchange_unshare(comm);
    wf_native_close(comm);
    wf_mpi_closed(comm);
    wf_control_close(comm);
    wf_transport_mpi_close(comm);
    wf_engine_close(comm);
    free(comm->ranks.node);
    free(comm->ranks.pid);
    free(comm->ranks.world);
    wf_lists_close(comm);
}

static wf_comm *open_first(const void *mpi_comm, const char *name, wf_ctx_opts opts)
{
    wf_comm_shared *shared = calloc(1, sizeof *shared);
    wf_comm *comm = shared ? comm_new(shared, NULL) : NULL;
    if (!comm) {
        free(shared);
        WF_FAIL_NULL(WF_ERR_MEMORY, "no memory for a communicator");
    }
    const wf_status status = set_up(comm, mpi_comm, name, opts);
    if (status == WF_OK) {
        wf_abort_hook_set((wf_abort_hook){.rank = comm->rank, .abort = wf_mpi_abort});
        shared->ctx->world = comm;
        /* Autograd is below comm and tells failures through this hook (core/autograd/backward.c). */
        shared->ctx->tell_failure = wf_comm_post_failure;
        shared->ctx->is_first = wf_mesh_is_first;
        return comm;
    }
    disconnect(comm);
    if (shared->ctx && wf_ctx_free(shared->ctx) != WF_OK)
        wf_log_write(WF_LOG_ERROR, "the context of a communicator that failed to open stays allocated");
    free(comm);
    free(shared);
    return wf_error_null();
}

wf_comm *wf_comm_open(int *argc, char ***argv, const char *name, wf_ctx_opts opts)
{
    WF_TRY_NULL(wf_mpi_start(argc, argv));
    return open_first(NULL, name, opts);
}

wf_comm *wf_comm_from_mpi(const void *mpi_comm, const char *name, wf_ctx_opts opts)
{
    WF_CHECK_NULL(mpi_comm, WF_ERR_ARGUMENT, "the pointer to the MPI communicator is NULL");
    WF_TRY_NULL(wf_mpi_start(NULL, NULL));
    return open_first(mpi_comm, name, opts);
}

static void drop_child(wf_comm *comm)
{
    disconnect(comm);
    comm->closed = true;
    (void)leave_shared(comm);
    unreference(comm);
}

static wf_status open_part(wf_comm *comm, wf_comm *child)
{
    WF_TRY(furnish_comm(child));
    return wf_native_follow(comm, child);
}

/* They meet by messages that see time-outs and failures, and then agree, so that MPI's collective cannot hang. Whatever
 * is wrong before, wf_guard_commit is called: the others may wait for this rank's answer there. */
static wf_status make_part(wf_comm *comm, const char *operation, const int *member, int members, wf_comm *child,
                           wf_status status)
{
    wf_call call = {.operation = WF_CALL_MEET, .parts = members};
    uint64_t id = child ? child->id : 0;
    int64_t *list = wf_malloc(comm->shared->ctx, (size_t)members * sizeof *list);
    if (status == WF_OK && !list)
        status = wf_error_code();
    for (int i = 0; list && i < members; i++)
        list[i] = member[i];
    call.part = list;
    if (status == WF_OK)
        status = wf_guard_meet(comm, operation);
    if (status == WF_OK)
        status = wf_engine_run(comm, &call, NULL, NULL);
    free(list);
    WF_TRY(wf_guard_commit(comm, operation, member, members, status, &id));
    child->id = id;
    WF_TRY(wf_mpi_part(comm, member, child));
    return open_part(comm, child);
}

/* nested: works inside calls of comm. */
static wf_comm *part_of(wf_comm *comm, const char *operation, const int *member, int members, bool nested)
{
    wf_comm *child = comm_new(comm->shared, comm);
    comm->call.parting = true; /* a failure in a later collective is none of this call */
    wf_status status = wf_comm_alive(comm);
    if (status == WF_OK)
        status = child ? wf_mpi_prepare(comm, member, members, child)
                       : WF_RAISE(WF_ERR_MEMORY, "no memory for a communicator");
    if (child)
        child->nested = nested;
    if (members > 1)
        status = wf_guard_end(comm, operation, make_part(comm, operation, member, members, child, status));
    else if (status == WF_OK)
        status = open_part(comm, child);
    comm->call.parting = false;
    if (status == WF_OK)
        return child;
    if (child)
        drop_child(child);
    return wf_error_null();
}

wf_comm *wf_comm_part(wf_comm *comm, const int *member, int members)
{
    return part_of(comm, "part", member, members, false);
}

wf_comm *wf_comm_again(wf_comm *comm)
{
    int *all = wf_malloc(comm->shared->ctx, (size_t)comm->size * sizeof *all);
    if (!all)
        return wf_error_null();
    for (int r = 0; r < comm->size; r++)
        all[r] = r;
    wf_comm *again = part_of(comm, "split", all, comm->size, true);
    free(all);
    return again;
}

/* What each rank says in a split. */
typedef struct color_key {
    int color, key;
} color_key;

/* Lists the ranks of this color by key, then rank, and returns how many there are. */
static int list_color(const color_key *all, int size, int color, int *member)
{
    int members = 0;
    for (int r = 0; r < size; r++) {
        int at = members;
        if (all[r].color != color)
            continue;
        for (members++; at > 0 && all[member[at - 1]].key > all[r].key; at--)
            member[at] = member[at - 1];
        member[at] = r;
    }
    return members;
}

static wf_status gather_colors(wf_comm *comm, color_key mine, color_key *all)
{
    WF_TRY(wf_comm_alive(comm));
    WF_CHECK(all, WF_ERR_MEMORY, "no memory for a communicator");
    return wf_allgather_bytes(comm, &mine, sizeof mine, all);
}

wf_comm *wf_comm_split(wf_comm *comm, int color, int key)
{
    wf_comm *child = NULL;
    WF_NEED_NULL(comm);
    color_key *all = malloc((size_t)comm->size * (sizeof *all + sizeof(int)));
    int *member = all ? (int *)(all + comm->size) : NULL;
    wf_status status = wf_guard_end(comm, "split", gather_colors(comm, (color_key){color, key}, all));
    if (status == WF_OK && color >= 0) {
        child = part_of(comm, "split", member, list_color(all, comm->size, color, member), false);
        /* The only rank of its part has told the others nothing yet. */
        status = child ? WF_OK : wf_guard_end(comm, "split", wf_error_code());
    } else if (status == WF_OK) {
        /* No part for this rank is no error, though NULL is returned. */
        wf_error_clear();
    }
    wf_comm_release(comm, all);
    return status == WF_OK ? child : wf_error_null();
}

wf_status wf_comm_close(wf_comm *comm)
{
    if (!comm)
        return WF_OK;
    if (!comm->parent)
        wf_abort_hook_set((wf_abort_hook){.rank = comm->rank, .abort = wf_mpi_abort});
    disconnect(comm);
    comm->closed = true;
    const wf_status status = leave_shared(comm);
    unreference(comm);
    return status;
}
