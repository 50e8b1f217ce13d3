/* Compares models, options and optimizers over the ranks, broadcasts rank 0's values, and agrees on the order of
 * gradients. Called by wf_multi_node and at the first backward; a difference is an error on all ranks that names it. */
#include "layers/layer_author.h"
#include "optim/multi_node_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a description; longer ones are cut at the same place on all ranks. */
#define DESCRIPTION 768

const char *wf_axes_text(unsigned axes, char text[WF_AXES_TEXT])
{
    int at = 0;
    for (int a = 0; a < WF_AXES; a++)
        if (axes & 1u << a)
            at += snprintf(text + at, (size_t)(WF_AXES_TEXT - at), "%s%s", at ? " and " : "", wf_axis_name((wf_axis)a));
    return at ? text : "no axis";
}

/* A layer, or a parameter of it. */
typedef struct part {
    const wf_layer *layer;
    const wf_param *param;
} part;

/* All bytes are compared, so those behind the text are zero. */
static void describe(char text[DESCRIPTION], const wf_param *param)
{
    char shape[WF_SHAPE_TEXT], summed[WF_AXES_TEXT], sharded[WF_AXES_TEXT];
    const char *path = wf_param_path(param);
    memset(text, 0, DESCRIPTION);
    snprintf(text, DESCRIPTION, "%s %s %s%s, summed over %s, sharded over %s%s%s%s", path ? path : "?",
             wf_shape_text(param->global, shape), wf_dtype_name(param->dtype),
             param->order == WF_CHANNELS_LAST ? " channels-last" : "", wf_axes_text(param->axes, summed),
             wf_axes_text(param->shard_axes, sharded), param->trainable ? "" : ", not trained",
             param->tied ? ", tied to " : "", param->tied ? wf_param_path(param->tied) : "");
}

/* A rank whose list is shorter describes "nothing" for the rest. */
static void describe_part(char text[DESCRIPTION], const part *p)
{
    if (p && p->param) {
        describe(text, p->param);
        return;
    }
    memset(text, 0, DESCRIPTION);
    char segments[40];
    if (p)
        snprintf(segments, sizeof segments, ", recomputed in %d segments", p->layer->segments);
    if (p)
        snprintf(text, DESCRIPTION, "\"%s\" (%s)%s", wf_layer_path(p->layer),
                 *p->layer->options ? p->layer->options : p->layer->kind->name, p->layer->segments ? segments : "");
    else
        snprintf(text, DESCRIPTION, "nothing");
}

/* Every layer, followed by its parameters and the layers in it; into `parts` unless that is NULL. The order is that of
 * the layers, which does not depend on addresses. */
static int64_t list_parts(const wf_layer *layer, part *parts)
{
    int64_t n = 0;
    if (parts)
        parts[n] = (part){layer, NULL};
    n++;
    for (int i = 0; i < layer->n_params; i++, n++)
        if (parts)
            parts[n] = (part){layer, layer->params[i]};
    for (int i = 0; i < layer->n_children; i++)
        n += list_parts(layer->children[i], parts ? parts + n : NULL);
    return n;
}

/* The first rank whose number is not rank 0's, or -1. Collective. */
static wf_status first_other(wf_comm *comm, wf_ctx *ctx, uint64_t mine, int *rank)
{
    const int size = wf_comm_size(comm);
    uint64_t *all = wf_malloc(ctx, (size_t)size * sizeof *all);
    WF_NEED(all);
    const wf_status status = wf_allgather_bytes(comm, &mine, sizeof mine, all);
    *rank = -1;
    /* Downwards, so that the lowest rank that differs remains. */
    for (int r = size - 1; status == WF_OK && r > 0; r--)
        if (all[r] != all[0])
            *rank = r;
    free(all);
    return status;
}

/* Compares the lists, which are known to differ, entry by entry on all ranks until the first difference. Slow, and only
 * on the way to an error. */
static wf_status name_difference(wf_comm *comm, wf_ctx *ctx, int64_t n, const part *parts, int64_t most, bool *agreed)
{
    const int size = wf_comm_size(comm);
    char mine[DESCRIPTION], *all = wf_malloc(ctx, (size_t)size * DESCRIPTION);
    wf_status status = WF_OK;
    WF_NEED(all);
    for (int64_t i = 0; status == WF_OK && i < most; i++) {
        describe_part(mine, i < n ? &parts[i] : NULL);
        status = wf_allgather_bytes(comm, mine, DESCRIPTION, all);
        for (int r = 1; status == WF_OK && r < size; r++)
            if (memcmp(all, all + (size_t)r * DESCRIPTION, DESCRIPTION) != 0) {
                /* All ranks have the same texts now, so each raises this error by itself. */
                *agreed = true;
                status = WF_RAISE(WF_ERR_COMM,
                                  "the ranks have different models: %s on rank %s, %s on rank %s; make the same layers "
                                  "with the same options on all ranks, and train the same parameters",
                                  all, WF_RANK(comm, 0), all + (size_t)r * DESCRIPTION, WF_RANK(comm, r));
            }
    }
    free(all);
    return status;
}

static wf_status agree_parts(wf_comm *comm, wf_ctx *ctx, int64_t n, const part *parts, bool *agreed)
{
    char text[DESCRIPTION];
    int other = -1;
    /* One number per rank in the usual case that the models agree; texts are exchanged only to name a difference. */
    uint64_t hash = wf_hash_u64(0, (uint64_t)n);
    for (int64_t i = 0; i < n; i++) {
        describe_part(text, &parts[i]);
        hash = wf_hash_text(hash, text);
    }
    WF_TRY(first_other(comm, ctx, hash, &other));
    if (other < 0)
        return WF_OK;
    int64_t most = n;
    /* All ranks walk as far as the longest list, in step, since each entry is a collective. */
    WF_TRY(wf_allreduce_i64(comm, &most, 1, WF_MAX));
    return name_difference(comm, ctx, n, parts, most, agreed);
}

/* Models must be equal before anything is summed: a bucket is a range of numbers without names. */
wf_status wf_agree_model(wf_comm *comm, wf_optim *optim, bool *agreed)
{
    const int64_t n = list_parts(optim->model, NULL);
    part *parts = wf_malloc(optim->ctx, (size_t)n * sizeof *parts);
    WF_NEED(parts);
    list_parts(optim->model, parts);
    const wf_status status = agree_parts(comm, optim->ctx, n, parts, agreed);
    free(parts);
    return status;
}

/* Local: options that exclude each other are wrong on every rank that gives them. */
wf_status wf_check_opts(const wf_optim *optim, const wf_multi_node_opts *opts)
{
    const int64_t least = opts->bucket_bytes < opts->first_bucket_bytes ? opts->bucket_bytes : opts->first_bucket_bytes;
    WF_CHECK(least >= 0, WF_ERR_ARGUMENT, "buckets of %lld bytes; the size must be 0 (default) or more",
             (long long)least);
    WF_CHECK(opts->grad_dtype == WF_F32 || opts->grad_dtype == WF_BF16 || opts->grad_dtype == WF_F16, WF_ERR_ARGUMENT,
             "gradients in flight as %s; they go as f32 (their own type), bf16 or f16",
             wf_dtype_name(opts->grad_dtype));
    WF_CHECK(opts->grad_dtype == WF_F32 || wf_ctx_dtype(optim->ctx) == WF_F32, WF_ERR_ARGUMENT,
             "gradients of type %s in flight as %s; only f32 is narrowed", wf_dtype_name(wf_ctx_dtype(optim->ctx)),
             wf_dtype_name(opts->grad_dtype));
    WF_CHECK(!opts->reduce || (opts->grad_dtype == WF_F32 && !opts->shard_optimizer), WF_ERR_ARGUMENT,
             "reduce takes the place of the sum, so it goes neither with grad_dtype %s nor with shard_optimizer",
             wf_dtype_name(opts->grad_dtype));
    WF_CHECK(!opts->double_buffering || (opts->grad_dtype != WF_F16 && !opts->shard_optimizer), WF_ERR_ARGUMENT,
             "double_buffering goes neither with shard_optimizer nor with grad_dtype f16, whose overflow would be seen "
             "a step "
             "late");
    return WF_OK;
}

wf_status wf_agree_opts(wf_comm *comm, wf_ctx *ctx, const wf_multi_node_opts *opts, bool *agreed)
{
    /* Types of computation are not options, but sums of f16 and f32 would not fit either. */
    uint64_t hash = wf_hash_u64(wf_hash_u64(0, (uint64_t)opts->bucket_bytes), (uint64_t)wf_ctx_compute(ctx));
    int other = -1;
    hash = wf_hash_u64(wf_hash_u64(hash, (uint64_t)opts->first_bucket_bytes), (uint64_t)opts->grad_dtype);
    hash = wf_hash_u64(wf_hash_u64(hash, opts->shard_optimizer), opts->reduce != NULL);
    hash = wf_hash_u64(wf_hash_u64(hash, opts->double_buffering), (uint64_t)opts->compare_every);
    WF_TRY(first_other(comm, ctx, hash, &other));
    *agreed = other >= 0;
    WF_CHECK(other < 0, WF_ERR_COMM,
             "rank %s has other bucket sizes, another grad_dtype, shard_optimizer, double_buffering, compare_every, "
             "reduce or "
             "compute type than rank %s",
             WF_RANK(comm, other), WF_RANK(comm, 0));
    return WF_OK;
}

/* Options that agree in nine digits are taken as equal. */
static void describe_optim(char text[DESCRIPTION], const wf_optim *optim)
{
    const wf_optim_hyper *h = &optim->hyper;
    const wf_schedule_opts *s = &optim->schedule;
    memset(text, 0, DESCRIPTION);
    const int used =
        snprintf(text, DESCRIPTION,
                 "%s%s of lr %.9g, momentum %.9g%s, betas %.9g and %.9g, eps %.9g, alpha %.9g, weight decay "
                 "%.9g, clipped to norm %.9g and value %.9g, ",
                 optim->rule->name, optim->note, h->lr, h->momentum, h->nesterov != 0 ? " (Nesterov)" : "", h->beta1,
                 h->beta2, h->eps, h->alpha, h->decay, optim->clip_norm, h->clip_value);
    snprintf(text + used, (size_t)(DESCRIPTION - used),
             "schedule %d with warmup %lld, gamma %.9g, every %lld, total %lld, power %.9g, end %.9g, scale %.9g, "
             "after %lld steps",
             (int)s->kind, (long long)s->warmup, s->gamma, (long long)s->every, (long long)s->total, s->power, s->end,
             s->scale, (long long)optim->steps);
}

wf_status wf_agree_optim(wf_comm *comm, const wf_optim *optim, bool *agreed)
{
    const int size = wf_comm_size(comm);
    char mine[DESCRIPTION], *all = wf_malloc(optim->ctx, (size_t)size * DESCRIPTION);
    WF_NEED(all);
    describe_optim(mine, optim);
    wf_status status = wf_allgather_bytes(comm, mine, DESCRIPTION, all);
    for (int r = 1; status == WF_OK && r < size; r++)
        if (memcmp(all, all + (size_t)r * DESCRIPTION, DESCRIPTION) != 0) {
            *agreed = true;
            status = WF_RAISE(WF_ERR_COMM, "the ranks have different optimizers: on rank %s %s; on rank %s %s",
                              WF_RANK(comm, 0), all, WF_RANK(comm, r), all + (size_t)r * DESCRIPTION);
        }
    free(all);
    return status;
}

/* The first rank that differs is named with its groups next to rank 0's. */
static wf_status name_groups(wf_comm *world, const wf_optim *optim, int other)
{
    char mine[DESCRIPTION] = {0}, *all = wf_malloc(optim->ctx, (size_t)wf_comm_size(world) * DESCRIPTION);
    WF_NEED(all);
    wf_groups_text(optim, mine, DESCRIPTION);
    wf_status status = wf_allgather_bytes(world, mine, DESCRIPTION, all);
    if (status == WF_OK)
        status = WF_RAISE(
            WF_ERR_COMM, "the ranks have different groups of parameters (wf_optim_group): on rank %s %s; on rank %s %s",
            WF_RANK(world, 0), all, WF_RANK(world, other), all + (size_t)other * DESCRIPTION);
    free(all);
    return status;
}

wf_status wf_agree_groups(wf_comm *world, const wf_optim *optim, bool *agreed)
{
    int other = -1;
    WF_TRY(first_other(world, optim->ctx, wf_groups_hash(optim), &other));
    if (other >= 0) {
        *agreed = true;
        return name_groups(world, optim, other);
    }
    /* A group may match on one stage of a pipeline and on no other: found anywhere is found. */
    for (int g = 0; g < optim->n_groups; g++) {
        int64_t found = optim->group[g].found;
        WF_TRY(wf_allreduce_i64(world, &found, 1, WF_MAX));
        *agreed = found == 0;
        WF_CHECK(found, WF_ERR_ARGUMENT, "no parameter on any stage matches the pattern \"%s\" of wf_optim_group",
                 optim->group[g].pattern);
    }
    return WF_OK;
}

/* After this all replicas have rank 0's values, or those of the first rank that holds the part. */
wf_status wf_agree_values(const wf_mesh *mesh, wf_optim *optim)
{
    const unsigned axes = wf_grad_axes(mesh);
    wf_param *const *params;
    int64_t n;
    WF_TRY(wf_layer_params(optim->model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_tensor *value = wf_param_value(params[i]);
        /* Ranks that hold the same part of a parameter, which are not all ranks where it is sharded. */
        wf_comm *same = wf_mesh_comm(mesh, axes & ~params[i]->shard_axes);
        WF_NEED(value);
        WF_NEED(same);
        WF_TRY(wf_bcast(same, value, 0));
        /* Packed and narrow copies are made from the value again. */
        wf_tensor_touch(value);
    }
    return WF_OK;
}

/* Once per training run, so a search will do. */
static int64_t position(const wf_optim *optim, const wf_param *param)
{
    for (int64_t i = 0; i < optim->n; i++)
        if (optim->target[i] == param)
            return i;
    return 0;
}

/* The order decides which gradients share a bucket, so all ranks must use the same; it is made of rank 0's first
 * backward. */
wf_status wf_agree_order(wf_comm *comm, wf_optim *optim, wf_param **order, bool *agreed)
{
    const uint64_t hash = wf_scale_hash(optim, wf_hash_u64(0, (uint64_t)optim->n));
    int other = -1;
    WF_TRY(first_other(comm, optim->ctx, hash, &other));
    *agreed = other >= 0;
    WF_CHECK(other < 0, WF_ERR_COMM, "rank %s scales its loss otherwise than rank %s (wf_optim_scale_loss)",
             WF_RANK(comm, other), WF_RANK(comm, 0));
    const size_t bytes = (size_t)optim->n * sizeof(int64_t);
    /* Places in the optimizer's list mean the same parameter on all ranks, as models were compared before. */
    int64_t *index = wf_malloc(optim->ctx, bytes);
    WF_NEED(index);
    for (int64_t i = 0; i < optim->n; i++)
        index[i] = position(optim, order[i]);
    /* Rank 0's order: that of completion may differ between ranks whose losses took another way through the model. */
    const wf_status status = wf_bcast_bytes(comm, index, bytes, 0);
    for (int64_t i = 0; status == WF_OK && i < optim->n; i++)
        order[i] = optim->target[index[i]];
    free(index);
    return status;
}
