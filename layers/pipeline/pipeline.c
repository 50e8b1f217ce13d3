/* The pipeline as an object: checks what it is made of, cuts the chain, and makes and verifies the schedules of all
 * stages. step.c runs them. */
#include "layers/pipeline/pipeline_impl.h"

#include "comm/comm_author.h"
#include "core/random_author.h"

#include <stdlib.h>
#include <string.h>

/* Looks only at what this rank was given; the ranks compare their options afterwards. */
static wf_status check_options(const wf_mesh *mesh, const wf_layer *chain, const wf_pipeline_opts *o)
{
    WF_CHECK(wf_layer_ctx(chain) == wf_comm_ctx(wf_mesh_world(mesh)), WF_ERR_ARGUMENT,
             "the model belongs to another context than the mesh; make it with wf_comm_ctx");
    WF_CHECK(!chain->parent, WF_ERR_ARGUMENT, "a pipeline of \"%s\", which is a part of another layer",
             wf_layer_path(chain));
    WF_CHECK(
        chain->segments == 0, WF_ERR_ARGUMENT,
        "a pipeline of a chain that is cut for recomputation (wf_recompute_chain); give wf_pipeline_opts.recompute");
    WF_CHECK(o->recompute >= WF_RECOMPUTE_NEVER && o->recompute <= WF_RECOMPUTE_ALWAYS, WF_ERR_ARGUMENT,
             "%d is no recomputation; there are WF_RECOMPUTE_NEVER, _EXCEPT_LAST and _ALWAYS", (int)o->recompute);
    WF_CHECK(o->loss, WF_ERR_ARGUMENT, "a pipeline without a loss; give a function such as wf_mean_cross_entropy");
    WF_CHECK(o->chunks >= 0, WF_ERR_ARGUMENT, "a batch in %d chunks; should be 1 or more (0: 4 for each stage)",
             o->chunks);
    WF_CHECK(o->parts >= 0, WF_ERR_ARGUMENT, "%d parts on each stage; should be 1 or more (0: the default)", o->parts);
    WF_CHECK(o->n_more_samples >= 0 && (o->n_more_samples == 0 || (o->more_samples && o->sample)), WF_ERR_ARGUMENT,
             "a pipeline with %d samples beside the first one%s", o->n_more_samples,
             o->sample ? "" : ", which is NULL");
    WF_CHECK(o->parts <= 1 || o->schedule == WF_PIPELINE_INTERLEAVED, WF_ERR_ARGUMENT,
             "%d parts on each stage; more than one go with WF_PIPELINE_INTERLEAVED alone", o->parts);
    return WF_OK;
}

/* What each rank finds out by itself: no messages, so a failure here is told by wf_agree_status. */
static wf_status prepare(wf_pipeline *p, const wf_pipeline_opts *o, int *count, wf_layer ***list)
{
    if (!p->model)
        return wf_error_need("wf_pipeline_new", "chain", __FILE__, __LINE__);
    WF_TRY(check_options(p->mesh, p->model, o));
    p->parts = o->parts ? o->parts : o->schedule == WF_PIPELINE_INTERLEAVED ? 2 : 1;
    /* 4 chunks a stage leave a bubble of less than a fifth: (stages - 1) / (chunks + stages - 1). */
    p->chunks = o->chunks ? o->chunks : 4 * p->stages;
    p->loss = o->loss;
    p->recompute = o->recompute;
    p->deferred = o->deferred_batchnorm;
    p->compare_every = o->compare_every ? o->compare_every : 100;
    WF_TRY(wf_chain_list(p->model, count, list));
    /* Refuses what is out of its range; the one with skips is made when the chain is cut. */
    p->schedule = wf_pipeline_schedule_new(
        p->ctx,
        (wf_pipeline_schedule_opts){.kind = o->schedule, .stages = p->stages, .parts = p->parts, .chunks = p->chunks});
    WF_NEED(p->schedule);
    p->cuts = wf_calloc(p->ctx, (size_t)p->stages * (size_t)p->parts, sizeof *p->cuts);
    return p->cuts ? WF_OK : wf_error_code();
}

/* What follows from where the chain is cut. */
static wf_status prepare_cut(wf_pipeline *p, const wf_pipeline_opts *o, int count, wf_layer *const *list)
{
    /* The order of skips is part of the schedule: it must be found before. */
    WF_TRY(wf_pipeline_find_skips(p, count, list));
    WF_TRY(wf_pipeline_find_ties(p, count, list));
    int between = 0;
    wf_pipeline_skip *skip = wf_calloc(p->ctx, (size_t)p->skips + 1, sizeof *skip);
    if (!skip)
        return wf_error_code();
    /* The schedule knows skips between parts only; those inside come last in p->skip. */
    for (int i = 0; i < p->skips; i++)
        if (p->skip[i].parts.from != p->skip[i].parts.to)
            skip[between++] = p->skip[i].parts;
    wf_pipeline_schedule_free(p->schedule);
    p->schedule = wf_pipeline_schedule_new(p->ctx, (wf_pipeline_schedule_opts){.kind = o->schedule,
                                                                               .stages = p->stages,
                                                                               .parts = p->parts,
                                                                               .chunks = p->chunks,
                                                                               .skips = between,
                                                                               .skip = skip});
    free(skip);
    WF_NEED(p->schedule);
    /* Verified on each rank, as each made it: all have made the same, or none passes. */
    return wf_pipeline_schedule_verify(p->schedule);
}

/* A number that ranks must have in common, and its name in messages. */
typedef struct option {
    const char *name;
    int64_t value;
    bool hash; /* says nothing to a reader */
} option;

/* Arrays are compared by a hash; two bits are dropped so that the negative number exists too. */
static int64_t hash_array(const void *array, size_t bytes)
{
    uint64_t hash = array ? 1 : 0;
    for (size_t i = 0; array && i < bytes; i++)
        hash = wf_hash_u64(hash, ((const unsigned char *)array)[i]);
    return (int64_t)(hash >> 2);
}

/* Ranks that were given different options would wait for each other. The message is the same on all ranks. */
static wf_status compare_options(const wf_pipeline *p, int n, const option *o)
{
    enum { MOST = 12 };
    /* A minimum of x and of -x tells the least and the largest in one reduction. */
    int64_t least[2 * MOST];
    for (int i = 0; i < n; i++) {
        least[i] = o[i].value;
        least[n + i] = -o[i].value;
    }
    WF_TRY(wf_allreduce_i64(wf_mesh_world(p->mesh), least, 2 * (int64_t)n, WF_MIN));
    for (int i = 0; i < n; i++) {
        WF_CHECK(least[i] == -least[n + i] || !o[i].hash, WF_ERR_COMM,
                 "the ranks gave the pipeline different chains or options: %s differs; should be the same on all",
                 o[i].name);
        WF_CHECK(least[i] == -least[n + i], WF_ERR_COMM,
                 "the ranks gave the pipeline different chains or options: %s is %lld and %lld; should be the same on "
                 "all",
                 o[i].name, (long long)least[i], (long long)-least[n + i]);
    }
    return WF_OK;
}

/* A tied parameter whose first layer is dropped here keeps the name that it has in the serial model. The name under
 * which optimizers and checkpoints know a parameter must not depend on the stage. */
static wf_status name_ties(const wf_pipeline *p)
{
    int64_t n;
    wf_param *const *param;
    WF_TRY(wf_layer_params(p->model, &n, &param));
    for (int64_t i = 0; i < n; i++)
        for (wf_param *tied = param[i]->tied_next; tied; tied = tied->tied_next) {
            tied->serial = wf_strdup(p->ctx, wf_param_path(param[i]));
            if (!tied->serial)
                return wf_error_code();
        }
    return WF_OK;
}

/* Before the chain is cut, which may measure: then ranks send. */
static wf_status compare_given(const wf_pipeline *p, const wf_pipeline_opts *o, int count)
{
    const option given[] = {
        {"the number of layers", count, false},
        {"chunks", p->chunks, false},
        {"parts", p->parts, false},
        {"schedule", (int64_t)o->schedule, false},
        {"recompute", (int64_t)p->recompute, false},
        {"deferred_batchnorm", p->deferred, false},
        {"compare_every", p->compare_every, false},
        {"by_memory", o->by_memory, false},
        {"the presence of a sample", o->sample != NULL, false},
        {"the number of samples", o->n_more_samples, false},
    };
    WF_TRY(compare_options(p, sizeof given / sizeof *given, given));
    /* Their lengths are known to be equal now. Hashing reads as many numbers as the ranks have agreed on. */
    const option arrays[] = {
        {"layers", hash_array(o->layers, (size_t)p->stages * (size_t)p->parts * sizeof *o->layers), true},
        {"cost", hash_array(o->cost, (size_t)count * sizeof *o->cost), true},
    };
    return compare_options(p, sizeof arrays / sizeof *arrays, arrays);
}

static wf_status compare_cuts(const wf_pipeline *p)
{
    const size_t bytes = (size_t)p->stages * (size_t)p->parts * sizeof *p->cuts;
    return compare_options(p, 1, &(option){"where the chain is cut", hash_array(p->cuts, bytes), true});
}

/* Rank 0 numbers its layers once for all, so the number of its model stands for the pipeline. */
static wf_status take_number(wf_pipeline *p)
{
    wf_comm *world = wf_mesh_world(p->mesh);
    p->number = wf_comm_rank(world) == 0 ? (int64_t)p->model->id : 0;
    /* Other ranks offer 0, so the maximum is rank 0's number. */
    return wf_allreduce_i64(world, &p->number, 1, WF_MAX);
}

/* The layers of this stage, part after part. */
static wf_status take_layers(wf_pipeline *p, int count, wf_layer *const *list)
{
    p->first = wf_calloc(p->ctx, (size_t)p->parts + 1, sizeof *p->first);
    p->layer = wf_calloc(p->ctx, (size_t)count + 1, sizeof(*p->layer));
    p->slot = wf_calloc(p->ctx, (size_t)p->parts * (size_t)p->chunks, sizeof *p->slot);
    p->tape = wf_calloc(p->ctx, (size_t)p->parts * (size_t)p->chunks, sizeof(*p->tape));
    const size_t rows = (size_t)p->stages * (size_t)p->parts + (size_t)p->skips;
    p->layout = wf_calloc(p->ctx, rows, sizeof *p->layout);
    p->link = wf_calloc(p->ctx, rows * (size_t)p->chunks, sizeof *p->link);
    bool *keep = wf_calloc(p->ctx, (size_t)count + 1, sizeof *keep);
    const bool room = p->first && p->layer && p->slot && p->tape && p->layout && p->link && keep;
    int at = 0, own = 0, parts = 0;
    for (int part = 0; room && part < p->stages * p->parts; part++) {
        /* Parts go round the stages: part p is on stage p modulo stages. */
        const bool here = part % p->stages == p->stage;
        for (int i = 0; i < p->cuts[part]; i++, at++) {
            keep[at] = here;
            if (here)
                p->layer[own++] = list[at];
        }
        if (here)
            p->first[++parts] = own;
    }
    for (int i = 0; room && i < p->skips; i++) {
        wf_pipeline_ends *ends = &p->skip[i];
        /* Layers of other stages are dropped below, so links to them must go first. */
        ends->stash = ends->parts.from % p->stages == p->stage ? ends->stash : NULL;
        ends->pop = ends->parts.to % p->stages == p->stage ? ends->pop : NULL;
    }
    wf_status status = room ? name_ties(p) : wf_error_code();
    if (status == WF_OK) {
        wf_chain_drop(p->model, count, list, keep);
        p->model->part = p->stage;
        p->model->parts = p->stages;
        status = wf_pipeline_keep_ties(p);
    }
    free(keep);
    return status;
}

/* NCCL moves the messages of a stage one after the other, each with both its ends: a schedule in which a send need not
 * wait for its receive could hang. */
static wf_status put_in_order(wf_pipeline *p)
{
    p->in_order = wf_pipeline_schedule_in_order(p->schedule);
    WF_NEED(p->in_order);
    return wf_pipeline_schedule_verify(p->in_order);
}

/* Collective steps, each of which all ranks end with the same status: none goes on alone. */
static wf_status open(wf_pipeline *p, const wf_pipeline_opts *o)
{
    wf_layer **list = NULL;
    int count = 0;
    wf_comm *world = wf_mesh_world(p->mesh);
    wf_status status = wf_agree_status(world, prepare(p, o, &count, &list));
    if (status == WF_OK)
        status = compare_given(p, o, count);
    if (status == WF_OK)
        status = take_number(p);
    /* Cutting may measure, which ends in a status of all ranks. */
    if (status == WF_OK)
        status = wf_agree_status(world, wf_pipeline_cut(p, o, count, list));
    if (status == WF_OK)
        status = compare_cuts(p);
    if (status == WF_OK)
        status = wf_agree_status(world, prepare_cut(p, o, count, list));
    if (status == WF_OK)
        status = wf_agree_status(world, take_layers(p, count, list));
    free(list);
    WF_TRY(status);
    p->comm = wf_mesh_comm(p->mesh, WF_AXIS_BIT(WF_AXIS_STAGE));
    /* From here on only local memory is made, but for connections that the transport opens on all ranks. */
    WF_NEED(p->comm);
    p->outbox = wf_outbox_new(p->comm);
    WF_NEED(p->outbox);
    return wf_outbox_connects(p->outbox) ? wf_agree_status(world, put_in_order(p)) : WF_OK;
}

wf_pipeline *wf_pipeline_new(const wf_mesh *mesh, wf_layer *chain, wf_pipeline_opts opts)
{
    /* The pipeline takes the chain, also if it fails. */
    if (!mesh) {
        wf_layer_free(chain);
        return wf_error_need_null(__func__, "mesh", __FILE__, __LINE__);
    }
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    wf_pipeline *p = wf_calloc(ctx, 1, sizeof *p);
    wf_status status = WF_ERR_MEMORY;
    if (p) {
        *p = (wf_pipeline){.ctx = ctx,
                           .mesh = mesh,
                           .model = chain,
                           .stage = wf_mesh_rank(mesh, WF_AXIS_STAGE),
                           .stages = wf_mesh_size(mesh, WF_AXIS_STAGE)};
        status = open(p, &opts);
        if (status == WF_OK)
            return p;
        wf_pipeline_free(p);
    } else {
        wf_layer_free(chain);
        wf_comm_post_failure(wf_mesh_world(mesh), status);
    }
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

void wf_pipeline_free(wf_pipeline *p)
{
    if (!p)
        return;
    /* The outbox first: messages under way point into links. */
    wf_outbox_free(p->outbox);
    wf_pipeline_forget(p);
    for (int i = 0; i < p->tapes; i++)
        wf_tape_free(p->tape[i]);
    wf_pipeline_grads_free(p);
    wf_pipeline_ties_free(p);
    wf_pipeline_schedule_free(p->schedule);
    wf_pipeline_schedule_free(p->in_order);
    wf_layer_free(p->model);
    free(p->cuts);
    free(p->layer);
    free(p->first);
    free(p->slot);
    free(p->tape);
    free(p->layout);
    free(p->link);
    free(p->skip);
    free(p);
}

wf_layer *wf_pipeline_model(wf_pipeline *pipe)
{
    return pipe ? pipe->model : NULL;
}

const wf_pipeline_schedule *wf_pipeline_schedule_of(const wf_pipeline *pipe)
{
    return pipe ? pipe->schedule : NULL;
}

const int *wf_pipeline_cuts(const wf_pipeline *pipe, int *parts)
{
    if (parts)
        *parts = pipe ? pipe->stages * pipe->parts : 0;
    return pipe ? pipe->cuts : NULL;
}
