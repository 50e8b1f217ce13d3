/* A model that changes under its multi-node optimizer: a layer is added, or a parameter is frozen. A rank that has
 * changed its model tells the others in the sums of its next step, where they look anyway; so a step costs nothing
 * more, and a change of one rank alone is named at once. It sums no gradients and updates nothing. */
#include "core/captured_author.h"
#include "optim/multi_node_impl.h"

#include <string.h>

wf_status wf_change_name(wf_comm *comm, wf_optim *optim)
{
    const int64_t rank = wf_comm_rank(comm);
    int64_t first[2] = {optim->stale ? rank : INT64_MAX, optim->stale ? INT64_MAX : rank};
    WF_TRY(wf_agree_model(comm, optim, &optim->agreed));
    WF_TRY(wf_allreduce_i64(comm, first, 2, WF_MIN));
    optim->agreed = true;
    WF_FAIL(WF_ERR_COMM,
            "rank %s changed its model (a layer, or wf_param_set_trainable) since the last step, and rank %s did "
            "not; all ranks make the same change before the same step",
            WF_RANK(comm, (int)first[0]), WF_RANK(comm, (int)first[1]));
}

/* A hook of the program may look at the parameters of a bucket, of which some may be gone. */
static bool can_announce(const wf_buckets *all)
{
    return all->optim->stale && all->made && !all->opts.reduce;
}

static wf_status compare_values(wf_buckets *all, wf_comm *comm, bool *moved)
{
    bool equal = true;
    if (strcmp(wf_comm_name(comm), "dummy") == 0) /* which sums nothing, so its replicas part */
        return WF_OK;
    WF_TRY(wf_replicas_equal(all->mesh, comm, all->optim, &equal));
    *moved = !equal;
    return WF_OK;
}

wf_status wf_change_agree(wf_buckets *all, wf_comm *comm, bool *moved)
{
    wf_optim *optim = all->optim;
    const int size = wf_comm_size(comm);
    if (optim->stale)
        WF_TRY(wf_ctx_forbid_capture(optim->ctx, "take in a model that has changed", "capture the step anew"));
    if (size == 1 || (all->made && !optim->stale))
        return WF_OK;
    double ranks = size;
    if (can_announce(all))
        WF_TRY(wf_buckets_announce(all, &ranks));
    if (ranks < size)
        return wf_change_name(comm, optim);
    WF_TRY(wf_agree_model(comm, optim, &optim->agreed));
    WF_TRY(wf_buckets_open(all));
    return compare_values(all, comm, moved);
}
