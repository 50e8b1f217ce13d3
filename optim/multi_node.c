/* The multi-node optimizer: makes a local one collective, sums gradients, loss and weights in every step, and
 * divides by the global number of samples. A failure on one rank before its sums are over stops the update of all. */
#include "optim/multi_node.h"

#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "core/captured_author.h"
#include "optim/multi_node_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct multi_node {
    const wf_mesh *mesh; /* borrowed */
    wf_comm *world;      /* of the mesh: held, since it may be closed first */
    wf_comm *comm;       /* of all ranks that have this model */
    unsigned axes;       /* along which those lie */
    bool data_alone;     /* made by wf_multi_node */
    int64_t agreed_at;   /* the step after which the replicas were found equal */
    bool moved;          /* the values of this step differ between ranks: rank 0's are taken at its end */
    wf_var *queued;      /* the loss of a step whose update is queued before the host knows the trailer; else NULL */
    bool unusable;       /* its gradients, which are those of no model, are waited for (double buffering) */
    wf_draws_record drew, drew_before;
    wf_buckets *buckets;
} multi_node;

/* How many ranks have the same loss. */
static double copies(const multi_node *own, const wf_layout *layout)
{
    double ranks = 1;
    for (int axis = 0; axis < WF_AXES; axis++) {
        const bool part = layout->known ? layout->placement[axis] == WF_PARTIAL : axis == WF_AXIS_DATA;
        if ((own->axes >> axis & 1u) && !part)
            ranks *= wf_mesh_size(own->mesh, (wf_axis)axis);
    }
    return ranks;
}

static wf_status check_sharded(const multi_node *own, const wf_layout *layout)
{
    char text[WF_LAYOUT_TEXT];
    bool fits = layout->mesh == own->mesh;
    for (int axis = 0; fits && axis < WF_AXES; axis++) {
        const bool split = own->axes >> axis & 1u, partial = layout->placement[axis] == WF_PARTIAL;
        fits = layout->placement[axis] != WF_SHARDED &&
               (partial ? split || wf_mesh_size(own->mesh, (wf_axis)axis) == 1 : !split || axis != WF_AXIS_DATA);
    }
    WF_CHECK(fits, WF_ERR_UNSUPPORTED,
             "the loss is %s; %s takes a part of a sum over data on its own mesh (a mean over a sharded batch), or a "
             "mean without a layout",
             wf_layout_text(layout, text), own->data_alone ? "wf_multi_node" : "wf_mesh_multi_node");
    return WF_OK;
}

/* Adds factor * loss to the number that is summed with the gradients, in device memory. */
static wf_status add_loss(wf_optim *optim, const wf_var *loss, double factor)
{
    const multi_node *own = optim->distributed_state;
    const wf_array sum = wf_tensor_array(own->buckets->loss);
    return wf_loss_add(optim->ctx, loss->value, factor, &sum, optim->adding);
}

/* A part of a global mean has the gradient of that, unless it is one of several that make a step. */
static wf_status loss_weight_of_part(wf_optim *optim, const wf_var *loss, const wf_layout *layout, double *seed)
{
    multi_node *own = optim->distributed_state;
    double *trailer = own->buckets->trailer;
    WF_TRY(check_sharded(own, layout));
    if (!optim->more && !optim->adding) {
        trailer[WF_TRAILER_SHARDED] = 1;
        return add_loss(optim, loss, 1 / copies(own, layout));
    }
    double weight = 0;
    WF_TRY(wf_loss_samples(loss, &weight));
    /* Several parts of means are weighed by their samples and divided by the sum of weights at the end; a single one
     * has its global mean already. */
    *seed = wf_loss_seed(loss, weight);
    trailer[WF_TRAILER_PARTS] = 1;
    trailer[WF_TRAILER_WEIGHT] += loss->loss_part / copies(own, layout);
    return add_loss(optim, loss, weight / copies(own, layout));
}

/* Returns true if the ranks of this loss must draw the same random numbers, or parts of them. Accumulated losses may
 * differ in their number of draws. */
static bool compares_draws(const wf_optim *optim, const wf_var *loss, const wf_layout *layout)
{
    const multi_node *own = optim->distributed_state;
    return !loss->no_loss && !optim->more && !optim->adding &&
           (layout->known || (own->axes & ~WF_AXIS_BIT(WF_AXIS_DATA)) != 0);
}

/* Gradients are laid out by the axes over which they are summed. */
static wf_status follow_axes(wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    const wf_param *param = NULL;
    char text[WF_AXES_TEXT];
    if (optim->stale || !wf_buckets_outgrown(own->buckets, &param))
        return WF_OK;
    WF_CHECK(!optim->adding && !own->buckets->pending, WF_ERR_STATE,
             "the gradient of %s is summed over %s since this forward, and gradients that were computed before are %s; "
             "apply the layer to inputs of that layout in the first step already",
             wf_param_path(param), wf_axes_text(param->axes & wf_grad_axes(own->mesh), text),
             optim->adding ? "accumulated" : "in flight (double_buffering)");
    optim->stale = true;
    return WF_OK;
}

static wf_status loss_weight(wf_optim *optim, wf_var *loss, double *seed)
{
    multi_node *own = optim->distributed_state;
    WF_TRY(follow_axes(optim));
    const wf_layout layout = wf_tensor_layout(wf_value(loss));
    double *trailer = own->buckets->trailer;
    if (!optim->adding)
        own->drew_before = own->drew;
    for (int i = 0; i < WF_TRAILER && !optim->adding; i++)
        trailer[i] = 0;
    wf_draws_put(optim, loss, compares_draws(optim, loss, &layout), &own->drew, trailer);
    if (loss->no_loss)
        return add_loss(optim, loss, 0);
    if (layout.known)
        return loss_weight_of_part(optim, loss, &layout, seed);
    const bool alone = wf_mesh_size(own->mesh, WF_AXIS_DATA) == 1 && !optim->more && !optim->adding;
    WF_CHECK(loss->loss_mean || alone, WF_ERR_STATE,
             "the loss is no mean over samples, so its weight across ranks is unknown; end it in wf_mean or a loss "
             "function");
    /* Ranks with the same loss (along channel or pixels) count its samples once together. */
    const double weight = loss->loss_mean ? loss->loss_count : 1, share = weight / copies(own, &layout);
    *seed = wf_loss_seed(loss, weight);
    trailer[WF_TRAILER_LOCAL] = 1;
    trailer[WF_TRAILER_WEIGHT] += share;
    return add_loss(optim, loss, share);
}

static wf_status check_parameters(const wf_optim *optim, bool data_alone)
{
    wf_param *const *params;
    int64_t n;
    WF_TRY(wf_layer_params(optim->model, &n, &params));
    char text[WF_AXES_TEXT];
    for (int64_t i = 0; i < n && data_alone; i++) {
        WF_CHECK(!params[i]->trainable || params[i]->axes == WF_AXIS_BIT(WF_AXIS_DATA), WF_ERR_UNSUPPORTED,
                 "the gradient of %s is summed over %s of its mesh; wf_multi_node sums over data alone, use "
                 "wf_mesh_multi_node",
                 wf_param_path(params[i]), wf_axes_text(params[i]->axes, text));
        WF_CHECK(params[i]->shard_axes == 0, WF_ERR_UNSUPPORTED,
                 "%s is a part of a parameter that is sharded over %s of its mesh; use wf_mesh_multi_node",
                 wf_param_path(params[i]), wf_axes_text(params[i]->shard_axes, text));
    }
    return WF_OK;
}

static wf_status agree(wf_optim *optim, int64_t n, wf_param **order)
{
    multi_node *own = optim->distributed_state;
    wf_buckets *all = own->buckets;
    WF_CHECK(!all->pending, WF_ERR_STATE,
             "another optimizer took the gradients that double_buffering writes into; call wf_optim_flush before");
    WF_TRY(wf_change_agree(all, own->comm, &own->moved));
    WF_TRY(check_parameters(optim, own->data_alone));
    WF_TRY(wf_agree_order(own->comm, optim, order, &optim->agreed));
    WF_TRY(wf_buckets_plan(all, n, order));
    if (!all->opts.double_buffering)
        return WF_OK;
    wf_grads_free(all->other);
    all->other = wf_grads_new(optim->ctx, n, order, WF_TRAILER);
    WF_NEED(all->other);
    return WF_OK;
}

static wf_status begin(wf_optim *optim, int64_t n, wf_param *const *reached)
{
    const multi_node *own = optim->distributed_state;
    return wf_buckets_begin(own->buckets, n, reached);
}

static wf_status ready(wf_optim *optim, wf_param *param)
{
    const multi_node *own = optim->distributed_state;
    return wf_buckets_ready(own->buckets, param);
}

/* Sums of squares of parts that are sharded over different axes, in device memory. */
typedef struct norms {
    wf_optim *optim;
    double *sum; /* one for each set of axes */
    bool seen[1 << WF_AXES];
} norms;

static wf_array number_at(double *place)
{
    return (wf_array){.data = place, .dtype = WF_F64, .shape = wf_shape_scalar()};
}

static wf_status add_range(norms *all, unsigned axes, int64_t lo, int64_t hi)
{
    wf_optim *optim = all->optim;
    wf_array part = wf_tensor_array(optim->grads->flat);
    const wf_array out = number_at(all->sum + axes);
    if (lo >= hi)
        return WF_OK;
    part.data = (char *)part.data + (size_t)lo * wf_dtype_size(part.dtype);
    part.shape = WF_SHAPE(hi - lo);
    const bool more = all->seen[axes];
    all->seen[axes] = true;
    return optim->ctx->k->sum_squares(optim->ctx, &part, &out, more);
}

/* Elements [lo, hi) without those that another stage counts. */
static wf_status add_squares(norms *all, unsigned axes, int64_t lo, int64_t hi)
{
    const wf_grads *grads = all->optim->grads;
    for (int64_t i = 0; i < grads->n; i++) {
        if (!grads->param[i]->counted || grads->offset[i] >= hi || grads->offset[i + 1] <= lo)
            continue;
        WF_TRY(add_range(all, axes, lo, grads->offset[i]));
        lo = grads->offset[i + 1];
    }
    return add_range(all, axes, lo, hi);
}

/* The gradients of a run whose sums this rank has. */
static wf_status add_run(norms *all, const wf_buckets *buckets, const wf_grad_run *run, unsigned parted)
{
    const int64_t lo = buckets->offset[run->first], hi = buckets->offset[run->last];
    if (!all->optim->shards_state || run->axes == 0)
        return add_squares(all, parted, lo, hi);
    for (int64_t b = 0; b < buckets->n; b++) {
        const wf_bucket *bucket = &buckets->bucket[b];
        WF_TRY(add_squares(all, parted, lo > bucket->lo ? lo : bucket->lo, hi < bucket->hi ? hi : bucket->hi));
    }
    return WF_OK;
}

/* Adds to out the sum over the ranks that hold the other parts. Collective among these ranks. */
static wf_status add_parts(norms *all, unsigned axes, const wf_array *out, bool more)
{
    const multi_node *own = all->optim->distributed_state;
    wf_ctx *ctx = all->optim->ctx;
    const wf_array part = number_at(all->sum + axes);
    const wf_strided from = wf_array_strided(&part), to = wf_array_strided(out);
    if (!all->seen[axes])
        WF_TRY(ctx->k->fill(ctx, &part, 0));
    if (axes != 0)
        WF_TRY(wf_allreduce_raw(wf_mesh_comm(own->mesh, axes), part.data, part.data, 1, WF_F64, WF_SUM));
    return ctx->k->copy(ctx, &from, &to, more);
}

/* Sums over the stages, on which the layers of the model are divided. Collective among the ranks along `stage`. */
static wf_status sum_over_stages(const multi_node *own, const wf_array *out)
{
    if (wf_mesh_size(own->mesh, WF_AXIS_STAGE) == 1)
        return WF_OK;
    return wf_allreduce_raw(wf_mesh_comm(own->mesh, WF_AXIS_BIT(WF_AXIS_STAGE)), out->data, out->data, 1, WF_F64,
                            WF_SUM);
}

static wf_status norm(wf_optim *optim, const wf_array *out)
{
    const multi_node *own = optim->distributed_state;
    const wf_buckets *buckets = own->buckets;
    norms all = {.optim = optim, .sum = buckets->squares->data};
    bool used[1 << WF_AXES] = {false}, more = false;
    for (int64_t r = 0; r < buckets->n_runs; r++) {
        const wf_grad_run *run = &buckets->run[r];
        const unsigned parted = run->sharded | (optim->shards_state ? run->axes : 0);
        WF_TRY(add_run(&all, buckets, run, parted));
        used[parted] = true;
    }
    for (unsigned axes = 0; axes < 1u << WF_AXES; axes++) {
        if (!used[axes])
            continue;
        WF_TRY(add_parts(&all, axes, out, more));
        more = true;
    }
    if (!more)
        WF_TRY(optim->ctx->k->fill(optim->ctx, out, 0));
    return sum_over_stages(own, out);
}

/* Gradients that are summed over all ranks have equal bits on all ranks; a rank knows only its own part of the
 * others. */
static wf_status overflow(wf_optim *optim, const wf_array *out)
{
    const multi_node *own = optim->distributed_state;
    const wf_buckets *all = own->buckets;
    wf_array flat = wf_tensor_array(optim->grads->flat);
    flat.shape = WF_SHAPE(optim->grads->offset[optim->grads->n]);
    WF_TRY(optim->ctx->k->sum_squares(optim->ctx, &flat, out, false));
    bool partial = optim->shards_state;
    for (int64_t r = 0; r < all->n_runs; r++)
        partial = partial || all->run[r].axes != own->axes || all->run[r].sharded != 0;
    if (partial)
        WF_TRY(wf_allreduce_raw(own->comm, out->data, out->data, 1, WF_F64, WF_SUM));
    return sum_over_stages(own, out);
}

static wf_status sum_parts(wf_optim *optim, int per, double *number)
{
    const multi_node *own = optim->distributed_state;
    WF_TRY(wf_shards_sum_numbers(own->buckets, per, number));
    return wf_shards_share_numbers(own->buckets, per, number);
}

static bool compares_now(const wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    const int64_t every = own->buckets->opts.compare_every ? own->buckets->opts.compare_every : 100;
    const bool sums = strcmp(wf_comm_name(own->comm), "dummy") != 0; /* which sums nothing, so its replicas part */
    return sums && every > 0 && optim->steps % every == 0 && wf_comm_size(own->comm) > 1 &&
           !wf_ctx_capturing(optim->ctx);
}

static wf_status compare_replicas(wf_optim *optim)
{
    multi_node *own = optim->distributed_state;
    if (!compares_now(optim))
        return WF_OK;
    WF_TRY(wf_replicas_compare(own->mesh, own->comm, optim, own->agreed_at));
    /* Named in the error: the difference arose between that step and this one. */
    own->agreed_at = optim->steps + 1;
    return WF_OK;
}

/* Replaces the local loss by the global one. */
static wf_status set_loss(wf_optim *optim, wf_var *loss, double scale)
{
    const multi_node *own = optim->distributed_state;
    wf_layout layout = wf_tensor_layout(loss->value);
    WF_TRY(wf_buckets_get_loss(own->buckets, optim->grads, scale, loss->value));
    if (!layout.known)
        return WF_OK;
    for (int axis = 0; axis < WF_AXES; axis++)
        layout.placement[axis] = WF_REPLICATED;
    return wf_tensor_set_layout(loss->value, layout);
}

/* Evaluates the trailer that was summed with the gradients. */
static wf_status read_trailer(wf_optim *optim, double *grad_scale)
{
    const multi_node *own = optim->distributed_state;
    const double *trailer = own->buckets->trailer;
    const double sharded = trailer[WF_TRAILER_SHARDED], parts = trailer[WF_TRAILER_PARTS],
                 local = trailer[WF_TRAILER_LOCAL];
    if (trailer[WF_TRAILER_CHANGED] > 0)
        return wf_change_name(own->comm, optim);
    /* All ranks have the same sums, so all return the error by themselves, and no rank is told; other stages have
     * sums of their own. */
    optim->agreed = ((sharded > 0) + (parts > 0) + (local > 0) > 1 || trailer[WF_TRAILER_OVERFLOW] > 0) &&
                    wf_mesh_size(own->mesh, WF_AXIS_STAGE) == 1;
    WF_CHECK(
        local == 0 || sharded + parts == 0, WF_ERR_COMM,
        "the losses of the ranks differ in kind: %g are means over a sharded batch, %g local means without a layout",
        sharded + parts, local);
    WF_CHECK(sharded == 0 || parts == 0, WF_ERR_COMM,
             "%g ranks accumulated gradients of sharded batches for this step, and %g did not; all do it equally often",
             parts, sharded);
    WF_CHECK(trailer[WF_TRAILER_OVERFLOW] == 0, WF_ERR_NUMERIC,
             "a gradient overflows f16 in flight, which ends at 65504, or is not finite; grad_dtype WF_BF16 has the "
             "range of f32");
    const double weight = trailer[WF_TRAILER_WEIGHT];
    *grad_scale = local + parts > 0 && weight > 0 ? 1 / weight : 1;
    return WF_OK;
}

/* Gradients of values that differed between the ranks update nothing. */
static wf_status share_values(wf_optim *optim, double *grad_scale)
{
    multi_node *own = optim->distributed_state;
    const bool moved = own->moved, late = own->buckets->opts.double_buffering;
    if ((moved && !late) || own->unusable)
        *grad_scale = 0;
    /* With double buffering the gradients that were computed with the old values come one step later, and are dropped
     * then. */
    own->unusable = moved && late;
    own->moved = false;
    return moved ? wf_agree_values(own->mesh, optim) : WF_OK;
}

/* What the program reads from its loss is then the mean over the samples of all ranks, on every rank. */
static wf_status use_trailer(wf_optim *optim, wf_var *loss, double *grad_scale)
{
    const multi_node *own = optim->distributed_state;
    const bool late = own->buckets->opts.double_buffering;
    WF_TRY(read_trailer(optim, grad_scale));
    WF_TRY(wf_draws_check(own->comm, optim, late ? NULL : loss, late ? &own->drew_before : &own->drew,
                          own->buckets->trailer));
    return set_loss(optim, loss, *grad_scale);
}

static wf_status reduce_gradients(wf_optim *optim, wf_var *loss, double *grad_scale)
{
    multi_node *own = optim->distributed_state;
    bool any = true;
    const bool late = own->buckets->opts.double_buffering;
    if (optim->queues && !own->moved && !compares_now(optim) && wf_queue_allowed(own->buckets)) {
        own->queued = loss;
        *grad_scale = 1; /* until the verdict */
        return wf_buckets_end_begin(own->buckets);
    }
    if (late)
        WF_TRY(wf_buckets_swap(own->buckets, &any));
    else
        WF_TRY(wf_buckets_end(own->buckets));
    *grad_scale = 0;
    if (!any)
        return share_values(optim, grad_scale);
    WF_TRY(use_trailer(optim, loss, grad_scale));
    return share_values(optim, grad_scale);
}

static wf_status verdict(wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    return own->queued ? wf_queue_verdict(own->buckets, &optim->device->hyper) : WF_OK;
}

/* An error here is before the step is counted, and the device has left out the update, unless the communicator died
 * after the sums had come and before the host looked. */
static wf_status updated(wf_optim *optim)
{
    multi_node *own = optim->distributed_state;
    wf_var *loss = own->queued;
    double grad_scale;
    own->queued = NULL;
    if (loss) {
        WF_TRY(wf_buckets_end_queued(own->buckets));
        WF_TRY(use_trailer(optim, loss, &grad_scale));
    }
    if (optim->shards_state)
        WF_TRY(wf_shards_gather_values(own->buckets));
    return compare_replicas(optim);
}

static wf_status flush(wf_optim *optim, double *grad_scale)
{
    multi_node *own = optim->distributed_state;
    *grad_scale = 0;
    if (!own->buckets->pending)
        return WF_OK;
    WF_TRY(wf_buckets_flush(own->buckets));
    WF_TRY(read_trailer(optim, grad_scale));
    return share_values(optim, grad_scale);
}

static bool pending(const wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    return own->buckets->pending;
}

static bool delayed(const wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    return own->buckets->opts.double_buffering;
}

static wf_status resume(wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    return wf_buckets_resume(own->buckets);
}

static const wf_mesh *mesh_of(const wf_optim *optim)
{
    const multi_node *own = optim->distributed_state;
    return own->mesh;
}

static void accumulated(const wf_optim *optim, wf_array *loss, double **trailer)
{
    const multi_node *own = optim->distributed_state;
    *loss = wf_tensor_array(own->buckets->loss);
    *trailer = own->buckets->trailer;
}

/* The other ranks will wait for a message that this rank does not send, so they must be told. */
static wf_status leave_step(wf_optim *optim, wf_status status)
{
    multi_node *own = optim->distributed_state;
    if (!optim->agreed)
        status = wf_comm_post_failure(wf_mesh_world(own->mesh), status);
    wf_background_end(own->world);
    own->buckets->pending = false;
    own->queued = NULL;
    return status;
}

static void free_own(wf_optim *optim)
{
    multi_node *own = optim->distributed_state;
    if (own->buckets && own->buckets->pending)
        wf_background_end(own->world);
    wf_buckets_free(own->buckets);
    wf_comm_let_go(own->world);
    free(own);
}

/* How it is called by users. */
typedef struct call {
    const wf_mesh *mesh;
    const char *name;
    bool data_alone;
    wf_multi_node_opts opts;
} call;

static wf_status check_wrap(const call *c, wf_comm *comm, wf_optim *optim, bool *agreed)
{
    WF_NEED(optim);
    WF_NEED(comm);
    WF_CHECK(!optim->distributed, WF_ERR_ARGUMENT, "%s around a multi-node optimizer", c->name);
    WF_CHECK(!optim->adding, WF_ERR_STATE, "%s around an optimizer with accumulated gradients; step before", c->name);
    WF_CHECK(optim->ctx == wf_comm_ctx(comm), WF_ERR_ARGUMENT,
             "the model belongs to another context than the communicator; make it with wf_comm_ctx");
    WF_TRY(wf_check_opts(optim, &c->opts));
    WF_TRY(wf_scale_check_buffers(optim->scales, c->opts.double_buffering));
    WF_TRY(wf_agree_groups(wf_mesh_world(c->mesh), optim, agreed)); /* first: of all stages, which part after it */
    WF_TRY(wf_agree_opts(comm, optim->ctx, &c->opts, agreed));
    WF_TRY(wf_agree_optim(comm, optim, agreed));
    WF_TRY(wf_agree_model(comm, optim, agreed));
    WF_TRY(wf_agree_draws(comm, optim, agreed));
    *agreed = true; /* of equal models all ranks think the same */
    WF_TRY(check_parameters(optim, c->data_alone));
    *agreed = false;
    return WF_OK;
}

static wf_status attach(const call *c, wf_optim *optim, bool *agreed)
{
    static const wf_optim_distributed distributed = {.trailer = WF_TRAILER,
                                                     .loss_weight = loss_weight,
                                                     .agree = agree,
                                                     .begin = begin,
                                                     .ready = ready,
                                                     .reduce = reduce_gradients,
                                                     .norm = norm,
                                                     .sum_parts = sum_parts,
                                                     .overflow = overflow,
                                                     .verdict = verdict,
                                                     .updated = updated,
                                                     .flush = flush,
                                                     .pending = pending,
                                                     .delayed = delayed,
                                                     .resume = resume,
                                                     .mesh = mesh_of,
                                                     .accumulated = accumulated,
                                                     .failed = leave_step,
                                                     .free = free_own};
    const unsigned axes = wf_grad_axes(c->mesh);
    wf_comm *comm = wf_mesh_comm(c->mesh, axes);
    WF_TRY(check_wrap(c, comm, optim, agreed));
    WF_TRY(wf_agree_values(c->mesh, optim));
    multi_node *own = wf_calloc(optim->ctx, 1, sizeof *own);
    WF_NEED(own);
    *own = (multi_node){.mesh = c->mesh, .comm = comm, .axes = axes, .data_alone = c->data_alone};
    own->world = wf_comm_hold(wf_mesh_world(c->mesh));
    optim->distributed_state = own;
    optim->distributed = &distributed;
    optim->shards_state = c->opts.shard_optimizer;
    wf_grads_free(optim->grads);
    optim->grads = NULL;
    WF_TRY(wf_buckets_new(optim, c->mesh, c->opts, &own->buckets));
    return wf_buckets_open(own->buckets);
}

static wf_optim *wrap(const call *c, wf_optim *optim)
{
    bool agreed = false;
    if (!c->mesh) {
        wf_optim_free(optim);
        return wf_error_need_null(c->name, c->data_alone ? "comm" : "mesh", __FILE__, __LINE__);
    }
    const wf_status status = attach(c, optim, &agreed);
    if (status == WF_OK)
        return optim;
    if (!agreed)
        wf_comm_post_failure(wf_mesh_world(c->mesh), status);
    wf_optim_free(optim);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}

wf_optim *wf_multi_node(wf_comm *comm, wf_optim *optim, wf_multi_node_opts opts)
{
    return wrap(&(call){.mesh = wf_comm_mesh(comm), .name = "wf_multi_node", .data_alone = true, .opts = opts}, optim);
}

wf_optim *wf_mesh_multi_node(const wf_mesh *mesh, wf_optim *optim, wf_multi_node_opts opts)
{
    return wrap(&(call){.mesh = mesh, .name = "wf_mesh_multi_node", .opts = opts}, optim);
}
