/* Groups of parameters by patterns of their paths: a factor of the learning rate and a weight decay of their own. The
 * numbers are found when an optimizer binds its parameters, lie in their slots, and go to the kernels with each update.
 */
#include "core/random_author.h"
#include "layers/layer_author.h"
#include "optim/optim_impl.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A pattern that begins with * and / also has what lies at the top of the model. */
static bool in_group(const wf_optim *optim, const wf_optim_group_entry *group, const wf_param *param)
{
    char path[1024];
    if (group->opts.vectors && param->global.rank > 1)
        return false;
    snprintf(path, sizeof path, "/%s", wf_layer_param_name(optim->model, param));
    return fnmatch(group->pattern, path + 1, 0) == 0 || fnmatch(group->pattern, path, 0) == 0;
}

/* Later groups win: each replaces what it says, and keeps what it leaves out. */
void wf_groups_apply(const wf_optim *optim, const wf_param *param, wf_optim_slot *slot)
{
    slot->grouped = false;
    slot->lr_scale = 1;
    slot->decay = optim->hyper.decay;
    for (int g = 0; g < optim->n_groups; g++) {
        const wf_optim_group_entry *group = &optim->group[g];
        if (!in_group(optim, group, param))
            continue;
        slot->grouped = true;
        slot->lr_scale = wf_opt(group->opts.lr_scale, slot->lr_scale);
        slot->decay = wf_opt(group->opts.weight_decay, slot->decay);
    }
}

static wf_status check_number(const char *pattern, const char *field, double value)
{
    const double meant = wf_opt(value, 0);
    WF_CHECK(meant >= 0 && isfinite(meant), WF_ERR_ARGUMENT, "%s of the group \"%s\" is %g; it must be 0 or more",
             field, pattern, meant);
    return WF_OK;
}

/* Ranks compare their groups when wf_multi_node is made; one that is made later would differ unseen. */
static wf_status check_group(const wf_optim *optim, const char *pattern, const wf_group_opts *opts)
{
    WF_CHECK(!optim->distributed, WF_ERR_STATE,
             "the group \"%s\" of a multi-node optimizer; make groups before wf_multi_node, which compares them",
             pattern);
    WF_CHECK(*pattern && strlen(pattern) < WF_GROUP_PATTERN, WF_ERR_ARGUMENT,
             "a pattern of a group of %zu bytes; it must have 1 to %d", strlen(pattern), WF_GROUP_PATTERN - 1);
    WF_TRY(check_number(pattern, "lr_scale", opts->lr_scale));
    WF_TRY(check_number(pattern, "weight_decay", opts->weight_decay));
    WF_CHECK(opts->lr_scale != 0 || opts->weight_decay != 0, WF_ERR_ARGUMENT,
             "the group \"%s\" changes nothing; give lr_scale or weight_decay (WF_ZERO for 0)", pattern);
    return WF_OK;
}

/* Stages of a pipeline have a part of the model each: the pattern may be for another one. */
static wf_status find_params(const wf_optim *optim, wf_optim_group_entry *group)
{
    wf_param *const *all;
    int64_t n;
    WF_TRY(wf_layer_params(optim->model, &n, &all));
    for (int64_t i = 0; i < n && !group->found; i++)
        group->found = in_group(optim, group, all[i]);
    WF_CHECK(group->found || wf_layer_part(optim->model) > 0, WF_ERR_ARGUMENT,
             "no parameter%s matches the pattern \"%s\" of wf_optim_group; the first of %lld is \"%s\"",
             group->opts.vectors ? " that is a vector" : "", group->pattern, (long long)n,
             n > 0 ? wf_layer_param_name(optim->model, all[0]) : "");
    return WF_OK;
}

wf_status wf_optim_group(wf_optim *optim, const char *pattern, wf_group_opts opts)
{
    WF_NEED(optim);
    WF_NEED(pattern);
    WF_TRY(check_group(optim, pattern, &opts));
    /* The pattern is copied: the caller's text may go. */
    wf_optim_group_entry entry = {.opts = opts};
    memcpy(entry.pattern, pattern, strlen(pattern) + 1);
    WF_TRY(find_params(optim, &entry));
    wf_optim_group_entry *group = wf_realloc(optim->ctx, optim->group, (size_t)(optim->n_groups + 1) * sizeof *group);
    WF_NEED(group);
    optim->group = group;
    group[optim->n_groups++] = entry;
    optim->group_changes++;
    /* Parameters that are bound already; the others get their numbers when they are. */
    for (int64_t i = 0; optim->bound && i < optim->n; i++)
        wf_groups_apply(optim, optim->target[i], &optim->slot[optim->slot_of[i]]);
    return WF_OK;
}

/* By its bits: WF_ZERO and 0 mean different things. */
static uint64_t hash_number(uint64_t hash, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return wf_hash_u64(hash, bits);
}

/* What ranks and archives compare. */
uint64_t wf_groups_hash(const wf_optim *optim)
{
    uint64_t hash = wf_hash_u64(0, (uint64_t)optim->n_groups);
    for (int g = 0; g < optim->n_groups; g++) {
        const wf_optim_group_entry *group = &optim->group[g];
        hash = wf_hash_u64(wf_hash_text(hash, group->pattern), group->opts.vectors);
        hash = hash_number(hash_number(hash, group->opts.lr_scale), group->opts.weight_decay);
    }
    return hash;
}

static const char *number_text(char text[32], double value)
{
    snprintf(text, 32, "%g", wf_opt(value, 0));
    return value != 0 ? text : "kept";
}

void wf_groups_text(const wf_optim *optim, char *text, size_t bytes)
{
    size_t at = 0;
    snprintf(text, bytes, "none");
    for (int g = 0; g < optim->n_groups && at < bytes; g++) {
        const wf_optim_group_entry *group = &optim->group[g];
        char lr[32], decay[32];
        const int used = snprintf(text + at, bytes - at, "%s\"%s\"%s (lr_scale %s, weight_decay %s)", g ? ", " : "",
                                  group->pattern, group->opts.vectors ? " of vectors" : "",
                                  number_text(lr, group->opts.lr_scale), number_text(decay, group->opts.weight_decay));
        at += used > 0 ? (size_t)used : bytes;
    }
}

/* Archives without groups stay as they were. The pattern is told by its hash. */
wf_status wf_groups_archive(const wf_optim *optim, wf_archive *archive)
{
    const bool loading = wf_archive_loading(archive);
    /* Without its lowest bit, so that it is never negative in the file. */
    const int64_t own = (int64_t)(wf_groups_hash(optim) >> 1);
    int64_t hash = own, n = optim->n_groups;
    char text[512];
    /* An archive of before there were groups has none. */
    if (loading ? !wf_archive_has(archive, "groups") : n == 0)
        n = 0;
    else {
        WF_TRY(wf_archive_i64(archive, "groups", &n));
        WF_TRY(wf_archive_i64(archive, "groups_hash", &hash));
    }
    wf_groups_text(optim, text, sizeof text);
    WF_CHECK(n == optim->n_groups && hash == own, WF_ERR_FORMAT,
             "the archive was saved with other groups of parameters, %lld in number; those of this optimizer are %s; "
             "make the same calls of wf_optim_group in the same order",
             (long long)n, text);
    return WF_OK;
}
