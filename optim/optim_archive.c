/* Saves and loads the state of an optimizer by the paths of parameters. The archive of a sharded optimizer is that
 * of the serial one. */
#include "optim/optim_impl.h"

#include <string.h>

/* A copy is visited and checked before the optimizer has it. */
static wf_status visit_schedule(wf_optim *optim, wf_archive *archive)
{
    wf_schedule_opts s = optim->schedule;
    int64_t kind = s.kind;
    WF_TRY(wf_archive_enter(archive, "schedule"));
    WF_TRY(wf_archive_i64(archive, "kind", &kind));
    WF_TRY(wf_archive_i64(archive, "warmup", &s.warmup));
    WF_TRY(wf_archive_f64(archive, "gamma", &s.gamma));
    WF_TRY(wf_archive_i64(archive, "every", &s.every));
    WF_TRY(wf_archive_i64(archive, "total", &s.total));
    WF_TRY(wf_archive_f64(archive, "power", &s.power));
    WF_TRY(wf_archive_f64(archive, "end", &s.end));
    if (!wf_archive_loading(archive) || wf_archive_has(archive, "scale"))
        WF_TRY(wf_archive_f64(archive, "scale", &s.scale));
    else
        s.scale = 0; /* a file from before schedules scaled */
    WF_TRY(wf_archive_leave(archive));
    WF_CHECK(kind >= WF_SCHEDULE_CONSTANT && kind <= WF_SCHEDULE_RESTARTS, WF_ERR_FORMAT,
             "the archive holds schedule kind %lld, which is none", (long long)kind);
    s.kind = (wf_schedule_kind)kind;
    WF_TRY(wf_schedule_check(&s));
    optim->schedule = s;
    return WF_OK;
}

/* The optimizer's kind first: states of another kind have other meanings. */
static wf_status visit_scalars(wf_optim *optim, wf_archive *archive)
{
    const int64_t own = wf_optim_rule_number(optim->rule);
    int64_t kind = own, steps = optim->steps;
    double lr = optim->hyper.lr;
    WF_TRY(wf_archive_i64(archive, "kind", &kind));
    WF_CHECK(kind == own, WF_ERR_FORMAT, "the archive holds the state of %s, the optimizer is %s",
             wf_optim_rule_name(kind), optim->rule->name);
    WF_TRY(wf_archive_i64(archive, "steps", &steps));
    WF_TRY(wf_archive_f64(archive, "lr", &lr));
    WF_CHECK(steps >= 0 && lr >= 0, WF_ERR_FORMAT, "the archive holds step count %lld and learning rate %g",
             (long long)steps, lr);
    optim->steps = steps;
    optim->hyper.lr = lr;
    return WF_OK;
}

/* A state tensor has the same part of the global tensor as its parameter, so another partition finds its own part. */
static wf_status archive_tensor(const wf_param *param, wf_archive *archive, const char *name, wf_tensor *state)
{
    if (!param->shard_axes)
        return wf_archive_tensor(archive, name, state);
    return wf_archive_part(archive, name, state, (wf_archive_place){.global = param->global, .box = param->box});
}

/* Archives hold whole states: sharded ones are gathered, saved, and cut again. */
static wf_status visit_state(wf_optim *optim, wf_optim_slot *slot, const wf_param *param, int s, wf_archive *archive)
{
    const char *name = optim->rule->states[s];
    if (!optim->shards_state)
        return archive_tensor(param, archive, name, slot->state[s]);
    wf_tensor *whole = wf_slot_whole(optim, slot, param, s);
    wf_status status = archive_tensor(param, archive, name, whole);
    if (status == WF_OK && wf_archive_loading(archive))
        status = wf_slot_keep(optim, slot, s, whole);
    wf_tensor_free(whole);
    return status;
}

/* One group for each part of the path, as HDF5 has them. */
wf_status wf_optim_enter_path(wf_archive *archive, const char *path, int *depth)
{
    char name[256];
    *depth = 0;
    for (const char *at = path; at; (*depth)++) {
        const char *end = strchr(at, '/');
        const size_t length = end ? (size_t)(end - at) : strlen(at);
        WF_CHECK(length < sizeof name, WF_ERR_ARGUMENT, "a name in the path %s is longer than %zu bytes", path,
                 sizeof name - 1);
        memcpy(name, at, length);
        name[length] = '\0';
        WF_TRY(wf_archive_enter(archive, name));
        at = end ? end + 1 : NULL;
    }
    return WF_OK;
}

/* "conv1/W" lies in conv1, then in W. */
static wf_status visit_states(wf_optim *optim, int64_t i, wf_archive *archive)
{
    wf_optim_slot *slot = &optim->slot[optim->slot_of[i]];
    const char *const *names = optim->rule->states;
    int depth;
    WF_TRY(wf_optim_enter_path(archive, slot->path, &depth));
    for (int s = 0; s < WF_OPTIM_STATES && names[s]; s++)
        WF_TRY(visit_state(optim, slot, optim->target[i], s, archive));
    while (depth-- > 0)
        WF_TRY(wf_archive_leave(archive));
    return WF_OK;
}

wf_status wf_optim_states_archive(wf_optim *optim, wf_archive *archive)
{
    WF_TRY(wf_archive_enter(archive, "state"));
    for (int64_t i = 0; i < optim->n; i++)
        WF_TRY(visit_states(optim, i, archive));
    return wf_archive_leave(archive);
}

static wf_status visit(wf_optim *optim, wf_archive *archive)
{
    WF_NEED(archive);
    /* Sums that are on their way are on no rank yet. */
    WF_CHECK(!optim->distributed || !optim->distributed->pending(optim), WF_ERR_STATE,
             "an archive of an optimizer whose gradients are in flight (double_buffering); call wf_optim_flush before");
    /* Slots exist from the first step on; an optimizer that loads has none yet. */
    WF_TRY(wf_optim_bind(optim));
    WF_TRY(visit_scalars(optim, archive));
    WF_TRY(visit_schedule(optim, archive));
    WF_TRY(wf_groups_archive(optim, archive));
    WF_TRY(wf_scale_archive(optim, archive));
    WF_TRY(wf_optim_states_archive(optim, archive));
    return wf_accumulated_archive(optim, archive);
}

wf_status wf_optim_visit(void *optim, wf_archive *archive)
{
    return wf_optim_archive(optim, archive);
}

/* Collective if states are sharded. */
wf_status wf_optim_archive(wf_optim *optim, wf_archive *archive)
{
    WF_NEED(optim);
    optim->agreed = false;
    const wf_status status = visit(optim, archive);
    return status != WF_OK && optim->shards_state ? optim->distributed->failed(optim, status) : status;
}
